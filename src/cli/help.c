/* cli/help.c - help and shell completion, written from the tables of verbs and options. */
#include "base/str.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "rhapsode.h"

#include <stdio.h>

enum { LEFT_COLUMNS = 30 };

/* What a verb's options alone do not say. */
static const struct note {
    const char *verb, *text;
} notes[] = {
    {"run", "  rhapsode run MODEL                           chat; /help lists the commands\n"
            "  rhapsode run MODEL 'Name three rivers.'      one answer\n"
            "  git diff | rhapsode run MODEL 'Sum this up.' piped text comes before PROMPT, an empty line between\n"
            "\n"
            "With a PROMPT, standard input that gives nothing for a second is left alone, and one that then pauses for ten is\n"
            "taken as ended; a line on standard error says so.  --piped waits for its end, however long that takes.\n"},
    {"generate", "  rhapsode generate MODEL --prompt 'Once upon a time'\n  rhapsode generate MODEL --chat messages.json --json\n"},
    {"serve", "  rhapsode serve MODEL --port 8080             then any client of http://127.0.0.1:8080/v1\n"},
    {"pull", "  rhapsode pull Qwen/Qwen3-0.6B-GGUF           the quantisation that suits most; Ctrl-C: the next pull goes on from there\n"
             "  rhapsode pull Qwen/Qwen3-0.6B-GGUF:Q8_0      a file by its name, or by its quantisation\n"},
    {"add", "  rhapsode add mine:8b ./model.gguf            links or copies it; NAME is what other verbs then take\n"},
    {"score", "  rhapsode score MODEL --file TEXT             perplexity\n  rhapsode score MODEL --ids 1,2,3 --top 5     what was likely at each place\n"},
    {"detokenize", "  rhapsode detokenize MODEL --ids 1,2,3\n  rhapsode tokenize MODEL < text | rhapsode detokenize MODEL\n"},
    {"kvcheck",
     "Reads one text with keys and values in f32 and in each format, and compares what the model says after every token:\n"
     "  tokens      tokens of the text, --tokens of them; more take longer and make the figures surer (512: a first look)\n"
     "  bytes/pos   what one position of the context takes in this format, all layers together\n"
     "  mse K, V    mean squared error of the stored keys and values, relative to their mean square: 0 is exact\n"
     "  mean KL     how far the probabilities of the next token are from those with f32, in nats, over the text; p99 KL: the\n"
     "              worst hundredth.  Below 0.001 nobody can tell; 0.1 shows; above 0.3 the format is refused from then on\n"
     "  top-1       share of places where the likeliest token is the same as with f32\n"
     "  needles     numbers hidden in the text that were found again\n"
     "  tokens/s    decode speed at the end of the text\n"},
    {"completion", "  source <(rhapsode completion bash)\n  rhapsode completion zsh > \"${fpath[1]}/_rhapsode\"\n"
                   "  rhapsode completion fish > ~/.config/fish/completions/rhapsode.fish\n"},
};

static bool has_gpu(void)
{
    for (size_t i = 0; rh_backend_name(i); i++)
        if (strcmp(rh_backend_name(i), "cuda") == 0)
            return true;
    return false;
}

static bool shown(const struct option_row *row, const struct verb *v)
{
    return option_taken(row, v->groups) && (!(row->group & G_GPU) || has_gpu());
}

/* An option's help; the devices are those of this build. */
static const char *help_of(const struct option_row *row)
{
    static char devices[160];
    if (row != &option_rows[OPT_BACKEND])
        return row->help;
    size_t n = (size_t)snprintf(devices, sizeof devices, "%s", row->help);
    for (size_t i = 0; rh_backend_name(i) && n < sizeof devices; i++)
        n += (size_t)snprintf(devices + n, sizeof devices - n, "%s %s%s", i ? "," : "", rh_backend_name(i),
                              strcmp(rh_backend_name(i), "ref") == 0    ? " (slow: the reference)"
                              : strcmp(rh_backend_name(i), "cuda") == 0 ? " or cuda:N (a GPU)"
                                                                        : "");
    return devices;
}

void help_program(void)
{
    const char *section = "";
    printf("rhapsode " RH_VERSION " - runs large language models\n\nusage: rhapsode VERB ...\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        char left[64];
        if (strcmp(section, v->section) != 0)
            printf("\n%s\n", v->section);
        section = v->section;
        snprintf(left, sizeof left, "%s %s", v->name, v->args);
        printf("  %-*s %s\n", LEFT_COLUMNS - 4, left, v->help);
    }
    printf("\nMODEL is a .gguf file (or the first of a split set), a Hugging Face directory, or a name in the store (rhapsode ls).\n"
           "rhapsode help VERB shows a verb's options; rhapsode --version what this build has.\n"
           "Options may also stand in ~/.config/rhapsode/config, one 'name = value' a line.\n");
}

static void help_option(const struct option_row *row)
{
    char left[96];
    int n = row->letter ? snprintf(left, sizeof left, "-%c, ", row->letter) : snprintf(left, sizeof left, "    ");
    snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s", row->name, row->value[0] ? " " : "", row->value);
    printf("  %-*s %s", LEFT_COLUMNS, left, help_of(row));
    struct str rest = str_of(row->aliases), alias;
    while (rest.n && str_split(&rest, ' ', &alias))
        printf(" (also --%.*s)", STR_ARG(alias));
    putchar('\n');
}

void help_verb(const struct verb *v, bool all)
{
    static const struct { const char *title; unsigned groups; } parts[] = {
        {"Options", G_INPUT | G_IDS | G_SCORE | G_TOKENIZE | G_RENDER | G_TOOLS | G_BENCH | G_RUN | G_PULL | G_STORE | G_KVCHECK | G_SERVE | G_LS},
        {"The answer", G_REQUEST}, {"Sampling", G_SAMPLE}, {"The model", G_MODEL}, {"The machine", G_HOST}, {"General", G_JSON | G_ALL}};
    bool done[OPT_COUNT] = {0};
    size_t left_out = 0;
    printf("usage: rhapsode %s %s%s\n\n%c%s.\n", v->name, v->args, v->groups ? " [options]" : "", v->help[0] & ~32, v->help + 1);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strcmp(notes[i].verb, v->name) == 0)
            printf("\n%s", notes[i].text);
    for (size_t p = 0; p < sizeof parts / sizeof *parts; p++) {
        bool titled = false;
        for (int i = 0; i < OPT_COUNT; i++) {
            if (done[i] || !shown(&option_rows[i], v) || !(option_rows[i].group & parts[p].groups))
                continue;
            done[i] = true;
            if (!all && option_rows[i].group & G_MORE) {
                left_out++;
                continue;
            }
            if (!titled)
                printf("\n%s\n", parts[p].title);
            titled = true;
            help_option(&option_rows[i]);
        }
    }
    if (left_out)
        printf("\n%zu more: rhapsode help %s all\n", left_out, v->name);
}

int cli_help(struct options *o)
{
    if (o->arg_count == 0)
        return help_program(), 0;
    const struct verb *v = cli_verb_find(o->args[0]);
    if (!v)
        return cli_verb_unknown(o->args[0]);
    if (o->arg_count > 1 && strcmp(o->args[1], "all") != 0) {
        fprintf(stderr, "rhapsode help: expected all, got '%.200s'\n", o->args[1]);
        return 2;
    }
    help_verb(v, o->arg_count > 1);
    return 0;
}

/* ---- completion ---- */

static bool takes_file(const struct option_row *row)
{
    return str_is(str_of(row->value), "FILE");
}

/* Does its first argument name a model of the store? */
static bool takes_model(const struct verb *v)
{
    return strstr(v->args, "MODEL") == v->args || strncmp(v->args, "[MODEL", 6) == 0 || strcmp(v->args, "NAME") == 0;
}

/* A name with a colon in it is two words to bash: what stands before the last colon is cut off the answers. */
static void completion_bash(void)
{
    printf("_rhapsode() {\n    local line=${COMP_LINE:0:COMP_POINT} opts= args=\n    local cur=${line##* }\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W \"");
    for (const struct verb *v = cli_verbs; v->name; v++)
        printf("%s ", v->name);
    printf("--help --version\" -- \"$cur\")); return; fi\n    case ${COMP_WORDS[1]} in\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("    %s) args=\"", v->name);
        if (takes_model(v))
            printf("$(\"${COMP_WORDS[0]}\" ls --names 2>/dev/null)");
        for (const struct verb *w = cli_verbs; w->name && v->run == cli_help; w++)
            printf("%s ", w->name);
        printf("%s\" opts=\"", v->run == cli_completion ? "bash zsh fish" : "");
        for (int i = 0; i < OPT_COUNT; i++)
            if (shown(&option_rows[i], v))
                printf("--%s ", option_rows[i].name);
        printf("\" ;;\n");
    }
    printf("    esac\n    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\")); return; fi\n"
           "    local IFS=$'\\n'\n"
           "    COMPREPLY=($(compgen -W \"${args// /$'\\n'}\" -- \"$cur\") $(compgen -f -- \"$cur\"))\n"
           "    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then local head=${cur%%\"${cur##*:}\"}; COMPREPLY=(\"${COMPREPLY[@]#\"$head\"}\"); fi\n"
           "}\ncomplete -o filenames -F _rhapsode rhapsode\n");
}

static void quoted(const char *text, const char *escape) /* inside '...': quotes (and what else) with a backslash or doubled */
{
    for (; *text; text++) {
        if (*text == '\'')
            printf("'\\''");
        else if (strchr(escape, *text))
            printf("\\%c", *text);
        else
            putchar(*text);
    }
}

static void completion_zsh(void)
{
    printf("#compdef rhapsode\n_rhapsode_models() {\n    local -a names\n    names=(${(f)\"$(${words[1]} ls --names 2>/dev/null)\"})\n"
           "    compadd -a names\n    _files\n}\n_rhapsode() {\n    local -a verbs\n    verbs=(\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("        '%s:", v->name);
        quoted(v->help, ":");
        printf("'\n");
    }
    printf("    )\n    if (( CURRENT == 2 )); then _describe verb verbs; return; fi\n    case ${words[2]} in\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("    %s) _arguments", v->name);
        for (int i = 0; i < OPT_COUNT; i++) {
            const struct option_row *row = &option_rows[i];
            if (!shown(row, v))
                continue;
            printf(" \\\n        '--%s[", row->name);
            quoted(help_of(row), "[]:");
            printf("]%s%s%s'", row->value[0] ? ":value:" : "", takes_file(row) ? "_files" : "", "");
        }
        printf(" \\\n        '%s' ;;\n", takes_model(v) ? "2:model:_rhapsode_models' '*:file:_files" : "*:file:_files");
    }
    printf("    esac\n}\n_rhapsode \"$@\"\n");
}

static void completion_fish(void)
{
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("complete -c rhapsode -n __fish_use_subcommand -a %s -d '", v->name);
        quoted(v->help, "");
        printf("'\n");
        if (takes_model(v))
            printf("complete -c rhapsode -n '__fish_seen_subcommand_from %s' -a '(rhapsode ls --names 2>/dev/null)'\n", v->name);
        for (int i = 0; i < OPT_COUNT; i++) {
            const struct option_row *row = &option_rows[i];
            if (!shown(row, v))
                continue;
            printf("complete -c rhapsode -n '__fish_seen_subcommand_from %s' -l %s%s -d '", v->name, row->name, row->value[0] ? " -r" : "");
            quoted(help_of(row), "");
            printf("'\n");
        }
    }
}

int cli_completion(struct options *o)
{
    struct str shell = str_of(o->args[0]);
    if (str_is(shell, "bash"))
        completion_bash();
    else if (str_is(shell, "zsh"))
        completion_zsh();
    else if (str_is(shell, "fish"))
        completion_fish();
    else {
        fprintf(stderr, "rhapsode completion: expected bash, zsh or fish, got '%.200s'\n", o->args[0]);
        return 2;
    }
    return 0;
}
