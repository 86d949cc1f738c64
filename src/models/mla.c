/* models/mla.c - latent attention: its hyper-parameters of either file kind, and the block.
 *
 *   c = n(Wc x), r = rope(Wr x)                    one vector (c, r) a position is stored, for all heads
 *   q_h = Wq_h x, or Wq_h n(Wa x);  q_h = (u_h, rope(t_h))
 *   a_h = (Wk_h^T u_h, rope(t_h))                  what u_h . (Wk_h c) + t_h . r is of the stored vector
 *   x += Wo concat_h(Wv_h sum_j softmax_j(scale a_h . (c_j, r_j)) c_j)                n: RMS norm
 *
 * Every row goes this way, whatever the span's width, so that its bits do not depend on it.  Wk and Wv are the file's kv_b: split by
 * heads, Wk turned round. */
#include "models/mla_binds.h"

/* of the norms of the latent vectors, whatever the model's other norms have */
static const float LATENT_EPS = 1e-6f;

/* ---- the block ---- */

/* Queries of all heads, and (c, r). */
static int inputs(struct model *m, const struct layer_weights *l, struct tensor q, struct tensor k, struct err *err)
{
    const struct mla_params *p = &m->hp.mla;
    struct tensor low = p->q_rank != 0 ? step_rows(m, m->step.q_low) : (struct tensor){0};
    struct op_norm_linear in = {.x = step_rows(m, m->step.x), .norm_w = l->v[V_ATTN_NORM], .eps = m->hp.eps, .n = 2,
                                .w = {p->q_rank != 0 ? l->w[W_Q_A] : l->w[W_Q], l->w[W_KV_A]}, .y = {p->q_rank != 0 ? low : q, k},
                                .scratch = step_rows(m, m->step.normed)};
    int rc = op_norm_linear(m->device, &in, err);
    if (rc == 0 && p->q_rank != 0) {
        struct op_norm_linear up = {.x = low, .norm_w = l->v[V_Q_A_NORM], .eps = LATENT_EPS, .n = 1, .w = {l->w[W_Q]}, .y = {q},
                                    .scratch = step_rows(m, m->step.q_low_normed)};
        rc = op_norm_linear(m->device, &up, err);
    }
    return rc;
}

/* Norm, rope, and (c, r) into the pages. */
static int store(struct model *m, uint32_t layer, struct tensor q, struct tensor k, const struct step_part *parts, uint32_t count,
                 struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct mla_params *p = &hp->mla;
    struct tensor c = tensor_cols(k, 0, p->rank), table = step_rows(m, m->step.rope[0]);
    struct op_norm norm = {.x = c, .y = c, .dim = p->rank, .w = m->layers[layer].v[V_KV_A_NORM], .eps = LATENT_EPS};
    struct op_rope rope_q = {.x = q, .n_heads = hp->heads, .head_dim = p->nope + p->rope, .first = p->nope, .table = table,
                             .pairing = hp->pairing};
    struct op_rope rope_k = {.x = k, .n_heads = 1, .head_dim = p->rank + p->rope, .first = p->rank, .table = table,
                             .pairing = hp->pairing};
    int rc = op_norm(m->device, &norm, err);
    if (rc == 0) {
        rc = op_rope(m->device, &rope_q, err);
    }
    if (rc == 0) {
        rc = op_rope(m->device, &rope_k, err);
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct op_kv_write write = {.k = k, .layer = parts[i].layer, .spans = parts[i].spans, .span_count = parts[i].span_count,
                                    .tables = parts[i].tables};
        rc = op_kv_write(m->device, &write, err);
    }
    return rc;
}

int mla_block(struct model *m, uint32_t layer, struct err *err)
{
    const struct hparams *hp = &m->hp;
    const struct layer_weights *l = &m->layers[layer];
    struct tensor q = step_rows(m, m->step.q), k = step_rows(m, m->step.k), att = step_rows(m, m->step.att);
    struct tensor a = step_rows(m, m->step.q_latent), sums = step_rows(m, m->step.att_latent);
    struct op_linear_heads absorb = {.w = l->w[W_K_B], .n_heads = hp->heads, .tail = hp->mla.rope, .x = q, .y = a};
    struct step_part parts[2];
    uint32_t count = step_parts(m, layer, parts);
    struct op_linear_heads values = {.w = l->w[W_V_B], .n_heads = hp->heads, .x = sums, .y = att};
    int rc = inputs(m, l, q, k, err);
    if (rc == 0) {
        rc = store(m, layer, q, k, parts, count, err);
    }
    if (rc == 0) {
        rc = op_linear_heads(m->device, &absorb, err);
    }
    for (uint32_t i = 0; i < count && rc == 0; i++) {
        struct op_attention attention = {.q = a, .y = sums, .n_heads = hp->heads, .layer = parts[i].layer, .spans = parts[i].spans,
                                         .span_count = parts[i].span_count, .tables = parts[i].tables, .scale = hp->attn_scale};
        rc = op_attention(m->device, &attention, err);
    }
    if (rc == 0) {
        rc = op_linear_heads(m->device, &values, err);
    }
    return rc != 0 ? rc : decoder_output(m, l->w[W_O], NULL, att, NULL, err);
}

/* ---- hyper-parameters ---- */

/* What follows from the sizes: yarn's share of the scale, rope over its own part of a head. */
static int finish(struct hparams *hp, const char *where, struct err *err)
{
    struct mla_params *p = &hp->mla;
    const struct rope_params *rope = &hp->rope[0];
    if (p->rank == 0 || p->nope == 0 || p->rope == 0 || p->v == 0 || p->rank > 4096 || p->nope > 4096 || p->rope > 4096 ||
        p->v > 4096 || p->q_rank > (1u << 20)) {
        return err_set(err, ERR_FORMAT, "%s: latent attention of rank %u and %u, head parts %u and %u, values %u", where, p->rank,
                       p->q_rank, p->nope, p->rope, p->v);
    }
    if (rope->rot != p->rope) {
        return err_set(err, ERR_UNSUPPORTED, "%s: rope over %u elements of the %u that heads have for it", where, rope->rot, p->rope);
    }
    hp->head_dim = p->nope + p->rope;
    hp->kv_heads = 1;
    for (uint32_t i = 0; i < MODEL_LAYERS_MAX; i++) {
        hp->shape[i].kv_heads = 1;
        hp->shape[i].head_dim = hp->head_dim;
    }
    hp->flags |= p->q_rank != 0 ? HP_Q_RANK : 0;
    double scale = 1.0 / __builtin_sqrt((double)hp->head_dim);
    if (rope->kind != ROPE_PLAIN && rope->mscale_all != 0.0) {
        double mscale = rope_yarn_mscale(rope->factor, rope->mscale_all);
        scale = scale * mscale * mscale;
    }
    hp->attn_scale = (float)scale;
    return 0;
}

static int read_sizes(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    struct mla_params *p = &hp->mla;
    uint32_t whole = 0, kv_heads = hp->kv_heads, head = hp->head_dim;
    bool adjacent = hp->pairing == ROPE_ADJACENT;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"kv_lora_rank", &p->rank}, {"q_lora_rank", &p->q_rank}, {"qk_nope_head_dim", &p->nope},
                 {"qk_rope_head_dim", &p->rope}, {"v_head_dim", &p->v}, {"qk_head_dim", &whole}};
    int rc = 0;
    yyjson_val *direct = yyjson_obj_get(cfg->root, "q_lora_rank");
    if (direct != NULL && yyjson_is_null(direct)) {
        p->q_rank = 0;
    }
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = json_get_u32(cfg->root, sizes[i].key, sizes[i].out, cfg->where, err);
    }
    if (rc == 0) {
        rc = json_get_bool(cfg->root, "rope_interleave", &adjacent, cfg->where, err);
    }
    if (rc != 0) {
        return rc;
    }
    if ((whole != 0 && whole != p->nope + p->rope) || (head != 0 && head != p->rope) || (kv_heads != 0 && kv_heads != hp->heads)) {
        return err_set(err, ERR_UNSUPPORTED,
                       "%s: qk_head_dim %u, head_dim %u, num_key_value_heads %u: expected %u, %u and %u, or none", cfg->where, whole,
                       head, kv_heads, p->nope + p->rope, p->rope, hp->heads);
    }
    hp->pairing = adjacent ? ROPE_ADJACENT : ROPE_HALVES;
    hp->head_dim = p->rope; /* rope's keys speak of that part */
    rc = config_read_rope(hp, 0, cfg, NULL, err);
    return rc != 0 ? rc : finish(hp, cfg->where, err);
}

int mla_moe_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err)
{
    int rc = config_read_common(hp, cfg, err);
    if (rc == 0) {
        rc = read_sizes(hp, cfg, err);
    }
    if (rc == 0) {
        rc = json_get_u32(cfg->root, "num_nextn_predict_layers", &hp->ignored_layers, cfg->where, err);
    }
    return rc != 0 ? rc : experts_read_config(hp, cfg, err);
}

/* Newer files store the products' parts apart and say so in key and value lengths; older ones have one tensor for both. */
int mla_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err)
{
    struct mla_params *p = &hp->mla;
    uint32_t length = 0, stored = 0, stored_v = 0, heads = 0;
    const struct {
        const char *key;
        uint32_t *out;
    } sizes[] = {{"attention.kv_lora_rank", &p->rank}, {"attention.q_lora_rank", &p->q_rank}, {"attention.key_length", &stored},
                 {"attention.value_length", &stored_v}, {"attention.key_length_mla", &length}, {"attention.value_length_mla", &p->v},
                 {"attention.head_count", &heads}, {"rope.dimension_count", &p->rope}};
    int rc = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0] && rc == 0; i++) {
        rc = metadata_u32(md, sizes[i].key, sizes[i].out, err);
    }
    if (rc != 0) {
        return rc;
    }
    if (length == 0) {
        length = stored, p->v = stored_v;
    } else if (stored != p->rank + p->rope || stored_v != p->rank) {
        return err_set(err, ERR_UNSUPPORTED, "%s.attention: key_length %u and value_length %u: expected %u and %u of rank %u", md->arch,
                       stored, stored_v, p->rank + p->rope, p->rank, p->rank);
    }
    p->nope = length > p->rope ? length - p->rope : 0;
    hp->pairing = ROPE_ADJACENT;
    rc = metadata_read_common(hp, md, err);
    hp->head_dim = p->rope;
    if (rc == 0) {
        rc = metadata_read_rope(hp, md, err);
    }
    if (rc == 0) { /* the file has a tenth of it, and one number for both */
        hp->rope[0].mscale_all = (double)((float)hp->rope[0].mscale_all / 0.1f);
        hp->rope[0].mscale = hp->rope[0].mscale_all;
    }
    return rc != 0 ? rc : finish(hp, md->arch, err);
}
