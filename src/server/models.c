/*
 * GET /v1/models and /v1/models/NAME: the one model that is served.
 */
#include <string.h>

#include "server/serve_state.h"

/* The API's four members, and beside them what someone choosing limits or reading a cache directory wants to know. */
static json_t *model_json(const firni_server *server)
{
    const firn_model_info *info = server->model_info;
    const uint32_t ctx = server->options.ctx_tokens_max != 0 ? server->options.ctx_tokens_max : info->n_ctx_train;
    const char *chat = firn_tokenizer_chat_family(firn_model_tokenizer(server->options.model));
    return json_pack("{s:o, s:s, s:I, s:s, s:I, s:{s:s, s:s, s:s, s:s?, s:I, s:I, s:I, s:I}}",
                     "id", firni_valid_text(server->model_name, strlen(server->model_name)), "object", "model",
                     "created", (json_int_t)server->started_s, "owned_by", "firn",
                     "max_model_len", (json_int_t)ctx, /* the name that other servers gave it */
                     "firn", "architecture", info->architecture, "weight_type", info->weight_type,
                     "kernel", info->kernel, "chat_template", chat, "n_params", (json_int_t)info->n_params,
                     "n_vocab", (json_int_t)info->n_vocab, "n_layers", (json_int_t)info->n_layers,
                     "n_ctx_train", (json_int_t)info->n_ctx_train);
}

enum MHD_Result firni_handle_models(firni_exchange *exchange)
{
    return firni_reply_json_new(exchange, 200,
                                json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(exchange->server)));
}

enum MHD_Result firni_handle_model(firni_exchange *exchange)
{
    const firni_server *server = exchange->server;
    if (strcmp(exchange->path_rest, server->model_name) != 0) {
        firni_problem problem;
        (void)firni_problem_set(&problem, 404, "model_not_found", "model",
                                "no model \"%.200s\"; this server has \"%.200s\"", exchange->path_rest,
                                server->model_name);
        return firni_reply_problem(exchange, &problem);
    }
    return firni_reply_json_new(exchange, 200, model_json(server));
}
