/* tests/unit/engine_rig.h - a tiny random model on backend_ref with an engine over it, and requests run to their end. */
#ifndef RH_TESTS_ENGINE_RIG_H
#define RH_TESTS_ENGINE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/mem.h"
#include "base/rng.h"
#include "engine/backends.h"
#include "engine/engine.h"

#ifndef RIG_MICRO /* a test may ask for a smaller model, a longer context, another backend */
#define RIG_MICRO 0
#endif
#ifndef RIG_CONTEXT
#define RIG_CONTEXT 512
#endif
#ifndef RIG_BACKEND
#define RIG_BACKEND "ref"
#endif
#ifndef RIG_LAYER_COUNT
#define RIG_LAYER_COUNT 2
#endif

enum { RIG_VOCAB = 64, RIG_HIDDEN = 32, RIG_HEADS = RIG_MICRO ? 1 : 8, RIG_HEAD_DIM = 64, RIG_FFN = RIG_MICRO ? 32 : 48,
       RIG_LAYERS = RIG_LAYER_COUNT, RIG_IDS_MAX = 600 };

static int rig_window; /* of every layer; 0 = none */
static bool rig_gemma; /* Gemma 3's kind: the first layer has windows of rig_window, the last one sees everything */

static uint32_t rig_seed = 7;  /* of the weights of the next model written */
static uint32_t rig_steps = 1; /* in flight, of every engine opened */

struct rig {
    char dir[64];
    struct device *device;
    struct model *model;
    struct engine *engine;
};

/* ---- the model: a safetensors folder with seeded weights ---- */

struct rig_file {
    struct buf header, data;
    uint32_t counter;
};

static inline void rig_tensor(struct rig_file *f, const char *name, uint32_t rows, uint32_t cols, float scale)
{
    size_t from = f->data.n, n = (size_t)rows * (cols ? cols : 1);
    for (size_t i = 0; i < n; i++) {
        uint32_t c[4] = {f->counter++, 0, 0, 0}, bits[4];
        rng_philox(rig_seed, c, bits);
        float v = cols ? (rng_open01(bits[0]) - 0.5f) * scale : 1.0f + (rng_open01(bits[0]) - 0.5f) * 0.2f;
        buf_put(&f->data, &v, sizeof v);
    }
    buf_printf(&f->header, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%u", f->header.n > 1 ? "," : "", name, rows);
    if (cols)
        buf_printf(&f->header, ",%u", cols);
    buf_printf(&f->header, "],\"data_offsets\":[%zu,%zu]}", from, f->data.n);
}

static inline void rig_layer(struct rig_file *f, uint32_t l)
{
    static const struct {
        const char *name;
        uint32_t rows, cols;
    } list[] = {{"input_layernorm", RIG_HIDDEN, 0}, {"post_attention_layernorm", RIG_HIDDEN, 0},
                {"self_attn.q_proj", RIG_HEADS * RIG_HEAD_DIM, RIG_HIDDEN}, {"self_attn.k_proj", RIG_HEADS * RIG_HEAD_DIM, RIG_HIDDEN},
                {"self_attn.v_proj", RIG_HEADS * RIG_HEAD_DIM, RIG_HIDDEN}, {"self_attn.o_proj", RIG_HIDDEN, RIG_HEADS * RIG_HEAD_DIM},
                {"mlp.gate_proj", RIG_FFN, RIG_HIDDEN}, {"mlp.up_proj", RIG_FFN, RIG_HIDDEN}, {"mlp.down_proj", RIG_HIDDEN, RIG_FFN}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, list[i].name);
        rig_tensor(f, name, list[i].rows, list[i].cols, 0.8f);
    }
    static const char *const gemma[] = {"pre_feedforward_layernorm", "post_feedforward_layernorm", "self_attn.q_norm", "self_attn.k_norm"};
    for (size_t i = 0; rig_gemma && i < sizeof gemma / sizeof *gemma; i++) {
        char name[128];
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l, gemma[i]);
        rig_tensor(f, name, i < 2 ? RIG_HIDDEN : RIG_HEAD_DIM, 0, 1);
    }
}

static inline void rig_architecture(struct buf *config)
{
    if (rig_gemma)
        buf_printf(config, "{\"model_type\":\"gemma3_text\",\"architectures\":[\"Gemma3ForCausalLM\"],\"sliding_window\":%d,"
                   "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"query_pre_attn_scalar\":%d,\"rope_local_base_freq\":10000.0,",
                   rig_window, RIG_HEAD_DIM);
    else if (rig_window)
        buf_printf(config, "{\"model_type\":\"mistral\",\"architectures\":[\"MistralForCausalLM\"],\"sliding_window\":%d,", rig_window);
    else
        buf_z(config, "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],");
}

static inline void rig_write(const char *dir, const char *name, const void *data, size_t n, const void *more, size_t more_n)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    if (more_n)
        assert_int_equal(fwrite(more, 1, more_n, f), more_n);
    fclose(f);
}

static inline void rig_model_write(const char *dir)
{
    struct rig_file f = {0};
    struct buf head = {0}, config = {0};
    buf_char(&f.header, '{');
    rig_tensor(&f, "model.embed_tokens.weight", RIG_VOCAB, RIG_HIDDEN, 2.0f);
    for (uint32_t l = 0; l < RIG_LAYERS; l++)
        rig_layer(&f, l);
    rig_tensor(&f, "model.norm.weight", RIG_HIDDEN, 0, 1);
    rig_tensor(&f, "lm_head.weight", RIG_VOCAB, RIG_HIDDEN, 2.0f);
    buf_char(&f.header, '}');
    while (f.header.n % 8)
        buf_char(&f.header, ' ');
    uint64_t n = f.header.n;
    buf_put(&head, &n, sizeof n);
    buf_str(&head, buf_view(&f.header));
    rig_write(dir, "model.safetensors", head.p, head.n, f.data.p, f.data.n);
    rig_architecture(&config);
    buf_printf(&config, "\"hidden_size\":%d,\"intermediate_size\":%d,"
               "\"num_hidden_layers\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,\"head_dim\":%d,\"vocab_size\":%d,"
               "\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-6,\"%s\":\"%s\",\"rope_theta\":10000.0,"
               "\"tie_word_embeddings\":false}", RIG_HIDDEN, RIG_FFN, RIG_LAYERS, RIG_HEADS, RIG_HEADS, RIG_HEAD_DIM, RIG_VOCAB, RIG_CONTEXT,
               rig_gemma ? "hidden_activation" : "hidden_act", rig_gemma ? "gelu_pytorch_tanh" : "silu");
    rig_write(dir, "config.json", config.p, config.n, NULL, 0);
    buf_free(&f.header);
    buf_free(&f.data);
    buf_free(&head);
    buf_free(&config);
}

/* ---- open and close ---- */

static struct rig rig;                  /* the test's */
static struct engine_config rig_config; /* what rig_setup opens it with */

/* Text of id i for stop strings: "<i>", so that strings can cross the border between two ids. */
static inline int rig_id_bytes(void *ctx, uint32_t id, struct buf *out)
{
    (void)ctx;
    buf_printf(out, "<%u>", id);
    return out->failed;
}

static inline void rig_engine(struct rig *r, const struct engine_config *with)
{
    struct err err = {0};
    struct engine_config cfg = *with;
    cfg.model = r->model;
    cfg.device = r->device;
    cfg.id_bytes = cfg.id_bytes ? cfg.id_bytes : rig_id_bytes;
    cfg.check_every = cfg.check_every ? cfg.check_every : 1;
    cfg.steps_in_flight = rig_steps;
    cfg.rows_max = cfg.rows_max ? cfg.rows_max : 32;
    cfg.state_bytes = cfg.state_bytes ? cfg.state_bytes : 64u << 20;
    if (engine_open(&cfg, &r->engine, &err))
        fail_msg("engine_open: %s", err.text);
}

static inline void rig_open(struct rig *r, const struct engine_config *with)
{
    struct err err = {0};
    const struct backend *b;
    const char *level = getenv("RIG_LEVEL");
    struct device_config dev = {.level = level ? level : rig_steps > 1 ? "deferred" : NULL, .n_threads = RIG_MICRO ? 1 : 0};
    struct model_options opt = {.rows_max = with->rows_max ? with->rows_max : 32, .k_format = RIG_MICRO ? KV_F32 : KV_F16,
                                .v_format = RIG_MICRO ? KV_F32 : KV_F16, .steps_in_flight = rig_steps};
    *r = (struct rig){0};
    snprintf(r->dir, sizeof r->dir, "/tmp/rig-XXXXXX");
    assert_non_null(mkdtemp(r->dir));
    rig_model_write(r->dir);
    if (backends_find(RIG_BACKEND, &b, &err) || b->device_open(&dev, &r->device, &err) || model_open(r->dir, r->device, &opt, &r->model, &err))
        fail_msg("rig: %s", err.text);
    rig_engine(r, with);
}

static inline void rig_close(struct rig *r)
{
    char command[128];
    struct engine_stats stats = {0};
    if (r->engine)
        engine_stats(r->engine, &stats);
    assert_int_equal(stats.check_failures, 0);
    assert_int_equal(mem_forbidden_count(), 0); /* no step asked for memory */
    engine_close(r->engine);
    model_close(r->model);
    device_backend(r->device)->device_close(r->device);
    snprintf(command, sizeof command, "rm -r %s", r->dir);
    assert_int_equal(system(command), 0);
}

static inline int rig_setup(void **state)
{
    (void)state;
    rig_open(&rig, &rig_config);
    return 0;
}

static inline int rig_teardown(void **state)
{
    (void)state;
    rig_close(&rig);
    return 0;
}

#define RIG_TEST(f) cmocka_unit_test_setup_teardown(f, rig_setup, rig_teardown)

/* Another engine over the same model. */
static inline void rig_reopen(const struct engine_config *with)
{
    engine_close(rig.engine);
    rig_engine(&rig, with);
}

static inline void rig_sleep_us(int64_t us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* Until nobody runs or waits, two seconds at most. */
static inline void rig_settle(struct engine_stats *stats)
{
    for (int i = 0; i < 1000; i++) {
        engine_stats(rig.engine, stats);
        if (stats->running + stats->waiting == 0)
            return;
        rig_sleep_us(2000);
    }
}

/* ---- requests ---- */

struct rig_result { /* of one choice */
    uint32_t ids[RIG_IDS_MAX], count;
    float logprobs[RIG_IDS_MAX], top_logprobs[RIG_IDS_MAX][2];
    uint32_t top_ids[RIG_IDS_MAX][2], top_counts[RIG_IDS_MAX];
    struct engine_outcome outcome;
};

static inline struct sample_params rig_greedy(void)
{
    return (struct sample_params){.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .order = {0, 1, 2, 3, 4, 5}};
}

/* One cold choice. */
static inline struct engine_request_config rig_request(int64_t max_tokens, float temperature, uint64_t seed)
{
    struct engine_request_config c = {.max_tokens = max_tokens, .sampling = rig_greedy(), .no_reuse = true, .n = 1};
    c.sampling.temperature = temperature;
    c.sampling.seed = seed;
    return c;
}

static inline void rig_penalties(struct engine_request_config *c, float repetition, float presence, float frequency, uint32_t window)
{
    c->sampling.repetition_penalty = repetition;
    c->sampling.presence_penalty = presence;
    c->sampling.frequency_penalty = frequency;
    c->penalty_window = window;
}

static inline void rig_logprobs(struct engine_request_config *c)
{
    c->logprobs = true;
    c->top = 2;
}

static inline void rig_prompt(uint32_t seed, uint32_t *ids, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t c[4] = {i, seed, 0, 0}, bits[4];
        rng_philox(3, c, bits);
        ids[i] = bits[0] % RIG_VOCAB;
    }
}

static inline struct engine_request *rig_submit(struct rig *r, const struct engine_request_config *cfg, const uint32_t *ids, uint32_t count)
{
    struct err err = {0};
    struct engine_request *q = NULL;
    if (engine_request_new(r->engine, cfg, &q, &err) || engine_submit(q, ids, count, &err))
        fail_msg("submit: %s", err.text);
    return q;
}

static inline void rig_token(struct rig_result *o, const struct engine_event *e)
{
    uint32_t i = o->count++;
    o->ids[i] = e->id;
    o->logprobs[i] = e->logprob;
    o->top_counts[i] = e->top_count;
    for (uint32_t k = 0; k < e->top_count && k < 2; k++) {
        o->top_ids[i][k] = e->top_ids[k];
        o->top_logprobs[i][k] = e->top_logprobs[k];
    }
}

/* To the end of every choice, then releases. */
static inline void rig_finish(struct engine_request *q, uint32_t n, struct rig_result *out)
{
    uint32_t done = 0;
    memset(out, 0, n * sizeof *out);
    while (done < n) {
        struct engine_event e;
        uint32_t seen = engine_request_seen(q);
        while (engine_poll(q, &e)) {
            struct rig_result *o = &out[e.choice];
            if (e.kind == ENGINE_TOKEN)
                rig_token(o, &e);
            else {
                o->outcome = *engine_request_outcome(q, e.choice);
                done++;
            }
        }
        if (done < n)
            engine_request_wait(q, seen, -1);
    }
    engine_request_release(q);
}

static inline void rig_run(struct rig *r, const struct engine_request_config *cfg, const uint32_t *ids, uint32_t count, struct rig_result *out)
{
    rig_finish(rig_submit(r, cfg, ids, count), cfg->n ? cfg->n : 1, out);
}

/* The group with one step in flight, then with two. */
#define rig_run_group(tests) \
    (cmocka_run_group_tests(tests, NULL, NULL) + (rig_steps = 2, cmocka_run_group_tests(tests, NULL, NULL)))

static inline void rig_assert_same(const struct rig_result *a, const struct rig_result *b)
{
    assert_int_equal(a->count, b->count);
    for (uint32_t i = 0; i < a->count; i++)
        if (a->ids[i] != b->ids[i])
            fail_msg("token %u: %u and %u", i, a->ids[i], b->ids[i]);
}

/* Ids, log-probabilities, best ids, how it ended. */
static inline void rig_assert_equal(const struct rig_result *a, const struct rig_result *b)
{
    rig_assert_same(a, b);
    assert_memory_equal(a->logprobs, b->logprobs, a->count * sizeof *a->logprobs);
    assert_memory_equal(a->top_counts, b->top_counts, a->count * sizeof *a->top_counts);
    assert_memory_equal(a->top_ids, b->top_ids, a->count * sizeof *a->top_ids);
    assert_memory_equal(a->top_logprobs, b->top_logprobs, a->count * sizeof *a->top_logprobs);
    assert_int_equal(a->outcome.finish, b->outcome.finish);
    assert_int_equal(a->outcome.stop, b->outcome.stop);
    assert_int_equal(a->outcome.completion_count, b->outcome.completion_count);
}

#endif
