/* The disk backends do the same: one suite runs on io_uring and plain in each mode, and on the fake
 * disk.
 *
 * usage: test_io uring|plain|fake [folder]     folder: where files go, default the current one */
#include "io/common.h"
#include "fake_disk/fake_disk.h"

#include "io_suite.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const struct fbk_io_mode modes[] = {{true, true}, {true, false}, {false, false}};

static struct fbk_io *
create_uring(int32_t *error)
{
    return fbk_io_uring_create(folder, 4, error);
}

static struct fbk_io *
create_plain(int32_t *error)
{
    return fbk_io_plain_create(folder, error);
}

/* A killed holder's lock is had as soon as its writes have left the kernel (A11). */
static void
test_lock_of_a_killed_process(struct fbk_io *io, struct fbk_io *(*create)(int32_t *error))
{
    int tell[2];
    CHECK(pipe(tell) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        int32_t error;
        struct fbk_io *mine = create(&error);
        CHECK(mine != NULL);
        int32_t file = mine->operations->open(mine, path_of("killed"),
                                              FBK_IO_CREATE | FBK_IO_LOCK | FBK_IO_DIRECT);
        CHECK(file >= 0);
        uint32_t size = 512 * mine->block_size_bytes;
        uint8_t *data = buffer_of(size, 1);
        CHECK(mine->operations->preallocate(mine, file, 0, size) == 0);
        CHECK(write(tell[1], "x", 1) == 1);
        for (;;) {
            CHECK(mine->operations->write(mine, file, data, size, 0, FBK_IO_SYNC, 1) == 0);
            collect(mine, -1, 1, size);
        }
    }
    char byte;
    CHECK(read(tell[0], &byte, 1) == 1);
    kill(child, SIGKILL);
    int32_t file = io->operations->open(io, path_of("killed"), FBK_IO_LOCK);
    CHECK(file >= 0);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(io->operations->close(io, file) == 0 &&
          io->operations->unlink(io, path_of("killed")) == 0);
    close(tell[0]);
    close(tell[1]);
}

/* A write that meets the size limit of the process is short first; its rest is tried, and that
 * failure reported. */
static void
test_short_write(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    uint32_t block = io->block_size_bytes;
    uint8_t *data = buffer_of(4 * block, 2);
    struct rlimit before, limit;
    CHECK(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    for (uint32_t flags = 0; flags < 4; flags++) {
        int32_t file =
            o->open(io, path_of("short"), FBK_IO_CREATE | (flags & 1 ? FBK_IO_DIRECT : 0));
        CHECK(file >= 0);
        uint32_t sync = flags & 2 ? FBK_IO_SYNC : 0;
        limit = (struct rlimit){.rlim_cur = 2 * block, .rlim_max = before.rlim_max};
        CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
        CHECK_EQUAL(o->write(io, file, data, 4 * block, 0, sync, 3), 0);
        collect(io, -1, 1, -EFBIG);
        CHECK_EQUAL(o->write_wait(io, file, data, 4 * block, 0, sync), -EFBIG);
        CHECK_EQUAL(o->preallocate(io, file, 0, 4ull * block), -EFBIG);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        CHECK_EQUAL(o->size(io, file), 2 * block);
        write_all(io, file, data, 4 * block, 0, sync); /* the backend is as good as before */
        CHECK(o->close(io, file) == 0 && o->unlink(io, path_of("short")) == 0);
    }
    fbk_memory_give_back(data, 4ull * block);
}

/* How many pages of the file are in memory after its first block was read; it is dropped from
 * memory before, as far as the file system does that. */
static uint32_t
pages_in_memory(struct fbk_io *io, uint32_t flags, uint8_t *buffer)
{
    const struct fbk_io_operations *o = io->operations;
    uint8_t pages[FILE_BYTES / FBK_PAGE_BYTES];
    uint32_t found = 0;
    int32_t file = o->open(io, path_of("random"), FBK_IO_READ_ONLY | flags);
    CHECK(file >= 0);
    int fd = fbk_io_descriptor(file);
    CHECK(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0);
    CHECK_EQUAL(o->read(io, file, buffer, FBK_PAGE_BYTES, 0), FBK_PAGE_BYTES);
    void *map = mmap(NULL, FILE_BYTES, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(map != MAP_FAILED && mincore(map, FILE_BYTES, pages) == 0);
    for (uint32_t i = 0; i < sizeof pages; i++)
        found += pages[i] & 1;
    CHECK(munmap(map, FILE_BYTES) == 0 && o->close(io, file) == 0);
    return found;
}

/* INV-J7: beside a journal that writes past the page cache, a read must not bring in what lies
 * behind the end that is published. */
static void
test_random_reads_nothing_ahead(struct fbk_io *io)
{
    const struct fbk_io_operations *o = io->operations;
    uint8_t *data = buffer_of(FILE_BYTES, 8);
    int32_t file = o->open(io, path_of("random"), FBK_IO_CREATE | FBK_IO_DIRECT);
    CHECK(file >= 0);
    write_all(io, file, data, FILE_BYTES, 0, FBK_IO_SYNC);
    CHECK_EQUAL(o->sync(io, file), 0);
    CHECK(o->close(io, file) == 0);
    uint32_t ahead = pages_in_memory(io, 0, data), pages = FILE_BYTES / FBK_PAGE_BYTES;
    if (ahead > 1 && ahead < pages) /* else there is nothing to see, or nothing is ever dropped */
        CHECK_EQUAL(pages_in_memory(io, FBK_IO_RANDOM, data), 1);
    CHECK(o->unlink(io, path_of("random")) == 0);
    fbk_memory_give_back(data, FILE_BYTES);
}

/* As under a container's profile that forbids io_uring: the answer is EPERM, and plain works. */
static void
test_refused_io_uring(void)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {.len = 4, .filter = filter};
        CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) < 0)
            _exit(TEST_SKIPPED); /* filters are refused here: nothing to see */
        int32_t error = 0;
        CHECK(fbk_io_uring_create(folder, 4, &error) == NULL && error == -EPERM);
        struct fbk_io *io = fbk_io_plain_create(folder, &error);
        CHECK(io != NULL && error == 0);
        io->operations->destroy(io);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == TEST_SKIPPED);
}

/* A backend begun in one thread belongs to that one; the other is told, and nothing is lost. */
static void *
write_elsewhere(void *argument)
{
    struct fbk_io *io = argument;
    struct fbk_io_completion completion;
    int32_t rung;
    CHECK(io->operations->wait(io, -1, 0, &completion, 1, &rung) == -EEXIST);
    return NULL;
}

static void
test_ring_belongs_to_its_thread(void)
{
    int32_t error = 0;
    struct fbk_io *io = fbk_io_uring_create_as(folder, 2, false, &modes[0], &error);
    if (io == NULL) /* the kernel knows no single issuer: there is no such rule then */
        return;
    struct fbk_io_completion completion;
    int32_t rung;
    CHECK_EQUAL(io->operations->wait(io, -1, 0, &completion, 1, &rung), 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, write_elsewhere, io) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    io->operations->destroy(io);
}

static void
test_where_it_cannot_work(void)
{
    int32_t error = 0;
    CHECK(fbk_io_plain_create("/nonexistent", &error) == NULL && error == -ENOENT);
    /* refused, or no such folder */
    CHECK(fbk_io_uring_create("/nonexistent", 4, &error) == NULL && error < 0);
    CHECK(fbk_io_uring_create(folder, 0, &error) == NULL && error == -EINVAL);
    CHECK(fbk_io_uring_create(folder, 1000, &error) == NULL && error == -EINVAL);
}

/* The fake disk keeps the same promises while nothing is ordered to go wrong, in whatever order
 * writes complete. */
static void
test_fake(void)
{
    for (uint32_t delivery = FBK_FAKE_AT_ONCE; delivery <= FBK_FAKE_SHUFFLED; delivery++) {
        struct fbk_fake *fake = fbk_fake_create(0, 1);
        int32_t error = 0;
        struct fbk_io *io = fbk_fake_io(fake, 4, &error);
        CHECK(fake != NULL && io != NULL && error == 0);
        CHECK_EQUAL(fbk_fake_set_delivery(fake, delivery), 0);
        test_backend(io);
        test_bell(io, true);
        io->operations->destroy(io);
        fbk_fake_destroy(fake);
    }
}

static void
test_one(struct fbk_io *io, int32_t error)
{
    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    test_backend(io);
    test_bell(io, true);
    test_short_write(io);
    test_random_reads_nothing_ahead(io);
    io->operations->destroy(io);
}

static void
test_uring(void)
{
    int32_t error = 0;
    struct fbk_io *io = create_uring(&error);
    if (io == NULL && (error == -ENOSYS || error == -EPERM)) {
        printf("needs io_uring: refused here (%d)\n", error);
        exit(TEST_SKIPPED);
    }
    CHECK_EQUAL(error, 0);
    test_lock_of_a_killed_process(io, create_uring);
    io->operations->destroy(io);
    for (int is_plain_ring = 0; is_plain_ring < 2; is_plain_ring++)
        for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
            io = fbk_io_uring_create_as(folder, 4, is_plain_ring, &modes[m], &error);
            if (io == NULL && !is_plain_ring && error == -EINVAL)
                continue; /* a kernel before 6.1 has no DEFER_TASKRUN */
            test_one(io, error);
        }
    test_ring_belongs_to_its_thread();
    test_refused_io_uring();
}

static void
test_plain(void)
{
    int32_t error = 0;
    struct fbk_io *io = create_plain(&error);
    CHECK(io != NULL && error == 0);
    test_lock_of_a_killed_process(io, create_plain);
    io->operations->destroy(io);
    for (size_t m = 0; m < sizeof modes / sizeof *modes; m++) {
        io = fbk_io_plain_create_as(folder, &modes[m], &error);
        test_one(io, error);
    }
    for (int direct = 0; direct < 2; direct++) {
        io = fbk_io_plain_create_unproven(direct, &error);
        test_one(io, error);
    }
    test_where_it_cannot_work();
}

int
main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "plain";
    if (argc > 2)
        snprintf(folder, sizeof folder, "%s", argv[2]);
    if (strcmp(kind, "uring") == 0)
        test_uring();
    else if (strcmp(kind, "plain") == 0)
        test_plain();
    else
        test_fake();
    return 0;
}
