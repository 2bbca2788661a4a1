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
static bool check_key(const firni_exchange *exchange, const char *key, firni_problem *problem)
{
    static const char scheme[] = "Bearer ";
    const char *header = firni_request_header(exchange, "Authorization");
    if (header == NULL) {
        return firni_problem_set(problem, 401, "missing_api_key", NULL,
                                 "an API key is required: send the header \"Authorization: Bearer KEY\"");
    }
    if (strncasecmp(header, scheme, sizeof scheme - 1) != 0 || !firni_auth_equal(header + sizeof scheme - 1, key)) {
        return firni_problem_set(problem, 401, "invalid_api_key", NULL, "the API key is not valid");
    }
    return true;
}

bool firni_auth_check(const firni_exchange *exchange, bool is_open, firni_problem *problem)
{
    const firni_server *server = exchange->server;
    if (server->options.api_key != NULL) { /* a page that a browser was led to does not have it: Host is not needed */
        return is_open || check_key(exchange, server->options.api_key, problem);
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
