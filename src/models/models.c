/* models/models.c - open, inspect and close a model; the list of architectures. */
#include "models/arch.h"

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"

#include <stdio.h>

static const struct arch *const archs[] = {
#define ARCH_ENTRY(id) &arch_##id,
    ARCH_LIST(ARCH_ENTRY)
#undef ARCH_ENTRY
};
enum { ARCH_COUNT = sizeof archs / sizeof archs[0] };

uint32_t model_arch_count(void)
{
    return ARCH_COUNT;
}

const char *model_arch_name(uint32_t i)
{
    return archs[i]->name;
}

static const struct arch *arch_of_gguf(struct str name, const char **own)
{
    for (uint32_t i = 0; i < ARCH_COUNT; i++) {
        const char *const names[] = {archs[i]->gguf, archs[i]->gguf_experts};
        for (int n = 0; n < 2; n++) {
            if (names[n] != NULL && str_is(name, names[n])) {
                *own = names[n];
                return archs[i];
            }
        }
    }
    return NULL;
}

static const struct arch *arch_of_type(struct str type)
{
    for (uint32_t i = 0; i < ARCH_COUNT; i++) {
        for (const char *const *t = archs[i]->model_types; *t != NULL; t++) {
            if (str_is(type, *t)) {
                return archs[i];
            }
        }
    }
    return NULL;
}

static int hparams_complete(struct hparams *hp, struct err *err)
{
    hparams_finish(hp);
    return hparams_check(hp, err);
}

/* Values that hold where a file says nothing. */
static void hparams_defaults(struct hparams *hp)
{
    *hp = (struct hparams){.eps = 1e-6f, .act = ACT_SILU, .embed_scale = 1.0f, .residual_scale = 1.0f, .logit_scale = 1.0f,
                           .pairing = ROPE_HALVES, .rope_sets = 1, .context_train = 2048, .moe.scale = 1.0f};
    for (uint32_t s = 0; s < MODEL_ROPE_SETS; s++) {
        hp->rope[s].theta = 10000.0;
        hp->rope[s].beta_fast = 32.0;
        hp->rope[s].beta_slow = 1.0;
        hp->rope[s].truncate = true;
    }
}

int hparams_of_gguf(const struct gguf *gguf, const struct arch **arch, struct hparams *hp, struct err *err)
{
    struct str name = {0};
    int rc = gguf_get_str(gguf, "general.architecture", &name, err);
    if (rc != 0) {
        return rc;
    }
    struct metadata_reader md = {.gguf = gguf};
    *arch = arch_of_gguf(name, &md.arch);
    if (*arch == NULL) {
        return err_set(err, ERR_UNSUPPORTED, "architecture '%.*s' is not supported", STR_ARG(name));
    }
    hparams_defaults(hp);
    rc = metadata_check_keys(&md, *arch, err);
    rc = rc != 0 ? rc : (*arch)->read_metadata(hp, &md, err);
    return rc != 0 ? rc : hparams_complete(hp, err);
}

/* Types of what has a text model of another type inside. */
static bool surrounds(struct str type)
{
    return str_is(type, "mistral3");
}

int hparams_of_config(yyjson_val *config, const struct arch **arch, struct hparams *hp, struct err *err)
{
    struct config_reader cfg = {.outer = config, .where = "config.json"};
    yyjson_val *text = yyjson_obj_get(cfg.outer, "text_config");
    cfg.root = yyjson_is_obj(text) ? text : cfg.outer;
    struct str type = json_str(yyjson_obj_get(cfg.outer, "model_type")), inner = json_str(yyjson_obj_get(cfg.root, "model_type"));
    *arch = arch_of_type(inner.p != NULL ? inner : type);
    bool fits = *arch != NULL && (arch_of_type(type) == *arch || (cfg.root != cfg.outer && surrounds(type)));
    if (!fits) {
        struct str which = *arch == NULL && inner.p != NULL && surrounds(type) ? inner : type;
        return err_set(err, ERR_UNSUPPORTED, "config.json: model_type '%.*s' is not supported", STR_ARG(which));
    }
    hparams_defaults(hp);
    int rc = config_check_keys(&cfg, *arch, err);
    rc = rc != 0 ? rc : (*arch)->read_config(hp, &cfg, err);
    return rc != 0 ? rc : hparams_complete(hp, err);
}

/* LongRoPE picks its factors by the context, so without one it is the context before scaling. */
static int context_choose(struct model *m, struct err *err)
{
    const struct rope_params *p = &m->hp.rope[0];
    uint32_t own = m->hp.context_train;
    if (p->kind == ROPE_LONGROPE && p->original != 0 && p->original < own) {
        own = p->original;
    }
    m->context = m->opt.context ? m->opt.context : own;
    if (m->context > (1u << 30)) {
        return err_set(err, ERR_ARGUMENT, "context %u: expected at most 2^30", m->context);
    }
    if (m->context > m->hp.context_train) {
        log_put(LOG_WARN, "context %u is longer than the %u the model was made for", m->context, m->hp.context_train);
    }
    return 0;
}

static int kv_layers_check(const struct model *m, struct err *err)
{
    bool attends = false;
    for (uint32_t i = 0; i < m->hp.layers; i++) {
        const struct kv_layer_spec *l = &m->kv_layers[i];
        char name[KV_NAME_MAX];
        attends |= l->policy != KV_RECURRENT;
        struct kv_layer shape = kv_layer_shape(l);
        if (l->policy != KV_RECURRENT && l->latent && l->k_format != l->v_format) {
            return err_set(err, ERR_UNSUPPORTED, "layer %u: KV format %s: keys and values are one vector here and have one format", i,
                           kv_formats_name(l->k_format, l->v_format, name));
        }
        if (l->policy != KV_RECURRENT && !device_backend(m->device)->kv_format_supported(m->device, &shape)) {
            return err_set(err, ERR_UNSUPPORTED, "layer %u: KV format %s cannot hold heads of %u elements%s", i,
                           kv_formats_name(l->k_format, l->v_format, name), l->d_k, l->latent ? " that are keys and values in one" : "");
        }
    }
    if (m->opt.kv_start != 0 && !attends) {
        return err_set(err, ERR_UNSUPPORTED, "kv start %u: no layer of %s keeps keys and values", m->opt.kv_start, m->arch->name);
    }
    return 0;
}

/* A layer that reads another's K and V stores nothing: what it has is the other's. */
static int kv_layers_share(struct model *m, struct err *err)
{
    for (uint32_t i = 0; i < m->opt.kv_layer_count; i++) {
        uint32_t layer = m->opt.kv_layers[i].layer, from = m->hp.kv_from[layer];
        if (m->hp.mlp_only[layer]) {
            return err_set(err, ERR_FORMAT, "kv config: layer %u stores nothing", layer);
        }
        if (m->hp.recurrent[layer]) {
            return err_set(err, ERR_FORMAT, "kv config: layer %u is recurrent: it keeps no keys and values", layer);
        }
        if (from != 0) {
            return err_set(err, ERR_FORMAT, "kv config: layer %u reads what layer %u stores: it has no format of its own", layer,
                           from - 1);
        }
    }
    for (uint32_t i = 0; i < m->hp.layers; i++) {
        uint32_t from = m->hp.kv_from[i];
        if (m->hp.mlp_only[i]) { /* stores nothing: named as the layer before it has it */
            from = m->kv_layers[i - 1].shares != 0 ? m->kv_layers[i - 1].shares : i;
        }
        if (from != 0) {
            m->kv_layers[i] = m->kv_layers[from - 1];
            m->kv_layers[i].shares = from;
        }
    }
    return 0;
}

static int kv_layers_make(struct model *m, struct err *err)
{
    const struct hparams *hp = &m->hp;
    m->kv_layers = mem_try_zero(hp->layers, sizeof *m->kv_layers);
    if (m->kv_layers == NULL) {
        return err_nomem(err, "state layout", hp->layers * sizeof *m->kv_layers);
    }
    for (uint32_t i = 0; i < hp->layers; i++) {
        if (hp->recurrent[i]) {
            m->kv_layers[i] = (struct kv_layer_spec){.policy = KV_RECURRENT, .state = hp->state};
            continue;
        }
        bool slides = hp->sliding[i] && hp->window != 0 && hp->window < m->context;
        m->kv_layers[i] = (struct kv_layer_spec){
            .policy = slides ? KV_WINDOW : KV_FULL, .window = slides ? hp->window : 0, .n_kv_heads = hp->shape[i].kv_heads,
            .d_k = hp->shape[i].head_dim, .d_v = hp->shape[i].head_dim, .k_format = m->opt.k_format,
            .v_format = m->opt.v_format};
        if (hp->mla.rank != 0) {
            m->kv_layers[i].n_kv_heads = 1;
            m->kv_layers[i].d_k = hp->mla.rank + hp->mla.rope;
            m->kv_layers[i].d_v = hp->mla.rank;
            m->kv_layers[i].latent = 1;
        }
    }
    for (uint32_t i = 0; i < m->opt.kv_layer_count; i++) {
        const struct model_kv_layer *own = &m->opt.kv_layers[i];
        if (own->layer >= hp->layers) {
            return err_set(err, ERR_FORMAT, "kv config: layer %u: the model has %u", own->layer, hp->layers);
        }
        m->kv_layers[own->layer].k_format = own->k_format;
        m->kv_layers[own->layer].v_format = own->v_format;
    }
    int rc = kv_layers_share(m, err);
    return rc != 0 ? rc : kv_layers_check(m, err);
}

static void info_name(struct model *m, const char *path)
{
    struct str name = {0};
    if (m->gguf != NULL) {
        gguf_get_str(m->gguf, "general.name", &name, NULL);
    }
    if (name.p == NULL || name.n == 0) {
        name = str_of(path);
        while (name.n > 1 && name.p[name.n - 1] == '/') {
            name.n--;
        }
        for (size_t i = name.n; i-- > 0;) {
            if (name.p[i] == '/') {
                name = str_from(name, i + 1);
                break;
            }
        }
    }
    snprintf(m->info.name, sizeof m->info.name, "%.*s", STR_ARG(name));
}

static void info_fill(struct model *m, const char *path)
{
    const struct hparams *hp = &m->hp;
    struct model_info *i = &m->info;
    i->arch = m->arch->name;
    i->format = m->gguf != NULL ? "gguf" : "safetensors";
    i->layers = hp->layers, i->hidden = hp->hidden, i->heads = hp->heads, i->kv_heads = hp->kv_heads;
    i->head_dim = hp->head_dim, i->ffn = hp->ffn, i->vocab = hp->vocab;
    i->experts = hp->moe.experts, i->experts_used = hp->moe.used;
    i->context_train = hp->context_train, i->context = m->context;
    info_name(m, path);
    if (m->gguf != NULL) {
        for (size_t t = 0; t < gguf_tensor_count(m->gguf); t++) {
            i->tensor_bytes += gguf_tensor_at(m->gguf, t)->size_bytes;
        }
    } else {
        for (size_t t = 0; t < hfdir_tensor_count(m->hfdir); t++) {
            i->tensor_bytes += hfdir_tensor_at(m->hfdir, t)->size_bytes;
        }
    }
}

static int files_open(struct model *m, const char *path, struct err *err)
{
    int rc = file_is_dir(path) ? hfdir_open(path, &m->hfdir, err) : gguf_open(path, &m->gguf, err);
    if (rc != 0) {
        return rc;
    }
    return m->gguf != NULL ? hparams_of_gguf(m->gguf, &m->arch, &m->hp, err) : hparams_of_config(hfdir_config(m->hfdir), &m->arch, &m->hp, err);
}

static int open_any(const char *path, struct device *device, const struct model_options *opt, bool plan_only, struct model **out,
                    struct err *err)
{
    *out = NULL;
    struct model *m = mem_try_zero(1, sizeof *m);
    if (m == NULL) {
        return err_nomem(err, "model", sizeof *m);
    }
    m->device = device;
    m->opt = *opt;
    int rc = files_open(m, path, err);
    if (rc == 0) {
        rc = context_choose(m, err);
    }
    if (rc == 0) {
        rc = kv_layers_make(m, err);
    }
    if (rc == 0) {
        rc = model_read_eos(m, err);
    }
    if (rc == 0) {
        rc = source_open(&m->source, m->gguf, m->hfdir, err);
    }
    if (rc == 0) {
        info_fill(m, path);
        rc = model_bind(m, plan_only, err);
    }
    if (rc == 0) {
        m->info.step_bytes = step_plan_bytes(m);
        rc = plan_only ? 0 : step_open(m, err);
    }
    source_close(&m->source);
    if (rc != 0) {
        err_prefix(err, "%s", path);
        model_close(m);
        return rc;
    }
    *out = m;
    return 0;
}

int model_open(const char *path, struct device *device, const struct model_options *opt, struct model **out, struct err *err)
{
    return open_any(path, device, opt, false, out, err);
}

int model_inspect(const char *path, struct device *device, const struct model_options *opt, struct model **out, struct err *err)
{
    return open_any(path, device, opt, true, out, err);
}

void model_close(struct model *m)
{
    if (m == NULL) {
        return;
    }
    step_close(m);
    model_unbind(m);
    source_close(&m->source);
    mem_free(m->kv_layers);
    mem_free(m->eos_ids);
    gguf_close(m->gguf);
    hfdir_close(m->hfdir);
    mem_free(m);
}

const struct model_info *model_info(const struct model *m)
{
    return &m->info;
}

int model_content_hash(struct model *m, struct hash128 *out, struct err *err)
{
    return m->gguf != NULL ? gguf_content_hash(m->gguf, out, err) : hfdir_content_hash(m->hfdir, out, err);
}

const struct gguf *model_gguf(const struct model *m)
{
    return m->gguf;
}

struct hfdir *model_hfdir(const struct model *m)
{
    return m->hfdir;
}

uint32_t model_kv_start(const struct model *m)
{
    return m->opt.kv_start;
}

const struct kv_layer_spec *model_kv_layers(const struct model *m, uint32_t *count)
{
    *count = m->hp.layers;
    return m->kv_layers;
}
