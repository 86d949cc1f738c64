/* tests/chat_tool.c - renders chat templates and reads outputs for scripts: one JSON request per line on standard input, one JSON reply per line.
 *
 * Request: {"template": text, "messages": [...], "tools": [...], "documents": [...], "variables": {...}, "bos_token": text, ...,
 *           "add_generation_prompt": bool, "now_s": seconds}
 * Reply:   {"text": ..., "pieces": [[from, to, user], ...], "boundaries": [...]} or {"error": ..., "code": name}
 *
 * Request: {"parse": text, "format": name or "template": text, "tools": [...], "prompt": text, "step": bytes put at once}
 * Reply:   {"format": name, "events": [[kind, text], ["call" or "broken", name, arguments, id], ...]} */
#include "base/json.h"
#include "base/mem.h"
#include "chat/output.h"
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

/* ---- outputs ---- */

static const char *const kinds[] = {"content", "reasoning"};

struct reading { /* the reply so far */
    struct buf out, text, id, name;
    int kind; /* of text; -1: a call's arguments */
};

static void flush(struct reading *g)
{
    if (g->kind >= 0 && g->text.n) {
        buf_printf(&g->out, "%s[\"%s\", ", g->out.p[g->out.n - 1] == '[' ? "" : ", ", kinds[g->kind]);
        buf_json_str(&g->out, buf_view(&g->text));
        buf_char(&g->out, ']');
        g->text.n = 0;
    }
}

static void take(struct reading *g, const struct output_event *e)
{
    if (e->kind == OUTPUT_CALL_BEGIN) {
        flush(g);
        g->kind = -1;
        g->name.n = g->id.n = 0;
        buf_z(&g->name, e->name);
        buf_z(&g->id, e->id);
    } else if (e->kind == OUTPUT_CALL_END) {
        buf_printf(&g->out, "%s[\"%s\", ", g->out.p[g->out.n - 1] == '[' ? "" : ", ", e->whole ? "call" : "broken");
        buf_json_str(&g->out, buf_view(&g->name));
        buf_z(&g->out, ", ");
        buf_json_str(&g->out, buf_view(&g->text));
        buf_z(&g->out, ", ");
        buf_json_str(&g->out, buf_view(&g->id));
        buf_char(&g->out, ']');
        g->text.n = 0;
    } else {
        if (e->kind != OUTPUT_CALL_ARGUMENTS && g->kind != (int)e->kind) {
            flush(g);
            g->kind = (int)e->kind;
        }
        buf_str(&g->text, e->text);
    }
}

static void parse(yyjson_val *q)
{
    struct err e = {0};
    struct output_event event;
    struct output_parser *p = NULL;
    struct str text = json_str(yyjson_obj_get(q, "parse")), name = json_str(yyjson_obj_get(q, "format"));
    size_t step = (size_t)yyjson_get_uint(yyjson_obj_get(q, "step"));
    struct output_options o = {.format = name.p ? output_format_find(name) : output_format_of_template(json_str(yyjson_obj_get(q, "template"))),
                               .tools = yyjson_obj_get(q, "tools"), .calls = true, .prompt_tail = json_str(yyjson_obj_get(q, "prompt"))};
    struct reading g = {.kind = 0};
    int rc = o.format ? output_open(&o, &p, &e) : err_set(&e, ERR_NOT_FOUND, "no such format");
    if (rc) {
        reply_error(&e, rc);
        return;
    }
    buf_printf(&g.out, "{\"format\": \"%s\", \"events\": [", output_format_name(o.format));
    for (size_t at = 0, n = step ? step : text.n; at < text.n && rc == 0; at += n) {
        rc = output_put(p, str_n(text.p + at, n < text.n - at ? n : text.n - at), false);
        while (output_next(p, &event))
            take(&g, &event);
    }
    rc = rc ? rc : output_end(p);
    while (output_next(p, &event))
        take(&g, &event);
    flush(&g);
    buf_z(&g.out, "]}");
    if (rc)
        reply_error(&e, rc);
    else
        puts(buf_cstr(&g.out));
    output_close(p);
    buf_free(&g.out), buf_free(&g.text), buf_free(&g.id), buf_free(&g.name);
}

int main(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        struct err e = {0};
        yyjson_doc *doc = json_parse(str_n(line, (size_t)n), "request", &e);
        if (doc && yyjson_obj_get(yyjson_doc_get_root(doc), "parse"))
            parse(yyjson_doc_get_root(doc));
        else if (doc)
            handle(yyjson_doc_get_root(doc));
        else
            reply_error(&e, e.code);
        json_free(doc);
        fflush(stdout);
    }
    free(line);
    return 0;
}
