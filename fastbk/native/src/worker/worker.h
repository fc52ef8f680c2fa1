/* A network worker's state: connections, and for each journal/index pair a lane: its two rings, what was placed in them and
 * not yet answered.
 *
 * One thread.  Everything that waits has a bound: slots, input bytes (INV-B1), output bytes, placed records, ring bytes.
 * Cursors of others are checked when read; a value that cannot be is FBK_E_POISONED, never an assert. */
#ifndef FBK_WORKER_H
#define FBK_WORKER_H

#include "base/flight.h"
#include "base/ring.h"
#include "base/shard.h"
#include "base/stats.h"
#include "wire/wire.h"
#include "worker/apache.h"
#include "worker/digests.h"

#include "boundary/stats_names.h"
#include "boundary/worker.h"

#define FBK_NO_CONNECTION 0xffffffffu
#define FBK_PLACED_RESERVE 4096u      /* of these for fences, barriers and recovery adds (INV-R3) */
#define FBK_SMALL_FRAME_BYTES 65536u  /* larger ones are received into a buffer of their own */
#define FBK_COLD_FRAME_BYTES_MAX 16384u
#define FBK_OUTPUT_BLOCK_BYTES 65536u
#define FBK_OUTPUT_BLOCKS_KEPT 32u
#define FBK_DIRECT_SEND_BYTES_MIN 16384u
#define FBK_LINGER_US 2000000u        /* a refused connection may read its last frame for so long */
#define FBK_REFUSED_FRAMES 15u        /* what a refused frame counts more than another one, in a connection's turn */
#define FBK_RATE_AGE_US 250000u       /* the rate of a younger frame says nothing yet */
#define FBK_CONTENDED_RATES 16u       /* times the least rate: slower frames are closed while others wait for memory */
#define FBK_TRIALS_MAX 256u           /* frames that get FBK_SMALL_FRAME_BYTES over the bound, to show whether they are slow */
#define FBK_READ_STEP_BYTES 4096u     /* a peer that has read so much restarts the clock of its write_timeout */
#define FBK_STALLED_US 1000000u       /* a peer that has not, for so long, is cut before those that read */
#define FBK_TRIM_BYTES (8u << 20)     /* memory is given back when so much less is in use than before */

enum fbk_connection_state {
    FBK_CONNECTION_FREE,
    FBK_CONNECTION_MAGIC,
    FBK_CONNECTION_HELLO,
    FBK_CONNECTION_OPEN,
    FBK_CONNECTION_DISCARD, /* its last frame is on its way; what it sends is thrown away */
    FBK_CONNECTION_GONE,    /* disconnected; its CANCEL still needs room in the request ring */
};

/* Why a connection's input waits. */
#define FBK_BLOCKED_ADD 1u      /* credit or room in the add ring */
#define FBK_BLOCKED_REQUEST 2u  /* room in the request ring */
#define FBK_BLOCKED_PENDING 4u  /* too many unanswered requests */
#define FBK_BLOCKED_OUTPUT 8u   /* it does not read its replies */
#define FBK_BLOCKED_BUDGET 16u  /* a large frame waits for memory */
#define FBK_BLOCKED_COLD 32u    /* Python has its request */
#define FBK_BLOCKED_DRAIN 64u
#define FBK_BLOCKED_CONTEXT 128u /* as many requests of Apache's clients as may be are under way */
#define FBK_BLOCKED_TURN 256u    /* it had its turn: others go first */

/* A connection stands in at most one line; those for room in a ring exist once for each lane. */
enum fbk_line {
    FBK_LINE_NONE,
    FBK_LINE_BUDGET,
    FBK_LINE_READY,
    FBK_LINE_CANCEL,
    FBK_LINE_CONTEXT,
    FBK_LINE_APACHE_ADDS,  /* as many as may be are in progress */
    FBK_LINE_APACHE_READS,
    FBK_LINE_ADD, /* + the lane's number */
    FBK_LINE_REQUEST = FBK_LINE_ADD + FBK_PAIRS_MAX,
    FBK_LINE_COUNT = FBK_LINE_REQUEST + FBK_PAIRS_MAX,
};

struct fbk_connection {
    int32_t fd;
    uint32_t generation;  /* rises with each use of the slot, never used again */
    uint8_t state;
    uint8_t line;
    uint16_t blocked;     /* FBK_BLOCKED_* */
    bool is_paused;       /* as Python was told */
    bool is_busy;         /* the transport still has bytes: nothing is sent past it */
    bool is_dirty;        /* in worker->dirty */
    bool is_own_buffer;   /* input is a large frame that is received in place */
    uint8_t lane;         /* that its last request went to, or waits for */
    uint32_t next, previous; /* in its line */
    uint32_t pending;     /* unanswered requests */
    uint32_t polls;       /* of these, long polls */
    uint32_t input_from, input_used, input_size_bytes;
    uint32_t frame_bytes; /* of the frame that is being assembled; 0 = its length is not known yet */
    uint32_t output_used, output_size_bytes;
    uint32_t todo;        /* events to report */
    uint32_t deadline_us; /* low bits of the clock; counts only with has_deadline */
    uint32_t blocked_us;  /* since when it stands in its line */
    uint32_t frame_us;    /* since when its frame is under way and not kept waiting by us */
    uint32_t frame_used;  /* what arrived of it since */
    uint32_t read_us;     /* since when its peer has read less than FBK_READ_STEP_BYTES of what the transport has */
    uint32_t read_mark;   /* what it had read then, as the kernel counts it */
    uint32_t heard_sweep; /* of the last byte, or of the beginning */
    bool has_deadline;
    uint8_t poll_lanes;   /* a bit for each lane that may have a long poll of it */
    bool is_apache;       /* it speaks Apache's protocols */
    bool is_trial;        /* one of FBK_TRIALS_MAX */
    uint32_t contexts;    /* of its requests, if it is Apache's: the first of a list */
    uint64_t handed_bytes; /* to the transport, which is busy with them */
    uint8_t *input;
    uint8_t *output;
};
_Static_assert(sizeof(struct fbk_connection) <= 224, "connections are many");

/* What was placed into the add ring, in its order: all that an ack needs, without touching the ring again. */
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

/* What lies between this worker and one journal/index pair.  Lanes know nothing of each other: each has an order, credit and
 * cursors of its own, so a pair that stands still holds up only connections whose next request is for it. */
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

struct fbk_worker {
    struct fbk_worker_options options;
    struct fbk_lane lanes[FBK_PAIRS_MAX];
    uint32_t lane_count;
    struct fbk_stats *stats; /* in the segment of lane 0 */
    bool is_draining, is_poisoned;

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

    uint32_t *dirty;
    uint32_t dirty_count;
    struct fbk_worker_event *events;
    uint32_t event_count;

    uint8_t *receive_memory; /* FBK_SMALL_FRAME_BYTES of room for what a connection had before, then the buffer */
    const struct fbk_connection *over_budget; /* whose frame may take more than is left */
    uint64_t input_bytes;    /* of all connections' inputs, against partial_frames_bytes_max */
    uint64_t reply_bytes;    /* of all connections' outputs and what the transports have, against unread_replies_bytes_max */
    uint64_t held_peak_bytes, held_peak_before_bytes; /* of both: since the last sweep, and before, since memory was given back */
    uint32_t trial_count;
    uint32_t closed_none_us; /* when no slow frame was found last, and whether that is so */
    bool closed_none;
    uint32_t sweeps;         /* from 1 on: a clock of seconds, about */
    uint32_t turn_slot;      /* the connection that was received from last */
    uint32_t turn_frames, turn_bytes; /* what was taken from it since */
    uint8_t *output_blocks[FBK_OUTPUT_BLOCKS_KEPT];
    uint32_t output_block_count;
    uint32_t now_us;
    bool lacks_credit;       /* the last add that found no room did so for want of credit */
    uint64_t clock_ns;       /* now_us, in full */
    uint64_t continued_ns;   /* the SIGCONT that was noted last */
    struct fbk_flight_recorder recorder;
};

/* worker/flight.c */
void fbk_worker_note_pause(struct fbk_worker *worker, uint64_t now_ns, uint32_t before_us);
void fbk_worker_note_answer(struct fbk_worker *worker, uint64_t published_ns);
void fbk_worker_note_wait(struct fbk_worker *worker, uint32_t blocked_us);

/* The time of this call, for all that it does. */
static inline void
fbk_worker_clock(struct fbk_worker *worker)
{
    uint64_t now_ns = fbk_now_ns();
    if (FBK_UNLIKELY(atomic_load_explicit(&fbk_flight_continued_ns, memory_order_relaxed) != worker->continued_ns))
        fbk_worker_note_pause(worker, now_ns, worker->now_us);
    worker->now_us = (uint32_t)(now_ns / 1000);
    worker->clock_ns = now_ns;
}

static inline uint64_t
fbk_connection_id(uint32_t slot, uint32_t generation)
{
    return (uint64_t)generation << 32 | slot;
}

/* The lane of the pair that a ledger lives in. */
static inline struct fbk_lane *
fbk_lane_of(struct fbk_worker *worker, int64_t ledger_id)
{
    if (worker->lane_count == 1)
        return worker->lanes; /* nearly every bookie: 4 of 65 ns an add less than with the hash */
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

/* ---- worker/connections.c */
struct fbk_connection *fbk_connection_at(struct fbk_worker *worker, uint32_t slot);
uint32_t fbk_connection_slot(const struct fbk_worker *worker, const struct fbk_connection *connection);
void fbk_line_join(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line, bool in_front);
void fbk_line_leave(struct fbk_worker *worker, struct fbk_connection *connection);
struct fbk_connection *fbk_line_first(struct fbk_worker *worker, uint32_t line);
/* A deadline so long from now. */
void fbk_connection_deadline(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t after_us);
/* Connections with output or events. */
void fbk_connection_mark(struct fbk_worker *worker, struct fbk_connection *connection);
void fbk_connection_todo(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t todo);
/* Its events, the change between paused and reading among them; they are Python's from now on. */
uint32_t fbk_connection_take_todo(struct fbk_connection *connection);
/* Sends the output of all marked connections. */
void fbk_dirty_flush(struct fbk_worker *worker);
/* Keeps those marked that have events; returns their number. */
uint32_t fbk_dirty_prune(struct fbk_worker *worker);
/* Turns the events of all marked connections into worker->events. */
void fbk_dirty_report(struct fbk_worker *worker);
/* Rooms are waited for in the lines of connection->lane. */
void fbk_connection_block(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t why);
/* Waits in the line of those that want what others of Apache's requests have. */
void fbk_connection_block_in(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line);
bool fbk_connections_wait_for_contexts(const struct fbk_worker *worker);
/* Takes one reason away; when none is left the connection joins the line of those that go on. */
void fbk_connection_unblock(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t why);
void fbk_cancel_serve(struct fbk_worker *worker);

/* ---- worker/input.c */
/* Keeps the bytes behind the last frame that was taken. `data` may lie in the connection's own input. */
void fbk_input_keep(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes);
void fbk_input_append(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes);
void fbk_input_drop(struct fbk_worker *worker, struct fbk_connection *connection);
/* It has no more than others any more. */
void fbk_input_over_end(struct fbk_worker *worker, struct fbk_connection *connection);
/* The buffer of a large frame is full, and the frame is not: makes it larger, or has the connection wait. */
void fbk_input_grow(struct fbk_worker *worker, struct fbk_connection *connection);
/* Free memory for frames: those that wait for it, in order. */
void fbk_budget_serve(struct fbk_worker *worker);

/* ---- worker/slow_peers.c */
/* A frame of which `used` bytes are there begins, or goes on after we kept it waiting. */
void fbk_frame_begin(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t used);
/* More of it arrived. */
void fbk_frame_arrived(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes);
/* Closes the slowest of those whose frame is under way, for another connection's; false: none is slow. */
bool fbk_close_slowest(struct fbk_worker *worker, const struct fbk_connection *wanting);
/* The transport has replies from now on. */
void fbk_reads_begin(struct fbk_worker *worker, struct fbk_connection *connection);
/* At a sweep: cuts a connection whose peer does not read them. */
void fbk_reads_check(struct fbk_worker *worker, struct fbk_connection *connection);
/* Has all replies take at most unread_replies_bytes_max with `more_bytes` of this connection's, which may be cut for that. */
void fbk_replies_bound(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t more_bytes);
/* At a sweep: gives memory back to the system once much less is in use. */
void fbk_memory_return(struct fbk_worker *worker);

/* ---- worker/output.c */
/* Ends a connection at once. */
void fbk_output_cut(struct fbk_worker *worker, struct fbk_connection *connection);
/* Room for size_bytes at the end of the output, to be filled at once; NULL when it is not to get any more. */
uint8_t *fbk_output_room(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes);
void fbk_output_status(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id, uint32_t status);
void fbk_output_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame, uint32_t size_bytes);
/* Sends what waits, if the transport is empty. */
void fbk_output_flush(struct fbk_worker *worker, struct fbk_connection *connection);
void fbk_output_drop(struct fbk_worker *worker, struct fbk_connection *connection);

/* ---- worker/receive.c */
/* Goes on with the bytes a connection had to keep.  True when at least one frame was taken. */
bool fbk_worker_go_on(struct fbk_worker *worker, struct fbk_connection *connection);
/* The last frame for this connection: its status goes out with request id `request_id`, then nothing more is taken. */
void fbk_connection_refuse(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id, uint32_t status);

/* ---- worker/dispatch.c */
enum fbk_taken {
    FBK_TAKEN,          /* placed or answered */
    FBK_TAKEN_WAIT_ADD, /* no credit or no room: try again later */
    FBK_TAKEN_WAIT_REQUEST,
    FBK_TAKEN_WAIT_CONTEXT, /* in one of the lines from FBK_LINE_CONTEXT on, in this order */
    FBK_TAKEN_WAIT_ADDS,
    FBK_TAKEN_WAIT_READS,
    FBK_TAKEN_COLD,     /* for Python */
    FBK_TAKEN_CLOSE,    /* to be closed without a word */
};
enum fbk_taken fbk_worker_take(struct fbk_worker *worker, struct fbk_connection *connection, const struct fbk_request *request);

/* ---- worker/place.c */
/* Whether a record of this size may go into the add ring now; normal adds need credit for its cost, too. */
bool fbk_get_add_room(struct fbk_worker *worker, struct fbk_lane *lane, bool is_normal, uint64_t size_bytes, uint64_t cost);
/* A record's header, but for its payload. */
void fbk_start_record(struct fbk_record *record, const struct fbk_worker *worker, const struct fbk_connection *connection,
                      const struct fbk_request *request, uint8_t kind);
/* There is room; the payload lies behind `written` in the add ring already. */
enum fbk_taken fbk_place_add(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
                             struct fbk_record *record);
enum fbk_taken fbk_place_request(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
                                 struct fbk_record *record, const void *payload, uint32_t payload_bytes);
bool fbk_worker_place_cancel(struct fbk_worker *worker, struct fbk_lane *lane, uint64_t connection_id);
/* Moves the cursors that others see and rings their bells. */
void fbk_worker_publish(struct fbk_worker *worker);
/* Reads indexed, credit and the request ring's cursor again; false: poisoned.  *moved says whether any of them moved. */
bool fbk_lane_refresh(struct fbk_worker *worker, struct fbk_lane *lane, bool *moved);

/* ---- worker/worker.c */
/* Tells the indexes whether connections wait for room; true when room may have come before it could know. */
bool fbk_worker_starves(struct fbk_worker *worker);

/* ---- worker/context.c */
int32_t fbk_contexts_init(struct fbk_worker *worker);
void fbk_contexts_free(struct fbk_worker *worker);
/* NULL: as many are in use as may be; those for long polls are at most half of them. */
struct fbk_apache_context *fbk_context_take(struct fbk_worker *worker, struct fbk_connection *connection,
                                            const struct fbk_apache_request *asked);
void fbk_context_give_back(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context);
uint64_t fbk_context_id(const struct fbk_worker *worker, const struct fbk_apache_context *context);
/* The context that an id names, if it is still that request of this connection; else NULL. */
struct fbk_apache_context *fbk_context_of(struct fbk_worker *worker, const struct fbk_connection *connection, uint64_t id);
/* All of a connection that is gone. */
void fbk_contexts_drop(struct fbk_worker *worker, struct fbk_connection *connection);
/* Its next step has to wait for room in the lane's request ring; until then it counts as a request under way. */
void fbk_context_wait(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context);
/* Gives those that wait in this lane's line their turn, as far as there is room. */
void fbk_contexts_serve(struct fbk_worker *worker, struct fbk_lane *lane);

/* ---- worker/apache.c */
/* A frame's body, without its length. */
enum fbk_taken fbk_worker_apache_take(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *body,
                                      uint32_t body_bytes);
/* The next request that a context is for; FBK_TAKEN: placed, or answered with a refusal. */
enum fbk_taken fbk_worker_apache_step(struct fbk_worker *worker, struct fbk_connection *connection,
                                      struct fbk_apache_context *context);
/* The body of a good answer to what is placed for it, FBK_RESPONSE_BODY_*; 0 = nothing but a status. */
uint32_t fbk_worker_apache_body(const struct fbk_apache_context *context);

/* ---- worker/apache_reply.c */
/* One of our answers to a context's request: a status; or a frame that an index wrote (false: it can't be one). */
void fbk_worker_apache_status(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id,
                              uint32_t status);
bool fbk_worker_apache_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame,
                             uint32_t frame_bytes);
/* Answers a request that never had a context. */
void fbk_worker_apache_refuse(struct fbk_worker *worker, struct fbk_connection *connection,
                              const struct fbk_apache_request *asked, uint32_t apache_status);

/* ---- worker/apache_list.c */
/* Adds a page's ranges to a list's.  FBK_S_OK, or the status that the list ends with: there is no memory for it. */
uint32_t fbk_apache_list_add(struct fbk_worker *worker, struct fbk_apache_context *context, const uint8_t *ranges,
                             uint32_t range_count);
void fbk_apache_list_free(struct fbk_worker *worker, struct fbk_apache_context *context);

/* ---- worker/reply.c */
/* All batches and replies that are there.  False: poisoned. */
bool fbk_worker_answer(struct fbk_worker *worker);

#endif
