/* A run from the cache or, once for all who want it, from its entry log. */
#include <time.h>

#include "fbk_entry_log.h"
#include "fbk_segment.h"
#include "fbk_store_parts.h"

/* ---------------------------------------------------------------- open entry logs */

static struct fbk_open_log *
find_open_log(struct fbk_store *store, uint64_t log_id)
{
    for (uint32_t i = 0; i < store->options.log_files_max; i++) {
        struct fbk_open_log *log = &store->logs[i];
        if (log->handle >= 0 && log->log_id == log_id && !log->forgotten)
            return log;
    }
    return NULL;
}

/* A free slot, made by closing the least recently used log if need be; *close_handle is for the caller to close
 * once the mutex is released.  NULL: all are in use. */
static struct fbk_open_log *
take_slot(struct fbk_store *store, int32_t *close_handle)
{
    struct fbk_open_log *best = NULL;
    *close_handle = -1;
    for (uint32_t i = 0; i < store->options.log_files_max; i++) {
        struct fbk_open_log *log = &store->logs[i];
        if (log->handle < 0)
            return log;
        if (log->pins == 0 && (!best || log->used < best->used))
            best = log;
    }
    if (best) {
        *close_handle = best->handle;
        best->handle = -1;
    }
    return best;
}

/* Opens a log and reads its header; the salt of a log whose header is unreadable stays unknown, its runs are then
 * judged by their own checksums alone. */
static int32_t
open_log(struct fbk_store *store, uint64_t log_id, int32_t *handle, bool *has_salt, uint64_t *salt)
{
    char path[FBK_STORE_PATH_BYTES];
    struct fbk_io *io = store->reader_io;
    _Alignas(FBK_PAGE_BYTES) uint8_t block[FBK_PAGE_BYTES];
    struct fbk_log_header header;
    int32_t result = fbk_store_path(store, path, "logs", log_id, "log");
    if (result < 0)
        return result;
    *handle = io->operations->open(io, path, FBK_IO_READ_ONLY);
    if (*handle < 0)
        return *handle;
    result = fbk_store_read_all(io, *handle, block, sizeof block, 0);
    if (result >= 0)
        result = fbk_log_header_check(block, log_id, store->options.incarnation, &header);
    if (result == FBK_E_TOO_NEW) {
        io->operations->close(io, *handle);
        return result;
    }
    *has_salt = result >= 0;
    *salt = *has_salt ? header.salt : 0;
    return 0;
}

/* A pinned open log. */
static int32_t
take_log(struct fbk_store *store, uint64_t log_id, struct fbk_open_log **out)
{
    int32_t handle = -1, spare = -1;
    bool has_salt = false;
    uint64_t salt = 0;
    fbk_store_lock(store);
    struct fbk_open_log *log = find_open_log(store, log_id);
    if (log) {
        log->pins++;
        log->used = ++store->log_clock;
    }
    fbk_store_unlock(store);
    *out = log;
    if (log)
        return 0;

    int32_t result = open_log(store, log_id, &handle, &has_salt, &salt);
    if (result < 0)
        return result;
    fbk_store_lock(store);
    log = find_open_log(store, log_id); /* somebody else may have been faster */
    if (log) {
        spare = handle;
    } else {
        log = take_slot(store, &spare);
        if (log)
            *log = (struct fbk_open_log){.log_id = log_id, .handle = handle, .has_salt = has_salt, .salt = salt};
        else
            spare = handle;
    }
    if (log) {
        log->pins++;
        log->used = ++store->log_clock;
    }
    fbk_store_unlock(store);
    if (spare >= 0)
        store->reader_io->operations->close(store->reader_io, spare);
    *out = log;
    return log ? 0 : -EMFILE;
}

static void
let_log_go(struct fbk_store *store, struct fbk_open_log *log)
{
    int32_t close_handle = -1;
    fbk_store_lock(store);
    FBK_ASSERT(log->pins > 0);
    if (--log->pins == 0 && log->forgotten) {
        close_handle = log->handle;
        log->handle = -1;
    }
    fbk_store_unlock(store);
    if (close_handle >= 0)
        store->reader_io->operations->close(store->reader_io, close_handle);
}

void
fbk_open_logs_close(struct fbk_store *store)
{
    for (uint32_t i = 0; store->logs && i < store->options.log_files_max; i++) {
        FBK_ASSERT(store->logs[i].pins == 0);
        if (store->logs[i].handle >= 0)
            store->reader_io->operations->close(store->reader_io, store->logs[i].handle);
        store->logs[i].handle = -1;
    }
}

void
fbk_store_forget_log(struct fbk_store *store, uint64_t log_id)
{
    int32_t close_handle = -1;
    fbk_store_lock(store);
    struct fbk_open_log *log = find_open_log(store, log_id);
    if (log && log->pins > 0) {
        log->forgotten = true;
    } else if (log) {
        close_handle = log->handle;
        log->handle = -1;
    }
    fbk_read_cache_forget_log(&store->read_cache, log_id);
    fbk_store_unlock(store);
    if (close_handle >= 0)
        store->reader_io->operations->close(store->reader_io, close_handle);
}

/* ---------------------------------------------------------------- fetching */

/* Past the page cache, which may hold what the disk does not: the last word on a run that looks damaged. */
static int32_t
read_run_directly(struct fbk_store *store, const struct fbk_location *location, const uint64_t *salt, uint8_t *buffer)
{
    char path[FBK_STORE_PATH_BYTES];
    struct fbk_io *io = store->reader_io;
    uint64_t block = io->block_size_bytes > FBK_PAGE_BYTES ? io->block_size_bytes : FBK_PAGE_BYTES;
    uint64_t from = location->offset_bytes & ~(block - 1);
    uint64_t size = fbk_round_up(location->offset_bytes + location->size_bytes, block) - from;
    int32_t result = fbk_store_path(store, path, "logs", location->log_id, "log");
    int32_t handle = result < 0 ? result : io->operations->open(io, path, FBK_IO_READ_ONLY | FBK_IO_DIRECT);
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

/* Reads and checks into `buffer`.  Returns the count of damaged entries or < 0. */
static int32_t
read_run(struct fbk_store *store, const struct fbk_location *location, uint8_t *buffer)
{
    struct fbk_open_log *log;
    int32_t result = take_log(store, location->log_id, &log);
    if (result < 0)
        return result;
    const uint64_t *salt = log->has_salt ? &log->salt : NULL;
    result = fbk_store_read_all(store->reader_io, log->handle, buffer, location->size_bytes, location->offset_bytes);
    if (result >= 0)
        result = fbk_run_check(buffer, location->size_bytes, location, salt);
    if (result != 0)
        result = read_run_directly(store, location, salt, buffer);
    let_log_go(store, log);
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

static bool
is_fetched_now(const struct fbk_store *store, const struct fbk_location *location)
{
    for (const struct fbk_fetch *fetch = store->fetches; fetch; fetch = fetch->next) {
        if (fetch->log_id == location->log_id && fetch->offset_bytes == location->offset_bytes)
            return true;
    }
    return false;
}

/* Mutex held.  Cached: *run.  Else a buffer to read into, with this location marked as under way. */
static int32_t
wait_for_turn(struct fbk_store *store, const struct fbk_location *location, bool may_wait,
              struct fbk_cached_run **run, uint8_t **buffer, uint64_t *buffer_bytes)
{
    struct timespec deadline = deadline_in(store->options.room_timeout_ms);
    for (;;) {
        *run = fbk_read_cache_find_location(&store->read_cache, location);
        if (*run) {
            fbk_read_cache_pin(&store->read_cache, *run);
            store->counts.cache_hits++;
            return 0;
        }
        bool fetched_now = is_fetched_now(store, location);
        if (!fetched_now) {
            *buffer = fbk_read_cache_take_buffer(&store->read_cache, location->size_bytes, buffer_bytes);
            if (*buffer)
                return 0;
        }
        if (store->stopping)
            return FBK_E_STOPPED;
        if (!may_wait)
            return FBK_E_FULL;
        int waited = pthread_cond_timedwait(&store->room, &store->mutex, &deadline);
        if (waited == ETIMEDOUT)
            return FBK_E_FULL;
    }
}

static void
end_fetch(struct fbk_store *store, struct fbk_fetch *fetch)
{
    struct fbk_fetch **at = &store->fetches;
    while (*at != fetch)
        at = &(*at)->next;
    *at = fetch->next;
    pthread_cond_broadcast(&store->room);
}

int32_t
fbk_run_fetch(struct fbk_store *store, const struct fbk_location *location, bool may_wait, struct fbk_cached_run **run)
{
    uint8_t *buffer = NULL;
    uint64_t buffer_bytes = 0;
    *run = NULL;
    fbk_store_lock(store);
    int32_t result = wait_for_turn(store, location, may_wait, run, &buffer, &buffer_bytes);
    if (result < 0 || *run) {
        fbk_store_unlock(store);
        return result;
    }
    struct fbk_fetch fetch = {location->log_id, location->offset_bytes, store->fetches};
    store->fetches = &fetch;
    fbk_store_unlock(store);

    int32_t damaged = read_run(store, location, buffer);

    fbk_store_lock(store);
    store->counts.run_reads++;
    store->counts.run_read_bytes += location->size_bytes;
    if (damaged >= 0) {
        store->counts.damaged_entries += (uint32_t)damaged;
        *run = fbk_read_cache_insert(&store->read_cache, location, buffer, buffer_bytes, buffer);
        result = *run ? 0 : -ENOMEM;
    } else {
        store->counts.damaged_runs++;
        result = damaged;
    }
    if (!*run) {
        store->read_cache.pinned_bytes -= buffer_bytes;
        fbk_read_cache_give_buffer(&store->read_cache, buffer, buffer_bytes);
    }
    end_fetch(store, &fetch);
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
