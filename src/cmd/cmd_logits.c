/*
 * `firn logits`: the logits of a token list, position by position, as raw numbers. For comparing this engine with
 * others, and with itself in another chunk size, number of threads or state type.
 *
 * Owns the reading of the id list and the output file. The file appears only when it is complete.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "firn/model.h"

#define TOKENS_FILE_BYTES_MAX ((size_t)64 << 20)
#define CHUNK_MAX 4096u

typedef struct logits_flags {
    const char *model;
    const char *tokens;
    const char *out;
    const char *kv;
    const char *kernel;
    uint32_t chunk;
    uint32_t n_threads;
} logits_flags;

/* Everything that is open during a run, so that one place closes it. */
typedef struct logits_run {
    const firni_command *command;
    const firn_env *env;
    firn_token *tokens;
    uint32_t n_tokens;
    firn_workers *workers;
    firn_model *model;
    firn_pool *pool;
    firn_cache **caches;
    float *logits;
    FILE *out;
    char *partial_path;
} logits_run;

/* The whole file as a string, malloc'ed; NULL with a message already printed. */
static char *read_file(const firni_command *command, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        (void)firni_cmd_fail(command, "cannot open %s: %s", path, strerror(errno));
        return NULL;
    }
    char *text = NULL;
    size_t n = 0;
    size_t capacity = 0;
    for (;;) {
        if (n == capacity) {
            capacity = capacity == 0 ? 65536 : capacity * 2;
            char *grown = capacity <= TOKENS_FILE_BYTES_MAX ? realloc(text, capacity + 1) : NULL;
            if (grown == NULL) {
                (void)firni_cmd_fail(command, "%s is too large", path);
                break;
            }
            text = grown;
        }
        const size_t got = fread(text + n, 1, capacity - n, file);
        n += got;
        if (got == 0) {
            const bool failed = ferror(file) != 0;
            (void)fclose(file);
            if (failed) {
                (void)firni_cmd_fail(command, "cannot read %s: %s", path, strerror(errno));
                free(text);
                return NULL;
            }
            text[n] = '\0';
            return text;
        }
    }
    (void)fclose(file);
    free(text);
    return NULL;
}

/* isspace depends on the locale. */
static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Ids separated by commas, white space around them. Returns the exit status. */
static int parse_tokens(logits_run *run, const char *path, const char *text)
{
    const size_t capacity = strlen(text) / 2 + 1;
    run->tokens = malloc(capacity * sizeof *run->tokens);
    if (run->tokens == NULL) {
        return firni_cmd_fail(run->command, "no memory for the ids of %s", path);
    }
    const char *at = text;
    for (;;) {
        while (is_space(*at)) {
            at++;
        }
        if (*at < '0' || *at > '9') {
            return firni_cmd_fail(run->command, "%s: expected a token id at byte %zu (ids are separated by commas)",
                                  path, (size_t)(at - text));
        }
        uint64_t id = 0;
        for (; *at >= '0' && *at <= '9'; at++) {
            id = id * 10 + (uint64_t)(*at - '0');
            if (id >= FIRN_TOKEN_NONE) {
                return firni_cmd_fail(run->command, "%s: the id at byte %zu is too large", path, (size_t)(at - text));
            }
        }
        run->tokens[run->n_tokens++] = (firn_token)id;
        while (is_space(*at)) {
            at++;
        }
        if (*at == '\0') {
            return 0;
        }
        if (*at != ',') {
            return firni_cmd_fail(run->command, "%s: expected a comma at byte %zu", path, (size_t)(at - text));
        }
        at++;
    }
}

/* Ids are checked against the vocabulary before anything is computed or written. */
static int open_model(logits_run *run, const logits_flags *flags)
{
    firn_error err;
    if (firn_workers_create(flags->n_threads, run->env, &run->workers, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    char label[] = "loading";
    const firn_model_options options = {
        .path = flags->model,
        .kv_dtype = firn_dtype_parse(flags->kv),
        .workers = run->workers,
        .kernel = flags->kernel,
        .max_batch_tokens = flags->chunk,
        .max_rows = 1,
        .progress = firni_cmd_progress,
        .progress_ctx = label,
    };
    if (firn_model_open(&options, run->env, &run->model, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    const uint32_t n_vocab = firn_model_get_info(run->model)->n_vocab;
    for (uint32_t i = 0; i < run->n_tokens; i++) {
        if (run->tokens[i] >= n_vocab) {
            return firni_cmd_fail(run->command, "id %lu at place %lu is outside the model's vocabulary of %lu",
                                  (unsigned long)run->tokens[i], (unsigned long)i, (unsigned long)n_vocab);
        }
    }
    return 0;
}

/* One row in every layer, in a pool that holds exactly what the tokens need. */
static int make_caches(logits_run *run)
{
    firn_error err;
    const firn_schema *schema = firn_model_schema(run->model);
    const firn_pool_options pool_options = { .budget_bytes = UINT64_MAX / 2 };
    run->caches = calloc(schema->n_layers, sizeof(firn_cache *));
    if (run->caches == NULL) {
        return firni_cmd_fail(run->command, "no memory for the caches");
    }
    if (firn_pool_create(&pool_options, run->env, &run->pool, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    for (uint32_t i = 0; i < schema->n_layers; i++) {
        if (firn_cache_create(&schema->layers[i], run->pool, run->env, &run->caches[i], &err) != FIRN_OK ||
            firn_cache_add_row(run->caches[i], &err) != FIRN_OK) {
            return firni_cmd_fail(run->command, "%s", err.message);
        }
    }
    return 0;
}

/* Written under another name, so that a file of the wanted name is always whole. */
static int open_output(logits_run *run, const char *path)
{
    const size_t n_bytes = strlen(path) + sizeof ".partial";
    run->partial_path = malloc(n_bytes);
    if (run->partial_path == NULL) {
        return firni_cmd_fail(run->command, "no memory for the name of the output");
    }
    (void)snprintf(run->partial_path, n_bytes, "%s.partial", path);
    run->out = fopen(run->partial_path, "wb");
    if (run->out == NULL) {
        return firni_cmd_fail(run->command, "cannot create %s: %s", run->partial_path, strerror(errno));
    }
    return 0;
}

/* Floats lie in memory as the format wants them: the processors this is built for are little-endian. */
static int compute(logits_run *run, uint32_t chunk)
{
    firn_error err;
    char label[] = "computing";
    const size_t n_vocab = firn_model_get_info(run->model)->n_vocab;
    uint8_t *want = malloc(chunk);
    run->logits = malloc(chunk * n_vocab * sizeof *run->logits);
    if (want == NULL || run->logits == NULL) {
        free(want);
        return firni_cmd_fail(run->command, "no memory for the logits of %lu tokens", (unsigned long)chunk);
    }
    memset(want, 1, chunk); /* every position */
    int status = 0;
    for (uint32_t done = 0; done < run->n_tokens && status == 0;) {
        const uint32_t left = run->n_tokens - done;
        const uint32_t n = left < chunk ? left : chunk;
        const firn_forward_input input = {
            .tokens = run->tokens + done,
            .counts = &n,
            .n_rows = 1,
            .caches = run->caches,
            .want_logits = want,
            .logits = run->logits,
        };
        if (firn_model_forward(run->model, &input, &err) != FIRN_OK) {
            status = firni_cmd_fail(run->command, "%s", err.message);
        } else if (fwrite(run->logits, n_vocab * sizeof *run->logits, n, run->out) != n) {
            status = firni_cmd_fail(run->command, "cannot write %s: %s", run->partial_path, strerror(errno));
        }
        done += n;
        firni_cmd_progress(label, (float)done / (float)run->n_tokens);
    }
    free(want);
    return status;
}

/* fclose reports what the disk refused late. */
static int finish_output(logits_run *run, const char *path)
{
    FILE *out = run->out;
    run->out = NULL;
    if (fclose(out) != 0 || rename(run->partial_path, path) != 0) {
        const int status = firni_cmd_fail(run->command, "cannot write %s: %s", path, strerror(errno));
        (void)remove(run->partial_path);
        return status;
    }
    return 0;
}

/* Takes a run in any state; what was never opened is NULL. */
static void close_all(logits_run *run)
{
    if (run->out != NULL) {
        (void)fclose(run->out);
        (void)remove(run->partial_path);
    }
    free(run->partial_path);
    free(run->logits);
    for (uint32_t i = 0; run->caches != NULL && i < firn_model_schema(run->model)->n_layers; i++) {
        firn_cache_destroy(run->caches[i]);
    }
    free(run->caches);
    if (run->pool != NULL) {
        firn_pool_destroy(run->pool);
    }
    firn_model_close(run->model);
    firn_workers_destroy(run->workers);
    free(run->tokens);
}

/* Steps in order; each prints its own message and returns the exit status. */
static int execute(logits_run *run, const logits_flags *flags)
{
    char *text = read_file(run->command, flags->tokens);
    if (text == NULL) {
        return 1;
    }
    int status = parse_tokens(run, flags->tokens, text);
    free(text);
    if (status == 0) {
        status = open_model(run, flags);
    }
    if (status == 0) {
        status = make_caches(run);
    }
    if (status == 0) {
        status = open_output(run, flags->out);
    }
    if (status == 0) {
        status = compute(run, flags->chunk);
    }
    return status == 0 ? finish_output(run, flags->out) : status;
}

static int run_logits(const firni_command *self, int argc, char **argv)
{
    logits_flags f = { .kv = "f32", .chunk = 256 };
    const firni_flag flags[] = {
        { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &f.model, .value_name = "FILE",
          .help = "GGUF model; the built-in one when absent" },
        { .name = "tokens", .kind = FIRNI_FLAG_STRING, .target = &f.tokens, .value_name = "FILE",
          .help = "token ids, separated by commas" },
        { .name = "out", .letter = 'o', .kind = FIRNI_FLAG_STRING, .target = &f.out, .value_name = "FILE",
          .help = "where the logits go: float32, little-endian, [tokens, vocabulary]" },
        { .name = "chunk", .kind = FIRNI_FLAG_U32, .target = &f.chunk, .value_name = "TOKENS",
          .help = "tokens per forward; changes no bits", .min = 1, .max = CHUNK_MAX },
        { .name = "threads", .kind = FIRNI_FLAG_U32, .target = &f.n_threads, .value_name = "N",
          .help = "threads, 0 for all processors; changes no bits", .min = 0, .max = 64 },
        { .name = "kv", .kind = FIRNI_FLAG_STRING, .target = &f.kv, .value_name = "TYPE",
          .help = "element type of the attention state", .choices = "f32|f16|bf16" },
        { .name = "kernel", .kind = FIRNI_FLAG_STRING, .target = &f.kernel, .value_name = "NAME",
          .help = "kernel variant (scalar, avx2, ...); the best of this processor when absent" },
    };
    uint32_t n_positional = 0;
    bool done = false;
    const uint32_t n_flags = sizeof flags / sizeof flags[0];
    int status = firni_flags_parse(self, flags, n_flags, argc, argv, NULL, 0, &n_positional, &done);
    if (done) {
        return status;
    }
    if (f.tokens == NULL || f.out == NULL) {
        return firni_cmd_usage(self, "--tokens and --out are required");
    }
    char *builtin = f.model == NULL ? firni_cmd_builtin_model() : NULL;
    if (f.model == NULL && builtin == NULL) {
        return firni_cmd_usage(self, "-m is required: the built-in model was not found");
    }
    f.model = f.model == NULL ? builtin : f.model;
    logits_run run = { .command = self, .env = firni_cmd_env(FIRN_LOG_WARN) };
    status = execute(&run, &f);
    close_all(&run);
    free(builtin);
    return status;
}

const firni_command firni_cmd_logits = {
    .name = "logits",
    .summary = "write the logits of every position of a token list",
    .synopsis = "logits -m MODEL.gguf --tokens FILE --out FILE [flags]",
    .details = "The result depends on the model, the tokens and --kv alone. Two runs with other chunks, threads or\n"
               "kernels can be compared with cmp.",
    .run = run_logits,
};
