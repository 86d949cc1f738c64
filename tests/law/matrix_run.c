/* tests/law/matrix_run.c - one cell of the law matrix: the machine it runs on, what stands around the request, and the comparison. */
#include "law/matrix.h"

#include "base/buf.h"
#include "base/hash.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/backends.h"
#include "grammar/texts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { ROWS_MAX = 256, OTHERS = 7, STATE_BYTES = 48 << 20, IDS_MAX = 512 };

/* ---- the machine ---- */

static void close_machine(struct machine *m)
{
    if (m->engine)
        engine_close(m->engine);
    model_close(m->model);
    model_close(m->draft);
    if (m->device)
        device_backend(m->device)->device_close(m->device);
    *m = (struct machine){0};
}

static int id_bytes(void *ctx, uint32_t id, struct buf *out)
{
    (void)ctx;
    buf_printf(out, "<%u>", id);
    return out->failed;
}

/* "FORMAT", "FORMAT from START", or "FORMAT, one layer FORMAT" */
static int format_parse(const char *word, struct model_options *opt, struct model_kv_layer *one)
{
    static const char layer[] = ", one layer ", from[] = " from ";
    size_t n = strcspn(word, ", ");
    int rc = kv_formats_parse(word, n, &opt->k_format, &opt->v_format);
    if (strncmp(word + n, from, sizeof from - 1) == 0)
        opt->kv_start = (uint32_t)strtoul(word + n + sizeof from - 1, NULL, 10);
    if (rc || strncmp(word + n, layer, sizeof layer - 1))
        return rc;
    word += n + sizeof layer - 1;
    opt->kv_layers = one;
    opt->kv_layer_count = 1;
    return kv_formats_parse(word, strlen(word), &one->k_format, &one->v_format);
}

/* A layer's own format: the first layer that can have one. */
static int open_model(const char *path, struct device *d, const struct model_options *opt, struct model_kv_layer *one, struct model **out, struct err *err)
{
    int rc = model_open(path, d, opt, out, err);
    for (one->layer = 0; rc == ERR_FORMAT && opt->kv_layer_count && one->layer < 8;) {
        one->layer++;
        err_none(err);
        rc = model_open(path, d, opt, out, err);
    }
    return rc;
}

/* The first model of the list with the same vocabulary, if it can hold the format. */
static int open_draft(const struct matrix *x, struct machine *m, const struct model_options *opt, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < x->model_count && rc == 0 && !m->draft; i++) {
        rc = model_open(x->models[i], m->device, opt, &m->draft, err);
        if (rc == ERR_UNSUPPORTED && i != m->of_model)
            rc = 0, *err = (struct err){0};
        else if (rc == 0 && model_info(m->draft)->vocab != model_info(m->model)->vocab) {
            model_close(m->draft);
            m->draft = NULL;
        }
    }
    return rc;
}

static int open_machine(const struct matrix *x, struct machine *m, const struct machine *which, struct err *err)
{
    const struct machine_word *w = &machine_words[x->machine_first + which->of_machine];
    const struct backend *b;
    struct device_config dev = {.n_threads = w->threads, .level = w->level};
    struct model_options opt = {.rows_max = ROWS_MAX, .context = 512, .steps_in_flight = w->steps};
    struct model_kv_layer one = {0};
    close_machine(m);
    *m = *which;
    m->open = true;
    if (format_parse(kv_words[m->of_kv], &opt, &one))
        return err_set(err, ERR_ARGUMENT, "no state format '%s'", kv_words[m->of_kv]);
    int rc = backends_find(w->backend, &b, err);
    if (rc == 0)
        rc = b->device_open(&dev, &m->device, err);
    if (rc == 0)
        rc = open_model(x->models[m->of_model], m->device, &opt, &one, &m->model, err);
    opt.kv_start = opt.kv_layer_count = 0; /* the model's, not the draft's */
    if (rc == 0)
        rc = open_draft(x, m, &opt, err);
    if (rc == 0) {
        uint64_t bytes = model_info(m->model)->vocab > 4000 ? 4ull * STATE_BYTES : STATE_BYTES; /* a real model: its positions are larger */
        struct engine_config cfg = {.model = m->model, .device = m->device, .rows_max = ROWS_MAX, .steps_in_flight = w->steps,
                                    .state_bytes = bytes, .draft = m->draft, .draft_state_bytes = bytes, .id_bytes = id_bytes,
                                    .preempt_at = m->preempting ? 7 : 0, .hold_off = m == &x->plain};
        rc = engine_open(&cfg, &m->engine, err);
    }
    return rc;
}

/* ---- requests ---- */

/* Text that repeats itself, so that proposals are made and are sometimes right. */
static void prompt_make(uint32_t *ids, uint32_t n, uint32_t vocab, uint32_t seed)
{
    uint32_t run = 0, from = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t c[4] = {i, seed, 0, 0}, bits[4];
        rng_philox(5, c, bits);
        if (run == 0 && i > 24 && bits[1] % 8 == 0) {
            run = 10 + bits[2] % 20;
            from = bits[3] % (i - 20);
        }
        ids[i] = run ? ids[from++] : bits[0] % vocab;
        run -= run > 0;
    }
}

/* Ids as the texts "<ID>", for a constraint on texts; made for one vocabulary at a time. */
static struct id_texts *texts_of(uint32_t vocab)
{
    static struct id_texts t;
    static struct buf bytes;
    if (t.count == vocab)
        return &t;
    mem_free(t.order);
    mem_free((void *)(uintptr_t)t.ends);
    mem_free((void *)(uintptr_t)t.special);
    bytes.n = 0;
    uint32_t *ends = mem_try_array(vocab, sizeof *ends), *special = mem_try_zero(constraint_words(vocab), sizeof *special);
    for (uint32_t id = 0; ends && id < vocab; id++) {
        id_bytes(NULL, id, &bytes);
        ends[id] = (uint32_t)bytes.n;
    }
    t = (struct id_texts){.count = vocab, .bytes = bytes.p, .ends = ends, .special = special};
    if (!ends || !special || bytes.failed || id_texts_sort(&t, NULL))
        abort();
    return &t;
}

/* One of these texts, the model's choice where they part, forced where it has none. */
static int open_beginning(void *ctx, uint32_t vocab, struct constraint **out, struct err *err)
{
    static const struct str texts[] = {STR("<3><8><21><5><34><55><13>"), STR("<3><9><2><40><41>"), STR("<7><3>")};
    struct texts_config cfg = {.ids = texts_of(vocab), .texts = texts, .count = 3};
    (void)ctx;
    return constraint_texts_open(&cfg, vocab, out, err);
}

static struct engine_request_config request_config(const struct sampling_word *s, uint64_t seed)
{
    struct engine_request_config c = {.max_tokens = TOKENS, .n = s->n, .top = s->top, .logprobs = s->logprobs, .penalty_window = s->window};
    c.sampling = (struct sample_params){.temperature = s->temperature, .top_p = s->top_p, .typical_p = 1, .repetition_penalty = s->repetition,
                                        .presence_penalty = s->presence, .seed = seed, .order = {0, 1, 2, 3, 4, 5}};
    static const uint32_t some[] = {1, 4, 9, 16, 25, 36, 49, 64, 81, 100, 121, 144, 169, 196, 225, 256, 289, 324, 361};
    static const struct constraint_source beginning = {open_beginning, NULL};
    c.pool = s->pool;
    c.constraint = s->begins ? &beginning : NULL;
    if (s->some_ids) {
        c.allowed_ids = some;
        c.allowed_count = sizeof some / sizeof *some;
    }
    return c;
}

static struct engine_request *submit(struct machine *m, const struct engine_request_config *c, const uint32_t *ids, uint32_t n)
{
    struct err err = {0};
    struct engine_request *r = NULL;
    if (engine_request_new(m->engine, c, &r, &err) || engine_submit(r, ids, n, &err)) {
        printf("submit: %s\n", err.text);
        if (r)
            engine_request_release(r);
        return NULL;
    }
    return r;
}

/* Returns how many positions of the prompt were known. */
static uint32_t finish(struct machine *m, struct engine_request *r, uint32_t n, struct answer *out)
{
    struct answer dropped;
    struct answer *a = out ? out : &dropped;
    memset(a, 0, sizeof *a);
    for (uint32_t done = 0; done < n;) {
        struct engine_event e;
        uint32_t seen = engine_request_seen(r);
        while (engine_poll(r, &e)) {
            uint32_t at = a->choice[e.choice].count;
            if (e.kind == ENGINE_DONE) {
                a->choice[e.choice].finish = 1 + engine_request_outcome(r, e.choice)->finish;
                done++;
                continue;
            }
            if (at == TOKENS)
                continue;
            a->choice[e.choice].ids[at] = e.id;
            a->choice[e.choice].logprobs[at] = e.logprob;
            for (uint32_t t = 0; t < e.top_count && t < TOP; t++) {
                a->choice[e.choice].top_ids[at][t] = e.top_ids[t];
                a->choice[e.choice].top_logprobs[at][t] = e.top_logprobs[t];
            }
            a->choice[e.choice].count++;
        }
        if (done < n)
            engine_request_wait(r, seen, -1);
    }
    const float *pooled = engine_request_outcome(r, 0)->pooled;
    if (pooled) {
        struct hash128 h = hash_xxh3(pooled, model_info(m->model)->hidden * sizeof *pooled);
        a->embedding[0] = h.lo;
        a->embedding[1] = h.hi;
    }
    uint32_t known = engine_request_outcome(r, 0)->cached_count;
    engine_request_release(r);
    return known;
}

static void run_to_end(struct machine *m, const struct engine_request_config *c, const uint32_t *ids, uint32_t n, struct answer *out)
{
    struct engine_request *r = submit(m, c, ids, n);
    if (r)
        finish(m, r, c->n ? c->n : 1, out);
}

/* ---- what stands before and beside ---- */

static int nothing(void *ctx, struct kv *kv, struct err *err)
{
    (void)ctx, (void)kv, (void)err;
    return 0;
}

/* What other cells left is not there: a cell finds what it asks for, no more. */
static void forget(struct machine *m)
{
    struct err err = {0};
    if (engine_exclusive(m->engine, nothing, NULL, &err))
        printf("forget: %s\n", err.text);
}

/* To the end, with a boundary: layers that forget can be gone on with there. */
static void leave(struct machine *m, const uint32_t *ids, uint32_t n, uint32_t boundary)
{
    struct err err = {0};
    struct engine_request *r = NULL;
    struct engine_request_config c = request_config(&sampling_words[0], 1);
    c.max_tokens = 8;
    if (engine_request_new(m->engine, &c, &r, &err) || engine_request_boundaries(r, &boundary, 1, &err) || engine_submit(r, ids, n, &err)) {
        printf("submit: %s\n", err.text);
        engine_request_release(r);
        return;
    }
    finish(m, r, 1, NULL);
}

/* The state the cell wants to find: what an earlier request left.  Returns how much of the prompt is known then. */
static uint32_t warm(struct machine *m, enum cache_word cache, const uint32_t *prompt, uint32_t vocab)
{
    uint32_t ids[IDS_MAX];
    forget(m);
    memcpy(ids, prompt, PROMPT * sizeof *ids);
    switch (cache) {
    case CACHE_HIT:
        leave(m, ids, PROMPT, 1);
        return PROMPT - 1;
    case CACHE_PARTIAL:
        prompt_make(ids + PROMPT / 2, PROMPT / 2, vocab, 77);
        ids[PROMPT / 2] = (prompt[PROMPT / 2] + 1) % vocab;
        leave(m, ids, PROMPT, PROMPT / 2);
        return PROMPT / 2;
    case CACHE_REWIND: /* a longer text went on from it and is given up */
        prompt_make(ids + PROMPT - 1, 60, vocab, 78);
        ids[PROMPT - 1] = (prompt[PROMPT - 1] + 1) % vocab;
        leave(m, ids, PROMPT + 59, PROMPT - 1);
        return PROMPT - 1;
    case CACHE_COLD:
    case CACHE_PREEMPT:
    case CACHE_WORDS:
        break;
    }
    return 0;
}

static uint32_t neighbours(struct machine *m, const struct cell *cell, uint32_t vocab, struct engine_request **out, uint32_t *choices)
{
    uint32_t count = 0, ids[IDS_MAX];
    for (uint32_t i = 0; i < OTHERS && cell->word[AXIS_COMPANY] == 1; i++) {
        const struct sampling_word *s = &sampling_words[i % sampling_count];
        struct engine_request_config c = request_config(s, 100 + i);
        uint32_t n = 10 + 20 * i;
        c.chunk_max = i % 3 ? 0 : 9;
        c.max_tokens = 6 + 6 * i; /* some end before it, some are given up with it */
        c.propose = propose_words[(i + cell->word[AXIS_CUT]) % propose_count].propose;
        prompt_make(ids, n, vocab, 200 + i);
        choices[count] = s->n;
        out[count] = submit(m, &c, ids, n);
        count += out[count] != NULL;
    }
    return count;
}

/* False: it found another state than the cell asks for. */
static bool run_request(struct machine *m, const struct cell *cell, bool plain, struct answer *out)
{
    const struct propose_word *p = &propose_words[cell->word[AXIS_PROPOSE]];
    struct engine_request_config c = request_config(&sampling_words[cell->word[AXIS_SAMPLING]], 42);
    struct engine_request *others[OTHERS], *mine;
    uint32_t choices[OTHERS], prompt[PROMPT], vocab = model_info(m->model)->vocab;
    vocab = vocab < 4000 ? vocab : 4000;
    prompt_make(prompt, PROMPT, vocab, 9);
    enum cache_word cache = (enum cache_word)cell->word[AXIS_CACHE];
    c.no_reuse = plain || cache == CACHE_COLD;
    if (plain) {
        run_to_end(m, &c, prompt, PROMPT, out);
        return true;
    }
    uint32_t known = warm(m, cache, prompt, vocab), found = 0;
    c.chunk_max = cell->word[AXIS_CUT] == 1 ? 1 + (cell->word[AXIS_SAMPLING] * 7 + cell->word[AXIS_MODEL] * 5 + cell->word[AXIS_KV]) % 37 : 0;
    c.propose = p->propose;
    c.propose_depth = p->depth;
    uint32_t count = neighbours(m, cell, vocab, others, choices);
    memset(out, 0, sizeof *out);
    mine = submit(m, &c, prompt, PROMPT);
    if (mine)
        found = finish(m, mine, c.n, out);
    for (uint32_t i = 0; i < count; i++)
        engine_request_cancel(others[i]);
    for (uint32_t i = 0; i < count; i++)
        finish(m, others[i], choices[i], NULL);
    known = c.pool == ENGINE_POOL_MEAN ? 0 : known; /* all its rows are wanted */
    if (found != known)
        printf("%u positions were known, expected %u\n", found, known);
    return found == known;
}

/* ---- cells ---- */

static void tell(const struct matrix *m, const struct cell *cell, const char *what)
{
    printf("%s:", what);
    for (uint32_t a = 0; a < AXIS_COUNT; a++)
        printf(" %s%s", matrix_word(m, a, cell->word[a]), a + 1 < AXIS_COUNT ? " |" : "\n");
}

static enum verdict machine_for(struct matrix *x, struct machine *m, const struct cell *cell, uint32_t machine, bool preempting)
{
    struct err err = {0};
    struct machine which = {.of_model = cell->word[AXIS_MODEL], .of_kv = cell->word[AXIS_KV], .of_machine = machine, .preempting = preempting};
    if (!m->open || m->of_model != which.of_model || m->of_kv != which.of_kv || m->of_machine != machine || m->preempting != preempting) {
        int rc = open_machine(x, m, &which, &err);
        m->refused = rc == ERR_UNSUPPORTED;
        if (rc && rc != ERR_UNSUPPORTED) {
            tell(x, cell, err.text);
            close_machine(m);
            return CELL_WRONG;
        }
        if (m->refused)
            printf("refused: %s\n", err.text);
    }
    return m->refused ? CELL_REFUSED : CELL_GOOD;
}

static bool whole(const struct answer *a, const struct cell *cell)
{
    const struct sampling_word *s = &sampling_words[cell->word[AXIS_SAMPLING]];
    if (s->pool)
        return a->choice[0].count == 0 && a->embedding[0];
    return a->choice[0].count == TOKENS && (!s->begins || a->choice[0].ids[0] == 3 || a->choice[0].ids[0] == 7);
}

/* The first machine with that backend is the plain one. */
static uint32_t plain_machine(const struct matrix *x, uint32_t machine)
{
    const struct machine_word *words = machine_words + x->machine_first;
    uint32_t i = 0;
    while (strcmp(words[i].backend, words[machine].backend) != 0)
        i++;
    return i;
}

static enum verdict find_plain(struct matrix *x, const struct cell *cell, const struct answer **out)
{
    uint32_t machine = plain_machine(x, cell->word[AXIS_MACHINE]);
    size_t at = (size_t)cell->word[AXIS_MODEL] * x->sizes[AXIS_KV] + cell->word[AXIS_KV];
    struct plain_answer *p = &x->answers[(at * x->sizes[AXIS_MACHINE] + machine) * sampling_count + cell->word[AXIS_SAMPLING]];
    *out = &p->answer;
    if (atomic_load(&p->there))
        return whole(&p->answer, cell) ? CELL_GOOD : CELL_WRONG;
    enum verdict v = machine_for(x, &x->plain, cell, machine, false);
    if (v != CELL_GOOD)
        return v;
    struct answer answer;
    run_request(&x->plain, cell, true, &answer);
    p->answer = answer;
    atomic_store(&p->there, true);
    return whole(&answer, cell) ? CELL_GOOD : CELL_WRONG;
}

enum verdict matrix_run(struct matrix *x, const struct cell *cell)
{
    bool preempting = cell->word[AXIS_CACHE] == CACHE_PREEMPT;
    struct engine_stats before, after;
    const struct answer *plain;
    struct answer got;
    enum verdict v = find_plain(x, cell, &plain);
    if (v == CELL_GOOD)
        v = machine_for(x, &x->cells, cell, cell->word[AXIS_MACHINE], preempting);
    if (v != CELL_GOOD)
        return v;
    engine_stats(x->cells.engine, &before);
    bool as_asked = run_request(&x->cells, cell, false, &got);
    engine_stats(x->cells.engine, &after);
    if (!as_asked) {
        tell(x, cell, "another state than asked for");
        return CELL_WRONG;
    }
    if (memcmp(&got, plain, sizeof got) != 0) {
        tell(x, cell, "MISMATCH");
        return CELL_WRONG;
    }
    if (mem_forbidden_count() != 0) {
        tell(x, cell, "a step asked for memory");
        return CELL_WRONG;
    }
    bool embeds = sampling_words[cell->word[AXIS_SAMPLING]].pool != ENGINE_POOL_NONE; /* it has no tokens after which it could be */
    if (preempting && !embeds && after.preempted == before.preempted) {
        tell(x, cell, "nothing was pre-empted");
        return CELL_WRONG;
    }
    return CELL_GOOD;
}

void matrix_open(struct matrix *m, uint32_t model_count, const char *const *models, const char *device, bool few)
{
    *m = (struct matrix){.model_count = model_count < MODELS_MAX ? model_count : MODELS_MAX};
    memcpy(m->models, models, m->model_count * sizeof *models);
    m->sizes[AXIS_MODEL] = m->model_count;
    m->sizes[AXIS_KV] = few && kv_count > 4 ? 4 : kv_count; /* large models: the plain formats, which come first */
    for (uint32_t i = 0; i < machine_count; i++) { /* those of a backend stand together */
        bool in = device ? strcmp(machine_words[i].backend, device) == 0 : strcmp(machine_words[i].backend, "cuda") != 0;
        if (in && m->sizes[AXIS_MACHINE]++ == 0)
            m->machine_first = i;
    }
    m->sizes[AXIS_CACHE] = CACHE_WORDS;
    m->sizes[AXIS_COMPANY] = 2;
    m->sizes[AXIS_CUT] = 2;
    m->sizes[AXIS_PROPOSE] = propose_count;
    m->sizes[AXIS_SAMPLING] = sampling_count;
    m->answer_bytes = (size_t)m->model_count * m->sizes[AXIS_KV] * m->sizes[AXIS_MACHINE] * sampling_count * sizeof *m->answers;
    void *shared = mmap(NULL, m->answer_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        abort();
    m->answers = shared;
}

void matrix_close(struct matrix *m)
{
    close_machine(&m->cells);
    close_machine(&m->plain);
    munmap(m->answers, m->answer_bytes);
}
