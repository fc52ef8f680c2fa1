/* Entries that are taken in but not yet flushed: one arena filled from the front, found by (ledger, entry), walked by
 * ledger in the order they came in.
 *
 * An item is a 48-byte header and the entry, so an entry costs fbk_cache_cost() of the arena, which is what credit
 * counts.  Items are named by references: position in the arena / 8, + 1; 0 = none.
 *
 * One thread inserts.  Once sealed nothing changes any more until fbk_cache_reset, so the flush thread may read it
 * beside the main loop without a lock. */
#pragma once

#include "base/layout.h"
#include "store/store.h"

struct fbk_cache_item {
    int64_t ledger_id;
    int64_t entry_id;
    uint32_t size_bytes;
    uint32_t crc;         /* CRC32C of the entry's bytes as they were copied in */
    uint32_t bucket_next; /* an earlier item in the same bucket */
    uint32_t ledger_next; /* the item of this ledger that came in next */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct fbk_cache_item) == FBK_CACHE_ITEM_HEADER_BYTES, "cache item header");

struct fbk_cache_ledger {
    int64_t ledger_id; /* -1 = empty slot */
    int64_t first_entry_id; /* smallest and largest id held */
    int64_t last_entry_id;
    uint32_t head;
    uint32_t tail;
    uint32_t item_count;
    uint32_t unsorted;  /* 1: some item came in below one before it */
};

struct fbk_write_cache {
    uint8_t *arena;
    uint64_t capacity_bytes;
    uint64_t used_bytes;
    uint64_t item_count;
    uint64_t seed;             /* of the hash: ids come from outside */
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t ledger_mask;      /* slots - 1 */
    struct fbk_cache_ledger *ledgers;
    uint32_t ledger_count;
    uint32_t last_slot;        /* of the ledger inserted to last */
    uint32_t reserved_bytes;   /* of the entry between reserve and commit; 0 = none */
    bool sealed;
};

int32_t fbk_cache_init(struct fbk_write_cache *cache, uint64_t capacity_bytes, uint64_t seed);
void fbk_cache_free(struct fbk_write_cache *cache);
/* Empties and unseals. */
void fbk_cache_reset(struct fbk_write_cache *cache);

/* Where to copy the entry: NULL when it does not fit (or no memory for a new ledger's slot).  The caller made sure that
 * the id is not held.  Nothing is visible before commit; another reserve forgets this one. */
uint8_t *fbk_cache_reserve(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id, uint32_t size_bytes);
void fbk_cache_commit(struct fbk_write_cache *cache, uint32_t crc);

static inline const uint8_t *
fbk_cache_data(const struct fbk_cache_item *item)
{
    return (const uint8_t *)(item + 1);
}

/* NULL if absent. */
const struct fbk_cache_item *fbk_cache_find(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id);
/* The item with the smallest id in [first, last]; NULL if none. */
const struct fbk_cache_item *fbk_cache_next(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id,
                                            int64_t last_entry_id);
/* What is held of a ledger; NULL if nothing. */
const struct fbk_cache_ledger *fbk_cache_ledger_of(const struct fbk_write_cache *cache, int64_t ledger_id);
/* Ids >= first_entry_id of a ledger, ascending, into ids (room for the ledger's item_count).  Returns their count. */
uint64_t fbk_cache_ids(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id, int64_t *ids);

/* All items sorted by (ledger, entry); items has room for item_count.  0 or -ENOMEM.  For the flush thread: takes
 * milliseconds. */
int32_t fbk_cache_sorted(const struct fbk_write_cache *cache, struct fbk_flush_item *items);
