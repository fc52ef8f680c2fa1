/* A network worker's state: connections, and for each journal/index pair a lane: its two rings,
 * what was placed in them and not yet answered.
 *
 * One thread.  Everything that waits has a bound: slots, input bytes (INV-B1), output bytes, placed
 * records, ring bytes. Cursors of others are checked when read; a value that cannot be is
 * FBK_E_POISONED, never an assert. */
#pragma once

#include "apache/apache.h"
#include "base/flight.h"
#include "base/ring.h"
#include "base/shard.h"
#include "base/stats.h"
#include "wire/client.h"
#include "wire/wire.h"

#include "base/slots.h"
#include "boundary/wire.h"
#include "boundary/worker.h"

#define FBK_NO_CONNECTION 0xffffffffu
/* of these for fences, barriers and recovery adds (INV-R3) */
#define FBK_PLACED_RESERVE 4096u
/* larger ones are received into a buffer of their own */
#define FBK_SMALL_FRAME_BYTES 65536u
#define FBK_COLD_FRAME_BYTES_MAX 16384u
#define FBK_OUTPUT_BLOCK_BYTES 65536u
#define FBK_OUTPUT_BLOCK_KINDS 2u /* small ones and those */
#define FBK_DIRECT_SEND_BYTES_MIN 16384u
/* a refused connection may read its last frame for so long */
#define FBK_LINGER_US 2000000u
/* what a refused frame counts more than another one, in a connection's turn */
#define FBK_REFUSED_FRAMES 15u
#define FBK_RATE_AGE_US 250000u /* the rate of a younger frame says nothing yet */
/* times the least rate: slower frames are closed while others wait for memory */
#define FBK_CONTENDED_RATES 16u
/* frames that get FBK_SMALL_FRAME_BYTES over the bound, to show whether they are slow */
#define FBK_TRIALS_MAX 256u
/* a peer that has read so much restarts the clock of its write_timeout */
#define FBK_READ_STEP_BYTES 4096u
/* a peer that has not, for so long, is cut before those that read */
#define FBK_STALLED_US 1000000u
/* memory is given back when so much less is in use than before */
#define FBK_TRIM_BYTES (8u << 20)

enum fbk_connection_state {
    FBK_CONNECTION_FREE,
    FBK_CONNECTION_MAGIC,
    FBK_CONNECTION_HELLO,
    FBK_CONNECTION_OPEN,
    FBK_CONNECTION_DISCARD, /* its last frame is on its way; what it sends is thrown away */
    /* disconnected; its CANCEL still needs room in the request ring */
    FBK_CONNECTION_GONE,
};

/* Why a connection's input waits. */
#define FBK_BLOCKED_ADD 1u     /* credit or room in the add ring */
#define FBK_BLOCKED_REQUEST 2u /* room in the request ring */
#define FBK_BLOCKED_PENDING 4u /* too many unanswered requests */
#define FBK_BLOCKED_OUTPUT 8u  /* it does not read its replies */
#define FBK_BLOCKED_BUDGET 16u /* a large frame waits for memory */
#define FBK_BLOCKED_COLD 32u   /* Python has its request */
#define FBK_BLOCKED_DRAIN 64u
/* as many requests of Apache's clients as may be are under way */
#define FBK_BLOCKED_CONTEXT 128u
#define FBK_BLOCKED_TURN 256u  /* it had its turn: others go first */
#define FBK_BLOCKED_QUOTA 512u /* its principal has added more than it may */

/* A connection stands in at most one line; those for room in a ring exist once for each lane. */
enum fbk_line {
    FBK_LINE_NONE,
    FBK_LINE_BUDGET,
    FBK_LINE_READY,
    FBK_LINE_QUOTA,
    /* while those in FBK_LINE_QUOTA have their turns: who got none */
    FBK_LINE_QUOTA_NOT_YET,
    FBK_LINE_CANCEL,
    FBK_LINE_CONTEXT,
    FBK_LINE_APACHE_ADDS, /* as many as may be are in progress */
    FBK_LINE_APACHE_READS,
    FBK_LINE_ADD, /* + the lane's number */
    FBK_LINE_REQUEST = FBK_LINE_ADD + FBK_PAIRS_MAX,
    FBK_LINE_COUNT = FBK_LINE_REQUEST + FBK_PAIRS_MAX,
};

struct fbk_connection {
    int32_t fd;
    uint32_t generation; /* rises with each use of the slot, never used again */
    uint8_t state;
    uint8_t line;
    uint16_t blocked;        /* FBK_BLOCKED_* */
    bool is_paused;          /* as Python was told */
    bool is_busy;            /* the transport still has bytes: nothing is sent past it */
    bool is_dirty;           /* in worker->dirty */
    bool is_own_buffer;      /* input is a large frame that is received in place */
    uint8_t lane;            /* that its last request went to, or waits for */
    uint32_t next, previous; /* in its line */
    uint32_t pending;        /* unanswered requests */
    uint32_t polls;          /* of these, long polls */
    uint32_t input_from, input_used, input_size_bytes;
    /* of the frame that is being assembled; 0 = its length is not known yet */
    uint32_t frame_bytes;
    uint32_t output_used, output_size_bytes;
    uint32_t todo;        /* events to report */
    uint32_t deadline_us; /* low bits of the clock; counts only with has_deadline */
    uint32_t blocked_us;  /* since when it stands in its line */
    uint32_t frame_us;    /* since when its frame is under way and not kept waiting by us */
    uint32_t frame_used;  /* what arrived of it since */
    /* since when its peer has read less than FBK_READ_STEP_BYTES of what the transport has */
    uint32_t read_us;
    uint32_t read_mark;      /* what it had read then, as the kernel counts it */
    uint32_t received_sweep; /* of the last byte, or of the beginning */
    bool has_deadline;
    uint8_t poll_lanes;    /* a bit for each lane that may have a long poll of it */
    bool is_apache;        /* it speaks Apache's protocols */
    bool is_polled;        /* fbk_worker_poll receives from it, not Python */
    bool has_ended;        /* its peer has, or it is broken: nothing more is received */
    bool is_watched;       /* by worker->poll_fd */
    bool is_trial;         /* one of FBK_TRIALS_MAX */
    bool is_awaited;       /* its next bytes are not to be received yet */
    uint8_t rights;        /* FBK_RIGHT_* (INV-N2) */
    uint8_t tagged_rights; /* the same, for the ledgers in `tags` (INV-N4) */
    bool quota_is_of_add;
    bool is_secure;          /* a transport encrypts: nothing is sent to the socket from here */
    uint32_t contexts;       /* of its requests, if it is Apache's: the first of a list */
    uint32_t quota;          /* of its principal; 0: none */
    int64_t quota_ledger_id; /* of the add or fence that waits for that quota */
    /* the ledger that it recovers, + 1, as an audit was told; 0: none */
    uint64_t recovered;
    uint64_t handed_bytes; /* to the transport, which is busy with them */
    struct fbk_tags *tags; /* NULL: none was shown */
    uint8_t *input;
    uint8_t *output;
};
_Static_assert(sizeof(struct fbk_connection) <= 224, "connections are many");

/* What was placed into the add ring, in its order: all that an ack needs, without touching the ring
 * again. */
struct fbk_placed {
    uint64_t request_id;
    uint32_t slot;
    uint32_t generation;
    uint32_t received_us;
    uint32_t size_bytes;
    uint32_t kind;
    uint32_t reserved;
};

struct fbk_line_ends {
    uint32_t first, last;
    uint32_t count;
};

/* What lies between this worker and one journal/index pair.  Lanes know nothing of each other: each
 * has an order, credit and cursors of its own, so a pair that stands still holds up only
 * connections whose next request is for it. */
struct fbk_lane {
    struct fbk_worker_segment *segment;
    const struct fbk_journal_segment *journal;
    const struct fbk_index_segment *index;
    struct fbk_ring add_ring;
    struct fbk_ring request_ring;
    struct fbk_ring reply_ring;
    int32_t journal_bell_fd, index_bell_fd;
    uint8_t number;

    /* The add ring: positions in bytes, private copies of what is published. */
    uint64_t written, published_written, replied, indexed;
    uint64_t cost_written, cost_granted;
    uint64_t add_sequence;
    uint64_t request_written, published_request_written, request_consumed, request_sequence;
    uint64_t reply_consumed;
    uint64_t descriptors_consumed, exceptions_consumed;
    uint64_t journal_rung, index_rung;
    uint64_t reads_only; /* as it was when connections last had their turn */
    bool is_starved;

    struct fbk_placed *placed;
    uint32_t placed_first, placed_count; /* first is reduced by the mask only when used */
};

/* ------------ Apache's clients */

#define FBK_NO_CONTEXT 0xffffffffu
#define FBK_APACHE_BATCH_ENTRIES_MAX 8192u     /* as many as one of our batches has */
#define FBK_APACHE_PAGE_RANGES 16384u          /* of a list, in one answer of an index */
#define FBK_APACHE_LISTS 8u                    /* under way that have a page already */
#define FBK_APACHE_LIST_RANGES_MAX (1u << 20)  /* of one list; 16 bytes each */
#define FBK_APACHE_LISTS_RANGES_MAX (1u << 21) /* of all of them */

/* Which answer a context waits for. */
enum fbk_apache_step {
    FBK_STEP_LAST,  /* it is the answer */
    FBK_STEP_FENCE, /* then a batch is read */
    FBK_STEP_POLL,  /* then an entry is read */
    FBK_STEP_PAGE,  /* then the next page, unless it was the last */
};

struct fbk_apache_context {
    struct fbk_apache_echo echo;
    uint32_t generation;               /* rises with each use: a late answer names an older one */
    uint32_t slot;                     /* of its connection; FBK_NO_CONNECTION: it is free */
    uint32_t next, previous;           /* of its connection's, or of the free ones */
    uint32_t line_next, line_previous; /* of those that wait for room in a request ring */
    uint32_t received_us;
    uint32_t flags; /* FBK_APACHE_* */
    int64_t ledger_id;
    int64_t entry_id;
    union {
        int64_t previous_lac;   /* polls */
        int64_t size_bytes_max; /* batches: of the whole reply, as Apache counts */
        int64_t first_entry_id; /* lists: of the next page */
    };
    uint32_t count_max; /* batches */
    uint8_t step;       /* FBK_STEP_* */
    uint8_t lane;       /* whose line it stands in */
    uint8_t list;       /* its memory, + 1; 0 = none */
    bool is_in_line;
};
_Static_assert(sizeof(struct fbk_apache_context) <= 112, "contexts are many");

/* The ranges of a list whose pages are still coming. */
struct fbk_apache_list {
    int64_t *ranges; /* NULL: free */
    uint32_t count, room;
};

/* A read that waits for the LAC to pass a value. */
static inline bool
fbk_apache_is_poll(uint32_t operation, uint32_t flags)
{
    return operation == FBK_APACHE_READ &&
           (flags & (FBK_APACHE_HAS_PREVIOUS_LAC | FBK_APACHE_FENCE)) ==
               FBK_APACHE_HAS_PREVIOUS_LAC;
}

struct fbk_context_line {
    uint32_t first, last;
};

/* A worker's part for Apache's clients. */
struct fbk_worker_apache {
    struct fbk_apache_context *contexts;
    uint32_t context_count; /* ever used: those behind it were never touched */
    uint32_t free_first;    /* the one freed last comes first: it is still in the cache */
    uint32_t used;
    uint32_t adds, reads, polls; /* of those in use */
    /* one was given back since those who wait for one had their turn */
    bool freed;
    struct fbk_context_line lines[FBK_PAIRS_MAX];
    struct fbk_apache_list lists[FBK_APACHE_LISTS];
    uint64_t list_ranges; /* room of all of them */
    uint8_t *sizes;       /* of the entries of one batch reply: a copy that nobody changes */
    uint8_t *frame;       /* a large reply until the socket has it */
};

/* ------------ digests */

/* What is known of the digests of ledgers that Apache's clients add to: their frames do not name
 * them, metadata does, and the supervisor reads that.
 *
 * A table of sets of four, one cache line each: nothing is allocated, a ledger that finds its set
 * full takes the place of another.  Who is not in it is not known, and asked for: nothing hangs
 * on remembering. */
#define FBK_DIGEST_WAYS 4u
#define FBK_DIGESTS_WANTED_MAX 1024u /* ledgers that Python has not asked for yet */
/* before a ledger without an answer is asked for again */
#define FBK_DIGESTS_REPEAT_S 5u
/* before a known one is: an id may be another ledger's by then */
#define FBK_DIGESTS_OLD_S 600u

struct fbk_digest_slot {
    uint64_t key; /* the ledger's id + 1; 0 = free */
    uint32_t request_at_s;
    /* FBK_DIGEST_*; NONE until it is known, and where metadata names none */
    uint8_t digest_type;
    uint8_t reserved[3];
};
_Static_assert(FBK_DIGEST_WAYS * sizeof(struct fbk_digest_slot) == FBK_CACHE_LINE_BYTES,
               "a set is a cache line");

struct fbk_digests {
    struct fbk_digest_slot *slots;
    uint32_t set_mask;
    uint32_t turn;  /* whose place is taken next */
    uint32_t now_s; /* as of the last sweep */
    uint32_t wanted_count;
    int64_t wanted[FBK_DIGESTS_WANTED_MAX];
};

/* ------------ quotas */

/* What a principal may still add, filled up as time passes.  An add is let through while there is
 * anything left, and may leave a debt: so one that is larger than a second's bytes passes, too. */
struct fbk_quota {
    double adds_per_s, bytes_per_s, ledgers_per_s; /* 0: no bound */
    double adds, bytes, ledgers;
    uint64_t filled_ns;
};

/* The ledgers that a principal with a rate of ledgers added to, or fenced, last.  An add to any
 * other ledger, or its fence, begins it, and takes one from the quota: a ledger that the bookie
 * does not have has a place here from then on.
 *
 * A table of sets, one cache line each; in a set the ledger added to last comes first, and a new
 * one takes the place of the last.  A forgotten ledger only costs its principal a beginning again.
 * Pages of this table are touched only as used. */
#define FBK_QUOTA_SETS 512u
#define FBK_QUOTA_WAYS 8u
struct fbk_quota_ledgers {
    uint64_t keys[FBK_QUOTA_SETS][FBK_QUOTA_WAYS]; /* a ledger's id + 1; 0 = free */
};
_Static_assert(FBK_QUOTA_WAYS * sizeof(uint64_t) == FBK_CACHE_LINE_BYTES, "a set is a cache line");

/* ------------ a worker */

struct fbk_worker {
    struct fbk_worker_options options;
    struct fbk_lane lanes[FBK_PAIRS_MAX];
    uint32_t lane_count;
    struct fbk_stats *stats; /* in the segment of lane 0 */
    bool is_draining, is_poisoned;

    int32_t poll_fd; /* an epoll: of connections that are polled and not blocked */
    struct fbk_connection *connections;
    uint32_t *free_slots; /* a circle: the slot that has rested longest comes first */
    uint32_t free_first, free_count;
    uint32_t slots_used; /* slots ever used: what a sweep walks */
    uint32_t connection_count;
    struct fbk_line_ends lines[FBK_LINE_COUNT];
    const struct fbk_connection *serving; /* whose turn it is: it was first in its line */
    uint64_t pending, polls;
    struct fbk_worker_apache apache;
    struct fbk_digests digests;
    struct fbk_quota *quotas;                /* FBK_QUOTAS_MAX; NULL: nobody has one */
    struct fbk_quota_ledgers *quota_ledgers; /* as many */
    uint64_t quotas_served_ns;
    struct fbk_worker_audit *audits; /* FBK_WORKER_AUDITS_MAX */
    uint32_t audit_count;
    uint64_t audits_dropped;

    uint32_t *dirty;
    uint32_t dirty_count;
    struct fbk_worker_event *events;
    uint32_t event_count;

    /* FBK_SMALL_FRAME_BYTES of room for what a connection had before, then the buffer */
    uint8_t *receive_memory;
    const struct fbk_connection *over_budget; /* whose frame may take more than is left */
    /* of all connections' inputs, against partial_frames_bytes_max */
    uint64_t input_bytes;
    /* of all connections' outputs and what the transports have, against unread_replies_bytes_max */
    uint64_t reply_bytes;
    /* of both: since the last sweep, and before, since memory was given back */
    uint64_t held_peak_bytes, held_peak_before_bytes;
    uint32_t trial_count;
    uint32_t closed_none_us; /* when no slow frame was found last, and whether that is so */
    bool closed_none;
    uint32_t sweeps;                                /* from 1 on: a clock of seconds, about */
    uint32_t turn_slot;                             /* the connection that was received from last */
    uint32_t turn_frames, turn_bytes;               /* what was taken from it since */
    uint8_t *output_blocks[FBK_OUTPUT_BLOCK_KINDS]; /* free ones: the first of a list */
    uint32_t output_block_counts[FBK_OUTPUT_BLOCK_KINDS];
    uint32_t now_us;
    bool lacks_credit;     /* the last add that found no room did so for want of credit */
    uint64_t clock_ns;     /* now_us, in full */
    uint64_t progress_ns;  /* the last bytes or the last answers, for spin_us */
    uint64_t continued_ns; /* the SIGCONT that was noted last */
    struct fbk_flight_recorder recorder;
};

void fbk_worker_note_pause(struct fbk_worker *worker, uint64_t now_ns, uint32_t before_us);

/* The time of this call, for all that it does. */
static inline void
fbk_worker_clock(struct fbk_worker *worker)
{
    uint64_t now_ns = fbk_now_ns();
    if (FBK_UNLIKELY(atomic_load_explicit(&fbk_flight_continued_ns, memory_order_relaxed) !=
                     worker->continued_ns))
        fbk_worker_note_pause(worker, now_ns, worker->now_us);
    worker->now_us = (uint32_t)(now_ns / 1000);
    worker->clock_ns = now_ns;
}

static inline uint64_t
fbk_connection_id(uint32_t slot, uint32_t generation)
{
    return (uint64_t)generation << 32 | slot;
}

static inline struct fbk_connection *
fbk_connection_at(struct fbk_worker *worker, uint32_t slot)
{
    FBK_ASSERT(slot < worker->slots_used && worker->connections[slot].state != FBK_CONNECTION_FREE);
    return &worker->connections[slot];
}

static inline uint32_t
fbk_connection_slot(const struct fbk_worker *worker, const struct fbk_connection *connection)
{
    return (uint32_t)(connection - worker->connections);
}

static inline bool
fbk_connection_is_alive(const struct fbk_connection *connection)
{
    return connection->state != FBK_CONNECTION_FREE && connection->state != FBK_CONNECTION_GONE;
}

/* Nobody knows who it is yet, and it is served nothing (INV-N6).  Where clients do not authenticate
 * themselves there are none. */
static inline bool
fbk_connection_is_stranger(const struct fbk_connection *connection)
{
    return connection->rights == 0;
}

/* Its deadline is the one from its beginning. */
static inline bool
fbk_connection_is_new(const struct fbk_connection *connection)
{
    return connection->state != FBK_CONNECTION_OPEN || fbk_connection_is_stranger(connection);
}

/* The lane of the pair that a ledger lives in. */
static inline struct fbk_lane *
fbk_lane_of(struct fbk_worker *worker, int64_t ledger_id)
{
    if (worker->lane_count == 1)
        /* nearly every bookie: 4 of 65 ns an add less than with the hash */
        return worker->lanes;
    return &worker->lanes[worker->options.pair_of_shard[fbk_shard_of(ledger_id)]];
}

static inline void
fbk_worker_note(struct fbk_worker *worker, uint32_t counter)
{
    fbk_count(worker->stats, counter, 1);
}

/* Memory for inputs and replies was taken. */
static inline void
fbk_worker_note_held(struct fbk_worker *worker)
{
    uint64_t held = worker->input_bytes + worker->reply_bytes;
    if (held > worker->held_peak_bytes)
        worker->held_peak_bytes = held;
}

/* Each file uses only those above it. */

/* ---- worker/count.c */
/* In the order of their slots (fastbk/observe/names.py): four counters each, but two of those whose
 * successes are histograms. */
enum fbk_operation {
    FBK_OPERATION_ADD,
    FBK_OPERATION_READ,
    FBK_OPERATION_FENCE,
    FBK_OPERATION_POLL,
    FBK_OPERATION_LAC_READ,
    FBK_OPERATION_LAC_WRITE,
    FBK_OPERATION_FORCE,
    FBK_OPERATION_LIST,
    FBK_OPERATION_RECOVERY_ADD, /* an add, which is counted as one, too */
    FBK_OPERATION_NONE,         /* not counted here */
};

static inline bool
fbk_kind_is_add(uint32_t kind)
{
    return kind == FBK_KIND_ADD || kind == FBK_KIND_ADD_BATCH;
}

/* Of a record or of its reply. */
enum fbk_operation fbk_operation_of_kind(uint32_t kind);
/* Unless it is a step of one of Apache's requests, which ends elsewhere. */
void fbk_worker_finish_step(struct fbk_worker *worker, const struct fbk_connection *connection,
                            enum fbk_operation operation, bool is_ok, uint32_t received_us);
/* Refused before it had a record. */
void fbk_worker_finish_refused(struct fbk_worker *worker, const struct fbk_connection *connection,
                               const struct fbk_request *request);

/* Apache's: counts what is asked for, once. */
void fbk_worker_apache_count(struct fbk_worker *worker, const struct fbk_apache_request *message);
/* The answer to a request that had a context, and to one that had none. */
void fbk_worker_apache_finish(struct fbk_worker *worker, const struct fbk_apache_context *context,
                              uint32_t apache_status);
void fbk_worker_apache_finish_refused(struct fbk_worker *worker,
                                      const struct fbk_apache_request *message,
                                      uint32_t apache_status);
/* Bytes of entries that were sent. */
void fbk_worker_apache_sent(struct fbk_worker *worker, uint32_t protocol, uint64_t entry_bytes);

/* Gauges: what is under way, and what waits. */
void fbk_worker_set_gauges(struct fbk_worker *worker);
/* For the flight recorder. */
void fbk_worker_note_answer(struct fbk_worker *worker, uint64_t published_ns);
void fbk_worker_note_wait(struct fbk_worker *worker, uint32_t blocked_us);

/* ---- worker/digests.c */
int32_t fbk_digests_init(struct fbk_worker *worker);
void fbk_digests_free(struct fbk_worker *worker);
void fbk_digests_tick(struct fbk_worker *worker);
/* The type of a ledger's digest, NONE when nobody knows (yet); true when it has just become
 * wanted. */
bool fbk_digests_find(struct fbk_digests *digests, int64_t ledger_id, uint32_t *digest_type);
/* An entry does not have the digest that its ledger is known to have: soon asked for again.  True
 * as above. */
bool fbk_digests_doubt(struct fbk_digests *digests, int64_t ledger_id);

/* ---- worker/connections.c */
void fbk_line_join(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line,
                   bool in_front);
void fbk_line_leave(struct fbk_worker *worker, struct fbk_connection *connection);

static inline struct fbk_connection *
fbk_line_first(struct fbk_worker *worker, uint32_t line)
{
    uint32_t slot = worker->lines[line].first;
    return slot == FBK_NO_CONNECTION ? NULL : &worker->connections[slot];
}

/* A deadline so long from now. */
void fbk_connection_deadline(struct fbk_worker *worker, struct fbk_connection *connection,
                             uint32_t after_us);
/* The time for its hello or its handshake begins; a stranger's has begun with its connection. */
void fbk_connection_begin(struct fbk_worker *worker, struct fbk_connection *connection);

/* It has output or events. */
static inline void
fbk_connection_mark(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->is_dirty)
        return;
    connection->is_dirty = true;
    worker->dirty[worker->dirty_count++] = fbk_connection_slot(worker, connection);
}

static inline void
fbk_connection_todo(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t todo)
{
    connection->todo |= todo;
    fbk_connection_mark(worker, connection);
}

/* Has poll_fd watch it, or no longer. */
void fbk_connection_watch(struct fbk_worker *worker, struct fbk_connection *connection,
                          bool is_wanted);
/* Its events, the change between paused and reading among them; they are Python's from now on. */
uint32_t fbk_connection_take_todo(struct fbk_worker *worker, struct fbk_connection *connection);
/* Keeps those marked that have events; returns their number. */
uint32_t fbk_dirty_prune(struct fbk_worker *worker);
/* Turns the events of all marked connections into worker->events. */
void fbk_dirty_report(struct fbk_worker *worker);
/* Rooms are waited for in the lines of connection->lane. */
void fbk_connection_block(struct fbk_worker *worker, struct fbk_connection *connection,
                          uint32_t why);
/* Waits in the line of those that want what others of Apache's requests have. */
void fbk_connection_block_in(struct fbk_worker *worker, struct fbk_connection *connection,
                             uint32_t line);
bool fbk_connections_wait_for_contexts(const struct fbk_worker *worker);
/* Takes one reason away; when none is left the connection joins the line of those that go on. */
void fbk_connection_unblock(struct fbk_worker *worker, struct fbk_connection *connection,
                            uint32_t why);
/* At a sweep: gives memory back to the system once much less is in use. */
void fbk_memory_return(struct fbk_worker *worker);

/* ---- worker/output.c */
/* Room for size_bytes at the end of the output, to be filled at once; NULL when it is not to get
 * any more. */
uint8_t *fbk_output_room(struct fbk_worker *worker, struct fbk_connection *connection,
                         uint32_t size_bytes);
void fbk_output_status(struct fbk_worker *worker, struct fbk_connection *connection,
                       uint64_t request_id, uint32_t status);
void fbk_output_frame(struct fbk_worker *worker, struct fbk_connection *connection,
                      const uint8_t *frame, uint32_t size_bytes);
/* Sends what waits, if the transport is empty. */
void fbk_output_flush(struct fbk_worker *worker, struct fbk_connection *connection);
/* Sends the output of all marked connections. */
void fbk_dirty_flush(struct fbk_worker *worker);
void fbk_output_drop(struct fbk_worker *worker, struct fbk_connection *connection);
/* Ends a connection at once. */
void fbk_output_cut(struct fbk_worker *worker, struct fbk_connection *connection);
void fbk_output_blocks_free(struct fbk_worker *worker);
/* At a sweep: cuts a connection whose peer does not read its replies. */
void fbk_reads_check(struct fbk_worker *worker, struct fbk_connection *connection);

/* ---- worker/input.c */
/* Keeps the bytes behind the last frame that was taken. `data` may lie in the connection's own
 * input. */
void fbk_input_keep(struct fbk_worker *worker, struct fbk_connection *connection,
                    const uint8_t *data, uint32_t size_bytes);
void fbk_input_append(struct fbk_worker *worker, struct fbk_connection *connection,
                      const uint8_t *data, uint32_t size_bytes);
void fbk_input_drop(struct fbk_worker *worker, struct fbk_connection *connection);
/* The buffer of a large frame is full, and the frame is not: makes it larger, or has the connection
 * wait. */
void fbk_input_grow(struct fbk_worker *worker, struct fbk_connection *connection);
/* Free memory for frames: those that wait for it, in order. */
void fbk_budget_serve(struct fbk_worker *worker);

/* A frame of which `used` bytes are there begins, or goes on after we kept it waiting. */
void fbk_frame_begin(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t used);
/* More of it arrived. */
void fbk_frame_arrived(struct fbk_worker *worker, struct fbk_connection *connection,
                       uint32_t size_bytes);
/* Closes the slowest of those whose frame is under way, for another connection's; false: none is
 * slow. */
bool fbk_close_slowest(struct fbk_worker *worker, const struct fbk_connection *wanting);
/* Gives up a frame under way, and its connection with it. */
void fbk_input_cut(struct fbk_worker *worker, struct fbk_connection *connection);

/* What became of a request. */
enum fbk_outcome {
    FBK_DONE,     /* placed or answered */
    FBK_WAIT_ADD, /* no credit or no room: try again later */
    FBK_WAIT_REQUEST,
    FBK_WAIT_CONTEXT, /* in one of the lines from FBK_LINE_CONTEXT on, in this order */
    FBK_WAIT_APACHE_ADDS,
    FBK_WAIT_APACHE_READS,
    FBK_FOR_PYTHON, /* for Python */
    FBK_CLOSE,      /* to be closed without a word */
    FBK_WAIT_QUOTA,
    /* + a status: the caller answers with it, in the client's protocol */
    FBK_ANSWER = 64,
};

static inline enum fbk_outcome
fbk_answer(uint32_t status)
{
    return (enum fbk_outcome)(FBK_ANSWER + status);
}

/* ---- worker/lanes.c */
int32_t fbk_lane_open(struct fbk_worker *worker, uint32_t number);
void fbk_lane_close(struct fbk_lane *lane);
/* Whether a record of this size may go into the add ring now; normal adds need credit for its cost,
 * too. */
bool fbk_get_add_room(struct fbk_worker *worker, struct fbk_lane *lane, bool is_normal,
                      uint64_t size_bytes, uint64_t cost);
/* A record's header, but for its payload. */
void fbk_start_record(struct fbk_record *record, const struct fbk_worker *worker,
                      const struct fbk_connection *connection, const struct fbk_request *request,
                      uint8_t kind);
/* There is room; the payload lies behind `written` in the add ring already. */
enum fbk_outcome fbk_place_add(struct fbk_worker *worker, struct fbk_lane *lane,
                               struct fbk_connection *connection, struct fbk_record *record);
enum fbk_outcome fbk_place_request(struct fbk_worker *worker, struct fbk_lane *lane,
                                   struct fbk_connection *connection, struct fbk_record *record,
                                   const void *payload, uint32_t payload_bytes);
bool fbk_worker_place_cancel(struct fbk_worker *worker, struct fbk_lane *lane,
                             uint64_t connection_id);
/* Moves the cursors that others see and rings their bells. */
void fbk_worker_publish(struct fbk_worker *worker);
/* Reads indexed, credit and the request ring's cursor again; false: poisoned.  *moved says whether
 * any of them moved. */
bool fbk_lane_refresh(struct fbk_worker *worker, struct fbk_lane *lane, bool *moved);
/* Tells the indexes whether connections wait for room; true when room may have come before they
 * could know. */
bool fbk_lanes_starve(struct fbk_worker *worker);
/* After the tickets say asleep: has anything come that nobody will ring for? */
bool fbk_lanes_have_news(const struct fbk_worker *worker);
/* There is one bell, but a ticket in every lane's segment: each journal and index sees only its
 * own. */
void fbk_lanes_sleep(struct fbk_worker *worker);
void fbk_lanes_wake(struct fbk_worker *worker);
/* Whether to poll instead: an add is under way, and spin_us are not over. */
bool fbk_lanes_may_spin(const struct fbk_worker *worker, uint64_t now_ns);

/* ---- worker/quota.c */
/* without memory one of both tables stays NULL */
void fbk_quotas_init(struct fbk_worker *worker);
void fbk_quotas_free(struct fbk_worker *worker);
/* Whether a connection's principal may place this add or fence now; if not, the connection is to
 * wait in FBK_LINE_QUOTA. */
bool fbk_quota_allows(struct fbk_worker *worker, struct fbk_connection *connection,
                      const struct fbk_request *request);
/* Whether what was not allowed would be now. */
bool fbk_quota_may_go_on(struct fbk_worker *worker, const struct fbk_connection *connection);
/* An add of so many entries is placed, or a fence: it has none. */
void fbk_quota_charge(struct fbk_worker *worker, const struct fbk_connection *connection,
                      const struct fbk_request *request, uint32_t entries);

/* ---- worker/rights.c */
/* The right that a request needs, FBK_RIGHT_*; 0: none (INV-N2). */
uint8_t fbk_right_for(const struct fbk_request *request);
uint8_t fbk_apache_right_for(const struct fbk_apache_request *message);

/* ---- worker/tags.c */
/* Whether a right that a connection has not for every ledger is there for this one (INV-N4). */
bool fbk_tags_allow(const struct fbk_connection *connection, uint8_t right, int64_t ledger_id);
void fbk_tags_drop(struct fbk_connection *connection);

/* ---- worker/audit.c */
void fbk_audit_note(struct fbk_worker *worker, const struct fbk_connection *connection,
                    uint32_t operation, int64_t ledger_id, uint32_t status);
/* A request that needs a right which its client has not. */
void fbk_audit_denial(struct fbk_worker *worker, const struct fbk_connection *connection,
                      uint8_t right, int64_t ledger_id);
/* A recovery add: the first of a ledger is noted. */
void fbk_audit_recovery(struct fbk_worker *worker, struct fbk_connection *connection,
                        int64_t ledger_id);

/* ---- worker/dispatch.c */
enum fbk_outcome fbk_worker_dispatch(struct fbk_worker *worker, struct fbk_connection *connection,
                                     const struct fbk_request *request);

/* ---- worker/contexts.c */
/* What a reply repeats of its request. */
static inline struct fbk_apache_echo
fbk_apache_echo_of(const struct fbk_apache_request *message)
{
    return (struct fbk_apache_echo){
        .protocol = message->protocol,
        .version = message->version,
        .operation = message->operation,
        .transaction_id = message->transaction_id,
        .ledger_id = message->echo_ledger_id,
        .entry_id = message->echo_entry_id,
    };
}

int32_t fbk_contexts_init(struct fbk_worker *worker);
void fbk_contexts_free(struct fbk_worker *worker);
/* All of a connection that is gone. */
void fbk_contexts_drop(struct fbk_worker *worker, struct fbk_connection *connection);
/* NULL: as many are in use as may be; those for long polls are at most half of them. */
struct fbk_apache_context *fbk_context_new(struct fbk_worker *worker,
                                           struct fbk_connection *connection,
                                           const struct fbk_apache_request *message);
void fbk_context_end(struct fbk_worker *worker, struct fbk_connection *connection,
                     struct fbk_apache_context *context);
uint64_t fbk_context_id(const struct fbk_worker *worker, const struct fbk_apache_context *context);
/* The context that an id names, if it is still that request of this connection; else NULL. */
struct fbk_apache_context *fbk_context_of(struct fbk_worker *worker,
                                          const struct fbk_connection *connection, uint64_t id);
/* Adds a page's ranges to a list's.  FBK_S_OK, or the status that the list ends with: there is no
 * memory for it. */
uint32_t fbk_context_add_ranges(struct fbk_worker *worker, struct fbk_apache_context *context,
                                const uint8_t *ranges, uint32_t range_count);
void fbk_context_join_line(struct fbk_worker *worker, struct fbk_connection *connection,
                           struct fbk_apache_context *context, bool in_front);
void fbk_context_leave_line(struct fbk_worker *worker, struct fbk_connection *connection,
                            struct fbk_apache_context *context);
/* Its next step has to wait for room in the lane's request ring; until then it counts as a request
 * under way. */
void fbk_context_wait_for_room(struct fbk_worker *worker, struct fbk_connection *connection,
                               struct fbk_apache_context *context);

/* ---- worker/apache.c */
/* Gives those that wait in this lane's line their turn, as far as there is room. */
void fbk_contexts_serve(struct fbk_worker *worker, struct fbk_lane *lane);
/* A frame's body, without its length. */
enum fbk_outcome fbk_worker_apache_dispatch(struct fbk_worker *worker,
                                            struct fbk_connection *connection, const uint8_t *body,
                                            uint32_t body_bytes);
/* One of our answers to a context's request: a status; or a frame that an index wrote (false: it
 * can't be one). */
void fbk_worker_apache_status(struct fbk_worker *worker, struct fbk_connection *connection,
                              uint64_t request_id, uint32_t status);
bool fbk_worker_apache_frame(struct fbk_worker *worker, struct fbk_connection *connection,
                             const uint8_t *frame, uint32_t frame_bytes);

/* ---- worker/receive.c */
/* size_bytes lie in the shared buffer, or in its own: takes what is whole of them. */
void fbk_worker_take(struct fbk_worker *worker, struct fbk_connection *connection,
                     uint32_t size_bytes);
/* Goes on with the bytes a connection had to keep.  True when at least one frame was taken. */
bool fbk_worker_go_on(struct fbk_worker *worker, struct fbk_connection *connection);

/* ---- worker/answers.c */
/* All batches and replies that are there.  False: poisoned. */
bool fbk_answers_take(struct fbk_worker *worker);

/* ---- worker/worker.c */
/* Has indexes cancel what closed connections wait for there, as far as there is room, and frees
 * their slots. */
void fbk_cancels_serve(struct fbk_worker *worker);
