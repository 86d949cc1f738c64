/* backend_ref/ref_expert.c - mixtures of experts: who is chosen, with what weight, and what the chosen ones compute.
 *
 * The choice is made one slot at a time by looking at every expert again. */
#include "backend_ref/ref_int.h"

#include "base/math.h"
#include "base/mem.h"

#include <math.h>
#include <string.h>

/* ---- route ---- */

/* one row's scores and what they are chosen by */
struct routing {
    uint32_t experts;
    float score[ROUTE_EXPERTS_MAX], choice[ROUTE_EXPERTS_MAX];
    bool barred[ROUTE_EXPERTS_MAX];
};

/* softmax of n values in place; the terms are f32, their sum f64 */
static void softmax(float *x, uint32_t n)
{
    float most = -INFINITY;
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)(x[i] = math_expf(x[i] - most));
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)((double)x[i] / sum);
}

static void score_row(const struct op_route *op, const float *logits, struct routing *r)
{
    uint32_t n = r->experts = op->logits.cols;
    memcpy(r->score, logits, n * sizeof *logits);
    if (op->score == ROUTE_SOFTMAX)
        softmax(r->score, n);
    for (uint32_t e = 0; e < n && op->score == ROUTE_SIGMOID; e++)
        r->score[e] = 1 / (1 + math_expf(-logits[e]));
    for (uint32_t e = 0; e < n; e++) {
        r->choice[e] = op->bias ? r->score[e] + op->bias[e] : op->score == ROUTE_SIGMOID ? r->score[e] : logits[e];
        r->barred[e] = false;
    }
}

/* The free one with the largest choice of experts [from, to); `to` when none is. */
static uint32_t best_of(const struct routing *r, uint32_t from, uint32_t to)
{
    uint32_t best = to;
    for (uint32_t e = from; e < to; e++)
        if (!r->barred[e] && (best == to || r->choice[e] > r->choice[best]))
            best = e;
    return best;
}

/* All experts but those of the best groups are barred. */
static void bar_groups(const struct op_route *op, struct routing *r)
{
    uint32_t each = r->experts / op->groups;
    float sums[ROUTE_GROUPS_MAX];
    bool kept[ROUTE_GROUPS_MAX] = {false};
    for (uint32_t g = 0; g < op->groups; g++) {
        sums[g] = 0;
        for (uint32_t i = 0; i < op->group_best; i++) {
            uint32_t e = best_of(r, g * each, (g + 1) * each);
            sums[g] += r->choice[e];
            r->barred[e] = true;
        }
    }
    for (uint32_t i = 0; i < op->group_top; i++) {
        uint32_t best = op->groups;
        for (uint32_t g = 0; g < op->groups; g++)
            if (!kept[g] && (best == op->groups || sums[g] > sums[best]))
                best = g;
        kept[best] = true;
    }
    for (uint32_t e = 0; e < r->experts; e++)
        r->barred[e] = !kept[e / each];
}

static void weigh(const struct op_route *op, const struct routing *r, const uint32_t *ids, float *weights)
{
    double sum = 0;
    for (uint32_t s = 0; s < op->top; s++)
        weights[s] = r->score[ids[s]];
    if (op->score == ROUTE_SOFTMAX_TOP)
        softmax(weights, op->top);
    for (uint32_t s = 0; s < op->top; s++)
        sum += (double)weights[s];
    for (uint32_t s = 0; s < op->top; s++) {
        if (op->normalise)
            weights[s] = (float)((double)weights[s] / (sum + 1e-20));
        weights[s] *= op->scale;
        if (op->expert_scale)
            weights[s] *= op->expert_scale[ids[s]];
    }
}

int ref_run_route(struct device *d, const void *p)
{
    (void)d;
    const struct op_route *op = p;
    struct routing *r = mem_try_zero(1, sizeof *r);
    int rc = r ? 0 : ERR_NOMEM;
    for (uint32_t row = 0; row < op->logits.rows && !rc; row++) {
        uint32_t *ids = op->ids + (size_t)row * op->top;
        score_row(op, ref_row(&op->logits, row), r);
        if (op->groups > 1 && !op->replay)
            bar_groups(op, r);
        for (uint32_t s = 0; s < op->top && !rc; s++) {
            ids[s] = op->replay ? ids[s] : best_of(r, 0, r->experts);
            rc = ids[s] < r->experts ? 0 : ERR_INTERNAL;
            r->barred[rc ? 0 : ids[s]] = true;
        }
        if (!rc)
            weigh(op, r, ids, op->weights + (size_t)row * op->top);
    }
    mem_free(r);
    return rc;
}

/* ---- experts ---- */

int ref_run_expert_linear(struct device *d, const void *p)
{
    (void)d;
    const struct op_expert_linear *op = p;
    uint32_t rows = op->y.cols, cols = op->x.cols, slots = op->y.rows / op->x.rows;
    for (uint32_t i = 0; i < op->y.rows; i++) {
        if (op->ids[i] >= op->w->head.n_experts)
            return ERR_INTERNAL;
        const float *w = op->w->values + (size_t)op->ids[i] * rows * cols, *x = ref_row(&op->x, i / slots);
        for (uint32_t o = 0; o < rows; o++) {
            float value = (float)ref_linear_sum(w + (size_t)o * cols, x, cols);
            ref_row(&op->y, i)[o] = op->bias ? value + op->bias[(size_t)op->ids[i] * rows + o] : value;
        }
    }
    return 0;
}

int ref_run_expert_sum(struct device *d, const void *p)
{
    (void)d;
    const struct op_expert_sum *op = p;
    uint32_t slots = op->x.rows / op->y.rows;
    for (uint32_t r = 0; r < op->y.rows; r++)
        for (uint32_t c = 0; c < op->y.cols; c++) {
            double sum = 0;
            for (uint32_t s = 0; s < slots; s++)
                sum += (double)op->weights[r * slots + s] * (double)ref_row(&op->x, r * slots + s)[c];
            float *y = ref_row(&op->y, r) + c;
            *y = op->add ? *y + (float)sum : (float)sum;
        }
    return 0;
}
