/*
 * chat: how a model's chat template frames messages.
 *
 * Templates are Jinja programs. Firn does not run them: it recognises the family by its markers and renders the frame
 * of that family (chat.c says what each looks like). What a template does beyond the frame, such as a default system
 * message, a date or tool descriptions, is not rendered; a client that wants it sends it as messages.
 */
#ifndef FIRNI_CHAT_IMPL_H
#define FIRNI_CHAT_IMPL_H

#include "firn/tokenizer.h"

typedef enum firni_chat_family {
    FIRNI_CHAT_UNKNOWN, /* there is a template, and it is none of these */
    FIRNI_CHAT_PLAIN,
    FIRNI_CHAT_CHATML,
    FIRNI_CHAT_LLAMA3,
    FIRNI_CHAT_MISTRAL,
    FIRNI_CHAT_GEMMA,
    FIRNI_CHAT_GEMMA4,
    FIRNI_CHAT_HARMONY,
    FIRNI_CHAT_DEEPSEEK2,
    FIRNI_CHAT_DEEPSEEK3
} firni_chat_family;

typedef struct firni_chat_style {
    firni_chat_family family;
    bool bos;         /* the template begins with the model's BOS */
    bool trim;        /* Llama 3, Gemma: contents lose white space at both ends */
    bool space_open;  /* Mistral: a space after [INST] */
    bool space_close; /* Mistral: a space before [/INST] */
} firni_chat_style;

/* From the template's text, NULL when the model has none. */
firni_chat_style firni_chat_recognise(const char *template_text);

#endif
