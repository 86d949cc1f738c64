/* chat/jinja_ast.h - tokens and the tree of a parsed template.
 *
 * Owns:       tokens live in a scratch arena of the parse; nodes in the template's arena, immutable after parsing.
 * Invariants: 1. No path through the tree is longer than JNODE_DEPTH_MAX, so walking it recursively is safe.
 *             2. Names of variables are numbered (`id`), the same text always the same number.
 * Does not:   hold anything of a rendering. */
#ifndef RH_CHAT_JINJA_AST_H
#define RH_CHAT_JINJA_AST_H

#include "chat/jinja_value.h"

enum { JNODE_DEPTH_MAX = 256 };

enum jtok {
    JTOK_EOF,
    JTOK_DATA,
    JTOK_VAR_BEGIN,
    JTOK_VAR_END,
    JTOK_BLOCK_BEGIN,
    JTOK_BLOCK_END,
    JTOK_NAME,
    JTOK_STRING,
    JTOK_INT,
    JTOK_FLOAT,
    JTOK_ADD,
    JTOK_SUB,
    JTOK_DIV,
    JTOK_FLOORDIV,
    JTOK_MUL,
    JTOK_MOD,
    JTOK_POW,
    JTOK_TILDE,
    JTOK_LBRACKET,
    JTOK_RBRACKET,
    JTOK_LPAREN,
    JTOK_RPAREN,
    JTOK_LBRACE,
    JTOK_RBRACE,
    JTOK_EQ,
    JTOK_NE,
    JTOK_GT,
    JTOK_GE,
    JTOK_LT,
    JTOK_LE,
    JTOK_ASSIGN,
    JTOK_DOT,
    JTOK_COLON,
    JTOK_PIPE,
    JTOK_COMMA,
    JTOK_SEMICOLON,
};

struct jtoken {
    enum jtok type;
    uint32_t line;
    struct str text; /* DATA: the text; NAME; STRING: already unescaped; operators: themselves */
    int64_t i;       /* INT */
    bool big;        /* INT above INT64_MAX, unsigned bits in i */
    double f;        /* FLOAT */
};

struct jtokens {
    struct jtoken *v;
    size_t n, cap;
};

enum jkind {
    /* statements */
    JN_OUTPUT, JN_DATA, JN_IF, JN_FOR, JN_SET, JN_SET_BLOCK, JN_MACRO, JN_CALL_BLOCK, JN_FILTER_BLOCK, JN_WITH, JN_GENERATION,
    JN_BREAK, JN_CONTINUE, JN_BLOCK, JN_SCOPE,
    /* expressions */
    JN_CONST, JN_NAME, JN_NSREF, JN_TUPLE, JN_LIST, JN_DICT, JN_COND, JN_OR, JN_AND, JN_NOT, JN_COMPARE, JN_BINARY, JN_CONCAT,
    JN_NEG, JN_POS, JN_ATTR, JN_ITEM, JN_SLICE, JN_CALL, JN_FILTER, JN_TEST,
};

struct jnodes {
    struct jnode **v;
    size_t n, cap;
};

struct jkeyword {
    struct str key;
    struct jnode *value;
};

struct jcall { /* the arguments of a call, filter or test */
    struct jnodes pos;
    struct jkeyword *kw;
    size_t kw_count, kw_cap;
    struct jnode *star, *star_star;
};

struct jnames { /* variables of a frame that start as missing, see jinja_scope.c */
    uint32_t *id;
    size_t n, cap;
};

struct jmacro_sig { /* macros and call blocks */
    struct jnode **params;   /* JN_NAME */
    struct jnode **defaults; /* NULL: none */
    size_t count;
    bool uses_caller, uses_kwargs, uses_varargs; /* named in the body though not declared */
};

struct jnode {
    enum jkind kind;
    uint32_t line;
    uint16_t depth;         /* longest path below, this node included */
    uint8_t op;             /* JN_BINARY: enum jtok */
    bool flag;              /* JN_BLOCK: scoped; JN_CONCAT: complete, a further ~ makes a new node */
    uint32_t id;            /* JN_NAME, JN_NSREF, JN_MACRO: number of the name */
    struct str name;        /* variable, attribute, filter, test, macro */
    int16_t entry;          /* JN_FILTER, JN_TEST: row of the table, -1 = unknown (raises when reached) */
    struct jnode *a, *b, *c;
    struct jnodes list;     /* items; body */
    struct jnodes other;    /* else; dict values; with-values */
    uint8_t *ops;           /* JN_COMPARE: one enum jcmp per item of list */
    struct jcall *call;
    struct jmacro_sig *sig;
    struct jnames missing;  /* of the frame this statement opens */
    struct jnames missing2; /* JN_FOR: of the else branch */
    struct jv value;        /* JN_CONST, JN_DATA */
};

enum jcmp { JCMP_EQ, JCMP_NE, JCMP_LT, JCMP_LE, JCMP_GT, JCMP_GE, JCMP_IN, JCMP_NOT_IN };

struct jintern { /* numbers of names */
    struct str *names;
    size_t n, cap;
    uint32_t *index;
    size_t index_cap;
};

struct jtemplate {
    struct arena mem;
    struct jintern names;
    struct jnodes body;
    struct jnames missing;
};

/* what the parser knows while it runs */
struct jparse {
    struct jtemplate *t;
    struct arena *mem;
    struct arena scratch;
    struct jtokens tokens;
    size_t at;
    unsigned nest, loops; /* open expressions and statements; loops around */
    struct err *err;
    int rc;
};

int jlex(struct jparse *p, struct str source);                        /* jinja_lex.c */
int jparse_template(struct jtemplate *t, struct str source, struct err *err); /* jinja_parse.c */
int jscope_analyze(struct jparse *p);                                 /* jinja_scope.c: fills `missing` and macro uses */

/* shared by the parser's files */
int jparse_fail(struct jparse *p, uint32_t line, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void *jparse_alloc(struct jparse *p, size_t count, size_t size_bytes);
struct jnode *jnode_new(struct jparse *p, enum jkind kind, uint32_t line);
void jnodes_push(struct jparse *p, struct jnodes *l, struct jnode *n);
void jnode_adopt(struct jparse *p, struct jnode *n, const struct jnode *child); /* keeps depth true */
uint32_t jintern_id(struct jparse *p, struct str name);
uint32_t jintern_find(const struct jintern *t, struct str name);      /* UINT32_MAX: not in the template */
const struct jtoken *jparse_now(const struct jparse *p);
const struct jtoken *jparse_look(const struct jparse *p);             /* the token after it */
const struct jtoken *jparse_next(struct jparse *p);                   /* returns the current one and goes on */
bool jparse_skip(struct jparse *p, enum jtok type);
bool jparse_skip_name(struct jparse *p, const char *name);
bool jparse_is_name(const struct jparse *p, const char *name);
const struct jtoken *jparse_expect(struct jparse *p, enum jtok type);
bool jparse_enter(struct jparse *p); /* false: nested too deep */
void jparse_leave(struct jparse *p);

/* jinja_expr.c */
struct jnode *jparse_expression(struct jparse *p, bool with_cond);
struct jnode *jparse_tuple(struct jparse *p, bool with_cond, const char *end_name, bool parens);
struct jnode *jparse_target(struct jparse *p, const char *end_name, bool with_ns);
struct jnode *jparse_target_name(struct jparse *p);
struct jnode *jparse_filters(struct jparse *p, struct jnode *node, bool start_inline);

#endif
