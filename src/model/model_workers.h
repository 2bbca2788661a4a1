/*
 * The threads of a model's forwards, for what runs between two of them on the same thread.
 */
#ifndef FIRNI_MODEL_WORKERS_H
#define FIRNI_MODEL_WORKERS_H

#include "firn/model.h"

firn_workers *firni_model_workers(const firn_model *model); /* borrowed; may be NULL */

#endif
