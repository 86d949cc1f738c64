/* front/lib_info.c - everything `info` prints, as JSON. */
#include "front/front_int.h"

const char *const front_miss_names[KV_MISS_COUNT] = {
    [KV_MISS_NONE] = "none",         [KV_MISS_OFF] = "off",      [KV_MISS_EMPTY] = "empty",     [KV_MISS_KEY] = "other_key",
    [KV_MISS_DIVERGED] = "diverged", [KV_MISS_END] = "new_text", [KV_MISS_EVICTED] = "evicted", [KV_MISS_STATE] = "no_state"};
_Static_assert((int)RH_MISS_COUNT == (int)KV_MISS_COUNT, "one list of reasons");
_Static_assert((int)RH_STEP_BUCKETS == (int)ENGINE_STEP_BUCKETS, "one list of bounds");

void rh_stats(struct rh_model *m, struct rh_stats *out)
{
    struct engine_stats s = {0};
    *out = (struct rh_stats){0};
    for (int i = 0; i < RH_MISS_COUNT; i++)
        out->miss_names[i] = front_miss_names[i];
    if (!m->engine)
        return;
    engine_stats(m->engine, &s);
    out->positions_max = engine_positions_max(m->engine);
    out->waiting = s.waiting;
    out->running = s.running;
    out->steps = s.steps;
    out->rows = s.rows;
    out->preempted = s.preempted;
    out->waiting_again = s.waiting_again;
    out->prefilling = s.prefilling;
    memcpy(out->step_rows, s.step_rows, sizeof out->step_rows);
    out->cancelled = s.cancelled;
    out->cancel_steps_max = s.cancel_steps_max;
    out->failed_steps = s.failed_steps;
    out->device_failed = s.device_failed;
    out->stalled_ms = (double)engine_stalled_ns(m->engine) / 1e6;
    out->device_progress = m->host->backend->progress ? m->host->backend->progress(m->host->device) : 0;
    out->pages_free = s.kv.pages_free;
    out->pages_live = s.kv.pages_live;
    out->pages_cached = s.kv.pages_cached;
    out->state_total_bytes = s.kv.total_bytes;
    out->state_free_bytes = s.kv.free_bytes + s.kv.open_bytes;
    out->state_live_bytes = s.kv.live_bytes;
    out->state_cached_bytes = s.kv.cached_bytes;
    out->state_peak_bytes = s.state_peak_bytes;
    out->prompt_tokens = s.cache.prompt_tokens;
    out->cached_tokens = s.cache.cached_tokens;
    memcpy(out->misses, s.cache.misses, sizeof out->misses);
}

static void put_key(struct buf *b, const char *key, const char *value)
{
    buf_printf(b, "\"%s\":", key);
    if (value)
        buf_json_str(b, str_of(value));
    else
        buf_z(b, "null");
}

static void put_u64(struct buf *b, const char *key, uint64_t v)
{
    buf_printf(b, "\"%s\":%llu", key, (unsigned long long)v);
}

static void put_id(struct buf *b, const char *key, int64_t id)
{
    if (id < 0)
        buf_printf(b, "\"%s\":null,", key);
    else
        buf_printf(b, "\"%s\":%lld,", key, (long long)id);
}

static void put_model(struct buf *b, const struct rh_model *m)
{
    const struct model_info *i = model_info(m->model);
    put_key(b, "name", i->name), buf_char(b, ',');
    put_key(b, "path", m->path), buf_char(b, ',');
    put_key(b, "architecture", i->arch), buf_char(b, ',');
    put_key(b, "format", i->format), buf_char(b, ',');
    put_u64(b, "parameters", i->parameters), buf_char(b, ',');
    put_u64(b, "file_bytes", plan_file_bytes(m->path)), buf_char(b, ',');
    put_u64(b, "tensor_bytes", i->tensor_bytes), buf_char(b, ',');
    put_u64(b, "weight_bytes", i->weight_bytes), buf_char(b, ',');
    put_u64(b, "away_bytes", i->away_bytes), buf_char(b, ',');
    put_u64(b, "read_bytes_per_token", i->read_bytes_per_token), buf_char(b, ',');
    put_u64(b, "operations_per_token", i->operations_per_token), buf_char(b, ',');
    buf_printf(b, "\"layers\":%u,\"hidden\":%u,\"heads\":%u,\"kv_heads\":%u,\"head_dim\":%u,\"ffn\":%u,\"vocab\":%u,", i->layers, i->hidden,
               i->heads, i->kv_heads, i->head_dim, i->ffn, i->vocab);
    buf_printf(b, "\"context\":%u,\"context_train\":%u,\"types\":[", i->context, i->context_train);
    for (uint32_t t = 0; t < i->type_count; t++) {
        buf_printf(b, "%s{", t ? "," : "");
        put_key(b, "type", dtype_name(i->types[t].type)), buf_char(b, ',');
        put_u64(b, "tensors", i->types[t].tensors), buf_char(b, ',');
        put_u64(b, "elements", i->types[t].elements), buf_char(b, ',');
        put_u64(b, "bytes", i->types[t].file_bytes), buf_char(b, '}');
    }
    buf_char(b, ']');
}

static void put_texts(struct buf *b, const struct rh_model *m)
{
    const struct texts *t = &m->texts;
    buf_z(b, ",\"tokenizer\":{");
    put_key(b, "model", t->info.model), buf_char(b, ',');
    put_key(b, "pretok", t->info.pretok);
    buf_printf(b, ",\"vocab\":%u,\"merges\":%u,\"special\":%u,", t->info.vocab_size, t->info.merge_count, t->info.special_count);
    put_id(b, "bos", t->info.bos);
    put_id(b, "eos", t->info.eos);
    put_id(b, "unk", t->info.unk);
    put_id(b, "pad", t->info.pad);
    buf_printf(b, "\"add_bos\":%s,\"add_eos\":%s,\"end_ids\":[", t->info.add_bos ? "true" : "false", t->info.add_eos ? "true" : "false");
    for (uint32_t i = 0; i < m->end_count; i++)
        buf_printf(b, "%s%u", i ? "," : "", m->end_ids[i]);
    buf_printf(b, "]},\"chat_template\":{\"usable\":%s,\"size\":%zu", t->chat ? "true" : "false", t->template_bytes);
    if (!t->chat) {
        buf_char(b, ',');
        put_key(b, "problem", t->chat_err.text);
    }
    buf_char(b, '}');
}

static void put_sampling(struct buf *b, const struct rh_model *m)
{
    struct rh_sampling s;
    sampling_defaults(m, &s);
    buf_z(b, ",\"sampling\":{\"temperature\":");
    buf_json_f32(b, s.temperature);
    buf_printf(b, ",\"top_k\":%u,\"top_p\":", s.top_k);
    buf_json_f32(b, s.top_p);
    buf_z(b, ",\"min_p\":");
    buf_json_f32(b, s.min_p);
    buf_z(b, ",\"repetition_penalty\":");
    buf_json_f32(b, s.repetition_penalty);
    buf_char(b, '}');
}

/* K and V of all attention layers, whatever their windows. */
static double bits_per_position(const struct kv_config *kv)
{
    double bits = 0;
    for (uint32_t i = 0; i < kv->layer_count; i++) {
        const struct kv_layer_spec *l = &kv->layers[i];
        if (l->policy != KV_RECURRENT && !l->shares)
            bits += 8.0 * l->n_kv_heads * kv_layer_shape(l).head_bytes / KV_PAGE;
    }
    return bits;
}

/* What is known of earlier prompts, and how much of prompts it saved since the model was opened. */
static void put_cache(struct buf *b, const struct rh_model *m)
{
    struct engine_stats s;
    engine_stats(m->engine, &s);
    buf_z(b, ",\"cache\":{");
    put_u64(b, "live_bytes", s.kv.live_bytes), buf_char(b, ',');
    put_u64(b, "cached_bytes", s.kv.cached_bytes), buf_char(b, ',');
    put_u64(b, "free_bytes", s.kv.free_bytes + s.kv.open_bytes), buf_char(b, ',');
    put_u64(b, "prompt_tokens", s.cache.prompt_tokens), buf_char(b, ',');
    put_u64(b, "cached_tokens", s.cache.cached_tokens);
    buf_printf(b, ",\"pages\":%u,\"marks\":%u,\"sessions\":%u,\"reasons\":{", s.prefix.nodes, s.prefix.marks, s.prefix.sessions);
    for (int i = 0; i < KV_MISS_COUNT; i++) {
        buf_z(b, i ? "," : "");
        put_u64(b, front_miss_names[i], s.cache.misses[i]);
    }
    buf_z(b, "},\"evicted\":{");
    put_u64(b, "optional", s.prefix.spares_evicted), buf_char(b, ',');
    put_u64(b, "marks", s.prefix.marks_evicted), buf_char(b, ',');
    put_u64(b, "pages", s.prefix.leaves_evicted);
    buf_z(b, "}}");
}

/* What is, or would be once the weights are loaded. */
static uint64_t budget_of(const struct rh_model *m, const struct kv_config *kv)
{
    struct plan_space space;
    if (m->engine)
        return m->state_budget;
    host_space(m->host, &space);
    uint64_t first = model_info(m->model)->weight_bytes + model_info(m->model)->step_bytes;
    return plan_state_budget(kv, m->host->state_bytes, space.available_bytes > first ? space.available_bytes - first : 0);
}

static void put_state(struct buf *b, const struct rh_model *m, const struct kv_config *kv, uint32_t context)
{
    buf_z(b, ",\"state\":{\"format\":\"");
    kv_config_put(m, b);
    buf_printf(b, "\",\"kv_start\":%u,\"bytes_per_position\":%.9g,", kv->start, bits_per_position(kv) / 8);
    put_u64(b, "context", context), buf_char(b, ',');
    put_u64(b, "context_bytes", kv_plan_bytes(kv, context)), buf_char(b, ',');
    put_u64(b, "budget_bytes", budget_of(m, kv));
    if (m->engine)
        put_cache(b, m);
    buf_char(b, '}');
}

/* What is planned in a space and not there yet. */
static uint64_t still_needed(const struct plan *plan, const char *space)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->count; i++)
        if (strcmp(plan->rows[i].space, space) == 0 && plan->rows[i].planned_bytes > plan->rows[i].live_bytes)
            sum += plan->rows[i].planned_bytes - plan->rows[i].live_bytes;
    return sum;
}

static void put_plan(struct buf *b, const struct plan *plan, const struct plan_space *space)
{
    struct plan_machine machine;
    plan_machine_read(&machine);
    uint64_t needed = still_needed(plan, "host"), on_device = still_needed(plan, space->name);
    buf_z(b, ",\"memory\":[");
    for (uint32_t i = 0; i < plan->count; i++) {
        buf_printf(b, "%s{", i ? "," : "");
        put_key(b, "space", plan->rows[i].space), buf_char(b, ',');
        put_key(b, "component", plan->rows[i].component), buf_char(b, ',');
        put_u64(b, "planned", plan->rows[i].planned_bytes), buf_char(b, ',');
        put_u64(b, "live", plan->rows[i].live_bytes), buf_char(b, '}');
    }
    buf_z(b, "],\"machine\":{");
    put_u64(b, "total_bytes", machine.total_bytes), buf_char(b, ',');
    put_u64(b, "available_bytes", machine.available_bytes), buf_char(b, ',');
    put_u64(b, "rss_anon_bytes", machine.rss_anon_bytes), buf_char(b, ',');
    put_u64(b, "needed_bytes", needed);
    if (space->own) {
        buf_char(b, ','), put_u64(b, "gpu_total_bytes", space->total_bytes);
        buf_char(b, ','), put_u64(b, "gpu_available_bytes", space->available_bytes);
        buf_char(b, ','), put_u64(b, "gpu_needed_bytes", on_device);
    }
    buf_printf(b, ",\"runs\":%s}", needed <= machine.available_bytes && on_device <= space->available_bytes ? "true" : "false");
}

static void put_device(struct buf *b, const struct rh_model *m)
{
    struct device_info d;
    m->host->backend->device_info(m->host->device, &d);
    buf_z(b, ",\"device\":{");
    put_key(b, "backend", d.backend), buf_char(b, ',');
    put_key(b, "level", d.level), buf_char(b, ',');
    put_key(b, "text", d.text);
    buf_printf(b, ",\"threads\":%u,\"arithmetic\":%u}", d.n_threads, d.arithmetic);
}

/* The plan: the whole budget when the model is loaded, else what the asked context takes. */
static void make_plan(struct rh_model *m, const struct kv_config *kv, uint32_t context, const char *space, struct plan *plan)
{
    struct engine_stats stats = {0};
    if (m->engine)
        engine_stats(m->engine, &stats);
    struct plan_input in = {.model = model_info(m->model), .state_planned = m->engine ? m->state_budget : kv_plan_bytes(kv, context),
                            .state_live = stats.kv.live_bytes, .text_bytes = texts_bytes(&m->texts), .loaded = m->engine != NULL, .space = space};
    if (m->draft) {
        in.draft = model_info(m->draft);
        in.draft_state_planned = m->draft_budget;
        in.draft_state_live = stats.draft_live_bytes;
    }
    plan_make(&in, plan);
}

uint32_t rh_memory(struct rh_model *m, struct rh_memory *out, uint32_t most)
{
    struct plan plan;
    struct plan_space space;
    struct kv_config kv;
    uint32_t n = 0;
    if (!m->engine)
        return 0;
    engine_kv_config(m->model, m->host->device, m->options.rows_max, &kv);
    host_space(m->host, &space);
    make_plan(m, &kv, kv.context_max, space.name, &plan);
    for (; n < plan.count && n < most; n++)
        out[n] = (struct rh_memory){plan.rows[n].space, plan.rows[n].component, plan.rows[n].planned_bytes, plan.rows[n].live_bytes};
    return n;
}

int rh_model_info_json(struct rh_model *m, uint32_t context, char **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct buf b = {0};
    struct plan plan;
    struct plan_space space;
    struct kv_config kv;
    int rc = model_inspect_late(m, &err);
    if (rc)
        return front_error(rerr, &err, rc);
    engine_kv_config(m->model, m->host->device, m->options.rows_max, &kv);
    host_space(m->host, &space);
    make_plan(m, &kv, context ? context : kv.context_max, space.name, &plan);
    buf_char(&b, '{');
    put_model(&b, m);
    put_texts(&b, m);
    put_sampling(&b, m);
    put_state(&b, m, &kv, context ? context : kv.context_max);
    put_plan(&b, &plan, &space);
    put_device(&b, m);
    buf_z(&b, ",\"identity\":\"");
    rc = identity_put(m, &b, &err);
    buf_z(&b, "\"}");
    buf_cstr(&b);
    if (rc == 0)
        rc = buf_check(&b, "info", &err);
    if (rc) {
        buf_free(&b);
        return front_error(rerr, &err, rc);
    }
    *out = b.p;
    return 0;
}
