/* tests/chat_tool.c - renders chat templates for scripts: one JSON request per line on standard input, one JSON reply per line.
 *
 * Request: {"template": text, "messages": [...], "tools": [...], "documents": [...], "variables": {...}, "bos_token": text, ...,
 *           "add_generation_prompt": bool, "now_s": seconds}
 * Reply:   {"text": ..., "pieces": [[from, to, user], ...], "boundaries": [...]} or {"error": ..., "code": name} */
#include "base/json.h"
#include "base/mem.h"
#include "chat/template.h"

#include <stdio.h>
#include <stdlib.h>

static void reply_error(const struct err *e, int rc)
{
    struct buf b = {0};
    buf_z(&b, "{\"error\": ");
    buf_json_str(&b, str_of(e->text));
    buf_printf(&b, ", \"code\": \"%s\"}", err_name(rc));
    puts(buf_cstr(&b));
    buf_free(&b);
}

static void reply_text(const struct chat_rendered *r)
{
    struct buf b = {0};
    buf_z(&b, "{\"text\": ");
    buf_json_str(&b, buf_view(&r->text));
    buf_z(&b, ", \"pieces\": [");
    for (size_t i = 0; i < r->piece_count; i++)
        buf_printf(&b, "%s[%zu, %zu, %s]", i ? ", " : "", r->pieces[i].from, r->pieces[i].to,
                   r->pieces[i].user ? "true" : "false");
    buf_z(&b, "], \"boundaries\": [");
    for (size_t i = 0; i < r->boundary_count; i++)
        buf_printf(&b, "%s%zu", i ? ", " : "", r->boundaries[i]);
    buf_z(&b, "]}");
    puts(buf_cstr(&b));
    buf_free(&b);
}

static void handle(yyjson_val *q)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    struct chat_rendered out = {0};
    struct chat_render_input in = {
        .messages = yyjson_obj_get(q, "messages"),
        .tools = yyjson_obj_get(q, "tools"),
        .documents = yyjson_obj_get(q, "documents"),
        .variables = yyjson_obj_get(q, "variables"),
        .bos_token = json_str(yyjson_obj_get(q, "bos_token")),
        .eos_token = json_str(yyjson_obj_get(q, "eos_token")),
        .unk_token = json_str(yyjson_obj_get(q, "unk_token")),
        .pad_token = json_str(yyjson_obj_get(q, "pad_token")),
        .add_generation_prompt = yyjson_get_bool(yyjson_obj_get(q, "add_generation_prompt")),
        .now_s = yyjson_get_sint(yyjson_obj_get(q, "now_s")),
    };
    int rc = chat_template_open(json_str(yyjson_obj_get(q, "template")), &t, &e);
    if (!rc)
        rc = chat_template_render(t, &in, &out, &e);
    if (rc)
        reply_error(&e, rc);
    else
        reply_text(&out);
    chat_rendered_free(&out);
    chat_template_close(t);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct err e = {0};
        yyjson_doc *doc = json_parse(str_n(line, (size_t)n), "request", &e);
        if (doc)
            handle(yyjson_doc_get_root(doc));
        else
            reply_error(&e, e.code);
        json_free(doc);
        fflush(stdout);
    }
    free(line);
    return 0;
}
