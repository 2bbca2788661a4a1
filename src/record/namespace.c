/*
 * Namespaces below namespaces: full names, and the list of those that one reads.
 *
 *      "house" U+001F "alice"      level 0: all of it, which alice writes    level 1: "house", which alice reads too
 *
 * The full name is what roots are made of, so the same user below another house is another namespace, and a parent can
 * not be changed under state that is there. Owns the form of names; knows nothing of who stores what.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/record_impl.h"

firn_status firn_namespace_below(const char *parent, const char *name, char out[FIRN_NAMESPACE_BYTES_MAX + 1],
                                 firn_error *err)
{
    parent = parent != NULL ? parent : "";
    const size_t n_parent = strlen(parent), n_name = name != NULL ? strlen(name) : 0;
    out[0] = '\0';
    if (n_name > 0 && strchr(name, FIRN_NAMESPACE_BELOW) != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "a namespace below another needs a name without U+001F");
    }
    if (n_parent + 1 + n_name > FIRN_NAMESPACE_BYTES_MAX) {
        return firni_fail(err, FIRN_ERR_INVALID, "a cache namespace has at most %u bytes, those above it included",
                          (unsigned)FIRN_NAMESPACE_BYTES_MAX);
    }
    memcpy(out, parent, n_parent);
    out[n_parent] = FIRN_NAMESPACE_BELOW;
    if (n_name > 0) {
        memcpy(out + n_parent + 1, name, n_name);
    }
    out[n_parent + 1 + n_name] = '\0';
    return FIRN_OK;
}

void firni_levels_of(const char *ns, firni_levels *out)
{
    ns = ns != NULL ? ns : "";
    size_t n_bytes = strlen(ns);
    assert(n_bytes <= FIRN_NAMESPACE_BYTES_MAX);
    memcpy(out->names[0], ns, n_bytes + 1);
    out->n = 1;
    for (size_t i = n_bytes; i-- > 0 && out->n < FIRN_NAMESPACE_LEVELS_MAX;) {
        if (ns[i] == FIRN_NAMESPACE_BELOW) {
            memcpy(out->names[out->n], ns, i);
            out->names[out->n++][i] = '\0';
        }
    }
}

firn_digest firni_object_root(const firn_digest *identity, const char *ns, const char *key)
{
    const firni_field fields[3] = {
        { .bytes = identity->bytes, .n_bytes = sizeof identity->bytes },
        { .bytes = ns, .n_bytes = strlen(ns) },
        { .bytes = key, .n_bytes = strlen(key) },
    };
    return firni_digest_fields("firn.object.key.1", fields, 3);
}
