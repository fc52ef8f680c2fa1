/* Delays of the foreground into a rate for history. */
#include "index/pace.h"

#define INTERVAL_NS 50000000ull
/* so long without a delay to measure: what was found out is forgotten */
#define QUIET_NS 500000000ull
#define GRACE_NS 20000000ull /* the limit goes on for so long without an add */
#define LISTEN_EVERY_NS 2000000000ull
/* what was sent before a pause is still felt for so long */
#define SETTLE_NS 20000000ull
#define SAMPLES_MIN 16u      /* fewer say nothing: the interval goes on */
#define BURST_NS 20000000ull /* tokens are saved up for so long */
#define LONG_NS 1000000000ull
#define SLACK_US 30u /* timers and wakes alone differ by that */
#define PERCENT 95u

void
fbk_pace_init(struct fbk_pace *pace, uint64_t now_ns)
{
    memset(pace, 0, sizeof *pace);
    pace->rate_bytes = FBK_PACE_CEILING_BYTES;
    pace->counted_ns = pace->interval_ns = pace->listened_ns = now_ns;
}

static uint32_t
bucket_of(uint64_t delay_us)
{
    if (delay_us < 8)
        return (uint32_t)delay_us;
    uint32_t octave = 63u - (uint32_t)__builtin_clzll(delay_us);
    uint32_t bucket = (octave - 2) * 8 + (uint32_t)(delay_us >> (octave - 3) & 7);
    return bucket < FBK_PACE_BUCKETS ? bucket : FBK_PACE_BUCKETS - 1;
}

static uint64_t
least_in(uint32_t bucket)
{
    if (bucket < 8)
        return bucket;
    return (uint64_t)(8 + bucket % 8) << (bucket / 8 - 1);
}

void
fbk_pace_observe(struct fbk_pace *pace, enum fbk_pace_signal signal, uint64_t delay_us)
{
    struct fbk_pace_delays *delays = &pace->delays[signal];
    delays->counts[bucket_of(delay_us)]++;
    delays->count++;
}

static uint64_t
percentile_us(const struct fbk_pace_delays *delays)
{
    uint64_t wanted = ((uint64_t)delays->count * PERCENT + 99) / 100, counted = 0;
    for (uint32_t bucket = 0; bucket < FBK_PACE_BUCKETS; bucket++) {
        counted += delays->counts[bucket];
        if (counted >= wanted)
            return least_in(bucket);
    }
    return least_in(FBK_PACE_BUCKETS - 1);
}

/* What this interval says of one signal.  True: it is disturbed. */
static bool
judge(const struct fbk_pace *pace, struct fbk_pace_delays *delays)
{
    if (delays->count < SAMPLES_MIN)
        return false;
    uint64_t now_us = percentile_us(delays);
    /* Nothing was sent that could have disturbed it: that is how it usually is. */
    if (pace->listening || pace->used_bytes == 0 || delays->usual_us == 0)
        delays->usual_us = delays->usual_us == 0 ? now_us : (delays->usual_us * 3 + now_us) / 4;
    return now_us > delays->usual_us + delays->usual_us / 2 + SLACK_US;
}

static void
forget(struct fbk_pace *pace)
{
    for (uint32_t n = 0; n < FBK_PACE_SIGNALS; n++) {
        memset(pace->delays[n].counts, 0, sizeof pace->delays[n].counts);
        pace->delays[n].count = 0;
    }
    pace->adds_counted = 0;
}

static void
end_interval(struct fbk_pace *pace, uint64_t now_ns)
{
    bool any = pace->delays[FBK_PACE_ADD].count > 0, disturbed = false;
    for (uint32_t n = 0; any && n < FBK_PACE_SIGNALS; n++)
        disturbed = judge(pace, &pace->delays[n]) || disturbed;
    forget(pace);
    bool meets = any && !pace->listening && (!pace->has_foreground || pace->used_bytes == 0);
    pace->has_foreground = any;
    if (!any)
        pace->rate_bytes = FBK_PACE_CEILING_BYTES;
    else if (meets)
        /* more would be felt before it is measured */
        pace->rate_bytes = FBK_PACE_FLOOR_BYTES;
    else if (pace->used_bytes > 0)
        pace->rate_bytes =
            disturbed ? pace->rate_bytes / 2 : pace->rate_bytes + pace->rate_bytes / 16;
    if (pace->rate_bytes > FBK_PACE_CEILING_BYTES)
        pace->rate_bytes = FBK_PACE_CEILING_BYTES;
    if (pace->rate_bytes < FBK_PACE_FLOOR_BYTES)
        pace->rate_bytes = FBK_PACE_FLOOR_BYTES;
    /* Only where there is something to listen to, and something to hold back. */
    pace->listening = any && !pace->listening && pace->used_bytes > 0 &&
                      now_ns - pace->listened_ns >= LISTEN_EVERY_NS;
    pace->settling = pace->listening;
    if (pace->listening)
        pace->listened_ns = now_ns;
    pace->interval_ns = now_ns;
    pace->used_bytes = 0;
}

static void
note_adds(struct fbk_pace *pace, uint64_t now_ns, bool adding)
{
    if (adding || pace->delays[FBK_PACE_ADD].count != pace->adds_counted) {
        pace->added_ns = now_ns;
        pace->is_present = true;
    } else if (now_ns - pace->added_ns >= GRACE_NS)
        pace->is_present = false;
    pace->adds_counted = pace->delays[FBK_PACE_ADD].count;
}

bool
fbk_pace_is_held(const struct fbk_pace *pace)
{
    return pace->is_present && (pace->listening || pace->rate_bytes < FBK_PACE_CEILING_BYTES);
}

uint64_t
fbk_pace_allows(struct fbk_pace *pace, uint64_t now_ns, bool adding)
{
    note_adds(pace, now_ns, adding);
    bool is_enough = pace->delays[FBK_PACE_ADD].count >= SAMPLES_MIN ||
                     pace->delays[FBK_PACE_TAIL].count >= SAMPLES_MIN;
    uint64_t age_ns = now_ns - pace->interval_ns;
    if (pace->settling && age_ns >= SETTLE_NS) {
        forget(pace);
        pace->settling = false;
        pace->interval_ns = now_ns;
    } else if (age_ns >= QUIET_NS || (age_ns >= INTERVAL_NS && is_enough))
        end_interval(pace, now_ns);
    else if (pace->listening && !pace->settling && age_ns >= INTERVAL_NS)
        /* too few came to say anything: history does not stand still for that */
        pace->listening = false;
    uint64_t passed_ns = now_ns - pace->counted_ns;
    uint64_t burst_bytes = pace->rate_bytes / (1000000000ull / BURST_NS);
    pace->counted_ns = now_ns;
    pace->tokens_bytes +=
        (int64_t)(pace->rate_bytes / 1000 * (passed_ns < LONG_NS ? passed_ns : LONG_NS) / 1000000);
    bool is_held = fbk_pace_is_held(pace);
    if (pace->tokens_bytes > (int64_t)burst_bytes || !is_held)
        pace->tokens_bytes = (int64_t)burst_bytes;
    if (!is_held)
        return UINT64_MAX;
    if (pace->listening)
        return 0;
    return pace->tokens_bytes > 0 ? (uint64_t)pace->tokens_bytes : 0;
}

void
fbk_pace_used(struct fbk_pace *pace, uint64_t bytes)
{
    pace->used_bytes += bytes;
    pace->tokens_bytes -= (int64_t)bytes;
}
