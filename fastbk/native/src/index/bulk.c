/* Batch reads and lists: large answers, in fair turns, a bounded number of bytes a step.
 *
 * They are taken out of the request rings at once, so that a lone read behind them waits for none
 * of them, and stand in flows, one a connection (by hash), those that have their answer from the
 * disk before those that have yet to ask.  A step encodes about TURN_BYTES of answers, the flows in
 * turn with a quota of bytes each, then looks at what else came; and none is encoded while its
 * worker has BACKLOG_BYTES to send, so that a small answer never stands behind more than that.  How
 * many bytes there are a second, index/pace.h says. */
#include "index/index.h"

#define TURN_BYTES (1024u * 1024u)
#define BACKLOG_BYTES (2u * 1024u * 1024u)
#define QUOTA_BYTES (256 * 1024)

int32_t
fbk_index_bulk_init(struct fbk_index *index)
{
    index->bulk.flows = fbk_memory_take(FBK_BULK_FLOWS * sizeof *index->bulk.flows);
    if (!index->bulk.flows)
        return -ENOMEM;
    for (uint32_t n = 0; n < FBK_BULK_FLOWS; n++)
        index->bulk.flows[n] = (struct fbk_bulk_flow){
            .again = {FBK_NONE, FBK_NONE}, .fresh = {FBK_NONE, FBK_NONE}, .next = FBK_NONE};
    index->bulk.first = index->bulk.last = FBK_NONE;
    fbk_pace_init(&index->pace, fbk_now_ns());
    return 0;
}

bool
fbk_index_bulk_is_held(const struct fbk_index *index)
{
    return fbk_pace_is_held(&index->pace);
}

void
fbk_index_bulk_free(struct fbk_index *index)
{
    if (index->bulk.flows)
        fbk_memory_give_back(index->bulk.flows, FBK_BULK_FLOWS * sizeof *index->bulk.flows);
}

static void
stand_in_line(struct fbk_index_bulk *bulk, uint32_t n)
{
    bulk->flows[n].next = FBK_NONE;
    if (bulk->last == FBK_NONE)
        bulk->first = n;
    else
        bulk->flows[bulk->last].next = n;
    bulk->last = n;
    bulk->count++;
}

static bool
is_empty(const struct fbk_bulk_flow *flow)
{
    return flow->again.first == FBK_NONE && flow->fresh.first == FBK_NONE;
}

void
fbk_index_bulk_put(struct fbk_index *index, struct fbk_index_request *request, bool fresh)
{
    uint32_t slot = (uint32_t)(request - index->requests);
    uint32_t n = (uint32_t)(fbk_index_flow(&request->asker) >> 40) % FBK_BULK_FLOWS;
    struct fbk_bulk_flow *flow = &index->bulk.flows[n];
    struct fbk_bulk_line *line = fresh ? &flow->fresh : &flow->again;
    request->state = FBK_REQUEST_READY;
    request->next = FBK_NONE;
    if (is_empty(flow)) {
        flow->quota_bytes = 0;
        stand_in_line(&index->bulk, n);
    }
    if (line->first == FBK_NONE)
        line->first = slot;
    else
        index->requests[line->last].next = slot;
    line->last = slot;
}

static bool
may_answer(const struct fbk_index *index, const struct fbk_index_request *request)
{
    return fbk_index_unread_bytes(&index->workers[request->asker.worker]) < BACKLOG_BYTES;
}

/* Runs requests of one flow while it has a quota.  False: its first one has to wait. */
static bool
run_flow(struct fbk_index *index, struct fbk_bulk_flow *flow, uint64_t end_bytes)
{
    flow->quota_bytes += QUOTA_BYTES;
    while (!is_empty(flow) && flow->quota_bytes > 0 && index->encoded_bytes < end_bytes) {
        struct fbk_bulk_line *line = flow->again.first != FBK_NONE ? &flow->again : &flow->fresh;
        struct fbk_index_request *request = &index->requests[line->first];
        uint32_t next = request->next;
        if (!may_answer(index, request))
            return false;
        uint64_t before = index->encoded_bytes;
        int32_t ran = fbk_index_request_run(index, request);
        if (ran == FBK_RAN_LATER)
            return false;
        line->first = next;
        flow->quota_bytes -= (int64_t)(index->encoded_bytes - before);
        if (ran == FBK_RAN_DONE)
            fbk_index_request_give_back(index, request);
    }
    return true;
}

/* In a ring, and not taken in yet. */
static bool
adds_are_on_their_way(const struct fbk_index *index)
{
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        if (fbk_cursor_load(&index->workers[w].segment->add_written) !=
            index->workers[w].add_position)
            return true;
    return false;
}

bool
fbk_index_bulk_run(struct fbk_index *index)
{
    struct fbk_index_bulk *bulk = &index->bulk;
    uint64_t begin_bytes = index->encoded_bytes;
    uint64_t allowed_bytes =
        fbk_pace_allows(&index->pace, fbk_now_ns(), adds_are_on_their_way(index));
    uint64_t end_bytes = begin_bytes + (allowed_bytes < TURN_BYTES ? allowed_bytes : TURN_BYTES);
    uint32_t held = 0; /* flows in a row that have to wait */
    while (bulk->count > held && index->encoded_bytes < end_bytes) {
        uint32_t n = bulk->first;
        struct fbk_bulk_flow *flow = &bulk->flows[n];
        bulk->first = flow->next;
        if (bulk->first == FBK_NONE)
            bulk->last = FBK_NONE;
        bulk->count--;
        held = run_flow(index, flow, end_bytes) ? 0 : held + 1;
        if (held > 0 && flow->quota_bytes > QUOTA_BYTES)
            flow->quota_bytes = QUOTA_BYTES; /* waiting saves nothing up */
        if (!is_empty(flow))
            stand_in_line(bulk, n);
    }
    fbk_pace_used(&index->pace, index->encoded_bytes - begin_bytes);
    return bulk->count > held && allowed_bytes > TURN_BYTES;
}
