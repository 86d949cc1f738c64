/* server/jobs.h - short pieces of work off the I/O thread (tokenizing, rendering), on libuv's workers. */
#ifndef RH_SERVER_JOBS_H
#define RH_SERVER_JOBS_H

#include "server/api.h"

struct job;
/* run: a worker thread; it may use the model's text functions and writes a JSON body, or fills the error.  in and its memory (free_in) are the
 * job's.  Answered on the I/O thread when the peer is still there. */
typedef int (*job_run)(struct rh_model *model, void *in, struct buf *body, struct api_error *e);
int job_count_tokens(const struct call *c, const struct params *p, struct api_error *e); /* api_text.c: {"input_tokens": N} of p's chat */
int job_start(const struct call *c, job_run run, void *in, void (*free_in)(void *in), struct api_error *e);

#endif
