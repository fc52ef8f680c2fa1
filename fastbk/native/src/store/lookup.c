/* Finding the smallest id in a range.
 *
 * Every file of the set is asked, newest first.  In each, the locations that span `first` (first id
 * <= first <= last id) need their run read, since ids may have gaps; of those behind, the nearest
 * is enough: its first id is certainly there.  What could not be read is remembered as `doubt`: the
 * smallest id in range that may lie there. A found id above the doubt proves nothing, so the answer
 * is then CANNOT_TELL (INV-X1); one at or below it is right whatever else is broken.
 *
 * Locations in logs that the set does not list are passed over (INV-X5).  A set that was replaced
 * meanwhile may name logs that are gone: doubt that arises under such a set is looked into again,
 * under the current one. */
#include "store/entry_log.h"
#include "store/parts.h"

/* looks under newer and newer sets, then CANNOT_TELL: sets change a few times a second at most */
#define SETS_MAX 8u

struct lookup {
    struct fbk_store *store;
    const struct fbk_file_set *set;
    int64_t ledger_id;
    int64_t first;
    int64_t last;
    struct fbk_cached_run *run; /* pinned; the one that holds `found` */
    int64_t found;              /* -1 = none */
    int64_t doubt;              /* -1 = none */
    enum fbk_run_use use;
    bool cached;  /* only what is in memory: what is not is doubt */
    bool no_room; /* the read cache was full of pinned runs */
};

static void
doubt_at(struct lookup *lookup, int64_t entry_id)
{
    int64_t at = entry_id < lookup->first ? lookup->first : entry_id;
    if (lookup->doubt < 0 || at < lookup->doubt)
        lookup->doubt = at;
}

/* Reads the run at a location that may hold an id in range below `found`. */
static void
try_run(struct lookup *lookup, const struct fbk_location *location)
{
    struct fbk_cached_run *run;
    if (location->flags & FBK_LOCATION_DAMAGED) {
        doubt_at(lookup, location->first_entry_id);
        return;
    }
    int32_t result;
    if (lookup->cached)
        result = fbk_entry_fetch_cached(lookup->store, location, lookup->first, &run);
    else if (lookup->first == lookup->last && lookup->use == FBK_RUN_KEPT)
        result = fbk_entry_fetch(lookup->store, location, lookup->first, &run);
    else
        result = fbk_run_fetch(lookup->store, location, lookup->use, &run);
    if (result == 1)
        return;
    if (result < 0) {
        lookup->no_room = lookup->no_room || result == FBK_E_FULL;
        doubt_at(lookup, location->first_entry_id);
        return;
    }
    const struct fbk_run_item *items = fbk_run_items(&run->run);
    uint32_t index = fbk_run_lower_bound(&run->run, lookup->first);
    int64_t entry_id = index < run->run.entry_count ? items[index].entry_id : -1;
    if (entry_id < 0 || entry_id > lookup->last) {
        fbk_run_let_go(lookup->store, run);
        return;
    }
    if (items[index].size_bytes == 0) {
        doubt_at(lookup, entry_id);
        fbk_run_let_go(lookup->store, run);
        return;
    }
    if (lookup->found >= 0 && lookup->found <= entry_id) {
        fbk_run_let_go(lookup->store, run);
        return;
    }
    if (lookup->run)
        fbk_run_let_go(lookup->store, lookup->run);
    lookup->run = run;
    lookup->found = entry_id;
}

/* Locations at and before (block, index) in key order that span `first`. */
static void
search_back(struct lookup *lookup, struct fbk_walk *walk, int64_t block, int32_t index)
{
    while (lookup->found != lookup->first) {
        if (index < 0) {
            if (--block < 0)
                return;
            if (fbk_walk_load(walk, (uint64_t)block) < 0) {
                doubt_at(lookup, lookup->first);
                continue; /* behind it there may be a whole one that holds it */
            }
            index = walk->count - 1;
            continue;
        }
        struct fbk_location location = walk->locations[index];
        if (location.ledger_id != lookup->ledger_id || location.last_entry_id_max < lookup->first)
            return;
        if (location.last_entry_id >= lookup->first &&
            fbk_location_counts(lookup->set->logs, &location))
            try_run(lookup, &location);
        index--;
    }
}

/* The first location behind (block, index) that counts: true if it holds an id in range.  One that
 * stands for damage is noted as doubt and passed over: behind it may be a good one with the same
 * first id. */
static bool
search_ahead(struct lookup *lookup, struct fbk_walk *walk, int64_t block, int32_t index,
             struct fbk_location *next)
{
    const struct fbk_locations_file *file = walk->file;
    for (;;) {
        if (block >= (int64_t)file->header.location_blocks)
            return false;
        const struct fbk_sparse_key *key = &file->keys[block];
        if (index == 0 && !file->damaged[block] &&
            fbk_location_compare(key->ledger_id, key->first_entry_id, lookup->ledger_id,
                                 lookup->last) > 0)
            return false;
        if (fbk_walk_load(walk, (uint64_t)block) < 0) {
            doubt_at(lookup,
                     index == 0 && !file->damaged[block] ? key->first_entry_id : lookup->first);
            return false;
        }
        for (; index < walk->count; index++) {
            *next = walk->locations[index];
            if (next->ledger_id != lookup->ledger_id || next->first_entry_id > lookup->last)
                return false;
            if (next->flags & FBK_LOCATION_DAMAGED)
                doubt_at(lookup, next->first_entry_id);
            else if (fbk_location_counts(lookup->set->logs, next))
                return true;
        }
        block++;
        index = 0;
    }
}

/* Spanning runs are read; *next gets the nearest location behind, if any. */
static bool
search_file(struct lookup *lookup, const struct fbk_locations_file *file, struct fbk_location *next)
{
    struct fbk_walk walk;
    if (file->damaged_whole) {
        doubt_at(lookup, lookup->first);
        return false;
    }
    fbk_walk_begin(&walk, lookup->store, file);
    walk.use = lookup->cached ? FBK_BLOCK_CACHED : FBK_BLOCK_KEPT;
    int64_t block = fbk_walk_block_of(file, lookup->ledger_id, lookup->first);
    int32_t behind = 0; /* index in `block` of the first location behind */
    if (block >= 0) {
        if (fbk_walk_load(&walk, (uint64_t)block) < 0) {
            doubt_at(lookup, lookup->first);
            search_back(lookup, &walk, block, -1);
            /* what lies ahead can't be told from what lies in the damaged block */
            return false;
        }
        behind = fbk_walk_upper_bound(&walk, lookup->ledger_id, lookup->first);
        search_back(lookup, &walk, block, behind - 1);
    }
    if (lookup->found == lookup->first || lookup->last == lookup->first)
        return false;
    return search_ahead(lookup, &walk, block < 0 ? 0 : block, behind, next);
}

/* Takes the nearest of the locations behind; if it turns out damaged, others that begin at the same
 * id. */
static void
take_nearest(struct lookup *lookup, struct fbk_location *nexts, uint32_t count)
{
    for (;;) {
        struct fbk_location *nearest = NULL;
        for (uint32_t i = 0; i < count; i++) {
            if (nexts[i].ledger_id >= 0 &&
                (!nearest || nexts[i].first_entry_id < nearest->first_entry_id))
                nearest = &nexts[i];
        }
        if (!nearest || (lookup->found >= 0 && nearest->first_entry_id >= lookup->found) ||
            (lookup->doubt >= 0 && nearest->first_entry_id > lookup->doubt))
            return;
        try_run(lookup, nearest);
        nearest->ledger_id = -1;
    }
}

static void
run_lookup(struct lookup *lookup)
{
    const struct fbk_file_set *set = lookup->set;
    struct fbk_location nexts[FBK_STORE_FILES_MAX];
    uint32_t next_count = 0;
    for (uint32_t i = 0; i < set->count && lookup->found != lookup->first; i++) {
        if (search_file(lookup, set->files[i], &nexts[next_count]))
            next_count++;
    }
    if (lookup->found != lookup->first)
        take_nearest(lookup, nexts, next_count);
}

/* The first id of the nearest location behind (block, index) that counts, if it is at most
 * `through`; INT64_MAX if there is none, -1 if it can't be read. */
static int64_t
next_first_id(struct fbk_walk *walk, const struct fbk_log_list *logs, int64_t block, int32_t index,
              int64_t ledger_id, int64_t through)
{
    const struct fbk_locations_file *file = walk->file;
    for (; block < (int64_t)file->header.location_blocks; block++, index = 0) {
        if (index == 0 &&
            fbk_location_compare(file->keys[block].ledger_id, file->keys[block].first_entry_id,
                                 ledger_id, through) > 0)
            break;
        if (fbk_walk_load(walk, (uint64_t)block) < 0)
            return -1;
        for (; index < walk->count; index++) {
            const struct fbk_location *location = &walk->locations[index];
            if (location->ledger_id != ledger_id || location->first_entry_id > through)
                return INT64_MAX;
            if (fbk_location_counts(logs, location))
                return location->first_entry_id;
        }
    }
    return INT64_MAX;
}

/* How far ids on disk from `found` on all lie in the run at `own`: up to the next location that
 * begins behind `found`; nowhere if another one spans it, or if something can't be read. */
static int64_t
alone_in_file(struct fbk_store *store, const struct fbk_locations_file *file,
              const struct fbk_log_list *logs, const struct fbk_cached_run *own, int64_t found)
{
    struct fbk_walk walk;
    int64_t ledger_id = own->run.ledger_id, through = own->run.last_entry_id;
    if (file->damaged_whole || file->damaged_blocks > 0)
        return found;
    fbk_walk_begin(&walk, store, file);
    int64_t block = fbk_walk_block_of(file, ledger_id, found);
    int32_t behind = 0;
    if (block >= 0) {
        if (fbk_walk_load(&walk, (uint64_t)block) < 0)
            return found;
        behind = fbk_walk_upper_bound(&walk, ledger_id, found);
    }
    int64_t back = block;
    for (int32_t index = behind - 1; back >= 0;) {
        if (index < 0) {
            if (--back < 0)
                break;
            if (fbk_walk_load(&walk, (uint64_t)back) < 0)
                return found;
            index = walk.count - 1;
            continue;
        }
        const struct fbk_location *location = &walk.locations[index--];
        if (location->ledger_id != ledger_id || location->last_entry_id_max < found)
            break;
        bool is_own =
            location->log_id == own->log_id && location->offset_bytes == own->offset_bytes;
        if (location->last_entry_id >= found && !is_own && fbk_location_counts(logs, location))
            return found;
    }
    int64_t next = next_first_id(&walk, logs, block < 0 ? 0 : block, behind, ledger_id, through);
    if (next < 0)
        return found;
    return next <= through ? next - 1 : through;
}

static int64_t
alone_through(struct fbk_store *store, const struct fbk_file_set *set,
              const struct fbk_cached_run *own, int64_t found)
{
    int64_t through = own->run.last_entry_id;
    for (uint32_t i = 0; i < set->count && through > found; i++) {
        int64_t here = alone_in_file(store, set->files[i], set->logs, own, found);
        if (here < through)
            through = here;
    }
    return through;
}

/* Looks under one set; true if *result is the answer, false if it is worth another look under a
 * newer set. */
static bool
search_set(struct fbk_store *store, const struct fbk_file_set *set, const struct fbk_job *job,
           struct fbk_store_result *result)
{
    struct lookup lookup = {
        .store = store,
        .set = set,
        .ledger_id = job->ledger_id,
        .first = job->first_entry_id < 0 ? 0 : job->first_entry_id,
        .last = job->last_entry_id,
        .found = -1,
        .doubt = -1,
        .use = job->lane == FBK_LANE_URGENT ? FBK_RUN_KEPT : FBK_RUN_SCAN,
    };
    if (lookup.first <= lookup.last && job->ledger_id >= 0)
        run_lookup(&lookup);
    *result =
        (struct fbk_store_result){.ticket = job->ticket, .found_entry_id = -1, .alone_through = -1};
    if (lookup.found >= 0 && (lookup.doubt < 0 || lookup.found <= lookup.doubt)) {
        result->status = FBK_S_OK;
        result->found_entry_id = lookup.found;
        result->run = &lookup.run->run;
        if (job->last_entry_id > job->first_entry_id)
            result->alone_through = alone_through(store, set, lookup.run, lookup.found);
        return true;
    }
    if (lookup.run)
        fbk_run_let_go(store, lookup.run);
    result->status = lookup.no_room      ? FBK_S_TOO_MANY_REQUESTS
                     : lookup.doubt >= 0 ? FBK_S_CANNOT_TELL
                                         : FBK_S_NO_ENTRY;
    return result->status != FBK_S_CANNOT_TELL;
}

void
fbk_lookup_read(struct fbk_store *store, const struct fbk_job *job, struct fbk_store_result *result)
{
    for (uint32_t sets = 1;; sets++) {
        struct fbk_file_set *set = fbk_file_set_take(store);
        bool is_answer = search_set(store, set, job, result) || sets == SETS_MAX ||
                         !fbk_file_set_is_old(store, set);
        fbk_file_set_unref(store, set);
        if (is_answer)
            return;
    }
}

const struct fbk_run *
fbk_store_read_cached(struct fbk_store *store, int64_t ledger_id, int64_t entry_id)
{
    if (ledger_id < 0 || entry_id < 0 || store->cannot_read_cached ||
        !store->reader_io->operations->read_cached)
        return NULL;
    struct fbk_file_set *set = fbk_file_set_take(store);
    struct lookup lookup = {
        .store = store,
        .set = set,
        .ledger_id = ledger_id,
        .first = entry_id,
        .last = entry_id,
        .found = -1,
        .doubt = -1,
        .use = FBK_RUN_KEPT,
        .cached = true,
    };
    run_lookup(&lookup);
    fbk_file_set_unref(store, set);
    return lookup.run ? &lookup.run->run : NULL;
}
