/* What an index answers, encoded as an index does it, for tests in Python. */
#include "worker_harness.h"

#include "wire/wire.h"

#include <stdlib.h>

struct answer {
    struct worker_harness *s;
    uint64_t connection_id, request_id;
    uint32_t kind;
};

STAND_IN void worker_harness_say_status(struct answer to, uint32_t status);
STAND_IN void worker_harness_say_read(struct answer to, int64_t entry_id, int64_t lac,
                                      const uint8_t *entry, uint32_t entry_bytes);
STAND_IN void worker_harness_say_batch(struct answer to, int64_t next, const uint8_t *sizes,
                                       uint32_t count, const uint8_t *entries,
                                       uint32_t entries_bytes);
STAND_IN void worker_harness_say_lac(struct answer to, int64_t lac, const uint8_t *body,
                                     uint32_t body_bytes, int64_t entry_id, const uint8_t *entry,
                                     uint32_t entry_bytes);
STAND_IN void worker_harness_say_list(struct answer to, int64_t next, const int64_t *ranges,
                                      uint32_t count);

static void
say(struct answer to, uint8_t *frame, uint32_t frame_bytes)
{
    worker_harness_reply(to.s, frame, frame_bytes, to.connection_id, to.kind);
    free(frame);
}

void
worker_harness_say_status(struct answer to, uint32_t status)
{
    uint8_t *frame = malloc(FBK_WIRE_STATUS_BYTES_MAX);
    say(to, frame, fbk_wire_put_status(frame, to.request_id, status));
}

void
worker_harness_say_read(struct answer to, int64_t entry_id, int64_t lac, const uint8_t *entry,
                        uint32_t entry_bytes)
{
    uint8_t *frame = malloc(fbk_wire_read_size(entry_bytes));
    say(to, frame,
        fbk_wire_put_read(frame, to.request_id, FBK_S_OK, entry_id, lac, entry, entry_bytes, NULL));
}

void
worker_harness_say_batch(struct answer to, int64_t next, const uint8_t *sizes, uint32_t count,
                         const uint8_t *entries, uint32_t entries_bytes)
{
    uint8_t *frame = malloc(fbk_wire_read_batch_size(count, entries_bytes)), *sizes_at, *entries_at;
    uint32_t bytes = fbk_wire_put_read_batch(frame, to.request_id, FBK_S_OK, 0, next, count,
                                             entries_bytes, &sizes_at, &entries_at);
    memcpy(sizes_at, sizes, 4ull * count);
    memcpy(entries_at, entries, entries_bytes);
    say(to, frame, bytes);
}

void
worker_harness_say_lac(struct answer to, int64_t lac, const uint8_t *body, uint32_t body_bytes,
                       int64_t entry_id, const uint8_t *entry, uint32_t entry_bytes)
{
    uint8_t *frame = malloc(fbk_wire_read_lac_size(body_bytes, entry_bytes));
    say(to, frame,
        fbk_wire_put_read_lac(frame, to.request_id, FBK_S_OK, lac, false, body, body_bytes,
                              entry_id, entry, entry_bytes, NULL));
}

void
worker_harness_say_list(struct answer to, int64_t next, const int64_t *ranges, uint32_t count)
{
    uint8_t *frame = malloc(fbk_wire_list_size(count));
    say(to, frame, fbk_wire_put_list(frame, to.request_id, FBK_S_OK, next, ranges, count));
}
