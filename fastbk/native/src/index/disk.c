/* What requests ask the disk, and what it answers. */
#include "index/index.h"

#define LISTS_MAX 32u /* on the disk at once: each has a quarter of a MiB for its ranges */
#define RESULTS 64

int32_t
fbk_index_request_disk(struct fbk_index *index, struct fbk_index_request *request,
                       int64_t first_entry_id, int64_t last_entry_id)
{
    uint32_t slot = (uint32_t)(request - index->requests);
    uint32_t lane = request->scan || fbk_index_is_bulk(request) ? FBK_LANE_BULK : FBK_LANE_URGENT;
    fbk_index_request_forget(index, request);
    if (fbk_index_stream_park(index, request, first_entry_id))
        return FBK_RAN_DISK;
    if (fbk_store_submit(index->store, fbk_ticket(slot, request->generation, 0), request->ledger_id,
                         first_entry_id, last_entry_id, lane, fbk_index_flow(&request->asker)) < 0)
        return FBK_RAN_LATER;
    request->state = FBK_REQUEST_DISK;
    request->requested_entry_id = first_entry_id;
    request->requested_last_entry_id = last_entry_id;
    request->resets = index->resets;
    request->jobs++;
    fbk_count(&index->segment->stats, FBK_C_INDEX_DISK_JOBS, 1);
    return FBK_RAN_DISK;
}

int32_t
fbk_index_request_disk_list(struct fbk_index *index, struct fbk_index_request *request)
{
    uint32_t slot = (uint32_t)(request - index->requests);
    if (!request->ranges) {
        if (index->list_count == LISTS_MAX)
            return FBK_RAN_LATER;
        request->ranges_max = request->entry_count_max;
        request->ranges =
            fbk_memory_take((uint64_t)request->ranges_max * 2 * sizeof *request->ranges);
        if (!request->ranges)
            return FBK_RAN_LATER;
        index->list_count++;
    }
    if (fbk_store_submit_list(index->store, fbk_ticket(slot, request->generation, 0),
                              request->ledger_id, request->first_entry_id, request->ranges,
                              request->ranges_max, fbk_index_flow(&request->asker)) < 0)
        return FBK_RAN_LATER;
    request->state = FBK_REQUEST_DISK;
    request->requested_entry_id = request->first_entry_id;
    request->resets = index->resets;
    fbk_count(&index->segment->stats, FBK_C_INDEX_DISK_JOBS, 1);
    return FBK_RAN_DISK;
}

bool
fbk_index_request_answered(struct fbk_index *index, struct fbk_index_request *request)
{
    /* A cache that was readable when the job was made has been emptied: what it held is on disk,
     * but that job may have looked before. */
    if (request->answered && request->resets != index->resets)
        fbk_index_request_forget(index, request);
    return request->answered;
}

static void
take_result(struct fbk_index *index, const struct fbk_store_result *result)
{
    uint32_t slot = (uint32_t)result->ticket;
    uint32_t generation = (uint32_t)(result->ticket >> 32) & FBK_TICKET_GENERATION;
    if (result->ticket & FBK_TICKET_AHEAD) {
        fbk_index_stream_result(index, slot, generation, result);
        return;
    }
    if (result->ticket & FBK_TICKET_CHECK) {
        fbk_index_check_disk(index, slot, generation, result);
        return;
    }
    struct fbk_index_request *request =
        slot < index->options.requests_max ? &index->requests[slot] : NULL;
    FBK_ASSERT(request && request->state == FBK_REQUEST_DISK &&
               (request->generation & FBK_TICKET_GENERATION) == generation);
    fbk_index_request_ready(index, request);
    if (result->status == FBK_S_TOO_MANY_REQUESTS)
        return; /* no room for runs just now: it asks again */
    request->answered = true;
    request->disk_status = result->status;
    request->found_entry_id = result->found_entry_id;
    request->alone_through = result->alone_through;
    request->range_count = result->range_count;
    request->run = result->run;
}

void
fbk_index_collect(struct fbk_index *index)
{
    struct fbk_store_result results[RESULTS];
    int32_t count;
    if (!index->store)
        return;
    do {
        count = fbk_store_collect(index->store, results, RESULTS);
        for (int32_t n = 0; n < count; n++)
            take_result(index, &results[n]);
    } while (count == RESULTS);
}
