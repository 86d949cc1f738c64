/* models: what opens, and what a step asks of the backend (listings in golden/trace); refusals: models_refusals.c.
 *
 * TRACE_WRITE=1 in the environment writes the listings instead of comparing them: read the difference before it is committed. */
#include "backend_trace/backend_trace.h"
#include "base/mem.h"
#include "models/model.h"
#include "models_make.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define GEMMA                                                                                                                    \
    "\"model_type\": \"gemma3_text\", \"query_pre_attn_scalar\": 48, \"final_logit_softcapping\": 12.0, \"sliding_window\": "    \
    "16, "                                                                                                                       \
    "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\"], \"rope_parameters\": {"                \
    "\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8.0, \"rope_theta\": 1000000.0}, "                              \
    "\"sliding_attention\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}"

#define MISTRAL3                                                                                                                 \
    "{\"model_type\": \"mistral3\", \"image_token_index\": 10, \"projector_hidden_act\": \"gelu\", \"spatial_merge_size\": 2, " \
    "\"vision_feature_layer\": -1, \"vision_config\": {\"model_type\": \"pixtral\"}, \"text_config\": {\"model_type\": \"mistral\", " MK_BASE "}}"

static const struct {
    const char *name;
    struct make_model m; /* without a config: the reference model of that name */
} archs[] = {
    {"llama", {.config = "{\"model_type\": \"llama\", " MK_BASE "}"}},
    {"llama_bias",
     {.config = "{\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, " MK_BASE "}",
      .flags = MK_QKV_BIAS | MK_O_BIAS | MK_MLP_BIAS}},
    {"mistral", {.config = "{\"model_type\": \"mistral\", \"sliding_window\": 16, " MK_BASE "}"}},
    {"qwen2",
     {.config =
          "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"sliding_window\": 16, \"max_window_layers\": 1, " MK_BASE
          "}",
      .flags = MK_QKV_BIAS}},
    {"qwen3", {.config = "{\"model_type\": \"qwen3\", " MK_BASE "}", .flags = MK_QK_NORM}},
    {"phi3", {.config = "{\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.75, " MK_BASE "}", .flags = MK_FUSED}},
    {"granite",
     {.config = "{\"model_type\": \"granite\", \"embedding_multiplier\": 12.0, \"residual_multiplier\": 0.22, "
                "\"attention_multiplier\": 0.0156, \"logits_scaling\": 8.0, " MK_BASE "}"}},
    {"gemma3", {.config = "{" GEMMA ", " MK_BASE "}", .flags = MK_QK_NORM | MK_GEMMA}},
    {"lfm2", {0}},
    {"deepseek_v3", {0}}, {"deepseek_v2", {0}}, {"glm4_moe_lite", {0}},
    {"qwen3_5", {0}}, {"gemma2", {0}}, {"glm4", {0}}, {"seed_oss", {0}}, {"olmo2", {0}}, {"smollm3", {0}}, {"gemma4", {0}}, {"gemma4_e", {0}},
    {"olmo3", {0}}, {"cohere2", {0}}, {"apertus", {0}}, {"lfm2_bias", {0}},
    {"qwen3_moe", {0}}, {"qwen3_5_moe", {0}}, {"qwen3_next", {0}}, {"glm4_moe", {0}}, {"gpt_oss", {0}},
    {"gemma3n", {0}}, {"nemotron_h", {0}}, {"nemotron_h_latent", {0}}, {"gemma4_moe", {0}},
};

static int open_golden(const char *name, struct device **d, struct model **m, struct err *err)
{
    char dir[4096];
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .logit_rows_max = 2};
    snprintf(dir, sizeof dir, "%s/../golden/%s", TEST_DATA, name);
    int rc = backend_trace.device_open(&cfg, d, err);
    return rc != 0 ? rc : model_open(dir, *d, &opt, m, err);
}

/* Two sequences in a step, three rows through the head of two-row tiles. */
static void run_step(struct device *d, struct model *m)
{
    struct err err = {0};
    struct kv *kv = NULL;
    struct kv_seq *s[2];
    uint32_t ids[5] = {1, 2, 3, 4, 5};
    uint64_t event = 0;
    static float logits[3][1024];
    struct sample_params params = {0};
    struct sample_row rows[2] = {{.params = &params, .score_id = -1}, {.params = &params, .score_id = -1}};
    static struct sample_result results[3];
    struct kv_config kc = {.device = d, .budget_bytes = 64u << 20, .context_max = model_info(m)->context};
    kc.layers = model_kv_layers(m, &kc.layer_count);
    assert_int_equal(kv_open(&kc, &kv, &err), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(kv_seq_new(kv, &s[i], &err), 0);
        assert_int_equal(kv_extend(kv, s[i], 5, &err), 0);
    }
    struct span spans[2] = {{.seq = s[0], .row_count = 5, .ids = ids, .out_first = 4, .logits = logits[0]},
                            {.seq = s[1], .row_count = 3, .ids = ids, .out_first = 1, .sample = rows}};
    buf_free(trace_text(d));
    if (model_forward(m, kv, spans, 2, results, &event, &err) != 0) {
        fail_msg("%s", err.text);
    }
    kv_close(kv);
}

static void test_trace(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++) {
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        struct buf want = {0};
        char path[4096];
        int rc = archs[i].m.config != NULL ? make_open(&archs[i].m, &d, &m, &err) : open_golden(archs[i].name, &d, &m, &err);
        if (rc != 0) {
            fail_msg("%s: %s", archs[i].name, err.text);
        }
        run_step(d, m);
        struct str got = buf_view(trace_text(d));
        snprintf(path, sizeof path, "%s/../golden/trace/%s.txt", TEST_DATA, archs[i].name);
        if (getenv("TRACE_WRITE") != NULL) {
            assert_int_equal(file_write_atomic(path, got, &err), 0);
        }
        assert_int_equal(file_read(&want, path, 1u << 20, &err), 0);
        if (!str_eq(got, buf_view(&want))) {
            fail_msg("%s: the listing differs from %s:\n%.*s", archs[i].name, path, STR_ARG(got));
        }
        buf_free(&want);
        model_close(m);
        backend_trace.device_close(d);
    }
}

/* A layer that reads another's keys and values has no format of its own, nor one that keeps nothing. */
static void test_layers_without_state(void **state)
{
    (void)state;
    static const struct {
        const char *name, *named;
        uint32_t layer, good; /* good: another one, that has a format of its own */
    } cases[] = {{"gemma4_e", "layer 3 reads what layer 2 stores", 3, 0}, {"gemma3n", "layer 4 reads what layer 1 stores", 4, 0},
                 {"nemotron_h", "layer 1 stores nothing", 1, 3}, {"nemotron_h", "layer 0 is recurrent", 0, 3}, {"lfm2", "layer 2 is recurrent", 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[4096];
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        struct device_config cfg = {0};
        struct model_kv_layer own = {.layer = cases[i].layer, .k_format = KV_F32, .v_format = KV_F32};
        struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .kv_layers = &own, .kv_layer_count = 1};
        snprintf(dir, sizeof dir, "%s/../golden/%s", TEST_DATA, cases[i].name);
        assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
        assert_int_equal(model_open(dir, d, &opt, &m, &err), ERR_FORMAT);
        if (strstr(err.text, cases[i].named) == NULL) {
            fail_msg("%s: expected '%s', got '%s'", cases[i].name, cases[i].named, err.text);
        }
        own.layer = cases[i].good;
        assert_int_equal(model_open(dir, d, &opt, &m, &err), 0);
        model_close(m);
        backend_trace.device_close(d);
    }
}

/* Keys and values that are one vector have one format, and it must hold the vector and end a group where the values end. */
static void test_latent_formats(void **state)
{
    (void)state;
    static const struct {
        const char *golden;
        enum kv_format k, v;
        const char *named; /* NULL: opens */
    } cases[] = {{"deepseek_v3", KV_A8G32, KV_V4, "k8v4: keys and values are one vector"}, {"deepseek_v3", KV_F16, KV_Q8, "f16:q8"},
                 {"deepseek_v3", KV_Q8, KV_Q8, NULL},   {"deepseek_v3", KV_TQ3, KV_TQ3, NULL},
                 {"deepseek_v2", KV_F32, KV_F32, NULL}, {"deepseek_v2", KV_Q8, KV_Q8, "q8:q8 cannot hold heads of 64 elements"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char dir[4096];
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        struct device_config cfg = {0};
        struct model_options opt = {.k_format = cases[i].k, .v_format = cases[i].v, .rows_max = 8};
        snprintf(dir, sizeof dir, "%s/../golden/%s", TEST_DATA, cases[i].golden);
        assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
        int rc = model_open(dir, d, &opt, &m, &err);
        if (rc != (cases[i].named ? ERR_UNSUPPORTED : 0) || (cases[i].named && strstr(err.text, cases[i].named) == NULL)) {
            fail_msg("case %zu: %s: %s", i, err_name(rc), err.text);
        }
        if (rc == 0) {
            uint32_t count = 0;
            const struct kv_layer_spec *l = model_kv_layers(m, &count);
            assert_int_equal(l[0].n_kv_heads, 1);
            assert_int_equal(kv_layer_shape(&l[0]).head_bytes, kv_format_k_bytes(cases[i].k, l[0].d_k));
        }
        model_close(m);
        backend_trace.device_close(d);
    }
}

/* Null, false and harmless fields open; old rotary buffers and a tied head's copy are left aside. */
static void test_harmless(void **state)
{
    (void)state;
    static const struct make_model cases[] = {
        MK_LLAMA("\"clip_qkv\": null, \"use_something\": false, \"pruned_heads\": {}, \"time_step_limit\": null, \"min_length\": -Infinity, \"mlp_only_layers\": [], \"torch_dtype\": \"bfloat16\", \"attention_dropout\": 0.1, "),
        {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .extra = "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {.config = "{\"model_type\": \"mistral\", \"sliding_window\": null, " MK_BASE "}"},
        {.config = "{\"model_type\": \"gemma3\", \"image_token_index\": 5, \"vision_config\": {}, \"text_config\": {" GEMMA
                   ", " MK_BASE "}}",
         .flags = MK_QK_NORM | MK_GEMMA,
         .extra = "vision_tower.patch.bias"},
        {.config = MISTRAL3, .prefix = "language_model.", .extra = "multi_modal_projector.linear_1.bias"},
        {.config = MISTRAL3, .prefix = "model.language_model.", .extra = "model.vision_tower.ln_pre.weight"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        if (make_open(&cases[i], &d, &m, &err) != 0) {
            fail_msg("case %zu: %s", i, err.text);
        }
        model_close(m);
        backend_trace.device_close(d);
    }
}

/* Every memory request of an open and of an inspection fails once: an error, nothing left. */
static void test_faults(void **state)
{
    (void)state;
    char dir[] = "/tmp/rh_models_XXXXXX";
    make_model(dir, &archs[7].m);
    for (int inspect = 0; inspect < 2; inspect++) {
        struct device *d = NULL;
        struct device_config cfg = {0};
        assert_int_equal(backend_trace.device_open(&cfg, &d, NULL), 0);
        for (int64_t n = 0;; n++) {
            struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8};
            struct model *m = NULL;
            struct err err = {0};
            mem_fault_set(n);
            int rc = inspect ? model_inspect(dir, d, &opt, &m, &err) : model_open(dir, d, &opt, &m, &err);
            mem_fault_set(-1);
            model_close(m);
            if (rc == 0) {
                assert_true(n > 5);
                break;
            }
            assert_int_equal(rc, ERR_NOMEM);
        }
        backend_trace.device_close(d);
    }
    make_remove(dir);
}

/* What a caller may get wrong in a step. */
static void test_span_checks(void **state)
{
    (void)state;
    struct device *d = NULL;
    struct model *m = NULL;
    struct err err = {0};
    struct kv *kv = NULL;
    struct kv_seq *s = NULL;
    uint64_t event = 0;
    uint32_t ids[16] = {0}, bad[1] = {MK_VOCAB};
    assert_int_equal(make_open(&archs[0].m, &d, &m, &err), 0);
    struct kv_config kc = {.device = d, .budget_bytes = 64u << 20, .context_max = 512};
    kc.layers = model_kv_layers(m, &kc.layer_count);
    assert_int_equal(kv_open(&kc, &kv, &err), 0);
    assert_int_equal(kv_seq_new(kv, &s, &err), 0);
    assert_int_equal(kv_extend(kv, s, 32, &err), 0);
    assert_int_equal(kv_commit(kv, s, ids, 4, &err), 0);
    const struct span cases[] = {{.seq = s, .position = 4, .row_count = 0, .ids = ids},
                                 {.seq = s, .position = 4, .row_count = 9, .ids = ids},
                                 {.seq = s, .position = 3, .row_count = 1, .ids = ids},
                                 {.seq = s, .position = 32, .row_count = 1, .ids = ids},
                                 {.seq = s, .position = UINT32_MAX, .row_count = 2, .ids = ids},
                                 {.seq = s, .position = 4, .row_count = 1, .ids = bad},
                                 {.seq = s, .position = 4, .row_count = 1, .ids = ids, .out_first = 2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(model_forward(m, kv, &cases[i], 1, NULL, &event, NULL), ERR_ARGUMENT);
    }
    assert_int_equal(model_forward(m, kv, cases, 0, NULL, &event, NULL), ERR_ARGUMENT);
    kv_close(kv);
    model_close(m);
    backend_trace.device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace), cmocka_unit_test(test_latent_formats), cmocka_unit_test(test_layers_without_state),
                                       cmocka_unit_test(test_harmless), cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_span_checks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
