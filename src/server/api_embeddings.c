/* server/api_embeddings.c - texts as vectors: POST /v1/embeddings, and /api/embed in Ollama's shape.
 *
 * One request to the library for each text; a vector's bits depend on its text alone, whatever came with it.  Which of a text's states the vector
 * is made of, the model's files say. */
#include "server/api_fields.h"
#include "server/body.h"
#include "server/api_openai.h"
#include "server/routes.h"

enum { INPUTS_MAX = 2048 };

struct embed_fields {
    const struct gen_api *api;
    struct gen_input *inputs;
    uint32_t count;
    bool base64, truncate;
};

/* ---- answers ---- */

static const char base64_mark; /* g->own of answers in base64 */

static void put_numbers(struct buf *out, const struct gen_choice *c)
{
    buf_char(out, '[');
    for (size_t i = 0; i < c->embedding_n; i++) {
        buf_z(out, i ? "," : "");
        buf_json_f32(out, c->embedding[i]);
    }
    buf_char(out, ']');
}

/* Little-endian f32. */
static void put_base64(struct buf *out, const struct gen_choice *c)
{
    buf_char(out, '"');
    buf_base64(out, str_n(c->embedding, c->embedding_n * sizeof *c->embedding));
    buf_char(out, '"');
}

static void openai_reply(struct gen *g, struct buf *out)
{
    buf_z(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < g->choice_count; i++) {
        buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%u,\"embedding\":", i ? "," : "", i);
        if (g->own == &base64_mark)
            put_base64(out, &g->choices[i]);
        else
            put_numbers(out, &g->choices[i]);
        buf_char(out, '}');
    }
    buf_z(out, "],\"model\":");
    buf_json_str(out, str_of(g->model));
    buf_printf(out, ",\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u}}", g->usage.prompt_tokens, g->usage.prompt_tokens);
}

static void ollama_reply(struct gen *g, struct buf *out)
{
    double ns = (g->timings.queue_ms + g->timings.prefill_ms) * 1e6;
    buf_z(out, "{\"model\":");
    buf_json_str(out, str_of(g->model));
    buf_z(out, ",\"embeddings\":[");
    for (uint32_t i = 0; i < g->choice_count; i++) {
        buf_z(out, i ? "," : "");
        put_numbers(out, &g->choices[i]);
    }
    buf_printf(out, "],\"total_duration\":%.0f,\"load_duration\":0,\"prompt_eval_count\":%u}", ns, g->usage.prompt_tokens);
}

static const struct gen_api embeddings_api = {.shape = API_OPENAI, .id_prefix = "embd-", .reply = openai_reply};
static const struct gen_api ollama_embed_api = {.shape = API_OLLAMA, .id_prefix = "ollama-", .reply = ollama_reply};

/* ---- requests ---- */

static struct embed_fields *own(struct reader *r)
{
    return r->p->own;
}

static int read_input(struct reader *r, yyjson_val *v, const char *pointer)
{
    return read_inputs(r, v, pointer, INPUTS_MAX, &own(r)->inputs, &own(r)->count);
}

static int read_encoding(struct reader *r, yyjson_val *v, const char *pointer)
{
    own(r)->base64 = str_is(json_str(v), "base64");
    if (own(r)->base64 || str_is(json_str(v), "float"))
        return 0;
    return api_fail(r->err, 400, "invalid_value", pointer, "%s: expected float or base64", pointer);
}

static int read_truncate(struct reader *r, yyjson_val *v, const char *pointer)
{
    if (!yyjson_is_bool(v))
        return field_type(r, v, pointer, "true or false");
    own(r)->truncate = yyjson_get_bool(v);
    return 0;
}

#define EMBED_PARTS                                                                                                                  \
    CALLED("model", read_model), CALLED("input", read_input), {"dimensions", FIELD_U32, 1, 4294967295.0, AT(o.dimensions), NULL}

static const struct field embedding_fields[] = {
    EMBED_PARTS, CALLED("encoding_format", read_encoding), CALLED("truncate", read_truncate), CALLED("session_id", read_session),
    CALLED("cache_salt", read_salt), CALLED("kv", read_kv), CALLED("kv_start", read_kv_start), CALLED("priority", read_priority), SILENT("user")};
static const struct field ollama_embed_fields[] = {EMBED_PARTS, CALLED("truncate", read_truncate), SILENT("options"), SILENT("keep_alive")};
const struct field_list embedding_field_list = {embedding_fields, FIELDS_COUNT(embedding_fields), false};
const struct field_list ollama_embed_field_list = {ollama_embed_fields, FIELDS_COUNT(ollama_embed_fields), false};

static int start(struct reader *r, struct call *c)
{
    const struct embed_fields *f = own(r);
    if (!f->inputs)
        return api_fail(r->err, 400, "missing_required_parameter", "/input", "/input is missing");
    r->p->o.embed = RH_EMBED_MODEL;
    r->p->o.truncate = f->truncate;
    return gen_start(c, r->p, f->inputs, f->count, f->api, f->base64 ? (void *)(uintptr_t)&base64_mark : NULL, &r->ignored, r->err);
}

int route_embeddings(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&embedding_field_list, "/input", NULL, start, NULL};
    return body_route(c, e, &plan, &(struct embed_fields){.api = &embeddings_api}, sizeof(struct embed_fields));
}

/* Ollama shortens texts that are too long unless told otherwise. */
int route_ollama_embed(struct call *c, struct api_error *e)
{
    static const struct body_plan plan = {&ollama_embed_field_list, "/input", NULL, start, NULL};
    return body_route(c, e, &plan, &(struct embed_fields){.api = &ollama_embed_api, .truncate = true}, sizeof(struct embed_fields));
}
