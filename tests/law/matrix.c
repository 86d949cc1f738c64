/* tests/law/matrix.c - the first law over the engine: whatever is combined, a request's answer is the bytes of its plain run.
 *
 * usage: law_matrix [pairs|triples|full] [-j JOBS] [--shard I/N] [--count] [--cpu] [--device cuda] [--table FILE] MODEL...
 *
 * --cpu: large models: no backend ref, four formats.  -j: so many processes.  --shard: of N parts the I-th, counted from 1.  --count: only says
 * how many cells there are.
 *
 * The plain run: the request alone, its prompt in one span, cold, no proposals, one thread, one step in flight.  An axis is a list of words
 * below; cells are chosen so that every pair (every triple) of words of different axes occurs in one, or all of them.  A cell that a
 * format or a backend cannot hold must be refused by name, and is counted apart.
 * Owns: nothing that outlives it.  The machine of a cell (model, state format, threads) is opened once for all its cells. */
#include "law/matrix.h"

#include "base/mem.h"
#include "base/thread.h"
#include "ops/random_weight.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- choosing cells ---- */

/* One bit a combination of `strength` words; cells are taken greedily while they cover something new. */
struct cover {
    uint32_t strength, sizes[AXIS_COUNT];
    uint64_t left;
    unsigned char *seen; /* by combination_index */
    size_t combos;
    uint32_t base[AXIS_COUNT + 1]; /* words numbered over all axes */
};

static size_t combination_index(const struct cover *c, const uint32_t *words)
{
    size_t at = 0, all = c->base[AXIS_COUNT];
    for (uint32_t i = 0; i < c->strength; i++)
        at = at * all + words[i];
    return at;
}

/* The next ascending choice of `strength` axes. */
static bool next_axes(uint32_t *axes, uint32_t strength)
{
    for (uint32_t i = strength; i-- > 0;)
        if (axes[i] + (strength - i) < AXIS_COUNT) {
            axes[i]++;
            for (uint32_t j = i + 1; j < strength; j++)
                axes[j] = axes[j - 1] + 1;
            return true;
        }
    return false;
}

/* New combinations a cell covers; with `mark` they count as seen. */
static uint32_t gain(struct cover *c, const struct cell *cell, uint32_t known, bool mark)
{
    uint32_t axes[3] = {0, 1, 2}, n = 0;
    do {
        uint32_t words[3];
        if (axes[c->strength - 1] >= known)
            continue;
        for (uint32_t i = 0; i < c->strength; i++)
            words[i] = c->base[axes[i]] + cell->word[axes[i]];
        size_t at = combination_index(c, words);
        n += !c->seen[at];
        if (mark && !c->seen[at]) {
            c->seen[at] = 1;
            c->left--;
        }
    } while (next_axes(axes, c->strength));
    return n;
}

static uint64_t all_combinations(const struct cover *c)
{
    uint32_t axes[3] = {0, 1, 2};
    uint64_t sum = 0;
    do {
        uint64_t n = 1;
        for (uint32_t i = 0; i < c->strength; i++)
            n *= c->sizes[axes[i]];
        sum += n;
    } while (next_axes(axes, c->strength));
    return sum;
}

static void shuffled_axes(uint64_t *s, uint32_t *order)
{
    for (uint32_t i = 0; i < AXIS_COUNT; i++) {
        uint32_t j = random_u32(s) % (i + 1);
        order[i] = order[j];
        order[j] = i;
    }
}

/* One candidate: a combination not seen yet is fixed, the other words are drawn. */
static void draw_cell(const struct cover *c, uint64_t *s, const struct cell *seed, uint32_t fixed, struct cell *out)
{
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        out->word[a] = fixed >> a & 1 ? seed->word[a] : random_u32(s) % c->sizes[a];
}

static bool first_missing(const struct cover *c, uint64_t *s, struct cell *seed, uint32_t *fixed)
{
    uint32_t order[AXIS_COUNT] = {0}, axes[3] = {0, 1, 2};
    shuffled_axes(s, order);
    do {
        uint64_t n = 1;
        for (uint32_t i = 0; i < c->strength; i++)
            n *= c->sizes[axes[i]];
        for (uint64_t k = 0, from = random_u32(s) % n; k < n; k++) {
            uint64_t rest = (k + from) % n;
            uint32_t words[3];
            *fixed = 0;
            for (uint32_t i = 0; i < c->strength; i++) {
                seed->word[axes[i]] = (uint32_t)(rest % c->sizes[axes[i]]);
                rest /= c->sizes[axes[i]];
                words[i] = c->base[axes[i]] + seed->word[axes[i]];
                *fixed |= 1u << axes[i];
            }
            if (!c->seen[combination_index(c, words)])
                return true;
        }
    } while (next_axes(axes, c->strength));
    return false;
}

int cells_cover(const uint32_t *sizes, uint32_t strength, struct cell **out, uint32_t *count)
{
    struct cover c = {.strength = strength};
    uint64_t s = 11;
    uint32_t cap = 0;
    memcpy(c.sizes, sizes, sizeof c.sizes);
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        c.base[a + 1] = c.base[a] + sizes[a];
    c.combos = 1;
    for (uint32_t i = 0; i < strength; i++)
        c.combos *= c.base[AXIS_COUNT];
    c.left = all_combinations(&c);
    c.seen = mem_try_zero(c.combos, 1);
    *out = NULL;
    *count = 0;
    if (!c.seen)
        return ERR_NOMEM;
    while (c.left) {
        struct cell seed = {0}, best = {0}, one;
        uint32_t fixed = 0, most = 0;
        if (!first_missing(&c, &s, &seed, &fixed))
            break;
        for (uint32_t i = 0; i < 40; i++) {
            draw_cell(&c, &s, &seed, fixed, &one);
            uint32_t g = gain(&c, &one, AXIS_COUNT, false);
            if (g > most)
                most = g, best = one;
        }
        if (*count == cap) {
            cap = cap ? 2 * cap : 256;
            struct cell *more = mem_try_resize(*out, cap * sizeof **out);
            if (!more)
                return mem_free(c.seen), ERR_NOMEM;
            *out = more;
        }
        gain(&c, &best, AXIS_COUNT, true);
        (*out)[(*count)++] = best;
    }
    mem_free(c.seen);
    return 0;
}

int cells_all(const uint32_t *sizes, struct cell **out, uint32_t *count)
{
    uint64_t n = 1;
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        n *= sizes[a];
    *count = (uint32_t)n;
    *out = mem_try_array(n, sizeof **out);
    for (uint64_t i = 0; *out && i < n; i++) {
        uint64_t rest = i;
        for (uint32_t a = 0; a < AXIS_COUNT; a++) {
            (*out)[i].word[a] = (uint32_t)(rest % sizes[a]);
            rest /= sizes[a];
        }
    }
    return *out ? 0 : ERR_NOMEM;
}

/* ---- the table ---- */

/* For every pair of words: cells that held it, mismatches, refusals. */
struct pair_count {
    uint32_t cells, wrong, refused;
};

struct table {
    struct pair_count *pairs; /* [words][words] */
    uint32_t base[AXIS_COUNT + 1];
};

static void table_add(struct table *t, const struct cell *cell, enum verdict v)
{
    uint32_t all = t->base[AXIS_COUNT];
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        for (uint32_t b = 0; b < AXIS_COUNT; b++) {
            struct pair_count *p = &t->pairs[(size_t)(t->base[a] + cell->word[a]) * all + t->base[b] + cell->word[b]];
            p->cells += v != CELL_REFUSED;
            p->wrong += v == CELL_WRONG;
            p->refused += v == CELL_REFUSED;
        }
}

static void table_print(FILE *f, const struct table *t, const struct matrix *m, const char *what)
{
    uint32_t all = t->base[AXIS_COUNT];
    fprintf(f, "One row for every two axes: how many pairs of their words were run, in how many cells, with how many mismatches; `refused` counts "
               "cells that a format or backend cannot hold and refused by name. Chosen as: %s.\n\n", what);
    fprintf(f, "| axis | axis | pairs of words run | of | cells | mismatches | refused |\n|---|---|---|---|---|---|---|\n");
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        for (uint32_t b = a + 1; b < AXIS_COUNT; b++) {
            uint32_t run = 0, cells = 0, wrong = 0, refused = 0;
            for (uint32_t i = t->base[a]; i < t->base[a + 1]; i++)
                for (uint32_t j = t->base[b]; j < t->base[b + 1]; j++) {
                    const struct pair_count *p = &t->pairs[(size_t)i * all + j];
                    run += p->cells > 0;
                    cells += p->cells;
                    wrong += p->wrong;
                    refused += p->refused;
                }
            fprintf(f, "| %s | %s | %u | %u | %u | %u | %u |\n", matrix_axis_name(a), matrix_axis_name(b), run,
                    m->sizes[a] * m->sizes[b], cells, wrong, refused);
        }
    fprintf(f, "\nThe words:\n\n");
    for (uint32_t a = 0; a < AXIS_COUNT; a++) {
        fprintf(f, "- %s:", matrix_axis_name(a));
        for (uint32_t i = 0; i < m->sizes[a]; i++)
            fprintf(f, "%s %s", i ? "," : "", matrix_word(m, a, i));
        fprintf(f, "\n");
    }
}

/* Cells of one machine one after the other. */
static int by_machine(const void *a, const void *b)
{
    const struct cell *x = a, *y = b;
    for (uint32_t i = 0; i < AXIS_COUNT; i++)
        if (x->word[i] != y->word[i])
            return x->word[i] < y->word[i] ? -1 : 1;
    return 0;
}

/* ---- running them ---- */

enum { UNIT_CELLS = 120, CELL_SECONDS = 600, JOBS_MAX = 256, CELL_NOT_RUN = 3 };

/* How it was asked for. */
struct options {
    const char *what, *device, *table_path;
    bool cpu, count;
    uint32_t jobs, shard, shards; /* shard 1 .. shards */
    int models_at;
};

/* Cells that one process runs one after the other: of a model and state format, mostly of one machine. */
struct unit {
    uint32_t first, end;
};
/* what the processes share; one mapping */
struct shared {
    _Atomic uint32_t next_unit;
    unsigned char verdict[]; /* [cells] */
};

static uint32_t words_in_common(const struct cell *a, const struct cell *b)
{
    uint32_t n = 0;
    while (n < AXIS_COUNT && a->word[n] == b->word[n])
        n++;
    return n;
}

static uint32_t units_make(const struct cell *cells, uint32_t count, struct unit *out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t same = i ? words_in_common(&cells[i - 1], &cells[i]) : 0;
        if (same <= AXIS_KV || i - out[n - 1].first >= UNIT_CELLS)
            out[n++].first = i;
        out[n - 1].end = i + 1;
    }
    return n;
}

static void work(const struct options *o, struct matrix *m, const struct cell *cells, const struct unit *units, uint32_t unit_count,
                 struct shared *shared)
{
    uint32_t u;
    while ((u = atomic_fetch_add(&shared->next_unit, 1)) < unit_count)
        for (uint32_t i = units[u].first; u % o->shards == o->shard - 1 && i < units[u].end; i++) {
            alarm(CELL_SECONDS); /* what hangs is not run */
            shared->verdict[i] = (unsigned char)matrix_run(m, &cells[i]);
            fflush(stdout);
        }
    alarm(0);
    matrix_close(m);
}

/* In processes of their own: one that dies takes no other with it. */
static int run_cells(const struct options *o, struct matrix *m, const struct cell *cells, const struct unit *units, uint32_t unit_count,
                     struct shared *shared)
{
    int failed = 0, status;
    fflush(stdout);
    for (uint32_t j = 0; j < o->jobs; j++) {
        pid_t pid = fork();
        if (pid == 0) {
            work(o, m, cells, units, unit_count, shared);
            fflush(stdout);
            _exit(0);
        }
        failed += pid < 0;
    }
    while (wait(&status) > 0)
        if (!WIFEXITED(status) || WEXITSTATUS(status)) {
            printf("a process ended with status %#x: its cells were not run\n", (unsigned)status);
            failed++;
        }
    return failed;
}

static bool option_number(const char *text, const char *format, uint32_t *a, uint32_t *b)
{
    int n = 0;
    return (b ? sscanf(text, format, a, b, &n) == 2 : sscanf(text, format, a, &n) == 1) && text[n] == 0;
}

static bool parse(int argc, char **argv, struct options *o)
{
    *o = (struct options){.what = "pairs", .jobs = 1, .shard = 1, .shards = 1};
    int at = 1;
    bool good = true;
    for (; at < argc && good; at++) {
        const char *word = argv[at], *value = at + 1 < argc ? argv[at + 1] : "";
        if (!strcmp(word, "pairs") || !strcmp(word, "triples") || !strcmp(word, "full"))
            o->what = word;
        else if (!strcmp(word, "--cpu"))
            o->cpu = true;
        else if (!strcmp(word, "--count"))
            o->count = true;
        else if (!strcmp(word, "--device"))
            o->device = value, at++;
        else if (!strcmp(word, "--table"))
            o->table_path = value, at++;
        else if (!strcmp(word, "-j"))
            good = option_number(value, "%u%n", &o->jobs, NULL) && o->jobs && o->jobs <= JOBS_MAX, at++;
        else if (!strcmp(word, "--shard"))
            good = option_number(value, "%u/%u%n", &o->shard, &o->shards) && o->shard && o->shard <= o->shards, at++;
        else
            break;
    }
    o->models_at = at;
    o->device = o->cpu ? "cpu" : o->device;
    return good && at < argc && argv[at][0] != '-';
}

/* The table of what was run, and whether all of it was good. */
static int tell_all(const struct options *o, const struct matrix *m, const struct cell *cells, const struct unit *units, uint32_t unit_count,
                    const struct shared *shared, double seconds)
{
    struct table t = {0};
    uint32_t good = 0, wrong = 0, refused = 0, missing = 0;
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        t.base[a + 1] = t.base[a] + m->sizes[a];
    t.pairs = mem_try_zero((size_t)t.base[AXIS_COUNT] * t.base[AXIS_COUNT], sizeof *t.pairs);
    FILE *f = o->table_path ? fopen(o->table_path, "w") : stdout;
    if (!t.pairs || !f)
        return 1;
    for (uint32_t u = o->shard - 1; u < unit_count; u += o->shards)
        for (uint32_t i = units[u].first; i < units[u].end; i++) {
            unsigned char v = shared->verdict[i];
            good += v == CELL_GOOD;
            wrong += v == CELL_WRONG;
            refused += v == CELL_REFUSED;
            missing += v == CELL_NOT_RUN;
            table_add(&t, &cells[i], v == CELL_NOT_RUN ? CELL_WRONG : (enum verdict)v);
        }
    table_print(f, &t, m, o->what);
    if (o->table_path)
        fclose(f);
    mem_free(t.pairs);
    printf("%s: %u cells, %u mismatches, %u refused by name, %u not run; %.0f s, %.1f cells/s\n", o->what, good + wrong, wrong, refused, missing,
           seconds, (good + wrong) / seconds);
    return wrong != 0 || missing != 0 || good == 0;
}

int main(int argc, char **argv)
{
    struct options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: law_matrix [pairs|triples|full] [-j JOBS] [--shard I/N] [--count] [--cpu] [--device cuda] [--table FILE] MODEL...\n");
        return 2;
    }
    static struct matrix m; /* each process opens what its cells need, the plain answers are shared */
    struct cell *cells = NULL;
    uint32_t count = 0, model_count = (uint32_t)(argc - o.models_at);
    char **models = argv + o.models_at;
    int64_t began = thread_now_ns();
    matrix_open(&m, model_count, (const char *const *)models, o.device, o.cpu);
    int rc = !strcmp(o.what, "full") ? cells_all(m.sizes, &cells, &count) : cells_cover(m.sizes, o.what[0] == 'p' ? 2 : 3, &cells, &count);
    struct unit *units = rc ? NULL : mem_try_zero(count, sizeof *units);
    size_t bytes = sizeof(struct shared) + count;
    struct shared *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!units || shared == MAP_FAILED)
        return 1;
    qsort(cells, count, sizeof *cells, by_machine);
    memset(shared->verdict, CELL_NOT_RUN, count);
    uint32_t unit_count = units_make(cells, count, units);
    if (o.count) {
        printf("%s: %u cells in %u units\n", o.what, count, unit_count);
        return 0;
    }
    int failed = run_cells(&o, &m, cells, units, unit_count, shared);
    rc = tell_all(&o, &m, cells, units, unit_count, shared, (double)(thread_now_ns() - began) / 1e9);
    matrix_close(&m);
    munmap(shared, bytes);
    mem_free(cells);
    mem_free(units);
    return rc || failed;
}
