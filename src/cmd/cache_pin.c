/*
 * firn cache pin, unpin: keeps the stored part of a prompt until a date, lists what is kept, lets it go again. Owns the
 * words; firn/keep.h says what a pin is.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_model.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"
#include "firn/keep.h"

#define DAY_NS UINT64_C(86400000000000)

typedef struct pin_options {
    firni_cache_model model;
    const char *name;
    uint64_t for_ns;
    json_t *list;          /* of the listing, with --json */
} pin_options;

static bool show(void *ctx, const firn_pin *pin)
{
    pin_options *options = ctx;
    char until[FIRNI_TIME_TEXT_BYTES], size[FIRNI_SIZE_TEXT_BYTES];
    (void)firni_cache_time_text(pin->until_wall_ns, until);
    if (options->list != NULL) {
        json_t *item = json_pack("{s:o, s:o, s:I, s:I, s:s}", "name", firni_cache_namespace_json(pin->name),
                                 "namespace", firni_cache_namespace_json(pin->ns), "tokens", (json_int_t)pin->n_tokens,
                                 "bytes", (json_int_t)pin->n_bytes, "until", until);
        (void)json_array_append_new(options->list, item);
        return true;
    }
    firni_ns_print(pin->name);
    (void)printf(": %" PRIu32 " tokens, %s, until %s, namespace ", pin->n_tokens,
                 firni_cmd_size_text(pin->n_bytes, size), until);
    firni_ns_print(pin->ns != NULL ? pin->ns : "");
    (void)putchar('\n');
    return true;
}

static int list(pin_options *options)
{
    firn_error err = { 0 };
    options->list = options->model.json ? json_array() : NULL;
    if (firn_tier_each_pin(options->model.stack->tier, show, options, &err) != FIRN_OK) {
        json_decref(options->list);
        return firni_cmd_fail(options->model.self, "%s", err.message);
    }
    const firni_cache_view view = { .self = options->model.self };
    return options->list != NULL ? firni_cache_print_json(&view, options->list) : 0;
}

/* The longest beginning of the prompt that is stored and can be resumed. */
static int pin(const pin_options *options)
{
    const firni_cache_model *model = &options->model;
    firn_tier *tier = model->stack->tier;
    const firn_match match = firn_tier_find(tier, model->tokens, model->n_tokens, model->ns);
    firn_tier_release(tier, match.handle);
    if (match.prefix_len == 0) {
        return firni_cmd_fail(model->self, "nothing of the prompt is stored (%s); firn cache explain says more",
                              firn_reason_name(match.reason));
    }
    const firn_pin wanted = { .name = options->name,
                              .ns = model->ns,
                              .tokens = model->tokens,
                              .n_tokens = match.prefix_len,
                              .until_wall_ns = firni_wall_ns(model->env) + options->for_ns };
    firn_error err = { 0 };
    if (firn_tier_pin(tier, &wanted, &err) != FIRN_OK) {
        return firni_cmd_fail(model->self, "%s", err.message);
    }
    char until[FIRNI_TIME_TEXT_BYTES];
    (void)printf("pinned %" PRIu32 " of %" PRIu32 " tokens until %s\n", match.prefix_len, model->n_tokens,
                 firni_cache_time_text(wanted.until_wall_ns, until));
    return 0;
}

static int run_pin(const firni_command *self, int argc, char **argv)
{
    pin_options options = { .model = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) }, .for_ns = 30 * DAY_NS };
    const firni_flag flags[] = {
        FIRNI_CACHE_MODEL_FLAGS(options.model),
        { .name = "prompt", .kind = FIRNI_FLAG_STRING, .target = &options.model.prompt_path, .value_name = "FILE",
          .help = "the prompt's text, as a completion's" },
        { .name = "for", .kind = FIRNI_FLAG_SECONDS, .target = &options.for_ns, .value_name = "TIME",
          .help = "how long it is kept, e.g. 30d", .min = 1, .max = 3153600000.0 },
    };
    bool done = false;
    uint32_t n_words = 0;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &options.name, 1, &n_words,
                                   &done);
    if (done) {
        return status;
    }
    if ((options.name != NULL) != (options.model.prompt_path != NULL)) {
        return firni_cmd_usage(self, "a name and --prompt FILE go together; without both, the pins are listed");
    }
    status = firni_cache_model_open(&options.model, options.name != NULL);
    if (status == 0) {
        status = options.name != NULL ? pin(&options) : list(&options);
    }
    firni_cache_model_close(&options.model);
    return status;
}

static int run_unpin(const firni_command *self, int argc, char **argv)
{
    pin_options options = { .model = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) } };
    const firni_flag flags[] = { FIRNI_CACHE_MODEL_FLAGS(options.model) };
    bool done = false;
    uint32_t n_words = 0;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &options.name, 1, &n_words,
                                   &done);
    if (done) {
        return status;
    }
    if (options.name == NULL) {
        return firni_cmd_usage(self, "which pin? firn cache pin lists them");
    }
    firn_error err = { 0 };
    status = firni_cache_model_open(&options.model, true);
    if (status == 0 && firn_tier_unpin(options.model.stack->tier, options.name, &err) != FIRN_OK) {
        status = firni_cmd_fail(self, "%s", err.message);
    }
    firni_cache_model_close(&options.model);
    return status;
}

const firni_command firni_cache_pin = {
    .name = "cache pin",
    .summary = "keep the stored part of a prompt until a date, or list what is kept",
    .synopsis = "cache pin [NAME --prompt FILE [--for TIME]] [-m MODEL.gguf] [--namespace NS]",
    .details = "Pins belong to a model. While a server uses the directory they can be listed, not made.",
    .run = run_pin,
};

const firni_command firni_cache_unpin = {
    .name = "cache unpin",
    .summary = "let a pin go before its end",
    .synopsis = "cache unpin NAME [-m MODEL.gguf]",
    .run = run_unpin,
};
