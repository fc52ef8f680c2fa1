/* A worker under random traffic: several clients send random requests in random pieces, journal and index (the stand-in)
 * move at random, credit and rings run out, clients stop reading, come and go.  Every request of a client that stays is
 * answered exactly once, with what was decided for it; accepted adds in their order; and nothing is left at the end.
 *
 * PROGRAM [SEED [STEPS]] */
#include "check.h"
#include "stand_in.c"

#include "fbk_digest.h"
#include "fbk_wire.h"
#include "fbk_wire_client.h"
#include "fbk_worker.h"

#include <fcntl.h>
#include <sys/socket.h>

#define CLIENTS 6u
#define REQUESTS_MAX 4096u
#define QUEUE_BYTES (1u << 20)
#define FRAME_BYTES_MAX 40000u
#define UNDECIDED 0xffffu
#define EPOCH 9u

struct client {
    int32_t near, far;   /* the worker's end, the client's */
    int32_t slot;        /* -1 = not connected */
    bool is_paused, has_own_buffer, is_reading;
    uint8_t *queue;      /* to be sent */
    uint32_t queue_from, queue_used;
    uint8_t *held;       /* what the transport holds */
    uint32_t held_from, held_used;
    uint8_t *got;
    uint32_t got_used;
    uint64_t id_base;    /* request ids: id_base + n */
    uint32_t sent, answered;
    uint16_t expected[REQUESTS_MAX];
    uint8_t answers[REQUESTS_MAX];
    bool ordered[REQUESTS_MAX]; /* an add whose ack comes from the batch itself */
    int64_t last_ordered;
};

static struct stand_in *s;
static struct fbk_worker *worker;
static struct client clients[CLIENTS];
static uint64_t state, next_base = 1u << 20, granted;
static uint32_t index_laziness, journal_laziness, credit_step, reads_percent; /* of this run: another bound is reached first */
static uint8_t payload[1 << 17], frame[1 << 17];
static const uint8_t key[20] = "key";
static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};

/* What the index still owes: answers to checks, fences and requests. */
struct debt {
    uint64_t connection_id, request_id;
    uint32_t kind;
};
static struct debt debts[1 << 16];
static uint32_t debt_count;

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

/* ------------------------------------------------------------------ a client's side */

static void act(struct client *c, int32_t todo);

static void
transport_write(struct client *c)
{
    uint64_t size = fbk_worker_output_bytes(worker, (uint32_t)c->slot);
    CHECK(size > 0 && c->held_used + size <= QUEUE_BYTES);
    CHECK_EQUAL(fbk_worker_take_output(worker, (uint32_t)c->slot, c->held + c->held_used, QUEUE_BYTES), size);
    c->held_used += (uint32_t)size;
}

static void
transport_flush(struct client *c)
{
    while (c->held_from < c->held_used) {
        ssize_t sent = send(c->near, c->held + c->held_from, c->held_used - c->held_from, MSG_DONTWAIT | MSG_NOSIGNAL);
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
    c->last_ordered = -1;
    c->is_paused = c->has_own_buffer = false;
    c->is_reading = true;
    c->id_base = next_base;
    next_base += REQUESTS_MAX;
    memset(c->answers, 0, sizeof c->answers);
    c->slot = fbk_worker_connect(worker, c->near);
    if (c->slot < 0) { /* slots of those gone are kept until the index can be told to forget their polls */
        CHECK_EQUAL(c->slot, FBK_E_FULL);
        CHECK(worker->lines[FBK_LINE_CANCEL].count > 0);
        close(c->near);
        close(c->far);
        c->slot = -1;
        return;
    }
    push(c, magic, sizeof magic);
    uint8_t hello[256];
    push(c, hello, fbk_wire_put_hello(hello, 0, 1, 1, (const uint8_t *)"x", 1));
}

static void
go(struct client *c)
{
    fbk_worker_disconnect(worker, (uint32_t)c->slot);
    close(c->near);
    close(c->far);
    c->slot = -1;
    c->sent = 0;
}

static uint32_t
make_entry(uint8_t *entry, uint32_t type, int64_t entry_id, uint32_t data_bytes)
{
    static uint8_t data[FRAME_BYTES_MAX];
    fbk_store_be64(entry, 5);
    fbk_store_be64(entry + 8, (uint64_t)entry_id);
    fbk_store_be64(entry + 16, 0);
    fbk_store_be64(entry + 24, 0);
    return (uint32_t)fbk_digest_put_data(type, entry, data, data_bytes);
}

/* A random request; what it has to be answered with, where the worker itself decides. */
static void
ask(struct client *c)
{
    static const uint32_t types[] = {FBK_DIGEST_CRC32C, FBK_DIGEST_CRC32, FBK_DIGEST_DUMMY, FBK_DIGEST_NONE};
    if (c->sent == REQUESTS_MAX || c->queue_used - c->queue_from > QUEUE_BYTES / 2)
        return;
    uint32_t number = c->sent++;
    uint64_t id = c->id_base + number;
    uint16_t *expected = &c->expected[number];
    *expected = UNDECIDED;
    c->ordered[number] = false;
    uint32_t type = types[below(4)], size, bytes;
    uint8_t *sizes, *entries;
    static uint8_t entry[FRAME_BYTES_MAX];
    switch (below(100) < reads_percent ? 0 : below(16)) {
    case 0: bytes = fbk_wire_put_read_request(frame, id, 5, (int64_t)below(100) - 1, 0, NULL); break;
    case 1: bytes = fbk_wire_put_read_request(frame, id, 5, -1, FBK_FLAG_FENCE, key); break;
    case 2: bytes = fbk_wire_put_force(frame, id, 5); break;
    case 3: bytes = fbk_wire_put_read_lac_request(frame, id, 5, 0, 1000, 0); break;
    case 4: bytes = fbk_wire_put_info(frame, id); break;
    case 5:
        bytes = fbk_wire_put_ping(frame, id);
        *expected = FBK_S_OK;
        break;
    case 6:
        bytes = fbk_wire_put_read_batch_request(frame, id, 5, 9, 3, 1, 1); /* last before first */
        *expected = FBK_S_BAD_REQUEST;
        break;
    case 7:
        size = make_entry(entry, FBK_DIGEST_CRC32C, 9, 100);
        entry[50] ^= 1;
        bytes = fbk_wire_put_add(frame, id, 5, 9, 0, FBK_DIGEST_CRC32C, key, entry, size, NULL);
        *expected = FBK_S_BAD_DIGEST;
        break;
    case 8:
    case 9: {
        uint32_t count = 1 + below(20), data = below(1000), at = 0;
        uint32_t one = FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(type) + data;
        bytes = fbk_wire_put_add_batch(frame, id, 5, number, 0, type, key, count, count * one, &sizes, &entries);
        for (uint32_t i = 0; i < count; i++, at += one) {
            fbk_store_u32(sizes + 4ull * i, one);
            CHECK_EQUAL(make_entry(entries + at, type, (int64_t)number + i, data), one);
        }
        break;
    }
    default:
        size = make_entry(entry, type, number, below(20) == 0 ? below(FRAME_BYTES_MAX - 200) : below(2000));
        bytes = fbk_wire_put_add(frame, id, 5, number, below(8) == 0 ? FBK_FLAG_RECOVERY : 0, type, key, entry, size, NULL);
        break;
    }
    push(c, frame, bytes);
}

static void
feed(struct client *c)
{
    uint32_t waiting = c->queue_used - c->queue_from;
    if (c->slot < 0 || c->is_paused || waiting == 0)
        return;
    uint32_t room;
    uint8_t *buffer = c->has_own_buffer ? fbk_worker_buffer(worker, (uint32_t)c->slot, &room) : fbk_worker_receive_buffer(worker, &room);
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
        CHECK((int64_t)number > c->last_ordered);
        c->last_ordered = (int64_t)number;
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

/* ------------------------------------------------------------------ the bookie's side */

static void
owe(const struct fbk_record *record)
{
    CHECK(debt_count < sizeof debts / sizeof debts[0]);
    debts[debt_count++] = (struct debt){record->connection_id, record->request_id, record->kind};
}

static void
journal_step(uint32_t most)
{
    struct fbk_record record;
    int32_t result;
    if (below(journal_laziness) != 0)
        return;
    while (most-- > 0) {
        uint64_t position = stand_in_position(s);
        result = stand_in_next(s, &record, payload, sizeof payload);
        CHECK(result >= 0);
        if (result == 0)
            break;
        uint32_t fate = record.kind == FBK_KIND_FORCE ? 9 : below(10);
        struct client *c = client_of(record.request_id);
        if (fate == 0) {
            stand_in_except(s, position, FBK_S_FENCED);
            decide(record.request_id, FBK_S_FENCED);
        } else if (record.kind == FBK_KIND_FENCE || fate == 1) {
            if (record.kind != FBK_KIND_FENCE || below(2))
                stand_in_except(s, position, record.kind == FBK_KIND_FENCE ? FBK_V_ORDERED : FBK_V_CHECK);
            owe(&record);
        } else {
            decide(record.request_id, FBK_S_OK);
            if (c != NULL)
                c->ordered[record.request_id - c->id_base] = true;
        }
    }
    if (below(2))
        stand_in_publish(s);
}

static void
index_step(void)
{
    struct fbk_record record;
    if (below(index_laziness) != 0)
        return;
    for (uint32_t most = below(20); most > 0 && stand_in_next_request(s, &record, payload, sizeof payload) > 0; most--)
        if (record.kind != FBK_KIND_CANCEL)
            owe(&record);
    if (below(2))
        stand_in_index(s);
    if (below(2) && granted < (1ull << 40))
        stand_in_grant(s, granted += below(credit_step));
    /* Room in the reply ring has to be there before an answer is made. */
    while (debt_count > 0 && below(4) != 0 &&
           s->reply_written - fbk_cursor_load(&s->worker->reply_consumed) + 4096 < s->reply_ring.size_bytes) {
        uint32_t pick = below(debt_count);
        struct debt debt = debts[pick];
        debts[pick] = debts[--debt_count];
        uint32_t status = below(2) ? FBK_S_OK : FBK_S_NO_ENTRY;
        uint32_t bytes = fbk_wire_put_read(frame, debt.request_id, status, 1, 0, payload, below(2000), NULL);
        stand_in_reply(s, frame, bytes, debt.connection_id, debt.kind);
        decide(debt.request_id, status);
    }
}

static void
collect(void)
{
    int32_t result;
    do {
        result = fbk_worker_collect(worker);
        CHECK(result >= 0);
        const struct fbk_worker_event *events = fbk_worker_events(worker);
        struct fbk_worker_event copies[CLIENTS];
        uint32_t count = (uint32_t)(result % FBK_WORKER_MORE);
        CHECK(count <= CLIENTS);
        memcpy(copies, events, count * sizeof *events);
        for (uint32_t e = 0; e < count; e++)
            for (uint32_t i = 0; i < CLIENTS; i++)
                if (clients[i].slot == (int32_t)copies[e].connection)
                    act(&clients[i], (int32_t)copies[e].todo);
    } while (result >= FBK_WORKER_MORE);
}

static void
step(void)
{
    struct client *c = &clients[below(CLIENTS)];
    switch (below(12)) {
    case 0:
    case 1:
    case 2:
        for (uint32_t n = below(10); n > 0 && c->slot >= 0; n--)
            ask(c);
        break;
    case 3:
    case 4:
    case 5:
    case 6: feed(c); break;
    case 7: journal_step(below(40)); break;
    case 8: index_step(); break;
    case 9: collect(); break;
    case 10: hear(c); break;
    default:
        if (c->slot >= 0)
            transport_flush(c);
        if (below(40) == 0)
            c->is_reading = !c->is_reading;
        if (c->slot < 0)
            come(c);
        else if (below(200) == 0 || c->sent == REQUESTS_MAX)
            go(c);
    }
}

/* Everything moves until all is answered. */
static void
finish(void)
{
    stand_in_grant(s, granted = 1ull << 40);
    index_laziness = journal_laziness = 1;
    for (uint32_t round = 0; round < 100000; round++) {
        bool all = true;
        journal_step(1000);
        stand_in_publish(s);
        stand_in_index(s);
        index_step();
        collect();
        for (uint32_t i = 0; i < CLIENTS; i++) {
            struct client *c = &clients[i];
            c->is_reading = true;
            hear(c);
            if (c->slot >= 0)
                transport_flush(c);
            feed(c);
            all = all && (c->slot < 0 || (c->answered == c->sent && c->queue_from == c->queue_used));
        }
        if (all && debt_count == 0)
            return;
    }
    CHECK(!"all requests are answered in the end");
}

int
main(int argc, char **argv)
{
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    s = stand_in_create(EPOCH, 1u << 17, 4096, 1u << 17);
    stand_in_grant(s, granted = 50000);
    index_laziness = 1 + below(2) * below(60);
    journal_laziness = 1 + below(2) * below(20);
    reads_percent = below(2) * 90;
    credit_step = below(2) ? 10000 : 200000;
    struct fbk_worker_options options = {
        .epoch = EPOCH,
        .segment_fd = s->worker_fd,
        .journal_segment_fd = s->journal_fd,
        .index_segment_fd = s->index_fd,
        .bell_fd = s->worker_bell,
        .journal_bell_fd = s->journal_bell,
        .index_bell_fd = s->index_bell,
        .connections_max = CLIENTS,
        .pending_requests_max = 50,
        .frame_size_bytes_max = FRAME_BYTES_MAX,
        .batch_entries_max = 20,
        .receive_size_bytes = 16384,
        .partial_frames_bytes_max = (2 + below(2) * 20) * FRAME_BYTES_MAX,
        .reply_backlog_bytes_max = QUEUE_BYTES / 2,
        .hello_timeout_ms = 1000000,
        .frame_timeout_ms = 1000000,
    };
    int32_t error;
    worker = fbk_worker_create(&options, &error);
    CHECK(worker != NULL);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        clients[i].queue = malloc(QUEUE_BYTES);
        clients[i].held = malloc(QUEUE_BYTES);
        clients[i].got = malloc(QUEUE_BYTES);
        come(&clients[i]);
    }
    collect();
    for (uint64_t n = 0; n < steps; n++)
        step();
    finish();
    CHECK_EQUAL(worker->pending, 0);
    CHECK_EQUAL(worker->polls, 0);
    CHECK_EQUAL(worker->input_bytes, 0);
    CHECK_EQUAL(worker->placed_count, 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (clients[i].slot >= 0)
            go(&clients[i]);
        free(clients[i].queue);
        free(clients[i].held);
        free(clients[i].got);
    }
    printf("seed %s: %" PRIu64 " adds, waits: credit %" PRIu64 ", ring %" PRIu64 ", requests %" PRIu64 ", pending %" PRIu64
           ", output %" PRIu64 ", memory %" PRIu64 "; stale %" PRIu64 "\n",
           argc > 1 ? argv[1] : "1", stand_in_counter(s, FBK_C_WORKER_ADDS), stand_in_counter(s, FBK_C_WORKER_WAITS_CREDIT),
           stand_in_counter(s, FBK_C_WORKER_WAITS_RING), stand_in_counter(s, FBK_C_WORKER_WAITS_REQUEST_RING),
           stand_in_counter(s, FBK_C_WORKER_WAITS_PENDING), stand_in_counter(s, FBK_C_WORKER_WAITS_OUTPUT),
           stand_in_counter(s, FBK_C_WORKER_WAITS_MEMORY), stand_in_counter(s, FBK_C_WORKER_REPLIES_STALE));
    fbk_worker_destroy(worker);
    stand_in_destroy(s);
    return 0;
}
