/* server/api_openai.h - pieces that OpenAI's two completion APIs share. */
#ifndef RH_SERVER_API_OPENAI_H
#define RH_SERVER_API_OPENAI_H

#include "server/gen.h"

void openai_put_usage(const struct gen *g, struct buf *out);     /* "usage":{...} */
void openai_put_timings(const struct gen *g, struct buf *out);   /* ,"timings":{...} */
void openai_put_bytes(struct buf *out, struct str bytes);        /* [1,2] */
void openai_failed(struct gen *g, const struct api_error *e);    /* of a stream: the error, then its end mark */
void openai_ping(struct gen *g);
void openai_logprob(struct gen *g, struct gen_choice *c, const struct rh_event *e); /* one entry more in c->logprobs */
void openai_end_mark(struct gen *g);

#endif
