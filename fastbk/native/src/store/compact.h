/* What the two halves of compaction share: store/compact_read.c fills a window with checked
 * entries, store/compact.c writes it.  Meanings of the public functions: store/store.h. */
#pragma once

#include "store/parts.h"

/* Read or written by one step: what others wait for. */
#define FBK_COMPACT_SLICE_BYTES (2u << 20)

struct fbk_growing { /* mapped memory, zero at first */
    uint8_t *bytes;
    uint64_t room_bytes;
};

/* The log that is read from: past the page cache, and again through it where that fails. */
struct fbk_compact_source {
    uint64_t log_id;
    int32_t handle; /* -1 = none is open */
    bool has_salt;
    uint64_t salt;
    uint64_t bad_runs;
};

struct fbk_compact {
    struct fbk_store *store;
    struct fbk_compact_options options;
    struct fbk_file_writer writer;
    struct fbk_locations_writer to;
    struct fbk_compact_counts counts;
    struct fbk_compact_source source;
    uint64_t bad_runs_before;  /* in logs that were read to their end before this one */
    struct fbk_growing window; /* of the source's log alone */
    uint64_t window_used;
    struct fbk_growing items; /* struct fbk_flush_item; they point into the window */
    uint64_t item_count;
    uint64_t item_next;           /* to be written */
    bool is_writing;              /* the window is closed: sorted, and written bit by bit */
    struct fbk_growing locations; /* struct fbk_location */
    uint64_t location_count;
    int32_t log; /* -1 = closed */
    int32_t error;
};

/* Room for so many bytes, content kept; false: no memory. */
bool fbk_growing_reserve(struct fbk_growing *memory, uint64_t size_bytes);

/* One more location, not counted yet; NULL: no memory. */
static inline struct fbk_location *
fbk_compact_new_location(struct fbk_compact *compact)
{
    if (!fbk_growing_reserve(&compact->locations,
                             (compact->location_count + 1) * sizeof(struct fbk_location)))
        return NULL;
    return (struct fbk_location *)(void *)compact->locations.bytes + compact->location_count;
}

/* ---- store/compact_read.c */
/* Whether the window takes the first of `runs`, too. */
bool fbk_compact_has_room(const struct fbk_compact *compact, const struct fbk_location *runs,
                          uint64_t run_count);
/* Reads the first of `runs`, one stretch of them, into the window: good entries become items,
 * damaged ones locations. *taken: how many runs.  1, 0 = their log can't be read: it is to be left
 * out, with what the window holds of it; < 0. */
int32_t fbk_compact_read(struct fbk_compact *compact, const struct fbk_location *runs,
                         uint64_t run_count, uint64_t *taken);
void fbk_compact_close_source(struct fbk_compact *compact);
