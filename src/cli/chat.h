/* cli/chat.h - a conversation: messages in order, as the template wants them, saved and loaded as a JSON array. */
#ifndef RH_CLI_CHAT_H
#define RH_CLI_CHAT_H

#include "base/buf.h"
#include "base/err.h"

struct chat_message { /* owns content and reasoning */
    const char *role; /* "system", "user", "assistant" */
    struct buf content, reasoning; /* reasoning: of an answer; empty: none */
};
struct chat { /* owns messages */
    struct chat_message *messages;
    size_t n, cap;
};

struct chat_message *chat_add(struct chat *c, const char *role, struct str content); /* exits when out of memory; valid until the next */
void chat_drop_last(struct chat *c);
void chat_clear(struct chat *c);                         /* all but the system message */
void chat_set_system(struct chat *c, struct str text);   /* empty text removes it */
void chat_json(const struct chat *c, struct buf *out);
int chat_save(const struct chat *c, const char *path, struct err *err);
int chat_load(struct chat *c, const char *path, struct err *err); /* c is unchanged on failure */
void chat_free(struct chat *c);

#endif
