/* Walks the files side by side. */
#include "store/location_cursor.h"

#include <stdlib.h>

/* The next location of file i that counts (INV-X5); NULL at the ledger's end there. */
static const struct fbk_location *
next_in_file(struct fbk_location_cursor *cursor, uint32_t i, int32_t *error)
{
    struct fbk_walk *walk = &cursor->walks[i];
    const struct fbk_locations_file *file = walk->file;
    for (;;) {
        int64_t block = cursor->blocks[i];
        if (block >= (int64_t)file->header.location_blocks)
            return NULL;
        if (!file->damaged[block] && file->keys[block].ledger_id > cursor->ledger_id)
            return NULL;
        if (fbk_walk_load(walk, (uint64_t)block) < 0) {
            *error = FBK_E_CORRUPT;
            return NULL;
        }
        if (cursor->indexes[i] < walk->count) {
            const struct fbk_location *location = &walk->locations[cursor->indexes[i]];
            if (location->ledger_id < cursor->ledger_id) {
                cursor->indexes[i] = fbk_walk_upper_bound(walk, cursor->ledger_id, -1);
                continue;
            }
            if (location->ledger_id != cursor->ledger_id)
                return NULL;
            if (fbk_location_counts(cursor->logs, location))
                return location;
            cursor->indexes[i]++;
            continue;
        }
        cursor->blocks[i]++;
        cursor->indexes[i] = 0;
    }
}

/* Puts each file's position at the first location that can matter.  Runs span less than
 * FBK_RUN_SPAN_MAX ids, so one that begins earlier than that can't reach `first`. */
static void
place(struct fbk_location_cursor *cursor, int64_t first_entry_id)
{
    int64_t from = first_entry_id < FBK_RUN_SPAN_MAX ? -1 : first_entry_id - FBK_RUN_SPAN_MAX;
    for (uint32_t i = 0; i < cursor->file_count; i++) {
        const struct fbk_sparse_key *keys = cursor->walks[i].file->keys;
        int64_t block = fbk_walk_block_of(cursor->walks[i].file, cursor->ledger_id, from);
        /* Repeated keys stand for damaged blocks and for equal locations: begin before them. */
        while (block > 0 &&
               fbk_location_compare(keys[block].ledger_id, keys[block].first_entry_id,
                                    keys[block - 1].ledger_id, keys[block - 1].first_entry_id) == 0)
            block--;
        cursor->blocks[i] = block < 0 ? 0 : block;
        cursor->indexes[i] = 0;
    }
}

int32_t
fbk_location_cursor_begin(struct fbk_location_cursor *cursor, struct fbk_store *store,
                          const struct fbk_file_set *set, int64_t ledger_id, int64_t first_entry_id)
{
    *cursor = (struct fbk_location_cursor){
        .walks = calloc(set->count + 1, sizeof(struct fbk_walk)),
        .blocks = calloc(set->count + 1, sizeof(int64_t)),
        .indexes = calloc(set->count + 1, sizeof(int32_t)),
        .logs = set->logs,
        .ledger_id = ledger_id,
    };
    if (!cursor->walks || !cursor->blocks || !cursor->indexes)
        return -ENOMEM;
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->files[i]->damaged_whole)
            return FBK_E_CORRUPT;
        fbk_walk_begin(&cursor->walks[cursor->file_count++], store, set->files[i]);
    }
    place(cursor, first_entry_id);
    return 0;
}

int32_t
fbk_location_cursor_peek(struct fbk_location_cursor *cursor, struct fbk_location *out)
{
    const struct fbk_location *least = NULL;
    for (uint32_t i = 0; i < cursor->file_count; i++) {
        int32_t error = 0;
        const struct fbk_location *location = next_in_file(cursor, i, &error);
        if (error < 0)
            return error;
        if (location && (!least || location->first_entry_id < least->first_entry_id)) {
            least = location;
            cursor->peeked = i;
        }
    }
    if (!least)
        return 0;
    *out = *least;
    return 1;
}

void
fbk_location_cursor_pass(struct fbk_location_cursor *cursor)
{
    cursor->indexes[cursor->peeked]++;
}

void
fbk_location_cursor_end(struct fbk_location_cursor *cursor)
{
    free(cursor->walks);
    free(cursor->blocks);
    free(cursor->indexes);
}
