/* Plays journal and index for a worker under test: real segments, but every decision is the
 * test's. */
#pragma once

#include "base/layout.h"
#include "base/ring.h"
#include "worker/worker.h"

struct worker_harness {
    int32_t worker_fd, journal_fd, index_fd;
    int32_t worker_bell, journal_bell, index_bell;
    uint32_t epoch;
    const struct fbk_worker_segment *worker;
    struct fbk_journal_segment *journal;
    struct fbk_index_segment *index;
    struct fbk_ring add_ring, request_ring, reply_ring;
    uint64_t taken, sequence;
    uint64_t request_taken, request_sequence;
    uint64_t order, exceptions, published_end;
    uint64_t reply_written;
    uint64_t rung;
};

#define STAND_IN __attribute__((visibility("default")))

/* Makes three segments and three bells of one pair.  NULL when the machine has no memory files. */
STAND_IN struct worker_harness *worker_harness_create(uint32_t pair, uint32_t epoch,
                                                      uint64_t add_ring, uint64_t request_ring,
                                                      uint64_t reply_ring);
/* This pair rings the bell of another one, as those of one worker do. */
STAND_IN void worker_harness_share_bell(struct worker_harness *s,
                                        const struct worker_harness *other);
STAND_IN void worker_harness_destroy(struct worker_harness *s);
/* worker, journal, index, then their bells */
STAND_IN int32_t worker_harness_fd(const struct worker_harness *s, uint32_t which);

/* What a worker is told of this pair. */
struct fbk_worker_pair worker_harness_pair(const struct worker_harness *s);

/* The next record of the add ring: 1 and its header and payload (at most payload_max bytes), 0 =
 * none, -1 = it is not one. */
STAND_IN int32_t worker_harness_next(struct worker_harness *s, struct fbk_record *record,
                                     uint8_t *payload, uint32_t payload_max);
STAND_IN int32_t worker_harness_next_request(struct worker_harness *s, struct fbk_record *record,
                                             uint8_t *payload, uint32_t payload_max);
/* A verdict for the record at this ring position, in the next batch. */
STAND_IN void worker_harness_except(struct worker_harness *s, uint64_t position, uint32_t verdict);
/* of what worker_harness_next gives next */
STAND_IN uint64_t worker_harness_position(const struct worker_harness *s);
/* A batch with all that was taken, and the worker's bell. */
STAND_IN void worker_harness_publish(struct worker_harness *s);
/* The index took everything published into its cache, and grants so much more. */
STAND_IN void worker_harness_index(struct worker_harness *s);
STAND_IN void worker_harness_grant(struct worker_harness *s, uint64_t cost);
STAND_IN void worker_harness_read_only(struct worker_harness *s, uint64_t value);
STAND_IN void worker_harness_reply(struct worker_harness *s, const uint8_t *frame,
                                   uint32_t frame_bytes, uint64_t connection_id, uint32_t kind);
STAND_IN void worker_harness_ring(struct worker_harness *s);
STAND_IN uint64_t worker_harness_counter(const struct worker_harness *s, uint32_t counter);
/* Raw memory of the segments, to be spoilt: 0 journal, 1 index, 2 reply ring. */
STAND_IN uint8_t *worker_harness_memory(struct worker_harness *s, uint32_t which);
STAND_IN uint64_t worker_harness_offset(const char *field);
