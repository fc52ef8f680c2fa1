/* What a connection has: the line that it waits in, its events, the input that it keeps, and its output.
 *
 * Nothing here reads a request.  Input and output together have a bound (INV-B1), for which peers that are too slow are
 * closed. */
#include "worker/worker.h"

#include "base/fault.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static void output_cut(struct fbk_worker *worker, struct fbk_connection *connection);
static void bound_replies(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t more_bytes);
static void begin_reads(struct fbk_worker *worker, struct fbk_connection *connection);
static void input_over_end(struct fbk_worker *worker, struct fbk_connection *connection);

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
has_todo(const struct fbk_connection *connection)
{
    if (!fbk_connection_is_alive(connection))
        return false;
    return connection->todo != 0 ||
           (connection->state != FBK_CONNECTION_DISCARD && connection->is_paused != (connection->blocked != 0));
}

void
fbk_connection_watch(struct fbk_worker *worker, struct fbk_connection *connection, bool is_wanted)
{
    if (is_wanted == connection->is_watched)
        return;
    struct epoll_event event = {
        .events = EPOLLIN,
        .data.u64 = fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation),
    };
    connection->is_watched = is_wanted;
    if (epoll_ctl(worker->poll_fd, is_wanted ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, connection->fd, &event) != 0)
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
    bool is_blocked = connection->blocked != 0;
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
        uint32_t todo = has_todo(connection) ? fbk_connection_take_todo(worker, connection) : 0;
        if (todo != 0)
            worker->events[worker->event_count++] = (struct fbk_worker_event){worker->dirty[i], todo};
    }
    worker->dirty_count = 0;
}

void
fbk_connection_deadline(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t after_us)
{
    connection->deadline_us = worker->now_us + after_us;
    connection->has_deadline = true;
}

/* ------------------------------------------------------------------ output */

/* Replies on their way out.  While the transport is empty they are sent from here; what the socket does not take is handed
 * to the transport, and until that has written it all nothing is sent past it, nor read from that connection. */

/* Most outputs are a few acknowledgements and fit into a small block: with a large one for each, a thousand connections that
 * are answered at once cost 64 MB and a page fault each. */
static const uint32_t block_bytes[FBK_OUTPUT_BLOCK_KINDS] = {FBK_PAGE_BYTES, FBK_OUTPUT_BLOCK_BYTES};
static const uint32_t blocks_kept_max[FBK_OUTPUT_BLOCK_KINDS] = {1024, 32};

/* FBK_OUTPUT_BLOCK_KINDS: of another size. */
static uint32_t
block_kind(uint64_t size_bytes)
{
    uint32_t kind = 0;
    while (kind < FBK_OUTPUT_BLOCK_KINDS && size_bytes != block_bytes[kind])
        kind++;
    return kind;
}

static uint8_t *
block_take(struct fbk_worker *worker, uint64_t size_bytes)
{
    uint32_t kind = block_kind(size_bytes);
    if (kind == FBK_OUTPUT_BLOCK_KINDS || worker->output_blocks[kind] == NULL)
        return malloc(size_bytes);
    uint8_t *block = worker->output_blocks[kind];
    memcpy(&worker->output_blocks[kind], block, sizeof(uint8_t *)); /* a free one begins with the next one's address */
    worker->output_block_counts[kind]--;
    return block;
}

static void
output_give_back(struct fbk_worker *worker, struct fbk_connection *connection)
{
    uint32_t kind = block_kind(connection->output_size_bytes);
    worker->reply_bytes -= connection->output_size_bytes;
    if (kind < FBK_OUTPUT_BLOCK_KINDS && worker->output_block_counts[kind] < blocks_kept_max[kind]) {
        memcpy(connection->output, &worker->output_blocks[kind], sizeof(uint8_t *));
        worker->output_blocks[kind] = connection->output;
        worker->output_block_counts[kind]++;
    } else {
        free(connection->output);
    }
    connection->output = NULL;
    connection->output_size_bytes = 0;
    connection->output_used = 0;
}

void
fbk_output_blocks_free(struct fbk_worker *worker)
{
    for (uint32_t kind = 0; kind < FBK_OUTPUT_BLOCK_KINDS; kind++)
        while (worker->output_blocks[kind] != NULL)
            free(block_take(worker, block_bytes[kind]));
}

void
fbk_output_drop(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->output != NULL)
        output_give_back(worker, connection);
}

/* Ends a connection at once. */
static void
output_cut(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->state = FBK_CONNECTION_DISCARD;
    fbk_line_leave(worker, connection);
    fbk_output_drop(worker, connection);
    /* Those of the transport are gone once Python has aborted it, which it does next. */
    worker->reply_bytes -= connection->handed_bytes;
    connection->handed_bytes = 0;
    fbk_connection_todo(worker, connection, FBK_DO_ABORT);
}

/* Doubled up to here, then grown by so much: what is taken and not used counts as unread, too. */
#define FBK_OUTPUT_STEP_BYTES (8u << 20)
#define FBK_BACKLOG_BYTES_MAX ((1u << 30) - FBK_OUTPUT_STEP_BYTES)

/* Replies that one connection may leave unread.  Apache's clients request any number of entries at once, and their whole read
 * fails when the connection ends: for them only the bound over all connections counts. */
static uint64_t
backlog_max(const struct fbk_worker *worker, const struct fbk_connection *connection)
{
    uint64_t most = worker->options.unread_replies_bytes_max;
    if (!connection->is_apache)
        return worker->options.reply_backlog_bytes_max;
    return most < FBK_BACKLOG_BYTES_MAX ? most : FBK_BACKLOG_BYTES_MAX;
}

/* Makes the output at least size_bytes large. */
static bool
output_grow(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t size_bytes)
{
    uint64_t room = connection->output_size_bytes;
    for (uint32_t kind = 0; kind < FBK_OUTPUT_BLOCK_KINDS && room < size_bytes; kind++)
        room = room < block_bytes[kind] ? block_bytes[kind] : room;
    while (room < size_bytes)
        room += room < FBK_OUTPUT_STEP_BYTES ? room : FBK_OUTPUT_STEP_BYTES;
    uint8_t *output = block_take(worker, room);
    if (output == NULL) {
        output_cut(worker, connection);
        return false;
    }
    uint32_t used = connection->output_used;
    if (used > 0)
        memcpy(output, connection->output, used);
    if (connection->output != NULL)
        output_give_back(worker, connection);
    worker->reply_bytes += room;
    fbk_worker_note_held(worker);
    connection->output = output;
    connection->output_size_bytes = (uint32_t)room;
    connection->output_used = used;
    return true;
}

uint8_t *
fbk_output_room(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes)
{
    if (connection->state != FBK_CONNECTION_OPEN && connection->state != FBK_CONNECTION_HELLO)
        return NULL;
    uint64_t needed = (uint64_t)connection->output_used + size_bytes;
    if (FBK_UNLIKELY(needed > connection->output_size_bytes)) {
        if (connection->output_used > 0 && !connection->is_busy && needed > FBK_OUTPUT_BLOCK_BYTES) {
            fbk_output_flush(worker, connection);
            if (connection->state == FBK_CONNECTION_DISCARD)
                return NULL;
            needed = (uint64_t)connection->output_used + size_bytes;
        }
        if (connection->handed_bytes + needed > backlog_max(worker, connection)) {
            fbk_worker_note(worker, FBK_C_WORKER_SLOW_READERS_CUT);
            output_cut(worker, connection);
            return NULL;
        }
        if (needed > connection->output_size_bytes) {
            bound_replies(worker, connection, needed - connection->output_size_bytes);
            if (connection->state == FBK_CONNECTION_DISCARD)
                return NULL;
            needed = (uint64_t)connection->output_used + size_bytes; /* some may have been sent */
            if (needed > connection->output_size_bytes && !output_grow(worker, connection, needed))
                return NULL;
        }
    }
    fbk_connection_mark(worker, connection);
    uint8_t *room = connection->output + connection->output_used;
    connection->output_used += size_bytes;
    return room;
}

void
fbk_output_status(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id, uint32_t status)
{
    uint8_t *room = fbk_output_room(worker, connection, FBK_WIRE_STATUS_BYTES);
    if (room != NULL)
        fbk_wire_put_status(room, request_id, status);
}

/* Bytes that the socket took; 0 also when it is full; -1: the connection is broken. */
static int64_t
try_send(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint64_t size_bytes)
{
    uint64_t sent = 0;
    while (sent < size_bytes) {
        fbk_worker_note(worker, FBK_C_WORKER_SENDS);
        ssize_t result = send(connection->fd, data + sent, size_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (result < 0) {
            output_cut(worker, connection); /* the transport will hear of it too; until then nothing more is sent */
            return -1;
        }
        sent += (uint64_t)result;
    }
    fbk_count(worker->stats, FBK_C_WORKER_BYTES_SENT, sent);
    return (int64_t)sent;
}

void
fbk_output_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame, uint32_t size_bytes)
{
    uint64_t sent = 0;
    bool is_direct = !connection->is_busy && !connection->is_secure && connection->state == FBK_CONNECTION_OPEN;
    if (size_bytes >= FBK_DIRECT_SEND_BYTES_MIN && is_direct) {
        fbk_output_flush(worker, connection);
        if (connection->output_used == 0 && connection->state == FBK_CONNECTION_OPEN) {
            int64_t result = try_send(worker, connection, frame, size_bytes);
            if (result < 0)
                return;
            sent = (uint64_t)result;
        }
        if (sent == size_bytes)
            return;
    }
    uint8_t *room = fbk_output_room(worker, connection, size_bytes - (uint32_t)sent);
    if (room != NULL)
        memcpy(room, frame + sent, size_bytes - sent);
}

void
fbk_output_flush(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->output_used == 0 || connection->fd < 0)
        return;
    if (!connection->is_busy && connection->is_secure) {
        fbk_connection_todo(worker, connection, FBK_DO_WRITE);
    } else if (!connection->is_busy) {
        FBK_KILL_POINT("worker.before_send");
        int64_t sent = try_send(worker, connection, connection->output, connection->output_used);
        if (sent < 0)
            return;
        FBK_KILL_POINT("worker.after_send");
        connection->output_used -= (uint32_t)sent;
        if (connection->output_used == 0) {
            output_give_back(worker, connection);
            connection->todo &= ~(uint32_t)FBK_DO_WRITE; /* a flush in the middle of an earlier call had a rest */
            return;
        }
        memmove(connection->output, connection->output + sent, connection->output_used);
        fbk_connection_todo(worker, connection, FBK_DO_WRITE);
    } else if (connection->state == FBK_CONNECTION_DISCARD) {
        fbk_connection_todo(worker, connection, FBK_DO_WRITE); /* its last frame goes behind what the transport has */
    }
}

uint64_t
fbk_worker_output_bytes(struct fbk_worker *worker, uint32_t slot)
{
    return fbk_connection_at(worker, slot)->output_used;
}

static uint32_t
move_output(struct fbk_worker *worker, struct fbk_connection *connection, uint8_t *to, uint64_t size_bytes_max)
{
    uint32_t size_bytes = connection->output_used;
    if (size_bytes == 0 || size_bytes > size_bytes_max)
        return 0;
    memcpy(to, connection->output, size_bytes);
    output_give_back(worker, connection);
    fbk_count(worker->stats, FBK_C_WORKER_BYTES_SENT, size_bytes);
    return size_bytes;
}

static void
hand_over(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t size_bytes)
{
    if (!connection->is_busy)
        begin_reads(worker, connection);
    connection->is_busy = true;
    connection->handed_bytes += size_bytes;
    worker->reply_bytes += size_bytes;
    if (connection->state == FBK_CONNECTION_OPEN && !(connection->blocked & FBK_BLOCKED_OUTPUT)) {
        fbk_worker_note(worker, FBK_C_WORKER_WAITS_OUTPUT);
        fbk_connection_block(worker, connection, FBK_BLOCKED_OUTPUT);
    }
}

int64_t
fbk_worker_take_output(struct fbk_worker *worker, uint32_t slot, uint8_t *to, uint64_t size_bytes_max)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    uint32_t size_bytes = move_output(worker, connection, to, size_bytes_max);
    if (size_bytes > 0)
        hand_over(worker, connection, size_bytes);
    return size_bytes;
}

int64_t
fbk_worker_pass_output(struct fbk_worker *worker, uint32_t slot, uint8_t *to, uint64_t size_bytes_max)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    return connection->is_busy ? 0 : move_output(worker, connection, to, size_bytes_max);
}

void
fbk_worker_handed(struct fbk_worker *worker, uint32_t slot, uint64_t size_bytes)
{
    hand_over(worker, fbk_connection_at(worker, slot), size_bytes);
}

/* ------------------------------------------------------------------ frames under way */

/* A frame under way earns time by its bytes: its deadline moves by 1/frame_bytes_per_s_min for each, and is never further
 * away than frame_timeout.  So a frame that keeps the least rate may be as large as frames may be, and one that pauses
 * has frame_timeout. */

void
fbk_frame_begin(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t used)
{
    connection->frame_us = worker->now_us;
    connection->frame_used = used;
    if (connection->state == FBK_CONNECTION_OPEN) /* until hello the one deadline from the beginning counts */
        fbk_connection_deadline(worker, connection, worker->options.frame_timeout_ms * 1000u);
}

void
fbk_frame_arrived(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t size_bytes)
{
    connection->frame_used += size_bytes;
    if (connection->state != FBK_CONNECTION_OPEN)
        return;
    int64_t left_us = (int32_t)(connection->deadline_us - worker->now_us);
    int64_t earned_us = (int64_t)size_bytes * 1000000 / worker->options.frame_bytes_per_s_min;
    int64_t most_us = (int64_t)worker->options.frame_timeout_ms * 1000;
    int64_t after_us = left_us + earned_us < most_us ? left_us + earned_us : most_us;
    if (after_us > 0) /* else it is over, and the next sweep says so */
        fbk_connection_deadline(worker, connection, (uint32_t)after_us);
}

/* Bytes a second, or UINT64_MAX when nothing can be said, or nothing would be won. */
static uint64_t
rate_of(const struct fbk_worker *worker, const struct fbk_connection *connection)
{
    bool is_under_way = (connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO) &&
                        connection->blocked == 0 && connection->input_size_bytes >= FBK_PAGE_BYTES / 2;
    uint32_t age_us = worker->now_us - connection->frame_us;
    if (!is_under_way || age_us < FBK_RATE_AGE_US)
        return UINT64_MAX;
    return (uint64_t)connection->frame_used * 1000000 / age_us;
}

/* Its input is Python's to write to until that has aborted it: it is not counted any more, and freed by the disconnect. */
static void
close_slow(struct fbk_worker *worker, struct fbk_connection *connection)
{
    fbk_worker_note(worker, FBK_C_WORKER_SLOW_FRAMES_CUT);
    input_over_end(worker, connection);
    worker->input_bytes -= connection->input_size_bytes;
    connection->input_size_bytes = 0;
    connection->is_own_buffer = false;
    connection->has_deadline = false;
    output_cut(worker, connection);
}

bool
fbk_close_slowest(struct fbk_worker *worker, const struct fbk_connection *wanting)
{
    /* No look at all connections for each of many that want memory at the same moment. */
    if (worker->closed_none && worker->now_us - worker->closed_none_us < FBK_RATE_AGE_US / 8)
        return false;
    struct fbk_connection *slowest = NULL;
    uint64_t least = (uint64_t)worker->options.frame_bytes_per_s_min * FBK_CONTENDED_RATES;
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
    if (slowest != NULL)
        close_slow(worker, slowest);
    return slowest != NULL;
}

/* ------------------------------------------------------------------ replies that are not read */

/* What the peer's kernel has taken, modulo 2^32.  Other sockets than TCP's say only how much they have left. */
static uint32_t
read_bytes(int32_t fd)
{
    struct tcp_info info;
    socklen_t size_bytes = sizeof info;
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size_bytes) == 0 &&
        size_bytes >= offsetof(struct tcp_info, tcpi_bytes_acked) + sizeof info.tcpi_bytes_acked)
        return (uint32_t)info.tcpi_bytes_acked;
    int left = 0;
    return ioctl(fd, SIOCOUTQ, &left) == 0 ? 0u - (uint32_t)left : 0;
}

/* The transport has replies from now on. */
static void
begin_reads(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->read_us = worker->now_us;
    connection->read_mark = read_bytes(connection->fd);
}

void
fbk_reads_check(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (connection->fd < 0 || connection->state == FBK_CONNECTION_DISCARD)
        return;
    uint32_t now_read = read_bytes(connection->fd);
    if (now_read - connection->read_mark >= FBK_READ_STEP_BYTES) {
        connection->read_mark = now_read;
        connection->read_us = worker->now_us;
    } else if (worker->now_us - connection->read_us >= worker->options.write_timeout_ms * 1000u) {
        fbk_worker_note(worker, FBK_C_WORKER_WRITE_TIMEOUTS);
        output_cut(worker, connection);
    }
}

static uint64_t
unread_bytes(const struct fbk_connection *connection)
{
    bool is_open = connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO;
    return is_open ? connection->handed_bytes + connection->output_used : 0;
}

/* Who is cut when there is too much: of those that do not read at all, else of all, the one with the most. */
static struct fbk_connection *
worst_reader(struct fbk_worker *worker)
{
    struct fbk_connection *worst = NULL;
    bool worst_stands = false;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        struct fbk_connection *connection = &worker->connections[slot];
        uint64_t unread = unread_bytes(connection);
        bool stands = connection->is_busy && worker->now_us - connection->read_us >= FBK_STALLED_US;
        if (unread == 0 || stands < worst_stands)
            continue;
        if (worst == NULL || stands > worst_stands || unread > unread_bytes(worst)) {
            worst = connection;
            worst_stands = stands;
        }
    }
    return worst;
}

/* Has all replies take at most unread_replies_bytes_max with `more_bytes` of this connection's, which may be cut for that. */
static void
bound_replies(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t more_bytes)
{
    uint64_t most = worker->options.unread_replies_bytes_max;
    if (FBK_LIKELY(worker->reply_bytes + more_bytes <= most))
        return;
    fbk_dirty_flush(worker); /* what is only waiting for the end of this call is not unread */
    while (worker->reply_bytes + more_bytes > most && connection->state != FBK_CONNECTION_DISCARD) {
        struct fbk_connection *worst = worst_reader(worker);
        if (worst == NULL)
            break;
        fbk_worker_note(worker, FBK_C_WORKER_UNREAD_REPLIES_CUT);
        output_cut(worker, worst);
    }
}

/* ------------------------------------------------------------------ memory */

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
    /* A whole sweep took much less than there was before: the allocator keeps what it has until it is told. */
    worker->held_peak_before_bytes = peak;
#ifdef __GLIBC__
    malloc_trim(0);
    fbk_worker_note(worker, FBK_C_WORKER_MEMORY_RETURNED);
#endif
}

/* ------------------------------------------------------------------ input */

/* The input that connections have to keep: part of a frame, or frames that wait.
 *
 * Memory is taken as bytes arrive, doubling: a connection that announces much and sends little holds little.  While
 * half of the bound is free a frame gets its memory at once, which saves copies.  When memory is short, the slowest frame
 * under way is closed if it is slow; else the one that wants memory waits in line.  New wishes get three quarters of the
 * bound, so that there is always something for the line.
 *
 * One frame can always finish: the first in line may go over the bound, one at a time, and has the whole frame's memory
 * then.  It either arrives, or is slower than the least rate and is closed; both end, and the next one follows.  Behind it
 * FBK_TRIALS_MAX may go on for a little: those that have nothing to send show so, and are closed. */

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
has_budget(const struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t room, uint64_t bound)
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
make_room(struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t room, uint64_t bound)
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
fbk_input_keep(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data, uint32_t size_bytes)
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
        if (make_room(worker, connection, wanted, worker->options.partial_frames_bytes_max / 4 * 3)) {
            room = wanted;
        } else {
            wait_for_memory(worker, connection);
            is_partial = false;
        }
    } else if (is_partial) {
        room = connection->input_size_bytes;
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
    fbk_worker_note_held(worker);
    connection->input = both;
    connection->input_size_bytes = before + size_bytes;
    connection->input_from = 0;
    connection->input_used = before + size_bytes;
}

/* What the first in line gets, 0 when it has to wait on: growth within the bound, else the whole frame as the only one that
 * may go over it, else a trial. */
static uint32_t
room_for_first(struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t used)
{
    uint32_t room = wanted_room(worker, connection, used);
    if (make_room(worker, connection, room, worker->options.partial_frames_bytes_max))
        return room;
    if (worker->over_budget == NULL)
        return connection->frame_bytes;
    room = connection->frame_bytes - used > FBK_SMALL_FRAME_BYTES ? used + FBK_SMALL_FRAME_BYTES : connection->frame_bytes;
    return worker->trial_count < FBK_TRIALS_MAX ? room : 0;
}

/* Those that wait hold what they had received when they began to wait, and that alone could fill the budget: so one
 * connection at a time may go over it, and all come to their turn. */
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
        if (!input_replace(worker, connection, connection->input + connection->input_from, used, room))
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
