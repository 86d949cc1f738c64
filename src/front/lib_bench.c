/* front/lib_bench.c - prefill and decode speed as llama-bench measures them, with the machine's own limits beside.
 *
 * Random ids; prefill wants the logits of its last row only, decode of every row; nothing is sampled, nothing is detokenised.  One warm-up
 * each, then the repetitions: median, best, spread.  Ends with a greedy generation computed in two different ways, ids compared. */
#include "backend_cpu/probe.h"
#include "base/mem.h"
#include "base/rng.h"
#include "front/front_int.h"
#include "front/limits.h"

#include <stdlib.h>

enum { SANITY_PROMPT = 24, SANITY_TOKENS = 16, REPS_MAX = 1000 };

struct bench {
    struct rh_model *m;
    struct rh_bench_options o;
    uint32_t rows_max, vocab;
    uint32_t *ids;            /* [ids_count] random */
    uint32_t ids_count;
    struct kv *kv;
    struct kv_seq **bases;    /* [o.sequences] with `depth` positions each, none shared */
    struct kv_seq **seqs;     /* [o.sequences] what a repetition writes: forks of bases */
    struct span *spans;       /* [o.sequences] */
    double *prefill, *decode; /* tokens/s of each repetition */
    uint64_t state_bytes;     /* that one decoded row reads at least, half-way through: windows and recurrent state not counted */
    uint32_t reps;
};

static void fill_ids(struct bench *b)
{
    for (uint32_t i = 0; i < b->ids_count; i++) {
        uint32_t counter[4] = {i / 4, 0, 0, 0}, bits[4];
        rng_philox(1, counter, bits);
        b->ids[i] = bits[i % 4] % b->vocab;
    }
}

static int step(struct bench *b, uint32_t spans, struct err *err)
{
    uint64_t event = 0;
    int rc = model_forward(b->m->model, b->kv, b->spans, spans, NULL, &event, err);
    return rc ? rc : model_wait(b->m->model, event, err);
}

/* `count` rows of one sequence in chunks; only the last row goes through the head. */
static int prefill(struct bench *b, struct kv_seq *s, uint32_t count, struct err *err)
{
    int rc = 0;
    for (uint32_t done = 0; rc == 0 && done < count;) {
        uint32_t rows = kv_rows_before(s, kv_seq_covered(s), count - done < b->rows_max ? count - done : b->rows_max);
        rc = kv_extend(b->kv, s, rows, err);
        b->spans[0] = (struct span){.seq = s, .position = kv_seq_covered(s), .row_count = rows, .ids = b->ids + done,
                                    .out_first = done + rows == count ? rows - 1 : rows};
        if (rc == 0)
            rc = step(b, 1, err);
        if (rc == 0)
            rc = kv_commit(b->kv, s, b->ids + done, rows, err);
        done += rows;
    }
    return rc;
}

static int decode(struct bench *b, uint32_t count, struct err *err)
{
    int rc = 0;
    for (uint32_t t = 0; rc == 0 && t < count; t++) {
        const uint32_t *id = b->ids + t % b->ids_count;
        for (uint32_t i = 0; rc == 0 && i < b->o.sequences; i++) {
            rc = kv_extend(b->kv, b->seqs[i], 1, err);
            b->spans[i] = (struct span){.seq = b->seqs[i], .position = kv_seq_covered(b->seqs[i]), .row_count = 1, .ids = id};
        }
        if (rc == 0)
            rc = step(b, b->o.sequences, err);
        for (uint32_t i = 0; rc == 0 && i < b->o.sequences; i++)
            rc = kv_commit(b->kv, b->seqs[i], id, 1, err);
    }
    return rc;
}

static void drop(struct bench *b, struct kv_seq **seqs)
{
    for (uint32_t i = 0; i < b->o.sequences; i++) {
        kv_seq_free(b->kv, seqs[i]);
        seqs[i] = NULL;
    }
}

/* Sequences up to `count`, each with `depth` positions of its own: shared ones would be read from a cache. */
static int make_bases(struct bench *b, uint32_t count, struct err *err)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < count; i++) {
        if (b->bases[i])
            continue;
        rc = kv_seq_new(b->kv, &b->bases[i], err);
        if (rc == 0 && b->o.depth)
            rc = prefill(b, b->bases[i], b->o.depth, err);
    }
    return rc;
}

static int fork_bases(struct bench *b, uint32_t count, struct err *err)
{
    int rc = make_bases(b, count, err);
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = kv_seq_fork(b->kv, b->bases[i], kv_seq_covered(b->bases[i]), &b->seqs[i], err);
    return rc;
}

static int one_prefill(struct bench *b, double *rate, struct err *err)
{
    int rc = fork_bases(b, 1, err);
    int64_t began = thread_now_ns();
    if (rc == 0)
        rc = prefill(b, b->seqs[0], b->o.prompt, err);
    *rate = b->o.prompt / ((double)(thread_now_ns() - began) / 1e9);
    drop(b, b->seqs);
    return rc;
}

static int one_decode(struct bench *b, uint32_t count, double *rate, struct err *err)
{
    int rc = fork_bases(b, b->o.sequences, err);
    int64_t began = thread_now_ns();
    if (rc == 0)
        rc = decode(b, count, err);
    *rate = (double)count * b->o.sequences / ((double)(thread_now_ns() - began) / 1e9);
    drop(b, b->seqs);
    return rc;
}

/* On the engine's thread, alone. */
static int measure(void *ctx, struct kv *kv, struct err *err)
{
    struct bench *b = ctx;
    struct kv_stats stats;
    double unused;
    int rc = 0;
    b->kv = kv;
    if (b->o.prompt)
        rc = one_prefill(b, &unused, err);
    for (uint32_t i = 0; rc == 0 && b->o.prompt && i < b->reps; i++)
        rc = one_prefill(b, &b->prefill[i], err);
    if (rc == 0 && b->o.decode)
        rc = one_decode(b, b->o.decode < 8 ? b->o.decode : 8, &unused, err);
    for (uint32_t i = 0; rc == 0 && b->o.decode && i < b->reps; i++)
        rc = one_decode(b, b->o.decode, &b->decode[i], err);
    kv_stats(kv, &stats);
    b->state_bytes = stats.bytes_per_position * (b->o.depth + b->o.decode / 2);
    drop(b, b->bases);
    return rc;
}

/* ---- sanity: the same greedy text computed in one piece and in chunks of 5 rows ---- */

static int greedy(struct bench *b, uint32_t chunk, uint32_t *ids, uint32_t *count, struct err *err)
{
    struct engine_request *r = NULL;
    struct engine_event e;
    struct engine_request_config c = {.max_tokens = SANITY_TOKENS, .max_tokens_soft = true, .chunk_max = chunk, .no_reuse = true,
                                      .sampling = {.top_p = 1, .typical_p = 1, .repetition_penalty = 1, .order = {0, 1, 2, 3, 4, 5}}};
    uint32_t prompt = b->ids_count < SANITY_PROMPT ? b->ids_count : SANITY_PROMPT;
    int rc = engine_request_new(b->m->engine, &c, &r, err);
    if (rc == 0)
        rc = engine_submit(r, b->ids, prompt, err);
    *count = 0;
    for (bool ended = rc != 0; !ended;) {
        uint32_t seen = engine_request_seen(r);
        while (engine_poll(r, &e)) {
            if (e.kind == ENGINE_TOKEN)
                ids[(*count)++] = e.id;
            ended |= e.kind == ENGINE_DONE;
        }
        if (!ended)
            engine_request_wait(r, seen, -1);
    }
    if (rc == 0 && engine_request_outcome(r, 0)->finish == ENGINE_ERROR)
        rc = err_set(err, ERR_INTERNAL, "%s", engine_request_outcome(r, 0)->err.text);
    engine_request_release(r);
    return rc;
}

/* ---- report ---- */

static int by_rate(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double put_rates(struct buf *b, const char *key, uint32_t tokens, double *rates, uint32_t n) /* the median */
{
    qsort(rates, n, sizeof *rates, by_rate);
    double median = n % 2 ? rates[n / 2] : (rates[n / 2 - 1] + rates[n / 2]) / 2;
    buf_printf(b, ",\"%s\":{\"tokens\":%u,\"median_tokens_per_s\":%.6g,\"best_tokens_per_s\":%.6g,\"spread_percent\":%.3g,\"runs\":[", key,
               tokens, median, rates[n - 1], (rates[n - 1] - rates[0]) / median * 100);
    for (uint32_t i = 0; i < n; i++)
        buf_printf(b, "%s%.6g", i ? "," : "", rates[i]);
    buf_z(b, "]");
    return median;
}

static void put_share(struct buf *b, const char *key, double part, double whole)
{
    if (whole > 0)
        buf_printf(b, ",\"%s\":%.4g", key, part / whole * 100);
}

static int put_sanity(struct bench *b, struct buf *out, struct err *err)
{
    uint32_t one[SANITY_TOKENS], two[SANITY_TOKENS], n1 = 0, n2 = 0;
    int rc = greedy(b, 0, one, &n1, err);
    if (rc == 0)
        rc = greedy(b, 5, two, &n2, err);
    if (rc)
        return rc;
    buf_printf(out, ",\"sanity\":{\"equal\":%s,\"ids\":[", n1 == n2 && memcmp(one, two, n1 * sizeof *one) == 0 ? "true" : "false");
    for (uint32_t i = 0; i < n1; i++)
        buf_printf(out, "%s%u", i ? "," : "", one[i]);
    buf_z(out, "]}");
    return 0;
}

static int report(struct bench *b, struct probe_ticks from, struct buf *out, struct err *err)
{
    const struct model_info *info = model_info(b->m->model);
    struct device_info d;
    struct limits limits;
    double steal = probe_steal_share(from, probe_ticks_now());
    b->m->host->backend->device_info(b->m->host->device, &d);
    int rc = limits_measure(b->m->host->device, info->read_bytes_per_token, &limits, err);
    if (rc)
        return rc;
    buf_z(out, "{\"model\":");
    buf_json_str(out, str_of(info->name));
    buf_printf(out, ",\"backend\":\"%s\",\"level\":\"%s\",\"threads\":%u,\"kv\":\"", d.backend, d.level, d.n_threads);
    kv_config_put(b->m, out);
    buf_printf(out, "\",\"depth\":%u,\"sequences\":%u,\"repetitions\":%u", b->o.depth, b->o.sequences, b->reps);
    if (b->o.prompt) {
        double head = 2.0 * info->vocab * info->hidden; /* only the last row goes through it */
        double operations = (double)info->operations_per_token - head + head / b->o.prompt;
        double gop = put_rates(out, "prefill", b->o.prompt, b->prefill, b->reps) * operations / 1e9;
        buf_printf(out, ",\"gop_per_s\":%.6g", gop);
        put_share(out, "percent_of_int8_limit", gop, limits_best(&limits, "int8_gop_per_s"));
        put_share(out, "percent_of_f32_limit", gop, limits_best(&limits, "f32_gop_per_s"));
        put_share(out, "percent_of_f16_limit", gop, limits_best(&limits, "f16_gop_per_s"));
        buf_char(out, '}');
    }
    if (b->o.decode) {
        double state = (double)b->state_bytes * b->o.sequences, step_bytes = (double)info->read_bytes_per_token + state;
        double gb = put_rates(out, "decode", b->o.decode, b->decode, b->reps) / b->o.sequences * step_bytes / 1e9;
        buf_printf(out, ",\"state_gb_per_step\":%.6g", state / 1e9);
        buf_printf(out, ",\"read_gb_per_s\":%.6g", gb);
        put_share(out, "percent_of_read_limit", gb, limits_best(&limits, "read_gb_per_s"));
        buf_char(out, '}');
    }
    buf_char(out, ',');
    limits_put(&limits, out);
    buf_printf(out, ",\"steal_percent\":%.3g", steal * 100);
    rc = put_sanity(b, out, err);
    buf_char(out, '}');
    return rc;
}

static int check_size(const struct bench *b, struct err *err)
{
    uint64_t most = engine_positions_max(b->m->engine), longest = b->o.prompt > b->o.decode ? b->o.prompt : b->o.decode;
    if (longest + b->o.depth > most)
        return err_set(err, ERR_LIMIT, "depth %u + %llu tokens need %llu positions, the state holds %llu", b->o.depth,
                       (unsigned long long)longest, (unsigned long long)longest + b->o.depth, (unsigned long long)most);
    if (b->o.sequences > b->rows_max)
        return err_set(err, ERR_LIMIT, "%u sequences, a step has %u rows", b->o.sequences, b->rows_max);
    if (b->o.prompt == 0 && b->o.decode == 0)
        return err_set(err, ERR_ARGUMENT, "neither prompt nor decoded tokens");
    return 0;
}

static int bench_open(struct bench *b, struct err *err)
{
    int rc = model_need_engine(b->m, err);
    if (rc)
        return rc;
    b->o.sequences = b->o.sequences ? b->o.sequences : 1;
    b->reps = b->o.repetitions ? b->o.repetitions : 5;
    b->reps = b->reps < REPS_MAX ? b->reps : REPS_MAX;
    b->rows_max = b->m->options.rows_max;
    b->vocab = model_info(b->m->model)->vocab;
    b->ids_count = b->o.prompt > b->o.depth ? b->o.prompt : b->o.depth;
    b->ids_count = b->ids_count > 512 ? b->ids_count : 512;
    if ((rc = check_size(b, err)))
        return rc;
    b->ids = mem_try_array(b->ids_count, sizeof *b->ids);
    b->bases = mem_try_zero(b->o.sequences, sizeof *b->bases);
    b->seqs = mem_try_zero(b->o.sequences, sizeof *b->seqs);
    b->spans = mem_try_zero(b->o.sequences, sizeof *b->spans);
    b->prefill = mem_try_zero(b->reps, sizeof *b->prefill);
    b->decode = mem_try_zero(b->reps, sizeof *b->decode);
    if (!b->ids || !b->bases || !b->seqs || !b->spans || !b->prefill || !b->decode)
        return err_nomem(err, "bench", b->ids_count * sizeof *b->ids);
    fill_ids(b);
    return 0;
}

int rh_bench_json(struct rh_model *m, const struct rh_bench_options *opt, char **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct bench b = {.m = m, .o = *opt};
    struct buf text = {0};
    struct probe_ticks ticks = probe_ticks_now();
    int rc = bench_open(&b, &err);
    if (rc == 0)
        rc = engine_exclusive(m->engine, measure, &b, &err);
    if (rc == 0)
        rc = report(&b, ticks, &text, &err);
    buf_cstr(&text);
    if (rc == 0)
        rc = buf_check(&text, "bench", &err);
    mem_free(b.ids);
    mem_free(b.bases);
    mem_free(b.seqs);
    mem_free(b.spans);
    mem_free(b.prefill);
    mem_free(b.decode);
    if (rc) {
        buf_free(&text);
        return front_error(rerr, &err, rc);
    }
    *out = text.p;
    return 0;
}
