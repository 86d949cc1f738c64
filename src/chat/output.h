/* chat/output.h - what a model wrote -> typed events: content, reasoning, tool calls whose arguments stream as JSON.
 *
 * A format says which markers a model family uses; it is data (output_formats.c), one small entry each.  docs/output.md lists them.
 *
 * Owns:       a parser owns its state, its tools' types and the texts of the events it gives out.
 * Thread:     one thread at a time; formats are constant.
 * Invariants: 1. Bytes are read one by one: the events are the same however the text was cut, but for where adjacent deltas are cut.
 *             2. Nothing is lost: every byte comes out as content, reasoning or part of a call, or it is markup: a marker, or white space
 *                beside one.  What was held back as the beginning of a marker or call and is none comes out in full.
 *             3. The arguments of a call that ended whole are one JSON object.  No text is an error: only memory can fail.
 *             4. Memory is bounded by OUTPUT_HOLD_MAX and the text put at once; there is no recursion.
 *             5. Whole scalars in, whole scalars out.
 * Does not:   know tokens, stop strings, or what an API calls these things. */
#ifndef RH_CHAT_OUTPUT_H
#define RH_CHAT_OUTPUT_H

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"

enum {
    OUTPUT_HOLD_MAX = 64 << 10, /* bytes held back at most while it is open what they are; then they are content */
    OUTPUT_NAME_MAX = 256,      /* of a tool, of an id */
    OUTPUT_DEPTH_MAX = 64,      /* of a call's arguments */
    OUTPUT_CALLS_MAX = 1024     /* further ones stay content */
};

struct output_format;

/* The formats in order; NULL past the last.  The first is "none": all text is content. */
const struct output_format *output_format_at(size_t i);
const struct output_format *output_format_find(struct str name); /* NULL: no such format */
/* The one whose markers a template's text contains; "none" if there are none. */
const struct output_format *output_format_of_template(struct str source);
const char *output_format_name(const struct output_format *f);
/* How a call begins in answers of a template with that text, up to where its arguments go on; \1 stands for the name, and each \2
 * begins one of several ways to go on.  NULL: the format has no calls. */
const char *output_format_call(const struct output_format *f, struct str template_source);

enum { OUTPUT_DELIMITERS_MAX = 16 };
/* The words of the markers around calls and around one call, such as "<tool_call>" and "</tool_call>"; returns how many.  The texts are constant. */
size_t output_format_delimiters(const struct output_format *f, struct str out[OUTPUT_DELIMITERS_MAX]);

struct output_options {
    const struct output_format *format;
    yyjson_val *tools;      /* array of {type, function: {name, parameters}} or {name, parameters | input_schema}; NULL; read at open only */
    bool calls;             /* look for calls; else what would be one is content */
    bool told_only;         /* what calls a tool that is not in `tools` is content, too */
    struct str prompt_tail; /* end of the prompt: a reasoning block it leaves open goes on in the answer */
    uint64_t id_seed;       /* of ids for calls whose format has none: letters from (id_seed, index) */
};

enum output_kind {
    OUTPUT_CONTENT,        /* text */
    OUTPUT_REASONING,      /* text */
    OUTPUT_CALL_BEGIN,     /* call, id, name */
    OUTPUT_CALL_ARGUMENTS, /* call, text: more of the JSON */
    OUTPUT_CALL_END        /* call, whole */
};

struct output_event {
    enum output_kind kind;
    uint32_t call;       /* 0-based, ascending; one call is open at a time */
    struct str text;     /* never empty where it is valid */
    const char *id, *name;
    bool whole;          /* the call ended as its format wants it; else it broke off (end of the text, or malformed): its arguments may be
                          * incomplete JSON, and text from the malformed place on is read as if it stood outside of a call */
};

struct output_parser;
int output_open(const struct output_options *opt, struct output_parser **out, struct err *err);
void output_close(struct output_parser *p);

/* Is this special token's text part of a marker?  Then it must be put; others must not be: they are not text. */
bool output_is_marker(const struct output_parser *p, struct str special);

/* More of the text.  special: the bytes are one special token; they never become content.  Events wait until they are taken.
 * 0 or ERR_NOMEM. */
int output_put(struct output_parser *p, struct str text, bool special);
int output_end(struct output_parser *p); /* the text is complete: what is held comes out, an open call ends */

/* Next event; false: no more for now.  Its texts are valid until the next put, end or close. */
bool output_next(struct output_parser *p, struct output_event *out);

bool output_in_reasoning(const struct output_parser *p);
const char *output_reasoning_close(const struct output_parser *p); /* the marker that ends the block which is open; NULL: none is */
uint32_t output_call_count(const struct output_parser *p); /* calls begun */

#endif
