/*
 * Remembered walks: the blocks that the last lookups found, so that a conversation that goes on is not searched for
 * again block by block. In an index of a million records each of those searches waits for memory several times; to
 * compare tokens that lie in a row costs a fraction of it.
 *
 *      memo     root --[64]--> d1 --[64]--> d2 --[64]--> d3          as they were found, with their tokens
 *      prompt   root --[64]--> d1 --[64]--> d2 --[64 others]--> ?    two blocks; the index is asked from d2 on
 *
 * Tokens are compared as such, never digests alone. A memo is exact: it is made of what a handle was just promised, and
 * forgotten as soon as one of its records is condemned or suspect, before that is visible in the index (disk_evict.c).
 * Who began to use it before is told by the epoch, as every lookup is. Entries count as used when their memo was made,
 * which is when their chain was.
 *
 * Guarded by disk->mutex: the list. A memo itself never changes, and is freed with its last reference.
 */
#include <assert.h>
#include <string.h>

#include "tier/disk/disk_impl.h"

#define BLOCKS_MIN 16u   /* of a memo: shorter walks are quick */
#define BLOCKS_MAX 8192u /* 3 MiB: longer ones are remembered so far */

struct firni_memo {
    const firn_env *env;
    atomic_uint refs;
    firn_digest root;
    uint32_t n_blocks;
    firn_token *tokens;   /* [n_blocks][64] */
    firni_entry *entries; /* [n_blocks] */
};

static void unref(firni_memo *memo)
{
    if (memo != NULL && atomic_fetch_sub(&memo->refs, 1) == 1) {
        firni_free(memo->env, memo->tokens);
        firni_free(memo->env, memo->entries);
        firni_free(memo->env, memo);
    }
}

/* The first blocks of the handle. NULL without memory. */
static firni_memo *create(const firni_disk *disk, const firn_tier_handle *handle, uint32_t n_blocks)
{
    const firn_env *env = disk->env;
    firni_memo *memo = firni_calloc(env, 1, sizeof *memo);
    if (memo == NULL) {
        return NULL;
    }
    *memo = (firni_memo){ .env = env, .refs = 1, .root = handle->roots[0], .n_blocks = n_blocks };
    memo->tokens = firni_calloc(env, (size_t)n_blocks * FIRN_BLOCK_TOKENS, sizeof *memo->tokens);
    memo->entries = firni_calloc(env, n_blocks, sizeof *memo->entries);
    if (memo->tokens == NULL || memo->entries == NULL) {
        unref(memo);
        return NULL;
    }
    memcpy(memo->tokens, handle->tokens, (size_t)n_blocks * FIRN_BLOCK_TOKENS * sizeof *memo->tokens);
    const uint64_t now = firni_wall_ns(env);
    for (uint32_t i = 0; i < n_blocks; i++) {
        memo->entries[i] = handle->entries[i];
        memo->entries[i].stamp = now > memo->entries[i].stamp ? now : memo->entries[i].stamp;
    }
    return memo;
}

/* ---- forgetting -------------------------------------------------------------------------------------------------- */

/* Out of the list; the other memos keep their order, the latest used first. */
static void remove_locked(firni_disk *disk, uint32_t at)
{
    unref(disk->memos[at]);
    disk->n_memos--;
    memmove(&disk->memos[at], &disk->memos[at + 1], (disk->n_memos - at) * sizeof disk->memos[0]);
}

void firni_memo_forget_locked(firni_disk *disk, const firni_entry *entry)
{
    const uint32_t block = entry->first_token / FIRN_BLOCK_TOKENS;
    for (uint32_t i = disk->n_memos; i-- > 0;) {
        const firni_memo *memo = disk->memos[i];
        if (block < memo->n_blocks && firni_digest_equal(&memo->entries[block].digest, &entry->digest)) {
            remove_locked(disk, i);
        }
    }
}

void firni_memo_forget_all_locked(firni_disk *disk)
{
    while (disk->n_memos > 0) {
        remove_locked(disk, disk->n_memos - 1);
    }
}

/* ---- using ------------------------------------------------------------------------------------------------------- */

/* Blocks that prompt and memo have in common. */
static uint32_t common_blocks(const firni_memo *memo, const firn_token *tokens, uint32_t n_tokens)
{
    const uint32_t n_blocks = n_tokens / FIRN_BLOCK_TOKENS;
    const uint32_t n_max = n_blocks < memo->n_blocks ? n_blocks : memo->n_blocks;
    uint32_t n = 0;
    while (n < n_max && memcmp(memo->tokens + (size_t)n * FIRN_BLOCK_TOKENS, tokens + (size_t)n * FIRN_BLOCK_TOKENS,
                               FIRN_BLOCK_TOKENS * sizeof *tokens) == 0) {
        n++;
    }
    return n;
}

uint32_t firni_memo_recall(firni_disk *disk, const firn_token *tokens, uint32_t n_tokens, firn_tier_handle *handle)
{
    firni_memo *memos[FIRNI_MEMOS_MAX];
    uint32_t n_memos = 0, n_best = 0;
    const firni_memo *best = NULL;
    if (n_tokens < BLOCKS_MIN * FIRN_BLOCK_TOKENS) {
        return 0;
    }
    pthread_mutex_lock(&disk->mutex);
    for (uint32_t i = 0; i < disk->n_memos; i++) {
        if (firni_digest_equal(&disk->memos[i]->root, &handle->roots[0])) {
            memos[n_memos] = disk->memos[i];
            atomic_fetch_add(&memos[n_memos++]->refs, 1);
        }
    }
    pthread_mutex_unlock(&disk->mutex);
    for (uint32_t i = 0; i < n_memos; i++) {
        const uint32_t n = common_blocks(memos[i], tokens, n_tokens);
        if (n > n_best) {
            n_best = n;
            best = memos[i];
        }
    }
    if (best != NULL) {
        memcpy(handle->tokens, tokens, (size_t)n_best * FIRN_BLOCK_TOKENS * sizeof *tokens);
        memcpy(handle->entries, best->entries, n_best * sizeof *handle->entries);
        handle->n_records = n_best;
    }
    for (uint32_t i = 0; i < n_memos; i++) {
        unref(memos[i]);
    }
    return n_best;
}

/* A memo that says as much as the handle becomes the latest. With a time to live a new one is better: it is younger. */
static bool reuse_locked(firni_disk *disk, const firn_tier_handle *handle, uint32_t n_blocks)
{
    for (uint32_t i = 0; i < disk->n_memos && disk->options.ttl_ns == 0; i++) {
        firni_memo *memo = disk->memos[i];
        if (memo->n_blocks >= n_blocks && firni_digest_equal(&memo->root, &handle->roots[0]) &&
            firni_digest_equal(&memo->entries[n_blocks - 1].digest, &handle->entries[n_blocks - 1].digest)) {
            memmove(&disk->memos[1], &disk->memos[0], i * sizeof disk->memos[0]);
            disk->memos[0] = memo;
            return true;
        }
    }
    return false;
}

/* Whether the memo says no more than the handle: it is a beginning of it. Then the longer one takes its place. */
static bool is_covered(const firni_memo *memo, const firn_tier_handle *handle, uint32_t n_blocks)
{
    return memo->n_blocks <= n_blocks && firni_digest_equal(&memo->root, &handle->roots[0]) &&
           firni_digest_equal(&memo->entries[memo->n_blocks - 1].digest, &handle->entries[memo->n_blocks - 1].digest);
}

void firni_memo_keep(firni_disk *disk, const firn_tier_handle *handle, uint64_t epoch)
{
    uint32_t n_blocks = handle->n_records;
    while (n_blocks > 0 && handle->entries[n_blocks - 1].kind != FIRNI_RECORD_BLOCK) {
        n_blocks--;
    }
    n_blocks = n_blocks < BLOCKS_MAX ? n_blocks : BLOCKS_MAX;
    /* Another process may be the writer of what is only read here, and tells nobody what it removes. */
    if (n_blocks < BLOCKS_MIN || disk->options.read_only || handle->n_levels > 1) {
        return;
    }
    pthread_mutex_lock(&disk->mutex);
    const bool is_known = reuse_locked(disk, handle, n_blocks);
    pthread_mutex_unlock(&disk->mutex);
    if (is_known) {
        return;
    }
    firni_memo *memo = create(disk, handle, n_blocks);
    if (memo == NULL) {
        return; /* the next lookup is slower, no more */
    }
    pthread_mutex_lock(&disk->mutex);
    if (disk->epoch == epoch && disk->n_condemned == 0 && disk->n_suspects == 0 && disk->volume != NULL &&
        disk->volume->generation == handle->generation) {
        for (uint32_t i = disk->n_memos; i-- > 0;) {
            if (is_covered(disk->memos[i], handle, n_blocks)) {
                remove_locked(disk, i);
            }
        }
        if (disk->n_memos == FIRNI_MEMOS_MAX) {
            remove_locked(disk, FIRNI_MEMOS_MAX - 1);
        }
        memmove(&disk->memos[1], &disk->memos[0], disk->n_memos * sizeof disk->memos[0]);
        disk->memos[0] = memo;
        disk->n_memos++;
        memo = NULL;
    }
    pthread_mutex_unlock(&disk->mutex);
    unref(memo);
}
