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

static void put_line(struct buf *out, struct str line, unsigned *what)
{
    if (!tells_time(line)) {
        buf_str(out, line);
        return;
    }
    for (size_t i = 0; i < line.n; i++) {
        /* the T of 2026-01-02T03:04 goes with the time */
        bool joined = line.p[i] == 'T' && i && digit(line.p[i - 1]);
        size_t n = time_at(line, i + joined);
        if (n == 0) {
            buf_char(out, line.p[i]);
            continue;
        }
        i += n + joined - 1;
        *what |= VOLATILE_TIME;
    }
}

void volatile_put(struct buf *out, struct str text, unsigned *what)
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
        put_line(out, line, what);
    }
}
