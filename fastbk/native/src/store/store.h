/* What is flushed: entry logs and locations files, and finding entries in them.
 *
 * Threads (all inside the index process): the main loop looks up and submits jobs; the flush thread
 * writes new files; reader threads read disks.  The main loop never waits for data of a disk. Locks
 * are plain mutexes inside this process, held for memory work only.
 *
 * Structs and prototypes: ../boundary/store.h.  What they promise:
 *
 * fbk_store_create: `io` writes and belongs to the flush thread alone (an io_uring with one
 * issuer); everything is read through `reader_io` (plain, or the same fake), from any thread.  NULL
 * with *error.  What the options point to is copied.
 *
 * The searched set
 * fbk_store_prepare_locations: flush thread, or anyone at start: opens a locations file, reads it
 * through, checks every checksum, builds the sparse index (one key a block).  0, or 1 = loaded, but
 * a part is damaged: what lies there answers CANNOT_TELL from now on; < 0 = not loaded (TOO_NEW, no
 * memory). fbk_store_add_locations: main loop: puts a prepared file into the set, newest (highest
 * last_generation) first; memory work only.  Not prepared before: prepares it first (at start).
 * Same results. fbk_store_remove_locations: takes it out again; jobs under way still finish with
 * it.  -ENOENT if it is not there. fbk_store_set_logs: main loop: the logs that the manifest lists,
 * ascending.  A location in any other is void from now on (INV-X5): as if it were not there.  Until
 * the first call all count.  One swap: between the old list and the new one there is no third
 * state.  A reader that still looked with the old list, and found a log gone, looks again with the
 * new. fbk_store_old_sets: sets that are not the current one, and that a job still looks under.
 * fbk_store_forget_ledgers: drops cached runs of these ledgers (ascending).  With no old sets left,
 * nothing that the current set does not name is found any more. fbk_store_forget_log: a log is gone
 * from the manifest: close it, drop its cached runs. fbk_store_set_journal_file: journal files
 * before this one are complete, and read ahead like entry logs. fbk_store_load_states /
 * _copy_states: the ledger states in a prepared or added file.  FBK_E_CORRUPT when a part is
 * damaged: fences may be missing, so the caller must not go on as if nothing were.  -errno when
 * nothing is, but the disk did not give all of it. fbk_store_read_error: whether a prepared or
 * added file counts as damaged because the disk did not give its bytes, which may pass: the errno,
 * 0 = no.
 *
 * Reading
 * fbk_store_submit: asks the readers for the run holding the smallest id in [first, last] on disk.
 * FBK_E_FULL when read_jobs_max are under way. lane, flow: whose turn it is (store/read_queue.h).
 * fbk_store_submit_list: ids a ledger holds on disk as ascending (first, last) ranges from
 * first_entry_id on. fbk_store_submit_ahead: brings runs of the ledger from first_entry_id on into
 * the cache, up to about size_bytes_max, neighbours in one disk read (store/read_ahead.c).
 * found_entry_id: everything on disk up to there was looked at; NO_ENTRY: nothing lies behind it.
 * A run that can't be read is passed over: whoever asks for it finds out why. fbk_store_collect:
 * finished jobs, at most results_max; call again until fewer come. fbk_store_reader_run: a reader
 * thread's whole life: from a Python thread (the interpreter lock is released); rings event_fd for
 * each finished job; returns when fbk_store_stop_readers was called. fbk_store_cached: a pinned run
 * that holds entry_id if it is already in the read cache, else NULL (which says nothing). scan: the
 * reader goes on and on; what is read so is not kept for that.  _consumed: such a reader has read
 * the run's end. fbk_store_read_cached: the same for an entry whose run, or itself, can be read
 * from the kernel's memory without waiting for the disk: main loop.  NULL says nothing.
 * fbk_store_reader_step: does one waiting job in this thread; 1, or 0 when there is none (tests,
 * fuzzing). NO_ENTRY is said only when every file whose range covers the id was read whole and said
 * no (INV-X1).
 *
 * Flushing: one flush at a time, in the flush thread.  Items are sorted by (ledger, entry), unique,
 * and stay untouched until fbk_flush_end or fbk_flush_abandon, one of which must be called; both
 * free the flush. fbk_flush_step: writes up to about bytes_max; 1 = more to do, 0 = all runs
 * written, < 0 = failed (then only abandon). fbk_flush_end: syncs the log, writes and syncs the
 * locations file and both directories.
 *
 * In the background: one thread of its own beside the flush thread, or the same (tests).
 * fbk_store_set_background: its disk; without it, the flush thread's.
 * A scope says which locations a pass takes: those of the given files, in listed logs (INV-X5), of
 * ledgers that are not deleted; ones that stand for damage have no log and are kept by merges.  Its
 * arrays stay untouched until the end. fbk_merge_begin: merges files (ascending generations) into
 * one; what the scope does not take is dropped; of each ledger the newest state stays.  A damaged
 * input is not merged (FBK_E_CORRUPT).  _step: about so many blocks; 1 = more to do, 0 = all
 *   written, < 0 = failed (then only abandon).  _end syncs file and folder; _end and _abandon free
 * the merge. fbk_store_log_bytes: bytes of runs per entry log (live bytes), pairs sorted by log id;
 * -E2BIG when there are more than pairs_max.  One pass. fbk_store_log_runs: the first runs_max runs
 * at or behind (from_log_id, from_offset_bytes) in the order of (log, offset); fewer than runs_max:
 * there are no more.  One pass over all locations, in the memory of `runs` alone.
 * fbk_store_count_states: states in these files, and how many of them are of ledgers deleted before
 * that time. fbk_compact_begin: makes a log.  _step reads the first of `runs` (as log_runs gives
 * them) into a window, about 2 MiB of them, or writes as much of a window that is full or whose log
 * is done, sorted and joined; *taken: how many it was done with reading.  1 = go on; 0 = their log
 * can't be read now, leave it out, or without runs: all is written; < 0: only free.  Damaged ones
 * are not moved and stop nothing, unless there are very many.  _end_log, when all is written: pads,
 *   syncs the log and its folder.  _write_locations, behind it: one locations file for all that was
 * moved or found damaged. _damaged: (ledger, first, last) of what was found damaged, at most
 * ranges_max; returns how many there are, until the locations are written.  Always ended by _free.
 * fbk_store_ledger_bytes: like _log_bytes, of one ledger, in the searched set.
 *
 * Decision 48. */
#pragma once

#include "base/layout.h"
#include "io/io.h"

#include "boundary/store.h"

/* A run in memory, pinned until released. */
struct fbk_run {
    const uint8_t *bytes; /* fbk_run_header, items, entries; every checksum verified */
    uint32_t size_bytes;
    uint32_t entry_count;
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
};

/* Items of a pinned run: binary search; NULL if absent or if the entry's checksum was wrong (then a
 * job for that id answers CANNOT_TELL). Items of damaged entries have size_bytes 0. */
const struct fbk_run_item *fbk_run_find(const struct fbk_run *run, int64_t entry_id);
static inline const struct fbk_run_item *
fbk_run_items(const struct fbk_run *run)
{
    return (const struct fbk_run_item *)(const void *)(run->bytes + sizeof(struct fbk_run_header));
}

/* What direct writes of its files are aligned to. */
uint64_t fbk_store_align_bytes(const struct fbk_store *store);

/* What the read cache may hold. */
uint64_t fbk_store_cache_bytes(const struct fbk_store *store);

/* How many states a prepared or added file holds; 0 for any other. */
uint64_t fbk_store_state_count(struct fbk_store *store, uint64_t file_id);

/* By ledger and first id, as a locations file has them. */
void fbk_locations_sort(struct fbk_location *locations, uint64_t count);

/* Walks the states of a prepared or added file; returns their count or FBK_E_CORRUPT (after giving
 * all that are whole). */
int64_t fbk_store_load_states(struct fbk_store *store, uint64_t file_id,
                              void (*take)(void *context, const struct fbk_ledger_state *state),
                              void *context);
