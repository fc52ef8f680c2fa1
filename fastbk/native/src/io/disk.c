/* fbk_io as plain functions for Python, with memory of any alignment. */
#include "base/segment.h"
#include "io/io.h"

#include "boundary/disk.h"

_Static_assert(FBK_DISK_CREATE == FBK_IO_CREATE && FBK_DISK_DIRECT == FBK_IO_DIRECT &&
                   FBK_DISK_READ_ONLY == FBK_IO_READ_ONLY && FBK_DISK_LOCK == FBK_IO_LOCK,
               "the same flags under both names");

void
fbk_disk_destroy(struct fbk_io *io)
{
    io->operations->destroy(io);
}

const char *
fbk_disk_name(const struct fbk_io *io)
{
    return io->name;
}

const char *
fbk_disk_sync_mode(const struct fbk_io *io)
{
    return io->sync_mode;
}

uint32_t
fbk_disk_depth_max(const struct fbk_io *io)
{
    return io->depth_max;
}

uint32_t
fbk_disk_block_size_bytes(const struct fbk_io *io)
{
    return io->block_size_bytes;
}

void
fbk_disk_lock_timeout(struct fbk_io *io, uint32_t timeout_ms)
{
    io->lock_timeout_ms = timeout_ms;
}

int32_t
fbk_disk_open(struct fbk_io *io, const char *path, uint32_t flags)
{
    return io->operations->open(io, path, flags);
}

int32_t
fbk_disk_close(struct fbk_io *io, int32_t file)
{
    return io->operations->close(io, file);
}

int32_t
fbk_disk_preallocate(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes)
{
    return io->operations->preallocate(io, file, from_bytes, to_bytes);
}

static bool
is_aligned(const struct fbk_io *io, const void *data)
{
    return ((uintptr_t)data & (io->block_size_bytes - 1)) == 0;
}

int32_t
fbk_disk_write_all(struct fbk_io *io, int32_t file, const uint8_t *data, uint32_t size_bytes,
                   uint64_t offset_bytes, _Bool is_durable)
{
    uint32_t flags = is_durable ? FBK_IO_SYNC : 0;
    if (is_aligned(io, data))
        return io->operations->write_wait(io, file, data, size_bytes, offset_bytes, flags);
    uint8_t *aligned = fbk_memory_take(size_bytes);
    if (aligned == NULL)
        return -ENOMEM;
    memcpy(aligned, data, size_bytes);
    int32_t status = io->operations->write_wait(io, file, aligned, size_bytes, offset_bytes, flags);
    fbk_memory_give_back(aligned, size_bytes);
    return status;
}

int32_t
fbk_disk_sync(struct fbk_io *io, int32_t file)
{
    return io->operations->sync(io, file);
}

/* A direct file is read in whole blocks around what was asked for; a buffered one pays a copy. */
int32_t
fbk_disk_read(struct fbk_io *io, int32_t file, uint8_t *data, uint32_t size_bytes,
              uint64_t offset_bytes)
{
    if (size_bytes > INT32_MAX - 2 * io->block_size_bytes)
        return -EINVAL;
    uint32_t before = (uint32_t)(offset_bytes & (io->block_size_bytes - 1));
    uint32_t whole = (uint32_t)fbk_round_up(before + size_bytes, io->block_size_bytes);
    uint8_t *aligned = fbk_memory_take(whole);
    if (aligned == NULL)
        return -ENOMEM;
    int32_t status = io->operations->read(io, file, aligned, whole, offset_bytes - before);
    if (status >= 0) {
        uint32_t got = (uint32_t)status > before ? (uint32_t)status - before : 0;
        if (got > size_bytes)
            got = size_bytes;
        memcpy(data, aligned + before, got);
        status = (int32_t)got;
    }
    fbk_memory_give_back(aligned, whole);
    return status;
}

/* Opened by its name: whoever wrote to it has closed it. */
int64_t
fbk_disk_cut(struct fbk_io *io, const char *path, uint64_t size_bytes)
{
    int32_t file = io->operations->open(io, path, 0);
    if (file < 0)
        return file;
    int64_t size = io->operations->size(io, file);
    if (size > (int64_t)size_bytes) {
        int32_t status = io->operations->truncate(io, file, size_bytes);
        size = status < 0 ? status : (int64_t)size_bytes;
    }
    int32_t closed = io->operations->close(io, file);
    return size >= 0 && closed < 0 ? closed : size;
}

int32_t
fbk_disk_rename(struct fbk_io *io, const char *from, const char *to)
{
    return io->operations->rename(io, from, to);
}

int32_t
fbk_disk_unlink(struct fbk_io *io, const char *path)
{
    return io->operations->unlink(io, path);
}

int32_t
fbk_disk_sync_directory(struct fbk_io *io, const char *path)
{
    return io->operations->sync_directory(io, path);
}

int64_t
fbk_disk_size(struct fbk_io *io, int32_t file)
{
    return io->operations->size(io, file);
}

int64_t
fbk_disk_list(struct fbk_io *io, const char *path, char *names, uint64_t names_size_bytes)
{
    return io->operations->list(io, path, names, names_size_bytes);
}

int32_t
fbk_disk_make_directory(struct fbk_io *io, const char *path)
{
    return io->operations->make_directory(io, path);
}
