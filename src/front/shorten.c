/* front/shorten.c - prompts that are too long, when that was allowed: what is left away, and how little of it.
 *
 * A chat loses its oldest messages after the system's: as few as make it fit, and on to where a user speaks, so that no answer stands without
 * its question and no result without its call.  The last question always stays.  A raw prompt loses ids behind its start token, a text to embed
 * loses its end. */
#include "front/front_int.h"

#include "base/mem.h"

/* ---- chats ---- */

static bool has_role(yyjson_val *message, const char *role)
{
    return str_is(json_str(yyjson_obj_get(message, "role")), role);
}

static bool leads(yyjson_val *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

/* About the bytes of text in it; json_parse caps the depth. */
static uint64_t size_of(yyjson_val *v)
{
    uint64_t sum = 4;
    size_t i, n;
    yyjson_val *k, *item;
    if (yyjson_is_str(v))
        return sum + yyjson_get_len(v);
    yyjson_arr_foreach(v, i, n, item)
        sum += size_of(item);
    yyjson_obj_foreach(v, i, n, k, item)
        sum += yyjson_get_len(k) + size_of(item);
    return sum;
}

static void find_starts(struct shortening *s, yyjson_val *list)
{
    size_t i, n;
    yyjson_val *m;
    uint64_t before = 0, lead = 0;
    yyjson_arr_foreach(list, i, n, m) {
        if (i == s->lead && leads(m))
            s->lead++;
        else if (i > s->lead && has_role(m, "user")) {
            s->starts[s->start_count] = (uint32_t)i;
            s->sizes[s->start_count++] = before;
        }
        before += size_of(m);
        lead = i < s->lead ? before : lead;
    }
    s->size = before;
    for (uint32_t k = 0; k < s->start_count; k++)
        s->sizes[k] = lead + before - s->sizes[k];
}

int shorten_open(struct shortening *s, struct rh_text messages_json, struct err *err)
{
    *s = (struct shortening){0};
    s->doc = json_parse(front_str(messages_json), "messages", err);
    yyjson_val *list = yyjson_doc_get_root(s->doc);
    size_t n = yyjson_arr_size(list) + 1;
    if (!s->doc)
        return ERR_FORMAT;
    s->starts = mem_try_array(n, sizeof *s->starts);
    s->sizes = mem_try_array(n, sizeof *s->sizes);
    if (!s->starts || !s->sizes)
        return err_nomem(err, "messages", n * sizeof *s->sizes);
    find_starts(s, list);
    return 0;
}

void shorten_close(struct shortening *s)
{
    json_free(s->doc);
    mem_free(s->starts);
    mem_free(s->sizes);
    buf_free(&s->text);
}

int shorten_messages(struct shortening *s, uint32_t k, struct rh_text *out, uint32_t *dropped, struct err *err)
{
    yyjson_val *list = yyjson_doc_get_root(s->doc), *m;
    size_t i, n;
    bool first = true;
    *dropped = s->starts[k] - s->lead;
    s->text.n = 0;
    buf_char(&s->text, '[');
    yyjson_arr_foreach(list, i, n, m) {
        if (i >= s->lead && i < s->starts[k])
            continue;
        if (!first)
            buf_char(&s->text, ',');
        first = false;
        json_put(&s->text, m);
    }
    buf_char(&s->text, ']');
    *out = (struct rh_text){s->text.p, s->text.n};
    return s->text.failed ? err_nomem(err, "messages", s->text.n) : 0;
}

/* ---- the search ---- */

void shorten_search_open(struct shorten_search *q, const struct shortening *s, size_t most, size_t ids)
{
    *q = (struct shorten_search){.s = s, .most = most, .to = s->start_count, .over = {s->size, ids}};
}

/* Where a line through the two nearest counts is at `most`. */
static uint32_t guess(const struct shorten_search *q)
{
    double slope = (double)(q->over[1] - q->under[1]) / (double)(q->over[0] > q->under[0] ? q->over[0] - q->under[0] : 1);
    double size = (double)q->under[0] + (double)(q->most - q->under[1]) / (slope > 0 ? slope : 1);
    uint32_t from = q->from, to = q->to;
    while (from < to) { /* the first that is not larger */
        uint32_t mid = from + (to - from) / 2;
        if ((double)q->s->sizes[mid] <= size)
            to = mid;
        else
            from = mid + 1;
    }
    return from < q->to ? from : q->to - 1;
}

bool shorten_search_next(struct shorten_search *q, uint32_t *k)
{
    if (q->from == q->to || q->tries == SHORTEN_TRIES)
        return false;
    *k = q->tries++ < SHORTEN_GUESSES ? guess(q) : q->from + (q->to - q->from) / 2;
    return true;
}

void shorten_search_tell(struct shorten_search *q, uint32_t k, size_t ids)
{
    uint64_t *known = ids <= q->most ? q->under : q->over;
    known[0] = q->s->sizes[k];
    known[1] = ids;
    if (ids <= q->most)
        q->to = k;
    else
        q->from = k + 1;
}

/* ---- ids ---- */

uint32_t shorten_ids(struct token_ids *ids, size_t most, const struct tokenizer_info *t, bool embed)
{
    size_t dropped = ids->n - most, keep;
    if (embed) { /* the end goes, but for a token that marks it */
        bool mark = t->add_eos && t->eos >= 0 && ids->n && ids->ids[ids->n - 1] == (uint32_t)t->eos;
        ids->n = most;
        if (mark)
            ids->ids[most - 1] = (uint32_t)t->eos;
        return (uint32_t)dropped;
    }
    keep = t->add_bos && t->bos >= 0 && ids->ids[0] == (uint32_t)t->bos;
    memmove(ids->ids + keep, ids->ids + keep + dropped, (ids->n - keep - dropped) * sizeof *ids->ids);
    ids->n = most;
    return (uint32_t)dropped;
}
