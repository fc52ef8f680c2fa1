/* Segments, rings and bells.
 *
 * Two threads pass messages of changing size through a small ring and sleep whenever there is
 * nothing to do, on both sides.  A lost wake-up would leave both asleep: every wait has a limit,
 * and reaching it fails the test. usage: test_ring [messages] */
#include "base/record.h"
#include "base/segment.h"
#include "base/stats.h"

#include "check.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SLEEP_LIMIT_MS 20000

/* ------------ segments */

static int32_t
segment_for_test(uint32_t role, const uint64_t *rings, uint32_t count, uint32_t repeat)
{
    int32_t fd = fbk_segment_create(role, 3, 2, 7, rings, count, repeat);
    CHECK(fd >= 0);
    CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    return fd;
}

static void
test_segment_is_sealed(void)
{
    static const uint64_t rings[2] = {65536, 4096};
    int32_t fd = segment_for_test(FBK_ROLE_WORKER, rings, 2, 1), error = 0;
    struct stat about;
    CHECK(fstat(fd, &about) == 0);
    CHECK(ftruncate(fd, about.st_size - 1) < 0 && errno == EPERM &&
          ftruncate(fd, about.st_size + 1) < 0 && errno == EPERM);
    struct fbk_worker_segment *segment = fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error);
    CHECK(segment != NULL && fbk_segment_is_sealed(fd) == 0 && fbk_segment_seal(fd) == 1 &&
          fbk_segment_is_sealed(fd) == 1);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0 && errno == EPERM);
    CHECK(fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error) == NULL && error == -EPERM);
    fbk_segment_unmap(segment, FBK_ROLE_WORKER);
    close(fd);
}

static void
test_rings_are_mirrored_and_apart(void)
{
    static const uint64_t rings[2] = {65536, 4096};
    int32_t fd = segment_for_test(FBK_ROLE_WORKER, rings, 2, 1), error = 0;
    struct fbk_worker_segment *segment = fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error);
    CHECK(segment != NULL && error == 0);
    CHECK_EQUAL(segment->header.role_index, 3);
    CHECK_EQUAL(segment->header.epoch, 7);
    CHECK_EQUAL(segment->add_written.value, 0);
    struct fbk_ring add, request;
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, 0, true, &add), 0);
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 1, 0, true, &request), 0);
    CHECK(add.size_bytes == 65536 && request.size_bytes == 4096);
    memset(fbk_ring_at(&add, 65530), 0xab, 12); /* over the end */
    /* the compiler can't know that two addresses are one byte */
    __asm__ volatile("" ::: "memory");
    CHECK(add.data[65535] == 0xab && add.data[0] == 0xab && add.data[5] == 0xab &&
          add.data[6] == 0);
    memset(request.data, 0xcd, 4096);
    CHECK(add.data[65535] == 0xab && add.data[65536] == 0xab);
    CHECK(segment->request_written.value == 0);
    fbk_segment_unmap_ring(&add);
    fbk_segment_unmap_ring(&request);
    CHECK(add.data == NULL);
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 2, 0, true, &add), -EINVAL);
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, 1, true, &add), FBK_E_LAYOUT);
    fbk_segment_unmap(segment, FBK_ROLE_WORKER);
    close(fd);
}

static void
test_reply_rings_of_the_index(void)
{
    static const uint64_t ring = 16384;
    int32_t fd = segment_for_test(FBK_ROLE_INDEX, &ring, 1, 3), error = 0;
    struct fbk_index_segment *segment = fbk_segment_map(fd, FBK_ROLE_INDEX, true, &error);
    CHECK(segment != NULL);
    struct fbk_ring rings[3];
    for (uint32_t w = 0; w < 3; w++) {
        CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, w, true, &rings[w]), 0);
        memset(rings[w].data, (int)w + 1, ring);
    }
    for (uint32_t w = 0; w < 3; w++) {
        CHECK(rings[w].data[0] == w + 1 && rings[w].data[2 * ring - 1] == w + 1);
        fbk_segment_unmap_ring(&rings[w]);
    }
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, 3, true, &rings[0]), FBK_E_LAYOUT);
    fbk_segment_unmap(segment, FBK_ROLE_INDEX);
    close(fd);
}

static void
test_read_only_descriptor_cannot_write(void)
{
    static const uint64_t ring = 4096;
    int32_t fd = segment_for_test(FBK_ROLE_JOURNAL, &ring, 1, 1), error = 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int32_t reader = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(reader >= 0);
    const struct fbk_journal_segment *segment =
        fbk_segment_map(reader, FBK_ROLE_JOURNAL, false, &error);
    CHECK(segment != NULL);
    CHECK(fbk_segment_map(reader, FBK_ROLE_JOURNAL, true, &error) == NULL && error == -EACCES);
    struct fbk_ring mapped;
    CHECK_EQUAL(fbk_segment_map_ring(reader, &segment->header, 0, 0, true, &mapped), -EACCES);
    CHECK_EQUAL(fbk_segment_map_ring(reader, &segment->header, 0, 0, false, &mapped), 0);
    CHECK(mprotect(mapped.data, 4096, PROT_READ | PROT_WRITE) < 0);
    fbk_segment_unmap_ring(&mapped);
    fbk_segment_unmap((void *)(uintptr_t)segment, FBK_ROLE_JOURNAL);
    close(reader);
    close(fd);
}

static void
test_foreign_files_are_refused(void)
{
    int32_t error = 0;
    int fd = memfd_create("foreign", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, 1 << 20) == 0);
    /* not sealed */
    CHECK(fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error) == NULL && error == FBK_E_LAYOUT);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    /* no magic */
    CHECK(fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error) == NULL && error == FBK_E_LAYOUT);
    close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error) == NULL && error < 0);
    close(fd);
    fd = fbk_segment_create(FBK_ROLE_GC, 0, 0, 1, NULL, 0, 1);
    CHECK(fd >= 0);
    /* another role */
    CHECK(fbk_segment_map(fd, FBK_ROLE_WORKER, false, &error) == NULL && error == FBK_E_LAYOUT);
    CHECK(fbk_segment_map(fd, 99, false, &error) == NULL && error == -EINVAL);
    close(fd);
    static const uint64_t odd[] = {4096, 5000, 2048, 0};
    for (uint32_t i = 1; i < 4; i++)
        CHECK_EQUAL(fbk_segment_create(FBK_ROLE_WORKER, 0, 0, 1, &odd[i], 1, 1), -EINVAL);
    CHECK_EQUAL(fbk_segment_create(FBK_ROLE_WORKER, 0, 0, 1, odd, 1, 0), -EINVAL);
    CHECK_EQUAL(fbk_segment_create(77, 0, 0, 1, odd, 1, 1), -EINVAL);
    CHECK_EQUAL(fbk_segment_create(FBK_ROLE_GC, 0, FBK_PAIRS_MAX, 1, NULL, 0, 1), -EINVAL);
}

/* A broken owner may write anything into its header: no such value may map what is not there. */
static void
test_hostile_header(void)
{
    static const uint64_t ring = 4096;
    int32_t fd = segment_for_test(FBK_ROLE_WORKER, &ring, 1, 1), error = 0;
    struct fbk_worker_segment *segment = fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error);
    CHECK(segment != NULL);
    const uint64_t size = segment->header.size_bytes, offset = segment->header.ring_offset_bytes[0];
    const uint64_t hostile[][2] = {
        {8192, offset}, {4096, size}, {4096, size - 4095}, {4096, ~0ull - 4095}, {1ull << 63, 0},
        {3, 0},         {4096, 1},    {~0ull, ~0ull},      {1ull << 40, 0},      {5000, 0}};
    struct fbk_ring mapped;
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        segment->header.ring_size_bytes[0] = hostile[i][0];
        segment->header.ring_offset_bytes[0] = hostile[i][1];
        for (uint32_t repeat = 0; repeat < FBK_WORKERS_MAX; repeat++)
            CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, repeat, false, &mapped),
                        FBK_E_LAYOUT);
    }
    fbk_segment_unmap(segment, FBK_ROLE_WORKER);
    close(fd);
}

static void
test_memory(void)
{
    uint8_t *memory = fbk_memory_take(5000);
    CHECK(memory != NULL && memory[0] == 0 && memory[8191] == 0);
    memory[0] = 1;
    memory[4999] = 2;
    memory = fbk_memory_grow(memory, 5000, 5000000);
    CHECK(memory != NULL && memory[0] == 1 && memory[4999] == 2 && memory[4999999] == 0);
    fbk_memory_give_back(memory, 5000000);
    CHECK(fbk_memory_take(~0ull) == NULL);
    fbk_memory_give_back(NULL, 10);
}

static void
test_histogram_buckets_are_in_order(void)
{
    uint32_t last = 0;
    for (uint64_t value = 0; value < 100000; value++) {
        uint32_t bucket = fbk_histogram_bucket(value);
        CHECK(bucket == last || bucket == last + 1);
        CHECK(fbk_histogram_bucket_from(bucket) <= value &&
              fbk_histogram_bucket_from(bucket + 1) > value);
        last = bucket;
    }
    CHECK(fbk_histogram_bucket(~0ull) < FBK_HISTOGRAM_BUCKETS);
}

/* ------------ records */

static void
test_hostile_records(void)
{
    static uint8_t bytes[2 * 4096]; /* not mirrored: stays in the first half */
    struct fbk_ring ring = {bytes, 4096};
    struct fbk_record record = {.size_bytes = 112, .payload_bytes = 13, .kind = FBK_KIND_ADD}, copy;
    fbk_record_seal(&record);
    memcpy(bytes, &record, sizeof record);
    CHECK_EQUAL(fbk_record_take(&ring, 0, 112, &copy), 112);
    CHECK(memcmp(&copy, &record, sizeof copy) == 0);
    CHECK_EQUAL(fbk_record_take(&ring, 0, 0, &copy), 0);
    CHECK_EQUAL(fbk_record_take(&ring, 0, 111, &copy), FBK_E_CORRUPT); /* half a record */
    /* more than there is room for */
    CHECK_EQUAL(fbk_record_take(&ring, 0, 4097, &copy), FBK_E_CORRUPT);
    CHECK_EQUAL(fbk_record_take(&ring, 8, 0, &copy), FBK_E_CORRUPT); /* went back */
    CHECK_EQUAL(fbk_record_take(&ring, 4, 116, &copy), FBK_E_CORRUPT);
    const uint32_t sizes[][2] = {{0, 0},           {95, 0},   {96, 1},
                                 {104, 0},         {112, 17}, {0xfffffff8u, 0xffffff98u},
                                 {96, 0xffffffffu}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        record.size_bytes = sizes[i][0];
        record.payload_bytes = sizes[i][1];
        fbk_record_seal(&record);
        memcpy(bytes, &record, sizeof record);
        CHECK_EQUAL(fbk_record_take(&ring, 0, 4096, &copy), FBK_E_CORRUPT);
    }
    record.size_bytes = 96;
    record.payload_bytes = 0;
    fbk_record_seal(&record);
    for (uint32_t bit = 0; bit < 96 * 8; bit++) {
        memcpy(bytes, &record, sizeof record);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK_EQUAL(fbk_record_take(&ring, 0, 4096, &copy), FBK_E_CORRUPT);
    }
}

/* ------------ two threads */

struct side { /* written by one thread only, but for nothing */
    struct fbk_sleeper sleeper;
    struct fbk_cursor cursor;
    int bell;
    uint64_t rung; /* the last ticket of the other side that this one rang for */
    uint64_t sleeps;
    uint64_t rings;
};

struct passage {
    struct fbk_ring ring;
    uint64_t message_count;
    struct side producer, consumer;
};

static void
wait_for_bell(struct side *mine)
{
    struct pollfd wanted = {.fd = mine->bell, .events = POLLIN};
    int ready = poll(&wanted, 1, SLEEP_LIMIT_MS);
    if (ready != 1) {
        fprintf(stderr, "asleep for %d ms: a wake-up was lost\n", SLEEP_LIMIT_MS);
        exit(1);
    }
    uint64_t count;
    CHECK(read(mine->bell, &count, sizeof count) == sizeof count);
    mine->sleeps++;
}

static void
publish(struct side *mine, struct side *other, uint64_t position)
{
    fbk_cursor_publish(&mine->cursor, position);
    if (fbk_bell_needed(&other->sleeper, &mine->rung)) {
        fbk_bell_ring(other->bell);
        mine->rings++;
    }
}

/* Sleeps until the other side's cursor differs from `seen`. */
static uint64_t
sleep_until_moved(struct side *mine, const struct side *other, uint64_t seen)
{
    for (;;) {
        fbk_sleeper_begin(&mine->sleeper);
        uint64_t now = fbk_cursor_load_before_sleep(&other->cursor);
        if (now != seen) {
            fbk_sleeper_end(&mine->sleeper);
            return now;
        }
        wait_for_bell(mine);
        fbk_sleeper_end(&mine->sleeper);
    }
}

static uint32_t
message_size(uint64_t number)
{
    return 16 + (uint32_t)(number * 0x9e3779b97f4a7c15ull >> 58) * 8; /* 16 to 520 */
}

static void *
produce(void *argument)
{
    struct passage *passage = argument;
    struct side *mine = &passage->producer, *other = &passage->consumer;
    uint64_t written = 0, consumed = 0;
    for (uint64_t number = 0; number < passage->message_count; number++) {
        uint32_t size = message_size(number);
        while (written + size - consumed > passage->ring.size_bytes)
            consumed = sleep_until_moved(mine, other, consumed);
        uint8_t *at = fbk_ring_at(&passage->ring, written);
        fbk_store_u64(at, size);
        for (uint32_t i = 8; i < size; i += 8)
            fbk_store_u64(at + i, number);
        written += size;
        /* batches, so that the consumer lags and catches up */
        if (number % 3 == 0 || number + 1 == passage->message_count)
            publish(mine, other, written);
        consumed = fbk_cursor_load(&other->cursor);
    }
    return NULL;
}

static void *
consume(void *argument)
{
    struct passage *passage = argument;
    struct side *mine = &passage->consumer, *other = &passage->producer;
    uint64_t position = 0, number = 0;
    while (number < passage->message_count) {
        uint64_t written = fbk_cursor_load(&other->cursor);
        if (written == position)
            written = sleep_until_moved(mine, other, position);
        CHECK(fbk_ring_available(&passage->ring, position, written) > 0);
        while (position != written) {
            const uint8_t *at = fbk_ring_at(&passage->ring, position);
            uint64_t size = fbk_load_u64(at);
            CHECK_EQUAL(size, message_size(number));
            for (uint32_t i = 8; i < size; i += 8)
                if (fbk_load_u64(at + i) != number)
                    CHECK_EQUAL(fbk_load_u64(at + i), number);
            /* the room is free only now: whoever reads it too late sees this */
            memset((void *)(uintptr_t)at, 0xee, 8);
            position += size;
            number++;
        }
        publish(mine, other, position);
    }
    return NULL;
}

static void
test_two_threads(uint64_t message_count)
{
    /* A small ring sleeps every few messages; the long run takes one that lets it end in time. */
    const uint64_t ring = message_count > 1000000 ? 32768 : 4096;
    int32_t fd = segment_for_test(FBK_ROLE_WORKER, &ring, 1, 1), error = 0;
    struct fbk_worker_segment *segment = fbk_segment_map(fd, FBK_ROLE_WORKER, true, &error);
    CHECK(segment != NULL);
    static struct passage passage;
    passage.message_count = message_count;
    CHECK_EQUAL(fbk_segment_map_ring(fd, &segment->header, 0, 0, true, &passage.ring), 0);
    passage.producer.bell = eventfd(0, EFD_CLOEXEC);
    passage.consumer.bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_t threads[2];
    CHECK(pthread_create(&threads[0], NULL, produce, &passage) == 0);
    CHECK(pthread_create(&threads[1], NULL, consume, &passage) == 0);
    CHECK(pthread_join(threads[0], NULL) == 0);
    CHECK(pthread_join(threads[1], NULL) == 0);
    printf("%" PRIu64 " messages; producer slept %" PRIu64 ", rang %" PRIu64
           "; consumer slept %" PRIu64 ", rang %" PRIu64 "\n",
           message_count, passage.producer.sleeps, passage.producer.rings, passage.consumer.sleeps,
           passage.consumer.rings);
    /* else nothing was tested */
    CHECK(passage.producer.sleeps + passage.consumer.sleeps > 0);
    close(passage.producer.bell);
    close(passage.consumer.bell);
    fbk_segment_unmap_ring(&passage.ring);
    fbk_segment_unmap(segment, FBK_ROLE_WORKER);
    close(fd);
}

static void
test_bell_full_counter(void)
{
    int bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint64_t most = ~0ull - 1, value;
    CHECK(write(bell, &most, sizeof most) == sizeof most);
    fbk_bell_ring(bell); /* must neither wait nor fail */
    CHECK(read(bell, &value, sizeof value) == sizeof value && value == most);
    close(bell);
    uint64_t before = fbk_now_ns();
    CHECK(before > 0 && fbk_now_ns() >= before);
}

int
main(int argc, char **argv)
{
    uint64_t message_count = argc > 1 ? strtoull(argv[1], NULL, 10) : 300000;
    test_segment_is_sealed();
    test_rings_are_mirrored_and_apart();
    test_reply_rings_of_the_index();
    test_read_only_descriptor_cannot_write();
    test_foreign_files_are_refused();
    test_hostile_header();
    test_memory();
    test_histogram_buckets_are_in_order();
    test_hostile_records();
    test_bell_full_counter();
    test_two_threads(message_count);
    return 0;
}
