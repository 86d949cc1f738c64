/* Recordings of what models write (tests/data/chat_output.json, written by tests/fixtures/output_cases.py) give their events, and the same
 * events however the text is cut: at each place, byte by byte, at random, and as special tokens come. */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/rng.h"
#include "chat/output_int.h"
#include "chat/template.h"

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

static yyjson_doc *few_tools; /* what a test tells instead of all tools, and that nothing else may be called; NULL */

static struct output_options options_of(yyjson_val *c)
{
    yyjson_val *calls = yyjson_obj_get(c, "calls");
    struct output_options o = {.format = output_format_find(json_str(yyjson_obj_get(c, "format"))), .calls = !calls || yyjson_get_bool(calls),
                               .tools = yyjson_obj_get(yyjson_doc_get_root(doc), "tools"), .prompt_tail = json_str(yyjson_obj_get(c, "prompt")),
                               .id_seed = 7, .told_only = few_tools};
    if (few_tools)
        o.tools = yyjson_doc_get_root(few_tools);
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

/* Told of one tool only, whatever the format: calls of it are those of then where nothing else is called, and of others there are none. */
static void calls_of_other_tools_are_text(void **state)
{
    struct err e = {0};
    size_t i, n, same = 0, text = 0;
    yyjson_val *c;
    (void)state;
    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "cases"), i, n, c)
    {
        struct script all, few;
        play(c, NULL, 0, &all);
        few_tools = json_parse(STR("[{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]"), "tools", &e);
        play(c, NULL, 0, &few);
        json_free(few_tools);
        few_tools = NULL;
        struct str lines = buf_view(&few.lines), rest = buf_view(&all.lines), line;
        bool others = false;
        while (str_split(&rest, '\n', &line))
            others |= (str_starts(line, STR("call ")) || str_starts(line, STR("broken "))) && !str_starts(line, STR("call \"now\""));
        if (!others && !str_eq(lines, buf_view(&all.lines)))
            fail_msg("%s:\n%.*s", case_name(c), STR_ARG(lines));
        same += !others && all.calls;
        text += others;
        while (str_split(&lines, '\n', &line))
            if ((str_starts(line, STR("call ")) || str_starts(line, STR("broken "))) && str_find(line, STR("\"now\"")) == SIZE_MAX)
                fail_msg("%s: %.*s", case_name(c), STR_ARG(line));
        script_free(&all);
        script_free(&few);
    }
    assert_true(same > 5 && text > 40);
}

/* ---- the round trip: what a template writes is read back ---- */

static const char conversation[] =
    "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"reasoning_content\": \"Two calls.\", \"content\": \"I look.\", \"tool_calls\": ["
    "{\"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Saint-\\u00c9tienne \\\"42\\\"\", \"days\": 3, \"metric\": true}}},"
    "{\"function\": {\"name\": \"edit_file\", \"arguments\": {\"path\": \"/tmp/a b.c\", \"text\": \"int x = {1};\\n\\n\\tif (x < 2) [x](y), 'z'\", \"lines\": [1, -2],"
    "\"options\": {\"a\": {\"b\": \"c, d\"}, \"e\": [true, \"]\"]}}}}]}]";

static void render(struct str source, yyjson_val *messages, bool prompt_only, struct buf *out)
{
    struct chat_template *t = NULL;
    struct chat_rendered r = {0};
    struct err e = {0};
    yyjson_mut_doc *first = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *list = yyjson_mut_arr(first);
    yyjson_mut_arr_append(list, yyjson_val_mut_copy(first, yyjson_arr_get_first(messages)));
    yyjson_mut_doc_set_root(first, list);
    yyjson_doc *one = yyjson_mut_doc_imut_copy(first, NULL);
    struct chat_render_input in = {.messages = prompt_only ? yyjson_doc_get_root(one) : messages, .add_generation_prompt = prompt_only};
    int rc = chat_template_open(source, &t, &e);
    rc = rc ? rc : chat_template_render(t, &in, &r, &e);
    if (rc)
        fail_msg("%s", e.text);
    buf_str(out, buf_view(&r.text));
    chat_rendered_free(&r);
    chat_template_close(t);
    yyjson_doc_free(one);
    yyjson_mut_doc_free(first);
}

static void read_back(const char *format, struct str source, yyjson_val *messages)
{
    struct buf prompt = {0}, whole = {0};
    struct err e = {0};
    struct output_parser *p;
    struct script s = {.kind = -1};
    render(source, messages, true, &prompt);
    render(source, messages, false, &whole);
    assert_true(str_starts(buf_view(&whole), buf_view(&prompt)));
    struct output_options o = {.format = output_format_of_template(source), .calls = true, .prompt_tail = buf_view(&prompt),
                               .tools = yyjson_obj_get(yyjson_doc_get_root(doc), "tools")};
    assert_string_equal(output_format_name(o.format), format);
    struct str text = str_from(buf_view(&whole), prompt.n);
    if (str_ends(text, STR("<|im_end|>")))
        text.n -= sizeof "<|im_end|>" - 1;
    assert_int_equal(output_open(&o, &p, &e), 0);
    assert_int_equal(output_put(p, text, false), 0);
    assert_int_equal(output_end(p), 0);
    struct output_event ev;
    size_t call = 0;
    yyjson_val *calls = yyjson_obj_get(yyjson_arr_get(messages, 1), "tool_calls");
    while (output_next(p, &ev)) {
        yyjson_val *want = yyjson_obj_get(yyjson_arr_get(calls, call), "function");
        if (ev.kind == OUTPUT_CALL_BEGIN)
            assert_string_equal(ev.name, yyjson_get_str(yyjson_obj_get(want, "name")));
        if (ev.kind == OUTPUT_CALL_END) {
            char *args = yyjson_val_write(yyjson_obj_get(want, "arguments"), 0, NULL);
            if (!ev.whole || !same_json(buf_view(&s.text), str_of(args)))
                fail_msg("%s: |%.*s| is read as |%.*s|", format, STR_ARG(text), STR_ARG(buf_view(&s.text)));
            free(args);
            call++;
        }
        script_event(&s, &ev);
    }
    assert_int_equal(call, 2);
    assert_true(str_starts(buf_view(&s.lines), STR("reasoning \"Two calls.\"\ncontent \"I look.\"\ncall \"get_weather\" ")));
    output_close(p);
    script_free(&s);
    buf_free(&prompt), buf_free(&whole);
}

static void what_templates_write_is_read_back(void **state)
{
    (void)state;
    struct err e = {0};
    yyjson_doc *messages = json_parse(str_of(conversation), "conversation", &e);
    size_t i, n;
    yyjson_val *key, *v;
    assert_non_null(messages);
    yyjson_obj_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "templates"), i, n, key, v)
        read_back(yyjson_get_str(key), json_str(v), yyjson_doc_get_root(messages));
    json_free(messages);
}

/* ---- docs/output.md ---- */

/* Does the row name it in backticks?  A bar is written \| there. */
static void row_names(struct str row, const char *what)
{
    struct buf b = {0};
    buf_char(&b, '`');
    for (const char *c = what; *c; c++) {
        buf_z(&b, *c == '|' ? "\\" : "");
        buf_char(&b, *c);
    }
    if (*what != '`') /* a fence has spaces around it */
        buf_char(&b, '`');
    struct str text = buf_view(&b);
    if (*what == '`')
        text = str_from(text, 1);
    if (str_find(row, text) == SIZE_MAX)
        fail_msg("docs/output.md: no %.*s in |%.*s|", STR_ARG(text), STR_ARG(row));
    buf_free(&b);
}

static void documentation_lists_the_formats(void **state)
{
    (void)state;
    struct buf text = {0};
    struct err e = {0};
    assert_int_equal(file_read(&text, TEST_DATA "/../../docs/output.md", 1 << 20, &e), 0);
    struct str rest = buf_view(&text), row;
    size_t i = 0;
    while (str_split(&rest, '\n', &row)) {
        const struct output_format *f = output_format_at(i);
        if (!str_starts(row, STR("| `")))
            continue;
        if (!f)
            fail_msg("docs/output.md: a row too many: %.*s", STR_ARG(row));
        row_names(str_n(row.p, 4 + strlen(f->name)), f->name);
        for (int k = 0; k < OUTPUT_DETECT_MAX && f->detect[k].has; k++) {
            row_names(row, f->detect[k].has);
            if (f->detect[k].too)
                row_names(row, f->detect[k].too);
        }
        for (int k = 0; k < OUTPUT_REASONING_MAX && f->reasoning[k].open; k++) {
            row_names(row, f->reasoning[k].open);
            row_names(row, f->reasoning[k].close);
        }
        i++;
    }
    assert_null(output_format_at(i));
    buf_free(&text);
}

static void formats_are_found(void **state)
{
    (void)state;
    struct str plain = STR("{% for m in messages %}{{ m.content }}{% endfor %}");
    assert_string_equal(output_format_name(output_format_of_template(plain)), "none");
    assert_string_equal(output_format_name(output_format_of_template((struct str){0})), "none");
    assert_null(output_format_find(STR("hermes ")));
    for (size_t i = 0; output_format_at(i); i++)
        assert_ptr_equal(output_format_find(str_of(output_format_at(i)->name)), output_format_at(i));
    assert_string_equal(output_format_name(output_format_of_template(STR("<tool_call> <function=a> <parameter=b>"))), "qwen3_coder");
    assert_string_equal(output_format_name(output_format_of_template(STR("<tool_call> <arg_key>"))), "glm4");
    assert_string_equal(output_format_name(output_format_of_template(STR("{% if tools %}"))), "json");
}

/* ---- nothing is lost ---- */

enum { SOUP_PIECES = 40, SOUP_ROUNDS = 400 };

static const char *const joints[] = {" ", "\n", "{", "}", "[", "]", "(", ")", ",", ":", "=", "'", "\\", "get_weather", "1", "<", ">", "```"};

static void add_marker(const char **list, size_t *n, const char *marker)
{
    if (marker && *n < 64)
        list[(*n)++] = marker;
}

static size_t markers_of(const struct output_format *f, const char **list)
{
    size_t n = 0;
    for (int i = 0; i < OUTPUT_REASONING_MAX; i++)
        add_marker(list, &n, f->reasoning[i].open), add_marker(list, &n, f->reasoning[i].close);
    for (int i = 0; i < OUTPUT_CALL_KINDS; i++) {
        const struct output_calls *c = &f->calls[i];
        const char *const all[] = {c->open,     c->close,     c->call_open,  c->call_close,  c->separator,  c->name_end, c->id_open,
                                   c->key_open, c->key_close, c->value_open, c->value_close, c->string_mark};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            add_marker(list, &n, all[k]);
    }
    return n;
}

/* Markers, punctuation and words of their own, in any order. */
static void make_soup(const struct output_format *f, uint32_t round, struct buf *out)
{
    const char *markers[64];
    size_t marker_n = markers_of(f, markers), joint_n = sizeof joints / sizeof *joints;
    for (uint32_t i = 0; i < SOUP_PIECES; i++) {
        uint32_t counter[4] = {round, i, 9, 0}, bits[4];
        rng_philox(11, counter, bits);
        if (bits[0] % 8 < 3 && marker_n)
            buf_z(out, markers[bits[1] % marker_n]);
        else if (bits[0] % 8 < 6)
            buf_z(out, joints[bits[1] % joint_n]);
        else
            buf_printf(out, "Z%uz", i);
    }
}

/* Every word comes out somewhere, in order. */
static void words_come_out(const struct output_format *f, struct str soup)
{
    struct output_options o = {.format = f, .calls = true, .tools = yyjson_obj_get(yyjson_doc_get_root(doc), "tools")};
    struct output_parser *p;
    struct output_event e;
    struct buf all = {0};
    struct err err = {0};
    assert_int_equal(output_open(&o, &p, &err), 0);
    assert_int_equal(output_put(p, soup, false), 0);
    assert_int_equal(output_end(p), 0);
    while (output_next(p, &e)) {
        buf_str(&all, e.text);
        if (e.kind == OUTPUT_CALL_BEGIN)
            buf_z(&all, e.name), buf_z(&all, e.id);
    }
    struct str rest = buf_view(&all);
    for (uint32_t i = 0; i < SOUP_PIECES; i++) {
        char word[16];
        snprintf(word, sizeof word, "Z%uz", i);
        if (str_find(soup, str_of(word)) == SIZE_MAX)
            continue;
        size_t at = str_find(rest, str_of(word));
        if (at == SIZE_MAX)
            fail_msg("%s: %s of |%.*s| is not in |%.*s|", f->name, word, STR_ARG(soup), STR_ARG(buf_view(&all)));
        rest = str_from(rest, at);
    }
    output_close(p);
    buf_free(&all);
}

static void no_word_is_lost(void **state)
{
    (void)state;
    for (size_t i = 0; output_format_at(i); i++)
        for (uint32_t round = 0; round < SOUP_ROUNDS && !output_format_at(i)->headers; round++) {
            struct buf soup = {0};
            make_soup(output_format_at(i), round, &soup);
            words_come_out(output_format_at(i), buf_view(&soup));
            buf_free(&soup);
        }
}

/* ---- bounds and failing memory ---- */

static void long_texts_are_held_within_bounds(void **state)
{
    (void)state;
    static const char *const heads[] = {"<tool_call>{\"name\": \"now\", \"x\": \"", "<tool_call>{\"arguments\": {\"a\": \"", "<tool_call>  "};
    for (size_t k = 0; k < sizeof heads / sizeof *heads; k++) {
        struct output_options o = {.format = output_format_find(STR("hermes")), .calls = true};
        struct output_parser *p;
        struct output_event e;
        struct err err = {0};
        size_t put = strlen(heads[k]), came = 0;
        assert_int_equal(output_open(&o, &p, &err), 0);
        assert_int_equal(output_put(p, str_of(heads[k]), false), 0);
        for (int i = 0; i < 3 * OUTPUT_HOLD_MAX / 16; i++, put += 16) {
            assert_int_equal(output_put(p, k < 2 ? STR("0123456789abcdef") : STR("\n               "), false), 0);
            assert_true(p->held.n <= OUTPUT_HOLD_MAX + 64 && p->args.n <= OUTPUT_HOLD_MAX + 64);
            while (output_next(p, &e))
                came += e.text.n;
        }
        assert_int_equal(output_end(p), 0);
        while (output_next(p, &e))
            came += e.text.n;
        assert_int_equal(came, put);
        output_close(p);
    }
}

/* How a call of get_weather begins, in one of the format's recorded texts. */
static bool is_recorded(const char *format, struct str begin)
{
    size_t i, n;
    yyjson_val *c;
    yyjson_arr_foreach(yyjson_obj_get(yyjson_doc_get_root(doc), "cases"), i, n, c)
        if (str_is(json_str(yyjson_obj_get(c, "format")), format) && str_find(json_str(yyjson_obj_get(c, "text")), begin) != SIZE_MAX)
            return true;
    return false;
}

static void calls_that_are_forced_begin_as_recorded(void **state)
{
    static const struct str sources[] = {STR(""), STR("[TOOL_CALLS]{{ name }}[ARGS]")};
    uint32_t found = 0;
    (void)state;
    for (size_t i = 0; output_format_at(i); i++)
        for (size_t k = 0; k < 2; k++) {
            const struct output_format *f = output_format_at(i);
            const char *form = output_format_call(f, sources[k]);
            struct buf b = {0};
            for (const char *p = form, *ways = NULL; p && *p && !(*p == '\2' && ways); p++)
                if (*p == '\1')
                    buf_z(&b, "get_weather");
                else if (*p == '\2')
                    ways = p; /* the first way */
                else
                    buf_char(&b, *p);
            if (form && !is_recorded(output_format_name(f), buf_view(&b)))
                fail_msg("%s: no recorded text has '%s'", output_format_name(f), buf_cstr(&b));
            found += form != NULL;
            buf_free(&b);
        }
    assert_int_equal(found, 2 * 22);
    assert_null(output_format_call(output_format_find(STR("think")), sources[0]));
    assert_string_not_equal(output_format_call(output_format_find(STR("mistral")), sources[0]),
                            output_format_call(output_format_find(STR("mistral")), sources[1]));
}

static void delimiters_of_calls_are_words_of_their_markers(void **state)
{
    struct str words[OUTPUT_DELIMITERS_MAX];
    bool open = false, close = false;
    (void)state;
    assert_int_equal(output_format_delimiters(output_format_find(STR("none")), words), 0);
    size_t n = output_format_delimiters(output_format_find(STR("hermes")), words);
    for (size_t i = 0; i < n; i++) {
        open |= str_is(words[i], "<tool_call>");
        close |= str_is(words[i], "</tool_call>");
        assert_null(memchr(words[i].p, ' ', words[i].n));
    }
    assert_true(open && close);
    n = output_format_delimiters(output_format_find(STR("lfm2")), words);
    assert_true(n == 4 && str_is(words[3], "<|tool_call_end|>"));
    for (size_t i = 0; output_format_at(i); i++)
        assert_true(output_format_delimiters(output_format_at(i), words) < OUTPUT_DELIMITERS_MAX); /* none is left out */
}

static void memory_may_fail_anywhere(void **state)
{
    (void)state;
    struct str text = STR("Hm.<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call> <tool_call>x");
    for (int64_t n = 0;; n++) {
        struct output_options o = {.format = output_format_find(STR("hermes")), .calls = true,
                                   .tools = yyjson_obj_get(yyjson_doc_get_root(doc), "tools"), .prompt_tail = STR("<think>")};
        struct output_parser *p = NULL;
        struct err err = {0};
        mem_fault_set(n);
        int rc = output_open(&o, &p, &err);
        for (size_t at = 0; rc == 0 && at < text.n; at++)
            rc = output_put(p, str_n(text.p + at, 1), false);
        rc = rc ? rc : output_end(p);
        mem_fault_set(-1);
        output_close(p);
        assert_true(rc == 0 || rc == ERR_NOMEM);
        if (rc == 0)
            break;
        assert_true(n < 1000);
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
        cmocka_unit_test(calls_of_other_tools_are_text),
        cmocka_unit_test(what_templates_write_is_read_back),
        cmocka_unit_test(documentation_lists_the_formats),
        cmocka_unit_test(formats_are_found),
        cmocka_unit_test(no_word_is_lost),
        cmocka_unit_test(long_texts_are_held_within_bounds),
        cmocka_unit_test(calls_that_are_forced_begin_as_recorded),
        cmocka_unit_test(delimiters_of_calls_are_words_of_their_markers),
        cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
