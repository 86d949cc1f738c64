/* server/turn.h - messages and tools as templates take them, put together from what an API tells in parts. */
#ifndef RH_SERVER_TURN_H
#define RH_SERVER_TURN_H

#include "base/json.h"

/* An assistant's turn: text, reasoning and calls are one message; owns its buffers; zero-initialise. */
struct turn {
    struct buf text, thinking, calls;
    bool open; /* something was put, turn_end writes it */
};
void turn_call(struct turn *t, struct str id, struct str name, struct str arguments); /* arguments: JSON */
void turn_end(struct turn *t, struct buf *out); /* the message, with a comma before it where one is needed; empties the turn */
void turn_free(struct turn *t);

/* {"role":ROLE,"content": with a comma before it where one is needed: after anything but the list's own bracket. */
void message_begin(struct buf *out, const char *role);
/* One function of a list of tools; description may be {NULL, 0}; parameters: an object, or NULL. */
void tool_put(struct buf *out, struct str name, struct str description, yyjson_val *parameters);

#endif
