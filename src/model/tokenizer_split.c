/*
 * Cutting text into words before byte-level merging: the table of known splits, and their patterns at work (PCRE2).
 *
 * The patterns are written as the models' own tokenizer.json files write them, so that a file's pattern is recognised
 * by comparison. There, \s means the characters with the Unicode property White_Space; PCRE2's own \s has one more
 * (U+180E), so each \s and \S is rewritten as an explicit class before compilation. Letters, numbers and case folding
 * are PCRE2's (UTF and UCP).
 *
 * A pattern cuts a text at both ends of each match; what lies between matches is a word too. Where a split has several
 * patterns each cuts the words that the one before has left.
 *
 * Which files use which split: the names that tokenizer.ggml.pre carries in GGUF files, as the converters of the
 * llama.cpp project write them. "default", and no name at all, come from files that are older than the key; they are
 * read as GPT-2, which most of them are.
 */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* Parts that several patterns share. */
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

static const firni_split splits[] = {
    { .name = "gpt-2",
      .aliases = "default|phi-2|mpt|olmo|jais|gigachat|mellum|modern-bert|exaone4|trillion|granite-docling|a.x-4.0",
      .patterns = { "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" } },
    { .name = "llama-bpe",
      .aliases = "llama3|llama-v3|falcon3|falcon-h1|pixtral|midm-2.0|lfm2",
      .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES },
      .ignore_merges = true,
      .adds_bos = true },
    { .name = "dbrx", /* as Llama 3, but words are always merged */
      .aliases = "smaug-bpe|glm4|chatglm-bpe",
      .patterns = { CONTRACTIONS
                    "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    { .name = "qwen2",
      .aliases = "deepseek-r1-qwen|stablelm2|megrez|kormo|hunyuan|solar-open|grok-2",
      .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    { .name = "qwen35",
      .aliases = "",
      .patterns = { CONTRACTIONS
                    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES } },
    { .name = "gpt-4o",
      .aliases = "llama4|kanana2",
      .patterns = { "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER
                    "*" CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES } },
    { .name = "deepseek-v3",
      .aliases = "",
      /* This file has the control characters themselves. */
      .patterns = { "\\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
                    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                    " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+" } },
};
#define N_SPLITS (sizeof splits / sizeof splits[0])

/* Unicode's White_Space, as the inside of a class. */
#define WHITE_SPACE "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

#define PATTERN_BYTES_MAX 4096 /* of a rewritten pattern; the longest needs a third of it */

/* Whether the name is one of a "|"-separated list. */
static bool is_listed(const char *list, const char *name)
{
    const size_t len = strchr(name, '|') == NULL ? strlen(name) : 0;
    for (const char *at = list; len > 0 && (at = strstr(at, name)) != NULL; at += len) {
        if ((at == list || at[-1] == '|') && (at[len] == '|' || at[len] == '\0')) {
            return true;
        }
    }
    return false;
}

const firni_split *firni_split_find(const char *name)
{
    for (size_t i = 0; i < N_SPLITS; i++) {
        if (strcmp(splits[i].name, name) == 0 || is_listed(splits[i].aliases, name)) {
            return &splits[i];
        }
    }
    return NULL;
}

const firni_split *firni_split_recognise(const char *const *patterns, uint32_t n_patterns, bool ignore_merges)
{
    for (size_t i = 0; i < N_SPLITS; i++) {
        uint32_t n = 0;
        while (n < FIRNI_SPLIT_PATTERNS_MAX && splits[i].patterns[n] != NULL && n < n_patterns &&
               strcmp(splits[i].patterns[n], patterns[n]) == 0) {
            n++;
        }
        const bool is_whole = n == n_patterns && (n == FIRNI_SPLIT_PATTERNS_MAX || splits[i].patterns[n] == NULL);
        if (is_whole && splits[i].ignore_merges == ignore_merges) {
            return &splits[i];
        }
    }
    return NULL;
}

void firni_split_names(char *out, size_t out_bytes)
{
    size_t n = 0;
    out[0] = '\0';
    for (size_t i = 0; i < N_SPLITS; i++) {
        const int written = snprintf(out + n, out_bytes - n, "%s%s", i == 0 ? "" : ", ", splits[i].name);
        n += (size_t)written;
        assert(n < out_bytes);
    }
}

/* ---- compilation ---- */

/* PCRE2's memory comes from the env too; what is compiled is shared by threads and only read. */
static void *pcre_alloc(size_t n_bytes, void *env)
{
    return firni_calloc(env, n_bytes, 1);
}

static void pcre_release(void *ptr, void *env)
{
    firni_free(env, ptr);
}

/* Writes the pattern with \s and \S spelled out. */
static void spell_white_space(const char *pattern, char *out, size_t out_bytes)
{
    size_t n = 0;
    bool in_class = false;
    for (const char *at = pattern; *at != '\0'; at++) {
        char plain[3] = { *at, '\0', '\0' };
        const char *part = plain;
        if (*at == '\\') {
            assert(at[1] != '\0');
            at++;
            plain[1] = *at;
            assert(*at != 'S' || !in_class); /* no pattern has it, and it could not be spelled out there */
            part = *at == 's'   ? (in_class ? WHITE_SPACE : "[" WHITE_SPACE "]")
                   : *at == 'S' ? "[^" WHITE_SPACE "]"
                                : plain;
        } else if (*at == '[') {
            in_class = true;
        } else if (*at == ']') {
            in_class = false;
        }
        const size_t len = strlen(part);
        assert(n + len < out_bytes);
        memcpy(out + n, part, len);
        n += len;
    }
    out[n] = '\0';
}

firn_status firni_split_compile(firn_tokenizer *tokenizer, const firni_split *split, firn_error *err)
{
    /* PCRE2 hands the pointer back; the env itself is never written. */
    void *env = (void *)(uintptr_t)tokenizer->env;
    tokenizer->split = split;
    tokenizer->pcre_memory = pcre2_general_context_create(pcre_alloc, pcre_release, env);
    if (tokenizer->pcre_memory == NULL) {
        return firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the word splitter");
    }
    tokenizer->pcre_limits = pcre2_match_context_create(tokenizer->pcre_memory);
    pcre2_compile_context *compiling = pcre2_compile_context_create(tokenizer->pcre_memory);
    firn_status status = FIRN_OK;
    if (tokenizer->pcre_limits == NULL || compiling == NULL) {
        status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the word splitter");
    } else {
        /* The patterns take linear time; a limit would only make long runs of spaces fail. */
        (void)pcre2_set_match_limit(tokenizer->pcre_limits, UINT32_MAX);
    }
    for (uint32_t i = 0; status == FIRN_OK && i < FIRNI_SPLIT_PATTERNS_MAX && split->patterns[i] != NULL; i++) {
        char pattern[PATTERN_BYTES_MAX];
        spell_white_space(split->patterns[i], pattern, sizeof pattern);
        int code = 0;
        PCRE2_SIZE offset = 0;
        tokenizer->patterns[i] =
            pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP, &code, &offset, compiling);
        if (tokenizer->patterns[i] == NULL) {
            /* A constant pattern compiles, given memory: the tests compile them all. */
            status = firni_fail(err, FIRN_ERR_NO_MEMORY, "no memory for the word splitter (PCRE2 error %d at %zu)",
                                code, (size_t)offset);
        } else {
            /* Where there is no JIT compiler, matching is interpreted. */
            (void)pcre2_jit_compile(tokenizer->patterns[i], PCRE2_JIT_COMPLETE);
        }
    }
    pcre2_compile_context_free(compiling);
    return status;
}

/* ---- matching ---- */

/* Appends to next_ends, whose length is *n_ends. */
static firn_status add_end(firni_encoder *encoder, size_t *n_ends, uint32_t end)
{
    const firn_status status = firni_encoder_reserve(encoder, (void **)&encoder->next_ends, &encoder->cap_next_ends,
                                                     *n_ends, *n_ends + 1, sizeof *encoder->next_ends);
    if (status == FIRN_OK) {
        encoder->next_ends[(*n_ends)++] = end;
    }
    return status;
}

/* Cuts the word [start, end) of the text and appends the ends of the parts to next_ends. */
static firn_status cut_word(firni_encoder *encoder, const pcre2_code *pattern, const char *text, uint32_t start,
                            uint32_t end, size_t *n_ends)
{
    const PCRE2_SPTR subject = (PCRE2_SPTR)text + start;
    const PCRE2_SIZE len_bytes = end - start;
    PCRE2_SIZE done = 0;
    while (done < len_bytes) {
        /* The caller has checked the UTF-8. */
        const int found = pcre2_match(pattern, subject, len_bytes, done, PCRE2_NO_UTF_CHECK, encoder->match,
                                      encoder->tokenizer->pcre_limits);
        if (found == PCRE2_ERROR_NOMATCH) {
            break;
        }
        if (found < 0) {
            return firni_fail(encoder->err, found == PCRE2_ERROR_NOMEMORY ? FIRN_ERR_NO_MEMORY : FIRN_ERR_UNSUPPORTED,
                              "the word splitter gave up on a text of %zu bytes (PCRE2 error %d)", (size_t)len_bytes,
                              found);
        }
        const PCRE2_SIZE *match = pcre2_get_ovector_pointer(encoder->match);
        assert(match[1] > match[0] && match[0] >= done);
        firn_status status = FIRN_OK;
        if (match[0] > done) {
            /* No match began here: what the pattern leaves out is a word. */
            status = add_end(encoder, n_ends, start + (uint32_t)match[0]);
        }
        if (status == FIRN_OK) {
            status = add_end(encoder, n_ends, start + (uint32_t)match[1]);
        }
        if (status != FIRN_OK) {
            return status;
        }
        done = match[1];
    }
    return done < len_bytes ? add_end(encoder, n_ends, end) : FIRN_OK;
}

firn_status firni_split_text(firni_encoder *encoder, const char *text, uint32_t len_bytes)
{
    const firn_tokenizer *tokenizer = encoder->tokenizer;
    if (encoder->match == NULL) {
        encoder->match = pcre2_match_data_create(1, tokenizer->pcre_memory);
        if (encoder->match == NULL) {
            return firni_fail(encoder->err, FIRN_ERR_NO_MEMORY, "no memory for the word splitter");
        }
    }
    firn_status status =
        firni_encoder_reserve(encoder, (void **)&encoder->ends, &encoder->cap_ends, 0, 1, sizeof *encoder->ends);
    if (status != FIRN_OK) {
        return status;
    }
    encoder->ends[0] = len_bytes;
    encoder->n_ends = 1;
    for (uint32_t p = 0; p < FIRNI_SPLIT_PATTERNS_MAX && tokenizer->patterns[p] != NULL; p++) {
        size_t n_next = 0;
        uint32_t start = 0;
        for (size_t i = 0; status == FIRN_OK && i < encoder->n_ends; i++) {
            status = cut_word(encoder, tokenizer->patterns[p], text, start, encoder->ends[i], &n_next);
            start = encoder->ends[i];
        }
        if (status != FIRN_OK) {
            return status;
        }
        /* The result becomes the input of the next pattern; both arrays keep their memory for the next text. */
        uint32_t *const cut = encoder->next_ends;
        const size_t cap_cut = encoder->cap_next_ends;
        encoder->next_ends = encoder->ends;
        encoder->cap_next_ends = encoder->cap_ends;
        encoder->ends = cut;
        encoder->cap_ends = cap_cut;
        encoder->n_ends = n_next;
    }
    return FIRN_OK;
}
