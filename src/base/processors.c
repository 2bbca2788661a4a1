/*
 * Reads what the system says about processors; see processors.h. Owns the parsing; starts nothing, keeps nothing.
 *
 * These files are read when a team is made, from the system itself: they hold no state of anybody's.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "base/processors.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES 4096
#define PATH_BYTES 4608 /* a name of the control group, and what stands before and behind it */

/* ---- sets ---- */

bool firni_processor_set_has(const firni_processor_set *set, uint32_t index)
{
    return index < FIRNI_PROCESSORS_MAX && (set->bits[index / 64] >> index % 64 & 1u) != 0;
}

static void add(firni_processor_set *set, uint32_t index)
{
    set->bits[index / 64] |= UINT64_C(1) << index % 64;
}

/* A number at *at, which is moved behind it. */
static bool read_index(const char **at, uint32_t *out)
{
    const char *begin = *at;
    *out = 0;
    for (; **at >= '0' && **at <= '9' && *out < FIRNI_PROCESSORS_MAX; (*at)++) {
        *out = *out * 10 + (uint32_t)(**at - '0');
    }
    return *at != begin && *out < FIRNI_PROCESSORS_MAX;
}

bool firni_processor_set_parse(const char *list, firni_processor_set *set)
{
    for (const char *at = list;; at++) {
        uint32_t first;
        uint32_t last;
        if (!read_index(&at, &first)) {
            return false;
        }
        last = first;
        if (*at == '-') {
            at++;
            if (!read_index(&at, &last) || last < first) {
                return false;
            }
        }
        for (uint32_t i = first; i <= last; i++) {
            add(set, i);
        }
        if (*at != ',') {
            return *at == '\0' || *at == '\n';
        }
    }
}

firni_processor_set firni_processors_allowed(void)
{
    firni_processor_set out = { .bits = { 0 } };
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        add(&out, 0);
        return out;
    }
    for (uint32_t i = 0; i < FIRNI_PROCESSORS_MAX && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, &set)) {
            add(&out, i);
        }
    }
    return out;
}

/* ---- files ---- */

/* The beginning of a file as text; false when there is none, or nothing in it. */
static bool read_text(const char *path, char out[TEXT_BYTES])
{
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return false;
    }
    const size_t n = fread(out, 1, TEXT_BYTES - 1, file);
    (void)fclose(file);
    out[n] = '\0';
    return n > 0;
}

/* ---- cores ---- */

/* The lowest thread of a processor's core stands for the core; a processor that is said nothing about is one itself. */
static uint32_t first_thread(const char *root, uint32_t index)
{
    char path[PATH_BYTES];
    char text[TEXT_BYTES];
    firni_processor_set siblings = { .bits = { 0 } };
    (void)snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", root, index);
    if (!read_text(path, text) || !firni_processor_set_parse(text, &siblings) ||
        !firni_processor_set_has(&siblings, index)) {
        return index;
    }
    uint32_t first = 0;
    while (!firni_processor_set_has(&siblings, first)) {
        first++;
    }
    return first;
}

static void find_cores(const char *root, firni_processors *out)
{
    uint16_t core_of_first[FIRNI_PROCESSORS_MAX];
    memset(core_of_first, 0xff, sizeof core_of_first);
    for (uint32_t i = 0; i < FIRNI_PROCESSORS_MAX; i++) {
        if (!firni_processor_set_has(&out->allowed, i)) {
            continue;
        }
        const uint32_t first = first_thread(root, i);
        if (core_of_first[first] == UINT16_MAX) {
            core_of_first[first] = (uint16_t)out->n_cores++;
        }
        out->core_of[i] = core_of_first[first];
        out->n_allowed++;
    }
}

static bool is_assigned(const char *root, const firni_processor_set *allowed)
{
    char path[PATH_BYTES];
    char text[TEXT_BYTES];
    firni_processor_set online = { .bits = { 0 } };
    (void)snprintf(path, sizeof path, "%s/sys/devices/system/cpu/online", root);
    if (!read_text(path, text) || !firni_processor_set_parse(text, &online)) {
        return false;
    }
    bool has_others = false;
    for (uint32_t i = 0; i < FIRNI_PROCESSORS_MAX / 64; i++) {
        has_others = has_others || (online.bits[i] & ~allowed->bits[i]) != 0;
    }
    return has_others;
}

/* ---- control groups ---- */

/* Whole processors in a quota of microseconds for each period of so many; a quota below one processor is one. */
static uint32_t processors_of(long long quota, long long period)
{
    if (quota <= 0 || period <= 0) {
        return UINT32_MAX;
    }
    const long long n = quota / period;
    return n < 1 ? 1 : n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
}

/* Version 2: "max 100000" or "250000 100000". */
static uint32_t quota_v2(const char *dir)
{
    char path[PATH_BYTES];
    char text[TEXT_BYTES];
    long long quota = 0;
    long long period = 0;
    const int n = snprintf(path, sizeof path, "%s/cpu.max", dir);
    const bool is_there = n > 0 && (size_t)n < sizeof path && read_text(path, text);
    return is_there && sscanf(text, "%lld %lld", &quota, &period) == 2 ? processors_of(quota, period) : UINT32_MAX;
}

/* Version 1: two files; -1 is no quota. */
static uint32_t quota_v1(const char *dir)
{
    static const char *const names[2] = { "cpu.cfs_quota_us", "cpu.cfs_period_us" };
    long long values[2] = { 0, 0 };
    for (uint32_t i = 0; i < 2; i++) {
        char path[PATH_BYTES];
        char text[TEXT_BYTES];
        const int n = snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        if (n < 0 || (size_t)n >= sizeof path || !read_text(path, text) || sscanf(text, "%lld", &values[i]) != 1) {
            return UINT32_MAX;
        }
    }
    return processors_of(values[0], values[1]);
}

/* The least quota of a group and those above it, up to the mount. A container often sees its own group as the mount
 * while /proc names it from the host's: what is not there is passed over, and the mount is always looked at. */
static uint32_t quota_above(const char *mount, const char *group, uint32_t (*quota)(const char *dir))
{
    char dir[TEXT_BYTES + 256];
    const int n = snprintf(dir, sizeof dir, "%s%s", mount, group);
    const size_t len_mount = strlen(mount);
    uint32_t least = quota(mount);
    if (n < 0 || (size_t)n >= sizeof dir) {
        return least;
    }
    while (strlen(dir) > len_mount) {
        const uint32_t here = quota(dir);
        least = here < least ? here : least;
        char *slash = strrchr(dir + len_mount, '/');
        if (slash == NULL) {
            break;
        }
        *slash = '\0';
    }
    return least;
}

/* Whether "cpu" is among controllers such as "cpu,cpuacct". */
static bool has_cpu(const char *controllers)
{
    for (const char *at = controllers; at != NULL; at = strchr(at, ',')) {
        at += *at == ',';
        if (strncmp(at, "cpu", 3) == 0 && (at[3] == ',' || at[3] == '\0')) {
            return true;
        }
    }
    return false;
}

/* One line of /proc/self/cgroup: "0::/group" of version 2, "4:cpu,cpuacct:/group" of version 1. */
static uint32_t quota_of_line(const char *root, char *line)
{
    char mount[TEXT_BYTES];
    char *controllers = strchr(line, ':');
    char *group = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (group == NULL) {
        return UINT32_MAX;
    }
    *group++ = '\0';
    controllers++;
    if (*controllers == '\0') {
        (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup", root);
        return quota_above(mount, group, quota_v2);
    }
    if (!has_cpu(controllers)) {
        return UINT32_MAX;
    }
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/%.200s", root, controllers);
    const uint32_t joint = quota_above(mount, group, quota_v1);
    (void)snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
    const uint32_t alone = quota_above(mount, group, quota_v1);
    return joint < alone ? joint : alone;
}

static uint32_t find_quota(const char *root)
{
    char path[PATH_BYTES];
    char text[TEXT_BYTES];
    uint32_t least = UINT32_MAX;
    (void)snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_text(path, text)) {
        return least;
    }
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        const uint32_t here = quota_of_line(root, line);
        least = here < least ? here : least;
    }
    return least;
}

/* ---- all of it ---- */

void firni_processors_find(const char *root, const firni_processor_set *allowed, firni_processors *out)
{
    assert(strlen(root) < TEXT_BYTES / 2);
    *out = (firni_processors){ .allowed = *allowed };
    find_cores(root, out);
    out->n_quota = find_quota(root);
    out->is_assigned = is_assigned(root, allowed);
}

uint32_t firni_processors_threads(const firni_processors *processors)
{
    const uint32_t n = processors->n_cores < processors->n_quota ? processors->n_cores : processors->n_quota;
    return n > 0 ? n : 1;
}
