/* What the renderer promises beyond the text: marks of user bytes, boundaries, limits, errors, and no harm when memory fails. */
#include "base/json.h"
#include "base/mem.h"
#include "chat/template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

#include <pthread.h>

static const char request[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"ab,cd\", \"n\": 5, \"l\": [1, \"x\", \"\"], \"d\": {\"k\": \"v\", "
    "\"<s>\": true}},"
    " {\"role\": \"assistant\", \"content\": \" <|im_end|> \"}], \"tools\": [{\"name\": \"t<s>\", \"p\": {\"q\": 1.5}}],"
    " \"variables\": {\"v\": \"V<s>\"}}";

static int render(const char *source, const char *json, struct chat_render_input in, struct chat_rendered *out, struct err *e)
{
    struct chat_template *t = NULL;
    yyjson_doc *doc = json_parse(str_of(json), "test", e);
    yyjson_val *root = yyjson_doc_get_root(doc);
    in.messages = yyjson_obj_get(root, "messages");
    in.tools = yyjson_obj_get(root, "tools");
    in.documents = yyjson_obj_get(root, "documents");
    in.variables = yyjson_obj_get(root, "variables");
    in.bos_token = STR("<s>");
    *out = (struct chat_rendered){0};
    int rc = doc ? chat_template_open(str_of(source), &t, e) : e->code;
    if (!rc)
        rc = chat_template_render(t, &in, out, e);
    chat_template_close(t);
    json_free(doc);
    return rc;
}

/* The text with brackets around what the user wrote. */
static void check_marks(const char *source, const char *want)
{
    struct chat_rendered r;
    struct err e = {0};
    struct buf b = {0};
    if (render(source, request, (struct chat_render_input){0}, &r, &e))
        fail_msg("%s: %s", source, e.text);
    for (size_t i = 0; i < r.piece_count; i++) {
        struct str part = str_n(r.text.p + r.pieces[i].from, r.pieces[i].to - r.pieces[i].from);
        buf_z(&b, r.pieces[i].user ? "[" : "");
        buf_str(&b, part);
        buf_z(&b, r.pieces[i].user ? "]" : "");
    }
    if (strcmp(buf_cstr(&b), want) != 0)
        fail_msg("%s\n  want %s\n  got  %s", source, want, buf_cstr(&b));
    buf_free(&b);
    chat_rendered_free(&r);
}

static void test_marks(void **state)
{
    static const char *const cases[][2] = {
        {"{{ bos_token }}{{ messages[0].content }}!", "<s>[ab,cd]!"},
        {"x{{ messages[0].content ~ 'y' ~ v }}", "x[ab,cd]y[V<s>]"},
        {"{{ messages[0]['role'] + '|' }}", "[user]|"},
        {"{{ messages[0].content.split(',')[1] }}|", "[cd]|"},
        {"{{ messages[0].content.split(',')|join('<s>') }}", "[ab]<s>[cd]"},
        {"{{ messages[1].content.strip() }}{{ messages[1].content|trim }}|", "[<|im_end|><|im_end|>]|"},
        {"{{ (' ' ~ messages[0].content)|trim|upper }}", "[AB,CD]"},
        {"{{ messages[0].content.replace('b', 'ZZ') }}", "[a]ZZ[,cd]"},
        {"{{ 'a-b'.replace('-', messages[0].content) }}", "a[ab,cd]b"},
        {"{{ messages[0].content[1:3] ~ messages[0].content[::-1] ~ messages[0].content[0] }}", "[b,dc,baa]"},
        {"{{ ('<' ~ messages[0].content ~ '>')[1:4] }}", "[ab,]"},
        {"{{ ('<' ~ messages[0].content ~ '>')[4:] }}", "[cd]>"},
        {"{{ ('<' ~ messages[0].content ~ '>')|reverse }}", ">[dc,ba]<"},
        {"{% for c in 'x' ~ messages[0].content %}{{ c }}{% endfor %}", "x[ab,cd]"},
        {"{{ 'p %s q' % messages[0].content }}", "p [ab,cd] q"},
        {"{{ '{} {:>7}'.format('t', messages[0].content) }}", "t   [ab,cd]"},
        {"{{ '{x}'.format(x=v) }}", "[V<s>]"},
        {"{{ messages[0].content|indent(2, true) }}", "  [ab,cd]"},
        {"{{ messages[0].content|title }}{{ messages[0].content|capitalize }}", "[Ab,cdAb,cd]"},
        {"{{ messages[0].n }}{{ messages[0].n + 1 }}", "[5]6"},
        {"{{ messages[0].l }}", "[[1, 'x', '']]"},
        {"{{ [messages[0].content, 'y'] }}", "[['ab,cd'], 'y']"},
        {"{{ messages[0].d|tojson }}", "[{\"k\": \"v\", \"<s>\": true}]"},
        {"{{ {'a': messages[0].content, 'b': bos_token}|tojson }}", "{\"a\": [\"ab,cd\"], \"b\": \"<s>\"}"},
        {"{{ tools|tojson }}", "[[{\"name\": \"t<s>\", \"p\": {\"q\": 1.5}}]]"},
        {"{{ tools[0]|tojson(indent=1) }}", "[{\n \"name\": \"t<s>\",\n \"p\": {\n  \"q\": 1.5\n }\n}]"},
        {"{% for k, x in messages[0].d.items() %}{{ k }}={{ x }};{% endfor %}", "[k]=[v];[<s>]=[True];"},
        {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(v) }}", "<[V<s>]>"},
        {"{% set x %}a{{ v }}b{% endset %}{{ x }}{{ x|length }}", "a[V<s>]b6"},
        {"{% filter upper %}a{{ v }}{% endfilter %}", "A[V<S>]"},
        {"{{ v|e }}{{ v|default('z') }}{{ nope|default(v) }}", "[V&lt;s&gt;V<s>V<s>]"},
        {"{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ '#' ~ m.role %}{% endfor %}{{ ns.t }}",
         "#[user]#[assistant]"},
        {"{{ messages|map(attribute='role')|join(',') }}", "[user],[assistant]"},
        {"{{ messages[0].content == 'ab,cd' }}{{ messages[0].content|length }}", "True5"},
        {"{{ ('a\\n' ~ v ~ '\\nb').splitlines()[1] }}", "[V<s>]"},
        {"{{ messages[0].content.partition(',')|join('') }}", "[ab,cd]"},
        {"{{ v|list|join }}{{ v|first }}{{ v.center(6, '*') }}", "[V<s>V]*[V<s>]*"},
        {"{{ messages[0].content|truncate(3, true, '~', 0) }}", "[ab]~"},
        {"{{ strftime_now(v) == v }}{{ v|urlencode }}", "True[V%3Cs%3E]"},
        {"{{ v * 2 }}{{ [v] * 2 }}", "[V<s>V<s>][['V<s>'], ['V<s>']]"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_marks(cases[i][0], cases[i][1]);
}

/* ---- boundaries ----------------------------------------------------------------------------------------------------------- */

static const char chatml[] =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}{% if add_generation_prompt %}<a>{% endif %}";

static void test_boundaries(void **state)
{
    struct chat_rendered r;
    struct err e = {0};
    static const char three[] = "{\"messages\": [{\"role\": \"u\", \"content\": \"1\"}, {\"role\": \"a\", \"content\": \"22\"}, "
                                "{\"role\": \"u\", \"content\": \"\"}]}";
    (void)state;
    assert_int_equal(render(chatml, three, (struct chat_render_input){.add_generation_prompt = true}, &r, &e), 0);
    assert_string_equal(buf_cstr(&r.text), "<u>1</><a>22</><u></><a>");
    assert_int_equal(r.boundary_count, 3);
    assert_int_equal(r.boundaries[0], 7);
    assert_int_equal(r.boundaries[1], 15);
    assert_int_equal(r.boundaries[2], 21);
    chat_rendered_free(&r);

    /* a template that shows how many messages there are has no stable prefix but the whole */
    assert_int_equal(render("{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}", three,
                            (struct chat_render_input){0}, &r, &e),
                     0);
    assert_int_equal(r.boundary_count, 1);
    assert_int_equal(r.boundaries[0], r.text.n);
    chat_rendered_free(&r);

    /* prefixes that raise are left out */
    static const char raising[] =
        "{% if messages|length == 2 %}{{ raise_exception('two') }}{% endif %}{% for m in messages %}{{ m.role }}{% endfor %}";
    assert_int_equal(render(raising, three, (struct chat_render_input){0}, &r, &e), 0);
    assert_int_equal(r.boundary_count, 2);
    assert_int_equal(r.boundaries[0], 1);
    assert_int_equal(r.boundaries[1], 3);
    chat_rendered_free(&r);
}

static void test_many_boundaries(void **state)
{
    struct chat_rendered r;
    struct err e = {0};
    struct buf json = {0};
    (void)state;
    buf_z(&json, "{\"messages\": [");
    for (int i = 0; i < 300; i++)
        buf_printf(&json, "%s{\"role\": \"u\", \"content\": \"%03d\"}", i ? ", " : "", i);
    buf_z(&json, "]}");
    assert_int_equal(render(chatml, buf_cstr(&json), (struct chat_render_input){0}, &r, &e), 0);
    assert_int_equal(r.text.n, 300 * 9);
    assert_int_equal(r.boundary_count, 128);
    for (size_t i = 0; i < 128; i++)
        assert_int_equal(r.boundaries[i], 9 * (i < 64 ? i + 1 : 300 - 127 + i));
    chat_rendered_free(&r);
    buf_free(&json);
}

/* ---- limits and errors ---------------------------------------------------------------------------------------------------- */

static void check_error(const char *source, const char *json, struct chat_render_input in, int code, const char *words)
{
    struct chat_rendered r;
    struct err e = {0};
    int rc = render(source, json, in, &r, &e);
    if (rc != code || str_find(str_of(e.text), str_of(words)) == SIZE_MAX)
        fail_msg("%.80s: code %d, '%s'; expected %d with '%s'", source, rc, e.text, code, words);
    assert_null(r.text.p);
    chat_rendered_free(&r);
}

static void test_limits(void **state)
{
    struct chat_render_input small = {.output_max_bytes = 1000, .steps_max = 100000};
    (void)state;
    check_error("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", request, small, ERR_LIMIT,
                "steps");
    check_error("{% for i in range(1000) %}xx{% endfor %}", request, small, ERR_LIMIT, "1000 bytes");
    check_error("{{ 'x' * 1000000000 }}", request, small, ERR_LIMIT, "1000 bytes");
    check_error("{{ ('x' * 1000) ~ 'y' }}", request, small, ERR_LIMIT, "1000 bytes");
    check_error("{{ [1] * 1000000000 }}", request, small, ERR_LIMIT, "steps");
    check_error("{{ '%1000000000d' % 1 }}", request, small, ERR_LIMIT, "width");
    check_error("{{ '{:1000000000}'.format(1) }}", request, small, ERR_LIMIT, "width");
    check_error("{{ 'x'.center(1000000000) }}", request, small, ERR_LIMIT, "steps");
    check_error("{% macro r() %}{{ r() }}{% endmacro %}{{ r() }}", request, small, ERR_LIMIT, "macros call each other");
    check_error("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", request,
                small, ERR_LIMIT, "nested");
    check_error("{% set ns = namespace(x=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}",
                request, small, ERR_LIMIT, "nested");
    check_error(
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(5000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}"
        "{{ ns.x == ns.y }}",
        request, small, ERR_LIMIT, "nested");
    check_error("{% set ns = namespace(x=()) %}{% for i in range(5000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
                request, small, ERR_LIMIT, "nested");
    check_error("{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", request, small,
                ERR_LIMIT, "1000 bytes");
    check_error("{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", request,
                (struct chat_render_input){.steps_max = UINT64_MAX}, ERR_LIMIT, "memory");
    check_error("{{ 9223372036854775807 + 1 }}", request, small, ERR_TEMPLATE, "64 bits");
}

static void test_errors(void **state)
{
    static const char *const refused[] = {"include 'x'", "import 'x' as y", "from 'x' import y", "extends 'x'"};
    struct chat_render_input in = {0};
    char source[20000];
    (void)state;
    check_error("a\nb\n{{ raise_exception('Only \"user\" roles') }}", request, in, ERR_TEMPLATE, "line 3: Only \"user\" roles");
    check_error("{{ x.y }}", request, in, ERR_TEMPLATE, "line 1: 'x' is undefined");
    for (size_t i = 0; i < 4; i++) {
        snprintf(source, sizeof source, "{%% %s %%}", refused[i]);
        check_error(source, request, in, ERR_TEMPLATE, "not supported in a chat template");
    }
    check_error("{% for a in [] recursive %}{% endfor %}", request, in, ERR_TEMPLATE, "recursive loops are not supported");
    check_error("{{ [1]|random }}", request, in, ERR_TEMPLATE, "'random' is not supported");
    check_error("{{ 1|urlize }}", request, in, ERR_TEMPLATE, "'urlize' is not supported");
    check_error("\xff", request, in, ERR_TEMPLATE, "UTF-8");
    check_error("{{ '\\ud800' }}", request, in, ERR_TEMPLATE, "scalar");
    for (size_t i = 0; i < 5000; i++)
        source[i] = i < 3 ? "{{ "[i] : '(';
    source[5000] = 0;
    check_error(source, request, in, ERR_TEMPLATE, "nested deeper");
    for (size_t i = 0; i < 5000; i++)
        source[i] = "{{ "[i < 3 ? i : 2], source[i] = i >= 3 ? '-' : source[i];
    check_error(source, request, in, ERR_TEMPLATE, "nested deeper");
    for (size_t i = 0; i < 1000; i++)
        memcpy(source + 10 * i, "{% if 1 %}", 10);
    source[10000] = 0;
    check_error(source, request, in, ERR_TEMPLATE, "nested deeper");
    check_error("x", "{\"messages\": []}", in, ERR_ARGUMENT, "messages: expected at least one");
    check_error("x", "{}", in, ERR_ARGUMENT, "messages: expected an array, got absent");
    check_error("x", "{\"messages\": [{}, 5]}", in, ERR_ARGUMENT, "messages[1]: expected an object");
    check_error("x", "{\"messages\": [{}], \"tools\": 5}", in, ERR_ARGUMENT, "tools: expected an array");
    check_error("x", "{\"messages\": [{}], \"documents\": [[]]}", in, ERR_ARGUMENT, "documents[0]");
    check_error("x", "{\"messages\": [{}], \"variables\": []}", in, ERR_ARGUMENT, "variables");
}

/* ---- what transformers does to messages first ----------------------------------------------------------------------------- */

static void test_messages(void **state)
{
    static const char json[] =
        "{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"reasoning\": \"r\", \"a\": 1, \"a\": 2}]}";
    struct chat_rendered r;
    struct err e = {0};
    (void)state;
    assert_int_equal(render("{{ messages[0]|tojson }}{{ tools }}", json, (struct chat_render_input){0}, &r, &e), 0);
    assert_string_equal(
        buf_cstr(&r.text),
        "{\"thinking\": \"r\", \"role\": \"assistant\", \"reasoning\": \"r\", \"a\": 2, \"reasoning_content\": \"r\"}None");
    chat_rendered_free(&r);
}

/* ---- memory ---------------------------------------------------------------------------------------------------------------- */

static void test_faults(void **state)
{
    static const char source[] =
        "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ kwargs }}{% endmacro %}{% for x in messages if x.role %}{% set y = x.content ~ "
        "'!' * 300 %}"
        "{{ m(y, c=1) }}{{ x|tojson(indent=2) }}{{ [3, 1]|sort|join(',') }}{{ 'a,b'.split(',')|map('upper')|list }}{% endfor %}"
        "{{ '%s-%5.2f' % ('a', 1.5) }}{{ '{:>5}'.format('x') }}{% set z %}{{ range(2000)|list }}{% endset %}{{ z|length }}"
        "{% set ns = namespace(t='') %}{% for i in range(2000) %}{% set ns.t = ns.t ~ i %}{% endfor %}{{ ns.t|length }}"
        "{{ dict(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8, i=9, j=10)|dictsort|length }}{{ messages|groupby('role')|length }}";
    (void)state;
    for (int64_t n = 0;; n++) {
        struct chat_rendered r = {0};
        struct chat_template *t = NULL;
        struct err e = {0};
        yyjson_doc *doc = json_parse(str_of(request), "test", &e);
        struct chat_render_input in = {.messages = yyjson_obj_get(yyjson_doc_get_root(doc), "messages")};
        mem_fault_set(n);
        int rc = chat_template_open(str_of(source), &t, &e);
        if (!rc)
            rc = chat_template_render(t, &in, &r, &e);
        int64_t requests = mem_request_count();
        mem_fault_set(-1);
        chat_rendered_free(&r);
        chat_template_close(t);
        json_free(doc);
        if (rc && rc != ERR_NOMEM)
            fail_msg("request %lld failing gives %d: %s", (long long)n, rc, e.text);
        if (!rc) {
            assert_true(requests <= n);
            assert_true(n > 10);
            print_message("%lld requests, each failed once\n", (long long)n);
            return;
        }
    }
}

/* ---- threads -------------------------------------------------------------------------------------------------------------- */

struct worker {
    const struct chat_template *t;
    yyjson_val *messages;
    int bad;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    for (int i = 0; i < 50; i++) {
        struct chat_rendered r;
        struct chat_render_input in = {.messages = w->messages};
        w->bad |= chat_template_render(w->t, &in, &r, NULL) != 0 || !str_is(buf_view(&r.text), "\xC3\xA9[2]aB,CDb C\xC3\xA9");
        chat_rendered_free(&r);
    }
    return NULL;
}

static void test_threads(void **state)
{
    struct chat_template *t = NULL;
    struct err e = {0};
    struct worker w[4];
    pthread_t thread[4];
    yyjson_doc *doc = json_parse(str_of(request), "test", &e);
    static const char source[] = "{% set s = '\xC3\xA9[2]' %}{{ s ~ 'ab,cd'|replace('b', 'B,C')|replace('cd', 'D')|replace('C,', 'C') }}"
                                 "{{ 'b C\xC3\xA9'[:4] }}";
    (void)state;
    assert_int_equal(chat_template_open(str_of(source), &t, &e), 0);
    for (int i = 0; i < 4; i++) {
        w[i] = (struct worker){t, yyjson_obj_get(yyjson_doc_get_root(doc), "messages"), 0};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].bad, 0);
    }
    chat_template_close(t);
    json_free(doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_marks),  cmocka_unit_test(test_boundaries), cmocka_unit_test(test_many_boundaries),
        cmocka_unit_test(test_limits), cmocka_unit_test(test_errors),     cmocka_unit_test(test_messages),
        cmocka_unit_test(test_faults), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
