/* server/volatile.c - see volatile.h. */
#include "server/volatile.h"

#include <strings.h>

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool starts_nocase(struct str s, const char *z)
{
    size_t n = strlen(z);
    return s.n >= n && strncasecmp(s.p, z, n) == 0;
}

/* Does the line tell date or time, as agents write them? */
static bool tells_time(struct str line)
{
    static const char *const heads[] = {"today's date", "todays date", "the date is", "current date", "the current date", "current time",
                                        "the current time", "current datetime", "the current datetime", "current local time", "date and time",
                                        "it is currently", "now:"};
    while (line.n && (line.p[0] == ' ' || line.p[0] == '\t' || line.p[0] == '-' || line.p[0] == '*' || line.p[0] == '#' || line.p[0] == '<'))
        line = str_from(line, 1);
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (starts_nocase(line, heads[i]))
            return true;
    return false;
}

static size_t digits(struct str s, size_t at, size_t most)
{
    size_t n = 0;
    while (n < most && at + n < s.n && digit(s.p[at + n]))
        n++;
    return n;
}

/* " PM", "Z", "+02:00", " UTC" behind a time. */
static size_t zone(struct str s, size_t at)
{
    static const char *const words[] = {"AM", "PM", "UTC", "GMT", "Z"};
    size_t from = at;
    for (int round = 0; round < 2; round++) {
        size_t next = at + (at < s.n && s.p[at] == ' ');
        for (size_t i = 0; i < sizeof words / sizeof *words; i++)
            if (starts_nocase(str_from(s, next), words[i])) {
                at = next + strlen(words[i]);
                break;
            }
        if (at + 2 < s.n && (s.p[at] == '+' || s.p[at] == '-') && digits(s, at + 1, 2) == 2) {
            at += 3;
            size_t minutes = at + (at < s.n && s.p[at] == ':');
            at = digits(s, minutes, 2) == 2 ? minutes + 2 : at;
        }
    }
    return at - from;
}

/* Length of a time of day at `at`: h:mm, hh:mm:ss.fff, with what belongs to it; 0: there is none. */
static size_t time_at(struct str s, size_t at)
{
    size_t n = digits(s, at, 3), end;
    if (n < 1 || n > 2 || (at && (digit(s.p[at - 1]) || s.p[at - 1] == ':' || s.p[at - 1] == '.' || s.p[at - 1] == '+')) || at + n >= s.n || s.p[at + n] != ':' ||
        digits(s, at + n + 1, 3) != 2)
        return 0;
    end = at + n + 3;
    if (end < s.n && s.p[end] == ':' && digits(s, end + 1, 3) == 2) {
        end += 3;
        if (end < s.n && (s.p[end] == '.' || s.p[end] == ',') && digits(s, end + 1, 9))
            end += 1 + digits(s, end + 1, 9);
    }
    return end + zone(s, end) - at;
}

static bool letter(char c)
{
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

/* Length of the word at `at` when it is one of the list, whole or by its first three letters with a full stop or not. */
static size_t word_of(struct str s, size_t at, const char *const *list, size_t count)
{
    size_t n = 0;
    if (at && letter(s.p[at - 1]))
        return 0;
    while (at + n < s.n && letter(s.p[at + n]))
        n++;
    for (size_t i = 0; i < count && n >= 3; i++)
        if ((n == 3 || n == strlen(list[i])) && strncasecmp(s.p + at, list[i], n) == 0)
            return n + (n == 3 && at + n < s.n && s.p[at + n] == '.');
    return 0;
}

static size_t skip(struct str s, size_t at, const char *set)
{
    while (at < s.n && s.p[at] && strchr(set, s.p[at]))
        at++;
    return at;
}

/* 2026-11-30, 30.11.2026, 11/30/26 */
static size_t number_date(struct str s, size_t at)
{
    size_t n = digits(s, at, 5), m, k;
    if (n < 1 || n > 4 || (at && digit(s.p[at - 1])) || at + n >= s.n || !s.p[at + n] || !strchr("-/.", s.p[at + n]))
        return 0;
    m = digits(s, at + n + 1, 3);
    if (m < 1 || m > 2 || at + n + m + 1 >= s.n || s.p[at + n + m + 1] != s.p[at + n])
        return 0;
    k = digits(s, at + n + m + 2, 5);
    return k && k < 5 ? n + m + k + 2 : 0;
}

/* November 30, 2026; 30 Nov 2026; 30th of November: day and year where they stand. */
static size_t named_date(struct str s, size_t at)
{
    static const char *const months[] = {"january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"};
    size_t from = at, day = at && digit(s.p[at - 1]) ? 0 : digits(s, at, 3), month, year;
    if (day > 2)
        return 0;
    if (day) {
        at += day;
        at += at + 1 < s.n && letter(s.p[at]) ? 2 : 0; /* st, nd, rd, th */
        at = skip(s, at, " ");
        at += starts_nocase(str_from(s, at), "of ") ? 3 : 0;
    }
    month = word_of(s, at, months, 12);
    if (!month)
        return 0;
    at += month;
    if (!day && (day = digits(s, skip(s, at, " "), 3)) && day < 3) {
        at = skip(s, at, " ") + day;
        at += at + 1 < s.n && letter(s.p[at]) ? 2 : 0;
    }
    year = digits(s, skip(s, at, " ,"), 5);
    if (year == 4)
        at = skip(s, at, " ,") + year;
    return at - from;
}

/* Length of a date at `at`, the name of the day included; 0: there is none. */
static size_t date_at(struct str s, size_t at)
{
    static const char *const days[] = {"monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"};
    size_t n = word_of(s, at, days, 7);
    if (n)
        return skip(s, at + n, " ,") - at;
    n = number_date(s, at);
    return n ? n : named_date(s, at);
}

/* A time or a date at `i`; what it is goes to *what. */
static size_t part_at(struct str line, size_t i, bool undated, unsigned *what)
{
    /* the T of 2026-01-02T03:04 goes with the time */
    bool joined = line.p[i] == 'T' && i && digit(line.p[i - 1]);
    size_t n = time_at(line, i + joined);
    if (n) {
        *what |= VOLATILE_TIME;
        return n + joined;
    }
    n = undated ? date_at(line, i) : 0;
    *what |= n ? VOLATILE_DATE : 0;
    return n;
}

static void put_line(struct buf *out, struct str line, bool undated, unsigned *what)
{
    if (!tells_time(line)) {
        buf_str(out, line);
        return;
    }
    for (size_t i = 0, n; i < line.n; i += n ? n : 1)
        if ((n = part_at(line, i, undated, what)) == 0)
            buf_char(out, line.p[i]);
}

void volatile_put(struct buf *out, struct str text, bool undated, unsigned *what)
{
    struct str rest = text, line;
    bool first = true;
    if (starts_nocase(text, "x-anthropic-billing-header:")) {
        *what |= VOLATILE_BILLING;
        str_split(&rest, '\n', &line);
    }
    while (rest.p && str_split(&rest, '\n', &line)) {
        if (!first)
            buf_char(out, '\n');
        first = false;
        put_line(out, line, undated, what);
    }
}
