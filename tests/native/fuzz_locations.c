/* Any bytes as a locations file: loaded, searched, listed, merged, its states read.  No crash, and
 * no memory by a number from disk.  Its entry log is empty, so nothing is ever served.
 *
 * The first byte says which checksums are made right again, so that changes reach what lies behind
 * them: 1 header, 2 blocks, 4 states, 8 the header's counts follow the file's size. */

#include "store_images.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_BYTES_MAX 65536u

static void
mend(uint8_t *bytes, uint64_t size, int what)
{
    struct fbk_locations_header header;
    if (size < 4096)
        return;
    memcpy(&header, bytes, sizeof header);
    if (what & 8) {
        header.location_blocks = size / 4096 - 1 - (size / 4096 > 2);
        header.state_blocks = size / 4096 - 1 - header.location_blocks;
        if (header.location_count == 0 ||
            (header.location_count + 62) / 63 != header.location_blocks)
            header.location_count = header.location_blocks * 63;
        if (header.state_count == 0 || (header.state_count + 55) / 56 != header.state_blocks)
            header.state_count = header.state_blocks * 56;
    }
    if (what & 1) {
        header.magic = FBK_LOCATIONS_MAGIC;
        header.file_id = 1;
        header.incarnation = IMAGE_INCARNATION;
        header.crc = fbk_crc32c(0, &header, offsetof(struct fbk_locations_header, crc));
        memcpy(bytes, &header, sizeof header);
    }
    for (uint64_t block = 1; (block + 1) * 4096 <= size; block++) {
        uint8_t *at = bytes + block * 4096;
        if ((what & 4) && block > header.location_blocks) {
            for (uint32_t i = 0; i < FBK_STATES_PER_BLOCK; i++) {
                struct fbk_ledger_state state;
                memcpy(&state, at + i * sizeof state, sizeof state);
                state.crc = fbk_crc32c(0, &state, offsetof(struct fbk_ledger_state, crc));
                memcpy(at + i * sizeof state, &state, sizeof state);
            }
        }
        if (what & 2) {
            fbk_store_u32(at + 4088, (uint32_t)block);
            fbk_store_u32(at + 4092, fbk_crc32c(0, at, 4092));
        }
    }
}

static void
count_state(void *context, const struct fbk_ledger_state *state)
{
    CHECK(state->ledger_id >= 0);
    ++*(uint64_t *)context;
}

static void
look(struct fbk_store *store, int64_t ledger_id, int64_t first)
{
    int64_t ranges[8];
    struct fbk_store_result result;
    CHECK(images_read_range(store, ledger_id, first, first) != FBK_S_OK);
    CHECK(images_read_range(store, ledger_id, first, INT64_MAX) != FBK_S_OK);
    CHECK_EQUAL(fbk_store_submit_list(store, 2, ledger_id, first, ranges, 4, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(store), 1);
    CHECK_EQUAL(fbk_store_collect(store, &result, 1), 1);
    CHECK(result.range_count <= 4);
    for (uint32_t i = 0; i < result.range_count; i++)
        CHECK(ranges[2 * i] >= first && ranges[2 * i] <= ranges[2 * i + 1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t bytes[FUZZ_BYTES_MAX];
    struct images images;
    if (size < 2 || size > FUZZ_BYTES_MAX)
        return 0;
    memcpy(bytes, data + 1, size - 1);
    mend(bytes, size - 1, data[0]);
    struct fbk_store *store = images_store(&images, bytes, size - 1, NULL, 0);
    int32_t added = fbk_store_add_locations(store, 1);
    CHECK(added == 0 || added == 1 || added == FBK_E_TOO_NEW);
    if (added >= 0) {
        struct fbk_location location;
        uint64_t states = 0, id = 1;
        look(store, 1, 0);
        look(store, INT64_MAX, INT64_MAX);
        for (uint64_t at = 4096; at + sizeof location <= size - 1 && at < 4096 + 3 * 64;
             at += sizeof location) {
            memcpy(&location, bytes + at, sizeof location);
            if (location.ledger_id >= 0 && location.first_entry_id >= 0)
                look(store, location.ledger_id, location.first_entry_id);
        }
        (void)fbk_store_load_states(store, 1, count_state, &states);
        struct fbk_log_bytes pairs[16];
        int64_t deleted = 1;
        uint64_t log_ids[] = {1, 2};
        struct fbk_location_scope scope = {
            .file_ids = &id,
            .file_count = 1,
            .deleted = &deleted,
            .deleted_count = 1,
            .log_ids = log_ids,
            .log_count = 2,
        };
        struct fbk_location runs[32];
        (void)fbk_store_log_bytes(store, &scope, pairs, 16);
        (void)fbk_store_log_runs(store, &scope, 0, 0, runs, 32);
        (void)fbk_store_ledger_bytes(store, 1, pairs, 16);
        struct fbk_merge_options options = {.merged_file_id = 2};
        struct fbk_merge_result merged;
        int32_t result;
        struct fbk_merge *merge = fbk_merge_begin(store, &options, &scope, &result);
        while (merge && (result = fbk_merge_step(merge, 1)) > 0)
            ;
        CHECK(result == 0 || result == FBK_E_CORRUPT);
        if (merge && result < 0)
            fbk_merge_abandon(merge);
        else if (merge)
            CHECK_EQUAL(fbk_merge_end(merge, &merged), 0);
    }
    fbk_store_destroy(store);
    return 0;
}
