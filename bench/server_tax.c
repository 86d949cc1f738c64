/* server_tax: what HTTP costs.  The same prompts through the library and through `rhapsode serve`, in turn, one engine thread each.
 *
 *     bench_server_tax PROGRAM MODEL [TOKENS [ROUNDS]]
 *
 * Threads named engine and rh-cpu-* are put on CPU 0, all others (sockets, preparation, this client) on CPU 1.  Prints medians of the time
 * per output token and of the time to the first token, and the tax: their ratio and their difference. */
#include "rhapsode.h"

#include "base/thread.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 32, ROUNDS_MAX = 200, TOKENS_MAX = 4096 };

struct timing {
    double first_ms, token_ms;
};

static void die(const char *what)
{
    fprintf(stderr, "server_tax: %s\n", what);
    exit(1);
}

static int number(const char *text)
{
    return (int)strtol(text, NULL, 10);
}

/* ---- placing ---- */

static void put_on(int tid, int cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(tid, sizeof set, &set))
        die("cannot place a thread (two CPUs are needed)");
}

static void place(int pid)
{
    char path[600], name[32];
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *d = opendir(path);
    struct dirent *e;
    if (!d)
        die("cannot list threads");
    while ((e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%s/comm", pid, e->d_name);
        FILE *f = fopen(path, "r");
        if (!f || !fgets(name, sizeof name, f))
            die("cannot read a thread's name");
        fclose(f);
        put_on(number(e->d_name), strncmp(name, "engine", 6) == 0 || strncmp(name, "rh-cpu", 6) == 0 ? 0 : 1);
    }
    closedir(d);
}

/* ---- the library ---- */

static void prompt_of(int round, uint32_t *ids)
{
    for (int i = 0; i < PROMPT; i++)
        ids[i] = 100 + (uint32_t)(round * 7919 + i * 31) % 900; /* new to the cache each time */
}

static struct timing by_library(struct rh_model *m, int round, int tokens)
{
    uint32_t ids[PROMPT];
    struct rh_sampling sampling;
    struct rh_error err = {0};
    struct rh_request *r;
    struct rh_event e;
    int64_t from = thread_now_ns(), first = 0, last = 0;
    int got = 0;
    prompt_of(round, ids);
    rh_sampling_default(m, &sampling);
    sampling.temperature = 0;
    struct rh_request_options o = {.ids = ids, .id_count = PROMPT, .max_tokens = tokens, .ignore_eos = true, .sampling = &sampling, .propose = "none"};
    if (rh_submit(m, &o, &r, &err))
        die(err.text);
    while (rh_poll(r, &e, -1) == 1) {
        if (!e.has_token)
            continue;
        last = thread_now_ns();
        first = first ? first : last;
        got++;
    }
    rh_request_free(r);
    if (got != tokens)
        die("the library gave another number of tokens");
    return (struct timing){(double)(first - from) / 1e6, (double)(last - first) / 1e6 / (tokens - 1)};
}

/* ---- the server ---- */

static int start_server(const char *program, const char *model, int *port)
{
    int out[2];
    char line[256];
    if (pipe(out))
        die("pipe");
    int pid = fork();
    if (pid == 0) {
        dup2(out[1], 1);
        execl(program, program, "serve", model, "--port", "0", "-t", "1", "--no-pin", (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    FILE *f = fdopen(out[0], "r");
    if (!fgets(line, sizeof line, f) || !strrchr(line, ':'))
        die("the server did not start");
    *port = number(strrchr(line, ':') + 1);
    return pid;
}

static int connect_to(int port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (connect(s, (struct sockaddr *)&to, sizeof to))
        die("connect");
    return s;
}

static size_t count(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text += strlen(what))
        n++;
    return n;
}

/* One stream on a kept connection.  Every token is an event with its id; when it is seen is when its bytes were received. */
static struct timing by_server(int s, int round, int tokens)
{
    static char data[1 << 20];
    char body[4096], head[256];
    uint32_t ids[PROMPT];
    int n = 0, seen = 0;
    size_t got = 0;
    prompt_of(round, ids);
    for (int i = 0; i < PROMPT; i++)
        n += snprintf(body + n, sizeof body - (size_t)n, "%s%u", i ? "," : "{\"prompt\":[", ids[i]);
    n += snprintf(body + n, sizeof body - (size_t)n, "],\"max_tokens\":%d,\"ignore_eos\":true,\"temperature\":0,\"propose\":\"none\",\"stream\":true,"
                  "\"return_token_ids\":true}", tokens);
    int h = snprintf(head, sizeof head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n", n);
    int64_t from = thread_now_ns(), first = 0, last = 0;
    if (write(s, head, (size_t)h) != h || write(s, body, (size_t)n) != n)
        die("write");
    while (got < 5 || memcmp(data + got - 5, "0\r\n\r\n", 5) != 0) { /* the last chunk */
        ssize_t more = read(s, data + got, sizeof data - 1 - got);
        int64_t now = thread_now_ns();
        if (more <= 0)
            die("the server ended the stream early");
        data[got + (size_t)more] = 0;
        int fresh = (int)count(data + got, "\"token_ids\":[");
        got += (size_t)more;
        if (fresh) {
            first = first ? first : now;
            last = now;
            seen += fresh;
        }
        if (got > sizeof data - 65536)
            die("a longer stream than there is room for");
    }
    if (strncmp(data, "HTTP/1.1 200", 12) != 0 || seen < tokens / 2)
        die("no answer of the expected kind");
    data[0] = 0;
    return (struct timing){(double)(first - from) / 1e6, (double)(last - first) / 1e6 / (tokens - 1)};
}

/* ---- the measurement ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const struct timing *t, int n, bool first)
{
    double v[ROUNDS_MAX];
    for (int i = 0; i < n; i++)
        v[i] = first ? t[i].first_ms : t[i].token_ms;
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

int main(int argc, char **argv)
{
    static struct timing lib[ROUNDS_MAX], http[ROUNDS_MAX];
    struct rh_error err = {0};
    struct rh_host *h;
    struct rh_model *m;
    int port = 0;
    if (argc < 3)
        die("usage: bench_server_tax PROGRAM MODEL [TOKENS [ROUNDS]]");
    int tokens = argc > 3 ? number(argv[3]) : 128, rounds = argc > 4 ? number(argv[4]) : 15;
    if (tokens < 2 || tokens > TOKENS_MAX || rounds < 1 || rounds > ROUNDS_MAX - 2)
        die("expected 2 to 4096 tokens and 1 to 198 rounds");
    int pid = start_server(argv[1], argv[2], &port);
    struct rh_host_options ho = {.threads = 1, .no_pin = true, .backend = "cpu", .spin_us = 20, .cpus_left = 1};
    if (rh_host_open(&ho, &h, &err) || rh_model_open(h, argv[2], &(struct rh_model_options){0}, &m, &err))
        die(err.text);
    int s = connect_to(port);
    by_library(m, 0, tokens); /* starts the threads that start late */
    by_server(s, 0, tokens);
    place(getpid());
    place(pid);
    for (int i = 0; i < rounds; i++) {
        if (i % 2)
            http[i] = by_server(s, i + 1, tokens);
        lib[i] = by_library(m, i + 1, tokens);
        if (i % 2 == 0)
            http[i] = by_server(s, i + 1, tokens);
    }
    double t0 = median(lib, rounds, false), t1 = median(http, rounds, false), f0 = median(lib, rounds, true), f1 = median(http, rounds, true);
    printf("%d rounds of %d + %d tokens\n", rounds, PROMPT, tokens);
    printf("ms per token:     library %.4f, HTTP %.4f, ratio %.4f\n", t0, t1, t1 / t0);
    printf("ms to the first:  library %.4f, HTTP %.4f, more %.4f\n", f0, f1, f1 - f0);
    close(s);
    rh_model_close(m);
    rh_host_close(h);
    kill(pid, SIGTERM);
    waitpid(pid, NULL, 0);
    return t1 / t0 <= 1.03 && f1 - f0 <= 1.0 ? 0 : 2;
}
