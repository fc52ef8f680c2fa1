/* The loop: take in, answer, publish, and sleep no longer than anybody may have to wait.
 *
 * Requests seen before the look at `published` are answered only when everything published then is
 * taken in: whoever got an acknowledgement before asking finds it (read-your-write). */
#include "index/index.h"

#include <poll.h>
#include <unistd.h>

#define TAKE_BYTES 4194304u  /* of cache filled before requests and timers have a turn */
#define LAZY_MS 5            /* between two drains while adds come in */
#define RETRY_MS 1           /* while an answer waits for room, or a request for a job */
#define BUSY_ROUNDS_IDLE 10u /* drains without anything before the long sleep */

static void
read_request_cursors(const struct fbk_index *index, uint64_t *written, bool *any)
{
    *any = false;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        written[w] = fbk_cursor_load_before_sleep(&index->workers[w].segment->request_written);
        if (written[w] != index->workers[w].request_position)
            *any = true;
    }
}

/* Takes in and answers.  1: there is more to do at once; 0; < 0: broken. */
static int32_t
work(struct fbk_index *index, uint64_t *through)
{
    uint64_t written[FBK_WORKERS_MAX];
    bool any_requests;
    /* What found no room says so again in this round, or has found some: nobody else would take it
     * back. */
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        index->workers[w].blocked = false;
    read_request_cursors(index, written, &any_requests);
    *through = fbk_cursor_load_before_sleep(&index->journal->published);
    int32_t left = fbk_index_apply(index, *through, TAKE_BYTES);
    if (left < 0)
        return left;
    fbk_index_forget_run(index);
    fbk_index_collect(index);
    fbk_index_checks_run(index);
    fbk_index_requests_run(index);
    fbk_index_waiters_run(index, index->waiter_count > 0 ? fbk_now_ns() : 0);
    int32_t left_requests = 0;
    if (index->order == *through && any_requests) {
        left_requests = fbk_index_requests_take(index, written);
        if (left_requests < 0)
            return left_requests;
    }
    if (index->due_first != FBK_NONE)
        fbk_index_waiters_run(index, fbk_now_ns());
    bool left_bulk = fbk_index_bulk_run(index);
    fbk_index_grant_credit(index);
    fbk_index_publish(index);
    return left || left_requests || left_bulk;
}

static bool
flush_is_due(const struct fbk_index *index, uint64_t now_ns)
{
    const struct fbk_index_options *options = &index->options;
    if (index->sealed.cache)
        return false;
    /* A third for what is filled, a third for what was flushed and is still read, the rest for what
     * comes while a flush is under way. */
    if (index->active->tail_begin != UINT64_MAX &&
        index->tail_end - index->active->tail_begin >= index->tail.size_bytes / 3)
        return true;
    return index->full || index->active->used_bytes >= options->flush_used_bytes ||
           index->journal_bytes - index->mark_journal_bytes >= options->flush_journal_bytes ||
           (index->oldest_ns && now_ns > index->oldest_ns &&
            now_ns - index->oldest_ns >= options->flush_interval_ms * 1000000ull);
}

static bool
must_retry(const struct fbk_index *index)
{
    if (index->checks_ready || index->ready_first != FBK_NONE || index->due_first != FBK_NONE ||
        index->fence_first != index->fence_last || index->bulk.count > 0)
        return true;
    for (uint32_t w = 0; w < index->options.worker_count; w++)
        if (index->workers[w].blocked)
            return true;
    return false;
}

static bool
is_idle(const struct fbk_index *index, uint64_t through)
{
    return index->order == through && index->request_count == 0 && index->check_count == 0 &&
           !must_retry(index);
}

static int32_t
sleep_ms(struct fbk_index *index, uint64_t now_ns, uint64_t end_ns, uint32_t quiet_rounds)
{
    uint64_t until_ns = end_ns;
    uint64_t deadline_ns = fbk_index_waiters_deadline(index);
    if (deadline_ns < until_ns)
        until_ns = deadline_ns;
    /* The journal rings nobody when it has taken notices. */
    bool retry = must_retry(index) || fbk_index_end_forget(index, NULL) == -EAGAIN;
    uint64_t most_ms = retry ? RETRY_MS : (quiet_rounds < BUSY_ROUNDS_IDLE ? LAZY_MS : UINT64_MAX);
    if (until_ns <= now_ns)
        return 0;
    uint64_t ms = (until_ns - now_ns + 999999u) / 1000000u;
    return (int32_t)(ms < most_ms ? ms : most_ms);
}

/* Something came between the round and the ticket.  While there is no room for what is there
 * already, nothing did. */
static bool
came_meanwhile(const struct fbk_index *index, uint64_t through)
{
    if (index->order != through)
        return false;
    if (fbk_cursor_load_before_sleep(&index->journal->published) != through)
        return true;
    for (uint32_t w = 0; w < index->options.worker_count; w++) {
        const struct fbk_index_worker *worker = &index->workers[w];
        if (!worker->blocked && fbk_cursor_load_before_sleep(&worker->segment->request_written) !=
                                    worker->request_position)
            return true;
    }
    return false;
}

static void
drain(int32_t event_fd)
{
    uint64_t rung;
    while (read(event_fd, &rung, sizeof rung) < 0 && errno == EINTR)
        continue;
}

/* Waits on bell, readers and what Python watches.  1: something watched is readable. */
static int32_t
wait(struct fbk_index *index, uint64_t through, int32_t timeout_ms)
{
    struct pollfd ready[2 + FBK_INDEX_WATCHED_MAX] = {
        {.fd = index->options.bell_fd, .events = POLLIN},
        {.fd = index->options.reader_fd, .events = POLLIN},
    };
    int32_t watched = 0;
    for (uint32_t n = 0; n < FBK_INDEX_WATCHED_MAX; n++)
        /* -1 is passed over */
        ready[2 + n] = (struct pollfd){.fd = index->options.watched_fds[n], .events = POLLIN};
    if (timeout_ms > 0) {
        fbk_sleeper_begin(&index->segment->sleeper);
        if (came_meanwhile(index, through))
            timeout_ms = 0;
        else
            fbk_count(&index->segment->stats, FBK_C_INDEX_SLEEPS, 1);
    }
    int count = poll(ready, 2 + FBK_INDEX_WATCHED_MAX, timeout_ms);
    fbk_sleeper_end(&index->segment->sleeper);
    for (uint32_t n = 0; count > 0 && n < 2 + FBK_INDEX_WATCHED_MAX; n++) {
        if (!ready[n].revents)
            continue;
        if (n < 2)
            drain(ready[n].fd);
        else
            watched = 1;
    }
    return watched;
}

static void
set_gauges(struct fbk_index *index)
{
    struct fbk_stats *stats = &index->segment->stats;
    fbk_gauge(stats, FBK_C_INDEX_CACHE_BYTES, index->active->used_bytes);
    fbk_gauge(stats, FBK_C_INDEX_JOURNAL_BEHIND, index->journal_bytes - index->mark_journal_bytes);
    fbk_gauge(stats, FBK_C_INDEX_MARK, fbk_cursor_load(&index->segment->mark_sequence));
    fbk_gauge(stats, FBK_C_INDEX_BULK_RATE, index->pace.rate_bytes);
    struct fbk_store_counts counts = {0};
    if (index->store != NULL) /* until a store is given there is none */
        fbk_store_counts_get(index->store, &counts);
    uint64_t flushing = index->sealed.cache != NULL ? index->sealed.cache->item_count : 0;
    fbk_gauge(stats, FBK_C_INDEX_STORED_ENTRIES,
              counts.entries + flushing + index->active->item_count);
    fbk_gauge(stats, FBK_C_INDEX_CACHE_ENTRIES, index->active->item_count);
    fbk_gauge(stats, FBK_C_INDEX_READ_CACHE_BYTES, counts.cache_bytes);
    fbk_gauge(stats, FBK_C_INDEX_READ_CACHE_ENTRIES, counts.cache_entries);
}

int32_t
fbk_index_step(struct fbk_index *index, int32_t timeout_ms)
{
    uint64_t end_ns = fbk_now_ns() + (uint64_t)(timeout_ms > 0 ? timeout_ms : 0) * 1000000u;
    uint64_t through = 0;
    int32_t reasons = 0;
    fbk_beat(&index->segment->stats, FBK_BEAT_LOOP);
    for (;;) {
        uint64_t order = index->order;
        int32_t more = work(index, &through);
        if (more < 0)
            return more;
        uint64_t now_ns = fbk_now_ns();
        fbk_flight_sample(&index->recorder, now_ns);
        fbk_hot_roll(&index->hot, &index->segment->hot, now_ns);
        index->quiet_rounds = index->order == order
                                  ? index->quiet_rounds + (index->quiet_rounds < BUSY_ROUNDS_IDLE)
                                  : 0;
        bool flush = flush_is_due(index, now_ns);
        int32_t ms = more || flush ? 0 : sleep_ms(index, now_ns, end_ns, index->quiet_rounds);
        if (wait(index, through, ms))
            reasons |= FBK_INDEX_WATCHED;
        if (flush)
            reasons |= FBK_INDEX_FLUSH;
        if (reasons || (!more && fbk_now_ns() >= end_ns))
            break;
        if (more && now_ns > end_ns + 100u * 1000000u)
            break;
    }
    set_gauges(index);
    if (index->full)
        reasons |= FBK_INDEX_FULL;
    if (is_idle(index, fbk_cursor_load(&index->journal->published))) {
        uint64_t written[FBK_WORKERS_MAX];
        bool any_requests;
        read_request_cursors(index, written, &any_requests);
        if (!any_requests)
            reasons |= FBK_INDEX_IDLE;
    }
    return reasons;
}
