/* front/prepare.c - worker threads that turn text into ids before the engine sees a request.  Jobs run in the order they came. */
#include "front/front_int.h"

void prepare_open(struct prepare_pool *p)
{
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->cond, NULL);
    p->last = &p->first;
}

static struct prepare_job *next_job(struct prepare_pool *p) /* NULL: closing and nothing left */
{
    pthread_mutex_lock(&p->mutex);
    while (!p->first && !p->closing)
        pthread_cond_wait(&p->cond, &p->mutex);
    struct prepare_job *job = p->first;
    if (job) {
        p->first = job->next;
        if (!p->first)
            p->last = &p->first;
    }
    pthread_mutex_unlock(&p->mutex);
    return job;
}

static void *prepare_thread(void *arg)
{
    struct prepare_job *job;
    thread_name("prepare");
    while ((job = next_job(arg)))
        job->run(job);
    return NULL;
}

int prepare_put(struct prepare_pool *p, struct prepare_job *job, struct err *err)
{
    int rc = 0;
    pthread_mutex_lock(&p->mutex);
    /* all of them with the first job, so that how many there are does not depend on what came at once */
    for (uint32_t n = sizeof p->threads / sizeof *p->threads; p->thread_count < n && !p->tried; p->thread_count++)
        if (pthread_create(&p->threads[p->thread_count], NULL, prepare_thread, p))
            break;
    p->tried = p->thread_count > 0;
    if (p->thread_count == 0)
        rc = err_set(err, ERR_NOMEM, "cannot start a preparation thread");
    else {
        job->next = NULL;
        *p->last = job;
        p->last = &job->next;
        pthread_cond_signal(&p->cond);
    }
    pthread_mutex_unlock(&p->mutex);
    return rc;
}

void prepare_close(struct prepare_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    p->closing = true;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->mutex);
    for (uint32_t i = 0; i < p->thread_count; i++)
        pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->cond);
    pthread_mutex_destroy(&p->mutex);
}
