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
#include <time.h>
#include <unistd.h>

#include "firn/disk.h"
#include "support/support.h"

#define FIXTURE_LAYERS_MAX 4u
#define FIXTURE_TOKENS_MAX 4096u
#define FIXTURE_CHUNK      37u
#define FIXTURE_WINDOW     100u /* of the first window layer; a second one sees half of it */

/* For a program whose time is that of its syncs, hundreds of stores of which each is some, on a disk that takes
 * milliseconds for one: its directories lie in memory, where the system has a place for them. Direct I/O is left to
 * those programs that do not call this. */
static inline void fixture_use_memory(void)
{
    if (access("/dev/shm", W_OK) == 0) {
        (void)setenv("TMPDIR", "/dev/shm", 1);
    }
}

/* Which storage families the model's layers are of. */
typedef enum fixture_schema {
    FIXTURE_PLAIN,        /* plain, plain */
    FIXTURE_WINDOWS,      /* window, plain, shorter window */
    FIXTURE_STATES,       /* state, plain, blocks with a state */
    FIXTURE_ALL,          /* window, state, plain */
    FIXTURE_STATES_ONLY,  /* state, state: no token blocks at all */
    FIXTURE_WINDOWS_ONLY, /* window */
    FIXTURE_SCHEMAS,
    FIXTURE_LATE = FIXTURE_SCHEMAS, /* plain, and a state that cannot be resumed before token 80: for its own test */
    FIXTURE_SCHEMAS_ALL
} fixture_schema;

static const char *const fixture_schema_names[FIXTURE_SCHEMAS_ALL] = {
    "plain", "plain and windows", "plain and states", "plain, window and state", "states only", "a window only", "late",
};

typedef struct fixture_options {
    fixture_schema schema; /* default plain */
    const char *weights;   /* part of the identity; default "w1" */
    const char *tokenizer; /* default "t1" */
    firn_dtype dtype;      /* default f16 */
    uint32_t n_kv_heads;   /* default 2 */
    uint32_t head_dim;     /* default 8 */
} fixture_options;

typedef struct fixture {
    const firn_env *env;
    firn_pool *pool;
    firn_cache_options layers[FIXTURE_LAYERS_MAX];
    uint32_t n_layers;
    bool has_states, has_windows;
    firn_identity *identity;
    firn_schema schema;
} fixture;

typedef struct fixture_layer {
    const char *layout; /* NULL: no more layers */
    uint32_t window;
} fixture_layer;

static const fixture_layer fixture_schemas[FIXTURE_SCHEMAS_ALL][FIXTURE_LAYERS_MAX] = {
    [FIXTURE_PLAIN] = { { "kv:plain", 0 }, { "kv:plain", 0 } },
    [FIXTURE_WINDOWS] = { { "kv:window", FIXTURE_WINDOW }, { "kv:plain", 0 }, { "kv:window", FIXTURE_WINDOW / 2 } },
    [FIXTURE_STATES] = { { "test:state", 0 }, { "kv:plain", 0 }, { "test:both", 0 } },
    [FIXTURE_ALL] = { { "kv:window", FIXTURE_WINDOW }, { "test:state", 0 }, { "kv:plain", 0 } },
    [FIXTURE_STATES_ONLY] = { { "test:state", 0 }, { "test:state", 0 } },
    [FIXTURE_WINDOWS_ONLY] = { { "kv:window", FIXTURE_WINDOW } },
    [FIXTURE_LATE] = { { "kv:plain", 0 }, { "test:late", 0 } },
};

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
    const fixture_layer *wanted = fixture_schemas[options->schema];
    for (uint32_t i = 0; i < FIXTURE_LAYERS_MAX && wanted[i].layout != NULL; i++) {
        const bool is_state = strncmp(wanted[i].layout, "test:", 5) == 0;
        fix->layers[i] = (firn_cache_options){ .layout = wanted[i].layout,
                                               .dtype = is_state            ? 0
                                                        : options->dtype != 0 ? options->dtype
                                                                              : FIRN_DTYPE_F16,
                                               .n_kv_heads = options->n_kv_heads != 0 ? options->n_kv_heads : 2,
                                               .head_dim = options->head_dim != 0 ? options->head_dim : 8,
                                               .window = wanted[i].window,
                                               .kernel = "scalar" };
        firn_cache *cache;
        assert_ok(firn_cache_create(&fix->layers[i], fix->pool, env, &cache, NULL));
        char name[32];
        (void)snprintf(name, sizeof name, "layer.%u", i);
        (void)snprintf(text, sizeof text, "%s", firn_cache_describe(cache));
        assert_ok(firn_identity_add(fix->identity, name, text, NULL));
        fix->has_states = fix->has_states || is_state;
        fix->has_windows = fix->has_windows || wanted[i].window > 0;
        fix->n_layers = i + 1;
        firn_cache_destroy(cache);
    }
    fix->schema = (firn_schema){ .layers = fix->layers,
                                 .n_layers = fix->n_layers,
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

/* One serial cache per layer; key and value of a position depend on all tokens up to it. Appended in chunks, as an
 * engine does, so that window layers let their old blocks go. */
static inline void fixture_make_caches(const fixture *fix, const firn_token *tokens, uint32_t n_tokens,
                                       firn_cache *caches[FIXTURE_LAYERS_MAX])
{
    const uint32_t width = fix->layers[0].n_kv_heads * fix->layers[0].head_dim;
    float *k = malloc(((size_t)n_tokens * width + 1) * sizeof *k);
    float *v = malloc(((size_t)n_tokens * width + 1) * sizeof *v);
    assert_non_null(k);
    assert_non_null(v);
    for (uint32_t layer = 0; layer < fix->n_layers; layer++) {
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
        for (uint32_t at = 0; at < n_tokens; at += FIXTURE_CHUNK) {
            const uint32_t n = n_tokens - at < FIXTURE_CHUNK ? n_tokens - at : FIXTURE_CHUNK;
            const firn_append_input input = { .k = k + (size_t)at * width, .v = v + (size_t)at * width };
            assert_ok(firn_cache_append(caches[layer], &input, &n, NULL, NULL));
        }
        firn_cache_settle(caches[layer]);
    }
    free(k);
    free(v);
}

static inline void fixture_destroy_caches(firn_cache *caches[FIXTURE_LAYERS_MAX])
{
    for (uint32_t layer = 0; layer < FIXTURE_LAYERS_MAX; layer++) {
        firn_cache_destroy(caches[layer]);
        caches[layer] = NULL;
    }
}

static inline bool fixture_store_with(const fixture *fix, firn_tier *tier, const char *ns, const firn_token *tokens,
                                      uint32_t n_tokens, const firn_attachment *attachments, uint32_t n_attachments,
                                      firn_reason *reason)
{
    firn_cache *caches[FIXTURE_LAYERS_MAX] = { NULL };
    const firn_cache *borrowed[FIXTURE_LAYERS_MAX];
    fixture_make_caches(fix, tokens, n_tokens, caches);
    for (uint32_t i = 0; i < fix->n_layers; i++) {
        borrowed[i] = caches[i];
    }
    const firn_store_input input = { .tokens = tokens,
                                     .n_tokens = n_tokens,
                                     .caches = borrowed,
                                     .n_caches = fix->n_layers,
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

/* Whether two blocks of the layer have the same bits in their first n tokens. The tokens of a plane lie along the last
 * axis of keys, the middle one of values, the first one of the lanes of test:both. */
static inline bool fixture_lanes_equal(const firn_cache *cache, const firn_block *a, const firn_block *b, uint32_t n)
{
    firn_plane planes[FIRN_CACHE_PLANES_MAX];
    const uint32_t n_planes = firn_cache_planes(cache, planes);
    for (uint32_t p = 0; p < n_planes; p++) {
        const firn_plane *plane = &planes[p];
        const uint32_t axis = strcmp(plane->name, "k") == 0 ? 2 : strcmp(plane->name, "v") == 0 ? 1 : 0;
        size_t n_outer = 1, n_inner_bytes = firn_dtype_bytes(plane->dtype);
        for (uint32_t d = 0; d < plane->n_dims; d++) {
            n_outer *= d < axis ? plane->shape[d] : 1;
            n_inner_bytes *= d > axis ? plane->shape[d] : 1;
        }
        assert_int_equal(plane->shape[axis], FIRN_BLOCK_TOKENS);
        for (size_t o = 0; o < n_outer; o++) {
            const size_t offset = plane->offset_bytes + o * FIRN_BLOCK_TOKENS * n_inner_bytes;
            if (memcmp(firn_block_data(a) + offset, firn_block_data(b) + offset, n * n_inner_bytes) != 0) {
                return false;
            }
        }
    }
    return true;
}

/* Whether `cache` holds bit for bit what `expected` holds: states and whole blocks as memory, a last block as far as it
 * has tokens. */
static inline bool fixture_cache_equal(const firn_cache *cache, const firn_cache *expected)
{
    const firn_row_view a = firn_cache_view_row(cache, 0), b = firn_cache_view_row(expected, 0);
    if (a.n_tokens != b.n_tokens || a.first_block != b.first_block || a.n_blocks != b.n_blocks ||
        (a.fixed != NULL) != (b.fixed != NULL)) {
        return false;
    }
    bool equal = a.fixed == NULL ||
                 memcmp(firn_block_data(a.fixed), firn_block_data(b.fixed), firn_block_bytes(b.fixed)) == 0;
    for (uint32_t i = 0; i < a.n_blocks && equal; i++) {
        const uint32_t n = a.n_tokens - (a.first_block + i) * FIRN_BLOCK_TOKENS;
        equal = n >= FIRN_BLOCK_TOKENS
                    ? memcmp(firn_block_data(a.blocks[i]), firn_block_data(b.blocks[i]),
                             firn_block_bytes(b.blocks[i])) == 0
                    : fixture_lanes_equal(cache, a.blocks[i], b.blocks[i], n);
    }
    return equal;
}

/* Fails the test unless the restored state is the state of exactly these tokens, in every layer. */
static inline void fixture_assert_state(const fixture *fix, const firn_restored *restored, const firn_token *tokens,
                                        uint32_t n_tokens)
{
    assert_int_equal(restored->n_tokens, n_tokens);
    assert_int_equal(restored->n_caches, fix->n_layers);
    assert_memory_equal(restored->tokens, tokens, n_tokens * sizeof *tokens);
    firn_cache *expected[FIXTURE_LAYERS_MAX] = { NULL };
    fixture_make_caches(fix, tokens, n_tokens, expected);
    for (uint32_t layer = 0; layer < fix->n_layers; layer++) {
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

/* Keys of encrypted stores. */
static const uint8_t fixture_key[FIRN_DISK_KEY_BYTES] = { 7, 1, 4, 9, 2, 200, 131, 77 };
static const uint8_t fixture_other_key[FIRN_DISK_KEY_BYTES] = { 7, 1, 4, 9, 2, 200, 131, 78 };

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
        const bool is_counted = strncmp(found->d_name, "seg-", 4) == 0 || strncmp(found->d_name, "ledger-", 7) == 0;
        n_bytes += is_counted ? fixture_file_bytes(dir, found->d_name) : 0;
    }
    closedir(open_dir);
    return n_bytes;
}

/* Asserts that what the tier says it occupies is what lies on disk; returns the statistics. The tier's own upkeep may
 * commit between the two looks, or have punched a range and not counted it yet: only a difference that stays is one. */
static inline firn_tier_stats fixture_assert_books(firn_tier *tier, const char *dir)
{
    const struct timespec pause = { .tv_nsec = 2000000 };
    firn_tier_stats after;
    uint64_t n_bytes = 0;
    for (unsigned look = 0; look < 500; look++) {
        n_bytes = fixture_disk_bytes(dir);
        firn_tier_get_stats(tier, &after);
        if (after.physical_bytes == n_bytes) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    assert_int_equal(after.physical_bytes, n_bytes);
    return after;
}

#endif
