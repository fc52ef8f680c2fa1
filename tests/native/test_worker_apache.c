/* A worker and clients that speak Apache's protocols, both versions in one connection, under random
 * traffic; and what it knows of digests.  Every request of a client that stays is answered once and
 * truly; an entry is refused only when it does not have the digest that its ledger was said to
 * have, and goes on with that digest's type only when it has it; what is not known is asked for, no
 * ledger twice within five seconds.
 *
 * PROGRAM [SEED [STEPS]] */
#include "apache_clients.h"

static struct worker_harness *pair;
static uint32_t unverified;
static bool may_forget; /* there are more ledgers than the table has places for */
static uint64_t granted;
static uint8_t frame[1 << 16], payload[1 << 16];

static uint32_t *
now_s(void)
{
    return &worker->digests.now_s;
}

/* ------------ digests, as the supervisor sees them */

static void
note_wanted(void)
{
    static int64_t ids[FBK_DIGESTS_WANTED_MAX];
    int32_t count = fbk_worker_digests_wanted(worker, ids, FBK_DIGESTS_WANTED_MAX);
    for (int32_t i = 0; i < count; i++) {
        CHECK(ids[i] >= 0 && ids[i] < (int64_t)ledger_count);
        struct ledger *ledger = &ledgers[ids[i]];
        if (!may_forget && ledger->is_asked)
            CHECK(*now_s() - ledger->asked_s >= FBK_DIGESTS_REPEAT_S);
        ledger->is_asked = true;
        ledger->asked_s = *now_s();
    }
    CHECK(count == 0 || was_announced || has_left);
    was_announced = false;
}

/* A placed entry went with what was known, and what was not is under way to the supervisor. */
static void
check_type(const struct request *request, const struct fbk_record *record)
{
    const struct ledger *ledger = &ledgers[request->ledger];
    uint8_t type = record->digest_type;
    if (!may_forget || type != FBK_DIGEST_NONE)
        CHECK_EQUAL(type, ledger->told_type);
    CHECK((request->fails & 1u << type) == 0);
    bool is_old = !ledger->is_told || *now_s() - ledger->told_s >= FBK_DIGESTS_OLD_S;
    if (!may_forget && is_old)
        CHECK(ledger->is_asked && *now_s() - ledger->asked_s < FBK_DIGESTS_REPEAT_S);
    unverified += type == FBK_DIGEST_NONE || type == FBK_DIGEST_HMAC;
}

/* ------------ the bookie's side */

static void
journal_step(void)
{
    struct fbk_record record;
    for (;;) {
        uint64_t position = worker_harness_position(pair);
        int32_t result = worker_harness_next(pair, &record, payload, sizeof payload);
        CHECK(result >= 0);
        if (result == 0)
            break;
        CHECK(record.entry_id < request_count);
        struct request *request = &requests[record.entry_id];
        CHECK(request->is_add && !request->is_placed && record.ledger_id == request->ledger);
        CHECK_EQUAL(fbk_crc32c(0, payload, record.payload_bytes), request->crc);
        check_type(request, &record);
        request->is_placed = true;
        request->status = below(10) == 0 ? FBK_APACHE_EFENCED : FBK_APACHE_EOK;
        if (request->status == FBK_APACHE_EFENCED)
            worker_harness_except(pair, position, FBK_S_FENCED);
    }
}

static void
index_step(void)
{
    struct fbk_record record;
    while (pair->reply_written - fbk_cursor_load(&pair->worker->reply_consumed) + 4096 <
               pair->reply_ring.size_bytes &&
           worker_harness_next_request(pair, &record, payload, sizeof payload) > 0) {
        struct request *request = &requests[record.entry_id];
        bool is_there = below(2) != 0;
        request->status = is_there ? FBK_APACHE_EOK : FBK_APACHE_ENOENTRY;
        uint32_t bytes =
            fbk_wire_put_read(frame, record.request_id, is_there ? FBK_S_OK : FBK_S_NO_ENTRY, 1, 0,
                              payload, 32 + below(1000), NULL);
        worker_harness_reply(pair, frame, bytes, record.connection_id, record.kind);
    }
    worker_harness_index(pair);
    worker_harness_grant(pair, granted += below(100000));
}

/* ------------ the run */

static void
collect(void)
{
    int32_t result;
    do {
        result = fbk_worker_collect(worker);
        CHECK(result >= 0);
        const struct fbk_worker_event *events = fbk_worker_events(worker);
        for (int32_t e = 0; e < result % FBK_WORKER_MORE; e++)
            for (uint32_t i = 0; i < CLIENTS; i++)
                if (clients[i].slot == (int32_t)events[e].connection)
                    act(&clients[i], (int32_t)events[e].todo);
    } while (result >= FBK_WORKER_MORE);
}

/* All that was decided so far is looked at, by what was known then. */
static void
settle(void)
{
    note_wanted();
    journal_step();
    for (uint32_t i = 0; i < CLIENTS; i++)
        hear(&clients[i]);
}

static void
tell(void)
{
    int64_t id = below(ledger_count);
    struct ledger *ledger = &ledgers[id];
    uint8_t type = below(20) == 0 ? (uint8_t)below(6) : ledger->digest_type; /* 5 is none */
    settle();
    fbk_worker_digests_known(worker, &id, &type, 1);
    ledger->told_type = type == 5 ? FBK_DIGEST_NONE : type;
    ledger->told_s = *now_s();
    ledger->is_told = true;
    ledger->is_asked = false;
}

static void
step(void)
{
    struct client *c = &clients[below(CLIENTS)];
    switch (below(12)) {
    case 0:
    case 1:
    case 2:
        for (uint32_t n = below(20); n > 0; n--)
            ask(c);
        break;
    case 3:
    case 4:
    case 5: feed(c); break;
    case 6: journal_step(), worker_harness_publish(pair); break;
    case 7: index_step(); break;
    case 8: tell(); break;
    case 9:
        settle();
        *now_s() += below(30) == 0 ? 400 : below(4);
        break;
    case 10: hear(c); break;
    default:
        if (below(400) == 0) {
            settle();
            go(c);
            come(c);
        }
    }
    collect();
    settle();
}

static void
finish(void)
{
    uint32_t open = 1;
    for (uint32_t round = 0; round < 100000 && open > 0; round++) {
        open = 0;
        journal_step();
        worker_harness_publish(pair);
        index_step();
        collect();
        for (uint32_t i = 0; i < CLIENTS; i++) {
            feed(&clients[i]);
            settle();
            open += clients[i].open;
        }
    }
    CHECK_EQUAL(open, 0);
}

int
main(int argc, char **argv)
{
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t steps = argc > 2 ? (uint32_t)atoi(argv[2]) : 20000;
    may_forget = below(2) != 0;
    /* so few find room in any set */
    ledger_count = may_forget ? LEDGERS_MAX : FBK_DIGEST_WAYS;
    for (uint32_t n = 0; n < ledger_count; n++)
        ledgers[n].digest_type = (uint8_t)(1 + below(4));
    pair = worker_harness_create(0, 1, 1u << 18, 1u << 14, 1u << 18);
    struct fbk_worker_options options = {
        .epoch = 1,
        .pair_count = 1,
        .pairs = {worker_harness_pair(pair)},
        .bell_fd = pair->worker_bell,
        .connections_max = CLIENTS,
        .pending_requests_max = 200,
        .frame_size_bytes_max = 40000,
        .batch_entries_max = 16,
        .receive_size_bytes = 16384,
        .partial_frames_bytes_max = 10 * 40000,
        .reply_backlog_bytes_max = QUEUE_BYTES,
        .unread_replies_bytes_max = (uint64_t)QUEUE_BYTES * CLIENTS,
        .write_timeout_ms = 1000000,
        .frame_rate_bytes_min = 1,
        .turn_frames_max = 1 + below(2) * 1000,
        .turn_size_bytes_max = 1 + below(2) * 100000,
        .apache_requests_max = 16 + below(300),
        .apache_batch_read_bytes_max = 20000,
        .apache_digests_max = 4 + below(60),
        .apache_adds_pending_max = below(2) * 20,
        .apache_adds_in_progress_max = below(2) * 15,
        .apache_reads_in_progress_max = below(2) * 3,
    };
    int32_t error;
    worker = fbk_worker_create(&options, &error);
    CHECK(pair != NULL && worker != NULL);
    for (uint32_t i = 0; i < CLIENTS; i++)
        come(&clients[i]);
    for (uint32_t n = 0; n < steps; n++)
        step();
    finish();
    CHECK_EQUAL(worker->pending, 0);
    CHECK_EQUAL(worker->apache.used, 0);
    CHECK_EQUAL(worker_harness_counter(pair, FBK_C_WORKER_ADDS_UNVERIFIED), unverified);
    if (!has_left)
        CHECK_EQUAL(worker_harness_counter(pair, FBK_C_WORKER_BAD_DIGEST), refused);
    printf("seed %s: %" PRIu32 " ledgers, %" PRIu32 " answered, %" PRIu32
           " refused by digest, %" PRIu32 " unverified of %" PRIu64 " adds\n",
           argc > 1 ? argv[1] : "1", ledger_count, answered, refused, unverified,
           worker_harness_counter(pair, FBK_C_WORKER_ADDS));
    CHECK(refused > 0 && unverified > 0);
    for (uint32_t i = 0; i < CLIENTS; i++)
        go(&clients[i]);
    fbk_worker_destroy(worker);
    worker_harness_destroy(pair);
    return 0;
}
