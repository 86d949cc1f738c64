/* tests/ops/state_kept.c - recurrent layers over the blocks that kv keeps: cuts, refused rows, rewinds of committed rows and forks, each
 * row compared byte for byte with the same row of one plain run.  A short convolution with blocks of 8 and a delta net with blocks of 16
 * are one model of two layers here. */
#include "backend_cpu/backend_cpu.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 150, C = 16, C_CONV = 8, HEADS = 2, VALUES = 2, D = 16, CHANNELS = 24, TAPS = 4, SLACK = 40 };
enum { QKV = HEADS * (2 + VALUES) * D, ALL = HEADS * VALUES, OUT = ALL * D };

struct rows { /* what the two layers read, and what they give, for every position */
    float qkv[ROWS][QKV], a[ROWS][ALL], b[ROWS][ALL], x[ROWS][3 * CHANNELS];
    float y[ROWS][OUT], z[ROWS][CHANNELS];
};

static struct rows text, other, plain; /* other: what refused rows hold */
static float conv[TAPS * QKV], taps[TAPS * CHANNELS], rate[ALL], dt_bias[ALL];
static struct device *device;
static struct kv *kv;
static size_t compared, wrong;
static uint64_t random_state = 7;

static uint32_t next(uint32_t below)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33) % below;
}

static void fill(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = ((float)next(4001) - 2000) / 1000;
}

static void must(int rc, const struct err *err)
{
    if (rc) {
        printf("failed: %s\n", err->text);
        exit(1);
    }
}

/* Positions [from, from + n) in one step; their outputs land in `work`. */
static void run(struct kv_seq *s, const struct rows *in, struct rows *work, uint32_t from, uint32_t n)
{
    struct err err = {0};
    uint32_t tables[2][ROWS / C_CONV + 2];
    must(kv_extend(kv, s, from + n - kv_seq_covered(s), &err), &err);
    must(kv_publish(kv, &err), &err);
    memcpy(work->qkv[from], in->qkv[from], n * sizeof in->qkv[0]);
    memcpy(work->a[from], in->a[from], n * sizeof in->a[0]);
    memcpy(work->b[from], in->b[from], n * sizeof in->b[0]);
    memcpy(work->x[from], in->x[from], n * sizeof in->x[0]);
    for (uint32_t l = 0; l < 2; l++)
        kv_table_copy(s, kv_layer_group(kv, l, false), tables[l]);
    struct kv_span span = {.row_first = 0, .row_count = n, .pos_first = from};
    struct op_delta_net delta = {.qkv = {work->qkv[from], n, QKV, QKV}, .a = {work->a[from], n, ALL, ALL}, .b = {work->b[from], n, ALL, ALL},
                                 .y = {work->y[from], n, OUT, OUT}, .conv = conv, .rate = rate, .dt_bias = dt_bias, .eps = 1e-6f,
                                 .layer = kv_state_view(kv, 0), .spans = &span, .span_count = 1, .tables = tables[0]};
    struct op_short_conv shorts = {.x = {work->x[from], n, 3 * CHANNELS, 3 * CHANNELS}, .y = {work->z[from], n, CHANNELS, CHANNELS},
                                   .w = taps, .layer = kv_state_view(kv, 1), .spans = &span, .span_count = 1, .tables = tables[1]};
    uint64_t event = 0;
    must(op_delta_net(device, &delta, &err), &err);
    must(op_short_conv(device, &shorts, &err), &err);
    must(backend_cpu.event_record(device, &event), &err);
    must(backend_cpu.event_wait(device, event, &err), &err);
}

static void commit(struct kv_seq *s, uint32_t n)
{
    static const uint32_t ids[ROWS];
    struct err err = {0};
    must(kv_commit(kv, s, ids, n, &err), &err);
    must(kv_check(kv, &err), &err);
}

static void compare(const char *what, uint32_t how, const struct rows *work, uint32_t from, uint32_t n)
{
    compared += n;
    if (memcmp(work->y[from], plain.y[from], n * sizeof plain.y[0]) == 0 && memcmp(work->z[from], plain.z[from], n * sizeof plain.z[0]) == 0)
        return;
    if (++wrong < 20)
        printf("differs: %s %u, rows %u to %u\n", what, how, from, from + n);
}

/* The text's rows from what the sequence covers up to `to`, in steps of at most `cut`. */
static void go_on(struct kv_seq *s, const char *what, uint32_t how, uint32_t to, uint32_t cut)
{
    static struct rows work;
    while (kv_seq_covered(s) < to) {
        uint32_t at = kv_seq_covered(s), n = to - at < cut ? to - at : cut;
        run(s, &text, &work, at, n);
        compare(what, how, &work, at, n);
        commit(s, n);
    }
}

static struct kv_seq *seq_new(void)
{
    struct err err = {0};
    struct kv_seq *s;
    must(kv_seq_new(kv, &s, &err), &err);
    return s;
}

static void check_cuts(void)
{
    static const uint32_t cuts[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        struct kv_seq *s = seq_new();
        go_on(s, "cut", cuts[i], ROWS, cuts[i]);
        kv_seq_free(kv, s);
    }
}

static const uint32_t backs[] = {1, C - 1, C, C + 1, 2 * C + 1};

/* At every position: rows that are refused, some kept of a step, and the text again. */
static void check_refused(void)
{
    static struct rows work;
    struct err err = {0};
    for (size_t i = 0; i < sizeof backs / sizeof backs[0]; i++)
        for (uint32_t at = 0; at < 3 * C; at++) {
            struct kv_seq *s = seq_new();
            go_on(s, "before refused rows", backs[i], at, 11);
            run(s, &other, &work, at, backs[i]);
            must(kv_rewind(kv, s, at, &err), &err);
            run(s, &text, &work, at, backs[i]); /* a round of which half is kept */
            commit(s, backs[i] / 2);
            must(kv_rewind(kv, s, kv_seq_covered(s), &err), &err);
            go_on(s, "after refused rows", backs[i], at + 2 * C + 3, 5);
            kv_seq_free(kv, s);
        }
}

/* Committed rows taken back: possible down to kv_seq_oldest, which is in the block of the last row; refused below. */
static void check_rewinds(void)
{
    struct err err = {0};
    for (size_t i = 0; i < sizeof backs / sizeof backs[0]; i++)
        for (uint32_t at = 1; at < 4 * C; at++) {
            struct kv_seq *s = seq_new();
            go_on(s, "before a rewind", backs[i], at, 9);
            uint32_t oldest = kv_seq_oldest(s), to = at > backs[i] ? at - backs[i] : 0;
            if (oldest > (at - 1) / C_CONV * C_CONV || at - oldest == 0)
                wrong++, printf("oldest of %u is %u\n", at, oldest);
            int rc = kv_rewind(kv, s, to, &err);
            if (rc != (to != 0 && to < oldest ? ERR_LIMIT : 0))
                wrong++, printf("rewind of %u to %u, oldest %u: %d\n", at, to, oldest, rc);
            go_on(s, "after a rewind", backs[i], 5 * C + 1, 13);
            kv_seq_free(kv, s);
        }
}

/* A fork at every position that allows it; both go on, the first with other rows before. */
static void check_forks(void)
{
    static struct rows work;
    struct err err = {0};
    for (uint32_t at = 1; at < 4 * C; at++) {
        struct kv_seq *s = seq_new(), *fork;
        go_on(s, "before a fork", at, at, 10);
        uint32_t oldest = kv_seq_oldest(s), from = oldest + next(at - oldest + 1);
        must(kv_seq_fork(kv, s, from, &fork, &err), &err);
        must(kv_check(kv, &err), &err);
        run(s, &other, &work, at, C + 2);
        commit(s, C + 2);
        go_on(fork, "a fork", at, 5 * C, 6);
        kv_seq_free(kv, s);
        go_on(fork, "a fork alone", at, 6 * C, 30);
        kv_seq_free(kv, fork);
    }
}

/* The scratch a delta net needs is reserved for it, also where nothing else needs as much. */
static void check_scratch(void)
{
    enum { WIDE = 256, N = 3, COLS = 3 * WIDE };
    static float qkv[N][COLS], ab[2][N], y[N][WIDE], w[2 * COLS], one[1];
    static unsigned char memory[4 << 20];
    unsigned char *pages[2] = {NULL, memory + 64 - (uintptr_t)memory % 64};
    struct state_part part = {pages, 0};
    struct state_layer layer = {{.anchor = 8, .heads = 1, .channels = COLS, .taps = 2, .values = 1, .d_k = WIDE, .d_v = WIDE}, &part};
    struct err err = {0};
    struct device *d;
    struct device_config cfg = {.n_threads = 1};
    struct device_reserve none = {.rows_max = 1, .cols_max = 32, .heads_max = 1, .head_dim_max = 8, .context_max = 8, .logit_rows_max = 1,
                                  .vocab_max = 16}, reserve = none;
    reserve.state_dim_max = WIDE;
    must(backend_cpu.device_open(&cfg, &d, &err), &err);
    must(backend_cpu.reserve(d, &none, &err), &err);
    must(backend_cpu.reserve(d, &reserve, &err), &err);
    struct kv_span span = {0, N, 0, 0};
    uint32_t table[1] = {1};
    uint64_t event = 0;
    struct op_delta_net op = {.qkv = {qkv, N, COLS, COLS}, .a = {ab[0], N, 1, 1}, .b = {ab[1], N, 1, 1}, .y = {y, N, WIDE, WIDE}, .conv = w,
                              .rate = one, .dt_bias = one, .eps = 1e-6f, .layer = &layer, .spans = &span, .span_count = 1, .tables = table};
    must(op_delta_net(d, &op, &err), &err);
    must(backend_cpu.event_record(d, &event), &err);
    must(backend_cpu.event_wait(d, event, &err), &err);
    backend_cpu.device_close(d);
}

int main(void)
{
    struct err err = {0};
    struct device_config cfg = {.n_threads = 2};
    struct device_reserve reserve = {.rows_max = ROWS, .cols_max = 256, .heads_max = 4, .head_dim_max = 64, .context_max = 512,
                                     .logit_rows_max = 1, .vocab_max = 16, .state_dim_max = D};
    must(backend_cpu.device_open(&cfg, &device, &err), &err);
    must(backend_cpu.reserve(device, &reserve, &err), &err);
    struct kv_layer_spec layers[] = {
        {.policy = KV_RECURRENT,
         .state = {.anchor = C, .heads = HEADS, .channels = (2 + VALUES) * D, .taps = TAPS, .values = VALUES, .d_k = D, .d_v = D}},
        {.policy = KV_RECURRENT, .state = {.anchor = C_CONV, .heads = 1, .channels = CHANNELS, .taps = TAPS}}};
    struct kv_config config = {.device = device, .layers = layers, .layer_count = 2, .rewind_slack = SLACK, .budget_bytes = 16u << 20,
                               .context_max = ROWS, .rows_max = ROWS};
    must(kv_open(&config, &kv, &err), &err);
    fill((float *)(void *)&text, sizeof text / sizeof(float)); /* outputs too: they are overwritten */
    fill((float *)(void *)&other, sizeof other / sizeof(float));
    fill(conv, TAPS * QKV), fill(taps, TAPS * CHANNELS), fill(dt_bias, ALL);
    for (int i = 0; i < ALL; i++)
        rate[i] = -0.05f * (float)(1 + i * i);
    struct kv_seq *s = seq_new();
    run(s, &text, &plain, 0, ROWS);
    commit(s, ROWS);
    kv_seq_free(kv, s);
    check_scratch();
    check_cuts();
    check_refused();
    check_rewinds();
    check_forks();
    printf("%zu rows compared, %zu faults\n", compared, wrong);
    kv_close(kv);
    backend_cpu.device_close(device);
    return wrong != 0;
}
