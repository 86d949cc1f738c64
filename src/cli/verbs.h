/* cli/verbs.h - the list of verbs: X(name, "ARGS", section, least, most arguments, option groups, "help"); each is `int cli_<name>(struct options *)`. */
#ifndef RH_CLI_VERBS_H
#define RH_CLI_VERBS_H

#include "cli/options.h"

#define S_TALK "Talk to a model"
#define S_STORE "The store of models"
#define S_LOOK "Look into a model"
#define S_TEXT "Text and token ids"
#define S_MORE "More"

#define CLI_VERBS(X)                                                                                                                   \
    X(run, "MODEL [PROMPT]", S_TALK, 1, 2, G_HOST | G_MODEL | G_REQUEST | G_SAMPLE | G_RUN, "chat in the terminal, or answer once")    \
    X(serve, "[MODEL]", S_TALK, 0, 1, G_HOST | G_MODEL | G_SAMPLE | G_SERVE, "answer OpenAI's, Anthropic's and Ollama's APIs over HTTP") \
    X(generate, "MODEL", S_TALK, 1, 1, G_HOST | G_MODEL | G_INPUT | G_IDS | G_REQUEST | G_SAMPLE | G_JSON | G_TOOLS, "continue a text, token ids or a chat") \
    X(pull, "ORG/REPO[:FILE]", S_STORE, 1, 1, G_PULL, "fetch a model from the hub into the store")                                     \
    X(add, "NAME FILE", S_STORE, 2, 2, G_STORE, "take a local model into the store under a name")                                      \
    X(ls, "", S_STORE, 0, 0, G_JSON | G_LS, "models of the store")                                                                     \
    X(rm, "NAME", S_STORE, 1, 1, 0, "remove a model from the store")                                                                   \
    X(info, "MODEL", S_LOOK, 1, 1, G_HOST | G_MODEL | G_JSON, "what a model is, what it needs, whether it runs here")                  \
    X(bench, "[MODEL]", S_LOOK, 0, 1, G_HOST | G_MODEL | G_BENCH | G_JSON, "prefill and decode speed against the machine's limits")    \
    X(score, "MODEL", S_LOOK, 1, 1, G_HOST | G_MODEL | G_IDS | G_SCORE | G_JSON, "log-probabilities and perplexity of a text")         \
    X(kvcheck, "MODEL", S_LOOK, 1, 1, G_HOST | G_MODEL | G_KVCHECK | G_JSON, "what each format of stored keys and values costs a model") \
    X(tokenize, "MODEL", S_TEXT, 1, 1, G_TOKENIZE | G_JSON, "standard input -> token ids")                                             \
    X(detokenize, "MODEL", S_TEXT, 1, 1, G_IDS, "token ids -> bytes")                                                                  \
    X(render, "MODEL", S_TEXT, 1, 1, G_MODEL | G_RENDER | G_TOOLS, "chat messages -> prompt text")                                     \
    X(help, "[VERB [all]]", S_MORE, 0, 2, 0, "this list, or a verb's options")                                                         \
    X(completion, "SHELL", S_MORE, 1, 1, 0, "completion script for bash, zsh or fish")

#define CLI_VERB_PROTO(name, ...) int cli_##name(struct options *o);
CLI_VERBS(CLI_VERB_PROTO)
#undef CLI_VERB_PROTO

#endif
