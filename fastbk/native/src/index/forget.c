/* Deleted ledgers that no file knows any more go out of memory, too: out of the journal's table and
 * out of ours.
 *
 * An id that is forgotten is one that was never heard of: the journal takes adds to it.  Both must
 * forget it at the same place in the order, or what one of them accepts is to the other an add to a
 * deleted ledger.  So the journal is asked, and answers with the order of the first batch that
 * it decides without the state; when all before it are taken in, the state goes here.  It answers
 * "kept" when something came of the ledger that was not flushed when it was asked: a fence, or
 * a copy that we still compare with what is stored.
 *
 * Decision 59. */
#include "index/index.h"

#define STATES_A_SLICE 4096u

uint32_t
fbk_index_flushed_seal(const struct fbk_index *index)
{
    uint32_t under_way = index->sealed.cache ? 1 : 0;
    return index->seal_number - 1 - under_way;
}

int32_t
fbk_index_begin_forget(struct fbk_index *index, const int64_t *ledger_ids, uint64_t count,
                       uint64_t deleted_before_s, uint32_t through_seal)
{
    struct fbk_forgetting *forgetting = &index->forgetting;
    if (forgetting->ledger_ids)
        return -EBUSY;
    uint64_t memory_bytes = (count ? count : 1) * sizeof *forgetting->ledger_ids;
    int64_t *copy = fbk_memory_take(memory_bytes);
    if (!copy)
        return -ENOMEM;
    if (count > 0) /* the list of none may be NULL */
        memcpy(copy, ledger_ids, count * sizeof *copy);
    forgetting->ledger_ids = copy;
    forgetting->memory_bytes = memory_bytes;
    forgetting->count = count;
    forgetting->next = forgetting->forgotten = 0;
    forgetting->deleted_before_s = deleted_before_s;
    forgetting->through_seal = through_seal;
    /* What was sealed since holds nothing of them; the cache before that one may. */
    if (!index->sealed.cache)
        fbk_index_forget_flushed(index);
    return 0;
}

void
fbk_index_forget_answers(struct fbk_index *index)
{
    struct fbk_forgetting *forgetting = &index->forgetting;
    if (FBK_LIKELY(forgetting->answered == forgetting->last))
        return;
    uint64_t consumed = fbk_cursor_load(&index->journal->notices_consumed);
    for (; forgetting->answered != forgetting->last; forgetting->answered++) {
        struct fbk_forget *requested =
            &forgetting->requested[forgetting->answered % FBK_FORGETS_MAX];
        if ((int64_t)(consumed - requested->notice) <= 0)
            break;
        requested->answer = index->journal->notice_answers[requested->notice % FBK_NOTICE_COUNT];
    }
}

void
fbk_index_forget_due(struct fbk_index *index)
{
    struct fbk_forgetting *forgetting = &index->forgetting;
    if (FBK_LIKELY(forgetting->first == forgetting->last))
        return;
    fbk_index_forget_answers(index);
    for (; forgetting->first != forgetting->answered; forgetting->first++) {
        const struct fbk_forget *requested =
            &forgetting->requested[forgetting->first % FBK_FORGETS_MAX];
        if (requested->answer == FBK_NOTICE_KEPT)
            continue;
        if (requested->answer > index->order)
            break;
        index->last_ledger = NULL;
        fbk_ledgers_remove(&index->ledgers, requested->ledger_id);
        fbk_index_forget_lac(index, requested->ledger_id);
        /* before those not looked at */
        forgetting->ledger_ids[forgetting->forgotten++] = requested->ledger_id;
    }
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_LEDGERS, index->ledgers.count);
}

/* As it is in the files that were merged, deleted so long ago that they do not hold it any more. */
static bool
is_forgettable(const struct fbk_index *index, const struct fbk_ledger_state *state)
{
    const struct fbk_forgetting *forgetting = &index->forgetting;
    return state && (state->flags & FBK_LEDGER_DELETED) && !(state->flags & FBK_LEDGER_DROPPING) &&
           state->deleted_s < forgetting->deleted_before_s &&
           state->reserved <= forgetting->through_seal &&
           state->changed_sequence <= index->mark_sequence;
}

/* Asks the journal about some more. */
static void
request_forgets(struct fbk_index *index)
{
    struct fbk_forgetting *forgetting = &index->forgetting;
    uint64_t written = fbk_cursor_load(&index->segment->notices_written);
    uint64_t waiting = written - fbk_cursor_load(&index->journal->notices_consumed);
    uint64_t before = written;
    for (uint32_t states = 0; states < STATES_A_SLICE && forgetting->next < forgetting->count;
         states++) {
        if (forgetting->last - forgetting->first >= FBK_FORGETS_MAX || waiting >= FBK_NOTICE_COUNT)
            break;
        int64_t ledger_id = forgetting->ledger_ids[forgetting->next++];
        if (!is_forgettable(index, fbk_ledgers_find(&index->ledgers, ledger_id)))
            continue;
        index->segment->notices[written % FBK_NOTICE_COUNT] = (struct fbk_notice){
            .ledger_id = ledger_id, .what = FBK_NOTICE_FORGOTTEN, .sequence = index->mark_sequence};
        forgetting->requested[forgetting->last++ % FBK_FORGETS_MAX] =
            (struct fbk_forget){.ledger_id = ledger_id, .notice = written};
        written++;
        waiting++;
    }
    if (written == before)
        return;
    fbk_cursor_publish(&index->segment->notices_written, written);
    if (fbk_bell_needed(&index->journal->sleeper, &index->journal_rung))
        fbk_bell_ring(index->options.journal_bell_fd);
}

void
fbk_index_forget_run(struct fbk_index *index)
{
    if (FBK_LIKELY(!index->forgetting.ledger_ids))
        return;
    fbk_index_forget_due(index);
    request_forgets(index);
}

int64_t
fbk_index_end_forget(struct fbk_index *index, int64_t *ledger_ids)
{
    struct fbk_forgetting *forgetting = &index->forgetting;
    if (!forgetting->ledger_ids)
        return 0;
    if (forgetting->next != forgetting->count || forgetting->first != forgetting->last)
        return -EAGAIN;
    int64_t forgotten = (int64_t)forgetting->forgotten;
    if (!ledger_ids)
        return forgotten;
    memcpy(ledger_ids, forgetting->ledger_ids, forgetting->forgotten * sizeof *ledger_ids);
    fbk_memory_give_back(forgetting->ledger_ids, forgetting->memory_bytes);
    forgetting->ledger_ids = NULL;
    return forgotten;
}

uint64_t
fbk_index_ids_without(int64_t *ledger_ids, uint64_t count, const int64_t *gone, uint64_t gone_count)
{
    uint64_t left = 0, at = 0;
    for (uint64_t n = 0; n < count; n++) {
        while (at < gone_count && gone[at] < ledger_ids[n])
            at++;
        if (at == gone_count || gone[at] != ledger_ids[n])
            ledger_ids[left++] = ledger_ids[n];
    }
    return left;
}
