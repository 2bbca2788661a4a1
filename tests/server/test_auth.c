/*
 * Keys and hosts: what passes and what does not.
 */
#include "server/serve_state.h"
#include "support/support.h"

static void keys_are_equal_only_when_they_are_the_same(void **state)
{
    (void)state;
    assert_true(firni_auth_equal("secret", "secret"));
    assert_false(firni_auth_equal("secreT", "secret"));
    assert_false(firni_auth_equal("secre", "secret"));
    assert_false(firni_auth_equal("secrets", "secret"));
    assert_false(firni_auth_equal("secretsecret", "secret")); /* a repetition compares equal byte by byte */
    assert_false(firni_auth_equal("", "secret"));
    assert_false(firni_auth_equal("secret", ""));
    assert_true(firni_auth_equal("", ""));
}

static void only_this_machine_and_addresses_pass_as_host(void **state)
{
    (void)state;
    static const char *const allowed[] = { "localhost",        "LOCALHOST:8080", "127.0.0.1",  "127.0.0.1:80",
                                           "192.168.1.5:8080", "[::1]",          "[::1]:8080", "firn.localhost:1" };
    static const char *const refused[] = { "",
                                           ":",
                                           "example.com",
                                           "localhost.example.com",
                                           "notlocalhost",
                                           ".localhost",
                                           "127.0.0.1.example.com",
                                           "[::1",
                                           "[example.com]",
                                           "1.2.3",
                                           "0x7f.1:80" };
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0]; i++) {
        if (!firni_auth_host_allowed(allowed[i])) {
            fail_msg("refused: %s", allowed[i]);
        }
    }
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        if (firni_auth_host_allowed(refused[i])) {
            fail_msg("allowed: %s", refused[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_equal_only_when_they_are_the_same),
        cmocka_unit_test(only_this_machine_and_addresses_pass_as_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
