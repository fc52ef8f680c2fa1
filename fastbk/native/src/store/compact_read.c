/* Filling a window of compaction: what lies close together in a log is read at once, then checked
 * run by run.
 *
 * Bytes that come back wrong, by two ways of reading, are damage.  Bytes that do not come back are
 * not: the disk may have a bad moment, and what it holds must not be written off for that.  A log
 * that can't be read is left out, and so is one with so much damage that the disk rather than some
 * of its sectors must be at fault. */
#include "store/compact.h"

#include "base/segment.h"
#include "store/entry_log.h"

bool
fbk_growing_reserve(struct fbk_growing *memory, uint64_t size_bytes)
{
    if (size_bytes <= memory->room_bytes)
        return true;
    uint64_t room = memory->room_bytes * 2 > size_bytes ? memory->room_bytes * 2
                                                        : fbk_round_up(size_bytes, 64 * FBK_KIB);
    void *grown = memory->bytes ? fbk_memory_grow(memory->bytes, memory->room_bytes, room)
                                : fbk_memory_take(room);
    if (!grown)
        return false;
    memory->bytes = grown;
    memory->room_bytes = room;
    return true;
}

/* dead bytes that are read along rather than read twice */
#define GAP_BYTES (64u * 1024u)
/* bad runs that are taken for the disk's small damage; and one in so many: */
#define BAD_RUNS_FREE 64u
#define BAD_RUNS_SHARE 16u

void
fbk_compact_close_source(struct fbk_compact *compact)
{
    struct fbk_io *io = compact->store->reader_io;
    if (compact->source.handle >= 0)
        io->operations->close(io, compact->source.handle);
    compact->source.handle = -1;
}

static int32_t
open_source(struct fbk_compact *compact, uint64_t log_id)
{
    struct fbk_io *io = compact->store->reader_io;
    char path[FBK_STORE_PATH_BYTES];
    uint64_t salt = 0;
    if (compact->source.handle >= 0 && compact->source.log_id == log_id)
        return 0;
    fbk_compact_close_source(compact);
    compact->bad_runs_before += compact->source.bad_runs;
    compact->source.bad_runs = 0;
    int32_t result = fbk_log_path(compact->store, path, log_id);
    int32_t handle =
        result < 0 ? result : io->operations->open(io, path, FBK_IO_READ_ONLY | FBK_IO_DIRECT);
    if (handle < 0)
        return handle; /* a listed log that is gone: nothing may be made of that */
    result = fbk_log_read_salt(io, handle, log_id, compact->store->options.incarnation, &salt);
    if (result == FBK_E_TOO_NEW || result == -ENOMEM) {
        io->operations->close(io, handle);
        return result;
    }
    /* Without a readable header runs are judged by their own checksums alone, as readers do. */
    compact->source = (struct fbk_compact_source){
        .log_id = log_id,
        .handle = handle,
        .has_salt = result >= 0,
        .salt = salt,
    };
    return 0;
}

static int32_t
note_damage(struct fbk_compact *compact, int64_t ledger_id, int64_t first_entry_id,
            int64_t last_entry_id, uint32_t count)
{
    struct fbk_location *location = fbk_compact_new_location(compact);
    if (!location)
        return -ENOMEM;
    *location = (struct fbk_location){
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = last_entry_id,
        .entry_count = count,
        /* No log, but what a location has to look like. */
        .offset_bytes = FBK_PAGE_BYTES,
        .size_bytes =
            (uint32_t)(sizeof(struct fbk_run_header) + count * sizeof(struct fbk_run_item)),
        .flags = FBK_LOCATION_DAMAGED,
    };
    compact->location_count++;
    return 0;
}

/* The last word on a run that looks damaged: exactly its bytes, through the page cache. */
static int32_t
read_again(struct fbk_compact *compact, const struct fbk_location *run, uint8_t *bytes)
{
    struct fbk_io *io = compact->store->reader_io;
    char path[FBK_STORE_PATH_BYTES];
    int32_t result = fbk_log_path(compact->store, path, run->log_id);
    int32_t handle =
        result < 0
            ? result
            : io->operations->open(io, path, fbk_log_open_flags(compact->store, run->log_id));
    if (handle < 0)
        return handle;
    result = fbk_store_read_all(io, handle, bytes, run->size_bytes, run->offset_bytes);
    io->operations->close(io, handle);
    return result < 0 ? result
                      : fbk_run_check(bytes, run->size_bytes, run,
                                      compact->source.has_salt ? &compact->source.salt : NULL);
}

/* Good entries of a checked run become items, neighbours that are damaged one location. */
static int32_t
take_entries(struct fbk_compact *compact, const struct fbk_location *run, const uint8_t *bytes)
{
    const struct fbk_run_item *from =
        (const struct fbk_run_item *)(const void *)(bytes + sizeof(struct fbk_run_header));
    if (!fbk_growing_reserve(&compact->items, (compact->item_count + run->entry_count) *
                                                  sizeof(struct fbk_flush_item)))
        return -ENOMEM;
    struct fbk_flush_item *items = (struct fbk_flush_item *)(void *)compact->items.bytes;
    for (uint32_t i = 0; i < run->entry_count; i++) {
        if (from[i].size_bytes > 0) {
            items[compact->item_count++] = (struct fbk_flush_item){
                .ledger_id = run->ledger_id,
                .entry_id = from[i].entry_id,
                .data = bytes + from[i].offset_bytes,
                .size_bytes = from[i].size_bytes,
                .crc = from[i].crc,
            };
            continue;
        }
        uint32_t last = i;
        /* Ids between them may be nobody's: only what was here stands for damage, or no repair
         * would end it. */
        while (last + 1 < run->entry_count && from[last + 1].size_bytes == 0 &&
               from[last + 1].entry_id == from[last].entry_id + 1)
            last++;
        compact->counts.bad_entries += last - i + 1;
        int32_t result = note_damage(compact, run->ledger_id, from[i].entry_id, from[last].entry_id,
                                     last - i + 1);
        if (result < 0)
            return result;
        i = last;
    }
    return 0;
}

static int32_t
take_run(struct fbk_compact *compact, const struct fbk_location *run, uint8_t *bytes, int32_t read)
{
    const uint64_t *salt = compact->source.has_salt ? &compact->source.salt : NULL;
    int32_t damaged = read < 0 ? read : fbk_run_check(bytes, run->size_bytes, run, salt);
    if (damaged != 0)
        damaged = read_again(compact, run, bytes);
    compact->counts.runs_read++;
    bool is_bad = damaged > 0 || damaged == FBK_E_CORRUPT;
    compact->counts.bad_runs += is_bad;
    compact->source.bad_runs += is_bad;
    if (compact->bad_runs_before + compact->source.bad_runs >
        BAD_RUNS_FREE + compact->counts.runs_read / BAD_RUNS_SHARE)
        return -EIO;
    if (damaged >= 0)
        return take_entries(compact, run, bytes);
    if (damaged != FBK_E_CORRUPT)
        return damaged;
    compact->counts.bad_entries += run->entry_count;
    return note_damage(compact, run->ledger_id, run->first_entry_id, run->last_entry_id,
                       run->entry_count);
}

/* How many of the runs are read at once: `from` and `to` are where, by whole blocks. */
static uint64_t
plan_segment(const struct fbk_compact *compact, const struct fbk_location *runs, uint64_t run_count,
             uint64_t *from, uint64_t *to)
{
    const struct fbk_io *io = compact->store->reader_io;
    const uint64_t block =
        io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    uint64_t count = 0;
    *from = *to = 0;
    while (count < run_count && runs[count].log_id == runs[0].log_id) {
        uint64_t begin = runs[count].offset_bytes & ~(block - 1);
        uint64_t end = fbk_round_up(runs[count].offset_bytes + runs[count].size_bytes, block);
        if (count == 0)
            *from = begin;
        else if (begin > *to + GAP_BYTES || end - *from > FBK_COMPACT_SLICE_BYTES)
            break;
        *to = count == 0 || end > *to ? end : *to;
        count++;
    }
    return count;
}

/* Errors that say nothing about a log. */
static bool
is_ours(int32_t error)
{
    return error == FBK_E_CORRUPT || error == FBK_E_TOO_NEW || error == -ENOMEM ||
           error == -EMFILE || error == -ENFILE;
}

bool
fbk_compact_has_room(const struct fbk_compact *compact, const struct fbk_location *runs,
                     uint64_t run_count)
{
    uint64_t from, to;
    if (run_count == 0 || runs[0].log_id != compact->source.log_id)
        return false;
    (void)plan_segment(compact, runs, run_count, &from, &to);
    return compact->window_used + (to - from) <= compact->options.window_bytes;
}

int32_t
fbk_compact_read(struct fbk_compact *compact, const struct fbk_location *runs, uint64_t run_count,
                 uint64_t *taken)
{
    struct fbk_io *io = compact->store->reader_io;
    int32_t result = open_source(compact, runs[0].log_id);
    if (result >= 0) {
        uint64_t from, to;
        uint64_t count = plan_segment(compact, runs, run_count, &from, &to);
        /* Items point into the window: it grows only while it is empty, for a run that is
         * larger. */
        uint64_t wanted = compact->window_used + (to - from);
        if (!fbk_growing_reserve(&compact->window, wanted > compact->options.window_bytes
                                                       ? wanted
                                                       : compact->options.window_bytes))
            return -ENOMEM;
        uint8_t *memory = compact->window.bytes + compact->window_used;
        int32_t read = fbk_store_read_all(io, compact->source.handle, memory, to - from, from);
        compact->counts.read_bytes += to - from;
        for (uint64_t i = 0; i < count && result >= 0; i++)
            result = take_run(compact, &runs[i], memory + (runs[i].offset_bytes - from), read);
        compact->window_used = wanted;
        *taken = count;
    }
    if (result >= 0)
        return 1;
    *taken = 0;
    /* what was moved before is there twice, and does no harm */
    compact->item_count = compact->window_used = 0;
    compact->source.bad_runs = 0; /* nothing of a log that stays is written off */
    return is_ours(result) ? result : 0;
}
