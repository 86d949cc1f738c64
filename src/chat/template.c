/* chat/template.c - the public face: open a template, render messages, find the stable turn ends.
 *
 * Owns:       per call: one arena with the caller's JSON as values, one with everything a rendering makes.
 * Invariants: 1. What comes from messages, tools, documents and variables is the user's; special tokens and literals are not.
 *             2. Messages are prepared as transformers does: null fields dropped, reasoning given under its three names.
 *             3. A boundary is a length L such that rendering some messages[:k] alone gives exactly text[:L].
 * Does not:   tokenize. */
#include "chat/template.h"

#include "base/mem.h"
#include "base/rng.h"
#include "chat/jinja_int.h"

enum { SOURCE_MAX = 4 << 20, BOUNDARY_RUN = 64, INPUT_DEPTH_MAX = 200 };

struct chat_template {
    struct jtemplate t;
};

int chat_template_open(struct str source, struct chat_template **out, struct err *err)
{
    *out = NULL;
    if (source.n > SOURCE_MAX)
        return err_set(err, ERR_LIMIT, "chat template: %zu bytes, the limit is %d", source.n, SOURCE_MAX);
    struct chat_template *t = mem_try_zero(1, sizeof *t);
    if (!t)
        return err_nomem(err, "chat template", sizeof *t);
    int rc = jparse_template(&t->t, source, err);
    if (rc) {
        chat_template_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void chat_template_close(struct chat_template *t)
{
    if (!t)
        return;
    arena_free(&t->t.mem);
    mem_free(t);
}

/* ---- JSON -> values ------------------------------------------------------------------------------------------------------- */

static struct jv from_json(struct jx *jx, yyjson_val *v, unsigned depth);

static struct jv list_from_json(struct jx *jx, yyjson_val *v, unsigned depth)
{
    struct jlist *l = jlist_new(jx, yyjson_arr_size(v));
    yyjson_arr_iter it = yyjson_arr_iter_with(v);
    for (yyjson_val *item; l && (item = yyjson_arr_iter_next(&it));)
        jlist_push(jx, l, from_json(jx, item, depth + 1));
    struct jv out = jlist_value(l, JT_LIST);
    out.user = true;
    return out;
}

static struct jv dict_from_json(struct jx *jx, yyjson_val *v, unsigned depth)
{
    struct jdict *d = jdict_new(jx, yyjson_obj_size(v));
    yyjson_obj_iter it = yyjson_obj_iter_with(v);
    for (yyjson_val *key; d && (key = yyjson_obj_iter_next(&it));)
        jdict_set(jx, d, jstr_new(jx, json_str(key), true), from_json(jx, yyjson_obj_iter_get_val(key), depth + 1));
    return d ? (struct jv){.type = JT_DICT, .user = true, .d = d} : JV_NONE;
}

static struct jv from_json(struct jx *jx, yyjson_val *v, unsigned depth)
{
    struct jv out = JV_NONE;
    if (depth > INPUT_DEPTH_MAX) {
        jx_fail(jx, ERR_LIMIT, "input nested deeper than %d", INPUT_DEPTH_MAX);
        return out;
    }
    if (yyjson_is_str(v))
        return jstr_new(jx, json_str(v), true);
    if (yyjson_is_arr(v))
        return list_from_json(jx, v, depth);
    if (yyjson_is_obj(v))
        return dict_from_json(jx, v, depth);
    if (yyjson_is_bool(v))
        out = JV_BOOL(yyjson_get_bool(v));
    else if (yyjson_is_uint(v))
        out = (struct jv){.type = JT_INT, .big = yyjson_get_uint(v) > INT64_MAX, .i = (int64_t)yyjson_get_uint(v)};
    else if (yyjson_is_int(v))
        out = JV_INT(yyjson_get_sint(v));
    else if (yyjson_is_real(v))
        out = JV_FLOAT(yyjson_get_real(v));
    out.user = true;
    return out;
}

/* ---- messages ------------------------------------------------------------------------------------------------------------- */

static struct jv field(struct jx *jx, const struct jdict *d, const char *name)
{
    struct jentry *e = jdict_find_str(jx, d, str_of(name));
    return e ? e->value : JV_NONE;
}

/* Null fields go; reasoning under one of its names is given as reasoning_content and, if absent, as thinking. */
static struct jv message_from_json(struct jx *jx, yyjson_val *v)
{
    struct jv whole = dict_from_json(jx, v, 1), reasoning = JV_NONE;
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    struct jdict *d = whole.type == JT_DICT ? jdict_new(jx, whole.d->n + 2) : NULL;
    if (!d)
        return JV_NONE;
    for (size_t i = 0; i < 3 && reasoning.type == JT_NONE; i++)
        reasoning = field(jx, whole.d, names[i]);
    if (reasoning.type != JT_NONE)
        jdict_set(jx, d, jstr_z(jx, "thinking"), reasoning);
    for (size_t i = 0; i < whole.d->n; i++)
        if (whole.d->e[i].value.type != JT_NONE)
            jdict_set(jx, d, whole.d->e[i].key, whole.d->e[i].value);
    if (reasoning.type != JT_NONE)
        jdict_set(jx, d, jstr_z(jx, "reasoning_content"), reasoning);
    return (struct jv){.type = JT_DICT, .user = true, .d = d};
}

static int objects_check(yyjson_val *v, const char *name, struct err *err)
{
    size_t i, max;
    yyjson_val *item;
    if (!yyjson_is_arr(v))
        return err_set(err, ERR_ARGUMENT, "%s: expected an array, got %s", name, json_type_name(v));
    yyjson_arr_foreach(v, i, max, item)
        if (!yyjson_is_obj(item))
            return err_set(err, ERR_ARGUMENT, "%s[%zu]: expected an object, got %s", name, i, json_type_name(item));
    return 0;
}

static int input_check(const struct chat_render_input *in, struct err *err)
{
    int rc = objects_check(in->messages, "messages", err);
    if (!rc && yyjson_arr_size(in->messages) == 0)
        rc = err_set(err, ERR_ARGUMENT, "messages: expected at least one message, got none");
    if (!rc && in->tools && !yyjson_is_null(in->tools))
        rc = objects_check(in->tools, "tools", err);
    if (!rc && in->documents && !yyjson_is_null(in->documents))
        rc = objects_check(in->documents, "documents", err);
    if (!rc && in->variables && !yyjson_is_null(in->variables) && !yyjson_is_obj(in->variables))
        rc = err_set(err, ERR_ARGUMENT, "template variables: expected an object, got %s", json_type_name(in->variables));
    return rc;
}

/* ---- one call ------------------------------------------------------------------------------------------------------------- */

struct call {
    const struct chat_template *t;
    const struct chat_render_input *in;
    struct arena values, work;
    uint64_t hash_key[2];
    struct jscope *vars; /* all but messages and add_generation_prompt */
    struct jlist *messages;
    struct jsb room; /* where renderings for boundaries write: as large as the whole text, so they never grow */
    uint64_t steps_max, steps_used; /* of the renderings for boundaries, all together */
    size_t text_max;
};

static void call_jx(struct call *c, struct jx *jx, struct arena *mem, struct err *err)
{
    *jx = (struct jx){.t = &c->t->t,
                      .mem = mem,
                      .err = err,
                      .line = 1,
                      .steps_max = c->steps_max,
                      .text_max = c->text_max,
                      .now_s = c->in->now_s};
    memcpy(jx->hash_key, c->hash_key, sizeof jx->hash_key);
}

/* only variables the template names are worth a slot */
static void var_set(struct jx *jx, struct jscope *s, struct str name, struct jv v)
{
    uint32_t id = jintern_find(&jx->t->names, name);
    if (id != UINT32_MAX)
        jscope_set(jx, s, id, v);
}

static void vars_from_json(struct jx *jx, struct jscope *s, yyjson_val *obj)
{
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    yyjson_obj_iter it;
    if (!yyjson_is_obj(obj))
        return;
    it = yyjson_obj_iter_with(obj);
    for (yyjson_val *key; (key = yyjson_obj_iter_next(&it));) {
        bool taken = false;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            taken |= str_is(json_str(key), own[i]);
        if (!taken)
            var_set(jx, s, json_str(key), from_json(jx, yyjson_obj_iter_get_val(key), 1));
    }
}

static void token_var(struct jx *jx, struct jscope *s, const char *name, struct str text)
{
    if (text.p)
        var_set(jx, s, str_of(name), jstr_new(jx, text, false));
}

static int call_values(struct call *c, struct err *err)
{
    struct jx jx;
    const struct chat_render_input *in = c->in;
    call_jx(c, &jx, &c->values, err);
    c->vars = jscope_new(&jx, NULL, NULL);
    c->messages = jlist_new(&jx, yyjson_arr_size(in->messages));
    if (jx.rc)
        return jx.rc;
    token_var(&jx, c->vars, "bos_token", in->bos_token);
    token_var(&jx, c->vars, "eos_token", in->eos_token);
    token_var(&jx, c->vars, "unk_token", in->unk_token);
    token_var(&jx, c->vars, "pad_token", in->pad_token);
    var_set(&jx, c->vars, STR("tools"), in->tools ? from_json(&jx, in->tools, 0) : JV_NONE);
    var_set(&jx, c->vars, STR("documents"), in->documents ? from_json(&jx, in->documents, 0) : JV_NONE);
    vars_from_json(&jx, c->vars, in->variables);
    yyjson_arr_iter it = yyjson_arr_iter_with(in->messages);
    for (yyjson_val *m; (m = yyjson_arr_iter_next(&it)) && !jx.rc;)
        jlist_push(&jx, c->messages, message_from_json(&jx, m));
    return jx.rc;
}

/* Renders messages[:count] into `out`, which lives in c->work until the next call. */
static int call_render(struct call *c, size_t count, bool prompt, struct jsb *out, struct err *err)
{
    struct jx jx;
    arena_reset(&c->work);
    call_jx(c, &jx, &c->work, err);
    *out = c->room;
    out->jx = &jx;
    jx.out = out;
    struct jlist *messages = jx_alloc(&jx, 1, sizeof *messages);
    struct jscope *vars = jscope_new(&jx, c->vars, NULL);
    jx.root = jscope_new(&jx, vars, &c->t->t.missing);
    if (messages) {
        *messages = *c->messages;
        messages->n = messages->cap = count;
        struct jv v = jlist_value(messages, JT_LIST);
        v.user = true;
        var_set(&jx, vars, STR("messages"), v);
        var_set(&jx, vars, STR("add_generation_prompt"), JV_BOOL(prompt));
    }
    jexec_body(&jx, jx.root, &c->t->t.body);
    c->steps_used += jx.steps;
    out->jx = NULL;
    return jx.rc;
}

/* ---- results -------------------------------------------------------------------------------------------------------------- */

static int pieces_copy(const struct jsb *b, struct chat_rendered *out, struct err *err)
{
    size_t cap = 2 * b->seg_count + 1, at = 0, n = 0;
    struct chat_piece *p = mem_try_array(cap, sizeof *p);
    if (!p)
        return err_nomem(err, "rendered pieces", cap * sizeof *p);
    for (size_t i = 0; i < b->seg_count; i++) {
        struct jseg s = b->segs[i];
        if (s.from > at)
            p[n++] = (struct chat_piece){at, s.from, false};
        if (n && p[n - 1].user && p[n - 1].to == s.from)
            p[n - 1].to = s.to;
        else
            p[n++] = (struct chat_piece){s.from, s.to, true};
        at = s.to;
    }
    if (at < b->n)
        p[n++] = (struct chat_piece){at, b->n, false};
    out->pieces = p;
    out->piece_count = n;
    return 0;
}

static int text_copy(const struct call *c, const struct jsb *b, struct chat_rendered *out, struct err *err)
{
    out->text.max = c->text_max;
    buf_put(&out->text, b->p, b->n);
    buf_cstr(&out->text);
    int rc = buf_check(&out->text, "rendered chat", err);
    return rc ? rc : pieces_copy(b, out, err);
}

static int room_init(struct call *c, const struct jsb *whole, struct err *err)
{
    struct jx jx;
    call_jx(c, &jx, &c->values, err);
    c->room = (struct jsb){.cap = whole->n + 1, .seg_cap = whole->seg_count + 1};
    c->room.p = jx_alloc(&jx, c->room.cap, 1);
    c->room.segs = jx_alloc(&jx, c->room.seg_cap, sizeof *c->room.segs);
    return jx.rc;
}

/* Renders the prefixes and keeps the lengths of those that are prefixes of the text too.  Only lack of memory is an error. */
static int boundaries_find(struct call *c, struct chat_rendered *out, struct err *err)
{
    size_t n = c->messages->n, cap = n < 2 * BOUNDARY_RUN ? n : 2 * BOUNDARY_RUN;
    out->boundaries = mem_try_array(cap, sizeof *out->boundaries);
    if (!out->boundaries)
        return err_nomem(err, "turn boundaries", cap * sizeof *out->boundaries);
    c->steps_used = 0;
    for (size_t k = 1; k <= n && c->steps_used < c->steps_max; k++) {
        struct err failed = {0};
        struct jsb b;
        if (k > BOUNDARY_RUN && k + BOUNDARY_RUN <= n)
            continue;
        int rc = call_render(c, k, false, &b, &failed);
        if (rc == ERR_NOMEM)
            return err_set(err, rc, "%s", failed.text);
        size_t last = out->boundary_count ? out->boundaries[out->boundary_count - 1] : 0;
        if (rc || b.n <= last || b.n > out->text.n || memcmp(b.p, out->text.p, b.n) != 0)
            continue;
        out->boundaries[out->boundary_count++] = b.n;
    }
    return 0;
}

int chat_template_render(const struct chat_template *t, const struct chat_render_input *in, struct chat_rendered *out,
                         struct err *err)
{
    struct call c = {.t = t, .in = in, .hash_key = {rng_seed_draw(), rng_seed_draw()}};
    struct jsb b;
    *out = (struct chat_rendered){0};
    c.text_max = in->output_max_bytes ? in->output_max_bytes : (size_t)16 << 20;
    c.steps_max = in->steps_max ? in->steps_max : 50000000;
    c.values.max_bytes = c.work.max_bytes =
        ((size_t)64 << 20) + 16 * (c.text_max < (size_t)1 << 30 ? c.text_max : (size_t)1 << 30);
    int rc = input_check(in, err);
    if (!rc)
        rc = call_values(&c, err);
    if (!rc)
        rc = call_render(&c, c.messages->n, in->add_generation_prompt, &b, err);
    if (!rc)
        rc = text_copy(&c, &b, out, err);
    if (!rc)
        rc = room_init(&c, &b, err);
    if (!rc)
        rc = boundaries_find(&c, out, err);
    arena_free(&c.work);
    arena_free(&c.values);
    if (rc)
        chat_rendered_free(out);
    return rc;
}

void chat_rendered_free(struct chat_rendered *r)
{
    if (!r)
        return;
    buf_free(&r->text);
    mem_free(r->pieces);
    mem_free(r->boundaries);
    *r = (struct chat_rendered){0};
}
