/* The table of ledger states in the journal's and the index's memory (A3): open addressing by ledger id,
 * grows by doubling, bounded by ledgers_max.  About 100 bytes a ledger.  Nothing is ever evicted here. */
#ifndef FBK_LEDGERS_H
#define FBK_LEDGERS_H

#include "fbk_layout.h"

struct fbk_ledgers {
    struct fbk_ledger_state *slots; /* ledger_id -1 = empty */
    uint64_t slot_count;            /* a power of two */
    uint64_t count;
    uint64_t ledgers_max;
    uint64_t seed; /* of the hash; random */
};

int32_t fbk_ledgers_init(struct fbk_ledgers *ledgers, uint64_t ledgers_max);
void fbk_ledgers_free(struct fbk_ledgers *ledgers);
/* NULL if absent.  Valid until the next fbk_ledgers_add. */
struct fbk_ledger_state *fbk_ledgers_find(const struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Finds or makes (highest and lac -1, no flags); NULL when ledgers_max is reached or memory ran out. */
struct fbk_ledger_state *fbk_ledgers_add(struct fbk_ledgers *ledgers, int64_t ledger_id);
/* Walks all; *cursor starts at 0; NULL at the end. */
struct fbk_ledger_state *fbk_ledgers_next(const struct fbk_ledgers *ledgers, uint64_t *cursor);
/* Constant time in the key's bytes. */
bool fbk_master_key_equal(const uint8_t *a, const uint8_t *b);

#endif
