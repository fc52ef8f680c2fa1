/* Any bytes as a journal file: no crash, no memory by a length from disk, and every batch that
 * comes out is dense, in its place, and as large as it says.
 *
 * The first byte says which checksums are made right again, so that changes reach what lies behind
 * them: 1 file header, 2 batch headers, 4 record headers, 8 checksums over records, 16 bodies. */

#include "journal_harness.h"

#include "base/run.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_BYTES_MAX 65536u

/* A run that says what its record and its place say, with sums that agree. */
static void
mend_run(uint8_t *bytes, struct fbk_record *record, uint64_t offset_bytes, uint64_t salt)
{
    const uint64_t front = fbk_run_front_bytes(record->entry_count);
    if (record->entry_count == 0 || front > record->payload_bytes)
        return;
    struct fbk_run_header run;
    memcpy(&run, bytes, sizeof run);
    run.magic = FBK_RUN_MAGIC;
    run.entry_count = record->entry_count;
    run.log_id = FBK_LOG_JOURNAL | 1;
    run.salt = salt;
    run.offset_bytes = offset_bytes;
    run.ledger_id = record->ledger_id;
    run.first_entry_id = record->entry_id;
    run.size_bytes = record->payload_bytes;
    run.items_crc = fbk_crc32c(0, bytes + sizeof run, front - sizeof run);
    run.header_crc = fbk_crc32c(0, &run, offsetof(struct fbk_run_header, header_crc));
    memcpy(bytes, &run, sizeof run);
    record->body_crc = fbk_crc32c(0, bytes, front);
}

static void
mend_records(uint8_t *batch, struct fbk_batch_header *header, uint64_t room, int what)
{
    uint64_t offset = sizeof *header;
    uint32_t crc = 0;
    for (uint32_t i = 0; i < header->record_count && room - offset >= sizeof(struct fbk_record);
         i++) {
        struct fbk_record record;
        memcpy(&record, batch + offset, sizeof record);
        if (what & 16) {
            record.sequence = header->first_record_sequence + i;
            uint64_t there = room - offset - sizeof record;
            if (record.kind == FBK_KIND_RUN && record.payload_bytes <= there)
                mend_run(batch + offset + sizeof record, &record,
                         header->offset_bytes + offset + sizeof record, header->salt);
            else if (record.payload_bytes <= there)
                record.body_crc =
                    fbk_crc32c(0, batch + offset + sizeof record, record.payload_bytes);
        }
        if (what & 4)
            fbk_record_seal(&record);
        memcpy(batch + offset, &record, sizeof record);
        crc = fbk_crc32c(crc, &record, sizeof record);
        if (record.size_bytes == 0 || record.size_bytes > room - offset)
            break;
        offset += record.size_bytes;
    }
    if ((what & 8) && header->content_bytes <= header->padded_bytes && header->padded_bytes <= room)
        header->records_crc = fbk_crc32c(crc, batch + header->content_bytes,
                                         header->padded_bytes - header->content_bytes);
}

static void
mend(uint8_t *bytes, uint64_t size, int what)
{
    if (size < 8192)
        return;
    struct fbk_journal_file_header file;
    memcpy(&file, bytes, sizeof file);
    if (what & 1) {
        file.magic = FBK_JOURNAL_MAGIC;
        file.version = FBK_JOURNAL_VERSION;
        file.block_size_bytes = FBK_PAGE_BYTES;
        file.file_id = 1;
        file.incarnation = RIG_INCARNATION;
        file.first_sequence = file.predecessor_sequence + 1;
        file.crc = fbk_journal_file_header_crc(&file);
        memcpy(bytes, &file, sizeof file);
    }
    uint32_t previous = file.predecessor_crc;
    for (uint64_t at = 8192; at + 4096 <= size; at += 4096) {
        struct fbk_batch_header header;
        memcpy(&header, bytes + at, sizeof header);
        if (header.magic != FBK_BATCH_MAGIC)
            continue;
        mend_records(bytes + at, &header, size - at, what);
        if (what & 2) {
            header.file_id = 1;
            header.salt = file.salt;
            header.offset_bytes = at;
            header.previous_crc = previous;
            header.header_crc = fbk_batch_header_crc(&header);
        }
        memcpy(bytes + at, &header, sizeof header);
        previous = header.header_crc;
    }
}

static void
scan(struct steered *disk, const struct fbk_journal_expectation *expectation)
{
    int32_t error = 0;
    struct fbk_journal_scan *reader = fbk_journal_scan_open(&disk->io, "1", 1, expectation, &error);
    if (!reader) {
        CHECK(error < 0);
        return;
    }
    struct fbk_journal_batch batch;
    uint64_t sequence = 0, record_sequence = 0, end = 0;
    while (fbk_journal_scan_next(reader, &batch) == 1) {
        CHECK(sequence == 0 ||
              (batch.sequence == sequence + 1 && batch.first_record_sequence == record_sequence));
        CHECK(batch.offset_bytes >= end &&
              batch.offset_bytes + batch.padded_bytes <= disk->size_bytes[1]);
        CHECK(batch.sequence > expectation->mark_sequence &&
              batch.sequence <= expectation->end_sequence);
        sequence = batch.sequence;
        record_sequence = batch.first_record_sequence + batch.record_count;
        end = batch.offset_bytes + batch.padded_bytes;
        uint32_t offset = 0, count = 0;
        const struct fbk_record *record;
        while ((record = fbk_journal_batch_record(&batch, &offset)) != NULL) {
            CHECK(offset <= batch.records_bytes);
            /* a run has sums of its own, and the scan has checked them */
            CHECK(record->kind == FBK_KIND_RUN ||
                  fbk_record_body_ok(record, fbk_record_payload(record)));
            count++;
        }
        CHECK_EQUAL(count, batch.record_count);
    }
    struct fbk_journal_end last;
    fbk_journal_scan_end(reader, &last);
    CHECK(last.kind != FBK_END_NONE);
    CHECK(last.end_bytes <= disk->size_bytes[1] || last.batches == 0);
    fbk_journal_scan_close(reader);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[FUZZ_BYTES_MAX];
    if (size < 2 || size - 2 > FUZZ_BYTES_MAX)
        return 0;
    struct steered disk;
    memset(&disk, 0, sizeof disk);
    disk.io.operations = &STEERED_OPERATIONS;
    disk.io.block_size_bytes = FBK_PAGE_BYTES;
    disk.bytes[1] = bytes;
    disk.size_bytes[1] = size - 2;
    memcpy(bytes, data + 2, size - 2);
    mend(bytes, size - 2, data[0]);
    struct fbk_journal_header header;
    int32_t rc = fbk_journal_read_header(&disk.io, "1", 1, &header);
    CHECK(rc == 0 || rc == FBK_E_TOO_NEW);
    struct fbk_journal_expectation expectation = harness_expectation(1);
    scan(&disk, &expectation);
    expectation.mark_sequence = data[1] & 15;
    expectation.end_sequence = data[1] & 128 ? UINT64_MAX : (uint64_t)(data[1] >> 4 & 7);
    scan(&disk, &expectation);
    return 0;
}
