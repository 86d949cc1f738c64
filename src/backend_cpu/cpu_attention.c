/* backend_cpu/cpu_attention.c - attention over pages: which worker computes which blocks of which rows, and the fold.
 *
 * A task is a tile of one span's rows with the query heads of one kv head (at most TILE query vectors, which share every K and V byte).
 * A unit is one block of KV_BLOCK positions of a task.  A block's partial (max, sum, o) starts from nothing; partials are folded in
 * ascending order, whoever computed them, so neither the tile nor the split shows in a bit.
 * Workers take contiguous runs of units of equal cost.  A task that lies in several workers' runs is split: its first worker folds the
 * blocks it has, the others leave theirs in shared slots; after a barrier the first worker folds those.
 * Planes of packed codes are unpacked page by page to a byte a code in a worker's scratch.  Formats that turn their vectors: queries are
 * turned once, outputs turned back once.  V that is part of K (latent layers) is flipped page by page into V's layout in that scratch.
 * Invariants: 1. Every worker derives the same plan from the op alone.  2. Positions a row may not see never touch its values. */
#include "backend_cpu/cpu_pages.h"
#include "base/math.h"
#include "tensor/kv_codec.h"

#include <math.h>
#include <string.h>

enum { TILE = 32, BLOCK_PAGES = KV_BLOCK / KV_PAGE, SHARED_MAX = 32 << 20, FETCH_ROWS = 8, FETCH_LINES = 16 };

static const float LOG2E = 1.44269504f;

static float *row_of(const struct tensor *t, uint32_t row)
{
    return (float *)t->data + (size_t)row * t->stride;
}

/* ---- scratch ---- */

/* one worker's working set */
struct work {
    float *q;            /* [TILE][d_k] */
    struct cpu_query *qa;  /* [TILE][d_k / 32] */
    float *s;            /* [TILE][KV_BLOCK] */
    float *o, *o_block;  /* [TILE][d_v] */
    float (*state)[2];   /* [TILE] max, sum */
    unsigned char *codes; /* one page's plane, unpacked: [KV_PAGE * d] */
    /* V of one page of a latent layer: [KV_PAGE][d_v] elements; [KV_PAGE][groups] */
    unsigned char *values;
    uint16_t *scales, *minima;
};

static size_t lay(size_t *at, size_t bytes)
{
    size_t here = *at;
    *at += (bytes + 63) / 64 * 64;
    return here;
}

/* d_latent: d_v of a latent layer, else 0 */
static size_t work_lay(unsigned char *base, uint32_t d_k, uint32_t d_v, uint32_t d_latent, struct work *w)
{
    size_t at = 0;
    size_t q = lay(&at, (size_t)TILE * d_k * sizeof(float)), qa = lay(&at, (size_t)TILE * ((d_k + 31) / 32) * sizeof(struct cpu_query));
    size_t s = lay(&at, (size_t)TILE * KV_BLOCK * sizeof(float)), o = lay(&at, (size_t)TILE * d_v * sizeof(float));
    size_t o_block = lay(&at, (size_t)TILE * d_v * sizeof(float)), state = lay(&at, TILE * 2 * sizeof(float));
    size_t codes = lay(&at, (size_t)KV_PAGE * (d_k > d_v ? d_k : d_v)), values = lay(&at, (size_t)KV_PAGE * d_latent * sizeof(float));
    size_t scales = lay(&at, (size_t)KV_PAGE * (d_latent / 32) * 2), minima = lay(&at, (size_t)KV_PAGE * (d_latent / 32) * 2);
    if (base)
        *w = (struct work){(void *)(base + q), (void *)(base + qa), (void *)(base + s), (void *)(base + o), (void *)(base + o_block),
                           (void *)(base + state), base + codes, base + values, (void *)(base + scales), (void *)(base + minima)};
    return at;
}

/* floats of one unit's partial: [vectors] max, sum, then [vectors][d_v] */
static size_t slot_floats(uint32_t vectors, uint32_t d_v)
{
    return (size_t)vectors * (2 + d_v);
}

struct cpu_need cpu_attention_need(const struct device_reserve *r, uint32_t count)
{
    uint64_t blocks = r->context_max / KV_BLOCK + 1;
    uint64_t shared = (count - 1) * blocks * slot_floats(TILE, r->head_dim_max) * sizeof(float);
    return (struct cpu_need){work_lay(NULL, r->head_dim_max, r->head_dim_max, r->latent_dim_max, NULL), shared < SHARED_MAX ? shared : SHARED_MAX};
}

/* ---- the plan ---- */

struct plan {
    const struct op_attention *op;
    uint32_t heads;     /* query heads of a task */
    uint32_t groups;    /* tasks per kv head and row tile */
    uint32_t tile_rows; /* most rows of a task */
    uint64_t cost;      /* of all units */
    uint32_t tasks;
    bool whole;         /* tasks are not split */
};

/* one task: rows [row, row + rows) of the step at positions [pos, pos + rows), query heads [head, head + heads) */
struct task {
    const struct kv_span *span;
    uint32_t row, rows, pos, kv_head, head, heads;
    uint32_t low;              /* first position any row sees */
    uint32_t block, block_end; /* [first, end) */
    uint64_t cost;             /* sum over its blocks */
    /* where the walk over tasks stands */
    uint32_t span_at, tile_at, head_at;
    bool started;
};

static uint32_t low_of(const struct op_attention *op, uint32_t pos)
{
    return op->window && pos + 1 > op->window ? pos + 1 - op->window : 0;
}

static uint64_t unit_cost(const struct task *t, uint32_t block)
{
    uint32_t from = block * KV_BLOCK, to = from + KV_BLOCK, end = t->pos + t->rows;
    from = from > t->low ? from : t->low;
    to = to < end ? to : end;
    return (uint64_t)(to - from + KV_PAGE) * t->rows * t->heads;
}

/* Rows of a task: as many tiles as it takes, all about as high, so that no worker gets a low one that reads as much. */
static uint32_t tile_of(const struct plan *p, const struct kv_span *s)
{
    uint32_t tiles = (s->row_count + p->tile_rows - 1) / p->tile_rows;
    return (s->row_count + tiles - 1) / tiles;
}

/* The next task in the fixed order: spans, tiles of rows, kv heads, groups of query heads.  A task starts zeroed. */
static bool task_next(const struct plan *p, struct task *t)
{
    const struct op_attention *op = p->op;
    if (t->started && ++t->head_at == op->layer->n_kv_heads * p->groups)
        t->head_at = 0, t->tile_at += tile_of(p, t->span);
    t->started = true;
    if (t->span_at < op->span_count && t->tile_at >= op->spans[t->span_at].row_count)
        t->tile_at = 0, t->span_at++;
    if (t->span_at >= op->span_count)
        return false;
    const struct kv_span *s = t->span = op->spans + t->span_at;
    uint32_t per_kv = op->n_heads / op->layer->n_kv_heads, group = t->head_at % p->groups, rows = tile_of(p, s);
    t->rows = s->row_count - t->tile_at < rows ? s->row_count - t->tile_at : rows;
    t->row = s->row_first + t->tile_at;
    t->pos = s->pos_first + t->tile_at;
    t->kv_head = t->head_at / p->groups;
    t->head = t->kv_head * per_kv + group * p->heads;
    t->heads = per_kv - group * p->heads < p->heads ? per_kv - group * p->heads : p->heads;
    t->low = low_of(op, t->pos);
    t->block = t->low / KV_BLOCK;
    t->block_end = (t->pos + t->rows - 1) / KV_BLOCK + 1;
    t->cost = 0;
    for (uint32_t b = t->block; b < t->block_end; b++)
        t->cost += unit_cost(t, b);
    return true;
}

/* Whose run a unit that starts at cost `at` lies in. */
static uint32_t owner(const struct plan *p, uint64_t at, uint32_t count)
{
    uint32_t w = (uint32_t)(at * count / p->cost);
    while (w + 1 < count && p->cost * (w + 1) / count <= at)
        w++;
    while (w > 0 && p->cost * w / count > at)
        w--;
    return w;
}

/* Blocks of a task that starts at cost `at` which its first owner has; the others go to slots. */
static uint32_t own_blocks(const struct plan *p, const struct task *t, uint64_t at, uint32_t count)
{
    if (p->whole || owner(p, at, count) == owner(p, at + t->cost - unit_cost(t, t->block_end - 1), count))
        return t->block_end - t->block;
    uint32_t first = owner(p, at, count), n = 0;
    for (uint32_t b = t->block; b < t->block_end && owner(p, at, count) == first; b++, n++)
        at += unit_cost(t, b);
    return n;
}

/* Returns the number of slots split tasks need. */
static uint32_t plan_make(struct plan *p, const struct op_attention *op, uint32_t count, size_t slots_max)
{
    uint32_t per_kv = op->n_heads / op->layer->n_kv_heads, slots = 0;
    *p = (struct plan){.op = op, .groups = (per_kv + TILE - 1) / TILE};
    p->heads = (per_kv + p->groups - 1) / p->groups;
    p->tile_rows = TILE / p->heads;
    for (struct task t = {0}; task_next(p, &t); p->tasks++)
        p->cost += t.cost;
    p->whole = count == 1 || p->tasks >= 8 * count;
    if (p->whole)
        return 0;
    uint64_t at = 0;
    for (struct task t = {0}; task_next(p, &t); at += t.cost)
        slots += t.block_end - t.block - own_blocks(p, &t, at, count);
    p->whole = slots > slots_max;
    return p->whole ? 0 : slots;
}

/* ---- one unit ---- */

struct run {
    struct device *d;
    uint32_t me;
    bool few;       /* rows: there is time to ask for what the next record reads */
    const struct cpu_kernels *k;
    const struct op_attention *op;
    struct work w;
    float c;        /* what (s - max) is multiplied with */
    struct kv_shape k_shape, v_shape;
    cpu_score_fn score;
    cpu_mix_fn mix;
};

/* positions of a block that row r of the task sees, relative to the block; false: none */
static bool seen(const struct op_attention *op, const struct task *t, uint32_t r, uint32_t block, uint32_t *from, uint32_t *to)
{
    uint32_t base = block * KV_BLOCK, low = low_of(op, t->pos + r), end = t->pos + r + 1;
    *from = low > base ? low - base : 0;
    *to = end < base + KV_BLOCK ? end - base : KV_BLOCK;
    return end > base && *from < *to;
}

static const unsigned char *plane(const struct run *run, const struct task *t, uint32_t page)
{
    const struct op_attention *op = run->op;
    return cpu_page_head(op->layer, op->tables[t->span->table_first + page], t->kv_head);
}

/* Pages of a block that some row of the task sees: [first, end). */
static void block_pages(const struct task *t, uint32_t block, uint32_t *first, uint32_t *end)
{
    uint32_t last = (t->pos + t->rows - 1) / KV_PAGE + 1, low = t->low / KV_PAGE;
    *first = block * BLOCK_PAGES > low ? block * BLOCK_PAGES : low;
    *end = (block + 1) * BLOCK_PAGES < last ? (block + 1) * BLOCK_PAGES : last;
}

/* K's codes meet integers of 16 bits, which cost no more than 8 (products are summed as pairs of 16): queries add no error to speak of. */
static void quantise_query(const float *x, uint32_t d, struct cpu_query *out)
{
    for (uint32_t b = 0; b < d / 32; b++, x += 32) {
        float most = 0;
        int32_t sum = 0;
        bool finite = true;
        for (int i = 0; i < 32; i++)
            most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
        float by = most < 1e-30f ? 0 : 32767.0f / most;
        for (int i = 0; i < 32; i++) {
            float v = x[i] * by;
            finite &= v == v;
            v = v > -32767 ? v : -32767; /* NaN too */
            v = v < 32767 ? v : 32767;
            out[b].q[i] = (int16_t)((v + 0x1.8p23f) - 0x1.8p23f);
            sum += out[b].q[i];
        }
        out[b].s = !finite ? NAN : most < 1e-30f ? 0 : most / 32767.0f; /* what is not finite shows */
        out[b].ss = out[b].s * (float)sum;
    }
}

static void load_queries(const struct run *run, const struct task *t)
{
    uint32_t d = run->op->layer->d_k;
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t h = 0; h < t->heads; h++) {
            size_t m = (size_t)r * t->heads + h;
            const float *q = row_of(&run->op->q, t->row + r) + (size_t)(t->head + h) * d;
            float *turned = run->w.q + m * d;
            memcpy(turned, q, d * sizeof *q);
            kv_turn(&run->k_shape, turned, d);
            if (run->k_shape.code != KV_CODE_FLOAT)
                quantise_query(turned, d, run->w.qa + m * (d / 32));
        }
}

/* A plane's codes as bytes: where they are, or unpacked.  `next` is asked for meanwhile, or left to who reads the codes. */
static const void *codes_of(const struct run *run, const struct kv_shape *s, enum kv_format f, uint32_t d, const unsigned char *plane,
                            bool key, const void **next)
{
    if (s->bits >= 8)
        return plane;
    struct cpu_unpack job = {.src = plane, .next = *next, .table = kv_code_table(f), .dst = run->w.codes,
                             .blocks = key ? d / 32 : KV_PAGE * (d / 32), .width = key ? KV_PAGE : 1};
    if (s->bits == 4)
        run->k->unpack4(&job);
    else
        run->k->unpack3(&job);
    *next = run->w.codes;
    return run->w.codes;
}

/* Where V of a page begins. */
static const unsigned char *values_at(const struct run *run, const struct task *t, uint32_t page)
{
    return plane(run, t, page) + (run->op->layer->latent ? 0 : run->k_shape.plane_bytes);
}

static const uint16_t *halves(const unsigned char *plane, uint32_t at)
{
    return (const uint16_t *)(const void *)(plane + at);
}

/* Scores of the block's pages, each for the rows that see any of it (rows are consecutive, so they are a range). */
static void scores(const struct run *run, const struct task *t, uint32_t block)
{
    const struct kv_layer *l = run->op->layer;
    uint32_t page, end, start;
    block_pages(t, block, &start, &end);
    for (page = start; page < end; page++) {
        uint32_t first = page * KV_PAGE, r0 = first > t->pos ? first - t->pos : 0, r1 = t->rows;
        while (r1 > r0 && low_of(run->op, t->pos + r1 - 1) >= first + KV_PAGE)
            r1--;
        size_t m = (size_t)r0 * t->heads;
        if (r1 == r0)
            continue;
        const unsigned char *k = plane(run, t, page);
        const void *next = page + 1 < end ? plane(run, t, page + 1) : values_at(run, t, start);
        const void *codes = codes_of(run, &run->k_shape, l->k_format, l->d_k, k, true, &next);
        struct cpu_score job = {.k = codes, .next = next, .d = l->d_k, .m = (r1 - r0) * t->heads, .q = run->w.q + m * l->d_k,
                                .qa = run->w.qa + m * (l->d_k / 32), .scales = halves(k, run->k_shape.scales_at),
                                .minima = halves(k, run->k_shape.minima_at), .per = run->k_shape.group / 32,
                                .s = run->w.s + m * KV_BLOCK + first % KV_BLOCK};
        run->score(&job);
        if (run->few)
            cpu_fetch_ahead(run->d, run->me, FETCH_LINES);
    }
}

/* V of a page as mixes read it */
struct values {
    const void *codes;              /* [KV_PAGE][d_v] */
    const uint16_t *scales, *minima; /* [KV_PAGE][groups] */
};

static struct values values_of(const struct run *run, const struct task *t, uint32_t page, const void **next)
{
    const struct kv_layer *l = run->op->layer;
    const struct kv_shape *k = &run->k_shape, *v = &run->v_shape;
    const unsigned char *from = values_at(run, t, page);
    if (!l->latent)
        return (struct values){codes_of(run, v, l->v_format, l->d_v, from, false, next), halves(from, v->scales_at), halves(from, v->minima_at)};
    const void *rows = codes_of(run, k, l->k_format, l->d_v, from, true, next);
    uint32_t bits = k->bits < 8 ? 8 : k->bits;
    cpu_flip_fn flip = bits == 8 ? run->k->flip8 : bits == 16 ? run->k->flip16 : run->k->flip32;
    flip(rows, run->w.values, l->d_v);
    if (k->scales_at)
        run->k->flip16(halves(from, k->scales_at), run->w.scales, v->groups);
    if (k->minima_at)
        run->k->flip16(halves(from, k->minima_at), run->w.minima, v->groups);
    return (struct values){run->w.values, run->w.scales, run->w.minima};
}

/* Rows from r on that see the same positions [*from, *to) of the page at `at` of the block; returns the first that does not. */
static uint32_t same_view(const struct run *run, const struct task *t, uint32_t block, uint32_t at, uint32_t r, uint32_t *from, uint32_t *to)
{
    uint32_t i = r;
    for (; i < t->rows; i++) {
        uint32_t f = 0, e = 0;
        bool any = seen(run->op, t, i, block, &f, &e);
        f = f > at ? f - at : 0;
        e = e > at ? e - at : 0;
        e = e < KV_PAGE ? e : KV_PAGE;
        if (!any || f >= e)
            f = e = 0;
        if (i > r && (f != *from || e != *to))
            break;
        *from = f, *to = e;
    }
    return i;
}

/* o += p v over the block's pages: rows that see the same positions of a page go together. */
static void mixes(const struct run *run, const struct task *t, uint32_t block, float *o)
{
    const struct kv_layer *l = run->op->layer;
    uint32_t page, end, start, from = 0, to = 0;
    block_pages(t, block, &start, &end);
    for (page = start; page < end; page++) {
        uint32_t at = page * KV_PAGE - block * KV_BLOCK;
        struct values v = {0};
        const void *next = values_at(run, t, page);
        if (page + 1 < end)
            next = values_at(run, t, page + 1);
        else if (block + 1 < t->block_end)
            next = plane(run, t, page + 1); /* K of the next block */
        for (uint32_t r = 0, r_next; r < t->rows; r = r_next) {
            r_next = same_view(run, t, block, at, r, &from, &to);
            size_t m = (size_t)r * t->heads;
            if (from >= to)
                continue;
            if (!v.codes)
                v = values_of(run, t, page, &next);
            struct cpu_mix job = {.v = v.codes, .next = next, .scales = v.scales, .minima = v.minima, .per = run->v_shape.group / 32, .d = l->d_v,
                                  .m = (r_next - r) * t->heads, .from = from, .to = to, .p = run->w.s + m * KV_BLOCK + at,
                                  .o = o + m * l->d_v};
            run->mix(&job);
        }
    }
}

/* The partial of one block: state[vectors][2], o[vectors][d_v]. */
static void block_run(const struct run *run, const struct task *t, uint32_t block, float (*state)[2], float *o)
{
    const struct op_attention *op = run->op;
    uint32_t d = op->layer->d_v;
    scores(run, t, block);
    memset(o, 0, (size_t)t->rows * t->heads * d * sizeof *o);
    for (uint32_t r = 0; r < t->rows; r++) {
        uint32_t from, to;
        if (!seen(op, t, r, block, &from, &to))
            continue;
        for (uint32_t h = 0; h < t->heads; h++) {
            size_t m = (size_t)r * t->heads + h;
            float *s = run->w.s + m * KV_BLOCK;
            if (op->softcap > 0)
                run->k->softcap(s + from, to - from, op->scale, op->softcap);
            run->k->soft(s, from, to, run->c, &state[m][0], &state[m][1]);
        }
    }
    if (run->few)
        cpu_fetch_ahead(run->d, run->me, 2 * FETCH_LINES);
    mixes(run, t, block, o);
}

static void fold_block(const struct run *run, const struct task *t, uint32_t block, float (*state)[2], const float *o)
{
    uint32_t d = run->op->layer->d_v, from, to;
    for (uint32_t r = 0; r < t->rows; r++) {
        if (!seen(run->op, t, r, block, &from, &to))
            continue;
        for (uint32_t m = r * t->heads; m < (r + 1) * t->heads; m++)
            run->k->fold(run->w.state[m], run->w.o + (size_t)m * d, state[m], o + (size_t)m * d, d, run->c);
    }
}

static void task_start(const struct run *run, const struct task *t)
{
    uint32_t vectors = t->rows * t->heads;
    for (uint32_t m = 0; m < vectors; m++)
        run->w.state[m][0] = -INFINITY, run->w.state[m][1] = 0;
    memset(run->w.o, 0, (size_t)vectors * run->op->layer->d_v * sizeof(float));
}

static void task_finish(const struct run *run, const struct task *t)
{
    const float *sinks = run->op->sinks;
    uint32_t d = run->op->layer->d_v;
    for (uint32_t r = 0; r < t->rows; r++)
        for (uint32_t h = 0; h < t->heads; h++) {
            size_t m = (size_t)r * t->heads + h;
            float *y = row_of(&run->op->y, t->row + r) + (size_t)(t->head + h) * d, sum = run->w.state[m][1];
            if (sinks) /* in units of the scores' maximum, which stays: a sink far above it makes y small, not its sum infinite */
                sum = sum + math_exp2f(fmaf(-run->w.state[m][0], run->c, sinks[t->head + h] * LOG2E));
            run->k->scale(run->w.o + m * d, y, d, 1.0f / sum);
            kv_turn_back(&run->v_shape, y, d);
        }
}

/* ---- a worker's run ---- */

struct shared {
    float *slots;
    size_t slot; /* floats */
    uint32_t vectors;
};

static float *slot_of(const struct shared *s, uint32_t i, float (**state)[2])
{
    float *p = s->slots + i * s->slot;
    *state = (float(*)[2])(void *)p;
    return p + 2 * (size_t)s->vectors;
}

/* a split task as its first worker leaves it: blocks from `block` on are in slots from `slot` on */
struct left {
    struct task task;
    uint32_t block, slot;
    bool any;
};

static void fold_slots(const struct run *run, const struct shared *sh, const struct left *left)
{
    for (uint32_t b = left->block; b < left->task.block_end; b++) {
        float(*state)[2];
        const float *o = slot_of(sh, left->slot + b - left->block, &state);
        fold_block(run, &left->task, b, state, o);
    }
    task_finish(run, &left->task);
}

/* The blocks a task's first worker has; folded at once. */
static void run_first(const struct run *run, const struct task *t, uint32_t own)
{
    float state[TILE][2];
    load_queries(run, t);
    task_start(run, t);
    for (uint32_t b = t->block; b < t->block + own; b++) {
        block_run(run, t, b, state, run->w.o_block);
        fold_block(run, t, b, state, run->w.o_block);
    }
}

/* The blocks of somebody else's task that lie in [from, to); `slot` is the task's first. */
static void run_others(const struct run *run, const struct shared *sh, const struct task *t, uint32_t own, uint32_t slot, uint64_t at,
                       uint64_t from, uint64_t to)
{
    bool loaded = false;
    for (uint32_t b = t->block; b < t->block_end; at += unit_cost(t, b), b++) {
        if (b < t->block + own || at < from || at >= to)
            continue;
        if (!loaded)
            load_queries(run, t), loaded = true;
        float(*state)[2], *o = slot_of(sh, slot + b - t->block - own, &state);
        block_run(run, t, b, state, o);
    }
}

/* Walk all tasks; compute the units of this worker. */
static void run_units(const struct run *run, const struct plan *p, const struct shared *sh, uint32_t me, uint32_t count, struct left *left)
{
    uint64_t at = 0, from = p->cost * me / count, to = p->cost * (me + 1) / count;
    uint32_t slots = 0;
    for (struct task t = {0}; task_next(p, &t); at += t.cost) {
        uint32_t own = own_blocks(p, &t, at, count), split = t.block_end - t.block - own;
        if (at >= from && at < to) {
            run_first(run, &t, own);
            if (split)
                *left = (struct left){t, t.block + own, slots, true};
            else
                task_finish(run, &t);
        } else if (split && at < to && at + t.cost > from) {
            run_others(run, sh, &t, own, slots, at, from, to);
        }
        slots += split;
    }
}

static cpu_score_fn score_of(const struct cpu_kernels *k, enum kv_format f, enum kv_code code)
{
    if (code != KV_CODE_FLOAT)
        return code == KV_CODE_AFFINE ? k->score_a8 : k->score_q8;
    return f == KV_F32 ? k->score_f32 : f == KV_F16 ? k->score_f16 : k->score_bf16;
}

static cpu_mix_fn mix_of(const struct cpu_kernels *k, enum kv_format f, enum kv_code code)
{
    if (code != KV_CODE_FLOAT)
        return code == KV_CODE_AFFINE ? k->mix_a8 : k->mix_q8;
    return f == KV_F32 ? k->mix_f32 : f == KV_F16 ? k->mix_f16 : k->mix_bf16;
}

static void run_attention(struct device *d, uint32_t me, uint32_t count, const void *op_void)
{
    const struct op_attention *op = op_void;
    const struct kv_layer *l = op->layer;
    const struct cpu_kernels *k = cpu_kernels_of(d);
    struct run run = {.d = d, .me = me, .few = op->q.rows <= FETCH_ROWS, .k = k, .op = op,
                      .c = op->softcap > 0 ? LOG2E : op->scale * LOG2E, .k_shape = kv_shape_of(l->k_format, l->d_k),
                      .v_shape = l->latent ? kv_shape_latent(l->k_format, l->d_k, l->d_v) : kv_shape_of(l->v_format, l->d_v)};
    run.score = score_of(k, l->k_format, run.k_shape.code);
    run.mix = mix_of(k, l->v_format, run.v_shape.code);
    uint32_t d_latent = l->latent ? l->d_v : 0;
    unsigned char *mine = cpu_scratch(d, me, work_lay(NULL, l->d_k, l->d_v, d_latent, NULL));
    if (!mine)
        return; /* every worker sees the same */
    work_lay(mine, l->d_k, l->d_v, d_latent, &run.w);
    struct cpu_need need = cpu_attention_need(cpu_reserved(d), count);
    struct plan plan;
    struct shared shared = {.slot = slot_floats(TILE, l->d_v), .vectors = TILE};
    uint32_t slots = plan_make(&plan, op, count, need.shared / (shared.slot * sizeof(float)));
    if (slots)
        shared.slots = cpu_shared_scratch(d, slots * shared.slot * sizeof(float));
    struct left left = {0};
    run_units(&run, &plan, &shared, me, count, &left);
    if (!slots)
        return;
    cpu_barrier(d, me);
    if (left.any)
        fold_slots(&run, &shared, &left);
}

int cpu_op_attention(struct device *d, const struct op_attention *op)
{
    return cpu_enqueue(d, run_attention, op, sizeof *op);
}
