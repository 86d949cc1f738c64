/* models/glm4_moe_lite.c - GLM 4 MoE lite: DeepSeek V3's attention and routing, of other sizes; the first layer alone is dense, or as
 * mlp_layer_types says.  (Its GGUF files name DeepSeek's architecture.) */
#include "models/mla_binds.h"

static const struct bind binds[] = {BINDS_ENDS, BINDS_PRE_NORMS, BINDS_MLA, BINDS_MLA_EXPERTS};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    static const struct config_fact facts[] = {{"topk_method", "noaux_tc", 0.0}, {"scoring_func", "sigmoid", 0.0}};
    uint32_t dense = 1;
    hp->mla = (struct mla_params){.rank = 512, .q_rank = 768, .nope = 192, .rope = 64, .v = 256};
    hp->moe = (struct experts_params){.experts = 64, .used = 4, .ffn = 1536, .shared_ffn = 1536, .score = ROUTE_SIGMOID, .group_best = 2,
                                      .normalise = true, .scale = 1.8f};
    hp->flags |= HP_ROUTE_BIAS;
    hp->pairing = ROPE_ADJACENT;
    hp->eps = 1e-5f;
    hp->context_train = 202752;
    int rc = mla_moe_read_config(hp, cfg, err);
    if (rc == 0 && !yyjson_is_arr(yyjson_obj_get(cfg->root, "mlp_layer_types"))) {
        rc = json_get_u32(cfg->root, "first_k_dense_replace", &dense, cfg->where, err);
        hp->dense[0] = 1;
    }
    if (rc == 0 && dense != 1) {
        return err_set(err, ERR_UNSUPPORTED, "%s: first_k_dense_replace %u without mlp_layer_types: expected 1", cfg->where, dense);
    }
    return rc != 0 ? rc : config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    (void)hp;
    return err_set(err, ERR_UNSUPPORTED, "architecture '%s' has no GGUF files of its own", md->arch);
}

static const char *const model_types[] = {"glm4_moe_lite", NULL};
static const char *const config_keys[] = {MLA_CONFIG_KEYS, "mlp_layer_types", NULL};

const struct arch arch_glm4_moe_lite = {
    .name = "glm4_moe_lite", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
