/* State of every format on the CPU device: forks share, copies are made before writing, rewinds forget; what a sequence holds at the end is,
 * bit for bit, what one that was never disturbed holds.  And the per-layer formats of a model. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "backend_cpu/backend_cpu.h"
#include "kv/kv.h"
#include "tensor/kv_codec.h"

enum { HEADS = 2, D = 64, LENGTH = 150, LAYERS = 2 };

struct rig {
    struct device *device;
    struct kv *kv;
    float *k, *v;      /* device, [LENGTH][HEADS * D] */
    uint32_t *tables;
};

static void must(int rc, const struct err *err)
{
    if (rc)
        fail_msg("%s", err->text);
}

static float value(uint32_t id, uint32_t layer, uint32_t e, bool key)
{
    uint32_t h = (id * 2654435761u ^ layer * 40503u ^ e * 2246822519u) + key;
    h = (h ^ h >> 15) * 2246822519u;
    return (float)(int32_t)(h ^ h >> 13) * 0x1p-31f;
}

/* Rows for ids at the sequence's end. */
static void write(struct rig *r, struct kv_seq *s, const uint32_t *ids, uint32_t n, bool commit)
{
    struct err err = {0};
    uint64_t event;
    must(kv_extend(r->kv, s, n, &err), &err);
    must(kv_publish(r->kv, &err), &err);
    for (uint32_t l = 0; l < LAYERS; l++) {
        for (uint32_t i = 0; i < n; i++)
            for (uint32_t e = 0; e < HEADS * D; e++) {
                r->k[i * HEADS * D + e] = value(ids[i], l, e, true);
                r->v[i * HEADS * D + e] = value(ids[i], l, e, false);
            }
        uint32_t group = kv_layer_group(r->kv, l, kv_seq_early(s));
        kv_table_copy(s, group, r->tables);
        struct kv_span span = {0, n, kv_seq_covered(s), 0};
        struct op_kv_write op = {.k = {r->k, n, HEADS * D, HEADS * D}, .v = {r->v, n, HEADS * D, HEADS * D}, .layer = kv_layer_view(r->kv, l, kv_seq_early(s)),
                                 .spans = &span, .span_count = 1, .tables = r->tables};
        must(op_kv_write(r->device, &op, &err), &err);
        assert_int_equal(backend_cpu.event_record(r->device, &event), 0);
        must(backend_cpu.event_wait(r->device, event, &err), &err);
    }
    if (commit)
        must(kv_commit(r->kv, s, ids, n, &err), &err);
}

static void rig_open(struct rig *r, const char *format, uint32_t start)
{
    struct err err = {0};
    struct kv_layer_spec layers[LAYERS] = {{.policy = KV_FULL, .n_kv_heads = HEADS, .d_k = D, .d_v = D},
                                           {.policy = KV_WINDOW, .window = 200, .n_kv_heads = HEADS, .d_k = D, .d_v = D}};
    struct kv_config cfg = {.layers = layers, .layer_count = LAYERS, .rewind_slack = 64, .budget_bytes = 64u << 20, .context_max = 512,
                            .start = start};
    must(backend_cpu.device_open(&(struct device_config){.n_threads = 2, .level = "ref"}, &r->device, &err), &err);
    for (int l = 0; l < LAYERS; l++)
        assert_int_equal(kv_formats_parse(format, strlen(format), &layers[l].k_format, &layers[l].v_format), 0);
    cfg.device = r->device;
    must(kv_open(&cfg, &r->kv, &err), &err);
    void *p;
    must(backend_cpu.buffer_new(r->device, LENGTH * HEADS * D * sizeof(float), &p, &err), &err);
    r->k = p;
    must(backend_cpu.buffer_new(r->device, LENGTH * HEADS * D * sizeof(float), &p, &err), &err);
    r->v = p;
    must(backend_cpu.buffer_new(r->device, 64 * sizeof(uint32_t), &p, &err), &err);
    r->tables = p;
}

static void rig_close(struct rig *r)
{
    kv_close(r->kv);
    backend_cpu.buffer_free(r->device, r->k, LENGTH * HEADS * D * sizeof(float));
    backend_cpu.buffer_free(r->device, r->v, LENGTH * HEADS * D * sizeof(float));
    backend_cpu.buffer_free(r->device, r->tables, 64 * sizeof(uint32_t));
    backend_cpu.device_close(r->device);
}

static void same(struct rig *r, const struct kv_seq *a, const struct kv_seq *b, uint32_t positions)
{
    struct err err = {0};
    static float x[2][KV_PAGE * D], y[2][KV_PAGE * D];
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t h = 0; h < HEADS; h++)
            for (uint32_t p = 0; p * KV_PAGE < positions; p++) {
                size_t n = positions - p * KV_PAGE < KV_PAGE ? positions - p * KV_PAGE : KV_PAGE;
                must(kv_read_page(r->kv, a, l, h, p, x[0], x[1], &err), &err);
                must(kv_read_page(r->kv, b, l, h, p, y[0], y[1], &err), &err);
                for (int i = 0; i < 2; i++)
                    assert_memory_equal(x[i], y[i], n * D * sizeof(float));
            }
}

static void check_format(const char *format)
{
    struct rig r = {0};
    struct err err = {0};
    struct kv_seq *plain, *a, *fork;
    uint32_t ids[LENGTH], other[LENGTH];
    print_message("%s\n", format);
    rig_open(&r, format, 0);
    for (uint32_t i = 0; i < LENGTH; i++)
        ids[i] = i, other[i] = 1000 + i;
    must(kv_seq_new(r.kv, &plain, &err), &err);
    write(&r, plain, ids, LENGTH, true);
    must(kv_seq_new(r.kv, &a, &err), &err);
    write(&r, a, ids, 70, true);
    must(kv_seq_fork(r.kv, a, 45, &fork, &err), &err); /* inside a page */
    write(&r, fork, other, 30, true);                  /* must not reach into a's page */
    same(&r, plain, a, 70);
    must(kv_rewind(r.kv, fork, 45, &err), &err);
    same(&r, plain, fork, 45);
    write(&r, fork, ids + 45, 50, true);
    write(&r, fork, other, 9, false); /* refused rows */
    must(kv_rewind(r.kv, fork, 95, &err), &err);
    write(&r, fork, ids + 95, 55, true);
    same(&r, plain, fork, LENGTH);
    kv_seq_free(r.kv, fork);
    write(&r, a, other, 20, true);
    must(kv_rewind(r.kv, a, 70, &err), &err);
    for (uint32_t i = 70; i < LENGTH; i++)
        write(&r, a, ids + i, 1, true);
    same(&r, plain, a, LENGTH);
    must(kv_check(r.kv, &err), &err);
    kv_seq_free(r.kv, a);
    kv_seq_free(r.kv, plain);
    rig_close(&r);
}

/* What the format holds of a vector that was f16 first. */
static void through_f16(enum kv_format f, bool key, float *x)
{
    static unsigned char plane[KV_PAGE * D * 4];
    kv_store(plane, KV_F16, D, 0, key, x);
    kv_load(plane, KV_F16, D, 0, key, x);
    kv_store(plane, f, D, 0, key, x);
    kv_load(plane, f, D, 0, key, x);
}

/* kv_start: rows before it hold what f16 of them encodes to, whatever spans they came in; rows from it on are encoded as they are. */
static void check_start(const char *format, uint32_t start)
{
    struct rig r = {0};
    struct err err = {0};
    struct kv_seq *a, *b;
    enum kv_format f[2];
    uint32_t ids[LENGTH];
    static float x[2][KV_PAGE * D], want[D];
    print_message("%s from %u on\n", format, start);
    rig_open(&r, format, start);
    assert_int_equal(kv_formats_parse(format, strlen(format), &f[0], &f[1]), 0);
    for (uint32_t i = 0; i < LENGTH; i++)
        ids[i] = i;
    must(kv_seq_new(r.kv, &a, &err), &err);
    must(kv_seq_new(r.kv, &b, &err), &err);
    write(&r, a, ids, start, true);
    write(&r, a, ids + start, LENGTH - start, true);
    for (uint32_t i = 0, n; i < LENGTH; i += n) {
        n = kv_rows_before(b, i, LENGTH - i < 17 ? LENGTH - i : 17);
        write(&r, b, ids + i, n, true);
    }
    same(&r, a, b, LENGTH);
    for (uint32_t l = 0; l < LAYERS; l++)
        for (uint32_t p = 0; p < LENGTH; p++) {
            must(kv_read_page(r.kv, a, l, 1, p / KV_PAGE, x[0], x[1], &err), &err);
            for (int key = 0; key < 2; key++) {
                for (uint32_t e = 0; e < D; e++)
                    want[e] = value(ids[p], l, D + e, key);
                if (p < start)
                    through_f16(f[!key], key, want);
                else {
                    static unsigned char plane[KV_PAGE * D * 4];
                    kv_store(plane, f[!key], D, 0, key, want);
                    kv_load(plane, f[!key], D, 0, key, want);
                }
                assert_memory_equal(want, x[!key] + (size_t)(p % KV_PAGE) * D, sizeof want);
            }
        }
    must(kv_check(r.kv, &err), &err);
    kv_seq_free(r.kv, a);
    kv_seq_free(r.kv, b);
    rig_close(&r);
}

static void test_start(void **state)
{
    (void)state;
    static const char *const formats[] = {"f16", "f32", "q8", "a8g64", "q4h", "tq3", "k8v4", "f32:a4g32"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        check_start(formats[i], 32 + 7 * (uint32_t)i);
}

static void test_formats(void **state)
{
    (void)state;
    static const char *const formats[] = {"f32", "f16", "bf16", "q8", "a8g32", "a8g64", "a4g32", "a4g64", "q4h", "tq4", "tq3",
                                          "k8v4", "k8v3", "k4v4", "q4h:f16", "f32:tq3"};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        check_format(formats[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats), cmocka_unit_test(test_start)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
