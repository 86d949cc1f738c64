/* tests/unit/kv_world.h - sequence state on a device that runs everything at once, with plain mirrors of what sequences hold.  Every
 * stored position holds a value that is a hash of the ids up to it, so a wrong page, a missed copy or a stale pointer is a wrong
 * value. */
#ifndef RH_TESTS_KV_WORLD_H
#define RH_TESTS_KV_WORLD_H

#include "base/hash.h"
#include "base/mem.h"
#include "kv/kv.h"
#include "kv/prefix.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { SEQS = 12, CONTEXT = 700, ROWS = 96, SHAPES = 6, EARLY_MARK = 77 }; /* early pages hold values so much higher */

/* ---- a device that runs everything at once ---- */

struct device {
    struct device_head head;
    int64_t fail_after; /* ops; negative: never */
    int64_t buffers;
};

static inline int op_step(struct device *d)
{
    if (d->fail_after == 0) {
        d->fail_after = -1;
        return ERR_DEVICE;
    }
    d->fail_after -= d->fail_after > 0;
    return 0;
}

static inline int fake_copy_in(struct device *d, const struct op_copy_in *op)
{
    int rc = op_step(d);
    if (rc == 0) {
        memcpy(op->dst, op->src, op->size_bytes);
    }
    return rc;
}

static inline int fake_copy(struct device *d, const struct op_copy *op)
{
    int rc = op_step(d);
    if (rc == 0) {
        memcpy(op->dst, op->src, op->size_bytes);
    }
    return rc;
}

/* Encoding takes the mark off. */
static inline int fake_kv_convert(struct device *d, const struct op_kv_convert *op)
{
    int rc = op_step(d);
    for (uint32_t i = 0; rc == 0 && i < op->page_count; i++) {
        const uint64_t *from = (const uint64_t *)(const void *)(op->from->pages[op->from_pages[i]] + op->from->offset);
        uint64_t *to = (uint64_t *)(void *)(op->to->pages[op->to_pages[i]] + op->to->offset);
        for (uint32_t p = 0; p < (i + 1 < op->page_count ? KV_PAGE : op->positions_last); p++) {
            to[p] = from[p] - EARLY_MARK;
        }
    }
    return rc;
}

static inline int fake_buffer_new(struct device *d, size_t n, void **out, struct err *err)
{
    *out = mem_try_zero(n, 1); /* what nobody touches costs nothing */
    if (*out == NULL) {
        return err_nomem(err, "buffer", n);
    }
    d->buffers++;
    return 0;
}

static inline void fake_buffer_free(struct device *d, void *p, size_t n)
{
    (void)n;
    d->buffers--;
    mem_free(p);
}

static inline int fake_event_record(struct device *d, uint64_t *out)
{
    (void)d;
    *out = 1;
    return 0;
}

static inline int fake_event_wait(struct device *d, uint64_t event, struct err *err)
{
    (void)d, (void)event, (void)err;
    return 0;
}

static inline int fake_buffer_read(struct device *d, void *dst, const void *src, size_t n, struct err *err)
{
    (void)d, (void)err;
    memcpy(dst, src, n);
    return 0;
}

static const struct backend fake = {.name = "fake", .buffer_new = fake_buffer_new, .buffer_free = fake_buffer_free,
                                    .buffer_read = fake_buffer_read,
                                    .copy_in = fake_copy_in, .copy = fake_copy, .kv_convert = fake_kv_convert, .event_record = fake_event_record,
                                    .event_wait = fake_event_wait};

/* ---- the model ---- */

static uint64_t rng_state;

static inline uint32_t rng(uint32_t below)
{
    rng_state = rng_state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(rng_state >> 33) % below;
}

struct mirror {
    struct kv_seq *s;
    uint32_t ids[CONTEXT];
    uint32_t covered, highest; /* highest: since the last rewind */
    uint32_t leased;           /* it began there, and may not be able to go back further */
    bool passed;               /* a block may be gone that a shorter step would have kept: rewound, or a commit at an anchor */
};

struct world {
    struct device d;
    struct kv *kv;
    struct kv_layer_spec layers[8];
    uint32_t layer_count;
    uint32_t slack, mark_every, start;
    bool recurrent;
    struct mirror m[SEQS];
};

static inline uint64_t value_of(const uint32_t *ids, uint32_t position, uint32_t layer)
{
    return hash_xxh3(ids, (position + 1) * sizeof *ids).lo + layer;
}

/* Where `position` keeps its value; with `anchor` the place of the state a block starts with.  NULL: the block is not kept. */
static inline uint64_t *slot_of(const struct world *w, const struct kv_seq *s, uint32_t layer, uint32_t position, bool anchor)
{
    uint32_t group = kv_layer_group(w->kv, layer, kv_seq_early(s)), table[CONTEXT / 8 + 2];
    bool recurrent = w->layers[layer].policy == KV_RECURRENT;
    const struct kv_layer *v = kv_layer_view(w->kv, layer, kv_seq_early(s));
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

static inline void write_rows(struct world *w, const struct kv_seq *s, const uint32_t *ids, uint32_t from, uint32_t to)
{
    struct err err = {0};
    if (kv_publish(w->kv, &err) != 0) { /* the device refused it once */
        assert_int_equal(kv_publish(w->kv, &err), 0);
    }
    for (uint32_t l = 0; l < w->layer_count; l++) {
        uint32_t of = w->layers[l].policy == KV_RECURRENT ? w->layers[l].state.anchor : 0;
        for (uint32_t p = from; p < to && w->layers[l].shares == 0; p++) {
            uint64_t *slot = slot_of(w, s, l, p, false);
            assert_true(slot != NULL || of != 0);
            if (slot != NULL) {
                *slot = value_of(ids, p, l) + (of == 0 && kv_seq_early(s) ? EARLY_MARK : 0);
            }
            if (of != 0 && (p + 1) % of == 0 && (slot = slot_of(w, s, l, p + 1, true)) != NULL) {
                *slot = value_of(ids, p, l + 1000);
            }
        }
    }
}

/* The block of the next row, and that of the last when it is another, with the state they start from. */
static inline void check_blocks(const struct world *w, const struct mirror *m, uint32_t layer)
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

static inline void check_rows(const struct world *w, const struct mirror *m)
{
    bool early = kv_seq_early(m->s);
    uint32_t must = m->highest > w->slack ? m->highest - w->slack : 0, last = m->covered ? m->covered - 1 : 0;
    must = !early && must < w->start ? w->start : must;
    assert_int_equal(early, m->covered < w->start);
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
            if (got != value_of(m->ids, p, w->layers[l].shares ? w->layers[l].shares - 1 : l) + (early ? EARLY_MARK : 0)) {
                fail_msg("layer %u position %u of %u: wrong value", l, p, m->covered);
            }
        }
    }
    assert_true(kv_seq_oldest(m->s) <= (must > m->leased ? must : m->leased) || m->passed);
}

static inline void check_all(const struct world *w)
{
    struct err err = {0};
    if (kv_check(w->kv, &err) != 0) {
        fail_msg("%s", err.text);
    }
    struct kv_stats st;
    kv_stats(w->kv, &st);
    assert_int_equal(st.live_bytes + st.cached_bytes + st.free_bytes + st.open_bytes, st.total_bytes);
    for (int i = 0; i < SEQS; i++) {
        if (w->m[i].s != NULL) {
            check_rows(w, &w->m[i]);
        }
    }
}

static inline void world_open(struct world *w, uint64_t budget)
{
    struct err err = {0};
    w->d = (struct device){.head = {&fake}, .fail_after = -1};
    struct kv_config cfg = {.device = &w->d, .layers = w->layers, .layer_count = w->layer_count, .rewind_slack = w->slack,
                            .budget_bytes = budget, .context_max = CONTEXT, .rows_max = ROWS, .mark_every = w->mark_every, .start = w->start};
    if (kv_open(&cfg, &w->kv, &err) != 0) {
        fail_msg("%s", err.text);
    }
}

static inline void world_close(struct world *w)
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

static inline struct kv_layer_spec layer_full(uint32_t heads, uint32_t d, enum kv_format f)
{
    return (struct kv_layer_spec){.policy = KV_FULL, .n_kv_heads = heads, .d_k = d, .d_v = d, .k_format = f, .v_format = f};
}

static inline struct kv_layer_spec layer_latent(uint32_t d_k, uint32_t d_v, enum kv_format f)
{
    return (struct kv_layer_spec){.policy = KV_FULL, .n_kv_heads = 1, .d_k = d_k, .d_v = d_v, .k_format = f, .v_format = f, .latent = 1};
}

static inline struct kv_layer_spec layer_window(uint32_t heads, uint32_t d, uint32_t window)
{
    return (struct kv_layer_spec){.policy = KV_WINDOW, .window = window, .n_kv_heads = heads, .d_k = d, .d_v = d,
                                  .k_format = KV_F16, .v_format = KV_F16};
}

static inline struct kv_layer_spec layer_recurrent(uint32_t anchor, uint32_t heads, uint32_t values, uint32_t d)
{
    return (struct kv_layer_spec){.policy = KV_RECURRENT,
                                  .state = {.anchor = anchor, .heads = heads, .channels = values ? (2 + values) * d : d, .taps = 4,
                                            .values = values, .d_k = values ? d : 0, .d_v = values ? d : 0}};
}

static inline void world_shape(struct world *w, int shape)
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
    } else if (shape == 5) { /* latent layers, alone in their group or beside others */
        struct kv_layer_spec l[] = {layer_latent(576, 512, KV_F16), layer_latent(576, 512, KV_Q8), layer_latent(96, 64, KV_F32),
                                    layer_window(1, 64, 40), layer_latent(96, 64, KV_F32)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 5;
        w->layers[4].shares = 3;
    } else { /* windows shorter and longer than pages, a window of 1 */
        struct kv_layer_spec l[] = {layer_window(1, 32, 1), layer_window(4, 128, 100), layer_full(16, 128, KV_F32),
                                    layer_window(1, 32, 1)};
        memcpy(w->layers, l, sizeof l);
        w->layer_count = 4;
        w->slack = 0;
    }
}

#endif
