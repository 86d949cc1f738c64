/* engine/hold.c - the next step, planned and enqueued while the one before it runs, and held back until it is known to be the next.
 *
 * With one step in flight the device would have nothing to do while a step is committed and the next one planned and enqueued.  So the
 * engine's thread does the last two while kernels run: every sequence that runs goes on by one row, whose id is read when the step is let go.
 * Whether it is the next one can mostly be said from what the step before chose alone, and the worker that ends that step says it (may_go):
 * then nobody is waited for, and the step before is committed while kernels run again.
 *
 *      hold_make             the step before ends
 *   (none) ------> held ------------------------------> may_go? -- yes -> in flight (hold_settle sees it after the wait)
 *                   |                                     | no
 *                   |                     commit, sched_take; is_next? -- yes -> in flight (hold_run)
 *                   |                                     | no
 *                   +------------- hold_drop -------------+--> (none): planned anew
 *
 * Invariants: 1. A step that is let go has the rows, in the order, that sched_admit and sched_plan would give it then, and its records are
 *                those that batch_run would enqueue: nobody waits who could begin, and no row is computed that nobody wants.
 *             2. While a step is held, sequences and their requests count as if it did not exist, but for the pages its rows have and its
 *                references to the requests.  A step that is dropped leaves nothing: pages, pointers and the queue are as before.
 *             3. Nothing is evicted, pre-empted or copied for it, and it asks for no memory.
 *             4. Nothing else is enqueued on the device meanwhile, so the gate is kept until it is dropped or was committed.
 *             5. may_go implies is_next.  It runs while the engine's thread sleeps for the step's event.
 * Does not:   hold steps with rows of prompts, rounds, or choices that depend on the one before (penalties, constraints). */
#include "engine/engine_int.h"

/* Everybody who runs is in it or it is not made: who is left out might be ready by then; nor when somebody said something meanwhile. */
static bool can_hold(struct engine *e)
{
    if (!e->holds || e->step_pending != 1 || e->running_count == 0 || atomic_load(&e->wake) != e->heard || engine_gate_wanted(e->cfg.gate) ||
        sched_admits(e))
        return false;
    for (uint32_t i = 0; i < e->running_count; i++)
        if (!sched_goes_on(e, e->running[i]))
            return false;
    return true;
}

static bool place_all(struct engine *e, struct step *step)
{
    sched_empty(step);
    for (uint32_t i = 0; i < e->running_count; i++)
        if (!sched_place_next(e, step, e->running[i]))
            return false;
    step->decode_count = step->decode_rows = step->row_count;
    return true;
}

/* Its sequences count with it, or without. */
static void count_in(struct step *step, bool in)
{
    for (uint32_t i = 0; i < step->item_count; i++) {
        struct step_item *it = &step->items[i];
        it->seq->in_flight += in ? it->rows : -it->rows;
        it->seq->samples += in ? it->samples : -it->samples;
    }
}

/* ---- said by the step before ---- */

static bool text_ends(struct engine *e, struct seq *s, uint32_t id)
{
    if (s->request->stops.count == 0)
        return false;
    e->bytes.n = 0;
    return e->cfg.id_bytes(e->cfg.id_bytes_ctx, id, &e->bytes) || e->bytes.failed || stop_would(&s->stop, &s->request->stops, buf_view(&e->bytes));
}

/* The sequence goes on behind what was chosen, which is noted where commit will put it: its budget was looked at before. */
static bool goes_on(struct engine *e, const struct step *step, const struct step_item *it)
{
    struct seq *s = it->seq;
    const struct engine_request *r = s->request;
    uint32_t id = step->results[it->sample_first].id, preempt = e->cfg.preempt_at;
    if (preempt && s->generated + 1 >= preempt && !s->admitted_before)
        return false;
    if (it->samples != 1 || id >= e->vocab || resolve_is_end(r, id) || (r->n > 1 && !r->followers_out) || text_ends(e, s, id))
        return false;
    s->tokens[s->count] = id;
    return true;
}

/* Would commit, sched_take, sched_admit and sched_plan come to the step that is held? */
static bool may_go(void *ctx)
{
    struct engine *e = ctx;
    const struct step *now = e->held_behind;
    if (atomic_load(&e->wake) != e->heard || (e->waiting && e->running_count < e->cfg.running_max) ||
        engine_gate_wanted(e->cfg.gate))
        return false;
    for (uint32_t i = 0; i < now->item_count; i++)
        if (!goes_on(e, now, &now->items[i]))
            return false;
    return model_hold_ids(e->model, e->held->spans, e->held->item_count, NULL) == 0;
}

/* ---- making one, and what becomes of it ---- */

void hold_make(struct engine *e)
{
    if (!can_hold(e))
        return;
    struct step *step = &e->steps[(e->step_first + e->step_pending) % e->step_slots];
    model_hold(e->model);
    bool placed = place_all(e, step);
    int rc = placed ? batch_run(e, step, NULL) : 0;
    count_in(step, false);
    for (uint32_t i = 0; i < step->item_count; i++) {
        step->items[i].seq->placed = 0;
        request_use(step->items[i].seq->request);
    }
    e->held = step;
    e->held_behind = &e->steps[e->step_first];
    if (rc || !placed)
        hold_drop(e);
    else
        model_hold_ask(e->model, may_go, e);
    e->holds = rc != ERR_LIMIT; /* the device cannot hold that many records */
}

void hold_drop(struct engine *e)
{
    struct step *step = e->held;
    if (!step)
        return;
    e->held = NULL;
    e->held_dropped++;
    model_hold_drop(e->model, e->kv);
    for (uint32_t i = 0; i < step->item_count; i++) {
        struct step_item *it = &step->items[i];
        if (it->seq->kv) /* else it ended, and its pages went with it */
            kv_shrink(e->kv, it->seq->kv, it->position);
        request_unuse(it->seq->request);
    }
}

/* The sequence has come to the row that was enqueued for it, and planning it now would take nothing for it. */
static bool fits(const struct engine *e, const struct step_item *it)
{
    const struct seq *s = it->seq;
    return s->state == SEQ_DECODE && s->count == it->position + 1 && kv_seq_covered(s->kv) == it->position &&
           kv_seq_room(s->kv) == it->position + 1 && !kv_seq_shared(e->kv, s->kv);
}

/* What sched_admit and sched_plan would come to. */
static bool is_next(struct engine *e, const struct step *step)
{
    if (step->item_count != e->running_count || sched_admits(e))
        return false;
    for (uint32_t i = 0; i < step->item_count; i++)
        if (step->items[i].seq != e->running[i] || !fits(e, &step->items[i]))
            return false;
    return true;
}

/* It is in flight. */
static void begun(struct engine *e)
{
    struct step *step = e->held;
    e->held = NULL;
    e->step_pending++;
    step->started_ns = thread_now_ns();
    count_in(step, true);
    sched_count(e, step);
}

void hold_settle(struct engine *e)
{
    if (!e->held || !model_hold_went(e->model))
        return;
    e->held_went++;
    begun(e);
}

bool hold_run(struct engine *e)
{
    struct step *step = e->held;
    if (!step)
        return false;
    if (!is_next(e, step) || model_hold_ids(e->model, step->spans, step->item_count, NULL)) {
        hold_drop(e);
        return false;
    }
    model_hold_run(e->model);
    e->held_run++;
    begun(e);
    return true;
}
