/* ListEntries: the ids held of a ledger as ranges, merged from both caches and disk. */
#include "index/index.h"

#include "wire/wire.h"

/* An ascending stream of ranges. */
struct source {
    const int64_t *ids; /* single ids, or pairs (first, last) */
    uint64_t count;
    uint64_t at;
    bool pairs;
};

static bool
peek(const struct source *source, int64_t *first, int64_t *last)
{
    if (source->at == source->count)
        return false;
    *first = source->pairs ? source->ids[2 * source->at] : source->ids[source->at];
    *last = source->pairs ? source->ids[2 * source->at + 1] : *first;
    return true;
}

/* Merges ranges below `end` (-1: all) into out, at most ranges_max.  *next: where to go on, -1 =
 * complete. */
static uint32_t
merge(struct source *sources, uint32_t source_count, int64_t end, int64_t *out, uint32_t ranges_max,
      int64_t *next)
{
    uint32_t count = 0;
    for (;;) {
        struct source *smallest = NULL;
        int64_t first = 0, last = 0;
        for (uint32_t n = 0; n < source_count; n++) {
            int64_t f, l;
            if (peek(&sources[n], &f, &l) && (!smallest || f < first)) {
                smallest = &sources[n];
                first = f;
                last = l;
            }
        }
        if (!smallest || (end >= 0 && first >= end)) {
            *next = end;
            return count;
        }
        smallest->at++;
        int64_t *end_of_last = count > 0 ? &out[2 * (count - 1) + 1] : NULL;
        if (end_of_last && (*end_of_last == INT64_MAX || first <= *end_of_last + 1)) {
            if (last > *end_of_last)
                *end_of_last = last;
            continue;
        }
        if (count == ranges_max) {
            *next = first;
            return count;
        }
        out[2 * count] = first;
        out[2 * count + 1] = last;
        count++;
    }
}

static uint64_t
items_of(const struct fbk_write_cache *cache, int64_t ledger_id)
{
    const struct fbk_cache_ledger *ledger = fbk_cache_ledger_of(cache, ledger_id);
    return ledger ? ledger->item_count : 0;
}

static int32_t
answer(struct fbk_index *index, struct fbk_index_request *request)
{
    const struct fbk_asker *asker = &request->asker;
    uint32_t ranges_max = request->entry_count_max;
    uint64_t in_active = items_of(index->active, request->ledger_id);
    uint64_t in_other = items_of(index->other, request->ledger_id);
    int64_t *memory = (int64_t *)(void *)fbk_index_scratch(
        index, (in_active + in_other + 2ull * ranges_max) * sizeof *memory);
    if (!memory)
        return FBK_RAN_LATER;
    int64_t *active_ids = memory + 2ull * ranges_max;
    int64_t *other_ids = active_ids + in_active;
    int64_t first = request->first_entry_id;
    struct source sources[3] = {
        {.ids = active_ids,
         .count = fbk_cache_ids(index->active, request->ledger_id, first, active_ids)},
        {.ids = other_ids,
         .count = fbk_cache_ids(index->other, request->ledger_id, first, other_ids)},
        {.ids = request->ranges,
         .count = request->answered ? request->range_count : 0,
         .pairs = true},
    };
    /* the disk's list goes on there */
    int64_t end = request->answered ? request->found_entry_id : -1;
    int64_t next = -1;
    uint32_t count = merge(sources, 3, end, memory, ranges_max, &next);
    uint8_t *at = fbk_index_reply_begin(index, asker->worker, fbk_wire_list_size(count));
    if (!at)
        return FBK_RAN_LATER;
    uint32_t bytes = fbk_wire_put_list(at, asker->request_id, FBK_S_OK, next, memory, count);
    fbk_index_reply_end(index, asker, bytes, FBK_S_OK);
    fbk_count(&index->segment->stats, FBK_C_INDEX_LISTS, 1);
    return FBK_RAN_DONE;
}

int32_t
fbk_index_run_list(struct fbk_index *index, struct fbk_index_request *request)
{
    const struct fbk_ledger_state *state = fbk_index_ledger(index, request->ledger_id);
    uint32_t status = FBK_S_OK;
    if (request->first_entry_id < 0)
        status = FBK_S_BAD_REQUEST;
    else if (!fbk_index_is_here(state))
        status = fbk_index_no(index, state, FBK_S_NO_LEDGER);
    else /* a list says "no" of everything that is not in it */
        status = fbk_index_no(index, state, FBK_S_OK);
    if (status == FBK_S_OK && index->store && request->first_entry_id <= state->highest_entry_id) {
        if (!fbk_index_request_answered(index, request))
            return fbk_index_request_disk_list(index, request);
        if (request->disk_status != FBK_S_OK && request->disk_status != FBK_S_NO_ENTRY)
            status = (uint32_t)request->disk_status;
    }
    if (status != FBK_S_OK)
        return fbk_index_reply_status(index, &request->asker, status) ? FBK_RAN_DONE
                                                                      : FBK_RAN_LATER;
    return answer(index, request);
}
