/*
 * Chat: recognition of a model's template and rendering of messages straight into tokens.
 *
 * The frame of each family; CAPITALS are the caller's words, <|...|> a special token where the vocabulary has it (else
 * its spelling as plain text):
 *
 *   chatml    <|im_start|>ROLE\nCONTENT<|im_end|>\n                                    each message
 *             <|im_start|>assistant\n                                                  the answer begins
 *   llama3    <|start_header_id|>ROLE<|end_header_id|>\n\nCONTENT<|eot_id|>            each message
 *             <|start_header_id|>assistant<|end_header_id|>\n\n
 *   mistral   [INST] SYSTEM\n\nUSER [/INST] ASSISTANT</s>                              each exchange
 *   gemma     <start_of_turn>user\nSYSTEM\n\nCONTENT<end_of_turn>\n                     each message; the assistant is
 *             <start_of_turn>model\n                                                  called model
 *   gemma4    <|turn>ROLE\nCONTENT<turn|>\n                                            each message, likewise
 *             <|turn>model\n
 *   harmony   <|start|>user<|message|>CONTENT<|end|>                                   each of the user's
 *             <|start|>developer<|message|># Instructions\n\nSYSTEM\n\n<|end|>           each system message
 *             <|start|>assistant<|channel|>final<|message|>CONTENT<|end|>              each answer
 *             <|start|>assistant
 *   deepseek2 SYSTEM\n\n, User: CONTENT\n\n, Assistant: CONTENT<EOS>                     each message
 *             Assistant:
 *   deepseek3 SYSTEM, <|User|>CONTENT, <|Assistant|>CONTENT<EOS>                each message; bars are U+FF5C
 *             <|Assistant|>
 *   plain     SYSTEM\n\n, User: CONTENT\n\n, Assistant: CONTENT\n\n                    each message
 *             Assistant:
 *
 * Mistral's spaces follow the template's own spelling. Its system message, and Gemma's, joins the first user message,
 * so that a conversation only ever grows at its end and its prefix can be found again. "plain" is for models without a
 * template.
 *
 * Contents never become control tokens, whatever they spell: markers are pushed as ids, contents are encoded as text.
 * Text that the frame puts next to a content is encoded together with it, as if the template had been one text.
 */
#include <assert.h>
#include <string.h>

#include "base/base_impl.h"
#include "model/tokenizer_impl.h"

/* With fullwidth bars. */
#define DEEPSEEK_USER "<\xef\xbd\x9cUser\xef\xbd\x9c>"
#define DEEPSEEK_ASSISTANT "<\xef\xbd\x9c" "Assistant\xef\xbd\x9c>"

/* ---- recognition ---- */

firni_chat_style firni_chat_recognise(const char *template_text)
{
    firni_chat_style style = { .family = FIRNI_CHAT_UNKNOWN };
    if (template_text == NULL) {
        style.family = FIRNI_CHAT_PLAIN;
        return style;
    }
    if (strstr(template_text, "<|im_start|>") != NULL) {
        style.family = FIRNI_CHAT_CHATML;
    } else if (strstr(template_text, "<start_of_turn>") != NULL) {
        style.family = FIRNI_CHAT_GEMMA;
        style.trim = true;
    } else if (strstr(template_text, "<|turn>") != NULL) {
        style.family = FIRNI_CHAT_GEMMA4;
        style.trim = true;
    } else if (strstr(template_text, "<|start|>") != NULL && strstr(template_text, "<|channel|>") != NULL) {
        style.family = FIRNI_CHAT_HARMONY;
    } else if (strstr(template_text, DEEPSEEK_USER) != NULL && strstr(template_text, DEEPSEEK_ASSISTANT) != NULL) {
        style.family = FIRNI_CHAT_DEEPSEEK3;
    } else if (strstr(template_text, "'User: '") != NULL && strstr(template_text, "'Assistant: '") != NULL &&
               strstr(template_text, "eos_token") != NULL) {
        style.family = FIRNI_CHAT_DEEPSEEK2;
    } else if (strstr(template_text, "<|start_header_id|>") != NULL && strstr(template_text, "<|eot_id|>") != NULL) {
        style.family = FIRNI_CHAT_LLAMA3;
        style.trim = strstr(template_text, "| trim") != NULL || strstr(template_text, "|trim") != NULL;
    } else if (strstr(template_text, "[INST]") != NULL && strstr(template_text, "<<SYS>>") == NULL &&
               strstr(template_text, "[SYSTEM_PROMPT]") == NULL) {
        /* Llama 2 and Mistral's later templates mark the system message in ways of their own: not this family. */
        style.family = FIRNI_CHAT_MISTRAL;
        style.space_open = strstr(template_text, "[INST] ") != NULL;
        style.space_close = strstr(template_text, " [/INST]") != NULL;
    }
    style.bos = strstr(template_text, "bos_token") != NULL || strstr(template_text, "<|begin_of_text|>") != NULL;
    return style;
}

const char *firn_tokenizer_chat_family(const firn_tokenizer *tokenizer)
{
    static const char *const names[] = { [FIRNI_CHAT_UNKNOWN] = NULL,
                                         [FIRNI_CHAT_PLAIN] = "plain",
                                         [FIRNI_CHAT_CHATML] = "chatml",
                                         [FIRNI_CHAT_LLAMA3] = "llama3",
                                         [FIRNI_CHAT_MISTRAL] = "mistral",
                                         [FIRNI_CHAT_GEMMA] = "gemma",
                                         [FIRNI_CHAT_GEMMA4] = "gemma4",
                                         [FIRNI_CHAT_HARMONY] = "harmony",
                                         [FIRNI_CHAT_DEEPSEEK2] = "deepseek2",
                                         [FIRNI_CHAT_DEEPSEEK3] = "deepseek3" };
    return names[tokenizer->chat.family];
}

/* ---- rendering ---- */

/* Text gathers until a marker comes: neighbouring texts are encoded as one. The first failure is kept. */
typedef struct renderer {
    firni_encoder encoder;
    const firn_tokenizer *tokenizer;
    char *text;
    size_t len_text, cap_text;
    firn_status status;
} renderer;

/* Encodes the text so far; what follows is a marker or the end. */
static void flush_text(renderer *out)
{
    if (out->status == FIRN_OK && out->len_text > 0) {
        out->status = firni_encoder_text(&out->encoder, out->text, out->len_text, false);
    }
    out->len_text = 0;
}

static void put_bytes(renderer *out, const char *text, size_t len_bytes)
{
    size_t n = 0;
    if (out->status == FIRN_OK && !firni_add_size(out->len_text, len_bytes, &n)) {
        out->status = firni_fail(out->encoder.err, FIRN_ERR_NO_MEMORY, "no memory for the messages");
    }
    if (out->status == FIRN_OK) {
        out->status = firni_encoder_reserve(&out->encoder, (void **)&out->text, &out->cap_text, out->len_text, n, 1);
    }
    if (out->status == FIRN_OK && len_bytes > 0) {
        memcpy(out->text + out->len_text, text, len_bytes);
        out->len_text = n;
    }
}

static void put_text(renderer *out, const char *text)
{
    put_bytes(out, text, strlen(text));
}

static void put_token(renderer *out, firn_token token)
{
    flush_text(out);
    if (out->status == FIRN_OK) {
        out->status = firni_encoder_push(&out->encoder, token);
        out->encoder.after_control = true;
    }
}

/* Returns whether the marker is a token. */
static bool put_marker(renderer *out, const char *spelling)
{
    const firn_token token = firni_special_exact(out->tokenizer, spelling);
    if (token == FIRN_TOKEN_NONE) {
        put_text(out, spelling);
        return false;
    }
    put_token(out, token);
    return true;
}

/* White space of ASCII: Jinja's trim takes Unicode's too, which contents hardly ever end in. */
static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_trimmed(renderer *out, const char *content, bool trim)
{
    size_t len = strlen(content);
    if (trim) {
        while (len > 0 && is_space(content[0])) {
            content++;
            len--;
        }
        while (len > 0 && is_space(content[len - 1])) {
            len--;
        }
    }
    put_bytes(out, content, len);
}

static void put_content(renderer *out, const char *content)
{
    put_trimmed(out, content, out->tokenizer->chat.trim);
}

static bool has_role(const firn_chat_message *message, const char *role)
{
    return strcmp(message->role, role) == 0;
}

/* In each: one more round than messages, for the answer that begins. */
static void render_chatml(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i <= n_messages; i++) {
        (void)put_marker(out, "<|im_start|>");
        put_text(out, i < n_messages ? messages[i].role : "assistant");
        put_text(out, "\n");
        if (i < n_messages) {
            put_content(out, messages[i].content);
            (void)put_marker(out, "<|im_end|>");
            put_text(out, "\n");
        }
    }
}

static void render_llama3(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i <= n_messages; i++) {
        (void)put_marker(out, "<|start_header_id|>");
        put_text(out, i < n_messages ? messages[i].role : "assistant");
        (void)put_marker(out, "<|end_header_id|>");
        put_text(out, "\n\n");
        if (i < n_messages) {
            put_content(out, messages[i].content);
            (void)put_marker(out, "<|eot_id|>");
        }
    }
}

/* The template adds the system message to the first user's as it is, and trims what the user said alone. */
static void render_gemma(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    const bool has_system = has_role(&messages[0], "system");
    for (uint32_t i = has_system; i <= n_messages; i++) {
        (void)put_marker(out, "<start_of_turn>");
        put_text(out, i < n_messages && has_role(&messages[i], "user") ? "user\n" : "model\n");
        if (i < n_messages) {
            if (i == 1 && has_system) {
                put_trimmed(out, messages[0].content, false);
                put_text(out, "\n\n");
            }
            put_content(out, messages[i].content);
            (void)put_marker(out, "<end_of_turn>");
            put_text(out, "\n");
        }
    }
}

static void render_gemma4(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i <= n_messages; i++) {
        const bool is_model = i == n_messages || has_role(&messages[i], "assistant");
        (void)put_marker(out, "<|turn>");
        put_text(out, is_model ? "model" : messages[i].role);
        put_text(out, "\n");
        if (i < n_messages) {
            put_content(out, messages[i].content);
            (void)put_marker(out, "<turn|>");
            put_text(out, "\n");
        }
    }
}

/* In this format what a client calls the system message is the developer's: "system" is what the model's maker says. */
static void render_harmony(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i < n_messages; i++) {
        const bool is_system = has_role(&messages[i], "system");
        (void)put_marker(out, "<|start|>");
        put_text(out, is_system ? "developer" : messages[i].role);
        if (has_role(&messages[i], "assistant")) {
            (void)put_marker(out, "<|channel|>");
            put_text(out, "final");
        }
        (void)put_marker(out, "<|message|>");
        put_text(out, is_system ? "# Instructions\n\n" : "");
        put_content(out, messages[i].content);
        put_text(out, is_system ? "\n\n" : "");
        (void)put_marker(out, "<|end|>");
    }
    (void)put_marker(out, "<|start|>");
    put_text(out, "assistant");
}

static void put_eos(renderer *out)
{
    if (out->tokenizer->eos != FIRN_TOKEN_NONE) {
        put_token(out, out->tokenizer->eos);
    }
}

static void render_deepseek2(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i < n_messages; i++) {
        const bool is_assistant = has_role(&messages[i], "assistant");
        put_text(out, has_role(&messages[i], "user") ? "User: " : is_assistant ? "Assistant: " : "");
        put_content(out, messages[i].content);
        if (is_assistant) {
            put_eos(out);
        } else {
            put_text(out, "\n\n");
        }
    }
    put_text(out, "Assistant:");
}

/* Nothing stands between a marker and a content. System messages have no marker: the template puts them all
 * in front. */
static void render_deepseek3(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    bool is_first = true;
    for (uint32_t i = 0; i < n_messages; i++) {
        if (has_role(&messages[i], "system")) {
            put_text(out, is_first ? "" : "\n\n");
            put_content(out, messages[i].content);
            is_first = false;
        }
    }
    for (uint32_t i = 0; i < n_messages; i++) {
        const bool is_user = has_role(&messages[i], "user");
        if (has_role(&messages[i], "system")) {
            continue;
        }
        (void)put_marker(out, is_user ? DEEPSEEK_USER : DEEPSEEK_ASSISTANT);
        put_content(out, messages[i].content);
        if (!is_user) {
            put_eos(out);
        }
    }
    (void)put_marker(out, DEEPSEEK_ASSISTANT);
}

static void render_plain(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    for (uint32_t i = 0; i < n_messages; i++) {
        put_text(out, has_role(&messages[i], "user")        ? "User: "
                      : has_role(&messages[i], "assistant") ? "Assistant: "
                                                            : "");
        put_content(out, messages[i].content);
        put_text(out, "\n\n");
    }
    put_text(out, "Assistant:");
}

/* A space that the template spells; where SentencePiece puts one after a marker by itself, it is already there. */
static void put_mistral_space(renderer *out, bool wanted, bool after_token)
{
    if (wanted && !(after_token && out->tokenizer->add_space_prefix)) {
        put_text(out, " ");
    }
}

static void render_mistral(renderer *out, const firn_chat_message *messages, uint32_t n_messages)
{
    const firni_chat_style *style = &out->tokenizer->chat;
    const bool has_system = has_role(&messages[0], "system");
    for (uint32_t i = has_system; i < n_messages; i += 2) {
        const bool open_is_token = put_marker(out, "[INST]");
        put_mistral_space(out, style->space_open, open_is_token);
        if (i == 1 && has_system) {
            put_content(out, messages[0].content);
            put_text(out, "\n\n");
        }
        put_content(out, messages[i].content);
        put_mistral_space(out, style->space_close, false);
        const bool close_is_token = put_marker(out, "[/INST]");
        if (i + 1 < n_messages) {
            put_mistral_space(out, style->space_close, close_is_token);
            put_content(out, messages[i + 1].content);
            if (out->tokenizer->eos == FIRN_TOKEN_NONE) {
                put_text(out, "</s>");
            } else {
                put_token(out, out->tokenizer->eos);
            }
        }
    }
}

/* Everything that can be wrong with the messages, before anything is encoded. */
static firn_status check_messages(const firn_tokenizer *tokenizer, const firn_chat_message *messages,
                                  uint32_t n_messages, firn_error *err)
{
    if (tokenizer->chat.family == FIRNI_CHAT_UNKNOWN) {
        return firni_fail(err, FIRN_ERR_UNSUPPORTED,
                          "the model's chat template is of no known family (chatml, llama3, mistral, gemma, "
                          "gemma4, harmony, deepseek2, deepseek3); use completions");
    }
    if (n_messages == 0) {
        return firni_fail(err, FIRN_ERR_INVALID, "a chat needs at least one message");
    }
    for (uint32_t i = 0; i < n_messages; i++) {
        if (!has_role(&messages[i], "system") && !has_role(&messages[i], "user") &&
            !has_role(&messages[i], "assistant")) {
            return firni_fail(err, FIRN_ERR_INVALID,
                              "message %u: the role \"%.40s\" is none of system, user, assistant", i, messages[i].role);
        }
    }
    if (tokenizer->chat.family != FIRNI_CHAT_MISTRAL && tokenizer->chat.family != FIRNI_CHAT_GEMMA) {
        return FIRN_OK;
    }
    const uint32_t first = has_role(&messages[0], "system");
    for (uint32_t i = first; i < n_messages; i++) {
        const char *wanted = (i - first) % 2 == 0 ? "user" : "assistant";
        if (!has_role(&messages[i], wanted)) {
            return firni_fail(err, FIRN_ERR_INVALID,
                              "message %u: this model's template wants the role \"%s\" here, not \"%s\"", i, wanted,
                              messages[i].role);
        }
    }
    /* Gemma's answer may begin after anything but nothing. */
    if ((n_messages - first) % 2 == 0 && (tokenizer->chat.family == FIRNI_CHAT_MISTRAL || n_messages == first)) {
        return firni_fail(err, FIRN_ERR_INVALID, "this model's template wants the last message to be the user's");
    }
    return FIRN_OK;
}

firn_status firn_tokenizer_chat(const firn_tokenizer *tokenizer, const firn_chat_message *messages, uint32_t n_messages,
                                firn_token **out, uint32_t *n_tokens, firn_error *err)
{
    *out = NULL;
    *n_tokens = 0;
    const firn_status valid = check_messages(tokenizer, messages, n_messages, err);
    if (valid != FIRN_OK) {
        return valid;
    }
    renderer rendered = { .tokenizer = tokenizer };
    firni_encoder_init(&rendered.encoder, tokenizer, err);
    if ((tokenizer->add_bos || tokenizer->chat.bos) && tokenizer->bos != FIRN_TOKEN_NONE) {
        put_token(&rendered, tokenizer->bos);
    }
    switch (tokenizer->chat.family) {
    case FIRNI_CHAT_CHATML: render_chatml(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_LLAMA3: render_llama3(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_MISTRAL: render_mistral(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_GEMMA: render_gemma(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_GEMMA4: render_gemma4(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_HARMONY: render_harmony(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_DEEPSEEK2: render_deepseek2(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_DEEPSEEK3: render_deepseek3(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_PLAIN: render_plain(&rendered, messages, n_messages); break;
    case FIRNI_CHAT_UNKNOWN: assert(false); break;
    }
    flush_text(&rendered);
    if (rendered.status == FIRN_OK) {
        rendered.status = firni_encoder_take(&rendered.encoder, out, n_tokens);
    }
    firni_free(rendered.encoder.env, rendered.text);
    firni_encoder_deinit(&rendered.encoder);
    return rendered.status;
}
