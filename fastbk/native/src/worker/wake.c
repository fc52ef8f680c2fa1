/* What a worker does when it is woken: by its bell, for answers, or by sockets that are
 * readable.
 *
 * Decision 21. */
#include "worker/worker.h"

#include "base/fault.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PASSES_MAX 4
#define POLL_EVENTS_MAX 256
/* received from several connections: as many as start a second batch */
#define PUBLISH_BYTES 65536u
#define SPIN_PAUSES 16 /* between two looks at the sockets: about a microsecond */

/* ------------ by its bell */

static void
note_add_wait(struct fbk_worker *worker, uint32_t blocked_us)
{
    uint32_t took_us = worker->now_us - blocked_us;
    fbk_count_timed(worker->stats, FBK_C_WORKER_ADD_WAITS, took_us);
    if (took_us >= FBK_FLIGHT_SLOW_US)
        fbk_worker_note_wait(worker, blocked_us);
}

/* A turn in that line is over: was it the end of the wait for which it stood there? */
static void
note_turn(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line,
          uint32_t blocked_us, bool got_some)
{
    if (!got_some)
        connection->blocked_us = blocked_us;
    else if (line == FBK_LINE_APACHE_ADDS || (line >= FBK_LINE_ADD && line < FBK_LINE_REQUEST))
        note_add_wait(worker, blocked_us);
    else if (line == FBK_LINE_APACHE_READS || line >= FBK_LINE_REQUEST)
        fbk_count_timed(worker->stats, FBK_C_WORKER_READ_WAITS, worker->now_us - blocked_us);
}

/* Gives those in a line their turn, in order: each as much as there is room for, and to the end of
 * the line if it got some of it; the first that got nothing stays first, and ends the round. */
static void
serve_line(struct fbk_worker *worker, uint32_t line, uint32_t why)
{
    for (uint32_t left = worker->lines[line].count; left > 0; left--) {
        struct fbk_connection *connection = fbk_line_first(worker, line);
        if (connection == NULL)
            break;
        fbk_line_leave(worker, connection);
        connection->blocked &= (uint16_t)~why;
        uint32_t blocked_us = connection->blocked_us;
        worker->serving = connection;
        worker->turn_frames = worker->turn_bytes = 0;
        bool got_some = fbk_worker_go_on(worker, connection);
        worker->serving = NULL;
        note_turn(worker, connection, line, blocked_us, got_some);
        fbk_connection_mark(worker, connection);
        if (connection->line == line && !got_some) {
            fbk_line_leave(worker, connection);
            fbk_line_join(worker, connection, line, true);
            break;
        }
    }
}

static void
move_line(struct fbk_worker *worker, uint32_t from, uint32_t to)
{
    struct fbk_connection *connection;
    while ((connection = fbk_line_first(worker, from)) != NULL) {
        fbk_line_leave(worker, connection);
        fbk_line_join(worker, connection, to, false);
    }
}

/* Those whose principal may add again; each is looked at, as they are of several.  Who goes on and
 * has to wait again stands behind all others then: else the first of a principal would take all
 * that it gets. */
static void
serve_quotas(struct fbk_worker *worker)
{
    if (worker->lines[FBK_LINE_QUOTA].count == 0 ||
        worker->clock_ns - worker->quotas_served_ns < FBK_QUOTA_STEP_US * 1000ull / 2)
        return;
    worker->quotas_served_ns = worker->clock_ns;
    struct fbk_connection *connection;
    for (uint32_t left = worker->lines[FBK_LINE_QUOTA].count; left > 0; left--) {
        if ((connection = fbk_line_first(worker, FBK_LINE_QUOTA)) == NULL)
            break; /* one that went on has cut others, whose memory it needed */
        fbk_line_leave(worker, connection);
        if (!fbk_quota_may_go_on(worker, connection)) {
            fbk_line_join(worker, connection, FBK_LINE_QUOTA_NOT_YET, false);
            continue;
        }
        connection->blocked &= (uint16_t)~FBK_BLOCKED_QUOTA;
        worker->turn_frames = worker->turn_bytes = 0;
        fbk_worker_go_on(worker, connection);
        fbk_connection_mark(worker, connection);
    }
    move_line(worker, FBK_LINE_QUOTA, FBK_LINE_QUOTA_NOT_YET);
    move_line(worker, FBK_LINE_QUOTA_NOT_YET, FBK_LINE_QUOTA);
}

static void
serve(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        bool moved;
        lane->reads_only = fbk_cursor_load(&lane->index->reads_only);
        if (!fbk_lane_refresh(worker, lane, &moved))
            return;
    }
    fbk_cancels_serve(worker);
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        fbk_contexts_serve(worker, &worker->lanes[p]);
        serve_line(worker, FBK_LINE_ADD + p, FBK_BLOCKED_ADD);
        serve_line(worker, FBK_LINE_REQUEST + p, FBK_BLOCKED_REQUEST);
    }
    for (uint32_t line = FBK_LINE_CONTEXT; line <= FBK_LINE_APACHE_READS; line++)
        serve_line(worker, line, FBK_BLOCKED_CONTEXT);
    serve_quotas(worker);
    serve_line(worker, FBK_LINE_READY, FBK_BLOCKED_TURN);
    worker->turn_slot = FBK_NO_CONNECTION;
}

static void
drain_bell(struct fbk_worker *worker)
{
    uint64_t count;
    ssize_t result = read(worker->options.bell_fd, &count, sizeof count);
    /* nothing there is as good: it was rung for something that is done already */
    (void)result;
}

static int32_t
collect(struct fbk_worker *worker)
{
    int32_t more = FBK_WORKER_MORE;
    for (int pass = 0; pass < PASSES_MAX && more != 0; pass++) {
        fbk_lanes_wake(worker);
        fbk_worker_clock(worker);
        if (!fbk_answers_take(worker))
            return FBK_E_POISONED;
        serve(worker);
        fbk_worker_publish(worker);
        fbk_dirty_flush(worker);
        fbk_budget_serve(worker);
        if (worker->is_poisoned)
            return FBK_E_POISONED;
        fbk_lanes_starve(worker);
        fbk_lanes_sleep(worker);
        /* What the end of this pass made ready has its turn in another one: nobody rings for it. */
        if (!fbk_lanes_have_news(worker) && worker->lines[FBK_LINE_READY].count == 0)
            more = 0;
    }
    if (more != 0)
        fbk_lanes_wake(worker);
    fbk_flight_sample(&worker->recorder, worker->clock_ns);
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count + more;
}

int32_t
fbk_worker_collect(struct fbk_worker *worker)
{
    drain_bell(worker);
    fbk_worker_note(worker, FBK_C_WORKER_WAKES);
    return collect(worker);
}

/* ------------ by its sockets */

int32_t
fbk_worker_watch(struct fbk_worker *worker, uint32_t slot)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    connection->is_polled = true;
    connection->is_paused = connection->blocked != 0 && connection->state != FBK_CONNECTION_DISCARD;
    fbk_connection_watch(worker, connection, !connection->is_paused);
    return (int32_t)(connection->todo & FBK_DO_ABORT);
}

int32_t
fbk_worker_await(struct fbk_worker *worker, uint32_t slot)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    connection->is_awaited = connection->is_polled = true;
    connection->is_paused = false;
    fbk_connection_watch(worker, connection, true);
    return (int32_t)(connection->todo & FBK_DO_ABORT);
}

/* What it waits for is there.  A client that is known, or need not be, may rest as long as it likes
 * before its first byte. */
static void
open_awaited(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->is_awaited = connection->is_polled = false;
    connection->received_sweep = worker->sweeps;
    fbk_connection_watch(worker, connection, false);
    if (!connection->has_deadline) /* it may trickle in */
        fbk_connection_begin(worker, connection);
    fbk_connection_todo(worker, connection, FBK_DO_OPEN);
}

int32_t
fbk_worker_poll_fd(struct fbk_worker *worker)
{
    return worker->poll_fd;
}

/* Once: who has more has its next turn after the others.  Returns its bytes. */
static uint32_t
receive_from(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (FBK_UNLIKELY(connection->is_awaited)) {
        open_awaited(worker, connection);
        return 0;
    }
    bool is_tight = worker->input_bytes > worker->options.partial_frames_bytes_max / 2;
    uint32_t room = is_tight ? FBK_TIGHT_RECEIVE_BYTES : worker->options.receive_size_bytes;
    uint8_t *to = worker->receive_memory + FBK_SMALL_FRAME_BYTES;
    if (connection->is_own_buffer)
        to = fbk_worker_buffer(worker, fbk_connection_slot(worker, connection), &room);
    if (room == 0)
        return 0; /* it has just begun to wait for memory */
    ssize_t got = recv(connection->fd, to, room, MSG_DONTWAIT);
    if (got > 0) {
        fbk_worker_take(worker, connection, (uint32_t)got);
        return (uint32_t)got;
    }
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        connection->has_ended = true;
        fbk_connection_watch(worker, connection, false);
        fbk_connection_todo(worker, connection, got == 0 ? FBK_DO_END : FBK_DO_ABORT);
    }
    return 0;
}

static void
receive_all(struct fbk_worker *worker)
{
    struct epoll_event events[POLL_EVENTS_MAX];
    int count = epoll_wait(worker->poll_fd, events, POLL_EVENTS_MAX, 0);
    fbk_worker_clock(worker);
    fbk_worker_note(worker, FBK_C_WORKER_POLLS);
    uint32_t unpublished_bytes = 0;
    for (int i = 0; i < count; i++) {
        struct fbk_connection *connection = &worker->connections[(uint32_t)events[i].data.u64];
        if (connection->generation == events[i].data.u64 >> 32 && connection->is_watched)
            unpublished_bytes += receive_from(worker, connection);
        if (unpublished_bytes >= PUBLISH_BYTES) {
            fbk_worker_publish(worker);
            unpublished_bytes = 0;
        }
    }
}

/* Polls as long as it may.  True: there is something to collect. */
static bool
spin(struct fbk_worker *worker)
{
    struct pollfd readable = {.fd = worker->poll_fd, .events = POLLIN};
    fbk_worker_note(worker, FBK_C_WORKER_SPINS);
    while (!fbk_lanes_have_news(worker)) {
        if (!fbk_lanes_may_spin(worker, fbk_now_ns()) || poll(&readable, 1, 0) != 0)
            return false;
        for (int i = 0; i < SPIN_PAUSES; i++)
            fbk_pause();
    }
    return true;
}

/* Bytes came, or answers: the tickets say awake until the next collect, so that no bell is rung. */
static bool
begin_spin(struct fbk_worker *worker)
{
    worker->progress_ns = worker->clock_ns;
    if (worker->options.spin_us == 0 || !fbk_lanes_may_spin(worker, worker->clock_ns))
        return false;
    fbk_lanes_wake(worker);
    return true;
}

int32_t
fbk_worker_poll(struct fbk_worker *worker)
{
    receive_all(worker);
    bool is_spinning = begin_spin(worker);
    fbk_worker_publish(worker);
    fbk_dirty_flush(worker);
    fbk_budget_serve(worker);
    if (worker->is_poisoned)
        return FBK_E_POISONED;
    if (is_spinning) {
        bool has_news;
        int32_t result;
        do {
            has_news = spin(worker);
            result = collect(worker);
        } while (has_news && result == 0 && begin_spin(worker));
        return result;
    }
    bool is_more = fbk_lanes_starve(worker) || worker->lines[FBK_LINE_READY].count > 0 ||
                   (worker->apache.freed && fbk_connections_wait_for_contexts(worker));
    worker->apache.freed = false;
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count + (is_more ? FBK_WORKER_MORE : 0);
}
