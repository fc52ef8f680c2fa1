/* ReadBatch: what is held of [first, last], ascending, from both caches, runs in memory and disk.
 *
 * An id that is found in memory needs no disk.  For a gap one job asks for the smallest id on disk
 * behind it; its answer says what lies in between (nothing), and how far its run is the only one,
 * so that the gaps of a striped ledger cost no further jobs.  A reply ends where a third job would
 * be needed, if it has an entry: the client goes on from next_entry_id. It ends before the second
 * one if the first one's answer said what a gap is: with another job that would be forgotten, and
 * the reply would end at that gap. */
#include "index/index.h"

#include "wire/wire.h"

#define ENTRIES_MAX 8192u
#define RUNS_MAX 16u
#define JOBS_MAX 2u
#define TAIL_ENTRIES 64
#define TAIL_BYTES (64u * 1024u)

struct part {
    const uint8_t *data;
    uint32_t size_bytes;
};

struct gather {
    struct fbk_index *index;
    struct fbk_index_request *request;
    const struct fbk_ledger_state *state;
    struct part *parts;
    uint32_t count;
    uint32_t count_max;
    uint64_t bytes;
    uint64_t bytes_max;
    int64_t position; /* next id to look at */
    int64_t last;
    bool past_end;                        /* position passed last */
    bool passed_gap;                      /* by what the request's job has answered */
    const struct fbk_run *run;            /* the one used last */
    const struct fbk_run *runs[RUNS_MAX]; /* pinned */
    uint32_t run_count;
};

enum step {
    STEP_ON,
    STEP_END,
    STEP_CANNOT_TELL,
    STEP_DISK
};

static bool
in_run(const struct fbk_run *run, int64_t entry_id, struct part *part)
{
    if (!run || entry_id < run->first_entry_id || entry_id > run->last_entry_id)
        return false;
    const struct fbk_run_item *item = fbk_run_find(run, entry_id);
    if (!item)
        return false;
    part->data = run->bytes + item->offset_bytes;
    part->size_bytes = item->size_bytes;
    return true;
}

/* The first of its entries that no write cache holds: its reader may be one that goes on. */
static void
note(struct gather *gather)
{
    struct fbk_index_request *request = gather->request;
    if (request->noted)
        return;
    int64_t most = (int64_t)gather->count_max - 1;
    int64_t last = gather->last - gather->position < most ? gather->last : gather->position + most;
    fbk_index_stream_note(gather->index, request, gather->position, last, request->size_bytes_max);
}

static bool
in_memory(struct gather *gather, struct part *part)
{
    struct fbk_index *index = gather->index;
    if (in_run(gather->run, gather->position, part)) {
        fbk_count(&index->segment->stats, FBK_C_INDEX_RUN_HITS, 1);
        return true;
    }
    const struct fbk_cache_item *item =
        fbk_index_cached(index, gather->state->ledger_id, gather->position);
    if (item) {
        *part = (struct part){item->data, item->size_bytes};
        fbk_count(&index->segment->stats, FBK_C_INDEX_CACHE_HITS, 1);
        return true;
    }
    if (!index->store || gather->position > gather->state->highest_entry_id)
        return false;
    if (fbk_index_request_answered(index, gather->request) &&
        in_run(gather->request->run, gather->position, part)) {
        gather->run = gather->request->run;
        return true;
    }
    if (gather->run_count == RUNS_MAX)
        return false;
    note(gather);
    const struct fbk_run *run =
        fbk_store_cached(index->store, gather->state->ledger_id, gather->position, true);
    if (!run)
        return false;
    if (!in_run(run, gather->position, part)) {
        fbk_store_release(index->store, run);
        return false;
    }
    gather->run = gather->runs[gather->run_count++] = run;
    return true;
}

/* Nothing on disk in [position, *until); STEP_DISK: not known. */
static enum step
disk_gap(const struct gather *gather, int64_t *until)
{
    struct fbk_index_request *request = gather->request;
    if (!gather->index->store || gather->position > gather->state->highest_entry_id) {
        *until = INT64_MAX;
        return STEP_ON;
    }
    if (!fbk_index_request_answered(gather->index, request) ||
        gather->position < request->requested_entry_id)
        return STEP_DISK;
    if (request->disk_status == FBK_S_NO_ENTRY) {
        *until = INT64_MAX; /* it was asked through last */
        return STEP_ON;
    }
    if (request->disk_status != FBK_S_OK)
        return STEP_CANNOT_TELL;
    if (gather->position < request->found_entry_id) {
        *until = request->found_entry_id;
        return STEP_ON;
    }
    if (gather->position == request->found_entry_id)
        return STEP_CANNOT_TELL; /* it is there, but its bytes are damaged */
    if (gather->position > request->alone_through)
        return STEP_DISK;
    const struct fbk_run_item *items = fbk_run_items(request->run);
    for (uint32_t n = 0; n < request->run->entry_count; n++) {
        if (items[n].entry_id < gather->position)
            continue;
        if (items[n].entry_id == gather->position)
            return STEP_CANNOT_TELL;
        *until = items[n].entry_id <= request->alone_through ? items[n].entry_id
                                                             : request->alone_through + 1;
        return STEP_ON;
    }
    *until = request->alone_through == INT64_MAX ? INT64_MAX : request->alone_through + 1;
    return STEP_ON;
}

/* Moves position over a gap, to the next id that may be held. */
static enum step
pass_gap(struct gather *gather)
{
    int64_t until = 0;
    enum step step = disk_gap(gather, &until);
    if (step != STEP_ON)
        return step;
    /* What is held is shown, also in limbo: only that nothing is here can't be told then. */
    if (fbk_index_no(gather->index, gather->state, FBK_S_NO_ENTRY) != FBK_S_NO_ENTRY)
        return STEP_CANNOT_TELL;
    int64_t ledger_id = gather->state->ledger_id;
    int64_t through =
        until == INT64_MAX ? gather->last : (until - 1 < gather->last ? until - 1 : gather->last);
    const struct fbk_cache_item *a =
        fbk_cache_next(gather->index->active, ledger_id, gather->position, through);
    const struct fbk_cache_item *b =
        fbk_cache_next(gather->index->other, ledger_id, gather->position, through);
    if (a && (!b || a->entry_id < b->entry_id))
        gather->position = a->entry_id;
    else if (b)
        gather->position = b->entry_id;
    else if (through == gather->last)
        gather->past_end = true;
    else
        gather->position = until;
    gather->passed_gap = gather->passed_gap || until != INT64_MAX;
    return STEP_ON;
}

static enum step
append(struct gather *gather, const struct part *part)
{
    if (gather->count > 0 &&
        (gather->bytes + part->size_bytes > gather->bytes_max ||
         fbk_wire_read_batch_size(gather->count + 1, gather->bytes + part->size_bytes) >
             gather->index->options.frame_size_bytes_max))
        return STEP_END;
    gather->parts[gather->count++] = *part;
    gather->bytes += part->size_bytes;
    if (gather->run && gather->position == gather->run->last_entry_id)
        fbk_store_consumed(gather->index->store, gather->run);
    if (gather->position == gather->last)
        gather->past_end = true;
    else
        gather->position++;
    return STEP_ON;
}

static enum step
collect(struct gather *gather)
{
    enum step step = STEP_ON;
    while (step == STEP_ON && !gather->past_end && gather->count < gather->count_max) {
        struct part part;
        step = in_memory(gather, &part) ? append(gather, &part) : pass_gap(gather);
    }
    return step == STEP_ON ? STEP_END : step;
}

static int32_t
answer(struct gather *gather)
{
    struct fbk_index *index = gather->index;
    const struct fbk_asker *asker = &gather->request->asker;
    int64_t next = gather->position;
    if (gather->past_end)
        next = gather->last == INT64_MAX ? INT64_MAX : gather->last + 1;
    uint8_t *sizes, *entries;
    uint8_t *at = fbk_index_reply_begin(index, asker->worker,
                                        fbk_wire_read_batch_size(gather->count, gather->bytes));
    if (!at)
        return FBK_RAN_LATER;
    uint32_t frame_bytes =
        fbk_wire_put_read_batch(at, asker->request_id, FBK_S_OK, gather->state->lac, next,
                                gather->count, (uint32_t)gather->bytes, &sizes, &entries);
    fbk_wire_set_add_wait(at, fbk_index_add_wait_us(index));
    for (uint32_t n = 0; n < gather->count; n++) {
        fbk_store_u32(sizes + 4ull * n, gather->parts[n].size_bytes);
        memcpy(entries, gather->parts[n].data, gather->parts[n].size_bytes);
        entries += gather->parts[n].size_bytes;
    }
    fbk_index_reply_end(index, asker, frame_bytes, FBK_S_OK);
    if (gather->request->noted)
        fbk_index_stream_reached(index, gather->request, next - 1);
    else if (gather->request->tail)
        fbk_pace_observe(&index->pace, FBK_PACE_TAIL,
                         (uint32_t)(fbk_now_ns() / 1000) - asker->received_us);
    fbk_count(&index->segment->stats, FBK_C_INDEX_READ_BATCHES, 1);
    fbk_count(&index->segment->stats, FBK_C_INDEX_READ_ENTRIES, gather->count);
    fbk_count(&index->segment->stats, FBK_C_INDEX_READ_BYTES, gather->bytes);
    return FBK_RAN_DONE;
}

static int32_t
finish(struct gather *gather, enum step step)
{
    struct fbk_index_request *request = gather->request;
    if (step == STEP_DISK &&
        (gather->count == 0 || (request->jobs < JOBS_MAX && !gather->passed_gap)))
        return fbk_index_request_disk(gather->index, request, gather->position, gather->last);
    if (step == STEP_CANNOT_TELL && gather->count == 0)
        return fbk_index_reply_status(gather->index, &request->asker, FBK_S_CANNOT_TELL)
                   ? FBK_RAN_DONE
                   : FBK_RAN_LATER;
    return answer(gather);
}

int32_t
fbk_index_run_read_batch(struct fbk_index *index, struct fbk_index_request *request)
{
    struct fbk_ledger_state *state = fbk_index_ledger(index, request->ledger_id);
    uint32_t status = FBK_S_OK;
    if (request->first_entry_id < 0 || request->last_entry_id < request->first_entry_id)
        status = FBK_S_BAD_REQUEST;
    else if (!fbk_index_is_here(state))
        status = fbk_index_no(index, state, FBK_S_NO_LEDGER);
    if (status != FBK_S_OK)
        return fbk_index_reply_status(index, &request->asker, status) ? FBK_RAN_DONE
                                                                      : FBK_RAN_LATER;
    struct gather gather = {
        .index = index,
        .request = request,
        .state = state,
        .count_max = request->entry_count_max == 0 || request->entry_count_max > ENTRIES_MAX
                         ? ENTRIES_MAX
                         : request->entry_count_max,
        .bytes_max = request->size_bytes_max ? request->size_bytes_max : UINT32_MAX,
        .position = request->first_entry_id,
        .last = request->last_entry_id,
    };
    gather.parts =
        (struct part *)(void *)fbk_index_scratch(index, ENTRIES_MAX * sizeof *gather.parts);
    if (!gather.parts)
        return FBK_RAN_LATER;
    enum step step = collect(&gather);
    int32_t ran = finish(&gather, step);
    for (uint32_t n = 0; n < gather.run_count; n++)
        fbk_store_release(index->store, gather.runs[n]);
    return ran;
}

/* Who follows a ledger asks for what came since its last look.  That is nobody's history: held back
 * with the bulk, the tail reads that the pace is kept for would themselves stand still.  A write
 * cache has it, and what is asked beyond TAIL_BYTES is the next read's, so a reader that is far
 * behind gains nothing by it.  Nor does it wait to hear that nothing is there yet: it asks another
 * bookie then. */
bool
fbk_index_is_tail(struct fbk_index *index, struct fbk_index_request *request)
{
    const struct fbk_ledger_state *state = fbk_index_ledger(index, request->ledger_id);
    int64_t first = request->first_entry_id;
    if (!fbk_index_is_here(state) || first < 0 || first > state->highest_entry_id)
        return true;
    if (state->highest_entry_id - first >= TAIL_ENTRIES ||
        !fbk_index_cached(index, request->ledger_id, first))
        return false;
    if (request->size_bytes_max == 0 || request->size_bytes_max > TAIL_BYTES)
        request->size_bytes_max = TAIL_BYTES;
    return true;
}
