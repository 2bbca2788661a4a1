/*
 * The layouts that exist, by family. A new family adds its table here and nowhere else.
 */
#include <string.h>

#include "base/compiler.h"
#include "layout/layout_impl.h"

/* In the order in which an error message lists them: the simplest first. */
static const firni_layout *const layouts[] = {
    &firni_layout_plain,
    &firni_layout_window,
    &firni_layout_gated_delta,
    &firni_layout_mamba2,
    &firni_layout_mla,
    &firni_layout_mla_mtp,
    &firni_layout_mla_dsa,
    &firni_layout_quant,
    &firni_layout_window_quant,
    &firni_layout_turboquant,
    &firni_layout_delayed_quant,
    &firni_layout_delayed_window_quant,
    &firni_layout_delayed_turboquant,
    &firni_layout_hybrid,
};

uint32_t firni_layout_count(void)
{
    return (uint32_t)(sizeof layouts / sizeof layouts[0]);
}

const firni_layout *firni_layout_at(uint32_t index)
{
    assert(index < firni_layout_count());
    return layouts[index];
}

const firni_layout *firni_layout_find(const char *family)
{
    for (uint32_t i = 0; i < firni_layout_count(); i++) {
        if (strcmp(layouts[i]->family, family) == 0) {
            return layouts[i];
        }
    }
    return firni_layout_find_more(family);
}

FIRNI_WEAK const firni_layout *firni_layout_find_more(const char *family)
{
    (void)family;
    return NULL;
}
