/* front/front_int.h - inside the front only: the library's objects.
 *
 * Files: lib_host.c (host, log), lib_model.c (open, close, text verbs), lib_info.c, lib_request.c (submit), prompt.c, lib_poll.c, lib_score.c, lib_bench.c, lib_limits.c (limits.h);
 *        find.c (names of models), texts.c (tokenizer and template of a model), history.c (chats -> ids), prepare.c (preparation workers), stream.c (ids -> text with hold-back),
 *        reading.c (text -> typed events), calls.c (answers that must begin with a call), shorten.c (prompts that are too long), embedding.c,
 *        sampling.c (public sampling <-> the engine's), identity.c. */
#ifndef RH_FRONT_INT_H
#define RH_FRONT_INT_H

#include "base/buf.h"
#include "base/thread.h"
#include "chat/output.h"
#include "chat/template.h"
#include "engine/engine.h"
#include "front/history.h"
#include "models/model.h"
#include "plan/plan.h"
#include "rhapsode.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

struct gguf;
struct hfdir;

/* The public error is the same pair; this takes one over. */
int front_error(struct rh_error *out, const struct err *err, int rc);

static inline struct str front_str(struct rh_text t)
{
    return (struct str){t.p, t.n};
}

extern const char *const front_miss_names[KV_MISS_COUNT]; /* lib_info.c */

/* ---- find.c: names of models ---- */

/* A path, or a name in the store (store_dir NULL: none); *path to be mem_freed.  What cannot be a model: an error that says what to give instead. */
int find_model(const char *store_dir, const char *name, char **path, struct err *err);
int find_check(const char *path, struct err *err); /* of a path that is there */

/* ---- texts.c: what a model's files say about text ---- */

enum { OUTPUT_FORMATS_MAX = 32 };

/* model lifetime; immutable after opening except where marked */
struct texts {
    struct gguf *gguf;       /* one of the two, open for the tables borrowed from it */
    struct hfdir *hfdir;
    struct tokenizer *tokenizer;
    struct tokenizer_info info;
    struct chat_template *chat; /* NULL: chat_err says why */
    struct err chat_err;
    const struct output_format *output; /* as the template says */
    const char *call_forms[OUTPUT_FORMATS_MAX]; /* of each format, how a call begins; NULL: it has none */
    size_t template_bytes;
    enum engine_pool pool;  /* of embeddings, as the files say; not when pool_rc is set: pool_err says why */
    int pool_rc;
    struct err pool_err;
};
/* template_source: overrides the model's own; NULL. */
int texts_open(struct texts *t, const char *path, const char *template_source, struct err *err);
void texts_close(struct texts *t);
int texts_render(const struct texts *t, const struct rh_chat *chat, struct chat_rendered *out, struct err *err);
uint64_t texts_bytes(const struct texts *t); /* about what the tables take */
const char *texts_call_form(const struct texts *t, const struct output_format *f);

/* ---- embedding.c ---- */

void embedding_read(struct texts *t);
int embedding_pool(const struct texts *t, enum rh_embed asked, enum engine_pool *out, struct err *err);
void embedding_scale(const float *from, uint32_t count, float *to); /* to length 1; to may be from */

/* ---- shorten.c: prompts that are too long ---- */

struct shortening { /* of a chat; owns all */
    yyjson_doc *doc;
    uint32_t lead;        /* messages that stay in front */
    uint32_t *starts;     /* [start_count] where the rest may begin, ascending */
    uint64_t *sizes;      /* [start_count] about how large what is left then is, falling; of all: size */
    uint64_t size;
    uint32_t start_count;
    struct buf text;
};
int shorten_open(struct shortening *s, struct rh_text messages_json, struct err *err);
void shorten_close(struct shortening *s); /* a zeroed one, too */
/* The chat that goes on at starts[k]; valid until the next call. */
int shorten_messages(struct shortening *s, uint32_t k, struct rh_text *out, uint32_t *dropped, struct err *err);
/* The first start with at most so many ids.  Each try costs a rendering, so sizes and the counts of earlier tries say where to look; after
 * SHORTEN_TRIES what is known to fit is taken, though a few messages more might have stayed. */
enum { SHORTEN_GUESSES = 4, SHORTEN_TRIES = 10 };
struct shorten_search {
    const struct shortening *s;
    size_t most;
    uint32_t from, to, tries;   /* it is one of from..to; starts from `to` on are known to fit, if there are any */
    uint64_t over[2], under[2]; /* size and ids of the smallest try that was too long, of the largest that fitted */
};
void shorten_search_open(struct shorten_search *q, const struct shortening *s, size_t most, size_t ids); /* ids: of all */
bool shorten_search_next(struct shorten_search *q, uint32_t *k); /* try this one and tell; false: it is q->to (start_count: none fits) */
void shorten_search_tell(struct shorten_search *q, uint32_t k, size_t ids);
/* Down to `most` of them (at least 1, fewer than there are); returns how many went. */
uint32_t shorten_ids(struct token_ids *ids, size_t most, const struct tokenizer_info *t, bool embed);

/* ---- calls.c: answers that must begin with a call ---- */

struct call_ids;
void call_ids_free(struct call_ids *c);

struct call_choice { /* all borrowed */
    struct str tools_json;
    const char *name;  /* the tool; NULL: any */
    const char *form;  /* texts_call_form */
    const char *mark;  /* ends the reasoning block that the prompt leaves open; NULL */
};
int calls_open(struct rh_model *m, const struct call_choice *c, uint32_t vocab, struct constraint **out, struct err *err);

/* ---- prepare.c: preparation workers ---- */

struct prepare_job { /* embedded in what is prepared */
    void (*run)(struct prepare_job *job);
    struct prepare_job *next;
};
struct prepare_pool { /* owns its threads, started on first use */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    struct prepare_job *first, **last;
    pthread_t threads[2];
    uint32_t thread_count;
    bool tried, closing; /* tried: threads were started */
};
void prepare_open(struct prepare_pool *p);
int prepare_put(struct prepare_pool *p, struct prepare_job *job, struct err *err);
void prepare_close(struct prepare_pool *p); /* runs what is queued, joins */

/* ---- host and model ---- */

struct rh_host {
    const struct backend *backend;
    struct device *device;
    struct engine_gate gate;
    struct prepare_pool prepare;
    uint64_t state_bytes;
    uint64_t gpu_bytes; /* most that may be taken of the device's own memory; 0: all */
    char *store_dir; /* NULL */
    _Atomic uint32_t models;
};
void host_space(const struct rh_host *h, struct plan_space *out); /* where weights and state go: lib_host.c */

struct rh_model {
    _Atomic uint32_t refs;    /* the owner's and one per request */
    struct rh_host *host;
    char *path;
    struct texts texts;
    struct history history;
    struct model *model;      /* NULL with inspect_only until info asks */
    struct engine *engine;    /* NULL with inspect_only */
    struct model *draft;      /* NULL: none */
    struct model_options options; /* to inspect later */
    struct model_kv_layer *kv_layers; /* options.kv_layers */
    uint64_t state_budget, draft_budget;
    uint32_t step_ms;
    int32_t gpu_layers;
    double load_ms;
    uint32_t *end_ids;        /* EOS ids of tokenizer and model, ascending */
    uint32_t end_count;
    _Atomic bool closed;
    pthread_mutex_t mutex;    /* the fields below */
    bool content_known;
    struct hash128 content;
    struct call_ids *call_ids; /* NULL: not asked for yet */
};
void model_ref(struct rh_model *m);
void model_unref(struct rh_model *m);
int model_need_engine(const struct rh_model *m, struct err *err);
int model_inspect_late(struct rh_model *m, struct err *err); /* m->model is there afterwards */

/* ---- lib_admit.c ---- */

/* Before anything is read: refuses what cannot fit, with the numbers.  On a device with memory of its own it chooses which weights stay in the
 * host's (rh_model_options.gpu_layers), into *opt.  state_bytes: asked for, or 0: the least there is. */
int model_admit(struct rh_model *m, const char *path, struct model_options *opt, int32_t gpu_layers, uint64_t state_bytes, struct err *err);

/* ---- kv_config.c: formats of the state ---- */

int kv_config_read(struct rh_model *m, const struct rh_model_options *opt, struct err *err); /* into m->options */
void kv_config_put(const struct rh_model *m, struct buf *out); /* "q8:q8,3=f16:f16": default, then the layers that differ */

/* ---- kvcheck_store.c ---- */

/* What kvcheck measured of the model's formats: ERR_UNSUPPORTED with the figures when they collapse and force is off. */
int kvcheck_gate(struct rh_model *m, bool force, struct err *err);

/* ---- identity.c ---- */

int identity_content(struct rh_model *m, char hex[33], struct err *err); /* of the model's files; hashed once */
int identity_put(struct rh_model *m, struct buf *out, struct err *err); /* numeric identity, one line */

/* ---- sampling.c ---- */

void sampling_defaults(const struct rh_model *m, struct rh_sampling *out);
/* Checks ranges; fills everything but seed, choice.  Biases are borrowed as they are. */
int sampling_convert(const struct rh_sampling *in, struct sample_params *out, struct sample_bias **biases, struct err *err);

/* ---- stream.c: ids -> text, holding back what may become a stop string ---- */

/* A special token that shows no text but means something to an output parser. */
struct text_mark {
    size_t at; /* bytes of pending before it */
    uint32_t id;
};
struct text_stream { /* owns pending and marks; zero-initialise, then stream_open */
    struct detok detok;
    struct buf pending;
    size_t given;  /* bytes at the front of pending that the last take gave out */
    struct text_mark *marks; /* [mark_count], ascending */
    size_t mark_count, mark_cap;
    size_t marks_given;      /* those in what the last take gave out, the ones at its end included */
    size_t mark_bytes;       /* of the texts of marks not given out */
};
void stream_open(struct text_stream *s, bool raw_bytes);
void stream_free(struct text_stream *s);
int stream_put(struct text_stream *s, const struct tokenizer *t, uint32_t id);
int stream_mark(struct text_stream *s, uint32_t id, size_t bytes); /* after stream_put of the same id; bytes: of its own text */
int stream_end(struct text_stream *s, const struct str *stop); /* stop: the string that ended it, cut off; NULL */
/* What may be shown now; valid until the next call. */
struct str stream_take(struct text_stream *s, const struct str *stops, size_t stop_count, bool ended);

/* ---- reading.c: text -> typed events ---- */

struct reading { /* of one choice; owns the parser */
    struct output_parser *parser; /* NULL: all is text */
    bool reasons;                 /* the last take was of reasoning, its end included */
    uint32_t reasoning_tokens;
};
enum reading_calls { READING_NO_CALLS, READING_CALLS, READING_TOLD_CALLS }; /* TOLD: of the tools of tools_json only */
int reading_open(struct reading *g, const struct output_format *format, struct str tools_json, enum reading_calls calls, struct str prompt_tail, struct err *err);
void reading_free(struct reading *g);
bool reading_marks(const struct reading *g, const struct tokenizer *t, uint32_t id); /* must the stream mark it? */
/* Put what the last take of `s` gave out; `raw` (or NULL) gets it with the texts of its marks. */
int reading_take(struct reading *g, const struct tokenizer *t, struct text_stream *s, struct str text, struct buf *raw);
bool reading_next(struct reading *g, struct rh_event *out); /* kind, text and call fields; false: none waits */

/* Run one request to its end on the calling thread (measurements); events are dropped. */
int request_drain(struct engine_request *r, struct err *err);

#endif
