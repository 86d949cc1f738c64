/* base/err.h - error values: what happened, where, what was expected and what was found.
 *
 * A function that can fail returns 0 or a negative ERR_X.  What fails because of the outside (a file, the net, a device, a
 * user) takes a `struct err *` as its last argument and fills it; NULL is allowed and means "only the code".
 * The first error written wins: err_set on a filled err keeps the earlier one, so a caller may add nothing by accident. */
#ifndef RH_BASE_ERR_H
#define RH_BASE_ERR_H

#include <stdarg.h>
#include <stddef.h>

/* name, value, HTTP status, text */
#define ERR_LIST(X)                                              \
    X(NOMEM, -1, 503, "out of memory")                           \
    X(IO, -2, 500, "input/output error")                         \
    X(NOT_FOUND, -3, 404, "not found")                           \
    X(FORMAT, -4, 400, "malformed data")                         \
    X(UNSUPPORTED, -5, 400, "not supported")                     \
    X(ARGUMENT, -6, 400, "invalid argument")                     \
    X(LIMIT, -7, 400, "limit exceeded")                          \
    X(KV_FULL, -8, 503, "no room for sequence state")            \
    X(CANCELLED, -9, 499, "cancelled")                           \
    X(DEVICE, -10, 503, "device error")                          \
    X(NET, -11, 502, "network error")                            \
    X(TEMPLATE, -12, 400, "template error")                      \
    X(BUSY, -13, 503, "busy")                                    \
    X(INTERNAL, -14, 500, "internal error")                      \
    X(END, -15, 500, "end of data")

enum err_code {
    ERR_OK = 0,
#define ERR_ENUM(name, value, http, text) ERR_##name = value,
    ERR_LIST(ERR_ENUM)
#undef ERR_ENUM
};

enum { ERR_TEXT_MAX = 1024 };

/* lifetime: the caller's stack; no ownership */
struct err {
    int code;                /* 0 or ERR_X */
    char text[ERR_TEXT_MAX]; /* one line, always terminated; cut at the end if longer */
};

/* As {0}, for places that run once a row: the text is not touched. */
static inline void err_none(struct err *e)
{
    e->code = ERR_OK;
    e->text[0] = 0;
}

/* Fill `e` (if not NULL and still empty) and return `code`. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_setv(struct err *e, int code, const char *fmt, va_list ap);

/* Put "where: " in front of a filled error (a file name, a layer) that does not begin with it (or with a file in it).  It gives no code: `e` may be
 * NULL, and the caller has it. */
void err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The usual out-of-memory error: what was to be allocated and how much. */
int err_nomem(struct err *e, const char *what, size_t size_bytes);

const char *err_name(int code); /* "FORMAT" */
const char *err_text(int code); /* "malformed data" */
int err_http_status(int code);

#endif
