/* Checksums: published vectors, a bit-by-bit model, fast path against tables, combining, and what a
 * copy whose source changes meanwhile must still promise. `test_checksum time` prints nanoseconds
 * instead. */
#include "base/checksum.h"

#include "check.h"

#include <pthread.h>
#include <time.h>

#define BUFFER_BYTES 20000u

static uint32_t
crc_by_bits(uint32_t polynomial, uint32_t crc, const uint8_t *data, size_t size_bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < size_bytes; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ ((crc & 1u) ? polynomial : 0u);
    }
    return ~crc;
}

/* RFC 3720 B.4 and the check values of the CRC catalogue. */
static void
test_known_vectors(void)
{
    uint8_t bytes[48];
    CHECK_EQUAL(fbk_crc32c(0, "123456789", 9), 0xe3069283u);
    CHECK_EQUAL(fbk_crc32(0, "123456789", 9), 0xcbf43926u);
    CHECK_EQUAL(fbk_crc32c_portable(0, "123456789", 9), 0xe3069283u);
    CHECK_EQUAL(fbk_crc32_portable(0, "123456789", 9), 0xcbf43926u);
    memset(bytes, 0, 32);
    CHECK_EQUAL(fbk_crc32c(0, bytes, 32), 0x8a9136aau);
    memset(bytes, 0xff, 32);
    CHECK_EQUAL(fbk_crc32c(0, bytes, 32), 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = i;
    CHECK_EQUAL(fbk_crc32c(0, bytes, 32), 0x46dd794eu);
    for (uint8_t i = 0; i < 32; i++)
        bytes[i] = (uint8_t)(31 - i);
    CHECK_EQUAL(fbk_crc32c(0, bytes, 32), 0x113fdb5cu);
    CHECK_EQUAL(fbk_crc32c(0, NULL, 0), 0);
    CHECK_EQUAL(fbk_crc32(7, NULL, 0), 7);
}

static void
check_one(const uint8_t *data, size_t size_bytes, uint32_t start)
{
    static uint8_t copy[BUFFER_BYTES + 16];
    uint32_t wanted = crc_by_bits(0x82f63b78u, start, data, size_bytes);
    CHECK_EQUAL(fbk_crc32c(start, data, size_bytes), wanted);
    CHECK_EQUAL(fbk_crc32c_portable(start, data, size_bytes), wanted);
    for (int portable = 0; portable < 2; portable++) {
        memset(copy, 0xa5, sizeof copy);
        uint8_t *to = copy + 8;
        uint32_t got = portable ? fbk_crc32c_copy_portable(start, to, data, size_bytes)
                                : fbk_crc32c_copy(start, to, data, size_bytes);
        CHECK_EQUAL(got, wanted);
        CHECK(memcmp(to, data, size_bytes) == 0);
        CHECK(to[-1] == 0xa5 && to[size_bytes] == 0xa5);
    }
    wanted = crc_by_bits(0xedb88320u, start, data, size_bytes);
    CHECK_EQUAL(fbk_crc32(start, data, size_bytes), wanted);
    CHECK_EQUAL(fbk_crc32_portable(start, data, size_bytes), wanted);
}

static void
test_every_length_and_alignment(void)
{
    static uint8_t bytes[BUFFER_BYTES + 8];
    test_fill(bytes, sizeof bytes, 1);
    for (size_t size = 0; size <= 700; size++)
        for (size_t offset = 0; offset < 8; offset += 3)
            check_one(bytes + offset, size, offset == 0 ? 0 : (uint32_t)(size * 2654435761u));
    for (size_t size = 3000; size <= BUFFER_BYTES; size += 977)
        check_one(bytes + size % 8, size, (uint32_t)size);
}

static void
test_pieces_equal_the_whole(void)
{
    static uint8_t bytes[BUFFER_BYTES];
    uint64_t seed = 7;
    test_fill(bytes, sizeof bytes, 2);
    for (int round = 0; round < 300; round++) {
        size_t size = test_random(&seed) % BUFFER_BYTES,
               cut = size == 0 ? 0 : test_random(&seed) % size;
        uint32_t whole = fbk_crc32c(0, bytes, size);
        uint32_t first = fbk_crc32c(0, bytes, cut), second = fbk_crc32c(0, bytes + cut, size - cut);
        CHECK_EQUAL(fbk_crc32c(first, bytes + cut, size - cut), whole);
        CHECK_EQUAL(fbk_crc32c_combine(first, second, size - cut), whole);
        CHECK_EQUAL(fbk_crc32c_combine_portable(first, second, size - cut), whole);
        CHECK_EQUAL(fbk_crc32(fbk_crc32(0, bytes, cut), bytes + cut, size - cut),
                    fbk_crc32(0, bytes, size));
    }
}

/* Sizes no buffer could have: moving over n bytes and then m must equal moving over n + m. */
static void
test_combine_over_huge_sizes(void)
{
    uint64_t seed = 11;
    for (int round = 0; round < 1000; round++) {
        uint32_t a = (uint32_t)test_random(&seed), b = (uint32_t)test_random(&seed);
        uint64_t n = test_random(&seed) >> (1 + test_random(&seed) % 62),
                 m = test_random(&seed) >> (1 + test_random(&seed) % 62);
        uint32_t once = fbk_crc32c_combine(a, b, n + m);
        CHECK_EQUAL(fbk_crc32c_combine(fbk_crc32c_combine(a, 0, n), b, m), once);
        CHECK_EQUAL(fbk_crc32c_combine_portable(a, b, n + m), once);
    }
    CHECK_EQUAL(fbk_crc32c_combine(5, 0, 0), 5);
}

/* The producer of a ring may write while we copy: the result must still belong to the bytes that
 * arrived. */
static uint8_t changing[8192];
static _Atomic int stop_changing;

static void *
change(void *unused)
{
    (void)unused;
    uint64_t seed = 3;
    while (!stop_changing) {
        volatile uint64_t *at =
            (volatile uint64_t *)(void *)(changing + test_random(&seed) % 1024 * 8);
        *at = test_random(&seed);
    }
    return NULL;
}

static void
test_copy_of_changing_bytes(void)
{
    static uint8_t copy[sizeof changing];
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, change, NULL) == 0);
    for (int round = 0; round < 3000; round++) {
        uint32_t crc = fbk_crc32c_copy(0, copy, changing, sizeof changing);
        CHECK_EQUAL(crc, fbk_crc32c(0, copy, sizeof copy));
    }
    stop_changing = 1;
    CHECK(pthread_join(thread, NULL) == 0);
}

static double
now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static volatile uint32_t sink;

static void
time_all(void)
{
    static uint8_t bytes[1 << 20], copy[1 << 20];
    test_fill(bytes, sizeof bytes, 5);
    printf("hardware %d\n%10s %10s %10s %10s %10s %10s   ns per KiB (combine: ns a call)\n",
           fbk_checksum_is_hardware(), "bytes", "crc32c", "copy", "crc32", "crc32c tab", "combine");
    static const size_t sizes[] = {64, 96, 256, 1024, 4096, 65536, 1 << 20};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        double best[5] = {1e9, 1e9, 1e9, 1e9, 1e9};
        size_t size = sizes[s], rounds = (4u << 20) / size;
        for (int attempt = 0; attempt < 9; attempt++)
            for (int kind = 0; kind < 5; kind++) {
                double begin = now_ns();
                uint32_t crc = 0;
                for (size_t i = 0; i < rounds; i++)
                    crc = kind == 0   ? fbk_crc32c(crc, bytes, size)
                          : kind == 1 ? fbk_crc32c_copy(crc, copy, bytes, size)
                          : kind == 2 ? fbk_crc32(crc, bytes, size)
                          : kind == 3 ? fbk_crc32c_portable(crc, bytes, size)
                                      : fbk_crc32c_combine(crc, 1, size + 1);
                sink = crc;
                double spent = (now_ns() - begin) / (double)rounds;
                if (kind != 4)
                    spent = spent / (double)size * 1024;
                if (spent < best[kind])
                    best[kind] = spent;
            }
        printf("%10zu %10.1f %10.1f %10.1f %10.1f %10.1f\n", size, best[0], best[1], best[2],
               best[3], best[4]);
    }
}

int
main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "time") == 0) {
        time_all();
        return 0;
    }
    test_known_vectors();
    test_every_length_and_alignment();
    test_pieces_equal_the_whole();
    test_combine_over_huge_sizes();
    test_copy_of_changing_bytes();
    return 0;
}
