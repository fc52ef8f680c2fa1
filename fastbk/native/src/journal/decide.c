/* The decisions; see journal/decide.h. */
#include "journal/decide.h"

#include "base/ledgers.h"
#include "journal/format.h"

#include "boundary/journal.h"

static bool
key_differs(const struct fbk_ledger_state *state, const struct fbk_record *record)
{
    return state && (state->flags & FBK_LEDGER_HAS_KEY) &&
           !fbk_master_key_equal(state->master_key, record->master_key);
}

/* Somebody has used the id before its ledger was created: metadata lists no such ledger, and this
 * client got its creation and key from there.  Gc sees that soon, and the id is free again;
 * UNAUTHORIZED would end the writer. */
static bool
is_squatted(const struct fbk_ledger_state *state, const struct fbk_record *record)
{
    return fbk_is_unconfirmed(state) && state->creation_mark == 0 && record->creation_mark != 0;
}

uint32_t
fbk_decide(const struct fbk_ledger_state *state, const struct fbk_record *record,
           const struct fbk_decide_limits *limits, uint32_t *status)
{
    if (record->kind == FBK_KIND_FORCE)
        return FBK_TAKE_BARRIER;
    *status = FBK_S_BAD_REQUEST;
    if (!fbk_record_ids_ok(record))
        return FBK_TAKE_REFUSED;
    /* INV-G5: to be repeated, a ledger that metadata lists is confirmed soon */
    *status = FBK_S_TOO_MANY_REQUESTS;
    if (state && FBK_UNLIKELY(state->flags & FBK_LEDGER_EXPIRING))
        return FBK_TAKE_REFUSED;
    *status = FBK_S_OTHER_CREATION; /* INV-T2 */
    if (FBK_UNLIKELY(fbk_is_other_creation(state, record->creation_mark)))
        return FBK_TAKE_REFUSED;
    *status = FBK_S_UNAUTHORIZED; /* the first key wins, for adds and fences */
    if (key_differs(state, record)) {
        if (is_squatted(state, record))
            *status = FBK_S_OTHER_CREATION;
        return FBK_TAKE_REFUSED;
    }
    uint32_t flags = state ? state->flags : 0;
    /* INV-X4: nobody knows what was lost */
    bool fenced = flags & (FBK_LEDGER_FENCED | FBK_LEDGER_LIMBO);
    bool is_fence = record->kind == FBK_KIND_FENCE;
    /* In limbo a fence is written although adds are refused anyway: limbo may end, the fence must
     * not (INV-F2). */
    if (is_fence && (flags & FBK_LEDGER_FENCED) && (flags & FBK_LEDGER_HAS_KEY))
        return FBK_TAKE_ORDERED;
    bool normal = !is_fence && !(record->flags & FBK_FLAG_RECOVERY);
    /* deleted since or not: its writer is to hear that the ledger is no longer his */
    *status = FBK_S_FENCED;
    if (normal && (flags & FBK_LEDGER_FENCED))
        return FBK_TAKE_REFUSED;
    /* whatever lies under a deleted id goes with the next merge */
    *status = FBK_S_NO_LEDGER;
    if (!is_fence && (flags & FBK_LEDGER_DELETED))
        return FBK_TAKE_REFUSED;
    /* INV-F1: whatever lies behind the fence in the order, in a ring already or not */
    *status = FBK_S_FENCED;
    if (normal && fenced)
        return FBK_TAKE_REFUSED;
    *status = FBK_S_READ_ONLY;
    if (limits->journal == FBK_JOURNAL_NO_WRITES)
        return FBK_TAKE_REFUSED;
    if (normal && (limits->journal != FBK_JOURNAL_OPEN || limits->reads_only))
        return FBK_TAKE_REFUSED;
    *status = FBK_S_TOO_MANY_REQUESTS;
    if (!state && limits->ledgers_full)
        return FBK_TAKE_REFUSED;
    if (is_fence)
        return FBK_TAKE_FENCE;
    return !state || record->entry_id > state->highest_entry_id ? FBK_TAKE_NEW : FBK_TAKE_CHECK;
}

bool
fbk_decide_key(struct fbk_ledger_state *state, const struct fbk_record *record)
{
    if (FBK_LIKELY(state->flags & FBK_LEDGER_HAS_KEY))
        return false;
    memcpy(state->master_key, record->master_key, FBK_MASTER_KEY_BYTES);
    state->creation_mark = record->creation_mark;
    if (state->flags == 0)
        state->flags = FBK_LEDGER_UNCONFIRMED; /* nobody but this client has named it */
    state->flags = (state->flags | FBK_LEDGER_HAS_KEY) & ~FBK_LEDGER_LISTED;
    return true;
}

void
fbk_decide_apply(struct fbk_ledger_state *state, const struct fbk_record *record, uint32_t verdict)
{
    fbk_decide_key(state, record);
    if (verdict == FBK_TAKE_FENCE) {
        state->flags |= FBK_LEDGER_FENCED;
        return;
    }
    int64_t last_entry_id = record->entry_id + ((int64_t)record->entry_count - 1);
    if (last_entry_id > state->highest_entry_id)
        state->highest_entry_id = last_entry_id;
}

void
fbk_decide_replay(struct fbk_ledger_state *state, const struct fbk_record *record)
{
    fbk_decide_key(state, record);
    if (record->kind == FBK_KIND_FENCE)
        state->flags |= FBK_LEDGER_FENCED; /* INV-F2: known before or not */
}

bool
fbk_decide_stored(struct fbk_ledger_state *state, int64_t entry_id, int64_t lac)
{
    state->flags &= ~FBK_LEDGER_DROPPED;
    if (entry_id > state->highest_entry_id)
        state->highest_entry_id = entry_id;
    /* An entry can only confirm what lies before it. */
    if (lac <= state->lac || lac >= entry_id)
        return false;
    state->lac = lac;
    return true;
}

bool
fbk_decide_notice(struct fbk_ledger_state *state, uint32_t what)
{
    uint32_t before = state->flags;
    if (what == FBK_NOTICE_DELETED || what == FBK_NOTICE_ENDED)
        state->flags |= FBK_LEDGER_DELETED;
    else if (what == FBK_NOTICE_LIMBO_OVER || what == FBK_NOTICE_LIMBO_OVER_FENCED)
        state->flags &= ~FBK_LEDGER_LIMBO;
    if (what == FBK_NOTICE_LIMBO_OVER_FENCED)
        state->flags |= FBK_LEDGER_FENCED;
    if (what == FBK_NOTICE_ENDED)
        state->flags &= ~FBK_LEDGER_EXPIRING;
    else if (what == FBK_NOTICE_CONFIRMED || what == FBK_NOTICE_LISTED)
        state->flags &= ~(FBK_LEDGER_UNCONFIRMED | FBK_LEDGER_EXPIRING);
    else if (what == FBK_NOTICE_EXPIRING && (state->flags & FBK_LEDGER_UNCONFIRMED))
        state->flags |= FBK_LEDGER_EXPIRING;
    return state->flags != before;
}

uint32_t
fbk_decide_no(const struct fbk_ledger_state *state, bool in_doubt, uint32_t no)
{
    uint32_t flags = state ? state->flags : 0;
    if (flags & FBK_LEDGER_DELETED)
        return FBK_S_NO_LEDGER; /* gone on the metadata's word, not by a fault */
    return in_doubt || (flags & FBK_LEDGER_LIMBO) ? FBK_S_CANNOT_TELL : no;
}
