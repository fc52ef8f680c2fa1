/* Not a test: how long a durable 4 KiB write takes on io_uring and on plain, in microseconds.
 *
 * usage: measure_disk [folder]
 * build: gcc -O2 -D_GNU_SOURCE -Ifastbk/native/src -Itests/native tests/native/measure_disk.c \
 *        fastbk/native/src/{io/{common,plain,uring,uring_queue},base/segment}.c -l:liburing.a
 * -pthread */
#include "io_suite.h"

static struct fbk_io *
create_uring(int32_t *error)
{
    return fbk_io_uring_create(folder, 4, error);
}

static struct fbk_io *
create_plain(int32_t *error)
{
    return fbk_io_plain_create(folder, error);
}

static int
compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

#define COMMITS 2000
#define SLICES 20

/* Both backends in one run, in alternating slices: the disk's mood is the same for both. */
static void
time_commits(void)
{
    int32_t error;
    struct fbk_io *ios[2] = {create_uring(&error), create_plain(&error)};
    CHECK(ios[0] != NULL && ios[1] != NULL);
    static uint64_t spent[2][COMMITS];
    uint8_t *data = buffer_of(4096, 1);
    for (int b = 0; b < 2; b++)
        printf("%s: %s\n", ios[b]->name, ios[b]->sync_mode);
    int32_t files[2];
    for (int b = 0; b < 2; b++) {
        files[b] = ios[b]->operations->open(ios[b], path_of(b ? "time.plain" : "time.uring"),
                                            FBK_IO_CREATE | FBK_IO_DIRECT);
        CHECK(files[b] >= 0);
        CHECK_EQUAL(ios[b]->operations->preallocate(ios[b], files[b], 0, 16u << 20), 0);
    }
    for (uint32_t i = 0; i < COMMITS; i++)
        for (int b = 0; b < 2; b++) {
            uint32_t slice = COMMITS / SLICES;
            uint32_t n = i / slice * slice; /* one backend's slice, then the other's */
            if (i % slice != 0)
                continue;
            for (uint32_t k = n; k < n + slice; k++) {
                uint64_t begin = fbk_now_ns();
                write_all(ios[b], files[b], data, 4096, (uint64_t)k * 4096, FBK_IO_SYNC);
                spent[b][k] = fbk_now_ns() - begin;
            }
        }
    for (int b = 0; b < 2; b++) {
        qsort(spent[b], COMMITS, sizeof spent[b][0], compare_u64);
        printf("%-9s 4 KiB durable: p50 %.1f us  p90 %.1f us  p99 %.1f us\n", ios[b]->name,
               (double)spent[b][COMMITS / 2] / 1e3, (double)spent[b][COMMITS * 9 / 10] / 1e3,
               (double)spent[b][COMMITS * 99 / 100] / 1e3);
        ios[b]->operations->close(ios[b], files[b]);
        ios[b]->operations->unlink(ios[b], path_of(b ? "time.plain" : "time.uring"));
        ios[b]->operations->destroy(ios[b]);
    }
    fbk_memory_give_back(data, 4096);
}

int
main(int argc, char **argv)
{
    if (argc > 1)
        snprintf(folder, sizeof folder, "%s", argv[1]);
    time_commits();
    return 0;
}
