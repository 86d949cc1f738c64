/* models/qwen3_next.c - Qwen3-Next: the layers of qwen3_5.c with experts and a gated shared one.
 *
 * What its delta nets read of the stream is two tensors: q, k, v and z of every key head together, and both gates of every key head
 * together.  GGUF files have q, k and v of all heads, and z; the gates as they were.  Value heads of one key head are neighbours in both. */
#include "models/qwen.h"

#define QKVZ "model.layers.%u.linear_attn.in_proj_qkvz"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_DELTA_LAYERS,
    BIND_NAMED(W_STATE_IN, NULL, QKVZ, DIM_STATE_COLS, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT, .of = DIM_STATE_GROUPS,
               .group = DIM_STATE_GROUP, .map = MAP_STATE_IN),
    BIND_NAMED(W_STATE_GATE, NULL, QKVZ, DIM_STATE_OUT, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT, .first = DIM_CHANNEL_HEAD,
               .of = DIM_STATE_GROUPS, .group = DIM_STATE_GROUP),
    BIND_NAMED(W_STATE_IN, "blk.%u.attn_qkv", NULL, DIM_STATE_COLS, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT),
    BIND_NAMED(W_STATE_GATE, "blk.%u.attn_gate", NULL, DIM_STATE_OUT, DIM_HIDDEN, SPLIT_NONE, .layers = LAYERS_RECURRENT),
    BIND_STATE_MATRIX(W_STATE_B, "ssm_ba", "in_proj_ba", DIM_STATE_VALUES, .of = DIM_2_STATE_VALUES, .group = DIM_2_VALUES),
    BIND_STATE_MATRIX(W_STATE_A, "ssm_ba", "in_proj_ba", DIM_STATE_VALUES, .first = DIM_VALUES, .of = DIM_2_STATE_VALUES,
                      .group = DIM_2_VALUES),
    BINDS_QWEN_EXPERTS};

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    return qwen_moe_read_config(hp, 512, 10, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    int rc = qwen_moe_read_metadata(hp, md, err);
    hp->state_tiled = false;
    return rc;
}

static const char *const model_types[] = {"qwen3_next", NULL};
static const char *const config_keys[] = {DELTA_CONFIG_KEYS, QWEN_EXPERT_CONFIG_KEYS, NULL};
static const char *const metadata_keys[] = {DELTA_METADATA_KEYS, QWEN_EXPERT_METADATA_KEYS, NULL};

const struct arch arch_qwen3_next = {
    .name = "qwen3_next", .gguf = "qwen3next", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
