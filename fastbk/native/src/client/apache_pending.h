/* Buffers that grow, and which request of version 2 a reply of Apache's belongs to. */
#pragma once

#include "base/base.h"

#include "boundary/status.h"

struct fbk_bytes {
    uint8_t *bytes;
    uint64_t used_bytes;
    uint64_t room_bytes;
};
/* Room for so many more bytes; where they go, NULL without memory. */
uint8_t *fbk_bytes_reserve(struct fbk_bytes *buffer, uint64_t size_bytes);
int32_t fbk_bytes_append(struct fbk_bytes *buffer, const uint8_t *bytes, uint64_t size_bytes);

/* ------------ version 2: who asked for that entry? */

struct fbk_pending_item {
    uint64_t id;
    int64_t ledger_id;
    int64_t entry_id;
    uint32_t operation;
    /* of the same bucket, oldest first, or of the free ones; 0 = none, else index + 1 */
    uint32_t next;
};

struct fbk_pending_map {
    struct fbk_pending_item *items;
    uint32_t *heads; /* bucket_count of them */
    uint32_t *tails;
    uint32_t bucket_count; /* a power of two, also how many items there are */
    uint32_t used;
    uint32_t free; /* index + 1 */
};

#define FBK_PENDING_MAX (1u << 20)

/* 0, FBK_E_FULL (without memory, or FBK_PENDING_MAX are under way). */
int32_t fbk_pending_put(struct fbk_pending_map *map, uint32_t operation, int64_t ledger_id,
                        int64_t entry_id, uint64_t id);
/* The oldest that asked for it, taken out; false: none. */
bool fbk_pending_take(struct fbk_pending_map *map, uint32_t operation, int64_t ledger_id,
                      int64_t entry_id, uint64_t *id);
