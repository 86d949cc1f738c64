/* models/driver.c - one step: spans packed into rows, the layers, the head over wanted rows, results.
 *
 * Owns:       the step's buffers, allocated once for rows_max rows; a step takes no heap.
 * Invariants: 1. As many steps are in flight as the model was opened for; each has a staging of its own, planned with the rest, and so has
 *                one that is held.
 *             2. Every row's inputs are its id, its position and its sequence's pages; nothing of another row.
 *             3. Logits exist for one tile of logit_rows_max rows only. */
#include "models/arch.h"

#include "base/mem.h"

enum { STEP_ALIGN = 64, FLOAT_ALIGN = 16, FLUSH_LAYERS = 4 };

/* ---- buffers ---- */

struct step_walk {
    unsigned char *base; /* NULL while sizes are counted */
    size_t used;
};

static void *walk_take(struct step_walk *w, size_t bytes)
{
    void *p = w->base != NULL ? w->base + w->used : NULL;
    w->used += (bytes + STEP_ALIGN - 1) / STEP_ALIGN * STEP_ALIGN;
    return p;
}

static struct tensor walk_tensor(struct step_walk *w, uint32_t rows, uint32_t cols)
{
    uint32_t stride = (cols + FLOAT_ALIGN - 1) / FLOAT_ALIGN * FLOAT_ALIGN;
    return (struct tensor){walk_take(w, (size_t)rows * stride * sizeof(float)), rows, cols, stride};
}

static uint32_t group_count(const struct model *m)
{
    return kv_plan_groups(m->kv_layers, m->hp.layers, m->opt.kv_start);
}

static uint32_t rows_max(const struct model *m)
{
    return m->opt.rows_max ? m->opt.rows_max : 512;
}

static uint32_t logit_rows_max(const struct model *m)
{
    uint32_t most = m->opt.logit_rows_max ? m->opt.logit_rows_max : 16;
    return most < rows_max(m) ? most : rows_max(m);
}

/* Between router and sum every row stands once for each of its slots. */
static void experts_layout(struct step *s, const struct hparams *hp, struct step_walk *w)
{
    const struct experts_params *p = &hp->moe;
    uint32_t rows = s->rows_max, slots = rows * p->used;
    s->route_logits = walk_tensor(w, rows, p->experts);
    s->route_ids = walk_take(w, slots * sizeof *s->route_ids);
    s->route_weights = walk_take(w, slots * sizeof *s->route_weights);
    s->expert_mid = walk_tensor(w, slots, p->ffn);
    s->expert_up = walk_tensor(w, slots, p->ffn);
    s->expert_out = walk_tensor(w, slots, p->latent ? p->latent : hp->hidden);
    if (p->shared_ffn != 0) {
        s->shared_gate = walk_tensor(w, rows, p->shared_ffn);
        s->shared_up = walk_tensor(w, rows, p->shared_ffn);
        s->shared_weight = walk_tensor(w, rows, 1);
    }
}

static size_t spans_cap(const struct model *m)
{
    return (size_t)rows_max(m) * (m->opt.kv_start != 0 ? 2 : 1);
}

static void attention_layout(struct step *s, const struct hparams *hp, struct step_walk *w)
{
    const struct mla_params *p = &hp->mla;
    uint32_t rows = s->rows_max, q = model_q_cols(hp), kv = model_kv_cols(hp);
    s->q = walk_tensor(w, rows, q);
    if (p->rank == 0) {
        s->k = walk_tensor(w, rows, kv);
        s->v = walk_tensor(w, rows, kv);
        s->att = walk_tensor(w, rows, q);
        return;
    }
    s->k = walk_tensor(w, rows, p->rank + p->rope);
    s->att = walk_tensor(w, rows, hp->heads * p->v);
    s->q_latent = walk_tensor(w, rows, hp->heads * (p->rank + p->rope));
    s->att_latent = walk_tensor(w, rows, hp->heads * p->rank);
    s->q_low = walk_tensor(w, rows, p->q_rank);
    s->q_low_normed = walk_tensor(w, rows, p->q_rank);
}

/* Lay the device memory of a step out from w->base; returns its size. */
static size_t step_layout(struct step *s, const struct model *m, struct step_walk *w)
{
    const struct hparams *hp = &m->hp;
    uint32_t rows = s->rows_max;
    s->ids = walk_take(w, rows * sizeof *s->ids);
    s->positions = walk_take(w, rows * sizeof *s->positions);
    s->out_rows = walk_take(w, rows * sizeof *s->out_rows);
    s->spans = walk_take(w, spans_cap(m) * sizeof *s->spans);
    s->tables = walk_take(w, (size_t)group_count(m) * s->tables_cap * sizeof *s->tables);
    s->x = walk_tensor(w, rows, hp->hidden);
    s->normed = walk_tensor(w, rows, hp->hidden);
    s->block = walk_tensor(w, rows, hp->hidden);
    attention_layout(s, hp, w);
    s->gate = walk_tensor(w, rows, model_ffn(hp));
    s->up = walk_tensor(w, rows, model_ffn(hp));
    if ((hp->flags & HP_ATTN_GATE) != 0) {
        s->q_gate = walk_tensor(w, rows, model_q_cols(hp));
    }
    if (model_state_cols(hp) != 0) {
        uint32_t values = hp->state.heads * hp->state.values;
        s->state_in = walk_tensor(w, rows, model_state_cols(hp));
        s->state_gate = walk_tensor(w, rows, values * hp->state.d_v);
        s->state_a = walk_tensor(w, rows, values);
        s->state_b = walk_tensor(w, rows, values);
        s->state_out = walk_tensor(w, rows, model_state_out(hp));
    }
    if (hp->moe.experts != 0) {
        experts_layout(s, hp, w);
    }
    for (uint32_t r = 0; r < hp->rope_sets; r++) {
        s->rope[r] = walk_tensor(w, rows, hp->rope[r].rot);
    }
    for (uint32_t i = 0; i < MODEL_EXTRA; i++) {
        s->extra[i] = hp->extra[i] != 0 ? walk_tensor(w, rows, hp->extra[i]) : (struct tensor){0};
    }
    s->out = walk_tensor(w, s->logit_rows_max, hp->hidden);
    s->logits = walk_tensor(w, s->logit_rows_max, hp->vocab);
    return w->used;
}

static void step_sizes(struct step *s, const struct model *m)
{
    s->rows_max = rows_max(m);
    s->logit_rows_max = logit_rows_max(m);
    uint64_t pages = (uint64_t)kv_plan_table(m->kv_layers, m->hp.layers, m->context) + 1, cap = pages * s->rows_max;
    s->tables_cap = cap < UINT32_MAX ? (uint32_t)cap : UINT32_MAX;
}

static size_t tables_count(const struct model *m, const struct step *s)
{
    return (size_t)group_count(m) * s->tables_cap;
}

bool model_holds(const struct model *m)
{
    return model_steps_in_flight(m) == 1 && device_backend(m->device)->hold != NULL;
}

static uint32_t stagings(const struct model *m)
{
    return model_steps_in_flight(m) + model_holds(m);
}

/* The host's side of one step in flight: what staging_open takes. */
static uint64_t staging_bytes(const struct model *m, const struct step *s)
{
    const struct step_staging *g = NULL;
    uint64_t row = sizeof *g->ids + sizeof *g->positions + sizeof *g->out_rows + sizeof *g->samples;
    return s->rows_max * row + spans_cap(m) * sizeof *g->spans + tables_count(m, s) * sizeof *g->tables;
}

uint64_t step_plan_bytes(const struct model *m)
{
    struct step s = {0};
    struct step_walk w = {0};
    struct device_reserve r;
    step_sizes(&s, m);
    step_reserve_sizes(m, &r);
    return step_layout(&s, m, &w) + stagings(m) * staging_bytes(m, &s) + device_backend(m->device)->reserve_plan(m->device, &r);
}

void step_reserve_sizes(const struct model *m, struct device_reserve *out)
{
    const struct hparams *hp = &m->hp;
    const uint32_t inputs[] = {hp->hidden, model_ffn(hp), model_q_cols(hp), model_state_out(hp), hp->layer_inputs, hp->moe.ffn,
                               hp->moe.shared_ffn, hp->moe.latent, hp->heads * hp->mla.v, hp->mla.q_rank};
    uint32_t stored = hp->mla.rank + hp->mla.rope, head = model_head_dim(hp), expert_in = hp->moe.latent ? hp->moe.latent : hp->hidden;
    uint32_t widest = 0;
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++) {
        widest = inputs[i] > widest ? inputs[i] : widest;
    }
    *out = (struct device_reserve){.rows_max = rows_max(m), .cols_max = widest, .heads_max = hp->heads,
                                   .head_dim_max = stored > head ? stored : head, .latent_dim_max = hp->mla.rank, .context_max = m->context, .logit_rows_max = logit_rows_max(m),
                                   .vocab_max = hp->vocab,
                                   .state_dim_max = hp->state.d_k > hp->state.d_v ? hp->state.d_k : hp->state.d_v,
                                   .experts_max = hp->moe.experts, .slots_max = hp->moe.used,
                                   .expert_cols_max = hp->moe.experts == 0 ? 0 : hp->moe.ffn > expert_in ? hp->moe.ffn : expert_in,
                                   .away_mib_max = (uint32_t)((m->away_most + (1u << 20) - 1) >> 20)};
}

uint32_t model_steps_in_flight(const struct model *m)
{
    return m->opt.steps_in_flight > 1 ? m->opt.steps_in_flight : 1;
}

static int staging_open(struct step_staging *g, uint32_t rows, size_t spans, size_t tables, struct err *err)
{
    g->ids = mem_try_zero(rows, sizeof *g->ids);
    g->positions = mem_try_zero(rows, sizeof *g->positions);
    g->out_rows = mem_try_zero(rows, sizeof *g->out_rows);
    g->spans = mem_try_zero(spans, sizeof *g->spans);
    g->samples = mem_try_zero(rows, sizeof *g->samples);
    g->tables = mem_try_zero(tables, sizeof *g->tables);
    if (g->ids == NULL || g->positions == NULL || g->out_rows == NULL || g->spans == NULL || g->samples == NULL || g->tables == NULL) {
        return err_nomem(err, "step staging", tables * sizeof *g->tables);
    }
    return 0;
}

/* The staging of the step before the last one in flight or held is free: its event was waited for. */
static void staging_take(struct model *m)
{
    struct step *s = &m->step;
    const struct step_staging *g = &s->staging[s->staging_turn];
    s->staging_turn = (s->staging_turn + 1) % stagings(m);
    s->host_ids = g->ids;
    s->host_positions = g->positions;
    s->host_out_rows = g->out_rows;
    s->host_spans = g->spans;
    s->host_samples = g->samples;
    s->host_tables = g->tables;
}

int step_open(struct model *m, struct err *err)
{
    if (m->opt.steps_in_flight > MODEL_STEPS_IN_FLIGHT) {
        return err_set(err, ERR_UNSUPPORTED, "%u steps in flight: at most %d", m->opt.steps_in_flight, MODEL_STEPS_IN_FLIGHT);
    }
    const struct backend *be = device_backend(m->device);
    struct step *s = &m->step;
    struct step_walk w = {0};
    struct device_reserve r;
    step_sizes(s, m);
    step_reserve_sizes(m, &r);
    int rc = be->reserve(m->device, &r, err);
    if (rc != 0) {
        return rc;
    }
    void *memory = NULL;
    size_t bytes = step_layout(s, m, &w);
    rc = be->buffer_new(m->device, bytes, &memory, err);
    if (rc != 0) {
        return rc;
    }
    s->memory = memory;
    s->memory_bytes = bytes;
    w = (struct step_walk){.base = s->memory};
    step_layout(s, m, &w);
    for (uint32_t i = 0; i < stagings(m) && rc == 0; i++) {
        rc = staging_open(&s->staging[i], s->rows_max, spans_cap(m), tables_count(m, s), err);
    }
    return rc;
}

void step_close(struct model *m)
{
    struct step *s = &m->step;
    if (s->memory != NULL) {
        device_backend(m->device)->buffer_free(m->device, s->memory, s->memory_bytes);
    }
    for (uint32_t i = 0; i < MODEL_STEPS_IN_FLIGHT; i++) {
        struct step_staging *g = &s->staging[i];
        mem_free(g->ids);
        mem_free(g->positions);
        mem_free(g->out_rows);
        mem_free(g->spans);
        mem_free(g->samples);
        mem_free(g->tables);
    }
}

/* ---- filling a step ---- */

static int span_check(const struct model *m, const struct span *sp, uint32_t index, uint32_t rows, struct err *err)
{
    if (sp->row_count == 0 || sp->row_count > m->step.rows_max - rows || sp->out_first > sp->row_count) {
        return err_set(err, ERR_ARGUMENT, "span %u: %u rows after %u, first out row %u: expected 1 to %u rows in all", index,
                       sp->row_count, rows, sp->out_first, m->step.rows_max);
    }
    uint64_t end = (uint64_t)sp->position + sp->row_count;
    if (kv_seq_early(sp->seq) && end > m->opt.kv_start) {
        return err_set(err, ERR_ARGUMENT, "span %u: positions %u to %llu cross kv start %u", index, sp->position, (unsigned long long)end,
                       m->opt.kv_start);
    }
    if (sp->position < kv_seq_covered(sp->seq) || end > kv_seq_room(sp->seq) || end > m->context) {
        return err_set(err, ERR_ARGUMENT, "span %u: positions %u to %llu: the sequence covers %u and has room for %u", index,
                       sp->position, (unsigned long long)end, kv_seq_covered(sp->seq),
                       kv_seq_room(sp->seq));
    }
    if (sp->slot != NULL && sp->row_count != 1) {
        return err_set(err, ERR_ARGUMENT, "span %u: %u rows: a slot stands for one", index, sp->row_count);
    }
    return 0;
}

/* The ids the host knows, in the order of the step's rows. */
static int ids_fill(struct model *m, const struct span *spans, uint32_t span_count, struct err *err)
{
    uint32_t *to = m->step.host_ids;
    for (uint32_t i = 0; i < span_count; i++) {
        const struct span *sp = &spans[i];
        for (uint32_t r = 0; r < sp->row_count; r++) {
            uint32_t id = sp->slot != NULL ? 0 : sp->ids[r];
            if (id >= m->hp.vocab) {
                return err_set(err, ERR_ARGUMENT, "span %u: id %u: the vocabulary has %u", i, id, m->hp.vocab);
            }
            *to++ = id;
        }
    }
    return 0;
}

/* The sequence's tables of all groups, at the same place in each group's array. */
static uint32_t tables_put(struct step *s, const struct span *spans, uint32_t index)
{
    const struct kv_seq *seq = spans[index].seq;
    if (index > 0 && spans[index - 1].seq == seq) {
        return s->host_spans[index - 1].table_first;
    }
    uint32_t first = s->tables_used, longest = 0;
    for (uint32_t g = 0; g < kv_group_count(s->kv); g++) {
        uint32_t len = kv_table_len(seq, g);
        kv_table_copy(seq, g, s->host_tables + (size_t)g * s->tables_cap + first);
        longest = len > longest ? len : longest;
    }
    s->tables_used += longest;
    return first;
}

/* The spans again, those of early sequences first: attention runs over each kind's pages. */
static void spans_part(struct step *s, const struct span *spans)
{
    struct kv_span *to = s->host_spans + s->span_count;
    for (int late = 0; late < 2; late++) {
        for (uint32_t i = 0; i < s->span_count; i++) {
            if (kv_seq_early(spans[i].seq) != late) {
                *to++ = s->host_spans[i];
            }
        }
        s->early_count = late ? s->early_count : (uint32_t)(to - s->host_spans) - s->span_count;
    }
}

uint32_t step_parts(const struct model *m, uint32_t layer, struct step_part out[2])
{
    const struct step *s = &m->step;
    uint32_t n = 0;
    for (int early = m->opt.kv_start != 0; early >= 0; early--) {
        uint32_t count = early ? s->early_count : s->span_count - s->early_count;
        const struct kv_span *spans = m->opt.kv_start != 0 ? s->spans + s->span_count + (early ? 0 : s->early_count) : s->spans;
        if (count != 0) {
            out[n++] = (struct step_part){.layer = kv_layer_view(s->kv, layer, early), .spans = spans, .span_count = count,
                                          .tables = s->tables + (size_t)kv_layer_group(s->kv, layer, early) * s->tables_cap};
        }
    }
    return n;
}

static int step_fill(struct model *m, struct kv *kv, const struct span *spans, uint32_t span_count, struct err *err)
{
    struct step *s = &m->step;
    s->kv = kv;
    s->rows = s->out_count = s->tables_used = s->early_count = s->copies = 0;
    s->span_count = span_count;
    for (uint32_t i = 0; i < span_count; i++) {
        const struct span *sp = &spans[i];
        int rc = span_check(m, sp, i, s->rows, err);
        if (rc != 0) {
            return rc;
        }
        s->copies |= sp->hidden != NULL || sp->logits != NULL;
        s->host_spans[i] = (struct kv_span){s->rows, sp->row_count, sp->position, tables_put(s, spans, i)};
        for (uint32_t r = 0; r < sp->row_count; r++) {
            s->host_positions[s->rows] = sp->position + r;
            if (r >= sp->out_first) {
                uint32_t out = r - sp->out_first;
                s->host_samples[s->out_count] = sp->sample != NULL ? sp->sample[out] : (struct sample_row){.score_id = -1};
                s->host_out_rows[s->out_count++] = s->rows;
            }
            s->rows++;
        }
    }
    if (m->opt.kv_start != 0) {
        spans_part(s, spans);
    }
    return s->held ? 0 : ids_fill(m, spans, span_count, err);
}

static int copy_in(struct model *m, void *dst, const void *src, size_t bytes, struct err *err)
{
    struct op_copy_in op = {dst, src, bytes};
    return bytes != 0 ? op_copy_in(m->device, &op, err) : 0;
}

/* Ids that earlier steps choose: the queue is in order, so they are there when this step begins. */
static int slots_fill(struct model *m, const struct span *spans, struct err *err)
{
    struct step *s = &m->step;
    int rc = 0;
    for (uint32_t i = 0; i < s->span_count && rc == 0; i++) {
        struct op_copy op = {s->ids + s->host_spans[i].row_first, spans[i].slot, sizeof *s->ids};
        rc = spans[i].slot != NULL ? op_copy(m->device, &op, err) : 0;
    }
    return rc;
}

static int step_upload(struct model *m, const struct span *spans, struct err *err)
{
    struct step *s = &m->step;
    int rc = kv_publish(s->kv, err);
    if (rc == 0) {
        rc = copy_in(m, s->ids, s->host_ids, s->rows * sizeof *s->ids, err);
    }
    if (rc == 0) {
        rc = slots_fill(m, spans, err);
    }
    if (rc == 0) {
        rc = copy_in(m, s->positions, s->host_positions, s->rows * sizeof *s->positions, err);
    }
    if (rc == 0) {
        rc = copy_in(m, s->out_rows, s->host_out_rows, s->out_count * sizeof *s->out_rows, err);
    }
    if (rc == 0) {
        rc = copy_in(m, s->spans, s->host_spans, (m->opt.kv_start != 0 ? 2 : 1) * s->span_count * sizeof *s->spans, err);
    }
    for (uint32_t g = 0; g < kv_group_count(s->kv) && rc == 0; g++) {
        size_t at = (size_t)g * s->tables_cap;
        rc = copy_in(m, s->tables + at, s->host_tables + at, s->tables_used * sizeof *s->tables, err);
    }
    return rc;
}

/* ---- the body ---- */

struct tensor step_rows(const struct model *m, struct tensor t)
{
    return tensor_rows(t, 0, m->step.rows);
}

const uint32_t *step_tables(const struct model *m, uint32_t layer)
{
    return m->step.tables + (size_t)kv_layer_group(m->step.kv, layer, false) * m->step.tables_cap;
}

static int step_inputs(struct model *m, struct err *err)
{
    struct step *s = &m->step;
    struct op_embed embed = {
        .w = m->weights[W_EMBED], .ids = s->ids, .y = tensor_rows(s->x, 0, s->rows), .scale = m->hp.embed_scale};
    int rc = op_embed(m->device, &embed, err);
    for (uint32_t r = 0; r < m->hp.rope_sets && rc == 0; r++) {
        struct op_rope_table rope = {.pos = s->positions, .inv_freq = m->inv_freq[r], .n = m->hp.rope[r].rot / 2,
                                     .mscale = m->rope_mscale[r], .table = tensor_rows(s->rope[r], 0, s->rows)};
        rc = op_rope_table(m->device, &rope, err);
    }
    return rc;
}

static int head_rows(struct model *m, uint32_t first, uint32_t count, struct err *err)
{
    struct step *s = &m->step;
    struct tensor out = tensor_rows(s->out, 0, count);
    struct op_gather gather = {.x = tensor_rows(s->x, 0, s->rows), .y = out, .rows = s->out_rows + first};
    struct op_norm norm = {.x = out, .y = out, .dim = m->hp.hidden, .w = m->vecs[V_FINAL_NORM], .eps = m->hp.eps, .scale = 1.0f,
                           .centred = (m->hp.flags & HP_LAYER_NORM) != 0};
    int rc = op_gather(m->device, &gather, err);
    return rc == 0 ? op_norm(m->device, &norm, err) : rc;
}

static int head_logits(struct model *m, uint32_t count, struct err *err)
{
    struct step *s = &m->step;
    struct tensor logits = tensor_rows(s->logits, 0, count);
    struct op_linear head = {.w = m->weights[W_HEAD], .x = tensor_rows(s->out, 0, count), .y = logits, .alpha = m->hp.logit_scale};
    struct op_softcap cap = {.x = logits, .cap = m->hp.final_softcap};
    int rc = op_linear(m->device, &head, err);
    return rc == 0 && cap.cap != 0.0f ? op_softcap(m->device, &cap, err) : rc;
}

/* Rows of the tile to whoever asked for them, hidden or as raw logits; the tile starts at out row `first` of the step. */
static int head_copy(struct model *m, const struct span *spans, bool hidden, uint32_t first, uint32_t count, struct err *err)
{
    struct step *s = &m->step;
    const struct tensor *rows = hidden ? &s->out : &s->logits;
    uint32_t at = 0, cols = hidden ? m->hp.hidden : m->hp.vocab; /* at: out row of the step where the span's begin */
    for (uint32_t i = 0; s->copies && i < s->span_count; i++) {
        float *wanted = hidden ? spans[i].hidden : spans[i].logits;
        uint32_t n = spans[i].row_count - spans[i].out_first;
        uint32_t from = at > first ? at : first, to = at + n < first + count ? at + n : first + count;
        for (uint32_t r = from; wanted != NULL && r < to; r++) {
            struct op_copy_out op = {wanted + (size_t)(r - at) * cols, (const float *)rows->data + (size_t)(r - first) * rows->stride,
                                     cols * sizeof(float)};
            int rc = op_copy_out(m->device, &op, err);
            if (rc != 0) {
                return rc;
            }
        }
        at += n;
    }
    return 0;
}

static bool row_wants_logits(const struct sample_row *row)
{
    return row->params != NULL || row->score_id >= 0 || row->top != 0;
}

/* A tile whose rows are wanted as they are and no further has no need of the vocabulary. */
static bool tile_wants_logits(const struct model *m, const struct span *spans, uint32_t first, uint32_t count)
{
    const struct step *s = &m->step;
    uint32_t at = 0;
    if (!s->copies) {
        return true;
    }
    for (uint32_t i = 0; i < s->span_count; i++) {
        uint32_t n = spans[i].row_count - spans[i].out_first;
        uint32_t from = at > first ? at : first, to = at + n < first + count ? at + n : first + count;
        for (uint32_t r = from; r < to; r++) {
            if (spans[i].hidden == NULL || spans[i].logits != NULL || row_wants_logits(&s->host_samples[r])) {
                return true;
            }
        }
        at += n;
    }
    return false;
}

/* Runs of rows of the tile that are sampled or scored; rows that only want logits are left out. */
static int head_sample(struct model *m, uint32_t first, uint32_t count, struct sample_result *results, struct err *err)
{
    struct step *s = &m->step;
    for (uint32_t r = 0; r < count;) {
        const struct sample_row *row = &s->host_samples[first + r];
        bool wanted = row_wants_logits(row);
        uint32_t end = r + 1;
        while (end < count && row_wants_logits(&s->host_samples[first + end]) == wanted) {
            end++;
        }
        if (wanted) {
            struct op_sample_rows op = {.logits = tensor_rows(s->logits, r, end - r), .rows = row, .results = results + first + r,
                                        .vocab = m->hp.vocab};
            int rc = op_sample_rows(m->device, &op, err);
            if (rc != 0) {
                return rc;
            }
        }
        r = end;
    }
    return 0;
}

static int step_head(struct model *m, const struct span *spans, struct sample_result *results, struct err *err)
{
    struct step *s = &m->step;
    int rc = 0;
    for (uint32_t first = 0; first < s->out_count && rc == 0; first += s->logit_rows_max) {
        uint32_t left = s->out_count - first, count = left < s->logit_rows_max ? left : s->logit_rows_max;
        rc = head_rows(m, first, count, err);
        if (rc == 0) {
            rc = head_copy(m, spans, true, first, count, err);
        }
        if (rc != 0 || !tile_wants_logits(m, spans, first, count)) {
            continue;
        }
        rc = head_logits(m, count, err);
        if (rc == 0) {
            rc = head_copy(m, spans, false, first, count, err);
        }
        if (rc == 0 && results != NULL) {
            rc = head_sample(m, first, count, results, err);
        }
    }
    return rc;
}

/* The device begins while the rest is enqueued; a layer is work enough for it to stay behind. */
static int step_layers(struct model *m, struct err *err)
{
    const struct backend *be = device_backend(m->device);
    int rc = 0;
    for (uint32_t l = 0; l < m->hp.layers && rc == 0; l++) {
        rc = m->arch->layer(m, l, err);
        if (rc != 0) {
            err_prefix(err, "layer %u", l);
        } else if (be->flush != NULL && l % FLUSH_LAYERS == 0) {
            be->flush(m->device);
        }
    }
    return rc;
}

static int step_record(struct model *m, uint64_t *event, struct err *err)
{
    const struct backend *be = device_backend(m->device);
    int rc = be->event_record(m->device, event);
    if (rc == 0) {
        return 0;
    }
    if (be->event_wait(m->device, 0, err) == 0) { /* it does not say why */
        return err_set(err, rc, "recording the step's event");
    }
    err_prefix(err, "recording the step's event");
    return rc;
}

int model_forward(struct model *m, struct kv *kv, const struct span *spans, uint32_t span_count, struct sample_result *results,
                  uint64_t *event, struct err *err)
{
    if (span_count == 0 || span_count > m->step.rows_max) {
        return err_set(err, ERR_ARGUMENT, "%u spans in a step: expected 1 to %u", span_count, m->step.rows_max);
    }
    staging_take(m);
    mem_forbid_push();
    int rc = step_fill(m, kv, spans, span_count, err);
    mem_forbid_pop();
    if (rc == 0) {
        rc = step_upload(m, spans, err);
    }
    if (rc == 0) {
        rc = step_inputs(m, err);
    }
    if (rc == 0 && m->arch->begin != NULL) {
        rc = m->arch->begin(m, err);
    }
    if (rc == 0) {
        rc = step_layers(m, err);
    }
    if (rc == 0 && m->arch->end != NULL) {
        rc = m->arch->end(m, err);
    }
    if (rc == 0) {
        rc = step_head(m, spans, results, err);
    }
    if (rc == 0) {
        rc = step_record(m, event, err);
    }
    return rc;
}

int model_wait(struct model *m, uint64_t event, struct err *err)
{
    return device_backend(m->device)->event_wait(m->device, event, err);
}

/* ---- a step that is held ---- */

void model_hold(struct model *m)
{
    m->step.held = 1;
    m->step.held_turn = m->step.staging_turn;
    device_backend(m->device)->hold(m->device);
}

void model_hold_ask(struct model *m, bool (*ask)(void *ctx), void *ctx)
{
    device_backend(m->device)->hold_ask(m->device, ask, ctx);
}

bool model_hold_went(struct model *m)
{
    bool went = m->step.held != 0 && device_backend(m->device)->hold_went(m->device);
    m->step.held = went ? 0 : m->step.held;
    return went;
}

int model_hold_ids(struct model *m, const struct span *spans, uint32_t span_count, struct err *err)
{
    return ids_fill(m, spans, span_count, err);
}

void model_hold_run(struct model *m)
{
    m->step.held = 0;
    device_backend(m->device)->hold_end(m->device, true);
}

void model_hold_drop(struct model *m, struct kv *kv)
{
    m->step.held = 0;
    m->step.staging_turn = m->step.held_turn;
    device_backend(m->device)->hold_end(m->device, false);
    kv_publish_undo(kv);
}
