/* front/lib_host.c - the host of the public library: device, budgets, preparation workers; log and errors. */
#include "base/log.h"
#include "base/mem.h"
#include "engine/backends.h"
#include "front/front_int.h"

#include <stdio.h>

_Static_assert(sizeof(struct rh_error) == sizeof(struct err), "the public error is the same pair");
_Static_assert((int)RH_ERR_END == (int)ERR_END && (int)RH_ERR_NOMEM == (int)ERR_NOMEM, "error numbers are the same");

int front_error(struct rh_error *out, const struct err *err, int rc)
{
    if (out && rc) {
        out->code = rc;
        memcpy(out->text, err->text, sizeof out->text);
        if (!out->text[0])
            memcpy(out->text, err_text(rc), strlen(err_text(rc)) + 1);
    }
    return rc;
}

static rh_log log_fn;

static void forward_log(enum log_level level, const char *text, void *ctx)
{
    log_fn((int)level, text, ctx);
}

void rh_log_set(rh_log sink, void *ctx, int level_max)
{
    log_fn = sink;
    log_sink_set(sink ? forward_log : NULL, ctx, (enum log_level)level_max);
}

void host_space(const struct rh_host *h, struct plan_space *out)
{
    struct device_info d;
    h->backend->device_info(h->device, &d);
    plan_space_read(&d, h->gpu_bytes, out);
}

const char *rh_backend_name(size_t i)
{
    return i < backends_count() ? backends_at((uint32_t)i)->name : NULL;
}

void rh_host_device(const struct rh_host *h, char *out, size_t out_bytes)
{
    struct device_info d;
    h->backend->device_info(h->device, &d);
    snprintf(out, out_bytes, "%s", d.text);
}

/* A budget of GPU memory without a GPU is a mistake, not a wish. */
static int take_gpu_budget(struct rh_host *h, uint64_t bytes, struct err *err)
{
    struct device_info d;
    h->backend->device_info(h->device, &d);
    h->gpu_bytes = bytes;
    if (bytes && !d.own_memory)
        return err_set(err, ERR_ARGUMENT, "a budget of GPU memory: device '%s' has no memory of its own", d.backend);
    return 0;
}

int rh_host_open(const struct rh_host_options *opt, struct rh_host **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct rh_host *h = mem_try_zero(1, sizeof *h);
    *out = NULL;
    if (!h)
        return front_error(rerr, &err, err_nomem(&err, "host", sizeof *h));
    engine_gate_init(&h->gate);
    prepare_open(&h->prepare);
    h->state_bytes = opt->state_bytes;
    int rc = 0;
    if (opt->store_dir && !(h->store_dir = mem_try_strndup(opt->store_dir, strlen(opt->store_dir))))
        rc = err_nomem(&err, "store folder", strlen(opt->store_dir));
    struct device_config cfg = {.n_threads = opt->threads, .level = opt->cpu_isa, .pin = !opt->no_pin,
                                .spin_us = opt->spin_us, .cpus_left = opt->cpus_left};
    if (rc == 0)
        rc = backends_open(opt->backend, &cfg, &h->backend, &h->device, &err);
    if (rc == 0)
        rc = take_gpu_budget(h, opt->gpu_bytes, &err);
    if (rc) {
        rh_host_close(h);
        return front_error(rerr, &err, rc);
    }
    *out = h;
    return 0;
}

void rh_host_close(struct rh_host *h)
{
    if (!h)
        return;
    prepare_close(&h->prepare);
    if (h->device)
        h->backend->device_close(h->device);
    engine_gate_free(&h->gate);
    mem_free(h->store_dir);
    mem_free(h);
}

void rh_free(void *p)
{
    mem_free(p);
}
