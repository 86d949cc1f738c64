/* engine/gate.c - see gate.h. */
#include "engine/gate.h"

#include <stddef.h>

void engine_gate_init(struct engine_gate *g)
{
    pthread_mutex_init(&g->mutex, NULL);
    pthread_cond_init(&g->cond, NULL);
    g->next = g->serving = 0;
}

void engine_gate_free(struct engine_gate *g)
{
    pthread_cond_destroy(&g->cond);
    pthread_mutex_destroy(&g->mutex);
}

void engine_gate_enter(struct engine_gate *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    uint64_t mine = g->next++;
    while (g->serving != mine)
        pthread_cond_wait(&g->cond, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
}

void engine_gate_leave(struct engine_gate *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mutex);
    g->serving++;
    pthread_cond_broadcast(&g->cond);
    pthread_mutex_unlock(&g->mutex);
}

bool engine_gate_wanted(struct engine_gate *g)
{
    if (!g)
        return false;
    pthread_mutex_lock(&g->mutex);
    bool wanted = g->next - g->serving > 1;
    pthread_mutex_unlock(&g->mutex);
    return wanted;
}
