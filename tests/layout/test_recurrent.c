/*
 * Recurrent layouts, tokens and rows: what a step computes, and that neither chunks, batches, threads, merges,
 * extracts, filters nor adoptions show in it.
 */
#include <math.h>

#include "layout/recurrent_rig.h"

/* ---- the rule, in double precision and one row-major matrix a
 * head ------------------------------------------------ */

typedef struct naive {
    const firn_cache_options *options;
    double state[8][32 * 32]; /* [n_state_heads][head_dim][value_dim] */
    double past[16][512];     /* the last inputs, oldest first */
} naive;

static void naive_convolve(naive *n, const rig_recur *call, const float *x, double *out)
{
    const uint32_t width = n->options->conv_width;
    for (uint32_t c = 0; c < call->n_channels; c++) {
        double sum = (double)call->conv_bias[c];
        for (uint32_t j = 0; j + 1 < width; j++) {
            n->past[j][c] = n->past[j + 1][c];
        }
        n->past[width - 1][c] = (double)x[c];
        for (uint32_t j = 0; j < width; j++) {
            sum += n->past[j][c] * (double)call->conv_weight[j * call->n_channels + c];
        }
        out[c] = sum / (1.0 + exp(-sum));
    }
}

static void naive_normalise(double *x, uint32_t n, double scale)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++) {
        sum += x[i] * x[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        x[i] *= scale / sqrt(sum);
    }
}

/* One token through all heads. */
static void naive_token(naive *n, const rig_recur *call, uint32_t token, double *out)
{
    const firn_cache_options *o = n->options;
    const uint32_t n_keys = o->n_kv_heads * o->head_dim;
    const uint32_t n_values = o->n_state_heads * o->value_dim;
    const bool is_delta = rig_is_delta(o);
    double x[512];
    naive_convolve(n, call, call->x + (size_t)token * call->n_channels, x);
    double *q = is_delta ? x : x + n_values + n_keys;
    double *k = is_delta ? x + n_keys : x + n_values;
    const double *v = is_delta ? x + 2 * (size_t)n_keys : x;
    for (uint32_t g = 0; g < o->n_kv_heads && is_delta; g++) {
        naive_normalise(q + g * o->head_dim, o->head_dim, 0.25);
        naive_normalise(k + g * o->head_dim, o->head_dim, 1.0);
    }
    for (uint32_t h = 0; h < o->n_state_heads; h++) {
        const uint32_t g = o->keys_cycle ? h % o->n_kv_heads : h / (o->n_state_heads / o->n_kv_heads);
        const double decay = (double)call->decay[token * o->n_state_heads + h];
        const double strength = (double)call->strength[token * o->n_state_heads + h];
        for (uint32_t j = 0; j < o->value_dim; j++) {
            const double value = v[h * o->value_dim + j];
            double recalled = 0.0;
            for (uint32_t i = 0; i < o->head_dim; i++) {
                n->state[h][i * o->value_dim + j] *= decay;
                recalled += n->state[h][i * o->value_dim + j] * k[g * o->head_dim + i];
            }
            double sum = is_delta ? 0.0 : (double)call->skip[h] * value;
            for (uint32_t i = 0; i < o->head_dim; i++) {
                double *s = &n->state[h][i * o->value_dim + j];
                *s += k[g * o->head_dim + i] * strength * (is_delta ? value - recalled : value);
                sum += *s * q[g * o->head_dim + i];
            }
            out[h * o->value_dim + j] = sum;
        }
    }
}

static void check_rule(const firn_cache_options *given)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *cache = rig_cache(given, pool);
    const firn_cache_options *options = firn_cache_get_options(cache);
    const rig_tokens tokens = rig_sequence(0, 2 * RIG_T + 3);
    assert_ok(firn_cache_add_row(cache, NULL));
    rig_recur call = rig_recur_of(options, tokens.id, tokens.n);
    float *out = NULL;
    assert_ok(recurrent_feed(cache, tokens.id, &tokens.n, NULL, &out, NULL));
    naive *n = calloc(1, sizeof *n);
    n->options = options;
    assert_true(call.n_channels <= 512 && call.n_out <= 512);
    for (uint32_t t = 0; t < tokens.n; t++) {
        double expected[512];
        naive_token(n, &call, t, expected);
        for (size_t i = 0; i < call.n_out; i++) {
            assert_true(fabs((double)out[t * call.n_out + i] - expected[i]) < 1e-4);
        }
    }
    /* And the dense view is the state that the rule has left. */
    firn_tensor tensors[FIRN_CACHE_STATE_TENSORS_MAX];
    uint32_t n_tensors;
    assert_ok(firn_cache_state(cache, tensors, &n_tensors, NULL));
    assert_int_equal(n_tensors, 2);
    assert_int_equal(tensors[0].shape[1], options->conv_width - 1);
    assert_int_equal(tensors[0].shape[2], call.n_channels);
    for (uint32_t j = 0; j + 1 < options->conv_width; j++) {
        for (uint32_t c = 0; c < call.n_channels; c++) {
            assert_true((double)((float *)tensors[0].data)[j * call.n_channels + c] == n->past[j + 1][c]);
        }
    }
    const size_t n_matrix = (size_t)options->head_dim * options->value_dim;
    for (uint32_t h = 0; h < options->n_state_heads; h++) {
        for (size_t i = 0; i < n_matrix; i++) {
            assert_true(fabs((double)((float *)tensors[1].data)[h * n_matrix + i] - n->state[h][i]) < 1e-4);
        }
    }
    firn_tensor_deinit(&tensors[0]);
    firn_tensor_deinit(&tensors[1]);
    free(n);
    free(out);
    rig_recur_deinit(&call);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void outputs_and_state_are_those_of_the_rule(void **state)
{
    (void)state;
    recurrent_for_each_case(check_rule);
}

/* ---- chunks and
 * threads -------------------------------------------------------------------------------------------- */

static void check_chunks(const firn_cache_options *options)
{
    static const uint32_t chunks[] = { 1, 2, 3, 5, RIG_T - 1, RIG_T, RIG_T + 1 };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_workers *workers;
    assert_ok(firn_workers_create(3, NULL, &workers, NULL));
    for (uint32_t n = 2 * RIG_T - 1; n <= 2 * RIG_T + 1; n++) {
        const rig_tokens tokens = rig_sequence(0, n);
        firn_cache *whole = rig_cache(options, pool);
        float *expected = NULL;
        assert_ok(firn_cache_add_row(whole, NULL));
        assert_ok(recurrent_feed(whole, tokens.id, &tokens.n, NULL, &expected, NULL));
        const size_t n_out = firn_cache_get_options(whole)->n_state_heads * firn_cache_get_options(whole)->value_dim;
        for (size_t i = 0; i < 2 * sizeof chunks / sizeof chunks[0]; i++) {
            firn_cache *cache = rig_cache(options, pool);
            assert_ok(firn_cache_add_row(cache, NULL));
            for (uint32_t done = 0; done < n;) {
                const uint32_t count = chunks[i / 2] < n - done ? chunks[i / 2] : n - done;
                float *out = NULL;
                assert_ok(recurrent_feed(cache, tokens.id + done, &count, i % 2 == 0 ? NULL : workers, &out, NULL));
                assert_memory_equal(out, expected + done * n_out, count * n_out * sizeof *out);
                free(out);
                done += count;
            }
            recurrent_assert_same_state(cache, 0, whole, 0);
            firn_cache_destroy(cache);
        }
        free(expected);
        firn_cache_destroy(whole);
    }
    firn_workers_destroy(workers);
    firn_pool_destroy(pool);
}

static void neither_chunks_nor_threads_show(void **state)
{
    (void)state;
    recurrent_for_each_case(check_chunks);
}

/* Where inputs and outputs lie, and that outputs may take the values' place. */
static void check_strides(const firn_cache_options *given)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    firn_cache *dense = rig_cache(given, pool);
    firn_cache *apart = rig_cache(given, pool);
    const firn_cache_options *options = firn_cache_get_options(dense);
    const rig_tokens tokens = rig_sequence(0, 9);
    float *expected = NULL;
    assert_ok(firn_cache_add_row(dense, NULL));
    assert_ok(firn_cache_add_row(apart, NULL));
    assert_ok(recurrent_feed(dense, tokens.id, &tokens.n, NULL, &expected, NULL));
    rig_recur call = rig_recur_of(options, tokens.id, tokens.n);
    const uint32_t n_heads = options->n_state_heads;
    const uint32_t stride = call.n_channels + 2 * n_heads + 3;
    const uint32_t values = rig_is_delta(options) ? 2 * options->n_kv_heads * options->head_dim : 0;
    float *rows = calloc(tokens.n * (size_t)stride, sizeof *rows);
    for (size_t t = 0; t < tokens.n; t++) {
        memcpy(rows + t * stride, call.x + t * call.n_channels, call.n_channels * sizeof *rows);
        memcpy(rows + t * stride + call.n_channels, call.decay + t * n_heads, n_heads * sizeof *rows);
        memcpy(rows + t * stride + call.n_channels + n_heads, call.strength + t * n_heads, n_heads * sizeof *rows);
    }
    firn_recur_input input = call.input;
    input.x = rows;
    input.decay = rows + call.n_channels;
    input.strength = rows + call.n_channels + n_heads;
    input.out = rows + values;
    input.x_stride = input.gate_stride = input.out_stride = stride;
    assert_ok(firn_cache_recur(apart, &input, &tokens.n, NULL, NULL));
    for (size_t t = 0; t < tokens.n; t++) {
        assert_memory_equal(rows + t * stride + values, expected + t * call.n_out, call.n_out * sizeof *rows);
    }
    recurrent_assert_same_state(dense, 0, apart, 0);
    free(rows);
    free(expected);
    rig_recur_deinit(&call);
    firn_cache_destroy(dense);
    firn_cache_destroy(apart);
    firn_pool_destroy(pool);
}

static void outputs_may_take_the_place_of_values(void **state)
{
    (void)state;
    recurrent_for_each_case(check_strides);
}

/* ----
 * rows ---------------------------------------------------------------------------------------------------------- */

/* Rows of every length beside each other; merging copies nothing, and every row goes on as if alone. */
static void check_merge(const firn_cache_options *options)
{
    static const uint32_t lengths[] = { 0, 1, RIG_T - 1, RIG_T, RIG_T + 1 };
    enum { N = sizeof lengths / sizeof lengths[0] };
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    for (uint32_t i = 0; i < N * N * N; i++) {
        rig_tokens a = rig_sequence(0, lengths[i % N]);
        rig_tokens b = rig_sequence(1, lengths[i / N % N]);
        rig_tokens c = rig_sequence(2, lengths[i / N / N]);
        const rig_tokens *rows[] = { &a, &b, &c };
        firn_cache *running = recurrent_fresh(options, pool, &a);
        assert_ok(firn_cache_add_row(running, NULL));
        assert_ok(recurrent_feed_row(running, 1, b.id, b.n, NULL));
        firn_cache *joining = recurrent_fresh(options, pool, &c);
        firn_cache *merged;
        const uint64_t copied = rig_stats(pool).copied_bytes;
        assert_ok(firn_cache_make_empty(running, &merged, NULL));
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ running, joining }, 2, NULL));
        assert_int_equal(rig_stats(pool).copied_bytes, copied);
        recurrent_assert_rows(merged, rows, 3);
        const uint64_t ids[] = { 71, 72, 73, 74 };
        assert_ok(recurrent_feed(merged, ids, (uint32_t[]){ 1, 2, 1 }, NULL, NULL, NULL));
        recurrent_assert_rows(running, rows, 2); /* the sources do not see it */
        recurrent_assert_row(joining, &c);
        a.id[a.n++] = 71;
        b.id[b.n++] = 72;
        b.id[b.n++] = 73;
        c.id[c.n++] = 74;
        recurrent_assert_rows(merged, rows, 3);
        firn_cache_destroy(merged);
        firn_cache_destroy(joining);
        firn_cache_destroy(running);
    }
    firn_pool_destroy(pool);
}

static void rows_of_every_length_merge(void **state)
{
    (void)state;
    recurrent_for_each_case(check_merge);
}

static void check_leaving(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    rig_tokens a = rig_sequence(0, 40);
    const rig_tokens b = rig_sequence(1, 0);
    const rig_tokens c = rig_sequence(2, 3);
    firn_cache *cache = recurrent_fresh(options, pool, &a);
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(firn_cache_add_row(cache, NULL));
    assert_ok(recurrent_feed_row(cache, 2, c.id, c.n, NULL));
    firn_cache *serial;
    firn_cache *empty;
    assert_ok(firn_cache_extract_row(cache, 0, &serial, NULL));
    assert_ok(firn_cache_extract_row(cache, 1, &empty, NULL));
    /* An adopted view, an extracted row and the batch hold one state; each goes on alone. */
    const firn_row_view view = firn_cache_view_row(cache, 0);
    assert_ok(firn_cache_adopt_row(cache, &view, NULL));
    rig_tokens longer = a;
    longer.id[longer.n++] = 7;
    assert_ok(recurrent_feed_row(cache, 0, &longer.id[a.n], 1, NULL));
    recurrent_assert_rows(cache, (const rig_tokens *[]){ &longer, &b, &c, &a }, 4);
    recurrent_assert_row(serial, &a);
    assert_ok(firn_cache_filter_rows(cache, (const uint32_t[]){ 3, 1, 0 }, 3, NULL));
    recurrent_assert_rows(cache, (const rig_tokens *[]){ &a, &b, &longer }, 3);
    recurrent_assert_row(empty, &b);
    assert_ok(recurrent_feed_row(empty, 0, c.id, c.n, NULL));
    recurrent_assert_row(empty, &c);
    /* One row of the batch pins its own state only. */
    firn_cache_destroy(cache);
    firn_cache_destroy(empty);
    assert_int_equal(rig_stats(pool).used_bytes, firn_cache_projected_bytes(serial, a.n));
    firn_cache_destroy(serial);
    assert_int_equal(rig_stats(pool).used_bytes, 0);
    firn_pool_destroy(pool);
}

static void holders_of_a_state_do_not_see_each_others_writes(void **state)
{
    (void)state;
    recurrent_for_each_case(check_leaving);
}

static void check_adopt_errors(const firn_cache_options *options)
{
    firn_pool *pool = rig_pool(RIG_BIG_BUDGET, NULL);
    const rig_tokens a = rig_sequence(0, 5);
    firn_cache *cache = recurrent_fresh(options, pool, &a);
    const firn_row_view good = firn_cache_view_row(cache, 0);
    firn_block *other;
    assert_ok(firn_block_alloc(pool, firn_cache_fixed_bytes(cache) + FIRN_BLOCK_ALIGN, &other, NULL));
    firn_row_view views[] = { good, good, good };
    views[0].fixed = NULL;
    views[1].n_tokens = 0;
    views[2].fixed = other;
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++) {
        assert_status(firn_cache_adopt_row(cache, &views[i], NULL), FIRN_ERR_INVALID);
        recurrent_assert_row(cache, &a);
    }
    firn_block_release(other);
    firn_cache_destroy(cache);
    firn_pool_destroy(pool);
}

static void a_view_that_is_no_state_is_refused(void **state)
{
    (void)state;
    recurrent_for_each_case(check_adopt_errors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_and_state_are_those_of_the_rule),
        cmocka_unit_test(neither_chunks_nor_threads_show),
        cmocka_unit_test(outputs_may_take_the_place_of_values),
        cmocka_unit_test(rows_of_every_length_merge),
        cmocka_unit_test(holders_of_a_state_do_not_see_each_others_writes),
        cmocka_unit_test(a_view_that_is_no_state_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
