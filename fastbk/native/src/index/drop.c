/* Dropping copies that metadata counts on no more: the bookie was replaced, and what it held lies
 * elsewhere (INV-G2).
 *
 * Metadata may name this bookie for the same ledger again, once a repair has given it copies.  A
 * copy that was there already is acknowledged without being written again, so nothing may go that
 * an add was acknowledged by after somebody decided to drop it.  Hence: every add to a ledger
 * changes its changed_sequence, also one that stores nothing; a drop names the one it was decided
 * by; and from then until what is stored is gone, it answers no check.  Adds that do not need a
 * look at what is stored pass: they land behind what is dropped.
 *
 * Decision 39. */
#include "index/index.h"

#define STATES_A_SLICE 65536u

static bool
is_settled(const struct fbk_index *index, const struct fbk_ledger_state *state)
{
    const uint32_t others =
        FBK_LEDGER_DELETED | FBK_LEDGER_LIMBO | FBK_LEDGER_DROPPED | FBK_LEDGER_DROPPING;
    return !(state->flags & others) && state->highest_entry_id >= 0 &&
           state->changed_sequence <= index->mark_sequence;
}

int32_t
fbk_index_list_settled(const struct fbk_index *index, uint64_t *cursor, int64_t *ledger_ids,
                       uint64_t *changed, int32_t ids_max)
{
    int32_t count = 0;
    const uint64_t stop_at =
        *cursor < UINT64_MAX - STATES_A_SLICE ? *cursor + STATES_A_SLICE : *cursor;
    const struct fbk_ledger_state *state;
    while (count < ids_max &&
           (state = fbk_ledgers_next_before(&index->ledgers, cursor, stop_at)) != NULL) {
        if (!is_settled(index, state))
            continue;
        ledger_ids[count] = state->ledger_id;
        changed[count++] = state->changed_sequence;
    }
    if (count < ids_max && *cursor < stop_at)
        *cursor = UINT64_MAX;
    return count;
}

int32_t
fbk_index_begin_drop(struct fbk_index *index, int64_t *ledger_ids, uint64_t *changed, int32_t count)
{
    int32_t begun = 0;
    if (index->sealed.cache)
        return 0;
    /* A flushed cache answers checks, too, and would go on with what is dropped. */
    fbk_index_forget_flushed(index);
    for (int32_t n = 0; n < count; n++) {
        struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_ids[n]);
        if (!state || !is_settled(index, state) || state->changed_sequence != changed[n] ||
            fbk_index_checks_hold(index, ledger_ids[n]))
            continue;
        state->flags |= FBK_LEDGER_DROPPING;
        ledger_ids[begun] = ledger_ids[n];
        changed[begun++] = changed[n];
    }
    return begun;
}

void
fbk_index_end_drop(struct fbk_index *index, const int64_t *ledger_ids, const uint64_t *changed,
                   int32_t count, uint32_t is_dropped)
{
    for (int32_t n = 0; n < count; n++) {
        struct fbk_ledger_state *state = fbk_index_ledger(index, ledger_ids[n]);
        if (!state)
            continue;
        state->flags &= ~FBK_LEDGER_DROPPING;
        if (!is_dropped || state->changed_sequence != changed[n])
            continue; /* not gone, or something new has come */
        fbk_index_touch(index, state);
        state->flags |= FBK_LEDGER_DROPPED;
    }
}
