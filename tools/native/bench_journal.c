/* What an add costs the journal's C: from the ring to the published batch, with a disk in memory
 * that only copies. No test: build with -O2 and run alone.  PROGRAM [DATA_BYTES [SECONDS
 * [ADDS_A_BATCH]]] */
#include "journal_harness.h"

#include <time.h>

#define FILE_BYTES (64u << 20)
#define RING_BYTES (8u << 20)
#define LEDGER_ID 5

/* Processor time: others may run on this machine too. */
static uint64_t
cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

int
main(int argc, char **argv)
{
    const uint32_t data_bytes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1024;
    const uint64_t run_ns = (uint64_t)((argc > 2 ? strtod(argv[2], NULL) : 2.0) * 1e9);
    const uint32_t count = argc > 3 ? (uint32_t)atoi(argv[3]) : 500;
    const uint64_t batch_bytes = (uint64_t)count * (sizeof(struct fbk_record) + data_bytes + 8);
    CHECK(count > 0 && batch_bytes < 1u << 20);
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    uint64_t file_id = 1, written_bytes = 0, adds = 0, spent_ns = 0, began_ns = fbk_now_ns();
    CHECK_EQUAL(harness_roll(&harness, 1, file_id, file_id), -1);
    while (fbk_now_ns() - began_ns < run_ns) {
        if (written_bytes + 2 * batch_bytes + 64 * 1024 > FILE_BYTES) {
            file_id++;
            CHECK(harness_roll(&harness, 1 + (int32_t)(file_id % 2), file_id, file_id) >= 0);
            written_bytes = 0;
        }
        for (uint32_t n = 0; n < count; n++)
            harness_add(&harness, 0, LEDGER_ID, (int64_t)(adds + n), 1, 0, data_bytes);
        const uint64_t t0 = cpu_ns();
        harness_settle(&harness);
        spent_ns += cpu_ns() - t0;
        harness_consume(&harness);
        adds += count;
        written_bytes += batch_bytes + 4096;
    }
    printf("%u adds of %u bytes a batch: journal %.1f ns an add (%" PRIu64 " adds)\n", count,
           data_bytes, (double)spent_ns / (double)adds, adds);
    harness_free(&harness);
    return 0;
}
