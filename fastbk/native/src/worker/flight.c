/* What a worker records of stages that took long: base/flight.h. */
#include "worker/count.h"

/* The whole pause lies between the last time that the worker had looked at the clock, and the SIGCONT. */
void
fbk_worker_note_pause(struct fbk_worker *worker, uint64_t now_ns, uint32_t before_us)
{
    uint64_t continued_ns = atomic_load_explicit(&fbk_flight_continued_ns, memory_order_relaxed);
    worker->continued_ns = continued_ns;
    uint64_t before_ns = fbk_flight_time(now_ns, before_us);
    if (continued_ns < before_ns + FBK_FLIGHT_SLOW_NS)
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_PAUSE,
        .received_ns = before_ns,
        .ended_ns = continued_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}

/* The first batch of a round in which this worker answered something. */
void
fbk_worker_note_answer(struct fbk_worker *worker, uint64_t published_ns)
{
    uint64_t now_ns = fbk_now_ns();
    if (now_ns < published_ns + FBK_FLIGHT_SLOW_NS || !fbk_flight_is_due(&worker->recorder, now_ns))
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_ANSWER,
        .received_ns = published_ns,
        .published_ns = published_ns,
        .ended_ns = now_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}

/* A connection's next add has found room. */
void
fbk_worker_note_wait(struct fbk_worker *worker, uint32_t blocked_us)
{
    uint64_t now_ns = fbk_now_ns();
    if (!fbk_flight_is_due(&worker->recorder, now_ns))
        return;
    struct fbk_flight_record record = {
        .kind = FBK_FLIGHT_WAIT,
        .flags = worker->lacks_credit ? FBK_FLIGHT_CREDIT : 0,
        .received_ns = fbk_flight_time(now_ns, blocked_us),
        .ended_ns = now_ns,
    };
    fbk_flight_record(&worker->recorder, &record);
}
