/* Jobs that wait for a reader thread: two lanes, in each of them the flows in fair turns.
 *
 * Lanes.  URGENT: somebody waits for one entry or for a decision.  BULK: batch reads, lists,
 * read-ahead.  URGENT goes first, and BULK never holds the last reader thread: a lone read waits
 * for one disk read at most, however much history is being read.
 *
 * Flows.  Whoever asks (a connection) hashes to a flow, and each flow's jobs get rising tags of
 * virtual time, their cost apart (start-time fair queueing): a flow with a thousand jobs waiting
 * delays another one's first by one job, not by a thousand.  Two flows may share a hash; they share
 * a turn then.
 *
 * Pure memory, no locks: the store's mutex is held around every call. */
#pragma once

#include "store/store.h"

#define FBK_READ_LANES 2u
#define FBK_READ_FLOWS 1024u               /* a power of two */
#define FBK_READ_COST_BYTES (256u * 1024u) /* a run: what costs one */

enum fbk_job_kind {
    FBK_JOB_READ = 1,
    FBK_JOB_LIST = 2,
    FBK_JOB_AHEAD = 3,
};

struct fbk_job {
    uint64_t ticket;
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    int64_t *ranges;         /* LIST */
    uint64_t size_bytes_max; /* AHEAD */
    uint32_t range_count_max;
    enum fbk_job_kind kind;
    uint32_t lane; /* FBK_LANE_* */
    uint64_t flow;
};

struct fbk_queued_job {
    uint64_t tag;    /* of virtual time; the smallest is next */
    uint64_t number; /* among equal tags: first come */
    struct fbk_job job;
};

struct fbk_read_lane {
    struct fbk_queued_job *heap; /* of read_jobs_max */
    uint32_t count;
    uint64_t now; /* tag of the job taken last */
    uint64_t next_tag[FBK_READ_FLOWS];
};

struct fbk_read_queue {
    struct fbk_read_lane lanes[FBK_READ_LANES];
    uint32_t jobs_max; /* waiting, over all lanes */
    uint32_t count;
    uint64_t number;
    uint32_t readers; /* threads that take jobs; 0: no lane is held back */
    uint32_t running[FBK_READ_LANES];
};

int32_t fbk_read_queue_init(struct fbk_read_queue *queue, uint32_t jobs_max);
void fbk_read_queue_free(struct fbk_read_queue *queue);
/* False: jobs_max are waiting. */
bool fbk_read_queue_put(struct fbk_read_queue *queue, const struct fbk_job *job);
/* The next job that may run now; false: none.  It counts as running until fbk_read_queue_done. */
bool fbk_read_queue_take(struct fbk_read_queue *queue, struct fbk_job *job);
void fbk_read_queue_done(struct fbk_read_queue *queue, uint32_t lane);
