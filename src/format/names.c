/* format/names.c - see names.h.  Open addressing, linear probing, at most half full. */
#include "format/names.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/utf8.h"

static struct str name_at(const struct names *t, size_t i)
{
    struct str s;
    memcpy(&s, (const char *)t->base + i * t->stride, sizeof s);
    return s;
}

int names_init(struct names *t, const void *base, size_t stride, size_t count_max, struct err *err)
{
    size_t slots = 8;
    if (count_max >= UINT32_MAX / 4)
        return err_set(err, ERR_LIMIT, "%zu names: expected fewer than %u", count_max, UINT32_MAX / 4);
    while (slots < 2 * count_max)
        slots *= 2;
    *t = (struct names){.base = base, .stride = stride, .mask = slots - 1, .key = {rng_seed_draw(), rng_seed_draw()}};
    t->slots = mem_try_zero(slots, sizeof *t->slots);
    return t->slots ? 0 : err_nomem(err, "table of names", slots * sizeof *t->slots);
}

size_t names_add(struct names *t, size_t i)
{
    struct str name = name_at(t, i);
    for (size_t at = hash_sip(t->key, name.p, name.n) & t->mask;; at = (at + 1) & t->mask) {
        if (!t->slots[at]) {
            t->slots[at] = (uint32_t)i + 1;
            return i;
        }
        if (str_eq(name_at(t, t->slots[at] - 1), name))
            return t->slots[at] - 1;
    }
}

size_t names_find(const struct names *t, struct str name)
{
    if (!t->slots)
        return SIZE_MAX;
    for (size_t at = hash_sip(t->key, name.p, name.n) & t->mask; t->slots[at]; at = (at + 1) & t->mask)
        if (str_eq(name_at(t, t->slots[at] - 1), name))
            return t->slots[at] - 1;
    return SIZE_MAX;
}

void names_free(struct names *t)
{
    mem_free(t->slots);
    *t = (struct names){0};
}

const char *names_show(struct str name, char out[NAMES_SHOW_MAX])
{
    size_t n = 0;
    while (name.n && n + 8 < NAMES_SHOW_MAX) {
        uint32_t cp;
        size_t used = utf8_decode(name, &cp);
        if (cp == UTF8_BAD || cp < 32 || cp == 127) {
            out[n++] = '?';
        } else {
            memcpy(out + n, name.p, used);
            n += used;
        }
        name = str_from(name, used);
    }
    memcpy(out + n, "...", 4);
    if (!name.n)
        out[n] = 0;
    return out;
}

bool names_valid(struct str name)
{
    if (name.n == 0 || name.n > 65535 || !utf8_valid(name))
        return false;
    for (size_t i = 0; i < name.n; i++)
        if ((unsigned char)name.p[i] < 32 || name.p[i] == 127)
            return false;
    return true;
}
