/*
 * firn run: one prompt, one answer, on the terminal. Owns the prompt's assembly, the printing of the answer and the
 * closing line; the stack behind it is stack.c's.
 *
 * Threads: events arrive on the engine thread, which prints; the main thread waits for the end or for a stop signal.
 */
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/base_impl.h"
#include "cmd/ns_text.h"
#include "cmd/stack.h"
#include "cmd/stop_signal.h"
#include "server/json_text.h"

#define PROMPT_BYTES_MAX (UINT64_C(64) << 20)

/* `stack` belongs to stack.c; the rest is what one request needs. */
typedef struct run_options {
    firni_stack_options stack;
    firn_sampling sampling;
    uint32_t max_tokens;
    const char *stop;
    const char *system;
    const char *ns;
    char stored_ns[FIRN_NAMESPACE_BYTES_MAX + 1];
    bool chat, json, ignore_end;
    const char *config;       /* read by the parser; nothing else looks at it */
    uint64_t save_ns;         /* most time for storing the new state at the end */
} run_options;

/* What the events of the request leave behind. */
typedef struct answer {
    bool streams;             /* text goes to stdout as it comes; else only into `text` */
    char last_byte;           /* of the streamed text */
    firni_buffer text;        /* kept when not streamed */

    pthread_mutex_t mutex;    /* guards what follows */
    pthread_cond_t changed;
    bool ended, stop_asked;
    firn_finish finish;
    firn_usage usage;
    char error[400];
} answer;

/* ---- the prompt ------------------------------------------------------------------------------------------------ */

/* All of standard input; NULL after having said why. */
static char *read_stdin(const firni_command *self)
{
    size_t cap = 65536, len = 0;
    char *text = malloc(cap);
    while (text != NULL) {
        len += fread(text + len, 1, cap - len - 1, stdin);
        if (len + 1 < cap || cap >= PROMPT_BYTES_MAX) {
            break;
        }
        char *grown = realloc(text, cap * 2);
        if (grown == NULL) {
            free(text);
        }
        text = grown;
        cap *= 2;
    }
    if (text == NULL || ferror(stdin) != 0 || len + 1 == cap) {
        (void)firni_cmd_fail(self, text == NULL        ? "no memory for the prompt"
                                   : ferror(stdin) != 0 ? "cannot read the prompt from standard input"
                                                        : "the prompt is larger than 64 MiB");
        free(text);
        return NULL;
    }
    text[len] = '\0';
    return text;
}

/* Plain text is a completion: the model continues it. With --chat it becomes a message. In neither case do spelled-out
 * special tokens in the text become special. */
static firn_status encode_prompt(const run_options *options, const firn_tokenizer *tokenizer, const char *prompt,
                                 firn_token **tokens, uint32_t *n_tokens, firn_error *err)
{
    if (!options->chat) {
        const firn_encode_options encode = { .add_bos = true };
        return firn_tokenizer_encode(tokenizer, prompt, strlen(prompt), &encode, tokens, n_tokens, err);
    }
    firn_chat_message messages[2];
    uint32_t n_messages = 0;
    if (options->system != NULL) {
        messages[n_messages++] = (firn_chat_message){ .role = "system", .content = options->system };
    }
    messages[n_messages++] = (firn_chat_message){ .role = "user", .content = prompt };
    return firn_tokenizer_chat(tokenizer, messages, n_messages, tokens, n_tokens, err);
}

/* ---- the answer ------------------------------------------------------------------------------------------------ */

/* From the signal thread, or when nobody reads the answer any more. */
static void on_stop(void *ctx)
{
    answer *a = ctx;
    (void)pthread_mutex_lock(&a->mutex);
    a->stop_asked = true;
    (void)pthread_cond_signal(&a->changed);
    (void)pthread_mutex_unlock(&a->mutex);
}

/* On the engine thread. Printing here is a write to a terminal or pipe, which may block for a slow reader: with a
 * single request there is nobody else to hold up. */
static void on_event(void *ctx, const firn_event *event)
{
    answer *a = ctx;
    if (a->streams && event->len_text > 0) {
        a->last_byte = event->text[event->len_text - 1];
        if (fwrite(event->text, 1, event->len_text, stdout) != event->len_text || fflush(stdout) != 0) {
            on_stop(a);
        }
    } else if (event->len_text > 0) {
        firni_buffer_append(&a->text, event->text, event->len_text);
    }
    if (event->kind == FIRN_EVENT_END) {
        (void)pthread_mutex_lock(&a->mutex);
        a->ended = true;
        a->finish = event->finish;
        a->usage = *event->usage;
        if (event->error != NULL) {
            (void)snprintf(a->error, sizeof a->error, "%s", event->error->message);
        }
        (void)pthread_cond_signal(&a->changed);
        (void)pthread_mutex_unlock(&a->mutex);
    }
}

/* Until the END event; a stop signal cancels the request first. */
static void wait_for_end(answer *a, firn_engine *engine, uint64_t id)
{
    bool cancelled = false;
    (void)pthread_mutex_lock(&a->mutex);
    while (!a->ended) {
        if (a->stop_asked && !cancelled) {
            cancelled = true;
            (void)pthread_mutex_unlock(&a->mutex);
            firn_engine_cancel(engine, id);
            (void)pthread_mutex_lock(&a->mutex);
        } else {
            (void)pthread_cond_wait(&a->changed, &a->mutex);
        }
    }
    (void)pthread_mutex_unlock(&a->mutex);
}

static const char *finish_name(firn_finish finish)
{
    static const char *const names[] = {
        [FIRN_FINISH_STOP] = "stop",
        [FIRN_FINISH_LENGTH] = "length",
        [FIRN_FINISH_CANCELLED] = "cancelled",
        [FIRN_FINISH_ERROR] = "error",
    };
    return names[finish];
}

/* Of the tokens after the first; 0 when there are none. */
static double tokens_per_second(const firn_usage *usage)
{
    const uint64_t decode_ns = usage->total_ns - usage->first_token_ns;
    return usage->completion_tokens > 1 && decode_ns > 0
               ? (double)(usage->completion_tokens - 1) / ((double)decode_ns * 1e-9)
               : 0.0;
}

/* Tokens of the answer for each forward that had guesses; 0 when there was none. */
static double tokens_per_round(const firn_usage *usage)
{
    return usage->draft.n_rounds > 0 ? (double)usage->draft.round_tokens / (double)usage->draft.n_rounds : 0.0;
}

/* The last line. Tests and scripts read it: its form is part of the command's interface. */
static void print_usage_line(const firn_usage *usage)
{
    (void)fprintf(stderr,
                  "%" PRIu32 " prompt tokens, %" PRIu32 " cached (ram %" PRIu32 ", disk %" PRIu32
                  "); first token after %.3f s; %" PRIu32 " tokens at %.1f tokens/s",
                  usage->prompt_tokens, usage->cache.n_tokens, usage->cache.ram_tokens, usage->cache.disk_tokens,
                  (double)usage->first_token_ns * 1e-9, usage->completion_tokens, tokens_per_second(usage));
    if (usage->draft.n_rounds > 0) {
        (void)fprintf(stderr, "; %" PRIu64 " drafted, %" PRIu64 " accepted, %.2f tokens a round",
                      usage->draft.drafted_tokens, usage->draft.accepted_tokens, tokens_per_round(usage));
    }
    (void)fputc('\n', stderr);
}

/* The text may hold bytes that are no UTF-8 when the answer was cut; JSON gets U+FFFD for them. */
static int print_json(const firni_command *self, const answer *a)
{
    const firn_usage *usage = &a->usage;
    const double first_token_ms = (double)usage->first_token_ns * 1e-6;
    json_t *object = json_pack(
        "{s:o, s:s, s:I, s:I, s:{s:I, s:I, s:I, s:I, s:s, s:f}, s:f, s:f, s:f, s:{s:I, s:I, s:I, s:f}}", "text",
        firni_valid_text(a->text.data != NULL ? a->text.data : "", a->text.len), "finish", finish_name(a->finish),
        "prompt_tokens", (json_int_t)usage->prompt_tokens, "completion_tokens", (json_int_t)usage->completion_tokens,
        "cached", "tokens", (json_int_t)usage->cache.n_tokens, "ram", (json_int_t)usage->cache.ram_tokens, "disk",
        (json_int_t)usage->cache.disk_tokens, "below", (json_int_t)usage->cache.below_tokens, "reason",
        firn_reason_name(usage->cache.reason), "restore_ms", (double)usage->cache.restore_ns * 1e-6, "first_token_ms",
        first_token_ms, "total_ms", (double)usage->total_ns * 1e-6, "tokens_per_second", tokens_per_second(usage),
        "draft", "rounds",
        (json_int_t)usage->draft.n_rounds, "drafted", (json_int_t)usage->draft.drafted_tokens, "accepted",
        (json_int_t)usage->draft.accepted_tokens, "tokens_per_round", tokens_per_round(usage));
    const bool failed = object == NULL || a->text.failed ||
                        json_dumpf(object, stdout, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0 || putchar('\n') == EOF;
    json_decref(object);
    return failed ? firni_cmd_fail(self, "cannot write the result") : 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------ */

/* max_tokens is a most, not a demand: what the context does not hold is not asked for. 0: up to the context. */
static uint32_t tokens_to_ask(const run_options *options, const firni_stack *stack, uint32_t n_prompt)
{
    const uint32_t n_ctx = options->stack.ctx_tokens_max != 0 ? options->stack.ctx_tokens_max
                                                              : firn_model_get_info(stack->model)->n_ctx_train;
    const uint32_t n_room = n_ctx > n_prompt ? n_ctx - n_prompt : 0; /* 0: the engine explains */
    return options->max_tokens < n_room ? options->max_tokens : n_room;
}

static int answer_prompt(const firni_command *self, const run_options *options, const char *prompt,
                         const firni_stack *stack, firni_stop_signal *stop, answer *a)
{
    firn_error err = { 0 };
    firn_token *tokens = NULL;
    uint32_t n_tokens = 0;
    const firn_tokenizer *tokenizer = firn_model_tokenizer(stack->model);
    if (encode_prompt(options, tokenizer, prompt, &tokens, &n_tokens, &err) != FIRN_OK) {
        return firni_cmd_fail(self, "%s", err.message);
    }
    const firn_request request = {
        .prompt = tokens,
        .n_prompt = n_tokens,
        .max_tokens = tokens_to_ask(options, stack, n_tokens),
        .ns = options->ns,
        .sampling = options->sampling,
        .stops = &options->stop,
        .n_stops = options->stop != NULL ? 1 : 0,
        .ignore_end = options->ignore_end,
        .is_new_text = options->chat,
        .on_event = on_event,
        .ctx = a,
    };
    uint64_t id = 0;
    const firn_status status = firn_engine_submit(stack->engine, &request, &id, &err);
    free(tokens);
    if (status != FIRN_OK) {
        return firni_cmd_fail(self, "%s", err.message);
    }
    firni_stop_signal_arm_call(stop, on_stop, a);
    wait_for_end(a, stack->engine, id);
    if (a->streams && a->last_byte != '\n') {
        (void)putchar('\n');
    }
    if (a->finish == FIRN_FINISH_ERROR) {
        return firni_cmd_fail(self, "%s", a->error);
    }
    const int written = options->json ? print_json(self, a) : 0;
    (void)fflush(stdout);
    print_usage_line(&a->usage);
    return a->finish == FIRN_FINISH_CANCELLED ? 1 : written;
}

/* Opens everything, answers, closes everything: closing is also when the new state reaches the disk. */
static int execute(const firni_command *self, const run_options *options, const char *prompt, const firn_env *env)
{
    firn_error err = { 0 };
    firni_stop_signal *stop = NULL;
    firni_stack *stack = NULL;
    int exit_status = 1;
    answer a = { .streams = !options->json, .last_byte = '\n' };
    firni_buffer_init(&a.text, env);
    (void)pthread_mutex_init(&a.mutex, NULL);
    (void)pthread_cond_init(&a.changed, NULL);

    if (firni_stop_signal_create(env, &stop, &err) != FIRN_OK ||
        firni_stack_open(&options->stack, env, &stack, &err) != FIRN_OK) {
        (void)firni_cmd_fail(self, "%s", err.message);
    } else {
        if (stack->disk_state != FIRN_REASON_NONE && stack->disk_state != FIRN_REASON_DISABLED) {
            firni_log(env, FIRN_LOG_WARN, "disk cache: %s (%s)", stack->disk_message,
                      firn_reason_name(stack->disk_state));
        }
        exit_status = answer_prompt(self, options, prompt, stack, stop, &a);
    }
    firn_flush_report report;
    const bool stores = stack != NULL && stack->tier != NULL && stack->disk_state == FIRN_REASON_NONE;
    firni_stack_close(stack, options->save_ns, &report);
    if (stores && !report.durable) {
        firni_log(env, FIRN_LOG_WARN, "%" PRIu64 " prefixes could not be saved to the disk cache",
                  report.n_missing + report.n_failed);
    }
    firni_stop_signal_destroy(stop);
    (void)pthread_cond_destroy(&a.changed);
    (void)pthread_mutex_destroy(&a.mutex);
    firni_buffer_deinit(&a.text);
    return exit_status;
}

static int run(const firni_command *self, int argc, char **argv)
{
    static char label[] = "loading the model";
    run_options options = {
        .stack = { .progress = firni_cmd_progress, .progress_label = label, .disk_share = true, .batch_rows_max = 1 },
        .sampling = { .temperature = 0.7f, .top_p = 0.95f, .repetition_penalty = 1.0f },
        .max_tokens = 256,
        .save_ns = UINT64_C(10) * 1000000000u,
    };
    firn_sampling *s = &options.sampling;
    uint64_t seed = 0; /* its own variable: 0 means none, and firn_sampling says that with a bool */
    /* clang-format off */
    const firni_flag flags[] = {
        FIRNI_STACK_FLAGS(options.stack),
        { .name = "max-tokens", .letter = 'n', .kind = FIRNI_FLAG_U32, .target = &options.max_tokens,
          .value_name = "N", .help = "most tokens to generate (0: up to the context)" },
        { .name = "chat", .kind = FIRNI_FLAG_BOOL, .target = &options.chat,
          .help = "put the prompt as a user's message into the model's chat template" },
        { .name = "system", .kind = FIRNI_FLAG_STRING, .target = &options.system, .value_name = "TEXT",
          .help = "system message before it (implies --chat)" },
        { .name = "stop", .kind = FIRNI_FLAG_STRING, .target = &options.stop, .value_name = "TEXT",
          .help = "end the answer before this text" },
        { .name = "ignore-end", .kind = FIRNI_FLAG_BOOL, .target = &options.ignore_end,
          .help = "go on after the model's end token" },
        { .name = "temp", .kind = FIRNI_FLAG_FLOAT, .target = &s->temperature, .value_name = "T",
          .help = "temperature; 0 takes the most likely token", .min = 0, .max = 10 },
        { .name = "top-k", .kind = FIRNI_FLAG_U32, .target = &s->top_k, .value_name = "N",
          .help = "choose among the N most likely (0: all)" },
        { .name = "top-p", .kind = FIRNI_FLAG_FLOAT, .target = &s->top_p, .value_name = "P",
          .help = "choose among the most likely of together P (1: all)", .min = 0, .max = 1 },
        { .name = "min-p", .kind = FIRNI_FLAG_FLOAT, .target = &s->min_p, .value_name = "P",
          .help = "drop what is less likely than P times the best (0: nothing)", .min = 0, .max = 1 },
        { .name = "repeat-penalty", .kind = FIRNI_FLAG_FLOAT, .target = &s->repetition_penalty, .value_name = "F",
          .help = "divide the logits of recent tokens (1: off)", .min = 0, .max = 10 },
        { .name = "repeat-last", .kind = FIRNI_FLAG_U32, .target = &s->penalty_last_n, .value_name = "N",
          .help = "how many tokens are recent (0: 64)", .min = 0, .max = 1048576 },
        { .name = "presence-penalty", .kind = FIRNI_FLAG_FLOAT, .target = &s->presence_penalty, .value_name = "F",
          .help = "subtract once from tokens of the answer", .min = -2, .max = 2 },
        { .name = "frequency-penalty", .kind = FIRNI_FLAG_FLOAT, .target = &s->frequency_penalty, .value_name = "F",
          .help = "subtract for each time a token was in the answer", .min = -2, .max = 2 },
        { .name = "seed", .kind = FIRNI_FLAG_U64, .target = &seed, .value_name = "N",
          .help = "same seed, same answer (0: a new one each time)" },
        { .name = "namespace", .kind = FIRNI_FLAG_STRING, .target = &options.ns, .value_name = "NAME",
          .help = "cache namespace" },
        { .name = "json", .kind = FIRNI_FLAG_BOOL, .target = &options.json,
          .help = "print one JSON object at the end instead of the text as it comes" },
        { .name = "config", .kind = FIRNI_FLAG_STRING, .target = &options.config, .value_name = "FILE",
          .help = "read flags from FILE; the command line wins" },
    };
    /* clang-format on */
    const char *prompt = NULL;
    uint32_t n_positional = 0;
    bool done = false;
    int status = firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &prompt, 1, &n_positional,
                                   &done);
    if (!done) {
        status = firni_ns_flag(self, &options.ns, options.stored_ns);
    }
    if (done || status != 0) {
        return status;
    }
    if (prompt == NULL) {
        return firni_cmd_usage(self, "a prompt is missing (\"-\" reads standard input)");
    }
    options.chat = options.chat || options.system != NULL;
    s->has_seed = seed != 0;
    s->seed = seed;
    char *input = strcmp(prompt, "-") == 0 ? read_stdin(self) : strdup(prompt);
    if (input == NULL) {
        return 1;
    }
    (void)signal(SIGPIPE, SIG_IGN); /* `firn run | head`: the answer ends, the state is still saved */
    const int exit_status = execute(self, &options, input, firni_cmd_env(FIRN_LOG_WARN));
    free(input);
    return exit_status;
}

const firni_command firni_cmd_run = {
    .name = "run",
    .summary = "answer one prompt on the terminal",
    .synopsis = "run [-m MODEL.gguf] [flags] PROMPT",
    .details =
        "The answer goes to standard output as it is made; the last line, on standard error, says how many\n"
        "tokens of the prompt came from the cache, when the first token was there, and the speed. Ctrl-C ends\n"
        "the answer. The cache directory is the one that `firn serve` uses; it is only read while a server runs.",
    .run = run,
};
