/* How long normal adds wait in a bookie, from a worker's receipt to the publication of their batch:
 * one word of the journal, read by whoever answers copying.  The upper half says when it was
 * written (low bits of the monotonic clock).
 *
 * Decision 113. */
#pragma once

#include "base/ring.h"

#define FBK_ADD_WAIT_HOLDS_US 1000000u /* what is older says nothing of now */

/* The wait in a word, at `now_us`. */
static inline uint32_t
fbk_add_wait_us(uint64_t word, uint32_t now_us)
{
    return now_us - (uint32_t)(word >> 32) < FBK_ADD_WAIT_HOLDS_US ? (uint32_t)word : 0;
}

/* The word after one more batch, the first normal add of which was received at `received_us`: an
 * eighth of the way. */
static inline uint64_t
fbk_add_wait_next(uint64_t word, uint32_t now_us, uint32_t received_us)
{
    uint32_t before_us = fbk_add_wait_us(word, now_us);
    int64_t waited_us = (int32_t)(now_us - received_us);
    if (waited_us < 1)
        waited_us = 1; /* a moment; 0 says that there are none */
    int64_t wait_us = before_us == 0 ? waited_us : before_us + (waited_us - before_us) / 8;
    return (uint64_t)now_us << 32 | (uint32_t)wait_us;
}
