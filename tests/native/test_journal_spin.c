/* A journal that polls for the end of a write has no ticket out: no worker rings for it.  Each look
 * at the disk is the test's, which sees there what a worker would see. */

#include "journal_harness.h"

#define FILE_BYTES (4u * 1024 * 1024)
#define RING_BYTES (1u * 1024 * 1024)
#define LONG_US 60000000u
#define DEADLINE_NS 50000000000ull
#define LOOKS 10 /* as many until something comes; each gives the processor away */

static struct harness harness;
static struct fbk_io_operations operations;
static uint64_t began_ns;
static uint32_t looks, tickets;
/* at the disk: what comes at look LOOKS, or at the first of a sleeper */
static void (*comes)(void);

/* Would a worker that adds something now ring? */
static bool
is_to_be_rung(void)
{
    uint64_t rung = 0;
    return fbk_bell_needed(&harness.segment->sleeper, &rung);
}

static int32_t
look(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms, struct fbk_io_completion *completions,
     int32_t completions_max, int32_t *rung)
{
    CHECK(fbk_now_ns() - began_ns < DEADLINE_NS);
    const bool is_asleep = timeout_ms != 0;
    CHECK(is_to_be_rung() || !is_asleep);
    if (comes != NULL) { /* what follows is not counted */
        looks++;
        tickets += is_to_be_rung();
        if (looks == LOOKS || is_asleep) {
            void (*now)(void) = comes;
            comes = NULL;
            now();
        }
    }
    return steered_wait(io, event_fd, timeout_ms, completions, completions_max, rung);
}

static void
complete(void)
{
    for (uint32_t n = 0; n < harness.disk.write_count; n++)
        steered_release(&harness.disk, n);
}

static void
make(uint32_t spin_us)
{
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    operations = STEERED_OPERATIONS;
    operations.wait = look;
    harness.disk.io.operations = &operations;
    harness.disk.hold = true;
    harness.options.spin_us = spin_us;
    harness.options.second_batch_bytes_min = 500;
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 0xabcd), -1);
    looks = tickets = 0;
    began_ns = fbk_now_ns();
}

static uint64_t
spins(void)
{
    return atomic_load_explicit(&harness.journal->segment->stats.counters[FBK_C_JOURNAL_SPINS],
                                memory_order_relaxed);
}

static void
test_who_polls_is_not_rung_for(void)
{
    make(LONG_US);
    comes = complete;
    harness_add(&harness, 0, 5, 0, 1, 0, 100);
    CHECK(fbk_journal_step(harness.journal, -1) & FBK_JOURNAL_PUBLISHED);
    CHECK(harness_next_descriptor(&harness) != NULL);
    CHECK_EQUAL(looks, LOOKS);
    CHECK_EQUAL(tickets, 0);
    CHECK_EQUAL(spins(), 1);
    harness_free(&harness);
}

static void
complete_both(void)
{
    CHECK_EQUAL(harness.disk.write_count, 2);
    complete();
}

static void
add_enough(void)
{
    CHECK(!is_to_be_rung());
    harness_add(&harness, 0, 5, 1, 1, 0, 1000);
    looks = 0;
    comes = complete_both;
}

static void
test_what_comes_meanwhile_is_taken_without_a_bell(void)
{
    make(LONG_US);
    comes = add_enough;
    harness_add(&harness, 0, 5, 0, 1, 0, 100);
    CHECK(fbk_journal_step(harness.journal, -1) & FBK_JOURNAL_PUBLISHED);
    CHECK(harness_next_descriptor(&harness) != NULL && harness_next_descriptor(&harness) != NULL);
    CHECK_EQUAL(looks, LOOKS);
    CHECK_EQUAL(spins(), 2);
    harness_free(&harness);
}

static void
ring(void)
{
    CHECK(!is_to_be_rung());
    fbk_bell_ring(harness.options.bell_fd);
}

static void
test_a_message_for_python_ends_a_poll(void)
{
    make(LONG_US);
    comes = ring;
    harness_add(&harness, 0, 5, 0, 1, 0, 100);
    CHECK_EQUAL(fbk_journal_step(harness.journal, -1), FBK_JOURNAL_BELL);
    CHECK_EQUAL(looks, LOOKS);
    CHECK_EQUAL(tickets, 0);
    harness_free(&harness);
}

/* The write takes longer, or it is not to be polled for: the journal sleeps, and is rung for. */
static void
test_who_does_not_poll_any_more_is_rung_for(uint32_t spin_us)
{
    make(spin_us);
    comes = complete;
    harness_add(&harness, 0, 5, 0, 1, 0, 100);
    CHECK(fbk_journal_step(harness.journal, -1) & FBK_JOURNAL_PUBLISHED);
    CHECK_EQUAL(tickets, 1);
    CHECK_EQUAL(spins(), spin_us > 0);
    harness_free(&harness);
}

static void
nothing(void)
{
}

static void
test_without_a_write_nobody_polls(void)
{
    make(LONG_US);
    comes = nothing;
    CHECK_EQUAL(fbk_journal_step(harness.journal, 1), 0);
    CHECK_EQUAL(looks, 1);
    CHECK_EQUAL(tickets, 1);
    CHECK_EQUAL(spins(), 0);
    harness_free(&harness);
}

int
main(void)
{
    test_who_polls_is_not_rung_for();
    test_what_comes_meanwhile_is_taken_without_a_bell();
    test_a_message_for_python_ends_a_poll();
    test_who_does_not_poll_any_more_is_rung_for(0);
    test_who_does_not_poll_any_more_is_rung_for(1);
    test_without_a_write_nobody_polls();
    return 0;
}
