/*
 * firn bench: flags and the order of things; see bench_impl.h for what is measured where.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "engine/sampler_impl.h"

#define DEPTH_MAX 1048576u

typedef struct bench_flags {
    firni_stack_options stack;
    firni_bench_options bench;
    const char *batches;
    const char *deep;
    bool json;
} bench_flags;

/* Random ids cost a dense model what a text costs it, and no prompt is a prefix of another. Special ones are left out,
 * since an end token in a prompt is not what users send; a vocabulary of special tokens alone is not worth a loop. */
void firni_bench_fill_tokens(const firni_bench *bench, uint64_t seed, firn_token *out, uint32_t n)
{
    const firn_tokenizer *tokenizer = firn_model_tokenizer(bench->stack->model);
    const uint32_t n_vocab = firn_model_get_info(bench->stack->model)->n_vocab;
    uint64_t state = firni_mix64(seed + 1);
    for (uint32_t i = 0; i < n; i++) {
        firn_token token;
        uint32_t n_tries = 0;
        do {
            token = (firn_token)(firni_mix64(++state) % n_vocab);
        } while (firn_tokenizer_is_special(tokenizer, token) && ++n_tries < 100);
        out[i] = token;
    }
}

/* "1,4,16", up to n_max numbers in 1..value_max; false when it is something else. */
static bool parse_list(const char *text, uint32_t value_max, uint32_t n_max, uint32_t *values, uint32_t *n_values)
{
    *n_values = 0;
    for (const char *at = text;; at++) {
        uint32_t value = 0;
        const char *begin = at;
        for (; *at >= '0' && *at <= '9' && value <= value_max; at++) {
            value = value * 10 + (uint32_t)(*at - '0');
        }
        if (at == begin || value < 1 || value > value_max || *n_values == n_max) {
            return false;
        }
        values[(*n_values)++] = value;
        if (*at != ',') {
            return *at == '\0';
        }
    }
}

static int measure(firni_bench *bench, bool json)
{
    static char label[] = "measuring";
    const firni_bench_options *o = &bench->options;
    firn_error err = { 0 };
    firni_cmd_progress(label, 0.0f);
    /* Half before and half after what is compared with it: other work on the machine comes and goes. */
    const uint32_t n_before = (o->n_runs + 1) / 2;
    firn_status status = firni_bench_stream(bench, n_before, &err);
    if (status == FIRN_OK) {
        status = firni_bench_multiply(bench, n_before, &err);
    }
    if (status == FIRN_OK && o->n_prompt > 0) {
        status = firni_bench_forward(bench, &err);
    }
    if (status == FIRN_OK) {
        status = firni_bench_stream(bench, o->n_runs - n_before, &err);
    }
    if (status == FIRN_OK) {
        status = firni_bench_multiply(bench, o->n_runs - n_before, &err);
    }
    if (status == FIRN_OK && o->n_deep > 0) {
        firni_cmd_progress(label, 0.4f);
        status = firni_bench_measure_deep(bench, &err);
    }
    if (status == FIRN_OK && o->n_ttft > 0) {
        firni_cmd_progress(label, 0.5f);
        status = firni_bench_measure_ttft(bench, &err);
    }
    if (status == FIRN_OK && o->n_resume > 0) {
        firni_cmd_progress(label, 0.7f);
        status = firni_bench_measure_resume(bench, &err);
    }
    if (status == FIRN_OK && o->n_beside > 0) {
        firni_cmd_progress(label, 0.75f);
        status = firni_bench_measure_beside(bench, &err);
    }
    if (status == FIRN_OK && o->n_saving > 0) {
        firni_cmd_progress(label, 0.8f);
        status = firni_bench_measure_saving(bench, &err);
    }
    if (status == FIRN_OK && o->n_shared > 0) {
        firni_cmd_progress(label, 0.85f);
        status = firni_bench_measure_shared(bench, &err);
    }
    if (status == FIRN_OK && o->measures_sampling) {
        firni_cmd_progress(label, 0.9f);
        status = firni_bench_measure_sampling(bench, &err);
    }
    if (status == FIRN_OK && o->n_draft > 0) {
        firni_cmd_progress(label, 0.95f);
        status = firni_bench_measure_draft(bench, &err);
    }
    firni_cmd_progress(label, 1.0f);
    if (status != FIRN_OK) {
        return firni_cmd_fail(bench->command, "%s", err.message);
    }
    if (json) {
        return firni_bench_print_json(bench);
    }
    firni_bench_print(bench);
    return 0;
}

static int run(const firni_command *self, int argc, char **argv)
{
    static char label[] = "loading the model";
    bench_flags f = {
        .stack = { .no_disk = true, .no_engine = true, .progress = firni_cmd_progress, .progress_label = label },
        .bench = { .n_prompt = 512, .n_gen = 128, .n_runs = 5, .n_chunk = 256, .n_draft = 256, .dir = "/var/tmp" },
        .batches = "1,4",
    };
    firni_bench_options *o = &f.bench;
    /* clang-format off */
    const firni_flag flags[] = {
        { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &f.stack.model_path,
          .value_name = "FILE", .help = "GGUF model to load (default: the built-in one)" },
        { .name = "prompt", .kind = FIRNI_FLAG_U32, .target = &o->n_prompt, .value_name = "TOKENS",
          .help = "prompt tokens of prefill and decode (0: only --ttft)", .min = 0, .max = 1048576 },
        { .name = "gen", .kind = FIRNI_FLAG_U32, .target = &o->n_gen, .value_name = "TOKENS",
          .help = "tokens each row decodes (0: no decode)", .min = 0, .max = 1048576 },
        { .name = "batch", .kind = FIRNI_FLAG_STRING, .target = &f.batches, .value_name = "N,N",
          .help = "rows decoding together, up to 8 numbers" },
        { .name = "depth", .kind = FIRNI_FLAG_U32, .target = &o->n_depth, .value_name = "TOKENS",
          .help = "tokens before the prompt", .min = 0, .max = 1048576 },
        { .name = "share-depth", .kind = FIRNI_FLAG_BOOL, .target = &o->shares_depth,
          .help = "rows share these tokens, as users share a system prompt" },
        { .name = "made-up", .kind = FIRNI_FLAG_BOOL, .target = &o->is_depth_made_up,
          .help = "the state of these tokens is made up instead of computed, which takes seconds" },
        { .name = "deep", .kind = FIRNI_FLAG_STRING, .target = &f.deep, .value_name = "N,N",
          .help = "also: decode of one row up to such contexts, whose state is made up instead of computed" },
        { .name = "ttft", .kind = FIRNI_FLAG_U32, .target = &o->n_ttft, .value_name = "TOKENS",
          .help = "also: time to first token of such a prompt, cold, from RAM, disk, beside 4 rows (0: no; least 128)",
          .min = 0, .max = 1048576 },
        { .name = "resume", .kind = FIRNI_FLAG_U32, .target = &o->n_resume, .value_name = "TOKENS",
          .help = "also: such a prompt, then after restarts the same, its continuation, a branch (0: no; least 1024)",
          .min = 0, .max = 1048576 },
        { .name = "beside", .kind = FIRNI_FLAG_U32, .target = &o->n_beside, .value_name = "TOKENS",
          .help = "also: such a prompt alone, and beside 2 rows that decode (0: no)", .min = 0, .max = 1048576 },
        { .name = "saving", .kind = FIRNI_FLAG_U32, .target = &o->n_saving, .value_name = "TOKENS",
          .help = "also: what 2 rows lose while a conversation of so many is saved, and restored (0: no; at least 128)",
          .min = 0, .max = 1048576 },
        { .name = "shared", .kind = FIRNI_FLAG_U32, .target = &o->n_shared, .value_name = "TOKENS",
          .help = "also: 4 users who share so many and come back in turn (0: no; at least 128)",
          .min = 0, .max = 1048576 },
        { .name = "sampling", .kind = FIRNI_FLAG_BOOL, .target = &o->measures_sampling,
          .help = "also: what a step of 4 rows spends beside its forward, by the way tokens are chosen" },
        { .name = "max-itl", .kind = FIRNI_FLAG_SECONDS, .target = &o->max_itl_ns, .value_name = "TIME",
          .help = "with --beside: most time between two tokens of these rows (0: 4 steps; 1h: any)" },
        { .name = "draft", .kind = FIRNI_FLAG_STRING, .target = &f.stack.draft, .value_name = "SOURCE",
          .help = "also: decode with guesses from this source, ngram or a small GGUF model, against plain decode" },
        { .name = "draft-max", .kind = FIRNI_FLAG_U32, .target = &f.stack.draft_tokens_max, .value_name = "TOKENS",
          .help = "most guesses of a step (0: 8)", .min = 0, .max = 64 },
        { .name = "draft-always", .kind = FIRNI_FLAG_BOOL, .target = &o->draft_always,
          .help = "guess also where that has turned out slower than plain decoding" },
        { .name = "draft-gen", .kind = FIRNI_FLAG_U32, .target = &o->n_draft, .value_name = "TOKENS",
          .help = "tokens of the answers that --draft compares", .min = 2, .max = 1048576 },
        { .name = "runs", .kind = FIRNI_FLAG_U32, .target = &o->n_runs, .value_name = "N",
          .help = "timed runs of each", .min = 1, .max = FIRNI_BENCH_RUNS_MAX },
        { .name = "chunk", .kind = FIRNI_FLAG_U32, .target = &o->n_chunk, .value_name = "TOKENS",
          .help = "prompt tokens of one step", .min = 1, .max = 8192 },
        { .name = "threads", .letter = 't', .kind = FIRNI_FLAG_U32, .target = &f.stack.n_threads, .value_name = "N",
          .help = "threads of a forward (0: the cores that it may use)", .min = 0, .max = 64 },
        FIRNI_KV_FLAGS(f.stack.kv, f.stack.kv_group, f.stack.kv_delay_tokens),
        { .name = "kernel", .kind = FIRNI_FLAG_STRING, .target = &f.stack.kernel, .value_name = "NAME",
          .help = "kernel variant (default: the best of this processor)" },
        { .name = "ram-budget", .kind = FIRNI_FLAG_BYTES, .target = &f.stack.ram_budget_bytes, .value_name = "BYTES",
          .help = "most memory for key/value state (0: a quarter of memory)" },
        { .name = "cache-dir", .kind = FIRNI_FLAG_STRING, .target = &o->dir, .value_name = "DIR",
          .help = "where --ttft makes a directory of its own, removed afterwards" },
        { .name = "packed-dir", .kind = FIRNI_FLAG_STRING, .target = &f.stack.packed_dir, .value_name = "DIR",
          .help = "map packed weights from there, or keep them there for the next run" },
        { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &f.json, .help = "print JSON" },
    };
    /* clang-format on */
    uint32_t n_positional = 0;
    bool done = false;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, &n_positional,
                                   &done);
    if (done) {
        return status;
    }
    if (!parse_list(f.batches, 256, FIRNI_BENCH_BATCHES_MAX, o->batches, &o->n_batches)) {
        return firni_cmd_usage(self, "--batch: \"%s\" is not a list of 1 to 8 numbers in 1..256", f.batches);
    }
    if (f.deep != NULL && !parse_list(f.deep, DEPTH_MAX, FIRNI_BENCH_DEPTHS_MAX, o->deep, &o->n_deep)) {
        return firni_cmd_usage(self, "--deep: \"%s\" is not a list of 1 to 8 numbers in 1..%u", f.deep, DEPTH_MAX);
    }
    for (uint32_t i = 0; i < o->n_deep; i++) {
        if (o->n_gen == 0 || o->deep[i] <= o->n_gen) {
            return firni_cmd_usage(
                self, "--deep %" PRIu32 " has no room for --gen %" PRIu32 " tokens that are decoded up to it",
                o->deep[i], o->n_gen);
        }
    }
    o->n_draft = f.stack.draft != NULL ? o->n_draft : 0;
    o->n_draft_max = f.stack.draft_tokens_max;
    const bool has_sessions = o->n_ttft > 0 || o->n_resume > 0 || o->n_beside > 0 || o->n_saving > 0 ||
                              o->n_shared > 0 || o->measures_sampling;
    if (o->n_prompt == 0 && o->n_deep == 0 && o->n_draft == 0 && !has_sessions) {
        return firni_cmd_usage(
            self, "--prompt 0 leaves nothing to measure without --deep, --ttft, --resume, --beside, --saving, "
                  "--shared, --sampling or --draft");
    }
    if ((o->n_saving > 0 && o->n_saving < 2 * FIRN_BLOCK_TOKENS) ||
        (o->n_shared > 0 && o->n_shared < 2 * FIRN_BLOCK_TOKENS)) {
        return firni_cmd_usage(self, "--saving and --shared must be at least %u tokens", 2 * FIRN_BLOCK_TOKENS);
    }
    if (o->measures_sampling && o->n_gen == 0) {
        return firni_cmd_usage(self, "--sampling needs steps to measure: --gen 0 has none");
    }
    if (o->n_resume > 0 && o->n_resume < 1024) {
        return firni_cmd_usage(self, "--resume must be at least 1024 tokens");
    }
    if (o->n_ttft > 0 && o->n_ttft < 2 * FIRN_BLOCK_TOKENS) {
        return firni_cmd_usage(self, "--ttft must be at least %u tokens", 2 * FIRN_BLOCK_TOKENS);
    }
    f.stack.chunk_tokens_max = o->n_chunk;
    for (uint32_t i = 0; i < o->n_batches; i++) {
        f.stack.batch_rows_max = o->batches[i] > f.stack.batch_rows_max ? o->batches[i] : f.stack.batch_rows_max;
    }
    if (has_sessions && f.stack.batch_rows_max < 1 + FIRNI_BENCH_BUSY_ROWS) {
        f.stack.batch_rows_max = 1 + FIRNI_BENCH_BUSY_ROWS;
    }
    firni_bench bench = { .command = self, .env = firni_cmd_env(FIRN_LOG_WARN), .options = *o };
    firni_stack *stack = NULL;
    firn_error err = { 0 };
    if (firni_stack_open(&f.stack, bench.env, &stack, &err) != FIRN_OK) {
        return firni_cmd_fail(self, "%s", err.message);
    }
    bench.stack = stack;
    status = measure(&bench, f.json);
    firni_stack_close(stack, 0, NULL);
    return status;
}

const firni_command firni_cmd_bench = {
    .name = "bench",
    .summary = "measure a model on this machine",
    .synopsis = "bench [-m MODEL.gguf] [flags]",
    .details =
        "Results are checked before they are timed: other chunks and batches must give the same bits, cached\n"
        "prompts the same answer. Prefill is set beside what the same threads can multiply, decode beside what they\n"
        "can stream from memory, the restore beside a plain direct read of the same files.",
    .run = run,
};
