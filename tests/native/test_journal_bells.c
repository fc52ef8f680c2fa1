/* Two producers and the journal in threads of their own, on a real disk, all of them asleep
 * whenever they can be: a wake-up that gets lost shows as a wait that does not end. */

#include "journal_harness.h"

#include <poll.h>
#include <pthread.h>

#define ROUNDS 1500
#define RING_BYTES (256u * 1024)
#define DEADLINE_MS 20000

static struct harness shared;
static _Atomic bool finished;

struct producer {
    pthread_t thread;
    uint32_t worker;
    uint64_t journal_rung;
};

static void
ring_journal(struct producer *producer)
{
    struct harness_worker *worker = &shared.workers[producer->worker];
    if (fbk_bell_needed(&shared.segment->sleeper, &producer->journal_rung) &&
        worker->written >= fbk_cursor_load_before_sleep(&shared.segment->wake_at[producer->worker]))
        fbk_bell_ring(shared.options.bell_fd);
}

/* Sleeps as a worker does until everything it wrote is published. */
static void
wait_published(struct producer *producer)
{
    struct harness_worker *worker = &shared.workers[producer->worker];
    for (;;) {
        uint64_t published = fbk_cursor_load(&shared.segment->published);
        uint64_t end = 0;
        if (published > 0)
            end = shared.segment->descriptors[(published - 1) % FBK_DESCRIPTOR_COUNT]
                      .ring_end[producer->worker];
        fbk_cursor_store(&worker->segment->descriptors_consumed, published);
        if (end == worker->written)
            return;
        fbk_sleeper_begin(&worker->segment->sleeper);
        if (fbk_cursor_load_before_sleep(&shared.segment->published) == published) {
            struct pollfd bell = {.fd = worker->bell_fd, .events = POLLIN};
            CHECK(poll(&bell, 1, DEADLINE_MS) == 1); /* else a wake-up was lost */
            uint64_t rings;
            CHECK(read(worker->bell_fd, &rings, sizeof rings) == (ssize_t)sizeof rings);
        }
        fbk_sleeper_end(&worker->segment->sleeper);
    }
}

static void *
produce(void *argument)
{
    struct producer *producer = argument;
    uint64_t seed = 77 + producer->worker;
    int64_t entry_id = 0;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t count = 1 + test_random(&seed) % 4;
        for (uint64_t n = 0; n < count; n++) {
            harness_add(&shared, producer->worker, producer->worker, entry_id++, 1, 0,
                        40 + (uint32_t)(test_random(&seed) % 9000));
            if (n % 2 == 0)
                ring_journal(producer);
        }
        ring_journal(producer);
        wait_published(producer);
    }
    /* As a worker that leaves: else the other one stalls, once it is all descriptors ahead. */
    struct fbk_worker_segment *segment = shared.workers[producer->worker].segment;
    fbk_cursor_publish(&segment->exceptions_consumed, FBK_CONSUMER_GONE);
    fbk_cursor_publish(&segment->descriptors_consumed, FBK_CONSUMER_GONE);
    return NULL;
}

/* The index: lets the rings and descriptors go on.  It never sleeps here. */
static void
consume(void)
{
    uint64_t published = fbk_cursor_load(&shared.segment->published);
    fbk_cursor_store(&shared.index->descriptors_consumed, published);
}

static void *
journal_main(void *argument)
{
    struct fbk_io *io = argument;
    int32_t file = 0;
    uint64_t file_id = 0;
    while (!finished) {
        int32_t reasons = fbk_journal_step(shared.journal, 200);
        CHECK(reasons >= 0);
        consume();
        if (reasons & FBK_JOURNAL_ROLL) {
            char path[32];
            snprintf(path, sizeof path, "journal-%d", (int)(file_id % 2));
            unlink(path);
            file = io->operations->open(io, path, FBK_IO_CREATE | FBK_IO_DIRECT);
            CHECK(file >= 0);
            CHECK(io->operations->preallocate(io, file, 0, 4u * 1024 * 1024) >= 0);
            file_id++;
            struct fbk_journal_file next = {
                .file = file, .file_id = file_id, .salt = file_id, .size_bytes = 4u * 1024 * 1024};
            uint64_t closed_sequence;
            int32_t left = fbk_journal_roll(shared.journal, &next, &closed_sequence);
            CHECK(left >= -1);
            if (left >= 0)
                io->operations->close(io, left);
        }
    }
    return NULL;
}

int
main(int argc, char **argv)
{
    int32_t error = 0;
    bool uring = argc > 1 && strcmp(argv[1], "uring") == 0;
    struct fbk_io *io =
        uring ? fbk_io_uring_create(".", 4, &error) : fbk_io_plain_create(".", &error);
    if (!io && uring) {
        printf("needs io_uring: %s\n", strerror(-error));
        return TEST_SKIPPED;
    }
    CHECK(io);
    harness_make(&shared, 2, RING_BYTES, 4096);
    close(shared.options.bell_fd);
    shared.options.bell_fd = eventfd(0, EFD_CLOEXEC); /* read through the ring: blocking */
    shared.options.depth = io->depth_max < 2 ? 1 : 2;
    shared.options.second_batch_bytes_min = 4096;
    shared.journal = fbk_journal_create(io, &shared.options, &error);
    CHECK(shared.journal);
    pthread_t journal;
    CHECK(pthread_create(&journal, NULL, journal_main, io) == 0);
    struct producer producers[2] = {{.worker = 0}, {.worker = 1}};
    for (int w = 0; w < 2; w++)
        CHECK(pthread_create(&producers[w].thread, NULL, produce, &producers[w]) == 0);
    for (int w = 0; w < 2; w++)
        pthread_join(producers[w].thread, NULL);
    finished = true;
    fbk_bell_ring(shared.options.bell_fd);
    pthread_join(journal, NULL);
    harness_free(&shared);
    io->operations->destroy(io);
    return 0;
}
