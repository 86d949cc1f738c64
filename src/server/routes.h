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
    X(POST, "/v1/messages", false, USER, ANTHROPIC, route_messages, "answer a chat, Anthropic's shape")                        \
    X(POST, "/v1/messages/count_tokens", false, USER, ANTHROPIC, route_count_tokens, "tokens of a chat")                       \
    X(POST, "/v1/responses", false, USER, OPENAI, route_responses, "answer, with items and a memory of earlier answers")       \
    X(GET, "/v1/responses/", true, USER, OPENAI, route_response_get, "an earlier answer")                                      \
    X(DELETE, "/v1/responses/", true, USER, OPENAI, route_response_delete, "forget an earlier answer")                         \
    X(POST, "/v1/responses/", true, USER, OPENAI, route_response_cancel, "end an answer under way: ID/cancel")                 \
    X(POST, "/api/chat", false, USER, OLLAMA, route_ollama_chat, "answer a chat, Ollama's shape")                              \
    X(POST, "/api/generate", false, USER, OLLAMA, route_ollama_generate, "answer a prompt, Ollama's shape")                    \
    X(GET, "/api/tags", false, USER, OLLAMA, route_ollama_tags, "the models served")                                           \
    X(GET, "/api/ps", false, USER, OLLAMA, route_ollama_tags, "the models loaded")                                             \
    X(POST, "/api/show", false, USER, OLLAMA, route_ollama_show, "one model")                                                  \
    X(GET, "/api/version", false, OPEN, OLLAMA, route_ollama_version, "the version")                                           \
    X(POST, "/api/embed", false, USER, OLLAMA, route_ollama_embed, "texts as vectors, Ollama's shape")                         \
    X(POST, "/v1/embeddings", false, USER, OPENAI, route_embeddings, "texts as vectors")                                       \
    X(POST, "/v1/cancel", false, USER, OPENAI, route_cancel, "end a generation by its id")                                     \
    X(POST, "/tokenize", false, USER, OPENAI, route_tokenize, "text or messages -> ids")                                       \
    X(POST, "/detokenize", false, USER, OPENAI, route_detokenize, "ids -> text")                                               \
    X(POST, "/apply-template", false, USER, OPENAI, route_apply_template, "messages -> text")                                  \
    X(GET, "/openapi.json", false, OPEN, OPENAI, route_openapi, "this document")                                               \
    X(GET, "/", false, OPEN, OPENAI, route_root, "what this is, and where what is")                                            \
    X(GET, "/metrics", false, ADMIN, OPENAI, route_metrics, "counters for Prometheus")                                         \
    X(GET, "/stats", false, ADMIN, OPENAI, route_stats, "the same and more as JSON")

#define ROUTE_PROTO(method, path, prefix, who, shape, fn, text) int fn(struct call *c, struct api_error *e); /* some stand twice */
ROUTE_LIST(ROUTE_PROTO)
#undef ROUTE_PROTO

/* The fields of bodies, for the document. */
extern const struct field_list chat_field_list, completion_field_list, message_field_list, count_field_list, responses_field_list, tokenize_field_list,
    detokenize_field_list, render_field_list, ollama_chat_field_list, ollama_generate_field_list, embedding_field_list, ollama_embed_field_list;

/* The HTTP handler of the whole server. */
struct http_handler routes_handler(struct server *s);
bool server_healthy(const struct server *s);

#endif
