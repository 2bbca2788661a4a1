/*
 * What a model needs from its caches, and everything that shapes the bits of their state, as an identity.
 *
 * Two files that differ in any of these fields may not exchange state. The kernel variant is not among them: all
 * variants give the same bits (kernel_impl.h).
 */
#include <stdio.h>

#include "base/base_impl.h"
#include "model/model_impl.h"

/* Lower case, NUL-terminated: out has room for 2 n + 1. */
static void hex(const uint8_t *bytes, size_t n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = '\0';
}

static firn_status add_digest(firn_identity *identity, const char *name, const uint8_t digest[FIRN_DIGEST_BYTES],
                              firn_error *err)
{
    char text[2 * FIRN_DIGEST_BYTES + 1];
    hex(digest, FIRN_DIGEST_BYTES, text);
    return firn_identity_add(identity, name, text, err);
}

static firn_status add_layers(firn_model *model, firn_error *err)
{
    firn_status status = FIRN_OK;
    for (uint32_t i = 0; i < model->hparams.n_caches && status == FIRN_OK; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%lu", (unsigned long)i);
        status = firn_identity_add(model->identity, name, model->cache_describes[i], err);
    }
    return status;
}

/* In words first, so that a mismatch can be explained; the digest is over these words. The architecture is named
 * although the weights could hardly agree without it: "architecture: llama here, qwen2 there" is the better answer. */
static firn_status add_fields(firn_model *model, firn_error *err)
{
    char rope[FIRNI_ROPES_MAX][400];
    static const char *const rope_names[FIRNI_ROPES_MAX] = { "rope", "rope.1" };
    char block[16];
    firn_identity *identity = model->identity;
    const firn_digest tokenizer = firn_tokenizer_digest(model->tokenizer);
    const uint32_t n_ropes = model->hparams.n_ropes;
    for (uint32_t i = 0; i < n_ropes; i++) {
        firni_rope_describe(&model->hparams.ropes[i], rope[i], sizeof rope[i]);
    }
    (void)snprintf(block, sizeof block, "%u", FIRN_BLOCK_TOKENS);
    firn_status status = firn_identity_add(identity, "architecture", model->arch->name, err);
    if (status == FIRN_OK) {
        status = add_digest(identity, "weights", model->fingerprint, err);
    }
    if (status == FIRN_OK) {
        status = add_digest(identity, "tokenizer", tokenizer.bytes, err);
    }
    for (uint32_t i = 0; i < n_ropes && status == FIRN_OK; i++) {
        status = firn_identity_add(identity, rope_names[i], rope[i], err);
    }
    if (status == FIRN_OK) {
        status = firn_identity_add(identity, "kv_dtype", model->kv_name, err);
    }
    if (status == FIRN_OK) {
        status = firn_identity_add(identity, "arithmetic", FIRNI_ARITHMETIC_VERSION, err);
    }
    if (status == FIRN_OK) {
        status = firn_identity_add(identity, "block_tokens", block, err);
    }
    return status == FIRN_OK ? add_layers(model, err) : status;
}

firn_status firni_model_build_schema(firn_model *model, firn_error *err)
{
    firn_status status = firn_identity_create(model->env, &model->identity, err);
    if (status == FIRN_OK) {
        status = add_fields(model, err);
    }
    if (status != FIRN_OK) {
        return status;
    }
    model->schema = (firn_schema){
        .layers = model->cache_options,
        .n_layers = model->hparams.n_caches,
        .identity = firn_identity_digest(model->identity),
        .identity_text = firn_identity_text(model->identity),
    };
    return FIRN_OK;
}
