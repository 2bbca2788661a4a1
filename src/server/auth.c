/*
 * Who may ask: the API key, and the Host header as a fence against web pages.
 *
 * A page from anywhere can make a browser send requests to 127.0.0.1. Three things keep it out: bodies must be
 * application/json (which a browser will not send across origins without asking first), no CORS headers are sent unless
 * asked for, and a name that an attacker's DNS points at this machine does not pass as Host.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "server/serve_state.h"

bool firni_auth_equal(const char *presented, const char *expected)
{
    const size_t n_presented = strlen(presented);
    const size_t n_expected = strlen(expected);
    /* Every byte presented is compared with some byte, whatever was equal before it; the NUL stands in for an empty
     * expectation. */
    volatile unsigned difference = n_presented == n_expected ? 0u : 1u;
    for (size_t i = 0; i < n_presented; i++) {
        const unsigned char own = (unsigned char)expected[n_expected > 0 ? i % n_expected : 0];
        difference |= (unsigned)(own ^ (unsigned char)presented[i]);
    }
    return difference == 0;
}

bool firni_auth_host_allowed(const char *host)
{
    char name[256];
    const char *start = host;
    size_t len;
    if (host[0] == '[') { /* "[::1]:8080" */
        const char *end = strchr(host, ']');
        if (end == NULL) {
            return false;
        }
        start = host + 1;
        len = (size_t)(end - start);
    } else {
        len = strcspn(host, ":");
    }
    if (len == 0 || len >= sizeof name) {
        return false;
    }
    memcpy(name, start, len);
    name[len] = '\0';
    unsigned char address[sizeof(struct in6_addr)];
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1) {
        return true; /* an address needs no DNS */
    }
    static const char local[] = "localhost";
    static const char below[] = ".localhost";
    return strcasecmp(name, local) == 0 ||
           (len > sizeof below - 1 && strcasecmp(name + len - (sizeof below - 1), below) == 0);
}

/* Bearer authentication as in RFC 6750; the scheme's name is not case-sensitive (RFC 9110, section 11.1). */
static const char *presented_key(const firni_exchange *exchange)
{
    static const char scheme[] = "Bearer ";
    const char *header = firni_request_header(exchange, "Authorization");
    return header != NULL && strncasecmp(header, scheme, sizeof scheme - 1) == 0 ? header + sizeof scheme - 1 : NULL;
}

/* All keys are compared, whichever is the right one. */
static const firni_api_key *find_user(const firni_exchange *exchange)
{
    const firni_api_keys *keys = exchange->server->options.keys;
    const char *presented = presented_key(exchange);
    const firni_api_key *found = NULL;
    for (uint32_t i = 0; keys != NULL && presented != NULL && i < keys->n; i++) {
        found = firni_auth_equal(presented, keys->list[i].key) ? &keys->list[i] : found;
    }
    return found;
}

bool firni_auth_is_operator(const firni_exchange *exchange)
{
    const firni_server_options *options = &exchange->server->options;
    const char *presented = presented_key(exchange);
    if (options->api_key == NULL) {
        return options->keys == NULL;
    }
    return presented != NULL && firni_auth_equal(presented, options->api_key);
}

static bool check_key(const firni_exchange *exchange, firni_problem *problem)
{
    if (firni_request_header(exchange, "Authorization") == NULL) {
        return firni_problem_set(problem, 401, "missing_api_key", NULL,
                                 "an API key is required: send the header \"Authorization: Bearer KEY\"");
    }
    if (!firni_auth_is_operator(exchange) && find_user(exchange) == NULL) {
        return firni_problem_set(problem, 401, "invalid_api_key", NULL, "the API key is not valid");
    }
    return true;
}

/* A user's key is a fence: whatever the request names, it stays inside. */
bool firni_auth_namespace(const firni_exchange *exchange, const char *asked, char out[FIRN_NAMESPACE_BYTES_MAX + 1],
                          firni_problem *problem)
{
    const firni_server_options *options = &exchange->server->options;
    const firni_api_key *user = find_user(exchange);
    if (user != NULL) {
        const char *below = strrchr(user->ns, FIRN_NAMESPACE_BELOW);
        const char *own = below != NULL ? below + 1 : user->ns;
        if (asked[0] != '\0' && strcmp(asked, own) != 0) {
            return firni_problem_set(problem, 403, "namespace_not_allowed", "cache_namespace",
                                     "this API key is bound to the cache namespace \"%.100s\"", own);
        }
        memcpy(out, user->ns, strlen(user->ns) + 1);
        return true;
    }
    if (strchr(asked, FIRN_NAMESPACE_BELOW) != NULL || strlen(asked) > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_problem_field(problem, "invalid_value", "cache_namespace",
                                   "a cache namespace has at most %d bytes, and no U+001F", FIRN_NAMESPACE_BYTES_MAX);
    }
    if (options->parent == NULL) {
        memcpy(out, asked, strlen(asked) + 1);
        return true;
    }
    firn_error err = { 0 };
    return firn_namespace_below(options->parent, asked, out, &err) == FIRN_OK ||
           firni_problem_field(problem, "out_of_range", "cache_namespace", "%s", err.message);
}

bool firni_auth_check(const firni_exchange *exchange, bool is_open, firni_problem *problem)
{
    const firni_server *server = exchange->server;
    if (server->options.api_key != NULL || server->options.keys != NULL) { /* a page that a browser was led to does not
                                                                            * have it: Host is not needed */
        return is_open || check_key(exchange, problem);
    }
    const char *host = firni_request_header(exchange, "Host");
    if (server->loopback && host != NULL && !firni_auth_host_allowed(host)) {
        return firni_problem_set(problem, 403, "host_not_allowed", NULL,
                                 "this server answers to localhost and addresses only, not to \"%.100s\"; start it "
                                 "with an API key to use other names",
                                 host);
    }
    return true;
}
