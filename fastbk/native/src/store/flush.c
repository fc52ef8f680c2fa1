/* One flush: runs into an entry log, then their locations and the changed ledger states into a locations file.  The
 * flush thread's alone. */
#include "base/fault.h"
#include "base/segment.h"
#include "store/entry_log.h"
#include "store/parts.h"

struct fbk_flush {
    struct fbk_store *store;
    struct fbk_flush_options options;
    const struct fbk_flush_item *items;
    const struct fbk_ledger_state *states;
    uint64_t item_count;
    uint64_t state_count;
    uint64_t item_next;
    struct fbk_location *locations;
    uint64_t locations_bytes; /* of memory */
    uint64_t location_count;
    uint64_t run_bytes;
    int32_t log;
    int32_t error;
    struct fbk_locations_writer to;
};

static void
free_flush(struct fbk_flush *flush)
{
    if (flush->locations)
        fbk_memory_give_back(flush->locations, flush->locations_bytes);
    flush->store->writing = false;
    free(flush);
}

static int32_t
open_log(struct fbk_flush *flush)
{
    struct fbk_store *store = flush->store;
    struct fbk_io *io = store->io;
    char path[FBK_STORE_PATH_BYTES];
    int32_t result = fbk_store_path(store, path, "logs", flush->options.log_id, "log");
    if (result < 0)
        return result;
    bool create = flush->options.log_offset_bytes == 0;
    if (flush->options.log_offset_bytes % store->writer.align_bytes != 0)
        return -EINVAL;
    flush->log = io->operations->open(io, path, FBK_IO_DIRECT | (create ? FBK_IO_CREATE : 0));
    if (flush->log < 0)
        return flush->log;
    fbk_file_writer_begin(&store->writer, flush->log, flush->options.log_offset_bytes);
    if (create) {
        uint8_t block[FBK_PAGE_BYTES];
        struct fbk_log_header header = {
            .pair = store->options.pair,
            .log_id = flush->options.log_id,
            .salt = flush->options.log_salt,
            .incarnation = store->options.incarnation,
            .created_s = flush->options.created_s,
        };
        fbk_log_header_fill(block, &header);
        fbk_file_writer_put(&store->writer, block, sizeof block);
    }
    return 0;
}

struct fbk_flush *
fbk_flush_begin(struct fbk_store *store, const struct fbk_flush_options *options, const struct fbk_flush_item *items,
                uint64_t item_count, const struct fbk_ledger_state *states, uint64_t state_count, int32_t *error)
{
    struct fbk_flush *flush = NULL;
    *error = store->writing ? -EBUSY : -ENOMEM;
    if (!store->writing)
        flush = calloc(1, sizeof *flush);
    if (!flush)
        return NULL;
    store->writing = true;
    flush->store = store;
    flush->options = *options;
    flush->items = items;
    flush->item_count = item_count;
    flush->states = states;
    flush->state_count = state_count;
    flush->log = -1;
    flush->to.handle = -1;
    *error = item_count > 0 ? open_log(flush) : 0; /* states alone need no log */
    if (*error < 0) {
        free_flush(flush);
        return NULL;
    }
    return flush;
}

static struct fbk_location *
next_location(struct fbk_flush *flush)
{
    uint64_t needed = (flush->location_count + 1) * sizeof(struct fbk_location);
    if (needed > flush->locations_bytes) {
        uint64_t more = flush->locations_bytes ? flush->locations_bytes * 2 : 64 * FBK_KIB;
        void *grown = flush->locations ? fbk_memory_grow(flush->locations, flush->locations_bytes, more)
                                       : fbk_memory_take(more);
        if (!grown)
            return NULL;
        flush->locations = grown;
        flush->locations_bytes = more;
    }
    return &flush->locations[flush->location_count];
}

int32_t
fbk_flush_step(struct fbk_flush *flush, uint64_t bytes_max)
{
    struct fbk_file_writer *writer = &flush->store->writer;
    uint64_t bytes = 0;
    while (flush->error >= 0 && flush->item_next < flush->item_count && bytes < bytes_max) {
        struct fbk_location *location = next_location(flush);
        if (!location) {
            flush->error = -ENOMEM;
            break;
        }
        int32_t taken = fbk_run_put(writer, flush->items + flush->item_next, flush->item_count - flush->item_next,
                                    flush->options.log_id, flush->options.log_salt, location);
        if (taken < 0) {
            flush->error = taken;
            break;
        }
        if (writer->error < 0)
            flush->error = writer->error;
        flush->item_next += (uint32_t)taken;
        flush->location_count++;
        flush->run_bytes += location->size_bytes;
        bytes += location->size_bytes;
    }
    if (flush->error < 0)
        return flush->error;
    return flush->item_next < flush->item_count;
}

/* Ends the log: padded, written, synced; a new one's name too. */
static int32_t
end_log(struct fbk_flush *flush, uint64_t *end_bytes)
{
    struct fbk_store *store = flush->store;
    struct fbk_io *io = store->io;
    char folder[FBK_STORE_PATH_BYTES];
    *end_bytes = flush->options.log_offset_bytes;
    if (flush->log < 0)
        return 0;
    int32_t result = fbk_file_writer_finish(&store->writer);
    FBK_KILL_POINT("index.flush_after_runs");
    *end_bytes = fbk_file_writer_position(&store->writer);
    if (result >= 0)
        result = io->operations->sync(io, flush->log);
    FBK_KILL_POINT("index.flush_after_log_sync");
    if (result >= 0 && flush->options.log_offset_bytes == 0) {
        result = fbk_store_path(store, folder, "logs", 0, NULL);
        if (result >= 0)
            result = io->operations->sync_directory(io, folder);
    }
    int32_t closed = io->operations->close(io, flush->log);
    flush->log = -1;
    return result < 0 ? result : closed < 0 ? closed : 0;
}

int32_t
fbk_flush_end(struct fbk_flush *flush, struct fbk_flush_result *result)
{
    memset(result, 0, sizeof *result);
    int32_t error = flush->error;
    if (error >= 0 && flush->item_next < flush->item_count)
        error = -EINVAL;
    if (error >= 0)
        error = end_log(flush, &result->log_end_bytes);
    if (error >= 0)
        error = fbk_locations_write_begin(&flush->to, flush->store, &flush->store->writer,
                                          flush->options.locations_file_id,
                                          flush->options.generation, flush->options.generation,
                                          flush->options.created_s);
    if (error < 0) {
        fbk_flush_abandon(flush);
        return error;
    }
    for (uint64_t i = 0; i < flush->location_count; i++)
        fbk_locations_write_location(&flush->to, &flush->locations[i]);
    for (uint64_t i = 0; i < flush->state_count; i++)
        fbk_locations_write_state(&flush->to, &flush->states[i]);
    FBK_KILL_POINT("index.flush_before_locations_sync");
    error = fbk_locations_write_end(&flush->to, &result->file_size_bytes);
    FBK_KILL_POINT("index.flush_after_locations");
    result->run_bytes = flush->run_bytes;
    result->location_count = flush->location_count;
    free_flush(flush);
    return error < 0 ? error : 0;
}

void
fbk_flush_abandon(struct fbk_flush *flush)
{
    struct fbk_io *io = flush->store->io;
    if (flush->log >= 0) {
        (void)fbk_file_writer_finish(&flush->store->writer); /* the kernel lets go of the buffers */
        io->operations->close(io, flush->log);
    }
    fbk_locations_write_abandon(&flush->to);
    free_flush(flush);
}
