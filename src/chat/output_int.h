/* chat/output_int.h - inside the chat room only: what an output format is made of, and the parts of the parser.
 *
 * Files: output_formats.c (the table), output.c (bytes -> markers -> states), output_call.c (inside a call), output_object.c (a call that
 *        is a JSON object), output_header.c (messages with headers), output_value.c (values -> JSON), output_schema.c (a tool's types). */
#ifndef RH_CHAT_OUTPUT_INT_H
#define RH_CHAT_OUTPUT_INT_H

#include "chat/output.h"

/* ---- formats ---- */

/* Markers are literals; a space in one stands for any white space, none too.  White space before a marker belongs to it. */
struct output_reasoning {
    const char *open, *close;
};

enum output_body {
    OUTPUT_OBJECT = 1, /* {"name": ..., "arguments": {...}} */
    OUTPUT_NAMED,      /* name, then the arguments as one value */
    OUTPUT_TAGGED      /* name, then keys and values between markers */
};
enum {
    OUTPUT_BARE = 1,         /* no marker of its own: only where an answer begins, only for tools there are */
    OUTPUT_KEY_IS_NAME = 2,  /* OBJECT: {"name": {...}} */
    OUTPUT_PYTHON = 4,       /* NAMED: name(key=value, ...), values as Python writes them */
    OUTPUT_LINES = 8,        /* TAGGED: one line break after value_open and before value_close is markup */
    OUTPUT_KIMI_NAME = 16,   /* the name is "functions.NAME:INDEX", and the whole is the id */
    OUTPUT_DOT_CALL = 32     /* the name ends in ".call" */
};

/* [open] { [call_open] name or object ... [call_close] [separator] } [close].  NULL: the format has no such marker. */
struct output_calls {
    enum output_body body;
    unsigned flags;
    const char *open, *close;           /* around all calls of a section; close may be missing in a text */
    const char *call_open, *call_close; /* around one; call_close may be missing after a body that knows its own end */
    const char *separator;
    const char *name_end;               /* NAMED: before the value, which may follow without it; TAGGED: if NULL, key_open or call_close */
    const char *id_open;                /* NAMED: between name and name_end, the call's id follows */
    const char *key_open, *key_close, *value_open, *value_close; /* TAGGED; value_open NULL: key_close does it */
    const char *name_key, *id_key;      /* OBJECT; name_key NULL: "name" */
    const char *string_mark;            /* NAMED: around strings, instead of quotes; nothing inside is escaped */
};

enum { OUTPUT_REASONING_MAX = 2, OUTPUT_CALL_KINDS = 3, OUTPUT_DROPS_MAX = 4, OUTPUT_DETECT_MAX = 2 };
struct output_format {
    const char *name;
    struct {
        const char *has, *too;                /* too: NULL, or this as well */
    } detect[OUTPUT_DETECT_MAX];              /* a template that contains one of them has this format; the first format in order wins */
    struct output_reasoning reasoning[OUTPUT_REASONING_MAX];
    struct output_calls calls[OUTPUT_CALL_KINDS];
    struct {
        const char *has, *text;
    } begin[OUTPUT_DETECT_MAX];               /* how a call is written up to where its arguments go on (output_format_call), in templates that
                                               * contain `has` (NULL: in all) */
    const char *drops[OUTPUT_DROPS_MAX];      /* markers around content */
    bool reasoning_anywhere;                  /* else only before any content */
    bool call_ends_reasoning;                 /* a call begins inside of a reasoning block that was not closed */
    bool headers;                             /* messages with headers (output_header.c): channel and recipient say what they are */
    bool short_ids;                           /* ids drawn for calls have 9 letters */
};

/* ---- values -> JSON (output_value.c) ---- */

enum { /* what is read beyond JSON */
    VALUE_PYTHON = 1,  /* 'text', triple quotes, escapes, (tuples), True, 1_000; bare words and keys are strings */
    VALUE_QUOTES = 2,  /* 'text' and True, False, None */
    VALUE_KEYWORDS = 4 /* the value is (key=value, ...) and becomes an object */
};
enum value_step { VALUE_MORE, VALUE_DONE, VALUE_DONE_BEFORE, VALUE_FAIL }; /* DONE_BEFORE: the byte is not part of it */

enum { VALUE_WORD_MAX = 64 };
struct output_value { /* zero-initialise, then value_open; no memory of its own */
    struct str mark;       /* string_mark */
    uint64_t objects;      /* bit d: the container at depth d + 1 is an object */
    uint64_t parens;       /* ... is closed by ')' */
    uint8_t flags, state, depth, after_string;
    uint8_t quote;         /* of the open string; 'm' = the mark */
    uint8_t run;           /* bytes of the mark, or quotes of a triple one, that may close the string */
    bool triple, raw, is_key, comma;
    uint8_t hex_n, hex_want;
    char hex[8];
    uint32_t high;         /* a \uD8xx that waits for its other half */
    uint8_t word_n, gap_n;
    char word[VALUE_WORD_MAX], gap[VALUE_WORD_MAX]; /* gap: white space after a comma that may be one too many */
    char root;             /* first byte of the JSON: { [ " t f n or a digit; 0: none yet */
};
void value_open(struct output_value *v, unsigned flags, const char *mark);
enum value_step value_put(struct output_value *v, uint8_t c, struct buf *out);
bool value_finish(struct output_value *v, struct buf *out); /* the text ends here: was it one whole value? */
void value_pending(const struct output_value *v, struct buf *out); /* what is still held, as it was written: the value broke off */
void value_escape(uint8_t c, struct buf *out);              /* one byte inside a JSON string */

/* ---- types of a tool's arguments (output_schema.c) ---- */

enum { TYPE_STRING = 1, TYPE_NUMBER = 2, TYPE_BOOL = 4, TYPE_NULL = 8, TYPE_OBJECT = 16, TYPE_ARRAY = 32 };

struct output_schema; /* owns copies of names */
int schema_open(yyjson_val *tools, struct output_schema **out, struct err *err);
void schema_close(struct output_schema *s);
int64_t schema_tool(const struct output_schema *s, struct str name); /* -1: no such tool */
unsigned schema_types(const struct output_schema *s, int64_t tool, struct str key); /* 0: unknown */

/* ---- the parser ----
 *
 *     bytes -> replay -> step_unit -> marker complete: the step's action    ST_CONTENT <-> ST_REASONING, ST_HEADER (output.c, output_header.c)
 *                                  -> no marker:       the step's default   ST_SECTION -> name, arguments -> ST_AFTER -> ST_NEXT (output_call.c)
 *
 * A byte that shows that what was held is no marker, or no call, is put back (replay) and read again in the step that then holds. */

enum output_step {
    ST_CONTENT, ST_REASONING,
    ST_HEADER,     /* of a message, up to its text */
    ST_SECTION,    /* a section was opened: a call comes */
    ST_NAME, ST_ID,
    ST_ARGS,       /* NAMED: the value */
    ST_OBJECT,     /* OBJECT: all of it */
    ST_TAGS, ST_KEY, ST_VALUE_OPEN, ST_VALUE, /* TAGGED */
    ST_AFTER,      /* call_close comes */
    ST_NEXT        /* after a call of a section */
};

/* What a marker does, given its index among its kind. */
typedef void (*output_action)(struct output_parser *p, uint8_t index);
struct output_marker {
    struct str text;
    output_action act;
    uint8_t index;
    uint8_t unread; /* bytes at its end that are read again after the action */
};

enum { UNIT_SPECIAL = 0x100 }; /* a unit: a byte, and whether it is of a special token */
enum { MARKERS_MAX = 12, MATCH_SPACE_MAX = 256, MATCH_MAX = MATCH_SPACE_MAX + 96, REPLAY_MAX = MATCH_MAX + 16, KEY_MAX = 1024 };

enum object_state { OBJ_START, OBJ_FIRST, OBJ_KEY, OBJ_COLON, OBJ_VALUE, OBJ_TEXT, OBJ_ARGS, OBJ_ARGS_TEXT, OBJ_SKIP, OBJ_AFTER };
struct unescape { /* the text of a JSON string, decoded; zero-initialise */
    uint8_t state, hex_n;
    uint32_t hex, high;
};
struct output_record { /* an event; texts are places in `text` */
    enum output_kind kind;
    uint32_t call;
    size_t from, to, id, name;
    bool whole;
};

struct output_parser { /* owns all buffers */
    const struct output_format *format;
    struct output_schema *schema;
    bool calls_wanted, told_only, ending, mute;
    uint64_t id_seed;
    int failed;
    /* events of the last put */
    struct buf text;
    struct output_record *records;
    size_t record_n, record_cap, record_next;
    /* where we are */
    enum output_step step;
    bool fresh;         /* no content yet: reasoning and bare calls may begin */
    bool skip_space;    /* white space is markup until something else comes */
    bool lead_space;    /* the step's markers take white space before them along */
    uint8_t reasoning;  /* which block is open */
    struct output_marker markers[MARKERS_MAX];
    uint32_t marker_n;
    uint8_t first[256]; /* may this byte begin a marker? */
    uint16_t match[MATCH_MAX];
    size_t match_n;
    uint16_t replay[REPLAY_MAX]; /* next unit last */
    size_t replay_n;
    /* the call */
    const struct output_calls *call;
    enum output_step outer;   /* where a malformed one goes back to */
    bool begun;               /* its BEGIN was given, its END was not */
    bool moved;               /* something of it was read: a malformed unit may be read again outside */
    bool wrote_args;
    uint32_t call_n;
    int64_t tool;
    struct buf held;          /* its bytes until it begins, without special tokens; also a TAGGED value that may be JSON */
    struct buf name, id, key, header;
    struct buf chunk;         /* arguments of one byte */
    struct buf args;          /* arguments that came before the name; JSON of a TAGGED value that may be none */
    struct output_value value;
    enum { VALUE_TEXT_FIRST, VALUE_TEXT, VALUE_TRY, VALUE_STREAM } value_mode;
    unsigned value_types;
    bool value_done;          /* TRY, STREAM: the JSON is complete */
    bool line_spent;          /* the line break after value_open was there */
    char line_close[64];      /* a line break and value_close */
    enum object_state object;
    enum { OBJ_KEY_OTHER, OBJ_KEY_NAME, OBJ_KEY_ARGS, OBJ_KEY_ID } object_key;
    bool args_known, ended;   /* OBJECT: arguments complete; the call's END was given */
    struct unescape unescape;
};

/* output.c */
void output_emit(struct output_parser *p, enum output_kind kind, const char *bytes, size_t n);
void output_enter(struct output_parser *p, enum output_step step); /* sets the step's markers */
void output_marker(struct output_parser *p, const char *text, output_action act, uint8_t index, uint8_t unread);
void output_replay(struct output_parser *p, uint16_t unit);
void output_content_unit(struct output_parser *p, uint16_t unit); /* as content or reasoning, by p->step */
void output_hold(struct output_parser *p, uint16_t unit);
bool output_space(uint16_t unit);

/* output_call.c */
void call_markers_outside(struct output_parser *p, bool bare); /* those that open a call */
void call_markers(struct output_parser *p);                   /* of a step inside */
void call_unit(struct output_parser *p, uint16_t unit);       /* a unit that is no marker */
void call_args_unit(struct output_parser *p, uint16_t unit);
void call_text_ends(struct output_parser *p);
bool call_begin(struct output_parser *p); /* false: it must not begin */
void call_end(struct output_parser *p, bool whole);
void call_fail(struct output_parser *p, uint16_t unit); /* malformed at this unit, which is read again */
void call_args_put(struct output_parser *p); /* give out p->chunk */
void call_after_body(struct output_parser *p);

/* output_object.c */
void object_open(struct output_parser *p);
void object_unit(struct output_parser *p, uint16_t unit);

/* output_header.c */
void header_begin(struct output_parser *p);
void header_markers_outside(struct output_parser *p);
void header_markers(struct output_parser *p);
void header_unit(struct output_parser *p, uint16_t unit);
bool header_is_marker(struct str special);

#endif
