/* cli/serve.c - serve: options, keys and the environment -> struct server_config; the server does the rest. */
#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/verbs.h"
#include "server/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { KEYS_MAX = 4096, KEY_FILE_MAX = 1 << 20, PORT_DEFAULT = 8080, SPIN_US = 20 };

struct keys { /* owns the list and its texts */
    struct server_key *list;
    size_t n;
    struct buf text;
};

static char *copy(struct str s)
{
    char *p = mem_alloc(s.n + 1);
    if (s.n)
        memcpy(p, s.p, s.n);
    p[s.n] = 0;
    return p;
}

static void add_key(struct keys *k, const char *name, const char *key, bool admin)
{
    if (!k->list)
        k->list = mem_alloc(KEYS_MAX * sizeof *k->list);
    if (k->n < KEYS_MAX)
        k->list[k->n++] = (struct server_key){copy(str_of(name)), copy(str_of(key)), admin};
}

/* "[NAME] KEY [admin]" */
static int key_line(struct keys *k, const char *path, int number, struct str line)
{
    struct str words[3] = {{0}}, word;
    size_t n = 0;
    line = str_trim(line);
    if (line.n == 0 || line.p[0] == '#')
        return 0;
    while (str_split(&line, ' ', &word))
        if (str_trim(word).n && n++ < 3)
            words[n - 1] = str_trim(word);
    bool admin = n > 1 && n <= 3 && str_is(words[n - 1], "admin");
    n -= admin;
    if (n < 1 || n > 2)
        return session_failed("serve", "%s:%d: expected [NAME] KEY [admin]", path, number);
    char name[32];
    snprintf(name, sizeof name, "key%d", number);
    char *own = n == 2 ? copy(words[0]) : NULL, *key = copy(words[n - 1]);
    add_key(k, own ? own : name, key, admin);
    mem_free(own);
    mem_free(key);
    return 0;
}

static int read_keys(struct keys *k, const struct options *o)
{
    struct err err = {0};
    const char *env = getenv("RHAPSODE_API_KEY");
    int rc = 0, number = 0;
    if (env && env[0])
        add_key(k, "environment", env, true);
    if (!o->api_key_file)
        return 0;
    if (file_read(&k->text, o->api_key_file, KEY_FILE_MAX, &err))
        return session_failed("serve", "%s", err.text);
    struct str rest = buf_view(&k->text), line;
    while (rc == 0 && str_split(&rest, '\n', &line))
        rc = key_line(k, o->api_key_file, ++number, line);
    if (rc == 0 && k->n == 0)
        return session_failed("serve", "%s: no key in it", o->api_key_file);
    return rc;
}

static void keys_free(struct keys *k)
{
    for (size_t i = 0; i < k->n; i++) {
        mem_free((char *)(uintptr_t)k->list[i].name);
        mem_free((char *)(uintptr_t)k->list[i].key);
    }
    mem_free(k->list);
    buf_free(&k->text);
}

/* The one complete model of the store, when no other is named; to be freed.  NULL: there is not exactly one, and that was said. */
static char *only_model(const struct options *o)
{
    char *list = NULL, *found = NULL;
    struct rh_error err = {0};
    struct buf names = {0};
    size_t i, n, complete = 0;
    yyjson_val *entry, *only = NULL;
    if (rh_store_list_json(o->store_dir, &list, &err)) {
        session_fail("serve", &err);
        return NULL;
    }
    yyjson_doc *doc = json_parse(str_of(list), "store", NULL);
    yyjson_arr_foreach(yyjson_doc_get_root(doc), i, n, entry) {
        if (!yyjson_get_bool(yyjson_obj_get(entry, "complete")))
            continue;
        only = yyjson_obj_get(entry, "name");
        buf_printf(&names, "%s%.200s", complete++ ? ", " : "", yyjson_get_str(only));
    }
    if (complete == 1)
        found = copy(json_str(only));
    else if (complete)
        session_usage("serve", "expected a MODEL, or exactly one in the store; it has %zu: %.1000s", complete, buf_cstr(&names));
    else
        session_usage("serve", "expected a MODEL: the store %s is empty (rhapsode pull ORG/REPO fills it)", o->store_dir);
    buf_free(&names);
    json_free(doc);
    rh_free(list);
    return found;
}

static char *last_part(const char *path)
{
    struct str s = str_of(path);
    while (s.n > 1 && s.p[s.n - 1] == '/')
        s.n--;
    size_t at = s.n;
    while (at && s.p[at - 1] != '/')
        at--;
    s = str_from(s, at);
    if (str_ends(s, STR(".gguf")))
        s.n -= 5;
    return copy(s);
}

/* The store's record of the file that is open, if it is one of its own; to be freed. */
static char *digest_of(const struct session *s, const struct options *o)
{
    char *list = NULL, *info = NULL, *found = NULL;
    struct err err = {0};
    if (rh_store_list_json(o->store_dir, &list, NULL) == 0 && rh_model_info_json(s->model, 0, &info, NULL) == 0) {
        yyjson_doc *store = json_parse(str_of(list), "store", &err), *model = json_parse(str_of(info), "info", &err);
        struct str path = json_str(yyjson_obj_get(yyjson_doc_get_root(model), "path"));
        size_t i, n;
        yyjson_val *entry;
        yyjson_arr_foreach(yyjson_doc_get_root(store), i, n, entry)
            if (!found && path.n && str_eq(json_str(yyjson_obj_get(entry, "path")), path) && yyjson_is_str(yyjson_obj_get(entry, "sha256")))
                found = copy(json_str(yyjson_obj_get(entry, "sha256")));
        json_free(store);
        json_free(model);
    }
    rh_free(list);
    rh_free(info);
    return found;
}

static void on_listening(void *ctx, const char *address)
{
    (void)ctx;
    fprintf(stdout, "listening on %s\n", address);
    fflush(stdout);
}

static int serve(struct session *s, const struct options *o, const struct keys *keys)
{
    struct rh_sampling sampling;
    struct rh_bias *biases = NULL;
    struct err err = {0};
    const char *watchdog = getenv("WATCHDOG_USEC");
    uint64_t watchdog_us = 0;
    int rc = session_sampling(s, o, &sampling, &biases);
    if (rc)
        return rc;
    if (watchdog)
        str_to_u64(str_of(watchdog), &watchdog_us);
    char *id = o->model_id ? NULL : last_part(o->args[0]), *digest = digest_of(s, o);
    struct server_config cfg = {
        .model = s->model, .model_id = o->model_id ? o->model_id : id, .sampling = &sampling, .host = o->host,
        .digest = digest, .aliases = o->alias.items, .alias_count = o->alias.n, .any_model = o->any_model, .verbatim = o->verbatim, .undated = o->undated,
        .port = o->given[OPT_PORT] ? (uint16_t)o->port : PORT_DEFAULT, .unix_path = o->unix_path, .tls_cert = o->tls_cert, .tls_key = o->tls_key,
        .keys = keys->list, .key_count = keys->n, .open_bind = o->no_key, .hosts = o->allow_host.items, .host_count = o->allow_host.n,
        .origins = o->allow_origin.items, .origin_count = o->allow_origin.n, .strict = o->strict, .log_requests = o->log_requests,
        .log_prompts = o->log_prompts, .trace_path = o->trace, .body_bytes = o->body_max, .connections = o->connections_max, .idle_s = o->idle_s, .header_s = o->header_s,
        .write_s = o->write_s, .queue = o->queue, .heartbeat_s = o->heartbeat_s, .drain_s = o->drain_s, .notify_socket = getenv("NOTIFY_SOCKET"),
        .watchdog_us = watchdog_us, .listening = on_listening};
    if (server_run(&cfg, &err))
        rc = session_failed("serve", "%s", err.text);
    mem_free(id);
    mem_free(digest);
    mem_free(biases);
    return rc;
}

int cli_serve(struct options *o)
{
    /* one CPU is the clients' and their sockets' */
    struct session s = {.spin_us = SPIN_US, .cpus_left = 1};
    struct keys keys = {0};
    int rc = read_keys(&keys, o);
    char *only = rc || o->arg_count || o->model ? NULL : only_model(o);
    const char *name = o->arg_count ? o->args[0] : o->model ? o->model : only;
    if (rc == 0 && !name)
        rc = 2;
    if (rc == 0) {
        o->args = &name;
        o->arg_count = 1;
        rc = session_open(&s, "serve", o, false);
    }
    if (rc == 0)
        rc = serve(&s, o, &keys);
    session_close(&s);
    keys_free(&keys);
    mem_free(only);
    return rc;
}
