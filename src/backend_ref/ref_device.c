/* backend_ref/ref_device.c - the device of the reference backend: records, events, memory, weights.
 *
 * Owns:       the list of records not yet run (deferred or held), every prepared weight's values.
 * Invariants: 1. A record's parameters are a copy; what they point at is the caller's.
 *             2. Immediate mode: a record runs when it is enqueued, a held one in hold_end.  Deferred mode: all records that are not held run
 *                in order inside event_wait.
 *             3. The first failure is returned by the next event_wait and then forgotten.
 * Threads:    one. */
#include "backend_ref/backend_ref.h"
#include "backend_ref/ref_int.h"

#include "base/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { RECORD_BYTES = 352 };

struct record {
    ref_run run;
    _Alignas(16) unsigned char op[RECORD_BYTES];
};

/* process lifetime; owned by who opened it */
struct device {
    struct device_head head;
    bool deferred;
    struct record *records; /* [record_count], deferred or held */
    size_t record_count, record_cap;
    bool held;
    size_t held_from;        /* records from here on are held... */
    uint64_t held_recorded;  /* ...and events past this one */
    bool (*ask)(void *ctx);  /* whether they are to begin, in event_wait; NULL: nobody is asked */
    void *ask_ctx;
    bool went;
    uint64_t recorded, done; /* events */
    int failure;
};

static int device_open(const struct device_config *cfg, struct device **out, struct err *err)
{
    *out = NULL;
    if (cfg->level && strcmp(cfg->level, "deferred") != 0)
        return err_set(err, ERR_ARGUMENT, "backend 'ref': unknown level '%s', expected none or 'deferred'", cfg->level);
    struct device *d = mem_try_zero(1, sizeof *d);
    if (!d)
        return err_nomem(err, "reference device", sizeof *d);
    d->head.backend = &backend_ref;
    d->deferred = cfg->level != NULL;
    *out = d;
    return 0;
}

/* The device's own work takes scratch as it likes: the guard of steps is the host's. */
static void run_record(struct device *d, ref_run run, const void *op)
{
    int held = mem_forbid_pause(), rc = run(d, op);
    mem_forbid_resume(held);
    if (rc && !d->failure)
        d->failure = rc;
}

static void run_all(struct device *d)
{
    size_t n = d->held ? d->held_from : d->record_count;
    for (size_t i = 0; i < n; i++)
        run_record(d, d->records[i].run, d->records[i].op);
    d->record_count -= n;
    d->held_from = 0;
    if (n && d->record_count)
        memmove(d->records, d->records + n, d->record_count * sizeof *d->records);
}

/* The queue's room grows with the longest step: a device of its own would have it from the start. */
static int records_grow(struct device *d)
{
    size_t cap = d->record_cap ? 2 * d->record_cap : 64;
    int held = mem_forbid_pause();
    struct record *more = mem_try_resize(d->records, cap * sizeof *more);
    mem_forbid_resume(held);
    if (!more)
        return ERR_NOMEM;
    d->records = more;
    d->record_cap = cap;
    return 0;
}

static void device_close(struct device *d)
{
    if (!d)
        return;
    run_all(d);
    mem_free(d->records);
    mem_free(d);
}

static int enqueue(struct device *d, ref_run run, const void *op, size_t op_bytes)
{
    if (op_bytes > RECORD_BYTES)
        return ERR_INTERNAL;
    if (!d->deferred && !d->held) {
        run_record(d, run, op);
        return 0;
    }
    if (d->record_count == d->record_cap && records_grow(d))
        return ERR_NOMEM;
    struct record *r = d->records + d->record_count++;
    r->run = run;
    memcpy(r->op, op, op_bytes);
    return 0;
}

static void device_info(const struct device *d, struct device_info *out)
{
    *out = (struct device_info){.backend = "ref", .n_threads = 1, .arithmetic = 2, .levels_equal = true};
    snprintf(out->level, sizeof out->level, "%s", d->deferred ? "deferred" : "plain");
    snprintf(out->text, sizeof out->text, "reference: plain C in f32, one thread");
    out->memory_total_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    out->memory_free_bytes = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t reserve_plan(const struct device *d, const struct device_reserve *r)
{
    (void)d, (void)r;
    return 0; /* scratch comes and goes with each op */
}

static int reserve(struct device *d, const struct device_reserve *r, struct err *err)
{
    (void)d, (void)r, (void)err;
    return 0;
}

static int buffer_new(struct device *d, size_t size_bytes, void **out, struct err *err)
{
    (void)d;
    *out = mem_try_aligned(64, size_bytes ? size_bytes : 1);
    if (!*out)
        return err_nomem(err, "reference buffer", size_bytes);
    memset(*out, 0, size_bytes);
    return 0;
}

static void buffer_free(struct device *d, void *p, size_t size_bytes)
{
    (void)d, (void)size_bytes;
    mem_free(p);
}

static int buffer_copy(struct device *d, void *dst, const void *src, size_t size_bytes, struct err *err)
{
    (void)d, (void)err;
    if (size_bytes)
        memcpy(dst, src, size_bytes);
    return 0;
}

static uint32_t matrices(const struct weight_src *src)
{
    return src->n_experts ? src->n_experts : 1;
}

static int weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err)
{
    (void)d, (void)use, (void)err;
    *size_bytes = (uint64_t)matrices(src) * src->rows * src->cols * sizeof(float);
    return 0;
}

static void weight_free(struct device *d, struct weight *w)
{
    (void)d;
    if (!w)
        return;
    mem_free((void *)(uintptr_t)w->head.name);
    mem_free(w->values);
    mem_free(w);
}

/* One matrix dequantised. */
static int weight_fill(const struct weight_src *src, float *values, struct err *err)
{
    for (uint32_t r = 0; r < src->rows; r++) {
        float *row = values + (size_t)r * src->cols;
        weight_src_row(src, r, row);
        for (uint32_t c = 0; c < src->cols; c++)
            if (!isfinite(row[c]))
                return err_set(err, ERR_FORMAT, "tensor '%s': row %u, column %u is not finite", src->name, r, c);
    }
    return 0;
}

static int weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err)
{
    (void)use;
    *out = NULL;
    size_t each = (size_t)src->rows * src->cols, n = each * matrices(src);
    struct weight *w = mem_try_zero(1, sizeof *w);
    if (w) {
        w->head = (struct weight_head){src->type, src->rows, src->cols, mem_try_strndup(src->name, strlen(src->name)), src->n_experts};
        w->values = mem_try_array(n, sizeof *w->values);
    }
    if (!w || !w->head.name || !w->values) {
        weight_free(d, w);
        return err_nomem(err, src->name, n * sizeof(float));
    }
    int rc = 0;
    for (uint32_t e = 0; e < matrices(src) && !rc; e++)
        rc = weight_fill(weight_src_expert(src, e), w->values + e * each, err);
    if (rc) {
        weight_free(d, w);
        return rc;
    }
    *out = w;
    return 0;
}

static bool kv_format_supported(const struct device *d, const struct kv_layer *l)
{
    (void)d;
    return kv_layer_head_bytes(l) != 0;
}

static int event_record(struct device *d, uint64_t *out)
{
    *out = ++d->recorded;
    if (!d->deferred && !d->held)
        d->done = d->recorded;
    return 0;
}

static void hold(struct device *d)
{
    d->held = true;
    d->held_from = d->record_count;
    d->held_recorded = d->recorded;
    d->ask = NULL;
}

static void hold_ask(struct device *d, bool (*ask)(void *ctx), void *ctx)
{
    d->ask = ask;
    d->ask_ctx = ctx;
}

static bool hold_went(struct device *d)
{
    bool went = d->went;
    d->went = false;
    return went;
}

static void hold_end(struct device *d, bool run)
{
    d->held = false;
    if (!run) {
        d->record_count = d->held_from;
        d->recorded = d->held_recorded;
    } else if (!d->deferred) {
        run_all(d);
        d->done = d->recorded;
    }
}

static int event_wait(struct device *d, uint64_t event, struct err *err)
{
    if (event > d->recorded)
        return err_set(err, ERR_INTERNAL, "event %llu was never recorded", (unsigned long long)event);
    run_all(d);
    d->done = d->held ? d->held_recorded : d->recorded;
    int rc = d->failure;
    d->failure = 0;
    if (d->held && d->ask && rc == 0 && event == d->held_recorded && d->ask(d->ask_ctx)) {
        d->went = true;
        hold_end(d, true);
    }
    return rc ? err_set(err, rc, "reference backend: %s", err_text(rc)) : 0;
}

static bool event_done(struct device *d, uint64_t event)
{
    return event <= d->done;
}

/* attn_prepare and the other fusions are left to their compositions: that is what they mean. */
#define ENQUEUE_OP(name)                                                   \
    static int op_##name##_enqueue(struct device *d, const struct op_##name *op) \
    {                                                                      \
        return enqueue(d, ref_run_##name, op, sizeof *op);                 \
    }
#define NO_OP(name)
BACKEND_OPS(ENQUEUE_OP, NO_OP)
#undef ENQUEUE_OP

const struct backend backend_ref = {
    .name = "ref",
    .device_open = device_open,
    .device_close = device_close,
    .device_info = device_info,
    .reserve_plan = reserve_plan,
    .reserve = reserve,
    .buffer_new = buffer_new,
    .buffer_free = buffer_free,
    .buffer_write = buffer_copy,
    .buffer_read = buffer_copy,
    .weight_plan = weight_plan,
    .weight_prepare = weight_prepare,
    .weight_free = weight_free,
    .kv_format_supported = kv_format_supported,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .hold = hold,
    .hold_ask = hold_ask,
    .hold_went = hold_went,
    .hold_end = hold_end,
#define OP_FIELD(name) .name = op_##name##_enqueue,
    BACKEND_OPS(OP_FIELD, NO_OP)
#undef OP_FIELD
};
