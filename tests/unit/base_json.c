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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_value_is_written_whole_or_not_at_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
