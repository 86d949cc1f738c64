/* Fuzz: a safetensors file from memory; every tensor is asked for as a weight, read and checked. */
#include "format/safetensors.h"

#include <stdlib.h>

static void use_weight(const struct hfdir *h, struct str name)
{
    struct weight_src w;
    struct err err = {0};
    if (hfdir_weight(h, name, &w, &err)) {
        if (!err.text[0])
            abort();
        return;
    }
    if (w.cols > 1 << 20)
        return;
    float *row = malloc(sizeof *row * w.cols);
    for (uint32_t r = 0; row && r < w.rows && r < 64; r++)
        weight_src_row(&w, r, row);
    if (row && w.rows)
        weight_src_row(&w, w.rows - 1, row);
    dtype_check_scales(&w, &err);
    free(row);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const char *const tails[] = {".weight", ".scales", "_blocks", ""};
    struct hfdir *h;
    struct err err = {0};
    if (hfdir_open_memory(data, n, &h, &err)) {
        if (!err.code || !err.text[0])
            abort();
        return 0;
    }
    for (size_t i = 0; i < hfdir_tensor_count(h); i++) {
        const struct st_tensor *t = hfdir_tensor_at(h, i);
        if (hfdir_tensor_find(h, t->name) != t)
            abort();
        for (size_t k = 0; k < sizeof tails / sizeof *tails; k++)
            if (str_ends(t->name, str_of(tails[k])))
                use_weight(h, str_n(t->name.p, t->name.n - strlen(tails[k])));
    }
    hfdir_close(h);
    return 0;
}
