/*
 * `firn synth`: writes a GGUF model with random weights, of any supported shape and type.
 */
#include <stdio.h>
#include <string.h>

#include "cmd/cmd.h"
#include "model/synth.h"

/* What the command line says; 0 leaves a member of the shape as --params chose it. */
typedef struct synth_flags {
    const char *arch, *type, *out, *tokenizer, *rope_scaling;
    uint64_t n_params, seed;
    uint32_t n_layers, n_embd, n_heads, n_kv_heads, head_dim, n_ff, n_vocab, n_ctx, rope_original_context;
    float rope_base, rope_factor;
    bool is_tied, rope_factors_as_tensor;
} synth_flags;

static firni_weight_type type_of(const char *name)
{
    uint32_t type = 0;
    while (strcmp(firni_weight_type_name((firni_weight_type)type), name) != 0) {
        type++; /* the flag parser has let only these names through */
    }
    return (firni_weight_type)type;
}

/* The flag parser has let only these names through. */
static firni_rope_scaling scaling_of(const char *name)
{
    return strcmp(name, "linear") == 0   ? FIRNI_ROPE_SCALING_LINEAR
           : strcmp(name, "llama3") == 0 ? FIRNI_ROPE_SCALING_LLAMA3
           : strcmp(name, "yarn") == 0   ? FIRNI_ROPE_SCALING_YARN
                                         : FIRNI_ROPE_SCALING_NONE;
}

/* 0 is "not given": no member of a shape may be 0. */
static void override(uint32_t *member, uint32_t value)
{
    if (value != 0) {
        *member = value;
    }
}

/* --params first, then what was given beside it. */
static firni_synth_options options_of(const synth_flags *f)
{
    firni_synth_options o = {
        .architecture = f->arch,
        .type = type_of(f->type),
        .is_tied = f->is_tied,
        .seed = f->seed,
        .rope_base = f->rope_base,
        .rope_scaling = scaling_of(f->rope_scaling),
        .rope_factor = f->rope_factor,
        .rope_original_context = f->rope_original_context,
        .rope_factors_as_tensor = f->rope_factors_as_tensor,
        .tokenizer_json = f->tokenizer,
    };
    firni_synth_shape(f->n_params, &o);
    override(&o.n_layers, f->n_layers);
    override(&o.n_embd, f->n_embd);
    override(&o.n_heads, f->n_heads);
    override(&o.n_kv_heads, f->n_kv_heads);
    override(&o.head_dim, f->head_dim);
    override(&o.n_ff, f->n_ff);
    if (f->tokenizer != NULL) {
        o.n_vocab = 0;
    }
    override(&o.n_vocab, f->n_vocab);
    override(&o.n_ctx, f->n_ctx);
    return o;
}

static int run_synth(const firni_command *self, int argc, char **argv)
{
    synth_flags f = { .arch = "llama", .type = "q8_0", .rope_scaling = "none", .n_params = 450000000, .seed = 1,
                      .rope_base = 10000.0F, .rope_factor = 1.0F };
    const firni_flag flags[] = {
        { .name = "arch", .kind = FIRNI_FLAG_STRING, .target = &f.arch, .value_name = "NAME", .help = "architecture" },
        { .name = "params", .kind = FIRNI_FLAG_COUNT, .target = &f.n_params, .value_name = "COUNT",
          .help = "about how many parameters; chooses the shape", .min = 1000, .max = 1e12 },
        { .name = "type", .kind = FIRNI_FLAG_STRING, .target = &f.type, .value_name = "TYPE",
          .help = "type of the matrices",
          .choices = "f32|f16|bf16|q8_0|q4_0|q4_1|q5_0|q5_1|q4_K|q5_K|q6_K|mxfp4" },
        { .name = "out", .letter = 'o', .kind = FIRNI_FLAG_STRING, .target = &f.out, .value_name = "FILE",
          .help = "the file to write" },
        { .name = "layers", .kind = FIRNI_FLAG_U32, .target = &f.n_layers, .value_name = "N",
          .help = "layers; 0: what --params chose, as for all of the shape" },
        { .name = "width", .kind = FIRNI_FLAG_U32, .target = &f.n_embd, .value_name = "N", .help = "embedding length" },
        { .name = "heads", .kind = FIRNI_FLAG_U32, .target = &f.n_heads, .value_name = "N", .help = "query heads" },
        { .name = "kv-heads", .kind = FIRNI_FLAG_U32, .target = &f.n_kv_heads, .value_name = "N",
          .help = "key and value heads" },
        { .name = "head-dim", .kind = FIRNI_FLAG_U32, .target = &f.head_dim, .value_name = "N",
          .help = "size of a head" },
        { .name = "ffn", .kind = FIRNI_FLAG_U32, .target = &f.n_ff, .value_name = "N", .help = "feed-forward length" },
        { .name = "vocab", .kind = FIRNI_FLAG_U32, .target = &f.n_vocab, .value_name = "N",
          .help = "vocabulary; 0 with --tokenizer: its own size" },
        { .name = "ctx", .kind = FIRNI_FLAG_U32, .target = &f.n_ctx, .value_name = "TOKENS",
          .help = "context length that the file claims" },
        { .name = "tied", .kind = FIRNI_FLAG_BOOL, .target = &f.is_tied, .help = "no output matrix of its own" },
        { .name = "seed", .kind = FIRNI_FLAG_U64, .target = &f.seed, .value_name = "N", .help = "seed of the weights" },
        { .name = "rope-base", .kind = FIRNI_FLAG_FLOAT, .target = &f.rope_base, .value_name = "X",
          .help = "rope frequency base", .min = 2, .max = 1e12 },
        { .name = "rope-scaling", .kind = FIRNI_FLAG_STRING, .target = &f.rope_scaling, .value_name = "KIND",
          .help = "rope frequency scaling", .choices = "none|linear|llama3|yarn" },
        { .name = "rope-factor", .kind = FIRNI_FLAG_FLOAT, .target = &f.rope_factor, .value_name = "X",
          .help = "factor of the scaling", .min = 1, .max = 1e6 },
        { .name = "rope-original-ctx", .kind = FIRNI_FLAG_U32, .target = &f.rope_original_context,
          .value_name = "TOKENS", .help = "context before scaling; --ctx when absent" },
        { .name = "rope-tensor", .kind = FIRNI_FLAG_BOOL, .target = &f.rope_factors_as_tensor,
          .help = "llama3 scaling as the tensor rope_freqs.weight instead of keys" },
        { .name = "tokenizer", .kind = FIRNI_FLAG_STRING, .target = &f.tokenizer, .value_name = "FILE",
          .help = "tokenizer.json to embed; a byte-level one when absent" },
    };
    uint32_t n_positional = 0;
    bool done = false;
    const uint32_t n_flags = sizeof flags / sizeof flags[0];
    const int status = firni_flags_parse(self, flags, n_flags, argc, argv, NULL, 0, &n_positional, &done);
    if (done) {
        return status;
    }
    if (f.out == NULL) {
        return firni_cmd_usage(self, "-o FILE is required");
    }
    if (!firni_synth_knows(f.arch)) {
        char known[200];
        firni_synth_arch_list(known, sizeof known);
        return firni_cmd_usage(self, "--arch is '%s'; there are %s", f.arch, known);
    }
    char label[] = "writing";
    firn_error err;
    firni_synth_options options = options_of(&f);
    options.progress = firni_cmd_progress;
    options.progress_ctx = label;
    if (firni_synth_resolve(&options, firni_cmd_env(FIRN_LOG_WARN), &err) != FIRN_OK ||
        firni_synth_write(&options, f.out, firni_cmd_env(FIRN_LOG_WARN), &err) != FIRN_OK) {
        return firni_cmd_fail(self, "%s", err.message);
    }
    (void)printf("%s: %s %s, %.1fM parameters: %lu layers, width %lu, %lu heads and %lu KV heads of %lu, "
                 "feed-forward %lu, vocabulary %lu\n",
                 f.out, f.arch, f.type, (double)firni_synth_n_params(&options) / 1e6,
                 (unsigned long)options.n_layers, (unsigned long)options.n_embd, (unsigned long)options.n_heads,
                 (unsigned long)options.n_kv_heads, (unsigned long)options.head_dim, (unsigned long)options.n_ff,
                 (unsigned long)options.n_vocab);
    return 0;
}

const firni_command firni_cmd_synth = {
    .name = "synth",
    .summary = "write a model with random weights, for benchmarks and tests",
    .synopsis = "synth --arch NAME --params COUNT --type TYPE -o FILE [flags]",
    .details = "The same flags give the same bytes. Shape flags override what --params has chosen.",
    .run = run_synth,
};
