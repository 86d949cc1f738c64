/* server/body.h - routes with a JSON body. */
#ifndef RH_SERVER_BODY_H
#define RH_SERVER_BODY_H

#include "server/api.h"

struct body_plan {
    const struct field_list *fields;
    const char *input;                                /* pointer to the text asked about, for errors that are about it */
    int (*prepare)(struct reader *r);                 /* NULL; maybe on a worker: it may change r and what r owns, and nothing of the server */
    int (*start)(struct reader *r, struct call *c);   /* I/O thread: begins the answer, or fills r->err */
    void (*drop)(struct reader *r);                   /* NULL; instead of start, when the peer has left: frees what prepare made beside the arena */
};
/* Reads the body by the plan's fields and answers by it.  own: becomes p->own, copied into its arena. */
int body_route(struct call *c, struct api_error *e, const struct body_plan *plan, const void *own, size_t own_size);
/* The body as an object, at once.  NULL: *e is filled. */
yyjson_doc *body_parse(const struct call *c, struct api_error *e);

#endif
