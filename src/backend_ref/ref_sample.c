/* backend_ref/ref_sample.c - sample_rows: processors, log-probabilities, filters, draw; by sorting everything, in f64.
 *
 * The meaning of every step: docs/sampling.md.  Candidates lie in one array by falling logit, ties by rising id; a filter marks
 * some as gone and keeps the order. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

struct candidate {
    float x, z;      /* logit after processors; x / T */
    uint32_t id;
    double p;        /* probability among those left */
    double distance; /* typical_p: | -ln p - entropy | */
    bool gone;
};

/* ---- processors ---- */

static bool patched(const struct sample_row *row, uint32_t id)
{
    for (uint32_t i = 0; i < row->patch_count; i++)
        if (row->patch[i].id == id)
            return true;
    return false;
}

static void penalise(const struct sample_params *p, const struct sample_seen *s, float *x)
{
    if (s->in_any && p->repetition_penalty != 1)
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
    if (s->in_output) {
        *x = *x - p->presence_penalty;
        *x = *x - p->frequency_penalty * (float)s->in_output;
    }
}

static void apply_processors(const struct sample_row *row, float *x, uint32_t vocab)
{
    const struct sample_params *p = row->params;
    for (uint32_t i = 0; p && i < p->bias_count; i++)
        if (p->biases[i].id < vocab)
            x[p->biases[i].id] += p->biases[i].bias;
    for (uint32_t i = 0; p && i < row->seen_count; i++)
        if (row->seen[i].id < vocab && !patched(row, row->seen[i].id))
            penalise(p, row->seen + i, x + row->seen[i].id);
    for (uint32_t i = 0; p && i < row->patch_count; i++)
        if (row->patch[i].id < vocab)
            penalise(p, row->patch + i, x + row->patch[i].id);
    for (uint32_t i = 0; i < row->banned_count; i++)
        if (row->banned[i] < vocab)
            x[row->banned[i]] = -INFINITY;
    for (uint32_t i = 0; row->mask && i < vocab; i++)
        if (!(row->mask[i / 32] >> i % 32 & 1))
            x[i] = -INFINITY;
}

/* ---- order ---- */

static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    if (x->x != y->x)
        return x->x > y->x ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static int by_distance(const void *a, const void *b)
{
    const struct candidate *const *x = a, *const *y = b;
    if ((*x)->distance != (*y)->distance)
        return (*x)->distance < (*y)->distance ? -1 : 1;
    return (*x)->id < (*y)->id ? -1 : 1;
}

/* ---- filters: c[n] are the candidates left, in order; each returns how many are left ---- */

static uint32_t compact(struct candidate *c, uint32_t n)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (!c[i].gone)
            c[kept++] = c[i];
    return kept;
}

static void probabilities(struct candidate *c, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += c[i].p = math_expd((double)c[i].z - (double)c[0].z);
    for (uint32_t i = 0; i < n; i++)
        c[i].p /= sum;
}

static uint32_t filter_top_n_sigma(struct candidate *c, uint32_t n, float sigmas)
{
    double mean = 0, square = 0;
    for (uint32_t i = 0; i < n; i++)
        mean += (double)c[i].z;
    mean /= n;
    for (uint32_t i = 0; i < n; i++)
        square += ((double)c[i].z - mean) * ((double)c[i].z - mean);
    double limit = (double)c[0].z - (double)sigmas * sqrt(square / n);
    for (uint32_t i = 1; i < n; i++)
        c[i].gone = (double)c[i].z < limit;
    return compact(c, n);
}

static uint32_t filter_top_p(struct candidate *c, uint32_t n, float top_p)
{
    double sum = 0;
    probabilities(c, n);
    for (uint32_t i = 0; i < n; i++) {
        sum += c[i].p;
        if (sum >= (double)top_p)
            return i + 1;
    }
    return n;
}

static uint32_t filter_min_p(struct candidate *c, uint32_t n, float min_p)
{
    double limit = (double)c[0].z + math_logd((double)(min_p > 1 ? 1 : min_p));
    uint32_t kept = 1;
    while (kept < n && (double)c[kept].z >= limit)
        kept++;
    return kept;
}

static int filter_typical_p(struct candidate *c, uint32_t *n, float typical_p)
{
    struct candidate **order = mem_try_array(*n, sizeof(struct candidate *));
    if (!order)
        return ERR_NOMEM;
    double entropy = 0, sum = 0;
    probabilities(c, *n);
    for (uint32_t i = 0; i < *n; i++)
        entropy -= c[i].p > 0 ? c[i].p * math_logd(c[i].p) : 0;
    for (uint32_t i = 0; i < *n; i++) {
        c[i].distance = c[i].p > 0 ? fabs(-math_logd(c[i].p) - entropy) : INFINITY;
        order[i] = c + i;
    }
    qsort(order, *n, sizeof *order, by_distance);
    for (uint32_t i = 0; i < *n; i++) {
        order[i]->gone = i > 0 && sum >= (double)typical_p;
        sum += order[i]->p;
    }
    mem_free(order);
    *n = compact(c, *n);
    return 0;
}

static uint32_t filter_xtc(struct candidate *c, uint32_t n, const struct sample_row *row)
{
    const struct sample_params *p = row->params;
    uint32_t counter[4] = {row->index, p->choice, SAMPLE_STREAM_XTC, 0}, bits[4];
    rng_philox(p->seed, counter, bits);
    if (rng_open01(bits[0]) >= p->xtc_probability)
        return n;
    uint32_t above = 0;
    probabilities(c, n);
    while (above < n && c[above].p >= (double)p->xtc_threshold)
        above++;
    for (uint32_t i = 0; i + 1 < above; i++)
        c[i].gone = true;
    return compact(c, n);
}

static int filter(struct candidate *c, uint32_t *n, const struct sample_row *row)
{
    const struct sample_params *p = row->params;
    for (int i = 0; i < FILTER_COUNT; i++) {
        int rc = 0;
        switch (p->order[i]) {
        case FILTER_TOP_N_SIGMA:
            *n = p->top_n_sigma > 0 ? filter_top_n_sigma(c, *n, p->top_n_sigma) : *n;
            break;
        case FILTER_TOP_K:
            *n = p->top_k && p->top_k < *n ? p->top_k : *n;
            break;
        case FILTER_TYPICAL_P:
            rc = p->typical_p < 1 ? filter_typical_p(c, n, p->typical_p) : 0;
            break;
        case FILTER_TOP_P:
            *n = p->top_p < 1 ? filter_top_p(c, *n, p->top_p) : *n;
            break;
        case FILTER_MIN_P:
            *n = p->min_p > 0 ? filter_min_p(c, *n, p->min_p) : *n;
            break;
        case FILTER_XTC:
            *n = p->xtc_probability > 0 ? filter_xtc(c, *n, row) : *n;
            break;
        default:
            return ERR_INTERNAL;
        }
        if (rc)
            return rc;
    }
    return 0;
}

/* ---- draw ---- */

static float gumbel(const struct sample_row *row, uint32_t id)
{
    uint32_t counter[4] = {row->index, row->params->choice, SAMPLE_STREAM, id / 4}, bits[4];
    rng_philox(row->params->seed, counter, bits);
    return -math_logf(-math_logf(rng_open01(bits[id % 4])));
}

static uint32_t draw(const struct candidate *c, uint32_t n, const struct sample_row *row)
{
    uint32_t best = UINT32_MAX;
    float most = 0;
    for (uint32_t i = 0; i < n; i++) {
        float v = c[i].z + gumbel(row, c[i].id);
        if (best == UINT32_MAX || v > most || (v == most && c[i].id < best))
            best = c[i].id, most = v;
    }
    return best;
}

static int sample_row(const struct sample_row *row, struct sample_result *out, float *x, uint32_t vocab, struct candidate *c)
{
    const struct sample_params *p = row->params;
    uint32_t n = 0;
    apply_processors(row, x, vocab);
    for (uint32_t i = 0; i < vocab; i++)
        if (x[i] > -INFINITY)
            c[n++] = (struct candidate){.x = x[i], .id = i};
    qsort(c, n, sizeof *c, by_logit);
    double sum = 0, most = n ? (double)c[0].x : 0;
    for (uint32_t i = 0; i < n; i++)
        sum += math_expd((double)c[i].x - most);
    double log_sum = n ? most + math_logd(sum) : 0;
    out->top_count = row->top < n ? row->top : n;
    for (uint32_t i = 0; i < out->top_count; i++) {
        out->top_ids[i] = c[i].id;
        out->top_logprobs[i] = (float)((double)c[i].x - log_sum);
    }
    if (row->score_id >= 0)
        out->score_logprob = row->score_id < vocab ? (float)((double)x[row->score_id] - log_sum) : -INFINITY;
    out->id = UINT32_MAX;
    if (!p || n == 0)
        return 0;
    if (p->temperature < SAMPLE_TEMPERATURE_MIN) {
        out->id = c[0].id;
    } else {
        for (uint32_t i = 0; i < n; i++)
            c[i].z = c[i].x / p->temperature;
        int rc = filter(c, &n, row);
        if (rc)
            return rc;
        out->id = draw(c, n, row);
    }
    if (row->want_logprob)
        out->logprob = (float)((double)x[out->id] - log_sum);
    return 0;
}

int ref_run_sample_rows(struct device *d, const void *op_void)
{
    (void)d;
    const struct op_sample_rows *op = op_void;
    struct candidate *c = mem_try_array(op->vocab, sizeof *c);
    if (!c)
        return ERR_NOMEM;
    int rc = 0;
    for (uint32_t r = 0; r < op->logits.rows && !rc; r++) {
        if (op->rows[r].top > SAMPLE_TOP_MAX)
            rc = ERR_INTERNAL;
        else
            rc = sample_row(op->rows + r, op->results + r, ref_row(&op->logits, r), op->vocab, c);
    }
    mem_free(c);
    return rc;
}
