/*
 * Hyperparameters: the keys of a GGUF file that give a model its shape, read once and checked against limits, so that
 * later products of them cannot overflow and loops over them end.
 *
 * Every architecture reads its own keys, with the readers here for what several have in common, and says for each layer
 * what it is made of.
 */
#ifndef FIRNI_HPARAMS_H
#define FIRNI_HPARAMS_H

#include "model/keys.h"
#include "model/rope.h"

#define FIRNI_LAYERS_MAX 1024u
#define FIRNI_WIDTH_MAX (1u << 17)   /* n_embd */
#define FIRNI_FF_MAX (1u << 20)      /* n_ff */
#define FIRNI_HEADS_MAX 1024u
#define FIRNI_LAYER_INPUT_MAX (1u << 14)
#define FIRNI_VOCAB_MAX (1u << 24)

#define FIRNI_ROPES_MAX 2u

/* One layer. Members that a kind of layer does not use are 0. */
typedef struct firni_layer_shape {
    uint32_t n_heads;
    uint32_t n_kv_heads;    /* divides n_heads */
    uint32_t head_dim;      /* of queries and keys; may differ from n_embd / n_heads */
    uint32_t value_dim;
    uint32_t n_ff;
    uint32_t window;        /* tokens that a query sees, itself included; 0: all */
    uint32_t rope;          /* which of the ropes */
    uint32_t cache;         /* which of the caches; layers with the same one share its state, and the first of them
                               stores it */
    bool is_recurrent;      /* fixed-size state instead of keys and values */
    bool has_experts;       /* a mixture of experts in place of n_ff */
} firni_layer_shape;

/* How scores of experts become weights; the values are those of the key expert_gating_func. */
typedef enum firni_gating {
    FIRNI_GATING_SOFTMAX = 1,
    FIRNI_GATING_SIGMOID = 2,
    FIRNI_GATING_SOFTMAX_CHOSEN = 3 /* softmax over the chosen ones alone */
} firni_gating;

/* A mixture of experts, alike in all layers that have one. */
typedef struct firni_moe_params {
    uint32_t n_experts;     /* 0: no layer has any */
    uint32_t n_used;        /* chosen for each token */
    uint32_t n_ff;          /* of one expert */
    uint32_t n_ff_shared;   /* of the expert that every token passes; 0: none */
    firni_gating gating;
    bool weights_norm;      /* the weights of the chosen ones are divided by their sum */
    float weights_scale;
    uint32_t n_groups;      /* equal groups of neighbouring experts, of which only the best n_groups_used take part */
    uint32_t n_groups_used;
} firni_moe_params;

#define FIRNI_EXPERTS_MAX 4096u
#define FIRNI_EXPERT_GROUPS_MAX 64u

/* Recurrent layers, alike in all that are. */
typedef struct firni_ssm_params {
    uint32_t conv_width;
    uint32_t n_key_heads;   /* divides n_heads */
    uint32_t key_dim;
    uint32_t n_heads;       /* state matrices, [key_dim][value_dim] each; 0: no layer is recurrent */
    uint32_t value_dim;
} firni_ssm_params;

/* Latent attention (MLA), alike in all layers. */
typedef struct firni_mla_params {
    uint32_t q_rank;        /* of the queries' own latent; 0: queries come from the input directly */
    uint32_t kv_rank;       /* of the latent that is stored */
    uint32_t nope_dim;      /* of a head's query, without a position; ropes[0].n_dims follow */
    uint32_t value_dim;     /* of a head's value */
    float scale;            /* of scores */
    uint32_t n_index_heads; /* of the indexer of sparse attention; 0: none */
    uint32_t index_dim;
    uint32_t index_top_k;
    float index_eps;        /* of the norm of index keys */
} firni_mla_params;

typedef struct firni_hparams {
    char architecture[32];
    uint32_t n_vocab;
    uint32_t n_layers;
    uint32_t n_caches;      /* layers that store state: at most n_layers */
    uint32_t n_embd;
    /* As the plain keys say, for architectures that have them; what counts is what `layers` says. */
    uint32_t n_ff, n_heads, n_kv_heads, head_dim, value_dim;
    uint32_t n_ctx_train;
    float rms_eps;
    float embedding_scale;  /* multiplies embeddings */
    uint32_t n_layer_input; /* width of what each layer gets of a token beside the residual stream; 0: nothing */
    float attention_scale;  /* of scores; 0: 1 / sqrt(head_dim) */
    float logit_softcap;    /* 0: none; else logits become softcap * tanh(logit / softcap) */
    firni_rope_params ropes[FIRNI_ROPES_MAX];
    uint32_t n_ropes;       /* 0 without attention */
    firni_moe_params moe;
    firni_ssm_params ssm;

    firni_mla_params mla;
    firni_layer_shape layers[FIRNI_LAYERS_MAX];
} firni_hparams;

/* general.architecture as a C string. Errors: FORMAT (missing, not a string, longer than fits). */
firn_status firni_hparams_architecture(const firni_gguf *gguf, char out[32], firn_error *err);
/* What an architecture's `read` is made of, in this order. All keep their errors in `keys`: FORMAT (a key is missing,
 * of another type or contradictory: named), UNSUPPORTED (a kind of rope scaling or layer that this build does not
 * know). */

/* Layers, width, context, epsilon. */
void firni_read_common(firni_keys *keys, firni_hparams *hp);
/* Heads and their sizes; every layer gets them, a cache of its own and rope 0. */
void firni_read_attention(firni_keys *keys, firni_hparams *hp);
/* A feed-forward block of one size in every layer. */
void firni_read_ffn(firni_keys *keys, firni_hparams *hp);
/* The parameters of ropes[0], over n_dims_default dimensions unless the file says otherwise. */
void firni_read_rope(firni_keys *keys, firni_hparams *hp, uint32_t n_dims_default);
/* The mixture of experts, in every layer from the first n_dense on. `gating` when the file does not say. */
void firni_read_experts(firni_keys *keys, firni_hparams *hp, uint32_t n_dense, firni_gating gating);
/* Gives layers their windows. Without a pattern in the file the last of each `period` layers sees everything, or the
 * first; with a period of 0 its absence is an error. */
void firni_read_windows(firni_keys *keys, firni_hparams *hp, uint32_t period, bool is_last_full);
/* After the windows: ropes[1], unscaled, for the layers that have one. */
void firni_read_window_rope(firni_keys *keys, firni_hparams *hp, uint32_t n_dims_default, float base_default);
/* The shape of recurrent layers. */
void firni_read_ssm(firni_keys *keys, firni_hparams *hp);
/* Marks the layers that are recurrent, all but every n-th, and takes their attention away. */
void firni_read_recurrent_layers(firni_keys *keys, firni_hparams *hp);
/* Refuses files with experts, for architectures that have none. */
void firni_read_no_experts(firni_keys *keys);

/* The layer that stores what is in a cache: the first that has it. */
uint32_t firni_hparams_storing_layer(const firni_hparams *hp, uint32_t cache);

typedef void (*firni_hparams_reader)(firni_keys *keys, firni_hparams *hp);

/* Reads the keys "<architecture>.*" through `read`. n_vocab is the number of rows of token_embd.weight. `interleaved`
 * of the ropes is left to the caller. Errors: as above. */
firn_status firni_hparams_read(const firni_gguf *gguf, const char *architecture, firni_hparams_reader read,
                               firni_hparams *out, firn_error *err);

#endif
