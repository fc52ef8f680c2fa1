/* A worker as a whole: made from three segments a pair, woken by its bell, and its connections' coming and going.
 *
 * What journal and index say is turned into replies.  A batch descriptor acknowledges everything of this worker's add ring for
 * that journal up to its end, but for the exceptions: refusals carry their status; what has to be checked, and fences, will be
 * answered by the index (through the reply ring).  Both rings' contents are copied before they are believed; what cannot be is
 * poison. */
#include "worker/worker.h"

#include "base/fault.h"
#include "base/segment.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define PASSES_MAX 4
#define POLL_EVENTS_MAX 256
#define PUBLISH_BYTES 65536u /* received from several connections: as many as start a second batch */
#define SPIN_PAUSES 16 /* between two looks at the sockets: about a microsecond */

/* ------------------------------------------------------------------ making */

static int32_t
take_memory(struct fbk_worker *worker)
{
    uint64_t count = worker->options.connections_max;
    worker->connections = fbk_memory_take(count * sizeof *worker->connections);
    worker->free_slots = fbk_memory_take(count * sizeof *worker->free_slots);
    worker->dirty = fbk_memory_take(count * sizeof *worker->dirty);
    worker->events = fbk_memory_take(count * sizeof *worker->events);
    worker->receive_memory = fbk_memory_take(FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    if (worker->options.has_quotas)
        fbk_quotas_init(worker);
    if (worker->options.is_audited)
        worker->audits = fbk_memory_take(FBK_WORKER_AUDITS_MAX * sizeof *worker->audits);
    bool all = worker->connections && worker->free_slots && worker->dirty && worker->events && worker->receive_memory &&
               (worker->audits || !worker->options.is_audited) && ((worker->quotas && worker->quota_ledgers) || !worker->options.has_quotas);
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
    return is_shard_map_sound(options) && options->worker < FBK_WORKERS_MAX && options->connections_max > 0 &&
           options->pending_requests_max > 0 && options->apache_requests_max > 1 && options->apache_batch_bytes_max > 0 &&
           options->apache_digests_max >= FBK_DIGEST_WAYS && options->apache_digests_max <= 1u << 24 &&
           options->batch_entries_max > 0 && options->receive_size_bytes >= FBK_PAGE_BYTES &&
           options->frame_size_bytes_max >= FBK_COLD_FRAME_BYTES_MAX &&
           options->partial_frames_bytes_max >= 2ull * options->frame_size_bytes_max &&
           options->reply_backlog_bytes_max >= options->frame_size_bytes_max && options->reply_backlog_bytes_max < 1u << 30 &&
           options->unread_replies_bytes_max >= options->reply_backlog_bytes_max && options->turn_frames_max > 0 &&
           options->turn_bytes_max > 0 && options->frame_bytes_per_s_min > 0 && options->write_timeout_ms <= 1000000 &&
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
    fbk_memory_give_back(worker->receive_memory, FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
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

/* ------------------------------------------------------------------ connections, coming and going */

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

static void
serve_cancels(struct fbk_worker *worker)
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
    connection->rights = worker->options.is_admission_required ? 0 : FBK_RIGHTS_ALL;
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
        serve_cancels(worker);
        fbk_worker_publish(worker);
    }
    /* What it held may be what others wait for. */
    fbk_budget_serve(worker);
    bool is_more = worker->lines[FBK_LINE_READY].count > 0 || fbk_connections_wait_for_contexts(worker);
    return fbk_dirty_prune(worker) > 0 || fbk_lanes_starve(worker) || is_more ? FBK_DO_COLLECT : 0;
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
    return fbk_connection_is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD && connection->blocked == 0 &&
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
        if (fbk_connection_is_alive(connection) && connection->state != FBK_CONNECTION_DISCARD)
            fbk_connection_block(worker, connection, FBK_BLOCKED_DRAIN);
    }
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count;
}

/* ------------------------------------------------------------------ answers */

static bool
poison(struct fbk_worker *worker)
{
    worker->is_poisoned = true;
    return false;
}

/* The connection that a reply is for, NULL when it is gone. */
static struct fbk_connection *
addressee(struct fbk_worker *worker, uint32_t slot, uint32_t generation)
{
    if (slot >= worker->slots_used)
        return NULL;
    struct fbk_connection *connection = &worker->connections[slot];
    bool is_here = connection->generation == generation && connection->state != FBK_CONNECTION_FREE &&
                   connection->state != FBK_CONNECTION_GONE;
    return is_here ? connection : NULL;
}

static void
note_answered(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (FBK_UNLIKELY(connection->pending == 0))
        return; /* the index answered twice; the client will see an id that it does not know */
    connection->pending--;
    worker->pending--;
    if (FBK_UNLIKELY(connection->blocked & FBK_BLOCKED_PENDING) &&
        connection->pending <= worker->options.pending_requests_max / 2)
        fbk_connection_unblock(worker, connection, FBK_BLOCKED_PENDING);
}

/* ------------------------------------------------------------------ batches */

/* Runs of equal latency become one observation. */
struct latency_run {
    uint32_t received_us;
    uint64_t count;
};

static void
latency_end(struct fbk_worker *worker, struct latency_run *run)
{
    if (run->count > 0)
        fbk_observe_many(worker->stats, FBK_H_WORKER_ADD_US, worker->now_us - run->received_us, run->count);
    run->count = 0;
}

static inline void
latency_add(struct fbk_worker *worker, struct latency_run *run, uint32_t received_us)
{
    if (run->received_us != received_us) {
        latency_end(worker, run);
        run->received_us = received_us;
    }
    run->count++;
}

/* Answers what was placed, in order, up to `end`; the first `count` exceptions are ours, ascending. */
struct acknowledging {
    uint64_t acks;
    struct latency_run latency;
    struct fbk_connection *connection; /* of the last record: mostly the next one's too */
    uint32_t slot, generation;
};

static void
acknowledge_one(struct fbk_worker *worker, struct acknowledging *run, const struct fbk_placed *placed, uint32_t verdict)
{
    bool index_answers = verdict == FBK_V_CHECK || verdict == FBK_V_ORDERED ||
                         (placed->kind == FBK_KIND_FENCE && verdict == FBK_S_OK);
    if (index_answers)
        return;
    if (placed->slot != run->slot || placed->generation != run->generation) {
        run->slot = placed->slot;
        run->generation = placed->generation;
        run->connection = addressee(worker, placed->slot, placed->generation);
    }
    if (run->connection == NULL)
        return;
    if (FBK_LIKELY(verdict == FBK_S_OK && fbk_kind_is_add(placed->kind)))
        latency_add(worker, &run->latency, placed->received_us);
    else
        fbk_worker_finish_step(worker, run->connection, fbk_operation_of_kind(placed->kind), verdict == FBK_S_OK,
                               placed->received_us);
    if (run->connection->is_apache)
        fbk_worker_apache_status(worker, run->connection, placed->request_id, verdict);
    else
        fbk_output_status(worker, run->connection, placed->request_id, verdict);
    note_answered(worker, run->connection);
    run->acks++;
}

/* Everything before ring position `end`, all of it good. */
static bool
acknowledge_to(struct fbk_worker *worker, struct fbk_lane *lane, struct acknowledging *run, uint64_t end)
{
    while (lane->replied != end) {
        if (lane->placed_count == 0)
            return false;
        const struct fbk_placed *placed = &lane->placed[lane->placed_first & (FBK_PLACED_MAX - 1)];
        if (placed->size_bytes > end - lane->replied)
            return false; /* inside a record */
        acknowledge_one(worker, run, placed, FBK_S_OK);
        lane->replied += placed->size_bytes;
        lane->placed_first++;
        lane->placed_count--;
    }
    return true;
}

/* Of the record at a position, which is this worker's own and was not answered yet. */
static int64_t
ledger_of(const struct fbk_lane *lane, uint64_t position)
{
    struct fbk_record record;
    memcpy(&record, fbk_ring_at(&lane->add_ring, position), sizeof record);
    return record.ledger_id;
}

static bool
take_exceptions(struct fbk_worker *worker, struct fbk_lane *lane, struct acknowledging *run, uint64_t exceptions_end,
                uint64_t ring_end)
{
    while (lane->exceptions_consumed != exceptions_end) {
        struct fbk_exception exception = lane->journal->exceptions[lane->exceptions_consumed % FBK_EXCEPTION_COUNT];
        lane->exceptions_consumed++;
        if (exception.worker != worker->options.worker)
            continue;
        if (exception.position - lane->replied >= ring_end - lane->replied ||
            !acknowledge_to(worker, lane, run, exception.position) || lane->placed_count == 0)
            return false;
        const struct fbk_placed *placed = &lane->placed[lane->placed_first & (FBK_PLACED_MAX - 1)];
        if (placed->size_bytes > ring_end - lane->replied)
            return false;
        acknowledge_one(worker, run, placed, exception.verdict);
        if (exception.verdict == FBK_S_UNAUTHORIZED && run->connection != NULL)
            fbk_audit_note(worker, run->connection, placed->kind == FBK_KIND_FENCE ? FBK_AUDIT_FENCE : FBK_AUDIT_ADD,
                           ledger_of(lane, exception.position), FBK_S_UNAUTHORIZED);
        lane->replied += placed->size_bytes;
        lane->placed_first++;
        lane->placed_count--;
    }
    return true;
}

static bool
take_batches(struct fbk_worker *worker, struct fbk_lane *lane)
{
    uint64_t published = fbk_cursor_load(&lane->journal->published);
    uint64_t waiting = published - lane->descriptors_consumed;
    if (waiting == 0)
        return true;
    if (waiting > FBK_DESCRIPTOR_COUNT)
        return poison(worker);
    struct acknowledging run = {.slot = FBK_NO_CONNECTION};
    uint64_t exceptions_before = lane->exceptions_consumed;
    uint64_t first_published_ns = 0; /* of the batches that had answers of ours */
    while (lane->descriptors_consumed != published) {
        /* Only what concerns us; each field is read once. */
        const volatile struct fbk_batch_descriptor *descriptor =
            &lane->journal->descriptors[lane->descriptors_consumed % FBK_DESCRIPTOR_COUNT];
        uint64_t order = descriptor->order;
        uint64_t exceptions_end = descriptor->exceptions_end;
        uint64_t ring_end = descriptor->ring_end[worker->options.worker];
        if (order != lane->descriptors_consumed || exceptions_end - lane->exceptions_consumed > FBK_EXCEPTION_COUNT ||
            ring_end - lane->replied > lane->published_written - lane->replied)
            return poison(worker);
        if (!take_exceptions(worker, lane, &run, exceptions_end, ring_end) || !acknowledge_to(worker, lane, &run, ring_end))
            return poison(worker);
        if (run.acks > 0 && first_published_ns == 0)
            first_published_ns = descriptor->published_ns;
        lane->descriptors_consumed++;
    }
    latency_end(worker, &run.latency);
    fbk_count(worker->stats, FBK_C_WORKER_ACKS, run.acks);
    FBK_KILL_POINT("worker.after_answers");
    if (FBK_UNLIKELY(first_published_ns != 0 &&
                     (int32_t)(worker->now_us - (uint32_t)(first_published_ns / 1000)) >= (int32_t)FBK_FLIGHT_SLOW_US))
        fbk_worker_note_answer(worker, first_published_ns);
    fbk_cursor_publish(&lane->segment->add_replied, lane->replied);
    fbk_cursor_publish(&lane->segment->exceptions_consumed, lane->exceptions_consumed);
    fbk_cursor_publish(&lane->segment->descriptors_consumed, lane->descriptors_consumed);
    /* A journal that waits for room in these would not hear of it otherwise. */
    bool was_filling = waiting >= FBK_DESCRIPTOR_COUNT / 4 ||
                       lane->exceptions_consumed - exceptions_before >= FBK_EXCEPTION_COUNT / 4;
    if (was_filling && fbk_bell_needed(&lane->journal->sleeper, &lane->journal_rung)) {
        fbk_bell_ring(lane->journal_bell_fd);
        fbk_worker_note(worker, FBK_C_WORKER_JOURNAL_BELLS);
    }
    return true;
}

/* ------------------------------------------------------------------ the index's replies */

/* False: the frame can't be an index's. */
static bool
pass_on(struct fbk_worker *worker, const struct fbk_reply *reply, const uint8_t *frame)
{
    struct fbk_connection *connection =
        addressee(worker, (uint32_t)reply->connection_id, (uint32_t)(reply->connection_id >> 32));
    if (connection == NULL) {
        fbk_worker_note(worker, FBK_C_WORKER_REPLIES_STALE);
        return true;
    }
    bool asks_lac = reply->kind == FBK_KIND_READ_LAC || reply->kind == FBK_KIND_POLL;
    if (asks_lac && connection->polls > 0) {
        worker->polls--;
        if (--connection->polls == 0)
            connection->poll_lanes = 0;
    }
    fbk_worker_finish_step(worker, connection, fbk_operation_of_kind(reply->kind), reply->status == FBK_S_OK, reply->received_us);
    note_answered(worker, connection);
    if (connection->is_apache)
        return fbk_worker_apache_frame(worker, connection, frame, reply->frame_bytes);
    fbk_output_frame(worker, connection, frame, reply->frame_bytes);
    return true;
}

static bool
take_replies(struct fbk_worker *worker, struct fbk_lane *lane)
{
    const struct fbk_ring *ring = &lane->reply_ring;
    uint64_t written = fbk_cursor_load(&lane->index->reply_written[worker->options.worker]);
    uint64_t waiting = written - lane->reply_consumed;
    if (waiting == 0)
        return true;
    if (waiting > ring->size_bytes)
        return poison(worker);
    uint64_t replies = 0;
    while (lane->reply_consumed != written) {
        struct fbk_reply reply;
        uint64_t left = written - lane->reply_consumed;
        if (left < sizeof reply)
            return poison(worker);
        const uint8_t *at = fbk_ring_at(ring, lane->reply_consumed);
        memcpy(&reply, at, sizeof reply);
        __asm__ volatile("" ::: "memory"); /* the copy is what is checked and used: no second look */
        if (reply.size_bytes > left || (reply.size_bytes & 7u) != 0 || reply.epoch != worker->options.epoch ||
            reply.frame_bytes < 8 || reply.size_bytes != sizeof reply + fbk_round_up(reply.frame_bytes, 8) ||
            fbk_load_u32(at + sizeof reply) != reply.frame_bytes - 4)
            return poison(worker);
        if (!pass_on(worker, &reply, at + sizeof reply))
            return poison(worker);
        lane->reply_consumed += reply.size_bytes;
        replies++;
    }
    fbk_count(worker->stats, FBK_C_WORKER_REPLIES, replies);
    fbk_cursor_publish(&lane->segment->reply_consumed, lane->reply_consumed);
    /* An index that waits for room in its reply ring is woken once there is plenty. */
    if (waiting >= ring->size_bytes / 4 && fbk_bell_needed(&lane->index->sleeper, &lane->index_rung)) {
        fbk_bell_ring(lane->index_bell_fd);
        fbk_worker_note(worker, FBK_C_WORKER_INDEX_BELLS);
    }
    return true;
}

/* All batches and replies that are there.  False: poisoned. */
static bool
answer(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        if (!take_batches(worker, lane) || !take_replies(worker, lane))
            return false;
    }
    return true;
}

/* ------------------------------------------------------------------ awake */

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
note_turn(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line, uint32_t blocked_us, bool got_some)
{
    if (!got_some)
        connection->blocked_us = blocked_us;
    else if (line == FBK_LINE_APACHE_ADDS || (line >= FBK_LINE_ADD && line < FBK_LINE_REQUEST))
        note_add_wait(worker, blocked_us);
    else if (line == FBK_LINE_APACHE_READS || line >= FBK_LINE_REQUEST)
        fbk_count_timed(worker->stats, FBK_C_WORKER_READ_WAITS, worker->now_us - blocked_us);
}

/* Gives those in a line their turn, in order: each as much as there is room for, and to the end of the line if it got some
 * of it; the first that got nothing stays first, and ends the round. */
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

/* Those whose principal may add again; each is looked at, as they are of several.  Who goes on and has to wait again stands
 * behind all others then: else the first of a principal would take all that it gets. */
static void
serve_quotas(struct fbk_worker *worker)
{
    if (worker->lines[FBK_LINE_QUOTA].count == 0 || worker->clock_ns - worker->quotas_served_ns < FBK_QUOTA_STEP_US * 1000ull / 2)
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
    serve_cancels(worker);
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
    (void)result; /* nothing there is as good: it was rung for something that is done already */
}

static int32_t
collect(struct fbk_worker *worker)
{
    int32_t more = FBK_WORKER_MORE;
    for (int pass = 0; pass < PASSES_MAX && more != 0; pass++) {
        fbk_lanes_wake(worker);
        fbk_worker_clock(worker);
        if (!answer(worker))
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

/* ------------------------------------------------------------------ polled connections */

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
    fbk_connection_at(worker, slot)->is_awaited = true;
    return fbk_worker_watch(worker, slot);
}

/* Its first byte is there.  It may rest as long as it likes before that, and not behind it. */
static void
open_awaited(struct fbk_worker *worker, struct fbk_connection *connection)
{
    connection->is_awaited = connection->is_polled = false;
    connection->heard_sweep = worker->sweeps;
    fbk_connection_watch(worker, connection, false);
    fbk_connection_deadline(worker, connection, worker->options.hello_timeout_ms * 1000u);
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

void
fbk_worker_leave(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_worker_segment *segment = worker->lanes[p].segment;
        /* The journal reads the descriptors' cursor first. */
        fbk_cursor_publish(&segment->exceptions_consumed, FBK_CONSUMER_GONE);
        fbk_cursor_publish(&segment->descriptors_consumed, FBK_CONSUMER_GONE);
        /* What closed connections asked for is still on its way: the index may be waiting for room for it. */
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
