/* engine/walk.h - the acceptance walk: which of a round's rows count, whatever the batch.
 *
 * A round has drafts d0 .. d(k-1) and one target sample a row: sample i was drawn assuming drafts 0 .. i-1.  Samples are fed one at a
 * time, after the sequence's history and grammar took them:
 *
 *     equals the draft here      accepted + 1; an end id: stop, not emitted; else emitted; done when the grammar is complete or the
 *                                budget is used up
 *     differs, or no draft left  it is the correction (or the bonus): an end id: stop, not emitted; else emitted; done either way
 *
 * Plain decoding is a round without drafts.  Pure: no memory, no clock, no state but its own. */
#ifndef RH_ENGINE_WALK_H
#define RH_ENGINE_WALK_H

#include <stdbool.h>
#include <stdint.h>

enum walk_end { WALK_CONTINUE, WALK_STOP, WALK_LENGTH };

struct walk {
    const uint32_t *drafts;
    uint32_t draft_count, remaining; /* remaining: tokens the budget still allows, at least 1 */
    uint32_t position;    /* samples fed */
    uint32_t accepted, emitted;
    int64_t correction;   /* -1: none */
    bool saw_eos, grammar_done, done;
};

void walk_open(struct walk *w, const uint32_t *drafts, uint32_t draft_count, uint32_t remaining);
/* True when the sample is emitted.  Not to be called once done. */
bool walk_feed(struct walk *w, uint32_t sample, bool is_end, bool grammar_done);
enum walk_end walk_end(const struct walk *w);
/* Drafts whose state stays when `delivered` of the emitted tokens reached the consumer.  Kept inputs of the round = the rows before its
 * drafts + this. */
uint32_t walk_retained(const struct walk *w, uint32_t delivered);

#endif
