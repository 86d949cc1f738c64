/* base/file.h - files: mapped reading, whole reading, atomic writing; with a hook that makes the n-th call fail.
 * Threads: each struct by its owner; functions are thread-safe. */
#ifndef RH_BASE_FILE_H
#define RH_BASE_FILE_H

#include "base/buf.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* owns the mapping; read-only, private */
struct file_map {
    const uint8_t *p; /* NULL for an empty file */
    size_t n;         /* bytes */
};

/* Map a regular file.  Errors name the path. */
int file_map_open(struct file_map *m, const char *path, struct err *err);
void file_map_close(struct file_map *m);
/* Tell the kernel that [at, at + n) will / will no longer be read (clean pages are dropped). */
void file_map_will_need(const struct file_map *m, size_t at, size_t n);
void file_map_drop(const struct file_map *m, size_t at, size_t n);

/* Read a whole file (or "-" = standard input) of at most max_bytes. */
int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *err);
/* Write beside and rename over: the path holds the old or the new contents, never a part. */
int file_write_atomic(const char *path, struct str data, struct err *err);

bool file_exists(const char *path);
bool file_is_dir(const char *path);
int file_mkdirs(const char *path, struct err *err);
int64_t file_size(const char *path); /* -1 when absent */

/* dir + "/" + name into out (terminated). */
int file_join(char *out, size_t out_cap, const char *dir, const char *name, struct err *err);

/* Fault tests: let `after` opens/reads/writes pass and fail the next one with EIO.  Negative: never. */
void file_fault_set(int64_t after);

#endif
