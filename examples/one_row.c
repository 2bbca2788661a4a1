/* One row of one layer: append a token's key and value, attend to it. Build: cc one_row.c -lfirn -luring -llmdb -lxxhash -lzstd -lcrypto -lm */
#include <firn/firn.h>
#include <stdio.h>

int main(void)
{
    float k[2 * 64] = { 1 }, v[2 * 64] = { 2 }, q[4 * 64] = { 3 }, out[4 * 64];
    firn_pool *pool = NULL;
    firn_cache *cache = NULL;
    firn_error err;
    if (firn_pool_create(&(firn_pool_options){ .budget_bytes = 64 << 20 }, NULL, &pool, &err) ||
        firn_cache_create(&(firn_cache_options){ .layout = "kv:plain", .n_kv_heads = 2, .head_dim = 64 }, pool, NULL, &cache, &err) ||
        firn_cache_add_row(cache, &err) ||
        firn_cache_append(cache, &(firn_append_input){ .k = k, .v = v }, (uint32_t[]){ 1 }, NULL, &err) ||
        firn_cache_attend(cache, &(firn_attend_input){ .q = q, .out = out, .n_heads = 4, .scale = 0.125f }, (uint32_t[]){ 1 }, NULL, &err)) {
        fprintf(stderr, "%s\n", err.message);
    } else {
        printf("attended to %u token: %g\n", firn_cache_row_tokens(cache, 0), (double)out[0]);
    }
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
    return 0;
}
