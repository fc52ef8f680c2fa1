/* How fast history may be read, so that adds and tail reads hardly notice.
 *
 * What they feel is measured where it shows: for an add the time from its arrival to its commit,
 * for a read that a write cache answers the time to its answer.  Every interval the 95th percentile
 * of each is held against what it is while no history is read; that is found out in short pauses
 * every few seconds.  Beyond one and a half times that the rate is halved, else it grows by a
 * sixteenth (as congestion control does, with delay for the signal).  There is a floor, so that
 * history is never starved: a lost bookie's copies are history, too.  When the two meet, the rate
 * begins there.
 *
 * The limit holds while adds are on their way, and for a moment behind the last one; in between,
 * history gets all.  Reads that a write cache answers count only beside adds: what was just written
 * and is read from its beginning comes out of the same cache, and is nobody's tail.
 *
 * Pure: the caller brings the time.
 *
 * Decision 55. */
#pragma once

#include "base/base.h"

#define FBK_PACE_FLOOR_BYTES (64ull * FBK_MIB) /* a second */
/* more than a bookie can send: no limit */
#define FBK_PACE_CEILING_BYTES (4096ull * FBK_MIB)
#define FBK_PACE_BUCKETS 128u

enum fbk_pace_signal {
    FBK_PACE_ADD = 0,
    FBK_PACE_TAIL = 1,
};
#define FBK_PACE_SIGNALS 2u

struct fbk_pace_delays {
    /* by the logarithm, eight steps an octave of microseconds */
    uint32_t counts[FBK_PACE_BUCKETS];
    uint32_t count;
    uint64_t usual_us; /* without history; 0 = unknown */
};

struct fbk_pace {
    struct fbk_pace_delays delays[FBK_PACE_SIGNALS];
    uint64_t rate_bytes; /* a second */
    /* below 0: more was sent than allowed, the next ones wait for it */
    int64_t tokens_bytes;
    uint64_t counted_ns;   /* tokens were last added */
    uint64_t interval_ns;  /* began */
    uint64_t listened_ns;  /* last pause */
    uint64_t used_bytes;   /* of history, in this interval */
    uint64_t added_ns;     /* adds were last counted */
    uint32_t adds_counted; /* in this interval, at the last look */
    bool is_present;       /* adds are on their way, or were a moment ago */
    bool has_foreground;   /* adds, in the interval before */
    bool settling;         /* the beginning of that, which is not counted */
    bool listening;        /* nothing is let through: what is usual is being measured */
};

void fbk_pace_init(struct fbk_pace *pace, uint64_t now_ns);
/* Somebody in the foreground was served after so long. */
void fbk_pace_observe(struct fbk_pace *pace, enum fbk_pace_signal signal, uint64_t delay_us);
/* Bytes of history that may be sent now.  adding: some adds are on their way. */
uint64_t fbk_pace_allows(struct fbk_pace *pace, uint64_t now_ns, bool adding);
/* Is there a limit, by what fbk_pace_allows saw last? */
bool fbk_pace_is_held(const struct fbk_pace *pace);
/* So many were sent, possibly more than were allowed. */
void fbk_pace_used(struct fbk_pace *pace, uint64_t bytes);
