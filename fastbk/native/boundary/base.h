/* Segments and their statistics, ledger states, disks: what the typed faces segment.py, stats.py and disk.py use. */

#define FBK_ROLE_SUPERVISOR 1
#define FBK_ROLE_WORKER 2
#define FBK_ROLE_JOURNAL 3
#define FBK_ROLE_INDEX 4
#define FBK_ROLE_GC 5

/* Journal/index pairs of one bookie (A19), and the shards that ledgers fall into: fbk_shard.h. */
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

/* Returns a descriptor (sealed, close-on-exec) or -errno. Sizes: powers of two, at least 4096. */
int32_t fbk_segment_create(uint32_t role, uint32_t role_index, uint32_t pair, uint32_t epoch, const uint64_t *ring_sizes,
                           uint32_t ring_count, uint32_t ring_repeat);
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
int32_t fbk_python_counters(const void *segment, uint32_t role, uint64_t *counters, uint32_t counters_max);
int32_t fbk_python_histogram(const void *segment, uint32_t role, uint32_t histogram, struct fbk_histogram_copy *copy);
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
