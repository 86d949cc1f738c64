/* front/calls.c - answers that must begin with a tool call: the texts such an answer may begin with, as a constraint.
 *
 * A call's beginning is the output format's own (chat/output.h), once for each tool that may be called.  Where the prompt leaves a reasoning
 * block open, the block is the model's, and the call is due after it. */
#include "front/front_int.h"

#include "base/mem.h"
#include "grammar/texts.h"

enum { WAYS_MAX = 2 }; /* of a form to go on */

/* ---- what every id writes, made once a model ---- */

struct call_ids { /* owns */
    struct id_texts texts;
    struct buf bytes;
    uint32_t *ends, *special;
};

void call_ids_free(struct call_ids *c)
{
    if (!c)
        return;
    buf_free(&c->bytes);
    mem_free(c->ends);
    mem_free(c->special);
    mem_free(c->texts.order);
    mem_free(c);
}

static int put_id(struct call_ids *c, const struct tokenizer *t, uint32_t id)
{
    int rc = 0;
    if (tokenizer_is_added(t, id)) {
        c->special[id / 32] |= 1u << id % 32;
        buf_str(&c->bytes, tokenizer_piece(t, id));
    } else
        rc = tokenizer_id_bytes(t, id, false, &c->bytes);
    c->ends[id] = (uint32_t)c->bytes.n;
    return rc ? rc : c->bytes.failed;
}

static struct call_ids *make_ids(const struct rh_model *m)
{
    struct err err = {0}; /* there is nothing else to say than that there is no memory */
    uint32_t vocab = model_info(m->model)->vocab, count = m->texts.info.vocab_size < vocab ? m->texts.info.vocab_size : vocab;
    struct call_ids *c = mem_try_zero(1, sizeof *c);
    if (!c)
        return NULL;
    c->bytes.max = INT32_MAX;
    c->ends = mem_try_array(count, sizeof *c->ends);
    c->special = mem_try_zero(constraint_words(count), sizeof *c->special);
    int rc = c->ends && c->special ? 0 : ERR_NOMEM;
    for (uint32_t id = 0; id < count && rc == 0; id++)
        rc = put_id(c, m->texts.tokenizer, id);
    c->texts = (struct id_texts){.count = count, .bytes = c->bytes.p, .ends = c->ends, .special = c->special};
    if (rc || id_texts_sort(&c->texts, &err)) {
        call_ids_free(c);
        return NULL;
    }
    return c;
}

static int need_ids(struct rh_model *m, const struct id_texts **out, struct err *err)
{
    pthread_mutex_lock(&m->mutex);
    if (!m->call_ids)
        m->call_ids = make_ids(m);
    struct call_ids *c = m->call_ids;
    pthread_mutex_unlock(&m->mutex);
    *out = c ? &c->texts : NULL;
    return c ? 0 : err_nomem(err, "texts of ids", 0);
}

/* ---- one request ---- */

/* The beginnings; all memory is theirs. */
struct beginnings {
    struct buf text;
    size_t *ends;
    struct str *list;
    uint32_t count;
};

static bool plain_name(struct str name)
{
    for (size_t i = 0; i < name.n; i++) {
        unsigned char c = (unsigned char)name.p[i], low = c | 32;
        if (!((low >= 'a' && low <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.'))
            return false;
    }
    return name.n > 0;
}

static void put_form(struct buf *out, struct str form, struct str name)
{
    for (size_t i = 0; i < form.n; i++)
        if (form.p[i] == '\1')
            buf_str(out, name);
        else
            buf_char(out, form.p[i]);
}

static int put_beginning(struct beginnings *b, const char *form, struct str name, bool after_reasoning, struct err *err)
{
    struct str rest = str_of(form), base, way;
    if (!plain_name(name))
        return err_set(err, ERR_ARGUMENT, "a call of '%.*s' cannot be forced: expected a name of letters, digits, '_', '-' and '.'", STR_ARG(name));
    str_split(&rest, '\2', &base);
    do { /* once without further ways */
        way = (struct str){0};
        str_split(&rest, '\2', &way);
        buf_z(&b->text, after_reasoning ? "\n\n" : "");
        put_form(&b->text, base, name);
        put_form(&b->text, way, name);
        b->ends[b->count++] = b->text.n;
    } while (rest.p);
    return 0;
}

static struct str name_of(yyjson_val *tool)
{
    yyjson_val *f = yyjson_obj_get(tool, "function");
    return json_str(yyjson_obj_get(f ? f : tool, "name"));
}

static int put_all(struct beginnings *b, const struct call_choice *c, yyjson_val *tools, struct err *err)
{
    size_t i, n = yyjson_arr_size(tools);
    yyjson_val *tool;
    int rc = 0;
    b->ends = mem_try_array(WAYS_MAX * n + 1, sizeof *b->ends);
    b->list = mem_try_array(WAYS_MAX * n + 1, sizeof *b->list);
    if (!b->ends || !b->list)
        return err_nomem(err, "beginnings of calls", n * sizeof *b->list);
    yyjson_arr_foreach(tools, i, n, tool)
        if (rc == 0 && (!c->name || str_is(name_of(tool), c->name)))
            rc = put_beginning(b, c->form, name_of(tool), c->mark != NULL, err);
    if (rc == 0 && b->count == 0)
        rc = c->name ? err_set(err, ERR_ARGUMENT, "a call of '%.256s' was asked for, but the chat has no such tool", c->name)
                     : err_set(err, ERR_ARGUMENT, "a call was asked for, but the chat has no tools");
    if (rc == 0 && b->text.failed)
        rc = err_nomem(err, "beginnings of calls", b->text.n);
    for (uint32_t k = 0; k < b->count && rc == 0; k++) {
        size_t from = k ? b->ends[k - 1] : 0;
        b->list[k] = str_n(b->text.p + from, b->ends[k] - from);
    }
    return rc;
}

int calls_open(struct rh_model *m, const struct call_choice *c, uint32_t vocab, struct constraint **out, struct err *err)
{
    struct beginnings b = {0};
    struct texts_config cfg = {.end_ids = m->end_ids, .end_count = m->end_count, .mark = str_of(c->mark)};
    yyjson_doc *doc = c->tools_json.n ? json_parse(c->tools_json, "tools", err) : NULL;
    int rc = c->tools_json.n && !doc ? ERR_FORMAT : 0;
    *out = NULL;
    if (rc == 0)
        rc = put_all(&b, c, yyjson_doc_get_root(doc), err);
    if (rc == 0)
        rc = need_ids(m, &cfg.ids, err);
    if (rc == 0) {
        cfg.texts = b.list;
        cfg.count = b.count;
        rc = constraint_texts_open(&cfg, vocab, out, err);
    }
    buf_free(&b.text);
    mem_free(b.ends);
    mem_free(b.list);
    json_free(doc);
    return rc;
}
