/*
 * Releasing a vocabulary specification, and writing it as the tokenizer.ggml.* keys of a GGUF file.
 *
 * What is written reads back (vocab_gguf.c) as a specification of the same digest: every key is written that would
 * otherwise have a default.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/vocab_spec.h"

void firni_vocab_spec_deinit(firni_vocab_spec *spec)
{
    firni_free(spec->env, spec->pieces);
    firni_free(spec->env, spec->scores);
    firni_free(spec->env, spec->types);
    firni_free(spec->env, spec->merges);
    firni_free(spec->env, spec->chat_template);
    firni_free(spec->env, spec->arena);
    *spec = (firni_vocab_spec){ 0 };
}

/* An id that there is none of has no key. */
static void put_id(firni_gguf_writer *writer, const char *key, firn_token token)
{
    if (token != FIRN_TOKEN_NONE) {
        firni_gguf_put_u32(writer, key, token);
    }
}

firn_status firni_vocab_to_gguf(const firni_vocab_spec *spec, firni_gguf_writer *writer)
{
    /* The file has a 32-bit number for each type. */
    int32_t *types = firni_calloc(spec->env, spec->n_tokens, sizeof *types);
    if (types == NULL) {
        return FIRN_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < spec->n_tokens; i++) {
        types[i] = spec->types[i];
    }
    const bool is_spm = spec->kind == FIRNI_VOCAB_SPM;
    const char *model = is_spm ? "llama" : "gpt2";
    const char *pre = spec->pre[0] == '\0' ? "default" : spec->pre;
    firni_gguf_put_string(writer, "tokenizer.ggml.model", model, strlen(model));
    firni_gguf_put_string(writer, "tokenizer.ggml.pre", pre, strlen(pre));
    firni_gguf_put_string_array(writer, "tokenizer.ggml.tokens", spec->pieces, spec->n_tokens);
    if (is_spm) {
        firni_gguf_put_array(writer, "tokenizer.ggml.scores", FIRNI_GGUF_F32, spec->scores, spec->n_tokens);
        firni_gguf_put_bool(writer, "tokenizer.ggml.add_space_prefix", spec->add_space_prefix);
    } else {
        firni_gguf_put_string_array(writer, "tokenizer.ggml.merges", spec->merges, spec->n_merges);
    }
    firni_gguf_put_array(writer, "tokenizer.ggml.token_type", FIRNI_GGUF_I32, types, spec->n_tokens);
    firni_free(spec->env, types);
    put_id(writer, "tokenizer.ggml.bos_token_id", spec->bos);
    put_id(writer, "tokenizer.ggml.eos_token_id", spec->eos);
    put_id(writer, "tokenizer.ggml.unknown_token_id", spec->unk);
    put_id(writer, "tokenizer.ggml.eot_token_id", spec->eot);
    firni_gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", spec->add_bos);
    firni_gguf_put_bool(writer, "tokenizer.ggml.add_eos_token", spec->add_eos);
    if (spec->chat_template != NULL) {
        firni_gguf_put_string(writer, "tokenizer.chat_template", spec->chat_template, strlen(spec->chat_template));
    }
    return FIRN_OK;
}
