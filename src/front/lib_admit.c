/* front/lib_admit.c - does a model fit, before a byte of its weights is read; and which of them stay in the host's memory when a device with
 * memory of its own is too small for all. */
#include "base/log.h"
#include "front/front_int.h"

#include <string.h>

struct admission {
    struct rh_model *m;
    const char *path;
    struct model_options options;
    struct plan_space space;
    uint64_t state_bytes; /* asked for; 0: the least a sequence needs */
    uint64_t away_bytes;  /* of the last try */
    uint32_t layers;
    bool experts;
};

/* 0, ERR_NOMEM with all the numbers, or what is wrong with the files. */
static int try_away(void *ctx, struct plan_away away, struct err *err)
{
    struct admission *a = ctx;
    struct model *plan = NULL;
    struct kv_config kv;
    a->options.away_layers = away.layers;
    a->options.away_experts = away.experts;
    int rc = model_inspect(a->path, a->m->host->device, &a->options, &plan, err);
    if (rc == 0) {
        const struct model_info *info = model_info(plan);
        engine_kv_config(plan, a->m->host->device, a->m->options.rows_max, &kv);
        rc = plan_admit_device(a->path, &a->space, info, a->state_bytes ? a->state_bytes : kv_plan_bytes(&kv, 1), err);
        a->away_bytes = info->away_bytes;
        a->layers = info->layers;
        a->experts = info->experts != 0;
    }
    model_close(plan);
    return rc;
}

static int choose(struct admission *a, int32_t gpu_layers, struct plan_away *away, struct err *err)
{
    struct err full = {0};
    *away = (struct plan_away){0};
    int rc = try_away(a, *away, &full);
    uint32_t asked = gpu_layers > 0 ? (uint32_t)gpu_layers : 0;
    if (rc == ERR_NOMEM && gpu_layers == RH_GPU_LAYERS_FIT)
        return plan_fit_away(a->layers, a->experts, try_away, a, away, err);
    if ((rc == 0 || rc == ERR_NOMEM) && (gpu_layers > 0 || gpu_layers == RH_GPU_LAYERS_NONE)) {
        away->layers = asked < a->layers ? a->layers - asked : 0;
        return try_away(a, *away, err);
    }
    if (rc)
        *err = full;
    return rc;
}

int model_admit(struct rh_model *m, const char *path, struct model_options *opt, int32_t gpu_layers, uint64_t state_bytes, struct err *err)
{
    struct admission a = {.m = m, .path = path, .options = *opt, .state_bytes = state_bytes};
    struct plan_away away;
    host_space(m->host, &a.space);
    opt->away_layers = opt->away_experts = 0;
    if (!a.space.own && gpu_layers > 0)
        return err_set(err, ERR_ARGUMENT, "gpu layers %d: the device has no memory of its own, all layers are on the CPU", gpu_layers);
    if (!a.space.own)
        return plan_admit_weights(path, err);
    int rc = choose(&a, gpu_layers, &away, err);
    if (rc == 0)
        rc = plan_admit_away(path, a.away_bytes, err);
    if (rc == 0 && a.away_bytes)
        log_put(LOG_NOTICE, "%llu MiB of weights stay in the host's memory and are read from there: the experts of %u and all of %u of %u layers",
                (unsigned long long)(a.away_bytes >> 20), a.experts && away.experts > away.layers ? away.experts - away.layers : 0, away.layers, a.layers);
    opt->away_layers = away.layers;
    opt->away_experts = away.experts;
    return rc;
}
