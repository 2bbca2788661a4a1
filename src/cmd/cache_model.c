/*
 * Opening and closing; see cache_model.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"
#include "cmd/cache_model.h"
#include "cmd/ns_text.h"

static int encode(firni_cache_model *view)
{
    size_t len;
    char *text = firni_cmd_read_file(view->self, view->prompt_path, FIRNI_TEXT_BYTES_MAX, &len);
    if (text == NULL) {
        return 1;
    }
    firn_error err = { 0 };
    const firn_encode_options options = { .add_bos = true };
    const firn_status status = firn_tokenizer_encode(firn_model_tokenizer(view->stack->model), text, len, &options,
                                                     &view->tokens, &view->n_tokens, &err);
    free(text);
    if (status == FIRN_OK && view->n_tokens == 0) {
        return firni_cmd_fail(view->self, "%s: an empty prompt", view->prompt_path);
    }
    return status == FIRN_OK ? 0 : firni_cmd_fail(view->self, "%s: %s", view->prompt_path, err.message);
}

int firni_cache_model_open(firni_cache_model *view, bool writes)
{
    firn_error err = { 0 };
    view->options.no_engine = true;
    view->options.disk_read_only = !writes;
    const int named = firni_ns_flag(view->self, &view->ns, view->stored_ns);
    if (named != 0) {
        return named;
    }
    if (firni_stack_open(&view->options, view->env, &view->stack, &err) != FIRN_OK) {
        return firni_cmd_fail(view->self, "%s", err.message);
    }
    if (view->stack->tier == NULL) {
        return firni_cmd_fail(view->self, "there is no cache to look into: %s", view->stack->disk_message);
    }
    return view->prompt_path != NULL ? encode(view) : 0;
}

void firni_cache_model_close(firni_cache_model *view)
{
    firni_stack_close(view->stack, 0, NULL);
    free(view->tokens);
    view->stack = NULL;
    view->tokens = NULL;
}
