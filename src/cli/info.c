/* cli/info.c - info and bench: the library's JSON, or the same for people. */
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>

enum { NAME_COLUMNS = 28, COLUMNS_MAX = 16, CELL_MAX = 96 };

static bool is_bytes(const char *key)
{
    return strstr(key, "bytes") || !strcmp(key, "planned") || !strcmp(key, "live");
}

/* A scalar as people read it: bytes in their unit, whole numbers whole. */
static void value_text(const char *key, yyjson_val *v, char out[CELL_MAX])
{
    double x = yyjson_get_num(v);
    if (yyjson_is_num(v) && is_bytes(key) && x >= 1 << 30)
        snprintf(out, CELL_MAX, "%.2f GiB", x / (1 << 30));
    else if (yyjson_is_num(v) && is_bytes(key) && x >= 1 << 20)
        snprintf(out, CELL_MAX, "%.1f MiB", x / (1 << 20));
    else if (yyjson_is_num(v) && is_bytes(key))
        snprintf(out, CELL_MAX, "%.1f KiB", x / (1 << 10));
    else if (yyjson_is_bool(v))
        snprintf(out, CELL_MAX, "%s", yyjson_get_bool(v) ? "yes" : "no");
    else if (yyjson_is_real(v) && x == (double)(int64_t)x && x > -1e15 && x < 1e15)
        snprintf(out, CELL_MAX, "%.0f", x);
    else if (yyjson_is_real(v))
        snprintf(out, CELL_MAX, x > -1e6 && x < 1e6 ? "%.6g" : "%.1f", x);
    else if (yyjson_is_uint(v))
        snprintf(out, CELL_MAX, "%llu", (unsigned long long)yyjson_get_uint(v));
    else if (yyjson_is_sint(v))
        snprintf(out, CELL_MAX, "%lld", (long long)yyjson_get_sint(v));
    else
        snprintf(out, CELL_MAX, "%s", yyjson_is_str(v) ? yyjson_get_str(v) : "-");
}

static void print_scalar(const char *key, yyjson_val *v)
{
    char text[CELL_MAX];
    if (yyjson_is_str(v))
        fputs(yyjson_get_str(v), stdout); /* of any length */
    else
        fputs((value_text(key, v, text), text), stdout);
}

/* Objects with the same keys, as a table: the keys once, then a line each; numbers to the right. */
static void print_table(yyjson_val *list, int indent)
{
    size_t width[COLUMNS_MAX] = {0}, i, n, j, m;
    yyjson_val *row, *key, *v;
    char text[CELL_MAX];
    yyjson_arr_foreach(list, i, n, row)
        yyjson_obj_foreach(row, j, m, key, v) {
            if (j == COLUMNS_MAX)
                break;
            value_text(yyjson_get_str(key), v, text);
            size_t least = strlen(yyjson_get_str(key)), own = strlen(text);
            width[j] = width[j] < least ? least : width[j];
            width[j] = width[j] < own ? own : width[j];
        }
    yyjson_obj_foreach(yyjson_arr_get_first(list), j, m, key, v)
        if (j < COLUMNS_MAX)
            printf("%*s%*s", j ? 2 : indent, "", yyjson_is_num(v) ? (int)width[j] : -(int)width[j], yyjson_get_str(key));
    putchar('\n');
    yyjson_arr_foreach(list, i, n, row) {
        yyjson_obj_foreach(row, j, m, key, v)
            if (j < COLUMNS_MAX) {
                value_text(yyjson_get_str(key), v, text);
                printf("%*s%*s", j ? 2 : indent, "", yyjson_is_num(v) ? (int)width[j] : -(int)width[j], text);
            }
        putchar('\n');
    }
}

/* Nested JSON as indented "key  value" lines; depth is bounded by what the library writes. */
static void print_object(yyjson_val *obj, int indent)
{
    size_t i, n, j, m;
    yyjson_val *key, *v, *item;
    yyjson_obj_foreach(obj, i, n, key, v) {
        const char *name = yyjson_get_str(key);
        bool table = yyjson_is_obj(yyjson_arr_get_first(v));
        printf("%*s%-*s%s", indent, "", yyjson_is_obj(v) || table ? 1 : NAME_COLUMNS - indent, name, yyjson_is_obj(v) || table ? "\n" : " ");
        if (yyjson_is_obj(v)) {
            print_object(v, indent + 2);
        } else if (table) {
            print_table(v, indent + 2);
        } else {
            yyjson_arr_foreach(v, j, m, item) {
                fputs(j ? " " : "", stdout);
                print_scalar(name, item);
            }
            if (!yyjson_is_arr(v))
                print_scalar(name, v);
            putchar('\n');
        }
    }
}

static int print_result(const char *verb, const char *json, bool as_json)
{
    struct err err = {0};
    if (as_json) {
        puts(json);
        return 0;
    }
    yyjson_doc *doc = json_parse(str_of(json), verb, &err);
    if (!doc)
        return session_failed(verb, "%s", err.text);
    print_object(yyjson_doc_get_root(doc), 0);
    json_free(doc);
    return 0;
}

/* The three walks are one: a session, a text of the library, printed. */
enum subject { MODEL_INFO, MODEL_BENCH, DEVICE_LIMITS };

static int measure(enum subject what, struct session *s, const struct options *o, char **json, struct rh_error *err)
{
    struct rh_bench_options b = {.prompt = o->given[OPT_BENCH_PROMPT] ? o->bench_prompt : 512,
                                 .decode = o->given[OPT_BENCH_DECODE] ? o->bench_decode : 128,
                                 .repetitions = o->bench_reps ? o->bench_reps : 5, .depth = o->bench_depth, .sequences = o->bench_sequences};
    switch (what) {
    case MODEL_INFO:
        return rh_model_info_json(s->model, o->context, json, err);
    case MODEL_BENCH:
        return rh_bench_json(s->model, &b, json, err);
    default:
        return rh_limits_json(s->host, json, err);
    }
}

static int show(const char *verb, enum subject what, const struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    char *json = NULL;
    int rc = what == DEVICE_LIMITS ? session_open_host(&s, verb, o) : session_open(&s, verb, o, what == MODEL_INFO);
    if (rc == 0 && measure(what, &s, o, &json, &err))
        rc = session_fail(verb, &err);
    if (rc == 0)
        rc = print_result(verb, json, o->json);
    rh_free(json);
    session_close(&s);
    return rc;
}

int cli_info(struct options *o)
{
    return show("info", MODEL_INFO, o);
}

int cli_bench(struct options *o)
{
    if (o->bench_limits == (o->arg_count > 0))
        return session_usage("bench", o->bench_limits ? "--limits takes no MODEL" : "expected a MODEL, or --limits");
    return show("bench", o->bench_limits ? DEVICE_LIMITS : MODEL_BENCH, o);
}
