/*
 * Random operations on a handful of caches against a naive model: arrays of token identities. After every operation
 * all of the operation's caches must be, to the bit, what fresh serial caches fed with the model's tokens are.
 */
#include "layout/rig.h"

#define N_CACHES        3u
#define ROWS_MAX        6u
#define N_STEPS         300u /* a quarter of them on all but the first geometry */
#define TOKENS_SOFT_MAX 300u

typedef struct model {
    rig_tokens row[ROWS_MAX];
    uint32_t n_rows;
    uint32_t base[ROWS_MAX]; /* counts at the beginning of the open round */
    bool in_round;
} model;

typedef struct world {
    test_rng rng;
    firn_pool *pool;
    firn_cache *cache[N_CACHES];
    model model[N_CACHES];
    firn_donor *donor;
    rig_tokens donated[ROWS_MAX];
    uint64_t next_id;
} world;

static void compare(const world *w, uint32_t c)
{
    const rig_tokens *rows[ROWS_MAX];
    for (uint32_t r = 0; r < w->model[c].n_rows; r++) {
        rows[r] = &w->model[c].row[r];
    }
    rig_assert_rows(w->cache[c], rows, w->model[c].n_rows);
}

static void compare_donor(const world *w)
{
    if (w->donor == NULL) {
        return;
    }
    for (uint32_t r = 0; r < firn_donor_batch_size(w->donor); r++) {
        const rig_tokens *tokens = &w->donated[r];
        assert_int_equal(firn_donor_row_tokens(w->donor, r), tokens->n);
        if (tokens->n == 0) {
            continue;
        }
        uint32_t counts[ROWS_MAX] = { 0 };
        counts[r] = 1;
        const uint64_t *id = &tokens->id[tokens->n - 1];
        size_t n_floats;
        float *got = rig_attend(w->cache[0], w->donor, id, counts, NULL, &n_floats);
        firn_cache *fresh = rig_fresh(firn_cache_get_options(w->cache[0]), w->pool, tokens);
        float *expected = rig_attend(fresh, NULL, id, (uint32_t[]){ 1 }, NULL, &n_floats);
        assert_memory_equal(got, expected, n_floats * sizeof *got);
        free(got);
        free(expected);
        firn_cache_destroy(fresh);
    }
}

/* ---- one operation each; `c` is a random cache ------------------------------------------------------------------- */

static void op_append(world *w, uint32_t c)
{
    model *m = &w->model[c];
    uint32_t counts[ROWS_MAX] = { 0 };
    uint64_t ids[ROWS_MAX * 2 * RIG_T];
    uint32_t n_ids = 0;
    const uint32_t n_max = test_rng_below(&w->rng, 4) == 0 ? RIG_T + 10 : 4;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const uint32_t room = m->row[r].n < TOKENS_SOFT_MAX ? n_max : 0;
        counts[r] = test_rng_below(&w->rng, room + 1);
        for (uint32_t i = 0; i < counts[r]; i++) {
            ids[n_ids] = w->next_id++;
            m->row[r].id[m->row[r].n++] = ids[n_ids++];
        }
    }
    if (test_rng_below(&w->rng, 3) == 0) {
        uint32_t more[ROWS_MAX];
        for (uint32_t r = 0; r < m->n_rows; r++) {
            more[r] = counts[r] + test_rng_below(&w->rng, 2 * RIG_T);
        }
        assert_ok(firn_cache_reserve(w->cache[c], more, NULL));
    }
    assert_ok(rig_feed(w->cache[c], ids, counts, NULL, NULL));
}

static void op_trim(world *w, uint32_t c)
{
    model *m = &w->model[c];
    if (m->n_rows == 0) {
        return;
    }
    const uint32_t r = test_rng_below(&w->rng, m->n_rows);
    const uint32_t n = test_rng_below(&w->rng, firn_cache_trimmable_tokens(w->cache[c], r) + 1);
    assert_ok(firn_cache_trim_row(w->cache[c], r, n, NULL));
    m->row[r].n -= n;
}

static void op_trim_all(world *w, uint32_t c)
{
    model *m = &w->model[c];
    const uint32_t n = test_rng_below(&w->rng, 10);
    bool is_possible = true;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        is_possible = is_possible && n <= firn_cache_trimmable_tokens(w->cache[c], r);
    }
    assert_status(firn_cache_trim(w->cache[c], n, false, NULL), is_possible ? FIRN_OK : FIRN_ERR_TRIM);
    for (uint32_t r = 0; r < m->n_rows && is_possible; r++) {
        m->row[r].n -= n;
    }
}

static void op_add(world *w, uint32_t c)
{
    model *m = &w->model[c];
    if (m->n_rows == ROWS_MAX) {
        return;
    }
    assert_status(firn_cache_add_row(w->cache[c], NULL), m->in_round ? FIRN_ERR_STATE : FIRN_OK);
    if (!m->in_round) {
        m->row[m->n_rows++].n = 0;
    }
}

static void op_filter(world *w, uint32_t c)
{
    model *m = &w->model[c];
    uint32_t keep[ROWS_MAX];
    uint32_t n_keep = 0;
    for (uint32_t r = 0; r < m->n_rows; r++) {
        if (test_rng_below(&w->rng, 4) != 0) {
            keep[n_keep++] = r;
        }
    }
    for (uint32_t i = n_keep; i > 1; i--) {
        const uint32_t j = test_rng_below(&w->rng, i);
        const uint32_t swapped = keep[i - 1];
        keep[i - 1] = keep[j];
        keep[j] = swapped;
    }
    const uint64_t copied = rig_stats(w->pool).copied_bytes;
    assert_status(firn_cache_filter_rows(w->cache[c], keep, n_keep, NULL), m->in_round ? FIRN_ERR_STATE : FIRN_OK);
    assert_int_equal(rig_stats(w->pool).copied_bytes, copied);
    if (!m->in_round) {
        model filtered = { .n_rows = n_keep };
        for (uint32_t i = 0; i < n_keep; i++) {
            filtered.row[i] = m->row[keep[i]];
        }
        *m = filtered;
    }
}

/* A row of one cache becomes a row of another, by extract and merge or by view and adopt. */
static void op_move(world *w, uint32_t c)
{
    const uint32_t to = (c + 1 + test_rng_below(&w->rng, N_CACHES - 1)) % N_CACHES;
    model *from_model = &w->model[c];
    model *to_model = &w->model[to];
    if (from_model->n_rows == 0 || to_model->n_rows == ROWS_MAX || from_model->in_round || to_model->in_round) {
        return;
    }
    const uint32_t r = test_rng_below(&w->rng, from_model->n_rows);
    const uint64_t copied = rig_stats(w->pool).copied_bytes;
    if (test_rng_below(&w->rng, 2) == 0) {
        const firn_row_view view = firn_cache_view_row(w->cache[c], r);
        assert_ok(firn_cache_adopt_row(w->cache[to], &view, NULL));
    } else {
        firn_cache *serial;
        firn_cache *merged;
        assert_ok(firn_cache_extract_row(w->cache[c], r, &serial, NULL));
        assert_ok(firn_cache_make_empty(w->cache[to], &merged, NULL));
        assert_ok(firn_cache_merge_rows(merged, (const firn_cache *[]){ w->cache[to], serial }, 2, NULL));
        firn_cache_destroy(serial);
        firn_cache_destroy(w->cache[to]);
        w->cache[to] = merged;
    }
    assert_int_equal(rig_stats(w->pool).copied_bytes, copied);
    to_model->row[to_model->n_rows++] = from_model->row[r];
    compare(w, to);
}

static void op_donor(world *w, uint32_t c)
{
    firn_donor_destroy(w->donor);
    assert_ok(firn_cache_capture_donor(w->cache[c], &w->donor, NULL));
    memcpy(w->donated, w->model[c].row, sizeof w->donated);
}

static void op_round(world *w, uint32_t c)
{
    model *m = &w->model[c];
    if (!m->in_round) {
        assert_ok(firn_cache_spec_begin(w->cache[c], NULL));
        for (uint32_t r = 0; r < m->n_rows; r++) {
            m->base[r] = m->row[r].n;
        }
        m->in_round = true;
        return;
    }
    if (test_rng_below(&w->rng, 3) == 0) {
        assert_ok(firn_cache_spec_commit(w->cache[c], NULL));
    } else {
        uint32_t keep[ROWS_MAX];
        for (uint32_t r = 0; r < m->n_rows; r++) {
            keep[r] = test_rng_below(&w->rng, m->row[r].n - m->base[r] + 1);
            m->row[r].n = m->base[r] + keep[r];
        }
        assert_ok(firn_cache_spec_rollback(w->cache[c], keep, NULL));
    }
    m->in_round = false;
}

/* The end of a step, at any time. */
static void op_settle(world *w, uint32_t c)
{
    firn_cache_settle(w->cache[c]);
}

static void (*const ops[])(world *w, uint32_t c) = {
    op_append, op_append, op_append, op_append, op_trim,  op_trim_all, op_add,
    op_filter, op_move,   op_move,   op_donor,  op_round, op_round, op_settle,
};

static void run(const firn_cache_options *options)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->rng = test_rng_create(options->layout, 20240229);
    w->rng.state += 1000 * (uint64_t)options->dtype + options->head_dim; /* another history for each case */
    w->pool = rig_pool(RIG_BIG_BUDGET, NULL);
    w->next_id = 1;
    for (uint32_t c = 0; c < N_CACHES; c++) {
        w->cache[c] = rig_cache(options, w->pool);
    }
    const uint32_t n_steps = options->head_dim == rig_geometries[0].head_dim ? N_STEPS : N_STEPS / 4;
    for (uint32_t step = 0; step < n_steps; step++) {
        const uint32_t c = test_rng_below(&w->rng, N_CACHES);
        ops[test_rng_below(&w->rng, sizeof ops / sizeof ops[0])](w, c);
        compare(w, c);
        if (step % 16 == 0) {
            /* Nobody else noticed. */
            for (uint32_t other = 0; other < N_CACHES; other++) {
                compare(w, other);
            }
            compare_donor(w);
        }
    }
    firn_donor_destroy(w->donor);
    for (uint32_t c = 0; c < N_CACHES; c++) {
        firn_cache_destroy(w->cache[c]);
    }
    assert_int_equal(rig_stats(w->pool).used_bytes, 0);
    firn_pool_destroy(w->pool);
    free(w);
}

static void caches_follow_the_model_through_random_operations(void **state)
{
    (void)state;
    rig_for_each_case(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caches_follow_the_model_through_random_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
