/* The write cache: see index/write_cache.h.
 *
 * Ids of one ledger mostly come in ascending order.  So consecutive ids lie in consecutive buckets
 * (64 at a time; where each group of 64 begins depends on a random seed, so that no choice of ids
 * makes long chains), and a ledger's items are linked in the order they came: sorting a cache is
 * sorting its ledgers and walking them.
 *
 * Chunks are for ledgers that bring much.  Writing many small pieces would cost the flush more than
 * copying them into one large one.  So what a ledger brings before it has half of chunk_bytes_min
 * is copied, and so is a chunk that is not filled up to chunk_bytes_min. */
#include "index/write_cache.h"

#include "base/segment.h"

#define LEDGER_SLOTS_FIRST 1024u
#define BUCKETS_MIN 4096u
/* buckets are made for entries of this size; smaller ones share a bucket */
#define ITEM_BYTES_EXPECTED 192u
/* ids tried one by one before a ledger's items are walked */
#define PROBES_MAX 64
#define CHUNK_BYTES_MIN (128u * 1024u) /* of a cache of 8 MiB or more; else a 64th of it */
#define CHUNK_BYTES_MAX (1024u * 1024u)
#define RUN_ENTRIES_MIN 16u /* a ledger whose ids end a run before that is scattered */

static inline uint64_t
mix(uint64_t value)
{
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ull;
    value ^= value >> 32;
    value *= 0xd6e8feb86659fd93ull;
    value ^= value >> 32;
    return value;
}

static inline uint32_t
bucket_of(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id)
{
    uint64_t group = mix(((uint64_t)ledger_id * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)entry_id >> 6) ^
                         cache->seed);
    return (uint32_t)(group + ((uint64_t)entry_id & 63u)) & cache->bucket_mask;
}

static inline void *
thing_at(const struct fbk_write_cache *cache, uint32_t reference)
{
    return cache->arena + ((uint64_t)reference - 1) * 8;
}

static inline struct fbk_cache_item *
item_at(const struct fbk_write_cache *cache, uint32_t reference)
{
    return thing_at(cache, reference);
}

static inline struct fbk_cache_run *
run_at(const struct fbk_write_cache *cache, uint32_t reference)
{
    return thing_at(cache, reference);
}

static inline struct fbk_cache_chunk *
chunk_at(const struct fbk_write_cache *cache, uint32_t reference)
{
    return thing_at(cache, reference);
}

static uint64_t
power_of_two_above(uint64_t value, uint64_t least)
{
    uint64_t result = least;
    while (result < value)
        result *= 2;
    return result;
}

/* ------------ life */

static void
clear_ledgers(struct fbk_cache_ledger *ledgers, uint64_t slot_count)
{
    for (uint64_t i = 0; i < slot_count; i++)
        ledgers[i].ledger_id = -1;
}

static void
empty(struct fbk_write_cache *cache)
{
    cache->used_bytes = 0;
    cache->front_bytes = 0;
    cache->back_bytes = cache->arena_bytes;
    cache->item_count = 0;
    cache->ledger_count = 0;
    cache->last_slot = 0;
    cache->first_chunk = cache->last_chunk = 0;
    cache->chunk_count = cache->run_count = 0;
    cache->next = (struct fbk_cache_item){0};
    cache->sealed = false;
    cache->tail_begin = UINT64_MAX;
}

int32_t
fbk_cache_init(struct fbk_write_cache *cache, uint64_t capacity_bytes, uint64_t align_bytes,
               uint64_t seed)
{
    memset(cache, 0, sizeof *cache);
    if (capacity_bytes == 0 || capacity_bytes % FBK_PAGE_BYTES != 0 || align_bytes == 0 ||
        align_bytes % FBK_PAGE_BYTES != 0)
        return -EINVAL;
    uint64_t arena_bytes = capacity_bytes + FBK_CACHE_SPARE(capacity_bytes);
    if (arena_bytes / 8 >= UINT32_MAX)
        return -EINVAL;
    uint64_t bucket_count = power_of_two_above(capacity_bytes / ITEM_BYTES_EXPECTED, BUCKETS_MIN);
    cache->capacity_bytes = capacity_bytes;
    cache->arena_bytes = arena_bytes;
    cache->align_bytes = align_bytes;
    cache->memory_bytes = arena_bytes + align_bytes;
    cache->chunk_bytes_min =
        capacity_bytes / 64 < CHUNK_BYTES_MIN ? capacity_bytes / 64 : CHUNK_BYTES_MIN;
    cache->chunk_bytes_min = fbk_round_up(cache->chunk_bytes_min, align_bytes);
    cache->seed = mix(seed);
    cache->bucket_mask = (uint32_t)(bucket_count - 1);
    cache->ledger_mask = LEDGER_SLOTS_FIRST - 1;
    cache->memory = fbk_memory_take(cache->memory_bytes);
    cache->buckets = fbk_memory_take(bucket_count * sizeof *cache->buckets);
    cache->ledgers = fbk_memory_take(LEDGER_SLOTS_FIRST * sizeof *cache->ledgers);
    if (!cache->memory || !cache->buckets || !cache->ledgers) {
        fbk_cache_free(cache);
        return -ENOMEM;
    }
    cache->arena = cache->memory +
                   (fbk_round_up((uintptr_t)cache->memory, align_bytes) - (uintptr_t)cache->memory);
    clear_ledgers(cache->ledgers, LEDGER_SLOTS_FIRST);
    empty(cache);
    return 0;
}

void
fbk_cache_free(struct fbk_write_cache *cache)
{
    if (cache->memory)
        fbk_memory_give_back(cache->memory, cache->memory_bytes);
    if (cache->buckets)
        fbk_memory_give_back(cache->buckets,
                             ((uint64_t)cache->bucket_mask + 1) * sizeof *cache->buckets);
    if (cache->ledgers)
        fbk_memory_give_back(cache->ledgers,
                             ((uint64_t)cache->ledger_mask + 1) * sizeof *cache->ledgers);
    memset(cache, 0, sizeof *cache);
}

/* How much of an end of the arena that needed `used_bytes` stays in memory. */
static uint64_t
kept_bytes(const struct fbk_write_cache *cache, uint64_t used_bytes, uint64_t before_bytes)
{
    const uint64_t used = fbk_round_up(used_bytes, FBK_PAGE_BYTES);
    const uint64_t wanted = FBK_CACHE_KEPT_TIMES * used;
    const uint64_t part =
        fbk_round_up(cache->arena_bytes / FBK_CACHE_FORGOTTEN_PART, FBK_PAGE_BYTES);
    if (wanted >= before_bytes)
        return used > before_bytes ? used : before_bytes;
    return before_bytes - wanted > part ? before_bytes - part : wanted;
}

static void
forget_unneeded(struct fbk_write_cache *cache)
{
    const uint64_t front = kept_bytes(cache, cache->front_bytes, cache->front_kept_bytes);
    if (front < cache->front_kept_bytes)
        fbk_memory_forget(cache->arena + front, cache->front_kept_bytes - front);
    cache->front_kept_bytes = front;
    const uint64_t back =
        kept_bytes(cache, cache->arena_bytes - cache->back_bytes, cache->back_kept_bytes);
    if (back < cache->back_kept_bytes)
        fbk_memory_forget(cache->arena + cache->arena_bytes - cache->back_kept_bytes,
                          cache->back_kept_bytes - back);
    cache->back_kept_bytes = back;
}

void
fbk_cache_reset(struct fbk_write_cache *cache)
{
    if (cache->item_count > 0) {
        forget_unneeded(cache);
        memset(cache->buckets, 0, ((uint64_t)cache->bucket_mask + 1) * sizeof *cache->buckets);
        clear_ledgers(cache->ledgers, (uint64_t)cache->ledger_mask + 1);
    }
    empty(cache);
}

/* ------------ ledgers */

/* The slot of a ledger, or the empty one where it would go. */
static uint32_t
ledger_slot(const struct fbk_cache_ledger *ledgers, uint32_t mask, uint64_t seed, int64_t ledger_id)
{
    uint32_t slot = (uint32_t)mix((uint64_t)ledger_id ^ seed) & mask;
    while (ledgers[slot].ledger_id != ledger_id && ledgers[slot].ledger_id != -1)
        slot = (slot + 1) & mask;
    return slot;
}

static bool
grow_ledgers(struct fbk_write_cache *cache)
{
    uint64_t old_count = (uint64_t)cache->ledger_mask + 1;
    uint64_t new_count = old_count * 2;
    struct fbk_cache_ledger *bigger = fbk_memory_take(new_count * sizeof *bigger);
    if (!bigger)
        return false;
    clear_ledgers(bigger, new_count);
    for (uint64_t i = 0; i < old_count; i++) {
        int64_t ledger_id = cache->ledgers[i].ledger_id;
        if (ledger_id != -1)
            bigger[ledger_slot(bigger, (uint32_t)(new_count - 1), cache->seed, ledger_id)] =
                cache->ledgers[i];
    }
    fbk_memory_give_back(cache->ledgers, old_count * sizeof *cache->ledgers);
    cache->ledgers = bigger;
    cache->ledger_mask = (uint32_t)(new_count - 1);
    return true;
}

/* The slot to insert into, made if it is not there; UINT32_MAX without memory. */
static uint32_t
ledger_slot_for_insert(struct fbk_write_cache *cache, int64_t ledger_id)
{
    if (FBK_LIKELY(cache->ledgers[cache->last_slot].ledger_id == ledger_id))
        return cache->last_slot;
    uint32_t slot = ledger_slot(cache->ledgers, cache->ledger_mask, cache->seed, ledger_id);
    if (cache->ledgers[slot].ledger_id == -1 &&
        (uint64_t)cache->ledger_count * 3 >= (uint64_t)cache->ledger_mask * 2) {
        if (!grow_ledgers(cache))
            return UINT32_MAX;
        slot = ledger_slot(cache->ledgers, cache->ledger_mask, cache->seed, ledger_id);
    }
    return slot;
}

const struct fbk_cache_ledger *
fbk_cache_ledger_of(const struct fbk_write_cache *cache, int64_t ledger_id)
{
    if (cache->item_count == 0)
        return NULL;
    const struct fbk_cache_ledger *ledger =
        &cache->ledgers[ledger_slot(cache->ledgers, cache->ledger_mask, cache->seed, ledger_id)];
    return ledger->ledger_id == ledger_id ? ledger : NULL;
}

/* ------------ chunks and runs */

static uint64_t
free_bytes(const struct fbk_write_cache *cache)
{
    return cache->back_bytes - cache->front_bytes;
}

/* Room for what the flush copies and for records about chunks, taken from the back; 0 when too
 * little would be left. */
static uint32_t
take_record(struct fbk_write_cache *cache, uint64_t size_bytes)
{
    if (free_bytes(cache) < cache->capacity_bytes - cache->used_bytes + size_bytes)
        return 0;
    cache->back_bytes -= size_bytes;
    memset(cache->arena + cache->back_bytes, 0, size_bytes);
    return (uint32_t)(cache->back_bytes / 8) + 1;
}

/* The newest chunk gives back what it will not fill, so that the next one lies right behind it. */
static void
close_chunk(struct fbk_write_cache *cache, struct fbk_cache_chunk *chunk)
{
    uint64_t used = (uint64_t)(run_at(cache, chunk->last_run)->end - chunk->begin);
    if (chunk->end == cache->arena + cache->front_bytes) {
        chunk->end = chunk->begin + fbk_round_up(used, cache->align_bytes);
        cache->front_bytes = (uint64_t)(chunk->end - cache->arena);
    }
}

/* A chunk of at least size_bytes_min, and memory for its first run; 0 when the arena has none to
 * spare.  Of what there is to spare it takes half at most, the rest is for others. */
static uint32_t
open_chunk(struct fbk_write_cache *cache, uint64_t size_bytes_min, uint64_t size_bytes_wanted)
{
    uint64_t begin = fbk_round_up(cache->front_bytes, cache->align_bytes);
    uint64_t kept = begin + cache->capacity_bytes - cache->used_bytes +
                    sizeof(struct fbk_cache_chunk) + sizeof(struct fbk_cache_run);
    uint64_t spare = cache->back_bytes > kept ? cache->back_bytes - kept : 0;
    uint64_t size = size_bytes_wanted < spare / 2 ? size_bytes_wanted : spare / 2;
    if (size < size_bytes_min)
        size = size_bytes_min;
    size = fbk_round_up(size, cache->align_bytes);
    if (size > spare)
        return 0;
    cache->front_bytes = begin + size;
    uint32_t reference = take_record(cache, sizeof(struct fbk_cache_chunk));
    struct fbk_cache_chunk *chunk = chunk_at(cache, reference);
    chunk->begin = cache->arena + begin;
    chunk->end = chunk->begin + size;
    if (cache->last_chunk)
        chunk_at(cache, cache->last_chunk)->next = reference;
    else
        cache->first_chunk = reference;
    cache->last_chunk = reference;
    cache->chunk_count++;
    return reference;
}

static uint64_t
front_of(uint64_t entry_count)
{
    return sizeof(struct fbk_run_header) + entry_count * sizeof(struct fbk_run_item);
}

/* A run at `at` in the chunk for entries like this one; 0 without room. */
static uint32_t
open_run(struct fbk_write_cache *cache, uint32_t chunk_reference, uint8_t *at, int64_t ledger_id,
         uint64_t padded_bytes)
{
    struct fbk_cache_chunk *chunk = chunk_at(cache, chunk_reference);
    uint64_t room = (uint64_t)(chunk->end - at);
    uint64_t each = padded_bytes + sizeof(struct fbk_run_item);
    if (room < sizeof(struct fbk_run_header) + each ||
        (chunk->last_run && room < cache->chunk_bytes_min / 4))
        return 0;
    /* Room for twice as many entries as there should be: they may get smaller. */
    uint64_t most = 2 * (uint64_t)FBK_RUN_BYTES_MAX / each + 1;
    if (most > (room - sizeof(struct fbk_run_header)) / each)
        most = (room - sizeof(struct fbk_run_header)) / each;
    if (most > FBK_RUN_ENTRIES_MAX)
        most = FBK_RUN_ENTRIES_MAX;
    uint32_t reference = take_record(cache, sizeof(struct fbk_cache_run));
    if (!reference)
        return 0;
    struct fbk_cache_run *run = run_at(cache, reference);
    run->room = at;
    run->entries = run->end = at + front_of(most);
    run->ledger_id = ledger_id;
    run->entry_count_max = (uint32_t)most;
    run->chunk = chunk_reference;
    if (chunk->last_run)
        run_at(cache, chunk->last_run)->next = reference;
    else
        chunk->first_run = reference;
    chunk->last_run = reference;
    cache->run_count++;
    return reference;
}

static bool
takes(const struct fbk_write_cache *cache, const struct fbk_cache_run *run, int64_t entry_id,
      uint64_t padded_bytes)
{
    if (padded_bytes > (uint64_t)(chunk_at(cache, run->chunk)->end - run->end))
        return false;
    if (run->entry_count == 0)
        return true;
    uint64_t size =
        front_of(run->entry_count + 1) + (uint64_t)(run->end - run->entries) + padded_bytes;
    return entry_id - run->first_entry_id < FBK_RUN_SPAN_MAX &&
           run->entry_count < run->entry_count_max && size <= FBK_RUN_BYTES_MAX;
}

/* The run to put the ledger's next entry into, opened if need be; 0: it goes to the back. */
static uint32_t
run_for(struct fbk_write_cache *cache, struct fbk_cache_ledger *ledger, int64_t entry_id,
        uint64_t padded_bytes)
{
    if (ledger->entry_bytes < cache->chunk_bytes_min / 2 || ledger->scattered || padded_bytes == 0)
        return 0;
    uint32_t reference = 0;
    if (ledger->run) {
        struct fbk_cache_run *run = run_at(cache, ledger->run);
        if (run->entry_count > 0 && entry_id <= run->last_entry_id)
            return 0; /* it comes late */
        if (FBK_LIKELY(takes(cache, run, entry_id, padded_bytes)))
            return ledger->run;
        if (run->entry_count > 0 && run->entry_count < RUN_ENTRIES_MIN &&
            entry_id - run->first_entry_id >= FBK_RUN_SPAN_MAX) {
            ledger->scattered = true;
            return 0;
        }
        reference = open_run(cache, run->chunk, run->end, ledger->ledger_id, padded_bytes);
        if (!reference)
            close_chunk(cache, chunk_at(cache, run->chunk));
    }
    if (!reference) {
        uint64_t least = front_of(1) + padded_bytes;
        uint32_t chunk = open_chunk(
            cache, least > cache->chunk_bytes_min ? least : cache->chunk_bytes_min,
            ledger->entry_bytes < CHUNK_BYTES_MAX ? ledger->entry_bytes : CHUNK_BYTES_MAX);
        if (chunk)
            reference = open_run(cache, chunk, chunk_at(cache, chunk)->begin, ledger->ledger_id,
                                 padded_bytes);
    }
    if (reference)
        ledger->run = reference;
    return reference;
}

/* ------------ inserting */

/* The ledger's slot, for an entry that costs so much; NULL: it does not fit, or no memory. */
static struct fbk_cache_ledger *
ledger_for(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id, uint64_t cost)
{
    FBK_ASSERT(!cache->sealed && ledger_id >= 0 && entry_id >= 0);
    if (cost > cache->capacity_bytes - cache->used_bytes)
        return NULL;
    uint32_t slot = ledger_slot_for_insert(cache, ledger_id);
    if (slot == UINT32_MAX)
        return NULL;
    cache->last_slot = slot;
    return &cache->ledgers[slot];
}

uint8_t *
fbk_cache_reserve(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id,
                  uint32_t size_bytes)
{
    struct fbk_cache_ledger *ledger =
        ledger_for(cache, ledger_id, entry_id, fbk_cache_cost(size_bytes));
    if (!ledger)
        return NULL;
    uint64_t padded = fbk_round_up(size_bytes, 8);
    uint32_t run = ledger->ledger_id == -1 ? 0 : run_for(cache, ledger, entry_id, padded);
    uint8_t *to = run ? run_at(cache, run)->end : cache->arena + cache->back_bytes - padded;
    if (padded > size_bytes)
        memset(to + padded - 8, 0, 8); /* the entry covers all but its padding */
    cache->next = (struct fbk_cache_item){
        .ledger_id = ledger_id,
        .entry_id = entry_id,
        .data = to,
        .size_bytes = size_bytes,
        .run = run,
    };
    return to;
}

/* What the flush will write of it. */
static uint64_t
copied_bytes(const struct fbk_cache_item *item)
{
    return item->adopted ? 0 : fbk_round_up(item->size_bytes, 8);
}

static void
link_to_ledger(struct fbk_write_cache *cache, const struct fbk_cache_item *item, uint32_t reference)
{
    struct fbk_cache_ledger *ledger = &cache->ledgers[cache->last_slot];
    if (ledger->ledger_id == -1) {
        *ledger = (struct fbk_cache_ledger){
            .ledger_id = item->ledger_id,
            .first_entry_id = item->entry_id,
            .last_entry_id = item->entry_id,
            .entry_bytes = copied_bytes(item),
            .head = reference,
            .tail = reference,
            .item_count = 1,
        };
        cache->ledger_count++;
        return;
    }
    item_at(cache, ledger->tail)->ledger_next = reference;
    ledger->tail = reference;
    ledger->item_count++;
    ledger->entry_bytes += copied_bytes(item);
    if (FBK_LIKELY(item->entry_id > ledger->last_entry_id)) {
        ledger->last_entry_id = item->entry_id;
    } else {
        ledger->unsorted = true;
        if (item->entry_id < ledger->first_entry_id)
            ledger->first_entry_id = item->entry_id;
    }
}

static void
link_to_run(struct fbk_cache_run *run, const struct fbk_cache_item *item)
{
    if (run->entry_count++ == 0)
        run->first_entry_id = item->entry_id;
    run->last_entry_id = item->entry_id;
    run->end += fbk_round_up(item->size_bytes, 8);
}

/* `next`, whose item and copy take so many bytes at the back. */
static void
put_item(struct fbk_write_cache *cache, uint64_t back_bytes, uint64_t cost, uint32_t crc)
{
    cache->back_bytes -= back_bytes;
    uint32_t reference = (uint32_t)(cache->back_bytes / 8) + 1;
    struct fbk_cache_item *item = item_at(cache, reference);
    *item = cache->next;
    uint32_t *bucket = &cache->buckets[bucket_of(cache, item->ledger_id, item->entry_id)];
    item->crc = crc;
    item->bucket_next = *bucket;
    *bucket = reference;
    link_to_ledger(cache, item, reference);
    if (item->run)
        link_to_run(run_at(cache, item->run), item);
    cache->used_bytes += cost;
    cache->item_count++;
    FBK_ASSERT(free_bytes(cache) >= cache->capacity_bytes - cache->used_bytes); /* INV-A6 */
}

void
fbk_cache_commit(struct fbk_write_cache *cache, uint32_t crc)
{
    const uint64_t cost = fbk_cache_cost(cache->next.size_bytes);
    put_item(cache, cache->next.run ? sizeof(struct fbk_cache_item) : cost, cost, crc);
}

bool
fbk_cache_refer(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id,
                const uint8_t *data, uint32_t size_bytes, uint32_t crc)
{
    if (!ledger_for(cache, ledger_id, entry_id, sizeof(struct fbk_cache_item)))
        return false;
    cache->next = (struct fbk_cache_item){
        .ledger_id = ledger_id,
        .entry_id = entry_id,
        .data = (uint8_t *)(uintptr_t)data,
        .size_bytes = size_bytes,
        .adopted = 1,
    };
    put_item(cache, sizeof(struct fbk_cache_item), sizeof(struct fbk_cache_item), crc);
    return true;
}

/* ------------ finding */

const struct fbk_cache_item *
fbk_cache_find(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id)
{
    if (cache->item_count == 0)
        return NULL;
    uint32_t reference = cache->buckets[bucket_of(cache, ledger_id, entry_id)];
    while (reference) {
        const struct fbk_cache_item *item = item_at(cache, reference);
        if (item->entry_id == entry_id && item->ledger_id == ledger_id)
            return item;
        reference = item->bucket_next;
    }
    return NULL;
}

const struct fbk_cache_item *
fbk_cache_next(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id,
               int64_t last_entry_id)
{
    const struct fbk_cache_ledger *ledger = fbk_cache_ledger_of(cache, ledger_id);
    if (!ledger || ledger->last_entry_id < first_entry_id || ledger->first_entry_id > last_entry_id)
        return NULL;
    if (first_entry_id <= ledger->first_entry_id)
        return fbk_cache_find(cache, ledger_id, ledger->first_entry_id);
    int64_t last = last_entry_id < ledger->last_entry_id ? last_entry_id : ledger->last_entry_id;
    for (int64_t n = 0; n < PROBES_MAX && n <= last - first_entry_id; n++) {
        const struct fbk_cache_item *item = fbk_cache_find(cache, ledger_id, first_entry_id + n);
        if (item)
            return item;
    }
    if (last - first_entry_id < PROBES_MAX)
        return NULL;
    const struct fbk_cache_item *best = NULL;
    for (uint32_t reference = ledger->head; reference;) {
        const struct fbk_cache_item *item = item_at(cache, reference);
        if (item->entry_id >= first_entry_id && item->entry_id <= last &&
            (!best || item->entry_id < best->entry_id)) {
            best = item;
            if (!ledger->unsorted)
                break;
        }
        reference = item->ledger_next;
    }
    return best;
}

static int
compare_ids(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

uint64_t
fbk_cache_ids(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id,
              int64_t *ids)
{
    const struct fbk_cache_ledger *ledger = fbk_cache_ledger_of(cache, ledger_id);
    uint64_t count = 0;
    if (!ledger)
        return 0;
    for (uint32_t reference = ledger->head; reference;) {
        const struct fbk_cache_item *item = item_at(cache, reference);
        if (item->entry_id >= first_entry_id)
            ids[count++] = item->entry_id;
        reference = item->ledger_next;
    }
    if (ledger->unsorted)
        qsort(ids, count, sizeof *ids, compare_ids);
    return count;
}

/* ------------ sorting */

static int
compare_ledgers(const void *a, const void *b)
{
    const struct fbk_cache_ledger *x = *(const struct fbk_cache_ledger *const *)a;
    const struct fbk_cache_ledger *y = *(const struct fbk_cache_ledger *const *)b;
    return (x->ledger_id > y->ledger_id) - (x->ledger_id < y->ledger_id);
}

static int
compare_items(const void *a, const void *b)
{
    const struct fbk_flush_item *x = a, *y = b;
    return (x->entry_id > y->entry_id) - (x->entry_id < y->entry_id);
}

/* Which chunks are written as they are: their runs, with room for the tables; what lies between
 * entries is zeroed. */
static void
lay_out_chunks(struct fbk_write_cache *cache, struct fbk_flush_run *runs,
               struct fbk_flush_chunk *chunks, struct fbk_flush_contents *contents)
{
    for (uint32_t c = cache->first_chunk; c; c = chunk_at(cache, c)->next) {
        struct fbk_cache_chunk *chunk = chunk_at(cache, c);
        uint8_t *end = chunk->begin;
        for (uint32_t r = chunk->first_run; r; r = run_at(cache, r)->next)
            if (run_at(cache, r)->entry_count > 0)
                end = run_at(cache, r)->end;
        chunk->in_place = (uint64_t)(end - chunk->begin) >= cache->chunk_bytes_min;
        if (!chunk->in_place)
            continue;
        uint64_t padded = fbk_round_up((uint64_t)(end - chunk->begin), cache->align_bytes);
        memset(end, 0, padded - (uint64_t)(end - chunk->begin));
        chunks[contents->chunk_count] = (struct fbk_flush_chunk){chunk->begin, padded};
        for (uint32_t r = chunk->first_run; r; r = run_at(cache, r)->next) {
            struct fbk_cache_run *run = run_at(cache, r);
            if (run->entry_count == 0)
                continue;
            uint8_t *begin = run->entries - front_of(run->entry_count);
            memset(run->room, 0, (uint64_t)(begin - run->room));
            run->filled = 0;
            runs[contents->run_count++] = (struct fbk_flush_run){
                .bytes = begin,
                .ledger_id = run->ledger_id,
                .size_bytes = (uint32_t)(run->end - begin),
                .entry_count = run->entry_count,
                .chunk = (uint32_t)contents->chunk_count,
            };
        }
        contents->chunk_count++;
    }
}

static void
fill_in(struct fbk_cache_run *run, const struct fbk_cache_item *item)
{
    uint8_t *begin = run->entries - front_of(run->entry_count);
    struct fbk_run_item *table =
        (struct fbk_run_item *)(void *)(begin + sizeof(struct fbk_run_header));
    table[run->filled++] = (struct fbk_run_item){
        .entry_id = item->entry_id,
        .offset_bytes = (uint32_t)(item->data - begin),
        .size_bytes = item->size_bytes,
        .crc = item->crc,
    };
}

int32_t
fbk_cache_lay_out(struct fbk_write_cache *cache, struct fbk_flush_item *items,
                  struct fbk_flush_run *runs, struct fbk_flush_chunk *chunks,
                  struct fbk_flush_contents *contents)
{
    *contents = (struct fbk_flush_contents){.items = items, .runs = runs, .chunks = chunks};
    if (cache->ledger_count == 0)
        return 0;
    uint64_t order_bytes = cache->ledger_count * sizeof(struct fbk_cache_ledger *);
    const struct fbk_cache_ledger **order = fbk_memory_take(order_bytes);
    if (!order)
        return -ENOMEM;
    lay_out_chunks(cache, runs, chunks, contents);
    uint64_t ledger_count = 0, count = 0, left = 0;
    for (uint64_t slot = 0; slot <= cache->ledger_mask; slot++)
        if (cache->ledgers[slot].ledger_id != -1)
            order[ledger_count++] = &cache->ledgers[slot];
    FBK_ASSERT(ledger_count == cache->ledger_count);
    qsort(order, ledger_count, sizeof *order, compare_ledgers);
    for (uint64_t n = 0; n < ledger_count; n++) {
        uint64_t begin = count;
        for (uint32_t reference = order[n]->head; reference;) {
            const struct fbk_cache_item *item = item_at(cache, reference);
            struct fbk_cache_run *run = item->run ? run_at(cache, item->run) : NULL;
            if (run && chunk_at(cache, run->chunk)->in_place) {
                fill_in(run, item);
                left++;
            } else if (item->adopted) {
                left++;
            } else {
                items[count++] = (struct fbk_flush_item){item->ledger_id, item->entry_id,
                                                         item->data, item->size_bytes, item->crc};
                contents->item_bytes += item->size_bytes;
            }
            reference = item->ledger_next;
        }
        if (order[n]->unsorted)
            qsort(&items[begin], count - begin, sizeof *items, compare_items);
    }
    FBK_ASSERT(count + left == cache->item_count);
    contents->item_count = count;
    fbk_memory_give_back(order, order_bytes);
    return 0;
}
