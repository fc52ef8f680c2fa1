/* Runs in entry logs: building them, and checking what a disk gave back.
 * Decision 7. */
#pragma once

#include "base/journal_header.h"
#include "base/run.h"
#include "store/file_writer.h"
#include "store/store.h"

/* Takes as many of the items as belong into one run, puts it at the writer's position (a multiple
 * of 8), fills in its location (but for last_entry_id_max).  Returns how many items it took (>= 1),
 * or -EINVAL for an entry that no run can hold. */
int32_t fbk_run_put(struct fbk_file_writer *writer, const struct fbk_flush_item *items,
                    uint64_t item_count, uint64_t log_id, uint64_t log_salt,
                    struct fbk_location *location);

/* Block 0 of a log, in a buffer of FBK_PAGE_BYTES. */
void fbk_log_header_fill(uint8_t *block, const struct fbk_log_header *values);
/* 0, FBK_E_CORRUPT, FBK_E_TOO_NEW. */
int32_t fbk_log_header_check(const uint8_t *block, uint64_t log_id, uint64_t incarnation,
                             struct fbk_log_header *header);

/* What the header of a log says, of either kind. */
struct fbk_log_front {
    uint64_t salt;
    uint64_t runs_at_bytes; /* no run begins before */
};
/* Bytes of a log's beginning that its header lies in: of a journal file the second copy, too,
 * wherever it is. */
static inline uint32_t
fbk_log_front_bytes(uint64_t log_id)
{
    return log_id & FBK_LOG_JOURNAL ? FBK_BLOCK_BYTES_MAX + FBK_PAGE_BYTES : FBK_PAGE_BYTES;
}
/* `bytes`: so many, or all of a shorter file.  0, FBK_E_CORRUPT (no header, or another log's),
 * FBK_E_TOO_NEW. */
int32_t fbk_log_front_find(const uint8_t *bytes, uint64_t size_bytes, uint64_t log_id,
                           uint64_t incarnation, struct fbk_log_front *front);
/* The same of an open log.  FBK_E_CORRUPT: its header cannot be read, so runs are judged by their
 * own checksums alone.  -ENOMEM. */
int32_t fbk_log_read_salt(struct fbk_io *io, int32_t handle, uint64_t log_id, uint64_t incarnation,
                          uint64_t *salt);

/* Index of the first item with an id >= entry_id; entry_count if none. */
uint32_t fbk_run_lower_bound(const struct fbk_run *run, int64_t entry_id);
