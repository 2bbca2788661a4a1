/*
 * Products of grouped weights with many tokens, of a vector variant: what prefill spends its time in. Written over
 * lanes; grouped_scalar.c is the definition, grouped_impl.h the products with a few tokens.
 *
 * Few tokens wait for weights from memory, many for the multiply-adds, so here whatever is no multiplication is done
 * once for a span of tokens: a segment of 256 columns of a panel is expanded, from whichever format, to 16-bit
 * integers and f32 scales (10 KB), and all tokens of the span pass over it in register tiles.
 *
 *     for each span of tokens                     their activations of a segment stay in the second-level cache
 *       for each few panels                         and so do the chains, [panel][token][16]
 *         for each segment of K, ascending
 *           for each panel                            expand: 10 KB of the first-level cache
 *             for each tile of six tokens              continue 16 chains of each
 *
 * K is cut for the caches, not for the arithmetic: a chain is stored and goes on from the same bits, and a group's
 * integer sum is exact. Per pair of k a tile of 6 x 1 takes 12 multiply-adds and 12 additions of 8 lanes, 2
 * loads and 6 broadcasts with AVX2; per group and token, 2 conversions, 2 products and 2 fused multiply-adds more.
 *
 * Measured on Zen 3 (AVX2), one thread: the tile by itself 134 GOP/s where that of grouped_impl.h has 105 and
 * multiply-add and add alone 155; what caches cost takes half of that back. On q8_0 it is 1.04 to 1.09 times as fast
 * as grouped_impl.h with 22 tokens, 1.09 to 1.15 with 44, and slower with 12 (docs/PERFORMANCE.md has the formats).
 * The next tile's activations, the next segment and the outputs are fetched ahead, since none of them is in the first
 * level when its turn comes.
 */
#ifndef FIRNI_MANY_IMPL_H
#define FIRNI_MANY_IMPL_H

#include "kernel/grouped_impl.h"

enum {
    MANY_TILES_MAX = 22,  /* of a span: 256 tokens are two spans */
    MANY_TOKENS_MAX = MANY_TILES_MAX * TILE_ROWS_MAX,
    MANY_WIDTH_MAX = 4,  /* that a tile multiplies side by side */
    MANY_CACHE_LINE = 64,
};

/* A segment of a panel, ready to be multiplied. */
typedef struct many_panel {
    int16_t elements[FIRNI_SEGMENT_COLS / 2][2 * LANES]; /* for each pair of k 32, as lanes_put_weights has them */
    float scales[FIRNI_SEGMENT_COLS / 16][LANES];        /* of each group */
    float minima[FIRNI_SEGMENT_GROUPS][LANES];
} many_panel;

enum { MANY_PANEL_WORDS = sizeof(many_panel) / sizeof(int16_t) };

FIRNI_INLINE size_t many_segment_bytes(const firni_group_format *format)
{
    return FIRNI_SEGMENT_COLS / format->block_cols * firni_group_block_bytes(format);
}

/* Where a segment of a panel lies in the packed matrix. */
FIRNI_INLINE const uint8_t *many_packed(const firni_matrix *w, uint32_t panel, uint32_t segment)
{
    const size_t segment_bytes = many_segment_bytes(&firni_group_formats[w->type]);
    return w->panels + panel * firni_panel_bytes(w->type, w->n_cols) + segment * segment_bytes;
}

/* ---- expansion ------------------------------------------------------------------------------------------------ */

FIRNI_INLINE void many_expand_words(const firni_encoding encoding, const uint8_t *elements, int16_t offset,
                                    int16_t (*out)[2 * LANES])
{
    const unsigned bits = encoding == FIRNI_ENCODING_5_BITS ? 5 : encoding == FIRNI_ENCODING_6_BITS ? 6 : 4;
    const unsigned n_words = encoding == FIRNI_ENCODING_5_BITS ? 5 : encoding == FIRNI_ENCODING_6_BITS ? 3 : 4;
    const unsigned n_fields = 16 / bits;
    const unsigned n_left = 16 % bits;
    lanes_weights rest = lanes_load_words((const void *)elements);
    for (unsigned word = 0; word < n_words; word++) {
        const lanes_weights packed = lanes_load_words((const void *)(elements + (size_t)word * 4 * LANES));
        LANES_UNROLL
        for (unsigned field = 0; field < n_fields; field++) {
            lanes_weights codes = lanes_field(packed, field * bits, bits);
            if (encoding == FIRNI_ENCODING_TABLE) {
                codes = lanes_lookup(codes, lanes_load_table(group_unsigned_mx_values));
            }
            lanes_put_weights(out[word * n_fields + field], lanes_lower(codes, offset));
        }
        rest = word > 0 && n_left > 0 ? lanes_collect(rest, packed, n_left) : rest;
    }
    const unsigned n_rest = n_words * n_left / bits;
    LANES_UNROLL
    for (unsigned i = 0; i < n_rest; i++) {
        const lanes_weights codes = lanes_field(rest, 16 - n_words * n_left + i * bits, bits);
        lanes_put_weights(out[n_words * n_fields + i], lanes_lower(codes, offset));
    }
}

static void many_expand_group(const firni_group_format *format, const uint8_t *elements, int16_t (*out)[2 * LANES])
{
    switch (format->encoding) {
    case FIRNI_ENCODING_BYTES:
        for (unsigned pair = 0; pair < FIRNI_GROUP / 2; pair++) {
            lanes_put_weights(out[pair], lanes_load_weights((const void *)(elements + (size_t)pair * 2 * LANES)));
        }
        break;
    case FIRNI_ENCODING_4_BITS: many_expand_words(FIRNI_ENCODING_4_BITS, elements, format->offset, out); break;
    case FIRNI_ENCODING_5_BITS: many_expand_words(FIRNI_ENCODING_5_BITS, elements, format->offset, out); break;
    case FIRNI_ENCODING_6_BITS: many_expand_words(FIRNI_ENCODING_6_BITS, elements, format->offset, out); break;
    case FIRNI_ENCODING_TABLE: many_expand_words(FIRNI_ENCODING_TABLE, elements, format->offset, out); break;
    }
}

/* Blocks [block, block + n_blocks) of a panel. */
static void many_expand(const firni_group_format *format, const uint8_t *block, uint32_t n_blocks, many_panel *out)
{
    const uint32_t block_groups = (uint32_t)format->block_cols / format->group_cols;
    uint32_t group = 0;
    for (uint32_t b = 0; b < n_blocks; b++, block += firni_group_block_bytes(format)) {
        for (uint32_t i = 0; i < block_groups; i++, group++) {
            many_expand_group(format, block + format->header_bytes + (size_t)i * format->group_bytes,
                              out->elements + (size_t)group * format->group_cols / 2);
            lanes_store(out->scales[group], group_scales(format, block, i));
            if (firni_group_has_minima(format)) {
                lanes_store(out->minima[group], group_minima(format, block, i));
            }
        }
    }
}

/* ---- tiles ---------------------------------------------------------------------------------------------------- */

typedef struct many_tile {
    const many_panel *panels; /* w of them */
    uint32_t n_groups;        /* of the segment */
    firni_group_acts acts;    /* the first token's */
    float *chains;            /* its 16 of the first panel; the next token's follow */
    size_t chains_stride;     /* floats from panel to panel */
} many_tile;

FIRNI_INLINE void many_multiply_shape(const uint32_t group_cols, const bool has_minima, const unsigned n,
                                      const unsigned w, const many_tile *t)
{
    for (uint32_t g = 0; g < t->n_groups; g++) {
        const uint32_t act_group = g * group_cols / FIRNI_GROUP;
        const int16_t *values = t->acts.values + (size_t)g * group_cols;
        lanes_int sums[TILE_ROWS_MAX][MANY_WIDTH_MAX];
        const int16_t *elements = t->panels->elements[(size_t)g * (group_cols / 2)];
        LANES_UNROLL_ALL
        for (unsigned pair = 0; pair < group_cols / 2; pair++) {
            lanes_weights weights[MANY_WIDTH_MAX];
            LANES_UNROLL
            for (unsigned j = 0; j < w; j++) {
                weights[j] = lanes_get_weights(elements + j * MANY_PANEL_WORDS + pair * 2 * LANES);
            }
            if (pair == 0) {
                LANES_UNROLL
                for (unsigned i = 0; i < n; i++) {
                    const int16_t *token_values = values + (size_t)i * FIRNI_SEGMENT_COLS;
                    const lanes_acts acts = lanes_load_acts(token_values);
                    __builtin_prefetch(token_values + (size_t)n * FIRNI_SEGMENT_COLS); /* the next tile's */
                    LANES_UNROLL
                    for (unsigned j = 0; j < w; j++) {
                        sums[i][j] = lanes_dot_first(weights[j], acts);
                    }
                }
            } else {
                group_dot(n, w, sums, weights, values + (size_t)pair * 2);
            }
        }
        /* Chains stay in memory beside the sums, which are all the registers there are. */
        LANES_UNROLL
        for (unsigned j = 0; j < w; j++) {
            const lanes scales = lanes_load(t->panels[j].scales[g]);
            LANES_UNROLL
            for (unsigned i = 0; i < n; i++) {
                float *at = t->chains + j * t->chains_stride + (size_t)i * LANES;
                const float scale = t->acts.scales[i * FIRNI_SEGMENT_GROUPS + act_group];
                const lanes product = lanes_mul(scales, lanes_set(scale));
                lanes chain = lanes_fma(product, lanes_int_to_float(sums[i][j]), lanes_load(at));
                if (has_minima) {
                    const float total = t->acts.totals[i * FIRNI_SEGMENT_GROUPS + act_group];
                    chain = lanes_fma(lanes_load(t->panels[j].minima[g]), lanes_set(total), chain);
                }
                lanes_store(at, chain);
            }
        }
    }
}

FIRNI_INLINE void many_multiply_rows(const uint32_t group_cols, const bool has_minima, const unsigned n,
                                     const unsigned w, const many_tile *t)
{
    const unsigned widest = tile_width(n, LANES_DOT_ACCUMULATORS);
    if (widest >= 4 && w == 4) {
        many_multiply_shape(group_cols, has_minima, n, 4, t);
    } else if (widest >= 2 && w == 2) {
        many_multiply_shape(group_cols, has_minima, n, 2, t);
    } else {
        assert(w == 1);
        many_multiply_shape(group_cols, has_minima, n, 1, t);
    }
}

FIRNI_INLINE void many_multiply_format(const uint32_t group_cols, const bool has_minima, unsigned n, unsigned w,
                                       const many_tile *t)
{
    assert(n == TILE_ROWS_MAX || n == TILE_ROWS_MAX - 1);
    if (n == TILE_ROWS_MAX) {
        many_multiply_rows(group_cols, has_minima, TILE_ROWS_MAX, w, t);
    } else {
        many_multiply_rows(group_cols, has_minima, TILE_ROWS_MAX - 1, w, t);
    }
}

static FIRNI_NO_INLINE void many_multiply_32(unsigned n, unsigned w, const many_tile *t)
{
    many_multiply_format(FIRNI_GROUP, false, n, w, t);
}

static FIRNI_NO_INLINE void many_multiply_32_minima(unsigned n, unsigned w, const many_tile *t)
{
    many_multiply_format(FIRNI_GROUP, true, n, w, t);
}

static FIRNI_NO_INLINE void many_multiply_16(unsigned n, unsigned w, const many_tile *t)
{
    many_multiply_format(16, false, n, w, t);
}

static void many_multiply(const firni_group_format *format, unsigned n, unsigned w, const many_tile *t)
{
    if (format->group_cols != FIRNI_GROUP) {
        many_multiply_16(n, w, t);
    } else if (firni_group_has_minima(format)) {
        many_multiply_32_minima(n, w, t);
    } else {
        many_multiply_32(n, w, t);
    }
}

/* ---- spans ---------------------------------------------------------------------------------------------------- */

/* A span of tokens against a few panels. */
typedef struct many_span {
    const firni_matrix *w;
    const void *acts;
    uint32_t n_tokens; /* of the activations */
    uint32_t token;    /* the first of the span */
    uint32_t n;
    uint32_t n_tiles;
    float *y;
    size_t y_stride;
    _Alignas(MANY_CACHE_LINE) float chains[FIRNI_MANY_PANELS * MANY_TOKENS_MAX * LANES]; /* [panel][n][LANES] */
} many_span;

/* Fetches the part of [at, at + n_bytes) that falls to turn i of n, to the second-level cache. */
FIRNI_INLINE void many_fetch(const void *at, size_t n_bytes, uint32_t i, uint32_t n)
{
    const uint8_t *bytes = at;
    for (size_t byte = n_bytes * i / n; byte < n_bytes * (i + 1) / n; byte += MANY_CACHE_LINE) {
        __builtin_prefetch(bytes + byte, 0, 2);
    }
}

/* Where the outputs of the span's token `first` and a panel go. */
FIRNI_INLINE float *many_output(const many_span *span, uint32_t panel, uint32_t first)
{
    return span->y + (span->token + first) * span->y_stride + (size_t)panel * FIRNI_PANEL_ROWS;
}

/* The finished chains of tokens [first, first + n) of the span and one panel, to where the caller wants them. */
FIRNI_INLINE void many_store(const many_span *span, uint32_t panel, const float *chains, uint32_t first, uint32_t n)
{
    const uint32_t n_rows = span->w->n_rows - panel * FIRNI_PANEL_ROWS;
    float *y = many_output(span, panel, first);
    for (uint32_t i = 0; i < n; i++, y += span->y_stride, chains += LANES) {
        if (n_rows >= LANES) {
            lanes_store(y, lanes_load(chains));
        } else {
            lanes_store_n(y, lanes_load(chains), n_rows);
        }
    }
}

/* One segment of panels [panel, panel + width) against all tokens of the span; `chains` are of the first panel. What
 * comes next is fetched meanwhile: `next` is expanded after this, and the activations of the next segment are read when
 * these are the last panels of this one. */
static void many_multiply_segment(const many_span *span, uint32_t segment, uint32_t panel, unsigned width,
                                  float *chains, const uint8_t *next, bool is_last_panel)
{
    const firni_matrix *w = span->w;
    const firni_group_format *format = &firni_group_formats[w->type];
    const size_t segment_bytes = many_segment_bytes(format);
    const uint32_t cols_left = w->n_cols - segment * FIRNI_SEGMENT_COLS;
    const bool is_last = cols_left <= FIRNI_SEGMENT_COLS;
    const uint32_t n_cols = is_last ? cols_left : FIRNI_SEGMENT_COLS;
    _Alignas(MANY_CACHE_LINE) many_panel expanded[MANY_WIDTH_MAX];
    for (unsigned j = 0; j < width; j++) {
        many_expand(format, many_packed(w, panel + j, segment), n_cols / format->block_cols, &expanded[j]);
    }
    many_tile t = {
        .panels = expanded,
        .n_groups = n_cols / format->group_cols,
        .chains_stride = (size_t)span->n * LANES,
    };
    uint32_t done = 0;
    for (uint32_t i = 0; i < span->n_tiles; i++) {
        const unsigned n = (span->n - done) / (span->n_tiles - i);
        const uint32_t token = span->token + done;
        t.acts = firni_group_acts_at(format, span->acts, w->n_cols, span->n_tokens, segment, token);
        t.chains = chains + (size_t)done * LANES;
        many_fetch(next, segment_bytes, i, span->n_tiles);
        if (is_last) {
            /* These lines are written below; a store that misses holds up all that follow it. */
            for (unsigned at = 0; at < n; at++) {
                __builtin_prefetch(many_output(span, panel, done + at), 1, 3);
            }
        } else if (is_last_panel) {
            many_fetch(firni_group_acts_at(format, span->acts, w->n_cols, span->n_tokens, segment + 1, token).values,
                       n * FIRNI_SEGMENT_COLS * sizeof(int16_t), 0, 1);
        }
        many_multiply(format, n, width, &t);
        for (unsigned j = 0; j < width && is_last; j++) {
            many_store(span, panel + j, t.chains + j * t.chains_stride, done, n);
        }
        done += n;
    }
}

/* Panels [panel, panel + n_panels) against the span. */
static void many_multiply_span(many_span *span, uint32_t panel, uint32_t n_panels)
{
    const unsigned widest = tile_width(TILE_ROWS_MAX, LANES_DOT_ACCUMULATORS);
    memset(span->chains, 0, (size_t)n_panels * span->n * LANES * sizeof(float));
    for (uint32_t segment = 0; segment < firni_segment_count(span->w->n_cols); segment++) {
        unsigned width;
        for (uint32_t i = 0; i < n_panels; i += width) {
            width = n_panels - i >= widest ? widest : 1;
            const bool is_last = i + width == n_panels;
            const uint8_t *next = many_packed(span->w, is_last ? panel : panel + i + width, segment + is_last);
            many_multiply_segment(span, segment, panel + i, width, span->chains + (size_t)i * span->n * LANES, next,
                                  is_last);
        }
    }
}

static void many_multiply_panels(const firni_matrix *w, const void *acts, float *y, size_t y_stride,
                                 uint32_t n_tokens, uint32_t panel_begin, uint32_t panel_end)
{
    many_span span = {.w = w, .acts = acts, .n_tokens = n_tokens, .y = y, .y_stride = y_stride};
    /* Tiles of nearly equal numbers of tokens, spans of nearly equal numbers of tiles. */
    uint32_t tiles_left = (n_tokens + TILE_ROWS_MAX - 1) / TILE_ROWS_MAX;
    for (uint32_t spans_left = (tiles_left + MANY_TILES_MAX - 1) / MANY_TILES_MAX; spans_left > 0; spans_left--) {
        span.n_tiles = tiles_left / spans_left;
        span.n = (uint32_t)((uint64_t)(n_tokens - span.token) * span.n_tiles / tiles_left);
        for (uint32_t panel = panel_begin; panel < panel_end; panel += FIRNI_MANY_PANELS) {
            const uint32_t left = panel_end - panel;
            many_multiply_span(&span, panel, left < FIRNI_MANY_PANELS ? left : FIRNI_MANY_PANELS);
        }
        span.token += span.n;
        tiles_left -= span.n_tiles;
    }
}

#endif
