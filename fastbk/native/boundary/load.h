/* The load generator: one thread, closed or open loop, any number of connections to one bookie. */
struct fbk_load;

struct fbk_load_options {
    uint32_t connection_count;
    uint32_t ledger_count;
    uint32_t window;     /* adds (or reads) outstanding in all */
    uint32_t size_bytes; /* of the data in an entry */
    uint64_t rate_per_s; /* 0 = closed loop; else intended start times at this rate */
    uint32_t digest_type;
    uint32_t entries_a_read; /* reads: 1 = Read, more = ReadBatch */
    uint8_t master_key[20];
    uint32_t ipv4; /* network order */
    uint32_t port;
    uint32_t protocol; /* 0 = ours; 2 or 3 = Apache's (3 has no batch reads) */
    /* appends: each entry whose id is a multiple of it is read as soon as it is acknowledged; 0 =
     * none */
    uint32_t tail_every;
    /* reads: from a random entry on each time, not from one behind the last */
    uint32_t is_random;
};

#define FBK_LOAD_BUCKETS 4096

struct fbk_load_result {
    uint64_t entries; /* answered well */
    uint64_t errors;
    uint64_t bytes; /* of data in them */
    /* time of the load alone, from the first send to the last answer of each run */
    uint64_t busy_ns;
    uint64_t latency_sum_ns;
    uint64_t latency_max_ns;
    /* open loop: adds that could not start in time for want of window */
    uint64_t late;
    uint32_t first_error_status;
    uint32_t reserved;
    uint64_t latency_buckets[FBK_LOAD_BUCKETS];
    uint64_t tail_latency_max_ns; /* of tail reads, from their sending */
    uint64_t tail_latency_buckets[FBK_LOAD_BUCKETS];
};

/* Lowest value that falls into bucket + 1, i.e. what a percentile in `bucket` is at most, in ns. */
uint64_t fbk_load_bucket_top(uint32_t bucket);
/* NULL with *error. ledger_ids: ledger_count of them; entry ids continue from 0. */
struct fbk_load *fbk_load_create(const struct fbk_load_options *options, const int64_t *ledger_ids,
                                 int32_t *error);
void fbk_load_destroy(struct fbk_load *load);
/* Magic, hello and its answer on every connection. */
int32_t fbk_load_connect(struct fbk_load *load, const uint8_t *hello_frame, uint32_t hello_bytes,
                         uint32_t timeout_ms);
/* Appends for `duration_ns` (or until stopped), then waits until nothing is in flight. */
int32_t fbk_load_append(struct fbk_load *load, uint64_t duration_ns, uint64_t drain_timeout_ns);
/* Reads entries 0..entry_count-1 of each ledger in turn, again and again for duration_ns; verifies
 * digest and data. */
int32_t fbk_load_read(struct fbk_load *load, uint64_t duration_ns, const uint64_t *entry_counts);
/* Entries appended so far to ledger `index` and the bytes of their data. */
uint64_t fbk_load_ledger_entries(const struct fbk_load *load, uint32_t index);
void fbk_load_result_get(const struct fbk_load *load, struct fbk_load_result *result);
/* The data of one entry: a function of (ledger, entry, size), so that any reader can check it. */
void fbk_load_data(uint8_t *out, uint32_t size_bytes, int64_t ledger_id, int64_t entry_id);
/* All entries 0..entries_a_ledger-1 of neighbouring ledgers, one behind the other as they are
 * stored, and the CRC32C of each. Returns the size of one, or -EINVAL for a digest that is none or
 * needs a key. */
int32_t fbk_load_entries(uint8_t *out, uint32_t *crcs, int64_t first_ledger_id,
                         uint32_t ledger_count, uint32_t entries_a_ledger, uint32_t size_bytes,
                         uint32_t digest_type);
/* One outstanding durable 4 KiB write at a time on a pre-written file (path is created,
 * pre-written, removed): O_DIRECT + RWF_DSYNC, the journal's way of committing, for duration_ns;
 * adds into the histogram. */
struct fbk_probe_result {
    uint64_t commits;
    uint64_t busy_ns;
    uint64_t latency_max_ns;
    /* 1: O_DIRECT + RWF_DSYNC; 0: the file system refuses it, buffered write + fdatasync */
    uint32_t direct;
    uint32_t reserved;
    uint64_t latency_buckets[FBK_LOAD_BUCKETS];
};
int32_t fbk_probe_open(const char *path, uint32_t block_bytes, uint32_t file_bytes);
int32_t fbk_probe_run(int32_t file, uint32_t block_bytes, uint32_t file_bytes, uint64_t duration_ns,
                      struct fbk_probe_result *result);
