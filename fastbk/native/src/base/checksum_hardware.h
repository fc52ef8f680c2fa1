/* The processor's own checksum instructions: a part of base/checksum.c, included there and nowhere
 * else (none with -DFBK_CHECKSUM_PORTABLE).  Each platform defines hardware_find, crc32c_hardware,
 * crc32c_copy_hardware, combine_hardware and crc32_hardware. */
#pragma once

/* ------------ x86-64 */

#if defined(__x86_64__) && !defined(FBK_CHECKSUM_PORTABLE)
#include <cpuid.h>
#include <immintrin.h>

#define FBK_HARDWARE __attribute__((target("sse4.2,crc32,pclmul")))

static uint64_t fold_16[2]; /* moves 128 bits over 16 bytes: for the low and the high half */
static uint64_t fold_64[2];

static void
hardware_find(void)
{
    /* Not by __builtin_cpu_supports: its table is filled by the compiler's runtime library, and
     * zig's says no. */
    unsigned a, b, c, d;
    have_hardware =
        __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0 && (c & bit_PCLMUL) != 0;
    /* The product of two reflected 64-bit polynomials is a * k * x: hence one less in the
     * exponents. */
    fold_16[0] = (uint64_t)power_of_x(128 + 63, CRC32_POLYNOMIAL) << 32;
    fold_16[1] = (uint64_t)power_of_x(128 - 1, CRC32_POLYNOMIAL) << 32;
    fold_64[0] = (uint64_t)power_of_x(512 + 63, CRC32_POLYNOMIAL) << 32;
    fold_64[1] = (uint64_t)power_of_x(512 - 1, CRC32_POLYNOMIAL) << 32;
}

FBK_HARDWARE static inline uint32_t
shift_hardware(uint32_t crc, uint32_t shift)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)crc), _mm_cvtsi32_si128((int)shift), 0);
    return (uint32_t)_mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(product));
}

/* The value of a word read once: the compiler can't read the source again for the second use (the
 * source may be shared memory that another process is writing). */
static inline uint64_t
load_once(const uint8_t *data)
{
    uint64_t word = fbk_load_u64(data);
    __asm__("" : "+r"(word));
    return word;
}

/* One loop serves both callers; `out` is NULL (and the stores vanish) for a checksum alone. */
FBK_HARDWARE static inline __attribute__((always_inline)) uint32_t
update_hardware(uint32_t crc, uint8_t *out, const uint8_t *data, size_t size_bytes)
{
    while (size_bytes >= LANES_BYTES_MIN) {
        size_t words = size_bytes / 24;
        if (words > LANE_WORDS_MAX)
            words = LANE_WORDS_MAX;
        size_t lane = words * 8;
        uint64_t a = crc, b = 0, c = 0;
        for (size_t i = 0; i < lane; i += 8) {
            uint64_t word_a = load_once(data + i);
            uint64_t word_b = load_once(data + lane + i);
            uint64_t word_c = load_once(data + 2 * lane + i);
            if (out != NULL) {
                fbk_store_u64(out + i, word_a);
                fbk_store_u64(out + lane + i, word_b);
                fbk_store_u64(out + 2 * lane + i, word_c);
            }
            a = _mm_crc32_u64(a, word_a);
            b = _mm_crc32_u64(b, word_b);
            c = _mm_crc32_u64(c, word_c);
        }
        crc = shift_hardware((uint32_t)a, lane_shifts[2 * words]) ^
              shift_hardware((uint32_t)b, lane_shifts[words]) ^ (uint32_t)c;
        data += 3 * lane;
        if (out != NULL)
            out += 3 * lane;
        size_bytes -= 3 * lane;
    }
    for (; size_bytes >= 8; size_bytes -= 8, data += 8) {
        uint64_t word = load_once(data);
        crc = (uint32_t)_mm_crc32_u64(crc, word);
        if (out != NULL) {
            fbk_store_u64(out, word);
            out += 8;
        }
    }
    if (size_bytes >= 4) { /* a record's header is 92 bytes, a digest 4 */
        uint32_t half = fbk_load_u32(data);
        __asm__("" : "+r"(half));
        crc = _mm_crc32_u32(crc, half);
        if (out != NULL) {
            fbk_store_u32(out, half);
            out += 4;
        }
        data += 4;
        size_bytes -= 4;
    }
    for (; size_bytes != 0; size_bytes--, data++) {
        uint8_t byte = *(const volatile uint8_t *)data;
        crc = _mm_crc32_u8(crc, byte);
        if (out != NULL)
            *out++ = byte;
    }
    return crc;
}

FBK_HARDWARE static uint32_t
crc32c_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    return ~update_hardware(~crc, NULL, data, size_bytes);
}

FBK_HARDWARE static uint32_t
crc32c_copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    return ~update_hardware(~crc, to, from, size_bytes);
}

FBK_HARDWARE static uint32_t
combine_hardware(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    for (uint32_t k = 0; size_b_bytes != 0; k++, size_b_bytes >>= 8)
        if (size_b_bytes & 0xffu)
            crc_a = shift_hardware(crc_a, size_shifts[k][size_b_bytes & 0xffu]);
    return crc_a ^ crc_b;
}

FBK_HARDWARE static inline __m128i
fold(__m128i value, __m128i by, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(value, by, 0x00);
    __m128i high = _mm_clmulepi64_si128(value, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

FBK_HARDWARE static inline __m128i
load_16(const uint8_t *data)
{
    return _mm_loadu_si128((const __m128i *)(const void *)data);
}

/* crc without the inversions; size_bytes >= 64. */
FBK_HARDWARE static uint32_t
crc32_folded(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    __m128i by_64 = load_16((const uint8_t *)fold_64);
    __m128i by_16 = load_16((const uint8_t *)fold_16);
    __m128i v0 = _mm_xor_si128(load_16(data), _mm_cvtsi32_si128((int)crc));
    __m128i v1 = load_16(data + 16);
    __m128i v2 = load_16(data + 32);
    __m128i v3 = load_16(data + 48);
    data += 64;
    size_bytes -= 64;
    for (; size_bytes >= 64; size_bytes -= 64, data += 64) {
        v0 = fold(v0, by_64, load_16(data));
        v1 = fold(v1, by_64, load_16(data + 16));
        v2 = fold(v2, by_64, load_16(data + 32));
        v3 = fold(v3, by_64, load_16(data + 48));
    }
    v1 = fold(v0, by_16, v1);
    v2 = fold(v1, by_16, v2);
    v3 = fold(v2, by_16, v3);
    for (; size_bytes >= 16; size_bytes -= 16, data += 16)
        v3 = fold(v3, by_16, load_16(data));
    /* What is left is a message of 16 bytes with the same remainder. */
    crc = update_word(crc32_tables, 0, (uint64_t)_mm_cvtsi128_si64(v3));
    crc = update_word(crc32_tables, crc, (uint64_t)_mm_extract_epi64(v3, 1));
    return update_portable(crc32_tables, crc, data, size_bytes);
}

static uint32_t
crc32_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    if (size_bytes < 64)
        return fbk_crc32_portable(crc, data, size_bytes);
    return ~crc32_folded(~crc, data, size_bytes);
}

/* ------------ aarch64: instructions for both, one lane */

#elif defined(__aarch64__) && defined(__linux__) && !defined(FBK_CHECKSUM_PORTABLE)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>

#define FBK_HARDWARE __attribute__((target("+crc")))

static void
hardware_find(void)
{
    have_hardware = (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0;
}

FBK_HARDWARE static uint32_t
crc32c_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    crc = ~crc;
    for (; size_bytes >= 8; size_bytes -= 8, data += 8)
        crc = __crc32cd(crc, fbk_load_u64(data));
    for (; size_bytes != 0; size_bytes--, data++)
        crc = __crc32cb(crc, *data);
    return ~crc;
}

static uint32_t
crc32c_copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    while (size_bytes != 0) {
        size_t block = size_bytes < COPY_BLOCK_BYTES ? size_bytes : COPY_BLOCK_BYTES;
        memcpy(to, from, block);
        crc = crc32c_hardware(crc, to, block);
        to += block;
        from += block;
        size_bytes -= block;
    }
    return crc;
}

FBK_HARDWARE static uint32_t
crc32_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    crc = ~crc;
    for (; size_bytes >= 8; size_bytes -= 8, data += 8)
        crc = __crc32d(crc, fbk_load_u64(data));
    for (; size_bytes != 0; size_bytes--, data++)
        crc = __crc32b(crc, *data);
    return ~crc;
}

static uint32_t
combine_hardware(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    return fbk_crc32c_combine_portable(crc_a, crc_b, size_b_bytes);
}

/* ------------ anything else */

#else

static void
hardware_find(void)
{
}

static uint32_t
crc32c_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    return fbk_crc32c_portable(crc, data, size_bytes);
}

static uint32_t
crc32c_copy_hardware(uint32_t crc, uint8_t *to, const uint8_t *from, size_t size_bytes)
{
    return fbk_crc32c_copy_portable(crc, to, from, size_bytes);
}

static uint32_t
combine_hardware(uint32_t crc_a, uint32_t crc_b, uint64_t size_b_bytes)
{
    return fbk_crc32c_combine_portable(crc_a, crc_b, size_b_bytes);
}

static uint32_t
crc32_hardware(uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    return fbk_crc32_portable(crc, data, size_bytes);
}

#endif
