/*
 * Results of `firn bench` as a table and as JSON, and the statistics of a sample. Measures nothing.
 */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cmd/bench_report_impl.h"

/* ---- samples ---------------------------------------------------------------------------------------------------- */

void firni_sample_add(firni_sample *sample, double value)
{
    assert(sample->n < FIRNI_BENCH_RUNS_MAX);
    sample->values[sample->n++] = value;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double firni_sample_median(const firni_sample *sample)
{
    if (sample->n == 0) {
        return 0.0;
    }
    firni_sample sorted = *sample;
    qsort(sorted.values, sorted.n, sizeof sorted.values[0], by_value);
    return (sorted.values[(sorted.n - 1) / 2] + sorted.values[sorted.n / 2]) / 2.0;
}

double firni_sample_min(const firni_sample *sample)
{
    double least = sample->n > 0 ? sample->values[0] : 0.0;
    for (uint32_t i = 1; i < sample->n; i++) {
        least = sample->values[i] < least ? sample->values[i] : least;
    }
    return least;
}

double firni_sample_max(const firni_sample *sample)
{
    double most = sample->n > 0 ? sample->values[0] : 0.0;
    for (uint32_t i = 1; i < sample->n; i++) {
        most = sample->values[i] > most ? sample->values[i] : most;
    }
    return most;
}

double firni_bench_ratio(double a, double b)
{
    return b > 0.0 ? a / b : 0.0;
}

/* Bytes per second that decode reads, as a share of the streaming rate. */
static double stream_share(const firni_bench *bench, const firni_bench_decode *decode)
{
    const double steps_per_second = firni_sample_median(&decode->tokens_per_second) / decode->n_rows;
    return firni_bench_ratio((double)decode->step_bytes * steps_per_second, firni_sample_median(&bench->stream_rate));
}

/* Products of weights in a prefill, as a share of what the register tile does with nothing to wait for. */
static double multiply_share(const firni_bench *bench)
{
    const double seconds = firni_bench_ratio(bench->options.n_prompt, firni_sample_median(&bench->prefill_rate));
    return firni_bench_ratio(firni_bench_ratio(2.0 * (double)bench->prefill_multiply_adds, seconds),
                             firni_sample_median(&bench->multiply_rate));
}

/* ---- table ------------------------------------------------------------------------------------------------------ */

void firni_bench_print_row(const char *what, const firni_sample *sample, double unit, const char *unit_name)
{
    (void)printf("  %-28s %10.4g %-8s  %.4g .. %.4g", what, firni_sample_median(sample) / unit, unit_name,
                 firni_sample_min(sample) / unit, firni_sample_max(sample) / unit);
}

static void print_ttft(const firni_bench_ttft *t)
{
    char size[FIRNI_SIZE_TEXT_BYTES];
    const double cold = firni_sample_median(&t->cold_seconds);
    (void)printf("\ntime to first token of %" PRIu32 " tokens (the %" PRIu32 " tokens of the answers are equal)\n",
                 t->n_tokens, t->n_answer);
    firni_bench_print_row("cold", &t->cold_seconds, 1.0, "s");
    (void)printf("\n");
    firni_bench_print_row("from RAM", &t->ram_seconds, 1.0, "s");
    (void)printf("   %.2f %% of cold; %" PRIu32 " tokens cached\n",
                 100.0 * firni_bench_ratio(firni_sample_median(&t->ram_seconds), cold), t->ram_tokens);
    firni_bench_print_row("from disk, after reopening", &t->disk_seconds, 1.0, "s");
    (void)printf("   %.2f %% of cold; %" PRIu32 " tokens, %s\n",
                 100.0 * firni_bench_ratio(firni_sample_median(&t->disk_seconds), cold), t->disk_tokens,
                 firni_cmd_size_text(t->restored_bytes, size));
    if (t->extra_share.n > 0) {
        (void)printf("  %-28s %10.2f %% of these bytes above them, at the peak\n", "memory of a restore",
                     100.0 * firni_sample_median(&t->extra_share));
    }
    if (t->busy_seconds.n > 0) {
        firni_bench_print_row("from disk, 4 rows decoding", &t->busy_seconds, 1.0, "s");
        (void)printf("   they keep %.0f %% of their rate meanwhile\n", 100.0 * firni_sample_median(&t->busy_share));
    }
    firni_bench_print_row("restore rate", &t->restore_rate, 1e9, "GB/s");
    (void)printf("   %.0f %% of the plain read\n",
                 100.0 * firni_bench_ratio(firni_sample_median(&t->restore_rate), firni_sample_median(&t->raw_rate)));
    firni_bench_print_row(t->is_direct ? "plain direct read of files" : "plain read, cache dropped", &t->raw_rate, 1e9,
                          "GB/s");
    (void)printf("\n");
}

static void print_deep(const firni_bench *bench)
{
    char size[FIRNI_SIZE_TEXT_BYTES], what[64];
    (void)printf("\ndecode of %" PRIu32
                 " tokens at the end of long contexts, kv %s (made-up state: random keys and values in the "
                 "form they are stored in,\nwhich nobody computed; a step's work depends on how many there are)\n",
                 bench->options.n_gen, firn_model_get_info(bench->stack->model)->kv);
    for (uint32_t i = 0; i < bench->options.n_deep; i++) {
        const firni_bench_deep *deep = &bench->deep[i];
        (void)snprintf(what, sizeof what, "at %" PRIu32 " tokens", deep->n_depth);
        firni_bench_print_row(what, &deep->tokens_per_second, 1.0, "tok/s");
        (void)printf("   %" PRIu64 " bytes of state a token; %s a row\n", deep->token_bytes,
                     firni_cmd_size_text(deep->row_bytes, size));
    }
}

static const char *const turn_names[FIRNI_BENCH_TURNS] = { "same prompt", "continuation", "branch" };

static void print_resume(const firni_bench_resume *r)
{
    (void)printf("\ntime to first token after a restart: a prompt of %" PRIu32
                 " tokens, its continuation (the answer of %" PRIu32 " and %" PRIu32 " more), a branch (%" PRIu32
                 " cut, %" PRIu32 " new)\n",
                 r->n_prompt, r->n_answer, r->n_new, r->n_cut, r->n_new);
    firni_bench_print_row("cold", &r->cold_seconds, 1.0, "s");
    (void)printf("\n");
    for (uint32_t turn = 0; turn < FIRNI_BENCH_TURNS; turn++) {
        firni_bench_print_row(turn_names[turn], &r->seconds[turn], 1.0, "s");
        (void)printf("   %" PRIu32 " of %" PRIu32 " tokens computed\n", r->computed_tokens[turn],
                     r->prompt_tokens[turn]);
    }
}

static void print_draft(const firni_bench *bench)
{
    const firn_model *drafter = bench->stack->draft_model;
    (void)printf("\ndecode of %" PRIu32 " tokens with guesses from %s (the answers are equal)\n",
                 bench->options.n_draft, drafter != NULL ? firn_model_get_info(drafter)->name : "the text");
    for (uint32_t i = 0; i < FIRNI_BENCH_DRAFT_TEXTS; i++) {
        const firni_bench_draft *d = &bench->draft[i];
        char what[64];
        (void)snprintf(what, sizeof what, "%s, plain", d->name);
        firni_bench_print_row(what, &d->plain_rate, 1.0, "tok/s");
        (void)snprintf(what, sizeof what, "%s, guessing", d->name);
        (void)printf("\n");
        firni_bench_print_row(what, &d->drafted_rate, 1.0, "tok/s");
        (void)printf("   %.2f times plain (%.2f .. %.2f); %" PRIu64 " of %" PRIu64
                     " guesses held, %.2f tokens a round\n",
                     firni_sample_median(&d->ratio), firni_sample_min(&d->ratio), firni_sample_max(&d->ratio),
                     d->usage.accepted_tokens, d->usage.drafted_tokens,
                     firni_bench_ratio((double)d->usage.round_tokens, (double)d->usage.n_rounds));
    }
}

void firni_bench_print(const firni_bench *bench)
{
    const firni_bench_options *o = &bench->options;
    const firn_model_info *info = firn_model_get_info(bench->stack->model);
    char size[FIRNI_SIZE_TEXT_BYTES], what[64];
    (void)printf("%s: %s %s, %.1f M parameters, %s of packed weights; kernel %s, %" PRIu32 " threads, kv %s\n",
                 info->name, info->architecture, info->weight_type, (double)info->n_params * 1e-6,
                 firni_cmd_size_text(info->weight_bytes, size), info->kernel,
                 firn_workers_count(bench->stack->workers), info->kv);
    (void)printf("opened in %.3f s, weights %s\n", (double)info->open_ns * 1e-9,
                 info->weights_mapped ? "mapped as packed before" : "packed anew");
    (void)printf("median of %" PRIu32 " runs, least .. most; depth %" PRIu32 "%s%s, chunk %" PRIu32 "\n\n", o->n_runs,
                 o->n_depth, o->is_depth_made_up ? " of made-up state" : "",
                 o->shares_depth ? " shared by all rows" : "", o->n_chunk);
    firni_bench_print_row("memory, streaming read", &bench->stream_rate, 1e9, "GB/s");
    (void)printf("\n");
    firni_bench_print_row("multiply, from second cache", &bench->multiply_rate, 1e9, "GOP/s");
    (void)printf("\n");
    if (bench->prefill_rate.n > 0) {
        (void)snprintf(what, sizeof what, "prefill %" PRIu32, o->n_prompt);
        firni_bench_print_row(what, &bench->prefill_rate, 1.0, "tok/s");
        (void)printf("   multiplies at %.0f %% of the multiply\n", 100.0 * multiply_share(bench));
    }
    for (uint32_t i = 0; i < o->n_batches; i++) {
        const firni_bench_decode *decode = &bench->decode[i];
        if (decode->tokens_per_second.n == 0) {
            continue;
        }
        (void)snprintf(what, sizeof what, "decode %" PRIu32 ", batch %" PRIu32, o->n_gen, decode->n_rows);
        firni_bench_print_row(what, &decode->tokens_per_second, 1.0, "tok/s");
        (void)printf("   %.4g per row; reads at %.0f %% of streaming\n",
                     firni_sample_median(&decode->tokens_per_second) / decode->n_rows,
                     100.0 * stream_share(bench, decode));
    }
    if (o->n_deep > 0) {
        print_deep(bench);
    }
    if (o->n_ttft > 0) {
        print_ttft(&bench->ttft);
    }
    if (o->n_resume > 0) {
        print_resume(&bench->resume);
    }
    firni_bench_print_engine(bench);
    if (o->n_draft > 0) {
        print_draft(bench);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

json_t *firni_bench_sample_json(const firni_sample *sample)
{
    return json_pack("{s:f, s:f, s:f, s:i}", "median", firni_sample_median(sample), "min", firni_sample_min(sample),
                     "max", firni_sample_max(sample), "runs", (int)sample->n);
}

/* JSON has bare units (bytes/s, seconds) and the ratios already computed, so that no reader has to know which number is
 * to be divided by which. */
static json_t *decode_json(const firni_bench *bench)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < bench->options.n_batches; i++) {
        const firni_bench_decode *decode = &bench->decode[i];
        if (decode->tokens_per_second.n > 0) {
            (void)json_array_append_new(
                array, json_pack("{s:I, s:I, s:o, s:I, s:f}", "batch", (json_int_t)decode->n_rows, "tokens",
                                 (json_int_t)bench->options.n_gen, "tokens_per_second",
                                 firni_bench_sample_json(&decode->tokens_per_second), "step_bytes",
                                 (json_int_t)decode->step_bytes, "stream_share", stream_share(bench, decode)));
        }
    }
    return array;
}

static json_t *deep_json(const firni_bench *bench)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < bench->options.n_deep; i++) {
        const firni_bench_deep *deep = &bench->deep[i];
        (void)json_array_append_new(
            array, json_pack("{s:I, s:b, s:I, s:I, s:I, s:o}", "depth_tokens", (json_int_t)deep->n_depth,
                             "state_is_made_up", 1, "tokens", (json_int_t)bench->options.n_gen, "token_bytes",
                             (json_int_t)deep->token_bytes, "row_bytes", (json_int_t)deep->row_bytes,
                             "tokens_per_second", firni_bench_sample_json(&deep->tokens_per_second)));
    }
    return array;
}

static json_t *ttft_json(const firni_bench_ttft *t)
{
    const double cold = firni_sample_median(&t->cold_seconds);
    return json_pack(
        "{s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:o, s:o, s:b, s:f, s:f, s:f, s:o, s:o, s:o}", "prompt_tokens",
        (json_int_t)t->n_tokens, "answer_tokens_compared", (json_int_t)t->n_answer, "cold_seconds",
        firni_bench_sample_json(&t->cold_seconds), "ram_seconds", firni_bench_sample_json(&t->ram_seconds),
        "disk_seconds", firni_bench_sample_json(&t->disk_seconds), "ram_tokens", (json_int_t)t->ram_tokens,
        "disk_tokens", (json_int_t)t->disk_tokens, "restored_bytes", (json_int_t)t->restored_bytes,
        "restore_bytes_per_second", firni_bench_sample_json(&t->restore_rate), "raw_read_bytes_per_second",
        firni_bench_sample_json(&t->raw_rate), "raw_read_is_direct", (int)t->is_direct, "ram_to_cold",
        firni_bench_ratio(firni_sample_median(&t->ram_seconds), cold), "disk_to_cold",
        firni_bench_ratio(firni_sample_median(&t->disk_seconds), cold), "restore_to_raw",
        firni_bench_ratio(firni_sample_median(&t->restore_rate), firni_sample_median(&t->raw_rate)),
        "busy_disk_seconds", firni_bench_sample_json(&t->busy_seconds), "busy_rate_kept",
        firni_bench_sample_json(&t->busy_share), "restore_memory_extra", firni_bench_sample_json(&t->extra_share));
}

static json_t *resume_json(const firni_bench_resume *r)
{
    json_t *object = json_pack("{s:I, s:o}", "prompt_tokens", (json_int_t)r->n_prompt, "cold_seconds",
                               firni_bench_sample_json(&r->cold_seconds));
    for (uint32_t turn = 0; turn < FIRNI_BENCH_TURNS; turn++) {
        (void)json_object_set_new(object, turn_names[turn],
                                  json_pack("{s:o, s:I, s:I}", "seconds", firni_bench_sample_json(&r->seconds[turn]),
                                            "tokens", (json_int_t)r->prompt_tokens[turn], "computed_tokens",
                                            (json_int_t)r->computed_tokens[turn]));
    }
    return object;
}

static json_t *draft_json(const firni_bench *bench)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < FIRNI_BENCH_DRAFT_TEXTS; i++) {
        const firni_bench_draft *d = &bench->draft[i];
        (void)json_array_append_new(
            array,
            json_pack("{s:s, s:I, s:o, s:o, s:o, s:I, s:I, s:I, s:f}", "text", d->name, "tokens",
                      (json_int_t)bench->options.n_draft, "plain_tokens_per_second",
                      firni_bench_sample_json(&d->plain_rate), "drafted_tokens_per_second",
                      firni_bench_sample_json(&d->drafted_rate), "drafted_to_plain", firni_bench_sample_json(&d->ratio),
                      "rounds", (json_int_t)d->usage.n_rounds, "drafted", (json_int_t)d->usage.drafted_tokens,
                      "accepted", (json_int_t)d->usage.accepted_tokens, "tokens_per_round",
                      firni_bench_ratio((double)d->usage.round_tokens, (double)d->usage.n_rounds)));
    }
    return array;
}

int firni_bench_print_json(const firni_bench *bench)
{
    const firni_bench_options *o = &bench->options;
    const firn_model_info *info = firn_model_get_info(bench->stack->model);
    json_t *object =
        json_pack("{s:{s:s, s:s, s:s, s:I, s:I, s:s}, s:I, s:s, s:I, s:I, s:b, s:b, s:I, s:o, s:o, s:o, s:f, s:o}",
                  "model", "name", info->name, "architecture", info->architecture, "weight_type", info->weight_type,
                  "parameters", (json_int_t)info->n_params, "packed_bytes", (json_int_t)info->weight_bytes, "kv_dtype",
                  info->kv, "threads", (json_int_t)firn_workers_count(bench->stack->workers), "kernel", info->kernel,
                  "prompt_tokens", (json_int_t)o->n_prompt, "depth_tokens", (json_int_t)o->n_depth, "depth_is_shared",
                  (int)o->shares_depth, "depth_is_made_up", (int)o->is_depth_made_up, "chunk_tokens",
                  (json_int_t)o->n_chunk, "stream_bytes_per_second", firni_bench_sample_json(&bench->stream_rate),
                  "multiply_operations_per_second", firni_bench_sample_json(&bench->multiply_rate),
                  "prefill_tokens_per_second", firni_bench_sample_json(&bench->prefill_rate), "prefill_multiply_share",
                  multiply_share(bench), "decode", decode_json(bench));
    if (object != NULL) {
        (void)json_object_set_new(object, "open_seconds", json_real((double)info->open_ns * 1e-9));
        (void)json_object_set_new(object, "weights_mapped", json_boolean(info->weights_mapped));
    }
    if (object != NULL && o->n_deep > 0) {
        (void)json_object_set_new(object, "deep", deep_json(bench));
    }
    if (object != NULL && o->n_ttft > 0) {
        (void)json_object_set_new(object, "ttft", ttft_json(&bench->ttft));
    }
    if (object != NULL) {
        firni_bench_add_engine_json(bench, object);
    }
    if (o->n_resume > 0 && object != NULL) {
        (void)json_object_set_new(object, "resume", resume_json(&bench->resume));
    }
    if (object != NULL && o->n_draft > 0) {
        (void)json_object_set_new(object, "draft", draft_json(bench));
    }
    const bool failed = object == NULL || json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) != 0 ||
                        putchar('\n') == EOF;
    json_decref(object);
    return failed ? firni_cmd_fail(bench->command, "cannot write the result") : 0;
}
