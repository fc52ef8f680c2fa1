/* The table of ledger states in the journal's and the index's memory (A3), bounded by ledgers_max; nothing is ever
 * evicted here.
 *
 * States lie one behind the other in chunks that never move; a hash index of 4 bytes a slot finds them: a state costs its
 * 72 bytes and 4.6 to 9.2 of index.  When the index doubles, a few of its slots move with each new ledger, so that no
 * single add pays for all of them: with millions of ledgers that would be a pause that everybody notices. */
#ifndef FBK_LEDGERS_H
#define FBK_LEDGERS_H

#include "fbk_layout.h"

/* Open addressing with linear probing, at most seven eighths full.  A slot is 0 when it is free, else the state's number
 * + 1 in as many low bits as slot_count has, and bits of the hash above them, which spare most looks at other states. */
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
    uint64_t ledgers_max;
    uint64_t seed; /* of the hash; random */
};

int32_t fbk_ledgers_init(struct fbk_ledgers *ledgers, uint64_t ledgers_max);
void fbk_ledgers_free(struct fbk_ledgers *ledgers);
/* NULL if absent.  Valid until fbk_ledgers_free. */
struct fbk_ledger_state *fbk_ledgers_find(const struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Finds or makes (highest and lac -1, no flags); NULL when ledgers_max is reached or memory ran out. */
struct fbk_ledger_state *fbk_ledgers_add(struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Makes the index large enough for that many ledgers, at once: before many are added.  False: no memory, nothing is lost. */
bool fbk_ledgers_reserve(struct fbk_ledgers *ledgers, uint64_t count);
/* Walks all in the order they were added; *cursor starts at 0; NULL at the end. */
struct fbk_ledger_state *fbk_ledgers_next(const struct fbk_ledgers *ledgers, uint64_t *cursor);
/* Bytes of memory that are in use for it. */
uint64_t fbk_ledgers_memory_bytes(const struct fbk_ledgers *ledgers);
/* Constant time in the key's bytes. */
bool fbk_master_key_equal(const uint8_t *a, const uint8_t *b);

#endif
