/* chat/output_object.c - a call that is a JSON object: {"name": ..., "arguments": {...}}, keys in any order, arguments perhaps as a string
 * that holds JSON.
 *
 *     OBJ_START -{-> OBJ_FIRST -"-> OBJ_KEY -"-> OBJ_COLON -:-> OBJ_VALUE --> OBJ_TEXT (a name) | OBJ_ARGS | OBJ_ARGS_TEXT | OBJ_SKIP -->
 *     OBJ_AFTER -,-> OBJ_FIRST ... -}-> the end
 *
 * The call begins with its arguments once the name is known, and ends with them; arguments before the name are kept. */
#include "chat/output_int.h"

#include "base/utf8.h"

void object_open(struct output_parser *p)
{
    p->object = OBJ_START;
    p->name.n = p->id.n = p->args.n = 0;
    p->args_known = p->ended = false;
    output_enter(p, ST_OBJECT);
}

/* ---- strings, decoded ---- */

enum { UN_TEXT, UN_ESCAPE, UN_HEX };

static size_t lone_half(struct unescape *u, char *out)
{
    bool half = u->high != 0;
    u->high = 0;
    return half ? utf8_encode(0xFFFD, out) : 0;
}

static size_t put_code(struct unescape *u, uint32_t cp, char *out)
{
    if (cp >= 0xDC00 && cp <= 0xDFFF && u->high) {
        cp = 0x10000 + ((u->high - 0xD800) << 10) + (cp - 0xDC00);
        u->high = 0;
        return utf8_encode(cp, out);
    }
    size_t n = lone_half(u, out);
    if (cp >= 0xD800 && cp <= 0xDBFF) {
        u->high = cp;
        return n;
    }
    return n + utf8_encode(cp >= 0xDC00 && cp <= 0xDFFF ? 0xFFFD : cp, out + n);
}

/* Bytes decoded (at most 8); -1: the string ended, -2: it is malformed. */
static int unescape_put(struct unescape *u, uint8_t c, char *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (u->state == UN_HEX) {
        bool digit = (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
        if (!digit)
            return -2;
        u->hex = u->hex << 4 | (c <= '9' ? c - (uint32_t)'0' : (c | 32u) - 'a' + 10u);
        if (++u->hex_n < 4)
            return 0;
        u->state = UN_TEXT;
        return (int)put_code(u, u->hex, out);
    }
    if (u->state == UN_ESCAPE) {
        const char *at = c ? strchr(from, c) : NULL;
        u->state = c == 'u' ? UN_HEX : UN_TEXT;
        u->hex = u->hex_n = 0;
        if (c == 'u')
            return 0;
        size_t n = lone_half(u, out);
        if (!at)
            return -2;
        out[n] = to[at - from];
        return (int)n + 1;
    }
    if (c == '"')
        return -1;
    if (c == '\\') {
        u->state = UN_ESCAPE;
        return 0;
    }
    size_t n = lone_half(u, out);
    out[n] = (char)c;
    return (int)n + 1;
}

/* ---- arguments ---- */

/* JSON in p->chunk: given out if the call may begin, else kept. */
static bool args_put(struct output_parser *p)
{
    if (p->chunk.n == 0)
        return true;
    if (!p->begun && p->name.n && p->args.n == 0 && !call_begin(p))
        return false;
    if (p->begun)
        call_args_put(p);
    else
        buf_str(&p->args, buf_view(&p->chunk));
    p->chunk.n = 0;
    return true;
}

static void args_end(struct output_parser *p)
{
    p->args_known = true;
    p->object = OBJ_AFTER;
    if (p->begun) {
        call_end(p, true);
        p->ended = true;
    }
}

static bool args_byte(struct output_parser *p, uint8_t c)
{
    enum value_step step = value_put(&p->value, c, &p->chunk);
    if (step == VALUE_FAIL || !args_put(p))
        return false;
    if (step == VALUE_DONE && p->object == OBJ_ARGS)
        args_end(p);
    return step != VALUE_DONE_BEFORE;
}

static bool args_text_byte(struct output_parser *p, uint8_t c)
{
    char bytes[8];
    int n = unescape_put(&p->unescape, c, bytes);
    bool ok = n != -2;
    if (n == -1 && !p->value.root) /* an empty string */
        ok = args_byte(p, '{') && args_byte(p, '}');
    for (int i = 0; i < n && ok; i++) {
        uint8_t byte = (uint8_t)bytes[i];
        if (p->value.depth == 0 && (p->value.root || byte != '{'))
            ok = output_space(byte);
        else
            ok = args_byte(p, byte);
    }
    ok = ok && (n != -1 || p->value.depth == 0);
    if (n == -1 && ok)
        args_end(p);
    return ok;
}

/* ---- the object ---- */

static bool begin_value(struct output_parser *p, uint8_t c)
{
    p->unescape = (struct unescape){0};
    value_open(&p->value, VALUE_QUOTES, NULL);
    if (p->object_key == OBJ_KEY_NAME || (p->object_key == OBJ_KEY_ID && c == '"')) {
        p->object = OBJ_TEXT;
        return c == '"' && (p->object_key == OBJ_KEY_ID ? p->id.n == 0 : p->name.n == 0);
    }
    if (p->object_key == OBJ_KEY_ARGS && c == '"' && !p->args_known) {
        p->object = OBJ_ARGS_TEXT;
        return true;
    }
    if (p->object_key == OBJ_KEY_ARGS && c == '{' && !p->args_known) {
        p->object = OBJ_ARGS;
        return args_byte(p, c);
    }
    p->object = OBJ_SKIP; /* other keys, and arguments that are null */
    if (p->object_key == OBJ_KEY_ARGS && c != 'n')
        return false;
    enum value_step step = value_put(&p->value, c, &p->chunk);
    p->chunk.n = 0;
    return step == VALUE_MORE;
}

static void key_ends(struct output_parser *p)
{
    struct str key = buf_view(&p->key);
    bool is_name = p->call->name_key ? str_is(key, p->call->name_key) : str_is(key, "name") || str_is(key, "function");
    p->object = OBJ_COLON;
    p->object_key = OBJ_KEY_OTHER;
    if (p->call->flags & OUTPUT_KEY_IS_NAME) {
        p->object_key = OBJ_KEY_ARGS;
        p->name.n = 0;
        buf_str(&p->name, key);
    } else if (is_name)
        p->object_key = OBJ_KEY_NAME;
    else if (str_is(key, "arguments") || str_is(key, "parameters"))
        p->object_key = OBJ_KEY_ARGS;
    else if (p->call->id_key && str_is(key, p->call->id_key))
        p->object_key = OBJ_KEY_ID;
}

/* A key that a bare object has and a call has not: it is no call. */
static bool key_is_foreign(const struct output_parser *p)
{
    return (p->call->flags & OUTPUT_BARE) && p->object_key == OBJ_KEY_OTHER && !str_is(buf_view(&p->key), "type") &&
           !str_is(buf_view(&p->key), "id");
}

static bool text_byte(struct output_parser *p, uint8_t c, struct buf *to, size_t max, enum object_state next)
{
    char bytes[8];
    int n = unescape_put(&p->unescape, c, bytes);
    if (n == -1)
        p->object = next;
    for (int i = 0; i < n; i++)
        if (to->n >= max || (uint8_t)bytes[i] < 0x20)
            return false;
    if (n > 0)
        buf_put(to, bytes, (size_t)n);
    return n != -2;
}

static bool skip_byte(struct output_parser *p, uint16_t unit)
{
    enum value_step step = value_put(&p->value, (uint8_t)unit, &p->chunk);
    p->chunk.n = 0;
    if (step == VALUE_DONE || step == VALUE_DONE_BEFORE)
        p->object = OBJ_AFTER;
    if (step == VALUE_DONE_BEFORE) {
        p->held.n -= p->held.n > 0; /* it is held when it comes again */
        output_replay(p, unit);
    }
    return step != VALUE_FAIL;
}

/* '}': the end. */
static bool object_ends(struct output_parser *p)
{
    if (!p->ended) {
        if (p->name.n == 0 || !call_begin(p))
            return false;
        if (p->args.n)
            buf_str(&p->chunk, buf_view(&p->args));
        else
            buf_z(&p->chunk, "{}");
        call_args_put(p);
        call_end(p, true);
    }
    call_after_body(p);
    return true;
}

static bool plain_byte(struct output_parser *p, uint8_t c)
{
    if (output_space(c))
        return true;
    switch (p->object) {
    case OBJ_START: p->object = OBJ_FIRST; return c == '{';
    case OBJ_FIRST:
        p->object = OBJ_KEY;
        p->key.n = 0;
        p->unescape = (struct unescape){0};
        return c == '"';
    case OBJ_COLON: p->object = OBJ_VALUE; return c == ':';
    case OBJ_VALUE: return begin_value(p, c);
    default:
        if (c == '}')
            return object_ends(p);
        p->object = OBJ_FIRST;
        return c == ',';
    }
}

static bool object_byte(struct output_parser *p, uint16_t unit)
{
    uint8_t c = (uint8_t)unit;
    switch (p->object) {
    case OBJ_KEY:
        if (!text_byte(p, c, &p->key, KEY_MAX, OBJ_COLON))
            return false;
        if (p->object == OBJ_COLON)
            key_ends(p);
        return p->object != OBJ_COLON || !key_is_foreign(p);
    case OBJ_TEXT:
        if (p->object_key == OBJ_KEY_ID)
            return text_byte(p, c, &p->id, OUTPUT_NAME_MAX, OBJ_AFTER);
        return text_byte(p, c, &p->name, OUTPUT_NAME_MAX, OBJ_AFTER);
    case OBJ_ARGS: return args_byte(p, c);
    case OBJ_ARGS_TEXT: return args_text_byte(p, c);
    case OBJ_SKIP: return skip_byte(p, unit);
    default: return plain_byte(p, c);
    }
}

void object_unit(struct output_parser *p, uint16_t unit)
{
    size_t held = p->held.n;
    bool ok = !(unit & UNIT_SPECIAL) && held < OUTPUT_HOLD_MAX;
    if (!p->begun && !p->ended)
        output_hold(p, unit);
    if (ok && object_byte(p, unit))
        return;
    p->held.n = held < p->held.n ? held : p->held.n;
    if (p->ended) { /* only what follows the arguments is malformed */
        call_after_body(p);
        output_replay(p, unit);
    } else {
        call_fail(p, unit);
    }
}
