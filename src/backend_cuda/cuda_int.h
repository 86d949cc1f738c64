/* backend_cuda/cuda_int.h - inside the room only: the device, its queue, its weights.
 *
 * cuda_device.c  the table; opening, memory, scratch          cuda_queue.c   launches as a log, graphs, staging, events
 * cuda_weight.c  weights to packed tiles                      cuda_ops.c     ops -> launches
 * cuda_linear.c  linear in its forms                      cuda_expert.c  experts
 * cuda_attention.c  pages, attention, recurrent layers        cuda_sample.c  sample_rows
 * kernels.h      what both sides share; k_*.cu the kernels
 *
 * An op only writes to the log (struct cuda_entry).  event_record hands the log to the stream: as a graph when the same log was seen before.
 * Small copies to the device are gathered and done by one kernel before the next launch.  What comes back to the host lands in pinned memory and is
 * handed out when the event was waited for. */
#ifndef RH_CUDA_INT_H
#define RH_CUDA_INT_H

#include "backend_cuda/backend_cuda.h"
#include "backend_cuda/kernels.h"
#include "base/hash.h"

#include <cuda_runtime_api.h>

enum { CUDA_ENTRIES = 8192, CUDA_PARAMS = 4 << 20, CUDA_SLOTS = 2, CUDA_GRAPHS = 64, CUDA_SEEN = 256, CUDA_DONES = 4096,
       CUDA_SCATTERS = 1024, CUDA_SAMPLES = 64, CUDA_TILE_SETS = 4 };

struct cuda_entry {
    const void *kernel;         /* NULL: a copy */
    uint32_t grid[3], block, smem, param_at, param_bytes;
    void *dst;
    const void *src;
    size_t size_bytes;
};

/* what is to be done on the host when a slot's event has passed */
struct cuda_done {
    void *dst;                  /* bytes, or struct sample_result[] */
    const void *src;            /* pinned */
    size_t size_bytes;          /* 0: results */
    const struct sample_row *rows;
    uint32_t count;
};

/* pinned staging of one step */
struct cuda_slot {
    unsigned char *memory;
    size_t in_used, out_used, sample_used;
    cudaEvent_t passed;
    uint64_t event;             /* its number; 0: none in flight */
    bool delivered;
    struct cuda_done dones[CUDA_DONES];
    uint32_t done_count, result_used, samples;
};

/* sample results whose ids a later step may read as its input */
struct cuda_flying {
    const struct sample_result *host;
    const uint32_t *ids;
    uint32_t count;
};

struct cuda_graph {
    struct hash128 key;
    cudaGraphExec_t exec;
    uint64_t used;
};

struct cuda_tile_set { /* work lists of attention that hold for the spans in place */
    const struct kv_span *spans;
    uint32_t count, group, window, vectors, kv_heads;
    struct cuda_tiles *tiles;
};

/* process lifetime; owned by who opened it; engine thread */
struct device {
    struct device_head head;
    uint32_t index, workers;    /* multiprocessors */
    uint32_t capability;        /* 90: sm_90 */
    bool wgmma;                 /* Hopper: its instructions, and kernels that are let in early */
    uint32_t smem_max;          /* bytes of shared memory a block can have */
    bool host_buffers, in_turn; /* in_turn: no kernel is launched before the one ahead has ended */
    char name[96];
    uint64_t memory_bytes, held_bytes; /* the GPU's; what this device has of it */
    cudaStream_t stream;
    /* host buffers of tests */
    unsigned char *arena;
    size_t arena_used;
    uint32_t arena_live;
    /* the log */
    struct cuda_entry *entries;
    uint32_t entry_count;
    unsigned char *params;
    size_t param_used;
    struct cuda_slot slots[CUDA_SLOTS];
    uint32_t slot;
    bool slot_open;
    struct cuda_scatter_list *pending; /* in the open slot */
    struct cuda_p_kv_write held; /* an attn_prepare that waits: the attention behind it may do it too */
    bool held_set;
    struct cuda_p_norm head_norm; /* a norm of one row's wide heads that waits: they may be V of an attn_prepare */
    bool head_norm_set;
    struct cuda_p_expert expert; /* a few slots' products that wait for the matrix beside them */
    enum cuda_kind expert_kind;
    bool expert_set;
    struct cuda_p_row_steps steps; /* norms and scales of the same rows that wait for more of them */
    uint32_t steps_rows;
    struct op_linear router;    /* a product with what these steps give that waits too: the choice of experts behind it may share their launch */
    bool router_set;
    bool pending_copies;        /* the last pending item is device to device */
    uint64_t recorded;
    struct cuda_graph graphs[CUDA_GRAPHS];
    struct hash128 seen[CUDA_SEEN];
    uint32_t graph_count, seen_at;
    uint64_t turn;
    /* failures: pinned words the device writes */
    uint32_t *failed;           /* [0] an op, [1] number of a weight whose scales are not finite */
    int failure;
    char failure_text[200];
    /* scratch */
    struct device_reserve reserved;
    unsigned char *scratch;
    size_t scratch_bytes;
    unsigned char *near;        /* where weights that stay away are brought for ops that read them more than once */
    size_t near_bytes;
    uint16_t *packed;
    size_t packed_bytes;
    uint32_t packed_rows, *arrived; /* of attention's items; 0 between launches */
    struct cuda_groups *groups; /* slots of experts by matrix: the list, slots of packed rows, packed rows of slots */
    uint32_t *order, *place, slots_max, group_items_max;
    float *packed_scale, *partial, *work;
    struct cuda_tile_set sets[CUDA_TILE_SETS];
    uint32_t set_at, items_max, tiles_max;
    size_t partial_bytes, work_bytes;
    uint32_t *ids;              /* [slots][rows_max] drawn */
    struct cuda_logit_block *blocks;
    uint64_t *keys;
    struct cuda_sample_out *results; /* pinned [slots][rows_max] */
    struct cuda_flying flying[CUDA_SAMPLES];
    uint32_t flying_at;
    /* weights on their way */
    unsigned char *upload_host, *upload_device;
    cudaEvent_t upload_done[2];
    uint32_t upload_turn;
    uint32_t weight_number;
    char weight_names[64][128]; /* of the last ones, for messages */
};

/* model lifetime; immutable once the event after its preparation has passed */
struct weight {
    struct weight_head head;
    enum cuda_kind kind;
    uint32_t units, tiles, tile_bytes;
    uint8_t *planes;            /* NULL: for embed only */
    float *row_scale;
    struct cuda_raw raw;        /* data NULL: for linear only */
    void *raw_memory;
    size_t planes_bytes, raw_bytes;
    bool away;                  /* all of it lies in pinned memory of the host */
    char name[];
};

/* 0, or ERR_DEVICE with what failed. */
int cuda_check(cudaError_t rc, const char *what, struct err *err);

/* Every entry that reaches the runtime: its current device is the thread's, and threads differ between opening, steps and questions. */
void cuda_enter(const struct device *d);

/* Memory of the GPU, counted in held_bytes. */
int cuda_alloc(struct device *d, size_t size_bytes, const char *what, void **out, struct err *err);
void cuda_release(struct device *d, void *p, size_t size_bytes); /* NULL is legal */
/* Memory of the host that the GPU reads and writes at the same address; freed by cudaFreeHost. */
int cuda_alloc_away(size_t size_bytes, const char *what, void **out, struct err *err);

/* ---- cuda_queue.c ---- */
int cuda_queue_open(struct device *d, struct err *err);
void cuda_queue_close(struct device *d);
int cuda_launch(struct device *d, const void *kernel, uint32_t x, uint32_t y, uint32_t z, uint32_t block, uint32_t smem, const void *params,
                size_t param_bytes);
int cuda_copy(struct device *d, void *dst, const void *src, size_t size_bytes); /* device or pinned memory */
/* At once, any memory, done when it returns.  On the queue's own stream: the default one is not in order with it, and a copy from pageable
 * memory or a memset there may still be on its way when the call returns. */
cudaError_t cuda_copy_now(struct device *d, void *dst, const void *src, size_t size_bytes);
void *cuda_slot_take(struct device *d, size_t size_bytes);  /* of the step's staging, 64-byte aligned; NULL: full */
void *cuda_slot_sample(struct device *d, size_t size_bytes);
struct cuda_slot *cuda_slot_open(struct device *d); /* NULL: the device failed */
bool cuda_held(const struct device *d); /* does an op wait for those behind it? */
int cuda_held_emit(struct device *d); /* launches what waits */
int cuda_flush(struct device *d);
int cuda_finish(struct device *d, struct err *err); /* flush, wait, deliver */
int cuda_op_copy_in(struct device *d, const struct op_copy_in *op);
int cuda_op_copy_out(struct device *d, const struct op_copy_out *op);
int cuda_op_copy(struct device *d, const struct op_copy *op);
int cuda_event_record(struct device *d, uint64_t *out);
int cuda_event_wait(struct device *d, uint64_t event, struct err *err);
bool cuda_event_done(struct device *d, uint64_t event);

/* ---- cuda_weight.c ---- */
int cuda_weight_plan(struct device *d, const struct weight_src *src, unsigned use, uint64_t *size_bytes, struct err *err);
int cuda_weight_prepare(struct device *d, const struct weight_src *src, unsigned use, struct weight **out, struct err *err);
void cuda_weight_free(struct device *d, struct weight *w);

/* ---- cuda_ops.c, cuda_linear.c, cuda_expert.c, cuda_attention.c, cuda_sample.c ---- */
#define CUDA_OP(name) int cuda_op_##name(struct device *d, const struct op_##name *op);
CUDA_OP(embed)
CUDA_OP(linear)
CUDA_OP(norm)
CUDA_OP(rope_table)
CUDA_OP(rope)
CUDA_OP(gated)
CUDA_OP(add)
CUDA_OP(softcap)
CUDA_OP(gather)
CUDA_OP(xielu)
CUDA_OP(scale)
CUDA_OP(linear_heads)
CUDA_OP(route)
CUDA_OP(expert_linear)
CUDA_OP(expert_gated)
CUDA_OP(expert_output)
CUDA_OP(expert_sum)
CUDA_OP(norm_linear)
CUDA_OP(norm_gated)
CUDA_OP(kv_write)
CUDA_OP(attn_prepare)
CUDA_OP(attention)
CUDA_OP(short_conv)
CUDA_OP(delta_net)
CUDA_OP(sample_rows)
CUDA_OP(kv_convert)
CUDA_OP(blend)
CUDA_OP(match)
CUDA_OP(sparsify)
CUDA_OP(mamba)
#undef CUDA_OP
int cuda_head_norm_launch(struct device *d); /* what waits of norms of heads */
int cuda_router_launch(struct device *d); /* what waits of a router: steps, product */
int cuda_steps_launch(struct device *d); /* what waits of rows' steps */
int cuda_expert_launch(struct device *d); /* what waits of experts */
bool cuda_router_holds(struct device *d, const struct op_linear *op); /* is it done with the steps that wait? */
/* Does the op go into the launch of the experts that wait?  Then it is done. */
bool cuda_expert_takes_linear(struct device *d, const struct op_linear *op);
bool cuda_expert_takes_gated(struct device *d, const struct op_norm_gated *op);
/* cuda_linear.c, for cuda_expert.c too */
int cuda_linear_part(struct device *d, struct cuda_p_linear *p, const struct weight *w, const float *bias, const struct tensor *y, size_t *near);
int cuda_linear_pack(struct device *d, const struct tensor *x);
int cuda_linear_own(struct device *d, enum cuda_kind kind, struct cuda_p_linear *p);
int cuda_kv_write_launch(struct device *d, const struct cuda_p_kv_write *p);

#endif
