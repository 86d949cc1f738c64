/* server/tls.c - see tls.h. */
#include "server/tls.h"

#include "base/mem.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

struct tls_context {
    SSL_CTX *ctx;
};

struct tls { /* owns the session and both BIOs (through it) */
    SSL *ssl;
    BIO *in, *out;
};

static int tls_error(struct err *err, const char *what, const char *path)
{
    char text[256] = "";
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    ERR_clear_error();
    return err_set(err, ERR_ARGUMENT, "%s '%s': %s", what, path, text);
}

int tls_context_open(const char *cert_path, const char *key_path, struct tls_context **out, struct err *err)
{
    struct tls_context *c = mem_try_zero(1, sizeof *c);
    *out = c;
    if (!c || !(c->ctx = SSL_CTX_new(TLS_server_method())))
        return err_nomem(err, "TLS", sizeof *c);
    SSL_CTX_set_min_proto_version(c->ctx, TLS1_2_VERSION);
    SSL_CTX_set_mode(c->ctx, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_options(c->ctx, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION | SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_session_cache_mode(c->ctx, SSL_SESS_CACHE_OFF);
    if (SSL_CTX_use_certificate_chain_file(c->ctx, cert_path) != 1)
        return tls_error(err, "TLS certificate", cert_path);
    if (SSL_CTX_use_PrivateKey_file(c->ctx, key_path, SSL_FILETYPE_PEM) != 1 || SSL_CTX_check_private_key(c->ctx) != 1)
        return tls_error(err, "TLS key", key_path);
    return 0;
}

void tls_context_close(struct tls_context *c)
{
    if (!c)
        return;
    SSL_CTX_free(c->ctx);
    mem_free(c);
}

struct tls *tls_new(struct tls_context *c)
{
    struct tls *t = mem_try_zero(1, sizeof *t);
    if (!t)
        return NULL;
    t->ssl = SSL_new(c->ctx);
    t->in = BIO_new(BIO_s_mem());
    t->out = BIO_new(BIO_s_mem());
    if (!t->ssl || !t->in || !t->out) {
        BIO_free(t->in);
        BIO_free(t->out);
        SSL_free(t->ssl);
        mem_free(t);
        return NULL;
    }
    SSL_set_bio(t->ssl, t->in, t->out); /* takes both */
    SSL_set_accept_state(t->ssl);
    return t;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    SSL_free(t->ssl);
    mem_free(t);
}

static void take_out(struct tls *t, struct buf *out)
{
    char *p;
    long n = BIO_get_mem_data(t->out, &p);
    if (n > 0)
        buf_put(out, p, (size_t)n);
    (void)BIO_reset(t->out);
}

int tls_receive(struct tls *t, struct str data, struct buf *plain, struct buf *out, bool *ended)
{
    int rc = 0;
    *ended = false;
    if (BIO_write(t->in, data.p, (int)data.n) != (int)data.n)
        return ERR_NOMEM;
    for (;;) {
        char chunk[16384];
        ERR_clear_error();
        int n = SSL_read(t->ssl, chunk, sizeof chunk);
        if (n > 0) {
            buf_put(plain, chunk, (size_t)n);
            continue;
        }
        int why = SSL_get_error(t->ssl, n);
        *ended = why == SSL_ERROR_ZERO_RETURN;
        if (why != SSL_ERROR_WANT_READ && why != SSL_ERROR_WANT_WRITE && !*ended)
            rc = ERR_NET;
        break;
    }
    ERR_clear_error();
    take_out(t, out);
    return rc;
}

int tls_send(struct tls *t, struct str plain, struct buf *out)
{
    while (plain.n) {
        int n = SSL_write(t->ssl, plain.p, (int)(plain.n > 1 << 20 ? 1 << 20 : plain.n));
        if (n <= 0) {
            ERR_clear_error();
            return ERR_NET;
        }
        plain = str_from(plain, (size_t)n);
        take_out(t, out);
    }
    return 0;
}

void tls_shutdown(struct tls *t, struct buf *out)
{
    SSL_shutdown(t->ssl);
    ERR_clear_error();
    take_out(t, out);
}
