/* chat/template.h - chat templates (Jinja2 as transformers uses it): messages -> marked text.
 *
 * Owns:       the parsed template, immutable after open: many threads may render at once, each with its own output.
 * Invariants: 1. Text equals transformers' apply_chat_template for the same variables.
 *             2. Every output byte knows whether it came from the template or from a user's string; pieces carry that mark.
 *             3. Output size, nesting and steps are bounded; a template cannot loop for ever.
 * Does not:   tokenize. */
#ifndef RH_CHAT_TEMPLATE_H
#define RH_CHAT_TEMPLATE_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

struct chat_template;

int chat_template_open(struct str source, struct chat_template **out, struct err *err);
void chat_template_close(struct chat_template *t);

/* What a rendering gets.  All borrowed for the call. */
struct chat_render_input {
    yyjson_val *messages;  /* array of {role, content, ...} */
    yyjson_val *tools;     /* array or NULL */
    yyjson_val *documents; /* array or NULL */
    yyjson_val *variables; /* object of further variables (enable_thinking, ...) or NULL */
    struct str bos_token, eos_token, unk_token, pad_token; /* {NULL,0} = undefined, as transformers does */
    bool add_generation_prompt;
    int64_t now_s;         /* for strftime_now: seconds since the epoch, local zone of the process */
    size_t output_max_bytes; /* 0 = 16 MiB */
    uint64_t steps_max;    /* 0 = 50 million */
};

struct chat_piece { /* bytes [from, to) of the text */
    size_t from, to;
    bool user; /* came from messages, tools, documents or variables: a special token wholly inside stays text */
};

/* owns its memory; free with chat_rendered_free */
struct chat_rendered {
    struct buf text;
    struct chat_piece *pieces; /* cover the text, ascending, adjacent ones differ in `user` */
    size_t piece_count;
    size_t *boundaries;        /* ascending byte offsets of stable turn ends: rendering messages[:k] for each k gives a prefix */
    size_t boundary_count;
};

/* ERR_TEMPLATE: the template raised (its own message) or does something unsupported (named, with line).
 * Null fields of messages are dropped and reasoning is given under each of its names, as transformers does before rendering. */
int chat_template_render(const struct chat_template *t, const struct chat_render_input *in, struct chat_rendered *out,
                         struct err *err);
void chat_rendered_free(struct chat_rendered *r);

#endif
