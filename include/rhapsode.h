/* rhapsode.h - the Rhapsode C library: open models, submit requests, poll events, measure, keep a store of models.
 *
 * Conventions: functions return 0 or a negative RH_ERR_X and fill `struct rh_error` when one is passed.  Text is UTF-8, pointer and
 * length; strings the library returns are zero-terminated as well.  Structs passed in start as `= {0}`: zero means the default.
 * Threads: a host and a model may be used from any thread; a request is submitted, polled and freed by one thread at a time, and
 * rh_request_cancel may come from any thread. */
#ifndef RHAPSODE_H
#define RHAPSODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RH_VERSION "0.1.0"

struct rh_error {
    int code;         /* 0 or RH_ERR_X */
    char text[1024];  /* what, where, expected, got */
};

enum {
    RH_ERR_NOMEM = -1, RH_ERR_IO = -2, RH_ERR_NOT_FOUND = -3, RH_ERR_FORMAT = -4, RH_ERR_UNSUPPORTED = -5, RH_ERR_ARGUMENT = -6,
    RH_ERR_LIMIT = -7, RH_ERR_KV_FULL = -8, RH_ERR_CANCELLED = -9, RH_ERR_DEVICE = -10, RH_ERR_NET = -11, RH_ERR_TEMPLATE = -12,
    RH_ERR_BUSY = -13, RH_ERR_INTERNAL = -14, RH_ERR_END = -15
};

struct rh_text { const char *p; size_t n; };

/* ---- host: threads, devices and budgets, shared by every model opened under it ---- */

struct rh_host;
struct rh_host_options {
    const char *backend;      /* "cpu", "cuda", "cuda:1"; "ref" = the slow reference; NULL = "auto": a GPU where one can be opened, else the CPU */
    const char *cpu_isa;      /* cap of the CPU level: "ref", "avx2", "avx512", "avx512vnni"; NULL = best */
    uint32_t threads;         /* 0 = physical cores, the cgroup quota respected */
    bool no_pin;              /* leave workers unpinned */
    uint32_t spin_us;         /* how long idle workers spin before they sleep; 0 = 60 */
    uint32_t cpus_left;       /* CPUs that spinning workers leave to others; 0 = none */
    uint64_t state_bytes;     /* budget of sequence state; 0 = what the largest context of one sequence takes, within free memory */
    uint64_t gpu_bytes;       /* most of a GPU's own memory that is taken; 0 = what is free when it is needed */
    const char *store_dir;    /* NULL = $RHAPSODE_HOME or ~/.local/share/rhapsode, given by the caller's environment reading */
};
int rh_host_open(const struct rh_host_options *opt, struct rh_host **out, struct rh_error *err);
void rh_host_close(struct rh_host *h); /* every model of it must be closed */

/* What this build has: names of backends in order, NULL past the last.  And a host's device in words: "CPU, level avx2, 2 threads". */
const char *rh_backend_name(size_t i);
void rh_host_device(const struct rh_host *h, char *out, size_t out_bytes);

typedef void (*rh_log)(int level, const char *text, void *ctx); /* 0 error, 1 warning, 2 notice, 3 debug */
void rh_log_set(rh_log sink, void *ctx, int level_max);

/* ---- model ---- */

struct rh_model;
enum {
    RH_GPU_LAYERS_FIT = 0,    /* as many as fit; of a mixture of experts, the experts stay away first */
    RH_GPU_LAYERS_ALL = -1,   /* all, or the model is refused */
    RH_GPU_LAYERS_NONE = -2
};
struct rh_model_options {
    uint32_t context;         /* positions; 0 = the model's own */
    const char *kv;           /* "K" or "K:V" of f32 f16 bf16 q8 a8gG a4gG q4h tq4 tq3, or k8v4 k8v3 k4v4 (docs/kv.md); NULL = f16 */
    struct rh_text kv_config; /* JSON: layers whose formats differ, [{"layer": N, "format": K[:V]} or {"layer", "bits", "group_size"}] */
    uint32_t kv_start;        /* positions before it are kept in f16 until all of them are known, then encoded as kv says; 0 = none */
    bool kv_force;            /* open formats that kvcheck measured as useless for this model */
    const char *chat_template;/* overrides the model's own; NULL */
    uint32_t rows_max;        /* rows of a step; 0 = 512 */
    uint32_t step_ms;         /* what a step with running answers may take while a prompt is read; 0 = twice what they alone take */
    int32_t gpu_layers;       /* layers whose weights lie in a GPU's own memory, the first ones; what else there is of weights stays in the
                               * host's and is read from there, with the same answers.  Or an RH_GPU_LAYERS_ */
    const char *draft;        /* a smaller model with the same tokens, that guesses ahead; NULL */
    bool inspect_only;        /* info without loading weights */
    void (*progress)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
    void *progress_ctx;
};
/* Is that a name of state formats, as `kv` takes it? */
int rh_kv_check(const char *kv, struct rh_error *err);
/* `name`: a .gguf file (or the first of a split set), a Hugging Face directory, or a name in the store. */
int rh_model_open(struct rh_host *h, const char *name, const struct rh_model_options *opt, struct rh_model **out, struct rh_error *err);
void rh_model_close(struct rh_model *m); /* cancels and waits for its requests */

/* Everything `rhapsode info` prints, as a JSON text; free with rh_free.  context: what a context of that many positions costs (0 = configured). */
int rh_model_info_json(struct rh_model *m, uint32_t context, char **out, struct rh_error *err);

struct rh_ids { uint32_t *ids; size_t n; };  /* free with rh_free(ids) */
int rh_tokenize(struct rh_model *m, struct rh_text text, bool no_bos, bool no_parse_special, struct rh_ids *out, struct rh_error *err);
/* The bytes of one id in mid-text (special tokens: their text), for whoever shows tokens one by one; free with rh_free. */
int rh_token_bytes(struct rh_model *m, uint32_t id, char **out, size_t *out_n, struct rh_error *err);
int rh_detokenize(struct rh_model *m, const uint32_t *ids, size_t n, char **out, size_t *out_n, struct rh_error *err);
/* Text of one id with errors in it escaped, for listings; free with rh_free. */
int rh_token_text(struct rh_model *m, uint32_t id, char **out, size_t *out_n, struct rh_error *err);

struct rh_chat {
    struct rh_text messages_json;  /* [{"role": ..., "content": ...}, ...] */
    struct rh_text tools_json;     /* [] or {NULL, 0} */
    struct rh_text variables_json; /* {"enable_thinking": true} or {NULL, 0} */
    bool no_generation_prompt;
};
struct rh_rendered {
    char *text; size_t text_n;
    size_t *boundaries; size_t boundary_count; /* byte offsets of stable turn ends */
};
int rh_render(struct rh_model *m, const struct rh_chat *chat, struct rh_rendered *out, struct rh_error *err);
void rh_rendered_free(struct rh_rendered *r);
/* Why chats cannot be rendered (there is no template, or it is faulty); NULL: they can. */
const char *rh_chat_problem(const struct rh_model *m);
/* The ids a request with this chat gets (users' text never becomes special tokens). */
int rh_chat_tokenize(struct rh_model *m, const struct rh_chat *chat, struct rh_ids *out, struct rh_error *err);

/* Names of the output formats in order, NULL past the last; and the one that "auto" means for this model. */
const char *rh_output_format_name(size_t i);
const char *rh_output_format(const struct rh_model *m);

/* ---- sampling ---- */

struct rh_bias { uint32_t id; float bias; };
struct rh_sampling { /* what the request uses; rh_sampling_default fills it with the model's own defaults */
    float temperature, top_p, min_p, typical_p, top_n_sigma;
    uint32_t top_k;
    float xtc_probability, xtc_threshold;
    float repetition_penalty, presence_penalty, frequency_penalty;
    uint32_t penalty_window;      /* 0 = whole history */
    uint32_t min_tokens;
    const char *order;            /* "top_n_sigma,top_k,typical_p,top_p,min_p,xtc" or a permutation; NULL = this */
    const struct rh_bias *biases; size_t bias_count;
};
void rh_sampling_default(struct rh_model *m, struct rh_sampling *out);

/* ---- requests: asynchronous; enter by a queue, leave by one bounded ring of events each ---- */

/* MODEL: as the model's files say (mean or last; last when they say nothing). */
enum rh_embed { RH_EMBED_NONE, RH_EMBED_MODEL, RH_EMBED_MEAN, RH_EMBED_LAST };

struct rh_request;
struct rh_request_options {
    /* exactly one input: */
    struct rh_text prompt;          /* raw text, the model's BOS rule applied */
    const uint32_t *ids; size_t id_count; /* taken as they are */
    const struct rh_chat *chat;     /* the template applied */

    int64_t max_tokens;             /* < 0: as far as context and memory allow; 0: the default (512 for raw text and ids, none for chat) */
    bool ignore_eos;
    const struct rh_sampling *sampling; /* NULL = the model's defaults */
    bool seed_given; uint64_t seed;
    uint32_t n;                     /* choices; 0 = 1 */
    bool logprobs; uint32_t top_logprobs; /* top 0..128; asking for tops implies logprobs */
    const struct rh_text *stop; size_t stop_count;   /* stop strings, at most 16 */
    const uint32_t *stop_ids; size_t stop_id_count;
    const uint32_t *allowed_ids; size_t allowed_id_count; /* the only ids that may be chosen, end ids included; none = all */
    const char *propose;            /* who may guess tokens ahead, whatever the text it changes nothing: "none", "auto", or some of
                                       echo,lookup,draft; NULL = "auto" (echo, lookup, and the draft model if there is one) */
    uint32_t propose_depth;         /* most tokens of a guess, taken whatever it costs, at most 31; 0 = as many as pay */
    const char *session;            /* who asks: sessions share places and the reading of prompts evenly; its last entry in the cache is kept rather than others; NULL = one of its own */
    const char *tenant;             /* salt of the cache: prefixes are shared under the same one only; at most 256 bytes; NULL = "" */
    const uint32_t *boundaries; size_t boundary_count; /* of `ids`: ascending positions where the text may go on otherwise (turn ends);
                                                        * a chat's come from its template */
    int priority;                   /* the higher one is admitted first */
    const char *kv;                 /* refused unless equal to the model's; so is kv_start */
    bool kv_start_given; uint32_t kv_start;
    const char *output;             /* how the answer is read (docs/output.md): "none" = all of it is TEXT; "auto" = as the chat template
                                     * says; or a format's name.  NULL = "auto" for a chat, "none" for raw text and ids */
    bool raw_bytes;                 /* bytes that are no character, and will be none, are given as they are; else each broken sequence is U+FFFD */
    bool no_calls;                  /* tool calls stay text.  They do in a chat without tools, too */
    bool told_calls;                /* calls of other tools than the chat's stay text, whatever the output format */
    bool call_required;             /* the answer begins with a call of one of the chat's tools (after a reasoning block that the prompt opened),
                                     * unless max_tokens or a stop string end it before; its arguments are the model's */
    const char *call_name;          /* ... of this one; NULL = any */
    bool prompt_logprobs;           /* how likely each id of the prompt was: rh_request_prompt_logprob */
    uint32_t prompt_top_logprobs;   /* and the likeliest there, at most 20 */
    bool truncate;                  /* a prompt that is too long is shortened: a chat by its oldest messages, raw text and ids at their beginning, a
                                     * text to embed at its end; PROMPT says by how much */
    enum rh_embed embed;            /* not NONE: no answer, but the DONE event has the embedding of the text */
    uint32_t dimensions;            /* of it: its first ones, scaled to length 1 again; 0 = all */
    /* Called on the library's threads whenever rh_poll may have something new, and more often: it must neither block nor call the library.
     * It is not called any more once rh_request_free has returned.  Who gives one polls with timeout_ms 0. */
    void (*notify)(void *ctx);
    void *notify_ctx;
};
/* Copies what it needs.  Preparation (template, tokenizing) happens on worker threads: its errors arrive as an event. */
int rh_submit(struct rh_model *m, const struct rh_request_options *opt, struct rh_request **out, struct rh_error *err);
void rh_request_cancel(struct rh_request *r); /* any thread, any state; honoured within one step */
void rh_request_free(struct rh_request *r);   /* cancels first if still running */

enum rh_event_kind {
    RH_EVENT_PROMPT,         /* ids known: prompt_ids valid; before any text */
    RH_EVENT_START,          /* admitted: usage.prompt_tokens, usage.cached_tokens and cache valid; after PROMPT, before any text */
    RH_EVENT_TEXT,           /* whole UTF-8 scalars (with raw_bytes also bytes that can never complete one), maybe empty */
    RH_EVENT_REASONING,      /* text that is not the answer yet */
    RH_EVENT_CALL_BEGIN,     /* call, call_id, call_name valid */
    RH_EVENT_CALL_ARGUMENTS, /* call valid; text: more of the arguments' JSON */
    RH_EVENT_CALL_END,       /* call, call_whole valid */
    RH_EVENT_DONE            /* last event of the choice */
};
enum rh_finish { RH_FINISH_STOP, RH_FINISH_LENGTH, RH_FINISH_CANCELLED, RH_FINISH_ERROR };

struct rh_top { uint32_t id; float logprob; };
struct rh_usage { uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens; }; /* reasoning: of the completion's */
struct rh_cache { /* what of the prompt was known */
    uint32_t cached_tokens;      /* state reused */
    uint32_t known_tokens;       /* ids known; more than cached_tokens when the state there was not kept */
    const char *reason;          /* why it is not all but the last token; NULL: it is.  "off", "empty" (nothing stored), "other_key" (nothing
                                  * under this tenant), "new_text" (all that was stored is used), "diverged", "evicted", "no_state" (window
                                  * or recurrent layers keep no state there) */
    int64_t stored_id, prompt_id; /* "diverged": the ids at place known_tokens, stored and in the prompt; else -1 */
};
struct rh_timings { double load_ms, queue_ms, prefill_ms, decode_ms, prefill_tokens_per_s, decode_tokens_per_s; };

enum { RH_DEPTH_MAX = 31, RH_PROMPT_TOP_MAX = 20 };
/* Rounds of guessed tokens; `fill`: spans copied or forced, which count as forwards only. */
struct rh_fill { uint32_t events, injected, echo, forced, wasted_samples, accepted, rejected, span_lengths[RH_DEPTH_MAX + 1]; };
struct rh_speculation {
    uint32_t decode_forwards, drafted, accepted, rejected, rounds, forwards_saved;
    double tokens_per_forward;
    uint32_t acceptance_lengths[RH_DEPTH_MAX + 1], drafted_by_position[RH_DEPTH_MAX], accepted_by_position[RH_DEPTH_MAX];
    struct rh_fill fill;
};

struct rh_event { /* pointers are valid until the next rh_poll of the request */
    enum rh_event_kind kind;
    uint32_t choice;
    const char *text; size_t text_n;        /* TEXT, REASONING, CALL_ARGUMENTS */
    /* each token once, in order, on the first event it brings about, which is an empty TEXT if there is none; its text may come later */
    bool has_token; uint32_t id; float logprob; const struct rh_top *tops; uint32_t top_count;
    uint32_t call;                           /* CALL_X: 0-based; one is open at a time */
    const char *call_id, *call_name;         /* CALL_BEGIN: the model's own id, or one that was drawn */
    bool call_whole;                         /* CALL_END: else the call broke off, and its arguments may be incomplete JSON */
    const uint32_t *prompt_ids; size_t prompt_count; /* PROMPT */
    uint32_t dropped;                        /* PROMPT: messages (of a chat) or ids that were left away to make it fit */
    const float *embedding; size_t embedding_n; /* DONE of a request to embed: a vector of length 1 */
    enum rh_finish finish;                   /* DONE */
    const char *stop_string;                 /* DONE by a stop string, else NULL */
    uint32_t call_count;                     /* DONE: calls begun */
    struct rh_usage usage;                   /* START, DONE */
    struct rh_timings timings; uint64_t seed; /* DONE */
    struct rh_speculation speculation;       /* DONE */
    struct rh_cache cache;                   /* START, DONE */
    struct rh_error error;                   /* DONE with RH_FINISH_ERROR */
};
/* Next event: 1 and *out filled; 0 on time-out; RH_ERR_END after the last DONE.  timeout_ms < 0 waits, 0 returns at once. */
int rh_poll(struct rh_request *r, struct rh_event *out, int timeout_ms);
/* After the first choice's DONE, with prompt_logprobs: the log-probability of the prompt's id at `position` (from 1 on), and the likeliest ids
 * there; tops has room for prompt_top_logprobs.  False: not known. */
bool rh_request_prompt_logprob(const struct rh_request *r, size_t position, float *logprob, struct rh_top *tops, uint32_t *top_count);
/* How far the prompt is read: positions done, of so many (0 while the ids are not known yet).  The polling thread. */
void rh_request_progress(struct rh_request *r, uint32_t *done, uint32_t *total);

/* ---- what a model is doing: any thread, as of its engine's last step ---- */

enum { RH_MISS_COUNT = 8, RH_STEP_BUCKETS = 12 };
struct rh_stats {
    uint32_t positions_max;        /* longest prompt and answer: the context, or what the state budget holds */
    uint32_t waiting, running;     /* choices */
    uint32_t waiting_again, prefilling; /* of waiting: pre-empted; of running: still reading their prompt */
    uint64_t steps, rows, preempted;
    uint64_t step_rows[RH_STEP_BUCKETS]; /* steps of up to 1, 2, 4, ... rows (the last: of more) */
    uint64_t cancelled;            /* choices ended by rh_request_cancel... */
    uint64_t cancel_steps_max;     /* ...and the most steps that ended between the call and the end */
    uint64_t failed_steps;
    bool device_failed;            /* the last step failed by the device */
    double stalled_ms;             /* the engine works, and for so long no step has ended; 0 while it rests */
    uint64_t device_progress;      /* grows while the device works on a step; 0: it does not tell */
    uint64_t pages_free, pages_live, pages_cached; /* of sequence state, all groups of layers */
    uint64_t state_total_bytes, state_free_bytes, state_live_bytes, state_cached_bytes, state_peak_bytes;
    uint64_t prompt_tokens, cached_tokens; /* of prompts that were admitted */
    uint64_t misses[RH_MISS_COUNT];        /* prompts, by why no more of them was known... */
    const char *miss_names[RH_MISS_COUNT]; /* ...as in rh_cache.reason; "none": all was */
};
void rh_stats(struct rh_model *m, struct rh_stats *out);
struct rh_memory { const char *space, *component; uint64_t planned_bytes, live_bytes; };
/* What the model takes, by component; at most `most` of them.  Returns how many. */
uint32_t rh_memory(struct rh_model *m, struct rh_memory *out, uint32_t most);

/* ---- measure ---- */

struct rh_score_options {
    const uint32_t *ids; size_t id_count;  /* or */
    struct rh_text text;                   /* cut into windows of the context, BOS once per window */
    uint32_t top;                          /* best ids per position, 0..128 */
    bool logits_last;
    bool logits_all;                       /* raw logits of every position through on_logits (tests, KL) */
    void (*on_logits)(void *ctx, size_t position, const float *logits, uint32_t vocab);
    void *on_logits_ctx;
    uint32_t window;                       /* 0 = context */
};
/* The JSON of `rhapsode score`; free with rh_free. */
int rh_score_json(struct rh_model *m, const struct rh_score_options *opt, char **out, struct rh_error *err);

struct rh_bench_options { uint32_t prompt, decode, repetitions, depth, sequences; };
/* The JSON of `rhapsode bench`: prefill and decode tokens/s with the limits measured beside them; free with rh_free. */
int rh_bench_json(struct rh_model *m, const struct rh_bench_options *opt, char **out, struct rh_error *err);

/* The JSON of `rhapsode bench --limits`: what the host's device can do at best, measured while no model of the host works; free with rh_free. */
int rh_limits_json(struct rh_host *h, char **out, struct rh_error *err);

struct rh_kvcheck_options {
    const char *formats;           /* names with commas; NULL = all */
    struct rh_text text;           /* NULL = a built-in one */
    uint32_t tokens;               /* of the text; 0 = 4096, within the context */
    bool forget;                   /* do not keep the figures in the store */
    void (*progress)(void *ctx, uint64_t done, uint64_t total);
    void *progress_ctx;
};
/* The JSON of `rhapsode kvcheck`: what each state format costs this model against f32 state; kept in the store; free with rh_free. */
int rh_kvcheck_json(struct rh_model *m, const struct rh_kvcheck_options *opt, char **out, struct rh_error *err);

/* ---- store ---- */

struct rh_pull_progress { const char *file; uint64_t done_bytes, total_bytes; double bytes_per_s; };
struct rh_pull_options {
    const char *endpoint, *token;  /* hub address and bearer token; NULL = the public hub, none */
    const char *revision;          /* NULL = "main" */
    uint32_t connections;          /* parallel ranges; 0 = 4 */
    void (*progress)(void *ctx, const struct rh_pull_progress *p);
    void *progress_ctx;
    const volatile int *cancelled; /* set != 0: stop, keep the resumable partial; RH_ERR_CANCELLED */
};
/* spec: ORG/REPO[:FILE]; a missing file picks the best GGUF or the whole safetensors directory.  *out_path (rh_free) = what to open. */
int rh_store_pull(const char *store_dir, const char *spec, const struct rh_pull_options *opt, char **out_path, struct rh_error *err);
/* Take a local model into the store under a name: a .gguf file (with it the rest of a split set) or a Hugging Face directory, its headers read first.
 * What cannot be opened as a model is refused.  An entry of that name is replaced.  sha256: 64 hex digits, of a .gguf file; NULL. */
int rh_store_add(const char *store_dir, const char *name, const char *path, const char *sha256, struct rh_error *err);
int rh_store_list_json(const char *store_dir, char **out, struct rh_error *err); /* [{name, path, bytes, complete, modified, sha256}] */
int rh_store_remove(const char *store_dir, const char *name, struct rh_error *err);
int rh_store_find(const char *store_dir, const char *name, char **out_path, struct rh_error *err);

void rh_free(void *p);

#ifdef __cplusplus
}
#endif
#endif
