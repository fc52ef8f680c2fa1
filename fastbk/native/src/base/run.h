/* Runs: entries of one ledger, ascending, behind a header and a table of items.  Entry logs consist
 * of them; a journal file that is a log has them as records (FBK_KIND_RUN).
 * Decision 7. */
#pragma once

#include "base/layout.h"

/* Of a run's header and item table. */
static inline uint64_t
fbk_run_front_bytes(uint64_t entry_count)
{
    return sizeof(struct fbk_run_header) + entry_count * sizeof(struct fbk_run_item);
}

/* Fills in the header of a run whose item table and entries lie behind it, and its location (but
 * for last_entry_id_max): it will lie at offset_bytes of the log. */
void fbk_run_head(uint8_t *bytes, int64_t ledger_id, uint32_t entry_count, uint32_t size_bytes,
                  uint64_t offset_bytes, uint64_t log_id, uint64_t log_salt,
                  struct fbk_location *location);

/* Checks a run that was read from `location`, 8-byte aligned.  salt NULL: the log's header could
 * not be read. Returns the number of damaged entries (their items get size and offset 0), or
 * FBK_E_CORRUPT when nothing in it can be trusted. */
int32_t fbk_run_check(uint8_t *bytes, uint32_t size_bytes, const struct fbk_location *location,
                      const uint64_t *salt);
/* The same of its header and item table alone, which is all that `bytes` need hold.  The location
 * is sane.  0 or FBK_E_CORRUPT. */
int32_t fbk_run_table_check(const uint8_t *bytes, const struct fbk_location *location,
                            const uint64_t *salt);

/* Could this be a location that we wrote? */
bool fbk_location_is_sane(const struct fbk_location *location);
