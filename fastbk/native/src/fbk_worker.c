/* A worker as a whole: made from three segments, woken by its bell. */
#include "fbk_worker.h"

#include "fbk_segment.h"

#include <unistd.h>

#define PASSES_MAX 4

/* ------------------------------------------------------------------ making */

static int32_t
map_segments(struct fbk_worker *worker)
{
    const struct fbk_worker_options *options = &worker->options;
    int32_t error = 0;
    worker->segment = fbk_segment_map(options->segment_fd, FBK_ROLE_WORKER, true, &error);
    if (worker->segment == NULL)
        return error;
    worker->journal = fbk_segment_map(options->journal_segment_fd, FBK_ROLE_JOURNAL, false, &error);
    if (worker->journal == NULL)
        return error;
    worker->index = fbk_segment_map(options->index_segment_fd, FBK_ROLE_INDEX, false, &error);
    if (worker->index == NULL)
        return error;
    if (worker->segment->header.epoch != options->epoch || worker->journal->header.epoch != options->epoch ||
        worker->index->header.epoch != options->epoch || worker->segment->header.role_index != options->worker)
        return FBK_E_LAYOUT;
    error = fbk_segment_map_ring(options->segment_fd, &worker->segment->header, 0, 0, true, &worker->add_ring);
    if (error == 0)
        error = fbk_segment_map_ring(options->segment_fd, &worker->segment->header, 1, 0, true, &worker->request_ring);
    if (error == 0)
        error = fbk_segment_map_ring(options->index_segment_fd, &worker->index->header, 0, options->worker, false,
                                     &worker->reply_ring);
    return error;
}

static int32_t
take_memory(struct fbk_worker *worker)
{
    uint64_t count = worker->options.connections_max;
    worker->placed = fbk_memory_take(FBK_PLACED_MAX * sizeof *worker->placed);
    worker->connections = fbk_memory_take(count * sizeof *worker->connections);
    worker->free_slots = fbk_memory_take(count * sizeof *worker->free_slots);
    worker->dirty = fbk_memory_take(count * sizeof *worker->dirty);
    worker->events = fbk_memory_take(count * sizeof *worker->events);
    worker->receive_memory = fbk_memory_take(FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    bool all = worker->placed && worker->connections && worker->free_slots && worker->dirty && worker->events &&
               worker->receive_memory;
    return all ? 0 : -ENOMEM;
}

static bool
are_options_sound(const struct fbk_worker_options *options)
{
    return options->worker < FBK_WORKERS_MAX && options->connections_max > 0 && options->pending_requests_max > 0 &&
           options->batch_entries_max > 0 && options->receive_size_bytes >= FBK_PAGE_BYTES &&
           options->frame_size_bytes_max >= FBK_COLD_FRAME_BYTES_MAX &&
           options->partial_frames_bytes_max >= 2ull * options->frame_size_bytes_max &&
           options->reply_backlog_bytes_max >= options->frame_size_bytes_max && options->reply_backlog_bytes_max < 1u << 30 &&
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
    for (uint32_t line = 0; line < FBK_LINE_COUNT; line++)
        worker->lines[line].first = worker->lines[line].last = FBK_NO_CONNECTION;
    *error = map_segments(worker);
    if (*error == 0)
        *error = take_memory(worker);
    /* A9, A16: a ring holds several of its largest records. */
    if (*error == 0 && (worker->add_ring.size_bytes < 3ull * options->frame_size_bytes_max ||
                        worker->reply_ring.size_bytes < 2ull * options->frame_size_bytes_max ||
                        worker->request_ring.size_bytes < FBK_PAGE_BYTES))
        *error = -EINVAL;
    if (*error != 0) {
        fbk_worker_destroy(worker);
        return NULL;
    }
    worker->stats = &worker->segment->stats;
    bool moved;
    fbk_worker_refresh(worker, &moved);
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
    uint64_t count = worker->options.connections_max;
    fbk_memory_give_back(worker->placed, FBK_PLACED_MAX * sizeof *worker->placed);
    fbk_memory_give_back(worker->connections, count * sizeof *worker->connections);
    fbk_memory_give_back(worker->free_slots, count * sizeof *worker->free_slots);
    fbk_memory_give_back(worker->dirty, count * sizeof *worker->dirty);
    fbk_memory_give_back(worker->events, count * sizeof *worker->events);
    fbk_memory_give_back(worker->receive_memory, FBK_SMALL_FRAME_BYTES + (uint64_t)worker->options.receive_size_bytes);
    if (worker->add_ring.data != NULL)
        fbk_segment_unmap_ring(&worker->add_ring);
    if (worker->request_ring.data != NULL)
        fbk_segment_unmap_ring(&worker->request_ring);
    if (worker->reply_ring.data != NULL)
        fbk_segment_unmap_ring(&worker->reply_ring);
    if (worker->segment != NULL)
        fbk_segment_unmap(worker->segment, FBK_ROLE_WORKER);
    if (worker->journal != NULL)
        fbk_segment_unmap((void *)(uintptr_t)worker->journal, FBK_ROLE_JOURNAL);
    if (worker->index != NULL)
        fbk_segment_unmap((void *)(uintptr_t)worker->index, FBK_ROLE_INDEX);
    fbk_memory_give_back(worker, sizeof *worker);
}

uint8_t *
fbk_worker_receive_buffer(struct fbk_worker *worker, uint32_t *size_bytes)
{
    *size_bytes = worker->options.receive_size_bytes;
    return worker->receive_memory + FBK_SMALL_FRAME_BYTES;
}

/* ------------------------------------------------------------------ awake */

/* Gives those in a line their turn, in order: each as much as there is room for, and to the end of the line if it got some
 * of it; the first that got nothing stays first, and ends the round. */
static void
serve_line(struct fbk_worker *worker, enum fbk_line line, uint32_t why)
{
    for (uint32_t left = worker->lines[line].count; left > 0; left--) {
        struct fbk_connection *connection = fbk_line_first(worker, line);
        if (connection == NULL)
            break;
        fbk_line_leave(worker, connection);
        connection->blocked &= (uint8_t)~why;
        worker->serving = connection;
        bool got_some = fbk_worker_go_on(worker, connection);
        worker->serving = NULL;
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
    bool moved;
    worker->reads_only = fbk_cursor_load(&worker->index->reads_only);
    if (!fbk_worker_refresh(worker, &moved))
        return;
    fbk_cancel_serve(worker);
    serve_line(worker, FBK_LINE_ADD, FBK_BLOCKED_ADD);
    serve_line(worker, FBK_LINE_REQUEST, FBK_BLOCKED_REQUEST);
    serve_line(worker, FBK_LINE_READY, 0);
}

static bool
is_waiting_for_room(const struct fbk_worker *worker)
{
    return worker->lines[FBK_LINE_ADD].count > 0 || worker->lines[FBK_LINE_REQUEST].count > 0 ||
           worker->lines[FBK_LINE_CANCEL].count > 0;
}

/* After the ticket says asleep: has anything come that nobody will ring for? */
static bool
has_news(const struct fbk_worker *worker)
{
    uint32_t w = worker->options.worker;
    if (fbk_cursor_load_before_sleep(&worker->journal->published) != worker->descriptors_consumed ||
        fbk_cursor_load_before_sleep(&worker->index->reply_written[w]) != worker->reply_consumed)
        return true;
    if (!worker->is_starved)
        return false;
    return fbk_cursor_load_before_sleep(&worker->index->indexed[w]) != worker->indexed ||
           fbk_cursor_load_before_sleep(&worker->index->cost_granted[w]) != worker->cost_granted ||
           fbk_cursor_load_before_sleep(&worker->index->request_consumed[w]) != worker->request_consumed ||
           fbk_cursor_load_before_sleep(&worker->index->reads_only) != worker->reads_only;
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
    bool is_starved = is_waiting_for_room(worker);
    if (is_starved == worker->is_starved)
        return false;
    worker->is_starved = is_starved;
    fbk_cursor_publish(&worker->segment->starved, is_starved);
    return is_starved && has_news(worker);
}

int32_t
fbk_worker_collect(struct fbk_worker *worker)
{
    drain_bell(worker);
    fbk_worker_note(worker, FBK_C_WORKER_WAKES);
    int32_t more = FBK_WORKER_MORE;
    for (int pass = 0; pass < PASSES_MAX && more != 0; pass++) {
        fbk_sleeper_end(&worker->segment->sleeper);
        worker->now_us = (uint32_t)(fbk_now_ns() / 1000);
        if (!fbk_worker_answer(worker))
            return FBK_E_POISONED;
        serve(worker);
        fbk_worker_publish(worker);
        fbk_dirty_flush(worker);
        fbk_budget_serve(worker);
        if (worker->is_poisoned)
            return FBK_E_POISONED;
        fbk_worker_starves(worker);
        fbk_sleeper_begin(&worker->segment->sleeper);
        /* What the end of this pass made ready has its turn in another one: nobody rings for it. */
        if (!has_news(worker) && worker->lines[FBK_LINE_READY].count == 0)
            more = 0;
    }
    if (more != 0)
        fbk_sleeper_end(&worker->segment->sleeper);
    fbk_dirty_report(worker);
    return (int32_t)worker->event_count + more;
}

void
fbk_worker_leave(struct fbk_worker *worker)
{
    /* The journal reads the descriptors' cursor first. */
    fbk_cursor_publish(&worker->segment->exceptions_consumed, FBK_CONSUMER_GONE);
    fbk_cursor_publish(&worker->segment->descriptors_consumed, FBK_CONSUMER_GONE);
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

void
fbk_worker_count(struct fbk_worker *worker, uint32_t counter, uint64_t amount)
{
    if (counter < FBK_COUNTERS_MAX)
        fbk_count(worker->stats, counter, amount);
}

int32_t
fbk_worker_is_read_only(struct fbk_worker *worker)
{
    return worker->options.is_reads_only != 0 || fbk_cursor_load(&worker->index->reads_only) != 0;
}
