/*
 * firn cache explain: why a prompt would be answered from the store as far as it would, and no further. Owns the words.
 *
 *      1  the lookup that a request makes: how far tokens are equal, how far they can be resumed, and the reason
 *      2  the records along the prompt's own chain, block by block, with what they hold of each family
 *      3  when nothing of this model is stored: in which fields each stored identity differs
 *
 * Steps 1 and 2 are independent, so that one can be doubted with the other. What a running server has in RAM is not
 * seen from here; its answers say it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_listing.h"
#include "cmd/cache_model.h"
#include "cmd/cache_view.h"
#include "cmd/ns_text.h"
#include "cmd/reason_advice.h"

enum { TEXT_TOKENS = 12, TEXT_BYTES = 600, POSITIONS_MAX = 8 };

typedef struct explanation {
    firni_cache_model model;
    firni_listing listing;
    firn_match match;
    /* Of the whole blocks of the prompt, from the first on. */
    uint32_t n_blocks, n_present, n_quarantined, n_expired;
    uint32_t n_full_max, n_window_max, n_with_window; /* layers of a record; records with window blocks */
    uint32_t n_checkpoints, n_checkpoints_bad;
    uint32_t positions[POSITIONS_MAX];                /* the last ones */
    bool has_identity;
    char before[TEXT_BYTES], prompt_side[TEXT_BYTES], stored_side[TEXT_BYTES];
} explanation;

/* ---- looking ----------------------------------------------------------------------------------------------------- */

/* The text of some tokens, with what a terminal should not act on escaped. */
static void text_of(const explanation *e, const firn_token *tokens, uint32_t n, char *out, size_t out_bytes)
{
    firn_error err = { 0 };
    char *text = NULL;
    size_t len = 0, at = 0;
    out[0] = '\0';
    if (n == 0 || firn_tokenizer_decode(firn_model_tokenizer(e->model.stack->model), tokens, n, true, &text, &len,
                                        &err) != FIRN_OK) {
        return;
    }
    for (size_t i = 0; i < len && at + 5 < out_bytes; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c == '\n') {
            at += (size_t)snprintf(out + at, out_bytes - at, "\\n");
        } else if (c < 0x20 || c == 0x7F) {
            at += (size_t)snprintf(out + at, out_bytes - at, "\\x%02x", (unsigned)c);
        } else {
            out[at++] = (char)c;
            out[at] = '\0';
        }
    }
    free(text);
}

static void look_up(explanation *e)
{
    const firni_cache_model *model = &e->model;
    e->match = firn_tier_find(model->stack->tier, model->tokens, model->n_tokens, model->ns);
    firn_tier_release(model->stack->tier, e->match.handle);
    e->match.handle = NULL;
    const uint32_t at = e->match.matched_len;
    const uint32_t n_before = at < TEXT_TOKENS ? at : TEXT_TOKENS;
    const uint32_t n_left = model->n_tokens - at;
    text_of(e, model->tokens + at - n_before, n_before, e->before, sizeof e->before);
    text_of(e, model->tokens + at, n_left < TEXT_TOKENS ? n_left : TEXT_TOKENS, e->prompt_side, sizeof e->prompt_side);
    if (e->match.diverged) {
        text_of(e, &e->match.stored_token, 1, e->stored_side, sizeof e->stored_side);
    }
}

static bool is_expired(const explanation *e, const firni_listing_record *record)
{
    const uint64_t ttl_ns = e->model.options.ttl_ns, now_ns = firni_wall_ns(e->model.env);
    return ttl_ns > 0 && record->last_used_wall_ns < now_ns && now_ns - record->last_used_wall_ns > ttl_ns;
}

/* Counted is what hangs on the prompt's chain; inside its block it may belong to tokens that go on otherwise. */
static void note_checkpoint(explanation *e, const firni_listing_record *record)
{
    if (record->quarantined || is_expired(e, record)) {
        e->n_checkpoints_bad++;
    } else {
        e->positions[e->n_checkpoints++ % POSITIONS_MAX] = record->first_token + record->n_tokens;
    }
}

/* One level's chain, the digest before block i in chain[i]; the nearest level that has a block is the one that serves
 * it. */
static void walk_level(explanation *e, const char *ns, firn_digest *chain, bool *present)
{
    chain[0] = firn_chain_root(&firn_model_schema(e->model.stack->model)->identity, ns);
    for (uint32_t i = 0; i < e->n_blocks; i++) {
        const firn_token *tokens = e->model.tokens + (size_t)i * FIRN_BLOCK_TOKENS;
        chain[i + 1] = firn_chain_extend(&chain[i], tokens, FIRN_BLOCK_TOKENS);
        const firni_listing_record *record = firni_listing_find(&e->listing, &chain[i + 1]);
        if (record == NULL || record->kind != FIRN_DISK_TOKENS || present[i]) {
            continue;
        }
        present[i] = true;
        e->n_quarantined += record->quarantined;
        e->n_expired += is_expired(e, record);
        e->n_full_max = record->n_full > e->n_full_max ? record->n_full : e->n_full_max;
        e->n_window_max = record->n_window > e->n_window_max ? record->n_window : e->n_window_max;
        e->n_with_window += record->n_window > 0;
    }
    for (uint32_t i = 0; i < e->listing.n_records; i++) {
        const firni_listing_record *record = &e->listing.records[i];
        const uint32_t block = record->first_token / FIRN_BLOCK_TOKENS;
        if (record->kind == FIRN_DISK_CHECKPOINT && block <= e->n_blocks &&
            memcmp(&chain[block], &record->parent, sizeof record->parent) == 0) {
            note_checkpoint(e, record);
        }
    }
}

/* The namespace, and those above it that it reads. */
static int walk_chains(explanation *e)
{
    char name[FIRN_NAMESPACE_BYTES_MAX + 1];
    (void)snprintf(name, sizeof name, "%s", e->model.ns != NULL ? e->model.ns : "");
    e->n_blocks = e->model.n_tokens / FIRN_BLOCK_TOKENS;
    bool *present = calloc(e->n_blocks + 1, sizeof *present);
    firn_digest *chain = calloc(e->n_blocks + 1, sizeof *chain);
    if (present == NULL || chain == NULL) {
        free(present);
        free(chain);
        return firni_cmd_fail(e->model.self, "no memory for %" PRIu32 " blocks", e->n_blocks);
    }
    for (uint32_t level = 0; level < FIRN_NAMESPACE_LEVELS_MAX; level++) {
        walk_level(e, name, chain, present);
        char *below = strrchr(name, FIRN_NAMESPACE_BELOW);
        if (below == NULL) {
            break;
        }
        *below = '\0';
    }
    while (e->n_present < e->n_blocks && present[e->n_present]) {
        e->n_present++;
    }
    free(present);
    free(chain);
    const char *own = firn_model_schema(e->model.stack->model)->identity_text;
    for (uint32_t i = 0; i < e->listing.n_groups; i++) {
        e->has_identity = e->has_identity || strcmp(e->listing.groups[i].identity_text, own) == 0;
    }
    return 0;
}

/* ---- identities -------------------------------------------------------------------------------------------------- */

/* Calls visit for each field of `own` whose value in `other` is another, or none. */
static void each_difference(const char *own, const char *other,
                            void (*visit)(void *ctx, const char *name, const char *own, const char *other), void *ctx)
{
    for (const char *line = own; line != NULL && *line != '\0';) {
        char name[64], mine[160] = "", theirs[160] = "(none)";
        const char *colon = strchr(line, ':');
        const int len = colon != NULL && colon - line < 63 ? (int)(colon - line) : 0;
        (void)snprintf(name, sizeof name, "%.*s", len, line);
        (void)firni_identity_field(own, name, mine, sizeof mine);
        (void)firni_identity_field(other, name, theirs, sizeof theirs);
        if (len > 0 && strcmp(mine, theirs) != 0) {
            visit(ctx, name, mine, theirs);
        }
        const char *newline = strchr(line, '\n');
        line = newline != NULL ? newline + 1 : NULL;
    }
}

static bool is_new_identity(const firni_listing *listing, uint32_t i)
{
    return i == 0 || strcmp(listing->groups[i].identity_text, listing->groups[i - 1].identity_text) != 0;
}

static void print_difference(void *ctx, const char *name, const char *own, const char *other)
{
    (void)ctx;
    (void)printf("    %s: %s here, %s there\n", name, own, other);
}

static void print_identities(const explanation *e)
{
    const char *own = firn_model_schema(e->model.stack->model)->identity_text;
    (void)printf("\nnothing of this model is stored; what is stored differs in\n");
    for (uint32_t i = 0; i < e->listing.n_groups; i++) {
        char label[160];
        if (is_new_identity(&e->listing, i)) {
            const char *text = e->listing.groups[i].identity_text;
            (void)printf("  %s\n", firni_cache_identity_label(text, label, sizeof label));
            each_difference(own, text, print_difference, NULL);
        }
    }
}

static void add_difference(void *ctx, const char *name, const char *own, const char *other)
{
    (void)json_object_set_new(ctx, name, json_pack("{s:s, s:s}", "here", own, "there", other));
}

/* ---- what is said ------------------------------------------------------------------------------------------------ */

static void print_checkpoints(const explanation *e)
{
    const uint32_t n_shown = e->n_checkpoints < POSITIONS_MAX ? e->n_checkpoints : POSITIONS_MAX;
    (void)printf("  fixed     %" PRIu32 " checkpoints on the prompt", e->n_checkpoints);
    for (uint32_t i = 0; i < n_shown; i++) {
        (void)printf("%s%" PRIu32, i == 0 ? ": at " : ", ", e->positions[i]);
    }
    (void)printf("%s; %" PRIu32 " that may not be used\n", e->n_checkpoints > n_shown ? " ..." : "",
                 e->n_checkpoints_bad);
}

static void print_text(const explanation *e)
{
    const firn_match *match = &e->match;
    const firni_reason_text why = firni_reason_explain(match->reason);
    (void)printf("prompt      %" PRIu32 " tokens, namespace ", e->model.n_tokens);
    firni_ns_print(e->model.ns != NULL ? e->model.ns : "");
    (void)printf("\nequal       %" PRIu32 " tokens\nusable      %" PRIu32 " tokens (one is always left to compute)\n"
                 "reason      %s: %s\nto do       %s\n",
                 match->matched_len, match->prefix_len, firn_reason_name(match->reason), why.meaning, why.advice);
    if (match->matched_len < e->model.n_tokens) {
        const firn_token token = e->model.tokens[match->matched_len];
        (void)printf("\nat token %" PRIu32 "\n  before    ...%s\n  prompt    [%" PRIu32 "] %s...\n", match->matched_len,
                     e->before, token, e->prompt_side);
        if (match->diverged) {
            (void)printf("  stored    [%" PRIu32 "] %s...\n", match->stored_token, e->stored_side);
        } else {
            (void)printf("  stored    (nothing differs: what is stored of this prompt ends here)\n");
        }
    }
    (void)printf("\ndisk tier   %s\n  full      %" PRIu32 " of %" PRIu32 " whole blocks from the first on, up to %"
                 PRIu32 " layers each; %" PRIu32 " quarantined, %" PRIu32 " expired\n",
                 e->model.stack->cache_dir, e->n_present, e->n_blocks, e->n_full_max, e->n_quarantined, e->n_expired);
    (void)printf("  window    %" PRIu32 " of them with the blocks of window layers, up to %" PRIu32 " layers\n",
                 e->n_with_window, e->n_window_max);
    print_checkpoints(e);
    (void)printf("RAM         of a running server is not seen from here: its answers say it in \"firn\"\n");
    if (!e->has_identity && e->listing.n_groups > 0) {
        print_identities(e);
    }
}

/* Text of a prompt may be cut inside a character; it is null then. */
static json_t *text_json(const char *text)
{
    json_t *value = json_string(text);
    return value != NULL ? value : json_null();
}

static int print_json(const explanation *e)
{
    const firn_match *match = &e->match;
    const firni_reason_text why = firni_reason_explain(match->reason);
    json_t *identities = json_array();
    for (uint32_t i = 0; !e->has_identity && i < e->listing.n_groups; i++) {
        if (is_new_identity(&e->listing, i)) {
            json_t *fields = json_object();
            each_difference(firn_model_schema(e->model.stack->model)->identity_text,
                            e->listing.groups[i].identity_text, add_difference, fields);
            (void)json_array_append_new(identities, fields);
        }
    }
    json_t *positions = json_array();
    for (uint32_t i = 0; i < e->n_checkpoints && i < POSITIONS_MAX; i++) {
        (void)json_array_append_new(positions, json_integer(e->positions[i]));
    }
    json_t *stored = match->diverged ? json_pack("{s:I, s:o}", "token", (json_int_t)match->stored_token, "text",
                                                 text_json(e->stored_side))
                                     : json_null();
    const firni_cache_view view = { .self = e->model.self };
    return firni_cache_print_json(
        &view,
        json_pack("{s:I, s:I, s:I, s:s, s:s, s:s, s:{s:o, s:o, s:o}, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:o}, s:o}",
                  "prompt_tokens", (json_int_t)e->model.n_tokens, "matched", (json_int_t)match->matched_len, "usable",
                  (json_int_t)match->prefix_len, "reason", firn_reason_name(match->reason), "meaning", why.meaning,
                  "advice", why.advice, "difference", "before", text_json(e->before), "prompt",
                  text_json(e->prompt_side), "stored", stored, "disk", "blocks", (json_int_t)e->n_blocks, "present",
                  (json_int_t)e->n_present, "quarantined", (json_int_t)e->n_quarantined, "expired",
                  (json_int_t)e->n_expired, "with_window", (json_int_t)e->n_with_window, "checkpoints",
                  (json_int_t)e->n_checkpoints, "checkpoints_at", positions, "identities_differ", identities));
}

static int explain(explanation *e)
{
    firn_error err = { 0 };
    int status = firni_cache_model_open(&e->model, false);
    if (status == 0 && firni_listing_create(e->model.stack->tier, e->model.env, &e->listing, &err) != FIRN_OK) {
        status = firni_cmd_fail(e->model.self, "%s", err.message);
    }
    if (status == 0) {
        look_up(e);
        status = walk_chains(e);
    }
    if (status == 0 && e->model.json) {
        status = print_json(e);
    } else if (status == 0) {
        print_text(e);
    }
    firni_listing_deinit(&e->listing);
    firni_cache_model_close(&e->model);
    return status;
}

static int run(const firni_command *self, int argc, char **argv)
{
    explanation e = { .model = { .self = self, .env = firni_cmd_env(FIRN_LOG_WARN) } };
    e.listing.env = e.model.env;
    const firni_flag flags[] = {
        FIRNI_CACHE_MODEL_FLAGS(e.model),
        { .name = "prompt", .kind = FIRNI_FLAG_STRING, .target = &e.model.prompt_path, .value_name = "FILE",
          .help = "the prompt's text, as a completion's" },
    };
    bool done = false;
    const int status =
        firni_flags_parse(self, flags, sizeof flags / sizeof flags[0], argc, argv, NULL, 0, NULL, &done);
    if (done) {
        return status;
    }
    return e.model.prompt_path != NULL ? explain(&e) : firni_cmd_usage(self, "--prompt FILE is missing");
}

const firni_command firni_cache_explain = {
    .name = "cache explain",
    .summary = "why a prompt would be served from the store as far as it would",
    .synopsis = "cache explain -m MODEL.gguf --prompt FILE [--namespace NS] [flags]",
    .details = "Looks only; a server may be using the directory. Give the --kv flags that serve was given: they are\n"
               "part of the identity of what is stored.",
    .run = run,
};
