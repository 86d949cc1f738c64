/* server/api_text.c - POST /tokenize, /detokenize, /apply-template: what the model's tokenizer and template do, by a worker. */
#include "base/mem.h"
#include "server/api_fields.h"
#include "server/body.h"
#include "server/jobs.h"
#include "server/routes.h"

#include <stdlib.h>

/* what a worker gets; owns all */
struct text_job {
    char *text; /* or the chat */
    size_t text_n;
    char *messages, *tools, *variables;
    struct rh_chat chat;
    uint32_t *ids;
    size_t id_count;
    bool no_special, plain, pieces, count_only;
    uint32_t context;
};

static void free_job(void *in)
{
    struct text_job *t = in;
    mem_free(t->text);
    mem_free(t->messages);
    mem_free(t->tools);
    mem_free(t->variables);
    mem_free(t->ids);
    mem_free(t);
}

static bool copy(struct rh_text from, char **own, struct rh_text *to)
{
    *own = from.p ? mem_try_strndup(from.p, from.n) : NULL;
    *to = (struct rh_text){*own, from.n};
    return !from.p || *own;
}

static struct text_job *chat_job(const struct params *p)
{
    struct text_job *t = mem_try_zero(1, sizeof *t);
    if (t && copy(p->chat.messages_json, &t->messages, &t->chat.messages_json) && copy(p->chat.tools_json, &t->tools, &t->chat.tools_json) &&
        copy(p->chat.variables_json, &t->variables, &t->chat.variables_json)) {
        t->chat.no_generation_prompt = p->chat.no_generation_prompt;
        return t;
    }
    if (t)
        free_job(t);
    return NULL;
}

/* ---- workers ---- */

static void put_pieces(struct rh_model *m, const struct rh_ids *ids, struct buf *body)
{
    buf_z(body, ",\"token_strs\":[");
    for (size_t i = 0; i < ids->n; i++) {
        char *text = NULL;
        size_t n = 0;
        if (i)
            buf_char(body, ',');
        rh_token_bytes(m, ids->ids[i], &text, &n, NULL);
        buf_json_str(body, str_n(text, n));
        rh_free(text);
    }
    buf_char(body, ']');
}

static int run_tokenize(struct rh_model *m, void *in, struct buf *body, struct api_error *e)
{
    struct text_job *t = in;
    struct rh_ids ids;
    struct rh_error err = {0};
    int rc = t->messages ? rh_chat_tokenize(m, &t->chat, &ids, &err)
                         : rh_tokenize(m, (struct rh_text){t->text, t->text_n}, t->no_special, t->plain, &ids, &err);
    if (rc)
        return api_fail_rh(e, &err, t->messages ? "/messages" : "/prompt");
    if (t->count_only)
        buf_printf(body, "{\"input_tokens\":%zu}", ids.n);
    else {
        buf_printf(body, "{\"count\":%zu,\"max_model_len\":%u,\"tokens\":[", ids.n, t->context);
        for (size_t i = 0; i < ids.n; i++)
            buf_printf(body, "%s%u", i ? "," : "", ids.ids[i]);
        buf_char(body, ']');
        if (t->pieces)
            put_pieces(m, &ids, body);
        buf_char(body, '}');
    }
    rh_free(ids.ids);
    return 0;
}

static int run_detokenize(struct rh_model *m, void *in, struct buf *body, struct api_error *e)
{
    struct text_job *t = in;
    struct rh_error err = {0};
    char *text = NULL;
    size_t n = 0;
    if (rh_detokenize(m, t->ids, t->id_count, &text, &n, &err))
        return api_fail_rh(e, &err, "/tokens");
    buf_z(body, "{\"prompt\":");
    buf_json_str(body, str_n(text, n));
    buf_z(body, ",\"content\":");
    buf_json_str(body, str_n(text, n));
    buf_char(body, '}');
    rh_free(text);
    return 0;
}

static int run_render(struct rh_model *m, void *in, struct buf *body, struct api_error *e)
{
    struct text_job *t = in;
    struct rh_rendered out;
    struct rh_error err = {0};
    if (rh_render(m, &t->chat, &out, &err))
        return api_fail_rh(e, &err, "/messages");
    buf_z(body, "{\"prompt\":");
    buf_json_str(body, str_n(out.text, out.text_n));
    buf_z(body, ",\"boundaries\":[");
    for (size_t i = 0; i < out.boundary_count; i++)
        buf_printf(body, "%s%zu", i ? "," : "", out.boundaries[i]);
    buf_z(body, "]}");
    rh_rendered_free(&out);
    return 0;
}

/* ---- requests ---- */

struct text_fields { /* beside params, by p.own */
    job_run run;
    const char *needed; /* a field */
    struct str text;
    uint32_t *ids;
    size_t id_count;
    bool has_text, has_ids, has_messages, special, plain, pieces, llama;
    struct text_job *made;
};

static struct text_fields *own(struct reader *r)
{
    return r->p->own;
}

static int read_text(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_str(v))
        return field_type(r, v, pointer, "a string");
    own(r)->text = json_str(v);
    own(r)->has_text = true;
    return 0;
}

static int read_content(struct reader *r, yyjson_val *v, const char *pointer)
{
    own(r)->llama = true; /* by this name no start token comes unasked */
    return read_text(r, v, pointer);
}

static int read_tokens(struct reader *r, yyjson_val *v, const char *pointer)
{
    own(r)->has_ids = true;
    return read_ids(r, v, pointer, &own(r)->ids, &own(r)->id_count);
}

static int read_flag(struct reader *r, yyjson_val *v, const char *pointer, bool *to)
{
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true or false");
    *to = yyjson_get_bool(v);
    return 0;
}

static int read_add_special(struct reader *r, yyjson_val *v, const char *pointer)
{
    bool yes = false;
    int rc = read_flag(r, v, pointer, &yes);
    own(r)->special = yes;
    own(r)->llama = !yes;
    return rc;
}

static int read_parse_special(struct reader *r, yyjson_val *v, const char *pointer)
{
    bool yes = true;
    int rc = read_flag(r, v, pointer, &yes);
    own(r)->plain = !yes;
    return rc;
}

static int read_pieces(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_flag(r, v, pointer, &own(r)->pieces);
}

static int read_generation(struct reader *r, yyjson_val *v, const char *pointer)
{
    bool yes = true;
    int rc = read_flag(r, v, pointer, &yes);
    r->p->chat.no_generation_prompt = !yes;
    return rc;
}

#define CHAT_PARTS                                                                                                                   \
    CALLED("messages", chat_messages_read), CALLED("tools", chat_tools_read), CALLED("chat_template_kwargs", read_variables),          \
        CALLED("reasoning_effort", read_effort), CALLED("add_generation_prompt", read_generation), CALLED("model", read_model)

static const struct field tokenize_fields[] = {
    CHAT_PARTS, CALLED("prompt", read_text), CALLED("content", read_content), CALLED("add_special_tokens", read_add_special),
    CALLED("add_special", read_add_special), CALLED("parse_special", read_parse_special), CALLED("return_token_strs", read_pieces),
    CALLED("with_pieces", read_pieces)};
static const struct field detokenize_fields[] = {CALLED("model", read_model), CALLED("tokens", read_tokens)};
static const struct field render_fields[] = {CHAT_PARTS};
const struct field_list tokenize_field_list = {tokenize_fields, FIELDS_COUNT(tokenize_fields), false};
const struct field_list detokenize_field_list = {detokenize_fields, FIELDS_COUNT(detokenize_fields), false};
const struct field_list render_field_list = {render_fields, FIELDS_COUNT(render_fields), false};

static struct text_job *make_job(struct reader *r, const struct text_fields *f)
{
    struct text_job *t = r->p->messages.n ? chat_job(r->p) : mem_try_zero(1, sizeof *t);
    if (!t)
        return NULL;
    t->no_special = f->llama && !f->special;
    t->plain = f->plain;
    t->pieces = f->pieces;
    t->context = r->s->context;
    t->text = f->has_text ? mem_try_strndup(f->text.p, f->text.n) : NULL;
    t->text_n = f->text.n;
    t->ids = f->has_ids ? mem_try_array(f->id_count + 1, sizeof *t->ids) : NULL;
    t->id_count = f->id_count;
    if ((f->has_text && !t->text) || (f->has_ids && !t->ids)) {
        free_job(t);
        return NULL;
    }
    if (f->id_count)
        memcpy(t->ids, f->ids, f->id_count * sizeof *t->ids);
    return t;
}

static int prepare(struct reader *r)
{
    struct text_fields *f = own(r);
    if (r->p->messages.n && chat_finish(r))
        return -1;
    if (!r->p->messages.n && !f->has_text && !f->has_ids)
        return api_fail(r->err, 400, "missing_required_parameter", r->p->input, "%s is missing", f->needed);
    f->made = make_job(r, f);
    return f->made ? 0 : api_fail(r->err, 503, NULL, "", "out of memory");
}

static int start(struct reader *r, struct call *c)
{
    return job_start(c, own(r)->run, own(r)->made, free_job, r->err); /* the job is its */
}

static void drop(struct reader *r)
{
    free_job(own(r)->made);
}

int route_tokenize(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&tokenize_field_list, "/prompt", prepare, start, drop};
    return body_route(c, e, &plan, &(struct text_fields){.run = run_tokenize, .needed = "prompt or messages"}, sizeof(struct text_fields));
}

int route_detokenize(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&detokenize_field_list, "/tokens", prepare, start, drop};
    return body_route(c, e, &plan, &(struct text_fields){.run = run_detokenize, .needed = "tokens"}, sizeof(struct text_fields));
}

int route_apply_template(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&render_field_list, "/messages", prepare, start, drop};
    return body_route(c, e, &plan, &(struct text_fields){.run = run_render, .needed = "messages"}, sizeof(struct text_fields));
}

int job_count_tokens(const struct call *c, const struct params *p, struct api_error *e)
{
    struct text_job *t = chat_job(p);
    if (!t)
        return api_fail(e, 503, NULL, "", "out of memory");
    t->count_only = true;
    return job_start(c, run_tokenize, t, free_job, e);
}
