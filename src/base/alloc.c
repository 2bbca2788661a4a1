/*
 * Memory through the caller's allocator, with overflow checks in one place.
 */
#include <stdlib.h>
#include <string.h>

#include "base/base_impl.h"

static void *default_alloc(void *ctx, size_t size_bytes, size_t align)
{
    (void)ctx;
    if (align <= _Alignof(max_align_t)) {
        return malloc(size_bytes);
    }
    void *ptr = NULL;
    return posix_memalign(&ptr, align, size_bytes) == 0 ? ptr : NULL;
}

static void default_release(void *ctx, void *ptr)
{
    (void)ctx;
    free(ptr);
}

const firn_allocator *firn_allocator_default(void)
{
    static const firn_allocator allocator = { .alloc = default_alloc, .release = default_release, .ctx = NULL };
    return &allocator;
}

static const firn_allocator *allocator_of(const firn_env *env)
{
    return env != NULL && env->allocator != NULL ? env->allocator : firn_allocator_default();
}

bool firni_mul_size(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b) {
        return false;
    }
    *out = a * b;
    return true;
}

bool firni_add_size(size_t a, size_t b, size_t *out)
{
    if (a > SIZE_MAX - b) {
        return false;
    }
    *out = a + b;
    return true;
}

void *firni_alloc_aligned(const firn_env *env, size_t size_bytes, size_t align)
{
    const firn_allocator *allocator = allocator_of(env);
    return size_bytes == 0 ? NULL : allocator->alloc(allocator->ctx, size_bytes, align);
}

void *firni_calloc(const firn_env *env, size_t n, size_t element_bytes)
{
    size_t size_bytes;
    if (!firni_mul_size(n, element_bytes, &size_bytes)) {
        return NULL;
    }
    void *ptr = firni_alloc_aligned(env, size_bytes, _Alignof(max_align_t));
    if (ptr != NULL) {
        memset(ptr, 0, size_bytes);
    }
    return ptr;
}

void *firni_grow(const firn_env *env, void *ptr, size_t n_old, size_t n_new, size_t element_bytes)
{
    size_t size_bytes;
    if (n_new < n_old || !firni_mul_size(n_new, element_bytes, &size_bytes)) {
        return NULL;
    }
    void *grown = firni_alloc_aligned(env, size_bytes, _Alignof(max_align_t));
    if (grown == NULL) {
        return NULL;
    }
    if (n_old > 0) {
        memcpy(grown, ptr, n_old * element_bytes);
    }
    firni_free(env, ptr);
    return grown;
}

char *firni_strdup(const firn_env *env, const char *text)
{
    const size_t size_bytes = strlen(text) + 1;
    char *copy = firni_alloc_aligned(env, size_bytes, 1);
    if (copy != NULL) {
        memcpy(copy, text, size_bytes);
    }
    return copy;
}

void firni_free(const firn_env *env, void *ptr)
{
    if (ptr != NULL) {
        const firn_allocator *allocator = allocator_of(env);
        allocator->release(allocator->ctx, ptr);
    }
}
