/* tests/model_run.h - a model, its state and one backend, for the programs that compare logits. */
#ifndef RH_TESTS_MODEL_RUN_H
#define RH_TESTS_MODEL_RUN_H

#include "backend_cpu/backend_cpu.h"
#include "backend_cuda/backend_cuda.h"
#include "backend_ref/backend_ref.h"
#include "base/mem.h"
#include "models/model.h"

#include <stdbool.h>
#include <string.h>

struct run_config {
    const char *backend; /* "ref", "cpu", or "cuda" where it was built */
    const char *level;   /* NULL = best */
    uint32_t threads;    /* 0 = all */
    uint32_t spin_us;    /* how long idle workers spin; 0 = the default */
    const char *kv;      /* as kv_formats_parse reads it */
    uint32_t context, rows_max, logit_rows_max;
    uint64_t kv_bytes;
    struct model_routes *routes; /* model_options.routes */
};

struct run {
    struct device *device;
    struct model *model;
    struct kv *kv;
};

static inline const struct backend *run_backend(const char *name)
{
    if (strcmp(name, "cuda") == 0)
        return &backend_cuda; /* NULL where it was not linked */
    return strcmp(name, "ref") == 0 ? &backend_ref : strcmp(name, "cpu") == 0 ? &backend_cpu : NULL;
}

static inline void run_close(struct run *r)
{
    const struct backend *b = r->device != NULL ? device_backend(r->device) : NULL;
    kv_close(r->kv);
    model_close(r->model);
    if (b != NULL) {
        b->device_close(r->device);
    }
    *r = (struct run){0};
}

static inline int run_open(struct run *r, const char *path, const struct run_config *cfg, struct err *err)
{
    *r = (struct run){0};
    const struct backend *b = run_backend(cfg->backend);
    struct device_config dev = {.n_threads = cfg->threads, .level = cfg->level, .spin_us = cfg->spin_us};
    int rc = b->device_open(&dev, &r->device, err);
    if (rc == 0) {
        struct model_options opt = {.context = cfg->context, .rows_max = cfg->rows_max, .logit_rows_max = cfg->logit_rows_max,
                                    .routes = cfg->routes};
        rc = kv_formats_parse(cfg->kv, strlen(cfg->kv), &opt.k_format, &opt.v_format)
                 ? err_set(err, ERR_ARGUMENT, "kv: '%s' is no format", cfg->kv)
                 : model_open(path, r->device, &opt, &r->model, err);
    }
    if (rc == 0) {
        struct kv_config kc = {.device = r->device, .rewind_slack = 64, .budget_bytes = cfg->kv_bytes,
                               .context_max = model_info(r->model)->context, .rows_max = cfg->rows_max};
        kc.layers = model_kv_layers(r->model, &kc.layer_count);
        rc = kv_open(&kc, &r->kv, err);
    }
    if (rc != 0) {
        run_close(r);
    }
    return rc;
}

/* One span of one sequence as a step of its own, not committed; logits of its rows from `out_first` on. */
static inline int run_rows(struct run *r, struct kv_seq *seq, const uint32_t *ids, uint32_t n, uint32_t out_first, float *logits,
                           struct err *err)
{
    int rc = kv_extend(r->kv, seq, n, err);
    if (rc != 0) {
        return rc;
    }
    struct span sp = {
        .seq = seq, .position = kv_seq_covered(seq), .row_count = n, .ids = ids, .out_first = out_first, .logits = logits};
    uint64_t event = 0;
    int64_t heap = mem_request_count();
    rc = model_forward(r->model, r->kv, &sp, 1, NULL, &event, err);
    if (rc == 0) {
        rc = model_wait(r->model, event, err);
    }
    if (rc == 0 && device_backend(r->device) == &backend_cpu && mem_request_count() != heap) {
        rc = err_set(err, ERR_INTERNAL, "the step took %lld blocks of heap", (long long)(mem_request_count() - heap));
    }
    return rc;
}

static inline int run_span(struct run *r, struct kv_seq *seq, const uint32_t *ids, uint32_t n, uint32_t out_first, float *logits,
                           struct err *err)
{
    int rc = run_rows(r, seq, ids, n, out_first, logits, err);
    return rc != 0 ? rc : kv_commit(r->kv, seq, ids, n, err);
}

#endif
