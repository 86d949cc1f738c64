/* front/lib_score.c - log-probabilities of given ids, window by window, through the engine like any other request.
 *
 * A window is BOS (when the model has one) and as many text tokens as fit; without a BOS each window after the first begins with the
 * last token of the one before, so that every token but the very first is scored.  Entries of a window = ids fed - 1. */
#include "base/math.h"
#include "base/mem.h"
#include "front/front_int.h"

/* what the engine thread writes while a window runs */
struct window_out {
    const struct rh_score_options *o;
    size_t first;             /* entries of earlier windows' positions, for on_logits */
    uint32_t count, vocab;    /* ids of this window */
    float *logprobs;          /* [count] */
    uint32_t *top_counts;     /* [count] */
    struct rh_top *tops;      /* [count][o->top] */
    float *last_logits;       /* [vocab] or NULL */
};

struct score {
    struct rh_model *m;
    const struct rh_score_options *o;
    struct buf ids, logprobs, top, windows, last;
    double sum;
    size_t scored, fed;
};

static void on_row(void *ctx, uint32_t position, const struct sample_result *r, const float *logits)
{
    struct window_out *w = ctx;
    w->logprobs[position] = r->score_logprob;
    w->top_counts[position] = r->top_count < w->o->top ? r->top_count : w->o->top;
    for (uint32_t i = 0; w->o->top && i < w->top_counts[position]; i++)
        w->tops[(size_t)position * w->o->top + i] = (struct rh_top){r->top_ids[i], r->top_logprobs[i]};
    if (!logits)
        return;
    if (w->o->logits_all && w->o->on_logits)
        w->o->on_logits(w->o->on_logits_ctx, w->first + position, logits, w->vocab);
    if (w->last_logits && position + 1 == w->count)
        memcpy(w->last_logits, logits, w->vocab * sizeof *logits);
}

int request_drain(struct engine_request *r, struct err *err)
{
    for (;;) {
        struct engine_event e;
        uint32_t seen = engine_request_seen(r);
        while (engine_poll(r, &e)) {
            if (e.kind != ENGINE_DONE)
                continue;
            const struct engine_outcome *o = engine_request_outcome(r, 0);
            if (o->finish == ENGINE_ERROR)
                return err_set(err, o->err.code ? o->err.code : ERR_INTERNAL, "%s", o->err.text);
            return o->finish == ENGINE_CANCELLED ? err_set(err, ERR_CANCELLED, "the model is being closed") : 0;
        }
        engine_request_wait(r, seen, -1);
    }
}

static void put_tops(struct score *s, const struct window_out *w)
{
    for (uint32_t i = 0; i < w->count; i++) {
        buf_z(&s->top, s->top.n ? ",[" : "[");
        for (uint32_t k = 0; k < w->top_counts[i]; k++) {
            const struct rh_top *t = &w->tops[(size_t)i * s->o->top + k];
            buf_printf(&s->top, "%s{\"id\":%u,\"logprob\":", k ? "," : "", t->id);
            buf_json_f32(&s->top, t->logprob);
            buf_char(&s->top, '}');
        }
        buf_char(&s->top, ']');
    }
}

static void put_window(struct score *s, const struct window_out *w, const uint32_t *ids)
{
    buf_printf(&s->windows, "%s{\"first\":%zu,\"ids\":%u}", s->windows.n ? "," : "", s->fed, w->count);
    for (uint32_t i = 0; i < w->count; i++)
        buf_printf(&s->ids, "%s%u", s->ids.n ? "," : "", ids[i]);
    for (uint32_t i = 0; i + 1 < w->count; i++) {
        buf_z(&s->logprobs, s->logprobs.n ? "," : "");
        buf_json_f32(&s->logprobs, w->logprobs[i]);
        s->sum += (double)w->logprobs[i];
        s->scored++;
    }
    if (s->o->top)
        put_tops(s, w);
    s->fed += w->count;
    if (!w->last_logits)
        return;
    s->last.n = 0;
    for (uint32_t i = 0; i < w->vocab; i++) {
        buf_z(&s->last, i ? "," : "");
        buf_json_f32(&s->last, w->last_logits[i]);
    }
}

static int run_window(struct score *s, struct window_out *w, const uint32_t *ids, struct err *err)
{
    struct engine_request *r = NULL;
    struct engine_score es = {.row = on_row, .ctx = w, .top = s->o->top, .logits_last = s->o->logits_last, .logits_all = s->o->logits_all};
    struct engine_request_config c = {.score = &es};
    int rc = engine_request_new(s->m->engine, &c, &r, err);
    if (rc == 0)
        rc = engine_submit(r, ids, w->count, err);
    if (rc == 0)
        rc = request_drain(r, err);
    engine_request_release(r);
    return rc;
}

static int score_window(struct score *s, const uint32_t *ids, uint32_t count, struct err *err)
{
    uint32_t top = s->o->top ? s->o->top : 1, vocab = model_info(s->m->model)->vocab;
    struct window_out w = {.o = s->o, .first = s->fed, .count = count, .vocab = vocab};
    w.logprobs = mem_try_zero(count, sizeof *w.logprobs);
    w.top_counts = mem_try_zero(count, sizeof *w.top_counts);
    w.tops = mem_try_zero((size_t)count * top, sizeof *w.tops);
    w.last_logits = s->o->logits_last ? mem_try_zero(vocab, sizeof *w.last_logits) : NULL;
    int rc = 0;
    if (!w.logprobs || !w.top_counts || !w.tops || (s->o->logits_last && !w.last_logits))
        rc = err_nomem(err, "score", (size_t)count * top * sizeof *w.tops);
    if (rc == 0)
        rc = run_window(s, &w, ids, err);
    if (rc == 0)
        put_window(s, &w, ids);
    mem_free(w.logprobs);
    mem_free(w.top_counts);
    mem_free(w.tops);
    mem_free(w.last_logits);
    return rc;
}

/* lead: one id in front of every window (BOS), or -1 with windows that share one id. */
static int score_windows(struct score *s, const uint32_t *ids, size_t n, int64_t lead, struct err *err)
{
    uint32_t most = engine_positions_max(s->m->engine);
    uint32_t size = s->o->window && s->o->window < most ? s->o->window : most;
    uint32_t *window = mem_try_array(size, sizeof *window);
    int rc = window ? 0 : err_nomem(err, "window", size * sizeof *window);
    for (size_t at = 0; rc == 0 && at < n;) {
        uint32_t count = 0;
        if (lead >= 0)
            window[count++] = (uint32_t)lead;
        else if (at)
            at--; /* the context of the first new token */
        while (count < size && at < n)
            window[count++] = ids[at++];
        rc = score_window(s, window, count, err);
    }
    mem_free(window);
    return rc;
}

static int score_text(struct score *s, struct err *err)
{
    const struct tokenizer_info *t = &s->m->texts.info;
    struct token_ids ids = {0};
    struct encode_options opt = {.parse_special = true};
    int rc = tokenizer_encode(s->m->texts.tokenizer, front_str(s->o->text), &opt, &ids, err);
    if (rc == 0 && ids.n == 0)
        rc = err_set(err, ERR_ARGUMENT, "the text has no tokens");
    if (rc == 0)
        rc = score_windows(s, ids.ids, ids.n, t->add_bos ? t->bos : -1, err);
    token_ids_free(&ids);
    return rc;
}

static void put_result(struct score *s, struct buf *b)
{
    buf_z(b, "{\"ids\":[");
    buf_str(b, buf_view(&s->ids));
    buf_z(b, "],\"logprob_of_next\":[");
    buf_str(b, buf_view(&s->logprobs));
    buf_z(b, "],\"windows\":[");
    buf_str(b, buf_view(&s->windows));
    buf_char(b, ']');
    if (s->o->top) {
        buf_z(b, ",\"top\":[");
        buf_str(b, buf_view(&s->top));
        buf_char(b, ']');
    }
    if (s->o->logits_last) {
        buf_z(b, ",\"last_logits\":[");
        buf_str(b, buf_view(&s->last));
        buf_char(b, ']');
    }
    buf_z(b, ",\"perplexity\":");
    buf_json_f64(b, s->scored ? math_expd(-s->sum / (double)s->scored) : __builtin_nan(""));
    buf_char(b, '}');
}

static int check_options(const struct rh_model *m, const struct rh_score_options *o, struct err *err)
{
    if ((o->ids != NULL) == (o->text.p != NULL))
        return err_set(err, ERR_ARGUMENT, "expected one of ids and text");
    if (o->ids && o->id_count == 0)
        return err_set(err, ERR_ARGUMENT, "no ids");
    if (o->top > SAMPLE_TOP_MAX)
        return err_set(err, ERR_LIMIT, "top: at most %d, got %u", SAMPLE_TOP_MAX, o->top);
    if (o->window == 1)
        return err_set(err, ERR_ARGUMENT, "a window needs at least 2 tokens, got 1");
    return model_need_engine(m, err);
}

int rh_score_json(struct rh_model *m, const struct rh_score_options *opt, char **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct score s = {.m = m, .o = opt};
    struct buf b = {0};
    int rc = check_options(m, opt, &err);
    if (rc == 0)
        rc = opt->ids ? score_windows(&s, opt->ids, opt->id_count, -1, &err) : score_text(&s, &err);
    struct buf *parts[] = {&s.ids, &s.logprobs, &s.top, &s.windows, &s.last};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && rc == 0; i++)
        rc = buf_check(parts[i], "score", &err);
    if (rc == 0) {
        put_result(&s, &b);
        buf_cstr(&b);
        rc = buf_check(&b, "score", &err);
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        buf_free(parts[i]);
    if (rc) {
        buf_free(&b);
        return front_error(rerr, &err, rc);
    }
    *out = b.p;
    return 0;
}
