/* bench/attend.c - attention of steps of one row of each of many sequences, alone, over pages that lie in no cache.
 *
 * Usage: bench_attend [-n sequences] [-d depth] [-h heads] [-g key-value heads] [-e elements] [-k format] [-l layers] [-r repeats] [-s]
 * A layer is attn_prepare and attention of the same rows; layers have pages of their own, as many as make `layers` (4, less where that would take
 * more than 24 GB).  -s: a sequence's pages lie anywhere, else one behind the other.  Each line: microseconds a layer takes, and GB/s of what its pages
 * hold up to the row. */
#include "backend_cuda/backend_cuda.h"
#include "tensor/kv_codec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { LAYERS_MAX = 16, REPEATS_MAX = 64, FILL_BYTES = 64 << 20 };

struct options {
    uint32_t sequences, depth, heads, kv_heads, d, layers, repeats;
    const char *format;
    bool scattered;
};
struct work {
    struct device *d;
    struct kv_layer layer[LAYERS_MAX];
    struct kv_span *spans;
    uint32_t *tables, pages;
    size_t page_bytes;
    struct tensor q, k, v, y, rope;
};

static void must(int rc, const struct err *err)
{
    if (rc == 0)
        return;
    fprintf(stderr, "bench_attend: %s\n", err->text);
    exit(1);
}

static void *memory(struct work *w, size_t size_bytes, const void *from)
{
    struct err err = {0};
    void *p;
    must(backend_cuda.buffer_new(w->d, size_bytes, &p, &err), &err);
    if (from)
        must(backend_cuda.buffer_write(w->d, p, from, size_bytes, &err), &err);
    return p;
}

static uint32_t drawn(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 32);
}

static struct tensor tensor_new(struct work *w, uint32_t rows, uint32_t cols)
{
    uint64_t seed = cols;
    float *x = malloc((size_t)rows * cols * sizeof *x);
    for (size_t i = 0; i < (size_t)rows * cols; i++)
        x[i] = (float)(int32_t)drawn(&seed) / 2147483648.0f;
    struct tensor t = {memory(w, (size_t)rows * cols * sizeof *x, x), rows, cols, cols};
    free(x);
    return t;
}

/* A layer's pages: small 16-bit numbers, which are codes and scales too. */
static void layer_new(struct work *w, struct kv_layer *l, const struct options *o)
{
    struct err err = {0};
    enum kv_format kf, vf;
    if (kv_formats_parse(o->format, strlen(o->format), &kf, &vf)) {
        fprintf(stderr, "bench_attend: unknown format '%s'\n", o->format);
        exit(1);
    }
    *l = (struct kv_layer){.k_format = kf, .v_format = vf, .n_kv_heads = o->kv_heads, .d_k = o->d, .d_v = o->d};
    l->head_bytes = kv_layer_head_bytes(l);
    w->page_bytes = (size_t)o->kv_heads * l->head_bytes;
    size_t all = w->page_bytes * w->pages;
    unsigned char *at = memory(w, all, NULL);
    uint16_t *values = malloc(FILL_BYTES);
    void **table = malloc(w->pages * sizeof *table);
    uint64_t seed = 7;
    for (size_t i = 0; i < FILL_BYTES / 2; i++)
        values[i] = (uint16_t)((drawn(&seed) & 0x07ff) | 0x3000); /* 0.125 to 0.5 as f16 */
    for (size_t from = 0; from < all; from += FILL_BYTES)
        must(backend_cuda.buffer_write(w->d, at + from, values, all - from < FILL_BYTES ? all - from : FILL_BYTES, &err), &err);
    for (uint32_t i = 0; i < w->pages; i++)
        table[i] = at + i * w->page_bytes;
    l->pages = memory(w, w->pages * sizeof *table, table);
    free(values), free(table);
}

static void work_open(struct work *w, const struct options *o)
{
    struct err err = {0};
    struct device_config cfg = {0};
    struct device_reserve r = {.rows_max = o->sequences < 512 ? 512 : o->sequences, .cols_max = 4096, .heads_max = o->heads, .head_dim_max = o->d,
                               .context_max = o->depth + 1, .logit_rows_max = 1, .vocab_max = 8};
    must(backend_cuda.device_open(&cfg, &w->d, &err), &err);
    must(backend_cuda.reserve(w->d, &r, &err), &err);
    uint32_t each = o->depth / KV_PAGE + 1;
    w->pages = each * o->sequences;
    uint32_t *tables = malloc(w->pages * sizeof *tables);
    struct kv_span *spans = malloc(o->sequences * sizeof *spans);
    uint64_t seed = 3;
    for (uint32_t i = 0; i < w->pages; i++)
        tables[i] = i;
    for (uint32_t i = w->pages; o->scattered && i-- > 1;) {
        uint32_t j = drawn(&seed) % (i + 1), t = tables[i];
        tables[i] = tables[j], tables[j] = t;
    }
    for (uint32_t i = 0; i < o->sequences; i++)
        spans[i] = (struct kv_span){i, 1, o->depth, i * each};
    w->tables = memory(w, w->pages * sizeof *tables, tables);
    w->spans = memory(w, o->sequences * sizeof *spans, spans);
    free(tables), free(spans);
    w->q = tensor_new(w, o->sequences, o->heads * o->d), w->y = tensor_new(w, o->sequences, o->heads * o->d);
    w->k = tensor_new(w, o->sequences, o->kv_heads * o->d), w->v = tensor_new(w, o->sequences, o->kv_heads * o->d);
    w->rope = tensor_new(w, o->sequences, o->d);
    for (uint32_t i = 0; i < o->layers; i++)
        layer_new(w, &w->layer[i], o);
}

/* Seconds of `turns` times all layers. */
static double pass(struct work *w, const struct options *o, uint32_t turns)
{
    struct err err = {0};
    struct timespec a, b;
    uint64_t event = 0;
    clock_gettime(CLOCK_MONOTONIC, &a);
    for (uint32_t i = 0; i < turns * o->layers; i++) {
        struct kv_layer *l = &w->layer[i % o->layers];
        struct op_attn_prepare prepare = {.q = w->q, .k = w->k, .v = w->v, .table = w->rope, .n_heads = o->heads, .head_dim = o->d, .eps = 1e-5f,
                                          .pairing = ROPE_HALVES, .layer = l, .spans = w->spans, .span_count = o->sequences, .tables = w->tables};
        struct op_attention attend = {.q = w->q, .y = w->y, .n_heads = o->heads, .layer = l, .spans = w->spans, .span_count = o->sequences,
                                      .tables = w->tables, .scale = 0.09f};
        must(op_attn_prepare(w->d, &prepare, &err), &err);
        must(op_attention(w->d, &attend, &err), &err);
    }
    must(backend_cuda.event_record(w->d, &event), &err);
    must(backend_cuda.event_wait(w->d, event, &err), &err);
    clock_gettime(CLOCK_MONOTONIC, &b);
    return (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static bool parse(int argc, char **argv, struct options *o)
{
    for (int c; (c = getopt(argc, argv, "n:d:h:g:e:k:l:r:s")) != -1;) {
        uint32_t v = c == 'k' || c == 's' || c == '?' ? 0 : (uint32_t)strtoul(optarg, NULL, 10);
        if (c == '?')
            return false;
        *(c == 'n' ? &o->sequences : c == 'd' ? &o->depth : c == 'h' ? &o->heads : c == 'g' ? &o->kv_heads : c == 'e' ? &o->d : c == 'l' ? &o->layers :
          c == 'r' ? &o->repeats : &v) = v;
        o->format = c == 'k' ? optarg : o->format;
        o->scattered = o->scattered || c == 's';
    }
    return o->sequences && o->sequences <= 4096 && o->kv_heads && o->heads % o->kv_heads == 0 && o->d && o->layers && o->layers <= LAYERS_MAX && o->repeats &&
           o->repeats <= REPEATS_MAX;
}

int main(int argc, char **argv)
{
    struct options o = {.sequences = 64, .depth = 1535, .heads = 32, .kv_heads = 8, .d = 128, .layers = 4, .repeats = 9, .format = "f16"};
    static struct work w;
    double times[REPEATS_MAX];
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_attend [-n sequences] [-d depth] [-h heads] [-g key-value heads] [-e elements] [-k format] [-l layers] [-r repeats] [-s]\n");
        return 1;
    }
    enum kv_format kf, vf;
    struct kv_layer l = {.n_kv_heads = o.kv_heads, .d_k = o.d, .d_v = o.d};
    if (kv_formats_parse(o.format, strlen(o.format), &kf, &vf) == 0)
        l.k_format = kf, l.v_format = vf;
    double bytes = (double)kv_layer_head_bytes(&l) * o.kv_heads * o.sequences * (o.depth + 1) / KV_PAGE;
    while (o.layers > 1 && bytes * o.layers > 24e9)
        o.layers--;
    work_open(&w, &o);
    uint32_t turns = (uint32_t)(4e-3 / (bytes * o.layers / 4e12 + 1e-5 * o.layers)) + 1;
    turns = turns * o.layers > 256 ? 256 / o.layers : turns;
    for (int i = 0; i < 3; i++)
        pass(&w, &o, turns);
    for (uint32_t i = 0; i < o.repeats; i++)
        times[i] = pass(&w, &o, turns) / turns / o.layers;
    qsort(times, o.repeats, sizeof *times, by_size);
    printf("%4u sequences at %5u, %u heads on %u of %u, %s: %8.1f us (median %.1f), %.0f GB/s\n", o.sequences, o.depth, o.heads, o.kv_heads, o.d,
           o.format, times[0] * 1e6, times[o.repeats / 2] * 1e6, bytes / times[o.repeats / 2] * 1e-9);
    backend_cuda.device_close(w.d);
    return 0;
}
