/* logits_tool MODEL IDS.u32 OUT.f32 [backend] [kv] [window] [cpu level] - raw logits of every position of a list of ids, as little-endian f32.
 * A test program on the public library: the figures of bench/quality.py come from it. */
#include "rhapsode.h"

#include <stdio.h>
#include <stdlib.h>

struct sink {
    FILE *out;
    size_t rows;
};

static void on_logits(void *ctx, size_t position, const float *logits, uint32_t vocab)
{
    struct sink *s = ctx;
    (void)position;
    s->rows += fwrite(logits, sizeof *logits, vocab, s->out) == vocab;
}

static uint32_t *read_ids(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint32_t *ids = malloc(sizeof *ids << 20);
    *n = f && ids ? fread(ids, sizeof *ids, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return ids;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fputs("usage: logits_tool MODEL IDS.u32 OUT.f32 [backend] [kv] [window] [cpu level]\n", stderr);
        return 2;
    }
    struct rh_error err = {0};
    struct rh_host_options host_options = {.backend = argc > 4 ? argv[4] : "cpu", .cpu_isa = argc > 7 ? argv[7] : NULL};
    struct rh_score_options score = {.logits_all = true, .on_logits = on_logits, .window = argc > 6 ? (uint32_t)atoi(argv[6]) : 512};
    struct rh_model_options model_options = {.kv = argc > 5 ? argv[5] : "f16", .context = score.window};
    struct sink sink = {.out = fopen(argv[3], "wb")};
    struct rh_host *host = NULL;
    struct rh_model *model = NULL;
    char *json = NULL;
    score.on_logits_ctx = &sink;
    uint32_t *ids = read_ids(argv[2], &score.id_count);
    score.ids = ids;
    int rc = !sink.out || !score.id_count ? -1 : rh_host_open(&host_options, &host, &err);
    rc = rc ? rc : rh_model_open(host, argv[1], &model_options, &model, &err);
    rc = rc ? rc : rh_score_json(model, &score, &json, &err);
    if (rc)
        fprintf(stderr, "logits_tool: %s\n", err.text);
    else
        printf("%zu rows\n", sink.rows);
    if (sink.out)
        fclose(sink.out);
    rh_free(json);
    rh_model_close(model);
    rh_host_close(host);
    free(ids);
    return rc ? 1 : 0;
}
