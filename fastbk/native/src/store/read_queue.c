/* Lanes and flows of jobs that wait for a reader thread. */
#include "store/read_queue.h"

#include <stdlib.h>

int32_t
fbk_read_queue_init(struct fbk_read_queue *queue, uint32_t jobs_max)
{
    memset(queue, 0, sizeof *queue);
    queue->jobs_max = jobs_max;
    for (uint32_t lane = 0; lane < FBK_READ_LANES; lane++) {
        queue->lanes[lane].heap = calloc(jobs_max, sizeof *queue->lanes[lane].heap);
        if (!queue->lanes[lane].heap)
            return -ENOMEM;
    }
    return 0;
}

void
fbk_read_queue_free(struct fbk_read_queue *queue)
{
    for (uint32_t lane = 0; lane < FBK_READ_LANES; lane++)
        free(queue->lanes[lane].heap);
    memset(queue, 0, sizeof *queue);
}

static bool
is_before(const struct fbk_queued_job *a, const struct fbk_queued_job *b)
{
    return a->tag != b->tag ? a->tag < b->tag : a->number < b->number;
}

static void
rise(struct fbk_read_lane *lane, uint32_t at)
{
    struct fbk_queued_job job = lane->heap[at];
    while (at > 0 && is_before(&job, &lane->heap[(at - 1) / 2])) {
        lane->heap[at] = lane->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    lane->heap[at] = job;
}

static void
sink(struct fbk_read_lane *lane)
{
    uint32_t at = 0;
    struct fbk_queued_job job = lane->heap[0];
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= lane->count)
            break;
        if (child + 1 < lane->count && is_before(&lane->heap[child + 1], &lane->heap[child]))
            child++;
        if (!is_before(&lane->heap[child], &job))
            break;
        lane->heap[at] = lane->heap[child];
        at = child;
    }
    lane->heap[at] = job;
}

static uint32_t
flow_of(uint64_t flow)
{
    uint64_t hash = (flow ^ flow >> 31) * 0x9e3779b97f4a7c15ull;
    return (uint32_t)(hash >> 40) & (FBK_READ_FLOWS - 1);
}

bool
fbk_read_queue_put(struct fbk_read_queue *queue, const struct fbk_job *job)
{
    FBK_ASSERT(job->lane < FBK_READ_LANES);
    if (queue->count == queue->jobs_max)
        return false;
    struct fbk_read_lane *lane = &queue->lanes[job->lane];
    uint64_t *next_tag = &lane->next_tag[flow_of(job->flow)];
    /* A flow that was silent has saved nothing up. */
    uint64_t tag = *next_tag > lane->now ? *next_tag : lane->now;
    *next_tag = tag + 1 + job->size_bytes_max / FBK_READ_COST_BYTES;
    lane->heap[lane->count] =
        (struct fbk_queued_job){.tag = tag, .number = queue->number++, .job = *job};
    rise(lane, lane->count++);
    queue->count++;
    return true;
}

static bool
may_run(const struct fbk_read_queue *queue, uint32_t lane)
{
    return lane == FBK_LANE_URGENT || queue->readers < 2 ||
           queue->running[FBK_LANE_BULK] + 1 < queue->readers;
}

bool
fbk_read_queue_take(struct fbk_read_queue *queue, struct fbk_job *job)
{
    for (uint32_t n = 0; n < FBK_READ_LANES; n++) {
        struct fbk_read_lane *lane = &queue->lanes[n];
        if (lane->count == 0 || !may_run(queue, n))
            continue;
        *job = lane->heap[0].job;
        lane->now = lane->heap[0].tag;
        lane->heap[0] = lane->heap[--lane->count];
        if (lane->count > 0)
            sink(lane);
        queue->count--;
        queue->running[n]++;
        return true;
    }
    return false;
}

void
fbk_read_queue_done(struct fbk_read_queue *queue, uint32_t lane)
{
    FBK_ASSERT(queue->running[lane] > 0);
    queue->running[lane]--;
}
