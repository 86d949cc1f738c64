/* models: inverse frequencies and the factor of cos and sin, against what transformers computed for each model in tests/golden.
 * */
#include "backend_trace/backend_trace.h"
#include "base/file.h"
#include "models/arch.h"

#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

static yyjson_doc *golden_read(const char *name)
{
    char path[4096];
    struct buf text = {0};
    snprintf(path, sizeof path, "%s/../golden/%s/golden.json", TEST_DATA, name);
    if (!file_exists(path)) {
        return NULL;
    }
    assert_int_equal(file_read(&text, path, 64u << 20, NULL), 0);
    yyjson_doc *doc = json_parse(buf_view(&text), path, NULL);
    buf_free(&text);
    assert_non_null(doc);
    return doc;
}

/* The greatest distance in units of the last place.  A pair that is not turned has 0. */
static double ulps(float got, double want)
{
    if (want == 0)
        return got == 0 ? 0 : 1e9;
    double unit = __builtin_ldexp(1.0, __builtin_ilogb(want) - 23);
    return __builtin_fabs((double)got - want) / unit;
}

static void check_set(const struct model *m, uint32_t set, yyjson_val *list, double scale, const char *name)
{
    float inv[MODEL_ROPE_PAIRS_MAX], mscale = 0;
    struct err err = {0};
    const struct rope_params *p = &m->hp.rope[set];
    if (rope_frequencies(p, m->hp.context_train, m->context, NULL, inv, &mscale, &err) != 0) {
        fail_msg("%s: %s", name, err.text);
    }
    assert_int_equal(yyjson_arr_size(list), p->rot / 2);
    double worst = 0;
    for (uint32_t i = 0; i < p->rot / 2; i++) {
        double d = ulps(inv[i], yyjson_get_num(yyjson_arr_get(list, i)));
        worst = d > worst ? d : worst;
    }
    printf("%-14s set %u: %u frequencies, greatest distance %.2f ulp, factor %.9g (want %.9g)\n", name, set, p->rot / 2, worst,
           (double)mscale, scale);
    assert_true(worst <= 2.0);
    assert_true(ulps(mscale, scale) <= 1.0);
}

static void check_model(const char *name, yyjson_val *root)
{
    static const char *const names[2][2] = {{"inv_freq", "full_attention_inv_freq"}, {"none", "sliding_attention_inv_freq"}};
    static const char *const scales[2][2] = {{"attention_scaling", "full_attention_attention_scaling"},
                                             {"none", "sliding_attention_attention_scaling"}};
    char path[4096];
    struct err err = {0};
    struct device *d = NULL;
    struct model *m = NULL;
    struct device_config cfg = {0};
    struct model_options opt = {.k_format = KV_F16, .v_format = KV_F16};
    assert_int_equal(json_get_u32(root, "context", &opt.context, name, &err), 0);
    snprintf(path, sizeof path, "%s/../golden/%s", TEST_DATA, name);
    assert_int_equal(backend_trace.device_open(&cfg, &d, &err), 0);
    if (model_inspect(path, d, &opt, &m, &err) != 0) {
        fail_msg("%s", err.text);
    }
    for (uint32_t set = 0; set < m->hp.rope_sets; set++) {
        yyjson_val *freqs = yyjson_obj_get(root, "inv_freq"), *factors = yyjson_obj_get(root, "rope_scale");
        int k = m->hp.rope_sets > 1;
        check_set(m, set, yyjson_obj_get(freqs, names[set][k]), yyjson_get_num(yyjson_obj_get(factors, scales[set][k])), name);
    }
    model_close(m);
    backend_trace.device_close(d);
}

static void test_frequencies(void **state)
{
    (void)state;
    int models = 0;
    char dir[4096];
    snprintf(dir, sizeof dir, "%s/../golden", TEST_DATA);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d)) {
        yyjson_doc *doc = golden_read(e->d_name);
        if (doc != NULL) {
            check_model(e->d_name, yyjson_doc_get_root(doc));
            json_free(doc);
            models++;
        }
    }
    closedir(d);
    assert_true(models >= 17);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_frequencies)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
