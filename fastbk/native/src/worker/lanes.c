/* Lanes: the rings between this worker and each journal/index pair.  Is there room and credit, what
 * does a record look like, when do others see it, and when may the worker sleep.
 *
 * A record is written behind the published cursor, so a refused one (a bad digest is only known
 * after the copy) leaves no trace.
 *
 * Decisions 19 and 44. */
#include "worker/worker.h"

#include "base/fault.h"
#include "base/record.h"
#include "base/segment.h"

/* ------------ making */

static int32_t
map_lane(struct fbk_worker *worker, struct fbk_lane *lane, const struct fbk_worker_pair *pair)
{
    uint32_t epoch = worker->options.epoch;
    int32_t error = 0;
    lane->journal_bell_fd = pair->journal_bell_fd;
    lane->index_bell_fd = pair->index_bell_fd;
    lane->segment = fbk_segment_map(pair->segment_fd, FBK_ROLE_WORKER, true, &error);
    if (lane->segment == NULL)
        return error;
    lane->journal = fbk_segment_map(pair->journal_segment_fd, FBK_ROLE_JOURNAL, false, &error);
    if (lane->journal == NULL)
        return error;
    lane->index = fbk_segment_map(pair->index_segment_fd, FBK_ROLE_INDEX, false, &error);
    if (lane->index == NULL)
        return error;
    if (lane->segment->header.epoch != epoch || lane->journal->header.epoch != epoch ||
        lane->index->header.epoch != epoch ||
        lane->segment->header.role_index != worker->options.worker ||
        lane->segment->header.pair != lane->number || lane->journal->header.pair != lane->number ||
        lane->index->header.pair != lane->number)
        return FBK_E_LAYOUT;
    error =
        fbk_segment_map_ring(pair->segment_fd, &lane->segment->header, 0, 0, true, &lane->add_ring);
    if (error == 0)
        error = fbk_segment_map_ring(pair->segment_fd, &lane->segment->header, 1, 0, true,
                                     &lane->request_ring);
    if (error == 0)
        error = fbk_segment_map_ring(pair->index_segment_fd, &lane->index->header, 0,
                                     worker->options.worker, false, &lane->reply_ring);
    return error;
}

int32_t
fbk_lane_open(struct fbk_worker *worker, uint32_t number)
{
    struct fbk_lane *lane = &worker->lanes[number];
    lane->number = (uint8_t)number;
    int32_t error = map_lane(worker, lane, &worker->options.pairs[number]);
    if (error != 0)
        return error;
    /* A ring holds several of its largest records. */
    uint64_t frame_bytes = worker->options.frame_size_bytes_max;
    if (lane->add_ring.size_bytes < 3 * frame_bytes ||
        lane->reply_ring.size_bytes < 2 * frame_bytes ||
        lane->request_ring.size_bytes < FBK_PAGE_BYTES)
        return -EINVAL;
    lane->placed = fbk_memory_take(FBK_PLACED_MAX * sizeof *lane->placed);
    return lane->placed == NULL ? -ENOMEM : 0;
}

void
fbk_lane_close(struct fbk_lane *lane)
{
    fbk_memory_give_back(lane->placed, FBK_PLACED_MAX * sizeof *lane->placed);
    fbk_segment_unmap_ring(&lane->add_ring);
    fbk_segment_unmap_ring(&lane->request_ring);
    fbk_segment_unmap_ring(&lane->reply_ring);
    fbk_segment_unmap(lane->segment, FBK_ROLE_WORKER);
    fbk_segment_unmap((void *)(uintptr_t)lane->journal, FBK_ROLE_JOURNAL);
    fbk_segment_unmap((void *)(uintptr_t)lane->index, FBK_ROLE_INDEX);
}

/* ------------ room */

bool
fbk_lane_refresh(struct fbk_worker *worker, struct fbk_lane *lane, bool *moved)
{
    uint32_t w = worker->options.worker;
    uint64_t indexed = fbk_cursor_load(&lane->index->indexed[w]);
    uint64_t granted = fbk_cursor_load(&lane->index->cost_granted[w]);
    uint64_t consumed = fbk_cursor_load(&lane->index->request_consumed[w]);
    *moved = indexed != lane->indexed || granted != lane->cost_granted ||
             consumed != lane->request_consumed;
    if (!*moved)
        return true;
    /* Compared as distances: neither back, nor past what was published. */
    if (indexed - lane->indexed > lane->published_written - lane->indexed ||
        consumed - lane->request_consumed >
            lane->published_request_written - lane->request_consumed) {
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
    /* INV-R1: behind both readers, so that no byte they may still read is overwritten (INV-R2);
     * INV-R3: an eighth is kept for what must not wait for credit. */
    uint64_t behind = lane->indexed < lane->replied ? lane->indexed : lane->replied;
    uint64_t reserve = is_normal ? lane->add_ring.size_bytes / 8 : 0;
    if (lane->written + size_bytes + reserve > behind + lane->add_ring.size_bytes)
        return false;
    if (lane->placed_count + (is_normal ? FBK_PLACED_RESERVE : 0) >= FBK_PLACED_MAX)
        return false;
    return !is_normal || lane->cost_written + cost <= lane->cost_granted;
}

bool
fbk_get_add_room(struct fbk_worker *worker, struct fbk_lane *lane, bool is_normal,
                 uint64_t size_bytes, uint64_t cost)
{
    if (FBK_LIKELY(has_add_room(lane, is_normal, size_bytes, cost)))
        return true;
    bool moved;
    if (fbk_lane_refresh(worker, lane, &moved) && moved &&
        has_add_room(lane, is_normal, size_bytes, cost))
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
        if (lane->request_written + size_bytes <=
            lane->request_consumed + lane->request_ring.size_bytes)
            return true;
        if (!fbk_lane_refresh(worker, lane, &moved) || !moved)
            break;
    }
    fbk_worker_note(worker, FBK_C_WORKER_WAITS_REQUEST_RING);
    return false;
}

/* ------------ placing */

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
fbk_start_record(struct fbk_record *record, const struct fbk_worker *worker,
                 const struct fbk_connection *connection, const struct fbk_request *request,
                 uint8_t kind)
{
    memset(record, 0, sizeof *record);
    record->kind = kind;
    record->digest_type = (uint8_t)request->digest_type;
    record->flags = (uint16_t)request->flags;
    record->ledger_id = request->ledger_id;
    record->entry_id = request->entry_id;
    record->creation_mark = request->creation_mark;
    record->request_id = request->request_id;
    record->connection_id =
        fbk_connection_id(fbk_connection_slot(worker, connection), connection->generation);
    if (request->master_key != NULL)
        memcpy(record->master_key, request->master_key, FBK_MASTER_KEY_BYTES);
}

enum fbk_outcome
fbk_place_add(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
              struct fbk_record *record)
{
    write_record(worker, fbk_ring_at(&lane->add_ring, lane->written), record, lane->add_sequence++);
    lane->written += record->size_bytes;
    bool is_recovery =
        (record->flags & FBK_FLAG_RECOVERY) != 0 && record->kind <= FBK_KIND_ADD_BATCH;
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
    return FBK_DONE;
}

enum fbk_outcome
fbk_place_request(struct fbk_worker *worker, struct fbk_lane *lane,
                  struct fbk_connection *connection, struct fbk_record *record, const void *payload,
                  uint32_t payload_bytes)
{
    uint64_t size_bytes = fbk_round_up(sizeof *record + (uint64_t)payload_bytes, 8);
    if (!get_request_room(worker, lane, size_bytes))
        return FBK_WAIT_REQUEST;
    uint8_t *at = fbk_ring_at(&lane->request_ring, lane->request_written);
    record->payload_bytes = payload_bytes;
    if (payload_bytes != 0)
        memcpy(at + sizeof *record, payload, payload_bytes);
    record->body_crc = fbk_crc32c(0, payload, payload_bytes);
    write_record(worker, at, record, lane->request_sequence++);
    lane->request_written += record->size_bytes;
    connection->pending++;
    worker->pending++;
    return FBK_DONE;
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
        /* The ticket is looked at first: a wake_at read before it could belong to an earlier
         * sleep. */
        uint64_t ticket = atomic_load_explicit(
            &((struct fbk_sleeper *)(uintptr_t)&lane->journal->sleeper)->ticket,
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

/* ------------ sleeping */

static bool
is_waiting_for_room(const struct fbk_worker *worker, const struct fbk_lane *lane)
{
    return worker->lines[FBK_LINE_ADD + lane->number].count > 0 ||
           worker->lines[FBK_LINE_REQUEST + lane->number].count > 0 ||
           worker->lines[FBK_LINE_CANCEL].count > 0 ||
           worker->apache.lines[lane->number].first != FBK_NO_CONTEXT;
}

/* After the ticket says asleep: has anything come that nobody will ring for? */
static bool
has_news(const struct fbk_worker *worker, const struct fbk_lane *lane)
{
    uint32_t w = worker->options.worker;
    if (fbk_cursor_load_before_sleep(&lane->journal->published) != lane->descriptors_consumed ||
        fbk_cursor_load_before_sleep(&lane->index->reply_written[w]) != lane->reply_consumed)
        return true;
    if (!lane->is_starved)
        return false;
    return fbk_cursor_load_before_sleep(&lane->index->indexed[w]) != lane->indexed ||
           fbk_cursor_load_before_sleep(&lane->index->cost_granted[w]) != lane->cost_granted ||
           fbk_cursor_load_before_sleep(&lane->index->request_consumed[w]) !=
               lane->request_consumed ||
           fbk_cursor_load_before_sleep(&lane->index->reads_only) != lane->reads_only;
}

bool
fbk_lanes_have_news(const struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        if (has_news(worker, &worker->lanes[p]))
            return true;
    return false;
}

void
fbk_lanes_wake(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        fbk_sleeper_end(&worker->lanes[p].segment->sleeper);
}

void
fbk_lanes_sleep(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        fbk_sleeper_begin(&worker->lanes[p].segment->sleeper);
}

bool
fbk_lanes_may_spin(const struct fbk_worker *worker, uint64_t now_ns)
{
    if (now_ns - worker->progress_ns >= worker->options.spin_us * 1000ull)
        return false;
    for (uint32_t p = 0; p < worker->lane_count; p++)
        if (worker->lanes[p].placed_count > 0)
            return true;
    return false;
}

bool
fbk_lanes_starve(struct fbk_worker *worker)
{
    bool may_have_missed = false;
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        bool is_starved = is_waiting_for_room(worker, lane);
        if (is_starved == lane->is_starved)
            continue;
        lane->is_starved = is_starved;
        fbk_cursor_publish(&lane->segment->starved, is_starved);
        may_have_missed |= is_starved && has_news(worker, lane);
    }
    return may_have_missed;
}
