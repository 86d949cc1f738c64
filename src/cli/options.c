/* cli/options.c - see options.h.  getopt_long does the scanning; values are checked here by the table's types and bounds. */
#include "cli/options.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/str.h"
#include "cli/verbs.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>

#define OPTION_LIST_LIST OPTION_LIST_T
#define OPTION_TYPE_FLAG OPTION_FLAG
#define OPTION_TYPE_U32 OPTION_U32
#define OPTION_TYPE_I64 OPTION_I64
#define OPTION_TYPE_U64 OPTION_U64
#define OPTION_TYPE_F32 OPTION_F32
#define OPTION_TYPE_SIZE OPTION_SIZE
#define OPTION_TYPE_STR OPTION_STR
#define OPTION_TYPE_LIST OPTION_LIST_T

const struct option_row option_rows[OPT_COUNT] = {
#define OPTION_ROW(id, type, field, name, letter, aliases, group, min, max, value, help) \
    {name, letter, aliases, OPTION_TYPE_##type, group, min, max, value, help, offsetof(struct options, field)},
    OPTION_LIST(OPTION_ROW)
#undef OPTION_ROW
};

enum { LONG_MAX_COUNT = 3 * OPT_COUNT + 1, CONFIG_BYTES_MAX = 1 << 20 };

static int bad_value(const struct option_row *row, const char *where, const char *text, const char *expected, struct err *err)
{
    return err_set(err, ERR_ARGUMENT, "%s%s: expected %s, got '%.200s'", where, row->name, expected, text);
}

static int put_number(void *field, const struct option_row *row, const char *where, const char *text, struct err *err)
{
    char expected[96];
    struct str s = str_of(text);
    double v = 0;
    int64_t i = 0;
    uint64_t u = 0;
    bool ok;
    if (row->type == OPTION_F32) {
        snprintf(expected, sizeof expected, "a number from %g to %g", row->min, row->max);
        ok = str_to_f64(s, &v);
    } else if (row->type == OPTION_U64) {
        snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", row->min, row->max);
        ok = str_to_u64(s, &u);
        v = (double)u;
    } else {
        snprintf(expected, sizeof expected, "a whole number from %.0f to %.0f", row->min, row->max);
        ok = str_to_i64(s, &i);
        v = (double)i;
    }
    if (row == &option_rows[OPT_MAX_TOKENS] && ok && i == 0) /* the library's sign for its default */
        return bad_value(row, where, text, "at least 1, or -1 for as far as it goes", err);
    if (!ok || v < row->min || v > row->max)
        return bad_value(row, where, text, expected, err);
    if (row->type == OPTION_F32)
        *(float *)field = (float)v;
    else if (row->type == OPTION_U64)
        *(uint64_t *)field = u;
    else if (row->type == OPTION_I64)
        *(int64_t *)field = i;
    else
        *(uint32_t *)field = (uint32_t)i;
    return 0;
}

static int put_size(uint64_t *field, const struct option_row *row, const char *where, const char *text, struct err *err)
{
    struct str s = str_of(text);
    uint64_t unit = 1, n;
    if (s.n) {
        char c = (char)(s.p[s.n - 1] | 32);
        unit = c == 'k' ? 1ull << 10 : c == 'm' ? 1ull << 20 : c == 'g' ? 1ull << 30 : c == 't' ? 1ull << 40 : 1;
        s.n -= unit > 1;
    }
    if (!str_to_u64(s, &n) || n == 0 || __builtin_mul_overflow(n, unit, &n) || (double)n > row->max)
        return bad_value(row, where, text, "a size such as 512M or 4G", err);
    *field = n;
    return 0;
}

static void put_list(struct option_list *list, const char *text)
{
    if (list->n == list->cap) {
        size_t cap = list->cap ? 2 * list->cap : 8;
        const char **items = mem_alloc(cap * sizeof *items);
        if (list->n)
            memcpy(items, list->items, list->n * sizeof *items);
        mem_free(list->items);
        list->items = items;
        list->cap = cap;
    }
    list->items[list->n++] = text;
}

static int put(struct options *o, size_t at, const char *where, const char *text, struct err *err)
{
    const struct option_row *row = &option_rows[at];
    void *field = (char *)o + row->offset;
    o->given[at] = true;
    switch (row->type) {
    case OPTION_FLAG: {
        bool yes = !text || str_is(str_of(text), "true") || str_is(str_of(text), "yes") || str_is(str_of(text), "1");
        if (!yes && !str_is(str_of(text), "false") && !str_is(str_of(text), "no") && !str_is(str_of(text), "0"))
            return bad_value(row, where, text, "true or false", err);
        *(bool *)field = yes;
        return 0;
    }
    case OPTION_STR:
        *(const char **)field = text;
        return 0;
    case OPTION_LIST_T:
        put_list(field, text);
        return 0;
    case OPTION_SIZE:
        return put_size(field, row, where, text, err);
    default:
        return put_number(field, row, where, text, err);
    }
}

/* The getopt_long table of one verb: a long option's val is its row, short letters are looked up. */
static size_t long_table(const struct verb *verb, struct option *table, char *names, size_t names_cap, char *letters)
{
    size_t n = 0, used = 0;
    *letters++ = ':';
    for (int i = 0; i < OPT_COUNT; i++) {
        const struct option_row *row = &option_rows[i];
        if (!option_taken(row, verb->groups))
            continue;
        int has = row->type == OPTION_FLAG ? no_argument : required_argument;
        table[n++] = (struct option){row->name, has, NULL, 1000 + i};
        struct str rest = str_of(row->aliases), alias;
        while (rest.n && str_split(&rest, ' ', &alias) && used + alias.n + 1 < names_cap) {
            memcpy(names + used, alias.p, alias.n);
            names[used + alias.n] = 0;
            table[n++] = (struct option){names + used, has, NULL, 1000 + i};
            used += alias.n + 1;
        }
        if (row->letter) {
            *letters++ = row->letter;
            if (has)
                *letters++ = ':';
        }
    }
    table[n] = (struct option){0};
    *letters = 0;
    return n;
}

static int row_of_letter(const struct verb *verb, int letter)
{
    for (int i = 0; i < OPT_COUNT; i++)
        if (option_rows[i].letter == letter && option_taken(&option_rows[i], verb->groups))
            return i;
    return -1;
}

/* The name of an option of `groups` that is nearest; NULL: none is near. */
static const char *nearest(struct near *near, unsigned groups, struct str wrong)
{
    near_begin(near, wrong);
    for (int i = 0; i < OPT_COUNT; i++) {
        struct str rest = str_of(option_rows[i].aliases), alias;
        if (!(option_rows[i].group & groups))
            continue;
        near_try(near, str_of(option_rows[i].name));
        while (rest.n && str_split(&rest, ' ', &alias))
            near_try(near, alias);
    }
    return near_best(near);
}

static int row_of_name(struct str name);

/* An option this verb does not take: the verb that does, or the name it may have been meant for. */
static int unknown_option(const struct verb *verb, const char *shown, struct err *err)
{
    struct near near;
    struct str name = str_of(shown + strspn(shown, "-"));
    const char *eq = memchr(name.p, '=', name.n);
    if (eq)
        name.n = (size_t)(eq - name.p);
    int at = row_of_name(name);
    for (const struct verb *v = cli_verbs; at >= 0 && v->name; v++)
        if (option_taken(&option_rows[at], v->groups))
            return err_set(err, ERR_ARGUMENT, "'--%.*s' is no option of %s; %s has it", STR_ARG(name), verb->name, v->name);
    const char *best = nearest(&near, verb->groups | G_ALL, name);
    return err_set(err, ERR_ARGUMENT, "unknown option '%.200s'%s%s%s", shown, best ? "; did you mean '--" : "; see: rhapsode help ",
                   best ? best : verb->name, best ? "'?" : "");
}

int options_parse(struct options *o, const struct verb *verb, int argc, char **argv, struct err *err)
{
    struct option table[LONG_MAX_COUNT];
    char names[2048], letters[3 * OPT_COUNT + 2];
    int c;
    long_table(verb, table, names, sizeof names, letters);
    opterr = 0;
    optind = 1;
    while ((c = getopt_long(argc, argv, letters, table, NULL)) != -1) {
        const char *shown = argv[optind - 1];
        if (c == ':')
            return err_set(err, ERR_ARGUMENT, "option '%.200s' needs a value", shown);
        if (c == '?' && optopt >= 1000)
            return err_set(err, ERR_ARGUMENT, "option '%.200s' takes no value", shown);
        if (c == '?' && optopt)
            return err_set(err, ERR_ARGUMENT, "unknown option '-%c'; see: rhapsode help %s", optopt, verb->name);
        if (c == '?')
            return unknown_option(verb, shown, err);
        int at = c >= 1000 ? c - 1000 : row_of_letter(verb, c);
        if (at < 0 || put(o, (size_t)at, "--", optarg, err))
            return err ? err->code : ERR_ARGUMENT;
    }
    o->args = (const char **)(void *)(argv + optind);
    o->arg_count = (size_t)(argc - optind);
    if (!o->help && o->arg_count > verb->args_max)
        return err_set(err, ERR_ARGUMENT, "unexpected argument '%.200s'; usage: rhapsode %s %s", o->args[verb->args_max], verb->name, verb->args);
    if (!o->help && o->arg_count < verb->args_min)
        return err_set(err, ERR_ARGUMENT, "missing argument; usage: rhapsode %s %s", verb->name, verb->args);
    return 0;
}

/* ---- configuration file ---- */

static int row_of_name(struct str name)
{
    for (int i = 0; i < OPT_COUNT; i++) {
        struct str rest = str_of(option_rows[i].aliases), alias;
        if (str_is(name, option_rows[i].name))
            return i;
        while (rest.n && str_split(&rest, ' ', &alias))
            if (str_eq(name, alias))
                return i;
    }
    return -1;
}

static int unknown_key(const char *where, struct str key, struct err *err)
{
    struct near near;
    const char *best = nearest(&near, G_CONFIG, key);
    return err_set(err, ERR_ARGUMENT, "%sunknown key '%.*s'%s%s%s", where, STR_ARG(key), best ? "; did you mean '" : "", best ? best : "",
                   best ? "'?" : "");
}

static int config_line(struct options *o, const struct verb *verb, const char *where, struct str line, struct err *err)
{
    struct str key, rest = line;
    line = str_trim(line);
    if (line.n == 0 || line.p[0] == '#')
        return 0;
    rest = line;
    str_split(&rest, '=', &key);
    if (!rest.p)
        return err_set(err, ERR_ARGUMENT, "%sexpected 'key = value', got '%.*s'", where, STR_ARG(line));
    key = str_trim(key);
    rest = str_trim(rest);
    int at = row_of_name(key);
    if (at < 0 || !(option_rows[at].group & G_CONFIG) || at == OPT_HELP || at == OPT_CONFIG)
        return unknown_key(where, key, err);
    if (!option_taken(&option_rows[at], verb->groups) || (o->given[at] && option_rows[at].type != OPTION_LIST_T))
        return 0; /* of another verb, or the command line said it */
    return put(o, (size_t)at, where, options_keep(o, rest), err);
}

int options_config(struct options *o, const struct verb *verb, const char *path, bool must_exist, struct err *err)
{
    struct buf b = {0};
    int rc = 0;
    if (!must_exist && !file_exists(path))
        return 0;
    rc = file_read(&b, path, CONFIG_BYTES_MAX, err);
    struct str rest = buf_view(&b), line;
    for (int n = 1; rc == 0 && rest.p && str_split(&rest, '\n', &line); n++) {
        char where[4200];
        snprintf(where, sizeof where, "%s:%d: ", path, n);
        rc = config_line(o, verb, where, line, err);
    }
    buf_free(&b);
    return rc;
}

static int unknown_parameter(unsigned groups, const char *name, struct err *err)
{
    struct near near;
    const char *best = nearest(&near, groups, str_of(name));
    return err_set(err, ERR_ARGUMENT, "unknown parameter '%.100s'%s%s%s", name, best ? "; did you mean '" : "", best ? best : "", best ? "'?" : "");
}

int options_assign(struct options *o, unsigned groups, const char *name, const char *value, struct err *err)
{
    int at = row_of_name(str_of(name));
    if (at < 0 || !(option_rows[at].group & groups))
        return unknown_parameter(groups, name, err);
    return put(o, (size_t)at, "", value, err);
}

char *options_keep(struct options *o, struct str text)
{
    char *copy = mem_alloc(text.n + 1);
    if (text.n)
        memcpy(copy, text.p, text.n);
    copy[text.n] = 0;
    put_list(&o->kept, copy);
    return copy;
}

void options_free(struct options *o)
{
    for (size_t i = 0; i < o->kept.n; i++)
        mem_free((char *)(uintptr_t)o->kept.items[i]);
    mem_free(o->kept.items);
    for (int i = 0; i < OPT_COUNT; i++)
        if (option_rows[i].type == OPTION_LIST_T)
            mem_free(((struct option_list *)(void *)((char *)o + option_rows[i].offset))->items);
}

/* ---- values with a shape of their own ---- */

static bool is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* An id, and what separates it from the next one: white space, or a comma with or without. */
static bool take_id(struct str *rest, uint32_t *out)
{
    size_t end = 0;
    uint64_t id = 0;
    while (end < rest->n && rest->p[end] != ',' && !is_blank(rest->p[end]))
        end++;
    bool ok = str_to_u64(str_n(rest->p, end), &id) && id <= UINT32_MAX;
    *rest = str_trim(str_from(*rest, end));
    bool comma = rest->n && rest->p[0] == ',';
    if (comma)
        *rest = str_trim(str_from(*rest, 1));
    *out = (uint32_t)id;
    return ok && !(comma && !rest->n);
}

int options_ids(const char *where, struct str text, uint32_t **ids, size_t *n, struct err *err)
{
    struct str rest = str_trim(text);
    bool brackets = rest.n >= 2 && rest.p[0] == '[' && rest.p[rest.n - 1] == ']';
    if (brackets)
        rest = str_trim(str_n(rest.p + 1, rest.n - 2));
    uint32_t *list = mem_alloc((rest.n / 2 + 1) * sizeof *list);
    *n = 0;
    while (rest.n || (!brackets && *n == 0)) {
        struct str at = rest;
        if (!take_id(&rest, &list[(*n)++])) {
            mem_free(list);
            return err_set(err, ERR_ARGUMENT, "%sexpected token ids such as 1,2,3, got '%.*s'", where, (int)(at.n < 60 ? at.n : 60), at.n ? at.p : "");
        }
    }
    *ids = list;
    return 0;
}
