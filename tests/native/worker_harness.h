/* Plays journal and index for a worker under test: real segments, but every decision is the test's. */
#ifndef FBK_STAND_IN_H
#define FBK_STAND_IN_H

#include "base/layout.h"
#include "base/ring.h"
#include "worker/worker.h"

struct stand_in {
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
STAND_IN struct stand_in *stand_in_create(uint32_t pair, uint32_t epoch, uint64_t add_ring, uint64_t request_ring,
                                          uint64_t reply_ring);
/* This pair rings the bell of another one, as those of one worker do. */
STAND_IN void stand_in_share_bell(struct stand_in *s, const struct stand_in *other);
STAND_IN void stand_in_destroy(struct stand_in *s);
STAND_IN int32_t stand_in_fd(const struct stand_in *s, uint32_t which); /* worker, journal, index, then their bells */

/* What a worker is told of this pair. */
struct fbk_worker_pair stand_in_pair(const struct stand_in *s);

/* The next record of the add ring: 1 and its header and payload (at most payload_max bytes), 0 = none, -1 = it is not one. */
STAND_IN int32_t stand_in_next(struct stand_in *s, struct fbk_record *record, uint8_t *payload, uint32_t payload_max);
STAND_IN int32_t stand_in_next_request(struct stand_in *s, struct fbk_record *record, uint8_t *payload, uint32_t payload_max);
/* A verdict for the record at this ring position, in the next batch. */
STAND_IN void stand_in_except(struct stand_in *s, uint64_t position, uint32_t verdict);
STAND_IN uint64_t stand_in_position(const struct stand_in *s); /* of what stand_in_next gives next */
/* A batch with all that was taken, and the worker's bell. */
STAND_IN void stand_in_publish(struct stand_in *s);
/* The index took everything published into its cache, and grants so much more. */
STAND_IN void stand_in_index(struct stand_in *s);
STAND_IN void stand_in_grant(struct stand_in *s, uint64_t cost);
STAND_IN void stand_in_read_only(struct stand_in *s, uint64_t value);
STAND_IN void stand_in_reply(struct stand_in *s, const uint8_t *frame, uint32_t frame_bytes, uint64_t connection_id, uint32_t kind);
STAND_IN void stand_in_ring(struct stand_in *s);
STAND_IN uint64_t stand_in_counter(const struct stand_in *s, uint32_t counter);
/* Raw memory of the segments, to be spoilt: 0 journal, 1 index, 2 reply ring. */
STAND_IN uint8_t *stand_in_memory(struct stand_in *s, uint32_t which);
STAND_IN uint64_t stand_in_offset(const char *field);

#endif
