/* kv: random extend, commit, rewind, fork and free against a plain model, with kv_check after each.  Every stored position
 * holds a value that is a hash of the ids up to it, so a wrong page, a missed copy or a stale pointer is a wrong value. */
#include "kv_world.h"

#include "tensor/kv_codec.h"

/* Run rows: extend, write, commit some of them, sometimes rewind what was refused. */
static void act_run(struct world *w, struct mirror *m)
{
    struct err err = {0};
    uint32_t n = 1 + rng(rng(4) == 0 ? ROWS : 6), ids[ROWS];
    n = kv_rows_before(m->s, m->covered, n);
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
    if (rc == ERR_DEVICE && kv_seq_early(m->s) && m->covered + keep == w->start) { /* it could not be encoded: of no use */
        kv_seq_free(w->kv, m->s);
        *m = (struct mirror){0};
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

/* Room for rows that are not enqueued after all: pages are as if it had never been taken. */
static void act_ahead(struct world *w, struct mirror *m)
{
    struct kv_stats before, after;
    uint32_t room = kv_seq_room(m->s);
    if (m->passed || kv_seq_early(m->s) || kv_seq_shared(w->kv, m->s)) {
        return;
    }
    kv_stats(w->kv, &before);
    if (kv_extend(w->kv, m->s, room - m->covered + 1 + rng(40), NULL) == 0) {
        kv_shrink(w->kv, m->s, room);
    }
    assert_int_equal(kv_seq_room(m->s), room);
    kv_stats(w->kv, &after);
    assert_memory_equal(&before, &after, sizeof before);
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
    } else if (what < 18) {
        act_ahead(w, m);
    } else if (what == 19) {
        kv_seq_free(w->kv, m->s);
        *m = (struct mirror){0};
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
            w.start = round % 2 ? 1 + rng(150) : 0;
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
                w.start = (uint32_t)(i + k) % 3 * 33; /* 0, 33, 66 */
                struct kv_config cfg = {.layers = w.layers, .layer_count = w.layer_count, .rewind_slack = w.slack,
                                        .context_max = CONTEXT, .rows_max = ROWS, .start = w.start};
                uint64_t budget = kv_plan_bytes(&cfg, lengths[i]);
                world_open(&w, budget);
                assert_int_equal(kv_bytes_for(w.kv, lengths[i]), budget);
                assert_int_equal(kv_seq_new(w.kv, &w.m[0].s, &err), 0);
                for (uint32_t at = 0; at < lengths[i];) {
                    uint32_t n = kv_rows_before(w.m[0].s, at, lengths[i] - at < steps[k] ? lengths[i] - at : steps[k]);
                    if (kv_extend(w.kv, w.m[0].s, n, &err) != 0) {
                        fail_msg("shape %d length %u step %u at %u: %s", shape, lengths[i], steps[k], at, err.text);
                    }
                    assert_int_equal(kv_publish(w.kv, &err), 0);
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

/* A latent layer takes the bytes of K alone, and what is read back as V is the beginning of K. */
static void test_latent_once(void **state)
{
    (void)state;
    enum { D_K = 96, D_V = 64 };
    static struct world w;
    struct err err = {0};
    struct kv_stats st;
    w = (struct world){.layers = {layer_latent(D_K, D_V, KV_A8G32)}, .layer_count = 1};
    world_open(&w, 4ull * KV_SLAB);
    kv_stats(w.kv, &st);
    uint32_t page_bytes = kv_format_k_bytes(KV_A8G32, D_K), ids[40] = {0};
    assert_in_range(st.bytes_per_position, page_bytes / KV_PAGE, page_bytes / KV_PAGE + page_bytes / KV_PAGE / 50 + 1);
    struct kv_seq **s = &w.m[0].s;
    assert_int_equal(kv_seq_new(w.kv, s, &err), 0);
    assert_int_equal(kv_extend(w.kv, *s, 40, &err), 0);
    assert_int_equal(kv_publish(w.kv, &err), 0);
    assert_int_equal(kv_commit(w.kv, *s, ids, 40, &err), 0);
    const struct kv_layer *l = kv_layer_view(w.kv, 0, false);
    assert_true(l->latent);
    assert_int_equal(l->head_bytes, page_bytes);
    uint32_t table[4];
    kv_table_copy(*s, 0, table);
    float x[D_K], k[KV_PAGE * D_K], v[KV_PAGE * D_V], back[D_K];
    unsigned char *plane = l->pages[table[1]] + l->offset;
    memset(plane, 0, page_bytes);
    for (int e = 0; e < D_K; e++) {
        x[e] = (float)(e * e % 37) - 11;
    }
    kv_store(plane, KV_A8G32, D_K, 5, true, x);
    kv_load(plane, KV_A8G32, D_K, 5, true, back);
    assert_int_equal(kv_read_page(w.kv, *s, 0, 0, 1, k, v, &err), 0);
    assert_memory_equal(k + 5 * D_K, back, sizeof back);
    assert_memory_equal(v + 5 * D_V, back, D_V * sizeof *back);
    struct kv_config cfg = {.layers = w.layers, .layer_count = 1, .context_max = CONTEXT, .rows_max = ROWS};
    assert_int_equal(kv_plan_bytes(&cfg, 33), KV_SLAB);
    w.layers[0].v_format = KV_A8G64;
    assert_true(kv_plan_bytes(&cfg, 33) == UINT64_MAX); /* one vector, one format */
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
                                    .budget_bytes = (shape == 1 || shape == 4 ? 60ull : 12ull) * KV_SLAB,
                                    .context_max = CONTEXT,
                                    .start = shape % 2 ? 100 : 0};
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
                                       cmocka_unit_test(test_fork_shares), cmocka_unit_test(test_latent_once), cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_open_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
