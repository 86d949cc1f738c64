/* base/str.h - a read-only piece of text: pointer and length, no terminator, any bytes. */
#ifndef RH_BASE_STR_H
#define RH_BASE_STR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* borrows `p`; valid as long as its owner says */
struct str {
    const char *p;
    size_t n;
};

#define STR(literal) ((struct str){"" literal, sizeof(literal) - 1})
/* for printf("%.*s", STR_ARG(s)) */
#define STR_ARG(s) (int)((s).n > 4096 ? 4096 : (s).n), (s).p ? (s).p : ""

static inline struct str str_of(const char *z)
{
    return (struct str){z, z ? strlen(z) : 0};
}

static inline struct str str_n(const void *p, size_t n)
{
    return (struct str){(const char *)p, n};
}

static inline bool str_eq(struct str a, struct str b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

static inline bool str_is(struct str a, const char *z)
{
    return str_eq(a, str_of(z));
}

static inline struct str str_from(struct str s, size_t at) /* s[at:] */
{
    return at < s.n ? (struct str){s.p + at, s.n - at} : (struct str){s.p + s.n, 0};
}

static inline bool str_starts(struct str s, struct str head)
{
    return s.n >= head.n && (head.n == 0 || memcmp(s.p, head.p, head.n) == 0);
}

static inline bool str_ends(struct str s, struct str tail)
{
    return s.n >= tail.n && (tail.n == 0 || memcmp(s.p + s.n - tail.n, tail.p, tail.n) == 0);
}

int str_cmp(struct str a, struct str b);               /* bytewise, like memcmp, shorter first */
size_t str_find(struct str s, struct str what);        /* SIZE_MAX when absent */
struct str str_trim(struct str s);                     /* ASCII white space off both ends */
bool str_split(struct str *rest, char sep, struct str *piece); /* false when *rest is used up (p == NULL) */

/* Whole text must be the number; ranges are checked.  False leaves *out alone. */
bool str_to_i64(struct str s, int64_t *out);
bool str_to_u64(struct str s, uint64_t *out);
bool str_to_f64(struct str s, double *out); /* finite decimal only */

#endif
