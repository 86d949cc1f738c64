/* What agents change with every request: what goes of a system message, and what stays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/volatile.h"

static void check(const char *text, bool undated, const char *want, unsigned what_want)
{
    struct buf out = {0};
    unsigned what = 0;
    volatile_put(&out, str_of(text), undated, &what);
    if (!str_is(buf_view(&out), want) || what != what_want)
        fail_msg("'%s': '%.*s' (%u), expected '%s' (%u)", text, STR_ARG(buf_view(&out)), what, want, what_want);
    buf_free(&out);
}

static void times_and_billing_go(void **state)
{
    (void)state;
    check("You are helpful.\nBe brief.\n", false, "You are helpful.\nBe brief.\n", 0);
    check("", false, "", 0);
    check("x-anthropic-billing-header: cc_version=2.1.0; cch=00000;\nYou are", false, "You are", VOLATILE_BILLING);
    check("x-anthropic-billing-header: cc_version=2.1.0; cch=00000;", false, "", VOLATILE_BILLING);
    check("You\nx-anthropic-billing-header: a", false, "You\nx-anthropic-billing-header: a", 0);
    check("<env>\nToday's date: 2026-11-30\n</env>", false, "<env>\nToday's date: 2026-11-30\n</env>", 0);
    check("The current date is 2026-11-30 14:05:09.\nGo", false, "The current date is 2026-11-30 .\nGo", VOLATILE_TIME);
    check("# Current Time\n- Current time: 2026-11-30T03:04:05.123Z", false, "# Current Time\n- Current time: 2026-11-30", VOLATILE_TIME);
    check("Current date and time: 11/30/2026, 3:05 PM (UTC+01:00)", false, "Current date and time: 11/30/2026,  (UTC+01:00)", VOLATILE_TIME);
    check("Current time: 03:04:05+02:00", false, "Current time: ", VOLATILE_TIME);
    check("Meet at 14:05:09 on 1:2:3", false, "Meet at 14:05:09 on 1:2:3", 0);
    check("Current time: 123:45 1:234 a:12", false, "Current time: 123:45 1:234 a:12", 0);
    check("x-anthropic-billing-header: a=1;\nYou help.", false, "You help.", VOLATILE_BILLING);
    check("Today's date: 2026-11-30T03:04:05Z.", false, "Today's date: 2026-11-30.", VOLATILE_TIME);
    check("The current date is 2026-11-30.", false, "The current date is 2026-11-30.", 0);
    check("Be there at 03:04 on 2026-11-30.", true, "Be there at 03:04 on 2026-11-30.", 0);
}

static void dates_go_when_asked(void **state)
{
    static const char *const dates[] = {"2026-11-30", "11/30/2026", "30.11.2026", "November 30, 2026", "Nov 30 2026", "30 November 2026", "30th of Nov. 2026",
                                        "Monday, November 30, 2026", "Mon, 30 Nov 2026", "monday 2026-11-30", "December 1st, 2026"};
    (void)state;
    for (size_t i = 0; i < sizeof dates / sizeof *dates; i++) {
        struct buf text = {0};
        buf_printf(&text, "You help.\n - Today's date: %s\nBe brief, 7.5.1 is a version.", dates[i]);
        check(buf_cstr(&text), true, "You help.\n - Today's date: \nBe brief, 7.5.1 is a version.", VOLATILE_DATE);
        check(buf_cstr(&text), false, buf_cstr(&text), 0);
        buf_free(&text);
    }
    check("Today's date is 2026-11-30 03:04 UTC. Think marching, mayor of 12 cities.", true, "Today's date is  . Think marching, mayor of 12 cities.",
          VOLATILE_DATE | VOLATILE_TIME);
    check("Today's date is", true, "Today's date is", 0);
    check("Current date: 2026-", true, "Current date: 2026-", 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_and_billing_go),
        cmocka_unit_test(dates_go_when_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
