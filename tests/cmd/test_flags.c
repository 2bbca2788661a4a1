/*
 * Declarative flags: forms, kinds, units, bounds, choices, help, config files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cmd.h"
#include "support/support.h"

typedef struct values {
    bool verbose, quiet;
    uint32_t port;
    uint64_t seed, budget, params, ttl;
    float temp;
    const char *model, *kv, *config;
} values;

#define N_FLAGS 11

/* A fresh table over fresh defaults. */
static void table(values *v, firni_flag flags[N_FLAGS])
{
    *v = (values){ .port = 8080, .budget = 16ull << 30, .ttl = 90ull * 1000000000u, .temp = 0.8f, .kv = "f16" };
    const firni_flag all[N_FLAGS] = {
        { .name = "verbose", .letter = 'v', .kind = FIRNI_FLAG_BOOL, .target = &v->verbose, .help = "say more" },
        { .name = "quiet", .kind = FIRNI_FLAG_BOOL, .target = &v->quiet, .help = "say less" },
        { .name = "port", .letter = 'p', .kind = FIRNI_FLAG_U32, .target = &v->port, .value_name = "PORT",
          .help = "where to listen", .min = 1, .max = 65535 },
        { .name = "seed", .kind = FIRNI_FLAG_U64, .target = &v->seed, .value_name = "N", .help = "seed" },
        { .name = "budget", .kind = FIRNI_FLAG_BYTES, .target = &v->budget, .value_name = "BYTES", .help = "most bytes",
          .min = 1 << 20, .max = 1e15 },
        { .name = "params", .kind = FIRNI_FLAG_COUNT, .target = &v->params, .value_name = "N", .help = "parameters" },
        { .name = "ttl", .kind = FIRNI_FLAG_SECONDS, .target = &v->ttl, .value_name = "TIME", .help = "life", .min = 1,
          .max = 864000 },
        { .name = "temp", .kind = FIRNI_FLAG_FLOAT, .target = &v->temp, .value_name = "T", .help = "temperature",
          .min = 0, .max = 10 },
        { .name = "model", .letter = 'm', .kind = FIRNI_FLAG_STRING, .target = &v->model, .value_name = "FILE",
          .help = "model" },
        { .name = "kv", .kind = FIRNI_FLAG_STRING, .target = &v->kv, .value_name = "TYPE", .help = "state type",
          .choices = "f16|bf16|f32" },
        { .name = "config", .kind = FIRNI_FLAG_STRING, .target = &v->config, .value_name = "FILE", .help = "defaults" },
    };
    memcpy(flags, all, sizeof all);
}

static const firni_command command = { .name = "demo", .summary = "Demonstrates.", .synopsis = "demo [flags] [WORD]" };

typedef struct outcome {
    values v;
    int status;
    bool done;
    uint32_t n_positional;
    const char *positional[2];
    char words[16][256];  /* argv's memory: strings point into it */
    char out[8192];  /* stdout */
    char err[4096];  /* stderr */
} outcome;

static void read_back(int fd, char *out, size_t out_bytes)
{
    assert_true(lseek(fd, 0, SEEK_SET) == 0);
    const ssize_t n = read(fd, out, out_bytes - 1);
    out[n > 0 ? n : 0] = '\0';
    (void)close(fd);
}

static int temporary_file(void)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    const int fd = dup(fileno(file));
    (void)fclose(file);
    return fd;
}

/* Parses a NULL-terminated list of words with both streams caught. */
static void run(outcome *o, const char *const *words)
{
    firni_flag flags[N_FLAGS];
    *o = (outcome){ 0 };
    table(&o->v, flags);
    char *argv[16];
    int argc = 0;
    for (; words[argc] != NULL; argc++) {
        (void)snprintf(o->words[argc], sizeof o->words[argc], "%s", words[argc]);
        argv[argc] = o->words[argc];
    }
    const int fds[2] = { temporary_file(), temporary_file() };
    const int kept[2] = { dup(STDOUT_FILENO), dup(STDERR_FILENO) };
    (void)fflush(stdout);
    (void)dup2(fds[0], STDOUT_FILENO);
    (void)dup2(fds[1], STDERR_FILENO);
    o->status = firni_flags_parse(&command, flags, N_FLAGS, argc, argv, o->positional, 2, &o->n_positional, &o->done);
    (void)fflush(stdout);
    (void)fflush(stderr);
    (void)dup2(kept[0], STDOUT_FILENO);
    (void)dup2(kept[1], STDERR_FILENO);
    (void)close(kept[0]);
    (void)close(kept[1]);
    read_back(fds[0], o->out, sizeof o->out);
    read_back(fds[1], o->err, sizeof o->err);
}

#define RUN(o, ...) run((o), (const char *const[]){ __VA_ARGS__, NULL })

/* Wrong usage: status 2, `part` in the message, the hint, and no value changed. */
static void refused(const outcome *o, const char *part)
{
    assert_int_equal(o->status, 2);
    assert_true(o->done);
    if (strstr(o->err, part) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", o->err, part);
    }
    assert_non_null(strstr(o->err, "firn demo: "));
    assert_non_null(strstr(o->err, "Try: firn demo --help"));
    assert_string_equal(o->out, "");
}

static void accepted(const outcome *o)
{
    if (o->status != 0 || o->done) {
        fail_msg("refused: %s", o->err);
    }
    assert_string_equal(o->err, "");
}

static void every_form_of_a_flag_is_understood(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--port", "1", "--seed=18446744073709551615", "-m", "a=b", "-v", "word");
    accepted(&o);
    assert_int_equal(o.v.port, 1);
    assert_true(o.v.seed == UINT64_MAX);
    assert_string_equal(o.v.model, "a=b");
    assert_true(o.v.verbose);
    assert_false(o.v.quiet);
    assert_int_equal(o.n_positional, 1);
    assert_string_equal(o.positional[0], "word");
}

static void words_after_two_dashes_and_a_single_dash_are_positional(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "-", "--", "--port");
    accepted(&o);
    assert_int_equal(o.n_positional, 2);
    assert_string_equal(o.positional[0], "-");
    RUN(&o, "--model", "--help", "x");
    accepted(&o); /* a value may look like a flag */
    assert_string_equal(o.positional[0], "x");
}

static void the_last_of_a_repeated_flag_wins(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--port", "1", "-p", "2", "--verbose", "--verbose=false");
    accepted(&o);
    assert_int_equal(o.v.port, 2);
    assert_false(o.v.verbose);
}

static void units_multiply(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--budget", "512M", "--params", "1.5B", "--ttl", "1.5");
    accepted(&o);
    assert_true(o.v.budget == 512ull << 20);
    assert_true(o.v.params == 1500000000u);
    assert_true(o.v.ttl == 1500000000u);
    RUN(&o, "--budget", "2g", "--params", "450m", "--ttl", "2h");
    accepted(&o);
    assert_true(o.v.budget == 2ull << 30);
    assert_true(o.v.params == 450000000u);
    assert_true(o.v.ttl == 7200ull * 1000000000u);
    RUN(&o, "--budget", "1048576", "--params", "12", "--ttl", "7d");
    accepted(&o);
    assert_true(o.v.budget == 1048576 && o.v.params == 12 && o.v.ttl == 604800ull * 1000000000u);
}

static void malformed_numbers_are_refused(void **state)
{
    (void)state;
    static const char *const bad[] = { "", " 1", "1 ", "-1", "+1", "0x10", "1e3", "1k", "1.5", "4294967296",
                                       "99999999999999999999999", "one" };
    outcome o;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        RUN(&o, "--port", bad[i]);
        refused(&o, "--port: ");
        assert_int_equal(o.v.port, 8080);
    }
    static const char *const bad_bytes[] = { "", "M", "1.5", "1X", "1MB", "16777216T", "-1M", "1.M", ".5M", "1M1" };
    for (size_t i = 0; i < sizeof bad_bytes / sizeof bad_bytes[0]; i++) {
        RUN(&o, "--budget", bad_bytes[i]);
        refused(&o, "such as 4096, 512M or 16G");
    }
    static const char *const bad_floats[] = { "", "nan", "inf", "-inf", "0x1", "1,5", "1e99", "--", "1.5x", " 1" };
    for (size_t i = 0; i < sizeof bad_floats / sizeof bad_floats[0]; i++) {
        RUN(&o, "--temp", bad_floats[i]);
        refused(&o, "--temp: ");
        assert_true(o.v.temp == 0.8f);
    }
}

static void bounds_are_inclusive_and_named(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--port", "65535", "--temp", "10", "--ttl", "1", "--budget", "1M");
    accepted(&o);
    RUN(&o, "--port", "65536");
    refused(&o, "1..65535");
    RUN(&o, "--port", "0");
    refused(&o, "1..65535");
    RUN(&o, "--temp", "-0.5");
    refused(&o, "0..10");
    RUN(&o, "--ttl", "0.5");
    refused(&o, "1..864000");
    RUN(&o, "--budget", "1K");
    refused(&o, "1M..");
}

static void choices_are_exact(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--kv", "bf16");
    accepted(&o);
    assert_string_equal(o.v.kv, "bf16");
    static const char *const bad[] = { "f1", "f16|bf16", "", "F16", "f32 " };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        RUN(&o, "--kv", bad[i]);
        refused(&o, "f16|bf16|f32");
    }
}

static void wrong_words_are_named(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--prot", "1");
    refused(&o, "unknown flag --prot");
    RUN(&o, "-x");
    refused(&o, "unknown flag -x");
    RUN(&o, "-vp");
    refused(&o, "unknown flag -vp");
    RUN(&o, "--port");
    refused(&o, "--port needs a value (PORT)");
    RUN(&o, "--verbose=yes");
    refused(&o, "true or false");
    RUN(&o, "a", "b", "c");
    refused(&o, "unexpected word \"c\"");
}

static void help_shows_untouched_defaults_wherever_it_stands(void **state)
{
    (void)state;
    outcome o;
    RUN(&o, "--port", "1", "--help");
    assert_int_equal(o.status, 0);
    assert_true(o.done);
    static const char *const parts[] = {
        "Demonstrates.\n", "Usage: firn demo [flags] [WORD]\n", "-v, --verbose", "-p, --port PORT",
        "where to listen (1..65535; default 8080)", "default 16G", "f16|bf16|f32; default f16", "default 0.8",
        "(1..864000; default 90)", "-h, --help",
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        if (strstr(o.out, parts[i]) == NULL) {
            fail_msg("help lacks \"%s\":\n%s", parts[i], o.out);
        }
    }
    assert_int_equal(o.v.port, 8080);
    RUN(&o, "-h");
    assert_int_equal(o.status, 0);
}

/* ---- config files ---- */

static void config(outcome *o, const char *text, const char *name, const char *value)
{
    char *dir = test_dir_create();
    char path[512];
    (void)snprintf(path, sizeof path, "%s/firn.conf", dir);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    if (name != NULL) {
        RUN(o, name, value, "--config", path);
    } else {
        RUN(o, "--config", path);
    }
    test_dir_remove(dir);
    free(dir);
}

static void a_config_file_sets_flags_and_the_command_line_wins(void **state)
{
    (void)state;
    outcome o;
    config(&o,
           "# comment\n\n  port = 9000   # trailing\r\nmodel=/a b/c.gguf\nkv = \"f32\"\nverbose = true\n"
           "budget = 1G\nquiet=false",
           "--port", "1");
    accepted(&o);
    assert_int_equal(o.v.port, 1);
    assert_string_equal(o.v.model, "/a b/c.gguf");
    assert_string_equal(o.v.kv, "f32");
    assert_true(o.v.verbose);
    assert_true(o.v.budget == 1ull << 30);
    config(&o, "model = \"x # y\"   # z\n", NULL, NULL);
    accepted(&o);
    assert_string_equal(o.v.model, "x # y");
    config(&o, "model = a#b\n", NULL, NULL);
    accepted(&o);
    assert_string_equal(o.v.model, "a#b");
    config(&o, "", NULL, NULL);
    accepted(&o);
}

static void config_errors_name_file_and_line(void **state)
{
    (void)state;
    outcome o;
    config(&o, "port = 1\nprot = 2\n", NULL, NULL);
    refused(&o, "firn.conf:2: there is no flag \"prot\"");
    config(&o, "\n\nport\n", NULL, NULL);
    refused(&o, "firn.conf:3: expected \"flag = value\"");
    config(&o, "port = 70000\n", NULL, NULL);
    refused(&o, "firn.conf:1: --port: \"70000\"");
    config(&o, "config = other\n", NULL, NULL);
    refused(&o, "no flag \"config\" to set here");
    config(&o, "model = \"open\n", NULL, NULL);
    refused(&o, "must end with a quote");
    config(&o, "model = \"a\" b\n", NULL, NULL);
    refused(&o, "must end with a quote");
    RUN(&o, "--config", "/nonexistent/firn.conf");
    assert_int_equal(o.status, 1);
    assert_true(o.done);
    assert_non_null(strstr(o.err, "/nonexistent/firn.conf: No such file"));
}

static void the_environment_writes_only_the_lines_of_its_level(void **state)
{
    (void)state;
    const firn_env *env = firni_cmd_env(FIRN_LOG_WARN);
    assert_ptr_equal(env, firni_cmd_env(FIRN_LOG_WARN));
    const int fd = temporary_file();
    const int kept = dup(STDERR_FILENO);
    (void)dup2(fd, STDERR_FILENO);
    env->log->write(env->log->ctx, FIRN_LOG_WARN, "one");
    env->log->write(env->log->ctx, FIRN_LOG_INFO, "two");
    char label[] = "loading";
    firni_cmd_progress(label, 0.5f); /* not a terminal: nothing */
    (void)dup2(kept, STDERR_FILENO);
    (void)close(kept);
    char text[256];
    read_back(fd, text, sizeof text);
    assert_string_equal(text, "firn: warning: one\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_form_of_a_flag_is_understood),
        cmocka_unit_test(words_after_two_dashes_and_a_single_dash_are_positional),
        cmocka_unit_test(the_last_of_a_repeated_flag_wins),
        cmocka_unit_test(units_multiply),
        cmocka_unit_test(malformed_numbers_are_refused),
        cmocka_unit_test(bounds_are_inclusive_and_named),
        cmocka_unit_test(choices_are_exact),
        cmocka_unit_test(wrong_words_are_named),
        cmocka_unit_test(help_shows_untouched_defaults_wherever_it_stands),
        cmocka_unit_test(a_config_file_sets_flags_and_the_command_line_wins),
        cmocka_unit_test(config_errors_name_file_and_line),
        cmocka_unit_test(the_environment_writes_only_the_lines_of_its_level),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
