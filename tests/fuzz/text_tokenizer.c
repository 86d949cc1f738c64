/* tests/fuzz/text_tokenizer.c - a tokenizer.json and a text: open, encode, decode; whatever the bytes, no crash, and streaming
 * gives the same text as decoding at once.  Input: the JSON, a zero byte, the text. */
#include "base/utf8.h"
#include "text/tokenizer.h"

#include <stdint.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void replaced(struct str s, struct buf *out)
{
    while (s.n) {
        uint32_t cp;
        size_t n = utf8_decode(s, &cp);
        buf_put(out, cp == UTF8_BAD ? "\xEF\xBF\xBD" : s.p, cp == UTF8_BAD ? 3 : n);
        s = str_from(s, n);
    }
}

static void use(const struct tokenizer *t, struct str text)
{
    struct token_ids ids = {0};
    struct buf all = {0}, clean = {0}, streamed = {0};
    struct err err = {0};
    struct text_span spans[] = {{str_n(text.p, text.n / 2), true}, {str_from(text, text.n / 2), false}};
    if (!tokenizer_encode_spans(t, spans, 2, true, &ids, &err)) {
        struct detok d = {0};
        tokenizer_decode(t, ids.ids, ids.n, false, &all);
        for (size_t i = 0; i < ids.n; i++)
            detok_put(&d, t, ids.ids[i], &streamed);
        detok_end(&d, &streamed);
        replaced(buf_view(&all), &clean);
        if (!str_eq(buf_view(&clean), buf_view(&streamed)))
            abort();
    } else if (!err.text[0]) {
        abort(); /* an error says what it is */
    }
    buf_free(&all);
    buf_free(&clean);
    buf_free(&streamed);
    token_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    const uint8_t *zero = memchr(data, 0, size);
    struct str json = str_n(data, zero ? (size_t)(zero - data) : size);
    struct str text = zero ? str_n(zero + 1, size - json.n - 1) : STR("the <x> \xC3\xA9 12\n\n a");
    int rc = tokenizer_open_json(json, (struct str){0}, &t, &err);
    if (!rc) {
        struct tokenizer_info info;
        tokenizer_info(t, &info);
        use(t, text);
        tokenizer_close(t);
    } else if (!err.text[0]) {
        abort();
    }
    return 0;
}
