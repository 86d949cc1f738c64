/* base/err.c - see err.h. */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

int err_setv(struct err *e, int code, const char *fmt, va_list ap)
{
    if (!e || e->code)
        return code;
    e->code = code;
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    return code;
}

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    err_setv(e, code, fmt, ap);
    va_end(ap);
    return code;
}

void err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e || !e->code)
        return;
    char old[ERR_TEXT_MAX], head[ERR_TEXT_MAX];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(head, sizeof head, fmt, ap);
    va_end(ap);
    size_t n = strlen(head);
    if (strncmp(old, head, n) == 0 && (old[n] == ':' || old[n] == '/')) /* said already, by who found it, of the whole or of a file in it */
        return;
    if (n > ERR_TEXT_MAX / 2)
        n = ERR_TEXT_MAX / 2;
    memcpy(e->text, head, n);
    memcpy(e->text + n, ": ", 2);
    size_t room = sizeof e->text - n - 2 - 1, m = strlen(old);
    if (m > room)
        m = room;
    memcpy(e->text + n + 2, old, m);
    e->text[n + 2 + m] = 0;
}

int err_nomem(struct err *e, const char *what, size_t size_bytes)
{
    return err_set(e, ERR_NOMEM, "%s: cannot allocate %zu bytes", what, size_bytes);
}

const char *err_name(int code)
{
    switch (code) {
#define ERR_CASE(name, value, http, text) \
    case value:                           \
        return #name;
        ERR_LIST(ERR_CASE)
#undef ERR_CASE
    }
    return code ? "UNKNOWN" : "OK";
}

const char *err_text(int code)
{
    switch (code) {
#define ERR_CASE(name, value, http, text) \
    case value:                           \
        return text;
        ERR_LIST(ERR_CASE)
#undef ERR_CASE
    }
    return code ? "unknown error" : "ok";
}

int err_http_status(int code)
{
    switch (code) {
#define ERR_CASE(name, value, http, text) \
    case value:                           \
        return http;
        ERR_LIST(ERR_CASE)
#undef ERR_CASE
    }
    return code ? 500 : 200;
}
