/* What the index counts of an add that it takes in, by itself: its counters and the sketch of hot
 * ledgers, called as index/apply.c does.  No test: build with -O2 and run alone.  PROGRAM [LEDGERS
 * [SECONDS]] */
#include "check.h"

#include "index/hot_ledgers.h"
#include "base/slots.h"
#include "base/stats.h"

#include <time.h>

#define ADDS_A_TURN 4096u
#define DATA_BYTES 136u

/* Processor time: others may run on this machine too. */
static uint64_t
cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static struct fbk_stats stats;
static struct fbk_hot_sketch sketch;
static struct fbk_hot_windows windows;
static int64_t ledger_ids[ADDS_A_TURN];

/* Not part of main: ./dev bench observation counts its instructions. */
void count_turn(uint64_t now_ns);

__attribute__((noinline)) void
count_turn(uint64_t now_ns)
{
    for (uint32_t n = 0; n < ADDS_A_TURN; n++) {
        int64_t ledger_id = ledger_ids[n];
        __asm__ volatile("" : "+r"(ledger_id));
        fbk_count(&stats, FBK_C_INDEX_ENTRIES, 1);
        fbk_count(&stats, FBK_C_INDEX_ENTRY_BYTES, DATA_BYTES);
        fbk_hot_note(&sketch, ledger_id, 1, DATA_BYTES);
    }
    fbk_hot_roll(&sketch, &windows, now_ns);
}

int
main(int argc, char **argv)
{
    const uint32_t ledgers = argc > 1 ? (uint32_t)atoi(argv[1]) : 1;
    const uint64_t run_ns = (uint64_t)((argc > 2 ? strtod(argv[2], NULL) : 2.0) * 1e9);
    CHECK(ledgers > 0);
    uint64_t random = 1, adds = 0, spent_ns = 0, began_ns = fbk_now_ns();
    for (uint32_t n = 0; n < ADDS_A_TURN; n++) {
        random = random * 6364136223846793005ull + 1442695040888963407ull;
        ledger_ids[n] = (int64_t)((random >> 33) % ledgers);
    }
    fbk_hot_init(&sketch, 1, began_ns);
    for (uint64_t now_ns = began_ns; now_ns - began_ns < run_ns; now_ns = fbk_now_ns()) {
        const uint64_t t0 = cpu_ns();
        count_turn(now_ns);
        spent_ns += cpu_ns() - t0;
        adds += ADDS_A_TURN;
    }
    printf("%u ledgers: index counts %.2f ns an add (%" PRIu64 " adds)\n", ledgers,
           (double)spent_ns / (double)adds, adds);
    return 0;
}
