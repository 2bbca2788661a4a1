/* What a key makes of tokens and digests: it can be undone, equal beginnings stay equal, and nothing else shows. */
#include <stdlib.h>
#include <string.h>

#include "record/record_impl.h"
#include "support/support.h"

static const uint8_t key_a[FIRNI_CRYPT_KEY_BYTES] = { 1, 2, 3 }, key_b[FIRNI_CRYPT_KEY_BYTES] = { 1, 2, 4 };

static int setup(void **out)
{
    firni_crypt *crypt;
    assert_ok(firni_crypt_create(key_a, NULL, &crypt, NULL));
    *out = crypt;
    return 0;
}

static int teardown(void **in)
{
    firni_crypt_destroy(*in);
    return 0;
}

#define N_BYTES (4u * FIRN_BLOCK_TOKENS)

static void random_bytes(test_rng *rng, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = (uint8_t)test_rng_below(rng, 256);
    }
}

static void tokens_come_back_for_every_count(void **in)
{
    test_rng rng = test_rng_create("crypt_tokens", 1);
    uint8_t parent[FIRN_DIGEST_BYTES], tokens[N_BYTES], sealed[N_BYTES], opened[N_BYTES];
    random_bytes(&rng, parent, sizeof parent);
    random_bytes(&rng, tokens, sizeof tokens);
    for (uint32_t n = 0; n <= FIRN_BLOCK_TOKENS; n++) {
        assert_true(firni_crypt_seal_tokens(*in, parent, tokens, n, sealed));
        assert_true(firni_crypt_open_tokens(*in, parent, sealed, n, opened));
        assert_memory_equal(opened, tokens, 4 * (size_t)n);
    }
}

/* Up to and including the first token that differs: there, alone, the XOR of both shows. */
static void equal_beginnings_stay_equal_and_nothing_behind_them(void **in)
{
    test_rng rng = test_rng_create("crypt_prefix", 2);
    uint8_t parent[FIRN_DIGEST_BYTES], a[N_BYTES], b[N_BYTES], sealed_a[N_BYTES], sealed_b[N_BYTES];
    random_bytes(&rng, parent, sizeof parent);
    random_bytes(&rng, a, sizeof a);
    assert_true(firni_crypt_seal_tokens(*in, parent, a, FIRN_BLOCK_TOKENS, sealed_a));
    for (uint32_t at = 0; at < FIRN_BLOCK_TOKENS; at++) {
        memcpy(b, a, sizeof b);
        b[4 * at + 3] ^= 1;
        assert_true(firni_crypt_seal_tokens(*in, parent, b, FIRN_BLOCK_TOKENS, sealed_b));
        assert_memory_equal(sealed_b, sealed_a, 4 * (size_t)at);
        assert_true(memcmp(sealed_b + 4 * at, sealed_a + 4 * at, 4) != 0);
        uint32_t n_equal = 0;
        for (uint32_t i = at + 1; i < FIRN_BLOCK_TOKENS; i++) {
            n_equal += memcmp(sealed_b + 4 * i, sealed_a + 4 * i, 4) == 0;
        }
        assert_int_equal(n_equal, 0); /* by chance: 64 * 64 / 2^33 */
        /* A shorter key is the beginning of the longer one's. */
        assert_true(firni_crypt_seal_tokens(*in, parent, a, at, sealed_b));
        assert_memory_equal(sealed_b, sealed_a, 4 * (size_t)at);
    }
}

static void other_parents_and_other_keys_have_nothing_in_common(void **in)
{
    test_rng rng = test_rng_create("crypt_apart", 3);
    uint8_t parent[FIRN_DIGEST_BYTES], tokens[N_BYTES], one[N_BYTES], two[N_BYTES];
    random_bytes(&rng, parent, sizeof parent);
    random_bytes(&rng, tokens, sizeof tokens);
    firni_crypt *other;
    assert_ok(firni_crypt_create(key_b, NULL, &other, NULL));
    assert_true(firni_crypt_seal_tokens(*in, parent, tokens, FIRN_BLOCK_TOKENS, one));
    assert_true(firni_crypt_seal_tokens(other, parent, tokens, FIRN_BLOCK_TOKENS, two));
    assert_true(memcmp(firni_crypt_id(*in), firni_crypt_id(other), FIRNI_CRYPT_ID_BYTES) != 0);
    for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
        assert_true(memcmp(one + 4 * i, two + 4 * i, 4) != 0);
    }
    parent[31] ^= 1;
    assert_true(firni_crypt_seal_tokens(*in, parent, tokens, FIRN_BLOCK_TOKENS, two));
    for (uint32_t i = 0; i < FIRN_BLOCK_TOKENS; i++) {
        assert_true(memcmp(one + 4 * i, two + 4 * i, 4) != 0);
    }
    uint8_t digest[FIRN_DIGEST_BYTES], sealed[FIRN_DIGEST_BYTES], opened[FIRN_DIGEST_BYTES];
    random_bytes(&rng, digest, sizeof digest);
    assert_true(firni_crypt_seal_digest(*in, digest, sealed));
    assert_true(firni_crypt_open_digest(*in, sealed, opened));
    assert_memory_equal(opened, digest, sizeof digest);
    assert_true(firni_crypt_open_digest(other, sealed, opened));
    assert_true(memcmp(opened, digest, sizeof digest) != 0);
    firni_crypt_destroy(other);
}

/* Every byte of what is sealed, of the tag and of what it is bound to counts. */
static void a_change_of_anything_does_not_open(void **in)
{
    test_rng rng = test_rng_create("crypt_open", 4);
    enum { N = 200 };
    uint8_t plain[N], sealed[N], opened[N], tag[FIRNI_CRYPT_TAG_BYTES], bound[24];
    random_bytes(&rng, plain, sizeof plain);
    random_bytes(&rng, bound, sizeof bound);
    firni_record_seal seal;
    assert_ok(firni_record_seal_begin(*in, &seal));
    firni_crypt_context context = { .key = &seal.key, .bound = { bound, bound + 8 }, .n_bound = { 8, 16 } };
    assert_ok(firni_crypt_seal(*in, &context, plain, N, sealed, tag));
    assert_true(memcmp(plain, sealed, N) != 0);
    assert_ok(firni_crypt_open(*in, &context, sealed, N, opened, tag));
    assert_memory_equal(opened, plain, N);
    for (size_t i = 0; i < N; i++) {
        sealed[i] ^= 0x10;
        assert_status(firni_crypt_open(*in, &context, sealed, N, opened, tag), FIRN_ERR_CORRUPT);
        sealed[i] ^= 0x10;
    }
    for (size_t i = 0; i < sizeof tag; i++) {
        tag[i] ^= 1;
        assert_status(firni_crypt_open(*in, &context, sealed, N, opened, tag), FIRN_ERR_CORRUPT);
        tag[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof bound; i++) {
        bound[i] ^= 1;
        assert_status(firni_crypt_open(*in, &context, sealed, N, opened, tag), FIRN_ERR_CORRUPT);
        bound[i] ^= 1;
    }
    for (size_t i = 0; i < sizeof context.nonce; i++) {
        context.nonce[i] ^= 1;
        assert_status(firni_crypt_open(*in, &context, sealed, N, opened, tag), FIRN_ERR_CORRUPT);
        context.nonce[i] ^= 1;
    }
    assert_ok(firni_crypt_open(*in, &context, sealed, N, opened, tag));
}

/* NIST's test case 16 of GCM with AES-256 (McGrew and Viega, 2005): the cipher is the one that is named. */
static void gcm_is_that_of_the_standard(void **in)
{
    static const char *const hex[] = {
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de6"
        "57"
        "ba637b39",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        "76fc6ece0f4e1768cddf8853bb2d551b",
    };
    uint8_t parts[5][64];
    size_t n_parts[5];
    for (uint32_t p = 0; p < 5; p++) {
        n_parts[p] = strlen(hex[p]) / 2;
        for (size_t i = 0; i < n_parts[p]; i++) {
            const char digits[3] = { hex[p][2 * i], hex[p][2 * i + 1], '\0' };
            parts[p][i] = (uint8_t)strtoul(digits, NULL, 16);
        }
    }
    firni_crypt_key key;
    memcpy(key.bytes, parts[0], sizeof key.bytes);
    firni_crypt_context context = { .key = &key, .bound = { parts[3], NULL }, .n_bound = { n_parts[3], 0 } };
    memcpy(context.nonce, parts[1], sizeof context.nonce);
    uint8_t sealed[64], tag[FIRNI_CRYPT_TAG_BYTES];
    assert_ok(firni_crypt_seal(*in, &context, parts[2], n_parts[2], sealed, tag));
    assert_memory_equal(tag, parts[4], sizeof tag);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(tokens_come_back_for_every_count, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_beginnings_stay_equal_and_nothing_behind_them, setup, teardown),
        cmocka_unit_test_setup_teardown(other_parents_and_other_keys_have_nothing_in_common, setup, teardown),
        cmocka_unit_test_setup_teardown(a_change_of_anything_does_not_open, setup, teardown),
        cmocka_unit_test_setup_teardown(gcm_is_that_of_the_standard, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
