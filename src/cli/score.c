/* cli/score.c - score: log-probabilities of given ids or of a text file. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>

enum { TEXT_MAX = 1 << 30 };

enum { TOKEN_COLUMNS = 16 };

/* logprob NULL: nothing foretold it. */
static void print_token(struct rh_model *m, yyjson_val *id, yyjson_val *logprob)
{
    char *text = NULL, value[32] = "-";
    size_t n = 0;
    if (rh_token_text(m, (uint32_t)yyjson_get_uint(id), &text, &n, NULL))
        n = 0;
    if (logprob)
        snprintf(value, sizeof value, "%.4f", yyjson_get_num(logprob));
    printf("  %7llu %9s '%.*s'%*s", (unsigned long long)yyjson_get_uint(id), value, (int)n, n ? text : "",
           n < TOKEN_COLUMNS ? (int)(TOKEN_COLUMNS - n) : 0, "");
    rh_free(text);
}

static void print_likeliest(struct rh_model *m, yyjson_val *list)
{
    size_t k, n;
    yyjson_val *top;
    yyjson_arr_foreach(list, k, n, top)
        print_token(m, yyjson_obj_get(top, "id"), yyjson_obj_get(top, "logprob"));
    putchar('\n');
}

/* A line a place: the token there, how likely it was, and which were likeliest; last, which would come next. */
static void print_places(struct rh_model *m, yyjson_val *root)
{
    yyjson_val *ids = yyjson_obj_get(root, "ids"), *tops = yyjson_obj_get(root, "top"), *logprobs = yyjson_obj_get(root, "logprob_of_next"), *window;
    size_t w, n, at = 0, scored = 0;
    printf("\n  %7s %9s %-*s  %7s %9s likeliest there\n", "id", "logprob", TOKEN_COLUMNS + 2, "token", "id", "logprob");
    yyjson_arr_foreach(yyjson_obj_get(root, "windows"), w, n, window) {
        size_t count = (size_t)yyjson_get_uint(yyjson_obj_get(window, "ids"));
        for (size_t i = 0; i < count; i++, at++) { /* what the place before said of this one */
            print_token(m, yyjson_arr_get(ids, at), i ? yyjson_arr_get(logprobs, scored++) : NULL);
            print_likeliest(m, i ? yyjson_arr_get(tops, at - 1) : NULL);
        }
    }
    printf("  %*s", 7 + 1 + 9 + 1 + TOKEN_COLUMNS + 2, "next:");
    print_likeliest(m, yyjson_arr_get_last(tops));
}

static int print_summary(struct rh_model *m, const char *json)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(str_of(json), "score", &err);
    if (!doc)
        return session_failed("score", "%s", err.text);
    yyjson_val *root = yyjson_doc_get_root(doc), *perplexity = yyjson_obj_get(root, "perplexity");
    printf("tokens      %zu\nscored      %zu\nperplexity  ", yyjson_arr_size(yyjson_obj_get(root, "ids")),
           yyjson_arr_size(yyjson_obj_get(root, "logprob_of_next")));
    if (yyjson_is_num(perplexity))
        printf("%.6g\n", yyjson_get_num(perplexity));
    else
        puts("none: there is nothing to score, as no token has one before it");
    if (yyjson_arr_size(yyjson_obj_get(root, "top")))
        print_places(m, root);
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
    if (o->logits && !o->json)
        return session_usage("score", "--logits: printed with --json only");
    if (o->ids && options_ids("--ids: ", str_of(o->ids), &ids, &n, &ferr))
        return session_usage("score", "%s", ferr.text);
    if (o->file && file_read(&text, o->file, TEXT_MAX, &ferr))
        return session_failed("score", "%s", ferr.text);
    struct rh_score_options so = {.ids = ids, .id_count = n, .text = {text.p, text.n}, .top = o->top, .logits_last = o->logits != NULL,
                                  .window = o->window};
    rc = session_open(&s, "score", o, false);
    if (rc == 0 && rh_score_json(s.model, &so, &json, &err))
        rc = session_fail("score", &err);
    if (rc == 0 && o->json)
        puts(json);
    else if (rc == 0)
        rc = print_summary(s.model, json);
    rh_free(json);
    mem_free(ids);
    buf_free(&text);
    session_close(&s);
    return rc;
}
