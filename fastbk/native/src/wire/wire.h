/* Frames as the bookie sees them: verified reading of requests (wire/requests.c), template encoding
 * of responses (wire/responses.c).  Pure functions over bytes.  The client's side is in
 * wire/client.h. */
#pragma once

#include "base/layout.h"

/* What an entry leaves free of the largest frame.  Our client's Add takes so much around it, and no
 * reply with one entry takes more (a ReadLac reply that would leaves the explicit LAC out),
 * whatever layout the entry came in. */
#define FBK_ENTRY_ROOM_BYTES 116u

/* A request's fields; pointers into the frame, which may lie at any address.  Which fields mean
 * something follows from `body_type`; the others are 0, NULL. */
struct fbk_request {
    uint64_t request_id;
    /* FBK_REQUEST_BODY_*; 0 = none, or a number that this schema does not know */
    uint32_t body_type;
    uint32_t flags;
    uint32_t creation_mark; /* 0 = not said */
    int64_t ledger_id;
    int64_t entry_id;   /* entry_id, first_entry_id; WriteLac: lac */
    int64_t other_id;   /* ReadBatch: last_entry_id; ReadLac: previous_lac */
    uint32_t count_max; /* ReadBatch: entry_count_max; ListEntries: range_count_max */
    uint32_t size_bytes_max;
    uint32_t timeout_ms;
    uint32_t digest_type;
    const uint8_t *master_key; /* NULL = absent */
    /* Add: the entry; AddBatch: the entries; WriteLac: the body */
    const uint8_t *body;
    uint32_t body_bytes;
    uint32_t entry_count; /* AddBatch: of entry_sizes */
    const uint8_t *entry_sizes;
};

/* frame_bytes: the whole frame with its length.  Returns 0, or FBK_E_PROTOCOL when it is no valid
 * Request. */
int32_t fbk_wire_read_request(const uint8_t *frame, uint32_t frame_bytes,
                              struct fbk_request *request);

/* Encoders write a whole size-prefixed frame at `out` (room for the *_size result is the caller's)
 * and return the bytes written, a multiple of 4. */
#define FBK_WIRE_STATUS_BYTES 36u
#define FBK_WIRE_STATUS_BYTES_MAX 64u
uint32_t fbk_wire_put_status(uint8_t *out, uint64_t request_id, uint32_t status);
#define FBK_WIRE_WAITED_STATUS_BYTES 48u
/* The same with add_wait_us. */
uint32_t fbk_wire_put_waited_status(uint8_t *out, uint64_t request_id, uint32_t status,
                                    uint32_t add_wait_us);

uint32_t fbk_wire_read_size(uint32_t entry_bytes);
/* Entry may be NULL: the caller then copies it to *entry_at before the frame leaves. */
uint32_t fbk_wire_put_read(uint8_t *out, uint64_t request_id, uint32_t status, int64_t entry_id,
                           int64_t lac, const uint8_t *entry, uint32_t entry_bytes,
                           uint8_t **entry_at);

uint32_t fbk_wire_read_batch_size(uint32_t entry_count, uint64_t entries_bytes);
/* Returns the frame's size; *sizes_at (entry_count u32) and *entries_at are to be filled by the
 * caller. */
uint32_t fbk_wire_put_read_batch(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac,
                                 int64_t next_entry_id, uint32_t entry_count,
                                 uint32_t entries_bytes, uint8_t **sizes_at, uint8_t **entries_at);

/* In a frame of any encoder here that has a body; without it, 0. */
void fbk_wire_set_add_wait(uint8_t *frame, uint32_t add_wait_us);

uint32_t fbk_wire_read_lac_size(uint32_t body_bytes, uint32_t entry_bytes);
uint32_t fbk_wire_put_read_lac(uint8_t *out, uint64_t request_id, uint32_t status, int64_t lac,
                               bool fenced, const uint8_t *body, uint32_t body_bytes,
                               int64_t last_entry_id, const uint8_t *entry, uint32_t entry_bytes,
                               uint8_t **entry_at);

uint32_t fbk_wire_list_size(uint32_t range_count);
/* ranges: pairs (first, last). */
uint32_t fbk_wire_put_list(uint8_t *out, uint64_t request_id, uint32_t status,
                           int64_t next_entry_id, const int64_t *ranges, uint32_t range_count);

/* An InfoReply with the figures alone, of a bookie that takes adds. */
#define FBK_WIRE_INFO_BYTES 108u
uint32_t fbk_wire_put_info_reply(uint8_t *out, uint64_t request_id, uint64_t total_bytes,
                                 uint64_t free_bytes);

/* A write service's answer to a Produce. */
#define FBK_WIRE_PRODUCE_REPLY_BYTES 80u
uint32_t fbk_wire_put_produce_reply(uint8_t *out, uint64_t request_id, uint32_t segment,
                                    int64_t entry_id, uint32_t slot);

/* A Produce's fields; pointers into the frame.  numbers: number_count of 8 bytes, any alignment. */
struct fbk_produce {
    uint32_t producer;
    uint32_t record_count;
    int64_t follows;
    int64_t first_number;
    const uint8_t *numbers;
    uint32_t number_count;
    const uint8_t *records;
    uint32_t records_bytes;
};
/* Returns FBK_REQUEST_BODY_* (0: none, or one that this schema does not know) of a request to a
 * write service; FBK_E_PROTOCOL when the frame is no valid Request. */
int32_t fbk_wire_read_service_request(const uint8_t *frame, uint32_t frame_bytes,
                                      uint64_t *request_id, struct fbk_produce *produce);
