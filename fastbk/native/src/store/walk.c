/* Moving over the locations in one file. */
#include "store/parts.h"

void
fbk_walk_begin(struct fbk_walk *walk, struct fbk_store *store,
               const struct fbk_locations_file *file)
{
    walk->store = store;
    walk->file = file;
    walk->block = 0;
    walk->count = 0;
    walk->loaded = false;
    walk->use = FBK_BLOCK_KEPT;
}

int32_t
fbk_walk_load(struct fbk_walk *walk, uint64_t block)
{
    if (walk->loaded && walk->block == block)
        return walk->count;
    walk->block = block;
    walk->count = fbk_locations_block(walk->store, walk->file, block, walk->use, walk->locations);
    /* a failed one is tried again: the error may have been the disk's moment */
    walk->loaded = walk->count >= 0;
    return walk->count;
}

int64_t
fbk_walk_block_of(const struct fbk_locations_file *file, int64_t ledger_id, int64_t entry_id)
{
    uint64_t low = 0, high = file->header.location_blocks;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (fbk_location_compare(file->keys[middle].ledger_id, file->keys[middle].first_entry_id,
                                 ledger_id, entry_id) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return (int64_t)low - 1;
}

int32_t
fbk_walk_upper_bound(const struct fbk_walk *walk, int64_t ledger_id, int64_t entry_id)
{
    int32_t low = 0, high = walk->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        const struct fbk_location *location = &walk->locations[middle];
        if (fbk_location_compare(location->ledger_id, location->first_entry_id, ledger_id,
                                 entry_id) <= 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
