/* Writing and waiting through io_uring. */
#include "io/uring.h"

#include "base/segment.h"

#define RETRIES_MAX 100u
#define DRAIN_NS (30ull * 1000000000ull)

/* user_data: below, a slot's index * 2 (+ 1 for its fdatasync). */
#define TAG_BELL (1ull << 32)
#define TAG_CANCEL (1ull << 33)

static int32_t
enable(struct uring *uring)
{
    if (uring->enabled)
        return 0;
    int status = io_uring_enable_rings(&uring->ring);
    uring->enabled = status >= 0;
    return status < 0 ? status : 0;
}

/* There is room for every slot's two SQEs, the bell and a cancel at once, so this can only fail
 * while the kernel has not taken what is there. */
static struct io_uring_sqe *
next_sqe(struct uring *uring)
{
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    if (sqe == NULL && io_uring_submit(&uring->ring) > 0)
        sqe = io_uring_get_sqe(&uring->ring);
    return sqe;
}

/* ------------ writes */

/* Queues what is left of a slot's write. */
static int32_t
queue_write(struct uring *uring, struct uring_slot *slot)
{
    bool sync = (slot->flags & FBK_IO_SYNC) != 0;
    bool linked = sync && !fbk_io_uses_dsync(&uring->real.io, slot->file);
    if (io_uring_sq_space_left(&uring->ring) < 2)
        io_uring_submit(&uring->ring);
    if (io_uring_sq_space_left(&uring->ring) < 2)
        return -EAGAIN;
    uint64_t tag = (uint64_t)(slot - uring->slots) * 2;
    int fd = fbk_io_descriptor(slot->file);
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    io_uring_prep_write(sqe, fd, slot->data + slot->done_bytes, slot->size_bytes - slot->done_bytes,
                        slot->offset_bytes + slot->done_bytes);
    if (sync && !linked)
        sqe->rw_flags = RWF_DSYNC;
    if (linked)
        sqe->flags |= IOSQE_IO_LINK;
    io_uring_sqe_set_data64(sqe, tag);
    slot->cqes_wanted = 1;
    slot->sync_result = 0;
    if (linked) {
        sqe = io_uring_get_sqe(&uring->ring);
        io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC);
        io_uring_sqe_set_data64(sqe, tag + 1);
        slot->cqes_wanted = 2;
    }
    return 0;
}

int32_t
uring_write(struct fbk_io *io, int32_t file, const void *data, uint32_t size_bytes,
            uint64_t offset_bytes, uint32_t flags, uint64_t ticket)
{
    struct uring *uring = (struct uring *)io;
    if (size_bytes == 0 || size_bytes > INT32_MAX)
        return -EINVAL;
    int32_t status = enable(uring);
    if (status < 0)
        return status;
    if (uring->used_slots == io->depth_max)
        return -EAGAIN;
    struct uring_slot *slot = uring->slots;
    while (slot->used)
        slot++;
    *slot = (struct uring_slot){
        .ticket = ticket,
        .data = data,
        .offset_bytes = offset_bytes,
        .file = file,
        .size_bytes = size_bytes,
        .flags = flags,
    };
    status = queue_write(uring, slot);
    if (status < 0)
        return status;
    slot->used = true;
    uring->used_slots++;
    /* Started now, not at the next wait.  An error leaves the SQE queued; wait submits it, and
     * reports. */
    io_uring_submit(&uring->ring);
    return 0;
}

static void
finish(struct uring *uring, struct uring_slot *slot, int32_t result)
{
    FBK_ASSERT(uring->finished_count < URING_DEPTH_MAX && slot->used);
    uring->finished[uring->finished_count++] =
        (struct fbk_io_completion){.ticket = slot->ticket, .result = result};
    /* its place in used_slots is given back when the completion is collected */
    slot->used = false;
}

/* All CQEs of a round are there: done, failed, or to be continued. */
static void
judge(struct uring *uring, struct uring_slot *slot)
{
    int32_t result = slot->write_result;
    bool again = result == -EINTR || result == -EAGAIN;
    if (result > 0) {
        slot->done_bytes += (uint32_t)result;
        if (slot->done_bytes >= slot->size_bytes) {
            finish(uring, slot,
                   slot->sync_result < 0 ? slot->sync_result : (int32_t)slot->size_bytes);
            return;
        }
        /* Short: its linked sync was cancelled with it.  The rest is a new round. */
        slot->done_bytes = fbk_io_whole_blocks(&uring->real.io, slot->file, slot->done_bytes);
        again = true;
    }
    if (again && slot->retries++ < RETRIES_MAX && queue_write(uring, slot) == 0) {
        uring->continued = true;
        return;
    }
    finish(uring, slot, result < 0 ? result : -EIO);
}

/* ------------ completions */

static void
take_cqe(struct uring *uring, const struct io_uring_cqe *cqe)
{
    uint64_t tag = io_uring_cqe_get_data64(cqe);
    if (tag == TAG_CANCEL)
        return;
    if (tag == TAG_BELL) {
        uring->bell_armed = false;
        if (cqe->res == (int32_t)sizeof uring->bell_value)
            uring->bell_rang = true;
        else if (cqe->res != -EINTR && cqe->res != -EAGAIN && cqe->res != -ECANCELED)
            uring->bell_error = cqe->res < 0 ? cqe->res : -EIO;
        return;
    }
    FBK_ASSERT(tag / 2 < URING_DEPTH_MAX);
    struct uring_slot *slot = &uring->slots[tag / 2];
    FBK_ASSERT(slot->used && slot->cqes_wanted > 0);
    if (tag & 1u)
        slot->sync_result = cqe->res;
    else
        slot->write_result = cqe->res;
    if (--slot->cqes_wanted == 0)
        judge(uring, slot);
}

static void
reap(struct uring *uring)
{
    struct io_uring_cqe *cqe;
    while (io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
        struct io_uring_cqe copy = {.user_data = cqe->user_data, .res = cqe->res};
        io_uring_cqe_seen(&uring->ring, cqe);
        take_cqe(uring, &copy);
    }
}

static int32_t
arm_bell(struct uring *uring, int32_t event_fd)
{
    if (uring->bell_fd >= 0 && uring->bell_fd != event_fd)
        return -EBUSY;
    uring->bell_fd = event_fd;
    if (uring->bell_armed || uring->bell_rang)
        return 0;
    struct io_uring_sqe *sqe = next_sqe(uring);
    if (sqe == NULL)
        return -EAGAIN;
    io_uring_prep_read(sqe, event_fd, &uring->bell_value, sizeof uring->bell_value, 0);
    io_uring_sqe_set_data64(sqe, TAG_BELL);
    uring->bell_armed = true;
    return 0;
}

/* Submits what is queued and waits for one CQE at most until the deadline. 0 also when a signal
 * came. */
static int32_t
enter(struct uring *uring, int32_t timeout_ms, uint64_t deadline_ns, bool *interrupted)
{
    int status;
    *interrupted = false;
    if (timeout_ms == 0) {
        status = io_uring_submit_and_get_events(&uring->ring);
    } else {
        struct io_uring_cqe *cqe;
        uint64_t now = timeout_ms < 0 ? 0 : fbk_now_ns();
        uint64_t left = deadline_ns > now ? deadline_ns - now : 0;
        struct __kernel_timespec limit = {
            .tv_sec = (int64_t)(left / 1000000000ull),
            .tv_nsec = (int64_t)(left % 1000000000ull),
        };
        status = io_uring_submit_and_wait_timeout(&uring->ring, &cqe, 1,
                                                  timeout_ms < 0 ? NULL : &limit, NULL);
    }
    if (status == -EINTR)
        *interrupted = true;
    /* EBUSY, EAGAIN: the kernel wants completions taken first. */
    if (status == -ETIME || status == -EINTR || status == -EAGAIN || status == -EBUSY)
        return 0;
    return status < 0 ? status : 0;
}

static int32_t
hand_over(struct uring *uring, struct fbk_io_completion *completions, int32_t completions_max)
{
    uint32_t count = uring->finished_count;
    if (count > (uint32_t)completions_max)
        count = (uint32_t)completions_max;
    memcpy(completions, uring->finished, count * sizeof *completions);
    uring->finished_count -= count;
    uring->used_slots -= count;
    memmove(uring->finished, uring->finished + count, uring->finished_count * sizeof *completions);
    return (int32_t)count;
}

int32_t
uring_wait(struct fbk_io *io, int32_t event_fd, int32_t timeout_ms,
           struct fbk_io_completion *completions, int32_t completions_max, int32_t *rung)
{
    struct uring *uring = (struct uring *)io;
    *rung = 0;
    int32_t status = enable(uring);
    if (status < 0)
        return status;
    if (completions_max <= 0)
        return -EINVAL;
    if (event_fd < 0 && timeout_ms < 0 && uring->used_slots == 0)
        return -EDEADLK; /* nothing could ever end this */
    uint64_t deadline_ns = timeout_ms > 0 ? fbk_now_ns() + (uint32_t)timeout_ms * 1000000ull : 0;
    for (bool last = false;;) {
        if (event_fd >= 0 && (status = arm_bell(uring, event_fd)) < 0)
            return status;
        reap(uring);
        if (uring->finished_count == 0 && !(uring->bell_rang && event_fd >= 0) && !last) {
            bool interrupted;
            status = enter(uring, timeout_ms, deadline_ns, &interrupted);
            if (status < 0)
                return status;
            last =
                interrupted || timeout_ms == 0 || (timeout_ms > 0 && fbk_now_ns() >= deadline_ns);
            reap(uring);
            if (uring->finished_count == 0 && !(uring->bell_rang && event_fd >= 0) && !last &&
                uring->bell_error == 0)
                continue;
        }
        break;
    }
    if (uring->continued) {
        uring->continued = false;
        io_uring_submit(&uring->ring);
    }
    if (uring->bell_error < 0) {
        status = uring->bell_error;
        uring->bell_error = 0;
        return status;
    }
    if (event_fd >= 0 && uring->bell_rang) {
        uring->bell_rang = false;
        *rung = 1;
    }
    return hand_over(uring, completions, completions_max);
}

/* ------------ end */

static bool
is_busy(const struct uring *uring)
{
    return uring->used_slots > uring->finished_count || uring->bell_armed;
}

/* Buffers of writes under way belong to the kernel, and so does bell_value: let it finish first. */
bool
uring_drain(struct uring *uring)
{
    if (uring->bell_armed) {
        struct io_uring_sqe *sqe = next_sqe(uring);
        if (sqe != NULL) {
            io_uring_prep_cancel64(sqe, TAG_BELL, 0);
            io_uring_sqe_set_data64(sqe, TAG_CANCEL);
        }
    }
    uint64_t deadline_ns = fbk_now_ns() + DRAIN_NS;
    while (is_busy(uring) && fbk_now_ns() < deadline_ns) {
        bool interrupted;
        if (enter(uring, 1000, fbk_now_ns() + 1000000000ull, &interrupted) < 0)
            /* called from another thread than the ring's own: the kernel finishes by itself */
            break;
        reap(uring);
    }
    return !is_busy(uring);
}
