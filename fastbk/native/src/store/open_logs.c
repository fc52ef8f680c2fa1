/* Logs that are open for reading: at most log_files_max, the least recently used is closed
 * for another. */
#include "store/entry_log.h"
#include "store/parts.h"

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

/* A free slot, made by closing the least recently used log if need be; *close_handle is for the
 * caller to close once the mutex is released.  NULL: all are in use. */
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

/* Opens a log and reads its header; the salt of a log whose header is unreadable stays unknown, its
 * runs are then judged by their own checksums alone. */
static int32_t
open_log(struct fbk_store *store, uint64_t log_id, int32_t *handle, bool *has_salt, uint64_t *salt)
{
    char path[FBK_STORE_PATH_BYTES];
    struct fbk_io *io = store->reader_io;
    int32_t result = fbk_log_path(store, path, log_id);
    if (result < 0)
        return result;
    *handle = io->operations->open(io, path, fbk_log_open_flags(store, log_id));
    if (*handle < 0)
        return *handle;
    result = fbk_log_read_salt(io, *handle, log_id, store->options.incarnation, salt);
    if (result == FBK_E_TOO_NEW || result == -ENOMEM) {
        io->operations->close(io, *handle);
        return result;
    }
    *has_salt = result >= 0;
    return 0;
}

struct fbk_open_log *
fbk_open_log_find(struct fbk_store *store, uint64_t log_id)
{
    fbk_store_lock(store);
    struct fbk_open_log *log = find_open_log(store, log_id);
    if (log) {
        log->pins++;
        log->used = ++store->log_clock;
    }
    fbk_store_unlock(store);
    return log;
}

int32_t
fbk_open_log_take(struct fbk_store *store, uint64_t log_id, struct fbk_open_log **out)
{
    int32_t handle = -1, spare = -1;
    bool has_salt = false;
    uint64_t salt = 0;
    struct fbk_open_log *log = *out = fbk_open_log_find(store, log_id);
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
            *log = (struct fbk_open_log){
                .log_id = log_id, .handle = handle, .has_salt = has_salt, .salt = salt};
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

void
fbk_open_log_let_go(struct fbk_store *store, struct fbk_open_log *log)
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

/* Mutex held.  Returns what the caller is to close once it is released, -1: nothing. */
static int32_t
forget(struct fbk_open_log *log)
{
    int32_t close_handle = -1;
    if (log && log->pins > 0) {
        log->forgotten = true;
    } else if (log) {
        close_handle = log->handle;
        log->handle = -1;
    }
    return close_handle;
}

void
fbk_store_set_journal_file(struct fbk_store *store, uint64_t file_id)
{
    const uint64_t before = atomic_load(&store->journal_file_id);
    if (file_id <= before)
        return;
    atomic_store(&store->journal_file_id, file_id);
    /* Whoever reads such a file next opens it anew. */
    for (uint32_t i = 0; i < store->options.log_files_max; i++) {
        struct fbk_open_log *log = &store->logs[i];
        fbk_store_lock(store);
        const uint64_t id = log->log_id ^ FBK_LOG_JOURNAL; /* of others it is above all */
        const bool was_written = log->handle >= 0 && id >= before && id < file_id;
        int32_t close_handle = was_written ? forget(log) : -1;
        fbk_store_unlock(store);
        if (close_handle >= 0)
            store->reader_io->operations->close(store->reader_io, close_handle);
    }
}

void
fbk_store_forget_log(struct fbk_store *store, uint64_t log_id)
{
    fbk_store_lock(store);
    int32_t close_handle = forget(find_open_log(store, log_id));
    fbk_read_cache_forget_log(&store->read_cache, log_id);
    fbk_store_unlock(store);
    if (close_handle >= 0)
        store->reader_io->operations->close(store->reader_io, close_handle);
}
