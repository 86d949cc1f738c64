/* cli/score.c - score: log-probabilities of given ids or of a text file. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>

enum { TEXT_MAX = 1 << 30 };

static int print_summary(const char *json)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(str_of(json), "score", &err);
    if (!doc)
        return session_usage("score", "%s", err.text);
    yyjson_val *root = yyjson_doc_get_root(doc);
    printf("tokens      %zu\nscored      %zu\nperplexity  %.6g\n", yyjson_arr_size(yyjson_obj_get(root, "ids")),
           yyjson_arr_size(yyjson_obj_get(root, "logprob_of_next")), yyjson_get_num(yyjson_obj_get(root, "perplexity")));
    json_free(doc);
    return 0;
}

int cli_score(struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    struct err ferr = {0};
    struct buf text = {0};
    uint32_t *ids = NULL;
    size_t n = 0;
    char *json = NULL;
    int rc = 0;
    if (!o->ids == !o->file)
        return session_usage("score", "expected one of --ids and --file");
    if (o->logits && !str_is(str_of(o->logits), "last"))
        return session_usage("score", "--logits: expected last, got '%.100s'", o->logits);
    if (o->ids && options_ids(o->ids, &ids, &n, &ferr))
        return session_usage("score", "%s", ferr.text);
    if (o->file && file_read(&text, o->file, TEXT_MAX, &ferr)) {
        fprintf(stderr, "rhapsode score: %s\n", ferr.text);
        return 1;
    }
    struct rh_score_options so = {.ids = ids, .id_count = n, .text = {text.p, text.n}, .top = o->top, .logits_last = o->logits != NULL,
                                  .window = o->window};
    rc = session_open(&s, "score", o, false);
    if (rc == 0 && rh_score_json(s.model, &so, &json, &err))
        rc = session_fail("score", &err);
    if (rc == 0 && o->json)
        puts(json);
    else if (rc == 0)
        rc = print_summary(json);
    rh_free(json);
    mem_free(ids);
    buf_free(&text);
    session_close(&s);
    return rc;
}
