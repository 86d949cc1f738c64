/* front/stream.c - ids -> text as it may be shown: whole characters, and nothing that may turn out to be a stop string.
 *
 * Special tokens show no text; those a caller asks for are marked at their place.  What is no character is U+FFFD, or its bytes when a caller asks.
 * Invariant: what was given out so far plus what stream_end leaves is the whole text before the stop string, however it was cut in tokens. */
#include "front/front_int.h"

#include "base/mem.h"

void stream_open(struct text_stream *s, bool raw_bytes)
{
    /* an answer goes on from its prompt: its first piece is in mid-text */
    s->detok = (struct detok){.started = true, .skip_special = true, .raw_bytes = raw_bytes};
}

void stream_free(struct text_stream *s)
{
    buf_free(&s->pending);
    mem_free(s->marks);
}

static void forget_given(struct text_stream *s)
{
    s->mark_count -= s->marks_given;
    if (s->mark_count)
        memmove(s->marks, s->marks + s->marks_given, s->mark_count * sizeof *s->marks);
    for (size_t i = 0; i < s->mark_count; i++)
        s->marks[i].at -= s->given;
    s->marks_given = 0;
    if (s->given == 0)
        return;
    memmove(s->pending.p, s->pending.p + s->given, s->pending.n - s->given);
    s->pending.n -= s->given;
    s->given = 0;
}

int stream_put(struct text_stream *s, const struct tokenizer *t, uint32_t id)
{
    forget_given(s);
    int rc = detok_put(&s->detok, t, id, &s->pending);
    return rc ? rc : s->pending.failed;
}

int stream_mark(struct text_stream *s, uint32_t id, size_t bytes)
{
    if (s->mark_count == s->mark_cap) {
        size_t cap = s->mark_cap ? 2 * s->mark_cap : 8;
        struct text_mark *more = mem_try_resize(s->marks, cap * sizeof *more);
        if (!more)
            return ERR_NOMEM;
        s->marks = more;
        s->mark_cap = cap;
    }
    s->marks[s->mark_count++] = (struct text_mark){s->pending.n, id};
    s->mark_bytes += bytes;
    return 0;
}

int stream_end(struct text_stream *s, const struct str *stop)
{
    forget_given(s);
    int rc = detok_end(&s->detok, &s->pending);
    size_t at = stop ? str_find(buf_view(&s->pending), *stop) : SIZE_MAX;
    if (at != SIZE_MAX)
        s->pending.n = at;
    while (s->mark_count && s->marks[s->mark_count - 1].at > s->pending.n)
        s->mark_count--;
    return rc ? rc : s->pending.failed;
}

/* Bytes at the front that no stop string can reach into. */
static size_t safe_length(struct str text, const struct str *stops, size_t stop_count)
{
    size_t safe = text.n;
    for (size_t i = 0; i < stop_count; i++) {
        size_t at = str_find(text, stops[i]);
        if (at != SIZE_MAX) { /* complete: its end is on its way */
            safe = at < safe ? at : safe;
            continue;
        }
        size_t n = stops[i].n - 1 < text.n ? stops[i].n - 1 : text.n;
        while (n && memcmp(text.p + text.n - n, stops[i].p, n) != 0)
            n--;
        safe = text.n - n < safe ? text.n - n : safe;
    }
    return safe;
}

struct str stream_take(struct text_stream *s, const struct str *stops, size_t stop_count, bool ended)
{
    forget_given(s);
    s->given = ended ? s->pending.n : safe_length(buf_view(&s->pending), stops, stop_count);
    while (s->marks_given < s->mark_count && s->marks[s->marks_given].at <= s->given)
        s->marks_given++;
    return str_n(s->pending.p, s->given);
}
