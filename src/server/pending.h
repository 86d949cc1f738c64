/* server/pending.h - whoever owes a connection its answer: told when the peer leaves, and when it takes more again. */
#ifndef RH_SERVER_PENDING_H
#define RH_SERVER_PENDING_H

struct pending {
    void (*gone)(struct pending *p);
    void (*drained)(struct pending *p); /* NULL */
};

#endif
