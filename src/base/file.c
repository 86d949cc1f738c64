/* base/file.c - see file.h. */
#include "base/file.h"

#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static atomic_llong fault_left = -1;

void file_fault_set(int64_t after)
{
    atomic_store(&fault_left, after);
}

static bool fault(void)
{
    if (atomic_load_explicit(&fault_left, memory_order_relaxed) < 0 || atomic_fetch_sub(&fault_left, 1) != 0)
        return false;
    errno = EIO;
    return true;
}

static int fail(const char *path, const char *what, struct err *err)
{
    int code = errno == ENOENT ? ERR_NOT_FOUND : errno == ENOMEM ? ERR_NOMEM : ERR_IO;
    return err_set(err, code, "%s: %s: %s", path, what, strerror(errno));
}

int file_map_open(struct file_map *m, const char *path, struct err *err)
{
    *m = (struct file_map){0};
    int fd = fault() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(path, "cannot open", err);
    struct stat st;
    int rc = 0;
    if (fstat(fd, &st)) {
        rc = fail(path, "cannot stat", err);
    } else if (!S_ISREG(st.st_mode)) {
        rc = err_set(err, ERR_FORMAT, "%s: expected a regular file, got a %s", path, S_ISDIR(st.st_mode) ? "directory" : "special file");
    } else if (st.st_size > 0) {
        void *p = fault() ? MAP_FAILED : mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (p == MAP_FAILED)
            rc = fail(path, "cannot map", err);
        else
            *m = (struct file_map){p, (size_t)st.st_size};
    }
    close(fd);
    return rc;
}

void file_map_close(struct file_map *m)
{
    if (m->p)
        munmap((void *)(uintptr_t)m->p, m->n);
    *m = (struct file_map){0};
}

static void advise(const struct file_map *m, size_t at, size_t n, int how)
{
    size_t page = 4096, lo = at & ~(page - 1);
    if (m->p && at < m->n && n <= m->n - at)
        madvise((void *)(uintptr_t)(m->p + lo), n + (at - lo), how);
}

void file_map_will_need(const struct file_map *m, size_t at, size_t n)
{
    advise(m, at, n, MADV_WILLNEED);
}

void file_map_drop(const struct file_map *m, size_t at, size_t n)
{
    advise(m, at, n, MADV_DONTNEED);
}

int file_read(struct buf *out, const char *path, size_t max_bytes, struct err *err)
{
    bool in = strcmp(path, "-") == 0;
    int fd = in ? STDIN_FILENO : fault() ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail(path, "cannot open", err);
    int rc = 0;
    size_t start = out->n;
    for (;;) {
        char *to = buf_room(out, 65536);
        if (!to) {
            rc = buf_check(out, path, err);
            break;
        }
        ssize_t n = fault() ? -1 : read(fd, to, 65536);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = fail(path, "cannot read", err);
        if (n <= 0)
            break;
        out->n += (size_t)n;
        if (out->n - start > max_bytes) {
            rc = err_set(err, ERR_LIMIT, "%s: larger than the limit of %zu bytes", path, max_bytes);
            break;
        }
    }
    if (!in)
        close(fd);
    return rc;
}

static int write_all(int fd, struct str data)
{
    while (data.n) {
        ssize_t n = fault() ? -1 : write(fd, data.p, data.n);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        data = str_from(data, (size_t)n);
    }
    return 0;
}

int file_write_atomic(const char *path, struct str data, struct err *err)
{
    char tmp[4096];
    if (snprintf(tmp, sizeof tmp, "%s.tmp.%ld", path, (long)getpid()) >= (int)sizeof tmp)
        return err_set(err, ERR_ARGUMENT, "%s: path too long", path);
    int fd = fault() ? -1 : open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail(tmp, "cannot create", err);
    int rc = 0;
    if (write_all(fd, data) || fsync(fd))
        rc = fail(tmp, "cannot write", err);
    if (close(fd) && !rc)
        rc = fail(tmp, "cannot close", err);
    if (!rc && rename(tmp, path))
        rc = fail(path, "cannot rename into place", err);
    if (rc)
        unlink(tmp);
    return rc;
}

bool file_exists(const char *path)
{
    return access(path, F_OK) == 0;
}

bool file_is_dir(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

int64_t file_size(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

int file_mkdirs(const char *path, struct err *err)
{
    char tmp[4096];
    size_t n = strlen(path);
    if (n == 0 || n >= sizeof tmp)
        return err_set(err, ERR_ARGUMENT, "%s: bad directory path", path);
    memcpy(tmp, path, n + 1);
    for (char *p = tmp + 1; *p; p++) {
        if (*p != '/')
            continue;
        *p = 0;
        if (mkdir(tmp, 0777) && errno != EEXIST)
            return fail(tmp, "cannot create directory", err);
        *p = '/';
    }
    if (mkdir(tmp, 0777) && errno != EEXIST)
        return fail(tmp, "cannot create directory", err);
    return 0;
}

int file_join(char *out, size_t out_cap, const char *dir, const char *name, struct err *err)
{
    if (snprintf(out, out_cap, "%s/%s", dir, name) >= (int)out_cap)
        return err_set(err, ERR_ARGUMENT, "%s/%s: path too long", dir, name);
    return 0;
}
