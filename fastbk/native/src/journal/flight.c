/* What the journal records of commits that took long: base/flight.h. */
#include "journal/journal.h"

/* Python's turn is over. */
void
fbk_journal_note_turn(struct fbk_journal *journal, uint64_t now_ns)
{
    if (journal->returned_ns != 0 && now_ns - journal->returned_ns > journal->away_ns)
        journal->away_ns = now_ns - journal->returned_ns;
}

/* Python's turn begins. */
int32_t
fbk_journal_note_return(struct fbk_journal *journal, uint64_t now_ns, int32_t reasons)
{
    journal->returned_ns = now_ns;
    fbk_flight_sample(&journal->recorder, now_ns);
    return reasons;
}

void
fbk_journal_note_sleep(struct fbk_journal *journal, bool timed_out)
{
    journal->flight_flags &= ~FBK_FLIGHT_TIMED_OUT;
    if (timed_out)
        journal->flight_flags |= FBK_FLIGHT_TIMED_OUT;
}

void
fbk_journal_note_slow(struct fbk_journal *journal, const struct fbk_journal_slot *slot,
                      uint64_t now_ns)
{
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_COMMIT,
        .flags = slot->flight_flags,
        .received_ns = fbk_flight_time(now_ns, slot->first_received_us),
        .free_ns = slot->free_ns,
        .submitted_ns = slot->submitted_ns,
        .completed_ns = slot->completed_ns,
        .published_ns = now_ns,
        .ended_ns = now_ns,
        .away_ns = slot->away_ns,
        .record_count = slot->descriptor.record_count,
        .size_bytes = slot->descriptor.size_bytes,
    };
    fbk_flight_record(&journal->recorder, &record);
}
