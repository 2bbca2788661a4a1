/*
 * Merges of a tokenizer.json: as they are for byte-level BPE, made into scores (vocab_scores.c) for the SentencePiece
 * kind.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/vocab_json_impl.h"

static firni_gguf_string string_of(const json_t *value)
{
    return (firni_gguf_string){ .data = json_string_value(value), .len_bytes = json_string_length(value) };
}

firn_status firni_json_merge_halves(firni_json_vocab *in, size_t index, firni_gguf_string *left,
                                    firni_gguf_string *right)
{
    const json_t *merge = json_array_get(in->merges, index);
    if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) &&
        json_is_string(json_array_get(merge, 1))) {
        *left = string_of(json_array_get(merge, 0));
        *right = string_of(json_array_get(merge, 1));
        return FIRN_OK;
    }
    const firni_gguf_string both = json_is_string(merge) ? string_of(merge) : (firni_gguf_string){ 0 };
    const char *space = both.len_bytes == 0 ? NULL : memchr(both.data, ' ', both.len_bytes);
    if (space == NULL) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: model.merges: entry %zu is neither \"a b\" nor [\"a\", \"b\"]",
                          in->path, index);
    }
    const size_t len_left = (size_t)(space - both.data);
    *left = (firni_gguf_string){ .data = both.data, .len_bytes = len_left };
    *right = (firni_gguf_string){ .data = space + 1, .len_bytes = both.len_bytes - len_left - 1 };
    return FIRN_OK;
}

firn_status firni_json_read_merges(firni_json_vocab *in)
{
    firni_vocab_spec *spec = in->spec;
    const size_t n = json_array_size(in->merges);
    if (n == 0) {
        return FIRN_OK;
    }
    spec->merges = firni_calloc(in->env, n, sizeof *spec->merges);
    if (spec->merges == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %zu merges", in->path, n);
    }
    for (size_t i = 0; i < n; i++) {
        firni_gguf_string left;
        firni_gguf_string right;
        const firn_status status = firni_json_merge_halves(in, i, &left, &right);
        if (status != FIRN_OK) {
            return status;
        }
        const firni_gguf_string kept = firni_json_keep(in, left.data, left.len_bytes);
        (void)firni_json_keep(in, " ", 1);
        (void)firni_json_keep(in, right.data, right.len_bytes);
        spec->merges[i] = (firni_gguf_string){ .data = kept.data, .len_bytes = left.len_bytes + 1 + right.len_bytes };
    }
    spec->n_merges = (uint32_t)n;
    return FIRN_OK;
}

static firn_status halves_of(void *ctx, size_t index, firni_gguf_string *left, firni_gguf_string *right)
{
    return firni_json_merge_halves(ctx, index, left, right);
}

firn_status firni_json_score_merges(firni_json_vocab *in)
{
    return firni_vocab_score_merges(in->spec, in->path, json_array_size(in->merges), halves_of, in, in->err);
}
