/*
 * What tests of tiers share: a small model's schema, caches whose content is a function of their tokens, and the
 * comparison of restored state with what it must be.
 */
#ifndef FIRN_TESTS_TIER_FIXTURE_H
#define FIRN_TESTS_TIER_FIXTURE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "firn/disk.h"
#include "support/support.h"

#define FIXTURE_LAYERS     2u
#define FIXTURE_TOKENS_MAX 4096u

typedef struct fixture_options {
    const char *weights;   /* part of the identity; default "w1" */
    const char *tokenizer; /* default "t1" */
    firn_dtype dtype;      /* default f16 */
    uint32_t n_kv_heads;   /* default 2 */
    uint32_t head_dim;     /* default 8 */
} fixture_options;

typedef struct fixture {
    const firn_env *env;
    firn_pool *pool;
    firn_cache_options layers[FIXTURE_LAYERS];
    firn_identity *identity;
    firn_schema schema;
} fixture;

static inline void fixture_init(fixture *fix, const firn_env *env, const fixture_options *options)
{
    static const fixture_options defaults = { 0 };
    options = options != NULL ? options : &defaults;
    memset(fix, 0, sizeof *fix);
    fix->env = env;
    const firn_pool_options pool_options = { .budget_bytes = 256u << 20 };
    assert_ok(firn_pool_create(&pool_options, env, &fix->pool, NULL));
    char text[128];
    assert_ok(firn_identity_create(env, &fix->identity, NULL));
    assert_ok(firn_identity_add(fix->identity, "weights", options->weights != NULL ? options->weights : "w1", NULL));
    assert_ok(
        firn_identity_add(fix->identity, "tokenizer", options->tokenizer != NULL ? options->tokenizer : "t1", NULL));
    for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
        fix->layers[i] = (firn_cache_options){ .layout = "kv:plain",
                                               .dtype = options->dtype != 0 ? options->dtype : FIRN_DTYPE_F16,
                                               .n_kv_heads = options->n_kv_heads != 0 ? options->n_kv_heads : 2,
                                               .head_dim = options->head_dim != 0 ? options->head_dim : 8,
                                               .kernel = "scalar" };
        firn_cache *cache;
        assert_ok(firn_cache_create(&fix->layers[i], fix->pool, env, &cache, NULL));
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%u", i);
        (void)snprintf(text, sizeof text, "%s", firn_cache_describe(cache));
        assert_ok(firn_identity_add(fix->identity, name, text, NULL));
        firn_cache_destroy(cache);
    }
    fix->schema = (firn_schema){ .layers = fix->layers,
                                 .n_layers = FIXTURE_LAYERS,
                                 .identity = firn_identity_digest(fix->identity),
                                 .identity_text = firn_identity_text(fix->identity) };
}

static inline void fixture_deinit(fixture *fix)
{
    firn_identity_destroy(fix->identity);
    firn_pool_stats stats;
    firn_pool_get_stats(fix->pool, &stats);
    assert_int_equal(stats.n_blocks, 0); /* nothing kept a block */
    firn_pool_destroy(fix->pool);
}

static inline uint64_t fixture_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* One serial cache per layer; key and value of a position depend on all tokens up to it. */
static inline void fixture_make_caches(const fixture *fix, const firn_token *tokens, uint32_t n_tokens,
                                       firn_cache *caches[FIXTURE_LAYERS])
{
    const uint32_t width = fix->layers[0].n_kv_heads * fix->layers[0].head_dim;
    float *k = malloc(((size_t)n_tokens * width + 1) * sizeof *k);
    float *v = malloc(((size_t)n_tokens * width + 1) * sizeof *v);
    assert_non_null(k);
    assert_non_null(v);
    for (uint32_t layer = 0; layer < FIXTURE_LAYERS; layer++) {
        uint64_t prefix = layer + 1;
        for (uint32_t i = 0; i < n_tokens; i++) {
            prefix = fixture_mix(prefix ^ tokens[i]);
            for (uint32_t j = 0; j < width; j++) {
                const uint64_t x = fixture_mix(prefix + j);
                k[(size_t)i * width + j] = (float)(int32_t)x / 2147483648.0f;
                v[(size_t)i * width + j] = (float)(int32_t)(x >> 32) / 2147483648.0f;
            }
        }
        assert_ok(firn_cache_create(&fix->layers[layer], fix->pool, fix->env, &caches[layer], NULL));
        assert_ok(firn_cache_add_row(caches[layer], NULL));
        const firn_append_input input = { .k = k, .v = v };
        assert_ok(firn_cache_append(caches[layer], &input, &n_tokens, NULL, NULL));
    }
    free(k);
    free(v);
}

static inline void fixture_destroy_caches(firn_cache *caches[FIXTURE_LAYERS])
{
    for (uint32_t layer = 0; layer < FIXTURE_LAYERS; layer++) {
        firn_cache_destroy(caches[layer]);
        caches[layer] = NULL;
    }
}

static inline bool fixture_store_with(const fixture *fix, firn_tier *tier, const char *ns, const firn_token *tokens,
                                      uint32_t n_tokens, const firn_attachment *attachments, uint32_t n_attachments,
                                      firn_reason *reason)
{
    firn_cache *caches[FIXTURE_LAYERS];
    const firn_cache *borrowed[FIXTURE_LAYERS];
    fixture_make_caches(fix, tokens, n_tokens, caches);
    for (uint32_t i = 0; i < FIXTURE_LAYERS; i++) {
        borrowed[i] = caches[i];
    }
    const firn_store_input input = { .tokens = tokens,
                                     .n_tokens = n_tokens,
                                     .caches = borrowed,
                                     .n_caches = FIXTURE_LAYERS,
                                     .ns = ns,
                                     .attachments = attachments,
                                     .n_attachments = n_attachments };
    const bool stored = firn_tier_store(tier, &input, reason);
    fixture_destroy_caches(caches);
    return stored;
}

/* Stores the state of these tokens; returns NONE or why not. */
static inline firn_reason fixture_store(const fixture *fix, firn_tier *tier, const char *ns, const firn_token *tokens,
                                        uint32_t n_tokens)
{
    firn_reason reason;
    (void)fixture_store_with(fix, tier, ns, tokens, n_tokens, NULL, 0, &reason);
    return reason;
}

/* Whether `cache` holds bit for bit what `expected` holds: whole blocks as memory, the rest through the dense view. */
static inline bool fixture_cache_equal(const firn_cache *cache, const firn_cache *expected)
{
    const firn_row_view a = firn_cache_view_row(cache, 0), b = firn_cache_view_row(expected, 0);
    if (a.n_tokens != b.n_tokens || a.n_blocks != b.n_blocks) {
        return false;
    }
    for (uint32_t i = 0; i < a.n_tokens / FIRN_BLOCK_TOKENS; i++) {
        if (memcmp(firn_block_data(a.blocks[i]), firn_block_data(b.blocks[i]), firn_block_bytes(b.blocks[i])) != 0) {
            return false;
        }
    }
    firn_tensor ta[FIRN_CACHE_STATE_TENSORS_MAX], tb[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_a = 0, n_b = 0;
    assert_ok(firn_cache_state(cache, ta, &n_a, NULL));
    assert_ok(firn_cache_state(expected, tb, &n_b, NULL));
    bool equal = n_a == n_b;
    for (uint32_t t = 0; t < n_a; t++) {
        equal = equal && ta[t].n_bytes == tb[t].n_bytes && memcmp(ta[t].data, tb[t].data, ta[t].n_bytes) == 0;
        firn_tensor_deinit(&ta[t]);
    }
    for (uint32_t t = 0; t < n_b; t++) {
        firn_tensor_deinit(&tb[t]);
    }
    return equal;
}

/* Fails the test unless the restored state is the state of exactly these tokens, in every layer. */
static inline void fixture_assert_state(const fixture *fix, const firn_restored *restored, const firn_token *tokens,
                                        uint32_t n_tokens)
{
    assert_int_equal(restored->n_tokens, n_tokens);
    assert_int_equal(restored->n_caches, FIXTURE_LAYERS);
    assert_memory_equal(restored->tokens, tokens, n_tokens * sizeof *tokens);
    firn_cache *expected[FIXTURE_LAYERS];
    fixture_make_caches(fix, tokens, n_tokens, expected);
    for (uint32_t layer = 0; layer < FIXTURE_LAYERS; layer++) {
        firn_cache_check(restored->caches[layer]);
        assert_int_equal(firn_cache_batch_size(restored->caches[layer]), 1);
        assert_int_equal(firn_cache_row_tokens(restored->caches[layer], 0), n_tokens);
        if (!fixture_cache_equal(restored->caches[layer], expected[layer])) {
            fail_msg("layer %u of %u tokens has other bytes", layer, n_tokens);
        }
    }
    fixture_destroy_caches(expected);
}

/* Looks up, restores, compares; returns the length of the prefix that was restored, 0 for a miss with its reason. */
static inline uint32_t fixture_fetch(const fixture *fix, firn_tier *tier, const char *ns, const firn_token *tokens,
                                     uint32_t n_tokens, firn_reason *reason)
{
    const firn_match match = firn_tier_find(tier, tokens, n_tokens, ns);
    *reason = match.reason;
    if (match.handle == NULL) {
        return 0;
    }
    firn_restored restored;
    *reason = firn_tier_restore(tier, match.handle, 0, &restored);
    uint32_t n_restored = 0;
    if (*reason == FIRN_REASON_NONE) {
        n_restored = match.prefix_len;
        fixture_assert_state(fix, &restored, tokens, n_restored);
    }
    firn_restored_deinit(&restored);
    firn_tier_release(tier, match.handle);
    return n_restored;
}

static inline void fixture_random_tokens(test_rng *rng, firn_token *tokens, uint32_t n_tokens)
{
    for (uint32_t i = 0; i < n_tokens; i++) {
        tokens[i] = (firn_token)test_rng_below(rng, 50000);
    }
}

static inline firn_tier *fixture_open(const fixture *fix, const char *dir, const firn_disk_options *more)
{
    firn_disk_options options = more != NULL ? *more : (firn_disk_options){ 0 };
    options.dir = dir;
    options.schema = &fix->schema;
    options.pool = fix->pool;
    firn_tier *tier = NULL;
    firn_error err = { 0 };
    if (firn_disk_open(&options, fix->env, &tier, &err) != FIRN_OK) {
        fail_msg("cannot open %s: %s", dir, err.message);
    }
    return tier;
}

static inline void fixture_check(firn_tier *tier)
{
    firn_error err = { 0 };
    if (firn_disk_check(tier, &err) != FIRN_OK) {
        fail_msg("%s", err.message);
    }
}

/* Physical bytes of one file; 0 when it is not there. */
static inline uint64_t fixture_file_bytes(const char *dir, const char *name)
{
    char path[900];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (uint64_t)st.st_blocks * 512u : 0;
}

/* What the tier's files occupy, by the tests' own walk. */
static inline uint64_t fixture_disk_bytes(const char *dir)
{
    uint64_t n_bytes = fixture_file_bytes(dir, "firn.lock") + fixture_file_bytes(dir, "index/data.mdb") +
                       fixture_file_bytes(dir, "index/lock.mdb");
    DIR *open_dir = opendir(dir);
    assert_non_null(open_dir);
    for (const struct dirent *found = readdir(open_dir); found != NULL; found = readdir(open_dir)) {
        n_bytes += strncmp(found->d_name, "seg-", 4) == 0 ? fixture_file_bytes(dir, found->d_name) : 0;
    }
    closedir(open_dir);
    return n_bytes;
}

/* Asserts that what the tier says it occupies is what lies on disk; returns the statistics. The tier's own upkeep may
 * commit between the two looks: they count only when nothing has changed from before the look at the disk to after it. */
static inline firn_tier_stats fixture_assert_books(firn_tier *tier, const char *dir)
{
    firn_tier_stats before, after;
    uint64_t n_bytes;
    do {
        firn_tier_get_stats(tier, &before);
        n_bytes = fixture_disk_bytes(dir);
        firn_tier_get_stats(tier, &after);
    } while (before.physical_bytes != after.physical_bytes);
    assert_int_equal(after.physical_bytes, n_bytes);
    return after;
}

#endif
