/* The backend without io_uring: each write is a system call that waits, and its completion is
 * queued.  What a container gets whose profile forbids io_uring. */
#include "io/common.h"

#include "base/segment.h"

#include <poll.h>
#include <unistd.h>

#define QUEUE_MAX 16u

struct plain {
    struct fbk_io_real real;
    struct fbk_io_completion queue[QUEUE_MAX];
    uint32_t queued;
};

static int32_t
plain_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
            uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct plain *plain = (struct plain *)io;
    if (size_bytes == 0 || size_bytes > INT32_MAX)
        return -EINVAL;
    if (plain->queued == QUEUE_MAX)
        return -EAGAIN;
    plain->queue[plain->queued++] = (struct fbk_io_completion){
        .ticket = ticket,
        .result = fbk_io_common_write_wait(io, file, data, size_bytes, offset_bytes, flags),
    };
    return 0;
}

static int32_t
listen_for_bell(int32_t event_fd, int32_t timeout_ms, int32_t *rung)
{
    struct pollfd wanted = {.fd = event_fd, .events = POLLIN};
    int ready = poll(&wanted, event_fd >= 0 ? 1 : 0, timeout_ms);
    if (ready < 0)
        return errno == EINTR ? 0 : -errno;
    if (ready == 0)
        return 0;
    if ((wanted.revents & POLLIN) == 0)
        return -EBADF;
    uint64_t count;
    if (read(event_fd, &count, sizeof count) == (ssize_t)sizeof count)
        *rung = 1;
    return 0;
}

static int32_t
plain_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
           struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    struct plain *plain = (struct plain *)io;
    *rung = 0;
    if (plain->queued == 0) {
        if (event_fd < 0 && timeout_ms < 0)
            return -EDEADLK; /* nothing could ever end this */
        return listen_for_bell(event_fd, timeout_ms, rung);
    }
    /* The bell, if it rang, is still there at the next call. */
    uint32_t count = 0;
    while (count < plain->queued && (int32_t)count < completions_max) {
        completions[count] = plain->queue[count];
        count++;
    }
    plain->queued -= count;
    memmove(plain->queue, plain->queue + count, plain->queued * sizeof plain->queue[0]);
    return (int32_t)count;
}

static void
plain_destroy(struct fbk_io *io)
{
    fbk_memory_give_back(io, sizeof(struct plain));
}

static const struct fbk_io_operations plain_operations = {
    .open = fbk_io_common_open,
    .close = fbk_io_common_close,
    .preallocate = fbk_io_common_preallocate,
    .allocate = fbk_io_common_allocate,
    .find_unwritten = fbk_io_common_find_unwritten,
    .write = plain_write,
    .write_wait = fbk_io_common_write_wait,
    .sync = fbk_io_common_sync,
    .read = fbk_io_common_read,
    .read_parts = fbk_io_common_read_parts,
    .read_cached = fbk_io_common_read_cached,
    .truncate = fbk_io_common_truncate,
    .rename = fbk_io_common_rename,
    .unlink = fbk_io_common_unlink,
    .sync_directory = fbk_io_common_sync_directory,
    .wait = plain_wait,
    .size = fbk_io_common_size,
    .list = fbk_io_common_list,
    .make_directory = fbk_io_common_make_directory,
    .destroy = plain_destroy,
};

static struct plain *
make(const struct fbk_io_mode *mode)
{
    struct plain *plain = fbk_memory_take(sizeof *plain);
    if (plain == NULL)
        return NULL;
    plain->real.io = (struct fbk_io){
        .operations = &plain_operations,
        .depth_max = 1,
        .block_size_bytes = FBK_PAGE_BYTES,
        .lock_timeout_ms = FBK_IO_LOCK_TIMEOUT_MS,
        .name = "plain",
    };
    plain->real.mode = *mode;
    return plain;
}

struct fbk_io *
fbk_io_plain_create_as(const char *directory, const struct fbk_io_mode *mode, int32_t *error)
{
    struct plain *plain = make(mode);
    if (plain == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    bool granted = false;
    *error = fbk_io_probe(&plain->real.io, directory, &granted);
    if (*error < 0) {
        plain_destroy(&plain->real.io);
        return NULL;
    }
    plain->real.io.sync_mode = !granted      ? "write+fdatasync"
                               : mode->dsync ? "O_DIRECT+RWF_DSYNC"
                                             : "O_DIRECT+fdatasync";
    return &plain->real.io;
}

struct fbk_io *
fbk_io_plain_create_unproven(_Bool reads_direct, int32_t *error)
{
    const struct fbk_io_mode mode = {.direct = reads_direct, .dsync = false};
    struct plain *plain = make(&mode);
    *error = plain == NULL ? -ENOMEM : 0;
    if (plain == NULL)
        return NULL;
    plain->real.io.sync_mode = "write+fdatasync";
    return &plain->real.io;
}

struct fbk_io *
fbk_io_plain_create_like(const struct fbk_io *other, int32_t *error)
{
    if (other->operations != &plain_operations) {
        *error = -EINVAL;
        return NULL;
    }
    struct plain *plain = make(&((const struct fbk_io_real *)other)->mode);
    *error = plain == NULL ? -ENOMEM : 0;
    if (plain == NULL)
        return NULL;
    plain->real.io.block_size_bytes = other->block_size_bytes;
    plain->real.io.sync_mode = other->sync_mode;
    return &plain->real.io;
}

struct fbk_io *
fbk_io_plain_create(const char *directory, int32_t *error)
{
    static const struct fbk_io_mode modes[] = {{true, true}, {true, false}, {false, false}};
    struct fbk_io *io = NULL;
    *error = -EINVAL;
    for (size_t i = 0;
         i < sizeof modes / sizeof *modes && (*error == -EINVAL || *error == -EOPNOTSUPP); i++)
        io = fbk_io_plain_create_as(directory, &modes[i], error);
    return io;
}
