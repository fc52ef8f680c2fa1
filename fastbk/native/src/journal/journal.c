/* The journal's life and its step.  The loop around it is Python's.
 * Decision 29. */

#include "journal/journal.h"

#include <sched.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/fault.h"
#include "journal/decide.h"
#include "journal/format.h"

/* From the first batch that a step publishes on it goes on for so long before Python has its turn.
 * With a turn after every batch a lone add waited 12 us longer (window 1, 2 cores, p50 / disk
 * p50 1.80 against 1.64 over 4 paired runs): the worker that was just woken often shares the core
 * with what Python then does. */
#define SLICE_NS 1000000u
#define REASONS_THAT_WAIT (FBK_JOURNAL_PUBLISHED | FBK_JOURNAL_NEARLY_FULL)
#define STALLED_WAIT_MS 1 /* a consumer that is too far behind was rung; nobody rings back */

static bool
options_ok(const struct fbk_io *io, const struct fbk_journal_options *options)
{
    uint32_t block = options->block_size_bytes;
    return options->worker_count >= 1 && options->worker_count <= FBK_WORKERS_MAX &&
           options->depth >= 1 && options->depth <= FBK_JOURNAL_DEPTH_MAX &&
           options->depth <= io->depth_max && options->quantum_bytes >= 1 &&
           block >= FBK_PAGE_BYTES && block <= FBK_BLOCK_BYTES_MAX && (block & (block - 1)) == 0 &&
           block % io->block_size_bytes == 0 &&
           options->record_bytes_max >= sizeof(struct fbk_record) && options->run_bytes_min >= 1 &&
           options->record_bytes_max <= FBK_BATCH_BYTES_MAX / 2 &&
           options->batch_size_bytes_max >= block &&
           options->batch_size_bytes_max <= FBK_BATCH_BYTES_MAX / 2;
}

static int32_t
map_segments(struct fbk_journal *journal)
{
    const struct fbk_journal_options *options = &journal->options;
    int32_t error = 0;
    journal->segment = fbk_segment_map(options->segment_fd, FBK_ROLE_JOURNAL, true, &error);
    if (!journal->segment)
        return error;
    journal->index = fbk_segment_map(options->index_segment_fd, FBK_ROLE_INDEX, false, &error);
    if (!journal->index)
        return error;
    if (journal->segment->header.epoch != options->epoch ||
        journal->index->header.epoch != options->epoch ||
        journal->segment->header.pair != options->pair ||
        journal->index->header.pair != options->pair)
        return FBK_E_LAYOUT;
    if (journal->segment->header.ring_size_bytes[0] > 0) {
        error = fbk_segment_map_ring(options->segment_fd, &journal->segment->header, 0, 0, true,
                                     &journal->tail);
        if (error < 0)
            return error;
    }
    for (uint32_t w = 0; w < options->worker_count; w++) {
        struct fbk_journal_worker *worker = &journal->workers[w];
        int32_t fd = options->worker_segment_fds[w];
        worker->segment = fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error);
        if (!worker->segment)
            return error;
        if (worker->segment->header.epoch != options->epoch ||
            worker->segment->header.role_index != w ||
            worker->segment->header.pair != options->pair)
            return FBK_E_LAYOUT;
        int32_t rc = fbk_segment_map_ring(fd, &worker->segment->header, 0, 0, false, &worker->ring);
        if (rc < 0)
            return rc;
        /* Room for three of the largest frames; our header comes on top. */
        if (worker->ring.size_bytes / 3 + FBK_PAGE_BYTES < options->record_bytes_max)
            return -EINVAL;
        worker->bell_fd = options->worker_bell_fds[w];
    }
    return 0;
}

struct fbk_journal *
fbk_journal_create(struct fbk_io *io, const struct fbk_journal_options *options, int32_t *error)
{
    if (!options_ok(io, options)) {
        *error = -EINVAL;
        return NULL;
    }
    struct fbk_journal *journal = fbk_memory_take(sizeof *journal);
    if (!journal) {
        *error = -ENOMEM;
        return NULL;
    }
    journal->io = io;
    journal->options = *options;
    fbk_header_key_load(&journal->header_key, options->header_key);
    journal->sequence = options->predecessor_sequence;
    journal->published_sequence = options->predecessor_sequence;
    journal->next_record_sequence = options->next_record_sequence;
    journal->last_file_id = options->predecessor_file_id;
    journal->last_crc = options->predecessor_crc;
    uint64_t largest = sizeof(struct fbk_batch_header) + (uint64_t)options->record_bytes_max +
                       FBK_JOURNAL_RUN_FRONT_BYTES;
    if (largest < options->batch_size_bytes_max)
        largest = options->batch_size_bytes_max;
    if (largest < 2ull * options->block_size_bytes)
        largest = 2ull * options->block_size_bytes;
    journal->buffer_bytes = fbk_round_up(largest, options->block_size_bytes);
    *error = fbk_ledgers_init(&journal->ledgers, options->ledgers_max);
    if (*error >= 0)
        *error = fbk_journal_runs_init(journal);
    if (*error >= 0)
        *error = map_segments(journal);
    if (*error >= 0)
        fbk_flight_open(&journal->recorder, &journal->segment->stats.flight);
    for (uint32_t i = 0; *error >= 0 && i < options->depth; i++) {
        journal->slots[i].own = fbk_memory_take(journal->buffer_bytes);
        if (!journal->slots[i].own)
            *error = -ENOMEM;
    }
    if (*error < 0) {
        fbk_journal_destroy(journal);
        return NULL;
    }
    return journal;
}

void
fbk_journal_destroy(struct fbk_journal *journal)
{
    if (!journal)
        return;
    for (uint32_t w = 0; w < FBK_WORKERS_MAX; w++) {
        if (journal->workers[w].ring.data)
            fbk_segment_unmap_ring(&journal->workers[w].ring);
        if (journal->workers[w].segment)
            fbk_segment_unmap(journal->workers[w].segment, FBK_ROLE_WORKER);
    }
    if (journal->index)
        fbk_segment_unmap(journal->index, FBK_ROLE_INDEX);
    fbk_flight_close(&journal->recorder);
    if (journal->segment)
        fbk_segment_unmap(journal->segment, FBK_ROLE_JOURNAL);
    /* A buffer that the kernel still reads keeps its pages until it is done: unmapping is safe. */
    for (uint32_t i = 0; i < FBK_JOURNAL_DEPTH_MAX; i++)
        if (journal->slots[i].own)
            fbk_memory_give_back(journal->slots[i].own, journal->buffer_bytes);
    fbk_segment_unmap_ring(&journal->tail);
    fbk_journal_runs_free(journal);
    if (journal->ledgers.chunks)
        fbk_ledgers_free(&journal->ledgers);
    fbk_memory_give_back(journal, sizeof *journal);
}

/* Bytes in the rings that were not taken; FBK_E_POISONED.  before_sleep: with the order that a
 * sleeper needs. */
static int64_t
read_cursors(struct fbk_journal *journal, bool before_sleep)
{
    uint64_t waiting = 0;
    for (uint32_t w = 0; w < journal->options.worker_count; w++) {
        struct fbk_journal_worker *worker = &journal->workers[w];
        const struct fbk_cursor *cursor = &worker->segment->add_written;
        uint64_t written =
            before_sleep ? fbk_cursor_load_before_sleep(cursor) : fbk_cursor_load(cursor);
        if (FBK_UNLIKELY(written - worker->taken > worker->ring.size_bytes ||
                         written < worker->written))
            return fbk_journal_poison(journal, FBK_POISON_CURSOR, w, written, 0);
        worker->written = written;
        waiting += written - worker->taken;
    }
    return (int64_t)waiting;
}

/* How much has to wait in the rings before the next batch is taken; 0 = however much, none can be
 * taken. */
static uint64_t
needed_bytes(const struct fbk_journal *journal)
{
    if (journal->need_roll || journal->closed || journal->slot_count == journal->options.depth)
        return 0;
    const uint32_t second_bytes = journal->options.second_batch_bytes_min;
    return journal->slot_count == 0 || second_bytes == 0 ? 1 : second_bytes;
}

/* Batches are taken as long as enough waits and depth and room allow. */
static int32_t
fill(struct fbk_journal *journal)
{
    journal->stalled = false;
    for (;;) {
        if (fbk_journal_apply_notices(journal) < 0)
            return FBK_E_POISONED;
        int64_t waiting = read_cursors(journal, false);
        if (waiting <= 0)
            return (int32_t)waiting; /* FBK_E_POISONED or 0 */
        uint64_t needed = needed_bytes(journal);
        if (needed == 0 || (uint64_t)waiting < needed)
            return 0;
        uint64_t exceptions_room;
        int32_t rc = fbk_journal_room(journal, &exceptions_room);
        if (rc < 0)
            return rc;
        if (rc == 0) {
            journal->stalled = true;
            journal->flight_flags |= FBK_FLIGHT_STALLED;
            fbk_count(&journal->segment->stats, FBK_C_JOURNAL_STALLS, 1);
            return 0;
        }
        struct fbk_journal_slot *slot = fbk_journal_begin_slot(journal);
        rc = fbk_journal_drain(journal, slot);
        if (rc <= 0)
            return rc;
        FBK_KILL_POINT("journal.after_take");
        rc = fbk_journal_submit(journal, slot, 0);
        if (rc < 0)
            return rc;
        FBK_KILL_POINT("journal.after_submit");
        if (slot->state == FBK_SLOT_DURABLE && journal->slot_count == 1)
            return 0; /* to be published at once */
    }
}

/* 1 when there is no need to sleep.  Publishes from which cursor values on a worker has to ring. */
static int32_t
prepare_sleep(struct fbk_journal *journal)
{
    uint64_t needed = needed_bytes(journal);
    for (uint32_t w = 0; w < journal->options.worker_count; w++)
        fbk_cursor_publish(&journal->segment->wake_at[w], needed && !journal->stalled
                                                              ? journal->workers[w].taken + needed
                                                              : UINT64_MAX);
    fbk_sleeper_begin(&journal->segment->sleeper);
    int64_t waiting = read_cursors(journal, true);
    if (waiting < 0)
        return (int32_t)waiting;
    return needed && !journal->stalled && (uint64_t)waiting >= needed;
}

/* Polls for the batches in flight, before a sleep.  Returns what the io's wait does. */
static int32_t
spin(struct fbk_journal *journal, struct fbk_io_completion *completions, int32_t *rung)
{
    uint64_t spin_ns = journal->options.spin_us * 1000ull, needed = needed_bytes(journal);
    if (spin_ns == 0 || journal->slot_count == 0)
        return 0;
    fbk_count(&journal->segment->stats, FBK_C_JOURNAL_SPINS, 1);
    while (fbk_now_ns() - journal->slots[journal->first_slot].submitted_ns < spin_ns) {
        int32_t count = journal->io->operations->wait(journal->io, journal->options.bell_fd, 0,
                                                      completions, FBK_JOURNAL_DEPTH_MAX, rung);
        if (count != 0 || *rung)
            return count;
        int64_t waiting = read_cursors(journal, false);
        if (waiting < 0 || (needed && !journal->stalled && (uint64_t)waiting >= needed))
            return 0; /* prepare_sleep sees it, too */
        /* the kernel's threads that complete the write may need this processor */
        sched_yield();
    }
    return 0;
}

/* *rung: by no worker */
static int32_t
sleep_and_complete(struct fbk_journal *journal, int32_t timeout_ms, int32_t *rung)
{
    struct fbk_io_completion completions[FBK_JOURNAL_DEPTH_MAX];
    int32_t count = timeout_ms == 0 ? 0 : spin(journal, completions, rung);
    int32_t rc = 0;
    if (count == 0 && !*rung && (rc = prepare_sleep(journal)) >= 0) {
        if (rc > 0)
            timeout_ms = 0;
        else if (journal->stalled && (timeout_ms < 0 || timeout_ms > STALLED_WAIT_MS))
            timeout_ms = STALLED_WAIT_MS;
        count = journal->io->operations->wait(journal->io, journal->options.bell_fd, timeout_ms,
                                              completions, FBK_JOURNAL_DEPTH_MAX, rung);
    }
    fbk_sleeper_end(&journal->segment->sleeper);
    if (rc < 0)
        return rc;
    fbk_journal_note_sleep(journal, count == 0 && !*rung && timeout_ms != 0);
    if (*rung) {
        /* A worker rings when enough waits; whoever rang otherwise has left a message elsewhere. */
        int64_t waiting = read_cursors(journal, false);
        uint64_t needed = needed_bytes(journal);
        if (waiting < 0)
            return FBK_E_POISONED;
        *rung = needed == 0 || (uint64_t)waiting < needed;
    }
    if (count < 0)
        return count == -EINTR
                   ? 0
                   : fbk_journal_poison(journal, FBK_POISON_WRITE, 0, journal->offset_bytes, count);
    return fbk_journal_completed(journal, completions, count);
}

static int32_t
reasons_now(const struct fbk_journal *journal, bool published, bool bell)
{
    int32_t reasons = 0;
    if (published) {
        reasons |= FBK_JOURNAL_PUBLISHED;
        if (journal->file.size_bytes - journal->offset_bytes < journal->file.size_bytes / 4)
            reasons |= FBK_JOURNAL_NEARLY_FULL;
    }
    if (bell)
        reasons |= FBK_JOURNAL_BELL;
    if (journal->need_roll && journal->slot_count == 0)
        reasons |= FBK_JOURNAL_ROLL;
    return reasons;
}

/* Milliseconds until then, rounded up; -1 for never. */
static int32_t
ms_until(uint64_t deadline_ns, uint64_t now_ns)
{
    if (deadline_ns == UINT64_MAX)
        return -1;
    return now_ns >= deadline_ns ? 0 : (int32_t)((deadline_ns - now_ns + 999999u) / 1000000u);
}

int32_t
fbk_journal_step(struct fbk_journal *journal, int32_t timeout_ms)
{
    uint64_t began_ns = fbk_now_ns();
    uint64_t deadline_ns = timeout_ms < 0 ? UINT64_MAX : began_ns + (uint64_t)timeout_ms * 1000000u;
    int32_t so_far = 0;
    fbk_journal_note_turn(journal, began_ns);
    fbk_beat(&journal->segment->stats, FBK_BEAT_LOOP);
    for (;;) {
        if (journal->poison)
            return FBK_E_POISONED;
        int32_t rc = fill(journal);
        if (rc < 0)
            return rc;
        bool published = fbk_journal_publish(journal) > 0;
        int32_t rung = 0;
        if (!published && !(journal->need_roll && journal->slot_count == 0)) {
            rc = sleep_and_complete(journal, timeout_ms, &rung);
            if (rc < 0)
                return rc;
            FBK_KILL_POINT("journal.before_publish");
            published = fbk_journal_publish(journal) > 0;
            /* The next batch is on its way before Python looks at this one. */
            rc = fill(journal);
            if (rc < 0)
                return rc;
        }
        int32_t reasons = reasons_now(journal, published, rung != 0);
        uint64_t now_ns = fbk_now_ns();
        if ((reasons & ~REASONS_THAT_WAIT) || timeout_ms == 0)
            return fbk_journal_note_return(journal, now_ns, so_far | reasons);
        if (reasons && !so_far && deadline_ns - now_ns > SLICE_NS)
            deadline_ns = now_ns + SLICE_NS;
        so_far |= reasons;
        if (now_ns >= deadline_ns)
            return fbk_journal_note_return(journal, now_ns, so_far);
        timeout_ms = ms_until(deadline_ns, now_ns);
    }
}

void
fbk_journal_set_limit(struct fbk_journal *journal, uint32_t limit)
{
    journal->limit = limit;
    /* what did not fit may be refused now, or fit the file to come */
    journal->need_roll = false;
    fbk_gauge(&journal->segment->stats, FBK_C_JOURNAL_LIMIT, limit);
}

void
fbk_journal_request_roll(struct fbk_journal *journal)
{
    journal->need_roll = true;
}

_Static_assert(FBK_JOURNAL_DELAY_MS_MAX == FBK_IO_DELAY_MS_MAX &&
                   FBK_JOURNAL_DEPTH_MAX <= FBK_IO_DELAYED_WRITES_MAX,
               "the boundary's numbers");

int32_t
fbk_journal_delay(struct fbk_journal *journal, uint32_t delay_ms)
{
    if (delay_ms > FBK_JOURNAL_DELAY_MS_MAX)
        return -EINVAL;
    if (journal->io != &journal->delayed.io) {
        if (delay_ms == 0)
            return 0;
        fbk_io_delayed_begin(&journal->delayed, journal->io);
        journal->io = &journal->delayed.io;
    }
    fbk_io_delayed_set(&journal->delayed, delay_ms);
    return 0;
}
