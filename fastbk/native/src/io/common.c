/* System calls that wait, used by the io_uring and the plain backend alike. */
#include "io/common.h"

#include "base/segment.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define ZEROS_BYTES (1u << 20)
#define BLOCK_BYTES_MAX (64u * 1024)
#define LOCK_POLL_MS 5u

static int32_t
take_lock(int fd, uint32_t timeout_ms)
{
    uint64_t deadline_ns = fbk_now_ns() + timeout_ms * 1000000ull;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno == EINTR)
            continue;
        if (errno != EWOULDBLOCK)
            return -errno;
        if (fbk_now_ns() >= deadline_ns)
            return -ETIMEDOUT;
        struct timespec pause = {0, LOCK_POLL_MS * 1000000};
        nanosleep(&pause, NULL);
    }
    return 0;
}

/* Others may have put anything under a file's name: opening a FIFO would wait for ever, a device
 * may do something at a read.  A link may lead out of the directory, so none is followed
 * (INV-D4). */
static int32_t
check_is_file(int fd)
{
    struct stat about;
    const int how = fcntl(fd, F_GETFL);
    if (how < 0 || fstat(fd, &about) < 0)
        return -errno;
    if (S_ISDIR(about.st_mode))
        return -EISDIR;
    if (!S_ISREG(about.st_mode))
        return -EMEDIUMTYPE;
    return fcntl(fd, F_SETFL, how & ~O_NONBLOCK) < 0 ? -errno : 0;
}

int32_t
fbk_io_common_open(struct fbk_io *io, const char *path, uint32_t flags)
{
    int how = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY |
              (flags & FBK_IO_READ_ONLY ? O_RDONLY : O_RDWR) |
              (flags & FBK_IO_CREATE ? O_CREAT | O_EXCL : 0);
    bool direct = (flags & FBK_IO_DIRECT) && ((struct fbk_io_real *)io)->mode.direct;
    int fd = open(path, how | (direct ? O_DIRECT : 0), 0600);
    if (fd < 0 && errno == EINVAL && direct) {
        /* A file system without O_DIRECT may have created the file before it refused. */
        direct = false;
        fd = open(path, how & ~O_EXCL, 0600);
    }
    if (fd < 0)
        return -errno;
    int32_t status = check_is_file(fd);
    if (status == 0 && fd >= FBK_IO_HANDLE_DIRECT)
        status = -EMFILE;
    else if (status == 0 && (flags & FBK_IO_LOCK))
        status = take_lock(fd, io->lock_timeout_ms);
    if (status < 0) {
        close(fd);
        return status;
    }
    if ((flags & FBK_IO_RANDOM) && !direct)
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    return fd | (direct ? FBK_IO_HANDLE_DIRECT : 0);
}

int32_t
fbk_io_common_close(struct fbk_io *io, int32_t file)
{
    (void)io;
    /* EINTR: Linux has closed it all the same. */
    return close(fbk_io_descriptor(file)) < 0 && errno != EINTR ? -errno : 0;
}

int32_t
fbk_io_common_preallocate(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes)
{
    uint8_t *zeros = fbk_memory_take(ZEROS_BYTES);
    if (zeros == NULL)
        return -ENOMEM;
    int32_t status = 0;
    while (from_bytes < to_bytes) {
        uint64_t piece = to_bytes - from_bytes < ZEROS_BYTES ? to_bytes - from_bytes : ZEROS_BYTES;
        ssize_t done = pwrite(fbk_io_descriptor(file), zeros, piece, (off_t)from_bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done > 0)
            done = (ssize_t)fbk_io_whole_blocks(io, file, (uint32_t)done);
        if (done <= 0) {
            status = done < 0 ? -errno : -EIO;
            break;
        }
        from_bytes += (uint64_t)done;
    }
    fbk_memory_give_back(zeros, ZEROS_BYTES);
    return status < 0 ? status : fbk_io_common_sync(io, file);
}

/* Linux has it from 6.17 on; headers of today do not name it. */
#ifndef FALLOC_FL_WRITE_ZEROES
#define FALLOC_FL_WRITE_ZEROES 0x80
#endif

int32_t
fbk_io_common_allocate(struct fbk_io *io, int32_t file, uint64_t from_bytes, uint64_t to_bytes,
                       bool is_written)
{
    (void)io;
    int done;
    do {
        done = fallocate(fbk_io_descriptor(file), is_written ? FALLOC_FL_WRITE_ZEROES : 0,
                         (off_t)from_bytes, (off_t)(to_bytes - from_bytes));
    } while (done < 0 && errno == EINTR);
    if (done == 0)
        return 0;
    /* A kernel that does not know the mode, a seccomp profile, a file system that has none. */
    bool is_unknown = errno == EINVAL || errno == ENOSYS || errno == EPERM;
    return is_unknown ? -EOPNOTSUPP : -errno;
}

/* A block that was only allocated is a hole for lseek, as long as nothing waits in the page
 * cache. */
int64_t
fbk_io_common_find_unwritten(struct fbk_io *io, int32_t file, uint64_t from_bytes,
                             uint64_t *to_bytes)
{
    int64_t size_bytes = fbk_io_common_size(io, file);
    if (size_bytes < 0)
        return size_bytes;
    *to_bytes = (uint64_t)size_bytes;
    int fd = fbk_io_descriptor(file);
    off_t hole =
        from_bytes < (uint64_t)size_bytes ? lseek(fd, (off_t)from_bytes, SEEK_HOLE) : size_bytes;
    if (hole < 0)
        return errno == EIO ? -EIO : size_bytes;
    off_t data = hole < size_bytes ? lseek(fd, hole, SEEK_DATA) : size_bytes;
    if (data >= 0)
        *to_bytes = (uint64_t)data;
    else if (errno != ENXIO) /* ENXIO: the rest of the file is one hole */
        return -errno;
    return hole;
}

int32_t
fbk_io_common_write_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
                         uint64_t offset_bytes, uint32_t flags)
{
    if (size_bytes == 0 || size_bytes > INT32_MAX)
        return -EINVAL;
    bool dsync = (flags & FBK_IO_SYNC) && fbk_io_uses_dsync(io, file);
    uint32_t done = 0;
    while (done < size_bytes) {
        struct iovec piece = {(uint8_t *)(uintptr_t)data + done, size_bytes - done};
        ssize_t written = pwritev2(fbk_io_descriptor(file), &piece, 1, (off_t)(offset_bytes + done),
                                   dsync ? RWF_DSYNC : 0);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return -errno;
        uint32_t whole = done + (uint32_t)written;
        if (whole < size_bytes)
            whole = fbk_io_whole_blocks(io, file, whole);
        if (whole <= done)
            return -EIO;
        done = whole;
    }
    if ((flags & FBK_IO_SYNC) && !dsync && fdatasync(fbk_io_descriptor(file)) < 0)
        return -errno;
    return (int32_t)size_bytes;
}

int32_t
fbk_io_common_sync(struct fbk_io *io, int32_t file)
{
    (void)io;
    /* Not repeated on any error: a second sync may say 0 about pages that are gone. */
    return fdatasync(fbk_io_descriptor(file)) < 0 ? -errno : 0;
}

int32_t
fbk_io_common_read(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                   uint64_t offset_bytes)
{
    if (size_bytes > INT32_MAX)
        return -EINVAL;
    uint32_t done = 0;
    while (done < size_bytes) {
        ssize_t got = pread(fbk_io_descriptor(file), (uint8_t *)data + done, size_bytes - done,
                            (off_t)(offset_bytes + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -errno;
        done += (uint32_t)got;
        /* A direct read that ends inside a block ended at the end of the file; its rest can't be
         * asked for. */
        if (got == 0 || fbk_io_whole_blocks(io, file, done) != done)
            break;
    }
    return (int32_t)done;
}

int32_t
fbk_io_common_read_parts(struct fbk_io *io, int32_t file, const struct iovec *parts, uint32_t count,
                         uint64_t offset_bytes)
{
    (void)io;
    ssize_t got;
    do {
        got = preadv(fbk_io_descriptor(file), parts, (int)count, (off_t)offset_bytes);
    } while (got < 0 && errno == EINTR);
    /* below 2 GiB: the kernel gives no more at once */
    return got < 0 ? -errno : (int32_t)got;
}

int32_t
fbk_io_common_read_cached(struct fbk_io *io, int32_t file, void *data, uint32_t size_bytes,
                          uint64_t offset_bytes)
{
    (void)io;
    const struct iovec part = {data, size_bytes};
    ssize_t got = preadv2(fbk_io_descriptor(file), &part, 1, (off_t)offset_bytes, RWF_NOWAIT);
    if (got < 0)
        return -errno;
    return (uint32_t)got == size_bytes ? (int32_t)got : -EAGAIN;
}

int32_t
fbk_io_common_truncate(struct fbk_io *io, int32_t file, uint64_t size_bytes)
{
    (void)io;
    int32_t rc;
    do
        rc = ftruncate(fbk_io_descriptor(file), (off_t)size_bytes);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
}

int32_t
fbk_io_common_rename(struct fbk_io *io, const char *from, const char *to)
{
    (void)io;
    return rename(from, to) < 0 ? -errno : 0;
}

int32_t
fbk_io_common_unlink(struct fbk_io *io, const char *path)
{
    (void)io;
    return unlink(path) < 0 ? -errno : 0;
}

int32_t
fbk_io_common_sync_directory(struct fbk_io *io, const char *path)
{
    (void)io;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    int32_t status = fsync(fd) < 0 ? -errno : 0;
    close(fd);
    return status;
}

int64_t
fbk_io_common_size(struct fbk_io *io, int32_t file)
{
    (void)io;
    struct stat about;
    return fstat(fbk_io_descriptor(file), &about) < 0 ? -errno : about.st_size;
}

int64_t
fbk_io_common_list(struct fbk_io *io, const char *path, char *names, uint64_t names_size_bytes)
{
    (void)io;
    DIR *directory = opendir(path);
    if (directory == NULL)
        return -errno;
    uint64_t used = 0;
    int64_t status = 0;
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(directory);
        if (entry == NULL) {
            status = -errno;
            break;
        }
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        size_t size = strlen(entry->d_name) + 1;
        if (size > names_size_bytes - used) {
            status = -E2BIG;
            break;
        }
        memcpy(names + used, entry->d_name, size);
        used += size;
    }
    closedir(directory);
    return status < 0 ? status : (int64_t)used;
}

int32_t
fbk_io_common_make_directory(struct fbk_io *io, const char *path)
{
    (void)io;
    return mkdir(path, 0700) < 0 && errno != EEXIST ? -errno : 0;
}

/* ------------ the probe */

static int32_t
write_and_wait(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
               uint64_t offset_bytes)
{
    struct fbk_io_completion completion = {.ticket = 0};
    int32_t rung = 0;
    int32_t status =
        io->operations->write(io, file, data, size_bytes, offset_bytes, FBK_IO_SYNC, 1);
    if (status < 0)
        return status;
    do
        status = io->operations->wait(io, -1, -1, &completion, 1, &rung);
    while (status == 0);
    if (status < 0)
        return status;
    if (completion.ticket != 1 || completion.result < 0)
        return completion.result < 0 ? completion.result : -EIO;
    return completion.result == (int32_t)size_bytes ? 0 : -EIO;
}

static int32_t
probe_block(struct fbk_io *io, int32_t file, uint8_t *memory, uint32_t block)
{
    io->block_size_bytes = block;
    memset(memory, 0x5a, block);
    int32_t status = write_and_wait(io, file, memory, block, block);
    if (status < 0)
        return status;
    uint8_t *back = memory + BLOCK_BYTES_MAX;
    status = io->operations->read(io, file, back, block, block);
    if (status >= 0)
        status = status == (int32_t)block && memcmp(memory, back, block) == 0 ? 0 : -EIO;
    return status < 0 ? status : io->operations->sync(io, file);
}

int32_t
fbk_io_probe(struct fbk_io *io, const char *directory, bool *direct_granted)
{
    static _Atomic uint32_t probes;
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/.fastbk-probe-%d-%u-%llx", directory,
                          (int)getpid(), probes++, (unsigned long long)fbk_now_ns());
    if (length < 0 || (size_t)length >= sizeof path)
        return -ENAMETOOLONG;
    uint8_t *memory = fbk_memory_take(2ull * BLOCK_BYTES_MAX);
    if (memory == NULL)
        return -ENOMEM;
    int32_t file = io->operations->open(io, path, FBK_IO_CREATE | FBK_IO_DIRECT);
    int32_t status = file;
    if (file >= 0) {
        *direct_granted = fbk_io_is_direct(file);
        /* A device with larger blocks refuses a smaller direct write. */
        status = -EINVAL;
        for (uint32_t block = FBK_PAGE_BYTES; status == -EINVAL && block <= BLOCK_BYTES_MAX;
             block *= 2)
            status = probe_block(io, file, memory, block);
        io->operations->close(io, file);
        int32_t removed = io->operations->unlink(io, path);
        status = status < 0 ? status : removed;
    }
    fbk_memory_give_back(memory, 2ull * BLOCK_BYTES_MAX);
    return status;
}
