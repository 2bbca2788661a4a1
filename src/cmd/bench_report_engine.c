/*
 * Results of `firn bench` that come from requests and rows beside each other in one engine, as a table and as JSON.
 */
#include <inttypes.h>
#include <stdio.h>

#include "cmd/bench_report_impl.h"

/* ---- table ------------------------------------------------------------------------------------------------------ */

/* The rows' slowest tokens against what is usual for them, and the prompt's time against its time alone. */
static void print_beside(const firni_bench_beside *b)
{
    const double quiet = firni_sample_median(&b->quiet_median);
    char what[48];
    (void)snprintf(what, sizeof what, "ttft %" PRIu32 ", alone", b->n_tokens);
    firni_bench_print_row(what, &b->alone_seconds, 1.0, "s");
    (void)printf("\n");
    firni_bench_print_row("  beside 2 rows", &b->beside_seconds, 1.0, "s");
    (void)printf("   %.2f of alone\n",
                 firni_bench_ratio(firni_sample_median(&b->beside_seconds), firni_sample_median(&b->alone_seconds)));
    firni_bench_print_row("  rows' step before", &b->quiet_median, 1e-3, "ms");
    (void)printf("\n");
    firni_bench_print_row("  meanwhile, median", &b->beside_median, 1e-3, "ms");
    (void)printf("   %.2f of before\n", firni_bench_ratio(firni_sample_median(&b->beside_median), quiet));
    firni_bench_print_row("  meanwhile, 99 of 100", &b->beside_p99, 1e-3, "ms");
    (void)printf("   %.2f of before\n", firni_bench_ratio(firni_sample_median(&b->beside_p99), quiet));
}

static void print_saving(const firni_bench_saving *s)
{
    char size[FIRNI_SIZE_TEXT_BYTES];
    (void)printf("\na conversation of %" PRIu32 " tokens saved and restored beside 2 rows (the answers are equal)\n",
                 s->n_tokens);
    firni_bench_print_row("rows' step before", &s->step_seconds, 1e-3, "ms");
    (void)printf("\n");
    firni_bench_print_row("lost in a quiet second", &s->quiet_lost, 1.0, "steps");
    (void)printf("   by a row, of the steps it would have had\n");
    firni_bench_print_row("saved and durable", &s->save_seconds, 1.0, "s");
    (void)printf("   %s written\n", firni_cmd_size_text(s->written_bytes, size));
    firni_bench_print_row("  lost meanwhile", &s->save_lost, 1.0, "steps");
    (void)printf("   longest wait %.2f steps\n", firni_sample_median(&s->save_longest));
    firni_bench_print_row("restored, first token", &s->restore_seconds, 1.0, "s");
    (void)printf("   %s read\n", firni_cmd_size_text(s->read_bytes, size));
    firni_bench_print_row("  lost meanwhile", &s->restore_lost, 1.0, "steps");
    (void)printf("   longest wait %.2f steps\n", firni_sample_median(&s->restore_longest));
}

static void print_shared(const firni_bench_shared *s)
{
    char size[FIRNI_SIZE_TEXT_BYTES], alone[FIRNI_SIZE_TEXT_BYTES], what[48];
    (void)printf("\ntime to first token of %u users who share %" PRIu32 " tokens and add %" PRIu32
                 " each turn (the last answer is that of computing all)\n",
                 FIRNI_BENCH_USERS, s->n_tokens, s->n_own);
    for (uint32_t user = 0; user < FIRNI_BENCH_USERS; user++) {
        (void)snprintf(what, sizeof what, "user %" PRIu32 ", first turn", user + 1);
        firni_bench_print_row(what, user == 0 ? &s->first_seconds : &s->joined_seconds[user - 1], 1.0, "s");
        (void)printf("%s\n", user == 0 ? "   all computed" : "");
    }
    for (uint32_t user = 0; user < FIRNI_BENCH_USERS; user++) {
        (void)snprintf(what, sizeof what, "user %" PRIu32 ", back", user + 1);
        firni_bench_print_row(what, &s->back_seconds[user], 1.0, "s");
        (void)printf("   at most %" PRIu32 " tokens computed\n", s->back_computed_tokens);
    }
    (void)printf("  %-28s %10s           where one holds %s: %.2f times\n", "held by all",
                 firni_cmd_size_text(s->held_bytes, size), firni_cmd_size_text(s->user_bytes, alone),
                 firni_bench_ratio((double)s->held_bytes, (double)s->user_bytes));
}

static void print_sampling(const firni_bench *bench)
{
    (void)printf("\nwhat a step of %" PRIu32 " rows spends beside its forward, vocabulary %" PRIu32 "\n",
                 bench->sampling[0].n_rows, firn_model_get_info(bench->stack->model)->n_vocab);
    for (uint32_t i = 0; i < FIRNI_BENCH_SAMPLINGS; i++) {
        const firni_bench_sampling *s = &bench->sampling[i];
        firni_bench_print_row(s->name, &s->other_seconds, 1e-3, "ms");
        (void)printf(
            "   %.1f %% of a step of %.4g ms\n",
            100.0 * firni_bench_ratio(firni_sample_median(&s->other_seconds), firni_sample_median(&s->step_seconds)),
            1e3 * firni_sample_median(&s->step_seconds));
    }
}

void firni_bench_print_engine(const firni_bench *bench)
{
    const firni_bench_options *o = &bench->options;
    if (o->n_beside > 0) {
        print_beside(&bench->beside);
    }
    if (o->n_saving > 0) {
        print_saving(&bench->saving);
    }
    if (o->n_shared > 0) {
        print_shared(&bench->shared);
    }
    if (o->measures_sampling) {
        print_sampling(bench);
    }
}

/* ---- JSON ------------------------------------------------------------------------------------------------------- */

static json_t *beside_json(const firni_bench_beside *b)
{
    return json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:f, s:f}", "prompt_tokens", (json_int_t)b->n_tokens,
                     "alone_seconds", firni_bench_sample_json(&b->alone_seconds), "beside_seconds",
                     firni_bench_sample_json(&b->beside_seconds), "rows_before_median_seconds",
                     firni_bench_sample_json(&b->quiet_median), "rows_median_seconds",
                     firni_bench_sample_json(&b->beside_median), "rows_p99_seconds",
                     firni_bench_sample_json(&b->beside_p99), "beside_to_alone",
                     firni_bench_ratio(firni_sample_median(&b->beside_seconds), firni_sample_median(&b->alone_seconds)),
                     "rows_p99_to_before",
                     firni_bench_ratio(firni_sample_median(&b->beside_p99), firni_sample_median(&b->quiet_median)));
}

static json_t *saving_json(const firni_bench_saving *s)
{
    return json_pack("{s:I, s:I, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "tokens", (json_int_t)s->n_tokens,
                     "written_bytes", (json_int_t)s->written_bytes, "read_bytes", (json_int_t)s->read_bytes,
                     "step_seconds", firni_bench_sample_json(&s->step_seconds), "quiet_second_lost_steps",
                     firni_bench_sample_json(&s->quiet_lost), "save_seconds", firni_bench_sample_json(&s->save_seconds),
                     "save_lost_steps", firni_bench_sample_json(&s->save_lost), "save_longest_steps",
                     firni_bench_sample_json(&s->save_longest), "restore_seconds",
                     firni_bench_sample_json(&s->restore_seconds), "restore_lost_steps",
                     firni_bench_sample_json(&s->restore_lost), "restore_longest_steps",
                     firni_bench_sample_json(&s->restore_longest));
}

static json_t *shared_json(const firni_bench_shared *s)
{
    json_t *joined = json_array(), *back = json_array();
    for (uint32_t i = 0; i < FIRNI_BENCH_USERS - 1; i++) {
        (void)json_array_append_new(joined, firni_bench_sample_json(&s->joined_seconds[i]));
    }
    for (uint32_t i = 0; i < FIRNI_BENCH_USERS; i++) {
        (void)json_array_append_new(back, firni_bench_sample_json(&s->back_seconds[i]));
    }
    return json_pack("{s:I, s:I, s:o, s:o, s:o, s:I, s:I, s:I}", "shared_tokens", (json_int_t)s->n_tokens, "own_tokens",
                     (json_int_t)s->n_own, "first_seconds", firni_bench_sample_json(&s->first_seconds),
                     "joined_seconds", joined, "back_seconds", back, "back_computed_tokens",
                     (json_int_t)s->back_computed_tokens, "held_bytes", (json_int_t)s->held_bytes, "one_user_bytes",
                     (json_int_t)s->user_bytes);
}

static json_t *sampling_json(const firni_bench *bench)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < FIRNI_BENCH_SAMPLINGS; i++) {
        const firni_bench_sampling *s = &bench->sampling[i];
        (void)json_array_append_new(
            array, json_pack("{s:s, s:I, s:o, s:o}", "sampling", s->name, "rows", (json_int_t)s->n_rows, "step_seconds",
                             firni_bench_sample_json(&s->step_seconds), "beside_forward_seconds",
                             firni_bench_sample_json(&s->other_seconds)));
    }
    return array;
}

void firni_bench_add_engine_json(const firni_bench *bench, json_t *object)
{
    const firni_bench_options *o = &bench->options;
    if (o->n_beside > 0) {
        (void)json_object_set_new(object, "beside", beside_json(&bench->beside));
    }
    if (o->n_saving > 0) {
        (void)json_object_set_new(object, "saving", saving_json(&bench->saving));
    }
    if (o->n_shared > 0) {
        (void)json_object_set_new(object, "shared", shared_json(&bench->shared));
    }
    if (o->measures_sampling) {
        (void)json_object_set_new(object, "sampling", sampling_json(bench));
    }
}
