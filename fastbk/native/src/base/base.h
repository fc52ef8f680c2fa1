/* What every C file of fastbk stands on: checked arithmetic, loads and stores, asserts.  No
 * state. */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "fastbk's formats and shared memory are little-endian"
#endif

#define FBK_CACHE_LINE_BYTES 64u
#define FBK_PAGE_BYTES 4096u
#define FBK_KIB 1024ull
#define FBK_MIB (1024ull * 1024ull)

#define FBK_LIKELY(x) __builtin_expect(!!(x), 1)
#define FBK_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* A broken invariant is a bug in us: die here, before it reaches a disk.  Never for bytes from
 * outside. */
#define FBK_ASSERT(x)                                  \
    do {                                               \
        if (FBK_UNLIKELY(!(x)))                        \
            fbk_assert_failed(#x, __FILE__, __LINE__); \
    } while (0)
#ifdef FBK_DEBUG
#define FBK_DEBUG_ASSERT(x) FBK_ASSERT(x)
#else
#define FBK_DEBUG_ASSERT(x) ((void)0)
#endif

__attribute__((noreturn, cold, noinline, unused)) static void
fbk_assert_failed(const char *what, const char *file, int line)
{
    fprintf(stderr, "fastbk: broken invariant `%s` at %s:%d\n", what, file, line);
    abort();
}

static inline uint64_t
fbk_round_up(uint64_t value, uint64_t multiple) /* multiple: a power of two */
{
    return (value + multiple - 1) & ~(multiple - 1);
}

static inline uint16_t
fbk_load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, 2);
    return v;
}
static inline uint32_t
fbk_load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}
static inline uint64_t
fbk_load_u64(const void *p)
{
    uint64_t v;
    memcpy(&v, p, 8);
    return v;
}
static inline void
fbk_store_u16(void *p, uint16_t v)
{
    memcpy(p, &v, 2);
}
static inline void
fbk_store_u32(void *p, uint32_t v)
{
    memcpy(p, &v, 4);
}
static inline void
fbk_store_u64(void *p, uint64_t v)
{
    memcpy(p, &v, 8);
}
/* Apache's entry bytes are big-endian. */
static inline uint64_t
fbk_load_be64(const void *p)
{
    return __builtin_bswap64(fbk_load_u64(p));
}
static inline void
fbk_store_be64(void *p, uint64_t v)
{
    fbk_store_u64(p, __builtin_bswap64(v));
}
static inline uint32_t
fbk_load_be32(const void *p)
{
    return __builtin_bswap32(fbk_load_u32(p));
}
static inline void
fbk_store_be32(void *p, uint32_t v)
{
    fbk_store_u32(p, __builtin_bswap32(v));
}

/* Between two looks of a loop that polls. */
static inline void
fbk_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

uint64_t fbk_now_ns(void); /* CLOCK_MONOTONIC; base/segment.c */
