/* cli/options_list.h - the one list of options: flags, configuration keys and the fields they fill.
 *
 * X(ID, type, field, "name", short, "aliases", group, min, max, "VALUE", "help")
 * name and aliases are long flags (and keys of the configuration file); short is a letter or 0; group says which verbs take it
 * (verbs.h), whether the configuration file may set it, and whether only a verb's whole help lists it (G_MORE); min and max bound numbers.
 * Help text is one line. */
#ifndef RH_CLI_OPTIONS_LIST_H
#define RH_CLI_OPTIONS_LIST_H

#define OPTION_LIST(X)                                                                                                                    \
    /* every verb */                                                                                                                      \
    X(HELP, FLAG, help, "help", 'h', "", G_ALL, 0, 0, "", "show this help")                                                               \
    X(CONFIG, STR, config, "config", 0, "", G_ALL | G_MORE, 0, 0, "FILE", "options from this file instead of ~/.config/rhapsode/config")  \
    X(VERBOSE, FLAG, verbose, "verbose", 'v', "", G_ALL, 0, 0, "", "notices on standard error")                                           \
    X(JSON, FLAG, json, "json", 0, "", G_JSON, 0, 0, "", "print one JSON object")                                                         \
    /* machine */                                                                                                                         \
    X(BACKEND, STR, backend, "device", 0, "backend", G_HOST, 0, 0, "NAME",                                                                \
      "what computes: auto (default), or one of")                                       \
    X(THREADS, U32, threads, "threads", 't', "", G_HOST, 1, 1024, "N", "worker threads; default: physical cores")                         \
    X(CPU_ISA, STR, cpu_isa, "cpu-isa", 0, "", G_HOST | G_MORE, 0, 0, "LEVEL", "highest instruction level: ref, avx2, avx512, avx512vnni") \
    X(NO_PIN, FLAG, no_pin, "no-pin", 0, "", G_HOST | G_MORE, 0, 0, "", "leave worker threads unpinned")                                  \
    X(STATE, SIZE, state, "state", 0, "state-bytes", G_HOST | G_MORE, 1, 9e18, "BYTES", "budget of sequence state (K, M, G suffixes)")    \
    X(GPU_MEMORY, SIZE, gpu_memory, "gpu-memory", 0, "", G_HOST | G_GPU, 1, 9e18, "BYTES", "most of the GPU's memory to take; default: what is free") \
    X(GPU_LAYERS, STR, gpu_layers, "gpu-layers", 0, "n-gpu-layers", G_HOST | G_GPU | G_MORE, 0, 0, "N", "layers whose weights lie in the GPU's memory, the others' in the host's; all, or auto (default): what fits") \
    X(STORE, STR, store, "store", 0, "", G_ALL | G_MORE, 0, 0, "DIR", "folder of the model store; default $RHAPSODE_HOME")                \
    /* model */                                                                                                                           \
    X(CONTEXT, U32, context, "context", 'c', "ctx", G_MODEL, 1, 4294967295.0, "N", "positions of the context; default: the model's own")  \
    X(KV, STR, kv, "kv", 0, "", G_MODEL, 0, 0, "K[:V]",                                                                                   \
      "formats of stored keys and values: f32 f16 bf16 q8 aBgG q4h tq4 tq3, or k8v4 k8v3 k4v4; default f16")                              \
    X(KV_CONFIG, STR, kv_config, "kv-config", 0, "", G_MODEL | G_MORE, 0, 0, "FILE", "formats of single layers (JSON list); docs/kv.md")  \
    X(KV_START, U32, kv_start, "kv-start", 0, "", G_MODEL | G_MORE, 0, 4294967295.0, "N",                                                 \
      "positions kept in f16 until that many are known, then encoded as --kv says; default 0")                                            \
    X(KV_FORCE, FLAG, kv_force, "kv-force", 0, "", G_MODEL | G_MORE, 0, 0, "", "use a format although kvcheck found it useless for the model") \
    X(ROWS, U32, rows, "rows", 0, "ubatch", G_MODEL | G_MORE, 1, 65536, "N", "most rows of one step; default 512")                        \
    X(STEP_MS, U32, step_ms, "step-ms", 0, "", G_MODEL | G_MORE, 1, 60000, "MS",                                                          \
      "what a step with running answers may take while a prompt is read; default: twice what they take")                                  \
    X(DRAFT, STR, draft, "draft", 0, "", G_MODEL, 0, 0, "MODEL", "a smaller model with the same tokens, that guesses ahead")              \
    X(CHAT_TEMPLATE, STR, chat_template, "chat-template", 0, "", G_MODEL, 0, 0, "FILE", "chat template instead of the model's own")       \
    /* input of generate */                                                                                                               \
    X(PROMPT, STR, prompt, "prompt", 'p', "", G_INPUT, 0, 0, "TEXT", "raw text to continue")                                              \
    X(IDS, STR, ids, "ids", 0, "", G_IDS, 0, 0, "1,2,3", "token ids, taken as they are")                                                  \
    X(CHAT, STR, chat, "chat", 0, "", G_INPUT, 0, 0, "FILE", "chat messages (JSON): the template is applied")                             \
    /* request */                                                                                                                         \
    X(MAX_TOKENS, I64, max_tokens, "max-tokens", 0, "n-predict", G_REQUEST, -1, 4294967295.0, "N",                                        \
      "most tokens to generate, at least 1; -1: as far as it goes")                                                                      \
    X(SEED, U64, seed, "seed", 's', "", G_REQUEST, 0, 18446744073709551615.0, "N", "seed of the sampling noise; default: drawn")          \
    X(CHOICES, U32, choices, "choices", 0, "", G_INPUT, 1, 128, "N", "answers to one prompt")                                             \
    X(ALLOW_IDS, STR, allow_ids, "allow-ids", 0, "", G_INPUT | G_MORE, 0, 0, "1,2,3", "the only token ids that may be chosen")            \
    X(PROPOSE, STR, propose, "propose", 0, "", G_REQUEST | G_MORE, 0, 0, "WHO",                                                           \
      "who guesses tokens ahead: none, auto (default), or some of echo,lookup,draft; changes no text")                                          \
    X(PROPOSE_DEPTH, U32, propose_depth, "propose-depth", 0, "", G_REQUEST | G_MORE, 0, 31, "N",                                          \
      "most tokens of a guess, whatever it costs; 0: as many as pay")                                                                     \
    X(OUTPUT, STR, output, "output", 0, "", G_REQUEST | G_MORE, 0, 0, "FORMAT",                                                           \
      "how reasoning and tool calls are told from text: auto, none or a name (docs/output.md)")                                           \
    X(IGNORE_EOS, FLAG, ignore_eos, "ignore-eos", 0, "", G_REQUEST | G_MORE, 0, 0, "", "the end-of-text token is an ordinary token")      \
    X(STOP, LIST, stop, "stop", 0, "", G_REQUEST, 0, 0, "TEXT", "end before this text (may be repeated)")                                 \
    X(STOP_ID, LIST, stop_id, "stop-id", 0, "", G_REQUEST | G_MORE, 0, 0, "ID", "end at this token (may be repeated)")                    \
    X(TOP_LOGPROBS, U32, top_logprobs, "top-logprobs", 0, "", G_INPUT, 0, 128, "K", "log-probabilities of the K likeliest tokens")        \
    X(LOGPROBS, FLAG, logprobs, "logprobs", 0, "", G_INPUT, 0, 0, "", "log-probability of each token")                                    \
    /* sampling */                                                                                                                        \
    X(TEMPERATURE, F32, temperature, "temperature", 0, "temp", G_SAMPLE, 0, 1000, "T", "0: always the likeliest token")                   \
    X(TOP_K, U32, top_k, "top-k", 0, "", G_SAMPLE, 0, 4294967295.0, "K", "keep the K likeliest; 0: off")                                  \
    X(TOP_P, F32, top_p, "top-p", 0, "", G_SAMPLE, 0, 1, "P", "keep the likeliest that reach probability P; 1: off")                      \
    X(MIN_P, F32, min_p, "min-p", 0, "", G_SAMPLE, 0, 1, "P", "keep what is at least P times the likeliest; 0: off")                      \
    X(TYPICAL_P, F32, typical_p, "typical-p", 0, "typical", G_SAMPLE | G_MORE, 0, 1, "P", "locally typical sampling; 1: off")             \
    X(TOP_N_SIGMA, F32, top_n_sigma, "top-n-sigma", 0, "", G_SAMPLE | G_MORE, -1, 1000, "N", "keep logits within N deviations of the best; 0: off") \
    X(XTC_PROBABILITY, F32, xtc_probability, "xtc-probability", 0, "", G_SAMPLE | G_MORE, 0, 1, "P", "chance to drop the top choices; 0: off") \
    X(XTC_THRESHOLD, F32, xtc_threshold, "xtc-threshold", 0, "", G_SAMPLE | G_MORE, 0, 1, "P", "what counts as a top choice")             \
    X(REPETITION_PENALTY, F32, repetition_penalty, "repetition-penalty", 0, "repeat-penalty", G_SAMPLE, 0.001, 1000, "R", "1: off")       \
    X(PRESENCE_PENALTY, F32, presence_penalty, "presence-penalty", 0, "", G_SAMPLE | G_MORE, -1000, 1000, "R", "0: off")                  \
    X(FREQUENCY_PENALTY, F32, frequency_penalty, "frequency-penalty", 0, "", G_SAMPLE | G_MORE, -1000, 1000, "R", "0: off")               \
    X(PENALTY_WINDOW, U32, penalty_window, "penalty-window", 0, "repeat-last-n", G_SAMPLE | G_MORE, 0, 4294967295.0, "N",                 \
      "tokens the penalties look back; 0: all")                                                                                           \
    X(LOGIT_BIAS, LIST, logit_bias, "logit-bias", 0, "", G_SAMPLE | G_MORE, 0, 0, "ID=B", "added to a token's logit; B may be -inf (repeatable)") \
    X(MIN_TOKENS, U32, min_tokens, "min-tokens", 0, "", G_SAMPLE | G_MORE, 0, 4294967295.0, "N", "no end token before this many")         \
    X(SAMPLER_ORDER, STR, sampler_order, "sampler-order", 0, "", G_SAMPLE | G_MORE, 0, 0, "LIST",                                         \
      "order of the filters: top_n_sigma,top_k,typical_p,top_p,min_p,xtc")                                                                \
    /* score */                                                                                                                           \
    X(FILE, STR, file, "file", 'f', "", G_SCORE | G_KVCHECK, 0, 0, "FILE", "text file; score cuts it into windows of the context")        \
    X(TOP, U32, top, "top", 0, "", G_SCORE, 0, 128, "K", "the K likeliest tokens at each position")                                       \
    X(LOGITS, STR, logits, "logits", 0, "", G_SCORE, 0, 0, "last", "raw logits of the last position")                                     \
    X(WINDOW, U32, window, "window", 0, "", G_SCORE | G_MORE, 2, 4294967295.0, "N", "tokens of a window; default: the context")           \
    /* kvcheck */                                                                                                                         \
    X(FORMATS, STR, formats, "formats", 0, "", G_KVCHECK, 0, 0, "LIST", "formats to measure, with commas; default all")                   \
    X(TOKENS, U32, tokens, "tokens", 0, "", G_KVCHECK, 256, 4294967295.0, "N", "tokens of the text; default 4096")                        \
    /* tokenize */                                                                                                                        \
    X(NO_BOS, FLAG, no_bos, "no-bos", 0, "", G_TOKENIZE, 0, 0, "", "without the model's start token")                                     \
    X(NO_PARSE_SPECIAL, FLAG, no_parse_special, "no-parse-special", 0, "", G_TOKENIZE | G_MORE, 0, 0, "", "special tokens in the text stay text") \
    /* render */                                                                                                                          \
    X(MESSAGES, STR, messages, "messages", 'm', "", G_RENDER, 0, 0, "FILE", "chat messages (JSON array)")                                 \
    X(TOOLS, STR, tools, "tools", 0, "", G_TOOLS, 0, 0, "FILE", "tools (JSON array)")                                                     \
    X(SET, LIST, set, "set", 0, "", G_TOOLS, 0, 0, "KEY=JSON", "a variable of the template (may be repeated)")                            \
    X(NO_GENERATION_PROMPT, FLAG, no_generation_prompt, "no-generation-prompt", 0, "", G_TOOLS, 0, 0, "",                                 \
      "leave the answer's opening away")                                                                                                  \
    X(BOUNDARIES, FLAG, boundaries, "boundaries", 0, "", G_RENDER | G_MORE, 0, 0, "", "also print the byte offsets of turn ends")         \
    /* ls, pull and add */                                                                                                                \
    X(NAMES, FLAG, names, "names", 0, "", G_LS, 0, 0, "", "names alone, one a line")                                                      \
    X(REVISION, STR, revision, "revision", 0, "", G_PULL, 0, 0, "REV", "branch, tag or commit of the repository; default main")           \
    X(CONNECTIONS, U32, connections, "connections", 0, "", G_PULL | G_MORE, 1, 16, "N", "parallel ranges; default 4")                     \
    X(ENDPOINT, STR, endpoint, "endpoint", 0, "", G_PULL | G_MORE, 0, 0, "URL", "the hub's address; default $HF_ENDPOINT or the public hub") \
    X(SHA256, STR, sha256, "sha256", 0, "", G_STORE, 0, 0, "HEX", "refuse the file unless this is its SHA-256")                           \
    /* chat in the terminal */                                                                                                            \
    X(SYSTEM, STR, system, "system", 0, "", G_RUN, 0, 0, "TEXT", "system message of the chat")                                            \
    X(PIPED, FLAG, piped, "piped", 0, "", G_RUN, 0, 0, "", "with a PROMPT: wait for standard input to end, however long that takes") \
    /* serve */                                                                                                                         \
    X(MODEL, STR, model, "model", 0, "", G_SERVE | G_MORE, 0, 0, "MODEL", "the model, when none stands on the command line")              \
    X(MODEL_ID, STR, model_id, "model-id", 0, "", G_SERVE, 0, 0, "NAME", "the model's name in the APIs; default: MODEL's last part")      \
    X(ALIAS, LIST, alias, "alias", 0, "", G_SERVE | G_MORE, 0, 0, "NAME", "a further name of the model that requests may say (repeatable)") \
    X(ANY_MODEL, FLAG, any_model, "any-model", 0, "", G_SERVE | G_MORE, 0, 0, "", "answer whatever model a request names")                \
    X(VERBATIM, FLAG, verbatim, "verbatim", 0, "", G_SERVE | G_MORE, 0, 0, "", "keep billing headers and times of day in system messages") \
    X(UNDATED, FLAG, undated, "undated", 0, "", G_SERVE | G_MORE, 0, 0, "", "leave dates out of what system messages say of the date") \
    X(HOST, STR, host, "host", 0, "", G_SERVE, 0, 0, "ADDRESS", "address to listen on; default 127.0.0.1; empty: none")                   \
    X(PORT, U32, port, "port", 0, "", G_SERVE, 0, 65535, "N", "TCP port; default 8080; 0: a free one, printed")                           \
    X(UNIX, STR, unix_path, "unix", 0, "", G_SERVE, 0, 0, "PATH", "also listen on this unix socket (its owner's only)")                   \
    X(TLS_CERT, STR, tls_cert, "tls-cert", 0, "", G_SERVE, 0, 0, "FILE", "TLS certificate chain (PEM)")                                   \
    X(TLS_KEY, STR, tls_key, "tls-key", 0, "", G_SERVE, 0, 0, "FILE", "TLS private key (PEM)")                                            \
    X(API_KEY_FILE, STR, api_key_file, "api-key-file", 0, "", G_SERVE, 0, 0, "FILE",                                                      \
      "keys, one a line: [NAME] KEY [admin]; also $RHAPSODE_API_KEY, an administrator's")                                                 \
    X(NO_KEY, FLAG, no_key, "no-key", 0, "", G_SERVE | G_MORE, 0, 0, "", "listen beyond this machine without a key")                      \
    X(ALLOW_HOST, LIST, allow_host, "allow-host", 0, "", G_SERVE | G_MORE, 0, 0, "NAME", "a name of this server that Host may say; * for any (repeatable)") \
    X(ALLOW_ORIGIN, LIST, allow_origin, "allow-origin", 0, "cors", G_SERVE, 0, 0, "ORIGIN",                                               \
      "web pages that may ask this server (CORS); * for any (repeatable)")                                                                \
    X(STRICT, FLAG, strict, "strict", 0, "", G_SERVE | G_MORE, 0, 0, "", "refuse requests with unknown fields")                           \
    X(QUEUE, U32, queue, "queue", 0, "", G_SERVE | G_MORE, 1, 65536, "N", "generations at a time, waiting ones included; default 1024")   \
    X(CONNECTIONS_MAX, U32, connections_max, "connections-max", 0, "", G_SERVE | G_MORE, 1, 1000000, "N", "open connections; default 4096") \
    X(BODY_MAX, SIZE, body_max, "body-max", 0, "", G_SERVE | G_MORE, 1, 4e9, "BYTES", "largest request body; default 32M")                \
    X(HEADER_S, U32, header_s, "header-timeout", 0, "", G_SERVE | G_MORE, 1, 3600, "S", "a request's head must be whole within; default 10") \
    X(IDLE_S, U32, idle_s, "idle-timeout", 0, "", G_SERVE | G_MORE, 1, 86400, "S", "a connection without a request is closed after; default 75") \
    X(WRITE_S, U32, write_s, "write-timeout", 0, "", G_SERVE | G_MORE, 1, 86400, "S", "a client that takes no byte is cut off after; default 30") \
    X(HEARTBEAT_S, U32, heartbeat_s, "heartbeat", 0, "", G_SERVE | G_MORE, 1, 3600, "S", "a silent stream sends a comment after; default 10") \
    X(DRAIN_S, U32, drain_s, "drain", 0, "", G_SERVE | G_MORE, 1, 86400, "S", "after SIGTERM, answers may take so long to end; default 30") \
    X(LOG_REQUESTS, FLAG, log_requests, "log-requests", 0, "", G_SERVE, 0, 0, "", "a JSON line on standard error for each request")       \
    X(LOG_PROMPTS, FLAG, log_prompts, "log-prompts", 0, "", G_SERVE | G_MORE, 0, 0, "", "and prompts in it")                              \
    X(TRACE, STR, trace, "trace", 0, "", G_SERVE | G_MORE, 0, 0, "FILE", "phases of every generation, for chrome://tracing")              \
    /* bench */                                                                                                                           \
    X(BENCH_PROMPT, U32, bench_prompt, "n-prompt", 'p', "", G_BENCH, 0, 10000000, "N", "prompt tokens; default 512, 0: none")             \
    X(BENCH_DECODE, U32, bench_decode, "n-gen", 'n', "", G_BENCH, 0, 10000000, "N", "decoded tokens; default 128, 0: none")               \
    X(BENCH_REPS, U32, bench_reps, "repetitions", 'r', "", G_BENCH, 1, 1000, "N", "repetitions; default 5")                               \
    X(BENCH_DEPTH, U32, bench_depth, "depth", 'd', "", G_BENCH | G_MORE, 0, 10000000, "N", "tokens already in the context")               \
    X(BENCH_LIMITS, FLAG, bench_limits, "limits", 0, "", G_BENCH, 0, 0, "", "no MODEL: what the device can do at best, measured")         \
    X(BENCH_SEQUENCES, U32, bench_sequences, "sequences", 0, "", G_BENCH | G_MORE, 1, 1024, "N", "sequences decoded side by side, --depth of each its own; default 1")

#endif
