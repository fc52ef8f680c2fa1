/* Connections: slots, the lines they wait in, their events, their deadlines. */
#include "worker/count.h"

struct fbk_connection *
fbk_connection_at(struct fbk_worker *worker, uint32_t slot)
{
    FBK_ASSERT(slot < worker->slots_used && worker->connections[slot].state != FBK_CONNECTION_FREE);
    return &worker->connections[slot];
}

uint32_t
fbk_connection_slot(const struct fbk_worker *worker, const struct fbk_connection *connection)
{
    return (uint32_t)(connection - worker->connections);
}

/* ------------------------------------------------------------------ lines */

void
fbk_line_join(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line, bool in_front)
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

struct fbk_connection *
fbk_line_first(struct fbk_worker *worker, uint32_t line)
{
    uint32_t slot = worker->lines[line].first;
    return slot == FBK_NO_CONNECTION ? NULL : &worker->connections[slot];
}

/* It may have received more before its turn came as one of those that go on: where it waits now is what counts. */
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
    return worker->lines[FBK_LINE_CONTEXT].count > 0 || worker->lines[FBK_LINE_APACHE_ADDS].count > 0 ||
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

/* ------------------------------------------------------------------ events */

void
fbk_connection_mark(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->is_dirty)
        return;
    connection->is_dirty = true;
    worker->dirty[worker->dirty_count++] = fbk_connection_slot(worker, connection);
}

void
fbk_connection_todo(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t todo)
{
    connection->todo |= todo;
    fbk_connection_mark(worker, connection);
}

static bool
is_alive(const struct fbk_connection *connection)
{
    return connection->state != FBK_CONNECTION_FREE && connection->state != FBK_CONNECTION_GONE;
}

static bool
has_todo(const struct fbk_connection *connection)
{
    if (!is_alive(connection))
        return false;
    return connection->todo != 0 ||
           (connection->state != FBK_CONNECTION_DISCARD && connection->is_paused != (connection->blocked != 0));
}

uint32_t
fbk_connection_take_todo(struct fbk_connection *connection)
{
    if (!is_alive(connection))
        return 0;
    bool is_blocked = connection->blocked != 0;
    /* What a finished connection still sends has to be read, and thrown away. */
    if (connection->state == FBK_CONNECTION_DISCARD)
        is_blocked = false;
    uint32_t todo = connection->todo;
    connection->todo = 0;
    if (is_blocked != connection->is_paused)
        todo |= is_blocked ? FBK_DO_PAUSE : FBK_DO_RESUME;
    connection->is_paused = is_blocked;
    if (connection->is_own_buffer && !is_blocked)
        todo |= FBK_DO_BUFFER;
    return todo;
}

void
fbk_dirty_flush(struct fbk_worker *worker)
{
    for (uint32_t i = 0; i < worker->dirty_count; i++)
        fbk_output_flush(worker, &worker->connections[worker->dirty[i]]);
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
        uint32_t todo = has_todo(connection) ? fbk_connection_take_todo(connection) : 0;
        if (todo != 0)
            worker->events[worker->event_count++] = (struct fbk_worker_event){worker->dirty[i], todo};
    }
    worker->dirty_count = 0;
}

/* ------------------------------------------------------------------ coming and going */

void
fbk_connection_deadline(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t after_us)
{
    connection->deadline_us = worker->now_us + after_us;
    connection->has_deadline = true;
}

int32_t
fbk_worker_connect(struct fbk_worker *worker, int32_t fd)
{
    worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
    uint32_t slot;
    if (worker->slots_used < worker->options.connections_max && worker->free_count == 0) {
        slot = worker->slots_used++;
    } else if (worker->free_count > 0) {
        slot = worker->free_slots[worker->free_first];
        worker->free_first = (worker->free_first + 1) % worker->options.connections_max;
        worker->free_count--;
    } else {
        return FBK_E_FULL;
    }
    struct fbk_connection *connection = &worker->connections[slot];
    uint32_t generation = connection->generation + 1;
    bool is_dirty = connection->is_dirty; /* of the slot's last user: it still stands in the list */
    memset(connection, 0, sizeof *connection);
    connection->generation = generation;
    connection->is_dirty = is_dirty;
    connection->fd = fd;
    connection->heard_sweep = worker->sweeps;
    connection->state = FBK_CONNECTION_MAGIC;
    connection->contexts = FBK_NO_CONTEXT;
    worker->connection_count++;
    fbk_worker_note(worker, FBK_C_WORKER_CONNECTIONS_ACCEPTED);
    fbk_gauge(worker->stats, FBK_C_WORKER_CONNECTIONS, worker->connection_count);
    if (worker->is_draining)
        connection->blocked = FBK_BLOCKED_DRAIN;
    return (int32_t)slot;
}

static void
release(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->state = FBK_CONNECTION_FREE;
    /* A generation is never used twice: after the last one the slot rests for good. */
    if (connection->generation == UINT32_MAX)
        return;
    uint32_t last = (worker->free_first + worker->free_count) % worker->options.connections_max;
    worker->free_slots[last] = fbk_connection_slot(worker, connection);
    worker->free_count++;
}

int32_t
fbk_worker_disconnect(struct fbk_worker *worker, uint32_t slot)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    if (connection->state == FBK_CONNECTION_GONE)
        return 0;
    connection->fd = -1;
    fbk_line_leave(worker, connection);
    fbk_contexts_drop(worker, connection);
    fbk_output_drop(worker, connection);
    worker->reply_bytes -= connection->handed_bytes;
    connection->handed_bytes = 0;
    fbk_input_drop(worker, connection);
    worker->pending -= connection->pending;
    worker->polls -= connection->polls;
    worker->connection_count--;
    fbk_gauge(worker->stats, FBK_C_WORKER_CONNECTIONS, worker->connection_count);
    connection->state = FBK_CONNECTION_GONE;
    connection->blocked = 0;
    connection->todo = 0;
    connection->has_deadline = false;
    if (connection->polls == 0) {
        release(worker, connection);
    } else {
        fbk_line_join(worker, connection, FBK_LINE_CANCEL, false);
        fbk_cancel_serve(worker);
        fbk_worker_publish(worker);
    }
    /* What it held may be what others wait for. */
    fbk_budget_serve(worker);
    bool is_more = worker->lines[FBK_LINE_READY].count > 0 || fbk_connections_wait_for_contexts(worker);
    return fbk_dirty_prune(worker) > 0 || fbk_worker_starves(worker) || is_more ? FBK_DO_COLLECT : 0;
}

void
fbk_cancel_serve(struct fbk_worker *worker)
{
    struct fbk_connection *connection;
    while ((connection = fbk_line_first(worker, FBK_LINE_CANCEL)) != NULL) {
        uint64_t id = fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation);
        for (uint32_t p = 0; p < worker->lane_count; p++) {
            if (!(connection->poll_lanes & 1u << p))
                continue;
            if (!fbk_worker_place_cancel(worker, &worker->lanes[p], id))
                return;
            connection->poll_lanes &= (uint8_t)~(1u << p);
        }
        fbk_line_leave(worker, connection);
        release(worker, connection);
    }
}

static void
expire(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->state == FBK_CONNECTION_OPEN)
        fbk_worker_note(worker, FBK_C_WORKER_FRAME_TIMEOUTS);
    else if (connection->state != FBK_CONNECTION_DISCARD)
        fbk_worker_note(worker, FBK_C_WORKER_HELLO_TIMEOUTS);
    connection->has_deadline = false;
    fbk_connection_todo(worker, connection, FBK_DO_ABORT);
}

int32_t
fbk_worker_sweep(struct fbk_worker *worker)
{
    fbk_worker_clock(worker);
    fbk_beat(worker->stats, FBK_BEAT_LOOP);
    fbk_digests_tick(worker);
    worker->sweeps++;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        struct fbk_connection *connection = &worker->connections[slot];
        if (connection->has_deadline && (int32_t)(worker->now_us - connection->deadline_us) >= 0)
            expire(worker, connection);
        else if (connection->is_busy)
            fbk_reads_check(worker, connection);
    }
    fbk_budget_serve(worker);
    while (worker->input_bytes > worker->options.partial_frames_bytes_max && fbk_close_slowest(worker, NULL))
        continue; /* what waited for its turn, or was tried, stays above the bound otherwise */
    fbk_memory_return(worker);
    fbk_gauge(worker->stats, FBK_C_WORKER_INPUT_BYTES, worker->input_bytes);
    fbk_gauge(worker->stats, FBK_C_WORKER_UNREAD_REPLY_BYTES, worker->reply_bytes);
    fbk_gauge(worker->stats, FBK_C_WORKER_PENDING, worker->pending);
    fbk_worker_set_gauges(worker);
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count;
}

/* A long poll is silence, too: it waits for nothing of its client's. */
static bool
is_silent(const struct fbk_connection *connection)
{
    return is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD && connection->blocked == 0 &&
           connection->pending == connection->polls && connection->input == NULL && connection->output_used == 0 &&
           connection->handed_bytes == 0;
}

uint32_t
fbk_worker_silent(struct fbk_worker *worker, struct fbk_worker_silent *silent, uint32_t count_max)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < worker->slots_used && count < count_max; slot++) {
        const struct fbk_connection *connection = &worker->connections[slot];
        if (is_silent(connection))
            silent[count++] = (struct fbk_worker_silent){
                slot, worker->sweeps - connection->heard_sweep, connection->state != FBK_CONNECTION_MAGIC};
    }
    return count;
}

int32_t
fbk_worker_drain(struct fbk_worker *worker)
{
    worker->is_draining = true;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        struct fbk_connection *connection = &worker->connections[slot];
        if (is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD)
            fbk_connection_block(worker, connection, FBK_BLOCKED_DRAIN);
    }
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count;
}
