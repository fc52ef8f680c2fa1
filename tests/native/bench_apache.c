/* What Apache's frames cost beside our own: reading an add and writing its answer, once for each
 * protocol, and reading a read. Nothing touches the entry's bytes, so this is the price of the
 * frame alone.  No test: build with -O2 and run alone.  PROGRAM [DATA_BYTES] */
#include "check.h"

#include "apache/apache.h"
#include "apache/protobuf.h"
#include "wire/wire.h"
#include "wire/client.h"

#include <time.h>

#define ROUNDS 21
#define RUNS 200000u

/* Processor time: others may run on this machine too. */
static uint64_t
cpu_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

static uint8_t frame[1 << 20], out[FBK_APACHE_ADD_REPLY_BYTES_MAX];
static uint8_t entry[1 << 19];
static uint32_t frame_bytes, entry_bytes;
static const uint8_t key[20] = "twenty bytes of key!";
static volatile uint64_t sink;

static void
make_own(void)
{
    frame_bytes = fbk_wire_put_add(frame, 1000, 5, 100000, 0, 3, key, entry, entry_bytes, NULL);
}

static void
make_v2(void)
{
    fbk_store_be32(frame, 0x02010000);
    memcpy(frame + 4, key, sizeof key);
    memcpy(frame + 24, entry, entry_bytes);
    frame_bytes = 24 + entry_bytes;
}

static void
put_add(struct fbk_protobuf_writer *writer)
{
    fbk_protobuf_put_number(writer, 1, 5);
    fbk_protobuf_put_number(writer, 2, 100000);
    fbk_protobuf_put_bytes(writer, 3, key, sizeof key);
    fbk_protobuf_put_bytes(writer, 4, entry, entry_bytes);
}

/* As Java's client has it: header, then the message, fields in the order of their numbers. */
static void
make_v3(void)
{
    struct fbk_protobuf_writer count = {0}, writer = {.out = frame};
    put_add(&count);
    fbk_protobuf_put_bytes(&writer, 1, (const uint8_t *)"\x08\x03\x10\x02\x18\xe8\x07", 7);
    fbk_protobuf_put_head(&writer, 101, count.size_bytes);
    put_add(&writer);
    frame_bytes = (uint32_t)writer.size_bytes;
}

/* A read of version 3 goes by the tables, like everything but an add. */
static void
make_v3_read(void)
{
    static const uint8_t read[] =
        "\x0a\x07\x08\x03\x10\x01\x18\xe8\x07\xa2\x06\x06\x08\x05\x10\xa0\x8d\x06";
    frame_bytes = sizeof read - 1;
    memcpy(frame, read, frame_bytes);
}

static void
read_own(void)
{
    struct fbk_request request;
    sink += (uint64_t)fbk_wire_read_request(frame, frame_bytes, &request) + request.body_bytes;
}

static void
read_apache(void)
{
    struct fbk_apache_request request;
    uint32_t status;
    sink += (uint64_t)fbk_apache_read_request(frame, frame_bytes, &request, &status) +
            request.body_bytes;
}

static void
answer_own(void)
{
    sink += fbk_wire_put_status(out, 1000, 0);
}

static void
answer_apache(uint8_t protocol)
{
    struct fbk_apache_echo asked = {.protocol = protocol,
                                    .version = protocol,
                                    .operation = FBK_APACHE_ADD,
                                    .transaction_id = 1000,
                                    .ledger_id = 5,
                                    .entry_id = 100000};
    sink += fbk_apache_put_add_reply(out, &asked, FBK_APACHE_EOK);
}

static void
answer_v2(void)
{
    answer_apache(2);
}

static void
answer_v3(void)
{
    answer_apache(3);
}

/* The best of some rounds: a disturbed one says nothing. */
static double
nanoseconds(void (*call)(void))
{
    uint64_t best = UINT64_MAX;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t from = cpu_ns();
        for (uint32_t i = 0; i < RUNS; i++)
            call();
        uint64_t took = cpu_ns() - from;
        best = took < best ? took : best;
    }
    return (double)best / RUNS;
}

int
main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*make)(void), (*read)(void), (*answer)(void);
    } protocols[] = {{"own", make_own, read_own, answer_own},
                     {"v2", make_v2, read_apache, answer_v2},
                     {"v3", make_v3, read_apache, answer_v3},
                     {"v3 by tables", make_v3_read, read_apache, answer_v3}};
    entry_bytes = 36 + (argc > 1 ? (uint32_t)atoi(argv[1]) : 1024);
    CHECK(entry_bytes <= sizeof entry);
    for (uint32_t i = 0; i < 4; i++) {
        protocols[i].make();
        printf("%-12s read %5.1f ns  answer %5.1f ns\n", protocols[i].name,
               nanoseconds(protocols[i].read), nanoseconds(protocols[i].answer));
    }
    return 0;
}
