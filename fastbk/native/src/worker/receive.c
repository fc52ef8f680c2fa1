/* Received bytes: split into frames, read, dispatched.  What is left (part of a frame, or frames
 * that have to wait) is kept by the connection, and lies in front of what it receives next.
 *
 * Decisions 20 and 90. */
#include "worker/worker.h"

#include "wire/schema.h"

static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 0x01};

/* The smallest valid flatbuffer is longer; the length itself is not counted. */
#define FRAME_LENGTH_MIN 8u
#define APACHE_FRAME_LENGTH_MIN 4u

/* The last frame for this connection: its status goes out with request id `request_id`, then
 * nothing more is taken. */
static void
refuse(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id,
       uint32_t status)
{
    fbk_output_status(worker, connection, request_id, status);
    connection->state = FBK_CONNECTION_DISCARD;
    fbk_connection_todo(worker, connection, FBK_DO_FINISH);
    fbk_connection_deadline(worker, connection, FBK_LINGER_US);
}

/* Ends a connection that would not understand our errors: nothing more is said nor taken. */
static void
close_quietly(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->state = FBK_CONNECTION_DISCARD;
    fbk_connection_todo(worker, connection, FBK_DO_FINISH);
    fbk_connection_deadline(worker, connection, FBK_LINGER_US);
}

static void
refuse_protocol(struct fbk_worker *worker, struct fbk_connection *connection)
{
    fbk_worker_note(worker, FBK_C_WORKER_BAD_MAGIC);
    connection->state = FBK_CONNECTION_DISCARD;
    fbk_connection_todo(worker, connection, FBK_DO_ABORT);
}

/* Tells protocols apart by the first byte: ours begins with 0xFB, Apache's with the highest byte of
 * a frame's length, which is that of the longest frame at most.  Neither is TLS (0x16).  Returns
 * bytes that are done with. */
static uint32_t
take_magic(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
           uint32_t size_bytes)
{
    uint32_t have = size_bytes < sizeof magic ? size_bytes : (uint32_t)sizeof magic;
    if (data[0] <= worker->options.frame_size_bytes_max >> 24) {
        fbk_worker_note(worker, FBK_C_WORKER_APACHE_CONNECTIONS);
        connection->is_apache = true;
        connection->state = FBK_CONNECTION_OPEN;
        connection->has_deadline &= fbk_connection_is_stranger(connection);
        return 0;
    }
    if (memcmp(data, magic, have) != 0) {
        refuse_protocol(worker, connection);
        return 0;
    }
    /* Before its first byte a connection may rest: Apache's clients open some that they need
     * later. */
    if (!connection->has_deadline)
        fbk_connection_begin(worker, connection);
    if (have < sizeof magic)
        return 0;
    connection->state = FBK_CONNECTION_HELLO;
    return have;
}

static bool
check_apache_length(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t length,
                    uint32_t most)
{
    if (length >= APACHE_FRAME_LENGTH_MIN && length <= most)
        return true;
    bool is_negative = length > INT32_MAX;
    fbk_worker_note(worker, is_negative || length <= most ? FBK_C_WORKER_BAD_LENGTH
                                                          : FBK_C_WORKER_TOO_LARGE);
    close_quietly(worker, connection);
    return false;
}

/* Whether a frame may have this length; refuses the connection if not. */
static bool
check_length(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t length)
{
    uint32_t most = connection->state == FBK_CONNECTION_OPEN ? worker->options.frame_size_bytes_max
                                                             : FBK_COLD_FRAME_BYTES_MAX;
    if (connection->is_apache)
        return check_apache_length(worker, connection, length, most - 4);
    if (length < FRAME_LENGTH_MIN) {
        fbk_worker_note(worker, FBK_C_WORKER_BAD_LENGTH);
        refuse(worker, connection, 0, FBK_S_BAD_REQUEST);
        return false;
    }
    if (length > most - 4) {
        fbk_worker_note(worker, FBK_C_WORKER_TOO_LARGE);
        refuse(worker, connection, 0, FBK_S_TOO_LARGE);
        return false;
    }
    return true;
}

/* A request of our own protocol. */
static enum fbk_outcome
take_own(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame,
         uint32_t frame_bytes)
{
    struct fbk_request request;
    if (fbk_wire_read_request(frame, frame_bytes, &request) != 0) {
        fbk_worker_note(worker, FBK_C_WORKER_BAD_FRAME);
        refuse(worker, connection, 0, FBK_S_BAD_REQUEST);
        return FBK_DONE;
    }
    enum fbk_outcome outcome = FBK_FOR_PYTHON;
    if (connection->state == FBK_CONNECTION_OPEN) {
        outcome = fbk_worker_dispatch(worker, connection, &request);
        if (outcome >= FBK_ANSWER) {
            fbk_output_status(worker, connection, request.request_id, outcome - FBK_ANSWER);
            return FBK_DONE;
        }
    } else if (request.body_type != FBK_REQUEST_BODY_HELLO) {
        fbk_worker_note(worker, FBK_C_WORKER_BAD_FIRST);
        refuse(worker, connection, request.request_id, FBK_S_BAD_REQUEST);
        return FBK_DONE;
    }
    if (outcome == FBK_FOR_PYTHON && frame_bytes > FBK_COLD_FRAME_BYTES_MAX) {
        fbk_worker_note(worker, FBK_C_WORKER_TOO_LARGE);
        refuse(worker, connection, request.request_id, FBK_S_TOO_LARGE);
        return FBK_DONE;
    }
    return outcome;
}

static enum fbk_outcome
take_apache(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame,
            uint32_t frame_bytes)
{
    enum fbk_outcome outcome =
        fbk_worker_apache_dispatch(worker, connection, frame + 4, frame_bytes - 4);
    if (outcome == FBK_FOR_PYTHON && frame_bytes > FBK_COLD_FRAME_BYTES_MAX) {
        fbk_worker_note(worker, FBK_C_WORKER_TOO_LARGE);
        outcome = FBK_CLOSE;
    }
    return outcome;
}

/* One frame of a good length.  True: it is done with; false: it waits (the connection is blocked
 * now). */
static bool
take_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame,
           uint32_t frame_bytes)
{
    if (connection->pending >= worker->options.pending_requests_max) {
        fbk_worker_note(worker, FBK_C_WORKER_WAITS_PENDING);
        fbk_connection_block(worker, connection, FBK_BLOCKED_PENDING);
        return false;
    }
    enum fbk_outcome outcome = connection->is_apache
                                   ? take_apache(worker, connection, frame, frame_bytes)
                                   : take_own(worker, connection, frame, frame_bytes);
    switch (outcome) {
    case FBK_WAIT_ADD: fbk_connection_block(worker, connection, FBK_BLOCKED_ADD); return false;
    case FBK_WAIT_REQUEST:
        fbk_connection_block(worker, connection, FBK_BLOCKED_REQUEST);
        return false;
    case FBK_WAIT_QUOTA:
        fbk_worker_note(worker, FBK_C_WORKER_WAITS_QUOTA);
        fbk_connection_block(worker, connection, FBK_BLOCKED_QUOTA);
        return false;
    case FBK_WAIT_CONTEXT:
    case FBK_WAIT_APACHE_ADDS:
    case FBK_WAIT_APACHE_READS:
        fbk_worker_note(worker, FBK_C_WORKER_WAITS_CONTEXT);
        fbk_connection_block_in(worker, connection,
                                FBK_LINE_CONTEXT + (outcome - FBK_WAIT_CONTEXT));
        return false;
    case FBK_FOR_PYTHON:
        /* It stays in front of the connection's input until Python has answered it. */
        fbk_worker_note(worker, FBK_C_WORKER_COLD_REQUESTS);
        fbk_connection_block(worker, connection, FBK_BLOCKED_COLD);
        fbk_connection_todo(worker, connection, FBK_DO_COLD);
        return false;
    case FBK_CLOSE: close_quietly(worker, connection); break;
    case FBK_DONE:
    case FBK_ANSWER: break; /* those were answered */
    }
    return true;
}

static uint32_t
length_of(const struct fbk_connection *connection, const uint8_t *frame)
{
    return connection->is_apache ? fbk_load_be32(frame) : fbk_load_u32(frame);
}

/* Takes whole frames from `data` until one has to wait or is not complete.  Returns the bytes that
 * are done with. */
static uint32_t
take_frames(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
            uint32_t size_bytes)
{
    uint32_t taken = 0;
    uint32_t frames = 0, turn_frames_max = worker->options.turn_frames_max;
    if (connection->state == FBK_CONNECTION_MAGIC && size_bytes > 0)
        taken = take_magic(worker, connection, data, size_bytes);
    connection->frame_bytes = 0;
    while (
        connection->blocked == 0 && frames + worker->turn_frames < turn_frames_max &&
        size_bytes - taken >= 4 &&
        (connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO)) {
        uint32_t length = length_of(connection, data + taken);
        if (!check_length(worker, connection, length))
            break;
        if (size_bytes - taken - 4 < length) {
            connection->frame_bytes = 4 + length;
            break;
        }
        if (!take_frame(worker, connection, data + taken, 4 + length))
            break;
        taken += 4 + length;
        frames++;
    }
    fbk_count(worker->stats, FBK_C_WORKER_FRAMES, frames);
    worker->turn_frames += frames;
    return connection->state == FBK_CONNECTION_DISCARD ? size_bytes : taken;
}

/* A connection that had its turn goes on after the others. */
static void
end_turn(struct fbk_worker *worker, struct fbk_connection *connection)
{
    bool is_over = worker->turn_frames >= worker->options.turn_frames_max ||
                   worker->turn_bytes >= worker->options.turn_size_bytes_max;
    bool is_alive =
        connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO;
    if (!is_over || connection->blocked != 0 || !is_alive)
        return;
    fbk_worker_note(worker, FBK_C_WORKER_TURNS_ENDED);
    fbk_connection_block(worker, connection, FBK_BLOCKED_TURN);
}

/* After frames were taken: keep the rest, set the deadline that belongs to it.  The last `arrived`
 * bytes are new. */
static void
settle(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
       uint32_t size_bytes, uint32_t taken, uint32_t arrived)
{
    uint32_t left = size_bytes - taken;
    bool is_new = taken > 0 || connection->input == NULL;
    end_turn(worker, connection);
    fbk_input_keep(worker, connection, data + taken, left);
    if (connection->input_used == connection->input_from || connection->blocked != 0)
        /* nothing is owed, or it is we who let it wait */
        connection->has_deadline &= fbk_connection_is_new(connection);
    else if (is_new || (!connection->has_deadline && connection->state == FBK_CONNECTION_OPEN))
        fbk_frame_begin(worker, connection, left);
    else
        fbk_frame_arrived(worker, connection, arrived);
}

bool
fbk_worker_go_on(struct fbk_worker *worker, struct fbk_connection *connection)
{
    uint32_t size_bytes = connection->input_used - connection->input_from;
    uint32_t taken = 0;
    if (connection->blocked == 0 && size_bytes > 0) {
        const uint8_t *data = connection->input + connection->input_from;
        taken = take_frames(worker, connection, data, size_bytes);
        settle(worker, connection, data, size_bytes, taken, 0);
    }
    return taken > 0;
}

/* The end of a call that names a connection: all that was placed is shown, all that was answered is
 * sent, and its own events are returned. */
static int32_t
finish(struct fbk_worker *worker, struct fbk_connection *connection)
{
    fbk_worker_publish(worker);
    fbk_dirty_flush(worker);
    fbk_budget_serve(worker);
    uint32_t todo = fbk_connection_take_todo(worker, connection);
    bool is_more = worker->lines[FBK_LINE_READY].count > 0 ||
                   (worker->apache.freed && fbk_connections_wait_for_contexts(worker)) ||
                   /* no answer may be left to wake who serves that line */
                   connection->blocked & FBK_BLOCKED_QUOTA;
    worker->apache.freed = false;
    if (fbk_dirty_prune(worker) > 0 || fbk_lanes_starve(worker) || is_more)
        todo |= FBK_DO_COLLECT;
    if (worker->input_bytes > worker->options.partial_frames_bytes_max / 2)
        todo |= FBK_DO_TIGHT;
    return worker->is_poisoned ? FBK_E_POISONED : (int32_t)todo;
}

/* Into the buffer of a large frame. */
static void
receive_own(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes)
{
    FBK_ASSERT(size_bytes <= connection->input_size_bytes - connection->input_used);
    connection->input_used += size_bytes;
    if (connection->input_used == connection->frame_bytes) {
        connection->is_own_buffer = false;
        fbk_worker_go_on(worker, connection);
        return;
    }
    fbk_frame_arrived(worker, connection, size_bytes);
    if (connection->input_used == connection->input_size_bytes)
        fbk_input_grow(worker, connection);
}

void
fbk_worker_take(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes)
{
    uint32_t slot = fbk_connection_slot(worker, connection);
    fbk_count(worker->stats, FBK_C_WORKER_BYTES_RECEIVED, size_bytes);
    if (connection->state == FBK_CONNECTION_DISCARD || connection->state == FBK_CONNECTION_GONE)
        return;
    fbk_observe_many(worker->stats, FBK_H_WORKER_RECEIVE_BYTES, size_bytes, 1);
    connection->received_sweep = worker->sweeps;
    if (worker->turn_slot != slot) {
        worker->turn_slot = slot;
        worker->turn_frames = worker->turn_bytes = 0;
    }
    worker->turn_bytes += size_bytes;
    if (connection->is_own_buffer) {
        receive_own(worker, connection, size_bytes);
        return;
    }
    uint8_t *data = worker->receive_memory + FBK_SMALL_FRAME_BYTES;
    uint32_t before = connection->input_used - connection->input_from;
    FBK_ASSERT(size_bytes <= worker->options.receive_size_bytes);
    if (connection->blocked != 0 || before > FBK_SMALL_FRAME_BYTES) {
        /* Bytes that were on their way when it was paused. */
        fbk_input_append(worker, connection, data, size_bytes);
        return;
    }
    if (before > 0) {
        data -= before;
        memcpy(data, connection->input + connection->input_from, before);
    }
    uint32_t taken = take_frames(worker, connection, data, before + size_bytes);
    settle(worker, connection, data, before + size_bytes, taken, size_bytes);
}

int32_t
fbk_worker_receive(struct fbk_worker *worker, uint32_t slot, uint32_t size_bytes)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    bool is_over =
        connection->state == FBK_CONNECTION_DISCARD || connection->state == FBK_CONNECTION_GONE;
    fbk_worker_clock(worker);
    fbk_worker_take(worker, connection, size_bytes);
    return is_over ? 0 : finish(worker, connection);
}

/* The bytes of the cold frame in front of the input. */
static uint32_t
cold_bytes(const struct fbk_connection *connection)
{
    bool is_there = (connection->blocked & FBK_BLOCKED_COLD) != 0 && connection->input != NULL;
    return is_there ? 4 + length_of(connection, connection->input + connection->input_from) : 0;
}

void
fbk_worker_admit(struct fbk_worker *worker, uint32_t slot, uint32_t rights, uint32_t tagged_rights)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    connection->rights = (uint8_t)(rights & FBK_RIGHTS_ALL);
    connection->tagged_rights = (uint8_t)(tagged_rights & FBK_RIGHTS_ALL);
    if (!fbk_connection_is_new(connection))
        connection->has_deadline = false; /* INV-N6: that of a stranger */
    fbk_tags_drop(connection);
}

const uint8_t *
fbk_worker_behind(struct fbk_worker *worker, uint32_t slot, uint32_t *size_bytes)
{
    const struct fbk_connection *connection = fbk_connection_at(worker, slot);
    const uint32_t cold = cold_bytes(connection);
    *size_bytes = cold == 0 ? 0 : connection->input_used - connection->input_from - cold;
    return *size_bytes == 0 ? NULL : connection->input + connection->input_from + cold;
}

/* INV-N1: nothing that came or goes in the clear is taken for a part of what is encrypted.  Who can
 * write into a connection could else have its own requests, sent before the handshake, answered as
 * its client's. */
int32_t
fbk_worker_secure(struct fbk_worker *worker, uint32_t slot, uint32_t behind_bytes)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    bool is_alone =
        connection->input_used - connection->input_from == cold_bytes(connection) + behind_bytes;
    if (!is_alone || connection->pending > 0 || connection->output_used > 0 || connection->is_busy)
        return FBK_DO_ABORT;
    connection->is_secure = true;
    fbk_connection_watch(worker, connection, false);
    connection->is_polled = connection->is_paused = false;
    worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
    fbk_connection_begin(worker, connection);
    return 0;
}

int32_t
fbk_worker_continue(struct fbk_worker *worker, uint32_t slot, int32_t is_open)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
    if (is_open && connection->state == FBK_CONNECTION_HELLO)
        connection->state = FBK_CONNECTION_OPEN;
    /* of its hello, or of its handshake */
    connection->has_deadline &= fbk_connection_is_new(connection);
    connection->input_from += cold_bytes(connection);
    connection->blocked &= (uint16_t)~FBK_BLOCKED_COLD;
    fbk_count(worker->stats, FBK_C_WORKER_FRAMES, 1);
    if (connection->input_from == connection->input_used)
        fbk_input_drop(worker, connection);
    else
        fbk_worker_go_on(worker, connection);
    return finish(worker, connection);
}

int32_t
fbk_worker_send(struct fbk_worker *worker, uint32_t slot, const uint8_t *frame, uint32_t size_bytes,
                int32_t is_last)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
    fbk_output_frame(worker, connection, frame, size_bytes);
    if (is_last && connection->state != FBK_CONNECTION_DISCARD) {
        connection->state = FBK_CONNECTION_DISCARD;
        connection->blocked = 0;
        fbk_line_leave(worker, connection);
        fbk_input_drop(worker, connection);
        fbk_connection_todo(worker, connection, FBK_DO_FINISH);
        fbk_connection_deadline(worker, connection, FBK_LINGER_US);
    }
    return finish(worker, connection);
}

int32_t
fbk_worker_is_apache(struct fbk_worker *worker, uint32_t slot)
{
    return fbk_connection_at(worker, slot)->is_apache;
}

int32_t
fbk_worker_writable(struct fbk_worker *worker, uint32_t slot)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
    connection->is_busy = false;
    worker->reply_bytes -= connection->handed_bytes;
    connection->handed_bytes = 0;
    fbk_output_flush(worker, connection);
    if (connection->output_used == 0 && (connection->blocked & FBK_BLOCKED_OUTPUT)) {
        connection->blocked &= (uint16_t)~FBK_BLOCKED_OUTPUT;
        fbk_worker_go_on(worker, connection);
    }
    return finish(worker, connection);
}

const uint8_t *
fbk_worker_cold(struct fbk_worker *worker, uint32_t slot, uint32_t *size_bytes)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    *size_bytes = cold_bytes(connection);
    return connection->input + connection->input_from;
}

uint8_t *
fbk_worker_buffer(struct fbk_worker *worker, uint32_t slot, uint32_t *size_bytes)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    if (!connection->is_own_buffer) {
        *size_bytes = 0;
        return NULL;
    }
    uint32_t room = connection->input_size_bytes < connection->frame_bytes
                        ? connection->input_size_bytes
                        : connection->frame_bytes;
    *size_bytes = room - connection->input_used;
    return connection->input + connection->input_used;
}
