/* INV-N3: what a role may not do fails, and what only an attacker does ends the process.  Each
 * attempt is a process of its own. */
#include "base/confine.h"

#include "io/uring.h"

#include "check.h"

#include <fcntl.h>
#include <linux/audit.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORKER = FBK_ROLE_WORKER,
    JOURNAL = FBK_ROLE_JOURNAL,
    INDEX = FBK_ROLE_INDEX,
    GC = FBK_ROLE_GC
};
static const uint32_t roles[] = {WORKER, JOURNAL, INDEX, GC};

static char folder[] = "/tmp/fastbk-confine-XXXXXX";
static char inside[64], outside[64];
static bool has_landlock;

/* An attempt: 0 or more, or -errno. */
typedef int attempt_of(void);

static int
result_of(long result)
{
    return result < 0 ? -errno : 0;
}

static void *
nothing(void *argument)
{
    return argument;
}

static int
attempt_read_outside(void)
{
    return result_of(open("/etc/passwd", O_RDONLY));
}
static int
attempt_list_root(void)
{
    return result_of(open("/", O_RDONLY | O_DIRECTORY));
}
static int
attempt_write_outside(void)
{
    return result_of(open(outside, O_WRONLY | O_CREAT, 0600));
}
static int
attempt_parent_memory(void)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/mem", getppid());
    return result_of(open(path, O_RDONLY));
}
static int
attempt_write_inside(void)
{
    return result_of(open(inside, O_WRONLY | O_CREAT, 0600));
}
static int
attempt_sync(void)
{
    const int fd = open(inside, O_RDWR | O_CREAT, 0600);
    return fd < 0 ? -errno : result_of(fdatasync(fd));
}
static int
attempt_link(void)
{
    return result_of(symlink("/etc", inside));
}
static int
attempt_socket(void)
{
    return result_of(socket(AF_INET, SOCK_STREAM, 0));
}
static int
attempt_packet_socket(void)
{
    return result_of(socket(AF_PACKET, SOCK_RAW, 0));
}
static int
attempt_connect(void)
{
    const struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons(9), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    return fd < 0 ? -errno : result_of(connect(fd, (const struct sockaddr *)&to, sizeof to));
}
static int
attempt_kill_parent(void)
{
    return result_of(kill(getppid(), 0));
}
static int
attempt_kill_self(void)
{
    return result_of(kill(getpid(), 0));
}
static int
attempt_dumpable(void)
{
    return result_of(prctl(PR_SET_DUMPABLE, 1, 0, 0, 0));
}
static int
attempt_limits(void)
{
    const struct rlimit limit = {16, 16};
    return result_of(setrlimit(RLIMIT_NOFILE, &limit));
}
static int
attempt_read_limits(void)
{
    struct rlimit limit;
    return result_of(getrlimit(RLIMIT_NOFILE, &limit));
}
static int
attempt_code(void)
{
    return mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                0) == MAP_FAILED
               ? -errno
               : 0;
}
static int
attempt_late_code(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return result_of(mprotect(page, 4096, PROT_READ | PROT_EXEC));
}
static int
attempt_memory(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return page == MAP_FAILED ? -errno : result_of(mprotect(page, 4096, PROT_READ));
}
static int
attempt_thread(void)
{
    pthread_t thread;
    const int error = pthread_create(&thread, NULL, nothing, NULL);
    return error != 0 ? -error : -pthread_join(thread, NULL);
}
static int
attempt_clone(void)
{
    return result_of(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
}
static int
attempt_terminal(void)
{
    return result_of(ioctl(0, TIOCSTI, "x"));
}
static int
attempt_exec(void)
{
    return result_of(execl("/bin/true", "true", NULL));
}
static int
attempt_trace(void)
{
    return result_of(ptrace(PTRACE_ATTACH, getppid(), 0, 0));
}
static int
attempt_read_memory(void)
{
    return result_of(syscall(SYS_process_vm_readv, getppid(), 0, 0, 0, 0, 0));
}
static int
attempt_take_descriptor(void)
{
    return result_of(syscall(SYS_pidfd_getfd, 0, 0, 0));
}
static int
attempt_ring(void)
{
    struct io_uring_params parameters = {0};
    return result_of(syscall(SYS_io_uring_setup, 4, &parameters));
}
static int
attempt_mount(void)
{
    return result_of(syscall(SYS_mount, "none", folder, "tmpfs", 0, NULL));
}
static int
attempt_namespace(void)
{
    return result_of(unshare(CLONE_NEWUSER));
}
static int
attempt_identity(void)
{
    return result_of(setuid(0));
}

/* A pointer whose low half is 0. */
static int
limit_with_far_pointer(pid_t pid)
{
    struct rlimit *limit = mmap((void *)0x200000000000, 4096, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (limit == MAP_FAILED)
        return -errno;
    limit->rlim_cur = limit->rlim_max = 1 << 20;
    return result_of(syscall(SYS_prlimit64, pid, RLIMIT_CORE, limit, NULL));
}
static int
attempt_far_limits(void)
{
    return limit_with_far_pointer(0);
}
static int
attempt_far_limits_of_parent(void)
{
    return limit_with_far_pointer(getppid());
}
static int
attempt_read_limits_of_parent(void)
{
    struct rlimit limit;
    return result_of(syscall(SYS_prlimit64, getppid(), RLIMIT_CORE, NULL, &limit));
}
static int
attempt_high_half(void)
{
    return result_of(syscall(SYS_kill, (1ll << 32) | getpid(), 0));
}
static int
attempt_flags(void)
{
    return result_of(fcntl(0, F_GETFL));
}
static int
attempt_owner(void)
{
    return result_of(fcntl(0, F_SETOWN, getppid()));
}
static int
attempt_owner_of_a_kind(void)
{
    const int owner[] = {1, getppid()};
    return result_of(syscall(SYS_fcntl, 0, 15, owner));
}
static int
attempt_signal_of_descriptor(void)
{
    return result_of(syscall(SYS_fcntl, 0, 10, SIGKILL));
}
static int
attempt_lease(void)
{
    return result_of(syscall(SYS_fcntl, 0, 1024, F_RDLCK));
}
static int
attempt_affinity(void)
{
    unsigned long processors = 1;
    return result_of(syscall(SYS_sched_setaffinity, 0, sizeof processors, &processors));
}
static int
attempt_affinity_of_parent(void)
{
    unsigned long processors = 1;
    return result_of(syscall(SYS_sched_setaffinity, getppid(), sizeof processors, &processors));
}
static int
attempt_priority(void)
{
    return result_of(setpriority(PRIO_PROCESS, 0, 1));
}
static int
attempt_priority_of_parent(void)
{
    return result_of(setpriority(PRIO_PROCESS, (id_t)getppid(), 1));
}
static int
attempt_priority_of_group(void)
{
    return result_of(setpriority(PRIO_PGRP, 0, 1));
}
static int
attempt_priority_of_user(void)
{
    return result_of(setpriority(PRIO_USER, 0, 1));
}
static int
attempt_io_priority(void)
{
    return result_of(syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 4));
}
static int
attempt_io_priority_of_parent(void)
{
    return result_of(syscall(SYS_ioprio_set, 1, getppid(), 2 << 13 | 4));
}
static int
attempt_io_priority_of_user(void)
{
    return result_of(syscall(SYS_ioprio_set, 3, 0, 2 << 13 | 4));
}
static int
attempt_stream_pair(void)
{
    int pair[2];
    return result_of(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
}
static int
attempt_datagram_pair(void)
{
    int pair[2];
    return result_of(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair));
}
static int
attempt_datagram_socket(void)
{
    return result_of(socket(AF_UNIX, SOCK_DGRAM, 0));
}
static int
attempt_netlink_audit(void)
{
    return result_of(socket(AF_NETLINK, SOCK_RAW, 9));
}
/* What is compared is the whole call: the file itself could be run. */
static int
attempt_run_file(void)
{
    const int fd = open("/usr/lib/os-release", O_RDONLY);
    if (fd < 0)
        return -errno;
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -errno : 0;
}
static int
attempt_run_shared(void)
{
    const int fd = open("/usr/lib/os-release", O_RDONLY);
    if (fd < 0)
        return -errno;
    return mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0) == MAP_FAILED ? -errno : 0;
}
static int
attempt_new_space_thread(void)
{
    return result_of(
        syscall(SYS_clone, CLONE_VM | CLONE_THREAD | CLONE_SIGHAND | CLONE_NEWNET, 0, 0, 0, 0));
}

#define EACH (-1)
#define DIES (-10000)
#define MAY 0
#define CONNECTED (-20000) /* it is let through to the network, which refuses it */

struct attempt {
    attempt_of *make;
    const char *name;
    int worker, journal, index, gc; /* what comes of it: -errno, MAY, DIES */
};
#define SAME(name, result) {attempt_##name, #name, result, result, result, result}
#define FILES_ONLY(name, worker) {attempt_##name, #name, worker, MAY, MAY, MAY}

static const struct attempt attempts[] = {
    SAME(read_outside, -EACCES),
    SAME(list_root, -EACCES),
    SAME(write_outside, -EACCES),
    SAME(parent_memory, -EACCES),
    SAME(link, -EPERM),
    SAME(packet_socket, -EPERM),
    SAME(kill_parent, -EPERM),
    SAME(kill_self, MAY),
    SAME(dumpable, -EPERM),
    SAME(limits, -EPERM),
    SAME(read_limits, MAY),
    SAME(code, -EPERM),
    SAME(late_code, -EPERM),
    SAME(memory, MAY),
    SAME(thread, MAY),
    SAME(clone, -EPERM),
    SAME(terminal, -EPERM),
    FILES_ONLY(write_inside, -EACCES),
    FILES_ONLY(sync, -EACCES),
    {attempt_socket, "socket", -EPERM, -EPERM, -EPERM, MAY},
    {attempt_connect, "connect", -EPERM, -EPERM, -EPERM, CONNECTED},
    SAME(exec, DIES),
    SAME(trace, DIES),
    SAME(read_memory, DIES),
    SAME(take_descriptor, DIES),
    SAME(ring, DIES),
    SAME(mount, DIES),
    SAME(namespace, DIES),
    SAME(identity, DIES),
    SAME(far_limits, -EPERM),
    SAME(far_limits_of_parent, -EPERM),
    SAME(read_limits_of_parent, -EPERM),
    SAME(high_half, -EPERM),
    SAME(flags, MAY),
    SAME(owner, -EPERM),
    SAME(owner_of_a_kind, -EPERM),
    SAME(signal_of_descriptor, -EPERM),
    SAME(lease, -EPERM),
    SAME(affinity, MAY),
    SAME(affinity_of_parent, -EPERM),
    SAME(priority, MAY),
    SAME(priority_of_parent, -EPERM),
    SAME(priority_of_group, -EPERM),
    SAME(priority_of_user, -EPERM),
    SAME(io_priority, MAY),
    SAME(io_priority_of_parent, -EPERM),
    SAME(io_priority_of_user, -EPERM),
    SAME(stream_pair, MAY),
    SAME(datagram_pair, -EPERM),
    SAME(datagram_socket, -EPERM),
    SAME(netlink_audit, -EPERM),
    SAME(run_file, -EPERM),
    SAME(run_shared, -EPERM),
    SAME(new_space_thread, -EPERM),
};

static void
confine(uint32_t role)
{
    const struct fbk_confine_path paths[] = {
        {"/usr/lib", FBK_PATH_READ},
        {"/lib", FBK_PATH_READ},
        {"/nowhere", FBK_PATH_READ},
        {folder, role == WORKER ? FBK_PATH_READ : FBK_PATH_WRITE},
    };
    const int32_t version = fbk_confine_paths(paths, 4, role == GC ? FBK_MAY_CONNECT : 0);
    CHECK(has_landlock ? version > 0 : version == 0);
    CHECK_EQUAL(fbk_confine_calls(role, role == GC ? FBK_MAY_CONNECT : 0), 0);
}

/* The result of an attempt of a role. */
static int
outcome(const struct attempt *attempt, uint32_t role)
{
    int results[2];
    CHECK(pipe(results) == 0);
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        signal(SIGSYS, SIG_DFL);
        confine(role);
        const int result = attempt->make();
        CHECK(write(results[1], &result, sizeof result) == sizeof result);
        _exit(0);
    }
    close(results[1]);
    int result = EACH, status = 0;
    const bool is_told = read(results[0], &result, sizeof result) == sizeof result;
    close(results[0]);
    CHECK(waitpid(child, &status, 0) == child);
    if (WIFSIGNALED(status)) {
        CHECK_EQUAL(WTERMSIG(status), SIGSYS);
        CHECK(!is_told);
        return DIES;
    }
    CHECK(is_told);
    return result == -ECONNREFUSED ? CONNECTED : result;
}

static void
test_attempts(void)
{
    for (size_t i = 0; i < sizeof attempts / sizeof *attempts; i++)
        for (size_t r = 0; r < 4; r++) {
            const struct attempt *attempt = &attempts[i];
            const int wanted[] = {attempt->worker, attempt->journal, attempt->index, attempt->gc};
            if (!has_landlock && wanted[r] == -EACCES)
                continue;
            const int result = outcome(attempt, roles[r]);
            if (result != wanted[r])
                fprintf(stderr, "%s of role %u\n", attempt->name, roles[r]);
            CHECK_EQUAL(result, wanted[r]);
        }
}

/* All threads are confined, those that were there before, too. */
static int ready[2], go[2], said[2];

static void *
earlier_thread(void *argument)
{
    char byte;
    CHECK(write(ready[1], "r", 1) == 1 && read(go[0], &byte, 1) == 1);
    const int result = attempt_socket();
    CHECK(write(said[1], &result, sizeof result) == sizeof result);
    return argument;
}

static void
test_earlier_threads(void)
{
    const pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        char byte;
        int result;
        CHECK(pipe(ready) == 0 && pipe(go) == 0 && pipe(said) == 0);
        CHECK(pthread_create(&thread, NULL, earlier_thread, NULL) == 0 &&
              read(ready[0], &byte, 1) == 1);
        CHECK_EQUAL(fbk_confine_calls(INDEX, 0), 0);
        CHECK(write(go[1], "g", 1) == 1 && read(said[0], &result, sizeof result) == sizeof result);
        CHECK_EQUAL(result, -EPERM);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* io_uring is hidden from libraries, and they go on without. */
static void
test_no_rings(void)
{
    const pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(fbk_confine_rings(), 0);
        _exit(attempt_ring() == -ENOSYS && attempt_socket() == 0 ? 0 : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The journal's ring writes and syncs, and opens nothing. */
static void
test_ring_is_restricted(void)
{
    int32_t error;
    struct fbk_io *io = fbk_io_uring_create(folder, 4, &error);
    if (io == NULL) {
        printf("no io_uring here: %s\n", strerror(-error));
        return;
    }
    struct uring *uring = (struct uring *)io;
    struct fbk_io_completion done;
    CHECK_EQUAL(uring_wait(io, -1, 0, &done, 1, &(int32_t){0}), 0); /* enables it */
    struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
    io_uring_prep_openat(sqe, AT_FDCWD, "/etc/passwd", O_RDONLY, 0);
    CHECK(io_uring_submit(&uring->ring) >= 0);
    struct io_uring_cqe *cqe;
    CHECK_EQUAL(io_uring_wait_cqe(&uring->ring, &cqe), 0);
    CHECK_EQUAL(cqe->res, -EACCES);
    io_uring_cqe_seen(&uring->ring, cqe);
    io->operations->destroy(io);
}

int
main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(inside, sizeof inside, "%s/file", folder);
    snprintf(outside, sizeof outside, "%s-outside", folder);
    has_landlock = syscall(444, NULL, 0, 1) > 0;
    if (!has_landlock)
        printf("no Landlock here: attempts at paths are left out\n");
    test_ring_is_restricted();
    test_earlier_threads();
    test_no_rings();
    test_attempts();
    CHECK_EQUAL(fbk_confine_calls(FBK_ROLE_SUPERVISOR, 0), -EINVAL);
    unlink(inside);
    rmdir(folder);
    return 0;
}
