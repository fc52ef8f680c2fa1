/* What the journal decides about each record: new, to be checked, refused, fence, barrier, or no record at all. */

#include "journal_harness.h"

#define FILE_BYTES (4u * 1024 * 1024)
#define RING_BYTES (4u * 1024 * 1024)

static void
test_verdicts(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig.options.ledgers_max = 4;
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    uint64_t new_add = rig_add(&rig, 0, 1, 5, 1, 0, 64);
    uint64_t lower = rig_add(&rig, 0, 1, 4, 1, 0, 64);
    uint64_t between = rig_add(&rig, 0, 1, 5, 1, 0, 64); /* the lower one has not lowered the highest */
    uint64_t other_key = rig_add(&rig, 0, 1, 6, 2, 0, 64);
    uint64_t fence_other_key = rig_fence(&rig, 0, 1, 2);
    uint64_t batch = rig_add_batch(&rig, 0, 1, 6, 1, 10, 50);
    uint64_t again = rig_add(&rig, 0, 1, 15, 1, 0, 64);
    uint64_t fence = rig_fence(&rig, 0, 1, 1);
    uint64_t behind = rig_add(&rig, 0, 1, 16, 1, 0, 64);
    uint64_t recovery = rig_add(&rig, 0, 1, 16, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t recovery_again = rig_add(&rig, 0, 1, 16, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t fence_again = rig_fence(&rig, 0, 1, 1);
    uint64_t force = rig_put(&rig, 0, rig_record(FBK_KIND_FORCE, 1, -1, 1), "");
    uint64_t unknown_fence = rig_fence(&rig, 0, 2, 3); /* INV-F2 */
    uint64_t behind_unknown = rig_add(&rig, 0, 2, 0, 3, 0, 64);
    struct fbk_record too_far = rig_record(FBK_KIND_ADD_BATCH, 3, INT64_MAX, 1);
    too_far.entry_count = 2;
    too_far.payload_bytes = 2 * 8 + 2 * 32;
    uint8_t zeros[80] = {32, [8] = 32};
    uint64_t overflow = rig_put(&rig, 0, too_far, zeros);
    uint64_t last_id = rig_add(&rig, 0, 3, INT64_MAX, 1, 0, 64);
    uint64_t last_id_again = rig_add(&rig, 0, 3, INT64_MAX, 1, 0, 64);
    rig_add(&rig, 0, 4, 0, 1, 0, 64);
    uint64_t fifth = rig_add(&rig, 0, 5, 0, 1, 0, 64);
    uint64_t fifth_fence = rig_fence(&rig, 0, 6, 1);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, new_add), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, lower), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, between), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, other_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence_other_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(rig_verdict(&rig, 0, batch), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, again), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, behind), FBK_S_FENCED); /* INV-F1 */
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery_again), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence_again), FBK_V_ORDERED);
    CHECK_EQUAL(rig_verdict(&rig, 0, force), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, unknown_fence), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, behind_unknown), FBK_S_FENCED);
    CHECK_EQUAL(rig_verdict(&rig, 0, overflow), FBK_S_BAD_REQUEST);
    CHECK_EQUAL(rig_verdict(&rig, 0, last_id), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, last_id_again), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, fifth), FBK_S_TOO_MANY_REQUESTS);
    CHECK_EQUAL(rig_verdict(&rig, 0, fifth_fence), FBK_S_TOO_MANY_REQUESTS);
    const struct fbk_batch_descriptor *descriptor = rig_next_descriptor(&rig);
    /* new, lower, between, batch, again, fence, two recoveries, unknown fence, two last ids, ledger 4 */
    CHECK_EQUAL(descriptor->record_count, 12);
    CHECK_EQUAL(descriptor->exceptions_end, 13);
    rig_free(&rig);
}

static void
test_read_only_and_limits(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    fbk_cursor_store(&rig.index->reads_only, 1);
    uint64_t add = rig_add(&rig, 0, 1, 0, 1, 0, 64);
    uint64_t recovery = rig_add(&rig, 0, 1, 0, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t fence = rig_fence(&rig, 0, 2, 1);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, add), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence), 0);
    fbk_cursor_store(&rig.index->reads_only, FBK_JOURNAL_NO_WRITES);
    recovery = rig_add(&rig, 0, 1, 1, 1, FBK_FLAG_RECOVERY, 64);
    fence = rig_fence(&rig, 0, 1, 1);
    uint64_t fenced_before = rig_fence(&rig, 0, 2, 1);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, fenced_before), FBK_V_ORDERED); /* nothing has to be written for this one */
    fbk_cursor_store(&rig.index->reads_only, 0);
    fbk_journal_set_limit(rig.journal, FBK_JOURNAL_NO_ADDS);
    add = rig_add(&rig, 0, 1, 1, 1, 0, 64);
    recovery = rig_add(&rig, 0, 1, 1, 1, FBK_FLAG_RECOVERY, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, add), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery), 0);
    fbk_journal_set_limit(rig.journal, FBK_JOURNAL_NO_WRITES);
    uint32_t writes = rig.disk.started;
    recovery = rig_add(&rig, 0, 1, 2, 1, FBK_FLAG_RECOVERY, 64);
    fence = rig_fence(&rig, 0, 1, 1);
    uint64_t fence_again = rig_fence(&rig, 0, 2, 1);
    uint64_t force = rig_put(&rig, 0, rig_record(FBK_KIND_FORCE, 1, -1, 1), "");
    rig_settle(&rig);
    CHECK_EQUAL(rig.disk.started, writes);
    CHECK_EQUAL(rig_verdict(&rig, 0, recovery), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence), FBK_S_READ_ONLY);
    CHECK_EQUAL(rig_verdict(&rig, 0, fence_again), FBK_V_ORDERED);
    CHECK_EQUAL(rig_verdict(&rig, 0, force), 0);
    fbk_journal_set_limit(rig.journal, FBK_JOURNAL_OPEN);
    add = rig_add(&rig, 0, 1, 2, 1, 0, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, add), 0);
    rig_free(&rig);
}

/* A batch with nothing to write waits for those before it. */
static void
test_a_barrier_waits_for_what_is_in_flight(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig.options.second_batch_bytes = 8;
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    rig.disk.hold = true;
    rig_fence(&rig, 0, 1, 1);
    fbk_journal_step(rig.journal, 0);
    rig_fence(&rig, 0, 1, 1);
    rig_put(&rig, 0, rig_record(FBK_KIND_FORCE, 1, -1, 1), "");
    fbk_journal_step(rig.journal, 0);
    CHECK_EQUAL(rig.disk.write_count, 1);
    CHECK(rig_next_descriptor(&rig) == NULL);
    steered_release(&rig.disk, 0);
    fbk_journal_step(rig.journal, 0);
    const struct fbk_batch_descriptor *one = rig_next_descriptor(&rig);
    const struct fbk_batch_descriptor *two = rig_next_descriptor(&rig);
    CHECK(one && two);
    CHECK_EQUAL(one->file_id, 1);
    CHECK_EQUAL(two->file_id, 0);
    CHECK_EQUAL(two->batch_sequence, 1);
    CHECK_EQUAL(two->record_count, 0);
    CHECK_EQUAL(two->ring_end[0], rig.workers[0].written);
    rig_free(&rig);
}

static void
test_bad_records_poison_the_ring(void)
{
    for (int what = 0; what < 12; what++) {
        struct rig rig;
        rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
        rig_open(&rig);
        CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
        uint64_t good = rig_add(&rig, 0, 1, 0, 1, 0, 640);
        rig_settle(&rig);
        CHECK_EQUAL(rig_verdict(&rig, 0, good), 0);
        uint64_t position = what == 9 ? rig_add_batch(&rig, 0, 1, 1, 1, 4, 100) : rig_add(&rig, 0, 1, 1, 1, 0, 640);
        uint8_t *at = fbk_ring_at(&rig.workers[0].ring, position);
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
        case 7: reseal = false; record.ledger_id ^= 1; break;
        case 8: at[96 + 639] ^= 1; break;
        case 9: at[96 + 32 + 100] ^= 1; break; /* an entry of a batch */
        case 10: fbk_cursor_publish(&rig.workers[0].segment->add_written, rig.workers[0].written + 2 * RING_BYTES); break;
        case 11: fbk_cursor_publish(&rig.workers[0].segment->add_written, 8); break; /* backwards */
        default: break;
        }
        if (reseal)
            fbk_record_seal(&record);
        memcpy(at, &record, sizeof record);
        CHECK_EQUAL(fbk_journal_step(rig.journal, 0), FBK_E_POISONED);
        struct fbk_journal_status status;
        fbk_journal_get_status(rig.journal, &status);
        CHECK_EQUAL(status.poison, what < 10 ? FBK_POISON_RING : FBK_POISON_CURSOR);
        CHECK_EQUAL(rig_next_descriptor(&rig)->record_count, 1);
        CHECK(rig_next_descriptor(&rig) == NULL);
        rig_free(&rig);
    }
}

static void
test_states_are_loaded(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    char name[] = "statesXXXXXX";
    int fd = mkstemp(name);
    CHECK(fd >= 0);
    unlink(name);
    for (int64_t id = 0; id < 100; id++) {
        struct fbk_ledger_state state = {.ledger_id = id, .highest_entry_id = 10 * id, .flags = FBK_LEDGER_HAS_KEY};
        if (id == 7)
            state.flags |= FBK_LEDGER_FENCED;
        if (id == 10 || id == 11)
            state.flags |= FBK_LEDGER_DELETED;
        memset(state.master_key, (int)id, sizeof state.master_key);
        state.crc = fbk_crc32c(0, &state, offsetof(struct fbk_ledger_state, crc));
        CHECK_EQUAL(write(fd, &state, sizeof state), sizeof state);
    }
    CHECK_EQUAL(fbk_journal_load_states(rig.journal, fd, 100), 0);
    CHECK_EQUAL(fbk_journal_load_states(rig.journal, fd, 101), FBK_E_CORRUPT); /* shorter than it says */
    uint64_t fenced = rig_add(&rig, 0, 7, 71, 7, 0, 64);
    uint64_t highest = rig_add(&rig, 0, 8, 80, 8, 0, 64);
    uint64_t next = rig_add(&rig, 0, 8, 81, 8, 0, 64);
    uint64_t key = rig_add(&rig, 0, 9, 91, 8, 0, 64);
    uint64_t deleted = rig_add(&rig, 0, 10, 101, 10, 0, 64);
    uint64_t deleted_old = rig_add(&rig, 0, 10, 3, 10, 0, 64);
    uint64_t deleted_recovery = rig_add(&rig, 0, 10, 101, 10, FBK_FLAG_RECOVERY, 64);
    uint64_t deleted_batch = rig_add_batch(&rig, 0, 11, 111, 11, 3, 50);
    uint64_t deleted_key = rig_add(&rig, 0, 11, 111, 1, 0, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted_old), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted_recovery), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted_batch), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted_key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(rig.journal->segment->stats.counters[FBK_C_JOURNAL_REFUSED_DELETED], 4);
    CHECK_EQUAL(rig_verdict(&rig, 0, fenced), FBK_S_FENCED);
    CHECK_EQUAL(rig_verdict(&rig, 0, highest), FBK_V_CHECK);
    CHECK_EQUAL(rig_verdict(&rig, 0, next), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, key), FBK_S_UNAUTHORIZED);
    CHECK_EQUAL(pwrite(fd, "x", 1, 72 * 3), 1);
    CHECK_EQUAL(fbk_journal_load_states(rig.journal, fd, 100), FBK_E_CORRUPT);
    close(fd);
    rig_free(&rig);
}

static void
give_notice(struct rig *rig, int64_t ledger_id, uint32_t what)
{
    uint64_t written = fbk_cursor_load(&rig->index->notices_written);
    rig->index->notices[written % FBK_NOTICE_COUNT] = (struct fbk_notice){.ledger_id = ledger_id, .what = what};
    fbk_cursor_publish(&rig->index->notices_written, written + 1);
}

/* What metadata says comes through the index, within one life of the journal. */
static void
test_notices(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    rig_add(&rig, 0, 1, 0, 1, 0, 64);
    rig_fence(&rig, 0, 1, 1);
    rig_add(&rig, 0, 2, 0, 1, 0, 64);
    rig_settle(&rig);
    struct fbk_ledger_state *lost = fbk_ledgers_add(&rig.journal->ledgers, 3);
    lost->flags = FBK_LEDGER_LIMBO;
    fbk_ledgers_add(&rig.journal->ledgers, 4)->flags = FBK_LEDGER_LIMBO;
    uint64_t in_limbo = rig_add(&rig, 0, 3, 0, 1, 0, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, in_limbo), FBK_S_FENCED);
    give_notice(&rig, 1, FBK_NOTICE_DELETED);
    give_notice(&rig, 3, FBK_NOTICE_LIMBO_OVER);
    give_notice(&rig, 4, FBK_NOTICE_LIMBO_OVER_FENCED);
    give_notice(&rig, 99, FBK_NOTICE_DELETED); /* never heard of */
    uint64_t deleted = rig_add(&rig, 0, 1, 1, 1, 0, 64);
    uint64_t deleted_repair = rig_add(&rig, 0, 1, 0, 1, FBK_FLAG_RECOVERY, 64);
    uint64_t alive = rig_add(&rig, 0, 2, 1, 1, 0, 64);
    uint64_t over = rig_add(&rig, 0, 3, 0, 1, 0, 64);
    uint64_t over_fenced = rig_add(&rig, 0, 4, 0, 1, 0, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted), FBK_S_FENCED); /* fenced before: its writer is to hear that */
    CHECK_EQUAL(rig_verdict(&rig, 0, deleted_repair), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig_verdict(&rig, 0, alive), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, over), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, over_fenced), FBK_S_FENCED);
    CHECK_EQUAL(fbk_cursor_load(&rig.segment->notices_consumed), 4);
    fbk_cursor_publish(&rig.index->notices_written, 5 + FBK_NOTICE_COUNT);
    CHECK_EQUAL(fbk_journal_step(rig.journal, 0), FBK_E_POISONED);
    rig_free(&rig);
}

static void
ask_to_forget(struct rig *rig, int64_t ledger_id, uint64_t sequence)
{
    uint64_t written = fbk_cursor_load(&rig->index->notices_written);
    rig->index->notices[written % FBK_NOTICE_COUNT] =
        (struct fbk_notice){.ledger_id = ledger_id, .what = FBK_NOTICE_FORGOTTEN, .sequence = sequence};
    fbk_cursor_publish(&rig->index->notices_written, written + 1);
}

/* A deleted ledger that no file knows any more is one never heard of, from the batch on that the answer names. */
static void
test_forgotten(void)
{
    struct rig rig;
    rig_make(&rig, 1, RING_BYTES, FILE_BYTES);
    rig_open(&rig);
    CHECK_EQUAL(rig_roll(&rig, 1, 1, 1), -1);
    for (int64_t ledger = 1; ledger <= 3; ledger++)
        rig_add(&rig, 0, ledger, 7, 1, 0, 64);
    rig_settle(&rig);
    uint64_t flushed = rig.journal->sequence;
    give_notice(&rig, 1, FBK_NOTICE_DELETED);
    give_notice(&rig, 2, FBK_NOTICE_DELETED);
    rig_fence(&rig, 0, 2, 1); /* written: the index has not flushed it */
    rig_settle(&rig);
    uint64_t refused = rig_add(&rig, 0, 1, 8, 1, 0, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, refused), FBK_S_NO_LEDGER);
    CHECK_EQUAL(rig.journal->ledgers.count, 3);
    ask_to_forget(&rig, 1, flushed);
    ask_to_forget(&rig, 2, flushed);
    ask_to_forget(&rig, 3, flushed); /* it lives */
    ask_to_forget(&rig, 99, flushed); /* never heard of */
    uint64_t order = rig.journal->order;
    uint64_t again = rig_add(&rig, 0, 1, 0, 1, 0, 64); /* below what it held */
    uint64_t fenced = rig_add(&rig, 0, 2, 8, 1, 0, 64);
    uint64_t alive = rig_add(&rig, 0, 3, 7, 1, FBK_FLAG_RECOVERY, 64);
    rig_settle(&rig);
    CHECK_EQUAL(rig_verdict(&rig, 0, again), 0);
    CHECK_EQUAL(rig_verdict(&rig, 0, fenced), FBK_S_FENCED);
    CHECK_EQUAL(rig_verdict(&rig, 0, alive), FBK_V_CHECK);
    const uint64_t *answers = rig.segment->notice_answers;
    CHECK_EQUAL(fbk_cursor_load(&rig.segment->notices_consumed), 6);
    CHECK_EQUAL(answers[2], order);
    CHECK_EQUAL(answers[3], FBK_NOTICE_KEPT);
    CHECK_EQUAL(answers[4], FBK_NOTICE_KEPT);
    CHECK_EQUAL(answers[5], order);
    ask_to_forget(&rig, 1, UINT64_MAX); /* by now it is another one, and lives */
    rig_settle(&rig);
    CHECK_EQUAL(fbk_journal_step(rig.journal, 0), 0);
    CHECK_EQUAL(answers[6], FBK_NOTICE_KEPT);
    CHECK_EQUAL(rig.journal->ledgers.count, 3);
    CHECK_EQUAL(rig.journal->segment->stats.counters[FBK_C_JOURNAL_LEDGERS], 3);
    rig_free(&rig);
}

int
main(void)
{
    test_notices();
    test_forgotten();
    test_verdicts();
    test_read_only_and_limits();
    test_a_barrier_waits_for_what_is_in_flight();
    test_bad_records_poison_the_ring();
    test_states_are_loaded();
    return 0;
}
