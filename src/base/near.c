/* base/near.c - see near.h. */
#include "base/near.h"

enum { LETTERS_MAX = 96 }; /* longer names are compared by what they contain only */

static unsigned char folded(char c)
{
    return (unsigned char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
}

static bool same_at(struct str name, size_t at, struct str what)
{
    for (size_t i = 0; i < what.n; i++)
        if (folded(name.p[at + i]) != folded(what.p[i]))
            return false;
    return true;
}

/* Where `what` stands in `name`; SIZE_MAX: nowhere. */
static size_t find_folded(struct str name, struct str what)
{
    for (size_t at = 0; what.n <= name.n && at <= name.n - what.n; at++)
        if (same_at(name, at, what))
            return at;
    return SIZE_MAX;
}

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Letters to put in, take away, change or swap with their neighbour to get from a to b. */
static size_t distance(struct str a, struct str b)
{
    size_t rows[3][LETTERS_MAX + 1], *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t k = 0; k <= b.n; k++)
        last[k] = k;
    for (size_t i = 1; i <= a.n; i++) {
        now[0] = i;
        for (size_t k = 1; k <= b.n; k++) {
            unsigned char x = folded(a.p[i - 1]), y = folded(b.p[k - 1]);
            now[k] = least(least(last[k], now[k - 1]) + 1, last[k - 1] + (x != y));
            if (i > 1 && k > 1 && x == folded(b.p[k - 2]) && y == folded(a.p[i - 2]))
                now[k] = least(now[k], before[k - 2] + 1);
        }
        size_t *spare = before;
        before = last;
        last = now;
        now = spare;
    }
    return last[b.n];
}

void near_begin(struct near *n, struct str wrong)
{
    *n = (struct near){.wrong = wrong, .cost = SIZE_MAX};
}

void near_try(struct near *n, struct str name)
{
    size_t most = 1 + n->wrong.n / 4, cost = SIZE_MAX;
    if (n->wrong.n < 2 || name.n == 0 || name.n >= sizeof n->best)
        return;
    if (n->wrong.n <= LETTERS_MAX && name.n <= LETTERS_MAX)
        cost = distance(n->wrong, name);
    size_t at = find_folded(name, n->wrong);
    if (cost > most) /* a part of the name: later than a slip of one letter, and a beginning before a middle */
        cost = at == 0 ? 2 : at != SIZE_MAX && n->wrong.n > 2 ? 3 : SIZE_MAX;
    if (cost >= n->cost)
        return;
    n->cost = cost;
    memcpy(n->best, name.p, name.n);
    n->best[name.n] = 0;
}

const char *near_best(const struct near *n)
{
    return n->best[0] ? n->best : NULL;
}
