/* engine/proposer.h - what guesses the next tokens of a sequence: {propose, observe, free}.
 *
 * A proposal is verified: its ids become rows of one span, each row sampled as if those before it were right, and the acceptance walk
 * (walk.h) keeps what the request's own sampler agrees with.  So a proposer can be wrong, never harmful.
 *
 * Owns:       its own index or state; sequence lifetime.
 * Thread:     opened where the request is submitted, then engine thread only.
 * Invariants: 1. propose and observe ask for no memory: what a sequence can need is taken when the proposer is opened.
 *             2. observe sees every token that was chosen, also those of rounds another proposer served.
 * Does not:   decide whether a proposal pays (propose.c). */
#ifndef RH_ENGINE_PROPOSER_H
#define RH_ENGINE_PROPOSER_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    PROPOSE_DEPTH_MAX = 31,            /* ids of one proposal */
    PROPOSE_HISTORY_MAX = 131072,      /* tokens an index looks back */
    PROPOSE_CLASSES = 4,               /* kinds of proposals of one proposer whose worth is learnt apart */
    ECHO_GRAM = 8, ECHO_OCCURRENCES = 24, ECHO_SPAN_LEAST = 2, ECHO_SPAN_MOST = PROPOSE_DEPTH_MAX + 1,
    LOOKUP_GRAM_MOST = 3, LOOKUP_IDS_MOST = 10
};

enum proposer_kind { PROPOSER_ECHO, PROPOSER_LOOKUP, PROPOSER_DRAFT, PROPOSER_KINDS };

/* how often a proposed id was right, lately; and when to try again what did not pay */
struct proposer_worth {
    double right, tried;
    uint32_t skipped, patience;
};

struct proposer {
    const struct proposer_ops *ops;
    struct proposer_worth worth[PROPOSE_CLASSES];
};

struct proposer_ops {
    const char *name;
    enum proposer_kind kind;
    bool counts_as_draft; /* in the statistics of speculation; else under fill */
    double prior[PROPOSE_CLASSES]; /* how likely an id is right before anything was learnt; class by class */
    /* Ids likely to follow tokens[0, count), all of them observed: at most `room`, 0 = none.  *class says of which kind. */
    uint32_t (*propose)(struct proposer *p, const uint32_t *tokens, uint32_t count, uint32_t room, uint32_t *out, uint32_t *class);
    void (*observe)(struct proposer *p, const uint32_t *tokens, uint32_t count); /* tokens[0, count) are there now */
    uint32_t (*missing)(const struct proposer *p, uint32_t count); /* rows it must run before it can guess; NULL: none */
    void (*free)(struct proposer *p);
};

/* Copies of earlier text: the longest continuation on which all near occurrences of the last ECHO_GRAM ids agree, once one sampled token
 * has confirmed its first id.  positions: the most tokens the sequence can reach; cut_ids: what no span goes past, borrowed. */
int echo_open(uint32_t positions, const uint32_t *cut_ids, uint32_t cut_count, struct proposer **out, struct err *err);
/* What followed an earlier occurrence of the last 3, 2 or 1 ids: the nearest, or where the last guess was taken from goes on. */
int lookup_open(uint32_t positions, struct proposer **out, struct err *err);

void proposer_init(struct proposer *p, const struct proposer_ops *ops);
void proposer_free(struct proposer *p); /* NULL is fine */
/* `right` of `count` proposed ids were right. */
void proposer_settle(struct proposer *p, uint32_t class, uint32_t count, uint32_t right);
double proposer_rate(const struct proposer *p, uint32_t class); /* how likely the next id of such a proposal is right */

#endif
