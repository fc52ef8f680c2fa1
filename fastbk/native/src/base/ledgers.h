/* The table of ledger states in the journal's and the index's memory, bounded by ledgers_max;
 * nothing is ever evicted here, only what its owner gives up is removed.
 *
 * States lie one behind the other in chunks that never move; a hash index of 4 bytes a slot finds
 * them: a state costs its 72 bytes and 4.6 to 9.2 of index.  The place of a removed one is taken by
 * the next that is added.  When the index doubles, a few of its slots move with each new ledger, so
 * that no single add pays for all of them: with millions of ledgers that would be a pause that
 * everybody notices.
 *
 * Decision 58. */
#pragma once

#include "base/layout.h"

/* Open addressing with linear probing, at most seven eighths full.  A slot is 0 when it is free,
 * else the state's number
 * + 1 in as many low bits as slot_count has, and bits of the hash above them, which spare most
 * looks at other states. */
struct fbk_ledger_slots {
    uint32_t *slots;
    uint64_t slot_count; /* a power of two */
};

struct fbk_ledgers {
    struct fbk_ledger_state **chunks;
    struct fbk_ledger_slots index;
    struct fbk_ledger_slots old; /* the smaller one that is being left; no slots = none is */
    uint64_t moved;              /* slots of `old` that are in `index` by now */
    uint64_t count;
    /* places ever taken: those of the states that are here, and the free ones */
    uint64_t used;
    /* number + 1 of the first free place; the next one's stands where its highest id was */
    uint64_t free;
    uint64_t ledgers_max;
    uint64_t seed; /* of the hash; random */
};

int32_t fbk_ledgers_init(struct fbk_ledgers *ledgers, uint64_t ledgers_max);
void fbk_ledgers_free(struct fbk_ledgers *ledgers);
/* NULL if absent.  Valid until it is removed. */
struct fbk_ledger_state *fbk_ledgers_find(const struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Finds or makes (highest and lac -1, no flags); NULL when ledgers_max is reached or memory ran
 * out. */
struct fbk_ledger_state *fbk_ledgers_add(struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Removes it; false if absent. */
bool fbk_ledgers_remove(struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Makes the index large enough for that many ledgers, at once: before many are added.  False: no
 * memory, nothing is lost. */
bool fbk_ledgers_reserve(struct fbk_ledgers *ledgers, uint64_t count);
/* Walks all by their places, which is the order they were added in while none was removed; *cursor
 * starts at 0; NULL at the end. */
struct fbk_ledger_state *fbk_ledgers_next(const struct fbk_ledgers *ledgers, uint64_t *cursor);
/* The same, but NULL as well when *cursor has come to stop_at: free places cost a look, too. */
struct fbk_ledger_state *fbk_ledgers_next_before(const struct fbk_ledgers *ledgers,
                                                 uint64_t *cursor, uint64_t stop_at);
/* Bytes of memory that are in use for it. */
uint64_t fbk_ledgers_memory_bytes(const struct fbk_ledgers *ledgers);
/* Constant time in the key's bytes. */
bool fbk_master_key_equal(const uint8_t *a, const uint8_t *b);
