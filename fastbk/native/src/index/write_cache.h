/* Entries that are taken in but not yet flushed, found by (ledger, entry), walked by ledger in the
 * order they came in.
 *
 * One arena is filled from both ends.  From the back come the items (48 bytes each) and, behind its
 * item, each entry that the flush will copy.  From the front come *chunks*: room for entries of one
 * ledger that fills it in order.  They lie there as the entry log wants them, so the flush writes a
 * chunk as it is, without a copy:
 *
 *     arena   | chunk of ledger 7                         | chunk of ledger 9    | ...   free   ...
 * | items and entries | chunk   | run                                        | run         | unused
 * | run     | unused | header, item table | entries, each padded to 8 |
 *
 * How long the item table will be is known only when the run ends.  So room for the longest one is
 * kept in front of the entries, and the flush puts header and table right before the first entry.
 *
 * INV-A6: what is free between the ends never falls below capacity_bytes - used_bytes, which is
 * what credit may let in. So a chunk is opened only out of what the arena has beyond that
 * (FBK_CACHE_SPARE), and an entry that finds no room in a chunk of its ledger is put at the back,
 * where it costs what fbk_cache_cost() says.
 *
 * An arena that is filled again and again keeps its pages: to get one anew costs more than to fill
 * it.  While the journal's runs need few of them (FBK_CACHE_KEPT_TIMES), each emptying gives back a
 * part of the rest.
 *
 * One thread inserts.  Once sealed, items and entries change no more until fbk_cache_reset, so the
 * main loop may read them beside the flush thread without a lock.  The flush thread alone writes
 * what lies between the entries of chunks.
 *
 * Items, chunks and runs are named by references: position in the arena / 8, + 1; 0 = none.
 *
 * Decisions 25 and 103. */
#pragma once

#include "base/layout.h"
#include "store/store.h"

struct fbk_cache_item {
    int64_t ledger_id;
    int64_t entry_id;
    uint8_t *data;
    uint32_t size_bytes;
    uint32_t crc;         /* CRC32C of the entry's bytes as they were copied in */
    uint32_t bucket_next; /* an earlier item in the same bucket */
    uint32_t ledger_next; /* the item of this ledger that came in next */
    uint32_t run;         /* that the entry lies in; 0 = behind its item */
    uint32_t adopted;     /* 1: `data` is in the journal's ring, and the flush leaves it out */
};
_Static_assert(sizeof(struct fbk_cache_item) == FBK_CACHE_ITEM_HEADER_BYTES, "cache item header");

struct fbk_cache_run {
    uint8_t *room; /* for header and item table: up to `entries` */
    uint8_t *entries;
    uint8_t *end; /* behind the last entry */
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_entry_id;
    uint32_t entry_count;
    uint32_t entry_count_max;
    uint32_t chunk;
    uint32_t next;   /* in its chunk */
    uint32_t filled; /* items of the table that the flush has filled in */
    uint32_t reserved;
};

struct fbk_cache_chunk {
    uint8_t *begin; /* aligned, like size_bytes, as direct writes want it */
    uint8_t *end;
    uint32_t first_run;
    uint32_t last_run;
    uint32_t next;     /* chunk that was opened next: it lies further on */
    uint32_t in_place; /* of a sealed cache: 1 = the flush writes it as it is */
};

struct fbk_cache_ledger {
    int64_t ledger_id;      /* -1 = empty slot */
    int64_t first_entry_id; /* smallest and largest id held */
    int64_t last_entry_id;
    uint64_t entry_bytes; /* that the flush will write, padded */
    uint32_t head;
    uint32_t tail;
    uint32_t item_count;
    uint32_t run;   /* that entries are put into; 0 = none yet */
    bool unsorted;  /* some item came in below one before it */
    bool scattered; /* its ids lie too far apart for runs: it gets no more chunks */
};

struct fbk_write_cache {
    uint8_t *memory;
    uint64_t memory_bytes;
    uint8_t *arena; /* in it, aligned */
    uint64_t arena_bytes;
    uint64_t capacity_bytes; /* of entries by fbk_cache_cost() */
    uint64_t used_bytes;
    uint64_t front_bytes; /* chunks lie in [0, front) */
    uint64_t back_bytes;  /* items in [back, arena_bytes) */
    /* of the arena's front and back: what may be in memory since the uses before */
    uint64_t front_kept_bytes;
    uint64_t back_kept_bytes;
    uint64_t align_bytes; /* of chunks */
    uint64_t chunk_bytes_min;
    uint64_t item_count;
    uint64_t seed; /* of the hash: ids come from outside */
    uint32_t *buckets;
    uint32_t bucket_mask;
    uint32_t ledger_mask; /* slots - 1 */
    struct fbk_cache_ledger *ledgers;
    uint32_t ledger_count;
    uint32_t last_slot; /* of the ledger inserted to last */
    uint32_t first_chunk;
    uint32_t last_chunk;
    uint32_t chunk_count;
    uint32_t run_count;
    /* between reserve and commit: size, place and run of the entry */
    struct fbk_cache_item next;
    bool sealed;
    uint64_t
        tail_begin; /* of what adopted items point to, in the journal's ring; UINT64_MAX: none */
};

/* What the arena has beyond capacity_bytes. */
#define FBK_CACHE_SPARE(capacity_bytes) fbk_round_up((capacity_bytes) / 8, FBK_PAGE_BYTES)

/* An end of the arena keeps so many times what it needed last, and gives back no more than
 * this part of the arena at once: the kernel takes 50 µs for each MiB, and 350 to give it again. */
#define FBK_CACHE_KEPT_TIMES 2
#define FBK_CACHE_FORGOTTEN_PART 8

/* align_bytes: a multiple of the page. */
int32_t fbk_cache_init(struct fbk_write_cache *cache, uint64_t capacity_bytes, uint64_t align_bytes,
                       uint64_t seed);
void fbk_cache_free(struct fbk_write_cache *cache);
/* Empties and unseals, and gives back memory that is not needed now. */
void fbk_cache_reset(struct fbk_write_cache *cache);

/* Where to copy the entry: NULL when it does not fit (or no memory for a new ledger's slot).  The
 * caller made sure that the id is not held.  Nothing is visible before commit; another reserve
 * forgets this one. */
uint8_t *fbk_cache_reserve(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id,
                           uint32_t size_bytes);
void fbk_cache_commit(struct fbk_write_cache *cache, uint32_t crc);
/* An entry that stays where it is, in the journal's ring, and that no flush writes: it costs
 * FBK_CACHE_ITEM_HEADER_BYTES.  False: as reserve's NULL. */
bool fbk_cache_refer(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id,
                     const uint8_t *data, uint32_t size_bytes, uint32_t crc);

/* NULL if absent. */
const struct fbk_cache_item *fbk_cache_find(const struct fbk_write_cache *cache, int64_t ledger_id,
                                            int64_t entry_id);
/* The item with the smallest id in [first, last]; NULL if none. */
const struct fbk_cache_item *fbk_cache_next(const struct fbk_write_cache *cache, int64_t ledger_id,
                                            int64_t first_entry_id, int64_t last_entry_id);
/* What is held of a ledger; NULL if nothing. */
const struct fbk_cache_ledger *fbk_cache_ledger_of(const struct fbk_write_cache *cache,
                                                   int64_t ledger_id);
/* Ids >= first_entry_id of a ledger, ascending, into ids (room for the ledger's item_count).
 * Returns their count. */
uint64_t fbk_cache_ids(const struct fbk_write_cache *cache, int64_t ledger_id,
                       int64_t first_entry_id, int64_t *ids);

/* Makes what a flush writes out of a sealed cache: the chunks that are written as they are, with
 * their runs' item tables filled in, and all other items that are not adopted, sorted by (ledger,
 * entry).  The arrays have room for item_count, run_count and chunk_count; the counts are set.  May
 * be called again, for another attempt.  0 or -ENOMEM.  For the flush thread: takes milliseconds.
 */
int32_t fbk_cache_lay_out(struct fbk_write_cache *cache, struct fbk_flush_item *items,
                          struct fbk_flush_run *runs, struct fbk_flush_chunk *chunks,
                          struct fbk_flush_contents *contents);
