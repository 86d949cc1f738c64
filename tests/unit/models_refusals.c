/* models: what is refused, with which error and naming what; and that every architecture refuses a field it does not know. */
#include "backend_trace/backend_trace.h"
#include "base/mem.h"
#include "models/model.h"
#include "models_make.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* A model_type and fields of config.json before those that all have. */
#define CONFIG(type, fields) {.config = "{\"model_type\": \"" type "\", " fields MK_BASE "}"}
#define CONFIG_AND(type, fields, ...) {.config = "{\"model_type\": \"" type "\", " fields MK_BASE "}", __VA_ARGS__}
#define LATENT(type, fields) CONFIG(type, "\"num_key_value_heads\": 4, \"qk_rope_head_dim\": 32, " fields)

struct refusal {
    const char *what;
    struct make_model m;
    int code;
    const char *named;
};

static void refuse_all(const struct refusal *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct device *d = NULL;
        struct model *m = NULL;
        struct err err = {0};
        int rc = make_open(&cases[i].m, &d, &m, &err);
        if (rc != cases[i].code || strstr(err.text, cases[i].named) == NULL) {
            fail_msg("%s: expected %s naming '%s', got %s: %s", cases[i].what, err_name(cases[i].code), cases[i].named, err_name(rc), err.text);
        }
        assert_null(m);
        backend_trace.device_close(d);
    }
}

/* Latent attention and experts. */
static void test_latent_and_experts(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
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
        {"fewer keys than heads", CONFIG("deepseek_v3", "\"qk_rope_head_dim\": 32, "), ERR_UNSUPPORTED, "num_key_value_heads 2"},
        {"experts", CONFIG_AND("qwen3", "\"num_experts\": 8, ", .flags = MK_QK_NORM), ERR_UNSUPPORTED, "num_experts"},
        {"a layer nemotron_h does not have", CONFIG("nemotron_h", "\"hybrid_override_pattern\": \"MX*\", "), ERR_UNSUPPORTED, "'X'"},
        {"more experts a row of nemotron_h than there are", CONFIG("nemotron_h", "\"hybrid_override_pattern\": \"ME*\", \"num_experts_per_tok\": 9, "),
         ERR_UNSUPPORTED, "9 of 8 experts"},
        {"experts of gemma4 that are none", CONFIG("gemma4_text", "\"enable_moe_block\": true, "), ERR_FORMAT, "enable_moe_block"},
        {"another gate of gpt_oss", CONFIG("gpt_oss", "\"swiglu_limit\": 5.0, "), ERR_UNSUPPORTED, "swiglu_limit"},
        {"more experts a row than there are", CONFIG("qwen3_moe", "\"num_experts\": 4, \"num_experts_per_tok\": 8, "),
         ERR_UNSUPPORTED, "8 of 4 experts"},
        {"heads of qwen3_moe without norms", CONFIG("qwen3_moe", "\"use_qk_norm\": false, "), ERR_UNSUPPORTED, "use_qk_norm false"},
        {"a shared expert of qwen3_moe", CONFIG("qwen3_moe", "\"shared_expert_intermediate_size\": 64, "),
         ERR_UNSUPPORTED, "shared_expert_intermediate_size 64"},
        {"a routing of another kind", CONFIG("qwen3_moe", "\"scoring_func\": \"sigmoid\", "), ERR_UNSUPPORTED, "scoring_func"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

/* Recurrent layers, streams and activations. */
static void test_parts_of_layers(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"a bias of the convolution that is not there", CONFIG("lfm2", "\"conv_bias\": true, "), ERR_FORMAT, "is missing"},
        {"an MLP before all else", CONFIG("nemotron_h", "\"hybrid_override_pattern\": \"-M*\", "), ERR_UNSUPPORTED, "first layer"},
        {"another activation of nemotron_h", CONFIG("nemotron_h", "\"hybrid_override_pattern\": \"M-*\", \"mlp_hidden_act\": \"silu\", "),
         ERR_UNSUPPORTED, "relu2"},
        {"two streams", CONFIG("gemma3n_text", "\"num_kv_shared_layers\": 0, \"altup_num_inputs\": 2, "), ERR_UNSUPPORTED, "2 streams"},
        {"a share of all gates", CONFIG("gemma3n_text", "\"activation_sparsity_pattern\": [0, 1.0, 0], "), ERR_FORMAT, "layer 1"},
        {"heads of apertus without norms", CONFIG("apertus", "\"qk_norm\": false, "), ERR_UNSUPPORTED, "qk_norm false"},
        {"layers of phi3 that slide in turn", CONFIG("phi3", "\"full_attn_mod\": 2, "), ERR_UNSUPPORTED, "full_attn_mod 2"},
        {"another activation than apertus has", CONFIG("apertus", "\"hidden_act\": \"silu\", "), ERR_UNSUPPORTED, "silu"},
        {"blocks of cohere2 in turn", CONFIG("cohere2", "\"use_parallel_block\": false, "), ERR_UNSUPPORTED, "use_parallel_block"},
        {"value heads that do not divide", CONFIG("qwen3_5_text", "\"linear_num_value_heads\": 24, "), ERR_UNSUPPORTED, "24 value heads"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

/* Layers and their kinds. */
static void test_layers(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"another architecture", CONFIG("mixtral", ""), ERR_UNSUPPORTED, "mixtral"},
        {"a model that reads pictures around one that is not known", {.config = "{\"model_type\": \"mistral3\", \"text_config\": {\"model_type\": \"ministral3\", " MK_BASE "}}"},
         ERR_UNSUPPORTED, "ministral3"},
        {"a model around another one", {.config = "{\"model_type\": \"gemma3\", \"text_config\": {\"model_type\": \"mistral\", " MK_BASE "}}"},
         ERR_UNSUPPORTED, "gemma3"},
        {"an unknown field", MK_LLAMA("\"clip_qkv\": 8.0, "), ERR_UNSUPPORTED, "clip_qkv"},
        {"a layer of another kind", CONFIG("qwen3", "\"layer_types\": [\"conv\", \"conv\", \"conv\"], "), ERR_UNSUPPORTED, "'conv'"},
        {"a size that is none", MK_LLAMA("\"rope_theta\": Infinity, "), ERR_FORMAT, "rope_theta"},
        {"an unknown activation", MK_LLAMA("\"hidden_act\": \"relu2\", "), ERR_UNSUPPORTED, "relu2"},
        {"an unknown field of a layer", CONFIG("gemma4_text", "\"per_layer_config\": {\"1\": {\"rope_theta\": 3}}, "), ERR_UNSUPPORTED, "rope_theta"},
        {"a layer that is not there", CONFIG("gemma4_text", "\"per_layer_config\": {\"3\": {\"head_dim\": 64}}, "), ERR_FORMAT, "'3'"},
        {"keys and values of nobody", CONFIG("gemma4_text", "\"num_kv_shared_layers\": 3, "), ERR_FORMAT, "3 of 3 layers"},
        {"keys and values of another kind", CONFIG("gemma4_text", "\"num_kv_shared_layers\": 1, \"layer_types\": [\"sliding_attention\", \"sliding_attention\", \"full_attention\"], "),
         ERR_FORMAT, "there is none"},
        {"biases nobody has", CONFIG("mistral", "\"attention_bias\": true, "), ERR_UNSUPPORTED, "bias"},
        {"another layer type", CONFIG_AND("qwen3", "\"layer_types\": [\"full_attention\", \"linear_attention\", \"full_attention\"], ", .flags = MK_QK_NORM),
         ERR_UNSUPPORTED, "linear_attention"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

/* Rope. */
static void test_rope(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"rope over a part of cohere2's heads", CONFIG("cohere2", "\"rotary_pct\": 0.5, "), ERR_UNSUPPORTED, "rotary_pct"},
        {"dynamic NTK", MK_LLAMA("\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2.0}, "), ERR_UNSUPPORTED, "dynamic"},
        {"another rope", MK_LLAMA("\"rope_scaling\": {\"rope_type\": \"axial\"}, "), ERR_UNSUPPORTED, "axial"},
        {"an unknown rope field", MK_LLAMA("\"rope_parameters\": {\"rope_type\": \"default\", \"mrope_section\": [1, 2]}, "),
         ERR_UNSUPPORTED, "mrope_section"},
        {"a zero factor", MK_LLAMA("\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}, "), ERR_FORMAT, "factor"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

/* Sizes and tensors. */
static void test_tensors(void **state)
{
    (void)state;
    static const struct refusal cases[] = {
        {"a negative size", {.config = "{\"model_type\": \"llama\", \"hidden_size\": -64}"}, ERR_FORMAT, "hidden_size"},
        {"no sizes", {.config = "{\"model_type\": \"llama\"}"}, ERR_FORMAT, "layers"},
        {"too many layers", {.config = "{\"model_type\": \"llama\", \"num_hidden_layers\": 100000}"}, ERR_FORMAT, "layers"},
        {"a missing tensor", CONFIG_AND("llama", "", .drop = "model.layers.1.mlp.up_proj.weight"), ERR_FORMAT, "model.layers.1.mlp.up_proj.weight"},
        {"a missing norm", CONFIG_AND("llama", "", .drop = "model.layers.2.input_layernorm.weight"),
         ERR_FORMAT, "model.layers.2.input_layernorm.weight"},
        {"a tensor too many", CONFIG_AND("llama", "", .extra = "model.layers.0.self_attn.sinks"), ERR_UNSUPPORTED, "self_attn.sinks"},
        {"a wrong shape", CONFIG_AND("llama", "", .reshape = "model.layers.0.self_attn.k_proj.weight"),
         ERR_FORMAT, "expected shape [64, 64], file has [65, 64]"},
        {"biases the config denies", CONFIG_AND("llama", "", .flags = MK_QKV_BIAS), ERR_UNSUPPORTED, "q_proj.bias"},
    };
    refuse_all(cases, sizeof cases / sizeof cases[0]);
}

/* ---- a field nobody knows, in every reference model's config.json ---- */

enum { CONFIG_MAX = 1 << 20 };

/* A folder like the golden one, with one field more. */
static void write_with_field(const char *golden, const char *name, const char *field, char *dir)
{
    char from[4096], to[4096];
    struct buf config = {0}, more = {0};
    struct err err = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(from, sizeof from, "%s/%s/config.json", golden, name);
    assert_int_equal(file_read(&config, from, CONFIG_MAX, &err), 0);
    struct str text = buf_view(&config);
    assert_true(text.n > 1 && text.p[0] == '{');
    buf_printf(&more, "{%s,%.*s", field, (int)text.n - 1, text.p + 1);
    snprintf(to, sizeof to, "%s/config.json", dir);
    assert_int_equal(file_write_atomic(to, buf_view(&more), &err), 0);
    snprintf(from, sizeof from, "%s/%s/model.safetensors", golden, name);
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    assert_int_equal(symlink(from, to), 0);
    buf_free(&config);
    buf_free(&more);
}

/* Opened as it is written; what it is called is kept. */
static void refuse_field(const char *golden, const char *name, const char *field, const char *named, bool *seen)
{
    char dir[] = "/tmp/rh_models_XXXXXX";
    struct device *d = NULL;
    struct model *m = NULL;
    struct err err = {0};
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16, .rows_max = 8};
    write_with_field(golden, name, field, dir);
    assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
    int rc = model_open(dir, d, &opt, &m, &err);
    if (named != NULL && (rc != ERR_UNSUPPORTED || strstr(err.text, named) == NULL)) {
        fail_msg("%s: expected ERR_UNSUPPORTED naming '%s', got %s: %s", name, named, err_name(rc), err.text);
    }
    if (named == NULL && rc != 0) {
        fail_msg("%s: %s", name, err.text);
    }
    for (uint32_t i = 0; m != NULL && i < model_arch_count(); i++) {
        seen[i] = seen[i] || strcmp(model_info(m)->arch, model_arch_name(i)) == 0;
    }
    model_close(m);
    backend_trace.device_close(d);
    make_remove(dir);
}

static void test_unknown_fields(void **state)
{
    (void)state;
    char golden[4096];
    bool seen[128] = {false};
    snprintf(golden, sizeof golden, "%s/../golden", TEST_DATA);
    DIR *folder = opendir(golden);
    assert_non_null(folder);
    for (struct dirent *e = readdir(folder); e != NULL; e = readdir(folder)) {
        char path[4096 + 300];
        snprintf(path, sizeof path, "%s/%s/golden.json", golden, e->d_name);
        if (e->d_name[0] == '.' || !file_exists(path)) {
            continue;
        }
        refuse_field(golden, e->d_name, "\"attention_cube_scale\": 1.5", "'attention_cube_scale'", seen);
        refuse_field(golden, e->d_name, "\"use_cubic_norm\": true", "'use_cubic_norm'", seen);
        refuse_field(golden, e->d_name, "\"use_cubic_norm\": false", NULL, seen);
    }
    closedir(folder);
    assert_true(model_arch_count() <= sizeof seen / sizeof seen[0]);
    for (uint32_t i = 0; i < model_arch_count(); i++) {
        if (!seen[i]) {
            fail_msg("no reference model of %s", model_arch_name(i));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latent_and_experts), cmocka_unit_test(test_parts_of_layers), cmocka_unit_test(test_layers), cmocka_unit_test(test_rope),
        cmocka_unit_test(test_tensors), cmocka_unit_test(test_unknown_fields)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
