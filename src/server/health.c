/* server/health.c - see health.h. */
#include "server/health.h"

void health_note(struct health *h, const struct rh_stats *t, uint64_t now_ms)
{
    uint64_t limit = t->device_progress ? HEALTH_STALL_MS : HEALTH_QUIET_MS;
    if (t->stalled_ms <= 0 || t->steps != h->steps || t->device_progress != h->progress || h->since_ms == 0)
        h->since_ms = now_ms;
    h->steps = t->steps;
    h->progress = t->device_progress;
    h->state = t->device_failed ? HEALTH_DEVICE : now_ms - h->since_ms > limit ? HEALTH_STALLED : HEALTH_WELL;
}

const char *health_text(const struct health *h)
{
    static const char *const texts[] = {"ok", "the engine stands still", "the device failed"};
    return texts[h->state];
}
