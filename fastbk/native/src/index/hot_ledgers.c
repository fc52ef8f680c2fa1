#include "index/hot_ledgers.h"

/* xorshift64*: the distances have to be irregular, no more. */
static uint64_t
next_random(struct fbk_hot_sketch *sketch)
{
    uint64_t x = sketch->random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    sketch->random = x;
    return x * 0x2545f4914f6cdd1dull;
}

/* 1 to 2 * FBK_HOT_STRIDE - 1, each as often. */
static uint64_t
distance(struct fbk_hot_sketch *sketch)
{
    return 1 + (((next_random(sketch) >> 32) * (2 * FBK_HOT_STRIDE - 1)) >> 32);
}

static void
begin(struct fbk_hot_sketch *sketch, uint64_t now_ns)
{
    sketch->began_ns = now_ns;
    sketch->exact_left = FBK_HOT_EXACT;
    sketch->left = 1;
    sketch->count = 0;
}

void
fbk_hot_init(struct fbk_hot_sketch *sketch, uint64_t seed, uint64_t now_ns)
{
    memset(sketch, 0, sizeof *sketch);
    sketch->random = seed | 1;
    begin(sketch, now_ns);
}

static uint32_t
slot_of(struct fbk_hot_sketch *sketch, int64_t ledger_id)
{
    for (uint32_t n = 0; n < sketch->count; n++)
        if (sketch->ids[n] == ledger_id)
            return n;
    if (sketch->count < FBK_HOT_LEDGERS) {
        const uint32_t free = sketch->count++;
        sketch->adds[free] = sketch->adds_over[free] = sketch->size_bytes[free] = 0;
        sketch->ids[free] = ledger_id;
        return free;
    }
    uint32_t least = 0;
    for (uint32_t n = 1; n < FBK_HOT_LEDGERS; n++)
        if (sketch->adds[n] < sketch->adds[least])
            least = n;
    sketch->ids[least] = ledger_id;
    sketch->adds_over[least] = sketch->adds[least];
    sketch->size_bytes[least] = 0; /* of what is certain only */
    return least;
}

void
fbk_hot_count(struct fbk_hot_sketch *sketch, int64_t ledger_id, uint32_t entry_count,
              uint32_t size_bytes)
{
    uint64_t adds = entry_count; /* that it stands for */
    if (sketch->exact_left > 0) {
        if (--sketch->exact_left == 0)
            sketch->left = distance(sketch);
    } else {
        uint64_t rest = entry_count;
        adds = 0;
        while (sketch->left <= rest) { /* at most entry_count times */
            rest -= sketch->left;
            adds += FBK_HOT_STRIDE;
            sketch->left = distance(sketch);
        }
        sketch->left -= rest;
    }
    const uint32_t slot = slot_of(sketch, ledger_id);
    sketch->adds[slot] += adds;
    sketch->size_bytes[slot] += adds * size_bytes / entry_count;
}

void
fbk_hot_publish(struct fbk_hot_sketch *sketch, struct fbk_hot_windows *windows, uint64_t now_ns)
{
    const uint64_t number = atomic_load_explicit(&windows->written, memory_order_relaxed);
    /* Who reads a slot meanwhile finds `written` moved on by the time that it has copied it, and
     * copies once more. */
    struct fbk_hot_window *window = &windows->windows[number % FBK_HOT_WINDOWS];
    window->began_ns = sketch->began_ns;
    window->ended_ns = now_ns;
    window->count = sketch->count;
    for (uint32_t n = 0; n < sketch->count; n++) {
        window->ledgers[n] = (struct fbk_hot_ledger){
            .ledger_id = sketch->ids[n],
            .adds = sketch->adds[n],
            .adds_over = sketch->adds_over[n],
            .size_bytes = sketch->size_bytes[n],
        };
    }
    atomic_store_explicit(&windows->written, number + 1, memory_order_release);
    begin(sketch, now_ns);
}
