/* Counters and histograms in a segment: one writer each, read by the supervisor at any time.
 * Relaxed: they order nothing. */
#pragma once

#include "base/layout.h"

static inline void
fbk_count(struct fbk_stats *stats, uint32_t counter, uint64_t amount)
{
    FBK_DEBUG_ASSERT(counter < FBK_COUNTERS_MAX);
    uint64_t value = atomic_load_explicit(&stats->counters[counter], memory_order_relaxed);
    atomic_store_explicit(&stats->counters[counter], value + amount, memory_order_relaxed);
}

static inline void
fbk_beat(struct fbk_stats *stats, uint32_t word)
{
    FBK_DEBUG_ASSERT(word < FBK_HEARTBEATS_MAX);
    _Atomic uint64_t *beats = &stats->heartbeats[word].beats;
    atomic_store_explicit(beats, atomic_load_explicit(beats, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

static inline void
fbk_gauge(struct fbk_stats *stats, uint32_t counter, uint64_t value)
{
    atomic_store_explicit(&stats->counters[counter], value, memory_order_relaxed);
}

/* Bucket of a value: exact up to 15, then 8 buckets an octave (at most 12.5 % wide). */
static inline uint32_t
fbk_histogram_bucket(uint64_t value)
{
    if (value < 16)
        return (uint32_t)value;
    uint32_t top = 63u - (uint32_t)__builtin_clzll(value); /* >= 4 */
    return 16u + (top - 4u) * 8u + (uint32_t)((value >> (top - 3u)) & 7u);
}

/* The lowest value of a bucket: the other way round. */
static inline uint64_t
fbk_histogram_bucket_from(uint32_t bucket)
{
    if (bucket < 16)
        return bucket;
    uint32_t top = (bucket - 16u) / 8u + 4u;
    return top > 63 ? UINT64_MAX : (uint64_t)(8u + (bucket - 16u) % 8u) << (top - 3u);
}

static inline void
fbk_observe_many(struct fbk_stats *stats, uint32_t histogram, uint64_t value, uint64_t times)
{
    struct fbk_histogram *h = &stats->histograms[histogram];
    uint32_t bucket = fbk_histogram_bucket(value);
    atomic_store_explicit(&h->buckets[bucket],
                          atomic_load_explicit(&h->buckets[bucket], memory_order_relaxed) + times,
                          memory_order_relaxed);
    atomic_store_explicit(&h->sum,
                          atomic_load_explicit(&h->sum, memory_order_relaxed) + value * times,
                          memory_order_relaxed);
    if (value > atomic_load_explicit(&h->max, memory_order_relaxed))
        atomic_store_explicit(&h->max, value, memory_order_relaxed);
    atomic_store_explicit(&h->count, atomic_load_explicit(&h->count, memory_order_relaxed) + times,
                          memory_order_relaxed);
}

/* Something that has ended: how often it did, and in the next slot how long that took in all. */
static inline void
fbk_count_timed(struct fbk_stats *stats, uint32_t counter, uint64_t took_us)
{
    fbk_count(stats, counter, 1);
    fbk_count(stats, counter + 1, took_us);
}
