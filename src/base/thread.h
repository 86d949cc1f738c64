/* base/thread.h - threads and what they wait on: a futex-backed event counter, CPU counting with the cgroup quota, pinning, a clock. */
#ifndef RH_BASE_THREAD_H
#define RH_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Wait while *word == seen (spurious wake-ups possible); timeout_ns < 0 = for ever. */
void thread_futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t timeout_ns);
void thread_futex_wake(_Atomic uint32_t *word, int count); /* INT_MAX = all */

static inline void thread_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Path of this process's cgroup below /sys/fs/cgroup ("" at the root, and where there are none), and of the one above it: false at the root. */
enum { THREAD_CGROUP_MAX = 400 };
void thread_cgroup(char path[THREAD_CGROUP_MAX]);
bool thread_cgroup_up(char *path);
uint32_t thread_cpu_count(void);      /* logical CPUs this process may use: affinity and cgroup quota respected, >= 1 */
uint32_t thread_core_count(void);     /* physical cores among them, >= 1: the default of -t */
bool thread_pin(uint32_t index);      /* this thread to the index-th allowed physical core; false when it cannot */
void thread_name(const char *name);   /* at most 15 characters kept */
int64_t thread_now_ns(void);          /* monotonic */
int64_t thread_cpu_ns(void);          /* what this thread has worked so far */

#endif
