/* What a step costs outside kernels: what the engine's thread does for one of 32 decoding sequences of a 30-layer model (planning, enqueuing some
 * 200 records, committing, publishing).  It goes to sleep once a step, for the step's event, and asks for no memory; how long it works by its own
 * clock is printed. */
#define RIG_MICRO 1
#define RIG_BACKEND "cpu"
#define RIG_LAYER_COUNT 30
#define RIG_CONTEXT 256
#include "engine_rig.h"

#include "base/thread.h"

#include <sys/resource.h>

enum { SEQUENCES = 32, TOKENS = 200, STEPS_MAX = 4 * TOKENS };

static int64_t took[STEPS_MAX], slept[STEPS_MAX], asked[STEPS_MAX];
static uint32_t calls, steps;

/* Called on the engine's thread for each token: every SEQUENCES-th call is a step on.  Workers look too whether a text would end. */
static int id_bytes(void *ctx, uint32_t id, struct buf *out)
{
    struct rusage use;
    static pthread_t engine_thread;
    (void)ctx;
    (void)id;
    if (calls == 0)
        engine_thread = pthread_self();
    if (pthread_equal(engine_thread, pthread_self()) && calls++ % SEQUENCES == 0 && steps < STEPS_MAX && getrusage(RUSAGE_THREAD, &use) == 0) {
        slept[steps] = use.ru_nvcsw;
        asked[steps] = mem_request_count();
        took[steps++] = thread_cpu_ns();
    }
    buf_char(out, 'x');
    return out->failed;
}

static int by_time(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Of the n steps between n + 1 readings; they are sorted afterwards. */
static int64_t middle(int64_t *at, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        at[i] = at[i + 1] - at[i];
    qsort(at, n, sizeof *at, by_time);
    return at[n / 2];
}

static void a_step_sleeps_once_and_asks_for_no_memory(void **state)
{
    static struct rig_result r;
    static const struct str stop = STR("never");
    struct engine_request *q[SEQUENCES];
    struct engine_gate gate; /* held while they are submitted: they begin together */
    (void)state;
    engine_gate_init(&gate);
    rig_open(&rig, &(struct engine_config){.gate = &gate, .rows_max = 64, .state_bytes = 256u << 20, .check_every = UINT32_MAX,
                                             .id_bytes = id_bytes});
    engine_gate_enter(&gate);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        struct engine_request_config c = rig_request(TOKENS, 0, 0);
        uint32_t id = i;
        c.stops = &stop;
        c.stop_count = 1;
        q[i] = rig_submit(&rig, &c, &id, 1);
    }
    engine_gate_leave(&gate);
    for (uint32_t i = 0; i < SEQUENCES; i++) {
        rig_finish(q[i], 1, &r);
        assert_int_equal(r.count, TOKENS);
    }
    rig_close(&rig);
    engine_gate_free(&gate);
    assert_true(steps > TOKENS - 10);
    uint32_t from = RIG_VOCAB / SEQUENCES + 20, n = TOKENS - 60; /* past the beginning, before the first ends */
    assert_int_equal(asked[from + n] - asked[from], 0);
    int64_t sleeps = middle(slept + from, n), us = middle(took + from, n) / 1000;
    print_message("%d sequences, a step: %lld us of the engine's thread in the middle, %lld at best; it sleeps %lld times\n", SEQUENCES, (long long)us,
                  (long long)took[from] / 1000, (long long)sleeps);
    assert_true(sleeps <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_step_sleeps_once_and_asks_for_no_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
