/* What an add costs the worker's C: in fbk_worker_receive, and its ack in fbk_worker_collect (the
 * send included). No test: build with -O2 and run alone.  PROGRAM [DATA_BYTES [SECONDS [PROTOCOL
 * [DIGEST [ADDS]]]]]; 0 = ours, 2 and 3 = Apache's; the type of the digest as metadata tells it for
 * these, 0 = it names none, 3 = the right one; adds a receive. */
#include "check.h"
#include "worker_harness.c"

#include "apache/apache.h"
#include "base/digest.h"
#include "wire/client.h"
#include "worker/worker.h"

#include <sys/socket.h>
#include <time.h>

/* Processor time: others may run on this machine too. */
static uint64_t
cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static const uint8_t magic[8] = {0xfb, 'f', 'a', 's', 't', 'b', 'k', 1};

static void
greet(struct fbk_worker *worker, uint32_t slot, uint8_t *buffer)
{
    memcpy(buffer, magic, 8);
    uint32_t hello = fbk_wire_put_hello(buffer + 8, 0, 1, 1, NULL, 0);
    fbk_worker_receive(worker, slot, 8 + hello);
    fbk_worker_continue(worker, slot, 1);
}

/* An add of ledger 5 behind `to`, at most room bytes; 0 when it does not fit. */
static uint32_t
put_add(uint8_t *to, uint32_t room, uint32_t protocol, uint32_t entry_id, uint32_t data_bytes)
{
    static const uint8_t key[20] = {1}, data[1 << 20];
    static uint8_t entry[(1 << 20) + 36];
    fbk_store_be64(entry, 5);
    fbk_store_be64(entry + 8, entry_id);
    uint32_t entry_bytes =
        (uint32_t)fbk_digest_put_data(FBK_DIGEST_CRC32C, entry, data, data_bytes);
    if (protocol == 0)
        return FBK_WIRE_ADD_HEAD_BYTES + entry_bytes > room
                   ? 0
                   : fbk_wire_put_add(to, entry_id, 5, entry_id, 0, FBK_DIGEST_CRC32C, key, entry,
                                      entry_bytes, NULL);
    const struct fbk_apache_request request = {
        .protocol = (uint8_t)protocol,
        .version = (uint8_t)protocol,
        .operation = FBK_APACHE_ADD,
        .transaction_id = 1000000 + entry_id,
        .ledger_id = 5,
        .entry_id = entry_id,
        .master_key = key,
        .body = entry,
        .body_bytes = entry_bytes,
    };
    return (uint32_t)fbk_apache_put_request(to, room, &request);
}

int
main(int argc, char **argv)
{
    uint32_t data_bytes = argc > 1 ? (uint32_t)atoi(argv[1]) : 1024;
    uint64_t run_ns = (uint64_t)((argc > 2 ? strtod(argv[2], NULL) : 2.0) * 1e9);
    uint32_t protocol = argc > 3 ? (uint32_t)atoi(argv[3]) : 0;
    const uint8_t digest_type = argc > 4 ? (uint8_t)atoi(argv[4]) : FBK_DIGEST_CRC32C;
    const uint32_t adds_max = argc > 5 ? (uint32_t)atoi(argv[5]) : 1000;
    CHECK(data_bytes <= 1 << 20 && adds_max > 0);
    struct worker_harness *s = worker_harness_create(0, 1, 32u << 20, 1u << 20, 16u << 20);
    struct fbk_worker_options options = {
        .epoch = 1,
        .pair_count = 1,
        .pairs = {worker_harness_pair(s)},
        .bell_fd = s->worker_bell,
        .connections_max = 16,
        .pending_requests_max = 16384,
        .frame_size_bytes_max = 5u << 20,
        .batch_entries_max = 4096,
        .receive_size_bytes = 256 * 1024,
        .partial_frames_bytes_max = 64u << 20,
        .reply_backlog_bytes_max = 8u << 20,
        .unread_replies_bytes_max = 128u << 20,
        .write_timeout_ms = 60000,
        .frame_rate_bytes_min = 16384,
        .turn_frames_max = 16384,
        .turn_size_bytes_max = 4u << 20,
        .apache_requests_max = 32768,
        .apache_batch_read_bytes_max = 5u << 20,
        .apache_digests_max = 65536,
    };
    int32_t error, ends[2];
    struct fbk_worker *worker = fbk_worker_create(&options, &error);
    CHECK(worker != NULL);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    uint32_t slot = (uint32_t)fbk_worker_connect(worker, ends[0]), room;
    uint8_t *buffer = fbk_worker_receive_buffer(worker, &room);
    if (protocol == 0)
        greet(worker, slot, buffer);
    fbk_worker_collect(worker);
    fbk_worker_digests_known(worker, &(const int64_t){5}, &digest_type, 1);

    uint8_t *stream = malloc(room);
    uint32_t used = 0, count = 0;
    for (uint32_t more = 1; count < adds_max && more != 0; used += more, count += more != 0)
        more = put_add(stream + used, room - used, protocol, count, data_bytes);
    uint64_t adds = 0, receive_ns = 0, collect_ns = 0, began = fbk_now_ns();
    static uint8_t answers[1 << 20];
    while (fbk_now_ns() - began < run_ns) {
        memcpy(buffer, stream, used);
        uint64_t t0 = cpu_ns();
        CHECK_EQUAL(fbk_worker_receive(worker, slot, used), 0);
        uint64_t t1 = cpu_ns();
        s->taken = fbk_cursor_load(&s->worker->add_written);
        worker_harness_publish(s);
        worker_harness_index(s);
        uint64_t t2 = cpu_ns();
        CHECK_EQUAL(fbk_worker_collect(worker), 0);
        collect_ns += cpu_ns() - t2;
        receive_ns += t1 - t0;
        adds += count;
        CHECK(recv(ends[1], answers, sizeof answers, MSG_DONTWAIT) > 0);
    }
    printf("%u adds of %u bytes a receive: receive %.1f ns an add, collect %.1f ns an ack (%" PRIu64
           " adds)\n",
           count, data_bytes, (double)receive_ns / (double)adds, (double)collect_ns / (double)adds,
           adds);
    fbk_worker_destroy(worker);
    worker_harness_destroy(s);
    return 0;
}
