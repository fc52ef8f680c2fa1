/* Clients of a worker under test that speak Apache's protocols, both versions in one connection:
 * what they ask, and what they are answered. */
#pragma once

#include "check.h"
#include "worker_harness.c"

#include "apache/apache.h"
#include "base/digest.h"
#include "wire/client.h"
#include "worker/worker.h"

#include <sys/socket.h>

#define CLIENTS 4u
#define REQUESTS_MAX (1u << 20)
#define LEDGERS_MAX 64u
#define QUEUE_BYTES (1u << 18)
#define ENTRY_BYTES_MAX 2000u
#define UNDECIDED 0xffffu

struct request {
    uint16_t status; /* that it has to be answered with */
    uint16_t client;
    /* fails: a bit for each digest type that the entry does not have */
    uint8_t ledger, is_add, is_placed, fails;
    uint32_t crc;
};

struct client {
    int32_t near, far, slot;
    bool is_paused;
    uint8_t queue[QUEUE_BYTES], got[QUEUE_BYTES];
    uint32_t queue_from, queue_used, got_used;
    uint32_t open; /* requests without an answer */
};

struct ledger {
    uint8_t digest_type, told_type;
    bool is_told, is_asked;
    uint32_t told_s, asked_s;
};

static struct request requests[REQUESTS_MAX];
static struct client clients[CLIENTS];
static struct ledger ledgers[LEDGERS_MAX];
static uint32_t request_count, ledger_count, answered, refused;
static bool was_announced, has_left;
static struct fbk_worker *worker;
static uint64_t state;
static uint8_t entry[ENTRY_BYTES_MAX + 64];
static const uint8_t key[20] = "key";

static uint32_t
below(uint32_t limit)
{
    return (uint32_t)(test_random(&state) % limit);
}

static void
act(struct client *c, int32_t todo)
{
    CHECK(todo >= 0);
    CHECK((todo & (FBK_DO_ABORT | FBK_DO_FINISH | FBK_DO_COLD | FBK_DO_WRITE | FBK_DO_BUFFER)) ==
          0);
    was_announced |= (todo & FBK_DO_DIGESTS) != 0;
    if (todo & FBK_DO_PAUSE)
        c->is_paused = true;
    if (todo & FBK_DO_RESUME)
        c->is_paused = false;
}

static void
come(struct client *c)
{
    int32_t ends[2], size = 1 << 20;
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    c->near = ends[0];
    c->far = ends[1];
    c->queue_from = c->queue_used = c->got_used = c->open = 0;
    c->is_paused = false;
    c->slot = fbk_worker_connect(worker, c->near);
    CHECK(c->slot >= 0);
}

static void
go(struct client *c)
{
    for (uint32_t n = 0; n < request_count; n++)
        if (requests[n].client == c - clients)
            requests[n].client = CLIENTS; /* nobody waits for it */
    fbk_worker_disconnect(worker, (uint32_t)c->slot);
    close(c->near);
    close(c->far);
    has_left = true;
}

static uint32_t
make_entry(uint32_t number, uint32_t ledger)
{
    static const uint8_t data[ENTRY_BYTES_MAX] = "0123456789";
    uint8_t type = ledgers[ledger].digest_type;
    fbk_store_be64(entry, ledger);
    fbk_store_be64(entry + 8, number);
    test_fill(entry + 16, 16, number);
    uint32_t data_bytes = 24 + below(below(20) == 0 ? ENTRY_BYTES_MAX - 24 : 100);
    uint32_t bytes = (uint32_t)fbk_digest_put_data(
        type == FBK_DIGEST_HMAC ? FBK_DIGEST_DUMMY : type, entry, data, data_bytes);
    if (below(4) == 0)
        entry[16 + below(bytes - 16)] ^= (uint8_t)(1 + below(255));
    return bytes;
}

static void
ask(struct client *c)
{
    uint32_t number = request_count, ledger = below(ledger_count),
             bytes = make_entry(number, ledger);
    if (number == REQUESTS_MAX || c->queue_used + sizeof entry + 200 > QUEUE_BYTES)
        return;
    struct request *request = &requests[request_count++];
    *request = (struct request){.status = UNDECIDED,
                                .client = (uint16_t)(c - clients),
                                .ledger = (uint8_t)ledger,
                                .is_add = below(8) != 0,
                                .crc = fbk_crc32c(0, entry, bytes)};
    for (uint32_t type = FBK_DIGEST_NONE; type <= FBK_DIGEST_DUMMY; type++)
        request->fails |= (uint8_t)((fbk_digest_check(type, entry, bytes) != FBK_S_OK) << type);
    uint8_t protocol = (uint8_t)(2 + below(2));
    const struct fbk_apache_request asked = {
        .protocol = protocol,
        .version = protocol,
        .operation = request->is_add ? FBK_APACHE_ADD : FBK_APACHE_READ,
        .flags = request->is_add && below(8) == 0 ? FBK_APACHE_RECOVERY : 0,
        .transaction_id = number,
        .ledger_id = ledger,
        .entry_id = number,
        .master_key = request->is_add ? key : NULL,
        .body = request->is_add ? entry : NULL,
        .body_bytes = request->is_add ? bytes : 0,
    };
    uint64_t size =
        fbk_apache_put_request(c->queue + c->queue_used, QUEUE_BYTES - c->queue_used, &asked);
    CHECK(size > 0);
    c->queue_used += (uint32_t)size;
    c->open++;
}

static void
feed(struct client *c)
{
    uint32_t waiting = c->queue_used - c->queue_from, room;
    if (c->is_paused || waiting == 0)
        return;
    uint8_t *buffer = fbk_worker_receive_buffer(worker, &room);
    uint32_t most = waiting < room ? waiting : room, size = below(2) ? most : 1 + below(most);
    memcpy(buffer, c->queue + c->queue_from, size);
    c->queue_from += size;
    if (c->queue_from == c->queue_used)
        c->queue_from = c->queue_used = 0;
    act(c, fbk_worker_receive(worker, (uint32_t)c->slot, size));
}

static void
note_refusal(const struct request *request)
{
    CHECK(request->is_add && !request->is_placed);
    CHECK((request->fails & 1u << ledgers[request->ledger].told_type) != 0);
    refused++;
}

static void
note_answer(struct client *c, const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_reply reply;
    uint32_t protocol = fbk_apache_frame_version(body, body_bytes);
    CHECK_EQUAL(fbk_apache_read_reply(body, body_bytes, protocol, &reply), 0);
    uint64_t number = (uint64_t)reply.echo.entry_id;
    CHECK(number < request_count && (protocol == 2 || reply.echo.transaction_id == number));
    struct request *request = &requests[number];
    CHECK_EQUAL(request->client, c - clients);
    CHECK_EQUAL(reply.echo.operation, request->is_add ? FBK_APACHE_ADD : FBK_APACHE_READ);
    if (request->status == UNDECIDED && reply.status == FBK_APACHE_EBADREQ)
        note_refusal(request);
    else if (request->status == UNDECIDED)
        CHECK_EQUAL(reply.status, FBK_APACHE_ETOOMANYREQUESTS);
    else
        CHECK_EQUAL(reply.status, request->status);
    request->client = CLIENTS; /* a second answer would be nobody's */
    c->open--;
    answered++;
}

static void
hear(struct client *c)
{
    ssize_t got;
    while ((got = recv(c->far, c->got + c->got_used, QUEUE_BYTES - c->got_used, MSG_DONTWAIT)) >
           0) {
        uint32_t at = 0;
        c->got_used += (uint32_t)got;
        while (c->got_used - at >= 4 && c->got_used - at >= 4 + fbk_load_be32(c->got + at)) {
            note_answer(c, c->got + at + 4, fbk_load_be32(c->got + at));
            at += 4 + fbk_load_be32(c->got + at);
        }
        memmove(c->got, c->got + at, c->got_used - at);
        c->got_used -= at;
    }
}
