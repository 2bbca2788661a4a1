/*
 * Processors, from made-up systems: threads of one core count once, what is not allowed does not count, quotas hold on
 * every level, and files that are missing or make no sense limit nothing.
 */
#include "support/support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/processors.h"

static char *root;

/* Writes root/name, and makes the directories before it. */
static void put(const char *name, const char *text)
{
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void put_siblings(uint32_t processor, const char *list)
{
    char name[128];
    (void)snprintf(name, sizeof name, "sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", processor);
    put(name, list);
}

static firni_processors find(const char *allowed)
{
    firni_processor_set set = { .bits = { 0 } };
    firni_processors out;
    assert_true(firni_processor_set_parse(allowed, &set));
    firni_processors_find(root, &set, &out);
    return out;
}

static int make_root(void **state)
{
    (void)state;
    root = test_dir_create();
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    test_dir_remove(root);
    free(root);
    return 0;
}

static void lists_are_read_or_refused(void **state)
{
    (void)state;
    firni_processor_set set = { .bits = { 0 } };
    assert_true(firni_processor_set_parse("0-2,5,1022-1023\n", &set));
    for (uint32_t i = 0; i < FIRNI_PROCESSORS_MAX; i++) {
        assert_true(firni_processor_set_has(&set, i) == (i <= 2 || i == 5 || i >= 1022));
    }
    assert_false(firni_processor_set_has(&set, FIRNI_PROCESSORS_MAX));
    static const char *const bad[] = {
        "", "\n", "a", "1-", "-1", "3-1", "1,,2", "1024", "0-4096", "1 2", "99999999999999999999"
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(firni_processor_set_parse(bad[i], &set));
    }
}

static void threads_of_one_core_count_once(void **state)
{
    (void)state;
    /* Four cores of two threads, numbered as most machines do: the second threads follow the first ones. */
    put("sys/devices/system/cpu/online", "0-7\n");
    for (uint32_t i = 0; i < 8; i++) {
        char list[32];
        (void)snprintf(list, sizeof list, "%u,%u\n", i % 4, i % 4 + 4);
        put_siblings(i, list);
    }
    firni_processors p = find("0-7");
    assert_int_equal(p.n_allowed, 8);
    assert_int_equal(p.n_cores, 4);
    assert_int_equal(firni_processors_threads(&p), 4);
    assert_false(p.is_assigned);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(p.core_of[i], p.core_of[i + 4]);
        assert_int_equal(p.core_of[i], i);
    }
    /* Both threads of a core, and one of each of two: what the user allows counts, not what the machine has. */
    p = find("1,5");
    assert_int_equal(firni_processors_threads(&p), 1);
    assert_true(p.is_assigned);
    p = find("1,6");
    assert_int_equal(firni_processors_threads(&p), 2);
    assert_int_equal(p.core_of[1], 0);
    assert_int_equal(p.core_of[6], 1);
    p = find("4-7");
    assert_int_equal(firni_processors_threads(&p), 4);
}

static void what_says_nothing_of_itself_is_a_core(void **state)
{
    (void)state;
    firni_processors p = find("0-5");
    assert_int_equal(firni_processors_threads(&p), 6);
    assert_false(p.is_assigned);
    put_siblings(0, "nonsense\n");
    put_siblings(1, "");
    put_siblings(2, "4-5\n"); /* without itself */
    p = find("0-5");
    assert_int_equal(firni_processors_threads(&p), 6);
}

static void a_quota_limits_threads_on_every_level(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/pod/box\n");
    put("sys/fs/cgroup/pod/box/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/pod/cpu.max", "350000 100000\n");
    firni_processors p = find("0-7");
    assert_int_equal(p.n_quota, 3);
    assert_int_equal(firni_processors_threads(&p), 3);
    put("sys/fs/cgroup/pod/box/cpu.max", "50000 100000\n");
    p = find("0-7");
    assert_int_equal(firni_processors_threads(&p), 1);
    put("sys/fs/cgroup/pod/box/cpu.max", "900000 100000\n");
    put("sys/fs/cgroup/pod/cpu.max", "max 100000\n");
    p = find("0-7");
    assert_int_equal(p.n_quota, 9);
    assert_int_equal(firni_processors_threads(&p), 8);
}

/* A container sees its group as the mount, under a name from outside. */
static void a_container_finds_its_quota_at_the_mount(void **state)
{
    (void)state;
    put("proc/self/cgroup", "0::/../../somewhere/else\n");
    put("sys/fs/cgroup/cpu.max", "200000 100000\n");
    firni_processors p = find("0-7");
    assert_int_equal(firni_processors_threads(&p), 2);
}

static void quotas_of_version_1_hold(void **state)
{
    (void)state;
    put("proc/self/cgroup", "9:name=systemd:/\n5:cpuset,memory:/x\n4:cpu,cpuacct:/box\n0::/\n");
    put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us", "100000\n");
    firni_processors p = find("0-7");
    assert_int_equal(p.n_quota, UINT32_MAX);
    put("sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us", "250000\n");
    p = find("0-7");
    assert_int_equal(p.n_quota, 2);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    p = find("0-7");
    assert_int_equal(p.n_quota, 1);
}

static void quotas_that_make_no_sense_limit_nothing(void **state)
{
    (void)state;
    static const char *const texts[] = { "", "max\n", "100000\n", "-1 100000\n", "100000 0\n", "0 0\n", "x y\n" };
    put("proc/self/cgroup", "0::/box\nnonsense\n:\n::\n");
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put("sys/fs/cgroup/box/cpu.max", texts[i]);
        firni_processors p = find("0-7");
        assert_int_equal(p.n_quota, UINT32_MAX);
        assert_int_equal(firni_processors_threads(&p), 8);
    }
}

static void this_machine_has_a_processor_to_run_on(void **state)
{
    (void)state;
    const firni_processor_set allowed = firni_processors_allowed();
    firni_processors p;
    firni_processors_find("", &allowed, &p);
    assert_in_range(firni_processors_threads(&p), 1, p.n_allowed);
    assert_in_range(p.n_cores, 1, p.n_allowed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_are_read_or_refused),
        cmocka_unit_test_setup_teardown(threads_of_one_core_count_once, make_root, remove_root),
        cmocka_unit_test_setup_teardown(what_says_nothing_of_itself_is_a_core, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_quota_limits_threads_on_every_level, make_root, remove_root),
        cmocka_unit_test_setup_teardown(a_container_finds_its_quota_at_the_mount, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quotas_of_version_1_hold, make_root, remove_root),
        cmocka_unit_test_setup_teardown(quotas_that_make_no_sense_limit_nothing, make_root, remove_root),
        cmocka_unit_test(this_machine_has_a_processor_to_run_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
