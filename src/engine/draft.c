/* engine/draft.c - a second, smaller model guesses: its own state, its own forwards, the target's sampler.
 *
 * The draft draws with the request's own parameters and the noise of the positions, so sampled text profits as greedy text does.  Its state
 * is leased and kept like the target's (kv/prefix.h), in a budget of its own.  All sequences that let it guess in a step do so together: the
 * k-th guesses of all are rows of one forward.
 *
 *     tokens     [ covered ............ known )           known: count when the round began
 *     rows run   [ covered ............ known ....... ran )    those past `known` on guesses
 *
 * Rows of a round are not committed before the target has said which ids were right, so what was refused is forgotten by any kind of state.
 * What is missing (a prompt, a prefix the target found in its cache) is caught up with at most one step of rows a round, and nothing is
 * guessed until it is.  A few missing rows run with the first guess.  What rows of both kinds take is measured apart, so that propose.c knows
 * what a guess costs and what it costs to begin.
 *
 * Owns:       the draft's state (kv).  Engine thread only, opening and closing apart.
 * Invariants: 1. covered <= known <= ran, and the ids of what is covered are a prefix of the sequence's tokens.
 *             2. A draft that fails or finds no memory guesses nothing; the sequence goes on.
 *             3. Past admission no memory is asked for. */
#include "engine/engine_int.h"

#include "base/log.h"
#include "base/mem.h"

enum { PATCH_MAX = 2 * PROPOSE_DEPTH_MAX + 2, FEW_ROWS = 8 };

/* sequence lifetime */
struct draft {
    struct proposer base;
    struct seq *s;
    struct kv_seq *kv;
    bool dead;                 /* it failed: no more guesses */
    uint32_t known, ran;       /* of the last round */
    uint32_t guesses[PROPOSE_DEPTH_MAX];
    uint32_t want, made;       /* of the round being made */
    uint32_t rows;             /* in the forward being made */
    uint32_t patched;
    struct sample_seen patch[PATCH_MAX];
};

/* engine lifetime */
struct draft_pool {
    struct model *model;
    struct kv *kv;
    uint32_t rows_max, vocab, context;
    struct draft **asked;      /* [running_max] who guesses in this step */
    uint32_t asked_count, paying; /* paying: those whose depth follows what pays */
    struct proposer_worth worth; /* of the sequence that ended last: the next begins with it */
    bool worth_known;
    struct draft **in;         /* [running_max] who is in the forward being made; one of each below */
    struct span *spans;
    struct sample_row *rows;
    struct sample_result *results;
};

static struct draft *draft_of(const struct seq *s)
{
    return (struct draft *)(void *)s->proposers[PROPOSER_DRAFT];
}

/* ---- the pool ---- */

int draft_open_pool(struct engine *e, struct err *err)
{
    struct kv_config kv;
    struct draft_pool *p;
    uint32_t most = e->cfg.running_max;
    if (!e->cfg.draft)
        return 0;
    if (!(e->draft = p = mem_try_zero(1, sizeof *p)))
        return err_nomem(err, "draft", sizeof *p);
    p->model = e->cfg.draft;
    p->rows_max = e->cfg.rows_max;
    p->vocab = model_info(p->model)->vocab;
    uint64_t read = model_info(p->model)->read_bytes_per_token, of = model_info(e->model)->read_bytes_per_token;
    e->clock.draft_part = (double)read / (double)(of ? of : 1);
    p->context = model_info(p->model)->context;
    p->asked = mem_try_zero(most, sizeof *p->asked);
    p->in = mem_try_zero(most, sizeof *p->in);
    p->spans = mem_try_zero(most, sizeof *p->spans);
    p->rows = mem_try_zero(most, sizeof *p->rows);
    p->results = mem_try_zero(most, sizeof *p->results);
    if (!p->asked || !p->in || !p->spans || !p->rows || !p->results)
        return err_nomem(err, "draft", most * sizeof *p->results);
    engine_kv_config(p->model, e->cfg.device, p->rows_max, &kv);
    kv.budget_bytes = e->cfg.draft_state_bytes;
    kv.prefix_off = e->cfg.retain_none;
    kv.mark_every = e->cfg.mark_every;
    return kv_open(&kv, &p->kv, err);
}

uint64_t draft_live_bytes(const struct engine *e)
{
    struct kv_stats s = {0};
    if (e->draft && e->draft->kv)
        kv_stats(e->draft->kv, &s);
    return s.live_bytes + s.cached_bytes;
}

int draft_check(const struct engine *e, struct err *err)
{
    return e->draft ? kv_check(e->draft->kv, err) : 0;
}

void draft_close_pool(struct engine *e)
{
    struct draft_pool *p = e->draft;
    if (!p)
        return;
    kv_close(p->kv);
    mem_free(p->asked);
    mem_free(p->in);
    mem_free(p->spans);
    mem_free(p->rows);
    mem_free(p->results);
    mem_free(p);
    e->draft = NULL;
}

/* ---- a sequence's state ---- */

static bool ids_fit(const struct draft_pool *p, const uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (ids[i] >= p->vocab)
            return false;
    return true;
}

void draft_admit(struct engine *e, struct seq *s)
{
    struct draft *d = draft_of(s);
    struct draft_pool *p = e->draft;
    struct kv_prefix_hit hit;
    if (!d || d->kv || d->dead)
        return;
    struct kv_prefix_query q;
    cache_query(s, &q);
    q.reach = q.reach + PROPOSE_DEPTH_MAX < p->context ? q.reach + PROPOSE_DEPTH_MAX : p->context;
    d->dead = q.count >= p->context || !ids_fit(p, q.ids, q.count) || kv_prefix_lease(p->kv, &q, &d->kv, &hit, NULL) != 0;
    d->known = d->ran = d->dead ? 0 : hit.positions;
    if (p->worth_known && !s->admitted_before)
        d->base.worth[0].right = p->worth.right, d->base.worth[0].tried = p->worth.tried;
}

static int extend(struct draft_pool *p, struct draft *d, uint32_t rows)
{
    int rc;
    while ((rc = kv_extend(p->kv, d->kv, rows, NULL)) == ERR_KV_FULL && kv_prefix_evict(p->kv)) {
    }
    return rc;
}

/* Gives all its pages back; its rows are computed again once there is room. */
static void start_over(struct draft_pool *p, struct draft *d)
{
    kv_rewind(p->kv, d->kv, 0, NULL);
    d->known = d->ran = d->want = 0;
}

/* What ran on ids that turned out to be right is covered, the rest is forgotten. */
static void settle(struct draft_pool *p, struct draft *d)
{
    const struct seq *s = d->s;
    uint32_t from = kv_seq_covered(d->kv), n = d->known < s->count - 1 ? d->known : s->count - 1;
    while (n < d->ran && n < s->count - 1 && d->guesses[n - d->known] == s->tokens[n])
        n++;
    if (n > from && kv_commit(p->kv, d->kv, s->tokens + from, n - from, NULL))
        start_over(p, d);
    else
        kv_rewind(p->kv, d->kv, kv_seq_covered(d->kv), NULL);
    d->known = d->ran = kv_seq_covered(d->kv);
}

void draft_end(struct engine *e, struct seq *s)
{
    struct draft *d = draft_of(s);
    struct draft_pool *p = e->draft;
    if (!d || !d->kv)
        return;
    if (!d->dead) {
        settle(p, d);
        kv_prefix_keep(p->kv, d->kv, s->request->has_session ? &s->request->session : NULL);
    }
    kv_seq_free(p->kv, d->kv);
    d->kv = NULL;
    p->worth = d->base.worth[0];
    p->worth_known = true;
}

/* ---- forwards ---- */

/* What drafting costs is taken from its credit; not by requests of a fixed depth, which asked for it whatever it costs. */
static void charge(struct engine *e, double took_ns)
{
    e->clock.draft_credit_ns -= took_ns * e->draft->paying / e->draft->asked_count;
}

/* The rows put in, and the time they took; what fails guesses no more. */
static bool forward(struct engine *e, uint32_t count, double *took_ns)
{
    struct draft_pool *p = e->draft;
    int64_t began = thread_now_ns();
    uint64_t event;
    int rc = model_forward(p->model, p->kv, p->spans, count, p->results, &event, NULL);
    if (rc)
        engine_drain(e);
    else
        rc = model_wait(p->model, event, NULL);
    *took_ns = (double)(thread_now_ns() - began);
    for (uint32_t i = 0; rc && i < count; i++) {
        p->in[i]->dead = true;
        p->in[i]->want = 0;
    }
    if (rc)
        log_put(LOG_WARN, "engine: the draft of %u sequences failed: %s", count, err_text(rc));
    return rc == 0;
}

static void catch_up(struct engine *e)
{
    struct draft_pool *p = e->draft;
    uint32_t n = 0, total = 0, few = FEW_ROWS < p->rows_max ? FEW_ROWS : p->rows_max;
    double took;
    for (uint32_t i = 0; i < p->asked_count; i++) {
        struct draft *d = p->asked[i];
        uint32_t at = kv_seq_covered(d->kv), left = d->s->count - at, room = p->rows_max - total;
        if (left <= few)
            continue;
        d->rows = kv_rows_before(d->kv, at, left - 1 < room ? left - 1 : room);
        d->want = d->rows + 1 == left ? d->want : 0;
        if (d->rows == 0 || extend(p, d, d->rows)) {
            d->want = 0;
            if (d->rows) /* no pages */
                start_over(p, d);
            continue;
        }
        p->spans[n] = (struct span){.seq = d->kv, .position = at, .row_count = d->rows, .ids = d->s->tokens + at, .out_first = d->rows};
        p->in[n++] = d;
        total += d->rows;
    }
    if (n == 0 || !forward(e, n, &took))
        return;
    if (e->clock.draft_row_ns > 0) /* the first time shows what they take */
        charge(e, took);
    e->clock.draft_row_ns = e->clock.draft_row_ns > 0 ? 0.8 * e->clock.draft_row_ns + 0.2 * took / total : took / total;
    for (uint32_t i = 0; i < n; i++) {
        struct draft *d = p->in[i];
        if (kv_commit(p->kv, d->kv, d->s->tokens + kv_seq_covered(d->kv), d->rows, NULL))
            start_over(p, d);
        d->known = d->ran = kv_seq_covered(d->kv);
    }
}

static void sample_for(const struct draft *d, struct sample_row *row)
{
    const struct seq *s = d->s;
    bool early = s->generated + d->made < s->sampler.min_tokens;
    *row = (struct sample_row){.params = &s->sampler.params, .index = s->count + d->made, .seen = s->sampler.seen,
                               .seen_count = s->sampler.seen_count, .patch = d->patch, .patch_count = d->patched,
                               .banned = early ? s->request->end_ids : NULL, .banned_count = early ? s->request->end_count : 0, .score_id = -1};
}

/* The next row of the sequence goes into the forward; the first time all it lacks, and room for the whole round. */
static bool put_rows(struct draft_pool *p, struct draft *d, uint32_t n, uint32_t *total)
{
    struct seq *s = d->s;
    uint32_t at = d->made ? s->count + d->made - 1 : kv_seq_covered(d->kv);
    d->rows = s->count + d->made - at;
    if (*total + d->rows > p->rows_max)
        return false; /* with the next forward */
    if (d->made == 0 && extend(p, d, d->rows + d->want - 1)) {
        start_over(p, d);
        return false;
    }
    sample_for(d, &p->rows[n]);
    p->spans[n] = (struct span){.seq = d->kv, .position = at, .row_count = d->rows, .ids = s->tokens + at, .out_first = d->rows - 1,
                                .sample = &p->rows[n]};
    p->in[n] = d;
    *total += d->rows;
    return true;
}

/* The row's choice: a guess behind the sequence's tokens, where drafts lie. */
static void take_guess(struct draft_pool *p, struct draft *d, uint32_t id, uint32_t vocab)
{
    struct seq *s = d->s;
    d->known = s->count;
    d->ran = s->count + d->made;
    if (id >= vocab || id >= p->vocab) {
        d->want = d->made;
        return;
    }
    d->guesses[d->made] = s->tokens[s->count + d->made] = id;
    d->patched = sampler_patch(&s->sampler, d->patch, d->patched, s->tokens, s->count + d->made, s->request->prompt_count);
    d->made++;
}

/* One more guess of everybody who wants one; false: nobody does. */
static bool guess_once(struct engine *e)
{
    struct draft_pool *p = e->draft;
    uint32_t n = 0, total = 0;
    double took;
    for (uint32_t i = 0; i < p->asked_count; i++)
        n += p->asked[i]->made < p->asked[i]->want && put_rows(p, p->asked[i], n, &total);
    if (n == 0)
        return false;
    if (!forward(e, n, &took))
        return true;
    charge(e, took);
    if (total == n)
        costs_learn(&e->clock.draft, n, took);
    for (uint32_t i = 0; i < n; i++)
        take_guess(p, p->in[i], p->results[i].id, e->vocab);
    return true;
}

void draft_guess(struct engine *e)
{
    struct draft_pool *p = e->draft;
    if (!p)
        return;
    p->asked_count = p->paying = 0;
    for (uint32_t i = 0; i < e->running_count; i++) {
        struct seq *s = e->running[i];
        struct draft *d = draft_of(s);
        if (!d || s->round.count == 0 || s->round.proposer != &d->base)
            continue;
        d->want = s->round.count;
        s->round.count = d->made = d->patched = 0;
        if (!d->kv || d->dead || s->count + d->want >= p->context || !ids_fit(p, s->tokens + d->known, s->count - d->known))
            continue;
        settle(p, d);
        p->asked[p->asked_count++] = d;
        p->paying += s->request->propose_depth == 0;
    }
    catch_up(e);
    while (guess_once(e)) {
    }
    for (uint32_t i = 0; i < p->asked_count; i++) {
        struct draft *d = p->asked[i];
        d->s->round.count = d->made;
        memcpy(d->s->round.ids, d->guesses, d->made * sizeof *d->guesses);
    }
}

/* ---- the proposer ---- */

static uint32_t draft_propose(struct proposer *p, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class)
{
    (void)p, (void)tokens, (void)count, (void)room, (void)out;
    *class = 0;
    return 0; /* all of them together, in draft_guess */
}

static void draft_observe(struct proposer *p, const uint32_t *tokens, uint32_t count)
{
    (void)p, (void)tokens, (void)count; /* it catches up when it is asked */
}

static uint32_t draft_missing(const struct proposer *p, uint32_t count)
{
    const struct draft *d = (const struct draft *)(const void *)p;
    return d->ran < count ? count - d->ran : 0;
}

static void draft_free(struct proposer *p)
{
    mem_free(p); /* its state was kept or freed when the sequence ended */
}

int draft_open(struct seq *s, struct proposer **out, struct err *err)
{
    static const struct proposer_ops ops = {.name = "draft", .kind = PROPOSER_DRAFT, .counts_as_draft = true, .prior = {0.7, 0.7, 0.7, 0.7},
                                            .propose = draft_propose, .observe = draft_observe, .missing = draft_missing,
                                            .free = draft_free};
    struct draft *d = mem_try_zero(1, sizeof *d);
    *out = NULL;
    if (!d)
        return err_nomem(err, "draft", sizeof *d);
    proposer_init(&d->base, &ops);
    d->s = s;
    *out = &d->base;
    return 0;
}
