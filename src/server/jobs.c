/* server/jobs.c - see jobs.h. */
#include "server/jobs.h"

#include "base/mem.h"
#include "server/pending.h"

enum { JOBS_MAX = 256 };

struct job { /* owns what it was given */
    struct pending pending; /* first */
    uv_work_t work;
    struct server *s;
    struct http_conn *conn; /* NULL once the peer has left */
    enum api_shape shape;
    job_run run;
    void *in;
    void (*free_in)(void *in);
    struct buf body;
    struct api_error err;
    int rc;
};

static void on_gone(struct pending *p)
{
    ((struct job *)(void *)p)->conn = NULL; /* the worker ends what it began */
}

static void on_work(uv_work_t *w)
{
    struct job *j = w->data;
    j->rc = j->run(j->s->model, j->in, &j->body, &j->err);
}

static void on_worked(uv_work_t *w, int status)
{
    struct job *j = w->data;
    struct call c = {.s = j->s, .conn = j->conn, .shape = j->shape};
    (void)status;
    j->s->job_count--;
    if (j->conn && j->rc)
        api_error_reply(j->s, j->conn, j->shape, &j->err);
    else if (j->conn)
        call_reply_json(&c, 200, (struct str){0}, &j->body);
    j->free_in(j->in);
    buf_free(&j->body);
    mem_free(j);
}

int job_start(const struct call *c, job_run run, void *in, void (*free_in)(void *in), struct api_error *e)
{
    struct job *j = c->s->job_count < JOBS_MAX ? mem_try_zero(1, sizeof *j) : NULL;
    if (!j) {
        free_in(in);
        e->retry_s = 1;
        return api_fail(e, 429, "queue_full", "", "too many texts are being cut at once");
    }
    j->pending = (struct pending){on_gone, NULL};
    j->work.data = j;
    j->s = c->s;
    j->conn = c->conn;
    j->shape = c->shape;
    j->run = run;
    j->in = in;
    j->free_in = free_in;
    c->s->job_count++;
    http_user_set(c->conn, j);
    uv_queue_work(&c->s->loop, &j->work, on_work, on_worked);
    return 0;
}
