/* engine/draft.c - a second, smaller model guesses: its own state, its own forwards, the target's sampler.
 *
 * The draft draws with the request's own parameters and the noise of the positions, so sampled text profits as greedy text does.  Its state
 * follows the target's tokens by spans of its own: what was refused is rewound, what is missing (a prompt, a prefix the target found in its
 * cache) is caught up with at most one step of rows a round, and nothing is guessed until it is.  A few missing rows run with the first guess.
 * What rows of both kinds take is measured apart, so that propose.c knows what a guess costs and what it costs to begin.
 *
 * Owns:       the draft's state (kv) and the states kept of finished sequences.  Engine thread only, opening and closing apart.
 * Invariants: 1. The ids of a draft's state are a prefix of the sequence's tokens, drafts of the round being made apart.
 *             2. A draft that fails or finds no memory guesses nothing; the sequence goes on. */
#include "engine/engine_int.h"

#include "base/log.h"
#include "base/mem.h"

enum { PATCH_MAX = 2 * PROPOSE_DEPTH_MAX, FEW_ROWS = 8 };

/* engine lifetime */
struct draft_pool {
    struct model *model;
    struct kv *kv;
    uint32_t rows_max, vocab, context;
    struct kv_seq *kept[DRAFT_KEPT]; /* oldest first */
    uint32_t kept_count;
    struct sample_result result;
};

/* sequence lifetime */
struct draft {
    struct proposer base;
    struct seq *s;
    struct kv_seq *kv;
    bool dead;          /* it failed: no more guesses */
};

/* ---- the pool ---- */

int draft_open_pool(struct engine *e, struct err *err)
{
    struct kv_config kv;
    struct draft_pool *p;
    if (!e->cfg.draft)
        return 0;
    if (!(e->draft = p = mem_try_zero(1, sizeof *p)))
        return err_nomem(err, "draft", sizeof *p);
    p->model = e->cfg.draft;
    p->rows_max = e->cfg.rows_max;
    p->vocab = model_info(p->model)->vocab;
    p->context = model_info(p->model)->context;
    engine_kv_config(p->model, e->cfg.device, p->rows_max, &kv);
    kv.budget_bytes = e->cfg.draft_state_bytes;
    return kv_open(&kv, &p->kv, err);
}

uint64_t draft_live_bytes(const struct engine *e)
{
    struct kv_stats s = {0};
    if (e->draft && e->draft->kv)
        kv_stats(e->draft->kv, &s);
    return s.live_bytes;
}

static void kept_drop(struct draft_pool *p)
{
    kv_seq_free(p->kv, p->kept[0]);
    memmove(p->kept, p->kept + 1, --p->kept_count * sizeof *p->kept);
}

void draft_close_pool(struct engine *e)
{
    struct draft_pool *p = e->draft;
    if (!p)
        return;
    while (p->kv && p->kept_count)
        kept_drop(p);
    kv_close(p->kv);
    mem_free(p);
    e->draft = NULL;
}

static uint32_t agreed(const struct kv_seq *kv, const uint32_t *tokens, uint32_t most)
{
    uint32_t n = kv_seq_covered(kv), i = 0;
    const uint32_t *ids = kv_seq_ids(kv);
    n = n < most ? n : most;
    while (i < n && ids[i] == tokens[i])
        i++;
    return i;
}

/* A state to begin with: of the kept one with the longest common prefix, or empty. */
static int state_new(struct draft_pool *p, struct draft *d, const uint32_t *tokens, uint32_t count)
{
    struct kv_seq *best = NULL;
    uint32_t most = 0;
    for (uint32_t i = 0; i < p->kept_count; i++) {
        uint32_t n = agreed(p->kept[i], tokens, count - 1);
        if (n > most && n >= kv_seq_oldest(p->kept[i])) {
            most = n;
            best = p->kept[i];
        }
    }
    if (best && kv_seq_fork(p->kv, best, most, &d->kv, NULL) == 0)
        return 0;
    return kv_seq_new(p->kv, &d->kv, NULL);
}

static int extend(struct draft_pool *p, struct kv_seq *kv, uint32_t rows)
{
    int rc;
    while ((rc = kv_extend(p->kv, kv, rows, NULL)) == ERR_KV_FULL && p->kept_count)
        kept_drop(p);
    return rc;
}

/* ---- rows ---- */

/* Rows for tokens [covered, covered + rows); the last one's choice is in the pool's result when `sample` is given. */
static int run_rows(struct draft_pool *p, struct draft *d, const uint32_t *tokens, uint32_t rows, const struct sample_row *sample)
{
    uint32_t at = kv_seq_covered(d->kv);
    uint64_t event;
    struct span span = {.seq = d->kv, .position = at, .row_count = rows, .ids = tokens + at, .out_first = sample ? rows - 1 : rows, .sample = sample};
    int rc = extend(p, d->kv, rows);
    if (rc)
        return rc;
    if ((rc = model_forward(p->model, p->kv, &span, 1, &p->result, &event, NULL)) == 0)
        rc = model_wait(p->model, event, NULL);
    return rc ? rc : kv_commit(p->kv, d->kv, tokens + at, rows, NULL);
}

static void learn(double *ns, int64_t began, uint32_t rows)
{
    double took = (double)(thread_now_ns() - began) / rows;
    *ns = *ns > 0 ? 0.8 * *ns + 0.2 * took : took;
}

uint32_t draft_missing(const struct seq *s)
{
    const struct draft *d = (const struct draft *)(const void *)s->proposers[PROPOSER_DRAFT];
    uint32_t has = d->kv ? kv_seq_covered(d->kv) : 0;
    return has < s->count ? s->count - has : 0;
}

/* The state as of tokens[0, count) but for a few, or as near as one step of rows brings it: true when it is there. */
static bool catch_up(struct draft_pool *p, struct draft *d, const uint32_t *tokens, uint32_t count)
{
    uint32_t n = d->kv ? agreed(d->kv, tokens, count - 1) : 0;
    if (d->kv && n < kv_seq_covered(d->kv) && kv_rewind(p->kv, d->kv, n, NULL)) {
        kv_seq_free(p->kv, d->kv);
        d->kv = NULL;
    }
    if (!d->kv && state_new(p, d, tokens, count))
        return false;
    uint32_t left = count - 1 - kv_seq_covered(d->kv), rows = left < FEW_ROWS ? 0 : left < p->rows_max ? left : p->rows_max;
    int64_t began = thread_now_ns();
    int rc = rows ? run_rows(p, d, tokens, rows, NULL) : 0;
    if (rows && rc == 0)
        learn(&d->s->request->engine->clock.draft_row_ns, began, rows);
    if (rc) { /* no pages: give back what it holds; anything else: never again */
        kv_seq_free(p->kv, d->kv);
        d->kv = NULL;
        d->dead = rc != ERR_KV_FULL;
        return false;
    }
    return rows == left || rows == 0;
}

static uint32_t draft_propose(struct proposer *base, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class)
{
    struct draft *d = (struct draft *)(void *)base;
    struct seq *s = d->s;
    struct draft_pool *p = s->request->engine->draft;
    struct sample_seen patch[PATCH_MAX + 2];
    uint32_t n = 0, patched = 0;
    *class = 0;
    if (d->dead || count + room >= p->context || !catch_up(p, d, tokens, count) || seq_reserve(s, count + room))
        return 0;
    while (n < room) {
        bool early = s->generated + n < s->sampler.min_tokens;
        struct sample_row row = {.params = &s->sampler.params, .index = count + n, .seen = s->sampler.seen, .seen_count = s->sampler.seen_count,
                                 .patch = patch, .patch_count = patched, .banned = early ? s->request->end_ids : NULL,
                                 .banned_count = early ? s->request->end_count : 0, .score_id = -1};
        uint32_t rows = count + n - kv_seq_covered(d->kv);
        int64_t began = thread_now_ns();
        if (s->tokens[count + n - 1] >= p->vocab || run_rows(p, d, s->tokens, rows, &row) || p->result.id >= s->request->engine->vocab)
            break;
        if (rows == 1)
            learn(&s->request->engine->clock.draft_ns, began, 1);
        out[n] = s->tokens[count + n] = p->result.id; /* behind the sequence's tokens, where drafts lie */
        patched = sampler_patch(&s->sampler, patch, patched, s->tokens, count + n, s->request->prompt_count);
        n++;
    }
    return n;
}

static void draft_observe(struct proposer *p, const uint32_t *tokens, uint32_t count)
{
    (void)p;
    (void)tokens;
    (void)count; /* it catches up when it is asked */
}

static void draft_free(struct proposer *p)
{
    mem_free(p); /* its state was kept or freed when the sequence ended */
}

void draft_end(struct engine *e, struct seq *s)
{
    struct draft *d = (struct draft *)(void *)s->proposers[PROPOSER_DRAFT];
    struct draft_pool *p = e->draft;
    if (!d || !d->kv)
        return;
    if (p->kept_count == DRAFT_KEPT)
        kept_drop(p);
    uint32_t n = agreed(d->kv, s->tokens, s->count);
    if (kv_rewind(p->kv, d->kv, n, NULL) == 0 && n)
        p->kept[p->kept_count++] = d->kv;
    else
        kv_seq_free(p->kv, d->kv);
    d->kv = NULL;
}

int draft_open(struct seq *s, struct proposer **out, struct err *err)
{
    static const struct proposer_ops ops = {.name = "draft", .kind = PROPOSER_DRAFT, .counts_as_draft = true, .prior = {0.7, 0.7, 0.7, 0.7},
                                            .propose = draft_propose, .observe = draft_observe, .free = draft_free};
    struct draft *d = mem_try_zero(1, sizeof *d);
    *out = NULL;
    if (!d)
        return err_nomem(err, "draft", sizeof *d);
    proposer_init(&d->base, &ops);
    d->s = s;
    *out = &d->base;
    return 0;
}
