/* Reading what is stored to find out whether it still is what was written: scrub, offline check,
 * rebuilding locations.  All reads go past the page cache where the file system can. Meanings:
 * src/store/log_scan.c, src/store/locations_check.c. */
struct fbk_log_scan;

/* One run, as its header or a location describes it. */
struct fbk_scanned_run {
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    int64_t lac; /* scan: the highest LAC in its good entries, -1 = none */
    uint64_t log_id;
    uint64_t offset_bytes;
    uint32_t size_bytes;
    uint32_t entry_count;
    /* entries that fail their checksum, or < 0: nothing in it can be trusted or read */
    int32_t damaged;
    /* verify: its entries' own digests, as metadata names them; NONE, and HMAC without a key: they
     * are not looked at */
    uint32_t digest_type;
};

/* Entries of one ledger without a gap between their ids in a run. */
struct fbk_id_range {
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
};

/* Digests that a verification has computed. */
struct fbk_digests_found {
    uint64_t entries;
    /* of these: their bytes are those that came, and no reader takes them */
    uint64_t bad_entries;
    uint64_t bad_count; /* ranges of them; no more than bad_max were copied */
};

struct fbk_log_scan_options {
    uint64_t log_id;
    uint64_t incarnation;
    /* as the manifest says; 0 = unknown: the header's, and where that is damaged any */
    uint64_t salt;
    uint64_t end_bytes; /* what lies behind does not count; 0 = the whole file */
};

struct fbk_log_scan_status {
    uint64_t size_bytes;    /* of the file */
    uint64_t at_bytes;      /* how far `next` has come */
    uint64_t skipped_bytes; /* of no run, and no zeros either */
    uint64_t unreadable_bytes;
    uint64_t read_bytes;
    uint32_t header_damaged;
    uint32_t reserved;
};

/* NULL with *error: -errno, FBK_E_TOO_NEW. */
struct fbk_log_scan *fbk_log_scan_open(struct fbk_io *io, const char *path,
                                       const struct fbk_log_scan_options *options, int32_t *error);
void fbk_log_scan_close(struct fbk_log_scan *scan);
/* Finds runs by their own headers, from the log's beginning on: how many, 0 at the end; -ENOMEM. */
int32_t fbk_log_scan_next(struct fbk_log_scan *scan, struct fbk_scanned_run *runs,
                          uint32_t runs_max);
/* Checks runs that locations name, by rising offsets: sets `damaged` of each.  How many are not
 * whole; -ENOMEM. digests: NULL, or what is found of digests that can be checked, in entries whose
 * checksums are good; added to what is there. mac_keys: NULL, or FBK_MAC_KEY_BYTES for each run,
 * which count for those with HMAC. */
int32_t fbk_log_scan_verify(struct fbk_log_scan *scan, struct fbk_scanned_run *runs, uint32_t count,
                            const uint8_t *mac_keys, struct fbk_digests_found *digests,
                            struct fbk_id_range *bad, uint64_t bad_max);
void fbk_log_scan_get_status(const struct fbk_log_scan *scan, struct fbk_log_scan_status *status);

struct fbk_locations_found {
    uint64_t size_bytes;
    /* behind the header, as many as the header names, or the file has */
    uint64_t blocks;
    /* of locations, or of either kind where the header is lost */
    uint64_t damaged_blocks;
    uint64_t damaged_state_blocks;
    /* whole states found, though not more than states_max were copied */
    uint64_t state_count;
    uint64_t first_generation;
    uint64_t last_generation;
    /* locations that stand for damage; no more than lost_max were copied */
    uint64_t lost_count;
    uint32_t header_damaged;
    uint32_t reserved;
};

/* Reads a locations file through and copies the states that are whole (72 bytes each; NULL: only
 * counts them), and the ids that its locations call damaged (what a compaction could not move).  0,
 * -errno, FBK_E_TOO_NEW. */
int32_t fbk_locations_check(struct fbk_io *io, const char *path, uint64_t file_id,
                            uint64_t incarnation, struct fbk_locations_found *found,
                            uint8_t *states, uint64_t states_max, struct fbk_scanned_run *lost,
                            uint64_t lost_max);

struct fbk_rebuild_options {
    uint64_t file_id;
    uint64_t generation;
    uint64_t created_s;
};

/* Sorts the runs (those of log 0 stand for damage) and writes a locations file of them and of the
 * states (72 bytes each, by rising ledger): synced, with its directory. 0 or < 0. */
int32_t fbk_locations_rebuild(struct fbk_store *store, const struct fbk_rebuild_options *options,
                              struct fbk_scanned_run *runs, uint64_t count, const uint8_t *states,
                              uint64_t state_count, uint64_t *size_bytes);

/* What a read of that one entry from the disk says: FBK_S_OK, NO_ENTRY, CANNOT_TELL,
 * TOO_MANY_REQUESTS.  Any thread. */
int32_t fbk_store_probe(struct fbk_store *store, int64_t ledger_id, int64_t entry_id);
/* What a listing of a ledger's ids on disk says from first_entry_id on: FBK_S_OK with *range_count
 * ranges (first, last) and *go_on (where the next one begins, -1 = all is known), or CANNOT_TELL,
 * TOO_MANY_REQUESTS.  Any thread. */
int32_t fbk_store_list_now(struct fbk_store *store, int64_t ledger_id, int64_t first_entry_id,
                           int64_t *ranges, uint32_t range_count_max, uint32_t *range_count,
                           int64_t *go_on);
