/* backend_cpu/cpu_filter.c - which ids survive the filters of one row (docs/sampling.md has their meaning).
 *
 * Probabilities are integers: e(id) = rne(2^40 exp2((z - z max) log2e)), z = x / T, z max of the set at hand.  Their sums are exact, so no
 * order of summing and no representation of the set can show.  Thresholds on them are compared in f64.
 * Sets start as "all"; filters that keep a head of the order gather only ids above a bound that surely holds it.
 * Invariants: 1. At least one id stays.  2. No heap: the list has room for the vocabulary. */
#include "backend_cpu/cpu_sample.h"

#include "base/math.h"
#include "base/rng.h"

#include <float.h>
#include <math.h>
#include <string.h>

static const float LOG2E = 1.44269504f;

/* ---- keys, sorting ---- */

/* unsigned order of floats, -0 = +0 */
static uint32_t rising(float f)
{
    uint32_t u;
    f += 0.0f;
    memcpy(&u, &f, 4);
    return u >> 31 ? ~u : u | 0x80000000u;
}

static uint64_t key_of(float x, uint32_t id)
{
    return (uint64_t)~rising(x) << 32 | id;
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t t = *a;
    *a = *b, *b = t;
}

static void sift(uint64_t *v, uint32_t at, uint32_t n)
{
    for (uint32_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && v[child + 1] > v[child])
            child++;
        if (v[at] >= v[child])
            return;
        swap(v + at, v + child);
    }
}

static void sort(uint64_t *v, uint32_t n)
{
    for (uint32_t i = n / 2; i-- > 0;)
        sift(v, i, n);
    for (uint32_t i = n; i-- > 1;) {
        swap(v, v + i);
        sift(v, 0, i);
    }
}

/* The k smallest of n to the front, in any order. */
static void select_front(uint64_t *v, uint32_t n, uint32_t k)
{
    for (int round = 0; k < n && n > 32; round++) {
        if (round == 64) /* an unlucky order: the slow sure way */
            break;
        uint64_t a = v[0], b = v[n / 2], c = v[n - 1];
        uint64_t pivot = a < b ? (b < c ? b : a < c ? c : a) : (a < c ? a : b < c ? c : b);
        uint32_t i = 0, j = n - 1;
        for (;; i++, j--) {
            while (v[i] < pivot)
                i++;
            while (v[j] > pivot)
                j--;
            if (i >= j)
                break;
            swap(v + i, v + j);
        }
        if (k <= i) {
            n = i;
        } else {
            v += i, n -= i, k -= i;
        }
        if (k == 0 || i == 0)
            break;
    }
    if (k < n && k > 0)
        sort(v, n);
}

/* ---- the set ---- */

static float z_of(const struct cpu_survivors *s, float x)
{
    return x / s->row->params->temperature;
}

static float z_at(const struct cpu_survivors *s, uint32_t i)
{
    return z_of(s, s->x[cpu_key_id(s->list[i])]);
}

/* List every id with x >= least; false when there are more than `cap` (the list is then cut somewhere). */
static bool gather_capped(struct cpu_survivors *s, float least, uint32_t cap)
{
    s->n = 0;
    s->sorted = false;
    least = least > -FLT_MAX ? least : -FLT_MAX;
    for (uint32_t b = 0; b * LOGIT_BLOCK < s->vocab; b++) {
        if (!(s->blocks[b].max >= least))
            continue;
        uint32_t from = b * LOGIT_BLOCK, n = s->vocab - from < LOGIT_BLOCK ? s->vocab - from : LOGIT_BLOCK;
        uint32_t room = cap - s->n < LOGIT_BLOCK ? cap - s->n : LOGIT_BLOCK;
        uint32_t hits = s->k->pick(s->x + from, n, least, s->picked, room);
        if (hits == UINT32_MAX)
            return false;
        for (uint32_t i = 0; i < hits; i++)
            s->list[s->n++] = key_of(s->x[from + s->picked[i]], from + s->picked[i]);
    }
    return true;
}

static void gather(struct cpu_survivors *s, float least)
{
    gather_capped(s, least, s->vocab);
}

/* List at least the k best of all, and not many more: a bound below the maximum is searched by doubling and halving. */
static void gather_best(struct cpu_survivors *s, uint32_t k)
{
    float low = 0, high = INFINITY, below = 1;
    uint32_t cap = k < s->vocab / 16 ? 8 * k + 256 : s->vocab;
    for (int i = 0; i < 20; i++) {
        if (!gather_capped(s, s->x_max - below, cap))
            high = below;
        else if (s->n >= k)
            return;
        else
            low = below;
        below = high < INFINITY ? (low + high) / 2 : 2 * low;
    }
    gather(s, s->x_max - high); /* many equal logits, or all of them if none was enough */
}

static void make_list(struct cpu_survivors *s)
{
    if (s->all)
        gather(s, -FLT_MAX);
    s->all = false;
}

static void make_sorted(struct cpu_survivors *s)
{
    make_list(s);
    if (!s->sorted)
        sort(s->list, s->n);
    s->sorted = true;
}

static float z_max(const struct cpu_survivors *s)
{
    if (s->all)
        return z_of(s, s->x_max);
    float most = z_at(s, 0);
    for (uint32_t i = 1; i < s->n && !s->sorted; i++)
        most = z_at(s, i) > most ? z_at(s, i) : most;
    return most;
}

static uint64_t weight(float z, float most)
{
    double e = (double)math_exp2f((z - most) * LOG2E) * 0x1p40;
    return (uint64_t)((e + 0x1p52) - 0x1p52);
}

static uint64_t list_mass(const struct cpu_survivors *s, float most)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n; i++)
        sum += weight(z_at(s, i), most);
    return sum;
}

static uint64_t all_mass(const struct cpu_survivors *s)
{
    uint64_t sum = 0;
    for (uint32_t b = 0; b * LOGIT_BLOCK < s->vocab; b++)
        sum += s->blocks[b].mass;
    return sum;
}

/* Cut the list after the first element, in key order, at which the mass reaches `limit`. */
static void cut_at_mass(struct cpu_survivors *s, float most, double limit)
{
    uint64_t sum = 0;
    uint32_t done = 0;
    bool crossed = false;
    for (uint32_t step = 64; done < s->n && !crossed; step *= 4) {
        uint32_t left = s->n - done, k = step < left ? step : left;
        if (!s->sorted) {
            select_front(s->list + done, left, k);
            sort(s->list + done, k);
        }
        for (uint32_t end = done + k; done < end && !crossed;) {
            sum += weight(z_at(s, done++), most);
            crossed = (double)sum >= limit;
        }
    }
    s->n = done;
    s->sorted = true;
}

/* ---- filters ---- */

/* Mean and deviation: f64, rising ids, one partial per LOGIT_BLOCK ids, partials added in order. */
static void moments(struct cpu_survivors *s, double *mean, double *deviation)
{
    for (uint32_t i = 0; i < s->n; i++)
        s->list[i] &= UINT32_MAX;
    sort(s->list, s->n);
    for (int pass = 0; pass < 2; pass++) {
        double sum = 0, part = 0;
        uint32_t block = 0;
        for (uint32_t i = 0; i < s->n; i++) {
            if (cpu_key_id(s->list[i]) / LOGIT_BLOCK != block) {
                sum += part;
                part = 0;
                block = cpu_key_id(s->list[i]) / LOGIT_BLOCK;
            }
            double z = (double)z_at(s, i);
            part += pass ? (z - *mean) * (z - *mean) : z;
        }
        sum = (sum + part) / s->n;
        *(pass ? deviation : mean) = pass ? sqrt(sum) : sum;
    }
    for (uint32_t i = 0; i < s->n; i++)
        s->list[i] = key_of(s->x[s->list[i]], (uint32_t)s->list[i]);
    s->sorted = false;
}

static void keep_above(struct cpu_survivors *s, double limit)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < s->n; i++)
        if ((double)z_at(s, i) >= limit)
            s->list[kept++] = s->list[i];
    s->n = kept;
}

static void top_n_sigma(struct cpu_survivors *s)
{
    double mean = 0, deviation = 0;
    make_list(s);
    moments(s, &mean, &deviation);
    keep_above(s, (double)z_max(s) - (double)s->row->params->top_n_sigma * deviation);
}

static void top_k(struct cpu_survivors *s, uint32_t k)
{
    if (k >= s->vocab)
        return;
    if (s->all) {
        gather_best(s, k);
        s->all = false;
    }
    if (s->n <= k)
        return;
    if (!s->sorted)
        select_front(s->list, s->n, k);
    s->n = k;
}

static void top_p(struct cpu_survivors *s)
{
    float most = z_max(s), t = s->row->params->temperature;
    double limit = (double)s->row->params->top_p * (double)(s->all ? all_mass(s) : list_mass(s, most));
    if (s->all) {
        gather(s, s->x_max - 6 * t);
        if ((double)list_mass(s, most) < limit)
            gather(s, s->x_max - 14 * t);
        if ((double)list_mass(s, most) < limit)
            gather(s, -FLT_MAX);
        s->all = false;
    }
    cut_at_mass(s, most, limit);
}

static void min_p(struct cpu_survivors *s)
{
    const struct sample_params *p = s->row->params;
    float least = z_max(s) + math_logf(p->min_p < 1 ? (p->min_p > FLT_MIN ? p->min_p : FLT_MIN) : 1);
    if (s->all) {
        float x = least * p->temperature;
        gather(s, x - 1e-5f * fabsf(x) - FLT_MIN); /* surely holds every z >= least */
        s->all = false;
    }
    keep_above(s, (double)least);
}

static void typical_p(struct cpu_survivors *s)
{
    make_list(s);
    float most = z_max(s);
    uint64_t sum = 0, spread = 0; /* of e, of e (z max - z) */
    for (uint32_t i = 0; i < s->n; i++) {
        float z = z_at(s, i), e = math_exp2f((z - most) * LOG2E);
        sum += weight(z, most);
        if (e > 0)
            spread += (uint64_t)(((double)e * 0x1p40 * (double)(most - z) + 0x1p52) - 0x1p52);
    }
    double centre = (double)spread / (double)sum; /* entropy - ln(sum): what z max - z is compared with */
    for (uint32_t i = 0; i < s->n; i++) {
        float distance = (float)fabs((double)(most - z_at(s, i)) - centre);
        s->list[i] = (uint64_t)rising(distance) << 32 | cpu_key_id(s->list[i]);
    }
    s->sorted = false;
    cut_at_mass(s, most, (double)s->row->params->typical_p * (double)sum);
    for (uint32_t i = 0; i < s->n; i++)
        s->list[i] = key_of(s->x[cpu_key_id(s->list[i])], cpu_key_id(s->list[i]));
    s->sorted = false;
}

static void xtc(struct cpu_survivors *s)
{
    const struct sample_params *p = s->row->params;
    uint32_t counter[4] = {s->row->index, p->choice, SAMPLE_STREAM_XTC, 0}, bits[4], above = 0;
    rng_philox(p->seed, counter, bits);
    if (rng_open01(bits[0]) >= p->xtc_probability)
        return;
    float most = z_max(s);
    double limit = (double)p->xtc_threshold * (double)(s->all ? all_mass(s) : list_mass(s, most));
    if (s->all) {
        /* e >= limit >= threshold 2^40 puts z above z max + ln(threshold) */
        float least = (most + math_logf(p->xtc_threshold > FLT_MIN ? p->xtc_threshold : FLT_MIN)) * p->temperature;
        gather(s, least - 1e-5f * fabsf(least) - FLT_MIN);
        for (uint32_t i = 0; i < s->n; i++)
            above += (double)weight(z_at(s, i), most) >= limit;
        if (above < 2)
            return; /* all stay */
    }
    make_sorted(s);
    for (above = 0; above < s->n && (double)weight(z_at(s, above), most) >= limit;)
        above++;
    if (above < 2)
        return;
    memmove(s->list, s->list + above - 1, (s->n - above + 1) * sizeof *s->list);
    s->n -= above - 1;
}

/* ---- the room's entry points ---- */

static bool active(const struct sample_params *p, uint8_t filter)
{
    switch (filter) {
    case FILTER_TOP_N_SIGMA:
        return p->top_n_sigma > 0;
    case FILTER_TOP_K:
        return p->top_k > 0;
    case FILTER_TYPICAL_P:
        return p->typical_p < 1;
    case FILTER_TOP_P:
        return p->top_p < 1;
    case FILTER_MIN_P:
        return p->min_p > 0;
    case FILTER_XTC:
        return p->xtc_probability > 0;
    default:
        return false;
    }
}

bool cpu_filter_any(const struct sample_params *p)
{
    bool any = false;
    for (int i = 0; i < FILTER_COUNT; i++)
        any |= active(p, p->order[i]);
    return any;
}

bool cpu_filter_needs_mass(const struct sample_params *p)
{
    for (int i = 0; i < FILTER_COUNT; i++)
        if (active(p, p->order[i]) && p->order[i] != FILTER_XTC)
            return p->order[i] == FILTER_TOP_P;
        else if (active(p, p->order[i]))
            return true;
    return false;
}

void cpu_filter_apply(struct cpu_survivors *s)
{
    const struct sample_params *p = s->row->params;
    for (int i = 0; i < FILTER_COUNT; i++) {
        if (!active(p, p->order[i]))
            continue;
        switch (p->order[i]) {
        case FILTER_TOP_N_SIGMA:
            top_n_sigma(s);
            break;
        case FILTER_TOP_K:
            top_k(s, p->top_k);
            break;
        case FILTER_TYPICAL_P:
            typical_p(s);
            break;
        case FILTER_TOP_P:
            top_p(s);
            break;
        case FILTER_MIN_P:
            min_p(s);
            break;
        case FILTER_XTC:
            xtc(s);
            break;
        }
    }
}

void cpu_filter_top(struct cpu_survivors *s, uint32_t k)
{
    s->all = true;
    top_k(s, k);
    make_sorted(s);
}
