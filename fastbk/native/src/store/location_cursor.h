/* All locations of one ledger in a set of files that count, in the order of their first ids.  The
 * set stays the caller's. */
#pragma once

#include "store/parts.h"

struct fbk_location_cursor {
    struct fbk_walk *walks; /* one a file */
    int64_t *blocks;        /* position of each file's next location */
    int32_t *indexes;
    uint32_t file_count;
    uint32_t peeked; /* the file that peek took its location from */
    const struct fbk_log_list *logs;
    int64_t ledger_id;
};

/* Begins before every location that may hold an id from first_entry_id on.  0, -ENOMEM,
 * FBK_E_CORRUPT (a file is lost). */
int32_t fbk_location_cursor_begin(struct fbk_location_cursor *cursor, struct fbk_store *store,
                                  const struct fbk_file_set *set, int64_t ledger_id,
                                  int64_t first_entry_id);
/* The next one, without moving: 1, 0 at the ledger's end, < 0: a part can't be read. */
int32_t fbk_location_cursor_peek(struct fbk_location_cursor *cursor, struct fbk_location *location);
/* Moves over what was peeked. */
void fbk_location_cursor_pass(struct fbk_location_cursor *cursor);
void fbk_location_cursor_end(struct fbk_location_cursor *cursor);
