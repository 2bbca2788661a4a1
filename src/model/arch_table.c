/*
 * The architectures of this build, by name.
 */
#include <stdio.h>
#include <string.h>

#include "model/arch_impl.h"

static const firni_arch *const table[] = {
    &firni_arch_llama,
    &firni_arch_qwen2,
    &firni_arch_qwen3,
    &firni_arch_gemma3,
    &firni_arch_gemma4,
    &firni_arch_gpt_oss,
    &firni_arch_qwen35,
    &firni_arch_qwen3next,
    &firni_arch_mamba2,
    &firni_arch_deepseek2,
    &firni_arch_deepseek32,
};

#define N_ARCHS (sizeof table / sizeof table[0])

const firni_arch *firni_arch_find(const char *name)
{
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(table[i]->name, name) == 0) {
            return table[i];
        }
    }
    return NULL;
}

void firni_arch_list(char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHS && used < out_bytes; i++) {
        const int n = snprintf(out + used, out_bytes - used, "%s%s", i == 0 ? "" : ", ", table[i]->name);
        used += n > 0 ? (size_t)n : 0;
    }
}
