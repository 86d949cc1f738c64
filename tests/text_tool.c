/* tests/text_tool.c - a tokenizer on a pipe, for tests/text_oracle.py.
 *
 *     text_tool (--json TOKENIZER.JSON [CONFIG.JSON] | --gguf FILE) < requests > replies
 *
 * A request is one byte of mode, a little-endian u32 length and that many bytes; a reply is a u32 count and that many u32.
 * Modes: 'e' encode with special tokens and BOS/EOS, 'p' the same without BOS/EOS, 't' special tokens stay text, 'd' the bytes
 * are u32 ids: the reply counts bytes, padded to u32; 's' the same, decoded one id at a time; 'f' has no reply and flushes those
 * before.  --time FILE encodes a file and prints megabytes per second of processor time instead. */
#include "base/file.h"
#include "base/mem.h"
#include "format/gguf.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int fail(const struct err *e)
{
    fprintf(stderr, "text_tool: %s\n", e->text);
    return 1;
}

static int open_tokenizer(int argc, char **argv, struct tokenizer **t, struct err *err)
{
    struct buf a = {0}, b = {0};
    struct gguf *g = NULL;
    int rc;
    if (argc >= 3 && !strcmp(argv[1], "--gguf")) {
        rc = gguf_open(argv[2], &g, err);
        rc = rc ? rc : tokenizer_open_gguf(g, t, err);
        gguf_close(g);
        return rc;
    }
    if (argc < 3 || strcmp(argv[1], "--json") != 0)
        return err_set(err, ERR_ARGUMENT, "usage: text_tool (--json TOKENIZER.JSON [CONFIG.JSON] | --gguf FILE) [--time FILE]");
    rc = file_read(&a, argv[2], 1u << 30, err);
    if (!rc && argc > 3 && argv[3][0] != '-')
        rc = file_read(&b, argv[3], 1u << 30, err);
    rc = rc ? rc : tokenizer_open_json(buf_view(&a), buf_view(&b), t, err);
    buf_free(&a);
    buf_free(&b);
    return rc;
}

static int measure(const struct tokenizer *t, const char *path)
{
    struct buf text = {0};
    struct err err = {0};
    double best = 0;
    size_t n = 0;
    if (file_read(&text, path, 1u << 30, &err))
        return fail(&err);
    for (int i = 0; i < 5; i++) {
        struct token_ids ids = {0};
        clock_t start = clock();
        if (tokenizer_encode(t, buf_view(&text), &(struct encode_options){0}, &ids, &err))
            return fail(&err);
        double s = (double)(clock() - start) / CLOCKS_PER_SEC; /* of this process, however busy the machine is */
        best = i == 0 || s < best ? s : best;
        n = ids.n;
        token_ids_free(&ids);
    }
    printf("%zu bytes, %zu ids, %.1f ms, %.1f MB/s\n", text.n, n, best * 1e3, (double)text.n / best * 1e-6);
    buf_free(&text);
    return 0;
}

static void put_u32(uint32_t v)
{
    fwrite(&v, 4, 1, stdout);
}

static int stream(const struct tokenizer *t, const uint32_t *ids, size_t n, struct buf *out)
{
    struct detok d = {0};
    for (size_t i = 0; i < n; i++)
        detok_put(&d, t, ids[i], out);
    return detok_end(&d, out);
}

static int serve(const struct tokenizer *t, char mode, struct str in, struct token_ids *ids, struct buf *bytes, struct err *err)
{
    ids->n = bytes->n = 0;
    if (mode == 'f') {
        fflush(stdout);
        return 0;
    }
    if (mode == 'd' || mode == 's') {
        uint32_t *list = mem_try_array(in.n / 4 + 1, 4);
        if (!list)
            return err_nomem(err, "ids", in.n);
        memcpy(list, in.p, in.n / 4 * 4); /* in.p is never NULL */
        int rc = mode == 'd' ? tokenizer_decode(t, list, in.n / 4, false, bytes) : stream(t, list, in.n / 4, bytes);
        mem_free(list);
        put_u32((uint32_t)bytes->n);
        while (bytes->n % 4)
            buf_char(bytes, 0);
        if (bytes->n)
            fwrite(bytes->p, 1, bytes->n, stdout);
        return rc;
    }
    struct encode_options opt = {.add_bos = mode == 'e', .parse_special = mode != 't'};
    int rc = tokenizer_encode(t, in, &opt, ids, err);
    if (rc)
        return rc;
    put_u32((uint32_t)ids->n);
    if (ids->n)
        fwrite(ids->ids, 4, ids->n, stdout);
    return 0;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct err err = {0};
    struct token_ids ids = {0};
    struct buf bytes = {0};
    int rc = 0;
    if (open_tokenizer(argc, argv, &t, &err))
        return fail(&err);
    struct tokenizer_info info;
    tokenizer_info(t, &info);
    fprintf(stderr, "%s %s: %u ids, %u merges, %u special, bos %d eos %d unk %d pad %d add %d %d eog", info.model, info.pretok,
            info.vocab_size, info.merge_count, info.special_count, (int)info.bos, (int)info.eos, (int)info.unk, (int)info.pad,
            info.add_bos, info.add_eos);
    for (uint32_t i = 0; i < info.eog_count; i++)
        fprintf(stderr, " %u", info.eog[i]);
    fprintf(stderr, "\n");
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--time")) {
            rc = measure(t, argv[i + 1]);
            tokenizer_close(t);
            return rc;
        }
    char head[5], *data = NULL;
    while (!rc && fread(head, 1, 5, stdin) == 5) {
        uint32_t n;
        memcpy(&n, head + 1, 4);
        free(data);
        data = malloc((size_t)n + 1);
        if (!data || fread(data, 1, n, stdin) != n)
            break;
        rc = serve(t, head[0], str_n(data, n), &ids, &bytes, &err);
    }
    free(data);
    token_ids_free(&ids);
    buf_free(&bytes);
    tokenizer_close(t);
    fflush(stdout);
    return rc ? fail(&err) : 0;
}
