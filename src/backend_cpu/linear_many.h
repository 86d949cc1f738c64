/* backend_cpu/linear_many.h - the products of quantised panels with many rows, and the dot function of every format.  Included after
 * linear_tile.h.
 *
 * Chunk by chunk of columns, a few panels pass over all rows of the call: so the rows' chunk stays in the second cache however long
 * they are.  A chunk of a panel is unpacked once and read by every group of rows; for a few groups it pays to read the packed panel
 * itself (segments).  Sums lie in memory between chunks. */
#include "backend_cpu/linear_chunk.h"

enum {
    SEGMENT_ROWS = 16 /* up to so many read the packed panel, where the level and the format have segments */
};
_Static_assert(sizeof(struct chunk) + CPU_DOT_PANELS / PANEL_STEP * (CPU_DOT_ROWS + 1) * 2 * VEC_BYTES <= CPU_DOT_TMP,
               "a chunk and the sums of all rows fit into tmp");

#define TILE(class, ROWS, R)                                                                                     \
    static void tile_##class##_##R(const struct chunk *c, uint32_t n, const uint8_t *x, size_t stride, float *sums, \
                                   struct ahead next)                                                            \
    {                                                                                                            \
        CLASS_OF(class)                                                                                          \
        ROWS(TILE_ACT, 0)                                                                                        \
        ROWS(TILE_LOAD, 0)                                                                                       \
        for (uint32_t at = 0; at < n; at++) {                                                                    \
            ahead_some(&next);                                                                                   \
            BLOCK(ROWS, CHUNK_W, CHUNK_D, CHUNK_M, CHUNK_SC, CHUNK_MN, CHUNK_START, CHUNK_GROUP)                 \
        }                                                                                                        \
        ROWS(TILE_STORE, 0)                                                                                      \
    }
/* 8 rows at once need 32 registers, and halves need twice as many sums. */
#if VEC_BYTES == 64
#define TILE_OF_8(name, kind) TILE(name, ROWS8, 8)
#define TILE_8_OR_NONE(name, kind) ((kind) == KIND_HALVES ? NULL : tile_##name##_8)
#else
#define TILE_OF_8(name, kind)
#define TILE_8_OR_NONE(name, kind) NULL
#endif
#define TILES(name, kind, z, post, min) TILE(name, ROWS2, 2) TILE(name, ROWS4, 4) TILE_OF_8(name, kind)
TILE_CLASSES(TILES)

typedef void (*tile_fn)(const struct chunk *c, uint32_t n, const uint8_t *x, size_t stride, float *sums, struct ahead next);
static const tile_fn tiles[CLASS_COUNT][3] = { /* 2, 4, 8 rows */
#define TILE_ENTRY(name, kind, z, post, min) [CLASS_##name] = {tile_##name##_2, tile_##name##_4, TILE_8_OR_NONE(name, kind)},
    TILE_CLASSES(TILE_ENTRY)
#undef TILE_ENTRY
};

typedef void (*unpack_fn)(const struct cpu_dot *j, uint32_t i, size_t delta, uint32_t at, uint32_t n, struct chunk *c);

/* how a format takes many rows */
struct many {
    enum tile_class class;
    unpack_fn unpack;
    segment_fn segments[3]; /* 2, 4, 8 rows straight from the panel, or NULL */
};

/* Tiles that the rows of a call make; `widest` rows the largest. */
INLINE uint32_t tiles_of(uint32_t rows, uint32_t widest)
{
    uint32_t left = rows % widest;
    return rows / widest + left / 4 + (left % 4 + 1) / 2;
}

/* One chunk of one panel (pair) times all rows.  With many tiles some lines are asked for before each, else some at every block. */
static void chunk_rows(const struct cpu_dot *j, const struct many *m, const struct chunk *c, const uint8_t *x, uint32_t n, struct ahead next,
                       bool many_tiles, float *sums)
{
    const tile_fn *tile = tiles[m->class];
    for (uint32_t r = 0, some; r < j->rows; r += some) {
        const uint32_t left = j->rows - r;
        struct ahead inside = many_tiles ? (struct ahead){0} : next;
        some = tile[2] && left >= 8 ? 8 : left >= 4 ? 4 : 2;
        if (many_tiles)
            ahead_some(&next);
        else
            next.at += n * next.step;
        /* a last odd row is computed twice, the second time into sums nobody reads */
        tile[some / 4](c, n, x + r * j->x_stride, left > 1 ? j->x_stride : 0, sums + r * 2 * LANES, inside);
    }
}

/* The same straight from the panel. */
static void segment_rows(const struct cpu_dot *j, const struct many *m, const uint8_t *w, size_t delta, const uint8_t *x, uint32_t n,
                         struct ahead next, float *sums)
{
    const uint32_t move = n * next.step;
    uint32_t r = 0;
    for (; m->segments[2] && r + 8 <= j->rows; r += 8, next.at += move)
        m->segments[2](j->panel, w, delta, n, x + r * j->x_stride, j->x_stride, sums + r * 2 * LANES, next);
    for (; r + 4 <= j->rows; r += 4, next.at += move)
        m->segments[1](j->panel, w, delta, n, x + r * j->x_stride, j->x_stride, sums + r * 2 * LANES, next);
    for (; r < j->rows; r += 2, next.at += move)
        m->segments[0](j->panel, w, delta, n, x + r * j->x_stride, r + 1 < j->rows ? j->x_stride : 0, sums + r * 2 * LANES, next);
}

/* All rows times all panels, chunk by chunk: the rows' chunk stays in the second cache while the panels pass. */
static void many_panels(const struct cpu_dot *j, const struct many *m, struct chunk *c, float *sums)
{
    const uint32_t blocks = j->panel->cols / 32, bytes = (j->panel->unit_bytes + j->panel->unit - 1) / j->panel->unit;
    const bool direct = m->segments[1] && j->rows <= SEGMENT_ROWS;
    const bool eight = direct ? m->segments[2] != NULL : tiles[m->class][2] != NULL;
    const uint32_t passes = tiles_of(j->rows, eight ? 8 : 4);
    const bool many_tiles = !direct && passes > CHUNK;
    for (uint32_t at = 0; at < blocks; at += CHUNK) {
        const uint32_t n = blocks - at < CHUNK ? blocks - at : CHUNK;
        const uint8_t *x = (const uint8_t *)j->x + at / CHUNK * j->x_chunk, *w = j->w + (size_t)(at / j->panel->unit) * j->panel->unit_bytes;
        for (uint32_t i = 0; i < j->panels; i += PANEL_STEP, w += PANEL_STEP * j->panel_bytes) {
            const size_t delta = PANEL_STEP == 1 || i + 1 < j->panels ? j->panel_bytes : 0;
            /* fetched meanwhile: the next panel's chunk; at last the first's next one; after its last one what follows all of them */
            const uint8_t *then = w + PANEL_STEP * j->panel_bytes;
            if (i + PANEL_STEP >= j->panels)
                then = at + n < blocks ? j->w + (size_t)(at + n) * bytes : j->w + j->panels * j->panel_bytes;
            struct ahead next = {then, delta, (bytes * (many_tiles ? n : 1) + passes - 1) / passes};
            float *to = sums + (size_t)i / PANEL_STEP * (j->rows + 1) * 2 * LANES;
            if (direct) {
                segment_rows(j, m, w, delta, x, n, next, to);
                continue;
            }
            m->unpack(j, i, delta, at, n, c);
            chunk_rows(j, m, c, x, n, next, many_tiles, to);
        }
    }
}

static void many_rows(const struct cpu_dot *j, const struct many *m)
{
    struct chunk *c = j->tmp;
    float *sums = (float *)(void *)(c + 1);
    const size_t row = 2 * LANES, panel = (j->rows + 1) * row;
    memset(sums, 0, (j->panels + PANEL_STEP - 1) / PANEL_STEP * panel * sizeof *sums);
    many_panels(j, m, c, sums);
    for (uint32_t r = 0; r < j->rows; r++)
        for (uint32_t i = 0; i < j->panels; i += PANEL_STEP) {
            size_t bytes = PANEL_STEP == 1 || i + 1 < j->panels ? 2 * VEC_BYTES : VEC_BYTES;
            memcpy(j->out + r * j->out_stride + i * CPU_PANEL_ROWS, sums + i / PANEL_STEP * panel + r * row, bytes);
        }
}

/* ---- per format ---- */

/* Rows whose blocks lie together can be read straight through. */
INLINE bool together(const struct cpu_dot *j)
{
    return j->x_chunk == CPU_ACT_CHUNK_BYTES;
}

#define SEGMENTS(name, class, W, D, M, SC, MN, BHEAD, BODY)      \
    SEGMENT(name, ROWS2, 2, class, W, D, M, SC, MN, BHEAD, BODY) \
    SEGMENT(name, ROWS4, 4, class, W, D, M, SC, MN, BHEAD, BODY) \
    SEGMENT_OF_8(name, class, W, D, M, SC, MN, BHEAD, BODY)
#if VEC_BYTES == 64
#define SEGMENT_OF_8(name, class, W, D, M, SC, MN, BHEAD, BODY) SEGMENT(name, ROWS8, 8, class, W, D, M, SC, MN, BHEAD, BODY)
#define SEGMENTS_OF(name, class) {segment_##name##_2, segment_##name##_4, (int)KIND_OF_##class == KIND_HALVES ? NULL : segment_##name##_8}
#else
#define SEGMENT_OF_8(name, class, W, D, M, SC, MN, BHEAD, BODY)
#define SEGMENTS_OF(name, class) {segment_##name##_2, segment_##name##_4, NULL}
#endif
#define FORMAT_ONE(name, class, W, D, M, SC, MN, BHEAD, BODY)                    \
    DIRECT(name, ROWS1, 1, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                            \
    static void dot_##name(const struct cpu_dot *j)                              \
    {                                                                            \
        if (j->rows == 1 && together(j))                                         \
            direct_##name##_1(j);                                                \
        else                                                                     \
            many_rows(j, &(const struct many){CLASS_##class, unpack_##name, {NULL}}); \
    }
#define FORMAT_FEW(name, class, W, D, M, SC, MN, BHEAD, BODY)                    \
    DIRECT(name, ROWS1, 1, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    DIRECT(name, ROWS2, 2, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    DIRECT(name, ROWS4, 4, class, W, D, M, SC, MN, BHEAD, BODY)                  \
    UNPACK(name, class, W, D, M, SC, MN, BHEAD, BODY)                            \
    SEGMENTS(name, class, W, D, M, SC, MN, BHEAD, BODY)                          \
    static void dot_##name(const struct cpu_dot *j)                              \
    {                                                                            \
        if (j->rows == 1 && together(j))                                         \
            direct_##name##_1(j);                                                \
        else if (j->rows == 2 && together(j))                                    \
            direct_##name##_2(j);                                                \
        else if (j->rows == 4 && together(j))                                    \
            direct_##name##_4(j);                                                \
        else                                                                     \
            many_rows(j, &(const struct many){CLASS_##class, unpack_##name, SEGMENTS_OF(name, class)}); \
    }
#define FORMAT(name, directs, class, W, D, M, SC, MN, BHEAD, BODY) FORMAT_##directs(name, class, W, D, M, SC, MN, BHEAD, BODY)
TILE_FORMATS(FORMAT)
