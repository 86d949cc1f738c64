/* safetensors files and model directories: plain, MLX and MXFP4 weights, indexes, refusals by name, hostile headers. */
#include "format_make.h"

#include "format/safetensors.h"

/* A file from its header's text and `data` bytes of data (0, 1, 2, ...). */
static void make_file(struct buf *b, const char *header, size_t data)
{
    put_u64(b, strlen(header));
    buf_z(b, header);
    for (size_t i = 0; i < data; i++)
        buf_char(b, (char)i);
}

static struct hfdir *open_header(const char *header, size_t data, struct buf *b)
{
    struct hfdir *h;
    struct err err = {0};
    *b = (struct buf){0};
    make_file(b, header, data);
    if (hfdir_open_memory(b->p, b->n, &h, &err))
        fail_msg("%s", err.text);
    return h;
}

#define ENTRY(name, type, shape, lo, hi)                                                                                         \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" lo "," hi "]}"

static void test_good(void **state)
{
    struct buf b;
    struct weight_src w;
    struct hash128 first, other;
    (void)state;
    /* a header of odd length: data at an odd address */
    struct hfdir *h = open_header("{\"__metadata__\":{\"format\":\"pt\"}," ENTRY("n.weight", "F32", "[2]", "12", "20") "," ENTRY(
                                      "m.weight", "BF16", "[2,3]", "0", "12") "," ENTRY("s", "F16", "[]", "20", "22") " }",
                                  22, &b);
    assert_int_equal(hfdir_tensor_count(h), 3);
    const struct st_tensor *t = hfdir_tensor_find(h, STR("m.weight"));
    assert_int_equal(t->type, DTYPE_BF16);
    assert_true(t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->size_bytes == 12 && t->data[3] == 3);
    assert_null(hfdir_tensor_find(h, STR("m")));
    assert_null(hfdir_tensor_at(h, 3));
    assert_non_null(hfdir_config(h));
    assert_null(hfdir_generation_config(h));
    assert_int_equal(hfdir_weight(h, STR("m"), &w, NULL), 0);
    assert_true(w.type == DTYPE_BF16 && w.rows == 2 && w.cols == 3 && w.row_bytes == 6);
    assert_string_equal(w.name, "m.weight");
    float row[3];
    weight_src_row(&w, 1, row);
    assert_true(row[0] == dtype_bf16_to_f32(0x0706) && row[2] == dtype_bf16_to_f32(0x0b0a));
    assert_int_equal(hfdir_weight(h, STR("n"), &w, NULL), 0);
    assert_true(w.rows == 1 && w.cols == 2);
    assert_int_equal(hfdir_weight(h, STR("s"), &w, NULL), 0);
    assert_true(w.rows == 1 && w.cols == 1);
    struct err err = {0};
    assert_int_equal(hfdir_weight(h, STR("q"), &w, &err), ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "'q.weight'"));
    assert_int_equal(hfdir_content_hash(h, &first, NULL), 0);
    b.p[b.n - 1] ^= 1;
    assert_int_equal(hfdir_content_hash(h, &other, NULL), 0);
    assert_true(first.lo != other.lo);
    hfdir_tensor_drop(h, t);
    hfdir_close(h);
    hfdir_close(NULL);
    buf_free(&b);
}

/* ---- hostile headers ---- */

static void refused(struct buf *b, int code, const char *piece, const char *piece2)
{
    struct hfdir *h = (void *)1;
    struct err err = {0};
    uint8_t *copy = malloc(b->n ? b->n : 1);
    memcpy(copy, b->p ? b->p : "", b->n);
    int rc = hfdir_open_memory(copy, b->n, &h, &err);
    if (rc != code || h || !strstr(err.text, piece) || !strstr(err.text, piece2))
        fail_msg("expected %d with '%s' and '%s', got %d: %s", code, piece, piece2, rc, err.text);
    free(copy);
    buf_free(b);
}

static void refused_header(const char *header, size_t data, int code, const char *piece, const char *piece2)
{
    struct buf b = {0};
    make_file(&b, header, data);
    refused(&b, code, piece, piece2);
}

static void test_bad_length(void **state)
{
    struct buf b = {0};
    (void)state;
    refused(&b, ERR_FORMAT, "truncated", "got 0");
    buf_z(&b, "1234567");
    refused(&b, ERR_FORMAT, "truncated", "got 7");
    put_u64(&b, UINT64_MAX);
    refused(&b, ERR_FORMAT, "header at byte 8", "18446744073709551615");
    put_u64(&b, 3), buf_z(&b, "{}");
    refused(&b, ERR_FORMAT, "at most 2 bytes", "length of 3");
    put_u64(&b, 1), buf_z(&b, "{}"); /* too short: the object is cut */
    refused(&b, ERR_FORMAT, "not valid JSON", "");
    put_u64(&b, 0), buf_z(&b, "{}");
    refused(&b, ERR_FORMAT, "JSON object", "");
    put_u64(&b, 2), buf_z(&b, "[]");
    refused(&b, ERR_FORMAT, "JSON object", "");
    put_u64(&b, 3), buf_z(&b, "{}{");
    refused(&b, ERR_FORMAT, "not valid JSON", "");
    put_u64(&b, 4000), buf_z(&b, "{\"a\":");
    for (int i = 0; i < 3995; i++)
        buf_char(&b, '[');
    refused(&b, ERR_LIMIT, "nested deeper", "");
    put_u64(&b, 10), buf_put(&b, "{\"\xff\":null}", 10);
    refused(&b, ERR_FORMAT, "not valid JSON", "");
}

static void test_bad_entries(void **state)
{
    (void)state;
    refused_header("{" ENTRY("x", "F99", "[1]", "0", "4") "}", 4, ERR_UNSUPPORTED, "'x'", "'F99'");
    refused_header("{" ENTRY("x", "F8_E8M0", "[4]", "0", "4") "}", 4, ERR_UNSUPPORTED, "'x'", "'F8_E8M0'");
    refused_header("{" ENTRY("x", "F32", "[0]", "0", "0") "}", 0, ERR_FORMAT, "'shape'", "1 to 2^64 - 1");
    refused_header("{" ENTRY("x", "F32", "[-1]", "0", "4") "}", 4, ERR_FORMAT, "'shape'", "whole numbers");
    refused_header("{" ENTRY("x", "F32", "[1.0]", "0", "4") "}", 4, ERR_FORMAT, "'shape'", "whole numbers");
    refused_header("{" ENTRY("x", "F32", "[\"1\"]", "0", "4") "}", 4, ERR_FORMAT, "'shape'", "string");
    refused_header("{" ENTRY("x", "F32", "4", "0", "4") "}", 4, ERR_FORMAT, "'shape'", "an array");
    refused_header("{" ENTRY("x", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, ERR_FORMAT, "8 dimensions", "got 9");
    refused_header("{" ENTRY("x", "F32", "[4294967296,4294967296]", "0", "4") "}", 4, ERR_FORMAT, "'x'", "overflows");
    refused_header("{" ENTRY("x", "F32", "[4611686018427387905]", "0", "4") "}", 4, ERR_FORMAT, "'x'", "overflows");
    refused_header("{" ENTRY("x", "F32", "[99999999999999999999]", "0", "4") "}", 4, ERR_FORMAT, "'shape'", "whole numbers");
    refused_header("{" ENTRY("x", "F32", "[2]", "0", "4") "}", 4, ERR_FORMAT, "expected 8 bytes", "got 4");
    refused_header("{" ENTRY("x", "F32", "[1]", "4", "0") "}", 4, ERR_FORMAT, "data_offsets", "[4, 0]");
    refused_header("{" ENTRY("x", "F32", "[1]", "1", "5") "}", 4, ERR_FORMAT, "inside the 4 bytes", "[1, 5]");
    refused_header("{" ENTRY("x", "F32", "[1]", "18446744073709551612", "18446744073709551615") "}", 4, ERR_FORMAT,
                   "data_offsets", "inside");
    refused_header("{" ENTRY("x", "F32", "[1]", "-4", "0") "}", 4, ERR_FORMAT, "data_offsets", "two whole numbers");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4, ERR_FORMAT, "data_offsets",
                   "two whole");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, ERR_FORMAT, "data_offsets", "absent");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "'shape'", "absent");
    refused_header("{\"x\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "'dtype'", "absent");
    refused_header("{\"x\":{\"dtype\":1,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT, "'dtype'", "a string");
    refused_header("{\"x\":{\"dtype\":\"F32\",\"dtype\":\"I32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, ERR_FORMAT,
                   "'dtype' once", "");
    refused_header("{\"x\":7}", 0, ERR_FORMAT, "'x'", "an object");
    refused_header("{" ENTRY("", "F32", "[1]", "0", "4") "}", 4, ERR_FORMAT, "tensor name ''", "");
    refused_header("{" ENTRY("a\\u0000b", "F32", "[1]", "0", "4") "}", 4, ERR_FORMAT, "tensor name 'a?b'", "");
    refused_header("{" ENTRY("x", "F32", "[1]", "0", "4") "," ENTRY("x", "F32", "[1]", "4", "8") "}", 8, ERR_FORMAT, "'x'",
                   "each name once");
}

static void test_bad_layout(void **state)
{
    (void)state;
    refused_header("{" ENTRY("x", "F32", "[1]", "0", "4") "," ENTRY("y", "F32", "[1]", "5", "9") "}", 9, ERR_FORMAT, "'y'",
                   "gap");
    refused_header("{" ENTRY("x", "F32", "[1]", "4", "8") "}", 8, ERR_FORMAT, "'x'", "gap");
    refused_header("{" ENTRY("x", "F32", "[2]", "0", "8") "," ENTRY("y", "F32", "[1]", "4", "8") "}", 8, ERR_FORMAT, "'y'",
                   "overlap");
    refused_header("{" ENTRY("x", "F32", "[1]", "0", "4") "," ENTRY("y", "F32", "[1]", "0", "4") "}", 4, ERR_FORMAT, "at byte",
                   "overlap");
    refused_header("{" ENTRY("x", "F32", "[1]", "0", "4") "}", 5, ERR_FORMAT, "end with the file", "");
    refused_header("{" ENTRY("x", "F8_E4M3", "[1]", "0", "1") "}", 1, ERR_UNSUPPORTED, "'x'", "fp8");
    refused_header("{" ENTRY("l.qweight", "I32", "[1]", "0", "4") "}", 4, ERR_UNSUPPORTED, "'l.qweight'", "GPTQ and AWQ");
}

static void test_truncated(void **state)
{
    struct buf b = {0};
    (void)state;
    make_file(&b, "{" ENTRY("x", "F32", "[2]", "0", "8") "," ENTRY("y", "U8", "[3]", "8", "11") "}", 11);
    for (size_t n = 0; n < b.n; n++)
        for (int flip = 0; flip < 2; flip++) {
            struct hfdir *h;
            struct err err = {0};
            size_t size = flip ? b.n : n;
            uint8_t *copy = malloc(size ? size : 1);
            memcpy(copy, b.p, size);
            if (flip)
                copy[n] ^= 0x20; /* any change is opened or refused */
            int rc = hfdir_open_memory(copy, size, &h, &err);
            assert_true(flip || rc == ERR_FORMAT);
            assert_true((rc == 0) == (err.text[0] == 0));
            if (rc == 0)
                hfdir_close(h);
            free(copy);
        }
    buf_free(&b);
}

/* ---- directories ---- */

static void put_text_file(struct scratch *s, const char *name, const char *text)
{
    scratch_put(s, name, str_of(text));
}

static void put_weights(struct scratch *s, const char *name, const char *header, size_t data)
{
    struct buf b = {0};
    make_file(&b, header, data);
    scratch_put(s, name, buf_view(&b));
    buf_free(&b);
}

static struct hfdir *open_dir(const struct scratch *s)
{
    struct hfdir *h;
    struct err err = {0};
    if (hfdir_open(s->dir, &h, &err))
        fail_msg("%s", err.text);
    return h;
}

static void refused_dir(const struct scratch *s, int code, const char *piece, const char *piece2)
{
    struct hfdir *h = (void *)1;
    struct err err = {0};
    int rc = hfdir_open(s->dir, &h, &err);
    if (rc != code || h || !strstr(err.text, piece) || !strstr(err.text, piece2))
        fail_msg("expected %d with '%s' and '%s', got %d: %s", code, piece, piece2, rc, err.text);
}

#define X1 "{" ENTRY("x", "F32", "[1]", "0", "4") "}"
#define Y1 "{" ENTRY("y", "F32", "[1]", "0", "4") "}"
#define INDEX "model.safetensors.index.json"

static void test_index(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    refused_dir(&s, ERR_NOT_FOUND, "config.json", "");
    put_text_file(&s, "config.json", "{\"model_type\":\"llama\"}");
    refused_dir(&s, ERR_NOT_FOUND, "model.safetensors", "");
    put_weights(&s, "a.safetensors", X1, 4);
    put_weights(&s, "b.safetensors", Y1, 4);
    put_text_file(&s, INDEX, "{\"metadata\":{},\"weight_map\":{\"y\":\"b.safetensors\",\"x\":\"a.safetensors\"}}");
    struct hfdir *h = open_dir(&s);
    assert_int_equal(hfdir_tensor_count(h), 2);
    assert_true(hfdir_tensor_find(h, STR("x"))->shard != hfdir_tensor_find(h, STR("y"))->shard);
    assert_string_equal(hfdir_path(h), s.dir);
    assert_true(str_is(json_str(yyjson_obj_get(hfdir_config(h), "model_type")), "llama"));
    hfdir_close(h);

    put_text_file(&s, INDEX, "{\"weight_map\":{\"y\":\"a.safetensors\",\"x\":\"b.safetensors\"}}");
    refused_dir(&s, ERR_FORMAT, "'y': expected the tensor in a.safetensors", "b.safetensors");
    put_text_file(&s, INDEX, "{\"weight_map\":{\"x\":\"a.safetensors\",\"z\":\"b.safetensors\"}}");
    refused_dir(&s, ERR_FORMAT, "'z'", "none of that name");
    put_text_file(&s, INDEX, "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\",\"x\":\"a.safetensors\"}}");
    refused_dir(&s, ERR_FORMAT, "'x'", "twice");
    put_text_file(&s, INDEX, "{\"weight_map\":{\"x\":\"a.safetensors\",\"q\":\"c.safetensors\"}}");
    refused_dir(&s, ERR_NOT_FOUND, "c.safetensors", "");
    put_weights(&s, "b.safetensors", "{" ENTRY("y", "F32", "[1]", "0", "4") "," ENTRY("more", "U8", "[1]", "4", "5") "}", 5);
    put_text_file(&s, INDEX, "{\"weight_map\":{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}}");
    refused_dir(&s, ERR_FORMAT, "'more'", "b.safetensors");
    put_weights(&s, "b.safetensors", X1, 4);
    refused_dir(&s, ERR_FORMAT, "tensor 'x'", "each name once");
    const char *const bad[] = {
        "\"../a.safetensors\"", "\"sub/../../a.safetensors\"", "\"/etc/passwd\"", "\"" INDEX "\"", "\"\"", "7",
        "\".safetensors\"",     "\"a\\u0000.safetensors\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"weight_map\":{\"x\":%s}}", bad[i]);
        put_text_file(&s, INDEX, text);
        refused_dir(&s, ERR_FORMAT, "weight_map: 'x'", "plain file name");
    }
    const char *const no_map[] = {"{}", "{\"weight_map\":{}}", "{\"weight_map\":[]}", "[]"};
    for (size_t i = 0; i < 4; i++) {
        put_text_file(&s, INDEX, no_map[i]);
        refused_dir(&s, ERR_FORMAT, "'weight_map'", INDEX);
    }
    put_text_file(&s, INDEX, "{");
    refused_dir(&s, ERR_FORMAT, INDEX, "not valid JSON");
    put_text_file(&s, "config.json", "[]");
    refused_dir(&s, ERR_FORMAT, "config.json", "JSON object");
    scratch_close(&s);
}

static void test_methods(void **state)
{
    static const struct {
        const char *config;
        int code;
        const char *piece, *piece2;
    } cases[] = {
        {"{\"quantization_config\":{\"quant_method\":\"fp8\"}}", ERR_UNSUPPORTED, "'fp8'", "quant_method"},
        {"{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}}", ERR_UNSUPPORTED, "'gptq'",
         "config.json"},
        {"{\"quantization_config\":{\"quant_method\":\"awq\"}}", ERR_UNSUPPORTED, "'awq'", ""},
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\"}}", ERR_UNSUPPORTED, "'compressed-tensors'", ""},
        {"{\"text_config\":{\"quantization_config\":{\"quant_method\":\"bitsandbytes\"}}}", ERR_UNSUPPORTED, "'bitsandbytes'",
         ""},
        {"{\"quantization_config\":{}}", ERR_UNSUPPORTED, "(none)", ""},
        {"{\"quantization_config\":3}", ERR_FORMAT, "an object", ""},
        {"{\"quantization_config\":{\"quant_method\":[]}}", ERR_FORMAT, "quant_method", "a string"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"mode\":\"mxfp4\"}}", ERR_UNSUPPORTED, "groups of 64", "32"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"}}", ERR_UNSUPPORTED, "mode 'nvfp4'", "'affine' or 'mxfp4'"},
        {"{\"quantization\":{\"bits\":7,\"group_size\":64}}", ERR_UNSUPPORTED, "bits", "got 7"},
        {"{\"quantization\":{\"bits\":0,\"group_size\":64}}", ERR_UNSUPPORTED, "bits", "got 0"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":16}}", ERR_UNSUPPORTED, "group_size", "got 16"},
        {"{\"quantization\":{\"bits\":\"4\",\"group_size\":64}}", ERR_FORMAT, "'bits'", "string"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"l\":{\"bits\":9,\"group_size\":64}}}", ERR_UNSUPPORTED, "l: bits",
         "got 9"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"l\":{\"mode\":\"mxfp8\"}}}", ERR_UNSUPPORTED, "l: ", "'mxfp8'"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"l\":4}}", ERR_FORMAT, "'l'", "true, false or an object"},
        {"{\"quantization\":{\"bits\":4,\"group_size\":64,\"l\":true,\"l\":false}}", ERR_FORMAT, "'l'", "twice"},
        {"{\"quantization\":[]}", ERR_FORMAT, "quantization", "an object"},
    };
    struct scratch s;
    (void)state;
    scratch_open(&s);
    put_weights(&s, "model.safetensors", X1, 4);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_text_file(&s, "config.json", cases[i].config);
        refused_dir(&s, cases[i].code, cases[i].piece, cases[i].piece2);
    }
    const char *const good[] = {"{\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":[]}}",
                                "{\"quantization_config\":null}", "{\"quantization\":null}",
                                "{\"quantization_config\":{\"bits\":4,\"group_size\":64}}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        put_text_file(&s, "config.json", good[i]);
        hfdir_close(open_dir(&s));
    }
    scratch_close(&s);
}

/* MLX: rows 2, cols 64; 4-bit codes in groups of 64 by default, 6-bit in groups of 32 for `six`, `off` plain, `on` = default. */
static const char mlx_header[] = "{" /* one line a tensor */
    ENTRY("emb.weight", "U32", "[2,8]", "0", "64") "," ENTRY("emb.scales", "BF16", "[2,1]", "64", "68") "," ENTRY(
        "emb.biases", "BF16", "[2,1]", "68",
        "72") "," ENTRY("six.weight", "U32", "[2,12]", "72",
                        "168") "," ENTRY("six.scales", "F16", "[2,2]", "168",
                                         "176") "," ENTRY("six.biases", "F16", "[2,2]", "176",
                                                          "184") "," ENTRY("off.weight", "F16", "[2,4]", "184",
                                                                           "200") "," ENTRY("moe.weight", "U32", "[3,2,8]", "200",
                                                                                            "392") "," ENTRY("moe.scales", "F32",
                                                                                                             "[3,2,1]", "392",
                                                                                                             "416") "," ENTRY("mo"
                                                                                                                              "e."
                                                                                                                              "bi"
                                                                                                                              "as"
                                                                                                                              "e"
                                                                                                                              "s",
                                                                                                                              "F3"
                                                                                                                              "2",
                                                                                                                              "[3"
                                                                                                                              ",2"
                                                                                                                              ",1"
                                                                                                                              "]",
                                                                                                                              "41"
                                                                                                                              "6",
                                                                                                                              "44"
                                                                                                                              "0") "}";

static void test_mlx(void **state)
{
    struct scratch s;
    struct weight_src w;
    float row[64], want;
    (void)state;
    scratch_open(&s);
    put_text_file(
        &s, "config.json",
        "{\"quantization\":{\"group_size\":64,\"bits\":4,\"six\":{\"bits\":6,\"group_size\":32},\"off\":false,\"emb\":true}}");
    put_weights(&s, "model.safetensors", mlx_header, 440);
    struct hfdir *h = open_dir(&s);
    assert_int_equal(hfdir_weight(h, STR("emb"), &w, NULL), 0);
    assert_true(w.type == DTYPE_MLX && w.rows == 2 && w.cols == 64 && w.bits == 4 && w.group == 64 && w.row_bytes == 32);
    assert_true(w.scale_type == DTYPE_BF16);
    weight_src_row(&w, 1, row);
    want = 1.0f * dtype_bf16_to_f32(0x4342) + dtype_bf16_to_f32(0x4746); /* code 2 of row 1: low nibble of byte 33 (0x21) */
    assert_true(row[2] == want && ((const uint8_t *)w.data)[33] == 0x21);
    assert_int_equal(hfdir_weight(h, STR("six"), &w, NULL), 0);
    assert_true(w.bits == 6 && w.group == 32 && w.cols == 64 && w.scale_type == DTYPE_F16);
    weight_src_row(&w, 1, row);
    assert_int_equal(hfdir_weight(h, STR("off"), &w, NULL), 0);
    assert_true(w.type == DTYPE_F16 && w.cols == 4);
    assert_int_equal(hfdir_weight(h, STR("moe"), &w, NULL), 0);
    assert_true(w.rows == 6 && w.cols == 64 && w.bits == 4);
    hfdir_close(h);
    scratch_close(&s);
}

static void refused_weight(struct scratch *s, const char *config, const char *header, size_t data, int code, const char *piece,
                           const char *piece2)
{
    struct weight_src w;
    struct err err = {0};
    put_text_file(s, "config.json", config);
    put_weights(s, "model.safetensors", header, data);
    struct hfdir *h = open_dir(s);
    int rc = hfdir_weight(h, STR("w"), &w, &err);
    if (rc != code || !strstr(err.text, piece) || !strstr(err.text, piece2))
        fail_msg("expected %d with '%s' and '%s', got %d: %s", code, piece, piece2, rc, err.text);
    hfdir_close(h);
}

#define Q4 "{\"quantization\":{\"group_size\":64,\"bits\":4}}"
#define CODES ENTRY("w.weight", "U32", "[2,8]", "0", "64")

static void test_mlx_bad(void **state)
{
    struct scratch s;
    (void)state;
    scratch_open(&s);
    const char *good =
        "{" CODES "," ENTRY("w.scales", "F16", "[2,1]", "64", "68") "," ENTRY("w.biases", "F16", "[2,1]", "68", "72") "}";
    refused_weight(&s, "{}", good, 72, ERR_FORMAT, "'w.scales'", "not quantised");
    refused_weight(&s, "{\"quantization\":{\"group_size\":64,\"bits\":4,\"w\":false}}", good, 72, ERR_FORMAT, "'w.scales'",
                   "not quantised");
    refused_weight(&s, "{\"quantization\":{\"group_size\":64,\"bits\":8}}", good, 72, ERR_FORMAT, "'w.weight'",
                   "cols * 8 / 32 words");
    refused_weight(&s, "{\"quantization\":{\"group_size\":32,\"bits\":4}}", good, 72, ERR_FORMAT, "'w.weight'", "1 groups of 32");
    refused_weight(&s, Q4, "{" CODES "}", 64, ERR_FORMAT, "'w.weight'", "U32 [2, 8]");
    refused_weight(&s, Q4, "{" CODES "," ENTRY("w.scales", "F16", "[2,1]", "64", "68") "}", 68, ERR_FORMAT, "'w.scales'",
                   "biases");
    refused_weight(&s, Q4,
                   "{" CODES
                   "," ENTRY("w.scales", "F16", "[2,1]", "64", "68") "," ENTRY("w.biases", "BF16", "[2,1]", "68", "72") "}",
                   72, ERR_FORMAT, "'w.biases'", "type and shape");
    refused_weight(
        &s, Q4, "{" CODES "," ENTRY("w.scales", "F16", "[2,1]", "64", "68") "," ENTRY("w.biases", "F16", "[1,2]", "68", "72") "}",
        72, ERR_FORMAT, "'w.biases'", "type and shape");
    refused_weight(
        &s, Q4, "{" CODES "," ENTRY("w.scales", "F16", "[1,2]", "64", "68") "," ENTRY("w.biases", "F16", "[1,2]", "68", "72") "}",
        72, ERR_FORMAT, "'w.scales'", "but for the last");
    refused_weight(
        &s, Q4, "{" CODES "," ENTRY("w.scales", "I8", "[2,1]", "64", "66") "," ENTRY("w.biases", "I8", "[2,1]", "66", "68") "}",
        68, ERR_FORMAT, "'w.scales'", "F32, F16 or BF16");
    refused_weight(&s, Q4, "{" ENTRY("w.weight", "F16", "[2,8]", "0", "32") "," ENTRY("w.scales", "F16", "[2,1]", "32", "36") "}",
                   36, ERR_FORMAT, "'w.weight'", "MLX codes");
    refused_weight(&s, Q4, "{" ENTRY("w.weight", "U32", "[8]", "0", "32") "," ENTRY("w.scales", "F16", "[1]", "32", "34") "}", 34,
                   ERR_FORMAT, "'w.weight'", "2 dimensions");
    scratch_close(&s);
}

static void test_mxfp4(void **state)
{
    struct scratch s;
    struct weight_src w;
    (void)state;
    scratch_open(&s);
    put_text_file(&s, "config.json", "{\"quantization_config\":{\"quant_method\":\"mxfp4\"}}");
    put_weights(&s, "model.safetensors",
                "{" ENTRY("w_blocks", "U8", "[2,3,2,16]", "0", "192") "," ENTRY("w_scales", "U8", "[2,3,2]", "192", "204") "}",
                204);
    struct hfdir *h = open_dir(&s);
    assert_int_equal(hfdir_weight(h, STR("w"), &w, NULL), 0);
    assert_true(w.type == DTYPE_MXFP4 && w.rows == 6 && w.cols == 64 && w.row_bytes == 32 && w.scales);
    assert_int_equal(((const uint8_t *)w.scales)[3], 195);
    hfdir_close(h);
    refused_weight(&s, "{}", "{" ENTRY("w_blocks", "U8", "[2,16]", "0", "32") "}", 32, ERR_FORMAT, "'w_blocks'", "MXFP4 blocks");
    refused_weight(&s, "{}", "{" ENTRY("w_blocks", "U8", "[2,1,16]", "0", "32") "}", 32, ERR_FORMAT, "'w_blocks'",
                   "scales beside");
    refused_weight(&s, "{}",
                   "{" ENTRY("w_blocks", "U8", "[2,1,16]", "0", "32") "," ENTRY("w_scales", "U8", "[1,2]", "32", "34") "}", 34,
                   ERR_FORMAT, "'w_scales'", "but for the last");
    refused_weight(&s, "{}", "{" ENTRY("w_blocks", "I8", "[2,1,16]", "0", "32") "}", 32, ERR_FORMAT, "'w_blocks'", "U8");
    refused_weight(&s, "{}", "{" ENTRY("w.weight", "I32", "[2]", "0", "8") "}", 8, ERR_FORMAT, "'w.weight'", "I32 [2]");
    scratch_close(&s);
}

static void test_files(void **state)
{
    struct scratch s;
    struct str a, b;
    (void)state;
    scratch_open(&s);
    put_text_file(&s, "config.json", "{}");
    put_text_file(&s, "generation_config.json", "{\"temperature\":0.5}");
    put_text_file(&s, "tokenizer.json", "tokens");
    put_text_file(&s, "nothing.txt", "");
    put_weights(&s, "model.safetensors", X1, 4);
    struct hfdir *h = open_dir(&s);
    assert_true(yyjson_get_real(yyjson_obj_get(hfdir_generation_config(h), "temperature")) == 0.5);
    assert_int_equal(hfdir_file(h, "tokenizer.json", &a, NULL), 0);
    assert_int_equal(hfdir_file(h, "tokenizer.json", &b, NULL), 0);
    assert_true(str_is(a, "tokens") && a.p == b.p);
    assert_int_equal(hfdir_file(h, "nothing.txt", &a, NULL), 0);
    assert_true(a.p && a.n == 0);
    assert_int_equal(hfdir_file(h, "absent.json", &a, NULL), 0);
    assert_null(a.p);
    assert_int_equal(hfdir_file(h, "../x", &a, NULL), ERR_ARGUMENT);
    assert_int_equal(hfdir_file(h, "/etc/passwd", &a, NULL), ERR_ARGUMENT);
    hfdir_close(h);
    put_text_file(&s, "generation_config.json", "{");
    refused_dir(&s, ERR_FORMAT, "generation_config.json", "not valid JSON");
    scratch_close(&s);
}

/* ---- size and faults ---- */

static void test_many(void **state)
{
    enum { N = 300000 };
    struct buf text = {0}, b = {0}, config = {0};
    struct scratch s;
    struct weight_src w;
    char name[32];
    (void)state;
    buf_z(&config, "{\"quantization\":{\"bits\":4,\"group_size\":64");
    for (int i = 0; i < N; i++) {
        buf_printf(&text, "%c\"t%d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%d,%d]}", i ? ',' : '{', i,
                   4 * (N - 1 - i), 4 * (N - i));
        buf_printf(&config, ",\"t%d\":false", i);
    }
    buf_z(&text, "}");
    buf_z(&config, "}}");
    put_u64(&b, text.n);
    buf_str(&b, buf_view(&text));
    for (int i = 0; i < N; i++)
        put_u32(&b, 0);
    scratch_open(&s);
    scratch_put(&s, "model.safetensors", buf_view(&b));
    scratch_put(&s, "config.json", buf_view(&config));
    double t0 = seconds();
    struct hfdir *h = open_dir(&s);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i);
        assert_int_equal(hfdir_weight(h, str_of(name), &w, NULL), 0);
    }
    double t = seconds() - t0;
    print_message("%d tensors and overrides: %.2f s\n", N, t);
    assert_true(t < 30);
    hfdir_close(h);
    scratch_close(&s);
    buf_free(&text);
    buf_free(&config);
    buf_free(&b);
}

static void test_faults(void **state)
{
    struct scratch s;
    int64_t n;
    (void)state;
    scratch_open(&s);
    put_text_file(&s, "config.json", "{\"quantization\":{\"bits\":4,\"group_size\":64,\"x\":false}}");
    put_text_file(&s, "generation_config.json", "{}");
    put_text_file(&s, "tokenizer.json", "{}");
    put_weights(&s, "a.safetensors", X1, 4);
    put_weights(&s, "b.safetensors", Y1, 4);
    put_text_file(&s, INDEX, "{\"weight_map\":{\"y\":\"b.safetensors\",\"x\":\"a.safetensors\"}}");
    for (int kind = 0; kind < 2; kind++) {
        for (n = 0; n < 200; n++) {
            struct hfdir *h = NULL;
            struct err err = {0};
            struct str text;
            if (kind)
                file_fault_set(n);
            else
                mem_fault_set(n);
            int rc = hfdir_open(s.dir, &h, &err);
            if (!rc)
                rc = hfdir_file(h, "tokenizer.json", &text, &err);
            file_fault_set(-1);
            mem_fault_set(-1);
            hfdir_close(h);
            if (rc == 0)
                break;
            assert_int_equal(rc, kind ? ERR_IO : ERR_NOMEM);
            assert_int_equal(err.code, rc);
        }
        assert_in_range(n, kind ? 10 : 20, 150);
    }
    scratch_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),       cmocka_unit_test(test_bad_length), cmocka_unit_test(test_bad_entries),
        cmocka_unit_test(test_bad_layout), cmocka_unit_test(test_truncated),  cmocka_unit_test(test_index),
        cmocka_unit_test(test_methods),    cmocka_unit_test(test_mlx),        cmocka_unit_test(test_mlx_bad),
        cmocka_unit_test(test_mxfp4),      cmocka_unit_test(test_files),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
