/* What the journal decides about each record: new, to be checked, refused, fence, barrier, or no
 * record at all. */

#include "journal_harness.h"

#define FILE_BYTES (4u * 1024 * 1024)
#define RING_BYTES (4u * 1024 * 1024)

static void
test_verdicts(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness.options.ledgers_max = 4;
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    uint64_t new_add = harness_add(&harness, 0, 1, 5, 1, 0, 64);
    uint64_t lower = harness_add(&harness, 0, 1, 4, 1, 0, 64);
    /* the lower one has not lowered the highest */
    uint64_t between = harness_add(&harness, 0, 1, 5, 1, 0, 64);
    uint64_t other_key = harness_add(&harness, 0, 1, 6, 2, 0, 64);
    uint64_t fence_other_key = harness_fence(&harness, 0, 1, 2);
    uint64_t batch = harness_add_batch(&harness, 0, 1, 6, 1, 10, 50);
    uint64_t again = harness_add(&harness, 0, 1, 15, 1, 0, 64);
    uint64_t fence = harness_fence(&harness, 0, 1, 1);
    uint64_t behind = harness_add(&harness, 0, 1, 16, 1, 0, 64);
    uint64_t recovery = harness_add(&harness, 0, 1, 16, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t recovery_again = harness_add(&harness, 0, 1, 16, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t fence_again = harness_fence(&harness, 0, 1, 1);
    uint64_t force = harness_put(&harness, 0, harness_record(FBK_KIND_FORCE, 1, -1, 1), "");
    uint64_t unknown_fence = harness_fence(&harness, 0, 2, 3); /* INV-F2 */
    uint64_t behind_unknown = harness_add(&harness, 0, 2, 0, 3, 0, 64);
    struct fbk_record too_far = harness_record(FBK_KIND_ADD_BATCH, 3, INT64_MAX, 1);
    too_far.entry_count = 2;
    too_far.payload_bytes = 2 * 8 + 2 * 32;
    uint8_t zeros[80] = {32, [8] = 32};
    uint64_t overflow = harness_put(&harness, 0, too_far, zeros);
    uint64_t last_id = harness_add(&harness, 0, 3, INT64_MAX, 1, 0, 64);
    uint64_t last_id_again = harness_add(&harness, 0, 3, INT64_MAX, 1, 0, 64);
    harness_add(&harness, 0, 4, 0, 1, 0, 64);
    uint64_t fifth = harness_add(&harness, 0, 5, 0, 1, 0, 64);
    uint64_t fifth_fence = harness_fence(&harness, 0, 6, 1);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, new_add), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, lower), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, between), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, other_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence_other_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(harness_verdict(&harness, 0, batch), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, again), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, behind), FBK_S_FENCED); /* INV-F1 */
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery_again), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence_again), FBK_V_ORDERED);
    CHECK_EQUAL(harness_verdict(&harness, 0, force), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, unknown_fence), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, behind_unknown), FBK_S_FENCED);
    CHECK_EQUAL(harness_verdict(&harness, 0, overflow), FBK_S_BAD_REQUEST);
    CHECK_EQUAL(harness_verdict(&harness, 0, last_id), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, last_id_again), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, fifth), FBK_S_TOO_MANY_REQUESTS);
    CHECK_EQUAL(harness_verdict(&harness, 0, fifth_fence), FBK_S_TOO_MANY_REQUESTS);
    const struct fbk_batch_descriptor *descriptor = harness_next_descriptor(&harness);
    /* new, lower, between, batch, again, fence, two recoveries, unknown fence, two last ids, ledger
     * 4 */
    CHECK_EQUAL(descriptor->record_count, 12);
    CHECK_EQUAL(descriptor->exceptions_end, 13);
    harness_free(&harness);
}

static void
test_read_only_and_limits(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    fbk_cursor_store(&harness.index->reads_only, 1);
    uint64_t add = harness_add(&harness, 0, 1, 0, 1, 0, 64);
    uint64_t recovery = harness_add(&harness, 0, 1, 0, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t fence = harness_fence(&harness, 0, 2, 1);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, add), FBK_S_READ_ONLY);
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence), 0);
    fbk_cursor_store(&harness.index->reads_only, FBK_JOURNAL_NO_WRITES);
    recovery = harness_add(&harness, 0, 1, 1, 1, FBK_FLAG_RECOVERY, 64);
    fence = harness_fence(&harness, 0, 1, 1);
    uint64_t fenced_before = harness_fence(&harness, 0, 2, 1);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery), FBK_S_READ_ONLY);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence), FBK_S_READ_ONLY);
    /* nothing has to be written for this one */
    CHECK_EQUAL(harness_verdict(&harness, 0, fenced_before), FBK_V_ORDERED);
    fbk_cursor_store(&harness.index->reads_only, 0);
    fbk_journal_set_limit(harness.journal, FBK_JOURNAL_NO_ADDS);
    add = harness_add(&harness, 0, 1, 1, 1, 0, 64);
    recovery = harness_add(&harness, 0, 1, 1, 1, FBK_FLAG_RECOVERY, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, add), FBK_S_READ_ONLY);
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery), 0);
    fbk_journal_set_limit(harness.journal, FBK_JOURNAL_NO_WRITES);
    uint32_t writes = harness.disk.started;
    recovery = harness_add(&harness, 0, 1, 2, 1, FBK_FLAG_RECOVERY, 64);
    fence = harness_fence(&harness, 0, 1, 1);
    uint64_t fence_again = harness_fence(&harness, 0, 2, 1);
    uint64_t force = harness_put(&harness, 0, harness_record(FBK_KIND_FORCE, 1, -1, 1), "");
    harness_settle(&harness);
    CHECK_EQUAL(harness.disk.started, writes);
    CHECK_EQUAL(harness_verdict(&harness, 0, recovery), FBK_S_READ_ONLY);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence), FBK_S_READ_ONLY);
    CHECK_EQUAL(harness_verdict(&harness, 0, fence_again), FBK_V_ORDERED);
    CHECK_EQUAL(harness_verdict(&harness, 0, force), 0);
    fbk_journal_set_limit(harness.journal, FBK_JOURNAL_OPEN);
    add = harness_add(&harness, 0, 1, 2, 1, 0, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, add), 0);
    harness_free(&harness);
}

/* A batch with nothing to write waits for those before it. */
static void
test_a_barrier_waits_for_what_is_in_flight(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness.options.second_batch_bytes_min = 8;
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    harness.disk.hold = true;
    harness_fence(&harness, 0, 1, 1);
    fbk_journal_step(harness.journal, 0);
    harness_fence(&harness, 0, 1, 1);
    harness_put(&harness, 0, harness_record(FBK_KIND_FORCE, 1, -1, 1), "");
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    CHECK(harness_next_descriptor(&harness) == NULL);
    steered_release(&harness.disk, 0);
    fbk_journal_step(harness.journal, 0);
    const struct fbk_batch_descriptor *one = harness_next_descriptor(&harness);
    const struct fbk_batch_descriptor *two = harness_next_descriptor(&harness);
    CHECK(one && two);
    CHECK_EQUAL(one->file_id, 1);
    CHECK_EQUAL(two->file_id, 0);
    CHECK_EQUAL(two->batch_sequence, 1);
    CHECK_EQUAL(two->record_count, 0);
    CHECK_EQUAL(two->ring_end[0], harness.workers[0].written);
    harness_free(&harness);
}

static void
test_bad_records_poison_the_ring(void)
{
    for (int what = 0; what < 12; what++) {
        struct harness harness;
        harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
        harness_open(&harness);
        CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
        uint64_t good = harness_add(&harness, 0, 1, 0, 1, 0, 640);
        harness_settle(&harness);
        CHECK_EQUAL(harness_verdict(&harness, 0, good), 0);
        uint64_t position = what == 9 ? harness_add_batch(&harness, 0, 1, 1, 1, 4, 100)
                                      : harness_add(&harness, 0, 1, 1, 1, 0, 640);
        uint8_t *at = fbk_ring_at(&harness.workers[0].ring, position);
        struct fbk_record record;
        memcpy(&record, at, sizeof record);
        bool reseal = true;
        switch (what) {
        case 0: record.size_bytes = 0x7fffffff; break;
        case 1: record.payload_bytes = 0x7fffffff; break;
        case 2: record.size_bytes = 0; break;
        case 3: record.kind = FBK_KIND_READ; break;
        case 4: record.sequence++; break;
        case 5: record.epoch++; break;
        case 6: record.entry_count = 2; break;
        case 7:
            reseal = false;
            record.ledger_id ^= 1;
            break;
        case 8: at[96 + 639] ^= 1; break;
        case 9: at[96 + 32 + 100] ^= 1; break; /* an entry of a batch */
        case 10:
            fbk_cursor_publish(&harness.workers[0].segment->add_written,
                               harness.workers[0].written + 2 * RING_BYTES);
            break;
        /* backwards */
        case 11: fbk_cursor_publish(&harness.workers[0].segment->add_written, 8); break;
        default: break;
        }
        if (reseal)
            fbk_record_seal(&record);
        memcpy(at, &record, sizeof record);
        CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_E_POISONED);
        struct fbk_journal_status status;
        fbk_journal_get_status(harness.journal, &status);
        CHECK_EQUAL(status.poison, what < 10 ? FBK_POISON_RING : FBK_POISON_CURSOR);
        CHECK_EQUAL(harness_next_descriptor(&harness)->record_count, 1);
        CHECK(harness_next_descriptor(&harness) == NULL);
        harness_free(&harness);
    }
}

static void
test_states_are_loaded(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    char name[] = "statesXXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    for (int64_t id = 0; id < 100; id++) {
        struct fbk_ledger_state state = {
            .ledger_id = id, .highest_entry_id = 10 * id, .flags = FBK_LEDGER_HAS_KEY};
        if (id == 7)
            state.flags |= FBK_LEDGER_FENCED;
        if (id == 10 || id == 11)
            state.flags |= FBK_LEDGER_DELETED;
        memset(state.master_key, (int)id, sizeof state.master_key);
        state.crc = fbk_crc32c(0, &state, offsetof(struct fbk_ledger_state, crc));
        CHECK_EQUAL(write(fd, &state, sizeof state), sizeof state);
    }
    CHECK_EQUAL(fbk_journal_load_states(harness.journal, fd, 100), 0);
    /* shorter than it says */
    CHECK_EQUAL(fbk_journal_load_states(harness.journal, fd, 101), FBK_E_CORRUPT);
    uint64_t fenced = harness_add(&harness, 0, 7, 71, 7, 0, 64);
    uint64_t highest = harness_add(&harness, 0, 8, 80, 8, 0, 64);
    uint64_t next = harness_add(&harness, 0, 8, 81, 8, 0, 64);
    uint64_t key = harness_add(&harness, 0, 9, 91, 8, 0, 64);
    uint64_t deleted = harness_add(&harness, 0, 10, 101, 10, 0, 64);
    uint64_t deleted_old = harness_add(&harness, 0, 10, 3, 10, 0, 64);
    uint64_t deleted_recovery = harness_add(&harness, 0, 10, 101, 10, FBK_FLAG_RECOVERY, 64);
    uint64_t deleted_batch = harness_add_batch(&harness, 0, 11, 111, 11, 3, 50);
    uint64_t deleted_key = harness_add(&harness, 0, 11, 111, 1, 0, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted_old), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted_recovery), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted_batch), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(harness.journal->segment->stats.counters[FBK_C_JOURNAL_REFUSED_DELETED], 4);
    CHECK_EQUAL(harness_verdict(&harness, 0, fenced), FBK_S_FENCED);
    CHECK_EQUAL(harness_verdict(&harness, 0, highest), FBK_V_CHECK);
    CHECK_EQUAL(harness_verdict(&harness, 0, next), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(pwrite(fd, "x", 1, 72 * 3), 1);
    CHECK_EQUAL(fbk_journal_load_states(harness.journal, fd, 100), FBK_E_CORRUPT);
    close(fd);
    harness_free(&harness);
}

static void
give_notice(struct harness *harness, int64_t ledger_id, uint32_t what)
{
    uint64_t written = fbk_cursor_load(&harness->index->notices_written);
    harness->index->notices[written % FBK_NOTICE_COUNT] =
        (struct fbk_notice){.ledger_id = ledger_id, .what = what};
    fbk_cursor_publish(&harness->index->notices_written, written + 1);
}

/* What metadata says comes through the index, within one life of the journal. */
static void
test_notices(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    harness_add(&harness, 0, 1, 0, 1, 0, 64);
    harness_fence(&harness, 0, 1, 1);
    harness_add(&harness, 0, 2, 0, 1, 0, 64);
    harness_settle(&harness);
    struct fbk_ledger_state *lost = fbk_ledgers_add(&harness.journal->ledgers, 3);
    lost->flags = FBK_LEDGER_LIMBO;
    fbk_ledgers_add(&harness.journal->ledgers, 4)->flags = FBK_LEDGER_LIMBO;
    uint64_t in_limbo = harness_add(&harness, 0, 3, 0, 1, 0, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, in_limbo), FBK_S_FENCED);
    give_notice(&harness, 1, FBK_NOTICE_DELETED);
    give_notice(&harness, 3, FBK_NOTICE_LIMBO_OVER);
    give_notice(&harness, 4, FBK_NOTICE_LIMBO_OVER_FENCED);
    give_notice(&harness, 99, FBK_NOTICE_DELETED); /* never heard of */
    uint64_t deleted = harness_add(&harness, 0, 1, 1, 1, 0, 64);
    uint64_t deleted_repair = harness_add(&harness, 0, 1, 0, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t alive = harness_add(&harness, 0, 2, 1, 1, 0, 64);
    uint64_t over = harness_add(&harness, 0, 3, 0, 1, 0, 64);
    uint64_t over_fenced = harness_add(&harness, 0, 4, 0, 1, 0, 64);
    harness_settle(&harness);
    /* fenced before: its writer is to hear that */
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted), FBK_S_FENCED);
    CHECK_EQUAL(harness_verdict(&harness, 0, deleted_repair), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness_verdict(&harness, 0, alive), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, over), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, over_fenced), FBK_S_FENCED);
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->notices_consumed), 4);
    fbk_cursor_publish(&harness.index->notices_written, 5 + FBK_NOTICE_COUNT);
    CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_E_POISONED);
    harness_free(&harness);
}

/* INV-G8: an unconfirmed ledger that was fenced, and that metadata is proven to have deleted. */
static void
test_ended(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    for (int64_t ledger = 1; ledger <= 2; ledger++) {
        harness_add(&harness, 0, ledger, 0, 1, 0, 64);
        harness_fence(&harness, 0, ledger, 1);
        harness_settle(&harness);
        give_notice(&harness, ledger, FBK_NOTICE_EXPIRING);
    }
    give_notice(&harness, 1, FBK_NOTICE_ENDED);
    give_notice(&harness, 2, FBK_NOTICE_DELETED);
    uint64_t ended = harness_add(&harness, 0, 1, 1, 1, 0, 64);
    uint64_t ended_repair = harness_add(&harness, 0, 1, 1, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t expired = harness_add(&harness, 0, 2, 1, 1, 0, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, ended), FBK_S_FENCED);
    CHECK_EQUAL(harness_verdict(&harness, 0, ended_repair), FBK_S_NO_LEDGER);
    /* its id may be a real ledger's */
    CHECK_EQUAL(harness_verdict(&harness, 0, expired), FBK_S_TOO_MANY_REQUESTS);
    harness_free(&harness);
}

static void
ask_to_forget(struct harness *harness, int64_t ledger_id, uint64_t sequence)
{
    uint64_t written = fbk_cursor_load(&harness->index->notices_written);
    harness->index->notices[written % FBK_NOTICE_COUNT] = (struct fbk_notice){
        .ledger_id = ledger_id, .what = FBK_NOTICE_FORGOTTEN, .sequence = sequence};
    fbk_cursor_publish(&harness->index->notices_written, written + 1);
}

/* A deleted ledger that no file knows any more is one never heard of, from the batch on that the
 * answer names. */
static void
test_forgotten(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    for (int64_t ledger = 1; ledger <= 3; ledger++)
        harness_add(&harness, 0, ledger, 7, 1, 0, 64);
    harness_settle(&harness);
    uint64_t flushed = harness.journal->sequence;
    give_notice(&harness, 1, FBK_NOTICE_DELETED);
    give_notice(&harness, 2, FBK_NOTICE_DELETED);
    harness_fence(&harness, 0, 2, 1); /* written: the index has not flushed it */
    harness_settle(&harness);
    uint64_t refused = harness_add(&harness, 0, 1, 8, 1, 0, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, refused), FBK_S_NO_LEDGER);
    CHECK_EQUAL(harness.journal->ledgers.count, 3);
    ask_to_forget(&harness, 1, flushed);
    ask_to_forget(&harness, 2, flushed);
    ask_to_forget(&harness, 3, flushed);  /* it lives */
    ask_to_forget(&harness, 99, flushed); /* never heard of */
    uint64_t order = harness.journal->order;
    uint64_t again = harness_add(&harness, 0, 1, 0, 1, 0, 64); /* below what it held */
    uint64_t fenced = harness_add(&harness, 0, 2, 8, 1, 0, 64);
    uint64_t alive = harness_add(&harness, 0, 3, 7, 1, FBK_FLAG_RECOVERY, 64);
    harness_settle(&harness);
    CHECK_EQUAL(harness_verdict(&harness, 0, again), 0);
    CHECK_EQUAL(harness_verdict(&harness, 0, fenced), FBK_S_FENCED);
    CHECK_EQUAL(harness_verdict(&harness, 0, alive), FBK_V_CHECK);
    const uint64_t *answers = harness.segment->notice_answers;
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->notices_consumed), 6);
    CHECK_EQUAL(answers[2], order);
    CHECK_EQUAL(answers[3], FBK_NOTICE_KEPT);
    CHECK_EQUAL(answers[4], FBK_NOTICE_KEPT);
    CHECK_EQUAL(answers[5], order);
    ask_to_forget(&harness, 1, UINT64_MAX); /* by now it is another one, and lives */
    harness_settle(&harness);
    CHECK_EQUAL(fbk_journal_step(harness.journal, 0), 0);
    CHECK_EQUAL(answers[6], FBK_NOTICE_KEPT);
    CHECK_EQUAL(harness.journal->ledgers.count, 3);
    CHECK_EQUAL(harness.journal->segment->stats.counters[FBK_C_JOURNAL_LEDGERS], 3);
    harness_free(&harness);
}

int
main(void)
{
    test_notices();
    test_ended();
    test_forgotten();
    test_verdicts();
    test_read_only_and_limits();
    test_a_barrier_waits_for_what_is_in_flight();
    test_bad_records_poison_the_ring();
    test_states_are_loaded();
    return 0;
}
