/* The searched set: which locations files are looked into, and which entry logs count.  Immutable;
 * changed by swapping in another one, by the main loop alone. */
#include "store/parts.h"

struct fbk_file_set *
fbk_file_set_take(struct fbk_store *store)
{
    fbk_store_lock(store);
    struct fbk_file_set *set = store->set;
    set->references++;
    fbk_store_unlock(store);
    return set;
}

static void
unref_logs(struct fbk_store *store, struct fbk_log_list *logs)
{
    fbk_store_lock(store);
    FBK_ASSERT(logs->references > 0);
    bool last = --logs->references == 0;
    fbk_store_unlock(store);
    if (last)
        free(logs);
}

void
fbk_file_set_unref(struct fbk_store *store, struct fbk_file_set *set)
{
    fbk_store_lock(store);
    FBK_ASSERT(set->references > 0);
    bool last = --set->references == 0;
    store->old_sets -= last && store->old_sets > 0;
    fbk_store_unlock(store);
    if (!last)
        return;
    for (uint32_t i = 0; i < set->count; i++)
        fbk_locations_unref(store, set->files[i]);
    if (set->logs)
        unref_logs(store, set->logs);
    free(set);
}

bool
fbk_file_set_is_old(struct fbk_store *store, const struct fbk_file_set *set)
{
    fbk_store_lock(store);
    bool is_old = store->set != set;
    fbk_store_unlock(store);
    return is_old;
}

static int32_t
prepared_index(const struct fbk_store *store, uint64_t file_id)
{
    for (uint32_t i = 0; i < store->prepared_count; i++) {
        if (store->prepared[i]->file_id == file_id)
            return (int32_t)i;
    }
    return -1;
}

static bool
is_damaged(const struct fbk_locations_file *file)
{
    return file->damaged_whole || file->damaged_blocks > 0 || file->damaged_state_blocks > 0;
}

struct fbk_locations_file *
fbk_locations_take(struct fbk_store *store, uint64_t file_id)
{
    struct fbk_locations_file *found = NULL;
    fbk_store_lock(store);
    int32_t at = prepared_index(store, file_id);
    if (at >= 0)
        found = store->prepared[at];
    for (uint32_t i = 0; i < store->set->count && !found; i++) {
        if (store->set->files[i]->file_id == file_id)
            found = store->set->files[i];
    }
    if (found)
        found->references++;
    fbk_store_unlock(store);
    return found;
}

int32_t
fbk_store_prepare_locations(struct fbk_store *store, uint64_t file_id)
{
    struct fbk_locations_file *file = fbk_locations_take(store, file_id);
    if (file) {
        int32_t damaged = is_damaged(file);
        fbk_locations_unref(store, file);
        return damaged;
    }
    int32_t result = fbk_locations_load(store, file_id, &file);
    if (result < 0)
        return result;
    fbk_store_lock(store);
    bool room = store->prepared_count < FBK_STORE_FILES_MAX;
    if (room)
        store->prepared[store->prepared_count++] = file;
    if (room && is_damaged(file))
        store->counts.damaged_blocks +=
            file->damaged_whole ? 1 : file->damaged_blocks + file->damaged_state_blocks;
    fbk_store_unlock(store);
    if (!room) {
        fbk_locations_unref(store, file);
        return FBK_E_FULL;
    }
    return result;
}

void
fbk_store_drop_prepared(struct fbk_store *store, uint64_t file_id)
{
    struct fbk_locations_file *file = NULL;
    fbk_store_lock(store);
    int32_t at = prepared_index(store, file_id);
    if (at >= 0) {
        file = store->prepared[at];
        store->prepared[at] = store->prepared[--store->prepared_count];
    }
    fbk_store_unlock(store);
    if (file)
        fbk_locations_unref(store, file);
}

/* Puts `set` in place of the current one. */
static void
swap_set(struct fbk_store *store, struct fbk_file_set *set)
{
    fbk_store_lock(store);
    struct fbk_file_set *old = store->set;
    store->set = set;
    store->old_sets++;
    store->counts.files = set->count;
    store->counts.index_bytes = 0;
    store->counts.entries = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        store->counts.index_bytes += set->files[i]->index_bytes;
        store->counts.entries += set->files[i]->entry_count;
    }
    fbk_store_unlock(store);
    fbk_file_set_unref(store, old);
}

/* Only the main loop changes the set, so it can be read here without the mutex; a file's references
 * can't. */
static struct fbk_file_set *
copy_set(struct fbk_store *store, const struct fbk_locations_file *without,
         struct fbk_locations_file *with)
{
    const struct fbk_file_set *old = store->set;
    struct fbk_file_set *set = malloc(sizeof *set + (old->count + 1) * sizeof set->files[0]);
    if (!set)
        return NULL;
    set->references = 1;
    set->count = 0;
    set->logs = old->logs;
    fbk_store_lock(store);
    if (set->logs)
        set->logs->references++;
    for (uint32_t i = 0; i <= old->count; i++) {
        /* A file whose header is lost has generation 0: the order of what is damaged does not
         * matter. */
        if (with && (i == old->count ||
                     with->header.last_generation >= old->files[i]->header.last_generation)) {
            with->references++;
            set->files[set->count++] = with;
            with = NULL;
        }
        if (i < old->count && old->files[i] != without) {
            old->files[i]->references++;
            set->files[set->count++] = old->files[i];
        }
    }
    fbk_store_unlock(store);
    return set;
}

int32_t
fbk_store_add_locations(struct fbk_store *store, uint64_t file_id)
{
    int32_t result = fbk_store_prepare_locations(store, file_id);
    if (result < 0)
        return result;
    for (uint32_t i = 0; i < store->set->count; i++) {
        if (store->set->files[i]->file_id == file_id)
            return -EEXIST;
    }
    if (store->set->count == FBK_STORE_FILES_MAX)
        return FBK_E_FULL;
    struct fbk_locations_file *file = fbk_locations_take(store, file_id);
    FBK_ASSERT(file != NULL);
    struct fbk_file_set *set = copy_set(store, NULL, file);
    if (set) {
        swap_set(store, set);
        fbk_store_drop_prepared(store, file_id);
    }
    fbk_locations_unref(store, file);
    return set ? result : -ENOMEM;
}

int32_t
fbk_store_remove_locations(struct fbk_store *store, uint64_t file_id)
{
    for (uint32_t i = 0; i < store->set->count; i++) {
        if (store->set->files[i]->file_id != file_id)
            continue;
        struct fbk_file_set *set = copy_set(store, store->set->files[i], NULL);
        if (!set)
            return -ENOMEM;
        swap_set(store, set);
        return 0;
    }
    return -ENOENT;
}

int32_t
fbk_store_set_logs(struct fbk_store *store, const uint64_t *log_ids, uint32_t log_count)
{
    for (uint32_t i = 1; i < log_count; i++) {
        if (log_ids[i] <= log_ids[i - 1])
            return -EINVAL;
    }
    struct fbk_log_list *logs = malloc(sizeof *logs + log_count * sizeof logs->ids[0]);
    struct fbk_file_set *set = logs ? copy_set(store, NULL, NULL) : NULL;
    if (!set) {
        free(logs);
        return -ENOMEM;
    }
    logs->references = 1;
    logs->count = log_count;
    if (log_count > 0)
        memcpy(logs->ids, log_ids, log_count * sizeof logs->ids[0]);
    struct fbk_log_list *before = set->logs;
    set->logs = logs;
    swap_set(store, set);
    if (before)
        unref_logs(store, before);
    return 0;
}

uint64_t
fbk_store_old_sets(struct fbk_store *store)
{
    fbk_store_lock(store);
    uint64_t count = store->old_sets;
    fbk_store_unlock(store);
    return count;
}
