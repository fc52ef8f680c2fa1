/* Runs that stay in the journal's files: where they lie, until a flush has published that (INV-J7).
 * A run is adopted whole or not at all; its entries are new when it is. */
#pragma once

#include "store/store.h"

#define FBK_ADOPTED_FILES_MAX 64u

struct fbk_adopted {
    struct fbk_location *locations;
    uint64_t memory_bytes;
    uint64_t count;
    uint32_t file_count;
    struct fbk_adopted_file files[FBK_ADOPTED_FILES_MAX]; /* of these runs */
};

/* Room for `count` runs of a batch that ends there in the file.  False: they are to be copied, as
 * everything else: there is no memory, or there are too many files. */
bool fbk_adopted_begin(struct fbk_adopted *adopted, uint64_t file_id, uint64_t salt,
                       uint64_t end_bytes, uint64_t count);
void fbk_adopted_add(struct fbk_adopted *adopted, const struct fbk_location *location);
/* Whether a run holds the entry, where none has gaps: its ids surround it. */
bool fbk_adopted_holds(const struct fbk_adopted *adopted, int64_t ledger_id, int64_t entry_id);
void fbk_adopted_free(struct fbk_adopted *adopted);
