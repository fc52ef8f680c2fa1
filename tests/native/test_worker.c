/* A worker under random traffic: several clients send random requests in random pieces, the
 * journals and indexes of one to three pairs (harnesss) move at random, credit and rings run out,
 * clients stop reading, come and go.  Every request of a client that stays is answered exactly
 * once, with what was decided for it; accepted adds in their order; and nothing is left at the end.
 *
 * PROGRAM [SEED [STEPS]] */
#include "worker_clients.h"
#include "worker_invariants.h"

static struct worker_harness *pairs[PAIRS_MAX];
static uint32_t pair_count;
static uint64_t granted[PAIRS_MAX];
/* of this run: another bound is reached first */
static uint32_t index_laziness, journal_laziness, credit_step;

/* What the index still owes: answers to checks, fences and requests. */
struct debt {
    uint64_t connection_id, request_id;
    uint32_t kind;
};
static struct debt debts[PAIRS_MAX][1 << 16];
static uint32_t debt_counts[PAIRS_MAX];

/* ------------ the bookie's side */

static void
owe(uint32_t p, const struct fbk_record *record)
{
    CHECK(debt_counts[p] < sizeof debts[p] / sizeof debts[p][0]);
    debts[p][debt_counts[p]++] =
        (struct debt){record->connection_id, record->request_id, record->kind};
}

/* What a pair is given is its own. */
static void
check_pair(uint32_t p, const struct fbk_record *record)
{
    if (record->kind != FBK_KIND_CANCEL)
        CHECK_EQUAL(pair_of_shard[fbk_shard_of(record->ledger_id)], p);
}

static void
journal_step(uint32_t p, uint32_t most)
{
    struct worker_harness *s = pairs[p];
    struct fbk_record record;
    int32_t result;
    if (below(journal_laziness) != 0)
        return;
    while (most-- > 0) {
        uint64_t position = worker_harness_position(s);
        result = worker_harness_next(s, &record, payload, sizeof payload);
        CHECK(result >= 0);
        if (result == 0)
            break;
        check_pair(p, &record);
        uint32_t fate = record.kind == FBK_KIND_FORCE ? 9 : below(10);
        struct client *c = client_of(record.request_id);
        if (fate == 0) {
            worker_harness_except(s, position, FBK_S_FENCED);
            decide(record.request_id, FBK_S_FENCED);
        } else if (record.kind == FBK_KIND_FENCE || fate == 1) {
            if (record.kind != FBK_KIND_FENCE || below(2))
                worker_harness_except(s, position,
                                      record.kind == FBK_KIND_FENCE ? FBK_V_ORDERED : FBK_V_CHECK);
            owe(p, &record);
        } else {
            decide(record.request_id, FBK_S_OK);
            if (c != NULL)
                c->ordered[record.request_id - c->id_base] = true;
        }
    }
    if (below(2))
        worker_harness_publish(s);
}

static void
index_step(uint32_t p)
{
    struct worker_harness *s = pairs[p];
    struct fbk_record record;
    if (below(index_laziness) != 0)
        return;
    for (uint32_t most = below(20);
         most > 0 && worker_harness_next_request(s, &record, payload, sizeof payload) > 0; most--) {
        check_pair(p, &record);
        if (record.kind != FBK_KIND_CANCEL)
            owe(p, &record);
    }
    if (below(2))
        worker_harness_index(s);
    if (below(2) && granted[p] < (1ull << 40))
        worker_harness_grant(s, granted[p] += below(credit_step));
    /* Room in the reply ring has to be there before an answer is made. */
    while (debt_counts[p] > 0 && below(4) != 0 &&
           s->reply_written - fbk_cursor_load(&s->worker->reply_consumed) + 4096 <
               s->reply_ring.size_bytes) {
        uint32_t pick = below(debt_counts[p]);
        struct debt debt = debts[p][pick];
        debts[p][pick] = debts[p][--debt_counts[p]];
        uint32_t status = below(2) ? FBK_S_OK : FBK_S_NO_ENTRY;
        uint32_t bytes =
            fbk_wire_put_read(frame, debt.request_id, status, 1, 0, payload, below(2000), NULL);
        worker_harness_reply(s, frame, bytes, debt.connection_id, debt.kind);
        decide(debt.request_id, status);
    }
}

static void
collect(void)
{
    while (act_on(fbk_worker_collect(worker)))
        continue;
}

/* A number is another principal's from now on. */
static void
change_quota(uint32_t number, uint64_t adds_per_s, double ledgers_per_s)
{
    if (worker->quotas != NULL)
        fbk_worker_set_quota(worker, number, adds_per_s, 0, ledgers_per_s);
}

static void
step(void)
{
    struct client *c = &clients[below(CLIENTS)];
    switch (below(14)) {
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
    case 7: journal_step(below(pair_count), below(40)); break;
    case 8: index_step(below(pair_count)); break;
    case 9: collect(); break;
    case 12:
    case 13:
        if (act_on(fbk_worker_poll(worker)))
            collect();
        break;
    case 10: hear(c); break;
    default:
        if (c->slot >= 0)
            transport_flush(c);
        if (below(20) == 0)
            change_quota(1 + below(QUOTAS - 1), below(2) * 2000, below(4) * 40);
        if (below(40) == 0)
            c->is_reading = !c->is_reading;
        if (c->slot < 0)
            come(c);
        else if (below(200) == 0 || c->sent == REQUESTS_MAX)
            go(c);
    }
    check_worker(worker);
}

/* Everything moves until all is answered. */
static void
finish(void)
{
    for (uint32_t p = 0; p < pair_count; p++)
        worker_harness_grant(pairs[p], granted[p] = 1ull << 40);
    index_laziness = journal_laziness = 1;
    for (uint32_t number = 1; number < QUOTAS; number++)
        /* what waits is soon allowed: the rounds below are short */
        change_quota(number, 0, 1000);
    for (uint32_t round = 0; round < 100000; round++) {
        bool all = true;
        for (uint32_t p = 0; p < pair_count; p++) {
            journal_step(p, 1000);
            worker_harness_publish(pairs[p]);
            worker_harness_index(pairs[p]);
            index_step(p);
            all = all && debt_counts[p] == 0;
        }
        act_on(fbk_worker_poll(worker));
        collect();
        for (uint32_t i = 0; i < CLIENTS; i++) {
            struct client *c = &clients[i];
            c->is_reading = true;
            hear(c);
            if (c->slot >= 0)
                transport_flush(c);
            feed(c);
            all =
                all && (c->slot < 0 || (c->answered == c->sent && c->queue_from == c->queue_used));
        }
        if (all)
            return;
    }
    CHECK(!"all requests are answered in the end");
}

/* An answer to each client at once: a small block holds it. */
static void
answer_all(void)
{
    uint64_t count = 0;
    worker->held_peak_bytes = 0;
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (clients[i].slot < 0)
            continue;
        fbk_output_status(worker, fbk_connection_at(worker, (uint32_t)clients[i].slot), 0,
                          FBK_S_OK);
        count++;
    }
    CHECK_EQUAL(worker->held_peak_bytes, count * FBK_PAGE_BYTES);
    collect();
}

static void
make_worker(void)
{
    struct fbk_worker_options options = {
        .epoch = EPOCH,
        .pair_count = pair_count,
        .bell_fd = pairs[0]->worker_bell,
        .connections_max = CLIENTS,
        .pending_requests_max = 50,
        .spin_us = below(2) * 10,
        .frame_size_bytes_max = FRAME_BYTES_MAX,
        .batch_entries_max = 20,
        .receive_size_bytes = 16384,
        .partial_frames_bytes_max = (2 + below(2) * 20) * FRAME_BYTES_MAX,
        .reply_backlog_bytes_max = QUEUE_BYTES / 2,
        .unread_replies_bytes_max = (uint64_t)QUEUE_BYTES * CLIENTS,
        .turn_frames_max = 1 + below(2) * 1000,
        .turn_size_bytes_max = 1 + below(2) * 100000,
        .hello_timeout_ms = 1000000,
        .frame_timeout_ms = 1000000,
        .write_timeout_ms = 1000000,
        .frame_rate_bytes_min = 1,
        .has_quotas = below(2),
        .apache_requests_max = 64,
        .apache_batch_read_bytes_max = 20000,
        .apache_digests_max = 64,
    };
    memcpy(options.pair_of_shard, pair_of_shard, sizeof pair_of_shard);
    for (uint32_t p = 0; p < pair_count; p++)
        options.pairs[p] = worker_harness_pair(pairs[p]);
    int32_t error;
    worker = fbk_worker_create(&options, &error);
    CHECK(worker != NULL);
}

static void
print_counts(const char *seed)
{
    /* statistics are counted in the segment of pair 0 */
    const struct worker_harness *s = pairs[0];
    printf("seed %s: %" PRIu32 " pairs, %" PRIu64 " adds, waits: credit %" PRIu64 ", ring %" PRIu64
           ", requests %" PRIu64 ", pending %" PRIu64 ", quota %" PRIu64 ", output %" PRIu64
           ", memory %" PRIu64 "; stale %" PRIu64 "\n",
           seed, pair_count, worker_harness_counter(s, FBK_C_WORKER_ADDS),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_CREDIT),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_RING),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_REQUEST_RING),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_PENDING),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_QUOTA),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_OUTPUT),
           worker_harness_counter(s, FBK_C_WORKER_WAITS_MEMORY),
           worker_harness_counter(s, FBK_C_WORKER_REPLIES_STALE));
}

int
main(int argc, char **argv)
{
    state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint64_t steps = argc > 2 ? strtoull(argv[2], NULL, 10) : 100000;
    pair_count = 1 + below(PAIRS_MAX);
    for (uint32_t p = 0; p < pair_count; p++) {
        pairs[p] = worker_harness_create(p, EPOCH, 1u << 17, 4096, 1u << 17);
        worker_harness_grant(pairs[p], granted[p] = 50000);
    }
    for (uint32_t shard = 0; shard < FBK_SHARD_COUNT; shard++)
        pair_of_shard[shard] = (uint8_t)below(pair_count);
    index_laziness = 1 + below(2) * below(60);
    journal_laziness = 1 + below(2) * below(20);
    reads_percent = below(2) * 90;
    credit_step = below(2) ? 10000 : 200000;
    make_worker();
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
    answer_all();
    CHECK(worker->pending == 0 && worker->polls == 0);
    CHECK_EQUAL(worker->input_bytes, 0);
    for (uint32_t p = 0; p < pair_count; p++)
        CHECK_EQUAL(worker->lanes[p].placed_count, 0);
    for (uint32_t i = 0; i < CLIENTS; i++) {
        if (clients[i].slot >= 0)
            go(&clients[i]);
        free(clients[i].queue);
        free(clients[i].held);
        free(clients[i].got);
    }
    CHECK(worker->input_bytes == 0 && worker->reply_bytes == 0 && worker->trial_count == 0);
    print_counts(argc > 1 ? argv[1] : "1");
    fbk_worker_destroy(worker);
    for (uint32_t p = 0; p < pair_count; p++)
        worker_harness_destroy(pairs[p]);
    return 0;
}
