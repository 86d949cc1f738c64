/* front/shorten.c - prompts that are too long, when that was allowed: what is left away, and how little of it.
 *
 * A chat loses its oldest messages after the system's: as few as make it fit, and on to where a user speaks, so that no answer stands without
 * its question and no result without its call.  The last question always stays.  A raw prompt loses ids behind its start token, a text to embed
 * loses its end. */
#include "front/front_int.h"

#include "base/mem.h"

#include <stdlib.h>

/* ---- chats ---- */

static bool has_role(yyjson_val *message, const char *role)
{
    return str_is(json_str(yyjson_obj_get(message, "role")), role);
}

static bool leads(yyjson_val *message)
{
    return has_role(message, "system") || has_role(message, "developer");
}

int shorten_open(struct shortening *s, struct rh_text messages_json, struct err *err)
{
    *s = (struct shortening){0};
    s->doc = json_parse(front_str(messages_json), "messages", err);
    yyjson_val *list = yyjson_doc_get_root(s->doc), *m;
    size_t i, n;
    if (!s->doc)
        return ERR_FORMAT;
    s->starts = mem_try_array(yyjson_arr_size(list) + 1, sizeof *s->starts);
    if (!s->starts)
        return err_nomem(err, "messages", yyjson_arr_size(list) * sizeof *s->starts);
    yyjson_arr_foreach(list, i, n, m)
        if (i == s->lead && leads(m))
            s->lead++;
        else if (i > s->lead && has_role(m, "user"))
            s->starts[s->start_count++] = (uint32_t)i;
    return 0;
}

void shorten_close(struct shortening *s)
{
    json_free(s->doc);
    mem_free(s->starts);
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
        char *json = yyjson_val_write(m, 0, NULL);
        if (!json)
            return err_nomem(err, "messages", 0);
        if (!first)
            buf_char(&s->text, ',');
        first = false;
        buf_z(&s->text, json);
        free(json); /* yyjson's own block */
    }
    buf_char(&s->text, ']');
    *out = (struct rh_text){s->text.p, s->text.n};
    return s->text.failed ? err_nomem(err, "messages", s->text.n) : 0;
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
