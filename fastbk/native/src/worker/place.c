/* Records into a lane's two rings: is there room and credit, what a record looks like, and when others see it.
 *
 * A record is written behind the published cursor, so a refused one (a bad digest is only known after the copy) leaves
 * no trace. */
#include "worker/worker.h"

#include "base/fault.h"
#include "base/record.h"

/* ------------------------------------------------------------------ room */

bool
fbk_lane_refresh(struct fbk_worker *worker, struct fbk_lane *lane, bool *moved)
{
    uint32_t w = worker->options.worker;
    uint64_t indexed = fbk_cursor_load(&lane->index->indexed[w]);
    uint64_t granted = fbk_cursor_load(&lane->index->cost_granted[w]);
    uint64_t consumed = fbk_cursor_load(&lane->index->request_consumed[w]);
    *moved = indexed != lane->indexed || granted != lane->cost_granted || consumed != lane->request_consumed;
    if (!*moved)
        return true;
    /* Compared as distances: neither back, nor past what was published. */
    if (indexed - lane->indexed > lane->published_written - lane->indexed ||
        consumed - lane->request_consumed > lane->published_request_written - lane->request_consumed) {
        worker->is_poisoned = true;
        return false;
    }
    lane->indexed = indexed;
    lane->cost_granted = granted;
    lane->request_consumed = consumed;
    return true;
}

static bool
has_add_room(const struct fbk_lane *lane, bool is_normal, uint64_t size_bytes, uint64_t cost)
{
    /* INV-R1: behind both readers, so that no byte they may still read is overwritten (INV-R2); INV-R3: an eighth is kept
     * for what must not wait for credit. */
    uint64_t behind = lane->indexed < lane->replied ? lane->indexed : lane->replied;
    uint64_t reserve = is_normal ? lane->add_ring.size_bytes / 8 : 0;
    if (lane->written + size_bytes + reserve > behind + lane->add_ring.size_bytes)
        return false;
    if (lane->placed_count + (is_normal ? FBK_PLACED_RESERVE : 0) >= FBK_PLACED_MAX)
        return false;
    return !is_normal || lane->cost_written + cost <= lane->cost_granted;
}

bool
fbk_get_add_room(struct fbk_worker *worker, struct fbk_lane *lane, bool is_normal, uint64_t size_bytes, uint64_t cost)
{
    if (FBK_LIKELY(has_add_room(lane, is_normal, size_bytes, cost)))
        return true;
    bool moved;
    if (fbk_lane_refresh(worker, lane, &moved) && moved && has_add_room(lane, is_normal, size_bytes, cost))
        return true;
    bool no_credit = is_normal && lane->cost_written + cost > lane->cost_granted;
    worker->lacks_credit = no_credit;
    fbk_worker_note(worker, no_credit ? FBK_C_WORKER_WAITS_CREDIT : FBK_C_WORKER_WAITS_RING);
    return false;
}

static bool
get_request_room(struct fbk_worker *worker, struct fbk_lane *lane, uint64_t size_bytes)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        bool moved;
        if (lane->request_written + size_bytes <= lane->request_consumed + lane->request_ring.size_bytes)
            return true;
        if (!fbk_lane_refresh(worker, lane, &moved) || !moved)
            break;
    }
    fbk_worker_note(worker, FBK_C_WORKER_WAITS_REQUEST_RING);
    return false;
}

/* ------------------------------------------------------------------ placing */

/* Completes and seals a record whose payload lies in its place already. */
static void
write_record(struct fbk_worker *worker, uint8_t *at, struct fbk_record *record, uint64_t sequence)
{
    uint32_t end = (uint32_t)sizeof *record + record->payload_bytes;
    record->size_bytes = (uint32_t)fbk_round_up(end, 8);
    record->sequence = sequence;
    record->epoch = worker->options.epoch;
    record->received_us = worker->now_us;
    fbk_record_seal(record);
    memcpy(at, record, sizeof *record);
    memset(at + end, 0, record->size_bytes - end);
}

void
fbk_start_record(struct fbk_record *record, const struct fbk_worker *worker, const struct fbk_connection *connection,
                 const struct fbk_request *request, uint8_t kind)
{
    memset(record, 0, sizeof *record);
    record->kind = kind;
    record->digest_type = (uint8_t)request->digest_type;
    record->flags = (uint16_t)request->flags;
    record->ledger_id = request->ledger_id;
    record->entry_id = request->entry_id;
    record->creation_mark = request->creation_mark;
    record->request_id = request->request_id;
    record->connection_id = fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation);
    if (request->master_key != NULL)
        memcpy(record->master_key, request->master_key, FBK_MASTER_KEY_BYTES);
}

enum fbk_taken
fbk_place_add(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection, struct fbk_record *record)
{
    write_record(worker, fbk_ring_at(&lane->add_ring, lane->written), record, lane->add_sequence++);
    lane->written += record->size_bytes;
    bool is_recovery = (record->flags & FBK_FLAG_RECOVERY) != 0 && record->kind <= FBK_KIND_ADD_BATCH;
    uint32_t last = lane->placed_first + lane->placed_count;
    lane->placed[last & (FBK_PLACED_MAX - 1)] = (struct fbk_placed){
        .request_id = record->request_id,
        .slot = (uint32_t)record->connection_id,
        .generation = connection->generation,
        .received_us = worker->now_us,
        .size_bytes = record->size_bytes,
        .kind = is_recovery ? FBK_KIND_RECOVERY_ADD : record->kind,
    };
    lane->placed_count++;
    connection->pending++;
    worker->pending++;
    return FBK_TAKEN;
}

enum fbk_taken
fbk_place_request(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
                  struct fbk_record *record, const void *payload, uint32_t payload_bytes)
{
    uint64_t size_bytes = fbk_round_up(sizeof *record + (uint64_t)payload_bytes, 8);
    if (!get_request_room(worker, lane, size_bytes))
        return FBK_TAKEN_WAIT_REQUEST;
    uint8_t *at = fbk_ring_at(&lane->request_ring, lane->request_written);
    record->payload_bytes = payload_bytes;
    if (payload_bytes != 0)
        memcpy(at + sizeof *record, payload, payload_bytes);
    record->body_crc = fbk_crc32c(0, payload, payload_bytes);
    write_record(worker, at, record, lane->request_sequence++);
    lane->request_written += record->size_bytes;
    connection->pending++;
    worker->pending++;
    return FBK_TAKEN;
}

bool
fbk_worker_place_cancel(struct fbk_worker *worker, struct fbk_lane *lane, uint64_t connection_id)
{
    struct fbk_record record = {.kind = FBK_KIND_CANCEL, .connection_id = connection_id};
    if (!get_request_room(worker, lane, sizeof record))
        return false;
    uint8_t *at = fbk_ring_at(&lane->request_ring, lane->request_written);
    write_record(worker, at, &record, lane->request_sequence++);
    lane->request_written += record.size_bytes;
    return true;
}

static void
ring(struct fbk_worker *worker, int32_t bell_fd, uint32_t counter)
{
    fbk_bell_ring(bell_fd);
    fbk_worker_note(worker, counter);
}

static void
publish(struct fbk_worker *worker, struct fbk_lane *lane)
{
    if (lane->written != lane->published_written) {
        lane->published_written = lane->written;
        FBK_KILL_POINT("worker.before_publish");
        fbk_cursor_publish(&lane->segment->add_written, lane->written);
        FBK_KILL_POINT("worker.after_publish");
        /* The ticket is looked at first: a wake_at read before it could belong to an earlier sleep. */
        uint64_t ticket = atomic_load_explicit(&((struct fbk_sleeper *)(uintptr_t)&lane->journal->sleeper)->ticket,
                                               memory_order_seq_cst);
        if ((ticket & 1u) != 0 && ticket != lane->journal_rung &&
            lane->written >= fbk_cursor_load(&lane->journal->wake_at[worker->options.worker])) {
            lane->journal_rung = ticket;
            ring(worker, lane->journal_bell_fd, FBK_C_WORKER_JOURNAL_BELLS);
        }
        fbk_cursor_store(&lane->segment->cost_written, lane->cost_written);
    }
    if (lane->request_written != lane->published_request_written) {
        lane->published_request_written = lane->request_written;
        fbk_cursor_publish(&lane->segment->request_written, lane->request_written);
        if (fbk_bell_needed(&lane->index->sleeper, &lane->index_rung))
            ring(worker, lane->index_bell_fd, FBK_C_WORKER_INDEX_BELLS);
    }
}

void
fbk_worker_publish(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        publish(worker, &worker->lanes[p]);
}
