/* server/metrics.h - counters and histograms of the server, and the text Prometheus reads.  I/O thread only. */
#ifndef RH_SERVER_METRICS_H
#define RH_SERVER_METRICS_H

#include "base/buf.h"
#include "rhapsode.h"

enum { METRIC_BUCKETS = 20 };

enum metric_histogram { METRIC_TTFT, METRIC_INTER_TOKEN, METRIC_QUEUE, METRIC_PREFILL, METRIC_DECODE, METRIC_E2E, METRIC_PROMPT_TOKENS,
                        METRIC_GENERATION_TOKENS, METRIC_HISTOGRAMS };

struct histogram {
    uint64_t counts[METRIC_BUCKETS + 1];
    double sum;
};
/* process lifetime */
struct metrics {
    struct histogram histograms[METRIC_HISTOGRAMS];
    uint64_t finished[4];           /* by enum rh_finish */
    uint64_t prompt_tokens, generation_tokens, cached_tokens;
    uint64_t drafted, accepted;
    uint64_t drafted_by_position[RH_DEPTH_MAX], accepted_by_position[RH_DEPTH_MAX];
    uint64_t statuses[6];           /* answers by hundreds */
    uint64_t rejected;              /* 429 */
};
void metrics_observe(struct metrics *m, enum metric_histogram which, double value);
void metrics_done(struct metrics *m, const struct rh_event *done); /* a choice has ended */
struct server;
void metrics_put(const struct server *s, struct buf *out);

#endif
