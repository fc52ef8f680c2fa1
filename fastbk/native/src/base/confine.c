/* INV-N3: a process of a bookie opens no path and makes no system call that its role does not need.
 *
 * Landlock holds the paths (by a thread, so it comes before other threads are made), seccomp the
 * calls (of all threads).  A call that is not listed fails with EPERM: a library may try one and do
 * without.  One that only an attacker makes kills. */
#include "base/confine.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ------------ Landlock */

/* The kernel's numbers, which older headers lack. */
#define CREATE_RULESET 444
#define ADD_RULE 445
#define RESTRICT_SELF 446
#define VERSION_FLAG 1u
#define RULE_PATH_BENEATH 1

enum {
    FS_EXECUTE = 1 << 0,
    FS_WRITE_FILE = 1 << 1,
    FS_READ_FILE = 1 << 2,
    FS_READ_DIR = 1 << 3,
    FS_ALL_1 = (1 << 13) - 1, /* of the first version */
    FS_REFER = 1 << 13,
    FS_TRUNCATE = 1 << 14,
    FS_IOCTL_DEV = 1 << 15,
    NET_BIND_TCP = 1 << 0,
    NET_CONNECT_TCP = 1 << 1,
    SCOPE_ABSTRACT_UNIX = 1 << 0,
    SCOPE_SIGNAL = 1 << 1,
};

/* Of what a directory may hold, data and names: no devices, sockets, pipes or links. */
#define FS_MAKE_DIR (1u << 7)
#define FS_MAKE_REG (1u << 8)
#define FS_REMOVE_DIR (1u << 4)
#define FS_REMOVE_FILE (1u << 5)
#define FS_CHANGE                                                                            \
    (FS_WRITE_FILE | FS_REMOVE_DIR | FS_REMOVE_FILE | FS_MAKE_DIR | FS_MAKE_REG | FS_REFER | \
     FS_TRUNCATE)
#define FS_OF_FILES (FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV)

struct ruleset_attributes {
    uint64_t handled_access_fs;
    uint64_t handled_access_net;
    uint64_t scoped;
};

struct path_attributes {
    uint64_t allowed_access;
    int32_t parent_fd;
} __attribute__((packed));

static int32_t
allow_path(int ruleset, const struct fbk_confine_path *one, uint64_t handled)
{
    const int fd = open(one->path, O_PATH | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : -errno;
    struct stat found;
    uint64_t access = FS_READ_FILE | FS_READ_DIR;
    if (one->access & FBK_PATH_WRITE)
        access |= FS_CHANGE;
    if (fstat(fd, &found) == 0 && !S_ISDIR(found.st_mode))
        access &= FS_OF_FILES;
    const struct path_attributes attributes = {.allowed_access = access & handled, .parent_fd = fd};
    const int32_t error =
        syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, &attributes, 0) == 0 ? 0 : -errno;
    close(fd);
    return error;
}

int32_t
fbk_confine_version(void)
{
    const long version = syscall(CREATE_RULESET, NULL, 0, VERSION_FLAG);
    return version < 0 ? -errno : (int32_t)version;
}

int32_t
fbk_confine_paths(const struct fbk_confine_path *paths, uint32_t count, uint32_t flags)
{
    const int32_t version = fbk_confine_version();
    if (version < 0)
        return version == -ENOSYS || version == -EOPNOTSUPP ? 0 : version;
    struct ruleset_attributes attributes = {.handled_access_fs = FS_ALL_1};
    size_t size_bytes = offsetof(struct ruleset_attributes, handled_access_net);
    if (version >= 2)
        attributes.handled_access_fs |= FS_REFER;
    if (version >= 3)
        attributes.handled_access_fs |= FS_TRUNCATE;
    if (version >= 4) {
        attributes.handled_access_net =
            NET_BIND_TCP | (flags & FBK_MAY_CONNECT ? 0 : NET_CONNECT_TCP);
        size_bytes = offsetof(struct ruleset_attributes, scoped);
    }
    if (version >= 5)
        attributes.handled_access_fs |= FS_IOCTL_DEV;
    if (version >= 6) {
        attributes.scoped = SCOPE_ABSTRACT_UNIX | SCOPE_SIGNAL;
        size_bytes = sizeof attributes;
    }
    const int ruleset = (int)syscall(CREATE_RULESET, &attributes, size_bytes, 0);
    if (ruleset < 0)
        return -errno;
    int32_t error = 0;
    for (uint32_t i = 0; i < count && error == 0; i++)
        error = allow_path(ruleset, &paths[i], attributes.handled_access_fs);
    if (error == 0 &&
        (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || syscall(RESTRICT_SELF, ruleset, 0) != 0))
        error = -errno;
    close(ruleset);
    return error < 0 ? error : version;
}

/* ------------ seccomp */

#if defined(__x86_64__)
#define ARCHITECTURE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCHITECTURE AUDIT_ARCH_AARCH64
#endif

#define KILL SECCOMP_RET_KILL_PROCESS
#define FAIL (SECCOMP_RET_ERRNO | EPERM)
#define ALLOW SECCOMP_RET_ALLOW
#define X32_BIT 0x40000000u
#define PR_SET_VMA_OPTION 0x53564d41
#define REGISTER_ENABLE_RINGS 12

/* What Python, C and their libraries need to run, and to use descriptors that they have. */
static const int common_calls[] = {
    SYS_read,
    SYS_write,
    SYS_readv,
    SYS_writev,
    SYS_pread64,
    SYS_pwrite64,
    SYS_preadv,
    SYS_pwritev,
    SYS_preadv2,
    SYS_pwritev2,
    SYS_close,
    SYS_close_range,
    SYS_fstat,
    SYS_newfstatat,
    SYS_statx,
    SYS_lseek,
    SYS_munmap,
    SYS_mremap,
    SYS_madvise,
    SYS_brk,
    SYS_rt_sigaction,
    SYS_rt_sigprocmask,
    SYS_rt_sigreturn,
    SYS_sigaltstack,
    SYS_rt_sigpending,
    SYS_futex,
    SYS_sched_yield,
    SYS_sched_getaffinity,
    SYS_clock_gettime,
    SYS_clock_getres,
    SYS_clock_nanosleep,
    SYS_nanosleep,
    SYS_gettimeofday,
    SYS_getpid,
    SYS_gettid,
    SYS_getppid,
    SYS_getuid,
    SYS_geteuid,
    SYS_getgid,
    SYS_getegid,
    SYS_getrandom,
    SYS_exit,
    SYS_exit_group,
    SYS_ppoll,
    SYS_pselect6,
    SYS_epoll_create1,
    SYS_epoll_ctl,
    SYS_epoll_pwait,
    SYS_eventfd2,
    SYS_timerfd_create,
    SYS_timerfd_settime,
    SYS_pipe2,
    SYS_getrusage,
    SYS_sysinfo,
    SYS_uname,
    SYS_restart_syscall,
    SYS_membarrier,
    SYS_rseq,
    SYS_set_robust_list,
    SYS_set_tid_address,
    SYS_dup,
    SYS_dup3,
    SYS_getcwd,
    SYS_openat,
    SYS_faccessat,
    SYS_faccessat2,
    SYS_readlinkat,
    SYS_getdents64,
    SYS_statfs,
    SYS_fstatfs,
    SYS_sendto,
    SYS_recvfrom,
    SYS_sendmsg,
    SYS_recvmsg,
    SYS_shutdown,
    SYS_getsockname,
    SYS_getpeername,
    SYS_getsockopt,
    SYS_setsockopt,
#ifdef __x86_64__
    SYS_stat,
    SYS_lstat,
    SYS_open,
    SYS_access,
    SYS_readlink,
    SYS_poll,
    SYS_select,
    SYS_epoll_create,
    SYS_epoll_wait,
    SYS_dup2,
    SYS_time,
    SYS_getrlimit,
#endif
};

/* Of a process that keeps files: journal, index, and gc, which keeps what it saw of metadata. */
static const int file_calls[] = {
    SYS_fsync,     SYS_fdatasync, SYS_sync_file_range, SYS_unlinkat, SYS_renameat2,
    SYS_ftruncate, SYS_fallocate, SYS_flock,           SYS_mkdirat,  SYS_fadvise64,
#ifdef __x86_64__
    SYS_unlink,    SYS_rename,    SYS_renameat,        SYS_mkdir,    SYS_rmdir,
#endif
};

static const int worker_calls[] = {SYS_accept4, SYS_listen};
static const int journal_calls[] = {SYS_io_uring_enter};
/* Metadata: ZooKeeper, or sqlite's file. */
static const int gc_calls[] = {SYS_fchown, SYS_fchmod, SYS_umask};
/* Of gc with ZooKeeper. */
static const int connecting_calls[] = {SYS_connect, SYS_bind, SYS_sendmmsg, SYS_recvmmsg};

/* What only somebody makes who wants out. */
static const int hostile_calls[] = {
    SYS_execve,
    SYS_execveat,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_pidfd_getfd,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_userfaultfd,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_setns,
    SYS_unshare,
    SYS_chroot,
    SYS_reboot,
    SYS_swapon,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_io_uring_setup,
    SYS_open_by_handle_at,
    SYS_setuid,
    SYS_setgid,
#ifdef __x86_64__
    SYS_iopl,
    SYS_ioperm,
    SYS_fork,
    SYS_vfork,
#endif
};

#define SOCK_FLAGS ((uint64_t)(SOCK_CLOEXEC | SOCK_NONBLOCK))
#define IOPRIO_WHO_PROCESS 1
/* A thread is all that clone makes: no name spaces of its own, no other parent. */
#define CLONES_REFUSED                                                                            \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | \
     CLONE_NEWNET | CLONE_PARENT | CLONE_PTRACE | CLONE_VFORK)

static const uint32_t families[] = {AF_INET, AF_INET6};
static const uint32_t fcntls[] = {F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD,     F_SETFD,
                                  F_GETFL, F_SETFL,         F_ADD_SEALS, F_GET_SEALS};
static const uint32_t locks[] = {F_GETLK, F_SETLK, F_SETLKW}; /* sqlite's */
static const uint32_t ioctls[] = {FIONREAD, FIONBIO, FIOCLEX, FIONCLEX, TCGETS, TIOCGWINSZ};
static const uint32_t prctls[] = {PR_SET_NAME, PR_GET_NAME, PR_GET_DUMPABLE, PR_SET_TIMERSLACK,
                                  PR_SET_VMA_OPTION};

#define CODES_MAX 1024u

struct program {
    struct sock_filter codes[CODES_MAX];
    uint32_t count;
};

static void
put(struct program *program, uint16_t code, uint32_t value, uint8_t if_true, uint8_t if_false)
{
    FBK_ASSERT(program->count < CODES_MAX);
    program->codes[program->count++] = (struct sock_filter){code, if_true, if_false, value};
}

static void
load_word(struct program *program, size_t offset)
{
    put(program, BPF_LD | BPF_W | BPF_ABS, (uint32_t)offset, 0, 0);
}

static void
end_with(struct program *program, uint32_t verdict)
{
    put(program, BPF_RET | BPF_K, verdict, 0, 0);
}

static void
judge_call(struct program *program, int call, uint32_t verdict)
{
    put(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    end_with(program, verdict);
}

#define judge_calls(program, calls, verdict)                                 \
    do {                                                                     \
        for (size_t call_ = 0; call_ < sizeof(calls) / sizeof(int); call_++) \
            judge_call(program, (calls)[call_], verdict);                    \
    } while (0)

/* What one argument of a call has to be: these bits of it, of both halves, have this value. */
struct condition {
    uint32_t argument;
    uint64_t mask;
    uint64_t value;
};

#define WHOLE UINT64_MAX
#define CONDITIONS_MAX 4u
/* Codes of a condition: three for each half. */
#define HALF_CODES 3u

/* One half of an argument; `behind` codes of the rule follow it, and a mismatch goes on behind them
 * all. */
static void
judge_half(struct program *program, size_t offset, uint32_t mask, uint32_t value, uint32_t behind)
{
    load_word(program, offset);
    put(program, BPF_ALU | BPF_AND | BPF_K, mask, 0, 0);
    put(program, BPF_JMP | BPF_JEQ | BPF_K, value, 0, (uint8_t)behind);
}

/* A call that is allowed if all those conditions hold; several rules may allow one call.  The
 * kernel takes 64 bits of each argument, or 32 where the call's own type has no more: a rule that
 * looked at one half would not see a pointer's other. */
static void
allow_if(struct program *program, int call, const struct condition *conditions, uint32_t count)
{
    FBK_ASSERT(count <= CONDITIONS_MAX);
    uint32_t behind = 2 * HALF_CODES * count + 1; /* the verdict, too */
    load_word(program, offsetof(struct seccomp_data, nr));
    put(program, BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, (uint8_t)behind);
    for (uint32_t i = 0; i < count; i++) {
        const struct condition *one = &conditions[i];
        /* both machines are little-endian */
        const size_t low = offsetof(struct seccomp_data, args) + 8u * one->argument;
        behind -= HALF_CODES;
        judge_half(program, low, (uint32_t)one->mask, (uint32_t)one->value, behind);
        behind -= HALF_CODES;
        judge_half(program, low + 4, (uint32_t)(one->mask >> 32), (uint32_t)(one->value >> 32),
                   behind);
    }
    end_with(program, ALLOW);
}

#define ALLOW_IF(call, ...)                                                             \
    do {                                                                                \
        const struct condition conditions_[] = {__VA_ARGS__};                           \
        allow_if(program, call, conditions_, sizeof conditions_ / sizeof *conditions_); \
    } while (0)

static void
allow_if_one_of(struct program *program, int call, uint32_t argument, const uint32_t *values,
                size_t count)
{
    for (size_t i = 0; i < count; i++)
        ALLOW_IF(call, {argument, WHOLE, values[i]});
}

/* No memory that is there, or comes, can be run from now on: a file that this process can write, or
 * its shared memory, would be a way to code of its own, and no filter sees which file a descriptor
 * is.  So libraries are loaded before (fastbk/server/confinement.py). */
static void
judge_memory(struct program *program)
{
    ALLOW_IF(SYS_mmap, {2, PROT_EXEC, 0});
    ALLOW_IF(SYS_mprotect, {2, PROT_EXEC, 0});
    ALLOW_IF(SYS_clone, {0, CLONE_THREAD | CLONE_VM | CLONES_REFUSED, CLONE_THREAD | CLONE_VM});
}

/* What a process may do to processes, it may do to itself alone. */
static void
judge_processes(struct program *program)
{
    const uint64_t self = (uint64_t)getpid();
    ALLOW_IF(SYS_kill, {0, WHOLE, self});
    ALLOW_IF(SYS_tgkill, {0, WHOLE, self});
    ALLOW_IF(SYS_sched_setaffinity, {0, WHOLE, 0});
    ALLOW_IF(SYS_setpriority, {0, WHOLE, PRIO_PROCESS}, {1, WHOLE, 0});
    ALLOW_IF(SYS_ioprio_set, {0, WHOLE, IOPRIO_WHO_PROCESS}, {1, WHOLE, 0});
    /* only to read: there are no new limits */
    ALLOW_IF(SYS_prlimit64, {0, WHOLE, 0}, {2, WHOLE, 0});
}

/* Of descriptors that it has. F_SETOWN and the like would have the kernel signal others. */
static void
judge_descriptors(struct program *program, uint32_t role)
{
    allow_if_one_of(program, SYS_fcntl, 1, fcntls, sizeof fcntls / sizeof *fcntls);
    if (role == FBK_ROLE_GC)
        allow_if_one_of(program, SYS_fcntl, 1, locks, sizeof locks / sizeof *locks);
    allow_if_one_of(program, SYS_ioctl, 1, ioctls, sizeof ioctls / sizeof *ioctls);
    allow_if_one_of(program, SYS_prctl, 0, prctls, sizeof prctls / sizeof *prctls);
    if (role == FBK_ROLE_JOURNAL)
        ALLOW_IF(SYS_io_uring_register, {1, WHOLE, REGISTER_ENABLE_RINGS});
}

/* A pair of datagram sockets would send to any socket that has a name. */
static void
judge_sockets(struct program *program, bool may_connect)
{
    const uint64_t stream = SOCK_STREAM, packets = SOCK_SEQPACKET, datagrams = SOCK_DGRAM,
                   raw = SOCK_RAW;
    ALLOW_IF(SYS_socketpair, {0, WHOLE, AF_UNIX}, {1, ~SOCK_FLAGS, stream});
    ALLOW_IF(SYS_socketpair, {0, WHOLE, AF_UNIX}, {1, ~SOCK_FLAGS, packets});
    if (!may_connect)
        return;
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        ALLOW_IF(SYS_socket, {0, WHOLE, families[i]}, {1, ~SOCK_FLAGS, stream});
        ALLOW_IF(SYS_socket, {0, WHOLE, families[i]}, {1, ~SOCK_FLAGS, datagrams});
    }
    /* To look names up: services of this machine, and the addresses that it has. */
    ALLOW_IF(SYS_socket, {0, WHOLE, AF_UNIX}, {1, ~SOCK_FLAGS, stream});
    ALLOW_IF(SYS_socket, {0, WHOLE, AF_NETLINK}, {1, ~SOCK_FLAGS, raw}, {2, WHOLE, NETLINK_ROUTE});
}

static void
begin(struct program *program)
{
    program->count = 0;
    load_word(program, offsetof(struct seccomp_data, arch));
    put(program, BPF_JMP | BPF_JEQ | BPF_K, ARCHITECTURE, 1, 0);
    end_with(program, KILL);
    load_word(program, offsetof(struct seccomp_data, nr));
}

static int32_t
install(struct program *program)
{
    const struct sock_fprog filter = {.len = (unsigned short)program->count,
                                      .filter = program->codes};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return -errno;
    const long result =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter);
    return result == 0 ? 0 : result < 0 ? -errno : -EBUSY;
}

int32_t
fbk_confine_rings(void)
{
#ifndef ARCHITECTURE
    return -ENOSYS;
#else
    static struct program program;
    begin(&program);
    judge_call(&program, SYS_io_uring_setup, SECCOMP_RET_ERRNO | ENOSYS);
    end_with(&program, ALLOW);
    return install(&program);
#endif
}

int32_t
fbk_confine_preload(const char *library)
{
    return dlopen(library, RTLD_NOW) != NULL;
}

int32_t
fbk_confine_calls(uint32_t role, uint32_t flags)
{
#ifndef ARCHITECTURE
    (void)role, (void)flags;
    return -ENOSYS;
#else
    static struct program whole; /* 8 KiB; called once */
    struct program *program = &whole;
    begin(program);
    put(program, BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1);
    end_with(program, KILL);
    judge_calls(program, common_calls, ALLOW);
    if (role != FBK_ROLE_WORKER)
        judge_calls(program, file_calls, ALLOW);
    switch (role) {
    case FBK_ROLE_WORKER: judge_calls(program, worker_calls, ALLOW); break;
    case FBK_ROLE_JOURNAL: judge_calls(program, journal_calls, ALLOW); break;
    case FBK_ROLE_INDEX: break;
    case FBK_ROLE_GC: judge_calls(program, gc_calls, ALLOW); break;
    default: return -EINVAL;
    }
    const bool may_connect = role == FBK_ROLE_GC && (flags & FBK_MAY_CONNECT) != 0;
    if (may_connect)
        judge_calls(program, connecting_calls, ALLOW);
    judge_calls(program, hostile_calls, KILL);
    /* its flags lie in memory; C falls back to clone */
    judge_call(program, SYS_clone3, SECCOMP_RET_ERRNO | ENOSYS);
    /* Rules that read arguments come behind the calls without: the kernel remembers the verdicts of
     * those. */
    judge_memory(program);
    judge_processes(program);
    judge_descriptors(program, role);
    judge_sockets(program, may_connect);
    end_with(program, FAIL);
    return install(program);
#endif
}
