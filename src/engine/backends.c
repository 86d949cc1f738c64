/* engine/backends.c - the one list of backends: a backend is one folder and one word here. */
#include "engine/backends.h"

#include "backend_cpu/backend_cpu.h"
#include "backend_cuda/backend_cuda.h"
#include "backend_ref/backend_ref.h"
#include "base/log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The last may be missing (see backend_cuda.h). */
static const struct backend *const list[] = {&backend_cpu, &backend_ref, &backend_cuda};

uint32_t backends_count(void)
{
    return sizeof list / sizeof *list - (&backend_cuda == NULL);
}

const struct backend *backends_at(uint32_t i)
{
    return list[i];
}

/* "cuda:1" -> "cuda", 1, alone; "cuda:0,cuda:1" -> "cuda", 0, the first of two */
static int name_split(const char *name, char *word, size_t room, struct device_config *cfg, struct err *err)
{
    size_t all = strcspn(name, ","), n = strcspn(name, ":,");
    char *end = NULL;
    cfg->index = name[n] == ':' ? (uint32_t)strtoul(name + n + 1, &end, 10) : 0;
    cfg->group = (struct device_group){0, 1};
    for (const char *p = name; (p = strchr(p, ',')) != NULL; p++)
        cfg->group.size++;
    if (n >= room || (name[n] == ':' && (end == name + n + 1 || end != name + all)))
        return err_set(err, ERR_ARGUMENT, "device '%.64s': expected a name, or a name and a number as in cuda:1", name);
    memcpy(word, name, n);
    word[n] = 0;
    return 0;
}

int backends_find(const char *name, const struct backend **out, struct err *err)
{
    char names[128] = "", word[32];
    size_t n = 0;
    struct device_config named;
    int rc = name ? name_split(name, word, sizeof word, &named, err) : 0;
    for (uint32_t i = 0; i < backends_count() && rc == 0; i++) {
        if (!name || strcmp(word, list[i]->name) == 0) {
            *out = list[i];
            return 0;
        }
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", list[i]->name);
    }
    if (rc == 0 && strcmp(word, "cuda") == 0)
        return err_set(err, ERR_UNSUPPORTED, "device '%.64s': this build is for CPUs only; with CUDA's compiler (nvcc) there, cmake --preset cuda && "
                       "cmake --build --preset cuda makes one for GPUs too (build/cuda/rhapsode)", name);
    return rc ? rc : err_set(err, ERR_ARGUMENT, "device '%.64s': expected auto or one of %s", name, names);
}

static int open_named(const char *name, const struct device_config *cfg, const struct backend **backend, struct device **out, struct err *err)
{
    struct device_config own = *cfg;
    char word[32];
    int rc = backends_find(name, backend, err);
    if (rc == 0 && name)
        rc = name_split(name, word, sizeof word, &own, err);
    if (rc == 0 && strcmp((*backend)->name, "cuda") == 0)
        own.level = NULL; /* levels are the CPU's */
    if (rc == 0)
        rc = backend_check(*backend, err);
    rc = rc ? rc : device_group_check(&own, (*backend)->name, err);
    return rc ? rc : (*backend)->device_open(&own, out, err);
}

int backends_open(const char *name, const struct device_config *cfg, const struct backend **backend, struct device **out, struct err *err)
{
    struct err why = {0};
    *out = NULL;
    if (name && strcmp(name, "auto") != 0)
        return open_named(name, cfg, backend, out, err);
    for (uint32_t i = 0; i < backends_count(); i++) {
        if (strcmp(list[i]->name, "cuda") == 0 && open_named("cuda", cfg, backend, out, &why) == 0)
            return 0;
    }
    if (why.text[0])
        log_put(LOG_DEBUG, "%s: the CPU is used", why.text);
    return open_named(NULL, cfg, backend, out, err);
}
