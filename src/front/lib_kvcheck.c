/* front/lib_kvcheck.c - kvcheck: what every format of sequence state costs a model, as JSON; the figures are kept in the store.
 *
 * kvcheck_run.c measures, kvcheck_store.c keeps. */
#include "base/mem.h"
#include "front/kvcheck.h"

#include <stdlib.h>

enum { TOKENS = 4096, TOKENS_LEAST = 256, ROWS_LEAST = 64, NEEDLE_IDS_MAX = 64 };

static const char all_formats[] = "f16,bf16,q8,a8g32,a8g64,a8g128,k8v4,k8v3,a4g32,a4g64,a4g128,k4v4,q4h,tq4,tq3";

static const struct {
    const char *place, *number;
} needles[KVCHECK_NEEDLES] = {{"Lisbon", "4817"}, {"Oslo", "9026"}, {"Nairobi", "3551"}, {"Quito", "7298"}, {"Hanoi", "1643"}};

/* ---- ids ---- */

static int put_text(struct rh_model *m, struct str text, struct token_ids *out, struct err *err)
{
    struct encode_options opt = {.parse_special = false};
    return tokenizer_encode(m->texts.tokenizer, text, &opt, out, err);
}

static int needle_open(struct kvcheck *c, uint32_t i, struct token_ids *told, struct err *err)
{
    char text[160];
    struct token_ids ids = {0};
    struct kvcheck_needle *n = &c->needles[i];
    snprintf(text, sizeof text, "\nThe secret number of %s is %s.\n", needles[i].place, needles[i].number);
    int rc = put_text(c->m, str_of(text), told, err);
    snprintf(text, sizeof text, "\nWhich number was secret? The secret number of %s is", needles[i].place);
    if (rc == 0)
        rc = put_text(c->m, str_of(text), &ids, err);
    n->answer = (uint32_t)ids.n;
    snprintf(text, sizeof text, "\nWhich number was secret? The secret number of %s is %s", needles[i].place, needles[i].number);
    token_ids_free(&ids);
    ids = (struct token_ids){0};
    if (rc == 0)
        rc = put_text(c->m, str_of(text), &ids, err);
    if (rc == 0 && (ids.n <= n->answer || ids.n > NEEDLE_IDS_MAX))
        rc = err_set(err, ERR_INTERNAL, "a question of %zu ids", ids.n);
    n->ids = ids.ids;
    n->count = (uint32_t)ids.n;
    c->needle_count = i + 1;
    return rc;
}

/* BOS, then the text with the needles at 1/6, 2/6, .. of it; `want` ids in all. */
static int make_ids(struct kvcheck *c, const struct token_ids *text, uint32_t want, struct err *err)
{
    const struct tokenizer_info *t = &c->m->texts.info;
    struct token_ids told[KVCHECK_NEEDLES] = {0};
    uint32_t extra = t->add_bos ? 1 : 0, used = 0;
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < KVCHECK_NEEDLES; i++) {
        rc = needle_open(c, i, &told[i], err);
        extra += (uint32_t)told[i].n;
    }
    if (rc == 0 && text->n + extra < want)
        rc = err_set(err, ERR_ARGUMENT, "the text has %zu tokens, expected at least %u", text->n, want - extra);
    c->ids = mem_try_array(want, sizeof *c->ids);
    if (rc == 0 && !c->ids)
        rc = err_nomem(err, "ids", want * sizeof *c->ids);
    if (rc == 0 && t->add_bos)
        c->ids[c->count++] = (uint32_t)t->bos;
    for (uint32_t i = 0; rc == 0 && i <= KVCHECK_NEEDLES; i++) {
        uint32_t upto = (uint32_t)((uint64_t)(want - extra) * (i + 1) / (KVCHECK_NEEDLES + 1));
        memcpy(c->ids + c->count, text->ids + used, (upto - used) * sizeof *c->ids);
        c->count += upto - used;
        used = upto;
        if (i == KVCHECK_NEEDLES)
            break;
        memcpy(c->ids + c->count, told[i].ids, told[i].n * sizeof *c->ids);
        c->count += (uint32_t)told[i].n;
    }
    for (uint32_t i = 0; i < KVCHECK_NEEDLES; i++)
        token_ids_free(&told[i]);
    return rc;
}

/* ---- formats ---- */

static int columns_make(struct kvcheck *c, const char *formats, struct err *err)
{
    struct str rest = str_of(formats ? formats : all_formats), name;
    uint32_t most = 1;
    for (size_t i = 0; i < rest.n; i++)
        most += rest.p[i] == ',';
    c->columns = mem_try_zero(most, sizeof *c->columns);
    if (!c->columns)
        return err_nomem(err, "formats", most * sizeof *c->columns);
    while (str_split(&rest, ',', &name)) {
        struct kvcheck_column *col = &c->columns[c->column_count++];
        if (kv_formats_parse(name.p, name.n, &col->k, &col->v))
            return err_set(err, ERR_ARGUMENT, "'%.*s' is no format: expected K or K:V of %s", (int)(name.n < 64 ? name.n : 64), name.p,
                           kv_formats_text);
        col->kl = mem_try_zero(c->count, sizeof *col->kl);
        if (!col->kl)
            return err_nomem(err, "kvcheck", c->count * sizeof *col->kl);
    }
    c->reference.k = c->reference.v = KV_F32;
    return 0;
}

/* ---- report ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void put_column(struct buf *b, const struct kvcheck *c, const struct kvcheck_column *col, bool reference)
{
    char name[KV_NAME_MAX];
    buf_printf(b, "{\"format\":\"%s\",", kv_formats_name(col->k, col->v, name));
    if (col->refused.code) {
        buf_z(b, "\"refused\":");
        buf_json_str(b, str_of(col->refused.text));
        buf_char(b, '}');
        return;
    }
    buf_printf(b, "\"bytes_per_position\":%.9g,\"needles\":%u,\"tokens_per_s\":%.6g", (double)col->bits_per_position / 8, col->found,
               col->tokens_per_s);
    if (!reference) {
        double sum = 0;
        for (uint32_t i = 0; i < c->count; i++)
            sum += col->kl[i];
        qsort(col->kl, c->count, sizeof *col->kl, by_value);
        buf_printf(b, ",\"kl_mean\":%.6g,\"kl_p99\":%.6g,\"top1\":%.6g,\"mse_k\":%.6g,\"mse_v\":%.6g", sum / c->count,
                   col->kl[(uint64_t)(c->count - 1) * 99 / 100], (double)col->agree / c->count, col->error_k[0] / col->error_k[1],
                   col->error_v[0] / col->error_v[1]);
    }
    buf_char(b, '}');
}

static void put_result(struct buf *b, const struct kvcheck *c)
{
    buf_z(b, "{\"model\":");
    buf_json_str(b, str_of(model_info(c->m->model)->name));
    buf_printf(b, ",\"kv_start\":%u,\"tokens\":%u,\"needles\":%u,\"reference\":", c->m->options.kv_start, c->count, c->needle_count);
    put_column(b, c, &c->reference, true);
    buf_z(b, ",\"formats\":[");
    for (uint32_t i = 0; i < c->column_count; i++) {
        if (i)
            buf_char(b, ',');
        put_column(b, c, &c->columns[i], false);
    }
    buf_z(b, "]}");
}

static int prepare(struct kvcheck *c, const struct rh_kvcheck_options *opt, struct err *err)
{
    struct token_ids text = {0};
    uint32_t want = opt->tokens ? opt->tokens : TOKENS, context = model_info(c->m->model)->context;
    struct str given = opt->text.p ? front_str(opt->text) : str_n(kvcheck_text, kvcheck_text_bytes);
    if (want > context - (context < 2 * ROWS_LEAST ? context : 2 * ROWS_LEAST))
        want = context - (context < 2 * ROWS_LEAST ? context : 2 * ROWS_LEAST); /* room for a question and the timed steps */
    if (want < TOKENS_LEAST)
        return err_set(err, ERR_ARGUMENT, "%u tokens of a context of %u, expected at least %d", want, context, TOKENS_LEAST);
    if (c->m->options.rows_max < ROWS_LEAST)
        return err_set(err, ERR_ARGUMENT, "steps of %u rows, expected at least %d", c->m->options.rows_max, ROWS_LEAST);
    int rc = put_text(c->m, given, &text, err);
    if (rc == 0)
        rc = make_ids(c, &text, want, err);
    token_ids_free(&text);
    if (rc == 0)
        rc = columns_make(c, opt->formats, err);
    c->vocab = model_info(c->m->model)->vocab;
    for (int i = 0; rc == 0 && i < 2; i++) {
        c->logits[i] = mem_try_array(32 * (size_t)c->vocab, sizeof(float));
        rc = c->logits[i] ? 0 : err_nomem(err, "logits", 32 * (size_t)c->vocab * sizeof(float));
    }
    return rc;
}

static void kvcheck_free(struct kvcheck *c)
{
    for (uint32_t i = 0; i < c->column_count; i++)
        mem_free(c->columns[i].kl);
    for (uint32_t i = 0; i < c->needle_count; i++)
        mem_free(c->needles[i].ids);
    mem_free(c->columns);
    mem_free(c->ids);
    mem_free(c->logits[0]);
    mem_free(c->logits[1]);
}

int rh_kvcheck_json(struct rh_model *m, const struct rh_kvcheck_options *opt, char **out, struct rh_error *rerr)
{
    struct err err = {0};
    struct kvcheck c = {.m = m, .progress = opt->progress, .progress_ctx = opt->progress_ctx};
    struct buf b = {0};
    int rc = model_need_engine(m, &err);
    if (rc == 0)
        rc = prepare(&c, opt, &err);
    if (rc == 0)
        rc = engine_exclusive(m->engine, kvcheck_run, &c, &err);
    if (rc == 0) {
        put_result(&b, &c);
        buf_cstr(&b);
        rc = buf_check(&b, "kvcheck", &err);
    }
    if (rc == 0 && m->host->store_dir && !opt->forget && m->options.kv_start == 0) /* what is kept judges formats by themselves */
        rc = kvcheck_keep(m, buf_view(&b), &err);
    kvcheck_free(&c);
    if (rc) {
        buf_free(&b);
        return front_error(rerr, &err, rc);
    }
    *out = b.p;
    return 0;
}
