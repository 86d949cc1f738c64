/* cli/run.c - run: chat in the terminal with the model's own template; with a prompt or piped input, one answer and nothing else on
 * standard output.  With both, the piped text comes first, then an empty line, then the prompt.
 *
 * Ctrl-C while an answer streams stops the answer: what came is kept, in the conversation and in the engine's state.  At the prompt
 * it clears the line; Ctrl-D, /bye, /exit or /quit leaves. */
#include "base/file.h"
#include "base/mem.h"
#include "base/near.h"
#include "cli/chat.h"
#include "cli/line.h"
#include "cli/piped.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { POLL_MS = 50, PIPED_BYTES_MAX = 64 << 20 };

struct talk { /* process lifetime */
    struct session s;
    struct options *o;
    struct chat chat;
    struct line_editor *line;
    bool terminal; /* colours, a newline after the answer */
};

static volatile sig_atomic_t stop_answer;

static void on_interrupt(int sig)
{
    (void)sig;
    stop_answer = 1;
}

static void speed_line(const struct rh_event *e)
{
    static const char *const finish[] = {"stop", "length", "cancelled", "error"};
    const struct rh_timings *t = &e->timings;
    fprintf(stderr, "[prompt %u tokens, %u from kept state, %.0f ms, %.0f tok/s | answer %u tokens, %.0f ms, %.0f tok/s | %s | seed %llu]\n",
            e->usage.prompt_tokens, e->usage.cached_tokens, t->prefill_ms, t->prefill_tokens_per_s, e->usage.completion_tokens, t->decode_ms,
            t->decode_tokens_per_s, finish[e->finish], (unsigned long long)e->seed);
}

/* Reasoning is shown to people only, dimmed, with an empty line after it. */
static void show(struct talk *t, const struct rh_event *e, bool *dim)
{
    bool reasoning = e->kind == RH_EVENT_REASONING;
    if (e->text_n == 0 || (reasoning && !t->terminal))
        return;
    if (reasoning != *dim)
        fputs(reasoning ? "\033[2m" : "\033[0m\n\n", stdout);
    *dim = reasoning;
    fwrite(e->text, 1, e->text_n, stdout);
    fflush(stdout);
}

/* Stream one answer to standard output; its text and its reasoning are also appended to `kept`. */
static int follow(struct talk *t, struct rh_request *r, struct chat_message *kept)
{
    struct rh_event e;
    int rc, status = 0;
    bool cancelled = false, dim = false;
    while ((rc = rh_poll(r, &e, POLL_MS)) >= 0) {
        if (rc == 1 && e.kind == RH_EVENT_PROMPT && e.dropped)
            fprintf(stderr, "[the context is full: the %u oldest messages were left out; /clear starts anew]\n", e.dropped);
        if (rc == 1 && (e.kind == RH_EVENT_TEXT || e.kind == RH_EVENT_REASONING)) {
            show(t, &e, &dim);
            buf_put(e.kind == RH_EVENT_TEXT ? &kept->content : &kept->reasoning, e.text, e.text_n);
        }
        if (rc == 1 && e.kind == RH_EVENT_DONE) {
            if (dim)
                fputs("\033[0m", stdout);
            if (t->terminal || (kept->content.n && kept->content.p[kept->content.n - 1] != '\n'))
                putchar('\n');
            fflush(stdout);
            if (e.finish == RH_FINISH_ERROR)
                status = session_fail("run", &e.error);
            else if (t->o->verbose)
                speed_line(&e);
            if (e.finish == RH_FINISH_CANCELLED && !t->line)
                status = 130;
        }
        if (stop_answer && !cancelled) {
            rh_request_cancel(r);
            cancelled = true;
        }
    }
    return status;
}

/* One answer to the conversation as it stands; on failure the last message is taken back. */
static int answer(struct talk *t)
{
    struct buf messages = {0};
    struct rh_sampling sampling;
    struct rh_bias *biases = NULL;
    struct rh_text *stop = NULL;
    uint32_t *stop_ids = NULL;
    struct rh_request *request = NULL;
    struct rh_error err = {0};
    chat_json(&t->chat, &messages);
    struct rh_chat chat = {.messages_json = {buf_cstr(&messages), messages.n}};
    const struct options *o = t->o;
    struct rh_request_options r = {.chat = &chat, .max_tokens = o->max_tokens, .ignore_eos = o->ignore_eos, .seed_given = o->given[OPT_SEED],
                                   .seed = o->seed, .sampling = &sampling, .session = "run", .propose = o->propose,
                                   .propose_depth = o->propose_depth, .output = o->output,
                                   .truncate = t->line != NULL};
    int rc = session_sampling(&t->s, o, &sampling, &biases);
    rc = rc ? rc : session_stops("run", o, &r, &stop, &stop_ids);
    stop_answer = 0;
    struct sigaction sa = {.sa_handler = on_interrupt}, old;
    sigaction(SIGINT, &sa, &old);
    if (!rc && rh_submit(t->s.model, &r, &request, &err))
        rc = session_fail("run", &err);
    if (!rc) {
        rc = follow(t, request, chat_add(&t->chat, "assistant", (struct str){"", 0}));
        if (rc && rc != 130)
            chat_drop_last(&t->chat);
    }
    if (rc && rc != 130)
        chat_drop_last(&t->chat);
    sigaction(SIGINT, &old, NULL);
    rh_request_free(request);
    buf_free(&messages);
    mem_free(biases);
    mem_free(stop);
    mem_free(stop_ids);
    return rc;
}

/* ---- commands ---- */

static void cmd_help(struct talk *t, struct str arg);

static void cmd_clear(struct talk *t, struct str arg)
{
    (void)arg;
    chat_clear(&t->chat);
    fputs("conversation cleared\n", stderr);
}

static void cmd_system(struct talk *t, struct str arg)
{
    chat_set_system(&t->chat, arg);
    fputs(arg.n ? "system message set\n" : "system message removed\n", stderr);
}

static char *path_of(struct str arg) /* mem_free it */
{
    char *path = mem_alloc(arg.n + 1);
    memcpy(path, arg.p, arg.n);
    path[arg.n] = 0;
    return path;
}

/* /save FILE and /load FILE */
static void with_file(struct talk *t, struct str arg, bool load)
{
    struct err err = {0};
    char *path = path_of(arg);
    if (!arg.n)
        fprintf(stderr, "%s needs a file name\n", load ? "/load" : "/save");
    else if (load ? chat_load(&t->chat, path, &err) : chat_save(&t->chat, path, &err))
        fprintf(stderr, "%s\n", err.text);
    else
        fprintf(stderr, "%zu messages %s %s\n", t->chat.n, load ? "loaded from" : "saved to", path);
    mem_free(path);
}

static void cmd_save(struct talk *t, struct str arg)
{
    with_file(t, arg, false);
}

static void cmd_load(struct talk *t, struct str arg)
{
    with_file(t, arg, true);
}

static void show_params(const struct talk *t)
{
    struct rh_sampling p;
    struct rh_bias *biases = NULL;
    if (session_sampling(&t->s, t->o, &p, &biases))
        return;
    fprintf(stderr,
            "temperature %g  top-k %u  top-p %g  min-p %g  typical-p %g  top-n-sigma %g\n"
            "repetition-penalty %g  presence-penalty %g  frequency-penalty %g  penalty-window %u\n"
            "max-tokens %lld  seed ",
            (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, (double)p.typical_p, (double)p.top_n_sigma, (double)p.repetition_penalty,
            (double)p.presence_penalty, (double)p.frequency_penalty, p.penalty_window, (long long)t->o->max_tokens);
    if (t->o->given[OPT_SEED])
        fprintf(stderr, "%llu\n", (unsigned long long)t->o->seed);
    else
        fputs("drawn\n", stderr);
    mem_free(biases);
}

/* /params, or /params NAME VALUE (NAME=VALUE too) */
static void cmd_params(struct talk *t, struct str arg)
{
    struct err err = {0};
    size_t cut = 0;
    if (!arg.n) {
        show_params(t);
        return;
    }
    while (cut < arg.n && arg.p[cut] != ' ' && arg.p[cut] != '=')
        cut++;
    char *name = path_of(str_n(arg.p, cut));
    struct str rest = str_trim(str_from(arg, cut));
    if (rest.n && rest.p[0] == '=')
        rest = str_trim(str_from(rest, 1));
    if (options_assign(t->o, G_SAMPLE | G_REQUEST, name, options_keep(t->o, rest), &err))
        fprintf(stderr, "%s\n", err.text);
    else
        show_params(t);
    mem_free(name);
}

static const struct command {
    const char *name, *args, *help; /* no help: another name of one before */
    void (*run)(struct talk *t, struct str arg); /* NULL: leave */
} commands[] = {
    {"/help", "", "this list", cmd_help},
    {"/clear", "", "forget the conversation, keep the system message", cmd_clear},
    {"/system", "TEXT", "set the system message; without TEXT remove it", cmd_system},
    {"/save", "FILE", "write the conversation as JSON", cmd_save},
    {"/load", "FILE", "go on with a saved conversation", cmd_load},
    {"/params", "[NAME VALUE]", "show or change sampling and limits", cmd_params},
    {"/bye", "", "leave (/exit, /quit and Ctrl-D, too)", NULL},
    {"/exit", "", NULL, NULL},
    {"/quit", "", NULL, NULL},
};

static void cmd_help(struct talk *t, struct str arg)
{
    (void)t, (void)arg;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0] && commands[i].help; i++)
        fprintf(stderr, "  %-8s %-13s %s\n", commands[i].name, commands[i].args, commands[i].help);
    fputs("  A line that ends in \\ goes on; \"\"\" opens and closes several lines; a paste of several lines is one message.\n"
          "  Ctrl-C stops the answer; what came of it is kept.\n",
          stderr);
}

/* False: leave. */
static bool command(struct talk *t, struct str line)
{
    size_t cut = 0;
    while (cut < line.n && line.p[cut] != ' ')
        cut++;
    struct str name = str_n(line.p, cut), arg = str_trim(str_from(line, cut));
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (str_is(name, commands[i].name)) {
            if (commands[i].run)
                commands[i].run(t, arg);
            return commands[i].run != NULL;
        }
    struct near near;
    near_begin(&near, name);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        near_try(&near, str_of(commands[i].name));
    fprintf(stderr, "unknown command %.*s%s%s%s; there are", STR_ARG(name), near_best(&near) ? " (did you mean " : "",
            near_best(&near) ? near_best(&near) : "", near_best(&near) ? "?)" : "");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        fprintf(stderr, " %s", commands[i].name);
    fputs("\n", stderr);
    return true;
}

static int converse(struct talk *t)
{
    char history[4200];
    struct err err = {0};
    struct buf line = {0};
    snprintf(history, sizeof history, "%s/history", t->o->store_dir);
    t->line = line_open(file_mkdirs(t->o->store_dir, &err) ? NULL : history);
    t->terminal = isatty(STDOUT_FILENO);
    fprintf(stderr, "%s  (/help lists the commands)\n", t->o->args[0]);
    for (bool go = true; go;) {
        enum line_result r = line_read(t->line, &line);
        struct str text = str_trim(buf_view(&line));
        if (r == LINE_END) {
            if (t->terminal)
                putchar('\n');
            break;
        }
        if (r == LINE_INTERRUPT || !text.n)
            continue;
        if (text.p[0] == '/' && !memchr(text.p, '\n', text.n)) {
            go = command(t, text);
            continue;
        }
        chat_add(&t->chat, "user", buf_view(&line));
        answer(t);
    }
    buf_free(&line);
    line_close(t->line);
    return 0;
}

/* Piped text and PROMPT -> the message; says on standard error what was done with standard input. */
static int join_piped(const struct options *o, struct str prompt, struct buf *out)
{
    struct err err = {0};
    int piped = piped_read(out, o->piped, PIPED_BYTES_MAX, &err);
    if (piped < 0)
        return session_failed("run", "%s", err.text);
    if (piped == PIPED_SILENT)
        fprintf(stderr, "rhapsode run: nothing on standard input for %d s: PROMPT alone is answered (--piped waits)\n", PIPED_FIRST_MS / 1000);
    if (piped == PIPED_PAUSED)
        fprintf(stderr, "rhapsode run: nothing more on standard input for %d s: taken as ended (--piped waits)\n", PIPED_PAUSE_MS / 1000);
    size_t n = out->n;
    while (out->n && (out->p[out->n - 1] == '\n' || out->p[out->n - 1] == '\r'))
        out->n--;
    if (str_trim(buf_view(out)).n) {
        fprintf(stderr, "rhapsode run: %zu bytes of standard input come before PROMPT\n", n);
        buf_z(out, "\n\n");
    } else {
        out->n = 0;
    }
    buf_str(out, prompt);
    return buf_check(out, "prompt", &err) ? session_failed("run", "%s", err.text) : 0;
}

static int answer_once(struct talk *t, struct str prompt)
{
    struct buf text = {0};
    struct err err = {0};
    int rc = 0;
    if (prompt.p && !str_is(prompt, "-"))
        rc = join_piped(t->o, prompt, &text);
    else if (file_read(&text, "-", PIPED_BYTES_MAX, &err))
        rc = session_failed("run", "%s", err.text);
    if (!rc && !str_trim(buf_view(&text)).n)
        rc = session_usage("run", "the prompt is empty");
    if (!rc) {
        chat_add(&t->chat, "user", buf_view(&text));
        rc = answer(t);
    }
    buf_free(&text);
    return rc;
}

int cli_run(struct options *o)
{
    struct talk t = {.o = o};
    struct str prompt = o->arg_count > 1 ? str_of(o->args[1]) : (struct str){NULL, 0};
    bool once = prompt.p || !isatty(STDIN_FILENO);
    if (o->system)
        chat_set_system(&t.chat, str_of(o->system));
    int rc = session_open(&t.s, "run", o, false);
    if (!rc && rh_chat_problem(t.s.model))
        rc = session_failed("run", "%s; rhapsode generate MODEL --prompt TEXT continues plain text", rh_chat_problem(t.s.model));
    if (!rc)
        rc = once ? answer_once(&t, prompt) : converse(&t);
    session_close(&t.s);
    chat_free(&t.chat);
    return rc;
}
