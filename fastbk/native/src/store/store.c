/* The store's life, ledger states out of files, and what the main loop calls a read. */
#include "store/parts.h"

#include "base/segment.h"

static int32_t
init_locks(struct fbk_store *store)
{
    pthread_condattr_t attributes;
    int result = pthread_mutex_init(&store->mutex, NULL);
    if (result == 0)
        result = pthread_condattr_init(&attributes);
    if (result == 0) {
        pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
        result = pthread_cond_init(&store->work, &attributes);
        if (result == 0)
            result = pthread_cond_init(&store->room, &attributes);
        pthread_condattr_destroy(&attributes);
    }
    return -result;
}

static int32_t
init_parts(struct fbk_store *store)
{
    const struct fbk_store_options *options = &store->options;
    store->results = calloc(options->read_jobs_max, sizeof *store->results);
    store->logs = calloc(options->log_files_max, sizeof *store->logs);
    store->set = calloc(1, sizeof *store->set);
    if (!store->results || !store->logs || !store->set)
        return -ENOMEM;
    store->set->references = 1;
    for (uint32_t i = 0; i < options->log_files_max; i++)
        store->logs[i].handle = -1;
    int32_t result = fbk_block_cache_init(&store->block_cache, options->block_cache_size_bytes);
    if (result >= 0)
        result = fbk_read_cache_init(&store->read_cache, options->read_cache_size_bytes);
    if (result >= 0)
        result = fbk_read_queue_init(&store->queue, options->read_jobs_max);
    if (result >= 0)
        result = fbk_file_writer_init(&store->writer, store->io);
    return result;
}

struct fbk_store *
fbk_store_create(const struct fbk_store_options *options, struct fbk_io *io,
                 struct fbk_io *reader_io, int32_t *error)
{
    struct fbk_store *store = calloc(1, sizeof *store);
    if (!store) {
        *error = -ENOMEM;
        return NULL;
    }
    store->options = *options;
    store->io = io;
    store->reader_io = reader_io;
    store->background_io = io;
    if (store->options.read_jobs_max == 0)
        store->options.read_jobs_max = 1;
    if (store->options.log_files_max == 0)
        store->options.log_files_max = 1;
    int length =
        snprintf(store->directory, sizeof store->directory, "%s", options->ledger_directory);
    store->options.ledger_directory = store->directory;
    bool fits = length >= 0 && (size_t)length < sizeof store->directory - 64;
    if (options->journal_directory) {
        length = snprintf(store->journal_directory, sizeof store->journal_directory, "%s",
                          options->journal_directory);
        fits = fits && length >= 0 && (size_t)length < sizeof store->journal_directory - 64;
    }
    store->options.journal_directory = NULL;
    *error = fits ? init_locks(store) : -ENAMETOOLONG;
    if (*error < 0) {
        free(store);
        return NULL;
    }
    *error = init_parts(store);
    if (*error < 0) {
        fbk_store_destroy(store);
        return NULL;
    }
    return store;
}

void
fbk_store_destroy(struct fbk_store *store)
{
    FBK_ASSERT(!store->writing);
    /* Finished jobs that nobody collected still pin their runs. */
    struct fbk_store_result result;
    while (store->results && fbk_store_collect(store, &result, 1) == 1) {
        if (result.run)
            fbk_store_release(store, result.run);
    }
    while (store->prepared_count > 0)
        fbk_locations_unref(store, store->prepared[--store->prepared_count]);
    if (store->set)
        fbk_file_set_unref(store, store->set);
    fbk_open_logs_close(store);
    fbk_read_cache_free(&store->read_cache);
    fbk_block_cache_free(&store->block_cache);
    fbk_file_writer_free(&store->writer);
    free(store->logs);
    fbk_read_queue_free(&store->queue);
    free(store->results);
    pthread_cond_destroy(&store->work);
    pthread_cond_destroy(&store->room);
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

void
fbk_store_set_background(struct fbk_store *store, struct fbk_io *io)
{
    store->background_io = io;
}

void
fbk_store_forget_ledgers(struct fbk_store *store, const int64_t *ledger_ids, uint64_t count)
{
    fbk_store_lock(store);
    fbk_read_cache_forget_ledgers(&store->read_cache, ledger_ids, count);
    fbk_store_unlock(store);
}

/* ------------ states */

uint64_t
fbk_store_state_count(struct fbk_store *store, uint64_t file_id)
{
    struct fbk_locations_file *file = fbk_locations_take(store, file_id);
    uint64_t count = file ? file->header.state_count : 0;
    if (file)
        fbk_locations_unref(store, file);
    return count;
}

int32_t
fbk_store_read_error(struct fbk_store *store, uint64_t file_id)
{
    struct fbk_locations_file *file = fbk_locations_take(store, file_id);
    int32_t error = file ? -file->read_error : 0;
    if (file)
        fbk_locations_unref(store, file);
    return error;
}

int64_t
fbk_store_load_states(struct fbk_store *store, uint64_t file_id,
                      void (*take)(void *context, const struct fbk_ledger_state *state),
                      void *context)
{
    struct fbk_ledger_state states[FBK_STATES_PER_BLOCK];
    struct fbk_locations_file *file = fbk_locations_take(store, file_id);
    if (!file)
        return -ENOENT;
    int64_t total = 0;
    bool damaged = file->damaged_whole && !file->read_error;
    int32_t error = file->damaged_whole ? file->read_error : 0;
    for (uint64_t block = 0; block < file->header.state_blocks; block++) {
        int32_t count = fbk_locations_state_block(store, file, block, states);
        damaged = damaged || count == FBK_E_CORRUPT || count == -ENODATA;
        error = count < 0 ? count : error;
        for (int32_t i = 0; i < count; i++)
            take(context, &states[i]);
        total += count > 0 ? count : 0;
    }
    fbk_locations_unref(store, file);
    if (damaged)
        return FBK_E_CORRUPT;
    return error < 0 ? error : total;
}

struct state_copy {
    uint8_t *to;
    uint64_t count;
    uint64_t count_max;
};

static void
copy_state(void *context, const struct fbk_ledger_state *state)
{
    struct state_copy *copy = context;
    if (copy->count < copy->count_max)
        memcpy(copy->to + copy->count * sizeof *state, state, sizeof *state);
    copy->count++;
}

int64_t
fbk_store_copy_states(struct fbk_store *store, uint64_t file_id, uint8_t *states,
                      uint64_t states_max)
{
    struct state_copy copy = {.to = states, .count_max = states_max};
    return fbk_store_load_states(store, file_id, copy_state, &copy);
}

/* ------------ what the main loop calls a read */

const struct fbk_run *
fbk_store_cached(struct fbk_store *store, int64_t ledger_id, int64_t entry_id, int32_t scan)
{
    enum fbk_run_use use = scan ? FBK_RUN_SCAN : FBK_RUN_KEPT;
    fbk_store_lock(store);
    struct fbk_cached_run *run = fbk_read_cache_find(&store->read_cache, ledger_id, entry_id, use);
    if (run) {
        fbk_read_cache_pin(&store->read_cache, run);
        store->counts.cache_hits++;
    }
    fbk_store_unlock(store);
    return run ? &run->run : NULL;
}

void
fbk_store_consumed(struct fbk_store *store, const struct fbk_run *run)
{
    fbk_store_lock(store);
    fbk_read_cache_consumed(&store->read_cache, (struct fbk_cached_run *)(uintptr_t)run);
    fbk_store_unlock(store);
}

void
fbk_store_release(struct fbk_store *store, const struct fbk_run *run)
{
    fbk_run_let_go(store, (struct fbk_cached_run *)(uintptr_t)run);
}

uint64_t
fbk_store_align_bytes(const struct fbk_store *store)
{
    return store->writer.align_bytes;
}

uint64_t
fbk_store_cache_bytes(const struct fbk_store *store)
{
    return store->options.read_cache_size_bytes;
}

void
fbk_store_counts_get(struct fbk_store *store, struct fbk_store_counts *counts)
{
    fbk_store_lock(store);
    *counts = store->counts;
    counts->cache_bytes = store->read_cache.bytes;
    counts->cache_entries = store->read_cache.entries;
    counts->pinned_bytes = store->read_cache.pinned_bytes;
    counts->jobs = store->jobs_under_way;
    fbk_store_unlock(store);
}
