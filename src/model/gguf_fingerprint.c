/*
 * The weights fingerprint: a digest of what a file computes with.
 *
 * It covers the architecture's own keys, and of every tensor the name, the type, the shape and its data: all of a small
 * one, and head, tail and evenly spread pieces of a large one. Training, merging or requantising changes every part of
 * the tensors they touch, so pieces are enough to tell two models apart, and opening stays quick.
 *
 * Left out are general.* and tokenizer.*: a new name, licence or chat template changes no number. What of them shapes
 * token ids is in the tokenizer's own digest. SHA-256 from OpenSSL; each field is preceded by its length.
 */
#include "model/gguf_impl.h"

#include <openssl/evp.h>
#include <string.h>

#include "base/base_impl.h"

#define WHOLE_BYTES_MAX 65536u
#define END_BYTES 4096u
#define PIECE_BYTES 256u
#define N_PIECES 64u

static bool add_bytes(EVP_MD_CTX *ctx, const void *data, uint64_t n_bytes)
{
    return EVP_DigestUpdate(ctx, data, (size_t)n_bytes) == 1;
}

static bool add_number(EVP_MD_CTX *ctx, uint64_t number)
{
    uint8_t bytes[8];
    for (uint32_t i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(number >> (8 * i));
    }
    return add_bytes(ctx, bytes, sizeof bytes);
}

static bool add_string(EVP_MD_CTX *ctx, firni_gguf_string string)
{
    return add_number(ctx, string.len_bytes) && add_bytes(ctx, string.data, string.len_bytes);
}

static bool begins_with(firni_gguf_string key, const char *prefix)
{
    const size_t n = strlen(prefix);
    return key.len_bytes >= n && memcmp(key.data, prefix, n) == 0;
}

/* Bytes that the elements of a value occupy in the file; it was checked when the file was opened. */
static uint64_t payload_bytes(const firni_gguf_value *value)
{
    const uint8_t *cursor = value->data;
    switch (value->type) {
    case FIRNI_GGUF_U8:
    case FIRNI_GGUF_I8:
    case FIRNI_GGUF_BOOL: return value->n;
    case FIRNI_GGUF_U16:
    case FIRNI_GGUF_I16: return 2 * value->n;
    case FIRNI_GGUF_U32:
    case FIRNI_GGUF_I32:
    case FIRNI_GGUF_F32: return 4 * value->n;
    case FIRNI_GGUF_U64:
    case FIRNI_GGUF_I64:
    case FIRNI_GGUF_F64: return 8 * value->n;
    case FIRNI_GGUF_STRING:
    case FIRNI_GGUF_ARRAY: break;
    }
    for (uint64_t i = 0; i < value->n; i++) {
        (void)firni_gguf_next_string(&cursor);
    }
    return (uint64_t)(cursor - value->data);
}

static bool add_entry(EVP_MD_CTX *ctx, const firni_gguf_entry *entry)
{
    if (begins_with(entry->key, "general.") || begins_with(entry->key, "tokenizer.")) {
        return true;
    }
    const firni_gguf_value *value = &entry->value;
    const uint64_t n_bytes = payload_bytes(value);
    return add_string(ctx, entry->key) && add_number(ctx, (uint64_t)value->type) && add_number(ctx, value->n) &&
           add_number(ctx, n_bytes) && add_bytes(ctx, value->data, n_bytes);
}

static bool add_data(EVP_MD_CTX *ctx, const firni_gguf_tensor *tensor)
{
    const uint64_t n = tensor->n_bytes;
    if (n <= WHOLE_BYTES_MAX) {
        return add_bytes(ctx, tensor->data, n);
    }
    bool ok = add_bytes(ctx, tensor->data, END_BYTES);
    for (uint64_t i = 1; i < N_PIECES && ok; i++) {
        ok = add_bytes(ctx, tensor->data + n / N_PIECES * i, PIECE_BYTES);
    }
    return ok && add_bytes(ctx, tensor->data + n - END_BYTES, END_BYTES);
}

static bool add_tensor(EVP_MD_CTX *ctx, const firni_gguf_tensor *tensor)
{
    bool ok = add_string(ctx, tensor->name) && add_number(ctx, tensor->ggml_type) && add_number(ctx, tensor->n_bytes);
    for (uint32_t d = 0; d < 4 && ok; d++) {
        ok = add_number(ctx, tensor->shape[d]);
    }
    return ok && add_data(ctx, tensor);
}

firn_status firni_gguf_fingerprint(const firni_gguf *gguf, uint8_t digest[32], firn_error *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx != NULL && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    for (uint64_t i = 0; i < gguf->n_entries && ok; i++) {
        ok = add_entry(ctx, &gguf->entries[i]); /* sorted by key: the order in the file does not matter */
    }
    for (uint64_t i = 0; i < gguf->n_tensors && ok; i++) {
        ok = add_tensor(ctx, gguf->by_name[i]);
        /* A few bytes here and there would otherwise keep most of the file mapped into this process. */
        firni_gguf_drop_pages(gguf, gguf->by_name[i]->data, gguf->by_name[i]->n_bytes);
    }
    ok = ok && EVP_DigestFinal_ex(ctx, digest, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    return ok ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "%s: no memory to digest it", gguf->path);
}
