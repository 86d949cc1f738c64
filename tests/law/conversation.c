/* tests/law/conversation.c - conversations over every reference model: a turn computes what is new, and gives the bits of a cold run.
 *
 * usage: law_conversation DIR|MODEL...        every folder with a golden.json under DIR
 *
 * Twenty turns of random user ids and greedy answers, each prompt the whole text so far with the turn's start as its boundary.  Rows computed
 * are at most the new ids and the last one of the answer before, which was never fed; ids, log-probabilities and the best log-probabilities of the answer are compared with those of the same
 * prompt where nothing is known.  Then the last prompt again: one row.  Then the text is left 1, w - 1, w and w + 1 positions before its end (w: the
 * models' window): a page more than is new.  Then the last turn is edited: it costs itself, whatever kind of state the model keeps.
 * Prints `N cells, N wrong`. */
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/backends.h"
#include "engine/engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 20, ANSWER = 6, USER_MAX = 11, WINDOW = 16, TEXT_MAX = TURNS * (USER_MAX + ANSWER), TOP = 20, ROWS_MAX = 64, CONTEXT = 512, PATHS_MAX = 256 };

struct talk {
    struct device *device;
    struct model *model;
    struct engine *engine;
    uint32_t vocab, cells, wrong, rows_most, rows_rewound, rows_edited; /* rows beyond the new ids */
    const char *name;
};

struct answer {
    uint32_t count, ids[ANSWER], top_ids[ANSWER][TOP];
    float logprobs[ANSWER], top_logprobs[ANSWER][TOP];
};

static int id_bytes(void *ctx, uint32_t id, struct buf *out)
{
    (void)ctx;
    buf_printf(out, "<%u>", id);
    return out->failed;
}

static int talk_open(struct talk *t, const char *path, struct err *err)
{
    const struct backend *b;
    struct device_config dev = {.n_threads = 1};
    struct model_options opt = {.rows_max = ROWS_MAX, .context = CONTEXT, .k_format = KV_F16, .v_format = KV_F16};
    int rc = backends_find("cpu", &b, err);
    rc = rc ? rc : b->device_open(&dev, &t->device, err);
    rc = rc ? rc : model_open(path, t->device, &opt, &t->model, err);
    if (rc)
        return rc;
    struct engine_config cfg = {.model = t->model, .device = t->device, .rows_max = ROWS_MAX, .state_bytes = 64u << 20, .id_bytes = id_bytes};
    t->vocab = model_info(t->model)->vocab;
    return engine_open(&cfg, &t->engine, err);
}

static void talk_close(struct talk *t)
{
    if (t->engine)
        engine_close(t->engine);
    model_close(t->model);
    if (t->device)
        device_backend(t->device)->device_close(t->device);
}

static void take(struct answer *a, const struct engine_event *e)
{
    uint32_t i = a->count++;
    a->ids[i] = e->id;
    a->logprobs[i] = e->logprob;
    memcpy(a->top_ids[i], e->top_ids, e->top_count * sizeof *e->top_ids);
    memcpy(a->top_logprobs[i], e->top_logprobs, e->top_count * sizeof *e->top_logprobs);
}

/* The answer to a prompt, and how many of its rows were computed. */
static int ask(struct talk *t, const uint32_t *ids, uint32_t n, uint32_t boundary, bool cold, struct answer *a, uint32_t *computed, struct err *err)
{
    struct engine_request *r = NULL;
    struct engine_request_config c = {.max_tokens = ANSWER, .logprobs = true, .top = TOP, .no_reuse = cold, .session = STR("talk")};
    c.sampling = (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .order = {0, 1, 2, 3, 4, 5}};
    memset(a, 0, sizeof *a);
    int rc = engine_request_new(t->engine, &c, &r, err);
    rc = rc || !boundary ? rc : engine_request_boundaries(r, &boundary, 1, err);
    rc = rc ? rc : engine_submit(r, ids, n, err);
    for (bool done = false; !rc && !done;) {
        struct engine_event e;
        uint32_t seen = engine_request_seen(r);
        while (engine_poll(r, &e)) {
            done = done || e.kind == ENGINE_DONE;
            if (e.kind == ENGINE_TOKEN && a->count < ANSWER)
                take(a, &e);
        }
        if (!done)
            engine_request_wait(r, seen, -1);
    }
    if (!rc) {
        const struct engine_outcome *o = engine_request_outcome(r, 0);
        *computed = o->prompt_count - o->cached_count;
        rc = o->finish == ENGINE_ERROR ? err_set(err, ERR_INTERNAL, "%s", o->err.text) : 0;
    }
    if (r)
        engine_request_release(r);
    return rc;
}

static void user_ids(struct talk *t, uint32_t turn, uint32_t *ids, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c[4] = {i, turn, 0, 0}, bits[4];
        rng_philox(11, c, bits);
        ids[i] = bits[0] % t->vocab;
    }
}

static void cell(struct talk *t, bool good, const char *what, uint32_t turn, uint32_t got, uint32_t most)
{
    t->cells++;
    t->wrong += !good;
    if (!good)
        printf("WRONG %s: turn %u: %s (%u, at most %u)\n", t->name, turn, what, got, most);
}

/* A prompt as it is and cold: the same answer, of at most `most` computed rows. */
static int beside_cold(struct talk *t, const uint32_t *ids, uint32_t n, uint32_t boundary, uint32_t number, uint32_t most, struct answer *a,
                       uint32_t *rows, struct err *err)
{
    struct answer cold;
    uint32_t all = 0;
    int rc = ask(t, ids, n, boundary, false, a, rows, err);
    rc = rc ? rc : ask(t, ids, n, boundary, true, &cold, &all, err);
    if (rc)
        return rc;
    cell(t, *rows <= most, "more rows than are new", number, *rows, most);
    cell(t, all == n, "a cold run that was not", number, all, n);
    cell(t, a->count == ANSWER && memcmp(a, &cold, sizeof cold) == 0, "another answer than cold", number, a->count, ANSWER);
    return 0;
}

/* One turn on top of `from` known positions. */
static int turn(struct talk *t, uint32_t *text, uint32_t from, uint32_t fresh, uint32_t number, struct answer *a, uint32_t *beyond, struct err *err)
{
    uint32_t rows = 0;
    int rc = beside_cold(t, text, from + fresh, from, number, from ? fresh + (number < TURNS) : fresh, a, &rows, err);
    uint32_t more = from && rows > fresh ? rows - fresh : 0;
    *beyond = more > *beyond ? more : *beyond;
    return rc;
}

/* The last prompt again: one row, the same answer. */
static int again(struct talk *t, const uint32_t *text, uint32_t n, uint32_t boundary, const struct answer *first, struct err *err)
{
    struct answer a;
    uint32_t rows = 0;
    int rc = beside_cold(t, text, n, boundary, TURNS, 1, &a, &rows, err);
    if (rc == 0)
        cell(t, memcmp(&a, first, sizeof a) == 0, "another answer than before", TURNS, a.count, ANSWER);
    return rc;
}

/* The text is left at no boundary, so far before the end of what is known: by one, and by the reference models' window and one more or less. */
static int rewinds(struct talk *t, const uint32_t *text, uint32_t known, struct err *err)
{
    static const uint32_t back[] = {1, WINDOW - 1, WINDOW, WINDOW + 1};
    struct answer a;
    int rc = 0;
    for (uint32_t b = 0; b < sizeof back / sizeof *back && rc == 0; b++) {
        uint32_t ids[TEXT_MAX + USER_MAX], rows = 0, at = known - back[b];
        memcpy(ids, text, at * sizeof *ids);
        user_ids(t, TURNS + 1 + b, ids + at, USER_MAX);
        ids[at] = (text[at] + 1) % t->vocab;
        rc = beside_cold(t, ids, at + USER_MAX, 0, TURNS + 1 + b, USER_MAX + KV_PAGE, &a, &rows, err);
        uint32_t more = rows > USER_MAX ? rows - USER_MAX : 0;
        t->rows_rewound = more > t->rows_rewound ? more : t->rows_rewound;
    }
    return rc;
}

static int conversation(struct talk *t, struct err *err)
{
    uint32_t text[TEXT_MAX + USER_MAX], n = 0, start = 0;
    struct answer a;
    int rc = 0;
    for (uint32_t i = 0; i < TURNS && rc == 0; i++) {
        uint32_t fresh = 5 + i % (USER_MAX - 4);
        start = n;
        user_ids(t, i, text + n, fresh);
        rc = turn(t, text, n, fresh, i, &a, &t->rows_most, err);
        memcpy(text + n + fresh, a.ids, sizeof a.ids);
        n += fresh + ANSWER;
    }
    rc = rc ? rc : again(t, text, n - ANSWER, start, &a, err);
    rc = rc ? rc : rewinds(t, text, n - 1, err); /* the last token was never fed */
    user_ids(t, TURNS, text + start, USER_MAX); /* the last turn, edited */
    return rc ? rc : turn(t, text, start, USER_MAX, TURNS, &a, &t->rows_edited, err);
}

static void run_model(const char *path, uint32_t *cells, uint32_t *wrong)
{
    struct err err = {0};
    const char *slash = strrchr(path, '/');
    struct talk t = {.name = slash ? slash + 1 : path};
    int rc = talk_open(&t, path, &err);
    rc = rc ? rc : conversation(&t, &err);
    talk_close(&t);
    if (rc)
        printf("WRONG %s: %s\n", t.name, err.text);
    else
        printf("%-4s %-16s rows beyond the new ones: %u a turn at most, %u after a rewind, %u of the edited turn\n", t.wrong ? "FAIL" : "ok", t.name,
               t.rows_most, t.rows_rewound, t.rows_edited);
    *cells += t.cells + (rc != 0);
    *wrong += t.wrong + (rc != 0);
}

static uint32_t add_folder(const char *dir, char **paths, uint32_t n)
{
    DIR *d = opendir(dir);
    for (struct dirent *e = d ? readdir(d) : NULL; e && n < PATHS_MAX; e = readdir(d)) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s/golden.json", dir, e->d_name);
        if (e->d_name[0] != '.' && file_exists(path)) {
            path[strlen(path) - strlen("/golden.json")] = 0;
            paths[n++] = mem_try_strndup(path, strlen(path));
        }
    }
    if (d)
        closedir(d);
    return n;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int main(int argc, char **argv)
{
    char *paths[PATHS_MAX];
    uint32_t n = 0, cells = 0, wrong = 0;
    for (int i = 1; i < argc && n < PATHS_MAX; i++) {
        uint32_t before = n;
        n = add_folder(argv[i], paths, n);
        if (n == before)
            paths[n++] = mem_try_strndup(argv[i], strlen(argv[i]));
    }
    if (n == 0) {
        fprintf(stderr, "usage: law_conversation DIR|MODEL...\n");
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    qsort(paths, n, sizeof *paths, by_name);
    for (uint32_t i = 0; i < n; i++) {
        run_model(paths[i], &cells, &wrong);
        mem_free(paths[i]);
    }
    printf("%u cells, %u wrong\n", cells, wrong);
    return wrong != 0 || cells == 0;
}
