/* tests/law/matrix_axes.c - the words of the law matrix. */
#include "law/matrix.h"

#include <string.h>

#define COUNT(list) (uint32_t)(sizeof(list) / sizeof *(list))

const struct machine_word machine_words[] = {
    {"cpu, 1 thread", "cpu", NULL, 1, 1},
    {"cpu, 2 threads", "cpu", NULL, 2, 1},
    {"ref", "ref", NULL, 1, 1},
    {"ref, 2 steps in flight", "ref", "deferred", 1, 2}, /* nothing of a step runs before its event is waited for */
    {"cuda", "cuda", NULL, 1, 1},
    {"cuda, 2 steps in flight", "cuda", NULL, 1, 2},
};
const uint32_t machine_count = COUNT(machine_words);

const char *const kv_words[] = {"f32", "f16",   "bf16",  "q8",    "a8g32", "a8g64", "a4g32",
                                "q4h", "tq4",   "tq3",   "k8v4",  "k8v3",  "k4v4",  "f16:q8",
                                /* kv_start inside the prompt, at a page's end; and in the middle of the answer */
                                "q8 from 96", "k8v4 from 165",
                                /* the first layer that keeps keys and values has a format of its own */
                                "f16, one layer q8", "k8v4, one layer bf16:f16"};
const uint32_t kv_count = COUNT(kv_words);

const struct propose_word propose_words[] = {
    {"no proposals", 0, 0},
    {"echo", ENGINE_PROPOSE_ECHO, 8},
    {"lookup", ENGINE_PROPOSE_LOOKUP, 6},
    {"draft", ENGINE_PROPOSE_DRAFT, 4},
    {"all, as they pay", ENGINE_PROPOSE_ALL, 0},
};
const uint32_t propose_count = COUNT(propose_words);

const struct sampling_word sampling_words[] = {
    {"greedy", 0, 1, 1, 0, 0, 1, 0, false, false, 0, false},
    {"seeded", 0.9f, 0.95f, 1, 0, 0, 1, 0, false, false, 0, false},
    {"penalties", 0.8f, 1, 1.2f, 0.3f, 24, 1, 0, false, false, 0, false},
    {"logprobs", 0, 1, 1, 0, 0, 1, TOP, true, false, 0, false},
    {"n = 3", 1, 0.9f, 1, 0, 0, 3, 2, true, false, 0, false},
    {"only some ids", 0.7f, 1, 1, 0, 0, 1, TOP, true, true, 0, false},
    {"embedding, last", 0, 1, 1, 0, 0, 1, 0, false, false, ENGINE_POOL_LAST, false},
    {"embedding, mean", 0, 1, 1, 0, 0, 1, 0, false, false, ENGINE_POOL_MEAN, false},
    {"begins as required", 0.9f, 1, 1, 0, 0, 1, 0, false, false, 0, true},
};
const uint32_t sampling_count = COUNT(sampling_words);

static const char *const axis_names[AXIS_COUNT] = {"model", "state format", "machine", "cache", "company", "cut", "proposals", "sampling"};
static const char *const cache_names[CACHE_WORDS] = {"cold", "hit", "partial hit", "after rewind", "after pre-emption"};
static const char *const company_names[] = {"alone", "among 8"};
static const char *const cut_names[] = {"one span", "random chunks"};

const char *matrix_axis_name(uint32_t axis)
{
    return axis_names[axis];
}

const char *matrix_word(const struct matrix *m, uint32_t axis, uint32_t word)
{
    const char *slash;
    switch ((enum axis)axis) {
    case AXIS_MODEL:
        slash = strrchr(m->models[word], '/');
        return slash ? slash + 1 : m->models[word];
    case AXIS_KV:
        return kv_words[word];
    case AXIS_MACHINE:
        return machine_words[m->machine_first + word].name;
    case AXIS_CACHE:
        return cache_names[word];
    case AXIS_COMPANY:
        return company_names[word];
    case AXIS_CUT:
        return cut_names[word];
    case AXIS_PROPOSE:
        return propose_words[word].name;
    case AXIS_SAMPLING:
        return sampling_words[word].name;
    case AXIS_COUNT:
        break;
    }
    return "?";
}
