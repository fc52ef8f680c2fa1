/* The store: entry logs, locations files, reading and flushing them. Meanings:
 * src/store/store.h. */
struct fbk_io;
struct fbk_store;
struct fbk_flush;
struct fbk_merge;
struct fbk_compact;
struct fbk_ledger_state;
struct fbk_location;

struct fbk_store_options {
    const char *ledger_directory;
    /* memory for runs kept after a disk read, pinned ones included */
    uint64_t read_cache_size_bytes;
    uint64_t block_cache_size_bytes; /* location blocks */
    uint64_t incarnation;
    uint32_t read_jobs_max; /* submitted and not yet collected */
    uint32_t pair;
    uint32_t log_files_max; /* entry logs kept open for reading */
    /* a read waits so long for pinned runs to be released, then TOO_MANY_REQUESTS */
    uint32_t room_timeout_ms;
    /* of the journal files that are logs; NULL: such logs are missing */
    const char *journal_directory;
};

struct fbk_flush_item {
    int64_t ledger_id;
    int64_t entry_id;
    const uint8_t *data;
    uint32_t size_bytes;
    /* CRC32C of data, taken when the entry came in: a cache gone bad is found at read */
    uint32_t crc;
};

/* lies in a chunk: room for its header, its item table, its entries */
struct fbk_flush_run {
    uint8_t *bytes;
    int64_t ledger_id;
    uint32_t size_bytes;
    uint32_t entry_count;
    uint32_t chunk; /* number; ascending */
    uint32_t reserved;
};

/* runs that are written where they lie, aligned for direct writes */
struct fbk_flush_chunk {
    uint8_t *bytes;
    uint64_t size_bytes;
};

/* what a flush writes; all of it stays untouched by others until the flush has ended */
struct fbk_flush_contents {
    const struct fbk_flush_item *items; /* sorted by (ledger, entry): copied into runs */
    uint64_t item_count;
    uint64_t item_bytes; /* of entries */
    const struct fbk_flush_run *runs;
    uint64_t run_count;
    const struct fbk_flush_chunk *chunks;
    uint64_t chunk_count;
    const struct fbk_ledger_state *states; /* sorted by ledger */
    uint64_t state_count;
    /* of runs in journal files, sorted: their locations are written, and nothing else of them */
    const struct fbk_location *adopted;
    uint64_t adopted_count;
    const struct fbk_adopted_file *files; /* these journal files, by rising id */
    uint64_t file_count;
};

/* A journal file with runs in a flush. */
struct fbk_adopted_file {
    uint64_t file_id;
    uint64_t salt;
    uint64_t run_count;
    uint64_t run_bytes;
    uint64_t end_bytes; /* of the last batch in the flush */
};

struct fbk_flush_options {
    uint64_t log_id;           /* to append to */
    uint64_t log_offset_bytes; /* 0 = create it */
    uint64_t log_salt;
    uint64_t locations_file_id;
    uint64_t generation;
    uint64_t created_s;
};

struct fbk_flush_result {
    uint64_t log_end_bytes; /* the log's durable length */
    uint64_t run_bytes;     /* sum of the runs' sizes: live bytes */
    uint64_t location_count;
    uint64_t file_size_bytes; /* of the locations file */
};

/* Which locations a pass over files takes: those that count, of ledgers that live. */
struct fbk_location_scope {
    const uint64_t *file_ids; /* prepared or added */
    const uint64_t *log_ids;  /* ascending; NULL: any log */
    const int64_t *deleted;   /* ledgers, ascending */
    uint64_t deleted_count;
    uint32_t file_count;
    uint32_t log_count;
};

struct fbk_merge_options {
    uint64_t merged_file_id;
    uint64_t created_s;
    /* states deleted before this are left out; only when nothing older is outside the merge */
    uint64_t forget_deleted_before_s;
};

struct fbk_merge_result {
    uint64_t location_count;
    uint64_t dropped_count;
    uint64_t forgotten_count; /* states */
    uint64_t file_size_bytes;
    uint64_t first_generation;
    uint64_t last_generation;
};

struct fbk_compact_options {
    uint64_t log_id; /* made */
    uint64_t log_salt;
    uint64_t created_s;
    /* read, sorted and joined at a time; more for a run that is larger */
    uint64_t window_bytes;
};

struct fbk_compact_counts {
    uint64_t runs_read;
    uint64_t runs_written;
    uint64_t entries_moved;
    uint64_t read_bytes;  /* dead bytes between runs included */
    uint64_t moved_bytes; /* of runs in the new log */
    uint64_t bad_runs;    /* with at least one damaged entry */
    uint64_t bad_entries;
    uint64_t locations; /* not written yet */
};

struct fbk_log_bytes {
    uint64_t log_id;
    uint64_t bytes;
};

struct fbk_store_result {
    uint64_t ticket;
    const struct fbk_run *run; /* pinned; NULL unless status is OK and it was a read */
    /* read: the smallest id in range, -1 if none; list: where to go on, -1 = nothing more */
    int64_t found_entry_id;
    /* read of more than one id: ids from found_entry_id to this that are on disk all lie in `run`;
     * else -1.  Without it a reader of a ledger with gaps (striping) needs a job for every gap */
    int64_t alone_through;
    /* read-ahead: of the runs up to found_entry_id, those that were in memory before included */
    uint64_t ahead_bytes;
    /* FBK_S_OK, NO_ENTRY, CANNOT_TELL, or TOO_MANY_REQUESTS when no room came free in the read
     * cache */
    int32_t status;
    uint32_t range_count; /* list: ranges filled in */
};

struct fbk_store_counts {
    uint64_t lookups;
    uint64_t run_reads;
    uint64_t run_read_bytes;
    uint64_t cache_hits;
    uint64_t block_reads;
    uint64_t block_hits;
    uint64_t damaged_blocks;
    uint64_t damaged_runs;
    uint64_t damaged_entries;
    uint64_t cannot_tell;
    uint64_t ahead_runs;    /* read ahead of a reader */
    uint64_t ahead_reads;   /* disk reads that brought them */
    uint64_t cache_bytes;   /* in use now */
    uint64_t cache_entries; /* in runs that may be found there */
    uint64_t entries;       /* in all locations files that are searched */
    uint64_t pinned_bytes;
    uint64_t jobs;        /* not yet collected */
    uint64_t files;       /* in the searched set */
    uint64_t index_bytes; /* sparse indexes */
};

struct fbk_store *fbk_store_create(const struct fbk_store_options *options, struct fbk_io *io,
                                   struct fbk_io *reader_io, int32_t *error);
void fbk_store_destroy(struct fbk_store *store);
int32_t fbk_store_prepare_locations(struct fbk_store *store, uint64_t file_id);
int32_t fbk_store_add_locations(struct fbk_store *store, uint64_t file_id);
int32_t fbk_store_remove_locations(struct fbk_store *store, uint64_t file_id);
void fbk_store_drop_prepared(struct fbk_store *store, uint64_t file_id);
int32_t fbk_store_set_logs(struct fbk_store *store, const uint64_t *log_ids, uint32_t log_count);
void fbk_store_forget_log(struct fbk_store *store, uint64_t log_id);
/* The journal writes to no file before this one any more. */
void fbk_store_set_journal_file(struct fbk_store *store, uint64_t file_id);
int32_t fbk_store_read_error(struct fbk_store *store, uint64_t file_id);
int64_t fbk_store_copy_states(struct fbk_store *store, uint64_t file_id, uint8_t *states,
                              uint64_t states_max);

#define FBK_LANE_URGENT 0 /* somebody waits for one entry, or for a decision */
/* batch reads, lists, read-ahead, and reads of somebody who goes on and on */
#define FBK_LANE_BULK 1
int32_t fbk_store_submit(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                         int64_t first_entry_id, int64_t last_entry_id, uint32_t lane,
                         uint64_t flow);
int32_t fbk_store_submit_list(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                              int64_t first_entry_id, int64_t *ranges, uint32_t range_count_max,
                              uint64_t flow);
int32_t fbk_store_submit_ahead(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                               int64_t first_entry_id, uint64_t size_bytes_max, uint64_t flow);
int32_t fbk_store_collect(struct fbk_store *store, struct fbk_store_result *results,
                          int32_t results_max);
int32_t fbk_store_reader_run(struct fbk_store *store, int32_t event_fd);
int32_t fbk_store_reader_step(struct fbk_store *store);
void fbk_store_stop_readers(struct fbk_store *store);
const struct fbk_run *fbk_store_read_cached(struct fbk_store *store, int64_t ledger_id,
                                            int64_t entry_id);
const struct fbk_run *fbk_store_cached(struct fbk_store *store, int64_t ledger_id, int64_t entry_id,
                                       int32_t scan);
void fbk_store_consumed(struct fbk_store *store, const struct fbk_run *run);
void fbk_store_release(struct fbk_store *store, const struct fbk_run *run);
const uint8_t *fbk_run_entry(const struct fbk_run *run, int64_t entry_id, uint32_t *size_bytes);
void fbk_store_counts_get(struct fbk_store *store, struct fbk_store_counts *counts);
/* Runs (and blocks of locations files: ledger -1, the file as log) that did not read back whole
 * since the last call, at most runs_max of them, whoever wanted them.  Each once; how many.  More
 * than FBK_DAMAGE_NOTES are met again by later reads. */
#define FBK_DAMAGE_NOTES 256
uint32_t fbk_store_take_damage(struct fbk_store *store, struct fbk_location *runs,
                               uint32_t runs_max);

struct fbk_flush *fbk_flush_begin(struct fbk_store *store, const struct fbk_flush_options *options,
                                  const struct fbk_flush_contents *contents, int32_t *error);
int32_t fbk_flush_step(struct fbk_flush *flush, uint64_t bytes_max);
int32_t fbk_flush_end(struct fbk_flush *flush, struct fbk_flush_result *result);
void fbk_flush_abandon(struct fbk_flush *flush);

struct fbk_merge *fbk_merge_begin(struct fbk_store *store, const struct fbk_merge_options *options,
                                  const struct fbk_location_scope *scope, int32_t *error);
int32_t fbk_merge_step(struct fbk_merge *merge, uint64_t blocks_max);
int32_t fbk_merge_end(struct fbk_merge *merge, struct fbk_merge_result *result);
void fbk_merge_abandon(struct fbk_merge *merge);
int64_t fbk_store_log_bytes(struct fbk_store *store, const struct fbk_location_scope *scope,
                            struct fbk_log_bytes *pairs, uint64_t pairs_max);
int64_t fbk_store_log_runs(struct fbk_store *store, const struct fbk_location_scope *scope,
                           uint64_t from_log_id, uint64_t from_offset_bytes,
                           struct fbk_location *runs, uint64_t runs_max);
int32_t fbk_store_count_states(struct fbk_store *store, const uint64_t *file_ids,
                               uint32_t file_count, uint64_t deleted_before_s, uint64_t *states,
                               uint64_t *forgettable);
void fbk_store_set_background(struct fbk_store *store, struct fbk_io *io);
void fbk_store_forget_ledgers(struct fbk_store *store, const int64_t *ledger_ids, uint64_t count);
uint64_t fbk_store_old_sets(struct fbk_store *store);
struct fbk_compact *fbk_compact_begin(struct fbk_store *store,
                                      const struct fbk_compact_options *options, int32_t *error);
int32_t fbk_compact_step(struct fbk_compact *compact, const struct fbk_location *runs,
                         uint64_t run_count, uint64_t *taken);
int32_t fbk_compact_end_log(struct fbk_compact *compact, uint64_t *log_end_bytes);
int32_t fbk_compact_write_locations(struct fbk_compact *compact, uint64_t file_id,
                                    uint64_t generation, uint64_t *file_size_bytes);
void fbk_compact_counts_get(const struct fbk_compact *compact, struct fbk_compact_counts *counts);
uint64_t fbk_compact_damaged(const struct fbk_compact *compact, int64_t *ids, uint64_t ranges_max);
void fbk_compact_free(struct fbk_compact *compact);
int64_t fbk_store_ledger_bytes(struct fbk_store *store, int64_t ledger_id,
                               struct fbk_log_bytes *pairs, uint64_t pairs_max);
