/* Fuzz target: byte 0 picks the format, byte 1 how it is cut and whether calls are wanted, the rest is the text; between two bytes 1 it is a
 * special token.  Cut in two ways the events must be the same; calls do not overlap; arguments of whole calls are one JSON object; with the
 * format none all text is content; UTF-8 in is UTF-8 out. */
#include "base/json.h"
#include "base/utf8.h"
#include "chat/output.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":"
    "\"string\"},\"days\":{\"type\":\"integer\"},\"lines\":{\"type\":\"array\"},\"options\":{\"type\":\"object\"},\"tag\":{\"type\":[\"string\","
    "\"null\",\"object\"]}}}}},{\"name\":\"now\"}]";

static void must(bool ok)
{
    if (!ok)
        abort();
}

struct script { /* events, adjacent deltas joined */
    struct buf all, args;
    int kind;
    uint32_t calls;
    bool open, valid; /* valid: the text is UTF-8 */
};

static void end_call(struct script *s, const struct output_event *e)
{
    struct err err = {0};
    must(s->open);
    if (e->whole && s->valid) {
        yyjson_doc *doc = json_parse(buf_view(&s->args), "arguments", &err);
        must(doc && yyjson_is_obj(yyjson_doc_get_root(doc)));
        json_free(doc);
    }
    s->open = false;
    s->args.n = 0;
}

static void take(struct script *s, struct output_parser *p)
{
    struct output_event e;
    while (output_next(p, &e)) {
        bool text = e.kind == OUTPUT_CONTENT || e.kind == OUTPUT_REASONING || e.kind == OUTPUT_CALL_ARGUMENTS;
        must(!text || e.text.n > 0);
        must(s->open == (e.kind == OUTPUT_CALL_ARGUMENTS || e.kind == OUTPUT_CALL_END));
        if (s->kind != (int)e.kind || !text)
            buf_printf(&s->all, "\n%d:", (int)e.kind);
        s->kind = (int)e.kind;
        buf_str(&s->all, e.text);
        if (e.kind == OUTPUT_CALL_BEGIN) {
            must(e.call == s->calls++ && e.name[0] && e.id[0]);
            buf_printf(&s->all, "%s %s", e.name, e.id);
            s->open = true;
        } else if (e.kind == OUTPUT_CALL_ARGUMENTS) {
            buf_str(&s->args, e.text);
        } else if (e.kind == OUTPUT_CALL_END) {
            buf_printf(&s->all, "%d", e.whole);
            end_call(s, &e);
        }
    }
}

/* Pieces of `step` bytes; of 1 to 13 in turn when it is 0. */
static void play(const struct output_options *o, struct str text, size_t step, struct script *s)
{
    struct output_parser *p;
    struct err err = {0};
    bool special = false;
    size_t n = step;
    *s = (struct script){.kind = -1, .valid = utf8_valid(text)};
    must(output_open(o, &p, &err) == 0);
    while (text.n) {
        if (text.p[0] == 1) {
            special = !special;
            text = str_from(text, 1);
            continue;
        }
        n = step ? step : n % 13 + 1;
        size_t to = 1;
        while (to < text.n && to < n && text.p[to] != 1)
            to++;
        must(output_put(p, str_n(text.p, to), special) == 0);
        take(s, p);
        text = str_from(text, to);
    }
    must(output_end(p) == 0);
    take(s, p);
    must(!s->open && output_call_count(p) == s->calls);
    output_close(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err = {0};
    struct script whole, cut;
    size_t formats = 0;
    if (size < 2)
        return 0;
    while (output_format_at(formats))
        formats++;
    yyjson_doc *tools = json_parse(str_of(tools_text), "tools", &err);
    struct output_options o = {.format = output_format_at(data[0] % formats), .calls = !(data[1] & 1), .tools = yyjson_doc_get_root(tools),
                               .prompt_tail = data[1] & 2 ? STR("<|start|>assistant<|channel|>analysis<|message|>") : STR("<think>\n")};
    if (data[1] & 4)
        o.prompt_tail = (struct str){0};
    struct str text = str_n(data + 2, size - 2);
    play(&o, text, SIZE_MAX, &whole);
    play(&o, text, data[1] >> 3 & 7, &cut);
    must(str_eq(buf_view(&whole.all), buf_view(&cut.all)));
    if (utf8_valid(text))
        must(utf8_valid(buf_view(&whole.all)));
    if (data[0] % formats == 0 && !memchr(text.p, 1, text.n) && text.n)
        must(str_eq(str_from(buf_view(&whole.all), 3), text));
    buf_free(&whole.all), buf_free(&whole.args), buf_free(&cut.all), buf_free(&cut.args);
    json_free(tools);
    return 0;
}
