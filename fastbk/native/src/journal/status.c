/* How the journal stands: poisoned or not, for Python; and what Python knows of its files, for the
 * counters.
 *
 * Decision 43. */
#include "journal/journal.h"

int32_t
fbk_journal_poison(struct fbk_journal *journal, uint32_t reason, uint32_t worker, uint64_t position,
                   int32_t error)
{
    if (journal->poison == FBK_POISON_NONE) {
        journal->poison = reason;
        journal->poison_worker = worker;
        journal->poison_position = position;
        journal->poison_error = error;
    }
    return FBK_E_POISONED;
}

void
fbk_journal_note_files(struct fbk_journal *journal, uint64_t behind_bytes, uint64_t recycled,
                       uint64_t made, uint64_t allocated, uint64_t written_bytes)
{
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_BEHIND_BYTES, behind_bytes);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FILES_RECYCLED, recycled);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FILES_MADE, made);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FILES_ALLOCATED, allocated);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_DISK_WRITTEN_BYTES, written_bytes);
}

void
fbk_journal_get_status(const struct fbk_journal *journal, struct fbk_journal_status *status)
{
    memset(status, 0, sizeof *status);
    status->file_id = journal->file.file_id;
    status->offset_bytes = journal->offset_bytes;
    status->file_size_bytes = journal->file.size_bytes;
    status->sequence = journal->sequence;
    status->published_sequence = journal->published_sequence;
    status->next_record_sequence = journal->next_record_sequence;
    status->journal_bytes = journal->journal_bytes;
    status->mark_sequence = fbk_cursor_load(&journal->index->mark_sequence);
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        status->waiting_bytes +=
            fbk_cursor_load(&journal->workers[w].segment->add_written) - journal->workers[w].taken;
    status->ledgers = journal->ledgers.count;
    status->position = journal->poison_position;
    status->last_crc = journal->last_crc;
    status->in_flight = journal->slot_count;
    status->poison = journal->poison;
    status->worker = journal->poison_worker;
    status->error = journal->poison_error;
    status->limit = journal->limit;
    status->adopts = journal->file.adopts;
    status->taken_bytes = journal->taken_bytes;
    status->grouped_bytes = journal->grouped_bytes;
    status->loose_bytes = journal->loose_bytes;
}

uint32_t
fbk_journal_take_late(struct fbk_journal *journal, struct fbk_late_ledger *to, uint64_t *others)
{
    uint32_t count = journal->late_count;
    memcpy(to, journal->late, count * sizeof *to);
    *others = journal->late_others;
    journal->late_count = 0;
    journal->late_others = 0;
    return count;
}

void
fbk_journal_note_adoption(struct fbk_journal *journal, uint64_t free_bytes, uint64_t kept_bytes,
                          uint64_t reason)
{
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FREE_BYTES, free_bytes);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_KEPT_BYTES, kept_bytes);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_ADOPT_REASON, reason);
}

void
fbk_journal_note_ready(struct fbk_journal *journal, uint64_t files, uint64_t took_us)
{
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FILES_READY, files);
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_FILES_READY_US, took_us);
}
