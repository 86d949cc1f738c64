/* Fuzz: a model directory.  The input is cut at each byte 0xFE (never in UTF-8) into config.json, the index, and up to two
 * safetensors files; an empty index means none.  The files are written where shared memory is mounted, if it is. */
#include "base/file.h"
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char dir[64];

static const char *const names[] = {"config.json", "model.safetensors.index.json", "model.safetensors", "b.safetensors"};

static void clean(void)
{
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

static void put(const char *name, const uint8_t *p, size_t n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(p, 1, n, f) != n || fclose(f))
        abort();
}

static void start(void)
{
    snprintf(dir, sizeof dir, "%s/fuzz-hfdir-XXXXXX", file_is_dir("/dev/shm") ? "/dev/shm" : "/tmp");
    if (!mkdtemp(dir))
        abort();
    atexit(clean);
}

static void use(const struct hfdir *h)
{
    for (size_t i = 0; i < hfdir_tensor_count(h); i++) {
        struct str name = hfdir_tensor_at(h, i)->name;
        struct weight_src w;
        struct err err = {0};
        if (str_ends(name, STR(".weight")))
            name.n -= 7;
        if (hfdir_weight(h, name, &w, &err) || w.cols > 1 << 20 || !w.rows)
            continue;
        float *row = malloc(sizeof *row * w.cols);
        if (row)
            weight_src_row(&w, w.rows - 1, row);
        dtype_check_scales(&w, &err);
        free(row);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct hfdir *h;
    struct err err = {0};
    if (!dir[0])
        start();
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *cut = i < 3 ? memchr(data, 0xFE, n) : NULL;
        size_t m = cut ? (size_t)(cut - data) : n;
        if (i == 1 && m == 0) {
            char path[128];
            snprintf(path, sizeof path, "%s/%s", dir, names[1]);
            unlink(path);
        } else {
            put(names[i], data, m);
        }
        data += m + (cut != NULL);
        n -= m + (cut != NULL);
    }
    if (hfdir_open(dir, &h, &err) == 0) {
        struct hash128 hash;
        use(h);
        hfdir_content_hash(h, &hash, &err);
        hfdir_close(h);
    } else if (!err.code || !err.text[0]) {
        abort();
    }
    return 0;
}
