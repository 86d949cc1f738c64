/* Recordings of what models write (tests/data/chat_output.json, written by tests/fixtures/output_cases.py) give their events, and the same
 * events however the text is cut: at each place, byte by byte, at random, and as special tokens come. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "chat/output.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>

enum { RANDOM_ROUNDS = 40, CUTS_MAX = 4096 };

static struct buf file_text;
static yyjson_doc *doc;

/* A run of events: adjacent deltas of one kind are one. */
struct script { /* owns its texts */
    struct buf lines; /* one line an event: kind, then JSON strings; a call is one line when it has ended */
    struct buf text, name, ids;
    int kind; /* of text; -1 */
    uint32_t calls;
    bool open;
};

static void flush_text(struct script *s)
{
    if (s->kind >= 0 && s->text.n) {
        buf_z(&s->lines, s->kind == OUTPUT_REASONING ? "reasoning " : "content ");
        buf_json_str(&s->lines, buf_view(&s->text));
        buf_char(&s->lines, '\n');
    }
    s->text.n = 0;
    s->kind = -1;
}

static void script_event(struct script *s, const struct output_event *e)
{
    switch (e->kind) {
    case OUTPUT_CONTENT:
    case OUTPUT_REASONING:
        assert_false(s->open);
        assert_true(e->text.n > 0);
        if (s->kind != (int)e->kind)
            flush_text(s);
        s->kind = (int)e->kind;
        buf_str(&s->text, e->text);
        break;
    case OUTPUT_CALL_BEGIN:
        assert_false(s->open);
        flush_text(s);
        s->open = true;
        assert_int_equal(e->call, s->calls);
        s->calls++;
        assert_true(e->id[0] && e->name[0]);
        s->name.n = 0;
        buf_z(&s->name, e->name);
        buf_z(&s->ids, e->id);
        buf_char(&s->ids, ' ');
        break;
    case OUTPUT_CALL_ARGUMENTS:
        assert_true(s->open && e->text.n > 0);
        assert_int_equal(e->call, s->calls - 1);
        buf_str(&s->text, e->text);
        break;
    case OUTPUT_CALL_END:
        assert_true(s->open);
        s->open = false;
        buf_z(&s->lines, e->whole ? "call " : "broken ");
        buf_json_str(&s->lines, buf_view(&s->name));
        buf_char(&s->lines, ' ');
        if (e->whole) { /* the promise: one JSON object */
            struct err err = {0};
            yyjson_doc *args = json_parse(buf_view(&s->text), "arguments", &err);
            if (!args)
                print_error("arguments |%.*s|: %s\n", STR_ARG(buf_view(&s->text)), err.text);
            assert_true(args && yyjson_is_obj(yyjson_doc_get_root(args)));
            json_free(args);
        }
        buf_json_str(&s->lines, buf_view(&s->text));
        buf_char(&s->lines, '\n');
        s->text.n = 0;
        break;
    }
}

static void script_free(struct script *s)
{
    buf_free(&s->lines), buf_free(&s->text), buf_free(&s->name), buf_free(&s->ids);
}

static void take(struct output_parser *p, struct script *s)
{
    struct output_event e;
    while (output_next(p, &e))
        script_event(s, &e);
}

static struct output_options options_of(yyjson_val *c)
{
    yyjson_val *calls = yyjson_obj_get(c, "calls");
    struct output_options o = {.format = output_format_find(json_str(yyjson_obj_get(c, "format"))), .calls = !calls || yyjson_get_bool(calls),
                               .tools = yyjson_obj_get(yyjson_doc_get_root(doc), "tools"), .prompt_tail = json_str(yyjson_obj_get(c, "prompt")),
                               .id_seed = 7};
    assert_non_null(o.format);
    return o;
}

/* Length of the special token the text begins with; 0: none. */
static size_t special_at(yyjson_val *c, struct str text)
{
    size_t i, n;
    yyjson_val *v;
    yyjson_arr_foreach(yyjson_obj_get(c, "special"), i, n, v)
        if (str_starts(text, json_str(v)))
            return json_str(v).n;
    return 0;
}

/* Put text[0, n) in the pieces that `cuts` (ascending) makes; special tokens are put as such, whole. */
static void play(yyjson_val *c, const size_t *cuts, size_t cut_count, struct script *out)
{
    struct output_options o = options_of(c);
    struct str text = json_str(yyjson_obj_get(c, "text"));
    struct output_parser *p;
    struct err e = {0};
    size_t at = 0, k = 0;
    *out = (struct script){.kind = -1};
    assert_int_equal(output_open(&o, &p, &e), 0);
    take(p, out);
    while (at < text.n) {
        size_t special = special_at(c, str_from(text, at)), to = at + 1;
        while (k < cut_count && cuts[k] <= at)
            k++;
        while (!special && to < text.n && (k == cut_count || to < cuts[k]) && !special_at(c, str_from(text, to)))
            to++;
        if (special)
            to = at + special;
        if (!special || output_is_marker(p, str_n(text.p + at, special)))
            assert_int_equal(output_put(p, str_n(text.p + at, to - at), special > 0), 0);
        take(p, out);
        at = to;
    }
    assert_int_equal(output_end(p), 0);
    take(p, out);
    assert_int_equal(output_call_count(p), out->calls);
    output_close(p);
    flush_text(out);
    assert_false(out->open);
    assert_int_equal(out->lines.failed, 0);
}

static bool same_json(struct str a, struct str b)
{
    struct err e = {0};
    yyjson_doc *x = json_parse(a, "a", &e), *y = json_parse(b, "b", &e);
    bool same = x && y && yyjson_equals(yyjson_doc_get_root(x), yyjson_doc_get_root(y));
    json_free(x);
    json_free(y);
    return same;
}

/* The expected lines; a call whose arguments are an object takes the text that came when it is the same JSON. */
static void expected(yyjson_val *c, struct str got, struct buf *out)
{
    size_t i, n;
    yyjson_val *v;
    struct str line;
    yyjson_arr_foreach(yyjson_obj_get(c, "events"), i, n, v)
    {
        yyjson_val *args = yyjson_arr_get(v, 2);
        buf_str(out, json_str(yyjson_arr_get(v, 0)));
        buf_char(out, ' ');
        buf_json_str(out, json_str(yyjson_arr_get(v, 1)));
        if (!str_split(&got, '\n', &line))
            line = (struct str){"", 0};
        if (yyjson_is_str(args)) {
            buf_char(out, ' ');
            buf_json_str(out, json_str(args));
        } else if (args) {
            char *text = yyjson_val_write(args, 0, NULL);
            size_t at = str_find(line, STR("\" \""));
            struct err e = {0};
            yyjson_doc *came = at == SIZE_MAX ? NULL : json_parse(str_from(line, at + 2), "line", &e);
            struct str as_text = json_str(yyjson_doc_get_root(came));
            buf_char(out, ' ');
            buf_json_str(out, as_text.p && same_json(as_text, str_of(text)) ? as_text : str_of(text));
            json_free(came);
            free(text);
        }
        buf_char(out, '\n');
    }
}

static const char *case_name(yyjson_val *c)
{
    static char name[200];
    snprintf(name, sizeof name, "%s: %s", yyjson_get_str(yyjson_obj_get(c, "format")), yyjson_get_str(yyjson_obj_get(c, "name")));
    return name;
}

static void recordings_give_their_events(void **state)
{
    (void)state;
    int bad = 0;
    size_t i, n;
    yyjson_val *c;
    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "cases"), i, n, c)
    {
        struct script s;
        struct buf want = {0};
        play(c, NULL, 0, &s);
        expected(c, buf_view(&s.lines), &want);
        if (!str_eq(buf_view(&want), buf_view(&s.lines))) {
            bad++;
            print_error("%s\nwant:\n%.*sgot:\n%.*s", case_name(c), STR_ARG(buf_view(&want)), STR_ARG(buf_view(&s.lines)));
        }
        size_t k, m;
        yyjson_val *id;
        struct buf ids = {0};
        yyjson_arr_foreach(yyjson_obj_get(c, "ids"), k, m, id)
            buf_str(&ids, json_str(id)), buf_char(&ids, ' ');
        if (ids.n && !str_eq(buf_view(&ids), buf_view(&s.ids)))
            bad++, print_error("%s: ids |%.*s|\n", case_name(c), STR_ARG(buf_view(&s.ids)));
        buf_free(&ids);
        buf_free(&want);
        script_free(&s);
    }
    assert_int_equal(bad, 0);
}

static void same_as(yyjson_val *c, const struct script *whole, const size_t *cuts, size_t n)
{
    struct script s;
    play(c, cuts, n, &s);
    if (!str_eq(buf_view(&whole->lines), buf_view(&s.lines)) || !str_eq(buf_view(&whole->ids), buf_view(&s.ids)))
        fail_msg("%s: %zu cuts, the first at %zu:\n%.*sinstead of:\n%.*s", case_name(c), n, n ? cuts[0] : 0, STR_ARG(buf_view(&s.lines)),
                 STR_ARG(buf_view(&whole->lines)));
    script_free(&s);
}

static void every_cutting_gives_the_same_events(void **state)
{
    (void)state;
    static size_t cuts[CUTS_MAX];
    size_t i, n;
    yyjson_val *c;
    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "cases"), i, n, c)
    {
        struct script whole;
        size_t bytes = yyjson_get_len(yyjson_obj_get(c, "text"));
        assert_true(bytes <= CUTS_MAX);
        play(c, NULL, 0, &whole);
        for (size_t at = 1; at < bytes; at++)
            same_as(c, &whole, &at, 1);
        for (size_t at = 0; at < bytes; at++)
            cuts[at] = at;
        same_as(c, &whole, cuts, bytes);
        for (uint32_t round = 0; round < RANDOM_ROUNDS; round++) {
            size_t count = 0;
            for (size_t at = 1; at < bytes; at++) {
                uint32_t counter[4] = {round, (uint32_t)at, (uint32_t)i, 0}, bits[4];
                rng_philox(3, counter, bits);
                if (bits[0] % (2 + round % 9) == 0)
                    cuts[count++] = at;
            }
            same_as(c, &whole, cuts, count);
        }
        script_free(&whole);
    }
}

static int load(void **state)
{
    (void)state;
    struct err e = {0};
    if (file_read(&file_text, TEST_DATA "/chat_output.json", 8 << 20, &e) || !(doc = json_parse(buf_view(&file_text), "chat_output.json", &e)))
        return -1;
    return 0;
}

static int unload(void **state)
{
    (void)state;
    json_free(doc);
    buf_free(&file_text);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recordings_give_their_events),
        cmocka_unit_test(every_cutting_gives_the_same_events),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
