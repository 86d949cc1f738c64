/* server/responses_store.c - answers that later requests may name: a list, newest first, bounded in number and bytes. */
#include "base/mem.h"
#include "server/api_responses.h"

enum { KEPT_MAX = 1024, KEPT_BYTES_MAX = 64 << 20 };

struct kept_response { /* owns all */
    struct kept_response *next;
    char id[48];
    char *key_name; /* NULL: none */
    struct buf object, conversation;
    size_t bytes;
};

static void free_one(struct kept_response *k)
{
    mem_free(k->key_name);
    buf_free(&k->object);
    buf_free(&k->conversation);
    mem_free(k);
}

static void drop_old(struct server *s)
{
    struct kept_response **at = &s->responses;
    size_t count = 0, bytes = 0;
    for (; *at; at = &(*at)->next) {
        bytes += (*at)->bytes;
        if (++count > KEPT_MAX || bytes > KEPT_BYTES_MAX)
            break;
    }
    for (struct kept_response *k = *at, *next; k; k = next) {
        next = k->next;
        free_one(k);
    }
    *at = NULL;
}

void responses_keep(struct server *s, const char *id, const char *key_name, struct buf *object, struct buf *conversation)
{
    struct kept_response *k = mem_try_zero(1, sizeof *k);
    if (!k)
        return; /* as if it had been dropped for its age */
    buf_cstr(object);
    buf_cstr(conversation);
    k->object = *object;
    k->conversation = *conversation;
    *object = *conversation = (struct buf){0};
    k->key_name = key_name ? mem_try_strndup(key_name, strlen(key_name)) : NULL;
    if (k->object.failed || k->conversation.failed || (key_name && !k->key_name)) {
        free_one(k);
        return;
    }
    memcpy(k->id, id, strnlen(id, sizeof k->id - 1));
    k->bytes = k->object.cap + k->conversation.cap + sizeof *k;
    k->next = s->responses;
    s->responses = k;
    drop_old(s);
}

static bool is_it(const struct kept_response *k, struct str id, const struct server_key *key)
{
    return str_is(id, k->id) && (!key || key->admin || (k->key_name && !strcmp(k->key_name, key->name)));
}

bool responses_find(struct server *s, struct str id, const struct server_key *key, struct kept *out)
{
    for (struct kept_response *k = s->responses; k; k = k->next)
        if (is_it(k, id, key)) {
            *out = (struct kept){k->object.p, k->conversation.p};
            return true;
        }
    return false;
}

bool responses_forget(struct server *s, struct str id, const struct server_key *key)
{
    for (struct kept_response **at = &s->responses; *at; at = &(*at)->next)
        if (is_it(*at, id, key)) {
            struct kept_response *k = *at;
            *at = k->next;
            free_one(k);
            return true;
        }
    return false;
}

void responses_close(struct server *s)
{
    while (s->responses) {
        struct kept_response *k = s->responses;
        s->responses = k->next;
        free_one(k);
    }
}
