/*
 * A large store: how long it takes to open, and to look up prompts of 1k, 32k and 128k tokens in it.
 *
 *   bench_store [--tiny] [--records N]... [--dir DIR]
 *
 * Opening and looking up read the index alone, so the store is made of it alone: chains of 2,000 blocks are named
 * through the functions that a store uses, in segments that are files without blocks. Wall time, medians with the
 * spread; each lookup is checked before it is timed. A store that has just been made is in the page cache.
 */
#define BENCH_NAME "bench_store"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "bench_common.h"
#include "bench_dir.h"
#include "tier/disk/disk_impl.h"

enum { OPENS = 9, LOOKUPS = 41, CHAIN_BLOCKS = 2000, BATCH = 20000, RECORD_BYTES = 8192, SEGMENT_RECORDS = 32768 };

static void check_code(firni_code code)
{
    if (code != 0) {
        fatal(mdb_strerror(code));
    }
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void print_times(const char *what, double *ms, int n)
{
    qsort(ms, (size_t)n, sizeof *ms, compare_doubles);
    printf("  %-28s %9.3f ms   (%.3f .. %.3f)\n", what, ms[n / 2], ms[0], ms[n - 1]);
}

/* Token i of a chain: no two chains share one at the same place. */
static firn_token token_of(uint32_t chain, uint32_t i)
{
    return (chain * 2654435761u + i * 40503u) % 128256u;
}

/* ---- making the store -------------------------------------------------------------------------------------------- */

static void make_segments(const char *dir, uint32_t n_records)
{
    for (uint32_t id = 1; (uint64_t)(id - 1) * SEGMENT_RECORDS < n_records; id++) {
        char path[2 * FIRNI_DISK_PATH_MAX];
        (void)snprintf(path, sizeof path, "%s/seg-%08" PRIu32 ".firn", dir, id);
        const int fd = open(path, O_RDWR | O_CREAT, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)SEGMENT_RECORDS * RECORD_BYTES) != 0 || close(fd) != 0) {
            perror(path);
            exit(1);
        }
    }
}

/* Entries as a store leaves them: within a chain the first record has the highest stamp. */
static void make_store(const char *dir, const firn_schema *schema, uint32_t n_records)
{
    firn_error err;
    firni_volume *volume;
    uint64_t last_stamp;
    const firni_volume_options options = { .dir = dir, .create = true, .budget_bytes = UINT64_C(1) << 40 };
    check_ok(firni_volume_open(&options, NULL, &volume, &last_stamp, &err), &err);
    (void)mdb_env_set_flags(volume->index.env, MDB_NOSYNC, 1);
    const firn_digest root = firn_chain_root(&schema->identity, NULL);
    MDB_txn *txn = NULL;
    firn_digest parent = root;
    for (uint32_t i = 0; i < n_records; i++) {
        const uint32_t chain = i / CHAIN_BLOCKS, block = i % CHAIN_BLOCKS;
        firn_token tokens[FIRN_BLOCK_TOKENS];
        for (uint32_t t = 0; t < FIRN_BLOCK_TOKENS; t++) {
            tokens[t] = token_of(chain, block * FIRN_BLOCK_TOKENS + t);
        }
        parent = block == 0 ? root : parent;
        const firni_key key = firni_key_make(FIRNI_RECORDS, &parent, tokens, FIRN_BLOCK_TOKENS);
        firni_entry entry = {
            .kind = FIRNI_RECORD_BLOCK,
            .first_token = block * FIRN_BLOCK_TOKENS,
            .n_tokens = FIRN_BLOCK_TOKENS,
            .n_full = 1,
            .place = { .segment = 1 + i / SEGMENT_RECORDS,
                       .offset = (uint64_t)(i % SEGMENT_RECORDS) * RECORD_BYTES,
                       .n_bytes = RECORD_BYTES },
            .created_wall_ns = 1,
            .stamp = UINT64_C(1000000) + (uint64_t)chain * 2 * CHAIN_BLOCKS + CHAIN_BLOCKS - block,
            .digest = firn_chain_extend(&parent, tokens, FIRN_BLOCK_TOKENS),
            .root = root,
        };
        if (txn == NULL) {
            check_code(firni_index_begin(&volume->index, false, &txn));
        }
        check_code(firni_index_add(&volume->index, txn, &key, &entry, schema, ""));
        if (i % BATCH == BATCH - 1 || i + 1 == n_records) {
            check_code(mdb_txn_commit(txn));
            txn = NULL;
        }
        parent = entry.digest;
    }
    firni_volume_close(volume);
    make_segments(dir, n_records);
}

/* ---- timing ------------------------------------------------------------------------------------------------------ */

static firn_tier *open_store(const char *dir, const firn_schema *schema, firn_pool *pool)
{
    firn_error err;
    firn_tier *tier;
    const firn_disk_options options = {
        .dir = dir, .schema = schema, .pool = pool, .budget_bytes = UINT64_C(1) << 40
    };
    check_ok(firn_disk_open(&options, NULL, &tier, &err), &err);
    return tier;
}

/* again: of one chain, which the tier remembers; else of others, which it must search for. */
static void time_lookups(firn_tier *tier, uint32_t n_chains, uint32_t n_tokens, bool again, const char *what)
{
    firn_token *prompt = malloc(((size_t)n_tokens + 1) * sizeof *prompt);
    double ms[LOOKUPS];
    if (prompt == NULL) {
        exit(1);
    }
    for (int i = -1; i < LOOKUPS; i++) {
        const uint32_t chain = again ? 0 : (uint32_t)(i + 1) * 7919u % n_chains;
        for (uint32_t t = 0; t <= n_tokens; t++) {
            prompt[t] = token_of(chain, t);
        }
        const double started = now_ms();
        const firn_match match = firn_tier_find(tier, prompt, n_tokens + 1, NULL);
        const double found = now_ms();
        if (match.prefix_len != n_tokens) {
            fprintf(stderr, "bench_store: %u of %u tokens found\n", match.prefix_len, n_tokens);
            exit(1);
        }
        firn_tier_release(tier, match.handle);
        ms[i < 0 ? 0 : i] = found - started;
    }
    print_times(what, ms, LOOKUPS);
    free(prompt);
}

static void run(const char *dir, uint32_t n_records, bool tiny)
{
    firn_error err;
    firn_pool *pool;
    const firn_pool_options pool_options = { .budget_bytes = 16u << 20 };
    const firn_cache_options layer = { .layout = "kv:plain", .dtype = FIRN_DTYPE_F16, .n_kv_heads = 1, .head_dim = 16 };
    firn_schema schema = { .layers = &layer, .n_layers = 1, .identity_text = "weights: none\n" };
    memset(schema.identity.bytes, 7, sizeof schema.identity.bytes);
    check_ok(firn_pool_create(&pool_options, NULL, &pool, &err), &err);
    const double started = now_ms();
    make_store(dir, &schema, n_records);
    printf("%u records (made in %.1f s)\n", n_records, (now_ms() - started) * 1e-3);
    double ms[OPENS];
    for (int i = 0; i < OPENS; i++) {
        const double begin = now_ms();
        firn_tier *tier = open_store(dir, &schema, pool);
        ms[i] = now_ms() - begin;
        firn_tier_destroy(tier);
    }
    print_times("open", ms, OPENS);
    firn_tier *tier = open_store(dir, &schema, pool);
    const uint32_t n_chains = n_records / CHAIN_BLOCKS;
    time_lookups(tier, n_chains, 1024, false, "lookup, 1k tokens");
    if (!tiny) {
        time_lookups(tier, n_chains, 32768, false, "lookup, 32k tokens");
    }
    time_lookups(tier, n_chains, 128000, false, "lookup, 128k tokens");
    time_lookups(tier, n_chains, 128000, true, "lookup, 128k tokens again");
    firn_tier_destroy(tier);
    firn_pool_destroy(pool);
}

int main(int argc, char **argv)
{
    static const uint32_t all[] = { 100000, 1000000 }, few[] = { 4000 };
    /* Making a million entries in random order is hard on a disk, and neither it nor syncs are what is timed. */
    const char *parent = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
    bool tiny = false;
    uint32_t chosen = 0;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--tiny") == 0) {
            tiny = true;
        } else if (strcmp(argv[i], "--records") == 0 && i + 1 < argc) {
            chosen = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            parent = argv[++i];
        } else {
            fprintf(stderr, "usage: bench_store [--tiny] [--records N] [--dir DIR]\n");
            return 2;
        }
    }
    const uint32_t *sizes = chosen != 0 ? &chosen : tiny ? few : all;
    const size_t n_sizes = chosen != 0 || tiny ? 1 : 2;
    for (size_t i = 0; i < n_sizes; i++) {
        char dir[FIRNI_DISK_PATH_MAX / 2];
        (void)snprintf(dir, sizeof dir, "%.1500s/firn-bench-store-%ld", parent, (long)getpid());
        run(dir, sizes[i] < CHAIN_BLOCKS ? CHAIN_BLOCKS : sizes[i], tiny);
        bench_remove_store(dir);
    }
    return 0;
}
