/* server/gen_int.h - inside gen.c (a generation's life and events) and gen_answer.c (what its peer is sent) only. */
#ifndef RH_SERVER_GEN_INT_H
#define RH_SERVER_GEN_INT_H

#include "server/gen.h"

void gen_end(struct gen *g, const char *error); /* its requests are given up; the memory goes when no list names it */
void gen_flush(struct gen *g);
void gen_begin(struct gen *g);                  /* of a stream: its head, once */
void gen_answer(struct gen *g);                 /* all choices are done */
void gen_answer_error(struct gen *g, const struct api_error *e);

#endif
