/* cli/store.c - the verbs of the model store: pull, add, ls, rm. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static volatile int interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static void human(char out[32], double bytes)
{
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    int u = 0;
    while (bytes >= 999.5 && u < 4)
        bytes /= 1000, u++;
    snprintf(out, 32, u && bytes < 99.95 ? "%.1f %s" : "%.0f %s", bytes, unit[u]);
}

/* One line, redrawn: name, bar, bytes, rate, time left.  Without a terminal: a line every ten per cent. */
static void on_progress(void *ctx, const struct rh_pull_progress *p)
{
    int *last = ctx;
    double part = p->total_bytes ? (double)p->done_bytes / (double)p->total_bytes : 1;
    char done[32], total[32], rate[32], left[32] = "", bar[31];
    bool tty = isatty(STDERR_FILENO);
    if (!tty && (int)(part * 10) == *last)
        return;
    *last = (int)(part * 10);
    human(done, (double)p->done_bytes);
    human(total, (double)p->total_bytes);
    human(rate, p->bytes_per_s);
    if (!p->file) {
        fprintf(stderr, tty ? "\r\033[Kdone, %s" : "done, %s\n", total);
        return;
    }
    if (p->bytes_per_s > 0) {
        long s = (long)((double)(p->total_bytes - p->done_bytes) / p->bytes_per_s);
        if (s >= 3600)
            snprintf(left, sizeof left, "%ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
        else
            snprintf(left, sizeof left, "%ld:%02ld left", s / 60, s % 60);
    }
    for (int i = 0; i < 30; i++)
        bar[i] = i < (int)(part * 30) ? '#' : '.';
    bar[30] = 0;
    fprintf(stderr, tty ? "\r\033[K%s [%s] %3.0f%% %s of %s  %s/s  %s" : "%s [%s] %3.0f%% %s of %s  %s/s  %s\n", p->file, bar, part * 100,
            done, total, rate, left);
}

/* $HF_TOKEN, else the file the hub's own client keeps. */
static const char *find_token(struct buf *keep)
{
    const char *token = getenv("HF_TOKEN"), *hf = getenv("HF_HOME"), *home = getenv("HOME");
    char path[4096];
    if (token)
        return token;
    if (hf && hf[0])
        snprintf(path, sizeof path, "%s/token", hf);
    else
        snprintf(path, sizeof path, "%s/.cache/huggingface/token", home ? home : "");
    if (!file_exists(path) || file_read(keep, path, 4096, NULL))
        return NULL;
    struct str s = str_trim(buf_view(keep));
    keep->n = (size_t)(s.p - keep->p) + s.n;
    return buf_cstr(keep) + (s.p - keep->p);
}

static void say_name(const char *verb, const char *name)
{
    fprintf(stderr, "rhapsode %s: its name is %s, as in: rhapsode run %s\n", verb, name, name);
}

int cli_pull(struct options *o)
{
    struct rh_error e = {0};
    struct buf token = {0};
    char *path = NULL;
    int last = -1;
    struct rh_pull_options pull = {
        .endpoint = o->given[OPT_ENDPOINT] ? o->endpoint : getenv("HF_ENDPOINT"),
        .token = find_token(&token),
        .revision = o->revision,
        .connections = o->connections,
        .progress = on_progress,
        .progress_ctx = &last,
        .cancelled = &interrupted,
    };
    struct sigaction sa = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
    int rc = rh_store_pull(o->store_dir, o->args[0], &pull, &path, &e);
    if (last >= 0 && isatty(STDERR_FILENO))
        fputc('\n', stderr);
    buf_free(&token);
    if (rc)
        return session_fail("pull", &e);
    puts(path);
    say_name("pull", o->args[0]);
    rh_free(path);
    return 0;
}

int cli_add(struct options *o)
{
    struct rh_error e = {0};
    if (rh_store_add(o->store_dir, o->args[0], o->args[1], o->sha256, &e))
        return session_fail("add", &e);
    puts(o->args[0]);
    say_name("add", o->args[0]);
    return 0;
}

int cli_rm(struct options *o)
{
    struct rh_error e = {0};
    if (rh_store_remove(o->store_dir, o->args[0], &e))
        return session_fail("rm", &e);
    return 0;
}

static void print_entry(yyjson_val *entry, bool complete)
{
    char size[32], when[32] = "";
    time_t t = (time_t)yyjson_get_sint(yyjson_obj_get(entry, "modified"));
    struct tm tm;
    human(size, (double)yyjson_get_uint(yyjson_obj_get(entry, "bytes")));
    if (localtime_r(&t, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", &tm);
    printf("%-48s %10s  %s%s\n", yyjson_get_str(yyjson_obj_get(entry, "name")), size, when, complete ? "" : "  partial: pull again to finish");
}

int cli_ls(struct options *o)
{
    struct rh_error e = {0};
    char *json = NULL;
    if (rh_store_list_json(o->store_dir, &json, &e))
        return session_fail("ls", &e);
    if (o->json) {
        puts(json);
        rh_free(json);
        return 0;
    }
    yyjson_doc *doc = json_parse(str_of(json), "store", NULL);
    yyjson_val *list = yyjson_doc_get_root(doc), *entry;
    size_t i, n;
    yyjson_arr_foreach(list, i, n, entry) {
        bool complete = yyjson_get_bool(yyjson_obj_get(entry, "complete"));
        if (!o->names)
            print_entry(entry, complete);
        else if (complete)
            puts(yyjson_get_str(yyjson_obj_get(entry, "name")));
    }
    if (n == 0 && !o->names)
        fprintf(stderr, "rhapsode ls: the store %s is empty; rhapsode pull ORG/REPO fills it\n", o->store_dir);
    json_free(doc);
    rh_free(json);
    return 0;
}
