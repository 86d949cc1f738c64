/* cli/help.c - help and shell completion, written from the tables of verbs and options. */
#include "base/str.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "rhapsode.h"

#include <stdio.h>

void help_program(void)
{
    printf("rhapsode " RH_VERSION " - runs large language models\n\nusage: rhapsode VERB ...\n\n");
    for (const struct verb *v = cli_verbs; v->name; v++)
        printf("  %-12s %-14s %s\n", v->name, v->args, v->help);
    printf("\nMODEL is a .gguf file (or the first of a split set), a Hugging Face directory, or a name in the store.\n"
           "rhapsode VERB --help shows a verb's options; rhapsode --version the version.\n"
           "Options may also stand in ~/.config/rhapsode/config, one 'name = value' a line.\n");
}

static void help_option(const struct option_row *row)
{
    char left[96];
    int n = row->letter ? snprintf(left, sizeof left, "-%c, ", row->letter) : snprintf(left, sizeof left, "    ");
    snprintf(left + n, sizeof left - (size_t)n, "--%s%s%s", row->name, row->value[0] ? " " : "", row->value);
    printf("  %-30s %s", left, row->help);
    struct str rest = str_of(row->aliases), alias;
    while (rest.n && str_split(&rest, ' ', &alias))
        printf(" (also --%.*s)", STR_ARG(alias));
    putchar('\n');
}

void help_verb(const struct verb *v)
{
    printf("usage: rhapsode %s %s [options]\n\n%s\n\n", v->name, v->args, v->help);
    for (int i = 0; i < OPT_COUNT; i++)
        if (option_rows[i].group & (v->groups | G_ALL))
            help_option(&option_rows[i]);
}

static bool takes_file(const struct option_row *row)
{
    return str_is(str_of(row->value), "FILE");
}

static void completion_bash(void)
{
    printf("_rhapsode() {\n    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} opts=\n"
           "    if [ \"$COMP_CWORD\" = 1 ]; then COMPREPLY=($(compgen -W \"");
    for (const struct verb *v = cli_verbs; v->name; v++)
        printf("%s ", v->name);
    printf("--help --version\" -- \"$cur\")); return; fi\n    case ${COMP_WORDS[1]} in\n");
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("    %s) opts=\"", v->name);
        for (int i = 0; i < OPT_COUNT; i++)
            if (option_rows[i].group & (v->groups | G_ALL))
                printf("--%s ", option_rows[i].name);
        printf("\" ;;\n");
    }
    printf("    esac\n    if [[ $cur == -* ]]; then COMPREPLY=($(compgen -W \"$opts\" -- \"$cur\"))\n"
           "    else COMPREPLY=($(compgen -f -- \"$cur\")); fi\n}\ncomplete -o filenames -F _rhapsode rhapsode\n");
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
    printf("#compdef rhapsode\n_rhapsode() {\n    local -a verbs\n    verbs=(\n");
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
            if (!(row->group & (v->groups | G_ALL)))
                continue;
            printf(" \\\n        '--%s[", row->name);
            quoted(row->help, "[]:");
            printf("]%s%s%s'", row->value[0] ? ":value:" : "", takes_file(row) ? "_files" : "", "");
        }
        printf(" \\\n        '*:file:_files' ;;\n");
    }
    printf("    esac\n}\n_rhapsode \"$@\"\n");
}

static void completion_fish(void)
{
    for (const struct verb *v = cli_verbs; v->name; v++) {
        printf("complete -c rhapsode -n __fish_use_subcommand -a %s -d '", v->name);
        quoted(v->help, "");
        printf("'\n");
        for (int i = 0; i < OPT_COUNT; i++) {
            const struct option_row *row = &option_rows[i];
            if (!(row->group & (v->groups | G_ALL)))
                continue;
            printf("complete -c rhapsode -n '__fish_seen_subcommand_from %s' -l %s%s -d '", v->name, row->name, row->value[0] ? " -r" : "");
            quoted(row->help, "");
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
