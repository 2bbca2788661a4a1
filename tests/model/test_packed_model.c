/*
 * Models whose weights are mapped as packed before: the same bits in every family, whatever happened to the file, and
 * starts that nothing about the file can fail.
 */
#include "model_fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "kernel/packed.h"
#include "packed_rig.h"

enum { N_TOKENS = 24 };

static char *dir;

/* ---- runs ---- */

/* What one start gives: the logits, malloc'ed, and whether the weights were mapped. */
static float *run(const char *path, const char *packed_dir, uint32_t n_threads, const firn_env *env, bool *mapped,
                  uint32_t *n_vocab)
{
    const fixture_options options = { .path = path, .packed_dir = packed_dir, .n_threads = n_threads, .env = env };
    fixture f = fixture_open(&options);
    firn_token tokens[N_TOKENS];
    test_rng rng = { .state = 5 };
    for (uint32_t i = 0; i < N_TOKENS; i++) {
        tokens[i] = test_rng_below(&rng, f.n_vocab < 256 ? f.n_vocab : 256);
    }
    *n_vocab = f.n_vocab;
    *mapped = firn_model_get_info(f.model)->weights_mapped;
    float *logits = fixture_logits(&f, tokens, N_TOKENS, N_TOKENS);
    fixture_close(&f);
    return logits;
}

static void expect_run(const char *path, const char *packed_dir, uint32_t n_threads, const firn_env *env,
                       const float *expected, bool expect_mapped)
{
    bool mapped;
    uint32_t n_vocab;
    float *logits = run(path, packed_dir, n_threads, env, &mapped, &n_vocab);
    assert_memory_equal(logits, expected, (size_t)N_TOKENS * n_vocab * sizeof *logits);
    assert_true(mapped == expect_mapped);
    free(logits);
}

static char *join_dir(const char *name)
{
    const size_t n = strlen(dir) + strlen(name) + 2;
    char *path = malloc(n);
    assert_non_null(path);
    (void)snprintf(path, n, "%s/%s", dir, name);
    return path;
}

static float *plain_logits(const char *path)
{
    bool mapped;
    uint32_t n_vocab;
    float *logits = run(path, NULL, 1, NULL, &mapped, &n_vocab);
    assert_false(mapped);
    return logits;
}

/* The only file of packed weights in a directory. */
static void find_file(const char *packed_dir, char out[1024])
{
    DIR *stream = opendir(packed_dir);
    assert_non_null(stream);
    out[0] = '\0';
    for (const struct dirent *entry = readdir(stream); entry != NULL; entry = readdir(stream)) {
        if (strstr(entry->d_name, ".packed") != NULL) {
            assert_int_equal(out[0], '\0');
            (void)snprintf(out, 1024, "%s/%s", packed_dir, entry->d_name);
        }
    }
    (void)closedir(stream);
    assert_true(out[0] != '\0');
}

/* When these fail, files in use hold other panels, or the same under other names: the packing has a new version
 * (packed_file.h), and this test new numbers for it. */
#define FAMILIES_SUM UINT64_C(0x7150764dd6a57bcf)
#define TYPES_SUM UINT64_C(0x726a63280f2358f3)

static XXH64_hash_t add_panels(const char *packed_dir, XXH64_hash_t sum)
{
    char file[1024];
    size_t n_bytes;
    firni_packed_head head;
    find_file(packed_dir, file);
    char *bytes = read_whole(file, &n_bytes);
    assert_ok(firni_packed_head_decode((const uint8_t *)bytes, n_bytes, n_bytes, &head, NULL));
    const size_t n_entries = (size_t)head.n_entries * FIRNI_PACKED_ENTRY_BYTES;
    sum = XXH3_64bits_withSeed(bytes + head.entries_offset, n_entries, sum);
    sum = XXH3_64bits_withSeed(bytes + head.panels_offset, n_bytes - (size_t)head.panels_offset, sum);
    free(bytes);
    return sum;
}

static void every_family_gives_the_same_bits_from_its_file(void **state)
{
    (void)state;
    static const char *const names[] = {
        "deepseek2", "deepseek32", "gemma3", "gemma4", "gptoss", "llama", "mamba2", "qwen3", "qwen35", "qwen3next",
        "llama256-bf16", "llama256-f16", "llama256-q4_0", "llama256-q4_k_m", "llama256-q6_k", "llama256-q8_0",
    };
    XXH64_hash_t sum = FIRNI_PACKING_VERSION;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[64];
        char *packed_dir = join_dir(names[i]);
        (void)snprintf(path, sizeof path, "tests/oracle/%s.gguf", names[i]);
        float *expected = plain_logits(path);
        expect_run(path, packed_dir, 1, NULL, expected, false);
        expect_run(path, packed_dir, 3, NULL, expected, true);
        sum = add_panels(packed_dir, sum);
        free(expected);
        free(packed_dir);
    }
    assert_int_equal(sum, FAMILIES_SUM);
}

static void nothing_is_written_before_the_first_answer(void **state)
{
    (void)state;
    char *packed_dir = join_dir("unused");
    fixture f = fixture_open(&(fixture_options){ .path = "tests/oracle/llama.gguf", .packed_dir = packed_dir });
    assert_true(firn_model_get_info(f.model)->packed_bytes_due > 0);
    fixture_close(&f);
    assert_int_equal(access(packed_dir, F_OK), -1);
    free(packed_dir);
}

static void small_and_large_weights_are_not_kept(void **state)
{
    (void)state;
    char *packed_dir = join_dir("limits");
    firn_model_options options = { .path = "tests/oracle/llama.gguf", .packed_dir = packed_dir };
    firn_model *model = NULL;
    assert_ok(firn_model_open(&options, NULL, &model, NULL)); /* the least is 32 MiB */
    assert_int_equal(firn_model_get_info(model)->packed_bytes_due, 0);
    firn_model_close(model);
    options.packed_bytes_min = 1;
    options.packed_bytes_max = 4096;
    assert_ok(firn_model_open(&options, NULL, &model, NULL));
    assert_int_equal(firn_model_get_info(model)->packed_bytes_due, 0);
    firn_model_close(model);
    free(packed_dir);
}

/* ---- damage ---- */

static void a_damaged_file_is_found_and_replaced_and_changes_no_bit(void **state)
{
    (void)state;
    static const char model[] = "tests/oracle/llama256-q8_0.gguf";
    char *packed_dir = join_dir("damage");
    char file[1024];
    float *expected = plain_logits(model);
    expect_run(model, packed_dir, 1, NULL, expected, false);
    find_file(packed_dir, file);
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    test_rng rng = test_rng_create("a_damaged_file_is_found_and_replaced_and_changes_no_bit", 11);
    for (uint32_t i = 0; i < 12; i++) {
        /* A torn page, a page of zeros, a cut: of head or panels. */
        const off_t at = (off_t)(test_rng_u64(&rng) % (i % 4 == 0 ? 1000 : (uint64_t)st.st_size));
        if (i % 3 == 2) {
            assert_int_equal(truncate(file, at), 0);
        } else {
            const int fd = open(file, O_WRONLY);
            char bytes[512];
            memset(bytes, i % 3 == 0 && i % 4 != 0 ? 0 : 0xa5, sizeof bytes); /* behind the entries a head is zeros */
            assert_true(fd >= 0);
            assert_int_equal(pwrite(fd, bytes, sizeof bytes, at), sizeof bytes);
            assert_int_equal(close(fd), 0);
        }
        expect_run(model, packed_dir, 1, NULL, expected, false);
        expect_run(model, packed_dir, 1, NULL, expected, true);
    }
    free(expected);
    free(packed_dir);
}

/* The same name, the same size: other weights. */
static void a_changed_model_file_is_packed_anew(void **state)
{
    (void)state;
    firni_synth_options synth = {
        .architecture = "llama", .type = FIRNI_WEIGHT_Q8_0, .n_layers = 2, .n_embd = 64, .n_heads = 2, .n_kv_heads = 1,
        .head_dim = 32, .n_ff = 96, .n_vocab = 300, .n_ctx = 128, .seed = 1,
    };
    char *packed_dir = join_dir("changed");
    char file[1024];
    for (uint32_t seed = 1; seed <= 2; seed++) {
        synth.seed = seed;
        char *path = small_model(dir, "changing.gguf", &synth);
        float *expected = plain_logits(path);
        expect_run(path, packed_dir, 1, NULL, expected, false);
        expect_run(path, packed_dir, 1, NULL, expected, true);
        find_file(packed_dir, file); /* one: the other's has gone */
        free(expected);
        free(path);
    }
    free(packed_dir);
}

/* ---- what the system refuses ---- */

typedef struct counted_log {
    firn_log log;
    char last[600];
    uint32_t n_warnings;
} counted_log;

static void write_log(void *ctx, firn_log_level level, const char *message)
{
    counted_log *log = ctx;
    if (level == FIRN_LOG_WARN) {
        log->n_warnings++;
        (void)snprintf(log->last, sizeof log->last, "%s", message);
    }
}

static void what_the_system_refuses_is_logged_and_the_model_answers(void **state)
{
    (void)state;
    static const char model[] = "tests/oracle/llama.gguf";
    static const struct {
        test_io_op op;
        int reason;
        const char *words;
    } cases[] = {
        { TEST_IO_MKDIR, EROFS, "Read-only file system" },
        { TEST_IO_PWRITEV, ENOSPC, "No space left on device" },
        { TEST_IO_DATASYNC, EIO, "cannot sync" },
        { TEST_IO_RENAME, EACCES, "cannot rename" },
        { TEST_IO_LOCK, ENOLCK, "cannot lock" },
    };
    char *packed_dir = join_dir("refused");
    float *expected = plain_logits(model);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        counted_log log = { .log = { .write = write_log } };
        log.log.ctx = &log;
        test_world world;
        test_world_init(&world);
        world.env.log = &log.log;
        world.fail_op_at[cases[i].op] = 1;
        world.fail_errno = cases[i].reason;
        world.fail_on = true;
        expect_run(model, packed_dir, 1, &world.env, expected, false);
        assert_int_equal(log.n_warnings, 1);
        if (strstr(log.last, cases[i].words) == NULL) {
            fail_msg("\"%s\" says nothing of \"%s\"", log.last, cases[i].words);
        }
        assert_int_equal(files_ending(packed_dir, ".packed") + files_ending(packed_dir, ".partial"), 0);
        test_world_deinit(&world);
    }
    free(expected);
    free(packed_dir);
}

/* Allocations of opening with a file there: each refused one is an error, or a start without the file. */
static void no_allocation_that_fails_leaks_or_changes_a_bit(void **state)
{
    (void)state;
    static const char model[] = "tests/oracle/llama.gguf";
    char *packed_dir = join_dir("torture");
    float *expected = plain_logits(model);
    expect_run(model, packed_dir, 1, NULL, expected, false);
    uint32_t n_without_file = 0;
    for (uint64_t n = 1;; n++) {
        test_world world;
        test_world_init(&world);
        world.fail_alloc_at = n;
        const firn_model_options options = { .path = model, .packed_dir = packed_dir, .packed_bytes_min = 1 };
        firn_model *opened = NULL;
        firn_error err = { .message = "" };
        const firn_status status = firn_model_open(&options, &world.env, &opened, &err);
        assert_true(status == FIRN_OK || status == FIRN_ERR_NO_MEMORY);
        n_without_file += status == FIRN_OK && !firn_model_get_info(opened)->weights_mapped;
        firn_model_close(opened);
        const bool clean = !world.alloc_failed;
        test_world_deinit(&world);
        if (clean) {
            break;
        }
    }
    assert_true(n_without_file >= 2);
    expect_run(model, packed_dir, 1, NULL, expected, true);
    free(expected);
    free(packed_dir);
}

/* ---- several processes ---- */

static void processes_that_start_at_once_write_one_file_and_answer_alike(void **state)
{
    (void)state;
    enum { N_CHILDREN = 3 };
    static const char model[] = "tests/oracle/llama256-q8_0.gguf";
    char *packed_dir = join_dir("together");
    float *expected = plain_logits(model);
    pid_t children[N_CHILDREN];
    for (uint32_t i = 0; i < N_CHILDREN; i++) {
        children[i] = fork();
        assert_true(children[i] >= 0);
        if (children[i] == 0) {
            bool mapped;
            uint32_t n_vocab;
            float *logits = run(model, packed_dir, 1, NULL, &mapped, &n_vocab);
            _exit(memcmp(logits, expected, (size_t)N_TOKENS * n_vocab * sizeof *logits) == 0 ? 0 : 1);
        }
    }
    for (uint32_t i = 0; i < N_CHILDREN; i++) {
        int status = 1;
        assert_int_equal(waitpid(children[i], &status, 0), children[i]);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(files_ending(packed_dir, ".packed"), 1);
    assert_int_equal(files_ending(packed_dir, ".partial"), 0);
    expect_run(model, packed_dir, 1, NULL, expected, true);
    free(expected);
    free(packed_dir);
}

/* ---- the version ---- */

/* Panels of all weight types, from fixed bytes. */
static void panels_are_those_of_this_version(void **state)
{
    (void)state;
    enum { N_ROWS = 37, N_COLS = 512 };
    XXH64_hash_t sum = FIRNI_PACKING_VERSION;
    test_rng rng = { .state = 1 };
    for (uint32_t type = 0; type < FIRNI_WEIGHT_TYPES; type++) {
        const size_t n_source = N_ROWS * firni_weight_row_bytes((firni_weight_type)type, N_COLS);
        const size_t n_panels = firni_matrix_bytes((firni_weight_type)type, N_ROWS, N_COLS);
        uint8_t *source = malloc(n_source);
        uint8_t *panels = malloc(n_panels);
        assert_true(source != NULL && panels != NULL);
        for (size_t i = 0; i < n_source; i++) {
            source[i] = (uint8_t)test_rng_u64(&rng);
        }
        firni_matrix_pack((firni_weight_type)type, N_ROWS, N_COLS, source, panels, 0, firni_panel_count(N_ROWS));
        sum = XXH3_64bits_withSeed(panels, n_panels, sum);
        free(panels);
        free(source);
    }
    assert_int_equal(sum, TYPES_SUM);
}

static int make_dir(void **state)
{
    (void)state;
    dir = test_dir_create();
    return 0;
}

static int remove_dir(void **state)
{
    (void)state;
    test_dir_remove(dir);
    free(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_gives_the_same_bits_from_its_file),
        cmocka_unit_test(nothing_is_written_before_the_first_answer),
        cmocka_unit_test(small_and_large_weights_are_not_kept),
        cmocka_unit_test(a_damaged_file_is_found_and_replaced_and_changes_no_bit),
        cmocka_unit_test(a_changed_model_file_is_packed_anew),
        cmocka_unit_test(what_the_system_refuses_is_logged_and_the_model_answers),
        cmocka_unit_test(no_allocation_that_fails_leaks_or_changes_a_bit),
        cmocka_unit_test(processes_that_start_at_once_write_one_file_and_answer_alike),
        cmocka_unit_test(panels_are_those_of_this_version),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
