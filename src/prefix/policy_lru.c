/*
 * Least recently used leaves first. The stamps make a parent newer than all its children.
 */
#include "prefix/tree_impl.h"

static bool leaves_before(const firni_node *a, const firni_node *b)
{
    return a->used < b->used;
}

const firni_policy firni_policy_lru = { .name = "lru", .leaves_before = leaves_before };
