/* JSON values as text: what is written is read back, and without memory nothing of it is. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/mem.h"

static const char text[] = "{\"a\":[1,-2.5,true,null,\"\\u00e4 \\\"\"],\"b\":{\"c\":{}}}";

static void a_value_is_written_whole_or_not_at_all(void **state)
{
    struct err err = {0};
    yyjson_doc *doc = json_parse(str_of(text), "text", &err);
    yyjson_val *root = yyjson_doc_get_root(doc);
    (void)state;
    for (int64_t n = 0;; n++) {
        struct buf out = {0};
        mem_fault_set(n);
        json_put(&out, root);
        mem_fault_set(-1);
        if (!out.failed) {
            yyjson_doc *again = json_parse(buf_view(&out), "again", &err);
            assert_true(yyjson_equals(root, yyjson_doc_get_root(again)));
            assert_true(n >= 2);
            json_free(again);
            buf_free(&out);
            break;
        }
        assert_int_equal(out.n, 0);
        buf_free(&out);
        assert_true(n < 100);
    }
    json_free(doc);
}

static void numbers_have_nine_digits_and_infinities_are_null(void **state)
{
    static const struct { float v; const char *text; } cases[] = {
        {0, "0"}, {-0.5f, "-0.5"}, {0.1f, "0.100000001"}, {1.0f / 3, "0.333333343"}, {-17.25f, "-17.25"}, {3e38f, "3.00000001e+38"}, {1e-45f, "1.40129846e-45"},
        {16777216.0f, "16777216"}, {-__builtin_inff(), "null"}, {__builtin_inff(), "null"}, {__builtin_nanf(""), "null"}};
    struct buf b = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        b.n = 0;
        buf_json_f32(&b, cases[i].v);
        assert_string_equal(buf_cstr(&b), cases[i].text);
    }
    buf_free(&b);
}

static void bytes_have_a_form_that_is_text(void **state)
{
    static const struct { const char *bytes, *json, *base64; } cases[] = {
        {"", "\"\"", ""}, {"a", "\"a\"", "YQ=="}, {"\xc3", "\"\xef\xbf\xbd\"", "ww=="}, {"\xe2\x82", "\"\xef\xbf\xbd\"", "4oI="},
        {"\xf1\x17\xf1_", "\"\xef\xbf\xbd\\u0017\xef\xbf\xbd_\"", "8RfxXw=="}, {"\xe2\x82\xac\n", "\"\xe2\x82\xac\\n\"", "4oKsCg=="}};
    struct buf b = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        b.n = 0;
        buf_json_str(&b, str_of(cases[i].bytes));
        assert_string_equal(buf_cstr(&b), cases[i].json);
        b.n = 0;
        buf_base64(&b, str_of(cases[i].bytes));
        assert_string_equal(buf_cstr(&b), cases[i].base64);
    }
    buf_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_value_is_written_whole_or_not_at_all), cmocka_unit_test(numbers_have_nine_digits_and_infinities_are_null),
                                       cmocka_unit_test(bytes_have_a_form_that_is_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
