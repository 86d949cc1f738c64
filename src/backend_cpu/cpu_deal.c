/* backend_cpu/cpu_deal.c - see cpu_deal.h.
 *
 * What is left of a run is one word: the round, the front, the back.  Rounds count deals; a worker begins each by putting its own word
 * into the new round, unless somebody who looked for work did it for it, so a word is never more than one round old. */
#include "backend_cpu/cpu_deal.h"
#include "backend_cpu/cpu_device.h"

#include <assert.h>

enum { INDEX_BITS = 24 };

static uint64_t word_of(uint16_t round, uint32_t front, uint32_t back)
{
    return (uint64_t)round << 2 * INDEX_BITS | (uint64_t)front << INDEX_BITS | back;
}

/* The item at which worker w's run begins. */
static uint32_t bound(const struct cpu_lot *lots, uint32_t n_lots, uint32_t w, uint32_t count)
{
    uint64_t total = 0, base = 0;
    uint32_t before = 0;
    for (uint32_t i = 0; i < n_lots; i++)
        total += lots[i].items * lots[i].cost;
    uint64_t at = w == count ? total : total / count * w;
    for (uint32_t i = 0; i < n_lots; i++) {
        uint64_t cost = lots[i].items * lots[i].cost;
        if (at < base + cost)
            return before + (uint32_t)((at - base + lots[i].cost - 1) / lots[i].cost);
        base += cost;
        before += lots[i].items;
    }
    return before;
}

static uint64_t fresh(const struct cpu_deal *deal, uint32_t w)
{
    return word_of(deal->round, bound(deal->lots, deal->n_lots, w, deal->count), bound(deal->lots, deal->n_lots, w + 1, deal->count));
}

/* The word of worker w in this round. */
static uint64_t look(const struct cpu_deal *deal, uint32_t w)
{
    _Atomic uint64_t *word = &deal->hands[w].word;
    uint64_t v = atomic_load_explicit(word, memory_order_relaxed);
    if (v >> 2 * INDEX_BITS == deal->round)
        return v;
    uint64_t new = fresh(deal, w);
    return atomic_compare_exchange_strong(word, &v, new) ? new : v; /* who was faster put it into this round */
}

/* Items of the lot that item `at` lies in: [*first, the value returned). */
static uint32_t lot_of(const struct cpu_deal *deal, uint32_t at, uint32_t *lot, uint32_t *first)
{
    uint32_t end = 0;
    for (*lot = 0; at >= (end = *first + deal->lots[*lot].items); (*lot)++)
        *first = end;
    return end;
}

/* Some of what worker w has left: at the front of one's own, at the back of another's.  Less and less as it runs out. */
static bool take(const struct cpu_deal *deal, uint32_t w, struct cpu_take *out)
{
    const uint32_t mask = ((uint32_t)1 << INDEX_BITS) - 1;
    for (uint64_t v = look(deal, w);;) {
        uint32_t front = (uint32_t)(v >> INDEX_BITS) & mask, back = (uint32_t)v & mask, first = 0;
        if (front >= back)
            return false;
        uint32_t n = (back - front + 1) / 2, end = lot_of(deal, w == deal->me ? front : back - 1, &out->lot, &first);
        n = n < deal->most ? n : deal->most;
        uint32_t from = w == deal->me ? front : back - n, to = w == deal->me ? front + n : back;
        from = from > first ? from : first;
        to = to < end ? to : end;
        uint64_t new = w == deal->me ? word_of(deal->round, to, back) : word_of(deal->round, front, from);
        if (atomic_compare_exchange_weak(&deal->hands[w].word, &v, new)) {
            out->from = from - first;
            out->to = to - first;
            return true;
        }
    }
}

void cpu_deal_start(struct cpu_deal *deal, struct device *d, const struct cpu_lot *lots, uint32_t n_lots, uint32_t most, uint32_t me,
                    uint32_t count)
{
    *deal = (struct cpu_deal){d->hands, lots, n_lots, most, me, count, me, ++d->hands[me].round};
    assert(bound(lots, n_lots, count, count) >> INDEX_BITS == 0);
    look(deal, me);
}

bool cpu_deal_next(struct cpu_deal *deal, struct cpu_take *out)
{
    for (;;) {
        if (take(deal, deal->from_whom, out))
            return true;
        deal->from_whom = (deal->from_whom + 1) % deal->count;
        if (deal->from_whom == deal->me) /* all are empty, and stay so */
            return false;
    }
}

bool cpu_deal_own(const struct cpu_lot *lots, uint32_t n_lots, uint32_t me, uint32_t count, uint32_t i, struct cpu_take *out)
{
    uint32_t from = bound(lots, n_lots, me, count), to = bound(lots, n_lots, me + 1, count), first = 0;
    for (uint32_t lot = 0; lot < n_lots && first < to; first += lots[lot++].items) {
        uint32_t low = from > first ? from : first, end = first + lots[lot].items, high = to < end ? to : end;
        if (low >= high || i-- > 0)
            continue;
        *out = (struct cpu_take){lot, low - first, high - first};
        return true;
    }
    return false;
}
