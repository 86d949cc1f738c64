/* models/deepseek.c - DeepSeek V3 and V2: latent attention, and behind the first layers a mixture of experts with shared ones.
 * V3 chooses by sigmoid and a bias, in groups by their two best; V2 by softmax, in groups by their best, and does not bring the
 * weights to a sum of 1.  A GGUF file of GLM 4 MoE lite has this architecture's name too. */
#include "models/mla_binds.h"

#include <stdio.h>

static const struct bind binds[] = {BINDS_ENDS, BINDS_PRE_NORMS, BINDS_MLA, BINDS_MLA_EXPERTS};

static void defaults_v3(struct hparams *hp)
{
    hp->mla = (struct mla_params){.rank = 512, .q_rank = 1536, .nope = 128, .rope = 64, .v = 128};
    hp->moe = (struct experts_params){.experts = 256, .used = 8, .ffn = 2048, .shared_ffn = 2048, .score = ROUTE_SIGMOID, .groups = 8,
                                      .group_top = 4, .group_best = 2, .normalise = true, .scale = 2.5f};
    hp->flags |= HP_ROUTE_BIAS;
    hp->pairing = ROPE_ADJACENT;
    hp->context_train = 4096;
}

static void defaults_v2(struct hparams *hp)
{
    defaults_v3(hp);
    hp->moe = (struct experts_params){.experts = 64, .ffn = 1407, .shared_ffn = 2 * 1407, .score = ROUTE_SOFTMAX, .group_best = 1,
                                      .scale = 1.0f};
    hp->flags &= ~(uint32_t)HP_ROUTE_BIAS;
    hp->context_train = 2048;
}

/* V2's ways to choose, and what it does not do. */
static int check_v2(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    struct str method = STR("greedy");
    int rc = json_get_str(cfg->root, "topk_method", &method, cfg->where, err);
    if (rc == 0 && hp->moe.normalise) {
        return err_set(err, ERR_UNSUPPORTED, "%s: norm_topk_prob true is not supported for deepseek_v2", cfg->where);
    }
    if (rc == 0 && str_is(method, "greedy")) {
        hp->moe.groups = 0;
    } else if (rc == 0 && !str_is(method, "group_limited_greedy")) {
        rc = err_set(err, ERR_UNSUPPORTED, "%s: topk_method '%.*s' is not supported", cfg->where, STR_ARG(method));
    }
    const struct config_fact score = {"scoring_func", "softmax", 0.0};
    return rc != 0 ? rc : config_check_facts(cfg, &score, 1, err);
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool v2 = str_is(json_str(yyjson_obj_get(cfg->root, "model_type")), "deepseek_v2");
    static const struct config_fact facts[] = {{"moe_layer_freq", NULL, 1.0}, {"topk_method", "noaux_tc", 0.0}, {"scoring_func", "sigmoid", 0.0}};
    (v2 ? defaults_v2 : defaults_v3)(hp);
    int rc = mla_moe_read_config(hp, cfg, err);
    for (uint32_t i = 0; rc == 0 && !v2 && i < 3 && yyjson_obj_get(cfg->root, "first_k_dense_replace") == NULL; i++) {
        hp->dense[i] = 1;
    }
    rc = rc != 0 ? rc : config_check_facts(cfg, facts, v2 ? 1 : sizeof facts / sizeof facts[0], err);
    return rc != 0 || !v2 ? rc : check_v2(hp, cfg, err);
}

static bool has_route_bias(const struct hparams *hp, const struct metadata_reader *md)
{
    bool has = false;
    for (uint32_t i = 0; i < hp->layers && !has; i++) {
        char name[48];
        snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", i);
        has = gguf_tensor_find(md->gguf, str_of(name)) != NULL;
    }
    return has;
}

/* Files that do not say how experts are chosen: those with a bias of the choice have the sigmoid. */
static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->moe.scale = 1.0f;
    int rc = mla_read_metadata(hp, md, err);
    rc = rc != 0 ? rc : metadata_drop_predictors(hp, md, err);
    if (rc != 0) {
        return rc;
    }
    bool bias = has_route_bias(hp, md);
    hp->flags |= bias ? HP_ROUTE_BIAS : 0;
    hp->moe.score = bias ? ROUTE_SIGMOID : ROUTE_SOFTMAX;
    rc = experts_read_metadata(hp, md, err);
    hp->moe.group_best = hp->moe.score == ROUTE_SIGMOID ? 2 : 1;
    return rc;
}

static const char *const model_types[] = {"deepseek_v3", "deepseek_v2", NULL};
static const char *const config_keys[] = {MLA_CONFIG_KEYS, "mlp_bias", NULL};
static const char *const metadata_keys[] = {
    "attention.kv_lora_rank", "attention.q_lora_rank", "attention.key_length_mla", "attention.value_length_mla",
    "expert_feed_forward_length", "expert_shared_count", "expert_group_count", "expert_group_used_count", "expert_gating_func",
    "expert_weights_norm", "expert_weights_scale", "leading_dense_block_count", "nextn_predict_layers", NULL};

const struct arch arch_deepseek = {
    .name = "deepseek", .gguf = "deepseek2", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
