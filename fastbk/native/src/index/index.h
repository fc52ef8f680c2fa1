/* The index: takes whole batches in, in the journal's order (INV-A1), and answers everything about
 * stored entries.
 *
 *   index.c         create, ledger states in memory, seal and flushed
 *   publish.c       credit, cursors, bells
 *   apply.c         descriptors -> write cache and ledger states; queues checks and fences
 *   adopted.c       runs that stay in the journal's files
 *   check.c         adds that need a look at what is stored
 *   reply.c         room in the reply rings, frames into them
 *   requests.c      the request rings; requests that wait for a disk
 *   disk.c          what requests ask the disk, and what it answers
 *   bulk.c          batch reads and lists in fair, bounded turns
 *   stream.c        readers that go on and on: read-ahead
 *   read.c          Read, ReadLac, WriteLac, fences
 *   read_batch.c    ReadBatch
 *   list.c          ListEntries
 *   wait.c          long polls
 *   replay.c        journal batches at start
 *   ledgers.c       states in and out, deletion
 *   unconfirmed.c   ledgers that metadata was never seen to list
 *   forget.c        deleted ledgers that no file knows any more
 *   step.c          the loop: what happens when, and when to sleep
 *
 * One thread, but for fbk_index_sealed, which the flush thread calls.  Nothing here waits for a
 * disk. */
#pragma once

#include "base/flight.h"
#include "base/header_hash.h"
#include "base/ledgers.h"
#include "base/record.h"
#include "base/segment.h"
#include "base/stats.h"
#include "index/adopted.h"
#include "index/hot_ledgers.h"
#include "index/pace.h"
#include "index/write_cache.h"
#include "journal/decide.h"
#include "store/store.h"

#include "journal/scan.h"

#include "boundary/index.h"
#include "base/slots.h"

#include "index/requests.h"

#define FBK_INDEX_WATCHED_MAX 4u
#define FBK_LAC_BODY_BYTES_MAX 104u
#define FBK_NONE UINT32_MAX
#define FBK_CHECKS_MAX 1024u  /* undecided; one batch may go over */
#define FBK_FENCES_MAX 16384u /* unanswered; the same */

struct fbk_index_worker {
    struct fbk_worker_segment *segment;
    struct fbk_ring add_ring;
    struct fbk_ring request_ring;
    struct fbk_ring reply_ring;
    uint64_t add_position;  /* taken in */
    uint64_t add_published; /* `indexed` as last published */
    uint64_t add_sequence;  /* of the next record */
    uint64_t cost_taken;    /* of normal adds: fbk_record_cost, as the worker counts */
    uint64_t cost_granted;
    uint64_t cost_published;
    uint64_t request_position;
    uint64_t request_sequence;
    uint64_t request_published;
    uint64_t reply_position; /* encoded */
    uint64_t reply_published;
    uint64_t rung; /* last ticket its bell was rung for */
    int32_t bell_fd;
    /* in this round its next request or answer found no room, or no job */
    bool blocked;
};

/* A record of which some entry has to be compared with what is stored. */
struct fbk_check {
    struct fbk_asker asker;
    struct fbk_record record; /* copy; payload behind it in `payload` */
    uint8_t *payload;
    uint64_t payload_memory_bytes;
    uint64_t batch_sequence;
    uint32_t item;         /* of a batch add: the next to look at */
    uint32_t offset_bytes; /* of that item's entry in the payload */
    uint64_t serial;       /* in the journal's order */
    uint64_t resets;       /* index->resets when the job was made */
    uint32_t next;
    uint32_t generation;
    uint32_t state;  /* FBK_CHECK_* */
    uint32_t status; /* verdict so far */
    const struct fbk_run *run;
    int64_t read_entry_id; /* id that disk_status is about; -1 = none */
    int32_t disk_status;
};
enum fbk_check_state {
    FBK_CHECK_FREE = 0,
    FBK_CHECK_READY,
    FBK_CHECK_DISK,
    FBK_CHECK_DECIDED, /* waits for reply room */
};

struct fbk_fence {
    struct fbk_asker asker;
    int64_t ledger_id;
    int64_t entry_id;
};

struct fbk_waiter {
    struct fbk_asker asker;
    int64_t ledger_id;
    int64_t previous_lac;
    uint64_t deadline_ns;
    uint32_t flags;
    uint32_t next;     /* in the bucket, or in the free list */
    uint32_t previous; /* in the bucket */
    uint32_t heap_at;
    bool used;
    bool due; /* out of bucket and heap: `next` is of the queue */
    bool cancelled;
    bool timed_out;
};

struct fbk_lac_body {
    int64_t ledger_id; /* -1 = empty */
    int64_t lac;
    uint32_t size_bytes;
    uint32_t age;
    uint8_t bytes[FBK_LAC_BODY_BYTES_MAX];
};

/* What seal set aside for the flush thread. */
struct fbk_sealed {
    struct fbk_write_cache *cache; /* NULL: no flush under way */
    /* items, runs, chunks of the contents; made by fbk_index_sealed */
    uint8_t *layout;
    uint64_t layout_memory_bytes;
    struct fbk_ledger_state *states;
    uint64_t states_memory_bytes;
    uint64_t state_count;
    struct fbk_adopted adopted;
    struct fbk_flush_contents contents;
    uint64_t mark_sequence;
    uint64_t journal_bytes;
    struct fbk_mark_place mark_place;
};

#define FBK_FILE_BEGINS 16u

/* Deleted ledgers on their way out of memory: index/forget.c. */
#define FBK_FORGETS_MAX 256u
struct fbk_forget {
    int64_t ledger_id;
    uint64_t notice; /* its number */
    uint64_t answer; /* the journal's */
};
struct fbk_forgetting {
    /* NULL: nothing is being forgotten; at the front those that were, in place of those looked
     * at */
    int64_t *ledger_ids;
    uint64_t memory_bytes;
    uint64_t count;
    uint64_t next; /* to be looked at */
    uint64_t forgotten;
    uint64_t deleted_before_s;
    uint32_t through_seal;
    /* a queue: [first, answered) have answers, [answered, last) wait for them */
    struct fbk_forget requested[FBK_FORGETS_MAX];
    uint64_t first, answered, last;
};

struct fbk_index {
    struct fbk_index_options options;
    struct fbk_header_key header_key;
    struct fbk_store *store;
    struct fbk_index_segment *segment;
    struct fbk_journal_segment *journal;
    struct fbk_index_worker workers[FBK_WORKERS_MAX];
    struct fbk_ledgers ledgers;
    /* found last; forgotten at every fbk_ledgers_add and fbk_ledgers_remove */
    struct fbk_ledger_state *last_ledger;
    struct fbk_forgetting forgetting;

    struct fbk_write_cache caches[2];
    struct fbk_write_cache *active;
    struct fbk_write_cache *other; /* sealed, or flushed and still readable */
    struct fbk_sealed sealed;
    uint64_t resets; /* times a readable cache was emptied */
    struct fbk_flight_recorder recorder;
    struct fbk_hot_sketch hot;
    /* of what is unflushed in active cache and states; 0 = nothing */
    uint64_t oldest_ns;

    /* ledgers whose state changed since the last seal: state->reserved == seal_number */
    int64_t *dirty;
    uint64_t dirty_count;
    uint64_t dirty_memory_bytes;
    uint32_t seal_number;
    bool dirty_lost;         /* no memory for the list: look through the table */
    bool limbo;              /* damage is on record: of no ledger "no" may be said */
    uint64_t limbo_count;    /* ledgers in limbo */
    uint64_t expiry_notices; /* notices written when the last EXPIRING was among them */

    uint64_t order; /* descriptors taken in */
    uint64_t order_published;
    uint64_t exceptions; /* consumed */
    /* headers of a batch's records to be checked, by exception: read once, with the others */
    struct fbk_record *checked;
    uint64_t checked_memory_bytes;
    uint64_t runs, runs_end;    /* summaries consumed; those of the batch in hand end there */
    uint64_t run_hint;          /* that held the last entry that one was found for */
    bool adopts;                /* this batch's runs stay where they are */
    struct fbk_ring tail;       /* the journal's; size 0: there is none */
    uint64_t tail_end;          /* as of the last descriptor taken in */
    uint64_t tail_released;     /* as last published */
    struct fbk_adopted adopted; /* since the last seal */
    struct fbk_mark_place taken_place; /* of the last batch that was written and taken in */
    /* journal files that began last, newest first: the mark may be in an older one */
    struct fbk_file_begin {
        uint64_t file_id;
        uint64_t batch_sequence; /* of the first batch that was taken in */
    } file_begins[FBK_FILE_BEGINS];
    struct fbk_mark_place mark_place; /* as of the last seal */
    uint64_t taken_sequence;          /* batch of the last descriptor taken in */
    uint64_t batch_sequence;          /* of what is being taken in */
    uint32_t batch_published_us;      /* when it was durable: low bits, as in records */
    uint64_t mark_sequence;
    bool mark_is_held;      /* it moves here alone; the journal's stays */
    uint64_t journal_bytes; /* at the last descriptor taken in */
    uint64_t mark_journal_bytes;
    uint64_t journal_rung;
    bool full;              /* the next batch does not fit into the cache */
    uint64_t full_since_ns; /* 0: it did not have to wait */
    uint32_t quiet_rounds;  /* since something was taken in */

    struct fbk_index_request *requests;
    uint32_t request_free; /* list */
    uint32_t ready_first, ready_last;
    uint32_t request_count;
    uint32_t list_count; /* of these, those with room for ranges */
    struct fbk_index_bulk bulk;
    struct fbk_pace pace;   /* of the bulk */
    uint64_t encoded_bytes; /* of frames, since the start */
    struct fbk_stream *streams;
    uint32_t streams_active; /* about */
    uint64_t streams_counted_ns;

    struct fbk_check *checks;
    uint64_t checks_memory_bytes;
    uint32_t check_slots;
    uint32_t check_free;
    uint32_t check_count;
    uint64_t check_serial;
    bool checks_ready; /* some can be gone on with */
    uint64_t parked_bytes;

    struct fbk_fence *fences; /* a queue: [fence_first, fence_last) mod fence_slots */
    uint64_t fence_slots;
    uint64_t fence_first, fence_last;

    struct fbk_waiter *waiters;
    uint32_t *waiter_buckets;
    uint32_t waiter_bucket_mask;
    uint32_t waiter_free;  /* list of those used before */
    uint32_t waiters_used; /* slots ever used */
    uint32_t waiter_count;
    uint32_t *waiter_heap; /* by deadline; of those not due */
    uint32_t waiter_heap_count;
    uint32_t due_first, due_last;

    struct fbk_lac_body *lac_bodies;
    uint32_t lac_age;

    uint8_t *scratch; /* fbk_index_scratch */
    uint64_t scratch_bytes;
};

/* ------------ index/index.c */
/* The state of a ledger, NULL if unknown; and the same, made when unknown (NULL: ledgers_max). */
struct fbk_ledger_state *fbk_index_ledger(struct fbk_index *index, int64_t ledger_id);
struct fbk_ledger_state *fbk_index_ledger_make(struct fbk_index *index, int64_t ledger_id);
/* To be called before a state is changed. */
/* Empties the cache that was flushed and is still readable; no flush is under way. */
void fbk_index_forget_flushed(struct fbk_index *index);
void fbk_index_touch(struct fbk_index *index, struct fbk_ledger_state *state);
/* In the active cache, then in the other. */
const struct fbk_cache_item *fbk_index_cached(const struct fbk_index *index, int64_t ledger_id,
                                              int64_t entry_id);
/* Memory until the next call, for one step's use; NULL without memory. */
uint8_t *fbk_index_scratch(struct fbk_index *index, uint64_t size_bytes);
/* Takes note of an entry that was just committed to the active cache: highest id, LAC. */
void fbk_index_noted(struct fbk_index *index, struct fbk_ledger_state *state, int64_t entry_id,
                     int64_t lac);
/* ------------ index/publish.c */
void fbk_index_grant_credit(struct fbk_index *index);
/* Cursors out, bells where needed. */
void fbk_index_publish(struct fbk_index *index);

/* ------------ index/ledgers.c */
/* As it goes to disk: `reserved` cleared, checksum set. */
void fbk_index_state_seal(struct fbk_ledger_state *state);
/* Changes states by what metadata says, and has the journal do the same; stops while the journal
 * has not applied earlier notices.  Returns how many states changed; *taken: how many ids were
 * handled. */
int32_t fbk_index_give_notice(struct fbk_index *index, const int64_t *ledger_ids, int32_t count,
                              uint32_t what, uint64_t deleted_s, int32_t *taken);
/* Whether one more notice finds room. */
bool fbk_index_notice_room(const struct fbk_index *index);

/* ------------ index/forget.c */
/* Takes note of the journal's answers: before notices are written behind those that they answer. */
void fbk_index_forget_answers(struct fbk_index *index);
/* Removes what the journal decided without from the next batch in its order on. */
void fbk_index_forget_due(struct fbk_index *index);
/* A slice: removes, and asks the journal about more. */
void fbk_index_forget_run(struct fbk_index *index);
/* ------------ index/read.c */
void fbk_index_forget_lac(struct fbk_index *index, int64_t ledger_id);

/* ------------ index/apply.c */
/* Takes descriptors below order `through`, until bytes_max are exceeded or there is no room: in the
 * cache (sets index->full) or for answers to checks and fences.  1: stopped by bytes_max; 0; < 0:
 * broken. */
int32_t fbk_index_apply(struct fbk_index *index, uint64_t through, uint64_t bytes_max);

/* ------------ index/check.c */
/* Parks a record (verified, its payload's items not yet) and queues it. */
int32_t fbk_index_check_add(struct fbk_index *index, const struct fbk_record *record,
                            const uint8_t *payload, uint32_t worker);
/* Goes on with everything that can go on. */
int32_t fbk_index_checks_run(struct fbk_index *index);
void fbk_index_check_disk(struct fbk_index *index, uint32_t slot, uint32_t generation,
                          const struct fbk_store_result *result);
/* Smallest batch sequence among undecided checks, UINT64_MAX if none. */
uint64_t fbk_index_checks_oldest(const struct fbk_index *index);
/* Is there an undecided normal add to the ledger?  Behind a fence the journal lets none through, so
 * all of them lie before it in the order, and it must see them before it is answered (INV-F1). */
bool fbk_index_checks_hold_fence(const struct fbk_index *index, int64_t ledger_id);
/* Is any check of this ledger undecided? */
bool fbk_index_checks_hold(const struct fbk_index *index, int64_t ledger_id);
void fbk_index_checks_free(struct fbk_index *index);

/* ------------ index/reply.c */
/* Has it been drained?  Nobody waits for its answers any more. */
static inline bool
fbk_index_is_gone(const struct fbk_index_worker *worker)
{
    return fbk_cursor_load(&worker->segment->reply_consumed) == FBK_CONSUMER_GONE;
}
/* What is in its reply ring. */
static inline uint64_t
fbk_index_unread_bytes(const struct fbk_index_worker *worker)
{
    uint64_t consumed = fbk_cursor_load(&worker->segment->reply_consumed);
    return consumed == FBK_CONSUMER_GONE ? 0 : worker->reply_position - consumed;
}
/* Where to encode a frame of up to frame_bytes; NULL when the worker's reply ring has no room
 * now. */
uint8_t *fbk_index_reply_begin(struct fbk_index *index, uint32_t worker, uint64_t frame_bytes);
void fbk_index_reply_end(struct fbk_index *index, const struct fbk_asker *asker,
                         uint32_t frame_bytes, uint32_t status);
/* How long normal adds wait for the journal now: goes with the answers that copying gets. */
uint32_t fbk_index_add_wait_us(const struct fbk_index *index);
/* A frame without a body.  False: no room. */
bool fbk_index_reply_status(struct fbk_index *index, const struct fbk_asker *asker,
                            uint32_t status);

/* ------------ jobs' tickets */
#define FBK_TICKET_CHECK (1ull << 63)
#define FBK_TICKET_AHEAD (1ull << 62)
#define FBK_TICKET_GENERATION 0x3fffffffu
static inline uint64_t
fbk_ticket(uint32_t slot, uint32_t generation, uint64_t kind)
{
    return kind | ((uint64_t)(generation & FBK_TICKET_GENERATION) << 32) | slot;
}

/* ------------ operations: what became of a request */
#define FBK_RAN_DONE 0  /* answered, or waiting as a long poll */
#define FBK_RAN_DISK 1  /* a job is under way */
#define FBK_RAN_LATER 2 /* no room, or no job to be had: run it again */
int32_t fbk_index_run_read(struct fbk_index *index, struct fbk_index_request *request);
int32_t fbk_index_run_read_batch(struct fbk_index *index, struct fbk_index_request *request);
int32_t fbk_index_run_list(struct fbk_index *index, struct fbk_index_request *request);
int32_t fbk_index_run_read_lac(struct fbk_index *index, struct fbk_index_request *request);
/* False: no room for the answer, nothing happened. */
bool fbk_index_write_lac(struct fbk_index *index, const struct fbk_asker *asker,
                         const struct fbk_record *record, const uint8_t *body);
/* An entry somewhere in memory. */
struct fbk_found {
    const uint8_t *data;
    uint32_t size_bytes;
    uint32_t status; /* FBK_S_OK, or why there is no entry */
    /* pinned for it: release after use; NULL = nothing to release */
    const struct fbk_run *run;
};
/* Looks for one entry: caches, runs in memory, the disk's answer; else asks the disk. FBK_RAN_DONE:
 * *found says it. */
int32_t fbk_index_find(struct fbk_index *index, struct fbk_index_request *request,
                       const struct fbk_ledger_state *state, int64_t entry_id,
                       struct fbk_found *found);
/* Is the ledger known and not deleted? */
static inline bool
fbk_index_is_here(const struct fbk_ledger_state *state)
{
    return state && !(state->flags & FBK_LEDGER_DELETED);
}
/* `no` (NO_LEDGER, NO_ENTRY), or CANNOT_TELL where that may not be said (INV-X1).  state may be
 * NULL. */
uint32_t fbk_index_no(const struct fbk_index *index, const struct fbk_ledger_state *state,
                      uint32_t no);
bool fbk_index_fence_later(struct fbk_index *index, const struct fbk_record *record,
                           uint32_t worker);

/* ------------ index/wait.c */
int32_t fbk_index_waiters_init(struct fbk_index *index);
void fbk_index_waiters_free(struct fbk_index *index);
/* False: waiters_max. */
bool fbk_index_wait(struct fbk_index *index, const struct fbk_index_request *request);
/* The LAC of the ledger grew, or it was fenced or deleted. */
void fbk_index_wake(struct fbk_index *index, const struct fbk_ledger_state *state);
void fbk_index_cancel(struct fbk_index *index, uint32_t worker, uint64_t connection_id);
/* Answers those that are due as far as there is room. */
void fbk_index_waiters_run(struct fbk_index *index, uint64_t now_ns);
/* Of the next waiter's deadline; UINT64_MAX if none. */
uint64_t fbk_index_waiters_deadline(const struct fbk_index *index);
