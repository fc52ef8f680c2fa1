/* What every disk backend has to do, whichever it is: run by test_io.c on all of them. */
#pragma once

#include "io/io.h"
#include "base/segment.h"

#include "check.h"

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FILE_BYTES (1u << 20)

static char folder[2048] = ".";

static const char *
path_of(const char *name)
{
    static char paths[8][4096];
    static int turn;
    char *path = paths[turn++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static uint8_t *
buffer_of(uint32_t size_bytes, uint64_t seed)
{
    uint8_t *memory = fbk_memory_take(size_bytes);
    CHECK(memory != NULL);
    test_fill(memory, size_bytes, seed);
    return memory;
}

/* Waits for `count` completions; each must have the whole size. Returns how often the bell rang. */
static int
collect(struct fbk_io *io, int32_t bell, int count, int64_t wanted)
{
    int rings = 0;
    uint64_t deadline_ns = fbk_now_ns() + 20000000000ull;
    while (count > 0) {
        struct fbk_io_completion completions[8];
        int32_t rung = 0, got = io->operations->wait(io, bell, 5000, completions, 8, &rung);
        CHECK(got >= 0);
        for (int32_t i = 0; i < got; i++)
            CHECK_EQUAL(completions[i].result, wanted);
        count -= got;
        rings += rung;
        CHECK(fbk_now_ns() < deadline_ns);
    }
    CHECK(count == 0);
    return rings;
}

static void
write_all(struct fbk_io *io, int32_t file, const void *data, uint32_t size, uint64_t offset,
          uint32_t flags)
{
    CHECK_EQUAL(io->operations->write(io, file, data, size, offset, flags, 9), 0);
    collect(io, -1, 1, size);
}

static void
test_open_and_names(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    CHECK_EQUAL(o->open(io, path_of("absent"), 0), -ENOENT);
    CHECK_EQUAL(o->make_directory(io, path_of("sub")), 0);
    CHECK_EQUAL(o->make_directory(io, path_of("sub")), 0);
    CHECK(o->make_directory(io, path_of("no/where")) < 0);
    int32_t file = o->open(io, path_of("sub/a"), FBK_IO_CREATE);
    CHECK(file >= 0);
    CHECK_EQUAL(o->open(io, path_of("sub/a"), FBK_IO_CREATE), -EEXIST);
    CHECK_EQUAL(o->close(io, file), 0);
    file = o->open(io, path_of("sub/b"), FBK_IO_CREATE | FBK_IO_DIRECT);
    CHECK(file >= 0 && o->close(io, file) == 0);
    CHECK_EQUAL(o->rename(io, path_of("sub/a"), path_of("sub/c")), 0);
    CHECK_EQUAL(o->rename(io, path_of("sub/a"), path_of("sub/c")), -ENOENT);
    char names[64];
    int64_t used = o->list(io, path_of("sub"), names, sizeof names);
    CHECK_EQUAL(used, 4);
    CHECK(memcmp(names, "b\0c", 4) == 0 || memcmp(names, "c\0b", 4) == 0);
    CHECK_EQUAL(o->list(io, path_of("sub"), names, 3), -E2BIG);
    CHECK_EQUAL(o->list(io, path_of("absent"), names, sizeof names), -ENOENT);
    CHECK_EQUAL(o->sync_directory(io, path_of("sub")), 0);
    CHECK_EQUAL(o->unlink(io, path_of("sub/c")), 0);
    CHECK_EQUAL(o->unlink(io, path_of("sub/c")), -ENOENT);
    CHECK_EQUAL(o->unlink(io, path_of("sub/b")), 0);
    CHECK_EQUAL(o->list(io, path_of("sub"), names, sizeof names), 0);
}

/* What was only allocated reads as zeros and is found until it is written. */
static void
test_allocate(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    uint64_t block = io->block_size_bytes, to = 0;
    int32_t file = o->open(io, path_of("allocated"), FBK_IO_CREATE | FBK_IO_DIRECT);
    CHECK(file >= 0);
    CHECK_EQUAL(o->preallocate(io, file, 0, 4 * block), 0);
    CHECK_EQUAL(o->find_unwritten(io, file, 0, &to), (int64_t)(4 * block));
    CHECK_EQUAL(o->allocate(io, file, 4 * block, 16 * block, false), 0);
    CHECK_EQUAL(o->sync(io, file), 0);
    CHECK_EQUAL(o->size(io, file), (int64_t)(16 * block));
    uint8_t *data = buffer_of((uint32_t)block, 3), *back = fbk_memory_take(16 * block);
    CHECK_EQUAL(o->read(io, file, back, (uint32_t)(16 * block), 0), (int64_t)(16 * block));
    for (uint32_t i = 0; i < 16 * block; i++)
        CHECK(back[i] == 0);
    CHECK_EQUAL(o->write_wait(io, file, data, (uint32_t)block, 4 * block, FBK_IO_SYNC),
                (int64_t)block);
    int64_t from = o->find_unwritten(io, file, 0, &to);
    if (from < (int64_t)(16 * block)) { /* some file systems cannot tell */
        CHECK(from == (int64_t)(5 * block) && to == 16 * block);
        CHECK(o->find_unwritten(io, file, 9 * block, &to) == (int64_t)(9 * block) &&
              to == 16 * block);
        CHECK_EQUAL(o->preallocate(io, file, 5 * block, 16 * block), 0);
        CHECK_EQUAL(o->find_unwritten(io, file, 0, &to), (int64_t)(16 * block));
    }
    int32_t rc = o->allocate(io, file, 16 * block, 32 * block, true);
    CHECK(rc == -EOPNOTSUPP ||
          (rc == 0 && o->find_unwritten(io, file, 16 * block, &to) == (int64_t)(32 * block)));
    CHECK_EQUAL(o->close(io, file), 0);
    CHECK_EQUAL(o->unlink(io, path_of("allocated")), 0);
    fbk_memory_give_back(back, 16 * block);
    fbk_memory_give_back(data, block);
}

static void
test_write_and_read_back(struct fbk_io *io, uint32_t open_flags)
{
    const struct fbk_io_operations *o = io->operations;
    uint32_t block = io->block_size_bytes;
    int32_t file = o->open(io, path_of("data"), FBK_IO_CREATE | open_flags);
    CHECK(file >= 0);
    CHECK_EQUAL(o->preallocate(io, file, 0, FILE_BYTES), 0);
    CHECK_EQUAL(o->size(io, file), FILE_BYTES);
    uint8_t *model = fbk_memory_take(FILE_BYTES), *back = fbk_memory_take(FILE_BYTES),
            *data = buffer_of(FILE_BYTES, 4);
    uint64_t seed = 8;
    for (int round = 0; round < 50; round++) {
        uint32_t size = (uint32_t)(1 + test_random(&seed) % 16) * block;
        uint64_t offset = test_random(&seed) % (FILE_BYTES / block - 16) * block;
        uint64_t from = test_random(&seed) % (FILE_BYTES / block - 16) * block;
        if (round % 3 == 0)
            CHECK_EQUAL(
                o->write_wait(io, file, data + from, size, offset, round % 2 ? FBK_IO_SYNC : 0),
                size);
        else
            write_all(io, file, data + from, size, offset, round % 2 ? FBK_IO_SYNC : 0);
        memcpy(model + offset, data + from, size);
    }
    CHECK_EQUAL(o->sync(io, file), 0);
    CHECK_EQUAL(o->read(io, file, back, FILE_BYTES, 0), FILE_BYTES);
    CHECK(memcmp(back, model, FILE_BYTES) == 0);
    /* short at the end */
    CHECK_EQUAL(o->read(io, file, back, 2 * block, FILE_BYTES - block), (int64_t)block);
    CHECK_EQUAL(o->read(io, file, back, block, FILE_BYTES), 0);
    if (o->read_parts != NULL && !(open_flags & FBK_IO_DIRECT)) {
        const struct iovec parts[] = {{back + 100, 1}, {back, 100}, {back + 101, 3 * block + 5}};
        memset(back, 0, FILE_BYTES);
        CHECK_EQUAL(o->read_parts(io, file, parts, 3, 7), 3 * block + 106);
        CHECK(back[100] == model[7] && memcmp(back, model + 8, 100) == 0 &&
              memcmp(back + 101, model + 108, 3 * block + 5) == 0);
        /* short at the end */
        CHECK_EQUAL(o->read_parts(io, file, parts, 3, FILE_BYTES - 50), 50);
    }
    /* tmpfs and overlayfs cannot tell what is in memory. */
    if (o->read_cached != NULL && !(open_flags & FBK_IO_DIRECT) &&
        o->read_cached(io, file, back, 1, block) != -EOPNOTSUPP) {
        uint32_t in_memory = 0;
        for (uint64_t from = 0; from < FILE_BYTES; from += block) {
            memset(back, 0, block);
            int32_t got = o->read_cached(io, file, back, block, from);
            CHECK(got == (int32_t)block || got == -EAGAIN);
            CHECK(got < 0 || memcmp(back, model + from, block) == 0);
            in_memory += got > 0;
        }
        CHECK(in_memory > 0); /* it was read a moment ago */
        CHECK(o->read_cached(io, file, back, block, FILE_BYTES - 50) < 0); /* never short */
    }
    CHECK_EQUAL(o->preallocate(io, file, FILE_BYTES, 3 * FILE_BYTES + block), 0);
    CHECK_EQUAL(o->size(io, file), 3 * FILE_BYTES + block);
    CHECK_EQUAL(o->read(io, file, back, FILE_BYTES, 2 * FILE_BYTES), FILE_BYTES);
    for (uint32_t i = 0; i < FILE_BYTES; i++)
        CHECK(back[i] == 0);
    CHECK_EQUAL(o->write(io, file, data, 0, 0, 0, 1), -EINVAL);
    CHECK_EQUAL(o->close(io, file), 0);
    CHECK_EQUAL(o->unlink(io, path_of("data")), 0);
    fbk_memory_give_back(model, FILE_BYTES);
    fbk_memory_give_back(back, FILE_BYTES);
    fbk_memory_give_back(data, FILE_BYTES);
}

static void
test_unaligned_buffered(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    int32_t file = o->open(io, path_of("text"), FBK_IO_CREATE);
    CHECK(file >= 0);
    write_all(io, file, "hello", 5, 0, FBK_IO_SYNC);
    CHECK_EQUAL(o->write_wait(io, file, "world", 5, 3, FBK_IO_SYNC), 5);
    CHECK_EQUAL(o->write_wait(io, file, "", 0, 3, 0), -EINVAL);
    char back[16];
    CHECK_EQUAL(o->read(io, file, back, sizeof back, 0), 8);
    CHECK(memcmp(back, "helworld", 8) == 0);
    CHECK_EQUAL(o->close(io, file), 0);
    file = o->open(io, path_of("text"), FBK_IO_READ_ONLY);
    CHECK(file >= 0);
    CHECK_EQUAL(o->read(io, file, back, 3, 5), 3);
    CHECK_EQUAL(o->write_wait(io, file, "x", 1, 0, 0), -EBADF);
    if (o->write(io, file, "x", 1, 0, 0, 1) != -EBADF)
        collect(io, -1, 1, -EBADF);
    CHECK_EQUAL(o->close(io, file), 0);
    CHECK_EQUAL(o->unlink(io, path_of("text")), 0);
}

static void
test_many_outstanding(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    uint32_t block = io->block_size_bytes;
    int32_t file = o->open(io, path_of("deep"), FBK_IO_CREATE | FBK_IO_DIRECT);
    CHECK(file >= 0 && o->preallocate(io, file, 0, 64ull * block) == 0);
    uint8_t *data = buffer_of(64 * block, 6), *back = fbk_memory_take(64ull * block);
    uint64_t seen = 0;
    uint32_t next = 0, outstanding = 0;
    while (next < 64 || outstanding > 0) {
        while (next < 64 && outstanding < io->depth_max) {
            CHECK_EQUAL(o->write(io, file, data + next * block, block, next * block, FBK_IO_SYNC,
                                 1000 + next),
                        0);
            next++;
            outstanding++;
        }
        struct fbk_io_completion completions[3];
        int32_t rung, got = o->wait(io, -1, 5000, completions, 3, &rung);
        CHECK(got > 0 && (uint32_t)got <= outstanding);
        for (int32_t i = 0; i < got; i++) {
            CHECK_EQUAL(completions[i].result, block);
            CHECK(completions[i].ticket >= 1000 && completions[i].ticket < 1064);
            CHECK((seen & (1ull << (completions[i].ticket - 1000))) == 0);
            seen |= 1ull << (completions[i].ticket - 1000);
        }
        outstanding -= (uint32_t)got;
    }
    CHECK(seen == ~0ull);
    CHECK_EQUAL(o->read(io, file, back, 64 * block, 0), 64 * block);
    CHECK(memcmp(back, data, 64ull * block) == 0);
    CHECK(o->close(io, file) == 0 && o->unlink(io, path_of("deep")) == 0);
    fbk_memory_give_back(data, 64ull * block);
    fbk_memory_give_back(back, 64ull * block);
}

/* ------------ the bell */

static void *
ring_when_asked(void *argument)
{
    int *fds = argument; /* [0]: to ring, [1]: tells that the other one is about to wait */
    struct pollfd asked = {.fd = fds[1], .events = POLLIN};
    CHECK(poll(&asked, 1, 20000) == 1);
    fbk_bell_ring(fds[0]);
    return NULL;
}

static void
test_bell(struct fbk_io *io, bool concurrent)
{
    const struct fbk_io_operations *o = io->operations;
    int bell = eventfd(0, EFD_CLOEXEC);
    struct fbk_io_completion completions[4];
    int32_t rung = 7;
    CHECK_EQUAL(o->wait(io, bell, 0, completions, 4, &rung), 0);
    CHECK_EQUAL(rung, 0);
    uint64_t before = fbk_now_ns();
    CHECK_EQUAL(o->wait(io, bell, 30, completions, 4, &rung), 0);
    CHECK(rung == 0 && fbk_now_ns() - before >= 29000000);
    fbk_bell_ring(bell);
    fbk_bell_ring(bell);
    CHECK_EQUAL(o->wait(io, bell, -1, completions, 4, &rung), 0);
    CHECK_EQUAL(rung, 1);
    /* Two rings may be told as one or as two, and then no more: they are consumed. */
    CHECK_EQUAL(o->wait(io, bell, 0, completions, 4, &rung), 0);
    if (rung == 1)
        CHECK_EQUAL(o->wait(io, bell, 0, completions, 4, &rung), 0);
    CHECK_EQUAL(rung, 0);
    for (int round = 0; round < 200 && concurrent; round++) {
        int fds[2] = {bell, eventfd(0, EFD_CLOEXEC)};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, ring_when_asked, fds) == 0);
        fbk_bell_ring(fds[1]);
        CHECK_EQUAL(o->wait(io, bell, 10000, completions, 4, &rung), 0);
        CHECK_EQUAL(rung, 1);
        CHECK(pthread_join(thread, NULL) == 0);
        close(fds[1]);
    }
    /* Rings and writes together: neither may be lost. */
    uint32_t block = io->block_size_bytes;
    int32_t file = o->open(io, path_of("bell"), FBK_IO_CREATE | FBK_IO_DIRECT);
    CHECK(file >= 0 && o->preallocate(io, file, 0, 4ull * block) == 0);
    uint8_t *data = buffer_of(block, 3);
    for (int round = 0; round < 20; round++) {
        CHECK_EQUAL(o->write(io, file, data, block, 0, FBK_IO_SYNC, 5), 0);
        fbk_bell_ring(bell);
        int rings = collect(io, bell, 1, block);
        if (rings == 0) {
            CHECK_EQUAL(o->wait(io, bell, 5000, completions, 4, &rung), 0);
            CHECK_EQUAL(rung, 1);
        } else {
            CHECK_EQUAL(rings, 1);
        }
    }
    fbk_memory_give_back(data, block);
    CHECK(o->close(io, file) == 0 && o->unlink(io, path_of("bell")) == 0);
    /* bell stays open: it is this backend's for good */
}

/* ------------ locks */

static void
test_lock(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    int32_t file = o->open(io, path_of("locked"), FBK_IO_CREATE | FBK_IO_LOCK);
    CHECK(file >= 0);
    io->lock_timeout_ms = 30;
    CHECK_EQUAL(o->open(io, path_of("locked"), FBK_IO_LOCK), -ETIMEDOUT);
    CHECK_EQUAL(o->close(io, file), 0);
    file = o->open(io, path_of("locked"), FBK_IO_LOCK);
    CHECK(file >= 0 && o->close(io, file) == 0);
    io->lock_timeout_ms = 10000;
    CHECK_EQUAL(o->unlink(io, path_of("locked")), 0);
}

static void
test_backend(struct fbk_io *io)
{
    CHECK(io->block_size_bytes >= 4096 && io->depth_max >= 1 && io->name != NULL &&
          io->sync_mode != NULL);
    printf("%s, %s, blocks of %u\n", io->name, io->sync_mode, io->block_size_bytes);
    test_open_and_names(io);
    test_allocate(io);
    test_write_and_read_back(io, FBK_IO_DIRECT);
    test_write_and_read_back(io, 0);
    test_unaligned_buffered(io);
    test_many_outstanding(io);
    test_lock(io);
}
