/* The load generator behind `fastbk bench`: one thread, no allocation after create, closed or open loop.
 *
 * Every add's latency runs from its *intended* start: in a closed loop the moment it is encoded, in an open
 * loop the moment the schedule says, also when the window held it back (no coordinated omission). */
#include "load/state.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

uint64_t
fbk_load_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

uint64_t
fbk_load_bucket_top(uint32_t bucket)
{
    if (bucket < FBK_LOAD_SUB_COUNT)
        return bucket;
    uint32_t octave = bucket / FBK_LOAD_SUB_COUNT;
    uint64_t sub = bucket % FBK_LOAD_SUB_COUNT;
    return ((FBK_LOAD_SUB_COUNT + sub + 1u) << (octave - 1u)) - 1u;
}

void
fbk_load_data(uint8_t *out, uint32_t size_bytes, int64_t ledger_id, int64_t entry_id)
{
    /* splitmix64 over (ledger, entry), one word repeated with a counter: cheap, and no two entries agree. */
    uint64_t seed = (uint64_t)ledger_id * 0x9e3779b97f4a7c15ull + (uint64_t)entry_id + 0x632be59bd9b4e019ull;
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ull;
    seed = (seed ^ (seed >> 27)) * 0x94d049bb133111ebull;
    uint32_t at = 0;
    for (; at + 8u <= size_bytes; at += 8u)
        fbk_store_u64(out + at, seed + at);
    for (; at < size_bytes; at++)
        out[at] = (uint8_t)(seed >> ((at % 8u) * 8u));
}

static void *
load_take(uint8_t **at, uint64_t size_bytes)
{
    void *piece = *at;
    *at += fbk_round_up(size_bytes, 64);
    return piece;
}

struct fbk_load *
fbk_load_create(const struct fbk_load_options *options, const int64_t *ledger_ids, int32_t *error)
{
    const uint64_t connections = options->connection_count;
    const uint64_t ledgers = options->ledger_count;
    *error = -EINVAL;
    const bool is_known = options->protocol == 0 || options->protocol == 2 || (options->protocol == 3 && options->entries_a_read <= 1);
    if (!is_known || fbk_digest_bytes(options->digest_type) < 0 || options->digest_type == FBK_DIGEST_HMAC)
        return NULL;
    if (connections == 0 || connections > LOAD_CONNECTIONS_MAX || ledgers < connections || options->window == 0
        || options->window > (1u << 20) || options->size_bytes > 5u * 1024u * 1024u)
        return NULL;
    const uint32_t frame_bytes = options->size_bytes + LOAD_FRAME_OVERHEAD_BYTES;
    uint32_t send_bytes = frame_bytes * 2u > LOAD_SEND_BYTES_MIN ? frame_bytes * 2u : LOAD_SEND_BYTES_MIN;
    uint32_t receive_bytes = connections > 64 ? 64u * 1024u + frame_bytes : LOAD_RECEIVE_BYTES;
    if (connections > 64)
        send_bytes = frame_bytes * 2u > 64u * 1024u ? frame_bytes * 2u : 64u * 1024u;
    const uint64_t memory_bytes = fbk_round_up(sizeof(struct fbk_load), 64)
                                  + fbk_round_up(options->window * sizeof(struct load_slot), 64)
                                  + fbk_round_up(ledgers * sizeof(struct load_ledger), 64)
                                  + fbk_round_up(connections * sizeof(struct load_connection), 64)
                                  + fbk_round_up(connections * sizeof(struct pollfd), 64)
                                  + connections * (fbk_round_up(send_bytes, 64) + fbk_round_up(receive_bytes, 64))
                                  + fbk_round_up(options->size_bytes + 8u, 64) + fbk_round_up(frame_bytes, 64);
    uint8_t *memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        *error = -errno;
        return NULL;
    }
    uint8_t *at = memory;
    struct fbk_load *load = load_take(&at, sizeof *load);
    load->options = *options;
    load->memory = memory;
    load->memory_bytes = memory_bytes;
    load->send_bytes = send_bytes;
    load->receive_bytes = receive_bytes;
    load->slots = load_take(&at, options->window * sizeof(struct load_slot));
    load->ledgers = load_take(&at, ledgers * sizeof(struct load_ledger));
    load->connections = load_take(&at, connections * sizeof(struct load_connection));
    load->polls = load_take(&at, connections * sizeof(struct pollfd));
    load->expected = load_take(&at, options->size_bytes + 8u);
    load->entry = load_take(&at, frame_bytes);
    for (uint32_t i = 0; i < options->window; i++)
        load->slots[i].next_free = i + 1 < options->window ? i + 1 : UINT32_MAX;
    for (uint32_t i = 0; i < ledgers; i++)
        load->ledgers[i] = (struct load_ledger){.ledger_id = ledger_ids[i], .last_add_confirmed = -1};
    for (uint32_t i = 0; i < connections; i++) {
        load->connections[i].socket = -1;
        load->connections[i].asked_first = load->connections[i].asked_last = LOAD_NO_SLOT;
        load->connections[i].send = load_take(&at, send_bytes);
        load->connections[i].receive = load_take(&at, receive_bytes);
    }
    *error = 0;
    return load;
}

void
fbk_load_destroy(struct fbk_load *load)
{
    if (load == NULL)
        return;
    for (uint32_t i = 0; i < load->options.connection_count; i++)
        if (load->connections[i].socket >= 0)
            close(load->connections[i].socket);
    munmap(load->memory, load->memory_bytes);
}

uint64_t
fbk_load_ledger_entries(const struct fbk_load *load, uint32_t index)
{
    return index < load->options.ledger_count ? (uint64_t)(load->ledgers[index].last_add_confirmed + 1) : 0;
}

void
fbk_load_result_get(const struct fbk_load *load, struct fbk_load_result *result)
{
    *result = load->result;
}

/* ------------------------------------------------------------------ connecting */

static int32_t
load_wait(int socket_fd, short events, uint64_t deadline_ns)
{
    for (;;) {
        const uint64_t now = fbk_load_now_ns();
        if (now >= deadline_ns)
            return -ETIMEDOUT;
        struct pollfd wanted = {.fd = socket_fd, .events = events};
        int ready = poll(&wanted, 1, (int)((deadline_ns - now) / 1000000u) + 1);
        if (ready > 0)
            return 0;
        if (ready < 0 && errno != EINTR)
            return -errno;
    }
}

static int32_t
load_say_hello(struct load_connection *connection, const uint8_t *hello, uint32_t hello_bytes, uint64_t deadline_ns)
{
    static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};
    uint32_t used = 0;
    if (send(connection->socket, magic, sizeof magic, MSG_NOSIGNAL) != (ssize_t)sizeof magic
        || send(connection->socket, hello, hello_bytes, MSG_NOSIGNAL) != (ssize_t)hello_bytes)
        return -EPIPE;
    while (used < 4 || used < 4 + fbk_load_u32(connection->receive)) {
        int32_t error = load_wait(connection->socket, POLLIN, deadline_ns);
        if (error != 0)
            return error;
        ssize_t got = recv(connection->socket, connection->receive + used, 16384 - used, MSG_DONTWAIT);
        if (got <= 0)
            return got == 0 ? -ECONNRESET : -errno;
        used += (uint32_t)got;
        if (used >= 4 && fbk_load_u32(connection->receive) > 8192)
            return FBK_E_PROTOCOL;
    }
    struct fbk_response response;
    if (fbk_wire_read_response(connection->receive, used, &response) != 0)
        return FBK_E_PROTOCOL;
    return response.status == FBK_S_OK ? 0 : FBK_E_PROTOCOL;
}

int32_t
fbk_load_connect(struct fbk_load *load, const uint8_t *hello_frame, uint32_t hello_bytes, uint32_t timeout_ms)
{
    const uint64_t deadline_ns = fbk_load_now_ns() + timeout_ms * 1000000ull;
    for (uint32_t i = 0; i < load->options.connection_count; i++) {
        struct load_connection *connection = &load->connections[i];
        connection->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection->socket < 0)
            return -errno;
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)load->options.port)};
        address.sin_addr.s_addr = load->options.ipv4;
        if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0)
            return -errno;
        int on = 1;
        setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        /* Apache's protocols begin with a request. */
        int32_t error = load->options.protocol == 0 ? load_say_hello(connection, hello_frame, hello_bytes, deadline_ns) : 0;
        if (error != 0)
            return error;
    }
    return 0;
}

/* ------------------------------------------------------------------ the loop */

static int32_t
load_wait_for_answers(struct fbk_load *load, uint64_t now_ns, uint64_t deadline_ns)
{
    const uint32_t count = load->options.connection_count;
    for (uint32_t i = 0; i < count; i++) {
        load->polls[i].fd = load->connections[i].socket;
        load->polls[i].events = (short)(POLLIN | (load->connections[i].send_used != 0 ? POLLOUT : 0));
    }
    uint64_t until_ns = deadline_ns;
    if (load->options.rate_per_s != 0 && load->free_slot != UINT32_MAX && now_ns < load->stop_ns
        && load->next_start_ns < until_ns)
        until_ns = load->next_start_ns;
    struct timespec timeout = {0, 0};
    if (until_ns > now_ns) {
        timeout.tv_sec = (time_t)((until_ns - now_ns) / 1000000000ull);
        timeout.tv_nsec = (long)((until_ns - now_ns) % 1000000000ull);
    }
    int ready = ppoll(load->polls, count, &timeout, NULL);
    if (ready < 0)
        return errno == EINTR ? 0 : -errno;
    for (uint32_t i = 0; ready > 0 && i < count; i++) {
        if (load->polls[i].revents == 0)
            continue;
        ready--;
        int32_t error = 0;
        if (load->polls[i].revents & (POLLIN | POLLHUP | POLLERR))
            error = fbk_load_receive(load, &load->connections[i]);
        if (error == 0 && (load->polls[i].revents & POLLOUT))
            error = fbk_load_send(&load->connections[i]);
        if (error != 0)
            return error;
    }
    return 0;
}

static int32_t
load_run(struct fbk_load *load, uint64_t duration_ns, uint64_t drain_timeout_ns)
{
    const uint64_t begin_ns = fbk_load_now_ns();
    uint64_t now_ns = begin_ns;
    load->stop_ns = begin_ns + duration_ns;
    load->next_start_ns = begin_ns;
    const uint64_t deadline_ns = load->stop_ns + drain_timeout_ns;
    while (now_ns < load->stop_ns || load->in_flight != 0) {
        if (now_ns >= deadline_ns) {
            load->result.errors += load->in_flight;
            return -ETIMEDOUT;
        }
        int32_t error = fbk_load_start(load, now_ns);
        if (error == 0)
            error = load_wait_for_answers(load, now_ns, load->in_flight != 0 ? deadline_ns : load->stop_ns);
        if (error != 0) {
            load->result.errors += load->in_flight;
            return error;
        }
        now_ns = fbk_load_now_ns();
    }
    load->result.busy_ns += now_ns - begin_ns;
    return 0;
}

int32_t
fbk_load_append(struct fbk_load *load, uint64_t duration_ns, uint64_t drain_timeout_ns)
{
    load->reading = false;
    return load_run(load, duration_ns, drain_timeout_ns);
}

int32_t
fbk_load_read(struct fbk_load *load, uint64_t duration_ns, const uint64_t *entry_counts)
{
    for (uint32_t i = 0; i < load->options.ledger_count; i++)
        if (entry_counts[i] == 0)
            return -EINVAL;
    load->reading = true;
    load->entry_counts = entry_counts;
    return load_run(load, duration_ns, 30000000000ull);
}
