/* How requests end, counted by what they were: the names that operators' dashboards know (docs/metrics.md).
 *
 * INV-O1: a request that is answered is counted exactly once, with the answer that its client gets: as done or as failed.
 * Adds are counted where their one step ends, whoever asked (one run of equal latencies is one observation); the rest of
 * Apache's requests, which may take several of our steps, where their last word is said. */
#ifndef FBK_WORKER_COUNT_H
#define FBK_WORKER_COUNT_H

#include "worker/worker.h"

/* In the order of boundary/stats_names.h: four counters each, but two of those whose successes are histograms. */
enum fbk_operation {
    FBK_OPERATION_ADD,
    FBK_OPERATION_READ,
    FBK_OPERATION_FENCE,
    FBK_OPERATION_POLL,
    FBK_OPERATION_LAC_READ,
    FBK_OPERATION_LAC_WRITE,
    FBK_OPERATION_FORCE,
    FBK_OPERATION_LIST,
    FBK_OPERATION_RECOVERY_ADD, /* an add, which is counted as one, too */
    FBK_OPERATION_NONE, /* not counted here */
};

static inline bool
fbk_kind_is_add(uint32_t kind)
{
    return kind == FBK_KIND_ADD || kind == FBK_KIND_ADD_BATCH;
}

/* Of a record or of its reply. */
enum fbk_operation fbk_operation_of_kind(uint32_t kind);
void fbk_worker_finish(struct fbk_worker *worker, enum fbk_operation operation, bool is_ok, uint32_t received_us);
/* Unless it is a step of one of Apache's requests, which ends elsewhere. */
void fbk_worker_finish_step(struct fbk_worker *worker, const struct fbk_connection *connection, enum fbk_operation operation,
                            bool is_ok, uint32_t received_us);
/* Refused before it had a record. */
void fbk_worker_finish_refused(struct fbk_worker *worker, const struct fbk_connection *connection, const struct fbk_request *request);

/* Apache's: counts what is asked for, once. */
void fbk_worker_apache_count(struct fbk_worker *worker, const struct fbk_apache_request *asked);
/* The answer to a request that had a context, and to one that had none. */
void fbk_worker_apache_finish(struct fbk_worker *worker, const struct fbk_apache_context *context, uint32_t apache_status);
void fbk_worker_apache_finish_refused(struct fbk_worker *worker, const struct fbk_apache_request *asked, uint32_t apache_status);
/* Bytes of entries that were sent. */
void fbk_worker_apache_sent(struct fbk_worker *worker, uint32_t protocol, uint64_t entry_bytes);

/* Gauges: what is under way, and what waits. */
void fbk_worker_set_gauges(struct fbk_worker *worker);

#endif
