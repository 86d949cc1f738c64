/* tests/law/model_law.c - the first law over whole models: the logits of a position are the same bits however the text is cut,
 * whatever stands beside it, whatever the threads, at every CPU level.
 *
 * usage: law_model [long] [MODEL...]      MODEL: a directory of a model, a .gguf, or a folder of these
 *        long: every KV format and every cut with two threads; else f16 (synthetic models: the formats in turn) and some cuts with two
 *
 * The plain run: one sequence alone, one span of all ids, level ref, one thread.  Every other run is compared with it byte for
 * byte.
 * Besides the models named, one synthetic model per GGUF weight type is written to a temporary folder and run. */
#include "base/file.h"
#include "base/mem.h"
#include "model_run.h"
#include "law/synthetic_gguf.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LENGTH = 300, FIRST = 230, OTHERS = 3, ROWS_MAX = 512 }; /* past one block of KV_BLOCK positions */

static const char *const levels[] = {"ref", "avx2", "avx512", "avx512vnni", "neon", "neon_i8mm"};

/* how a text is run */
enum cut { CUT_ONE, CUT_1, CUT_7, CUT_64, CUT_RANDOM, CUT_BESIDE, CUT_REWIND, CUT_FORK, CUT_BACK, CUT_COUNT };
static const char *const cut_names[] = {
    "one span",  "one span, then spans of 1", "spans of 7", "spans of 64", "random cuts", "beside others", "after rewinds",
    "over forks", "after rewinds of committed rows"};

/* formats of keys and values; a quick run takes the first for a model, and them in turn for the synthetic models */
static const char *const kv_names[] = {"f16",   "q8",    "a8g32", "a8g64", "a8g128", "a4g32", "a4g64", "a4g128",   "q4h",     "tq4",
                                       "tq3",   "k8v4",  "k8v3",  "k4v4",  "bf16",   "f32",   "q8:f16", "q4h:a4g32", "tq4:bf16", "f32:q4h"};
enum { KV_NAMES = sizeof kv_names / sizeof *kv_names };

static bool run_long;

struct tally {
    uint32_t cells, wrong, models, refused;
};

static uint32_t next(uint64_t *state, uint32_t below)
{
    return random_u32(state) % below;
}

static void text_make(uint32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed)
{
    uint64_t s = seed * 31 + 7;
    for (uint32_t i = 0; i < n; i++) {
        ids[i] = next(&s, vocab);
    }
}

static uint32_t cut_size(enum cut cut, uint64_t *s, uint32_t at)
{
    static const uint32_t sizes[] = {LENGTH, 1, 7, 64};
    uint32_t n = cut <= CUT_64 ? sizes[cut] : 1 + next(s, next(s, 3) == 0 ? 100 : 20);
    n = cut == CUT_1 && at == 0 ? FIRST : n;
    return n < LENGTH - at ? n : LENGTH - at;
}

/* One step with the text's rows and, when `others` is set, rows of other sequences before and behind them. */
static int step_beside(struct run *r, struct kv_seq *seq, const uint32_t *ids, uint32_t n, float *logits, struct kv_seq **others,
                       uint64_t *s, struct err *err)
{
    struct span spans[OTHERS + 1];
    uint32_t noise[OTHERS][24], vocab = model_info(r->model)->vocab, place = next(s, OTHERS + 1), count = 0;
    uint64_t event = 0;
    int rc = 0;
    for (uint32_t i = 0; i <= OTHERS && rc == 0; i++) {
        bool ours = i == place;
        uint32_t o = i < place ? i : i - 1, rows = ours ? n : 1 + next(s, 24);
        struct kv_seq *q = ours ? seq : others[o];
        if (!ours) {
            text_make(noise[o], rows, vocab, *s);
        }
        spans[count] = (struct span){.seq = q, .position = kv_seq_covered(q), .row_count = rows, .ids = ours ? ids : noise[o],
                                     .out_first = ours ? 0 : rows - 1, .logits = ours ? logits : NULL};
        rc = kv_extend(r->kv, q, rows, err);
        count++;
    }
    if (rc == 0) {
        rc = model_forward(r->model, r->kv, spans, count, NULL, &event, err);
    }
    if (rc == 0) {
        rc = model_wait(r->model, event, err);
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        rc = kv_commit(r->kv, spans[i].seq, spans[i].ids, spans[i].row_count, err);
    }
    return rc;
}

/* Run refused rows and take them back; or go on in a fork and drop the old sequence. */
static int disturb(struct run *r, enum cut cut, struct kv_seq **seq, uint64_t *s, struct err *err)
{
    static const uint32_t sizes[] = {1, 2, 5, 15, 16, 17, 31, 32, 33, 64};
    uint32_t wrong[64], vocab = model_info(r->model)->vocab, at = kv_seq_covered(*seq), n = sizes[next(s, sizeof sizes / sizeof *sizes)];
    if (cut == CUT_FORK) {
        struct kv_seq *fork = NULL;
        int rc = kv_seq_fork(r->kv, *seq, at, &fork, err);
        if (rc == 0) {
            text_make(wrong, n, vocab, *s);
            rc = run_span(r, *seq, wrong, n, n, NULL, err); /* the old one writes on into what is shared */
        }
        if (rc == 0) {
            kv_seq_free(r->kv, *seq);
            *seq = fork;
        }
        return rc;
    }
    text_make(wrong, n, vocab, *s);
    int rc = run_rows(r, *seq, wrong, n, n, NULL, err);
    return rc != 0 ? rc : kv_rewind(r->kv, *seq, at, err);
}

/* Take committed rows back: one, as many as the reference models' window (16), a page or a block, one more or less, or as the state allows. */
static int go_back(struct run *r, struct kv_seq *seq, uint64_t *s, struct err *err)
{
    static const uint32_t sizes[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65};
    uint32_t covered = kv_seq_covered(seq), oldest = kv_seq_oldest(seq), n = sizes[next(s, sizeof sizes / sizeof *sizes)];
    uint32_t to = covered > n ? covered - n : 1;
    if (to < oldest) {
        if (kv_rewind(r->kv, seq, to, err) != ERR_LIMIT) {
            return err_set(err, ERR_INTERNAL, "rewind to %u where %u is the oldest was not refused", to, oldest);
        }
        to = oldest < covered ? oldest : covered;
    }
    return kv_rewind(r->kv, seq, to, err);
}

static int run_text(struct run *r, enum cut cut, const uint32_t *ids, float *logits, uint64_t seed, struct err *err)
{
    struct kv_seq *seq = NULL, *others[OTHERS] = {0};
    uint32_t vocab = model_info(r->model)->vocab;
    uint64_t s = seed;
    uint32_t back = 0;
    int rc = kv_seq_new(r->kv, &seq, err);
    for (uint32_t i = 0; i < OTHERS && rc == 0 && cut == CUT_BESIDE; i++) {
        rc = kv_seq_new(r->kv, &others[i], err);
    }
    for (uint32_t at = 0; at < LENGTH && rc == 0;) {
        uint32_t n = cut_size(cut, &s, at);
        float *rows = logits + (size_t)at * vocab;
        if (cut == CUT_BESIDE) {
            rc = step_beside(r, seq, ids + at, n, rows, others, &s, err);
        } else {
            rc = run_span(r, seq, ids + at, n, 0, rows, err);
        }
        at += n;
        if (rc == 0 && cut == CUT_BACK && back < 24 && next(&s, 2) == 0) {
            back++;
            rc = go_back(r, seq, &s, err);
            at = kv_seq_covered(seq);
        } else if (rc == 0 && cut >= CUT_REWIND && cut != CUT_BACK && next(&s, 2) == 0) {
            rc = disturb(r, cut, &seq, &s, err);
        }
    }
    kv_seq_free(r->kv, seq);
    for (uint32_t i = 0; i < OTHERS; i++) {
        kv_seq_free(r->kv, others[i]);
    }
    return rc != 0 ? rc : kv_check(r->kv, err);
}

/* Rows that differ, and the first of them. */
static uint32_t compare(const float *a, const float *b, uint32_t vocab, uint32_t *first)
{
    uint32_t n = 0;
    for (uint32_t r = 0; r < LENGTH; r++) {
        if (memcmp(a + (size_t)r * vocab, b + (size_t)r * vocab, vocab * sizeof *a) != 0) {
            *first = n == 0 ? r : *first;
            n++;
        }
    }
    return n;
}

static bool all_finite(const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (!__builtin_isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

/* All cuts on one device; `plain` is filled by the first device. */
static int law_device(const char *path, const struct run_config *cfg, float **plain, struct tally *t, struct err *err)
{
    struct run r = {0};
    uint32_t ids[LENGTH];
    int rc = run_open(&r, path, cfg, err);
    if (rc != 0) {
        return rc;
    }
    uint32_t vocab = model_info(r.model)->vocab;
    size_t count = (size_t)LENGTH * vocab;
    float *got = mem_try_array(count, sizeof *got);
    text_make(ids, LENGTH, vocab, 3);
    rc = got != NULL ? 0 : err_nomem(err, "logits", count * sizeof *got);
    for (enum cut cut = CUT_ONE; cut < CUT_COUNT && rc == 0; cut++) {
        uint32_t first = 0, wrong = 0;
        if (strcmp(cfg->level, "ref") == 0 && (cut != (cfg->threads == 1 ? CUT_ONE : CUT_RANDOM) || (cfg->threads > 1 && !run_long && t->models % 3 != 0))) {
            continue; /* the slow level: the plain run, and one other (else of every third model) */
        }
        if (!run_long && cfg->threads > 1 && cut != CUT_ONE && cut != CUT_RANDOM && cut != CUT_BESIDE) {
            continue;
        }
        memset(got, 0xFF, count * sizeof *got);
        rc = run_text(&r, cut, ids, got, cut * 977u + cfg->threads, err);
        if (rc == 0 && *plain == NULL) {
            *plain = mem_try_array(count, sizeof *got);
            rc = *plain != NULL ? 0 : err_nomem(err, "logits", count * sizeof *got);
            if (rc == 0) {
                memcpy(*plain, got, count * sizeof *got);
            }
        }
        if (rc != 0) {
            break;
        }
        wrong = compare(*plain, got, vocab, &first);
        t->cells++;
        if (wrong != 0 || !all_finite(got, count)) {
            t->wrong++;
            printf("WRONG %s level %s threads %u kv %s: %s: %u of %u rows differ, first %u%s\n", path, cfg->level, cfg->threads,
                   cfg->kv, cut_names[cut], wrong, (unsigned)LENGTH, first,
                   all_finite(got, count) ? "" : " (not finite)");
        }
    }
    mem_free(got);
    run_close(&r);
    return rc;
}

static void law_model_kv(const char *path, const char *kv, struct tally *t)
{
    float *plain = NULL;
    for (size_t l = 0; l < sizeof levels / sizeof levels[0]; l++) {
        for (uint32_t threads = 1; threads <= 2; threads++) {
            struct err err = {0};
            struct run_config cfg = {.backend = "cpu", .level = levels[l], .threads = threads, .kv = kv, .context = 512,
                                     .rows_max = ROWS_MAX, .logit_rows_max = 16, .kv_bytes = 512u << 20};
            struct device *probe = NULL;
            struct device_config dev = {.n_threads = 1, .level = levels[l]};
            if (backend_cpu.device_open(&dev, &probe, NULL) != 0) {
                continue; /* a level this machine does not have */
            }
            backend_cpu.device_close(probe);
            int rc = law_device(path, &cfg, &plain, t, &err);
            if (rc == ERR_UNSUPPORTED) {
                printf("--    %s kv %s: %s\n", path, kv, err.text);
                t->refused++;
                mem_free(plain);
                return;
            }
            if (rc != 0) {
                printf("WRONG %s level %s threads %u: %s\n", path, levels[l], threads, err.text);
                t->wrong++;
            }
        }
    }
    mem_free(plain);
}

static void law_model(const char *path, uint32_t first, struct tally *t)
{
    uint32_t cells = t->cells, wrong = t->wrong;
    for (uint32_t i = 0; i < (run_long ? KV_NAMES : 1); i++) {
        law_model_kv(path, kv_names[(first + i) % KV_NAMES], t);
    }
    t->models++;
    printf("%-5s %s: %u cells\n", t->wrong == wrong ? "ok" : "WRONG", path, t->cells - cells);
    fflush(stdout);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A model, or a folder of models. */
static void law_path(const char *path, struct tally *t)
{
    char inner[4096];
    if (!file_is_dir(path) || (file_join(inner, sizeof inner, path, "config.json", NULL) == 0 && file_exists(inner))) {
        law_model(path, 0, t);
        return;
    }
    char *names[512];
    size_t n = 0;
    DIR *d = opendir(path);
    for (struct dirent *e = d != NULL ? readdir(d) : NULL; e != NULL && n < 512; e = readdir(d)) {
        char config[4200];
        snprintf(config, sizeof config, "%s/%s/config.json", path, e->d_name);
        if (file_exists(config) || str_ends(str_of(e->d_name), STR(".gguf"))) {
            names[n++] = mem_try_strndup(e->d_name, strlen(e->d_name));
        }
    }
    if (d != NULL) {
        closedir(d);
    }
    qsort(names, n, sizeof names[0], by_name);
    for (size_t i = 0; i < n; i++) {
        if (file_join(inner, sizeof inner, path, names[i], NULL) == 0) {
            law_model(inner, 0, t);
        }
        mem_free(names[i]);
    }
}

/* One synthetic model a weight type. */
static void law_synthetic(struct tally *t)
{
    struct random_kind kinds[256];
    uint32_t made = 0;
    char dir[] = "/tmp/rh_law_XXXXXX", path[256];
    size_t n = random_kinds(kinds, 256);
    if (mkdtemp(dir) == NULL) {
        printf("WRONG no temporary folder\n");
        t->wrong++;
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct err err = {0};
        if (kinds[i].type == DTYPE_MLX || kinds[i].split) {
            continue; /* not GGUF */
        }
        snprintf(path, sizeof path, "%s/%s.gguf", dir, kinds[i].name);
        if (synthetic_gguf(path, kinds[i].type, &err) != 0) {
            printf("WRONG %s: %s\n", path, err.text);
            t->wrong++;
            continue;
        }
        law_model(path, made++, t);
        remove(path);
    }
    rmdir(dir);
}

int main(int argc, char **argv)
{
    struct tally t = {0};
    for (int i = 1; i < argc; i++) {
        run_long = run_long || strcmp(argv[i], "long") == 0;
    }
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "long") != 0) {
            law_path(argv[i], &t);
        }
    }
    law_synthetic(&t);
    printf("%u models, %u cells, %u mismatches, %u combinations refused\n", t.models, t.cells, t.wrong, t.refused);
    return t.wrong != 0 || t.cells == 0;
}
