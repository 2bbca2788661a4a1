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
#include "cmd/kv_flag.h"
#include "cmd/single_row.h"

#define TOKENS_FILE_BYTES_MAX ((size_t)64 << 20)
#define CHUNK_MAX 4096u

typedef struct logits_flags {
    const char *model;
    const char *tokens;
    const char *out;
    const char *kv;
    const char *kv_group;
    uint32_t kv_delay_tokens;
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
    firni_single_row row;
    float *logits;
    FILE *out;
    char *partial_path;
} logits_run;

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
    char label[] = "loading";
    firn_model_options options = {
        .path = flags->model,
        .kernel = flags->kernel,
        .max_batch_tokens = flags->chunk,
        .progress = firni_cmd_progress,
        .progress_ctx = label,
    };
    if (firni_kv_set(flags->kv, flags->kv_group, flags->kv_delay_tokens, &options, &err) != FIRN_OK) {
        return firni_cmd_usage(run->command, "%s", err.message);
    }
    if (firni_single_row_open(&run->row, &options, flags->n_threads, run->env, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    const uint32_t n_vocab = firn_model_get_info(run->row.model)->n_vocab;
    for (uint32_t i = 0; i < run->n_tokens; i++) {
        if (run->tokens[i] >= n_vocab) {
            return firni_cmd_fail(run->command, "id %lu at place %lu is outside the model's vocabulary of %lu",
                                  (unsigned long)run->tokens[i], (unsigned long)i, (unsigned long)n_vocab);
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
    const size_t n_vocab = firn_model_get_info(run->row.model)->n_vocab;
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
        if (firni_single_row_forward(&run->row, run->tokens + done, n, want, run->logits, &err) != FIRN_OK) {
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
    firni_single_row_close(&run->row);
    free(run->tokens);
}

/* Steps in order; each prints its own message and returns the exit status. */
static int execute(logits_run *run, const logits_flags *flags)
{
    size_t len_bytes;
    char *text = firni_cmd_read_file(run->command, flags->tokens, TOKENS_FILE_BYTES_MAX, &len_bytes);
    if (text == NULL) {
        return 1;
    }
    int status = parse_tokens(run, flags->tokens, text);
    free(text);
    if (status == 0) {
        status = open_model(run, flags);
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
          .help = "threads, 0 for the cores that it may use; changes no bits", .min = 0, .max = 64 },
        FIRNI_KV_FLAGS(f.kv, f.kv_group, f.kv_delay_tokens),
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
