/* How long a cache line takes from one processor to another and back, in nanoseconds, at best:
 * measure_cache_line [SECONDS].
 *
 * Journal and index read what the worker has just written, so this is in every figure of `./dev
 * bench`.  On a virtual machine it changes while one looks: the host moves the processors, and two
 * threads of one core, two cores with a cache in common and two cores without one are 1 : 2 :
 * 10. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TRIPS_AT_ONCE 1000u

static _Alignas(64) _Atomic uint64_t ping;
static _Alignas(64) _Atomic uint64_t pong;
static cpu_set_t allowed;

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* On the nth processor that this process may use. */
static void
keep_to(int n)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, &allowed) && n-- == 0)
            CPU_SET(cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

static void *
answer(void *unused)
{
    (void)unused;
    keep_to(1);
    for (uint64_t n = 1;; n++) {
        uint64_t seen;
        while ((seen = atomic_load_explicit(&ping, memory_order_acquire)) < n)
            ;
        if (seen == UINT64_MAX)
            return NULL;
        atomic_store_explicit(&pong, n, memory_order_release);
    }
}

int
main(int argc, char **argv)
{
    const double seconds = argc > 1 ? atof(argv[1]) : 0.05;
    pthread_t other;
    sched_getaffinity(0, sizeof allowed, &allowed);
    if (CPU_COUNT(&allowed) < 2) {
        printf("{\"round_trip_ns\": 0}\n"); /* there is no other processor */
        return 0;
    }
    keep_to(0);
    if (pthread_create(&other, NULL, answer, NULL) != 0)
        return 1;
    const uint64_t began_ns = now_ns();
    uint64_t trips = 0, best_ns = UINT64_MAX;
    while (now_ns() - began_ns < (uint64_t)(seconds * 1e9)) {
        const uint64_t round_ns = now_ns();
        for (uint32_t n = 0; n < TRIPS_AT_ONCE; n++) {
            atomic_store_explicit(&ping, ++trips, memory_order_release);
            while (atomic_load_explicit(&pong, memory_order_acquire) < trips)
                ;
        }
        const uint64_t took_ns = (now_ns() - round_ns) / TRIPS_AT_ONCE;
        /* another may have had a processor meanwhile */
        best_ns = took_ns < best_ns ? took_ns : best_ns;
    }
    atomic_store_explicit(&ping, UINT64_MAX, memory_order_release);
    pthread_join(other, NULL);
    printf("{\"round_trip_ns\": %llu}\n", (unsigned long long)best_ns);
    return 0;
}
