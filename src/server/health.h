/* server/health.h - does the engine get on?  Told a few times a second what rh_stats says.
 *
 *      WELL ---- no step ended and no op of one, for HEALTH_STALL_MS ----> STALLED ---- something moved ----> WELL
 *       |  ^------------------------- a step ended well -----------------------------+
 *       +---- the last step failed by the device ----> DEVICE
 *
 * A step may take long: while the device works on it, it is no stall.  A device that does not tell has HEALTH_QUIET_MS. */
#ifndef RH_SERVER_HEALTH_H
#define RH_SERVER_HEALTH_H

#include "rhapsode.h"

enum { HEALTH_STALL_MS = 4000, HEALTH_QUIET_MS = 15000 };
enum health_state { HEALTH_WELL, HEALTH_STALLED, HEALTH_DEVICE };

struct health { /* zero-initialise */
    enum health_state state;
    uint64_t steps, progress, since_ms; /* as they last moved, and when */
};
void health_note(struct health *h, const struct rh_stats *t, uint64_t now_ms);
const char *health_text(const struct health *h); /* "ok", or what is wrong */

#endif
