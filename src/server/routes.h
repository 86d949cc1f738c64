/* server/routes.h - the list of routes: X(METHOD, "path", prefix, who, shape, handler, "summary").
 *
 * A handler answers (then or later) and returns 0, or fills the error and returns not 0; the error is written in the route's shape.
 * who: OPEN needs no key, USER any key, ADMIN an admin's. */
#ifndef RH_SERVER_ROUTES_H
#define RH_SERVER_ROUTES_H

#include "server/api.h"

#define ROUTE_LIST(X)                                                                                                          \
    X(GET, "/health", false, OPEN, OPENAI, route_health, "200 while the engine works")                                         \
    X(GET, "/ready", false, OPEN, OPENAI, route_ready, "200 while new requests are taken")                                     \
    X(GET, "/v1/models", false, USER, OPENAI, route_models, "the models served")                                               \
    X(GET, "/v1/models/", true, USER, OPENAI, route_model, "one model")                                                        \
    X(POST, "/v1/chat/completions", false, USER, OPENAI, route_chat, "answer a chat")                                          \
    X(POST, "/v1/completions", false, USER, OPENAI, route_completions, "continue texts")                                       \
    X(POST, "/v1/cancel", false, USER, OPENAI, route_cancel, "end a generation by its id")                                     \
    X(POST, "/tokenize", false, USER, OPENAI, route_tokenize, "text or messages -> ids")                                       \
    X(POST, "/detokenize", false, USER, OPENAI, route_detokenize, "ids -> text")                                               \
    X(POST, "/apply-template", false, USER, OPENAI, route_apply_template, "messages -> text")                                  \
    X(GET, "/metrics", false, ADMIN, OPENAI, route_metrics, "counters for Prometheus")                                         \
    X(GET, "/stats", false, ADMIN, OPENAI, route_stats, "the same and more as JSON")

#define ROUTE_PROTO(method, path, prefix, who, shape, fn, text) int fn(struct call *c, struct api_error *e);
ROUTE_LIST(ROUTE_PROTO)
#undef ROUTE_PROTO

/* The HTTP handler of the whole server. */
struct http_handler routes_handler(struct server *s);
bool server_healthy(const struct server *s);

#endif
