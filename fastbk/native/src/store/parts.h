/* What the parts of the store share: the store itself, the searched set, caches and jobs.
 * Everything in it is guarded by `mutex` unless said otherwise; the mutex is held for memory work
 * only, never over a disk call. */
#pragma once

#include <pthread.h>

#include "store/file_writer.h"
#include "store/read_cache.h"
#include "store/read_queue.h"
#include "store/store.h"

#define FBK_STORE_PATH_BYTES 1024u
#define FBK_STORE_FILES_MAX 512u /* locations files in the searched set */

/* ------------ locations files and the searched set */

struct fbk_sparse_key {
    int64_t ledger_id;
    int64_t first_entry_id;
};

/* Immutable once prepared, but for the reference count. */
struct fbk_locations_file {
    uint64_t file_id;
    struct fbk_locations_header header;
    int32_t handle;
    uint32_t references;
    uint32_t damaged_blocks;
    uint32_t damaged_state_blocks;
    uint64_t entry_count; /* of its locations whose blocks are whole */
    /* not even its header could be read: it may hold anything */
    bool damaged_whole;
    /* of the last read that failed, though bytes are there; 0 = none did */
    int32_t read_error;
    /* of each location block; a damaged one repeats the key before it */
    struct fbk_sparse_key *keys;
    uint8_t *damaged; /* one byte a location block */
    uint64_t index_bytes;
};

/* The entry logs that the manifest lists, ascending.  Never changes once made. */
struct fbk_log_list {
    uint32_t references;
    uint32_t count;
    uint64_t ids[];
};

/* A set never changes; the store swaps in a new one.  Readers keep a reference while they look. */
struct fbk_file_set {
    uint32_t references;
    uint32_t count;
    struct fbk_log_list *logs;          /* NULL: nobody has said which there are, so all count */
    struct fbk_locations_file *files[]; /* newest first */
};

/* INV-X5: what lies in a log that the manifest does not list is void. */
static inline bool
fbk_location_counts(const struct fbk_log_list *logs, const struct fbk_location *location)
{
    if (!logs || location->flags & FBK_LOCATION_DAMAGED)
        return true;
    uint32_t low = 0, high = logs->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (logs->ids[middle] < location->log_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < logs->count && logs->ids[low] == location->log_id;
}

/* ------------ caches */

struct fbk_cached_block {
    struct fbk_cached_block *next_in_bucket;
    struct fbk_cached_block *newer, *older;
    uint64_t file_id;
    uint64_t block;
    uint8_t *bytes;
};

struct fbk_block_cache {
    struct fbk_cached_block *blocks;
    uint8_t *memory;
    struct fbk_cached_block **buckets;
    uint64_t block_count;
    uint64_t blocks_used;
    uint64_t bucket_count;
    struct fbk_cached_block *newest, *oldest;
};

/* ------------ entry logs open for reading */

struct fbk_open_log {
    uint64_t log_id;
    int32_t handle; /* -1 = slot is free */
    uint32_t pins;
    bool has_salt;
    bool forgotten; /* close at the last unpin */
    uint64_t salt;
    uint64_t used;
};

/* ------------ jobs */

struct fbk_fetch { /* a run being read: others who want it wait for it */
    uint64_t log_id;
    uint64_t offset_bytes;
    struct fbk_fetch *next;
};

struct fbk_store {
    struct fbk_store_options options;
    char directory[FBK_STORE_PATH_BYTES];
    char journal_directory[FBK_STORE_PATH_BYTES]; /* "": journal files that are logs are missing */
    struct fbk_io *io;                            /* flush thread only */
    struct fbk_io *reader_io;                     /* any thread */
    struct fbk_io *background_io;                 /* background thread only */
    struct fbk_file_writer writer;                /* flush thread only */
    bool writing;
    /* main loop only: the file system does not tell what is in memory */
    bool cannot_read_cached;

    pthread_mutex_t mutex;
    pthread_cond_t work; /* a job waits, or stop */
    pthread_cond_t room; /* a pin was released, a fetch ended */
    bool stopping;

    struct fbk_file_set *set;
    uint64_t old_sets; /* not freed yet: a job looks under each */
    struct fbk_locations_file *prepared[FBK_STORE_FILES_MAX];
    uint32_t prepared_count;

    struct fbk_block_cache block_cache;
    struct fbk_read_cache read_cache;
    struct fbk_open_log *logs;
    uint64_t log_clock;
    _Atomic uint64_t journal_file_id; /* the journal writes to no file before it; 0: not known */
    struct fbk_fetch *fetches;

    struct fbk_read_queue queue;
    struct fbk_store_result *results; /* ring of read_jobs_max */
    uint64_t results_in, results_out;
    uint32_t jobs_under_way;

    struct fbk_store_counts counts;
    struct fbk_location damage[FBK_DAMAGE_NOTES]; /* met, and not taken yet */
    uint32_t damage_count;
};

static inline void
fbk_store_lock(struct fbk_store *store)
{
    FBK_ASSERT(pthread_mutex_lock(&store->mutex) == 0);
}
static inline void
fbk_store_unlock(struct fbk_store *store)
{
    FBK_ASSERT(pthread_mutex_unlock(&store->mutex) == 0);
}

/* -ENAMETOOLONG if it does not fit. */
static inline int32_t
fbk_store_path(const struct fbk_store *store, char *path, const char *folder, uint64_t id,
               const char *ending)
{
    int length = ending ? snprintf(path, FBK_STORE_PATH_BYTES, "%s/%s/%016llx.%s", store->directory,
                                   folder, (unsigned long long)id, ending)
                        : snprintf(path, FBK_STORE_PATH_BYTES, "%s/%s", store->directory, folder);
    return length < 0 || (uint32_t)length >= FBK_STORE_PATH_BYTES ? -ENAMETOOLONG : 0;
}

/* The path of a log that is to be read: of an entry log, or of a journal file that is one.
 * -ENAMETOOLONG, -ENOENT. */
static inline int32_t
fbk_log_path(const struct fbk_store *store, char *path, uint64_t log_id)
{
    if (!(log_id & FBK_LOG_JOURNAL))
        return fbk_store_path(store, path, "logs", log_id, "log");
    if (!store->journal_directory[0])
        return -ENOENT;
    int length = snprintf(path, FBK_STORE_PATH_BYTES, "%s/%016llx.journal",
                          store->journal_directory, (unsigned long long)(log_id ^ FBK_LOG_JOURNAL));
    return length < 0 || (uint32_t)length >= FBK_STORE_PATH_BYTES ? -ENAMETOOLONG : 0;
}

/* How a log is opened through the page cache.  The journal may be writing to the end of one of its
 * files, past the cache, while what lies before it is read: nothing is read ahead there. */
static inline uint32_t
fbk_log_open_flags(const struct fbk_store *store, uint64_t log_id)
{
    const bool is_written = (log_id & FBK_LOG_JOURNAL) &&
                            (log_id ^ FBK_LOG_JOURNAL) >= atomic_load(&store->journal_file_id);
    return FBK_IO_READ_ONLY | (is_written ? FBK_IO_RANDOM : 0u);
}

/* Reads exactly size_bytes, -ENODATA at a shorter file. */
static inline int32_t
fbk_store_read_all(struct fbk_io *io, int32_t handle, void *data, uint64_t size_bytes,
                   uint64_t offset_bytes)
{
    if (size_bytes > INT32_MAX)
        return -EINVAL;
    int32_t result = io->operations->read(io, handle, data, (uint32_t)size_bytes, offset_bytes);
    if (result < 0)
        return result;
    return (uint64_t)result == size_bytes ? 0 : -ENODATA;
}

/* ---- store/locations.c */
/* Opens and reads a whole file.  *file gets one reference. 0, 1 (damaged) or < 0. */
int32_t fbk_locations_load(struct fbk_store *store, uint64_t file_id,
                           struct fbk_locations_file **file);
/* A prepared or added file by id, with a reference; NULL if unknown. */
struct fbk_locations_file *fbk_locations_take(struct fbk_store *store, uint64_t file_id);
/* takes the mutex itself */
void fbk_locations_unref(struct fbk_store *store, struct fbk_locations_file *file);
enum fbk_block_use {
    FBK_BLOCK_KEPT = 0, /* from the cache or the disk; it stays in the cache */
    /* the same, but what came from the disk is not kept: merges must not push out what readers
     * need */
    FBK_BLOCK_ONCE = 1,
    FBK_BLOCK_CACHED = 2, /* from the cache alone, else -EAGAIN */
};
/* One location block, checked, copied to `out` (63 of them): their count, or < 0 when it can't be
 * had. */
int32_t fbk_locations_block(struct fbk_store *store, const struct fbk_locations_file *file,
                            uint64_t block, enum fbk_block_use use, struct fbk_location *out);
/* The same for a state block. */
int32_t fbk_locations_state_block(struct fbk_store *store, const struct fbk_locations_file *file,
                                  uint64_t block, struct fbk_ledger_state *out);
static inline int
fbk_location_compare(int64_t ledger_a, int64_t entry_a, int64_t ledger_b, int64_t entry_b)
{
    if (ledger_a != ledger_b)
        return ledger_a < ledger_b ? -1 : 1;
    return entry_a < entry_b ? -1 : entry_a > entry_b;
}

/* ---- store/locations_write.c */
struct fbk_locations_writer {
    struct fbk_store *store;
    struct fbk_file_writer *writer;
    struct fbk_locations_header header;
    char path[FBK_STORE_PATH_BYTES];
    int32_t handle;
    int32_t error;
    uint32_t in_block;
    bool in_states;
    int64_t ledger_id; /* of the last location */
    int64_t last_entry_id_max;
    uint8_t block[FBK_LOCATIONS_BLOCK_BYTES];
};
/* Creates the file, with `writer`, which does nothing else until the end.  All locations in order,
 * then all states in order, then end (or abandon). */
int32_t fbk_locations_write_begin(struct fbk_locations_writer *to, struct fbk_store *store,
                                  struct fbk_file_writer *writer, uint64_t file_id,
                                  uint64_t first_generation, uint64_t last_generation,
                                  uint64_t created_s);
void fbk_locations_write_location(struct fbk_locations_writer *to,
                                  const struct fbk_location *location);
void fbk_locations_write_state(struct fbk_locations_writer *to,
                               const struct fbk_ledger_state *state);
/* Header, sync, close, sync of the directory.  *file_size_bytes. */
int32_t fbk_locations_write_end(struct fbk_locations_writer *to, uint64_t *file_size_bytes);
void fbk_locations_write_abandon(struct fbk_locations_writer *to);

/* ---- store/log_runs.c */
/* Whether a pass takes this location; remembers what it found out about the ledger. */
struct fbk_scope_view {
    const struct fbk_location_scope *scope;
    int64_t ledger_id;
    bool is_deleted;
};
bool fbk_scope_deletes(const struct fbk_location_scope *scope, int64_t ledger_id);
bool fbk_scope_takes(struct fbk_scope_view *view, const struct fbk_location *location);

/* ---- store/block_cache.c: called with the mutex held */
int32_t fbk_block_cache_init(struct fbk_block_cache *cache, uint64_t bytes_max);
void fbk_block_cache_free(struct fbk_block_cache *cache);
const uint8_t *fbk_block_cache_find(struct fbk_block_cache *cache, uint64_t file_id,
                                    uint64_t block);
void fbk_block_cache_put(struct fbk_block_cache *cache, uint64_t file_id, uint64_t block,
                         const uint8_t *bytes);

/* ---- store/open_logs.c: takes the mutex itself */
/* A log that is open already, pinned; NULL: it is not. */
struct fbk_open_log *fbk_open_log_find(struct fbk_store *store, uint64_t log_id);
/* A pinned open log.  0 or < 0. */
int32_t fbk_open_log_take(struct fbk_store *store, uint64_t log_id, struct fbk_open_log **log);
void fbk_open_log_let_go(struct fbk_store *store, struct fbk_open_log *log);
void fbk_open_logs_close(struct fbk_store *store);

/* ---- store/run_fetch.c: mutex held */
/* Somebody read bytes that are not what was written, or could not read them: the main loop is to
 * look into that. */
void fbk_store_note_damage(struct fbk_store *store, const struct fbk_location *location);

/* ---- store/run_fetch.c: takes the mutex itself, but for the two that say otherwise */
/* The run at a location, pinned: from the cache or from disk.  0, FBK_E_CORRUPT, FBK_E_FULL (no
 * room), -errno. */
int32_t fbk_run_fetch(struct fbk_store *store, const struct fbk_location *location,
                      enum fbk_run_use use, struct fbk_cached_run **run);
void fbk_run_let_go(struct fbk_store *store, struct fbk_cached_run *run);
/* Reads and checks into `buffer`.  Returns the count of damaged entries or < 0. */
int32_t fbk_run_read(struct fbk_store *store, const struct fbk_location *location, uint8_t *buffer);
/* Mutex held: is somebody reading it?  And: nobody is any more. */
bool fbk_run_is_fetched_now(const struct fbk_store *store, const struct fbk_location *location);
void fbk_run_fetch_ended(struct fbk_store *store, struct fbk_fetch *fetch);

/* ---- store/entry_fetch.c: takes the mutex itself */
/* For who wants this one entry: the run at a location, or a run of nothing but the entry.  As
 * fbk_run_fetch, or 1 if the run does not hold it. */
int32_t fbk_entry_fetch(struct fbk_store *store, const struct fbk_location *location,
                        int64_t entry_id, struct fbk_cached_run **run);
/* The same without waiting for the disk: < 0 also where it would have to be asked. */
int32_t fbk_entry_fetch_cached(struct fbk_store *store, const struct fbk_location *location,
                               int64_t entry_id, struct fbk_cached_run **run);

/* ---- store/read_ahead.c */
void fbk_read_ahead(struct fbk_store *store, const struct fbk_job *job,
                    struct fbk_store_result *result);

/* ---- store/lookup.c: no mutex held */
struct fbk_file_set *fbk_file_set_take(struct fbk_store *store);
void fbk_file_set_unref(struct fbk_store *store, struct fbk_file_set *set);
/* Whether the store searches another set by now. */
bool fbk_file_set_is_old(struct fbk_store *store, const struct fbk_file_set *set);
void fbk_lookup_read(struct fbk_store *store, const struct fbk_job *job,
                     struct fbk_store_result *result);
void fbk_lookup_list(struct fbk_store *store, const struct fbk_job *job,
                     struct fbk_store_result *result);
struct fbk_walk {
    struct fbk_store *store;
    const struct fbk_locations_file *file;
    uint64_t block;
    int32_t count; /* of the loaded block; < 0: it is damaged */
    bool loaded;
    enum fbk_block_use use;
    struct fbk_location locations[FBK_LOCATIONS_PER_BLOCK];
};
void fbk_walk_begin(struct fbk_walk *walk, struct fbk_store *store,
                    const struct fbk_locations_file *file);
int32_t fbk_walk_load(struct fbk_walk *walk, uint64_t block);
/* The last block whose key is <= (ledger, entry); -1 if none. */
int64_t fbk_walk_block_of(const struct fbk_locations_file *file, int64_t ledger_id,
                          int64_t entry_id);
/* In the loaded block: how many locations have a key <= (ledger, entry). */
int32_t fbk_walk_upper_bound(const struct fbk_walk *walk, int64_t ledger_id, int64_t entry_id);
