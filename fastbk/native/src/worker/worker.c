/* A worker as a whole: made from three segments a pair, woken by its bell. */
#include "worker/worker.h"

#include "base/segment.h"

#include <unistd.h>

#define PASSES_MAX 4

/* ------------------------------------------------------------------ making */

static int32_t
map_lane(struct fbk_worker *worker, struct fbk_lane *lane, const struct fbk_worker_pair *pair)
{
    uint32_t epoch = worker->options.epoch;
    int32_t error = 0;
    lane->journal_bell_fd = pair->journal_bell_fd;
    lane->index_bell_fd = pair->index_bell_fd;
    lane->segment = fbk_segment_map(pair->segment_fd, FBK_ROLE_WORKER, true, &error);
    if (lane->segment == NULL)
        return error;
    lane->journal = fbk_segment_map(pair->journal_segment_fd, FBK_ROLE_JOURNAL, false, &error);
    if (lane->journal == NULL)
        return error;
    lane->index = fbk_segment_map(pair->index_segment_fd, FBK_ROLE_INDEX, false, &error);
    if (lane->index == NULL)
        return error;
    if (lane->segment->header.epoch != epoch || lane->journal->header.epoch != epoch || lane->index->header.epoch != epoch ||
        lane->segment->header.role_index != worker->options.worker || lane->segment->header.pair != lane->number ||
        lane->journal->header.pair != lane->number || lane->index->header.pair != lane->number)
        return FBK_E_LAYOUT;
    error = fbk_segment_map_ring(pair->segment_fd, &lane->segment->header, 0, 0, true, &lane->add_ring);
    if (error == 0)
        error = fbk_segment_map_ring(pair->segment_fd, &lane->segment->header, 1, 0, true, &lane->request_ring);
    if (error == 0)
        error = fbk_segment_map_ring(pair->index_segment_fd, &lane->index->header, 0, worker->options.worker, false,
                                     &lane->reply_ring);
    return error;
}

static int32_t
make_lane(struct fbk_worker *worker, uint32_t number)
{
    struct fbk_lane *lane = &worker->lanes[number];
    lane->number = (uint8_t)number;
    int32_t error = map_lane(worker, lane, &worker->options.pairs[number]);
    if (error != 0)
        return error;
    /* A ring holds several of its largest records. */
    uint64_t frame_bytes = worker->options.frame_size_bytes_max;
    if (lane->add_ring.size_bytes < 3 * frame_bytes || lane->reply_ring.size_bytes < 2 * frame_bytes ||
        lane->request_ring.size_bytes < FBK_PAGE_BYTES)
        return -EINVAL;
    lane->placed = fbk_memory_take(FBK_PLACED_MAX * sizeof *lane->placed);
    return lane->placed == NULL ? -ENOMEM : 0;
}

static void
unmake_lane(struct fbk_lane *lane)
{
    fbk_memory_give_back(lane->placed, FBK_PLACED_MAX * sizeof *lane->placed);
    fbk_segment_unmap_ring(&lane->add_ring);
    fbk_segment_unmap_ring(&lane->request_ring);
    fbk_segment_unmap_ring(&lane->reply_ring);
    fbk_segment_unmap(lane->segment, FBK_ROLE_WORKER);
    fbk_segment_unmap((void *)(uintptr_t)lane->journal, FBK_ROLE_JOURNAL);
    fbk_segment_unmap((void *)(uintptr_t)lane->index, FBK_ROLE_INDEX);
}

static int32_t
take_memory(struct fbk_worker *worker)
{
    uint64_t count = worker->options.connections_max;
    worker->connections = fbk_memory_take(count * sizeof *worker->connections);
    worker->free_slots = fbk_memory_take(count * sizeof *worker->free_slots);
    worker->dirty = fbk_memory_take(count * sizeof *worker->dirty);
    worker->events = fbk_memory_take(count * sizeof *worker->events);
    worker->receive_memory = fbk_memory_take(FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    bool all = worker->connections && worker->free_slots && worker->dirty && worker->events && worker->receive_memory;
    int32_t error = all ? fbk_contexts_init(worker) : -ENOMEM;
    return error != 0 ? error : fbk_digests_init(worker);
}

static bool
is_shard_map_sound(const struct fbk_worker_options *options)
{
    if (options->pair_count == 0 || options->pair_count > FBK_PAIRS_MAX)
        return false;
    for (uint32_t shard = 0; shard < FBK_SHARD_COUNT; shard++)
        if (options->pair_of_shard[shard] >= options->pair_count)
            return false;
    return true;
}

static bool
are_options_sound(const struct fbk_worker_options *options)
{
    return is_shard_map_sound(options) && options->worker < FBK_WORKERS_MAX && options->connections_max > 0 &&
           options->pending_requests_max > 0 && options->apache_requests_max > 1 && options->apache_batch_bytes_max > 0 &&
           options->apache_digests_max >= FBK_DIGEST_WAYS && options->apache_digests_max <= 1u << 24 &&
           options->batch_entries_max > 0 && options->receive_size_bytes >= FBK_PAGE_BYTES &&
           options->frame_size_bytes_max >= FBK_COLD_FRAME_BYTES_MAX &&
           options->partial_frames_bytes_max >= 2ull * options->frame_size_bytes_max &&
           options->reply_backlog_bytes_max >= options->frame_size_bytes_max && options->reply_backlog_bytes_max < 1u << 30 &&
           options->unread_replies_bytes_max >= options->reply_backlog_bytes_max && options->turn_frames_max > 0 &&
           options->turn_bytes_max > 0 && options->frame_bytes_per_s_min > 0 && options->write_timeout_ms <= 1000000 &&
           options->hello_timeout_ms <= 1000000 && options->frame_timeout_ms <= 1000000;
}

struct fbk_worker *
fbk_worker_create(const struct fbk_worker_options *options, int32_t *error)
{
    *error = -EINVAL;
    if (!are_options_sound(options))
        return NULL;
    struct fbk_worker *worker = fbk_memory_take(sizeof *worker);
    *error = -ENOMEM;
    if (worker == NULL)
        return NULL;
    worker->options = *options;
    worker->turn_slot = FBK_NO_CONNECTION;
    for (uint32_t line = 0; line < FBK_LINE_COUNT; line++)
        worker->lines[line].first = worker->lines[line].last = FBK_NO_CONNECTION;
    *error = take_memory(worker);
    worker->lane_count = options->pair_count;
    for (uint32_t p = 0; p < worker->lane_count && *error == 0; p++)
        *error = make_lane(worker, p);
    if (*error != 0) {
        fbk_worker_destroy(worker);
        return NULL;
    }
    worker->stats = &worker->lanes[0].segment->stats;
    fbk_flight_open(&worker->recorder, &worker->stats->flight);
    fbk_worker_clock(worker);
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        bool moved;
        fbk_lane_refresh(worker, &worker->lanes[p], &moved);
    }
    return worker;
}

void
fbk_worker_destroy(struct fbk_worker *worker)
{
    if (worker == NULL)
        return;
    for (uint32_t slot = 0; slot < worker->slots_used; slot++) {
        free(worker->connections[slot].input);
        free(worker->connections[slot].output);
    }
    for (uint32_t i = 0; i < worker->output_block_count; i++)
        free(worker->output_blocks[i]);
    fbk_contexts_free(worker);
    fbk_digests_free(worker);
    fbk_flight_close(&worker->recorder);
    uint64_t count = worker->options.connections_max;
    fbk_memory_give_back(worker->connections, count * sizeof *worker->connections);
    fbk_memory_give_back(worker->free_slots, count * sizeof *worker->free_slots);
    fbk_memory_give_back(worker->dirty, count * sizeof *worker->dirty);
    fbk_memory_give_back(worker->events, count * sizeof *worker->events);
    fbk_memory_give_back(worker->receive_memory, FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    for (uint32_t p = 0; p < worker->lane_count; p++)
        unmake_lane(&worker->lanes[p]);
    fbk_memory_give_back(worker, sizeof *worker);
}

uint8_t *
fbk_worker_receive_buffer(struct fbk_worker *worker, uint32_t *size_bytes)
{
    *size_bytes = worker->options.receive_size_bytes;
    return worker->receive_memory + FBK_SMALL_FRAME_BYTES;
}

/* ------------------------------------------------------------------ awake */

static void
note_add_wait(struct fbk_worker *worker, uint32_t blocked_us)
{
    uint32_t took_us = worker->now_us - blocked_us;
    fbk_count_timed(worker->stats, FBK_C_WORKER_ADD_WAITS, took_us);
    if (took_us >= FBK_FLIGHT_SLOW_US)
        fbk_worker_note_wait(worker, blocked_us);
}

/* A turn in that line is over: was it the end of the wait for which it stood there? */
static void
note_turn(struct fbk_worker *worker, struct fbk_connection *connection, uint32_t line, uint32_t blocked_us, bool got_some)
{
    if (!got_some)
        connection->blocked_us = blocked_us;
    else if (line == FBK_LINE_APACHE_ADDS || (line >= FBK_LINE_ADD && line < FBK_LINE_REQUEST))
        note_add_wait(worker, blocked_us);
    else if (line == FBK_LINE_APACHE_READS || line >= FBK_LINE_REQUEST)
        fbk_count_timed(worker->stats, FBK_C_WORKER_READ_WAITS, worker->now_us - blocked_us);
}

/* Gives those in a line their turn, in order: each as much as there is room for, and to the end of the line if it got some
 * of it; the first that got nothing stays first, and ends the round. */
static void
serve_line(struct fbk_worker *worker, uint32_t line, uint32_t why)
{
    for (uint32_t left = worker->lines[line].count; left > 0; left--) {
        struct fbk_connection *connection = fbk_line_first(worker, line);
        if (connection == NULL)
            break;
        fbk_line_leave(worker, connection);
        connection->blocked &= (uint16_t)~why;
        uint32_t blocked_us = connection->blocked_us;
        worker->serving = connection;
        worker->turn_frames = worker->turn_bytes = 0;
        bool got_some = fbk_worker_go_on(worker, connection);
        worker->serving = NULL;
        note_turn(worker, connection, line, blocked_us, got_some);
        fbk_connection_mark(worker, connection);
        if (connection->line == line && !got_some) {
            fbk_line_leave(worker, connection);
            fbk_line_join(worker, connection, line, true);
            break;
        }
    }
}

static void
serve(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        bool moved;
        lane->reads_only = fbk_cursor_load(&lane->index->reads_only);
        if (!fbk_lane_refresh(worker, lane, &moved))
            return;
    }
    fbk_cancel_serve(worker);
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        fbk_contexts_serve(worker, &worker->lanes[p]);
        serve_line(worker, FBK_LINE_ADD + p, FBK_BLOCKED_ADD);
        serve_line(worker, FBK_LINE_REQUEST + p, FBK_BLOCKED_REQUEST);
    }
    for (uint32_t line = FBK_LINE_CONTEXT; line <= FBK_LINE_APACHE_READS; line++)
        serve_line(worker, line, FBK_BLOCKED_CONTEXT);
    serve_line(worker, FBK_LINE_READY, FBK_BLOCKED_TURN);
    worker->turn_slot = FBK_NO_CONNECTION;
}

static bool
is_waiting_for_room(const struct fbk_worker *worker, const struct fbk_lane *lane)
{
    return worker->lines[FBK_LINE_ADD + lane->number].count > 0 || worker->lines[FBK_LINE_REQUEST + lane->number].count > 0 ||
           worker->lines[FBK_LINE_CANCEL].count > 0 || worker->apache.lines[lane->number].first != FBK_NO_CONTEXT;
}

/* After the ticket says asleep: has anything come that nobody will ring for? */
static bool
has_news(const struct fbk_worker *worker, const struct fbk_lane *lane)
{
    uint32_t w = worker->options.worker;
    if (fbk_cursor_load_before_sleep(&lane->journal->published) != lane->descriptors_consumed ||
        fbk_cursor_load_before_sleep(&lane->index->reply_written[w]) != lane->reply_consumed)
        return true;
    if (!lane->is_starved)
        return false;
    return fbk_cursor_load_before_sleep(&lane->index->indexed[w]) != lane->indexed ||
           fbk_cursor_load_before_sleep(&lane->index->cost_granted[w]) != lane->cost_granted ||
           fbk_cursor_load_before_sleep(&lane->index->request_consumed[w]) != lane->request_consumed ||
           fbk_cursor_load_before_sleep(&lane->index->reads_only) != lane->reads_only;
}

static bool
has_any_news(const struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        if (has_news(worker, &worker->lanes[p]))
            return true;
    return false;
}

/* There is one bell, but a ticket in every lane's segment: each journal and index sees only its own. */
static void
wake(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        fbk_sleeper_end(&worker->lanes[p].segment->sleeper);
}

static void
fall_asleep(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++)
        fbk_sleeper_begin(&worker->lanes[p].segment->sleeper);
}

static void
drain_bell(struct fbk_worker *worker)
{
    uint64_t count;
    ssize_t result = read(worker->options.bell_fd, &count, sizeof count);
    (void)result; /* nothing there is as good: it was rung for something that is done already */
}

bool
fbk_worker_starves(struct fbk_worker *worker)
{
    bool may_have_missed = false;
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_lane *lane = &worker->lanes[p];
        bool is_starved = is_waiting_for_room(worker, lane);
        if (is_starved == lane->is_starved)
            continue;
        lane->is_starved = is_starved;
        fbk_cursor_publish(&lane->segment->starved, is_starved);
        may_have_missed |= is_starved && has_news(worker, lane);
    }
    return may_have_missed;
}

int32_t
fbk_worker_collect(struct fbk_worker *worker)
{
    drain_bell(worker);
    fbk_worker_note(worker, FBK_C_WORKER_WAKES);
    int32_t more = FBK_WORKER_MORE;
    for (int pass = 0; pass < PASSES_MAX && more != 0; pass++) {
        wake(worker);
        fbk_worker_clock(worker);
        if (!fbk_worker_answer(worker))
            return FBK_E_POISONED;
        serve(worker);
        fbk_worker_publish(worker);
        fbk_dirty_flush(worker);
        fbk_budget_serve(worker);
        if (worker->is_poisoned)
            return FBK_E_POISONED;
        fbk_worker_starves(worker);
        fall_asleep(worker);
        /* What the end of this pass made ready has its turn in another one: nobody rings for it. */
        if (!has_any_news(worker) && worker->lines[FBK_LINE_READY].count == 0)
            more = 0;
    }
    if (more != 0)
        wake(worker);
    fbk_flight_look(&worker->recorder, worker->clock_ns);
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count + more;
}

void
fbk_worker_leave(struct fbk_worker *worker)
{
    for (uint32_t p = 0; p < worker->lane_count; p++) {
        struct fbk_worker_segment *segment = worker->lanes[p].segment;
        /* The journal reads the descriptors' cursor first. */
        fbk_cursor_publish(&segment->exceptions_consumed, FBK_CONSUMER_GONE);
        fbk_cursor_publish(&segment->descriptors_consumed, FBK_CONSUMER_GONE);
        /* What closed connections asked for is still on its way: the index may be waiting for room for it. */
        fbk_cursor_publish(&segment->reply_consumed, FBK_CONSUMER_GONE);
    }
}

const struct fbk_worker_event *
fbk_worker_events(struct fbk_worker *worker)
{
    return worker->events;
}

uint64_t
fbk_worker_pending(struct fbk_worker *worker)
{
    return worker->pending - worker->polls;
}

uint64_t
fbk_worker_counter(struct fbk_worker *worker, uint32_t counter)
{
    return counter < FBK_COUNTERS_MAX ? worker->stats->counters[counter] : 0;
}

void
fbk_worker_count(struct fbk_worker *worker, uint32_t counter, uint64_t amount)
{
    if (counter < FBK_COUNTERS_MAX)
        fbk_count(worker->stats, counter, amount);
}

int32_t
fbk_worker_is_read_only(struct fbk_worker *worker)
{
    bool refuses = worker->options.is_reads_only != 0;
    for (uint32_t p = 0; p < worker->lane_count; p++)
        refuses |= fbk_cursor_load(&worker->lanes[p].index->reads_only) != 0;
    return refuses;
}
