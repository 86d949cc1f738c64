/* chat/output_call.c - inside a tool call: section, name, arguments by tags or as one value.
 *
 *     ST_CONTENT --open--> ST_SECTION --call_open--> ST_NAME ----> ST_ARGS ------> ST_AFTER --call_close--> ST_NEXT --separator--> ST_SECTION
 *                                                      |  ^---- ST_ID                 ^                      |--close--> ST_CONTENT
 *                                                      |-> ST_TAGS <-> ST_KEY, ST_VALUE --call_close---------|
 *                --call_open (no section)--> the same  --{--> ST_OBJECT (output_object.c) --^
 *
 * A call begins (its BEGIN is given out) where its name is sure and its arguments start; what is malformed before becomes content with
 * all its bytes, what is malformed after ends the call there. */
#include "chat/output_int.h"

/* ---- the ways out ---- */

void call_args_put(struct output_parser *p)
{
    if (p->chunk.n)
        output_emit(p, OUTPUT_CALL_ARGUMENTS, p->chunk.p, p->chunk.n);
    p->wrote_args |= p->chunk.n > 0;
    p->chunk.n = 0;
}

/* What is still held of the arguments of a call that breaks off. */
static void give_pending(struct output_parser *p)
{
    if (p->step == ST_ARGS || p->step == ST_OBJECT || (p->step == ST_VALUE && p->value_mode == VALUE_STREAM))
        value_pending(&p->value, &p->chunk);
    else if (p->step == ST_VALUE && p->value_mode == VALUE_TRY)
        buf_str(&p->chunk, buf_view(&p->held));
    else if (p->step == ST_KEY || p->step == ST_VALUE_OPEN) {
        buf_z(&p->chunk, p->wrote_args ? ", \"" : "{\"");
        for (size_t i = 0; i < p->key.n; i++)
            value_escape((uint8_t)p->key.p[i], &p->chunk);
    }
    call_args_put(p);
}

void call_fail(struct output_parser *p, uint16_t unit)
{
    bool moved = p->begun || p->moved || p->held.n;
    if (p->begun) {
        give_pending(p);
        call_end(p, false);
        p->held.n = 0;
    }
    p->chunk.n = 0;
    size_t n = p->held.n;
    output_enter(p, p->outer);
    p->call = NULL;
    for (size_t i = 0; i < n; i++)
        output_content_unit(p, (uint8_t)p->held.p[i]);
    p->held.n = 0;
    if (moved)
        output_replay(p, unit);
    else
        output_content_unit(p, unit);
}

static void leave(struct output_parser *p)
{
    p->skip_space = true;
    p->call = NULL;
    p->held.n = 0;
    output_enter(p, ST_CONTENT);
}

static void next_call(struct output_parser *p)
{
    p->held.n = 0;
    if (p->call->open || p->call->separator)
        output_enter(p, ST_NEXT);
    else
        leave(p);
}

void call_after_body(struct output_parser *p)
{
    p->held.n = 0;
    if (p->call->call_close)
        output_enter(p, ST_AFTER);
    else
        next_call(p);
}

/* ---- names ---- */

static bool name_char(uint16_t unit)
{
    uint8_t c = (uint8_t)unit;
    return !(unit & UNIT_SPECIAL) &&
           ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c >= 0x80 || (c && strchr("_-.:/", c)));
}

static bool strip(struct buf *b, struct str tail)
{
    if (!str_ends(buf_view(b), tail) || b->n == tail.n)
        return false;
    b->n -= tail.n;
    return true;
}

/* "functions.NAME:INDEX" */
static void kimi_name(struct output_parser *p)
{
    size_t n = p->name.n;
    p->id.n = 0;
    buf_str(&p->id, buf_view(&p->name));
    while (n && p->name.p[n - 1] >= '0' && p->name.p[n - 1] <= '9')
        n--;
    if (n > 1 && n < p->name.n && p->name.p[n - 1] == ':')
        p->name.n = n - 1;
    if (str_starts(buf_view(&p->name), STR("functions."))) {
        memmove(p->name.p, p->name.p + 10, p->name.n - 10);
        p->name.n -= 10;
    }
}

static bool name_ready(struct output_parser *p)
{
    while (p->name.n && p->name.p[p->name.n - 1] == ' ')
        p->name.n--;
    if (p->call->flags & OUTPUT_KIMI_NAME)
        kimi_name(p);
    if (p->call->flags & OUTPUT_DOT_CALL && !strip(&p->name, STR(".call")))
        return false;
    return p->name.n > 0;
}

static void begin_name(struct output_parser *p)
{
    p->name.n = p->id.n = 0;
    output_enter(p, ST_NAME);
}

static void name_unit(struct output_parser *p, uint16_t unit)
{
    bool space = output_space(unit), broken = p->name.n && p->name.p[p->name.n - 1] == ' ';
    if ((!space && (!name_char(unit) || broken)) || p->name.n == OUTPUT_NAME_MAX) {
        call_fail(p, unit);
        return;
    }
    output_hold(p, unit);
    if (!space)
        buf_char(&p->name, (char)unit);
    else if (p->name.n && !broken)
        buf_char(&p->name, ' ');
}

static void id_unit(struct output_parser *p, uint16_t unit)
{
    if (!name_char(unit) || p->id.n == OUTPUT_NAME_MAX) {
        call_fail(p, unit);
        return;
    }
    output_hold(p, unit);
    buf_char(&p->id, (char)unit);
}

/* ---- NAMED: the arguments are one value ---- */

static unsigned value_flags(const struct output_calls *c)
{
    if (c->flags & OUTPUT_PYTHON)
        return VALUE_PYTHON | VALUE_KEYWORDS;
    return c->string_mark ? VALUE_PYTHON : VALUE_QUOTES;
}

static void begin_args(struct output_parser *p, uint8_t index)
{
    (void)index;
    if (!name_ready(p)) {
        uint16_t last = p->held.n ? (uint8_t)p->held.p[--p->held.n] : UNIT_SPECIAL;
        call_fail(p, last);
        return;
    }
    p->chunk.n = 0;
    value_open(&p->value, value_flags(p->call), p->call->string_mark);
    output_enter(p, ST_ARGS);
}

/* The call begins once a key or the end of its arguments has come. */
static bool args_begin(struct output_parser *p, uint16_t unit)
{
    if (p->begun || p->chunk.n == 0 || (p->chunk.p[p->chunk.n - 1] != ':' && p->chunk.p[p->chunk.n - 1] != '}')) {
        if (!p->begun)
            output_hold(p, unit);
        return p->begun || p->held.n < OUTPUT_HOLD_MAX;
    }
    return call_begin(p);
}

void call_args_unit(struct output_parser *p, uint16_t unit)
{
    uint8_t c = (uint8_t)unit;
    bool first = p->value.depth == 0, opens = c == '{' || ((p->call->flags & OUTPUT_PYTHON) && c == '(');
    enum value_step step = VALUE_FAIL;
    if ((!(unit & UNIT_SPECIAL) || p->call->string_mark) && (!first || opens || output_space(unit)))
        step = value_put(&p->value, c, &p->chunk);
    if (step == VALUE_FAIL || !args_begin(p, unit)) {
        call_fail(p, unit);
        return;
    }
    if (p->begun)
        call_args_put(p);
    if (step == VALUE_DONE) {
        call_end(p, true);
        call_after_body(p);
    }
}

/* ---- TAGGED: keys and values between markers ---- */

static bool tag_begin(struct output_parser *p)
{
    return p->begun || (name_ready(p) && call_begin(p));
}

static void tag_fail(struct output_parser *p)
{
    uint16_t last = p->held.n ? (uint8_t)p->held.p[--p->held.n] : UNIT_SPECIAL;
    call_fail(p, last);
}

static void open_key(struct output_parser *p, uint8_t index)
{
    (void)index;
    if (!tag_begin(p)) {
        tag_fail(p);
        return;
    }
    p->key.n = 0;
    output_enter(p, ST_KEY);
}

static void open_tags(struct output_parser *p, uint8_t index)
{
    (void)index;
    output_enter(p, ST_TAGS);
}

static void close_tags(struct output_parser *p, uint8_t index)
{
    (void)index;
    if (!tag_begin(p)) {
        tag_fail(p);
        return;
    }
    buf_z(&p->chunk, p->wrote_args ? "}" : "{}");
    call_args_put(p);
    call_end(p, true);
    next_call(p);
}

static void key_unit(struct output_parser *p, uint16_t unit)
{
    bool inside = (unit & 0xC0) == 0x80; /* of a character: too long is found at its beginning */
    if ((unit & UNIT_SPECIAL) || p->key.n == KEY_MAX + 3 || (p->key.n >= KEY_MAX && !inside))
        call_fail(p, unit);
    else if (p->key.n || !output_space(unit))
        buf_char(&p->key, (char)unit);
}

static void begin_value(struct output_parser *p, uint8_t index)
{
    (void)index;
    struct str key = str_trim(buf_view(&p->key));
    buf_z(&p->chunk, p->wrote_args ? ", " : "{");
    buf_json_str(&p->chunk, key);
    buf_z(&p->chunk, ": ");
    call_args_put(p);
    p->value_types = schema_types(p->schema, p->tool, key);
    p->value_mode = VALUE_TEXT_FIRST;
    p->value_done = p->line_spent = false;
    p->held.n = p->args.n = 0;
    output_enter(p, ST_VALUE);
}

static void close_key(struct output_parser *p, uint8_t index)
{
    if (p->call->value_open)
        output_enter(p, ST_VALUE_OPEN);
    else
        begin_value(p, index);
}

static unsigned root_type(char root)
{
    switch (root) {
    case '{': return TYPE_OBJECT;
    case '[': return TYPE_ARRAY;
    case 't':
    case 'f': return TYPE_BOOL;
    case 'n': return TYPE_NULL;
    default: return TYPE_NUMBER;
    }
}

/* It is text: what was tried as JSON is given as the beginning of a string. */
static void value_is_text(struct output_parser *p)
{
    p->value_mode = VALUE_TEXT;
    buf_char(&p->chunk, '"');
    for (size_t i = 0; i < p->held.n; i++)
        value_escape((uint8_t)p->held.p[i], &p->chunk);
    p->held.n = p->args.n = 0;
    call_args_put(p);
}

/* The first byte says how the value is read: as text if it must be, as JSON if it cannot be text, else as JSON that may prove to be text. */
static void first_of_value(struct output_parser *p, uint8_t c)
{
    unsigned types = p->value_types;
    bool text = types == TYPE_STRING;
    bool container = (c == '{' && (types & TYPE_OBJECT)) || (c == '[' && (types & TYPE_ARRAY));
    value_open(&p->value, VALUE_QUOTES, NULL);
    if (text)
        value_is_text(p);
    else
        p->value_mode = container && !(types & TYPE_STRING) ? VALUE_STREAM : VALUE_TRY;
}

/* false: it is no JSON. */
static bool value_json(struct output_parser *p, uint8_t c, struct buf *out)
{
    if (p->value_done)
        return output_space(c);
    enum value_step step = value_put(&p->value, c, out);
    if (p->value.root == '"' || p->value.root == '\'')
        return false; /* in quotes: they belong to the text */
    p->value_done = step == VALUE_DONE || step == VALUE_DONE_BEFORE;
    return step != VALUE_FAIL && (step != VALUE_DONE_BEFORE || output_space(c));
}

static void value_unit(struct output_parser *p, uint16_t unit)
{
    uint8_t c = (uint8_t)unit;
    if (unit & UNIT_SPECIAL) {
        call_fail(p, unit);
        return;
    }
    if (p->value_mode == VALUE_TEXT_FIRST) {
        if (c == '\n' && (p->call->flags & OUTPUT_LINES) && !p->line_spent) {
            p->line_spent = true;
            return;
        }
        first_of_value(p, c);
    }
    if (p->value_mode == VALUE_TRY) {
        bool json = value_json(p, c, &p->args);
        buf_char(&p->held, (char)c);
        if (!json || p->held.n > OUTPUT_HOLD_MAX)
            value_is_text(p);
    } else if (p->value_mode == VALUE_STREAM) {
        bool json = value_json(p, c, &p->chunk);
        call_args_put(p);
        if (!json)
            call_fail(p, unit);
    } else {
        value_escape(c, &p->chunk);
        call_args_put(p);
    }
}

static void close_value(struct output_parser *p, uint8_t index)
{
    (void)index;
    if (p->value_mode == VALUE_TEXT_FIRST)
        value_is_text(p);
    bool json = p->value_mode != VALUE_TEXT && (p->value_done || value_finish(&p->value, &p->args));
    if (p->value_mode == VALUE_STREAM && !json) {
        call_fail(p, UNIT_SPECIAL);
        return;
    }
    if (p->value_mode == VALUE_TRY) {
        if (json && p->value.root && (!p->value_types || (p->value_types & root_type(p->value.root))))
            buf_str(&p->chunk, buf_view(&p->args));
        else
            value_is_text(p);
    }
    if (p->value_mode == VALUE_TEXT)
        buf_char(&p->chunk, '"');
    call_args_put(p);
    output_enter(p, ST_TAGS);
}

/* ---- opening ---- */

static void begin_body(struct output_parser *p, uint8_t index)
{
    (void)index;
    if (p->call->body == OUTPUT_OBJECT)
        object_open(p);
    else
        begin_name(p);
}

static void open_call(struct output_parser *p, uint8_t index)
{
    const struct output_calls *c = &p->format->calls[index];
    p->call = c;
    p->outer = p->step;
    if (c->open)
        output_enter(p, ST_SECTION);
    else
        begin_body(p, 0);
}

static void close_section(struct output_parser *p, uint8_t index)
{
    (void)index;
    leave(p);
}

static void after_separator(struct output_parser *p, uint8_t index)
{
    (void)index;
    output_enter(p, ST_SECTION);
}

static void call_closed(struct output_parser *p, uint8_t index)
{
    (void)index;
    next_call(p);
}

static void open_id(struct output_parser *p, uint8_t index)
{
    (void)index;
    output_enter(p, ST_ID);
}

/* ---- markers ---- */

static bool ends_in_brace(const char *text)
{
    size_t n = strlen(text);
    return n && text[n - 1] == '{';
}

void call_markers_outside(struct output_parser *p, bool bare)
{
    for (uint8_t i = 0; i < OUTPUT_CALL_KINDS && p->calls_wanted; i++) {
        const struct output_calls *c = &p->format->calls[i];
        const char *text = c->open ? c->open : c->call_open;
        if (c->body && (bare || !(c->flags & OUTPUT_BARE)))
            output_marker(p, text, open_call, i, ends_in_brace(text));
    }
}

static void body_markers(struct output_parser *p)
{
    const struct output_calls *c = p->call;
    if (c->body == OUTPUT_OBJECT)
        output_marker(p, "{", begin_body, 0, 1);
    if (c->call_open)
        output_marker(p, c->call_open, begin_body, 0, ends_in_brace(c->call_open));
}

static void name_markers(struct output_parser *p)
{
    const struct output_calls *c = p->call;
    if (c->body == OUTPUT_TAGGED) {
        output_marker(p, c->name_end, open_tags, 0, 0);
        if (!c->name_end) {
            output_marker(p, c->key_open, open_key, 0, 0);
            output_marker(p, c->call_close, close_tags, 0, 0);
        }
        return;
    }
    output_marker(p, c->name_end, begin_args, 0, 0);
    output_marker(p, c->id_open, open_id, 0, 0);
    output_marker(p, c->flags & OUTPUT_PYTHON ? "(" : "{", begin_args, 0, 1);
}

/* With OUTPUT_LINES the line break before value_close is the marker's. */
static const char *with_line(struct output_parser *p)
{
    size_t n = strlen(p->call->value_close);
    if (n + 2 > sizeof p->line_close)
        return NULL;
    p->line_close[0] = '\n';
    memcpy(p->line_close + 1, p->call->value_close, n + 1);
    return p->line_close;
}

void call_markers(struct output_parser *p)
{
    const struct output_calls *c = p->call;
    switch (p->step) {
    case ST_SECTION:
        body_markers(p);
        output_marker(p, c->close, close_section, 0, 0);
        break;
    case ST_NEXT:
        output_marker(p, c->separator, after_separator, 0, 0);
        if (!c->separator)
            body_markers(p);
        output_marker(p, c->close, close_section, 0, 0);
        break;
    case ST_NAME: name_markers(p); break;
    case ST_ID: output_marker(p, c->name_end, begin_args, 0, 0); break;
    case ST_AFTER: output_marker(p, c->call_close, call_closed, 0, 0); break;
    case ST_TAGS:
        output_marker(p, c->key_open, open_key, 0, 0);
        output_marker(p, c->call_close, close_tags, 0, 0);
        break;
    case ST_KEY: output_marker(p, c->key_close, close_key, 0, 0); break;
    case ST_VALUE_OPEN: output_marker(p, c->value_open, begin_value, 0, 0); break;
    case ST_VALUE:
        if (c->flags & OUTPUT_LINES)
            output_marker(p, with_line(p), close_value, 0, 0);
        output_marker(p, c->value_close, close_value, 0, 0);
        break;
    default: break;
    }
}

/* ---- units that are no marker ---- */

static void between_unit(struct output_parser *p, uint16_t unit)
{
    if (output_space(unit) && p->held.n < OUTPUT_HOLD_MAX)
        output_hold(p, unit);
    else if (p->step == ST_SECTION && p->call->body == OUTPUT_NAMED && !p->call->call_open && name_char(unit)) {
        begin_name(p);
        output_replay(p, unit);
    } else
        call_fail(p, unit);
}

/* The call has ended; something else than what its format has next stands here. */
static void beyond_unit(struct output_parser *p, uint16_t unit)
{
    if (output_space(unit))
        return;
    if (p->step == ST_AFTER)
        next_call(p);
    else
        leave(p);
    output_replay(p, unit);
}

void call_unit(struct output_parser *p, uint16_t unit)
{
    switch (p->step) {
    case ST_NAME: name_unit(p, unit); break;
    case ST_ID: id_unit(p, unit); break;
    case ST_KEY: key_unit(p, unit); break;
    case ST_VALUE: value_unit(p, unit); break;
    case ST_AFTER:
    case ST_NEXT: beyond_unit(p, unit); break;
    default: between_unit(p, unit); break;
    }
}

void call_text_ends(struct output_parser *p)
{
    if (p->step == ST_AFTER || p->step == ST_NEXT)
        return;
    call_fail(p, UNIT_SPECIAL); /* a unit that is nothing */
}
