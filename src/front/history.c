/* front/history.c - see history.h.
 *
 *     rendering:  [ old rendering ][ answer ][ <special> ... ]      encoded once, with cuts
 *     ids:        [ old ids       ][ chosen ][ ids after the cut at the answer's end, or before it where no special token follows ]  */
#include "front/history.h"

#include "base/mem.h"
#include "front/front_int.h"

/* owns all; list under the history's lock */
struct history_entry {
    struct history_entry *next;
    char *tenant;
    struct buf text;              /* rendering, then answer */
    size_t prompt_bytes, bytes;
    struct chat_piece *pieces;    /* of the rendering */
    size_t piece_count;
    uint32_t *ids;                /* of rendering and answer */
    size_t id_count;
    size_t *cut_bytes;
    uint32_t *cut_positions;
    uint32_t cut_count;
};

/* what was found: copies */
struct known {
    size_t bytes; /* 0: nothing */
    uint32_t *ids;
    size_t id_count;
    size_t *cut_bytes;
    uint32_t *cut_positions;
    uint32_t cut_count;
};

void prompt_trace_free(struct prompt_trace *p)
{
    buf_free(&p->text);
    mem_free(p->pieces);
    mem_free(p->cut_bytes);
    mem_free(p->cut_positions);
    *p = (struct prompt_trace){0};
}

void history_open(struct history *h)
{
    *h = (struct history){0};
    pthread_mutex_init(&h->mutex, NULL);
}

static void entry_free(struct history_entry *e)
{
    if (!e)
        return;
    mem_free(e->tenant);
    buf_free(&e->text);
    mem_free(e->pieces);
    mem_free(e->ids);
    mem_free(e->cut_bytes);
    mem_free(e->cut_positions);
    mem_free(e);
}

void history_close(struct history *h)
{
    while (h->first) {
        struct history_entry *e = h->first;
        h->first = e->next;
        entry_free(e);
    }
    pthread_mutex_destroy(&h->mutex);
}

static void *copy_of(const void *from, size_t size_bytes)
{
    void *to = mem_try(size_bytes);
    if (to && size_bytes)
        memcpy(to, from, size_bytes);
    return to;
}

/* ---- finding ---- */

/* Did the same bytes of [0, end) come from users? */
static bool same_users(const struct chat_piece *a, size_t a_count, const struct chat_piece *b, size_t b_count, size_t end)
{
    for (size_t i = 0, k = 0, at = 0; at < end;) {
        if (i == a_count || k == b_count || a[i].user != b[k].user)
            return false;
        size_t a_to = a[i].to < end ? a[i].to : end, b_to = b[k].to < end ? b[k].to : end;
        at = a_to < b_to ? a_to : b_to;
        i += a_to == at;
        k += b_to == at;
    }
    return true;
}

static bool begins_so(const struct chat_rendered *r, const struct history_entry *e, const char *tenant)
{
    return strcmp(e->tenant, tenant) == 0 && r->text.n > e->text.n && memcmp(r->text.p, e->text.p, e->text.n) == 0 &&
           same_users(r->pieces, r->piece_count, e->pieces, e->piece_count, e->prompt_bytes);
}

static void known_free(struct known *k)
{
    mem_free(k->ids);
    mem_free(k->cut_bytes);
    mem_free(k->cut_positions);
    *k = (struct known){0};
}

/* The longest rendering with its answer that this one begins with; nothing without memory. */
static void find(struct history *h, const struct chat_rendered *r, const char *tenant, struct known *out)
{
    *out = (struct known){0};
    pthread_mutex_lock(&h->mutex);
    struct history_entry **best = NULL;
    for (struct history_entry **at = &h->first; *at; at = &(*at)->next)
        if ((!best || (*at)->text.n > (*best)->text.n) && begins_so(r, *at, tenant))
            best = at;
    if (best) {
        struct history_entry *e = *best;
        *best = e->next;
        e->next = h->first;
        h->first = e;
        *out = (struct known){e->text.n, copy_of(e->ids, e->id_count * sizeof *e->ids), e->id_count,
                              copy_of(e->cut_bytes, e->cut_count * sizeof *e->cut_bytes),
                              copy_of(e->cut_positions, e->cut_count * sizeof *e->cut_positions), e->cut_count};
    }
    pthread_mutex_unlock(&h->mutex);
    if (best && (!out->ids || !out->cut_bytes || !out->cut_positions))
        known_free(out);
}

/* ---- encoding ---- */

/* Boundaries and the end of what is known, ascending: the places where the encoding is asked to be cut. */
static int cuts_open(struct token_cuts *cuts, size_t **bytes, const struct chat_rendered *r, size_t known, struct err *err)
{
    size_t n = 0;
    *bytes = mem_try_array(r->boundary_count + 1, sizeof **bytes);
    cuts->ids = mem_try_array(r->boundary_count + 1, sizeof *cuts->ids);
    if (!*bytes || !cuts->ids)
        return err_nomem(err, "prompt boundaries", r->boundary_count * sizeof **bytes);
    for (size_t i = 0; i < r->boundary_count; i++) {
        if (known && known <= r->boundaries[i] && (n == 0 || (*bytes)[n - 1] < known))
            (*bytes)[n++] = known;
        if (n == 0 || (*bytes)[n - 1] < r->boundaries[i])
            (*bytes)[n++] = r->boundaries[i];
    }
    if (known && (n == 0 || (*bytes)[n - 1] < known))
        (*bytes)[n++] = known;
    cuts->bytes = *bytes;
    cuts->count = n;
    return 0;
}

static int encode_rendered(const struct texts *t, const struct chat_rendered *r, size_t end, struct token_cuts *cuts, struct token_ids *out,
                           struct err *err)
{
    size_t n = 0;
    struct text_span *spans = mem_try_array(r->piece_count, sizeof *spans);
    if (!spans)
        return err_nomem(err, "prompt pieces", r->piece_count * sizeof *spans);
    for (size_t i = 0; i < r->piece_count && r->pieces[i].from < end; i++) {
        size_t to = r->pieces[i].to < end ? r->pieces[i].to : end;
        spans[n++] = (struct text_span){str_n(r->text.p + r->pieces[i].from, to - r->pieces[i].from), !r->pieces[i].user};
    }
    /* the template writes the start token itself */
    int rc = tokenizer_encode_cut(t->tokenizer, spans, n, false, cuts, out, err);
    mem_free(spans);
    return rc;
}

/* The last boundary where no special token stands: up to where the ids of the text before it are those of the whole. */
static int cut_last(const struct texts *t, const struct chat_rendered *r, const struct token_ids *whole, size_t byte, size_t *ids,
                    struct err *err)
{
    struct token_ids part = {0};
    size_t same = 0;
    int rc = encode_rendered(t, r, byte, NULL, &part, err);
    while (rc == 0 && same < part.n && same < whole->n && part.ids[same] == whole->ids[same])
        same++;
    *ids = same;
    token_ids_free(&part);
    return rc;
}

static size_t cut_of(const struct token_cuts *cuts, size_t byte)
{
    for (size_t i = 0; i < cuts->count; i++)
        if (cuts->bytes[i] == byte)
            return cuts->ids[i];
    return SIZE_MAX;
}

/* Where ids end in the text they were encoded from or wrote: how far the bytes of ids and text are the same. */
struct id_walk {
    const uint32_t *ids;
    size_t count, at, bytes; /* `at` ids end at byte `bytes` */
    struct buf piece;
};

/* One id on; false: there is none, or its bytes are not the text's (a normaliser, a space that encoding adds). */
static bool walk_on(struct id_walk *w, const struct texts *t, struct str text)
{
    w->piece.n = 0;
    if (w->at == w->count || tokenizer_id_bytes(t->tokenizer, w->ids[w->at], w->at == 0, &w->piece) || w->piece.failed ||
        w->piece.n > text.n - w->bytes || (w->piece.n && memcmp(w->piece.p, text.p + w->bytes, w->piece.n) != 0))
        return false;
    w->bytes += w->piece.n;
    w->at++;
    return true;
}

/* No special token follows what is known, so the ids around its end may depend on each other: the last byte where an id of then and one of
 * now both end.  What is known is cut there.  Returns the ids of now before it; SIZE_MAX: there is no such byte. */
static size_t known_shorten(const struct texts *t, struct str text, const struct token_ids *now, struct known *k)
{
    struct id_walk a = {.ids = k->ids, .count = k->id_count}, b = {.ids = now->ids, .count = now->n};
    size_t cut = SIZE_MAX, ids = 0, bytes = 0;
    bool going = true;
    while (going) {
        going = walk_on(a.bytes <= b.bytes ? &a : &b, t, text) && a.bytes <= k->bytes && b.bytes <= k->bytes;
        if (going && a.bytes == b.bytes && a.bytes) {
            cut = b.at;
            ids = a.at;
            bytes = a.bytes;
        }
    }
    buf_free(&a.piece);
    buf_free(&b.piece);
    k->id_count = ids;
    k->bytes = bytes;
    while (k->cut_count && k->cut_bytes[k->cut_count - 1] > bytes)
        k->cut_count--;
    return cut;
}

/* out = what is known, then the new ids from `cut` on. */
static int splice(struct token_ids *ids, const struct known *k, size_t cut, struct err *err)
{
    size_t tail = ids->n - cut, n = k->id_count + tail;
    uint32_t *joined = mem_try_array(n, sizeof *joined);
    if (!joined)
        return err_nomem(err, "prompt ids", n * sizeof *joined);
    memcpy(joined, k->ids, k->id_count * sizeof *joined);
    memcpy(joined + k->id_count, ids->ids + cut, tail * sizeof *joined);
    mem_free(ids->ids);
    *ids = (struct token_ids){joined, n, n};
    return 0;
}

static void trace_cut(struct prompt_trace *trace, size_t byte, size_t position)
{
    if (position == 0 || position == SIZE_MAX || (trace->cut_count && trace->cut_positions[trace->cut_count - 1] >= position))
        return;
    trace->cut_bytes[trace->cut_count] = byte;
    trace->cut_positions[trace->cut_count++] = (uint32_t)position;
}

/* Positions of the boundaries: inside what is known those of then, after it those of now. */
static int trace_cuts(struct prompt_trace *trace, const struct chat_rendered *r, const struct token_cuts *cuts, const struct known *k,
                      size_t cut, struct err *err)
{
    size_t most = r->boundary_count + k->cut_count, shift = k->bytes ? k->id_count - cut : 0;
    trace->cut_bytes = mem_try_array(most, sizeof *trace->cut_bytes);
    trace->cut_positions = mem_try_array(most, sizeof *trace->cut_positions);
    if (!trace->cut_bytes || !trace->cut_positions)
        return err_nomem(err, "prompt boundaries", most * sizeof *trace->cut_bytes);
    for (uint32_t i = 0; i < k->cut_count; i++)
        trace_cut(trace, k->cut_bytes[i], k->cut_positions[i]);
    for (size_t i = 0; i < r->boundary_count; i++) {
        size_t at = r->boundaries[i] < k->bytes ? SIZE_MAX : cut_of(cuts, r->boundaries[i]);
        trace_cut(trace, r->boundaries[i], at == SIZE_MAX ? at : at + shift);
    }
    return 0;
}

static int encode_known(const struct texts *t, const struct chat_rendered *r, struct known *k, struct token_ids *ids,
                        struct prompt_trace *trace, struct err *err)
{
    struct token_cuts cuts = {0};
    size_t *bytes = NULL, last = r->boundary_count ? r->boundaries[r->boundary_count - 1] : 0;
    int rc = cuts_open(&cuts, &bytes, r, k->bytes, err);
    if (rc == 0)
        rc = encode_rendered(t, r, r->text.n, &cuts, ids, err);
    if (rc == 0 && last && last < r->text.n && cut_of(&cuts, last) == SIZE_MAX && last > k->bytes)
        for (size_t i = 0; i < cuts.count && rc == 0; i++)
            if (cuts.bytes[i] == last)
                rc = cut_last(t, r, ids, last, &cuts.ids[i], err);
    size_t cut = rc == 0 && k->bytes ? cut_of(&cuts, k->bytes) : SIZE_MAX;
    if (rc == 0 && k->bytes && cut == SIZE_MAX)
        cut = known_shorten(t, buf_view(&r->text), ids, k);
    if (cut == SIZE_MAX)
        known_free(k);
    if (rc == 0)
        rc = trace_cuts(trace, r, &cuts, k, cut, err);
    if (rc == 0 && k->bytes)
        rc = splice(ids, k, cut, err);
    mem_free(bytes);
    mem_free(cuts.ids);
    return rc;
}

int history_encode(struct history *h, const struct texts *t, const struct rh_chat *chat, const char *tenant, struct token_ids *ids,
                   struct prompt_trace *trace, struct err *err)
{
    struct chat_rendered r = {0};
    struct known k = {0};
    *trace = (struct prompt_trace){0};
    int rc = texts_render(t, chat, &r, err);
    if (rc == 0) {
        find(h, &r, tenant, &k);
        rc = encode_known(t, &r, &k, ids, trace, err);
    }
    if (rc == 0) { /* the rendering moves into the trace */
        trace->text = r.text;
        trace->pieces = r.pieces;
        trace->piece_count = r.piece_count;
        r.text = (struct buf){0};
        r.pieces = NULL;
    }
    known_free(&k);
    chat_rendered_free(&r);
    return rc;
}

/* ---- remembering ---- */

static struct history_entry *entry_new(const char *tenant, const struct prompt_trace *trace, const struct token_ids *prompt, struct str answer,
                                       const uint32_t *answer_ids, size_t answer_count)
{
    struct history_entry *e = mem_try_zero(1, sizeof *e);
    if (!e)
        return NULL;
    e->tenant = mem_try_strndup(tenant, strlen(tenant));
    e->prompt_bytes = trace->text.n;
    buf_str(&e->text, buf_view(&trace->text));
    buf_str(&e->text, answer);
    e->piece_count = trace->piece_count;
    e->pieces = copy_of(trace->pieces, trace->piece_count * sizeof *e->pieces);
    e->id_count = prompt->n + answer_count;
    e->ids = mem_try_array(e->id_count, sizeof *e->ids);
    e->cut_count = trace->cut_count;
    e->cut_bytes = copy_of(trace->cut_bytes, e->cut_count * sizeof *e->cut_bytes);
    e->cut_positions = copy_of(trace->cut_positions, e->cut_count * sizeof *e->cut_positions);
    if (!e->tenant || e->text.failed || !e->pieces || !e->ids || !e->cut_bytes || !e->cut_positions) {
        entry_free(e);
        return NULL;
    }
    memcpy(e->ids, prompt->ids, prompt->n * sizeof *e->ids);
    memcpy(e->ids + prompt->n, answer_ids, answer_count * sizeof *e->ids);
    e->bytes = sizeof *e + e->text.n + e->id_count * sizeof *e->ids + e->piece_count * sizeof *e->pieces +
               e->cut_count * (sizeof *e->cut_bytes + sizeof *e->cut_positions);
    return e;
}

/* Takes out what says the same text with other ids, and the least recently used while it is too much. */
static void make_room(struct history *h, const struct history_entry *with)
{
    for (struct history_entry **at = &h->first; *at;) {
        struct history_entry *e = *at;
        if (strcmp(e->tenant, with->tenant) != 0 || !str_eq(buf_view(&e->text), buf_view(&with->text))) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        h->bytes -= e->bytes;
        entry_free(e);
    }
    while (h->first && h->bytes + with->bytes > HISTORY_BYTES_MAX) {
        struct history_entry **at = &h->first;
        while ((*at)->next)
            at = &(*at)->next;
        h->bytes -= (*at)->bytes;
        entry_free(*at);
        *at = NULL;
    }
}

void history_add(struct history *h, const char *tenant, const struct prompt_trace *trace, const struct token_ids *prompt, struct str answer,
                 const uint32_t *answer_ids, size_t answer_count)
{
    if (answer_count == 0 || answer.n == 0 || trace->text.n + answer.n > HISTORY_BYTES_MAX / 8)
        return;
    struct history_entry *e = entry_new(tenant, trace, prompt, answer, answer_ids, answer_count);
    if (!e)
        return;
    pthread_mutex_lock(&h->mutex);
    make_room(h, e);
    e->next = h->first;
    h->first = e;
    h->bytes += e->bytes;
    pthread_mutex_unlock(&h->mutex);
}
