/* server/openapi.c - GET /openapi.json: the routes and the fields of their bodies, from the same lists that serve them. */
#include "server/routes.h"

#include <ctype.h>
#include <stdio.h>

static const struct {
    const char *path;
    const struct field_list *fields;
} bodies[] = {{"/v1/chat/completions", &chat_field_list}, {"/v1/completions", &completion_field_list}, {"/v1/messages", &message_field_list},
              {"/v1/messages/count_tokens", &count_field_list}, {"/v1/responses", &responses_field_list}, {"/api/chat", &ollama_chat_field_list},
              {"/api/generate", &ollama_generate_field_list}, {"/tokenize", &tokenize_field_list}, {"/detokenize", &detokenize_field_list},
              {"/apply-template", &render_field_list}, {"/v1/embeddings", &embedding_field_list}, {"/api/embed", &ollama_embed_field_list}};

#define TEXT "{\"type\":[\"string\",\"null\"]}"
#define WHOLE "{\"type\":[\"integer\",\"null\"],\"minimum\":0}"
#define OBJECT "{\"type\":[\"object\",\"null\"]}"
#define FLAG "{\"type\":[\"boolean\",\"null\"]}"
#define IDS "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0},\"minItems\":1}"
#define ONE_OR_MORE "{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":1}," IDS "]}"
#define MESSAGE(roles)                                                                                                                \
    "{\"type\":\"object\",\"required\":[\"role\",\"content\"],\"properties\":{\"role\":{\"enum\":[" roles "]},\"content\":{\"type\":\"string\"}}}"
#define MESSAGES(roles) "{\"type\":\"array\",\"minItems\":1,\"items\":" MESSAGE(roles) "}"

/* What fields with a reader of their own take; path NULL: in every body. */
static const struct {
    const char *path, *name, *schema;
} shapes[] = {
    {"/v1/messages", "messages", MESSAGES("\"user\"")}, {"/v1/messages/count_tokens", "messages", MESSAGES("\"user\"")},
    {NULL, "messages", MESSAGES("\"system\",\"user\",\"assistant\"")}, {"/api/generate", "prompt", TEXT}, {"/tokenize", "prompt", TEXT},
    {"/v1/responses", "input", "{\"anyOf\":[{\"type\":\"string\"}," MESSAGES("\"user\",\"assistant\"") "]}"}, {NULL, "prompt", ONE_OR_MORE},
    {NULL, "input", ONE_OR_MORE}, {NULL, "seed", "{\"type\":[\"integer\",\"null\"]}"}, {NULL, "top_k", WHOLE}, {NULL, "kv_start", WHOLE},
    {"/v1/completions", "logprobs", "{\"type\":[\"integer\",\"null\"],\"minimum\":0,\"maximum\":128}"},
    {NULL, "prompt_logprobs", "{\"type\":[\"integer\",\"null\"],\"minimum\":0,\"maximum\":20}"}, {NULL, "tokens", IDS}, {NULL, "stop_token_ids", IDS},
    {NULL, "stop", "{\"anyOf\":[{\"type\":[\"string\",\"null\"],\"minLength\":1},{\"type\":\"array\",\"maxItems\":16,\"items\":{\"type\":\"string\",\"minLength\":1}}]}"},
    {NULL, "stop_sequences", "{\"type\":[\"array\",\"null\"],\"maxItems\":16,\"items\":{\"type\":\"string\",\"minLength\":1}}"},
    {NULL, "truncation", "{\"enum\":[\"auto\",\"disabled\",null]}"}, {NULL, "encoding_format", "{\"enum\":[\"float\",\"base64\",null]}"},
    {NULL, "reasoning_effort", "{\"enum\":[\"none\",\"minimal\",\"low\",\"medium\",\"high\",\"xhigh\",\"max\",null]}"}, {NULL, "verbosity", "{\"enum\":[\"medium\",null]}"},
    {NULL, "modalities", "{\"enum\":[[\"text\"],null]}"}, {NULL, "response_format", "{\"enum\":[{\"type\":\"text\"},null]}"}, {NULL, "session_id", TEXT}, {NULL, "cache_salt", TEXT},
    {NULL, "instructions", TEXT}, {NULL, "system", TEXT}, {NULL, "chat_template_kwargs", OBJECT}, {NULL, "logit_bias", OBJECT}, {NULL, "metadata", OBJECT},
    {NULL, "options", OBJECT}, {NULL, "store", FLAG}, {NULL, "truncate", FLAG}, {NULL, "parallel_tool_calls", FLAG}, {NULL, "add_generation_prompt", FLAG},
    {NULL, "add_special_tokens", FLAG}, {NULL, "add_special", FLAG}, {NULL, "parse_special", FLAG}, {NULL, "return_token_strs", FLAG}, {NULL, "with_pieces", FLAG},
    {NULL, "raw", FLAG}, {NULL, "propose", "{\"enum\":[\"none\",\"auto\",\"echo\",\"lookup\",\"echo,lookup\",null]}"}, {NULL, "content", TEXT}};

static const char *shape_of(const char *path, const char *name)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!strcmp(shapes[i].name, name) && (!shapes[i].path || !strcmp(shapes[i].path, path)))
            return shapes[i].schema;
    return "{}";
}

static void put_model(const struct server *s, struct buf *b)
{
    if (s->cfg->any_model) {
        buf_z(b, TEXT);
        return;
    }
    buf_z(b, "{\"enum\":[null,");
    buf_json_str(b, str_of(s->cfg->model_id));
    for (size_t i = 0; i < s->cfg->alias_count; i++) {
        buf_char(b, ',');
        buf_json_str(b, str_of(s->cfg->aliases[i]));
    }
    buf_z(b, "]}");
}

static void put_schema(const struct server *s, struct buf *b, const char *path, const struct field *f)
{
    if (!strcmp(f->name, "model")) {
        put_model(s, b);
        return;
    }
    switch (f->kind) {
    case FIELD_BOOL:
        buf_z(b, "{\"type\":[\"boolean\",\"null\"]}");
        return;
    case FIELD_F32: case FIELD_U32: case FIELD_I64:
        buf_printf(b, "{\"type\":[\"%s\",\"null\"],\"minimum\":%.10g,\"maximum\":%.10g}", f->kind == FIELD_F32 ? "number" : "integer", f->low, f->high);
        return;
    case FIELD_CALL:
        buf_z(b, shape_of(path, f->name));
        return;
    default:
        buf_z(b, "{}");
    }
}

/* Fields without which there is no answer. */
static const struct {
    const char *path, *name;
} needed[] = {{"/v1/chat/completions", "messages"}, {"/v1/completions", "prompt"}, {"/v1/messages", "messages"}, {"/v1/messages", "max_tokens"},
              {"/v1/messages/count_tokens", "messages"}, {"/v1/responses", "input"}, {"/api/chat", "messages"}, {"/api/generate", "prompt"}, {"/api/embed", "input"},
              {"/v1/embeddings", "input"}, {"/detokenize", "tokens"}, {"/apply-template", "messages"}, {"/v1/cancel", "id"}};

static void put_needed(struct buf *b, const char *path)
{
    const char *comma = "";
    buf_z(b, "\"required\":[");
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (!strcmp(needed[i].path, path)) {
            buf_printf(b, "%s\"%s\"", comma, needed[i].name);
            comma = ",";
        }
    buf_z(b, "],");
}

static void put_body(const struct server *s, struct buf *b, const char *path)
{
    const struct field_list *fields = NULL;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (!strcmp(bodies[i].path, path))
            fields = bodies[i].fields;
    buf_z(b, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\",");
    put_needed(b, path);
    buf_z(b, "\"properties\":{");
    for (size_t i = 0, n = 0; fields && i < fields->count; i++) {
        const struct field *f = &fields->list[i];
        if (f->kind == FIELD_REFUSED)
            continue;
        buf_printf(b, n++ ? ",\"%s\":" : "\"%s\":", f->name);
        put_schema(s, b, path, f);
    }
    buf_z(b, "}}}}}");
}

struct doc_route {
    const char *method, *path;
    bool prefix, open;
    const char *text;
};

static void put_route(const struct server *s, struct buf *b, const struct doc_route *r)
{
    char method[16];
    size_t n = 0;
    for (; r->method[n] && n + 1 < sizeof method; n++)
        method[n] = (char)tolower((unsigned char)r->method[n]);
    method[n] = 0;
    buf_printf(b, "\"%s\":{\"summary\":", method);
    buf_json_str(b, str_of(r->text));
    if (r->prefix)
        buf_z(b, ",\"parameters\":[{\"name\":\"id\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":\"string\"}}]");
    if (!strcmp(r->method, "POST"))
        put_body(s, b, r->path);
    buf_z(b, r->open ? ",\"security\":[]" : "");
    buf_z(b, ",\"responses\":{\"200\":{\"description\":\"the answer\"},\"default\":{\"description\":\"an error\",\"content\":{\"application/json\":"
             "{\"schema\":{\"type\":\"object\",\"required\":[\"error\"]}}}}}}");
}

int route_openapi(struct call *c, struct api_error *e)
{
    enum { OPEN, USER, ADMIN };
    static const struct doc_route list[] = {
#define DOC_ROW(method, path, prefix, who, shape, fn, text) {#method, path, prefix, who == OPEN, text},
        ROUTE_LIST(DOC_ROW)
#undef DOC_ROW
    };
    struct buf b = {0};
    size_t count = sizeof list / sizeof *list;
    (void)e;
    buf_z(&b, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Rhapsode\",\"version\":\"" RH_VERSION "\"},\"security\":[{},{\"key\":[]}],"
              "\"components\":{\"securitySchemes\":{\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"}}},\"paths\":{");
    for (size_t i = 0, n = 0; i < count; i++) {
        size_t first = 0;
        while (strcmp(list[first].path, list[i].path))
            first++;
        if (first < i)
            continue; /* with its first method */
        buf_printf(&b, n++ ? ",\"%s%s\":{" : "\"%s%s\":{", list[i].path, list[i].prefix ? "{id}" : "");
        for (size_t k = i, m = 0; k < count; k++)
            if (!strcmp(list[k].path, list[i].path)) {
                buf_z(&b, m++ ? "," : "");
                put_route(c->s, &b, &list[k]);
            }
        buf_char(&b, '}');
    }
    buf_z(&b, "}}");
    call_reply_json(c, 200, (struct str){0}, &b);
    buf_free(&b);
    return 0;
}
