/* Flush, lookup, caches, lists, merges, damage, and readers beside the main loop and the flush
 * thread. */
#include "store_harness.h"

#include <pthread.h>
#include <sys/eventfd.h>

#define MAX_ENTRY INT64_MAX

static void
test_what_was_flushed_is_found_and_nothing_else(void)
{
    struct harness harness;
    harness_begin(&harness, "found");
    struct harness_entry entries[2000];
    uint64_t count = 0, offset = 0;
    for (int64_t ledger = 1; ledger <= 3; ledger++) {
        for (int64_t entry = 0; entry < 600; entry++)
            /* dense, every 2nd, every 3rd */
            entries[count++] = (struct harness_entry){ledger * 10, entry * ledger};
    }
    entries[count++] = (struct harness_entry){MAX_ENTRY, MAX_ENTRY - 1};
    entries[count++] = (struct harness_entry){MAX_ENTRY, MAX_ENTRY};
    harness_flush(&harness, entries, count, 1, &offset, 1, NULL, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), -EEXIST);
    int64_t found;
    for (int64_t ledger = 1; ledger <= 3; ledger++) {
        for (int64_t entry = 0; entry < 600 * ledger; entry++) {
            bool there = entry % ledger == 0;
            CHECK_EQUAL(harness_read(&harness, ledger * 10, entry, entry, &found),
                        there ? FBK_S_OK : FBK_S_NO_ENTRY);
            if (entry > 599 * ledger)
                continue;
            CHECK_EQUAL(harness_read(&harness, ledger * 10, entry, MAX_ENTRY, &found), FBK_S_OK);
            CHECK_EQUAL(found, (entry + ledger - 1) / ledger * ledger);
            CHECK(found == 599 * ledger || harness.alone_through > found ||
                  found % (256 * ledger) == 255 * ledger);
            CHECK(harness.alone_through / (256 * ledger) == found / (256 * ledger));
        }
        CHECK_EQUAL(harness_read(&harness, ledger * 10, 600 * ledger, MAX_ENTRY, &found),
                    FBK_S_NO_ENTRY);
        CHECK_EQUAL(harness_read(&harness, ledger * 10 + 1, 0, MAX_ENTRY, &found), FBK_S_NO_ENTRY);
    }
    CHECK_EQUAL(harness_read(&harness, MAX_ENTRY, 0, MAX_ENTRY, &found), FBK_S_OK);
    CHECK_EQUAL(found, MAX_ENTRY - 1);
    CHECK_EQUAL(harness_read(&harness, MAX_ENTRY, MAX_ENTRY, MAX_ENTRY, &found), FBK_S_OK);
    CHECK_EQUAL(harness_read(&harness, MAX_ENTRY, 5, 4, &found), FBK_S_NO_ENTRY);
    harness_end(&harness);
}

static void
test_runs_that_interleave_over_files(void)
{
    struct harness harness;
    harness_begin(&harness, "interleave");
    uint64_t offset = 0;
    for (uint64_t file = 1; file <= 5; file++) {
        struct harness_entry entries[200];
        for (int64_t i = 0; i < 200; i++)
            entries[i] = (struct harness_entry){7, i * 5 + (int64_t)file - 1};
        harness_flush(&harness, entries, 200, 1, &offset, file, NULL, 0);
        CHECK_EQUAL(fbk_store_add_locations(harness.store, file), 0);
    }
    int64_t found;
    for (int64_t entry = 0; entry < 1000; entry++) {
        CHECK_EQUAL(harness_read(&harness, 7, entry, MAX_ENTRY, &found), FBK_S_OK);
        CHECK_EQUAL(found, entry);
        CHECK(harness.alone_through == entry || (entry < 4 && harness.alone_through == 3) ||
              entry >= 995);
    }
    /* Without the middle file, its ids are gaps. */
    CHECK_EQUAL(fbk_store_remove_locations(harness.store, 3), 0);
    CHECK_EQUAL(fbk_store_remove_locations(harness.store, 3), -ENOENT);
    for (int64_t entry = 0; entry < 995; entry++) {
        CHECK_EQUAL(harness_read(&harness, 7, entry, MAX_ENTRY, &found), FBK_S_OK);
        CHECK_EQUAL(found, entry % 5 == 2 ? entry + 1 : entry);
    }
    harness_end(&harness);
}

/* A long run with gaps and short ones inside it, in one file: what lies before a short one must be
 * looked at, too. */
static void
test_a_long_run_around_short_ones(void)
{
    struct harness harness;
    harness_begin(&harness, "around");
    uint64_t offset = 0;
    struct harness_entry longs[41], shorts[10];
    for (int64_t i = 0; i < 41; i++)
        longs[i] = (struct harness_entry){7, i * 99};
    harness_flush(&harness, longs, 41, 1, &offset, 1, NULL, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), 0);
    uint64_t ids[200] = {1};
    for (uint64_t file = 2; file <= 200; file++) {
        int64_t first = ((int64_t)file - 2) * 20 + 1;
        if (first % 99 > 85 || first % 99 == 0) /* one of its ids is in the long run */
            first += 4000;
        for (int64_t i = 0; i < 10; i++)
            shorts[i] = (struct harness_entry){7, first + i};
        harness_flush(&harness, shorts, 10, 1, &offset, file, NULL, 0);
        CHECK_EQUAL(fbk_store_add_locations(harness.store, file), 0);
        ids[file - 1] = file;
    }
    struct fbk_merge_result merged;
    CHECK_EQUAL(harness_merge(harness.store, 201, ids, 200, NULL, 0, &merged), 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 201), 0);
    for (uint64_t file = 1; file <= 200; file++)
        CHECK_EQUAL(fbk_store_remove_locations(harness.store, file), 0);
    int64_t found;
    for (int64_t i = 0; i < 41; i++) {
        CHECK_EQUAL(harness_read(&harness, 7, i * 99, i * 99, &found), FBK_S_OK);
        CHECK_EQUAL(harness_read(&harness, 7, i * 99, MAX_ENTRY, &found), FBK_S_OK);
        CHECK_EQUAL(found, i * 99);
        if (i > 0 && i < 40) { /* other runs lie between this and the long run's next */
            CHECK(harness.alone_through < (i + 1) * 99);
            CHECK(harness_read(&harness, 7, i * 99 + 12, MAX_ENTRY, &found) == FBK_S_OK &&
                  found < (i + 1) * 99);
        }
    }
    harness_end(&harness);
}

static void
test_list(void)
{
    struct harness harness;
    harness_begin(&harness, "list");
    uint64_t offset = 0;
    struct harness_entry even[300], odd[100];
    for (int64_t i = 0; i < 300; i++)
        even[i] = (struct harness_entry){9, i * 2};
    for (int64_t i = 0; i < 100; i++)
        odd[i] = (struct harness_entry){9, 100 + i * 2 + 1};
    harness_flush(&harness, even, 300, 1, &offset, 1, NULL, 0);
    harness_flush(&harness, odd, 100, 1, &offset, 2, NULL, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 2), 0);
    int64_t ranges[64];
    struct fbk_store_result result;
    CHECK_EQUAL(fbk_store_submit_list(harness.store, 8, 9, 95, ranges, 4, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(harness.store), 1);
    CHECK_EQUAL(fbk_store_collect(harness.store, &result, 1), 1);
    /* 96, 98, 100..300, 302, then more */
    CHECK_EQUAL(result.status, FBK_S_OK);
    CHECK_EQUAL(result.range_count, 4);
    CHECK_EQUAL(ranges[0], 96);
    CHECK_EQUAL(ranges[1], 96);
    CHECK_EQUAL(ranges[4], 100);
    CHECK_EQUAL(ranges[5], 300);
    CHECK_EQUAL(ranges[6], 302);
    CHECK_EQUAL(result.found_entry_id, 304);
    CHECK_EQUAL(fbk_store_submit_list(harness.store, 8, 9, 590, ranges, 32, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(harness.store), 1);
    CHECK_EQUAL(fbk_store_collect(harness.store, &result, 1), 1);
    CHECK_EQUAL(result.range_count, 5);
    CHECK_EQUAL(result.found_entry_id, -1);
    CHECK_EQUAL(fbk_store_submit_list(harness.store, 8, 10, 0, ranges, 32, 0), 0);
    CHECK_EQUAL(fbk_store_reader_step(harness.store), 1);
    CHECK_EQUAL(fbk_store_collect(harness.store, &result, 1), 1);
    CHECK_EQUAL(result.range_count, 0);
    harness_end(&harness);
}

static void
fill_states(struct fbk_ledger_state *states, uint32_t count, int64_t highest)
{
    for (uint32_t i = 0; i < count; i++)
        states[i] =
            (struct fbk_ledger_state){.ledger_id = i * 2, .highest_entry_id = highest, .lac = -1};
}

static void
sum_states(void *context, const struct fbk_ledger_state *state)
{
    int64_t *sum = context;
    *sum += state->highest_entry_id;
}

static void
test_merge(void)
{
    struct harness harness;
    harness_begin(&harness, "merge");
    uint64_t offset = 0;
    struct fbk_ledger_state states[100];
    uint64_t ids[10];
    for (uint64_t file = 1; file <= 10; file++) {
        struct harness_entry entries[400];
        for (int64_t i = 0; i < 400; i++)
            entries[i] = (struct harness_entry){i / 4, (int64_t)file * 4 + i % 4};
        /* the newest say less */
        fill_states(states, 10 * (uint32_t)(11 - file), (int64_t)file);
        harness_flush(&harness, entries, 400, 1, &offset, file, states, 10 * (11 - file));
        CHECK_EQUAL(fbk_store_add_locations(harness.store, file), 0);
        ids[file - 1] = file;
    }
    struct fbk_merge_result merged;
    int64_t deleted[] = {13, 14, 99, 1000};
    CHECK_EQUAL(harness_merge(harness.store, 11, ids, 10, deleted, 4, &merged), 0);
    CHECK_EQUAL(merged.location_count, 970);
    CHECK_EQUAL(merged.dropped_count, 30);
    CHECK_EQUAL(merged.first_generation, 1);
    CHECK_EQUAL(merged.last_generation, 10);
    CHECK_EQUAL(fbk_store_prepare_locations(harness.store, 11), 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 11), 0);
    for (uint64_t file = 1; file <= 10; file++)
        CHECK_EQUAL(fbk_store_remove_locations(harness.store, file), 0);
    int64_t found;
    for (int64_t ledger = 0; ledger < 100; ledger++) {
        bool gone = ledger == 13 || ledger == 14 || ledger == 99;
        for (int64_t entry = 4; entry < 44; entry++)
            CHECK_EQUAL(harness_read(&harness, ledger, entry, entry, &found),
                        gone ? FBK_S_NO_ENTRY : FBK_S_OK);
        CHECK_EQUAL(harness_read(&harness, ledger, 44, MAX_ENTRY, &found), FBK_S_NO_ENTRY);
    }
    int64_t sum = 0;
    CHECK_EQUAL(fbk_store_load_states(harness.store, 11, sum_states, &sum), 100);
    CHECK_EQUAL(sum, 10 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8 + 9 + 10));
    struct fbk_log_bytes pairs[2];
    uint64_t merged_id = 11;
    struct fbk_location_scope scope = {.file_ids = &merged_id, .file_count = 1};
    CHECK_EQUAL(fbk_store_log_bytes(harness.store, &scope, pairs, 2), 1);
    struct fbk_location runs[128];
    CHECK_EQUAL(fbk_store_log_runs(harness.store, &scope, 0, 0, runs, 128), 128);
    for (uint32_t i = 1; i < 128; i++)
        CHECK(runs[i].offset_bytes >= runs[i - 1].offset_bytes + runs[i - 1].size_bytes);
    CHECK_EQUAL(fbk_store_log_runs(harness.store, &scope, 1, runs[64].offset_bytes + 1, runs, 1),
                1);
    uint64_t total = pairs[0].bytes;
    uint64_t by_ledger = 0;
    for (int64_t ledger = 0; ledger < 100; ledger++) {
        int64_t count = fbk_store_ledger_bytes(harness.store, ledger, pairs, 2);
        CHECK(count == (ledger == 13 || ledger == 14 || ledger == 99 ? 0 : 1));
        by_ledger += count ? pairs[0].bytes : 0;
    }
    CHECK_EQUAL(by_ledger, total);
    harness_end(&harness);
}

static void
test_read_cache_is_bounded_and_pins_hold(void)
{
    struct harness harness;
    harness_begin(&harness, "cache");
    fbk_store_destroy(harness.store);
    harness.options.read_cache_size_bytes = 64 * 4096;
    harness_open(&harness);
    struct harness_entry entries[4000];
    uint64_t offset = 0;
    for (int64_t i = 0; i < 4000; i++)
        entries[i] = (struct harness_entry){i / 40, i % 40};
    harness_flush(&harness, entries, 4000, 1, &offset, 1, NULL, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), 0);
    struct fbk_store_counts counts;
    int64_t found;
    for (int64_t i = 0; i < 4000; i += 7) {
        CHECK_EQUAL(harness_read(&harness, i / 40, i % 40, i % 40, &found), FBK_S_OK);
        const struct fbk_run *run = fbk_store_cached(harness.store, i / 40, i % 40, 0);
        CHECK(run != NULL);
        uint32_t size;
        const uint8_t *bytes = fbk_run_entry(run, i % 40, &size);
        CHECK(harness_is_right(bytes, size, i / 40, i % 40));
        CHECK(fbk_store_cached(harness.store, i / 40, 40, 0) == NULL);
        fbk_store_release(harness.store, run);
        fbk_store_counts_get(harness.store, &counts);
        CHECK(counts.cache_bytes <= harness.options.read_cache_size_bytes);
        CHECK_EQUAL(counts.pinned_bytes, 0);
    }
    /* Pin until nothing fits any more: the answer is "later", not "no". */
    const struct fbk_run *pinned[100];
    int32_t count = 0;
    for (int64_t ledger = 0; ledger < 100; ledger++) {
        struct fbk_store_result result;
        CHECK_EQUAL(fbk_store_submit(harness.store, 1, ledger, 0, 0, 1, 0), 0);
        CHECK_EQUAL(fbk_store_reader_step(harness.store), 1);
        CHECK_EQUAL(fbk_store_collect(harness.store, &result, 1), 1);
        if (result.status == FBK_S_TOO_MANY_REQUESTS)
            break;
        CHECK_EQUAL(result.status, FBK_S_OK);
        pinned[count++] = result.run;
    }
    CHECK(count > 10 && count < 64);
    fbk_store_counts_get(harness.store, &counts);
    CHECK(counts.cache_bytes <= harness.options.read_cache_size_bytes);
    for (int32_t i = 0; i < count; i++) {
        uint32_t size;
        const uint8_t *bytes = fbk_run_entry(pinned[i], 39, &size);
        CHECK(harness_is_right(bytes, size, i, 39));
    }
    /* pinned ones stay readable, but are no longer found */
    fbk_store_forget_log(harness.store, 1);
    CHECK(fbk_store_cached(harness.store, 0, 0, 0) == NULL);
    for (int32_t i = 0; i < count; i++)
        fbk_store_release(harness.store, pinned[i]);
    fbk_store_counts_get(harness.store, &counts);
    CHECK_EQUAL(counts.pinned_bytes, 0);
    CHECK_EQUAL(harness_read(&harness, 99, 0, 0, &found), FBK_S_OK);
    harness_end(&harness);
}

static void
test_jobs_are_bounded(void)
{
    struct harness harness;
    harness_begin(&harness, "jobs");
    for (uint64_t i = 0; i < harness.options.read_jobs_max; i++)
        CHECK_EQUAL(fbk_store_submit(harness.store, i, 1, 0, 0, 0, 0), 0);
    CHECK_EQUAL(fbk_store_submit(harness.store, 99, 1, 0, 0, 0, 0), FBK_E_FULL);
    while (fbk_store_reader_step(harness.store) == 1)
        ;
    CHECK_EQUAL(fbk_store_submit(harness.store, 99, 1, 0, 0, 0, 0), FBK_E_FULL);
    struct fbk_store_result results[64];
    CHECK_EQUAL(fbk_store_collect(harness.store, results, 64), 64);
    for (uint64_t i = 0; i < 64; i++) {
        CHECK_EQUAL(results[i].ticket, i);
        CHECK_EQUAL(results[i].status, FBK_S_NO_ENTRY);
    }
    CHECK_EQUAL(fbk_store_submit(harness.store, 99, 1, 0, 0, 0, 0), 0);
    fbk_store_stop_readers(harness.store);
    CHECK_EQUAL(fbk_store_submit(harness.store, 99, 1, 0, 0, 0, 0), FBK_E_STOPPED);
    harness_end(&harness);
}

/* ------------ damage */

static void
flip(const char *path, uint64_t offset, uint8_t mask)
{
    int file = open(path, O_RDWR);
    uint8_t byte;
    CHECK(file >= 0);
    CHECK(pread(file, &byte, 1, (off_t)offset) == 1);
    byte ^= mask;
    CHECK(pwrite(file, &byte, 1, (off_t)offset) == 1);
    close(file);
}

static const struct harness_entry damage_entries[] = {{1, 0}, {1, 1},    {1, 3},
                                                      {2, 0}, {2, 5000}, {3, 7}};
#define DAMAGE_ENTRIES (sizeof damage_entries / sizeof damage_entries[0])

/* Whatever one byte was changed to: never wrong bytes (harness_read compares), never "no" for what
 * was there, never a "yes" for what was not. */
static void
look_at_damaged(struct harness *harness, int32_t *cannot_tell)
{
    int64_t found;
    harness_open(harness);
    if (fbk_store_add_locations(harness->store, 1) >= 0) {
        for (uint64_t i = 0; i < DAMAGE_ENTRIES; i++) {
            int32_t status =
                harness_read(harness, damage_entries[i].ledger_id, damage_entries[i].entry_id,
                             damage_entries[i].entry_id, &found);
            CHECK(status == FBK_S_OK || status == FBK_S_CANNOT_TELL);
            *cannot_tell += status == FBK_S_CANNOT_TELL;
        }
        int32_t status = harness_read(harness, 1, 2, MAX_ENTRY, &found);
        CHECK(status == FBK_S_CANNOT_TELL || (status == FBK_S_OK && found == 3));
        status = harness_read(harness, 2, 1, MAX_ENTRY, &found);
        CHECK(status == FBK_S_CANNOT_TELL || (status == FBK_S_OK && found == 5000));
        status = harness_read(harness, 1, 2, 2, &found);
        CHECK(status == FBK_S_CANNOT_TELL || status == FBK_S_NO_ENTRY);
    }
    fbk_store_destroy(harness->store);
    harness->store = NULL;
}

static void
flip_every_byte(struct harness *harness, const char *path, uint64_t size_bytes,
                int32_t *cannot_tell)
{
    for (uint64_t at = 0; at < size_bytes; at++) {
        uint8_t mask = (uint8_t)(1u << at % 8);
        flip(path, at, mask);
        look_at_damaged(harness, cannot_tell);
        flip(path, at, mask);
    }
}

static void
test_one_changed_byte_anywhere(void)
{
    struct harness harness;
    harness_begin(&harness, "damage");
    struct fbk_ledger_state states[3];
    uint64_t offset = 0;
    fill_states(states, 3, 1);
    harness_flush(&harness, damage_entries, DAMAGE_ENTRIES, 1, &offset, 1, states, 3);
    fbk_store_destroy(harness.store);
    harness.store = NULL;
    char path[700];
    int32_t none = 0, in_log = 0, in_locations = 0;
    look_at_damaged(&harness, &none);
    CHECK_EQUAL(none, 0);
    snprintf(path, sizeof path, "%s/logs/%016x.log", harness.directory, 1);
    /* the header only: losing it must not lose the runs */
    flip_every_byte(&harness, path, 64, &in_log);
    CHECK_EQUAL(in_log, 0);
    for (uint64_t at = 4096; at < 4096 + 2200; at++) {
        flip(path, at, 0x10);
        look_at_damaged(&harness, &in_log);
        flip(path, at, 0x10);
    }
    CHECK(in_log > 1000);
    snprintf(path, sizeof path, "%s/locations/%016x.loc", harness.directory, 1);
    flip_every_byte(&harness, path, 96, &in_locations);
    for (uint64_t at = 4096; at < 2 * 4096; at += 3) {
        flip(path, at, 0x40);
        look_at_damaged(&harness, &in_locations);
        flip(path, at, 0x40);
    }
    CHECK(in_locations > 6000);
    /* Cut short anywhere, and gone. */
    for (uint64_t size = 0; size <= 3 * 4096; size += 512) {
        int32_t cut = 0;
        CHECK(truncate(path, (off_t)size) == 0 || size == 0);
        look_at_damaged(&harness, &cut);
        CHECK(cut > 0 || size == 3 * 4096);
    }
    harness.io->operations->destroy(harness.io);
}

static void
test_a_bad_entry_leaves_its_neighbours(void)
{
    struct harness harness;
    harness_begin(&harness, "neighbours");
    struct harness_entry entries[200];
    uint64_t offset = 0;
    for (int64_t i = 0; i < 200; i++)
        entries[i] = (struct harness_entry){4, i};
    harness_flush(&harness, entries, 200, 1, &offset, 1, NULL, 0);
    char path[700];
    snprintf(path, sizeof path, "%s/logs/%016x.log", harness.directory, 1);
    flip(path, 4096 + sizeof(struct fbk_run_header) + 200 * sizeof(struct fbk_run_item) + 5, 1);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 1), 0);
    int64_t found;
    CHECK_EQUAL(harness_read(&harness, 4, 0, 0, &found), FBK_S_CANNOT_TELL);
    CHECK(fbk_store_cached(harness.store, 4, 0, 0) == NULL);
    for (int64_t i = 1; i < 200; i++)
        CHECK_EQUAL(harness_read(&harness, 4, i, i, &found), FBK_S_OK);
    /* A later copy of it in another file is served: the first does not pass its checksum (A5). */
    harness_flush(&harness, entries, 1, 2, &(uint64_t){0}, 2, NULL, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 2), 0);
    CHECK_EQUAL(harness_read(&harness, 4, 0, 0, &found), FBK_S_OK);
    CHECK_EQUAL(harness_read(&harness, 4, 0, MAX_ENTRY, &found), FBK_S_OK);
    CHECK_EQUAL(found, 0);
    CHECK_EQUAL(fbk_store_add_locations(harness.store, 3), 1); /* named but missing */
    CHECK_EQUAL(harness_read(&harness, 4, 0, 0, &found), FBK_S_OK);
    CHECK_EQUAL(harness_read(&harness, 4, 200, 200, &found), FBK_S_CANNOT_TELL);
    CHECK_EQUAL(harness_read(&harness, 77, 0, 0, &found), FBK_S_CANNOT_TELL);
    harness_end(&harness);
}

/* ------------ threads */

struct crowd {
    struct harness *harness;
    int event_fd;
    _Atomic int stop;
};

static void *
read_thread(void *context)
{
    struct crowd *crowd = context;
    CHECK_EQUAL(fbk_store_reader_run(crowd->harness->store, crowd->event_fd), 0);
    return NULL;
}

#define CROWD_LEDGERS 40
#define CROWD_FILES 12

static void
crowd_entries(struct harness_entry *entries, uint64_t file)
{
    for (int64_t i = 0; i < CROWD_LEDGERS * 10; i++)
        entries[i] = (struct harness_entry){i / 10, (int64_t)file * 10 + i % 10};
}

static void *
flush_thread(void *context)
{
    struct crowd *crowd = context;
    uint64_t offset = 0;
    for (uint64_t file = 1; file <= CROWD_FILES; file++) {
        struct harness_entry entries[CROWD_LEDGERS * 10];
        crowd_entries(entries, file);
        harness_flush(crowd->harness, entries, CROWD_LEDGERS * 10, 1, &offset, file, NULL, 0);
        CHECK_EQUAL(fbk_store_prepare_locations(crowd->harness->store, file), 0);
        atomic_store(&crowd->stop, (int)file);
    }
    return NULL;
}

static void
test_readers_beside_flushes(void)
{
    struct harness harness;
    harness_begin(&harness, "threads");
    fbk_store_destroy(harness.store);
    harness.options.read_cache_size_bytes = 40 * 4096;
    harness.options.room_timeout_ms = 20000;
    harness_open(&harness);
    struct crowd crowd = {.harness = &harness, .event_fd = eventfd(0, 0)};
    pthread_t threads[4];
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], NULL, read_thread, &crowd) == 0);
    CHECK(pthread_create(&threads[3], NULL, flush_thread, &crowd) == 0);
    uint64_t seed = 3, answered = 0, submitted = 0;
    int added = 0;
    while (answered < 4000) {
        int ready = atomic_load(&crowd.stop);
        while (added < ready)
            CHECK_EQUAL(fbk_store_add_locations(harness.store, (uint64_t)++added), 0);
        while (added > 0 && submitted < 4000) {
            uint64_t ledger = test_random(&seed) % CROWD_LEDGERS;
            uint64_t entry = 10 + test_random(&seed) % ((uint64_t)added * 10);
            uint64_t ticket = ledger << 32 | entry;
            if (fbk_store_submit(harness.store, ticket, (int64_t)ledger, (int64_t)entry,
                                 (int64_t)entry, submitted % 3 == 0, 0) < 0)
                break;
            submitted++;
        }
        struct fbk_store_result results[16];
        int32_t count = fbk_store_collect(harness.store, results, 16);
        for (int32_t i = 0; i < count; i++) {
            int64_t ledger = (int64_t)(results[i].ticket >> 32),
                    entry = (int64_t)(results[i].ticket & 0xffffffff);
            uint32_t size = 0;
            CHECK_EQUAL(results[i].status, FBK_S_OK);
            const uint8_t *bytes = fbk_run_entry(results[i].run, entry, &size);
            CHECK(harness_is_right(bytes, size, ledger, entry));
            fbk_store_release(harness.store, results[i].run);
            const struct fbk_run *run = fbk_store_cached(harness.store, ledger, entry ^ 1, 0);
            if (run)
                fbk_store_release(harness.store, run);
        }
        answered += (uint64_t)count;
        uint64_t rings;
        if (count == 0 && submitted > answered)
            CHECK(read(crowd.event_fd, &rings, sizeof rings) == sizeof rings);
    }
    CHECK(pthread_join(threads[3], NULL) == 0);
    fbk_store_stop_readers(harness.store);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    close(crowd.event_fd);
    harness_end(&harness);
}

int
main(void)
{
    test_what_was_flushed_is_found_and_nothing_else();
    test_runs_that_interleave_over_files();
    test_a_long_run_around_short_ones();
    test_list();
    test_merge();
    test_read_cache_is_bounded_and_pins_hold();
    test_jobs_are_bounded();
    test_one_changed_byte_anywhere();
    test_a_bad_entry_leaves_its_neighbours();
    test_readers_beside_flushes();
    return 0;
}
