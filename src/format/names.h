/* format/names.h - private to the room: find an entry by its name in an array of structs whose first member is a struct str.
 *
 * Owns:       the slots; not the entries.  Keys are hashed with SipHash under a random key, since a file chooses the names.
 * Invariants: no two entries have the same name; entries must not move after they were added. */
#ifndef RH_FORMAT_NAMES_H
#define RH_FORMAT_NAMES_H

#include "base/err.h"
#include "base/str.h"

struct names {
    uint32_t *slots; /* entry + 1; 0 = empty */
    size_t mask;     /* slots - 1; a power of two at least twice the entries */
    const void *base;
    size_t stride; /* bytes per entry */
    uint64_t key[2];
};

int names_init(struct names *t, const void *base, size_t stride, size_t count_max, struct err *err);
/* Add entry i.  Returns i, or the entry that already has its name (then nothing is added). */
size_t names_add(struct names *t, size_t i);
size_t names_find(const struct names *t, struct str name); /* SIZE_MAX when absent */
void names_free(struct names *t);

/* A name as it may stand in an error message: cut, and control or invalid bytes shown as '?'.  Returns `out`. */
enum { NAMES_SHOW_MAX = 160 };
const char *names_show(struct str name, char out[NAMES_SHOW_MAX]);

/* May this be a tensor's or key's name: 1..65535 bytes of UTF-8 without control characters? */
bool names_valid(struct str name);

#endif
