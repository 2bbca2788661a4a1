/*
 * processors: how many threads of computation a process can really run at once.
 *
 * That is one for each physical core: two threads of one core share its arithmetic, and spin beside each other. Of the
 * cores only those count that the process may run on (taskset, cpusets), and no more than its control group gives time
 * for: a thread beyond the quota gets all of them stopped until the next period.
 *
 * Sources: Linux, Documentation/ABI/stable/sysfs-devices-system-cpu (topology), admin-guide/cgroup-v2 (cpu.max),
 * scheduler/sched-bwc (cpu.cfs_quota_us of version 1).
 */
#ifndef FIRNI_PROCESSORS_H
#define FIRNI_PROCESSORS_H

#include <stdbool.h>
#include <stdint.h>

#define FIRNI_PROCESSORS_MAX 1024u

/* Logical processors, as the system numbers them. */
typedef struct firni_processor_set {
    uint64_t bits[FIRNI_PROCESSORS_MAX / 64];
} firni_processor_set;

typedef struct firni_processors {
    firni_processor_set allowed;
    uint32_t n_allowed;
    uint32_t n_cores;  /* physical, of which at least one thread is allowed */
    uint32_t n_quota;  /* processors that the control group gives time for, rounded down, at least 1; UINT32_MAX: any */
    bool is_assigned;  /* somebody chose the allowed ones: the machine has others */
    uint16_t core_of[FIRNI_PROCESSORS_MAX]; /* of an allowed processor: the index of its core */
} firni_processors;

bool firni_processor_set_has(const firni_processor_set *set, uint32_t index);
/* Adds what a list says, such as "0-3,8,10-11"; false when it is none, or names processors beyond the limit. */
bool firni_processor_set_parse(const char *list, firni_processor_set *set);

/* What the calling thread may run on; the first one alone when the system does not say. */
firni_processor_set firni_processors_allowed(void);
/* Looks at /proc and /sys below `root`: "" for the machine's. What is missing or makes no sense there counts as no
 * limit, and as a core for each processor. */
void firni_processors_find(const char *root, const firni_processor_set *allowed, firni_processors *out);
/* How many threads a computation is to be divided over: at least 1. */
uint32_t firni_processors_threads(const firni_processors *processors);

#endif
