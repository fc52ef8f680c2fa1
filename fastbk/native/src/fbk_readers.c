/* Jobs for the reader threads: a bounded queue in, a bounded queue out.  The threads are Python's; they spend their
 * lives in fbk_store_reader_run without the interpreter lock. */
#include "fbk_ring.h"
#include "fbk_store_parts.h"

static int32_t
submit(struct fbk_store *store, const struct fbk_job *job)
{
    int32_t result = FBK_E_FULL;
    fbk_store_lock(store);
    if (store->stopping) {
        result = FBK_E_STOPPED;
    } else if (store->jobs_under_way < store->options.jobs_max) {
        store->jobs[store->jobs_in++ % store->options.jobs_max] = *job;
        store->jobs_under_way++;
        pthread_cond_signal(&store->work);
        result = 0;
    }
    fbk_store_unlock(store);
    return result;
}

int32_t
fbk_store_submit(struct fbk_store *store, uint64_t ticket, int64_t ledger_id, int64_t first_entry_id,
                 int64_t last_entry_id, int32_t read_ahead)
{
    struct fbk_job job = {
        .ticket = ticket,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = last_entry_id,
        .kind = FBK_JOB_READ,
        .read_ahead = read_ahead != 0,
    };
    return submit(store, &job);
}

int32_t
fbk_store_submit_list(struct fbk_store *store, uint64_t ticket, int64_t ledger_id, int64_t first_entry_id,
                      int64_t *ranges, uint32_t range_count_max)
{
    struct fbk_job job = {
        .ticket = ticket,
        .ledger_id = ledger_id,
        .first_entry_id = first_entry_id,
        .last_entry_id = INT64_MAX,
        .ranges = ranges,
        .range_count_max = range_count_max,
        .kind = FBK_JOB_LIST,
    };
    if (range_count_max == 0)
        return -EINVAL;
    return submit(store, &job);
}

int32_t
fbk_store_collect(struct fbk_store *store, struct fbk_store_result *results, int32_t results_max)
{
    int32_t count = 0;
    fbk_store_lock(store);
    while (count < results_max && store->results_out < store->results_in) {
        results[count++] = store->results[store->results_out++ % store->options.jobs_max];
        store->jobs_under_way--;
    }
    fbk_store_unlock(store);
    return count;
}

static void
finish(struct fbk_store *store, const struct fbk_store_result *result)
{
    fbk_store_lock(store);
    store->results[store->results_in++ % store->options.jobs_max] = *result;
    store->counts.lookups++;
    if (result->status == FBK_S_CANNOT_TELL)
        store->counts.cannot_tell++;
    fbk_store_unlock(store);
}

static void
do_job(struct fbk_store *store, const struct fbk_job *job, int32_t event_fd)
{
    struct fbk_store_result result;
    int64_t ahead_of = -1;
    if (job->kind == FBK_JOB_LIST) {
        fbk_lookup_list(store, job, &result);
    } else {
        fbk_lookup_read(store, job, &result);
        if (job->read_ahead && result.run)
            ahead_of = result.run->last_entry_id;
    }
    finish(store, &result); /* from here on the run is the collector's */
    if (event_fd >= 0)
        fbk_bell_ring(event_fd);
    if (ahead_of >= 0)
        fbk_lookup_read_ahead(store, job->ledger_id, ahead_of);
}

int32_t
fbk_store_reader_run(struct fbk_store *store, int32_t event_fd)
{
    for (;;) {
        fbk_store_lock(store);
        while (!store->stopping && store->jobs_out == store->jobs_in)
            pthread_cond_wait(&store->work, &store->mutex);
        if (store->stopping) {
            fbk_store_unlock(store);
            return 0;
        }
        struct fbk_job job = store->jobs[store->jobs_out++ % store->options.jobs_max];
        fbk_store_unlock(store);
        do_job(store, &job, event_fd);
    }
}

int32_t
fbk_store_reader_step(struct fbk_store *store)
{
    fbk_store_lock(store);
    bool waits = store->jobs_out < store->jobs_in;
    struct fbk_job job = {0};
    if (waits)
        job = store->jobs[store->jobs_out++ % store->options.jobs_max];
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
