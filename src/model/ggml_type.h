/*
 * ggml's tensor types: number, name and size. GGUF files speak of types by number only; messages to people should not.
 */
#ifndef FIRNI_GGML_TYPE_H
#define FIRNI_GGML_TYPE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel/kernel_impl.h"

/* The types that this build computes with. */
#define FIRNI_GGML_F32 0u
#define FIRNI_GGML_F16 1u
#define FIRNI_GGML_Q4_0 2u
#define FIRNI_GGML_Q4_1 3u
#define FIRNI_GGML_Q5_0 6u
#define FIRNI_GGML_Q5_1 7u
#define FIRNI_GGML_Q8_0 8u
#define FIRNI_GGML_Q4_K 12u
#define FIRNI_GGML_Q5_K 13u
#define FIRNI_GGML_Q6_K 14u
#define FIRNI_GGML_BF16 30u
#define FIRNI_GGML_MXFP4 39u

typedef struct firni_ggml_type_info {
    const char *name;      /* "Q4_K" */
    uint32_t block_elements;
    uint32_t block_bytes;
} firni_ggml_type_info;

/* NULL for a number that this build has never heard of. Static storage. */
const firni_ggml_type_info *firni_ggml_type_find(uint32_t ggml_type);
/* "Q4_K", or "?" for an unknown number. */
const char *firni_ggml_type_name(uint32_t ggml_type);
/* The weight format that the kernels know this type by; false when they do not compute with it. */
bool firni_ggml_type_weight(uint32_t ggml_type, firni_weight_type *out);
/* The other way round. */
uint32_t firni_ggml_type_of_weight(firni_weight_type type);
/* For messages. */
#define FIRNI_GGML_TYPES_SUPPORTED "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4"

#endif
