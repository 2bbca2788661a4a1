/*
 * Weight formats: their names, sizes, conversion of a row to f32, and the packing of rows into panels. Owns the layouts
 * of packed.h; the arithmetic on them is in the variants.
 *
 * Formats as in the GGUF specification (ggml, docs/gguf.md): q8_0 is a group of 32 elements, an f16 scale then 32
 * signed bytes.
 */
#include <assert.h>
#include <string.h>

#include "kernel/kernel_impl.h"
#include "kernel/numbers.h"
#include "kernel/packed.h"

/* A q8_0 group in a file: 34 bytes, of byte alignment. */
enum { Q8_FILE_GROUP_BYTES = 34, Q8_FILE_SCALE_BYTES = 2 };

static size_t element_bytes(firni_weight_type type) { return type == FIRNI_WEIGHT_F32 ? 4 : 2; }

const char *firni_weight_type_name(firni_weight_type type)
{
    static const char *const names[FIRNI_WEIGHT_TYPES] = {
        [FIRNI_WEIGHT_F32] = "f32",
        [FIRNI_WEIGHT_F16] = "f16",
        [FIRNI_WEIGHT_BF16] = "bf16",
        [FIRNI_WEIGHT_Q8_0] = "q8_0",
    };
    return (unsigned)type < FIRNI_WEIGHT_TYPES ? names[type] : "?";
}

size_t firni_weight_row_bytes(firni_weight_type type, uint32_t n_cols)
{
    if (type == FIRNI_WEIGHT_Q8_0) {
        return n_cols % FIRNI_GROUP == 0 ? (size_t)n_cols / FIRNI_GROUP * Q8_FILE_GROUP_BYTES : 0;
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
    if (type == FIRNI_WEIGHT_Q8_0) {
        const uint8_t *group = row + (size_t)(k / FIRNI_GROUP) * Q8_FILE_GROUP_BYTES;
        memcpy(&half, group, sizeof(half));
        return firni_f16_to_f32(half) * (float)(int8_t)group[Q8_FILE_SCALE_BYTES + k % FIRNI_GROUP];
    }
    memcpy(&half, row + (size_t)k * 2, sizeof(half));
    return type == FIRNI_WEIGHT_F16 ? firni_f16_to_f32(half) : firni_bf16_to_f32(half);
}

void firni_weight_row_to_f32(firni_weight_type type, const void *row, uint32_t n_cols, float *out)
{
    for (uint32_t k = 0; k < n_cols; k++) {
        out[k] = element_to_f32(type, row, k);
    }
}

size_t firni_matrix_bytes(firni_weight_type type, uint32_t n_rows, uint32_t n_cols)
{
    return firni_panel_count(n_rows) * firni_panel_bytes(type, n_cols);
}

static void pack_q8_row(const uint8_t *src, uint32_t n_cols, firni_q8_group *groups, uint32_t lane)
{
    for (uint32_t g = 0; g < n_cols / FIRNI_GROUP; g++) {
        const uint8_t *from = src + (size_t)g * Q8_FILE_GROUP_BYTES;
        memcpy(&groups[g].scales[lane], from, Q8_FILE_SCALE_BYTES);
        for (uint32_t pair = 0; pair < FIRNI_GROUP / 2; pair++) {
            memcpy(groups[g].pairs[pair][lane], from + Q8_FILE_SCALE_BYTES + (size_t)pair * 2, 2);
        }
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
            if (type == FIRNI_WEIGHT_Q8_0) {
                void *groups = panel;
                pack_q8_row(row, n_cols, groups, lane);
            } else {
                pack_float_row(row, n_cols, element_bytes(type), panel, lane);
            }
        }
    }
}
