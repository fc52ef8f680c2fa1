/* A worker as a whole: made from three segments a pair, and its connections' coming and going. */
#include "worker/worker.h"

#include "base/segment.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* ------------ making */

static int32_t
take_memory(struct fbk_worker *worker)
{
    uint64_t count = worker->options.connections_max;
    worker->connections = fbk_memory_take(count * sizeof *worker->connections);
    worker->free_slots = fbk_memory_take(count * sizeof *worker->free_slots);
    worker->dirty = fbk_memory_take(count * sizeof *worker->dirty);
    worker->events = fbk_memory_take(count * sizeof *worker->events);
    worker->receive_memory =
        fbk_memory_take(FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    if (worker->options.has_quotas)
        fbk_quotas_init(worker);
    worker->audits = fbk_memory_take(FBK_WORKER_AUDITS_MAX * sizeof *worker->audits);
    bool all = worker->connections && worker->free_slots && worker->dirty && worker->events &&
               worker->receive_memory && worker->audits &&
               ((worker->quotas && worker->quota_ledgers) || !worker->options.has_quotas);
    int32_t error = all ? fbk_contexts_init(worker) : -ENOMEM;
    return error != 0 ? error : fbk_digests_init(worker);
}

static bool
is_shard_map_sound(const struct fbk_worker_options *options)
{
    if (options->pair_count == 0 || options->pair_count > FBK_PAIRS_MAX)
        return false;
    for (uint32_t shard = 0; shard < FBK_SHARD_COUNT; shard++)
        if (options->pair_of_shard[shard] >= options->pair_count)
            return false;
    return true;
}

static bool
are_options_sound(const struct fbk_worker_options *options)
{
    return is_shard_map_sound(options) && options->worker < FBK_WORKERS_MAX &&
           options->connections_max > 0 && options->pending_requests_max > 0 &&
           options->apache_requests_max > 1 && options->apache_batch_read_bytes_max > 0 &&
           options->apache_digests_max >= FBK_DIGEST_WAYS &&
           options->apache_digests_max <= 1u << 24 && options->batch_entries_max > 0 &&
           options->receive_size_bytes >= FBK_PAGE_BYTES &&
           options->frame_size_bytes_max >= FBK_COLD_FRAME_BYTES_MAX &&
           options->partial_frames_bytes_max >= 2ull * options->frame_size_bytes_max &&
           options->reply_backlog_bytes_max >= options->frame_size_bytes_max &&
           options->reply_backlog_bytes_max < 1u << 30 &&
           options->unread_replies_bytes_max >= options->reply_backlog_bytes_max &&
           options->turn_frames_max > 0 && options->turn_size_bytes_max > 0 &&
           options->frame_rate_bytes_min > 0 && options->write_timeout_ms <= 1000000 &&
           options->hello_timeout_ms <= 1000000 && options->frame_timeout_ms <= 1000000;
}

struct fbk_worker *
fbk_worker_create(const struct fbk_worker_options *options, int32_t *error)
{
    *error = -EINVAL;
    if (!are_options_sound(options))
        return NULL;
    struct fbk_worker *worker = fbk_memory_take(sizeof *worker);
    *error = -ENOMEM;
    if (worker == NULL)
        return NULL;
    worker->options = *options;
    worker->turn_slot = FBK_NO_CONNECTION;
    worker->poll_fd = epoll_create1(EPOLL_CLOEXEC);
    for (uint32_t line = 0; line < FBK_LINE_COUNT; line++)
        worker->lines[line].first = worker->lines[line].last = FBK_NO_CONNECTION;
    *error = worker->poll_fd < 0 ? -errno : take_memory(worker);
    worker->lane_count = options->pair_count;
    for (uint32_t p = 0; p < worker->lane_count && *error == 0; p++)
        *error = fbk_lane_open(worker, p);
    if (*error != 0) {
        fbk_worker_destroy(worker);
        return NULL;
    }
    worker->stats = &worker->lanes[0].segment->stats;
    fbk_flight_open(&worker->recorder, &worker->stats->flight);
    fbk_worker_clock(worker);
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        bool moved;
        fbk_lane_refresh(worker, &worker->lanes[p], &moved);
    }
    return worker;
}

void
fbk_worker_destroy(struct fbk_worker *worker)
{
    if (worker == NULL)
        return;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        free(worker->connections[slot].input);
        free(worker->connections[slot].output);
        fbk_tags_drop(&worker->connections[slot]);
    }
    if (worker->poll_fd >= 0)
        close(worker->poll_fd);
    fbk_output_blocks_free(worker);
    fbk_contexts_free(worker);
    fbk_digests_free(worker);
    fbk_flight_close(&worker->recorder);
    uint64_t count = worker->options.connections_max;
    fbk_memory_give_back(worker->connections, count * sizeof *worker->connections);
    fbk_memory_give_back(worker->free_slots, count * sizeof *worker->free_slots);
    fbk_memory_give_back(worker->dirty, count * sizeof *worker->dirty);
    fbk_memory_give_back(worker->events, count * sizeof *worker->events);
    fbk_memory_give_back(worker->receive_memory,
                         FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    fbk_quotas_free(worker);
    fbk_memory_give_back(worker->audits, FBK_WORKER_AUDITS_MAX * sizeof *worker->audits);
    for (uint32_t p = 0; p < worker->lane_count; p++)
        fbk_lane_close(&worker->lanes[p]);
    fbk_memory_give_back(worker, sizeof *worker);
}

uint8_t *
fbk_worker_receive_buffer(struct fbk_worker *worker, uint32_t *size_bytes)
{
    *size_bytes = worker->options.receive_size_bytes;
    return worker->receive_memory + FBK_SMALL_FRAME_BYTES;
}

/* ------------ connections, coming and going */

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

void
fbk_cancels_serve(struct fbk_worker *worker)
{
    struct fbk_connection *connection;
    while ((connection = fbk_line_first(worker, FBK_LINE_CANCEL)) != NULL) {
        uint64_t id =
            fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation);
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
    /* of the slot's last user: it still stands in the list */
    bool is_dirty = connection->is_dirty;
    memset(connection, 0, sizeof *connection);
    connection->generation = generation;
    connection->is_dirty = is_dirty;
    connection->fd = fd;
    connection->received_sweep = worker->sweeps;
    connection->state = FBK_CONNECTION_MAGIC;
    connection->contexts = FBK_NO_CONTEXT;
    connection->rights = worker->options.is_admission_required ? 0 : FBK_RIGHTS_ALL;
    if (fbk_connection_is_stranger(connection))
        fbk_connection_begin(worker, connection);
    worker->connection_count++;
    fbk_worker_note(worker, FBK_C_WORKER_CONNECTIONS_ACCEPTED);
    fbk_gauge(worker->stats, FBK_C_WORKER_CONNECTIONS, worker->connection_count);
    if (worker->is_draining)
        connection->blocked = FBK_BLOCKED_DRAIN;
    return (int32_t)slot;
}

int32_t
fbk_worker_disconnect(struct fbk_worker *worker, uint32_t slot)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    if (connection->state == FBK_CONNECTION_GONE)
        return 0;
    fbk_connection_watch(worker, connection, false);
    connection->fd = -1;
    fbk_line_leave(worker, connection);
    fbk_contexts_drop(worker, connection);
    fbk_output_drop(worker, connection);
    worker->reply_bytes -= connection->handed_bytes;
    connection->handed_bytes = 0;
    fbk_input_drop(worker, connection);
    fbk_tags_drop(connection);
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
        fbk_cancels_serve(worker);
        fbk_worker_publish(worker);
    }
    /* What it held may be what others wait for. */
    fbk_budget_serve(worker);
    bool is_more =
        worker->lines[FBK_LINE_READY].count > 0 || fbk_connections_wait_for_contexts(worker);
    return fbk_dirty_prune(worker) > 0 || fbk_lanes_starve(worker) || is_more ? FBK_DO_COLLECT : 0;
}

static void
expire(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (!fbk_connection_is_new(connection))
        fbk_worker_note(worker, FBK_C_WORKER_FRAME_TIMEOUTS);
    else if (connection->state != FBK_CONNECTION_DISCARD)
        fbk_worker_note(worker, FBK_C_WORKER_HELLO_TIMEOUTS);
    /* Its memory is free for those that wait, and it is not cut once more as the slowest. */
    fbk_input_cut(worker, connection);
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
    while (worker->input_bytes > worker->options.partial_frames_bytes_max &&
           fbk_close_slowest(worker, NULL))
        /* what waited for its turn, or was tried, stays above the bound otherwise */
        continue;
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
    return fbk_connection_is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD &&
           connection->blocked == 0 && connection->pending == connection->polls &&
           connection->input == NULL && connection->output_used == 0 &&
           connection->handed_bytes == 0;
}

uint32_t
fbk_worker_silent(struct fbk_worker *worker, struct fbk_worker_silent *silent, uint32_t count_max)
{
    uint32_t count = 0;
    for (uint32_t slot = 0; slot < worker->slots_used && count < count_max; slot++) {
        const struct fbk_connection *connection = &worker->connections[slot];
        if (is_silent(connection))
            silent[count++] =
                (struct fbk_worker_silent){slot, worker->sweeps - connection->received_sweep,
                                           connection->state != FBK_CONNECTION_MAGIC};
    }
    return count;
}

int32_t
fbk_worker_drain(struct fbk_worker *worker)
{
    worker->is_draining = true;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        struct fbk_connection *connection = &worker->connections[slot];
        if (fbk_connection_is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD)
            fbk_connection_block(worker, connection, FBK_BLOCKED_DRAIN);
    }
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count;
}

/* ------------ the end, and what is asked of it */

void
fbk_worker_leave(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_worker_segment *segment = worker->lanes[p].segment;
        /* The journal reads the descriptors' cursor first. */
        fbk_cursor_publish(&segment->exceptions_consumed, FBK_CONSUMER_GONE);
        fbk_cursor_publish(&segment->descriptors_consumed, FBK_CONSUMER_GONE);
        /* What closed connections asked for is still on its way: the index may be waiting for room
         * for it. */
        fbk_cursor_publish(&segment->reply_consumed, FBK_CONSUMER_GONE);
    }
}

const struct fbk_worker_event *
fbk_worker_events(struct fbk_worker *worker)
{
    return worker->events;
}

uint64_t
fbk_worker_pending(struct fbk_worker *worker)
{
    return worker->pending - worker->polls;
}

uint64_t
fbk_worker_counter(struct fbk_worker *worker, uint32_t counter)
{
    return counter < FBK_COUNTERS_MAX ? worker->stats->counters[counter] : 0;
}

void
fbk_worker_count(struct fbk_worker *worker, uint32_t counter, uint64_t amount)
{
    if (counter < FBK_COUNTERS_MAX)
        fbk_count(worker->stats, counter, amount);
}

int32_t
fbk_worker_is_read_only(struct fbk_worker *worker)
{
    bool refuses = worker->options.is_reads_only != 0;
    for (uint32_t p = 0; p < worker->lane_count; p++)
        refuses |= fbk_cursor_load(&worker->lanes[p].index->reads_only) != 0;
    return refuses;
}
