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

static void put_schema(struct buf *b, const struct field *f)
{
    switch (f->kind) {
    case FIELD_BOOL:
        buf_z(b, "{\"type\":[\"boolean\",\"null\"]}");
        return;
    case FIELD_F32: case FIELD_U32: case FIELD_I64:
        buf_printf(b, "{\"type\":[\"%s\",\"null\"],\"minimum\":%.10g,\"maximum\":%.10g}", f->kind == FIELD_F32 ? "number" : "integer", f->low, f->high);
        return;
    default:
        buf_z(b, "{}");
    }
}

static void put_body(struct buf *b, const char *path)
{
    const struct field_list *fields = NULL;
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        if (!strcmp(bodies[i].path, path))
            fields = bodies[i].fields;
    buf_z(b, ",\"requestBody\":{\"required\":true,\"content\":{\"application/json\":{\"schema\":{\"type\":\"object\",\"properties\":{");
    for (size_t i = 0, n = 0; fields && i < fields->count; i++) {
        const struct field *f = &fields->list[i];
        if (f->kind == FIELD_REFUSED)
            continue;
        buf_printf(b, n++ ? ",\"%s\":" : "\"%s\":", f->name);
        put_schema(b, f);
    }
    buf_z(b, "}}}}}");
}

struct doc_route {
    const char *method, *path;
    bool prefix, open;
    const char *text;
};

static void put_route(struct buf *b, const struct doc_route *r)
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
        put_body(b, r->path);
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
                put_route(&b, &list[k]);
            }
        buf_char(&b, '}');
    }
    buf_z(&b, "}}");
    call_reply_json(c, 200, (struct str){0}, &b);
    buf_free(&b);
    return 0;
}
