/* Replies on their way out, and those that nobody reads.
 *
 * While the transport is empty they are sent from here; what the socket does not take is handed to
 * the transport, and until that has written it all nothing is sent past it, nor read from that
 * connection (INV-B1).
 *
 * Decisions 91 and 96. */
#include "worker/worker.h"

#include "base/fault.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

static void bound_replies(struct fbk_worker *worker, struct fbk_connection *connection,
                          uint64_t more_bytes);
static void begin_reads(struct fbk_worker *worker, struct fbk_connection *connection);

/* ------------ blocks */

/* Most outputs are a few acknowledgements and fit into a small block: with a large one for each, a
 * thousand connections that are answered at once cost 64 MB and a page fault each. */
static const uint32_t block_bytes[FBK_OUTPUT_BLOCK_KINDS] = {FBK_PAGE_BYTES,
                                                             FBK_OUTPUT_BLOCK_BYTES};
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
    /* a free one begins with the next one's address */
    memcpy(&worker->output_blocks[kind], block, sizeof(uint8_t *));
    worker->output_block_counts[kind]--;
    return block;
}

static void
output_give_back(struct fbk_worker *worker, struct fbk_connection *connection)
{
    uint32_t kind = block_kind(connection->output_size_bytes);
    worker->reply_bytes -= connection->output_size_bytes;
    if (kind < FBK_OUTPUT_BLOCK_KINDS &&
        worker->output_block_counts[kind] < blocks_kept_max[kind]) {
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

void
fbk_output_cut(struct fbk_worker *worker, struct fbk_connection *connection)
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

/* Replies that one connection may leave unread.  Apache's clients request any number of entries at
 * once, and their whole read fails when the connection ends: for them only the bound over all
 * connections counts. */
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
        fbk_output_cut(worker, connection);
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
        if (connection->output_used > 0 && !connection->is_busy &&
            needed > FBK_OUTPUT_BLOCK_BYTES) {
            fbk_output_flush(worker, connection);
            if (connection->state == FBK_CONNECTION_DISCARD)
                return NULL;
            needed = (uint64_t)connection->output_used + size_bytes;
        }
        if (connection->handed_bytes + needed > backlog_max(worker, connection)) {
            fbk_worker_note(worker, FBK_C_WORKER_SLOW_READERS_CUT);
            fbk_output_cut(worker, connection);
            return NULL;
        }
        if (needed > connection->output_size_bytes) {
            bound_replies(worker, connection, needed - connection->output_size_bytes);
            if (connection->state == FBK_CONNECTION_DISCARD)
                return NULL;
            /* some may have been sent */
            needed = (uint64_t)connection->output_used + size_bytes;
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
fbk_output_status(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id,
                  uint32_t status)
{
    uint8_t *room = fbk_output_room(worker, connection, FBK_WIRE_STATUS_BYTES);
    if (room != NULL)
        fbk_wire_put_status(room, request_id, status);
}

/* Bytes that the socket took; 0 also when it is full; -1: the connection is broken. */
static int64_t
try_send(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *data,
         uint64_t size_bytes)
{
    uint64_t sent = 0;
    while (sent < size_bytes) {
        fbk_worker_note(worker, FBK_C_WORKER_SENDS);
        ssize_t result =
            send(connection->fd, data + sent, size_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (result < 0) {
            /* the transport will hear of it too; until then nothing more is sent */
            fbk_output_cut(worker, connection);
            return -1;
        }
        sent += (uint64_t)result;
    }
    fbk_count(worker->stats, FBK_C_WORKER_BYTES_SENT, sent);
    return (int64_t)sent;
}

void
fbk_output_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame,
                 uint32_t size_bytes)
{
    uint64_t sent = 0;
    bool is_direct =
        !connection->is_busy && !connection->is_secure && connection->state == FBK_CONNECTION_OPEN;
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
            /* a flush in the middle of an earlier call had a rest */
            connection->todo &= ~(uint32_t)FBK_DO_WRITE;
            return;
        }
        memmove(connection->output, connection->output + sent, connection->output_used);
        fbk_connection_todo(worker, connection, FBK_DO_WRITE);
    } else if (connection->state == FBK_CONNECTION_DISCARD) {
        /* its last frame goes behind what the transport has */
        fbk_connection_todo(worker, connection, FBK_DO_WRITE);
    }
}

void
fbk_dirty_flush(struct fbk_worker *worker)
{
    for (uint32_t i = 0; i < worker->dirty_count; i++)
        fbk_output_flush(worker, &worker->connections[worker->dirty[i]]);
}

uint64_t
fbk_worker_output_bytes(struct fbk_worker *worker, uint32_t slot)
{
    return fbk_connection_at(worker, slot)->output_used;
}

static uint32_t
move_output(struct fbk_worker *worker, struct fbk_connection *connection, uint8_t *to,
            uint64_t size_bytes_max)
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
fbk_worker_take_output(struct fbk_worker *worker, uint32_t slot, uint8_t *to,
                       uint64_t size_bytes_max)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    uint32_t size_bytes = move_output(worker, connection, to, size_bytes_max);
    if (size_bytes > 0)
        hand_over(worker, connection, size_bytes);
    return size_bytes;
}

int64_t
fbk_worker_pass_output(struct fbk_worker *worker, uint32_t slot, uint8_t *to,
                       uint64_t size_bytes_max)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    return connection->is_busy ? 0 : move_output(worker, connection, to, size_bytes_max);
}

void
fbk_worker_handed(struct fbk_worker *worker, uint32_t slot, uint64_t size_bytes)
{
    hand_over(worker, fbk_connection_at(worker, slot), size_bytes);
}

/* ------------ replies that are not read */

/* What the peer's kernel has taken, modulo 2^32.  Other sockets than TCP's say only how much they
 * have left. */
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
        fbk_output_cut(worker, connection);
    }
}

static uint64_t
unread_bytes(const struct fbk_connection *connection)
{
    bool is_open =
        connection->state == FBK_CONNECTION_OPEN || connection->state == FBK_CONNECTION_HELLO;
    return is_open ? connection->handed_bytes + connection->output_used : 0;
}

/* Who is cut when there is too much: of those that do not read at all, else of all, the one with
 * the most. */
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

/* Has all replies take at most unread_replies_bytes_max with `more_bytes` of this connection's,
 * which may be cut for that. */
static void
bound_replies(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t more_bytes)
{
    uint64_t most = worker->options.unread_replies_bytes_max;
    if (FBK_LIKELY(worker->reply_bytes + more_bytes <= most))
        return;
    /* what is only waiting for the end of this call is not unread */
    fbk_dirty_flush(worker);
    while (worker->reply_bytes + more_bytes > most && connection->state != FBK_CONNECTION_DISCARD) {
        struct fbk_connection *worst = worst_reader(worker);
        if (worst == NULL)
            break;
        fbk_worker_note(worker, FBK_C_WORKER_UNREAD_REPLIES_CUT);
        fbk_output_cut(worker, worst);
    }
}
