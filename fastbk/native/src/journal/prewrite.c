/* The next journal file, ahead of need, by a thread of its own.  An old one gets a new name, and
 * its directory is synced, which takes as long as many commits.  A new one is filled with zeros:
 * blocks that were only allocated cost half as much again at each small commit (one more disk write
 * for the extent).  While large batches come, zeros would be half of what the disk writes, and the
 * extent's write costs little beside theirs: then the thread waits, and when the file is needed its
 * rest is only allocated.  The zeros follow when the file is taken again.  A second Python thread
 * doubles the journal's p99.9, so this one never sees the interpreter.
 *
 * Decision 12. */

#include "base/fault.h"
#include "journal/journal.h"

#include <pthread.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096u
#define IOPRIO_WHO_PROCESS 1
#define IOPRIO_IDLE (3 << 13)
/* the lowest would leave it nothing on a busy machine, and the journal waiting for it */
#define NICE_LITTLE 5
/* each piece is synced: fewer syncs where nobody is to be spared */
#define PIECES_IN_HASTE 2u
/* between two looks at whether it goes on */
#define WAIT_US 2000u

struct fbk_prewrite {
    struct fbk_io *io;
    char directory[PATH_BYTES_MAX];
    char path[PATH_BYTES_MAX];
    char old_path[PATH_BYTES_MAX]; /* empty: a new file */
    uint64_t size_bytes;
    uint32_t piece_bytes;
    uint32_t pause_us;
    pthread_t thread;
    bool asks_for_zeros;    /* the file system is asked for them, until it refuses */
    bool is_renaming;       /* the old name may be gone; set before state, as the next one */
    uint64_t written_bytes; /* from here on blocks may be without zeros */
    _Atomic int32_t state;
    _Atomic uint32_t haste; /* FBK_PREWRITE_... */
};

static bool
is_recycled(const struct fbk_prewrite *prewrite)
{
    return prewrite->old_path[0] != 0;
}

static void
pause_us(uint32_t us)
{
    struct timespec pause = {.tv_sec = us / 1000000u, .tv_nsec = (long)(us % 1000000u) * 1000};
    nanosleep(&pause, NULL);
}

/* Whether no more zeros are written; waits as long as the disk is left to others. */
static bool
leaves_rest(struct fbk_prewrite *prewrite)
{
    while (atomic_load(&prewrite->haste) == FBK_PREWRITE_WAITS)
        pause_us(WAIT_US);
    return atomic_load(&prewrite->haste) == FBK_PREWRITE_ALLOCATES;
}

static void
pause_between(struct fbk_prewrite *prewrite)
{
    if (prewrite->pause_us && atomic_load(&prewrite->haste) == FBK_PREWRITE_CALM)
        pause_us(prewrite->pause_us);
}

static bool
is_full(int32_t rc)
{
    return rc == -ENOSPC || rc == -EDQUOT || rc == -EFBIG;
}

static int32_t
write_piece(struct fbk_prewrite *prewrite, int32_t file, uint64_t from_bytes, uint64_t to_bytes)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    if (prewrite->asks_for_zeros) {
        int32_t rc = io->allocate(prewrite->io, file, from_bytes, to_bytes, true);
        if (rc >= 0 || is_full(rc))
            return rc;
        prewrite->asks_for_zeros = false;
    }
    return io->preallocate(prewrite->io, file, from_bytes, to_bytes);
}

/* Returns where the zeros end: before to_bytes when the rest is to be left; or -errno. */
static int64_t
write_zeros(struct fbk_prewrite *prewrite, int32_t file, uint64_t from_bytes, uint64_t to_bytes,
            bool may_leave)
{
    while (from_bytes < to_bytes && !(may_leave && leaves_rest(prewrite))) {
        bool is_calm = atomic_load(&prewrite->haste) == FBK_PREWRITE_CALM;
        uint64_t end = from_bytes + prewrite->piece_bytes * (is_calm ? 1u : PIECES_IN_HASTE);
        if (end > to_bytes)
            end = to_bytes;
        int32_t rc = write_piece(prewrite, file, from_bytes, end);
        if (rc < 0)
            return rc;
        from_bytes = end;
        FBK_KILL_POINT("journal.prewrite_piece");
        pause_between(prewrite);
    }
    return (int64_t)from_bytes;
}

static int32_t
fill_new(struct fbk_prewrite *prewrite, int32_t file)
{
    const uint64_t size_bytes = prewrite->size_bytes;
    prewrite->written_bytes = size_bytes;
    int64_t end = write_zeros(prewrite, file, 0, size_bytes, true);
    if (end < 0 || (uint64_t)end == size_bytes)
        return end < 0 ? (int32_t)end : 0;
    int32_t rc =
        prewrite->io->operations->allocate(prewrite->io, file, (uint64_t)end, size_bytes, false);
    if (rc >= 0)
        prewrite->written_bytes = (uint64_t)end;
    if (rc >= 0 || is_full(rc))
        return rc;
    end = write_zeros(prewrite, file, (uint64_t)end, size_bytes, false);
    return end < 0 ? (int32_t)end : 0;
}

static int32_t
make_new(struct fbk_prewrite *prewrite)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    int32_t file = io->open(prewrite->io, prewrite->path, FBK_IO_CREATE | FBK_IO_DIRECT);
    if (file < 0)
        return file;
    int32_t rc = fill_new(prewrite, file);
    FBK_KILL_POINT("journal.prewrite_before_sync");
    if (rc >= 0)
        rc = io->sync(prewrite->io, file);
    int32_t closed = io->close(prewrite->io, file);
    return rc < 0 ? rc : closed;
}

/* Both are hints: where they are refused the pauses still hold.  On Linux they go for the thread.
 */
static void
step_back(void)
{
    syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
    setpriority(PRIO_PROCESS, 0, NICE_LITTLE);
}

/* Writes the zeros that a burst left out, or that went with a sparse copy of the file: that one's
 * holes may begin anywhere. */
static int32_t
fill_old(struct fbk_prewrite *prewrite, int32_t file)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    const uint64_t block = prewrite->io->block_size_bytes;
    const uint64_t size_bytes = prewrite->size_bytes / block * block;
    uint64_t at = 0, to_bytes = 0;
    bool is_calm = false;
    prewrite->written_bytes = prewrite->size_bytes;
    while (at < size_bytes) {
        int64_t found = io->find_unwritten(prewrite->io, file, at, &to_bytes);
        if (found < 0)
            return (int32_t)found;
        if ((uint64_t)found >= size_bytes || to_bytes <= (uint64_t)found)
            break;
        if (!is_calm)
            step_back();
        is_calm = true;
        at = fbk_round_up(to_bytes, block);
        if (at > size_bytes)
            at = size_bytes;
        int64_t end = write_zeros(prewrite, file, (uint64_t)found / block * block, at, true);
        if (end < 0)
            return (int32_t)end;
        if ((uint64_t)end < at) {
            prewrite->written_bytes = (uint64_t)end;
            break;
        }
    }
    return is_calm ? io->sync(prewrite->io, file) : 0;
}

static int32_t
take_old(struct fbk_prewrite *prewrite)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    int32_t file = io->open(prewrite->io, prewrite->old_path, FBK_IO_DIRECT);
    if (file < 0)
        return file;
    int32_t rc = fill_old(prewrite, file);
    io->close(prewrite->io, file);
    if (rc < 0)
        return rc;
    FBK_KILL_POINT("journal.recycle_before_rename");
    prewrite->is_renaming = true;
    rc = io->rename(prewrite->io, prewrite->old_path, prewrite->path);
    FBK_KILL_POINT("journal.recycle_after_rename");
    return rc;
}

static int32_t
make_file(struct fbk_prewrite *prewrite)
{
    int32_t rc = is_recycled(prewrite) ? take_old(prewrite) : make_new(prewrite);
    return rc < 0 ? rc
                  : prewrite->io->operations->sync_directory(prewrite->io, prewrite->directory);
}

static void *
thread_main(void *argument)
{
    struct fbk_prewrite *prewrite = argument;
    if (!is_recycled(prewrite))
        step_back();
    int32_t rc = make_file(prewrite);
    atomic_store(&prewrite->state, rc < 0 ? rc : 0);
    return NULL;
}

struct fbk_prewrite *
fbk_prewrite_start(struct fbk_io *io, const char *directory, const char *path, const char *old_path,
                   uint64_t size_bytes, uint32_t piece_bytes, uint32_t pause_us, uint32_t haste,
                   int32_t *error)
{
    *error = -EINVAL;
    if (!old_path)
        old_path = "";
    if (piece_bytes == 0 || strlen(directory) >= PATH_BYTES_MAX || strlen(path) >= PATH_BYTES_MAX ||
        strlen(old_path) >= PATH_BYTES_MAX)
        return NULL;
    *error = -ENOMEM;
    struct fbk_prewrite *prewrite = fbk_memory_take(sizeof *prewrite);
    if (!prewrite)
        return NULL;
    prewrite->io = io;
    memcpy(prewrite->directory, directory, strlen(directory) + 1);
    memcpy(prewrite->path, path, strlen(path) + 1);
    memcpy(prewrite->old_path, old_path, strlen(old_path) + 1);
    prewrite->size_bytes = size_bytes;
    prewrite->piece_bytes = piece_bytes;
    prewrite->pause_us = pause_us;
    prewrite->asks_for_zeros = true;
    atomic_store(&prewrite->haste, haste);
    atomic_store(&prewrite->state, -EINPROGRESS);
    int rc = pthread_create(&prewrite->thread, NULL, thread_main, prewrite);
    if (rc != 0) {
        *error = -rc;
        fbk_memory_give_back(prewrite, sizeof *prewrite);
        return NULL;
    }
    *error = 0;
    return prewrite;
}

int32_t
fbk_prewrite_state(struct fbk_prewrite *prewrite)
{
    return atomic_load(&prewrite->state);
}

void
fbk_prewrite_hurry(struct fbk_prewrite *prewrite, uint32_t haste)
{
    atomic_store(&prewrite->haste, haste);
}

_Bool
fbk_prewrite_is_renaming(const struct fbk_prewrite *prewrite)
{
    return prewrite->is_renaming;
}

uint64_t
fbk_prewrite_written_bytes(const struct fbk_prewrite *prewrite)
{
    return prewrite->written_bytes;
}

void
fbk_prewrite_end(struct fbk_prewrite *prewrite)
{
    pthread_join(prewrite->thread, NULL);
    fbk_memory_give_back(prewrite, sizeof *prewrite);
}
