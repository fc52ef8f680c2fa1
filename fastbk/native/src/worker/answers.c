/* What journal and index say, turned into replies.
 *
 * A batch descriptor acknowledges everything of this worker's add ring for that journal up to its
 * end, but for the exceptions: refusals carry their status; what has to be checked, and fences,
 * will be answered by the index (through the reply ring).  Both rings' contents are copied before
 * they are believed; what cannot be is poison. */
#include "worker/worker.h"

#include "base/fault.h"

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
    bool is_here = connection->generation == generation &&
                   connection->state != FBK_CONNECTION_FREE &&
                   connection->state != FBK_CONNECTION_GONE;
    return is_here ? connection : NULL;
}

static void
note_answered(struct fbk_worker *worker, struct fbk_connection *connection)
{
    if (FBK_UNLIKELY(connection->pending == 0))
        /* the index answered twice; the client will see an id that it does not know */
        return;
    connection->pending--;
    worker->pending--;
    if (FBK_UNLIKELY(connection->blocked & FBK_BLOCKED_PENDING) &&
        connection->pending <= worker->options.pending_requests_max / 2)
        fbk_connection_unblock(worker, connection, FBK_BLOCKED_PENDING);
}

/* ------------ batches */

/* Runs of equal latency become one observation. */
struct latency_run {
    uint32_t received_us;
    uint64_t count;
};

static void
latency_end(struct fbk_worker *worker, struct latency_run *run)
{
    if (run->count > 0)
        fbk_observe_many(worker->stats, FBK_H_WORKER_ADD_US, worker->now_us - run->received_us,
                         run->count);
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

/* One turn of acknowledging what was placed, in order, up to what the journal has published. */
struct acknowledging {
    uint64_t acks;
    struct latency_run latency;
    struct fbk_connection *connection; /* of the last record: mostly the next one's too */
    uint32_t slot, generation;
};

static void
acknowledge_one(struct fbk_worker *worker, struct acknowledging *run,
                const struct fbk_placed *placed, uint32_t verdict)
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
        fbk_worker_finish_step(worker, run->connection, fbk_operation_of_kind(placed->kind),
                               verdict == FBK_S_OK, placed->received_us);
    if (run->connection->is_apache)
        fbk_worker_apache_status(worker, run->connection, placed->request_id, verdict);
    else
        fbk_output_status(worker, run->connection, placed->request_id, verdict);
    note_answered(worker, run->connection);
    run->acks++;
}

/* Everything before ring position `end`, all of it good. */
static bool
acknowledge_to(struct fbk_worker *worker, struct fbk_lane *lane, struct acknowledging *run,
               uint64_t end)
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
take_exceptions(struct fbk_worker *worker, struct fbk_lane *lane, struct acknowledging *run,
                uint64_t exceptions_end, uint64_t ring_end)
{
    while (lane->exceptions_consumed != exceptions_end) {
        struct fbk_exception exception =
            lane->journal->exceptions[lane->exceptions_consumed % FBK_EXCEPTION_COUNT];
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
            fbk_audit_note(worker, run->connection,
                           placed->kind == FBK_KIND_FENCE ? FBK_AUDIT_FENCE : FBK_AUDIT_ADD,
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
        if (order != lane->descriptors_consumed ||
            exceptions_end - lane->exceptions_consumed > FBK_EXCEPTION_COUNT ||
            ring_end - lane->replied > lane->published_written - lane->replied)
            return poison(worker);
        if (!take_exceptions(worker, lane, &run, exceptions_end, ring_end) ||
            !acknowledge_to(worker, lane, &run, ring_end))
            return poison(worker);
        if (run.acks > 0 && first_published_ns == 0)
            first_published_ns = descriptor->published_ns;
        lane->descriptors_consumed++;
    }
    latency_end(worker, &run.latency);
    fbk_count(worker->stats, FBK_C_WORKER_ACKS, run.acks);
    FBK_KILL_POINT("worker.after_answers");
    if (FBK_UNLIKELY(first_published_ns != 0 &&
                     (int32_t)(worker->now_us - (uint32_t)(first_published_ns / 1000)) >=
                         (int32_t)FBK_FLIGHT_SLOW_US))
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

/* ------------ the index's replies */

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
    bool is_lac_request = reply->kind == FBK_KIND_READ_LAC || reply->kind == FBK_KIND_POLL;
    if (is_lac_request && connection->polls > 0) {
        worker->polls--;
        if (--connection->polls == 0)
            connection->poll_lanes = 0;
    }
    fbk_worker_finish_step(worker, connection, fbk_operation_of_kind(reply->kind),
                           reply->status == FBK_S_OK, reply->received_us);
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
        /* the copy is what is checked and used: no second look */
        __asm__ volatile("" ::: "memory");
        if (reply.size_bytes > left || (reply.size_bytes & 7u) != 0 ||
            reply.epoch != worker->options.epoch || reply.frame_bytes < 8 ||
            reply.size_bytes != sizeof reply + fbk_round_up(reply.frame_bytes, 8) ||
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
    if (waiting >= ring->size_bytes / 4 &&
        fbk_bell_needed(&lane->index->sleeper, &lane->index_rung)) {
        fbk_bell_ring(lane->index_bell_fd);
        fbk_worker_note(worker, FBK_C_WORKER_INDEX_BELLS);
    }
    return true;
}

bool
fbk_answers_take(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        if (!take_batches(worker, lane) || !take_replies(worker, lane))
            return false;
    }
    return true;
}
