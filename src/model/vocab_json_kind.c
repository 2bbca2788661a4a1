/*
 * Which vocabulary a tokenizer.json's pipeline describes: byte-level BPE with one of the known splits, or the
 * SentencePiece kind with U+2581 for spaces and byte fallback.
 *
 *   part            byte-level                                   SentencePiece kind
 *   normalizer      none, or NFC (not applied)                   Prepend U+2581, Replace " " by U+2581
 *   pre_tokenizer   Split (a known pattern)..., ByteLevel        none, Metaspace that does not split, or a Split at
 *                                                                spaces, of which the normalizer has left none
 *   model           BPE; ignore_merges as the split has it       BPE with byte_fallback
 *
 * Anything else is refused: a part that is passed over would give other ids for some texts, and nobody would see it.
 */
#include <string.h>

#include "base/base_impl.h"
#include "model/vocab_json_impl.h"

#define SPACE_MARK "\u2581"

/* ---- parts of a pipeline ----
 *
 * Accessors of jansson take NULL and values of another type, and then find nothing; so do these. */

static bool has_type(const json_t *part, const char *type)
{
    const char *own = firni_json_text(part, "type");
    return own != NULL && strcmp(own, type) == 0;
}

static bool flag_of(const json_t *part, const char *name, bool fallback)
{
    const json_t *value = json_object_get(part, name);
    return value == NULL || json_is_null(value) ? fallback : json_is_true(value);
}

static firn_status unsupported(firni_json_vocab *in, const char *what, const json_t *part)
{
    const char *type = firni_json_text(part, "type");
    return firni_fail(in->err, FIRN_ERR_UNSUPPORTED, "%s: %s %s is not supported", in->path, what,
                      type == NULL ? "of an unnamed type" : type);
}

/* A part may be absent (0 parts), single, or a "Sequence" whose parts stand under `list_name`. */
static size_t n_parts(const json_t *part, const char *list_name)
{
    if (!json_is_object(part)) {
        return 0;
    }
    return has_type(part, "Sequence") ? json_array_size(json_object_get(part, list_name)) : 1;
}

static const json_t *part_at(const json_t *part, const char *list_name, size_t index)
{
    return has_type(part, "Sequence") ? json_array_get(json_object_get(part, list_name), index) : part;
}

/* The regular expression of a "Split" that cuts at both ends of each match, or NULL. */
static const char *split_regex(const json_t *part)
{
    const char *regex = firni_json_text(json_object_get(part, "pattern"), "Regex");
    const char *behaviour = firni_json_text(part, "behavior");
    const bool inverted = flag_of(part, "invert", false);
    if (!has_type(part, "Split") || regex == NULL || behaviour == NULL) {
        return NULL;
    }
    /* "Removed" and inverted keeps the matches and drops the rest; the known patterns leave no rest. */
    const bool isolates =
        (strcmp(behaviour, "Isolated") == 0 && !inverted) || (strcmp(behaviour, "Removed") == 0 && inverted);
    return isolates ? regex : NULL;
}

/* ---- the two kinds ---- */

/* "Split"s in order, then the "ByteLevel" that spells the words in the alphabet and may split by GPT-2's pattern. */
static firn_status read_byte_level(firni_json_vocab *in, const json_t *pre)
{
    const json_t *normalizer = json_object_get(in->root, "normalizer");
    for (size_t i = 0; i < n_parts(normalizer, "normalizers"); i++) {
        const json_t *part = part_at(normalizer, "normalizers", i);
        if (!has_type(part, "NFC")) {
            return unsupported(in, "normalizer", part);
        }
    }
    const char *patterns[FIRNI_SPLIT_PATTERNS_MAX];
    uint32_t n_patterns = 0;
    for (size_t i = 0; i < n_parts(pre, "pretokenizers"); i++) {
        const json_t *part = part_at(pre, "pretokenizers", i);
        const char *regex = split_regex(part);
        if (has_type(part, "ByteLevel") && !flag_of(part, "add_prefix_space", true)) {
            regex = flag_of(part, "use_regex", true) ? firni_split_find("gpt-2")->patterns[0] : "";
        }
        if (regex == NULL || (regex[0] != '\0' && n_patterns == FIRNI_SPLIT_PATTERNS_MAX)) {
            return unsupported(in, "pre_tokenizer", part);
        }
        if (regex[0] != '\0') {
            patterns[n_patterns++] = regex;
        }
    }
    const firni_split *split = firni_split_recognise(patterns, n_patterns, flag_of(in->model, "ignore_merges", false));
    if (split == NULL) {
        char known[256];
        firni_split_names(known, sizeof known);
        return firni_fail(in->err, FIRN_ERR_UNSUPPORTED,
                          "%s: the pre_tokenizer's pattern is none of the known splits (%s)", in->path, known);
    }
    in->spec->kind = FIRNI_VOCAB_BPE;
    memcpy(in->spec->pre, split->name, strlen(split->name) + 1);
    return FIRN_OK;
}

static bool is_space_replacement(const json_t *part)
{
    const char *from = firni_json_text(json_object_get(part, "pattern"), "String");
    const char *to = firni_json_text(part, "content");
    return has_type(part, "Replace") && from != NULL && to != NULL && strcmp(from, " ") == 0 &&
           strcmp(to, SPACE_MARK) == 0;
}

/* As in Gemma's files: it finds nothing where spaces have been marked before. */
static bool is_split_at_spaces(const json_t *part)
{
    const char *pattern = firni_json_text(json_object_get(part, "pattern"), "String");
    return has_type(part, "Split") && pattern != NULL && strcmp(pattern, " ") == 0;
}

/* Spaces are marked, and one is put in front, either by normalisers (older files) or by a Metaspace that does not
 * split. */
static firn_status read_sentencepiece(firni_json_vocab *in, const json_t *pre)
{
    const json_t *normalizer = json_object_get(in->root, "normalizer");
    bool marks_spaces = false;
    bool prefix = false;
    for (size_t i = 0; i < n_parts(normalizer, "normalizers"); i++) {
        const json_t *part = part_at(normalizer, "normalizers", i);
        const char *prepended = firni_json_text(part, "prepend");
        if (has_type(part, "Prepend") && prepended != NULL && strcmp(prepended, SPACE_MARK) == 0) {
            prefix = true;
        } else if (is_space_replacement(part)) {
            marks_spaces = true;
        } else {
            return unsupported(in, "normalizer", part);
        }
    }
    if (has_type(pre, "Metaspace")) {
        const char *scheme = firni_json_text(pre, "prepend_scheme");
        if (flag_of(pre, "split", true)) {
            return unsupported(in, "pre_tokenizer that splits at spaces,", pre);
        }
        prefix = scheme == NULL ? flag_of(pre, "add_prefix_space", true) : strcmp(scheme, "never") != 0;
        marks_spaces = true;
    } else if (json_is_object(pre) && !(marks_spaces && is_split_at_spaces(pre))) {
        return unsupported(in, "pre_tokenizer", pre);
    }
    if (!marks_spaces || !flag_of(in->model, "byte_fallback", false)) {
        return firni_fail(in->err, FIRN_ERR_UNSUPPORTED,
                          "%s: neither byte-level nor of the SentencePiece kind with byte_fallback", in->path);
    }
    in->spec->kind = FIRNI_VOCAB_SPM;
    in->spec->add_space_prefix = prefix;
    return FIRN_OK;
}

firn_status firni_json_read_kind(firni_json_vocab *in)
{
    /* Files of before 2020 have no type; of the kinds only BPE has merges. */
    const char *type = firni_json_text(in->model, "type");
    if ((type != NULL && strcmp(type, "BPE") != 0) || !json_is_array(in->merges)) {
        return firni_fail(in->err, FIRN_ERR_UNSUPPORTED, "%s: model type \"%s\" is not supported (known: BPE)",
                          in->path, type == NULL ? "" : type);
    }
    const json_t *pre = json_object_get(in->root, "pre_tokenizer");
    for (size_t i = 0; i < n_parts(pre, "pretokenizers"); i++) {
        if (has_type(part_at(pre, "pretokenizers", i), "ByteLevel")) {
            return read_byte_level(in, pre);
        }
    }
    return read_sentencepiece(in, pre);
}
