/* front/lib_limits.c - see limits.h; and the same as a text of its own. */
#include "front/limits.h"

#include "backend_cpu/probe.h"
#include "front/front_int.h"
#include "backend_cuda/cuda_probe.h"

enum { REPEATS = 7, READ_BYTES = 1 << 30 };

static void add(struct limits *l, const char *key, double best, double median)
{
    l->rows[l->count++] = (struct limit){key, best, median};
}

enum { CUDA_REPEATS = 28, CUDA_MIB = 4096 };

static int measure_cuda(struct device *d, struct limits *out, struct err *err)
{
    struct cuda_limits l;
    int rc = cuda_probe(d, (size_t)CUDA_MIB << 20, CUDA_REPEATS, &l, err);
    if (rc)
        return rc;
    add(out, "read_gb_per_s", l.read.best, l.read.median);
    add(out, "copy_gb_per_s", l.copy.best, l.copy.median);
    add(out, "f16_gop_per_s", l.f16.best, l.f16.median);
    add(out, "graph_edge_us", l.edge_us.best, l.edge_us.median);
    return 0;
}

static int measure_cpu(const struct device_info *info, size_t read_bytes, struct limits *out, struct err *err)
{
    struct probe_result read, int8, f32;
    int rc = probe_read(info->n_threads, read_bytes, REPEATS, &read, err);
    if (rc == 0)
        rc = probe_int8(info->level, info->n_threads, REPEATS, &int8, err);
    if (rc == 0)
        rc = probe_fma(info->level, info->n_threads, REPEATS, &f32, err);
    if (rc)
        return rc;
    add(out, "read_gb_per_s", read.best, read.median);
    add(out, "int8_gop_per_s", int8.best, int8.median);
    add(out, "f32_gop_per_s", f32.best, f32.median);
    return 0;
}

int limits_measure(struct device *d, size_t read_bytes, struct limits *out, struct err *err)
{
    struct device_info info;
    *out = (struct limits){0};
    device_backend(d)->device_info(d, &info);
    if (strcmp(info.backend, "cuda") == 0)
        return measure_cuda(d, out, err);
    return strcmp(info.backend, "cpu") == 0 ? measure_cpu(&info, read_bytes, out, err) : 0;
}

double limits_best(const struct limits *l, const char *key)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (strcmp(l->rows[i].key, key) == 0)
            return l->rows[i].best;
    return 0;
}

void limits_put(const struct limits *l, struct buf *out)
{
    buf_z(out, "\"limits\":{");
    for (uint32_t i = 0; i < l->count; i++)
        buf_printf(out, "%s\"%s\":{\"best\":%.6g,\"median\":%.6g}", i ? "," : "", l->rows[i].key, l->rows[i].best, l->rows[i].median);
    buf_char(out, '}');
}

/* Much more than caches hold, and no more than a quarter of what is free. */
static size_t read_bytes(void)
{
    struct plan_machine m;
    plan_machine_read(&m);
    return m.available_bytes / 4 < READ_BYTES ? (size_t)m.available_bytes / 4 : READ_BYTES;
}

int rh_limits_json(struct rh_host *h, char **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct buf b = {0};
    struct limits limits;
    struct device_info d;
    struct probe_ticks from = probe_ticks_now();
    engine_gate_enter(&h->gate);
    int rc = limits_measure(h->device, read_bytes(), &limits, &err);
    engine_gate_leave(&h->gate);
    if (rc == 0 && limits.count == 0)
        rc = err_set(&err, ERR_UNSUPPORTED, "limits: backend '%s' has no probes; cpu and cuda have", h->backend->name);
    if (rc)
        return front_error(rerr, &err, rc);
    h->backend->device_info(h->device, &d);
    buf_printf(&b, "{\"backend\":\"%s\",\"level\":\"%s\",\"device\":", d.backend, d.level);
    buf_json_str(&b, str_of(d.text));
    buf_printf(&b, ",\"threads\":%u,\"memory_total_bytes\":%llu,\"memory_free_bytes\":%llu,", d.n_threads, (unsigned long long)d.memory_total_bytes,
               (unsigned long long)d.memory_free_bytes);
    limits_put(&limits, &b);
    buf_printf(&b, ",\"steal_percent\":%.3g}", probe_steal_share(from, probe_ticks_now()) * 100);
    buf_cstr(&b);
    if ((rc = buf_check(&b, "limits", &err))) {
        buf_free(&b);
        return front_error(rerr, &err, rc);
    }
    *out = b.p;
    return 0;
}
