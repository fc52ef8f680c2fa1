/* Readers that go on and on: found by what they ask, and read ahead for.
 *
 * A stream is a ledger read over one connection, each read beginning about where the one before it
 * ended.  From its second read on a job brings what comes next into the read cache, and another one
 * as soon as half of that was asked for; the distance doubles with every job, up to its share: all
 * streams together have half of the cache.  A read that arrives before its run waits for the job
 * that is bringing it, without a thread.
 *
 * A stream is only a guess about what will be asked: what is answered never hangs on it.
 *
 * Decision 56. */
#include "index/index.h"

#define STREAM_WAYS 4u
#define STREAM_SETS (FBK_STREAMS / STREAM_WAYS)
/* reads of one window may overtake each other, striped ones leave ids out */
#define SLACK_ENTRIES 64
#define WINDOW_BYTES_MIN (512u * 1024u)
#define WINDOW_BYTES_MAX (4u * 1024u * 1024u)
#define JOB_BYTES_MIN (256u * 1024u)
/* whoever waits for its first run waits for all of it */
#define JOB_BYTES_MAX (2u * 1024u * 1024u)
#define ENTRY_BYTES_GUESSED 1024u
/* a stream that asked nothing for so long has no share */
#define ACTIVE_NS 500000000ull

int32_t
fbk_index_streams_init(struct fbk_index *index)
{
    index->streams = fbk_memory_take(FBK_STREAMS * sizeof *index->streams);
    if (!index->streams)
        return -ENOMEM;
    for (uint32_t slot = 0; slot < FBK_STREAMS; slot++)
        index->streams[slot].ledger_id = -1;
    return 0;
}

void
fbk_index_streams_free(struct fbk_index *index)
{
    if (index->streams)
        fbk_memory_give_back(index->streams, FBK_STREAMS * sizeof *index->streams);
}

uint64_t
fbk_index_flow(const struct fbk_asker *asker)
{
    return (asker->connection_id ^ (uint64_t)asker->worker << 56) * 0xc2b2ae3d27d4eb4full;
}

static struct fbk_stream *
set_of(const struct fbk_index *index, const struct fbk_index_request *request)
{
    uint64_t hash =
        (fbk_index_flow(&request->asker) ^ (uint64_t)request->ledger_id) * 0x9e3779b97f4a7c15ull;
    return &index->streams[((hash ^ index->options.seed) >> 40) % STREAM_SETS * STREAM_WAYS];
}

static bool
is_of(const struct fbk_stream *stream, const struct fbk_index_request *request)
{
    return stream->ledger_id == request->ledger_id &&
           stream->connection_id == request->asker.connection_id &&
           stream->worker == request->asker.worker;
}

static struct fbk_stream *
find(const struct fbk_index *index, const struct fbk_index_request *request)
{
    struct fbk_stream *set = set_of(index, request);
    for (uint32_t n = 0; n < STREAM_WAYS; n++)
        if (is_of(&set[n], request))
            return &set[n];
    return NULL;
}

/* The one that was silent for longest makes room; NULL: for all of the set jobs are under way. */
static struct fbk_stream *
begin(struct fbk_index *index, const struct fbk_index_request *request)
{
    struct fbk_stream *set = set_of(index, request), *oldest = NULL;
    for (uint32_t n = 0; n < STREAM_WAYS; n++)
        if (!set[n].under_way && (!oldest || set[n].used_ns < oldest->used_ns))
            oldest = &set[n];
    if (!oldest)
        return NULL;
    uint32_t generation = oldest->generation;
    *oldest = (struct fbk_stream){
        .ledger_id = request->ledger_id,
        .connection_id = request->asker.connection_id,
        .worker = request->asker.worker,
        .flow = fbk_index_flow(&request->asker),
        .generation = generation,
        .ahead_through = -1,
        .waiting_first = FBK_NONE,
        .waiting_last = FBK_NONE,
    };
    return oldest;
}

/* Half of the cache, shared by the streams that asked lately. */
static uint64_t
share_bytes(struct fbk_index *index, uint64_t now_ns)
{
    if (now_ns - index->streams_counted_ns > ACTIVE_NS / 4) {
        index->streams_counted_ns = now_ns;
        index->streams_active = 0;
        for (uint32_t slot = 0; slot < FBK_STREAMS; slot++) {
            const struct fbk_stream *stream = &index->streams[slot];
            index->streams_active += stream->goes_on && now_ns - stream->used_ns < ACTIVE_NS;
        }
    }
    uint64_t active = index->streams_active > 0 ? index->streams_active : 1;
    uint64_t share = fbk_store_cache_bytes(index->store) / 2 / active;
    return share < WINDOW_BYTES_MAX ? share : WINDOW_BYTES_MAX;
}

/* Has the next part read, from `low` on or behind what was read before; false: none is under way
 * now. */
static bool
read_ahead(struct fbk_index *index, struct fbk_stream *stream, int64_t low, uint64_t now_ns)
{
    if (stream->under_way || stream->ends || stream->ahead_through == INT64_MAX)
        return stream->under_way;
    int64_t from = stream->ahead_through >= low ? stream->ahead_through + 1 : low;
    uint64_t entry_bytes = stream->entry_bytes ? stream->entry_bytes : ENTRY_BYTES_GUESSED;
    uint64_t ids_ahead = from > stream->position ? (uint64_t)(from - stream->position) : 0;
    uint64_t share = share_bytes(index, now_ns);
    uint64_t window = stream->window_bytes < share ? stream->window_bytes : share;
    if (window < JOB_BYTES_MIN)
        window = JOB_BYTES_MIN; /* one run: else nothing would ever be ahead */
    uint64_t ahead = ids_ahead > window / entry_bytes ? window : ids_ahead * entry_bytes;
    if (ahead * 2 > window)
        return false;
    uint32_t slot = (uint32_t)(stream - index->streams);
    uint64_t bytes = window - ahead < JOB_BYTES_MAX ? window - ahead : JOB_BYTES_MAX;
    if (fbk_store_submit_ahead(index->store, fbk_ticket(slot, stream->generation, FBK_TICKET_AHEAD),
                               stream->ledger_id, from,
                               bytes < JOB_BYTES_MIN ? JOB_BYTES_MIN : bytes, stream->flow) < 0)
        return false;
    stream->under_way = true;
    stream->under_way_from = from;
    stream->window_bytes =
        stream->window_bytes < WINDOW_BYTES_MAX ? stream->window_bytes * 2 : WINDOW_BYTES_MAX;
    fbk_count(&index->segment->stats, FBK_C_INDEX_AHEAD_JOBS, 1);
    return true;
}

bool
fbk_index_stream_note(struct fbk_index *index, struct fbk_index_request *request,
                      int64_t first_entry_id, int64_t last_entry_id, uint64_t size_bytes_max)
{
    struct fbk_stream *stream = find(index, request);
    if (request->noted)
        return stream && stream->goes_on;
    request->noted = true;
    if (!stream)
        stream = begin(index, request);
    if (!stream)
        return false;
    uint64_t now_ns = fbk_now_ns();
    stream->goes_on = stream->used_ns != 0 && first_entry_id >= stream->first_entry_id &&
                      first_entry_id - SLACK_ENTRIES <= stream->position;
    stream->used_ns = now_ns;
    stream->first_entry_id = first_entry_id;
    if (!stream->goes_on) {
        stream->position = first_entry_id;
        stream->ahead_through = -1;
        stream->window_bytes = WINDOW_BYTES_MIN;
        stream->ends = false;
    }
    /* What fits into the answer; a guess, until it is given. */
    uint64_t ids_max =
        size_bytes_max / (stream->entry_bytes ? stream->entry_bytes : ENTRY_BYTES_GUESSED) + 1;
    if (size_bytes_max > 0 && (uint64_t)(last_entry_id - first_entry_id) >= ids_max)
        last_entry_id = first_entry_id + (int64_t)ids_max - 1;
    fbk_index_stream_reached(index, request, last_entry_id);
    if (stream->goes_on)
        read_ahead(index, stream, first_entry_id, now_ns);
    return stream->goes_on;
}

void
fbk_index_stream_reached(struct fbk_index *index, struct fbk_index_request *request,
                         int64_t last_entry_id)
{
    struct fbk_stream *stream = find(index, request);
    if (stream && last_entry_id >= stream->position && last_entry_id < INT64_MAX)
        stream->position = last_entry_id + 1;
}

static void
wait_for_it(struct fbk_index *index, struct fbk_stream *stream, struct fbk_index_request *request)
{
    uint32_t slot = (uint32_t)(request - index->requests);
    request->state = FBK_REQUEST_DISK;
    request->next = FBK_NONE;
    if (stream->waiting_last == FBK_NONE)
        stream->waiting_first = slot;
    else
        index->requests[stream->waiting_last].next = slot;
    stream->waiting_last = slot;
}

bool
fbk_index_stream_park(struct fbk_index *index, struct fbk_index_request *request,
                      int64_t first_entry_id)
{
    struct fbk_stream *stream = find(index, request);
    if (!stream)
        return false;
    stream->ends = false; /* it asks for more than was there */
    /* A request that came back from waiting and found nothing asks for itself. */
    if (!stream->under_way || first_entry_id < stream->under_way_from || request->parked)
        return false;
    request->parked = true;
    request->parked_entry_id = first_entry_id;
    wait_for_it(index, stream, request);
    return true;
}

/* Those whose ids were looked at go on; with another job under way the rest waits for that. */
static void
wake(struct fbk_index *index, struct fbk_stream *stream, bool all)
{
    uint32_t waiting = stream->waiting_first;
    stream->waiting_first = stream->waiting_last = FBK_NONE;
    while (waiting != FBK_NONE) {
        struct fbk_index_request *request = &index->requests[waiting];
        waiting = request->next;
        if (all || request->parked_entry_id <= stream->ahead_through)
            fbk_index_request_ready(index, request);
        else
            wait_for_it(index, stream, request);
    }
}

void
fbk_index_stream_result(struct fbk_index *index, uint32_t slot, uint32_t generation,
                        const struct fbk_store_result *result)
{
    struct fbk_stream *stream = slot < FBK_STREAMS ? &index->streams[slot] : NULL;
    FBK_ASSERT(stream && stream->under_way &&
               (stream->generation & FBK_TICKET_GENERATION) == generation);
    bool went_on = result->found_entry_id >= stream->under_way_from;
    stream->under_way = false;
    stream->generation++;
    stream->ends = result->status == FBK_S_NO_ENTRY;
    if (went_on) {
        uint64_t ids = (uint64_t)(result->found_entry_id - stream->under_way_from) + 1;
        stream->ahead_through = result->found_entry_id;
        stream->entry_bytes = (uint32_t)(result->ahead_bytes / ids) + 1;
    }
    int64_t low = INT64_MAX;
    for (uint32_t n = stream->waiting_first; n != FBK_NONE; n = index->requests[n].next) {
        int64_t entry_id = index->requests[n].parked_entry_id;
        if (entry_id > stream->ahead_through && entry_id < low)
            low = entry_id;
    }
    bool more = low != INT64_MAX && went_on && read_ahead(index, stream, low, fbk_now_ns());
    wake(index, stream, !more);
}
