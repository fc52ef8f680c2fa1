/* Runs that stay in the journal's files: where they lie, until a flush has published that. */
#include "index/adopted.h"

#include "base/segment.h"

static struct fbk_adopted_file *
find_file(struct fbk_adopted *adopted, uint64_t file_id)
{
    const uint32_t count = adopted->file_count;
    return count > 0 && adopted->files[count - 1].file_id == file_id ? &adopted->files[count - 1]
                                                                     : NULL;
}

static bool
reserve(struct fbk_adopted *adopted, uint64_t count)
{
    const uint64_t needed = (adopted->count + count) * sizeof *adopted->locations;
    if (needed <= adopted->memory_bytes)
        return true;
    uint64_t more = adopted->memory_bytes ? adopted->memory_bytes * 2 : 64 * FBK_KIB;
    more = more < needed ? fbk_round_up(needed, FBK_PAGE_BYTES) : more;
    void *grown = adopted->locations
                      ? fbk_memory_grow(adopted->locations, adopted->memory_bytes, more)
                      : fbk_memory_take(more);
    if (!grown)
        return false;
    adopted->locations = grown;
    adopted->memory_bytes = more;
    return true;
}

bool
fbk_adopted_begin(struct fbk_adopted *adopted, uint64_t file_id, uint64_t salt, uint64_t end_bytes,
                  uint64_t count)
{
    struct fbk_adopted_file *file = find_file(adopted, file_id);
    if ((!file && adopted->file_count == FBK_ADOPTED_FILES_MAX) || !reserve(adopted, count))
        return false;
    if (!file) {
        file = &adopted->files[adopted->file_count++];
        *file = (struct fbk_adopted_file){.file_id = file_id, .salt = salt};
    }
    file->end_bytes = end_bytes;
    return true;
}

void
fbk_adopted_add(struct fbk_adopted *adopted, const struct fbk_location *location)
{
    struct fbk_adopted_file *file = &adopted->files[adopted->file_count - 1];
    adopted->locations[adopted->count++] = *location;
    file->run_count++;
    file->run_bytes += location->size_bytes;
}

bool
fbk_adopted_holds(const struct fbk_adopted *adopted, int64_t ledger_id, int64_t entry_id)
{
    for (uint64_t n = adopted->count; n > 0; n--) {
        const struct fbk_location *location = &adopted->locations[n - 1];
        if (location->ledger_id == ledger_id && location->first_entry_id <= entry_id &&
            entry_id <= location->last_entry_id)
            return true;
    }
    return false;
}

void
fbk_adopted_free(struct fbk_adopted *adopted)
{
    if (adopted->locations)
        fbk_memory_give_back(adopted->locations, adopted->memory_bytes);
    memset(adopted, 0, sizeof *adopted);
}
