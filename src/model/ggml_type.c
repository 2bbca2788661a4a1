/*
 * The table of ggml tensor types: names for messages, sizes for bounds checks. Owns no arithmetic.
 * Source: the type enumeration and block layouts of the ggml project (ggml.h, ggml-common.h). Numbers that are missing
 * were retired by that project and appear in no current file.
 */
#include "model/ggml_type.h"

#include <stddef.h>

static const firni_ggml_type_info type_table[] = {
    [0] = { "F32", 1, 4 },         [1] = { "F16", 1, 2 },          [2] = { "Q4_0", 32, 18 },
    [3] = { "Q4_1", 32, 20 },      [6] = { "Q5_0", 32, 22 },       [7] = { "Q5_1", 32, 24 },
    [8] = { "Q8_0", 32, 34 },      [9] = { "Q8_1", 32, 36 },       [10] = { "Q2_K", 256, 84 },
    [11] = { "Q3_K", 256, 110 },   [12] = { "Q4_K", 256, 144 },    [13] = { "Q5_K", 256, 176 },
    [14] = { "Q6_K", 256, 210 },   [15] = { "Q8_K", 256, 292 },    [16] = { "IQ2_XXS", 256, 66 },
    [17] = { "IQ2_XS", 256, 74 },  [18] = { "IQ3_XXS", 256, 98 },  [19] = { "IQ1_S", 256, 50 },
    [20] = { "IQ4_NL", 32, 18 },   [21] = { "IQ3_S", 256, 110 },   [22] = { "IQ2_S", 256, 82 },
    [23] = { "IQ4_XS", 256, 136 }, [24] = { "I8", 1, 1 },          [25] = { "I16", 1, 2 },
    [26] = { "I32", 1, 4 },        [27] = { "I64", 1, 8 },         [28] = { "F64", 1, 8 },
    [29] = { "IQ1_M", 256, 56 },   [30] = { "BF16", 1, 2 },        [34] = { "TQ1_0", 256, 54 },
    [35] = { "TQ2_0", 256, 66 },   [39] = { "MXFP4", 32, 17 },
};

/* The kernels' formats by ggml number. */
static const uint32_t ggml_of_weight[FIRNI_WEIGHT_TYPES] = {
    [FIRNI_WEIGHT_F32] = FIRNI_GGML_F32,
    [FIRNI_WEIGHT_F16] = FIRNI_GGML_F16,
    [FIRNI_WEIGHT_BF16] = FIRNI_GGML_BF16,
    [FIRNI_WEIGHT_Q8_0] = FIRNI_GGML_Q8_0,
    [FIRNI_WEIGHT_Q4_0] = FIRNI_GGML_Q4_0,
    [FIRNI_WEIGHT_Q4_1] = FIRNI_GGML_Q4_1,
    [FIRNI_WEIGHT_Q5_0] = FIRNI_GGML_Q5_0,
    [FIRNI_WEIGHT_Q5_1] = FIRNI_GGML_Q5_1,
    [FIRNI_WEIGHT_Q4_K] = FIRNI_GGML_Q4_K,
    [FIRNI_WEIGHT_Q5_K] = FIRNI_GGML_Q5_K,
    [FIRNI_WEIGHT_Q6_K] = FIRNI_GGML_Q6_K,
    [FIRNI_WEIGHT_MXFP4] = FIRNI_GGML_MXFP4,
};

const firni_ggml_type_info *firni_ggml_type_find(uint32_t ggml_type)
{
    if (ggml_type >= sizeof type_table / sizeof type_table[0] || type_table[ggml_type].name == NULL) {
        return NULL;
    }
    return &type_table[ggml_type];
}

const char *firni_ggml_type_name(uint32_t ggml_type)
{
    const firni_ggml_type_info *info = firni_ggml_type_find(ggml_type);
    return info == NULL ? "?" : info->name;
}

bool firni_ggml_type_weight(uint32_t ggml_type, firni_weight_type *out)
{
    for (uint32_t i = 0; i < FIRNI_WEIGHT_TYPES; i++) {
        if (ggml_of_weight[i] == ggml_type) {
            *out = (firni_weight_type)i;
            return true;
        }
    }
    return false;
}

uint32_t firni_ggml_type_of_weight(firni_weight_type type)
{
    return ggml_of_weight[type];
}
