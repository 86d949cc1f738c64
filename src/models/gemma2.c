/* models/gemma2.c - Gemma 2: sliding and full layers in turn, soft caps on scores and logits, norms before and after each block with
 * weight 1 + w (GGUF files have the 1 added already), scaled embedding. */
#include "models/gemma.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_GEMMA_NORMS};

static void defaults(struct hparams *hp)
{
    hp->flags |= HP_POST_NORM;
    hp->act = ACT_GELU_TANH;
    hp->head_dim = 256;
    hp->context_train = 8192;
    hp->window = 4096;
    hp->attn_softcap = 50.0f;
    hp->final_softcap = 30.0f;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    defaults(hp);
    hp->heads = 8, hp->kv_heads = 4, hp->vocab = 256000;
    hp->flags |= HP_TIED;
    hp->norm_shift = 1.0f;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    return rc != 0 ? rc : gemma_read_layers(hp, cfg, 2, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    defaults(hp);
    int rc = gemma_read_metadata(hp, md, 46, err);
    hparams_layers_by_period(hp, 2);
    return rc;
}

static const char *const model_types[] = {"gemma2", NULL};
static const char *const config_keys[] = {"query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
                                          "sliding_window", "sliding_window_size" /* the same again */, "use_bidirectional_attention", "layer_types", "hidden_activation", NULL};
static const char *const metadata_keys[] = {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping", NULL};

const struct arch arch_gemma2 = {
    .name = "gemma2", .gguf = "gemma2", .model_types = model_types, .config_keys = config_keys, .metadata_keys = metadata_keys,
    .read_config = read_config, .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0],
    .layer = decoder_layer};
