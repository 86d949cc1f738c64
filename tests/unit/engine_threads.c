/* Many threads submit, poll and cancel at random; what was not cancelled is what it is alone.  Meant for the thread sanitizer too. */
#include "engine_rig.h"

#include <pthread.h>

enum { THREADS = 6, ROUNDS = 12, KINDS = 4 };

static struct rig_result alone[KINDS];
static uint32_t prompts[KINDS][80];

static struct engine_request_config config(uint32_t kind)
{
    struct engine_request_config c = rig_request(10 + 8 * (int64_t)kind, 0.7f, kind);
    c.ring = 16;
    c.no_reuse = kind % 2;
    return c;
}

static void *client(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg, wrong = 0;
    struct rig_result *r = malloc(sizeof *r);
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t counter[4] = {round, me, 0, 0}, bits[4];
        rng_philox(17, counter, bits);
        uint32_t kind = bits[0] % KINDS;
        struct engine_request_config c = config(kind);
        struct engine_request *q = rig_submit(&rig, &c, prompts[kind], 20 + 20 * kind);
        bool cancel = bits[1] % 3 == 0;
        if (cancel) {
            rig_sleep_us(bits[2] % 3000);
            engine_request_cancel(q);
        }
        if (cancel && bits[3] % 2) { /* nobody polls: a vanished client */
            engine_request_release(q);
            continue;
        }
        rig_finish(q, 1, r);
        if (r->outcome.finish == ENGINE_CANCELLED)
            wrong += !cancel;
        else
            wrong += r->count != alone[kind].count || memcmp(r->ids, alone[kind].ids, r->count * sizeof *r->ids) != 0;
    }
    free(r);
    return (void *)(uintptr_t)wrong;
}

static void clients_do_not_disturb_each_other(void **state)
{
    pthread_t threads[THREADS];
    struct engine_stats stats;
    (void)state;
    for (uint32_t k = 0; k < KINDS; k++) {
        struct engine_request_config c = config(k);
        rig_prompt(40 + k / 2, prompts[k], 80);
        rig_run(&rig, &c, prompts[k], 20 + 20 * k, &alone[k]);
    }
    for (uint32_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, client, (void *)(uintptr_t)i), 0);
    for (uint32_t i = 0; i < THREADS; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_int_equal((uintptr_t)wrong, 0);
    }
    rig_settle(&stats);
    assert_int_equal(stats.running + stats.waiting, 0);
}

static int alone_task(void *ctx, struct kv *kv, struct err *err)
{
    (void)err;
    *(struct kv **)ctx = kv;
    return kv_check(kv, err);
}

static void state_is_consistent_afterwards(void **state)
{
    struct kv *kv = NULL;
    struct err err = {0};
    (void)state;
    assert_int_equal(engine_exclusive(rig.engine, alone_task, &kv, &err), 0);
    assert_non_null(kv);
}

int main(void)
{
    rig_config = (struct engine_config){.state_bytes = 4u << 20};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_do_not_disturb_each_other),
        cmocka_unit_test(state_is_consistent_afterwards),
    };
    int rc = cmocka_run_group_tests(tests, rig_setup, rig_teardown);
    rig_steps = 2;
    return rc + cmocka_run_group_tests(tests, rig_setup, rig_teardown);
}
