/* What others see of a batch, and when they are woken for it. */

#include "base/add_wait.h"
#include "base/fault.h"
#include "journal/format.h"
#include "journal/journal.h"

/* The index is woken for these, and at the latest so long after the last time while there is
 * something for it (woken at every commit it costs a lone add a third). */
#define INDEX_WAKE_NS (5u * 1000u * 1000u)

/* The furthest consumer of a counted ring of `size`: how many more may be made.  A cursor that
 * claims more than was published is no cursor. */
static int32_t
room_behind(struct fbk_journal *journal, uint64_t made, uint64_t published, uint64_t size,
            bool exceptions, uint64_t *room)
{
    uint64_t slowest = made;
    for (uint32_t w = 0; w <= journal->options.worker_count; w++) {
        bool is_index = w == journal->options.worker_count;
        const struct fbk_cursor *cursor;
        if (is_index)
            cursor = exceptions ? &journal->index->exceptions_consumed
                                : &journal->index->descriptors_consumed;
        else
            cursor = exceptions ? &journal->workers[w].segment->exceptions_consumed
                                : &journal->workers[w].segment->descriptors_consumed;
        uint64_t consumed = fbk_cursor_load(cursor);
        if (consumed == FBK_CONSUMER_GONE && !is_index)
            /* what its drain left in its ring is taken in all the same, and nobody is told */
            continue;
        if (consumed > published)
            return fbk_journal_poison(journal, FBK_POISON_CURSOR, w, consumed, 0);
        if (consumed < slowest)
            slowest = consumed;
    }
    FBK_ASSERT(made - slowest <= size);
    *room = size - (made - slowest);
    return 0;
}

/* 1: there is room for a descriptor, and *exceptions_room says for how many exceptions; 0: there is
 * not. */
int32_t
fbk_journal_room(struct fbk_journal *journal, uint64_t *exceptions_room)
{
    uint64_t room;
    int32_t rc = room_behind(journal, journal->order, journal->published, FBK_DESCRIPTOR_COUNT,
                             false, &room);
    if (rc < 0)
        return rc;
    if (room <= journal->slot_count) /* those begun have no order yet */
        return 0;
    /* The published end of the exceptions is in the last published descriptor. */
    uint64_t published_end = 0;
    if (journal->published > 0)
        published_end =
            journal->segment->descriptors[(journal->published - 1) % FBK_DESCRIPTOR_COUNT]
                .exceptions_end;
    rc = room_behind(journal, journal->exceptions, published_end, FBK_EXCEPTION_COUNT, true,
                     exceptions_room);
    if (rc < 0)
        return rc;
    return *exceptions_room > 0;
}

void
fbk_journal_add_exception(struct fbk_journal *journal, uint32_t worker, uint64_t position,
                          uint32_t verdict)
{
    /* Not visible before a descriptor's exceptions_end passes it; fbk_journal_room saw that its
     * slot is free. */
    struct fbk_exception *exception =
        &journal->segment->exceptions[journal->exceptions % FBK_EXCEPTION_COUNT];
    exception->position = position;
    exception->worker = worker;
    exception->verdict = verdict;
    journal->exceptions++;
}

struct fbk_journal_slot *
fbk_journal_begin_slot(struct fbk_journal *journal)
{
    FBK_ASSERT(journal->slot_count < journal->options.depth);
    struct fbk_journal_slot *slot =
        &journal->slots[(journal->first_slot + journal->slot_count) % journal->options.depth];
    FBK_ASSERT(slot->state == FBK_SLOT_FREE);
    slot->content_bytes = sizeof(struct fbk_batch_header);
    slot->buffer = slot->own;
    slot->has_runs = false;
    slot->record_count = 0;
    slot->loose_bytes = 0;
    slot->records_crc = 0;
    slot->worker_mask = 0;
    slot->loose_mask = 0;
    slot->wake_index = slot->is_full = slot->has_normal_add = false;
    slot->first_received_us = 0;
    slot->received_us_sum = 0;
    slot->first_record_sequence = journal->next_record_sequence;
    slot->completed_ns = 0;
    slot->free_ns = journal->completed_ns;
    slot->away_ns = journal->away_ns;
    slot->flight_flags = journal->flight_flags;
    journal->away_ns = 0;
    journal->flight_flags = 0;
    memset(&slot->descriptor, 0, sizeof slot->descriptor);
    slot->descriptor.exceptions_end = journal->exceptions;
    slot->descriptor.runs_end = journal->runs;
    slot->descriptor.tail_end = journal->tail_written;
    for (uint32_t w = 0; w < journal->options.worker_count; w++) {
        slot->descriptor.ring_end[w] = journal->workers[w].taken;
        slot->descriptor.header_hash[w] = FBK_HEADER_HASH_NONE;
    }
    return slot;
}

static bool
index_needs_bell(const struct fbk_journal *journal, uint64_t now_ns)
{
    if (fbk_cursor_load(&journal->index->wants_wake))
        return true;
    uint64_t consumed = fbk_cursor_load(&journal->index->descriptors_consumed);
    if (journal->published - consumed >= FBK_DESCRIPTOR_COUNT / 4 ||
        now_ns - journal->index_rung_ns >= INDEX_WAKE_NS)
        return true;
    uint64_t exceptions =
        journal->segment->descriptors[(journal->published - 1) % FBK_DESCRIPTOR_COUNT]
            .exceptions_end;
    if (exceptions - fbk_cursor_load(&journal->index->exceptions_consumed) >=
        FBK_EXCEPTION_COUNT / 4)
        return true;
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        if (journal->workers[w].taken - fbk_cursor_load(&journal->index->indexed[w]) >=
            journal->workers[w].ring.size_bytes / 4)
            return true;
    return false;
}

static void
ring_bells(struct fbk_journal *journal, uint32_t worker_mask, bool wake_index, uint64_t now_ns)
{
    uint64_t exceptions =
        journal->segment->descriptors[(journal->published - 1) % FBK_DESCRIPTOR_COUNT]
            .exceptions_end;
    for (uint32_t w = 0; w < journal->options.worker_count; w++) {
        struct fbk_journal_worker *worker = &journal->workers[w];
        /* A worker without traffic has to move its cursors now and then, or there is no room. */
        if (fbk_cursor_load(&worker->segment->descriptors_consumed) == FBK_CONSUMER_GONE)
            continue;
        bool lags = journal->published - fbk_cursor_load(&worker->segment->descriptors_consumed) >=
                        FBK_DESCRIPTOR_COUNT / 4 ||
                    exceptions - fbk_cursor_load(&worker->segment->exceptions_consumed) >=
                        FBK_EXCEPTION_COUNT / 4;
        if (((worker_mask >> w & 1u) || lags) &&
            fbk_bell_needed(&worker->segment->sleeper, &worker->rung)) {
            fbk_bell_ring(worker->bell_fd);
            fbk_count(&journal->segment->stats, FBK_C_JOURNAL_WORKER_BELLS, 1);
        }
    }
    if (wake_index || index_needs_bell(journal, now_ns)) {
        journal->index_rung_ns = now_ns;
        if (fbk_bell_needed(&journal->index->sleeper, &journal->index_rung)) {
            fbk_bell_ring(journal->options.index_bell_fd);
            fbk_count(&journal->segment->stats, FBK_C_JOURNAL_INDEX_BELLS, 1);
        }
    }
}

/* A batch without records was on no disk and has no arrival. */
static bool
is_slow(const struct fbk_journal_slot *slot, uint64_t now_ns)
{
    return (int32_t)((uint32_t)(now_ns / 1000u) - slot->first_received_us) >=
               (int32_t)FBK_FLIGHT_SLOW_US &&
           slot->descriptor.record_count > 0;
}

int32_t
fbk_journal_publish(struct fbk_journal *journal)
{
    uint32_t worker_mask = 0, slow_mask = 0;
    bool wake_index = false;
    int32_t count = 0;
    uint64_t now_ns = 0, add_wait = fbk_cursor_load(&journal->segment->add_wait);
    while (journal->slot_count > 0) {
        struct fbk_journal_slot *slot = &journal->slots[journal->first_slot];
        if (slot->state != FBK_SLOT_DURABLE)
            break; /* INV-J1: nothing before this one */
        if (count == 0)
            now_ns = fbk_now_ns();
        struct fbk_batch_descriptor *descriptor = &slot->descriptor;
        if (descriptor->file_id) {
            journal->published_sequence++;
            FBK_ASSERT(journal->published_sequence == descriptor->batch_sequence);
        }
        descriptor->batch_sequence = journal->published_sequence;
        descriptor->order = journal->order;
        descriptor->published_ns = now_ns;
        for (uint32_t w = 0; w < journal->options.worker_count; w++)
            descriptor->header_hash[w] ^= fbk_header_mask(&journal->header_key, journal->order, w);
        journal->segment->descriptors[journal->order % FBK_DESCRIPTOR_COUNT] = *descriptor;
        journal->order++;
        worker_mask |= slot->worker_mask;
        wake_index = wake_index || slot->wake_index;
        if (slot->has_normal_add)
            add_wait = fbk_add_wait_next(add_wait, (uint32_t)(now_ns / 1000u), slot->normal_add_us);
        slow_mask |= (uint32_t)is_slow(slot, now_ns) << journal->first_slot;
        slot->state = FBK_SLOT_FREE;
        journal->first_slot = (journal->first_slot + 1) % journal->options.depth;
        journal->slot_count--;
        count++;
    }
    if (count == 0)
        return 0;
    journal->published = journal->order;
    fbk_cursor_store(&journal->segment->add_wait, add_wait);
    fbk_cursor_publish(&journal->segment->published, journal->published);
    FBK_KILL_POINT("journal.after_publish");
    fbk_journal_show_ledgers(journal);
    ring_bells(journal, worker_mask, wake_index, now_ns);
    FBK_KILL_POINT("journal.after_bells");
    for (uint32_t i = 0; FBK_UNLIKELY(slow_mask != 0) && i < journal->options.depth; i++)
        if (slow_mask >> i & 1u) /* free by now, but not begun anew */
            fbk_journal_note_slow(journal, &journal->slots[i], now_ns);
    return count;
}
