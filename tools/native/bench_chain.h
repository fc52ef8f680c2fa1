/* The storing side of tools/native/bench_chain.c: what its processes share, its journal and its
 * flusher. */
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define OVERHEAD_BYTES 152u /* of an Add's frame, as our client sends it, beside its data */
#define ENTRY_BYTES_DEFAULT 1024u
#define ENTRY_BYTES_MAX (256u << 10)
#define ACK_BYTES 36u
#define SLOT_COUNT_MAX 8192u /* of the ring; a window is at most half of its slots */
#define RING_BYTES_MAX (64u << 20)
#define BLOCK_BYTES 4096u
#define BATCH_BYTES (1u << 20)
#define FILE_BYTES_DEFAULT (64u << 20)
#define FILE_BYTES_MAX (1ull << 40)
#define PIECE_BYTES (1u << 20)
#define PIECE_COUNT 4u
#define FLUSH_BYTES (24u << 20) /* half of a write cache */
#define BEHIND_BYTES \
    (96u << 20)        /* two write caches: a bookie takes no more before it was flushed */
#define LATENCY_BITS 7 /* a bucket of the histogram is less than 1 % of its latencies wide */
#define LATENCY_BUCKETS ((64u - LATENCY_BITS + 1) << LATENCY_BITS)
/* of all connections together, and four frames of each at least */
#define INPUT_BYTES (256u << 10)
#define CONNECTIONS_MAX 4096u
#define EVENTS_MAX 1024

/* What the three share.  Each word has one writer; `..._sleeps` is its reader's. */
struct shared {
    _Alignas(64) _Atomic uint64_t written;   /* worker: frames in the ring */
    _Alignas(64) _Atomic uint64_t committed; /* journal: of these, durable */
    _Alignas(64) _Atomic uint32_t journal_sleeps;
    _Alignas(64) _Atomic uint64_t batches;
    _Alignas(
        64) _Atomic uint64_t flushed; /* flusher: bytes, or all that there can be without one */
};

static struct shared *shared;
static uint8_t *ring; /* in shared memory, too */
static int journal_bell, worker_bell;
/* Set before the processes are started. */
static uint32_t frame_bytes, slot_count;
static uint64_t file_bytes; /* of the journal's file, and of the flusher's */

static uint8_t *
slot(uint64_t number)
{
    return ring + (number & (slot_count - 1)) * frame_bytes;
}

static void
need(bool is_well, const char *what)
{
    if (is_well)
        return;
    fprintf(stderr, "bench_chain: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void
ring_bell(int fd)
{
    uint64_t one = 1;
    need(write(fd, &one, sizeof one) == sizeof one, "ring");
}

/* ------------ journal */

static void
wait_one(struct io_uring *uring, int32_t wanted)
{
    struct io_uring_cqe *cqe;
    errno = -io_uring_submit_and_wait(uring, 1);
    need(io_uring_peek_cqe(uring, &cqe) == 0, "wait");
    errno = cqe->res < 0 ? -cqe->res : EIO;
    need(cqe->res == wanted, "an operation of io_uring");
    io_uring_cqe_seen(uring, cqe);
}

static int
open_uring(struct io_uring *uring)
{
    return io_uring_queue_init(8, uring, IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN);
}

static void
run_journal(int file)
{
    struct io_uring uring;
    uint8_t *batch;
    need(open_uring(&uring) == 0, "io_uring");
    need(posix_memalign((void **)&batch, BLOCK_BYTES, BATCH_BYTES + BLOCK_BYTES) == 0, "memory");
    memset(batch, 0, BATCH_BYTES + BLOCK_BYTES);
    uint64_t taken = 0, offset = 0;
    for (;;) {
        uint64_t written = atomic_load(&shared->written);
        if (written == taken) {
            atomic_store(&shared->journal_sleeps, 1);
            if (atomic_load(&shared->written) == taken) {
                uint64_t count;
                struct io_uring_sqe *sqe = io_uring_get_sqe(&uring);
                io_uring_prep_read(sqe, journal_bell, &count, sizeof count, 0);
                wait_one(&uring, sizeof count);
            }
            atomic_store(&shared->journal_sleeps, 0);
            continue;
        }
        struct timespec pause = {0, 1000000};
        while (taken * frame_bytes > BEHIND_BYTES + atomic_load(&shared->flushed))
            nanosleep(&pause, NULL);
        uint32_t used = 0;
        for (; taken < written && used + frame_bytes <= BATCH_BYTES; taken++, used += frame_bytes)
            memcpy(batch + used, slot(taken), frame_bytes);
        used = (used + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        offset = offset + used > file_bytes ? 0 : offset;
        struct io_uring_sqe *sqe = io_uring_get_sqe(&uring);
        io_uring_prep_write(sqe, file, batch, used, offset);
        sqe->rw_flags = RWF_DSYNC;
        wait_one(&uring, (int32_t)used);
        offset += used;
        atomic_store(&shared->committed, taken);
        atomic_fetch_add(&shared->batches, 1);
        ring_bell(worker_bell);
    }
}

/* ------------ flusher */

static void
run_flusher(int file)
{
    struct io_uring uring;
    uint8_t *piece;
    need(open_uring(&uring) == 0, "io_uring");
    need(posix_memalign((void **)&piece, BLOCK_BYTES, PIECE_BYTES) == 0, "memory");
    memset(piece, 1, PIECE_BYTES);
    uint64_t flushed = 0, offset = 0;
    for (;;) {
        struct timespec pause = {0, 1000000};
        while (atomic_load(&shared->committed) * frame_bytes < flushed + FLUSH_BYTES)
            nanosleep(&pause, NULL);
        for (uint32_t i = 0; i < FLUSH_BYTES / PIECE_BYTES + PIECE_COUNT; i++) {
            if (i >= PIECE_COUNT)
                wait_one(&uring, PIECE_BYTES);
            if (i < FLUSH_BYTES / PIECE_BYTES) {
                io_uring_prep_write(io_uring_get_sqe(&uring), file, piece, PIECE_BYTES, offset);
                io_uring_submit(&uring);
                offset = offset + 2 * PIECE_BYTES > file_bytes ? 0 : offset + PIECE_BYTES;
            }
        }
        need(fdatasync(file) == 0, "sync");
        flushed += FLUSH_BYTES;
        atomic_store(&shared->flushed, flushed);
    }
}

/* A file whose blocks have been written before. One that is there stays there; else it is made, and
 * its descriptor is enough. */
static int
open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CLOEXEC | O_DIRECT);
    if (file >= 0) {
        need(lseek(file, 0, SEEK_END) >= (off_t)file_bytes, "a file that is too small");
        return file;
    }
    file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_DIRECT, 0600);
    uint8_t *zeros;
    need(file >= 0, path);
    unlink(path);
    need(posix_memalign((void **)&zeros, BLOCK_BYTES, BATCH_BYTES) == 0, "memory");
    memset(zeros, 0, BATCH_BYTES);
    for (uint64_t at = 0; at < file_bytes; at += BATCH_BYTES)
        need(pwrite(file, zeros, BATCH_BYTES, (off_t)at) == BATCH_BYTES, "write zeros");
    need(fdatasync(file) == 0, "sync");
    free(zeros);
    return file;
}
