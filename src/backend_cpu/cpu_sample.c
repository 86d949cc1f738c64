/* backend_cpu/cpu_sample.c - sample_rows: processors, log-probabilities, temperature, filters, the draw (docs/sampling.md).
 *
 * Stage 1, by (row, block of LOGIT_BLOCK ids): processors; the block's maximum; its sum when log-probabilities are wanted.
 * Stage 2, by (row, block), only when some row needs it: the mass of all ids, or the block's draw when nothing filters.
 * Stage 3, by row: log-probabilities, filters, the draw among survivors.
 * Every block is computed alone and folded in ascending order, so the split shows nowhere.  A greedy row without log-probabilities is
 * stage 1 and a look at the blocks.
 * The logits of a row are overwritten by the processors and by nothing else. */
#include "backend_cpu/cpu_sample.h"

#include "base/math.h"
#include "base/rng.h"

#include <math.h>
#include <string.h>

enum { RUN = 64 };                     /* ids looked at together when drawing from all */
static const float GUMBEL_MOST = 16.7f; /* above every noise value */
static const float LOG2E = 1.44269504f;

static uint32_t blocks_of(uint32_t vocab)
{
    return (vocab + LOGIT_BLOCK - 1) / LOGIT_BLOCK;
}

/* ---- scratch: block records and lists shared, noise and picks of each worker ---- */

static size_t shared_bytes(uint32_t rows, uint32_t vocab, uint32_t lists)
{
    size_t blocks = ((size_t)rows * blocks_of(vocab) * sizeof(struct cpu_logit_block) + 63) / 64 * 64;
    return blocks + (size_t)lists * vocab * sizeof(uint64_t);
}

struct cpu_need cpu_sample_need(const struct device_reserve *r, uint32_t count)
{
    uint32_t lists = r->logit_rows_max < count ? r->logit_rows_max : count;
    return (struct cpu_need){LOGIT_BLOCK * sizeof(uint32_t), shared_bytes(r->logit_rows_max, r->vocab_max, lists)};
}

struct pass {
    struct device *d;
    const struct cpu_kernels *k;
    const struct op_sample_rows *op;
    struct cpu_logit_block *records; /* [rows][per_row] */
    uint32_t per_row;
};

static float *row_at(const struct pass *p, uint32_t row)
{
    return (float *)p->op->logits.data + (size_t)row * p->op->logits.stride;
}

static uint32_t block_len(const struct pass *p, uint32_t block)
{
    uint32_t left = p->op->vocab - block * LOGIT_BLOCK;
    return left < LOGIT_BLOCK ? left : LOGIT_BLOCK;
}

static bool greedy(const struct sample_row *row)
{
    return row->params && row->params->temperature < SAMPLE_TEMPERATURE_MIN;
}

static bool wants_logprobs(const struct sample_row *row)
{
    return row->want_logprob || row->score_id >= 0 || row->top > 0;
}

/* ---- stage 1 ---- */

static void penalise(const struct sample_params *p, const struct sample_seen *s, float *x)
{
    if (s->in_any && p->repetition_penalty != 1)
        *x = *x > 0 ? *x / p->repetition_penalty : *x * p->repetition_penalty;
    if (s->in_output) {
        *x = *x - p->presence_penalty;
        *x = *x - p->frequency_penalty * (float)s->in_output;
    }
}

/* First index in an ascending array of records that start with a u32 id, whose id is >= `id`. */
static uint32_t lower_bound(const void *array, uint32_t n, size_t record, uint32_t id)
{
    uint32_t from = 0;
    while (from < n) {
        uint32_t mid = from + (n - from) / 2, at;
        memcpy(&at, (const char *)array + mid * record, sizeof at);
        if (at < id)
            from = mid + 1;
        else
            n = mid;
    }
    return from;
}

/* The history's counts, those of the patch before those it replaces. */
static void penalties(const struct sample_row *row, float *x, uint32_t from, uint32_t to)
{
    uint32_t at = lower_bound(row->patch, row->patch_count, sizeof *row->patch, from), next = at;
    for (; at < row->patch_count && row->patch[at].id < to; at++)
        penalise(row->params, row->patch + at, x + row->patch[at].id);
    for (uint32_t i = lower_bound(row->seen, row->seen_count, sizeof *row->seen, from); i < row->seen_count && row->seen[i].id < to; i++) {
        while (next < at && row->patch[next].id < row->seen[i].id)
            next++;
        if (next == at || row->patch[next].id != row->seen[i].id)
            penalise(row->params, row->seen + i, x + row->seen[i].id);
    }
}

/* Processors on ids [from, to). */
static void process(const struct sample_row *row, float *x, uint32_t from, uint32_t to)
{
    const struct sample_params *p = row->params;
    if (p) {
        for (uint32_t i = lower_bound(p->biases, p->bias_count, sizeof *p->biases, from); i < p->bias_count && p->biases[i].id < to; i++)
            x[p->biases[i].id] += p->biases[i].bias;
        penalties(row, x, from, to);
    }
    for (uint32_t i = 0; i < row->banned_count; i++)
        if (row->banned[i] >= from && row->banned[i] < to)
            x[row->banned[i]] = -INFINITY;
    for (uint32_t w = from / 32; row->mask && w * 32 < to; w++) {
        if (row->mask[w] == UINT32_MAX)
            continue;
        for (uint32_t i = w * 32; i < to && i < w * 32 + 32; i++)
            if (!(row->mask[w] >> (i & 31) & 1))
                x[i] = -INFINITY;
    }
}

static void stage_1(const struct pass *p, uint32_t row, uint32_t block)
{
    const struct sample_row *r = p->op->rows + row;
    struct cpu_logit_block *b = p->records + (size_t)row * p->per_row + block;
    uint32_t from = block * LOGIT_BLOCK, n = block_len(p, block);
    float *x = row_at(p, row);
    process(r, x, from, from + n);
    b->max = p->k->argmax(x + from, n, &b->arg);
    b->arg += from;
    b->sum = wants_logprobs(r) && b->max > -INFINITY ? p->k->expsum(x + from, n, b->max) : 0;
}

static float row_max(const struct pass *p, uint32_t row)
{
    const struct cpu_logit_block *b = p->records + (size_t)row * p->per_row;
    float most = -INFINITY;
    for (uint32_t i = 0; i < p->per_row; i++)
        most = b[i].max > most ? b[i].max : most;
    return most;
}

/* ---- the draw ---- */

static float noise_of(const struct sample_row *row, uint32_t id)
{
    uint32_t counter[4] = {row->index, row->params->choice, SAMPLE_STREAM, id / 4}, bits[4];
    rng_philox(row->params->seed, counter, bits);
    return -math_logf(-math_logf(rng_open01(bits[id % 4])));
}

/* The best of one block when every id is in play.  Runs that cannot beat what is already there are skipped without noise. */
static void draw_block(const struct pass *p, uint32_t row, uint32_t block)
{
    const struct sample_row *r = p->op->rows + row;
    struct cpu_logit_block *b = p->records + (size_t)row * p->per_row + block;
    const float *x = row_at(p, row);
    float t = r->params->temperature, noise[RUN];
    uint32_t counter[3] = {r->index, r->params->choice, SAMPLE_STREAM}, end = block * LOGIT_BLOCK + block_len(p, block);
    b->best = -INFINITY;
    b->best_id = UINT32_MAX;
    if (!(b->max > -INFINITY))
        return;
    b->best = b->max / t + noise_of(r, b->arg);
    b->best_id = b->arg;
    for (uint32_t from = block * LOGIT_BLOCK; from < end; from += RUN) {
        uint32_t n = end - from < RUN ? end - from : RUN, arg;
        float most = p->k->argmax(x + from, n, &arg);
        if (!(most > -INFINITY) || most / t + GUMBEL_MOST < b->best)
            continue;
        p->k->gumbel(r->params->seed, counter, from, (n + 3) / 4 * 4, noise);
        for (uint32_t i = 0; i < n; i++) {
            float v = x[from + i] / t + noise[i];
            if (v > b->best || (v == b->best && from + i < b->best_id))
                b->best = v, b->best_id = from + i;
        }
    }
}

static uint32_t draw_all(const struct pass *p, uint32_t row)
{
    const struct cpu_logit_block *b = p->records + (size_t)row * p->per_row;
    uint32_t best = 0;
    for (uint32_t i = 1; i < p->per_row; i++)
        if (b[i].best > b[best].best)
            best = i;
    return b[best].best_id;
}

static uint32_t draw_list(const struct cpu_survivors *s)
{
    float best = -INFINITY;
    uint32_t best_id = UINT32_MAX;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t id = cpu_key_id(s->list[i]);
        float z = s->x[id] / s->row->params->temperature;
        if (z + GUMBEL_MOST < best)
            continue;
        float v = z + noise_of(s->row, id);
        if (best_id == UINT32_MAX || v > best || (v == best && id < best_id))
            best = v, best_id = id;
    }
    return best_id;
}

/* ---- stage 2 ---- */

static bool draws_from_all(const struct sample_row *row)
{
    return row->params && !greedy(row) && !cpu_filter_any(row->params);
}

static bool needs_stage_2(const struct sample_row *row)
{
    return row->params && !greedy(row) && (draws_from_all(row) || cpu_filter_needs_mass(row->params));
}

static void stage_2(const struct pass *p, uint32_t row, uint32_t block)
{
    const struct sample_row *r = p->op->rows + row;
    if (!needs_stage_2(r))
        return;
    if (draws_from_all(r)) {
        draw_block(p, row, block);
        return;
    }
    struct cpu_logit_block *b = p->records + (size_t)row * p->per_row + block;
    float most = row_max(p, row), t = r->params->temperature;
    b->mass = b->max > -INFINITY ? p->k->mass(row_at(p, row) + block * LOGIT_BLOCK, block_len(p, block), t, most / t) : 0;
}

/* ---- stage 3 ---- */

/* log-softmax of the row: x - max - ln(sum), sum folded over blocks as attention folds its blocks */
struct normaliser {
    float max, log_sum;
};

static struct normaliser normalise(const struct pass *p, uint32_t row)
{
    const struct cpu_logit_block *b = p->records + (size_t)row * p->per_row;
    float max = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < p->per_row; i++) {
        if (!(b[i].max > -INFINITY))
            continue;
        float most = b[i].max > max ? b[i].max : max;
        float a = math_exp2f((max - most) * LOG2E), c = math_exp2f((b[i].max - most) * LOG2E);
        sum = fmaf(sum, a, b[i].sum * c);
        max = most;
    }
    return (struct normaliser){max, sum > 0 ? math_logf(sum) : 0};
}

static float logprob(const struct normaliser *n, float x)
{
    return x > -INFINITY ? (x - n->max) - n->log_sum : -INFINITY;
}

static void logprobs(const struct pass *p, uint32_t row, struct cpu_survivors *s, struct sample_result *out)
{
    const struct sample_row *r = s->row;
    struct normaliser n = normalise(p, row);
    if (r->score_id >= 0)
        out->score_logprob = r->score_id < p->op->vocab ? logprob(&n, s->x[r->score_id]) : -INFINITY;
    if (r->want_logprob && out->id != UINT32_MAX)
        out->logprob = logprob(&n, s->x[out->id]);
    if (!r->top || !(s->x_max > -INFINITY))
        return;
    cpu_filter_top(s, r->top);
    out->top_count = s->n;
    for (uint32_t i = 0; i < s->n; i++) {
        out->top_ids[i] = cpu_key_id(s->list[i]);
        out->top_logprobs[i] = logprob(&n, s->x[out->top_ids[i]]);
    }
}

static uint32_t draw(const struct pass *p, uint32_t row, struct cpu_survivors *s)
{
    const struct cpu_logit_block *b = p->records + (size_t)row * p->per_row;
    if (!s->row->params || !(s->x_max > -INFINITY))
        return UINT32_MAX;
    if (greedy(s->row)) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < p->per_row; i++)
            if (b[i].max > b[best].max)
                best = i;
        return b[best].arg;
    }
    if (draws_from_all(s->row))
        return draw_all(p, row);
    cpu_filter_apply(s);
    if (!s->all)
        return draw_list(s);
    for (uint32_t i = 0; i < p->per_row; i++)
        draw_block(p, row, i);
    return draw_all(p, row);
}

static void stage_3(const struct pass *p, uint32_t row, uint64_t *list, uint32_t *picked)
{
    const struct sample_row *r = p->op->rows + row;
    struct sample_result *out = p->op->results + row;
    struct cpu_survivors s = {.k = p->k, .row = r, .x = row_at(p, row), .vocab = p->op->vocab, .all = true, .list = list, .picked = picked,
                              .blocks = p->records + (size_t)row * p->per_row, .x_max = row_max(p, row)};
    out->top_count = 0;
    out->id = draw(p, row, &s);
    if (wants_logprobs(r))
        logprobs(p, row, &s, out);
}

static void run_sample_rows(struct device *d, uint32_t me, uint32_t count, const void *op_void)
{
    const struct op_sample_rows *op = op_void;
    uint32_t rows = op->logits.rows, lists = rows < count ? rows : count, from, to;
    struct pass p = {.d = d, .k = cpu_kernels_of(d), .op = op, .per_row = blocks_of(op->vocab)};
    unsigned char *shared = cpu_shared_scratch(d, shared_bytes(rows, op->vocab, lists));
    uint32_t *picked = cpu_scratch(d, me, LOGIT_BLOCK * sizeof *picked);
    if (!shared || !picked)
        return; /* every worker sees the same */
    p.records = (struct cpu_logit_block *)(void *)shared;
    uint64_t *list = (uint64_t *)(void *)(shared + shared_bytes(rows, op->vocab, 0));
    bool more = false;
    for (uint32_t r = 0; r < rows; r++) {
        more |= needs_stage_2(op->rows + r);
        if (op->rows[r].top > SAMPLE_TOP_MAX) {
            cpu_fail(d, ERR_INTERNAL, "cpu: sample_rows: more top log-probabilities than a result can hold");
            return;
        }
    }
    cpu_split(rows * p.per_row, 1, me, count, &from, &to);
    for (uint32_t i = from; i < to; i++)
        stage_1(&p, i / p.per_row, i % p.per_row);
    cpu_barrier(d, me);
    if (more) {
        for (uint32_t i = from; i < to; i++)
            stage_2(&p, i / p.per_row, i % p.per_row);
        cpu_barrier(d, me);
    }
    if (me >= lists)
        return;
    cpu_split(rows, 1, me, lists, &from, &to);
    for (uint32_t r = from; r < to; r++)
        stage_3(&p, r, list + (size_t)me * op->vocab, picked);
}

int cpu_op_sample_rows(struct device *d, const struct op_sample_rows *op)
{
    return cpu_enqueue(d, run_sample_rows, op, sizeof *op);
}
