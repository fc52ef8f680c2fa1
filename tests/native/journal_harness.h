/* What the journal's C tests stand on: the other processes' segments, with a producer that writes records into the rings as
 * a worker does. */
#ifndef FBK_TEST_JOURNAL_RIG_H
#define FBK_TEST_JOURNAL_RIG_H

#include "steered_disk.h"

#include <sys/eventfd.h>

#include "base/checksum.h"
#include "journal/journal.h"
#include "journal/format.h"
#include "journal/scan.h"
#include "base/record.h"

struct rig_worker {
    int segment_fd;
    int bell_fd;
    struct fbk_worker_segment *segment;
    struct fbk_ring ring;
    uint64_t written;
    uint64_t sequence;
};

struct rig {
    struct steered disk;
    struct fbk_journal_options options;
    struct fbk_journal *journal;
    struct fbk_journal_segment *segment; /* read-only, as a worker sees it */
    struct fbk_index_segment *index;
    struct rig_worker workers[FBK_WORKERS_MAX];
    uint32_t worker_count;
    uint64_t seen;                       /* descriptors taken by rig_next_descriptor */
    uint64_t exceptions_seen;
};

#define RIG_EPOCH 7u
#define RIG_INCARNATION 0x1234567890abcdefull

static inline void
rig_make(struct rig *rig, uint32_t worker_count, uint64_t ring_bytes, uint64_t file_bytes)
{
    memset(rig, 0, sizeof *rig);
    steered_make(&rig->disk, file_bytes);
    rig->worker_count = worker_count;
    struct fbk_journal_options *options = &rig->options;
    options->epoch = RIG_EPOCH;
    options->worker_count = worker_count;
    options->segment_fd = fbk_segment_create(FBK_ROLE_JOURNAL, 0, 0, RIG_EPOCH, NULL, 0, 1);
    uint64_t reply_ring = 4096;
    options->index_segment_fd = fbk_segment_create(FBK_ROLE_INDEX, 0, 0, RIG_EPOCH, &reply_ring, 1, worker_count);
    CHECK(options->segment_fd >= 0 && options->index_segment_fd >= 0);
    options->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    options->index_bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int32_t error = 0;
    for (uint32_t w = 0; w < worker_count; w++) {
        struct rig_worker *worker = &rig->workers[w];
        uint64_t rings[2] = {ring_bytes, 4096};
        worker->segment_fd = fbk_segment_create(FBK_ROLE_WORKER, w, 0, RIG_EPOCH, rings, 2, 1);
        worker->segment = fbk_segment_map(worker->segment_fd, FBK_ROLE_WORKER, true, &error);
        CHECK(worker->segment);
        CHECK_EQUAL(fbk_segment_map_ring(worker->segment_fd, &worker->segment->header, 0, 0, true, &worker->ring), 0);
        worker->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        options->worker_segment_fds[w] = worker->segment_fd;
        options->worker_bell_fds[w] = worker->bell_fd;
    }
    options->depth = 2;
    options->quantum_bytes = 64 * 1024;
    options->batch_bytes = 1024 * 1024;
    options->record_bytes_max = (uint32_t)(ring_bytes / 3 & ~7ull);
    options->second_batch_bytes = 64 * 1024;
    options->block_size_bytes = 4096;
    options->ledgers_max = 1000;
    options->incarnation = RIG_INCARNATION;
    snprintf((char *)options->bookie_id, sizeof options->bookie_id, "bookie-1:3181");
    rig->segment = fbk_segment_map(options->segment_fd, FBK_ROLE_JOURNAL, false, &error);
    rig->index = fbk_segment_map(options->index_segment_fd, FBK_ROLE_INDEX, true, &error);
    CHECK(rig->segment && rig->index);
}

static inline void
rig_open(struct rig *rig)
{
    int32_t error = 0;
    rig->journal = fbk_journal_create(&rig->disk.io, &rig->options, &error);
    CHECK_EQUAL(error, 0);
    CHECK(rig->journal);
}

static inline int32_t
rig_roll(struct rig *rig, int32_t file, uint64_t file_id, uint64_t salt)
{
    struct fbk_journal_file next = {.file = file, .file_id = file_id, .salt = salt, .size_bytes = rig->disk.size_bytes[file]};
    uint64_t closed_sequence = 0;
    return fbk_journal_roll(rig->journal, &next, &closed_sequence);
}

static inline void
rig_free(struct rig *rig)
{
    fbk_journal_destroy(rig->journal);
    fbk_segment_unmap(rig->segment, FBK_ROLE_JOURNAL);
    fbk_segment_unmap(rig->index, FBK_ROLE_INDEX);
    close(rig->options.segment_fd);
    close(rig->options.index_segment_fd);
    close(rig->options.bell_fd);
    close(rig->options.index_bell_fd);
    for (uint32_t w = 0; w < rig->worker_count; w++) {
        fbk_segment_unmap_ring(&rig->workers[w].ring);
        fbk_segment_unmap(rig->workers[w].segment, FBK_ROLE_WORKER);
        close(rig->workers[w].segment_fd);
        close(rig->workers[w].bell_fd);
    }
    steered_free(&rig->disk);
}

/* Puts a record into worker w's ring and returns its position.  Fields that are 0 are filled in; `change` is
 * applied to the sealed header, `reseal` seals again behind it. */
static inline uint64_t
rig_put(struct rig *rig, uint32_t w, struct fbk_record record, const void *payload)
{
    struct rig_worker *worker = &rig->workers[w];
    uint64_t position = worker->written;
    record.size_bytes = (uint32_t)fbk_round_up(sizeof record + record.payload_bytes, 8);
    record.sequence = worker->sequence++;
    record.epoch = RIG_EPOCH;
    record.connection_id = 99;
    if (record.kind != FBK_KIND_ADD_BATCH)
        record.body_crc = fbk_crc32c(0, payload, record.payload_bytes);
    else
        record.body_crc = fbk_crc32c(0, payload, record.entry_count * sizeof(struct fbk_batch_item));
    fbk_record_seal(&record);
    uint8_t *to = fbk_ring_at(&worker->ring, position);
    memcpy(to, &record, sizeof record);
    if (record.payload_bytes)
        memcpy(to + sizeof record, payload, record.payload_bytes);
    memset(to + sizeof record + record.payload_bytes, 0, record.size_bytes - sizeof record - record.payload_bytes);
    worker->written += record.size_bytes;
    fbk_cursor_publish(&worker->segment->add_written, worker->written);
    return position;
}

static inline struct fbk_record
rig_record(uint8_t kind, int64_t ledger_id, int64_t entry_id, uint8_t key)
{
    struct fbk_record record = {.kind = kind, .ledger_id = ledger_id, .entry_id = entry_id};
    record.entry_count = kind == FBK_KIND_ADD ? 1 : 0;
    memset(record.master_key, key, sizeof record.master_key);
    return record;
}

static inline uint64_t
rig_add(struct rig *rig, uint32_t w, int64_t ledger_id, int64_t entry_id, uint8_t key, uint16_t flags, uint32_t size_bytes)
{
    uint8_t *payload = malloc(size_bytes);
    test_fill(payload, size_bytes, (uint64_t)ledger_id * 1000003u + (uint64_t)entry_id);
    struct fbk_record record = rig_record(FBK_KIND_ADD, ledger_id, entry_id, key);
    record.payload_bytes = size_bytes;
    record.flags = flags;
    uint64_t position = rig_put(rig, w, record, payload);
    free(payload);
    return position;
}

static inline uint64_t
rig_add_batch(struct rig *rig, uint32_t w, int64_t ledger_id, int64_t entry_id, uint8_t key, uint32_t count, uint32_t size_bytes)
{
    uint32_t bytes = count * (8 + size_bytes);
    uint8_t *payload = malloc(bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *entry = payload + count * 8 + i * size_bytes;
        test_fill(entry, size_bytes, (uint64_t)ledger_id + i);
        fbk_store_u32(payload + i * 8, size_bytes);
        fbk_store_u32(payload + i * 8 + 4, fbk_crc32c(0, entry, size_bytes));
    }
    struct fbk_record record = rig_record(FBK_KIND_ADD_BATCH, ledger_id, entry_id, key);
    record.payload_bytes = bytes;
    record.entry_count = count;
    uint64_t position = rig_put(rig, w, record, payload);
    free(payload);
    return position;
}

static inline uint64_t
rig_fence(struct rig *rig, uint32_t w, int64_t ledger_id, uint8_t key)
{
    return rig_put(rig, w, rig_record(FBK_KIND_FENCE, ledger_id, -1, key), "");
}

/* The oldest published descriptor that was not looked at yet, or NULL. */
static inline const struct fbk_batch_descriptor *
rig_next_descriptor(struct rig *rig)
{
    if (fbk_cursor_load(&rig->segment->published) == rig->seen)
        return NULL;
    const struct fbk_batch_descriptor *descriptor = &rig->segment->descriptors[rig->seen % FBK_DESCRIPTOR_COUNT];
    CHECK_EQUAL(descriptor->order, rig->seen);
    rig->seen++;
    return descriptor;
}

/* What was decided about the record at a position, from the exceptions published so far: 0 = no exception. */
static inline uint32_t
rig_verdict(const struct rig *rig, uint32_t w, uint64_t position)
{
    uint64_t published = fbk_cursor_load(&rig->segment->published);
    if (published == 0)
        return 0;
    uint64_t end = rig->segment->descriptors[(published - 1) % FBK_DESCRIPTOR_COUNT].exceptions_end;
    for (uint64_t i = end > FBK_EXCEPTION_COUNT ? end - FBK_EXCEPTION_COUNT : 0; i < end; i++) {
        const struct fbk_exception *exception = &rig->segment->exceptions[i % FBK_EXCEPTION_COUNT];
        if (exception->worker == w && exception->position == position)
            return exception->verdict;
    }
    return 0;
}

/* All consumers take everything that is published, and give the rings free. */
static inline void
rig_consume(struct rig *rig)
{
    uint64_t published = fbk_cursor_load(&rig->segment->published);
    if (published == 0)
        return;
    const struct fbk_batch_descriptor *last = &rig->segment->descriptors[(published - 1) % FBK_DESCRIPTOR_COUNT];
    for (uint32_t w = 0; w < rig->worker_count; w++) {
        fbk_cursor_store(&rig->workers[w].segment->descriptors_consumed, published);
        fbk_cursor_store(&rig->workers[w].segment->exceptions_consumed, last->exceptions_end);
        fbk_cursor_store(&rig->index->indexed[w], last->ring_end[w]);
    }
    fbk_cursor_store(&rig->index->descriptors_consumed, published);
    fbk_cursor_store(&rig->index->exceptions_consumed, last->exceptions_end);
}

/* Steps until nothing waits and nothing is in flight. */
static inline void
rig_settle(struct rig *rig)
{
    for (int i = 0; i < 10000; i++) {
        int32_t reasons = fbk_journal_step(rig->journal, 0);
        CHECK(reasons >= 0);
        if (reasons & FBK_JOURNAL_ROLL)
            return;
        struct fbk_journal_status status;
        fbk_journal_get_status(rig->journal, &status);
        if (status.waiting_bytes == 0 && status.in_flight == 0)
            return;
    }
    CHECK(!"the journal settles");
}

static inline struct fbk_journal_expectation
rig_expectation(uint64_t file_id)
{
    return (struct fbk_journal_expectation){.file_id = file_id, .incarnation = RIG_INCARNATION, .end_sequence = UINT64_MAX};
}

#endif
