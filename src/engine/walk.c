/* engine/walk.c - see walk.h. */
#include "engine/walk.h"

void walk_open(struct walk *w, const uint32_t *drafts, uint32_t draft_count, uint32_t remaining)
{
    *w = (struct walk){.drafts = drafts, .draft_count = draft_count, .remaining = remaining, .correction = -1};
}

bool walk_feed(struct walk *w, uint32_t sample, bool is_end, bool grammar_done)
{
    bool agrees = w->position < w->draft_count && w->drafts[w->position] == sample;
    w->position++;
    if (agrees)
        w->accepted++;
    else {
        w->correction = sample;
        w->done = true;
    }
    if (is_end) {
        w->saw_eos = w->done = true;
        return false;
    }
    w->emitted++;
    w->grammar_done = grammar_done;
    w->done |= grammar_done || w->emitted == w->remaining;
    return true;
}

enum walk_end walk_end(const struct walk *w)
{
    if (w->saw_eos || w->grammar_done)
        return WALK_STOP;
    return w->emitted == w->remaining ? WALK_LENGTH : WALK_CONTINUE;
}

uint32_t walk_retained(const struct walk *w, uint32_t delivered)
{
    return delivered < w->accepted ? delivered : w->accepted;
}
