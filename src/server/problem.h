/*
 * problem: what is wrong with a request, in the form in which clients get it.
 *
 *      {"error":{"message":"...","type":"invalid_request_error","param":"temperature","code":"out_of_range"}}
 *
 * The type follows from the HTTP status, so that it is not chosen twice.
 */
#ifndef FIRNI_PROBLEM_H
#define FIRNI_PROBLEM_H

#include <jansson.h>
#include <stdbool.h>

#include "base/compiler.h"
#include "firn/status.h"

typedef struct firni_problem {
    unsigned http_status;       /* 0: no problem */
    const char *code;           /* static text, or NULL */
    char param[64];             /* the field that is wrong; "" when it is none in particular */
    char message[512];
    unsigned retry_after_s;     /* 0: no Retry-After header */
} firni_problem;

/* Fills *problem and returns false, so that a failing check is one line. param may be NULL. */
bool firni_problem_set(firni_problem *problem, unsigned http_status, const char *code, const char *param,
                       const char *format, ...) FIRNI_PRINTF(5, 6);
/* A wrong field: status 400. */
bool firni_problem_field(firni_problem *problem, const char *code, const char *param, const char *format, ...)
    FIRNI_PRINTF(4, 5);
/* What a refused or failed generation means to a client. prompt_param names the field that held the prompt. */
bool firni_problem_from_error(firni_problem *problem, const firn_error *err, const char *prompt_param);

const char *firni_problem_type(unsigned http_status);
/* The object above; NULL without memory. */
json_t *firni_problem_json(const firni_problem *problem);

#endif
