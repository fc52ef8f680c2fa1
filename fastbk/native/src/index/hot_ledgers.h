/* Which ledgers get most of a bookie's adds: a sketch in constant memory, over windows of some
 * seconds.
 *
 * Space-Saving over a sample of the entries: FBK_HOT_LEDGERS slots; a ledger without one takes the
 * slot with the fewest adds, and its count goes on from there, so the count is at most `adds_over`
 * too high.  Each ledger with more than one in FBK_HOT_LEDGERS of the window's adds has a slot. The
 * first FBK_HOT_EXACT records of a window are all counted, so that a quiet bookie's window is
 * exact; of later ones one entry in FBK_HOT_STRIDE is, at random distances: at equal ones, ledgers
 * that are written in turn would be missed.  Everything but a sampled entry costs a subtraction and
 * a branch.
 *
 * Pure: the caller brings the time.  The index publishes each window in its segment, for the
 * supervisor.
 *
 * Decision 130. */
#pragma once

#include "base/layout.h"

#define FBK_HOT_WINDOW_NS 4000000000ull
#define FBK_HOT_EXACT 1024u
#define FBK_HOT_STRIDE 64u

struct fbk_hot_sketch {
    /* entries until the next one that is counted, that one included; 1: each is */
    uint64_t left;
    uint64_t random;
    uint64_t began_ns;            /* of the window */
    uint32_t exact_left;          /* records that are all counted */
    uint32_t count;               /* slots in use */
    int64_t ids[FBK_HOT_LEDGERS]; /* side by side: each counted entry searches them */
    uint64_t adds[FBK_HOT_LEDGERS];
    uint64_t adds_over[FBK_HOT_LEDGERS];
    uint64_t size_bytes[FBK_HOT_LEDGERS];
};

void fbk_hot_init(struct fbk_hot_sketch *sketch, uint64_t seed, uint64_t now_ns);
/* Counts a record of which an entry is in the sample; call fbk_hot_note. */
void fbk_hot_count(struct fbk_hot_sketch *sketch, int64_t ledger_id, uint32_t entry_count,
                   uint32_t size_bytes);
/* Publishes the window, which is over, and begins the next one; call fbk_hot_roll. */
void fbk_hot_publish(struct fbk_hot_sketch *sketch, struct fbk_hot_windows *windows,
                     uint64_t now_ns);

/* For each add that is taken in.  entry_count: 1 or more. */
static inline void
fbk_hot_note(struct fbk_hot_sketch *sketch, int64_t ledger_id, uint32_t entry_count,
             uint32_t size_bytes)
{
    if (FBK_LIKELY(sketch->left > entry_count))
        sketch->left -= entry_count;
    else
        fbk_hot_count(sketch, ledger_id, entry_count, size_bytes);
}

/* Once in a turn of the loop, with a time that the loop has anyway. */
static inline void
fbk_hot_roll(struct fbk_hot_sketch *sketch, struct fbk_hot_windows *windows, uint64_t now_ns)
{
    if (FBK_UNLIKELY(now_ns - sketch->began_ns >= FBK_HOT_WINDOW_NS))
        fbk_hot_publish(sketch, windows, now_ns);
}
