/* The io_uring backend.
 *
 * A durable write on a direct file is one SQE with RWF_DSYNC: on a pre-written file the kernel
 * submits it inline and never hands it to a worker thread.  Where O_DIRECT or RWF_DSYNC is refused,
 * a write SQE is linked to an fdatasync SQE.  The ring is made disabled, restricted, and enabled by
 * the first write or wait: that thread is then its only issuer.  Everything that may simply wait
 * (open, read, sync, names) is io/common.c's. */
#include "io/uring.h"

#include "base/segment.h"

static void
uring_destroy(struct fbk_io *io)
{
    struct uring *uring = (struct uring *)io;
    bool abandoned = uring->enabled && !uring_drain(uring);
    io_uring_queue_exit(&uring->ring);
    /* A page that the kernel may still write to is better lost than given away. */
    if (!abandoned)
        fbk_memory_give_back(uring, sizeof *uring);
}

static const struct fbk_io_operations uring_operations = {
    .open = fbk_io_common_open,
    .close = fbk_io_common_close,
    .preallocate = fbk_io_common_preallocate,
    .allocate = fbk_io_common_allocate,
    .find_unwritten = fbk_io_common_find_unwritten,
    .write = uring_write,
    .write_wait = fbk_io_common_write_wait,
    .sync = fbk_io_common_sync,
    .read = fbk_io_common_read,
    .read_parts = fbk_io_common_read_parts,
    .read_cached = fbk_io_common_read_cached,
    .truncate = fbk_io_common_truncate,
    .rename = fbk_io_common_rename,
    .unlink = fbk_io_common_unlink,
    .sync_directory = fbk_io_common_sync_directory,
    .wait = uring_wait,
    .size = fbk_io_common_size,
    .list = fbk_io_common_list,
    .make_directory = fbk_io_common_make_directory,
    .destroy = uring_destroy,
};

/* INV-N3: the ring takes the operations that io/uring_queue.c submits, and nothing else, once it is
 * enabled.  0 or -errno. */
static int32_t
restrict_ring(struct io_uring *ring)
{
    static const uint8_t operations[] = {IORING_OP_WRITE, IORING_OP_READ, IORING_OP_FSYNC,
                                         IORING_OP_ASYNC_CANCEL, IORING_OP_TIMEOUT};
    struct io_uring_restriction rules[sizeof operations + 1] = {0};
    for (size_t i = 0; i < sizeof operations; i++)
        rules[i] = (struct io_uring_restriction){.opcode = IORING_RESTRICTION_SQE_OP,
                                                 .sqe_op = operations[i]};
    rules[sizeof operations].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
    rules[sizeof operations].sqe_flags = IOSQE_IO_LINK | IOSQE_IO_DRAIN | IOSQE_ASYNC;
    return io_uring_register_restrictions(ring, rules, sizeof rules / sizeof *rules);
}

static struct fbk_io *
make(uint32_t depth, uint32_t setup_flags, const struct fbk_io_mode *mode, int32_t *error)
{
    struct uring *uring = fbk_memory_take(sizeof *uring);
    if (uring == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    uring->real.io = (struct fbk_io){
        .operations = &uring_operations,
        .depth_max = depth,
        .block_size_bytes = FBK_PAGE_BYTES,
        .lock_timeout_ms = FBK_IO_LOCK_TIMEOUT_MS,
        .name = "io_uring",
    };
    uring->real.mode = *mode;
    uring->bell_fd = -1;
    struct io_uring_params parameters = {.flags = setup_flags | IORING_SETUP_R_DISABLED};
    *error = io_uring_queue_init_params(2 * depth + 4, &uring->ring, &parameters);
    if (*error < 0) {
        fbk_memory_give_back(uring, sizeof *uring);
        return NULL;
    }
    *error = restrict_ring(&uring->ring);
    if (*error < 0) {
        io_uring_queue_exit(&uring->ring);
        fbk_memory_give_back(uring, sizeof *uring);
        return NULL;
    }
    *error = 0;
    return &uring->real.io;
}

/* A ring used for the probe is this thread's; the caller gets a fresh one of the same kind. */
struct fbk_io *
fbk_io_uring_create_as(const char *directory, uint32_t depth, bool is_plain_ring,
                       const struct fbk_io_mode *mode, int32_t *error)
{
    uint32_t setup_flags =
        is_plain_ring ? 0 : IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;
    bool granted = false;
    struct fbk_io *probed = make(depth, setup_flags, mode, error);
    if (probed == NULL)
        return NULL;
    *error = fbk_io_probe(probed, directory, &granted);
    uint32_t block = probed->block_size_bytes;
    uring_destroy(probed);
    if (*error < 0)
        return NULL;
    struct fbk_io *io = make(depth, setup_flags, mode, error);
    if (io != NULL) {
        io->block_size_bytes = block;
        io->sync_mode = !granted      ? "write+linked fsync"
                        : mode->dsync ? "O_DIRECT+RWF_DSYNC"
                                      : "O_DIRECT+linked fsync";
    }
    return io;
}

struct fbk_io *
fbk_io_uring_create(const char *directory, uint32_t depth, int32_t *error)
{
    static const struct fbk_io_mode modes[] = {{true, true}, {true, false}, {false, false}};
    if (depth == 0 || depth > URING_DEPTH_MAX) {
        *error = -EINVAL;
        return NULL;
    }
    for (int is_plain_ring = 0; is_plain_ring < 2; is_plain_ring++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            struct fbk_io *io =
                fbk_io_uring_create_as(directory, depth, is_plain_ring, &modes[m], error);
            if (io != NULL)
                return io;
            if (*error != -EINVAL && *error != -EOPNOTSUPP)
                return NULL;
        }
    return NULL;
}
