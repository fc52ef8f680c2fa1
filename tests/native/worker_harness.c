#include "worker_harness.h"

#include "base/record.h"
#include "base/segment.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct worker_harness *
worker_harness_create(uint32_t pair, uint32_t epoch, uint64_t add_ring, uint64_t request_ring,
                      uint64_t reply_ring)
{
    struct worker_harness *s = calloc(1, sizeof *s);
    const uint64_t rings[] = {add_ring, request_ring};
    int32_t error = 0;
    s->epoch = epoch;
    s->worker_fd = fbk_segment_create(FBK_ROLE_WORKER, 0, pair, epoch, rings, 2, 1);
    s->journal_fd = fbk_segment_create(FBK_ROLE_JOURNAL, pair, pair, epoch, NULL, 0, 1);
    s->index_fd = fbk_segment_create(FBK_ROLE_INDEX, pair, pair, epoch, &reply_ring, 1, 1);
    s->worker_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->journal_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->index_bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->worker = fbk_segment_map(s->worker_fd, FBK_ROLE_WORKER, false, &error);
    s->journal = fbk_segment_map(s->journal_fd, FBK_ROLE_JOURNAL, true, &error);
    s->index = fbk_segment_map(s->index_fd, FBK_ROLE_INDEX, true, &error);
    FBK_ASSERT(s->worker && s->journal && s->index);
    FBK_ASSERT(fbk_segment_map_ring(s->worker_fd, &s->worker->header, 0, 0, false, &s->add_ring) ==
               0);
    FBK_ASSERT(
        fbk_segment_map_ring(s->worker_fd, &s->worker->header, 1, 0, false, &s->request_ring) == 0);
    FBK_ASSERT(fbk_segment_map_ring(s->index_fd, &s->index->header, 0, 0, true, &s->reply_ring) ==
               0);
    worker_harness_grant(s, 1ull << 40);
    return s;
}

void
worker_harness_share_bell(struct worker_harness *s, const struct worker_harness *other)
{
    FBK_ASSERT(dup3(other->worker_bell, s->worker_bell, O_CLOEXEC) == s->worker_bell);
}

void
worker_harness_destroy(struct worker_harness *s)
{
    fbk_segment_unmap_ring(&s->add_ring);
    fbk_segment_unmap_ring(&s->request_ring);
    fbk_segment_unmap_ring(&s->reply_ring);
    fbk_segment_unmap((void *)(uintptr_t)s->worker, FBK_ROLE_WORKER);
    fbk_segment_unmap(s->journal, FBK_ROLE_JOURNAL);
    fbk_segment_unmap(s->index, FBK_ROLE_INDEX);
    const int32_t fds[] = {s->worker_fd,   s->journal_fd,   s->index_fd,
                           s->worker_bell, s->journal_bell, s->index_bell};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        close(fds[i]);
    free(s);
}

int32_t
worker_harness_fd(const struct worker_harness *s, uint32_t which)
{
    const int32_t fds[] = {s->worker_fd,   s->journal_fd,   s->index_fd,
                           s->worker_bell, s->journal_bell, s->index_bell};
    return which < sizeof fds / sizeof fds[0] ? fds[which] : -1;
}

struct fbk_worker_pair
worker_harness_pair(const struct worker_harness *s)
{
    return (struct fbk_worker_pair){s->worker_fd, s->journal_fd, s->index_fd, s->journal_bell,
                                    s->index_bell};
}

static int32_t
next(const struct worker_harness *s, const struct fbk_ring *ring, uint64_t *taken, uint64_t written,
     uint64_t *sequence, struct fbk_record *record, uint8_t *payload, uint32_t payload_max)
{
    int64_t size = fbk_record_take(ring, *taken, written, record);
    if (size == 0)
        return 0;
    if (size < 0 || record->sequence != *sequence || record->epoch != s->epoch ||
        record->payload_bytes > payload_max)
        return -1;
    memcpy(payload, fbk_ring_at(ring, *taken + sizeof *record), record->payload_bytes);
    uint64_t covered = record->payload_bytes;
    if (record->kind == FBK_KIND_ADD_BATCH) {
        covered = sizeof(struct fbk_batch_item) * (uint64_t)record->entry_count;
        uint64_t at = covered;
        for (uint32_t i = 0; i < record->entry_count; i++) {
            struct fbk_batch_item item;
            memcpy(&item, payload + i * sizeof item, sizeof item);
            if (at + item.size_bytes > record->payload_bytes ||
                fbk_crc32c(0, payload + at, item.size_bytes) != item.crc)
                return -1;
            at += item.size_bytes;
        }
        if (at != record->payload_bytes)
            return -1;
    }
    if (fbk_crc32c(0, payload, covered) != record->body_crc)
        return -1;
    for (uint64_t i = sizeof *record + record->payload_bytes; i < record->size_bytes; i++)
        if (*fbk_ring_at(ring, *taken + i) != 0)
            return -1;
    *taken += (uint64_t)size;
    (*sequence)++;
    return 1;
}

int32_t
worker_harness_next(struct worker_harness *s, struct fbk_record *record, uint8_t *payload,
                    uint32_t payload_max)
{
    uint64_t written = fbk_cursor_load(&s->worker->add_written);
    return next(s, &s->add_ring, &s->taken, written, &s->sequence, record, payload, payload_max);
}

int32_t
worker_harness_next_request(struct worker_harness *s, struct fbk_record *record, uint8_t *payload,
                            uint32_t payload_max)
{
    uint64_t written = fbk_cursor_load(&s->worker->request_written);
    int32_t result = next(s, &s->request_ring, &s->request_taken, written, &s->request_sequence,
                          record, payload, payload_max);
    fbk_cursor_publish(&s->index->request_consumed[0], s->request_taken);
    return result;
}

void
worker_harness_except(struct worker_harness *s, uint64_t position, uint32_t verdict)
{
    struct fbk_exception *exception =
        &s->journal->exceptions[s->exceptions++ % FBK_EXCEPTION_COUNT];
    *exception = (struct fbk_exception){.position = position, .worker = 0, .verdict = verdict};
}

uint64_t
worker_harness_position(const struct worker_harness *s)
{
    return s->taken;
}

void
worker_harness_publish(struct worker_harness *s)
{
    struct fbk_batch_descriptor descriptor = {
        .order = s->order, .exceptions_end = s->exceptions, .ring_end = {s->taken}};
    s->journal->descriptors[s->order % FBK_DESCRIPTOR_COUNT] = descriptor;
    s->order++;
    s->published_end = s->taken;
    fbk_cursor_publish(&s->journal->published, s->order);
    worker_harness_ring(s);
}

void
worker_harness_ring(struct worker_harness *s)
{
    if (fbk_bell_needed(&s->worker->sleeper, &s->rung))
        fbk_bell_ring(s->worker_bell);
}

void
worker_harness_index(struct worker_harness *s)
{
    fbk_cursor_publish(&s->index->indexed[0], s->published_end);
    if (fbk_cursor_load(&s->worker->starved))
        worker_harness_ring(s);
}

void
worker_harness_grant(struct worker_harness *s, uint64_t cost)
{
    fbk_cursor_publish(&s->index->cost_granted[0], cost);
    if (fbk_cursor_load(&s->worker->starved))
        worker_harness_ring(s);
}

void
worker_harness_read_only(struct worker_harness *s, uint64_t value)
{
    fbk_cursor_publish(&s->index->reads_only, value);
    if (fbk_cursor_load(&s->worker->starved))
        worker_harness_ring(s);
}

void
worker_harness_reply(struct worker_harness *s, const uint8_t *frame, uint32_t frame_bytes,
                     uint64_t connection_id, uint32_t kind)
{
    struct fbk_reply reply = {
        .size_bytes = (uint32_t)(sizeof reply + fbk_round_up(frame_bytes, 8)),
        .frame_bytes = frame_bytes,
        .connection_id = connection_id,
        .epoch = s->epoch,
        .kind = kind,
    };
    memcpy(fbk_ring_at(&s->reply_ring, s->reply_written), &reply, sizeof reply);
    memcpy(fbk_ring_at(&s->reply_ring, s->reply_written) + sizeof reply, frame, frame_bytes);
    s->reply_written += reply.size_bytes;
    fbk_cursor_publish(&s->index->reply_written[0], s->reply_written);
    worker_harness_ring(s);
}

uint64_t
worker_harness_counter(const struct worker_harness *s, uint32_t counter)
{
    return atomic_load_explicit(
        &((struct fbk_worker_segment *)(uintptr_t)s->worker)->stats.counters[counter],
        memory_order_relaxed);
}

uint8_t *
worker_harness_memory(struct worker_harness *s, uint32_t which)
{
    if (which == 0)
        return (uint8_t *)s->journal;
    return which == 1 ? (uint8_t *)s->index : s->reply_ring.data;
}

uint64_t
worker_harness_offset(const char *field)
{
    static const struct {
        const char *name;
        uint64_t offset;
    } fields[] = {
        {"published", offsetof(struct fbk_journal_segment, published)},
        {"descriptors", offsetof(struct fbk_journal_segment, descriptors)},
        {"exceptions", offsetof(struct fbk_journal_segment, exceptions)},
        {"descriptor.order", offsetof(struct fbk_batch_descriptor, order)},
        {"descriptor.exceptions_end", offsetof(struct fbk_batch_descriptor, exceptions_end)},
        {"descriptor.ring_end", offsetof(struct fbk_batch_descriptor, ring_end)},
        {"indexed", offsetof(struct fbk_index_segment, indexed)},
        {"request_consumed", offsetof(struct fbk_index_segment, request_consumed)},
        {"reply_written", offsetof(struct fbk_index_segment, reply_written)},
    };
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(fields[i].name, field) == 0)
            return fields[i].offset;
    return UINT64_MAX;
}
