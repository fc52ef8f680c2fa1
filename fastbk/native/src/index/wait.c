/* Long polls: requests for the LAC that wait until it grows, the ledger is fenced or deleted, or
 * their time is over.  At most waiters_max; found by ledger in buckets, by time in a binary heap,
 * and once due in a queue until there is room. */
#include "index/index.h"

static uint32_t *
bucket_of(const struct fbk_index *index, int64_t ledger_id)
{
    uint64_t hash = ((uint64_t)ledger_id ^ index->options.seed) * 0x9e3779b97f4a7c15ull;
    return &index->waiter_buckets[(hash >> 32) & index->waiter_bucket_mask];
}

int32_t
fbk_index_waiters_init(struct fbk_index *index)
{
    uint32_t max = index->options.waiters_max;
    uint32_t buckets = 64;
    while (buckets < max && buckets < (1u << 20))
        buckets *= 2;
    index->waiters = fbk_memory_take((uint64_t)max * sizeof *index->waiters);
    index->waiter_heap = fbk_memory_take((uint64_t)max * sizeof *index->waiter_heap);
    index->waiter_buckets = fbk_memory_take((uint64_t)buckets * sizeof *index->waiter_buckets);
    index->waiter_bucket_mask = buckets - 1;
    index->waiter_free = index->due_first = index->due_last = FBK_NONE;
    if (!index->waiters || !index->waiter_heap || !index->waiter_buckets)
        return -ENOMEM;
    memset(index->waiter_buckets, 0xff, (uint64_t)buckets * sizeof *index->waiter_buckets);
    return 0;
}

void
fbk_index_waiters_free(struct fbk_index *index)
{
    uint64_t max = index->options.waiters_max;
    if (index->waiters)
        fbk_memory_give_back(index->waiters, max * sizeof *index->waiters);
    if (index->waiter_heap)
        fbk_memory_give_back(index->waiter_heap, max * sizeof *index->waiter_heap);
    if (index->waiter_buckets)
        fbk_memory_give_back(index->waiter_buckets, ((uint64_t)index->waiter_bucket_mask + 1) *
                                                        sizeof *index->waiter_buckets);
}

/* ------------ the heap */

static bool
earlier(const struct fbk_index *index, uint32_t a, uint32_t b)
{
    return index->waiters[a].deadline_ns < index->waiters[b].deadline_ns;
}

static void
heap_put(struct fbk_index *index, uint32_t at, uint32_t slot)
{
    index->waiter_heap[at] = slot;
    index->waiters[slot].heap_at = at;
}

static void
heap_up(struct fbk_index *index, uint32_t at)
{
    uint32_t slot = index->waiter_heap[at];
    while (at > 0 && earlier(index, slot, index->waiter_heap[(at - 1) / 2])) {
        heap_put(index, at, index->waiter_heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    heap_put(index, at, slot);
}

static void
heap_down(struct fbk_index *index, uint32_t at)
{
    uint32_t slot = index->waiter_heap[at];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= index->waiter_heap_count)
            break;
        if (child + 1 < index->waiter_heap_count &&
            earlier(index, index->waiter_heap[child + 1], index->waiter_heap[child]))
            child++;
        if (!earlier(index, index->waiter_heap[child], slot))
            break;
        heap_put(index, at, index->waiter_heap[child]);
        at = child;
    }
    heap_put(index, at, slot);
}

static void
heap_remove(struct fbk_index *index, uint32_t at)
{
    uint32_t moved = index->waiter_heap[--index->waiter_heap_count];
    if (at == index->waiter_heap_count)
        return;
    heap_put(index, at, moved);
    heap_down(index, at);
    heap_up(index, index->waiters[moved].heap_at);
}

/* ------------ waiting */

static void
set_count(struct fbk_index *index, uint32_t count)
{
    /* While somebody waits the journal rings at every publish; else lazily. */
    if ((count == 0) != (index->waiter_count == 0))
        fbk_cursor_publish(&index->segment->wants_wake, count != 0);
    index->waiter_count = count;
    fbk_gauge(&index->segment->stats, FBK_C_INDEX_WAITERS, count);
}

bool
fbk_index_wait(struct fbk_index *index, const struct fbk_index_request *request)
{
    uint32_t slot = index->waiter_free;
    if (slot != FBK_NONE)
        index->waiter_free = index->waiters[slot].next;
    else if (index->waiters_used < index->options.waiters_max)
        slot = index->waiters_used++;
    else
        return false;
    struct fbk_waiter *waiter = &index->waiters[slot];
    uint32_t *bucket = bucket_of(index, request->ledger_id);
    uint64_t now_ns = fbk_now_ns();
    uint32_t now_us = (uint32_t)(now_ns / 1000);
    *waiter = (struct fbk_waiter){
        .asker = request->asker,
        .ledger_id = request->ledger_id,
        .previous_lac = request->previous_lac,
        .deadline_ns = now_ns + (uint64_t)request->timeout_ms * 1000000u,
        .flags = request->flags,
        .next = *bucket,
        .previous = FBK_NONE,
        .used = true,
    };
    if (*bucket != FBK_NONE)
        index->waiters[*bucket].previous = slot;
    waiter->asker.has_waited = waiter->asker.is_started = true;
    waiter->asker.started_us = now_us;
    *bucket = slot;
    heap_put(index, index->waiter_heap_count++, slot);
    heap_up(index, waiter->heap_at);
    set_count(index, index->waiter_count + 1);
    fbk_count(&index->segment->stats, FBK_C_INDEX_WAITS, 1);
    fbk_count_timed(&index->segment->stats, FBK_C_INDEX_POLL_STARTS,
                    now_us - request->asker.received_us);
    return true;
}

/* Out of bucket and heap: it waits for nothing but room in the reply ring. */
static void
make_due(struct fbk_index *index, uint32_t slot)
{
    struct fbk_waiter *waiter = &index->waiters[slot];
    if (waiter->previous != FBK_NONE)
        index->waiters[waiter->previous].next = waiter->next;
    else
        *bucket_of(index, waiter->ledger_id) = waiter->next;
    if (waiter->next != FBK_NONE)
        index->waiters[waiter->next].previous = waiter->previous;
    heap_remove(index, waiter->heap_at);
    waiter->due = true;
    waiter->next = FBK_NONE;
    if (index->due_last == FBK_NONE)
        index->due_first = slot;
    else
        index->waiters[index->due_last].next = slot;
    index->due_last = slot;
}

void
fbk_index_wake(struct fbk_index *index, const struct fbk_ledger_state *state)
{
    if (index->waiter_count == 0)
        return;
    bool for_all =
        (state->flags & (FBK_LEDGER_FENCED | FBK_LEDGER_DELETED | FBK_LEDGER_LIMBO)) != 0;
    for (uint32_t slot = *bucket_of(index, state->ledger_id); slot != FBK_NONE;) {
        const struct fbk_waiter *waiter = &index->waiters[slot];
        uint32_t next = waiter->next;
        if (waiter->ledger_id == state->ledger_id && (for_all || state->lac > waiter->previous_lac))
            make_due(index, slot);
        slot = next;
    }
}

void
fbk_index_cancel(struct fbk_index *index, uint32_t worker, uint64_t connection_id)
{
    fbk_count(&index->segment->stats, FBK_C_INDEX_CANCELS, 1);
    for (uint32_t slot = 0; index->waiter_count > 0 && slot < index->waiters_used; slot++) {
        struct fbk_waiter *waiter = &index->waiters[slot];
        if (!waiter->used || waiter->asker.worker != worker ||
            waiter->asker.connection_id != connection_id)
            continue;
        waiter->cancelled = true; /* it leaves through the queue, without an answer */
        if (!waiter->due)
            make_due(index, slot);
    }
}

/* ------------ answering */

/* False: no room. */
static bool
answer(struct fbk_index *index, const struct fbk_waiter *waiter, uint32_t now_us)
{
    struct fbk_index_request *request = fbk_index_request_take(index);
    if (!request)
        return false;
    request->asker = waiter->asker;
    request->asker.started_us = now_us; /* it waited until now: from here on it reads */
    request->ledger_id = waiter->ledger_id;
    request->previous_lac = waiter->previous_lac;
    request->flags = waiter->flags;
    if (!fbk_index_request_start(index, request))
        return false;
    uint32_t counter =
        waiter->timed_out ? FBK_C_INDEX_POLL_WAITS_FAILED : FBK_C_INDEX_POLL_WAITS_DONE;
    fbk_count_timed(&index->segment->stats, counter, now_us - waiter->asker.started_us);
    return true;
}

void
fbk_index_waiters_run(struct fbk_index *index, uint64_t now_ns)
{
    while (index->waiter_heap_count > 0 &&
           index->waiters[index->waiter_heap[0]].deadline_ns <= now_ns) {
        index->waiters[index->waiter_heap[0]].timed_out = true;
        make_due(index, index->waiter_heap[0]);
        fbk_count(&index->segment->stats, FBK_C_INDEX_WAITS_TIMED_OUT, 1);
    }
    while (index->due_first != FBK_NONE) {
        uint32_t slot = index->due_first;
        struct fbk_waiter *waiter = &index->waiters[slot];
        if (!waiter->cancelled && !answer(index, waiter, (uint32_t)(now_ns / 1000)))
            return;
        index->due_first = waiter->next;
        if (index->due_first == FBK_NONE)
            index->due_last = FBK_NONE;
        waiter->used = false;
        waiter->next = index->waiter_free;
        index->waiter_free = slot;
        set_count(index, index->waiter_count - 1);
    }
}

uint64_t
fbk_index_waiters_deadline(const struct fbk_index *index)
{
    return index->waiter_heap_count > 0 ? index->waiters[index->waiter_heap[0]].deadline_ns
                                        : UINT64_MAX;
}
