/* front/reading.c - the text of a choice, with the special tokens that are markers, read by an output parser into typed events.
 *
 * Invariant: the parser is given text only once no stop string can reach into it, and a special token once all text before it was given. */
#include "front/front_int.h"

#include "base/rng.h"

int reading_open(struct reading *g, const struct output_format *format, struct str tools_json, enum reading_calls calls, struct str prompt_tail, struct err *err)
{
    yyjson_doc *tools = NULL;
    if (format == output_format_at(0))
        return 0;
    if (tools_json.p && !(tools = json_parse(tools_json, "tools", err)))
        return ERR_FORMAT;
    struct output_options o = {.format = format, .tools = yyjson_doc_get_root(tools), .prompt_tail = prompt_tail,
                               .calls = calls != READING_NO_CALLS, .told_only = calls == READING_TOLD_CALLS,
                               .id_seed = rng_seed_draw()};
    int rc = output_open(&o, &g->parser, err);
    json_free(tools);
    return rc;
}

void reading_free(struct reading *g)
{
    output_close(g->parser);
    *g = (struct reading){0};
}

bool reading_marks(const struct reading *g, const struct tokenizer *t, uint32_t id)
{
    return g->parser && tokenizer_is_special(t, id) && output_is_marker(g->parser, tokenizer_piece(t, id));
}

int reading_take(struct reading *g, const struct tokenizer *t, struct text_stream *s, struct str text, struct buf *raw)
{
    size_t at = 0;
    int rc = 0;
    bool before = output_in_reasoning(g->parser);
    for (size_t i = 0; i <= s->marks_given && rc == 0; i++) {
        size_t to = i < s->marks_given ? s->marks[i].at : text.n;
        struct str part = str_n(text.p + at, to - at), piece = {0};
        if (part.n)
            rc = output_put(g->parser, part, false);
        if (i < s->marks_given)
            piece = tokenizer_piece(t, s->marks[i].id);
        if (piece.n && rc == 0)
            rc = output_put(g->parser, piece, true);
        s->mark_bytes -= piece.n;
        if (raw) {
            buf_str(raw, part);
            buf_str(raw, piece);
        }
        at = to;
    }
    g->reasons = before || output_in_reasoning(g->parser);
    return rc;
}

bool reading_next(struct reading *g, struct rh_event *out)
{
    static const enum rh_event_kind kinds[] = {[OUTPUT_CONTENT] = RH_EVENT_TEXT, [OUTPUT_REASONING] = RH_EVENT_REASONING,
                                               [OUTPUT_CALL_BEGIN] = RH_EVENT_CALL_BEGIN, [OUTPUT_CALL_ARGUMENTS] = RH_EVENT_CALL_ARGUMENTS,
                                               [OUTPUT_CALL_END] = RH_EVENT_CALL_END};
    struct output_event e;
    if (!g->parser || !output_next(g->parser, &e))
        return false;
    out->kind = kinds[e.kind];
    out->text = e.text.p ? e.text.p : "";
    out->text_n = e.text.n;
    out->call = e.call;
    out->call_id = e.id;
    out->call_name = e.name;
    out->call_whole = e.whole;
    return true;
}
