/*
 * The router of a mixture of experts: which experts a token passes, and with which weights.
 *
 * A function of the token's scores alone. Ties go to the lower index.
 */
#ifndef FIRNI_MOE_ROUTE_H
#define FIRNI_MOE_ROUTE_H

#include "kernel/kernel_impl.h"
#include "model/hparams.h"

typedef struct firni_chosen {
    uint32_t expert;
    float weight;
    uint32_t slot; /* block_moe.c's */
} firni_chosen;

/* scores: [n_experts] products of the router, overwritten; selection: scratch of the same size; bias: [n_experts],
 * added for the choice alone, or NULL. chosen: [n_used], ascending by expert. */
void firni_moe_route(const firni_kernels *kernels, const firni_moe_params *params, const float *bias, float *scores,
                     float *selection, firni_chosen *chosen);

#endif
