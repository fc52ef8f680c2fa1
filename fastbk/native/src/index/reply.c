/* Answers: encoded straight into the worker's reply ring, whose room is looked at first. */
#include "index/index.h"

#include "base/add_wait.h"
#include "wire/wire.h"

uint8_t *
fbk_index_reply_begin(struct fbk_index *index, uint32_t w, uint64_t frame_bytes)
{
    struct fbk_index_worker *worker = &index->workers[w];
    uint64_t needed = sizeof(struct fbk_reply) + fbk_round_up(frame_bytes, 8);
    uint64_t waiting = fbk_index_unread_bytes(worker);
    /* A cursor that can't be: as good as a ring that stays full; the worker is broken and its
     * supervisor sees it. */
    if (FBK_UNLIKELY(waiting > worker->reply_ring.size_bytes ||
                     worker->reply_ring.size_bytes - waiting < needed)) {
        worker->blocked = true;
        fbk_count(&index->segment->stats, FBK_C_INDEX_REPLY_FULL, 1);
        return NULL;
    }
    return fbk_ring_at(&worker->reply_ring, worker->reply_position) + sizeof(struct fbk_reply);
}

static bool
is_read(uint32_t kind)
{
    return kind == FBK_KIND_READ || kind == FBK_KIND_READ_BATCH || kind == FBK_KIND_FENCE;
}

/* A fence or a long poll is answered: how long the last of its steps took, and, of a poll that did
 * not wait, the first. */
static void
note_steps(struct fbk_stats *stats, const struct fbk_asker *asker, bool is_ok, uint32_t now_us)
{
    uint32_t started_us = asker->is_started ? asker->started_us : now_us;
    if (asker->is_poll && !asker->has_waited)
        fbk_count_timed(stats, FBK_C_INDEX_POLL_STARTS, started_us - asker->received_us);
    uint32_t counter = asker->is_poll ? FBK_C_INDEX_POLL_READS_DONE : FBK_C_INDEX_FENCE_READS_DONE;
    fbk_count_timed(stats, counter + (is_ok ? 0u : 2u), now_us - started_us);
}

void
fbk_index_reply_end(struct fbk_index *index, const struct fbk_asker *asker, uint32_t frame_bytes,
                    uint32_t status)
{
    struct fbk_index_worker *worker = &index->workers[asker->worker];
    uint8_t *at = fbk_ring_at(&worker->reply_ring, worker->reply_position);
    const struct fbk_reply reply = {
        .size_bytes = (uint32_t)(sizeof reply + fbk_round_up(frame_bytes, 8)),
        .frame_bytes = frame_bytes,
        .connection_id = asker->connection_id,
        .epoch = index->options.epoch,
        .kind = asker->is_poll ? FBK_KIND_POLL : asker->kind,
        .received_us = asker->received_us,
        .status = status,
    };
    memcpy(at, &reply, sizeof reply);
    memset(at + sizeof reply + frame_bytes, 0, reply.size_bytes - sizeof reply - frame_bytes);
    worker->reply_position += reply.size_bytes;
    index->encoded_bytes += reply.size_bytes;
    struct fbk_stats *stats = &index->segment->stats;
    if (status == FBK_S_NO_LEDGER)
        fbk_count(stats, FBK_C_INDEX_NO_LEDGER, 1);
    else if (status == FBK_S_NO_ENTRY)
        fbk_count(stats, FBK_C_INDEX_NO_ENTRY, 1);
    else if (status == FBK_S_CANNOT_TELL)
        fbk_count(stats, FBK_C_INDEX_CANNOT_TELL, 1);
    if (!is_read(asker->kind) && !asker->is_poll)
        return;
    uint32_t now_us = (uint32_t)(fbk_now_ns() / 1000);
    if (asker->is_poll || asker->is_started)
        note_steps(stats, asker, status == FBK_S_OK, now_us);
    if (!asker->is_poll)
        fbk_observe_many(stats, FBK_H_INDEX_READ_NS, (uint64_t)(now_us - asker->received_us) * 1000,
                         1);
}

uint32_t
fbk_index_add_wait_us(const struct fbk_index *index)
{
    return fbk_add_wait_us(fbk_cursor_load(&index->journal->add_wait),
                           (uint32_t)(fbk_now_ns() / 1000));
}

bool
fbk_index_reply_status(struct fbk_index *index, const struct fbk_asker *asker, uint32_t status)
{
    uint8_t *at = fbk_index_reply_begin(index, asker->worker, FBK_WIRE_STATUS_BYTES_MAX);
    if (!at)
        return false;
    uint32_t frame_bytes = asker->kind == FBK_KIND_RECOVERY_ADD
                               ? fbk_wire_put_waited_status(at, asker->request_id, status,
                                                            fbk_index_add_wait_us(index))
                               : fbk_wire_put_status(at, asker->request_id, status);
    fbk_index_reply_end(index, asker, frame_bytes, status);
    return true;
}
