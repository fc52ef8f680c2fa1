/* What journal and index say, turned into replies.
 *
 * A batch descriptor acknowledges everything of this worker's add ring up to its end, but for the exceptions: refusals
 * carry their status; what has to be checked, and fences, will be answered by the index (through the reply ring).  Both
 * rings' contents are copied before they are believed; what cannot be is poison. */
#include "fbk_worker.h"

#include "fbk_fault.h"

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
    latency_add(worker, &run->latency, placed->received_us);
    fbk_output_status(worker, run->connection, placed->request_id, verdict);
    note_answered(worker, run->connection);
    run->acks++;
}

/* Everything before ring position `end`, all of it good. */
static bool
acknowledge_to(struct fbk_worker *worker, struct acknowledging *run, uint64_t end)
{
    while (worker->replied != end) {
        if (worker->placed_count == 0)
            return false;
        const struct fbk_placed *placed = &worker->placed[worker->placed_first & (FBK_PLACED_MAX - 1)];
        if (placed->size_bytes > end - worker->replied)
            return false; /* inside a record */
        acknowledge_one(worker, run, placed, FBK_S_OK);
        worker->replied += placed->size_bytes;
        worker->placed_first++;
        worker->placed_count--;
    }
    return true;
}

static bool
take_exceptions(struct fbk_worker *worker, struct acknowledging *run, uint64_t exceptions_end, uint64_t ring_end)
{
    while (worker->exceptions_consumed != exceptions_end) {
        struct fbk_exception exception = worker->journal->exceptions[worker->exceptions_consumed % FBK_EXCEPTION_COUNT];
        worker->exceptions_consumed++;
        if (exception.worker != worker->options.worker)
            continue;
        if (exception.position - worker->replied >= ring_end - worker->replied ||
            !acknowledge_to(worker, run, exception.position) || worker->placed_count == 0)
            return false;
        const struct fbk_placed *placed = &worker->placed[worker->placed_first & (FBK_PLACED_MAX - 1)];
        if (placed->size_bytes > ring_end - worker->replied)
            return false;
        acknowledge_one(worker, run, placed, exception.verdict);
        worker->replied += placed->size_bytes;
        worker->placed_first++;
        worker->placed_count--;
    }
    return true;
}

static bool
take_batches(struct fbk_worker *worker)
{
    uint64_t published = fbk_cursor_load(&worker->journal->published);
    uint64_t waiting = published - worker->descriptors_consumed;
    if (waiting == 0)
        return true;
    if (waiting > FBK_DESCRIPTOR_COUNT)
        return poison(worker);
    struct acknowledging run = {.slot = FBK_NO_CONNECTION};
    uint64_t exceptions_before = worker->exceptions_consumed;
    while (worker->descriptors_consumed != published) {
        /* Only what concerns us; each field is read once. */
        const volatile struct fbk_batch_descriptor *descriptor =
            &worker->journal->descriptors[worker->descriptors_consumed % FBK_DESCRIPTOR_COUNT];
        uint64_t order = descriptor->order;
        uint64_t exceptions_end = descriptor->exceptions_end;
        uint64_t ring_end = descriptor->ring_end[worker->options.worker];
        if (order != worker->descriptors_consumed || exceptions_end - worker->exceptions_consumed > FBK_EXCEPTION_COUNT ||
            ring_end - worker->replied > worker->published_written - worker->replied)
            return poison(worker);
        if (!take_exceptions(worker, &run, exceptions_end, ring_end) || !acknowledge_to(worker, &run, ring_end))
            return poison(worker);
        worker->descriptors_consumed++;
    }
    latency_end(worker, &run.latency);
    fbk_count(worker->stats, FBK_C_WORKER_ACKS, run.acks);
    FBK_KILL_POINT("worker.after_answers");
    fbk_cursor_publish(&worker->segment->add_replied, worker->replied);
    fbk_cursor_publish(&worker->segment->exceptions_consumed, worker->exceptions_consumed);
    fbk_cursor_publish(&worker->segment->descriptors_consumed, worker->descriptors_consumed);
    /* A journal that waits for room in these would not hear of it otherwise. */
    bool was_filling = waiting >= FBK_DESCRIPTOR_COUNT / 4 ||
                       worker->exceptions_consumed - exceptions_before >= FBK_EXCEPTION_COUNT / 4;
    if (was_filling && fbk_bell_needed(&worker->journal->sleeper, &worker->journal_rung)) {
        fbk_bell_ring(worker->options.journal_bell_fd);
        fbk_worker_note(worker, FBK_C_WORKER_JOURNAL_BELLS);
    }
    return true;
}

/* ------------------------------------------------------------------ the index's replies */

static void
pass_on(struct fbk_worker *worker, const struct fbk_reply *reply, const uint8_t *frame)
{
    struct fbk_connection *connection =
        addressee(worker, (uint32_t)reply->connection_id, (uint32_t)(reply->connection_id >> 32));
    if (connection == NULL) {
        fbk_worker_note(worker, FBK_C_WORKER_REPLIES_STALE);
        return;
    }
    bool is_add = reply->kind == FBK_KIND_ADD || reply->kind == FBK_KIND_ADD_BATCH;
    bool is_poll = reply->kind == FBK_KIND_READ_LAC;
    if (is_poll && connection->polls > 0) {
        connection->polls--;
        worker->polls--;
    }
    if (!is_poll) /* how long a poll takes is the client's wish */
        fbk_observe_many(worker->stats, is_add ? FBK_H_WORKER_ADD_US : FBK_H_WORKER_READ_US,
                         worker->now_us - reply->received_us, 1);
    note_answered(worker, connection);
    fbk_output_frame(worker, connection, frame, reply->frame_bytes);
}

static bool
take_replies(struct fbk_worker *worker)
{
    const struct fbk_ring *ring = &worker->reply_ring;
    uint64_t written = fbk_cursor_load(&worker->index->reply_written[worker->options.worker]);
    uint64_t waiting = written - worker->reply_consumed;
    if (waiting == 0)
        return true;
    if (waiting > ring->size_bytes)
        return poison(worker);
    uint64_t replies = 0;
    while (worker->reply_consumed != written) {
        struct fbk_reply reply;
        uint64_t left = written - worker->reply_consumed;
        if (left < sizeof reply)
            return poison(worker);
        const uint8_t *at = fbk_ring_at(ring, worker->reply_consumed);
        memcpy(&reply, at, sizeof reply);
        __asm__ volatile("" ::: "memory"); /* the copy is what is checked and used: no second look */
        if (reply.size_bytes > left || (reply.size_bytes & 7u) != 0 || reply.epoch != worker->options.epoch ||
            reply.frame_bytes < 8 || reply.size_bytes != sizeof reply + fbk_round_up(reply.frame_bytes, 8) ||
            fbk_load_u32(at + sizeof reply) != reply.frame_bytes - 4)
            return poison(worker);
        pass_on(worker, &reply, at + sizeof reply);
        worker->reply_consumed += reply.size_bytes;
        replies++;
    }
    fbk_count(worker->stats, FBK_C_WORKER_REPLIES, replies);
    fbk_cursor_publish(&worker->segment->reply_consumed, worker->reply_consumed);
    /* An index that waits for room in its reply ring is woken once there is plenty. */
    if (waiting >= ring->size_bytes / 4 && fbk_bell_needed(&worker->index->sleeper, &worker->index_rung)) {
        fbk_bell_ring(worker->options.index_bell_fd);
        fbk_worker_note(worker, FBK_C_WORKER_INDEX_BELLS);
    }
    return true;
}

bool
fbk_worker_answer(struct fbk_worker *worker)
{
    return take_batches(worker) && take_replies(worker);
}
