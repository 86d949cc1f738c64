/* grammar/texts.c - see texts.h. */
#include "grammar/texts.h"

#include "base/mem.h"

#include <stdlib.h>

enum phase { WAITING, FORCED, FREE };

/* where the text is; one for each advance that may be taken back */
struct place {
    uint8_t phase;
    uint32_t matched;  /* bytes of the mark, or of the texts */
    uint32_t from, to; /* texts that are still possible: they share `matched` bytes */
};

/* places in id_texts.order: ids that begin with the same bytes */
struct range {
    uint32_t from, to;
};

struct texts {
    struct constraint base;
    const struct id_texts *ids;
    uint32_t words, count;
    struct str *texts;       /* ascending */
    char *memory;            /* of texts and mark */
    uint32_t *ends;          /* bits: end ids */
    struct str mark;
    uint8_t border[TEXTS_MARK_MAX]; /* of the mark's first i + 1 bytes: the longest beginning that is an end, too */
    struct range *ranges;    /* [ids->longest + 2] scratch of one walk */
    uint32_t *beyond;        /* [beyond_count] ids that may complete the mark with bytes to spare */
    uint32_t beyond_count;
    struct place places[TEXTS_REWIND_MAX];
    uint64_t at;             /* advances so far; the place is places[at % TEXTS_REWIND_MAX] */
};

static struct texts *self(struct constraint *c)
{
    return (struct texts *)(void *)c;
}

static struct str bytes_of(const struct id_texts *t, uint32_t id)
{
    uint32_t from = id ? t->ends[id - 1] : 0;
    return str_n(t->bytes + from, t->ends[id] - from);
}

static bool bit(const uint32_t *words, uint32_t id)
{
    return words[id / 32] >> id % 32 & 1;
}

static bool space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* ---- one id ---- */

static struct str rest(const struct texts *t, const struct place *p, uint32_t i)
{
    return str_from(t->texts[i], p->matched);
}

/* The first text from p->from on whose rest is not below b. */
static uint32_t lower(const struct texts *t, const struct place *p, struct str b)
{
    uint32_t from = p->from, to = p->to;
    while (from < to) {
        uint32_t mid = from + (to - from) / 2;
        if (str_cmp(rest(t, p, mid), b) < 0)
            from = mid + 1;
        else
            to = mid;
    }
    return from;
}

/* Bytes while FORCED: false when no text goes on so. */
static bool forced_bytes(const struct texts *t, struct place *p, struct str b)
{
    uint32_t i = lower(t, p, b);
    if (i < p->to && str_starts(rest(t, p, i), b)) {
        uint32_t to = i + 1;
        while (to < p->to && str_starts(rest(t, p, to), b))
            to++;
        p->from = i;
        p->to = to;
        p->matched += (uint32_t)b.n;
        if (p->matched == t->texts[i].n)
            p->phase = FREE;
        return true;
    }
    if (i > p->from && str_starts(b, rest(t, p, i - 1))) { /* complete, and more */
        p->phase = FREE;
        return true;
    }
    return false;
}

/* Bytes while WAITING: those behind the mark belong to the texts. */
static bool waiting_bytes(const struct texts *t, struct place *p, struct str b)
{
    for (size_t i = 0; i < b.n; i++) {
        while (p->matched && t->mark.p[p->matched] != b.p[i])
            p->matched = t->border[p->matched - 1];
        p->matched += t->mark.p[p->matched] == b.p[i];
        if (p->matched < t->mark.n)
            continue;
        *p = (struct place){.phase = FORCED, .to = t->count};
        for (i++; i < b.n && space(b.p[i]); i++)
            ;
        return i == b.n || forced_bytes(t, p, str_from(b, i));
    }
    return true;
}

static bool take(const struct texts *t, struct place *p, uint32_t id)
{
    struct str b = bytes_of(t->ids, id);
    if (p->phase == FREE)
        return true;
    if (bit(t->ends, id))
        return false;
    return p->phase == WAITING ? waiting_bytes(t, p, b) : b.n && forced_bytes(t, p, b);
}

/* ---- ids by their bytes: a vocabulary is not walked for each token, only what goes on as a text does ---- */

/* The first place in r whose byte at `depth` is at least c; ids that end before it come first. */
static uint32_t byte_at_least(const struct texts *t, struct range r, size_t depth, unsigned c)
{
    while (r.from < r.to) {
        uint32_t mid = r.from + (r.to - r.from) / 2;
        struct str b = bytes_of(t->ids, t->ids->order[mid]);
        if (b.n <= depth || (unsigned char)b.p[depth] < c)
            r.from = mid + 1;
        else
            r.to = mid;
    }
    return r.from;
}

/* Those of r, which share their first `depth` bytes, that have c next. */
static struct range narrow(const struct texts *t, struct range r, size_t depth, char c)
{
    struct range out = {byte_at_least(t, r, depth, (unsigned char)c), r.to};
    out.to = byte_at_least(t, out, depth, (unsigned char)c + 1u);
    return out;
}

static bool ends_at(const struct texts *t, struct range r, uint32_t place, size_t depth)
{
    return place < r.to && bytes_of(t->ids, t->ids->order[place]).n == depth;
}

/* The longest special token whose text the possible texts all go on with; -1: none. */
static int64_t special_next(const struct texts *t, const struct place *p)
{
    int64_t best = -1;
    struct str next = rest(t, p, p->from);
    struct range r = {t->ids->plain_count, t->ids->plain_count + t->ids->special_count};
    for (size_t depth = 1; depth <= next.n && r.from < r.to; depth++) {
        bool found = false;
        r = narrow(t, r, depth - 1, next.p[depth - 1]);
        for (uint32_t i = r.from; !found && ends_at(t, r, i, depth); i++)
            if ((found = !bit(t->ends, t->ids->order[i])))
                best = t->ids->order[i];
    }
    return best;
}

/* ---- the constraint ---- */

static void clear(uint32_t *words, uint32_t id)
{
    words[id / 32] &= ~(1u << id % 32);
}

static void mask_waiting(const struct texts *t, const struct place *p, uint32_t *words)
{
    for (uint32_t w = 0; w < constraint_words(t->ids->count); w++)
        words[w] &= ~t->ends[w];
    for (uint32_t i = 0; i < t->beyond_count; i++) {
        struct place after = *p;
        if (!take(t, &after, t->beyond[i]))
            clear(words, t->beyond[i]);
    }
}

static void admit(const struct texts *t, uint32_t place, uint32_t *words)
{
    uint32_t id = t->ids->order[place];
    if (!bit(t->ends, id))
        words[id / 32] |= 1u << id % 32;
}

/* The ids that `text` goes on with: its beginnings, and what begins with all of it.  ranges[0..*deep] are those of the text before, with which it
 * shares `shared` bytes: what they say of these is done. */
static void admit_text(const struct texts *t, struct str text, size_t shared, size_t *deep, uint32_t *words)
{
    size_t depth = shared;
    if (shared > *deep)
        return; /* nothing goes on so far */
    for (struct range r = t->ranges[depth]; depth < text.n; t->ranges[depth] = r) {
        r = narrow(t, r, depth, text.p[depth]);
        if (r.from == r.to)
            break;
        depth++;
        for (uint32_t i = r.from; ends_at(t, r, i, depth); i++)
            admit(t, i, words);
    }
    *deep = depth;
    for (uint32_t i = t->ranges[depth].from; depth == text.n && i < t->ranges[depth].to; i++)
        admit(t, i, words);
}

static size_t shared_bytes(struct str a, struct str b)
{
    size_t n = 0;
    while (n < a.n && n < b.n && a.p[n] == b.p[n])
        n++;
    return n;
}

static void mask_forced(const struct texts *t, const struct place *p, uint32_t *words)
{
    int64_t special = special_next(t, p);
    size_t deep = 0;
    memset(words, 0, t->words * sizeof *words);
    if (special >= 0) {
        words[special / 32] |= 1u << special % 32;
        return;
    }
    t->ranges[0] = (struct range){0, t->ids->plain_count};
    for (uint32_t i = p->from; i < p->to; i++)
        admit_text(t, rest(t, p, i), i > p->from ? shared_bytes(rest(t, p, i - 1), rest(t, p, i)) : 0, &deep, words);
}

static void texts_mask(struct constraint *c, uint32_t *words)
{
    const struct texts *t = self(c);
    const struct place *p = &t->places[t->at % TEXTS_REWIND_MAX];
    if (p->phase == FORCED) {
        mask_forced(t, p, words);
        return;
    }
    memset(words, 0xff, t->words * sizeof *words);
    if (p->phase == WAITING)
        mask_waiting(t, p, words);
}

static bool texts_advance(struct constraint *c, uint32_t id)
{
    struct texts *t = self(c);
    struct place p = t->places[t->at % TEXTS_REWIND_MAX];
    if (p.phase == FORCED && id < t->ids->count) {
        int64_t special = special_next(t, &p);
        if (special >= 0 ? id != special : bit(t->ids->special, id))
            return false;
    }
    if (id < t->ids->count ? !take(t, &p, id) : p.phase == FORCED)
        return false;
    t->places[++t->at % TEXTS_REWIND_MAX] = p;
    return true;
}

static void texts_rewind(struct constraint *c, uint32_t count)
{
    self(c)->at -= count;
}

static bool texts_complete(const struct constraint *c)
{
    (void)c;
    return false;
}

static void texts_free(struct constraint *c)
{
    struct texts *t = self(c);
    mem_free(t->texts);
    mem_free(t->memory);
    mem_free(t->ends);
    mem_free(t->ranges);
    mem_free(t->beyond);
    mem_free(t);
}

static const struct constraint_ops texts_ops = {texts_mask, texts_advance, texts_rewind, texts_complete, texts_free};

/* ---- opening ---- */

static int by_text(const void *a, const void *b)
{
    return str_cmp(*(const struct str *)a, *(const struct str *)b);
}

static int copy_texts(struct texts *t, const struct texts_config *cfg, struct err *err)
{
    size_t total = cfg->mark.n, at = 0;
    for (uint32_t i = 0; i < cfg->count; i++)
        total += cfg->texts[i].n;
    t->texts = mem_try_array(cfg->count, sizeof *t->texts);
    t->memory = mem_try(total + 1);
    if (!t->texts || !t->memory)
        return err_nomem(err, "forced texts", total);
    for (uint32_t i = 0; i < cfg->count; i++) {
        memcpy(t->memory + at, cfg->texts[i].p, cfg->texts[i].n);
        t->texts[i] = str_n(t->memory + at, cfg->texts[i].n);
        at += cfg->texts[i].n;
    }
    qsort(t->texts, cfg->count, sizeof *t->texts, by_text);
    for (uint32_t i = 0; i < cfg->count; i++) {
        if (t->texts[i].n == 0)
            return err_set(err, ERR_ARGUMENT, "forced texts: one of %u is empty", cfg->count);
        if (i == 0 || !str_eq(t->texts[i], t->texts[t->count - 1])) /* the same twice is one */
            t->texts[t->count++] = t->texts[i];
        else
            continue;
        if (t->count > 1 && str_starts(t->texts[t->count - 1], t->texts[t->count - 2]))
            return err_set(err, ERR_ARGUMENT, "forced texts: '%.*s' is the beginning of another", STR_ARG(t->texts[t->count - 2]));
    }
    if (cfg->mark.n)
        memcpy(t->memory + at, cfg->mark.p, cfg->mark.n);
    t->mark = str_n(t->memory + at, cfg->mark.n);
    return 0;
}

static void find_borders(struct texts *t)
{
    uint8_t k = 0;
    for (size_t i = 1; i < t->mark.n; i++) {
        while (k && t->mark.p[k] != t->mark.p[i])
            k = t->border[k - 1];
        k += t->mark.p[k] == t->mark.p[i];
        t->border[i] = k;
    }
}

/* Ids with the mark's last byte and something behind it: the others complete it exactly or not at all. */
static int find_beyond(struct texts *t, struct err *err)
{
    char last = t->mark.n ? t->mark.p[t->mark.n - 1] : 0;
    for (int pass = 0; pass < 2 && t->mark.n; pass++) {
        uint32_t n = 0;
        for (uint32_t id = 0; id < t->ids->count; id++) {
            struct str b = bytes_of(t->ids, id);
            if (b.n < 2 || !memchr(b.p, last, b.n - 1))
                continue;
            if (pass)
                t->beyond[n] = id;
            n++;
        }
        if (pass)
            t->beyond_count = n;
        else if (!(t->beyond = mem_try_array(n, sizeof *t->beyond)))
            return err_nomem(err, "forced texts", n * sizeof *t->beyond);
    }
    return 0;
}

struct id_text {
    struct str bytes;
    uint32_t id;
    bool special;
};

static int by_bytes(const void *a, const void *b)
{
    const struct id_text *x = a, *y = b;
    int c = x->special != y->special ? x->special - y->special : str_cmp(x->bytes, y->bytes);
    return c ? c : (x->id > y->id) - (x->id < y->id);
}

int id_texts_sort(struct id_texts *t, struct err *err)
{
    struct id_text *list = mem_try_array(t->count, sizeof *list);
    uint32_t n = 0;
    t->order = mem_try_array(t->count, sizeof *t->order);
    t->plain_count = t->special_count = t->longest = 0;
    if (!list || !t->order) {
        mem_free(list);
        return err_nomem(err, "texts of ids", t->count * sizeof *list);
    }
    for (uint32_t id = 0; id < t->count; id++) {
        struct id_text *e = &list[n];
        *e = (struct id_text){bytes_of(t, id), id, bit(t->special, id)};
        n += e->bytes.n > 0;
        t->longest = e->bytes.n > t->longest ? (uint32_t)e->bytes.n : t->longest;
    }
    qsort(list, n, sizeof *list, by_bytes);
    for (uint32_t i = 0; i < n; i++) {
        t->order[i] = list[i].id;
        t->special_count += list[i].special;
    }
    t->plain_count = n - t->special_count;
    mem_free(list);
    return 0;
}

int constraint_texts_open(const struct texts_config *cfg, uint32_t vocab, struct constraint **out, struct err *err)
{
    *out = NULL;
    if (cfg->count == 0 || cfg->count > TEXTS_COUNT_MAX || cfg->mark.n > TEXTS_MARK_MAX || cfg->ids->count > vocab)
        return err_set(err, ERR_ARGUMENT, "forced texts: %u of them (1 to %d), a mark of %zu bytes (at most %d), %u ids of %u", cfg->count,
                       TEXTS_COUNT_MAX, cfg->mark.n, TEXTS_MARK_MAX, cfg->ids->count, vocab);
    struct texts *t = mem_try_zero(1, sizeof *t);
    if (!t)
        return err_nomem(err, "forced texts", sizeof *t);
    t->base.ops = &texts_ops;
    t->ids = cfg->ids;
    t->words = constraint_words(vocab);
    t->ends = mem_try_zero(t->words, sizeof *t->ends);
    t->ranges = mem_try_array(cfg->ids->longest + 2u, sizeof *t->ranges);
    int rc = t->ends && t->ranges ? copy_texts(t, cfg, err) : err_nomem(err, "forced texts", t->words * sizeof *t->ends);
    if (rc == 0) {
        for (uint32_t i = 0; i < cfg->end_count; i++)
            if (cfg->end_ids[i] < vocab)
                t->ends[cfg->end_ids[i] / 32] |= 1u << cfg->end_ids[i] % 32;
        find_borders(t);
        rc = find_beyond(t, err);
    }
    if (rc) {
        texts_free(&t->base);
        return rc;
    }
    t->places[0] = t->mark.n ? (struct place){.phase = WAITING} : (struct place){.phase = FORCED, .to = t->count};
    *out = &t->base;
    return 0;
}
