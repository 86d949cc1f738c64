/* kv/read.c - what a page holds, decoded on the host: for measurements and tests, between steps. */
#include "kv/kv_int.h"

#include "base/mem.h"
#include "tensor/kv_codec.h"

#include <string.h>

int kv_read_page(struct kv *kv, const struct kv_seq *s, uint32_t layer, uint32_t head, uint32_t page, float *k, float *v,
                 struct err *err)
{
    uint32_t index = s->early ? kv->layout.layer_count + layer : layer;
    const struct kv_layer *l = &kv->views[index];
    const struct kv_layer_layout *at = &kv->layout.layers[index];
    const struct kv_unit *unit = &kv->layout.units[at->unit_first];
    const struct kv_table *t = &s->tables[at->group];
    if (page >= t->len || t->pages[page] == 0 || head >= l->n_kv_heads) {
        return err_set(err, ERR_ARGUMENT, "layer %u has no page %u of head %u", layer, page, head);
    }
    unsigned char *bytes = mem_try_array(l->head_bytes, 1);
    if (bytes == NULL) {
        return err_nomem(err, "page", l->head_bytes);
    }
    const unsigned char *from = kv->groups[at->group].host[unit->chunk][t->pages[page]] + unit->offset;
    int rc = kv->backend->buffer_read(kv->device, bytes, from + (size_t)head * l->head_bytes, l->head_bytes, err);
    for (uint32_t slot = 0; slot < KV_PAGE && rc == 0; slot++) {
        kv_load(bytes, l->k_format, l->d_k, slot, true, k + (size_t)slot * l->d_k);
        if (l->latent) {
            memcpy(v + (size_t)slot * l->d_v, k + (size_t)slot * l->d_k, l->d_v * sizeof *v);
        } else {
            kv_load(bytes + kv_format_k_bytes(l->k_format, l->d_k), l->v_format, l->d_v, slot, false, v + (size_t)slot * l->d_v);
        }
    }
    mem_free(bytes);
    return rc;
}
