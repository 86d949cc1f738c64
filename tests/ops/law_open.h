/* tests/ops/law_open.h - the device of an op test that compares a backend with itself: `program [cuda]`, else the CPU's best level. */
#ifndef RH_TESTS_LAW_OPEN_H
#define RH_TESTS_LAW_OPEN_H

#include "backend_cpu/backend_cpu.h"
#include "other_backend.h"
#include "row_cases.h"

static inline bool law_on_cuda(int argc, char **argv)
{
    return argc > 1 && strcmp(argv[1], "cuda") == 0;
}

/* Two threads, room for `reserve`.  Anything but `cuda`, or that where it was not linked, ends the program with the usage. */
static inline void law_open(int argc, char **argv, const char *program, const struct device_reserve *reserve, struct device **out)
{
    const struct backend *be = law_on_cuda(argc, argv) ? cuda : &backend_cpu;
    struct device_config cfg = {.n_threads = 2, .level = law_on_cuda(argc, argv) ? "host" : NULL};
    struct err err = {0};
    if (!be || (argc > 1 && !law_on_cuda(argc, argv))) {
        fprintf(stderr, "usage: %s [cuda]        (cuda: where it was built)\n", program);
        exit(2);
    }
    must(be->device_open(&cfg, out, &err), &err);
    must(be->reserve(*out, reserve, &err), &err);
}

#endif
