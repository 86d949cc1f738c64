/* unit/base_near.c - which of several names a slip is nearest to, and when none is. */
#include "base/near.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static const char *nearest(const char *wrong, const char *const *names)
{
    static struct near n;
    near_begin(&n, str_of(wrong));
    for (; *names; names++)
        near_try(&n, str_of(*names));
    return near_best(&n);
}

static void test_slips(void **state)
{
    (void)state;
    static const char *const verbs[] = {"run", "generate", "score", "tokenize", "detokenize", "ls", "rm", NULL};
    static const struct { const char *wrong, *right; } cases[] = {
        {"rum", "run"}, {"urn", "run"}, {"RUN", "run"}, {"genrate", "generate"}, {"generat", "generate"}, {"gen", "generate"}, {"tokenise", "tokenize"},
        {"scoer", "score"}, {"okeniz", "tokenize"}, {"sl", "ls"}, {"rmm", "rm"}, {"xyzzy", NULL}, {"", NULL}, {"q", NULL}, {"embeddings", NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = nearest(cases[i].wrong, verbs);
        if (!cases[i].right)
            assert_null(got);
        else
            assert_string_equal(got ? got : "(none)", cases[i].right);
    }
}

static void test_parts_and_long_names(void **state)
{
    (void)state;
    char longest[600], near_limit[NEAR_NAME_MAX];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    memset(near_limit, 'b', sizeof near_limit - 1);
    near_limit[sizeof near_limit - 1] = 0;
    const char *const models[] = {longest, "smollm2:135m", "Qwen/Qwen3-0.6B-GGUF", near_limit, NULL};
    assert_string_equal(nearest("smollm2-135m", models), "smollm2:135m");
    assert_string_equal(nearest("qwen3", models), "Qwen/Qwen3-0.6B-GGUF");
    assert_string_equal(nearest("bbbbbbbb", models), near_limit);
    assert_null(nearest(longest, models)); /* too long to be shown, and to be compared letter by letter */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_slips), cmocka_unit_test(test_parts_and_long_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
