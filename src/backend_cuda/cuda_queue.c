/* backend_cuda/cuda_queue.c - the queue: ops as a log of launches, handed over as a graph, and what goes between host and device.
 *
 * Owns:       the log, the staging slots, the graphs.
 * Invariants: 1. Nothing reaches the stream before cuda_flush.  2. A slot is used again only when its event has passed and its results were
 *             handed out.  3. A log with the same launches and parameters is the same graph: everything that changes lies in memory.
 *             4. No allocation after opening, graphs apart (each is made when its log comes for the second time).
 * Does not:   know what kernels compute. */
#include "backend_cuda/cuda_int.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

enum { SLOT_IN = 12 << 20, SLOT_SAMPLE = 20 << 20, SLOT_OUT = 16 << 20, SLOT_BYTES = SLOT_IN + SLOT_SAMPLE + SLOT_OUT, ALIGN = 64,
       GRAPH_ENTRIES_MIN = 8, COPY_BYTES_MAX = 16 };

int cuda_check(cudaError_t rc, const char *what, struct err *err)
{
    if (rc == cudaSuccess)
        return 0;
    int code = rc == cudaErrorMemoryAllocation ? ERR_NOMEM : ERR_DEVICE;
    return err_set(err, code, "cuda: %s: %s", what, cudaGetErrorString(rc));
}

/* The first failure is kept for the next wait. */
static int note(struct device *d, cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return 0;
    if (!d->failure) {
        d->failure = ERR_DEVICE;
        snprintf(d->failure_text, sizeof d->failure_text, "cuda: %s: %s", what, cudaGetErrorString(rc));
    }
    return ERR_DEVICE;
}

/* The same of a launch: which kernel, how large. */
static int note_launch(struct device *d, cudaError_t rc, const struct cuda_entry *e)
{
    const char *name = NULL;
    if (rc == cudaSuccess)
        return 0;
    char what[140];
    if (cudaFuncGetName(&name, e->kernel) != cudaSuccess)
        name = "a kernel this GPU has no code for";
    snprintf(what, sizeof what, "launch of %.80s, %u x %u x %u blocks of %u, %u bytes", name, e->grid[0], e->grid[1], e->grid[2], e->block, e->smem);
    return note(d, rc, what);
}

void cuda_enter(const struct device *d)
{
    static _Thread_local uint32_t current; /* a thread begins with device 0 */
    if (current == d->index)
        return;
    if (cudaSetDevice((int)d->index) == cudaSuccess)
        current = d->index;
}

int cuda_queue_open(struct device *d, struct err *err)
{
    d->entries = mem_try_array(CUDA_ENTRIES, sizeof *d->entries);
    d->params = mem_try(CUDA_PARAMS);
    if (!d->entries || !d->params)
        return err_nomem(err, "cuda: log", CUDA_ENTRIES * sizeof *d->entries + CUDA_PARAMS);
    int rc = cuda_check(cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking), "stream", err);
    for (uint32_t i = 0; i < CUDA_SLOTS && rc == 0; i++) {
        void *p = NULL;
        rc = cuda_check(cudaHostAlloc(&p, SLOT_BYTES, cudaHostAllocDefault), "staging", err);
        d->slots[i].memory = p;
        if (rc == 0)
            rc = cuda_check(cudaEventCreateWithFlags(&d->slots[i].passed, cudaEventDisableTiming), "event", err);
    }
    void *words = NULL;
    if (rc == 0)
        rc = cuda_check(cudaHostAlloc(&words, 256, cudaHostAllocDefault), "staging", err);
    d->failed = words;
    if (rc == 0)
        memset(words, 0, 256);
    return rc;
}

void cuda_queue_close(struct device *d)
{
    for (uint32_t i = 0; i < d->graph_count; i++)
        cudaGraphExecDestroy(d->graphs[i].exec);
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        if (d->slots[i].passed)
            cudaEventDestroy(d->slots[i].passed);
        cudaFreeHost(d->slots[i].memory);
    }
    cudaFreeHost(d->failed);
    if (d->stream)
        cudaStreamDestroy(d->stream);
    mem_free(d->entries);
    mem_free(d->params);
}

/* ---- slots ---- */

static void deliver_results(const struct cuda_done *w)
{
    const struct cuda_sample_out *from = w->src;
    struct sample_result *to = w->dst;
    for (uint32_t i = 0; i < w->count; i++, from++, to++) {
        to->id = from->id;
        to->top_count = from->top_count;
        to->logprob = from->logprob;
        to->score_logprob = from->score_logprob;
        memcpy(to->top_ids, from->top_ids, from->top_count * sizeof *to->top_ids);
        memcpy(to->top_logprobs, from->top_logprobs, from->top_count * sizeof *to->top_logprobs);
    }
}

static void deliver(struct cuda_slot *s)
{
    for (uint32_t i = 0; i < s->done_count && !s->delivered; i++) {
        if (s->dones[i].size_bytes)
            memcpy(s->dones[i].dst, s->dones[i].src, s->dones[i].size_bytes);
        else
            deliver_results(&s->dones[i]);
    }
    s->delivered = true;
    s->done_count = 0;
}

static int slot_wait(struct device *d, struct cuda_slot *s)
{
    cuda_enter(d);
    int rc = s->event ? note(d, cudaEventSynchronize(s->passed), "step") : 0;
    if (rc == 0)
        deliver(s);
    s->event = 0;
    return rc;
}

struct cuda_slot *cuda_slot_open(struct device *d)
{
    struct cuda_slot *s = &d->slots[d->slot];
    if (d->slot_open)
        return s;
    if (slot_wait(d, s))
        return NULL;
    s->in_used = s->out_used = s->sample_used = 0;
    s->result_used = s->samples = 0;
    s->delivered = false;
    d->slot_open = true;
    d->pending = NULL;
    return s;
}

static void *take(unsigned char *from, size_t *used, size_t room, size_t size_bytes)
{
    size_t n = (size_bytes + ALIGN - 1) / ALIGN * ALIGN;
    if (n > room - *used)
        return NULL;
    *used += n;
    return from + *used - n;
}

void *cuda_slot_take(struct device *d, size_t size_bytes)
{
    struct cuda_slot *s = cuda_slot_open(d);
    return s ? take(s->memory, &s->in_used, SLOT_IN, size_bytes) : NULL;
}

void *cuda_slot_sample(struct device *d, size_t size_bytes)
{
    struct cuda_slot *s = cuda_slot_open(d);
    return s ? take(s->memory + SLOT_IN, &s->sample_used, SLOT_SAMPLE, size_bytes) : NULL;
}

/* ---- the log ---- */

static struct cuda_entry *entry_new(struct device *d)
{
    if (d->entry_count == CUDA_ENTRIES && cuda_flush(d))
        return NULL;
    struct cuda_entry *e = &d->entries[d->entry_count++];
    memset(e, 0, sizeof *e);
    return e;
}

static int launch_raw(struct device *d, const void *kernel, const uint32_t grid[3], uint32_t block, uint32_t smem, const void *params,
                      size_t param_bytes)
{
    if (d->param_used + param_bytes + ALIGN > CUDA_PARAMS && cuda_flush(d))
        return ERR_DEVICE;
    struct cuda_entry *e = entry_new(d);
    if (!e)
        return ERR_DEVICE;
    e->kernel = kernel;
    memcpy(e->grid, grid, sizeof e->grid);
    e->block = block;
    e->smem = smem;
    e->param_at = (uint32_t)d->param_used;
    e->param_bytes = (uint32_t)param_bytes;
    size_t room = (param_bytes + 15) / 16 * 16;
    memset(d->params + d->param_used + room - 16, 0, 16);
    memcpy(d->params + d->param_used, params, param_bytes);
    d->param_used += room;
    return 0;
}

static void tiles_forget(struct device *d) /* spans may be others now */
{
    for (uint32_t i = 0; i < CUDA_TILE_SETS; i++)
        d->sets[i].spans = NULL;
}

/* The gathered small copies become one launch. */
static int pending_emit(struct device *d)
{
    if (!d->pending)
        return 0;
    struct cuda_p_scatter p = {d->pending};
    const uint32_t one[3] = {1, 1, 1};
    d->pending->phases++;
    d->pending = NULL;
    tiles_forget(d);
    return launch_raw(d, cuda_kernels_rows[CUDA_K_SCATTER], one, 1024, 0, &p, sizeof p);
}

bool cuda_held(const struct device *d)
{
    return d->expert_set || d->steps.count || d->head_norm_set || d->held_set;
}

/* One of them at most waits; a norm of heads also with the attn_prepare behind it, rows' steps with the router's product behind them. */
int cuda_held_emit(struct device *d)
{
    int rc = 0;
    if (d->expert_set)
        return cuda_expert_launch(d);
    if (d->router_set)
        return cuda_router_launch(d);
    if (d->steps.count)
        return cuda_steps_launch(d);
    bool prepare = d->held_set;
    d->held_set = false; /* the launch asks for what waits */
    if (d->head_norm_set)
        rc = cuda_head_norm_launch(d);
    return rc || !prepare ? rc : cuda_kv_write_launch(d, &d->held);
}

int cuda_launch(struct device *d, const void *kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t block, uint32_t smem, const void *params,
                size_t param_bytes)
{
    const uint32_t grid[3] = {x, y, z};
    int rc = cuda_held_emit(d);
    rc = rc ? rc : cuda_slot_open(d) ? pending_emit(d) : ERR_DEVICE;
    return rc ? rc : launch_raw(d, kernel, grid, block, smem, params, param_bytes);
}

static int copy_raw(struct device *d, void *dst, const void *src, size_t size_bytes)
{
    struct cuda_entry *e = entry_new(d);
    if (!e)
        return ERR_DEVICE;
    e->dst = dst;
    e->src = src;
    e->size_bytes = size_bytes;
    return 0;
}

int cuda_copy(struct device *d, void *dst, const void *src, size_t size_bytes)
{
    int rc = cuda_held_emit(d);
    rc = rc ? rc : cuda_slot_open(d) ? pending_emit(d) : ERR_DEVICE;
    return rc ? rc : copy_raw(d, dst, src, size_bytes);
}

cudaError_t cuda_copy_now(struct device *d, void *dst, const void *src, size_t size_bytes)
{
    cudaError_t rc = cudaMemcpyAsync(dst, src, size_bytes, cudaMemcpyDefault, d->stream);
    return rc == cudaSuccess ? cudaStreamSynchronize(d->stream) : rc;
}

static int issue(struct device *d)
{
    for (uint32_t i = 0; i < d->entry_count; i++) {
        const struct cuda_entry *e = &d->entries[i];
        if (!e->kernel) {
            if (note(d, cudaMemcpyAsync(e->dst, e->src, e->size_bytes, cudaMemcpyDefault, d->stream), "copy"))
                return ERR_DEVICE;
            continue;
        }
        void *args[1] = {d->params + e->param_at};
        cudaLaunchAttribute early = {.id = cudaLaunchAttributeProgrammaticStreamSerialization, .val.programmaticStreamSerializationAllowed = 1};
        cudaLaunchConfig_t cfg = {.gridDim = {e->grid[0], e->grid[1], e->grid[2]}, .blockDim = {e->block, 1, 1}, .dynamicSmemBytes = e->smem,
                                  .stream = d->stream, .attrs = &early, .numAttrs = i == 0 || d->in_turn || !d->wgmma ? 0 : 1}; /* the first: weights that are packed now may be its own */
        if (note_launch(d, cudaLaunchKernelExC(&cfg, e->kernel, args), e))
            return ERR_DEVICE;
    }
    return 0;
}

/* ---- graphs ---- */

static struct hash128 log_key(const struct device *d)
{
    struct hash128 a = hash_xxh3(d->entries, d->entry_count * sizeof *d->entries), b = hash_xxh3(d->params, d->param_used), both[2];
    both[0] = a, both[1] = b;
    return hash_xxh3(both, sizeof both);
}

static struct cuda_graph *graph_find(struct device *d, const struct hash128 *key)
{
    for (uint32_t i = 0; i < d->graph_count; i++)
        if (memcmp(&d->graphs[i].key, key, sizeof *key) == 0)
            return &d->graphs[i];
    return NULL;
}

static bool seen_before(struct device *d, const struct hash128 *key)
{
    for (uint32_t i = 0; i < CUDA_SEEN; i++)
        if (memcmp(&d->seen[i], key, sizeof *key) == 0)
            return true;
    d->seen[d->seen_at++ % CUDA_SEEN] = *key;
    return false;
}

/* The place of a new graph: a free one, or that of the graph not used for longest. */
static struct cuda_graph *graph_place(struct device *d)
{
    if (d->graph_count < CUDA_GRAPHS)
        return &d->graphs[d->graph_count++];
    struct cuda_graph *oldest = &d->graphs[0];
    for (uint32_t i = 1; i < CUDA_GRAPHS; i++)
        oldest = d->graphs[i].used < oldest->used ? &d->graphs[i] : oldest;
    cudaGraphExecDestroy(oldest->exec);
    return oldest;
}

static struct cuda_graph *graph_make(struct device *d, const struct hash128 *key)
{
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (note(d, cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal), "capture"))
        return NULL;
    int rc = issue(d);
    if (note(d, cudaStreamEndCapture(d->stream, &graph), "capture") || rc || note(d, cudaGraphInstantiate(&exec, graph, 0), "graph")) {
        if (graph)
            cudaGraphDestroy(graph);
        return NULL;
    }
    cudaGraphDestroy(graph);
    struct cuda_graph *g = graph_place(d);
    g->key = *key;
    g->exec = exec;
    return g;
}

int cuda_flush(struct device *d)
{
    cuda_enter(d);
    int rc = cuda_held_emit(d);
    rc = rc ? rc : pending_emit(d);
    if (rc || d->entry_count == 0)
        return rc;
    struct cuda_graph *g = NULL;
    if (d->entry_count >= GRAPH_ENTRIES_MIN) {
        struct hash128 key = log_key(d);
        g = graph_find(d, &key);
        if (!g && seen_before(d, &key)) {
            g = graph_make(d, &key);
            rc = g ? 0 : ERR_DEVICE;
        }
    }
    if (g) {
        g->used = ++d->turn;
        rc = note(d, cudaGraphLaunch(g->exec, d->stream), "graph");
    } else if (rc == 0) {
        rc = issue(d);
    }
    d->entry_count = 0;
    d->param_used = 0;
    return rc;
}

/* ---- between host and device ---- */

/* Everything so far is done, results included; the slot is as new. */
static int drain(struct device *d)
{
    struct cuda_slot *s = &d->slots[d->slot];
    int rc = cuda_flush(d); /* enters */
    if (rc == 0)
        rc = note(d, cudaStreamSynchronize(d->stream), "step");
    if (rc == 0 && d->slot_open) {
        for (uint32_t i = 0; i < CUDA_SLOTS; i++)
            if (i != d->slot)
                slot_wait(d, &d->slots[i]);
        deliver(s);
        s->delivered = false;
        s->in_used = s->out_used = s->sample_used = 0;
        s->result_used = 0;
    }
    return rc;
}

/* The list of small copies, begun where there is none.  It has its place before what is copied has: without room, everything so far is done first. */
static bool pending_open(struct device *d, bool from_device)
{
    const size_t size_bytes = sizeof *d->pending + CUDA_SCATTERS * sizeof(struct cuda_scatter_item);
    if (cuda_held_emit(d))
        return false;
    if (d->pending)
        return true;
    d->pending = cuda_slot_take(d, size_bytes);
    if (!d->pending && drain(d) == 0)
        d->pending = cuda_slot_take(d, size_bytes);
    if (!d->pending)
        return false;
    d->pending->count = d->pending->phases = 0;
    d->pending_copies = from_device;
    return true;
}

static int item_add(struct device *d, void *dst, const void *src, size_t size_bytes, bool from_device)
{
    struct cuda_scatter_list *l = d->pending;
    l->phases += d->pending_copies != from_device; /* its last phase, until it is emitted */
    d->pending_copies = from_device;
    l->items[l->count++] = (struct cuda_scatter_item){dst, src, (uint32_t)size_bytes, l->phases};
    return l->count < CUDA_SCATTERS ? 0 : pending_emit(d);
}

int cuda_finish(struct device *d, struct err *err)
{
    int rc = drain(d);
    return rc ? err_set(err, rc, "%s", d->failure ? d->failure_text : "cuda: the device failed") : 0;
}

int cuda_op_copy_in(struct device *d, const struct op_copy_in *op)
{
    bool small = op->size_bytes <= 1u << 16;
    if (small && !pending_open(d, false))
        return ERR_DEVICE;
    void *stage = cuda_slot_take(d, op->size_bytes);
    if (!stage) { /* larger than what is left of the staging */
        int rc = drain(d);
        return rc ? rc : note(d, cuda_copy_now(d, op->dst, op->src, op->size_bytes), "copy");
    }
    memcpy(stage, op->src, op->size_bytes);
    return small ? item_add(d, op->dst, stage, op->size_bytes, false) : cuda_copy(d, op->dst, stage, op->size_bytes);
}

int cuda_op_copy_out(struct device *d, const struct op_copy_out *op)
{
    struct cuda_slot *s = cuda_slot_open(d);
    if (!s)
        return ERR_DEVICE;
    void *stage = s->done_count < CUDA_DONES ? take(s->memory + SLOT_IN + SLOT_SAMPLE, &s->out_used, SLOT_OUT, op->size_bytes) : NULL;
    if (!stage) {
        int rc = drain(d);
        return rc ? rc : note(d, cuda_copy_now(d, op->dst, op->src, op->size_bytes), "copy");
    }
    s->dones[s->done_count++] = (struct cuda_done){.dst = op->dst, .src = stage, .size_bytes = op->size_bytes};
    return cuda_copy(d, stage, op->src, op->size_bytes);
}

/* The drawn id behind a host result that is still on its way; NULL: none. */
static const uint32_t *flying_id(const struct device *d, const void *src)
{
    for (uint32_t i = 0; i < CUDA_SAMPLES; i++) {
        const struct cuda_flying *f = &d->flying[(d->flying_at + 2 * CUDA_SAMPLES - 1 - i) % CUDA_SAMPLES];
        const char *from = (const char *)f->host, *at = src;
        if (f->host && at >= from && at < from + f->count * sizeof *f->host)
            return f->ids + (size_t)(at - from) / sizeof *f->host;
    }
    return NULL;
}

int cuda_op_copy(struct device *d, const struct op_copy *op)
{
    const void *src = op->src;
    if (op->size_bytes == sizeof(uint32_t)) {
        const uint32_t *id = flying_id(d, src);
        src = id ? id : src;
    }
    if (op->size_bytes > COPY_BYTES_MAX)
        return cuda_copy(d, op->dst, src, op->size_bytes);
    return pending_open(d, true) ? item_add(d, op->dst, src, op->size_bytes, true) : ERR_DEVICE;
}

/* ---- events ---- */

int cuda_event_record(struct device *d, uint64_t *out)
{
    struct cuda_slot *s = cuda_slot_open(d);
    int rc = s ? cuda_flush(d) : ERR_DEVICE;
    if (rc == 0)
        rc = note(d, cudaEventRecord(s->passed, d->stream), "event");
    if (rc)
        return rc;
    tiles_forget(d);
    *out = s->event = ++d->recorded;
    d->slot = (d->slot + 1) % CUDA_SLOTS;
    d->slot_open = false;
    return 0;
}

/* Slots whose event is not past `event`, oldest first. */
static int slots_wait(struct device *d, uint64_t event)
{
    int rc = 0;
    for (uint32_t i = 0; i < CUDA_SLOTS && rc == 0; i++) {
        struct cuda_slot *s = &d->slots[(d->slot + (d->slot_open ? 1 : 0) + i) % CUDA_SLOTS];
        if (s->event && s->event <= event)
            rc = slot_wait(d, s);
    }
    return rc;
}

int cuda_event_wait(struct device *d, uint64_t event, struct err *err)
{
    if (event > d->recorded)
        return err_set(err, ERR_INTERNAL, "event %llu was never recorded", (unsigned long long)event);
    slots_wait(d, event);
    volatile uint32_t *failed = d->failed;
    int rc = d->failure;
    if (rc) {
        d->failure = 0;
        return err_set(err, rc, "%s", d->failure_text);
    }
    if (failed[1]) {
        uint32_t number = failed[1];
        failed[1] = 0;
        return err_set(err, ERR_FORMAT, "tensor '%s': expected finite scales, got one that is not (NaN, infinite or past f32's range)",
                       d->weight_names[number % 64]);
    }
    if (failed[0]) {
        failed[0] = 0;
        return err_set(err, ERR_INTERNAL, "cuda: an id, a row, a page or a span is out of range");
    }
    return 0;
}

bool cuda_event_done(struct device *d, uint64_t event)
{
    cuda_enter(d);
    for (uint32_t i = 0; i < CUDA_SLOTS; i++) {
        struct cuda_slot *s = &d->slots[i];
        if (s->event && s->event <= event && cudaEventQuery(s->passed) == cudaErrorNotReady)
            return false;
    }
    slots_wait(d, event);
    return true;
}
