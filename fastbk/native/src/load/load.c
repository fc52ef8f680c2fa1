/* The load generator behind `fastbk bench`: one thread, no allocation after create, closed or open
 * loop.
 *
 * Every add's latency runs from its *intended* start: in a closed loop the moment it is encoded, in
 * an open loop the moment the schedule says, also when the window held it back (no coordinated
 * omission). */
#include "load/load.h"

#include "apache/apache.h"
#include "base/checksum.h"
#include "base/digest.h"
#include "wire/client.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LOAD_NO_SLOT UINT32_MAX
#define LOAD_RECEIVE_BYTES (8u * 1024u * 1024u)
#define LOAD_SEND_BYTES_MIN (512u * 1024u)
#define LOAD_CONNECTIONS_MAX 4096u
#define LOAD_FRAME_OVERHEAD_BYTES 256u
#define LOAD_SEND_TARGET_BYTES (256u * 1024u) /* hand the kernel about this much at a time */

struct load_slot {
    uint64_t started_ns;
    int64_t entry_id;
    uint32_t ledger_index;
    uint32_t next_free;
    uint32_t next_sent; /* version 2: the one asked behind it on its connection */
    bool tail;          /* a read of an entry that was just acknowledged */
};

struct load_ledger {
    int64_t ledger_id;
    int64_t next_entry_id;
    int64_t last_add_confirmed;
    uint64_t length_bytes;
};

struct load_connection {
    int socket;
    uint32_t next_ledger; /* of its ledgers: index = connection + k * connection_count */
    uint32_t receive_used;
    uint32_t send_used;
    uint32_t send_done;
    /* version 2, whose answers carry no numbers: slots in the order of their requests */
    uint32_t first_sent, last_sent;
    uint8_t *receive;
    uint8_t *send;
};

struct fbk_load {
    struct fbk_load_options options;
    struct fbk_load_result result;
    struct load_slot *slots;
    struct load_ledger *ledgers;
    struct load_connection *connections;
    struct pollfd *polls;
    uint8_t *memory;
    uint64_t memory_bytes;
    uint32_t send_bytes;
    uint32_t receive_bytes;
    uint32_t free_slot; /* head of the list, UINT32_MAX = none */
    uint32_t in_flight;
    uint32_t next_connection;
    uint64_t stop_ns;
    uint64_t next_start_ns; /* open loop */
    /* reads */
    const uint64_t *entry_counts;
    uint64_t reads_started; /* at random */
    uint8_t *expected;
    uint8_t *entry; /* one that is being made, for Apache's protocols */
    bool reading;
};

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

static uint64_t
load_mix(uint64_t seed)
{
    seed = (seed ^ (seed >> 30)) * 0xbf58476d1ce4e5b9ull;
    return (seed ^ (seed >> 27)) * 0x94d049bb133111ebull;
}

void
fbk_load_data(uint8_t *out, uint32_t size_bytes, int64_t ledger_id, int64_t entry_id)
{
    /* splitmix64 over (ledger, entry), one word repeated with a counter: cheap, and no two entries
     * agree. */
    uint64_t seed = load_mix((uint64_t)ledger_id * 0x9e3779b97f4a7c15ull + (uint64_t)entry_id +
                             0x632be59bd9b4e019ull);
    uint32_t at = 0;
    for (; at + 8u <= size_bytes; at += 8u)
        fbk_store_u64(out + at, seed + at);
    for (; at < size_bytes; at++)
        out[at] = (uint8_t)(seed >> ((at % 8u) * 8u));
}

/* Stored entries as the load generator would have written them: for benches that build a store
 * directly. */
int32_t
fbk_load_entries(uint8_t *out, uint32_t *crcs, int64_t first_ledger_id, uint32_t ledger_count,
                 uint32_t entries_a_ledger, uint32_t size_bytes, uint32_t digest_type)
{
    const int32_t digest_bytes = fbk_digest_bytes(digest_type);
    if (digest_bytes < 0 || digest_type == FBK_DIGEST_HMAC)
        return -EINVAL;
    const uint32_t front_bytes = FBK_ENTRY_HEADER_BYTES + (uint32_t)digest_bytes;
    for (uint32_t n = 0; n < ledger_count; n++) {
        const int64_t ledger_id = first_ledger_id + n;
        for (uint32_t entry_id = 0; entry_id < entries_a_ledger; entry_id++) {
            fbk_store_be64(out, (uint64_t)ledger_id);
            fbk_store_be64(out + 8, entry_id);
            fbk_store_be64(out + 16, (uint64_t)(int64_t)-1);
            fbk_store_be64(out + 24, (uint64_t)(entry_id + 1) * size_bytes);
            fbk_load_data(out + front_bytes, size_bytes, ledger_id, entry_id);
            fbk_digest_put(digest_type, out, front_bytes + size_bytes);
            *crcs++ = fbk_crc32c(0, out, front_bytes + size_bytes);
            out += front_bytes + size_bytes;
        }
    }
    return (int32_t)(front_bytes + size_bytes);
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
    const bool is_known = options->protocol == 0 || options->protocol == 2 ||
                          (options->protocol == 3 && options->entries_a_read <= 1);
    if (!is_known || fbk_digest_bytes(options->digest_type) < 0 ||
        options->digest_type == FBK_DIGEST_HMAC)
        return NULL;
    if (connections == 0 || connections > LOAD_CONNECTIONS_MAX || ledgers < connections ||
        options->window == 0 || options->window > (1u << 20) ||
        options->size_bytes > 5u * 1024u * 1024u)
        return NULL;
    const uint32_t frame_bytes = options->size_bytes + LOAD_FRAME_OVERHEAD_BYTES;
    uint32_t send_bytes =
        frame_bytes * 2u > LOAD_SEND_BYTES_MIN ? frame_bytes * 2u : LOAD_SEND_BYTES_MIN;
    uint32_t receive_bytes = connections > 64 ? 64u * 1024u + frame_bytes : LOAD_RECEIVE_BYTES;
    if (connections > 64)
        send_bytes = frame_bytes * 2u > 64u * 1024u ? frame_bytes * 2u : 64u * 1024u;
    const uint64_t memory_bytes =
        fbk_round_up(sizeof(struct fbk_load), 64) +
        fbk_round_up(options->window * sizeof(struct load_slot), 64) +
        fbk_round_up(ledgers * sizeof(struct load_ledger), 64) +
        fbk_round_up(connections * sizeof(struct load_connection), 64) +
        fbk_round_up(connections * sizeof(struct pollfd), 64) +
        connections * (fbk_round_up(send_bytes, 64) + fbk_round_up(receive_bytes, 64)) +
        fbk_round_up(options->size_bytes + 8u, 64) + fbk_round_up(frame_bytes, 64);
    uint8_t *memory =
        mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
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
        load->ledgers[i] =
            (struct load_ledger){.ledger_id = ledger_ids[i], .last_add_confirmed = -1};
    for (uint32_t i = 0; i < connections; i++) {
        load->connections[i].socket = -1;
        load->connections[i].first_sent = load->connections[i].last_sent = LOAD_NO_SLOT;
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
    return index < load->options.ledger_count
               ? (uint64_t)(load->ledgers[index].last_add_confirmed + 1)
               : 0;
}

void
fbk_load_result_get(const struct fbk_load *load, struct fbk_load_result *result)
{
    *result = load->result;
}

/* ------------ connecting */

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
load_send_hello(struct load_connection *connection, const uint8_t *hello, uint32_t hello_bytes,
                uint64_t deadline_ns)
{
    static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};
    uint32_t used = 0;
    if (send(connection->socket, magic, sizeof magic, MSG_NOSIGNAL) != (ssize_t)sizeof magic ||
        send(connection->socket, hello, hello_bytes, MSG_NOSIGNAL) != (ssize_t)hello_bytes)
        return -EPIPE;
    while (used < 4 || used < 4 + fbk_load_u32(connection->receive)) {
        int32_t error = load_wait(connection->socket, POLLIN, deadline_ns);
        if (error != 0)
            return error;
        ssize_t got =
            recv(connection->socket, connection->receive + used, 16384 - used, MSG_DONTWAIT);
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
fbk_load_connect(struct fbk_load *load, const uint8_t *hello_frame, uint32_t hello_bytes,
                 uint32_t timeout_ms)
{
    const uint64_t deadline_ns = fbk_load_now_ns() + timeout_ms * 1000000ull;
    for (uint32_t i = 0; i < load->options.connection_count; i++) {
        struct load_connection *connection = &load->connections[i];
        connection->socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (connection->socket < 0)
            return -errno;
        struct sockaddr_in address = {.sin_family = AF_INET,
                                      .sin_port = htons((uint16_t)load->options.port)};
        address.sin_addr.s_addr = load->options.ipv4;
        if (connect(connection->socket, (struct sockaddr *)&address, sizeof address) != 0)
            return -errno;
        int on = 1;
        setsockopt(connection->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        /* Apache's protocols begin with a request. */
        int32_t error = load->options.protocol == 0
                            ? load_send_hello(connection, hello_frame, hello_bytes, deadline_ns)
                            : 0;
        if (error != 0)
            return error;
    }
    return 0;
}

/* ------------ Apache's protocols */

/* Version 3's answers carry the slot that they are for; version 2's name the ledger and the entry,
 * and are looked for among what the connection asked, from the oldest on: mostly it is that one. */

static void
apache_put(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
           struct fbk_apache_request *request)
{
    struct load_slot *slot = &load->slots[slot_index];
    request->protocol = (uint8_t)load->options.protocol;
    request->version = (uint8_t)load->options.protocol;
    request->transaction_id = slot_index;
    request->ledger_id = load->ledgers[slot->ledger_index].ledger_id;
    request->entry_id = slot->entry_id;
    uint64_t room = load->send_bytes - connection->send_used;
    connection->send_used +=
        (uint32_t)fbk_apache_put_request(connection->send + connection->send_used, room, request);
    slot->next_sent = LOAD_NO_SLOT;
    if (connection->last_sent == LOAD_NO_SLOT)
        connection->first_sent = slot_index;
    else
        load->slots[connection->last_sent].next_sent = slot_index;
    connection->last_sent = slot_index;
}

static void
apache_add(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
           uint32_t entry_bytes)
{
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_ADD,
        .master_key = load->options.master_key,
        .body = load->entry,
        .body_bytes = entry_bytes,
    };
    apache_put(load, connection, slot_index, &request);
}

/* Entries from the slot's on; one: a single read. */
static void
apache_read(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
            uint32_t count)
{
    bool is_batch = load->options.entries_a_read > 1 && !load->slots[slot_index].tail;
    struct fbk_apache_request request = {
        .operation = is_batch ? FBK_APACHE_READ_BATCH : FBK_APACHE_READ,
        .count_max = (int32_t)count,
        .size_bytes_max = 1024 * 1024,
    };
    apache_put(load, connection, slot_index, &request);
}

static bool
is_request_of(const struct fbk_load *load, uint32_t slot_index,
              const struct fbk_apache_reply *reply)
{
    const struct load_slot *slot = &load->slots[slot_index];
    if (load->options.protocol == 3)
        return reply->echo.transaction_id == slot_index;
    bool is_add = !load->reading && !slot->tail;
    return (reply->echo.operation == FBK_APACHE_ADD) == is_add &&
           reply->echo.entry_id == slot->entry_id &&
           reply->echo.ledger_id == load->ledgers[slot->ledger_index].ledger_id;
}

/* Out of what the connection asked; LOAD_NO_SLOT: nobody asked for that. */
static uint32_t
take_request(struct fbk_load *load, struct load_connection *connection,
             const struct fbk_apache_reply *reply)
{
    uint32_t before = LOAD_NO_SLOT, slot_index = connection->first_sent;
    while (slot_index != LOAD_NO_SLOT && !is_request_of(load, slot_index, reply)) {
        before = slot_index;
        slot_index = load->slots[slot_index].next_sent;
    }
    if (slot_index == LOAD_NO_SLOT)
        return LOAD_NO_SLOT;
    uint32_t next = load->slots[slot_index].next_sent;
    if (before == LOAD_NO_SLOT)
        connection->first_sent = next;
    else
        load->slots[before].next_sent = next;
    if (next == LOAD_NO_SLOT)
        connection->last_sent = before;
    return slot_index;
}

/* A frame as our protocol's answer to the slot that it is for.  0 or FBK_E_PROTOCOL. */
static int32_t
apache_answer(struct fbk_load *load, struct load_connection *connection, const uint8_t *frame,
              uint32_t frame_bytes, struct fbk_response *response)
{
    struct fbk_apache_reply reply;
    memset(response, 0, sizeof *response);
    if (fbk_apache_read_reply(frame + 4, frame_bytes - 4, load->options.protocol, &reply) != 0)
        return FBK_E_PROTOCOL;
    uint32_t slot_index = take_request(load, connection, &reply);
    if (slot_index == LOAD_NO_SLOT)
        return FBK_E_PROTOCOL;
    response->request_id = slot_index;
    response->status = reply.status; /* Apache's number; OK is 0 in both */
    /* A batch's entries lie between their sizes. */
    response->entry =
        reply.echo.operation == FBK_APACHE_READ_BATCH ? reply.entry_sizes : reply.entry;
    response->entry_bytes = reply.entry_bytes;
    response->entry_count = reply.entry_count;
    response->entry_sizes = reply.entry_sizes;
    return 0;
}

/* ------------ requests */

/* Adds of a ledger go out in order on one connection; their request id is a slot of the window, so
 * that an answer finds its start time without a search. */

static void
load_encode_add(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
                uint64_t started_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    const uint32_t connection_index = (uint32_t)(connection - load->connections);
    const uint32_t ledger_index =
        connection_index + connection->next_ledger * load->options.connection_count;
    struct load_ledger *ledger = &load->ledgers[ledger_index];
    if (ledger_index + load->options.connection_count < load->options.ledger_count)
        connection->next_ledger++;
    else
        connection->next_ledger = 0;
    slot->started_ns = started_ns;
    slot->entry_id = ledger->next_entry_id++;
    slot->ledger_index = ledger_index;
    slot->tail = false;
    ledger->length_bytes += load->options.size_bytes;

    const uint32_t digest_bytes = (uint32_t)fbk_digest_bytes(load->options.digest_type);
    const uint32_t entry_bytes = FBK_ENTRY_HEADER_BYTES + digest_bytes + load->options.size_bytes;
    uint8_t *entry = load->entry;
    if (load->options.protocol == 0)
        connection->send_used += fbk_wire_put_add(
            connection->send + connection->send_used, slot_index, ledger->ledger_id, slot->entry_id,
            0, load->options.digest_type, load->options.master_key, NULL, entry_bytes, &entry);
    fbk_store_be64(entry, (uint64_t)ledger->ledger_id);
    fbk_store_be64(entry + 8, (uint64_t)slot->entry_id);
    fbk_store_be64(entry + 16, (uint64_t)ledger->last_add_confirmed);
    fbk_store_be64(entry + 24, ledger->length_bytes);
    fbk_load_data(entry + FBK_ENTRY_HEADER_BYTES + digest_bytes, load->options.size_bytes,
                  ledger->ledger_id, slot->entry_id);
    fbk_digest_put(load->options.digest_type, entry, entry_bytes);
    if (load->options.protocol != 0)
        apache_add(load, connection, slot_index, entry_bytes);
}

static void
load_encode_read(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
                 uint64_t started_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    const uint32_t connection_index = (uint32_t)(connection - load->connections);
    const uint32_t ledger_index =
        connection_index + connection->next_ledger * load->options.connection_count;
    struct load_ledger *ledger = &load->ledgers[ledger_index];
    const int64_t count = (int64_t)load->entry_counts[ledger_index];
    if (load->options.is_random)
        ledger->next_entry_id =
            (int64_t)(load_mix(load->reads_started++ * 0x9e3779b97f4a7c15ull) % (uint64_t)count);
    slot->started_ns = started_ns;
    slot->entry_id = ledger->next_entry_id;
    slot->ledger_index = ledger_index;
    int64_t last = ledger->next_entry_id + (int64_t)load->options.entries_a_read - 1;
    last = last < count ? last : count - 1;
    if (load->options.protocol != 0)
        apache_read(load, connection, slot_index, (uint32_t)(last - slot->entry_id + 1));
    else if (load->options.entries_a_read <= 1)
        connection->send_used +=
            fbk_wire_put_read_request(connection->send + connection->send_used, slot_index,
                                      ledger->ledger_id, slot->entry_id, 0, NULL);
    else
        connection->send_used += fbk_wire_put_read_batch_request(
            connection->send + connection->send_used, slot_index, ledger->ledger_id, slot->entry_id,
            last, load->options.entries_a_read, 1024u * 1024u);
    ledger->next_entry_id = last + 1;
    if (ledger->next_entry_id >= count) {
        ledger->next_entry_id = 0;
        connection->next_ledger =
            ledger_index + load->options.connection_count < load->options.ledger_count
                ? connection->next_ledger + 1
                : 0;
    }
}

static int32_t
load_send(struct load_connection *connection)
{
    while (connection->send_done < connection->send_used) {
        ssize_t sent =
            send(connection->socket, connection->send + connection->send_done,
                 connection->send_used - connection->send_done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN || errno == EINTR)
                return 0;
            return -errno;
        }
        connection->send_done += (uint32_t)sent;
    }
    connection->send_done = connection->send_used = 0;
    return 0;
}

/* Starts what the window (and in an open loop the schedule) allows, connections in turn. */
static int32_t
load_start(struct fbk_load *load, uint64_t now_ns)
{
    const uint32_t count = load->options.connection_count;
    const uint64_t gap_ns =
        load->options.rate_per_s == 0 ? 0 : 1000000000ull / load->options.rate_per_s;
    const uint32_t frame_bytes = load->reading
                                     ? LOAD_FRAME_OVERHEAD_BYTES
                                     : load->options.size_bytes + LOAD_FRAME_OVERHEAD_BYTES;
    uint32_t full = 0;
    while (load->free_slot != UINT32_MAX && now_ns < load->stop_ns && full < count) {
        uint64_t started_ns = now_ns;
        if (gap_ns != 0) {
            if (load->next_start_ns > now_ns)
                break;
            started_ns = load->next_start_ns;
            if (now_ns - started_ns > gap_ns)
                load->result.late++;
        }
        struct load_connection *connection = &load->connections[load->next_connection];
        load->next_connection = load->next_connection + 1 < count ? load->next_connection + 1 : 0;
        if (connection->send_used + frame_bytes > load->send_bytes) {
            full++;
            continue;
        }
        full = 0;
        const uint32_t slot_index = load->free_slot;
        load->free_slot = load->slots[slot_index].next_free;
        load->next_start_ns += gap_ns;
        load->in_flight++;
        if (load->reading)
            load_encode_read(load, connection, slot_index, started_ns);
        else
            load_encode_add(load, connection, slot_index, started_ns);
        if (connection->send_used - connection->send_done >= LOAD_SEND_TARGET_BYTES) {
            int32_t error = load_send(connection);
            if (error != 0)
                return error;
        }
    }
    for (uint32_t i = 0; i < count; i++) {
        if (load->connections[i].send_used == 0)
            continue;
        int32_t error = load_send(&load->connections[i]);
        if (error != 0)
            return error;
    }
    return 0;
}

/* Reads what was just acknowledged, in the slot of its add.  False: there is no room to send. */
static bool
load_read_back(struct fbk_load *load, struct load_connection *connection, uint32_t slot_index,
               uint64_t now_ns)
{
    struct load_slot *slot = &load->slots[slot_index];
    if (connection->send_used + LOAD_FRAME_OVERHEAD_BYTES > load->send_bytes)
        return false;
    slot->tail = true;
    slot->started_ns = now_ns;
    if (load->options.protocol != 0) {
        apache_read(load, connection, slot_index, 1);
        return true;
    }
    connection->send_used += fbk_wire_put_read_request(
        connection->send + connection->send_used, slot_index,
        load->ledgers[slot->ledger_index].ledger_id, slot->entry_id, 0, NULL);
    return true;
}

/* ------------ answers */

static bool
load_entry_is_right(struct fbk_load *load, const struct load_slot *slot, const uint8_t *entry,
                    uint32_t entry_bytes, int64_t entry_id)
{
    const uint32_t overhead =
        FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(load->options.digest_type);
    const int64_t ledger_id = load->ledgers[slot->ledger_index].ledger_id;
    if (entry_bytes != overhead + load->options.size_bytes ||
        fbk_load_be64(entry) != (uint64_t)ledger_id ||
        fbk_load_be64(entry + 8) != (uint64_t)entry_id ||
        fbk_digest_check(load->options.digest_type, entry, entry_bytes) != FBK_S_OK)
        return false;
    fbk_load_data(load->expected, load->options.size_bytes, ledger_id, entry_id);
    return memcmp(load->expected, entry + overhead, load->options.size_bytes) == 0;
}

static uint32_t
load_check_read(struct fbk_load *load, const struct load_slot *slot,
                const struct fbk_response *response)
{
    if (load->options.entries_a_read <= 1)
        return response->entry != NULL &&
               load_entry_is_right(load, slot, response->entry, response->entry_bytes,
                                   slot->entry_id);
    const uint8_t *entry = response->entry;
    /* Apache's: big-endian, each in front of its entry */
    const bool sizes_are_between = load->options.protocol != 0;
    for (uint32_t i = 0; i < response->entry_count; i++) {
        const uint32_t size_bytes =
            sizes_are_between ? fbk_load_be32(entry) : fbk_load_u32(response->entry_sizes + 4u * i);
        entry += sizes_are_between ? 4 : 0;
        if (!load_entry_is_right(load, slot, entry, size_bytes, slot->entry_id + i))
            return 0;
        entry += size_bytes;
    }
    return response->entry_count;
}

static void
load_end_tail_read(struct fbk_load *load, struct load_slot *slot,
                   const struct fbk_response *response, uint64_t now_ns)
{
    const uint64_t latency_ns = now_ns - slot->started_ns;
    slot->tail = false;
    if (response->status != FBK_S_OK || response->entry == NULL ||
        !load_entry_is_right(load, slot, response->entry, response->entry_bytes, slot->entry_id)) {
        load->result.errors++;
        if (load->result.first_error_status == 0)
            load->result.first_error_status = response->status;
        return;
    }
    load->result.tail_latency_buckets[fbk_load_bucket(latency_ns)]++;
    if (latency_ns > load->result.tail_latency_max_ns)
        load->result.tail_latency_max_ns = latency_ns;
}

static void
load_free_slot(struct fbk_load *load, uint32_t slot_index)
{
    load->slots[slot_index].next_free = load->free_slot;
    load->free_slot = slot_index;
    load->in_flight--;
}

static int32_t
load_answer(struct fbk_load *load, struct load_connection *connection,
            const struct fbk_response *response, uint64_t now_ns)
{
    if (response->request_id >= load->options.window || load->in_flight == 0)
        return FBK_E_PROTOCOL;
    struct load_slot *slot = &load->slots[response->request_id];
    const uint64_t latency_ns = now_ns - slot->started_ns;
    uint32_t entries = 1;
    if (slot->tail) {
        load_end_tail_read(load, slot, response, now_ns);
        load_free_slot(load, (uint32_t)response->request_id);
        return 0;
    }
    if (response->status != FBK_S_OK)
        entries = 0;
    else if (load->reading)
        entries = load_check_read(load, slot, response);
    if (entries == 0) {
        load->result.errors++;
        if (load->result.first_error_status == 0)
            load->result.first_error_status = response->status;
    } else {
        load->result.entries += entries;
        load->result.bytes += (uint64_t)entries * load->options.size_bytes;
        load->result.latency_buckets[fbk_load_bucket(latency_ns)] += 1;
        load->result.latency_sum_ns += latency_ns;
        if (latency_ns > load->result.latency_max_ns)
            load->result.latency_max_ns = latency_ns;
        struct load_ledger *ledger = &load->ledgers[slot->ledger_index];
        if (!load->reading && slot->entry_id > ledger->last_add_confirmed)
            ledger->last_add_confirmed = slot->entry_id;
    }
    const uint32_t tail_every = load->reading || entries == 0 ? 0 : load->options.tail_every;
    if (tail_every == 0 || slot->entry_id % tail_every != 0 ||
        !load_read_back(load, connection, (uint32_t)response->request_id, now_ns))
        load_free_slot(load, (uint32_t)response->request_id);
    return 0;
}

static int32_t
load_receive(struct fbk_load *load, struct load_connection *connection)
{
    ssize_t got = recv(connection->socket, connection->receive + connection->receive_used,
                       load->receive_bytes - connection->receive_used, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -errno;
    if (got == 0)
        return -ECONNRESET;
    connection->receive_used += (uint32_t)got;
    const uint64_t now_ns = fbk_load_now_ns();
    uint32_t at = 0;
    while (connection->receive_used - at >= 4) {
        const uint8_t *frame = connection->receive + at;
        const bool is_ours = load->options.protocol == 0;
        const uint32_t frame_bytes = 4 + (is_ours ? fbk_load_u32(frame) : fbk_load_be32(frame));
        if (frame_bytes < 4 || frame_bytes > load->receive_bytes)
            return FBK_E_PROTOCOL;
        if (connection->receive_used - at < frame_bytes)
            break;
        struct fbk_response response;
        int32_t error = is_ours ? fbk_wire_read_response(frame, frame_bytes, &response)
                                : apache_answer(load, connection, frame, frame_bytes, &response);
        if (error == 0)
            error = load_answer(load, connection, &response, now_ns);
        if (error != 0)
            return error;
        at += frame_bytes;
    }
    if (at != 0) {
        connection->receive_used -= at;
        memmove(connection->receive, connection->receive + at, connection->receive_used);
    }
    return 0;
}

/* ------------ the loop */

static int32_t
load_wait_for_answers(struct fbk_load *load, uint64_t now_ns, uint64_t deadline_ns)
{
    const uint32_t count = load->options.connection_count;
    for (uint32_t i = 0; i < count; i++) {
        load->polls[i].fd = load->connections[i].socket;
        load->polls[i].events =
            (short)(POLLIN | (load->connections[i].send_used != 0 ? POLLOUT : 0));
    }
    uint64_t until_ns = deadline_ns;
    if (load->options.rate_per_s != 0 && load->free_slot != UINT32_MAX && now_ns < load->stop_ns &&
        load->next_start_ns < until_ns)
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
            error = load_receive(load, &load->connections[i]);
        if (error == 0 && (load->polls[i].revents & POLLOUT))
            error = load_send(&load->connections[i]);
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
        int32_t error = load_start(load, now_ns);
        if (error == 0)
            error = load_wait_for_answers(load, now_ns,
                                          load->in_flight != 0 ? deadline_ns : load->stop_ns);
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
