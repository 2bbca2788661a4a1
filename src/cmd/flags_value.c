/*
 * Flag values: text to number with units, bounds and choices, and back to text for --help. Owns no state.
 *
 * Numbers are read digit by digit instead of with strtoull, which accepts a sign, wraps "-1" and depends on the locale.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/flags_impl.h"

/* A unit's letter (lower case) and what it multiplies by. */
typedef struct unit {
    char letter;
    uint64_t scale;
} unit;

#define SECOND_NS 1000000000u

/* Largest first: the way back to text takes the first that divides. */
static const unit byte_units[] = { { 't', 1ull << 40 }, { 'g', 1ull << 30 }, { 'm', 1ull << 20 }, { 'k', 1ull << 10 } };
static const unit count_units[] = { { 'b', 1000000000u }, { 'm', 1000000u }, { 'k', 1000u } };
static const unit second_units[] = {
    { 'd', 86400ull * SECOND_NS }, { 'h', 3600ull * SECOND_NS }, { 'm', 60ull * SECOND_NS }, { 's', SECOND_NS }
};

/* How a kind writes its numbers. */
typedef struct number_form {
    const unit *units;
    uint32_t n_units;
    uint64_t scale_plain;  /* of a number without a letter */
    const char *expected;
} number_form;

static number_form form_of(firni_flag_kind kind)
{
    switch (kind) {
    case FIRNI_FLAG_BYTES:
        return (number_form){ byte_units, 4, 1, "a size such as 4096, 512M or 16G" };
    case FIRNI_FLAG_COUNT:
        return (number_form){ count_units, 3, 1, "a count such as 2000, 450M or 1.5B" };
    case FIRNI_FLAG_SECONDS:
        return (number_form){ second_units, 4, SECOND_NS, "a time such as 30, 1.5, 10m, 2h or 7d" };
    case FIRNI_FLAG_BOOL:
    case FIRNI_FLAG_U32:
    case FIRNI_FLAG_U64:
    case FIRNI_FLAG_FLOAT:
    case FIRNI_FLAG_STRING:
        break;
    }
    return (number_form){ NULL, 0, 1, "a whole number" };
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* digits [ "." digits ] [ letter ]. A fraction is allowed only where it multiplies a unit. */
static bool parse_scaled(const char *text, const number_form *form, uint64_t *out)
{
    const char *at = text;
    uint64_t whole = 0;
    if (!is_digit(*at)) {
        return false;
    }
    for (; is_digit(*at); at++) {
        const uint64_t digit = (uint64_t)(*at - '0');
        if (whole > (UINT64_MAX - digit) / 10) {
            return false;
        }
        whole = whole * 10 + digit;
    }
    double fraction = 0.0;
    bool has_fraction = false;
    if (*at == '.') {
        double place = 0.1;
        has_fraction = true;
        if (!is_digit(*++at)) {
            return false;
        }
        for (; is_digit(*at); at++, place /= 10) {
            fraction += place * (*at - '0');
        }
    }
    uint64_t scale = form->scale_plain;
    if (*at != '\0') {
        uint32_t i = 0;
        while (i < form->n_units && form->units[i].letter != lower(*at)) {
            i++;
        }
        if (i == form->n_units || at[1] != '\0') {
            return false;
        }
        scale = form->units[i].scale;
    }
    if ((has_fraction && scale == 1) || whole > UINT64_MAX / scale) {
        return false;
    }
    const uint64_t part = (uint64_t)(fraction * (double)scale + 0.5);
    if (whole * scale > UINT64_MAX - part) {
        return false;
    }
    *out = whole * scale + part;
    return true;
}

/* strtof would take "nan", "inf" and hexadecimal; a leading sign, digits, a point and an exponent are all we want. */
static bool parse_float(const char *text, float *out)
{
    if (*text == '\0' || text[strspn(text, "+-.0123456789eE")] != '\0') {
        return false;
    }
    char *end = NULL;
    const float value = strtof(text, &end);
    if (end == text || *end != '\0' || !isfinite(value)) {
        return false;
    }
    *out = value;
    return true;
}

static bool is_bounded(const firni_flag *flag)
{
    return flag->min != 0.0 || flag->max != 0.0;
}

static bool within(const firni_flag *flag, double value)
{
    return !is_bounded(flag) || (value >= flag->min && value <= flag->max);
}

/* Whether text is exactly one of "a|b|c". */
static bool is_choice(const char *choices, const char *text)
{
    const size_t len_text = strlen(text);
    for (const char *at = choices; at != NULL;) {
        const char *bar = strchr(at, '|');
        const size_t len = bar != NULL ? (size_t)(bar - at) : strlen(at);
        if (len == len_text && memcmp(at, text, len) == 0) {
            return true;
        }
        at = bar != NULL ? bar + 1 : NULL;
    }
    return false;
}

/* A bound, as a user would type it. */
static void number_text(firni_flag_kind kind, double value, char *out, size_t out_bytes)
{
    if (kind == FIRNI_FLAG_BYTES) {
        for (uint32_t i = 0; i < 4; i++) {
            const double scaled = value / (double)byte_units[i].scale;
            if (scaled >= 1.0 && scaled == floor(scaled)) {
                (void)snprintf(out, out_bytes, "%.0f%c", scaled, byte_units[i].letter - 'a' + 'A');
                return;
            }
        }
    }
    (void)snprintf(out, out_bytes, "%.10g", value);
}

void firni_flag_allowed_text(const firni_flag *flag, char *out, size_t out_bytes)
{
    out[0] = '\0';
    if (flag->choices != NULL) {
        (void)snprintf(out, out_bytes, "%s", flag->choices);
    } else if (is_bounded(flag)) {
        char low[32], high[32];
        number_text(flag->kind, flag->min, low, sizeof low);
        number_text(flag->kind, flag->max, high, sizeof high);
        (void)snprintf(out, out_bytes, "%s..%s", low, high);
    }
}

/* Every refusal names the flag, what was given, what was expected, and the range or the choices. */
static bool refuse(const firni_flag *flag, const char *text, const char *expected, char *message, size_t message_bytes)
{
    char allowed[200];
    firni_flag_allowed_text(flag, allowed, sizeof allowed);
    const bool has_allowed = allowed[0] != '\0';
    (void)snprintf(message, message_bytes, "--%s: \"%s\" is not %s%s%s%s", flag->name, text, expected,
                   has_allowed ? " (" : "", allowed, has_allowed ? ")" : "");
    return false;
}

static bool set_integer(const firni_flag *flag, const char *text, char *message, size_t message_bytes)
{
    const number_form form = form_of(flag->kind);
    uint64_t value = 0;
    if (!parse_scaled(text, &form, &value) || (flag->kind == FIRNI_FLAG_U32 && value > UINT32_MAX)) {
        return refuse(flag, text, form.expected, message, message_bytes);
    }
    /* Bounds of a time are in seconds, as the user types them. */
    if (!within(flag, (double)value / (double)form.scale_plain)) {
        return refuse(flag, text, "in the allowed range", message, message_bytes);
    }
    if (flag->kind == FIRNI_FLAG_U32) {
        *(uint32_t *)flag->target = (uint32_t)value;
    } else {
        *(uint64_t *)flag->target = value;
    }
    return true;
}

bool firni_flag_set(const firni_flag *flag, const char *text, char *message, size_t message_bytes)
{
    assert(flag->target != NULL);
    switch (flag->kind) {
    case FIRNI_FLAG_BOOL: {
        const bool on = strcmp(text, "true") == 0;
        if (!on && strcmp(text, "false") != 0) {
            return refuse(flag, text, "true or false", message, message_bytes);
        }
        *(bool *)flag->target = on;
        return true;
    }
    case FIRNI_FLAG_FLOAT: {
        float value;
        if (!parse_float(text, &value)) {
            return refuse(flag, text, "a number", message, message_bytes);
        }
        if (!within(flag, (double)value)) {
            return refuse(flag, text, "in the allowed range", message, message_bytes);
        }
        *(float *)flag->target = value;
        return true;
    }
    case FIRNI_FLAG_STRING:
        if (flag->accepts != NULL ? !flag->accepts(text) : flag->choices != NULL && !is_choice(flag->choices, text)) {
            return refuse(flag, text, "one of the choices", message, message_bytes);
        }
        *(const char **)flag->target = text;
        return true;
    case FIRNI_FLAG_U32:
    case FIRNI_FLAG_U64:
    case FIRNI_FLAG_BYTES:
    case FIRNI_FLAG_COUNT:
    case FIRNI_FLAG_SECONDS:
        break;
    }
    return set_integer(flag, text, message, message_bytes);
}

/* The largest unit that divides the value exactly, so that 4096 shows as 4K and 90 seconds as 90. */
static void scaled_text(firni_flag_kind kind, uint64_t value, char *out, size_t out_bytes)
{
    const number_form form = form_of(kind);
    for (uint32_t i = 0; value != 0 && i < form.n_units; i++) {
        const unit *u = &form.units[i];
        if (u->scale != form.scale_plain && value % u->scale == 0) {
            const char letter = kind == FIRNI_FLAG_SECONDS ? u->letter : (char)(u->letter - 'a' + 'A');
            (void)snprintf(out, out_bytes, "%" PRIu64 "%c", value / u->scale, letter);
            return;
        }
    }
    (void)snprintf(out, out_bytes, "%.10g", (double)value / (double)form.scale_plain);
}

void firni_flag_value_text(const firni_flag *flag, char *out, size_t out_bytes)
{
    out[0] = '\0';
    switch (flag->kind) {
    case FIRNI_FLAG_BOOL:
        if (*(const bool *)flag->target) {
            (void)snprintf(out, out_bytes, "true");
        }
        break;
    case FIRNI_FLAG_U32:
        (void)snprintf(out, out_bytes, "%" PRIu32, *(const uint32_t *)flag->target);
        break;
    case FIRNI_FLAG_U64:
        (void)snprintf(out, out_bytes, "%" PRIu64, *(const uint64_t *)flag->target);
        break;
    case FIRNI_FLAG_FLOAT:
        (void)snprintf(out, out_bytes, "%g", (double)*(const float *)flag->target);
        break;
    case FIRNI_FLAG_STRING: {
        const char *text = *(const char *const *)flag->target;
        (void)snprintf(out, out_bytes, "%s", text != NULL ? text : "");
        break;
    }
    case FIRNI_FLAG_BYTES:
    case FIRNI_FLAG_COUNT:
    case FIRNI_FLAG_SECONDS:
        scaled_text(flag->kind, *(const uint64_t *)flag->target, out, out_bytes);
        break;
    }
}
