/* Peers that are too slow: frames that trickle in, replies that are not read, and the memory that both hold (INV-B1).
 *
 * A frame under way earns time by its bytes: its deadline moves by 1/frame_bytes_per_s_min for each, and is never further
 * away than frame_timeout.  So a frame that keeps the least rate may be as large as frames may be, and one that pauses
 * has frame_timeout. */
#include "worker/worker.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

/* ------------------------------------------------------------------ frames under way */

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
    fbk_input_over_end(worker, connection);
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

void
fbk_reads_begin(struct fbk_worker *worker, struct fbk_connection *connection)
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

void
fbk_replies_bound(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t more_bytes)
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
        fbk_output_cut(worker, worst);
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
