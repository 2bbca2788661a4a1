/*
 * What --kv, --kv-group and --kv-delay say, as options of a model.
 */
#include "cmd/kv_flag.h"

#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"

/* "turbo", or "turbo:k8v3" with one digit each. */
static bool parse_turbo(const char *text, firn_kv_scheme *out)
{
    static const char name[] = "turbo";
    if (strncmp(text, name, strlen(name)) != 0) {
        return false;
    }
    const char *at = text + strlen(name);
    *out = (firn_kv_scheme){ .kind = FIRN_KV_TURBO };
    if (*at == '\0') {
        return true;
    }
    if (strlen(at) != strlen(":k8v3") || at[0] != ':' || at[1] != 'k' || strchr("8542", at[2]) == NULL ||
        at[3] != 'v' || strchr("85432", at[4]) == NULL) {
        return false;
    }
    out->key_bits = (uint32_t)(at[2] - '0');
    out->value_bits = (uint32_t)(at[4] - '0');
    return true;
}

static bool parse(const char *text, firn_kv_scheme *scheme, firn_dtype *dtype)
{
    *scheme = (firn_kv_scheme){ .kind = FIRN_KV_PLAIN };
    *dtype = FIRN_DTYPE_NONE;
    if (strcmp(text, "q8") == 0 || strcmp(text, "q4") == 0) {
        *scheme = (firn_kv_scheme){ .kind = FIRN_KV_AFFINE, .key_bits = (uint32_t)(text[1] - '0') };
        return true;
    }
    if (strcmp(text, "f16") == 0 || strcmp(text, "bf16") == 0 || strcmp(text, "f32") == 0) {
        *dtype = firn_dtype_parse(text);
        return true;
    }
    return parse_turbo(text, scheme);
}

bool firni_kv_accepts(const char *text)
{
    firn_kv_scheme scheme;
    firn_dtype dtype;
    return parse(text, &scheme, &dtype);
}

firn_status firni_kv_set(const char *kv, const char *group, uint32_t delay_tokens, firn_model_options *options,
                         firn_error *err)
{
    firn_kv_scheme scheme;
    firn_dtype dtype;
    if (!parse(kv != NULL ? kv : "f16", &scheme, &dtype)) {
        return firni_fail(err, FIRN_ERR_INVALID, "--kv %s: must be one of " FIRNI_KV_CHOICES, kv);
    }
    if (group != NULL && scheme.kind != FIRN_KV_AFFINE) {
        return firni_fail(err, FIRN_ERR_INVALID, "--kv-group %s goes with --kv q8 and q4, not with %s", group,
                          kv != NULL ? kv : "f16");
    }
    if (delay_tokens > 0 && scheme.kind == FIRN_KV_PLAIN) {
        return firni_fail(err, FIRN_ERR_INVALID, "--kv-delay %u goes with --kv q8, q4 and turbo, not with %s",
                          delay_tokens, kv != NULL ? kv : "f16");
    }
    scheme.delay_tokens = delay_tokens;
    scheme.group = group != NULL ? (uint32_t)strtoul(group, NULL, 10) : 0;
    options->kv_scheme = scheme;
    options->kv_dtype = dtype;
    return FIRN_OK;
}
