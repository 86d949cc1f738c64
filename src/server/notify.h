/* server/notify.h - tells systemd how the server fares (sd_notify's protocol: lines in a datagram). */
#ifndef RH_SERVER_NOTIFY_H
#define RH_SERVER_NOTIFY_H

struct server;
void notify_open(struct server *s);
void notify_send(struct server *s, const char *text);
void notify_tick(struct server *s); /* the watchdog, while the engine works */
void notify_close(struct server *s);

#endif
