/* base/thread.c - see thread.h. */
#include "base/thread.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void thread_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns)
{
    struct timespec t = {timeout_ns / 1000000000, timeout_ns % 1000000000};
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, timeout_ns < 0 ? NULL : &t, NULL, 0);
}

void thread_futex_wake(_Atomic uint32_t *word, int count)
{
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

void thread_cgroup(char path[THREAD_CGROUP_MAX])
{
    char line[512];
    FILE *f = fopen("/proc/self/cgroup", "re");
    path[0] = 0;
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, "0::", 3) == 0)
            sscanf(line + 3, "%399s", path);
    if (f)
        fclose(f);
    if (strcmp(path, "/") == 0)
        path[0] = 0;
}

bool thread_cgroup_up(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        *slash = 0;
    return slash != NULL;
}

/* CPUs allowed by the quota of the nearest cgroup that has one; UINT32_MAX when none has. */
static uint32_t quota_cpus(void)
{
    char path[700], cg[THREAD_CGROUP_MAX];
    uint32_t best = UINT32_MAX;
    thread_cgroup(cg);
    do {
        snprintf(path, sizeof path, "/sys/fs/cgroup%s/cpu.max", cg);
        FILE *f = fopen(path, "re");
        long long quota, period;
        if (f && fscanf(f, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            long long n = (quota + period - 1) / period;
            if (n < (long long)best)
                best = n < 1 ? 1 : (uint32_t)n;
        }
        if (f)
            fclose(f);
    } while (thread_cgroup_up(cg));
    return best;
}

static void allowed(cpu_set_t *set)
{
    CPU_ZERO(set);
    if (sched_getaffinity(0, sizeof *set, set) || CPU_COUNT(set) == 0)
        CPU_SET(0, set);
}

/* First sibling of a CPU's core: a CPU that is its own first sibling among the allowed ones counts as a core. */
static bool first_of_core(int cpu, const cpu_set_t *set)
{
    char path[128], text[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    FILE *f = fopen(path, "re");
    if (!f)
        return true;
    bool got = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    for (char *p = text; got && *p >= '0' && *p <= '9';) {
        int lo = 0, hi, used = 0;
        if (sscanf(p, "%d%n", &lo, &used) != 1)
            break;
        p += used;
        hi = lo;
        if (*p == '-' && sscanf(p + 1, "%d%n", &hi, &used) == 1)
            p += used + 1;
        for (int c = lo; c <= hi && c < cpu; c++)
            if (c < CPU_SETSIZE && CPU_ISSET(c, set))
                return false;
        if (*p == ',')
            p++;
    }
    return true;
}

uint32_t thread_cpu_count(void)
{
    cpu_set_t set;
    allowed(&set);
    uint32_t n = (uint32_t)CPU_COUNT(&set), quota = quota_cpus();
    return n < quota ? n : quota;
}

uint32_t thread_core_count(void)
{
    cpu_set_t set;
    allowed(&set);
    uint32_t n = 0, quota = quota_cpus();
    for (int c = 0; c < CPU_SETSIZE; c++)
        n += CPU_ISSET(c, &set) && first_of_core(c, &set);
    n = n < quota ? n : quota;
    return n ? n : 1;
}

bool thread_pin(uint32_t index)
{
    cpu_set_t set, one;
    allowed(&set);
    for (int c = 0; c < CPU_SETSIZE; c++) {
        if (!CPU_ISSET(c, &set) || !first_of_core(c, &set) || index-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(c, &one);
        return pthread_setaffinity_np(pthread_self(), sizeof one, &one) == 0;
    }
    return false;
}

void thread_name(const char *name)
{
    char cut[16];
    snprintf(cut, sizeof cut, "%s", name);
    pthread_setname_np(pthread_self(), cut);
}

int64_t thread_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}
