/* The same without observation: nothing is counted (./dev bench observation).  Heartbeats stay: a
 * supervisor that misses them calls the process frozen. */
#pragma once

#include_next "base/stats.h"

#define fbk_count(stats, counter, amount) ((void)(stats), (void)(counter), (void)(amount))
#define fbk_count_timed(stats, counter, took_us) ((void)(stats), (void)(counter), (void)(took_us))
#define fbk_gauge(stats, counter, value) ((void)(stats), (void)(counter), (void)(value))
#define fbk_observe_many(stats, histogram, value, times) \
    ((void)(stats), (void)(histogram), (void)(value), (void)(times))
