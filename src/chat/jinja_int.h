/* chat/jinja_int.h - one rendering: its state, scopes and the functions that evaluate.
 *
 * Owns:       the rendering's arena; everything reached from struct jx dies with it.
 * Thread:     a rendering belongs to the thread that runs it; the template behind it is shared and read-only.
 * Invariants: 1. jx->rc != 0 means jx->err is filled and every function returns at once.
 *             2. steps, depth, text and memory are bounded, so no template and no message can hold the thread for ever.
 * Does not:   know JSON input or boundaries (template.c). */
#ifndef RH_CHAT_JINJA_INT_H
#define RH_CHAT_JINJA_INT_H

#include "chat/jinja_ast.h"

#include <stdarg.h>

enum { JX_DEPTH_MAX = 1200, JX_MACRO_MAX = 100, JX_RANGE_MAX = 100000, JX_VALUE_DEPTH_MAX = 200 };

struct jslot {
    uint32_t id;
    struct jv value; /* JT_MISSING: shadows outer ones, reads as undefined */
};

struct jscope {
    struct jscope *parent; /* the frame it was defined in */
    struct jslot *slots;
    size_t n, cap;
};

struct jx {
    const struct jtemplate *t;
    struct arena *mem;
    struct err *err;
    int rc;
    uint32_t line; /* of the node being evaluated */
    uint64_t steps, steps_max;
    unsigned depth, macros;
    size_t text_max;
    uint64_t hash_key[2];
    int64_t now_s;
    struct jscope *root;
    struct jsb *out; /* where output goes now: the text, or a capture */
};

struct jmacro {
    const struct jnode *node;
    struct jscope *scope; /* where it was defined */
    bool is_caller;
};

struct jloop {
    struct jx *jx;
    struct jiter source;
    const struct jnode *node;  /* JN_FOR: target and filter */
    struct jscope *test_scope; /* of the filter */
    struct jlist *rest;        /* all that follows, once loop.length was asked of a source without one */
    size_t rest_at;
    int64_t length;            /* -1: not known yet */
    int64_t index0;
    struct jv after, current, before, changed;
    unsigned depth0;
};

struct jmethod {
    struct jv self;
    const struct jmethod_row *row;
};

struct jkwv {
    struct str key;
    struct jv value;
};

struct jargs {
    struct jv *v;
    size_t n;
    struct jkwv *kw;
    size_t kw_count;
};

enum { JARGS_MAX = 8 };

/* A function with named parameters: "a|b|c", the first `min` required; NULL: it gets the raw arguments. */
typedef struct jv (*jfunc)(struct jx *jx, struct jv self, struct jv *a);
typedef struct jv (*jfunc_raw)(struct jx *jx, struct jv self, const struct jargs *args);

struct jfunc_row {
    const char *name;
    jfunc fn;
    jfunc_raw raw;
    const char *params; /* "/" in front: by position only */
    int min;
    const char *refused; /* why it is not supported, or NULL */
};

struct jmethod_row {
    enum jtype type;
    struct jfunc_row f;
};

enum jglobal { JG_RANGE, JG_DICT, JG_NAMESPACE, JG_RAISE, JG_STRFTIME, JG_CYCLER, JG_JOINER, JG_LIPSUM, JG_COUNT };

/* errors, work accounting: jinja_eval.c */
int jx_fail(struct jx *jx, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
bool jx_step(struct jx *jx, uint64_t n); /* false: the budget is used up */

/* scopes: jinja_exec.c */
struct jscope *jscope_new(struct jx *jx, struct jscope *parent, const struct jnames *missing);
void jscope_set(struct jx *jx, struct jscope *s, uint32_t id, struct jv v);
struct jv jscope_get(struct jx *jx, const struct jscope *s, uint32_t id, struct str name);

/* statements: jinja_exec.c */
enum jflow { JFLOW_NEXT, JFLOW_BREAK, JFLOW_CONTINUE };
enum jflow jexec_body(struct jx *jx, struct jscope *s, const struct jnodes *body);
struct jv jexec_capture(struct jx *jx, struct jscope *s, const struct jnodes *body);
void jexec_assign(struct jx *jx, struct jscope *s, const struct jnode *target, struct jv v);
bool jloop_next(struct jloop *l, struct jv *out); /* jinja_loop.c */
struct jv jloop_attr(struct jx *jx, struct jloop *l, struct str name);
enum jflow jexec_for(struct jx *jx, struct jscope *s, const struct jnode *n); /* jinja_loop.c */

/* expressions: jinja_eval.c */
struct jv jeval(struct jx *jx, struct jscope *s, const struct jnode *n);
bool jeval_args(struct jx *jx, struct jscope *s, const struct jcall *c, struct jargs *out, struct jv caller);
struct jv jeval_filter(struct jx *jx, struct jscope *s, const struct jnode *n, struct jv self);

/* operators: jinja_op.c */
struct jv jop_binary(struct jx *jx, enum jtok op, struct jv a, struct jv b);
struct jv jop_unary(struct jx *jx, bool negate, struct jv v);
bool jop_compare(struct jx *jx, enum jcmp op, struct jv a, struct jv b);
struct jv jop_concat(struct jx *jx, struct jv a, struct jv b); /* + of two strings, Markup rules */

/* attributes and items: jinja_attr.c */
struct jv jattr_get(struct jx *jx, struct jv v, struct str name); /* v.name */
struct jv jattr_item(struct jx *jx, struct jv v, struct jv key);  /* v[key] */
struct jv jattr_slice(struct jx *jx, struct jv v, struct jv from, struct jv to, struct jv step);
struct jv jattr_only(struct jx *jx, struct jv v, struct str name); /* JT_MISSING when there is no such attribute */
struct jv jattr_path(struct jx *jx, struct jv v, struct jv path, struct jv fallback); /* "a.b.0" of make_attrgetter */

/* calls: jinja_call.c */
struct jv jcall_value(struct jx *jx, struct jv f, const struct jargs *args);
struct jv jcall_row(struct jx *jx, const struct jfunc_row *row, struct jv self, const struct jargs *args);
struct jv jcall_macro(struct jx *jx, struct jmacro *m, const struct jargs *args);
struct jv jglobal_find(struct jx *jx, struct str name); /* JT_MISSING: no such global */

/* tables: jinja_filter*.c, jinja_test.c, jinja_method*.c */
int jfilter_find(struct str name); /* -1: unknown */
int jtest_find(struct str name);
struct jv jfilter_call(struct jx *jx, int entry, struct jv self, const struct jargs *args);
bool jtest_call(struct jx *jx, int entry, struct jv self, const struct jargs *args);
const struct jmethod_row *jmethod_find(enum jtype type, struct str name);
bool jmethod_forbidden(enum jtype type, struct str name); /* changes a list or dict: the sandbox hides it */

/* sorting: jinja_sort.c; keys and items run in parallel, stable */
void jsort(struct jx *jx, struct jlist *items, struct jlist *keys, bool reverse);

/* formatting: jinja_percent.c ("%s" % x) and jinja_format.c ("{}".format(x)) */
struct jv jformat_percent(struct jx *jx, struct jstr *fmt, struct jv args);
struct jv jformat_braces(struct jx *jx, struct jstr *fmt, const struct jargs *args);

struct jspec { /* a format specification, of either kind */
    uint32_t fill;
    char align;   /* < > = ^, 0 = the type's own */
    char sign;    /* + - space */
    bool alt, zero;
    char group;   /* , or _ */
    int64_t width, prec; /* -1: not given */
    char type;    /* d, f, s ...; 0 = none */
};

bool jspec_number(struct jsb *b, struct jv v, const struct jspec *s); /* false: v is no number; errors stick */
void jspec_pad(struct jsb *b, const struct jstr *text, size_t sign_len, const struct jspec *s, char align);

/* arguments: jinja_arg.c; each fails by itself */
bool jarg_int(struct jx *jx, struct jv v, int64_t *out);
bool jarg_str(struct jx *jx, struct jv v, struct jstr **out);
int64_t jarg_int_or(struct jx *jx, struct jv v, int64_t fallback);

static inline bool jv_is(struct jv v, enum jtype type)
{
    return v.type == type;
}

static inline bool jv_given(struct jv v)
{
    return v.type != JT_MISSING;
}

#endif
