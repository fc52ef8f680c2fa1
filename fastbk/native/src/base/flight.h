/* The flight recorder: what became of commits and batches that took long, stage by stage, in the
 * recorder's own segment.
 *
 * Nothing here runs once an entry.  A stage's times are those that a batch or wake-up has anyway;
 * only what was slow costs more.  Bounded: the newest FBK_FLIGHT_RECORDS a process.  The supervisor
 * reads and judges (fastbk/server/supervision/slow_reports.py).
 *
 * Decision 86. */
#pragma once

#include "base/layout.h"

#define FBK_FLIGHT_SLOW_NS 10000000u
#define FBK_FLIGHT_SLOW_US (FBK_FLIGHT_SLOW_NS / 1000u)

/* When this process was last continued after a SIGSTOP; 0: never. */
extern _Atomic uint64_t fbk_flight_continued_ns;

/* What the thread had used of processors at some moment. One thread's, private. */
struct fbk_flight_sample {
    uint64_t at_ns;
    uint64_t processor_ns;
    uint64_t delayed_ns; /* runnable, without a processor */
    uint64_t voluntary;  /* context switches */
    uint64_t involuntary;
};

#define FBK_FLIGHT_SAMPLES 4u
struct fbk_flight_recorder {
    struct fbk_flight *flight; /* in shared memory; NULL: nothing is recorded */
    /* the newest first, the others ever further back */
    struct fbk_flight_sample samples[FBK_FLIGHT_SAMPLES];
    uint64_t last_ns;     /* of the last record */
    int32_t schedstat_fd; /* -1: not there */
};

void fbk_flight_open(struct fbk_flight_recorder *recorder, struct fbk_flight *flight);
void fbk_flight_close(struct fbk_flight_recorder *recorder);
/* Takes a new sample.  Some microseconds: call fbk_flight_sample. */
void fbk_flight_take_sample(struct fbk_flight_recorder *recorder, uint64_t now_ns);
/* Fills in what the thread used since the newest sample from before the record's begin, and
 * publishes it. */
void fbk_flight_record(struct fbk_flight_recorder *recorder, struct fbk_flight_record *record);

/* Once in a turn of the thread's loop, with a time that the loop has anyway: at most 50 samples a
 * second. */
static inline void
fbk_flight_sample(struct fbk_flight_recorder *recorder, uint64_t now_ns)
{
    if (FBK_UNLIKELY(now_ns - recorder->samples[0].at_ns >= 2u * FBK_FLIGHT_SLOW_NS))
        fbk_flight_take_sample(recorder, now_ns);
}

/* Of a burst that waited for the same thing one record is enough. */
static inline bool
fbk_flight_is_due(const struct fbk_flight_recorder *recorder, uint64_t now_ns)
{
    return now_ns - recorder->last_ns >= FBK_FLIGHT_SLOW_NS;
}

/* The full time of a stamp of 32 bits of microseconds that lies less than an hour back. */
static inline uint64_t
fbk_flight_time(uint64_t now_ns, uint32_t stamp_us)
{
    uint32_t ago_us = (uint32_t)(now_ns / 1000u) - stamp_us;
    return now_ns - (uint64_t)ago_us * 1000u;
}
