/* A worker that polls for the answer of an add says that it is awake: who answers does not ring.
 * Its journal is a thread, which looks at what is shared while the worker's poll is under way; the
 * worker may poll for longer than any machine stands still. */
#include "check.h"
#include "worker_harness.c"

#include "base/digest.h"
#include "wire/client.h"
#include "wire/wire.h"

#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#define LONG_US 60000000u
#define DEADLINE_NS 50000000000ull

static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1}, key[20] = {1};
static struct worker_harness *pair;
static struct fbk_worker *worker;
static int32_t ends[2]; /* the worker's, the client's */

static void
make(uint32_t spin_us)
{
    pair = worker_harness_create(0, 1, 1u << 20, 1u << 16, 1u << 17);
    struct fbk_worker_options options = {
        .epoch = 1,
        .pair_count = 1,
        .pairs = {worker_harness_pair(pair)},
        .bell_fd = pair->worker_bell,
        .connections_max = 2,
        .pending_requests_max = 100,
        .spin_us = spin_us,
        .frame_size_bytes_max = 1u << 16,
        .batch_entries_max = 16,
        .receive_size_bytes = 1u << 16,
        .partial_frames_bytes_max = 1u << 20,
        .reply_backlog_bytes_max = 1u << 20,
        .unread_replies_bytes_max = 1u << 20,
        .write_timeout_ms = 60000,
        .frame_rate_bytes_min = 1,
        .turn_frames_max = 100,
        .turn_size_bytes_max = 1u << 20,
        .apache_requests_max = 16,
        .apache_batch_read_bytes_max = 1u << 16,
        .apache_digests_max = 64,
    };
    int32_t error;
    worker = fbk_worker_create(&options, &error);
    CHECK(worker != NULL);
    CHECK_EQUAL(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    uint32_t slot = (uint32_t)fbk_worker_connect(worker, ends[0]), room;
    uint8_t *buffer = fbk_worker_receive_buffer(worker, &room);
    memcpy(buffer, magic, sizeof magic);
    uint32_t bytes = fbk_wire_put_hello(buffer + sizeof magic, 0, 1, 1, NULL, 0);
    CHECK((fbk_worker_receive(worker, slot, sizeof magic + bytes) & FBK_DO_COLD) != 0);
    fbk_worker_continue(worker, slot, 1);
    CHECK_EQUAL(fbk_worker_watch(worker, slot), 0);
    CHECK_EQUAL(fbk_worker_collect(worker), 0);
}

static void
end(void)
{
    fbk_worker_destroy(worker);
    worker_harness_destroy(pair);
    close(ends[0]);
    close(ends[1]);
}

/* ------------ a client's side */

static void
say(const uint8_t *frame, uint32_t bytes)
{
    CHECK_EQUAL(send(ends[1], frame, bytes, 0), bytes);
}

static void
say_add(uint32_t entry_id)
{
    uint8_t entry[100], frame[500], data[10] = {7};
    fbk_store_be64(entry, 5);
    fbk_store_be64(entry + 8, entry_id);
    uint32_t bytes = (uint32_t)fbk_digest_put_data(FBK_DIGEST_CRC32C, entry, data, sizeof data);
    say(frame, fbk_wire_put_add(frame, entry_id, 5, entry_id, 0, FBK_DIGEST_CRC32C, key, entry,
                                bytes, NULL));
}

/* Bytes of answers that have come. */
static int64_t
hear(void)
{
    uint8_t answers[1000];
    return recv(ends[1], answers, sizeof answers, 0);
}

/* ------------ the journal's side */

/* Would who publishes something now ring? */
static bool
is_to_be_rung(void)
{
    uint64_t rung = 0;
    return fbk_bell_needed(&pair->worker->sleeper, &rung);
}

static bool
was_rung(void)
{
    uint64_t rings;
    return read(pair->worker_bell, &rings, sizeof rings) == (ssize_t)sizeof rings;
}

static void
take_add(void)
{
    struct fbk_record record;
    uint8_t payload[1000];
    int32_t result;
    const uint64_t began_ns = fbk_now_ns();
    while ((result = worker_harness_next(pair, &record, payload, sizeof payload)) == 0) {
        CHECK(fbk_now_ns() - began_ns < DEADLINE_NS);
        sched_yield();
    }
    CHECK_EQUAL(result, 1);
    CHECK_EQUAL(record.kind, FBK_KIND_ADD);
}

static void *
answer_who_polls(void *argument)
{
    (void)argument;
    take_add();
    CHECK(!is_to_be_rung());
    worker_harness_publish(pair);
    return NULL;
}

static void *
answer_behind_another_add(void *argument)
{
    take_add();
    CHECK(!is_to_be_rung());
    say_add(1);
    return answer_who_polls(argument);
}

static uint64_t
spins(void)
{
    return worker_harness_counter(pair, FBK_C_WORKER_SPINS);
}

/* ------------ tests */

static void
test_who_polls_is_not_rung_for(void)
{
    make(LONG_US);
    pthread_t journal;
    CHECK_EQUAL(pthread_create(&journal, NULL, answer_who_polls, NULL), 0);
    say_add(0);
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK_EQUAL(pthread_join(journal, NULL), 0);
    CHECK(hear() > 0); /* answered in that poll */
    CHECK(!was_rung());
    CHECK_EQUAL(spins(), 1);
    /* all is answered: who has news now has to ring, and nobody polls */
    CHECK(is_to_be_rung());
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK_EQUAL(spins(), 1);
    end();
}

static void
test_bytes_that_come_end_a_poll_and_begin_another(void)
{
    make(LONG_US);
    pthread_t journal;
    CHECK_EQUAL(pthread_create(&journal, NULL, answer_behind_another_add, NULL), 0);
    say_add(0);
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK(hear() < 0);
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK_EQUAL(pthread_join(journal, NULL), 0);
    CHECK(hear() > 0);
    CHECK(!was_rung());
    CHECK_EQUAL(spins(), 2);
    end();
}

/* Nothing comes in time, or there is none: it sleeps, and is rung for. */
static void
test_who_does_not_poll_any_more_is_rung_for(uint32_t spin_us)
{
    make(spin_us);
    say_add(0);
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK_EQUAL(spins(), spin_us > 0);
    take_add();
    CHECK(is_to_be_rung());
    worker_harness_publish(pair);
    CHECK(was_rung());
    CHECK(hear() < 0);
    CHECK_EQUAL(fbk_worker_collect(worker), 0);
    CHECK(hear() > 0);
    CHECK(is_to_be_rung());
    end();
}

static void
test_a_read_is_not_polled_for(void)
{
    make(LONG_US);
    uint8_t frame[500];
    say(frame, fbk_wire_put_read_request(frame, 1, 5, 0, 0, NULL));
    CHECK_EQUAL(fbk_worker_poll(worker), 0);
    CHECK(is_to_be_rung());
    struct fbk_record record;
    CHECK_EQUAL(worker_harness_next_request(pair, &record, frame, sizeof frame), 1);
    CHECK_EQUAL(spins(), 0);
    end();
}

int
main(void)
{
    test_who_polls_is_not_rung_for();
    test_bytes_that_come_end_a_poll_and_begin_another();
    test_who_does_not_poll_any_more_is_rung_for(0);
    test_who_does_not_poll_any_more_is_rung_for(1);
    test_a_read_is_not_polled_for();
    return 0;
}
