/* cli/text.c - tokenize, detokenize, render: text and ids without weights. */
#include "base/file.h"
#include "base/mem.h"
#include "cli/session.h"
#include "cli/verbs.h"

#include <stdio.h>
#include <unistd.h>

enum { TEXT_MAX = 1 << 30 };

static void print_ids(const uint32_t *ids, size_t n, bool json)
{
    if (json)
        printf("[");
    for (size_t i = 0; i < n; i++)
        printf("%s%u", i ? "," : "", ids[i]);
    puts(json ? "]" : "");
}

int cli_tokenize(struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    struct err ferr = {0};
    struct buf text = {0};
    struct rh_ids ids = {0};
    int rc = session_open(&s, "tokenize", o, true);
    if (rc)
        goto out;
    if (file_read(&text, "-", TEXT_MAX, &ferr))
        rc = session_failed("tokenize", "%s", ferr.text);
    else if (rh_tokenize(s.model, (struct rh_text){text.p, text.n}, o->no_bos, o->no_parse_special, &ids, &err))
        rc = session_fail("tokenize", &err);
    else
        print_ids(ids.ids, ids.n, o->json);
out:
    rh_free(ids.ids);
    buf_free(&text);
    session_close(&s);
    return rc;
}

int cli_detokenize(struct options *o)
{
    struct session s = {0};
    struct rh_error err = {0};
    struct err perr = {0};
    uint32_t *ids = NULL;
    size_t n = 0, text_n = 0;
    char *text = NULL;
    int rc = 0;
    struct buf piped = {0};
    if (!o->ids && isatty(STDIN_FILENO))
        return session_usage("detokenize", "expected --ids 1,2,3, or ids on standard input");
    if (!o->ids && file_read(&piped, "-", TEXT_MAX, &perr))
        rc = session_failed("detokenize", "%s", perr.text);
    else if (o->ids ? options_ids("--ids: ", str_of(o->ids), &ids, &n, &perr)
                    : str_trim(buf_view(&piped)).n && options_ids("standard input: ", buf_view(&piped), &ids, &n, &perr))
        rc = session_usage("detokenize", "%s", perr.text);
    buf_free(&piped);
    rc = rc ? rc : session_open(&s, "detokenize", o, true);
    if (rc == 0 && n && rh_detokenize(s.model, ids, n, &text, &text_n, &err))
        rc = session_fail("detokenize", &err);
    if (rc == 0 && n)
        fwrite(text, 1, text_n, stdout);
    rh_free(text);
    mem_free(ids);
    session_close(&s);
    return rc;
}

int cli_render(struct options *o)
{
    struct session s = {0};
    struct session_chat chat = {0};
    struct rh_rendered out = {0};
    struct rh_error err = {0};
    if (!o->messages)
        return session_usage("render", "--messages is missing");
    int rc = session_chat_read(&chat, "render", o->messages, o);
    if (rc == 0)
        rc = session_open(&s, "render", o, true);
    if (rc == 0 && rh_render(s.model, &chat.chat, &out, &err))
        rc = session_fail("render", &err);
    if (rc == 0 && o->boundaries) {
        struct buf b = {0};
        buf_z(&b, "{\"text\":");
        buf_json_str(&b, str_n(out.text, out.text_n));
        buf_z(&b, ",\"boundaries\":[");
        for (size_t i = 0; i < out.boundary_count; i++)
            buf_printf(&b, "%s%zu", i ? "," : "", out.boundaries[i]);
        puts((buf_z(&b, "]}"), buf_cstr(&b)));
        buf_free(&b);
    } else if (rc == 0)
        fwrite(out.text, 1, out.text_n, stdout);
    rh_rendered_free(&out);
    session_chat_free(&chat);
    session_close(&s);
    return rc;
}
