/* The sketch of hot ledgers: exact while little comes, near enough when much does, and bounded by
 * its slots. */
#include "index/hot_ledgers.h"

#include "check.h"

#define SECOND_NS 1000000000ull

static struct fbk_hot_sketch sketch;
static struct fbk_hot_windows windows;

static void
restart(uint64_t seed)
{
    memset(&windows, 0, sizeof windows);
    fbk_hot_init(&sketch, seed, SECOND_NS);
}

/* The window that ends now; it must be over. */
static const struct fbk_hot_window *
publish(uint64_t now_ns)
{
    const uint64_t before = atomic_load(&windows.written);
    fbk_hot_roll(&sketch, &windows, now_ns);
    CHECK(atomic_load(&windows.written) == before + 1);
    return &windows.windows[before % FBK_HOT_WINDOWS];
}

static const struct fbk_hot_ledger *
find(const struct fbk_hot_window *window, int64_t ledger_id)
{
    for (uint32_t n = 0; n < window->count; n++)
        if (window->ledgers[n].ledger_id == ledger_id)
            return &window->ledgers[n];
    return NULL;
}

static void
test_a_quiet_window_is_exact(void)
{
    restart(1);
    for (uint32_t n = 0; n < FBK_HOT_EXACT; n++)
        fbk_hot_note(&sketch, n % 3, 1, 100);
    fbk_hot_roll(&sketch, &windows, SECOND_NS + FBK_HOT_WINDOW_NS - 1);
    CHECK(atomic_load(&windows.written) == 0);
    const struct fbk_hot_window *window = publish(SECOND_NS + FBK_HOT_WINDOW_NS);
    CHECK(window->began_ns == SECOND_NS && window->ended_ns == SECOND_NS + FBK_HOT_WINDOW_NS &&
          window->count == 3);
    uint64_t adds = 0;
    for (uint32_t n = 0; n < 3; n++) {
        adds += find(window, n)->adds;
        CHECK(find(window, n)->size_bytes == 100 * find(window, n)->adds);
        CHECK(find(window, n)->adds_over == 0);
    }
    CHECK(adds == FBK_HOT_EXACT);
}

static void
test_a_busy_window_is_near(void)
{
    restart(2);
    const uint32_t rounds = 400000;
    /* In turn, with a period that an equal distance would always meet at the same ledger. */
    for (uint32_t n = 0; n < rounds; n++)
        fbk_hot_note(&sketch, n % FBK_HOT_STRIDE, 1, 1000);
    const struct fbk_hot_window *window = publish(SECOND_NS + FBK_HOT_WINDOW_NS);
    CHECK(window->count == FBK_HOT_STRIDE);
    uint64_t adds = 0;
    for (uint32_t n = 0; n < FBK_HOT_STRIDE; n++) {
        const struct fbk_hot_ledger *ledger = find(window, n);
        CHECK(ledger != NULL);
        adds += ledger->adds;
        CHECK(ledger->adds > rounds / FBK_HOT_STRIDE / 2 &&
              ledger->adds < rounds / FBK_HOT_STRIDE * 2);
    }
    CHECK(adds > rounds / 20 * 19 && adds < rounds / 20 * 21);
}

static void
test_batches_count_by_their_entries(void)
{
    restart(3);
    uint64_t entries = 0;
    for (uint32_t n = 0; n < 100000; n++) {
        const uint32_t count = n % 2 ? 200 : 1;
        fbk_hot_note(&sketch, n % 2, count, count * 50);
        entries += n % 2 ? count : 0;
    }
    const struct fbk_hot_window *window = publish(SECOND_NS + FBK_HOT_WINDOW_NS);
    const struct fbk_hot_ledger *ledger = find(window, 1);
    CHECK(ledger->adds > entries / 20 * 19 && ledger->adds < entries / 20 * 21);
    CHECK(ledger->size_bytes == 50 * ledger->adds);
    CHECK(find(window, 0)->adds < entries / 100);
}

static void
test_hot_ledgers_keep_their_slot_among_many(void)
{
    restart(4);
    const uint32_t rounds = 1000000;
    for (uint32_t n = 0; n < rounds; n++)
        /* every other ledger is new */
        fbk_hot_note(&sketch, n % 10 == 0 ? 7 : 1000 + (int64_t)n, 1, 10);
    const struct fbk_hot_window *window = publish(SECOND_NS + FBK_HOT_WINDOW_NS);
    CHECK(window->count == FBK_HOT_LEDGERS);
    const struct fbk_hot_ledger *hot = find(window, 7);
    CHECK(hot != NULL && hot->adds > rounds / 10 / 10 * 9);
    CHECK(hot->adds - hot->adds_over <= rounds / 10 / 10 * 11);
    uint64_t adds = 0, over = 0;
    for (uint32_t n = 0; n < window->count; n++) {
        adds += window->ledgers[n].adds;
        over = window->ledgers[n].adds_over > over ? window->ledgers[n].adds_over : over;
    }
    CHECK(over <= adds / FBK_HOT_LEDGERS + FBK_HOT_STRIDE); /* Space-Saving's bound */
}

static void
test_a_window_forgets_the_one_before(void)
{
    restart(5);
    for (uint32_t n = 0; n < 100000; n++)
        fbk_hot_note(&sketch, 1, 1, 10);
    (void)publish(SECOND_NS + FBK_HOT_WINDOW_NS);
    fbk_hot_note(&sketch, 2, 3, 30);
    const struct fbk_hot_window *window = publish(SECOND_NS + 2 * FBK_HOT_WINDOW_NS);
    CHECK(window->count == 1 && window->ledgers[0].ledger_id == 2 && window->ledgers[0].adds == 3);
    window = publish(SECOND_NS + 9 * FBK_HOT_WINDOW_NS);
    CHECK(window->count == 0 && window->began_ns == SECOND_NS + 2 * FBK_HOT_WINDOW_NS);
}

static void
test_a_record_without_entries_is_nothing(void)
{
    restart(6);
    fbk_hot_note(&sketch, 1, 0, 10);
    CHECK(sketch.count == 0);
}

int
main(void)
{
    test_a_quiet_window_is_exact();
    test_a_busy_window_is_near();
    test_batches_count_by_their_entries();
    test_hot_ledgers_keep_their_slot_among_many();
    test_a_window_forgets_the_one_before();
    test_a_record_without_entries_is_nothing();
    return 0;
}
