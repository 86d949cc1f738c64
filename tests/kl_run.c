/* tests/kl_run.c - what quantised arithmetic costs: KL(F, ours) of GGUF files beside golden folders, F = backend ref in f32.
 *
 * usage: kl_run [--cuda] LIMIT DIR [NAME=LIMIT...]        a NAME's own limit, for models that 8-bit activations cost more whoever computes
 *
 * For every DIR/NAME.gguf with DIR/NAME/golden.json, or DIR/NAME.packed whose twin of plain elements DIR/NAME is: the golden's prompt and greedy ids in one span, every position compared.  A model
 * fails when its mean is above LIMIT.  Of a model with experts the second run takes the first one's, because one other choice where two
 * are nearly as good costs more than all roundings; how many rows would choose otherwise, and by how much, is printed. */
#include "base/file.h"
#include "base/json.h"
#include "model_run.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 1024 };

static uint32_t add_ids(yyjson_val *list, uint32_t *ids, uint32_t n)
{
    yyjson_arr_iter it;
    yyjson_arr_iter_init(list, &it);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v != NULL && n < IDS_MAX; v = yyjson_arr_iter_next(&it))
        ids[n++] = (uint32_t)yyjson_get_uint(v);
    return n;
}

static int read_ids(const char *path, uint32_t *ids, uint32_t *n, uint32_t *context, struct err *err)
{
    struct buf text = {0};
    int rc = file_read(&text, path, 64u << 20, err);
    yyjson_doc *doc = rc == 0 ? json_parse(buf_view(&text), path, err) : NULL;
    if (rc == 0 && doc == NULL)
        rc = ERR_FORMAT;
    if (rc == 0) {
        yyjson_val *root = yyjson_doc_get_root(doc);
        *n = add_ids(yyjson_obj_get(root, "greedy"), ids, add_ids(yyjson_obj_get(root, "prompt"), ids, 0));
        rc = json_get_u32(root, "context", context, path, err);
    }
    json_free(doc);
    buf_free(&text);
    return rc;
}

/* Room for every layer's experts of `count` rows; none for a model without. */
static int routes_open(struct model_routes *routes, const struct model_info *info, uint32_t count, struct err *err)
{
    size_t rows = (size_t)info->layers * count;
    routes->rows = count;
    if (info->experts == 0 || routes->ids != NULL)
        return 0;
    routes->ids = mem_try_zero(rows * info->experts_used, sizeof *routes->ids);
    routes->own = mem_try_zero(rows * info->experts_used, sizeof *routes->own);
    routes->logits = mem_try_zero(rows * info->experts, sizeof *routes->logits);
    return routes->ids != NULL && routes->own != NULL && routes->logits != NULL ? 0 : err_nomem(err, "routes", rows);
}

/* [count][vocab] logits of all ids; the caller frees. */
static int logits_of(const char *path, const struct run_config *cfg, const uint32_t *ids, uint32_t count, float **out,
                     struct model_info *info, struct err *err)
{
    struct run r = {0};
    struct kv_seq *seq = NULL;
    *out = NULL;
    int rc = run_open(&r, path, cfg, err);
    if (rc == 0)
        rc = kv_seq_new(r.kv, &seq, err);
    if (rc == 0) {
        *info = *model_info(r.model);
        rc = routes_open(cfg->routes, info, count, err);
    }
    if (rc == 0) {
        *out = mem_try_array((size_t)count * info->vocab, sizeof **out);
        rc = *out != NULL ? run_span(&r, seq, ids, count, 0, *out, err) : err_nomem(err, "logits", info->vocab);
    }
    run_close(&r);
    return rc;
}

static double log_sum(const float *x, uint32_t n)
{
    double top = -INFINITY, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        top = (double)x[i] > top ? (double)x[i] : top;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - top);
    return top + log(sum);
}

static double divergence(const float *f, const float *x, uint32_t n)
{
    double kl = 0, lf = log_sum(f, n), lx = log_sum(x, n);
    for (uint32_t i = 0; i < n; i++) {
        double p = (double)f[i] - lf;
        kl += exp(p) * (p - ((double)x[i] - lx));
    }
    return kl;
}

static const char *backend = "cpu";

static double mean_divergence(const float *f, const float *x, uint32_t n, uint32_t vocab)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += divergence(f + (size_t)i * vocab, x + (size_t)i * vocab, vocab);
    return sum / n;
}

static bool among(uint32_t id, const uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Rows that would take other experts than they were given: how many, and how far apart at most, in the reference's logits, the one given
 * and the nearest one taken instead are. */
static void print_choices(const struct model_routes *routes, const struct model_info *info)
{
    uint32_t differ = 0, used = info->experts_used;
    double widest = 0;
    for (size_t row = 0; row < (size_t)info->layers * routes->rows; row++) {
        const uint32_t *given = routes->ids + row * used, *own = routes->own + row * used;
        const float *logits = routes->logits + row * info->experts;
        bool other = false;
        for (uint32_t s = 0; s < used; s++) {
            double nearest = INFINITY;
            for (uint32_t t = 0; t < used && !among(given[s], own, used); t++)
                if (!among(own[t], given, used))
                    nearest = fmin(nearest, fabs((double)logits[given[s]] - (double)logits[own[t]]));
            other = other || nearest < INFINITY;
            widest = nearest < INFINITY ? fmax(widest, nearest) : widest;
        }
        differ += other;
    }
    printf("     %u of %u choices would differ, the widest by %.3g in the router's logits\n", differ, info->layers * routes->rows, widest);
}

static bool run_file(const char *dir, const char *name, double limit, uint32_t *positions)
{
    char golden[4096], gguf[4096], packed[4096], twin[4096];
    struct err err = {0};
    uint32_t ids[IDS_MAX], n = 0;
    struct model_routes routes = {0};
    struct model_info info = {0};
    struct run_config plain = {.backend = "ref", .kv = "f32", .rows_max = IDS_MAX, .logit_rows_max = 16, .kv_bytes = 256u << 20,
                               .routes = &routes}, own;
    float *f = NULL, *x = NULL;
    snprintf(golden, sizeof golden, "%s/%s/golden.json", dir, name);
    snprintf(gguf, sizeof gguf, "%s/%s.gguf", dir, name);
    snprintf(packed, sizeof packed, "%s/%s.packed", dir, name);
    snprintf(twin, sizeof twin, "%s/%s", dir, name);
    bool twins = file_is_dir(packed);
    int rc = read_ids(golden, ids, &n, &plain.context, &err);
    own = plain;
    own.backend = backend;
    own.kv = "f16";
    if (rc == 0)
        rc = logits_of(twins ? twin : gguf, &plain, ids, n, &f, &info, &err);
    routes.replay = true;
    if (rc == 0)
        rc = logits_of(twins ? packed : gguf, &own, ids, n, &x, &info, &err);
    double mean = rc == 0 && n > 0 ? mean_divergence(f, x, n, info.vocab) : 0;
    bool good = rc == 0 && n > 0 && mean <= limit;
    printf("%-4s %-14s %s %.2e%s\n", good ? "ok" : "FAIL", name, rc ? err.text : "mean KL", mean,
           info.experts ? " with the reference's experts" : "");
    if (rc == 0 && info.experts)
        print_choices(&routes, &info);
    mem_free(f);
    mem_free(x);
    mem_free(routes.ids);
    mem_free(routes.own);
    mem_free(routes.logits);
    *positions += n;
    return good;
}

static double limit_of(const char *name, int argc, char **argv)
{
    size_t n = strlen(name);
    for (int i = 3; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=')
            return strtod(argv[i] + n + 1, NULL);
    return strtod(argv[1], NULL);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--cuda") == 0)
        backend = "cuda", argc--, argv++;
    DIR *d = argc >= 3 && run_backend(backend) != NULL ? opendir(argv[2]) : NULL;
    uint32_t good = 0, all = 0, positions = 0;
    if (d == NULL) {
        fprintf(stderr, "usage: kl_run [--cuda] LIMIT DIR [NAME=LIMIT...]\n");
        return 2;
    }
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char *end = strrchr(e->d_name, '.');
        if (end == NULL || end == e->d_name || (strcmp(end, ".gguf") != 0 && strcmp(end, ".packed") != 0))
            continue;
        *end = 0;
        good += run_file(argv[2], e->d_name, limit_of(e->d_name, argc, argv), &positions);
        all++;
    }
    closedir(d);
    printf("%u positions\n%u passed, %u failed\n", positions, good, all - good);
    return good != all || all == 0;
}
