/* What the journal's C tests stand on: the other processes' segments, with a producer that writes
 * records into the rings as a worker does. */
#pragma once

#include "steered_disk.h"

#include <sys/eventfd.h>

#include "base/checksum.h"
#include "journal/journal.h"
#include "journal/format.h"
#include "journal/scan.h"
#include "base/record.h"

struct harness_worker {
    int segment_fd;
    int bell_fd;
    struct fbk_worker_segment *segment;
    struct fbk_ring ring;
    uint64_t written;
    uint64_t sequence;
};

struct harness {
    struct steered disk;
    struct fbk_journal_options options;
    struct fbk_journal *journal;
    struct fbk_journal_segment *segment; /* read-only, as a worker sees it */
    struct fbk_index_segment *index;
    struct harness_worker workers[FBK_WORKERS_MAX];
    uint32_t worker_count;
    uint32_t adopts;
    uint64_t seen; /* descriptors taken by harness_next_descriptor */
    uint64_t exceptions_seen;
};

#define RIG_EPOCH 7u
#define RIG_INCARNATION 0x1234567890abcdefull

static inline void
harness_make(struct harness *harness, uint32_t worker_count, uint64_t ring_bytes,
             uint64_t file_bytes)
{
    memset(harness, 0, sizeof *harness);
    steered_make(&harness->disk, file_bytes);
    harness->worker_count = worker_count;
    struct fbk_journal_options *options = &harness->options;
    options->epoch = RIG_EPOCH;
    options->worker_count = worker_count;
    uint64_t tail_ring = 4 * 1024 * 1024;
    options->segment_fd = fbk_segment_create(FBK_ROLE_JOURNAL, 0, 0, RIG_EPOCH, &tail_ring, 1, 1);
    uint64_t reply_ring = 4096;
    options->index_segment_fd =
        fbk_segment_create(FBK_ROLE_INDEX, 0, 0, RIG_EPOCH, &reply_ring, 1, worker_count);
    CHECK(options->segment_fd >= 0 && options->index_segment_fd >= 0);
    options->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    options->index_bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int32_t error = 0;
    for (uint32_t w = 0; w < worker_count; w++) {
        struct harness_worker *worker = &harness->workers[w];
        uint64_t rings[2] = {ring_bytes, 4096};
        worker->segment_fd = fbk_segment_create(FBK_ROLE_WORKER, w, 0, RIG_EPOCH, rings, 2, 1);
        worker->segment = fbk_segment_map(worker->segment_fd, FBK_ROLE_WORKER, true, &error);
        CHECK(worker->segment);
        CHECK_EQUAL(fbk_segment_map_ring(worker->segment_fd, &worker->segment->header, 0, 0, true,
                                         &worker->ring),
                    0);
        worker->bell_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
        options->worker_segment_fds[w] = worker->segment_fd;
        options->worker_bell_fds[w] = worker->bell_fd;
    }
    options->depth = 2;
    options->quantum_bytes = 64 * 1024;
    options->run_bytes_min = 32 * 1024;
    options->batch_size_bytes_max = 1024 * 1024;
    options->record_bytes_max = (uint32_t)(ring_bytes / 3 & ~7ull);
    options->second_batch_bytes_min = 64 * 1024;
    options->block_size_bytes = 4096;
    options->ledgers_max = 1000;
    options->incarnation = RIG_INCARNATION;
    snprintf((char *)options->bookie_id, sizeof options->bookie_id, "bookie-1:3181");
    harness->segment = fbk_segment_map(options->segment_fd, FBK_ROLE_JOURNAL, false, &error);
    harness->index = fbk_segment_map(options->index_segment_fd, FBK_ROLE_INDEX, true, &error);
    CHECK(harness->segment && harness->index);
}

static inline void
harness_open(struct harness *harness)
{
    int32_t error = 0;
    harness->journal = fbk_journal_create(&harness->disk.io, &harness->options, &error);
    CHECK_EQUAL(error, 0);
    CHECK(harness->journal);
}

static inline int32_t
harness_roll(struct harness *harness, int32_t file, uint64_t file_id, uint64_t salt)
{
    struct fbk_journal_file next = {.file = file,
                                    .adopts = harness->adopts,
                                    .file_id = file_id,
                                    .salt = salt,
                                    .size_bytes = harness->disk.size_bytes[file]};
    uint64_t closed_sequence = 0;
    return fbk_journal_roll(harness->journal, &next, &closed_sequence);
}

static inline void
harness_free(struct harness *harness)
{
    fbk_journal_destroy(harness->journal);
    fbk_segment_unmap(harness->segment, FBK_ROLE_JOURNAL);
    fbk_segment_unmap(harness->index, FBK_ROLE_INDEX);
    close(harness->options.segment_fd);
    close(harness->options.index_segment_fd);
    close(harness->options.bell_fd);
    close(harness->options.index_bell_fd);
    for (uint32_t w = 0; w < harness->worker_count; w++) {
        fbk_segment_unmap_ring(&harness->workers[w].ring);
        fbk_segment_unmap(harness->workers[w].segment, FBK_ROLE_WORKER);
        close(harness->workers[w].segment_fd);
        close(harness->workers[w].bell_fd);
    }
    steered_free(&harness->disk);
}

/* Puts a record into worker w's ring and returns its position.  Fields that are 0 are filled in;
 * `change` is applied to the sealed header, `reseal` seals again behind it. */
static inline uint64_t
harness_put(struct harness *harness, uint32_t w, struct fbk_record record, const void *payload)
{
    struct harness_worker *worker = &harness->workers[w];
    uint64_t position = worker->written;
    record.size_bytes = (uint32_t)fbk_round_up(sizeof record + record.payload_bytes, 8);
    record.sequence = worker->sequence++;
    record.epoch = RIG_EPOCH;
    record.connection_id = 99;
    if (record.kind != FBK_KIND_ADD_BATCH)
        record.body_crc = fbk_crc32c(0, payload, record.payload_bytes);
    else
        record.body_crc =
            fbk_crc32c(0, payload, record.entry_count * sizeof(struct fbk_batch_item));
    fbk_record_seal(&record);
    uint8_t *to = fbk_ring_at(&worker->ring, position);
    memcpy(to, &record, sizeof record);
    if (record.payload_bytes)
        memcpy(to + sizeof record, payload, record.payload_bytes);
    memset(to + sizeof record + record.payload_bytes, 0,
           record.size_bytes - sizeof record - record.payload_bytes);
    worker->written += record.size_bytes;
    fbk_cursor_publish(&worker->segment->add_written, worker->written);
    return position;
}

static inline struct fbk_record
harness_record(uint8_t kind, int64_t ledger_id, int64_t entry_id, uint8_t key)
{
    struct fbk_record record = {.kind = kind, .ledger_id = ledger_id, .entry_id = entry_id};
    record.entry_count = kind == FBK_KIND_ADD ? 1 : 0;
    memset(record.master_key, key, sizeof record.master_key);
    return record;
}

static inline uint64_t
harness_add(struct harness *harness, uint32_t w, int64_t ledger_id, int64_t entry_id, uint8_t key,
            uint16_t flags, uint32_t size_bytes)
{
    uint8_t *payload = malloc(size_bytes);
    test_fill(payload, size_bytes, (uint64_t)ledger_id * 1000003u + (uint64_t)entry_id);
    struct fbk_record record = harness_record(FBK_KIND_ADD, ledger_id, entry_id, key);
    record.payload_bytes = size_bytes;
    record.flags = flags;
    uint64_t position = harness_put(harness, w, record, payload);
    free(payload);
    return position;
}

static inline uint64_t
harness_add_batch(struct harness *harness, uint32_t w, int64_t ledger_id, int64_t entry_id,
                  uint8_t key, uint32_t count, uint32_t size_bytes)
{
    uint32_t bytes = count * (8 + size_bytes);
    uint8_t *payload = malloc(bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *entry = payload + count * 8 + i * size_bytes;
        test_fill(entry, size_bytes, (uint64_t)ledger_id + i);
        fbk_store_u32(payload + i * 8, size_bytes);
        fbk_store_u32(payload + i * 8 + 4, fbk_crc32c(0, entry, size_bytes));
    }
    struct fbk_record record = harness_record(FBK_KIND_ADD_BATCH, ledger_id, entry_id, key);
    record.payload_bytes = bytes;
    record.entry_count = count;
    uint64_t position = harness_put(harness, w, record, payload);
    free(payload);
    return position;
}

static inline uint64_t
harness_fence(struct harness *harness, uint32_t w, int64_t ledger_id, uint8_t key)
{
    return harness_put(harness, w, harness_record(FBK_KIND_FENCE, ledger_id, -1, key), "");
}

/* The oldest published descriptor that was not looked at yet, or NULL. */
static inline const struct fbk_batch_descriptor *
harness_next_descriptor(struct harness *harness)
{
    if (fbk_cursor_load(&harness->segment->published) == harness->seen)
        return NULL;
    const struct fbk_batch_descriptor *descriptor =
        &harness->segment->descriptors[harness->seen % FBK_DESCRIPTOR_COUNT];
    CHECK_EQUAL(descriptor->order, harness->seen);
    harness->seen++;
    return descriptor;
}

/* What was decided about the record at a position, from the exceptions published so far: 0 = no
 * exception. */
static inline uint32_t
harness_verdict(const struct harness *harness, uint32_t w, uint64_t position)
{
    uint64_t published = fbk_cursor_load(&harness->segment->published);
    if (published == 0)
        return 0;
    uint64_t end =
        harness->segment->descriptors[(published - 1) % FBK_DESCRIPTOR_COUNT].exceptions_end;
    for (uint64_t i = end > FBK_EXCEPTION_COUNT ? end - FBK_EXCEPTION_COUNT : 0; i < end; i++) {
        const struct fbk_exception *exception =
            &harness->segment->exceptions[i % FBK_EXCEPTION_COUNT];
        if (exception->worker == w && exception->position == position)
            return exception->verdict;
    }
    return 0;
}

/* All consumers take everything that is published, and give the rings free. */
static inline void
harness_consume(struct harness *harness)
{
    uint64_t published = fbk_cursor_load(&harness->segment->published);
    if (published == 0)
        return;
    const struct fbk_batch_descriptor *last =
        &harness->segment->descriptors[(published - 1) % FBK_DESCRIPTOR_COUNT];
    for (uint32_t w = 0; w < harness->worker_count; w++) {
        fbk_cursor_store(&harness->workers[w].segment->descriptors_consumed, published);
        fbk_cursor_store(&harness->workers[w].segment->exceptions_consumed, last->exceptions_end);
        fbk_cursor_store(&harness->index->indexed[w], last->ring_end[w]);
    }
    fbk_cursor_store(&harness->index->descriptors_consumed, published);
    fbk_cursor_store(&harness->index->exceptions_consumed, last->exceptions_end);
}

/* Steps until nothing waits and nothing is in flight. */
static inline void
harness_settle(struct harness *harness)
{
    for (int i = 0; i < 10000; i++) {
        int32_t reasons = fbk_journal_step(harness->journal, 0);
        CHECK(reasons >= 0);
        if (reasons & FBK_JOURNAL_ROLL)
            return;
        struct fbk_journal_status status;
        fbk_journal_get_status(harness->journal, &status);
        if (status.waiting_bytes == 0 && status.in_flight == 0)
            return;
    }
    CHECK(!"the journal settles");
}

static inline struct fbk_journal_expectation
harness_expectation(uint64_t file_id)
{
    return (struct fbk_journal_expectation){
        .file_id = file_id, .incarnation = RIG_INCARNATION, .end_sequence = UINT64_MAX};
}
