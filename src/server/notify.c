/* server/notify.c - see notify.h. */
#include "server/notify.h"

#include "server/routes.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void notify_open(struct server *s)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *path = s->cfg->notify_socket;
    size_t n = path ? strlen(path) : 0;
    if (n < 2 || n >= sizeof to.sun_path)
        return;
    memcpy(to.sun_path, path, n);
    if (path[0] == '@') /* the abstract name space */
        to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&to, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) == 0)
        s->notify_fd = fd;
    else if (fd >= 0)
        close(fd);
}

void notify_send(struct server *s, const char *text)
{
    if (s->notify_fd >= 0)
        (void)!send(s->notify_fd, text, strlen(text), MSG_NOSIGNAL);
}

void notify_tick(struct server *s)
{
    uint64_t now = uv_now(&s->loop), every = s->cfg->watchdog_us / 2000;
    if (!every || now - s->notified_ms < every || !server_healthy(s))
        return;
    s->notified_ms = now;
    notify_send(s, "WATCHDOG=1");
}

void notify_close(struct server *s)
{
    if (s->notify_fd >= 0)
        close(s->notify_fd);
    s->notify_fd = -1;
}
