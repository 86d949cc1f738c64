/* server/tls.h - TLS over memory BIOs: ciphertext in and out by hand, so that libuv keeps the sockets.  I/O thread only. */
#ifndef RH_SERVER_TLS_H
#define RH_SERVER_TLS_H

#include "base/buf.h"
#include "base/err.h"
#include "base/str.h"

struct tls_context; /* process lifetime; certificate and key */
int tls_context_open(const char *cert_path, const char *key_path, struct tls_context **out, struct err *err);
void tls_context_close(struct tls_context *c);

struct tls; /* one connection */
struct tls *tls_new(struct tls_context *c); /* NULL: no memory */
void tls_free(struct tls *t);
/* Received ciphertext in; plain bytes are appended to `plain`, ciphertext to send to `out`.  Not 0: the connection is to end.
 * *ended: the peer said that nothing follows. */
int tls_receive(struct tls *t, struct str data, struct buf *plain, struct buf *out, bool *ended);
int tls_send(struct tls *t, struct str plain, struct buf *out); /* not before the handshake: answers follow requests */
void tls_shutdown(struct tls *t, struct buf *out);

#endif
