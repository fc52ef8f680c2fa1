/* HMAC-SHA1 (RFC 2104, FIPS 180-4), the digest of Apache's type MAC: for what is checked off the
 * hot path, with a key of 20 bytes as ledgers have it. */
#include "base/digest.h"

#define HEADER FBK_ENTRY_HEADER_BYTES
#define BLOCK_BYTES 64u
#define INNER_PAD 0x36u
#define OUTER_PAD 0x5cu

struct sha1 {
    uint32_t state[5];
    uint32_t held_bytes; /* of a block that is not whole yet */
    uint64_t size_bytes;
    uint8_t block[BLOCK_BYTES];
};

static uint32_t
rotate(uint32_t value, uint32_t count)
{
    return value << count | value >> (32 - count);
}

/* The next word of the schedule, in a ring of 16. */
static uint32_t
next_word(uint32_t *words, uint32_t round)
{
    uint32_t *word = &words[round & 15];
    if (round >= 16)
        *word = rotate(words[(round + 13) & 15] ^ words[(round + 8) & 15] ^
                           words[(round + 2) & 15] ^ *word,
                       1);
    return *word;
}

/* Twenty of the eighty rounds; in line, so that each quarter is code of its own. */
static inline __attribute__((always_inline)) void
take_rounds(uint32_t *mix, uint32_t *words, uint32_t quarter, uint32_t constant)
{
    uint32_t a = mix[0], b = mix[1], c = mix[2], d = mix[3], e = mix[4];
    for (uint32_t round = 20 * quarter; round < 20 * quarter + 20; round++) {
        uint32_t mixed = quarter == 0   ? (b & c) | (~b & d)
                         : quarter == 2 ? (b & c) | (b & d) | (c & d)
                                        : b ^ c ^ d;
        uint32_t next = rotate(a, 5) + mixed + e + constant + next_word(words, round);
        e = d;
        d = c;
        c = rotate(b, 30);
        b = a;
        a = next;
    }
    mix[0] = a;
    mix[1] = b;
    mix[2] = c;
    mix[3] = d;
    mix[4] = e;
}

static void
take_block(uint32_t *state, const uint8_t *block)
{
    uint32_t words[16], mix[5];
    for (uint32_t i = 0; i < 16; i++)
        words[i] = fbk_load_be32(block + 4 * i);
    memcpy(mix, state, sizeof mix);
    take_rounds(mix, words, 0, 0x5a827999);
    take_rounds(mix, words, 1, 0x6ed9eba1);
    take_rounds(mix, words, 2, 0x8f1bbcdc);
    take_rounds(mix, words, 3, 0xca62c1d6);
    for (uint32_t i = 0; i < 5; i++)
        state[i] += mix[i];
}

static void
take(struct sha1 *sha, const uint8_t *data, uint64_t size_bytes)
{
    sha->size_bytes += size_bytes;
    while (size_bytes > 0) {
        if (sha->held_bytes == 0 && size_bytes >= BLOCK_BYTES) {
            take_block(sha->state, data);
            data += BLOCK_BYTES;
            size_bytes -= BLOCK_BYTES;
            continue;
        }
        uint32_t room = BLOCK_BYTES - sha->held_bytes;
        uint32_t some = size_bytes < room ? (uint32_t)size_bytes : room;
        memcpy(sha->block + sha->held_bytes, data, some);
        sha->held_bytes += some;
        data += some;
        size_bytes -= some;
        if (sha->held_bytes == BLOCK_BYTES) {
            take_block(sha->state, sha->block);
            sha->held_bytes = 0;
        }
    }
}

/* Begins one with the key, padded to a block. */
static void
start(struct sha1 *sha, const uint8_t *key, uint8_t pad)
{
    uint8_t block[BLOCK_BYTES];
    *sha = (struct sha1){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
    for (uint32_t i = 0; i < BLOCK_BYTES; i++)
        block[i] = (i < FBK_MAC_KEY_BYTES ? key[i] : 0) ^ pad;
    take(sha, block, BLOCK_BYTES);
}

static void
finish(struct sha1 *sha, uint8_t *digest)
{
    uint8_t tail[BLOCK_BYTES + 8] = {0x80};
    uint32_t pad_bytes = (BLOCK_BYTES + 56 - 1 - sha->held_bytes) % BLOCK_BYTES + 1;
    fbk_store_be64(tail + pad_bytes, sha->size_bytes * 8);
    take(sha, tail, pad_bytes + 8);
    for (uint32_t i = 0; i < 5; i++)
        fbk_store_be32(digest + 4 * i, sha->state[i]);
}

int32_t
fbk_digest_check_mac(const uint8_t *key, const uint8_t *entry, uint32_t entry_bytes)
{
    uint32_t from = HEADER + FBK_MAC_BYTES;
    uint8_t digest[FBK_MAC_BYTES];
    struct sha1 sha;
    if (entry_bytes < from)
        return FBK_S_BAD_REQUEST;
    start(&sha, key, INNER_PAD);
    take(&sha, entry, HEADER);
    take(&sha, entry + from, entry_bytes - from);
    finish(&sha, digest);
    start(&sha, key, OUTER_PAD);
    take(&sha, digest, sizeof digest);
    finish(&sha, digest);
    return memcmp(digest, entry + HEADER, sizeof digest) == 0 ? FBK_S_OK : FBK_S_BAD_DIGEST;
}
