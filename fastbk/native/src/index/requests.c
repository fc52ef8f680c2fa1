/* Requests: out of the rings, into slots while they wait for a disk, and on again when the disk has
 * answered.
 *
 * A request that can't be answered now for want of reply room or jobs stays in its ring, which is
 * not read on meanwhile: the bound of all waiting requests is the ring (INV-B1). */
#include "index/index.h"

#include "base/fault.h"

#define REQUESTS_A_RING_MAX 512u  /* before the other rings' turn */
#define BYTES_A_RING_MAX 1048576u /* of answers, the same */
#define RANGES_MAX 16384u
#define FENCES_HELD_A_TURN 256u /* looked at again in one step, at most */

/* ------------ slots */

int32_t
fbk_index_requests_init(struct fbk_index *index)
{
    index->requests =
        fbk_memory_take((uint64_t)index->options.requests_max * sizeof *index->requests);
    index->request_free = FBK_NONE;
    index->ready_first = index->ready_last = FBK_NONE;
    if (!index->requests)
        return -ENOMEM;
    for (uint32_t slot = index->options.requests_max; slot-- > 0;) {
        index->requests[slot].next = index->request_free;
        index->request_free = slot;
    }
    return 0;
}

void
fbk_index_requests_free(struct fbk_index *index)
{
    if (!index->requests)
        return;
    for (uint32_t slot = 0; slot < index->options.requests_max; slot++)
        if (index->requests[slot].state != FBK_REQUEST_FREE)
            fbk_index_request_give_back(index, &index->requests[slot]);
    fbk_memory_give_back(index->requests,
                         (uint64_t)index->options.requests_max * sizeof *index->requests);
    if (index->fences)
        fbk_memory_give_back(index->fences, index->fence_slots * sizeof *index->fences);
}

struct fbk_index_request *
fbk_index_request_take(struct fbk_index *index)
{
    uint32_t slot = index->request_free;
    if (slot == FBK_NONE)
        return NULL;
    struct fbk_index_request *request = &index->requests[slot];
    uint32_t generation = request->generation + 1;
    index->request_free = request->next;
    index->request_count++;
    memset(request, 0, sizeof *request);
    request->generation = generation;
    request->next = FBK_NONE;
    request->state = FBK_REQUEST_READY;
    return request;
}

void
fbk_index_request_forget(struct fbk_index *index, struct fbk_index_request *request)
{
    if (request->run)
        fbk_store_release(index->store, request->run);
    request->run = NULL;
    request->answered = false;
}

void
fbk_index_request_give_back(struct fbk_index *index, struct fbk_index_request *request)
{
    fbk_index_request_forget(index, request);
    if (request->ranges) {
        fbk_memory_give_back(request->ranges,
                             (uint64_t)request->ranges_max * 2 * sizeof *request->ranges);
        index->list_count--;
    }
    request->ranges = NULL;
    request->state = FBK_REQUEST_FREE;
    request->next = index->request_free;
    index->request_free = (uint32_t)(request - index->requests);
    index->request_count--;
}

void
fbk_index_request_ready(struct fbk_index *index, struct fbk_index_request *request)
{
    if (fbk_index_is_bulk(request)) {
        fbk_index_bulk_put(index, request, false);
        return;
    }
    uint32_t slot = (uint32_t)(request - index->requests);
    request->state = FBK_REQUEST_READY;
    request->next = FBK_NONE;
    if (index->ready_last == FBK_NONE)
        index->ready_first = slot;
    else
        index->requests[index->ready_last].next = slot;
    index->ready_last = slot;
}

/* ------------ running */

int32_t
fbk_index_request_run(struct fbk_index *index, struct fbk_index_request *request)
{
    /* A drain would last for as long as the disk needs for what nobody reads. */
    if (FBK_UNLIKELY(fbk_index_is_gone(&index->workers[request->asker.worker])))
        return FBK_RAN_DONE;
    switch (request->asker.kind) {
    case FBK_KIND_READ_BATCH: return fbk_index_run_read_batch(index, request);
    case FBK_KIND_LIST: return fbk_index_run_list(index, request);
    case FBK_KIND_READ_LAC: return fbk_index_run_read_lac(index, request);
    default: return fbk_index_run_read(index, request);
    }
}

bool
fbk_index_request_start(struct fbk_index *index, struct fbk_index_request *request)
{
    int32_t ran = fbk_index_request_run(index, request);
    if (ran != FBK_RAN_DISK)
        fbk_index_request_give_back(index, request);
    return ran != FBK_RAN_LATER;
}

/* Slots are at hand, or the fences wait for them.  One whose ledger has an undecided normal add
 * from before it goes to the end of the queue: that add would be acknowledged behind its back
 * (INV-F1). */
static void
start_fences(struct fbk_index *index)
{
    uint64_t waiting = index->fence_last - index->fence_first;
    uint64_t turns_left = waiting < FENCES_HELD_A_TURN ? waiting : FENCES_HELD_A_TURN;
    uint32_t now_us = waiting > 0 ? (uint32_t)(fbk_now_ns() / 1000) : 0;
    while (index->fence_first != index->fence_last && turns_left > 0) {
        FBK_KILL_POINT("index.before_fence_answer");
        const struct fbk_fence fence = index->fences[index->fence_first & (index->fence_slots - 1)];
        if (FBK_UNLIKELY(index->check_count > 0) &&
            fbk_index_checks_hold_fence(index, fence.ledger_id)) {
            index->fence_first++;
            index->fences[index->fence_last++ & (index->fence_slots - 1)] = fence;
            turns_left--;
            continue;
        }
        struct fbk_index_request *request = fbk_index_request_take(index);
        if (!request)
            return;
        request->asker = fence.asker;
        request->ledger_id = fence.ledger_id;
        request->first_entry_id = fence.entry_id;
        request->asker.is_started = true;
        request->asker.started_us = now_us;
        if (!fbk_index_request_start(index, request))
            return;
        fbk_count_timed(&index->segment->stats, FBK_C_INDEX_FENCE_WAITS,
                        now_us - fence.asker.received_us);
        index->fence_first++;
    }
}

bool
fbk_index_fence_later(struct fbk_index *index, const struct fbk_record *record, uint32_t worker)
{
    uint64_t count = index->fence_last - index->fence_first;
    if (count == index->fence_slots) {
        uint64_t slots = index->fence_slots ? index->fence_slots * 2 : 256;
        struct fbk_fence *bigger = fbk_memory_take(slots * sizeof *bigger);
        if (!bigger)
            return false;
        for (uint64_t n = 0; n < count; n++)
            bigger[n] = index->fences[(index->fence_first + n) & (index->fence_slots - 1)];
        if (index->fences)
            fbk_memory_give_back(index->fences, index->fence_slots * sizeof *index->fences);
        index->fences = bigger;
        index->fence_slots = slots;
        index->fence_first = 0;
        index->fence_last = count;
    }
    index->fences[index->fence_last++ & (index->fence_slots - 1)] = (struct fbk_fence){
        .asker =
            {
                .request_id = record->request_id,
                .connection_id = record->connection_id,
                .worker = worker,
                .received_us = record->received_us,
                .kind = FBK_KIND_FENCE,
            },
        .ledger_id = record->ledger_id,
        .entry_id = record->entry_id,
    };
    fbk_count(&index->segment->stats, FBK_C_INDEX_FENCES, 1);
    return true;
}

void
fbk_index_requests_run(struct fbk_index *index)
{
    uint32_t last = index->ready_last;
    uint32_t slot = index->ready_first;
    index->ready_first = index->ready_last = FBK_NONE;
    while (slot != FBK_NONE) {
        struct fbk_index_request *request = &index->requests[slot];
        uint32_t next = slot == last ? FBK_NONE : request->next;
        int32_t ran = fbk_index_request_run(index, request);
        if (ran == FBK_RAN_DONE)
            fbk_index_request_give_back(index, request);
        else if (ran == FBK_RAN_LATER)
            fbk_index_request_ready(index, request);
        slot = next;
    }
    start_fences(index);
}

/* ------------ the rings */

static bool
fill_arguments(struct fbk_index_request *request, const struct fbk_record *record,
               const uint8_t *payload)
{
    request->ledger_id = record->ledger_id;
    request->first_entry_id = record->entry_id;
    if (record->kind == FBK_KIND_READ_BATCH) {
        struct fbk_read_batch_args args;
        if (record->payload_bytes != sizeof args ||
            fbk_crc32c_copy(0, &args, payload, sizeof args) != record->body_crc)
            return false;
        request->last_entry_id = args.last_entry_id;
        request->entry_count_max = args.entry_count_max;
        request->size_bytes_max = args.size_bytes_max;
        return true;
    }
    if (record->kind == FBK_KIND_READ_LAC) {
        struct fbk_read_lac_args args;
        if (record->payload_bytes != sizeof args ||
            fbk_crc32c_copy(0, &args, payload, sizeof args) != record->body_crc)
            return false;
        request->previous_lac = args.previous_lac;
        request->timeout_ms = args.timeout_ms;
        request->asker.is_poll = args.timeout_ms > 0;
        request->flags = args.flags;
        return true;
    }
    request->entry_count_max = record->entry_count;
    if (record->kind == FBK_KIND_LIST &&
        (request->entry_count_max == 0 || request->entry_count_max > RANGES_MAX))
        request->entry_count_max = RANGES_MAX;
    return record->kind == FBK_KIND_READ || record->kind == FBK_KIND_LIST;
}

/* INV-T2: one look at the ledger's state, which the request needs anyway. */
static bool
is_of_other_creation(struct fbk_index *index, const struct fbk_record *record)
{
    return record->creation_mark != 0 &&
           fbk_is_other_creation(fbk_index_ledger(index, record->ledger_id), record->creation_mark);
}

/* 1: answered; 0: no room for the answer now.  Where states or data were lost, the other creation
 * may not have been alone. */
static int32_t
refuse_other_creation(struct fbk_index *index, const struct fbk_asker *asker,
                      const struct fbk_record *record)
{
    const struct fbk_ledger_state *state = fbk_index_ledger(index, record->ledger_id);
    uint32_t status = fbk_index_no(index, state, FBK_S_OTHER_CREATION);
    if (fbk_index_reply_status(index, asker, status))
        return 1;
    index->workers[asker->worker].blocked = true;
    return 0;
}

/* 1: done with it; 0: it has to wait; < 0: no worker writes this. */
static int32_t
take_request(struct fbk_index *index, uint32_t w, const struct fbk_record *record,
             const uint8_t *payload)
{
    const struct fbk_asker asker = {
        .request_id = record->request_id,
        .connection_id = record->connection_id,
        .worker = w,
        .received_us = record->received_us,
        .kind = record->kind,
    };
    if (record->kind == FBK_KIND_CANCEL) {
        fbk_index_cancel(index, w, record->connection_id);
        return 1;
    }
    if (FBK_UNLIKELY(is_of_other_creation(index, record)))
        return refuse_other_creation(index, &asker, record);
    if (record->kind == FBK_KIND_WRITE_LAC) {
        uint8_t *body = fbk_index_scratch(index, record->payload_bytes + 1);
        if (!body)
            return 0;
        if (fbk_crc32c_copy(0, body, payload, record->payload_bytes) != record->body_crc)
            return FBK_E_CORRUPT;
        return fbk_index_write_lac(index, &asker, record, body);
    }
    /* The last quarter of the slots is for those that are quickly done. */
    bool is_bulk = record->kind == FBK_KIND_READ_BATCH || record->kind == FBK_KIND_LIST;
    struct fbk_index_request *request = NULL;
    if (!is_bulk ||
        index->request_count + index->options.requests_max / 4 < index->options.requests_max)
        request = fbk_index_request_take(index);
    if (!request) {
        index->workers[w].blocked = true;
        return 0;
    }
    request->asker = asker;
    if (!fill_arguments(request, record, payload)) {
        fbk_index_request_give_back(index, request);
        return FBK_E_CORRUPT;
    }
    request->tail = record->kind == FBK_KIND_READ_BATCH && fbk_index_is_tail(index, request);
    if (fbk_index_is_bulk(request)) {
        fbk_index_bulk_put(index, request, true);
        return 1;
    }
    if (fbk_index_request_start(index, request))
        return 1;
    index->workers[w].blocked = true;
    return 0;
}

static int32_t
take_ring(struct fbk_index *index, uint32_t w, uint64_t written)
{
    struct fbk_index_worker *worker = &index->workers[w];
    uint64_t end_bytes = index->encoded_bytes + BYTES_A_RING_MAX;
    uint32_t now_us = written != worker->request_position ? (uint32_t)(fbk_now_ns() / 1000) : 0;
    for (uint32_t n = 0; n < REQUESTS_A_RING_MAX && index->encoded_bytes < end_bytes; n++) {
        struct fbk_record record;
        int64_t size =
            fbk_record_take(&worker->request_ring, worker->request_position, written, &record);
        if (size == 0)
            return 0;
        if (size < 0 || record.epoch != index->options.epoch ||
            record.sequence != worker->request_sequence)
            return FBK_E_CORRUPT;
        const uint8_t *payload =
            fbk_ring_at(&worker->request_ring, worker->request_position) + sizeof record;
        int32_t rc = take_request(index, w, &record, payload);
        if (rc <= 0)
            return rc;
        if (record.kind == FBK_KIND_READ || record.kind == FBK_KIND_READ_BATCH)
            fbk_count_timed(&index->segment->stats, FBK_C_INDEX_READS_TAKEN,
                            now_us - record.received_us);
        worker->request_position += (uint64_t)size;
        worker->request_sequence++;
    }
    return worker->request_position != written;
}

int32_t
fbk_index_requests_take(struct fbk_index *index, const uint64_t *written)
{
    int32_t left = 0;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        int32_t rc = take_ring(index, w, written[w]);
        if (rc < 0)
            return rc;
        left |= rc;
    }
    return left;
}
