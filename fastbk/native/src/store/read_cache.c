/* Buffers, lists and buckets of the runs in memory. */
#include "store/read_cache.h"

#include "base/layout.h"
#include "base/segment.h"

/* Buffer sizes: 1..8 pages, then eight steps an octave, so that a buffer can serve again for
 * another run. */
static uint64_t
size_of_class(uint32_t class)
{
    if (class < 8)
        return (class + 1) * (uint64_t)FBK_PAGE_BYTES;
    uint32_t octave = (class - 8) / 8;
    uint32_t step = (class - 8) % 8 + 1;
    return (uint64_t)(8 + step) * FBK_PAGE_BYTES << octave;
}

static uint32_t
class_of(uint64_t size_bytes)
{
    uint32_t class = 0;
    while (size_of_class(class) < size_bytes)
        class++;
    FBK_ASSERT(class < FBK_BUFFER_CLASSES);
    return class;
}

static uint64_t
bucket_of(const struct fbk_read_cache *cache, int64_t ledger_id, int64_t window)
{
    uint64_t hash =
        ((uint64_t)ledger_id * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)window * 0xc2b2ae3d27d4eb4full);
    return (hash ^ hash >> 31) & (cache->bucket_count - 1);
}

int32_t
fbk_read_cache_init(struct fbk_read_cache *cache, uint64_t bytes_max)
{
    memset(cache, 0, sizeof *cache);
    cache->bytes_max = bytes_max;
    cache->bucket_count = 256;
    while (cache->bucket_count < bytes_max / FBK_PAGE_BYTES)
        cache->bucket_count *= 2;
    cache->buckets = calloc(cache->bucket_count, sizeof *cache->buckets);
    return cache->buckets ? 0 : -ENOMEM;
}

static void
take_out(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    struct fbk_run_list *list = &cache->lists[run->use];
    if (run->newer)
        run->newer->older = run->older;
    else
        list->newest = run->older;
    if (run->older)
        run->older->newer = run->newer;
    else
        list->oldest = run->newer;
    list->bytes -= run->buffer_bytes;
    cache->entries -= run->run.entry_count;
}

static void
put_newest(struct fbk_read_cache *cache, struct fbk_cached_run *run, enum fbk_run_use use)
{
    struct fbk_run_list *list = &cache->lists[use];
    run->use = use;
    run->newer = NULL;
    run->older = list->newest;
    if (list->newest)
        list->newest->newer = run;
    else
        list->oldest = run;
    list->newest = run;
    list->bytes += run->buffer_bytes;
    cache->entries += run->run.entry_count;
}

static void
put_oldest(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    struct fbk_run_list *list = &cache->lists[run->use];
    run->older = NULL;
    run->newer = list->oldest;
    if (list->oldest)
        list->oldest->older = run;
    else
        list->newest = run;
    list->oldest = run;
    list->bytes += run->buffer_bytes;
    cache->entries += run->run.entry_count;
}

static void
unlist(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    take_out(cache, run);
    for (uint32_t i = 0; i < run->link_count; i++) {
        struct fbk_run_link *link = &run->links[i];
        struct fbk_run_link **at =
            &cache->buckets[bucket_of(cache, run->run.ledger_id, link->window)];
        while (*at != link)
            at = &(*at)->next;
        *at = link->next;
    }
    run->listed = false;
}

static void give_buffer(struct fbk_read_cache *cache, uint8_t *buffer, uint64_t buffer_bytes);

static void
drop(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    if (run->listed)
        unlist(cache, run);
    give_buffer(cache, run->buffer, run->buffer_bytes);
    free(run);
}

static void
release_memory(struct fbk_read_cache *cache, uint8_t *buffer, uint64_t buffer_bytes)
{
    cache->bytes -= buffer_bytes;
    fbk_memory_give_back(buffer, buffer_bytes);
}

void
fbk_read_cache_free(struct fbk_read_cache *cache)
{
    for (uint32_t use = 0; use < FBK_RUN_USES; use++) {
        while (cache->lists[use].oldest) {
            FBK_ASSERT(cache->lists[use].oldest->pins == 0);
            drop(cache, cache->lists[use].oldest);
        }
    }
    for (uint32_t class = 0; class < FBK_BUFFER_CLASSES; class++) {
        while (cache->free[class]) {
            struct fbk_free_buffer *buffer = cache->free[class];
            cache->free[class] = buffer->next;
            release_memory(cache, (uint8_t *)buffer, size_of_class(class));
        }
    }
    FBK_ASSERT(cache->bytes == 0 || cache->buckets == NULL);
    free(cache->buckets);
    cache->buckets = NULL;
}

/* Gives one free buffer of any class back; false if there is none. */
static bool
release_one_free(struct fbk_read_cache *cache)
{
    for (uint32_t class = FBK_BUFFER_CLASSES; class-- > 0;) {
        struct fbk_free_buffer *buffer = cache->free[class];
        if (!buffer)
            continue;
        cache->free[class] = buffer->next;
        release_memory(cache, (uint8_t *)buffer, size_of_class(class));
        return true;
    }
    return false;
}

static bool
evict_from(struct fbk_read_cache *cache, enum fbk_run_use use)
{
    for (struct fbk_cached_run *run = cache->lists[use].oldest; run; run = run->newer) {
        if (run->pins == 0) {
            drop(cache, run);
            return true;
        }
    }
    return false;
}

static bool
evict_one(struct fbk_read_cache *cache)
{
    const struct fbk_run_list *scan = &cache->lists[FBK_RUN_SCAN];
    bool has_consumed = scan->oldest && scan->oldest->consumed;
    bool is_over = scan->bytes + scan->reserved_bytes > cache->bytes_max / 2;
    enum fbk_run_use first = has_consumed || is_over ? FBK_RUN_SCAN : FBK_RUN_KEPT;
    return evict_from(cache, first) ||
           evict_from(cache, first == FBK_RUN_SCAN ? FBK_RUN_KEPT : FBK_RUN_SCAN);
}

/* A free buffer, up to half as large again as the class asks: a ledger's runs differ, and fresh
 * memory costs most. */
static uint8_t *
take_free(struct fbk_read_cache *cache, uint32_t class, uint64_t *buffer_bytes)
{
    const uint64_t most_bytes = size_of_class(class) / 2 * 3;
    while (class < FBK_BUFFER_CLASSES && !cache->free[class])
        class++;
    if (class == FBK_BUFFER_CLASSES || size_of_class(class) > most_bytes)
        return NULL;
    struct fbk_free_buffer *buffer = cache->free[class];
    cache->free[class] = buffer->next;
    *buffer_bytes = size_of_class(class);
    return (uint8_t *)buffer;
}

uint8_t *
fbk_read_cache_take_buffer(struct fbk_read_cache *cache, uint64_t size_bytes, enum fbk_run_use use,
                           uint64_t *buffer_bytes)
{
    const uint32_t class = class_of(size_bytes);
    const uint64_t least_bytes = *buffer_bytes = size_of_class(class);
    uint8_t *buffer;
    /* One run at least is always let in, however large: else it could never be read. */
    if (cache->pinned_bytes > 0 && cache->pinned_bytes + least_bytes > cache->bytes_max)
        return NULL;
    cache->lists[use].reserved_bytes += least_bytes; /* evict_one looks at it */
    while (!(buffer = take_free(cache, class, buffer_bytes)) &&
           cache->bytes + least_bytes > cache->bytes_max)
        if (!release_one_free(cache) && !evict_one(cache))
            break;
    if (!buffer && (buffer = fbk_memory_take(least_bytes)) != NULL)
        cache->bytes += least_bytes;
    const uint64_t taken_bytes = buffer ? *buffer_bytes : 0;
    cache->lists[use].reserved_bytes += taken_bytes - least_bytes;
    cache->pinned_bytes += taken_bytes;
    return buffer;
}

static void
give_buffer(struct fbk_read_cache *cache, uint8_t *buffer, uint64_t buffer_bytes)
{
    uint32_t class = class_of(buffer_bytes);
    FBK_ASSERT(size_of_class(class) == buffer_bytes);
    if (cache->bytes > cache->bytes_max) {
        release_memory(cache, buffer, buffer_bytes);
        return;
    }
    struct fbk_free_buffer *free_buffer = (struct fbk_free_buffer *)(void *)buffer;
    free_buffer->next = cache->free[class];
    cache->free[class] = free_buffer;
}

void
fbk_read_cache_return_buffer(struct fbk_read_cache *cache, uint8_t *buffer, uint64_t buffer_bytes,
                             enum fbk_run_use use)
{
    cache->lists[use].reserved_bytes -= buffer_bytes;
    cache->pinned_bytes -= buffer_bytes;
    give_buffer(cache, buffer, buffer_bytes);
}

struct fbk_cached_run *
fbk_read_cache_insert(struct fbk_read_cache *cache, const struct fbk_location *location,
                      uint8_t *buffer, uint64_t buffer_bytes, enum fbk_run_use use)
{
    int64_t window = location->first_entry_id >> FBK_RUN_WINDOW_SHIFT;
    int64_t last_window = location->last_entry_id >> FBK_RUN_WINDOW_SHIFT;
    uint64_t window_count = (uint64_t)(last_window - window) + 1;
    FBK_ASSERT(window_count <= FBK_RUN_WINDOWS_MAX);
    struct fbk_cached_run *run =
        calloc(1, sizeof *run + window_count * sizeof(struct fbk_run_link));
    if (!run)
        return NULL;
    run->run = (struct fbk_run){
        .bytes = buffer,
        .size_bytes = location->size_bytes,
        .entry_count = location->entry_count,
        .ledger_id = location->ledger_id,
        .first_entry_id = location->first_entry_id,
        .last_entry_id = location->last_entry_id,
    };
    run->buffer = buffer;
    run->buffer_bytes = buffer_bytes;
    run->log_id = location->log_id;
    run->offset_bytes = location->offset_bytes;
    run->pins = 1; /* its bytes are in pinned_bytes since the buffer was taken */
    run->listed = true;
    for (; window <= last_window; window++) {
        struct fbk_run_link *link = &run->links[run->link_count++];
        struct fbk_run_link **bucket =
            &cache->buckets[bucket_of(cache, location->ledger_id, window)];
        *link = (struct fbk_run_link){.next = *bucket, .run = run, .window = window};
        *bucket = link;
    }
    cache->lists[use].reserved_bytes -= buffer_bytes;
    put_newest(cache, run, use);
    return run;
}

void
fbk_read_cache_use(struct fbk_read_cache *cache, struct fbk_cached_run *run, enum fbk_run_use use)
{
    if (use == FBK_RUN_SCAN ||
        (run->use == FBK_RUN_KEPT && cache->lists[FBK_RUN_KEPT].newest == run))
        return; /* passing by is no reason to keep it */
    take_out(cache, run);
    run->consumed = false;
    put_newest(cache, run, FBK_RUN_KEPT);
}

struct fbk_cached_run *
fbk_read_cache_find(struct fbk_read_cache *cache, int64_t ledger_id, int64_t entry_id,
                    enum fbk_run_use use)
{
    if (entry_id < 0)
        return NULL;
    int64_t window = entry_id >> FBK_RUN_WINDOW_SHIFT;
    struct fbk_run_link *link = cache->buckets[bucket_of(cache, ledger_id, window)];
    for (; link; link = link->next) {
        struct fbk_cached_run *run = link->run;
        if (link->window == window && run->run.ledger_id == ledger_id &&
            fbk_run_find(&run->run, entry_id)) {
            fbk_read_cache_use(cache, run, use);
            return run;
        }
    }
    return NULL;
}

void
fbk_read_cache_consumed(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    if (!run->listed || run->consumed || run->use != FBK_RUN_SCAN)
        return;
    take_out(cache, run);
    run->consumed = true;
    put_oldest(cache, run);
}

struct fbk_cached_run *
fbk_read_cache_find_location(struct fbk_read_cache *cache, const struct fbk_location *location)
{
    int64_t window = location->first_entry_id >> FBK_RUN_WINDOW_SHIFT;
    struct fbk_run_link *link = cache->buckets[bucket_of(cache, location->ledger_id, window)];
    for (; link; link = link->next) {
        struct fbk_cached_run *run = link->run;
        if (run->log_id == location->log_id && run->offset_bytes == location->offset_bytes &&
            run->run.ledger_id == location->ledger_id &&
            run->run.first_entry_id == location->first_entry_id &&
            run->run.last_entry_id == location->last_entry_id &&
            run->run.size_bytes == location->size_bytes &&
            run->run.entry_count == location->entry_count)
            return run;
    }
    return NULL;
}

struct fbk_cached_run *
fbk_read_cache_find_entry(struct fbk_read_cache *cache, const struct fbk_location *location,
                          int64_t entry_id, uint32_t *singles)
{
    int64_t window = entry_id >> FBK_RUN_WINDOW_SHIFT;
    struct fbk_run_link *link = cache->buckets[bucket_of(cache, location->ledger_id, window)];
    *singles = 0;
    for (; link; link = link->next) {
        struct fbk_cached_run *run = link->run;
        if (link->window != window || run->run.ledger_id != location->ledger_id ||
            run->log_id != location->log_id || run->offset_bytes != location->offset_bytes)
            continue;
        if (run->run.entry_count == location->entry_count || fbk_run_find(&run->run, entry_id))
            return run;
        ++*singles;
    }
    return NULL;
}

void
fbk_read_cache_pin(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    if (run->pins++ == 0)
        cache->pinned_bytes += run->buffer_bytes;
}

void
fbk_read_cache_unpin(struct fbk_read_cache *cache, struct fbk_cached_run *run)
{
    FBK_ASSERT(run->pins > 0);
    if (--run->pins > 0)
        return;
    cache->pinned_bytes -= run->buffer_bytes;
    if (!run->listed || cache->bytes > cache->bytes_max)
        drop(cache, run);
}

/* Drops unpinned runs that match; pinned ones go at their last release. */
static void
forget(struct fbk_read_cache *cache,
       bool (*matches)(const struct fbk_cached_run *run, const void *what, uint64_t count),
       const void *what, uint64_t count)
{
    for (uint32_t use = 0; use < FBK_RUN_USES; use++) {
        struct fbk_cached_run *next;
        for (struct fbk_cached_run *run = cache->lists[use].oldest; run; run = next) {
            next = run->newer;
            if (!matches(run, what, count))
                continue;
            if (run->pins == 0)
                drop(cache, run);
            else
                unlist(cache, run);
        }
    }
}

static bool
is_in_log(const struct fbk_cached_run *run, const void *log_id, uint64_t count)
{
    (void)count;
    return run->log_id == *(const uint64_t *)log_id;
}

static bool
is_of_ledgers(const struct fbk_cached_run *run, const void *ledger_ids, uint64_t count)
{
    const int64_t *ids = ledger_ids;
    uint64_t low = 0, high = count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (ids[middle] < run->run.ledger_id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && ids[low] == run->run.ledger_id;
}

void
fbk_read_cache_forget_log(struct fbk_read_cache *cache, uint64_t log_id)
{
    forget(cache, is_in_log, &log_id, 1);
}

void
fbk_read_cache_forget_ledgers(struct fbk_read_cache *cache, const int64_t *ledger_ids,
                              uint64_t count)
{
    forget(cache, is_of_ledgers, ledger_ids, count);
}
