/* hub/hub.h - the store of models on disk, and pulls from a hub that speaks the Hugging Face endpoints.
 *
 * Owns:       the store folder:  models/<escaped name>/entry.json  (name, main file, files with size and SHA-256, source)
 *                                models/<escaped name>/files/...   (a partly pulled file is X.partial with X.partial.json beside it)
 *             An entry exists for users once entry.json is there: it is written last, atomically.
 * Invariants: 1. A file under its final name has the size and SHA-256 the hub named for it (git files without one: the size).
 *             2. A pull that stops for any reason leaves a partial that the next one continues; what is there is never fetched again.
 *                One that got no byte leaves nothing.
 *             3. Paths named by the hub never leave the entry's folder.
 *             4. The bearer token goes to the endpoint's own host only.
 * Threads:    any; two pulls of one name: the second is refused (ERR_BUSY). */
#ifndef RH_HUB_HUB_H
#define RH_HUB_HUB_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>

struct hub_progress {
    const char *file;            /* being fetched; NULL when all is there */
    uint64_t done_bytes, total_bytes; /* of the whole pull */
    double bytes_per_s;          /* over the last seconds */
};

struct hub_pull_options {
    const char *endpoint;        /* "https://..."; NULL = the public hub */
    const char *token;           /* NULL = none */
    const char *revision;        /* NULL = "main" */
    uint32_t connections;        /* parallel ranges; 0 = 4 */
    void (*progress)(void *ctx, const struct hub_progress *p);
    void *progress_ctx;
    const volatile int *cancelled;
};

/* spec: ORG/REPO[:FILE], FILE a path of the repository or a quantisation name ("Q4_K_M").  Appends the path to open to `path`. */
int hub_pull(const char *store, const char *spec, const struct hub_pull_options *opt, struct buf *path, struct err *err);

/* Take local files of one folder (hard links, else copies); names[0] is the one to open (config.json: their folder).  An entry of that name is
 * replaced.  sha256: of names[0], 64 hex digits, or NULL. */
int hub_store_add(const char *store, const char *name, const char *dir, const char *const *names, size_t count, const char *sha256, struct err *err);
/* Does a file of that name belong to a safetensors model? */
bool hub_model_file(struct str name);
/* JSON: [{"name", "path", "bytes", "complete", "modified", "sha256"}], sorted by name, sha256 where it is one file and known; partial pulls are
 * listed with complete = false. */
int hub_store_list(const char *store, struct buf *json, struct err *err);
int hub_store_remove(const char *store, const char *name, struct err *err);
/* Path of a complete entry: exact name, or the only one that starts with `name`.  ERR_NOT_FOUND says which may have been meant. */
int hub_store_find(const char *store, const char *name, struct buf *path, struct err *err);

#endif
