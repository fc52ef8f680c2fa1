/* The floor under an add: a client, a worker and a journal with nothing in them that the hardware
 * and the kernel do not ask for.  Three processes, TCP loopback, a ring in shared memory, eventfds,
 * io_uring, O_DIRECT + RWF_DSYNC on a file whose blocks have been written before: the shape of a
 * bookie, without its checks, checksums, index and Python.
 *
 * A bookie may store each entry twice: with `twice` a fourth process writes as many bytes to a
 * second file, FILE.flush, 1 MiB at a time and four at once, as a flush does. The journal waits
 * where that is more than a bookie's write caches behind.
 *
 * With connections=WINDOW each of the window has a connection of its own, with one add in flight.
 * An entry has 1 KiB of data, or entry=BYTES. A file has 64 MiB, or file=BYTES; at its end the
 * chain goes on at its beginning. A file that is there already is used, and left there: its blocks
 * have to have been written before.
 *
 * usage: bench_chain FILE WINDOW SECONDS [twice] [connections=WINDOW] [entry=BYTES] [file=BYTES].
 * SECONDS are what is measured, behind a quarter as much that is not. Prints JSON:
 * adds, seconds, adds_per_s, batches, latency_us, cpu_us_per_entry, disk_bytes_per_entry,
 * memory_mb. Exits 77 where io_uring is refused. */
#include "bench_chain.h"

/* ------------ worker */

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

/* A connection of the worker's, or of the client's. */
struct peer {
    int fd;
    uint32_t held; /* bytes of `input` in use */
    uint32_t input_bytes;
    uint8_t *input;
};

static struct peer *
make_peers(const int *fds, uint32_t count)
{
    struct peer *peers = calloc(count, sizeof *peers);
    need(peers != NULL, "memory");
    for (uint32_t i = 0; i < count; i++) {
        peers[i].fd = fds[i];
        peers[i].input_bytes =
            INPUT_BYTES / count < 4 * frame_bytes ? 4 * frame_bytes : INPUT_BYTES / count;
        peers[i].input = malloc(peers[i].input_bytes);
        need(peers[i].input != NULL, "memory");
    }
    return peers;
}

static int
watch(int fd, int poll, uint64_t number)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = number};
    need(epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event) == 0, "epoll");
    return poll;
}

/* Whole frames go into the ring. */
static uint64_t
take_frames(struct peer *peer, uint32_t number, uint16_t *owners, uint64_t written)
{
    uint32_t at = 0;
    for (; peer->held - at >= frame_bytes; at += frame_bytes, written++) {
        memcpy(slot(written), peer->input + at, frame_bytes);
        owners[written % SLOT_COUNT_MAX] = (uint16_t)number;
    }
    memmove(peer->input, peer->input + at, peer->held - at);
    peer->held -= at;
    return written;
}

static void
publish(uint64_t written)
{
    atomic_store(&shared->written, written);
    if (atomic_exchange(&shared->journal_sleeps, 0))
        ring_bell(journal_bell);
}

static void
run_worker(const int *fds, uint32_t count)
{
    static uint8_t acks[SLOT_COUNT_MAX * ACK_BYTES];
    static uint16_t owners[SLOT_COUNT_MAX];
    static struct epoll_event events[EVENTS_MAX];
    struct peer *peers = make_peers(fds, count);
    uint64_t acked = 0;
    int poll = watch(worker_bell, epoll_create1(0), count);
    for (uint32_t i = 0; i < count; i++)
        watch(fds[i], poll, i);
    for (;;) {
        int ready = epoll_wait(poll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            uint64_t number = events[i].data.u64;
            if (number == count) {
                uint64_t rung;
                need(read(worker_bell, &rung, sizeof rung) > 0, "hear");
                uint64_t committed = atomic_load(&shared->committed);
                while (acked != committed) {
                    uint64_t first = acked;
                    uint16_t owner = owners[first % SLOT_COUNT_MAX];
                    while (acked != committed && owners[acked % SLOT_COUNT_MAX] == owner)
                        acked++;
                    send_all(peers[owner].fd, acks, (acked - first) * ACK_BYTES);
                }
                continue;
            }
            struct peer *peer = &peers[number];
            ssize_t got = recv(peer->fd, peer->input + peer->held, peer->input_bytes - peer->held,
                               MSG_DONTWAIT);
            if (got == 0)
                exit(0);
            if (got < 0)
                continue;
            peer->held += (uint32_t)got;
            publish(take_frames(peer, (uint32_t)number, owners, atomic_load(&shared->written)));
        }
    }
}

/* ------------ client */

/* A histogram of nanoseconds: a sustained run has more adds than memory has room for. */
static uint64_t latency_counts[LATENCY_BUCKETS];

static void
note_latency(uint64_t ns)
{
    uint32_t shift = 0;
    while (ns >> shift >= 2u << LATENCY_BITS)
        shift++;
    latency_counts[((uint64_t)shift << LATENCY_BITS) + (ns >> shift)]++;
}

/* In microseconds: what that share of all latencies does not exceed. */
static double
latency_us(double share, uint64_t count)
{
    uint64_t seen = 0, wanted = (uint64_t)(share * (double)count);
    for (uint64_t i = 0; i < LATENCY_BUCKETS; i++) {
        seen += latency_counts[i];
        if (seen > wanted) {
            uint64_t shift = i >> LATENCY_BITS > 1 ? (i >> LATENCY_BITS) - 1 : 0;
            return (double)(((i - (shift << LATENCY_BITS) + 1) << shift) - 1) / 1e3;
        }
    }
    return 0;
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

/* Proportional, in bytes. */
static double
memory_bytes(pid_t pid)
{
    char path[64], line[128];
    unsigned long kib = 0;
    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", pid);
    FILE *file = fopen(path, "r");
    need(file != NULL, "memory");
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "Pss: %lu", &kib) != 1)
        continue;
    fclose(file);
    return (double)kib * 1024;
}

/* What a process had written to disks so far; 0: there is no such process. */
static double
disk_bytes(pid_t pid)
{
    char path[64], line[128];
    unsigned long long written = 0;
    if (pid == 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/io", pid);
    FILE *file = fopen(path, "r");
    need(file != NULL, "bytes to disk");
    while (fgets(line, sizeof line, file) != NULL &&
           sscanf(line, "write_bytes: %llu", &written) != 1)
        continue;
    fclose(file);
    return (double)written;
}

static void
run_client(const int *fds, uint32_t count, uint64_t window, double seconds, const pid_t *pids)
{
    uint8_t *frames = calloc(window, frame_bytes);
    uint64_t *sent_ns = malloc(SLOT_COUNT_MAX * sizeof *sent_ns);
    need(sent_ns != NULL && frames != NULL, "memory");
    static struct epoll_event events[EVENTS_MAX];
    struct peer *peers = make_peers(fds, count);
    uint64_t sent = 0, answered = 0, warm = 0, begin = now_ns(),
             warm_ns = begin + (uint64_t)(seconds * 1e9 / 4),
             end = warm_ns + (uint64_t)(seconds * 1e9);
    uint64_t measured_ns = 0, batches = 0, started_ns = begin;
    double cpu[3] = {0, 0, 0}, disk = 0;
    int poll = epoll_create1(0);
    for (uint32_t i = 0; i < count && count > 1; i++)
        watch(fds[i], poll, i);
    for (uint32_t i = 0; i < count; i++) {
        send_all(fds[i], frames, window / count * frame_bytes);
        sent_ns[i] = started_ns;
    }
    sent = window;
    for (;;) {
        uint64_t now = now_ns();
        if (measured_ns == 0 && now >= warm_ns) {
            measured_ns = now;
            warm = answered;
            batches = atomic_load(&shared->batches);
            for (int i = 0; i < 3; i++)
                cpu[i] = cpu_us(pids[i]);
            disk = disk_bytes(pids[2]) + disk_bytes(pids[3]);
        }
        /* On a busy machine the first batch may take longer than all of the run. */
        if (now >= end && answered > warm)
            break;
        int ready = count > 1 ? epoll_wait(poll, events, EVENTS_MAX, -1) : 1;
        for (int e = 0; e < ready; e++) {
            uint64_t number = count > 1 ? events[e].data.u64 : 0;
            struct peer *peer = &peers[number];
            ssize_t got =
                recv(peer->fd, peer->input + peer->held, peer->input_bytes - peer->held, 0);
            need(got > 0, "receive");
            now = now_ns();
            peer->held += (uint32_t)got;
            uint64_t acks = peer->held / ACK_BYTES;
            peer->held -= (uint32_t)acks * ACK_BYTES;
            for (uint64_t i = 0; i < acks; i++, answered++) {
                uint64_t *at = &sent_ns[count > 1 ? number : answered % SLOT_COUNT_MAX];
                if (measured_ns != 0)
                    note_latency(now - *at);
            }
            for (uint64_t i = 0; i < acks; i++, sent++)
                sent_ns[count > 1 ? number : sent % SLOT_COUNT_MAX] = now;
            send_all(peer->fd, frames, acks * frame_bytes);
        }
    }
    double took_s = (double)(now_ns() - measured_ns) / 1e9;
    uint64_t adds = answered - warm;
    need(adds > 0, "no add was answered");
    for (int i = 0; i < 3; i++)
        cpu[i] = (cpu_us(pids[i]) - cpu[i]) / (double)adds;
    disk = (disk_bytes(pids[2]) + disk_bytes(pids[3]) - disk) / (double)adds;
    double memory_mb = (memory_bytes(pids[1]) + memory_bytes(pids[2])) / 1e6;
    printf("{\"adds\": %llu, \"seconds\": %.3f, \"adds_per_s\": %.0f, \"batches\": %llu, "
           "\"latency_us\": {\"p50\": %.1f, \"p99\": %.1f, \"p99.9\": %.1f}, "
           "\"cpu_us_per_entry\": {\"client\": %.3f, \"worker\": %.3f, \"journal\": %.3f}, "
           "\"disk_bytes_per_entry\": %.1f, \"memory_mb\": %.1f}\n",
           (unsigned long long)adds, took_s, (double)adds / took_s,
           (unsigned long long)(atomic_load(&shared->batches) - batches), latency_us(0.5, adds),
           latency_us(0.99, adds), latency_us(0.999, adds), cpu[0], cpu[1], cpu[2], disk,
           memory_mb);
}

/* ------------ all three */

static void
connect_both(int *clients, int *servers, uint32_t count)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size_bytes = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    need(bind(listener, (struct sockaddr *)&address, sizeof address) == 0 &&
             listen(listener, 1) == 0,
         "listen");
    need(getsockname(listener, (struct sockaddr *)&address, &size_bytes) == 0, "address");
    for (uint32_t i = 0; i < count; i++) {
        servers[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        need(connect(servers[i], (struct sockaddr *)&address, sizeof address) == 0, "connect");
        clients[i] = accept(listener, NULL, NULL);
        need(clients[i] >= 0, "accept");
        setsockopt(clients[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(servers[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    }
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
start(void)
{
    pid_t pid = fork();
    need(pid >= 0, "fork");
    if (pid == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void
close_all(const int *fds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        close(fds[i]);
}

struct options {
    const char *path;
    uint64_t window;
    double seconds;
    uint32_t connections;
    bool is_twice;
};

/* Sets the sizes of all processes, too.  Returns false, and says why, where it cannot be. */
static bool
read_options(struct options *options, int argc, char **argv)
{
    uint64_t entry_bytes = ENTRY_BYTES_DEFAULT;
    file_bytes = FILE_BYTES_DEFAULT;
    *options = (struct options){.connections = 1};
    for (int i = 4; i < argc; i++) {
        options->is_twice |= strcmp(argv[i], "twice") == 0;
        if (strncmp(argv[i], "connections=", 12) == 0)
            options->connections = (uint32_t)strtoul(argv[i] + 12, NULL, 10);
        if (strncmp(argv[i], "entry=", 6) == 0)
            entry_bytes = strtoull(argv[i] + 6, NULL, 10);
        if (strncmp(argv[i], "file=", 5) == 0)
            file_bytes = strtoull(argv[i] + 5, NULL, 10) / BATCH_BYTES * BATCH_BYTES;
    }
    if (file_bytes < FLUSH_BYTES || file_bytes > FILE_BYTES_MAX || entry_bytes == 0 ||
        entry_bytes > ENTRY_BYTES_MAX) {
        fprintf(stderr, "bench_chain: entry=1..%u, file=%u..%llu\n", ENTRY_BYTES_MAX, FLUSH_BYTES,
                FILE_BYTES_MAX);
        return false;
    }
    frame_bytes = (uint32_t)entry_bytes + OVERHEAD_BYTES;
    slot_count = SLOT_COUNT_MAX;
    while ((uint64_t)slot_count * frame_bytes > RING_BYTES_MAX)
        slot_count /= 2;
    if (argc >= 4) {
        options->path = argv[1];
        options->window = strtoull(argv[2], NULL, 10);
        options->seconds = strtod(argv[3], NULL);
    }
    uint32_t count = options->connections;
    if (options->window > 0 && options->window <= slot_count / 2 && options->seconds > 0 &&
        options->seconds <= 600 && count > 0 && count <= CONNECTIONS_MAX &&
        (count == 1 || count == options->window))
        return true;
    fprintf(stderr,
            "usage: bench_chain FILE WINDOW(1..%u) SECONDS(..600) [twice] [connections=WINDOW]"
            " [entry=BYTES] [file=BYTES]\n",
            slot_count / 2);
    return false;
}

int
main(int argc, char **argv)
{
    struct options options;
    if (!read_options(&options, argc, argv))
        return 2;
    uint32_t count = options.connections;
    struct io_uring tried;
    if (open_uring(&tried) != 0) {
        puts("needs io_uring: refused here");
        return 77;
    }
    io_uring_queue_exit(&tried);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    ring = mmap(NULL, (size_t)slot_count * frame_bytes, PROT_READ | PROT_WRITE,
                MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    need(shared != MAP_FAILED && ring != MAP_FAILED, "memory");
    atomic_store(&shared->flushed, options.is_twice ? 0 : UINT64_MAX - BEHIND_BYTES);
    journal_bell = eventfd(0, EFD_CLOEXEC);
    worker_bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    static int clients[CONNECTIONS_MAX], servers[CONNECTIONS_MAX];
    char second_path[4096];
    snprintf(second_path, sizeof second_path, "%s.flush", options.path);
    int file = open_file(options.path), second = options.is_twice ? open_file(second_path) : -1;
    connect_both(clients, servers, count);
    signal(SIGCHLD, on_dead_child);
    pid_t pids[4] = {getpid(), start(), 0, 0};
    if (pids[1] == 0) {
        close_all(servers, count);
        run_worker(clients, count);
    }
    close_all(clients, count);
    if ((pids[2] = start()) == 0) {
        close_all(servers, count);
        run_journal(file);
    }
    if (options.is_twice && (pids[3] = start()) == 0) {
        close_all(servers, count);
        run_flusher(second);
    }
    run_client(servers, count, options.window, options.seconds, pids);
    signal(SIGCHLD, SIG_DFL);
    for (int i = 1; i < 4 && pids[i] != 0; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    return 0;
}
