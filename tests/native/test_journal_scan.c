/* Reading journal files back: flipped, cut, stale and unreadable images.  A scan may end early and
 * may say damage; it must never return what was not written, and never end in silence before a
 * batch that it was told is acknowledged. */

#include "journal_image.h"

/* Every byte: what comes out is a true prefix, and when the prefix ends before the last batch but
 * one (which the last one says was acknowledged), it is called damage. */
static void
test_every_flipped_byte(void)
{
    struct image image;
    make_image(&image, 6, false);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    uint8_t *bytes = image.harness.disk.bytes[1];
    image.harness.disk.size_bytes[1] = image.offsets[6] + 8192; /* less to read each time */
    uint64_t harmless = 0;
    for (uint64_t at = 0; at < image.offsets[6]; at++) {
        uint8_t bit = (uint8_t)(1u << (at % 8));
        bytes[at] ^= bit;
        struct outcome outcome = scan(&image.harness.disk, 1, &expectation, &image);
        bytes[at] ^= bit;
        if (at < 8192) { /* one of two headers: the other one serves */
            CHECK_EQUAL(outcome.error, 0);
            CHECK_EQUAL(outcome.batches, 6);
            continue;
        }
        uint64_t batch = 0;
        while (at >= image.offsets[batch + 1])
            batch++;
        if (outcome.batches == 6) {
            /* only the up to 7 zeros behind a record's payload are not under a checksum */
            harmless++;
            continue;
        }
        CHECK_EQUAL(outcome.batches, batch);
        CHECK_EQUAL(outcome.end.kind, batch < 5 ? FBK_END_DAMAGE : FBK_END_TAIL);
        if (batch < 5) {
            CHECK_EQUAL(outcome.end.last_sequence, batch);
            CHECK(outcome.end.later_acked_through >= batch + 1);
        }
    }
    CHECK(harmless < 6 * 3 * 7);
    harness_free(&image.harness);
}

static void
test_cut_anywhere(void)
{
    struct image image;
    make_image(&image, 5, true);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    for (uint64_t size = 0; size < image.offsets[6] + 5000; size += 509) {
        image.harness.disk.size_bytes[1] = size;
        struct outcome outcome = scan(&image.harness.disk, 1, &expectation, &image);
        if (size < sizeof(struct fbk_journal_file_header)) {
            CHECK_EQUAL(outcome.error, FBK_E_CORRUPT);
            continue;
        }
        uint64_t whole = 0;
        while (whole < 6 && image.offsets[whole + 1] <= (size & ~4095ull))
            whole++;
        CHECK_EQUAL(outcome.batches, whole);
        CHECK_EQUAL(outcome.end.kind, whole == 6 ? FBK_END_CLOSING : FBK_END_TAIL);
        /* With a successor that names its end, a file that is cut is damaged. */
        struct fbk_journal_expectation bound = expectation;
        bound.end_sequence = 6;
        outcome = scan(&image.harness.disk, 1, &bound, &image);
        CHECK_EQUAL(outcome.end.kind, whole == 6 ? FBK_END_CLOSING : FBK_END_DAMAGE);
    }
    harness_free(&image.harness);
}

/* A10: with two in flight a good batch behind a torn one is ordinary, when nothing says that the
 * torn one was acknowledged. */
static void
test_a_torn_batch_before_a_good_one(void)
{
    for (int acknowledged = 0; acknowledged < 2; acknowledged++) {
        struct harness harness;
        harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
        harness.options.batch_size_bytes_max = BATCH_BYTES;
        harness.options.second_batch_bytes_min = 8;
        harness_open(&harness);
        harness_roll(&harness, 1, 1, 0x5a17);
        harness.disk.hold = true;
        harness_add(&harness, 0, 1, 0, 1, 0, 5000);
        fbk_journal_step(harness.journal, 0);
        harness_add(&harness, 0, 1, 1, 1, 0, 5000);
        fbk_journal_step(harness.journal, 0);
        CHECK_EQUAL(harness.disk.write_count, 2); /* both say that nothing is acknowledged */
        steered_release(&harness.disk, 0);
        steered_release(&harness.disk, 1);
        fbk_journal_step(harness.journal, 0);
        harness.disk.hold = false;
        if (acknowledged) {
            harness_add(&harness, 0, 1, 2, 1, 0, 5000); /* this one says that two are */
            harness_settle(&harness);
        }
        /* the second half of batch 1 never arrived */
        memset(harness.disk.bytes[1] + 8192 + 4096, 0, 4096);
        struct fbk_journal_expectation expectation = harness_expectation(1);
        struct outcome outcome = scan(&harness.disk, 1, &expectation, NULL);
        CHECK_EQUAL(outcome.batches, 0);
        CHECK_EQUAL(outcome.end.kind, acknowledged ? FBK_END_DAMAGE : FBK_END_TAIL);
        CHECK_EQUAL(outcome.end.later_sequence, acknowledged ? 3 : 0);
        harness_free(&harness);
    }
}

/* A file taken again still holds the batches of its first life: none of them counts. */
static void
test_a_recycled_file(void)
{
    struct image old;
    make_image(&old, 6, false);
    struct harness harness;
    harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
    harness.options.batch_size_bytes_max = BATCH_BYTES;
    harness.options.predecessor_file_id = 1;
    harness.options.predecessor_sequence = 2;
    harness.options.next_record_sequence = 4;
    harness_open(&harness);
    memcpy(harness.disk.bytes[2], old.harness.disk.bytes[1], FILE_BYTES);
    CHECK_EQUAL(harness_roll(&harness, 2, 2, 0x77), -1);
    /* as large as the first batch of the old life: the second follows */
    harness_add(&harness, 0, 1, 0, 1, 0, 40);
    harness_settle(&harness);
    struct fbk_journal_expectation expectation = harness_expectation(2);
    struct outcome outcome = scan(&harness.disk, 2, &expectation, NULL);
    CHECK_EQUAL(outcome.batches, 1);
    CHECK_EQUAL(outcome.end.kind, FBK_END_TAIL);
    CHECK_EQUAL(outcome.end.last_sequence, 3);
    /* One block of the new header torn: the newer one counts. */
    memcpy(harness.disk.bytes[2], old.harness.disk.bytes[1], 4096);
    struct fbk_journal_header header;
    CHECK_EQUAL(fbk_journal_read_header(&harness.disk.io, "2", 0, &header), 0);
    CHECK_EQUAL(header.file_id, 2);
    outcome = scan(&harness.disk, 2, &expectation, NULL);
    CHECK_EQUAL(outcome.batches, 1);
    harness_free(&harness);
    harness_free(&old.harness);
}

static void
test_bounds_and_mark(void)
{
    struct image image;
    make_image(&image, 6, true);
    struct steered *disk = &image.harness.disk;
    struct fbk_journal_expectation expectation = harness_expectation(1);
    expectation.end_sequence = 4; /* INV-J4 */
    struct outcome outcome = scan(disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 4);
    CHECK_EQUAL(outcome.end.kind, FBK_END_SUCCESSOR);
    CHECK_EQUAL(outcome.end.last_sequence, 4);
    expectation.end_sequence = 0; /* nothing of it counts */
    outcome = scan(disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 0);
    CHECK_EQUAL(outcome.end.kind, FBK_END_SUCCESSOR);
    expectation.end_sequence = UINT64_MAX;
    expectation.mark_sequence = 4;
    outcome = scan(disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 3);
    CHECK_EQUAL(outcome.end.kind, FBK_END_CLOSING);
    /* What is behind the mark may be damaged: it is in entry logs. */
    for (uint64_t broken = 0; broken < 4; broken++) {
        uint8_t *at = disk->bytes[1] + image.offsets[broken] + 20;
        *at ^= 1;
        outcome = scan(disk, 1, &expectation, &image);
        CHECK_EQUAL(outcome.batches, 3);
        CHECK_EQUAL(outcome.end.kind, FBK_END_CLOSING);
        CHECK_EQUAL(outcome.end.passed_damage, 1);
        *at ^= 1;
    }
    /* The first one above the mark may not. */
    disk->bytes[1][image.offsets[4] + 20] ^= 1;
    outcome = scan(disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 0);
    CHECK_EQUAL(outcome.end.kind, FBK_END_DAMAGE);
    expectation.incarnation++;
    CHECK_EQUAL(scan(disk, 1, &expectation, &image).error, FBK_E_CORRUPT);
    expectation = harness_expectation(2);
    CHECK_EQUAL(scan(disk, 1, &expectation, &image).error, FBK_E_CORRUPT);
    harness_free(&image.harness);
}

/* A disk that fails to read says damage, and what lies before it still comes. */
static void
test_unreadable_blocks(void)
{
    struct image image;
    make_image(&image, 6, false);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    image.harness.disk.bad_from = image.offsets[2];
    image.harness.disk.bad_to = image.offsets[2] + 1;
    struct outcome outcome = scan(&image.harness.disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 2);
    CHECK_EQUAL(outcome.end.kind, FBK_END_DAMAGE);
    CHECK_EQUAL(outcome.end.later_sequence, 4);
    image.harness.disk.bad_from = image.offsets[5];
    image.harness.disk.bad_to = FILE_BYTES;
    outcome = scan(&image.harness.disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 5);
    CHECK_EQUAL(outcome.end.kind, FBK_END_DAMAGE);
    CHECK_EQUAL(outcome.end.read_error, -EIO);
    /* The header's own blocks. */
    image.harness.disk.bad_from = 0;
    image.harness.disk.bad_to = 1;
    outcome = scan(&image.harness.disk, 1, &expectation, &image);
    CHECK_EQUAL(outcome.batches, 6);
    image.harness.disk.bad_to = 4097;
    CHECK_EQUAL(scan(&image.harness.disk, 1, &expectation, &image).error, FBK_E_CORRUPT);
    harness_free(&image.harness);
}

int
main(void)
{
    test_every_flipped_byte();
    test_cut_anywhere();
    test_a_torn_batch_before_a_good_one();
    test_a_recycled_file();
    test_bounds_and_mark();
    test_unreadable_blocks();
    return 0;
}
