/* Credit, cursors and bells: what the other processes see of the index. */
#include "index/index.h"

/* What can be taken in without waiting for a disk, but for the reserve, is shared between the
 * workers: never more is out than there is room for, and what was given is never taken back
 * (INV-R3).  While no flush is under way that is one cache only: the active one may be sealed at
 * any moment, and its free part is then lost until the flush has ended. */
void
fbk_index_grant_credit(struct fbk_index *index)
{
    uint64_t room = index->sealed.cache ? index->active->capacity_bytes - index->active->used_bytes
                                        : index->other->capacity_bytes;
    uint64_t kept = index->options.cache_reserve_bytes + index->parked_bytes;
    room = room > kept ? room - kept : 0;
    uint64_t out = 0;
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        if (index->workers[w].cost_granted > index->workers[w].cost_taken)
            out += index->workers[w].cost_granted - index->workers[w].cost_taken;
    for (uint32_t w = 0; w < index->options.worker_count && out < room; w++) {
        struct fbk_index_worker *worker = &index->workers[w];
        uint64_t target = worker->cost_taken + room / index->options.worker_count;
        if (target <= worker->cost_granted)
            continue;
        uint64_t more = target - worker->cost_granted;
        if (more > room - out)
            more = room - out;
        worker->cost_granted += more;
        out += more;
    }
}

static void
ring_worker(struct fbk_index *index, struct fbk_index_worker *worker)
{
    if (fbk_bell_needed(&worker->segment->sleeper, &worker->rung)) {
        fbk_bell_ring(worker->bell_fd);
        fbk_count(&index->segment->stats, FBK_C_INDEX_WORKER_BELLS, 1);
    }
}

void
fbk_index_set_reads_only(struct fbk_index *index, uint32_t reads_only)
{
    fbk_cursor_publish(&index->segment->reads_only, reads_only);
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_READS_ONLY, reads_only);
    /* Adds that wait for credit are to hear it now. */
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        if (fbk_cursor_load_before_sleep(&index->workers[w].segment->starved))
            ring_worker(index, &index->workers[w]);
}

static void
publish_worker(struct fbk_index *index, uint32_t w)
{
    struct fbk_index_worker *worker = &index->workers[w];
    struct fbk_index_segment *segment = index->segment;
    bool grew = false, answers = false;
    if (worker->add_position != worker->add_published) {
        fbk_cursor_publish(&segment->indexed[w], worker->add_position);
        worker->add_published = worker->add_position;
        grew = true;
    }
    if (worker->cost_granted != worker->cost_published) {
        fbk_cursor_publish(&segment->cost_granted[w], worker->cost_granted);
        worker->cost_published = worker->cost_granted;
        grew = true;
    }
    if (worker->request_position != worker->request_published) {
        fbk_cursor_publish(&segment->request_consumed[w], worker->request_position);
        worker->request_published = worker->request_position;
        grew = true;
    }
    if (worker->reply_position != worker->reply_published) {
        fbk_cursor_publish(&segment->reply_written[w], worker->reply_position);
        worker->reply_published = worker->reply_position;
        answers = true;
    }
    if (answers || (grew && fbk_cursor_load_before_sleep(&worker->segment->starved)))
        ring_worker(index, worker);
}

/* What no entry in a cache points to any more.  Nobody waits for it. */
static void
release_tail(struct fbk_index *index)
{
    uint64_t released = index->tail_end;
    for (uint32_t n = 0; n < 2; n++)
        if (index->caches[n].tail_begin < released)
            released = index->caches[n].tail_begin;
    if (released == index->tail_released)
        return;
    fbk_cursor_store(&index->segment->tail_released, released);
    index->tail_released = released;
}

void
fbk_index_publish(struct fbk_index *index)
{
    release_tail(index);
    uint64_t behind = index->order - index->order_published;
    if (behind) {
        fbk_cursor_publish(&index->segment->exceptions_consumed, index->exceptions);
        fbk_cursor_publish(&index->segment->runs_consumed, index->runs);
        fbk_cursor_publish(&index->segment->descriptors_consumed, index->order);
        index->order_published = index->order;
        /* The journal stops when descriptors run out: it may be asleep over that. */
        if (behind >= FBK_DESCRIPTOR_COUNT / 4 &&
            fbk_bell_needed(&index->journal->sleeper, &index->journal_rung))
            fbk_bell_ring(index->options.journal_bell_fd);
    }
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        publish_worker(index, w);
}
