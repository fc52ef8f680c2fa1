/* Writes on the fake disk, and when they complete. */
#include "parts.h"

#include "base/segment.h"

#include <poll.h>
#include <unistd.h>

/* Room, rights, alignment: refused before anything begins. */
static int32_t
check_write(struct fbk_fake *disk, const struct fake_handle *handle, const void *data,
            uint32_t size_bytes, uint64_t offset_bytes)
{
    if (disk->off)
        return -ESHUTDOWN;
    if (size_bytes == 0 || size_bytes > INT32_MAX)
        return -EINVAL;
    if (handle == NULL || (handle->flags & FBK_IO_READ_ONLY))
        return -EBADF;
    if (fake_is_misaligned(handle, data, size_bytes, offset_bytes) || offset_bytes > (1ull << 40))
        return -EINVAL;
    return fake_file_reserve(disk, handle->file, offset_bytes + size_bytes);
}

/* What a write has done when it completes; its result. */
static int32_t
carry_out(struct fbk_fake *disk, const struct fake_write *write)
{
    struct fake_file *file = write->file;
    uint32_t size = write->size_bytes;
    if (write->action == FBK_FAKE_FAIL) {
        fake_file_put_some(file, write, &disk->random);
        return -write->argument;
    }
    if (write->action == FBK_FAKE_SHORT)
        size = size / 2 / FAKE_SECTOR_BYTES * FAKE_SECTOR_BYTES;
    fake_file_put(file, write->copy, size, write->offset_bytes);
    if ((write->flags & FBK_IO_SYNC) && write->action == 0)
        fake_file_make_durable(file, write->offset_bytes, write->offset_bytes + size);
    return (int32_t)size;
}

static int32_t
begin_write(struct fbk_fake *disk, struct fbk_io *io, struct fake_write *write, int32_t file)
{
    struct fake_handle *handle = fake_handle_of(disk, file);
    struct fake_verdict verdict;
    int32_t status = check_write(disk, handle, write->data, write->size_bytes, write->offset_bytes);
    if (status < 0)
        return status;
    write->copy = fbk_memory_take(write->size_bytes);
    if (write->copy == NULL || disk->write_count == FAKE_IN_FLIGHT_MAX) {
        fbk_memory_give_back(write->copy, write->size_bytes);
        return -ENOMEM;
    }
    memcpy(write->copy, write->data, write->size_bytes);
    status = fake_begin(disk, FBK_FAKE_WRITE, handle->file, write->offset_bytes, write->size_bytes,
                        write->flags, &verdict);
    FBK_ASSERT(status == 0);
    write->owner = (struct fake_io *)io;
    write->file = handle->file;
    write->action = verdict.action;
    write->argument = verdict.argument;
    write->event = verdict.event;
    disk->writes[disk->write_count++] = *write;
    write->owner->under_way++;
    /* The power went with this write: it stays under way, and the restart finds any part of it. */
    return verdict.action == FBK_FAKE_CUT ? -ESHUTDOWN : 0;
}

static int32_t
complete_write(struct fbk_fake *disk, uint32_t index)
{
    fake_moment(disk); /* with this write under way: any part of it may have arrived */
    const struct fake_write *write = &disk->writes[index];
    /* A caller's bug that no real disk would tell: the buffer is the disk's until the write is
     * complete. */
    FBK_ASSERT(memcmp(write->data, write->copy, write->size_bytes) == 0);
    struct fake_verdict verdict = {.event = write->event};
    int32_t result = fake_end(disk, &verdict, carry_out(disk, write));
    fake_write_forget(disk, index);
    return result;
}

int32_t
fake_write_start(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                 uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_write write = {.data = data,
                               .size_bytes = size_bytes,
                               .offset_bytes = offset_bytes,
                               .flags = flags,
                               .ticket = ticket};
    int32_t status = -EAGAIN;
    if (((struct fake_io *)io)->under_way < io->depth_max)
        status = begin_write(disk, io, &write, file);
    return fake_leave(disk, status);
}

int32_t
fake_write_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                uint64_t offset_bytes, uint32_t flags)
{
    struct fbk_fake *disk = fake_enter(io);
    struct fake_write write = {
        .data = data, .size_bytes = size_bytes, .offset_bytes = offset_bytes, .flags = flags};
    int32_t status = begin_write(disk, io, &write, file);
    if (status == 0) {
        status = complete_write(disk, disk->write_count - 1);
        if (status >= 0 && status != (int32_t)size_bytes)
            status = -EIO; /* a real backend goes on until it is told why */
    }
    return fake_leave(disk, status);
}

/* ------------ completions */

/* The next write of this handle that may complete now; -1 = none. */
static int32_t
due(struct fbk_fake *disk, const struct fake_io *mine)
{
    int32_t found = -1;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < disk->write_count; i++) {
        const struct fake_write *write = &disk->writes[i];
        if (write->owner != mine || (disk->delivery == FBK_FAKE_HELD && !write->released))
            continue;
        seen++;
        if (found < 0 || disk->delivery == FBK_FAKE_NEWEST_FIRST ||
            (disk->delivery == FBK_FAKE_SHUFFLED && fake_random(&disk->random) % seen == 0))
            found = (int32_t)i;
    }
    return found;
}

static int32_t
collect(struct fbk_io *io, struct fbk_io_completion *completions, int32_t completions_max)
{
    struct fbk_fake *disk = fake_enter(io);
    if (disk->off)
        return fake_leave(disk, -ESHUTDOWN);
    bool many = disk->delivery == FBK_FAKE_AT_ONCE || disk->delivery == FBK_FAKE_HELD;
    int32_t count = 0;
    for (int32_t i;
         count < (many ? completions_max : 1) && (i = due(disk, (struct fake_io *)io)) >= 0;
         count++) {
        completions[count].ticket = disk->writes[i].ticket;
        completions[count].reserved = 0;
        completions[count].result = complete_write(disk, (uint32_t)i);
    }
    return fake_leave(disk, count);
}

int32_t
fake_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
          struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    uint64_t begin_ns = fbk_now_ns(), count;
    *rung = 0;
    for (;;) {
        int32_t got = collect(io, completions, completions_max);
        if (got != 0)
            return got;
        int64_t spent_ms = (int64_t)((fbk_now_ns() - begin_ns) / 1000000);
        int left = timeout_ms < 0 ? -1 : spent_ms >= timeout_ms ? 0 : (int)(timeout_ms - spent_ms);
        struct pollfd wanted[2] = {{.fd = ((struct fake_io *)io)->wake_fd, .events = POLLIN},
                                   {.fd = event_fd, .events = POLLIN}};
        int ready = poll(wanted, event_fd >= 0 ? 2 : 1, left);
        if (ready < 0)
            return errno == EINTR ? 0 : -errno;
        if (ready == 0)
            return 0;
        if ((wanted[0].revents & POLLIN) && read(wanted[0].fd, &count, sizeof count) < 0 &&
            errno != EAGAIN)
            return -errno;
        if (event_fd >= 0 && (wanted[1].revents & POLLIN) &&
            read(event_fd, &count, sizeof count) == sizeof count) {
            *rung = 1;
            return collect(io, completions, completions_max);
        }
    }
}
