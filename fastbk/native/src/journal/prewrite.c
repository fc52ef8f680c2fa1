/* The next journal file, ahead of need, by a thread of its own.  An old one gets a new name, and
 * its directory is synced, which takes as long as many commits.  A new one is filled with zeros:
 * blocks that were only allocated cost half as much again at each commit (one more disk write for
 * the extent); a second Python thread doubles the journal's p99.9, so this one never sees the
 * interpreter.
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

struct fbk_prewrite {
    struct fbk_io *io;
    char directory[PATH_BYTES_MAX];
    char path[PATH_BYTES_MAX];
    char old_path[PATH_BYTES_MAX]; /* empty: a new file */
    uint64_t size_bytes;
    uint32_t piece_bytes;
    uint32_t pause_us;
    pthread_t thread;
    _Atomic int32_t state;
    _Atomic uint32_t hurry;
};

static bool
is_recycled(const struct fbk_prewrite *prewrite)
{
    return prewrite->old_path[0] != 0;
}

static void
pause_between(struct fbk_prewrite *prewrite)
{
    uint32_t us = prewrite->pause_us;
    if (us == 0 || atomic_load(&prewrite->hurry))
        return;
    struct timespec pause = {.tv_sec = us / 1000000u, .tv_nsec = (long)(us % 1000000u) * 1000};
    nanosleep(&pause, NULL);
}

static int32_t
write_zeros(struct fbk_prewrite *prewrite)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    int32_t file = io->open(prewrite->io, prewrite->path, FBK_IO_CREATE | FBK_IO_DIRECT);
    if (file < 0)
        return file;
    int32_t rc = 0;
    for (uint64_t at = 0; rc >= 0 && at < prewrite->size_bytes; at += prewrite->piece_bytes) {
        uint64_t end = at + prewrite->piece_bytes;
        rc = io->preallocate(prewrite->io, file, at,
                             end < prewrite->size_bytes ? end : prewrite->size_bytes);
        FBK_KILL_POINT("journal.prewrite_piece");
        pause_between(prewrite);
    }
    FBK_KILL_POINT("journal.prewrite_before_sync");
    if (rc >= 0)
        rc = io->sync(prewrite->io, file);
    int32_t closed = io->close(prewrite->io, file);
    return rc < 0 ? rc : closed;
}

static int32_t
make_file(struct fbk_prewrite *prewrite)
{
    const struct fbk_io_operations *io = prewrite->io->operations;
    int32_t rc;
    if (is_recycled(prewrite)) {
        FBK_KILL_POINT("journal.recycle_before_rename");
        rc = io->rename(prewrite->io, prewrite->old_path, prewrite->path);
        FBK_KILL_POINT("journal.recycle_after_rename");
    } else {
        rc = write_zeros(prewrite);
    }
    return rc < 0 ? rc : io->sync_directory(prewrite->io, prewrite->directory);
}

static void *
thread_main(void *argument)
{
    struct fbk_prewrite *prewrite = argument;
    if (!is_recycled(prewrite)) {
        /* Both are hints: where they are refused the pauses still hold. On Linux they go for the
         * thread. */
        syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_IDLE);
        setpriority(PRIO_PROCESS, 0, NICE_LITTLE);
    }
    int32_t rc = make_file(prewrite);
    atomic_store(&prewrite->state, rc < 0 ? rc : 0);
    return NULL;
}

struct fbk_prewrite *
fbk_prewrite_start(struct fbk_io *io, const char *directory, const char *path, const char *old_path,
                   uint64_t size_bytes, uint32_t piece_bytes, uint32_t pause_us, int32_t *error)
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
fbk_prewrite_hurry(struct fbk_prewrite *prewrite)
{
    atomic_store(&prewrite->hurry, 1);
}

void
fbk_prewrite_end(struct fbk_prewrite *prewrite)
{
    pthread_join(prewrite->thread, NULL);
    fbk_memory_give_back(prewrite, sizeof *prewrite);
}
