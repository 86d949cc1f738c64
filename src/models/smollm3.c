/* models/smollm3.c - SmolLM3: Llama without rope in every fourth layer, or where the config says. */
#include "models/decoder_binds.h"
#include "models/qwen.h"

static const struct bind binds[] = {
    BINDS_ENDS, BINDS_PRE_NORMS, BINDS_QKV, BINDS_QKV_FUSED, BINDS_QKV_BIAS, BINDS_O, BINDS_O_BIAS, BINDS_MLP, BINDS_MLP_BIAS};

static void no_rope_by_period(struct hparams *hp, uint32_t period)
{
    for (uint32_t i = 0; i < hp->layers && i < MODEL_LAYERS_MAX; i++) {
        hp->no_rope[i] = period != 0 && (i + 1) % period == 0;
    }
}

/* no_rope_layers: one number a layer, 1 where there is rope. */
static int read_no_rope(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    uint32_t period = 4;
    yyjson_val *list = yyjson_obj_get(cfg->root, "no_rope_layers");
    int rc = json_get_u32(cfg->root, "no_rope_layer_interval", &period, cfg->where, err);
    no_rope_by_period(hp, period);
    if (rc != 0 || list == NULL || yyjson_is_null(list)) {
        return rc;
    }
    if (yyjson_arr_size(list) != hp->layers || hp->layers > MODEL_LAYERS_MAX) {
        return err_set(err, ERR_FORMAT, "%s: no_rope_layers: expected a list of %u numbers, got %s of %zu", cfg->where, hp->layers,
                       json_type_name(list), yyjson_arr_size(list));
    }
    yyjson_arr_iter it;
    yyjson_arr_iter_init(list, &it);
    for (uint32_t i = 0; i < hp->layers; i++) {
        yyjson_val *v = yyjson_arr_iter_next(&it);
        if (!yyjson_is_uint(v) || yyjson_get_uint(v) > 1) {
            return err_set(err, ERR_FORMAT, "%s: no_rope_layers[%u]: expected 0 or 1", cfg->where, i);
        }
        hp->no_rope[i] = yyjson_get_uint(v) == 0;
    }
    return 0;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    hp->flags |= HP_TIED;
    hp->kv_heads = 4, hp->context_train = 32768;
    hp->rope[0].theta = 2e6;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = config_read_rope(hp, 0, cfg, NULL, err);
    }
    if (rc == 0) {
        rc = read_no_rope(hp, cfg, err);
    }
    return rc != 0 ? rc : qwen_read_sliding(hp, cfg, err);
}

static int read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    hp->pairing = ROPE_ADJACENT;
    int rc = metadata_read_common(hp, md, err);
    no_rope_by_period(hp, 4); /* the file does not say */
    return rc != 0 ? rc : metadata_read_rope(hp, md, err);
}

static const char *const model_types[] = {"smollm3", NULL};
static const char *const config_keys[] = {"no_rope_layers", "no_rope_layer_interval", "layer_types", "sliding_window",
                                          "use_sliding_window", "max_window_layers", "mlp_bias", NULL};

const struct arch arch_smollm3 = {
    .name = "smollm3", .gguf = "smollm3", .model_types = model_types, .config_keys = config_keys, .read_config = read_config,
    .read_metadata = read_metadata, .binds = binds, .bind_count = sizeof binds / sizeof binds[0], .layer = decoder_layer};
