/* tests/law/matrix.h - the axes of the law matrix and what runs one cell.
 *
 * A new feature is one word in a list of matrix_axes.c.  matrix.c chooses and counts cells; matrix_run.c runs them. */
#ifndef RH_TESTS_LAW_MATRIX_H
#define RH_TESTS_LAW_MATRIX_H

#include "engine/engine.h"

#include <stdatomic.h>
#include <stdint.h>

/* model and machine first: cells are sorted, and those of one machine share it */
enum axis { AXIS_MODEL, AXIS_KV, AXIS_MACHINE, AXIS_CACHE, AXIS_COMPANY, AXIS_CUT, AXIS_PROPOSE, AXIS_SAMPLING, AXIS_COUNT };
enum cache_word { CACHE_COLD, CACHE_HIT, CACHE_PARTIAL, CACHE_REWIND, CACHE_PREEMPT, CACHE_WORDS };
enum verdict { CELL_GOOD, CELL_WRONG, CELL_REFUSED };

struct cell {
    uint32_t word[AXIS_COUNT];
};
int cells_cover(const uint32_t *sizes, uint32_t strength, struct cell **out, uint32_t *count); /* the caller frees */
int cells_all(const uint32_t *sizes, struct cell **out, uint32_t *count);

struct machine_word { /* how a model is run */
    const char *name, *backend, *level;
    uint32_t threads, steps;
};
struct propose_word {
    const char *name;
    uint32_t propose, depth;
};
struct sampling_word {
    const char *name;
    float temperature, top_p, repetition, presence;
    uint32_t window, n, top;
    bool logprobs, some_ids;
    enum engine_pool pool; /* no answer but an embedding */
    bool begins;           /* the answer begins as one of some texts, as a required call does */
};
enum { CHOICES = 3, TOKENS = 40, TOP = 4, PROMPT = 150, MODELS_MAX = 128 };

/* what a request gave; compared whole */
struct answer {
    struct {
        uint32_t count, finish, ids[TOKENS], top_ids[TOKENS][TOP];
        float logprobs[TOKENS], top_logprobs[TOKENS][TOP];
    } choice[CHOICES];
    uint64_t embedding[2]; /* hash of the vector; 0: none */
};

/* a model opened on a device, an engine over it */
struct machine {
    bool open, preempting, refused;
    uint32_t of_model, of_kv, of_machine; /* words */
    struct device *device;
    struct model *model, *draft; /* the draft: the first model of the list with the same vocabulary */
    struct engine *engine;
};
/* a plain run's answer; processes share them, so each is computed once (or twice, by two at the same time: the same bytes) */
struct plain_answer {
    _Atomic bool there;
    struct answer answer;
};

struct matrix {
    uint32_t sizes[AXIS_COUNT], model_count;
    uint32_t machine_first; /* the axis' first word in machine_words */
    const char *models[MODELS_MAX];
    struct machine cells, plain; /* what is open: for cells, and for plain runs that are still missing */
    struct plain_answer *answers; /* [models][formats][machines][samplings], of the first machine of a backend; shared */
    size_t answer_bytes;
};

/* device: "cpu", "cuda": machines of that backend only; NULL: cpu and ref.  few: four formats. */
void matrix_open(struct matrix *m, uint32_t model_count, const char *const *models, const char *device, bool few);
void matrix_close(struct matrix *m);
enum verdict matrix_run(struct matrix *m, const struct cell *cell);
const char *matrix_axis_name(uint32_t axis);
const char *matrix_word(const struct matrix *m, uint32_t axis, uint32_t word);

/* matrix_axes.c */
extern const struct machine_word machine_words[];
extern const struct propose_word propose_words[];
extern const struct sampling_word sampling_words[];
extern const uint32_t machine_count, propose_count, sampling_count;
extern const char *const kv_words[];
extern const uint32_t kv_count;

#endif
