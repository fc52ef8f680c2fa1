/* What the two backends on real disks share: everything that waits, i.e. all but write and wait. */
#pragma once

#include "io/io.h"

#define FBK_IO_LOCK_TIMEOUT_MS 10000u

/* How writes become durable here; found by the probe. */
struct fbk_io_mode {
    bool direct; /* O_DIRECT is asked for where a caller wants it */
    bool dsync;  /* RWF_DSYNC with direct files; else write, then fdatasync */
};

/* What io_uring's and plain's own structs begin with. */
struct fbk_io_real {
    struct fbk_io io;
    struct fbk_io_mode mode;
};

/* A file handle is the descriptor and, above it, whether O_DIRECT was granted: no table, so threads
 * may open, read and close through one backend at once. */
#define FBK_IO_HANDLE_DIRECT (1 << 28)

static inline int
fbk_io_descriptor(int32_t file)
{
    return file & (FBK_IO_HANDLE_DIRECT - 1);
}

static inline bool
fbk_io_is_direct(int32_t file)
{
    return (file & FBK_IO_HANDLE_DIRECT) != 0;
}

int32_t fbk_io_common_open(struct fbk_io *io, const char *path, uint32_t flags);
int32_t fbk_io_common_close(struct fbk_io *io, int32_t file);
int32_t fbk_io_common_preallocate(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                                  uint64_t to_bytes);
int32_t fbk_io_common_allocate(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                               uint64_t to_bytes, bool is_written);
int64_t fbk_io_common_find_unwritten(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                                     uint64_t *to_bytes);
int32_t fbk_io_common_write_wait(struct fbk_io *io, int32_t file, const void *data,
                                 uint32_t size_bytes, uint64_t offset_bytes, uint32_t flags);
int32_t fbk_io_common_sync(struct fbk_io *io, int32_t file);
int32_t fbk_io_common_read(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                           uint64_t offset_bytes);
int32_t fbk_io_common_read_parts(struct fbk_io *io, int32_t file, const struct iovec *parts,
                                 uint32_t count, uint64_t offset_bytes);
int32_t fbk_io_common_read_cached(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                                  uint64_t offset_bytes);
int32_t fbk_io_common_truncate(struct fbk_io *io, int32_t file, uint64_t size_bytes);
int32_t fbk_io_common_rename(struct fbk_io *io, const char *from, const char *to);
int32_t fbk_io_common_unlink(struct fbk_io *io, const char *path);
int32_t fbk_io_common_sync_directory(struct fbk_io *io, const char *path);
int64_t fbk_io_common_size(struct fbk_io *io, int32_t file);
int64_t fbk_io_common_list(struct fbk_io *io, const char *path, char *names,
                           uint64_t names_size_bytes);
int32_t fbk_io_common_make_directory(struct fbk_io *io, const char *path);

static inline bool
fbk_io_uses_dsync(const struct fbk_io *io, int32_t file)
{
    return fbk_io_is_direct(file) && ((const struct fbk_io_real *)io)->mode.dsync;
}

/* Bytes of a direct write that count as done: a short write may end inside a block, which is then
 * written again. */
static inline uint32_t
fbk_io_whole_blocks(const struct fbk_io *io, int32_t file, uint32_t done_bytes)
{
    return fbk_io_is_direct(file) ? done_bytes & ~(io->block_size_bytes - 1) : done_bytes;
}

/* Writes a block durably in `directory`, reads it back, removes it, all through io->operations;
 * finds io->block_size_bytes and whether O_DIRECT was granted.  0 or -errno. */
int32_t fbk_io_probe(struct fbk_io *io, const char *directory, bool *direct_granted);

/* One mode, not the best that works: for the choice, and for tests. */
struct fbk_io *fbk_io_plain_create_as(const char *directory, const struct fbk_io_mode *mode,
                                      int32_t *error);
struct fbk_io *fbk_io_uring_create_as(const char *directory, uint32_t depth, bool is_plain_ring,
                                      const struct fbk_io_mode *mode, int32_t *error);
