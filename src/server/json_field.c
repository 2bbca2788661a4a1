/*
 * Typed fields. Whole numbers arrive as JSON integers or as reals (the parser turns to reals when an integer of the
 * body does not fit 64 bits), so both are looked at.
 */
#include <math.h>

#include "server/json_field.h"

/* -2^63 and 2^63 are exact in a double; the largest int64_t is not. */
#define INT64_LIMIT 9223372036854775808.0

json_t *firni_field(const json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    return json_is_null(value) ? NULL : value;
}

const char *firni_json_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "a boolean";
    case JSON_NULL: return "null";
    }
    return "something else";
}

bool firni_json_whole(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = (int64_t)json_integer_value(value);
        return true;
    }
    if (json_is_real(value)) {
        const double real = json_real_value(value);
        if (real >= -INT64_LIMIT && real < INT64_LIMIT && floor(real) == real) { /* also refuses NaN */
            *out = (int64_t)real;
            return true;
        }
    }
    return false;
}

/* One wording for all fields: "FIELD must be A, not B". */
static bool wrong_type(const json_t *value, const char *name, const char *expected, firni_problem *problem)
{
    return firni_problem_field(problem, "invalid_type", name, "%s must be %s, not %s", name, expected,
                               firni_json_type_name(value));
}

bool firni_field_bool(const json_t *object, const char *name, bool *out, firni_problem *problem)
{
    const json_t *value = firni_field(object, name);
    if (value == NULL) {
        return true;
    }
    if (!json_is_boolean(value)) {
        return wrong_type(value, name, "true or false", problem);
    }
    *out = json_is_true(value);
    return true;
}

bool firni_field_number(const json_t *object, const char *name, double min, double max, float *out,
                        firni_problem *problem)
{
    const json_t *value = firni_field(object, name);
    if (value == NULL) {
        return true;
    }
    if (!json_is_number(value)) {
        return wrong_type(value, name, "a number", problem);
    }
    const double number = json_number_value(value);
    if (!(number >= min && number <= max)) { /* written so that NaN is refused */
        return firni_problem_field(problem, "out_of_range", name, "%s must be between %g and %g, not %g", name, min,
                                   max, number);
    }
    *out = (float)number;
    return true;
}

bool firni_field_integer(const json_t *object, const char *name, int64_t min, int64_t max, int64_t *out,
                         firni_problem *problem)
{
    const json_t *value = firni_field(object, name);
    if (value == NULL) {
        return true;
    }
    if (!json_is_number(value)) {
        return wrong_type(value, name, "a whole number", problem);
    }
    int64_t number;
    if (!firni_json_whole(value, &number)) {
        return firni_problem_field(problem, "invalid_value", name, "%s must be a whole number, not %g", name,
                                   json_number_value(value));
    }
    if (number < min || number > max) {
        return firni_problem_field(problem, "out_of_range", name, "%s must be between %lld and %lld, not %lld", name,
                                   (long long)min, (long long)max, (long long)number);
    }
    *out = number;
    return true;
}

bool firni_field_string(const json_t *object, const char *name, const char **out, firni_problem *problem)
{
    const json_t *value = firni_field(object, name);
    if (value == NULL) {
        return true;
    }
    if (!json_is_string(value)) {
        return wrong_type(value, name, "a string", problem);
    }
    *out = json_string_value(value);
    return true;
}
