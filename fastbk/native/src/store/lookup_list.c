/* Which ids of a ledger are on disk, as ranges.  Files are walked side by side in key order; a run
 * without gaps is told by its location alone, only others are read. */
#include <stdlib.h>

#include "store/entry_log.h"
#include "store/location_cursor.h"

#define RUNS_A_JOB_MAX 65536u /* then the answer says where to go on */
#define SETS_MAX 8u           /* looks under newer and newer sets */
/* the same: a striped ledger's run has up to 128 gaps; four times the ranges of a reply */
#define SPANS_A_JOB_MAX 65536u

struct span {
    int64_t first;
    int64_t last;
};

struct spans {
    struct span *spans;
    uint64_t count;
    uint64_t room;
};

struct listing {
    struct fbk_store *store;
    int64_t ledger_id;
    int64_t first;
    struct spans spans;
    /* ids that stand for damage: there is an answer only if other runs hold them */
    struct spans doubts;
};

static int32_t
add_span(struct spans *spans, int64_t first, int64_t last)
{
    const int64_t before = spans->count > 0 ? spans->spans[spans->count - 1].last : -1;
    /* last < first: no overflow */
    if (spans->count > 0 && before < first && before + 1 == first) {
        spans->spans[spans->count - 1].last = last;
        return 0;
    }
    if (spans->count == spans->room) {
        uint64_t room = spans->room ? spans->room * 2 : 1024;
        struct span *more = realloc(spans->spans, room * sizeof *more);
        if (!more)
            return -ENOMEM;
        spans->spans = more;
        spans->room = room;
    }
    spans->spans[spans->count++] = (struct span){first, last};
    return 0;
}

static int32_t
add_run(struct listing *listing, const struct fbk_location *location)
{
    int64_t from =
        location->first_entry_id < listing->first ? listing->first : location->first_entry_id;
    if (location->last_entry_id < from)
        return 0;
    if (location->flags & FBK_LOCATION_DAMAGED)
        return add_span(&listing->doubts, from, location->last_entry_id);
    if (location->last_entry_id - location->first_entry_id + 1 == location->entry_count)
        return add_span(&listing->spans, from, location->last_entry_id);
    struct fbk_cached_run *run;
    int32_t result = fbk_run_fetch(listing->store, location, FBK_RUN_SCAN, &run);
    if (result < 0)
        return result;
    const struct fbk_run_item *items = fbk_run_items(&run->run);
    for (uint32_t i = fbk_run_lower_bound(&run->run, from); i < run->run.entry_count && result >= 0;
         i++)
        result = add_span(&listing->spans, items[i].entry_id, items[i].entry_id);
    fbk_run_let_go(listing->store, run);
    return result;
}

static int
compare_spans(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->first < y->first ? -1 : x->first > y->first;
}

/* Sorts and joins.  Spans that begin at or behind `complete_below` are left out unless it is -1
 * (all is known). */
static uint32_t
put_ranges(struct spans *spans, int64_t complete_below, int64_t *ranges, uint32_t count_max,
           int64_t *go_on)
{
    uint32_t count = 0;
    *go_on = complete_below;
    if (spans->count > 1)
        qsort(spans->spans, spans->count, sizeof *spans->spans, compare_spans);
    for (uint64_t i = 0; i < spans->count; i++) {
        struct span span = spans->spans[i];
        if (complete_below >= 0) {
            if (span.first >= complete_below)
                break;
            if (span.last >= complete_below)
                span.last = complete_below - 1;
        }
        if (count > 0 && span.first <= ranges[2 * count - 1]) {
            if (span.last > ranges[2 * count - 1])
                ranges[2 * count - 1] = span.last;
        } else if (count > 0 && span.first == ranges[2 * count - 1] + 1) {
            ranges[2 * count - 1] = span.last;
        } else if (count == count_max) {
            *go_on = span.first;
            break;
        } else {
            ranges[2 * count] = span.first;
            ranges[2 * count + 1] = span.last;
            count++;
        }
    }
    return count;
}

/* Whether every id below `complete_below` (-1: every id) that stands for damage lies in one of the
 * sorted, joined spans. */
static bool
is_certain(const struct spans *doubts, int64_t complete_below, const int64_t *ranges,
           uint32_t range_count, int64_t go_on)
{
    for (uint64_t i = 0; i < doubts->count; i++) {
        struct span doubt = doubts->spans[i];
        if ((complete_below >= 0 && doubt.first >= complete_below) ||
            (go_on >= 0 && doubt.first >= go_on))
            continue; /* for the next page to say */
        uint32_t at = 0;
        while (at < range_count && ranges[2 * at + 1] < doubt.first)
            at++;
        int64_t last = go_on >= 0 && doubt.last >= go_on ? go_on - 1 : doubt.last;
        if (at == range_count || ranges[2 * at] > doubt.first || ranges[2 * at + 1] < last)
            return false;
    }
    return true;
}

/* Adds runs in the order of their first ids; *complete_below: what is known is all there is below
 * it, -1 = everything. */
static int32_t
gather(struct listing *listing, struct fbk_location_cursor *cursor, int64_t *complete_below)
{
    *complete_below = -1;
    for (uint64_t runs = 0;; runs++) {
        struct fbk_location location;
        int32_t any = fbk_location_cursor_peek(cursor, &location);
        if (any <= 0)
            return any;
        bool is_enough = runs >= RUNS_A_JOB_MAX || listing->spans.count >= SPANS_A_JOB_MAX;
        if (is_enough && location.first_entry_id > listing->first) {
            *complete_below = location.first_entry_id;
            return 0;
        }
        int32_t result = add_run(listing, &location);
        if (result < 0)
            return result;
        fbk_location_cursor_pass(cursor);
    }
}

/* The answer under one set. */
static int32_t
list_once(struct fbk_store *store, const struct fbk_file_set *set, const struct fbk_job *job,
          struct fbk_store_result *result)
{
    struct listing listing = {
        .store = store,
        .ledger_id = job->ledger_id,
        .first = job->first_entry_id < 0 ? 0 : job->first_entry_id,
    };
    struct fbk_location_cursor cursor;
    int64_t complete_below = -1;
    int32_t error = fbk_location_cursor_begin(&cursor, store, set, job->ledger_id, listing.first);
    if (error >= 0)
        error = gather(&listing, &cursor, &complete_below);
    if (error >= 0) {
        result->range_count = put_ranges(&listing.spans, complete_below, job->ranges,
                                         job->range_count_max, &result->found_entry_id);
        if (!is_certain(&listing.doubts, complete_below, job->ranges, result->range_count,
                        result->found_entry_id))
            error = FBK_E_CORRUPT;
    }
    free(listing.doubts.spans);
    free(listing.spans.spans);
    fbk_location_cursor_end(&cursor);
    return error;
}

void
fbk_lookup_list(struct fbk_store *store, const struct fbk_job *job, struct fbk_store_result *result)
{
    for (uint32_t sets = 1;; sets++) {
        struct fbk_file_set *set = fbk_file_set_take(store);
        *result = (struct fbk_store_result){
            .ticket = job->ticket, .found_entry_id = -1, .alone_through = -1};
        int32_t error = list_once(store, set, job, result);
        bool is_over = error >= 0 || error == FBK_E_FULL || sets == SETS_MAX ||
                       !fbk_file_set_is_old(store, set);
        fbk_file_set_unref(store, set);
        if (!is_over)
            continue; /* a log may have gone between the set and the look */
        if (error < 0)
            *result = (struct fbk_store_result){
                .ticket = job->ticket,
                .found_entry_id = -1,
                .alone_through = -1,
                .status = error == FBK_E_FULL ? FBK_S_TOO_MANY_REQUESTS : FBK_S_CANNOT_TELL,
            };
        return;
    }
}
