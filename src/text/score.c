/* text/score.c - the numbers of a unigram vocabulary, as the reference library reads them.
 *
 * Its JSON reader is quick rather than exact: it takes the digits as one integer and divides or multiplies once by a power of
 * ten, so a score may differ from the nearest double in its last bit.  Two splits of a text whose scores are equal on paper are
 * then told apart by that bit, and the ids with them.  So scores are read the same way here; those of a GGUF, which are binary,
 * by way of the shortest decimal text that means them, which is what a tokenizer.json would hold. */
#include "text/text_int.h"

#include <math.h>
#include <stdio.h>

enum { POWER_MAX = 308 };

static double power_of_ten(int n)
{
    char text[16];
    double v = 0;
    int len = snprintf(text, sizeof text, "1e%d", n);
    str_to_f64(str_n(text, (size_t)len), &v);
    return v;
}

static bool scale(double *f, int exponent)
{
    while (exponent < -POWER_MAX && *f != 0) {
        *f /= 1e308;
        exponent += POWER_MAX;
    }
    if (*f == 0)
        return true;
    if (exponent > POWER_MAX)
        return false;
    if (exponent >= 0)
        *f *= power_of_ten(exponent);
    else
        *f /= power_of_ten(-exponent);
    return isfinite(*f);
}

/* Digits from *p on into *n; those that no longer fit are dropped.  Counts the taken and the dropped. */
static void take_digits(const char **p, const char *end, uint64_t *n, int *taken, int *dropped)
{
    for (; *p < end && **p >= '0' && **p <= '9'; ++*p) {
        uint64_t digit = (uint64_t)(**p - '0');
        if (*dropped || *n > (UINT64_MAX - digit) / 10) {
            ++*dropped;
            continue;
        }
        *n = *n * 10 + digit;
        ++*taken;
    }
}

/* `text` is a number of valid JSON. */
bool score_parse(struct str text, double *out)
{
    const char *p = text.p, *end = p + text.n;
    bool negative = p < end && *p == '-';
    uint64_t n = 0;
    int taken = 0, dropped = 0, exponent = 0;
    p += negative;
    take_digits(&p, end, &n, &taken, &dropped);
    exponent = dropped;
    if (p < end && *p == '.') {
        int after = 0, ignored = dropped;
        p++;
        take_digits(&p, end, &n, &after, &ignored);
        exponent -= after;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        int64_t e = 0;
        p++;
        bool down = p < end && *p == '-';
        p += p < end && (*p == '-' || *p == '+');
        for (; p < end && *p >= '0' && *p <= '9'; p++)
            e = e < 100000 ? e * 10 + (*p - '0') : e;
        exponent += (int)(down ? -e : e);
    }
    double f = (double)n;
    if (p != end || !scale(&f, exponent))
        return false;
    *out = negative ? -f : f;
    return true;
}

/* The number's decimal text of so many digits, read back exactly and as the reference does; false: it means another number. */
static bool written(double v, int digits, double *as_read)
{
    char text[40];
    double back;
    int n = snprintf(text, sizeof text, "%.*g", digits, v);
    for (int i = 0; i < n; i++)
        if (!strchr("0123456789+-e", text[i])) /* the decimal sign of some locales */
            text[i] = '.';
    return str_to_f64(str_n(text, (size_t)n), &back) && back == v && score_parse(str_n(text, (size_t)n), as_read);
}

double score_as_written(double v)
{
    int lo = 1, hi = 17; /* 17 digits always do; find the fewest */
    double as_read = v, shorter;
    written(v, hi, &as_read);
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (written(v, mid, &shorter)) {
            as_read = shorter;
            hi = mid;
        } else {
            lo = mid + 1;
        }
    }
    return as_read;
}
