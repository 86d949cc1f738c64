/* engine/history.h - inside the engine: what a sequence remembers of its text, for stop strings (stop.c) and penalties (sampler.c).
 *
 * Lifetime: the sequence's.  Thread: engine thread, the start at submission apart. */
#ifndef RH_ENGINE_HISTORY_H
#define RH_ENGINE_HISTORY_H

#include "base/buf.h"
#include "engine/engine.h"
#include "tensor/sample.h"

/* ---- stop.c: stop strings over a stream of bytes ---- */

struct stop_set { /* request lifetime, immutable */
    uint32_t count;
    size_t longest;
    struct str items[ENGINE_STOP_MAX];
};
/* sequence lifetime; owns tail */
struct stop_match {
    struct buf tail; /* the last longest - 1 bytes, and room for as many and one more */
};
int stop_open(struct stop_match *m, const struct stop_set *set); /* all the memory it will need */
/* Takes the next bytes.  *which = the string that ends first (the longest of those), or -1. */
int stop_feed(struct stop_match *m, const struct stop_set *set, struct str bytes, int *which);
/* Would a string end in these bytes?  Nothing is taken.  Also true when that cannot be said without taking them. */
bool stop_would(struct stop_match *m, const struct stop_set *set, struct str bytes);

/* ---- sampler.c: what sample_rows needs to know of a sequence's history ---- */

/* sequence lifetime; owns seen */
struct sampler {
    uint32_t window; /* tokens the penalties look back; 0 = all */
    uint32_t min_tokens;
    struct sample_seen *seen; /* ascending ids */
    uint32_t seen_count, seen_cap;
    bool counts;     /* penalties are on: seen is kept */
    struct sample_params params;
};
/* reach: the most tokens the sequence can come to; ids: how many there are.  All the memory it will need is asked for here. */
int sampler_start(struct sampler *s, const uint32_t *prompt, uint32_t count, uint32_t reach, uint32_t ids);
/* history[count - 1] is new. */
int sampler_observe(struct sampler *s, const uint32_t *history, uint32_t count, uint32_t prompt_count);
void sampler_free(struct sampler *s);
/* Counts that differ from `seen` once history[at] is observed too: patch[n], ascending ids; returns its new length, at most n + 2. */
uint32_t sampler_patch(const struct sampler *s, struct sample_seen *patch, uint32_t n, const uint32_t *history, uint32_t at,
                       uint32_t prompt_count);

#endif
