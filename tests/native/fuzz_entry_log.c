/* Any bytes as an entry log, with a location that agrees with the header of the run at 4096: no
 * crash, and what is served passes its checksum and is the id that was asked for.
 *
 * The first byte says which checksums are made right again, so that changes reach what lies behind
 * them: 1 log header, 2 run header, 4 item table, 8 entries. */

#include "store_images.h"

#include "store/entry_log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_BYTES_MAX 65536u

static void
mend(uint8_t *bytes, uint64_t size, int what)
{
    struct fbk_log_header log;
    struct fbk_run_header run;
    if (size < 4096 + sizeof run)
        return;
    memcpy(&log, bytes, sizeof log);
    if (what & 1) {
        log.magic = FBK_LOG_MAGIC;
        log.log_id = 1;
        log.incarnation = IMAGE_INCARNATION;
        log.crc = fbk_crc32c(0, &log, offsetof(struct fbk_log_header, crc));
        memcpy(bytes, &log, sizeof log);
    }
    uint8_t *at = bytes + 4096;
    memcpy(&run, at, sizeof run);
    uint64_t room = size - 4096 - sizeof run;
    uint64_t table_bytes = (uint64_t)run.entry_count * sizeof(struct fbk_run_item);
    if (table_bytes <= room) {
        for (uint32_t i = 0; (what & 8) && i < run.entry_count; i++) {
            struct fbk_run_item item;
            uint8_t *item_at = at + sizeof run + i * sizeof item;
            memcpy(&item, item_at, sizeof item);
            if ((uint64_t)item.offset_bytes + item.size_bytes <= size - 4096)
                item.crc = fbk_crc32c(0, at + item.offset_bytes, item.size_bytes);
            memcpy(item_at, &item, sizeof item);
        }
        if (what & 4)
            run.items_crc = fbk_crc32c(0, at + sizeof run, table_bytes);
    }
    if (what & 2) {
        run.magic = FBK_RUN_MAGIC;
        run.log_id = 1;
        run.salt = log.salt;
        run.offset_bytes = 4096;
        run.header_crc = fbk_crc32c(0, &run, offsetof(struct fbk_run_header, header_crc));
    }
    memcpy(at, &run, sizeof run);
}

/* A locations file that names the run at 4096 as its header describes it. */
static bool
fill_locations(uint8_t *file, const uint8_t *log, uint64_t size)
{
    struct fbk_run_header run;
    if (size < 4096 + sizeof run)
        return false;
    memcpy(&run, log + 4096, sizeof run);
    struct fbk_location location = {
        .ledger_id = run.ledger_id,
        .first_entry_id = run.first_entry_id,
        .last_entry_id = run.last_entry_id,
        .last_entry_id_max = run.last_entry_id,
        .log_id = 1,
        .offset_bytes = 4096,
        .size_bytes = run.size_bytes,
        .entry_count = run.entry_count,
    };
    struct fbk_locations_header header = {
        .magic = FBK_LOCATIONS_MAGIC,
        .version = FBK_LOCATIONS_VERSION,
        .file_id = 1,
        .incarnation = IMAGE_INCARNATION,
        .location_count = 1,
        .location_blocks = 1,
    };
    header.crc = fbk_crc32c(0, &header, offsetof(struct fbk_locations_header, crc));
    memset(file, 0, 8192);
    memcpy(file, &header, sizeof header);
    memcpy(file + 4096, &location, sizeof location);
    fbk_store_u32(file + 8192 - 8, 1);
    fbk_store_u32(file + 8192 - 4, fbk_crc32c(0, file + 4096, 4092));
    return fbk_location_is_sane(&location);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t log[FUZZ_BYTES_MAX];
    static uint8_t locations[8192];
    struct images images;
    if (size < 2 || size > FUZZ_BYTES_MAX)
        return 0;
    memcpy(log, data + 1, size - 1);
    mend(log, size - 1, data[0]);
    bool sane = fill_locations(locations, log, size - 1);
    if (!sane)
        return 0;
    struct fbk_location location;
    memcpy(&location, locations + 4096, sizeof location);
    struct fbk_store *store = images_store(&images, locations, sizeof locations, log, size - 1);
    CHECK_EQUAL(fbk_store_add_locations(store, 1), 0);
    for (int64_t entry = location.first_entry_id; entry <= location.last_entry_id && entry >= 0;
         entry++) {
        int32_t status = images_read_range(store, location.ledger_id, entry, entry);
        if (status == FBK_S_NO_ENTRY)
            CHECK(entry != location.first_entry_id && entry != location.last_entry_id);
        if (entry - location.first_entry_id > 20 || entry == INT64_MAX)
            break;
    }
    images_read_range(store, location.ledger_id, 0, INT64_MAX);
    fbk_store_destroy(store);
    return 0;
}
