/*
 * Identities: the fields that state depends on, collected as readable text and as hashed bytes.
 *
 * Owns names, order and freezing. The bytes that are hashed are built while fields are added, so that taking the digest
 * can not fail.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "record/bytes_impl.h"
#include "record/record_impl.h"

#define FIELD_BYTES_MAX (1024u * 1024u)

/* A growing byte string. */
typedef struct byte_list {
    uint8_t *bytes;
    size_t n_bytes, capacity;
} byte_list;

struct firn_identity {
    const firn_env *env;
    byte_list text;   /* "name: value\n" lines; NUL-terminated beyond n_bytes */
    byte_list hashed; /* each name and value, preceded by its length */
    bool is_frozen;
};

/* Room for n more bytes; everything is reserved before anything is appended, so a refusal changes nothing. */
static bool reserve(const firn_env *env, byte_list *list, size_t n_more)
{
    if (list->n_bytes + n_more <= list->capacity) {
        return true;
    }
    size_t capacity = list->capacity == 0 ? 512 : list->capacity;
    while (capacity < list->n_bytes + n_more) {
        capacity *= 2;
    }
    uint8_t *grown = firni_grow(env, list->bytes, list->n_bytes, capacity, 1);
    if (grown == NULL) {
        return false;
    }
    grown[list->n_bytes] = '\0'; /* the text stays a string also when nothing is appended after all */
    list->bytes = grown;
    list->capacity = capacity;
    return true;
}

static void append(byte_list *list, const void *bytes, size_t n_bytes)
{
    assert(list->n_bytes + n_bytes <= list->capacity);
    if (n_bytes > 0) {
        memcpy(list->bytes + list->n_bytes, bytes, n_bytes);
        list->n_bytes += n_bytes;
    }
}

static void append_prefixed(byte_list *list, const char *text, size_t n_bytes)
{
    uint8_t length[4];
    firni_put_u32(length, (uint32_t)n_bytes);
    append(list, length, sizeof length);
    append(list, text, n_bytes);
}

firn_status firn_identity_create(const firn_env *env, firn_identity **out, firn_error *err)
{
    *out = NULL;
    firn_identity *identity = firni_calloc(env, 1, sizeof *identity);
    if (identity == NULL || !reserve(env, &identity->text, 1)) {
        firni_free(env, identity);
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for an identity");
    }
    identity->env = env;
    identity->text.bytes[0] = '\0';
    *out = identity;
    return FIRN_OK;
}

void firn_identity_destroy(firn_identity *identity)
{
    if (identity == NULL) {
        return;
    }
    firni_free(identity->env, identity->text.bytes);
    firni_free(identity->env, identity->hashed.bytes);
    firni_free(identity->env, identity);
}

static bool is_field_name(const char *name)
{
    const size_t n_bytes = strlen(name);
    return n_bytes > 0 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_.") == n_bytes;
}

/* The line of field `name` in a text of lines, or NULL; its end is the newline or the end of the text. */
static const char *find_line(const char *text, const char *name, size_t n_name)
{
    for (const char *line = text; *line != '\0';) {
        if (strncmp(line, name, n_name) == 0 && line[n_name] == ':') {
            return line;
        }
        const size_t n_line = strcspn(line, "\n");
        line += n_line + (line[n_line] == '\n');
    }
    return NULL;
}

firn_status firn_identity_add(firn_identity *identity, const char *name, const char *value, firn_error *err)
{
    if (identity->is_frozen) {
        return firni_fail(err, FIRN_ERR_STATE, "field \"%.64s\" was added after the digest was taken", name);
    }
    const size_t n_name = strlen(name), n_value = strlen(value);
    if (!is_field_name(name)) {
        return firni_fail(err, FIRN_ERR_INVALID, "\"%.64s\" is not a field name: use a-z, 0-9, '_' and '.'", name);
    }
    if (n_name + n_value > FIELD_BYTES_MAX || strchr(value, '\n') != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "the value of \"%.64s\" is too long or has a newline", name);
    }
    if (find_line((const char *)identity->text.bytes, name, n_name) != NULL) {
        return firni_fail(err, FIRN_ERR_INVALID, "field \"%.64s\" was added before", name);
    }
    if (!reserve(identity->env, &identity->text, n_name + n_value + 4) ||
        !reserve(identity->env, &identity->hashed, n_name + n_value + 8)) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for field \"%.64s\"", name);
    }
    append(&identity->text, name, n_name);
    append(&identity->text, ": ", 2);
    append(&identity->text, value, n_value);
    append(&identity->text, "\n", 1);
    identity->text.bytes[identity->text.n_bytes] = '\0';
    append_prefixed(&identity->hashed, name, n_name);
    append_prefixed(&identity->hashed, value, n_value);
    return FIRN_OK;
}

firn_digest firn_identity_digest(firn_identity *identity)
{
    identity->is_frozen = true;
    const firni_field field = { .bytes = identity->hashed.bytes, .n_bytes = identity->hashed.n_bytes };
    return firni_digest_fields("firn.identity.1", &field, 1);
}

const char *firn_identity_text(const firn_identity *identity)
{
    return (const char *)identity->text.bytes;
}

/* Writes "name: A here, B there"; either side may lack the field. */
static void write_difference(const char *line_a, const char *line_b, char *out, size_t out_bytes)
{
    const char *named = line_a != NULL ? line_a : line_b;
    const int n_name = (int)strcspn(named, ":");
    const char *sides[2] = { line_a, line_b };
    const char *values[2] = { "nothing", "nothing" };
    int lengths[2] = { 7, 7 };
    for (unsigned i = 0; i < 2; i++) {
        if (sides[i] != NULL) {
            values[i] = sides[i] + n_name + 1;
            values[i] += *values[i] == ' ';
            lengths[i] = (int)strcspn(values[i], "\n");
        }
    }
    (void)snprintf(out, out_bytes, "%.*s: %.*s here, %.*s there", n_name, named, lengths[0], values[0], lengths[1],
                   values[1]);
}

/* Compares up to the newline or the end. */
static bool lines_equal(const char *a, const char *b)
{
    const size_t n_a = strcspn(a, "\n"), n_b = strcspn(b, "\n");
    return n_a == n_b && memcmp(a, b, n_a) == 0;
}

/* Looks in `text` for the first line that `other` lacks or has otherwise. */
static const char *first_differing_line(const char *text, const char *other, const char **line_other)
{
    for (const char *line = text; *line != '\0';) {
        *line_other = find_line(other, line, strcspn(line, ":\n"));
        if (*line_other == NULL || !lines_equal(line, *line_other)) {
            return line;
        }
        const size_t n_line = strcspn(line, "\n");
        line += n_line + (line[n_line] == '\n');
    }
    return NULL;
}

bool firn_identity_explain(const char *text_a, const char *text_b, char *out, size_t out_bytes)
{
    if (out_bytes > 0) {
        out[0] = '\0';
    }
    const char *line_b = NULL;
    const char *line_a = first_differing_line(text_a, text_b, &line_b);
    if (line_a == NULL) {
        line_b = first_differing_line(text_b, text_a, &line_a);
        if (line_b == NULL) {
            if (strcmp(text_a, text_b) == 0) {
                return false;
            }
            (void)snprintf(out, out_bytes, "the same fields in another order");
            return true;
        }
    }
    write_difference(line_a, line_b, out, out_bytes);
    return true;
}
