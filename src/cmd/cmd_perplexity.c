/*
 * `firn perplexity`: how well a model, with its weight type and its cache scheme, predicts a text.
 *
 *      text -> ids -> windows    BOS a b c ... | BOS m n o ... |   each read from an empty row; every token but BOS
 *                                                                  is scored by what the model expected in its place
 *
 * The figures are comparable between cache schemes and weight types of one model, and between models only where their
 * vocabularies agree; bits per byte compare any two. Logarithms and sums are taken in double precision.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "cmd/kv_flag.h"
#include "cmd/single_row.h"

#define CHUNK_TOKENS 64u /* of one forward: its logits stay small for any vocabulary */

typedef struct perplexity_flags {
    const char *model;
    const char *kv;
    const char *kv_group;
    uint32_t kv_delay_tokens;
    const char *kernel;
    uint32_t window;
    uint32_t n_tokens_max;
    uint32_t n_threads;
} perplexity_flags;

typedef struct perplexity_run {
    const firni_command *command;
    firni_single_row row;
    firn_token *tokens;
    uint32_t n_tokens;
    float *logits;      /* [CHUNK_TOKENS, n_vocab] */
    uint32_t n_scored;
    uint64_t n_bytes;   /* that the scored tokens stand for */
    double nll;         /* sum of -ln p */
} perplexity_run;

/* -ln of the softmax's share of `token`. */
static double negative_log_likelihood(const float *logits, uint32_t n_vocab, firn_token token)
{
    double max = -INFINITY;
    for (uint32_t i = 0; i < n_vocab; i++) {
        max = (double)logits[i] > max ? (double)logits[i] : max;
    }
    double sum = 0.0;
    for (uint32_t i = 0; i < n_vocab; i++) {
        sum += exp((double)logits[i] - max);
    }
    return log(sum) + max - (double)logits[token];
}

static int open_all(perplexity_run *run, const perplexity_flags *flags, const char *text, size_t len_bytes)
{
    firn_error err;
    char label[] = "loading";
    firn_model_options options = {
        .path = flags->model,
        .kernel = flags->kernel,
        .max_batch_tokens = CHUNK_TOKENS,
        .progress = firni_cmd_progress,
        .progress_ctx = label,
    };
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    if (firni_kv_set(flags->kv, flags->kv_group, flags->kv_delay_tokens, &options, &err) != FIRN_OK) {
        return firni_cmd_usage(run->command, "%s", err.message);
    }
    if (firni_single_row_open(&run->row, &options, flags->n_threads, env, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    const firn_encode_options encode = { .add_bos = false };
    const firn_tokenizer *tokenizer = firn_model_tokenizer(run->row.model);
    if (firn_tokenizer_encode(tokenizer, text, len_bytes, &encode, &run->tokens, &run->n_tokens, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    run->logits = malloc(CHUNK_TOKENS * (size_t)firn_model_get_info(run->row.model)->n_vocab * sizeof(float));
    return run->logits != NULL ? 0 : firni_cmd_fail(run->command, "no memory for the logits of a chunk");
}

/* The last token of a window is scored but not read: nothing follows it. */
static int score_window(perplexity_run *run, const firn_token *window, uint32_t n_tokens)
{
    firn_error err;
    uint8_t want[CHUNK_TOKENS];
    const firn_tokenizer *tokenizer = firn_model_tokenizer(run->row.model);
    const uint32_t n_vocab = firn_model_get_info(run->row.model)->n_vocab;
    memset(want, 1, sizeof want);
    if (firni_single_row_restart(&run->row, &err) != FIRN_OK) {
        return firni_cmd_fail(run->command, "%s", err.message);
    }
    for (uint32_t done = 0; done + 1 < n_tokens;) {
        const uint32_t left = n_tokens - 1 - done;
        const uint32_t n = left < CHUNK_TOKENS ? left : CHUNK_TOKENS;
        if (firni_single_row_forward(&run->row, window + done, n, want, run->logits, &err) != FIRN_OK) {
            return firni_cmd_fail(run->command, "%s", err.message);
        }
        for (uint32_t i = 0; i < n; i++) {
            const firn_token token = window[done + i + 1];
            uint32_t len_bytes = 0;
            (void)firn_tokenizer_piece(tokenizer, token, &len_bytes);
            run->nll += negative_log_likelihood(run->logits + (size_t)i * n_vocab, n_vocab, token);
            run->n_bytes += len_bytes;
            run->n_scored++;
        }
        done += n;
    }
    return 0;
}

/* Windows do not overlap. Without a BOS in the vocabulary the first token of each is read and not scored. */
static int score_all(perplexity_run *run, uint32_t window_tokens)
{
    const firn_token bos = firn_tokenizer_bos(firn_model_tokenizer(run->row.model));
    const uint32_t n_lead = bos != FIRN_TOKEN_NONE ? 1 : 0;
    char label[] = "scoring";
    firn_token *window = malloc(window_tokens * sizeof *window);
    if (window == NULL) {
        return firni_cmd_fail(run->command, "no memory for a window of %lu tokens", (unsigned long)window_tokens);
    }
    int status = 0;
    for (uint32_t done = 0; done < run->n_tokens && status == 0;) {
        const uint32_t left = run->n_tokens - done;
        const uint32_t n = left < window_tokens - n_lead ? left : window_tokens - n_lead;
        if (n_lead > 0) {
            window[0] = bos;
        }
        memcpy(window + n_lead, run->tokens + done, n * sizeof *window);
        status = score_window(run, window, n_lead + n);
        done += n;
        firni_cmd_progress(label, (float)done / (float)run->n_tokens);
    }
    free(window);
    return status;
}

static int execute(perplexity_run *run, const perplexity_flags *flags, const char *path)
{
    size_t len_bytes;
    char *text = firni_cmd_read_file(run->command, path, FIRNI_TEXT_BYTES_MAX, &len_bytes);
    if (text == NULL) {
        return 1;
    }
    int status = open_all(run, flags, text, len_bytes);
    free(text);
    if (status != 0) {
        return status;
    }
    run->n_tokens = run->n_tokens < flags->n_tokens_max ? run->n_tokens : flags->n_tokens_max;
    const uint32_t n_ctx = firn_model_get_info(run->row.model)->n_ctx_train;
    status = score_all(run, flags->window < n_ctx ? flags->window : n_ctx);
    if (status == 0 && run->n_scored == 0) {
        status = firni_cmd_fail(run->command, "%s holds nothing to score", path);
    }
    if (status == 0) {
        const firn_model_info *info = firn_model_get_info(run->row.model);
        const double nats = run->nll / run->n_scored;
        (void)printf("%s %s, state %s: %lu tokens, %.5f nats per token, perplexity %.4f, %.5f bits per byte\n",
                     info->name, info->weight_type, flags->kv, (unsigned long)run->n_scored, nats, exp(nats),
                     run->nll / log(2.0) / (double)run->n_bytes);
    }
    return status;
}

static int run_perplexity(const firni_command *self, int argc, char **argv)
{
    perplexity_flags f = { .kv = "f16", .window = 512, .n_tokens_max = UINT32_MAX };
    const firni_flag flags[] = {
        { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &f.model, .value_name = "FILE",
          .help = "GGUF model; the built-in one when absent" },
        { .name = "window", .kind = FIRNI_FLAG_U32, .target = &f.window, .value_name = "TOKENS",
          .help = "tokens that are read together, BOS included", .min = 2, .max = 1 << 20 },
        { .name = "max-tokens", .kind = FIRNI_FLAG_U32, .target = &f.n_tokens_max, .value_name = "N",
          .help = "score no more than the first N tokens of the text", .min = 1, .max = UINT32_MAX },
        { .name = "threads", .kind = FIRNI_FLAG_U32, .target = &f.n_threads, .value_name = "N",
          .help = "threads, 0 for the cores that it may use; changes no bits", .min = 0, .max = 64 },
        FIRNI_KV_FLAGS(f.kv, f.kv_group, f.kv_delay_tokens),
        { .name = "kernel", .kind = FIRNI_FLAG_STRING, .target = &f.kernel, .value_name = "NAME",
          .help = "kernel variant (scalar, avx2, ...); the best of this processor when absent" },
    };
    const char *path = NULL;
    uint32_t n_positional = 0;
    bool done = false;
    const uint32_t n_flags = sizeof flags / sizeof flags[0];
    int status = firni_flags_parse(self, flags, n_flags, argc, argv, &path, 1, &n_positional, &done);
    if (done) {
        return status;
    }
    if (n_positional != 1) {
        return firni_cmd_usage(self, "the FILE with the text is required");
    }
    char *builtin = f.model == NULL ? firni_cmd_builtin_model() : NULL;
    if (f.model == NULL && builtin == NULL) {
        return firni_cmd_usage(self, "-m is required: the built-in model was not found");
    }
    f.model = f.model == NULL ? builtin : f.model;
    perplexity_run run = { .command = self };
    status = execute(&run, &f, path);
    free(run.logits);
    free(run.tokens);
    firni_single_row_close(&run.row);
    free(builtin);
    return status;
}

const firni_command firni_cmd_perplexity = {
    .name = "perplexity",
    .summary = "how well a model with its cache scheme predicts a text",
    .synopsis = "perplexity -m MODEL.gguf FILE [flags]",
    .run = run_perplexity,
};
