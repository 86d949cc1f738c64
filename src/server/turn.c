/* server/turn.c - see turn.h. */
#include "server/turn.h"

#include "base/err.h"

void message_begin(struct buf *out, const char *role)
{
    buf_json_comma(out);
    buf_printf(out, "{\"role\":\"%s\",\"content\":", role);
}

void turn_call(struct turn *t, struct str id, struct str name, struct str arguments)
{
    t->open = true;
    buf_json_comma(&t->calls);
    buf_z(&t->calls, "{\"type\":\"function\",\"id\":");
    buf_json_str(&t->calls, id);
    buf_z(&t->calls, ",\"function\":{\"name\":");
    buf_json_str(&t->calls, name);
    buf_z(&t->calls, ",\"arguments\":");
    buf_str(&t->calls, arguments);
    buf_z(&t->calls, "}}");
}

void turn_end(struct turn *t, struct buf *out)
{
    if (!t->open)
        return;
    message_begin(out, "assistant");
    buf_json_str(out, buf_view(&t->text));
    if (t->thinking.n) {
        buf_z(out, ",\"reasoning_content\":");
        buf_json_str(out, buf_view(&t->thinking));
    }
    if (t->calls.n) {
        buf_z(out, ",\"tool_calls\":[");
        buf_str(out, buf_view(&t->calls));
        buf_char(out, ']');
    }
    buf_char(out, '}');
    if (t->text.failed || t->thinking.failed || t->calls.failed)
        out->failed = ERR_NOMEM;
    t->text.n = t->thinking.n = t->calls.n = 0;
    t->open = false;
}

void turn_free(struct turn *t)
{
    buf_free(&t->text);
    buf_free(&t->thinking);
    buf_free(&t->calls);
}

void tool_put(struct buf *out, struct str name, struct str description, yyjson_val *parameters)
{
    buf_json_comma(out);
    buf_z(out, "{\"type\":\"function\",\"function\":{\"name\":");
    buf_json_str(out, name);
    if (description.p) {
        buf_z(out, ",\"description\":");
        buf_json_str(out, description);
    }
    if (parameters) {
        buf_z(out, ",\"parameters\":");
        json_put(out, parameters);
    }
    buf_z(out, "}}");
}
