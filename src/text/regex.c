/* text/regex.c - compile, and the matcher: backtracking over a small program with an explicit stack.
 *
 * A run of one set (\s+, \p{L}*) is a single frame that gives back a character at a time, so the known patterns take time linear
 * in the text.  Anything worse meets the step limit. */
#include "text/regex_int.h"

#include "base/mem.h"

enum { NEED_AFTER_MAX = 4, REGEX_FRAMES_MAX = 1 << 20, REGEX_STEPS_BASE = 1 << 16, REGEX_STEPS_PER_BYTE = 256 };

/* Sets of many ranges get a bit map, so that a long class costs no more than a short one. */
static int planes(struct regex *re, struct err *err)
{
    enum { FEW_RANGES = 4, WORDS = 1024 };
    uint16_t n = 0;
    for (uint32_t i = 0; i < re->set_count; i++)
        if (re->set[i].range_count > FEW_RANGES)
            re->set[i].plane = ++n;
    if (!n)
        return 0;
    re->plane = mem_try_zero((size_t)n * WORDS, sizeof *re->plane);
    if (!re->plane)
        return err_nomem(err, "a regular expression", (size_t)n * WORDS * sizeof *re->plane);
    for (uint32_t i = 0; i < re->set_count; i++)
        for (uint32_t cp = 0; re->set[i].plane && cp < 65536; cp++)
            if (regex_set_high(re, &re->set[i], cp))
                re->plane[(size_t)(re->set[i].plane - 1) * WORDS + (cp >> 6)] |= 1ull << (cp & 63);
    return 0;
}

int regex_compile(struct str pattern, const char *where, struct regex **out, struct err *err)
{
    struct regex *re = mem_try_zero(1, sizeof *re);
    if (!re)
        return err_nomem(err, "a regular expression", sizeof *re);
    int rc = regex_parse_own(re, pattern) ? planes(re, err) : regex_compile_pcre(re, pattern, where, err);
    if (rc) {
        mem_free(re);
        return rc;
    }
    *out = re;
    return 0;
}

int regex_compile_literal(struct str text, struct regex **out, struct err *err)
{
    if (text.n > 4096)
        return err_set(err, ERR_LIMIT, "pattern string of %zu bytes: at most 4096", text.n);
    char quoted[4 * 4096];
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) {
        char c = text.p[i];
        if (c && strchr("\\^$.[]|()?*+{}-&#", c))
            quoted[n++] = '\\';
        quoted[n++] = c;
    }
    return regex_compile(str_n(quoted, n), "pattern string", out, err);
}

void regex_free(struct regex *re)
{
    if (!re)
        return;
    regex_free_pcre(re);
    mem_free(re->plane);
    mem_free(re);
}

bool regex_is_own(const struct regex *re)
{
    return !re->pcre;
}

int regex_cursor_open(struct regex_cursor *c, const struct regex *re, struct str text, struct err *err)
{
    (void)err;
    c->re = re;
    c->text = text;
    c->at = c->last_end = c->need_at = 0;
    c->matched = false;
    c->steps_left = REGEX_STEPS_BASE + (uint64_t)text.n * REGEX_STEPS_PER_BYTE;
    if (!c->frame) {
        c->frame = c->fixed;
        c->frame_cap = REGEX_FRAMES_FIXED;
    }
    return 0;
}

void regex_cursor_free(struct regex_cursor *c)
{
    regex_cursor_free_pcre(c);
    if (c->frame != c->fixed)
        mem_free(c->frame);
    c->frame = NULL;
}

static int frames_grow(struct regex_cursor *c)
{
    if (c->frame_cap >= REGEX_FRAMES_MAX)
        return ERR_LIMIT;
    struct regex_frame *bigger = mem_try_array(c->frame_cap * 4, sizeof *bigger);
    if (!bigger)
        return ERR_NOMEM;
    memcpy(bigger, c->frame, c->frame_cap * sizeof *bigger);
    if (c->frame != c->fixed)
        mem_free(c->frame);
    c->frame = bigger;
    c->frame_cap *= 4;
    return 0;
}

/* Take characters of the set from *p: at most max.  *low = where the min-th ended. */
static uint32_t run_take(const struct regex *re, const struct regex_ins *in, const char **p, const char *end, const char **low)
{
    const struct regex_set *s = &re->set[in->set];
    const char *at = *p;
    uint32_t n = 0;
    *low = in->min ? NULL : at;
    while (n < in->max && at < end) {
        const char *next = at;
        uint32_t cp = unicode_next(&next);
        if (!regex_set_has(re, s, cp))
            break;
        at = next;
        if (++n == in->min)
            *low = at;
    }
    *p = at;
    return n;
}

static bool look(const struct regex *re, uint32_t set, const char *p, const char *end)
{
    return p < end && regex_set_has(re, &re->set[set], unicode_next(&p));
}

/* Runs from pc at p.  1: *match_end is set; 0: no match; negative: limit or memory. */
static int run(struct regex_cursor *c, uint32_t pc, const char *p, const char **match_end)
{
    const struct regex *re = c->re;
    const char *end = c->text.p + c->text.n;
    size_t depth = 0;
    for (;;) {
        const struct regex_ins *in = &re->ins[pc];
        struct regex_frame frame = {0};
        bool ok = true, push = false;
        if (c->steps_left-- == 0) {
            c->steps_left = 0;
            return ERR_LIMIT;
        }
        switch ((enum regex_op)in->op) {
        case OP_MATCH:
            *match_end = p;
            return 1;
        case OP_SET:
            ok = p < end && regex_set_has(re, &re->set[in->set], unicode_next(&p));
            pc++;
            break;
        case OP_RUN:
        case OP_RUN_KEEP: {
            const char *low, *start = p;
            uint32_t n = run_take(re, in, &p, end, &low);
            c->steps_left -= c->steps_left < (uint64_t)(p - start) ? c->steps_left : (uint64_t)(p - start);
            ok = n >= in->min;
            pc++;
            push = ok && n > in->min && in->op == OP_RUN && in->max > 0;
            frame = (struct regex_frame){pc, p, low};
            break;
        }
        case OP_SPLIT:
            push = true;
            frame = (struct regex_frame){in->y, p, NULL};
            pc = in->x;
            break;
        case OP_JUMP:
            pc = in->x;
            break;
        case OP_LOOK:
            ok = look(re, in->set, p, end);
            pc++;
            break;
        case OP_LOOK_NOT:
            ok = !look(re, in->set, p, end);
            pc++;
            break;
        case OP_LINE_END:
            ok = p == end || *p == '\n';
            pc++;
            break;
        }
        if (push) {
            if (depth == c->frame_cap) {
                int rc = frames_grow(c);
                if (rc)
                    return rc;
            }
            c->frame[depth++] = frame;
        }
        if (ok)
            continue;
        if (!depth)
            return 0;
        struct regex_frame *top = &c->frame[depth - 1];
        pc = top->pc;
        if (top->low) {
            unicode_prev(&top->pos);
            p = top->pos;
            depth -= top->pos == top->low;
        } else {
            p = top->pos;
            depth--;
        }
    }
}

/* Tries every alternative at `at`. */
static int match_at(struct regex_cursor *c, size_t at, const char **match_end)
{
    const struct regex *re = c->re;
    uint32_t alts = at < c->text.n ? re->first[(uint8_t)c->text.p[at]] : re->empty_alts;
    for (; alts; alts &= alts - 1) {
        int rc = run(c, re->alt[__builtin_ctz(alts)], c->text.p + at, match_end);
        if (rc)
            return rc;
    }
    return 0;
}

static size_t char_end(struct str text, size_t at)
{
    const char *p = text.p + at;
    unicode_next(&p);
    return (size_t)(p - text.p);
}

size_t regex_need_at(const struct regex *re, struct str text, size_t from)
{
    while (re->has_need && from < text.n && !re->need[(uint8_t)text.p[from]])
        from++;
    return from;
}

/* Is there still a character that every match needs?  If so, *from is moved on to where the first match may start for its sake. */
static bool may_match(struct regex_cursor *c, size_t *from)
{
    const struct regex *re = c->re;
    if (!re->has_need)
        return true;
    c->need_at = regex_need_at(re, c->text, c->need_at > *from ? c->need_at : *from);
    if (c->need_at == c->text.n)
        return false;
    if (re->need_after > NEED_AFTER_MAX)
        return true;
    const char *start = c->text.p + c->need_at;
    for (uint32_t n = re->need_after; n > 0 && start > c->text.p + *from; n--)
        unicode_prev(&start);
    *from = (size_t)(start - c->text.p);
    return true;
}

/* The leftmost match at or after c->at. */
static int search(struct regex_cursor *c, size_t *start, size_t *end, struct err *err)
{
    const struct regex *re = c->re;
    for (size_t at = c->at; at <= c->text.n && may_match(c, &at);) {
        const char *match_end = NULL;
        while (at < c->text.n && !re->first[(uint8_t)c->text.p[at]]) /* never true inside a character: see regex_parse_own */
            at++;
        int rc = match_at(c, at, &match_end);
        if (rc == 1) {
            *start = at;
            *end = (size_t)(match_end - c->text.p);
            return 1;
        }
        if (rc == ERR_NOMEM)
            return err_nomem(err, "pattern matching", c->frame_cap * sizeof *c->frame);
        if (rc)
            return err_set(err, ERR_LIMIT, "pattern needs too many steps at byte %zu of %zu", at, c->text.n);
        if (at == c->text.n)
            break;
        size_t next = char_end(c->text, at);
        if (re->run_first) { /* every later start inside this run would try a part of the same ends and fail too */
            const char *p = c->text.p + at, *low;
            run_take(re, &re->ins[re->alt[0]], &p, c->text.p + c->text.n, &low);
            size_t stop = (size_t)(p - c->text.p);
            next = stop > next ? stop : next;
        }
        at = next;
    }
    return 0;
}

int regex_next(struct regex_cursor *c, size_t *start, size_t *end, struct err *err)
{
    while (c->at <= c->text.n) {
        int rc = c->re->pcre ? regex_next_pcre(c, start, end, err) : search(c, start, end, err);
        if (rc != 1)
            return rc;
        /* an empty match right after the last match does not count */
        if (*start != *end || !c->matched || c->last_end != *end) {
            c->at = c->last_end = *end;
            c->matched = true;
            return 1;
        }
        c->at = c->at < c->text.n ? char_end(c->text, c->at) : c->text.n + 1;
    }
    return 0;
}
