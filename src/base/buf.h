/* base/buf.h - a growing byte buffer with a ceiling.
 *
 * Appends never fail one by one: the first failure (no memory, ceiling reached) is remembered in `failed` and later appends do
 * nothing, so a writer checks once at the end.  Thread: its owner only. */
#ifndef RH_BASE_BUF_H
#define RH_BASE_BUF_H

#include "base/err.h"
#include "base/str.h"

#include <stdarg.h>

/* owns p */
struct buf {
    char *p;
    size_t n;   /* bytes used */
    size_t cap; /* bytes allocated */
    size_t max; /* ceiling; 0 = 1 GiB */
    int failed; /* 0, ERR_NOMEM or ERR_LIMIT */
};

void buf_free(struct buf *b); /* also resets it to empty */
void buf_put(struct buf *b, const void *data, size_t n);
void buf_str(struct buf *b, struct str s);
void buf_z(struct buf *b, const char *z);
void buf_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
char *buf_room(struct buf *b, size_t n); /* n writable bytes at p + b->n, not yet counted; NULL when failed */
const char *buf_cstr(struct buf *b);     /* terminated text (the terminator is not counted); "" when failed */
struct str buf_view(const struct buf *b);
int buf_check(const struct buf *b, const char *what, struct err *err); /* 0, or the remembered failure */

/* Append JSON pieces: a quoted string (invalid UTF-8 becomes U+FFFD by maximal subparts); a number with %.9g, non-finite as
 * null; base64 without quotes. */
void buf_json_str(struct buf *b, struct str s);
void buf_json_comma(struct buf *b); /* unless nothing is there yet, or a list's opening bracket */
void buf_json_f32(struct buf *b, float v);
void buf_json_f64(struct buf *b, double v);
void buf_base64(struct buf *b, struct str s);

#endif
