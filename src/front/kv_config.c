/* front/kv_config.c - the formats a model's state is opened with: "K[:V]", and kv_config.json over it, layer by layer.
 *
 *   [{"layer": 0, "format": "q8"}, {"layer": 5, "bits": 4, "group_size": 64}]     layers not named keep the default
 * bits 8 and 4 with group_size 32, 64 or 128 (default 64) are the affine formats. */
#include "base/json.h"
#include "base/mem.h"
#include "front/front_int.h"

enum { LAYERS_MAX = 4096 };

static int entry_formats(yyjson_val *entry, const char *where, struct model_kv_layer *out, struct err *err)
{
    struct str format = {0};
    uint32_t bits = 0, group = 64;
    char name[KV_NAME_MAX];
    int rc = json_get_str(entry, "format", &format, where, err);
    if (rc == 0)
        rc = json_get_u32(entry, "bits", &bits, where, err);
    if (rc == 0)
        rc = json_get_u32(entry, "group_size", &group, where, err);
    if (rc)
        return rc;
    if ((format.p != NULL) == (bits != 0))
        return err_set(err, ERR_FORMAT, "%s: expected one of format and bits", where);
    if (!format.p) {
        snprintf(name, sizeof name, "a%ug%u", bits, group);
        format = str_of(name);
    }
    if (kv_formats_parse(format.p, format.n, &out->k_format, &out->v_format))
        return err_set(err, ERR_FORMAT, "%s: '%.*s' is no format: expected %s", where, (int)(format.n < 64 ? format.n : 64), format.p,
                       kv_formats_text);
    return 0;
}

static int entry_read(yyjson_val *entry, size_t index, struct model_kv_layer *out, struct err *err)
{
    static const char *const known[] = {"layer", "format", "bits", "group_size"};
    char where[40];
    size_t i, n;
    yyjson_val *key, *value;
    snprintf(where, sizeof where, "kv config: entry %zu", index);
    if (!yyjson_is_obj(entry))
        return err_set(err, ERR_FORMAT, "%s: expected an object, got %s", where, json_type_name(entry));
    yyjson_obj_foreach(entry, i, n, key, value)
    {
        bool found = false;
        for (size_t k = 0; k < sizeof known / sizeof *known; k++)
            found |= yyjson_equals_str(key, known[k]);
        if (!found)
            return err_set(err, ERR_FORMAT, "%s: unknown key '%.64s'", where, yyjson_get_str(key));
    }
    if (!yyjson_obj_get(entry, "layer"))
        return err_set(err, ERR_FORMAT, "%s: no layer", where);
    int rc = json_get_u32(entry, "layer", &out->layer, where, err);
    return rc ? rc : entry_formats(entry, where, out, err);
}

static int config_read(struct rh_model *m, yyjson_val *root, struct err *err)
{
    size_t i, n;
    yyjson_val *entry;
    if (!yyjson_is_arr(root) || yyjson_arr_size(root) > LAYERS_MAX)
        return err_set(err, ERR_FORMAT, "kv config: expected a list of at most %d objects", LAYERS_MAX);
    m->kv_layers = mem_try_zero(yyjson_arr_size(root) + 1, sizeof *m->kv_layers);
    if (!m->kv_layers)
        return err_nomem(err, "kv config", yyjson_arr_size(root) * sizeof *m->kv_layers);
    yyjson_arr_foreach(root, i, n, entry)
    {
        struct model_kv_layer l = {0};
        uint32_t at = m->options.kv_layer_count;
        int rc = entry_read(entry, i, &l, err);
        if (rc)
            return rc;
        for (; at > 0 && m->kv_layers[at - 1].layer >= l.layer; at--) { /* ascending */
            if (m->kv_layers[at - 1].layer == l.layer)
                return err_set(err, ERR_FORMAT, "kv config: layer %u is named twice", l.layer);
            m->kv_layers[at] = m->kv_layers[at - 1];
        }
        m->kv_layers[at] = l;
        m->options.kv_layer_count++;
    }
    return 0;
}

static int name_read(const char *text, enum kv_format *k, enum kv_format *v, struct err *err)
{
    if (kv_formats_parse(text, strlen(text), k, v))
        return err_set(err, ERR_ARGUMENT, "kv: expected K or K:V of %s, got '%.64s'", kv_formats_text, text);
    return 0;
}

int rh_kv_check(const char *kv, struct rh_error *rerr)
{
    enum kv_format k, v;
    struct err err = {0};
    int rc = name_read(kv, &k, &v, &err);
    return rc ? front_error(rerr, &err, rc) : 0;
}

int kv_config_read(struct rh_model *m, const struct rh_model_options *opt, struct err *err)
{
    int named = name_read(opt->kv ? opt->kv : "f16", &m->options.k_format, &m->options.v_format, err);
    if (named)
        return named;
    if (!opt->kv_config.p)
        return 0;
    yyjson_doc *doc = json_parse(front_str(opt->kv_config), "kv config", err);
    if (!doc)
        return err->code ? err->code : ERR_FORMAT;
    int rc = config_read(m, yyjson_doc_get_root(doc), err);
    m->options.kv_layers = m->kv_layers;
    json_free(doc);
    return rc;
}

void kv_config_put(const struct rh_model *m, struct buf *out)
{
    char name[KV_NAME_MAX];
    buf_z(out, kv_formats_name(m->options.k_format, m->options.v_format, name));
    for (uint32_t i = 0; i < m->options.kv_layer_count; i++) {
        const struct model_kv_layer *l = &m->kv_layers[i];
        buf_printf(out, ",%u=%s", l->layer, kv_formats_name(l->k_format, l->v_format, name));
    }
}
