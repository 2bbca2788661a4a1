/*
 * The mixture of experts: norm, router, the chosen experts of each token, a shared expert.
 *
 *   1. scores of all experts for every token; each token chooses its experts and their weights (moe_route.c)
 *   2. (token, expert) pairs are sorted by expert, within an expert by token
 *   3. as many experts as fit into the scratch at a time: gather their tokens, gate and up, activation, down
 *   4. every token adds weight * output of its experts, in ascending order of the expert
 *   5. the shared expert, and the sum into the residual stream
 *
 * Experts work on whatever tokens chose them, but a product's bits for one token do not depend on the others, and step
 * 4 adds in an order that is the token's own: neither the batch nor the cut of step 3 shows in the result.
 *
 * Owns the layout of its scratch. Sources: sparsely-gated mixtures (arXiv 1701.06538), shared experts as in DeepSeekMoE
 * (arXiv 2401.06066).
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/arch_impl.h"
#include "model/moe_route.h"

#define SCRATCH_ALIGN 64u
/* Pairs beyond the tokens of a step that the scratch has room for: small steps then do all their experts at once. */
#define PAIRS_EXTRA 256u
#define PAIRS_PER_TASK 4u

/* ---- load ---- */

static void default_activate(const firni_kernels *kernels, float *gate, const float *up, uint32_t n)
{
    kernels->silu_mul(gate, gate, up, n);
}

/* Gate and up of the experts: two tensors, or one with up below gate. */
static firn_status load_experts(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_moe *out,
                                firn_error *err)
{
    char gate[FIRNI_TENSOR_NAME_BYTES];
    char up[FIRNI_TENSOR_NAME_BYTES];
    char down[FIRNI_TENSOR_NAME_BYTES];
    char merged[FIRNI_TENSOR_NAME_BYTES];
    char merged_weight[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(gate, layer, "ffn_gate_exps");
    firni_layer_tensor_name(up, layer, "ffn_up_exps");
    firni_layer_tensor_name(down, layer, "ffn_down_exps");
    firni_layer_tensor_name(merged, layer, "ffn_gate_up_exps");
    firni_tensor_name(merged_weight, merged, "weight");
    const firni_moe_params *params = &hp->moe;
    const firni_stack_part two[] = {
        { .name = gate, .n_rows = params->n_ff },
        { .name = up, .n_rows = params->n_ff },
    };
    const firni_stack_part one = { .name = merged, .n_rows = 2 * params->n_ff };
    const firni_stack_part output = { .name = down, .n_rows = hp->n_embd };
    const bool is_merged = firni_loader_has(loader, merged_weight);
    const firn_status status = firni_load_projections(loader, is_merged ? &one : two, is_merged ? 1 : 2, hp->n_embd,
                                                      params->n_experts, &out->gate_up, err);
    return status != FIRN_OK ? status
                             : firni_load_projections(loader, &output, 1, params->n_ff, params->n_experts, &out->down,
                                                      err);
}

static firn_status load_shared(firni_loader *loader, const firni_hparams *hp, uint32_t layer, firni_moe *out,
                               firn_error *err)
{
    char gate[FIRNI_TENSOR_NAME_BYTES];
    char up[FIRNI_TENSOR_NAME_BYTES];
    char down[FIRNI_TENSOR_NAME_BYTES];
    char own_gate[FIRNI_TENSOR_NAME_BYTES];
    char own_gate_weight[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(gate, layer, "ffn_gate_shexp");
    firni_layer_tensor_name(up, layer, "ffn_up_shexp");
    firni_layer_tensor_name(down, layer, "ffn_down_shexp");
    firni_layer_tensor_name(own_gate, layer, "ffn_gate_inp_shexp");
    firni_tensor_name(own_gate_weight, own_gate, "weight");
    const uint32_t n_ff = hp->moe.n_ff_shared;
    const firni_stack_part gate_up[] = {
        { .name = gate, .n_rows = n_ff },
        { .name = up, .n_rows = n_ff },
    };
    const firni_stack_part output = { .name = down, .n_rows = hp->n_embd };
    const firni_stack_part one_score = { .name = own_gate, .n_rows = 1 };
    firn_status status = firni_load_projection(loader, gate_up, 2, hp->n_embd, &out->shared_gate_up, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &output, 1, n_ff, &out->shared_down, err);
    }
    if (status == FIRN_OK && firni_loader_has(loader, own_gate_weight)) {
        status = firni_load_projection(loader, &one_score, 1, hp->n_embd, &out->shared_gate, err);
    }
    /* As in block_ffn.c. */
    out->shared_gate_up.is_bias_first = true;
    out->shared_down.is_bias_first = true;
    return status;
}

firn_status firni_moe_load(firni_loader *loader, const firni_hparams *hp, uint32_t layer,
                           const firni_moe_traits *traits, firni_moe *out, firn_error *err)
{
    char norm[FIRNI_TENSOR_NAME_BYTES];
    char router[FIRNI_TENSOR_NAME_BYTES];
    char bias[FIRNI_TENSOR_NAME_BYTES];
    firni_layer_tensor_name(norm, layer, traits->norm != NULL ? traits->norm : "ffn_norm.weight");
    firni_layer_tensor_name(router, layer, "ffn_gate_inp");
    firni_layer_tensor_name(bias, layer, "exp_probs_b.bias");
    const firni_stack_part scores = { .name = router, .n_rows = hp->moe.n_experts };
    *out = (firni_moe){
        .activate = traits->activate != NULL ? traits->activate : default_activate,
        .ignores_scales = traits->ignores_scales,
    };
    firn_status status = firni_load_vector(loader, norm, hp->n_embd, &out->norm, err);
    if (status == FIRN_OK) {
        status = firni_load_projection(loader, &scores, 1, hp->n_embd, &out->router, err);
    }
    if (status == FIRN_OK && firni_loader_has(loader, bias)) {
        status = firni_load_vector(loader, bias, hp->moe.n_experts, &out->selection_bias, err);
    }
    if (status == FIRN_OK) {
        status = load_experts(loader, hp, layer, out, err);
    }
    if (status == FIRN_OK && hp->moe.n_ff_shared > 0) {
        status = load_shared(loader, hp, layer, out, err);
    }
    return status;
}

/* ---- scratch ---- */

/* Pointers into the scratch of one call. A slot is the place of one (token, expert) pair in step 2's order. */
typedef struct moe_arrays {
    float *scores;            /* [n_tokens, n_experts] */
    float *selection;         /* [n_tokens, n_experts] scratch of the choice */
    firni_chosen *chosen;     /* [n_tokens, n_used] ascending by expert */
    uint32_t *first_slot;     /* [n_experts + 1] */
    uint32_t *slot_token;     /* [n_tokens * n_used] */
    firni_matmul_item *items; /* [n_experts] */
    float *in;                /* [n_pairs_max, n_embd], then the outputs of down */
    float *gate_up;           /* [n_pairs_max, 2 n_ff] */
    float *sum;               /* [n_tokens, n_embd] */
    void *acts;
    uint32_t n_pairs_max;     /* of step 3 at a time; no less than n_tokens, so that any one expert fits */
} moe_arrays;

/* Each array behind the one before, at a cache line; `at` is the number of bytes so far. */
static void *place(uint8_t *base, size_t *at, size_t n_bytes)
{
    void *array = base != NULL ? base + *at : NULL;
    *at += firni_round_up(n_bytes, SCRATCH_ALIGN);
    return array;
}

/* With base NULL only the size counts. Limits of hparams.h and of a step's tokens keep the products in 64 bits. */
static size_t lay_out(const firni_hparams *hp, uint32_t n_tokens, uint8_t *base, moe_arrays *out)
{
    const firni_moe_params *p = &hp->moe;
    const size_t n = n_tokens;
    const size_t n_slots = n * p->n_used;
    const size_t n_pairs = n_slots < n + PAIRS_EXTRA ? n_slots : n + PAIRS_EXTRA;
    const uint32_t inputs = hp->n_embd > p->n_ff ? hp->n_embd : p->n_ff;
    size_t at = 0;
    out->n_pairs_max = (uint32_t)n_pairs;
    out->scores = place(base, &at, n * p->n_experts * sizeof(float));
    out->selection = place(base, &at, n * p->n_experts * sizeof(float));
    out->chosen = place(base, &at, n_slots * sizeof(firni_chosen));
    out->first_slot = place(base, &at, (p->n_experts + (size_t)1) * sizeof(uint32_t));
    out->slot_token = place(base, &at, n_slots * sizeof(uint32_t));
    out->items = place(base, &at, p->n_experts * sizeof(firni_matmul_item));
    out->in = place(base, &at, n_pairs * hp->n_embd * sizeof(float));
    out->gate_up = place(base, &at, n_pairs * 2 * p->n_ff * sizeof(float));
    out->sum = place(base, &at, n * hp->n_embd * sizeof(float));
    out->acts = place(base, &at, firni_matmul_each_scratch_bytes(inputs, (uint32_t)n_pairs, p->n_experts));
    return at;
}

size_t firni_moe_scratch_bytes(const firni_hparams *hp, uint32_t n_tokens)
{
    moe_arrays arrays;
    return hp->moe.n_experts == 0 ? 0 : lay_out(hp, n_tokens, NULL, &arrays);
}

/* ---- 1. and 2. ---- */

typedef struct moe_call {
    const firni_step *step;
    const firni_moe *moe;
    const moe_arrays *arrays;
    uint32_t slot_begin; /* of the experts at hand */
    uint32_t slot_end;
} moe_call;

static void route_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const moe_call *call = ctx;
    const firni_moe_params *params = &step->hparams->moe;
    float *scores = call->arrays->scores + (size_t)token * params->n_experts;
    firni_projection_finish(step->kernels, &call->moe->router, scores);
    firni_moe_route(step->kernels, params, call->moe->selection_bias, scores,
                    call->arrays->selection + (size_t)token * params->n_experts,
                    call->arrays->chosen + (size_t)token * params->n_used);
}

/* A counting sort: tokens of one expert stay in their order. */
static void assign_slots(const firni_step *step, const moe_arrays *a)
{
    const firni_moe_params *p = &step->hparams->moe;
    const size_t n_slots = (size_t)step->n_tokens * p->n_used;
    memset(a->first_slot, 0, (p->n_experts + (size_t)1) * sizeof a->first_slot[0]);
    for (size_t i = 0; i < n_slots; i++) {
        a->first_slot[a->chosen[i].expert + 1]++;
    }
    for (uint32_t e = 0; e < p->n_experts; e++) {
        a->first_slot[e + 1] += a->first_slot[e];
    }
    for (size_t i = 0; i < n_slots; i++) {
        const uint32_t slot = a->first_slot[a->chosen[i].expert]++;
        a->chosen[i].slot = slot;
        a->slot_token[slot] = (uint32_t)(i / p->n_used);
    }
    /* Every entry has moved on to the begin of the next. */
    memmove(a->first_slot + 1, a->first_slot, p->n_experts * sizeof a->first_slot[0]);
    a->first_slot[0] = 0;
}

/* ---- 3. and 4. ---- */

/* Runs task for every slot at hand. */
static void each_slot(const moe_call *call, void (*task)(void *ctx, uint32_t index, uint32_t thread))
{
    const uint32_t n = call->slot_end - call->slot_begin;
    const uint32_t n_tasks = (n + PAIRS_PER_TASK - 1) / PAIRS_PER_TASK;
    moe_call copy = *call;
    firn_workers_run(n_tasks > 2 ? call->step->workers : NULL, n_tasks, task, &copy);
}

static void gather_task(void *ctx, uint32_t index, uint32_t thread)
{
    const moe_call *call = ctx;
    (void)thread;
    const size_t n_embd = call->step->hparams->n_embd;
    const uint32_t begin = call->slot_begin + index * PAIRS_PER_TASK;
    for (uint32_t slot = begin; slot < call->slot_end && slot - begin < PAIRS_PER_TASK; slot++) {
        memcpy(call->arrays->in + (slot - call->slot_begin) * n_embd,
               call->step->h + call->arrays->slot_token[slot] * n_embd, n_embd * sizeof(float));
    }
}

/* The expert of a slot: the last whose first slot is not beyond it. */
static uint32_t expert_of(const moe_arrays *a, uint32_t n_experts, uint32_t slot)
{
    uint32_t low = 0;
    uint32_t high = n_experts;
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (a->first_slot[middle] <= slot) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Scale and bias of one expert's projection. */
static void finish_expert(const firni_kernels *kernels, const firni_moe *moe, const firni_projection *projection,
                          float *y)
{
    firni_projection finished = *projection;
    finished.scale = moe->ignores_scales ? NULL : projection->scale;
    firni_projection_finish(kernels, &finished, y);
}

static void activate_task(void *ctx, uint32_t index, uint32_t thread)
{
    const moe_call *call = ctx;
    (void)thread;
    const firni_moe_params *p = &call->step->hparams->moe;
    const uint32_t begin = call->slot_begin + index * PAIRS_PER_TASK;
    for (uint32_t slot = begin; slot < call->slot_end && slot - begin < PAIRS_PER_TASK; slot++) {
        const uint32_t expert = expert_of(call->arrays, p->n_experts, slot);
        float *gate = call->arrays->gate_up + (size_t)(slot - call->slot_begin) * 2 * p->n_ff;
        finish_expert(call->step->kernels, call->moe, &call->moe->gate_up[expert], gate);
        call->moe->activate(call->step->kernels, gate, gate + p->n_ff, p->n_ff);
    }
}

/* y = W x for the slots at hand, each with its own expert's matrices; strides in floats. */
static void project_experts(const moe_call *call, uint32_t expert_begin, uint32_t expert_end,
                            const firni_projection *each, const float *x, uint32_t x_stride, float *y,
                            uint32_t y_stride)
{
    const moe_arrays *a = call->arrays;
    uint32_t first_row = 0;
    for (uint32_t m = 0; m < each[0].n_matrices; m++) {
        uint32_t n_items = 0;
        for (uint32_t e = expert_begin; e < expert_end; e++) {
            const uint32_t n = a->first_slot[e + 1] - a->first_slot[e];
            const size_t slot = a->first_slot[e] - call->slot_begin;
            if (n > 0) {
                a->items[n_items++] = (firni_matmul_item){
                    .w = &each[e].matrices[m],
                    .x = x + slot * x_stride,
                    .y = y + slot * y_stride + first_row,
                    .n_tokens = n,
                };
            }
        }
        firni_step_multiply_each(call->step, a->items, n_items, x_stride, y_stride, a->acts);
        first_row += each[0].matrices[m].n_rows;
    }
}

/* One rounding for the product and one for the sum, as everywhere outside the kernels' chains. */
static void add_experts_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const moe_call *call = ctx;
    const uint32_t n_used = step->hparams->moe.n_used;
    const uint32_t n_embd = step->hparams->n_embd;
    const firni_chosen *chosen = call->arrays->chosen + (size_t)token * n_used;
    float *sum = call->arrays->sum + (size_t)token * n_embd;
    for (uint32_t i = 0; i < n_used; i++) {
        if (chosen[i].slot < call->slot_begin || chosen[i].slot >= call->slot_end) {
            continue;
        }
        float *y = call->arrays->in + (size_t)(chosen[i].slot - call->slot_begin) * n_embd;
        const float weight = chosen[i].weight;
        finish_expert(step->kernels, call->moe, &call->moe->down[chosen[i].expert], y);
        for (uint32_t k = 0; k < n_embd; k++) {
            sum[k] = i == 0 ? weight * y[k] : sum[k] + weight * y[k];
        }
    }
}

static void run_experts(firni_step *step, moe_call *call)
{
    const firni_hparams *hp = step->hparams;
    const firni_moe_params *p = &hp->moe;
    const moe_arrays *a = call->arrays;
    for (uint32_t begin = 0; begin < p->n_experts;) {
        uint32_t end = begin + 1;
        while (end < p->n_experts && a->first_slot[end + 1] - a->first_slot[begin] <= a->n_pairs_max) {
            end++;
        }
        call->slot_begin = a->first_slot[begin];
        call->slot_end = a->first_slot[end];
        assert(call->slot_end - call->slot_begin <= a->n_pairs_max);
        if (call->slot_begin < call->slot_end) {
            each_slot(call, gather_task);
            project_experts(call, begin, end, call->moe->gate_up, a->in, hp->n_embd, a->gate_up, 2 * p->n_ff);
            each_slot(call, activate_task);
            /* The inputs are used up: outputs take their place. */
            project_experts(call, begin, end, call->moe->down, a->gate_up, 2 * p->n_ff, a->in, hp->n_embd);
            firni_step_each_token(step, add_experts_token, call);
        }
        begin = end;
    }
}

/* ---- 5. ---- */

static void shared_activate_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const moe_call *call = ctx;
    const uint32_t n_ff = step->hparams->moe.n_ff_shared;
    float *gate = step->wide + (size_t)token * 2 * n_ff;
    firni_projection_finish(step->kernels, &call->moe->shared_gate_up, gate);
    step->kernels->silu_mul(gate, gate, gate + n_ff, n_ff);
}

static void add_shared_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const moe_call *call = ctx;
    const uint32_t n_embd = step->hparams->n_embd;
    float *y = step->h + (size_t)token * n_embd;
    float *sum = call->arrays->sum + (size_t)token * n_embd;
    firni_projection_finish(step->kernels, &call->moe->shared_down, y);
    if (call->moe->shared_gate.n_rows > 0) {
        const float one = 1.0F;
        float *score = call->arrays->scores + token;
        float factor = 0.0F;
        firni_projection_finish(step->kernels, &call->moe->shared_gate, score);
        step->kernels->sigmoid_mul(&factor, score, &one, 1);
        for (uint32_t k = 0; k < n_embd; k++) {
            y[k] *= factor;
        }
    }
    step->kernels->add(sum, y, n_embd);
}

static void add_sum_token(const firni_step *step, const void *ctx, uint32_t token)
{
    const moe_call *call = ctx;
    const uint32_t n_embd = step->hparams->n_embd;
    step->kernels->add(step->x + (size_t)token * n_embd, call->arrays->sum + (size_t)token * n_embd, n_embd);
}

void firni_moe_forward(firni_step *step, const firni_moe *moe, void *scratch)
{
    const firni_hparams *hp = step->hparams;
    const firni_moe_params *p = &hp->moe;
    moe_arrays arrays;
    if (step->n_tokens == 0) {
        return;
    }
    (void)lay_out(hp, step->n_tokens, scratch, &arrays);
    moe_call call = { .step = step, .moe = moe, .arrays = &arrays };
    firni_step_norm(step, moe->norm);
    firni_step_project(step, &moe->router, step->h, hp->n_embd, arrays.scores, p->n_experts);
    firni_step_each_token(step, route_token, &call);
    assign_slots(step, &arrays);
    run_experts(step, &call);
    if (moe->shared_gate_up.n_rows > 0) {
        firni_step_project(step, &moe->shared_gate_up, step->h, hp->n_embd, step->wide, 2 * p->n_ff_shared);
        firni_step_each_token(step, shared_activate_token, &call);
        /* Before the down projection overwrites h; the scores of step 1 are done with. */
        if (moe->shared_gate.n_rows > 0) {
            firni_step_project(step, &moe->shared_gate, step->h, hp->n_embd, arrays.scores, 1);
        }
        firni_step_project(step, &moe->shared_down, step->wide, 2 * p->n_ff_shared, step->h, hp->n_embd);
        firni_step_each_token(step, add_shared_token, &call);
    }
    firni_step_each_token(step, add_sum_token, &call);
}
