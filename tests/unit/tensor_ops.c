/* tensor/ops.c and kv_format.c: shapes are refused by name, compositions enqueue the ops they promise, formats have their geometry. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tensor/backend.h"
#include "tensor/kv_codec.h"

/* A backend that only writes down which ops it got. */
struct device {
    struct device_head head;
    char seen[256];
    int answer;
};

#define FAKE_OP(name)                                                            \
    static int fake_##name(struct device *d, const struct op_##name *op)         \
    {                                                                            \
        (void)op;                                                                \
        strcat(d->seen, #name " ");                                              \
        return d->answer;                                                        \
    }
BACKEND_OPS(FAKE_OP, FAKE_OP)

#define FIELD(name) .name = fake_##name,
#define NO_FIELD(name)
static const struct backend fused = {.name = "fused", BACKEND_OPS(FIELD, FIELD)};
static const struct backend plain = {.name = "plain", BACKEND_OPS(FIELD, NO_FIELD)};

static float memory[4096];
static uint32_t words[64];

static struct tensor tensor(uint32_t rows, uint32_t cols)
{
    return (struct tensor){memory, rows, cols, cols};
}

static struct tensor other(uint32_t rows, uint32_t cols)
{
    return (struct tensor){memory + 2048, rows, cols, cols};
}

static struct tensor third(uint32_t rows, uint32_t cols)
{
    return (struct tensor){memory + 3072, rows, cols, cols};
}

static struct weight_head weights[3] = {{DTYPE_F32, 8, 16, "up", 0}, {DTYPE_F32, 8, 16, "gate", 0}, {DTYPE_F32, 16, 8, "down", 0}};

static const struct weight *weight(int i)
{
    return (const struct weight *)(const void *)(weights + i);
}

static void test_compositions(void **state)
{
    (void)state;
    struct device d = {.head = {&plain}};
    struct err err = {0};
    struct op_norm_linear nl = {.x = tensor(2, 16), .norm_w = memory, .n = 2, .w = {weight(0), weight(1)}, .y = {other(2, 8), other(2, 8)},
                                .scratch = tensor(2, 16)};
    assert_int_equal(op_norm_linear(&d, &nl, &err), 0);
    assert_string_equal(d.seen, "norm linear linear ");
    struct op_norm_gated ng = {.x = tensor(2, 16), .norm_w = memory, .gate = weight(1), .up = weight(0), .y = other(2, 8),
                               .scratch = tensor(2, 16), .scratch_gate = tensor(2, 8), .scratch_up = other(2, 8)};
    d.seen[0] = 0;
    assert_int_equal(op_norm_gated(&d, &ng, &err), 0);
    assert_string_equal(d.seen, "norm linear linear gated ");
    unsigned char *page = (unsigned char *)memory;
    struct kv_layer layer = {.k_format = KV_F16, .v_format = KV_Q8, .n_kv_heads = 1, .d_k = 32, .d_v = 32, .pages = &page};
    layer.head_bytes = kv_format_k_bytes(KV_F16, 32) + kv_format_v_bytes(KV_Q8, 32);
    struct kv_span span = {0, 2, 0, 0};
    struct op_attn_prepare ap = {.q = tensor(2, 64), .k = tensor(2, 32), .v = tensor(2, 32), .n_heads = 2, .head_dim = 32, .q_norm = memory,
                                 .k_norm = memory, .table = tensor(2, 32), .layer = &layer, .spans = &span, .span_count = 1, .tables = words};
    d.seen[0] = 0;
    assert_int_equal(op_attn_prepare(&d, &ap, &err), 0);
    assert_string_equal(d.seen, "norm norm rope rope kv_write ");
    ap.q_norm = NULL, ap.table = (struct tensor){0};
    d.seen[0] = 0;
    assert_int_equal(op_attn_prepare(&d, &ap, &err), 0);
    assert_string_equal(d.seen, "norm kv_write ");
    struct weight_head stack = {DTYPE_F32, 8, 16, "experts", 4};
    const struct weight *experts = (const struct weight *)(const void *)&stack;
    struct op_expert_gated eg = {.x = tensor(2, 16), .y = other(4, 8), .gate = experts, .up = experts, .ids = words,
                                 .scratch_gate = other(4, 8), .scratch_up = other(4, 8)};
    d.seen[0] = 0;
    assert_int_equal(op_expert_gated(&d, &eg, &err), 0);
    assert_string_equal(d.seen, "expert_linear expert_linear gated ");
    struct op_expert_output eo = {.linear = {.w = experts, .x = tensor(4, 16), .y = other(4, 8), .ids = words},
                                  .sum = {.x = other(4, 8), .y = third(2, 8), .weights = memory}};
    d.seen[0] = 0;
    assert_int_equal(op_expert_output(&d, &eo, &err), 0);
    assert_string_equal(d.seen, "expert_linear expert_sum ");
    d.head.backend = &fused, d.seen[0] = 0;
    assert_int_equal(op_expert_gated(&d, &eg, &err) | op_expert_output(&d, &eo, &err), 0);
    assert_string_equal(d.seen, "expert_gated expert_output ");
    d.seen[0] = 0;
    assert_int_equal(op_norm_linear(&d, &nl, &err) | op_norm_gated(&d, &ng, &err) | op_attn_prepare(&d, &ap, &err), 0);
    assert_string_equal(d.seen, "norm_linear norm_gated attn_prepare ");
}

#define REFUSED(call, part)                                                        \
    do {                                                                            \
        struct err err = {0};                                                       \
        assert_int_equal(call, ERR_INTERNAL);                                       \
        if (!strstr(err.text, part))                                              \
            fail_msg("\"%s\" does not say \"%s\"", err.text, part);              \
        assert_string_equal(d.seen, "");                                            \
    } while (0)

static void test_shapes_refused(void **state)
{
    (void)state;
    struct device d = {.head = {&fused}};
    struct op_linear linear = {.w = weight(0), .x = tensor(2, 15), .y = other(2, 8), .alpha = 1};
    REFUSED(op_linear(&d, &linear, &err), "'up' is [8][16], expected [8][15]");
    linear.x = tensor(3, 16);
    REFUSED(op_linear(&d, &linear, &err), "y is [2][8], expected [3][8]");
    struct op_norm norm = {.x = tensor(2, 16), .y = tensor(2, 16), .w = memory, .dim = 5};
    REFUSED(op_norm(&d, &norm, &err), "16 columns in groups of 5");
    norm.dim = 4, norm.add = true;
    REFUSED(op_norm(&d, &norm, &err), "onto its own input");
    norm.x = other(2, 16), norm.centred = true;
    REFUSED(op_norm(&d, &norm, &err), "centred and added");
    norm.add = norm.centred = false, norm.x.stride = 3;
    REFUSED(op_norm(&d, &norm, &err), "stride 3");
    struct op_rope rope = {.x = tensor(2, 64), .n_heads = 2, .head_dim = 32, .table = tensor(2, 34)};
    REFUSED(op_rope(&d, &rope, &err), "34 columns for heads of 32");
    struct weight_head stack = {DTYPE_F32, 8, 16, "experts", 4};
    struct op_expert_linear expert = {.w = weight(0), .x = tensor(2, 16), .y = other(4, 8), .ids = words};
    REFUSED(op_expert_linear(&d, &expert, &err), "'up' is a stack of 0");
    expert.w = (const struct weight *)(const void *)&stack, expert.x = tensor(3, 16);
    REFUSED(op_expert_linear(&d, &expert, &err), "4 slots of 3 rows");
    linear.w = expert.w;
    linear.y = other(3, 8);
    REFUSED(op_linear(&d, &linear, &err), "'experts' is a stack of 4");
    struct op_route route = {.logits = tensor(1, 8), .top = 9, .ids = words, .weights = memory};
    REFUSED(op_route(&d, &route, &err), "9 of 8 experts");
    route.top = 5, route.groups = 4, route.group_top = 2, route.group_best = 2;
    REFUSED(op_route(&d, &route, &err), "2 of 4 groups");
    route.top = 2, route.score = ROUTE_SOFTMAX_TOP, route.bias = memory;
    REFUSED(op_route(&d, &route, &err), "follow the choice");
    struct op_expert_sum sum = {.x = tensor(5, 4), .y = other(2, 4), .weights = memory};
    REFUSED(op_expert_sum(&d, &sum, &err), "5 slots of 2 rows");
    struct op_expert_output output = {.linear = expert, .sum = {.x = other(4, 8), .y = third(2, 8), .weights = memory}};
    output.linear.x = tensor(4, 16), output.sum.x = third(4, 8);
    REFUSED(op_expert_output(&d, &output, &err), "not of the product");
    output.sum.x = other(4, 8), output.sum.y = tensor(2, 8);
    REFUSED(op_expert_output(&d, &output, &err), "its own output");
    struct op_softcap cap = {.x = tensor(1, 4), .cap = NAN};
    REFUSED(op_softcap(&d, &cap, &err), "cap nan");
    struct op_blend blend = {.n = 1, .m = 1, .x = {tensor(1, 4)}, .base = {other(1, 4)}, .y = {tensor(1, 4)}, .coef = other(1, 1)};
    REFUSED(op_blend(&d, &blend, &err), "y is its own input");
    blend.y[0] = other(1, 4), blend.coef = other(1, 2);
    REFUSED(op_blend(&d, &blend, &err), "coef is [1][2], expected [1][1]");
    struct op_match match = {.x = tensor(1, 4), .y = other(1, 4)};
    REFUSED(op_match(&d, &match, &err), "least 0");
    struct op_sparsify sparsify = {.x = tensor(1, 4), .factor = NAN};
    REFUSED(op_sparsify(&d, &sparsify, &err), "factor nan");
    struct op_sample_rows sample = {.logits = tensor(1, 4), .vocab = 5};
    REFUSED(op_sample_rows(&d, &sample, &err), "5 ids of 4");
    unsigned char *page = (unsigned char *)memory;
    struct kv_layer layer = {.k_format = KV_Q8, .v_format = KV_F16, .n_kv_heads = 2, .d_k = 48, .d_v = 48, .head_bytes = 64, .pages = &page};
    struct op_attention attention = {.q = tensor(1, 96), .y = other(1, 96), .n_heads = 2, .layer = &layer, .tables = words, .scale = 1};
    REFUSED(op_attention(&d, &attention, &err), "K q8 of 48");
    layer.k_format = KV_F16;
    REFUSED(op_attention(&d, &attention, &err), "64 bytes a head");
    layer.head_bytes = 2 * kv_format_k_bytes(KV_F16, 48), attention.n_heads = 3;
    REFUSED(op_attention(&d, &attention, &err), "3 heads over 2");
    layer.latent = true;
    REFUSED(op_attention(&d, &attention, &err), "bytes a head");
    layer.d_v = 40, layer.n_kv_heads = 1, layer.head_bytes = kv_format_k_bytes(KV_F16, 48);
    struct op_kv_write write = {.k = tensor(1, 48), .v = other(1, 40), .layer = &layer, .tables = words};
    REFUSED(op_kv_write(&d, &write, &err), "v of 1 rows");
    layer.v_format = KV_BF16;
    REFUSED(op_kv_write(&d, &write, &err), "as one");
    struct op_linear_heads heads = {.w = weight(0), .n_heads = 3, .x = tensor(2, 48), .y = other(2, 8)};
    REFUSED(op_linear_heads(&d, &heads, &err), "8 rows of 'up' for 3 heads");
    heads.n_heads = 4, heads.tail = 2;
    REFUSED(op_linear_heads(&d, &heads, &err), "x is [2][48], expected [2][72]");
    heads.x = tensor(2, 72), heads.y = other(2, 12);
    REFUSED(op_linear_heads(&d, &heads, &err), "y is [2][12], expected [2][16]");
    rope.table = tensor(2, 10), rope.first = 24;
    REFUSED(op_rope(&d, &rope, &err), "10 columns for heads of 8");
}

static void test_nothing_to_do(void **state)
{
    (void)state;
    struct device d = {.head = {&fused}};
    struct err err = {0};
    struct op_linear linear = {.w = weight(2), .x = {NULL, 0, 8, 8}, .y = {NULL, 0, 16, 16}, .alpha = 1};
    struct op_copy_in copy = {0};
    assert_int_equal(op_linear(&d, &linear, &err) | op_copy_in(&d, &copy, &err), 0);
    assert_string_equal(d.seen, "");
    d.answer = ERR_DEVICE;
    struct op_add add = {.x = tensor(1, 4), .y = other(1, 4)};
    assert_int_equal(op_add(&d, &add, &err), ERR_DEVICE);
    assert_non_null(strstr(err.text, "add"));
}

static void test_kv_formats(void **state)
{
    (void)state;
    assert_int_equal(kv_format_k_bytes(KV_F16, 128), 8192);
    assert_int_equal(kv_format_v_bytes(KV_F32, 80), 32 * 80 * 4);
    assert_int_equal(kv_format_k_bytes(KV_Q8, 64), 32 * 64 + 32 * 2 * 2);
    assert_int_equal(kv_format_k_bytes(KV_Q8, 80), 0);
    assert_int_equal(kv_format_k_bytes(KV_BF16, 12), 0);
    assert_int_equal(kv_format_k_bytes(KV_F16, 576), 32 * 576 * 2);
    assert_int_equal(kv_format_k_bytes(KV_F16, 648), 0);
    for (int f = 0; f < KV_FORMAT_COUNT; f++)
        for (uint32_t d = 0; d <= 700; d++) {
            assert_int_equal(kv_format_k_bytes((enum kv_format)f, d) % 64, 0);
            assert_int_equal(kv_format_v_bytes((enum kv_format)f, d) % 64, 0);
        }
}

static void test_kv_groups(void **state)
{
    (void)state;
    static const struct {
        enum kv_format f;
        uint32_t d, group;
    } cases[] = {{KV_A8G64, 64, 64},   {KV_A8G64, 96, 32},   {KV_A8G64, 32, 32},   {KV_A8G128, 128, 128}, {KV_A8G128, 192, 64},
                 {KV_A4G128, 96, 32},  {KV_A4G64, 256, 64},  {KV_A8G32, 80, 0},    {KV_Q4H, 48, 0},       {KV_TQ4, 96, 96},
                 {KV_TQ3, 256, 256},   {KV_TQ3, 80, 0},      {KV_V3, 128, 32},     {KV_Q8, 512, 32},      {KV_F16, 80, 80}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_shape s = kv_shape_of(cases[i].f, cases[i].d);
        assert_int_equal(s.group, cases[i].group);
        assert_int_equal(s.plane_bytes == 0, cases[i].group == 0);
    }
    /* bytes of one position's head of 128: K and V */
    assert_int_equal(kv_format_k_bytes(KV_A8G32, 128) + kv_format_v_bytes(KV_V3, 128), 200 * KV_PAGE);
    assert_int_equal(kv_format_k_bytes(KV_TQ4, 128), 66 * KV_PAGE);
    assert_int_equal(kv_format_k_bytes(KV_Q4H, 128), 72 * KV_PAGE);
    assert_int_equal(kv_format_k_bytes(KV_V4, 128), 0); /* values only */
}

/* V as the beginning of K: where K's groups and turns end at it, and not elsewhere. */
static void test_kv_latent(void **state)
{
    (void)state;
    static const struct {
        enum kv_format f;
        uint32_t d_k, d_v, group; /* 0: refused */
    } cases[] = {{KV_F16, 576, 512, 512},   {KV_F32, 40, 24, 24},     {KV_Q8, 576, 512, 32},   {KV_A8G64, 576, 512, 64}, {KV_A8G128, 576, 512, 64},
                 {KV_A4G128, 640, 512, 128}, {KV_A4G128, 640, 576, 0}, {KV_Q4H, 576, 512, 32},  {KV_Q4H, 96, 64, 32},     {KV_Q4H, 640, 512, 32},
                 {KV_Q4H, 640, 576, 0},      {KV_TQ4, 576, 512, 512},  {KV_TQ3, 576, 480, 0},   {KV_V4, 576, 512, 0},     {KV_F16, 64, 72, 0},
                 {KV_Q8, 40, 32, 0},         {KV_BF16, 48, 20, 0},     {KV_TQ4, 64, 64, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct kv_shape s = kv_shape_latent(cases[i].f, cases[i].d_k, cases[i].d_v);
        struct kv_layer l = {.k_format = cases[i].f, .v_format = cases[i].f, .d_k = cases[i].d_k, .d_v = cases[i].d_v, .latent = true};
        assert_int_equal(s.plane_bytes == 0, cases[i].group == 0);
        assert_int_equal(kv_layer_head_bytes(&l), cases[i].group ? kv_format_k_bytes(cases[i].f, cases[i].d_k) : 0);
        if (cases[i].group) {
            assert_int_equal(s.group, cases[i].group);
            assert_int_equal(s.group * s.groups, cases[i].d_v);
        }
        l.v_format = KV_A8G32;
        assert_int_equal(kv_layer_head_bytes(&l), 0);
    }
}

static void test_kv_names(void **state)
{
    (void)state;
    static const char *const good[][2] = {{"f16", "f16:f16"}, {"q8:f16", "q8:f16"}, {"k8v3", "k8v3"},     {"k4v4", "k4v4"},
                                          {"tq4", "tq4:tq4"}, {"k8v4", "k8v4"},     {"a4g128:q4h", "a4g128:q4h"}};
    static const char *const bad[] = {"", ":", "f16:", ":f16", "q4", "v4", "f16:v4", "k8v4:f16", "k8v5", "F16", "f16:f16:f16", "a8", "a8g16"};
    enum kv_format k, v;
    char name[KV_NAME_MAX];
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_int_equal(kv_formats_parse(good[i][0], strlen(good[i][0]), &k, &v), 0);
        assert_string_equal(kv_formats_name(k, v, name), good[i][1]);
        assert_int_equal(kv_formats_parse(name, strlen(name), &k, &v), 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(kv_formats_parse(bad[i], strlen(bad[i]), &k, &v), -1);
    assert_int_equal(kv_formats_parse("f16x", 3, &k, &v), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_compositions), cmocka_unit_test(test_shapes_refused),
                                       cmocka_unit_test(test_nothing_to_do), cmocka_unit_test(test_kv_formats),
                                       cmocka_unit_test(test_kv_groups), cmocka_unit_test(test_kv_latent), cmocka_unit_test(test_kv_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
