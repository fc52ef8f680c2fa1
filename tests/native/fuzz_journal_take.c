/* Any bytes in a worker's ring: the journal either stops with the ring called poisoned, or what it
 * wrote reads back whole.
 *
 * Input: one byte, how it is mended (1 header checksums, 2 sequence and epoch, 4 body checksum, 8
 * sizes, 32 ids in the entry) and whether the file may have runs (16), then pieces of one length
 * byte and as many bytes, laid over a record that would be good. */

#include "journal_harness.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define RING_BYTES (64u * 1024)
#define FILE_BYTES (256u * 1024)
#define PAYLOAD_BYTES 64u

/* Made once: mapping segments costs more than everything else. */
static struct harness harness;

static void
put_mended(const uint8_t *piece, size_t piece_bytes, int how)
{
    struct harness_worker *worker = &harness.workers[0];
    struct {
        struct fbk_record record;
        uint8_t payload[PAYLOAD_BYTES];
    } put;
    memset(&put, 0, sizeof put);
    put.record = harness_record(FBK_KIND_ADD, 1, (int64_t)worker->sequence, 1);
    put.record.size_bytes = sizeof put;
    put.record.payload_bytes = PAYLOAD_BYTES;
    put.record.epoch = RIG_EPOCH;
    put.record.sequence = worker->sequence;
    memcpy(&put, piece, piece_bytes < sizeof put ? piece_bytes : sizeof put);
    if (how & 2) {
        put.record.epoch = RIG_EPOCH;
        put.record.sequence = worker->sequence;
    }
    if (how & 8) {
        put.record.payload_bytes %= PAYLOAD_BYTES + 1;
        put.record.size_bytes =
            (uint32_t)fbk_round_up(sizeof put.record + put.record.payload_bytes, 8);
    }
    if ((how & 32) && put.record.kind == FBK_KIND_ADD) {
        fbk_store_be64(put.payload, (uint64_t)put.record.ledger_id);
        fbk_store_be64(put.payload + 8, (uint64_t)put.record.entry_id);
    }
    if ((how & 4) && put.record.payload_bytes <= PAYLOAD_BYTES) {
        uint32_t under_crc = put.record.payload_bytes;
        if (put.record.kind == FBK_KIND_ADD_BATCH && put.record.entry_count <= under_crc / 8)
            under_crc = put.record.entry_count * 8;
        put.record.body_crc = fbk_crc32c(0, put.payload, under_crc);
    }
    if (how & 1)
        fbk_record_seal(&put.record);
    memcpy(fbk_ring_at(&worker->ring, worker->written), &put, sizeof put);
    uint32_t claimed = put.record.size_bytes;
    worker->written +=
        claimed <= sizeof put && claimed >= 96 && claimed % 8 == 0 ? claimed : sizeof put;
    worker->sequence++;
}

static void
check_file(uint64_t batches)
{
    struct fbk_journal_expectation expectation = harness_expectation(1);
    int32_t error = 0;
    struct fbk_journal_scan *scan =
        fbk_journal_scan_open(&harness.disk.io, "1", 1, &expectation, &error);
    CHECK(scan);
    struct fbk_journal_batch batch;
    uint64_t found = 0;
    while (fbk_journal_scan_next(scan, &batch) == 1)
        found++;
    CHECK(found >= batches);
    fbk_journal_scan_close(scan);
}

static void
begin(bool adopts)
{
    if (harness.worker_count == 0) {
        harness_make(&harness, 1, RING_BYTES, FILE_BYTES);
        harness.options.batch_size_bytes_max = 8192;
        harness.options.ledgers_max = 16;
        harness.options.run_bytes_min = 1;
    }
    harness.adopts = adopts;
    struct fbk_worker_segment *worker = harness.workers[0].segment;
    fbk_cursor_store(&worker->add_written, 0);
    fbk_cursor_store(&worker->descriptors_consumed, 0);
    fbk_cursor_store(&worker->exceptions_consumed, 0);
    fbk_cursor_store(&harness.index->descriptors_consumed, 0);
    fbk_cursor_store(&harness.index->exceptions_consumed, 0);
    fbk_cursor_store(&harness.index->runs_consumed, 0);
    fbk_cursor_store(&harness.index->tail_released, 0);
    fbk_cursor_store(&harness.index->indexed[0], 0);
    uint64_t zero = 0;
    CHECK(pwrite(harness.options.segment_fd, &zero, sizeof zero,
                 offsetof(struct fbk_journal_segment, published)) == sizeof zero);
    harness.workers[0].written = 0;
    harness.workers[0].sequence = 0;
    harness.seen = 0;
    memset(harness.disk.bytes[1], 0, FILE_BYTES);
    harness.disk.write_count = 0;
    harness_open(&harness);
    CHECK_EQUAL(harness_roll(&harness, 1, 1, 1), -1);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    begin(data[0] & 16);
    uint64_t batches = 0;
    for (size_t at = 1; at < size && batches < 20;) {
        size_t length = data[at++];
        if (length > size - at)
            length = size - at;
        put_mended(data + at, length, data[0]);
        at += length;
        if (harness.workers[0].written - fbk_cursor_load(&harness.workers[0].segment->add_written) <
                600 &&
            at < size)
            continue;
        fbk_cursor_publish(&harness.workers[0].segment->add_written, harness.workers[0].written);
        int32_t reasons = 0;
        for (int i = 0; i < 4 && reasons >= 0; i++)
            reasons = fbk_journal_step(harness.journal, 0);
        const struct fbk_batch_descriptor *descriptor;
        while ((descriptor = harness_next_descriptor(&harness)) != NULL)
            if (descriptor->file_id)
                batches = descriptor->batch_sequence;
        harness_consume(&harness);
        if (reasons < 0) {
            CHECK_EQUAL(reasons, FBK_E_POISONED);
            break;
        }
    }
    check_file(batches);
    fbk_journal_destroy(harness.journal);
    return 0;
}
