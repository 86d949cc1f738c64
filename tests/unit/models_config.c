/* models: what opens, what is refused and by which name, and what a step asks of the backend (listings in golden/trace).
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
    {"gemma3n", {0}}, {"nemotron_h", {0}},
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

static int open_made(const struct make_model *made, struct device **d, struct model **m, struct err *err)
{
    char dir[] = "/tmp/rh_models_XXXXXX";
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .logit_rows_max = 2};
    make_model(dir, made);
    int rc = backend_trace.device_open(&cfg, d, err);
    rc = rc != 0 ? rc : model_open(dir, *d, &opt, m, err);
    make_remove(dir);
    return rc;
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
        int rc = archs[i].m.config != NULL ? open_made(&archs[i].m, &d, &m, &err) : open_golden(archs[i].name, &d, &m, &err);
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

static void refuse(const char *what, struct make_model made, int code, const char *named)
{
    struct device *d = NULL;
    struct model *m = NULL;
    struct err err = {0};
    int rc = open_made(&made, &d, &m, &err);
    if (rc != code || strstr(err.text, named) == NULL) {
        fail_msg("%s: expected %s naming '%s', got %s: %s", what, err_name(code), named, err_name(rc), err.text);
    }
    assert_null(m);
    backend_trace.device_close(d);
}

static void test_refusals(void **state)
{
    (void)state;
#define LLAMA(more) {.config = "{\"model_type\": \"llama\", " more MK_BASE "}"}
#define LATENT(type, more) {.config = "{\"model_type\": \"" type "\", \"num_key_value_heads\": 4, \"qk_rope_head_dim\": 32, " more MK_BASE "}"}
    static const struct {
        const char *what;
        struct make_model m;
        int code;
        const char *named;
    } cases[] = {
        {"another choice of experts", LATENT("deepseek_v3", "\"topk_method\": \"greedy\", "), ERR_UNSUPPORTED, "topk_method 'greedy'"},
        {"another score of experts", LATENT("glm4_moe_lite", "\"scoring_func\": \"softmax\", "), ERR_UNSUPPORTED, "scoring_func 'softmax'"},
        {"experts in every second layer", LATENT("deepseek_v3", "\"moe_layer_freq\": 2, "), ERR_UNSUPPORTED, "moe_layer_freq 2"},
        {"weights of experts brought to 1", LATENT("deepseek_v2", "\"norm_topk_prob\": true, "), ERR_UNSUPPORTED, "norm_topk_prob"},
        {"dense layers of one list only", LATENT("glm4_moe_lite", "\"first_k_dense_replace\": 2, "), ERR_UNSUPPORTED, "first_k_dense_replace 2"},
        {"no latent vector", LATENT("deepseek_v3", "\"kv_lora_rank\": 0, "), ERR_FORMAT, "rank 0"},
        {"a latent vector past any format", LATENT("deepseek_v3", "\"kv_lora_rank\": 1024, "), ERR_UNSUPPORTED, "heads of 1056 elements"},
        {"heads of another size", LATENT("deepseek_v3", "\"qk_head_dim\": 100, "), ERR_UNSUPPORTED, "qk_head_dim 100"},
        {"rope over half of its part", LATENT("deepseek_v3", "\"partial_rotary_factor\": 0.5, "), ERR_UNSUPPORTED, "rope over 16 elements of the 32"},
        {"biases of latent attention", LATENT("deepseek_v3", "\"attention_bias\": true, "), ERR_UNSUPPORTED, "biases of q, k and v"},
        {"an unknown field of latent attention", LATENT("deepseek_v3", "\"index_topk\": 2048, "), ERR_UNSUPPORTED, "index_topk"},
        {"fewer keys than heads", {.config = "{\"model_type\": \"deepseek_v3\", \"qk_rope_head_dim\": 32, " MK_BASE "}"}, ERR_UNSUPPORTED,
         "num_key_value_heads 2"},
        {"another architecture", {.config = "{\"model_type\": \"mixtral\", " MK_BASE "}"}, ERR_UNSUPPORTED, "mixtral"},
        {"an unknown field", LLAMA("\"clip_qkv\": 8.0, "), ERR_UNSUPPORTED, "clip_qkv"},
        {"experts",
         {.config = "{\"model_type\": \"qwen3\", \"num_experts\": 8, " MK_BASE "}", .flags = MK_QK_NORM},
         ERR_UNSUPPORTED,
         "num_experts"},
        {"a bias of the convolution that is not there",
         {.config = "{\"model_type\": \"lfm2\", \"conv_bias\": true, " MK_BASE "}"},
         ERR_FORMAT,
         "is missing"},
        {"experts of nemotron_h", {.config = "{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"ME*\", " MK_BASE "}"}, ERR_UNSUPPORTED,
         "'E'"},
        {"an MLP before all else", {.config = "{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"-M*\", " MK_BASE "}"},
         ERR_UNSUPPORTED, "first layer"},
        {"another activation of nemotron_h",
         {.config = "{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"M-*\", \"mlp_hidden_act\": \"silu\", " MK_BASE "}"},
         ERR_UNSUPPORTED, "relu2"},
        {"two streams", {.config = "{\"model_type\": \"gemma3n_text\", \"num_kv_shared_layers\": 0, \"altup_num_inputs\": 2, " MK_BASE "}"},
         ERR_UNSUPPORTED, "2 streams"},
        {"a share of all gates",
         {.config = "{\"model_type\": \"gemma3n_text\", \"activation_sparsity_pattern\": [0, 1.0, 0], " MK_BASE "}"}, ERR_FORMAT,
         "layer 1"},
        {"another activation than apertus has", {.config = "{\"model_type\": \"apertus\", \"hidden_act\": \"silu\", " MK_BASE "}"},
         ERR_UNSUPPORTED, "silu"},
        {"rope over a part of cohere2's heads", {.config = "{\"model_type\": \"cohere2\", \"rotary_pct\": 0.5, " MK_BASE "}"},
         ERR_UNSUPPORTED, "rotary_pct"},
        {"blocks of cohere2 in turn", {.config = "{\"model_type\": \"cohere2\", \"use_parallel_block\": false, " MK_BASE "}"},
         ERR_UNSUPPORTED, "use_parallel_block"},
        {"value heads that do not divide",
         {.config = "{\"model_type\": \"qwen3_5_text\", \"linear_num_value_heads\": 24, " MK_BASE "}"},
         ERR_UNSUPPORTED,
         "24 value heads"},
        {"a layer of another kind",
         {.config = "{\"model_type\": \"qwen3\", \"layer_types\": [\"conv\", \"conv\", \"conv\"], " MK_BASE "}"},
         ERR_UNSUPPORTED,
         "'conv'"},
        {"an unknown activation", LLAMA("\"hidden_act\": \"relu2\", "), ERR_UNSUPPORTED, "relu2"},
        {"dynamic NTK", LLAMA("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}, "), ERR_UNSUPPORTED, "dynamic"},
        {"another rope", LLAMA("\"rope_scaling\": {\"rope_type\": \"axial\"}, "), ERR_UNSUPPORTED, "axial"},
        {"experts of gemma4 that are none", {.config = "{\"model_type\": \"gemma4_text\", \"enable_moe_block\": true, " MK_BASE "}"},
         ERR_FORMAT, "enable_moe_block"},
        {"another gate of gpt_oss", {.config = "{\"model_type\": \"gpt_oss\", \"swiglu_limit\": 5.0, " MK_BASE "}"}, ERR_UNSUPPORTED,
         "swiglu_limit"},
        {"more experts a row than there are",
         {.config = "{\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"num_experts_per_tok\": 8, " MK_BASE "}"}, ERR_UNSUPPORTED,
         "8 of 4 experts"},
        {"a routing of another kind",
         {.config = "{\"model_type\": \"qwen3_moe\", \"scoring_func\": \"sigmoid\", " MK_BASE "}"}, ERR_UNSUPPORTED, "scoring_func"},
        {"an unknown field of a layer",
         {.config = "{\"model_type\": \"gemma4_text\", \"per_layer_config\": {\"1\": {\"rope_theta\": 3}}, " MK_BASE "}"},
         ERR_UNSUPPORTED, "rope_theta"},
        {"a layer that is not there",
         {.config = "{\"model_type\": \"gemma4_text\", \"per_layer_config\": {\"3\": {\"head_dim\": 64}}, " MK_BASE "}"}, ERR_FORMAT,
         "'3'"},
        {"keys and values of nobody", {.config = "{\"model_type\": \"gemma4_text\", \"num_kv_shared_layers\": 3, " MK_BASE "}"}, ERR_FORMAT,
         "3 of 3 layers"},
        {"keys and values of another kind",
         {.config = "{\"model_type\": \"gemma4_text\", \"num_kv_shared_layers\": 1, \"layer_types\": [\"sliding_attention\", "
                    "\"sliding_attention\", \"full_attention\"], " MK_BASE "}"},
         ERR_FORMAT, "there is none"},
        {"an unknown rope field", LLAMA("\"rope_parameters\": {\"rope_type\": \"default\", \"mrope_section\": [1, 2]}, "),
         ERR_UNSUPPORTED, "mrope_section"},
        {"a zero factor", LLAMA("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}, "), ERR_FORMAT, "factor"},
        {"biases nobody has",
         {.config = "{\"model_type\": \"mistral\", \"attention_bias\": true, " MK_BASE "}"},
         ERR_UNSUPPORTED,
         "bias"},
        {"another layer type",
         {.config = "{\"model_type\": \"qwen3\", \"layer_types\": [\"full_attention\", \"linear_attention\", "
                    "\"full_attention\"], " MK_BASE "}",
          .flags = MK_QK_NORM},
         ERR_UNSUPPORTED,
         "linear_attention"},
        {"a negative size", {.config = "{\"model_type\": \"llama\", \"hidden_size\": -64}"}, ERR_FORMAT, "hidden_size"},
        {"no sizes", {.config = "{\"model_type\": \"llama\"}"}, ERR_FORMAT, "layers"},
        {"too many layers", {.config = "{\"model_type\": \"llama\", \"num_hidden_layers\": 100000}"}, ERR_FORMAT, "layers"},
        {"a missing tensor",
         {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .drop = "model.layers.1.mlp.up_proj.weight"},
         ERR_FORMAT,
         "model.layers.1.mlp.up_proj.weight"},
        {"a missing norm",
         {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .drop = "model.layers.2.input_layernorm.weight"},
         ERR_FORMAT,
         "model.layers.2.input_layernorm.weight"},
        {"a tensor too many",
         {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .extra = "model.layers.0.self_attn.sinks"},
         ERR_UNSUPPORTED,
         "self_attn.sinks"},
        {"a wrong shape",
         {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .reshape = "model.layers.0.self_attn.k_proj.weight"},
         ERR_FORMAT,
         "expected shape [64, 64], file has [65, 64]"},
        {"biases the config denies",
         {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .flags = MK_QKV_BIAS},
         ERR_UNSUPPORTED,
         "q_proj.bias"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        refuse(cases[i].what, cases[i].m, cases[i].code, cases[i].named);
    }
}

/* A layer that reads another's keys and values has no format of its own, nor one that keeps nothing. */
static void test_layers_without_state(void **state)
{
    (void)state;
    static const struct {
        const char *name, *named;
        uint32_t layer;
    } cases[] = {{"gemma4_e", "layer 3 reads what layer 2 stores", 3}, {"gemma3n", "layer 4 reads what layer 1 stores", 4},
                 {"nemotron_h", "layer 1 stores nothing", 1}};
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
        assert_int_equal(model_open(dir, d, &opt, &m, &err), ERR_ARGUMENT);
        if (strstr(err.text, cases[i].named) == NULL) {
            fail_msg("%s: expected '%s', got '%s'", cases[i].name, cases[i].named, err.text);
        }
        own.layer = 0;
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
                 {"deepseek_v2", KV_F32, KV_F32, NULL}, {"deepseek_v2", KV_Q8, KV_Q8, "q8:q8 cannot hold heads of 48 elements"}};
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
        LLAMA("\"clip_qkv\": null, \"use_something\": false, \"torch_dtype\": \"bfloat16\", \"attention_dropout\": 0.1, "),
        {.config = "{\"model_type\": \"llama\", " MK_BASE "}", .extra = "model.layers.0.self_attn.rotary_emb.inv_freq"},
        {.config = "{\"model_type\": \"gemma3\", \"image_token_index\": 5, \"vision_config\": {}, \"text_config\": {" GEMMA
                   ", " MK_BASE "}}",
         .flags = MK_QK_NORM | MK_GEMMA,
         .extra = "vision_tower.patch.bias"}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        if (open_made(&cases[i], &d, &m, &err) != 0) {
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
    assert_int_equal(open_made(&archs[0].m, &d, &m, &err), 0);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trace), cmocka_unit_test(test_latent_formats), cmocka_unit_test(test_refusals), cmocka_unit_test(test_layers_without_state),
                                       cmocka_unit_test(test_harmless), cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_span_checks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
