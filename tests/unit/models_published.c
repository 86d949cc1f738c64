/* models: configs and GGUF metadata of published models (data/published.json) give the hyper-parameters that transformers reads of them.
 *
 * The file's lines are made by fixtures/published.py: configs are facts, the metadata is what llama.cpp's converter writes for them. */
#include "base/json.h"
#include "format_make.h"
#include "models/arch.h"

#include <math.h>

enum { EMBED_COLS = 32, EMBED_ROW_BYTES = 18 }; /* of one block of Q4_0 */

struct source_file {
    const char *name;
    yyjson_val *line;
    bool gguf;
};

static uint32_t count(const uint8_t *flags, uint32_t layers)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < layers; i++) {
        n += flags[i] != 0;
    }
    return n;
}

static const char *rope_name(enum rope_kind kind)
{
    static const char *const names[] = {
        [ROPE_PLAIN] = "default", [ROPE_LINEAR] = "linear", [ROPE_LLAMA3] = "llama3", [ROPE_YARN] = "yarn", [ROPE_LONGROPE] = "longrope",
        [ROPE_PROPORTIONAL] = "proportional"};
    return names[kind];
}

static bool starts(const char *name, const char *with)
{
    return strncmp(name, with, strlen(with)) == 0;
}

static bool apart(const struct source_file *f, const char *what)
{
    return yyjson_obj_get(yyjson_obj_get(f->line, "apart"), what) != NULL;
}

/* What a file of the kind does not say: GGUF's has no tensors here, and no key for these. */
static bool asked(const struct source_file *f, const char *key)
{
    const char *arch = yyjson_get_str(yyjson_obj_get(yyjson_obj_get(f->line, "gguf"), "general.architecture"));
    if (apart(f, "rope") && starts(key, "rope")) {
        return false;
    }
    if (!f->gguf) {
        return true;
    }
    bool window = strcmp(arch, "llama") == 0 && (strcmp(key, "window") == 0 || strcmp(key, "sliding") == 0);
    bool tensors = strcmp(key, "tied") == 0;
    const char *rope = yyjson_get_str(yyjson_obj_get(yyjson_obj_get(f->line, "expect"), "rope_type"));
    bool by_tensor = starts(key, "rope_") && rope != NULL && (strcmp(rope, "llama3") == 0 || strcmp(rope, "proportional") == 0 || strcmp(rope, "longrope") == 0) &&
                     strcmp(key, "rope_theta") != 0;
    bool context = starts(arch, "nemotron_h") && strcmp(key, "context") == 0; /* the converter's own number */
    return !window && !tensors && !by_tensor && !context;
}

static void compare(const struct source_file *f, const struct hparams *hp)
{
    const struct rope_params *full = &hp->rope[0];
    const struct {
        const char *key;
        double value;
    } got[] = {
        {"layers", hp->layers}, {"hidden", hp->hidden}, {"vocab", hp->vocab}, {"heads", hp->heads}, {"kv_heads", hp->kv_heads},
        {"head_dim", hp->head_dim}, {"ffn", hp->ffn}, {"context", hp->context_train}, {"eps", (double)hp->eps},
        {"sliding", count(hp->sliding, hp->layers)}, {"recurrent", count(hp->recurrent, hp->layers)}, {"window", hp->window},
        {"tied", (hp->flags & HP_TIED) != 0}, {"experts", hp->moe.experts}, {"used", hp->moe.used}, {"expert_ffn", hp->moe.ffn},
        {"shared_ffn", hp->moe.shared_ffn}, {"rank", hp->mla.rank}, {"q_rank", hp->mla.q_rank}, {"nope", hp->mla.nope}, {"rope", hp->mla.rope},
        {"v", hp->mla.v}, {"rope_theta", full->theta}, {"rope_factor", full->kind == ROPE_LONGROPE ? 0.0 : full->factor},
        {"rope_theta_sliding", hp->rope[1].theta}};
    yyjson_obj_iter it;
    yyjson_obj_iter_init(yyjson_obj_get(f->line, "expect"), &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        const char *key = yyjson_get_str(k), *of = f->gguf ? "GGUF" : "config.json";
        yyjson_val *v = yyjson_obj_iter_get_val(k);
        if (!asked(f, key)) {
            continue;
        }
        if (yyjson_is_str(v)) {
            if (strcmp(yyjson_get_str(v), rope_name(full->kind)) != 0) {
                fail_msg("%s, %s: %s: expected %s, got %s", f->name, of, key, yyjson_get_str(v), rope_name(full->kind));
            }
            continue;
        }
        double want = yyjson_is_bool(v) ? (yyjson_is_true(v) ? 1.0 : 0.0) : yyjson_get_num(v);
        size_t i = 0;
        while (i < sizeof got / sizeof got[0] && strcmp(got[i].key, key) != 0) {
            i++;
        }
        if (i == sizeof got / sizeof got[0] || fabs(got[i].value - want) > 1e-6 * fabs(want)) {
            fail_msg("%s, %s: %s: expected %g, got %g", f->name, of, key, want, i < sizeof got / sizeof got[0] ? got[i].value : NAN);
        }
    }
}

/* ---- a GGUF file of the metadata, with an embedding as long as the vocabulary and narrower than any ---- */

static void put_value(struct buf *b, yyjson_val *v)
{
    if (yyjson_is_str(v)) {
        put_text(b, yyjson_get_str(v));
    } else if (yyjson_is_bool(v)) {
        buf_char(b, yyjson_is_true(v) ? 1 : 0);
    } else if (yyjson_is_real(v) || yyjson_is_null(v)) {
        float x = yyjson_is_null(v) ? -INFINITY : (float)yyjson_get_real(v);
        buf_put(b, &x, sizeof x);
    } else {
        put_u32(b, (uint32_t)yyjson_get_uint(v));
    }
}

static uint32_t value_type(yyjson_val *v)
{
    return yyjson_is_str(v) ? GGUF_STRING : yyjson_is_bool(v) ? GGUF_BOOL : yyjson_is_real(v) || yyjson_is_null(v) ? GGUF_F32 : GGUF_U32;
}

/* `older`: values in the place of others, null: left out. */
static void put_metadata(struct buf *b, yyjson_val *all, yyjson_val *older, uint32_t vocab)
{
    const uint64_t ne[2] = {EMBED_COLS, vocab};
    size_t values = yyjson_obj_size(all);
    yyjson_obj_iter it;
    yyjson_obj_iter_init(older, &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        assert_non_null(yyjson_obj_get(all, yyjson_get_str(k)));
        values -= yyjson_is_null(yyjson_obj_iter_get_val(k));
    }
    gguf_begin(b, 3, 1, values);
    yyjson_obj_iter_init(all, &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        yyjson_val *v = yyjson_obj_iter_get_val(k), *one = yyjson_obj_get(older, yyjson_get_str(k));
        yyjson_arr_iter list;
        if (one != NULL && yyjson_is_null(one)) {
            continue;
        }
        v = one != NULL ? one : v;
        if (!yyjson_is_arr(v)) {
            gguf_put_key(b, yyjson_get_str(k), value_type(v));
            put_value(b, v);
            continue;
        }
        gguf_put_key(b, yyjson_get_str(k), GGUF_ARRAY);
        put_u32(b, value_type(yyjson_arr_get_first(v)));
        put_u64(b, yyjson_arr_size(v));
        yyjson_arr_iter_init(v, &list);
        while ((one = yyjson_arr_iter_next(&list)) != NULL) {
            put_value(b, one);
        }
    }
    gguf_put_info(b, "token_embd.weight", 2, ne, 2 /* Q4_0 */, 0);
    put_padding(b, 32);
    for (size_t i = 0; i < (size_t)vocab * EMBED_ROW_BYTES; i++) {
        buf_char(b, 0);
    }
}

static void check_gguf(const struct source_file *f, yyjson_val *older, struct hparams *hp)
{
    struct buf b = {0};
    struct gguf *g = NULL;
    struct err err = {0};
    const struct arch *arch = NULL;
    put_metadata(&b, yyjson_obj_get(f->line, "gguf"), older, (uint32_t)yyjson_get_uint(yyjson_obj_get(yyjson_obj_get(f->line, "expect"), "vocab")));
    int rc = gguf_open_memory(b.p, b.n, &g, &err);
    rc = rc != 0 ? rc : hparams_of_gguf(g, &arch, hp, &err);
    if (rc != 0) {
        fail_msg("%s, GGUF%s: %s", f->name, older != NULL ? ", an older one" : "", err.text);
    }
    compare(f, hp);
    gguf_close(g);
    buf_free(&b);
}

/* ---- the test ---- */

static void test_published(void **state)
{
    (void)state;
    struct buf text = {0};
    struct err err = {0};
    static struct hparams hp; /* large */
    uint32_t lines = 0;
    assert_int_equal(file_read(&text, TEST_DATA "/published.json", 4u << 20, &err), 0);
    yyjson_doc *doc = json_parse(buf_view(&text), "published.json", &err);
    if (doc == NULL) {
        fail_msg("%s", err.text);
    }
    yyjson_obj_iter it;
    yyjson_obj_iter_init(yyjson_doc_get_root(doc), &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it), lines++) {
        struct source_file f = {yyjson_get_str(k), yyjson_obj_iter_get_val(k), false};
        const struct arch *arch = NULL;
        if (hparams_of_config(yyjson_obj_get(f.line, "config"), &arch, &hp, &err) != 0) {
            fail_msg("%s: %s", f.name, err.text);
        }
        compare(&f, &hp);
        f.gguf = true;
        if (!apart(&f, "gguf")) {
            check_gguf(&f, NULL, &hp);
            check_gguf(&f, yyjson_obj_get(f.line, "older"), &hp);
        }
    }
    assert_true(lines >= 47);
    json_free(doc);
    buf_free(&text);
}

/* Every architecture has a published config among them. */
static void test_all_architectures(void **state)
{
    (void)state;
    struct buf text = {0};
    struct err err = {0};
    static struct hparams hp;
    assert_int_equal(file_read(&text, TEST_DATA "/published.json", 4u << 20, &err), 0);
    yyjson_doc *doc = json_parse(buf_view(&text), "published.json", &err);
    for (uint32_t a = 0; a < model_arch_count(); a++) {
        bool seen = false;
        yyjson_obj_iter it;
        yyjson_obj_iter_init(yyjson_doc_get_root(doc), &it);
        for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL && !seen; k = yyjson_obj_iter_next(&it)) {
            const struct arch *arch = NULL;
            seen = hparams_of_config(yyjson_obj_get(yyjson_obj_iter_get_val(k), "config"), &arch, &hp, &err) == 0 &&
                   strcmp(arch->name, model_arch_name(a)) == 0;
        }
        if (!seen) {
            fail_msg("%s: no published config", model_arch_name(a));
        }
    }
    json_free(doc);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_published), cmocka_unit_test(test_all_architectures)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
