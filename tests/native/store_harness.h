/* What the store's C tests stand on: a store in the current folder, entries that can be told from
 * their ids, flushes, and reads done in this thread. */
#pragma once

#include "check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "store/store.h"

#define RIG_INCARNATION 0x1234567890abcdefull
#define RIG_SALT 77u

struct harness_entry {
    int64_t ledger_id;
    int64_t entry_id;
};

struct harness {
    struct fbk_io *io;
    struct fbk_store *store;
    struct fbk_store_options options;
    char directory[512];
    int64_t alone_through; /* of the last read */
};

static inline uint32_t
harness_size(int64_t ledger_id, int64_t entry_id)
{
    uint64_t seed = (uint64_t)ledger_id * 31 + (uint64_t)entry_id;
    return 32 + (uint32_t)(test_random(&seed) % 200);
}

static inline void
harness_fill(uint8_t *out, uint32_t size_bytes, int64_t ledger_id, int64_t entry_id)
{
    uint64_t seed = (uint64_t)ledger_id * 1000003 + (uint64_t)entry_id;
    for (uint32_t i = 0; i < size_bytes; i++)
        out[i] = (uint8_t)(test_random(&seed) >> 8);
    fbk_store_be64(out, (uint64_t)ledger_id);
    fbk_store_be64(out + 8, (uint64_t)entry_id);
}

static inline bool
harness_is_right(const uint8_t *bytes, uint32_t size_bytes, int64_t ledger_id, int64_t entry_id)
{
    uint8_t wanted[256];
    uint32_t size = harness_size(ledger_id, entry_id);
    if (size_bytes != size)
        return false;
    harness_fill(wanted, size, ledger_id, entry_id);
    return memcmp(bytes, wanted, size) == 0;
}

static inline void
harness_open(struct harness *harness)
{
    int32_t error = 0;
    harness->store = fbk_store_create(&harness->options, harness->io, harness->io, &error);
    CHECK(harness->store != NULL);
}

/* A store on the plain backend in a fresh folder `name`. */
static inline void
harness_begin(struct harness *harness, const char *name)
{
    int32_t error = 0;
    memset(harness, 0, sizeof *harness);
    const char *base = getenv("TMPDIR");
    snprintf(harness->directory, sizeof harness->directory, "%s/%s", base ? base : ".", name);
    char folder[600];
    CHECK(mkdir(harness->directory, 0700) == 0);
    snprintf(folder, sizeof folder, "%s/logs", harness->directory);
    CHECK(mkdir(folder, 0700) == 0);
    snprintf(folder, sizeof folder, "%s/locations", harness->directory);
    CHECK(mkdir(folder, 0700) == 0);
    harness->io = fbk_io_plain_create(harness->directory, &error);
    CHECK(harness->io != NULL);
    harness->options = (struct fbk_store_options){
        .ledger_directory = harness->directory,
        .read_cache_size_bytes = 1 << 20,
        .block_cache_size_bytes = 1 << 18,
        .incarnation = RIG_INCARNATION,
        .read_jobs_max = 64,
        .log_files_max = 4,
        .room_timeout_ms = 50,
    };
    harness_open(harness);
}

static inline void
harness_end(struct harness *harness)
{
    if (harness->store)
        fbk_store_destroy(harness->store);
    harness->io->operations->destroy(harness->io);
}

/* Flushes entries (sorted) into log `log_id` from offset 0 and locations file `file_id`. */
static inline void
harness_flush(struct harness *harness, const struct harness_entry *entries, uint64_t count,
              uint64_t log_id, uint64_t *log_offset, uint64_t file_id,
              const struct fbk_ledger_state *states, uint64_t state_count)
{
    struct fbk_flush_item *items = calloc(count + 1, sizeof *items);
    uint8_t *bytes = calloc(count + 1, 256);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t size = harness_size(entries[i].ledger_id, entries[i].entry_id);
        harness_fill(bytes + i * 256, size, entries[i].ledger_id, entries[i].entry_id);
        items[i] = (struct fbk_flush_item){
            .ledger_id = entries[i].ledger_id,
            .entry_id = entries[i].entry_id,
            .data = bytes + i * 256,
            .size_bytes = size,
            .crc = fbk_crc32c(0, bytes + i * 256, size),
        };
    }
    struct fbk_flush_options options = {
        .log_id = log_id,
        .log_offset_bytes = *log_offset,
        .log_salt = RIG_SALT,
        .locations_file_id = file_id,
        .generation = file_id,
        .created_s = 1,
    };
    struct fbk_flush_contents contents = {
        .items = items, .item_count = count, .states = states, .state_count = state_count};
    int32_t error = 0;
    struct fbk_flush *flush = fbk_flush_begin(harness->store, &options, &contents, &error);
    CHECK(flush != NULL);
    int32_t more;
    while ((more = fbk_flush_step(flush, 100000)) > 0)
        ;
    CHECK_EQUAL(more, 0);
    struct fbk_flush_result result;
    CHECK_EQUAL(fbk_flush_end(flush, &result), 0);
    *log_offset = result.log_end_bytes;
    free(items);
    free(bytes);
}

/* Merges files; `deleted` (ascending) are dropped. */
static inline int32_t
harness_merge(struct fbk_store *store, uint64_t merged_file_id, const uint64_t *file_ids,
              uint32_t file_count, const int64_t *deleted, uint64_t deleted_count,
              struct fbk_merge_result *merged)
{
    struct fbk_merge_options options = {.merged_file_id = merged_file_id, .created_s = 2};
    struct fbk_location_scope scope = {
        .file_ids = file_ids,
        .file_count = file_count,
        .deleted = deleted,
        .deleted_count = deleted_count,
    };
    int32_t result;
    struct fbk_merge *merge = fbk_merge_begin(store, &options, &scope, &result);
    if (!merge)
        return result;
    while ((result = fbk_merge_step(merge, 1)) > 0)
        ;
    if (result < 0) {
        fbk_merge_abandon(merge);
        return result;
    }
    return fbk_merge_end(merge, merged);
}

/* Looks the smallest id in [first, last] up in this thread; OK answers are compared. */
static inline int32_t
harness_read(struct harness *harness, int64_t ledger_id, int64_t first, int64_t last,
             int64_t *found)
{
    struct fbk_store_result result;
    CHECK_EQUAL(fbk_store_submit(harness->store, 5, ledger_id, first, last, 0, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(harness->store), 1);
    CHECK_EQUAL(fbk_store_collect(harness->store, &result, 1), 1);
    CHECK_EQUAL(result.ticket, 5);
    *found = result.found_entry_id;
    harness->alone_through = result.alone_through;
    if (result.status == FBK_S_OK) {
        uint32_t size = 0;
        const uint8_t *bytes = fbk_run_entry(result.run, result.found_entry_id, &size);
        CHECK(bytes != NULL);
        CHECK(harness_is_right(bytes, size, ledger_id, result.found_entry_id));
        fbk_store_release(harness->store, result.run);
    } else {
        CHECK(result.run == NULL);
        CHECK_EQUAL(result.found_entry_id, -1);
    }
    return result.status;
}
