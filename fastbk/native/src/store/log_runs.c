/* Passes over all locations of some files: which runs of which logs live.  Streams, holds a block
 * and what is asked for. */
#include "store/parts.h"

static bool
has_id(const uint64_t *ids, uint64_t count, uint64_t id)
{
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (ids[middle] < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ids[low] == id;
}

bool
fbk_scope_deletes(const struct fbk_location_scope *scope, int64_t ledger_id)
{
    return has_id((const uint64_t *)scope->deleted, scope->deleted_count, (uint64_t)ledger_id);
}

bool
fbk_scope_takes(struct fbk_scope_view *view, const struct fbk_location *location)
{
    const struct fbk_location_scope *scope = view->scope;
    if (location->ledger_id != view->ledger_id) {
        view->ledger_id = location->ledger_id;
        view->is_deleted = fbk_scope_deletes(scope, location->ledger_id);
    }
    if (view->is_deleted)
        return false;
    return !scope->log_ids || location->flags & FBK_LOCATION_DAMAGED ||
           has_id(scope->log_ids, scope->log_count, location->log_id);
}

typedef int32_t take_location(void *context, const struct fbk_location *location);

/* Gives `take` each location of the scope that lies in a log.  ledger_id -1: of all ledgers. */
static int32_t
pass_over_file(struct fbk_store *store, const struct fbk_locations_file *file,
               struct fbk_scope_view *view, int64_t ledger_id, take_location *take, void *context)
{
    struct fbk_walk walk;
    if (file->damaged_whole || file->damaged_blocks > 0)
        return FBK_E_CORRUPT;
    fbk_walk_begin(&walk, store, file);
    walk.use = ledger_id < 0 ? FBK_BLOCK_ONCE : FBK_BLOCK_KEPT;
    int64_t block = ledger_id < 0 ? 0 : fbk_walk_block_of(file, ledger_id, -1);
    for (uint64_t b = block < 0 ? 0 : (uint64_t)block; b < file->header.location_blocks; b++) {
        if (ledger_id >= 0 && file->keys[b].ledger_id > ledger_id)
            break;
        int32_t count = fbk_walk_load(&walk, b);
        if (count < 0)
            return count;
        for (int32_t i = 0; i < count; i++) {
            const struct fbk_location *location = &walk.locations[i];
            if ((ledger_id >= 0 && location->ledger_id != ledger_id) ||
                location->flags & FBK_LOCATION_DAMAGED || !fbk_scope_takes(view, location))
                continue;
            int32_t result = take(context, location);
            if (result < 0)
                return result;
        }
    }
    return 0;
}

/* All files are taken before the first is read: a merge that ends meanwhile takes none of them
 * away. */
static int32_t
pass_over(struct fbk_store *store, const struct fbk_location_scope *scope, take_location *take,
          void *context)
{
    struct fbk_locations_file *files[FBK_STORE_FILES_MAX];
    struct fbk_scope_view view = {.scope = scope, .ledger_id = -1};
    int32_t result = scope->file_count > FBK_STORE_FILES_MAX ? -EINVAL : 0;
    uint32_t taken = 0;
    for (; result >= 0 && taken < scope->file_count; taken++) {
        files[taken] = fbk_locations_take(store, scope->file_ids[taken]);
        if (!files[taken]) {
            result = -ENOENT;
            break;
        }
    }
    for (uint32_t i = 0; i < taken; i++) {
        if (result >= 0)
            result = pass_over_file(store, files[i], &view, -1, take, context);
        fbk_locations_unref(store, files[i]);
    }
    return result;
}

/* ------------ live bytes */

struct byte_counts {
    struct fbk_log_bytes *pairs;
    uint64_t pairs_max;
    uint64_t count;
};

static int32_t
count_bytes(void *context, const struct fbk_location *location)
{
    struct byte_counts *counts = context;
    uint64_t low = 0, high = counts->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (counts->pairs[middle].log_id < location->log_id)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == counts->count || counts->pairs[low].log_id != location->log_id) {
        if (counts->count == counts->pairs_max)
            return -E2BIG;
        memmove(&counts->pairs[low + 1], &counts->pairs[low],
                (counts->count - low) * sizeof counts->pairs[0]);
        counts->pairs[low] = (struct fbk_log_bytes){.log_id = location->log_id};
        counts->count++;
    }
    counts->pairs[low].bytes += location->size_bytes;
    return 0;
}

int64_t
fbk_store_log_bytes(struct fbk_store *store, const struct fbk_location_scope *scope,
                    struct fbk_log_bytes *pairs, uint64_t pairs_max)
{
    struct byte_counts counts = {.pairs = pairs, .pairs_max = pairs_max};
    int32_t result = pass_over(store, scope, count_bytes, &counts);
    return result < 0 ? result : (int64_t)counts.count;
}

int64_t
fbk_store_ledger_bytes(struct fbk_store *store, int64_t ledger_id, struct fbk_log_bytes *pairs,
                       uint64_t pairs_max)
{
    struct byte_counts counts = {.pairs = pairs, .pairs_max = pairs_max};
    struct fbk_file_set *set = fbk_file_set_take(store);
    struct fbk_location_scope scope = {
        .log_ids = set->logs ? set->logs->ids : NULL,
        .log_count = set->logs ? set->logs->count : 0,
    };
    struct fbk_scope_view view = {.scope = &scope, .ledger_id = -1};
    int32_t result = 0;
    for (uint32_t i = 0; i < set->count && result >= 0; i++)
        result = pass_over_file(store, set->files[i], &view, ledger_id, count_bytes, &counts);
    fbk_file_set_unref(store, set);
    return result < 0 ? result : (int64_t)counts.count;
}

/* ------------ runs in the order of a log */

/* The least runs so far: a heap with the greatest of them on top. */
struct least_runs {
    struct fbk_location *runs;
    uint64_t runs_max;
    uint64_t count;
    uint64_t from_log_id;
    uint64_t from_offset_bytes;
};

static bool
lies_before(const struct fbk_location *a, const struct fbk_location *b)
{
    return a->log_id != b->log_id ? a->log_id < b->log_id : a->offset_bytes < b->offset_bytes;
}

/* Puts `location` into the hole at `at` of a heap of `count`, or below it. */
static void
sink(struct fbk_location *heap, uint64_t count, uint64_t at, struct fbk_location location)
{
    for (;;) {
        uint64_t child = 2 * at + 1;
        if (child >= count)
            break;
        if (child + 1 < count && lies_before(&heap[child], &heap[child + 1]))
            child++;
        if (!lies_before(&location, &heap[child]))
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = location;
}

static int32_t
take_run(void *context, const struct fbk_location *location)
{
    struct least_runs *least = context;
    if (location->log_id < least->from_log_id ||
        (location->log_id == least->from_log_id &&
         location->offset_bytes < least->from_offset_bytes))
        return 0;
    if (least->count < least->runs_max) {
        uint64_t at = least->count++;
        while (at > 0 && lies_before(&least->runs[(at - 1) / 2], location)) {
            least->runs[at] = least->runs[(at - 1) / 2];
            at = (at - 1) / 2;
        }
        least->runs[at] = *location;
    } else if (lies_before(location, &least->runs[0])) {
        sink(least->runs, least->count, 0, *location);
    }
    return 0;
}

int64_t
fbk_store_log_runs(struct fbk_store *store, const struct fbk_location_scope *scope,
                   uint64_t from_log_id, uint64_t from_offset_bytes, struct fbk_location *runs,
                   uint64_t runs_max)
{
    struct least_runs least = {
        .runs = runs,
        .runs_max = runs_max,
        .from_log_id = from_log_id,
        .from_offset_bytes = from_offset_bytes,
    };
    if (runs_max == 0)
        return -EINVAL;
    int32_t result = pass_over(store, scope, take_run, &least);
    if (result < 0)
        return result;
    for (uint64_t count = least.count; count > 1;) {
        struct fbk_location last = runs[--count];
        struct fbk_location top = runs[0];
        sink(runs, count, 0, last);
        runs[count] = top;
    }
    return (int64_t)least.count;
}

/* ------------ states */

int32_t
fbk_store_count_states(struct fbk_store *store, const uint64_t *file_ids, uint32_t file_count,
                       uint64_t deleted_before_s, uint64_t *states, uint64_t *forgettable)
{
    struct fbk_ledger_state block_states[FBK_STATES_PER_BLOCK];
    int32_t result = 0;
    *states = *forgettable = 0;
    for (uint32_t i = 0; i < file_count && result >= 0; i++) {
        struct fbk_locations_file *file = fbk_locations_take(store, file_ids[i]);
        if (!file)
            return -ENOENT;
        for (uint64_t block = 0; block < file->header.state_blocks && result >= 0; block++) {
            result = fbk_locations_state_block(store, file, block, block_states);
            for (int32_t s = 0; s < result; s++) {
                const struct fbk_ledger_state *state = &block_states[s];
                ++*states;
                *forgettable +=
                    state->flags & FBK_LEDGER_DELETED && state->deleted_s < deleted_before_s;
            }
        }
        fbk_locations_unref(store, file);
    }
    return result < 0 ? result : 0;
}
