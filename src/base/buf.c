/* base/buf.c - see buf.h. */
#include "base/buf.h"

#include "base/mem.h"
#include "base/utf8.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

void buf_free(struct buf *b)
{
    size_t max = b->max;
    mem_free(b->p);
    *b = (struct buf){.max = max};
}

char *buf_room(struct buf *b, size_t n)
{
    size_t max = b->max ? b->max : (size_t)1 << 30, want;
    if (b->failed)
        return NULL;
    if (__builtin_add_overflow(b->n, n, &want) || want > max) {
        b->failed = ERR_LIMIT;
        return NULL;
    }
    if (want + 1 > b->cap) {
        size_t cap = b->cap ? b->cap : 64;
        while (cap < want + 1)
            cap += cap / 2 + 64;
        char *p = mem_try_resize(b->p, cap);
        if (!p) {
            b->failed = ERR_NOMEM;
            return NULL;
        }
        b->p = p;
        b->cap = cap;
    }
    return b->p + b->n;
}

void buf_put(struct buf *b, const void *data, size_t n)
{
    char *to = n ? buf_room(b, n) : NULL;
    if (!to)
        return;
    memcpy(to, data, n);
    b->n += n;
}

void buf_str(struct buf *b, struct str s)
{
    buf_put(b, s.p, s.n);
}

void buf_z(struct buf *b, const char *z)
{
    buf_put(b, z, strlen(z));
}

void buf_char(struct buf *b, char c)
{
    buf_put(b, &c, 1);
}

void buf_printf(struct buf *b, const char *fmt, ...)
{
    char tmp[512];
    va_list ap, ap2;
    va_start(ap, fmt);
    va_copy(ap2, ap);
    int n = vsnprintf(tmp, sizeof tmp, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof tmp) {
        buf_put(b, tmp, (size_t)n);
    } else if (n > 0) {
        char *to = buf_room(b, (size_t)n);
        if (to) {
            vsnprintf(to, (size_t)n + 1, fmt, ap2);
            b->n += (size_t)n;
        }
    }
    va_end(ap2);
}

const char *buf_cstr(struct buf *b)
{
    char *to = buf_room(b, 0);
    if (!to)
        return "";
    *to = 0;
    return b->p;
}

struct str buf_view(const struct buf *b)
{
    return (struct str){b->p ? b->p : "", b->n};
}

int buf_check(const struct buf *b, const char *what, struct err *err)
{
    if (!b->failed)
        return 0;
    if (b->failed == ERR_LIMIT)
        return err_set(err, ERR_LIMIT, "%s: longer than the limit of %zu bytes", what, b->max ? b->max : (size_t)1 << 30);
    return err_nomem(err, what, b->cap);
}

void buf_json_str(struct buf *b, struct str s)
{
    static const char hex[] = "0123456789abcdef";
    buf_char(b, '"');
    size_t start = 0, i = 0;
    while (i < s.n) {
        unsigned char c = (unsigned char)s.p[i];
        size_t len = 1;
        bool plain = c >= 0x20 && c != '"' && c != '\\';
        if (c >= 0x80) {
            uint32_t cp;
            len = utf8_decode(str_from(s, i), &cp);
            plain = cp != UTF8_BAD;
        }
        if (plain) {
            i += len;
            continue;
        }
        buf_put(b, s.p + start, i - start);
        if (c >= 0x80)
            buf_z(b, "\xEF\xBF\xBD");
        else if (c == '"' || c == '\\')
            buf_put(b, (char[]){'\\', (char)c}, 2);
        else if (c == '\n')
            buf_z(b, "\\n");
        else if (c == '\r')
            buf_z(b, "\\r");
        else if (c == '\t')
            buf_z(b, "\\t");
        else
            buf_put(b, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
        i += len;
        start = i;
    }
    buf_put(b, s.p + start, s.n - start);
    buf_char(b, '"');
}

void buf_json_f64(struct buf *b, double v)
{
    if (isfinite(v))
        buf_printf(b, "%.9g", v);
    else
        buf_z(b, "null");
}

void buf_json_f32(struct buf *b, float v)
{
    buf_json_f64(b, (double)v);
}

void buf_base64(struct buf *b, struct str s)
{
    static const char tab[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *p = (const unsigned char *)s.p;
    for (size_t i = 0; i < s.n; i += 3) {
        size_t left = s.n - i;
        uint32_t v = (uint32_t)p[i] << 16 | (left > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (left > 2 ? p[i + 2] : 0);
        char q[4] = {tab[v >> 18], tab[v >> 12 & 63], left > 1 ? tab[v >> 6 & 63] : '=', left > 2 ? tab[v & 63] : '='};
        buf_put(b, q, 4);
    }
}

void buf_json_comma(struct buf *b)
{
    if (b->n && b->p[b->n - 1] != '[')
        buf_char(b, ',');
}
