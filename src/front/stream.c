/* front/stream.c - ids -> text as it may be shown: whole characters, and nothing that may turn out to be a stop string.
 *
 * Invariant: what was given out so far plus what stream_end leaves is the whole text before the stop string, however it was cut in tokens. */
#include "front/front_int.h"

void stream_open(struct text_stream *s)
{
    /* an answer goes on from its prompt: its first piece is in mid-text */
    s->detok = (struct detok){.started = true, .skip_special = true};
}

void stream_free(struct text_stream *s)
{
    buf_free(&s->pending);
}

static void forget_given(struct text_stream *s)
{
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

int stream_end(struct text_stream *s, const struct str *stop)
{
    forget_given(s);
    int rc = detok_end(&s->detok, &s->pending);
    size_t at = stop ? str_find(buf_view(&s->pending), *stop) : SIZE_MAX;
    if (at != SIZE_MAX)
        s->pending.n = at;
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
    return str_n(s->pending.p, s->given);
}
