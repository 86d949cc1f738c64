/* bench/script.c - what guessing ahead saves on a given text: the model computes every row, and the text says what is chosen.
 *
 * usage: bench_script MODEL IDS PROMPT_COUNT [ROUNDS [THREADS]]       IDS: a file of 4-byte ids, the prompt and then the answer
 *
 * A small model does not rewrite a file of 400 lines without a slip, and a large one takes too long here; what guessing saves depends on the text
 * and on what rows cost, not on who chose.  So the results of sample_rows are replaced by the ids of the file, by position, before the engine
 * sees them.  Ways of guessing take turns; prints for each the median time of the answer after its first token, and its ratio to none. */
#include "../tests/model_run.h"
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>

enum { PENDING_MAX = 64, ROUNDS_MAX = 64, ROWS_MAX = 512, WAYS = 4 };

static const struct {
    const char *name;
    uint32_t propose;
} ways[WAYS] = {{"none", 0}, {"echo", ENGINE_PROPOSE_ECHO}, {"lookup", ENGINE_PROPOSE_LOOKUP}, {"echo,lookup", ENGINE_PROPOSE_ECHO | ENGINE_PROPOSE_LOOKUP}};

static uint32_t *ids, id_count;

/* ---- the device's table with two calls of ours ---- */

static struct backend scripted;
static const struct backend *whole;
static struct op_sample_rows pending[PENDING_MAX];
static uint32_t pending_count;

static int sample_rows(struct device *d, const struct op_sample_rows *op)
{
    if (pending_count == PENDING_MAX)
        return ERR_LIMIT;
    pending[pending_count++] = *op;
    return whole->sample_rows(d, op);
}

static int event_wait(struct device *d, uint64_t event, struct err *err)
{
    int rc = whole->event_wait(d, event, err);
    for (uint32_t i = 0; i < pending_count; i++)
        for (uint32_t r = 0; r < pending[i].logits.rows; r++)
            if (pending[i].rows[r].index < id_count)
                pending[i].results[r].id = ids[pending[i].rows[r].index];
    pending_count = 0;
    return rc;
}

/* ---- */

static void must(int rc, const struct err *err)
{
    if (rc) {
        fprintf(stderr, "bench_script: %s\n", err->text);
        exit(1);
    }
}

static void read_ids(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) || ftell(f) < 8) {
        fprintf(stderr, "bench_script: %s: expected 4-byte ids\n", path);
        exit(1);
    }
    id_count = (uint32_t)(ftell(f) / 4);
    ids = malloc((size_t)id_count * sizeof *ids);
    rewind(f);
    if (!ids || fread(ids, sizeof *ids, id_count, f) != id_count)
        exit(1);
    fclose(f);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Milliseconds from the first token to the last; the outcome. */
static double answer(struct engine *e, uint32_t prompt, uint32_t propose, struct engine_outcome *out)
{
    struct err err = {0};
    struct engine_request *q = NULL;
    struct engine_event ev = {0};
    uint32_t at = prompt;
    struct engine_request_config c = {.max_tokens = id_count - prompt, .propose = propose,
                                      .sampling = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .order = {0, 1, 2, 3, 4, 5}}};
    must(engine_request_new(e, &c, &q, &err), &err);
    must(engine_submit(q, ids, prompt, &err), &err);
    while (ev.kind != ENGINE_DONE) {
        uint32_t seen = engine_request_seen(q);
        if (!engine_poll(q, &ev)) {
            ev.kind = ENGINE_TOKEN;
            engine_request_wait(q, seen, -1);
        } else if (ev.kind == ENGINE_TOKEN && ev.id != ids[at++]) {
            fprintf(stderr, "bench_script: token %u is not the text's\n", at - prompt);
            exit(1);
        }
    }
    *out = *engine_request_outcome(q, 0);
    engine_request_release(q);
    must(out->finish == ENGINE_ERROR, &out->err);
    return (double)(out->done_ns - out->first_ns) / 1e6;
}

int main(int argc, char **argv)
{
    static double ms[WAYS][ROUNDS_MAX];
    struct engine_outcome o[WAYS];
    struct err err = {0};
    struct run r;
    struct engine *e = NULL;
    uint32_t prompt = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 0, rounds = argc > 4 ? (uint32_t)strtoul(argv[4], NULL, 10) : 3;
    if (argc < 4 || rounds == 0 || rounds > ROUNDS_MAX) {
        fputs("usage: bench_script MODEL IDS PROMPT_COUNT [ROUNDS [THREADS]]\n", stderr);
        return 2;
    }
    read_ids(argv[2]);
    if (prompt == 0 || prompt + 1 >= id_count)
        return 2;
    struct run_config cfg = {.backend = "cpu", .threads = argc > 5 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0, .kv = "f16",
                             .context = id_count + 64, .rows_max = ROWS_MAX, .logit_rows_max = 16, .kv_bytes = (uint64_t)64 << 20};
    must(run_open(&r, argv[1], &cfg, &err), &err);
    struct device_head *head = (struct device_head *)(void *)r.device;
    whole = head->backend;
    scripted = *whole;
    scripted.sample_rows = sample_rows;
    scripted.event_wait = event_wait;
    head->backend = &scripted;
    struct engine_config ec = {.model = r.model, .device = r.device, .state_bytes = (uint64_t)2 << 30, .rows_max = ROWS_MAX};
    must(engine_open(&ec, &e, &err), &err);
    answer(e, prompt, 0, &o[0]); /* the prompt is known from here on */
    for (uint32_t i = 0; i < rounds; i++)
        for (uint32_t w = 0; w < WAYS; w++)
            ms[w][i] = answer(e, prompt, ways[w].propose, &o[w]);
    for (uint32_t w = 0; w < WAYS; w++)
        qsort(ms[w], rounds, sizeof **ms, by_value);
    for (uint32_t w = 0; w < WAYS; w++) {
        const struct engine_speculation *s = &o[w].speculation;
        printf("%-12s %8.1f tokens/s  %5.2f x (best %5.2f x)  %u tokens in %u forwards, drafted %u accepted %u, copied %u refused %u\n", ways[w].name,
               1e3 * (id_count - prompt - 1) / ms[w][rounds / 2], ms[0][rounds / 2] / ms[w][rounds / 2], ms[0][0] / ms[w][0], id_count - prompt,
               s->forwards, s->drafted, s->accepted, s->fill.echo, s->fill.rejected);
    }
    engine_close(e);
    head->backend = whole;
    run_close(&r);
    free(ids);
    return 0;
}
