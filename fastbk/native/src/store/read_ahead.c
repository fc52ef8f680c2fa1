/* Bringing the runs that a reader will want next into the cache.
 *
 * Runs of one ledger from one flush lie side by side in a log: neighbours are read in one go, up to
 * GROUP_BYTES, each into a buffer of its own, so that it can leave the cache alone.  Whatever goes
 * wrong here is noted and passed over; the reader's own job finds out and says so.
 *
 * Decision 81. */
#include "store/entry_log.h"
#include "store/location_cursor.h"

#define GROUP_BYTES (1024u * 1024u)
#define GROUP_RUNS 64u
#define GAP_BYTES (64u * 1024u) /* read and thrown away rather than jumped over */

struct member {
    struct fbk_location location;
    struct fbk_fetch fetch;
    uint8_t *buffer;
    uint64_t buffer_bytes;
    int32_t damaged; /* entries, or < 0: the run can't be had */
    bool whole;      /* read and checked; damaged entries are marked as such in it */
};

struct group {
    struct fbk_store *store;
    struct member members[GROUP_RUNS];
    uint32_t count;
    uint8_t gap[GAP_BYTES]; /* for what lies between runs; nobody looks at it */
};

/* A place in the cache for a run that is neither there nor on its way.  False: no room. */
static bool
reserve(struct group *group, const struct fbk_location *location, bool *wanted)
{
    struct fbk_store *store = group->store;
    struct member *member = &group->members[group->count];
    *wanted = !fbk_read_cache_find_location(&store->read_cache, location) &&
              !fbk_run_is_fetched_now(store, location);
    if (!*wanted)
        return true;
    *member = (struct member){.location = *location};
    member->buffer = fbk_read_cache_take_buffer(&store->read_cache, location->size_bytes,
                                                FBK_RUN_SCAN, &member->buffer_bytes);
    if (!member->buffer)
        return false;
    member->fetch = (struct fbk_fetch){location->log_id, location->offset_bytes, store->fetches};
    store->fetches = &member->fetch;
    group->count++;
    return true;
}

static uint64_t
end_of(const struct fbk_location *location)
{
    return location->offset_bytes + location->size_bytes;
}

static bool
joins(const struct group *group, const struct fbk_location *location)
{
    if (group->count == 0)
        return true;
    const struct fbk_location *first = &group->members[0].location;
    const struct fbk_location *last = &group->members[group->count - 1].location;
    return group->count < GROUP_RUNS && location->log_id == last->log_id &&
           location->offset_bytes >= end_of(last) &&
           location->offset_bytes - end_of(last) <= GAP_BYTES &&
           end_of(location) - first->offset_bytes <= GROUP_BYTES;
}

/* Lists where all members go, and what lies between them; returns how many parts that is. */
static uint32_t
lay_out(struct group *group, struct iovec *parts, uint64_t *size_bytes)
{
    uint64_t at = group->members[0].location.offset_bytes;
    uint32_t count = 0;
    for (uint32_t i = 0; i < group->count; i++) {
        const struct fbk_location *location = &group->members[i].location;
        if (location->offset_bytes > at)
            parts[count++] = (struct iovec){group->gap, location->offset_bytes - at};
        parts[count++] = (struct iovec){group->members[i].buffer, location->size_bytes};
        at = end_of(location);
    }
    *size_bytes = at - group->members[0].location.offset_bytes;
    return count;
}

/* All members in one read; those that pass their checks are whole. */
static void
read_together(struct group *group)
{
    struct fbk_io *io = group->store->reader_io;
    struct iovec parts[2 * GROUP_RUNS];
    uint64_t size_bytes;
    const uint32_t count = lay_out(group, parts, &size_bytes);
    const struct fbk_location *first = &group->members[0].location;
    struct fbk_open_log *log;
    if (io->operations->read_parts == NULL ||
        fbk_open_log_take(group->store, first->log_id, &log) < 0)
        return;
    const uint64_t *salt = log->has_salt ? &log->salt : NULL;
    const int32_t got =
        io->operations->read_parts(io, log->handle, parts, count, first->offset_bytes);
    for (uint32_t i = 0; got >= 0 && (uint64_t)got == size_bytes && i < group->count; i++) {
        struct member *member = &group->members[i];
        member->whole = fbk_run_check(member->buffer, member->location.size_bytes,
                                      &member->location, salt) == 0;
    }
    fbk_open_log_let_go(group->store, log);
}

/* Reads what was reserved and puts it into the cache. */
static void
read_group(struct group *group)
{
    struct fbk_store *store = group->store;
    if (group->count == 0)
        return;
    if (group->count > 1)
        read_together(group);
    for (uint32_t i = 0; i < group->count; i++) {
        struct member *member = &group->members[i];
        if (member->whole) /* not alone in its group, and it looked well there */
            continue;
        member->damaged = fbk_run_read(store, &member->location, member->buffer);
        member->whole = member->damaged >= 0;
    }
    fbk_store_lock(store);
    store->counts.ahead_reads++;
    for (uint32_t i = 0; i < group->count; i++) {
        struct member *member = &group->members[i];
        struct fbk_cached_run *run = NULL;
        if (member->whole)
            run = fbk_read_cache_insert(&store->read_cache, &member->location, member->buffer,
                                        member->buffer_bytes, FBK_RUN_SCAN);
        if (run)
            fbk_read_cache_unpin(&store->read_cache, run);
        else
            fbk_read_cache_return_buffer(&store->read_cache, member->buffer, member->buffer_bytes,
                                         FBK_RUN_SCAN);
        if (member->damaged != 0 && member->damaged != -ENOMEM)
            fbk_store_note_damage(store, &member->location);
        store->counts.ahead_runs += run != NULL;
        store->counts.run_reads++;
        store->counts.run_read_bytes += member->location.size_bytes;
        fbk_run_fetch_ended(store, &member->fetch);
    }
    fbk_store_unlock(store);
    group->count = 0;
}

/* 1: go on behind it, 0: enough, or no room. */
static int32_t
take_in(struct group *group, const struct fbk_location *location)
{
    bool wanted = false;
    if (!joins(group, location))
        read_group(group);
    fbk_store_lock(group->store);
    bool is_room = reserve(group, location, &wanted);
    fbk_store_unlock(group->store);
    return is_room;
}

void
fbk_read_ahead(struct fbk_store *store, const struct fbk_job *job, struct fbk_store_result *result)
{
    *result = (struct fbk_store_result){
        .ticket = job->ticket,
        .found_entry_id = job->first_entry_id - 1,
        .alone_through = -1,
        .status = FBK_S_OK,
    };
    struct group *group = calloc(1, sizeof *group);
    if (!group)
        return;
    group->store = store;
    struct fbk_file_set *set = fbk_file_set_take(store);
    struct fbk_location_cursor cursor;
    int32_t error =
        fbk_location_cursor_begin(&cursor, store, set, job->ledger_id, job->first_entry_id);
    while (error >= 0) {
        struct fbk_location location;
        int32_t any = fbk_location_cursor_peek(&cursor, &location);
        if (any <= 0) {
            result->status = any == 0 ? FBK_S_NO_ENTRY : FBK_S_OK;
            break;
        }
        fbk_location_cursor_pass(&cursor);
        if (location.last_entry_id < job->first_entry_id || (location.flags & FBK_LOCATION_DAMAGED))
            continue;
        if (result->ahead_bytes > 0 &&
            result->ahead_bytes + location.size_bytes > job->size_bytes_max)
            break;
        if (!take_in(group, &location))
            break;
        result->ahead_bytes += location.size_bytes;
        if (location.last_entry_id > result->found_entry_id)
            result->found_entry_id = location.last_entry_id;
    }
    read_group(group);
    free(group);
    fbk_location_cursor_end(&cursor);
    fbk_file_set_unref(store, set);
}
