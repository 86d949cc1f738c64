/* chat/jinja_value.h - the values a template works on: Python's, as far as templates can see them.
 *
 * Owns:       nothing by itself: every value of a rendering lives in that rendering's arena; constants live in the template's.
 * Invariants: 1. Strings, lists and dicts are never changed once another value can see them (the sandbox forbids it anyway).
 *             2. A string knows which of its bytes came from a user (segments); every operation carries them along.
 *             3. Text is valid UTF-8 throughout; Python's character positions are counted in scalars.
 *             4. The first error of a rendering sticks in jx->rc; functions after it do nothing and return JV_NONE or NULL.
 * Does not:   parse or run templates (jinja_ast.h, jinja_int.h). */
#ifndef RH_CHAT_JINJA_VALUE_H
#define RH_CHAT_JINJA_VALUE_H

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

#include <stdbool.h>
#include <stdint.h>

struct jx; /* one rendering, jinja_int.h */

enum jtype {
    JT_MISSING, /* no value: an argument not given, a variable not set; never visible to a template */
    JT_UNDEF,
    JT_NONE,
    JT_BOOL,
    JT_INT,
    JT_FLOAT,
    JT_STR,
    JT_LIST,
    JT_TUPLE,
    JT_DICT,
    JT_RANGE,
    JT_VIEW, /* dict.keys() and relatives */
    JT_ITER, /* a generator: can be walked once, has no length */
    JT_NS,
    JT_MACRO,
    JT_METHOD, /* "x".upper without the call */
    JT_GLOBAL, /* range, dict, ... */
    JT_LOOP,
    JT_CYCLER,
    JT_JOINER,
};

struct jv {
    uint8_t type;  /* enum jtype */
    bool user;     /* numbers, lists and dicts that came whole from a user's JSON */
    bool big;      /* JT_INT: the 64 bits are unsigned and above INT64_MAX */
    uint16_t sub;  /* JT_GLOBAL: enum jglobal; JT_VIEW: enum jview */
    union {
        bool b;
        int64_t i;
        double f;
        struct jstr *s;
        struct jlist *l;
        struct jdict *d; /* JT_DICT, JT_VIEW, JT_NS */
        struct jrange *r;
        struct jgen *g;
        struct jundef *u;
        struct jmacro *m;
        struct jmethod *bound;
        struct jloop *loop;
        struct jcycle *cycle;
    };
};

#define JV_NONE ((struct jv){.type = JT_NONE})
#define JV_MISSING ((struct jv){.type = JT_MISSING})
#define JV_BOOL(x) ((struct jv){.type = JT_BOOL, .b = (x)})
#define JV_INT(x) ((struct jv){.type = JT_INT, .i = (x)})
#define JV_FLOAT(x) ((struct jv){.type = JT_FLOAT, .f = (x)})

enum jview { JVIEW_KEYS, JVIEW_VALUES, JVIEW_ITEMS };

struct jseg { /* bytes [from, to) came from a user */
    size_t from, to;
};

struct jstr {
    const char *p;
    size_t n;                /* bytes */
    size_t chars;            /* scalars; SIZE_MAX = not counted yet */
    const struct jseg *segs; /* ascending, disjoint, inside [0, n) */
    size_t seg_count;
    struct jseg one;         /* room for the usual single segment */
    struct jtail *tail;      /* storage that may be extended in place, or NULL */
    bool safe;               /* markupsafe.Markup */
};

struct jlist { /* also tuples */
    struct jv *v;
    size_t n, cap;
    bool group; /* the (grouper, list) pair of groupby */
};

struct jentry {
    struct jv key, value;
    uint64_t hash;
};

struct jdict { /* insertion order kept */
    struct jentry *e;
    size_t n, cap;
    uint32_t *index; /* open addressing over e, entry number + 1; NULL while small */
    size_t index_cap;
};

struct jrange {
    int64_t start, stop, step, n;
};

struct jgen {
    struct jlist *items;
    size_t pos;
    const char *what; /* "generator" */
};

enum jundef_kind { JU_NAME, JU_ATTR, JU_ITEM, JU_HINT, JU_UNSAFE };

struct jundef {
    enum jundef_kind kind;
    struct str name;  /* the variable, attribute or repr of the element */
    struct str owner; /* "dict object"; for JU_HINT the whole message */
};

struct jcycle { /* cycler(...) and joiner(...) */
    struct jlist *items;
    size_t pos;
};

/* strings: jinja_str.c ------------------------------------------------------------------------------------------------------- */

struct jsb { /* grows in the arena; zero-initialise with .jx set */
    struct jx *jx;
    char *p;
    size_t n, cap;
    struct jseg *segs;
    size_t seg_count, seg_cap;
};

void jsb_put(struct jsb *b, const void *p, size_t n, bool user);
void jsb_z(struct jsb *b, const char *z);
void jsb_char(struct jsb *b, uint32_t cp, bool user);
void jsb_printf(struct jsb *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void jsb_str(struct jsb *b, const struct jstr *s);
void jsb_sub(struct jsb *b, const struct jstr *s, size_t from, size_t to); /* bytes */
void jsb_fill(struct jsb *b, const struct jstr *s, size_t times);
void jsb_escape(struct jsb *b, const struct jstr *s); /* HTML */
struct jv jsb_end(struct jsb *b);

struct jv jstr_new(struct jx *jx, struct str text, bool user); /* borrows the bytes */
struct jv jstr_z(struct jx *jx, const char *z);
struct jv jstr_sub(struct jx *jx, const struct jstr *s, size_t from, size_t to); /* bytes; keeps marks and `safe` */
struct jv jstr_cat(struct jx *jx, const struct jstr *a, const struct jstr *b);
struct jv jstr_as_safe(struct jx *jx, const struct jstr *s, bool safe);
struct jv jstr_escape(struct jx *jx, const struct jstr *s); /* Markup.escape: a safe string stays as it is */
size_t jstr_chars(struct jstr *s);
size_t jstr_byte_of(struct jstr *s, size_t at);  /* byte position of character `at` <= chars */
size_t jstr_char_of(struct jstr *s, size_t byte); /* and back */
bool jstr_all_user(const struct jstr *s);

static inline struct str jstr_text(const struct jstr *s)
{
    return (struct str){s->p, s->n};
}

/* characters: jinja_chars.c -------------------------------------------------------------------------------------------------- */

bool jchar_is_space(uint32_t cp);
bool jchar_is_line_end(uint32_t cp);
bool jchar_is_printable(uint32_t cp);
bool jchar_is_alpha(uint32_t cp);
bool jchar_is_decimal(uint32_t cp);
bool jchar_is_digit(uint32_t cp);
bool jchar_is_numeric(uint32_t cp);
bool jchar_is_alnum(uint32_t cp);
bool jchar_is_upper(uint32_t cp);
bool jchar_is_lower(uint32_t cp);
bool jchar_is_title(uint32_t cp);
enum jcase { JCASE_UPPER, JCASE_LOWER, JCASE_TITLE };
size_t jchar_case(uint32_t cp, enum jcase how, uint32_t out[3]); /* how many scalars, 1..3 */
struct jv jstr_case(struct jx *jx, const struct jstr *s, enum jcase how); /* the whole string; sigma's final form included */
void jsb_case(struct jsb *b, const struct jstr *s, size_t from, size_t to, enum jcase how);
struct str jstr_strip(struct str s, bool left, bool right); /* white space as Python sees it */

/* lists, dicts, everything: jinja_value.c ------------------------------------------------------------------------------------ */

void *jx_alloc(struct jx *jx, size_t count, size_t size_bytes);

struct jlist *jlist_new(struct jx *jx, size_t cap);
void jlist_push(struct jx *jx, struct jlist *l, struct jv v);
struct jv jlist_value(struct jlist *l, enum jtype type);
struct jv jtuple_pair(struct jx *jx, struct jv a, struct jv b);
struct jv jgen_new(struct jx *jx, struct jlist *items, const char *what);

struct jdict *jdict_new(struct jx *jx, size_t cap);
void jdict_set(struct jx *jx, struct jdict *d, struct jv key, struct jv value);
struct jentry *jdict_find(struct jx *jx, const struct jdict *d, struct jv key); /* NULL: absent (or error: unhashable) */
struct jentry *jdict_find_str(struct jx *jx, const struct jdict *d, struct str key);
bool jv_hash(struct jx *jx, struct jv v, uint64_t *out); /* false: unhashable, no error set */

const char *jv_type_name(struct jv v);              /* Python's: "str", "NoneType" */
bool jv_truth(struct jx *jx, struct jv v);
bool jv_equal(struct jx *jx, struct jv a, struct jv b);
int jv_compare(struct jx *jx, struct jv a, struct jv b, const char *op); /* -1, 0, 1; TypeError names op; 2: unordered (nan) */
bool jv_contains(struct jx *jx, struct jv box, struct jv what);
int64_t jv_len(struct jx *jx, struct jv v);         /* TypeError when it has none */
bool jv_len_known(struct jv v, int64_t *out, struct jx *jx);
bool jv_index_int(struct jv v, int64_t *out);       /* ints and bools */
bool jv_number(struct jv v, double *out);           /* ints, bools, floats */

struct jiter { /* a walk over any iterable */
    struct jx *jx;
    struct jv src;
    size_t pos; /* item, or byte of a string */
};

bool jv_iter(struct jx *jx, struct jv v, struct jiter *it); /* TypeError when it cannot be walked */
bool jiter_next(struct jiter *it, struct jv *out);
struct jlist *jv_list(struct jx *jx, struct jv v);           /* a fresh list of its items; NULL on error */
struct jv jrange_item(const struct jrange *r, int64_t at);
struct jv jview_item(struct jx *jx, const struct jdict *d, enum jview kind, size_t at);

/* text of values: jinja_text.c ----------------------------------------------------------------------------------------------- */

struct jv jv_str(struct jx *jx, struct jv v);       /* str(v): a plain string (safe is dropped) */
struct jv jv_soft_str(struct jx *jx, struct jv v);  /* str(v) unless it is a string already */
void jsb_value(struct jsb *b, struct jv v);         /* str(v) */
void jsb_repr(struct jsb *b, struct jv v, unsigned depth);
void jsb_float(struct jsb *b, double f, bool user); /* repr of a float */
struct str jv_repr_short(struct jx *jx, struct jv v); /* for messages */

/* JSON: jinja_json.c --------------------------------------------------------------------------------------------------------- */

struct jjson_opts {
    bool ascii, sort;
    bool indented;
    struct jstr *indent; /* text of one level */
    struct jstr *item_sep, *key_sep;
};

void jsb_json(struct jsb *b, struct jv v, const struct jjson_opts *o, unsigned depth, bool user);

/* undefined: jinja_value.c */
struct jv jundef_name(struct jx *jx, struct str name);
struct jv jundef_attr(struct jx *jx, struct jv owner, struct str name);
struct jv jundef_item(struct jx *jx, struct jv owner, struct jv item);
struct jv jundef_hint(struct jx *jx, const char *hint);
struct jv jundef_unsafe(struct jx *jx, struct jv owner, struct str name);
struct jv jundef_raise(struct jx *jx, struct jv u); /* always an error */

#endif
