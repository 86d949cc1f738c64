/* tests/kl_run.c - what quantised arithmetic costs, in mean KL over positions: M = the plain folder on backend ref, F = the file of quantised
 * weights on backend ref (in f32: what the weights' rounding alone costs), ours = the file on the backend tested.
 *
 * usage: kl_run [--cuda] WHOLE OURS DIR [NAME=WHOLE:OURS...]        a NAME's own limits, for models that amplify roundings
 *
 * For every DIR/NAME.gguf or DIR/NAME.packed with DIR/NAME/golden.json: the golden's prompt and greedy ids in one span, every position
 * compared.  A model fails when KL(M, ours) is above WHOLE or KL(F, ours) above OURS.
 * Of a model with experts every run takes those of M, because one other choice where two are nearly as good costs more than all roundings;
 * rows of ours that would choose otherwise are listed.  Each must be a near-tie: its logits of the router are near M's, so what was chosen by
 * them (scores, biases, groups) stood as near to its border. */
#include "base/file.h"
#include "base/json.h"
#include "model_run.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDS_MAX = 1024 };
static const double NEAR_TIE = 0.25, NEAR_TIE_OWN = 0.75; /* in the router's logits, which spread over several units */

struct limits {
    double whole, ours, tie;
};

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
    routes->own_logits = mem_try_zero(rows * info->experts, sizeof *routes->own_logits);
    routes->ids = mem_try_zero(rows * info->experts_used, sizeof *routes->ids);
    routes->own = mem_try_zero(rows * info->experts_used, sizeof *routes->own);
    routes->logits = mem_try_zero(rows * info->experts, sizeof *routes->logits);
    return routes->ids != NULL && routes->own != NULL && routes->logits != NULL && routes->own_logits != NULL ? 0 : err_nomem(err, "routes", rows);
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

static bool same_choice(const uint32_t *a, const uint32_t *b, uint32_t used)
{
    for (uint32_t i = 0; i < used; i++)
        if (!among(a[i], b, used))
            return false;
    return true;
}

/* Lists rows that would take other experts than they were given, with how far the logits they were chosen by are from M's.  Are all of them
 * near-ties? */
static bool list_choices(const struct model_routes *routes, const struct model_info *info, double tie)
{
    uint32_t differ = 0, used = info->experts_used;
    double widest = 0;
    for (size_t row = 0; row < (size_t)info->layers * routes->rows; row++) {
        const uint32_t *given = routes->ids + row * used, *own = routes->own + row * used;
        double off = 0;
        if (same_choice(given, own, used))
            continue;
        for (uint32_t e = 0; e < info->experts; e++)
            off = fmax(off, fabs((double)routes->logits[row * info->experts + e] - (double)routes->own_logits[row * info->experts + e]));
        widest = fmax(widest, off);
        printf("       layer %zu row %zu: other experts, by logits at most %.3g off\n", row / routes->rows, row % routes->rows, off);
        differ++;
    }
    printf("     %u of %u choices would differ, by logits at most %.3g off\n", differ, info->layers * routes->rows, widest);
    return widest <= tie;
}

/* Logits of M, F and ours, in turn; experts are M's. */
static int logits_three(const char *plain, const char *packed, const uint32_t *ids, uint32_t n, uint32_t context, struct model_routes *routes,
                        float *out[3], struct model_info *info, struct err *err)
{
    const char *paths[3] = {plain, packed, packed};
    int rc = 0;
    for (int k = 0; k < 3 && rc == 0; k++) {
        struct run_config cfg = {.backend = k < 2 ? "ref" : backend, .kv = k < 2 ? "f32" : "f16", .context = context, .rows_max = n,
                                 .logit_rows_max = 16, .kv_bytes = 32u << 20, .threads = 1, .routes = routes};
        routes->replay = k > 0;
        rc = logits_of(paths[k], &cfg, ids, n, &out[k], info, err);
    }
    return rc;
}

static bool run_file(const char *dir, const char *name, const struct limits *most, uint32_t *positions)
{
    char golden[4096], packed[4096], plain[4096];
    struct err err = {0};
    uint32_t ids[IDS_MAX], n = 0, context = 0;
    struct model_routes routes = {0};
    struct model_info info = {0};
    float *x[3] = {NULL};
    snprintf(golden, sizeof golden, "%s/%s/golden.json", dir, name);
    snprintf(plain, sizeof plain, "%s/%s", dir, name);
    snprintf(packed, sizeof packed, "%s/%s.packed", dir, name);
    if (!file_is_dir(packed))
        snprintf(packed, sizeof packed, "%s/%s.gguf", dir, name);
    int rc = read_ids(golden, ids, &n, &context, &err);
    rc = rc ? rc : logits_three(plain, packed, ids, n, context, &routes, x, &info, &err);
    bool good = rc == 0 && n > 0;
    double weights = good ? mean_divergence(x[0], x[1], n, info.vocab) : 0, rounding = good ? mean_divergence(x[1], x[2], n, info.vocab) : 0;
    double all = good ? mean_divergence(x[0], x[2], n, info.vocab) : 0;
    good = good && rounding <= most->ours && all <= most->whole;
    printf("%-4s %-18s %s KL(M, ours) %.2e, of it KL(M, F) %.2e, KL(F, ours) %.2e%s\n", good ? "ok" : "FAIL", name, rc ? err.text : "mean", all,
           weights, rounding, info.experts ? ", with M's experts" : "");
    if (rc == 0 && info.experts)
        good = list_choices(&routes, &info, most->tie) && good;
    for (int k = 0; k < 3; k++)
        mem_free(x[k]);
    mem_free(routes.ids);
    mem_free(routes.own);
    mem_free(routes.logits);
    mem_free(routes.own_logits);
    *positions += n;
    return good;
}

static struct limits limits_of(const char *name, int argc, char **argv)
{
    struct limits l = {strtod(argv[1], NULL), strtod(argv[2], NULL), NEAR_TIE};
    size_t n = strlen(name);
    for (int i = 4; i < argc; i++)
        if (strncmp(argv[i], name, n) == 0 && argv[i][n] == '=') {
            char *next = NULL;
            l.whole = strtod(argv[i] + n + 1, &next);
            l.ours = *next == ':' ? strtod(next + 1, NULL) : l.ours;
            l.tie = NEAR_TIE_OWN;
        }
    return l;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--cuda") == 0)
        backend = "cuda", argc--, argv++;
    DIR *d = argc >= 4 && run_backend(backend) != NULL ? opendir(argv[3]) : NULL;
    uint32_t good = 0, all = 0, positions = 0;
    if (d == NULL) {
        fprintf(stderr, "usage: kl_run [--cuda] WHOLE OURS DIR [NAME=WHOLE:OURS...]\n");
        return 2;
    }
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        char *end = strrchr(e->d_name, '.');
        if (end == NULL || end == e->d_name || (strcmp(end, ".gguf") != 0 && strcmp(end, ".packed") != 0))
            continue;
        *end = 0;
        struct limits most = limits_of(e->d_name, argc, argv);
        good += run_file(argv[3], e->d_name, &most, &positions);
        all++;
    }
    closedir(d);
    printf("%u positions\n%u passed, %u failed\n", positions, good, all - good);
    return good != all || all == 0;
}
