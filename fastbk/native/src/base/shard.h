/* Which shard a ledger falls into.  Part of the disk format: the shard map in identity.json says in
 * which journal/index pair each shard lives, so this function never changes (golden values:
 * tests/golden/shards.json). */
#pragma once

#include "base/layout.h"

/* The top 6 bits of splitmix64 of the id: neighbouring ids, which one writer makes one after the
 * other, fall apart. */
static inline uint32_t
fbk_shard_of(int64_t ledger_id)
{
    uint64_t mixed = (uint64_t)ledger_id + 0x9e3779b97f4a7c15ull;
    mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebull;
    return (uint32_t)((mixed ^ (mixed >> 31)) >> 58);
}
_Static_assert(FBK_SHARD_COUNT == 1u << (64 - 58), "6 bits");
