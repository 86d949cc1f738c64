/* server/api_fields.h - fields that several APIs share, as rows of their lists. */
#ifndef RH_SERVER_API_FIELDS_H
#define RH_SERVER_API_FIELDS_H

#include "server/api.h"

#include <stddef.h>

#define AT(member) offsetof(struct params, member)
#define CALLED(name, fn) {name, FIELD_CALL, 0, 0, 0, fn}
#define SILENT(name) {name, FIELD_SILENT, 0, 0, 0, NULL}
#define REFUSED(name) {name, FIELD_REFUSED, 0, 0, 0, NULL}

#define SAMPLER_FIELDS                                                             \
    {"temperature", FIELD_F32, 0, 1000, AT(sampling.temperature), NULL},           \
    {"top_p", FIELD_F32, 0, 1, AT(sampling.top_p), NULL},                          \
    {"top_k", FIELD_CALL, 0, 0, 0, read_top_k},                                    \
    {"min_p", FIELD_F32, 0, 1, AT(sampling.min_p), NULL},                          \
    {"typical_p", FIELD_F32, 0, 1, AT(sampling.typical_p), NULL},                  \
    {"top_n_sigma", FIELD_F32, -1, 1000, AT(sampling.top_n_sigma), NULL},          \
    {"xtc_probability", FIELD_F32, 0, 1, AT(sampling.xtc_probability), NULL},      \
    {"xtc_threshold", FIELD_F32, 0, 1, AT(sampling.xtc_threshold), NULL},          \
    {"repetition_penalty", FIELD_F32, 0.001, 1000, AT(sampling.repetition_penalty), NULL}, \
    {"presence_penalty", FIELD_F32, -2, 2, AT(sampling.presence_penalty), NULL},   \
    {"frequency_penalty", FIELD_F32, -2, 2, AT(sampling.frequency_penalty), NULL}

/* Our own and vLLM's, beside what OpenAI has. */
#define EXTRA_FIELDS                                                 \
    CALLED("stop_token_ids", read_stop_ids),                         \
    {"ignore_eos", FIELD_BOOL, 0, 0, AT(ignore_eos), NULL},          \
    {"min_tokens", FIELD_U32, 0, 4294967295.0, AT(min_tokens), NULL},\
    {"return_token_ids", FIELD_BOOL, 0, 0, AT(return_ids), NULL},    \
    {"return_progress", FIELD_BOOL, 0, 0, AT(progress), NULL},       \
    CALLED("session_id", read_session),                              \
    CALLED("cache_salt", read_salt),                                 \
    CALLED("output", read_output),                                   \
    CALLED("kv", read_kv),                                           \
    CALLED("kv_start", read_kv_start),                               \
    CALLED("propose", read_propose),                                 \
    {"propose_depth", FIELD_U32, 0, 31, AT(o.propose_depth), NULL},  \
    {"priority", FIELD_CALL, 0, 0, 0, read_priority},                \
    REFUSED("guided_json"), REFUSED("guided_regex"), REFUSED("guided_choice"), REFUSED("guided_grammar"), \
    REFUSED("structured_outputs"), REFUSED("grammar"), REFUSED("json_schema"), REFUSED("use_beam_search"), REFUSED("length_penalty"), \
    REFUSED("lora"), REFUSED("mirostat"), REFUSED("dry_multiplier")

int read_top_k(struct reader *r, yyjson_val *v, const char *pointer);
int read_output(struct reader *r, yyjson_val *v, const char *pointer);
int read_priority(struct reader *r, yyjson_val *v, const char *pointer);
int read_stream_options(struct reader *r, yyjson_val *v, const char *pointer);
int read_response_format(struct reader *r, yyjson_val *v, const char *pointer);
int read_effort(struct reader *r, yyjson_val *v, const char *pointer);
int read_parallel(struct reader *r, yyjson_val *v, const char *pointer);

#endif
