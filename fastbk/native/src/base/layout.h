/* Every struct that leaves one process: in shared memory or on disk.  Little-endian, no implicit
 * padding, sizes asserted.  On-disk formats are described byte by byte in fastbk/storage/README.md;
 * a change of a disk struct comes with a new version number and new golden files, a change of a
 * shared one with a new FBK_LAYOUT_VERSION.
 *
 * Decisions 2, 18 and 93. */
#pragma once

#include "base/base.h"

#include "base/layout_states.h"

#include <stdatomic.h>

#include "boundary/base.h"
#include "boundary/status.h"

#define FBK_LAYOUT_VERSION 11u

#define FBK_WORKERS_MAX 16u
#define FBK_ENTRY_HEADER_BYTES 32u /* ledger, entry, lac, length: Apache's, big-endian */

/* ------------ records: add ring, request ring, journal */

enum fbk_record_kind {
    FBK_KIND_ADD = 1, /* payload: one entry */
    /* payload: entry_count x fbk_batch_item, then the entries one behind the other */
    FBK_KIND_ADD_BATCH = 2,
    /* fence and read in one; entry_id = the entry to read, -1 = the highest */
    FBK_KIND_FENCE = 3,
    FBK_KIND_FORCE = 4, /* an ordered barrier; never written to the journal */
    /* in the journal only; payload: a run, as an entry log has it; body_crc: of its header and item
     * table; entry_id = its first id */
    FBK_KIND_RUN = 5,
    /* request ring only */
    FBK_KIND_READ = 16,
    FBK_KIND_READ_BATCH = 17, /* payload: fbk_read_batch_args */
    FBK_KIND_READ_LAC = 18,   /* payload: fbk_read_lac_args */
    FBK_KIND_WRITE_LAC = 19,  /* payload: the LAC body; entry_id = the LAC */
    /* entry_id = first id asked for; entry_count = most ranges wanted */
    FBK_KIND_LIST = 20,
    FBK_KIND_CANCEL = 21, /* forget the waiters of connection_id (it is gone) */
    /* replies only */
    FBK_KIND_POLL = 22,         /* a READ_LAC that was ready to wait */
    FBK_KIND_RECOVERY_ADD = 23, /* an ADD or ADD_BATCH with that flag */
};

#define FBK_FLAG_RECOVERY 1u
#define FBK_FLAG_DEFERRED_SYNC 2u
#define FBK_FLAG_FENCE 1u
#define FBK_FLAG_HIGH_PRIORITY 2u
#define FBK_FLAG_PIGGYBACK 1u

/* The same 96 bytes in a ring and in a journal batch, followed by payload_bytes and zeros up to
 * size_bytes. In a ring `sequence` counts that ring's records; in the journal, all records of the
 * journal (dense). */
struct fbk_record {
    uint32_t size_bytes; /* header, payload and padding: a multiple of 8 */
    uint32_t payload_bytes;
    uint8_t kind;
    uint8_t digest_type;
    uint16_t flags;
    uint32_t entry_count; /* 1 for ADD, 0 for kinds without entries */
    int64_t ledger_id;
    int64_t entry_id; /* first id of a batch */
    uint64_t sequence;
    uint64_t request_id;    /* the client's */
    uint64_t connection_id; /* worker's slot and generation; 0 in the journal */
    uint8_t master_key[FBK_MASTER_KEY_BYTES];
    /* CRC32C: ADD, WRITE_LAC: of the payload; ADD_BATCH: of the item table; else of the payload */
    uint32_t body_crc;
    uint32_t epoch; /* of the segments; 0 in the journal */
    /* low bits of the monotonic clock, for latency; 0 in the journal */
    uint32_t received_us;
    /* of the creation token that the client sent, 0 = none (INV-T1) */
    uint32_t creation_mark;
    uint32_t header_crc; /* CRC32C of the 92 bytes before it */
};
_Static_assert(sizeof(struct fbk_record) == 96, "record header");

struct fbk_batch_item {
    uint32_t size_bytes;
    uint32_t crc; /* CRC32C of the entry's bytes */
};
_Static_assert(sizeof(struct fbk_batch_item) == 8, "batch item");

struct fbk_read_batch_args {
    int64_t last_entry_id;
    uint32_t entry_count_max;
    uint32_t size_bytes_max;
};
struct fbk_read_lac_args {
    int64_t previous_lac;
    uint32_t timeout_ms;
    uint32_t flags;
};

/* In a reply ring: this header, then one encoded frame (with its length prefix), padded to 8. */
struct fbk_reply {
    uint32_t size_bytes; /* header, frame, padding */
    uint32_t frame_bytes;
    uint64_t connection_id;
    uint32_t epoch;
    uint32_t kind; /* of the request, for counters */
    uint32_t received_us;
    uint32_t status;
};
_Static_assert(sizeof(struct fbk_reply) == 32, "reply header");

/* What an entry costs the write cache; both sides of the credit count with this one function. */
#define FBK_CACHE_ITEM_HEADER_BYTES 48u
static inline uint64_t
fbk_cache_cost(uint32_t entry_bytes)
{
    return FBK_CACHE_ITEM_HEADER_BYTES + fbk_round_up(entry_bytes, 8);
}
/* Of a record: entries are at least 32 bytes, so this bounds the sum over a batch without looking
 * into it. */
static inline uint64_t
fbk_record_cost(uint32_t payload_bytes, uint32_t entry_count)
{
    return (uint64_t)entry_count * (FBK_CACHE_ITEM_HEADER_BYTES + 8) +
           fbk_round_up(payload_bytes, 8);
}

/* ------------ shared segments, one per writer (INV-R1) */

#define FBK_SEGMENT_MAGIC 0x746765736b6266ull /* "fbkseg" */
/* Roles and the sizes of statistics: boundary/base.h. */

struct fbk_histogram { /* log-linear: 8 buckets an octave; base/stats.h */
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t max;
    uint64_t reserved;
    _Atomic uint64_t buckets[FBK_HISTOGRAM_BUCKETS];
};
/* Each word is written by one thread, and read by the supervisor's watchdog
 * (fastbk/server/supervision/monitor.py).  A loop adds 1 in each of its turns.  A thread that
 * works off jobs adds 1 when it begins one and 1 when it ends it: odd while it works. */
struct fbk_heartbeat {
    _Alignas(64) _Atomic uint64_t beats;
};
/* Written by the thread that records, number n in slot n mod FBK_FLIGHT_RECORDS: base/flight.h. */
struct fbk_flight {
    _Alignas(64) _Atomic uint64_t written; /* records ever written */
    struct fbk_flight_record records[FBK_FLIGHT_RECORDS];
};
/* Written by an index, number n in slot n mod FBK_HOT_WINDOWS: index/hot_ledgers.h. */
#define FBK_HOT_WINDOWS 2u
struct fbk_hot_windows {
    _Alignas(64) _Atomic uint64_t written; /* windows ever written */
    struct fbk_hot_window windows[FBK_HOT_WINDOWS];
};
struct fbk_stats { /* names: fastbk/observe/names.py */
    _Atomic uint64_t counters[FBK_COUNTERS_MAX];
    struct fbk_histogram histograms[FBK_HISTOGRAMS_MAX];
    struct fbk_heartbeat heartbeats[FBK_HEARTBEATS_MAX]; /* by FBK_BEAT_... */
    struct fbk_flight flight;
};

struct fbk_segment_header {
    uint64_t magic;
    uint32_t version;
    uint32_t role;
    uint32_t role_index;
    uint32_t epoch; /* given by the supervisor; never used twice */
    uint64_t size_bytes;
    uint64_t ring_size_bytes[4]; /* of the rings behind the control pages, 0 = none */
    uint64_t ring_offset_bytes[4];
    /* of a journal, an index, or a worker's part for that pair; 0 for the others */
    uint32_t pair;
    uint32_t reserved;
    uint64_t reserved2;
};
_Static_assert(sizeof(struct fbk_segment_header) == 112, "segment header");

/* The sleeper's side of a doorbell.  Odd = asleep (or about to be).  Each waker remembers privately
 * the last odd ticket it rang for, so nobody writes another's memory and each sleep costs at most
 * one eventfd write a waker.  See base/ring.h for the order that makes a lost wake impossible. */
struct fbk_sleeper {
    _Alignas(64) _Atomic uint64_t ticket;
};

struct fbk_cursor {
    _Alignas(64) _Atomic uint64_t value;
};
/* What a consumer that was drained leaves in its descriptors_consumed, exceptions_consumed and
 * reply_consumed: wait for it no more. */
#define FBK_CONSUMER_GONE UINT64_MAX

/* Written by the supervisor, and by gc. */
struct fbk_stats_segment {
    struct fbk_segment_header header;
    struct fbk_stats stats;
};

/* Written by worker w, one for each pair, which maps no other.  Rings behind it: [0] add ring (to
 * journal and index), [1] request ring (to index).  Statistics are counted in that of pair 0
 * only. */
struct fbk_worker_segment {
    struct fbk_segment_header header;
    struct fbk_sleeper sleeper;
    struct fbk_cursor add_written; /* bytes ever put into the add ring */
    /* bytes of it that were answered (or handed to the index) */
    struct fbk_cursor add_replied;
    struct fbk_cursor cost_written; /* cache cost of the normal adds ever put in */
    struct fbk_cursor request_written;
    /* bytes taken from the index's reply ring for this worker */
    struct fbk_cursor reply_consumed;
    struct fbk_cursor descriptors_consumed;
    struct fbk_cursor exceptions_consumed;
    /* 1: waits for credit or ring space, ring my bell when it grows */
    struct fbk_cursor starved;
    struct fbk_stats stats;
};

/* One batch in the journal's order.  `order` is dense; descriptor n lies in slot n mod count. */
struct fbk_batch_descriptor {
    uint64_t order;
    /* of the last batch written at or before this point (the log mark's unit) */
    uint64_t batch_sequence;
    /* 0: nothing was written (only refusals, barriers, repeated fences) */
    uint64_t file_id;
    uint64_t offset_bytes;
    uint32_t size_bytes;
    uint32_t record_count;
    uint64_t exceptions_end; /* exceptions ever published, this batch's included */
    /* bytes ever written to journal files since start, for the flush policy */
    uint64_t journal_bytes;
    uint64_t published_ns;
    uint64_t ring_end[FBK_WORKERS_MAX]; /* end position in each worker's add ring */
    /* of the headers between its last end and this one, masked: base/header_hash.h */
    uint64_t header_hash[FBK_WORKERS_MAX];
    uint64_t runs_end;  /* runs ever published, this batch's included */
    uint64_t file_salt; /* of the journal file */
    uint64_t tail_end;  /* in the journal's ring: where the newest batch with runs ends */
    /* Where all adds that were taken from a ring are in runs and nothing was refused: how many
     * records that was, and their cost.  The index need not look at them.  Else 0. */
    uint64_t run_cost[FBK_WORKERS_MAX];
    uint32_t run_records[FBK_WORKERS_MAX];
    uint32_t received_us; /* the first record that was written */
    uint32_t reserved;
};
_Static_assert(sizeof(struct fbk_batch_descriptor) == 544, "batch descriptor");

/* A run of a published batch: it lies in the descriptor's file, where it says, and does not change
 * until the file is taken again (INV-J7). */
struct fbk_run_summary {
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    int64_t lac; /* the highest in its entries */
    uint64_t offset_bytes;
    uint32_t size_bytes;
    uint32_t entry_count;
};
_Static_assert(sizeof(struct fbk_run_summary) == 48, "run summary");

struct fbk_exception {
    uint64_t position; /* of the record in its ring */
    uint32_t worker;
    uint32_t verdict; /* a status: refused, not stored; FBK_V_CHECK; FBK_V_ORDERED */
};

#define FBK_DESCRIPTOR_COUNT 1024u
#define FBK_EXCEPTION_COUNT 65536u
#define FBK_RUN_SUMMARY_COUNT 16384u
#define FBK_NOTICE_COUNT 4096u

/* Written by journal p.  Ring behind it, if it has one: the newest batches with runs, as they went
 * to the disk; the index reads the runs' entries there until it gives their place back. */
struct fbk_journal_segment {
    struct fbk_segment_header header;
    struct fbk_sleeper sleeper;
    struct fbk_cursor wake_at[FBK_WORKERS_MAX]; /* ring my bell when add_written >= this */
    /* descriptors ever published: all before are durable */
    struct fbk_cursor published;
    struct fbk_stats stats;
    struct fbk_batch_descriptor descriptors[FBK_DESCRIPTOR_COUNT];
    struct fbk_exception exceptions[FBK_EXCEPTION_COUNT];
    /* of the index's, applied to the table of ledger states */
    struct fbk_cursor notices_consumed;
    /* to FBK_NOTICE_FORGOTTEN, in the notice's slot; before notices_consumed */
    uint64_t notice_answers[FBK_NOTICE_COUNT];
    struct fbk_cursor add_wait; /* of its normal adds: base/add_wait.h */
    struct fbk_run_summary runs[FBK_RUN_SUMMARY_COUNT];
};

/* Written by index p.  Ring behind it: one reply ring per worker (ring w at ring_base + w * ring
 * size). */
struct fbk_index_segment {
    /* ring_size_bytes[0]: of one reply ring; ring_offset_bytes[0]: of worker 0's */
    struct fbk_segment_header header;
    struct fbk_sleeper sleeper;
    struct fbk_cursor indexed[FBK_WORKERS_MAX]; /* add-ring bytes taken in */
    struct fbk_cursor request_consumed[FBK_WORKERS_MAX];
    struct fbk_cursor reply_written[FBK_WORKERS_MAX];
    /* a worker may write normal adds while cost_written <= this */
    struct fbk_cursor cost_granted[FBK_WORKERS_MAX];
    struct fbk_cursor descriptors_consumed;
    struct fbk_cursor exceptions_consumed;
    struct fbk_cursor runs_consumed;
    struct fbk_cursor tail_released; /* of the journal's ring */
    /* 1: ring at every publish (waiters, checks, a pending read) */
    struct fbk_cursor wants_wake;
    struct fbk_cursor mark_sequence; /* last batch contained in a finished flush */
    /* 1: refuse normal adds (disk full, limits): READ_ONLY; 2: whatever would have to be written */
    struct fbk_cursor reads_only;
    struct fbk_stats stats;
    struct fbk_cursor notices_written; /* ever put into `notices`, for the journal */
    /* a queue: notice n lies in slot n mod count */
    struct fbk_notice notices[FBK_NOTICE_COUNT];
    struct fbk_hot_windows hot;
};

/* ------------ entry logs */

/* In a log's id: it is the journal file of the other bits. */
#define FBK_LOG_JOURNAL (1ull << 63)
#define FBK_LOG_MAGIC 0x474f4c4b4246ull /* "FBKLOG" */
#define FBK_LOG_VERSION 1u
#define FBK_RUN_MAGIC 0x4e55524bu /* "KRUN" */
#define FBK_RUN_ENTRIES_MAX 256u
/* a run has at least one entry, whatever its size */
#define FBK_RUN_BYTES_MAX (256u * 1024u)
/* last id - first id is less: bounds how far a lookup looks back */
#define FBK_RUN_SPAN_MAX 4096u
/* a larger one in a location is damage */
#define FBK_RUN_READ_BYTES_MAX (64u * 1024u * 1024u)

struct fbk_log_header { /* block 0, the rest of 4096 bytes zero */
    uint64_t magic;
    uint32_t version;
    uint32_t pair;
    uint64_t log_id;
    uint64_t salt;
    uint64_t incarnation;
    uint64_t created_s;
    uint64_t reserved;
    uint32_t reserved2;
    uint32_t crc; /* of the 60 bytes before it */
};
_Static_assert(sizeof(struct fbk_log_header) == 64, "log header");

/* A run: entries of one ledger, ascending ids, contiguous: this header, entry_count x fbk_run_item,
 * the entries (each padded to 8).  Runs start at multiples of 8. */
struct fbk_run_header {
    uint32_t magic;
    uint32_t entry_count;
    uint64_t log_id;
    uint64_t salt;
    uint64_t offset_bytes;
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    uint32_t size_bytes; /* the whole run, a multiple of 8 */
    uint32_t items_crc;  /* CRC32C of the item table */
    uint32_t reserved;
    uint32_t header_crc;
};
_Static_assert(sizeof(struct fbk_run_header) == 72, "run header");

struct fbk_run_item {
    int64_t entry_id;
    uint32_t offset_bytes; /* from the run's start */
    uint32_t size_bytes;
    uint32_t crc; /* CRC32C of the entry's bytes */
    uint32_t reserved;
};
_Static_assert(sizeof(struct fbk_run_item) == 24, "run item");

/* ------------ locations files */

#define FBK_LOCATIONS_MAGIC 0x434f4c4b4246ull /* "FBKLOC" */
/* 1, which is read, too: states without creation marks, all of them confirmed */
#define FBK_LOCATIONS_VERSION_PLAIN 2u
/* with locations in journal files */
#define FBK_LOCATIONS_VERSION 3u

/* In `flags` of a location: what stood there was found damaged and could not be moved.  It lies in
 * no log, and its ids are answered with "cannot tell" unless another location holds them. */
#define FBK_LOCATION_DAMAGED 1u

/* 64 bytes a run, sorted by (ledger_id, first_entry_id).  Counts only while the manifest lists its
 * log. */
struct fbk_location {
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    /* over this and all earlier locations of the ledger in this file: bounds the look back */
    int64_t last_entry_id_max;
    uint64_t log_id;
    uint64_t offset_bytes;
    uint32_t size_bytes;
    uint32_t entry_count;
    uint64_t flags;
};
_Static_assert(sizeof(struct fbk_location) == 64, "location");

/* Block 0; then location blocks and state blocks of 4096 bytes, each: content, zeros, and in the
 * last 8 bytes the block's number (u32) and CRC32C of everything before the CRC (u32).  63
 * locations or 56 states a block. */
struct fbk_locations_header {
    uint64_t magic;
    uint32_t version;
    uint32_t pair;
    uint64_t file_id;
    uint64_t incarnation;
    uint64_t location_count;
    uint64_t location_blocks;
    uint64_t state_count;
    uint64_t state_blocks;
    uint64_t created_s;
    uint64_t first_generation; /* of the flushes merged in here: newer states win */
    uint64_t last_generation;
    uint32_t reserved;
    uint32_t crc; /* of the 92 bytes before it */
};
_Static_assert(sizeof(struct fbk_locations_header) == 96, "locations header");

#define FBK_LOCATIONS_BLOCK_BYTES 4096u
#define FBK_LOCATIONS_PER_BLOCK 63u
#define FBK_STATES_PER_BLOCK 56u
