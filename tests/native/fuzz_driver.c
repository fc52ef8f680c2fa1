/* Runs a fuzz harness without libFuzzer: PROGRAM RUNS SEED [FILE...].
 *
 * Each input is a seed file (or nothing) with a few random changes. This is no search guided by
 * coverage, which
 * `./dev fuzz` has; it is the same short run on every machine, repeated by its seed. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define INPUT_SIZE_BYTES_MAX ((size_t)1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static uint64_t random_state;

/* splitmix64: any seed will do, zero included. */
static uint64_t
next_random(void)
{
    uint64_t z = (random_state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static size_t
below(size_t limit)
{
    return limit == 0 ? 0 : (size_t)(next_random() % limit);
}

static size_t
load(const char *path, uint8_t *into)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL) {
        perror(path);
        exit(1);
    }
    const size_t size = fread(into, 1, INPUT_SIZE_BYTES_MAX, file);
    fclose(file);
    return size;
}

/* One random change; returns the new size. */
static size_t
change(uint8_t *input, size_t size)
{
    static const uint64_t edges[] = {
        0,         1,      0x7f,       0x80,       0xff,       0x7fff,
        0x8000,    0xffff, 0x7fffffff, 0x80000000, 0xffffffff, UINT64_C(0x7fffffffffffffff),
        UINT64_MAX};
    const size_t at = below(size);
    switch (below(7)) {
    case 0: /* flip a bit */
        if (size > 0)
            input[at] ^= (uint8_t)(1U << below(8));
        return size;
    case 1: /* any byte */
        if (size > 0)
            input[at] = (uint8_t)next_random();
        return size;
    case 2: { /* a number at an edge, of 1 to 8 bytes */
        const size_t width = (size_t)1 << below(4);
        const uint64_t value = edges[below(sizeof edges / sizeof edges[0])];
        if (width <= size)
            memcpy(input + below(size - width + 1), &value, width);
        return size;
    }
    case 3: /* cut */ return at;
    case 4: { /* grow by noise */
        const size_t room = INPUT_SIZE_BYTES_MAX - size;
        const size_t more = below(room < 64 ? room + 1 : 65);
        for (size_t i = 0; i < more; i++)
            input[size + i] = (uint8_t)next_random();
        return size + more;
    }
    case 5: { /* copy a piece elsewhere */
        const size_t length = below(size - at < 64 ? size - at + 1 : 65);
        memmove(input + below(size - length + 1), input + at, length);
        return size;
    }
    default: { /* take a piece out */
        const size_t length = below(size - at < 64 ? size - at + 1 : 65);
        memmove(input + at, input + at + length, size - at - length);
        return size - length;
    }
    }
}

int
main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    const uint64_t runs = strtoull(argv[1], NULL, 10);
    random_state = strtoull(argv[2], NULL, 10);
    const size_t file_count = (size_t)argc - 3;

    uint8_t *original = malloc(INPUT_SIZE_BYTES_MAX);
    uint8_t *input = malloc(INPUT_SIZE_BYTES_MAX);
    if (original == NULL || input == NULL)
        return 1;
    for (uint64_t run = 0; run < runs; run++) {
        /* A file is read once for many inputs: reading it each time would take most of the time. */
        static size_t original_size;
        if (run % 1024 == 0 && file_count > 0)
            original_size = load(argv[3 + below(file_count)], original);
        size_t size = original_size;
        memcpy(input, original, size);
        const size_t changes = run == 0 ? 0 : below(8);
        for (size_t i = 0; i < changes; i++)
            size = change(input, size);
        /* Exactly as large as the input, so that ASan sees the first byte read past it. */
        uint8_t *exact = malloc(size > 0 ? size : 1);
        if (exact == NULL)
            return 1;
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    free(original);
    free(input);
    return 0;
}
