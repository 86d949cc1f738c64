/* models: the tensors that published models have, by name, type and shape (data/published_tensors.json), open at full size.
 *
 * A line's name stands for many: "layers.{0-2,4-6}.x" is one tensor a number.  The files are holes: they take no room. */
#include "backend_trace/backend_trace.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "format_make.h"
#include "models/model.h"

#include <stdlib.h>
#include <unistd.h>

struct table {
    struct buf head;
    uint64_t bytes, count;
};

static void one_tensor(struct table *t, const char *name, const char *type, const char *shape)
{
    uint64_t n = strcmp(type + strlen(type) - 2, "32") == 0 ? 4 : strcmp(type, "U8") == 0 ? 1 : 2;
    buf_printf(&t->head, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->count++ ? "," : "", name, type);
    for (const char *p = shape; *p != '\0'; p += *p == 'x') {
        char *end;
        uint64_t d = strtoull(p, &end, 10);
        buf_printf(&t->head, "%s%llu", p == shape ? "" : ",", (unsigned long long)d);
        n *= d;
        p = end;
        if (*p == '\0') {
            break;
        }
    }
    buf_printf(&t->head, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)t->bytes, (unsigned long long)(t->bytes + n));
    t->bytes += n;
}

/* Every tensor of a name with ranges in braces. */
static void each_name(struct table *t, const char *name, const char *type, const char *shape)
{
    const char *open = strchr(name, '{'), *close = open != NULL ? strchr(open, '}') : NULL;
    if (open == NULL) {
        one_tensor(t, name, type, shape);
        return;
    }
    for (const char *p = open; p < close;) {
        char *end, inner[256];
        unsigned long from = strtoul(p + 1, &end, 10), to = *end == '-' ? strtoul(end + 1, &end, 10) : from;
        for (unsigned long i = from; i <= to; i++) {
            snprintf(inner, sizeof inner, "%.*s%lu%s", (int)(open - name), name, i, close + 1);
            each_name(t, inner, type, shape);
        }
        p = end;
    }
}

static bool write_files(const char *dir, yyjson_val *config, const struct table *t)
{
    char path[4096];
    struct buf head = {0};
    uint64_t n = t->head.n + 2;
    buf_put(&head, &n, sizeof n);
    buf_char(&head, '{');
    buf_str(&head, buf_view(&t->head));
    buf_char(&head, '}');
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_int_equal(file_write_atomic(path, buf_view(&head), NULL), 0);
    bool long_enough = truncate(path, (off_t)(head.n + t->bytes)) == 0;
    size_t length;
    char *text = yyjson_val_write(config, 0, &length);
    assert_non_null(text);
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(file_write_atomic(path, (struct str){text, length}, NULL), 0);
    free(text);
    buf_free(&head);
    return long_enough;
}

static void remove_files(const char *dir)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    rmdir(dir);
}

static void open_line(const char *name, yyjson_val *line, yyjson_val *config, struct device *d)
{
    char dir[] = "/tmp/rh_tensors_XXXXXX";
    struct table t = {0};
    struct err err = {0};
    struct model *m = NULL;
    struct model_options opt = {.context = 512, .k_format = KV_F16, .v_format = KV_F16, .rows_max = 8, .logit_rows_max = 2};
    yyjson_arr_iter it;
    yyjson_arr_iter_init(yyjson_obj_get(line, "tensors"), &it);
    for (yyjson_val *v = yyjson_arr_iter_next(&it); v != NULL; v = yyjson_arr_iter_next(&it)) {
        char tensor[256], type[8], shape[64];
        assert_int_equal(sscanf(yyjson_get_str(v), "%255s %7s %63s", tensor, type, shape), 3);
        each_name(&t, tensor, type, shape);
    }
    assert_int_equal(t.count, yyjson_get_uint(yyjson_obj_get(line, "count")));
    assert_non_null(mkdtemp(dir));
    int rc = 0;
    if (write_files(dir, config, &t)) { /* else files of this length do not exist here */
        rc = model_inspect(dir, d, &opt, &m, &err);
    }
    remove_files(dir);
    if (rc != 0) {
        fail_msg("%s: %s", name, err.text);
    }
    model_close(m);
    buf_free(&t.head);
}

static void test_tables(void **state)
{
    (void)state;
    struct buf text = {0}, configs_text = {0};
    struct err err = {0};
    struct device *d = NULL;
    struct device_config device = {0};
    assert_int_equal(file_read(&text, TEST_DATA "/published_tensors.json", 4u << 20, &err), 0);
    assert_int_equal(file_read(&configs_text, TEST_DATA "/published.json", 4u << 20, &err), 0);
    yyjson_doc *doc = json_parse(buf_view(&text), "published_tensors.json", &err);
    yyjson_doc *configs = json_parse(buf_view(&configs_text), "published.json", &err);
    assert_true(doc != NULL && configs != NULL);
    assert_int_equal(backend_trace.device_open(&device, &d, &err), 0);
    yyjson_obj_iter it;
    yyjson_obj_iter_init(yyjson_doc_get_root(doc), &it);
    for (yyjson_val *k = yyjson_obj_iter_next(&it); k != NULL; k = yyjson_obj_iter_next(&it)) {
        yyjson_val *line = yyjson_obj_iter_get_val(k), *config = yyjson_obj_get(line, "config");
        const char *name = yyjson_get_str(k);
        config = config != NULL ? config : yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(configs), name), "config");
        assert_non_null(config);
        open_line(name, line, config, d);
    }
    backend_trace.device_close(d);
    json_free(doc);
    json_free(configs);
    buf_free(&text);
    buf_free(&configs_text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
