/* Replies on their way out.  While the transport is empty they are sent from here; what the socket does not take is handed
 * to the transport, and until that has written it all nothing is sent past it, nor read from that connection. */
#include "worker/worker.h"

#include <sys/socket.h>

#include "base/fault.h"

static uint8_t *
block_take(struct fbk_worker *worker)
{
    if (worker->output_block_count > 0)
        return worker->output_blocks[--worker->output_block_count];
    return malloc(FBK_OUTPUT_BLOCK_BYTES);
}

static void
output_give_back(struct fbk_worker *worker, struct fbk_connection *connection)
{
    worker->reply_bytes -= connection->output_size_bytes;
    if (connection->output_size_bytes == FBK_OUTPUT_BLOCK_BYTES && worker->output_block_count < FBK_OUTPUT_BLOCKS_KEPT)
        worker->output_blocks[worker->output_block_count++] = connection->output;
    else
        free(connection->output);
    connection->output = NULL;
    connection->output_size_bytes = 0;
    connection->output_used = 0;
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
grow(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t size_bytes)
{
    uint64_t room = connection->output_size_bytes == 0 ? FBK_OUTPUT_BLOCK_BYTES : connection->output_size_bytes;
    while (room < size_bytes)
        room += room < FBK_OUTPUT_STEP_BYTES ? room : FBK_OUTPUT_STEP_BYTES;
    uint8_t *output = room == FBK_OUTPUT_BLOCK_BYTES ? block_take(worker) : malloc(room);
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
        if (connection->output_used > 0 && !connection->is_busy) {
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
            fbk_replies_bound(worker, connection, needed - connection->output_size_bytes);
            if (connection->state == FBK_CONNECTION_DISCARD)
                return NULL;
            needed = (uint64_t)connection->output_used + size_bytes; /* some may have been sent */
            if (needed > connection->output_size_bytes && !grow(worker, connection, needed))
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
    if (connection->is_apache) {
        fbk_worker_apache_status(worker, connection, request_id, status);
        return;
    }
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
        ssize_t result = send(connection->fd, data + sent, size_bytes - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (result < 0 && errno == EINTR)
            continue;
        if (result < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            break;
        if (result < 0) {
            fbk_output_cut(worker, connection); /* the transport will hear of it too; until then nothing more is sent */
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
    if (size_bytes >= FBK_DIRECT_SEND_BYTES_MIN && !connection->is_busy && connection->state == FBK_CONNECTION_OPEN) {
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
    if (!connection->is_busy) {
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

int64_t
fbk_worker_take_output(struct fbk_worker *worker, uint32_t slot, uint8_t *to, uint64_t size_bytes_max)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    uint32_t size_bytes = connection->output_used;
    if (size_bytes == 0 || size_bytes > size_bytes_max)
        return 0;
    memcpy(to, connection->output, size_bytes);
    output_give_back(worker, connection);
    if (!connection->is_busy)
        fbk_reads_begin(worker, connection);
    connection->is_busy = true;
    connection->handed_bytes += size_bytes;
    worker->reply_bytes += size_bytes;
    fbk_count(worker->stats, FBK_C_WORKER_BYTES_SENT, size_bytes);
    if (connection->state == FBK_CONNECTION_OPEN && !(connection->blocked & FBK_BLOCKED_OUTPUT)) {
        fbk_worker_note(worker, FBK_C_WORKER_WAITS_OUTPUT);
        fbk_connection_block(worker, connection, FBK_BLOCKED_OUTPUT);
    }
    return size_bytes;
}
