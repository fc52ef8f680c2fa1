/* Ledgers that a client's record made and that metadata was never seen to list (INV-G4 to INV-G6).
 *
 * A ledger is in metadata before its first add.  So one that metadata does not list is no ledger,
 * or one that was deleted, and goes after a while: first the journal takes nothing to it any more
 * (EXPIRING), then metadata is read once more, and only what it does not list then is deleted. What
 * was acknowledged before that is of a ledger that this reading shows.
 *
 * Decision 87. */
#include "index/index.h"

#define FORGOTTEN_S 1u /* deleted so long ago that any merge of everything forgets it */

/* What may expire: not what was lost here, and not what is on its way out already. */
static bool
may_expire(const struct fbk_ledger_state *state)
{
    const uint32_t others = FBK_LEDGER_DELETED | FBK_LEDGER_LIMBO;
    return state && (state->flags & FBK_LEDGER_UNCONFIRMED) && !(state->flags & others);
}

int32_t
fbk_index_list_unconfirmed(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                           uint32_t *expiring, int32_t ids_max)
{
    int32_t count = 0;
    const struct fbk_ledger_state *state;
    bool is_applied =
        (int64_t)(fbk_cursor_load(&index->journal->notices_consumed) - index->expiry_notices) >= 0;
    while (count < ids_max && (state = fbk_ledgers_next(&index->ledgers, cursor)) != NULL) {
        if (!may_expire(state))
            continue;
        expiring[count] = is_applied && (state->flags & FBK_LEDGER_EXPIRING);
        ledger_ids[count++] = state->ledger_id;
    }
    return count;
}

static bool
is_same(const struct fbk_ledger_state *state, const struct fbk_listed *listed)
{
    if (state->creation_mark && listed->creation_mark &&
        state->creation_mark != listed->creation_mark)
        return false;
    return !listed->has_key || !(state->flags & FBK_LEDGER_HAS_KEY) ||
           fbk_master_key_equal(state->master_key, listed->master_key);
}

int32_t
fbk_index_confirm(struct fbk_index *index, const struct fbk_listed *listed, int32_t count,
                  int64_t *foreign)
{
    int32_t foreign_count = 0;
    for (int32_t n = 0; n < count; n++) {
        const struct fbk_ledger_state *state = fbk_index_ledger(index, listed[n].ledger_id);
        /* without room for the notice it is confirmed by a later look */
        int32_t handled = 0;
        if (!may_expire(state))
            continue;
        if (is_same(state, &listed[n]))
            fbk_index_give_notice(index, &listed[n].ledger_id, 1, FBK_NOTICE_CONFIRMED, 0,
                                  &handled);
        else
            foreign[foreign_count++] = listed[n].ledger_id;
    }
    return foreign_count;
}

int32_t
fbk_index_admit(struct fbk_index *index, const int64_t *ledger_ids, int32_t count, int32_t *taken)
{
    int32_t admitted = 0;
    for (*taken = 0; *taken < count; ++*taken) {
        int32_t handled = 0;
        if (fbk_index_ledger(index, ledger_ids[*taken]))
            continue;
        if (!fbk_index_notice_room(index))
            break;
        struct fbk_ledger_state *state = fbk_index_ledger_make(index, ledger_ids[*taken]);
        if (!state)
            break;
        /* as the notice finds it */
        state->flags = FBK_LEDGER_UNCONFIRMED | FBK_LEDGER_LISTED;
        admitted +=
            fbk_index_give_notice(index, &ledger_ids[*taken], 1, FBK_NOTICE_LISTED, 0, &handled);
    }
    return admitted;
}

/* Those that may expire now.  fenced_what, deleted_s: for those that were fenced. */
static int32_t
notice_to(struct fbk_index *index, const int64_t *ledger_ids, int32_t count, uint32_t what,
          uint32_t fenced_what, uint64_t deleted_s, uint32_t wanted, int32_t *taken)
{
    int32_t changed = 0;
    for (*taken = 0; *taken < count; ++*taken) {
        int32_t handled = 0;
        const struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_ids[*taken]);
        if (!may_expire(state) || (state->flags & FBK_LEDGER_EXPIRING) != wanted)
            continue;
        bool is_other = fenced_what != what && (state->flags & FBK_LEDGER_FENCED);
        changed +=
            fbk_index_give_notice(index, &ledger_ids[*taken], 1, is_other ? fenced_what : what,
                                  is_other ? deleted_s : FORGOTTEN_S, &handled);
        if (handled == 0)
            break;
    }
    return changed;
}

int32_t
fbk_index_begin_expiry(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                       int32_t *taken)
{
    int32_t begun =
        notice_to(index, ledger_ids, count, FBK_NOTICE_EXPIRING, FBK_NOTICE_EXPIRING, 0, 0, taken);
    if (begun > 0)
        index->expiry_notices = fbk_cursor_load(&index->segment->notices_written);
    return begun;
}

int32_t
fbk_index_expire(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                 uint64_t fenced_deleted_s, int32_t *taken)
{
    /* INV-G8: who was fenced hears so for a while, and does not begin the ledger anew. */
    uint32_t fenced_what = fenced_deleted_s ? FBK_NOTICE_ENDED : FBK_NOTICE_DELETED;
    int32_t expired = notice_to(index, ledger_ids, count, FBK_NOTICE_DELETED, fenced_what,
                                fenced_deleted_s, FBK_LEDGER_EXPIRING, taken);
    fbk_count(&index->segment->stats, FBK_C_INDEX_EXPIRED_LEDGERS, (uint64_t)expired);
    return expired;
}
