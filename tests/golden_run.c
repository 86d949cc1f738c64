/* tests/golden_run.c - every model folder under DIR against its golden.json: logits, log-probabilities, top ids, greedy ids.
 *
 * usage: golden_run DIR [--backend ref|cpu|cuda] [--level L] [--kv K[:V]] [--threads N] [--only NAME]
 *
 * golden.json was computed by transformers in f32 on the folder's weights.  A GGUF file beside the folder (NAME.gguf) is checked
 * likewise.  Folders of architectures this project does not have are listed, not failed. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "model_run.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { PROMPT_MAX = 512, GREEDY_MAX = 256, TOP = 8 };

struct golden {
    yyjson_doc *doc;
    uint32_t prompt[PROMPT_MAX], greedy[GREEDY_MAX], prompt_n, greedy_n;
    uint32_t context; /* to open the model with; 0 = its own */
};

struct result {
    double logit, logprob, top, greedy_logit; /* greatest errors */
    uint32_t top_wrong, greedy_wrong, greedy_skipped;
};

static uint32_t ids_of(yyjson_val *list, uint32_t *out, uint32_t max)
{
    uint32_t n = 0;
    yyjson_arr_iter it;
    yyjson_arr_iter_init(list, &it);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v != NULL && n < max; v = yyjson_arr_iter_next(&it)) {
        out[n++] = (uint32_t)yyjson_get_uint(v);
    }
    return n;
}

static int golden_open(struct golden *g, const char *folder, struct err *err)
{
    char path[4096];
    struct buf text = {0};
    int rc = file_join(path, sizeof path, folder, "golden.json", err);
    if (rc == 0) {
        rc = file_read(&text, path, 64u << 20, err);
    }
    if (rc == 0) {
        g->doc = json_parse(buf_view(&text), path, err);
        rc = g->doc != NULL ? 0 : ERR_FORMAT;
    }
    buf_free(&text);
    if (rc == 0) {
        yyjson_val *root = yyjson_doc_get_root(g->doc);
        g->prompt_n = ids_of(yyjson_obj_get(root, "prompt"), g->prompt, PROMPT_MAX);
        g->greedy_n = ids_of(yyjson_obj_get(root, "greedy"), g->greedy, GREEDY_MAX);
        rc = json_get_u32(root, "context", &g->context, path, err);
    }
    return rc;
}

static double worse(double a, double b)
{
    return !(b <= a) ? b : a; /* NaN counts as worst */
}

static uint32_t arg_max(const float *x, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++) {
        best = x[i] > x[best] ? i : best;
    }
    return best;
}

static double log_softmax(const float *x, uint32_t n, uint32_t id)
{
    double sum = 0, top = (double)x[arg_max(x, n)];
    for (uint32_t i = 0; i < n; i++) {
        sum += exp((double)x[i] - top);
    }
    return (double)x[id] - top - log(sum);
}

static void compare_prompt(const struct golden *g, const float *logits, uint32_t vocab, struct result *res)
{
    yyjson_val *root = yyjson_doc_get_root(g->doc);
    yyjson_val *last = yyjson_obj_get(root, "last_logits"), *next = yyjson_obj_get(root, "logprob_of_next");
    yyjson_val *ids = yyjson_obj_get(root, "top_ids"), *tops = yyjson_obj_get(root, "top_logits");
    const float *end = logits + (size_t)(g->prompt_n - 1) * vocab;
    for (uint32_t i = 0; i < vocab; i++) {
        res->logit = worse(res->logit, fabs((double)end[i] - yyjson_get_num(yyjson_arr_get(last, i))));
    }
    for (uint32_t p = 0; p < g->prompt_n; p++) {
        const float *row = logits + (size_t)p * vocab;
        if (p + 1 < g->prompt_n) {
            double got = log_softmax(row, vocab, g->prompt[p + 1]);
            res->logprob = worse(res->logprob, fabs(got - yyjson_get_num(yyjson_arr_get(next, p))));
        }
        for (uint32_t t = 0; t < TOP; t++) {
            uint32_t id = (uint32_t)yyjson_get_uint(yyjson_arr_get(yyjson_arr_get(ids, p), t));
            double want = yyjson_get_num(yyjson_arr_get(yyjson_arr_get(tops, p), t));
            res->top = worse(res->top, fabs((double)row[id] - want));
        }
    }
}

/* Feed the golden ids; count steps whose arg-max is another although the margin is above the error. */
static int compare_greedy(struct run *r, struct kv_seq *seq, const struct golden *g, float *row, uint32_t vocab, double tolerance,
                          struct result *res, struct err *err)
{
    yyjson_val *margins = yyjson_obj_get(yyjson_doc_get_root(g->doc), "margins");
    int rc = 0;
    for (uint32_t i = 0; i < g->greedy_n && rc == 0; i++) {
        double margin = yyjson_get_num(yyjson_arr_get(margins, i));
        if (margin <= 2 * tolerance) {
            res->greedy_skipped++;
        } else if (arg_max(row, vocab) != g->greedy[i]) {
            res->greedy_wrong++;
        }
        rc = run_span(r, seq, &g->greedy[i], 1, 0, row, err);
    }
    return rc;
}

static int run_one(const char *path, const struct golden *g, const struct run_config *cfg, double tolerance, struct result *res,
                   struct err *err)
{
    struct run r = {0};
    struct kv_seq *seq = NULL;
    float *logits = NULL;
    struct run_config own = *cfg;
    own.context = g->context;
    int rc = run_open(&r, path, &own, err);
    if (rc == 0) {
        rc = kv_seq_new(r.kv, &seq, err);
    }
    if (rc == 0) {
        uint32_t vocab = model_info(r.model)->vocab;
        logits = mem_try_array((size_t)g->prompt_n * vocab, sizeof *logits);
        rc = logits != NULL ? run_span(&r, seq, g->prompt, g->prompt_n, 0, logits, err) : err_nomem(err, "logits", vocab);
        if (rc == 0) {
            compare_prompt(g, logits, vocab, res);
            rc = compare_greedy(&r, seq, g, logits + (size_t)(g->prompt_n - 1) * vocab, vocab, tolerance, res, err);
        }
        if (rc == 0) {
            rc = kv_check(r.kv, err);
        }
    }
    mem_free(logits);
    run_close(&r);
    return rc;
}

static bool judge(const char *name, const char *form, const struct result *res, double tolerance)
{
    bool good = res->logit <= tolerance && res->logprob <= tolerance && res->top <= tolerance && res->greedy_wrong == 0;
    printf("%-4s %-14s %-11s logits %.2e  logprob %.2e  top %.2e  greedy wrong %u (%u within error)\n", good ? "ok" : "FAIL",
           name, form, res->logit, res->logprob, res->top, res->greedy_wrong, res->greedy_skipped);
    return good;
}

/* What of this config the GGUF form of its architecture has no key for; NULL when nothing. */
static const char *gguf_loses(const char *folder)
{
    char path[4096];
    struct buf text = {0};
    const char *lost = NULL;
    if (file_join(path, sizeof path, folder, "config.json", NULL) == 0 && file_read(&text, path, 1u << 20, NULL) == 0) {
        yyjson_doc *doc = json_parse(buf_view(&text), path, NULL);
        yyjson_val *c = yyjson_doc_get_root(doc), *rope = yyjson_obj_get(c, "rope_parameters");
        yyjson_val *scalar = yyjson_obj_get(c, "query_pre_attn_scalar");
        struct str kind = json_str(yyjson_obj_get(c, "model_type"));
        if (str_is(kind, "mistral") && yyjson_is_num(yyjson_obj_get(c, "sliding_window"))) {
            lost = "sliding_window";
        } else if (yyjson_is_true(yyjson_obj_get(c, "use_sliding_window"))) {
            lost = "use_sliding_window";
        } else if (!str_is(kind, "gpt_oss") && (yyjson_is_false(yyjson_obj_get(rope, "truncate")) ||
                                                 (yyjson_is_num(yyjson_obj_get(rope, "mscale")) && !yyjson_is_num(yyjson_obj_get(c, "kv_lora_rank"))))) {
            lost = "yarn truncate and mscale";
        } else if (scalar != NULL && yyjson_get_num(scalar) != yyjson_get_num(yyjson_obj_get(c, "head_dim"))) {
            lost = "query_pre_attn_scalar";
        }
        json_free(doc);
    }
    buf_free(&text);
    return lost;
}

/* 0 good, 1 failed, 2 not ours */
static int run_folder(const char *dir, const char *name, const struct run_config *cfg, double tolerance)
{
    char folder[4096], gguf[4096];
    struct err err = {0};
    struct golden g = {0};
    struct result res = {0};
    int verdict = 0;
    if (snprintf(folder, sizeof folder, "%s/%s", dir, name) >= (int)sizeof folder ||
        snprintf(gguf, sizeof gguf, "%s/%s.gguf", dir, name) >= (int)sizeof gguf) {
        return 1;
    }
    int rc = golden_open(&g, folder, &err);
    if (rc == 0) {
        rc = run_one(folder, &g, cfg, tolerance, &res, &err);
    }
    if (rc == ERR_UNSUPPORTED && strstr(err.text, "model_type") != NULL) {
        printf("--   %-14s not supported\n", name);
        verdict = 2;
    } else if (rc != 0) {
        printf("FAIL %-14s %s\n", name, err.text);
        verdict = 1;
    } else {
        verdict = judge(name, "safetensors", &res, tolerance) ? 0 : 1;
    }
    const char *lost = rc == 0 && file_exists(gguf) ? gguf_loses(folder) : NULL;
    if (lost != NULL) {
        printf("--   %-14s gguf        the format has no key for %s\n", name, lost);
    } else if (rc == 0 && file_exists(gguf)) {
        res = (struct result){0};
        rc = run_one(gguf, &g, cfg, tolerance, &res, &err);
        if (rc != 0) {
            printf("FAIL %-14s %s\n", name, err.text);
        }
        verdict |= rc != 0 || !judge(name, "gguf", &res, tolerance);
    }
    json_free(g.doc);
    return verdict;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int main(int argc, char **argv)
{
    enum kv_format k = KV_F32, v = KV_F32;
    struct run_config cfg = {.backend = "cpu", .kv = "f32", .rows_max = 512, .kv_bytes = 256u << 20};
    const char *only = NULL;
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--backend") == 0) {
            cfg.backend = argv[i + 1];
        } else if (strcmp(argv[i], "--level") == 0) {
            cfg.level = argv[i + 1];
        } else if (strcmp(argv[i], "--threads") == 0) {
            cfg.threads = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--only") == 0) {
            only = argv[i + 1];
        } else if (strcmp(argv[i], "--kv") == 0) {
            cfg.kv = argv[i + 1];
        }
    }
    DIR *d = argc < 2 ? NULL : opendir(argv[1]);
    if (d == NULL || run_backend(cfg.backend) == NULL || kv_formats_parse(cfg.kv, strlen(cfg.kv), &k, &v)) {
        fprintf(stderr, "usage: golden_run DIR [--backend ref|cpu|cuda] [--level L] [--kv K[:V]] [--threads N] [--only NAME]\n");
        return 2;
    }
    char *names[512];
    int count = 0, failed = 0, done = 0, others = 0;
    for (struct dirent *e = readdir(d); e != NULL && count < 512; e = readdir(d)) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s/golden.json", argv[1], e->d_name);
        if (file_exists(path) && (only == NULL || strcmp(only, e->d_name) == 0)) {
            names[count++] = mem_try_strndup(e->d_name, strlen(e->d_name));
        }
    }
    closedir(d);
    qsort(names, (size_t)count, sizeof names[0], compare_names);
    for (int i = 0; i < count; i++) {
        /* on a GPU operands are f16, whatever the state */
        double tolerance = strcmp(cfg.backend, "cuda") == 0 ? 5e-2 : k == KV_F32 && v == KV_F32 ? 1e-4 : 5e-3;
        int verdict = run_folder(argv[1], names[i], &cfg, tolerance);
        failed += verdict == 1, others += verdict == 2, done += verdict != 2;
        mem_free(names[i]);
    }
    printf("%d models, %d failed, %d not supported\n", done, failed, others);
    return failed != 0 || done == 0;
}
