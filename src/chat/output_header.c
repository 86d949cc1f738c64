/* chat/output_header.c - messages with headers (harmony): <|start|>assistant<|channel|>NAME to=WHOM <|constrain|>json<|message|>TEXT<|end|>
 *
 * The header's last channel and its recipient say what the text is: for a tool "functions.NAME" the arguments of a call, for another
 * recipient or in the channel "analysis" reasoning, else content. */
#include "chat/output_int.h"

enum { HEADER_MAX = 512 };

static void begin_here(struct output_parser *p, uint8_t index)
{
    (void)index;
    header_begin(p);
}

static void message_begins(struct output_parser *p, uint8_t index);

void header_begin(struct output_parser *p)
{
    p->header.n = p->held.n = 0;
    p->outer = ST_CONTENT;
    p->skip_space = true;
    output_enter(p, ST_HEADER);
}

void header_markers_outside(struct output_parser *p)
{
    output_marker(p, "<|end|>", begin_here, 0, 0);
    output_marker(p, "<|call|>", begin_here, 0, 0);
    output_marker(p, "<|return|>", begin_here, 0, 0);
    output_marker(p, "<|start|>", begin_here, 0, sizeof "<|start|>" - 1);
    output_marker(p, "<|channel|>", begin_here, 0, sizeof "<|channel|>" - 1);
}

void header_markers(struct output_parser *p)
{
    output_marker(p, "<|message|>", message_begins, 0, 0);
}

bool header_is_marker(struct str special)
{
    return str_is(special, "<|start|>") || str_is(special, "<|channel|>") || str_is(special, "<|constrain|>") ||
           str_is(special, "<|message|>") || str_is(special, "<|end|>") || str_is(special, "<|call|>") || str_is(special, "<|return|>");
}

/* Could a header begin like this? */
static bool plausible(struct str text)
{
    static const char *const begins[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "to="};
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) {
        size_t n = strlen(begins[i]);
        if (memcmp(text.p, begins[i], text.n < n ? text.n : n) == 0)
            return true;
    }
    return text.n == 0;
}

void header_unit(struct output_parser *p, uint16_t unit)
{
    if (p->header.n || !output_space(unit))
        buf_char(&p->header, (char)unit);
    if (p->header.n > HEADER_MAX || (uint8_t)unit == '\n' || !plausible(buf_view(&p->header))) {
        call_fail(p, unit);
        return;
    }
    output_hold(p, unit);
}

/* Letters after the last `what`. */
static struct str word_after(struct str header, struct str what)
{
    struct str found = {0};
    for (size_t i = 0; i < header.n; i++)
        if (str_starts(str_from(header, i), what))
            found = str_from(header, i + what.n);
    size_t n = 0;
    while (n < found.n && found.p[n] > ' ' && found.p[n] != '<')
        n++;
    found.n = n;
    return found;
}

static void open_args(struct output_parser *p, struct str name)
{
    p->call = &p->format->calls[0];
    p->outer = ST_CONTENT;
    p->name.n = p->id.n = p->held.n = 0;
    buf_str(&p->name, name);
    value_open(&p->value, VALUE_QUOTES, NULL);
    output_enter(p, ST_ARGS);
}

static void message_begins(struct output_parser *p, uint8_t index)
{
    (void)index;
    struct str header = buf_view(&p->header), whom = word_after(header, STR("to=")), channel = word_after(header, STR("<|channel|>"));
    bool tool = str_starts(whom, STR("functions."));
    struct str name = tool ? str_from(whom, sizeof "functions." - 1) : whom;
    p->held.n = 0;
    p->skip_space = true;
    if (p->calls_wanted && whom.n && ((tool && !p->told_only) || schema_tool(p->schema, name) >= 0) && whom.n <= OUTPUT_NAME_MAX)
        open_args(p, name);
    else if (str_is(channel, "analysis") || (whom.n && !tool && !str_is(whom, "assistant")))
        output_enter(p, ST_REASONING);
    else
        output_enter(p, ST_CONTENT);
}
