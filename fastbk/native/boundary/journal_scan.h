/* Reading journal files back: headers for ordering, batches for replay. */

struct fbk_io;
struct fbk_journal_scan;

/* No batch is larger, whatever a configuration says: readers take no memory by a length beyond
 * it. */
#define FBK_BATCH_BYTES_MAX 67108864

/* What a file's header blocks say. */
#define FBK_HEADER_VALID 0
#define FBK_HEADER_UNUSED 1
#define FBK_HEADER_DAMAGED 2

struct fbk_journal_header {
    uint32_t state; /* FBK_HEADER_*; the rest counts only when VALID */
    uint32_t block_size_bytes;
    uint64_t size_bytes; /* of the file as it is on disk, set in every state */
    /* differs from the name's id in a recycled file that was never used */
    uint64_t file_id;
    uint64_t salt;
    uint64_t incarnation;
    uint64_t file_size_bytes;     /* as the header says */
    uint64_t predecessor_file_id; /* 0 = none */
    uint64_t predecessor_sequence;
    uint64_t first_sequence;
    uint64_t first_record_sequence;
    uint64_t created_s;
    uint32_t predecessor_crc;
    uint32_t pair;
    uint32_t adopts;        /* it may hold runs, and be a log */
    uint8_t bookie_id[128]; /* zero padded */
};

/* Reads and checks the header blocks of the file at `path`.  0 or -errno, FBK_E_TOO_NEW, -ETIMEDOUT
 * when its lock is not to be had (lock = 1: waits until a dead writer's last request has left the
 * kernel). */
int32_t fbk_journal_read_header(struct fbk_io *io, const char *path, uint32_t lock,
                                struct fbk_journal_header *header);

/* The header blocks of a file without batches: of the size of two blocks at least, the rest zero.
 * `state` and `size_bytes` count for nothing. */
void fbk_journal_encode_header(const struct fbk_journal_header *header, uint8_t *bytes,
                               uint64_t size_bytes);

/* What the caller knows before it reads a file. */
struct fbk_journal_expectation {
    uint64_t file_id;     /* the header must carry it */
    uint64_t incarnation; /* the same */
    /* batches up to here are in finished flushes: passed over, their bodies unread */
    uint64_t mark_sequence;
    /* the last batch that counts, from the successor's header (INV-J4); UINT64_MAX: no successor */
    uint64_t end_sequence;
    /* where the mark's batch is; 0: unknown.  If it is there, nothing before it is read */
    uint64_t mark_offset_bytes;
};

/* A whole, valid batch that follows the one before. */
struct fbk_journal_batch {
    /* record_count times fbk_record + payload, 8-aligned; until the next call */
    const uint8_t *records;
    uint64_t file_id;
    uint64_t offset_bytes;
    uint64_t sequence;
    uint64_t acked_through;
    uint64_t first_record_sequence;
    uint64_t written_s;
    uint32_t record_count; /* 0 for a closing batch */
    uint32_t records_bytes;
    uint32_t padded_bytes;
    uint32_t flags; /* FBK_BATCH_CLOSING */
    uint32_t header_crc;
    uint32_t reserved;
};

#define FBK_END_NONE 0      /* not at the end yet */
#define FBK_END_CLOSING 1   /* a closing batch */
#define FBK_END_SUCCESSOR 2 /* end_sequence was reached */
/* nothing valid follows that was ever acknowledged: the ordinary end after a crash */
#define FBK_END_TAIL 3
/* acknowledged batches from last_sequence + 1 on can't be read */
#define FBK_END_DAMAGE 4

struct fbk_journal_end {
    uint32_t kind;
    uint32_t last_crc; /* chain value: header_crc of batch last_sequence */
    /* last batch that counts so far, those behind the mark included */
    uint64_t last_sequence;
    uint64_t next_record_sequence; /* after last_sequence */
    uint64_t end_bytes;            /* offset behind that batch */
    /* returned by next, and their records and bytes on disk */
    uint64_t batches;
    uint64_t records;
    uint64_t bytes;
    /* DAMAGE: the valid later batch that proves it, 0 = none: end_sequence was not reached */
    uint64_t later_sequence;
    uint64_t later_acked_through; /*         or the disk failed to read */
    int32_t read_error;           /* DAMAGE: -errno of the failed read, 0 = none */
    /* unreadable batches behind the mark, passed over: harmless */
    uint32_t passed_damage;
};

/* Opens the file and checks header against expectation.  NULL with *error: -errno, FBK_E_CORRUPT
 * (no valid header, or another file's), FBK_E_TOO_NEW.  `lock` as above: the scan holds the lock
 * until it is closed. */
struct fbk_journal_scan *fbk_journal_scan_open(struct fbk_io *io, const char *path, uint32_t lock,
                                               const struct fbk_journal_expectation *expectation,
                                               int32_t *error);
/* 1: *batch is the next one; 0: the end, see fbk_journal_scan_end; -ENOMEM. */
int32_t fbk_journal_scan_next(struct fbk_journal_scan *scan, struct fbk_journal_batch *batch);
void fbk_journal_scan_end(const struct fbk_journal_scan *scan, struct fbk_journal_end *end);
void fbk_journal_scan_close(struct fbk_journal_scan *scan);
