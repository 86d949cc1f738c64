/* engine/backends.c - the one list of backends: a backend is one folder and one word here. */
#include "engine/backends.h"

#include <stdio.h>
#include <string.h>

#define BACKENDS(X) \
    X(cpu)          \
    X(ref)

#define BACKEND_EXTERN(name) extern const struct backend backend_##name;
BACKENDS(BACKEND_EXTERN)
#undef BACKEND_EXTERN

static const struct backend *const list[] = {
#define BACKEND_ENTRY(name) &backend_##name,
    BACKENDS(BACKEND_ENTRY)
#undef BACKEND_ENTRY
};

uint32_t backends_count(void)
{
    return sizeof list / sizeof *list;
}

const struct backend *backends_at(uint32_t i)
{
    return list[i];
}

int backends_find(const char *name, const struct backend **out, struct err *err)
{
    char names[128] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < backends_count(); i++) {
        if (!name || strcmp(name, list[i]->name) == 0) {
            *out = list[i];
            return 0;
        }
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", list[i]->name);
    }
    return err_set(err, ERR_NOT_FOUND, "backend '%.64s': expected one of %s", name, names);
}
