/* The pace of history: no limit without a foreground, halved while that is disturbed, never below
 * the floor. */
#include "index/pace.h"

#include "check.h"

#define MS 1000000ull
#define STEP_NS MS

struct world {
    struct fbk_pace pace;
    uint64_t now_ns;
    uint64_t sent_bytes;
    /* time in which nothing at all was let through though it was asked for */
    uint64_t quiet_ns;
};

static void
begin(struct world *world)
{
    *world = (struct world){.now_ns = 77 * MS};
    fbk_pace_init(&world->pace, world->now_ns);
}

/* Some milliseconds of history that takes what it gets, up to 1 MiB a step; adds feel usual_us, and
 * factor times that while more than bearable_bytes a second are sent. */
static void
run(struct world *world, uint32_t steps, bool history, uint32_t usual_us, uint64_t bearable_bytes)
{
    uint64_t seed = 3, last_bytes = 0;
    world->sent_bytes = world->quiet_ns = 0;
    for (uint32_t n = 0; n < steps; n++) {
        world->now_ns += STEP_NS;
        uint64_t bytes = history ? fbk_pace_allows(&world->pace, world->now_ns, false) : 0;
        if (!history)
            (void)fbk_pace_allows(&world->pace, world->now_ns, false);
        if (bytes > FBK_MIB)
            bytes = FBK_MIB;
        world->quiet_ns += history && bytes == 0 ? STEP_NS : 0;
        fbk_pace_used(&world->pace, bytes);
        world->sent_bytes += bytes;
        /* what was sent is felt for some milliseconds */
        last_bytes = (last_bytes * 4 + bytes * 1000) / 5;
        for (uint32_t add = 0; usual_us > 0 && add < 2; add++) {
            uint64_t us = usual_us + test_random(&seed) % (usual_us / 4 + 1);
            fbk_pace_observe(&world->pace, FBK_PACE_ADD, last_bytes > bearable_bytes ? us * 4 : us);
        }
    }
}

static void
test_without_foreground_there_is_no_limit(void)
{
    struct world world;
    begin(&world);
    run(&world, 3000, true, 0, 0);
    CHECK_EQUAL(world.sent_bytes, 3000 * FBK_MIB);
    CHECK_EQUAL(world.quiet_ns, 0);
}

static void
test_history_that_disturbs_is_held_back(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0); /* adds alone: what is usual */
    run(&world, 3000, true, 200, 100 * FBK_MIB);
    run(&world, 10000, true, 200, 100 * FBK_MIB);
    /* About what is bearable, pauses included; never the 10,000 MiB that were asked for. */
    CHECK(world.sent_bytes > 10 * 25 * FBK_MIB && world.sent_bytes < 10 * 130 * FBK_MIB);
    CHECK(world.pace.delays[FBK_PACE_ADD].usual_us >= 180 &&
          world.pace.delays[FBK_PACE_ADD].usual_us <= 320);
}

static void
test_history_that_does_not_disturb_gets_all(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 10000, true, 200, UINT64_MAX);
    run(&world, 4000, true, 200, UINT64_MAX);
    CHECK(world.sent_bytes > 3600 * FBK_MIB);
    /* Every two seconds a pause of an interval, to learn what is usual. */
    CHECK(world.quiet_ns >= 50 * MS && world.quiet_ns <= 300 * MS);
}

static void
test_it_begins_low_when_they_meet(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 100, true, 200, UINT64_MAX);
    CHECK(world.sent_bytes < 12 * FBK_MIB);
    begin(&world);
    run(&world, 1000, true, 0, 0);
    /* adds that come while history goes on: an interval, then it is seen */
    run(&world, 100, true, 200, UINT64_MAX);
    CHECK(world.sent_bytes < 60 * FBK_MIB);
}

/* However bad it gets, history is not starved; and what was sent too much at once is waited for. */
static void
test_floor_and_debt(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 5000, true, 200, FBK_MIB);
    run(&world, 10000, true, 200, FBK_MIB);
    CHECK(world.sent_bytes > 10 * FBK_PACE_FLOOR_BYTES * 3 / 4 &&
          world.sent_bytes < 10 * FBK_PACE_FLOOR_BYTES * 3 / 2);
    fbk_pace_used(&world.pace, FBK_PACE_FLOOR_BYTES); /* a second of it */
    uint32_t waited = 0;
    while (fbk_pace_allows(&world.pace, world.now_ns += STEP_NS, true) == 0 && waited < 5000) {
        fbk_pace_observe(&world.pace, FBK_PACE_ADD, 5000);
        waited++;
    }
    CHECK(waited > 800 && waited < 2000);
}

/* The foreground leaves: the limit goes with it. */
static void
test_the_limit_ends_with_the_foreground(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 5000, true, 200, FBK_MIB);
    CHECK(world.pace.rate_bytes < 2 * FBK_PACE_FLOOR_BYTES);
    run(&world, 2000, true, 0, 0);
    CHECK_EQUAL(world.pace.rate_bytes, FBK_PACE_CEILING_BYTES);
}

/* At once: whoever reads what was just written does not wait until it is sure that nothing comes
 * any more. */
static void
test_the_limit_ends_a_moment_behind_the_last_add(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 5000, true, 200, FBK_MIB);
    run(&world, 25, true, 0, 0);
    run(&world, 400, true, 0, 0);
    CHECK_EQUAL(world.sent_bytes, 400 * FBK_MIB);
    CHECK(!fbk_pace_is_held(&world.pace));
    /* They come again: what was found out still holds. */
    run(&world, 200, true, 200, FBK_MIB);
    CHECK(fbk_pace_is_held(&world.pace));
    CHECK(world.sent_bytes < FBK_PACE_FLOOR_BYTES / 2);
}

/* Adds that nothing is felt of yet are there all the same: the disk stands still. */
static void
test_adds_on_their_way_hold_the_limit(void)
{
    struct world world;
    uint64_t sent_bytes = 0;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 5000, true, 200, FBK_MIB);
    for (uint32_t n = 0; n < 200; n++) {
        uint64_t bytes = fbk_pace_allows(&world.pace, world.now_ns += STEP_NS, true);
        bytes = bytes < FBK_MIB ? bytes : FBK_MIB;
        fbk_pace_used(&world.pace, bytes);
        sent_bytes += bytes;
    }
    CHECK(sent_bytes < FBK_PACE_FLOOR_BYTES / 2);
}

/* A reader that is answered by a write cache, and nobody who adds: not a tail. */
static void
test_reads_alone_are_no_foreground(void)
{
    struct world world;
    uint64_t sent_bytes = 0;
    begin(&world);
    for (uint32_t n = 0; n < 3000; n++) {
        uint64_t bytes = fbk_pace_allows(&world.pace, world.now_ns += STEP_NS, false);
        bytes = bytes < FBK_MIB ? bytes : FBK_MIB;
        fbk_pace_used(&world.pace, bytes);
        sent_bytes += bytes;
        for (uint32_t read = 0; read < 4; read++)
            fbk_pace_observe(&world.pace, FBK_PACE_TAIL, 100 + n % 3000);
    }
    CHECK_EQUAL(sent_bytes, 3000 * FBK_MIB);
}

/* It leaves in the middle of a pause: that ends all the same, and history does not stand still
 * until it is sure. */
static void
test_a_pause_ends_though_nobody_comes(void)
{
    struct world world;
    begin(&world);
    run(&world, 4000, false, 200, 0);
    run(&world, 30, true, 200, UINT64_MAX); /* they meet */
    run(&world, 600, true, 0, 0);
    CHECK(world.quiet_ns <= 120 * MS);
    CHECK_EQUAL(world.pace.rate_bytes, FBK_PACE_CEILING_BYTES);
}

/* Adds became slower for reasons of their own: after some pauses that is what is usual. */
static void
test_what_is_usual_is_learned_anew(void)
{
    struct world world;
    begin(&world);
    run(&world, 1000, false, 200, 0);
    run(&world, 3000, true, 200, UINT64_MAX);
    run(&world, 40000, true, 2000, UINT64_MAX);
    run(&world, 4000, true, 2000, UINT64_MAX);
    CHECK(world.sent_bytes > 1000 * FBK_MIB);
}

static void
test_any_delay_can_be_felt(void)
{
    struct world world;
    begin(&world);
    for (uint64_t us = 0; us < UINT64_MAX / 2; us = us + us / 2 + 1)
        for (uint32_t n = 0; n < FBK_PACE_SIGNALS; n++)
            fbk_pace_observe(&world.pace, (enum fbk_pace_signal)n, us);
    fbk_pace_observe(&world.pace, FBK_PACE_TAIL, UINT64_MAX);
    (void)fbk_pace_allows(&world.pace, world.now_ns + 1000 * MS, false);
}

int
main(void)
{
    test_without_foreground_there_is_no_limit();
    test_history_that_disturbs_is_held_back();
    test_history_that_does_not_disturb_gets_all();
    test_it_begins_low_when_they_meet();
    test_floor_and_debt();
    test_the_limit_ends_with_the_foreground();
    test_the_limit_ends_a_moment_behind_the_last_add();
    test_adds_on_their_way_hold_the_limit();
    test_reads_alone_are_no_foreground();
    test_a_pause_ends_though_nobody_comes();
    test_what_is_usual_is_learned_anew();
    test_any_delay_can_be_felt();
    return 0;
}
