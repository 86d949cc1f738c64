/* format/hfdir.c - a Hugging Face model directory: config.json, one safetensors file or an indexed set, weights as sources.
 *
 * Owns:       shards (mappings, headers), the array of all tensors with its table, parsed configs, texts read by hfdir_file.
 * Invariants: 1. the arrays never move after opening;
 *             2. with an index, every entry names a tensor of the file it says, and every tensor has an entry.
 * Does not:   look outside its directory: file names of the index are plain names. */
#include "format/safetensors.h"

#include "base/mem.h"
#include "format/hfdir_int.h"

#include <stdio.h>

enum {
    CONFIG_BYTES_MAX = 16 << 20,
    INDEX_BYTES_MAX = 256 << 20,
    FILE_BYTES_MAX = 512 << 20, /* tokenizer.json of the largest vocabularies is under 64 MiB */
    PATH_BYTES_MAX = 4096,
};

/* a text file read on demand; owns both */
struct hf_file {
    char *name;
    struct buf text;
    struct hf_file *next;
};

struct hfdir {
    char *dir;
    struct buf config_text;
    yyjson_doc *config, *generation;
    struct hf_quant quant;
    struct st_shard *shards;
    size_t n_shards;
    struct st_tensor *tensors;
    size_t n_tensors;
    struct names names;
    struct hf_file *files;
};

/* ---- index ---- */

/* a file of the index, in order of first mention */
struct index_file {
    struct str name; /* first: struct names reads it */
};

/* owns doc, files, table */
struct index {
    yyjson_doc *doc;
    yyjson_val *map;
    struct index_file *files;
    size_t n_files;
    struct names names;
};

static void index_free(struct index *x)
{
    names_free(&x->names);
    mem_free(x->files);
    json_free(x->doc);
    *x = (struct index){0};
}

static bool plain_file_name(struct str s)
{
    return names_valid(s) && s.n < 256 && s.p[0] != '.' && !memchr(s.p, '/', s.n) && str_ends(s, STR(".safetensors"));
}

static int doc_code(const struct err *err)
{
    return err && err->code ? err->code : ERR_FORMAT;
}

static int index_parse(struct index *x, struct str text, const char *path, struct err *err)
{
    x->doc = json_parse(text, path, err);
    if (!x->doc)
        return doc_code(err);
    x->map = yyjson_obj_get(yyjson_doc_get_root(x->doc), "weight_map");
    size_t count = yyjson_obj_size(x->map);
    if (!yyjson_is_obj(x->map) || count == 0)
        return err_set(err, ERR_FORMAT, "%s: 'weight_map': expected an object with at least one entry, got %s", path,
                       json_type_name(x->map));
    x->files = mem_try_zero(count, sizeof *x->files);
    if (!x->files)
        return err_nomem(err, "index", count * sizeof *x->files);
    int rc = names_init(&x->names, x->files, sizeof *x->files, count, err);
    yyjson_obj_iter it;
    yyjson_obj_iter_init(x->map, &it);
    for (yyjson_val *k; !rc && (k = yyjson_obj_iter_next(&it));) {
        yyjson_val *v = yyjson_obj_iter_get_val(k);
        struct str file = json_str(v);
        char name[NAMES_SHOW_MAX], show[NAMES_SHOW_MAX];
        if (!file.p || !plain_file_name(file))
            return err_set(err, ERR_FORMAT,
                           "%s: weight_map: '%s': expected a plain file name that ends in .safetensors, got %s '%s'", path,
                           names_show(json_str(k), name), json_type_name(v), names_show(file, show));
        x->files[x->n_files].name = file;
        x->n_files += names_add(&x->names, x->n_files) == x->n_files;
    }
    return rc;
}

/* Index and files say the same. */
static int index_check(const struct index *x, const struct hfdir *h, const char *path, struct err *err)
{
    char show[NAMES_SHOW_MAX];
    uint8_t *seen = mem_try_zero(h->n_tensors, 1);
    if (!seen)
        return err_nomem(err, "index", h->n_tensors);
    int rc = 0;
    yyjson_obj_iter it;
    yyjson_obj_iter_init(x->map, &it);
    for (yyjson_val *k; !rc && (k = yyjson_obj_iter_next(&it));) {
        struct str file = json_str(yyjson_obj_iter_get_val(k));
        size_t i = names_find(&h->names, json_str(k));
        names_show(json_str(k), show);
        if (i == SIZE_MAX || h->tensors[i].shard != names_find(&x->names, file))
            rc =
                err_set(err, ERR_FORMAT, "%s: weight_map: '%s': expected the tensor in %s, got %s%s", path, show, file.p,
                        i == SIZE_MAX ? "none of that name" : "it in ", i == SIZE_MAX ? "" : h->shards[h->tensors[i].shard].path);
        else if (seen[i])
            rc = err_set(err, ERR_FORMAT, "%s: weight_map: '%s': expected each tensor once, got it twice", path, show);
        else
            seen[i] = 1;
    }
    for (size_t i = 0; !rc && i < h->n_tensors; i++)
        if (!seen[i])
            rc = err_set(err, ERR_FORMAT, "%s: weight_map: expected an entry for every tensor, got none for '%s' of %s", path,
                         names_show(h->tensors[i].name, show), h->shards[h->tensors[i].shard].path);
    mem_free(seen);
    return rc;
}

/* ---- opening ---- */

/* One array of all shards' tensors and its table; weights in forms that are not read are refused here. */
static int gather(struct hfdir *h, struct err *err)
{
    size_t n = 0, at = 0;
    for (size_t i = 0; i < h->n_shards; i++)
        n += h->shards[i].n_tensors;
    h->tensors = mem_try_array(n, sizeof *h->tensors);
    if (!h->tensors)
        return err_nomem(err, "safetensors tensors", n * sizeof *h->tensors);
    for (size_t i = 0; i < h->n_shards; i++) {
        struct st_shard *s = &h->shards[i];
        if (s->n_tensors)
            memcpy(h->tensors + at, s->tensors, s->n_tensors * sizeof *s->tensors);
        at += s->n_tensors;
        mem_free(s->tensors);
        s->tensors = NULL;
    }
    h->n_tensors = n;
    int rc = names_init(&h->names, h->tensors, sizeof *h->tensors, n, err);
    for (size_t i = 0; !rc && i < n; i++) {
        const struct st_tensor *t = &h->tensors[i];
        const char *path = h->shards[t->shard].path;
        size_t other = names_add(&h->names, i);
        char show[NAMES_SHOW_MAX];
        names_show(t->name, show);
        if (other != i)
            rc = err_set(err, ERR_FORMAT, "%s: tensor '%s': expected each name once, got it at byte %llu and in %s at byte %llu",
                         path, show, (unsigned long long)t->offset, h->shards[h->tensors[other].shard].path,
                         (unsigned long long)h->tensors[other].offset);
        else if (t->type == DTYPE_F8_E4M3 || t->type == DTYPE_F8_E5M2)
            rc = err_set(err, ERR_UNSUPPORTED, "%s: tensor '%s': fp8 weights (%s) are not supported", path, show,
                         dtype_name(t->type));
        else if (str_ends(t->name, STR(".qweight")))
            rc = err_set(err, ERR_UNSUPPORTED, "%s: tensor '%s': GPTQ and AWQ weights are not supported", path, show);
    }
    return rc;
}

static int open_shards(struct hfdir *h, const struct index *x, struct err *err)
{
    char path[PATH_BYTES_MAX];
    size_t count = x->n_files ? x->n_files : 1;
    h->shards = mem_try_zero(count, sizeof *h->shards);
    if (!h->shards)
        return err_nomem(err, "safetensors files", count * sizeof *h->shards);
    for (size_t i = 0; i < count; i++) {
        int rc = file_join(path, sizeof path, h->dir, x->n_files ? x->files[i].name.p : "model.safetensors", err);
        h->n_shards = i + 1;
        if (!rc)
            rc = st_shard_open(&h->shards[i], path, (uint32_t)i, err);
        if (rc)
            return rc;
    }
    return gather(h, err);
}

static int open_weights(struct hfdir *h, struct err *err)
{
    char path[PATH_BYTES_MAX];
    struct index x = {0};
    struct buf text = {.max = INDEX_BYTES_MAX + 65536};
    int rc = file_join(path, sizeof path, h->dir, "model.safetensors.index.json", err);
    bool indexed = !rc && file_exists(path);
    if (!rc && indexed) {
        rc = file_read(&text, path, INDEX_BYTES_MAX, err);
        if (!rc)
            rc = index_parse(&x, buf_view(&text), path, err);
    }
    if (!rc)
        rc = open_shards(h, &x, err);
    if (!rc && indexed)
        rc = index_check(&x, h, path, err);
    index_free(&x);
    buf_free(&text);
    return rc;
}

/* A JSON file, written by Python, that must be an object.  `text` may be NULL. */
static int open_json(const char *dir, const char *name, yyjson_doc **doc, struct buf *text, struct err *err)
{
    char path[PATH_BYTES_MAX];
    struct buf local = {.max = CONFIG_BYTES_MAX + 65536};
    int rc = file_join(path, sizeof path, dir, name, err);
    if (!rc)
        rc = file_read(&local, path, CONFIG_BYTES_MAX, err);
    if (!rc && !(*doc = json_parse_python(buf_view(&local), path, err)))
        rc = doc_code(err);
    if (!rc && !yyjson_is_obj(yyjson_doc_get_root(*doc)))
        rc = err_set(err, ERR_FORMAT, "%s: expected a JSON object, got %s", path, json_type_name(yyjson_doc_get_root(*doc)));
    if (!rc && text)
        *text = local;
    else
        buf_free(&local);
    return rc;
}

static int open_configs(struct hfdir *h, struct err *err)
{
    char path[PATH_BYTES_MAX];
    int rc = open_json(h->dir, "config.json", &h->config, &h->config_text, err);
    if (!rc)
        rc = file_join(path, sizeof path, h->dir, "generation_config.json", err);
    if (!rc && file_exists(path))
        rc = open_json(h->dir, "generation_config.json", &h->generation, NULL, err);
    if (!rc)
        rc = file_join(path, sizeof path, h->dir, "config.json", err);
    return rc ? rc : hf_quant_parse(&h->quant, hfdir_config(h), path, err);
}

int hfdir_open(const char *dir, struct hfdir **out, struct err *err)
{
    *out = NULL;
    struct hfdir *h = mem_try_zero(1, sizeof *h);
    if (!h)
        return err_nomem(err, "model directory", sizeof *h);
    h->dir = mem_try_strndup(dir, strlen(dir));
    int rc = h->dir ? open_configs(h, err) : err_nomem(err, "path", strlen(dir) + 1);
    if (!rc)
        rc = open_weights(h, err);
    if (rc) {
        hfdir_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

int hfdir_open_memory(const void *data, size_t n, struct hfdir **out, struct err *err)
{
    *out = NULL;
    struct hfdir *h = mem_try_zero(1, sizeof *h);
    if (!h)
        return err_nomem(err, "model directory", sizeof *h);
    h->dir = mem_try_strndup("(memory)", 8);
    h->shards = mem_try_zero(1, sizeof *h->shards);
    h->config = json_parse(STR("{}"), "(memory)", err);
    int rc = h->dir && h->shards && h->config ? 0 : err_nomem(err, "model directory", sizeof *h->shards);
    if (!rc) {
        struct st_shard *s = &h->shards[0];
        h->n_shards = 1;
        s->p = data;
        s->n = n;
        s->path = mem_try_strndup("(memory)", 8);
        rc = s->path ? st_shard_parse(s, 0, err) : err_nomem(err, "path", 9);
    }
    if (!rc)
        rc = gather(h, err);
    if (rc) {
        hfdir_close(h);
        return rc;
    }
    *out = h;
    return 0;
}

void hfdir_close(struct hfdir *h)
{
    if (!h)
        return;
    while (h->files) {
        struct hf_file *f = h->files;
        h->files = f->next;
        buf_free(&f->text);
        mem_free(f->name);
        mem_free(f);
    }
    names_free(&h->names);
    mem_free(h->tensors);
    for (size_t i = 0; i < h->n_shards; i++)
        st_shard_free(&h->shards[i]);
    mem_free(h->shards);
    hf_quant_free(&h->quant);
    json_free(h->generation);
    json_free(h->config);
    buf_free(&h->config_text);
    mem_free(h->dir);
    mem_free(h);
}

/* ---- look-ups ---- */

const char *hfdir_path(const struct hfdir *h)
{
    return h->dir;
}

size_t hfdir_tensor_count(const struct hfdir *h)
{
    return h->n_tensors;
}

const struct st_tensor *hfdir_tensor_at(const struct hfdir *h, size_t i)
{
    return i < h->n_tensors ? &h->tensors[i] : NULL;
}

const struct st_tensor *hfdir_tensor_find(const struct hfdir *h, struct str name)
{
    size_t i = names_find(&h->names, name);
    return i == SIZE_MAX ? NULL : &h->tensors[i];
}

void hfdir_tensor_drop(const struct hfdir *h, const struct st_tensor *t)
{
    file_map_drop(&h->shards[t->shard].map, (size_t)t->offset, (size_t)t->size_bytes);
}

yyjson_val *hfdir_config(const struct hfdir *h)
{
    return yyjson_doc_get_root(h->config);
}

yyjson_val *hfdir_generation_config(const struct hfdir *h)
{
    return h->generation ? yyjson_doc_get_root(h->generation) : NULL;
}

int hfdir_file(struct hfdir *h, const char *name, struct str *out, struct err *err)
{
    char path[PATH_BYTES_MAX];
    *out = (struct str){0};
    for (struct hf_file *f = h->files; f; f = f->next)
        if (strcmp(f->name, name) == 0) {
            *out = buf_view(&f->text);
            return 0;
        }
    if (name[0] == '/' || strstr(name, ".."))
        return err_set(err, ERR_ARGUMENT, "%s: expected a file name inside the model directory, got '%s'", h->dir, name);
    int rc = file_join(path, sizeof path, h->dir, name, err);
    if (rc || !file_exists(path))
        return rc;
    struct hf_file *f = mem_try_zero(1, sizeof *f);
    if (!f)
        return err_nomem(err, "file", sizeof *f);
    f->text.max = (size_t)FILE_BYTES_MAX + 65536;
    f->name = mem_try_strndup(name, strlen(name));
    rc = f->name ? file_read(&f->text, path, FILE_BYTES_MAX, err) : err_nomem(err, "file name", strlen(name) + 1);
    if (rc) {
        buf_free(&f->text);
        mem_free(f->name);
        mem_free(f);
        return rc;
    }
    f->next = h->files;
    h->files = f;
    *out = f->text.p ? buf_view(&f->text) : STR("");
    return 0;
}

int hfdir_content_hash(const struct hfdir *h, struct hash128 *out, struct err *err)
{
    struct hash_stream *s = hash_stream_new();
    if (!s)
        return err_nomem(err, "hash", 0);
    hash_stream_put(s, h->config_text.p, h->config_text.n);
    for (size_t i = 0; i < h->n_shards; i++)
        hash_stream_put(s, h->shards[i].p, h->shards[i].n);
    *out = hash_stream_end(s);
    return 0;
}

/* ---- weights ---- */

/* What hfdir_weight looks at: the tensor that names the weight, and for messages its file. */
struct weight_ctx {
    const struct hfdir *h;
    struct str name;
    char show[NAMES_SHOW_MAX];
    struct weight_src *out;
    struct err *err;
};

static const struct st_tensor *find_suffix(const struct hfdir *h, struct str name, const char *suffix)
{
    char full[2048];
    size_t n = strlen(suffix);
    if (name.n + n > sizeof full)
        return NULL;
    memcpy(full, name.p, name.n);
    memcpy(full + name.n, suffix, n);
    return hfdir_tensor_find(h, str_n(full, name.n + n));
}

static int weight_bad(const struct weight_ctx *c, const struct st_tensor *t, const char *want)
{
    char shape[200] = "", show[NAMES_SHOW_MAX];
    size_t n = 0;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n += (size_t)snprintf(shape + n, sizeof shape - n, "%s%llu", d ? ", " : "", (unsigned long long)t->shape[d]);
    return err_set(c->err, ERR_FORMAT, "%s: tensor '%s' at byte %llu: expected %s, got %s [%s]", c->h->shards[t->shard].path,
                   names_show(t->name, show), (unsigned long long)t->offset, want, dtype_name(t->type), shape);
}

/* Product of all dimensions but the last `tail`; 0 when it does not fit 32 bits. */
static uint32_t rows_of(const struct st_tensor *t, uint32_t tail)
{
    uint64_t rows = 1;
    for (uint32_t d = 0; d + tail < t->n_dims; d++)
        if (__builtin_mul_overflow(rows, t->shape[d], &rows) || rows > UINT32_MAX)
            return 0;
    return (uint32_t)rows;
}

static int weight_plain(struct weight_ctx *c, const struct st_tensor *t)
{
    uint64_t cols = t->n_dims ? t->shape[t->n_dims - 1] : 1;
    if (t->type != DTYPE_F32 && t->type != DTYPE_F16 && t->type != DTYPE_BF16)
        return weight_bad(c, t, "F32, F16 or BF16 (or a quantised weight with its scales)");
    if (!rows_of(t, 1) || cols > UINT32_MAX)
        return weight_bad(c, t, "fewer than 2^32 rows and columns");
    c->out->type = t->type;
    c->out->rows = rows_of(t, 1);
    c->out->cols = (uint32_t)cols;
    c->out->row_bytes = cols * dtype_block_bytes(t->type);
    return 0;
}

/* Do a and b have the same shape, but for the last `skip` dimensions of a, of which b has `keep`? */
static bool same_lead(const struct st_tensor *a, uint32_t skip, const struct st_tensor *b, uint32_t keep)
{
    return a->n_dims >= skip && b->n_dims == a->n_dims - skip + keep &&
           memcmp(a->shape, b->shape, (a->n_dims - skip) * sizeof a->shape[0]) == 0;
}

/* MXFP4 as MLX has it: eight codes a word, [..., cols / 8], beside scales [..., cols / 32]; in memory the bytes of gpt-oss's blocks. */
static int weight_mlx_mxfp4(struct weight_ctx *c, const struct st_tensor *t, const struct st_tensor *scales)
{
    struct weight_src *w = c->out;
    uint64_t words = t->shape[t->n_dims - 1];
    if (scales->type != DTYPE_U8 || !same_lead(t, 1, scales, 1))
        return weight_bad(c, scales, "MXFP4 scales: U8 with the dimensions of the codes but for the last");
    if (!rows_of(t, 1) || words > UINT32_MAX / 8 || words != scales->shape[scales->n_dims - 1] * 4)
        return weight_bad(c, t, "four words of codes a scale");
    w->type = DTYPE_MXFP4;
    w->bits = w->group = 0;
    w->rows = rows_of(t, 1);
    w->cols = (uint32_t)words * 8;
    w->row_bytes = words * 4;
    w->scales = scales->data;
    return 0;
}

static int weight_mlx(struct weight_ctx *c, const struct st_tensor *t, const struct st_tensor *scales)
{
    const struct hf_quant *q = &c->h->quant;
    const struct st_tensor *biases = find_suffix(c->h, c->name, ".biases");
    size_t l = names_find(&q->names, c->name);
    struct weight_src *w = c->out;
    const struct hf_form *form = l == SIZE_MAX ? &q->form : &q->layers[l].form;
    w->bits = form->bits;
    w->group = form->group;
    if (!q->mlx || (l != SIZE_MAX && !q->layers[l].quantised))
        return weight_bad(c, scales, "no scales, as config.json says that this weight is not quantised");
    if (t->type != DTYPE_U32 || t->n_dims < 2)
        return weight_bad(c, t, "MLX codes: U32 with at least 2 dimensions");
    if (form->mxfp4)
        return weight_mlx_mxfp4(c, t, scales);
    if (!biases)
        return weight_bad(c, scales, "MLX affine biases beside these scales, and there are none");
    if (scales->type != DTYPE_F32 && scales->type != DTYPE_F16 && scales->type != DTYPE_BF16)
        return weight_bad(c, scales, "scales of F32, F16 or BF16");
    if (biases->type != scales->type || !same_lead(scales, 0, biases, 0))
        return weight_bad(c, biases, "biases of the scales' type and shape");
    if (!same_lead(t, 1, scales, 1))
        return weight_bad(c, scales, "scales with the dimensions of the codes but for the last");
    uint64_t words = t->shape[t->n_dims - 1], groups = scales->shape[scales->n_dims - 1];
    if (!rows_of(t, 1) || groups > UINT32_MAX / w->group || words > UINT32_MAX || words * 32 != groups * w->group * w->bits) {
        char want[128];
        snprintf(want, sizeof want, "cols * %u / 32 words for %llu groups of %u", w->bits, (unsigned long long)groups, w->group);
        return weight_bad(c, t, want);
    }
    w->type = DTYPE_MLX;
    w->rows = rows_of(t, 1);
    w->cols = (uint32_t)(groups * w->group);
    w->row_bytes = words * 4;
    w->scale_type = scales->type;
    w->scales = scales->data;
    w->biases = biases->data;
    return 0;
}

/* gpt-oss: NAME_blocks [..., cols / 32, 16] and NAME_scales [..., cols / 32]. */
static int weight_mxfp4(struct weight_ctx *c, const struct st_tensor *t)
{
    const struct st_tensor *scales = find_suffix(c->h, c->name, "_scales");
    struct weight_src *w = c->out;
    if (t->type != DTYPE_U8 || t->n_dims < 3 || t->shape[t->n_dims - 1] != 16)
        return weight_bad(c, t, "MXFP4 blocks: U8 [..., blocks, 16]");
    if (!scales)
        return weight_bad(c, t, "MXFP4 scales beside these blocks, and there are none");
    if (scales->type != DTYPE_U8 || !same_lead(t, 1, scales, 0))
        return weight_bad(c, scales, "MXFP4 scales: U8 with the blocks' dimensions but for the last");
    uint64_t blocks = t->shape[t->n_dims - 2];
    if (!rows_of(t, 2) || blocks > UINT32_MAX / 32)
        return weight_bad(c, t, "fewer than 2^32 rows and columns");
    w->type = DTYPE_MXFP4;
    w->rows = rows_of(t, 2);
    w->cols = (uint32_t)blocks * 32;
    w->row_bytes = blocks * 16;
    w->scales = scales->data;
    return 0;
}

int hfdir_weight(const struct hfdir *h, struct str name, struct weight_src *out, struct err *err)
{
    *out = (struct weight_src){0};
    struct weight_ctx c = {.h = h, .name = name, .out = out, .err = err};
    names_show(name, c.show);
    const struct st_tensor *t = find_suffix(h, name, ".weight"), *scales = find_suffix(h, name, ".scales"), *blocks = NULL;
    if (!t)
        t = blocks = find_suffix(h, name, "_blocks");
    if (!t)
        t = hfdir_tensor_find(h, name);
    if (!t)
        return err_set(err, ERR_NOT_FOUND, "%s: weight '%s': expected a tensor '%s.weight', got none", h->dir, c.show, c.show);
    out->name = t->name.p; /* terminated: it is a key of the parsed header */
    out->data = t->data;
    return blocks ? weight_mxfp4(&c, t) : scales ? weight_mlx(&c, t, scales) : weight_plain(&c, t);
}
