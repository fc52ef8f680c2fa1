/* Locations files, read for themselves: is every block whole, which ledger states are, and writing
 * a new one from runs. */
#include "store/scrub.h"

#include "base/checksum.h"
#include "base/segment.h"
#include "store/parts.h"

#define STEP_BLOCKS 64u

struct checking {
    struct fbk_io *io;
    int32_t handle;
    struct fbk_locations_found *found;
    uint8_t *states;
    uint64_t states_max;
    struct fbk_scanned_run *lost;
    uint64_t lost_max;
    /* of them the first so many hold locations; where the header is lost: unknown */
    uint64_t location_blocks;
};

static bool
block_is_whole(const uint8_t *bytes, uint64_t number)
{
    return fbk_load_u32(bytes + FBK_LOCATIONS_BLOCK_BYTES - 8) == (uint32_t)number &&
           fbk_load_u32(bytes + FBK_LOCATIONS_BLOCK_BYTES - 4) ==
               fbk_crc32c(0, bytes, FBK_LOCATIONS_BLOCK_BYTES - 4);
}

/* States have checksums of their own, so that they are known for what they are also without the
 * header. */
static void
take_states(struct checking *checking, const uint8_t *bytes)
{
    for (uint32_t i = 0; i < FBK_STATES_PER_BLOCK; i++) {
        struct fbk_ledger_state state;
        memcpy(&state, bytes + i * sizeof state, sizeof state);
        if (state.crc != fbk_crc32c(0, &state, offsetof(struct fbk_ledger_state, crc)) ||
            state.ledger_id < 0)
            continue;
        if (checking->found->state_count < checking->states_max)
            memcpy(checking->states + checking->found->state_count * sizeof state, &state,
                   sizeof state);
        checking->found->state_count++;
    }
}

static void
take_lost(struct checking *checking, const uint8_t *bytes)
{
    struct fbk_locations_found *found = checking->found;
    for (uint32_t i = 0; i < FBK_LOCATIONS_PER_BLOCK; i++) {
        struct fbk_location location;
        memcpy(&location, bytes + i * sizeof location, sizeof location);
        if (!(location.flags & FBK_LOCATION_DAMAGED))
            continue; /* zeros behind the last one, too */
        if (found->lost_count < checking->lost_max)
            checking->lost[found->lost_count] = (struct fbk_scanned_run){
                .ledger_id = location.ledger_id,
                .first_entry_id = location.first_entry_id,
                .last_entry_id = location.last_entry_id,
                .lac = -1,
                .offset_bytes = location.offset_bytes,
                .size_bytes = location.size_bytes,
                .entry_count = location.entry_count,
                .damaged = FBK_E_CORRUPT,
            };
        found->lost_count++;
    }
}

static void
check_block(struct checking *checking, uint64_t block, const uint8_t *bytes)
{
    struct fbk_locations_found *found = checking->found;
    bool is_states = !found->header_damaged && block >= checking->location_blocks;
    if (!bytes || !block_is_whole(bytes, 1 + block)) {
        if (is_states)
            found->damaged_state_blocks++;
        else
            found->damaged_blocks++;
        return;
    }
    if (is_states || found->header_damaged)
        take_states(checking, bytes);
    else
        take_lost(checking, bytes);
}

static int32_t
check_blocks(struct checking *checking)
{
    struct fbk_io *io = checking->io;
    uint8_t *memory = fbk_memory_take(STEP_BLOCKS * FBK_LOCATIONS_BLOCK_BYTES);
    if (!memory)
        return -ENOMEM;
    uint64_t step = STEP_BLOCKS;
    for (uint64_t block = 0; block < checking->found->blocks;) {
        uint64_t left = checking->found->blocks - block, count = left < step ? left : step;
        uint64_t size = count * FBK_LOCATIONS_BLOCK_BYTES;
        int32_t got = io->operations->read(io, checking->handle, memory, (uint32_t)size,
                                           (1 + block) * FBK_LOCATIONS_BLOCK_BYTES);
        if (got < 0 && count > 1) {
            step = 1; /* find out which block it is */
            continue;
        }
        for (uint64_t i = 0; i < count; i++) {
            bool is_there = got >= 0 && (uint64_t)got >= (i + 1) * FBK_LOCATIONS_BLOCK_BYTES;
            check_block(checking, block + i,
                        is_there ? memory + i * FBK_LOCATIONS_BLOCK_BYTES : NULL);
        }
        block += count;
    }
    fbk_memory_give_back(memory, STEP_BLOCKS * FBK_LOCATIONS_BLOCK_BYTES);
    return 0;
}

static bool
header_is_good(const struct fbk_locations_header *header, uint64_t file_id, uint64_t incarnation,
               uint64_t blocks_max)
{
    return header->file_id == file_id && header->incarnation == incarnation &&
           header->first_generation <= header->last_generation &&
           header->location_blocks <= blocks_max &&
           header->state_blocks <= blocks_max - header->location_blocks &&
           header->location_blocks ==
               (header->location_count + FBK_LOCATIONS_PER_BLOCK - 1) / FBK_LOCATIONS_PER_BLOCK &&
           header->state_blocks ==
               (header->state_count + FBK_STATES_PER_BLOCK - 1) / FBK_STATES_PER_BLOCK;
}

static int32_t
check_header(struct checking *checking, uint64_t file_id, uint64_t incarnation)
{
    struct fbk_locations_found *found = checking->found;
    struct fbk_locations_header header;
    uint8_t *bytes = fbk_memory_take(FBK_LOCATIONS_BLOCK_BYTES);
    if (!bytes)
        return -ENOMEM;
    int32_t result =
        fbk_store_read_all(checking->io, checking->handle, bytes, FBK_LOCATIONS_BLOCK_BYTES, 0);
    memcpy(&header, bytes, sizeof header);
    fbk_memory_give_back(bytes, FBK_LOCATIONS_BLOCK_BYTES);
    uint64_t blocks_max = found->size_bytes / FBK_LOCATIONS_BLOCK_BYTES;
    blocks_max -= blocks_max > 0;
    bool is_header =
        result >= 0 && header.magic == FBK_LOCATIONS_MAGIC &&
        header.crc == fbk_crc32c(0, &header, offsetof(struct fbk_locations_header, crc));
    if (is_header && header.version > FBK_LOCATIONS_VERSION)
        return FBK_E_TOO_NEW;
    found->blocks = blocks_max;
    found->header_damaged =
        !is_header || !header_is_good(&header, file_id, incarnation, blocks_max);
    if (found->header_damaged)
        return 0;
    found->blocks = header.location_blocks + header.state_blocks;
    found->first_generation = header.first_generation;
    found->last_generation = header.last_generation;
    checking->location_blocks = header.location_blocks;
    return 0;
}

int32_t
fbk_locations_check(struct fbk_io *io, const char *path, uint64_t file_id, uint64_t incarnation,
                    struct fbk_locations_found *found, uint8_t *states, uint64_t states_max,
                    struct fbk_scanned_run *lost, uint64_t lost_max)
{
    struct checking checking = {.io = io,
                                .found = found,
                                .states = states,
                                .states_max = states ? states_max : 0,
                                .lost = lost,
                                .lost_max = lost_max};
    memset(found, 0, sizeof *found);
    /* Our blocks may be smaller than the device's. */
    uint32_t direct = io->block_size_bytes <= FBK_LOCATIONS_BLOCK_BYTES ? FBK_IO_DIRECT : 0;
    checking.handle = io->operations->open(io, path, FBK_IO_READ_ONLY | direct);
    if (checking.handle < 0)
        return checking.handle;
    int64_t size_bytes = io->operations->size(io, checking.handle);
    int32_t result = size_bytes < 0 ? (int32_t)size_bytes : 0;
    found->size_bytes = size_bytes < 0 ? 0 : (uint64_t)size_bytes;
    if (result >= 0)
        result = check_header(&checking, file_id, incarnation);
    if (result >= 0)
        result = check_blocks(&checking);
    io->operations->close(io, checking.handle);
    return result;
}

/* ------------ rebuilding */

static int
compare_runs(const void *a, const void *b)
{
    const struct fbk_scanned_run *x = a, *y = b;
    int order =
        fbk_location_compare(x->ledger_id, x->first_entry_id, y->ledger_id, y->first_entry_id);
    if (order != 0)
        return order;
    if (x->log_id != y->log_id)
        return x->log_id < y->log_id ? -1 : 1;
    return (x->offset_bytes > y->offset_bytes) - (x->offset_bytes < y->offset_bytes);
}

int32_t
fbk_locations_rebuild(struct fbk_store *store, const struct fbk_rebuild_options *options,
                      struct fbk_scanned_run *runs, uint64_t count, const uint8_t *states,
                      uint64_t state_count, uint64_t *size_bytes)
{
    struct fbk_locations_writer to;
    int32_t result =
        fbk_locations_write_begin(&to, store, &store->writer, options->file_id, options->generation,
                                  options->generation, options->created_s);
    if (result < 0) {
        fbk_locations_write_abandon(&to);
        return result;
    }
    qsort(runs, count, sizeof *runs, compare_runs);
    for (uint64_t i = 0; i < count; i++) {
        struct fbk_location location = {
            .ledger_id = runs[i].ledger_id,
            .first_entry_id = runs[i].first_entry_id,
            .last_entry_id = runs[i].last_entry_id,
            .log_id = runs[i].log_id,
            .offset_bytes = runs[i].offset_bytes,
            .size_bytes = runs[i].size_bytes,
            .entry_count = runs[i].entry_count,
            .flags = runs[i].log_id == 0 ? FBK_LOCATION_DAMAGED : 0,
        };
        fbk_locations_write_location(&to, &location);
    }
    for (uint64_t i = 0; i < state_count; i++) {
        struct fbk_ledger_state state;
        memcpy(&state, states + i * sizeof state, sizeof state);
        fbk_locations_write_state(&to, &state);
    }
    return fbk_locations_write_end(&to, size_bytes);
}

/* ------------ one entry */

int32_t
fbk_store_probe(struct fbk_store *store, int64_t ledger_id, int64_t entry_id)
{
    struct fbk_job job = {.ledger_id = ledger_id,
                          .first_entry_id = entry_id,
                          .last_entry_id = entry_id,
                          .kind = FBK_JOB_READ};
    struct fbk_store_result result;
    fbk_lookup_read(store, &job, &result);
    if (result.run)
        fbk_store_release(store, result.run);
    return result.status;
}

int32_t
fbk_store_list_now(struct fbk_store *store, int64_t ledger_id, int64_t first_entry_id,
                   int64_t *ranges, uint32_t range_count_max, uint32_t *range_count, int64_t *go_on)
{
    struct fbk_job job = {.ledger_id = ledger_id,
                          .first_entry_id = first_entry_id,
                          .ranges = ranges,
                          .range_count_max = range_count_max,
                          .kind = FBK_JOB_LIST};
    struct fbk_store_result result;
    fbk_lookup_list(store, &job, &result);
    *range_count = result.range_count;
    *go_on = result.found_entry_id;
    return result.status;
}
