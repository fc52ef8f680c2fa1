/* A journal file with known batches, and a scan that checks what comes out of it against them. */
#pragma once

#include "journal_harness.h"

#define FILE_BYTES (512u * 1024)
#define RING_BYTES (256u * 1024)
#define BATCH_BYTES (128u * 1024)

struct image {
    struct harness harness;
    uint64_t batches;
    uint32_t records_crc[64]; /* by batch: of its content as the undisturbed scan gave it */
    uint64_t offsets[65];
    uint64_t acked_through[64];
};

struct outcome {
    uint64_t batches;
    struct fbk_journal_end end;
    int32_t error; /* of open */
};

/* Of record headers and payloads: the zeros between two records are under no checksum, and mean
 * nothing. */
static inline uint32_t
content_crc(const struct fbk_journal_batch *batch)
{
    uint32_t crc = 0, offset = 0;
    const struct fbk_record *record;
    while ((record = fbk_journal_batch_record(batch, &offset)) != NULL)
        crc = fbk_crc32c(crc, record, sizeof *record + record->payload_bytes);
    return crc;
}

static inline struct outcome
scan(struct steered *disk, int32_t file, const struct fbk_journal_expectation *expectation,
     const struct image *image)
{
    struct outcome outcome;
    memset(&outcome, 0, sizeof outcome);
    char path[2] = {(char)('0' + file), 0};
    struct fbk_journal_scan *reader =
        fbk_journal_scan_open(&disk->io, path, 1, expectation, &outcome.error);
    if (!reader)
        return outcome;
    struct fbk_journal_batch batch;
    int32_t rc;
    while ((rc = fbk_journal_scan_next(reader, &batch)) == 1) {
        if (image) { /* nothing but what was written, and in its place */
            CHECK(batch.sequence >= 1 && batch.sequence <= image->batches);
            CHECK_EQUAL(content_crc(&batch), image->records_crc[batch.sequence - 1]);
            CHECK_EQUAL(batch.offset_bytes, image->offsets[batch.sequence - 1]);
        }
        outcome.batches++;
    }
    CHECK_EQUAL(rc, 0);
    CHECK_EQUAL(fbk_journal_scan_next(reader, &batch), 0); /* the end stays the end */
    fbk_journal_scan_end(reader, &outcome.end);
    fbk_journal_scan_close(reader);
    return outcome;
}

/* A file of `batches` batches, one at a time: each says that the one before is acknowledged. */
static inline void
make_image(struct image *image, uint64_t batches, bool close)
{
    memset(image, 0, sizeof *image);
    struct harness *harness = &image->harness;
    harness_make(harness, 1, RING_BYTES, FILE_BYTES);
    harness->options.batch_size_bytes_max = BATCH_BYTES;
    harness_open(harness);
    CHECK_EQUAL(harness_roll(harness, 1, 1, 0x5a17), -1);
    for (uint64_t b = 0; b < batches; b++) {
        harness_add(harness, 0, 1, (int64_t)b * 10, 1, 0, 40 + (uint32_t)b * 700);
        if (b % 3 == 1)
            harness_add_batch(harness, 0, 2, (int64_t)b * 10, 1, 3, 33);
        if (b % 3 == 2)
            harness_fence(harness, 0, 100 + (int64_t)b, 1);
        harness_settle(harness);
        harness_consume(harness);
    }
    if (close)
        CHECK_EQUAL(fbk_journal_close(harness->journal), 0);
    image->batches = batches + (close ? 1 : 0);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    int32_t error = 0;
    struct fbk_journal_scan *reader =
        fbk_journal_scan_open(&harness->disk.io, "1", 1, &expectation, &error);
    struct fbk_journal_batch batch;
    while (fbk_journal_scan_next(reader, &batch) == 1) {
        image->records_crc[batch.sequence - 1] = content_crc(&batch);
        image->offsets[batch.sequence - 1] = batch.offset_bytes;
        image->offsets[batch.sequence] = batch.offset_bytes + batch.padded_bytes;
        image->acked_through[batch.sequence - 1] = batch.acked_through;
        CHECK_EQUAL(batch.acked_through, batch.sequence - 1);
    }
    struct fbk_journal_end end;
    fbk_journal_scan_end(reader, &end);
    CHECK_EQUAL(end.batches, image->batches);
    CHECK_EQUAL(end.kind, close ? FBK_END_CLOSING : FBK_END_TAIL);
    fbk_journal_scan_close(reader);
}
