/* A whole worker between clients that mean no good and journals and indexes that answer in any
 * order: requests of our protocol and of Apache's two, whole, mutated and none at all, cut
 * anywhere; connections that come, rest and go.  An input is a script; where it ends a generator
 * that it seeds goes on.  What has to hold in between is in worker_invariants.h; at the end all
 * that was properly asked is answered, once. */
#include "fuzz_worker.h"

#include "wire/schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define PAIRS 2u
#define DEBTS_MAX 512u
#define STEPS 200u

struct debt {
    struct fbk_record record;
    uint32_t count_max;
};

static struct worker_harness *pairs[PAIRS];
static struct debt debts[PAIRS][DEBTS_MAX];
static uint32_t debt_counts[PAIRS];
static uint64_t granted;
static uint32_t laziness, credit; /* of this run: another bound is reached first */
static uint8_t payload[1 << 16], frame[1 << 16];

/* ------------ what is asked */

static void
ask_apache(struct peer *peer)
{
    static const uint16_t operations[] = {
        FBK_APACHE_ADD,       FBK_APACHE_ADD,  FBK_APACHE_READ,      FBK_APACHE_READ,
        FBK_APACHE_READ,      FBK_APACHE_AUTH, FBK_APACHE_WRITE_LAC, FBK_APACHE_READ_LAC,
        FBK_APACHE_INFO,      FBK_APACHE_LIST, FBK_APACHE_START_TLS, FBK_APACHE_FORCE,
        FBK_APACHE_READ_BATCH};
    struct fbk_apache_request request = {
        .protocol = (uint8_t)(2 + draw() % 2),
        .operation = operations[draw() % (sizeof operations / sizeof operations[0])],
        .flags = draw() & FBK_APACHE_ALL_FLAGS,
        .transaction_id = peer->asked_count + 1,
        .ledger_id = draw_id(),
        .entry_id = draw_id(),
        .master_key = key,
        .plugin = key,
        .plugin_bytes = 3,
    };
    if (request.operation == FBK_APACHE_READ_BATCH)
        request.protocol = 2;
    request.version = request.protocol;
    if (request.operation == FBK_APACHE_ADD) {
        request.body_bytes = 32 + draw_bytes();
        request.body = payload;
        make_entry(payload, request.ledger_id, request.entry_id, request.body_bytes);
    } else if (request.operation == FBK_APACHE_WRITE_LAC) {
        request.body_bytes = 16 + draw() % 64;
        request.body = payload;
        make_entry(payload, request.ledger_id, request.entry_id, request.body_bytes);
    } else if (request.operation == FBK_APACHE_READ) {
        request.previous_lac = draw_id();
        request.timeout_ms = draw_id();
    } else if (request.operation == FBK_APACHE_READ_BATCH) {
        request.count_max = (int32_t)draw_id();
        request.size_bytes_max = draw() % 8 ? (int64_t)draw() * 16 : draw_id();
    }
    uint32_t bytes = (uint32_t)fbk_apache_put_request(frame, sizeof frame, &request);
    if (bytes == 0)
        return;
    note_asked(peer, (struct asked){.protocol = request.protocol,
                                    .operation = request.operation,
                                    .id = request.transaction_id,
                                    .ledger_id = request.ledger_id,
                                    .entry_id = request.entry_id});
    push(peer, frame, bytes);
}

static void
ask_own(struct peer *peer)
{
    uint64_t id = peer->asked_count + 1;
    int64_t ledger_id = draw_id(), entry_id = draw_id();
    uint32_t bytes, size_bytes;
    switch (draw() % 8) {
    case 0:
        bytes = fbk_wire_put_read_request(frame, id, ledger_id, entry_id, draw() & 1, key);
        break;
    case 1:
        bytes = fbk_wire_put_read_batch_request(frame, id, ledger_id, entry_id, draw_id(), draw(),
                                                draw());
        break;
    case 2:
        bytes = fbk_wire_put_read_lac_request(frame, id, ledger_id, entry_id, draw(), draw() & 1);
        break;
    case 3: bytes = fbk_wire_put_list_request(frame, id, ledger_id, entry_id, draw()); break;
    case 4: bytes = fbk_wire_put_info(frame, id); break;
    case 5: bytes = fbk_wire_put_force(frame, id, ledger_id); break;
    default:
        size_bytes = 32 + draw_bytes();
        make_entry(payload, ledger_id, entry_id, size_bytes);
        bytes = fbk_wire_put_add(frame, id, ledger_id, entry_id, draw() & 1, FBK_DIGEST_NONE, key,
                                 payload, size_bytes, NULL);
    }
    note_asked(peer, (struct asked){.id = id});
    push(peer, frame, bytes);
}

static void
ask(struct peer *peer)
{
    if (peer->slot < 0 || peer->asked_count == ASKED_MAX ||
        peer->queue_used - peer->queue_from > QUEUE_BYTES / 2)
        return;
    if (peer->is_apache)
        ask_apache(peer);
    else
        ask_own(peer);
}

static void
spoil(struct peer *peer)
{
    uint32_t waiting = peer->queue_used - peer->queue_from, how = draw();
    uint8_t noise[16];
    if (peer->slot < 0 || waiting > QUEUE_BYTES / 2)
        return;
    peer->is_spoilt = true;
    if (how % 4 == 0 || waiting == 0) {
        for (uint32_t n = 0; n < sizeof noise; n++)
            noise[n] = (uint8_t)draw();
        push(peer, noise, how % sizeof noise);
    } else if (how % 4 == 1) {
        peer->queue_used -= 1 + how % (waiting < 40 ? waiting : 40);
    } else {
        peer->queue[peer->queue_used - 1 - draw() % waiting] ^= (uint8_t)(1u << how % 8);
    }
}

/* ------------ the bookie's side */

static void
owe(uint32_t p, const struct fbk_record *record)
{
    struct fbk_read_batch_args args = {.entry_count_max = 1};
    if (record->kind == FBK_KIND_READ_BATCH)
        memcpy(&args, payload, sizeof args);
    CHECK(debt_counts[p] < DEBTS_MAX);
    debts[p][debt_counts[p]++] = (struct debt){*record, args.entry_count_max};
}

static void
journal_step(uint32_t p)
{
    struct worker_harness *s = pairs[p];
    struct fbk_record record;
    if (draw() % 16 < laziness)
        return;
    bool is_late =
        s->order - fbk_cursor_load(&s->worker->descriptors_consumed) > FBK_DESCRIPTOR_COUNT / 2 ||
        s->exceptions - fbk_cursor_load(&s->worker->exceptions_consumed) > FBK_EXCEPTION_COUNT / 2;
    for (uint32_t most = draw() % 16; most > 0 && !is_late && debt_counts[p] < DEBTS_MAX; most--) {
        uint64_t position = worker_harness_position(s);
        int32_t result = worker_harness_next(s, &record, payload, sizeof payload);
        CHECK(result >= 0);
        if (result == 0)
            break;
        uint32_t fate = draw() % 8;
        if (fate == 0)
            worker_harness_except(s, position, FBK_S_FENCED);
        else if (fate == 1)
            worker_harness_except(s, position, FBK_V_CHECK);
        if (fate == 1 || (record.kind == FBK_KIND_FENCE && fate != 0))
            owe(p, &record);
    }
    if (!is_late)
        worker_harness_publish(s);
    if (draw() & 1)
        worker_harness_index(s);
    worker_harness_grant(s, granted += credit * (uint64_t)draw());
}

static uint32_t
put_entries(const struct debt *debt, uint64_t id, uint32_t status)
{
    uint32_t count = status == FBK_S_OK ? draw() % 4 : 0, one = 32 + draw();
    uint8_t *sizes, *entries;
    count = count < debt->count_max ? count : debt->count_max;
    int64_t first = debt->record.entry_id;
    uint32_t bytes = fbk_wire_put_read_batch(frame, id, status, 0,
                                             (int64_t)((uint64_t)first + count + draw() % 2), count,
                                             count * one, &sizes, &entries);
    for (uint32_t n = 0; n < count; n++) {
        fbk_store_u32(sizes + 4ull * n, one);
        make_entry(entries + (uint64_t)one * n, debt->record.ledger_id,
                   (int64_t)((uint64_t)first + n), one);
    }
    return bytes;
}

static uint32_t
put_answer(const struct debt *debt, uint32_t kind)
{
    static const uint32_t statuses[] = {FBK_S_OK,       FBK_S_OK,        FBK_S_OK,
                                        FBK_S_NO_ENTRY, FBK_S_NO_LEDGER, FBK_S_CANNOT_TELL};
    uint64_t id = debt->record.request_id;
    uint32_t status = statuses[draw() % 6], entry_bytes = 32 + draw_bytes();
    int64_t entry_id = debt->record.entry_id,
            ranges[8] = {1, 1 + draw(), 300, 300, 302, 302, 304, 500};
    make_entry(payload, debt->record.ledger_id, entry_id, entry_bytes);
    if (status != FBK_S_OK && (draw() & 1))
        return fbk_wire_put_status(frame, id, status);
    switch (kind) {
    case FBK_KIND_READ:
    case FBK_KIND_FENCE:
        return fbk_wire_put_read(frame, id, status, entry_id, draw_id(), payload, entry_bytes,
                                 NULL);
    case FBK_KIND_READ_BATCH: return put_entries(debt, id, status);
    case FBK_KIND_READ_LAC:
        return fbk_wire_put_read_lac(frame, id, status, draw_id(), false, payload, draw() % 21,
                                     entry_id, payload, (draw() & 1) * entry_bytes, NULL);
    case FBK_KIND_LIST: /* pages lead on for a while */
        return fbk_wire_put_list(frame, id, status,
                                 draw() % 4 && entry_id < INT64_MAX - 256 ? entry_id + 1 + draw()
                                                                          : -1,
                                 ranges, draw() % 5);
    default: return fbk_wire_put_status(frame, id, status);
    }
}

static void
index_step(uint32_t p)
{
    static const uint32_t kinds[] = {FBK_KIND_READ, FBK_KIND_READ_BATCH, FBK_KIND_READ_LAC,
                                     FBK_KIND_LIST, FBK_KIND_FORCE};
    struct worker_harness *s = pairs[p];
    struct fbk_record record;
    if (draw() % 16 < laziness)
        return;
    for (uint32_t most = draw() % 8; most > 0 && debt_counts[p] < DEBTS_MAX; most--) {
        int32_t result = worker_harness_next_request(s, &record, payload, sizeof payload);
        CHECK(result >= 0);
        if (result == 0)
            break;
        if (record.kind != FBK_KIND_CANCEL)
            owe(p, &record);
    }
    for (uint32_t most = draw() % 8; most > 0 && debt_counts[p] > 0; most--) {
        /* Room in the reply ring has to be there before an answer is made. */
        if (s->reply_written - fbk_cursor_load(&s->worker->reply_consumed) + FRAME_BYTES_MAX >
            s->reply_ring.size_bytes)
            break;
        uint32_t pick = draw() % debt_counts[p];
        struct debt debt = debts[p][pick];
        bool is_wrong = is_index_broken && draw() % 4 == 0;
        if (!is_wrong || (draw() & 1)) /* else it will be answered again */
            debts[p][pick] = debts[p][--debt_counts[p]];
        uint32_t bytes = put_answer(&debt, is_wrong ? kinds[draw() % 5] : debt.record.kind);
        worker_harness_reply(s, frame, bytes, debt.record.connection_id, debt.record.kind);
    }
}

/* ------------ all of it */

/* What metadata says of ledgers, asked for or not. */
static void
learn_digests(void)
{
    static const uint8_t types[] = {FBK_DIGEST_NONE, FBK_DIGEST_DUMMY, FBK_DIGEST_CRC32,
                                    FBK_DIGEST_HMAC};
    int64_t ledger_ids[4] = {draw_id(), draw_id(), draw_id(), draw_id()};
    uint8_t found[4];
    CHECK(fbk_worker_digests_wanted(worker, ledger_ids, draw() % 4) < 4);
    for (uint32_t n = 0; n < 4; n++)
        found[n] = types[draw() % sizeof types];
    fbk_worker_digests_known(worker, ledger_ids, found, draw() % 4);
}

static void
step(void)
{
    uint32_t what = draw();
    struct peer *peer = &peers[what % PEERS];
    switch (what / PEERS % 16) {
    case 0:
    case 1:
    case 2:
        for (uint32_t n = draw() % 32; n > 0; n--)
            ask(peer);
        break;
    case 3: feed(peer, 1 + draw(), draw() % 4 == 0); break;
    case 4:
    case 5: feed(peer, UINT32_MAX, draw() % 8 == 0); break;
    case 6:
    case 7: journal_step(draw() % PAIRS); break;
    case 8:
    case 9: index_step(draw() % PAIRS); break;
    case 10:
    case 11: collect(); break;
    case 12: hear(peer); break;
    case 13: transport_flush(peer); break;
    case 14:
        if (draw() % 4 == 0)
            spoil(peer);
        else if (draw() % 8 == 0)
            peer->is_reading = !peer->is_reading;
        else
            learn_digests();
        break;
    default:
        if (peer->slot < 0)
            come(peer, draw() % 4 != 0);
        else if (draw() % 8 == 0)
            leave(peer);
    }
    check_worker(worker);
}

static void
finish(void)
{
    laziness = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        bool all = true;
        for (uint32_t p = 0; p < PAIRS; p++) {
            granted += 1u << 20;
            journal_step(p);
            worker_harness_index(pairs[p]);
            index_step(p);
        }
        collect();
        for (uint32_t i = 0; i < PEERS; i++) {
            peers[i].is_reading = true;
            hear(&peers[i]);
            transport_flush(&peers[i]);
            feed(&peers[i], UINT32_MAX, false);
            all = all && is_done(&peers[i]);
        }
        check_worker(worker);
        if (all)
            return;
    }
    CHECK(!"all that was asked is answered in the end");
}

static struct fbk_worker *
make_worker(void)
{
    struct fbk_worker_options options = {
        .epoch = EPOCH,
        .pair_count = PAIRS,
        .connections_max = 2 * PEERS,
        .pending_requests_max = 1 + draw() % 128,
        .frame_size_bytes_max = FRAME_BYTES_MAX,
        .batch_entries_max = 20,
        .receive_size_bytes = 4096,
        .partial_frames_bytes_max = 2 * FRAME_BYTES_MAX,
        .reply_backlog_bytes_max = HELD_BYTES / 4,
        .unread_replies_bytes_max = HELD_BYTES / 4 * (1 + draw() % 4),
        .write_timeout_ms = 1000000,
        .frame_rate_bytes_min = 1 + draw() % 64,
        .turn_frames_max = 1 + draw(),
        .turn_size_bytes_max = 1 + 64 * draw(),
        .hello_timeout_ms = 1000000,
        .frame_timeout_ms = 1000000,
        .apache_requests_max = 2 + draw(),
        .apache_batch_read_bytes_max = 4096,
        .apache_digests_max = 4,
        .apache_adds_pending_max = draw() % 4 ? 0 : draw() % 32,
        .apache_reads_pending_max = draw() % 4 ? 0 : draw() % 32,
        .apache_adds_in_progress_max = draw() % 4 ? 0 : draw() % 32,
        .apache_reads_in_progress_max = draw() % 4 ? 0 : draw() % 32,
    };
    is_index_broken = draw() % 4 == 0;
    laziness = draw() % 16;
    credit = draw() % 64;
    for (uint32_t p = 0; p < PAIRS; p++) {
        pairs[p] = worker_harness_create(p, EPOCH, 1u << 16, 4096, 1u << 16);
        options.pairs[p] = worker_harness_pair(pairs[p]);
        worker_harness_grant(pairs[p], granted = 64ull * draw());
        debt_counts[p] = 0;
    }
    options.bell_fd = pairs[0]->worker_bell;
    for (uint32_t shard = 0; shard < FBK_SHARD_COUNT; shard++)
        options.pair_of_shard[shard] = (uint8_t)(shard % PAIRS);
    int32_t error;
    struct fbk_worker *made = fbk_worker_create(&options, &error);
    CHECK(made != NULL);
    return made;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    script = data;
    script_end = data + size;
    state = size;
    for (size_t i = 0; i < size; i++)
        state = state * 0x100000001b3ull ^ data[i];
    worker = make_worker();
    for (uint32_t i = 0; i < PEERS; i++)
        come(&peers[i], i != 0);
    collect();
    for (uint32_t n = 0; n < STEPS; n++)
        step();
    finish();
    for (uint32_t i = 0; i < PEERS; i++)
        if (peers[i].slot >= 0)
            leave(&peers[i]);
    check_worker(worker);
    CHECK(worker->pending == 0 && worker->polls == 0 && worker->input_bytes == 0);
    CHECK(worker->apache.used == 0 && worker->apache.list_ranges == 0);
    fbk_worker_destroy(worker);
    for (uint32_t p = 0; p < PAIRS; p++)
        worker_harness_destroy(pairs[p]);
    return 0;
}
