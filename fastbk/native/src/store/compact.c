/* Compaction: runs that still live are read, checked, sorted, joined, and written into a log of
 * their own.
 *
 * A window of runs at a time: what lies close together is read at once, past the page cache, which
 * is for readers.  Every entry is checked against its own checksum.  What is damaged is not moved
 * and stops nothing: its ids get a location that stands for damage.  A log with so many bad runs
 * that the disk rather than some of its sectors must be at fault stays as it is.  Background
 * thread.
 *
 * Decisions 50 and 51. */
#include "store/compact.h"

#include "base/fault.h"
#include "base/segment.h"
#include "store/entry_log.h"

static void
give_back(struct fbk_growing *memory)
{
    if (memory->bytes)
        fbk_memory_give_back(memory->bytes, memory->room_bytes);
}

static int32_t
make_log(struct fbk_compact *compact)
{
    struct fbk_io *io = compact->writer.io;
    char path[FBK_STORE_PATH_BYTES];
    uint8_t block[FBK_PAGE_BYTES];
    struct fbk_log_header header = {
        .pair = compact->store->options.pair,
        .log_id = compact->options.log_id,
        .salt = compact->options.log_salt,
        .incarnation = compact->store->options.incarnation,
        .created_s = compact->options.created_s,
    };
    int32_t result = fbk_store_path(compact->store, path, "logs", header.log_id, "log");
    if (result < 0)
        return result;
    compact->log = io->operations->open(io, path, FBK_IO_DIRECT | FBK_IO_CREATE);
    if (compact->log < 0)
        return compact->log;
    fbk_file_writer_begin(&compact->writer, compact->log, 0);
    fbk_log_header_fill(block, &header);
    fbk_file_writer_put(&compact->writer, block, sizeof block);
    return 0;
}

struct fbk_compact *
fbk_compact_begin(struct fbk_store *store, const struct fbk_compact_options *options,
                  int32_t *error)
{
    struct fbk_compact *compact = calloc(1, sizeof *compact);
    *error = -ENOMEM;
    if (!compact)
        return NULL;
    compact->store = store;
    compact->options = *options;
    compact->log = compact->source.handle = -1;
    compact->to.handle = -1;
    *error = fbk_file_writer_init(&compact->writer, store->background_io);
    if (*error >= 0)
        *error = make_log(compact);
    if (*error < 0) {
        fbk_compact_free(compact);
        return NULL;
    }
    return compact;
}

/* ------------ writing a window */

static int
compare_items(const void *a, const void *b)
{
    const struct fbk_flush_item *x = a, *y = b;
    int order = fbk_location_compare(x->ledger_id, x->entry_id, y->ledger_id, y->entry_id);
    /* Of two copies the one that was written first comes first: a window lies in memory as in the
     * logs. */
    return order != 0 ? order : (x->data > y->data) - (x->data < y->data);
}

/* Leaves the first of equal ids. */
static uint64_t
without_copies(struct fbk_flush_item *items, uint64_t count)
{
    uint64_t kept = 0;
    for (uint64_t i = 0; i < count; i++) {
        if (kept > 0 && items[kept - 1].ledger_id == items[i].ledger_id &&
            items[kept - 1].entry_id == items[i].entry_id)
            continue;
        items[kept++] = items[i];
    }
    return kept;
}

/* Sorts what the window holds; from now on it is written. */
static void
close_window(struct fbk_compact *compact)
{
    struct fbk_flush_item *items = (struct fbk_flush_item *)(void *)compact->items.bytes;
    if (compact->item_count > 1)
        qsort(items, compact->item_count, sizeof *items, compare_items);
    compact->item_count = without_copies(items, compact->item_count);
    compact->item_next = 0;
    compact->is_writing = true;
}

static int32_t
write_some(struct fbk_compact *compact)
{
    const struct fbk_flush_item *items =
        (const struct fbk_flush_item *)(const void *)compact->items.bytes;
    uint64_t stop_at = compact->counts.moved_bytes + FBK_COMPACT_SLICE_BYTES;
    while (compact->item_next < compact->item_count && compact->counts.moved_bytes < stop_at) {
        struct fbk_location *location = fbk_compact_new_location(compact);
        if (!location)
            return -ENOMEM;
        int32_t taken = fbk_run_put(&compact->writer, items + compact->item_next,
                                    compact->item_count - compact->item_next,
                                    compact->options.log_id, compact->options.log_salt, location);
        if (taken < 0)
            return taken;
        if (compact->writer.error < 0)
            return compact->writer.error;
        compact->location_count++;
        compact->counts.runs_written++;
        compact->counts.moved_bytes += location->size_bytes;
        compact->counts.entries_moved += (uint32_t)taken;
        compact->item_next += (uint32_t)taken;
    }
    if (compact->item_next == compact->item_count) {
        compact->is_writing = false;
        compact->item_count = compact->window_used = 0;
        FBK_KILL_POINT("index.compact_after_window");
    }
    return 0;
}

int32_t
fbk_compact_step(struct fbk_compact *compact, const struct fbk_location *runs, uint64_t run_count,
                 uint64_t *taken)
{
    int32_t result = compact->log < 0 ? -EINVAL : compact->error;
    *taken = 0;
    if (result >= 0 && !compact->is_writing && compact->window_used > 0 &&
        !fbk_compact_has_room(compact, runs, run_count))
        close_window(compact);
    if (result >= 0 && compact->is_writing) {
        result = write_some(compact);
        fbk_file_writer_settle(&compact->writer);
        if (result >= 0)
            return 1;
    }
    if (result >= 0)
        result = run_count > 0 ? fbk_compact_read(compact, runs, run_count, taken) : 0;
    if (result < 0)
        compact->error = result;
    return result;
}

/* ------------ the end */

int32_t
fbk_compact_end_log(struct fbk_compact *compact, uint64_t *log_end_bytes)
{
    struct fbk_io *io = compact->writer.io;
    char folder[FBK_STORE_PATH_BYTES];
    if (compact->log < 0 || compact->error < 0)
        return compact->error < 0 ? compact->error : -EINVAL;
    int32_t result = fbk_file_writer_finish(&compact->writer);
    *log_end_bytes = fbk_file_writer_position(&compact->writer);
    FBK_KILL_POINT("index.compact_before_sync");
    if (result >= 0)
        result = io->operations->sync(io, compact->log);
    if (result >= 0)
        result = fbk_store_path(compact->store, folder, "logs", 0, NULL);
    if (result >= 0)
        result = io->operations->sync_directory(io, folder);
    FBK_KILL_POINT("index.compact_after_sync");
    int32_t closed = io->operations->close(io, compact->log);
    compact->log = -1;
    compact->error = result < 0 ? result : closed < 0 ? closed : 0;
    return compact->error;
}

static int
compare_locations(const void *a, const void *b)
{
    const struct fbk_location *x = a, *y = b;
    int order =
        fbk_location_compare(x->ledger_id, x->first_entry_id, y->ledger_id, y->first_entry_id);
    return order != 0
               ? order
               : (x->last_entry_id > y->last_entry_id) - (x->last_entry_id < y->last_entry_id);
}

int32_t
fbk_compact_write_locations(struct fbk_compact *compact, uint64_t file_id, uint64_t generation,
                            uint64_t *file_size_bytes)
{
    struct fbk_location *locations = (struct fbk_location *)(void *)compact->locations.bytes;
    if (compact->log >= 0 || compact->error < 0)
        return compact->error < 0 ? compact->error : -EINVAL;
    if (compact->location_count > 1)
        qsort(locations, compact->location_count, sizeof *locations, compare_locations);
    int32_t result =
        fbk_locations_write_begin(&compact->to, compact->store, &compact->writer, file_id,
                                  generation, generation, compact->options.created_s);
    if (result < 0)
        return result;
    for (uint64_t i = 0; i < compact->location_count; i++)
        fbk_locations_write_location(&compact->to, &locations[i]);
    result = fbk_locations_write_end(&compact->to, file_size_bytes);
    FBK_KILL_POINT("index.compact_after_locations");
    compact->location_count = 0;
    return result;
}

void
fbk_compact_counts_get(const struct fbk_compact *compact, struct fbk_compact_counts *counts)
{
    *counts = compact->counts;
    counts->locations = compact->location_count;
}

uint64_t
fbk_compact_damaged(const struct fbk_compact *compact, int64_t *ids, uint64_t ranges_max)
{
    const struct fbk_location *locations =
        (const struct fbk_location *)(const void *)compact->locations.bytes;
    uint64_t count = 0;
    for (uint64_t i = 0; i < compact->location_count; i++) {
        if (!(locations[i].flags & FBK_LOCATION_DAMAGED))
            continue;
        if (count < ranges_max) {
            ids[3 * count] = locations[i].ledger_id;
            ids[3 * count + 1] = locations[i].first_entry_id;
            ids[3 * count + 2] = locations[i].last_entry_id;
        }
        count++;
    }
    return count;
}

void
fbk_compact_free(struct fbk_compact *compact)
{
    struct fbk_io *io = compact->store->background_io;
    if (compact->log >= 0) {
        /* the kernel lets go of the buffers */
        (void)fbk_file_writer_finish(&compact->writer);
        io->operations->close(io, compact->log);
    }
    fbk_locations_write_abandon(&compact->to);
    fbk_compact_close_source(compact);
    fbk_file_writer_free(&compact->writer);
    give_back(&compact->window);
    give_back(&compact->items);
    give_back(&compact->locations);
    free(compact);
}
