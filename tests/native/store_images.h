/* A disk for fuzzing the store's readers: one locations file and one log, given as bytes; writes go
 * nowhere. */
#pragma once

#include "check.h"

#include "base/checksum.h"
#include "store/store.h"

#define IMAGE_INCARNATION 7u

struct images {
    struct fbk_io io;
    const uint8_t *bytes[2]; /* of the locations file, of the log */
    uint64_t size_bytes[2];
    struct fbk_io_completion done[8];
    int32_t done_count;
};

static int32_t
images_open(struct fbk_io *io, const char *path, uint32_t flags)
{
    (void)io;
    const char *dot = strrchr(path, '.');
    if (flags & FBK_IO_CREATE)
        return 2;
    return dot && strcmp(dot, ".loc") == 0 ? 0 : 1;
}
static int32_t
images_close(struct fbk_io *io, int32_t file)
{
    (void)io;
    (void)file;
    return 0;
}
static int32_t
images_read(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes, uint64_t offset_bytes)
{
    struct images *images = (struct images *)io;
    if (file > 1 || offset_bytes >= images->size_bytes[file])
        return 0;
    uint64_t left = images->size_bytes[file] - offset_bytes;
    uint32_t now = size_bytes < left ? size_bytes : (uint32_t)left;
    memcpy(data, images->bytes[file] + offset_bytes, now);
    return (int32_t)now;
}
static int64_t
images_size(struct fbk_io *io, int32_t file)
{
    return file > 1 ? 0 : (int64_t)((struct images *)io)->size_bytes[file];
}
static int32_t
images_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
             uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct images *images = (struct images *)io;
    (void)file;
    (void)data;
    (void)offset_bytes;
    (void)flags;
    CHECK(images->done_count < 8);
    images->done[images->done_count++] =
        (struct fbk_io_completion){.ticket = ticket, .result = (int32_t)size_bytes};
    return 0;
}
static int32_t
images_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
            struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    struct images *images = (struct images *)io;
    (void)event_fd;
    (void)timeout_ms;
    int32_t count = images->done_count < completions_max ? images->done_count : completions_max;
    memcpy(completions, images->done, (size_t)count * sizeof completions[0]);
    memmove(images->done, images->done + count,
            (size_t)(images->done_count - count) * sizeof completions[0]);
    images->done_count -= count;
    *rung = 0;
    return count;
}
static int32_t
images_sync(struct fbk_io *io, int32_t file)
{
    return images_close(io, file);
}
static int32_t
images_sync_directory(struct fbk_io *io, const char *path)
{
    (void)path;
    return images_close(io, 0);
}

static const struct fbk_io_operations images_operations = {
    .open = images_open,
    .close = images_close,
    .write = images_write,
    .sync = images_sync,
    .read = images_read,
    .sync_directory = images_sync_directory,
    .wait = images_wait,
    .size = images_size,
};

static inline struct fbk_store *
images_store(struct images *images, const uint8_t *locations, uint64_t locations_bytes,
             const uint8_t *log, uint64_t log_bytes)
{
    memset(images, 0, sizeof *images);
    images->io =
        (struct fbk_io){.operations = &images_operations, .depth_max = 1, .block_size_bytes = 4096};
    images->bytes[0] = locations;
    images->size_bytes[0] = locations_bytes;
    images->bytes[1] = log;
    images->size_bytes[1] = log_bytes;
    struct fbk_store_options options = {
        .ledger_directory = "/x",
        .journal_directory = "/j",
        .read_cache_size_bytes = 1 << 20,
        .block_cache_size_bytes = 1 << 16,
        .incarnation = IMAGE_INCARNATION,
        .read_jobs_max = 2,
        .log_files_max = 2,
        .room_timeout_ms = 1,
    };
    int32_t error = 0;
    struct fbk_store *store = fbk_store_create(&options, &images->io, &images->io, &error);
    CHECK(store != NULL);
    return store;
}

/* Looks up; whatever is served lies in range and passes its checksum. */
static inline int32_t
images_read_range(struct fbk_store *store, int64_t ledger_id, int64_t first, int64_t last)
{
    struct fbk_store_result result;
    CHECK_EQUAL(fbk_store_submit(store, 1, ledger_id, first, last, 1, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(store), 1);
    CHECK_EQUAL(fbk_store_collect(store, &result, 1), 1);
    CHECK((result.status == FBK_S_OK) == (result.run != NULL));
    if (result.run) {
        CHECK(result.found_entry_id >= first && result.found_entry_id <= last);
        CHECK(result.run->ledger_id == ledger_id);
        const struct fbk_run_item *item = fbk_run_find(result.run, result.found_entry_id);
        CHECK(item != NULL &&
              item->offset_bytes + (uint64_t)item->size_bytes <= result.run->size_bytes);
        CHECK_EQUAL(fbk_crc32c(0, result.run->bytes + item->offset_bytes, item->size_bytes),
                    item->crc);
        fbk_store_release(store, result.run);
    } else {
        CHECK(result.status == FBK_S_NO_ENTRY || result.status == FBK_S_CANNOT_TELL);
    }
    return result.status;
}
