/* Builders of small model files for the tests of format/, valid unless a test asks otherwise; and a scratch directory. */
#ifndef TEST_FORMAT_MAKE_H
#define TEST_FORMAT_MAKE_H

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static inline void put_u32(struct buf *b, uint32_t v)
{
    buf_put(b, &v, 4);
}

static inline void put_u64(struct buf *b, uint64_t v)
{
    buf_put(b, &v, 8);
}

static inline void put_text(struct buf *b, const char *z)
{
    put_u64(b, strlen(z));
    buf_z(b, z);
}

static inline void gguf_begin(struct buf *b, uint32_t version, uint64_t tensors, uint64_t values)
{
    buf_put(b, "GGUF", 4);
    put_u32(b, version);
    put_u64(b, tensors);
    put_u64(b, values);
}

static inline void gguf_put_key(struct buf *b, const char *key, uint32_t type)
{
    put_text(b, key);
    put_u32(b, type);
}

static inline void gguf_put_u32(struct buf *b, const char *key, uint32_t v)
{
    gguf_put_key(b, key, GGUF_U32);
    put_u32(b, v);
}

static inline void gguf_put_u16(struct buf *b, const char *key, uint16_t v)
{
    gguf_put_key(b, key, GGUF_U16);
    buf_put(b, &v, 2);
}

static inline void gguf_put_info(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *ne, uint32_t type,
                                 uint64_t offset)
{
    put_text(b, name);
    put_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        put_u64(b, ne[d]);
    put_u32(b, type);
    put_u64(b, offset);
}

static inline void put_padding(struct buf *b, size_t alignment)
{
    while (b->n % alignment)
        buf_char(b, 0);
}

static inline double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A directory of this test's own; files are written into it and removed with it. */
struct scratch {
    char dir[256];
    char files[16][320];
    int n_files;
};

static inline void scratch_open(struct scratch *s)
{
    const char *base = getenv("TMPDIR");
    *s = (struct scratch){0};
    snprintf(s->dir, sizeof s->dir, "%s/rhapsode-format-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(s->dir))
        fail_msg("cannot make %s", s->dir);
}

static inline const char *scratch_put(struct scratch *s, const char *name, struct str data)
{
    char path[320];
    struct err err = {0};
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    if (file_write_atomic(path, data, &err))
        fail_msg("%s", err.text);
    for (int i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i], path) == 0)
            return s->files[i];
    assert_true(s->n_files < 16);
    return memcpy(s->files[s->n_files++], path, sizeof path);
}

static inline void scratch_remove(struct scratch *s, const char *name)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", s->dir, name);
    unlink(path);
}

static inline void scratch_close(struct scratch *s)
{
    for (int i = 0; i < s->n_files; i++)
        unlink(s->files[i]);
    rmdir(s->dir);
}

#endif
