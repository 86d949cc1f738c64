/* front/lib_model.c - a model of the public library: files, text tables, weights and engine, opened side by side.
 *
 * Lifetime: rh_model_close ends the engine and frees the weights; the text tables stay until the last request is freed, because a
 * request may still be polled. */
#include "base/log.h"
#include "base/mem.h"
#include "front/front_int.h"

#include <stdlib.h>

void model_ref(struct rh_model *m)
{
    atomic_fetch_add(&m->refs, 1);
}

void model_unref(struct rh_model *m)
{
    if (!m || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    texts_close(&m->texts);
    history_close(&m->history);
    pthread_mutex_destroy(&m->mutex);
    mem_free(m->path);
    mem_free(m->end_ids);
    mem_free(m->kv_layers);
    call_ids_free(m->call_ids);
    mem_free(m);
}

/* ---- opening ---- */

/* Tokenizer and template are opened by a thread of their own while the weights are prepared. */
struct texts_job {
    struct rh_model *m;
    const char *template_source;
    struct err err;
    int rc;
};

static void *texts_thread(void *arg)
{
    struct texts_job *job = arg;
    job->rc = texts_open(&job->m->texts, job->m->path, job->template_source, &job->err);
    return NULL;
}

static int load_weights(struct rh_model *m, struct err *err)
{
    int rc = model_admit(m, m->path, &m->options, m->gpu_layers, m->host->state_bytes, err);
    if (rc)
        return rc;
    engine_gate_enter(&m->host->gate);
    rc = model_open(m->path, m->host->device, &m->options, &m->model, err);
    engine_gate_leave(&m->host->gate);
    return rc;
}

static int load_both(struct rh_model *m, const struct rh_model_options *opt, struct err *err)
{
    struct texts_job job = {.m = m, .template_source = opt->chat_template};
    pthread_t thread;
    bool apart = !opt->inspect_only && pthread_create(&thread, NULL, texts_thread, &job) == 0;
    if (!apart)
        texts_thread(&job);
    int rc = opt->inspect_only ? 0 : load_weights(m, err);
    if (apart)
        pthread_join(thread, NULL);
    if (rc == 0 && job.rc) {
        *err = job.err;
        rc = job.rc;
    }
    return rc;
}

/* ---- ids that end a text ---- */

static int by_value(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int collect_end_ids(struct rh_model *m, struct err *err)
{
    uint32_t own_count = 0, n = 0;
    const uint32_t *own = model_eos_ids(m->model, &own_count);
    const struct tokenizer_info *t = &m->texts.info;
    m->end_ids = mem_try_array(own_count + t->eog_count, sizeof *m->end_ids);
    if (!m->end_ids)
        return err_nomem(err, "end ids", own_count + t->eog_count);
    for (uint32_t i = 0; i < own_count; i++)
        m->end_ids[n++] = own[i];
    for (uint32_t i = 0; i < t->eog_count; i++)
        m->end_ids[n++] = t->eog[i];
    qsort(m->end_ids, n, sizeof *m->end_ids, by_value);
    for (uint32_t i = 0; i < n; i++)
        if (m->end_count == 0 || m->end_ids[m->end_count - 1] != m->end_ids[i])
            m->end_ids[m->end_count++] = m->end_ids[i];
    return 0;
}

/* ---- the draft model ---- */

/* Guesses are ids, so both models must mean the same by every one. */
static int check_draft_texts(const struct rh_model *m, const struct texts *d, const char *name, struct err *err)
{
    const struct tokenizer_info *a = &m->texts.info, *b = &d->info;
    if (a->vocab_size != b->vocab_size)
        return err_set(err, ERR_UNSUPPORTED, "draft '%.300s': its tokenizer has %u tokens, the model's %u", name, b->vocab_size, a->vocab_size);
    for (uint32_t id = 0; id < a->vocab_size; id++) {
        struct str x = tokenizer_piece(m->texts.tokenizer, id), y = tokenizer_piece(d->tokenizer, id);
        if (x.n != y.n || memcmp(x.p, y.p, x.n))
            return err_set(err, ERR_UNSUPPORTED, "draft '%.300s': token %u is '%.*s', the model's is '%.*s'", name, id,
                           (int)(y.n < 100 ? y.n : 100), y.p, (int)(x.n < 100 ? x.n : 100), x.p);
    }
    return 0;
}

static int load_draft(struct rh_model *m, const char *name, struct err *err)
{
    struct texts texts = {0};
    struct model_options opt = m->options;
    uint32_t context = model_info(m->model)->context;
    char *path = NULL;
    opt.progress = NULL;
    opt.context = 0;
    opt.kv_layers = NULL; /* the model's layers, not the draft's */
    opt.kv_layer_count = 0;
    opt.kv_start = 0;
    int rc = find_model(m->host->store_dir, name, &path, err);
    if (rc == 0)
        rc = texts_open(&texts, path, NULL, err);
    if (rc == 0)
        rc = check_draft_texts(m, &texts, name, err);
    if (rc == 0)
        rc = model_admit(m, path, &opt, RH_GPU_LAYERS_ALL, 0, err);
    engine_gate_enter(&m->host->gate);
    if (rc == 0)
        rc = model_open(path, m->host->device, &opt, &m->draft, err);
    if (rc == 0 && model_info(m->draft)->context > context) { /* no use for more positions than the model has */
        model_close(m->draft);
        m->draft = NULL;
        opt.context = context;
        rc = model_open(path, m->host->device, &opt, &m->draft, err);
    }
    engine_gate_leave(&m->host->gate);
    texts_close(&texts);
    mem_free(path);
    if (rc)
        err_prefix(err, "draft");
    return rc;
}

/* ---- engine ---- */

/* The bytes an id adds to the text that is shown: special tokens add none. */
static int id_bytes(void *ctx, uint32_t id, struct buf *out)
{
    const struct rh_model *m = ctx;
    return tokenizer_is_special(m->texts.tokenizer, id) ? 0 : tokenizer_id_bytes(m->texts.tokenizer, id, false, out);
}

/* What is left of a device's own memory holds both, or nothing is started. */
static int admit_state(const struct rh_model *m, const struct plan_space *space, struct err *err)
{
    uint64_t needed = m->state_budget + m->draft_budget;
    if (!space->own || needed <= space->available_bytes)
        return 0;
    return err_set(err, ERR_NOMEM, "state of %llu MiB%s needs %llu MiB, but %llu MiB of %s memory are left (of %llu)",
                   (unsigned long long)(m->state_budget >> 20), m->draft ? " and the draft's beside it" : "", (unsigned long long)(needed >> 20),
                   (unsigned long long)(space->available_bytes >> 20), space->name, (unsigned long long)(space->total_bytes >> 20));
}

static int start_engine(struct rh_model *m, struct err *err)
{
    struct plan_space space;
    struct kv_config kv;
    host_space(m->host, &space);
    engine_kv_config(m->model, m->host->device, m->options.rows_max, &kv);
    /* with a draft its state, which is smaller, comes out of the same memory */
    m->state_budget = plan_state_budget(&kv, m->host->state_bytes, m->draft ? space.available_bytes / 2 : space.available_bytes);
    struct engine_config cfg = {.model = m->model, .device = m->host->device, .gate = &m->host->gate, .state_bytes = m->state_budget,
                                .rows_max = m->options.rows_max, .id_bytes = id_bytes, .id_bytes_ctx = m, .draft = m->draft,
                                .step_ms = m->step_ms};
    if (m->draft) { /* as many positions as the model's own state holds */
        struct kv_config draft;
        uint32_t positions = plan_positions_alone(&kv, m->state_budget, kv.context_max);
        engine_kv_config(m->draft, m->host->device, m->options.rows_max, &draft);
        positions = positions < draft.context_max ? positions : draft.context_max;
        cfg.draft_state_bytes = m->draft_budget = kv_plan_bytes(&draft, positions) + KV_SLAB;
    }
    int rc = admit_state(m, &space, err);
    if (rc == 0)
        rc = engine_open(&cfg, &m->engine, err);
    if (rc == 0 && engine_positions_max(m->engine) < model_info(m->model)->context)
        log_put(LOG_NOTICE, "state budget of %llu bytes: a sequence can reach %u of %u positions", (unsigned long long)m->state_budget,
                engine_positions_max(m->engine), model_info(m->model)->context);
    return rc;
}

static void free_loaded(struct rh_model *m)
{
    engine_close(m->engine);
    engine_gate_enter(&m->host->gate);
    model_close(m->draft);
    model_close(m->model);
    engine_gate_leave(&m->host->gate);
    m->engine = NULL;
    m->model = m->draft = NULL;
}

int rh_model_open(struct rh_host *h, const char *name, const struct rh_model_options *opt, struct rh_model **out, struct rh_error *rerr)
{
    struct err err = {0};
    int64_t began = thread_now_ns();
    struct rh_model *m = mem_try_zero(1, sizeof *m);
    *out = NULL;
    if (!m)
        return front_error(rerr, &err, err_nomem(&err, "model", sizeof *m));
    atomic_store(&m->refs, 1);
    m->host = h;
    m->step_ms = opt->step_ms;
    m->gpu_layers = opt->gpu_layers;
    pthread_mutex_init(&m->mutex, NULL);
    history_open(&m->history);
    m->options = (struct model_options){.context = opt->context, .rows_max = opt->rows_max ? opt->rows_max : 512, .kv_start = opt->kv_start,
                                        .progress = opt->progress, .progress_ctx = opt->progress_ctx};
    int rc = kv_config_read(m, opt, &err);
    if (rc == 0)
        rc = find_model(h->store_dir, name, &m->path, &err);
    if (rc == 0)
        rc = load_both(m, opt, &err);
    if (rc == 0 && !opt->inspect_only)
        rc = kvcheck_gate(m, opt->kv_force, &err);
    if (rc == 0 && !opt->inspect_only && (rc = collect_end_ids(m, &err)) == 0)
        rc = opt->draft ? load_draft(m, opt->draft, &err) : 0;
    if (rc == 0 && !opt->inspect_only)
        rc = start_engine(m, &err);
    if (rc) {
        free_loaded(m);
        model_unref(m);
        return front_error(rerr, &err, rc);
    }
    m->load_ms = (double)(thread_now_ns() - began) / 1e6;
    atomic_fetch_add(&h->models, 1);
    *out = m;
    return 0;
}

void rh_model_close(struct rh_model *m)
{
    if (!m)
        return;
    atomic_store(&m->closed, true);
    free_loaded(m);
    atomic_fetch_sub(&m->host->models, 1);
    model_unref(m);
}

int model_need_engine(const struct rh_model *m, struct err *err)
{
    if (m->engine && !atomic_load(&m->closed))
        return 0;
    return err_set(err, ERR_ARGUMENT, m->closed ? "the model is closed" : "the model was opened for inspection only: its weights are not loaded");
}

int model_inspect_late(struct rh_model *m, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&m->mutex);
    if (!m->model) {
        struct err unfit = {0}; /* what does not fit is looked at as it is */
        model_admit(m, m->path, &m->options, m->gpu_layers, m->host->state_bytes, &unfit);
        rc = model_inspect(m->path, m->host->device, &m->options, &m->model, err);
        if (rc == 0 && !m->end_ids)
            rc = collect_end_ids(m, err);
    }
    pthread_mutex_unlock(&m->mutex);
    return rc;
}

/* ---- text ---- */

int rh_tokenize(struct rh_model *m, struct rh_text text, bool no_bos, bool no_parse_special, struct rh_ids *out, struct rh_error *rerr)
{
    struct err err = {0};
    struct token_ids ids = {0};
    struct encode_options opt = {.add_bos = !no_bos, .parse_special = !no_parse_special};
    *out = (struct rh_ids){0};
    int rc = tokenizer_encode(m->texts.tokenizer, front_str(text), &opt, &ids, &err);
    if (rc) {
        token_ids_free(&ids);
        return front_error(rerr, &err, rc);
    }
    *out = (struct rh_ids){ids.ids, ids.n};
    return 0;
}

/* The buffer's bytes become the caller's. */
static int give(struct buf *b, int rc, char **out, size_t *out_n, struct err *err, struct rh_error *rerr)
{
    buf_cstr(b);
    if (rc == 0)
        rc = buf_check(b, "text", err);
    if (rc) {
        buf_free(b);
        return front_error(rerr, err, rc);
    }
    *out = b->p;
    *out_n = b->n;
    return 0;
}

int rh_detokenize(struct rh_model *m, const uint32_t *ids, size_t n, char **out, size_t *out_n, struct rh_error *rerr)
{
    struct err err = {0};
    struct buf b = {0};
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= m->texts.info.vocab_size)
            return front_error(rerr, &err, err_set(&err, ERR_ARGUMENT, "id %u at place %zu is outside the vocabulary of %u", ids[i], i,
                                                   m->texts.info.vocab_size));
    return give(&b, tokenizer_decode(m->texts.tokenizer, ids, n, false, &b), out, out_n, &err, rerr);
}

int rh_token_bytes(struct rh_model *m, uint32_t id, char **out, size_t *out_n, struct rh_error *rerr)
{
    struct err err = {0};
    struct buf b = {0};
    int rc = 0;
    if (id >= m->texts.info.vocab_size)
        return front_error(rerr, &err, err_set(&err, ERR_ARGUMENT, "id %u is outside the vocabulary of %u", id, m->texts.info.vocab_size));
    if (tokenizer_is_special(m->texts.tokenizer, id))
        buf_str(&b, tokenizer_piece(m->texts.tokenizer, id));
    else
        rc = tokenizer_id_bytes(m->texts.tokenizer, id, false, &b);
    return give(&b, rc, out, out_n, &err, rerr);
}

int rh_token_text(struct rh_model *m, uint32_t id, char **out, size_t *out_n, struct rh_error *rerr)
{
    struct err err = {0};
    struct buf raw = {0}, b = {0};
    int rc = 0;
    if (id >= m->texts.info.vocab_size)
        return front_error(rerr, &err, err_set(&err, ERR_ARGUMENT, "id %u is outside the vocabulary of %u", id, m->texts.info.vocab_size));
    if (tokenizer_is_special(m->texts.tokenizer, id))
        buf_str(&raw, tokenizer_piece(m->texts.tokenizer, id));
    else
        rc = tokenizer_id_bytes(m->texts.tokenizer, id, false, &raw);
    for (size_t i = 0; i < raw.n; i++) { /* printable ASCII and whole scalars as they are, else \xNN */
        unsigned char c = (unsigned char)raw.p[i];
        if (c < 32 || c == 127)
            buf_printf(&b, "\\x%02x", c);
        else
            buf_char(&b, (char)c);
    }
    rc = rc ? rc : raw.failed;
    buf_free(&raw);
    return give(&b, rc, out, out_n, &err, rerr);
}

const char *rh_output_format_name(size_t i)
{
    const struct output_format *f = output_format_at(i);
    return f ? output_format_name(f) : NULL;
}

const char *rh_output_format(const struct rh_model *m)
{
    return output_format_name(m->texts.output);
}

const char *rh_chat_problem(const struct rh_model *m)
{
    return m->texts.chat ? NULL : m->texts.chat_err.text;
}

int rh_render(struct rh_model *m, const struct rh_chat *chat, struct rh_rendered *out, struct rh_error *rerr)
{
    struct err err = {0};
    struct chat_rendered r = {0};
    *out = (struct rh_rendered){0};
    int rc = texts_render(&m->texts, chat, &r, &err);
    if (rc == 0) {
        rc = give(&r.text, 0, &out->text, &out->text_n, &err, rerr);
        out->boundaries = r.boundaries;
        out->boundary_count = r.boundary_count;
        r.text = (struct buf){0};
        r.boundaries = NULL;
    }
    chat_rendered_free(&r);
    if (rc)
        rh_rendered_free(out);
    return front_error(rerr, &err, rc);
}

int rh_chat_tokenize(struct rh_model *m, const struct rh_chat *chat, struct rh_ids *out, struct rh_error *rerr)
{
    struct err err = {0};
    struct token_ids ids = {0};
    struct prompt_trace trace = {0};
    *out = (struct rh_ids){0};
    int rc = history_encode(&m->history, &m->texts, chat, "", &ids, &trace, &err);
    prompt_trace_free(&trace);
    if (rc) {
        token_ids_free(&ids);
        return front_error(rerr, &err, rc);
    }
    *out = (struct rh_ids){ids.ids, ids.n};
    return 0;
}

void rh_rendered_free(struct rh_rendered *r)
{
    mem_free(r->text);
    mem_free(r->boundaries);
    *r = (struct rh_rendered){0};
}

void rh_sampling_default(struct rh_model *m, struct rh_sampling *out)
{
    sampling_defaults(m, out);
}
