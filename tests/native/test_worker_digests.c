/* What a worker remembers of ledgers' digests, and when it asks: the table alone, with a clock of
 * the test's. */
#include "check.h"

#include "base/segment.h"
#include "worker/worker.h"

static struct fbk_worker worker;
static struct fbk_digests *digests = &worker.digests;
static int64_t wanted[FBK_DIGESTS_WANTED_MAX];

static void
make(uint32_t digests_max)
{
    memset(&worker, 0, sizeof worker);
    worker.options.apache_digests_max = digests_max;
    CHECK_EQUAL(fbk_digests_init(&worker), 0);
    digests->now_s = UINT32_MAX - 2; /* the clock may wrap */
}

static bool
look(int64_t ledger_id, uint32_t type_wanted)
{
    uint32_t type = 99;
    bool is_wanted = fbk_digests_find(digests, ledger_id, &type);
    CHECK_EQUAL(type, type_wanted);
    return is_wanted;
}

static void
tell(int64_t ledger_id, uint8_t type)
{
    fbk_worker_digests_known(&worker, &ledger_id, &type, 1);
}

static int32_t
fetch(uint32_t most)
{
    return fbk_worker_digests_wanted(&worker, wanted, most);
}

static void
test_the_unknown_is_asked_for_every_five_seconds(void)
{
    make(64);
    static const int64_t ids[] = {0, 7, INT64_MAX};
    for (uint32_t i = 0; i < 3; i++) {
        CHECK(look(ids[i], FBK_DIGEST_NONE));
        CHECK(!look(ids[i], FBK_DIGEST_NONE));
    }
    /* no ledger has such an id */
    CHECK(!look(-1, FBK_DIGEST_NONE) && !look(INT64_MIN, FBK_DIGEST_NONE));
    CHECK_EQUAL(fetch(2), 2);
    CHECK(wanted[0] == 0 && wanted[1] == 7);
    CHECK_EQUAL(fetch(9), 1);
    CHECK(wanted[0] == INT64_MAX);
    CHECK_EQUAL(fetch(9), 0);
    digests->now_s += FBK_DIGESTS_REPEAT_S - 1;
    CHECK(!look(7, FBK_DIGEST_NONE));
    digests->now_s++;
    CHECK(look(7, FBK_DIGEST_NONE) && !look(7, FBK_DIGEST_NONE));
    fbk_digests_free(&worker);
}

static void
test_the_known_counts_on_while_it_is_asked_for_again(void)
{
    make(64);
    tell(7, FBK_DIGEST_CRC32C);
    tell(8, FBK_DIGEST_NONE);
    tell(9, 200); /* there is no such type */
    tell(-5, FBK_DIGEST_CRC32);
    CHECK(!look(7, FBK_DIGEST_CRC32C) && !look(8, FBK_DIGEST_NONE) && !look(9, FBK_DIGEST_NONE));
    digests->now_s += FBK_DIGESTS_OLD_S - 1;
    CHECK(!look(7, FBK_DIGEST_CRC32C) && !look(8, FBK_DIGEST_NONE));
    digests->now_s++;
    CHECK(look(7, FBK_DIGEST_CRC32C) && !look(7, FBK_DIGEST_CRC32C) && look(8, FBK_DIGEST_NONE));
    digests->now_s += FBK_DIGESTS_REPEAT_S;
    CHECK(look(7, FBK_DIGEST_CRC32C));
    tell(7, FBK_DIGEST_HMAC);
    digests->now_s += FBK_DIGESTS_REPEAT_S;
    CHECK(!look(7, FBK_DIGEST_HMAC));
    fbk_digests_free(&worker);
}

static void
test_what_is_doubted_is_asked_for_at_once_but_not_again_and_again(void)
{
    make(64);
    /* nobody said anything */
    CHECK(!fbk_digests_doubt(digests, 7) && !fbk_digests_doubt(digests, -1));
    CHECK(look(7, FBK_DIGEST_NONE) && !fbk_digests_doubt(digests, 7));
    tell(7, FBK_DIGEST_CRC32);
    CHECK(fbk_digests_doubt(digests, 7) && !fbk_digests_doubt(digests, 7) &&
          !look(7, FBK_DIGEST_CRC32));
    digests->now_s += FBK_DIGESTS_REPEAT_S;
    CHECK(look(7, FBK_DIGEST_CRC32) && !fbk_digests_doubt(digests, 7));
    tell(7, FBK_DIGEST_CRC32);
    CHECK(fbk_digests_doubt(digests, 7));
    fbk_digests_free(&worker);
}

static void
test_who_finds_no_room_is_wanted_at_its_next_add(void)
{
    make(1u << 14);
    for (int64_t id = 0; id < FBK_DIGESTS_WANTED_MAX; id++)
        CHECK(look(id, FBK_DIGEST_NONE));
    tell(0, FBK_DIGEST_CRC32);
    CHECK(!look(5000, FBK_DIGEST_NONE) && !fbk_digests_doubt(digests, 0));
    CHECK_EQUAL(fetch(FBK_DIGESTS_WANTED_MAX), FBK_DIGESTS_WANTED_MAX);
    for (int64_t id = 0; id < FBK_DIGESTS_WANTED_MAX; id++)
        CHECK(wanted[id] == id);
    CHECK(fbk_digests_doubt(digests, 0) && look(5000, FBK_DIGEST_NONE));
    fbk_digests_free(&worker);
}

/* Of one set of four places, the one that was taken longest ago by the turn is given away. */
static void
test_a_full_set_forgets_one_for_each_that_comes(void)
{
    make(FBK_DIGEST_WAYS + 3); /* 7 are not a power of two: 4 count */
    CHECK_EQUAL(digests->set_mask, 0);
    for (int64_t id = 0; id < 4; id++)
        tell(id, FBK_DIGEST_CRC32);
    for (int64_t id = 4; id < 200; id++) {
        CHECK(look(id, FBK_DIGEST_NONE));
        tell(id, FBK_DIGEST_CRC32C);
        uint32_t known = 0;
        for (uint32_t way = 0; way < FBK_DIGEST_WAYS; way++)
            known += digests->slots[way].key > (uint64_t)id - 3;
        CHECK_EQUAL(known, 4); /* the last four */
        CHECK(!look(id, FBK_DIGEST_CRC32C));
    }
    fbk_digests_free(&worker);
}

int
main(void)
{
    test_the_unknown_is_asked_for_every_five_seconds();
    test_the_known_counts_on_while_it_is_asked_for_again();
    test_what_is_doubted_is_asked_for_at_once_but_not_again_and_again();
    test_who_finds_no_room_is_wanted_at_its_next_add();
    test_a_full_set_forgets_one_for_each_that_comes();
    return 0;
}
