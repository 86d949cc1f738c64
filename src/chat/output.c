/* chat/output.c - see output.h: bytes -> markers -> content, reasoning, calls.
 *
 * Each step has a handful of markers.  Bytes that may become one are kept in `match`; once they are one, the longest is taken and its action
 * runs; once they cannot be, the first of them is the step's own (text, a name's letter, ...) and the rest is read again. */
#include "chat/output_int.h"

#include "base/mem.h"
#include "base/rng.h"

/* ---- events ---- */

static struct output_record *new_record(struct output_parser *p, enum output_kind kind)
{
    if (p->record_n == p->record_cap) {
        size_t cap = p->record_cap ? 2 * p->record_cap : 8;
        struct output_record *more = mem_try_resize(p->records, cap * sizeof *more);
        if (!more) {
            p->failed = ERR_NOMEM;
            return NULL;
        }
        p->records = more;
        p->record_cap = cap;
    }
    struct output_record *r = &p->records[p->record_n++];
    *r = (struct output_record){.kind = kind, .call = p->call_n ? p->call_n - 1 : 0, .from = p->text.n, .to = p->text.n};
    return r;
}

void output_emit(struct output_parser *p, enum output_kind kind, const char *bytes, size_t n)
{
    if (n == 0 || p->mute)
        return;
    struct output_record *r = p->record_n ? &p->records[p->record_n - 1] : NULL;
    if (!r || r->kind != kind)
        r = new_record(p, kind);
    if (!r)
        return;
    buf_put(&p->text, bytes, n);
    r->to = p->text.n;
}

/* Letters for a call of no name of its own: a function of (id_seed, index). */
static void draw_id(struct output_parser *p)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    uint32_t n = p->format->short_ids ? 9 : 24, bits[4] = {0};
    buf_z(&p->text, p->format->short_ids ? "" : "call_");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t counter[4] = {p->call_n, i / 4, 0, 0};
        if (i % 4 == 0)
            rng_philox(p->id_seed, counter, bits);
        buf_char(&p->text, letters[bits[i % 4] % 62]);
    }
}

bool call_begin(struct output_parser *p)
{
    p->tool = schema_tool(p->schema, buf_view(&p->name));
    if (p->call_n == OUTPUT_CALLS_MAX || (p->tool < 0 && (p->told_only || (p->call->flags & OUTPUT_BARE))))
        return false;
    p->call_n++;
    p->begun = true;
    p->wrote_args = false;
    p->held.n = 0;
    struct output_record *r = new_record(p, OUTPUT_CALL_BEGIN);
    if (!r)
        return true;
    r->name = p->text.n;
    buf_str(&p->text, buf_view(&p->name));
    buf_char(&p->text, 0);
    r->id = p->text.n;
    if (p->id.n)
        buf_str(&p->text, buf_view(&p->id));
    else
        draw_id(p);
    buf_char(&p->text, 0);
    return true;
}

void call_end(struct output_parser *p, bool whole)
{
    struct output_record *r = new_record(p, OUTPUT_CALL_END);
    if (r)
        r->whole = whole;
    p->begun = false;
    p->outer = ST_CONTENT;
    p->fresh = false;
}

bool output_next(struct output_parser *p, struct output_event *out)
{
    if (p->record_next >= p->record_n)
        return false;
    const struct output_record *r = &p->records[p->record_next++];
    *out = (struct output_event){.kind = r->kind, .call = r->call, .whole = r->whole};
    if (r->kind == OUTPUT_CALL_BEGIN) {
        out->name = p->text.p + r->name;
        out->id = p->text.p + r->id;
    } else if (r->kind != OUTPUT_CALL_END) {
        out->text = str_n(p->text.p + r->from, r->to - r->from);
    }
    return true;
}

/* ---- text outside of calls ---- */

bool output_space(uint16_t unit)
{
    uint8_t c = (uint8_t)unit;
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

void output_hold(struct output_parser *p, uint16_t unit)
{
    if (!(unit & UNIT_SPECIAL))
        buf_char(&p->held, (char)unit);
}

void output_replay(struct output_parser *p, uint16_t unit)
{
    p->replay[p->replay_n++] = unit;
}

void output_content_unit(struct output_parser *p, uint16_t unit)
{
    char c = (char)unit;
    bool space = output_space(unit);
    if ((unit & UNIT_SPECIAL) || (space && p->skip_space))
        return;
    output_emit(p, p->step == ST_REASONING ? OUTPUT_REASONING : OUTPUT_CONTENT, &c, 1);
    if (space)
        return;
    p->skip_space = false;
    if (p->fresh && p->step == ST_CONTENT) {
        p->fresh = false;
        output_enter(p, ST_CONTENT);
    }
}

static void drop(struct output_parser *p, uint8_t index)
{
    (void)index;
    p->skip_space = true;
    output_enter(p, p->step);
}

static void open_reasoning(struct output_parser *p, uint8_t index)
{
    p->reasoning = index;
    p->skip_space = true;
    output_enter(p, ST_REASONING);
}

static void close_reasoning(struct output_parser *p, uint8_t index)
{
    (void)index;
    p->skip_space = true;
    output_enter(p, ST_CONTENT);
}

static void content_markers(struct output_parser *p)
{
    const struct output_format *f = p->format;
    for (uint8_t i = 0; i < OUTPUT_REASONING_MAX && (p->fresh || f->reasoning_anywhere); i++)
        output_marker(p, f->reasoning[i].open, open_reasoning, i, 0);
    for (uint8_t i = 0; i < OUTPUT_DROPS_MAX; i++)
        output_marker(p, f->drops[i], drop, i, 0);
    call_markers_outside(p, p->fresh);
}

void output_enter(struct output_parser *p, enum output_step step)
{
    p->step = step;
    p->marker_n = 0;
    p->lead_space = step != ST_VALUE;
    memset(p->first, 0, sizeof p->first);
    if (step == ST_HEADER)
        header_markers(p);
    else if (step != ST_CONTENT && step != ST_REASONING)
        call_markers(p);
    else if (p->format->headers)
        header_markers_outside(p);
    else if (step == ST_CONTENT)
        content_markers(p);
    else {
        output_marker(p, p->format->reasoning[p->reasoning].close, close_reasoning, 0, 0);
        if (p->format->call_ends_reasoning)
            call_markers_outside(p, false);
    }
}

/* ---- markers ---- */

void output_marker(struct output_parser *p, const char *text, output_action act, uint8_t index, uint8_t unread)
{
    if (!text)
        return;
    p->markers[p->marker_n++] = (struct output_marker){str_of(text), act, index, unread};
    p->first[(uint8_t)text[0]] = 1;
}

enum { NO_MATCH = 0, OPEN_MATCH = -1 };

/* Units of `u` that are the marker; NO_MATCH; OPEN_MATCH: more units may make it one. */
static int marker_length(const struct output_marker *m, const uint16_t *u, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < m->text.n; i++) {
        if (m->text.p[i] == ' ') {
            while (at < n && output_space(u[at]))
                at++;
            continue;
        }
        if (at == n)
            return OPEN_MATCH;
        if ((uint8_t)u[at] != (uint8_t)m->text.p[i])
            return NO_MATCH;
        at++;
    }
    return (int)at;
}

static void unmatch(struct output_parser *p, size_t from)
{
    for (size_t i = p->match_n; i > from; i--)
        output_replay(p, p->match[i - 1]);
    p->match_n = 0;
}

static void text_unit(struct output_parser *p, uint16_t unit)
{
    if (p->step == ST_CONTENT || p->step == ST_REASONING)
        output_content_unit(p, unit);
    else if (p->step == ST_HEADER)
        header_unit(p, unit);
    else
        call_unit(p, unit);
}

/* No marker begins at the first unit: white space goes at once, else one unit; the rest is read again. */
static void give_up_match(struct output_parser *p, size_t lead)
{
    uint16_t first[MATCH_SPACE_MAX + 1];
    size_t n = lead ? lead : 1;
    memcpy(first, p->match, n * sizeof *first);
    unmatch(p, n);
    for (size_t i = 0; i < n; i++) {
        enum output_step step = p->step;
        text_unit(p, first[i]);
        if (p->step == step)
            continue;
        for (size_t k = n; k > i + 1; k--) /* another step now: it may see the rest otherwise */
            output_replay(p, first[k - 1]);
        return;
    }
}

static void take_match(struct output_parser *p, const struct output_marker *m, size_t used)
{
    struct output_marker marker = *m;
    used -= marker.unread;
    bool inside = p->step > ST_HEADER;
    if (!inside)
        p->held.n = 0;
    p->moved = used > 0 || (inside && p->moved);
    for (size_t i = 0; i < used && !p->begun; i++)
        output_hold(p, p->match[i]);
    unmatch(p, used);
    marker.act(p, marker.index);
}

/* What `match` is by now. */
static void settle_match(struct output_parser *p)
{
    size_t lead = 0;
    while (p->lead_space && lead < p->match_n && output_space(p->match[lead]))
        lead++;
    bool full = p->match_n == MATCH_MAX || lead == MATCH_SPACE_MAX || p->ending, open = lead == p->match_n;
    const struct output_marker *best = NULL;
    int best_n = 0;
    for (uint32_t i = 0; i < p->marker_n; i++) {
        int n = marker_length(&p->markers[i], p->match + lead, p->match_n - lead);
        open |= n == OPEN_MATCH;
        if (n > best_n) {
            best = &p->markers[i];
            best_n = n;
        }
    }
    if (open && !full)
        return;
    if (best)
        take_match(p, best, lead + (size_t)best_n);
    else
        give_up_match(p, lead);
}

static void step_unit(struct output_parser *p, uint16_t unit)
{
    if (p->step == ST_OBJECT) {
        object_unit(p, unit);
    } else if (p->step == ST_ARGS) {
        call_args_unit(p, unit);
    } else if (p->match_n == 0 && !p->first[(uint8_t)unit] && !(p->lead_space && p->marker_n && output_space(unit))) {
        text_unit(p, unit);
    } else {
        p->match[p->match_n++] = unit;
        settle_match(p);
    }
}

static void run(struct output_parser *p)
{
    while (p->replay_n && !p->failed) {
        uint16_t unit = p->replay[--p->replay_n];
        step_unit(p, unit);
    }
}

/* ---- the face ---- */

static int check(struct output_parser *p)
{
    const struct buf *all[] = {&p->text, &p->held, &p->name, &p->id, &p->key, &p->header, &p->chunk, &p->args};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i]->failed && !p->failed)
            p->failed = ERR_NOMEM;
    return p->failed;
}

static void put_units(struct output_parser *p, struct str text, bool special)
{
    for (size_t i = 0; i < text.n && !p->failed; i++) {
        output_replay(p, (uint16_t)((uint8_t)text.p[i] | (special ? UNIT_SPECIAL : 0)));
        run(p);
    }
}

static void forget_events(struct output_parser *p)
{
    if (p->record_next < p->record_n)
        return;
    p->record_n = p->record_next = 0;
    p->text.n = 0;
}

int output_put(struct output_parser *p, struct str text, bool special)
{
    forget_events(p);
    put_units(p, text, special);
    return check(p);
}

int output_end(struct output_parser *p)
{
    forget_events(p);
    p->ending = true;
    if (p->step == ST_AFTER || p->step == ST_NEXT)
        p->match_n = 0; /* the beginning of the marker that comes there */
    while (p->match_n && !p->failed) {
        settle_match(p);
        run(p);
    }
    if (p->step > ST_HEADER)
        call_text_ends(p);
    run(p);
    return check(p);
}

/* Does the prompt end inside a reasoning block? */
static void read_prompt(struct output_parser *p, struct str tail)
{
    if (p->format->headers) {
        size_t at = SIZE_MAX;
        for (size_t i = 0; i < tail.n; i++)
            if (str_starts(str_from(tail, i), STR("<|start|>")))
                at = i;
        header_begin(p);
        p->mute = true;
        put_units(p, at == SIZE_MAX ? STR("<|start|>assistant") : str_from(tail, at), true);
        p->mute = false;
        return;
    }
    tail = str_trim(tail);
    for (uint8_t i = 0; i < OUTPUT_REASONING_MAX; i++)
        if (p->format->reasoning[i].open && str_ends(tail, str_trim(str_of(p->format->reasoning[i].open)))) {
            open_reasoning(p, i);
            return;
        }
}

int output_open(const struct output_options *opt, struct output_parser **out, struct err *err)
{
    struct output_parser *p = mem_try_zero(1, sizeof *p);
    *out = NULL;
    if (!p)
        return err_nomem(err, "output parser", sizeof *p);
    p->format = opt->format;
    p->calls_wanted = opt->calls;
    p->told_only = opt->told_only;
    p->id_seed = opt->id_seed;
    p->fresh = true;
    int rc = schema_open(opt->tools, &p->schema, err);
    if (rc == 0) {
        output_enter(p, ST_CONTENT);
        read_prompt(p, opt->prompt_tail);
        rc = check(p) ? err_nomem(err, "output parser", 0) : 0;
    }
    if (rc) {
        output_close(p);
        return rc;
    }
    *out = p;
    return 0;
}

void output_close(struct output_parser *p)
{
    if (!p)
        return;
    schema_close(p->schema);
    struct buf *all[] = {&p->text, &p->held, &p->name, &p->id, &p->key, &p->header, &p->chunk, &p->args};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        buf_free(all[i]);
    mem_free(p->records);
    mem_free(p);
}

static bool holds(const char *marker, struct str special)
{
    return marker && special.n && str_find(str_of(marker), special) != SIZE_MAX;
}

bool output_is_marker(const struct output_parser *p, struct str special)
{
    const struct output_format *f = p->format;
    bool found = f->headers && header_is_marker(special);
    for (int i = 0; i < OUTPUT_REASONING_MAX; i++)
        found |= holds(f->reasoning[i].open, special) || holds(f->reasoning[i].close, special);
    for (int i = 0; i < OUTPUT_DROPS_MAX; i++)
        found |= holds(f->drops[i], special);
    for (int i = 0; i < OUTPUT_CALL_KINDS && p->calls_wanted; i++) {
        const struct output_calls *c = &f->calls[i];
        const char *const all[] = {c->open,     c->close,     c->call_open,  c->call_close,  c->separator,  c->name_end, c->id_open,
                                   c->key_open, c->key_close, c->value_open, c->value_close, c->string_mark};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            found |= holds(all[k], special);
    }
    return found;
}

bool output_in_reasoning(const struct output_parser *p)
{
    return p->step == ST_REASONING;
}

const char *output_reasoning_close(const struct output_parser *p)
{
    return output_in_reasoning(p) ? p->format->reasoning[p->reasoning].close : NULL;
}

uint32_t output_call_count(const struct output_parser *p)
{
    return p->call_n;
}
