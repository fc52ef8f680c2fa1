/* The journal against a disk that does what the test says: order, publishing, failures, bells,
 * files. */

#include "journal_harness.h"

#define FILE_BYTES (4u * 1024 * 1024)
#define RING_BYTES (4u * 1024 * 1024)

static void
test_an_add_is_published_when_it_is_durable(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 0xabcd), -1);
    harness.disk.hold = true;
    harness_add(&harness, 0, 5, 0, 1, 0, 1000);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    fbk_journal_step(harness.journal, 0);
    CHECK(harness_next_descriptor(&harness) == NULL); /* INV-J1 */
    steered_release(&harness.disk, 0);
    CHECK(fbk_journal_step(harness.journal, 0) & FBK_JOURNAL_PUBLISHED);
    const struct fbk_batch_descriptor *descriptor = harness_next_descriptor(&harness);
    CHECK(descriptor);
    CHECK_EQUAL(descriptor->batch_sequence, 1);
    CHECK_EQUAL(descriptor->file_id, 1);
    CHECK_EQUAL(descriptor->offset_bytes, 8192);
    CHECK_EQUAL(descriptor->size_bytes, 4096);
    CHECK_EQUAL(descriptor->record_count, 1);
    CHECK_EQUAL(descriptor->exceptions_end, 0);
    CHECK_EQUAL(descriptor->journal_bytes, 4096);
    CHECK_EQUAL(descriptor->ring_end[0], harness.workers[0].written);
    harness_free(&harness);
}

static void
test_completions_out_of_order_are_published_in_order(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    harness.disk.hold = true;
    harness_add(&harness, 0, 1, 0, 1, 0, 100);
    fbk_journal_step(harness.journal, 0);
    for (int64_t id = 1; id < 60; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000); /* less than 64 KiB: waits */
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    for (int64_t id = 60; id < 70; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 2);
    CHECK_EQUAL(harness_roll(&harness, 2, 2, 2), -EBUSY);
    steered_release(&harness.disk, 1);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    CHECK(harness_next_descriptor(&harness) == NULL);
    /* A third batch has no slot while the first is out. */
    for (int64_t id = 70; id < 170; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    steered_release(&harness.disk, 0);
    fbk_journal_step(harness.journal, 0);
    const struct fbk_batch_descriptor *one = harness_next_descriptor(&harness);
    const struct fbk_batch_descriptor *two = harness_next_descriptor(&harness);
    CHECK(one && two && one->batch_sequence == 1 && two->batch_sequence == 2);
    CHECK_EQUAL(two->record_count, 69);
    harness_free(&harness);
}

static void
test_after_a_failed_write_nothing_is_published(void)
{
    static const int32_t failures[] = {-EIO, -ENOSPC, 4096, 0};
    for (size_t f = 0; f < sizeof failures / sizeof failures[0]; f++) {
        struct harness harness;
        harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
        harness_open(&harness);
        CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
        harness.disk.hold = true;
        harness.disk.fail_at = 3; /* headers, batch 1, batch 2 */
        harness.disk.fail_with = failures[f];
        harness_add(&harness, 0, 1, 0, 1, 0, 10000);
        fbk_journal_step(harness.journal, 0);
        for (int64_t id = 1; id < 80; id++)
            harness_add(&harness, 0, 1, id, 1, 0, 1000);
        fbk_journal_step(harness.journal, 0);
        CHECK_EQUAL(harness.disk.write_count, 2);
        /* whole and durable, but the same round brings the failure */
        steered_release(&harness.disk, 0);
        steered_release(&harness.disk, 1);
        CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_E_POISONED);
        CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_E_POISONED);
        CHECK_EQUAL(fbk_journal_close(harness.journal), FBK_E_POISONED);
        CHECK_EQUAL(harness_roll(&harness, 2, 2, 2), FBK_E_POISONED);
        CHECK(harness_next_descriptor(&harness) == NULL); /* INV-J2 */
        struct fbk_journal_status status;
        fbk_journal_get_status(harness.journal, &status);
        CHECK_EQUAL(status.poison, FBK_POISON_WRITE);
        harness_free(&harness);
    }
}

/* A8: a ring that is full does not keep the other one out. */
static void
test_two_workers_get_equal_shares(void)
{
    struct harness harness;
    harness_make(&harness, 2, RING_BYTES, FILE_BYTES);
    harness.options.batch_size_bytes_max = 256 * 1024;
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    for (int64_t id = 0; id < 3000; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000);
    for (int64_t id = 0; id < 300; id++)
        harness_add(&harness, 1, 2, id, 1, 0, 1000);
    uint64_t before[2] = {0, 0};
    for (int batch = 0; batch < 2; batch++) {
        while (fbk_cursor_load(&harness.segment->published) == harness.seen)
            CHECK(fbk_journal_step(harness.journal, 0) >= 0);
        const struct fbk_batch_descriptor *descriptor = harness_next_descriptor(&harness);
        for (int w = 0; w < 2; w++) {
            uint64_t share = descriptor->ring_end[w] - before[w];
            CHECK(share >= 64 * 1024 && share <= 192 * 1024);
            before[w] = descriptor->ring_end[w];
        }
    }
    harness_free(&harness);
}

/* Without room for a descriptor nothing is taken; the laggard is rung. */
static void
test_no_room_for_descriptors(void)
{
    struct harness harness;
    harness_make(&harness, 2, RING_BYTES, 16 * 1024 * 1024);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    fbk_sleeper_begin(&harness.workers[1].segment->sleeper);
    for (uint32_t i = 0; i < FBK_DESCRIPTOR_COUNT; i++) {
        harness_add(&harness, 0, 1, i, 1, 0, 32);
        harness_settle(&harness);
    }
    uint64_t rings;
    CHECK_EQUAL(read(harness.workers[1].bell_fd, &rings, sizeof rings), sizeof rings);
    harness_add(&harness, 0, 1, FBK_DESCRIPTOR_COUNT, 1, 0, 32);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(fbk_journal_step(harness.journal, 0) & FBK_JOURNAL_PUBLISHED, 0);
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->published), FBK_DESCRIPTOR_COUNT);
    harness_consume(&harness);
    harness_settle(&harness);
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->published), FBK_DESCRIPTOR_COUNT + 1);
    /* A consumer that claims more than there is. */
    fbk_cursor_store(&harness.workers[1].segment->descriptors_consumed, FBK_DESCRIPTOR_COUNT + 2);
    harness_add(&harness, 0, 1, FBK_DESCRIPTOR_COUNT + 1, 1, 0, 32);
    CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_E_POISONED);
    harness_free(&harness);
}

static void
test_no_room_for_exceptions(void)
{
    struct harness harness;
    harness_make(&harness, 1, 16 * 1024 * 1024, 4 * FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    harness_fence(&harness, 0, 1, 1);
    for (uint32_t i = 0; i < FBK_EXCEPTION_COUNT + 100; i++)
        harness_fence(&harness, 0, 1, 1); /* ORDERED: an exception each */
    for (int i = 0; i < 20; i++)
        CHECK(fbk_journal_step(harness.journal, 0) >= 0);
    uint64_t last = fbk_cursor_load(&harness.segment->published) - 1;
    CHECK_EQUAL(harness.segment->descriptors[last].exceptions_end, FBK_EXCEPTION_COUNT);
    CHECK_EQUAL(harness.segment->descriptors[last].ring_end[0], (FBK_EXCEPTION_COUNT + 1) * 96);
    harness_consume(&harness);
    harness_settle(&harness);
    last = fbk_cursor_load(&harness.segment->published) - 1;
    CHECK_EQUAL(harness.segment->descriptors[last].exceptions_end, FBK_EXCEPTION_COUNT + 100);
    harness_free(&harness);
}

/* A worker that left at its drain holds nothing up; one that is there does. */
static void
test_no_room_is_kept_for_a_worker_that_left(void)
{
    struct harness harness;
    harness_make(&harness, 2, 16 * 1024 * 1024, 4 * FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    for (uint32_t i = 0; i < FBK_EXCEPTION_COUNT + 100; i++)
        harness_fence(&harness, 0, 1, 1);
    for (int i = 0; i < 20; i++)
        CHECK(fbk_journal_step(harness.journal, 0) >= 0);
    const struct fbk_batch_descriptor *last =
        &harness.segment->descriptors[fbk_cursor_load(&harness.segment->published) - 1];
    uint64_t published = fbk_cursor_load(&harness.segment->published);
    fbk_cursor_store(&harness.workers[0].segment->descriptors_consumed, published);
    fbk_cursor_store(&harness.workers[0].segment->exceptions_consumed, last->exceptions_end);
    fbk_cursor_store(&harness.index->descriptors_consumed, published);
    fbk_cursor_store(&harness.index->exceptions_consumed, last->exceptions_end);
    for (int i = 0; i < 20; i++)
        CHECK(fbk_journal_step(harness.journal, 0) >= 0);
    CHECK_EQUAL(harness.segment->descriptors[fbk_cursor_load(&harness.segment->published) - 1]
                    .exceptions_end,
                FBK_EXCEPTION_COUNT);
    fbk_sleeper_begin(&harness.workers[1].segment->sleeper);
    fbk_cursor_store(&harness.workers[1].segment->exceptions_consumed, FBK_CONSUMER_GONE);
    fbk_cursor_store(&harness.workers[1].segment->descriptors_consumed, FBK_CONSUMER_GONE);
    harness_settle(&harness);
    CHECK_EQUAL(harness.segment->descriptors[fbk_cursor_load(&harness.segment->published) - 1]
                    .exceptions_end,
                FBK_EXCEPTION_COUNT + 99);
    uint64_t rings;
    CHECK(read(harness.workers[1].bell_fd, &rings, sizeof rings) < 0);
    harness_free(&harness);
}

static void
test_bells(void)
{
    struct harness harness;
    harness_make(&harness, 2, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    fbk_sleeper_begin(&harness.workers[0].segment->sleeper);
    fbk_sleeper_begin(&harness.workers[1].segment->sleeper);
    fbk_sleeper_begin(&harness.index->sleeper);
    harness_add(&harness, 0, 1, 0, 1, 0, 100);
    harness_settle(&harness);
    uint64_t rings;
    CHECK_EQUAL(read(harness.workers[0].bell_fd, &rings, sizeof rings), sizeof rings);
    /* none of its records */
    CHECK_EQUAL(read(harness.workers[1].bell_fd, &rings, sizeof rings), -1);
    /* the first after long */
    CHECK_EQUAL(read(harness.options.index_bell_fd, &rings, sizeof rings), sizeof rings);
    harness_consume(&harness);
    harness_add(&harness, 0, 1, 1, 1, 0, 100);
    harness_settle(&harness);
    /* rung for this sleep already */
    CHECK_EQUAL(read(harness.workers[0].bell_fd, &rings, sizeof rings), -1);
    fbk_sleeper_end(&harness.index->sleeper);
    fbk_sleeper_begin(&harness.index->sleeper);
    harness_fence(&harness, 1, 1, 1); /* the index answers it */
    harness_settle(&harness);
    CHECK_EQUAL(read(harness.options.index_bell_fd, &rings, sizeof rings), sizeof rings);
    /* Whoever rings without having written a record has a message for Python. */
    fbk_bell_ring(harness.options.bell_fd);
    CHECK(fbk_journal_step(harness.journal, 0) & FBK_JOURNAL_BELL);
    /* Asleep with nothing in flight: from the next byte on. */
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->wake_at[0]), harness.workers[0].written + 1);
    harness.disk.hold = true;
    harness_add(&harness, 0, 2, 0, 1, 0, 100);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 1);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->wake_at[0]),
                harness.workers[0].written + 64 * 1024);
    harness_free(&harness);
}

static uint64_t
scan_all(struct harness *harness, int32_t file, uint64_t file_id, uint64_t end_sequence,
         struct fbk_journal_end *end)
{
    struct fbk_journal_expectation expectation = harness_expectation(file_id);
    expectation.end_sequence = end_sequence;
    int32_t error = 0;
    char path[2] = {(char)('0' + file), 0};
    struct fbk_journal_scan *scan =
        fbk_journal_scan_open(&harness->disk.io, path, 1, &expectation, &error);
    CHECK_EQUAL(error, 0);
    struct fbk_journal_batch batch;
    uint64_t records = 0;
    while (fbk_journal_scan_next(scan, &batch) == 1) {
        uint32_t offset = 0;
        const struct fbk_record *record;
        while ((record = fbk_journal_batch_record(&batch, &offset)) != NULL) {
            CHECK(record->connection_id == 0 && record->epoch == 0 && record->received_us == 0);
            records++;
        }
    }
    fbk_journal_scan_end(scan, end);
    fbk_journal_scan_close(scan);
    return records;
}

static void
test_rolling_chains_the_files(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, 1536 * 1024);
    harness.options.batch_size_bytes_max = 128 * 1024;
    harness_open(&harness);
    harness_add(&harness, 0, 1, 0, 1, 0, 1000);
    /* there is no file yet */
    CHECK_EQUAL(fbk_journal_step(harness.journal, 0), FBK_JOURNAL_ROLL);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 11), -1);
    for (int64_t id = 1; id < 2500; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000);
    int32_t file = 1;
    for (;;) {
        int32_t reasons = fbk_journal_step(harness.journal, 0);
        CHECK(reasons >= 0);
        harness_consume(&harness);
        if (reasons & FBK_JOURNAL_ROLL) {
            CHECK_EQUAL(harness_roll(&harness, file + 1, (uint64_t)file + 1, 11 + (uint64_t)file),
                        file);
            file++;
        }
        struct fbk_journal_status status;
        fbk_journal_get_status(harness.journal, &status);
        if (status.waiting_bytes == 0 && status.in_flight == 0)
            break;
    }
    CHECK_EQUAL(file, 2);
    CHECK_EQUAL(harness_roll(&harness, 3, 2, 5), -EINVAL); /* ids rise */
    CHECK_EQUAL(fbk_journal_close(harness.journal), 0);
    struct fbk_journal_header headers[2];
    CHECK_EQUAL(fbk_journal_read_header(&harness.disk.io, "1", 1, &headers[0]), 0);
    CHECK_EQUAL(fbk_journal_read_header(&harness.disk.io, "2", 1, &headers[1]), 0);
    CHECK_EQUAL(headers[0].predecessor_file_id, 0);
    CHECK_EQUAL(headers[1].predecessor_file_id, 1);
    struct fbk_journal_end end;
    uint64_t first = scan_all(&harness, 1, 1, headers[1].predecessor_sequence, &end);
    CHECK_EQUAL(end.kind, FBK_END_CLOSING);
    CHECK_EQUAL(end.last_sequence, headers[1].predecessor_sequence);
    CHECK_EQUAL(end.last_crc, headers[1].predecessor_crc);
    CHECK_EQUAL(end.next_record_sequence, headers[1].first_record_sequence);
    uint64_t second = scan_all(&harness, 2, 2, UINT64_MAX, &end);
    CHECK_EQUAL(end.kind, FBK_END_CLOSING);
    CHECK_EQUAL(first + second, 2500);
    CHECK_EQUAL(fbk_journal_read_header(&harness.disk.io, "3", 1, &headers[0]), 0);
    CHECK_EQUAL(headers[0].state, FBK_HEADER_UNUSED);
    harness_free(&harness);
}

/* One record of nearly the largest size, alone in its batch. */
static void
test_the_largest_record(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    uint32_t size = (harness.options.record_bytes_max & ~7u) - 96;
    harness_add(&harness, 0, 1, 0, 1, 0, 100);
    harness_add(&harness, 0, 1, 1, 1, 0, size);
    harness_settle(&harness);
    CHECK_EQUAL(fbk_cursor_load(&harness.segment->published), 2);
    struct fbk_journal_end end;
    CHECK_EQUAL(scan_all(&harness, 1, 1, UINT64_MAX, &end), 2);
    CHECK_EQUAL(end.kind, FBK_END_TAIL);
    harness_free(&harness);
}

/* Published no earlier than asked, in order, failures too; what was under way before is not
 * delayed. */
static void
test_delayed_commits(void)
{
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
    CHECK_EQUAL(fbk_journal_delay(harness.journal, FBK_JOURNAL_DELAY_MS_MAX + 1), -EINVAL);
    harness.disk.hold = true;
    harness_add(&harness, 0, 1, 0, 1, 0, 100);
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(fbk_journal_delay(harness.journal, 30), 0);
    for (int64_t id = 1; id < 80; id++)
        harness_add(&harness, 0, 1, id, 1, 0, 1000);
    uint64_t began_ns = fbk_now_ns();
    fbk_journal_step(harness.journal, 0);
    CHECK_EQUAL(harness.disk.write_count, 2);
    steered_release(&harness.disk, 0);
    steered_release(&harness.disk, 1);
    harness.disk.hold = false;
    CHECK(fbk_journal_step(harness.journal, 0) & FBK_JOURNAL_PUBLISHED);
    CHECK(harness_next_descriptor(&harness) != NULL);
    while (harness_next_descriptor(&harness) == NULL)
        CHECK(fbk_journal_step(harness.journal, 1000) >= 0);
    CHECK(fbk_now_ns() - began_ns >= 30000000u);
    CHECK_EQUAL(fbk_journal_delay(harness.journal, 0), 0);
    harness_add(&harness, 0, 1, 80, 1, 0, 100);
    fbk_journal_step(harness.journal, 0);
    fbk_journal_step(harness.journal, 0);
    CHECK(harness_next_descriptor(&harness) != NULL);
    CHECK_EQUAL(fbk_journal_delay(harness.journal, 5), 0);
    harness.disk.fail_at = harness.disk.started + 1;
    harness.disk.fail_with = -EIO;
    harness_add(&harness, 0, 1, 81, 1, 0, 100);
    while (fbk_journal_step(harness.journal, 1000) >= 0)
        CHECK(harness_next_descriptor(&harness) == NULL); /* INV-J2 */
    harness_free(&harness);
}

int
main(void)
{
    test_an_add_is_published_when_it_is_durable();
    test_completions_out_of_order_are_published_in_order();
    test_after_a_failed_write_nothing_is_published();
    test_two_workers_get_equal_shares();
    test_no_room_for_descriptors();
    test_no_room_for_exceptions();
    test_no_room_is_kept_for_a_worker_that_left();
    test_bells();
    test_rolling_chains_the_files();
    test_the_largest_record();
    test_delayed_commits();
    return 0;
}
