/* What the load generator and the disk probe share: their clock and their histogram. */
#pragma once

#include "base/base.h"

#include "boundary/load.h"

uint64_t fbk_load_now_ns(void);

/* Latencies in nanoseconds: exact below 64, then 64 buckets an octave, so at most 1.6 % wide.
 * Private to one thread, unlike the segments' histograms (base/stats.h), which are coarser and
 * shared. */
#define FBK_LOAD_SUB_BITS 6u
#define FBK_LOAD_SUB_COUNT (1u << FBK_LOAD_SUB_BITS)

static inline uint32_t
fbk_load_bucket(uint64_t value)
{
    if (value < FBK_LOAD_SUB_COUNT)
        return (uint32_t)value;
    uint32_t top = 63u - (uint32_t)__builtin_clzll(value); /* >= FBK_LOAD_SUB_BITS */
    uint32_t octave = top - FBK_LOAD_SUB_BITS + 1u;
    return octave * FBK_LOAD_SUB_COUNT +
           (uint32_t)((value >> (top - FBK_LOAD_SUB_BITS)) & (FBK_LOAD_SUB_COUNT - 1u));
}
