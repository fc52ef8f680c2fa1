/* Records into the two rings: is there room and credit, what a record looks like, and when others see it.
 *
 * A record is written behind the published cursor, so a refused one (a bad digest is only known after the copy) leaves
 * no trace. */
#include "fbk_worker.h"

#include "fbk_fault.h"
#include "fbk_record.h"

/* ------------------------------------------------------------------ room */

bool
fbk_worker_refresh(struct fbk_worker *worker, bool *moved)
{
    uint32_t w = worker->options.worker;
    uint64_t indexed = fbk_cursor_load(&worker->index->indexed[w]);
    uint64_t granted = fbk_cursor_load(&worker->index->cost_granted[w]);
    uint64_t consumed = fbk_cursor_load(&worker->index->request_consumed[w]);
    *moved = indexed != worker->indexed || granted != worker->cost_granted || consumed != worker->request_consumed;
    if (!*moved)
        return true;
    /* Compared as distances: neither back, nor past what was published. */
    if (indexed - worker->indexed > worker->published_written - worker->indexed ||
        consumed - worker->request_consumed > worker->published_request_written - worker->request_consumed) {
        worker->is_poisoned = true;
        return false;
    }
    worker->indexed = indexed;
    worker->cost_granted = granted;
    worker->request_consumed = consumed;
    return true;
}

static bool
has_add_room(const struct fbk_worker *worker, bool is_normal, uint64_t size_bytes, uint64_t cost)
{
    /* INV-R1: behind both readers, so that no byte they may still read is overwritten (INV-R2); INV-R3: an eighth is kept
     * for what must not wait for credit. */
    uint64_t behind = worker->indexed < worker->replied ? worker->indexed : worker->replied;
    uint64_t reserve = is_normal ? worker->add_ring.size_bytes / 8 : 0;
    if (worker->written + size_bytes + reserve > behind + worker->add_ring.size_bytes)
        return false;
    if (worker->placed_count + (is_normal ? FBK_PLACED_RESERVE : 0) >= FBK_PLACED_MAX)
        return false;
    return !is_normal || worker->cost_written + cost <= worker->cost_granted;
}

bool
fbk_get_add_room(struct fbk_worker *worker, bool is_normal, uint64_t size_bytes, uint64_t cost)
{
    if (FBK_LIKELY(has_add_room(worker, is_normal, size_bytes, cost)))
        return true;
    bool moved;
    if (fbk_worker_refresh(worker, &moved) && moved && has_add_room(worker, is_normal, size_bytes, cost))
        return true;
    bool no_credit = is_normal && worker->cost_written + cost > worker->cost_granted;
    fbk_worker_note(worker, no_credit ? FBK_C_WORKER_WAITS_CREDIT : FBK_C_WORKER_WAITS_RING);
    return false;
}

static bool
get_request_room(struct fbk_worker *worker, uint64_t size_bytes)
{
    for (int attempt = 0; attempt < 2; attempt++) {
        bool moved;
        if (worker->request_written + size_bytes <= worker->request_consumed + worker->request_ring.size_bytes)
            return true;
        if (!fbk_worker_refresh(worker, &moved) || !moved)
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
    record->request_id = request->request_id;
    record->connection_id = fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation);
    if (request->master_key != NULL)
        memcpy(record->master_key, request->master_key, FBK_MASTER_KEY_BYTES);
}

enum fbk_taken
fbk_place_add(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_record *record)
{
    write_record(worker, fbk_ring_at(&worker->add_ring, worker->written), record, worker->add_sequence++);
    worker->written += record->size_bytes;
    uint32_t last = worker->placed_first + worker->placed_count;
    worker->placed[last & (FBK_PLACED_MAX - 1)] = (struct fbk_placed){
        .request_id = record->request_id,
        .slot = (uint32_t)record->connection_id,
        .generation = connection->generation,
        .received_us = worker->now_us,
        .size_bytes = record->size_bytes,
        .kind = record->kind,
    };
    worker->placed_count++;
    connection->pending++;
    worker->pending++;
    return FBK_TAKEN;
}

enum fbk_taken
fbk_place_request(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_record *record, const void *payload,
                  uint32_t payload_bytes)
{
    uint64_t size_bytes = fbk_round_up(sizeof *record + (uint64_t)payload_bytes, 8);
    if (!get_request_room(worker, size_bytes))
        return FBK_TAKEN_WAIT_REQUEST;
    uint8_t *at = fbk_ring_at(&worker->request_ring, worker->request_written);
    record->payload_bytes = payload_bytes;
    if (payload_bytes != 0)
        memcpy(at + sizeof *record, payload, payload_bytes);
    record->body_crc = fbk_crc32c(0, payload, payload_bytes);
    write_record(worker, at, record, worker->request_sequence++);
    worker->request_written += record->size_bytes;
    connection->pending++;
    worker->pending++;
    return FBK_TAKEN;
}

bool
fbk_worker_place_cancel(struct fbk_worker *worker, uint64_t connection_id)
{
    struct fbk_record record = {.kind = FBK_KIND_CANCEL, .connection_id = connection_id};
    if (!get_request_room(worker, sizeof record))
        return false;
    uint8_t *at = fbk_ring_at(&worker->request_ring, worker->request_written);
    write_record(worker, at, &record, worker->request_sequence++);
    worker->request_written += record.size_bytes;
    return true;
}

static void
ring(struct fbk_worker *worker, int32_t bell_fd, uint32_t counter)
{
    fbk_bell_ring(bell_fd);
    fbk_worker_note(worker, counter);
}

void
fbk_worker_publish(struct fbk_worker *worker)
{
    if (worker->written != worker->published_written) {
        worker->published_written = worker->written;
        FBK_KILL_POINT("worker.before_publish");
        fbk_cursor_publish(&worker->segment->add_written, worker->written);
        FBK_KILL_POINT("worker.after_publish");
        /* The ticket is looked at first: a wake_at read before it could belong to an earlier sleep. */
        uint64_t ticket = atomic_load_explicit(&((struct fbk_sleeper *)(uintptr_t)&worker->journal->sleeper)->ticket,
                                               memory_order_seq_cst);
        if ((ticket & 1u) != 0 && ticket != worker->journal_rung &&
            worker->written >= fbk_cursor_load(&worker->journal->wake_at[worker->options.worker])) {
            worker->journal_rung = ticket;
            ring(worker, worker->options.journal_bell_fd, FBK_C_WORKER_JOURNAL_BELLS);
        }
        fbk_cursor_store(&worker->segment->cost_written, worker->cost_written);
    }
    if (worker->request_written != worker->published_request_written) {
        worker->published_request_written = worker->request_written;
        fbk_cursor_publish(&worker->segment->request_written, worker->request_written);
        if (fbk_bell_needed(&worker->index->sleeper, &worker->index_rung))
            ring(worker, worker->options.index_bell_fd, FBK_C_WORKER_INDEX_BELLS);
    }
}
