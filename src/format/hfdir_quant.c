/* format/hfdir_quant.c - what config.json says about the form of the weights: plain, MLX affine or MXFP4, MXFP4; all else is refused
 * by name.
 *
 *   "quantization": {"bits": 4, "group_size": 64, "mode": "affine", "model.layers.0.mlp.down_proj": {"bits": 6, ...} | true |
 * false} "quantization_config": {"quant_method": "mxfp4", ...}, or MLX's copy of the above
 *
 * Owns:       the list of layers named in `quantization`.
 * Invariants: every bits and group_size kept is one of those the formats have. */
#include "format/hfdir_int.h"

#include "base/mem.h"

enum { MLX_BITS_DEFAULT = 4, MLX_GROUP_DEFAULT = 64 }; /* of a layer's object that leaves them out */

static int check_sizes(uint32_t bits, uint32_t group, const char *where, const char *layer, struct err *err)
{
    if (bits < 2 || bits > 8 || bits == 7)
        return err_set(err, ERR_UNSUPPORTED, "%s: %s: bits: expected 2, 3, 4, 5, 6 or 8, got %u", where, layer, bits);
    if (group != 32 && group != 64 && group != 128)
        return err_set(err, ERR_UNSUPPORTED, "%s: %s: group_size: expected 32, 64 or 128, got %u", where, layer, group);
    return 0;
}

/* bits, group_size and mode of one object. */
static int read_form(yyjson_val *o, struct hf_form *form, const char *where, const char *layer, struct err *err)
{
    struct str mode = STR("affine");
    char show[NAMES_SHOW_MAX];
    int rc = json_get_str(o, "mode", &mode, where, err);
    form->mxfp4 = str_is(mode, "mxfp4");
    if (!rc && !form->mxfp4 && !str_is(mode, "affine"))
        return err_set(err, ERR_UNSUPPORTED, "%s: %s: MLX quantization mode '%s' is not supported: expected 'affine' or 'mxfp4'", where,
                       layer, names_show(mode, show));
    form->bits = MLX_BITS_DEFAULT;
    form->group = form->mxfp4 ? 32 : MLX_GROUP_DEFAULT;
    if (!rc)
        rc = json_get_u32(o, "bits", &form->bits, where, err);
    if (!rc)
        rc = json_get_u32(o, "group_size", &form->group, where, err);
    if (!rc && form->mxfp4 && (form->bits != 4 || form->group != 32))
        return err_set(err, ERR_UNSUPPORTED, "%s: %s: mxfp4 of %u bits in groups of %u: expected 4 and 32", where, layer, form->bits,
                       form->group);
    return rc ? rc : check_sizes(form->bits, form->group, where, layer, err);
}

static int read_layer(struct hf_quant *q, struct str name, yyjson_val *v, const char *where, struct err *err)
{
    struct hf_layer *l = &q->layers[q->n_layers];
    char show[NAMES_SHOW_MAX];
    names_show(name, show);
    if (!yyjson_is_bool(v) && !yyjson_is_obj(v))
        return err_set(err, ERR_FORMAT, "%s: quantization: '%s': expected true, false or an object, got %s", where, show,
                       json_type_name(v));
    *l = (struct hf_layer){.name = name, .quantised = !yyjson_is_false(v), .form = q->form};
    int rc = yyjson_is_obj(v) ? read_form(v, &l->form, where, show, err) : 0;
    if (!rc && names_add(&q->names, q->n_layers) != q->n_layers)
        rc = err_set(err, ERR_FORMAT, "%s: quantization: '%s': expected each key once, got it twice", where, show);
    q->n_layers++;
    return rc;
}

static int read_mlx(struct hf_quant *q, yyjson_val *o, const char *where, struct err *err)
{
    size_t count = yyjson_obj_size(o);
    int rc = read_form(o, &q->form, where, "quantization", err);
    if (rc)
        return rc;
    q->mlx = true;
    q->layers = mem_try_zero(count, sizeof *q->layers);
    if (!q->layers)
        return err_nomem(err, "quantization of layers", count * sizeof *q->layers);
    rc = names_init(&q->names, q->layers, sizeof *q->layers, count, err);
    yyjson_obj_iter it;
    yyjson_obj_iter_init(o, &it);
    for (yyjson_val *k; !rc && (k = yyjson_obj_iter_next(&it));) {
        struct str key = json_str(k);
        if (!str_is(key, "bits") && !str_is(key, "group_size") && !str_is(key, "mode"))
            rc = read_layer(q, key, yyjson_obj_iter_get_val(k), where, err);
    }
    return rc;
}

/* quantization_config: nothing, MXFP4, or MLX's copy of `quantization`. */
static int read_method(yyjson_val *o, bool *mlx_copy, const char *where, struct err *err)
{
    struct str method = {0};
    char show[NAMES_SHOW_MAX];
    *mlx_copy = false;
    if (!o || yyjson_is_null(o))
        return 0;
    if (!yyjson_is_obj(o))
        return err_set(err, ERR_FORMAT, "%s: quantization_config: expected an object, got %s", where, json_type_name(o));
    int rc = json_get_str(o, "quant_method", &method, where, err);
    if (rc)
        return rc;
    if (!method.p && yyjson_obj_get(o, "bits") && yyjson_obj_get(o, "group_size")) {
        *mlx_copy = true;
        return 0;
    }
    if (method.p && str_is(method, "mxfp4"))
        return 0;
    return err_set(err, ERR_UNSUPPORTED, "%s: quantization_config: quant_method '%s' is not supported (MLX affine and mxfp4 are)",
                   where, method.p ? names_show(method, show) : "(none)");
}

int hf_quant_parse(struct hf_quant *q, yyjson_val *config, const char *where, struct err *err)
{
    yyjson_val *places[] = {config, yyjson_obj_get(config, "text_config")};
    *q = (struct hf_quant){0};
    for (size_t i = 0; i < 2; i++) {
        yyjson_val *mlx = yyjson_obj_get(places[i], "quantization"), *other = yyjson_obj_get(places[i], "quantization_config");
        bool copy;
        int rc = read_method(other, &copy, where, err);
        if (rc)
            return rc;
        if (!mlx || yyjson_is_null(mlx))
            mlx = copy ? other : NULL;
        if (!mlx || q->mlx)
            continue;
        if (!yyjson_is_obj(mlx))
            return err_set(err, ERR_FORMAT, "%s: quantization: expected an object, got %s", where, json_type_name(mlx));
        if ((rc = read_mlx(q, mlx, where, err)))
            return rc;
    }
    return 0;
}

void hf_quant_free(struct hf_quant *q)
{
    names_free(&q->names);
    mem_free(q->layers);
    *q = (struct hf_quant){0};
}
