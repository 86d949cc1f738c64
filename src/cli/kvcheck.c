/* cli/kvcheck.c - kvcheck: what every format of sequence state costs a model. */
#include "base/file.h"
#include "base/json.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 28 };

static void print_row(yyjson_val *e)
{
    const char *name = yyjson_get_str(yyjson_obj_get(e, "format")), *refused = yyjson_get_str(yyjson_obj_get(e, "refused"));
    yyjson_val *kl = yyjson_obj_get(e, "kl_mean");
    name = name ? name : "";
    if (refused) {
        printf("%-16s %s\n", name, refused);
        return;
    }
    printf("%-16s %9.7g", name, yyjson_get_num(yyjson_obj_get(e, "bytes_per_position")));
    if (kl)
        printf("  %9.2e %9.2e  %9.2e %9.2e  %6.4f", yyjson_get_num(yyjson_obj_get(e, "mse_k")), yyjson_get_num(yyjson_obj_get(e, "mse_v")),
               yyjson_get_num(kl), yyjson_get_num(yyjson_obj_get(e, "kl_p99")), yyjson_get_num(yyjson_obj_get(e, "top1")));
    else
        printf("  %9s %9s  %9s %9s  %6s", "", "", "", "", "");
    printf("  %7llu  %10.4g\n", (unsigned long long)yyjson_get_uint(yyjson_obj_get(e, "needles")),
           yyjson_get_num(yyjson_obj_get(e, "tokens_per_s")));
}

static int print_table(const char *json)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(str_of(json), "kvcheck", &err);
    if (!doc)
        return session_failed("kvcheck", "%s", err.text);
    yyjson_val *root = yyjson_doc_get_root(doc), *entry;
    size_t i, n;
    printf("%llu tokens, %llu needles; against f32 state\n", (unsigned long long)yyjson_get_uint(yyjson_obj_get(root, "tokens")),
           (unsigned long long)yyjson_get_uint(yyjson_obj_get(root, "needles")));
    printf("%-16s %9s  %9s %9s  %9s %9s  %6s  %7s  %10s\n", "format", "bytes/pos", "mse K", "mse V", "mean KL", "p99 KL", "top-1", "needles",
           "tokens/s");
    print_row(yyjson_obj_get(root, "reference"));
    yyjson_arr_foreach(yyjson_obj_get(root, "formats"), i, n, entry)
        print_row(entry);
    json_free(doc);
    return 0;
}

/* Names joined by commas. */
static int check_formats(const char *list)
{
    struct rh_error err = {0};
    struct str rest = str_of(list), name;
    char text[64];
    while (str_split(&rest, ',', &name)) {
        snprintf(text, sizeof text, "%.*s", (int)(name.n < sizeof text ? name.n : sizeof text - 1), name.p);
        if (rh_kv_check(text, &err))
            return session_usage("kvcheck", "--formats: %s", err.text);
    }
    return 0;
}

/* To people only: it takes minutes. */
static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    unsigned *last = ctx, part = total ? (unsigned)(done * 100 / total) : 100;
    if (part != *last && isatty(STDERR_FILENO))
        fprintf(stderr, done < total ? "\rkvcheck %u %%" : "\r\033[K", part);
    *last = part;
}

int cli_kvcheck(struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    struct err ferr = {0};
    struct buf text = {0};
    char *json = NULL;
    unsigned percent = UINT32_MAX;
    if (o->formats && check_formats(o->formats))
        return 2;
    if (o->file && file_read(&text, o->file, TEXT_MAX, &ferr))
        return session_failed("kvcheck", "%s", ferr.text);
    struct rh_kvcheck_options ko = {.formats = o->formats, .text = {text.p, text.n}, .tokens = o->tokens, .progress = on_progress, .progress_ctx = &percent};
    int rc = session_open(&s, "kvcheck", o, false);
    if (rc == 0 && rh_kvcheck_json(s.model, &ko, &json, &err))
        rc = session_fail("kvcheck", &err);
    if (rc == 0 && o->json)
        puts(json);
    else if (rc == 0)
        rc = print_table(json);
    rh_free(json);
    buf_free(&text);
    session_close(&s);
    return rc;
}
