/* Renders tests/data/chat_cases.json (written from Jinja2 by tests/fixtures/chat_fixtures.py) and compares byte for byte. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "chat/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <time.h>

static yyjson_doc *cases_load(struct buf *text)
{
    struct err e = {0};
    assert_int_equal(file_read(text, TEST_DATA "/chat_cases.json", 8 << 20, &e), 0);
    yyjson_doc *doc = json_parse(buf_view(text), "chat_cases.json", &e);
    assert_non_null(doc);
    return doc;
}

/* 0 = as expected */
static int case_run(yyjson_val *c, const struct chat_render_input *in)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    struct chat_rendered out = {0};
    struct str want = json_str(yyjson_obj_get(c, "text")), words = json_str(yyjson_obj_get(c, "error"));
    int bad = 0, rc = chat_template_open(json_str(yyjson_obj_get(c, "template")), &t, &e);
    if (!rc)
        rc = chat_template_render(t, in, &out, &e);
    if (want.p && rc) {
        bad = 1;
        print_error("%s: fails: %s\n", yyjson_get_str(yyjson_obj_get(c, "name")), e.text);
    } else if (want.p && !str_eq(want, buf_view(&out.text))) {
        bad = 1;
        print_error("%s:\n  want |%.*s|\n  got  |%.*s|\n", yyjson_get_str(yyjson_obj_get(c, "name")), STR_ARG(want),
                    STR_ARG(buf_view(&out.text)));
    } else if (!want.p && !rc) {
        bad = 1;
        print_error("%s: expected the error '%.*s', got |%.*s|\n", yyjson_get_str(yyjson_obj_get(c, "name")), STR_ARG(words),
                    STR_ARG(buf_view(&out.text)));
    } else if (!want.p && !yyjson_get_bool(yyjson_obj_get(c, "loose")) && str_find(str_of(e.text), words) == SIZE_MAX) {
        bad = 1;
        print_error("%s: expected the error '%.*s', got '%s'\n", yyjson_get_str(yyjson_obj_get(c, "name")), STR_ARG(words),
                    e.text);
    }
    chat_rendered_free(&out);
    chat_template_close(t);
    return bad;
}

static void test_cases(void **state)
{
    struct buf text = {0};
    yyjson_doc *doc = cases_load(&text);
    yyjson_val *root = yyjson_doc_get_root(doc), *c;
    size_t i, n, bad = 0;
    struct chat_render_input in = {
        .messages = yyjson_obj_get(root, "messages"),
        .variables = yyjson_obj_get(root, "variables"),
        .add_generation_prompt = true,
        .now_s = yyjson_get_sint(yyjson_obj_get(root, "now_s")),
        .steps_max = 2000000,
    };
    (void)state;
    setenv("TZ", "UTC", 1);
    tzset();
    yyjson_arr_foreach(yyjson_obj_get(root, "cases"), i, n, c)
        bad += (size_t)case_run(c, &in);
    print_message("%zu cases, %zu differ\n", n, bad);
    assert_true(n >= 300);
    assert_int_equal(bad, 0);
    json_free(doc);
    buf_free(&text);
}

/* Every memory request of every case fails once: the answer is ERR_NOMEM or, when it did not matter, the usual one. */
static void test_faults(void **state)
{
    struct buf text = {0};
    yyjson_doc *doc = cases_load(&text);
    yyjson_val *root = yyjson_doc_get_root(doc), *c;
    size_t i, n, runs = 0;
    struct chat_render_input in = {
        .messages = yyjson_obj_get(root, "messages"), .variables = yyjson_obj_get(root, "variables"), .steps_max = 20000};
    (void)state;
    yyjson_arr_foreach(yyjson_obj_get(root, "cases"), i, n, c) {
        for (int64_t at = 0, requests = 1; at < requests; at++, runs++) {
            struct err e = {0};
            struct chat_template *t = NULL;
            struct chat_rendered out = {0};
            mem_fault_set(at);
            int rc = chat_template_open(json_str(yyjson_obj_get(c, "template")), &t, &e);
            if (!rc)
                rc = chat_template_render(t, &in, &out, &e);
            requests = mem_request_count();
            mem_fault_set(-1);
            if (rc != ERR_NOMEM && at < requests - 1)
                fail_msg("%s: request %lld of %lld failing gives %d", yyjson_get_str(yyjson_obj_get(c, "name")), (long long)at,
                         (long long)requests, rc);
            if (rc == ERR_NOMEM)
                requests = at + 2;
            chat_rendered_free(&out);
            chat_template_close(t);
        }
    }
    print_message("%zu runs with a failing request\n", runs);
    json_free(doc);
    buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_faults)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
