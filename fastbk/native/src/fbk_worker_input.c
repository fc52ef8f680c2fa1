/* The input that connections have to keep: part of a frame, or frames that wait.  All of it together has a bound (INV-B1), and
 * a frame's memory is reserved before its body is read (A9). */
#include "fbk_worker.h"

static uint8_t *
input_take(struct fbk_worker *worker, uint32_t size_bytes)
{
    uint8_t *input = malloc(size_bytes);
    if (input != NULL)
        worker->input_bytes += size_bytes;
    return input;
}

static void
input_give_back(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (worker->over_budget == connection)
        worker->over_budget = NULL;
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
input_replace(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes, uint32_t room)
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
has_budget(const struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t room)
{
    return worker->input_bytes - connection->input_size_bytes + room <= worker->options.partial_frames_bytes_max;
}

void
fbk_input_keep(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes)
{
    if (size_bytes == 0) {
        if (connection->input != NULL)
            fbk_input_drop(worker, connection);
        return;
    }
    uint32_t room = size_bytes < 16 ? 16 : size_bytes;
    bool is_partial = connection->blocked == 0 && connection->frame_bytes > size_bytes;
    if (is_partial) {
        /* A9: the whole frame's memory is reserved before its body is read, first come, first served. */
        bool has_turn = worker->lines[FBK_LINE_BUDGET].count == 0 && has_budget(worker, connection, connection->frame_bytes);
        if (has_turn)
            room = connection->frame_bytes;
        else if (connection->input_size_bytes < connection->frame_bytes) {
            fbk_worker_note(worker, FBK_C_WORKER_WAITS_MEMORY);
            fbk_connection_block(worker, connection, FBK_BLOCKED_BUDGET);
            is_partial = false;
        } else
            room = connection->frame_bytes;
    }
    bool is_inside = connection->input != NULL && data >= connection->input && data < connection->input + connection->input_size_bytes;
    if (is_inside && !is_partial && connection->blocked != 0) {
        connection->input_from = (uint32_t)(data - connection->input); /* waits where it is */
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
fbk_input_append(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes)
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
    connection->input = both;
    connection->input_size_bytes = before + size_bytes;
    connection->input_from = 0;
    connection->input_used = before + size_bytes;
}

/* Those that wait hold what they had received when they began to wait, and that alone could fill the budget: so one
 * connection at a time may go over it, and all come to their turn. */
void
fbk_budget_serve(struct fbk_worker *worker)
{
    struct fbk_connection *connection;
    while ((connection = fbk_line_first(worker, FBK_LINE_BUDGET)) != NULL) {
        uint32_t room = connection->frame_bytes;
        uint32_t used = connection->input_used - connection->input_from;
        bool is_within = has_budget(worker, connection, room);
        if (!is_within && worker->over_budget != NULL)
            break;
        fbk_line_leave(worker, connection);
        if (used >= room) { /* it came in all the same */
            fbk_connection_unblock(worker, connection, FBK_BLOCKED_BUDGET);
            continue;
        }
        if (!input_replace(worker, connection, connection->input + connection->input_from, used, room))
            continue;
        if (!is_within)
            worker->over_budget = connection;
        connection->blocked &= (uint8_t)~FBK_BLOCKED_BUDGET;
        connection->is_own_buffer = room > FBK_SMALL_FRAME_BYTES;
        if (connection->state == FBK_CONNECTION_OPEN)
            fbk_connection_deadline(worker, connection, worker->options.frame_timeout_ms * 1000u);
        fbk_connection_mark(worker, connection);
    }
}
