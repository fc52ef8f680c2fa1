/* How requests end, counted by what they were: the names that operators' dashboards know
 * (docs/metrics.md).
 *
 * INV-O1: a request that is answered is counted exactly once, with the answer that its client gets:
 * as done or as failed. Adds are counted where their one step ends, whoever asked (one run of
 * equal latencies is one observation); the rest of Apache's requests, which may take several of our
 * steps, where their last word is said.
 *
 * At the end: records of stages that took long (base/flight.h). */
#include "worker/worker.h"

#include "wire/schema.h"

/* ------------ any protocol's */

enum fbk_operation
fbk_operation_of_kind(uint32_t kind)
{
    switch (kind) {
    case FBK_KIND_ADD:
    case FBK_KIND_ADD_BATCH: return FBK_OPERATION_ADD;
    case FBK_KIND_RECOVERY_ADD: return FBK_OPERATION_RECOVERY_ADD;
    case FBK_KIND_READ:
    case FBK_KIND_READ_BATCH: return FBK_OPERATION_READ;
    case FBK_KIND_FENCE: return FBK_OPERATION_FENCE;
    case FBK_KIND_POLL: return FBK_OPERATION_POLL;
    case FBK_KIND_READ_LAC: return FBK_OPERATION_LAC_READ;
    case FBK_KIND_WRITE_LAC: return FBK_OPERATION_LAC_WRITE;
    case FBK_KIND_FORCE: return FBK_OPERATION_FORCE;
    case FBK_KIND_LIST: return FBK_OPERATION_LIST;
    default: return FBK_OPERATION_NONE;
    }
}

static enum fbk_operation
operation_of_request(const struct fbk_request *request)
{
    switch (request->body_type) {
    case FBK_REQUEST_BODY_ADD:
    case FBK_REQUEST_BODY_ADD_BATCH:
        return request->flags & FBK_FLAG_RECOVERY ? FBK_OPERATION_RECOVERY_ADD : FBK_OPERATION_ADD;
    case FBK_REQUEST_BODY_READ:
        return request->flags & FBK_FLAG_FENCE ? FBK_OPERATION_FENCE : FBK_OPERATION_READ;
    case FBK_REQUEST_BODY_READ_BATCH: return FBK_OPERATION_READ;
    case FBK_REQUEST_BODY_READ_LAC:
        return request->timeout_ms > 0 ? FBK_OPERATION_POLL : FBK_OPERATION_LAC_READ;
    case FBK_REQUEST_BODY_WRITE_LAC: return FBK_OPERATION_LAC_WRITE;
    case FBK_REQUEST_BODY_FORCE: return FBK_OPERATION_FORCE;
    case FBK_REQUEST_BODY_LIST_ENTRIES: return FBK_OPERATION_LIST;
    default: return FBK_OPERATION_NONE;
    }
}

static void
finish(struct fbk_worker *worker, enum fbk_operation operation, bool is_ok, uint32_t received_us)
{
    _Static_assert(FBK_C_WORKER_READS_FAILED == FBK_C_WORKER_ADDS_FAILED + 2, "order");
    _Static_assert(FBK_C_WORKER_LISTS_DONE ==
                       FBK_C_WORKER_FENCES_DONE + 4 * (FBK_OPERATION_LIST - FBK_OPERATION_FENCE),
                   "order");
    _Static_assert(FBK_C_WORKER_LISTS_FAILED == FBK_C_WORKER_LISTS_DONE + 2, "order");
    if (operation == FBK_OPERATION_NONE)
        return;
    uint32_t took_us = worker->now_us - received_us;
    if (operation == FBK_OPERATION_RECOVERY_ADD) {
        fbk_count_timed(worker->stats,
                        is_ok ? FBK_C_WORKER_RECOVERY_ADDS_DONE : FBK_C_WORKER_RECOVERY_ADDS_FAILED,
                        took_us);
        operation = FBK_OPERATION_ADD;
    }
    bool has_histogram = operation == FBK_OPERATION_ADD || operation == FBK_OPERATION_READ;
    if (is_ok && has_histogram) {
        fbk_observe_many(worker->stats,
                         operation == FBK_OPERATION_ADD ? FBK_H_WORKER_ADD_US
                                                        : FBK_H_WORKER_READ_US,
                         took_us, 1);
        return;
    }
    uint32_t counter =
        has_histogram
            ? FBK_C_WORKER_ADDS_FAILED + 2u * (operation - FBK_OPERATION_ADD)
            : FBK_C_WORKER_FENCES_DONE + 4u * (operation - FBK_OPERATION_FENCE) + (is_ok ? 0u : 2u);
    fbk_count_timed(worker->stats, counter, took_us);
}

void
fbk_worker_finish_step(struct fbk_worker *worker, const struct fbk_connection *connection,
                       enum fbk_operation operation, bool is_ok, uint32_t received_us)
{
    if (!connection->is_apache || operation == FBK_OPERATION_ADD ||
        operation == FBK_OPERATION_RECOVERY_ADD)
        finish(worker, operation, is_ok, received_us);
}

void
fbk_worker_finish_refused(struct fbk_worker *worker, const struct fbk_connection *connection,
                          const struct fbk_request *request)
{
    worker->turn_frames += FBK_REFUSED_FRAMES;
    fbk_worker_finish_step(worker, connection, operation_of_request(request), false,
                           worker->now_us);
}

void
fbk_worker_set_gauges(struct fbk_worker *worker)
{
    uint64_t adds = 0, ring_bytes = 0;
    uint64_t adds_blocked = worker->lines[FBK_LINE_APACHE_ADDS].count;
    uint64_t reads_blocked = worker->lines[FBK_LINE_APACHE_READS].count;
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        const struct fbk_lane *lane = &worker->lanes[p];
        adds += lane->placed_count;
        ring_bytes += lane->written - lane->replied;
        adds_blocked += worker->lines[FBK_LINE_ADD + p].count;
        reads_blocked += worker->lines[FBK_LINE_REQUEST + p].count;
    }
    uint64_t at_once = worker->pending - worker->polls;
    fbk_gauge(worker->stats, FBK_C_WORKER_ADDS_IN_PROGRESS, adds);
    /* Adds whose clients are gone are in the ring, but no longer among those that are pending. */
    fbk_gauge(worker->stats, FBK_C_WORKER_READS_IN_PROGRESS, at_once > adds ? at_once - adds : 0);
    fbk_gauge(worker->stats, FBK_C_WORKER_ADDS_BLOCKED, adds_blocked);
    fbk_gauge(worker->stats, FBK_C_WORKER_READS_BLOCKED, reads_blocked);
    fbk_gauge(worker->stats, FBK_C_WORKER_RING_BYTES, ring_bytes);
}

/* ------------ Apache's */

/* Slots of one protocol's counters, in the order of fastbk/observe/names.py. */
struct slots {
    uint32_t adds, add_bytes, reads, read_bytes, read_batches, polls, lac_writes, lac_reads, forces,
        lists, others;
    uint32_t errors; /* ENOLEDGER; the others follow */
    uint32_t add_us, read_us;
};

static const struct slots slots_of[2] = {
    {
        .adds = FBK_C_WORKER_V2_ADDS,
        .add_bytes = FBK_C_WORKER_V2_ADD_BYTES,
        .reads = FBK_C_WORKER_V2_READS,
        .read_bytes = FBK_C_WORKER_V2_READ_BYTES,
        .read_batches = FBK_C_WORKER_V2_READ_BATCHES,
        .others = FBK_C_WORKER_V2_OTHERS,
        .errors = FBK_C_WORKER_V2_ENOLEDGER,
        .add_us = FBK_H_WORKER_V2_ADD_US,
        .read_us = FBK_H_WORKER_V2_READ_US,
    },
    {
        .adds = FBK_C_WORKER_V3_ADDS,
        .add_bytes = FBK_C_WORKER_V3_ADD_BYTES,
        .reads = FBK_C_WORKER_V3_READS,
        .read_bytes = FBK_C_WORKER_V3_READ_BYTES,
        .polls = FBK_C_WORKER_V3_LONG_POLLS,
        .lac_writes = FBK_C_WORKER_V3_LAC_WRITES,
        .lac_reads = FBK_C_WORKER_V3_LAC_READS,
        .forces = FBK_C_WORKER_V3_FORCES,
        .lists = FBK_C_WORKER_V3_LISTS,
        .others = FBK_C_WORKER_V3_OTHERS,
        .errors = FBK_C_WORKER_V3_ENOLEDGER,
        .add_us = FBK_H_WORKER_V3_ADD_US,
        .read_us = FBK_H_WORKER_V3_READ_US,
    },
};

static const struct slots *
slots(uint32_t protocol)
{
    return &slots_of[protocol == 2 ? 0 : 1];
}

void
fbk_worker_apache_count(struct fbk_worker *worker, const struct fbk_apache_request *message)
{
    const struct slots *slot = slots(message->protocol);
    switch (message->operation) {
    case FBK_APACHE_ADD:
        fbk_worker_note(worker, slot->adds);
        fbk_count(worker->stats, slot->add_bytes, message->body_bytes);
        break;
    case FBK_APACHE_READ:
        fbk_worker_note(worker, fbk_apache_is_poll(message->operation, message->flags)
                                    ? slot->polls
                                    : slot->reads);
        break;
    case FBK_APACHE_READ_BATCH:
        fbk_worker_note(worker, slot->read_batches ? slot->read_batches : slot->others);
        break;
    case FBK_APACHE_WRITE_LAC: fbk_worker_note(worker, slot->lac_writes); break;
    case FBK_APACHE_READ_LAC: fbk_worker_note(worker, slot->lac_reads); break;
    case FBK_APACHE_FORCE: fbk_worker_note(worker, slot->forces); break;
    case FBK_APACHE_LIST: fbk_worker_note(worker, slot->lists); break;
    default: fbk_worker_note(worker, slot->others); break;
    }
}

static void
count_error(struct fbk_worker *worker, uint32_t protocol, uint32_t status)
{
    static const uint16_t statuses[] = {
        FBK_APACHE_ENOLEDGER,
        FBK_APACHE_ENOENTRY,
        FBK_APACHE_EBADREQ,
        FBK_APACHE_EIO,
        FBK_APACHE_EUA,
        FBK_APACHE_EBADVERSION,
        FBK_APACHE_EFENCED,
        FBK_APACHE_EREADONLY,
        FBK_APACHE_ETOOMANYREQUESTS,
        FBK_APACHE_EUNKNOWNLEDGERSTATE,
    };
    _Static_assert(FBK_C_WORKER_V2_ENOLEDGER + sizeof statuses / sizeof statuses[0] - 1 ==
                       FBK_C_WORKER_V2_EUNKNOWNLEDGERSTATE,
                   "order");
    _Static_assert(FBK_C_WORKER_V3_ENOLEDGER + sizeof statuses / sizeof statuses[0] - 1 ==
                       FBK_C_WORKER_V3_EUNKNOWNLEDGERSTATE,
                   "order");
    for (uint32_t n = 0; n < sizeof statuses / sizeof statuses[0]; n++)
        if (statuses[n] == status)
            fbk_worker_note(worker, slots(protocol)->errors + n);
}

static enum fbk_operation
operation_of(uint32_t operation, uint32_t flags)
{
    switch (operation) {
    case FBK_APACHE_ADD: return FBK_OPERATION_ADD;
    case FBK_APACHE_READ:
    case FBK_APACHE_READ_BATCH:
        if (flags & FBK_APACHE_FENCE)
            return FBK_OPERATION_FENCE;
        return fbk_apache_is_poll(operation, flags) ? FBK_OPERATION_POLL : FBK_OPERATION_READ;
    case FBK_APACHE_READ_LAC: return FBK_OPERATION_LAC_READ;
    case FBK_APACHE_WRITE_LAC: return FBK_OPERATION_LAC_WRITE;
    case FBK_APACHE_FORCE: return FBK_OPERATION_FORCE;
    case FBK_APACHE_LIST: return FBK_OPERATION_LIST;
    default: return FBK_OPERATION_NONE;
    }
}

void
fbk_worker_apache_finish(struct fbk_worker *worker, const struct fbk_apache_context *context,
                         uint32_t apache_status)
{
    const struct slots *slot = slots(context->echo.protocol);
    enum fbk_operation operation = operation_of(context->echo.operation, context->flags);
    uint32_t took_us = worker->now_us - context->received_us;
    if (operation == FBK_OPERATION_ADD)
        fbk_observe_many(worker->stats, slot->add_us, took_us, 1);
    else if (operation == FBK_OPERATION_READ || operation == FBK_OPERATION_FENCE)
        fbk_observe_many(worker->stats, slot->read_us, took_us, 1);
    if (operation != FBK_OPERATION_ADD) /* adds: where their step ended */
        finish(worker, operation, apache_status == FBK_APACHE_EOK, context->received_us);
    if (FBK_UNLIKELY(apache_status != FBK_APACHE_EOK))
        count_error(worker, context->echo.protocol, apache_status);
}

void
fbk_worker_apache_finish_refused(struct fbk_worker *worker,
                                 const struct fbk_apache_request *message, uint32_t apache_status)
{
    enum fbk_operation operation = operation_of(message->operation, message->flags);
    bool is_recovery =
        operation == FBK_OPERATION_ADD && (message->flags & FBK_APACHE_RECOVERY) != 0;
    worker->turn_frames += FBK_REFUSED_FRAMES;
    finish(worker, is_recovery ? FBK_OPERATION_RECOVERY_ADD : operation, false, worker->now_us);
    if (apache_status == FBK_APACHE_ETOOMANYREQUESTS && operation == FBK_OPERATION_ADD)
        fbk_worker_note(worker, FBK_C_WORKER_ADDS_REJECTED);
    else if (apache_status == FBK_APACHE_ETOOMANYREQUESTS && operation == FBK_OPERATION_READ)
        fbk_worker_note(worker, FBK_C_WORKER_READS_REJECTED);
    count_error(worker, message->protocol, apache_status);
}

void
fbk_worker_apache_sent(struct fbk_worker *worker, uint32_t protocol, uint64_t entry_bytes)
{
    fbk_count(worker->stats, slots(protocol)->read_bytes, entry_bytes);
}

/* ------------ what took long */

/* The whole pause lies between the last time that the worker had looked at the clock, and the
 * SIGCONT. */
void
fbk_worker_note_pause(struct fbk_worker *worker, uint64_t now_ns, uint32_t before_us)
{
    uint64_t continued_ns = atomic_load_explicit(&fbk_flight_continued_ns, memory_order_relaxed);
    worker->continued_ns = continued_ns;
    uint64_t before_ns = fbk_flight_time(now_ns, before_us);
    if (continued_ns < before_ns + FBK_FLIGHT_SLOW_NS)
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_PAUSE,
        .received_ns = before_ns,
        .ended_ns = continued_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}

/* The first batch of a round in which this worker answered something. */
void
fbk_worker_note_answer(struct fbk_worker *worker, uint64_t published_ns)
{
    uint64_t now_ns = fbk_now_ns();
    if (now_ns < published_ns + FBK_FLIGHT_SLOW_NS || !fbk_flight_is_due(&worker->recorder, now_ns))
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_ANSWER,
        .received_ns = published_ns,
        .published_ns = published_ns,
        .ended_ns = now_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}

/* A connection's next add has found room. */
void
fbk_worker_note_wait(struct fbk_worker *worker, uint32_t blocked_us)
{
    uint64_t now_ns = fbk_now_ns();
    if (!fbk_flight_is_due(&worker->recorder, now_ns))
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_WAIT,
        .flags = worker->lacks_credit ? FBK_FLIGHT_CREDIT : 0,
        .received_ns = fbk_flight_time(now_ns, blocked_us),
        .ended_ns = now_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}
