/* Merging locations files, a few blocks at a time.  Runs in the background thread, streams, holds a
 * block or two a file. */
#include "store/parts.h"

#include "base/fault.h"

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

struct fbk_merge {
    struct fbk_store *store;
    struct fbk_merge_options options;
    struct fbk_scope_view view;
    struct fbk_file_writer writer;
    struct fbk_locations_writer to;
    struct fbk_merge_result result;
    struct merge_input *inputs;
    uint32_t count;
    uint64_t blocks_read;
    int64_t ledger_id; /* of the last location, then of the last state */
    int64_t entry_id;
    bool in_states;
    int32_t error;
};

/* The current location, NULL at the end; *error when it can't be read. */
static const struct fbk_location *
current_location(struct fbk_merge *merge, struct merge_input *input, int32_t *error)
{
    while (!input->walk.loaded || input->index >= input->walk.count) {
        if (input->next_block >= input->file->header.location_blocks)
            return NULL;
        int32_t count = fbk_walk_load(&input->walk, input->next_block);
        if (count < 0) {
            *error = count;
            return NULL;
        }
        merge->blocks_read++;
        input->next_block++;
        input->index = 0;
    }
    return &input->walk.locations[input->index];
}

static const struct fbk_ledger_state *
current_state(struct fbk_merge *merge, struct merge_input *input, int32_t *error)
{
    while (input->state_index >= input->state_count) {
        if (input->next_state_block >= input->file->header.state_blocks)
            return NULL;
        int32_t count = fbk_locations_state_block(merge->store, input->file,
                                                  input->next_state_block, input->states);
        if (count < 0) {
            *error = count;
            return NULL;
        }
        merge->blocks_read++;
        input->next_state_block++;
        input->state_count = count;
        input->state_index = 0;
    }
    return &input->states[input->state_index];
}

/* 1 = one location was taken from an input, 0 = there are no more. */
static int32_t
merge_location(struct fbk_merge *merge)
{
    int32_t error = 0;
    const struct fbk_location *least = NULL;
    uint32_t from = 0;
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct fbk_location *location = current_location(merge, &merge->inputs[i], &error);
        if (error < 0)
            return error;
        if (location &&
            (!least || fbk_location_compare(location->ledger_id, location->first_entry_id,
                                            least->ledger_id, least->first_entry_id) < 0)) {
            least = location;
            from = i;
        }
    }
    if (!least)
        return 0;
    if (fbk_location_compare(merge->ledger_id, merge->entry_id, least->ledger_id,
                             least->first_entry_id) > 0)
        return FBK_E_CORRUPT;
    merge->ledger_id = least->ledger_id;
    merge->entry_id = least->first_entry_id;
    if (fbk_scope_takes(&merge->view, least))
        fbk_locations_write_location(&merge->to, least);
    else
        merge->result.dropped_count++;
    merge->inputs[from].index++;
    return 1;
}

/* The same for states.  Inputs are in ascending generations: of equal ledgers the last one's state
 * is the newest. */
static int32_t
merge_state(struct fbk_merge *merge)
{
    int32_t error = 0;
    const struct fbk_ledger_state *least = NULL;
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct fbk_ledger_state *state = current_state(merge, &merge->inputs[i], &error);
        if (error < 0)
            return error;
        if (state && (!least || state->ledger_id <= least->ledger_id))
            least = state;
    }
    if (!least)
        return 0;
    if (least->ledger_id <= merge->ledger_id)
        return FBK_E_CORRUPT;
    merge->ledger_id = least->ledger_id;
    /* Never while locations of it go on: they would be those of a ledger that lives. */
    if (least->flags & FBK_LEDGER_DELETED &&
        least->deleted_s < merge->options.forget_deleted_before_s &&
        fbk_scope_deletes(merge->view.scope, least->ledger_id))
        merge->result.forgotten_count++;
    else
        fbk_locations_write_state(&merge->to, least);
    for (uint32_t i = 0; i < merge->count; i++) {
        const struct fbk_ledger_state *state = current_state(merge, &merge->inputs[i], &error);
        if (error < 0)
            return error;
        if (state && state->ledger_id == merge->ledger_id)
            merge->inputs[i].state_index++;
    }
    return 1;
}

int32_t
fbk_merge_step(struct fbk_merge *merge, uint64_t blocks_max)
{
    const uint64_t stop_at = merge->blocks_read + blocks_max;
    while (merge->error >= 0 && merge->blocks_read < stop_at) {
        int32_t taken = merge->in_states ? merge_state(merge) : merge_location(merge);
        if (taken < 0)
            merge->error = taken;
        else if (merge->writer.error < 0)
            merge->error = merge->writer.error;
        else if (taken == 0 && merge->in_states)
            return 0;
        else if (taken == 0) {
            merge->in_states = true;
            merge->ledger_id = -1;
        }
    }
    fbk_file_writer_settle(&merge->writer);
    return merge->error < 0 ? merge->error : 1;
}

static int32_t
open_inputs(struct fbk_merge *merge, const struct fbk_location_scope *scope)
{
    uint64_t generation = 0;
    for (uint32_t i = 0; i < scope->file_count; i++) {
        struct merge_input *input = &merge->inputs[i];
        struct fbk_locations_file *file = fbk_locations_take(merge->store, scope->file_ids[i]);
        if (!file)
            return -ENOENT;
        input->file = file; /* with a reference, for free_merge */
        merge->count++;
        if (file->damaged_whole || file->damaged_blocks > 0 || file->damaged_state_blocks > 0)
            return FBK_E_CORRUPT;
        if (i > 0 && file->header.first_generation <= generation)
            return -EINVAL;
        generation = file->header.last_generation;
        fbk_walk_begin(&input->walk, merge->store, file);
        input->walk.use = FBK_BLOCK_ONCE;
    }
    merge->result.first_generation = merge->inputs[0].file->header.first_generation;
    merge->result.last_generation = generation;
    return 0;
}

static void
free_merge(struct fbk_merge *merge)
{
    for (uint32_t i = 0; i < merge->count; i++)
        fbk_locations_unref(merge->store, merge->inputs[i].file);
    free(merge->inputs);
    fbk_file_writer_free(&merge->writer);
    free(merge);
}

struct fbk_merge *
fbk_merge_begin(struct fbk_store *store, const struct fbk_merge_options *options,
                const struct fbk_location_scope *scope, int32_t *error)
{
    *error = scope->file_count == 0 || scope->file_count > FBK_STORE_FILES_MAX ? -EINVAL : -ENOMEM;
    struct fbk_merge *merge = *error == -ENOMEM ? calloc(1, sizeof *merge) : NULL;
    if (!merge)
        return NULL;
    merge->store = store;
    merge->options = *options;
    merge->view = (struct fbk_scope_view){.scope = scope, .ledger_id = -1};
    merge->ledger_id = merge->entry_id = -1;
    merge->to.handle = -1;
    merge->inputs = calloc(scope->file_count, sizeof *merge->inputs);
    if (merge->inputs)
        *error = fbk_file_writer_init(&merge->writer, store->background_io);
    if (*error >= 0)
        *error = open_inputs(merge, scope);
    if (*error >= 0)
        *error = fbk_locations_write_begin(&merge->to, store, &merge->writer,
                                           options->merged_file_id, merge->result.first_generation,
                                           merge->result.last_generation, options->created_s);
    if (*error < 0) {
        free_merge(merge);
        return NULL;
    }
    return merge;
}

int32_t
fbk_merge_end(struct fbk_merge *merge, struct fbk_merge_result *result)
{
    if (merge->error < 0) {
        int32_t error = merge->error;
        fbk_merge_abandon(merge);
        return error;
    }
    FBK_KILL_POINT("index.merge_before_sync");
    int32_t error = fbk_locations_write_end(&merge->to, &merge->result.file_size_bytes);
    merge->result.location_count = merge->to.header.location_count;
    *result = merge->result;
    free_merge(merge);
    return error;
}

void
fbk_merge_abandon(struct fbk_merge *merge)
{
    fbk_locations_write_abandon(&merge->to);
    free_merge(merge);
}
