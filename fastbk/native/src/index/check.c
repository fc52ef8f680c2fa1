/* Adds that need a look at what is stored: adds, those of a recovery too, whose id is
 * not above the ledger's highest.
 *
 * The record is copied out of the ring (parked), so that the journal's order goes on while a disk
 * is read.  For each of its entries: stored with the same data: fine; stored with other data:
 * conflict, the stored one stays; not stored: it comes into the cache now.  "Not stored" is decided
 * in the journal's order among checks of the same id, because that is the order in which replay
 * would decide.
 *
 * Decision 23. */
#include "index/index.h"

#include "base/digest.h"
#include "journal/format.h"

#define FIRST_SLOTS 64u

/* ------------ slots */

static bool
grow_slots(struct fbk_index *index)
{
    uint32_t more = index->check_slots ? index->check_slots : FIRST_SLOTS;
    uint64_t bytes = (uint64_t)(index->check_slots + more) * sizeof *index->checks;
    struct fbk_check *bigger =
        index->checks ? fbk_memory_grow(index->checks, index->checks_memory_bytes, bytes)
                      : fbk_memory_take(bytes);
    if (!bigger)
        return false;
    index->checks = bigger;
    index->checks_memory_bytes = bytes;
    for (uint32_t n = more; n-- > 0;) {
        struct fbk_check *check = &bigger[index->check_slots + n];
        memset(check, 0, sizeof *check);
        check->next = index->check_free;
        index->check_free = index->check_slots + n;
    }
    index->check_slots += more;
    return true;
}

static void
free_check(struct fbk_index *index, struct fbk_check *check)
{
    if (check->run)
        fbk_store_release(index->store, check->run);
    fbk_memory_give_back(check->payload, check->payload_memory_bytes);
    index->parked_bytes -= check->payload_memory_bytes;
    uint32_t generation = check->generation + 1;
    memset(check, 0, sizeof *check);
    check->generation = generation;
    check->next = index->check_free;
    index->check_free = (uint32_t)(check - index->checks);
    index->check_count--;
}

void
fbk_index_checks_free(struct fbk_index *index)
{
    for (uint32_t slot = 0; slot < index->check_slots; slot++)
        if (index->checks[slot].state != FBK_CHECK_FREE)
            free_check(index, &index->checks[slot]);
    if (index->checks)
        fbk_memory_give_back(index->checks, index->checks_memory_bytes);
    index->checks = NULL;
    index->check_slots = 0;
}

int32_t
fbk_index_check_add(struct fbk_index *index, const struct fbk_record *record,
                    const uint8_t *payload, uint32_t worker)
{
    if (index->check_free == FBK_NONE && !grow_slots(index))
        return -ENOMEM;
    uint32_t slot = index->check_free;
    struct fbk_check *check = &index->checks[slot];
    uint64_t memory_bytes = fbk_round_up(record->payload_bytes, FBK_PAGE_BYTES);
    check->payload = fbk_memory_take(memory_bytes);
    if (!check->payload)
        return -ENOMEM;
    if (!fbk_record_copy_body(record, check->payload, payload)) {
        fbk_memory_give_back(check->payload, memory_bytes);
        check->payload = NULL;
        return FBK_E_CORRUPT;
    }
    index->check_free = check->next;
    index->check_count++;
    index->parked_bytes += memory_bytes;
    check->payload_memory_bytes = memory_bytes;
    check->record = *record;
    check->serial = index->check_serial++;
    check->batch_sequence = index->batch_sequence;
    check->item = 0;
    check->offset_bytes = record->kind == FBK_KIND_ADD
                              ? 0
                              : record->entry_count * (uint32_t)sizeof(struct fbk_batch_item);
    check->state = FBK_CHECK_READY;
    check->status = FBK_S_OK;
    check->read_entry_id = -1;
    check->asker = (struct fbk_asker){
        .request_id = record->request_id,
        .connection_id = record->connection_id,
        .worker = worker,
        .received_us = record->received_us,
        .kind = record->flags & FBK_FLAG_RECOVERY ? FBK_KIND_RECOVERY_ADD : record->kind,
    };
    index->checks_ready = true;
    fbk_count(&index->segment->stats, FBK_C_INDEX_CHECKS, 1);
    return 0;
}

uint64_t
fbk_index_checks_oldest(const struct fbk_index *index)
{
    uint64_t oldest = UINT64_MAX;
    for (uint32_t slot = 0; index->check_count > 0 && slot < index->check_slots; slot++) {
        const struct fbk_check *check = &index->checks[slot];
        if ((check->state == FBK_CHECK_READY || check->state == FBK_CHECK_DISK) &&
            check->batch_sequence < oldest)
            oldest = check->batch_sequence;
    }
    return oldest;
}

/* ------------ deciding */

static uint32_t
item_bytes(const struct fbk_check *check)
{
    if (check->record.kind == FBK_KIND_ADD)
        return check->record.payload_bytes;
    return ((const struct fbk_batch_item *)(const void *)check->payload)[check->item].size_bytes;
}

static bool
is_undecided(const struct fbk_check *check)
{
    return check->state == FBK_CHECK_READY || check->state == FBK_CHECK_DISK;
}

/* An older undecided check may still store this id. */
static bool
older_may_store(const struct fbk_index *index, const struct fbk_check *check, int64_t entry_id)
{
    for (uint32_t slot = 0; index->check_count > 1 && slot < index->check_slots; slot++) {
        const struct fbk_check *other = &index->checks[slot];
        if (is_undecided(other) && other->serial < check->serial &&
            other->record.ledger_id == check->record.ledger_id &&
            entry_id >= other->record.entry_id + other->item &&
            entry_id - other->record.entry_id < other->record.entry_count)
            return true;
    }
    return false;
}

bool
fbk_index_checks_hold_fence(const struct fbk_index *index, int64_t ledger_id)
{
    for (uint32_t slot = 0; index->check_count > 0 && slot < index->check_slots; slot++) {
        const struct fbk_check *check = &index->checks[slot];
        if (is_undecided(check) && check->record.ledger_id == ledger_id &&
            !(check->record.flags & FBK_FLAG_RECOVERY))
            return true;
    }
    return false;
}

bool
fbk_index_checks_hold(const struct fbk_index *index, int64_t ledger_id)
{
    for (uint32_t slot = 0; index->check_count > 0 && slot < index->check_slots; slot++)
        if (is_undecided(&index->checks[slot]) && index->checks[slot].record.ledger_id == ledger_id)
            return true;
    return false;
}

static void
note_stored(struct fbk_index *index, struct fbk_check *check, struct fbk_ledger_state *state,
            const uint8_t *stored, uint32_t stored_bytes)
{
    const uint8_t *entry = check->payload + check->offset_bytes;
    bool same =
        fbk_entry_same(stored, stored_bytes, entry, item_bytes(check), check->record.digest_type);
    fbk_index_touch(index, state); /* somebody counts on it from now on (INV-G2) */
    fbk_count(&index->segment->stats, same ? FBK_C_INDEX_DUPLICATES : FBK_C_INDEX_CONFLICTS, 1);
    if (!same)
        check->status = FBK_S_CONFLICT;
}

static bool
store_item(struct fbk_index *index, struct fbk_check *check, struct fbk_ledger_state *state,
           int64_t entry_id)
{
    const uint8_t *entry = check->payload + check->offset_bytes;
    uint32_t size_bytes = item_bytes(check);
    uint8_t *copy = fbk_cache_reserve(index->active, state->ledger_id, entry_id, size_bytes);
    if (!copy)
        return false;
    memcpy(copy, entry, size_bytes);
    uint32_t crc =
        check->record.kind == FBK_KIND_ADD
            ? check->record.body_crc
            : ((const struct fbk_batch_item *)(const void *)check->payload)[check->item].crc;
    fbk_cache_commit(index->active, crc);
    fbk_index_noted(index, state, entry_id, (int64_t)fbk_load_be64(entry + 16));
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRIES, 1);
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRY_BYTES, size_bytes);
    return true;
}

static void
read_from_disk(struct fbk_index *index, struct fbk_check *check, int64_t entry_id)
{
    uint32_t slot = (uint32_t)(check - index->checks);
    int32_t rc =
        fbk_store_submit(index->store, fbk_ticket(slot, check->generation, FBK_TICKET_CHECK),
                         check->record.ledger_id, entry_id, entry_id, FBK_LANE_URGENT,
                         check->record.ledger_id < 0 ? 0 : (uint64_t)check->record.ledger_id);
    if (rc < 0)
        return; /* all jobs are taken: the next step tries again */
    check->state = FBK_CHECK_DISK;
    check->resets = index->resets;
    fbk_count(&index->segment->stats, FBK_C_INDEX_DISK_JOBS, 1);
}

enum check_progress {
    CHECK_DONE,
    CHECK_LATER
};

/* Decides about the current item, or finds out why that is not possible yet. */
static enum check_progress
check_item(struct fbk_index *index, struct fbk_check *check, struct fbk_ledger_state *state)
{
    int64_t entry_id = check->record.entry_id + check->item;
    const struct fbk_cache_item *item = fbk_index_cached(index, state->ledger_id, entry_id);
    if (item) {
        note_stored(index, check, state, item->data, item->size_bytes);
        return CHECK_DONE;
    }
    if (check->read_entry_id == entry_id && check->resets != index->resets) {
        /* Another check's copy may have gone through a cache to disk since that look. */
        if (check->run)
            fbk_store_release(index->store, check->run);
        check->run = NULL;
        check->read_entry_id = -1;
    }
    bool above = entry_id > state->highest_entry_id;
    if (!above && index->store && check->read_entry_id != entry_id) {
        read_from_disk(index, check, entry_id);
        return CHECK_LATER;
    }
    if (!above && index->store && check->disk_status == FBK_S_OK) {
        const struct fbk_run_item *stored = fbk_run_find(check->run, entry_id);
        if (stored) {
            note_stored(index, check, state, check->run->bytes + stored->offset_bytes,
                        stored->size_bytes);
            return CHECK_DONE;
        }
        /* the job found it, the run does not hold it: damaged */
        check->disk_status = FBK_S_CANNOT_TELL;
    }
    /* Not stored, or what is stored is damaged: then only a recovery add, a repair, may put a copy
     * beside it. */
    if (!above && index->store && check->disk_status == FBK_S_CANNOT_TELL &&
        !(check->record.flags & FBK_FLAG_RECOVERY)) {
        if (check->status == FBK_S_OK)
            check->status = FBK_S_CANNOT_TELL;
        return CHECK_DONE;
    }
    if (older_may_store(index, check, entry_id))
        return CHECK_LATER;
    return store_item(index, check, state, entry_id) ? CHECK_DONE : CHECK_LATER;
}

static void
run_check(struct fbk_index *index, struct fbk_check *check)
{
    if (check->state == FBK_CHECK_READY) {
        struct fbk_ledger_state *state = fbk_index_ledger(index, check->record.ledger_id);
        /* made when the record was taken in; not forgotten before the mark has passed it */
        FBK_ASSERT(state != NULL);
        if (FBK_UNLIKELY(state->flags & FBK_LEDGER_DROPPING)) {
            /* What is stored is about to go: it must not be what this add is acknowledged by. */
            check->status = FBK_S_TOO_MANY_REQUESTS;
            check->item = check->record.entry_count;
        }
        while (check->item < check->record.entry_count) {
            if (check_item(index, check, state) == CHECK_LATER)
                return;
            if (check->run)
                fbk_store_release(index->store, check->run);
            check->run = NULL;
            check->read_entry_id = -1;
            check->offset_bytes += item_bytes(check);
            check->item++;
        }
        check->state = FBK_CHECK_DECIDED;
    }
    if (check->state == FBK_CHECK_DECIDED &&
        fbk_index_reply_status(index, &check->asker, check->status))
        free_check(index, check);
}

int32_t
fbk_index_checks_run(struct fbk_index *index)
{
    index->checks_ready = false;
    for (uint32_t slot = 0; index->check_count > 0 && slot < index->check_slots; slot++) {
        struct fbk_check *check = &index->checks[slot];
        if (check->state == FBK_CHECK_READY || check->state == FBK_CHECK_DECIDED) {
            run_check(index, check);
            if (check->state == FBK_CHECK_READY || check->state == FBK_CHECK_DECIDED)
                index->checks_ready = true;
        }
    }
    return 0;
}

void
fbk_index_check_disk(struct fbk_index *index, uint32_t slot, uint32_t generation,
                     const struct fbk_store_result *result)
{
    struct fbk_check *check = slot < index->check_slots ? &index->checks[slot] : NULL;
    if (!check || check->state != FBK_CHECK_DISK ||
        (check->generation & FBK_TICKET_GENERATION) != generation) {
        if (result->run)
            fbk_store_release(index->store, result->run);
        return;
    }
    check->state = FBK_CHECK_READY;
    index->checks_ready = true;
    /* A cache that was readable when the job was made is gone: what it held is on disk by now,
     * unseen by that job. */
    if (check->resets != index->resets || result->status == FBK_S_TOO_MANY_REQUESTS) {
        if (result->run)
            fbk_store_release(index->store, result->run);
        return;
    }
    check->run = result->run;
    check->disk_status = result->status;
    check->read_entry_id = check->record.entry_id + check->item;
}
