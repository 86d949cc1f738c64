/* engine/propose.h - inside the engine only: what may come next of a sequence, and who guesses it.
 *
 * Thread: engine thread, opening apart. */
#ifndef RH_ENGINE_PROPOSE_H
#define RH_ENGINE_PROPOSE_H

#include "base/err.h"
#include "tensor/sample.h"

struct engine;
struct proposal;
struct seq;
struct step;
struct step_item;

/* constrain.c */
int constrain_open(struct seq *s, struct err *err);
void constrain_close(struct seq *s);
uint32_t constrain_drafts(const struct seq *s, const uint32_t *ids, uint32_t count); /* how many of them it would take */
void constrain_rows(const struct seq *s, const struct step_item *it, struct sample_row *rows); /* each row's mask, drafts before it taken */
int64_t constrain_forced(const struct seq *s); /* the only id that can be chosen next; -1: a row must say */

/* propose.c */
int propose_open(struct seq *s, uint32_t positions, struct err *err);
void propose_close(struct seq *s);
void propose_observe(struct seq *s); /* after tokens were chosen */
/* Whose guess the sequence takes for a round of at most `room` drafts, and how many of them, into s->round; a draft model's are still to be
 * made.  rows, sequences: of the step without that round. */
void propose_round(struct engine *e, struct seq *s, uint32_t rows, uint32_t sequences, uint32_t room);
void propose_settle(struct engine *e, struct seq *s, const struct proposal *p, uint32_t accepted, uint32_t looked);
void propose_earn(struct engine *e, struct seq *s, const struct step *step); /* it decoded in that */

#endif
