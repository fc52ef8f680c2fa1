/* Segments and their statistics, ledger states, disks: what the typed faces segment.py
 * and disk.py use. */

#define FBK_ROLE_SUPERVISOR 1
#define FBK_ROLE_WORKER 2
#define FBK_ROLE_JOURNAL 3
#define FBK_ROLE_INDEX 4
#define FBK_ROLE_GC 5

/* Of the key that a journal and its index have in common, and workers do not:
 * base/header_hash.h. */
#define FBK_HEADER_KEY_BYTES 120

/* Journal/index pairs of one bookie, and the shards that ledgers fall into: base/shard.h. */
#define FBK_PAIRS_MAX 8
#define FBK_SHARD_COUNT 64
uint32_t fbk_python_shard_of(int64_t ledger_id);

#define FBK_COUNTERS_MAX 160
#define FBK_HISTOGRAMS_MAX 10
#define FBK_HISTOGRAM_BUCKETS 512

/* Heartbeats in a segment's stats, one word each. */
#define FBK_HEARTBEATS_MAX 4
#define FBK_BEAT_LOOP 0       /* of every process */
#define FBK_BEAT_FLUSH 1      /* of the index: odd while its flush thread has a job */
#define FBK_BEAT_BACKGROUND 2 /* of the index: odd while its background thread has a slice */

/* The flight recorder: src/base/flight.h. Times are the monotonic clock's; 0: that stage was
 * none. */
#define FBK_FLIGHT_RECORDS 128
/* journal: a batch, from its first record's arrival at the worker to its publication */
#define FBK_FLIGHT_COMMIT 1
#define FBK_FLIGHT_ANSWER 2 /* worker: from a batch's publication to its answers */
/* worker: a connection whose next add waited for credit or room in the add ring */
#define FBK_FLIGHT_WAIT 3
#define FBK_FLIGHT_INTAKE 4 /* index: from a batch's publication until it is taken in */
/* worker: it was stopped by a signal, at most since received_ns */
#define FBK_FLIGHT_PAUSE 5
/* the kernel does not say how long the thread waited for a processor */
#define FBK_FLIGHT_NO_DELAY 1u
/* journal: a worker or the index had not taken its descriptors: no room for one more */
#define FBK_FLIGHT_STALLED 2u
#define FBK_FLIGHT_ROLLED 4u /* journal: it changed to the next file, or waited for one */
#define FBK_FLIGHT_CREDIT 8u /* worker: for credit; without it: for room in the ring */
/* journal: no bell ended its last sleep before this batch */
#define FBK_FLIGHT_TIMED_OUT 32u
#define FBK_FLIGHT_FULL 16u /* index: it waited for a flush to empty a cache */
struct fbk_flight_record {
    uint32_t kind;
    uint32_t flags;
    /* COMMIT: of the batch's first record. WAIT: when the wait began. Others: published_ns */
    uint64_t received_ns;
    uint64_t free_ns; /* COMMIT: when the last commit before it completed */
    uint64_t submitted_ns;
    uint64_t completed_ns;
    uint64_t published_ns;
    /* the record's end; what follows counts from sampled_ns to here, of the recording thread */
    uint64_t ended_ns;
    /* COMMIT: how long Python had the journal's thread, the longest turn since the last batch */
    uint64_t away_ns;
    uint64_t sampled_ns;
    uint64_t processor_ns; /* time on a processor */
    uint64_t delayed_ns;   /* runnable, but without a processor */
    uint64_t continued_ns; /* the last SIGCONT of the process */
    uint32_t voluntary;    /* context switches */
    uint32_t involuntary;
    uint32_t record_count; /* COMMIT */
    uint32_t size_bytes;
};
/* Copies records from number `from` on, as far as they are still there; returns their count, and in
 * *next the number to go on with: what lies between the two and was not copied is lost. */
int32_t fbk_python_flight(const void *segment, uint32_t role, uint64_t from,
                          struct fbk_flight_record *records, uint32_t records_max, uint64_t *next);
/* The ledgers with the most adds of one index, in the last window: src/index/hot_ledgers.h. Times
 * of the monotonic clock. */
#define FBK_HOT_LEDGERS 128
struct fbk_hot_ledger {
    int64_t ledger_id;
    uint64_t adds;      /* entries, estimated */
    uint64_t adds_over; /* by so much at most that is too high, beside the sample's error */
    uint64_t size_bytes;
};
struct fbk_hot_window {
    uint64_t began_ns;
    uint64_t ended_ns;
    uint32_t count;
    uint32_t reserved;
    struct fbk_hot_ledger ledgers[FBK_HOT_LEDGERS]; /* in no order */
};
/* Copies the newest window of an index's segment. 1; 0: there is none yet; -EINVAL: not an index's;
 * -EAGAIN. */
int32_t fbk_python_hot_window(const void *segment, struct fbk_hot_window *copy);
/* Has this process note when it is continued. Returns 0 or -errno. */
int32_t fbk_flight_watch_signals(void);

/* Returns a descriptor (sealed, close-on-exec) or -errno. Sizes: powers of two, at least 4096. */
int32_t fbk_segment_create(uint32_t role, uint32_t role_index, uint32_t pair, uint32_t epoch,
                           const uint64_t *ring_sizes, uint32_t ring_count, uint32_t ring_repeat);
/* For the owner, once it has mapped all that it writes: nobody gets another writable mapping, nor
 * writes otherwise.  1; 0: the kernel is older than Linux 5.1 and cannot refuse that; -errno. */
int32_t fbk_segment_seal(int32_t fd);
/* 1: sealed so; 0: not; -errno. */
int32_t fbk_segment_is_sealed(int32_t fd);
/* NULL with *error. */
void *fbk_segment_map(int32_t fd, uint32_t role, _Bool writable, int32_t *error);
void fbk_segment_unmap(void *segment, uint32_t role);

struct fbk_segment_facts {
    uint32_t role;
    uint32_t role_index;
    uint32_t pair;
    uint32_t epoch;
    uint32_t layout_version;
    uint32_t reserved;
    uint64_t size_bytes;
};
void fbk_python_segment_facts(const void *segment, struct fbk_segment_facts *facts);

struct fbk_histogram_copy {
    uint64_t count;
    uint64_t sum;
    uint64_t max;
    uint64_t buckets[FBK_HISTOGRAM_BUCKETS];
};
/* Copies of all counters and of one histogram; the owner goes on counting meanwhile. */
int32_t fbk_python_counters(const void *segment, uint32_t role, uint64_t *counters,
                            uint32_t counters_max);
int32_t fbk_python_histogram(const void *segment, uint32_t role, uint32_t histogram,
                             struct fbk_histogram_copy *copy);
/* For the owner only. */
int32_t fbk_python_count(void *segment, uint32_t role, uint32_t counter, uint64_t amount);
int32_t fbk_python_gauge(void *segment, uint32_t role, uint32_t counter, uint64_t value);
int32_t fbk_python_observe(void *segment, uint32_t role, uint32_t histogram, uint64_t value);
/* For the thread that owns the word. */
int32_t fbk_python_beat(void *segment, uint32_t role, uint32_t word);
/* Copies of all FBK_HEARTBEATS_MAX words. */
int32_t fbk_python_heartbeats(const void *segment, uint32_t role, uint64_t *beats);
/* The lowest value of a histogram's bucket. */
uint64_t fbk_python_bucket_from(uint32_t bucket);

void fbk_bell_ring(int event_fd);
uint64_t fbk_now_ns(void);
