/* models/olmo3.c - OLMo 3: OLMo 2 with sliding layers, three of four; scaled rope turns full layers only.
 * Their GGUF files call themselves "olmo2". */
#include "models/olmo.h"

static int read_rope(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    hp->rope[0].theta = hp->rope[1].theta = 500000.0;
    if (yyjson_obj_get(yyjson_obj_get(cfg->root, "rope_parameters"), "full_attention") != NULL) {
        int rc = config_read_rope(hp, 0, cfg, "full_attention", err);
        return rc != 0 ? rc : config_read_rope(hp, 1, cfg, "sliding_attention", err);
    }
    int rc = config_read_rope(hp, 0, cfg, NULL, err);
    hp->rope[1].theta = hp->rope[0].theta;
    return rc;
}

static int read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    bool known = false;
    olmo_defaults(hp);
    hp->rope_sets = 2;
    hp->window = 4096;
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = read_rope(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "sliding_window", &hp->window, cfg->where, err);
    }
    if (rc == 0) {
        rc = config_read_layer_types(hp, cfg, &known, err);
    }
    if (rc == 0 && !known) {
        hparams_layers_by_period(hp, 4);
    }
    return rc;
}

static const char *const model_types[] = {"olmo3", NULL};
static const char *const config_keys[] = {"sliding_window", "layer_types", NULL};

const struct arch arch_olmo3 = {
    .name = "olmo3", .model_types = model_types, .config_keys = config_keys, .read_config = read_config, .binds = olmo_binds,
    .bind_count = OLMO_BINDS, .layer = decoder_layer};
