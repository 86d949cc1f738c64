/* front/prompt.c - the prompt of a request on a preparation worker: template, ids, what is left away when they are too many; then the engine. */
#include "front/request_int.h"

/* Positions the prompt may take when it is to be shortened: the answer gets what it asked for, or an eighth. */
static size_t prompt_room(const struct rh_request *r)
{
    size_t all = r->positions_max, answer = r->embed ? 0 : r->max_tokens > 0 ? (size_t)r->max_tokens : all / 8 + 1;
    return answer < all ? all - answer : 0;
}

static int encode_from(struct rh_request *r, struct shortening *s, uint32_t k, struct err *err)
{
    struct rh_chat chat = r->chat;
    token_ids_free(&r->ids);
    prompt_trace_free(&r->trace);
    r->ids = (struct token_ids){0};
    int rc = shorten_messages(s, k, &chat.messages_json, &r->dropped, err);
    return rc ? rc : history_encode(&r->model->history, &r->model->texts, &chat, r->tenant, &r->ids, &r->trace, err);
}

static int check_wanted(const struct rh_request *r, struct err *err)
{
    return engine_request_cancelled(r->engine) ? err_set(err, ERR_CANCELLED, "cancelled before the prompt was ready") : 0;
}

/* The fewest messages go that make it fit; when nothing does, the shortest is what the engine refuses. */
static int shorten_chat(struct rh_request *r, size_t most, struct err *err)
{
    struct shortening s;
    struct shorten_search q;
    uint32_t k, encoded = UINT32_MAX;
    int rc = shorten_open(&s, r->chat.messages_json, err);
    shorten_search_open(&q, &s, most, r->ids.n);
    while (rc == 0 && shorten_search_next(&q, &k)) {
        if ((rc = check_wanted(r, err)) || (rc = encode_from(r, &s, k, err)))
            break;
        shorten_search_tell(&q, k, r->ids.n);
        encoded = k;
    }
    uint32_t last = q.to < s.start_count ? q.to : s.start_count - 1;
    if (rc == 0 && s.start_count && encoded != last)
        rc = encode_from(r, &s, last, err);
    shorten_close(&s);
    return rc;
}

static int fit_prompt(struct rh_request *r, struct err *err)
{
    size_t most = prompt_room(r);
    if (!r->truncate || most == 0 || r->ids.n <= most)
        return 0;
    if (r->has_chat)
        return shorten_chat(r, most, err);
    r->dropped = shorten_ids(&r->ids, most, &r->model->texts.info, r->embed != RH_EMBED_NONE);
    return 0;
}

static int make_ids(struct rh_request *r, struct err *err)
{
    const struct texts *t = &r->model->texts;
    struct encode_options opt = {.add_bos = true, .parse_special = true};
    if (r->has_chat)
        return history_encode(&r->model->history, t, &r->chat, r->tenant, &r->ids, &r->trace, err);
    if (r->has_prompt)
        return tokenizer_encode(t->tokenizer, front_str(r->prompt), &opt, &r->ids, err);
    return 0;
}

static int give_boundaries(struct rh_request *r, struct err *err)
{
    uint32_t n = r->trace.cut_count;
    while (n && r->trace.cut_positions[n - 1] > r->ids.n)
        n--;
    return engine_request_boundaries(r->engine, r->trace.cut_positions, n, err);
}

enum { TAIL_IDS = 32 };

/* The end of the prompt as text, special tokens included, says where the answer begins. */
static int open_readings(struct rh_request *r, struct err *err)
{
    struct buf tail = {0};
    size_t n = r->ids.n < TAIL_IDS ? r->ids.n : TAIL_IDS;
    enum reading_calls calls = r->no_calls || (r->has_chat && !r->chat.tools_json.n) ? READING_NO_CALLS : r->told_calls ? READING_TOLD_CALLS : READING_CALLS;
    int rc = tokenizer_decode(r->model->texts.tokenizer, r->ids.ids + (r->ids.n - n), n, false, &tail);
    for (uint32_t i = 0; i < r->n && rc == 0; i++)
        rc = reading_open(&r->readings[i], r->output, front_str(r->chat.tools_json), calls, buf_view(&tail), err);
    buf_free(&tail);
    return rc;
}

void request_prepare(struct prepare_job *job)
{
    struct rh_request *r = (struct rh_request *)(void *)job;
    int rc = check_wanted(r, &r->err);
    if (rc == 0)
        rc = make_ids(r, &r->err);
    if (rc == 0 && r->ids.n > UINT32_MAX / 2)
        rc = err_set(&r->err, ERR_LIMIT, "prompt of %zu tokens", r->ids.n);
    if (rc == 0)
        rc = fit_prompt(r, &r->err);
    if (rc == 0)
        rc = give_boundaries(r, &r->err);
    if (rc == 0)
        rc = open_readings(r, &r->err);
    if (rc == 0)
        rc = engine_submit(r->engine, r->ids.ids, (uint32_t)r->ids.n, &r->err);
    if (rc && !r->err.code)
        err_set(&r->err, rc, "%s", err_text(rc));
    atomic_store(&r->state, rc ? PREPARE_FAILED : PREPARE_DONE);
    engine_request_signal(r->engine);
    request_unref(r);
}
