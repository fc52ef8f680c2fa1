/* The index's steps: Python calls fbk_index_step in a loop and decides about flushes by what it
 * returns. */

struct fbk_index;
struct fbk_store;
struct fbk_flush_contents;

struct fbk_index_options {
    uint32_t epoch;        /* of all segments */
    uint32_t worker_count; /* 1..16 */
    int32_t segment_fd;    /* own, writable */
    int32_t journal_segment_fd;
    int32_t worker_segment_fds[16];
    int32_t bell_fd; /* own, non-blocking */
    int32_t journal_bell_fd;
    int32_t worker_bell_fds[16];
    int32_t reader_fd; /* eventfd that reader threads ring */
    /* others that end fbk_index_step when readable; -1 = none */
    int32_t watched_fds[4];
    uint32_t frame_size_bytes_max; /* longest frame in either direction */
    /* of each of the two write caches; a multiple of 4096 */
    uint64_t cache_bytes;
    uint64_t cache_reserve_bytes; /* of them not given to normal adds */
    /* FBK_INDEX_FLUSH when the active cache holds this much, */
    uint64_t flush_used_bytes;
    uint64_t flush_journal_bytes; /* or this much journal lies behind the mark, */
    uint32_t flush_interval_ms;   /* or something unflushed is this old */
    uint64_t ledgers_max;
    /* copies waiting for a look at the disk; one batch may go over */
    uint64_t parked_bytes_max;
    uint32_t waiters_max;  /* long polls */
    uint32_t requests_max; /* requests waiting for a disk */
    uint64_t seed;         /* random */
    /* FBK_HEADER_KEY_BYTES, random, as its journal has it */
    uint8_t header_key[120];
};

/* NULL with *error.  Maps the segments; descriptors and store stay the caller's.  store may be
 * NULL: nothing is on disk. */
struct fbk_index *fbk_index_create(const struct fbk_index_options *options, struct fbk_store *store,
                                   int32_t *error);
void fbk_index_destroy(struct fbk_index *index);

/* Reasons that fbk_index_step returns, or-ed. */
#define FBK_INDEX_WATCHED 1 /* a watched descriptor is readable */
#define FBK_INDEX_FLUSH 2   /* a flush is due and none is under way */
/* the next batch does not fit: nothing is taken in until a flush ends */
#define FBK_INDEX_FULL 4
/* everything published is taken in and nothing waits for an answer that is due */
#define FBK_INDEX_IDLE 8

/* Works and sleeps until there is a reason to return or about timeout_ms have passed.  Returns
 * reasons, FBK_E_CORRUPT or FBK_E_PROTOCOL: a ring or descriptor that can't be; FBK_E_REWRITTEN: a
 * worker has rewritten a record since the journal judged it (INV-R4).  This process must exit,
 * replay has the truth. */
int32_t fbk_index_step(struct fbk_index *index, int32_t timeout_ms);

struct fbk_index_status {
    uint64_t taken_sequence; /* last batch taken in */
    uint64_t taken_order;    /* descriptors taken in */
    uint64_t mark_sequence;
    uint64_t journal_bytes_behind; /* written after the mark, as far as taken in */
    uint64_t cache_bytes;          /* used in the active cache */
    uint64_t cache_items;
    uint64_t sealed_items; /* 0 unless a flush is under way */
    uint64_t dirty_states;
    uint64_t ledgers;
    uint64_t waiters;
    uint64_t requests; /* waiting for a disk */
    uint64_t checks;   /* waiting for a look at the disk */
    uint64_t parked_bytes;
    uint32_t flushing;
    uint32_t limbo;
};
/* For the thread that owns the heartbeat `word`. */
void fbk_index_beat(struct fbk_index *index, uint32_t word);
void fbk_index_get_status(const struct fbk_index *index, struct fbk_index_status *status);

/* ---- flushing.  Seal swaps the caches; -EBUSY while the last sealed one is not flushed. */
int32_t fbk_index_seal(struct fbk_index *index);
/* What was sealed, for the flush thread; any number of times until fbk_index_flushed.  The contents
 * are valid until fbk_index_flushed.  *mark_sequence: the last batch contained completely; *place:
 * where it is. */
struct fbk_mark_place {
    uint64_t file_id; /* a journal file that the mark has reached, 0 = none since the start */
    /* of the mark's batch, which is in that file; 0 = unknown */
    uint64_t batch_offset_bytes;
};
int32_t fbk_index_sealed(struct fbk_index *index, struct fbk_flush_contents *contents,
                         uint64_t *mark_sequence, struct fbk_mark_place *place);
/* The manifest names it: publishes the mark, frees the cache (it stays readable until it is filled
 * again), grants credit. */
void fbk_index_flushed(struct fbk_index *index);
/* From now on the journal is told of no mark, for tests: it keeps all its files. */
void fbk_index_hold_mark(struct fbk_index *index);

/* ---- start.  The mark that the manifest holds; limbo: damage is on record, so "no" is never
 * said. */
void fbk_index_set_mark(struct fbk_index *index, uint64_t mark_sequence, uint32_t limbo);
/* Takes the states of a locations file into the table, oldest file first. */
int32_t fbk_index_load_states(struct fbk_index *index, uint64_t locations_file_id);
/* Where a replay is: zeros before the first batch of a scan, but for pause_bytes. */
struct fbk_index_replay {
    struct fbk_journal_batch batch;
    /* return between two batches when the cache has so much; 0: when it is full only */
    uint64_t pause_bytes;
    uint32_t taken_bytes; /* of batch.records */
    uint32_t has_batch;
};
#define FBK_REPLAY_END 0 /* the scan's; see fbk_journal_scan_end */
/* so is the cache, or it has pause_bytes: flush it, then call again */
#define FBK_REPLAY_FULL 1
/* Takes batches of the scan in.  FBK_REPLAY_*, FBK_E_CORRUPT, FBK_E_FULL (ledgers_max), -ENOMEM. */
int32_t fbk_index_replay(struct fbk_index *index, struct fbk_journal_scan *scan,
                         struct fbk_index_replay *at);
/* All up to this batch is in. */
void fbk_index_replay_done(struct fbk_index *index, uint64_t sequence);
/* Every known ledger is in limbo from now on. */
int32_t fbk_index_damage(struct fbk_index *index);
/* All states into a memory file, one behind the other.  Returns their count. */
int64_t fbk_index_write_states(struct fbk_index *index, int32_t states_fd);

/* ---- explicit LACs, as their writers signed them (ledger id and LAC, big-endian, then the
 * digest).  How many were kept since the start; all there are into `out`, of
 * fbk_index_lacs_bytes_max bytes, each behind its size in one byte: the bytes used. */
uint32_t fbk_index_lacs_kept(const struct fbk_index *index);
uint32_t fbk_index_lacs_bytes_max(void);
uint32_t fbk_index_lacs(const struct fbk_index *index, uint8_t *out);
/* Takes one back at a start.  0: its ledger is not here, or in limbo (INV-X4), or it makes no
 * sense. */
uint32_t fbk_index_put_lac(struct fbk_index *index, const uint8_t *body, uint32_t body_bytes);

/* ---- gc.  Ids of undeleted ledgers from *cursor (0 at first) on; 0 at the end. */
int32_t fbk_index_list_ledgers(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                               int32_t ids_max);
/* Marks ledgers deleted and tells the journal, which takes no adds to them from then on; returns
 * how many were known and not deleted before.  *taken: the ids handled; fewer than count while the
 * journal has not taken note of earlier ones. */
int32_t fbk_index_delete_ledgers(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                                 uint64_t now_s, int32_t *taken);
/* Ids of unconfirmed ledgers that are neither deleted nor in limbo, as fbk_index_list_ledgers
 * lists; *expiring: for each 1 once the journal takes nothing to it any more (INV-G5), else 0. */
int32_t fbk_index_list_unconfirmed(const struct fbk_index *index, uint64_t *cursor,
                                   int64_t *ledger_ids, uint32_t *expiring, int32_t ids_max);
/* What metadata says of a ledger. */
struct fbk_listed {
    int64_t ledger_id;
    uint32_t creation_mark; /* 0 = none */
    uint32_t has_key;       /* 0: metadata names no password */
    uint8_t master_key[20];
    uint32_t reserved;
};
/* Metadata lists these: those with the same key and creation are confirmed here and in the journal;
 * the ids of the others are put into `foreign`, which has room for all.  Returns how many those
 * are. */
int32_t fbk_index_confirm(struct fbk_index *index, const struct fbk_listed *listed, int32_t count,
                          int64_t *foreign);
/* Metadata lists these and names this bookie, which has not heard of them: their first record is
 * taken though there is no room for further unconfirmed ledgers. */
int32_t fbk_index_admit(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                        int32_t *taken);
/* Metadata did not list these for too long: the journal takes nothing to them until they are
 * confirmed or expired. */
int32_t fbk_index_begin_expiry(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                               int32_t *taken);
/* Metadata did not list them since then either: deleted, and forgotten by the next merge of
 * everything.  fenced_deleted_s: not 0 where they are proven to be deleted ledgers: the time of
 * deletion of those that were fenced, until which they are kept. */
int32_t fbk_index_expire(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                         uint64_t fenced_deleted_s, int32_t *taken);
/* Ids of deleted ledgers, ascending, up to ids_max; returns how many there are. */
int64_t fbk_index_list_deleted(const struct fbk_index *index, int64_t *ledger_ids, int64_t ids_max);

/* ---- copies that nobody counts on any more (INV-G2).  Ledgers that hold something, are not
 * deleted, in limbo, dropped or being dropped, and are flushed since their last change, from
 * *cursor (0 at first) on: id and changed_sequence of each.  Looks at a bounded part of the table:
 * none found is not the end; *cursor is UINT64_MAX then. */
int32_t fbk_index_list_settled(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                               uint64_t *changed, int32_t ids_max);
/* Marks those that are still as `changed` says, and moves them to the front of both arrays; returns
 * how many.  Until fbk_index_end_drop what is stored of them answers no check.  None while a flush
 * is under way. */
int32_t fbk_index_begin_drop(struct fbk_index *index, int64_t *ledger_ids, uint64_t *changed,
                             int32_t count);
/* is_dropped: nothing that was stored of them before fbk_index_begin_drop is found any more. */
void fbk_index_end_drop(struct fbk_index *index, const int64_t *ledger_ids, const uint64_t *changed,
                        int32_t count, uint32_t is_dropped);

/* ---- deleted ledgers that no file knows any more.  The last seal whose flush has ended: what it
 * holds is in the files. */
uint32_t fbk_index_flushed_seal(const struct fbk_index *index);
/* Begins to remove those of these ids (ascending) from index and journal that were deleted before
 * that time and did not change since that seal; a slice is done in each step.  -EBUSY: the last
 * ones are not done with; -ENOMEM. */
int32_t fbk_index_begin_forget(struct fbk_index *index, const int64_t *ledger_ids, uint64_t count,
                               uint64_t deleted_before_s, uint32_t through_seal);
/* How many were removed when it is done, -EAGAIN before; `ledger_ids` (may be NULL: then nothing
 * ends) gets them, ascending. */
int64_t fbk_index_end_forget(struct fbk_index *index, int64_t *ledger_ids);
/* Takes the ids of `gone` out of `ledger_ids`, both ascending; returns how many are left. */
uint64_t fbk_index_ids_without(int64_t *ledger_ids, uint64_t count, const int64_t *gone,
                               uint64_t gone_count);

/* ---- ledgers whose data was lost here (INV-X4).  Made if unknown.  FBK_E_FULL (ledgers_max). */
int32_t fbk_index_put_in_limbo(struct fbk_index *index, const int64_t *ledger_ids, uint64_t count);
/* Their data is elsewhere again, and no metadata names this bookie for it; fenced: somebody may
 * have fenced them. */
int32_t fbk_index_limbo_over(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                             uint32_t fenced, int32_t *taken);
/* Ids of ledgers in limbo that are not deleted, as fbk_index_list_ledgers lists. */
int32_t fbk_index_list_limbo(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                             int32_t ids_max);

/* What the disk does not take: FBK_JOURNAL_OPEN, FBK_JOURNAL_NO_ADDS, FBK_JOURNAL_NO_WRITES. */
void fbk_index_set_reads_only(struct fbk_index *index, uint32_t reads_only);
/* For what Python counts and measures. */
/* of a gauge: what it is now */
void fbk_index_gauge(struct fbk_index *index, uint32_t counter, uint64_t value);
void fbk_index_count(struct fbk_index *index, uint32_t counter, uint64_t amount);
void fbk_index_observe(struct fbk_index *index, uint32_t histogram, uint64_t value);
