/* chat/output_formats.c - the output formats: what each model family's markers are, as data.
 *
 * Order matters: a template has the first format one of whose `detect` it contains, so those with rarer markers come first.  Facts are from
 * the families' own chat templates; docs/output.md shows each format once (tests/unit/chat_output.c keeps the two lists equal). */
#include "chat/output_int.h"

#define THINK {"<think>", "</think>"}

static const struct output_format formats[] = {
    {.name = "none"},
    {.name = "harmony",
     .begin = {{NULL, "<|channel|>commentary to=functions.\1 <|constrain|>json<|message|>{"}},
     .detect = {{"<|channel|>", "<|message|>"}},
     .headers = true,
     .calls = {{.body = OUTPUT_NAMED}}}, /* output_header.c opens them */
    {.name = "gemma4",
     .begin = {{NULL, "<|tool_call>call:\1{"}},
     .detect = {{"<|tool_call>", NULL}, {"<|channel>", NULL}},
     .reasoning = {{"<|channel>thought", "<channel|>"}},
     .reasoning_anywhere = true,
     .drops = {"<|tool_response>"},
     .calls = {{.body = OUTPUT_NAMED, .call_open = "<|tool_call>call:", .call_close = "<tool_call|>", .string_mark = "<|\"|>"}}},
    {.name = "functiongemma",
     .begin = {{NULL, "<start_function_call>call:\1{"}},
     .detect = {{"<start_function_call>", NULL}},
     .drops = {"<start_function_response>"},
     .calls = {{.body = OUTPUT_NAMED, .call_open = "<start_function_call>call:", .call_close = "<end_function_call>",
                .string_mark = "<escape>"}}},
    {.name = "mistral",
     .begin = {{"[ARGS]", "[TOOL_CALLS]\1[ARGS]{"}, {NULL, "[TOOL_CALLS] [{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"[TOOL_CALLS]", NULL}, {"[THINK]", NULL}},
     .reasoning = {{"[THINK]", "[/THINK]"}, THINK},
     .short_ids = true,
     .calls = {{.body = OUTPUT_OBJECT, .open = "[TOOL_CALLS] [", .separator = ",", .close = "]", .id_key = "id"},
               {.body = OUTPUT_NAMED, .call_open = "[TOOL_CALLS]", .name_end = "[ARGS]", .id_open = "[CALL_ID]"}}},
    {.name = "lfm2",
     .begin = {{NULL, "<|tool_call_start|>[\1("}},
     .detect = {{"<|tool_call_start|>", NULL}, {"List of tools: ", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_NAMED, .flags = OUTPUT_PYTHON, .open = "<|tool_call_start|> [", .separator = ",",
                .close = "] <|tool_call_end|>"}}},
    {.name = "kimi_k2",
     .begin = {{NULL, "<|tool_calls_section_begin|><|tool_call_begin|>functions.\1:0<|tool_call_argument_begin|>{"}},
     .detect = {{"<|tool_calls_section_begin|>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_NAMED, .flags = OUTPUT_KIMI_NAME, .open = "<|tool_calls_section_begin|>", .close = "<|tool_calls_section_end|>",
                .call_open = "<|tool_call_begin|>", .call_close = "<|tool_call_end|>", .name_end = "<|tool_call_argument_begin|>"}}},
    {.name = "deepseek_v3",
     .begin = {{NULL, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>\1\n```json\n{"}},
     .detect = {{"<｜tool▁sep｜>", "```json"}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_NAMED, .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>",
                .call_open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", .call_close = "``` <｜tool▁call▁end｜>", .name_end = "```json"}}},
    {.name = "deepseek_v3.1",
     .begin = {{NULL, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\1<｜tool▁sep｜>{"}},
     .detect = {{"<｜tool▁sep｜>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_NAMED, .open = "<｜tool▁calls▁begin｜>", .close = "<｜tool▁calls▁end｜>", .call_open = "<｜tool▁call▁begin｜>",
                .call_close = "<｜tool▁call▁end｜>", .name_end = "<｜tool▁sep｜>"}}},
    {.name = "minimax_m2",
     .begin = {{NULL, "<minimax:tool_call>\n<invoke name=\"\1\">\n\2<parameter name=\"\2</invoke>"}},
     .detect = {{"<minimax:tool_call>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_TAGGED, .open = "<minimax:tool_call>", .close = "</minimax:tool_call>", .call_open = "<invoke name=\"",
                .name_end = "\">", .call_close = "</invoke>", .key_open = "<parameter name=\"", .key_close = "\">",
                .value_close = "</parameter>"}}},
    {.name = "seed_oss",
     .begin = {{NULL, "<seed:tool_call>\n<function=\1>\n\2<parameter=\2</function>"}},
     .detect = {{"<seed:tool_call>", NULL}},
     .reasoning = {{"<seed:think>", "</seed:think>"}},
     .calls = {{.body = OUTPUT_TAGGED, .open = "<seed:tool_call>", .close = "</seed:tool_call>", .call_open = "<function=", .name_end = ">",
                .call_close = "</function>", .key_open = "<parameter=", .key_close = ">", .value_close = "</parameter>"}}},
    {.name = "qwen3_coder",
     .begin = {{NULL, "<tool_call>\n<function=\1>\n\2<parameter=\2</function>"}},
     .detect = {{"<function=", "<parameter="}},
     .reasoning = {THINK},
     .call_ends_reasoning = true,
     .calls = {{.body = OUTPUT_TAGGED, .flags = OUTPUT_LINES, .open = "<tool_call>", .close = "</tool_call>", .call_open = "<function=",
                .name_end = ">", .call_close = "</function>", .key_open = "<parameter=", .key_close = ">", .value_close = "</parameter>"},
               {.body = OUTPUT_OBJECT, .call_open = "<tool_call> {", .call_close = "</tool_call>"}}},
    {.name = "functionary",
     .begin = {{NULL, "<function=\1>{"}},
     .detect = {{"<|python_tag|>", "<function="}},
     .calls = {{.body = OUTPUT_NAMED, .call_open = "<function=", .name_end = ">", .call_close = "</function>"}}},
    {.name = "glm4",
     .begin = {{NULL, "<tool_call>\1\n\2<arg_key>\2</tool_call>"}},
     .detect = {{"<arg_key>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_TAGGED, .call_open = "<tool_call>", .call_close = "</tool_call>", .key_open = "<arg_key>",
                .key_close = "</arg_key>", .value_open = "<arg_value>", .value_close = "</arg_value>"}}},
    {.name = "command_r7b",
     .begin = {{NULL, "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"\1\", \"parameters\": {"}},
     .detect = {{"<|START_ACTION|>", NULL}},
     .reasoning = {{"<|START_THINKING|>", "<|END_THINKING|>"}},
     .reasoning_anywhere = true,
     .drops = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"},
     .calls = {{.body = OUTPUT_OBJECT, .open = "<|START_ACTION|> [", .separator = ",", .close = "] <|END_ACTION|>", .name_key = "tool_name"}}},
    {.name = "apertus",
     .begin = {{NULL, "<|tools_prefix|>[{\"\1\": {"}},
     .detect = {{"<|tools_prefix|>", NULL}},
     .reasoning = {{"<|inner_prefix|>", "<|inner_suffix|>"}},
     .calls = {{.body = OUTPUT_OBJECT, .flags = OUTPUT_KEY_IS_NAME, .open = "<|tools_prefix|> [", .separator = ",",
                .close = "] <|tools_suffix|>"}}},
    {.name = "nemotron_v2",
     .begin = {{NULL, "<TOOLCALL>[{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"<TOOLCALL>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_OBJECT, .open = "<TOOLCALL> [", .separator = ",", .close = "] </TOOLCALL>"}}},
    {.name = "tool_calls",
     .begin = {{NULL, "<tool_calls>[{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"<tool_calls>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_OBJECT, .open = "<tool_calls> [", .separator = ",", .close = "] </tool_calls>"},
               {.body = OUTPUT_OBJECT, .open = "<tool_calls>", .close = "</tool_calls>"}}},
    {.name = "granite3",
     .begin = {{NULL, "<|tool_call|>[{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"<|tool_call|>", NULL}},
     .reasoning = {THINK},
     .drops = {"<response>", "</response>"},
     .calls = {{.body = OUTPUT_OBJECT, .open = "<|tool_call|> [", .separator = ",", .close = "]"},
               {.body = OUTPUT_OBJECT, .open = "<tool_call> [", .separator = ",", .close = "]"}}},
    {.name = "hermes",
     .begin = {{NULL, "<tool_call>\n{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"<tool_call>", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_OBJECT, .call_open = "<tool_call>", .call_close = "</tool_call>"}}},
    {.name = "llama3",
     .begin = {{NULL, "{\"name\": \"\1\", \"parameters\": {"}},
     .detect = {{"<|python_tag|>", NULL}, {"\"parameters\": dictionary of argument name", NULL}},
     .calls = {{.body = OUTPUT_OBJECT, .call_open = "<|python_tag|> {", .separator = ";"},
               {.body = OUTPUT_NAMED, .flags = OUTPUT_PYTHON | OUTPUT_DOT_CALL, .call_open = "<|python_tag|>"},
               {.body = OUTPUT_OBJECT, .flags = OUTPUT_BARE, .call_open = "{", .separator = ";"}}},
    {.name = "pythonic", /* Llama 4's and Gemma 3's own prompts ask for it; no template names it */
     .begin = {{NULL, "[\1("}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_NAMED, .flags = OUTPUT_PYTHON | OUTPUT_BARE, .open = "[", .separator = ",", .close = "]"}}},
    {.name = "json",
     .begin = {{NULL, "{\"name\": \"\1\", \"arguments\": {"}},
     .detect = {{"tools", NULL}},
     .reasoning = {THINK},
     .calls = {{.body = OUTPUT_OBJECT, .flags = OUTPUT_BARE, .call_open = "{", .separator = ";"},
               {.body = OUTPUT_OBJECT, .flags = OUTPUT_BARE, .open = "[ {", .separator = ",", .close = "]"},
               {.body = OUTPUT_OBJECT, .call_open = "<tool_call>", .call_close = "</tool_call>"}}},
    {.name = "think", .detect = {{"<think>", NULL}}, .reasoning = {THINK}},
};

const struct output_format *output_format_at(size_t i)
{
    return i < sizeof formats / sizeof *formats ? &formats[i] : NULL;
}

const struct output_format *output_format_find(struct str name)
{
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (str_is(name, formats[i].name))
            return &formats[i];
    return NULL;
}

static bool contains(struct str source, const char *text)
{
    return str_find(source, str_of(text)) != SIZE_MAX;
}

const struct output_format *output_format_of_template(struct str source)
{
    for (size_t i = 1; i < sizeof formats / sizeof *formats; i++)
        for (int k = 0; k < OUTPUT_DETECT_MAX && formats[i].detect[k].has; k++)
            if (contains(source, formats[i].detect[k].has) && (!formats[i].detect[k].too || contains(source, formats[i].detect[k].too)))
                return &formats[i];
    return formats;
}

const char *output_format_call(const struct output_format *f, struct str template_source)
{
    for (int i = 0; i < OUTPUT_DETECT_MAX && f->begin[i].text; i++)
        if (!f->begin[i].has || contains(template_source, f->begin[i].has))
            return f->begin[i].text;
    return NULL;
}

const char *output_format_name(const struct output_format *f)
{
    return f->name;
}

size_t output_format_delimiters(const struct output_format *f, struct str out[OUTPUT_DELIMITERS_MAX])
{
    size_t n = 0;
    for (size_t k = 0; k < OUTPUT_CALL_KINDS; k++) {
        const struct output_calls *c = &f->calls[k];
        const char *markers[] = {c->open, c->call_open, c->call_close, c->close};
        for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) {
            struct str rest = str_of(markers[i] ? markers[i] : ""), word;
            while (str_split(&rest, ' ', &word))
                if (word.n && n < OUTPUT_DELIMITERS_MAX)
                    out[n++] = word;
        }
    }
    return n;
}
