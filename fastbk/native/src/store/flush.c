/* One flush: runs into an entry log, then their locations and the changed ledger states into a
 * locations file.  The flush thread's alone.
 *
 * Chunks go first, each at an aligned place and from where it lies in memory; then what is copied
 * into runs. */
#include "base/fault.h"
#include "base/segment.h"
#include "store/entry_log.h"
#include "store/parts.h"

struct fbk_flush {
    struct fbk_store *store;
    struct fbk_flush_options options;
    struct fbk_flush_contents contents;
    uint64_t chunk_next;
    uint64_t run_next;
    uint64_t item_next;
    /* of the runs in chunks, then of the others, by ledger and id */
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
fbk_flush_begin(struct fbk_store *store, const struct fbk_flush_options *options,
                const struct fbk_flush_contents *contents, int32_t *error)
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
    flush->contents = *contents;
    flush->log = -1;
    flush->to.handle = -1;
    /* states alone need no log */
    *error = contents->item_count + contents->run_count > 0 ? open_log(flush) : 0;
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
        void *grown = flush->locations
                          ? fbk_memory_grow(flush->locations, flush->locations_bytes, more)
                          : fbk_memory_take(more);
        if (!grown)
            return NULL;
        flush->locations = grown;
        flush->locations_bytes = more;
    }
    return &flush->locations[flush->location_count];
}

/* Heads the chunk's runs, now that their places in the log are known, and writes it. */
static int32_t
put_chunk(struct fbk_flush *flush)
{
    struct fbk_file_writer *writer = &flush->store->writer;
    const struct fbk_flush_chunk *chunk = &flush->contents.chunks[flush->chunk_next];
    fbk_file_writer_align(writer);
    const uint64_t begins_at = fbk_file_writer_position(writer);
    while (flush->run_next < flush->contents.run_count &&
           flush->contents.runs[flush->run_next].chunk == flush->chunk_next) {
        const struct fbk_flush_run *run = &flush->contents.runs[flush->run_next++];
        struct fbk_location *location = next_location(flush);
        if (!location)
            return -ENOMEM;
        FBK_ASSERT(run->bytes >= chunk->bytes &&
                   run->bytes + run->size_bytes <= chunk->bytes + chunk->size_bytes);
        fbk_run_head(run->bytes, run->ledger_id, run->entry_count, run->size_bytes,
                     begins_at + (uint64_t)(run->bytes - chunk->bytes), flush->options.log_id,
                     flush->options.log_salt, location);
        flush->location_count++;
        flush->run_bytes += run->size_bytes;
    }
    fbk_file_writer_put_in_place(writer, chunk->bytes, chunk->size_bytes);
    flush->chunk_next++;
    return 0;
}

/* Copies the next items into a run.  The bytes that it has, or < 0. */
static int64_t
put_run(struct fbk_flush *flush)
{
    struct fbk_location *location = next_location(flush);
    if (!location)
        return -ENOMEM;
    int32_t taken = fbk_run_put(&flush->store->writer, flush->contents.items + flush->item_next,
                                flush->contents.item_count - flush->item_next,
                                flush->options.log_id, flush->options.log_salt, location);
    if (taken < 0)
        return taken;
    flush->item_next += (uint32_t)taken;
    flush->location_count++;
    flush->run_bytes += location->size_bytes;
    return location->size_bytes;
}

static bool
has_more(const struct fbk_flush *flush)
{
    return flush->chunk_next < flush->contents.chunk_count ||
           flush->item_next < flush->contents.item_count;
}

int32_t
fbk_flush_step(struct fbk_flush *flush, uint64_t bytes_max)
{
    const struct fbk_file_writer *writer = &flush->store->writer;
    uint64_t bytes = 0;
    while (flush->error >= 0 && has_more(flush) && bytes < bytes_max) {
        int64_t put;
        if (flush->chunk_next < flush->contents.chunk_count) {
            put = (int64_t)flush->contents.chunks[flush->chunk_next].size_bytes;
            int32_t error = put_chunk(flush);
            put = error < 0 ? error : put;
        } else {
            put = put_run(flush);
        }
        flush->error = put < 0 ? (int32_t)put : writer->error < 0 ? writer->error : 0;
        bytes += put < 0 ? 0 : (uint64_t)put;
    }
    return flush->error < 0 ? flush->error : has_more(flush);
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

static int
compare_locations(const void *a, const void *b)
{
    const struct fbk_location *x = a, *y = b;
    if (x->ledger_id != y->ledger_id)
        return x->ledger_id > y->ledger_id ? 1 : -1;
    return (x->first_entry_id > y->first_entry_id) - (x->first_entry_id < y->first_entry_id);
}

void
fbk_locations_sort(struct fbk_location *locations, uint64_t count)
{
    if (count > 0)
        qsort(locations, count, sizeof *locations, compare_locations);
}

struct sorted {
    const struct fbk_location *next, *end;
};

/* Those of chunks are in the order of the chunks, the others in that of the file; those of adopted
 * runs are sorted. */
static void
write_locations(struct fbk_flush *flush)
{
    const struct fbk_flush_contents *contents = &flush->contents;
    fbk_locations_sort(flush->locations, contents->run_count);
    const struct fbk_location *copied = flush->locations + contents->run_count;
    struct sorted parts[] = {
        {flush->locations, copied},
        {copied, flush->locations + flush->location_count},
        {contents->adopted, contents->adopted + contents->adopted_count},
    };
    for (;;) {
        struct sorted *first = NULL;
        for (uint32_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
            if (parts[i].next < parts[i].end &&
                (!first || compare_locations(parts[i].next, first->next) < 0))
                first = &parts[i];
        if (!first)
            return;
        fbk_locations_write_location(&flush->to, first->next++);
    }
}

int32_t
fbk_flush_end(struct fbk_flush *flush, struct fbk_flush_result *result)
{
    memset(result, 0, sizeof *result);
    int32_t error = flush->error;
    if (error >= 0 && has_more(flush))
        error = -EINVAL;
    if (error >= 0)
        error = end_log(flush, &result->log_end_bytes);
    if (error >= 0)
        error = fbk_locations_write_begin(
            &flush->to, flush->store, &flush->store->writer, flush->options.locations_file_id,
            flush->options.generation, flush->options.generation, flush->options.created_s);
    if (error < 0) {
        fbk_flush_abandon(flush);
        return error;
    }
    write_locations(flush);
    for (uint64_t i = 0; i < flush->contents.state_count; i++)
        fbk_locations_write_state(&flush->to, &flush->contents.states[i]);
    FBK_KILL_POINT("index.flush_before_locations_sync");
    error = fbk_locations_write_end(&flush->to, &result->file_size_bytes);
    FBK_KILL_POINT("index.flush_after_locations");
    result->run_bytes = flush->run_bytes;
    result->location_count = flush->location_count + flush->contents.adopted_count;
    free_flush(flush);
    return error < 0 ? error : 0;
}

void
fbk_flush_abandon(struct fbk_flush *flush)
{
    struct fbk_io *io = flush->store->io;
    if (flush->log >= 0) {
        /* the kernel lets go of the buffers */
        (void)fbk_file_writer_finish(&flush->store->writer);
        io->operations->close(io, flush->log);
    }
    fbk_locations_write_abandon(&flush->to);
    free_flush(flush);
}
