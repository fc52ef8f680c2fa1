/* Merging locations files, and counting live bytes.  Runs in the flush thread, streams, holds a few blocks a file. */
#include "fbk_checksum.h"
#include "fbk_store_parts.h"

/* One input: a file's locations and states, a block at a time. */
struct merge_input {
    struct fbk_walk walk;
    struct fbk_locations_file *file;
    uint64_t next_block;
    int32_t index;
    uint64_t next_state_block;
    int32_t state_count;
    int32_t state_index;
    struct fbk_ledger_state states[FBK_STATES_PER_BLOCK];
};

/* The current location, NULL at the end; *error when it can't be read. */
static const struct fbk_location *
current_location(struct merge_input *input, int32_t *error)
{
    while (!input->walk.loaded || input->index >= input->walk.count) {
        if (input->next_block >= input->file->header.location_blocks)
            return NULL;
        int32_t count = fbk_walk_load(&input->walk, input->next_block);
        if (count < 0) {
            *error = count;
            return NULL;
        }
        input->next_block++;
        input->index = 0;
    }
    return &input->walk.locations[input->index];
}

static const struct fbk_ledger_state *
current_state(struct merge_input *input, struct fbk_store *store, int32_t *error)
{
    while (input->state_index >= input->state_count) {
        if (input->next_state_block >= input->file->header.state_blocks)
            return NULL;
        int32_t count = fbk_locations_state_block(store, input->file, input->next_state_block, input->states);
        if (count < 0) {
            *error = count;
            return NULL;
        }
        input->next_state_block++;
        input->state_count = count;
        input->state_index = 0;
    }
    return &input->states[input->state_index];
}

static bool
is_deleted(const int64_t *deleted, uint64_t deleted_count, int64_t ledger_id)
{
    uint64_t low = 0, high = deleted_count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (deleted[middle] < ledger_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < deleted_count && deleted[low] == ledger_id;
}

static int32_t
merge_locations(struct fbk_locations_writer *to, struct merge_input *inputs, uint32_t count, const int64_t *deleted,
                uint64_t deleted_count, struct fbk_merge_result *result)
{
    int64_t ledger_id = -1, entry_id = -1;
    for (;;) {
        int32_t error = 0;
        const struct fbk_location *least = NULL;
        uint32_t from = 0;
        for (uint32_t i = 0; i < count; i++) {
            const struct fbk_location *location = current_location(&inputs[i], &error);
            if (error < 0)
                return error;
            if (location && (!least || fbk_location_compare(location->ledger_id, location->first_entry_id,
                                                            least->ledger_id, least->first_entry_id) < 0)) {
                least = location;
                from = i;
            }
        }
        if (!least)
            return 0;
        if (fbk_location_compare(ledger_id, entry_id, least->ledger_id, least->first_entry_id) > 0)
            return FBK_E_CORRUPT;
        ledger_id = least->ledger_id;
        entry_id = least->first_entry_id;
        if (is_deleted(deleted, deleted_count, ledger_id))
            result->dropped_count++;
        else
            fbk_locations_write_location(to, least);
        inputs[from].index++;
    }
}

/* Inputs are in ascending generations: of equal ledgers the last one's state is the newest. */
static int32_t
merge_states(struct fbk_locations_writer *to, struct fbk_store *store, struct merge_input *inputs, uint32_t count,
             uint64_t forget_before_s)
{
    int64_t previous = -1;
    for (;;) {
        int32_t error = 0;
        const struct fbk_ledger_state *least = NULL;
        for (uint32_t i = 0; i < count; i++) {
            const struct fbk_ledger_state *state = current_state(&inputs[i], store, &error);
            if (error < 0)
                return error;
            if (state && (!least || state->ledger_id <= least->ledger_id))
                least = state;
        }
        if (!least)
            return 0;
        if (least->ledger_id <= previous)
            return FBK_E_CORRUPT;
        previous = least->ledger_id;
        if (!(least->flags & FBK_LEDGER_DELETED) || least->deleted_s >= forget_before_s)
            fbk_locations_write_state(to, least);
        for (uint32_t i = 0; i < count; i++) {
            const struct fbk_ledger_state *state = current_state(&inputs[i], store, &error);
            if (error < 0)
                return error;
            if (state && state->ledger_id == previous)
                inputs[i].state_index++;
        }
    }
}

static int32_t
open_inputs(struct fbk_store *store, const uint64_t *file_ids, uint32_t count, struct merge_input *inputs)
{
    uint64_t generation = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct fbk_locations_file *file = fbk_locations_take(store, file_ids[i]);
        if (!file)
            return -ENOENT;
        inputs[i].file = file; /* with a reference, for close_inputs */
        if (file->damaged_whole || file->damaged_blocks > 0 || file->damaged_state_blocks > 0)
            return FBK_E_CORRUPT;
        if (i > 0 && file->header.first_generation <= generation)
            return -EINVAL;
        generation = file->header.last_generation;
        fbk_walk_begin(&inputs[i].walk, store, file);
        inputs[i].walk.once = true;
    }
    return 0;
}

static void
close_inputs(struct fbk_store *store, struct merge_input *inputs, uint32_t count)
{
    for (uint32_t i = 0; inputs && i < count; i++) {
        if (inputs[i].file)
            fbk_locations_unref(store, inputs[i].file);
    }
    free(inputs);
}

int32_t
fbk_merge_locations(struct fbk_store *store, const struct fbk_merge_options *options, const uint64_t *file_ids,
                    uint32_t file_count, const int64_t *deleted, uint64_t deleted_count,
                    struct fbk_merge_result *merged)
{
    memset(merged, 0, sizeof *merged);
    if (file_count == 0 || file_count > FBK_STORE_FILES_MAX)
        return -EINVAL;
    if (store->writing)
        return -EBUSY;
    struct merge_input *inputs = calloc(file_count, sizeof *inputs);
    struct fbk_locations_writer *to = calloc(1, sizeof *to);
    int32_t result = inputs && to ? open_inputs(store, file_ids, file_count, inputs) : -ENOMEM;
    if (result >= 0) {
        merged->first_generation = inputs[0].file->header.first_generation;
        merged->last_generation = inputs[file_count - 1].file->header.last_generation;
        result = fbk_locations_write_begin(to, store, options->merged_file_id, merged->first_generation,
                                           merged->last_generation, options->created_s);
        if (result >= 0)
            result = merge_locations(to, inputs, file_count, deleted, deleted_count, merged);
        if (result >= 0)
            result = merge_states(to, store, inputs, file_count, options->forget_deleted_before_s);
        if (result >= 0) {
            result = fbk_locations_write_end(to, &merged->file_size_bytes);
            merged->location_count = to->header.location_count;
        } else {
            fbk_locations_write_abandon(to);
        }
    }
    free(to);
    close_inputs(store, inputs, file_count);
    return result;
}

/* ---------------------------------------------------------------- live bytes */

struct byte_counts {
    struct fbk_log_bytes *pairs;
    uint64_t pairs_max;
    uint64_t count;
};

static int32_t
count_bytes(struct byte_counts *counts, const struct fbk_location *location)
{
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
        memmove(&counts->pairs[low + 1], &counts->pairs[low], (counts->count - low) * sizeof counts->pairs[0]);
        counts->pairs[low] = (struct fbk_log_bytes){.log_id = location->log_id};
        counts->count++;
    }
    counts->pairs[low].bytes += location->size_bytes;
    return 0;
}

/* ledger_id -1: of all ledgers. */
static int32_t
count_file(struct fbk_store *store, struct fbk_locations_file *file, const struct fbk_log_list *logs, int64_t ledger_id,
           struct byte_counts *counts)
{
    struct fbk_walk walk;
    if (file->damaged_whole || file->damaged_blocks > 0)
        return FBK_E_CORRUPT;
    fbk_walk_begin(&walk, store, file);
    walk.once = ledger_id < 0;
    int64_t block = ledger_id < 0 ? 0 : fbk_walk_block_of(file, ledger_id, -1);
    for (uint64_t b = block < 0 ? 0 : (uint64_t)block; b < file->header.location_blocks; b++) {
        if (ledger_id >= 0 && file->keys[b].ledger_id > ledger_id)
            break;
        int32_t count = fbk_walk_load(&walk, b);
        if (count < 0)
            return count;
        for (int32_t i = 0; i < count; i++) {
            const struct fbk_location *location = &walk.locations[i];
            if ((ledger_id >= 0 && location->ledger_id != ledger_id) || location->flags & FBK_LOCATION_DAMAGED ||
                !fbk_location_counts(logs, location))
                continue;
            int32_t result = count_bytes(counts, location);
            if (result < 0)
                return result;
        }
    }
    return 0;
}

int64_t
fbk_store_ledger_bytes(struct fbk_store *store, int64_t ledger_id, struct fbk_log_bytes *pairs, uint64_t pairs_max)
{
    struct byte_counts counts = {.pairs = pairs, .pairs_max = pairs_max};
    struct fbk_file_set *set = fbk_file_set_take(store);
    int32_t result = 0;
    for (uint32_t i = 0; i < set->count && result >= 0; i++)
        result = count_file(store, set->files[i], set->logs, ledger_id, &counts);
    fbk_file_set_unref(store, set);
    return result < 0 ? result : (int64_t)counts.count;
}

int64_t
fbk_store_log_bytes(struct fbk_store *store, const uint64_t *file_ids, uint32_t file_count,
                    struct fbk_log_bytes *pairs, uint64_t pairs_max)
{
    struct byte_counts counts = {.pairs = pairs, .pairs_max = pairs_max};
    struct fbk_file_set *set = fbk_file_set_take(store);
    int32_t result = 0;
    for (uint32_t i = 0; i < file_count && result >= 0; i++) {
        struct fbk_locations_file *file = fbk_locations_take(store, file_ids[i]);
        result = file ? count_file(store, file, set->logs, -1, &counts) : -ENOENT;
        if (file)
            fbk_locations_unref(store, file);
    }
    fbk_file_set_unref(store, set);
    return result < 0 ? result : (int64_t)counts.count;
}
