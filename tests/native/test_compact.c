/* Compaction under the sanitizers: windows of every size, gaps, copies, damage anywhere, and ending
 * it at any point. */
#include "store_harness.h"

#define LEDGERS 5
#define ENTRIES 300
#define RUNS_MAX 4096u

/* Three logs: log l holds the ids that leave l when divided by 3, of all ledgers, and the last one
 * some of the first's too. */
static void
fill(struct harness *harness)
{
    struct harness_entry entries[LEDGERS * ENTRIES];
    for (uint64_t log = 1; log <= 3; log++) {
        uint64_t count = 0, offset = 0;
        for (int64_t ledger = 1; ledger <= LEDGERS; ledger++) {
            for (int64_t entry = 0; entry < ENTRIES; entry++) {
                if (entry % 3 == (int64_t)log - 1 || (log == 3 && entry % 30 == 0))
                    entries[count++] = (struct harness_entry){ledger, entry};
            }
        }
        harness_flush(harness, entries, count, log, &offset, log, NULL, 0);
        CHECK_EQUAL(fbk_store_add_locations(harness->store, log), 0);
    }
}

static uint64_t
runs_of(struct harness *harness, struct fbk_location *runs)
{
    static const uint64_t files[] = {1, 2, 3}, logs[] = {1, 2, 3};
    static const int64_t deleted[] = {4};
    struct fbk_location_scope scope = {
        .file_ids = files,
        .file_count = 3,
        .log_ids = logs,
        .log_count = 3,
        .deleted = deleted,
        .deleted_count = 1,
    };
    int64_t count = fbk_store_log_runs(harness->store, &scope, 0, 0, runs, RUNS_MAX);
    CHECK(count > 0 && count < (int64_t)RUNS_MAX);
    return (uint64_t)count;
}

/* Steps until all is moved, or `steps_max`; false: not all. */
static bool
move(struct fbk_compact *compact, const struct fbk_location *runs, uint64_t count,
     uint64_t steps_max)
{
    uint64_t taken;
    for (uint64_t at = 0; steps_max > 0; steps_max--) {
        int32_t result = fbk_compact_step(compact, runs + at, count - at, &taken);
        CHECK(result == 0 || result == 1);
        if (result == 0 && at == count)
            return true;
        CHECK(result == 1);
        at += taken;
    }
    return false;
}

static void
expect_all(struct harness *harness, int64_t bad_ledger, int64_t bad_entry)
{
    int64_t found;
    for (int64_t ledger = 1; ledger <= LEDGERS; ledger++) {
        for (int64_t entry = 0; entry <= ENTRIES; entry++) {
            int32_t wanted = ledger == 4 || entry == ENTRIES ? FBK_S_NO_ENTRY : FBK_S_OK;
            if (ledger == bad_ledger && entry == bad_entry)
                wanted = FBK_S_CANNOT_TELL;
            CHECK_EQUAL(harness_read(harness, ledger, entry, entry, &found), wanted);
        }
    }
}

static void
test_windows_of_every_size(void)
{
    static const uint64_t windows[] = {4096, 8192, 40000, 1 << 20};
    for (uint32_t w = 0; w < 4; w++) {
        struct harness harness;
        char name[16];
        snprintf(name, sizeof name, "window%u", w);
        harness_begin(&harness, name);
        fill(&harness);
        struct fbk_location *runs = calloc(RUNS_MAX, sizeof *runs);
        uint64_t count = runs_of(&harness, runs), end_bytes, size_bytes;
        struct fbk_compact_options options = {
            .log_id = 9, .log_salt = 5, .window_bytes = windows[w]};
        int32_t error;
        struct fbk_compact *compact = fbk_compact_begin(harness.store, &options, &error);
        CHECK(compact != NULL);
        CHECK(move(compact, runs, count, 1 << 20));
        struct fbk_compact_counts counts;
        fbk_compact_counts_get(compact, &counts);
        CHECK_EQUAL(counts.runs_read, count);
        CHECK_EQUAL(counts.bad_runs, 0);
        CHECK_EQUAL(fbk_compact_end_log(compact, &end_bytes), 0);
        CHECK(end_bytes >= counts.moved_bytes);
        CHECK_EQUAL(fbk_compact_write_locations(compact, 9, 9, &size_bytes), 0);
        CHECK_EQUAL(fbk_compact_step(compact, runs, 1, &size_bytes), -EINVAL);
        fbk_compact_free(compact);
        uint64_t listed[] = {9};
        CHECK_EQUAL(fbk_store_add_locations(harness.store, 9), 0);
        CHECK_EQUAL(fbk_store_set_logs(harness.store, listed, 1), 0);
        expect_all(&harness, -1, -1);
        free(runs);
        harness_end(&harness);
    }
}

/* One bit of an entry: that entry alone is cannot-tell.  Of a header or table: its run. */
static void
test_damage(void)
{
    struct harness harness;
    harness_begin(&harness, "damage");
    fill(&harness);
    struct fbk_location *runs = calloc(RUNS_MAX, sizeof *runs);
    uint64_t count = runs_of(&harness, runs), end_bytes, size_bytes;
    char path[700];
    snprintf(path, sizeof path, "%s/logs/%016x.log", harness.directory, 2);
    int file = open(path, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    uint64_t at = 0;
    while (runs[at].log_id != 2 || runs[at].ledger_id != 3)
        at++;
    struct fbk_run_item item;
    uint64_t table = runs[at].offset_bytes + sizeof(struct fbk_run_header);
    CHECK(pread(file, &item, sizeof item, (off_t)(table + 7 * sizeof item)) == sizeof item);
    uint8_t byte;
    off_t place = (off_t)(runs[at].offset_bytes + item.offset_bytes + 20);
    CHECK(pread(file, &byte, 1, place) == 1);
    byte ^= 4;
    CHECK(pwrite(file, &byte, 1, place) == 1);
    close(file);
    struct fbk_compact_options options = {.log_id = 9, .log_salt = 5, .window_bytes = 1 << 16};
    int32_t error;
    struct fbk_compact *compact = fbk_compact_begin(harness.store, &options, &error);
    CHECK(compact != NULL);
    CHECK(move(compact, runs, count, 1 << 20));
    int64_t ids[6];
    CHECK_EQUAL(fbk_compact_damaged(compact, ids, 2), 1);
    CHECK_EQUAL(ids[0], 3);
    CHECK_EQUAL(ids[1], item.entry_id);
    CHECK_EQUAL(ids[2], item.entry_id);
    CHECK_EQUAL(fbk_compact_end_log(compact, &end_bytes), 0);
    CHECK_EQUAL(fbk_compact_write_locations(compact, 9, 9, &size_bytes), 0);
    fbk_compact_free(compact);
    uint64_t listed[] = {9};
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 9), 0);
    CHECK_EQUAL(fbk_store_set_logs(harness.store, listed, 1), 0);
    expect_all(&harness, 3, item.entry_id);
    free(runs);
    harness_end(&harness);
}

static void
test_ending_it_anywhere(void)
{
    struct harness harness;
    harness_begin(&harness, "anywhere");
    fill(&harness);
    struct fbk_location *runs = calloc(RUNS_MAX, sizeof *runs);
    uint64_t count = runs_of(&harness, runs);
    for (uint64_t steps = 0; steps < 12; steps++) {
        struct fbk_compact_options options = {.log_id = 20 + steps, .window_bytes = 8192};
        int32_t error;
        struct fbk_compact *compact = fbk_compact_begin(harness.store, &options, &error);
        CHECK(compact != NULL);
        (void)move(compact, runs, count, steps);
        fbk_compact_free(compact);
    }
    /* An id is used once. */
    struct fbk_compact_options again = {.log_id = 20, .window_bytes = 8192};
    int32_t error;
    CHECK(fbk_compact_begin(harness.store, &again, &error) == NULL);
    CHECK_EQUAL(error, -EEXIST);
    /* A log that is gone is left out. */
    char path[700];
    snprintf(path, sizeof path, "%s/logs/%016x.log", harness.directory, 1);
    CHECK(unlink(path) == 0);
    struct fbk_compact_options options = {.log_id = 40, .window_bytes = 8192};
    struct fbk_compact *compact = fbk_compact_begin(harness.store, &options, &error);
    uint64_t taken;
    CHECK_EQUAL(fbk_compact_step(compact, runs, count, &taken), 0);
    CHECK_EQUAL(taken, 0);
    fbk_compact_free(compact);
    free(runs);
    harness_end(&harness);
}

int
main(void)
{
    test_windows_of_every_size();
    test_damage();
    test_ending_it_anywhere();
    return 0;
}
