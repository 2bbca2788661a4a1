/*
 * The architectures that synthetic models can have, by name.
 */
#include <stdio.h>
#include <string.h>

#include "model/synth_impl.h"

static const firni_synth_arch *const table[] = {
    &firni_synth_llama, &firni_synth_qwen2, &firni_synth_qwen3,
    &firni_synth_gemma3, &firni_synth_gemma4, &firni_synth_gpt_oss,
    &firni_synth_deepseek2, &firni_synth_deepseek32,
    &firni_synth_qwen35, &firni_synth_qwen3next, &firni_synth_mamba2,
};

#define N_ARCHS (sizeof table / sizeof table[0])

const firni_synth_arch *firni_synth_arch_find(const char *name)
{
    for (size_t i = 0; i < N_ARCHS; i++) {
        if (strcmp(table[i]->name, name) == 0) {
            return table[i];
        }
    }
    return NULL;
}

bool firni_synth_knows(const char *architecture)
{
    return firni_synth_arch_find(architecture) != NULL;
}

void firni_synth_arch_list(char *out, size_t out_bytes)
{
    size_t used = 0;
    for (size_t i = 0; i < N_ARCHS && used < out_bytes; i++) {
        const int n = snprintf(out + used, out_bytes - used, "%s%s", i == 0 ? "" : ", ", table[i]->name);
        used += n > 0 ? (size_t)n : 0;
    }
}
