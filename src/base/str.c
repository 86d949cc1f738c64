/* base/str.c - see str.h. */
#include "base/str.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int str_cmp(struct str a, struct str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

size_t str_find(struct str s, struct str what)
{
    if (what.n == 0)
        return 0;
    const char *p = s.n ? memmem(s.p, s.n, what.p, what.n) : NULL;
    return p ? (size_t)(p - s.p) : SIZE_MAX;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

struct str str_trim(struct str s)
{
    while (s.n && is_space(s.p[0]))
        s.p++, s.n--;
    while (s.n && is_space(s.p[s.n - 1]))
        s.n--;
    return s;
}

bool str_split(struct str *rest, char sep, struct str *piece)
{
    if (!rest->p)
        return false;
    const char *at = rest->n ? memchr(rest->p, sep, rest->n) : NULL;
    if (!at) {
        *piece = *rest;
        *rest = (struct str){NULL, 0};
        return true;
    }
    *piece = (struct str){rest->p, (size_t)(at - rest->p)};
    *rest = (struct str){at + 1, rest->n - piece->n - 1};
    return true;
}

bool str_to_u64(struct str s, uint64_t *out)
{
    uint64_t v = 0;
    if (s.n == 0)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        if (s.p[i] < '0' || s.p[i] > '9' || __builtin_mul_overflow(v, (uint64_t)10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(s.p[i] - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

bool str_to_i64(struct str s, int64_t *out)
{
    bool neg = s.n && s.p[0] == '-';
    uint64_t v;
    if (!str_to_u64(neg || (s.n && s.p[0] == '+') ? str_from(s, 1) : s, &v))
        return false;
    if (v > (uint64_t)INT64_MAX + (neg ? 1 : 0))
        return false;
    *out = neg ? (int64_t)(0 - v) : (int64_t)v;
    return true;
}

bool str_to_f64(struct str s, double *out)
{
    char tmp[64];
    if (s.n == 0 || s.n >= sizeof tmp || is_space(s.p[0]))
        return false;
    for (size_t i = 0; i < s.n; i++)
        if (!(s.p[i] >= '0' && s.p[i] <= '9') && !strchr("+-.eE", s.p[i]))
            return false;
    memcpy(tmp, s.p, s.n);
    tmp[s.n] = 0;
    char *end;
    double v = strtod(tmp, &end);
    if (*end || !isfinite(v))
        return false;
    *out = v;
    return true;
}
