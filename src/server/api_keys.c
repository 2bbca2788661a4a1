/*
 * The file of users' keys. Owns its form; who is let in is auth.c's.
 */
#include <string.h>

#include "base/base_impl.h"
#include "server/api_keys.h"

#define WORDS_MAX 4u

/* The words of one line, which is cut at their ends. Returns their number, at most WORDS_MAX. */
static uint32_t split(char *line, char *words[WORDS_MAX])
{
    uint32_t n = 0;
    char *at = line;
    while (n < WORDS_MAX) {
        at += strspn(at, " \t\r");
        if (*at == '\0' || *at == '#') {
            break;
        }
        words[n++] = at;
        at += strcspn(at, " \t\r");
        if (*at != '\0') {
            *at++ = '\0';
        }
    }
    return n;
}

static firn_status add(firni_api_keys *keys, char *const words[WORDS_MAX], uint32_t n_words, uint32_t line,
                       firn_error *err)
{
    if (n_words < 2 || n_words > 3) {
        return firni_fail(err, FIRN_ERR_INVALID, "line %u: expected a key, a namespace, and perhaps its parent", line);
    }
    for (uint32_t i = 0; i < keys->n; i++) {
        if (strcmp(keys->list[i].key, words[0]) == 0) {
            return firni_fail(err, FIRN_ERR_INVALID, "line %u: the key is there already", line);
        }
    }
    firni_api_key *grown = firni_grow(keys->env, keys->list, keys->n, (size_t)keys->n + 1, sizeof *grown);
    if (grown == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for %u keys", keys->n + 1);
    }
    keys->list = grown;
    firni_api_key *key = &grown[keys->n];
    firn_error detail = { 0 };
    firn_status status = FIRN_OK;
    if (n_words == 3) {
        status = firn_namespace_below(words[2], words[1], key->ns, &detail);
    } else if (strlen(words[1]) > FIRN_NAMESPACE_BYTES_MAX) {
        status = firni_fail(&detail, FIRN_ERR_INVALID, "the namespace is too long");
    } else {
        memcpy(key->ns, words[1], strlen(words[1]) + 1);
    }
    if (status != FIRN_OK) {
        return firni_fail(err, status, "line %u: %.300s", line, detail.message);
    }
    key->key = firni_strdup(keys->env, words[0]);
    if (key->key == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for a key");
    }
    keys->n++;
    return FIRN_OK;
}

firn_status firni_api_keys_parse(const char *text, const firn_env *env, firni_api_keys *out, firn_error *err)
{
    *out = (firni_api_keys){ .env = env };
    char *copy = firni_strdup(env, text);
    firn_status status = copy != NULL ? FIRN_OK : firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the keys");
    uint32_t line = 0;
    for (char *at = copy; at != NULL && status == FIRN_OK;) {
        char *newline = strchr(at, '\n');
        if (newline != NULL) {
            *newline = '\0';
        }
        char *words[WORDS_MAX];
        const uint32_t n_words = split(at, words);
        line++;
        if (n_words > 0) {
            status = add(out, words, n_words, line, err);
        }
        at = newline != NULL ? newline + 1 : NULL;
    }
    firni_free(env, copy);
    if (status != FIRN_OK) {
        firni_api_keys_deinit(out);
    }
    return status;
}

void firni_api_keys_deinit(firni_api_keys *keys)
{
    for (uint32_t i = 0; i < keys->n; i++) {
        firni_free(keys->env, keys->list[i].key);
    }
    firni_free(keys->env, keys->list);
    *keys = (firni_api_keys){ .env = keys->env };
}
