/* Which ledgers a quota of ledgers counts as begun, and which ones it remembers: quotas alone,
 * without time. */
#include "check.h"

#include "base/segment.h"
#include "worker/worker.h"

#define NEARLY_NO_RATE 1e-9 /* one ledger at first, then none as long as a test runs */
#define ROOM (FBK_QUOTA_SETS * FBK_QUOTA_WAYS)

static struct fbk_worker worker;
static struct fbk_connection connections[3];

static void
make(double ledgers_per_s)
{
    memset(&worker, 0, sizeof worker);
    memset(connections, 0, sizeof connections);
    fbk_quotas_init(&worker);
    CHECK(worker.quotas != NULL && worker.quota_ledgers != NULL);
    fbk_worker_set_quota(&worker, 1, 0, 0, ledgers_per_s);
    fbk_worker_set_quota(&worker, 2, 0, 0, ledgers_per_s);
    connections[0].quota = connections[1].quota = 1;
    connections[2].quota = 2;
}

static bool
try_add(uint32_t connection, int64_t ledger_id, uint32_t flags, uint32_t entries)
{
    const struct fbk_request request = {
        .ledger_id = ledger_id, .flags = flags, .entry_count = entries, .body_bytes = 100};
    if (!fbk_quota_allows(&worker, &connections[connection], &request))
        return false;
    fbk_quota_charge(&worker, &connections[connection], &request, entries);
    return true;
}

static bool
add(uint32_t connection, int64_t ledger_id)
{
    return try_add(connection, ledger_id, 0, 1);
}

/* Ledgers that could be added to without a beginning. */
static uint32_t
count_known(int64_t first, int64_t last)
{
    uint32_t count = 0;
    worker.quotas[1].ledgers_per_s = NEARLY_NO_RATE;
    worker.quotas[1].ledgers = 0;
    for (int64_t n = 0; n <= last - first; n++) {
        const struct fbk_request request = {.ledger_id = first + n};
        count += fbk_quota_allows(&worker, &connections[0], &request);
    }
    return count;
}

static void
test_a_new_ledger_waits_and_known_ones_do_not(void)
{
    make(NEARLY_NO_RATE);
    CHECK(add(0, 5));
    CHECK(add(0, 5) && add(1, 5) && try_add(1, 5, 0, 20));
    CHECK(!add(1, 6) && !try_add(1, 6, FBK_FLAG_DEFERRED_SYNC, 1) && !try_add(1, 6, 0, 20));
    CHECK(!fbk_quota_may_go_on(&worker, &connections[1]));
    CHECK(add(0, 5));
    CHECK(add(2, 6)); /* another principal */
    CHECK(!fbk_quota_may_go_on(&worker, &connections[1]));
    worker.quotas[1].ledgers = 1; /* as time would bring it */
    CHECK(fbk_quota_may_go_on(&worker, &connections[1]));
    CHECK(add(1, 6) && add(1, 6) && add(0, 6) && !add(0, 7));
    fbk_quotas_free(&worker);
}

static void
test_who_waits_for_a_ledger_goes_on_when_another_connection_has_begun_it(void)
{
    make(NEARLY_NO_RATE);
    CHECK(add(0, 5) && !add(1, 6));
    worker.quotas[1].ledgers = 1;
    CHECK(add(0, 6));
    CHECK(fbk_quota_may_go_on(&worker, &connections[1]));
    fbk_quotas_free(&worker);
}

static void
test_recovery_adds_begin_ledgers_as_others_do(void)
{
    make(NEARLY_NO_RATE);
    CHECK(try_add(0, 7, FBK_FLAG_RECOVERY, 1));
    CHECK(try_add(0, 7, FBK_FLAG_RECOVERY, 1) && add(0, 7)); /* it is known by them */
    CHECK(!try_add(0, 8, FBK_FLAG_RECOVERY, 1) && !add(0, 8));
    fbk_quotas_free(&worker);
}

static void
test_a_burst_is_a_tenth_of_a_second_and_at_least_one_ledger(void)
{
    make(NEARLY_NO_RATE);
    CHECK_EQUAL(worker.quotas[1].ledgers, 1);
    fbk_worker_set_quota(&worker, 1, 0, 0, 3);
    CHECK_EQUAL(worker.quotas[1].ledgers, 1);
    fbk_worker_set_quota(&worker, 1, 0, 0, 400);
    CHECK_EQUAL(worker.quotas[1].ledgers, 40);
    /* an hour without adds saves nothing more */
    worker.quotas[1].filled_ns -= 3600ull * 1000000000u;
    CHECK(add(0, 5));
    CHECK_EQUAL(worker.quotas[1].ledgers, 39);
    fbk_quotas_free(&worker);
}

static void
test_any_id_has_a_place(void)
{
    static const int64_t ids[] = {0, 1, INT64_MAX - 1, INT64_MAX};
    make(1e9);
    for (uint32_t i = 0; i < 4; i++)
        CHECK(add(0, ids[i]));
    for (uint32_t i = 0; i < 4; i++)
        CHECK_EQUAL(count_known(ids[i], ids[i]), 1);
    CHECK_EQUAL(count_known(2, 1000), 0);
    fbk_quotas_free(&worker);
}

static void
test_the_ledgers_added_to_last_are_remembered(void)
{
    make(1e9);
    for (int64_t ledger_id = 0; ledger_id < 3 * ROOM; ledger_id++)
        CHECK(add(0, ledger_id) && add(0, INT64_MAX)); /* one is added to all the time */
    CHECK(count_known(0, 3 * ROOM) <= ROOM);
    CHECK(count_known(2 * ROOM, 3 * ROOM) > ROOM * 3 / 4);
    CHECK_EQUAL(count_known(3 * ROOM - ROOM / 4, 3 * ROOM - 1), ROOM / 4);
    CHECK_EQUAL(count_known(0, ROOM), 0);
    CHECK_EQUAL(count_known(INT64_MAX - 1, INT64_MAX - 1), 0);
    const struct fbk_request busy = {.ledger_id = INT64_MAX};
    CHECK(fbk_quota_allows(&worker, &connections[0], &busy));
    CHECK(!add(0, 0)); /* what was forgotten begins again */
    worker.quotas[1].ledgers = 1;
    CHECK(add(0, 0) && add(0, 0));
    fbk_quotas_free(&worker);
}

static void
test_to_another_principal_all_ledgers_are_new(void)
{
    make(1e9);
    CHECK(add(0, 5) && add(2, 5));
    fbk_worker_set_quota(&worker, 1, 0, 0, 1e9);
    CHECK_EQUAL(count_known(0, 100), 0);
    fbk_worker_set_quota(&worker, 1, 0, 0, 1e9);
    CHECK(add(0, 5));
    /* one without a bound, then one with it again */
    fbk_worker_set_quota(&worker, 1, 0, 0, 0);
    CHECK(add(0, 6));
    fbk_worker_set_quota(&worker, 1, 0, 0, NEARLY_NO_RATE);
    CHECK_EQUAL(count_known(0, 100), 0);
    worker.quotas[2].ledgers_per_s = NEARLY_NO_RATE;
    worker.quotas[2].ledgers = 0;
    CHECK(add(2, 5) && !add(2, 6)); /* nobody else's */
    fbk_quotas_free(&worker);
}

static void
test_without_a_rate_of_ledgers_nothing_is_remembered(void)
{
    static const struct fbk_quota_ledgers none;
    make(0);
    fbk_worker_set_quota(&worker, 2, 1000000, 1u << 30, 0);
    for (int64_t ledger_id = 0; ledger_id < 1000; ledger_id++)
        CHECK(add(0, ledger_id) && add(2, ledger_id));
    CHECK(memcmp(&worker.quota_ledgers[1], &none, sizeof none) == 0);
    CHECK(memcmp(&worker.quota_ledgers[2], &none, sizeof none) == 0);
    fbk_quotas_free(&worker);
}

static void
test_the_other_rates_hold_for_known_ledgers(void)
{
    make(1e9);
    fbk_worker_set_quota(&worker, 1, 1, 0, 1e9);
    CHECK(try_add(0, 5, 0, 1000000) && !add(0, 5));
    fbk_worker_set_quota(&worker, 1, 0, 1, 1e9);
    worker.quotas[1].bytes = 1;
    CHECK(add(0, 5) && !add(0, 5));
    fbk_quotas_free(&worker);
}

int
main(void)
{
    test_a_new_ledger_waits_and_known_ones_do_not();
    test_who_waits_for_a_ledger_goes_on_when_another_connection_has_begun_it();
    test_recovery_adds_begin_ledgers_as_others_do();
    test_a_burst_is_a_tenth_of_a_second_and_at_least_one_ledger();
    test_any_id_has_a_place();
    test_the_ledgers_added_to_last_are_remembered();
    test_to_another_principal_all_ledgers_are_new();
    test_without_a_rate_of_ledgers_nothing_is_remembered();
    test_the_other_rates_hold_for_known_ledgers();
    return 0;
}
