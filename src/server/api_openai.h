/* server/api_openai.h - pieces that OpenAI's two completion APIs share. */
#ifndef RH_SERVER_API_OPENAI_H
#define RH_SERVER_API_OPENAI_H

#include "server/gen.h"

void openai_open(const struct gen *g, struct buf *out, const char *object); /* {"id":...,"choices":[ */
void openai_choice_end(const struct gen *g, struct gen_choice *c, const char *tools, struct buf *out); /* ids, stop reason, finish reason, } */
void openai_close(struct gen *g, struct buf *out);               /* ],"usage":... without the last } */
void openai_send_chunk(struct gen *g, struct buf *b);            /* ]} and out with it; frees b */
void openai_end(struct gen *g, const char *object);              /* of a stream: usage when asked for, the end mark */
void openai_put_bytes(struct buf *out, struct str bytes);        /* [1,2] */
void openai_failed(struct gen *g, const struct api_error *e);    /* of a stream: the error, then its end mark */
void openai_ping(struct gen *g);
void openai_logprob(struct gen *g, struct gen_choice *c, const struct rh_event *e); /* one entry more in c->logprobs */
void openai_put_number(struct buf *out, float logprob); /* JSON has no infinity: -9999 */
void openai_put_prompt_logprobs(struct gen *g, uint32_t request, struct buf *out); /* ,"prompt_logprobs":[...], when asked for */
int openai_check_prompt_logprobs(struct reader *r);

#endif
