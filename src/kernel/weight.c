/*
 * Weight formats: their names, sizes, conversion of a row to f32, and the packing of rows into panels. Owns the table
 * of the grouped formats; how one of their blocks is read and laid out is in weight_block.c, the arithmetic is in the
 * variants.
 *
 * Formats as in the GGUF specification (ggml, docs/gguf.md) and the block layouts of that project (ggml-common.h).
 */
#include <assert.h>
#include <string.h>

#include "kernel/kernel_impl.h"
#include "kernel/numbers.h"
#include "kernel/packed.h"
#include "kernel/weight_block.h"

enum {
    WORD_BYTES = 2 * FIRNI_PANEL_ROWS * 2, /* one word for each half of a pair of each row */
    BYTES_BYTES = FIRNI_GROUP * FIRNI_PANEL_ROWS,
    HALF_BYTES = FIRNI_PANEL_ROWS * 2, /* one f16 for each row */
};

const firni_group_format firni_group_formats[FIRNI_WEIGHT_TYPES] = {
    [FIRNI_WEIGHT_Q8_0] = {.encoding = FIRNI_ENCODING_BYTES, .scaling = FIRNI_SCALING_HALF, .block_cols = 32,
                           .group_cols = 32, .bits = 8, .offset = 0, .file_bytes = 34, .header_bytes = HALF_BYTES,
                           .group_bytes = BYTES_BYTES},
    [FIRNI_WEIGHT_Q4_0] = {.encoding = FIRNI_ENCODING_4_BITS, .scaling = FIRNI_SCALING_HALF, .block_cols = 32,
                           .group_cols = 32, .bits = 4, .offset = 8, .file_bytes = 18, .header_bytes = HALF_BYTES,
                           .group_bytes = 4 * WORD_BYTES},
    [FIRNI_WEIGHT_Q4_1] = {.encoding = FIRNI_ENCODING_4_BITS, .scaling = FIRNI_SCALING_HALF_MIN, .block_cols = 32,
                           .group_cols = 32, .bits = 4, .offset = 0, .file_bytes = 20,
                           .header_bytes = sizeof(firni_half_header), .group_bytes = 4 * WORD_BYTES},
    [FIRNI_WEIGHT_Q5_0] = {.encoding = FIRNI_ENCODING_5_BITS, .scaling = FIRNI_SCALING_HALF, .block_cols = 32,
                           .group_cols = 32, .bits = 5, .offset = 16, .file_bytes = 22, .header_bytes = HALF_BYTES,
                           .group_bytes = 5 * WORD_BYTES},
    [FIRNI_WEIGHT_Q5_1] = {.encoding = FIRNI_ENCODING_5_BITS, .scaling = FIRNI_SCALING_HALF_MIN, .block_cols = 32,
                           .group_cols = 32, .bits = 5, .offset = 0, .file_bytes = 24,
                           .header_bytes = sizeof(firni_half_header), .group_bytes = 5 * WORD_BYTES},
    [FIRNI_WEIGHT_Q4_K] = {.encoding = FIRNI_ENCODING_4_BITS, .scaling = FIRNI_SCALING_SUPER_MIN, .block_cols = 256,
                           .group_cols = 32, .bits = 4, .offset = 0, .file_bytes = 144,
                           .header_bytes = sizeof(firni_super_min_header), .group_bytes = 4 * WORD_BYTES},
    [FIRNI_WEIGHT_Q5_K] = {.encoding = FIRNI_ENCODING_5_BITS, .scaling = FIRNI_SCALING_SUPER_MIN, .block_cols = 256,
                           .group_cols = 32, .bits = 5, .offset = 0, .file_bytes = 176,
                           .header_bytes = sizeof(firni_super_min_header), .group_bytes = 5 * WORD_BYTES},
    [FIRNI_WEIGHT_Q6_K] = {.encoding = FIRNI_ENCODING_6_BITS, .scaling = FIRNI_SCALING_SUPER, .block_cols = 256,
                           .group_cols = 16, .bits = 6, .offset = 32, .file_bytes = 210,
                           .header_bytes = sizeof(firni_super_header), .group_bytes = 3 * WORD_BYTES},
    [FIRNI_WEIGHT_MXFP4] = {.encoding = FIRNI_ENCODING_TABLE, .scaling = FIRNI_SCALING_POWER, .block_cols = 32,
                            .group_cols = 32, .bits = 4, .offset = FIRNI_MX_OFFSET, .file_bytes = 17,
                            .header_bytes = FIRNI_PANEL_ROWS, .group_bytes = 4 * WORD_BYTES},
};

static_assert(sizeof(firni_half_header) == 64 && sizeof(firni_super_header) == 288 &&
                  sizeof(firni_super_min_header) == 320,
              "headers are rows of 16 without gaps");

const int8_t firni_mx_values[16] = {-12, -8, -6, -4, -3, -2, -1, 0, 0, 1, 2, 3, 4, 6, 8, 12};

static size_t element_bytes(firni_weight_type type) { return type == FIRNI_WEIGHT_F32 ? 4 : 2; }

const char *firni_weight_type_name(firni_weight_type type)
{
    static const char *const names[FIRNI_WEIGHT_TYPES] = {
        [FIRNI_WEIGHT_F32] = "f32",   [FIRNI_WEIGHT_F16] = "f16",   [FIRNI_WEIGHT_BF16] = "bf16",
        [FIRNI_WEIGHT_Q8_0] = "q8_0", [FIRNI_WEIGHT_Q4_0] = "q4_0", [FIRNI_WEIGHT_Q4_1] = "q4_1",
        [FIRNI_WEIGHT_Q5_0] = "q5_0", [FIRNI_WEIGHT_Q5_1] = "q5_1", [FIRNI_WEIGHT_Q4_K] = "q4_K",
        [FIRNI_WEIGHT_Q5_K] = "q5_K", [FIRNI_WEIGHT_Q6_K] = "q6_K", [FIRNI_WEIGHT_MXFP4] = "mxfp4",
    };
    return (unsigned)type < FIRNI_WEIGHT_TYPES ? names[type] : "?";
}

uint32_t firni_weight_block_cols(firni_weight_type type)
{
    return firni_weight_is_grouped(type) ? firni_group_formats[type].block_cols : 1;
}

size_t firni_weight_row_bytes(firni_weight_type type, uint32_t n_cols)
{
    if (firni_weight_is_grouped(type)) {
        const firni_group_format *format = &firni_group_formats[type];
        return n_cols % format->block_cols == 0 ? (size_t)n_cols / format->block_cols * format->file_bytes : 0;
    }
    return (size_t)n_cols * element_bytes(type);
}

static float element_to_f32(firni_weight_type type, const uint8_t *row, uint32_t k)
{
    if (type == FIRNI_WEIGHT_F32) {
        float x;
        memcpy(&x, row + (size_t)k * 4, sizeof(x));
        return x;
    }
    uint16_t half;
    memcpy(&half, row + (size_t)k * 2, sizeof(half));
    return type == FIRNI_WEIGHT_F16 ? firni_f16_to_f32(half) : firni_bf16_to_f32(half);
}

void firni_weight_row_to_f32(firni_weight_type type, const void *row, uint32_t n_cols, float *out)
{
    if (firni_weight_is_grouped(type)) {
        const firni_group_format *format = &firni_group_formats[type];
        for (uint32_t b = 0; b < n_cols / format->block_cols; b++) {
            const uint8_t *block = (const uint8_t *)row + (size_t)b * format->file_bytes;
            firni_weight_block_to_f32(type, block, out + (size_t)b * format->block_cols);
        }
        return;
    }
    for (uint32_t k = 0; k < n_cols; k++) {
        out[k] = element_to_f32(type, row, k);
    }
}

size_t firni_matrix_bytes(firni_weight_type type, uint32_t n_rows, uint32_t n_cols)
{
    return firni_panel_count(n_rows) * firni_panel_bytes(type, n_cols);
}

static void pack_grouped_row(firni_weight_type type, const uint8_t *src, uint32_t n_cols, uint8_t *panel, uint32_t lane)
{
    const firni_group_format *format = &firni_group_formats[type];
    const size_t block_bytes = firni_group_block_bytes(format);
    for (uint32_t b = 0; b < n_cols / format->block_cols; b++) {
        firni_weight_block_pack(type, src + (size_t)b * format->file_bytes, panel + b * block_bytes, lane);
    }
}

static void pack_float_row(const uint8_t *src, uint32_t n_cols, size_t size, uint8_t *panel, uint32_t lane)
{
    for (uint32_t k = 0; k < n_cols; k++) {
        memcpy(panel + ((size_t)k * FIRNI_PANEL_ROWS + lane) * size, src + (size_t)k * size, size);
    }
}

void firni_matrix_pack(firni_weight_type type, uint32_t n_rows, uint32_t n_cols, const void *src, uint8_t *dst,
                       uint32_t first_panel, uint32_t n_panels)
{
    const size_t row_bytes = firni_weight_row_bytes(type, n_cols);
    const size_t panel_bytes = firni_panel_bytes(type, n_cols);
    assert(n_cols == 0 || row_bytes != 0);
    assert((uint64_t)first_panel + n_panels <= firni_panel_count(n_rows));

    for (uint32_t p = 0; p < n_panels; p++) {
        uint8_t *panel = dst + (first_panel + p) * panel_bytes;
        const uint32_t first_row = (first_panel + p) * FIRNI_PANEL_ROWS;
        if (n_rows - first_row < FIRNI_PANEL_ROWS) {
            memset(panel, 0, panel_bytes); /* the rows that pad the last panel */
        }
        for (uint32_t lane = 0; lane < FIRNI_PANEL_ROWS && first_row + lane < n_rows; lane++) {
            const uint8_t *row = (const uint8_t *)src + (size_t)(p * FIRNI_PANEL_ROWS + lane) * row_bytes;
            if (firni_weight_is_grouped(type)) {
                pack_grouped_row(type, row, n_cols, panel, lane);
            } else {
                pack_float_row(row, n_cols, element_bytes(type), panel, lane);
            }
        }
    }
}
