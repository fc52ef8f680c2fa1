/* The clients of a worker under test: what they ask, in which pieces they send it, and what they
 * are answered. */
#pragma once

#include "check.h"
#include "worker_harness.c"

#include "base/digest.h"
#include "wire/wire.h"
#include "wire/client.h"
#include "worker/worker.h"

#include <fcntl.h>
#include <sys/socket.h>

#define CLIENTS 6u
#define REQUESTS_MAX 4096u
#define QUEUE_BYTES (1u << 20)
#define FRAME_BYTES_MAX 40000u
#define UNDECIDED 0xffffu
#define EPOCH 9u
#define PAIRS_MAX 3u
#define LEDGERS 8u
#define QUOTAS 3u /* with none, which is number 0 */

struct client {
    int32_t near, far; /* the worker's end, the client's */
    int32_t slot;      /* -1 = not connected */
    bool is_paused, has_own_buffer, is_reading;
    /* the worker receives from its socket itself, once it watches it */
    bool is_polled, is_watched, has_ended;
    uint8_t *queue; /* to be sent */
    uint32_t queue_from, queue_used;
    uint8_t *held; /* what the transport holds */
    uint32_t held_from, held_used;
    uint8_t *got;
    uint32_t got_used;
    uint64_t id_base; /* request ids: id_base + n */
    uint32_t sent, answered;
    uint16_t expected[REQUESTS_MAX];
    uint8_t answers[REQUESTS_MAX];
    bool ordered[REQUESTS_MAX]; /* an add whose ack comes from the batch itself */
    uint8_t pair[REQUESTS_MAX];
    int64_t last_ordered[PAIRS_MAX];
};

static uint8_t pair_of_shard[FBK_SHARD_COUNT];
static struct fbk_worker *worker;
static struct client clients[CLIENTS];
static uint64_t state, next_base = 1u << 20;
static uint32_t reads_percent; /* of this run: another bound is reached first */
static uint8_t payload[1 << 17], frame[1 << 17];
static const uint8_t key[20] = "key";
static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};

static uint32_t
below(uint32_t limit)
{
    return (uint32_t)(test_random(&state) % limit);
}

static struct client *
client_of(uint64_t request_id)
{
    for (uint32_t i = 0; i < CLIENTS; i++)
        if (request_id >= clients[i].id_base && request_id - clients[i].id_base < clients[i].sent)
            return &clients[i];
    return NULL; /* of a client that has gone */
}

static void
decide(uint64_t request_id, uint32_t status)
{
    struct client *c = client_of(request_id);
    if (c == NULL)
        return;
    CHECK_EQUAL(c->expected[request_id - c->id_base], UNDECIDED);
    c->expected[request_id - c->id_base] = (uint16_t)status;
}

/* ------------ a client's side */

static void act(struct client *c, int32_t todo);

static void
transport_write(struct client *c)
{
    uint64_t size = fbk_worker_output_bytes(worker, (uint32_t)c->slot);
    CHECK(size > 0 && c->held_used + size <= QUEUE_BYTES);
    CHECK_EQUAL(
        fbk_worker_take_output(worker, (uint32_t)c->slot, c->held + c->held_used, QUEUE_BYTES),
        size);
    c->held_used += (uint32_t)size;
}

static void
transport_flush(struct client *c)
{
    while (c->held_from < c->held_used) {
        ssize_t sent = send(c->near, c->held + c->held_from, c->held_used - c->held_from,
                            MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        c->held_from += (uint32_t)sent;
    }
    if (c->held_used > 0) {
        c->held_from = c->held_used = 0;
        act(c, fbk_worker_writable(worker, (uint32_t)c->slot));
    }
}

static void
act(struct client *c, int32_t todo)
{
    CHECK(todo >= 0);
    c->has_own_buffer = (todo & FBK_DO_BUFFER) != 0;
    CHECK((todo & (FBK_DO_ABORT | FBK_DO_FINISH)) == 0);
    CHECK(!c->is_watched || (todo & (FBK_DO_PAUSE | FBK_DO_RESUME | FBK_DO_BUFFER)) == 0);
    CHECK((todo & FBK_DO_END) == 0 || c->is_watched);
    c->has_ended |= (todo & FBK_DO_END) != 0;
    if (todo & FBK_DO_PAUSE)
        c->is_paused = true;
    if (todo & FBK_DO_RESUME)
        c->is_paused = false;
    if (todo & FBK_DO_WRITE)
        transport_write(c);
    if (todo & FBK_DO_COLD) {
        uint32_t size;
        struct fbk_request request;
        const uint8_t *cold = fbk_worker_cold(worker, (uint32_t)c->slot, &size);
        CHECK_EQUAL(fbk_wire_read_request(cold, size, &request), 0);
        if (request.body_type == FBK_REQUEST_BODY_INFO)
            decide(request.request_id, FBK_S_NOT_READY);
        else
            CHECK_EQUAL(request.body_type, FBK_REQUEST_BODY_HELLO);
        uint8_t answer[64];
        uint32_t bytes = fbk_wire_put_status(answer, request.request_id, FBK_S_NOT_READY);
        act(c, fbk_worker_send(worker, (uint32_t)c->slot, answer, bytes, 0));
        act(c, fbk_worker_continue(worker, (uint32_t)c->slot, 1));
    }
}

static void
push(struct client *c, const uint8_t *bytes, uint32_t size)
{
    if (c->queue_from > 0) {
        memmove(c->queue, c->queue + c->queue_from, c->queue_used - c->queue_from);
        c->queue_used -= c->queue_from;
        c->queue_from = 0;
    }
    CHECK(c->queue_used + size <= QUEUE_BYTES);
    memcpy(c->queue + c->queue_used, bytes, size);
    c->queue_used += size;
}

static void
come(struct client *c)
{
    int32_t ends[2];
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    int size = 4096; /* so that replies back up soon */
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    c->near = ends[0];
    c->far = ends[1];
    c->queue_from = c->queue_used = c->held_from = c->held_used = c->got_used = 0;
    c->sent = c->answered = 0;
    for (uint32_t p = 0; p < PAIRS_MAX; p++)
        c->last_ordered[p] = -1;
    c->is_paused = c->has_own_buffer = c->is_watched = c->has_ended = false;
    c->is_polled = below(2);
    c->is_reading = true;
    c->id_base = next_base;
    next_base += REQUESTS_MAX;
    memset(c->answers, 0, sizeof c->answers);
    c->slot = fbk_worker_connect(worker, c->near);
    /* slots of those gone are kept until the index can be told to forget their polls */
    if (c->slot < 0) {
        CHECK_EQUAL(c->slot, FBK_E_FULL);
        CHECK(worker->lines[FBK_LINE_CANCEL].count > 0);
        close(c->near);
        close(c->far);
        c->slot = -1;
        return;
    }
    if (worker->quotas != NULL)
        fbk_worker_use_quota(worker, (uint32_t)c->slot, below(QUOTAS));
    push(c, magic, sizeof magic);
    uint8_t hello[256];
    push(c, hello, fbk_wire_put_hello(hello, 0, 1, 1, (const uint8_t *)"x", 1));
}

/* What the worker has for its connections after a collect or a poll.  True: more, without
 * waiting. */
static bool
act_on(int32_t result)
{
    CHECK(result >= 0);
    struct fbk_worker_event copies[CLIENTS];
    uint32_t count = (uint32_t)(result % FBK_WORKER_MORE);
    CHECK(count <= CLIENTS);
    memcpy(copies, fbk_worker_events(worker), count * sizeof *copies);
    for (uint32_t e = 0; e < count; e++)
        for (uint32_t i = 0; i < CLIENTS; i++)
            if (clients[i].slot == (int32_t)copies[e].connection)
                act(&clients[i], (int32_t)copies[e].todo);
    return result >= FBK_WORKER_MORE;
}

/* One that is watched and may be received from is found to have ended, behind all that it sent. */
static void
end(struct client *c)
{
    shutdown(c->far, SHUT_WR);
    while (!c->has_ended && worker->connections[c->slot].is_watched)
        act_on(fbk_worker_poll(worker));
    CHECK(c->has_ended || worker->connections[c->slot].blocked != 0);
}

static void
go(struct client *c)
{
    if (c->is_watched && below(2))
        end(c);
    fbk_worker_disconnect(worker, (uint32_t)c->slot);
    close(c->near);
    close(c->far);
    c->slot = -1;
    c->sent = 0;
}

static uint32_t
make_entry(uint8_t *entry, uint32_t type, int64_t ledger, int64_t entry_id, uint32_t data_bytes)
{
    static uint8_t data[FRAME_BYTES_MAX];
    fbk_store_be64(entry, (uint64_t)ledger);
    fbk_store_be64(entry + 8, (uint64_t)entry_id);
    fbk_store_be64(entry + 16, 0);
    fbk_store_be64(entry + 24, 0);
    return (uint32_t)fbk_digest_put_data(type, entry, data, data_bytes);
}

/* A random request; what it has to be answered with, where the worker itself decides. */
static void
ask(struct client *c)
{
    static const uint32_t types[] = {FBK_DIGEST_CRC32C, FBK_DIGEST_CRC32, FBK_DIGEST_DUMMY,
                                     FBK_DIGEST_NONE};
    if (c->sent == REQUESTS_MAX || c->queue_used - c->queue_from > QUEUE_BYTES / 2)
        return;
    uint32_t number = c->sent++;
    uint64_t id = c->id_base + number;
    uint16_t *expected = &c->expected[number];
    *expected = UNDECIDED;
    c->ordered[number] = false;
    uint32_t type = types[below(4)], size, bytes;
    int64_t ledger = 5 + below(LEDGERS);
    c->pair[number] = pair_of_shard[fbk_shard_of(ledger)];
    uint8_t *sizes, *entries;
    static uint8_t entry[FRAME_BYTES_MAX];
    switch (below(100) < reads_percent ? 0 : below(16)) {
    case 0:
        bytes = fbk_wire_put_read_request(frame, id, ledger, (int64_t)below(100) - 1, 0, NULL);
        break;
    case 1: bytes = fbk_wire_put_read_request(frame, id, ledger, -1, FBK_FLAG_FENCE, key); break;
    case 2: bytes = fbk_wire_put_force(frame, id, ledger); break;
    case 3: bytes = fbk_wire_put_read_lac_request(frame, id, ledger, 0, 1000, 0); break;
    case 4: bytes = fbk_wire_put_info(frame, id); break;
    case 5:
        bytes = fbk_wire_put_ping(frame, id);
        *expected = FBK_S_OK;
        break;
    case 6:
        /* last before first */
        bytes = fbk_wire_put_read_batch_request(frame, id, ledger, 9, 3, 1, 1);
        *expected = FBK_S_BAD_REQUEST;
        break;
    case 7:
        size = make_entry(entry, FBK_DIGEST_CRC32C, ledger, 9, 100);
        entry[50] ^= 1;
        bytes =
            fbk_wire_put_add(frame, id, ledger, 9, 0, FBK_DIGEST_CRC32C, key, entry, size, NULL);
        *expected = FBK_S_BAD_DIGEST;
        break;
    case 8:
    case 9: {
        uint32_t count = 1 + below(20), data = below(1000), at = 0;
        uint32_t one = FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(type) + data;
        bytes = fbk_wire_put_add_batch(frame, id, ledger, number, 0, type, key, 0, count,
                                       count * one, &sizes, &entries);
        for (uint32_t i = 0; i < count; i++, at += one) {
            fbk_store_u32(sizes + 4ull * i, one);
            CHECK_EQUAL(make_entry(entries + at, type, ledger, (int64_t)number + i, data), one);
        }
        break;
    }
    default:
        size = make_entry(entry, type, ledger, number,
                          below(20) == 0 ? below(FRAME_BYTES_MAX - 200) : below(2000));
        bytes = fbk_wire_put_add(frame, id, ledger, number, below(8) == 0 ? FBK_FLAG_RECOVERY : 0,
                                 type, key, entry, size, NULL);
        break;
    }
    push(c, frame, bytes);
}

static void
feed(struct client *c)
{
    uint32_t waiting = c->queue_used - c->queue_from;
    if (c->slot < 0 || (c->is_paused && !c->is_polled) || waiting == 0)
        return;
    if (c->is_polled && (c->is_watched || below(4) == 0)) {
        if (!c->is_watched)
            CHECK_EQUAL(fbk_worker_watch(worker, (uint32_t)c->slot), 0);
        c->is_watched = true;
        c->is_paused = c->has_own_buffer = false;
        ssize_t sent = send(c->far, c->queue + c->queue_from, 1 + below(waiting), MSG_DONTWAIT);
        c->queue_from += sent > 0 ? (uint32_t)sent : 0;
        return;
    }
    uint32_t room;
    uint8_t *buffer = c->has_own_buffer ? fbk_worker_buffer(worker, (uint32_t)c->slot, &room)
                                        : fbk_worker_receive_buffer(worker, &room);
    CHECK(room > 0);
    uint32_t most = waiting < room ? waiting : room;
    uint32_t size = below(3) == 0 ? most : 1 + below(below(2) ? 16 : 3000);
    size = size < most ? size : most;
    memcpy(buffer, c->queue + c->queue_from, size);
    c->queue_from += size;
    act(c, fbk_worker_receive(worker, (uint32_t)c->slot, size));
}

static void
note_answer(struct client *c, const struct fbk_response *response)
{
    if (response->request_id == 0)
        return; /* hello */
    uint64_t number = response->request_id - c->id_base;
    CHECK(number < c->sent);
    CHECK_EQUAL(++c->answers[number], 1);
    CHECK_EQUAL(response->status, c->expected[number]);
    if (c->ordered[number]) {
        CHECK((int64_t)number > c->last_ordered[c->pair[number]]);
        c->last_ordered[c->pair[number]] = (int64_t)number;
    }
    c->answered++;
}

static void
hear(struct client *c)
{
    if (c->slot < 0 || !c->is_reading)
        return;
    for (;;) {
        ssize_t got = recv(c->far, c->got + c->got_used, QUEUE_BYTES - c->got_used, MSG_DONTWAIT);
        if (got <= 0)
            break;
        c->got_used += (uint32_t)got;
        uint32_t at = 0;
        while (c->got_used - at >= 4 && c->got_used - at >= 4 + fbk_load_u32(c->got + at)) {
            struct fbk_response response;
            uint32_t bytes = 4 + fbk_load_u32(c->got + at);
            CHECK_EQUAL(fbk_wire_read_response(c->got + at, bytes, &response), 0);
            note_answer(c, &response);
            at += bytes;
        }
        memmove(c->got, c->got + at, c->got_used - at);
        c->got_used -= at;
    }
}
