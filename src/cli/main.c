/* cli/main.c - the program: finds the verb, reads its options, runs it.  The only place that reads the environment.
 *
 * Exit status: 0 done, 1 it failed (one line on standard error says why), 2 what was asked for is wrong (ERR_ARGUMENT; nothing was done),
 * 130 interrupted. */
#include "base/err.h"
#include "base/file.h"
#include "base/near.h"
#include "base/str.h"
#include "cli/options.h"
#include "cli/verbs.h"
#include "rhapsode.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const struct verb cli_verbs[] = {
#define CLI_VERB_ROW(name, args, section, least, most, groups, help) {#name, args, section, least, most, groups, help, cli_##name},
    CLI_VERBS(CLI_VERB_ROW)
#undef CLI_VERB_ROW
    {0},
};

const struct verb *cli_verb_find(const char *name)
{
    for (const struct verb *v = cli_verbs; v->name; v++)
        if (str_is(str_of(name), v->name))
            return v;
    return NULL;
}

static int usage(const char *verb, const char *text)
{
    fprintf(stderr, "rhapsode%s%s: %s\n", verb ? " " : "", verb ? verb : "", text);
    return 2;
}

int cli_verb_unknown(const char *name)
{
    struct near near;
    struct err err = {0};
    near_begin(&near, str_of(name));
    for (const struct verb *v = cli_verbs; v->name; v++)
        near_try(&near, str_of(v->name));
    if (near_best(&near))
        err_set(&err, ERR_ARGUMENT, "unknown verb '%.100s'; did you mean '%s'?", name, near_best(&near));
    else
        err_set(&err, ERR_ARGUMENT, "unknown verb '%.100s'; rhapsode help lists them", name);
    return usage(NULL, err.text);
}

static int read_config(struct options *o, const struct verb *verb, struct err *err)
{
    char path[4096];
    const char *home = getenv("HOME"), *xdg = getenv("XDG_CONFIG_HOME");
    if (o->config)
        return o->config[0] ? options_config(o, verb, o->config, true, err) : 0; /* --config "": none */
    if (xdg && xdg[0])
        snprintf(path, sizeof path, "%s/rhapsode/config", xdg);
    else if (home && home[0])
        snprintf(path, sizeof path, "%s/.config/rhapsode/config", home);
    else
        return 0;
    return options_config(o, verb, path, false, err);
}

static void find_store(struct options *o)
{
    const char *home = getenv("HOME"), *own = getenv("RHAPSODE_HOME");
    if (o->store)
        snprintf(o->store_dir, sizeof o->store_dir, "%s", o->store);
    else if (own && own[0])
        snprintf(o->store_dir, sizeof o->store_dir, "%s", own);
    else
        snprintf(o->store_dir, sizeof o->store_dir, "%s/.local/share/rhapsode", home && home[0] ? home : ".");
}

static void on_log(int level, const char *text, void *ctx)
{
    (void)ctx;
    fprintf(stderr, "rhapsode: %s%s\n", level == 0 ? "error: " : level == 1 ? "warning: " : "", text);
}

/* Only a mapped file raises it: its checked size is no longer true.  There is nothing left to compute with. */
static void on_bus_error(int sig)
{
    static const char text[] = "rhapsode: error: a model file was cut short by another program while it was read\n";
    (void)sig;
    ssize_t n = write(STDERR_FILENO, text, sizeof text - 1);
    _exit(n > 0 ? 1 : 3);
}

/* What this build and machine have. */
static int version(void)
{
    struct rh_host_options cpu = {.backend = "cpu"};
    struct rh_host *host = NULL;
    struct rh_error err = {0};
    char device[160];
    printf("rhapsode " RH_VERSION "\nbackends ");
    for (size_t i = 0; rh_backend_name(i); i++)
        printf(" %s", rh_backend_name(i));
    putchar('\n');
    if (rh_host_open(&cpu, &host, &err))
        return usage(NULL, err.text), 1;
    rh_host_device(host, device, sizeof device);
    printf("here      %s\n", device);
    rh_host_close(host);
    return 0;
}

int main(int argc, char **argv)
{
    static struct options o;
    struct err err = {0};
    if (argc < 2)
        return usage(NULL, "no verb given; rhapsode help lists them");
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
        return help_program(), 0;
    if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V"))
        return version();
    const struct verb *verb = cli_verb_find(argv[1]);
    if (!verb)
        return cli_verb_unknown(argv[1]);
    if (options_parse(&o, verb, argc - 1, argv + 1, &err) || (!o.help && read_config(&o, verb, &err)))
        return usage(verb->name, err.text);
    if (o.help)
        return help_verb(verb, false), 0;
    find_store(&o);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGBUS, on_bus_error);
    rh_log_set(on_log, NULL, o.verbose ? 3 : 1);
    int status = verb->run(&o);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "rhapsode %s: cannot write to standard output\n", verb->name);
        status = status ? status : 1;
    }
    options_free(&o);
    return status;
}
