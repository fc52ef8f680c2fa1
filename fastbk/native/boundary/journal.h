/* The journal's steps: Python calls fbk_journal_step, which goes on for many batches under load,
 * and handles what it returns. */

struct fbk_io;
struct fbk_journal;

/* Reasons that fbk_journal_step returns, or-ed. */
#define FBK_JOURNAL_PUBLISHED 1 /* at least one batch */
/* the bell rang and no ring has anything: look at the control socket */
#define FBK_JOURNAL_BELL 2
/* nothing in flight and the next record does not fit: call fbk_journal_roll */
#define FBK_JOURNAL_ROLL 4
/* less than a quarter of the file is left: have the next one ready */
#define FBK_JOURNAL_NEARLY_FULL 8

/* fbk_journal_set_limit: what is refused with READ_ONLY. */
#define FBK_JOURNAL_OPEN 0      /* nothing */
#define FBK_JOURNAL_NO_ADDS 1   /* normal adds */
#define FBK_JOURNAL_NO_WRITES 2 /* whatever would have to be written */

#define FBK_JOURNAL_WORKERS_MAX 16
#define FBK_JOURNAL_DEPTH_MAX 8

struct fbk_journal_options {
    uint32_t epoch;        /* of all segments */
    uint32_t worker_count; /* 1..16 */
    int32_t segment_fd;    /* own, writable */
    int32_t index_segment_fd;
    int32_t worker_segment_fds[16];
    int32_t bell_fd; /* own, blocking */
    int32_t index_bell_fd;
    int32_t worker_bell_fds[16];
    uint32_t depth;                /* batches in flight, 1..8 and at most the disk's */
    uint32_t quantum_bytes;        /* taken from one ring before the next one's turn */
    uint32_t batch_size_bytes_max; /* a batch ends there, but holds at least one record */
    uint32_t record_bytes_max;     /* header, payload, padding */
    uint32_t run_bytes_min;        /* what a ledger has to bring in a batch to be written as runs */
    /* waiting bytes that start one more batch while one is in flight; 0: any */
    uint32_t second_batch_bytes_min;
    uint32_t block_size_bytes; /* of the files; a power of two, 4096..65536 */
    uint64_t ledgers_max;
    /* of these, those that metadata was never seen to list (INV-G6); 0 = no bound of their own */
    uint64_t unconfirmed_ledgers_max;
    uint64_t incarnation;
    uint64_t predecessor_file_id; /* where replay ended; all 0 in a new bookie */
    uint64_t predecessor_sequence;
    uint64_t next_record_sequence;
    uint32_t predecessor_crc;
    uint32_t pair;
    uint8_t bookie_id[128]; /* zero padded */
    /* 1: batches are acknowledged once they are written, not once they are durable; a power cut may
     * take the newest file's, and nothing of it is called damage then */
    uint32_t unsynced;
    /* polls for so long while a batch is in flight, before it sleeps; 0: it sleeps at once */
    uint32_t spin_us;
    uint8_t header_key[120]; /* FBK_HEADER_KEY_BYTES, random, as its index has it */
};

/* A file to go on in: pre-written, opened for direct writes and locked. */
struct fbk_journal_file {
    int32_t file; /* handle of the io */
    /* 1: what one ledger brings in one batch is written as runs, and the file may stay as a log */
    uint32_t adopts;
    uint64_t file_id; /* above every earlier one */
    uint64_t salt;
    uint64_t size_bytes;
};

#define FBK_POISON_NONE 0
#define FBK_POISON_RING 1   /* a record that no worker writes: `worker`, `position` */
#define FBK_POISON_CURSOR 2 /* a cursor in another's segment that can't be: `worker` */
#define FBK_POISON_WRITE 3  /* a write or sync failed: `error` */

struct fbk_journal_status {
    uint64_t file_id;      /* 0 before the first roll */
    uint64_t offset_bytes; /* where the next batch goes */
    uint64_t file_size_bytes;
    uint64_t sequence;           /* last batch submitted */
    uint64_t published_sequence; /* last batch durable, all before it too */
    uint64_t next_record_sequence;
    uint64_t journal_bytes; /* written since start */
    uint64_t taken_bytes;   /* of records with entries, since start */
    uint64_t grouped_bytes; /* of these, what runs had, or would have had */
    uint64_t loose_bytes;   /* of records outside of runs in the current file */
    uint64_t mark_sequence; /* the index's */
    uint64_t waiting_bytes; /* in the rings, not taken */
    uint64_t ledgers;
    uint64_t position;
    uint32_t last_crc;
    uint32_t in_flight;
    uint32_t poison; /* FBK_POISON_* */
    uint32_t worker;
    int32_t error;
    uint32_t limit;
    uint32_t adopts; /* the current file */
};

/* NULL with *error.  Maps the segments; the descriptors stay the caller's. */
struct fbk_journal *fbk_journal_create(struct fbk_io *io, const struct fbk_journal_options *options,
                                       int32_t *error);
void fbk_journal_destroy(struct fbk_journal *journal);

/* Takes `count` ledger states out of a memory file into the table, before the first step.
 * FBK_E_CORRUPT, FBK_E_FULL (more than ledgers_max). */
int32_t fbk_journal_load_states(struct fbk_journal *journal, int32_t states_fd, uint64_t count);

/* Ends the current file with a closing batch if it has room (at the first call there is none),
 * writes and syncs both headers of `next` and goes on there.  Waits.  Returns the handle of the
 * file left behind, which has no request outstanding
 * (-1 = there was none; *closed_sequence: its last batch), -EBUSY with batches in flight,
 * FBK_E_POISONED. */
int32_t fbk_journal_roll(struct fbk_journal *journal, const struct fbk_journal_file *next,
                         uint64_t *closed_sequence);

/* Wait (at most timeout_ms; not at all when something is to be done), complete, publish, take,
 * submit.  Returns reasons (0: the time passed) or FBK_E_POISONED: this process must publish
 * nothing more and exit (INV-J2). */
int32_t fbk_journal_step(struct fbk_journal *journal, int32_t timeout_ms);

/* A clean stop: waits for what is in flight and writes a closing batch.  0, -EAGAIN while records
 * wait in the rings, FBK_E_POISONED. */
int32_t fbk_journal_close(struct fbk_journal *journal);

void fbk_journal_set_limit(struct fbk_journal *journal, uint32_t limit);
/* Between two steps.  Batches that are submitted from now on count as durable so many ms after they
 * were submitted, at the earliest: how tests get a slow disk.  0 to FBK_JOURNAL_DELAY_MS_MAX, else
 * -EINVAL. */
#define FBK_JOURNAL_DELAY_MS_MAX 10000
int32_t fbk_journal_delay(struct fbk_journal *journal, uint32_t delay_ms);
/* Takes nothing more into the current file: once what is under way is durable, a step says ROLL. */
void fbk_journal_request_roll(struct fbk_journal *journal);
/* For the counters: bytes in files that are not behind the mark, files taken again, files made, and
 * how many files had blocks without zeros when they were ready; bytes that the process wrote. */
void fbk_journal_note_files(struct fbk_journal *journal, uint64_t behind_bytes, uint64_t recycled,
                            uint64_t made, uint64_t allocated, uint64_t written_bytes);
/* How many files were ready so far, and how long it took in all until they were. */
void fbk_journal_note_adoption(struct fbk_journal *journal, uint64_t free_bytes,
                               uint64_t kept_bytes, uint64_t reason);
void fbk_journal_note_ready(struct fbk_journal *journal, uint64_t files, uint64_t took_us);
void fbk_journal_get_status(const struct fbk_journal *journal, struct fbk_journal_status *status);

/* The first add of a ledger that this bookie did not hold, where it is not entry 0: what came
 * before it is not here. */
#define FBK_LATE_LEDGERS_MAX 16
struct fbk_late_ledger {
    int64_t ledger_id;
    int64_t entry_id;
    uint64_t recovery; /* 1: it came with the recovery flag */
};
/* Moves out what was noted since the last call, at most FBK_LATE_LEDGERS_MAX; returns how many.
 * *others: how many more. */
uint32_t fbk_journal_take_late(struct fbk_journal *journal, struct fbk_late_ledger *to,
                               uint64_t *others);

/* A thread of its own makes the next file: renames `old_path` to `path`, or, where that is NULL,
 * writes `path` full of zeros in pieces, at idle I/O priority, and syncs it; then it syncs the
 * directory. */
#define FBK_PREWRITE_CALM 0
/* no more pauses: the file is needed now */
#define FBK_PREWRITE_HURRIES 1
/* no more zeros either: what is left of the file is only allocated */
#define FBK_PREWRITE_ALLOCATES 2
/* nothing for now: the disk is needed by others */
#define FBK_PREWRITE_WAITS 3
struct fbk_prewrite;
struct fbk_prewrite *fbk_prewrite_start(struct fbk_io *io, const char *directory, const char *path,
                                        const char *old_path, uint64_t size_bytes,
                                        uint32_t piece_bytes, uint32_t pause_us, uint32_t haste,
                                        int32_t *error);
/* 0 done, -EINPROGRESS not yet, else what failed. */
int32_t fbk_prewrite_state(struct fbk_prewrite *prewrite);
void fbk_prewrite_hurry(struct fbk_prewrite *prewrite, uint32_t haste);
/* Once it is done: blocks behind this may be without zeros. */
uint64_t fbk_prewrite_written_bytes(const struct fbk_prewrite *prewrite);
/* Once it failed: whether the old name may be gone. If not, the old file is as it was, or fuller of
 * zeros. */
_Bool fbk_prewrite_is_renaming(const struct fbk_prewrite *prewrite);
/* Waits for the thread. */
void fbk_prewrite_end(struct fbk_prewrite *prewrite);
