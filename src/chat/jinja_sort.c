/* chat/jinja_sort.c - a stable sort of items by keys, with comparisons that may fail.
 *
 * Invariants: equal keys keep their order, also in reverse (as Python's sorted); only `<` is asked. */
#include "chat/jinja_int.h"

struct sorter {
    struct jx *jx;
    struct jv *items, *keys, *items_tmp, *keys_tmp;
    bool reverse;
};

/* must b come before a, though it stands after it? */
static bool before(struct sorter *s, struct jv b, struct jv a)
{
    return s->reverse ? jv_compare(s->jx, a, b, "<") == -1 : jv_compare(s->jx, b, a, "<") == -1;
}

static void merge(struct sorter *s, size_t lo, size_t mid, size_t hi)
{
    size_t i = lo, j = mid;
    for (size_t k = lo; k < hi; k++) {
        bool right = i == mid || (j < hi && !s->jx->rc && before(s, s->keys[j], s->keys[i]));
        size_t from = right ? j++ : i++;
        s->items_tmp[k] = s->items[from];
        s->keys_tmp[k] = s->keys[from];
    }
    memcpy(s->items + lo, s->items_tmp + lo, (hi - lo) * sizeof *s->items);
    memcpy(s->keys + lo, s->keys_tmp + lo, (hi - lo) * sizeof *s->keys);
}

void jsort(struct jx *jx, struct jlist *items, struct jlist *keys, bool reverse)
{
    if (jx->rc || !items || !keys || items->n < 2)
        return;
    size_t n = items->n;
    struct sorter s = {.jx = jx, .items = items->v, .keys = keys->v, .reverse = reverse};
    s.items_tmp = jx_alloc(jx, n, sizeof *s.items_tmp);
    s.keys_tmp = jx_alloc(jx, n, sizeof *s.keys_tmp);
    if (!s.items_tmp || !s.keys_tmp)
        return;
    for (size_t width = 1; width < n && !jx->rc; width *= 2)
        for (size_t lo = 0; lo + width < n && !jx->rc && jx_step(jx, width); lo += 2 * width)
            merge(&s, lo, lo + width, lo + 2 * width < n ? lo + 2 * width : n);
}
