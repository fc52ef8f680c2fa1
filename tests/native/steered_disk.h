/* A disk in memory whose writes complete when the test says so, in any order, or fail. */
#pragma once

#include "check.h"

#include <unistd.h>

#include "io/io.h"

#define STEERED_FILES 8
#define STEERED_WRITES 16

struct steered_write {
    int32_t file;
    const void *data;
    uint32_t size_bytes;
    uint64_t offset_bytes;
    uint64_t ticket;
    int32_t result; /* of the completion */
    bool done;      /* to be handed out */
};

/* hold = false: a write completes in the next wait. */
struct steered {
    struct fbk_io io;
    uint8_t *bytes[STEERED_FILES];
    uint64_t size_bytes[STEERED_FILES];
    struct steered_write writes[STEERED_WRITES];
    uint32_t write_count;
    uint32_t started; /* writes ever started */
    uint32_t fail_at; /* the n-th write ever (from 1) fails, 0 = none */
    int32_t fail_with;
    bool hold;
    uint64_t bad_from; /* reads that touch [bad_from, bad_to) fail */
    uint64_t bad_to;
};

static inline int32_t
steered_file(const char *path)
{
    return path[0] - '0';
}

static int32_t
steered_open(struct fbk_io *io, const char *path, uint32_t flags)
{
    struct steered *disk = (struct steered *)io;
    int32_t file = steered_file(path);
    (void)flags;
    return file >= 0 && file < STEERED_FILES && disk->bytes[file] ? file : -ENOENT;
}

static int32_t
steered_close(struct fbk_io *io, int32_t file)
{
    (void)io;
    (void)file;
    return 0;
}

static int32_t
steered_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
              uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct steered *disk = (struct steered *)io;
    CHECK(flags == FBK_IO_SYNC);
    CHECK(disk->write_count < STEERED_WRITES);
    CHECK(offset_bytes + size_bytes <= disk->size_bytes[file]);
    CHECK(size_bytes % 4096 == 0 && offset_bytes % 4096 == 0 && (uintptr_t)data % 4096 == 0);
    disk->started++;
    struct steered_write *write = &disk->writes[disk->write_count++];
    *write = (struct steered_write){
        file, data, size_bytes, offset_bytes, ticket, (int32_t)size_bytes, !disk->hold};
    if (disk->started == disk->fail_at)
        write->result = disk->fail_with;
    return 0;
}

static int32_t
steered_write_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                   uint64_t offset_bytes, uint32_t flags)
{
    struct steered *disk = (struct steered *)io;
    CHECK(flags == FBK_IO_SYNC);
    if (++disk->started == disk->fail_at)
        return disk->fail_with;
    memcpy(disk->bytes[file] + offset_bytes, data, size_bytes);
    return (int32_t)size_bytes;
}

/* Lets write n of those outstanding complete. */
static inline void
steered_release(struct steered *disk, uint32_t n)
{
    CHECK(n < disk->write_count);
    disk->writes[n].done = true;
}

static int32_t
steered_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
             struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    struct steered *disk = (struct steered *)io;
    int32_t count = 0;
    (void)timeout_ms;
    for (uint32_t i = 0; i < disk->write_count && count < completions_max;) {
        struct steered_write *write = &disk->writes[i];
        if (!write->done) {
            i++;
            continue;
        }
        if (write->result > 0)
            memcpy(disk->bytes[write->file] + write->offset_bytes, write->data,
                   (size_t)write->result);
        completions[count++] =
            (struct fbk_io_completion){.ticket = write->ticket, .result = write->result};
        memmove(write, write + 1, (disk->write_count - i - 1) * sizeof *write);
        disk->write_count--;
    }
    uint64_t value;
    /* EFD_NONBLOCK in tests */
    if (event_fd >= 0 && read(event_fd, &value, sizeof value) == (ssize_t)sizeof value)
        *rung = 1;
    return count;
}

static int32_t
steered_read(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
             uint64_t offset_bytes)
{
    struct steered *disk = (struct steered *)io;
    if (offset_bytes >= disk->size_bytes[file])
        return 0;
    if (size_bytes > disk->size_bytes[file] - offset_bytes)
        size_bytes = (uint32_t)(disk->size_bytes[file] - offset_bytes);
    if (offset_bytes < disk->bad_to && offset_bytes + size_bytes > disk->bad_from)
        return -EIO;
    memcpy(data, disk->bytes[file] + offset_bytes, size_bytes);
    return (int32_t)size_bytes;
}

static int64_t
steered_size(struct fbk_io *io, int32_t file)
{
    return (int64_t)((struct steered *)io)->size_bytes[file];
}

/* What was written is durable once it is complete. */
static inline int32_t
steered_sync(struct fbk_io *io, int32_t file)
{
    (void)io;
    (void)file;
    return 0;
}

static const struct fbk_io_operations STEERED_OPERATIONS = {
    .open = steered_open,
    .close = steered_close,
    .write = steered_write,
    .write_wait = steered_write_wait,
    .sync = steered_sync,
    .read = steered_read,
    .wait = steered_wait,
    .size = steered_size,
};

static inline void
steered_make(struct steered *disk, uint64_t file_size_bytes)
{
    memset(disk, 0, sizeof *disk);
    disk->io.operations = &STEERED_OPERATIONS;
    disk->io.depth_max = 8;
    disk->io.block_size_bytes = 4096;
    disk->io.name = "steered";
    disk->io.sync_mode = "none";
    for (int i = 0; i < STEERED_FILES; i++) {
        disk->bytes[i] = calloc(1, file_size_bytes);
        CHECK(disk->bytes[i]);
        disk->size_bytes[i] = file_size_bytes;
    }
}

static inline void
steered_free(struct steered *disk)
{
    for (int i = 0; i < STEERED_FILES; i++)
        free(disk->bytes[i]);
}
