/* base/utf8.c - see utf8.h. */
#include "base/utf8.h"

/* Bytes that may follow lead `c` as second byte: [lo, hi]; need = continuation bytes; 0 = not a lead. */
static int lead(unsigned char c, unsigned char *lo, unsigned char *hi)
{
    *lo = 0x80;
    *hi = 0xBF;
    if (c >= 0xC2 && c <= 0xDF)
        return 1;
    if (c >= 0xE0 && c <= 0xEF) {
        if (c == 0xE0)
            *lo = 0xA0;
        if (c == 0xED)
            *hi = 0x9F;
        return 2;
    }
    if (c >= 0xF0 && c <= 0xF4) {
        if (c == 0xF0)
            *lo = 0x90;
        if (c == 0xF4)
            *hi = 0x8F;
        return 3;
    }
    return 0;
}

size_t utf8_decode(struct str s, uint32_t *cp)
{
    const unsigned char *p = (const unsigned char *)s.p;
    if (p[0] < 0x80) {
        *cp = p[0];
        return 1;
    }
    unsigned char lo, hi;
    int need = lead(p[0], &lo, &hi);
    *cp = UTF8_BAD;
    if (!need)
        return 1;
    uint32_t v = p[0] & (0x3Fu >> need);
    for (int i = 1; i <= need; i++) {
        if ((size_t)i >= s.n || p[i] < lo || p[i] > hi)
            return (size_t)i;
        v = v << 6 | (p[i] & 0x3F);
        lo = 0x80;
        hi = 0xBF;
    }
    *cp = v;
    return (size_t)need + 1;
}

size_t utf8_encode(uint32_t cp, char out[4])
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 63));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 63));
        out[2] = (char)(0x80 | (cp & 63));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 63));
    out[2] = (char)(0x80 | (cp >> 6 & 63));
    out[3] = (char)(0x80 | (cp & 63));
    return 4;
}

bool utf8_valid(struct str s)
{
    while (s.n) {
        uint32_t cp;
        size_t n = utf8_decode(s, &cp);
        if (cp == UTF8_BAD)
            return false;
        s = str_from(s, n);
    }
    return true;
}

size_t utf8_tail_open(struct str s)
{
    for (size_t back = 1; back <= 3 && back <= s.n; back++) {
        unsigned char c = (unsigned char)s.p[s.n - back], lo, hi;
        if (c < 0x80)
            return 0;
        if (c < 0xC0)
            continue;
        int need = lead(c, &lo, &hi);
        if (!need || (size_t)need < back)
            return 0;
        uint32_t cp;
        size_t used = utf8_decode(str_n(s.p + s.n - back, back), &cp);
        return used == back ? back : 0;
    }
    return 0;
}
