/* Appends to Redis Streams, for `./dev bench`: XADD of one entry each, pipelined, in a closed loop,
 * as `fastbk bench` appends to a bookie: one thread, any number of connections, so many entries in
 * flight over all of them.
 *
 * Commands are made once for each stream and sent again and again; replies are split and counted,
 * and an error reply ends the load.  So it costs less than our own load generator, which makes,
 * checks and times each entry.
 *
 * usage: bench_redis PORT WINDOW SECONDS SIZE STREAMS CONNECTIONS.  Prints JSON: adds, seconds,
 * adds_per_s, latency_us, client_us. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define INPUT_BYTES (64u << 10)
#define GATHERED_BYTES (256u << 10) /* handed to the kernel at a time */
#define LATENCIES_MAX (1u << 23)
#define WARM_SHARE 5 /* a fifth of the time is not counted */

struct connection {
    int fd;
    uint64_t sent, answered;
    uint64_t *sent_ns; /* of those in flight */
    uint8_t *output;
    uint32_t output_bytes, output_done;
    uint32_t held;
    uint8_t input[INPUT_BYTES];
};

static struct {
    uint64_t window; /* of each connection */
    uint32_t streams, connections, command_room;
    uint8_t *commands;
    uint32_t *command_bytes;
    uint64_t next_stream, answered;
    uint32_t *latencies;
    uint64_t latency_count;
    bool is_timed;
} load;

static void
need(bool is_well, const char *what)
{
    if (is_well)
        return;
    fprintf(stderr, "bench_redis: %s: %s\n", what, strerror(errno));
    exit(1);
}

static uint64_t
now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double
cpu_us(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) * 1e6 +
           (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

static void
make_commands(uint32_t size_bytes)
{
    load.command_room = size_bytes + 128;
    load.commands = malloc((size_t)load.streams * load.command_room);
    load.command_bytes = malloc(load.streams * sizeof *load.command_bytes);
    need(load.commands != NULL && load.command_bytes != NULL, "memory");
    for (uint32_t i = 0; i < load.streams; i++) {
        char *at = (char *)load.commands + (size_t)i * load.command_room, key[16];
        int key_bytes = snprintf(key, sizeof key, "s%u", i);
        int used =
            snprintf(at, 112, "*5\r\n$4\r\nXADD\r\n$%d\r\n%s\r\n$1\r\n*\r\n$1\r\nd\r\n$%u\r\n",
                     key_bytes, key, size_bytes);
        for (uint32_t byte = 0; byte < size_bytes; byte++)
            at[(uint32_t)used + byte] = (char)('a' + (byte * 7 + i) % 26);
        memcpy(at + used + size_bytes, "\r\n", 2);
        load.command_bytes[i] = (uint32_t)used + size_bytes + 2;
    }
}

static void
open_connection(struct connection *connection, uint16_t port)
{
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int one = 1;
    connection->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    need(connection->fd >= 0 &&
             connect(connection->fd, (struct sockaddr *)&address, sizeof address) == 0,
         "connect");
    setsockopt(connection->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    connection->sent_ns = malloc(load.window * sizeof *connection->sent_ns);
    connection->output = malloc(GATHERED_BYTES + load.command_room);
    need(connection->sent_ns != NULL && connection->output != NULL, "memory");
}

/* Sends what the window allows, as far as the socket takes it.  A command counts as sent when it is
 * gathered. */
static void
send_some(struct connection *connection, bool is_over)
{
    for (;;) {
        uint64_t now = now_ns();
        while (!is_over && connection->sent - connection->answered < load.window &&
               connection->output_bytes < GATHERED_BYTES) {
            uint64_t stream = load.next_stream++ % load.streams;
            memcpy(connection->output + connection->output_bytes,
                   load.commands + stream * load.command_room, load.command_bytes[stream]);
            connection->output_bytes += load.command_bytes[stream];
            connection->sent_ns[connection->sent++ % load.window] = now;
        }
        if (connection->output_done == connection->output_bytes)
            return;
        ssize_t sent =
            send(connection->fd, connection->output + connection->output_done,
                 connection->output_bytes - connection->output_done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        need(sent > 0, "send");
        connection->output_done += (uint32_t)sent;
        if (connection->output_done == connection->output_bytes)
            connection->output_done = connection->output_bytes = 0;
    }
}

/* A reply is "$N\r\n" and N bytes of an id and "\r\n". */
static void
receive_some(struct connection *connection)
{
    ssize_t got = recv(connection->fd, connection->input + connection->held,
                       INPUT_BYTES - connection->held, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    need(got > 0, "receive");
    uint32_t held = connection->held + (uint32_t)got, at = 0;
    const uint64_t now = now_ns();
    while (held - at >= 5) {
        const uint8_t *reply = connection->input + at;
        if (reply[0] != '$') {
            fprintf(stderr, "bench_redis: %.*s\n", (int)(held - at < 200 ? held - at : 200),
                    (const char *)reply);
            exit(1);
        }
        uint32_t digits = 1, id_bytes = 0;
        for (; reply[digits] >= '0' && reply[digits] <= '9' && digits < 4; digits++)
            id_bytes = id_bytes * 10 + (uint32_t)(reply[digits] - '0');
        uint32_t reply_bytes = digits + 2 + id_bytes + 2;
        if (held - at < reply_bytes)
            break;
        at += reply_bytes;
        if (load.is_timed && load.latency_count < LATENCIES_MAX)
            load.latencies[load.latency_count++] =
                (uint32_t)(now - connection->sent_ns[connection->answered % load.window]);
        connection->answered++;
        load.answered++;
    }
    memmove(connection->input, connection->input + at, held - at);
    connection->held = held - at;
}

static int
compare(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* All connections for so long; returns nanoseconds. */
static uint64_t
run(struct connection *connections, struct pollfd *polls, double seconds)
{
    uint64_t begin = now_ns(), end = begin + (uint64_t)(seconds * 1e9), now = begin;
    for (; now < end; now = now_ns()) {
        for (uint32_t i = 0; i < load.connections; i++) {
            send_some(&connections[i], false);
            polls[i].events = (short)(POLLIN | (connections[i].output_bytes != 0 ? POLLOUT : 0));
        }
        int ready = poll(polls, load.connections, 1000);
        need(ready >= 0 || errno == EINTR, "poll");
        for (uint32_t i = 0; ready > 0 && i < load.connections; i++)
            if (polls[i].revents != 0)
                receive_some(&connections[i]);
    }
    return now - begin;
}

int
main(int argc, char **argv)
{
    unsigned long port = argc == 7 ? strtoul(argv[1], NULL, 10) : 0;
    uint64_t window = argc == 7 ? strtoull(argv[2], NULL, 10) : 0;
    double seconds = argc == 7 ? strtod(argv[3], NULL) : 0;
    unsigned long size_bytes = argc == 7 ? strtoul(argv[4], NULL, 10) : 0;
    load.streams = argc == 7 ? (uint32_t)strtoul(argv[5], NULL, 10) : 0;
    load.connections = argc == 7 ? (uint32_t)strtoul(argv[6], NULL, 10) : 0;
    if (port == 0 || port > 65535 || window == 0 || seconds <= 0 || seconds > 600 ||
        size_bytes == 0 || size_bytes > 5u << 20 || load.streams == 0 || load.connections == 0 ||
        window < load.connections) {
        fprintf(
            stderr,
            "usage: bench_redis PORT WINDOW SECONDS(..600) SIZE STREAMS CONNECTIONS(..WINDOW)\n");
        return 2;
    }
    load.window = window / load.connections;
    make_commands((uint32_t)size_bytes);
    load.latencies = malloc(LATENCIES_MAX * sizeof *load.latencies);
    struct connection *connections = calloc(load.connections, sizeof *connections);
    struct pollfd *polls = calloc(load.connections, sizeof *polls);
    need(load.latencies != NULL && connections != NULL && polls != NULL, "memory");
    for (uint32_t i = 0; i < load.connections; i++) {
        open_connection(&connections[i], (uint16_t)port);
        polls[i].fd = connections[i].fd;
    }
    run(connections, polls, seconds / WARM_SHARE);
    load.is_timed = true;
    load.answered = 0;
    double cpu = cpu_us();
    double took_s = (double)run(connections, polls, seconds) / 1e9;
    cpu = cpu_us() - cpu;
    uint64_t adds = load.answered, count = load.latency_count;
    need(count > 0, "no add was answered");
    qsort(load.latencies, count, sizeof *load.latencies, compare);
    printf("{\"adds\": %llu, \"seconds\": %.3f, \"adds_per_s\": %.0f, \"latency_us\": {\"p50\": "
           "%.1f, \"p99\": %.1f, \"p99.9\": %.1f}, "
           "\"client_us\": %.3f}\n",
           (unsigned long long)adds, took_s, (double)adds / took_s, load.latencies[count / 2] / 1e3,
           load.latencies[count - 1 - count / 100] / 1e3,
           load.latencies[count - 1 - count / 1000] / 1e3, cpu / (double)adds);
    return 0;
}
