/* cli/verbs.h - the list of verbs: X(name, "ARGS", least, most arguments, option groups, "help"); each is `int cli_<name>(struct options *)`. */
#ifndef RH_CLI_VERBS_H
#define RH_CLI_VERBS_H

#include "cli/options.h"

#define CLI_VERBS(X)                                                                                                              \
    X(run, "MODEL [PROMPT]", 1, 2, G_HOST | G_MODEL | G_REQUEST | G_SAMPLE | G_RUN, "chat in the terminal, or answer once")         \
    X(generate, "MODEL", 1, 1, G_HOST | G_MODEL | G_INPUT | G_IDS | G_REQUEST | G_SAMPLE | G_JSON | G_TOOLS, "continue a prompt or a chat") \
    X(serve, "[MODEL]", 0, 1, G_HOST | G_MODEL | G_SAMPLE | G_SERVE, "answer OpenAI's and Anthropic's APIs over HTTP")             \
    X(score, "MODEL", 1, 1, G_HOST | G_MODEL | G_IDS | G_SCORE | G_JSON, "log-probabilities and perplexity of given text")        \
    X(tokenize, "MODEL", 1, 1, G_TOKENIZE | G_JSON, "standard input -> token ids")                                                \
    X(detokenize, "MODEL", 1, 1, G_IDS, "token ids -> bytes")                                                                     \
    X(render, "MODEL", 1, 1, G_MODEL | G_RENDER | G_TOOLS, "chat messages -> prompt text")                                        \
    X(info, "MODEL", 1, 1, G_HOST | G_MODEL | G_JSON, "what a model is and what it needs")                                        \
    X(bench, "[MODEL]", 0, 1, G_HOST | G_MODEL | G_BENCH | G_JSON, "prefill and decode speed against the machine's limits")         \
    X(kvcheck, "MODEL", 1, 1, G_HOST | G_MODEL | G_KVCHECK | G_JSON, "what every format of stored keys and values costs a model") \
    X(pull, "ORG/REPO[:FILE]", 1, 1, G_PULL, "fetch a model from the hub into the store")                                         \
    X(add, "NAME FILE", 2, 2, G_STORE, "take a local model file into the store")                                                  \
    X(ls, "", 0, 0, G_JSON, "models of the store")                                                                                \
    X(rm, "NAME", 1, 1, 0, "remove a model from the store")                                                                       \
    X(completion, "SHELL", 1, 1, 0, "completion script for bash, zsh or fish")

#define CLI_VERB_PROTO(name, ...) int cli_##name(struct options *o);
CLI_VERBS(CLI_VERB_PROTO)
#undef CLI_VERB_PROTO

#endif
