/* Taking batches in: whole, in the journal's order (INV-A1).
 *
 * Within one batch the journal may have visited the rings in any interleaving, while this goes ring
 * by ring.  So first all records that the journal accepted for good are taken in; then those to be
 * checked, in the order of the exceptions, which is the journal's; and only after that the reads of
 * this batch's fences are answered.  A fence therefore sees every add that was accepted before it,
 * and an accepted add is never refused for a checked one behind it.
 *
 * Decision 22. */
#include "index/index.h"

#include "base/fault.h"
#include "base/run.h"
#include "journal/format.h"

/* An entry's cost is at most 88/41 of its bytes in the ring (a batch of 33-byte entries). */
#define COST_PER_RING_BYTES(bytes) ((bytes) / 4 * 9 + 64)

/* ------------ checking what others wrote */

static int64_t
record_at(struct fbk_index *index, uint32_t w, uint64_t position, uint64_t end,
          struct fbk_record *record)
{
    struct fbk_index_worker *worker = &index->workers[w];
    int64_t size = fbk_record_take(&worker->add_ring, position, end, record);
    if (FBK_UNLIKELY(size <= 0 || record->epoch != index->options.epoch ||
                     !fbk_record_shape_ok(record, (uint64_t)size, worker->add_ring.size_bytes)))
        return FBK_E_CORRUPT;
    return size;
}

/* The same, read once and added to the hash of what the journal judged: the copy counts only once
 * the hash agrees (INV-R4). The journal has checked the header's CRC. */
static int64_t
judged_record(struct fbk_index *index, uint32_t w, uint64_t end, struct fbk_record *record,
              uint64_t *hash)
{
    const struct fbk_index_worker *worker = &index->workers[w];
    const uint64_t available = end - worker->add_position;
    if (FBK_UNLIKELY(available < sizeof *record || worker->add_position % 8 != 0))
        return FBK_E_CORRUPT;
    memcpy(record, fbk_ring_at(&worker->add_ring, worker->add_position), sizeof *record);
    /* From here on the copy is read, and not the ring once more, whatever a compiler would like
     * better. */
    __asm__ volatile("" : "+m"(*record) : : "memory");
    *hash = fbk_header_hash(&index->header_key, *hash, record);
    if (FBK_UNLIKELY(record->epoch != index->options.epoch ||
                     !fbk_record_shape_ok(record, available, worker->add_ring.size_bytes)))
        return FBK_E_CORRUPT;
    return record->size_bytes;
}

static int32_t
descriptor_ok(const struct fbk_index *index, const struct fbk_batch_descriptor *descriptor)
{
    if (descriptor->order != index->order || descriptor->batch_sequence < index->taken_sequence ||
        descriptor->exceptions_end - index->exceptions > FBK_EXCEPTION_COUNT ||
        descriptor->runs_end - index->runs > FBK_RUN_SUMMARY_COUNT)
        return FBK_E_PROTOCOL;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        const struct fbk_index_worker *worker = &index->workers[w];
        uint64_t end = descriptor->ring_end[w];
        if (end - worker->add_position > worker->add_ring.size_bytes)
            return FBK_E_PROTOCOL;
        if (end - worker->add_position >
            fbk_cursor_load(&worker->segment->add_written) - worker->add_position)
            return FBK_E_PROTOCOL;
    }
    return 0;
}

/* 1: the whole batch fits into the active cache. */
static int32_t
fits(struct fbk_index *index, const struct fbk_batch_descriptor *descriptor)
{
    uint64_t room = index->active->capacity_bytes - index->active->used_bytes;
    uint64_t ring_bytes = 0;
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        ring_bytes += descriptor->ring_end[w] - index->workers[w].add_position;
    if (FBK_LIKELY(COST_PER_RING_BYTES(ring_bytes) <= room))
        return 1;
    uint64_t cost = 0;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        uint64_t position = index->workers[w].add_position;
        while (position != descriptor->ring_end[w]) {
            struct fbk_record record;
            int64_t size = record_at(index, w, position, descriptor->ring_end[w], &record);
            if (size < 0)
                return (int32_t)size;
            if (record.kind == FBK_KIND_ADD || record.kind == FBK_KIND_ADD_BATCH)
                cost += fbk_record_cost(record.payload_bytes, record.entry_count);
            position += (uint64_t)size;
        }
    }
    if (cost <= room)
        return 1;
    return index->active->item_count == 0 && !index->sealed.cache ? FBK_E_FULL : 0;
}

static struct fbk_ledger_state *
state_of(struct fbk_index *index, const struct fbk_record *record)
{
    struct fbk_ledger_state *state = fbk_index_ledger_make(index, record->ledger_id);
    if (state && fbk_decide_key(state, record))
        fbk_index_touch(index, state);
    return state;
}

/* ------------ runs that stay in the journal's file */

static struct fbk_run_summary
run_at(const struct fbk_index *index, uint64_t n)
{
    return index->journal->runs[n % FBK_RUN_SUMMARY_COUNT];
}

/* The entries of a run are known by where they lie in the journal's ring.  Nothing of them is read:
 * the journal has checked them, and its record in front of the run has their ledger's key. */
static int32_t
refer_to_run(struct fbk_index *index, const struct fbk_run_summary *run, uint64_t place)
{
    struct fbk_record record;
    /* From the record on: it may lie across the ring's end, in front of a run at its beginning. */
    const uint8_t *bytes = fbk_ring_at(&index->tail, place - sizeof record) + sizeof record;
    memcpy(&record, bytes - sizeof record, sizeof record);
    if (record.ledger_id != run->ledger_id)
        return FBK_E_PROTOCOL;
    struct fbk_ledger_state *state = state_of(index, &record);
    if (!state)
        return FBK_E_FULL;
    const uint64_t entry_bytes = run->size_bytes - fbk_run_front_bytes(run->entry_count);
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRIES, run->entry_count);
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRY_BYTES, entry_bytes);
    fbk_hot_note(&index->hot, run->ledger_id, run->entry_count, (uint32_t)entry_bytes);
    for (uint32_t n = 0; n < run->entry_count; n++) {
        struct fbk_run_item item;
        memcpy(&item, bytes + sizeof(struct fbk_run_header) + n * sizeof item, sizeof item);
        if (item.entry_id < run->first_entry_id || item.entry_id > run->last_entry_id ||
            item.offset_bytes > run->size_bytes ||
            item.size_bytes > run->size_bytes - item.offset_bytes)
            return FBK_E_PROTOCOL;
        if (!fbk_cache_refer(index->active, run->ledger_id, item.entry_id,
                             bytes + item.offset_bytes, item.size_bytes, item.crc))
            return -ENOMEM; /* `fits` saw that there is room: it is memory for the ledger */
    }
    fbk_index_noted(index, state, run->last_entry_id, run->lac);
    return 0;
}

static bool
run_lies_in(const struct fbk_batch_descriptor *descriptor, const struct fbk_run_summary *run)
{
    return run->ledger_id >= 0 && run->first_entry_id >= 0 && run->entry_count > 0 &&
           run->entry_count <= FBK_RUN_ENTRIES_MAX &&
           run->offset_bytes >= descriptor->offset_bytes + sizeof(struct fbk_record) &&
           run->offset_bytes - descriptor->offset_bytes < descriptor->size_bytes &&
           run->size_bytes <=
               descriptor->offset_bytes + descriptor->size_bytes - run->offset_bytes &&
           fbk_run_front_bytes(run->entry_count) < run->size_bytes;
}

/* The batch's runs: the flush publishes where they lie.  Without memory for that they are copied as
 * everything else. */
static int32_t
adopt(struct fbk_index *index, const struct fbk_batch_descriptor *descriptor)
{
    struct fbk_adopted *adopted = &index->adopted;
    const uint64_t count = descriptor->runs_end - index->runs;
    const uint64_t begin = descriptor->tail_end - descriptor->size_bytes;
    index->adopts = count > 0 && index->tail.size_bytes > 0 &&
                    fbk_adopted_begin(adopted, descriptor->file_id, descriptor->file_salt,
                                      descriptor->offset_bytes + descriptor->size_bytes, count);
    if (FBK_LIKELY(!index->adopts))
        return 0;
    index->run_hint = index->runs;
    if (index->active->tail_begin == UINT64_MAX)
        index->active->tail_begin = begin;
    for (uint64_t n = index->runs; n != descriptor->runs_end; n++) {
        const struct fbk_run_summary run = run_at(index, n);
        if (!run_lies_in(descriptor, &run))
            return FBK_E_PROTOCOL;
        const uint64_t place = begin + (run.offset_bytes - descriptor->offset_bytes);
        int32_t rc = refer_to_run(index, &run, place);
        if (rc < 0)
            return rc;
        fbk_adopted_add(adopted, &(struct fbk_location){
                                     .ledger_id = run.ledger_id,
                                     .first_entry_id = run.first_entry_id,
                                     .last_entry_id = run.last_entry_id,
                                     .log_id = FBK_LOG_JOURNAL | descriptor->file_id,
                                     .offset_bytes = run.offset_bytes,
                                     .size_bytes = run.size_bytes,
                                     .entry_count = run.entry_count,
                                 });
    }
    return 0;
}

static bool
run_holds(const struct fbk_index *index, uint64_t n, int64_t ledger_id, int64_t entry_id)
{
    const struct fbk_run_summary run = run_at(index, n);
    return run.ledger_id == ledger_id && run.first_entry_id <= entry_id &&
           entry_id <= run.last_entry_id;
}

/* Whether an entry that was accepted for new lies in a run of the batch: of a ledger that has runs
 * there, each such entry does (INV-J6). */
static bool
is_adopted(struct fbk_index *index, int64_t ledger_id, int64_t entry_id)
{
    if (FBK_LIKELY(!index->adopts))
        return false;
    if (run_holds(index, index->run_hint, ledger_id, entry_id))
        return true;
    for (uint64_t n = index->runs; n != index->runs_end; n++)
        if (run_holds(index, n, ledger_id, entry_id)) {
            index->run_hint = n;
            return true;
        }
    return false;
}

/* ------------ adds and fences */

static int32_t
take_entry(struct fbk_index *index, struct fbk_ledger_state *state, int64_t entry_id,
           const uint8_t *entry, uint32_t size_bytes, uint32_t crc)
{
    if (FBK_UNLIKELY(entry_id <= state->highest_entry_id) &&
        fbk_index_cached(index, state->ledger_id, entry_id)) {
        fbk_count(&index->segment->stats, FBK_C_INDEX_UNEXPECTED, 1);
        return 0; /* first copy wins (INV-A5) */
    }
    uint8_t *copy = fbk_cache_reserve(index->active, state->ledger_id, entry_id, size_bytes);
    if (FBK_UNLIKELY(!copy))
        /* `fits` saw that there is room: it is memory for the ledger that is missing */
        return -ENOMEM;
    if (FBK_UNLIKELY(fbk_crc32c_copy(0, copy, entry, size_bytes) != crc ||
                     fbk_load_be64(copy) != (uint64_t)state->ledger_id ||
                     fbk_load_be64(copy + 8) != (uint64_t)entry_id))
        return FBK_E_CORRUPT;
    fbk_cache_commit(index->active, crc);
    fbk_index_noted(index, state, entry_id, (int64_t)fbk_load_be64(copy + 16));
    return 0;
}

static int32_t
take_batch_add(struct fbk_index *index, struct fbk_ledger_state *state,
               const struct fbk_record *record, const uint8_t *payload)
{
    uint64_t table_bytes = (uint64_t)record->entry_count * sizeof(struct fbk_batch_item);
    struct fbk_batch_item *items =
        (struct fbk_batch_item *)(void *)fbk_index_scratch(index, table_bytes);
    if (!items)
        return -ENOMEM;
    if (table_bytes > record->payload_bytes ||
        fbk_crc32c_copy(0, items, payload, table_bytes) != record->body_crc)
        return FBK_E_CORRUPT;
    uint64_t offset = table_bytes;
    for (uint32_t n = 0; n < record->entry_count; n++) {
        uint32_t size_bytes = items[n].size_bytes;
        if (size_bytes < FBK_ENTRY_HEADER_BYTES || size_bytes > record->payload_bytes - offset)
            return FBK_E_CORRUPT;
        int32_t error = take_entry(index, state, record->entry_id + n, payload + offset, size_bytes,
                                   items[n].crc);
        if (error < 0)
            return error;
        offset += size_bytes;
    }
    return offset == record->payload_bytes ? 0 : FBK_E_CORRUPT;
}

/* A record that the journal accepted. */
static int32_t
take_accepted(struct fbk_index *index, uint32_t w, const struct fbk_record *record,
              const uint8_t *payload)
{
    if (record->kind == FBK_KIND_FORCE)
        return 0; /* the worker answers it */
    if (!fbk_record_ids_ok(record))
        return FBK_E_CORRUPT;
    struct fbk_ledger_state *state = state_of(index, record);
    if (!state)
        return FBK_E_FULL;
    if (record->kind == FBK_KIND_FENCE) {
        if (!(state->flags & FBK_LEDGER_FENCED)) {
            fbk_index_touch(index, state);
            state->flags |= FBK_LEDGER_FENCED;
            fbk_index_wake(index, state);
        }
        return fbk_index_fence_later(index, record, w) ? 0 : -ENOMEM;
    }
    if (is_adopted(index, record->ledger_id, record->entry_id))
        return 0;
    struct fbk_stats *stats = &index->segment->stats;
    fbk_count(stats, FBK_C_INDEX_ENTRIES, record->entry_count);
    fbk_count(stats, FBK_C_INDEX_ENTRY_BYTES, record->payload_bytes);
    fbk_hot_note(&index->hot, record->ledger_id, record->entry_count, record->payload_bytes);
    if (record->kind == FBK_KIND_ADD)
        return take_entry(index, state, record->entry_id, payload, record->payload_bytes,
                          record->body_crc);
    return take_batch_add(index, state, record, payload);
}

/* ------------ a batch */

static const struct fbk_exception *
exception_at(const struct fbk_index *index, uint64_t n)
{
    return &index->journal->exceptions[n % FBK_EXCEPTION_COUNT];
}

/* Everything in ring w up to `end` that is accepted; what is refused or to be checked is passed
 * over. */
static int32_t
take_ring(struct fbk_index *index, uint32_t w, uint64_t end, uint64_t exceptions_end,
          uint64_t judged_hash)
{
    struct fbk_index_worker *worker = &index->workers[w];
    uint64_t next = index->exceptions;
    uint64_t hash = FBK_HEADER_HASH_NONE;
    bool is_first = true; /* of the adds: it waited for its commit the longest */
    while (worker->add_position != end) {
        struct fbk_record record;
        int64_t size = judged_record(index, w, end, &record, &hash);
        if (FBK_UNLIKELY(size < 0 || record.sequence != worker->add_sequence))
            return FBK_E_CORRUPT;
        while (next != exceptions_end && exception_at(index, next)->worker != w)
            next++;
        uint32_t verdict = FBK_S_OK;
        if (FBK_UNLIKELY(next != exceptions_end &&
                         exception_at(index, next)->position == worker->add_position))
            verdict = exception_at(index, next++)->verdict;
        if (FBK_LIKELY(verdict == FBK_S_OK || verdict == FBK_V_ORDERED)) {
            const uint8_t *payload =
                fbk_ring_at(&worker->add_ring, worker->add_position) + sizeof record;
            int32_t error = take_accepted(index, w, &record, payload);
            if (FBK_UNLIKELY(error < 0))
                return error;
            if (is_first && record.kind == FBK_KIND_ADD)
                fbk_pace_observe(&index->pace, FBK_PACE_ADD,
                                 index->batch_published_us - record.received_us);
            is_first = is_first && record.kind != FBK_KIND_ADD;
        } else if (verdict == FBK_V_CHECK) {
            index->checked[next - 1 - index->exceptions] = record;
        } else {
            fbk_count(&index->segment->stats, FBK_C_INDEX_SKIPPED, 1);
        }
        if ((record.kind == FBK_KIND_ADD || record.kind == FBK_KIND_ADD_BATCH) &&
            !(record.flags & FBK_FLAG_RECOVERY))
            worker->cost_taken += fbk_record_cost(record.payload_bytes, record.entry_count);
        worker->add_position += (uint64_t)size;
        worker->add_sequence++;
    }
    /* Nothing of what was taken in is answered, granted or flushed before this is known. */
    return FBK_LIKELY(hash == judged_hash) ? 0 : FBK_E_REWRITTEN;
}

/* All that was taken from the ring is in runs, which are in already. */
static void
pass_ring(struct fbk_index *index, uint32_t w, const struct fbk_batch_descriptor *descriptor)
{
    struct fbk_index_worker *worker = &index->workers[w];
    worker->add_position = descriptor->ring_end[w];
    worker->add_sequence += descriptor->run_records[w];
    worker->cost_taken += descriptor->run_cost[w];
    fbk_pace_observe(&index->pace, FBK_PACE_ADD,
                     index->batch_published_us - descriptor->received_us);
}

/* Room for the headers of the batch's records to be checked, all zero. */
static int32_t
take_room_for_checks(struct fbk_index *index, uint64_t count)
{
    const uint64_t bytes = count * sizeof *index->checked;
    if (bytes > index->checked_memory_bytes) {
        if (index->checked)
            fbk_memory_give_back(index->checked, index->checked_memory_bytes);
        index->checked_memory_bytes = 0;
        index->checked = fbk_memory_take(bytes);
        if (!index->checked)
            return -ENOMEM;
        index->checked_memory_bytes = bytes;
    } else if (count > 0) {
        memset(index->checked, 0, bytes);
    }
    return 0;
}

static int32_t
take_checks(struct fbk_index *index, const uint64_t *starts,
            const struct fbk_batch_descriptor *descriptor)
{
    for (uint64_t n = index->exceptions; n != descriptor->exceptions_end; n++) {
        struct fbk_exception exception = *exception_at(index, n);
        if (exception.verdict != FBK_V_CHECK)
            continue;
        uint32_t w = exception.worker;
        if (w >= index->options.worker_count ||
            exception.position - starts[w] >= descriptor->ring_end[w] - starts[w])
            return FBK_E_PROTOCOL;
        /* As `take_ring` read it: a third look at the ring could find something else. */
        const struct fbk_record record = index->checked[n - index->exceptions];
        if (!fbk_record_ids_ok(&record) ||
            (record.kind != FBK_KIND_ADD && record.kind != FBK_KIND_ADD_BATCH))
            return FBK_E_CORRUPT;
        if (!state_of(index, &record))
            return FBK_E_FULL;
        const uint8_t *payload =
            fbk_ring_at(&index->workers[w].add_ring, exception.position) + sizeof record;
        int32_t error = fbk_index_check_add(index, &record, payload, w);
        if (error < 0)
            return error;
    }
    return 0;
}

/* What takes in late holds ring and credit: one record of a burst. */
static void
note_slow(struct fbk_index *index, uint64_t published_ns, uint64_t now_ns)
{
    if (published_ns == 0 || !fbk_flight_is_due(&index->recorder, now_ns))
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_INTAKE,
        .flags = index->full_since_ns != 0 ? FBK_FLIGHT_FULL : 0,
        .received_ns = published_ns,
        .published_ns = published_ns,
        .ended_ns = now_ns,
    };
    fbk_flight_record(&index->recorder, &record);
}

static void
note_place(struct fbk_index *index, const struct fbk_batch_descriptor *descriptor)
{
    if (FBK_UNLIKELY(descriptor->file_id != index->taken_place.file_id)) {
        memmove(&index->file_begins[1], &index->file_begins[0],
                (FBK_FILE_BEGINS - 1) * sizeof index->file_begins[0]);
        index->file_begins[0].file_id = descriptor->file_id;
        index->file_begins[0].batch_sequence = descriptor->batch_sequence;
    }
    index->taken_place = (struct fbk_mark_place){descriptor->file_id, descriptor->offset_bytes};
}

/* 1: taken in; 0: does not fit now. */
static int32_t
take_descriptor(struct fbk_index *index)
{
    struct fbk_batch_descriptor descriptor =
        index->journal->descriptors[index->order % FBK_DESCRIPTOR_COUNT];
    int32_t rc = descriptor_ok(index, &descriptor);
    if (rc >= 0)
        rc = fits(index, &descriptor);
    if (rc <= 0) {
        index->full = rc == 0;
        return rc;
    }
    rc = take_room_for_checks(index, descriptor.exceptions_end - index->exceptions);
    if (rc < 0)
        return rc;
    index->runs_end = descriptor.runs_end;
    uint64_t starts[FBK_WORKERS_MAX];
    index->batch_sequence = descriptor.batch_sequence;
    index->batch_published_us = (uint32_t)(descriptor.published_ns / 1000);
    rc = adopt(index, &descriptor);
    if (rc < 0)
        return rc;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        starts[w] = index->workers[w].add_position;
        if (starts[w] == descriptor.ring_end[w])
            continue;
        if (index->adopts && descriptor.run_records[w] > 0) {
            pass_ring(index, w, &descriptor);
            continue;
        }
        const uint64_t judged_hash =
            descriptor.header_hash[w] ^ fbk_header_mask(&index->header_key, descriptor.order, w);
        rc = take_ring(index, w, descriptor.ring_end[w], descriptor.exceptions_end, judged_hash);
        if (rc < 0)
            return rc;
    }
    FBK_KILL_POINT("index.take_middle");
    rc = take_checks(index, starts, &descriptor);
    if (rc < 0)
        return rc;
    index->exceptions = descriptor.exceptions_end;
    index->runs = descriptor.runs_end;
    index->tail_end = descriptor.tail_end;
    index->adopts = false;
    if (descriptor.file_id)
        note_place(index, &descriptor);
    FBK_KILL_POINT("index.after_take");
    index->order++;
    index->taken_sequence = descriptor.batch_sequence;
    index->journal_bytes = descriptor.journal_bytes;
    if (index->oldest_ns == 0 && descriptor.file_id)
        index->oldest_ns = fbk_now_ns();
    fbk_count(&index->segment->stats, FBK_C_INDEX_BATCHES, 1);
    uint64_t now_ns = fbk_now_ns();
    fbk_observe_many(&index->segment->stats, FBK_H_INDEX_INTAKE_NS,
                     now_ns > descriptor.published_ns ? now_ns - descriptor.published_ns : 0, 1);
    if (FBK_UNLIKELY(now_ns > descriptor.published_ns + FBK_FLIGHT_SLOW_NS))
        note_slow(index, descriptor.published_ns, now_ns);
    return 1;
}

/* Unanswered checks and fences hold memory: with many, nothing more is taken in before they are
 * done (INV-B1). */
static bool
has_room_for_answers(const struct fbk_index *index)
{
    return index->parked_bytes <= index->options.parked_bytes_max &&
           index->check_count < FBK_CHECKS_MAX &&
           index->fence_last - index->fence_first < FBK_FENCES_MAX;
}

int32_t
fbk_index_apply(struct fbk_index *index, uint64_t through, uint64_t bytes_max)
{
    uint64_t published = fbk_cursor_load(&index->journal->published);
    if (FBK_UNLIKELY(published - index->order > FBK_DESCRIPTOR_COUNT))
        return FBK_E_PROTOCOL;
    if (through > published)
        through = published;
    uint64_t before = index->active->used_bytes;
    index->full = false;
    while (index->order < through) {
        if (index->active->used_bytes - before > bytes_max)
            return 1;
        fbk_index_forget_due(index);
        if (!has_room_for_answers(index))
            return 0;
        int32_t rc = take_descriptor(index);
        if (rc < 0)
            return rc;
        if (rc == 0) {
            if (index->full_since_ns == 0) {
                index->full_since_ns = fbk_now_ns();
                fbk_count(&index->segment->stats, FBK_C_INDEX_CACHE_FULL, 1);
            }
            return 0;
        }
        if (FBK_UNLIKELY(index->full_since_ns != 0)) {
            fbk_count_timed(&index->segment->stats, FBK_C_INDEX_THROTTLED,
                            (fbk_now_ns() - index->full_since_ns) / 1000);
            index->full_since_ns = 0;
        }
    }
    return 0;
}
