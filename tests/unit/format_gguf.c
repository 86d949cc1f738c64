/* GGUF: what a good file gives, and every way of being bad that we could think of. */
#include "format_make.h"

/* ---- a good file with every kind of value ---- */

static void make_good(struct buf *b, uint32_t version)
{
    gguf_begin(b, version, 3, 17);
    gguf_put_u32(b, "general.alignment", 64);
    gguf_put_key(b, "u8", GGUF_U8), buf_put(b, &(uint8_t){200}, 1);
    gguf_put_key(b, "i8", GGUF_I8), buf_put(b, &(int8_t){-3}, 1);
    gguf_put_u16(b, "u16", 65535);
    gguf_put_key(b, "i16", GGUF_I16), buf_put(b, &(int16_t){-300}, 2);
    gguf_put_key(b, "i32", GGUF_I32), buf_put(b, &(int32_t){-70000}, 4);
    gguf_put_key(b, "f32", GGUF_F32), buf_put(b, &(float){1.5f}, 4);
    gguf_put_key(b, "bool", GGUF_BOOL), buf_char(b, 1);
    gguf_put_key(b, "text", GGUF_STRING), put_text(b, "hello");
    gguf_put_key(b, "u64", GGUF_U64), put_u64(b, UINT64_MAX);
    gguf_put_key(b, "i64", GGUF_I64), put_u64(b, (uint64_t)-5);
    gguf_put_key(b, "f64", GGUF_F64), buf_put(b, &(double){0.1}, 8);
    gguf_put_key(b, "words", GGUF_ARRAY), put_u32(b, GGUF_STRING), put_u64(b, 3), put_text(b, "a"), put_text(b, ""),
        put_text(b, "\xff\xfe");
    gguf_put_key(b, "floats", GGUF_ARRAY), put_u32(b, GGUF_F32), put_u64(b, 2), buf_put(b, (float[]){1, 2}, 8);
    gguf_put_key(b, "ints", GGUF_ARRAY), put_u32(b, GGUF_I16), put_u64(b, 2), buf_put(b, (int16_t[]){7, -8}, 4);
    gguf_put_key(b, "flags", GGUF_ARRAY), put_u32(b, GGUF_BOOL), put_u64(b, 2), buf_put(b, "\1\0", 2);
    gguf_put_key(b, "empty", GGUF_ARRAY), put_u32(b, GGUF_U8), put_u64(b, 0);
    gguf_put_info(b, "a.weight", 2, (uint64_t[]){32, 2}, 8, 0);     /* Q8_0: 68 bytes */
    gguf_put_info(b, "c.weight", 1, (uint64_t[]){5}, 0, 192);       /* F32: 20 bytes, listed before b */
    gguf_put_info(b, "b.weight", 3, (uint64_t[]){3, 2, 2}, 1, 128); /* F16: 24 bytes */
    put_padding(b, 64);
    for (int i = 0; i < 192 + 20; i++)
        buf_char(b, (char)i);
}

static struct gguf *open_copy(const struct buf *b, uint8_t **copy)
{
    struct gguf *g = NULL;
    struct err err = {0};
    *copy = malloc(b->n);
    memcpy(*copy, b->p, b->n);
    if (gguf_open_memory(*copy, b->n, &g, &err))
        fail_msg("%s", err.text);
    return g;
}

static void check_scalars(const struct gguf *g)
{
    uint32_t u = 77;
    int64_t i = 77;
    float f = 77;
    bool t = false;
    struct str s = {0};
    struct err err = {0};
    assert_int_equal(gguf_get_u32(g, "u8", &u, NULL), 0);
    assert_int_equal(u, 200);
    assert_int_equal(gguf_get_u32(g, "u16", &u, NULL), 0);
    assert_int_equal(u, 65535);
    assert_int_equal(gguf_get_u32(g, "absent", &u, NULL), 0);
    assert_int_equal(u, 65535);
    assert_int_equal(gguf_get_u32(g, "i8", &u, &err), ERR_FORMAT);
    assert_string_equal(err.text, "(memory): 'i8': expected 0 to 4294967295, got -3");
    assert_int_equal(gguf_get_i64(g, "i8", &i, NULL), 0);
    assert_int_equal(i, -3);
    assert_int_equal(gguf_get_i64(g, "i16", &i, NULL), 0);
    assert_int_equal(i, -300);
    assert_int_equal(gguf_get_i64(g, "i32", &i, NULL), 0);
    assert_int_equal(i, -70000);
    assert_int_equal(gguf_get_i64(g, "i64", &i, NULL), 0);
    assert_int_equal(i, -5);
    assert_int_equal(gguf_get_i64(g, "u64", &i, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_i64(g, "f32", &i, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_i64(g, "bool", &i, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_i64(g, "ints", &i, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_f32(g, "f32", &f, NULL), 0);
    assert_true(f == 1.5f);
    assert_int_equal(gguf_get_f32(g, "f64", &f, NULL), 0);
    assert_true(f == 0.1f);
    assert_int_equal(gguf_get_f32(g, "u8", &f, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_bool(g, "bool", &t, NULL), 0);
    assert_true(t);
    assert_int_equal(gguf_get_bool(g, "u8", &t, NULL), ERR_FORMAT);
    assert_int_equal(gguf_get_str(g, "text", &s, NULL), 0);
    assert_true(str_is(s, "hello"));
    assert_int_equal(gguf_get_str(g, "words", &s, NULL), ERR_FORMAT);
}

static void check_arrays(const struct gguf *g)
{
    const struct gguf_value *v = gguf_value_find(g, "words");
    uint64_t at = 0;
    struct str s;
    float f = 0;
    int64_t i = 0;
    assert_int_equal(v->count, 3);
    assert_true(gguf_string_next(v, &at, &s) && str_is(s, "a"));
    assert_true(gguf_string_next(v, &at, &s) && s.n == 0);
    assert_true(gguf_string_next(v, &at, &s) && str_is(s, "\xff\xfe"));
    assert_false(gguf_string_next(v, &at, &s));
    assert_int_equal(gguf_array_i64(v, 0, &i), ERR_FORMAT);
    v = gguf_value_find(g, "floats");
    assert_int_equal(gguf_array_f32(v, 1, &f), 0);
    assert_true(f == 2);
    assert_int_equal(gguf_array_f32(v, 2, &f), ERR_ARGUMENT);
    assert_int_equal(gguf_array_i64(v, 0, &i), ERR_FORMAT);
    v = gguf_value_find(g, "ints");
    assert_int_equal(gguf_array_i64(v, 1, &i), 0);
    assert_int_equal(i, -8);
    assert_int_equal(gguf_value_find(g, "empty")->count, 0);
    assert_null(gguf_value_find(g, "nothing"));
    assert_int_equal(gguf_array_i64(gguf_value_find(g, "u8"), 0, &i), ERR_ARGUMENT);
}

static void test_good(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct buf b = {0};
        uint8_t *copy;
        make_good(&b, version);
        struct gguf *g = open_copy(&b, &copy);
        assert_int_equal(gguf_version(g), version);
        assert_int_equal(gguf_value_count(g), 17);
        assert_int_equal(gguf_tensor_count(g), 3);
        check_scalars(g);
        check_arrays(g);
        const struct gguf_tensor *t = gguf_tensor_find(g, STR("b.weight"));
        assert_int_equal(t->type, DTYPE_F16);
        assert_int_equal(t->n_dims, 3);
        assert_true(t->ne[0] == 3 && t->ne[1] == 2 && t->ne[2] == 2 && t->ne[3] == 1);
        assert_int_equal(t->size_bytes, 24);
        assert_int_equal(t->data[0], 128);
        assert_int_equal(t->offset % 64, 0);
        assert_null(gguf_tensor_find(g, STR("b.weigh")));
        assert_null(gguf_tensor_at(g, 3));
        assert_int_equal(gguf_tensor_find(g, STR("a.weight"))->size_bytes, 68);
        gguf_tensor_drop(g, t);
        gguf_close(g);
        free(copy);
        buf_free(&b);
    }
    gguf_close(NULL);
}

/* The smallest files there are: the bounds on counts must let them pass. */
static void test_smallest(void **state)
{
    struct buf b = {0};
    uint8_t *copy;
    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        gguf_begin(&b, 3, kind == 2, kind == 1);
        if (kind == 1)
            gguf_put_key(&b, "k", GGUF_U8), buf_char(&b, 9);
        if (kind == 2)
            gguf_put_info(&b, "t", 1, (uint64_t[]){1}, 24, 0), put_padding(&b, 32), buf_char(&b, 5);
        struct gguf *g = open_copy(&b, &copy);
        assert_int_equal(gguf_value_count(g), kind == 1);
        assert_int_equal(gguf_tensor_count(g), kind == 2);
        gguf_close(g);
        free(copy);
        buf_free(&b);
    }
}

/* ---- bad files ---- */

/* Open must fail with `code` and a text that has every piece. */
static void refused(struct buf *b, int code, const char *piece, const char *piece2)
{
    struct gguf *g = (void *)1;
    struct err err = {0};
    uint8_t *copy = malloc(b->n ? b->n : 1); /* exact size: the sanitizer sees reads past it */
    memcpy(copy, b->p ? b->p : "", b->n);
    int rc = gguf_open_memory(copy, b->n, &g, &err);
    if (rc != code || g != NULL || !strstr(err.text, piece) || !strstr(err.text, piece2))
        fail_msg("expected %d with '%s' and '%s', got %d: %s", code, piece, piece2, rc, err.text);
    free(copy);
    buf_free(b);
}

/* One tensor of two that can be made wrong. */
static void two_tensors(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type, uint64_t offset)
{
    gguf_begin(b, 3, 2, 0);
    gguf_put_info(b, "first", 1, (uint64_t[]){8}, 0, 0);
    gguf_put_info(b, name, n_dims, ne, type, offset);
    put_padding(b, 32);
    for (int i = 0; i < 128; i++)
        buf_char(b, 0);
}

static void test_bad_header(void **state)
{
    struct buf b = {0};
    (void)state;
    refused(&b, ERR_FORMAT, "truncated", "magic");
    buf_z(&b, "GGML1234567812345678");
    refused(&b, ERR_FORMAT, "expected the magic 'GGUF'", "47 47 4d 4c");
    gguf_begin(&b, 1, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "version 1", "2 or 3");
    gguf_begin(&b, 4, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "version 4", "2 or 3");
    gguf_begin(&b, 0x03000000, 0, 0);
    refused(&b, ERR_UNSUPPORTED, "big-endian", "");
    gguf_begin(&b, 3, UINT64_MAX, 0);
    refused(&b, ERR_FORMAT, "count of tensors", "18446744073709551615");
    gguf_begin(&b, 3, 0, UINT64_MAX);
    refused(&b, ERR_FORMAT, "count of metadata values", "18446744073709551615");
    gguf_begin(&b, 3, (1ull << 63) + 1, 1ull << 62);
    refused(&b, ERR_FORMAT, "count of metadata values", "");
    gguf_begin(&b, 3, 2, 0);
    refused(&b, ERR_FORMAT, "count of tensors", "got 2");
}

static void test_bad_values(void **state)
{
    struct buf b = {0};
    (void)state;
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", 13), put_u64(&b, 0);
    refused(&b, ERR_FORMAT, "value of 'k'", "got 13");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_ARRAY), put_u32(&b, GGUF_ARRAY), put_u64(&b, 1), put_u64(&b, 0);
    refused(&b, ERR_UNSUPPORTED, "value of 'k'", "arrays of arrays");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_ARRAY), put_u32(&b, 99), put_u64(&b, 1);
    refused(&b, ERR_FORMAT, "value of 'k'", "got 99");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_ARRAY), put_u32(&b, GGUF_F64), put_u64(&b, 1ull << 61), put_u64(&b, 0);
    refused(&b, ERR_FORMAT, "value of 'k'", "truncated");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, UINT64_MAX / 8),
        put_u64(&b, 0);
    refused(&b, ERR_FORMAT, "value of 'k'", "as many strings");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_ARRAY), put_u32(&b, GGUF_STRING), put_u64(&b, 1), put_u64(&b, 1);
    refused(&b, ERR_FORMAT, "value of 'k'", "truncated");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_STRING), put_u64(&b, UINT64_MAX - 7);
    refused(&b, ERR_FORMAT, "value of 'k'", "18446744073709551608");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "k", GGUF_BOOL), buf_char(&b, 2);
    refused(&b, ERR_FORMAT, "bool", "got 2");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "bad\xc3(", GGUF_U32), put_u32(&b, 0);
    refused(&b, ERR_FORMAT, "metadata key at byte 24", "'bad?('");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "", GGUF_U32), put_u32(&b, 0);
    refused(&b, ERR_FORMAT, "metadata key", "0 bytes");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "line\nbreak", GGUF_U32), put_u32(&b, 0);
    refused(&b, ERR_FORMAT, "metadata key", "'line?break'");
    gguf_begin(&b, 3, 0, 2), gguf_put_u32(&b, "same", 1), gguf_put_u32(&b, "same", 2);
    refused(&b, ERR_FORMAT, "'same' at byte 44", "twice");
    gguf_begin(&b, 3, 0, 1), gguf_put_u32(&b, "general.alignment", 0);
    refused(&b, ERR_FORMAT, "general.alignment", "got 0");
    gguf_begin(&b, 3, 0, 1), gguf_put_u32(&b, "general.alignment", 4);
    refused(&b, ERR_FORMAT, "general.alignment", "got 4");
    gguf_begin(&b, 3, 0, 1), gguf_put_u32(&b, "general.alignment", 48);
    refused(&b, ERR_FORMAT, "general.alignment", "got 48");
    gguf_begin(&b, 3, 0, 1), gguf_put_u32(&b, "general.alignment", UINT32_MAX);
    refused(&b, ERR_FORMAT, "general.alignment", "4294967295");
    gguf_begin(&b, 3, 0, 1), gguf_put_key(&b, "general.alignment", GGUF_STRING), put_text(&b, "32");
    refused(&b, ERR_FORMAT, "general.alignment", "string");
}

static void test_bad_tensors(void **state)
{
    struct buf b = {0};
    const uint64_t eight[] = {8, 1, 1, 1};
    (void)state;
    two_tensors(&b, "x", 1, eight, 0, 32);
    uint8_t *copy;
    struct gguf *g = open_copy(&b, &copy); /* the frame itself is good */
    gguf_close(g);
    free(copy);
    buf_free(&b);
    two_tensors(&b, "first", 1, eight, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'first'", "each name once");
    two_tensors(&b, "\xed\xa0\x80", 1, eight, 0, 32);
    refused(&b, ERR_FORMAT, "tensor name", "UTF-8");
    two_tensors(&b, "x", 0, eight, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "1 to 4 dimensions, got 0");
    two_tensors(&b, "x", 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "1 to 4 dimensions, got 5");
    two_tensors(&b, "x", 2, (uint64_t[]){8, 0}, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "got 0 in dimension 1");
    two_tensors(&b, "x", 2, (uint64_t[]){1ull << 32, 1ull << 32}, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "2^63");
    two_tensors(&b, "x", 4, (uint64_t[]){1ull << 31, 1ull << 31, 2, 1}, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "2^63");
    two_tensors(&b, "x", 1, (uint64_t[]){(1ull << 62) + 2}, 0, 32); /* times 4 is 8 again */
    refused(&b, ERR_FORMAT, "tensor 'x'", "inside the file");
    two_tensors(&b, "x", 1, (uint64_t[]){UINT64_MAX}, 0, 32);
    refused(&b, ERR_FORMAT, "tensor 'x'", "2^63");
    two_tensors(&b, "x", 2, (uint64_t[]){48, 1}, 8, 32);
    refused(&b, ERR_FORMAT, "multiple of 32 elements (Q8_0)", "got 48");
    two_tensors(&b, "x", 1, eight, 4, 32);
    refused(&b, ERR_UNSUPPORTED, "tensor 'x'", "type 4 (Q4_2 (withdrawn))");
    two_tensors(&b, "x", 1, eight, 40, 32);
    refused(&b, ERR_UNSUPPORTED, "tensor 'x'", "NVFP4");
    two_tensors(&b, "x", 1, eight, UINT32_MAX, 32);
    refused(&b, ERR_UNSUPPORTED, "tensor 'x'", "unknown");
    two_tensors(&b, "x", 1, eight, 0, 16);
    refused(&b, ERR_FORMAT, "tensor 'x'", "misaligned");
    two_tensors(&b, "x", 1, eight, 0, 0);
    refused(&b, ERR_FORMAT, "tensor 'x'", "overlap");
    two_tensors(&b, "x", 1, (uint64_t[]){9}, 0, 96);
    refused(&b, ERR_FORMAT, "tensor 'x'", "inside the file");
    two_tensors(&b, "x", 1, eight, 0, UINT64_MAX - 31);
    refused(&b, ERR_FORMAT, "tensor 'x'", "inside the file");
    gguf_begin(&b, 3, 1, 0);
    gguf_put_info(&b, "x", 1, (uint64_t[]){1}, 24, 0); /* no data at all, and no padding */
    refused(&b, ERR_FORMAT, "tensor 'x'", "inside the file");
}

/* Every shorter file is refused; nothing is read past its end. */
static void test_truncated(void **state)
{
    struct buf b = {0};
    (void)state;
    make_good(&b, 3);
    for (size_t n = 0; n < b.n; n++) {
        struct gguf *g;
        struct err err = {0};
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, b.p, n);
        int rc = gguf_open_memory(copy, n, &g, &err);
        if (rc != ERR_FORMAT || !err.text[0])
            fail_msg("%zu of %zu bytes: got %d %s", n, b.n, rc, err.text);
        free(copy);
    }
    buf_free(&b);
}

/* Every byte changed to some values: opened or refused, never worse; whatever opens can be walked. */
static void test_changed(void **state)
{
    static const uint8_t masks[] = {0xFF, 0x01, 0x80, 0x20};
    struct buf b = {0};
    (void)state;
    make_good(&b, 3);
    for (size_t at = 0; at < b.n; at++)
        for (size_t m = 0; m < sizeof masks; m++) {
            struct gguf *g;
            uint8_t *copy = malloc(b.n);
            memcpy(copy, b.p, b.n);
            copy[at] ^= masks[m];
            if (gguf_open_memory(copy, b.n, &g, NULL) == 0) {
                for (size_t i = 0; i < gguf_tensor_count(g); i++) {
                    const struct gguf_tensor *t = gguf_tensor_at(g, i);
                    assert_true(t->data >= copy && t->data + t->size_bytes <= copy + b.n);
                }
                gguf_close(g);
            }
            free(copy);
        }
    buf_free(&b);
}

/* ---- size ---- */

static void test_many(void **state)
{
    enum { N = 1000000 };
    struct buf b = {0};
    struct gguf *g;
    struct err err = {0};
    char name[32];
    (void)state;
    gguf_begin(&b, 3, N, N);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "k%d", i);
        gguf_put_u32(&b, name, (uint32_t)i);
    }
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "t%d", i);
        gguf_put_info(&b, name, 1, (uint64_t[]){1}, 24, 32ull * (uint64_t)(N - 1 - i)); /* descending: must be sorted */
    }
    put_padding(&b, 32);
    assert_non_null(buf_room(&b, 32u * N));
    memset(b.p + b.n, 0, 32u * N);
    b.n += 32u * N;
    double t0 = seconds();
    if (gguf_open_memory(b.p, b.n, &g, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < N; i += 7) {
        uint32_t v = 0;
        snprintf(name, sizeof name, "k%d", i);
        assert_int_equal(gguf_get_u32(g, name, &v, NULL), 0);
        assert_int_equal(v, i);
        snprintf(name, sizeof name, "t%d", i);
        assert_non_null(gguf_tensor_find(g, str_of(name)));
    }
    double t = seconds() - t0;
    print_message("1e6 keys, 1e6 tensors: %.2f s\n", t);
    assert_true(t < 30); /* with sanitizers; quadratic would be hours */
    gguf_close(g);
    buf_free(&b);
}

/* ---- split sets ---- */

static void make_shard(struct buf *b, int no, int count, const char *tensor, int total)
{
    *b = (struct buf){0};
    gguf_begin(b, 3, tensor ? 1 : 0, total >= 0 ? 4 : 3);
    gguf_put_u16(b, "split.no", (uint16_t)no);
    gguf_put_u16(b, "split.count", (uint16_t)count);
    if (total >= 0)
        gguf_put_key(b, "split.tensors.count", GGUF_I32), put_u32(b, (uint32_t)total);
    gguf_put_u32(b, "mark", (uint32_t)no + 100);
    if (!tensor)
        return;
    gguf_put_info(b, tensor, 1, (uint64_t[]){8}, 0, 0);
    put_padding(b, 32);
    for (int i = 0; i < 32; i++)
        buf_char(b, (char)no);
}

static const char *put_shard(struct scratch *s, const char *name, int no, int count, const char *tensor, int total)
{
    struct buf b;
    make_shard(&b, no, count, tensor, total);
    const char *path = scratch_put(s, name, buf_view(&b));
    buf_free(&b);
    return path;
}

static void refused_path(const char *path, int code, const char *piece, const char *piece2)
{
    struct gguf *g;
    struct err err = {0};
    int rc = gguf_open(path, &g, &err);
    if (rc != code || g || !strstr(err.text, piece) || !strstr(err.text, piece2))
        fail_msg("expected %d with '%s' and '%s', got %d: %s", code, piece, piece2, rc, err.text);
}

#define ONE "m-00001-of-00003.gguf"
#define TWO "m-00002-of-00003.gguf"
#define THREE "m-00003-of-00003.gguf"

static void test_split(void **state)
{
    struct scratch s;
    struct gguf *g;
    struct err err = {0};
    uint32_t mark = 0;
    (void)state;
    scratch_open(&s);
    const char *first = put_shard(&s, ONE, 0, 3, NULL, 2);
    const char *second = put_shard(&s, TWO, 1, 3, "x", -1);
    put_shard(&s, THREE, 2, 3, "y", -1);
    if (gguf_open(first, &g, &err))
        fail_msg("%s", err.text);
    assert_int_equal(gguf_tensor_count(g), 2);
    assert_int_equal(gguf_tensor_find(g, STR("y"))->shard, 2);
    assert_int_equal(gguf_tensor_find(g, STR("y"))->data[0], 2);
    assert_int_equal(gguf_get_u32(g, "mark", &mark, NULL), 0);
    assert_int_equal(mark, 100);
    gguf_tensor_drop(g, gguf_tensor_find(g, STR("x")));
    assert_int_equal(gguf_tensor_find(g, STR("x"))->data[5], 1); /* read again from the file */
    gguf_close(g);

    refused_path(second, ERR_ARGUMENT, "file 2 of a split set of 3", "open the first");
    put_shard(&s, THREE, 2, 3, "x", -1);
    refused_path(first, ERR_FORMAT, "tensor 'x'", TWO);
    put_shard(&s, THREE, 1, 3, "y", -1); /* the second one again */
    refused_path(first, ERR_FORMAT, "split.no 2", "got 1 and 3");
    put_shard(&s, THREE, 2, 4, "y", -1);
    refused_path(first, ERR_FORMAT, THREE, "got 2 and 4");
    put_shard(&s, THREE, 2, 3, "y", -1);
    put_shard(&s, ONE, 0, 3, NULL, 5);
    refused_path(first, ERR_FORMAT, "split.tensors.count", "expected 2 as the files have, got 5");
    put_shard(&s, ONE, 0, 3, NULL, 2);
    scratch_remove(&s, TWO);
    refused_path(first, ERR_NOT_FOUND, "split file 2 of 3", TWO);
    refused_path(put_shard(&s, "other.gguf", 0, 3, "x", -1), ERR_FORMAT, "other.gguf", "-00001-of-00003.gguf");
    refused_path(s.dir, ERR_FORMAT, "directory", s.dir);
    refused_path("/no/such/file.gguf", ERR_NOT_FOUND, "/no/such/file.gguf", "");
    struct buf b;
    make_shard(&b, 0, 3, "x", -1);
    refused(&b, ERR_UNSUPPORTED, "split set", "memory");
    scratch_close(&s);
}

/* ---- faults and hash ---- */

/* Fail the n-th request for memory, and the n-th file call, for every n: a clean error each time, then success. */
static void test_faults(void **state)
{
    struct scratch s;
    int64_t n;
    (void)state;
    scratch_open(&s);
    const char *first = put_shard(&s, ONE, 0, 3, "w", 3);
    put_shard(&s, TWO, 1, 3, "x", -1);
    put_shard(&s, THREE, 2, 3, "y", -1);
    for (int kind = 0; kind < 2; kind++) {
        for (n = 0; n < 200; n++) {
            struct gguf *g;
            struct err err = {0};
            if (kind)
                file_fault_set(n);
            else
                mem_fault_set(n);
            int rc = gguf_open(first, &g, &err);
            file_fault_set(-1);
            mem_fault_set(-1);
            if (rc == 0) {
                gguf_close(g);
                break;
            }
            assert_int_equal(rc, kind ? ERR_IO : ERR_NOMEM);
            assert_int_equal(err.code, rc);
            assert_null(g);
        }
        assert_in_range(n, kind ? 6 : 15, 100);
    }
    scratch_close(&s);
}

static void test_hash(void **state)
{
    struct buf b = {0};
    struct hash128 first, again, other;
    uint8_t *copy;
    (void)state;
    make_good(&b, 3);
    struct gguf *g = open_copy(&b, &copy);
    assert_int_equal(gguf_content_hash(g, &first, NULL), 0);
    assert_int_equal(gguf_content_hash(g, &again, NULL), 0);
    assert_memory_equal(&first, &again, sizeof first);
    const struct gguf_tensor *t = gguf_tensor_find(g, STR("b.weight"));
    copy[t->offset + 23] ^= 1;
    assert_int_equal(gguf_content_hash(g, &other, NULL), 0);
    assert_true(first.lo != other.lo);
    gguf_close(g);
    free(copy);
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_smallest),   cmocka_unit_test(test_good),        cmocka_unit_test(test_bad_header),
        cmocka_unit_test(test_bad_values), cmocka_unit_test(test_bad_tensors), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_changed),    cmocka_unit_test(test_many),        cmocka_unit_test(test_split),
        cmocka_unit_test(test_faults),     cmocka_unit_test(test_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
