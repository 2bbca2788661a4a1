/*
 * firn tokenize: text to token ids and back, with the vocabulary of a model file. Loads no weights.
 *
 * For people one token a line, for scripts --ids, for programs --json-lines: one request and one answer a line.
 *
 *   firn tokenize --text 'My dear'           385  " M" ...
 *   firn tokenize --ids FILE                 385 1989 ...
 *   firn tokenize --ids FILE | firn tokenize --decode -
 *   firn tokenize --json-lines               {"text":"My dear"}  ->  {"ids":[385,...]}
 *
 * Failures: an input that cannot be read or encoded ends the command with one line on stderr; in --json-lines it is
 * answered in its place, and the next line is read.
 */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cmd.h"
#include "model/tokenizer_utf8.h"
#include "model/vocab_spec.h"

/* The command line, and what it opened. */
typedef struct tokenize {
    const firni_command *command;
    const char *model;
    const char *text;
    bool ids, decode, special, bos, json_lines;
    const char *input; /* a path, "-", or NULL */
    firni_gguf *gguf;
    firn_tokenizer *tokenizer;
} tokenize;

/* ---- model and input ---- */

/* The file stays mapped until the tokenizer has copied what it keeps. */
static firn_status open_tokenizer(tokenize *job, const char *path, firn_error *err)
{
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    firni_vocab_spec spec = { 0 };
    firn_status status = firni_gguf_open(path, env, &job->gguf, err);
    if (status == FIRN_OK) {
        status = firni_vocab_from_gguf(job->gguf, env, &spec, err);
    }
    if (status == FIRN_OK) {
        status = firni_tokenizer_create(&spec, env, &job->tokenizer, err);
    }
    firni_vocab_spec_deinit(&spec);
    return status;
}

/* ---- output for people and scripts ---- */

/* In quotes, with what a terminal would not show as \xNN. */
static void print_piece(const char *bytes, uint32_t len_bytes)
{
    (void)putchar('"');
    for (uint32_t at = 0; at < len_bytes;) {
        uint32_t character = 0;
        const uint32_t len = firni_utf8_decode(bytes + at, len_bytes - at, &character);
        if (len == 0 || character < 0x20 || character == 0x7F || (character >= 0x80 && character < 0xA0)) {
            const uint32_t n = len == 0 ? 1 : len;
            for (uint32_t i = 0; i < n; i++) {
                (void)printf("\\x%02X", (unsigned char)bytes[at + i]);
            }
            at += n;
            continue;
        }
        if (character == '"' || character == '\\') {
            (void)putchar('\\');
        }
        (void)fwrite(bytes + at, 1, len, stdout);
        at += len;
    }
    (void)putchar('"');
}

/* A token a line, or with --ids all in one. */
static firn_status print_tokens(const tokenize *job, const char *text, size_t len_bytes, firn_error *err)
{
    const firn_encode_options options = { .add_bos = job->bos, .parse_special = job->special };
    firn_token *tokens = NULL;
    uint32_t n_tokens = 0;
    const firn_status status =
        firn_tokenizer_encode(job->tokenizer, text, len_bytes, &options, &tokens, &n_tokens, err);
    for (uint32_t i = 0; i < n_tokens; i++) {
        if (job->ids) {
            (void)printf("%s%" PRIu32, i == 0 ? "" : " ", tokens[i]);
            continue;
        }
        uint32_t len = 0;
        const char *piece = firn_tokenizer_piece(job->tokenizer, tokens[i], &len);
        (void)printf("%8" PRIu32 "  ", tokens[i]);
        print_piece(piece, len);
        (void)putchar('\n');
    }
    if (status == FIRN_OK && job->ids) {
        (void)putchar('\n');
    }
    free(tokens);
    return status;
}

/* The reverse. Numbers separated by anything else: the output of --ids, a JSON array, the first column of a list. */
static firn_status print_decoded(const tokenize *job, const char *text, size_t len_bytes, firn_error *err)
{
    firn_token *tokens = calloc(len_bytes / 2 + 1, sizeof *tokens);
    if (tokens == NULL) {
        *err = (firn_error){ .status = FIRN_ERR_NO_MEMORY, .message = "no memory for the ids" };
        return FIRN_ERR_NO_MEMORY;
    }
    uint32_t n_tokens = 0;
    for (size_t at = 0; at < len_bytes;) {
        if (text[at] < '0' || text[at] > '9') {
            at++;
            continue;
        }
        uint64_t id = 0;
        for (; at < len_bytes && text[at] >= '0' && text[at] <= '9'; at++) {
            id = id > UINT32_MAX ? id : id * 10 + (uint64_t)(text[at] - '0');
        }
        tokens[n_tokens++] = id > UINT32_MAX ? FIRN_TOKEN_NONE : (firn_token)id;
    }
    char *decoded = NULL;
    size_t n = 0;
    const firn_status status = firn_tokenizer_decode(job->tokenizer, tokens, n_tokens, job->special, &decoded, &n, err);
    (void)fwrite(decoded == NULL ? "" : decoded, 1, n, stdout);
    free(decoded);
    free(tokens);
    return status;
}

/* ---- JSON lines ---- */

static json_t *error_answer(const char *message)
{
    return json_pack("{s:s}", "error", message);
}

/* {"ids": [...]} for a text. */
static json_t *answer_ids(const tokenize *job, const char *text, size_t len_bytes, const firn_encode_options *options)
{
    firn_error err = { 0 };
    firn_token *tokens = NULL;
    uint32_t n_tokens = 0;
    if (firn_tokenizer_encode(job->tokenizer, text, len_bytes, options, &tokens, &n_tokens, &err) != FIRN_OK) {
        return error_answer(err.message);
    }
    json_t *ids = json_array();
    for (uint32_t i = 0; i < n_tokens && ids != NULL; i++) {
        (void)json_array_append_new(ids, json_integer(tokens[i]));
    }
    free(tokens);
    return json_pack("{s:o}", "ids", ids);
}

/* JSON carries only UTF-8: other bytes are shown as U+FFFD, and the exact bytes follow in hexadecimal. */
static json_t *answer_text(const char *text, size_t len_bytes)
{
    static const char replacement[] = "\uFFFD";
    char *shown = malloc(len_bytes * 3 + 1);
    char *hex = malloc(len_bytes * 2 + 1);
    json_t *answer = NULL;
    if (shown != NULL && hex != NULL) {
        size_t n = 0;
        bool valid = true;
        for (size_t at = 0; at < len_bytes;) {
            uint32_t character = 0;
            const uint32_t len = firni_utf8_decode(text + at, len_bytes - at, &character);
            valid = valid && len > 0;
            memcpy(shown + n, len > 0 ? text + at : replacement, len > 0 ? len : sizeof replacement - 1);
            n += len > 0 ? len : sizeof replacement - 1;
            at += len > 0 ? len : 1;
        }
        for (size_t i = 0; i < len_bytes; i++) {
            (void)snprintf(hex + 2 * i, 3, "%02x", (unsigned char)text[i]);
        }
        answer = json_object();
        (void)json_object_set_new(answer, "text", json_stringn(shown, n));
        if (!valid) {
            (void)json_object_set_new(answer, "hex", json_stringn(hex, len_bytes * 2));
        }
    }
    free(shown);
    free(hex);
    return answer;
}

/* {"text": ...} for ids; an element that is no id is answered as one outside the vocabulary. */
static json_t *answer_decode(const tokenize *job, const json_t *ids, bool keep_special)
{
    const size_t n = json_array_size(ids);
    firn_token *tokens = calloc(n + 1, sizeof *tokens);
    if (tokens == NULL || n > UINT32_MAX) {
        free(tokens);
        return error_answer("no memory for the ids");
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_array_get(ids, i);
        const bool fits = json_is_integer(id) && json_integer_value(id) >= 0 && json_integer_value(id) < UINT32_MAX;
        tokens[i] = fits ? (firn_token)json_integer_value(id) : FIRN_TOKEN_NONE;
    }
    firn_error err = { 0 };
    char *text = NULL;
    size_t len_bytes = 0;
    json_t *answer = NULL;
    if (firn_tokenizer_decode(job->tokenizer, tokens, (uint32_t)n, keep_special, &text, &len_bytes, &err) == FIRN_OK) {
        answer = answer_text(text, len_bytes);
    } else {
        answer = error_answer(err.message);
    }
    free(text);
    free(tokens);
    return answer;
}

/* A request's own flag, else the command line's. */
static bool flag_of(const json_t *request, const char *name, bool fallback)
{
    const json_t *value = json_object_get(request, name);
    return value == NULL ? fallback : json_is_true(value);
}

/* New reference; NULL only when there is no memory. */
static json_t *answer_request(const tokenize *job, const json_t *request)
{
    const bool special = flag_of(request, "special", job->special);
    const firn_encode_options options = { .add_bos = flag_of(request, "bos", job->bos), .parse_special = special };
    const json_t *text = json_object_get(request, "text");
    if (json_is_string(text)) {
        return answer_ids(job, json_string_value(text), json_string_length(text), &options);
    }
    if (json_is_array(json_object_get(request, "ids"))) {
        return answer_decode(job, json_object_get(request, "ids"), special);
    }
    return error_answer("a request is {\"text\": \"...\"} or {\"ids\": [...]}");
}

/* Returns false when a line was answered with an error. */
static bool run_lines(const tokenize *job, FILE *in)
{
    bool all_good = true;
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t len; (len = getline(&line, &capacity, in)) >= 0;) {
        json_error_t detail;
        json_t *request = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, &detail);
        json_t *answer = request == NULL ? error_answer(detail.text) : answer_request(job, request);
        all_good = all_good && answer != NULL && json_object_get(answer, "error") == NULL;
        if (answer == NULL || json_dumpf(answer, stdout, JSON_COMPACT) != 0) {
            (void)fputs("{\"error\":\"no memory for the answer\"}", stdout);
            all_good = false;
        }
        (void)putchar('\n');
        (void)fflush(stdout); /* whoever asks line by line waits for it */
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    return all_good;
}

/* ---- the command ---- */

/* Opens the input, runs the chosen form, and returns the exit status. */
static int run_input(const tokenize *job)
{
    FILE *in = job->input == NULL || strcmp(job->input, "-") == 0 ? stdin : fopen(job->input, "rb");
    if (in == NULL) {
        return firni_cmd_fail(job->command, "%s: %s", job->input, strerror(errno));
    }
    int exit_status = 0;
    if (job->json_lines) {
        exit_status = run_lines(job, in) ? 0 : 1;
    } else {
        size_t len_bytes = 0;
        char *text = job->text == NULL ? firni_cmd_read_stream(in, FIRNI_TEXT_BYTES_MAX, &len_bytes) : NULL;
        firn_error err = { 0 };
        if (job->text == NULL && text == NULL) {
            exit_status = firni_cmd_fail(job->command, "cannot read the text: %s", strerror(errno));
        } else {
            const char *used = job->text == NULL ? text : job->text;
            const size_t len_used = job->text == NULL ? len_bytes : strlen(job->text);
            const firn_status status =
                job->decode ? print_decoded(job, used, len_used, &err) : print_tokens(job, used, len_used, &err);
            exit_status = status == FIRN_OK ? 0 : firni_cmd_fail(job->command, "%s", err.message);
        }
        free(text);
    }
    if (in != stdin) {
        (void)fclose(in);
    }
    return exit_status;
}

static int run_tokenize(const firni_command *self, int argc, char **argv)
{
    tokenize job = { .command = self };
    const firni_flag flags[] = {
        { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &job.model, .value_name = "FILE",
          .help = "GGUF file whose vocabulary is used; the built-in model when not given" },
        { .name = "text", .kind = FIRNI_FLAG_STRING, .target = &job.text, .value_name = "TEXT",
          .help = "the text itself, instead of FILE" },
        { .name = "ids", .kind = FIRNI_FLAG_BOOL, .target = &job.ids, .help = "print ids alone, in one line" },
        { .name = "decode", .kind = FIRNI_FLAG_BOOL, .target = &job.decode,
          .help = "the input is ids; print the text they stand for" },
        { .name = "special", .kind = FIRNI_FLAG_BOOL, .target = &job.special,
          .help = "read spelled-out special tokens as such; with --decode, print them" },
        { .name = "bos", .kind = FIRNI_FLAG_BOOL, .target = &job.bos,
          .help = "begin with BOS where the model wants one" },
        { .name = "json-lines", .kind = FIRNI_FLAG_BOOL, .target = &job.json_lines,
          .help = "read a JSON object a line and answer each with a line" },
    };
    uint32_t n_positional = 0;
    bool done = false;
    int exit_status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, &job.input, 1, &n_positional, &done);
    if (done) {
        return exit_status;
    }
    if (job.text != NULL && (n_positional > 0 || job.json_lines)) {
        return firni_cmd_usage(self, "--text goes with neither a FILE nor --json-lines");
    }
    if (job.text == NULL && n_positional == 0 && !job.json_lines) {
        return firni_cmd_usage(self, "no text: give --text TEXT, a FILE, or - for standard input");
    }
    char *builtin = job.model == NULL ? firni_cmd_builtin_model() : NULL;
    const char *path = job.model == NULL ? builtin : job.model;
    firn_error err = { 0 };
    if (path == NULL) {
        exit_status = firni_cmd_fail(self, "the built-in model was not found; give one with -m");
    } else if (open_tokenizer(&job, path, &err) != FIRN_OK) {
        exit_status = firni_cmd_fail(self, "%s", err.message);
    } else {
        exit_status = run_input(&job);
    }
    firni_tokenizer_destroy(job.tokenizer);
    firni_gguf_close(job.gguf);
    free(builtin);
    return exit_status;
}

const firni_command firni_cmd_tokenize = {
    .name = "tokenize",
    .summary = "text to token ids and back",
    .synopsis = "tokenize [-m MODEL.gguf] [flags] [--text TEXT | FILE | -]",
    .details =
        "Prints each token's id and piece. With --json-lines, which reads standard input when no FILE is given:\n"
        "  {\"text\": \"...\"}   is answered with {\"ids\": [...]}\n"
        "  {\"ids\": [...]}    is answered with {\"text\": \"...\"}; when the bytes are not UTF-8, \"hex\" has them\n"
        "  anything else     is answered with {\"error\": \"...\"}, and the exit status is 1 at the end.\n"
        "A request's own \"special\" and \"bos\" (true or false) go before the flags.",
    .run = run_tokenize,
};
