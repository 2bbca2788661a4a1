/*
 * Element types: size and name. The one table that everything about dtypes is read from.
 */
#include <string.h>

#include "firn/array.h"

static const struct dtype_info {
    const char *name;
    size_t n_bytes;
} infos[] = {
    [FIRN_DTYPE_F32] = { .name = "f32", .n_bytes = 4 },   [FIRN_DTYPE_F16] = { .name = "f16", .n_bytes = 2 },
    [FIRN_DTYPE_BF16] = { .name = "bf16", .n_bytes = 2 }, [FIRN_DTYPE_I8] = { .name = "i8", .n_bytes = 1 },
    [FIRN_DTYPE_U8] = { .name = "u8", .n_bytes = 1 },     [FIRN_DTYPE_I32] = { .name = "i32", .n_bytes = 4 },
};

#define N_INFOS (sizeof infos / sizeof infos[0])

/* Dtypes arrive from record headers too, so any value is looked up safely. */
static const struct dtype_info *info_of(firn_dtype dtype)
{
    const size_t index = (size_t)dtype;
    return index < N_INFOS && infos[index].name != NULL ? &infos[index] : NULL;
}

size_t firn_dtype_bytes(firn_dtype dtype)
{
    const struct dtype_info *info = info_of(dtype);
    return info != NULL ? info->n_bytes : 0;
}

const char *firn_dtype_name(firn_dtype dtype)
{
    const struct dtype_info *info = info_of(dtype);
    return info != NULL ? info->name : "?";
}

firn_dtype firn_dtype_parse(const char *name)
{
    if (name == NULL) {
        return FIRN_DTYPE_NONE;
    }
    for (size_t i = 0; i < N_INFOS; i++) {
        if (infos[i].name != NULL && strcmp(infos[i].name, name) == 0) {
            return (firn_dtype)i;
        }
    }
    return FIRN_DTYPE_NONE;
}
