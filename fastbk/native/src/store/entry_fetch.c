/* One entry of a run, without the rest of it: what a single read of a large run costs.
 *
 * Read and checked are the run's header, its item table and the entry.  The entry goes into the
 * read cache as a run of one. Whoever reads more of the same run soon has it read whole: once
 * SINGLES_MAX entries of it are in the cache alone.  Reader threads read small runs whole at once:
 * there a second read of the disk costs more than the rest of the run.
 *
 * Decision 104. */
#include "base/checksum.h"
#include "store/entry_log.h"
#include "store/parts.h"

#define SINGLES_MAX 8u
#define WHOLE_BYTES_MAX (32u * 1024u)
/* of an entry that the main loop may copy and check itself */
#define CACHED_BYTES_MAX (64u * 1024u)

struct table {
    struct fbk_run_header header;
    struct fbk_run_item items[FBK_RUN_ENTRIES_MAX];
};

struct single {
    struct fbk_store *store;
    const struct fbk_location *location;
    struct fbk_open_log *log;
    bool cached; /* from memory, or not at all */
    uint8_t *buffer;
    uint64_t buffer_bytes;
};

/* The bytes of a run of one entry: header, item, entry.  Nobody reads the header of a run in
 * memory: it stays zero. */
#define ENTRY_AT (sizeof(struct fbk_run_header) + sizeof(struct fbk_run_item))

static int32_t
read_all(const struct single *single, void *data, uint64_t size_bytes, uint64_t offset_bytes)
{
    struct fbk_io *io = single->store->reader_io;
    if (!single->cached)
        return fbk_store_read_all(io, single->log->handle, data, size_bytes, offset_bytes);
    int32_t result = io->operations->read_cached(io, single->log->handle, data,
                                                 (uint32_t)size_bytes, offset_bytes);
    single->store->cannot_read_cached = result == -EOPNOTSUPP;
    return result;
}

/* 0, with *item; 1 if the run does not hold the entry; < 0: look at the whole of it. */
static int32_t
read_item(const struct single *single, int64_t entry_id, struct fbk_run_item *item)
{
    _Alignas(8) struct table table;
    const struct fbk_location *location = single->location;
    uint64_t table_bytes = sizeof table.header + location->entry_count * sizeof table.items[0];
    int32_t result = read_all(single, &table, table_bytes, location->offset_bytes);
    if (result >= 0)
        result = fbk_run_table_check((const uint8_t *)&table, location,
                                     single->log->has_salt ? &single->log->salt : NULL);
    if (result < 0)
        return result;
    const struct fbk_run run = {
        .bytes = (const uint8_t *)&table,
        .entry_count = location->entry_count,
        .first_entry_id = location->first_entry_id,
        .last_entry_id = location->last_entry_id,
    };
    const struct fbk_run_item *found = fbk_run_find(&run, entry_id);
    if (!found)
        return 1;
    *item = *found;
    return 0;
}

static int32_t
read_entry(const struct single *single, const struct fbk_run_item *item)
{
    uint8_t *entry = single->buffer + ENTRY_AT;
    struct fbk_run_item *own =
        (struct fbk_run_item *)(void *)(single->buffer + sizeof(struct fbk_run_header));
    memset(single->buffer, 0, sizeof(struct fbk_run_header));
    *own = *item;
    own->offset_bytes = ENTRY_AT;
    int32_t result = read_all(single, entry, item->size_bytes,
                              single->location->offset_bytes + item->offset_bytes);
    if (result < 0)
        return result;
    return fbk_crc32c(0, entry, item->size_bytes) == item->crc ? 0 : FBK_E_CORRUPT;
}

/* Reads the entry into a place in the cache; NULL: the whole run says why not. */
static struct fbk_cached_run *
keep_entry(struct single *single, const struct fbk_run_item *item)
{
    struct fbk_store *store = single->store;
    struct fbk_cached_run *run = NULL;
    uint64_t size_bytes = ENTRY_AT + fbk_round_up(item->size_bytes, 8);
    fbk_store_lock(store);
    single->buffer = fbk_read_cache_take_buffer(&store->read_cache, size_bytes, FBK_RUN_KEPT,
                                                &single->buffer_bytes);
    fbk_store_unlock(store);
    if (!single->buffer)
        return NULL;
    int32_t result = read_entry(single, item);
    fbk_store_lock(store);
    if (result == 0) {
        const struct fbk_location *whole = single->location;
        const struct fbk_location location = {
            .ledger_id = whole->ledger_id,
            .first_entry_id = item->entry_id,
            .last_entry_id = item->entry_id,
            .log_id = whole->log_id,
            .offset_bytes = whole->offset_bytes,
            .size_bytes = (uint32_t)size_bytes,
            .entry_count = 1,
        };
        store->counts.run_reads++;
        store->counts.run_read_bytes += sizeof(struct fbk_run_header) +
                                        whole->entry_count * sizeof(struct fbk_run_item) +
                                        item->size_bytes;
        run = fbk_read_cache_insert(&store->read_cache, &location, single->buffer,
                                    single->buffer_bytes, FBK_RUN_KEPT);
    }
    if (!run)
        fbk_read_cache_return_buffer(&store->read_cache, single->buffer, single->buffer_bytes,
                                     FBK_RUN_KEPT);
    fbk_store_unlock(store);
    return run;
}

/* 0, with *run; 1 if the run at the location does not hold the entry; < 0: look at the whole of
 * it. */
static int32_t
read_single(struct single *single, int64_t entry_id, struct fbk_cached_run **run)
{
    struct fbk_run_item item;
    int32_t result = read_item(single, entry_id, &item);
    if (result == 0 && single->cached && item.size_bytes > CACHED_BYTES_MAX)
        result = -EAGAIN; /* before anything makes room for it */
    if (result == 0) {
        *run = keep_entry(single, &item);
        result = *run ? 0 : FBK_E_CORRUPT;
    }
    fbk_open_log_let_go(single->store, single->log);
    return result;
}

/* Mutex held.  Whether this entry is better read alone; *run if something that holds it is in the
 * cache. */
static bool
is_single(struct fbk_store *store, const struct fbk_location *location, int64_t entry_id,
          struct fbk_cached_run **run)
{
    uint32_t singles;
    if (!fbk_location_is_sane(location))
        return false;
    *run = fbk_read_cache_find_entry(&store->read_cache, location, entry_id, &singles);
    if (*run) {
        fbk_read_cache_use(&store->read_cache, *run, FBK_RUN_KEPT);
        fbk_read_cache_pin(&store->read_cache, *run);
        store->counts.cache_hits++;
    }
    return !*run && singles < SINGLES_MAX && !fbk_run_is_fetched_now(store, location);
}

int32_t
fbk_entry_fetch(struct fbk_store *store, const struct fbk_location *location, int64_t entry_id,
                struct fbk_cached_run **run)
{
    *run = NULL;
    fbk_store_lock(store);
    bool alone = is_single(store, location, entry_id, run);
    fbk_store_unlock(store);
    if (*run)
        return 0;
    struct single single = {.store = store, .location = location};
    int32_t result = FBK_E_CORRUPT;
    if (alone && location->size_bytes > WHOLE_BYTES_MAX && location->entry_count > 1 &&
        fbk_open_log_take(store, location->log_id, &single.log) == 0)
        result = read_single(&single, entry_id, run);
    return result >= 0 ? result : fbk_run_fetch(store, location, FBK_RUN_KEPT, run);
}

int32_t
fbk_entry_fetch_cached(struct fbk_store *store, const struct fbk_location *location,
                       int64_t entry_id, struct fbk_cached_run **run)
{
    *run = NULL;
    fbk_store_lock(store);
    bool alone = is_single(store, location, entry_id, run);
    fbk_store_unlock(store);
    if (*run)
        return 0;
    struct single single = {.store = store, .location = location, .cached = true};
    if (!alone || (single.log = fbk_open_log_find(store, location->log_id)) == NULL)
        return -EAGAIN;
    return read_single(&single, entry_id, run);
}
