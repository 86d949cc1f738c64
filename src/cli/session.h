/* cli/session.h - what the verbs share: a host and a model opened by the options, sampling and chat taken from them, messages.
 *
 * Functions that fail print one line on standard error and return the exit status (not 0).  Thread: main only. */
#ifndef RH_CLI_SESSION_H
#define RH_CLI_SESSION_H

#include "base/buf.h"
#include "base/json.h"
#include "cli/options.h"
#include "rhapsode.h"

/* owns host and model; zero-initialise */
struct session {
    uint32_t spin_us, cpus_left; /* as in rh_host_options */
    const char *verb;
    struct rh_host *host;
    struct rh_model *model;
    struct buf template_text, kv_config;
};
int session_open_host(struct session *s, const char *verb, const struct options *o); /* the device alone */
int session_open(struct session *s, const char *verb, const struct options *o, bool inspect_only);
void session_close(struct session *s);

/* The model's defaults with the options on top.  `biases` owns the list: mem_free it after the request was submitted. */
int session_sampling(const struct session *s, const struct options *o, struct rh_sampling *out, struct rh_bias **biases);

/* Stop strings and ids of the options into the request; the two lists are the caller's to mem_free after rh_submit, also on failure. */
int session_stops(const char *verb, const struct options *o, struct rh_request_options *r, struct rh_text **stop, uint32_t **stop_ids);

/* Messages, tools and template variables as JSON texts; owns them. */
struct session_chat {
    struct rh_chat chat;
    char *messages, *tools, *variables;
};
/* `path` holds an array of messages, or an object with "messages" and perhaps "tools". */
int session_chat_read(struct session_chat *c, const char *verb, const char *path, const struct options *o);
void session_chat_free(struct session_chat *c);

/* Prints; 1, but 2 when what was asked for is what is wrong (RH_ERR_ARGUMENT), 130 when it was interrupted. */
int session_fail(const char *verb, const struct rh_error *err);
int session_failed(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* prints, 1 */
int session_usage(const char *verb, const char *fmt, ...) __attribute__((format(printf, 2, 3))); /* prints, 2 */

/* Ctrl-C: true after the first; a second one ends the program. */
void session_interrupts(void);
bool session_interrupted(void);

#endif
