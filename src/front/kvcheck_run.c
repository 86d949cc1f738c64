/* front/kvcheck_run.c - what a state format costs one model: the same ids through f32 state and every format, side by side.
 *
 * One model, one state store a format; chunks of rows go through all of them, so logits of a chunk are compared and forgotten.
 * The ids: BOS, the text, and among it NEEDLES sentences that name a number; a needle counts as found when every token of its answer is the
 * likeliest one behind a question at the end.  Errors of K and V are those of encoding the f32 state's vectors.
 * Thread: the engine's, alone (engine_exclusive). */
#include "base/math.h"
#include "base/mem.h"
#include "front/kvcheck.h"
#include "tensor/kv_codec.h"

#include <math.h>

enum { CHUNK = 32, STEPS = 16, PAGE_STRIDE = 4, ROOM = 128 };

/* ---- running ---- */

static int column_open(struct kvcheck *c, const struct kv_config *base, struct kvcheck_column *col, struct err *err)
{
    struct kv_config cfg = *base;
    struct kv_layer_spec *layers = mem_try_array(base->layer_count, sizeof *layers);
    if (!layers)
        return err_nomem(err, "layers", base->layer_count * sizeof *layers);
    for (uint32_t i = 0; i < base->layer_count; i++) {
        layers[i] = base->layers[i];
        layers[i].k_format = col->k, layers[i].v_format = col->v;
        if (layers[i].policy != KV_RECURRENT && layers[i].shares == 0)
            col->bits_per_position += 8ull * layers[i].n_kv_heads * kv_layer_shape(&layers[i]).head_bytes / KV_PAGE;
    }
    cfg.layers = layers;
    cfg.start = col == &c->reference ? 0 : base->start;
    cfg.context_max = c->count + ROOM;
    cfg.budget_bytes = kv_plan_bytes(&cfg, cfg.context_max);
    cfg.budget_bytes = cfg.budget_bytes == UINT64_MAX ? KV_SLAB : 2 * cfg.budget_bytes;
    int rc = kv_open(&cfg, &col->kv, err);
    if (rc == 0)
        rc = kv_seq_new(col->kv, &col->seq, err);
    mem_free(layers);
    return rc;
}

/* `n` rows; logits of all from `first` on. */
static int feed(struct kvcheck *c, struct kv *kv, struct kv_seq *seq, const uint32_t *ids, uint32_t n, uint32_t first, float *logits,
                struct err *err)
{
    int rc = 0;
    for (uint32_t done = 0, rows; rc == 0 && done < n; done += rows) {
        uint64_t event = 0;
        rows = kv_rows_before(seq, kv_seq_covered(seq), n - done);
        uint32_t skip = first > done ? first - done : 0, before = done > first ? done - first : 0;
        struct span span = {.seq = seq, .position = kv_seq_covered(seq), .row_count = rows, .ids = ids + done,
                            .out_first = skip < rows ? skip : rows, .logits = logits + (size_t)before * c->vocab};
        rc = kv_extend(kv, seq, rows, err);
        if (rc == 0)
            rc = model_forward(c->m->model, kv, &span, 1, NULL, &event, err);
        if (rc == 0)
            rc = model_wait(c->m->model, event, err);
        if (rc == 0)
            rc = kv_commit(kv, seq, ids + done, rows, err);
    }
    return rc;
}

/* ---- comparing ---- */

struct row_stats {
    float most;
    double log_sum;
    uint32_t best;
};

static struct row_stats stats_of(const float *x, uint32_t n)
{
    struct row_stats s = {.most = -INFINITY};
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        if (x[i] > s.most)
            s.most = x[i], s.best = i;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)math_expf(x[i] - s.most);
    s.log_sum = math_logd(sum);
    return s;
}

/* KL(a, b): the sum over ids of p_a (log p_a - log p_b) */
static double divergence(const float *a, const struct row_stats *sa, const float *b, const struct row_stats *sb, uint32_t n)
{
    double kl = 0, base = (double)sb->most - (double)sa->most + sb->log_sum - sa->log_sum;
    for (uint32_t i = 0; i < n; i++)
        if (a[i] - sa->most > -40)
            kl += math_expd((double)a[i] - (double)sa->most - sa->log_sum) * ((double)a[i] - (double)b[i] + base);
    return kl;
}

static int run_chunk(struct kvcheck *c, uint32_t at, uint32_t n, struct err *err)
{
    struct row_stats stats[CHUNK];
    uint32_t vocab = c->vocab;
    int rc = feed(c, c->reference.kv, c->reference.seq, c->ids + at, n, 0, c->logits[0], err);
    for (uint32_t r = 0; rc == 0 && r < n; r++)
        stats[r] = stats_of(c->logits[0] + (size_t)r * vocab, vocab);
    for (uint32_t i = 0; rc == 0 && i < c->column_count; i++) {
        struct kvcheck_column *col = &c->columns[i];
        if (!col->seq)
            continue;
        rc = feed(c, col->kv, col->seq, c->ids + at, n, 0, c->logits[1], err);
        for (uint32_t r = 0; rc == 0 && r < n; r++) {
            const float *a = c->logits[0] + (size_t)r * vocab, *b = c->logits[1] + (size_t)r * vocab;
            struct row_stats s = stats_of(b, vocab);
            col->kl[at + r] = divergence(a, &stats[r], b, &s, vocab);
            col->agree += s.best == stats[r].best;
        }
    }
    return rc;
}

/* ---- needles and speed ---- */

static int needles_run(struct kvcheck *c, struct kvcheck_column *col, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < c->needle_count; i++) {
        const struct kvcheck_needle *n = &c->needles[i];
        struct kv_seq *fork = NULL;
        uint32_t hits = 0;
        rc = kv_seq_fork(col->kv, col->seq, kv_seq_covered(col->seq), &fork, err);
        if (rc == 0)
            rc = feed(c, col->kv, fork, n->ids, n->count - 1, n->answer - 1, c->logits[1], err);
        for (uint32_t r = n->answer; rc == 0 && r < n->count; r++)
            hits += stats_of(c->logits[1] + (size_t)(r - n->answer) * c->vocab, c->vocab).best == n->ids[r];
        col->found += rc == 0 && hits == n->count - n->answer;
        kv_seq_free(col->kv, fork);
    }
    return rc;
}

static int speed_run(struct kvcheck *c, struct kvcheck_column *col, struct err *err)
{
    int rc = 0;
    int64_t began = thread_now_ns();
    for (uint32_t i = 0; rc == 0 && i < STEPS; i++)
        rc = feed(c, col->kv, col->seq, c->ids + i, 1, 0, c->logits[1], err);
    col->tokens_per_s = STEPS / ((double)(thread_now_ns() - began) / 1e9);
    return rc;
}

/* ---- errors of K and V ---- */

/* Of the first n of a vector's d elements. */
static void encode_error(unsigned char *plane, enum kv_format f, uint32_t d, bool key, const float *x, uint32_t n, double error[2])
{
    float y[KV_HEAD_MAX];
    kv_store(plane, f, d, 0, key, x);
    kv_load(plane, f, d, 0, key, y);
    for (uint32_t e = 0; e < n; e++) {
        error[0] += ((double)x[e] - (double)y[e]) * ((double)x[e] - (double)y[e]);
        error[1] += (double)x[e] * (double)x[e];
    }
}

static int errors_run(struct kvcheck *c, const struct kv_config *base, struct err *err)
{
    static const size_t plane_bytes = (size_t)KV_PAGE * KV_HEAD_MAX * 4;
    uint32_t pages = c->count / KV_PAGE;
    float *k = mem_try_array((size_t)KV_PAGE * KV_HEAD_MAX, sizeof *k), *v = mem_try_array((size_t)KV_PAGE * KV_HEAD_MAX, sizeof *v);
    unsigned char *plane = mem_try_zero(plane_bytes, 1);
    int rc = k && v && plane ? 0 : err_nomem(err, "pages", plane_bytes);
    for (uint32_t l = 0; rc == 0 && l < base->layer_count; l++) {
        const struct kv_layer_spec *spec = &base->layers[l];
        bool stores = spec->policy != KV_RECURRENT && spec->shares == 0;
        for (uint32_t p = pages > 0 ? (pages - 1) % PAGE_STRIDE : 0; rc == 0 && stores && p < pages; p += PAGE_STRIDE)
            for (uint32_t h = 0; h < spec->n_kv_heads; h++) {
                if (kv_read_page(c->reference.kv, c->reference.seq, l, h, p, k, v, NULL))
                    break; /* behind its window */
                for (uint32_t i = 0; i < c->column_count; i++) {
                    struct kvcheck_column *col = &c->columns[i];
                    for (uint32_t s = 0; col->seq && s < KV_PAGE; s++) {
                        const float *key = k + (size_t)s * spec->d_k;
                        encode_error(plane, col->k, spec->d_k, true, key, spec->d_k, col->error_k);
                        if (spec->latent)
                            encode_error(plane, col->k, spec->d_k, true, key, spec->d_v, col->error_v);
                        else
                            encode_error(plane, col->v, spec->d_v, false, v + (size_t)s * spec->d_v, spec->d_v, col->error_v);
                    }
                }
            }
    }
    mem_free(k);
    mem_free(v);
    mem_free(plane);
    return rc;
}

/* ---- all of it ---- */

static int columns_open(struct kvcheck *c, const struct kv_config *base, struct err *err)
{
    int rc = column_open(c, base, &c->reference, err);
    for (uint32_t i = 0; rc == 0 && i < c->column_count; i++) {
        rc = column_open(c, base, &c->columns[i], &c->columns[i].refused);
        if (rc == ERR_UNSUPPORTED)
            rc = 0; /* reported */
        else if (rc)
            *err = c->columns[i].refused;
    }
    return rc;
}

static void column_close(struct kvcheck_column *col)
{
    if (col->seq)
        kv_seq_free(col->kv, col->seq);
    kv_close(col->kv);
    col->seq = NULL;
    col->kv = NULL;
}

int kvcheck_run(void *ctx, struct kv *unused, struct err *err)
{
    (void)unused;
    struct kvcheck *c = ctx;
    struct kv_config base;
    engine_kv_config(c->m->model, c->m->host->device, c->m->options.rows_max, &base);
    int rc = columns_open(c, &base, err);
    for (uint32_t at = 0; rc == 0 && at < c->count; at += CHUNK) {
        uint32_t n = c->count - at < CHUNK ? c->count - at : CHUNK;
        rc = run_chunk(c, at, n, err);
        if (rc == 0 && c->progress)
            c->progress(c->progress_ctx, at + n, c->count);
    }
    for (uint32_t i = 0; rc == 0 && i <= c->column_count; i++) {
        struct kvcheck_column *col = i ? &c->columns[i - 1] : &c->reference;
        if (col->seq && (rc = needles_run(c, col, err)) == 0)
            rc = speed_run(c, col, err);
    }
    if (rc == 0)
        rc = errors_run(c, &base, err);
    column_close(&c->reference);
    for (uint32_t i = 0; i < c->column_count; i++)
        column_close(&c->columns[i]);
    return rc;
}
