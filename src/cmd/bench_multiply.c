/*
 * What this machine can multiply with the same threads: the model's own kind of weights against as many tokens as a
 * product takes at once, all small enough for a core's second-level cache. Prefill cannot be faster than its products
 * at this rate.
 *
 * It is the rate of this library's register tiles with no memory to wait for, not that of the processor's data sheet:
 * what lies between the two is written down in kernel/many_impl.h.
 */
#include <string.h>

#include "base/base_impl.h"
#include "cmd/bench_impl.h"
#include "kernel/kernel_impl.h"

enum {
    N_ROWS = 128,
    N_COLS = 512,   /* whole blocks of every weight type */
    N_TOKENS = 132, /* whole tiles of every variant */
    N_REPEATS = 18,
    N_TASKS_PER_THREAD = 8,
    SCRATCH_ALIGN = 64,
};

typedef struct multiply_job {
    const firni_kernels *kernels;
    firni_matrix matrix;
    const void *acts;
    float *y; /* [threads][N_TOKENS][N_ROWS] */
} multiply_job;

static void multiply_task(void *ctx, uint32_t index, uint32_t thread)
{
    const multiply_job *job = ctx;
    (void)index;
    for (uint32_t i = 0; i < N_REPEATS; i++) {
        job->kernels->matmul_panels(&job->matrix, job->acts, job->y + (size_t)thread * N_TOKENS * N_ROWS, N_ROWS,
                                    N_TOKENS, 0, N_ROWS / FIRNI_PANEL_ROWS);
    }
}

static firni_weight_type type_of(const char *name)
{
    for (uint32_t i = 0; i < FIRNI_WEIGHT_TYPES; i++) {
        if (strcmp(name, firni_weight_type_name((firni_weight_type)i)) == 0) {
            return (firni_weight_type)i;
        }
    }
    return FIRNI_WEIGHT_F32;
}

firn_status firni_bench_multiply(firni_bench *bench, uint32_t n_runs, firn_error *err)
{
    const firn_model_info *info = firn_model_get_info(bench->stack->model);
    const uint32_t n_threads = firn_workers_count(bench->stack->workers);
    const firni_kernels *kernels = firni_kernels_select(info->kernel, err);
    if (kernels == NULL) {
        return FIRN_ERR_UNSUPPORTED;
    }
    const firni_weight_type type = type_of(info->weight_type);
    const size_t row_bytes = firni_weight_row_bytes(type, N_COLS);
    uint8_t *source = firni_calloc(bench->env, N_ROWS, row_bytes);
    uint8_t *panels = firni_alloc_aligned(bench->env, firni_matrix_bytes(type, N_ROWS, N_COLS), SCRATCH_ALIGN);
    void *acts = firni_alloc_aligned(bench->env, firni_matmul_scratch_bytes(N_COLS, N_TOKENS), SCRATCH_ALIGN);
    float *x = firni_calloc(bench->env, (size_t)N_TOKENS * N_COLS, sizeof *x);
    float *y = firni_calloc(bench->env, (size_t)n_threads * N_TOKENS * N_ROWS, sizeof *y);
    firn_status status = FIRN_OK;
    if (source == NULL || panels == NULL || acts == NULL || x == NULL || y == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the multiply's operands");
        goto done;
    }
    /* Zero weights: the time does not depend on values, as long as none is subnormal or NaN. */
    for (uint32_t i = 0; i < N_TOKENS * N_COLS; i++) {
        x[i] = (float)(i % 17) - 8.0F;
    }
    firni_matrix_pack(type, N_ROWS, N_COLS, source, panels, 0, N_ROWS / FIRNI_PANEL_ROWS);
    kernels->prepare(type, x, N_COLS, N_COLS, 0, N_TOKENS, N_TOKENS, acts);
    multiply_job job = {
        .kernels = kernels,
        .matrix = { .type = type, .n_rows = N_ROWS, .n_cols = N_COLS, .panels = panels },
        .acts = acts,
        .y = y,
    };
    const uint32_t n_tasks = n_threads * N_TASKS_PER_THREAD;
    const double operations = 2.0 * N_ROWS * N_COLS * N_TOKENS * N_REPEATS * n_tasks;
    for (uint32_t run = 0; run < n_runs; run++) {
        const uint64_t begin_ns = firni_now_ns(bench->env);
        firn_workers_run(bench->stack->workers, n_tasks, multiply_task, &job);
        firni_sample_add(&bench->multiply_rate, operations / ((double)(firni_now_ns(bench->env) - begin_ns) * 1e-9));
    }
done:
    firni_free(bench->env, y);
    firni_free(bench->env, x);
    firni_free(bench->env, acts);
    firni_free(bench->env, panels);
    firni_free(bench->env, source);
    return status;
}
