/* models/rope.c - inverse frequencies and the factor of cos and sin, as transformers computes them in f32 (exponent, power,
 * reciprocal and every later step rounded to f32); the power itself through our own f64 function. */
#include "models/arch.h"

#include "base/math.h"

static const double pi = 3.14159265358979323846;

/* theta ^ (2 i / rot) as f32 */
static float power(const struct rope_params *p, uint32_t i)
{
    float exponent = (float)(2 * i) / (float)p->rot;
    return (float)math_powd(p->theta, (double)exponent);
}

static void llama3(const struct rope_params *p, uint32_t n, float *inv)
{
    float low_wave = (float)(p->original / p->low_freq), high_wave = (float)(p->original / p->high_freq);
    for (uint32_t i = 0; i < n; i++) {
        float wave = (float)(2.0 * pi) / inv[i];
        float slow = wave > low_wave ? inv[i] / (float)p->factor : inv[i];
        if (wave >= high_wave && wave <= low_wave) {
            float smooth = ((float)p->original / wave - (float)p->low_freq) / (float)(p->high_freq - p->low_freq);
            slow = (1.0f - smooth) * slow / (float)p->factor + smooth * slow;
        }
        inv[i] = slow;
    }
}

/* The pair whose angle turns `turns` times over the original context. */
static double yarn_pair(const struct rope_params *p, double turns)
{
    return (double)p->rot * math_logd((double)p->original / (turns * 2.0 * pi)) / (2.0 * math_logd(p->theta));
}

double rope_yarn_mscale(double factor, double mscale)
{
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * math_logd(factor) + 1.0;
}

static void yarn(const struct rope_params *p, uint32_t n, float *inv, float *mscale)
{
    double low = yarn_pair(p, p->beta_fast), high = yarn_pair(p, p->beta_slow);
    if (p->truncate) {
        low = __builtin_floor(low);
        high = __builtin_ceil(high);
    }
    low = low > 0.0 ? low : 0.0;
    high = high < (double)p->rot - 1.0 ? high : (double)p->rot - 1.0;
    high = low == high ? high + 0.001 : high;
    for (uint32_t i = 0; i < n; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        ramp = ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp;
        float keep = 1.0f - ramp, w = power(p, i);
        float stretched = 1.0f / ((float)p->factor * w), plain = 1.0f / w;
        inv[i] = stretched * (1.0f - keep) + plain * keep;
    }
    double m = p->attention_factor;
    if (m == 0.0) {
        m = p->mscale != 0.0 && p->mscale_all != 0.0 ? rope_yarn_mscale(p->factor, p->mscale) / rope_yarn_mscale(p->factor, p->mscale_all)
                                                     : rope_yarn_mscale(p->factor, 1.0);
    }
    *mscale = (float)m;
}

static void longrope(const struct rope_params *p, uint32_t n, uint32_t context_train, uint32_t context, float *inv, float *mscale)
{
    const float *factors = context > p->original ? p->factors_long : p->factors_short;
    for (uint32_t i = 0; i < n; i++) {
        inv[i] = 1.0f / (factors[i] * power(p, i));
    }
    double factor = p->factor != 0.0 ? p->factor : (double)context_train / p->original;
    double m = p->attention_factor;
    if (m == 0.0) {
        m = factor <= 1.0 ? 1.0 : __builtin_sqrt(1.0 + math_logd(factor) / math_logd((double)p->original));
    }
    *mscale = (float)m;
}

static int check(const struct rope_params *p, struct err *err)
{
    bool scaled = p->kind == ROPE_LINEAR || p->kind == ROPE_LLAMA3 || p->kind == ROPE_YARN ||
                  (p->kind == ROPE_PROPORTIONAL && p->factor != 0.0);
    if (scaled && !(p->factor >= 1e-3 && p->factor <= 1e6)) {
        return err_set(err, ERR_FORMAT, "rope factor: expected 0.001 to 1e6, got %g", p->factor);
    }
    if (p->kind == ROPE_LLAMA3 && !(p->low_freq > 0.0 && p->high_freq > p->low_freq)) {
        return err_set(err, ERR_FORMAT, "rope low_freq_factor %g and high_freq_factor %g: expected 0 < low < high", p->low_freq,
                       p->high_freq);
    }
    if (p->kind == ROPE_YARN && !(p->beta_fast > 0.0 && p->beta_slow > 0.0)) {
        return err_set(err, ERR_FORMAT, "rope beta_fast %g and beta_slow %g: expected above 0", p->beta_fast, p->beta_slow);
    }
    if (p->kind == ROPE_LONGROPE && (p->factor_count != p->rot / 2 || p->original < 2)) {
        return err_set(err, ERR_FORMAT, "rope factors: expected %u, got %u (original context %u)", p->rot / 2, p->factor_count,
                       p->original);
    }
    if (!(p->attention_factor >= 0.0) || !(p->mscale >= 0.0) || !(p->mscale_all >= 0.0) || p->attention_factor > 1e3) {
        return err_set(err, ERR_FORMAT, "rope attention_factor %g, mscale %g, mscale_all_dim %g: expected 0 or more",
                       p->attention_factor, p->mscale, p->mscale_all);
    }
    return 0;
}

int rope_frequencies(const struct rope_params *params, uint32_t context_train, uint32_t context, const float *divisors,
                     float *inv, float *mscale, struct err *err)
{
    struct rope_params copy = *params;
    struct rope_params *p = &copy;
    p->original = p->original ? p->original : context_train;
    uint32_t n = p->rot / 2;
    *mscale = 1.0f;
    int rc = check(p, err);
    if (rc != 0) {
        return rc;
    }
    for (uint32_t i = 0; i < n; i++) {
        inv[i] = 1.0f / power(p, i);
    }
    switch (p->kind) {
    case ROPE_PLAIN:
        break;
    case ROPE_PROPORTIONAL:
        for (uint32_t i = 0; i < n; i++) {
            inv[i] = i < p->turned ? inv[i] / (p->factor != 0.0 ? (float)p->factor : 1.0f) : 0.0f;
        }
        break;
    case ROPE_LINEAR:
        for (uint32_t i = 0; i < n; i++) {
            inv[i] /= (float)p->factor;
        }
        break;
    case ROPE_LLAMA3:
        llama3(p, n, inv);
        break;
    case ROPE_YARN:
        yarn(p, n, inv, mscale);
        break;
    case ROPE_LONGROPE:
        longrope(p, n, context_train, context, inv, mscale);
        break;
    }
    for (uint32_t i = 0; i < n && divisors != NULL; i++) {
        if (!(divisors[i] > 0.0f)) {
            return err_set(err, ERR_FORMAT, "rope_freqs[%u]: expected a number above 0, got %g", i, (double)divisors[i]);
        }
        inv[i] /= divisors[i];
    }
    return 0;
}
