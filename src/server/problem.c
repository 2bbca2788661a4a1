/*
 * Error objects, and what the engine's refusals mean over HTTP. Owns the mapping from firn_status to HTTP status; not
 * the sending.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "server/json_text.h"
#include "server/problem.h"

/* Messages are cut, never refused: they quote what clients sent. */
static void fill(firni_problem *problem, unsigned http_status, const char *code, const char *param, const char *format,
                 va_list args)
{
    *problem = (firni_problem){ .http_status = http_status, .code = code };
    (void)snprintf(problem->param, sizeof problem->param, "%s", param != NULL ? param : "");
    (void)vsnprintf(problem->message, sizeof problem->message, format, args);
}

bool firni_problem_set(firni_problem *problem, unsigned http_status, const char *code, const char *param,
                       const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(problem, http_status, code, param, format, args);
    va_end(args);
    return false;
}

bool firni_problem_field(firni_problem *problem, const char *code, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fill(problem, 400, code, param, format, args);
    va_end(args);
    return false;
}

bool firni_problem_from_error(firni_problem *problem, const firn_error *err, const char *prompt_param)
{
    switch (err->status) {
    /* The engine names the field in its message; which of the request's it came from is not known here. */
    case FIRN_ERR_INVALID: return firni_problem_set(problem, 400, "invalid_value", NULL, "%s", err->message);
    case FIRN_ERR_UNSUPPORTED:
        return firni_problem_set(problem, 400, "unsupported", prompt_param, "%s", err->message);
    case FIRN_ERR_CAPACITY:
        return firni_problem_set(problem, 400, "context_length_exceeded", prompt_param, "%s", err->message);
    case FIRN_ERR_BUSY:
        (void)firni_problem_set(problem, 429, "queue_full", NULL, "%s", err->message);
        problem->retry_after_s = 1;
        return false;
    case FIRN_ERR_STATE:
    case FIRN_ERR_CANCELLED:
        return firni_problem_set(problem, 503, "stopping", NULL, "the server is stopping");
    case FIRN_ERR_NO_MEMORY:
        return firni_problem_set(problem, 503, "no_memory", NULL, "%s",
                                 err->message[0] != '\0' ? err->message : "out of memory");
    case FIRN_ERR_DEADLINE:
        return firni_problem_set(problem, 504, "request_timeout", NULL, "%s", err->message);
    default:
        return firni_problem_set(problem, 500, firn_status_name(err->status), NULL, "%s",
                                 err->message[0] != '\0' ? err->message : "the request failed");
    }
}

const char *firni_problem_type(unsigned http_status)
{
    switch (http_status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    default: return http_status >= 500 ? "server_error" : "invalid_request_error";
    }
}

json_t *firni_problem_json(const firni_problem *problem)
{
    /* Messages may quote a client's bytes, and may have been cut inside a character. */
    return json_pack("{s:{s:o, s:s, s:o, s:s?}}", "error",
                     "message", firni_valid_text(problem->message, strlen(problem->message)),
                     "type", firni_problem_type(problem->http_status),
                     "param", problem->param[0] != '\0' ? firni_valid_text(problem->param, strlen(problem->param))
                                                        : json_null(),
                     "code", problem->code);
}
