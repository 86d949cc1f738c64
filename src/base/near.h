/* base/near.h - "did you mean": the one of several names that is nearest to a wrong one.
 *
 * Near is: a few letters missing, extra, wrong or swapped (case aside); the beginning of a name; a part of it.  Thread: its owner only. */
#ifndef RH_BASE_NEAR_H
#define RH_BASE_NEAR_H

#include "base/str.h"

enum { NEAR_NAME_MAX = 256 };

/* lifetime: the caller's stack; `wrong` is borrowed */
struct near {
    struct str wrong;
    char best[NEAR_NAME_MAX]; /* "" : none so far */
    size_t cost;              /* of best */
};

void near_begin(struct near *n, struct str wrong);
void near_try(struct near *n, struct str name); /* names too long to be shown are passed over; of equally near ones the first stays */
const char *near_best(const struct near *n);    /* NULL: no name is near */

#endif
