/* Frames as the client sees them: encoding of requests from fixed layouts, verified reading of
 * responses.  Pure functions over bytes; no memory of their own. */
#pragma once

#include "base/base.h"
#include "wire/schema.h"

/* Encoders write a whole size-prefixed frame at `out` and return its bytes; room for the *_size
 * result is the caller's. master_key: 20 bytes. */

/* Names the creation that a request means, in a frame of any encoder here but that of a batch add,
 * which takes it; without it, none. */
void fbk_wire_set_creation_mark(uint8_t *frame, uint32_t creation_mark);

#define FBK_WIRE_ADD_HEAD_BYTES 116u
/* The entry comes last, nothing behind it: a frame is this head and then the entry's bytes,
 * wherever those are. */
uint32_t fbk_wire_add_size(uint32_t entry_bytes);
/* entry NULL: only the head is written; the caller puts entry_bytes bytes at *entry_at (may be
 * NULL) before the frame leaves.  Returns the whole frame's size either way. */
uint32_t fbk_wire_put_add(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t entry_id,
                          uint32_t flags, uint32_t digest_type, const uint8_t *master_key,
                          const uint8_t *entry, uint32_t entry_bytes, uint8_t **entry_at);

uint32_t fbk_wire_add_batch_size(uint32_t entry_count, uint64_t entries_bytes);
/* *sizes_at (entry_count u32) and *entries_at (entries_bytes) are to be filled by the caller. */
uint32_t fbk_wire_put_add_batch(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                int64_t first_entry_id, uint32_t flags, uint32_t digest_type,
                                const uint8_t *master_key, uint32_t creation_mark,
                                uint32_t entry_count, uint32_t entries_bytes, uint8_t **sizes_at,
                                uint8_t **entries_at);

/* of each of the following, but for bodies and names */
#define FBK_WIRE_REQUEST_BYTES_MAX 128u
/* master_key NULL: left out (a fencing read needs it). */
uint32_t fbk_wire_put_read_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                   int64_t entry_id, uint32_t flags, const uint8_t *master_key);
uint32_t fbk_wire_put_read_batch_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                         int64_t first_entry_id, int64_t last_entry_id,
                                         uint32_t entry_count_max, uint32_t size_bytes_max);
uint32_t fbk_wire_put_read_lac_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                       int64_t previous_lac, uint32_t timeout_ms, uint32_t flags);
/* FBK_WIRE_REQUEST_BYTES_MAX + body_bytes. */
uint32_t fbk_wire_put_write_lac(uint8_t *out, uint64_t request_id, int64_t ledger_id, int64_t lac,
                                const uint8_t *master_key, const uint8_t *body,
                                uint32_t body_bytes);
uint32_t fbk_wire_put_force(uint8_t *out, uint64_t request_id, int64_t ledger_id);
uint32_t fbk_wire_put_list_request(uint8_t *out, uint64_t request_id, int64_t ledger_id,
                                   int64_t first_entry_id, uint32_t range_count_max);
uint32_t fbk_wire_put_ping(uint8_t *out, uint64_t request_id);
uint32_t fbk_wire_put_info(uint8_t *out, uint64_t request_id);
/* FBK_WIRE_REQUEST_BYTES_MAX + name_bytes. */
uint32_t fbk_wire_put_hello(uint8_t *out, uint64_t request_id, uint32_t version_min,
                            uint32_t version_max, const uint8_t *name, uint32_t name_bytes);

uint32_t fbk_wire_produce_size(uint32_t number_count, uint32_t records_bytes);
/* numbers NULL: they are first_number and the following. */
uint32_t fbk_wire_put_produce(uint8_t *out, uint64_t request_id, uint32_t producer, int64_t follows,
                              int64_t first_number, uint32_t record_count, const int64_t *numbers,
                              const uint8_t *records, uint32_t records_bytes);

/* A response's fields; pointers into the frame.  Which mean something follows from body_type; the
 * others are 0, NULL. */
struct fbk_response {
    uint64_t request_id;
    uint32_t status;
    uint32_t add_wait_us; /* 0: not said */
    /* FBK_RESPONSE_BODY_*; 0 = none, or a number that this schema does not know */
    uint32_t body_type;
    int64_t lac; /* ReadReply, ReadBatchReply, ReadLacReply */
    /* ReadReply: entry_id; ReadBatchReply, ListEntriesReply: next_entry_id; ReadLacReply:
     * last_entry_id; ProduceReply: entry */
    int64_t entry_id;
    /* ReadReply: entry; ReadBatchReply: entries; ReadLacReply: last_entry */
    const uint8_t *entry;
    uint32_t entry_bytes;
    /* ReadBatchReply: of entry_sizes; their sum equals entry_bytes (checked) */
    uint32_t entry_count;
    const uint8_t *entry_sizes; /* u32 each, any alignment */
    const uint8_t *lac_body;
    uint32_t lac_body_bytes;
    uint32_t fenced;
    const uint8_t *ranges; /* ListEntriesReply: pairs of i64, any alignment */
    uint32_t range_count;
    uint32_t segment; /* ProduceReply; 0: all of it was stored before */
    uint32_t slot;
    /* HelloReply, and the limits that come with it; names and texts are read in Python */
    uint32_t version;
    uint32_t frame_size_bytes_max;
    uint32_t batch_entry_count_max;
    uint32_t pending_requests_max;
    uint64_t incarnation;
};

/* frame_bytes: the whole frame with its length.  Returns 0, or FBK_E_PROTOCOL when it is no valid
 * Response. */
int32_t fbk_wire_read_response(const uint8_t *frame, uint32_t frame_bytes,
                               struct fbk_response *response);

/* The same of a frame that one of the bookie's own indexes wrote (status, ReadReply,
 * ReadBatchReply, ReadLacReply, ListEntriesReply; wire/responses.c): by its constants, whatever
 * happens to the frame's memory meanwhile.  A batch's sizes need not add up to entry_bytes. */
int32_t fbk_wire_read_own_response(const uint8_t *frame, uint32_t frame_bytes,
                                   struct fbk_response *response);
