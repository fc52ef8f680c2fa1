/* The table of ledger states against an array indexed by ledger, the limit, and master keys. */
#include "base/ledgers.h"

#include "check.h"

#define LEDGERS 20000u
#define ID_STEP 0x100000001ll /* also ids above 2^32 */

static void
test_against_an_array(void)
{
    static int64_t highest[LEDGERS]; /* -2 = absent */
    struct fbk_ledgers ledgers;
    uint64_t seed = 5, present = 0;
    for (uint32_t i = 0; i < LEDGERS; i++)
        highest[i] = -2;
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, LEDGERS), 0);
    for (uint32_t round = 0; round < 200000; round++) {
        uint32_t which = (uint32_t)(test_random(&seed) % LEDGERS);
        int64_t id = which * ID_STEP;
        struct fbk_ledger_state *state = fbk_ledgers_find(&ledgers, id);
        CHECK((state != NULL) == (highest[which] != -2));
        if (state != NULL) {
            CHECK_EQUAL(state->ledger_id, id);
            CHECK_EQUAL(state->highest_entry_id, highest[which]);
        }
        struct fbk_ledger_state *added = fbk_ledgers_add(&ledgers, id);
        CHECK(added != NULL && (state == NULL || state == added));
        if (state == NULL) {
            CHECK(added->highest_entry_id == -1 && added->lac == -1 && added->flags == 0 &&
                  added->deleted_s == 0);
            present++;
        }
        added->highest_entry_id = highest[which] = (int64_t)round;
        CHECK_EQUAL(ledgers.count, present);
    }
    uint64_t cursor = 0, seen = 0;
    for (const struct fbk_ledger_state *state;
         (state = fbk_ledgers_next(&ledgers, &cursor)) != NULL; seen++) {
        CHECK_EQUAL(state->highest_entry_id, highest[state->ledger_id / ID_STEP]);
        highest[state->ledger_id / ID_STEP] = -3; /* each only once */
    }
    CHECK_EQUAL(seen, present);
    /* 72 bytes, an index between 7/16 and 7/8 full, and a smaller one while it is being left. */
    CHECK(fbk_ledgers_memory_bytes(&ledgers) >= 76 * present &&
          fbk_ledgers_memory_bytes(&ledgers) <= 90 * present);
    fbk_ledgers_free(&ledgers);
}

/* While the index grows every ledger is found, nothing else is, and states stay where they are. */
static void
test_found_while_it_grows(void)
{
    struct fbk_ledgers ledgers;
    static struct fbk_ledger_state *at[LEDGERS];
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, UINT64_MAX), 0);
    uint64_t growing = 0;
    for (int64_t id = 0; id < (int64_t)LEDGERS; id++) {
        at[id] = fbk_ledgers_add(&ledgers, id * 3);
        CHECK(at[id] != NULL);
        growing += ledgers.old.slots != NULL;
        for (int64_t other = id; other >= 0; other = other * 2 / 3 - 1) {
            CHECK(fbk_ledgers_find(&ledgers, other * 3) == at[other]);
            CHECK(fbk_ledgers_find(&ledgers, other * 3 + 1) == NULL);
        }
    }
    CHECK(growing > LEDGERS / 50 && growing < LEDGERS / 2);
    fbk_ledgers_free(&ledgers);
}

/* A random walk over ids that come and go: growing, shrinking, and at the limit; checked against an
 * array. */
static void
test_removal_against_an_array(void)
{
    enum {
        IDS = 6000,
        MOST = 4000
    };
    static int64_t highest[IDS]; /* -2 = absent */
    struct fbk_ledgers ledgers;
    uint64_t seed = 11, present = 0, refused = 0, while_growing = 0, used = 0;
    for (uint32_t i = 0; i < IDS; i++)
        highest[i] = -2;
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, MOST), 0);
    for (uint32_t round = 0; round < 400000; round++) {
        uint32_t which = (uint32_t)(test_random(&seed) % IDS);
        int64_t id = which * ID_STEP;
        /* Of 16 steps so many add: waves of growth and of shrinking. */
        bool adds = test_random(&seed) % 16 < (round / 20000 % 2 ? 3u : 13u);
        struct fbk_ledger_state *state = fbk_ledgers_find(&ledgers, id);
        CHECK((state != NULL) == (highest[which] != -2));
        CHECK(!state || (state->ledger_id == id && state->highest_entry_id == highest[which]));
        if (adds) {
            struct fbk_ledger_state *added = fbk_ledgers_add(&ledgers, id);
            if (!state && present == MOST) {
                CHECK(added == NULL);
                refused++;
                continue;
            }
            CHECK(added != NULL && (state == NULL || added == state));
            CHECK(state ||
                  (added->highest_entry_id == -1 && added->lac == -1 && added->flags == 0));
            present += state == NULL;
            added->highest_entry_id = highest[which] = (int64_t)round;
            added->flags = 5;
        } else {
            while_growing += ledgers.old.slots && state;
            CHECK(fbk_ledgers_remove(&ledgers, id) == (state != NULL));
            CHECK(fbk_ledgers_find(&ledgers, id) == NULL && !fbk_ledgers_remove(&ledgers, id));
            present -= state != NULL;
            highest[which] = -2;
        }
        CHECK_EQUAL(ledgers.count, present);
        used = used > present ? used : present;
        CHECK_EQUAL(ledgers.used, used); /* places are taken again before new ones are */
    }
    CHECK(refused > 0 && while_growing > 0);
    uint64_t cursor = 0, seen = 0;
    for (const struct fbk_ledger_state *state;
         (state = fbk_ledgers_next(&ledgers, &cursor)) != NULL; seen++) {
        CHECK_EQUAL(state->highest_entry_id, highest[state->ledger_id / ID_STEP]);
        highest[state->ledger_id / ID_STEP] = -3; /* each only once */
    }
    CHECK_EQUAL(seen, present);
    for (uint64_t at = 0, stop_at = 100; at < ledgers.used; stop_at += 100) {
        while (fbk_ledgers_next_before(&ledgers, &at, stop_at) != NULL)
            seen--;
        CHECK(at == stop_at || at == ledgers.used);
    }
    CHECK_EQUAL(seen, 0);
    fbk_ledgers_free(&ledgers);
}

/* Ids that never come again: the table grows by none, and what is missing is missed soon. */
static void
test_others_come_for_those_that_go(void)
{
    struct fbk_ledgers ledgers;
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, 1000), 0);
    uint64_t memory_bytes = 0;
    for (int64_t id = 0; id < 300000; id++) {
        CHECK(fbk_ledgers_add(&ledgers, id) != NULL);
        if (id < 999)
            continue;
        CHECK(fbk_ledgers_add(&ledgers, INT64_MAX) == NULL); /* full */
        memory_bytes = memory_bytes ? memory_bytes : fbk_ledgers_memory_bytes(&ledgers);
        CHECK(fbk_ledgers_memory_bytes(&ledgers) <= memory_bytes);
        CHECK(fbk_ledgers_remove(&ledgers, id - 999) &&
              fbk_ledgers_find(&ledgers, id - 999) == NULL);
        CHECK(fbk_ledgers_find(&ledgers, id - 500)->ledger_id == id - 500);
    }
    /* no marks are left of those that went: a probe ends at the first free slot */
    uint64_t taken = 0;
    for (uint64_t slot = 0; slot < ledgers.index.slot_count; slot++)
        taken += ledgers.index.slots[slot] != 0;
    CHECK_EQUAL(taken, ledgers.count);
    while (ledgers.count > 0) {
        uint64_t cursor = 0;
        CHECK(fbk_ledgers_remove(&ledgers, fbk_ledgers_next(&ledgers, &cursor)->ledger_id));
    }
    CHECK(!fbk_ledgers_remove(&ledgers, -1) && fbk_ledgers_find(&ledgers, -1) == NULL);
    fbk_ledgers_free(&ledgers);
}

static void
test_reserve(void)
{
    struct fbk_ledgers ledgers;
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, LEDGERS), 0);
    for (int64_t id = 0; id < 3000; id++)
        CHECK(fbk_ledgers_add(&ledgers, id) != NULL);
    /* more than there may be: as many as there may be */
    CHECK(fbk_ledgers_reserve(&ledgers, 2 * (uint64_t)LEDGERS));
    uint64_t slot_count = ledgers.index.slot_count;
    CHECK(slot_count >= LEDGERS && slot_count < 4 * LEDGERS && ledgers.old.slots == NULL);
    for (int64_t id = 0; id < (int64_t)LEDGERS; id++)
        CHECK(fbk_ledgers_add(&ledgers, id) != NULL);
    CHECK(fbk_ledgers_add(&ledgers, LEDGERS) == NULL);
    CHECK(fbk_ledgers_reserve(&ledgers, 5) && ledgers.index.slot_count == slot_count);
    for (int64_t id = 0; id < (int64_t)LEDGERS; id++)
        CHECK(fbk_ledgers_find(&ledgers, id)->ledger_id == id);
    fbk_ledgers_free(&ledgers);
}

static void
test_limit(void)
{
    struct fbk_ledgers ledgers;
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, 1000), 0);
    for (int64_t id = 0; id < 1000; id++)
        CHECK(fbk_ledgers_add(&ledgers, id) != NULL);
    CHECK(fbk_ledgers_add(&ledgers, 1000) == NULL);
    CHECK(fbk_ledgers_add(&ledgers, 999) != NULL); /* those there stay usable */
    CHECK_EQUAL(ledgers.count, 1000);
    CHECK(fbk_ledgers_find(&ledgers, 1000) == NULL);
    CHECK(fbk_ledgers_add(&ledgers, -1) == NULL && fbk_ledgers_find(&ledgers, -1) == NULL);
    fbk_ledgers_free(&ledgers);
    CHECK_EQUAL(fbk_ledgers_init(&ledgers, 2), 0);
    CHECK(fbk_ledgers_add(&ledgers, INT64_MAX) != NULL &&
          fbk_ledgers_add(&ledgers, INT64_MIN) != NULL);
    CHECK_EQUAL(fbk_ledgers_find(&ledgers, INT64_MAX)->ledger_id, INT64_MAX);
    fbk_ledgers_free(&ledgers);
}

static void
test_master_keys(void)
{
    uint8_t a[FBK_MASTER_KEY_BYTES], b[FBK_MASTER_KEY_BYTES];
    test_fill(a, sizeof a, 1);
    memcpy(b, a, sizeof b);
    CHECK(fbk_master_key_equal(a, b));
    for (uint32_t bit = 0; bit < 8 * FBK_MASTER_KEY_BYTES; bit++) {
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
        CHECK(!fbk_master_key_equal(a, b));
        b[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
}

int
main(void)
{
    test_against_an_array();
    test_found_while_it_grows();
    test_removal_against_an_array();
    test_others_come_for_those_that_go();
    test_reserve();
    test_limit();
    test_master_keys();
    return 0;
}
