/*
 * firn cache export and import: sessions between a cache directory and files of their own, without a server. Owns the
 * commands' flags and what is printed.
 *
 * Both open the model, whose identity the state belongs to. Exporting only reads, and may be done while a server runs;
 * importing writes, and is refused then.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"
#include "cmd/stack.h"
#include "firn/keep.h"
#include "firn/session_file.h"

#define SECOND_NS        UINT64_C(1000000000)
#define PROMPT_BYTES_MAX ((size_t)1 << 28)

typedef struct session_options {
    firni_stack_options stack;
    const char *ns, *parent, *session, *prompt_path, *out_path;
    uint64_t ttl_ns;
    char full_ns[FIRN_NAMESPACE_BYTES_MAX + 1];
} session_options;

typedef struct token_path {
    firn_token *tokens; /* malloc'ed, as the tokenizer gives it */
    uint32_t n_tokens;
} token_path;

static int open_stack(const firni_command *self, session_options *options, firni_stack **out)
{
    firn_error err = { 0 };
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    options->stack.no_engine = true;
    options->stack.progress = firni_cmd_progress;
    static char label[] = "loading the model";
    options->stack.progress_label = label;
    char named[FIRN_NAMESPACE_BYTES_MAX + 1];
    const int flagged = firni_ns_flag(self, &options->ns, named);
    if (flagged != 0) {
        return flagged;
    }
    const char *name = options->ns != NULL ? options->ns : "";
    firn_status status = FIRN_OK;
    if (options->parent != NULL) {
        status = firn_namespace_below(options->parent, name, options->full_ns, &err);
    } else {
        memcpy(options->full_ns, name, strlen(name) + 1);
    }
    if (status == FIRN_OK) {
        status = firni_stack_open(&options->stack, env, out, &err);
    }
    if (status == FIRN_OK && (*out)->tier == NULL) {
        status = firni_fail(&err, FIRN_ERR_IO, "there is no cache to use: %.300s", (*out)->disk_message);
        firni_stack_close(*out, 0, NULL);
        *out = NULL;
    }
    return status == FIRN_OK ? 0 : firni_cmd_fail(self, "%s", err.message);
}

/* ---- export ------------------------------------------------------------------------------------------------------ */

static int read_prompt(const firni_command *self, const firni_stack *stack, const char *file, token_path *prompt)
{
    size_t n_bytes;
    firn_error err = { 0 };
    char *text = firni_cmd_read_file(self, file, PROMPT_BYTES_MAX, &n_bytes);
    if (text == NULL) {
        return 1;
    }
    const firn_encode_options encode = { .add_bos = true };
    const firn_status status = firn_tokenizer_encode(firn_model_tokenizer(stack->model), text, n_bytes, &encode,
                                                     &prompt->tokens, &prompt->n_tokens, &err);
    free(text);
    return status == FIRN_OK ? 0 : firni_cmd_fail(self, "%s: %s", file, err.message);
}

static bool write_file(void *ctx, const void *bytes, size_t n_bytes)
{
    return fwrite(bytes, 1, n_bytes, ctx) == n_bytes;
}

/* Of a session all of it; of a prompt what is stored of its beginning. */
static int export_path(const firni_command *self, const firni_stack *stack, const session_options *options,
                       const token_path *prompt)
{
    FILE *file = fopen(options->out_path, "wbx");
    if (file == NULL) {
        return firni_cmd_fail(self, "cannot write %s: %s", options->out_path, strerror(errno));
    }
    const firn_schema *schema = firn_model_schema(stack->model);
    firn_error err = { 0 };
    uint32_t n_tokens;
    firn_status status =
        options->session != NULL
            ? firn_session_export(stack->tier, schema, options->full_ns, options->session, write_file, file, stack->env,
                                  &n_tokens, &err)
            : firn_session_export_prompt(stack->tier, schema, options->full_ns, prompt->tokens, prompt->n_tokens,
                                         write_file, file, stack->env, &n_tokens, &err);
    if (fclose(file) != 0 && status == FIRN_OK) {
        status = firni_fail(&err, FIRN_ERR_IO, "%s", strerror(errno));
    }
    if (status != FIRN_OK) {
        (void)remove(options->out_path); /* half a file would only be found to be one later */
        return firni_cmd_fail(self, "nothing is exported to %s: %s", options->out_path, err.message);
    }
    (void)printf("%s: %" PRIu32 " tokens\n", options->out_path, n_tokens);
    return 0;
}

static int run_export(const firni_command *self, int argc, char **argv)
{
    session_options options = { .stack = { .disk_share = true } };
    const firni_flag flags[] = {
        FIRNI_STACK_FLAGS(options.stack),
        { .name = "session", .kind = FIRNI_FLAG_STRING, .target = &options.session, .value_name = "ID",
          .help = "the conversation to export" },
        { .name = "prompt", .kind = FIRNI_FLAG_STRING, .target = &options.prompt_path, .value_name = "FILE",
          .help = "or: what is stored of this prompt's beginning" },
        { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &options.ns, .value_name = "NAME",
          .help = "its cache namespace (default: none)" },
        { .name = "parent", .kind = FIRNI_FLAG_STRING, .target = &options.parent, .value_name = "NAME",
          .help = "the namespace above that one, if there is one" },
        { .name = "output", .letter = 'o', .kind = FIRNI_FLAG_STRING, .target = &options.out_path, .value_name = "FILE",
          .help = "the file to write; it must not exist yet" },
    };
    bool done = false;
    uint32_t n_positional = 0;
    const int parsed =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, &n_positional, &done);
    if (done) {
        return parsed;
    }
    if ((options.session != NULL) == (options.prompt_path != NULL) || options.out_path == NULL) {
        return firni_cmd_usage(self,
                               "say what to export, with --session ID or --prompt FILE, and where to, with -o FILE");
    }
    firni_stack *stack = NULL;
    int status = open_stack(self, &options, &stack);
    if (status != 0) {
        return status;
    }
    token_path prompt = { .tokens = NULL };
    if (options.prompt_path != NULL) {
        status = read_prompt(self, stack, options.prompt_path, &prompt);
    }
    if (status == 0) {
        status = export_path(self, stack, &options, &prompt);
    }
    free(prompt.tokens);
    firni_stack_close(stack, 0, NULL);
    return status;
}

/* ---- import ------------------------------------------------------------------------------------------------------ */

static bool read_file(void *ctx, void *bytes, size_t n_bytes)
{
    return fread(bytes, 1, n_bytes, ctx) == n_bytes;
}

static int import_file(const firni_command *self, const firni_stack *stack, const session_options *options,
                       const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        return firni_cmd_fail(self, "%s: %s", path, strerror(errno));
    }
    firn_restored restored;
    firn_error err = { 0 };
    char id[FIRN_SESSION_ID_BYTES_MAX + 1];
    const firn_status status = firn_session_read(firn_model_schema(stack->model), stack->pool, read_file, file,
                                                 stack->env, &restored, id, &err);
    (void)fclose(file);
    if (status != FIRN_OK) {
        return firni_cmd_fail(self, "%s: %s", path, err.message);
    }
    const char *name = options->session != NULL ? options->session : id[0] != '\0' ? id : "imported";
    bool is_pinned;
    firn_reason reason;
    const firn_status kept = firn_session_keep(stack->tier, options->full_ns, name, &restored,
                                               firni_wall_ns(stack->env) + options->ttl_ns, &is_pinned, &reason, &err);
    if (kept == FIRN_OK) {
        (void)printf("session \"%s\": %" PRIu32 " tokens%s\n", name, restored.n_tokens,
                     is_pinned ? "" : "; it could not be pinned");
    }
    firn_restored_deinit(&restored);
    return kept == FIRN_OK ? 0 : firni_cmd_fail(self, "%s", err.message);
}

static int run_import(const firni_command *self, int argc, char **argv)
{
    session_options options = { .ttl_ns = UINT64_C(86400) * SECOND_NS };
    const firni_flag flags[] = {
        FIRNI_STACK_FLAGS(options.stack),
        { .name = "session", .kind = FIRNI_FLAG_STRING, .target = &options.session, .value_name = "ID",
          .help = "the name it gets (default: the one in the file)" },
        { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &options.ns, .value_name = "NAME",
          .help = "the cache namespace it goes into (default: none)" },
        { .name = "parent", .kind = FIRNI_FLAG_STRING, .target = &options.parent, .value_name = "NAME",
          .help = "the namespace above that one, if there is one" },
        { .name = "pin-ttl", .kind = FIRNI_FLAG_SECONDS, .target = &options.ttl_ns, .value_name = "TIME",
          .help = "how long it stays pinned", .min = 1, .max = 315360000 },
    };
    const char *path = NULL;
    bool done = false;
    uint32_t n_positional = 0;
    const int parsed =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &path, 1, &n_positional, &done);
    if (done) {
        return parsed;
    }
    if (path == NULL) {
        return firni_cmd_usage(self, "name the file to import");
    }
    firni_stack *stack = NULL;
    int status = open_stack(self, &options, &stack);
    if (status != 0) {
        return status;
    }
    status = stack->disk_state == FIRN_REASON_NONE ? import_file(self, stack, &options, path)
                                                   : firni_cmd_fail(self, "%s", stack->disk_message);
    firni_stack_close(stack, 0, NULL);
    return status;
}

const firni_command firni_cache_export = {
    .name = "cache export",
    .summary = "write a conversation's state into a file of its own",
    .synopsis = "cache export -m MODEL.gguf --session ID -o FILE [flags]",
    .details = "The file can be kept, moved and imported elsewhere by a server with the same model. A server may be\n"
               "using the directory; GET /v1/firn/sessions/ID/export does the same over HTTP.",
    .run = run_export,
};

const firni_command firni_cache_import = {
    .name = "cache import",
    .summary = "put an exported conversation into a cache directory",
    .synopsis = "cache import -m MODEL.gguf FILE [flags]",
    .details = "Refused, naming what differs, when the file was made by another model; and while a server is using\n"
               "the directory: POST /v1/firn/sessions/import does the same over HTTP.",
    .run = run_import,
};
