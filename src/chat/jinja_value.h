/* chat/jinja_value.h - the values a template works on: Python's, as far as templates can see them.
 *
 * Owns:       nothing by itself: every value of a rendering lives in that rendering's arena; constants live in the template's.
 * Invariants: 1. Strings, lists and dicts are never changed once another value can see them (the sandbox forbids it anyway).
 *             2. The first error of a rendering sticks in jx->rc; functions after it do nothing and return JV_NONE or NULL.
 * Does not:   parse or run templates (jinja_ast.h, jinja_int.h). */
#ifndef RH_CHAT_JINJA_VALUE_H
#define RH_CHAT_JINJA_VALUE_H

#include "base/arena.h"
#include "base/err.h"
#include "chat/jinja_str.h"

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
