/* The clients of a fuzzed worker: connections of both protocols, what they asked, and what the
 * answers to it may be. */
#pragma once

#include "check.h"
#include "worker_harness.c"
#include "worker_invariants.h"

#include "wire/wire.h"
#include "wire/client.h"

#include <sys/socket.h>

#define PEERS 4u
#define ASKED_MAX 256u
#define QUEUE_BYTES (1u << 16)
#define HELD_BYTES (1u << 19)
#define FRAME_BYTES_MAX 20000u
#define EPOCH 9u

struct asked {
    uint64_t id; /* of ours, or version 3's; version 2 has none */
    int64_t ledger_id, entry_id;
    uint8_t protocol; /* 0 ours */
    uint16_t operation;
    bool is_answered;
};

struct peer {
    int32_t near, far, slot; /* slot -1: not connected */
    bool is_apache, is_paused, has_own_buffer, is_reading;
    bool is_spoilt;   /* it sent what means nothing, or something else than was meant */
    bool is_finished; /* it was told that nothing more is taken */
    uint32_t queue_from, queue_used, held_from, held_used, got_used, asked_count;
    uint8_t queue[QUEUE_BYTES], got[HELD_BYTES], held[HELD_BYTES];
    struct asked asked[ASKED_MAX];
};

static struct fbk_worker *worker;
static struct peer peers[PEERS];
/* what it answers need not fit what was asked: nothing is known of the answers then */
static bool is_index_broken;
static const uint8_t key[20] = "key";

/* The input, and what goes on where it ends. */
static const uint8_t *script, *script_end;
static uint64_t state;

static uint32_t
draw(void)
{
    return script < script_end ? *script++ : (uint32_t)(test_random(&state) & 0xff);
}

static int64_t
draw_id(void)
{
    static const int64_t odd[] = {-1, INT64_MAX, INT64_MIN, INT64_MAX - 1};
    uint32_t which = draw();
    return which < 240 ? which % 6 : odd[which % 4];
}

static uint32_t
draw_bytes(void)
{
    uint32_t which = draw();
    return which < 230 ? which : which * 60; /* a few are sent directly, past the output */
}

static void
make_entry(uint8_t *entry, int64_t ledger_id, int64_t entry_id, uint32_t size_bytes)
{
    memset(entry, 0, size_bytes);
    fbk_store_be64(entry, (uint64_t)ledger_id);
    fbk_store_be64(entry + 8, (uint64_t)entry_id);
}

static void act(struct peer *peer, int32_t todo);

static void
leave(struct peer *peer)
{
    fbk_worker_disconnect(worker, (uint32_t)peer->slot);
    close(peer->near);
    close(peer->far);
    peer->slot = -1;
}

static void
transport_flush(struct peer *peer)
{
    if (peer->slot < 0 || peer->held_used == 0)
        return;
    while (peer->held_from < peer->held_used) {
        ssize_t sent = send(peer->near, peer->held + peer->held_from,
                            peer->held_used - peer->held_from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        peer->held_from += (uint32_t)sent;
    }
    peer->held_from = peer->held_used = 0;
    act(peer, fbk_worker_writable(worker, (uint32_t)peer->slot));
}

/* What Python answers: of Apache's, whatever was asked. */
static void
answer_cold(struct peer *peer)
{
    uint32_t size, status, bytes;
    uint8_t answer[512];
    const uint8_t *cold = fbk_worker_cold(worker, (uint32_t)peer->slot, &size);
    CHECK_EQUAL(fbk_worker_is_apache(worker, (uint32_t)peer->slot), peer->is_apache);
    if (peer->is_apache) {
        struct fbk_apache_request request;
        CHECK_EQUAL(fbk_load_be32(cold), size - 4);
        CHECK_EQUAL(fbk_apache_read_request(cold + 4, size - 4, &request, &status),
                    FBK_APACHE_GOOD);
        const struct fbk_apache_reply reply = {
            .echo = {request.protocol, request.version, request.operation, 0,
                     request.transaction_id, 0, 0},
            .total_bytes = FBK_APACHE_ABSENT,
            .free_bytes = FBK_APACHE_ABSENT,
            .plugin = (const uint8_t *)"none",
            .plugin_bytes = 4,
        };
        bytes = (uint32_t)fbk_apache_put_reply(answer, &reply);
    } else {
        struct fbk_request request;
        CHECK_EQUAL(fbk_wire_read_request(cold, size, &request), 0);
        bytes = fbk_wire_put_status(answer, request.request_id, FBK_S_NOT_READY);
    }
    act(peer, fbk_worker_send(worker, (uint32_t)peer->slot, answer, bytes, 0));
    if (peer->slot >= 0)
        act(peer, fbk_worker_continue(worker, (uint32_t)peer->slot, 1));
}

static void
act(struct peer *peer, int32_t todo)
{
    CHECK(todo >= 0);
    if (peer->slot < 0)
        return;
    if (todo & FBK_DO_ABORT) {
        leave(peer);
        return;
    }
    peer->has_own_buffer = (todo & FBK_DO_BUFFER) != 0;
    if (todo & FBK_DO_PAUSE)
        peer->is_paused = true;
    if (todo & FBK_DO_RESUME)
        peer->is_paused = false;
    if (todo & FBK_DO_WRITE) {
        uint64_t size = fbk_worker_output_bytes(worker, (uint32_t)peer->slot);
        /* 0: it was cut since, and is aborted next */
        CHECK(peer->held_used + size <= HELD_BYTES);
        CHECK_EQUAL(fbk_worker_take_output(worker, (uint32_t)peer->slot,
                                           peer->held + peer->held_used, size),
                    size);
        peer->held_used += (uint32_t)size;
    }
    if (todo & FBK_DO_FINISH)
        peer->is_finished = true;
    if (todo & FBK_DO_COLD)
        answer_cold(peer);
}

static void
push(struct peer *peer, const uint8_t *bytes, uint32_t size)
{
    if (peer->queue_used + size > QUEUE_BYTES) {
        memmove(peer->queue, peer->queue + peer->queue_from, peer->queue_used - peer->queue_from);
        peer->queue_used -= peer->queue_from;
        peer->queue_from = 0;
    }
    CHECK(peer->queue_used + size <= QUEUE_BYTES);
    memcpy(peer->queue + peer->queue_used, bytes, size);
    peer->queue_used += size;
}

static void
come(struct peer *peer, bool is_apache)
{
    static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};
    int32_t ends[2];
    int size = 4096; /* so that replies back up soon */
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    peer->near = ends[0];
    peer->far = ends[1];
    peer->is_apache = is_apache;
    peer->is_paused = peer->has_own_buffer = peer->is_spoilt = peer->is_finished = false;
    peer->is_reading = true;
    peer->queue_from = peer->queue_used = peer->held_from = peer->held_used = peer->got_used =
        peer->asked_count = 0;
    peer->slot = fbk_worker_connect(worker, peer->near);
    /* those gone are kept until the index can be told to forget their polls */
    if (peer->slot < 0) {
        CHECK_EQUAL(peer->slot, FBK_E_FULL);
        close(peer->near);
        close(peer->far);
        return;
    }
    if (is_apache)
        return;
    uint8_t hello[256];
    push(peer, magic, sizeof magic);
    push(peer, hello, fbk_wire_put_hello(hello, 0, 1, 1, (const uint8_t *)"x", 1));
}

/* At most `most` bytes of what it has to send arrive; those that were on their way, too, when it
 * was paused. */
static void
feed(struct peer *peer, uint32_t most, bool is_on_its_way)
{
    uint32_t waiting = peer->queue_used - peer->queue_from, room;
    if (peer->slot < 0 || (peer->is_paused && !is_on_its_way) || waiting == 0)
        return;
    uint8_t *buffer = peer->has_own_buffer ? fbk_worker_buffer(worker, (uint32_t)peer->slot, &room)
                                           : fbk_worker_receive_buffer(worker, &room);
    CHECK(room > 0);
    room = room < waiting ? room : waiting;
    room = room < most ? room : most;
    memcpy(buffer, peer->queue + peer->queue_from, room);
    peer->queue_from += room;
    act(peer, fbk_worker_receive(worker, (uint32_t)peer->slot, room));
}

static void
collect(void)
{
    int32_t result = fbk_worker_collect(worker);
    CHECK(result >= 0);
    struct fbk_worker_event events[2 * PEERS];
    uint32_t count = (uint32_t)(result % FBK_WORKER_MORE);
    CHECK(count <= 2 * PEERS);
    memcpy(events, fbk_worker_events(worker), count * sizeof *events);
    for (uint32_t e = 0; e < count; e++)
        for (uint32_t i = 0; i < PEERS; i++)
            if (peers[i].slot == (int32_t)events[e].connection)
                act(&peers[i], (int32_t)events[e].todo);
}

static void
note_asked(struct peer *peer, struct asked asked)
{
    CHECK(peer->asked_count < ASKED_MAX);
    peer->asked[peer->asked_count++] = asked;
}

/* Every answer is one to a request of that connection, its first. */
static void
note_answered_by(struct peer *peer, const struct asked *answered)
{
    if (peer->is_spoilt || is_index_broken)
        return;
    for (uint32_t n = 0; n < peer->asked_count; n++) {
        struct asked *asked = &peer->asked[n];
        if (asked->is_answered || asked->protocol != answered->protocol ||
            asked->operation != answered->operation)
            continue;
        if (answered->protocol == 2 && answered->operation == FBK_APACHE_AUTH) {
            asked->is_answered = true;
            return;
        }
        bool is_it =
            answered->protocol == 2 && answered->operation != FBK_APACHE_READ_BATCH
                ? asked->ledger_id == answered->ledger_id && asked->entry_id == answered->entry_id
                : asked->id == answered->id;
        if (!is_it)
            continue;
        asked->is_answered = true;
        return;
    }
    CHECK(!"an answer is one to a request");
}

static void
hear_frame(struct peer *peer, const uint8_t *body, uint32_t bytes)
{
    if (!peer->is_apache) {
        struct fbk_response response;
        CHECK_EQUAL(fbk_wire_read_response(body - 4, bytes + 4, &response), 0);
        if (response.request_id != 0) /* hello, and the last word to a frame that is none */
            note_answered_by(peer, &(struct asked){.id = response.request_id});
        return;
    }
    struct fbk_apache_reply reply;
    uint32_t protocol = body[0] == 0x0a ? 3 : 2;
    if (protocol == 2 && body[0] == 0)
        return; /* version 0 has no such header */
    CHECK_EQUAL(fbk_apache_read_reply(body, bytes, protocol, &reply), 0);
    note_answered_by(peer, &(struct asked){.protocol = (uint8_t)protocol,
                                           .operation = reply.echo.operation,
                                           .id = reply.echo.transaction_id,
                                           .ledger_id = reply.echo.ledger_id,
                                           .entry_id = reply.echo.entry_id});
}

static void
hear(struct peer *peer)
{
    if (peer->slot < 0 || !peer->is_reading)
        return;
    for (;;) {
        ssize_t got =
            recv(peer->far, peer->got + peer->got_used, HELD_BYTES - peer->got_used, MSG_DONTWAIT);
        if (got <= 0)
            return;
        peer->got_used += (uint32_t)got;
        uint32_t at = 0;
        while (peer->got_used - at >= 4) {
            uint32_t bytes =
                peer->is_apache ? fbk_load_be32(peer->got + at) : fbk_load_u32(peer->got + at);
            CHECK(bytes >= 4 && bytes <= FRAME_BYTES_MAX);
            if (peer->got_used - at - 4 < bytes)
                break;
            hear_frame(peer, peer->got + at + 4, bytes);
            at += 4 + bytes;
        }
        memmove(peer->got, peer->got + at, peer->got_used - at);
        peer->got_used -= at;
    }
}

/* Whether all that it asked is answered, as far as it may expect that. */
static bool
is_done(const struct peer *peer)
{
    if (peer->slot < 0 || peer->is_spoilt || peer->is_finished || is_index_broken)
        return true;
    for (uint32_t n = 0; n < peer->asked_count; n++)
        if (!peer->asked[n].is_answered)
            return false;
    return peer->queue_from == peer->queue_used;
}
