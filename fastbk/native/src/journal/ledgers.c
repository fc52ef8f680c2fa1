/* The journal's table of ledger states: loaded at start, changed by the index's notices, shown in
 * gauges. */
#include "journal/journal.h"

#include <unistd.h>

#include "base/checksum.h"
#include "journal/decide.h"

void
fbk_journal_show_ledgers(struct fbk_journal *journal)
{
    struct fbk_stats *stats = &journal->segment->stats;
    fbk_gauge(stats, FBK_C_JOURNAL_LEDGERS, journal->ledgers.count);
    fbk_gauge(stats, FBK_C_JOURNAL_LEDGERS_UNCONFIRMED, journal->unconfirmed);
    fbk_gauge(stats, FBK_C_JOURNAL_TAKES_NO_NEW_LEDGERS, fbk_journal_ledgers_full(journal));
}

int32_t
fbk_journal_load_states(struct fbk_journal *journal, int32_t states_fd, uint64_t count)
{
    struct fbk_ledger_state states[64];
    /* without it they are added all the same, moved several times */
    (void)fbk_ledgers_reserve(&journal->ledgers, count);
    for (uint64_t done = 0; done < count;) {
        uint64_t some = count - done < 64 ? count - done : 64;
        size_t size = some * sizeof states[0];
        ssize_t got = pread(states_fd, states, size, (off_t)(done * sizeof states[0]));
        if (got != (ssize_t)size)
            return got < 0 ? -errno : FBK_E_CORRUPT;
        for (uint64_t i = 0; i < some; i++) {
            const struct fbk_ledger_state *from = &states[i];
            if (fbk_crc32c(0, from, offsetof(struct fbk_ledger_state, crc)) != from->crc ||
                from->ledger_id < 0)
                return FBK_E_CORRUPT;
            struct fbk_ledger_state *to = fbk_ledgers_add(&journal->ledgers, from->ledger_id);
            if (!to)
                return FBK_E_FULL;
            *to = *from;
            journal->unconfirmed += fbk_is_unconfirmed(to);
        }
        done += some;
    }
    fbk_journal_show_ledgers(journal);
    return 0;
}

/* A deleted ledger that no file knows any more, unless something came of it that the index had not
 * flushed then.  From the next batch on it is one that was never heard of; the index forgets it at
 * the same place in the order. */
static uint64_t
forget(struct fbk_journal *journal, const struct fbk_notice *notice)
{
    const struct fbk_ledger_state *state = fbk_ledgers_find(&journal->ledgers, notice->ledger_id);
    if (state &&
        (!(state->flags & FBK_LEDGER_DELETED) || state->changed_sequence > notice->sequence))
        return FBK_NOTICE_KEPT;
    if (state)
        journal->unconfirmed -= fbk_is_unconfirmed(state);
    fbk_ledgers_remove(&journal->ledgers, notice->ledger_id);
    return journal->order + journal->slot_count;
}

/* What metadata says of ledgers: deleted, out of limbo; and which are forgotten.  Before anything
 * is taken, so that an add that comes behind the index's word is decided by it. */
int32_t
fbk_journal_apply_notices(struct fbk_journal *journal)
{
    uint64_t written = fbk_cursor_load(&journal->index->notices_written);
    if (FBK_LIKELY(written == journal->notices))
        return 0;
    if (FBK_UNLIKELY(written - journal->notices > FBK_NOTICE_COUNT))
        return fbk_journal_poison(journal, FBK_POISON_CURSOR, FBK_WORKERS_MAX, written, 0);
    for (; journal->notices != written; journal->notices++) {
        const struct fbk_notice notice =
            journal->index->notices[journal->notices % FBK_NOTICE_COUNT];
        if (notice.what == FBK_NOTICE_FORGOTTEN) {
            journal->segment->notice_answers[journal->notices % FBK_NOTICE_COUNT] =
                forget(journal, &notice);
            continue;
        }
        struct fbk_ledger_state *state = fbk_ledgers_find(&journal->ledgers, notice.ledger_id);
        if (!state && notice.what == FBK_NOTICE_LISTED &&
            (state = fbk_ledgers_add(&journal->ledgers, notice.ledger_id)) != NULL)
            state->flags = FBK_LEDGER_LISTED;
        if (!state)
            continue;
        journal->unconfirmed -= fbk_is_unconfirmed(state);
        fbk_decide_notice(state, notice.what);
        journal->unconfirmed += fbk_is_unconfirmed(state);
    }
    fbk_journal_show_ledgers(journal);
    fbk_cursor_publish(&journal->segment->notices_consumed, written);
    return 0;
}
