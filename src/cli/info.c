/* cli/info.c - info and bench: the library's JSON, or the same for people. */
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>

/* Nested JSON as indented "key  value" lines; depth is bounded by what the library writes. */
static void print_value(yyjson_val *v)
{
    if (yyjson_is_str(v))
        printf("%s", yyjson_get_str(v));
    else if (yyjson_is_bool(v))
        printf("%s", yyjson_get_bool(v) ? "yes" : "no");
    else if (yyjson_is_real(v))
        printf("%.6g", yyjson_get_real(v));
    else if (yyjson_is_uint(v))
        printf("%llu", (unsigned long long)yyjson_get_uint(v));
    else if (yyjson_is_sint(v))
        printf("%lld", (long long)yyjson_get_sint(v));
    else
        printf("-");
}

static bool is_bytes(const char *key)
{
    return str_ends(str_of(key), STR("_bytes")) || !strcmp(key, "bytes") || !strcmp(key, "planned") || !strcmp(key, "live");
}

static void print_bytes(yyjson_val *v)
{
    double n = yyjson_get_num(v);
    if (n >= 1 << 30)
        printf("%.2f GiB", n / (1 << 30));
    else if (n >= 1 << 20)
        printf("%.1f MiB", n / (1 << 20));
    else
        printf("%.1f KiB", n / (1 << 10));
}

static void print_object(yyjson_val *obj, int indent)
{
    size_t i, n, j, m;
    yyjson_val *key, *v, *item, *k2, *v2;
    yyjson_obj_foreach(obj, i, n, key, v) {
        const char *name = yyjson_get_str(key);
        if (yyjson_is_obj(v)) {
            printf("%*s%s\n", indent, "", name);
            print_object(v, indent + 2);
        } else if (yyjson_is_arr(v)) {
            printf("%*s%s\n", indent, "", name);
            yyjson_arr_foreach(v, j, m, item) {
                printf("%*s", indent + 2, "");
                size_t a, b;
                if (yyjson_is_obj(item)) {
                    yyjson_obj_foreach(item, a, b, k2, v2) {
                        printf("%s%s ", a ? "  " : "", yyjson_get_str(k2));
                        if (yyjson_is_num(v2) && is_bytes(yyjson_get_str(k2)))
                            print_bytes(v2);
                        else
                            print_value(v2);
                    }
                } else
                    print_value(item);
                putchar('\n');
            }
        } else {
            printf("%*s%-*s ", indent, "", 28 - indent, name);
            if (yyjson_is_num(v) && is_bytes(name))
                print_bytes(v);
            else
                print_value(v);
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
    if (!doc) {
        fprintf(stderr, "rhapsode %s: %s\n", verb, err.text);
        return 1;
    }
    print_object(yyjson_doc_get_root(doc), 0);
    json_free(doc);
    return 0;
}

int cli_info(struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    char *json = NULL;
    int rc = session_open(&s, "info", o, true);
    if (rc == 0 && rh_model_info_json(s.model, o->context, &json, &err))
        rc = session_fail("info", &err);
    if (rc == 0)
        rc = print_result("info", json, o->json);
    rh_free(json);
    session_close(&s);
    return rc;
}

static int limits(const struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    char *json = NULL;
    int rc = session_open_host(&s, "bench", o);
    if (rc == 0 && rh_limits_json(s.host, &json, &err))
        rc = session_fail("bench", &err);
    if (rc == 0)
        rc = print_result("bench", json, o->json);
    rh_free(json);
    session_close(&s);
    return rc;
}

int cli_bench(struct options *o)
{
    if (o->bench_limits == (o->arg_count > 0))
        return session_usage("bench", o->bench_limits ? "--limits takes no MODEL" : "expected a MODEL, or --limits");
    if (o->bench_limits)
        return limits(o);
    struct session s = {0};
    struct rh_error err = {0};
    char *json = NULL;
    struct rh_bench_options b = {.prompt = o->given[OPT_BENCH_PROMPT] ? o->bench_prompt : 512,
                                 .decode = o->given[OPT_BENCH_DECODE] ? o->bench_decode : 128,
                                 .repetitions = o->bench_reps ? o->bench_reps : 5, .depth = o->bench_depth, .sequences = o->bench_sequences};
    int rc = session_open(&s, "bench", o, false);
    if (rc == 0 && rh_bench_json(s.model, &b, &json, &err))
        rc = session_fail("bench", &err);
    if (rc == 0)
        rc = print_result("bench", json, o->json);
    rh_free(json);
    session_close(&s);
    return rc;
}
