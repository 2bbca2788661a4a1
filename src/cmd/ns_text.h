/*
 * ns_text: how a namespace is written for people, and read from a flag.
 *
 *      "bob"              the namespace bob
 *      "house"/"bob"      bob below house: U+001F stands between the two in the stored name (firn/identity.h)
 *      "a\"b\\c\x09"      quotes, backslashes and control characters are escaped, so no two names are written alike,
 *                         and a terminal does not act on one
 *
 * A flag takes a name as it is written here, or, when it does not begin with a quote, the name itself.
 */
#ifndef FIRNI_NS_TEXT_H
#define FIRNI_NS_TEXT_H

#include "cmd/cmd.h"
#include "firn/identity.h"

void firni_ns_print(const char *ns);
/* The value of --namespace, which becomes a stored name in `out`; NULL stays. Returns 0, or the exit status after a
 * message that says what is wrong with it. */
int firni_ns_flag(const firni_command *self, const char **value, char out[FIRN_NAMESPACE_BYTES_MAX + 1]);

#endif
