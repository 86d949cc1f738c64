/* engine/stop.c - stop strings over a stream of bytes that comes in pieces (tokens).
 *
 * Keeps as many past bytes as a string may have begun in.  The string that ends first wins; of several that end at the same byte the longest. */
#include "engine/engine_int.h"

static int match_at(const struct stop_set *set, struct str text)
{
    int best = -1;
    for (uint32_t i = 0; i < set->count; i++)
        if (str_ends(text, set->items[i]) && (best < 0 || set->items[i].n > set->items[best].n))
            best = (int)i;
    return best;
}

int stop_open(struct stop_match *m, const struct stop_set *set)
{
    if (set->count)
        buf_room(&m->tail, 2 * set->longest);
    return m->tail.failed;
}

/* At most as many bytes as the longest string has. */
static void feed_some(struct stop_match *m, const struct stop_set *set, struct str bytes, int *which)
{
    size_t old = m->tail.n, keep = set->longest - 1;
    buf_str(&m->tail, bytes);
    for (size_t end = old + 1; end <= m->tail.n && *which < 0; end++)
        *which = match_at(set, str_n(m->tail.p, end));
    if (m->tail.n > keep) {
        memmove(m->tail.p, m->tail.p + m->tail.n - keep, keep);
        m->tail.n = keep;
    }
}

int stop_feed(struct stop_match *m, const struct stop_set *set, struct str bytes, int *which)
{
    *which = -1;
    for (size_t at = 0; set->count && at < bytes.n && *which < 0; at += set->longest) {
        size_t left = bytes.n - at;
        feed_some(m, set, str_n(bytes.p + at, left < set->longest ? left : set->longest), which);
    }
    return m->tail.failed;
}

bool stop_would(struct stop_match *m, const struct stop_set *set, struct str bytes)
{
    size_t old = m->tail.n;
    bool found = bytes.n > set->longest;
    if (set->count == 0)
        return false;
    if (!found)
        buf_str(&m->tail, bytes);
    for (size_t end = old + 1; end <= m->tail.n && !found; end++)
        found = match_at(set, str_n(m->tail.p, end)) >= 0;
    m->tail.n = old;
    return found || m->tail.failed;
}
