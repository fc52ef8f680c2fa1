/* What the journal tells the index about the record headers that it judged, so that the index
 * notices a header that its worker has rewritten since (INV-R4).
 *
 * A hash with a key that workers do not have: NH (of UMAC) over the 96 bytes of a header, then a
 * polynomial modulo 2^61 - 1 over the headers of one ring in one batch.  Workers see the
 * descriptor, so what is published is masked by SipHash of the batch's order and the ring: the hash
 * alone would give the key away.  A rewritten header passes with less than one chance in 2^28, and
 * each attempt that fails ends the boot, whose key is gone with it.
 *
 * A CRC would not do: who chooses a header's bytes chooses its CRC.
 *
 * Decision 92. */
#pragma once

#include "base/layout.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define FBK_HEADER_WORDS (sizeof(struct fbk_record) / 8)
#define FBK_HEADER_PRIME ((1ull << 61) - 1)
#define FBK_HEADER_HASH_NONE 1ull /* of no headers */

struct fbk_header_key {
    uint32_t words[2 * FBK_HEADER_WORDS];
    uint64_t step;
    uint64_t mask[2];
};
_Static_assert(sizeof(struct fbk_header_key) == FBK_HEADER_KEY_BYTES, "the boundary's number");

__extension__ typedef unsigned __int128 fbk_uint128;

static inline void
fbk_header_key_load(struct fbk_header_key *key, const uint8_t *bytes)
{
    memcpy(key, bytes, sizeof *key);
    key->step %= FBK_HEADER_PRIME;
}

/* NH: the sum of products of 32 bits, each with its part of the key added, of 12 pairs. */
static inline uint64_t
fbk_header_products(const struct fbk_header_key *key, const struct fbk_record *copy)
{
#ifdef __SSE2__
    __m128i sum = _mm_setzero_si128();
#pragma GCC unroll 6
    for (uint32_t i = 0; i < FBK_HEADER_WORDS / 2; i++) {
        const __m128i part = _mm_loadu_si128((const __m128i *)(const void *)copy + i);
        const __m128i words =
            _mm_add_epi32(part, _mm_loadu_si128((const __m128i *)(const void *)key->words + i));
        sum = _mm_add_epi64(sum, _mm_mul_epu32(words, _mm_srli_epi64(words, 32)));
    }
    return (uint64_t)_mm_cvtsi128_si64(sum) +
           (uint64_t)_mm_cvtsi128_si64(_mm_unpackhi_epi64(sum, sum));
#else
    uint32_t parts[2 * FBK_HEADER_WORDS];
    uint64_t sum = 0;
    memcpy(parts, copy, sizeof parts);
    for (uint32_t i = 0; i < 2 * FBK_HEADER_WORDS; i += 2)
        sum += (uint64_t)(parts[i] + key->words[i]) * (uint32_t)(parts[i + 1] + key->words[i + 1]);
    return sum;
#endif
}

/* The hash of what came before and one more header, of which this is a copy that nobody else
 * writes. */
static inline uint64_t
fbk_header_hash(const struct fbk_header_key *key, uint64_t hash, const struct fbk_record *copy)
{
    const uint64_t sum = fbk_header_products(key, copy);
    const fbk_uint128 product = (fbk_uint128)hash * key->step;
    uint64_t folded = ((uint64_t)product & FBK_HEADER_PRIME) + (uint64_t)(product >> 61) +
                      (sum & FBK_HEADER_PRIME) + (sum >> 61);
    folded = (folded & FBK_HEADER_PRIME) + (folded >> 61);
    return folded >= FBK_HEADER_PRIME ? folded - FBK_HEADER_PRIME : folded;
}

static inline uint64_t
fbk_header_rotate(uint64_t value, uint32_t bits)
{
    return value << bits | value >> (64 - bits);
}

static inline void
fbk_header_sip_rounds(uint64_t v[4], uint32_t rounds)
{
    for (uint32_t i = 0; i < rounds; i++) {
        v[0] += v[1];
        v[1] = fbk_header_rotate(v[1], 13) ^ v[0];
        v[0] = fbk_header_rotate(v[0], 32);
        v[2] += v[3];
        v[3] = fbk_header_rotate(v[3], 16) ^ v[2];
        v[0] += v[3];
        v[3] = fbk_header_rotate(v[3], 21) ^ v[0];
        v[2] += v[1];
        v[1] = fbk_header_rotate(v[1], 17) ^ v[2];
        v[2] = fbk_header_rotate(v[2], 32);
    }
}

/* SipHash-2-4 of (order, ring): never the same twice in a boot. */
static inline uint64_t
fbk_header_mask(const struct fbk_header_key *key, uint64_t order, uint32_t ring)
{
    const uint64_t words[3] = {order, ring, 16ull << 56};
    uint64_t v[4] = {key->mask[0] ^ 0x736f6d6570736575ull, key->mask[1] ^ 0x646f72616e646f6dull,
                     key->mask[0] ^ 0x6c7967656e657261ull, key->mask[1] ^ 0x7465646279746573ull};
    for (uint32_t i = 0; i < 3; i++) {
        v[3] ^= words[i];
        fbk_header_sip_rounds(v, 2);
        v[0] ^= words[i];
    }
    v[2] ^= 0xff;
    fbk_header_sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}
