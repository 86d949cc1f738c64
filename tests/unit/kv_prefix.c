/* The tree of known prefixes: random leases, rows, rewinds, ends and evictions with kv_check after each and every stored value checked;
 * the longest known prefix against a plain list; where window layers can go on; what goes first under pressure; why no more was found. */
#include "kv_world.h"

enum { TEXTS = 400, PROMPT_MAX = 400 };

/* ---- leases ---- */

static void lease_planned(struct world *w, struct mirror *m, const char *key, const uint32_t *ids, uint32_t count,
                          struct kv_prefix_plan plan, struct kv_prefix_hit *hit)
{
    struct err err = {0};
    struct kv_prefix_query q = {.key = str_of(key), .ids = ids, .count = count, .plan = plan};
    *m = (struct mirror){0};
    int rc = kv_prefix_lease(w->kv, &q, &m->s, hit, &err);
    if (rc != 0) {
        assert_int_equal(rc, ERR_NOMEM);
        assert_null(m->s);
        return;
    }
    m->covered = m->highest = m->leased = hit->positions;
    m->passed = w->recurrent;
    memcpy(m->ids, ids, count * sizeof *ids);
    assert_int_equal(kv_seq_covered(m->s), hit->positions);
    assert_true(hit->positions < count && hit->matched >= hit->positions);
    check_rows(w, m);
}

static struct kv_prefix_hit lease(struct world *w, struct mirror *m, const char *key, const uint32_t *ids, uint32_t count)
{
    struct kv_prefix_hit hit;
    lease_planned(w, m, key, ids, count, (struct kv_prefix_plan){.must = {count - 1}}, &hit);
    return hit;
}

/* Rows [covered, to) of the mirror's ids, in steps of at most `step`. */
static void rows_to(struct world *w, struct mirror *m, uint32_t to, uint32_t step)
{
    struct err err = {0};
    while (m->covered < to) {
        uint32_t n = to - m->covered < step ? to - m->covered : step;
        n = kv_rows_before(m->s, m->covered, n);
        while (kv_extend(w->kv, m->s, n, &err) != 0) {
            if (!kv_prefix_evict(w->kv)) {
                fail_msg("no room for %u rows", n);
            }
        }
        write_rows(w, m->s, m->ids, m->covered, m->covered + n);
        assert_int_equal(kv_commit(w->kv, m->s, m->ids + m->covered, n, &err), 0);
        m->covered += n;
        m->highest = m->covered > m->highest ? m->covered : m->highest;
    }
}

static void end(struct world *w, struct mirror *m, const struct hash128 *session)
{
    kv_prefix_keep(w->kv, m->s, session);
    kv_seq_free(w->kv, m->s);
    m->s = NULL;
}

static void text_of(uint64_t seed, uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t key[2] = {seed, i};
        ids[i] = (uint32_t)hash_sip(key, &i, sizeof i) % 1000;
    }
}

/* Compute a text to its end and keep it. */
static void store(struct world *w, const char *key, const uint32_t *ids, uint32_t count, const struct hash128 *session)
{
    struct mirror m;
    lease(w, &m, key, ids, count);
    rows_to(w, &m, count, 37);
    end(w, &m, session);
}

/* ---- random ---- */

struct book { /* texts that were ended, by key */
    uint32_t ids[TEXTS][CONTEXT], count[TEXTS], key[TEXTS], n;
    bool complete; /* nothing was evicted and no memory was refused */
};

static const char *const keys[] = {"", "a", "ab"};
static struct book book;

static uint32_t longest_in_book(const struct world *w, const uint32_t *ids, uint32_t count, uint32_t key, const struct mirror *except,
                                const uint32_t *live_keys)
{
    uint32_t best = 0;
    for (uint32_t t = 0; t < book.n + SEQS; t++) {
        const struct mirror *m = t < book.n ? NULL : &w->m[t - book.n];
        if (m != NULL && (m == except || m->s == NULL || live_keys[t - book.n] != key)) {
            continue;
        }
        if (m == NULL && book.key[t] != key) {
            continue;
        }
        const uint32_t *other = m != NULL ? m->ids : book.ids[t];
        uint32_t n = m != NULL ? m->covered : book.count[t], same = 0;
        while (same < n && same < count && other[same] == ids[same]) {
            same++;
        }
        best = same > best ? same : best;
    }
    return best;
}

/* A prompt of few ids, often one that goes on where something else was. */
static uint32_t random_prompt(const struct world *w, uint32_t *ids)
{
    uint32_t count = 1 + rng(PROMPT_MAX), from = 0;
    const struct mirror *m = &w->m[rng(SEQS)];
    if (rng(3) != 0 && book.n != 0) {
        uint32_t t = rng(book.n);
        from = rng(book.count[t] + 1);
        memcpy(ids, book.ids[t], from * sizeof *ids);
    } else if (m->s != NULL) {
        from = rng(m->covered + 1);
        memcpy(ids, m->ids, from * sizeof *ids);
    }
    count = count > from ? count : from + 1;
    for (uint32_t i = from; i < count; i++) {
        ids[i] = rng(2);
    }
    return count < PROMPT_MAX ? count : PROMPT_MAX;
}

static void act_lease(struct world *w, uint32_t i, uint32_t *live_keys, bool exact)
{
    uint32_t ids[CONTEXT], may[3] = {1 + rng(100)}, key = rng(3);
    uint32_t count = random_prompt(w, ids);
    may[1] = may[0] + 1 + rng(100);
    may[2] = may[1] + 1 + rng(100);
    struct kv_prefix_plan plan = {.must = {count - 1, rng(count)}, .may = may, .may_count = rng(4)};
    struct kv_prefix_hit hit;
    uint32_t known = longest_in_book(w, ids, count, key, &w->m[i], live_keys);
    plan.may_count = 0; /* borrowed until the sequence ends: see the windows' own test */
    lease_planned(w, &w->m[i], keys[key], ids, count, plan, &hit);
    live_keys[i] = key;
    if (w->m[i].s != NULL && exact && book.complete) {
        uint32_t most = known < count - 1 ? known : count - 1;
        if (hit.positions != most || hit.matched != known) {
            fail_msg("leased %u of %u, matched %u: expected %u, %u", hit.positions, count, hit.matched, most, known);
        }
    }
}

static void act_end(struct world *w, uint32_t i, const uint32_t *live_keys)
{
    struct mirror *m = &w->m[i];
    if (book.n < TEXTS) {
        memcpy(book.ids[book.n], m->ids, m->covered * sizeof *m->ids);
        book.count[book.n] = m->covered;
        book.key[book.n++] = live_keys[i];
    } else {
        book.complete = false;
    }
    struct hash128 session = {rng(5), 1};
    end(w, m, rng(2) ? &session : NULL);
}

static void act_rows(struct world *w, struct mirror *m)
{
    struct err err = {0};
    uint32_t n = kv_rows_before(m->s, m->covered, 1 + rng(rng(3) == 0 ? ROWS : 40)), keep = rng(4) == 0 ? rng(n + 1) : n;
    for (uint32_t i = 0; i < n && m->covered + i < CONTEXT; i++) {
        m->ids[m->covered + i] = rng(2);
    }
    if (kv_extend(w->kv, m->s, n, &err) != 0) {
        if (rng(2) && kv_prefix_evict(w->kv)) {
            book.complete = false;
        }
        return;
    }
    write_rows(w, m->s, m->ids, m->covered, m->covered + n);
    if (kv_commit(w->kv, m->s, m->ids + m->covered, keep, &err) != 0) { /* too far back in a long step of recurrent layers */
        assert_true(w->recurrent && n - keep > w->slack);
        keep = 0;
    }
    m->covered += keep;
    m->highest = m->covered > m->highest ? m->covered : m->highest;
    if (keep < n) {
        assert_int_equal(kv_rewind(w->kv, m->s, m->covered, &err), 0);
    }
}

static void act_back(struct world *w, struct mirror *m)
{
    struct err err = {0};
    uint32_t to = m->covered - rng(m->covered + 1) / (1 + rng(8));
    if (kv_rewind(w->kv, m->s, to, &err) == 0) {
        m->covered = to;
        book.complete = false; /* what it had put in stays known */
    }
}

static void act(struct world *w, uint32_t *live_keys, bool exact)
{
    uint32_t i = rng(SEQS), what = rng(20);
    if (w->m[i].s == NULL) {
        act_lease(w, i, live_keys, exact);
    } else if (what < 13) {
        act_rows(w, &w->m[i]);
    } else if (what < 16) {
        act_end(w, i, live_keys);
    } else if (what < 17 && !exact) {
        act_back(w, &w->m[i]);
    } else if (what == 18 && !exact) { /* ended without keeping: its whole pages stay known */
        kv_seq_free(w->kv, w->m[i].s);
        w->m[i] = (struct mirror){0};
        book.complete = false;
    } else if (what == 19 && !exact && rng(4) == 0) {
        kv_prefix_evict(w->kv);
        book.complete = false;
    }
}

static void random_leases(void **state)
{
    (void)state;
    static struct world w;
    static struct book none;
    uint32_t live_keys[SEQS];
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int round = 0; round < 8; round++) {
            bool exact = round < 2 && shape == 1; /* only full layers, and room for all */
            world_shape(&w, shape);
            for (uint32_t l = 0; exact && l < w.layer_count; l++) {
                w.layers[l] = layer_full(1, 32, KV_F16);
            }
            w.slack = 40;
            w.mark_every = round % 2 ? 70 : 0;
            w.start = round % 4 == 3 ? 64 + 13 * (uint32_t)shape : round % 4 == 1 && !exact ? 1 + (uint32_t)shape : 0;
            rng_state = (uint64_t)(shape * 100 + round + 7000);
            world_open(&w, (exact ? 100ull : shape == 1 ? 30ull + 8u * (unsigned)round : 6ull + 4u * (unsigned)round) * KV_SLAB);
            book = none;
            book.complete = true;
            for (int i = 0; i < 1200; i++) {
                if (round >= 4 && rng(10) == 0) {
                    mem_fault_set(rng(5));
                }
                act(&w, live_keys, exact);
                mem_fault_set(-1);
                if (i % 5 == 0) {
                    check_all(&w);
                }
            }
            for (uint32_t i = 0; i < SEQS; i++) {
                if (w.m[i].s != NULL) {
                    act_end(&w, i, live_keys);
                }
            }
            check_all(&w);
            kv_prefix_clear(w.kv);
            check_all(&w);
            world_close(&w);
        }
    }
}

/* ---- windows ---- */

/* Rewinds by 1, w - 1, w, w + 1 and whole conversations: at most one page more than the new ids is computed. */
static void windows_go_on_where_they_were(void **state)
{
    (void)state;
    static struct world w;
    static const uint32_t windows[] = {1, 16, 31, 32, 33, 100};
    uint32_t ids[CONTEXT], other[CONTEXT];
    for (size_t k = 0; k < sizeof windows / sizeof windows[0]; k++) {
        uint32_t back[] = {1, windows[k] - 1, windows[k], windows[k] + 1};
        for (size_t b = 0; b < 4; b++) {
            for (uint32_t length = 300; length < 340; length += 13) {
                w = (struct world){.slack = 2 * KV_PAGE, .layer_count = 3};
                w.layers[0] = layer_full(2, 64, KV_F16);
                w.layers[1] = layer_window(2, 64, windows[k]);
                w.layers[2] = layer_window(1, 64, 16);
                world_open(&w, 16ull * KV_SLAB);
                text_of(1, ids, CONTEXT);
                text_of(2, other, CONTEXT);
                store(&w, "", ids, length, NULL);
                uint32_t at = length - back[b];
                memcpy(other, ids, at * sizeof *ids);
                struct kv_prefix_hit hit = lease(&w, &w.m[0], "", other, length + 20);
                assert_true(hit.positions + KV_PAGE >= at && hit.positions <= at);
                rows_to(&w, &w.m[0], length + 20, 5);
                check_all(&w);
                end(&w, &w.m[0], NULL);
                hit = lease(&w, &w.m[0], "", other, length + 20); /* a retry */
                assert_int_equal(hit.positions, length + 19);
                assert_int_equal(hit.miss, KV_MISS_NONE);
                check_all(&w);
                world_close(&w);
            }
        }
    }
}

/* Positions a plan must have stay usable behind the end by any distance; others while there is room. */
static void boundaries_stay_usable(void **state)
{
    (void)state;
    static struct world w;
    uint32_t ids[CONTEXT], other[CONTEXT], may[] = {50, 111, 150};
    for (int pressure = 0; pressure < 2; pressure++) {
        w = (struct world){.slack = 2 * KV_PAGE, .layer_count = 2};
        w.layers[0] = layer_full(2, 64, KV_F16);
        w.layers[1] = layer_window(2, 64, 20);
        world_open(&w, 16ull * KV_SLAB);
        text_of(1, ids, CONTEXT);
        struct kv_prefix_hit hit;
        struct kv_prefix_plan plan = {.must = {299, 200}, .may = may, .may_count = 3};
        lease_planned(&w, &w.m[0], "", ids, 300, plan, &hit);
        memcpy(w.m[0].ids, ids, sizeof ids);
        rows_to(&w, &w.m[0], 650, ROWS);
        end(&w, &w.m[0], NULL);
        struct kv_prefix_stats st;
        kv_prefix_stats(w.kv, &st);
        for (uint64_t spares = UINT64_MAX; pressure && spares != st.spares_evicted;) {
            spares = st.spares_evicted; /* spare pages first, then one mark: the first one made */
            assert_int_equal(st.marks_evicted + st.leaves_evicted, 0);
            kv_prefix_evict(w.kv);
            kv_prefix_stats(w.kv, &st);
        }
        assert_int_equal(st.marks_evicted, pressure);
        static const uint32_t at[] = {50, 111, 150, 200, 299};
        for (int i = 0; i < 5; i++) {
            text_of(2, other, CONTEXT);
            memcpy(other, ids, at[i] * sizeof *ids);
            hit = lease(&w, &w.m[1], "", other, 320);
            assert_int_equal(hit.matched, at[i]);
            if (i >= 3 || !pressure) { /* the pages of the mark that went are spare now */
                assert_int_equal(hit.positions, at[i]);
            } else {
                assert_int_equal(hit.positions, 0);
                assert_int_equal(hit.miss, KV_MISS_STATE);
            }
            check_all(&w);
            kv_seq_free(w.kv, w.m[1].s);
            w.m[1].s = NULL;
        }
        world_close(&w);
    }
}

/* Recurrent layers go on from marks: the last of a prompt, a boundary, an end, and other positions while there is room. */
static void recurrent_layers_go_on_from_marks(void **state)
{
    (void)state;
    static struct world w;
    uint32_t ids[CONTEXT], other[CONTEXT], may[] = {50, 111, 192};
    for (uint32_t step = 1; step <= ROWS; step += 19) {
        world_shape(&w, 3);
        w.layers[3] = w.layers[2]; /* anchors of 64 alone: shorter blocks are gone when a page is full */
        w.slack = 2 * KV_PAGE;
        w.mark_every = 250;
        world_open(&w, 16ull * KV_SLAB);
        text_of(1, ids, CONTEXT);
        struct kv_prefix_hit hit;
        struct kv_prefix_plan plan = {.must = {299, 210}, .may = may, .may_count = 3};
        lease_planned(&w, &w.m[0], "", ids, 300, plan, &hit);
        memcpy(w.m[0].ids, ids, sizeof ids);
        rows_to(&w, &w.m[0], 431, step);
        end(&w, &w.m[0], NULL);
        check_all(&w);
        static const uint32_t at[] = {50, 111, 192, 210, 250, 299, 431};
        for (int i = 0; i < 7; i++) {
            text_of(2, other, CONTEXT);
            memcpy(other, ids, at[i] * sizeof *ids);
            hit = lease(&w, &w.m[1], "", other, 500);
            assert_int_equal(hit.matched, at[i]);
            assert_int_equal(hit.positions, at[i]);
            assert_int_equal(hit.miss, i == 6 ? KV_MISS_END : KV_MISS_DIVERGED);
            rows_to(&w, &w.m[1], at[i] + 9, step);
            check_all(&w);
            kv_seq_free(w.kv, w.m[1].s);
            w.m[1].s = NULL;
        }
        text_of(2, other, CONTEXT);
        memcpy(other, ids, 420 * sizeof *ids); /* in the block of the end: its rows are cut off */
        hit = lease(&w, &w.m[1], "", other, 500);
        assert_int_equal(hit.positions, 420);
        rows_to(&w, &w.m[1], 440, step);
        check_all(&w);
        world_close(&w);
    }
}

/* A long text keeps of its window layers what two windows, its marks and the places every so often take. */
static void window_memory_is_bounded(void **state)
{
    (void)state;
    static struct world w;
    struct kv_stats st;
    uint32_t ids[CONTEXT];
    w = (struct world){.slack = 2 * KV_PAGE, .layer_count = 1, .mark_every = 100000};
    w.layers[0] = layer_window(8, 256, 64);
    world_open(&w, 16ull * KV_SLAB);
    text_of(1, ids, CONTEXT);
    struct kv_prefix_hit hit = lease(&w, &w.m[0], "", ids, 10);
    assert_int_equal(hit.miss, KV_MISS_EMPTY);
    memcpy(w.m[0].ids, ids, sizeof ids);
    uint64_t page = 8ull * 2 * 256 * 2 * KV_PAGE, most = 0;
    for (uint32_t at = 30; at <= CONTEXT; at += 10) {
        rows_to(&w, &w.m[0], at, 10);
        kv_stats(w.kv, &st);
        uint64_t used = st.total_bytes - st.free_bytes - st.open_bytes;
        most = used > most ? used : most;
    }
    /* live: window + slack, and the pages it begins and ends in; spare behind it: a window and two pages; the mark of the prompt */
    assert_true(most <= page * ((64 + 64) / KV_PAGE + 2 + 64 / KV_PAGE + 3 + 1));
    end(&w, &w.m[0], NULL);
    check_all(&w);
    world_close(&w);
}

/* ---- pressure ---- */

static void sessions_go_last_and_the_oldest_first(void **state)
{
    (void)state;
    static struct world w;
    uint32_t ids[6][200];
    struct hash128 session = {1, 2};
    world_shape(&w, 1);
    w.layer_count = 1;
    world_open(&w, 60ull * KV_SLAB);
    for (uint32_t t = 0; t < 6; t++) {
        text_of(t, ids[t], 200);
        store(&w, "", ids[t], 200, t == 1 ? &session : NULL);
    }
    struct kv_prefix_hit hit = lease(&w, &w.m[0], "", ids[0], 200); /* used again */
    assert_int_equal(hit.positions, 199);
    kv_seq_free(w.kv, w.m[0].s);
    w.m[0].s = NULL;
    static const uint32_t order[] = {2, 3, 4, 5, 0, 1};
    for (uint32_t i = 0; i < 6; i++) {
        for (uint32_t t = i; t < 6; t++) { /* a lookup would count as use: ask the count of nodes */
            struct kv_prefix_stats st;
            kv_prefix_stats(w.kv, &st);
            assert_int_equal(st.nodes, (6 - i) * 7);
        }
        for (int k = 0; k < 7; k++) {
            assert_true(kv_prefix_evict(w.kv));
        }
        check_all(&w);
    }
    assert_false(kv_prefix_evict(w.kv));
    for (uint32_t gone = 1; gone <= 6; gone++) { /* once more, now looking which are left */
        for (uint32_t t = 0; t < 6; t++) {
            store(&w, "", ids[t], 200, t == 1 ? &session : NULL);
        }
        lease(&w, &w.m[0], "", ids[0], 200);
        kv_seq_free(w.kv, w.m[0].s);
        w.m[0].s = NULL;
        for (uint32_t k = 0; k < 7 * gone; k++) {
            assert_true(kv_prefix_evict(w.kv));
        }
        for (uint32_t i = 0; i < 6; i++) {
            hit = lease(&w, &w.m[0], "", ids[order[i]], 200);
            assert_int_equal(hit.positions, i < gone ? 0 : 199);
            assert_int_equal(hit.miss, i < gone ? KV_MISS_EVICTED : KV_MISS_NONE);
            kv_seq_free(w.kv, w.m[0].s);
            w.m[0].s = NULL;
        }
        kv_prefix_clear(w.kv);
    }
    world_close(&w);
}

static void live_pages_are_never_taken(void **state)
{
    (void)state;
    static struct world w;
    uint32_t ids[200];
    world_shape(&w, 0);
    world_open(&w, 40ull * KV_SLAB);
    text_of(1, ids, 200);
    store(&w, "", ids, 150, NULL);
    lease(&w, &w.m[0], "", ids, 200);
    rows_to(&w, &w.m[0], 180, 9);
    while (kv_prefix_evict(w.kv)) {
        check_all(&w);
    }
    struct kv_prefix_stats st;
    kv_prefix_stats(w.kv, &st);
    assert_int_equal(st.nodes, 180 / KV_PAGE); /* the path it is on */
    rows_to(&w, &w.m[0], 200, 9);
    check_all(&w);
    world_close(&w);
}

/* ---- kv_start ---- */

/* Early pages serve positions before the start, encoded ones those from it on; what is before it cannot be gone back to in place. */
static void early_and_late_pages_have_roots_of_their_own(void **state)
{
    (void)state;
    static struct world w;
    struct err err = {0};
    uint32_t ids[CONTEXT], other[CONTEXT];
    static const uint32_t starts[] = {33, 64, 100}, windows[] = {0, 20, 90};
    for (int i = 0; i < 9; i++) {
        uint32_t start = starts[i % 3];
        w = (struct world){.slack = 2 * KV_PAGE, .layer_count = 2, .start = start};
        w.layers[0] = layer_full(2, 64, KV_Q8);
        w.layers[1] = windows[i / 3] ? layer_window(2, 64, windows[i / 3]) : layer_full(1, 32, KV_F32);
        world_open(&w, 16ull * KV_SLAB);
        text_of(1, ids, CONTEXT);
        struct kv_prefix_hit hit = lease(&w, &w.m[0], "", ids, 300);
        assert_int_equal(hit.miss, KV_MISS_EMPTY);
        assert_int_equal(kv_extend(w.kv, w.m[0].s, start + 1, &err), ERR_ARGUMENT);
        rows_to(&w, &w.m[0], 300, 50);
        assert_int_equal(kv_rewind(w.kv, w.m[0].s, start - 1, &err), ERR_LIMIT);
        check_all(&w);
        for (int running = 1; running >= 0; running--) {
            for (uint32_t at = start - 1; at <= start + 1; at++) {
                text_of(2 + 1000u * (uint32_t)running + at, other, CONTEXT);
                memcpy(other, ids, at * sizeof *ids);
                hit = lease(&w, &w.m[1], "", other, 300);
                assert_int_equal(hit.matched, at);
                assert_int_equal(hit.positions, windows[i / 3] && at >= start ? hit.positions : at);
                rows_to(&w, &w.m[1], 300, 64);
                check_all(&w);
                kv_seq_free(w.kv, w.m[1].s);
                w.m[1].s = NULL;
            }
            if (running) {
                end(&w, &w.m[0], NULL);
            }
        }
        hit = lease(&w, &w.m[0], "", ids, 300); /* a retry */
        assert_int_equal(hit.positions, 299);
        end(&w, &w.m[0], NULL);
        hit = lease(&w, &w.m[0], "", ids, start); /* its last row is before the start */
        assert_int_equal(hit.positions, start - 1);
        end(&w, &w.m[0], NULL);
        while (kv_prefix_evict(w.kv)) {
            check_all(&w);
        }
        hit = lease(&w, &w.m[0], "", ids, 300);
        assert_int_equal(hit.positions, 0);
        assert_int_equal(kv_rewind(w.kv, w.m[0].s, 0, &err), 0);
        world_close(&w);
    }
}

/* ---- reasons ---- */

static void misses_say_why(void **state)
{
    (void)state;
    static struct world w;
    uint32_t ids[300], other[300];
    world_shape(&w, 1);
    w.layer_count = 1;
    world_open(&w, 30ull * KV_SLAB);
    text_of(1, ids, 300);
    memcpy(other, ids, sizeof ids);
    other[70] = 5000;
    struct kv_prefix_hit hit = lease(&w, &w.m[0], "", ids, 100);
    assert_int_equal(hit.miss, KV_MISS_EMPTY);
    rows_to(&w, &w.m[0], 100, 50);
    hit = lease(&w, &w.m[1], "", other, 100); /* while it runs */
    assert_int_equal(hit.positions, 70);
    assert_int_equal(hit.miss, KV_MISS_DIVERGED);
    assert_int_equal(hit.stored_id, ids[70]);
    end(&w, &w.m[0], NULL);
    end(&w, &w.m[1], NULL);
    hit = lease(&w, &w.m[0], "", other, 100);
    assert_int_equal(hit.positions, 70);
    assert_int_equal(hit.miss, KV_MISS_DIVERGED);
    assert_int_equal(hit.stored_id, ids[70]);
    end(&w, &w.m[0], NULL);
    hit = lease(&w, &w.m[0], "", ids, 150);
    assert_int_equal(hit.positions, 100);
    assert_int_equal(hit.miss, KV_MISS_END);
    end(&w, &w.m[0], NULL);
    hit = lease(&w, &w.m[0], "tenant", ids, 150);
    assert_int_equal(hit.positions, 0);
    assert_int_equal(hit.miss, KV_MISS_KEY);
    end(&w, &w.m[0], NULL);
    hit = lease(&w, &w.m[0], "", other + 71, 100);
    assert_int_equal(hit.miss, KV_MISS_DIVERGED);
    assert_int_equal(hit.matched, 0);
    end(&w, &w.m[0], NULL);
    world_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_leases),
        cmocka_unit_test(windows_go_on_where_they_were),
        cmocka_unit_test(boundaries_stay_usable),
        cmocka_unit_test(recurrent_layers_go_on_from_marks),
        cmocka_unit_test(window_memory_is_bounded),
        cmocka_unit_test(sessions_go_last_and_the_oldest_first),
        cmocka_unit_test(live_pages_are_never_taken),
        cmocka_unit_test(early_and_late_pages_have_roots_of_their_own),
        cmocka_unit_test(misses_say_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
