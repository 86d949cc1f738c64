/* models/model.h - an opened model: architecture, weights on a device, and one forward over spans.
 *
 * Owns:       the files' mappings until weights are prepared, then the prepared weights.  Immutable after model_open, except
 *             the driver's step buffers, which the engine thread uses.
 * Invariants: 1. Every tensor of the file is bound once or named as ignored on purpose; a missing, misshaped or unknown one is
 *             an error.
 *             2. A config field that changes the arithmetic and is not known is refused by name.
 *             3. forward's rows depend only on ids, positions and state, never on what else is in the step.
 * Does not:   schedule, sample by itself, or know sockets.  Never includes a backend. */
#ifndef RH_MODELS_MODEL_H
#define RH_MODELS_MODEL_H

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "kv/kv.h"
#include "tensor/backend.h"

struct model;
struct gguf;
struct hfdir;

struct model_kv_layer { /* a layer whose state differs from the rest */
    uint32_t layer;
    enum kv_format k_format, v_format;
};

enum { MODEL_STEPS_IN_FLIGHT = 2 }; /* steps in flight at most; each has a staging of its own */

/* For measurements: which experts every row of every layer took, kept or given.  Rows are positions, so a step is of one sequence. */
struct model_routes {
    bool replay;      /* ids are given, else kept */
    uint32_t rows;    /* room */
    uint32_t *ids;    /* [layers][rows][experts_used], host */
    uint32_t *own;    /* likewise: what the rows would have chosen, kept when ids are given; or NULL */
    float *logits;    /* [layers][rows][experts] of the router, kept; or NULL */
    float *own_logits; /* likewise, of rows whose ids are given; or NULL */
};

struct model_options {
    uint32_t context;             /* 0 = the model's own */
    enum kv_format k_format, v_format;
    const struct model_kv_layer *kv_layers; /* [kv_layer_count], borrowed while the model is opened */
    uint32_t kv_layer_count;
    uint32_t kv_start;            /* rows before this position read and write f16; 0: none (kv.h) */
    uint32_t rows_max;            /* rows of a step; 0 = 512 */
    uint32_t logit_rows_max;      /* rows of one head tile; 0 = 16 */
    uint32_t steps_in_flight;     /* steps between model_forward and model_wait at a time; 0 = 1, at most MODEL_STEPS_IN_FLIGHT */
    uint32_t away_layers;         /* of the last so many layers all weights stay in the host's memory (WEIGHT_AWAY) */
    uint32_t away_experts;        /* and of the last so many layers those of the experts */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes); /* may be NULL */
    void *progress_ctx;
    struct model_routes *routes;  /* NULL: every row chooses and nothing is kept; its arrays may be set after opening */
};

/* Open a .gguf file (or the first of a split set) or a Hugging Face directory on `device`. */
int model_open(const char *path, struct device *device, const struct model_options *opt, struct model **out, struct err *err);
void model_close(struct model *m);

uint32_t model_steps_in_flight(const struct model *m); /* as it was opened for */

struct model_type_count {
    enum dtype type;
    uint32_t tensors;
    uint64_t elements, file_bytes;
};
struct model_info {
    const char *arch;             /* "llama" */
    const char *format;           /* "gguf" or "safetensors" */
    char name[128];
    uint64_t parameters, tensor_bytes, weight_bytes; /* of the files' tensors as they stand there; prepared, on the device */
    uint64_t away_bytes;          /* weights that stay in the host's memory, of a device that has its own */
    uint64_t read_bytes_per_token; /* weights one decode step reads */
    uint32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab;
    uint32_t experts, experts_used;  /* 0: none */
    uint32_t context_train, context; /* the model's, and the configured */
    struct model_type_count types[DTYPE_COUNT];
    uint32_t type_count;
    uint64_t step_bytes;          /* driver buffers + backend reserve */
    uint64_t operations_per_token; /* of the matmuls: 2 per weight */
};
const struct model_info *model_info(const struct model *m);
/* XXH3-128 of the files' tensors and header: reads all of them (seconds for large models). */
int model_content_hash(struct model *m, struct hash128 *out, struct err *err);
const struct gguf *model_gguf(const struct model *m); /* the open files, for tokenizer and template; NULL if the other kind */
struct hfdir *model_hfdir(const struct model *m);

/* The state this model needs, one entry a layer; kv_start as it was opened with. */
const struct kv_layer_spec *model_kv_layers(const struct model *m, uint32_t *count);
uint32_t model_kv_start(const struct model *m);

/* Is the file runnable here, what would it need: everything but the weights (info verb).  Prepares nothing. */
int model_inspect(const char *path, struct device *device, const struct model_options *opt, struct model **out, struct err *err);

/* ---- one step ---- */

enum span_rows { SPAN_ROWS_NONE, SPAN_ROWS_SAMPLE, SPAN_ROWS_LOGITS };

/* A run of consecutive rows of one sequence.  Values not built are refused at submit by field name. */
struct span {
    struct kv_seq *seq;        /* room was taken with kv_extend */
    uint32_t position;         /* of the first row; = covered + rows of earlier spans of this sequence in this step */
    uint32_t row_count;
    const uint32_t *ids;       /* [row_count], host */
    const uint32_t *slot;      /* one row: its id is read here when the step runs, an earlier step's result; UINT32_MAX: any state will do */
    uint32_t out_first;        /* rows [out_first, row_count) of the span go through the head; = row_count: none */
    const struct sample_row *sample; /* one per out row: what to draw / score; NULL with SPAN_ROWS_LOGITS */
    float *logits;             /* [out rows][vocab] host memory for raw logits, or NULL */
    float *hidden;             /* [out rows][hidden] host memory for what the head reads (rows after the final norm), or NULL */
};

/* Enqueue the whole step (rows <= rows_max); at most the option's steps are in flight.  Spans and what they name stay valid until its
 * event.  Results land in `results` (one per out row, in span order) when the event is done. */
int model_forward(struct model *m, struct kv *kv, const struct span *spans, uint32_t span_count, struct sample_result *results,
                  uint64_t *event, struct err *err);
int model_wait(struct model *m, uint64_t event, struct err *err);

/* A step that waits to be wanted: enqueued while the one before it runs, begun when it is known to be the one that follows.
 *
 *     model_hold -> model_forward -> model_hold_ask -> (ask: true)     it begins when the step before ends: model_hold_went says so after model_wait
 *          |              |                +---------> model_hold_run  it begins now, as if it had been enqueued now
 *          +--------------+----------------+---------> model_hold_drop nothing of it is left (room that kv_extend took for it is the caller's)
 *
 * From model_hold on nothing but that step is enqueued on the device.  The ids of its spans are read by model_hold_ids, from `ask` or before
 * model_hold_run, so they may be chosen meanwhile; spans name no slots.  One step at a time, and only with one in flight.  `ask` is called on a
 * thread of the device while the engine's thread waits (backend.h, hold_ask). */
bool model_holds(const struct model *m); /* its device can, and it was opened for one step in flight */
void model_hold(struct model *m);
void model_hold_ask(struct model *m, bool (*ask)(void *ctx), void *ctx);
bool model_hold_went(struct model *m);
int model_hold_ids(struct model *m, const struct span *spans, uint32_t span_count, struct err *err);
void model_hold_run(struct model *m);
void model_hold_drop(struct model *m, struct kv *kv);

/* The default sampling: what the model's own files name, else temperature 0 (safetensors) or 0.8 with top_p 0.95 (GGUF).  `out`
 * is always filled; false when the files name nothing. */
bool model_default_sampling(const struct model *m, struct sample_params *out);
const uint32_t *model_eos_ids(const struct model *m, uint32_t *count); /* from generation_config / config; may be 0 */

/* list of architectures, for README's table and messages */
uint32_t model_arch_count(void);
const char *model_arch_name(uint32_t i);

#endif
