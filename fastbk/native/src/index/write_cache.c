/* The write cache: see index/write_cache.h.
 *
 * Ids of one ledger mostly come in ascending order.  So consecutive ids lie in consecutive buckets (64 at a time; where
 * each group of 64 begins depends on a random seed, so that no choice of ids makes long chains), and a ledger's items
 * are linked in the order they came: sorting a cache is sorting its ledgers and walking them. */
#include "index/write_cache.h"

#include "base/segment.h"

#define LEDGER_SLOTS_FIRST 1024u
#define BUCKETS_MIN 4096u
#define ITEM_BYTES_EXPECTED 192u /* buckets are made for entries of this size; smaller ones share a bucket */
#define PROBES_MAX 64            /* ids tried one by one before a ledger's items are walked */

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
    uint64_t group = mix(((uint64_t)ledger_id * 0x9e3779b97f4a7c15ull) ^ ((uint64_t)entry_id >> 6) ^ cache->seed);
    return (uint32_t)(group + ((uint64_t)entry_id & 63u)) & cache->bucket_mask;
}

static inline struct fbk_cache_item *
item_at(const struct fbk_write_cache *cache, uint32_t reference)
{
    return (struct fbk_cache_item *)(void *)(cache->arena + ((uint64_t)reference - 1) * 8);
}

static uint64_t
power_of_two_above(uint64_t value, uint64_t least)
{
    uint64_t result = least;
    while (result < value)
        result *= 2;
    return result;
}

/* ------------------------------------------------------------------ life */

static void
clear_ledgers(struct fbk_cache_ledger *ledgers, uint64_t slot_count)
{
    for (uint64_t i = 0; i < slot_count; i++)
        ledgers[i].ledger_id = -1;
}

int32_t
fbk_cache_init(struct fbk_write_cache *cache, uint64_t capacity_bytes, uint64_t seed)
{
    memset(cache, 0, sizeof *cache);
    if (capacity_bytes == 0 || capacity_bytes % FBK_PAGE_BYTES != 0 || capacity_bytes / 8 >= UINT32_MAX)
        return -EINVAL;
    uint64_t bucket_count = power_of_two_above(capacity_bytes / ITEM_BYTES_EXPECTED, BUCKETS_MIN);
    cache->capacity_bytes = capacity_bytes;
    cache->seed = mix(seed);
    cache->bucket_mask = (uint32_t)(bucket_count - 1);
    cache->ledger_mask = LEDGER_SLOTS_FIRST - 1;
    cache->arena = fbk_memory_take(capacity_bytes);
    cache->buckets = fbk_memory_take(bucket_count * sizeof *cache->buckets);
    cache->ledgers = fbk_memory_take(LEDGER_SLOTS_FIRST * sizeof *cache->ledgers);
    if (!cache->arena || !cache->buckets || !cache->ledgers) {
        fbk_cache_free(cache);
        return -ENOMEM;
    }
    clear_ledgers(cache->ledgers, LEDGER_SLOTS_FIRST);
    return 0;
}

void
fbk_cache_free(struct fbk_write_cache *cache)
{
    if (cache->arena)
        fbk_memory_give_back(cache->arena, cache->capacity_bytes);
    if (cache->buckets)
        fbk_memory_give_back(cache->buckets, ((uint64_t)cache->bucket_mask + 1) * sizeof *cache->buckets);
    if (cache->ledgers)
        fbk_memory_give_back(cache->ledgers, ((uint64_t)cache->ledger_mask + 1) * sizeof *cache->ledgers);
    memset(cache, 0, sizeof *cache);
}

void
fbk_cache_reset(struct fbk_write_cache *cache)
{
    if (cache->item_count > 0) {
        memset(cache->buckets, 0, ((uint64_t)cache->bucket_mask + 1) * sizeof *cache->buckets);
        clear_ledgers(cache->ledgers, (uint64_t)cache->ledger_mask + 1);
    }
    cache->used_bytes = 0;
    cache->item_count = 0;
    cache->ledger_count = 0;
    cache->last_slot = 0;
    cache->reserved_bytes = 0;
    cache->sealed = false;
}

/* ------------------------------------------------------------------ ledgers */

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
            bigger[ledger_slot(bigger, (uint32_t)(new_count - 1), cache->seed, ledger_id)] = cache->ledgers[i];
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
    if (cache->ledgers[slot].ledger_id == -1 && (uint64_t)cache->ledger_count * 3 >= (uint64_t)cache->ledger_mask * 2) {
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

/* ------------------------------------------------------------------ inserting */

uint8_t *
fbk_cache_reserve(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id, uint32_t size_bytes)
{
    FBK_ASSERT(!cache->sealed && ledger_id >= 0 && entry_id >= 0);
    if (fbk_cache_cost(size_bytes) > cache->capacity_bytes - cache->used_bytes)
        return NULL;
    uint32_t slot = ledger_slot_for_insert(cache, ledger_id);
    if (slot == UINT32_MAX)
        return NULL;
    cache->last_slot = slot;
    cache->reserved_bytes = size_bytes;
    struct fbk_cache_item *item = (struct fbk_cache_item *)(void *)(cache->arena + cache->used_bytes);
    item->ledger_id = ledger_id;
    item->entry_id = entry_id;
    item->size_bytes = size_bytes;
    return (uint8_t *)(item + 1);
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
    if (FBK_LIKELY(item->entry_id > ledger->last_entry_id)) {
        ledger->last_entry_id = item->entry_id;
    } else {
        ledger->unsorted = 1;
        if (item->entry_id < ledger->first_entry_id)
            ledger->first_entry_id = item->entry_id;
    }
}

void
fbk_cache_commit(struct fbk_write_cache *cache, uint32_t crc)
{
    struct fbk_cache_item *item = (struct fbk_cache_item *)(void *)(cache->arena + cache->used_bytes);
    uint32_t reference = (uint32_t)(cache->used_bytes / 8) + 1;
    uint32_t *bucket = &cache->buckets[bucket_of(cache, item->ledger_id, item->entry_id)];
    item->crc = crc;
    item->bucket_next = *bucket;
    item->ledger_next = 0;
    *bucket = reference;
    link_to_ledger(cache, item, reference);
    cache->used_bytes += fbk_cache_cost(item->size_bytes);
    cache->item_count++;
    cache->reserved_bytes = 0;
}

/* ------------------------------------------------------------------ finding */

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
fbk_cache_next(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id, int64_t last_entry_id)
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
        if (item->entry_id >= first_entry_id && item->entry_id <= last && (!best || item->entry_id < best->entry_id)) {
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
fbk_cache_ids(const struct fbk_write_cache *cache, int64_t ledger_id, int64_t first_entry_id, int64_t *ids)
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

/* ------------------------------------------------------------------ sorting */

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

int32_t
fbk_cache_sorted(const struct fbk_write_cache *cache, struct fbk_flush_item *items)
{
    if (cache->ledger_count == 0)
        return 0;
    uint64_t order_bytes = cache->ledger_count * sizeof(struct fbk_cache_ledger *);
    const struct fbk_cache_ledger **order = fbk_memory_take(order_bytes);
    if (!order)
        return -ENOMEM;
    uint64_t ledger_count = 0, count = 0;
    for (uint64_t slot = 0; slot <= cache->ledger_mask; slot++)
        if (cache->ledgers[slot].ledger_id != -1)
            order[ledger_count++] = &cache->ledgers[slot];
    FBK_ASSERT(ledger_count == cache->ledger_count);
    qsort(order, ledger_count, sizeof *order, compare_ledgers);
    for (uint64_t n = 0; n < ledger_count; n++) {
        uint64_t begin = count;
        for (uint32_t reference = order[n]->head; reference;) {
            const struct fbk_cache_item *item = item_at(cache, reference);
            items[count++] = (struct fbk_flush_item){item->ledger_id, item->entry_id, fbk_cache_data(item),
                                                     item->size_bytes, item->crc};
            reference = item->ledger_next;
        }
        if (order[n]->unsorted)
            qsort(&items[begin], count - begin, sizeof *items, compare_items);
    }
    FBK_ASSERT(count == cache->item_count);
    fbk_memory_give_back(order, order_bytes);
    return 0;
}
