/*
 * Everything of libfirn: include this, or only the header of the concept you need.
 *
 *   status.h    error codes, reasons          cache.h     one layer's state for B rows
 *   env.h       allocator, clock, files, log  identity.h  what state depends on
 *   array.h     dtypes, blocks, pool          tier.h      where state goes when RAM lets go of it
 *   workers.h   a team of threads             disk.h      the SSD tier
 *                                             stack.h     a tier over a tier
 *                                             prefix.h    the RAM tier
 *
 * Models, tokenizers and the engine are libfirnlm: model.h, tokenizer.h, sampling.h, engine.h.
 */
#ifndef FIRN_H
#define FIRN_H

#include "firn/array.h"
#include "firn/cache.h"
#include "firn/disk.h"
#include "firn/env.h"
#include "firn/identity.h"
#include "firn/keep.h"
#include "firn/prefix.h"
#include "firn/session_file.h"
#include "firn/stack.h"
#include "firn/status.h"
#include "firn/tier.h"
#include "firn/workers.h"

#endif
