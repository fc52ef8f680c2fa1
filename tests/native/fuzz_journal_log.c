/* Any bytes as a journal file that is a log: no crash; a scan goes through all of it, and the runs
 * that it finds lie side by side in it; what is served of them passes its checksum and is the id
 * that was asked for.
 *
 * The first byte says which checksums are made right again, so that changes reach what lies behind
 * them: 1 file header, 2 batch header, 4 the first record's header, 8 run header, 16 item table,
 * 32 entries. */

#include "store_images.h"

#include "base/journal_header.h"
#include "store/entry_log.h"
#include "store/scrub.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_BYTES_MAX 65536u
#define BATCH_AT 8192u
#define RECORD_AT (BATCH_AT + sizeof(struct fbk_batch_header))
#define RUN_AT (RECORD_AT + sizeof(struct fbk_record))
#define LOG_ID (FBK_LOG_JOURNAL | 1u)

static void
mend_run(uint8_t *at, uint64_t room, uint64_t salt, int what)
{
    struct fbk_run_header run;
    memcpy(&run, at, sizeof run);
    uint64_t table_bytes = (uint64_t)run.entry_count * sizeof(struct fbk_run_item);
    if (table_bytes <= room - sizeof run) {
        for (uint32_t i = 0; (what & 32) && i < run.entry_count; i++) {
            struct fbk_run_item item;
            uint8_t *item_at = at + sizeof run + i * sizeof item;
            memcpy(&item, item_at, sizeof item);
            if ((uint64_t)item.offset_bytes + item.size_bytes <= room)
                item.crc = fbk_crc32c(0, at + item.offset_bytes, item.size_bytes);
            memcpy(item_at, &item, sizeof item);
        }
        if (what & 16)
            run.items_crc = fbk_crc32c(0, at + sizeof run, table_bytes);
    }
    if (what & 8) {
        run.magic = FBK_RUN_MAGIC;
        run.log_id = LOG_ID;
        run.salt = salt;
        run.offset_bytes = RUN_AT;
        run.header_crc = fbk_crc32c(0, &run, offsetof(struct fbk_run_header, header_crc));
    }
    memcpy(at, &run, sizeof run);
}

static void
mend(uint8_t *bytes, uint64_t size, int what)
{
    struct fbk_journal_file_header file;
    struct fbk_batch_header batch;
    struct fbk_record record;
    if (size < RUN_AT + sizeof(struct fbk_run_header))
        return;
    memcpy(&file, bytes, sizeof file);
    memcpy(&batch, bytes + BATCH_AT, sizeof batch);
    memcpy(&record, bytes + RECORD_AT, sizeof record);
    if (what & 1) {
        file.magic = FBK_JOURNAL_MAGIC;
        file.version = FBK_JOURNAL_VERSION;
        file.block_size_bytes = FBK_PAGE_BYTES;
        file.file_id = 1;
        file.incarnation = IMAGE_INCARNATION;
        file.crc = fbk_journal_file_header_crc(&file);
    }
    if (what & 2) {
        batch.magic = FBK_BATCH_MAGIC;
        batch.file_id = 1;
        batch.salt = file.salt;
        batch.offset_bytes = BATCH_AT;
        batch.header_crc = fbk_batch_header_crc(&batch);
    }
    if (what & 4)
        record.header_crc = fbk_crc32c(0, &record, offsetof(struct fbk_record, header_crc));
    memcpy(bytes, &file, sizeof file);
    memcpy(bytes + BATCH_AT, &batch, sizeof batch);
    memcpy(bytes + RECORD_AT, &record, sizeof record);
    mend_run(bytes + RUN_AT, size - RUN_AT, file.salt, what);
}

/* A locations file that names this run. */
static void
fill_locations(uint8_t *file, const struct fbk_scanned_run *run)
{
    struct fbk_location location = {
        .ledger_id = run->ledger_id,
        .first_entry_id = run->first_entry_id,
        .last_entry_id = run->last_entry_id,
        .last_entry_id_max = run->last_entry_id,
        .log_id = run->log_id,
        .offset_bytes = run->offset_bytes,
        .size_bytes = run->size_bytes,
        .entry_count = run->entry_count,
    };
    struct fbk_locations_header header = {
        .magic = FBK_LOCATIONS_MAGIC,
        .version = FBK_LOCATIONS_VERSION,
        .file_id = 1,
        .incarnation = IMAGE_INCARNATION,
        .location_count = 1,
        .location_blocks = 1,
    };
    CHECK(fbk_location_is_sane(&location));
    header.crc = fbk_crc32c(0, &header, offsetof(struct fbk_locations_header, crc));
    memset(file, 0, 8192);
    memcpy(file, &header, sizeof header);
    memcpy(file + 4096, &location, sizeof location);
    fbk_store_u32(file + 8192 - 8, 1);
    fbk_store_u32(file + 8192 - 4, fbk_crc32c(0, file + 4096, 4092));
}

/* How many runs are found; the first of them in *first. */
static uint64_t
scan(struct fbk_io *io, uint64_t size, struct fbk_scanned_run *first)
{
    const struct fbk_log_scan_options options = {.log_id = LOG_ID,
                                                 .incarnation = IMAGE_INCARNATION};
    struct fbk_scanned_run runs[4];
    struct fbk_log_scan_status status;
    int32_t error, got;
    uint64_t count = 0, end = 0;
    struct fbk_log_scan *scan = fbk_log_scan_open(io, "1.journal", &options, &error);
    if (!scan) {
        CHECK_EQUAL(error, FBK_E_TOO_NEW);
        return 0;
    }
    while ((got = fbk_log_scan_next(scan, runs, 4)) > 0) {
        for (int32_t i = 0; i < got; i++) {
            CHECK(runs[i].offset_bytes >= end && runs[i].log_id == LOG_ID);
            end = runs[i].offset_bytes + runs[i].size_bytes;
            if (count++ == 0)
                *first = runs[i];
        }
        CHECK(fbk_log_scan_verify(scan, runs, (uint32_t)got, NULL, NULL, NULL, 0) >= 0);
    }
    CHECK_EQUAL(got, 0);
    CHECK(end <= size);
    fbk_log_scan_get_status(scan, &status);
    CHECK(status.skipped_bytes <= FBK_BATCH_BYTES_MAX && status.unreadable_bytes == 0);
    fbk_log_scan_close(scan);
    return count;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t log[FUZZ_BYTES_MAX];
    static uint8_t locations[8192];
    struct images images;
    struct fbk_scanned_run run;
    if (size < 2 || size > FUZZ_BYTES_MAX)
        return 0;
    memcpy(log, data + 1, size - 1);
    mend(log, size - 1, data[0]);
    struct fbk_store *store = images_store(&images, locations, sizeof locations, log, size - 1);
    if (scan(&images.io, size - 1, &run) > 0) {
        fill_locations(locations, &run);
        CHECK_EQUAL(fbk_store_add_locations(store, 1), 0);
        for (int64_t entry = run.first_entry_id;
             entry <= run.last_entry_id && entry - run.first_entry_id < 20; entry++)
            images_read_range(store, run.ledger_id, entry, entry);
        images_read_range(store, run.ledger_id, 0, INT64_MAX);
    }
    fbk_store_destroy(store);
    return 0;
}
