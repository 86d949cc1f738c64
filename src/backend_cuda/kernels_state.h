/* backend_cuda/kernels_state.h - parameters of the kernels that read and write sequence state, and of sampling (kernels.h has the rest). */
#ifndef RH_CUDA_KERNELS_STATE_H
#define RH_CUDA_KERNELS_STATE_H

#include "tensor/sample.h"
#include "tensor/state.h"
#include "tensor/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- state ---- */

struct cuda_plane { /* a K or V plane of a page */
    uint32_t format, code, turn, run, bits, group, groups, scales_at, minima_at;
};
struct cuda_p_kv_write { /* and attn_prepare, with q, norms and rope */
    float *q, *k, *v;
    const float *q_norm, *k_norm, *rope; /* NULL: none */
    uint32_t q_heads, q_stride, rope_stride, rope_pairs, adjacent;
    float eps;
    unsigned char *const *pages;
    const struct kv_span *spans;
    const uint32_t *tables;
    size_t offset;
    uint32_t rows, span_count, heads, d_k, d_v, k_stride, v_stride, head_bytes, k_bytes, latent;
    struct cuda_plane pk, pv;
    uint32_t *failed;
};
struct cuda_kv_side { /* a layer's pages, read or written whole */
    unsigned char *const *pages;
    size_t offset;
    uint32_t head_bytes, k_bytes;
    struct cuda_plane k, v;
};
enum { CUDA_CONVERT_PAGES = 16 };
struct cuda_p_kv_convert {
    struct cuda_kv_side from, to;
    uint32_t heads, d_k, d_v, latent, page_count, positions_last;
    uint32_t from_ids[CUDA_CONVERT_PAGES], to_ids[CUDA_CONVERT_PAGES];
    uint32_t *failed;
};
/* Work of an attention, made on the device: which rows of which span a tile has. */
struct cuda_tile {
    uint32_t span, first, count; /* vectors (row of the span, head of the group) */
    uint32_t block_first, block_count, item_first; /* KV blocks it sees; items before it, heads apart */
};
struct cuda_listed {
    struct cuda_tile tile;
    uint32_t row_first, pos_first, table_first, pad_[3]; /* of its span */
};
struct cuda_tiles {
    uint32_t tile_count, item_count, split, blocks; /* split: each item is one block, folded by attn_fold; blocks: of all tiles */
    struct cuda_listed tiles[];
};
struct cuda_p_tiles {
    const struct kv_span *spans;
    struct cuda_tiles *tiles;
    uint32_t span_count, group, tile_vectors, window, kv_heads, items_max, tiles_max, workers;
    uint32_t *failed;
};
struct cuda_p_attention {
    const float *q;
    float *y;
    unsigned char *const *pages;
    const struct kv_span *spans;
    const uint32_t *tables;
    const struct cuda_tiles *tiles;
    float *partial;             /* [item][vectors][d_v + 2] */
    size_t offset;
    uint32_t heads, kv_heads, d_k, d_v, q_stride, y_stride, head_bytes, k_bytes, window;
    float scale, softcap;
    struct cuda_plane pk, pv;
    uint32_t tile_vectors, rows, latent;
    const float *sinks;         /* [heads] or NULL */
};

struct cuda_p_attend_row { /* attention of spans of one row, and attn_prepare before it */
    struct cuda_p_attention a;
    struct cuda_p_kv_write w;
    uint32_t prepare;           /* 1: w is to be done too; q and k stay as they are */
    uint32_t early;             /* 1: tiles, spans and pages were there before the kernel ahead began */
    uint32_t *arrived;          /* [tile][kv head] items done; 0 between launches */
    uint32_t records_max, pad_; /* attend_stream: KV blocks, of all heads, whose sums `partial` has room for */
};

enum cuda_attention_kernel { CUDA_K_TILES, CUDA_K_ATTENTION, CUDA_K_ATTENTION_TALL, CUDA_K_FOLD, CUDA_K_ATTENTION_DEEP, CUDA_K_ATTENTION_COUNT };
enum { CUDA_ATTEND_DEEP_THREADS = 512, CUDA_ATTEND_DEEP_HEAD = 128 /* for wider heads */ };
uint32_t cuda_attention_deep_smem(uint32_t d_k, uint32_t d_v);
extern const void *const cuda_kernels_attention[CUDA_K_ATTENTION_COUNT];
uint32_t cuda_attention_smem(uint32_t d_k, uint32_t d_v, bool tall);
extern const void *const cuda_kernel_attend_row; /* spans of one row */
enum { CUDA_ATTEND_ROW_THREADS = 256, CUDA_ATTEND_ROW_HEAD = 128 };
uint32_t cuda_attend_row_smem(uint32_t d_k, uint32_t d_v);
enum { CUDA_ATTEND_STREAM_VECTORS = 8 /* heads of a group at most */ };
struct cuda_stream { const void *kernel; uint32_t threads, smem; }; /* many spans of one row, keys and values of d elements; kernel NULL: not for these */
struct cuda_stream cuda_kernel_attend_stream(uint32_t d, enum kv_format f);
const void *cuda_kernel_attend_tall(uint32_t d_k, uint32_t d_v); /* many rows; NULL: not for these dims */
enum { CUDA_ATTEND_TALL_THREADS = 256, CUDA_ATTEND_TALL_VECTORS = 128 };
uint32_t cuda_attend_tall_smem(uint32_t d);
const void *cuda_kernel_attend_wide(uint32_t d); /* the same on Hopper, for keys and values of d elements; NULL: not for these */
enum { CUDA_ATTEND_WIDE_THREADS = 384 };
uint32_t cuda_attend_wide_smem(uint32_t d);

struct cuda_p_state { /* short_conv, delta_net and mamba, all passes */
    float *x;                   /* short_conv: b, c, v;  delta_net: q, k, v;  mamba: x (v), B (k), C (q) */
    float *y, *a, *b;           /* mamba: dt, times */
    const float *w, *bias, *rate, *dt_bias;
    const float *skip;          /* mamba; else NULL */
    const struct kv_span *spans;
    const uint32_t *tables;
    struct state_shape shape;
    struct state_layout at;
    uint32_t span_count, x_stride, y_stride, a_stride, b_stride, tiled, rows;
    uint32_t q_at, k_at, v_at;  /* first columns of x */
    float eps, dt_least;
    float *work;                /* [pieces] scratch */
    uint32_t work_floats, pad_;
    uint32_t *failed;
    struct state_part parts[64];
};

/* ---- sampling ---- */

struct cuda_sample_row { /* sample_row and its parameters, flat: offsets from the staging of this op */
    uint32_t flags;             /* CUDA_SAMPLE_* */
    float temperature, top_n_sigma, typical_p, top_p, min_p, xtc_probability, xtc_threshold;
    float repetition, presence, frequency;
    uint32_t top_k, choice, index, seen, seen_count, patch, patch_count, banned, banned_count, mask, biases, bias_count, top;
    uint64_t seed;
    int64_t score_id;
    uint8_t order[8];
};
enum { CUDA_SAMPLE_PARAMS = 1, CUDA_SAMPLE_LOGPROB = 2, CUDA_SAMPLE_MASK = 4 };
struct cuda_sample_out { /* host memory the device writes */
    uint32_t id, top_count;
    float logprob, score_logprob;
    uint32_t top_ids[SAMPLE_TOP_MAX];
    float top_logprobs[SAMPLE_TOP_MAX];
};
struct cuda_logit_block { /* of LOGIT_BLOCK ids */
    float max, sum;
    uint32_t arg, pad_;
};
struct cuda_p_sample {
    float *logits;
    const struct cuda_sample_row *rows;
    const uint8_t *data;        /* what the offsets count from */
    struct cuda_sample_out *out;
    uint32_t *ids;              /* device: drawn ids */
    struct cuda_logit_block *blocks;
    uint64_t *keys;             /* [rows][vocab] */
    uint32_t row_count, vocab, stride, per_row;
};

#ifdef __cplusplus
}
#endif

#endif
