/*
 * lanes: the vector of 16 floats that the algorithms of all instruction sets are written over.
 *
 * A variant's file includes its own lanes_<isa>.h first, which defines the types and operations listed here, and then
 * the algorithm headers (tile_impl.h, matmul_impl.h, attend_impl.h, vector_impl.h). So there is one text of each
 * algorithm, and what differs between instruction sets is one page of short functions each. 16 is the width of the
 * widest register; narrower sets use two or four. Since no operation mixes lanes except the folds, whose order is
 * fixed, all of them give the same bits.
 *
 *   types    lanes (16 f32), lanes_int (16 i32), lanes_weights (16 pairs of i16), lanes_acts (one pair of i16),
 *            lanes_table (16 bytes)
 *   limits   LANES_ACCUMULATORS, LANES_DOT_ACCUMULATORS: vectors of 16 that one register tile may hold
 *
 *   lanes_set(x)                      all lanes x
 *   lanes_load(p), lanes_store(p, a)  16 floats, any alignment
 *   lanes_load_f16(p), lanes_load_bf16(p), lanes_store_f16(p, a)
 *   lanes_add, _sub, _mul, _div(a, b) one rounding each
 *   lanes_fma(a, b, c)                a * b + c with one rounding
 *   lanes_larger(a, b)                a > b ? a : b
 *   lanes_select_less(a, b, yes, no)  a < b ? yes : no; false when either is NaN
 *   lanes_power(shifted)              (bits << 23) + bits of 1.0f: 2^n from n + FIRNI_EXP_MAGIC
 *   lanes_fold_sum, _fold_larger(a)   8 + 8, 4 + 4, 2 + 2, 1 + 1
 *   lanes_int_zero(), lanes_int_set(n), lanes_int_to_float(a)
 *   lanes_load_u8(p), lanes_load_i8(p) 16 bytes as floats
 *   lanes_load_power(p)               16 bytes e: 2^(e - 127), infinity for 255 (firni_power_of_exponent)
 *   lanes_load_weights(p)             32 signed bytes: pairs of 16 rows
 *   lanes_load_words(p)               32 u16: pairs of 16 rows
 *   lanes_lower(w, n)                 each u16 less n, as i16
 *   lanes_put_weights(p, w), lanes_get_weights(p)   32 i16, in an order of the instruction set's own
 *   lanes_field(w, shift, bits)       the `bits` bits of each u16 from bit `shift` on
 *   lanes_flip(w)                     the highest bit of each byte inverted: i8 codes plus 128, as u8
 *   lanes_collect(rest, w, n)         each u16 of rest down by n bits, the upper n bits of w on top
 *   lanes_above(low, high, shift)     low | high << shift of each u16
 *   lanes_load_table(p), lanes_lookup(w, table)   table[u16] of each u16 < 16; table[0] is 0
 *   lanes_lookup_32(w, low, high)     the same of u16 < 32, the upper half in `high`
 *   lanes_load_acts(p)                two i16
 *   lanes_dot(sum, w, x)              sum + w[0] * x[0] + w[1] * x[1] in i32, exact
 *   lanes_dot_first(w, x)             the same with a sum of zero
 *   lanes_magnitude_bits(a, b)        the largest bit pattern of |a| and |b|, as unsigned integers
 *   lanes_store_i16(p, a)             round to nearest even; the values fit
 *   lanes_sum_i16(p)                  of 16, in i32
 */
#ifndef FIRNI_LANES_IMPL_H
#define FIRNI_LANES_IMPL_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "firn/array.h"
#include "kernel/numbers.h"

enum { LANES = 16 };

/* Loops of a constant few turns over arrays of vectors: only when unrolled do the arrays become registers. GCC keeps
 * more of them there when a longer inner loop of one multiplication is unrolled a little too, clang when it is not; a
 * loop that holds several is left as it is by both. ALL is for the few loops whose turns are worth their code. */
#if defined(__clang__)
#define LANES_UNROLL _Pragma("clang loop unroll(full)")
#define LANES_UNROLL_LONG _Pragma("clang loop unroll(disable)")
#define LANES_UNROLL_ALL _Pragma("clang loop unroll(full)")
#define LANES_UNROLL_NOT _Pragma("clang loop unroll(disable)")
#else
#define LANES_UNROLL _Pragma("GCC unroll 8")
#define LANES_UNROLL_LONG _Pragma("GCC unroll 4")
#define LANES_UNROLL_ALL _Pragma("GCC unroll 16")
#define LANES_UNROLL_NOT _Pragma("GCC unroll 1")
#endif

/* The last n < 16 elements of an array; the other lanes are zero, and not stored. */
FIRNI_INLINE lanes lanes_load_n(const float *p, size_t n)
{
    float buffer[LANES] = {0};
    memcpy(buffer, p, n * sizeof(buffer[0]));
    return lanes_load(buffer);
}

FIRNI_INLINE void lanes_store_n(float *p, lanes a, size_t n)
{
    float buffer[LANES];
    lanes_store(buffer, a);
    memcpy(p, buffer, n * sizeof(buffer[0]));
}

/* 16 elements of a plane or panel; `dtype` is a constant where this is inlined. */
FIRNI_INLINE lanes lanes_load_as(firn_dtype dtype, const uint8_t *p)
{
    const void *at = p;
    switch (dtype) {
    case FIRN_DTYPE_F16: return lanes_load_f16(at);
    case FIRN_DTYPE_BF16: return lanes_load_bf16(at);
    default: return lanes_load(at);
    }
}

FIRNI_INLINE lanes lanes_exp(lanes x)
{
    const lanes magic = lanes_set(FIRNI_EXP_MAGIC);
    const lanes one = lanes_set(1.0f);
    const lanes shifted = lanes_fma(x, lanes_set(FIRNI_EXP_LOG2E), magic);
    const lanes n = lanes_sub(shifted, magic);
    lanes r = lanes_fma(n, lanes_set(-FIRNI_EXP_LN2_HIGH), x);
    r = lanes_fma(n, lanes_set(-FIRNI_EXP_LN2_LOW), r);
    lanes p = lanes_fma(lanes_set(FIRNI_EXP_C6), r, lanes_set(FIRNI_EXP_C5));
    p = lanes_fma(p, r, lanes_set(FIRNI_EXP_C4));
    p = lanes_fma(p, r, lanes_set(FIRNI_EXP_C3));
    p = lanes_fma(p, r, lanes_set(FIRNI_EXP_C2));
    p = lanes_fma(p, r, one);
    p = lanes_fma(p, r, one);
    p = lanes_mul(p, lanes_power(shifted));
    p = lanes_select_less(x, lanes_set(FIRNI_EXP_LOW), lanes_set(0.0f), p);
    return lanes_select_less(lanes_set(FIRNI_EXP_HIGH), x, lanes_set(INFINITY), p);
}

FIRNI_INLINE lanes lanes_tanh(lanes x)
{
    const lanes one = lanes_set(1.0f);
    const lanes z = lanes_mul(x, x);
    lanes p = lanes_fma(lanes_set(FIRNI_TANH_C4), z, lanes_set(FIRNI_TANH_C3));
    p = lanes_fma(p, z, lanes_set(FIRNI_TANH_C2));
    p = lanes_fma(p, z, lanes_set(FIRNI_TANH_C1));
    p = lanes_fma(p, z, lanes_set(FIRNI_TANH_C0));
    const lanes near_zero = lanes_fma(lanes_mul(x, z), p, x);
    const lanes far = lanes_sub(one, lanes_div(lanes_set(2.0f), lanes_add(lanes_exp(lanes_add(x, x)), one)));
    return lanes_select_less(z, lanes_set(FIRNI_TANH_SQUARE_MAX), near_zero, far);
}

#endif
