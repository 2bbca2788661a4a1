/*
 * The only place for compiler extensions: GNU attributes under names of our own, empty where the compiler lacks them.
 */
#ifndef FIRNI_COMPILER_H
#define FIRNI_COMPILER_H

#if defined(__GNUC__) || defined(__clang__)
#define FIRNI_PRINTF(fmt_index, args_index) __attribute__((format(printf, fmt_index, args_index)))
#define FIRNI_INLINE static inline __attribute__((always_inline))
#define FIRNI_NO_INLINE __attribute__((noinline))
#define FIRNI_UNUSED __attribute__((unused))
#define FIRNI_WEAK __attribute__((weak)) /* another definition in the program takes its place */
#else
#define FIRNI_PRINTF(fmt_index, args_index)
#define FIRNI_INLINE static inline
#define FIRNI_NO_INLINE
#define FIRNI_UNUSED
#define FIRNI_WEAK
#endif

#endif
