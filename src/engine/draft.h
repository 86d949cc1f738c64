/* engine/draft.h - inside the engine: the draft model and its state, of all sequences.  Engine thread, opening and closing apart. */
#ifndef RH_ENGINE_DRAFT_H
#define RH_ENGINE_DRAFT_H

#include "base/err.h"

#include <stdint.h>

struct engine;
struct seq;
struct proposer;

int draft_open_pool(struct engine *e, struct err *err);
void draft_close_pool(struct engine *e);
int draft_open(struct seq *s, struct proposer **out, struct err *err);
void draft_admit(struct engine *e, struct seq *s); /* state for it: what is known of its tokens */
void draft_guess(struct engine *e); /* fills the rounds that were asked of it, as far as it can */
uint64_t draft_live_bytes(const struct engine *e);
int draft_check(const struct engine *e, struct err *err); /* kv_check of its state */
void draft_end(struct engine *e, struct seq *s); /* the sequence ends: the draft's state is kept for the next */

#endif
