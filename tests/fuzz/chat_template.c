/* Fuzz target: a template, and after a NUL byte a JSON object {messages, tools, variables}; both halves are untrusted.
 * Checks what must hold for every rendering: pieces cover the text in order and alternate, boundaries ascend inside it. */
#include "base/json.h"
#include "chat/template.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char fallback[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"h\\u00e9 <b>\"},"
    "{\"role\": \"assistant\", \"content\": \"yo\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, "
    "2.5, null, true]}}}]}], \"variables\": {\"l\": [3, 1, 2], \"d\": {\"x\": 1, \"y\": \"z\"}, \"s\": \"hello\", \"n\": 7, "
    "\"f\": 0.1}}";

static void check(const struct chat_rendered *r)
{
    size_t at = 0;
    for (size_t i = 0; i < r->piece_count; i++) {
        if (r->pieces[i].from != at || r->pieces[i].to <= at || (i && r->pieces[i].user == r->pieces[i - 1].user))
            abort();
        at = r->pieces[i].to;
    }
    if (at != r->text.n)
        abort();
    for (size_t i = 0; i < r->boundary_count; i++)
        if (r->boundaries[i] > r->text.n || (i && r->boundaries[i] <= r->boundaries[i - 1]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = {0};
    struct chat_template *t = NULL;
    struct chat_rendered out = {0};
    const uint8_t *cut = size ? memchr(data, 0, size) : NULL;
    struct str source = str_n(data, cut ? (size_t)(cut - data) : size),
               json = cut ? str_n(cut + 1, size - source.n - 1) : str_of(fallback);
    yyjson_doc *doc = json_parse(json, "fuzz", &e);
    yyjson_val *root = yyjson_doc_get_root(doc);
    struct chat_render_input in = {
        .messages = yyjson_obj_get(root, "messages"),
        .tools = yyjson_obj_get(root, "tools"),
        .variables = yyjson_obj_get(root, "variables"),
        .bos_token = STR("<s>"),
        .add_generation_prompt = true,
        .output_max_bytes = 1 << 16,
        .steps_max = 20000,
    };
    if (chat_template_open(source, &t, &e) == 0 && chat_template_render(t, &in, &out, &e) == 0)
        check(&out);
    chat_rendered_free(&out);
    chat_template_close(t);
    json_free(doc);
    return 0;
}
