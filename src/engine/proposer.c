/* engine/proposer.c - what proposers have in common: how good their guesses were. */
#include "engine/proposer.h"

#include <stddef.h>

enum { PATIENCE_FIRST = 32 };
static const double PRIOR_WEIGHT = 2, KEPT = 0.85; /* of what was learnt, a round */

void proposer_init(struct proposer *p, const struct proposer_ops *ops)
{
    p->ops = ops;
    for (uint32_t i = 0; i < PROPOSE_CLASSES; i++)
        p->worth[i] = (struct proposer_worth){.right = PRIOR_WEIGHT * ops->prior[i], .tried = PRIOR_WEIGHT, .patience = PATIENCE_FIRST};
}

void proposer_free(struct proposer *p)
{
    if (p)
        p->ops->free(p);
}

void proposer_settle(struct proposer *p, uint32_t class, uint32_t count, uint32_t right)
{
    struct proposer_worth *w = &p->worth[class];
    w->right = KEPT * w->right + right;
    w->tried = KEPT * w->tried + right + (right < count);
    w->skipped = 0;
    if (right)
        w->patience = PATIENCE_FIRST;
    else if (w->patience < 1u << 12)
        w->patience *= 2;
}

double proposer_rate(const struct proposer *p, uint32_t class)
{
    const struct proposer_worth *w = &p->worth[class];
    double rate = w->tried > 0 ? w->right / w->tried : p->ops->prior[class];
    return rate < 0.98 ? rate : 0.98;
}
