/* fbk_io on the fake disk: the calls a backend has, judged one by one. */
#include "parts.h"

#include "base/segment.h"

#include <sys/eventfd.h>
#include <unistd.h>

/* For operations that only succeed or fail: what the verdict makes of them before they begin; 1 =
 * go on. */
static int32_t
go_on(const struct fake_verdict *verdict)
{
    if (verdict->action == FBK_FAKE_CUT)
        return -ESHUTDOWN;
    return verdict->action == FBK_FAKE_FAIL ? -verdict->argument : 1;
}

/* ------------ files */

static int32_t
wait_for_lock(struct fbk_fake *disk, struct fake_file *file, uint32_t timeout_ms)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    uint64_t end_ns = (uint64_t)deadline.tv_nsec + timeout_ms * 1000000ull;
    deadline.tv_sec += (time_t)(end_ns / 1000000000ull);
    deadline.tv_nsec = (long)(end_ns % 1000000000ull);
    while (file->locked_by >= 0 && !disk->off)
        if (pthread_cond_timedwait(&disk->unlocked, &disk->mutex, &deadline) == ETIMEDOUT)
            return -ETIMEDOUT;
    return disk->off ? -ESHUTDOWN : 0;
}

static int32_t
take_handle(struct fbk_fake *disk, struct fbk_io *io, struct fake_file *file, uint32_t flags)
{
    for (int32_t i = 0; i < (int32_t)FAKE_HANDLES_MAX; i++) {
        if (disk->handles[i].file != NULL)
            continue;
        if (flags & FBK_IO_LOCK)
            file->locked_by = i;
        disk->handles[i] =
            (struct fake_handle){.file = file, .owner = (struct fake_io *)io, .flags = flags};
        return i;
    }
    return -EMFILE;
}

static int32_t
open_known_path(struct fbk_fake *disk, struct fbk_io *io, const char *path, uint32_t flags)
{
    struct fake_name *name = fake_name_find(&disk->live_names, path);
    struct fake_file *file = name == NULL ? NULL : name->file;
    if (name != NULL && (flags & FBK_IO_CREATE))
        return -EEXIST;
    if (name != NULL && file == NULL)
        return -EISDIR;
    int32_t status = fake_parent_status(disk, path);
    if (status < 0)
        return status;
    if (name == NULL) {
        if (!(flags & FBK_IO_CREATE))
            return -ENOENT;
        file = fake_file_make(disk);
        if (file == NULL || fake_names_change(disk, FBK_FAKE_CREATE, path, NULL, file) < 0)
            return -ENOMEM;
    }
    if ((flags & FBK_IO_LOCK) && (status = wait_for_lock(disk, file, io->lock_timeout_ms)) < 0)
        return status;
    return take_handle(disk, io, file, flags);
}

static int32_t
fake_open(struct fbk_io *io, const char *path, uint32_t flags)
{
    char clean[FAKE_PATH_MAX];
    int32_t status = fake_path(clean, path);
    if (status < 0)
        return status;
    struct fbk_fake *disk = fake_enter(io);
    struct fake_verdict verdict;
    status = fake_begin(disk, flags & FBK_IO_CREATE ? FBK_FAKE_CREATE : FBK_FAKE_OPEN, NULL, 0, 0,
                        flags, &verdict);
    if (status == 0 && (status = go_on(&verdict)) > 0)
        status = fake_end(disk, &verdict, open_known_path(disk, io, clean, flags));
    return fake_leave(disk, status);
}

static int32_t
fake_close(struct fbk_io *io, int32_t file)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    if (handle == NULL)
        return fake_leave(disk, disk->off ? -ESHUTDOWN : -EBADF);
    if (handle->file->locked_by == file) {
        handle->file->locked_by = -1;
        FBK_ASSERT(pthread_cond_broadcast(&disk->unlocked) == 0);
    }
    memset(handle, 0, sizeof *handle);
    return fake_leave(disk, 0);
}

static int32_t
fake_sync(struct fbk_io *io, int32_t file)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    struct fake_verdict verdict;
    int32_t status = handle == NULL && !disk->off ? -EBADF : 0;
    if (status == 0)
        status = fake_begin(disk, FBK_FAKE_SYNC, handle == NULL ? NULL : handle->file, 0, 0, 0,
                            &verdict);
    if (status == 0 && (status = go_on(&verdict)) > 0) {
        if (verdict.action != FBK_FAKE_LIE)
            fake_file_make_durable(handle->file, 0, UINT64_MAX);
        status = fake_end(disk, &verdict, 0);
    } else if (status < 0 && status != -ESHUTDOWN && status != -EBADF) {
        fake_file_lose_dirty(handle->file, &disk->random);
        fake_end(disk, &verdict, status);
    }
    return fake_leave(disk, status);
}

static int32_t
read_bytes(const struct fake_handle *handle, const struct fake_verdict *verdict, void *data,
           uint32_t size_bytes, uint64_t offset_bytes)
{
    const struct fake_file *file = handle->file;
    if (offset_bytes >= file->live_size_bytes)
        return 0;
    uint64_t left = file->live_size_bytes - offset_bytes;
    uint32_t got = left < size_bytes ? (uint32_t)left : size_bytes;
    if (verdict->action == FBK_FAKE_SHORT)
        got /= 2;
    if (offset_bytes < file->bad_to_bytes && offset_bytes + got > file->bad_from_bytes)
        return -EIO;
    memcpy(data, file->live + offset_bytes, got);
    return (int32_t)got;
}

static int32_t
fake_read(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes, uint64_t offset_bytes)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    struct fake_verdict verdict;
    if (disk->off || handle == NULL)
        return fake_leave(disk, disk->off ? -ESHUTDOWN : -EBADF);
    if (fake_is_misaligned(handle, data, size_bytes, offset_bytes) || size_bytes > INT32_MAX)
        return fake_leave(disk, -EINVAL);
    int32_t status =
        fake_begin(disk, FBK_FAKE_READ, handle->file, offset_bytes, size_bytes, 0, &verdict);
    if (status == 0 && (status = go_on(&verdict)) > 0)
        status = read_bytes(handle, &verdict, data, size_bytes, offset_bytes);
    return fake_leave(disk, fake_end(disk, &verdict, status));
}

/* Every other block is in memory. */
static int32_t
fake_read_cached(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                 uint64_t offset_bytes)
{
    if (offset_bytes / FBK_PAGE_BYTES % 2 == 0)
        return -EAGAIN;
    int32_t got = fake_read(io, file, data, size_bytes, offset_bytes);
    return got < 0 || (uint32_t)got == size_bytes ? got : -EAGAIN;
}

static int64_t
fake_size(struct fbk_io *io, int32_t file)
{
    struct fbk_fake *disk = fake_enter(io);
    const struct fake_handle *handle = fake_handle_of(disk, file);
    int64_t size = disk->off        ? -ESHUTDOWN
                   : handle == NULL ? -EBADF
                                    : (int64_t)handle->file->live_size_bytes;
    fake_leave(disk, 0);
    return size;
}

static int32_t
fake_preallocate(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    struct fake_verdict verdict;
    if (disk->off || handle == NULL || (handle->flags & FBK_IO_READ_ONLY))
        return fake_leave(disk, disk->off ? -ESHUTDOWN : -EBADF);
    int32_t status =
        fake_begin(disk, FBK_FAKE_PREALLOCATE, handle->file, from_bytes, 0, 0, &verdict);
    if (status == 0 && (status = go_on(&verdict)) > 0) {
        status = to_bytes > from_bytes ? fake_file_reserve(disk, handle->file, to_bytes) : 0;
        if (status == 0 && to_bytes > from_bytes) {
            fake_file_put(handle->file, NULL, to_bytes - from_bytes, from_bytes);
            if (verdict.action != FBK_FAKE_LIE)
                fake_file_make_durable(handle->file, 0, UINT64_MAX);
        }
    }
    return fake_leave(disk, fake_end(disk, &verdict, status));
}

static int32_t
fake_allocate(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes,
              bool is_written)
{
    int32_t status = is_written ? -EOPNOTSUPP : fake_preallocate(io, file, from_bytes, to_bytes);
    if (status < 0)
        return status;
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    if (handle != NULL) {
        handle->file->unwritten_from_bytes = from_bytes;
        handle->file->unwritten_to_bytes = to_bytes;
    }
    return fake_leave(disk, 0);
}

static int64_t
fake_find_unwritten(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t *to_bytes)
{
    int64_t found = fake_size(io, file);
    *to_bytes = found < 0 ? 0 : (uint64_t)found;
    struct fbk_fake *disk = fake_enter(io);
    const struct fake_handle *handle = fake_handle_of(disk, file);
    if (found >= 0 && handle != NULL && from_bytes < handle->file->unwritten_to_bytes) {
        found = (int64_t)handle->file->unwritten_from_bytes;
        if (from_bytes > (uint64_t)found)
            found = (int64_t)from_bytes;
        *to_bytes = handle->file->unwritten_to_bytes;
    }
    fake_leave(disk, 0);
    return found;
}

static int32_t
fake_truncate(struct fbk_io *io, int32_t file, uint64_t size_bytes)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_handle *handle = fake_handle_of(disk, file);
    struct fake_verdict verdict;
    if (disk->off || handle == NULL || (handle->flags & FBK_IO_READ_ONLY))
        return fake_leave(disk, disk->off ? -ESHUTDOWN : -EBADF);
    FBK_ASSERT(size_bytes <= handle->file->live_size_bytes);
    int32_t status = fake_begin(disk, FBK_FAKE_TRUNCATE, handle->file, size_bytes, 0, 0, &verdict);
    if (status == 0)
        status = go_on(&verdict);
    /* The power went with it: it may have been done. */
    if (status > 0 || verdict.action == FBK_FAKE_CUT)
        fake_file_truncate(handle->file, size_bytes);
    return fake_leave(disk, fake_end(disk, &verdict, status > 0 ? 0 : status));
}

/* ------------ names */

static int32_t
change_name(struct fbk_fake *disk, uint32_t kind, const char *path, const char *to)
{
    struct fake_name *name = fake_name_find(&disk->live_names, path);
    if (kind == FBK_FAKE_MAKE_DIRECTORY) {
        int32_t status =
            name != NULL ? (name->file == NULL ? 1 : -EEXIST) : fake_parent_status(disk, path);
        return status == 1  ? 0
               : status < 0 ? status
                            : fake_names_change(disk, kind, path, NULL, NULL);
    }
    if (name == NULL)
        return -ENOENT;
    if (name->file == NULL)
        return -EISDIR;
    if (kind == FBK_FAKE_UNLINK)
        return fake_names_change(disk, kind, path, NULL, name->file);
    const struct fake_name *there = fake_name_find(&disk->live_names, to);
    if (there != NULL && there->file == NULL)
        return -EISDIR;
    int32_t status = fake_parent_status(disk, to);
    return status < 0 ? status : fake_names_change(disk, kind, path, to, name->file);
}

static int32_t
name_operation(struct fbk_io *io, uint32_t kind, const char *path, const char *to)
{
    char clean[FAKE_PATH_MAX], clean_to[FAKE_PATH_MAX];
    int32_t status = fake_path(clean, path);
    if (status == 0 && to != NULL)
        status = fake_path(clean_to, to);
    if (status < 0)
        return status;
    struct fbk_fake *disk = fake_enter(io);
    struct fake_verdict verdict;
    status = fake_begin(disk, kind, NULL, 0, 0, 0, &verdict);
    if (status < 0)
        return fake_leave(disk, status);
    status = go_on(&verdict);
    /* The power went with this change: it may have been made. */
    if (verdict.action == FBK_FAKE_CUT)
        (void)change_name(disk, kind, clean, to == NULL ? NULL : clean_to);
    else if (status > 0)
        status = change_name(disk, kind, clean, to == NULL ? NULL : clean_to);
    return fake_leave(disk, fake_end(disk, &verdict, status));
}

static int32_t
fake_rename(struct fbk_io *io, const char *from, const char *to)
{
    return name_operation(io, FBK_FAKE_RENAME, from, to);
}

static int32_t
fake_unlink(struct fbk_io *io, const char *path)
{
    return name_operation(io, FBK_FAKE_UNLINK, path, NULL);
}

static int32_t
fake_make_directory(struct fbk_io *io, const char *path)
{
    return name_operation(io, FBK_FAKE_MAKE_DIRECTORY, path, NULL);
}

static int32_t
directory_status(const struct fbk_fake *disk, const char *path)
{
    const struct fake_name *name = fake_name_find(&disk->live_names, path);
    return name == NULL ? -ENOENT : name->file != NULL ? -ENOTDIR : 0;
}

static int32_t
fake_sync_directory(struct fbk_io *io, const char *path)
{
    char clean[FAKE_PATH_MAX];
    int32_t status = fake_path(clean, path);
    if (status < 0)
        return status;
    struct fbk_fake *disk = fake_enter(io);
    struct fake_verdict verdict;
    status = fake_begin(disk, FBK_FAKE_SYNC_DIRECTORY, NULL, 0, 0, 0, &verdict);
    if (status < 0)
        return fake_leave(disk, status);
    status = go_on(&verdict);
    if (status > 0 && (status = directory_status(disk, clean)) == 0 &&
        verdict.action != FBK_FAKE_LIE)
        fake_names_sync(disk, clean);
    return fake_leave(disk, fake_end(disk, &verdict, status));
}

static int64_t
copy_names(const struct fbk_fake *disk, const char *directory, char *names,
           uint64_t names_size_bytes)
{
    uint64_t used = 0;
    const struct fake_name *items = disk->live_names.items;
    for (uint64_t i = 0; i < disk->live_names.count; i++) {
        if (!fake_is_in(directory, items[i].path))
            continue;
        const char *name = strrchr(items[i].path, '/') + 1;
        size_t size = strlen(name) + 1;
        if (size > names_size_bytes - used)
            return -E2BIG;
        memcpy(names + used, name, size);
        used += size;
    }
    return (int64_t)used;
}

static int64_t
fake_list(struct fbk_io *io, const char *path, char *names, uint64_t names_size_bytes)
{
    char clean[FAKE_PATH_MAX];
    int64_t status = fake_path(clean, path);
    if (status < 0)
        return status;
    struct fbk_fake *disk = fake_enter(io);
    struct fake_verdict verdict;
    status = fake_begin(disk, FBK_FAKE_LIST, NULL, 0, 0, 0, &verdict);
    if (status == 0 && (status = go_on(&verdict)) > 0 &&
        (status = directory_status(disk, clean)) == 0)
        status = copy_names(disk, clean, names, names_size_bytes);
    fake_leave(disk, 0);
    return status;
}

/* ------------ beginning and end */

/* The end of a process: its files close, its writes under way go on in the kernel. */
static void
fake_destroy(struct fbk_io *io)
{
    struct fake_io *mine = (struct fake_io *)io;
    struct fbk_fake *disk = fake_enter(io);
    for (uint32_t i = disk->write_count; i-- > 0 && !disk->off;) {
        if (disk->writes[i].owner != mine)
            continue;
        fake_file_put(disk->writes[i].file, disk->writes[i].copy, disk->writes[i].size_bytes,
                      disk->writes[i].offset_bytes);
        fake_write_forget(disk, i);
    }
    for (uint32_t i = 0; i < disk->write_count; i++)
        if (disk->writes[i].owner == mine)
            disk->writes[i].owner = NULL;
    for (uint32_t i = 0; i < FAKE_HANDLES_MAX; i++) {
        if (disk->handles[i].file == NULL || disk->handles[i].owner != mine)
            continue;
        if (disk->handles[i].file->locked_by == (int32_t)i)
            disk->handles[i].file->locked_by = -1;
        memset(&disk->handles[i], 0, sizeof disk->handles[i]);
    }
    struct fake_io **at = &disk->ios;
    while (*at != mine)
        at = &(*at)->next;
    *at = mine->next;
    FBK_ASSERT(pthread_cond_broadcast(&disk->unlocked) == 0);
    fake_leave(disk, 0);
    close(mine->wake_fd);
    fbk_memory_give_back(mine, sizeof *mine);
}

static const struct fbk_io_operations fake_operations = {
    .open = fake_open,
    .close = fake_close,
    .preallocate = fake_preallocate,
    .allocate = fake_allocate,
    .find_unwritten = fake_find_unwritten,
    .write = fake_write_start,
    .write_wait = fake_write_wait,
    .sync = fake_sync,
    .read = fake_read,
    .read_cached = fake_read_cached,
    .truncate = fake_truncate,
    .rename = fake_rename,
    .unlink = fake_unlink,
    .sync_directory = fake_sync_directory,
    .wait = fake_wait,
    .size = fake_size,
    .list = fake_list,
    .make_directory = fake_make_directory,
    .destroy = fake_destroy,
};

struct fbk_io *
fbk_fake_io(struct fbk_fake *disk, uint32_t depth, int32_t *error)
{
    struct fake_io *mine = fbk_memory_take(sizeof *mine);
    *error = -ENOMEM;
    if (mine == NULL)
        return NULL;
    mine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (mine->wake_fd < 0) {
        *error = -errno;
        fbk_memory_give_back(mine, sizeof *mine);
        return NULL;
    }
    mine->io = (struct fbk_io){
        .operations = &fake_operations,
        .depth_max = depth,
        .block_size_bytes = FAKE_BLOCK_BYTES,
        .lock_timeout_ms = 10000,
        .name = "fake",
        .sync_mode = "fake",
    };
    mine->disk = disk;
    fake_enter(&mine->io);
    mine->next = disk->ios;
    disk->ios = mine;
    fake_leave(disk, 0);
    *error = 0;
    return &mine->io;
}
