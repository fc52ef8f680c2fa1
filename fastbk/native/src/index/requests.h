/* Requests in the index: those that wait for a disk, for a turn, or for room, and the readers
 * behind them. */
#pragma once

#include "base/layout.h"
#include "store/store.h"

#define FBK_STREAMS 1024u /* readers that are told apart */
#define FBK_BULK_FLOWS 256u

struct fbk_index;

/* To whom an answer goes. */
struct fbk_asker {
    uint64_t request_id;
    uint64_t connection_id;
    uint32_t worker;
    uint32_t received_us;
    uint32_t kind;
    bool is_poll;    /* READ_LAC that may wait */
    bool has_waited; /* one that did */
    bool is_started; /* FENCE, poll: started_us says since when it reads */
    uint32_t started_us;
};

/* A request that waits for a disk, or for room in the reply ring. */
enum fbk_request_state {
    FBK_REQUEST_FREE = 0,
    FBK_REQUEST_READY, /* to be run (again) */
    FBK_REQUEST_DISK,  /* a job is under way */
};
struct fbk_index_request {
    struct fbk_asker asker;
    int64_t ledger_id;
    int64_t first_entry_id; /* READ, FENCE: the id, -1 = highest */
    int64_t last_entry_id;
    uint32_t entry_count_max; /* READ_BATCH; LIST: ranges */
    uint32_t size_bytes_max;
    int64_t previous_lac; /* READ_LAC */
    uint32_t timeout_ms;  /* READ_LAC: 0 = answer now */
    uint32_t flags;       /* READ_LAC: PIGGYBACK */
    uint32_t state;
    uint32_t next;       /* in the free list or the ready queue */
    uint32_t generation; /* of the slot: in the ticket */
    uint32_t jobs;       /* made for this request */
    /* it waited for its stream's read-ahead, from parked_entry_id on */
    bool parked;
    bool noted; /* by its stream */
    bool scan;  /* its reader goes on and on */
    bool paced; /* it waits, or waited, for its turn among the bulk */
    /* READ_BATCH: a few of the newest entries; it waits for no turn */
    bool tail;
    int64_t parked_entry_id;
    /* what the disk said about [requested_entry_id, requested_last_entry_id] */
    bool answered;
    bool resolved; /* READ_LAC: first_entry_id is the entry to carry */
    int32_t disk_status;
    int64_t requested_entry_id;
    int64_t requested_last_entry_id;
    int64_t found_entry_id;
    int64_t alone_through;     /* ids in (found, this] that are on disk all lie in `run` */
    const struct fbk_run *run; /* pinned */
    uint64_t resets;           /* index->resets when the job was made */
    int64_t *ranges;           /* LIST */
    uint32_t range_count;
    uint32_t ranges_max;
};

/* A connection's reads of one ledger. */
struct fbk_stream {
    int64_t ledger_id; /* -1: none yet */
    uint64_t connection_id;
    uint64_t flow;
    uint32_t worker;
    uint32_t generation;    /* of its jobs: in the ticket */
    int64_t first_entry_id; /* of the last read */
    int64_t position;       /* ids below were asked for */
    /* what is on disk from position to here is in memory, or was; -1 = nothing */
    int64_t ahead_through;
    int64_t under_way_from;
    uint64_t used_ns;
    uint64_t window_bytes;                /* how far to read ahead, but for the share */
    uint32_t entry_bytes;                 /* an id, on average of the last job; 0 = unknown */
    uint32_t waiting_first, waiting_last; /* requests that wait for the job under way */
    bool goes_on;                         /* its last read began where the one before it ended */
    bool under_way;
    bool ends; /* nothing was on disk behind ahead_through */
};

struct fbk_bulk_line {
    uint32_t first, last;
};
struct fbk_bulk_flow {
    struct fbk_bulk_line again; /* its requests that waited for something, */
    struct fbk_bulk_line fresh; /* and behind them those that were not run yet */
    uint32_t next;              /* flow in the line */
    int64_t quota_bytes;
};

struct fbk_index_bulk {
    struct fbk_bulk_flow *flows;
    uint32_t first, last; /* the line of flows that have requests */
    uint32_t count;
};

/* ------------ index/requests.c */
int32_t fbk_index_requests_init(struct fbk_index *index);
void fbk_index_requests_free(struct fbk_index *index);
/* NULL: all slots are taken.  A slot is given back, or run (which gives it back or keeps it). */
struct fbk_index_request *fbk_index_request_take(struct fbk_index *index);
void fbk_index_request_give_back(struct fbk_index *index, struct fbk_index_request *request);
/* Runs it the first time.  False: there is no room for the answer or no job to be had now; nothing
 * happened, and the slot is given back.  True: it is answered, or will be. */
bool fbk_index_request_start(struct fbk_index *index, struct fbk_index_request *request);
/* FBK_RAN_*: what becomes of it now. */
int32_t fbk_index_request_run(struct fbk_index *index, struct fbk_index_request *request);
/* To be run again. */
void fbk_index_request_ready(struct fbk_index *index, struct fbk_index_request *request);
/* Takes requests out of all request rings; `written` is where to stop in each.  1: some are left,
 * 0, < 0: broken. */
int32_t fbk_index_requests_take(struct fbk_index *index, const uint64_t *written);
/* Runs again what is ready, and starts the reads of fences. */
void fbk_index_requests_run(struct fbk_index *index);
/* Collects finished jobs. */
void fbk_index_collect(struct fbk_index *index);
/* Asks the disk for the smallest id in [first, last].  FBK_RAN_DISK or FBK_RAN_LATER. */
int32_t fbk_index_request_disk(struct fbk_index *index, struct fbk_index_request *request,
                               int64_t first_entry_id, int64_t last_entry_id);
int32_t fbk_index_request_disk_list(struct fbk_index *index, struct fbk_index_request *request);
/* Whether the disk's answer is still good; if not it is forgotten. */
bool fbk_index_request_answered(struct fbk_index *index, struct fbk_index_request *request);
void fbk_index_request_forget(struct fbk_index *index, struct fbk_index_request *request);

/* ------------ index/bulk.c */
int32_t fbk_index_bulk_init(struct fbk_index *index);
void fbk_index_bulk_free(struct fbk_index *index);
static inline bool
fbk_index_is_bulk(const struct fbk_index_request *request)
{
    return (request->asker.kind == FBK_KIND_READ_BATCH && !request->tail) ||
           request->asker.kind == FBK_KIND_LIST;
}
/* Is this batch read one of a reader that is at the end of its ledger?  If so, it is kept small. */
bool fbk_index_is_tail(struct fbk_index *index, struct fbk_index_request *request);
/* Is history being held back for the sake of adds and tail reads? */
bool fbk_index_bulk_is_held(const struct fbk_index *index);
/* fresh: it was not run yet. */
void fbk_index_bulk_put(struct fbk_index *index, struct fbk_index_request *request, bool fresh);
/* Runs some.  True: there is more that could be run at once. */
bool fbk_index_bulk_run(struct fbk_index *index);

/* ------------ index/stream.c */
int32_t fbk_index_streams_init(struct fbk_index *index);
void fbk_index_streams_free(struct fbk_index *index);
/* Whose turn it is: the asker's connection. */
uint64_t fbk_index_flow(const struct fbk_asker *asker);
/* A request, at its first look at what is on disk, is about to read these ids, as far as they fit
 * into size_bytes_max (0: all do).  True: its reader goes on and on. */
bool fbk_index_stream_note(struct fbk_index *index, struct fbk_index_request *request,
                           int64_t first_entry_id, int64_t last_entry_id, uint64_t size_bytes_max);
/* Its answer reaches up to there. */
void fbk_index_stream_reached(struct fbk_index *index, struct fbk_index_request *request,
                              int64_t last_entry_id);
/* Instead of a job of its own: true when the id may be on its way; the request is ready again once
 * that job has ended. */
bool fbk_index_stream_park(struct fbk_index *index, struct fbk_index_request *request,
                           int64_t first_entry_id);
void fbk_index_stream_result(struct fbk_index *index, uint32_t slot, uint32_t generation,
                             const struct fbk_store_result *result);
