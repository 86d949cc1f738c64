/* cli/piped.c - see piped.h. */
#include "cli/piped.h"

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 65536, IN_TIME_NOTHING = BLOCK + 1 };

/* Bytes read, 0 at the end, -1 with errno, or IN_TIME_NOTHING. */
static ssize_t turn(struct buf *out, int timeout_ms)
{
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    int ready = poll(&p, 1, timeout_ms);
    if (ready <= 0)
        return ready ? -1 : IN_TIME_NOTHING;
    char *to = buf_room(out, BLOCK);
    if (!to) {
        errno = ENOMEM;
        return -1;
    }
    ssize_t n = read(STDIN_FILENO, to, BLOCK);
    out->n += n > 0 ? (size_t)n : 0;
    return n;
}

int piped_read(struct buf *out, bool wait, size_t max_bytes, struct err *err)
{
    struct stat st;
    if (fstat(STDIN_FILENO, &st) || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode) || S_ISREG(st.st_mode)))
        return PIPED_NOTHING;
    for (;;) {
        ssize_t n = turn(out, wait ? -1 : out->n ? PIPED_PAUSE_MS : PIPED_FIRST_MS);
        if (n == IN_TIME_NOTHING)
            return out->n ? PIPED_PAUSED : PIPED_SILENT;
        if (n == 0)
            return out->n ? PIPED_WHOLE : PIPED_NOTHING;
        if (n < 0 && errno != EINTR)
            return err_set(err, ERR_IO, "standard input: cannot read: %s", strerror(errno));
        if (out->n > max_bytes)
            return err_set(err, ERR_LIMIT, "standard input: larger than the limit of %zu bytes", max_bytes);
    }
}
