/* The floor under an add: a client, a worker and a journal with nothing in them that the hardware and the kernel do not
 * ask for.  Three processes, TCP loopback, a ring in shared memory, eventfds, io_uring, O_DIRECT + RWF_DSYNC on a file
 * whose blocks have been written before: the shape of a bookie, without its checks, checksums, index and Python.
 *
 * A bookie stores each entry twice: with `twice` a fourth process writes as many bytes to a second file on the same disk,
 * 1 MiB at a time and four at once, as a flush does.
 *
 * usage: bench_chain FILE WINDOW SECONDS [twice].  Prints JSON: adds, seconds, adds_per_s, batches, latency_us, cpu_us_per_entry.
 * Exits 77 where io_uring is refused. */
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

#define FRAME_BYTES 1176u /* an Add of 1 KiB, as our client sends it */
#define ACK_BYTES 36u
#define SLOT_COUNT 8192u /* of the ring; a window is at most half of it */
#define BLOCK_BYTES 4096u
#define BATCH_BYTES (1u << 20)
#define FILE_BYTES (64u << 20)
#define PIECE_BYTES (1u << 20)
#define PIECE_COUNT 4u
#define FLUSH_BYTES (24u << 20) /* half of a write cache */
#define LATENCIES_MAX (1u << 22)

/* What the three share.  Each word has one writer; `..._sleeps` is its reader's. */
struct shared {
    _Alignas(64) _Atomic uint64_t written;   /* worker: frames in the ring */
    _Alignas(64) _Atomic uint64_t committed; /* journal: of these, durable */
    _Alignas(64) _Atomic uint32_t journal_sleeps;
    _Alignas(64) _Atomic uint64_t batches;
    _Alignas(64) uint8_t ring[SLOT_COUNT][FRAME_BYTES];
};

static struct shared *shared;
static int journal_bell, worker_bell;

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

/* ------------------------------------------------------------------ journal */

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
        uint32_t used = 0;
        for (; taken < written && used + FRAME_BYTES <= BATCH_BYTES; taken++, used += FRAME_BYTES)
            memcpy(batch + used, shared->ring[taken % SLOT_COUNT], FRAME_BYTES);
        used = (used + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        offset = offset + used > FILE_BYTES ? 0 : offset;
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

/* ------------------------------------------------------------------ flusher */

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
        while (atomic_load(&shared->committed) * FRAME_BYTES < flushed + FLUSH_BYTES)
            nanosleep(&pause, NULL);
        for (uint32_t i = 0; i < FLUSH_BYTES / PIECE_BYTES + PIECE_COUNT; i++) {
            if (i >= PIECE_COUNT)
                wait_one(&uring, PIECE_BYTES);
            if (i < FLUSH_BYTES / PIECE_BYTES) {
                io_uring_prep_write(io_uring_get_sqe(&uring), file, piece, PIECE_BYTES, offset);
                io_uring_submit(&uring);
                offset = offset + 2 * PIECE_BYTES > FILE_BYTES ? 0 : offset + PIECE_BYTES;
            }
        }
        need(fdatasync(file) == 0, "sync");
        flushed += FLUSH_BYTES;
    }
}

/* ------------------------------------------------------------------ worker */

static void
send_all(int fd, const uint8_t *data, uint64_t size_bytes)
{
    while (size_bytes > 0) {
        ssize_t sent = send(fd, data, size_bytes, MSG_NOSIGNAL);
        need(sent > 0 || errno == EINTR || errno == EAGAIN, "send");
        if (sent > 0) {
            data += sent;
            size_bytes -= (uint64_t)sent;
        }
    }
}

static void
run_worker(int client)
{
    static uint8_t input[256u << 10], acks[SLOT_COUNT * ACK_BYTES];
    uint32_t held = 0;
    uint64_t acked = 0;
    int poll = epoll_create1(0);
    int fds[2] = {client, worker_bell};
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fds[i]};
        need(epoll_ctl(poll, EPOLL_CTL_ADD, fds[i], &event) == 0, "epoll");
    }
    for (;;) {
        struct epoll_event events[2];
        int count = epoll_wait(poll, events, 2, -1);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == worker_bell) {
                uint64_t rung;
                need(read(worker_bell, &rung, sizeof rung) > 0, "hear");
                uint64_t committed = atomic_load(&shared->committed);
                send_all(client, acks, (committed - acked) * ACK_BYTES);
                acked = committed;
                continue;
            }
            ssize_t got = recv(client, input + held, sizeof input - held, MSG_DONTWAIT);
            if (got == 0)
                exit(0);
            if (got < 0)
                continue;
            held += (uint32_t)got;
            uint32_t at = 0;
            uint64_t written = atomic_load(&shared->written);
            for (; held - at >= FRAME_BYTES; at += FRAME_BYTES, written++)
                memcpy(shared->ring[written % SLOT_COUNT], input + at, FRAME_BYTES);
            memmove(input, input + at, held - at);
            held -= at;
            atomic_store(&shared->written, written);
            if (atomic_exchange(&shared->journal_sleeps, 0))
                ring_bell(journal_bell);
        }
    }
}

/* ------------------------------------------------------------------ client */

static int
compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double
cpu_us(pid_t pid)
{
    char path[64];
    unsigned long long ns = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", pid);
    FILE *file = fopen(path, "r");
    need(file != NULL && fscanf(file, "%llu", &ns) == 1, "processor time");
    fclose(file);
    return (double)ns / 1000;
}

static void
run_client(int server, uint64_t window, double seconds, const pid_t *pids)
{
    static uint8_t frames[SLOT_COUNT / 2 * FRAME_BYTES], acks[1u << 20];
    uint32_t *latencies = malloc(LATENCIES_MAX * sizeof *latencies);
    uint64_t *sent_ns = malloc(SLOT_COUNT * sizeof *sent_ns);
    need(latencies != NULL && sent_ns != NULL, "memory");
    uint64_t sent = 0, answered = 0, held = 0, warm = 0, begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9);
    uint64_t warm_ns = begin + (end - begin) / 5, measured_ns = 0, batches = 0;
    double cpu[3] = {0, 0, 0};
    for (;;) {
        uint64_t now = now_ns();
        if (measured_ns == 0 && now >= warm_ns) {
            measured_ns = now;
            warm = answered;
            batches = atomic_load(&shared->batches);
            for (int i = 0; i < 3; i++)
                cpu[i] = cpu_us(pids[i]);
        }
        if (now >= end)
            break;
        uint64_t free_count = window - (sent - answered);
        for (uint64_t i = 0; i < free_count; i++)
            sent_ns[(sent + i) % SLOT_COUNT] = now;
        sent += free_count;
        send_all(server, frames, free_count * FRAME_BYTES);
        ssize_t got = recv(server, acks, sizeof acks, 0);
        need(got > 0, "receive");
        now = now_ns();
        held += (uint64_t)got;
        for (; held >= ACK_BYTES; held -= ACK_BYTES, answered++)
            if (measured_ns != 0 && answered - warm < LATENCIES_MAX)
                latencies[answered - warm] = (uint32_t)(now - sent_ns[answered % SLOT_COUNT]);
    }
    double took_s = (double)(now_ns() - measured_ns) / 1e9;
    uint64_t adds = answered - warm, count = adds < LATENCIES_MAX ? adds : LATENCIES_MAX;
    need(count > 0, "no add was answered");
    for (int i = 0; i < 3; i++)
        cpu[i] = (cpu_us(pids[i]) - cpu[i]) / (double)adds;
    qsort(latencies, count, sizeof *latencies, compare);
    printf("{\"adds\": %llu, \"seconds\": %.3f, \"adds_per_s\": %.0f, \"batches\": %llu, "
           "\"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p99.9\": %.1f}, "
           "\"cpu_us_per_entry\": {\"client\": %.3f, \"worker\": %.3f, \"journal\": %.3f}}\n",
           (unsigned long long)adds, took_s, (double)adds / took_s,
           (unsigned long long)(atomic_load(&shared->batches) - batches), latencies[count / 2] / 1e3,
           latencies[count - 1 - count / 100] / 1e3, latencies[count - 1 - count / 1000] / 1e3, cpu[0], cpu[1], cpu[2]);
}

/* ------------------------------------------------------------------ all three */

static int
open_file(const char *path)
{
    int file = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_DIRECT, 0600);
    uint8_t *zeros;
    need(file >= 0, path);
    need(posix_memalign((void **)&zeros, BLOCK_BYTES, BATCH_BYTES) == 0, "memory");
    memset(zeros, 0, BATCH_BYTES);
    for (uint32_t at = 0; at < FILE_BYTES; at += BATCH_BYTES)
        need(pwrite(file, zeros, BATCH_BYTES, at) == BATCH_BYTES, "write zeros");
    need(fdatasync(file) == 0, "sync");
    free(zeros);
    unlink(path); /* its descriptor is enough */
    return file;
}

static void
connect_both(int *client, int *server)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size_bytes = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 && listen(listener, 1) == 0, "listen");
    need(getsockname(listener, (struct sockaddr *)&address, &size_bytes) == 0, "address");
    *server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    need(connect(*server, (struct sockaddr *)&address, sizeof address) == 0, "connect");
    *client = accept(listener, NULL, NULL);
    need(*client >= 0, "accept");
    setsockopt(*client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(*server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
}

/* The client would wait for ever. */
static void
on_dead_child(int number)
{
    (void)number;
    _exit(1);
}

static pid_t
start(void (*run)(int), int fd, int other)
{
    pid_t pid = fork();
    need(pid >= 0, "fork");
    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(other);
    run(fd);
    exit(0);
}

int
main(int argc, char **argv)
{
    bool is_twice = argc == 5 && strcmp(argv[4], "twice") == 0;
    uint64_t window = argc == 4 || is_twice ? strtoull(argv[2], NULL, 10) : 0;
    double seconds = window > 0 ? strtod(argv[3], NULL) : 0;
    if (window == 0 || window > SLOT_COUNT / 2 || seconds <= 0 || seconds > 600) {
        fprintf(stderr, "usage: bench_chain FILE WINDOW(1..%u) SECONDS(..600) [twice]\n", SLOT_COUNT / 2);
        return 2;
    }
    struct io_uring tried;
    if (open_uring(&tried) != 0) {
        puts("needs io_uring: refused here");
        return 77;
    }
    io_uring_queue_exit(&tried);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    need(shared != MAP_FAILED, "memory");
    journal_bell = eventfd(0, EFD_CLOEXEC);
    worker_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int client, server, file = open_file(argv[1]), second = is_twice ? open_file(argv[1]) : -1;
    connect_both(&client, &server);
    signal(SIGCHLD, on_dead_child);
    pid_t pids[4] = {getpid(), start(run_worker, client, server), 0, 0};
    close(client);
    pids[2] = start(run_journal, file, server);
    pids[3] = is_twice ? start(run_flusher, second, server) : 0;
    run_client(server, window, seconds, pids);
    signal(SIGCHLD, SIG_DFL);
    for (int i = 1; i < 4 && pids[i] != 0; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    return 0;
}
