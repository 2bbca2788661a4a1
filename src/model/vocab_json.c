/*
 * Reads a Hugging Face tokenizer.json: the file, its pieces, its added tokens, the ids that it does not name.
 *
 *   model.vocab          {"piece": id, ...}
 *   model.merges         ["a b", ...] or [["a", "b"], ...]        vocab_json_merges.c
 *   model.unk_token      "piece", or null
 *   added_tokens         [{"id", "content", "special"}, ...]      special: CONTROL; else USER_DEFINED
 *   post_processor       says whether BOS is put in front
 *   normalizer, pre_tokenizer, the rest of model                  vocab_json_kind.c
 *
 * Two passes: the first checks ids and measures, so that the strings go into one block of exactly that size; the second
 * fills. The JSON is released at the end, nothing of it stays.
 *
 * Source of the format: the tokenizers library's own files; ids of BOS and EOS are not in it (they stand in a separate
 * tokenizer_config.json), so they are taken from the post-processor where that adds BOS, else from well-known names.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/vocab_json_impl.h"

#define TOKENS_MAX (1 << 24)
/* Ids without a piece: files leave some out below their added tokens. They become UNUSED pieces of a name like this. */
#define HOLES_MAX           65536u
#define HOLE_NAME           "[UNUSED%u]"
#define HOLE_NAME_BYTES_MAX 24

const char *firni_json_text(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}

firni_gguf_string firni_json_keep(firni_json_vocab *in, const char *text, size_t len_bytes)
{
    assert(len_bytes <= in->arena_bytes - in->arena_used);
    char *kept = in->arena + in->arena_used;
    memcpy(kept, text, len_bytes);
    in->arena_used += len_bytes;
    return (firni_gguf_string){ .data = kept, .len_bytes = len_bytes };
}

/* jansson checks the syntax, the UTF-8 and the depth. */
static firn_status load_file(firni_json_vocab *in)
{
    json_error_t detail;
    in->root = json_load_file(in->path, 0, &detail);
    if (in->root == NULL) {
        const enum json_error_code code = json_error_code(&detail);
        const firn_status status = code == json_error_out_of_memory      ? FIRN_ERR_NO_MEMORY
                                   : code == json_error_cannot_open_file ? FIRN_ERR_NOT_FOUND
                                                                         : FIRN_ERR_FORMAT;
        return firni_fail(in->err, status, "%s: line %d: %s", in->path, detail.line, detail.text);
    }
    in->model = json_object_get(in->root, "model");
    in->vocab = json_object_get(in->model, "vocab");
    in->merges = json_object_get(in->model, "merges");
    if (!json_is_object(in->model)) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: no model: not a tokenizer.json", in->path);
    }
    return FIRN_OK;
}

/* Every id passes here once; later passes take it as checked. */
static firn_status check_id(firni_json_vocab *in, const json_t *id, const char *piece, firn_token *out)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TOKENS_MAX) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: the id of \"%.60s\" is not a number from 0 to %d", in->path,
                          piece, TOKENS_MAX - 1);
    }
    *out = (firn_token)json_integer_value(id);
    return FIRN_OK;
}

/* First pass: the number of tokens, and the bytes of all strings to keep. */
static firn_status measure(firni_json_vocab *in)
{
    firn_token largest = 0;
    size_t n_bytes = 1;
    const char *piece;
    json_t *id;
    json_object_foreach(in->vocab, piece, id)
    {
        firn_token token = 0;
        const firn_status status = check_id(in, id, piece, &token);
        if (status != FIRN_OK) {
            return status;
        }
        largest = token > largest ? token : largest;
        n_bytes += strlen(piece);
    }
    size_t index;
    json_t *added;
    json_array_foreach(json_object_get(in->root, "added_tokens"), index, added)
    {
        const char *content = firni_json_text(added, "content");
        if (content == NULL) {
            return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: added_tokens: entry %zu has no content", in->path, index);
        }
        firn_token token = 0;
        const firn_status status = check_id(in, json_object_get(added, "id"), content, &token);
        if (status != FIRN_OK) {
            return status;
        }
        largest = token > largest ? token : largest;
        n_bytes += strlen(content);
    }
    for (size_t i = 0; i < json_array_size(in->merges); i++) {
        firni_gguf_string left;
        firni_gguf_string right;
        const firn_status status = firni_json_merge_halves(in, i, &left, &right);
        if (status != FIRN_OK) {
            return status;
        }
        n_bytes += left.len_bytes + right.len_bytes + 1;
    }
    if (json_array_size(in->merges) > TOKENS_MAX) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: model.merges: more than %d entries", in->path, TOKENS_MAX);
    }
    in->spec->n_tokens = largest + 1;
    /* At most: added tokens fill holes. */
    const size_t n_pieces = json_object_size(in->vocab) + json_array_size(json_object_get(in->root, "added_tokens"));
    if (in->spec->n_tokens > n_pieces + HOLES_MAX) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: ids up to %u for %zu pieces", in->path, largest, n_pieces);
    }
    in->arena_bytes =
        n_bytes + (size_t)(HOLES_MAX < in->spec->n_tokens ? HOLES_MAX : in->spec->n_tokens) * HOLE_NAME_BYTES_MAX;
    return FIRN_OK;
}

/* A piece may come twice, from the vocabulary and as an added token, if it is spelled alike; the later type holds. */
static firn_status take_piece(firni_json_vocab *in, firn_token token, const char *text, uint8_t type)
{
    firni_gguf_string *piece = &in->spec->pieces[token];
    if (piece->data == NULL) {
        *piece = firni_json_keep(in, text, strlen(text));
    } else if (piece->len_bytes != strlen(text) || memcmp(piece->data, text, piece->len_bytes) != 0) {
        return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: two pieces have the id %u", in->path, token);
    }
    in->spec->types[token] = type;
    return FIRN_OK;
}

/* A name for each id that has none, and a type that keeps it out of every text. */
static firn_status fill_holes(firni_json_vocab *in)
{
    firni_vocab_spec *spec = in->spec;
    uint32_t n_holes = 0;
    for (firn_token token = 0; token < spec->n_tokens; token++) {
        if (spec->pieces[token].data != NULL) {
            continue;
        }
        if (++n_holes > HOLES_MAX) {
            return firni_fail(in->err, FIRN_ERR_FORMAT, "%s: more than %u ids have no piece", in->path, HOLES_MAX);
        }
        char name[HOLE_NAME_BYTES_MAX];
        const int len = snprintf(name, sizeof name, HOLE_NAME, token);
        assert(len > 0 && (size_t)len < sizeof name);
        spec->pieces[token] = firni_json_keep(in, name, (size_t)len);
        spec->types[token] = FIRNI_PIECE_UNUSED;
    }
    return FIRN_OK;
}

/* Second pass: pieces and their types. */
static firn_status read_pieces(firni_json_vocab *in)
{
    firni_vocab_spec *spec = in->spec;
    spec->pieces = firni_calloc(in->env, spec->n_tokens, sizeof *spec->pieces);
    spec->types = firni_calloc(in->env, spec->n_tokens, sizeof *spec->types);
    spec->arena = firni_calloc(in->env, in->arena_bytes, 1);
    if (spec->pieces == NULL || spec->types == NULL || spec->arena == NULL) {
        return firni_fail(in->err, FIRN_ERR_NO_MEMORY, "%s: no memory for %u pieces", in->path, spec->n_tokens);
    }
    in->arena = spec->arena;
    const char *piece;
    json_t *id;
    json_object_foreach(in->vocab, piece, id)
    {
        const bool is_byte = spec->kind == FIRNI_VOCAB_SPM && firni_vocab_is_byte_name(piece, strlen(piece));
        const firn_status status =
            take_piece(in, (firn_token)json_integer_value(id), piece, is_byte ? FIRNI_PIECE_BYTE : FIRNI_PIECE_NORMAL);
        if (status != FIRN_OK) {
            return status;
        }
    }
    size_t index;
    json_t *added;
    json_array_foreach(json_object_get(in->root, "added_tokens"), index, added)
    {
        const bool special = json_is_true(json_object_get(added, "special"));
        const firn_status status =
            take_piece(in, (firn_token)json_integer_value(json_object_get(added, "id")),
                       firni_json_text(added, "content"), special ? FIRNI_PIECE_CONTROL : FIRNI_PIECE_USER_DEFINED);
        if (status != FIRN_OK) {
            return status;
        }
    }
    return fill_holes(in);
}

/* ---- ids that the file does not name ---- */

static firn_token find_piece(const firni_vocab_spec *spec, const char *text)
{
    for (firn_token token = 0; token < spec->n_tokens; token++) {
        const firni_gguf_string *piece = &spec->pieces[token];
        if (piece->len_bytes == strlen(text) && memcmp(piece->data, text, piece->len_bytes) == 0) {
            return token;
        }
    }
    return FIRN_TOKEN_NONE;
}

/* The first of the names that is a special token. */
static firn_token find_special(const firni_vocab_spec *spec, const char *const *names, size_t n_names)
{
    for (size_t i = 0; i < n_names; i++) {
        const firn_token token = find_piece(spec, names[i]);
        if (token != FIRN_TOKEN_NONE && spec->types[token] == FIRNI_PIECE_CONTROL) {
            return token;
        }
    }
    return FIRN_TOKEN_NONE;
}

/* The token that a TemplateProcessing post-processor puts before a single text, or NULL. */
static const char *prepended_token(const json_t *post)
{
    const char *type = firni_json_text(post, "type");
    if (type == NULL || strcmp(type, "TemplateProcessing") != 0) {
        return NULL;
    }
    return firni_json_text(json_object_get(json_array_get(json_object_get(post, "single"), 0), "SpecialToken"), "id");
}

/* Chat models' own end of an answer stands first among the names of EOS. */
static void read_ids(firni_json_vocab *in)
{
    static const char *const bos_names[] = {
        "<|begin_of_text|>", "<s>", "<bos>", "<|bos|>", "<|startoftext|>", "<\uff5cbegin\u2581of\u2581sentence\uff5c>"
    };
    static const char *const eos_names[] = { "<|im_end|>",
                                             "<|eot_id|>",
                                             "<|end_of_text|>",
                                             "</s>",
                                             "<eos>",
                                             "<|eos|>",
                                             "<\uff5cend\u2581of\u2581sentence\uff5c>",
                                             "<|endoftext|>" };
    firni_vocab_spec *spec = in->spec;
    const json_t *post = json_object_get(in->root, "post_processor");
    const char *prepended = prepended_token(post);
    for (size_t i = 0; prepended == NULL && i < json_array_size(json_object_get(post, "processors")); i++) {
        prepended = prepended_token(json_array_get(json_object_get(post, "processors"), i));
    }
    if (prepended != NULL) {
        spec->bos = find_piece(spec, prepended);
        spec->add_bos = spec->bos != FIRN_TOKEN_NONE;
    }
    if (spec->bos == FIRN_TOKEN_NONE) {
        spec->bos = find_special(spec, bos_names, sizeof bos_names / sizeof bos_names[0]);
    }
    spec->eos = find_special(spec, eos_names, sizeof eos_names / sizeof eos_names[0]);
    const char *unknown = firni_json_text(in->model, "unk_token");
    spec->unk = unknown == NULL ? FIRN_TOKEN_NONE : find_piece(spec, unknown);
    if (spec->unk != FIRN_TOKEN_NONE && spec->kind == FIRNI_VOCAB_SPM) {
        spec->types[spec->unk] = FIRNI_PIECE_UNKNOWN; /* byte-level files name any token: nothing is unknown to them */
    }
}

firn_status firni_vocab_from_json(const char *path, const firn_env *env, firni_vocab_spec *out, firn_error *err)
{
    *out = (firni_vocab_spec){
        .env = env, .bos = FIRN_TOKEN_NONE, .eos = FIRN_TOKEN_NONE, .unk = FIRN_TOKEN_NONE, .eot = FIRN_TOKEN_NONE
    };
    firni_json_vocab in = { .path = path, .env = env, .err = err, .spec = out };
    firn_status status = load_file(&in);
    if (status == FIRN_OK) {
        status = firni_json_read_kind(&in);
    }
    if (status == FIRN_OK) {
        status = measure(&in);
    }
    if (status == FIRN_OK) {
        status = read_pieces(&in);
    }
    if (status == FIRN_OK) {
        read_ids(&in);
        status = out->kind == FIRNI_VOCAB_SPM ? firni_json_score_merges(&in) : firni_json_read_merges(&in);
    }
    json_decref(in.root);
    if (status != FIRN_OK) {
        firni_vocab_spec_deinit(out);
    }
    return status;
}
