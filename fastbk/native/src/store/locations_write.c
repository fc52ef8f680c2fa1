/* Writing a locations file: for a flush and for a merge.  Its header comes last: a file that was
 * cut short has none and can't be taken for a whole one.
 *
 * Decision 5. */
#include "base/checksum.h"
#include "store/parts.h"

int32_t
fbk_locations_write_begin(struct fbk_locations_writer *to, struct fbk_store *store,
                          struct fbk_file_writer *writer, uint64_t file_id,
                          uint64_t first_generation, uint64_t last_generation, uint64_t created_s)
{
    memset(to, 0, sizeof *to);
    to->store = store;
    to->writer = writer;
    to->ledger_id = -1;
    to->header = (struct fbk_locations_header){
        .magic = FBK_LOCATIONS_MAGIC,
        .version = FBK_LOCATIONS_VERSION_PLAIN,
        .pair = store->options.pair,
        .file_id = file_id,
        .incarnation = store->options.incarnation,
        .created_s = created_s,
        .first_generation = first_generation,
        .last_generation = last_generation,
    };
    to->handle = -1;
    int32_t result = fbk_store_path(store, to->path, "locations", file_id, "loc");
    if (result < 0)
        return result;
    /* The header is written on its own: where the device's blocks are larger than ours, without
     * O_DIRECT. */
    uint32_t flags =
        FBK_IO_CREATE | (to->writer->align_bytes == FBK_LOCATIONS_BLOCK_BYTES ? FBK_IO_DIRECT : 0);
    to->handle = writer->io->operations->open(writer->io, to->path, flags);
    if (to->handle < 0)
        return to->handle;
    uint32_t align_bytes = to->writer->align_bytes;
    to->writer->align_bytes = FBK_LOCATIONS_BLOCK_BYTES;
    fbk_file_writer_begin(to->writer, to->handle, FBK_LOCATIONS_BLOCK_BYTES);
    to->writer->align_bytes = align_bytes;
    return 0;
}

static void
end_block(struct fbk_locations_writer *to, uint32_t used_bytes)
{
    if (to->in_block == 0)
        return;
    uint64_t number = 1 + to->header.location_blocks + to->header.state_blocks;
    memset(to->block + used_bytes, 0, FBK_LOCATIONS_BLOCK_BYTES - used_bytes);
    fbk_store_u32(to->block + FBK_LOCATIONS_BLOCK_BYTES - 8, (uint32_t)number);
    fbk_store_u32(to->block + FBK_LOCATIONS_BLOCK_BYTES - 4,
                  fbk_crc32c(0, to->block, FBK_LOCATIONS_BLOCK_BYTES - 4));
    fbk_file_writer_put(to->writer, to->block, FBK_LOCATIONS_BLOCK_BYTES);
    if (to->in_states)
        to->header.state_blocks++;
    else
        to->header.location_blocks++;
    to->in_block = 0;
}

void
fbk_locations_write_location(struct fbk_locations_writer *to, const struct fbk_location *location)
{
    FBK_ASSERT(!to->in_states);
    struct fbk_location copy = *location;
    copy.flags &= FBK_LOCATION_DAMAGED;
    if (copy.ledger_id != to->ledger_id) {
        FBK_ASSERT(copy.ledger_id > to->ledger_id);
        to->ledger_id = copy.ledger_id;
        to->last_entry_id_max = copy.last_entry_id;
    } else if (copy.last_entry_id > to->last_entry_id_max) {
        to->last_entry_id_max = copy.last_entry_id;
    }
    copy.last_entry_id_max = to->last_entry_id_max;
    if (copy.log_id & FBK_LOG_JOURNAL)
        to->header.version = FBK_LOCATIONS_VERSION;
    memcpy(to->block + to->in_block * sizeof copy, &copy, sizeof copy);
    to->header.location_count++;
    if (++to->in_block == FBK_LOCATIONS_PER_BLOCK)
        end_block(to, FBK_LOCATIONS_PER_BLOCK * sizeof copy);
}

void
fbk_locations_write_state(struct fbk_locations_writer *to, const struct fbk_ledger_state *state)
{
    if (!to->in_states) {
        end_block(to, to->in_block * (uint32_t)sizeof(struct fbk_location));
        to->in_states = true;
        to->ledger_id = -1;
    }
    FBK_ASSERT(state->ledger_id > to->ledger_id);
    to->ledger_id = state->ledger_id;
    struct fbk_ledger_state copy = *state;
    copy.reserved = 0;
    copy.crc = fbk_crc32c(0, &copy, offsetof(struct fbk_ledger_state, crc));
    memcpy(to->block + to->in_block * sizeof copy, &copy, sizeof copy);
    to->header.state_count++;
    if (++to->in_block == FBK_STATES_PER_BLOCK)
        end_block(to, FBK_STATES_PER_BLOCK * sizeof copy);
}

static int32_t
write_header(struct fbk_locations_writer *to)
{
    to->header.crc = fbk_crc32c(0, &to->header, offsetof(struct fbk_locations_header, crc));
    memset(to->block, 0, sizeof to->block);
    memcpy(to->block, &to->header, sizeof to->header);
    fbk_file_writer_begin(to->writer, to->handle, 0);
    fbk_file_writer_put(to->writer, to->block, sizeof to->block);
    /* Block 1 on is there already: pad to our block, not the device's. */
    uint32_t align_bytes = to->writer->align_bytes;
    to->writer->align_bytes = FBK_LOCATIONS_BLOCK_BYTES;
    int32_t result = fbk_file_writer_finish(to->writer);
    to->writer->align_bytes = align_bytes;
    return result;
}

int32_t
fbk_locations_write_end(struct fbk_locations_writer *to, uint64_t *file_size_bytes)
{
    struct fbk_io *io = to->writer->io;
    char folder[FBK_STORE_PATH_BYTES];
    uint32_t size = to->in_states ? sizeof(struct fbk_ledger_state) : sizeof(struct fbk_location);
    end_block(to, to->in_block * size);
    int32_t result = fbk_file_writer_finish(to->writer);
    *file_size_bytes = fbk_file_writer_position(to->writer);
    if (result >= 0)
        result = write_header(to);
    if (result >= 0)
        result = io->operations->sync(io, to->handle);
    if (result >= 0)
        result = fbk_store_path(to->store, folder, "locations", 0, NULL);
    if (result >= 0)
        result = io->operations->sync_directory(io, folder);
    int32_t closed = io->operations->close(io, to->handle);
    to->handle = -1;
    return result < 0 ? result : closed < 0 ? closed : 0;
}

void
fbk_locations_write_abandon(struct fbk_locations_writer *to)
{
    if (to->handle < 0)
        return;
    (void)fbk_file_writer_finish(to->writer);
    to->writer->io->operations->close(to->writer->io, to->handle);
    to->handle = -1;
}
