/* What a connection has: the line that it waits in, its events, and the memory of all of them.
 *
 * Nothing here reads a request.  Input and output (input.c, output.c) together have a bound
 * (INV-B1), for which peers that are too slow are closed. */
#include "worker/worker.h"

#include <malloc.h>
#include <sys/epoll.h>

/* ------------ lines */

void
fbk_line_join(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line,
              bool in_front)
{
    if (connection->line != FBK_LINE_NONE)
        return;
    struct fbk_line_ends *ends = &worker->lines[line];
    uint32_t slot = fbk_connection_slot(worker, connection);
    connection->line = (uint8_t)line;
    connection->previous = in_front ? FBK_NO_CONNECTION : ends->last;
    connection->next = in_front ? ends->first : FBK_NO_CONNECTION;
    if (connection->previous == FBK_NO_CONNECTION)
        ends->first = slot;
    else
        worker->connections[connection->previous].next = slot;
    if (connection->next == FBK_NO_CONNECTION)
        ends->last = slot;
    else
        worker->connections[connection->next].previous = slot;
    ends->count++;
}

void
fbk_line_leave(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->line == FBK_LINE_NONE)
        return;
    struct fbk_line_ends *ends = &worker->lines[connection->line];
    if (connection->previous == FBK_NO_CONNECTION)
        ends->first = connection->next;
    else
        worker->connections[connection->previous].next = connection->next;
    if (connection->next == FBK_NO_CONNECTION)
        ends->last = connection->previous;
    else
        worker->connections[connection->next].previous = connection->previous;
    ends->count--;
    connection->line = FBK_LINE_NONE;
}

/* It may have received more before its turn came as one of those that go on: where it waits now is
 * what counts. */
static void
wait_in(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line)
{
    if (connection->line == FBK_LINE_READY)
        fbk_line_leave(worker, connection);
    if (connection->line == FBK_LINE_NONE)
        connection->blocked_us = worker->now_us;
    fbk_line_join(worker, connection, line, false);
}

void
fbk_connection_block(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t why)
{
    connection->blocked |= (uint16_t)why;
    if (why == FBK_BLOCKED_ADD)
        wait_in(worker, connection, FBK_LINE_ADD + connection->lane);
    else if (why == FBK_BLOCKED_REQUEST)
        wait_in(worker, connection, FBK_LINE_REQUEST + connection->lane);
    else if (why == FBK_BLOCKED_BUDGET)
        wait_in(worker, connection, FBK_LINE_BUDGET);
    else if (why == FBK_BLOCKED_QUOTA)
        wait_in(worker, connection, FBK_LINE_QUOTA);
    else if (why == FBK_BLOCKED_TURN)
        fbk_line_join(worker, connection, FBK_LINE_READY, false);
    fbk_connection_mark(worker, connection);
}

void
fbk_connection_block_in(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line)
{
    wait_in(worker, connection, line);
    fbk_connection_block(worker, connection, FBK_BLOCKED_CONTEXT);
}

bool
fbk_connections_wait_for_contexts(const struct fbk_worker *worker)
{
    return worker->lines[FBK_LINE_CONTEXT].count > 0 ||
           worker->lines[FBK_LINE_APACHE_ADDS].count > 0 ||
           worker->lines[FBK_LINE_APACHE_READS].count > 0;
}

void
fbk_connection_unblock(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t why)
{
    if (!(connection->blocked & why))
        return;
    connection->blocked &= (uint16_t)~why;
    if (connection->blocked == 0)
        fbk_line_join(worker, connection, FBK_LINE_READY, false);
    fbk_connection_mark(worker, connection);
}

/* ------------ events */

/* While its next bytes are only looked for, nothing is received: a request of its own need not stop
 * that. */
static bool
is_stopped(const struct fbk_connection *connection)
{
    return (connection->blocked & (connection->is_awaited ? ~FBK_BLOCKED_COLD : ~0u)) != 0;
}

static bool
has_todo(const struct fbk_connection *connection)
{
    if (!fbk_connection_is_alive(connection))
        return false;
    return connection->todo != 0 || (connection->state != FBK_CONNECTION_DISCARD &&
                                     connection->is_paused != is_stopped(connection));
}

void
fbk_connection_watch(struct fbk_worker *worker, struct fbk_connection *connection, bool is_wanted)
{
    if (is_wanted == connection->is_watched)
        return;
    struct epoll_event event = {
        .events = EPOLLIN,
        .data.u64 =
            fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation),
    };
    connection->is_watched = is_wanted;
    if (epoll_ctl(worker->poll_fd, is_wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, connection->fd,
                  &event) != 0)
        connection->todo |= FBK_DO_ABORT;
}

/* Stops or resumes receiving from it. */
static uint32_t
pause_or_resume(struct fbk_worker *worker, struct fbk_connection *connection, bool is_blocked)
{
    if (is_blocked == connection->is_paused)
        return 0;
    connection->is_paused = is_blocked;
    if (!connection->is_polled)
        return is_blocked ? FBK_DO_PAUSE : FBK_DO_RESUME;
    fbk_connection_watch(worker, connection, !is_blocked && !connection->has_ended);
    return 0;
}

uint32_t
fbk_connection_take_todo(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (!fbk_connection_is_alive(connection))
        return 0;
    bool is_blocked = is_stopped(connection);
    /* What a finished connection still sends has to be read, and thrown away. */
    if (connection->state == FBK_CONNECTION_DISCARD)
        is_blocked = false;
    uint32_t todo = pause_or_resume(worker, connection, is_blocked);
    todo |= connection->todo;
    connection->todo = 0;
    if (connection->is_own_buffer && !is_blocked && !connection->is_polled)
        todo |= FBK_DO_BUFFER;
    return todo;
}

uint32_t
fbk_dirty_prune(struct fbk_worker *worker)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < worker->dirty_count; i++) {
        struct fbk_connection *connection = &worker->connections[worker->dirty[i]];
        connection->is_dirty = has_todo(connection);
        if (connection->is_dirty)
            worker->dirty[kept++] = worker->dirty[i];
    }
    worker->dirty_count = kept;
    return kept;
}

void
fbk_dirty_report(struct fbk_worker *worker)
{
    worker->event_count = 0;
    for (uint32_t i = 0; i < worker->dirty_count; i++) {
        struct fbk_connection *connection = &worker->connections[worker->dirty[i]];
        connection->is_dirty = false;
        uint32_t todo = has_todo(connection) ? fbk_connection_take_todo(worker, connection) : 0;
        if (todo != 0)
            worker->events[worker->event_count++] =
                (struct fbk_worker_event){worker->dirty[i], todo};
    }
    worker->dirty_count = 0;
}

void
fbk_connection_deadline(struct fbk_worker *worker, struct fbk_connection *connection,
                        uint32_t after_us)
{
    connection->deadline_us = worker->now_us + after_us;
    connection->has_deadline = true;
}

void
fbk_connection_begin(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (!connection->has_deadline || !fbk_connection_is_stranger(connection))
        fbk_connection_deadline(worker, connection, worker->options.hello_timeout_ms * 1000u);
}

/* ------------ memory */

void
fbk_memory_return(struct fbk_worker *worker)
{
    uint64_t peak = worker->held_peak_bytes;
    worker->held_peak_bytes = worker->input_bytes + worker->reply_bytes;
    if (peak + FBK_TRIM_BYTES > worker->held_peak_before_bytes) {
        if (peak > worker->held_peak_before_bytes)
            worker->held_peak_before_bytes = peak;
        return;
    }
    /* A whole sweep took much less than there was before: the allocator keeps what it has until it
     * is told. */
    worker->held_peak_before_bytes = peak;
#ifdef __GLIBC__
    malloc_trim(0);
    fbk_worker_note(worker, FBK_C_WORKER_MEMORY_RETURNED);
#endif
}
