/* server/api_responses.h - POST /v1/responses: its parts.
 *
 * Files: api_responses.c (the request and its routes), responses_items.c (what came back: items, events, the object), responses_store.c (answers
 *        kept for previous_response_id).  I/O thread only. */
#ifndef RH_SERVER_API_RESPONSES_H
#define RH_SERVER_API_RESPONSES_H

#include "server/gen.h"

enum item_kind { ITEM_REASONING, ITEM_MESSAGE, ITEM_CALL };
struct item { /* owns */
    enum item_kind kind;
    char id[48];
    char call_id[264];
    struct buf text;     /* or arguments */
    struct buf name;
    struct buf logprobs; /* entries */
    bool open, whole;
};

/* of a generation; owns all */
struct responses {
    struct item *items;
    uint32_t count, cap;
    uint64_t sequence;   /* of the next event */
    char *echo;          /* the request's fields as the object repeats them: ,"temperature":1,... */
    char *conversation;  /* messages so far, without instructions, with commas between */
    bool store, show_logprobs;
    char *error;         /* JSON of it; NULL */
    struct buf object, talk; /* what is kept of it, made when it is over */
};
void responses_free(struct responses *r);
extern const struct gen_api responses_api;
/* The object as it is now; status: "in_progress", or NULL: by how it ended. */
void responses_put(const struct gen *g, struct buf *out, const char *status);

/* ---- kept answers ---- */

struct kept { /* borrowed until the next call */
    const char *object, *conversation;
};
/* Takes both texts over.  The oldest go when there are too many, or too large ones. */
void responses_keep(struct server *s, const char *id, const char *key_name, struct buf *object, struct buf *conversation);
bool responses_find(struct server *s, struct str id, const struct server_key *key, struct kept *out);
bool responses_forget(struct server *s, struct str id, const struct server_key *key);
void responses_close(struct server *s);

#endif
