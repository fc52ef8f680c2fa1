/* Runs read from disk, in memory: bounded bytes, pinned ones included.
 *
 * Two lists share the bytes.  KEPT holds runs that somebody read an entry of; the least recently
 * used goes first.  SCAN holds runs that were read for a reader that goes on and on, ahead of it or
 * at its turn: they are used once, so they go as soon as the last entry of them was read, else in
 * the order they came.  Under pressure SCAN has at most half of the bytes: however much history is
 * read, what single reads come back to stays.  A single read of a run in SCAN makes it a kept one.
 *
 * Called with the store's mutex held.
 *
 * Decision 57. */
#pragma once

#include "store/store.h"

/* A run is found by (ledger, id / 256): it stands in the bucket of every such window it touches. */
#define FBK_RUN_WINDOW_SHIFT 8u
#define FBK_RUN_WINDOWS_MAX (FBK_RUN_SPAN_MAX / 256u + 1u)

enum fbk_run_use {
    FBK_RUN_KEPT = 0,
    FBK_RUN_SCAN = 1,
};
#define FBK_RUN_USES 2u

struct fbk_cached_run;
struct fbk_run_link {
    struct fbk_run_link *next;
    struct fbk_cached_run *run;
    int64_t window;
};

struct fbk_cached_run {
    struct fbk_run run; /* first: what is handed out is this struct */
    uint8_t *buffer;
    uint64_t buffer_bytes;
    uint64_t log_id;
    uint64_t offset_bytes;
    struct fbk_cached_run *newer, *older;
    uint32_t pins;
    enum fbk_run_use use;
    bool consumed; /* SCAN: its last entry was read */
    bool listed;   /* in buckets and in a list; else it only waits for its last release */
    uint32_t link_count;
    struct fbk_run_link links[];
};

#define FBK_BUFFER_CLASSES 96u
struct fbk_free_buffer {
    struct fbk_free_buffer *next;
};

struct fbk_run_list {
    struct fbk_cached_run *newest, *oldest;
    uint64_t bytes;
    uint64_t reserved_bytes; /* of buffers that are to become runs of this use */
};

struct fbk_read_cache {
    struct fbk_run_link **buckets;
    uint64_t bucket_count;
    struct fbk_run_list lists[FBK_RUN_USES];
    struct fbk_free_buffer *free[FBK_BUFFER_CLASSES];
    uint64_t bytes_max;
    uint64_t bytes;        /* of all buffers, free ones included */
    uint64_t entries;      /* of runs that are listed */
    uint64_t pinned_bytes; /* of buffers that can't be evicted now */
};

int32_t fbk_read_cache_init(struct fbk_read_cache *cache, uint64_t bytes_max);
void fbk_read_cache_free(struct fbk_read_cache *cache);
/* A buffer of at least size_bytes, page aligned; its size in *buffer_bytes.  NULL: too much is
 * pinned now.  It is inserted or returned for the use that it was taken for. */
uint8_t *fbk_read_cache_take_buffer(struct fbk_read_cache *cache, uint64_t size_bytes,
                                    enum fbk_run_use use, uint64_t *buffer_bytes);
/* Of a buffer that became no run. */
void fbk_read_cache_return_buffer(struct fbk_read_cache *cache, uint8_t *buffer,
                                  uint64_t buffer_bytes, enum fbk_run_use use);
/* Takes over the buffer (pinned once). NULL: no memory, the buffer stays the caller's. */
struct fbk_cached_run *fbk_read_cache_insert(struct fbk_read_cache *cache,
                                             const struct fbk_location *location, uint8_t *buffer,
                                             uint64_t buffer_bytes, enum fbk_run_use use);
/* The run that holds an entry, found for this use; NULL if none. */
struct fbk_cached_run *fbk_read_cache_find(struct fbk_read_cache *cache, int64_t ledger_id,
                                           int64_t entry_id, enum fbk_run_use use);
/* Somebody reads it. */
void fbk_read_cache_use(struct fbk_read_cache *cache, struct fbk_cached_run *run,
                        enum fbk_run_use use);
/* The run at a location; nobody's use of it. */
struct fbk_cached_run *fbk_read_cache_find_location(struct fbk_read_cache *cache,
                                                    const struct fbk_location *location);
/* What the cache holds of the run at a location for this id: the run, or the entry alone, as a run
 * of one.  Else NULL, and *singles counts the entries that are there alone. */
struct fbk_cached_run *fbk_read_cache_find_entry(struct fbk_read_cache *cache,
                                                 const struct fbk_location *location,
                                                 int64_t entry_id, uint32_t *singles);
/* A scan has read its last entry. */
void fbk_read_cache_consumed(struct fbk_read_cache *cache, struct fbk_cached_run *run);
void fbk_read_cache_pin(struct fbk_read_cache *cache, struct fbk_cached_run *run);
void fbk_read_cache_unpin(struct fbk_read_cache *cache, struct fbk_cached_run *run);
/* ledger_ids: ascending. */
void fbk_read_cache_forget_ledgers(struct fbk_read_cache *cache, const int64_t *ledger_ids,
                                   uint64_t count);
void fbk_read_cache_forget_log(struct fbk_read_cache *cache, uint64_t log_id);
