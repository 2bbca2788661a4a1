/*
 * json_field: one typed, bounded field of a request at a time.
 *
 * Every function leaves *out alone and succeeds when the field is absent or null: clients send null for what they do
 * not set. A wrong type or a value out of range is a 400 that names the field and what is allowed.
 */
#ifndef FIRNI_JSON_FIELD_H
#define FIRNI_JSON_FIELD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/problem.h"

/* The value, or NULL when the field is absent or null. */
json_t *firni_field(const json_t *object, const char *name);

bool firni_field_bool(const json_t *object, const char *name, bool *out, firni_problem *problem);
/* Any JSON number in [min, max]. */
bool firni_field_number(const json_t *object, const char *name, double min, double max, float *out,
                        firni_problem *problem);
/* A whole number in [min, max]; 5.0 counts as 5. */
bool firni_field_integer(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *out,
                         firni_problem *problem);
bool firni_field_string(const json_t *object, const char *name, const char **out, firni_problem *problem);

/* Whether a JSON number is whole and fits int64_t. */
bool firni_json_whole(const json_t *value, int64_t *out);
/* "a string", "an array", ...: for messages. */
const char *firni_json_type_name(const json_t *value);

#endif
