/* models/arch.h - inside the models room only: what an architecture is, and the opened model.
 *
 * models.c    open, close, inspect; the list of architectures
 * config.c    config.json -> hparams;   metadata.c  GGUF metadata -> hparams
 * source.c    tensors of either file kind under one name;   bind.c  the bind tables -> prepared weights
 * hparams.c   sizes and checks of what was read;   gemma.c  shared by Gemma's
 *             bind_weight.c  one weight of a table: rows, fused rows, stacks of experts
 * rope.c      inverse frequencies;   decoder.c  the pre-norm transformer layer;   recurrent.c  its recurrent blocks
 * mla.c       its latent attention;   experts.c   its mixture of experts: hyper-parameters and the block
 * driver.c    one step
 * defaults.c  sampling defaults and end ids
 * <arch>.c    one architecture each: names, defaults, what differs, bind table
 *
 * A new architecture is one file and one word in ARCH_LIST. */
#ifndef RH_MODELS_ARCH_H
#define RH_MODELS_ARCH_H

#include "format/gguf.h"
#include "format/safetensors.h"
#include "models/bind.h"
#include "models/hparams.h"
#include "models/model.h"

#define ARCH_LIST(X) X(llama) X(mistral) X(qwen2) X(qwen3) X(phi3) X(granite) X(gemma2) X(gemma3) X(lfm2) X(qwen3_5) X(glm4) X(seed_oss) \
    X(deepseek) X(glm4_moe_lite) \
    X(olmo2) X(smollm3) X(gemma4) X(qwen3_moe) X(olmo3) X(cohere2) X(apertus) \
    X(qwen3_5_moe) X(qwen3_next) X(glm4_moe) X(gpt_oss) \
    X(gemma3n) X(nemotron_h)

/* ---- architectures ---- */

struct config_reader;
struct metadata_reader;

struct arch {
    const char *name;
    const char *gguf, *gguf_experts;        /* general.architecture; of files with experts, where they have another; NULL: none */
    const char *const *model_types;         /* of config.json, NULL-terminated */
    const char *const *config_keys;         /* keys of config.json beyond the common ones */
    const char *const *metadata_keys;       /* of GGUF, after "<arch>." */
    int (*read_config)(struct hparams *hp, const struct config_reader *cfg, struct err *err);
    int (*read_metadata)(struct hparams *hp, const struct metadata_reader *md, struct err *err);
    const struct bind *binds;
    uint32_t bind_count;
    int (*layer)(struct model *m, uint32_t layer, struct err *err);
    int (*bound)(struct model *m, struct err *err); /* after the bind table; NULL: nothing */
    int (*begin)(struct model *m, struct err *err); /* between the embedding and the layers; NULL: nothing */
    int (*end)(struct model *m, struct err *err);   /* between the layers and the head; NULL: nothing */
};

#define ARCH_EXTERN(id) extern const struct arch arch_##id;
ARCH_LIST(ARCH_EXTERN)
#undef ARCH_EXTERN

/* models.c: which architecture, and its hyper-parameters, complete and checked */
int hparams_of_gguf(const struct gguf *gguf, const struct arch **arch, struct hparams *hp, struct err *err);
int hparams_of_config(yyjson_val *config, const struct arch **arch, struct hparams *hp, struct err *err);

/* ---- reading config.json (config.c) ---- */

struct config_reader {
    yyjson_val *root;  /* the text model's object */
    yyjson_val *outer; /* the file's object; == root unless nested */
    const char *where; /* for messages */
};

/* Sizes, norms, activation, biases, tying.  hp holds the architecture's defaults. */
int config_read_common(struct hparams *hp, const struct config_reader *cfg, struct err *err);
/* A key that is true or false into `flags` of hp; one that is absent changes nothing. */
int config_read_flag(struct hparams *hp, const struct config_reader *cfg, const char *key, uint32_t flags, struct err *err);
/* rope_parameters, or rope_theta with rope_scaling, into `set`; `part` names a layer type inside rope_parameters or is NULL. */
int config_read_rope(struct hparams *hp, uint32_t set, const struct config_reader *cfg, const char *part, struct err *err);
/* layer_types -> hp->sliding and hp->recurrent; `known` false when the key is absent. */
int config_read_layer_types(struct hparams *hp, const struct config_reader *cfg, bool *known, struct err *err);
/* Every key known by name? */
int config_check_keys(const struct config_reader *cfg, const struct arch *arch, struct err *err);
/* What an architecture has one of, and files may spell out: another value is an error that names the key, none says nothing. */
struct config_fact {
    const char *key, *text; /* NULL: a number, true is 1 */
    double number;
};
int config_check_facts(const struct config_reader *cfg, const struct config_fact *facts, size_t count, struct err *err);

/* ---- reading GGUF metadata (metadata.c) ---- */

struct metadata_reader {
    const struct gguf *gguf;
    const char *arch; /* prefix of its keys */
};

void metadata_key(char out[128], const struct metadata_reader *md, const char *key); /* the key's whole name */
int metadata_u32(const struct metadata_reader *md, const char *key, uint32_t *out, struct err *err);
int metadata_f32(const struct metadata_reader *md, const char *key, float *out, struct err *err);
/* attention.sliding_window_pattern: one flag a layer, or the period; `period` where the key is absent. */
int metadata_read_pattern(struct hparams *hp, const struct metadata_reader *md, uint32_t period, struct err *err);
/* The last nextn_predict_layers of the blocks that were read: not layers of a forward. */
int metadata_drop_predictors(struct hparams *hp, const struct metadata_reader *md, struct err *err);
bool metadata_has_tensor(const struct metadata_reader *md, uint32_t layer, const char *what); /* blk.<layer>.<what> */
/* One flag a layer of `blocks`; `known` false when the key is absent. */
int metadata_flags(const struct metadata_reader *md, const char *key, uint32_t blocks, uint8_t *out, bool *known, struct err *err);
int metadata_read_common(struct hparams *hp, const struct metadata_reader *md, struct err *err);
int metadata_read_rope(struct hparams *hp, const struct metadata_reader *md, struct err *err);
int metadata_check_keys(const struct metadata_reader *md, const struct arch *arch, struct err *err);

/* ---- tensors of either file kind (source.c) ---- */

struct source {
    const struct gguf *gguf; /* one of the two */
    struct hfdir *hf;
    const char *prefix;      /* HF: what stands before "model." patterns, e.g. "language_model." */
    uint8_t *marks;          /* [tensor count] ignored, bound or dropped */
};

int source_open(struct source *s, const struct gguf *gguf, struct hfdir *hf, struct err *err);
void source_close(struct source *s);
bool source_has(const struct source *s, const char *name);
bool source_has_weight(const struct source *s, const char *name); /* what source_weight would find */
bool source_conv_turned(const struct source *s, const char *name); /* a convolution [channels][taps][1], as MLX has it */
/* `name` without ".weight"; marks it.  Of a stack n_experts is set and `experts` is not: its matrices lie one behind the other. */
int source_weight(struct source *s, const char *name, struct weight_src *out, struct err *err);
uint32_t source_vec_length(const struct source *s, const char *name); /* 0: not there, or no plain vector */
/* `name` whole; rows * cols values to f32; marks it.  cols > 1: a matrix, which may have a middle dimension of 1. */
int source_vec(struct source *s, const char *name, uint32_t rows, uint32_t cols, float *out, enum dtype *type_out, struct err *err);
void source_drop(struct source *s); /* the pages of all that is bound will not be read again */
size_t source_ignore(struct source *s, const char *prefix, bool suffix); /* how many tensors */
void source_ignore_tensor(struct source *s, const char *name); /* when it is there */
size_t source_ignore_layer(struct source *s, uint32_t layer); /* all tensors of a layer, in either kind's names */
int source_check_marks(const struct source *s, struct err *err); /* names the first tensor nobody bound */

/* ---- the opened model ---- */

struct layer_weights {
    struct weight *w[LAYER_WEIGHTS];
    const float *v[LAYER_VECS]; /* device */
    float n[LAYER_NUMBERS];     /* host */
    uint64_t away_largest[NORM_INPUT_MAX]; /* bytes of weights that stay away */
};

/* what a step in flight reads of the host; unchanged until its event */
struct step_staging {
    uint32_t *ids, *positions, *out_rows, *tables;
    struct kv_span *spans;
    struct sample_row *samples;
};

/* driver.c's buffers: device memory for one step, host staging beside it.  Engine thread. */
struct step {
    uint32_t rows_max, logit_rows_max, tables_cap; /* tables_cap: entries of one group's table array */
    /* device */
    unsigned char *memory;
    size_t memory_bytes;
    uint32_t *ids, *positions, *out_rows;
    struct kv_span *spans;                          /* [rows_max]; with a kv_start as many again, early ones first */
    uint32_t *tables;                               /* [groups][tables_cap] */
    struct tensor x, normed, q, k, v, att, gate, up, block, out, logits;
    struct tensor q_gate;                           /* HP_ATTN_GATE */
    struct tensor state_in, state_gate, state_a, state_b, state_out; /* recurrent layers */
    struct tensor q_low, q_low_normed, q_latent, att_latent; /* latent attention: through q_rank; over stored vectors */
    struct tensor route_logits, expert_mid, expert_up, expert_out, shared_gate, shared_up, shared_weight; /* experts */
    uint32_t *route_ids;                            /* [rows][slots] */
    float *route_weights;
    struct tensor rope[MODEL_ROPE_SETS];
    struct tensor extra[MODEL_EXTRA];               /* hparams.extra */
    /* host */
    struct step_staging staging[MODEL_STEPS_IN_FLIGHT];
    uint32_t staging_turn, held_turn;               /* held_turn: as it was before the step that is held */
    uint32_t *host_ids, *host_positions, *host_out_rows, *host_tables; /* of the step being enqueued: of one staging */
    struct kv_span *host_spans;
    struct sample_row *host_samples;
    /* of the step being enqueued */
    uint32_t rows, out_count, span_count, tables_used, held, copies; /* held: 1, its ids are not known yet; copies: a span wants rows as they are */
    uint32_t early_count;                           /* spans of sequences before kv_start */
    struct kv *kv;
};

struct model {
    const struct arch *arch;
    struct hparams hp;
    struct device *device;
    struct gguf *gguf;
    struct hfdir *hfdir;
    struct source source;
    struct model_options opt;
    uint32_t context;
    struct model_info info;
    struct kv_layer_spec *kv_layers;
    uint32_t *eos_ids, eos_count;
    struct weight *weights[MODEL_WEIGHTS]; /* tied: both the same */
    const float *vecs[MODEL_VECS];         /* device */
    struct layer_weights *layers;
    unsigned char *vec_memory;             /* device; every vector of the model */
    size_t vec_bytes, vec_used;
    float *vec_host;                       /* while loading */
    uint64_t unsettled_bytes;              /* of weights prepared and not yet waited for */
    uint64_t away_most;                    /* of a layer's weights that stay away, the NORM_INPUT_MAX largest */
    const float *inv_freq[MODEL_ROPE_SETS]; /* device */
    float rope_mscale[MODEL_ROPE_SETS];
    struct step step;
};

/* rope.c: inverse frequencies of one set, [rot / 2], and the factor of cos and sin.  `divisors` (GGUF) may be NULL. */
int rope_frequencies(const struct rope_params *p, uint32_t context_train, uint32_t context, const float *divisors,
                     float *inv_freq, float *mscale, struct err *err);

double rope_yarn_mscale(double factor, double mscale);

/* driver.c: the spans whose K and V of a layer lie in pages of one kind, with those pages; an attention layer has one part, or with a
 * kv_start two when the step has spans of both kinds. */
struct step_part {
    const struct kv_layer *layer;
    const uint32_t *tables;
    const struct kv_span *spans;
    uint32_t span_count;
};
uint32_t step_parts(const struct model *m, uint32_t layer, struct step_part out[2]);

/* decoder.c: a layer, and its two halves */
int decoder_layer(struct model *m, uint32_t layer, struct err *err);
int decoder_mix(struct model *m, uint32_t layer, struct err *err); /* attention or what stands in its place */
int decoder_mlp(struct model *m, uint32_t layer, struct err *err);
int decoder_mlp_gate(struct model *m, uint32_t layer, struct tensor *out, struct err *err); /* of it: act(Wgate n(x)) * Wup n(x) */
/* stream += scale * [post] (W x + bias) */
int decoder_output(struct model *m, struct weight *w, const float *bias, struct tensor x, const float *post, struct err *err);
int experts_block(struct model *m, uint32_t layer, struct err *err); /* experts.c: what stands in the MLP's place */
/* Its parts: who takes x, by router's product; act(gate) * up of the chosen ones; y = or += what they make of it.  The step's choice is in between. */
int experts_route(struct model *m, uint32_t layer, struct tensor x, struct err *err);
int experts_gated(struct model *m, uint32_t layer, struct tensor x, struct err *err);
int experts_output(struct model *m, uint32_t layer, struct tensor y, bool add, struct err *err);
int experts_shared(struct model *m, uint32_t layer, struct tensor x, struct tensor y, struct err *err); /* y += of the one every row takes */
int experts_read_config(struct hparams *hp, const struct config_reader *cfg, struct err *err);
int experts_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err);
int experts_check(const struct hparams *hp, struct err *err);
/* recurrent.c: what stands in attention's place */
int recurrent_block(struct model *m, uint32_t layer, struct err *err);
/* mla.c: latent attention in attention's place, and its sizes, rope included; before and after it nothing else reads rope */
int mla_block(struct model *m, uint32_t layer, struct err *err);
int mla_read_metadata(struct hparams *hp, const struct metadata_reader *md, struct err *err);
/* driver.c */
struct tensor step_rows(const struct model *m, struct tensor t);           /* the rows of the step being enqueued */
const uint32_t *step_tables(const struct model *m, uint32_t layer);        /* page or block ids of the layer's group */
int step_open(struct model *m, struct err *err);
void step_close(struct model *m);
uint64_t step_plan_bytes(const struct model *m);
void step_reserve_sizes(const struct model *m, struct device_reserve *out);

/* defaults.c */
int model_read_eos(struct model *m, struct err *err);

#endif
