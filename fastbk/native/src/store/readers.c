/* Jobs for the reader threads: a bounded queue in, a bounded queue out.  The threads are Python's;
 * they spend their lives in fbk_store_reader_run without the interpreter lock. */
#include "base/ring.h"
#include "store/parts.h"

static int32_t
submit(struct fbk_store *store, const struct fbk_job *job)
{
    int32_t result = FBK_E_FULL;
    fbk_store_lock(store);
    if (store->stopping) {
        result = FBK_E_STOPPED;
    } else if (store->jobs_under_way < store->options.read_jobs_max &&
               fbk_read_queue_put(&store->queue, job)) {
        store->jobs_under_way++;
        pthread_cond_signal(&store->work);
        result = 0;
    }
    fbk_store_unlock(store);
    return result;
}

int32_t
fbk_store_submit(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                 int64_t first_entry_id, int64_t last_entry_id, uint32_t lane, uint64_t flow)
{
    struct fbk_job job = {
        .ticket = ticket,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = last_entry_id,
        .kind = FBK_JOB_READ,
        .lane = lane,
        .flow = flow,
    };
    return lane < FBK_READ_LANES ? submit(store, &job) : -EINVAL;
}

int32_t
fbk_store_submit_list(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                      int64_t first_entry_id, int64_t *ranges, uint32_t range_count_max,
                      uint64_t flow)
{
    struct fbk_job job = {
        .ticket = ticket,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = INT64_MAX,
        .ranges = ranges,
        .range_count_max = range_count_max,
        .kind = FBK_JOB_LIST,
        .lane = FBK_LANE_BULK,
        .flow = flow,
    };
    return range_count_max > 0 ? submit(store, &job) : -EINVAL;
}

int32_t
fbk_store_submit_ahead(struct fbk_store *store, uint64_t ticket, int64_t ledger_id,
                       int64_t first_entry_id, uint64_t size_bytes_max, uint64_t flow)
{
    struct fbk_job job = {
        .ticket = ticket,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = INT64_MAX,
        .size_bytes_max = size_bytes_max,
        .kind = FBK_JOB_AHEAD,
        .lane = FBK_LANE_BULK,
        .flow = flow,
    };
    return first_entry_id >= 0 ? submit(store, &job) : -EINVAL;
}

int32_t
fbk_store_collect(struct fbk_store *store, struct fbk_store_result *results, int32_t results_max)
{
    int32_t count = 0;
    fbk_store_lock(store);
    while (count < results_max && store->results_out < store->results_in) {
        results[count++] = store->results[store->results_out++ % store->options.read_jobs_max];
        store->jobs_under_way--;
    }
    fbk_store_unlock(store);
    return count;
}

static void
finish(struct fbk_store *store, const struct fbk_job *job, const struct fbk_store_result *result)
{
    fbk_store_lock(store);
    store->results[store->results_in++ % store->options.read_jobs_max] = *result;
    store->counts.lookups += job->kind != FBK_JOB_AHEAD;
    if (result->status == FBK_S_CANNOT_TELL)
        store->counts.cannot_tell++;
    fbk_read_queue_done(&store->queue, job->lane);
    if (store->queue.count > 0)
        pthread_cond_signal(&store->work); /* a lane that was held back may go on */
    fbk_store_unlock(store);
}

static void
do_job(struct fbk_store *store, const struct fbk_job *job, int32_t event_fd)
{
    struct fbk_store_result result;
    if (job->kind == FBK_JOB_LIST)
        fbk_lookup_list(store, job, &result);
    else if (job->kind == FBK_JOB_AHEAD)
        fbk_read_ahead(store, job, &result);
    else
        fbk_lookup_read(store, job, &result);
    finish(store, job, &result); /* from here on the run is the collector's */
    if (event_fd >= 0)
        fbk_bell_ring(event_fd);
}

int32_t
fbk_store_reader_run(struct fbk_store *store, int32_t event_fd)
{
    struct fbk_job job;
    fbk_store_lock(store);
    store->queue.readers++;
    for (;;) {
        while (!store->stopping && !fbk_read_queue_take(&store->queue, &job))
            pthread_cond_wait(&store->work, &store->mutex);
        if (store->stopping)
            break;
        fbk_store_unlock(store);
        do_job(store, &job, event_fd);
        fbk_store_lock(store);
    }
    store->queue.readers--;
    fbk_store_unlock(store);
    return 0;
}

int32_t
fbk_store_reader_step(struct fbk_store *store)
{
    struct fbk_job job;
    fbk_store_lock(store);
    bool waits = fbk_read_queue_take(&store->queue, &job);
    fbk_store_unlock(store);
    if (!waits)
        return 0;
    do_job(store, &job, -1);
    return 1;
}

void
fbk_store_stop_readers(struct fbk_store *store)
{
    fbk_store_lock(store);
    store->stopping = true;
    pthread_cond_broadcast(&store->work);
    pthread_cond_broadcast(&store->room);
    fbk_store_unlock(store);
}
