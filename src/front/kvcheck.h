/* front/kvcheck.h - inside the front room only: what lib_kvcheck.c prepares and reports, and kvcheck_run.c measures. */
#ifndef RH_FRONT_KVCHECK_H
#define RH_FRONT_KVCHECK_H

#include "front/front_int.h"

/* One format's state and figures.  Without a sequence: not measured, `refused` says why. */
struct kvcheck_column {
    enum kv_format k, v;
    struct kv *kv;
    struct kv_seq *seq;
    struct err refused;
    uint64_t bits_per_position; /* of all attention layers */
    double *kl;                 /* [count] */
    uint32_t agree, found;      /* rows with the same likeliest id; needles */
    double error_k[2], error_v[2]; /* sums of squares: of the error, of the vectors */
    double tokens_per_s;
};

struct kvcheck_needle {
    uint32_t *ids; /* question and answer */
    uint32_t count, answer; /* answer: index of its first id */
};

enum { KVCHECK_NEEDLES = 5 };

struct kvcheck {
    struct rh_model *m;
    uint32_t *ids;
    uint32_t count, vocab;
    struct kvcheck_column reference; /* f32 */
    struct kvcheck_column *columns;
    uint32_t column_count;
    struct kvcheck_needle needles[KVCHECK_NEEDLES];
    uint32_t needle_count;
    float *logits[2]; /* [32][vocab] */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
};

int kvcheck_run(void *ctx, struct kv *unused, struct err *err); /* ctx: struct kvcheck */

/* ---- kept results (kvcheck_store.c) ---- */

/* Merge the figures (a JSON object as rh_kvcheck_json gives it) into what the store keeps for this model. */
int kvcheck_keep(struct rh_model *m, struct str json, struct err *err);

extern const char kvcheck_text[]; /* the built-in text */
extern const size_t kvcheck_text_bytes;

#endif
