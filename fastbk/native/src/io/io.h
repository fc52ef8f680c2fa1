/* The one seam between fastbk and a disk: a few calls and a way to collect completions.  Two
 * backends: io/uring.c with io/uring_queue.c, and io/plain.c (pwritev2, preadv2); tests have a
 * third, tests/native/fake_disk.  Everything a bookie stores goes through here, the manifest and
 * identity files included.
 *
 * Decision 30. */
#pragma once

#include "base/base.h"

#include <sys/uio.h>

struct fbk_io;

#define FBK_IO_CREATE 1u /* create; fails with -EEXIST if it exists */
/* O_DIRECT where the file system has it: buffers, sizes, offsets are then block multiples */
#define FBK_IO_DIRECT 2u
#define FBK_IO_READ_ONLY 4u
/* exclusive lock on this open file, waits up to lock_timeout; held until the last request of a dead
 * process has left the kernel; released by close */
#define FBK_IO_LOCK 8u
/* Reads bring nothing into the page cache but what was asked for: somebody may be writing the
 * blocks behind it past the cache. */
#define FBK_IO_RANDOM 16u
/* write: durable when it completes (RWF_DSYNC, or a linked fsync where that is refused) */
#define FBK_IO_SYNC 1u

struct fbk_io_completion {
    uint64_t ticket;
    /* bytes written (always the whole size: short writes are continued inside) or -errno */
    int32_t result;
    uint32_t reserved;
};

struct fbk_io_operations {
    /* Returns a file handle >= 0 or -errno. */
    int32_t (*open)(struct fbk_io *io, const char *path, uint32_t flags);
    int32_t (*close)(struct fbk_io *io, int32_t file);
    /* Writes zeros over [from, to) for real (allocated extents are not enough) and syncs; creates
     * length. */
    int32_t (*preallocate)(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes);
    /* Gives [from, to) of a file its blocks and length without writing them; not synced.
     * is_written: as if zeros had been written there, which few disks can.  Otherwise the first
     * write of each block costs more (decision 12).  -EOPNOTSUPP where this cannot be had. */
    int32_t (*allocate)(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes,
                        bool is_written);
    /* Where the first blocks from from_bytes on are that were never written, and their end in
     * *to_bytes; the file's size when there are none, or nobody can tell.  Or -errno. */
    int64_t (*find_unwritten)(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                              uint64_t *to_bytes);
    /* Starts a write; its completion comes out of `wait` with `ticket`.  The buffer stays untouched
     * until then. Returns 0 or -errno (nothing started). */
    int32_t (*write)(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                     uint64_t offset_bytes, uint32_t flags, uint64_t ticket);
    /* The same write, but waits for it, leaves completions alone, and may be called from any
     * thread: for headers, small files and flushes.  Returns size_bytes or -errno. */
    int32_t (*write_wait)(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                          uint64_t offset_bytes, uint32_t flags);
    int32_t (*sync)(struct fbk_io *io, int32_t file); /* fdatasync, waits */
    /* Waits; returns bytes read (short only at the end of the file) or -errno. */
    int32_t (*read)(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                    uint64_t offset_bytes);
    /* Reads into `count` parts one behind the other; returns bytes read, which may be fewer than
     * the parts take anywhere in a file, or -errno.  NULL: this backend has none, read them one by
     * one. */
    int32_t (*read_parts)(struct fbk_io *io, int32_t file, const struct iovec *parts,
                          uint32_t count, uint64_t offset_bytes);
    /* Reads what is in memory already: size_bytes, or -errno: -EAGAIN where some of it would have
     * to come from the disk, -EOPNOTSUPP where the file system cannot tell (tmpfs, overlayfs).
     * NULL: this backend cannot. */
    int32_t (*read_cached)(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                           uint64_t offset_bytes);
    /* Makes a file shorter; not synced. */
    int32_t (*truncate)(struct fbk_io *io, int32_t file, uint64_t size_bytes);
    int32_t (*rename)(struct fbk_io *io, const char *from, const char *to);
    int32_t (*unlink)(struct fbk_io *io, const char *path);
    int32_t (*sync_directory)(struct fbk_io *io, const char *path);
    /* Collects completions: waits until there is at least one, event_fd (>= 0; blocking eventfd,
     * consumed) was rung, or timeout_ms passed (-1 = no limit, 0 = only look).  *rung says whether
     * the bell rang.  Returns their count, 0 also when a signal came.  One bell for the whole life
     * of a backend (-EBUSY for another); a ring seen while event_fd was -1 is told at the next call
     * that has it. */
    int32_t (*wait)(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
                    struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung);
    int64_t (*size)(struct fbk_io *io, int32_t file);
    /* Names in a directory, separated by NUL, into `names`; returns bytes used or -errno (-E2BIG:
     * too small). */
    int64_t (*list)(struct fbk_io *io, const char *path, char *names, uint64_t names_size_bytes);
    /* 0 also when it exists */
    int32_t (*make_directory)(struct fbk_io *io, const char *path);
    void (*destroy)(struct fbk_io *io);
};

struct fbk_io {
    const struct fbk_io_operations *operations;
    uint32_t depth_max;        /* writes that may be outstanding */
    uint32_t block_size_bytes; /* for direct files: 4096 or larger */
    uint32_t lock_timeout_ms;  /* how long FBK_IO_LOCK waits; -ETIMEDOUT then */
    uint32_t reserved;
    const char *name;      /* "io_uring", "plain", "fake" */
    const char *sync_mode; /* "O_DIRECT+RWF_DSYNC", "write+linked fsync", ... */
};

/* Threads: all calls may come from several threads at once, but write and wait of one backend only
 * from one thread, the one that came first (an io_uring belongs to its thread).
 *
 * NULL with *error = -errno where it can't work here (probe by real operations in `directory`). */
struct fbk_io *fbk_io_uring_create(const char *directory, uint32_t depth, int32_t *error);
struct fbk_io *fbk_io_plain_create(const char *directory, int32_t *error);
struct fbk_io *fbk_io_plain_create_unproven(_Bool reads_direct, int32_t *error);
struct fbk_io *fbk_io_plain_create_like(const struct fbk_io *other, int32_t *error);
