/* Identities: stable digests, fields that cannot be confused, and differences named in words. */
#include <stdio.h>
#include <string.h>

#include "firn/identity.h"
#include "support/support.h"

static void hex_of(const firn_digest *digest, char out[65])
{
    for (unsigned i = 0; i < FIRN_DIGEST_BYTES; i++) {
        (void)snprintf(out + 2 * (size_t)i, 3, "%02x", digest->bytes[i]);
    }
}

static firn_digest digest_of(const char *const *fields, uint32_t n_fields)
{
    firn_identity *identity;
    assert_ok(firn_identity_create(NULL, &identity, NULL));
    for (uint32_t i = 0; i < n_fields; i++) {
        assert_ok(firn_identity_add(identity, fields[2 * i], fields[2 * i + 1], NULL));
    }
    const firn_digest digest = firn_identity_digest(identity);
    firn_identity_destroy(identity);
    return digest;
}

static void a_digest_is_the_same_in_every_process(void **unused)
{
    (void)unused;
    /* Stored state depends on these bytes: a change here is a new format version. */
    char hex[65];
    const char *const fields[] = { "weights", "abc", "tokenizer", "t1" };
    const firn_digest identity = digest_of(fields, 2);
    hex_of(&identity, hex);
    assert_string_equal(hex, "1a97d50ccd89cd2d22a1e2ba0721b0e33f036171363322d052103326a4bad067");
    const firn_digest root = firn_chain_root(&identity, "alice");
    hex_of(&root, hex);
    assert_string_equal(hex, "afdbb55a3668546dc805f1f7a78986e1c9d35d309b64d284c62d0fa081a698c6");
    const firn_token tokens[3] = { 1, 2, 0x01020304 };
    const firn_digest chain = firn_chain_extend(&root, tokens, 3);
    hex_of(&chain, hex);
    assert_string_equal(hex, "10d85f499ad223ffd4d04f1b13d8ce5289347542c09ce4a2ffaec88629dcb8bf");
}

static void every_field_and_its_place_counts(void **unused)
{
    (void)unused;
    const char *const variants[][4] = {
        { "a", "xy", "b", "z" }, { "a", "x", "b", "yz" },  { "a", "x", "b", "y" },   { "b", "xy", "a", "z" },
        { "a", "", "b", "xyz" }, { "ab", "xy", "c", "z" }, { "a", "bxy", "c", "z" },
    };
    firn_digest digests[7];
    for (size_t i = 0; i < 7; i++) {
        digests[i] = digest_of(variants[i], 2);
        for (size_t j = 0; j < i; j++) {
            assert_memory_not_equal(digests[i].bytes, digests[j].bytes, FIRN_DIGEST_BYTES);
        }
    }
    const firn_digest fewer = digest_of(variants[0], 1), none = digest_of(NULL, 0);
    assert_memory_not_equal(fewer.bytes, digests[0].bytes, FIRN_DIGEST_BYTES);
    assert_memory_not_equal(fewer.bytes, none.bytes, FIRN_DIGEST_BYTES);
}

static void roots_and_chains_do_not_collide(void **unused)
{
    (void)unused;
    const firn_digest identity = digest_of(NULL, 0);
    const firn_digest a = firn_chain_root(&identity, ""), null = firn_chain_root(&identity, NULL);
    const firn_digest b = firn_chain_root(&identity, "x");
    assert_memory_equal(a.bytes, null.bytes, FIRN_DIGEST_BYTES);
    assert_memory_not_equal(a.bytes, b.bytes, FIRN_DIGEST_BYTES);
    firn_token tokens[130] = { 7, 8, 9 };
    const firn_digest one = firn_chain_extend(&a, tokens, 128);
    const firn_digest half = firn_chain_extend(&a, tokens, 64);
    const firn_digest two = firn_chain_extend(&half, tokens + 64, 64);
    assert_memory_not_equal(one.bytes, two.bytes, FIRN_DIGEST_BYTES); /* blocks are part of the chain */
    const firn_digest shorter = firn_chain_extend(&a, tokens, 63), empty = firn_chain_extend(&a, tokens, 0);
    assert_memory_not_equal(half.bytes, shorter.bytes, FIRN_DIGEST_BYTES);
    assert_memory_not_equal(empty.bytes, a.bytes, FIRN_DIGEST_BYTES);
    tokens[63] ^= 1;
    const firn_digest other = firn_chain_extend(&a, tokens, 64);
    assert_memory_not_equal(half.bytes, other.bytes, FIRN_DIGEST_BYTES);
}

static void bad_fields_are_refused_and_change_nothing(void **unused)
{
    (void)unused;
    firn_identity *identity;
    assert_ok(firn_identity_create(NULL, &identity, NULL));
    assert_ok(firn_identity_add(identity, "layer.0", "kv:plain f16", NULL));
    assert_status(firn_identity_add(identity, "layer.0", "again", NULL), FIRN_ERR_INVALID);
    assert_status(firn_identity_add(identity, "Layer", "x", NULL), FIRN_ERR_INVALID);
    assert_status(firn_identity_add(identity, "", "x", NULL), FIRN_ERR_INVALID);
    assert_status(firn_identity_add(identity, "a:b", "x", NULL), FIRN_ERR_INVALID);
    assert_status(firn_identity_add(identity, "note", "two\nlines", NULL), FIRN_ERR_INVALID);
    assert_ok(firn_identity_add(identity, "layer", "a prefix of a name is another name", NULL));
    assert_string_equal(firn_identity_text(identity),
                        "layer.0: kv:plain f16\nlayer: a prefix of a name is another name\n");
    (void)firn_identity_digest(identity);
    assert_status(firn_identity_add(identity, "late", "x", NULL), FIRN_ERR_STATE);
    firn_identity_destroy(identity);
    firn_identity_destroy(NULL);
}

static void a_difference_is_named(void **unused)
{
    (void)unused;
    char out[200];
    assert_false(firn_identity_explain("a: 1\nb: 2\n", "a: 1\nb: 2\n", out, sizeof out));
    assert_true(firn_identity_explain("a: 1\nb: 2\n", "a: 1\nb: 3\n", out, sizeof out));
    assert_string_equal(out, "b: 2 here, 3 there");
    assert_true(firn_identity_explain("a: 1\nb: 2\n", "a: 1\n", out, sizeof out));
    assert_string_equal(out, "b: 2 here, nothing there");
    assert_true(firn_identity_explain("a: 1\n", "a: 1\nadapter: x\n", out, sizeof out));
    assert_string_equal(out, "adapter: nothing here, x there");
    assert_true(firn_identity_explain("a: 1\nb: 2\n", "b: 2\na: 1\n", out, sizeof out));
    assert_true(out[0] != '\0');
    assert_true(firn_identity_explain("name: a long value\n", "name: another\n", out, 9));
    assert_string_equal(out, "name: a "); /* cut, and still a string */
    assert_true(firn_identity_explain("", "a: 1\n", NULL, 0));
}

static void each_allocation_may_fail(void **unused)
{
    (void)unused;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        firn_identity *identity = NULL;
        char value[600];
        memset(value, 'x', sizeof value - 1);
        value[sizeof value - 1] = '\0';
        firn_status status = firn_identity_create(&world.env, &identity, NULL);
        if (status == FIRN_OK) {
            status = firn_identity_add(identity, "a", value, NULL);
            const size_t length = strlen(firn_identity_text(identity));
            assert_int_equal(length, status == FIRN_OK ? strlen(value) + 4 : 0);
        } else {
            assert_null(identity);
        }
        assert_true(status == FIRN_OK || status == FIRN_ERR_NO_MEMORY);
        firn_identity_destroy(identity);
        const bool clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_digest_is_the_same_in_every_process),
        cmocka_unit_test(every_field_and_its_place_counts),
        cmocka_unit_test(roots_and_chains_do_not_collide),
        cmocka_unit_test(bad_fields_are_refused_and_change_nothing),
        cmocka_unit_test(a_difference_is_named),
        cmocka_unit_test(each_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
