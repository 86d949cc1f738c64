/* backend_cpu/cpu_route.c - which experts a row takes, and with what weight.
 *
 * Plain C, the same at every level: a row costs microseconds beside its experts' milliseconds.
 * Invariants: 1. Sums run over experts, or slots, ascending, in f64 (docs/arithmetic.md).
 *             2. Ties go to the lowest index, of experts and of groups. */
#include "backend_cpu/cpu_int.h"

#include "base/math.h"

#include <string.h>

/* one row; in the worker's scratch */
struct routing {
    float score[ROUTE_EXPERTS_MAX], choice[ROUTE_EXPERTS_MAX];
    uint8_t barred[ROUTE_EXPERTS_MAX];
};

struct cpu_need cpu_route_need(const struct device_reserve *r, uint32_t count)
{
    (void)count;
    return (struct cpu_need){r->rows_max ? sizeof(struct routing) : 0, 0};
}

static void softmax(const float *x, float *y, uint32_t n)
{
    float most = x[0];
    double sum = 0;
    for (uint32_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (uint32_t i = 0; i < n; i++) {
        y[i] = math_expf(x[i] - most);
        sum += (double)y[i];
    }
    for (uint32_t i = 0; i < n; i++)
        y[i] = (float)((double)y[i] / sum);
}

static void score_row(const struct op_route *op, const float *logits, struct routing *r)
{
    uint32_t n = op->logits.cols;
    if (op->score == ROUTE_SOFTMAX)
        softmax(logits, r->score, n);
    else if (op->score == ROUTE_SIGMOID)
        for (uint32_t e = 0; e < n; e++)
            r->score[e] = 1.0f / (1.0f + math_expf(-logits[e]));
    else
        memcpy(r->score, logits, n * sizeof *logits);
    const float *from = op->score == ROUTE_SOFTMAX && !op->bias ? logits : r->score;
    for (uint32_t e = 0; e < n; e++)
        r->choice[e] = op->bias ? from[e] + op->bias[e] : from[e];
    memset(r->barred, 0, n);
}

/* The largest choice of experts [from, to) that are not barred; a row of NaN takes the first ones. */
static uint32_t best_of(const struct routing *r, uint32_t from, uint32_t to)
{
    uint32_t best = to;
    for (uint32_t e = from; e < to; e++)
        if (!r->barred[e] && (best == to || r->choice[e] > r->choice[best]))
            best = e;
    return best;
}

static void bar_groups(const struct op_route *op, struct routing *r)
{
    uint32_t n = op->logits.cols, each = n / op->groups;
    float sums[ROUTE_GROUPS_MAX];
    uint8_t kept[ROUTE_GROUPS_MAX] = {0};
    for (uint32_t g = 0; g < op->groups; g++) {
        sums[g] = 0;
        for (uint32_t i = 0; i < op->group_best; i++) {
            uint32_t e = best_of(r, g * each, (g + 1) * each);
            sums[g] += r->choice[e];
            r->barred[e] = 1;
        }
    }
    for (uint32_t i = 0; i < op->group_top; i++) {
        uint32_t best = op->groups;
        for (uint32_t g = 0; g < op->groups; g++)
            if (!kept[g] && (best == op->groups || sums[g] > sums[best]))
                best = g;
        kept[best] = 1;
    }
    for (uint32_t e = 0; e < n; e++)
        r->barred[e] = !kept[e / each];
}

static void weigh(const struct op_route *op, const struct routing *r, const uint32_t *ids, float *weights)
{
    double sum = 0;
    for (uint32_t s = 0; s < op->top; s++)
        weights[s] = r->score[ids[s]];
    if (op->score == ROUTE_SOFTMAX_TOP)
        softmax(weights, weights, op->top);
    for (uint32_t s = 0; s < op->top; s++)
        sum += (double)weights[s];
    for (uint32_t s = 0; s < op->top; s++) {
        float w = op->normalise ? (float)((double)weights[s] / (sum + 1e-20)) : weights[s];
        w = w * op->scale;
        weights[s] = op->expert_scale ? w * op->expert_scale[ids[s]] : w;
    }
}

static void route_run(struct device *d, uint32_t me, uint32_t count, const void *arg)
{
    const struct op_route *op = arg;
    struct routing *r = cpu_scratch(d, me, sizeof *r);
    uint32_t from, to;
    cpu_split(op->logits.rows, 1, me, count, &from, &to);
    for (uint32_t row = from; r && row < to; row++) {
        uint32_t *ids = op->ids + (size_t)row * op->top;
        score_row(op, (const float *)op->logits.data + (size_t)row * op->logits.stride, r);
        if (op->groups > 1 && !op->replay)
            bar_groups(op, r);
        for (uint32_t s = 0; s < op->top; s++) {
            ids[s] = op->replay ? ids[s] : best_of(r, 0, op->logits.cols);
            if (ids[s] >= op->logits.cols) {
                cpu_fail(d, ERR_INTERNAL, "cpu: route: an expert that is not there");
                return;
            }
            r->barred[ids[s]] = 1;
        }
        weigh(op, r, ids, op->weights + (size_t)row * op->top);
    }
}

int cpu_op_route(struct device *d, const struct op_route *op)
{
    return cpu_enqueue(d, route_run, op, sizeof *op);
}
