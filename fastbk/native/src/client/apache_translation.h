/* The inside of a lane (boundary/apache_lane.h): what is under way at the bookie, and buffers.
 *
 * Version 3 answers carry a number: our request id, or, for what takes several requests of Apache's, that of a *context*
 * and the step in it.  Version 2 answers name the ledger and the entry only: its adds and plain reads are remembered in
 * order (struct fbk_asked_map).  A context whose answer nobody waits for stays until the bookie has answered all of it,
 * so that a late answer can't be taken for another's. */
#ifndef FBK_APACHE_LANE_H
#define FBK_APACHE_LANE_H

#include "apache/apache.h"
#include "base/base.h"
#include "wire/wire.h"

#include "boundary/apache_lane.h"
#include "boundary/status.h"

struct fbk_bytes {
    uint8_t *bytes;
    uint64_t used_bytes;
    uint64_t room_bytes;
};
/* Room for so many more bytes; where they go, NULL without memory. */
uint8_t *fbk_bytes_reserve(struct fbk_bytes *buffer, uint64_t size_bytes);
int32_t fbk_bytes_append(struct fbk_bytes *buffer, const uint8_t *bytes, uint64_t size_bytes);

/* ------------------------------------------------------------------ version 2: who asked for that entry? */

struct fbk_asked_item {
    uint64_t id;
    int64_t ledger_id;
    int64_t entry_id;
    uint32_t operation;
    uint32_t next; /* of the same bucket, oldest first, or of the free ones; 0 = none, else index + 1 */
};

struct fbk_asked_map {
    struct fbk_asked_item *items;
    uint32_t *heads; /* bucket_count of them */
    uint32_t *tails;
    uint32_t bucket_count; /* a power of two, also how many items there are */
    uint32_t used;
    uint32_t free; /* index + 1 */
};

#define FBK_ASKED_MAX (1u << 20)

/* 0, FBK_E_FULL (without memory, or FBK_ASKED_MAX are under way). */
int32_t fbk_asked_put(struct fbk_asked_map *map, uint32_t operation, int64_t ledger_id, int64_t entry_id, uint64_t id);
/* The oldest that asked for it, taken out; false: none. */
bool fbk_asked_take(struct fbk_asked_map *map, uint32_t operation, int64_t ledger_id, int64_t entry_id, uint64_t *id);

/* ------------------------------------------------------------------ contexts */

enum fbk_lane_kind {
    FBK_LANE_FREE,
    FBK_LANE_HELLO,
    FBK_LANE_INFO,
    FBK_LANE_POLL,  /* a read that waits; then perhaps a question for the LAC's proof */
    FBK_LANE_PROOF,
    FBK_LANE_LIST,
    FBK_LANE_RUN,   /* ReadBatch as one request of version 2 */
    FBK_LANE_BATCH, /* ReadBatch as single reads */
};

/* One read of a BATCH. */
struct fbk_lane_part {
    uint64_t from; /* the entry's bytes in `bytes` of the context */
    uint32_t size_bytes;
    uint32_t status; /* FBK_APACHE_E*, FBK_LANE_WAITING */
};
#define FBK_LANE_WAITING UINT32_MAX

struct fbk_lane_context {
    enum fbk_lane_kind kind;
    bool is_forgotten;
    uint64_t request_id;
    int64_t ledger_id;
    int64_t first; /* the first entry; POLL: previous_lac */
    uint32_t count_max;
    uint64_t size_bytes_max;
    bool is_piggyback;
    /* BATCH */
    uint32_t sent;
    uint32_t answered;
    bool is_over; /* no more is asked for */
    int64_t lac;
    struct fbk_lane_part *parts;
    struct fbk_bytes entries;
};

#define FBK_LANE_CONTEXTS_MAX 4096u
/* Numbers that no request of ours has: its slot (connection.py) is above the last one that is given out. */
#define FBK_LANE_ID_BASE (0xffffffull << 40)
#define FBK_LANE_PART_BITS 16u
/* Single reads of one batch under way at once, until the sizes of entries are known and after that. */
#define FBK_LANE_FIRST_READS 8u
#define FBK_LANE_READS_MAX 64u
#define FBK_LANE_BATCH_ENTRIES_MAX 4096u
#define FBK_LANE_RANGES_MAX (1u << 20)

struct fbk_apache_lane {
    uint32_t protocol;
    uint32_t frame_size_bytes_max;
    bool takes_batches;
    bool has_batch_answer;
    bool has_batch_request;
    uint64_t dropped;
    struct fbk_bytes in;      /* the beginning of a frame of the bookie's */
    struct fbk_bytes out;     /* to the bookie */
    struct fbk_bytes answers; /* to the client */
    struct fbk_asked_map asked;
    struct fbk_lane_context *contexts; /* FBK_LANE_CONTEXTS_MAX of them; those from context_end on were never used */
    uint32_t context_end;
};

/* Asks the bookie; `id` comes back with the answer.  0, FBK_E_FULL; *status is not FBK_S_OK when it can't be asked. */
int32_t fbk_lane_send(struct fbk_apache_lane *lane, struct fbk_apache_request *request, uint64_t id, uint32_t *status);
uint64_t fbk_lane_id(const struct fbk_apache_lane *lane, const struct fbk_lane_context *context, uint32_t part);
/* Sends the single reads that are due.  0, FBK_E_FULL. */
int32_t fbk_lane_read_on(struct fbk_apache_lane *lane, struct fbk_lane_context *context);
/* NULL: FBK_LANE_CONTEXTS_MAX are under way. */
struct fbk_lane_context *fbk_lane_new_context(struct fbk_apache_lane *lane, enum fbk_lane_kind kind,
                                              const struct fbk_request *asked);
void fbk_lane_end(struct fbk_lane_context *context);
/* 0, FBK_E_FULL. */
int32_t fbk_lane_answer_status(struct fbk_apache_lane *lane, uint64_t request_id, uint32_t status);

#endif
