/* Lanes and flows: who goes first, who is held back, and that nobody is starved. */
#include "store/read_queue.h"

#include "check.h"

#define JOBS_MAX 1024u

static void
put(struct fbk_read_queue *queue, uint32_t lane, uint64_t flow, uint64_t ticket)
{
    struct fbk_job job = {.ticket = ticket, .lane = lane, .flow = flow, .kind = FBK_JOB_READ};
    CHECK(fbk_read_queue_put(queue, &job));
}

static uint64_t
take(struct fbk_read_queue *queue)
{
    struct fbk_job job;
    CHECK(fbk_read_queue_take(queue, &job));
    fbk_read_queue_done(queue, job.lane);
    return job.ticket;
}

static void
test_a_flow_is_in_order_and_bounded(void)
{
    struct fbk_read_queue queue;
    struct fbk_job job = {.kind = FBK_JOB_READ};
    CHECK_EQUAL(fbk_read_queue_init(&queue, JOBS_MAX), 0);
    for (uint64_t n = 0; n < JOBS_MAX; n++)
        put(&queue, FBK_LANE_URGENT, 7, n);
    CHECK(!fbk_read_queue_put(&queue, &job));
    for (uint64_t n = 0; n < JOBS_MAX; n++)
        CHECK_EQUAL(take(&queue), n);
    CHECK(!fbk_read_queue_take(&queue, &job));
    fbk_read_queue_free(&queue);
}

/* A thousand waiting jobs of one flow delay the first of another by one job. */
static void
test_flows_take_turns(void)
{
    struct fbk_read_queue queue;
    CHECK_EQUAL(fbk_read_queue_init(&queue, JOBS_MAX), 0);
    for (uint64_t n = 0; n < 900; n++)
        put(&queue, FBK_LANE_BULK, 1, n);
    for (uint64_t n = 0; n < 10; n++)
        CHECK_EQUAL(take(&queue), n);
    for (uint64_t n = 0; n < 20; n++)
        put(&queue, FBK_LANE_BULK, 2, 1000 + n);
    uint64_t of_second = 0;
    for (uint32_t n = 0; n < 40; n++) {
        of_second += take(&queue) >= 1000;
        CHECK(of_second + 1 >= (n + 1) / 2 && of_second <= n / 2 + 1);
    }
    CHECK_EQUAL(of_second, 20);
    /* It was silent: that gave it no credit for more than its share now. */
    for (uint32_t n = 0; n < 300; n++)
        CHECK(take(&queue) < 1000);
    for (uint64_t n = 0; n < 20; n++)
        put(&queue, FBK_LANE_BULK, 2, 2000 + n);
    of_second = 0;
    for (uint32_t n = 0; n < 20; n++)
        of_second += take(&queue) >= 2000;
    CHECK(of_second >= 9 && of_second <= 11);
    fbk_read_queue_free(&queue);
}

static void
test_lanes(void)
{
    struct fbk_read_queue queue;
    struct fbk_job job;
    CHECK_EQUAL(fbk_read_queue_init(&queue, JOBS_MAX), 0);
    queue.readers = 4;
    for (uint64_t n = 0; n < 8; n++)
        put(&queue, FBK_LANE_BULK, n, 100 + n);
    put(&queue, FBK_LANE_URGENT, 1, 1);
    CHECK(fbk_read_queue_take(&queue, &job) && job.ticket == 1);
    fbk_read_queue_done(&queue, job.lane);
    /* All but one thread may be held by bulk. */
    for (uint64_t n = 0; n < 3; n++)
        CHECK(fbk_read_queue_take(&queue, &job) && job.lane == FBK_LANE_BULK);
    CHECK(!fbk_read_queue_take(&queue, &job));
    put(&queue, FBK_LANE_URGENT, 1, 2);
    CHECK(fbk_read_queue_take(&queue, &job) && job.ticket == 2);
    fbk_read_queue_done(&queue, FBK_LANE_URGENT);
    CHECK(!fbk_read_queue_take(&queue, &job));
    fbk_read_queue_done(&queue, FBK_LANE_BULK);
    CHECK(fbk_read_queue_take(&queue, &job) && job.lane == FBK_LANE_BULK);
    fbk_read_queue_free(&queue);
}

/* A large read-ahead counts for as many turns as it reads runs. */
static void
test_a_job_costs_what_it_reads(void)
{
    struct fbk_read_queue queue;
    CHECK_EQUAL(fbk_read_queue_init(&queue, JOBS_MAX), 0);
    for (uint64_t n = 0; n < 4; n++) {
        struct fbk_job job = {.ticket = 100 + n,
                              .lane = FBK_LANE_BULK,
                              .flow = 1,
                              .size_bytes_max = 3 * FBK_READ_COST_BYTES};
        CHECK(fbk_read_queue_put(&queue, &job));
    }
    for (uint64_t n = 0; n < 16; n++)
        put(&queue, FBK_LANE_BULK, 2, n);
    uint32_t large = 0;
    for (uint32_t n = 0; n < 10; n++)
        large += take(&queue) >= 100;
    CHECK(large >= 2 && large <= 3);
    fbk_read_queue_free(&queue);
}

/* With one thread nothing is held back, or some lane would never be served. */
static void
test_one_thread_serves_every_lane(void)
{
    struct fbk_read_queue queue;
    CHECK_EQUAL(fbk_read_queue_init(&queue, JOBS_MAX), 0);
    queue.readers = 1;
    put(&queue, FBK_LANE_BULK, 1, 2);
    put(&queue, FBK_LANE_URGENT, 1, 1);
    CHECK_EQUAL(take(&queue), 1);
    CHECK_EQUAL(take(&queue), 2);
    queue.readers = 2;
    put(&queue, FBK_LANE_BULK, 1, 3);
    CHECK_EQUAL(take(&queue), 3);
    fbk_read_queue_free(&queue);
}

static void
test_random_jobs_all_come_out_once(void)
{
    struct fbk_read_queue queue;
    static uint8_t seen[20000];
    uint64_t seed = 11, given = 0, taken = 0;
    CHECK_EQUAL(fbk_read_queue_init(&queue, 64), 0);
    queue.readers = 3;
    while (taken < sizeof seen) {
        if (queue.count < 64 && given < sizeof seen && test_random(&seed) % 2) {
            put(&queue, (uint32_t)(test_random(&seed) % FBK_READ_LANES), test_random(&seed) % 5,
                given++);
        } else if (queue.count > 0) {
            uint64_t ticket = take(&queue);
            CHECK(ticket < given && !seen[ticket]);
            seen[ticket] = 1;
            taken++;
        }
    }
    fbk_read_queue_free(&queue);
}

int
main(void)
{
    test_a_flow_is_in_order_and_bounded();
    test_flows_take_turns();
    test_lanes();
    test_a_job_costs_what_it_reads();
    test_one_thread_serves_every_lane();
    test_random_jobs_all_come_out_once();
    return 0;
}
