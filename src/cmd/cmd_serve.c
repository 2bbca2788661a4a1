/*
 * firn serve: the stack behind the HTTP API, from flags to an orderly stop. Owns what is printed and the order of start
 * and stop; not the stack's assembly (stack.c), not the server.
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/stack.h"
#include "cmd/stop_signal.h"
#include "cmd/warm_files.h"
#include "firn/stack.h"
#include "server/server_impl.h"

#define FLUSH_BOUND_NS (UINT64_C(60) * 1000000000u)
#define KEYS_BYTES_MAX ((size_t)1 << 24)

typedef struct serve_options {
    firni_stack_options stack;
    firni_server_options server;
    const char *config;
    const char *log_level;
    const char *keys_path;
    const char *warm_path;
    uint64_t warm_ttl_ns;
    uint64_t stop_ns;
    uint64_t idle_ns;
    firni_api_keys keys;
} serve_options;

static firn_log_level level_of(const char *name)
{
    static const char *const names[] = { "error", "warn", "info", "debug" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            return (firn_log_level)i;
        }
    }
    return FIRN_LOG_WARN;
}

/* Budgets and the directory's state; without a tier, why there is none: nobody should have to look for that in a
 * log. */
static void print_cache(const firni_stack *stack, const char *cache_below)
{
    char ram[FIRNI_SIZE_TEXT_BYTES], disk[FIRNI_SIZE_TEXT_BYTES], used[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("  cache     RAM %s", firni_cmd_size_text(stack->ram_budget_bytes, ram));
    if (stack->tier == NULL) {
        (void)printf("; no disk (%s): %s\n", firn_reason_name(stack->disk_state), stack->disk_message);
        return;
    }
    firn_tier_stats stats;
    firn_stack_stats both;
    firn_tier_get_stats(stack->tier, &stats);
    if (firn_stack_get_stats(stack->tier, &both)) {
        stats = both.upper;
    }
    (void)printf("; disk %s in %s (%" PRIu64 " records, %s used)\n",
                 firni_cmd_size_text(stack->disk_budget_bytes, disk), stack->cache_dir, stats.n_records,
                 firni_cmd_size_text(stats.physical_bytes, used));
    if (firn_stack_get_stats(stack->tier, &both)) {
        (void)printf("            over %s in %s (%" PRIu64 " records, %s used)\n",
                     firni_cmd_size_text(both.lower.budget_bytes, disk), cache_below, both.lower.n_records,
                     firni_cmd_size_text(both.lower.physical_bytes, used));
    }
    if (stack->disk_state != FIRN_REASON_NONE) {
        (void)printf("            %s: %s\n", firn_reason_name(stack->disk_state), stack->disk_message);
    }
}

/* All that someone needs who has just started it for the first time. */
static void print_ready(const firni_stack *stack, const firni_server *server, const serve_options *options)
{
    const firn_model_info *info = firn_model_get_info(stack->model);
    const firn_tokenizer *tokenizer = firn_model_tokenizer(stack->model);
    const char *url = firni_server_url(server);
    (void)printf("listening on %s\n", url);
    (void)printf("  model     %s (%s, %.3g M parameters, %s), %s\n", info->name, info->architecture,
                 (double)info->n_params * 1e-6, info->weight_type, stack->model_path);
    const uint32_t n_threads = firn_workers_count(stack->workers);
    (void)printf("  kernel    %s, %u thread%s\n", info->kernel, (unsigned)n_threads, n_threads == 1 ? "" : "s");
    if (stack->draft_name != NULL) {
        (void)printf("  draft     %s\n", stack->draft_name);
    }
    print_cache(stack, options->stack.cache_below);
    (void)printf("\n  curl %s/v1/completions -H 'Content-Type: application/json'%s \\\n"
                 "    -d '{\"prompt\": \"My dear sister,\", \"max_tokens\": 40}'\n\n", url,
                 options->server.api_key != NULL ? " -H \"Authorization: Bearer $FIRN_API_KEY\"" : "");
    if (stack->is_builtin) {
        (void)printf("This is the built-in model: it writes period prose and does not chat. Serve another with\n"
                     "  firn serve -m MODEL.gguf\n");
    } else if (firn_tokenizer_chat_family(tokenizer) == NULL) {
        (void)printf(
            "The model's chat template is not recognised: /v1/chat/completions is refused, /v1/completions works.\n");
    }
    if (firni_server_is_exposed(server)) {
        (void)printf("Anyone who can reach this address may use it: set FIRN_API_KEY to ask for a key.\n");
    }
    (void)printf("Ctrl-C stops and saves.\n");
    (void)fflush(stdout);
}

/* The last line: whoever restarts wants to know whether anything was lost. */
static void print_flushed(const firn_flush_report *report)
{
    (void)printf("saved %" PRIu64 " prefixes, %" PRIu64 " could not be saved (%.1f s)\n", report->n_flushed,
                 report->n_missing + report->n_failed, (double)report->elapsed_ns * 1e-9);
    (void)fflush(stdout);
}

/* ---- what is done while serving -------------------------------------------------------------------------------- */

/* On the keeper's thread. */
static void on_flushed(void *ctx, const firn_flush_report *report)
{
    (void)ctx;
    (void)printf("flushed: %s, %" PRIu64 " saved, %" PRIu64 " missing, %" PRIu64 " failed (%.1f s)\n",
                 report->durable ? "durable" : "not durable", report->n_flushed, report->n_missing, report->n_failed,
                 (double)report->elapsed_ns * 1e-9);
    (void)fflush(stdout);
}

/* SIGUSR1, on the signal thread. */
static void flush_on_signal(void *ctx)
{
    (void)firn_engine_flush(ctx, FLUSH_BOUND_NS, on_flushed, NULL, NULL);
}

/* The file of keys, which nobody else should be able to read. */
static int read_keys(const firni_command *self, serve_options *options, const firn_env *env)
{
    size_t n_bytes;
    firn_error err = { 0 };
    if (options->keys_path == NULL) {
        return 0;
    }
    char *text = firni_cmd_read_file(self, options->keys_path, KEYS_BYTES_MAX, &n_bytes);
    if (text == NULL) {
        return 1;
    }
    const firn_status status = firni_api_keys_parse(text, env, &options->keys, &err);
    free(text);
    if (status != FIRN_OK) {
        return firni_cmd_fail(self, "%s: %s", options->keys_path, err.message);
    }
    options->server.keys = &options->keys;
    return 0;
}

/* From open to closed. Everything that was opened is closed on every path, in reverse. */
static int serve(const firni_command *self, serve_options *options, const firn_env *env)
{
    firn_error err = { 0 };
    firni_stop_signal *stop = NULL;
    firni_stack *stack = NULL;
    firni_server *server = NULL;
    firni_warmer warmer = { .env = env };
    bool has_warmer = false;
    int exit_status = 1;

    if (read_keys(self, options, env) != 0) {
        return 1;
    }
    if (firni_stop_signal_create(env, &stop, &err) != FIRN_OK ||
        firni_stack_open(&options->stack, env, &stack, &err) != FIRN_OK) {
        (void)firni_cmd_fail(self, "%s", err.message);
        goto done;
    }
    if (stack->tier == NULL && stack->disk_state != FIRN_REASON_DISABLED) {
        firni_log(env, FIRN_LOG_WARN, "no disk cache (%s): %s; serving with RAM only",
                  firn_reason_name(stack->disk_state), stack->disk_message);
    }
    if (stack->below_message[0] != '\0') {
        firni_log(env, FIRN_LOG_WARN, "one cache directory of two: %s", stack->below_message);
    }
    options->server.engine = stack->engine;
    options->server.model = stack->model;
    options->server.ctx_tokens_max = options->stack.ctx_tokens_max;
    options->server.disk_state = stack->disk_state;
    options->server.tier = stack->disk_state == FIRN_REASON_NONE ? stack->tier : NULL;
    options->server.pool = stack->pool;
    options->server.warmer = &warmer;
    warmer = (firni_warmer){ .engine = stack->engine,
                             .tier = options->server.tier,
                             .model = stack->model,
                             .parent = options->server.parent,
                             .ttl_ns = options->warm_ttl_ns,
                             .env = env };
    firni_warmer_init(&warmer);
    has_warmer = true;
    if (options->warm_path != NULL && firni_warm_files(self, &warmer, options->warm_path) != 0) {
        goto done;
    }
    if (firni_server_start(&options->server, env, &server, &err) != FIRN_OK) {
        (void)firni_cmd_fail(self, "%s", err.message);
        goto done;
    }
    firni_stop_signal_arm(stop);
    firni_stop_signal_on_user(stop, flush_on_signal, stack->engine);
    print_ready(stack, server, options);

    (void)firni_stop_signal_wait(stop);
    firni_stop_signal_on_user(stop, NULL, NULL);
    (void)printf("stopping: running requests have %.0f s (once more ends it at once)\n",
                 (double)options->stop_ns * 1e-9 / 2);
    (void)fflush(stdout);
    exit_status = 0;

done:;
    /* The server takes up to half of the time for running requests; what is left belongs to the cache. */
    const uint64_t begin_ns = firni_now_ns(env);
    firni_server_stop(server, options->stop_ns / 2);
    const uint64_t used_ns = firni_now_ns(env) - begin_ns;
    firn_flush_report report;
    const bool served = server != NULL;
    const bool has_disk = stack != NULL && stack->tier != NULL && stack->disk_state == FIRN_REASON_NONE;
    firni_stack_close(stack, used_ns < options->stop_ns ? options->stop_ns - used_ns : 0, &report);
    if (served && has_disk) {
        print_flushed(&report);
    }
    if (has_warmer) {
        firni_warmer_deinit(&warmer);
    }
    firni_api_keys_deinit(&options->keys);
    firni_stop_signal_destroy(stop);
    return exit_status;
}

/* Flags, then the environment, then serve(). */
static int run(const firni_command *self, int argc, char **argv)
{
    serve_options options = {
        .stack = { .progress = firni_cmd_progress },
        .server = { .host = "127.0.0.1", .port = 8080, .body_bytes_max = UINT64_C(8) << 20, .connections_max = 256,
                    .request_ns_max = UINT64_C(3600) * 1000000000u,
                    .sse_quiet_ns_max = UINT64_C(5) * 1000000000u },
        .log_level = "warn",
        .stop_ns = UINT64_C(10) * 1000000000u,
        .idle_ns = UINT64_C(60) * 1000000000u,
        .warm_ttl_ns = UINT64_C(86400) * 1000000000u,
    };
    options.server.import_bytes_max = UINT64_C(1) << 30;
    static char label[] = "loading the model";
    options.stack.progress_label = label;
    /* clang-format off */
    const firni_flag flags[] = {
        FIRNI_STACK_FLAGS(options.stack),
        { .name = "host", .kind = FIRNI_FLAG_STRING, .target = &options.server.host, .value_name = "ADDRESS",
          .help = "address to listen on; 0.0.0.0 for all (then use --api-key)" },
        { .name = "port", .letter = 'p', .kind = FIRNI_FLAG_U32, .target = &options.server.port, .value_name = "N",
          .help = "port to listen on (0: any free one)", .min = 0, .max = 65535 },
        { .name = "api-key", .kind = FIRNI_FLAG_STRING, .target = &options.server.api_key, .value_name = "KEY",
          .help = "key that requests must carry; better in the environment as FIRN_API_KEY" },
        { .name = "keys", .kind = FIRNI_FLAG_STRING, .target = &options.keys_path, .value_name = "FILE",
          .help = "users' keys: lines of a key, the cache namespace it is bound to, and perhaps that one's parent" },
        { .name = "parent", .kind = FIRNI_FLAG_STRING, .target = &options.server.parent, .value_name = "NAMESPACE",
          .help = "cache namespace that all requests read and none writes: for warm-ups" },
        { .name = "warm", .kind = FIRNI_FLAG_STRING, .target = &options.warm_path, .value_name = "FILE|DIR",
          .help = "read these prompts before the first request, and pin them: .txt, or .json with prompt or messages" },
        { .name = "warm-ttl", .kind = FIRNI_FLAG_SECONDS, .target = &options.warm_ttl_ns, .value_name = "TIME",
          .help = "how long a warm-up stays pinned that says no other", .min = 1, .max = 315360000 },
        { .name = "checkpoint-tokens", .kind = FIRNI_FLAG_U32, .target = &options.stack.checkpoint_tokens,
          .value_name = "N", .help = "requests with firn_request_id can go on after a crash: store their state every N "
          "generated tokens (0: no)", .min = 0, .max = 1048576 },
        { .name = "checkpoint-ttl", .kind = FIRNI_FLAG_SECONDS, .target = &options.stack.checkpoint_ttl_ns,
          .value_name = "TIME", .help = "how long such a state is kept that nobody comes back for (0: 1h)" },
        { .name = "max-import", .kind = FIRNI_FLAG_BYTES, .target = &options.server.import_bytes_max,
          .value_name = "BYTES", .help = "largest session that is imported or exported", .min = 4096,
          .max = 1099511627776.0 },
        { .name = "cors", .kind = FIRNI_FLAG_STRING, .target = &options.server.cors_origin, .value_name = "ORIGIN",
          .help = "origin whose pages may call this server, or * (default: none)" },
        { .name = "max-body", .kind = FIRNI_FLAG_BYTES, .target = &options.server.body_bytes_max, .value_name = "BYTES",
          .help = "largest request body", .min = 1024, .max = 1073741824 },
        { .name = "connections", .kind = FIRNI_FLAG_U32, .target = &options.server.connections_max, .value_name = "N",
          .help = "most connections at once", .min = 1, .max = 4096 },
        { .name = "idle-seconds", .kind = FIRNI_FLAG_SECONDS, .target = &options.idle_ns, .value_name = "TIME",
          .help = "a connection that sends and takes nothing for this long is closed", .min = 1, .max = 86400 },
        { .name = "request-seconds", .kind = FIRNI_FLAG_SECONDS, .target = &options.server.request_ns_max,
          .value_name = "TIME", .help = "most time of one request, waiting included", .min = 1, .max = 604800 },
        { .name = "keep-alive-seconds", .kind = FIRNI_FLAG_SECONDS, .target = &options.server.sse_quiet_ns_max,
          .value_name = "TIME", .help = "a stream that is still reading its prompt sends a comment this often",
          .min = 0.1, .max = 3600 },
        { .name = "stop-seconds", .kind = FIRNI_FLAG_SECONDS, .target = &options.stop_ns, .value_name = "TIME",
          .help = "time for running requests and for saving state at the end", .min = 0.1, .max = 3600 },
        { .name = "log-level", .kind = FIRNI_FLAG_STRING, .target = &options.log_level, .value_name = "LEVEL",
          .help = "what is logged to stderr: error, warn, info (a line for each request), debug",
          .choices = "error|warn|info|debug" },
        { .name = "config", .kind = FIRNI_FLAG_STRING, .target = &options.config, .value_name = "FILE",
          .help = "read flags from FILE (\"port = 8080\" lines); the command line wins" },
    };
    /* clang-format on */
    bool done = false;
    uint32_t n_positional = 0;
    const int status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, &n_positional, &done);
    if (done) {
        return status;
    }
    if (options.server.api_key == NULL) {
        const char *key = getenv("FIRN_API_KEY");
        options.server.api_key = key != NULL && key[0] != '\0' ? key : NULL;
    } else if (options.server.api_key[0] == '\0') {
        return firni_cmd_usage(self, "--api-key must not be empty");
    }
    options.server.idle_seconds = (uint32_t)(options.idle_ns / 1000000000u);
    (void)signal(SIGPIPE, SIG_IGN); /* a closed pipe on stdout must not end the server */
    return serve(self, &options, firni_cmd_env(level_of(options.log_level)));
}

const firni_command firni_cmd_serve = {
    .name = "serve",
    .summary = "serve a model over the OpenAI HTTP API",
    .synopsis = "serve [-m MODEL.gguf] [flags]",
    .details =
        "Endpoints: POST /v1/completions, POST /v1/chat/completions, GET /v1/models, GET /health, GET /metrics; and,\n"
        "to keep state, POST /v1/firn/warm, POST /v1/firn/flush (or SIGUSR1), GET and DELETE /v1/firn/pins,\n"
        "GET /v1/firn/sessions, GET .../ID/export, POST .../import: see docs/OPERATIONS.md.\n"
        "State is kept in RAM and, across restarts, in the cache directory. One directory serves several models,\n"
        "one process at a time.",
    .run = run,
};
