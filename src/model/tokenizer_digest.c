/*
 * The digest of a vocabulary: SHA-256 over everything that shapes ids, each field led by its name and each variable
 * part by its length, so that no two vocabularies run together. The chat template is not part of it: another template
 * makes other prompts, never other tokens for the same text.
 *
 *   field   = length of the name (8 bytes), name, number (8 bytes)
 *   strings = field with the count, then each as length (8 bytes) and bytes
 *
 * Numbers are little-endian. The digest is part of the identity of stored state: the order and spelling of the fields
 * below never change without the number of the first one.
 */
#include <openssl/evp.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* A failure sticks, so that the fields can be listed without a check each. */
typedef struct hasher {
    EVP_MD_CTX *context;
    bool ok;
} hasher;

static void put_bytes(hasher *hash, const void *bytes, size_t n_bytes)
{
    hash->ok = hash->ok && (n_bytes == 0 || EVP_DigestUpdate(hash->context, bytes, n_bytes) == 1);
}

static void put_number(hasher *hash, uint64_t number)
{
    uint8_t bytes[8];
    for (uint32_t i = 0; i < 8; i++) {
        bytes[i] = (uint8_t)(number >> (8 * i));
    }
    put_bytes(hash, bytes, sizeof bytes);
}

static void put_string(hasher *hash, const char *text, size_t len_bytes)
{
    put_number(hash, len_bytes);
    put_bytes(hash, text, len_bytes);
}

/* A named number; what varies in length follows its own count or length. */
static void put_field(hasher *hash, const char *name, uint64_t value)
{
    put_string(hash, name, strlen(name));
    put_number(hash, value);
}

static void put_strings(hasher *hash, const char *name, const firni_gguf_string *strings, uint32_t n)
{
    put_field(hash, name, n);
    for (uint32_t i = 0; i < n; i++) {
        put_string(hash, strings[i].data, strings[i].len_bytes);
    }
}

/* As bits: scores that compare equal but differ in bits are different files. */
static void put_scores(hasher *hash, const float *scores, uint32_t n)
{
    put_field(hash, "scores", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &scores[i], sizeof bits);
        put_number(hash, bits);
    }
}

firn_status firni_vocab_digest(const firni_vocab_spec *spec, const firni_split *split, firn_digest *out,
                               firn_error *err)
{
    hasher hash = { .context = EVP_MD_CTX_new() };
    hash.ok = hash.context != NULL && EVP_DigestInit_ex(hash.context, EVP_sha256(), NULL) == 1;
    put_field(&hash, "firn.tokenizer", 1);
    put_field(&hash, "kind", spec->kind);
    /* The split's own name: the same split under an alias is the same tokenizer. */
    const char *split_name = split == NULL ? "" : split->name;
    put_field(&hash, "split", strlen(split_name));
    put_bytes(&hash, split_name, strlen(split_name));
    put_strings(&hash, "pieces", spec->pieces, spec->n_tokens);
    put_field(&hash, "types", spec->n_tokens);
    put_bytes(&hash, spec->types, spec->n_tokens);
    if (spec->kind == FIRNI_VOCAB_SPM) {
        put_scores(&hash, spec->scores, spec->n_tokens);
    } else {
        put_strings(&hash, "merges", spec->merges, spec->n_merges);
    }
    /* FIRN_TOKEN_NONE stands for itself. */
    put_field(&hash, "bos", spec->bos);
    put_field(&hash, "eos", spec->eos);
    put_field(&hash, "unk", spec->unk);
    put_field(&hash, "eot", spec->eot);
    put_field(&hash, "add_bos", spec->add_bos);
    put_field(&hash, "add_eos", spec->add_eos);
    put_field(&hash, "add_space_prefix", spec->add_space_prefix);
    hash.ok = hash.ok && EVP_DigestFinal_ex(hash.context, out->bytes, NULL) == 1;
    EVP_MD_CTX_free(hash.context);
    return hash.ok ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the digest of the vocabulary");
}
