/* kv: random extend, commit, rewind, fork and free against a plain model, with kv_check after each.  Every stored position
 * holds a value that is a hash of the ids up to it, so a wrong page, a missed copy or a stale pointer is a wrong value. */
#include "base/hash.h"
#include "base/mem.h"
#include "kv/kv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SEQS = 12, CONTEXT = 700, ROWS = 96, SHAPES = 5 };

/* ---- a device that runs everything at once ---- */

struct device {
    struct device_head head;
    int64_t fail_after; /* ops; negative: never */
    int64_t buffers;
};

static int op_step(struct device *d)
{
    if (d->fail_after == 0) {
        d->fail_after = -1;
        return ERR_DEVICE;
    }
    d->fail_after -= d->fail_after > 0;
    return 0;
}

static int fake_copy_in(struct device *d, const struct op_copy_in *op)
{
    int rc = op_step(d);
    if (rc == 0) {
        memcpy(op->dst, op->src, op->size_bytes);
    }
    return rc;
}

static int fake_copy(struct device *d, const struct op_copy *op)
{
    int rc = op_step(d);
    if (rc == 0) {
        memcpy(op->dst, op->src, op->size_bytes);
    }
    return rc;
}

static int fake_buffer_new(struct device *d, size_t n, void **out, struct err *err)
{
    *out = mem_try_aligned(64, (n + 63) / 64 * 64);
    if (*out == NULL) {
        return err_nomem(err, "buffer", n);
    }
    memset(*out, 0, n);
    d->buffers++;
    return 0;
}

static void fake_buffer_free(struct device *d, void *p, size_t n)
{
    (void)n;
    d->buffers--;
    mem_free(p);
}

static int fake_event_record(struct device *d, uint64_t *out)
{
    (void)d;
    *out = 1;
    return 0;
}

static int fake_event_wait(struct device *d, uint64_t event, struct err *err)
{
    (void)d, (void)event, (void)err;
    return 0;
}

static const struct backend fake = {.name = "fake", .buffer_new = fake_buffer_new, .buffer_free = fake_buffer_free,
                                    .copy_in = fake_copy_in, .copy = fake_copy, .event_record = fake_event_record,
                                    .event_wait = fake_event_wait};

/* ---- the model ---- */

static uint64_t rng_state;

static uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng_state >> 33) % below;
}

struct mirror {
    struct kv_seq *s;
    uint32_t ids[CONTEXT];
    uint32_t covered, highest; /* highest: since the last rewind */
    bool passed;               /* a block may be gone that a shorter step would have kept: rewound, or a commit at an anchor */
};

struct world {
    struct device d;
    struct kv *kv;
    struct kv_layer_spec layers[8];
    uint32_t layer_count;
    uint32_t slack;
    bool recurrent;
    struct mirror m[SEQS];
};

static uint64_t value_of(const uint32_t *ids, uint32_t position, uint32_t layer)
{
    return hash_xxh3(ids, (position + 1) * sizeof *ids).lo + layer;
}

/* Where `position` keeps its value; with `anchor` the place of the state a block starts with.  NULL: the block is not kept. */
static uint64_t *slot_of(const struct world *w, const struct kv_seq *s, uint32_t layer, uint32_t position, bool anchor)
{
    uint32_t group = kv_layer_group(w->kv, layer), table[CONTEXT / 8 + 2];
    bool recurrent = w->layers[layer].policy == KV_RECURRENT;
    const struct kv_layer *v = kv_layer_view(w->kv, layer);
    uint32_t of = recurrent ? w->layers[layer].state.anchor : KV_PAGE;
    kv_table_copy(s, group, table);
    assert_true(position / of < kv_table_len(s, group));
    uint32_t page = table[position / of];
    if (recurrent) {
        const struct state_layer *st = kv_state_view(w->kv, layer);
        const struct state_part *part = &st->parts[layer % st->shape.heads];
        struct state_layout lay;
        state_layout(&st->shape, &lay);
        if (page == 0) {
            return NULL;
        }
        uint64_t *at = (uint64_t *)(void *)(part->pages[page] + part->offset);
        return anchor ? at : at + lay.inputs / 2 + position % of;
    }
    assert_true(page != 0);
    assert_non_null(v->pages[page]);
    return (uint64_t *)(void *)(v->pages[page] + v->offset) + position % KV_PAGE;
}

static void write_rows(struct world *w, const struct kv_seq *s, const uint32_t *ids, uint32_t from, uint32_t to)
{
    for (uint32_t l = 0; l < w->layer_count; l++) {
        uint32_t of = w->layers[l].policy == KV_RECURRENT ? w->layers[l].state.anchor : 0;
        for (uint32_t p = from; p < to && w->layers[l].shares == 0; p++) {
            uint64_t *slot = slot_of(w, s, l, p, false);
            assert_true(slot != NULL || of != 0);
            if (slot != NULL) {
                *slot = value_of(ids, p, l);
            }
            if (of != 0 && (p + 1) % of == 0 && (slot = slot_of(w, s, l, p + 1, true)) != NULL) {
                *slot = value_of(ids, p, l + 1000);
            }
        }
    }
}

/* The block of the next row, and that of the last when it is another, with the state they start from. */
static void check_blocks(const struct world *w, const struct mirror *m, uint32_t layer)
{
    uint32_t of = w->layers[layer].state.anchor, oldest = kv_seq_oldest(m->s);
    for (uint32_t p = oldest; p < m->covered; p++) {
        uint64_t *slot = slot_of(w, m->s, layer, p, false);
        if (slot == NULL || *slot != value_of(m->ids, p, layer)) {
            fail_msg("layer %u position %u of %u: wrong row of a block", layer, p, m->covered);
        }
    }
    for (uint32_t a = (oldest + of - 1) / of * of; a != 0 && a <= m->covered; a += of) {
        uint64_t *slot = slot_of(w, m->s, layer, a, true);
        if (slot == NULL || *slot != value_of(m->ids, a - 1, layer + 1000)) {
            fail_msg("layer %u anchor %u of %u: wrong state", layer, a, m->covered);
        }
    }
}

static void check_rows(const struct world *w, const struct mirror *m)
{
    uint32_t must = m->highest > w->slack ? m->highest - w->slack : 0, last = m->covered ? m->covered - 1 : 0;
    assert_int_equal(kv_seq_covered(m->s), m->covered);
    assert_true(m->covered == 0 || memcmp(kv_seq_ids(m->s), m->ids, m->covered * sizeof m->ids[0]) == 0);
    for (uint32_t l = 0; l < w->layer_count; l++) {
        uint32_t window = w->layers[l].policy == KV_WINDOW ? w->layers[l].window : CONTEXT;
        uint32_t oldest = kv_seq_oldest(m->s), from = oldest >= window ? oldest - window + 1 : 0;
        if (w->layers[l].policy == KV_RECURRENT) {
            uint32_t of = w->layers[l].state.anchor;
            must = must > last / of * of ? must : last / of * of;
            check_blocks(w, m, l);
            continue;
        }
        for (uint32_t p = from; p < m->covered; p += 1 + rng(5)) {
            uint64_t got = *slot_of(w, m->s, l, p, false);
            if (got != value_of(m->ids, p, w->layers[l].shares ? w->layers[l].shares - 1 : l)) {
                fail_msg("layer %u position %u of %u: wrong value", l, p, m->covered);
            }
        }
    }
    assert_true(kv_seq_oldest(m->s) <= must || m->passed);
}

static void check_all(const struct world *w)
{
    struct err err = {0};
    if (kv_check(w->kv, &err) != 0) {
        fail_msg("%s", err.text);
    }
    struct kv_stats st;
    kv_stats(w->kv, &st);
    assert_int_equal(st.live_bytes + st.free_bytes, st.total_bytes);
    for (int i = 0; i < SEQS; i++) {
        if (w->m[i].s != NULL) {
            check_rows(w, &w->m[i]);
        }
    }
}

static void world_open(struct world *w, uint64_t budget)
{
    struct err err = {0};
    w->d = (struct device){.head = {&fake}, .fail_after = -1};
    struct kv_config cfg = {.device = &w->d, .layers = w->layers, .layer_count = w->layer_count, .rewind_slack = w->slack,
                            .budget_bytes = budget, .context_max = CONTEXT, .rows_max = ROWS};
    if (kv_open(&cfg, &w->kv, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static void world_close(struct world *w)
{
    for (int i = 0; i < SEQS; i++) {
        kv_seq_free(w->kv, w->m[i].s);
        w->m[i] = (struct mirror){0};
    }
    struct kv_stats st;
    kv_stats(w->kv, &st);
    assert_int_equal(st.live_bytes, 0);
    kv_close(w->kv);
    assert_int_equal(w->d.buffers, 0);
}

/* Run rows: extend, write, commit some of them, sometimes rewind what was refused. */
static void act_run(struct world *w, struct mirror *m)
{
    struct err err = {0};
    uint32_t n = 1 + rng(rng(4) == 0 ? ROWS : 6), ids[ROWS];
    int rc = kv_extend(w->kv, m->s, n, &err);
    if (rc != 0) {
        assert_true(rc == ERR_KV_FULL || (rc == ERR_LIMIT && m->covered + n > CONTEXT) || rc == ERR_DEVICE || rc == ERR_NOMEM);
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = rng(3);
        m->ids[m->covered + i] = ids[i];
    }
    write_rows(w, m->s, m->ids, m->covered, m->covered + n);
    uint32_t keep = rng(3) == 0 ? rng(n + 1) : n, slack = w->slack ? w->slack : 1;
    rc = kv_commit(w->kv, m->s, ids, keep, &err);
    if (rc == ERR_LIMIT && w->recurrent && n - keep > slack) { /* too far back in a long step */
        assert_int_equal(kv_rewind(w->kv, m->s, m->covered, &err), 0);
        return;
    }
    assert_int_equal(rc, 0);
    m->covered += keep;
    m->passed = w->recurrent && ((m->passed && keep == 0) || keep < n);
    m->highest = m->covered > m->highest ? m->covered : m->highest;
    if (keep < n && rng(2) == 0) {
        assert_int_equal(kv_rewind(w->kv, m->s, m->covered, &err), 0);
    }
}

static void act_rewind(struct world *w, struct mirror *m)
{
    struct err err = {0};
    uint32_t to = rng(m->covered + 1), oldest = kv_seq_oldest(m->s);
    int rc = kv_rewind(w->kv, m->s, to, &err);
    assert_int_equal(rc, to != 0 && to < oldest ? ERR_LIMIT : 0);
    if (rc == 0) {
        m->covered = to;
        m->highest = to == 0 ? 0 : m->highest;
        m->passed = w->recurrent;
    }
}

static void act_fork(struct world *w, struct mirror *m, struct mirror *to)
{
    struct err err = {0};
    uint32_t at = rng(3) == 0 ? m->covered : rng(m->covered + 1);
    int rc = kv_seq_fork(w->kv, m->s, at, &to->s, &err);
    if (rc != 0) {
        assert_true((rc == ERR_LIMIT && at < kv_seq_oldest(m->s)) || rc == ERR_NOMEM);
        assert_null(to->s);
        return;
    }
    memcpy(to->ids, m->ids, at * sizeof m->ids[0]);
    to->covered = at;
    to->highest = at == 0 ? 0 : m->highest;
    to->passed = w->recurrent;
}

static void act_any(struct world *w)
{
    struct err err = {0};
    struct mirror *m = &w->m[rng(SEQS)], *to = &w->m[rng(SEQS)];
    uint32_t what = rng(20);
    if (m->s == NULL) {
        if (kv_seq_new(w->kv, &m->s, &err) != 0) {
            assert_null(m->s);
        }
        m->covered = m->highest = 0;
        m->passed = false;
    } else if (what < 12) {
        act_run(w, m);
    } else if (what < 15) {
        act_rewind(w, m);
    } else if (what < 18 && to->s == NULL) {
        act_fork(w, m, to);
    } else if (what == 19) {
        kv_seq_free(w->kv, m->s);
        *m = (struct mirror){0};
    }
}

static struct kv_layer_spec layer_full(uint32_t heads, uint32_t d, enum kv_format f)
{
    return (struct kv_layer_spec){.policy = KV_FULL, .n_kv_heads = heads, .d_k = d, .d_v = d, .k_format = f, .v_format = f};
}

static struct kv_layer_spec layer_window(uint32_t heads, uint32_t d, uint32_t window)
{
    return (struct kv_layer_spec){.policy = KV_WINDOW, .window = window, .n_kv_heads = heads, .d_k = d, .d_v = d,
                                  .k_format = KV_F16, .v_format = KV_F16};
}

static struct kv_layer_spec layer_recurrent(uint32_t anchor, uint32_t heads, uint32_t values, uint32_t d)
{
    return (struct kv_layer_spec){.policy = KV_RECURRENT,
                                  .state = {.anchor = anchor, .heads = heads, .channels = values ? (2 + values) * d : d, .taps = 4,
                                            .values = values, .d_k = values ? d : 0, .d_v = values ? d : 0}};
}

static void world_shape(struct world *w, int shape)
{
    *w = (struct world){.slack = 5};
    if (shape == 0) { /* small pages, two policies */
        struct kv_layer_spec l[] = {layer_full(2, 64, KV_F16), layer_window(2, 64, 16), layer_window(2, 64, 16),
                                    layer_full(1, 32, KV_Q8)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 4;
    } else if (shape == 1) { /* pages over several slabs */
        for (uint32_t i = 0; i < 7; i++) {
            w->layers[i] = layer_full(8, 256, KV_F32);
        }
        w->layer_count = 7;
    } else if (shape == 3) { /* recurrent layers beside full ones, and one that reads another's pages */
        struct kv_layer_spec l[] = {layer_recurrent(64, 3, 2, 32), layer_full(2, 64, KV_F16), layer_recurrent(64, 2, 1, 16),
                                    layer_recurrent(8, 1, 0, 48), layer_full(2, 64, KV_F16)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 5;
        w->recurrent = true;
        w->layers[4].shares = 2;
    } else if (shape == 4) { /* recurrent layers alone, several slabs a block, blocks shorter than the slack */
        struct kv_layer_spec l[] = {layer_recurrent(64, 5, 2, 128), layer_recurrent(16, 2, 1, 64)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 2;
        w->recurrent = true;
        w->slack = 40;
    } else { /* windows shorter and longer than pages, a window of 1 */
        struct kv_layer_spec l[] = {layer_window(1, 32, 1), layer_window(4, 128, 100), layer_full(16, 128, KV_F32),
                                    layer_window(1, 32, 1)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 4;
        w->slack = 0;
    }
}

static void test_random(void **state)
{
    (void)state;
    static struct world w;
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int round = 0; round < 6; round++) {
            world_shape(&w, shape);
            rng_state = (uint64_t)(shape * 100 + round + 1);
            world_open(&w, (shape == 1 || shape == 4 ? 40ull : 8ull + 4u * (unsigned)round) * KV_SLAB);
            for (int i = 0; i < 1500; i++) {
                if (round >= 3 && rng(10) == 0) {
                    w.d.fail_after = rng(4);
                }
                if (round >= 4 && rng(10) == 0) {
                    mem_fault_set(rng(3));
                }
                act_any(&w);
                w.d.fail_after = -1;
                mem_fault_set(-1);
                if (i % 7 == 0) {
                    check_all(&w);
                }
            }
            check_all(&w);
            world_close(&w);
        }
    }
}

/* A budget of kv_bytes_for(n) is enough for n positions in steps of any size up to rows_max. */
static void test_budget(void **state)
{
    (void)state;
    static struct world w;
    static const uint32_t lengths[] = {1, 31, 32, 33, 64, 200, 700}, steps[] = {1, 7, 32, 96};
    uint32_t ids[ROWS] = {0};
    for (int shape = 0; shape < SHAPES; shape++) {
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            for (size_t k = 0; k < sizeof steps / sizeof steps[0]; k++) {
                struct err err = {0};
                world_shape(&w, shape);
                struct kv_config cfg = {.layers = w.layers, .layer_count = w.layer_count, .rewind_slack = w.slack,
                                        .context_max = CONTEXT, .rows_max = ROWS};
                uint64_t budget = kv_plan_bytes(&cfg, lengths[i]);
                world_open(&w, budget);
                assert_int_equal(kv_bytes_for(w.kv, lengths[i]), budget);
                assert_int_equal(kv_seq_new(w.kv, &w.m[0].s, &err), 0);
                for (uint32_t at = 0; at < lengths[i];) {
                    uint32_t n = lengths[i] - at < steps[k] ? lengths[i] - at : steps[k];
                    if (kv_extend(w.kv, w.m[0].s, n, &err) != 0) {
                        fail_msg("shape %d length %u step %u at %u: %s", shape, lengths[i], steps[k], at, err.text);
                    }
                    assert_int_equal(kv_commit(w.kv, w.m[0].s, ids, n, &err), 0);
                    at += n;
                }
                world_close(&w);
            }
        }
    }
}

/* Two forks write on: neither sees the other's rows, and the shared part is stored once. */
static void test_fork_shares(void **state)
{
    (void)state;
    static struct world w;
    struct err err = {0};
    struct kv_stats before, after;
    world_shape(&w, 1);
    world_open(&w, 64ull * KV_SLAB);
    struct mirror *a = &w.m[0], *b = &w.m[1];
    assert_int_equal(kv_seq_new(w.kv, &a->s, &err), 0);
    assert_int_equal(kv_extend(w.kv, a->s, 90, &err), 0);
    for (uint32_t i = 0; i < 90; i++) {
        a->ids[i] = i;
    }
    write_rows(&w, a->s, a->ids, 0, 90);
    assert_int_equal(kv_commit(w.kv, a->s, a->ids, 90, &err), 0);
    a->covered = a->highest = 90;
    kv_stats(w.kv, &before);
    act_fork(&w, a, b);
    while (b->s == NULL || b->covered != 90) {
        kv_seq_free(w.kv, b->s);
        *b = (struct mirror){0};
        act_fork(&w, a, b);
    }
    kv_stats(w.kv, &after);
    assert_int_equal(before.live_bytes, after.live_bytes);
    for (int i = 0; i < 40; i++) {
        act_run(&w, i % 2 ? a : b);
        check_all(&w);
    }
    world_close(&w);
}

static void test_refusals(void **state)
{
    (void)state;
    static struct world w;
    struct err err = {0};
    struct kv *kv = NULL;
    world_shape(&w, 0);
    world_open(&w, 8ull * KV_SLAB);
    struct kv_seq *s = NULL;
    uint32_t ids[4] = {0};
    assert_int_equal(kv_seq_new(w.kv, &s, &err), 0);
    assert_int_equal(kv_extend(w.kv, s, CONTEXT + 1, &err), ERR_LIMIT);
    assert_int_equal(kv_extend(w.kv, s, UINT32_MAX, NULL), ERR_LIMIT);
    assert_int_equal(kv_commit(w.kv, s, ids, 1, NULL), ERR_ARGUMENT);
    assert_int_equal(kv_rewind(w.kv, s, 1, NULL), ERR_ARGUMENT);
    struct kv_seq *t = NULL;
    assert_int_equal(kv_seq_fork(w.kv, s, 1, &t, NULL), ERR_ARGUMENT);
    kv_seq_free(w.kv, s);
    struct kv_config cfg = {.device = &w.d, .layers = w.layers, .layer_count = w.layer_count, .context_max = CONTEXT};
    cfg.budget_bytes = KV_SLAB - 1;
    assert_int_equal(kv_open(&cfg, &kv, NULL), ERR_ARGUMENT);
    cfg.budget_bytes = KV_SLAB; /* chunks of more than one size: one slab is not enough */
    err = (struct err){0};
    assert_int_equal(kv_open(&cfg, &kv, &err), ERR_ARGUMENT);
    cfg.budget_bytes = 8ull * KV_SLAB;
    w.layers[0].d_k = 31, w.layers[0].k_format = KV_Q8;
    assert_int_equal(kv_open(&cfg, &kv, NULL), ERR_UNSUPPORTED);
    w.layers[0] = layer_full(256, 512, KV_F32);
    assert_int_equal(kv_open(&cfg, &kv, NULL), ERR_UNSUPPORTED);
    world_close(&w);
}

/* kv_open with each memory request failing once: an error, and nothing left behind. */
static void test_open_faults(void **state)
{
    (void)state;
    static struct world w;
    for (int shape = 0; shape < SHAPES; shape++) {
        for (int64_t n = 0;; n++) {
            struct err err = {0};
            struct kv *kv = NULL;
            world_shape(&w, shape);
            w.d = (struct device){.head = {&fake}, .fail_after = -1};
            struct kv_config cfg = {.device = &w.d,
                                    .layers = w.layers,
                                    .layer_count = w.layer_count,
                                    .budget_bytes = 40ull * KV_SLAB,
                                    .context_max = CONTEXT};
            mem_fault_set(n);
            int rc = kv_open(&cfg, &kv, &err);
            mem_fault_set(-1);
            if (rc == 0) {
                kv_close(kv);
                assert_int_equal(w.d.buffers, 0);
                break;
            }
            assert_int_equal(rc, ERR_NOMEM);
            assert_null(kv);
            assert_int_equal(w.d.buffers, 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random), cmocka_unit_test(test_budget),
                                       cmocka_unit_test(test_fork_shares), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_open_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
