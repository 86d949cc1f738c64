/* cli/chat.c - see chat.h. */
#include "cli/chat.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

enum { SAVED_BYTES_MAX = 256 << 20 };

static const char *const roles[] = {"system", "user", "assistant", "tool"};

static const char *known_role(struct str role)
{
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++)
        if (str_is(role, roles[i]))
            return roles[i];
    return NULL;
}

struct chat_message *chat_add(struct chat *c, const char *role, struct str content)
{
    if (c->n == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : 16;
        struct chat_message *more = mem_alloc(cap * sizeof *more);
        if (c->n)
            memcpy(more, c->messages, c->n * sizeof *more);
        mem_free(c->messages);
        c->messages = more;
        c->cap = cap;
    }
    struct chat_message *m = &c->messages[c->n++];
    *m = (struct chat_message){.role = role};
    buf_str(&m->content, content);
    return m;
}

void chat_drop_last(struct chat *c)
{
    if (c->n == 0)
        return;
    struct chat_message *m = &c->messages[--c->n];
    buf_free(&m->content);
    buf_free(&m->reasoning);
}

static bool has_system(const struct chat *c)
{
    return c->n && str_is(STR("system"), c->messages[0].role);
}

void chat_clear(struct chat *c)
{
    while (c->n > (has_system(c) ? 1u : 0u))
        chat_drop_last(c);
}

void chat_set_system(struct chat *c, struct str text)
{
    if (has_system(c)) {
        buf_free(&c->messages[0].content);
        memmove(c->messages, c->messages + 1, --c->n * sizeof *c->messages);
    }
    if (!text.n)
        return;
    chat_add(c, "system", text);
    struct chat_message m = c->messages[c->n - 1];
    memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof *c->messages);
    c->messages[0] = m;
}

void chat_json(const struct chat *c, struct buf *out)
{
    buf_char(out, '[');
    for (size_t i = 0; i < c->n; i++) {
        buf_printf(out, "%s{\"role\":\"%s\",\"content\":", i ? ",\n " : "", c->messages[i].role);
        buf_json_str(out, buf_view(&c->messages[i].content));
        if (c->messages[i].reasoning.n) {
            buf_z(out, ",\"reasoning_content\":");
            buf_json_str(out, buf_view(&c->messages[i].reasoning));
        }
        buf_char(out, '}');
    }
    buf_char(out, ']');
}

int chat_save(const struct chat *c, const char *path, struct err *err)
{
    struct buf b = {0};
    chat_json(c, &b);
    buf_char(&b, '\n');
    int rc = buf_check(&b, path, err);
    rc = rc ? rc : file_write_atomic(path, buf_view(&b), err);
    buf_free(&b);
    return rc;
}

int chat_load(struct chat *c, const char *path, struct err *err)
{
    struct buf text = {0};
    struct chat fresh = {0};
    yyjson_doc *doc = NULL;
    int rc = file_read(&text, path, SAVED_BYTES_MAX, err);
    if (!rc) {
        doc = json_parse(buf_view(&text), path, err);
        rc = doc ? 0 : ERR_FORMAT;
    }
    yyjson_val *list = yyjson_doc_get_root(doc), *m;
    if (!rc && !yyjson_is_arr(list))
        rc = err_set(err, ERR_FORMAT, "%s: expected an array of messages, got %s", path, json_type_name(list));
    size_t i, n;
    yyjson_arr_foreach(list, i, n, m) {
        const char *role = known_role(json_str(yyjson_obj_get(m, "role")));
        yyjson_val *content = yyjson_obj_get(m, "content");
        if (rc)
            break;
        if (!role || !yyjson_is_str(content))
            rc = err_set(err, ERR_FORMAT, "%s: message %zu: expected a role (system, user, assistant, tool) and a content string", path, i);
        else
            buf_str(&chat_add(&fresh, role, json_str(content))->reasoning, json_str(yyjson_obj_get(m, "reasoning_content")));
    }
    json_free(doc);
    buf_free(&text);
    if (rc) {
        chat_free(&fresh);
        return rc;
    }
    chat_free(c);
    *c = fresh;
    return 0;
}

void chat_free(struct chat *c)
{
    while (c->n)
        chat_drop_last(c);
    mem_free(c->messages);
    *c = (struct chat){0};
}
