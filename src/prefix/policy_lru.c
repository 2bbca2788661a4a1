/*
 * Least recently used leaves first. The stamps make a parent newer than all its children. Of window blocks those go
 * first that can be read again.
 */
#include "prefix/tree_impl.h"

static bool leaves_before(const firni_node *a, const firni_node *b)
{
    return a->used < b->used;
}

const firni_policy firni_policy_lru = { .name = "lru", .leaves_before = leaves_before };

static bool sheds_before(const firni_node *a, const firni_node *b)
{
    return a->unsaved != b->unsaved ? b->unsaved : a->used < b->used;
}

const firni_policy firni_policy_shed = { .name = "shed", .leaves_before = sheds_before };
