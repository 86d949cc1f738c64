/* server/metrics.c - see metrics.h.  Names are our own; vLLM's stand beside them so that its dashboards show something. */
#include "server/metrics.h"

#include "server/api.h"

#include <stdio.h>

struct series { /* one histogram: its names and upper bounds */
    const char *name, *alias, *help; /* alias: vLLM's names, with blanks between */
    double bounds[METRIC_BUCKETS]; /* ascending, ended by 0 */
};

#define SECONDS {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80}
#define SHORT {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5}
#define TOKENS {1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000}

static const struct series all[METRIC_HISTOGRAMS] = {
    [METRIC_TTFT] = {"time_to_first_token_seconds", "time_to_first_token_seconds", "from the request's head to its first token", SECONDS},
    [METRIC_INTER_TOKEN] = {"inter_token_latency_seconds", "time_per_output_token_seconds inter_token_latency_seconds", "between two tokens of an answer",
                            SHORT},
    [METRIC_QUEUE] = {"queue_time_seconds", "request_queue_time_seconds", "waiting for admission", SECONDS},
    [METRIC_PREFILL] = {"prefill_time_seconds", "request_prefill_time_seconds", "reading the prompt", SECONDS},
    [METRIC_DECODE] = {"decode_time_seconds", "request_decode_time_seconds", "from the first to the last token", SECONDS},
    [METRIC_E2E] = {"request_duration_seconds", "e2e_request_latency_seconds", "from the request's head to its end", SECONDS},
    [METRIC_PROMPT_TOKENS] = {"prompt_length_tokens", "request_prompt_tokens", "tokens of a prompt", TOKENS},
    [METRIC_GENERATION_TOKENS] = {"answer_length_tokens", "request_generation_tokens", "tokens of an answer", TOKENS},
};

void metrics_observe(struct metrics *m, enum metric_histogram which, double value)
{
    struct histogram *h = &m->histograms[which];
    const double *bounds = all[which].bounds;
    int i = 0;
    while (i < METRIC_BUCKETS && bounds[i] > 0 && value > bounds[i])
        i++;
    h->counts[i < METRIC_BUCKETS && bounds[i] > 0 ? i : METRIC_BUCKETS]++;
    h->sum += value;
}

void metrics_done(struct metrics *m, const struct rh_event *e)
{
    const struct rh_speculation *s = &e->speculation;
    m->finished[e->finish]++;
    if (e->choice == 0) { /* choices share their prompt */
        m->prompt_tokens += e->usage.prompt_tokens;
        m->cached_tokens += e->usage.cached_tokens;
        metrics_observe(m, METRIC_PROMPT_TOKENS, e->usage.prompt_tokens);
        metrics_observe(m, METRIC_QUEUE, e->timings.queue_ms / 1e3);
        metrics_observe(m, METRIC_PREFILL, e->timings.prefill_ms / 1e3);
    }
    m->generation_tokens += e->usage.completion_tokens;
    metrics_observe(m, METRIC_GENERATION_TOKENS, e->usage.completion_tokens);
    metrics_observe(m, METRIC_DECODE, e->timings.decode_ms / 1e3);
    m->drafted += s->drafted;
    m->accepted += s->accepted;
    for (int i = 0; i < RH_DEPTH_MAX; i++) {
        m->drafted_by_position[i] += s->drafted_by_position[i];
        m->accepted_by_position[i] += s->accepted_by_position[i];
    }
}

static void put_series(struct buf *out, const char *prefix, const char *name, const char *help, const struct series *s, const struct histogram *h)
{
    uint64_t sum = 0;
    buf_printf(out, "# HELP %s%s %s\n# TYPE %s%s histogram\n", prefix, name, help, prefix, name);
    for (int i = 0; i < METRIC_BUCKETS && s->bounds[i] > 0; i++) {
        sum += h->counts[i];
        buf_printf(out, "%s%s_bucket{le=\"%g\"} %llu\n", prefix, name, s->bounds[i], (unsigned long long)sum);
    }
    sum += h->counts[METRIC_BUCKETS];
    buf_printf(out, "%s%s_bucket{le=\"+Inf\"} %llu\n%s%s_sum %.9g\n%s%s_count %llu\n", prefix, name, (unsigned long long)sum, prefix, name, h->sum,
               prefix, name, (unsigned long long)sum);
}

static void put_head(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_one(struct buf *out, const char *name, const char *type, const char *help, double value)
{
    put_head(out, name, type, help);
    buf_printf(out, "%s %.17g\n", name, value);
}

static void put_steps(const struct rh_stats *t, const char *name, struct buf *out)
{
    uint64_t sum = 0;
    buf_printf(out, "# HELP %s tokens of a step, prompts' and answers'\n# TYPE %s histogram\n", name, name);
    for (int i = 0; i < RH_STEP_BUCKETS; i++) {
        sum += t->step_rows[i];
        if (i + 1 < RH_STEP_BUCKETS)
            buf_printf(out, "%s_bucket{le=\"%u\"} %llu\n", name, 1u << i, (unsigned long long)sum);
    }
    buf_printf(out, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %llu\n%s_count %llu\n", name, (unsigned long long)sum, name, (unsigned long long)t->rows, name,
               (unsigned long long)sum);
}

/* Guesses by their place in the round. */
static void put_places(const struct metrics *m, const char *name, const char *help, const uint64_t *counts, struct buf *out)
{
    put_head(out, name, "counter", help);
    for (int i = 0; i < RH_DEPTH_MAX; i++)
        if (m->drafted_by_position[i])
            buf_printf(out, "%s{position=\"%d\"} %llu\n", name, i, (unsigned long long)counts[i]);
}

static void put_counters(const struct server *s, struct buf *out)
{
    static const char *const reasons[] = {"stop", "length", "cancelled", "error"};
    static const char *const vllm[] = {"stop", "length", "abort", "error"};
    const struct metrics *m = &s->metrics;
    put_head(out, "rhapsode_finished_total", "counter", "answers by why they ended");
    for (int i = 0; i < 4; i++)
        buf_printf(out, "rhapsode_finished_total{reason=\"%s\"} %llu\n", reasons[i], (unsigned long long)m->finished[i]);
    put_head(out, "vllm:request_success_total", "counter", "answers by why they ended");
    for (int i = 0; i < 4; i++)
        buf_printf(out, "vllm:request_success_total{finished_reason=\"%s\"} %llu\n", vllm[i], (unsigned long long)m->finished[i]);
    put_head(out, "rhapsode_http_answers_total", "counter", "HTTP answers by hundreds of their status");
    for (int i = 2; i < 6; i++)
        buf_printf(out, "rhapsode_http_answers_total{status=\"%dxx\"} %llu\n", i, (unsigned long long)m->statuses[i]);
    put_one(out, "rhapsode_prompt_tokens_total", "counter", "tokens of prompts", (double)m->prompt_tokens);
    put_one(out, "vllm:prompt_tokens_total", "counter", "tokens of prompts", (double)m->prompt_tokens);
    put_one(out, "rhapsode_cached_tokens_total", "counter", "tokens of prompts whose state was known", (double)m->cached_tokens);
    put_one(out, "vllm:prefix_cache_queries_total", "counter", "tokens of prompts looked up", (double)m->prompt_tokens);
    put_one(out, "vllm:prefix_cache_hits_total", "counter", "tokens of prompts whose state was known", (double)m->cached_tokens);
    put_one(out, "rhapsode_generation_tokens_total", "counter", "tokens of answers", (double)m->generation_tokens);
    put_one(out, "vllm:generation_tokens_total", "counter", "tokens of answers", (double)m->generation_tokens);
    put_one(out, "rhapsode_rejected_total", "counter", "requests answered 429", (double)m->rejected);
    put_one(out, "vllm:spec_decode_num_draft_tokens_total", "counter", "tokens guessed ahead", (double)m->drafted);
    put_one(out, "vllm:spec_decode_num_accepted_tokens_total", "counter", "guesses that were right", (double)m->accepted);
    put_one(out, "vllm:spec_decode_num_drafts_total", "counter", "rounds of guesses", (double)m->drafted_by_position[0]);
    put_places(m, "rhapsode_guessed_total", "tokens guessed ahead, by place in the round", m->drafted_by_position, out);
    put_places(m, "rhapsode_guessed_right_total", "guesses that were right, by place in the round", m->accepted_by_position, out);
    put_places(m, "vllm:spec_decode_num_accepted_tokens_per_pos_total", "guesses that were right, by place in the round", m->accepted_by_position, out);
}

static void put_memory(const struct server *s, struct buf *out)
{
    struct rh_memory list[16];
    uint32_t n = rh_memory(s->model, list, 16);
    put_head(out, "rhapsode_memory_bytes", "gauge", "memory by what it is for: planned, and in use");
    for (uint32_t i = 0; i < 2 * n; i++)
        buf_printf(out, "rhapsode_memory_bytes{space=\"%s\",component=\"%s\",kind=\"%s\"} %llu\n", list[i / 2].space, list[i / 2].component,
                   i % 2 ? "live" : "planned", (unsigned long long)(i % 2 ? list[i / 2].live_bytes : list[i / 2].planned_bytes));
}

static void put_state(const struct rh_stats *t, struct buf *out)
{
    put_head(out, "rhapsode_pages", "gauge", "pages of sequence state by what holds them");
    buf_printf(out, "rhapsode_pages{state=\"free\"} %llu\nrhapsode_pages{state=\"live\"} %llu\nrhapsode_pages{state=\"cached\"} %llu\n",
               (unsigned long long)t->pages_free, (unsigned long long)t->pages_live, (unsigned long long)t->pages_cached);
    put_head(out, "rhapsode_state_bytes", "gauge", "sequence state by what holds it");
    buf_printf(out, "rhapsode_state_bytes{state=\"free\"} %llu\nrhapsode_state_bytes{state=\"live\"} %llu\nrhapsode_state_bytes{state=\"cached\"} %llu\n",
               (unsigned long long)t->state_free_bytes, (unsigned long long)t->state_live_bytes, (unsigned long long)t->state_cached_bytes);
    put_one(out, "rhapsode_state_total_bytes", "gauge", "budget of sequence state", (double)t->state_total_bytes);
    put_one(out, "rhapsode_state_peak_bytes", "gauge", "most of it that was in use", (double)t->state_peak_bytes);
    double used = t->state_total_bytes ? (double)(t->state_total_bytes - t->state_free_bytes) / (double)t->state_total_bytes : 0;
    put_one(out, "vllm:kv_cache_usage_perc", "gauge", "part of the state budget in use", used);
    put_one(out, "vllm:gpu_cache_usage_perc", "gauge", "part of the state budget in use", used);
}

static void put_gauges(const struct server *s, struct buf *out)
{
    const struct http_counts *h = http_counts(s->http);
    struct rh_stats t;
    rh_stats(s->model, &t);
    put_head(out, "rhapsode_sequences", "gauge", "choices by state");
    buf_printf(out, "rhapsode_sequences{state=\"waiting\"} %u\nrhapsode_sequences{state=\"preempted\"} %u\nrhapsode_sequences{state=\"prefill\"} %u\n"
               "rhapsode_sequences{state=\"decode\"} %u\n", t.waiting - t.waiting_again, t.waiting_again, t.prefilling, t.running - t.prefilling);
    put_one(out, "vllm:num_requests_waiting", "gauge", "choices waiting", t.waiting);
    put_one(out, "vllm:num_requests_running", "gauge", "choices running", t.running);
    put_state(&t, out);
    put_memory(s, out);
    put_steps(&t, "rhapsode_step_tokens", out);
    put_steps(&t, "vllm:iteration_tokens_total", out);
    put_one(out, "rhapsode_healthy", "gauge", "1 while the engine gets on", s->health.state == HEALTH_WELL);
    put_one(out, "rhapsode_failed_steps_total", "counter", "forwards that failed", (double)t.failed_steps);
    put_one(out, "rhapsode_cancelled_total", "counter", "choices whose client left, or that were cancelled", (double)t.cancelled);
    put_one(out, "rhapsode_cancel_steps_max", "gauge", "most forwards that ended between a cancel and its choice's end", (double)t.cancel_steps_max);
    put_one(out, "rhapsode_steps_total", "counter", "forwards", (double)t.steps);
    put_one(out, "rhapsode_rows_total", "counter", "rows of all forwards", (double)t.rows);
    put_one(out, "rhapsode_preempted_total", "counter", "sequences whose state was given up for others", (double)t.preempted);
    put_one(out, "vllm:num_preemptions_total", "counter", "sequences whose state was given up for others", (double)t.preempted);
    put_head(out, "rhapsode_cache_lookups_total", "counter", "prompts by why no more of them was known");
    for (int i = 0; i < RH_MISS_COUNT; i++)
        buf_printf(out, "rhapsode_cache_lookups_total{reason=\"%s\"} %llu\n", t.miss_names[i], (unsigned long long)t.misses[i]);
    put_one(out, "rhapsode_connections", "gauge", "open connections", h->open);
    put_one(out, "rhapsode_connections_total", "counter", "connections taken", (double)h->accepted);
    put_one(out, "rhapsode_connections_refused_total", "counter", "connections over the limit", (double)h->refused);
    put_one(out, "rhapsode_malformed_total", "counter", "requests that were not HTTP as it should be", (double)h->malformed);
    put_one(out, "rhapsode_received_bytes_total", "counter", "bytes from clients", (double)h->bytes_in);
    put_one(out, "rhapsode_sent_bytes_total", "counter", "bytes to clients", (double)h->bytes_out);
    put_one(out, "rhapsode_generations", "gauge", "API requests that generate now", s->gen_count);
}

void metrics_put(const struct server *s, struct buf *out)
{
    for (int i = 0; i < METRIC_HISTOGRAMS; i++) {
        put_series(out, "rhapsode_", all[i].name, all[i].help, &all[i], &s->metrics.histograms[i]);
        struct str rest = str_of(all[i].alias), alias;
        while (str_split(&rest, ' ', &alias)) {
            char name[96];
            snprintf(name, sizeof name, "%.*s", STR_ARG(alias));
            put_series(out, "vllm:", name, all[i].help, &all[i], &s->metrics.histograms[i]);
        }
    }
    put_counters(s, out);
    put_gauges(s, out);
}
