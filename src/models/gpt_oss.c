/* models/gpt_oss.c - gpt-oss: biases everywhere, a sink in every head's softmax, sliding and full layers in turn, yarn with uncut correction
 * dimensions; experts with biases and a clamped gate, weighted by the softmax of the chosen ones' logits.
 *
 * Hugging Face files have gate and up of all experts in one tensor, row by row in turn: as elements it is transposed, as MXFP4 blocks and
 * scales it is not.  GGUF files and MLX's have them apart; GGUF has no key for the correction dimensions. */
#include "models/decoder_binds.h"

#define IN_EXPERTS "model.layers.%u.mlp.experts."
#define FUSED IN_EXPERTS "gate_up_proj"
#define GATE_UP(slot, first_)                                                                                                 \
    BIND_STACK(slot, NULL, FUSED, DIM_EXPERT_FFN, DIM_HIDDEN, .first = first_, .of = DIM_2_EXPERT_FFN, .group = DIM_2,        \
               .map = MAP_TRANSPOSED, .when = HP_EXPERTS_FUSED)
#define APART(slot, gguf, name) \
    BIND_STACK(slot, "blk.%u." gguf, IN_EXPERTS name, DIM_EXPERT_FFN, DIM_HIDDEN, .unless = HP_EXPERTS_FUSED)
#define EXPERT_VECTOR(slot_, gguf_, hf_, cols_, ...)                                                                          \
    {.kind = BIND_LAYER_VEC, .slot = slot_, .gguf = gguf_, .hf = hf_, .rows = DIM_EXPERTS, .cols = cols_, .map = MAP_ROWS,    \
     .layers = LAYERS_EXPERTS, __VA_ARGS__}
#define GATE_UP_BIAS(slot, first_)                                                                                            \
    EXPERT_VECTOR(slot, NULL, FUSED "_bias", DIM_EXPERT_FFN, .first = first_, .of = DIM_2_EXPERT_FFN, .group = DIM_2,         \
                  .when = HP_EXPERT_BIAS | HP_EXPERTS_FUSED)
#define APART_BIAS(slot, gguf, name) \
    EXPERT_VECTOR(slot, "blk.%u." gguf, IN_EXPERTS name, DIM_EXPERT_FFN, .when = HP_EXPERT_BIAS, .unless = HP_EXPERTS_FUSED)

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS,
    BIND_VECTOR(V_ATTN_NORM, "attn_norm.weight", "input_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_FFN_NORM, "post_attention_norm.weight", "post_attention_layernorm.weight", DIM_HIDDEN),
    BIND_VECTOR(V_SINKS, "attn_sinks.weight", "self_attn.sinks", DIM_HEADS, .when = HP_SINKS),
    BIND_MATRIX(W_ROUTER, "ffn_gate_inp", "mlp.router", DIM_EXPERTS, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_EXPERTS),
    BIND_VECTOR(V_ROUTER_BIAS, "ffn_gate_inp.bias", "mlp.router.bias", DIM_EXPERTS, .layers = LAYERS_EXPERTS),
    GATE_UP(W_EXPERT_GATE, DIM_0), GATE_UP(W_EXPERT_UP, DIM_1), GATE_UP_BIAS(V_EXPERT_GATE_BIAS, DIM_0),
    GATE_UP_BIAS(V_EXPERT_UP_BIAS, DIM_1),
    APART(W_EXPERT_GATE, "ffn_gate_exps", "gate_proj"), APART(W_EXPERT_UP, "ffn_up_exps", "up_proj"),
    APART_BIAS(V_EXPERT_GATE_BIAS, "ffn_gate_exps.bias", "gate_proj.bias"), APART_BIAS(V_EXPERT_UP_BIAS, "ffn_up_exps.bias", "up_proj.bias"),
    BIND_STACK(W_EXPERT_DOWN, NULL, IN_EXPERTS "down_proj", DIM_HIDDEN, DIM_EXPERT_FFN, .map = MAP_TRANSPOSED),
    BIND_STACK(W_EXPERT_DOWN, "blk.%u.ffn_down_exps", NULL, DIM_HIDDEN, DIM_EXPERT_FFN, .when = 0),
    EXPERT_VECTOR(V_EXPERT_DOWN_BIAS, "blk.%u.ffn_down_exps.bias", IN_EXPERTS "down_proj_bias|" IN_EXPERTS "down_proj.bias", DIM_HIDDEN,
                  .when = HP_EXPERT_BIAS)};

static void defaults(struct hparams *hp)
{
    struct rope_params *p = &hp->rope[0];
    hp->moe = (struct experts_params){.experts = 128, .used = 4, .score = ROUTE_SOFTMAX_TOP, .scale = 1.0f};
    hp->flags |= HP_QKV_BIAS | HP_O_BIAS | HP_EXPERT_BIAS | HP_SINKS;
    hp->eps = 1e-5f;
    hp->head_dim = 64;
    hp->window = 128;
    hp->context_train = 131072;
    p->theta = 150000.0;
    p->truncate = false;
}

static void finish(struct hparams *hp, bool layers_known)
{
    hp->act = ACT_CLAMPED;
    for (uint32_t i = 0; !layers_known && i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->sliding[i] = i % 2 == 0;
    }
}

/* what the clamped gate has built in */
static const struct config_fact facts[] = {{"swiglu_limit", NULL, 7.0}, {"swiglu_alpha", NULL, 1.702}};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    struct rope_params *p = &hp->rope[0];
    bool known = false, rope = yyjson_is_obj(yyjson_obj_get(cfg->root, "rope_parameters")) ||
                               yyjson_is_obj(yyjson_obj_get(cfg->root, "rope_scaling"));
    defaults(hp);
    int rc = config_read_common(hp, cfg, err);
    hp->moe.ffn = hp->ffn;
    if (!rope) {
        p->kind = ROPE_YARN;
        p->factor = 32.0;
        p->original = 4096;
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "experts_per_token", &hp->moe.used, cfg->where, err);
    }
    if (rc == 0) {
        rc = experts_read_config(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    finish(hp, known);
    return rc != 0 ? rc : config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = metadata_read_common(hp, md, err);
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = experts_read_metadata(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    finish(hp, false);
    return rc;
}

static const char *const model_types[] = {"gpt_oss", NULL};
static const char *const config_keys[] = {
    "layer_types", "sliding_window", "num_local_experts", "num_experts_per_tok", "experts_per_token", "swiglu_limit", "swiglu_alpha",
    "initial_context_length" /* of yarn, which has it */, EXPERT_KEYS_TRAINING, NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", "expert_feed_forward_length", NULL};

const struct arch arch_gpt_oss = {
    .name = "gpt_oss", .gguf = "gpt-oss", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
