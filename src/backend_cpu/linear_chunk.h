/* backend_cpu/linear_chunk.h - a chunk: 8 blocks (256 columns) of a panel (pair) unpacked to bytes, for every group of rows to read.
 * Included by linear_many.h. */

enum { CHUNK = CPU_ACT_CHUNK, LANES = VEC_BYTES / 4 };

struct chunk {
    _Alignas(64) uint8_t w[CHUNK][8][2][VEC_BYTES];
    float d[CHUNK][2][LANES], m[CHUNK][2][LANES];
    int32_t sc[CHUNK][2][2][LANES], mn[CHUNK][2][LANES];
    /* signed codes of levels without a signed product: w holds |w|, flip the mask of w < 0, fix the sum of |w| where w < 0 */
    uint8_t flip[CHUNK][8][2][VEC_BYTES];
    int32_t fix[CHUNK][2][LANES];
};

#define CHUNK_W(body, g, v) vec_load(c->w[at][g][v])
#define CHUNK_D(u, b, v) vec_loadf(c->d[at][v])
#define CHUNK_M(u, b, v) vec_loadf(c->m[at][v])
#define CHUNK_SC(b, h, v) vec_load_scale(c->sc[at][h][v])
#define CHUNK_MN(b, v) vec_load(c->mn[at][v])

#define UNPACK_WORD(W, g, v)                                              \
    {                                                                     \
        vi w = W(body, g, v);                                             \
        if (KIND == KIND_SIGNED && VEC_FLIPS) {                           \
            vi mask = vec_negative(w);                                    \
            w = vec_size(w);                                              \
            vec_store(c->flip[k][g][v], mask);                            \
            fix##v = vec_addd(fix##v, vec_sum8(vec_and(w, mask)));        \
        }                                                                 \
        vec_store(c->w[k][g][v], w);                                      \
    }
#define UNPACK_GROUP(W, g) UNPACK_WORD(W, g, 0) UNPACK_WORD(W, g, 1)
#define UNPACK_VECTOR(D, M, SC, MN, v)                           \
    vec_storef(c->d[k][v], D(u, b, v));                          \
    if (MIN != MIN_NONE)                                         \
        vec_storef(c->m[k][v], M(u, b, v));                      \
    if (KIND == KIND_HALVES) {                                   \
        vec_store_scale(c->sc[k][0][v], SC(b, 0, v));            \
        vec_store_scale(c->sc[k][1][v], SC(b, 1, v));            \
    }                                                            \
    if (MIN == MIN_INT)                                          \
        vec_store(c->mn[k][v], MN(b, v));

/* Blocks [at, at + n) of panel i; at is a multiple of CHUNK, so of every unit. */
#define UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                                                        \
    static void unpack_##name(const struct cpu_dot *j, uint32_t i, size_t delta, uint32_t at, uint32_t n, struct chunk *c) \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        const enum cpu_scale scale = j->panel->scale;                                                            \
        const uint32_t unit_head = j->panel->unit_head, unit = j->panel->unit;                                   \
        (void)scale, (void)delta;                                                                                \
        const uint8_t *u = j->w + i * j->panel_bytes + (size_t)(at / unit) * j->panel->unit_bytes, *b = u + unit_head; \
        for (uint32_t k = 0, left = unit; k < n; k++) {                                                          \
            const uint8_t *body = b + (BHEAD);                                                                   \
            vi fix0 = vec_set32(0), fix1 = fix0;                                                                 \
            UNPACK_GROUP(W, 0) UNPACK_GROUP(W, 1) UNPACK_GROUP(W, 2) UNPACK_GROUP(W, 3)                          \
            UNPACK_GROUP(W, 4) UNPACK_GROUP(W, 5) UNPACK_GROUP(W, 6) UNPACK_GROUP(W, 7)                          \
            UNPACK_VECTOR(D, M, SC, MN, 0)                                                                       \
            UNPACK_VECTOR(D, M, SC, MN, 1)                                                                       \
            if (KIND == KIND_SIGNED && VEC_FLIPS) {                                                              \
                vec_store(c->fix[k][0], fix0);                                                                   \
                vec_store(c->fix[k][1], fix1);                                                                   \
            }                                                                                                    \
            (void)fix0, (void)fix1;                                                                              \
            b = body + (BODY);                                                                                   \
            if (--left == 0)                                                                                     \
                u = b, b += unit_head, left = unit;                                                              \
        }                                                                                                        \
    }

/* A group of signed codes from a chunk: sizes and masks were made when it was unpacked (vec_dot_flipped). */
#define START_FLIPPED(r, g) c##r##_0 = vec_load(c->fix[at][0]), c##r##_1 = vec_load(c->fix[at][1]);
#define STEP_FLIPPED(r, g)                                        \
    {                                                             \
        vi a = vec_repeat32(ACT(r)->q + 4 * (g));                 \
        c##r##_0 = vec_dot_flipped(c##r##_0, w0, s0, a);          \
        c##r##_1 = vec_dot_flipped(c##r##_1, w1, s1, a);          \
    }
#define GROUP_FLIPPED(ROWS, W, g)                                              \
    {                                                                          \
        vi w0 = W(body, g, 0), w1 = W(body, g, 1);                             \
        vi s0 = vec_load(c->flip[at][g][0]), s1 = vec_load(c->flip[at][g][1]); \
        ROWS(STEP_FLIPPED, g)                                                  \
    }
#if VEC_FLIPS
#define CHUNK_START START_FLIPPED
#define CHUNK_GROUP GROUP_FLIPPED
#else
#define CHUNK_START START_WIDE
#define CHUNK_GROUP GROUP_SIGNED
#endif
