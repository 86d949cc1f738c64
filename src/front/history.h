/* front/history.h - chats become ids, and answers the engine wrote keep theirs.
 *
 * Owns:       a bounded list of what was rendered and answered, the least recently used given up first.
 * Invariants: 1. Ids are kept only where the new rendering begins with the same bytes, with the same bytes from users, as the old rendering
 *                and its answer together: all of them when a special token follows, else up to the last byte where an id of then and an id
 *                of the text encoded anew both end.
 *             2. Nothing of one tenant is found by another.
 * Threads:    any; one lock.
 * Why: encoding an answer's text may give other ids than those that were chosen, and then nothing after them is known state. */
#ifndef RH_FRONT_HISTORY_H
#define RH_FRONT_HISTORY_H

#include "chat/template.h"
#include "text/tokenizer.h"

#include <pthread.h>

enum { HISTORY_BYTES_MAX = 8 << 20 };

struct texts;
struct rh_chat;

/* A rendered chat as it was encoded; owns all of it. */
struct prompt_trace {
    struct buf text;
    struct chat_piece *pieces; /* as in chat_rendered */
    size_t piece_count;
    size_t *cut_bytes;         /* [cut_count] boundaries, ascending... */
    uint32_t *cut_positions;   /* ...and the ids before each */
    uint32_t cut_count;
};
void prompt_trace_free(struct prompt_trace *p);

struct history_entry;
struct history { /* model lifetime */
    pthread_mutex_t mutex;
    struct history_entry *first; /* most recently used */
    size_t bytes;
};
void history_open(struct history *h);
void history_close(struct history *h);

/* Chat -> ids and the positions of its boundaries.  The template's special tokens become ids, those in users' strings stay text. */
int history_encode(struct history *h, const struct texts *t, const struct rh_chat *chat, const char *tenant, struct token_ids *ids,
                   struct prompt_trace *trace, struct err *err);
/* The engine answered so.  Best effort: what does not fit or has no memory is not remembered. */
void history_add(struct history *h, const char *tenant, const struct prompt_trace *trace, const struct token_ids *prompt, struct str answer,
                 const uint32_t *answer_ids, size_t answer_count);

#endif
