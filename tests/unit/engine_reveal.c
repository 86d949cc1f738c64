/* What a prompt's rows said is given out as far as they said it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "engine/reveal.h"

static void rows_without_likeliest_ids_show_none(void **state)
{
    struct engine_request_config cfg = {.prompt_logprobs = true, .prompt_top = 3};
    struct reveal v;
    (void)state;
    assert_int_equal(reveal_open(&v, &cfg, 4, NULL), 0);
    assert_int_equal(reveal_prompt(&v, 4, NULL), 0);
    for (uint32_t n = 0; n <= 3; n++) { /* logits that are no numbers have none */
        struct sample_result r = {.score_logprob = -1, .top_count = n, .top_ids = {7, 8, 9}, .top_logprobs = {-1, -2, -3}};
        reveal_score(&v, n, &r);
        assert_int_equal(reveal_tops(&v, n), n);
    }
    reveal_free(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_without_likeliest_ids_show_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
