/* What the C test programs share: a check that says what it found, and random numbers from a fixed
 * seed. */
#pragma once

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_SKIPPED 77

#define CHECK(x)                                                            \
    do {                                                                    \
        if (!(x)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #x); \
            exit(1);                                                        \
        }                                                                   \
    } while (0)

#define CHECK_EQUAL(got, wanted)                                                                 \
    do {                                                                                         \
        int64_t got_ = (int64_t)(got), wanted_ = (int64_t)(wanted);                              \
        if (got_ != wanted_) {                                                                   \
            fprintf(stderr,                                                                      \
                    "%s:%d: %s is %" PRId64 " (%#" PRIx64 "), wanted %" PRId64 " (%#" PRIx64     \
                    ")\n",                                                                       \
                    __FILE__, __LINE__, #got, got_, (uint64_t)got_, wanted_, (uint64_t)wanted_); \
            exit(1);                                                                             \
        }                                                                                        \
    } while (0)

/* splitmix64 */
static inline uint64_t
test_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static inline void
test_fill(uint8_t *bytes, size_t size_bytes, uint64_t seed)
{
    for (size_t i = 0; i < size_bytes; i++)
        bytes[i] = (uint8_t)test_random(&seed);
}
