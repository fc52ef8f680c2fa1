/* A run from the cache or, once for all who want it, from its entry log. */
#include <time.h>

#include "base/segment.h"
#include "store/entry_log.h"
#include "store/parts.h"

/* Past the page cache, which may hold what the disk does not: the last word on a run that looks
 * damaged. */
static int32_t
read_run_directly(struct fbk_store *store, const struct fbk_location *location,
                  const uint64_t *salt, uint8_t *buffer)
{
    char path[FBK_STORE_PATH_BYTES];
    struct fbk_io *io = store->reader_io;
    uint64_t block = io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    uint64_t from = location->offset_bytes & ~(block - 1);
    uint64_t size = fbk_round_up(location->offset_bytes + location->size_bytes, block) - from;
    int32_t result = fbk_log_path(store, path, location->log_id);
    int32_t handle =
        result < 0 ? result : io->operations->open(io, path, FBK_IO_READ_ONLY | FBK_IO_DIRECT);
    if (handle < 0)
        return handle;
    uint8_t *memory = fbk_memory_take(size);
    result = memory ? fbk_store_read_all(io, handle, memory, size, from) : -ENOMEM;
    if (result >= 0) {
        memcpy(buffer, memory + (location->offset_bytes - from), location->size_bytes);
        result = fbk_run_check(buffer, location->size_bytes, location, salt);
    }
    if (memory)
        fbk_memory_give_back(memory, size);
    io->operations->close(io, handle);
    return result;
}

int32_t
fbk_run_read(struct fbk_store *store, const struct fbk_location *location, uint8_t *buffer)
{
    struct fbk_open_log *log;
    int32_t result = fbk_open_log_take(store, location->log_id, &log);
    if (result < 0)
        return result;
    const uint64_t *salt = log->has_salt ? &log->salt : NULL;
    result = fbk_store_read_all(store->reader_io, log->handle, buffer, location->size_bytes,
                                location->offset_bytes);
    if (result >= 0)
        result = fbk_run_check(buffer, location->size_bytes, location, salt);
    if (result != 0)
        result = read_run_directly(store, location, salt, buffer);
    fbk_open_log_let_go(store, log);
    return result;
}

static struct timespec
deadline_in(uint32_t ms)
{
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    uint64_t ns = (uint64_t)at.tv_nsec + ms % 1000 * 1000000ull;
    at.tv_sec += (time_t)(ms / 1000 + ns / 1000000000ull);
    at.tv_nsec = (long)(ns % 1000000000ull);
    return at;
}

bool
fbk_run_is_fetched_now(const struct fbk_store *store, const struct fbk_location *location)
{
    for (const struct fbk_fetch *fetch = store->fetches; fetch; fetch = fetch->next) {
        if (fetch->log_id == location->log_id && fetch->offset_bytes == location->offset_bytes)
            return true;
    }
    return false;
}

/* Mutex held.  Cached: *run.  Else a buffer to read into, with this location marked as under
 * way. */
static int32_t
wait_for_turn(struct fbk_store *store, const struct fbk_location *location, enum fbk_run_use use,
              struct fbk_cached_run **run, uint8_t **buffer, uint64_t *buffer_bytes)
{
    struct timespec deadline = deadline_in(store->options.room_timeout_ms);
    for (;;) {
        *run = fbk_read_cache_find_location(&store->read_cache, location);
        if (*run) {
            fbk_read_cache_use(&store->read_cache, *run, use);
            fbk_read_cache_pin(&store->read_cache, *run);
            store->counts.cache_hits++;
            return 0;
        }
        bool fetched_now = fbk_run_is_fetched_now(store, location);
        if (!fetched_now) {
            *buffer = fbk_read_cache_take_buffer(&store->read_cache, location->size_bytes, use,
                                                 buffer_bytes);
            if (*buffer)
                return 0;
        }
        if (store->stopping)
            return FBK_E_STOPPED;
        int waited = pthread_cond_timedwait(&store->room, &store->mutex, &deadline);
        if (waited == ETIMEDOUT)
            return FBK_E_FULL;
    }
}

void
fbk_run_fetch_ended(struct fbk_store *store, struct fbk_fetch *fetch)
{
    struct fbk_fetch **at = &store->fetches;
    while (*at != fetch)
        at = &(*at)->next;
    *at = fetch->next;
    pthread_cond_broadcast(&store->room);
}

void
fbk_store_note_damage(struct fbk_store *store, const struct fbk_location *location)
{
    for (uint32_t i = 0; i < store->damage_count; i++) {
        const struct fbk_location *known = &store->damage[i];
        if (known->log_id == location->log_id && known->offset_bytes == location->offset_bytes &&
            (known->ledger_id < 0) == (location->ledger_id < 0))
            return;
    }
    if (store->damage_count < FBK_DAMAGE_NOTES)
        store->damage[store->damage_count++] = *location;
}

uint32_t
fbk_store_take_damage(struct fbk_store *store, struct fbk_location *runs, uint32_t runs_max)
{
    fbk_store_lock(store);
    uint32_t count = store->damage_count < runs_max ? store->damage_count : runs_max;
    store->damage_count -= count;
    memcpy(runs, store->damage + store->damage_count, count * sizeof *runs);
    fbk_store_unlock(store);
    return count;
}

int32_t
fbk_run_fetch(struct fbk_store *store, const struct fbk_location *location, enum fbk_run_use use,
              struct fbk_cached_run **run)
{
    uint8_t *buffer = NULL;
    uint64_t buffer_bytes = 0;
    *run = NULL;
    fbk_store_lock(store);
    int32_t result = wait_for_turn(store, location, use, run, &buffer, &buffer_bytes);
    if (result < 0 || *run) {
        fbk_store_unlock(store);
        return result;
    }
    struct fbk_fetch fetch = {location->log_id, location->offset_bytes, store->fetches};
    store->fetches = &fetch;
    fbk_store_unlock(store);

    int32_t damaged = fbk_run_read(store, location, buffer);

    fbk_store_lock(store);
    store->counts.run_reads++;
    store->counts.run_read_bytes += location->size_bytes;
    if (damaged >= 0) {
        store->counts.damaged_entries += (uint32_t)damaged;
        *run = fbk_read_cache_insert(&store->read_cache, location, buffer, buffer_bytes, use);
        result = *run ? 0 : -ENOMEM;
    } else {
        store->counts.damaged_runs++;
        result = damaged;
    }
    if (damaged != 0 && damaged != -ENOMEM)
        fbk_store_note_damage(store, location);
    if (!*run)
        fbk_read_cache_return_buffer(&store->read_cache, buffer, buffer_bytes, use);
    fbk_run_fetch_ended(store, &fetch);
    fbk_store_unlock(store);
    return result;
}

void
fbk_run_let_go(struct fbk_store *store, struct fbk_cached_run *run)
{
    fbk_store_lock(store);
    fbk_read_cache_unpin(&store->read_cache, run);
    pthread_cond_broadcast(&store->room);
    fbk_store_unlock(store);
}
