/*
 * Attention over plain blocks: against double precision, and bit by bit against itself for any division of the queries,
 * whatever lies in lanes that a query must not see. All with every usable variant.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"
#include "firn/array.h"
#include "kernel/kernel_impl.h"

enum { BLOCKS_MAX = 8, TOKENS_MAX = BLOCKS_MAX * 64 };

/* One row: keys and values as f32 and as blocks. */
typedef struct row {
    const firni_kernels *kernels;
    firn_pool *pool;
    firni_plain_geometry geometry;
    uint32_t group_size;
    uint32_t n_tokens;
    firn_block *blocks[BLOCKS_MAX];
    float *k, *v;  /* [n_tokens][n_kv_heads][dim], as the blocks hold them */
    float *q;      /* [n_tokens][group_size][head_dim] */
    float *sinks;
} row;

/* Rounds to the row's element type, so that the exact computation sees what is stored. */
static void round_to_dtype(const firni_kernels *kernels, firn_dtype dtype, float *x)
{
    uint16_t half;
    if (dtype == FIRN_DTYPE_F16) {
        kernels->f32_to_f16(&half, x, 1);
        kernels->f16_to_f32(x, &half, 1);
    } else if (dtype == FIRN_DTYPE_BF16) {
        kernels->f32_to_bf16(&half, x, 1);
        kernels->bf16_to_f32(x, &half, 1);
    }
}

static float *random_floats(test_rng *rng, size_t n, float scale)
{
    float *x = malloc(n * sizeof(*x));
    for (size_t i = 0; i < n; i++) {
        x[i] = test_rng_normal(rng) * scale;
    }
    return x;
}

static row row_create(test_rng *rng, const firni_kernels *kernels, firn_dtype dtype, uint32_t n_kv_heads,
                      uint32_t head_dim, uint32_t value_dim, uint32_t group_size, uint32_t n_tokens)
{
    const size_t element = firn_dtype_bytes(dtype);
    row r = {
        .kernels = kernels,
        .geometry = {.dtype = dtype, .n_kv_heads = n_kv_heads, .head_dim = head_dim, .value_dim = value_dim,
                     .v_offset_bytes = (uint32_t)(64 * n_kv_heads * head_dim * element)},
        .group_size = group_size,
        .n_tokens = n_tokens,
        .k = random_floats(rng, (size_t)n_tokens * n_kv_heads * head_dim, 1.0f),
        .v = random_floats(rng, (size_t)n_tokens * n_kv_heads * value_dim, 1.0f),
        .q = random_floats(rng, (size_t)n_tokens * group_size * head_dim, 2.0f),
        .sinks = random_floats(rng, group_size, 2.0f),
    };
    const firn_pool_options options = {.budget_bytes = 1u << 28};
    assert_ok(firn_pool_create(&options, NULL, &r.pool, NULL));
    const size_t block_bytes = 64 * n_kv_heads * (head_dim + value_dim) * element;
    for (uint32_t b = 0; b < (n_tokens + 63) / 64; b++) {
        assert_ok(firn_block_alloc(r.pool, block_bytes, &r.blocks[b], NULL));
        memset(firn_block_data(r.blocks[b]), 0xff, block_bytes); /* NaN in every dtype */
    }
    for (uint32_t t = 0; t < n_tokens; t++) {
        float *k = r.k + (size_t)t * n_kv_heads * head_dim;
        float *v = r.v + (size_t)t * n_kv_heads * value_dim;
        kernels->store_plain(&r.geometry, firn_block_data(r.blocks[t / 64]), t % 64, k, v);
        for (uint32_t i = 0; i < n_kv_heads * head_dim; i++) {
            round_to_dtype(kernels, dtype, &k[i]);
        }
        for (uint32_t i = 0; i < n_kv_heads * value_dim; i++) {
            round_to_dtype(kernels, dtype, &v[i]);
        }
    }
    return r;
}

static void row_destroy(row *r)
{
    for (unsigned b = 0; b < BLOCKS_MAX; b++) {
        firn_block_release(r->blocks[b]);
    }
    firn_pool_destroy(r->pool);
    free(r->k);
    free(r->v);
    free(r->q);
    free(r->sinks);
}

/* Queries [first, first + n) of head 0 of the row; out as [n][group_size][value_dim]. */
static firni_attend_task row_task(const row *r, uint32_t first, uint32_t n, float *out)
{
    return (firni_attend_task){
        .geometry = &r->geometry,
        .blocks = r->blocks,
        .group_size = r->group_size,
        .n_queries = n,
        .first_position = first,
        .q = r->q + (size_t)first * r->group_size * r->geometry.head_dim,
        .q_stride = (size_t)r->group_size * r->geometry.head_dim,
        .out = out,
        .out_stride = (size_t)r->group_size * r->geometry.value_dim,
        .scale = 1.0f / sqrtf((float)r->geometry.head_dim),
    };
}

static size_t out_floats(const row *r, uint32_t n) { return (size_t)n * r->group_size * r->geometry.value_dim; }

/* One query and head in double precision. */
static void attend_exactly(const row *r, const firni_attend_task *task, uint32_t query, uint32_t head, double *out)
{
    const firni_plain_geometry *g = &r->geometry;
    const uint32_t position = task->first_position + query;
    const uint32_t begin = task->window != 0 && position + 1 > task->window ? position + 1 - task->window : 0;
    const float *q = task->q + query * task->q_stride + (size_t)head * g->head_dim;
    double scores[TOKENS_MAX];
    double max = task->sinks != NULL ? (double)task->sinks[head] : -INFINITY;
    for (uint32_t t = begin; t <= position; t++) {
        double score = 0.0;
        for (uint32_t d = 0; d < g->head_dim; d++) {
            score += (double)q[d] * (double)r->k[((size_t)t * g->n_kv_heads + task->kv_head) * g->head_dim + d];
        }
        score *= (double)task->scale;
        if (task->softcap != 0.0f) {
            score = (double)task->softcap * tanh(score / (double)task->softcap);
        }
        scores[t] = score;
        max = fmax(max, score);
    }
    double sum = task->sinks != NULL ? exp((double)task->sinks[head] - max) : 0.0;
    for (uint32_t t = begin; t <= position; t++) {
        sum += exp(scores[t] - max);
    }
    for (uint32_t j = 0; j < g->value_dim; j++) {
        out[j] = 0.0;
        for (uint32_t t = begin; t <= position; t++) {
            const double v = (double)r->v[((size_t)t * g->n_kv_heads + task->kv_head) * g->value_dim + j];
            out[j] += exp(scores[t] - max) / sum * v;
        }
    }
}

static void assert_task_is_exact(const row *r, const firni_attend_task *task)
{
    double exact[FIRNI_HEAD_DIM_MAX];
    for (uint32_t i = 0; i < task->n_queries; i++) {
        for (uint32_t head = 0; head < task->group_size; head++) {
            attend_exactly(r, task, i, head, exact);
            const float *out = task->out + i * task->out_stride + (size_t)head * r->geometry.value_dim;
            for (uint32_t j = 0; j < r->geometry.value_dim; j++) {
                assert_true(fabs((double)out[j] - exact[j]) <= 5e-6); /* values are of size 1 */
            }
        }
    }
}

/* Runs `test` with every usable variant. */
static void with_each_variant(const char *what, uint64_t seed,
                              void (*test)(test_rng *rng, const firni_kernels *kernels))
{
    const char *names[8];
    const uint32_t n_names = firni_kernels_list(names);
    for (uint32_t i = 0; i < n_names; i++) {
        test_rng rng = test_rng_create(what, seed);
        test(&rng, firni_kernels_select(names[i], NULL));
    }
}

static void exact_round(test_rng *rng, const firni_kernels *kernels)
{
    static const firn_dtype dtypes[] = {FIRN_DTYPE_F32, FIRN_DTYPE_F16, FIRN_DTYPE_BF16};
    for (uint32_t round = 0; round < 24; round++) {
        const uint32_t n_tokens = 1 + test_rng_below(rng, 200);
        row r = row_create(rng, kernels, dtypes[round % 3], 2, 1 + test_rng_below(rng, 70), 1 + test_rng_below(rng, 70),
                           1 + test_rng_below(rng, 8), n_tokens);
        const uint32_t n = 1 + test_rng_below(rng, n_tokens < 9 ? n_tokens : 9);
        float *out = malloc(sizeof(float) * out_floats(&r, n));
        firni_attend_task task = row_task(&r, n_tokens - n, n, out);
        task.kv_head = round % 2;
        task.window = round % 4 == 1 ? 1 + test_rng_below(rng, 100) : 0;
        task.softcap = round % 3 == 1 ? 3.0f : 0.0f;
        task.sinks = round % 5 < 2 ? r.sinks : NULL;
        kernels->attend_plain(&task);
        assert_task_is_exact(&r, &task);
        free(out);
        row_destroy(&r);
    }
}

static void attention_agrees_with_double_precision(void **state)
{
    (void)state;
    with_each_variant("exactness", 1, exact_round);
}

static void chunk_round(test_rng *rng, const firni_kernels *kernels)
{
    for (uint32_t group_size = 1; group_size <= 8; group_size++) {
        const uint32_t n_tokens = 100 + test_rng_below(rng, 100);
        row r = row_create(rng, kernels, FIRN_DTYPE_F16, 1, 24, 20, group_size, n_tokens);
        float *whole = malloc(sizeof(float) * out_floats(&r, n_tokens));
        float *parts = malloc(sizeof(float) * out_floats(&r, n_tokens));
        firni_attend_task task = row_task(&r, 0, n_tokens, whole);
        task.window = group_size % 3 == 0 ? 1 + test_rng_below(rng, 130) : 0;
        task.sinks = group_size % 2 == 0 ? r.sinks : NULL;
        kernels->attend_plain(&task);
        for (uint32_t at = 0; at < n_tokens;) {
            /* Random chunks, and one query at a time for a third of them. */
            const uint32_t n = test_rng_below(rng, 3) == 0 ? 1 : 1 + test_rng_below(rng, n_tokens - at);
            firni_attend_task part = row_task(&r, at, n, parts + out_floats(&r, at));
            part.window = task.window;
            part.sinks = task.sinks;
            kernels->attend_plain(&part);
            at += n;
        }
        assert_memory_equal(whole, parts, sizeof(float) * out_floats(&r, n_tokens));
        free(whole);
        free(parts);
        row_destroy(&r);
    }
}

static void queries_in_any_chunks_and_groups_give_the_same_bits(void **state)
{
    (void)state;
    with_each_variant("chunks", 2, chunk_round);
}

static void heads_round(test_rng *rng, const firni_kernels *kernels)
{
    row r = row_create(rng, kernels, FIRN_DTYPE_BF16, 1, 40, 40, 7, 150);
    float *all = malloc(sizeof(float) * out_floats(&r, 20));
    firni_attend_task task = row_task(&r, 130, 20, all);
    kernels->attend_plain(&task);
    for (uint32_t head = 0; head < 7; head++) {
        float one[40];
        for (uint32_t i = 0; i < 20; i++) {
            firni_attend_task alone = row_task(&r, 130 + i, 1, one);
            alone.group_size = 1;
            alone.q += head * 40;
            kernels->attend_plain(&alone);
            assert_memory_equal(one, all + ((size_t)i * 7 + head) * 40, sizeof(one));
        }
    }
    free(all);
    row_destroy(&r);
}

static void a_head_alone_gives_the_bits_it_gives_in_its_group(void **state)
{
    (void)state;
    with_each_variant("heads", 3, heads_round);
}

/* Writes a token that no earlier query may notice: enormous, infinite or NaN. */
static void poison(const row *r, uint32_t token, float with)
{
    float *k = malloc(sizeof(float) * r->geometry.n_kv_heads * r->geometry.head_dim);
    float *v = malloc(sizeof(float) * r->geometry.n_kv_heads * r->geometry.value_dim);
    for (uint32_t i = 0; i < r->geometry.n_kv_heads * r->geometry.head_dim; i++) {
        k[i] = with;
    }
    for (uint32_t i = 0; i < r->geometry.n_kv_heads * r->geometry.value_dim; i++) {
        v[i] = with;
    }
    r->kernels->store_plain(&r->geometry, firn_block_data(r->blocks[token / 64]), token % 64, k, v);
    free(k);
    free(v);
}

static void unseen_round(test_rng *rng, const firni_kernels *kernels)
{
    const float poisons[] = {NAN, INFINITY, -INFINITY, 6e4f, 0.0f};
    for (uint32_t round = 0; round < 10; round++) {
        const uint32_t n_tokens = 130 + test_rng_below(rng, 60);
        row r = row_create(rng, kernels, FIRN_DTYPE_F16, 2, 32, 32, 3, n_tokens);
        const uint32_t window = round % 2 == 0 ? 0 : 20 + test_rng_below(rng, 60);
        const uint32_t first = 90 + test_rng_below(rng, 30);
        const uint32_t n = 1 + test_rng_below(rng, 8);
        float *clean = malloc(sizeof(float) * out_floats(&r, n));
        float *dirty = malloc(sizeof(float) * out_floats(&r, n));
        firni_attend_task task = row_task(&r, first, n, clean);
        task.window = window;
        kernels->attend_plain(&task);
        for (uint32_t t = first + n; t < n_tokens; t++) {
            poison(&r, t, poisons[t % 5]);
        }
        for (uint32_t t = 0; window != 0 && t + window <= first; t++) {
            poison(&r, t, poisons[t % 5]);
        }
        task.out = dirty;
        kernels->attend_plain(&task);
        assert_memory_equal(clean, dirty, sizeof(float) * out_floats(&r, n));
        free(clean);
        free(dirty);
        row_destroy(&r);
    }
}

static void what_lies_in_lanes_that_a_query_must_not_see_changes_no_bit(void **state)
{
    (void)state;
    with_each_variant("unseen", 4, unseen_round);
}

static void window_round(test_rng *rng, const firni_kernels *kernels)
{
    const uint32_t windows[] = {1, 2, 63, 64, 65, 100, 128, 129};
    row r = row_create(rng, kernels, FIRN_DTYPE_F32, 1, 16, 16, 2, 200);
    for (unsigned i = 0; i < sizeof(windows) / sizeof(windows[0]); i++) {
        const uint32_t window = windows[i];
        /* Rows of W - 1, W and W + 1 tokens, and far beyond. */
        const uint32_t positions[] = {window >= 2 ? window - 2 : 0, window - 1, window, 199};
        for (unsigned p = 0; p < 4; p++) {
            float windowed[2 * 16], other[2 * 16];
            firni_attend_task task = row_task(&r, positions[p], 1, windowed);
            task.window = window;
            kernels->attend_plain(&task);
            assert_task_is_exact(&r, &task);
            if (positions[p] < window) { /* all is visible: the bits of full attention */
                task.window = 0;
                task.out = other;
                kernels->attend_plain(&task);
                assert_memory_equal(windowed, other, sizeof(other));
                continue;
            }
            /* Blocks before the window need not exist. */
            const uint32_t first_block = (positions[p] + 1 - window) / 64;
            task.first_block = first_block;
            task.blocks = r.blocks + first_block;
            task.out = other;
            kernels->attend_plain(&task);
            assert_memory_equal(windowed, other, sizeof(other));
        }
    }
    row_destroy(&r);
}

static void a_window_shows_exactly_its_tokens_at_every_edge(void **state)
{
    (void)state;
    with_each_variant("window", 5, window_round);
}

static void sink_round(test_rng *rng, const firni_kernels *kernels)
{
    row r = row_create(rng, kernels, FIRN_DTYPE_F32, 1, 16, 16, 3, 70);
    float with[3 * 16], without[3 * 16];
    firni_attend_task task = row_task(&r, 69, 1, without);
    kernels->attend_plain(&task);
    task.out = with;
    /* A sink that weighs nothing changes nothing; one that outweighs all takes everything. */
    const float sinks[] = {-INFINITY, -1000.0f, 1000.0f};
    task.sinks = sinks;
    kernels->attend_plain(&task);
    assert_memory_equal(with, without, 2 * 16 * sizeof(float));
    for (int j = 0; j < 16; j++) {
        assert_true(with[2 * 16 + j] == 0.0f);
    }
    row_destroy(&r);
}

static void sinks_take_their_share(void **state)
{
    (void)state;
    with_each_variant("sinks", 6, sink_round);
}

static void softcap_round(test_rng *rng, const firni_kernels *kernels)
{
    row r = row_create(rng, kernels, FIRN_DTYPE_F32, 1, 16, 16, 1, 30);
    for (uint32_t i = 0; i < 30 * 16; i++) {
        r.q[i] *= 100.0f; /* so hard that without a cap one token takes all */
    }
    float out[16];
    firni_attend_task task = row_task(&r, 29, 1, out);
    task.softcap = 1.0f;
    kernels->attend_plain(&task);
    assert_task_is_exact(&r, &task);
    row_destroy(&r);
}

static void softcap_bounds_the_scores(void **state)
{
    (void)state;
    with_each_variant("softcap", 7, softcap_round);
}

static void large_round(test_rng *rng, const firni_kernels *kernels)
{
    row r = row_create(rng, kernels, FIRN_DTYPE_F16, 1, FIRNI_HEAD_DIM_MAX, FIRNI_HEAD_DIM_MAX, 2, 70);
    float *out = malloc(sizeof(float) * out_floats(&r, 9));
    firni_attend_task task = row_task(&r, 61, 9, out);
    kernels->attend_plain(&task);
    assert_task_is_exact(&r, &task);
    free(out);
    row_destroy(&r);
}

static void the_largest_heads_work(void **state)
{
    (void)state;
    with_each_variant("largest", 8, large_round);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(attention_agrees_with_double_precision),
        cmocka_unit_test(queries_in_any_chunks_and_groups_give_the_same_bits),
        cmocka_unit_test(a_head_alone_gives_the_bits_it_gives_in_its_group),
        cmocka_unit_test(what_lies_in_lanes_that_a_query_must_not_see_changes_no_bit),
        cmocka_unit_test(a_window_shows_exactly_its_tokens_at_every_edge),
        cmocka_unit_test(sinks_take_their_share),
        cmocka_unit_test(softcap_bounds_the_scores),
        cmocka_unit_test(the_largest_heads_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
