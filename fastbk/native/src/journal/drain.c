/* Takes records from the rings into a batch: copies each once, checks the copy and decides about it
 * (journal/decide.c).  A decision is final, and the next record of the same ledger is decided by
 * the state that this one left. */

#include "journal/journal.h"

#include "base/checksum.h"
#include "base/record.h"
#include "journal/decide.h"
#include "journal/format.h"

enum stop {
    GO_ON = 0,
    /* the batch, the file or the exceptions have no room for the record: it stays in its ring */
    STOP_FULL,
};

/* Whether the record fits behind what the batch holds; sets need_roll when the file is what is too
 * small. */
static enum stop
fits(struct fbk_journal *journal, const struct fbk_journal_slot *slot, uint64_t planned_bytes)
{
    uint64_t end = (uint64_t)slot->content_bytes + planned_bytes;
    if (slot->descriptor.record_count > 0 && end > journal->options.batch_size_bytes_max)
        return STOP_FULL;
    FBK_ASSERT(end <= journal->buffer_bytes);
    /* The last block is left for the closing batch. */
    uint64_t block = journal->options.block_size_bytes;
    if (journal->offset_bytes + fbk_round_up(end, block) + block > journal->file.size_bytes) {
        if (slot->descriptor.record_count == 0)
            journal->need_roll = true;
        return STOP_FULL;
    }
    return GO_ON;
}

/* Once a ledger: a new one that does not begin with entry 0, for the log. */
static void
note_late(struct fbk_journal *journal, const struct fbk_record *record, uint32_t verdict)
{
    if (verdict == FBK_TAKE_FENCE || record->entry_id <= 0)
        return;
    if (journal->late_count == FBK_LATE_LEDGERS_MAX) {
        journal->late_others++;
        return;
    }
    struct fbk_late_ledger *late = &journal->late[journal->late_count++];
    late->ledger_id = record->ledger_id;
    late->entry_id = record->entry_id;
    late->recovery = !!(record->flags & FBK_FLAG_RECOVERY);
}

/* The state that the record leaves behind.  False when there is no memory for a new ledger. */
static bool
apply(struct fbk_journal *journal, const struct fbk_record *record, uint32_t verdict,
      struct fbk_ledger_state *state)
{
    if (!state) {
        state = fbk_ledgers_add(&journal->ledgers, record->ledger_id);
        if (!state)
            return false;
        note_late(journal, record, verdict);
    }
    journal->unconfirmed -= fbk_is_unconfirmed(state);
    fbk_decide_apply(state, record, verdict);
    journal->unconfirmed += fbk_is_unconfirmed(state);
    state->changed_sequence = journal->sequence + 1;
    return true;
}

/* Copies the record behind the others, or notes it for the second pass. */
static int32_t
keep(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t w,
     const struct fbk_record *record, bool is_new, uint64_t planned_bytes)
{
    const uint64_t position = journal->workers[w].taken;
    if (slot->has_runs) {
        if (!fbk_journal_note_taken(journal, w, record, is_new, planned_bytes))
            return fbk_journal_poison(journal, FBK_POISON_RING, w, position, 0);
        slot->content_bytes += (uint32_t)planned_bytes;
    } else {
        int32_t rc = fbk_journal_put_loose(journal, slot, w, position, record);
        if (rc < 0)
            return rc;
        if (is_new)
            fbk_journal_count_new(journal, record);
    }
    if (slot->descriptor.record_count++ == 0)
        slot->first_received_us = record->received_us;
    slot->received_us_sum += (int32_t)(record->received_us - slot->first_received_us);
    if (!slot->has_normal_add && record->kind <= FBK_KIND_ADD_BATCH &&
        !(record->flags & FBK_FLAG_RECOVERY)) {
        slot->has_normal_add = true;
        slot->normal_add_us = record->received_us;
    }
    return 0;
}

static void
note_refusal(struct fbk_journal *journal, uint32_t status)
{
    struct fbk_stats *stats = &journal->segment->stats;
    switch (status) {
    case FBK_S_FENCED: fbk_count(stats, FBK_C_JOURNAL_REFUSED_FENCED, 1); break;
    case FBK_S_UNAUTHORIZED: fbk_count(stats, FBK_C_JOURNAL_REFUSED_UNAUTHORIZED, 1); break;
    case FBK_S_READ_ONLY: fbk_count(stats, FBK_C_JOURNAL_REFUSED_READ_ONLY, 1); break;
    case FBK_S_NO_LEDGER: fbk_count(stats, FBK_C_JOURNAL_REFUSED_DELETED, 1); break;
    case FBK_S_TOO_MANY_REQUESTS: fbk_count(stats, FBK_C_JOURNAL_REFUSED_LEDGERS, 1); break;
    default: fbk_count(stats, FBK_C_JOURNAL_REFUSED_BAD_REQUEST, 1); break;
    }
}

static void
note_written(struct fbk_journal *journal, const struct fbk_record *record, uint32_t verdict)
{
    struct fbk_stats *stats = &journal->segment->stats;
    if (verdict == FBK_TAKE_FENCE) {
        fbk_count(stats, FBK_C_JOURNAL_FENCES, 1);
        return;
    }
    fbk_count(stats, FBK_C_JOURNAL_ADDS, 1);
    fbk_count(stats, FBK_C_JOURNAL_ENTRIES, record->entry_count);
    if (verdict == FBK_TAKE_CHECK)
        fbk_count(stats, FBK_C_JOURNAL_CHECKS, 1);
    if (record->flags & FBK_FLAG_RECOVERY)
        fbk_count(stats, FBK_C_JOURNAL_RECOVERY_ADDS, 1);
}

/* One record whose header copy is checked.  GO_ON, STOP_FULL, or FBK_E_POISONED. */
static int32_t
take_record(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t w,
            const struct fbk_record *record)
{
    struct fbk_journal_worker *worker = &journal->workers[w];
    struct fbk_ledger_state *state = NULL;
    uint32_t status = 0;
    if (record->kind != FBK_KIND_FORCE)
        state = fbk_ledgers_find(&journal->ledgers, record->ledger_id);
    const struct fbk_decide_limits limits = {
        .journal =
            journal->reads_only >= FBK_JOURNAL_NO_WRITES ? FBK_JOURNAL_NO_WRITES : journal->limit,
        .reads_only = journal->reads_only != 0,
        .ledgers_full = fbk_journal_ledgers_full(journal),
    };
    uint32_t verdict = fbk_decide(state, record, &limits, &status);
    bool written =
        verdict == FBK_TAKE_NEW || verdict == FBK_TAKE_CHECK || verdict == FBK_TAKE_FENCE;
    const uint64_t planned_bytes = written ? fbk_journal_planned_bytes(journal, slot, record) : 0;
    if (written && fits(journal, slot, planned_bytes) != GO_ON)
        return STOP_FULL;
    if (written && !apply(journal, record, verdict, state)) {
        verdict = FBK_TAKE_REFUSED;
        status = FBK_S_TOO_MANY_REQUESTS;
        written = false;
    }
    if (written) {
        int32_t rc = keep(journal, slot, w, record, verdict == FBK_TAKE_NEW, planned_bytes);
        if (rc < 0)
            return rc;
    }
    switch (verdict) {
    case FBK_TAKE_REFUSED:
        note_refusal(journal, status);
        fbk_journal_add_exception(journal, w, worker->taken, status);
        break;
    case FBK_TAKE_CHECK:
        fbk_journal_add_exception(journal, w, worker->taken, FBK_V_CHECK);
        slot->wake_index = true;
        break;
    case FBK_TAKE_ORDERED:
        fbk_count(&journal->segment->stats, FBK_C_JOURNAL_FENCES_REPEATED, 1);
        fbk_journal_add_exception(journal, w, worker->taken, FBK_V_ORDERED);
        slot->wake_index = true;
        break;
    case FBK_TAKE_FENCE: slot->wake_index = true; break;
    case FBK_TAKE_BARRIER: fbk_count(&journal->segment->stats, FBK_C_JOURNAL_FORCES, 1); break;
    default: /* FBK_TAKE_NEW */ break;
    }
    if (written)
        note_written(journal, record, verdict);
    if (verdict != FBK_TAKE_NEW && verdict != FBK_TAKE_BARRIER)
        slot->loose_mask |= 1u << w;
    slot->descriptor.run_records[w]++;
    if (verdict == FBK_TAKE_NEW)
        slot->descriptor.run_cost[w] += fbk_record_cost(record->payload_bytes, record->entry_count);
    return GO_ON;
}

/* Up to quantum_bytes (at least one record) of one ring.  Bytes taken, or FBK_E_POISONED; *full:
 * stop here. */
static int64_t
take_from(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t w,
          uint64_t *exceptions_room, bool *full)
{
    struct fbk_journal_worker *worker = &journal->workers[w];
    uint64_t start = worker->taken;
    while (worker->taken < worker->written &&
           worker->taken - start < journal->options.quantum_bytes) {
        if (*exceptions_room == 0) {
            *full = true;
            break;
        }
        struct fbk_record record;
        int64_t size = fbk_record_take(&worker->ring, worker->taken, worker->written, &record);
        if (FBK_UNLIKELY(
                size <= 0 || record.epoch != journal->options.epoch ||
                record.sequence != worker->sequence ||
                !fbk_record_shape_ok(&record, (uint64_t)size, journal->options.record_bytes_max)))
            return fbk_journal_poison(journal, FBK_POISON_RING, w, worker->taken, 0);
        uint64_t exceptions = journal->exceptions;
        int32_t rc = take_record(journal, slot, w, &record);
        if (rc < 0)
            return rc;
        if (rc == STOP_FULL) {
            *full = true;
            break;
        }
        *exceptions_room -= journal->exceptions - exceptions;
        slot->descriptor.header_hash[w] =
            fbk_header_hash(&journal->header_key, slot->descriptor.header_hash[w], &record);
        worker->taken += (uint64_t)size;
        worker->sequence++;
    }
    if (worker->taken != start)
        slot->worker_mask |= 1u << w;
    return (int64_t)(worker->taken - start);
}

int32_t
fbk_journal_drain(struct fbk_journal *journal, struct fbk_journal_slot *slot)
{
    uint64_t exceptions_room = 0;
    int32_t rc = fbk_journal_room(journal, &exceptions_room);
    if (rc < 0)
        return rc;
    /* Records that are only refused fill no batch: this bounds how many go into one. */
    uint64_t most = 4ull * journal->options.batch_size_bytes_max;
    uint64_t all = 0;
    bool full = false, any = true;
    journal->reads_only = fbk_cursor_load(&journal->index->reads_only);
    rc = fbk_journal_runs_begin(journal, slot);
    if (rc < 0)
        return rc;
    uint32_t first = journal->rotation++ % journal->options.worker_count;
    while (any && !full && all < most) {
        any = false;
        for (uint32_t n = 0; n < journal->options.worker_count && !full; n++) {
            uint32_t w = (first + n) % journal->options.worker_count;
            int64_t taken = take_from(journal, slot, w, &exceptions_room, &full);
            if (taken < 0)
                return FBK_E_POISONED;
            all += (uint64_t)taken;
            any = any || taken > 0;
        }
    }
    rc = fbk_journal_lay_out(journal, slot);
    if (rc < 0)
        return rc;
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        if (!slot->has_runs || (slot->loose_mask >> w & 1u))
            slot->descriptor.run_records[w] = 0;
    slot->descriptor.received_us = slot->first_received_us;
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        slot->descriptor.ring_end[w] = journal->workers[w].taken;
    slot->descriptor.runs_end = journal->runs;
    slot->descriptor.file_salt = journal->file.salt;
    slot->descriptor.exceptions_end = journal->exceptions;
    slot->is_full = full || all >= most;
    return all > 0;
}
