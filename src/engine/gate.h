/* engine/gate.h - engines of several models take turns on one device: a fair lock, first come first served.
 * An engine holds it for one step (plan, run, commit), loading holds it while weights are prepared. */
#ifndef RH_ENGINE_GATE_H
#define RH_ENGINE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

/* process or host lifetime; any thread */
struct engine_gate {
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint64_t next, serving; /* tickets */
};

void engine_gate_init(struct engine_gate *g);
void engine_gate_free(struct engine_gate *g);
void engine_gate_enter(struct engine_gate *g); /* NULL: nothing */
void engine_gate_leave(struct engine_gate *g);
bool engine_gate_wanted(struct engine_gate *g); /* by whoever holds it: somebody else waits */

#endif
