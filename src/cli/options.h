/* cli/options.h - command line and configuration file -> one struct, by one table.
 *
 * Owns:       the values' memory (strings point into argv or into texts kept with the options).
 * Invariants: 1. Every value was checked for type and range before a verb sees it.
 *             2. The command line wins over the configuration file.
 *             3. A mistake is one line on standard error and exit status 2; nothing has been done by then.
 * To add an option: one line in options_list.h.  To add a verb: one line in verbs.h and a function.
 * Does not:   know the engine. */
#ifndef RH_CLI_OPTIONS_H
#define RH_CLI_OPTIONS_H

#include "base/err.h"
#include "base/str.h"
#include "cli/options_list.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum option_group { /* which verbs take an option; CONFIG groups may stand in the configuration file */
    G_ALL = 1 << 0, G_HOST = 1 << 1, G_MODEL = 1 << 2, G_INPUT = 1 << 3, G_REQUEST = 1 << 4, G_SAMPLE = 1 << 5, G_JSON = 1 << 6,
    G_IDS = 1 << 7, G_SCORE = 1 << 8, G_TOKENIZE = 1 << 9, G_RENDER = 1 << 10, G_TOOLS = 1 << 11, G_BENCH = 1 << 12, G_RUN = 1 << 13,
    G_PULL = 1 << 14, G_STORE = 1 << 15, G_KVCHECK = 1 << 16, G_SERVE = 1 << 17, G_LS = 1 << 18,
    G_GPU = 1 << 29, G_MORE = 1 << 30, /* no groups: shown by builds for GPUs only; not in the short help */
    G_CONFIG = G_ALL | G_HOST | G_MODEL | G_REQUEST | G_SAMPLE | G_RUN | G_PULL | G_SERVE
};

enum option_type { OPTION_FLAG, OPTION_U32, OPTION_I64, OPTION_U64, OPTION_F32, OPTION_SIZE, OPTION_STR, OPTION_LIST_T };

/* a repeatable option: zero-terminated texts, in order */
struct option_list {
    const char **items;
    size_t n, cap;
};

typedef bool option_c_FLAG;
typedef uint32_t option_c_U32;
typedef int64_t option_c_I64;
typedef uint64_t option_c_U64, option_c_SIZE;
typedef float option_c_F32;
typedef const char *option_c_STR;
typedef struct option_list option_c_LIST;

enum option_id {
#define OPTION_ID(id, ...) OPT_##id,
    OPTION_LIST(OPTION_ID)
#undef OPTION_ID
    OPT_COUNT
};

/* What a verb gets.  A value that was not given is zero: ask `given`. */
struct options {
#define OPTION_FIELD(id, type, field, ...) option_c_##type field;
    OPTION_LIST(OPTION_FIELD)
#undef OPTION_FIELD
    bool given[OPT_COUNT];
    struct option_list kept; /* texts that values point into, besides argv: owned */
    const char **args; /* positional arguments after the verb */
    size_t arg_count;
    char store_dir[4096]; /* --store, $RHAPSODE_HOME or ~/.local/share/rhapsode */
};

struct option_row {
    const char *name;
    char letter;
    const char *aliases; /* separated by blanks */
    enum option_type type;
    unsigned group;
    double min, max;
    const char *value, *help;
    size_t offset;
};
static inline bool option_taken(const struct option_row *row, unsigned groups)
{
    return row->group & (groups | G_ALL);
}
extern const struct option_row option_rows[OPT_COUNT];

struct verb {
    const char *name, *args, *section; /* "generate", "MODEL", what of the program's help it stands under */
    size_t args_min, args_max;
    unsigned groups;
    const char *help;
    int (*run)(struct options *o); /* exit status */
};
extern const struct verb cli_verbs[];
const struct verb *cli_verb_find(const char *name); /* NULL */
int cli_verb_unknown(const char *name); /* says so on standard error; 2 */

/* argv[2..]: 0, or ERR_ARGUMENT with one line that says what is wrong. */
int options_parse(struct options *o, const struct verb *verb, int argc, char **argv, struct err *err);
/* "key = value" lines; # starts a comment.  Keys this verb does not take are checked for their names only. */
int options_config(struct options *o, const struct verb *verb, const char *path, bool must_exist, struct err *err);
/* One option by name while the program runs (chat): only those of `groups`; ERR_ARGUMENT leaves the old value. `value` must live on (options_keep). */
int options_assign(struct options *o, unsigned groups, const char *name, const char *value, struct err *err);
char *options_keep(struct options *o, struct str text); /* a copy, terminated, that lives as long as o */
void options_free(struct options *o);

/* Ids with commas or white space between, in brackets or not -> ids; free with mem_free.  `where` ("--ids: ") begins an error. */
int options_ids(const char *where, struct str text, uint32_t **ids, size_t *n, struct err *err);

/* help.c */
void help_program(void);
void help_verb(const struct verb *v, bool all); /* all: the options few need, too */
int cli_completion(struct options *o);

#endif
