/* The input that connections have to keep: part of a frame, or frames that wait.
 *
 * Memory is taken as bytes arrive, doubling: a connection that announces much and sends little
 * holds little.  While half of the bound is free a frame gets its memory at once, which saves
 * copies.  When memory is short, the slowest frame under way is closed if it is slow; else the one
 * that wants memory waits in line.  New wishes get three quarters of the bound, so that there is
 * always something for the line.
 *
 * One frame can always finish: the first in line may go over the bound, one at a time, and has the
 * whole frame's memory then.  It either arrives, or is slower than the least rate and is closed;
 * both end, and the next one follows.  Behind it FBK_TRIALS_MAX may go on for a little: those that
 * have nothing to send show so, and are closed (INV-B1). */
#include "worker/worker.h"

static void input_over_end(struct fbk_worker *worker, struct fbk_connection *connection);

/* ------------ frames under way */

/* A frame under way earns time by its bytes: its deadline moves by 1/frame_rate_bytes_min for
 * each, and is never further away than frame_timeout.  So a frame that keeps the least rate may be
 * as large as frames may be, and one that pauses has frame_timeout. */

void
fbk_frame_begin(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t used)
{
    connection->frame_us = worker->now_us;
    connection->frame_used = used;
    /* until then the one deadline from the beginning counts */
    if (!fbk_connection_is_new(connection))
        fbk_connection_deadline(worker, connection, worker->options.frame_timeout_ms * 1000u);
}

void
fbk_frame_arrived(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes)
{
    connection->frame_used += size_bytes;
    if (fbk_connection_is_new(connection))
        return;
    int64_t left_us = (int32_t)(connection->deadline_us - worker->now_us);
    int64_t earned_us = (int64_t)size_bytes * 1000000 / worker->options.frame_rate_bytes_min;
    int64_t most_us = (int64_t)worker->options.frame_timeout_ms * 1000;
    int64_t after_us = left_us + earned_us < most_us ? left_us + earned_us : most_us;
    if (after_us > 0) /* else it is over, and the next sweep says so */
        fbk_connection_deadline(worker, connection, (uint32_t)after_us);
}

/* Bytes a second, or UINT64_MAX when nothing can be said, or nothing would be won. */
static uint64_t
rate_of(const struct fbk_worker *worker, const struct fbk_connection *connection)
{
    bool is_under_way =
        (connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO) &&
        connection->blocked == 0 && connection->input_size_bytes >= FBK_PAGE_BYTES / 2;
    uint32_t age_us = worker->now_us - connection->frame_us;
    if (!is_under_way || age_us < FBK_RATE_AGE_US)
        return UINT64_MAX;
    return (uint64_t)connection->frame_used * 1000000 / age_us;
}

/* Its input is Python's to write to until that has aborted it: it is not counted any more, and
 * freed by the disconnect. */
void
fbk_input_cut(struct fbk_worker *worker, struct fbk_connection *connection)
{
    input_over_end(worker, connection);
    worker->input_bytes -= connection->input_size_bytes;
    connection->input_size_bytes = 0;
    connection->is_own_buffer = false;
    connection->has_deadline = false;
    fbk_output_cut(worker, connection);
}

bool
fbk_close_slowest(struct fbk_worker *worker, const struct fbk_connection *wanting)
{
    /* No look at all connections for each of many that want memory at the same moment. */
    if (worker->closed_none && worker->now_us - worker->closed_none_us < FBK_RATE_AGE_US / 8)
        return false;
    struct fbk_connection *slowest = NULL;
    uint64_t least = (uint64_t)worker->options.frame_rate_bytes_min * FBK_CONTENDED_RATES;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        struct fbk_connection *connection = &worker->connections[slot];
        uint64_t rate = connection != wanting ? rate_of(worker, connection) : UINT64_MAX;
        if (rate < least) {
            least = rate;
            slowest = connection;
        }
    }
    worker->closed_none = slowest == NULL;
    worker->closed_none_us = worker->now_us;
    if (slowest != NULL) {
        fbk_worker_note(worker, FBK_C_WORKER_SLOW_FRAMES_CUT);
        fbk_input_cut(worker, slowest);
    }
    return slowest != NULL;
}

/* ------------ input */

static uint8_t *
input_take(struct fbk_worker *worker, uint32_t size_bytes)
{
    uint8_t *input = malloc(size_bytes);
    if (input != NULL) {
        worker->input_bytes += size_bytes;
        fbk_worker_note_held(worker);
    }
    return input;
}

/* It has no more than others any more. */
static void
input_over_end(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (worker->over_budget == connection)
        worker->over_budget = NULL;
    worker->trial_count -= connection->is_trial;
    connection->is_trial = false;
}

static void
input_give_back(struct fbk_worker *worker, struct fbk_connection *connection)
{
    input_over_end(worker, connection);
    worker->input_bytes -= connection->input_size_bytes;
    free(connection->input);
    connection->input = NULL;
    connection->input_size_bytes = 0;
}

void
fbk_input_drop(struct fbk_worker *worker, struct fbk_connection *connection)
{
    input_give_back(worker, connection);
    connection->input_from = 0;
    connection->input_used = 0;
    connection->frame_bytes = 0;
    connection->is_own_buffer = false;
}

static void
no_memory(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->state = FBK_CONNECTION_DISCARD;
    fbk_line_leave(worker, connection);
    fbk_input_drop(worker, connection);
    fbk_connection_todo(worker, connection, FBK_DO_ABORT);
}

/* Moves size_bytes of data (which may lie in the old input) into an input of `room` bytes. */
static bool
input_replace(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
              uint32_t size_bytes, uint32_t room)
{
    uint8_t *input = input_take(worker, room);
    if (input == NULL) {
        no_memory(worker, connection);
        return false;
    }
    memcpy(input, data, size_bytes);
    input_give_back(worker, connection);
    connection->input = input;
    connection->input_size_bytes = room;
    connection->input_from = 0;
    connection->input_used = size_bytes;
    return true;
}

static bool
has_budget(const struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t room,
           uint64_t bound)
{
    return worker->input_bytes - connection->input_size_bytes + room <= bound;
}

/* What a frame under way gets that has `used` bytes: all of it while memory is plenty. */
static uint32_t
wanted_room(const struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t used)
{
    uint32_t frame_bytes = connection->frame_bytes;
    if (has_budget(worker, connection, frame_bytes, worker->options.partial_frames_bytes_max / 2))
        return frame_bytes;
    uint64_t room = used < FBK_PAGE_BYTES / 2 ? FBK_PAGE_BYTES : 2 * (uint64_t)used;
    return room < frame_bytes ? (uint32_t)room : frame_bytes;
}

/* Whether there is room for an input of that size, for which slower frames are closed. */
static bool
make_room(struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t room,
          uint64_t bound)
{
    while (!has_budget(worker, connection, room, bound))
        if (!fbk_close_slowest(worker, connection))
            return false;
    return true;
}

static void
wait_for_memory(struct fbk_worker *worker, struct fbk_connection *connection)
{
    fbk_worker_note(worker, FBK_C_WORKER_WAITS_MEMORY);
    fbk_connection_block(worker, connection, FBK_BLOCKED_BUDGET);
}

void
fbk_input_keep(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
               uint32_t size_bytes)
{
    if (size_bytes == 0) {
        if (connection->input != NULL)
            fbk_input_drop(worker, connection);
        return;
    }
    uint32_t room = size_bytes < 16 ? 16 : size_bytes;
    bool is_partial = connection->blocked == 0 && connection->frame_bytes > size_bytes;
    if (is_partial && connection->input_size_bytes <= size_bytes) {
        uint32_t wanted = wanted_room(worker, connection, size_bytes);
        if (make_room(worker, connection, wanted,
                      worker->options.partial_frames_bytes_max / 4 * 3)) {
            room = wanted;
        } else {
            wait_for_memory(worker, connection);
            is_partial = false;
        }
    } else if (is_partial) {
        room = connection->input_size_bytes;
    }
    bool is_inside = connection->input != NULL && data >= connection->input &&
                     data < connection->input + connection->input_size_bytes;
    if (is_inside && !is_partial && connection->blocked != 0) {
        /* waits where it is */
        connection->input_from = (uint32_t)(data - connection->input);
    } else if (connection->input_size_bytes >= room && connection->input_size_bytes <= 2 * room) {
        memmove(connection->input, data, size_bytes);
        connection->input_from = 0;
        connection->input_used = size_bytes;
    } else if (!input_replace(worker, connection, data, size_bytes, room)) {
        return;
    }
    connection->is_own_buffer = is_partial && connection->frame_bytes > FBK_SMALL_FRAME_BYTES;
}

void
fbk_input_grow(struct fbk_worker *worker, struct fbk_connection *connection)
{
    uint32_t room = wanted_room(worker, connection, connection->input_used);
    if (!make_room(worker, connection, room, worker->options.partial_frames_bytes_max / 4 * 3)) {
        connection->is_own_buffer = false;
        wait_for_memory(worker, connection);
        return;
    }
    input_replace(worker, connection, connection->input, connection->input_used, room);
}

void
fbk_input_append(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
                 uint32_t size_bytes)
{
    uint32_t before = connection->input_used - connection->input_from;
    uint8_t *both = malloc((size_t)before + size_bytes);
    if (both == NULL) {
        no_memory(worker, connection);
        return;
    }
    if (before > 0)
        memcpy(both, connection->input + connection->input_from, before);
    memcpy(both + before, data, size_bytes);
    input_give_back(worker, connection);
    worker->input_bytes += before + size_bytes;
    fbk_worker_note_held(worker);
    connection->input = both;
    connection->input_size_bytes = before + size_bytes;
    connection->input_from = 0;
    connection->input_used = before + size_bytes;
}

/* What the first in line gets, 0 when it has to wait on: growth within the bound, else the whole
 * frame as the only one that may go over it, else a trial. */
static uint32_t
room_for_first(struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t used)
{
    uint32_t room = wanted_room(worker, connection, used);
    if (make_room(worker, connection, room, worker->options.partial_frames_bytes_max))
        return room;
    if (worker->over_budget == NULL)
        return connection->frame_bytes;
    room = connection->frame_bytes - used > FBK_SMALL_FRAME_BYTES ? used + FBK_SMALL_FRAME_BYTES
                                                                  : connection->frame_bytes;
    return worker->trial_count < FBK_TRIALS_MAX ? room : 0;
}

/* Those that wait hold what they had received when they began to wait, and that alone could fill
 * the budget: so one connection at a time may go over it, and all come to their turn. */
void
fbk_budget_serve(struct fbk_worker *worker)
{
    struct fbk_connection *connection;
    while ((connection = fbk_line_first(worker, FBK_LINE_BUDGET)) != NULL) {
        uint32_t used = connection->input_used - connection->input_from;
        if (used >= connection->frame_bytes) { /* it came in all the same */
            fbk_line_leave(worker, connection);
            fbk_connection_unblock(worker, connection, FBK_BLOCKED_BUDGET);
            continue;
        }
        uint32_t room = room_for_first(worker, connection, used);
        if (room == 0)
            break;
        fbk_line_leave(worker, connection);
        if (!input_replace(worker, connection, connection->input + connection->input_from, used,
                           room))
            continue;
        bool is_over = worker->input_bytes > worker->options.partial_frames_bytes_max;
        connection->is_trial = is_over && worker->over_budget != NULL;
        worker->trial_count += connection->is_trial;
        if (is_over && !connection->is_trial)
            worker->over_budget = connection;
        connection->blocked &= (uint16_t)~FBK_BLOCKED_BUDGET;
        connection->is_own_buffer = connection->frame_bytes > FBK_SMALL_FRAME_BYTES;
        fbk_frame_begin(worker, connection, 0);
        fbk_connection_mark(worker, connection);
    }
}
