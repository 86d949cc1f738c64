/* models/phi3.c - Phi-3, Phi-3.5 and Phi-4-mini: q, k, v in one tensor, gate and up in another; LongRoPE; partial rotary. */
#include "models/decoder_binds.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_O, BINDS_MLP_FUSED,
    {.kind = BIND_VEC, .slot = V_ROPE_LONG, .gguf = "rope_factors_long.weight", .rows = DIM_ROT_HALF, .cols = DIM_1,
     .when = HP_ROPE_LONG},
    {.kind = BIND_VEC, .slot = V_ROPE_SHORT, .gguf = "rope_factors_short.weight", .rows = DIM_ROT_HALF, .cols = DIM_1,
     .when = HP_ROPE_LONG}};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    static const struct config_fact facts[] = {{"full_attn_mod", NULL, 1.0}, {"interpolate_factor", NULL, 1.0}}; /* Phi-4-mini spells them out */
    hp->eps = 1e-5f;
    hp->rope[0].original = 4096;
    int rc = config_read_common(hp, cfg, err);
    rc = rc != 0 ? rc : config_check_facts(cfg, facts, sizeof facts / sizeof facts[0], err);
    hp->flags |= HP_FUSED_QKV | HP_FUSED_GATE_UP;
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "original_max_position_embeddings", &hp->rope[0].original, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    memset(hp->sliding, hp->window != 0, sizeof hp->sliding);
    return rc;
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = metadata_read_common(hp, md, err);
    hp->flags |= HP_FUSED_GATE_UP; /* q, k and v may be apart */
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) {
        rc = metadata_u32(md, "attention.sliding_window", &hp->window, err);
    }
    memset(hp->sliding, hp->window != 0, sizeof hp->sliding);
    return rc;
}

static const char *const model_types[] = {"phi3", NULL};
static const char *const config_keys[] = {"sliding_window", "original_max_position_embeddings", "full_attn_mod", "interpolate_factor", NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", NULL};

const struct arch arch_phi3 = {
    .name = "phi3", .gguf = "phi3", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
