/* The bookie's decisions, pure: what becomes of a record, given the state of its ledger; what the
 * record leaves behind; and what may be said of something that is not there.  No I/O, no clock, no
 * allocation, so the simulator's bookies run these very functions (boundary/decide.h).  The journal
 * decides, the index repeats what was decided, live and at replay.
 *
 * Decisions 14, 24 and 28. */
#pragma once

#include "base/layout.h"

#include "boundary/decide.h"

/* What the decision needs to know beside the ledger. */
struct fbk_decide_limits {
    uint32_t journal; /* FBK_JOURNAL_OPEN, NO_ADDS, NO_WRITES */
    bool reads_only;  /* the index takes no normal adds: disk full, limits */
    /* no room for one more ledger that metadata is not known to list (INV-G6) */
    bool ledgers_full;
};

/* FBK_TAKE_*; changes nothing.  state: NULL = a ledger never heard of.  *status is set for
 * FBK_TAKE_REFUSED. */
uint32_t fbk_decide(const struct fbk_ledger_state *state, const struct fbk_record *record,
                    const struct fbk_decide_limits *limits, uint32_t *status);

/* The state that a record with one of the verdicts NEW, CHECK and FENCE leaves behind: key, fence,
 * highest id. */
void fbk_decide_apply(struct fbk_ledger_state *state, const struct fbk_record *record,
                      uint32_t verdict);

/* The first key that comes with a written record is the ledger's for good, and so is the creation
 * mark that comes with it (INV-T1); a ledger that a record makes is unconfirmed (INV-G4).  True: it
 * was this record. */
bool fbk_decide_key(struct fbk_ledger_state *state, const struct fbk_record *record);

/* What a record that was read back from the journal leaves behind, whatever the state is: key and
 * fence (INV-F2).  Its entries are noted when they are stored. */
void fbk_decide_replay(struct fbk_ledger_state *state, const struct fbk_record *record);

/* Takes note of a stored entry: highest id, and the LAC in it.  True: the LAC grew. */
bool fbk_decide_stored(struct fbk_ledger_state *state, int64_t entry_id, int64_t lac);

/* What metadata says of the ledger: FBK_NOTICE_*.  True: the state is another one now. */
bool fbk_decide_notice(struct fbk_ledger_state *state, uint32_t what);

/* `no` (NO_LEDGER, NO_ENTRY), or what has to be said instead (INV-X1): CANNOT_TELL where that may
 * not be known, NO_LEDGER of a deleted ledger.  state may be NULL; in_doubt: damage is on
 * record. */
uint32_t fbk_decide_no(const struct fbk_ledger_state *state, bool in_doubt, uint32_t no);

/* Whether a request names a creation of the ledger id, and what is here is of another one (INV-T2).
 * What is deleted is nobody's. */
static inline bool
fbk_is_other_creation(const struct fbk_ledger_state *state, uint32_t creation_mark)
{
    return creation_mark != 0 && state && state->creation_mark != 0 &&
           state->creation_mark != creation_mark && !(state->flags & FBK_LEDGER_DELETED);
}

/* 1: metadata was never seen to list the ledger, 0. */
static inline uint64_t
fbk_is_unconfirmed(const struct fbk_ledger_state *state)
{
    return state->flags & FBK_LEDGER_UNCONFIRMED ? 1 : 0;
}
