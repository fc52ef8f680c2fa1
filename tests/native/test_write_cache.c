/* The write cache against a plain array of what was put in: finding, going on from an id, listing, sorting. */
#include "check.h"

#include "base/checksum.h"
#include "base/segment.h"
#include "index/write_cache.h"

#define MODEL_MAX 4096

struct model_entry {
    int64_t ledger_id;
    int64_t entry_id;
    uint32_t size_bytes;
    uint32_t fill;
};

static struct model_entry model[MODEL_MAX];
static uint32_t model_count;
static uint64_t random_state = 88172645463325252ull;

static uint64_t
random_next(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static const struct model_entry *
model_find(int64_t ledger_id, int64_t entry_id)
{
    for (uint32_t n = 0; n < model_count; n++)
        if (model[n].ledger_id == ledger_id && model[n].entry_id == entry_id)
            return &model[n];
    return NULL;
}

static const struct model_entry *
model_next(int64_t ledger_id, int64_t first, int64_t last)
{
    const struct model_entry *best = NULL;
    for (uint32_t n = 0; n < model_count; n++)
        if (model[n].ledger_id == ledger_id && model[n].entry_id >= first && model[n].entry_id <= last &&
            (!best || model[n].entry_id < best->entry_id))
            best = &model[n];
    return best;
}

static bool
put(struct fbk_write_cache *cache, int64_t ledger_id, int64_t entry_id, uint32_t size_bytes)
{
    uint8_t *to = fbk_cache_reserve(cache, ledger_id, entry_id, size_bytes);
    if (!to)
        return false;
    uint32_t fill = (uint32_t)random_next() & 0xff;
    memset(to, (int)fill, size_bytes);
    fbk_cache_commit(cache, fbk_crc32c(0, to, size_bytes));
    model[model_count++] = (struct model_entry){ledger_id, entry_id, size_bytes, fill};
    return true;
}

static void
check_item(const struct fbk_cache_item *item, const struct model_entry *expected)
{
    CHECK((item == NULL) == (expected == NULL));
    if (!item)
        return;
    CHECK(item->ledger_id == expected->ledger_id && item->entry_id == expected->entry_id);
    CHECK(item->size_bytes == expected->size_bytes);
    CHECK(item->crc == fbk_crc32c(0, fbk_cache_data(item), item->size_bytes));
    CHECK(item->size_bytes == 0 || fbk_cache_data(item)[item->size_bytes - 1] == expected->fill);
}

static void
check_sorted(const struct fbk_write_cache *cache)
{
    struct fbk_flush_item *items = fbk_memory_take((cache->item_count + 1) * sizeof *items);
    CHECK(fbk_cache_sorted(cache, items) == 0);
    CHECK(cache->item_count == model_count);
    for (uint64_t n = 0; n < cache->item_count; n++) {
        const struct model_entry *expected = model_find(items[n].ledger_id, items[n].entry_id);
        CHECK(expected && expected->size_bytes == items[n].size_bytes);
        CHECK(items[n].crc == fbk_crc32c(0, items[n].data, items[n].size_bytes));
        if (n > 0)
            CHECK(items[n - 1].ledger_id < items[n].ledger_id ||
                  (items[n - 1].ledger_id == items[n].ledger_id && items[n - 1].entry_id < items[n].entry_id));
    }
    fbk_memory_give_back(items, (cache->item_count + 1) * sizeof *items);
}

static void
check_lookups(const struct fbk_write_cache *cache, int64_t ledgers, int64_t ids)
{
    static int64_t found[MODEL_MAX];
    for (uint32_t n = 0; n < 300; n++) {
        int64_t ledger_id = (int64_t)(random_next() % (uint64_t)(ledgers + 1));
        int64_t first = (int64_t)(random_next() % (uint64_t)(ids + 2));
        int64_t last = first + (int64_t)(random_next() % (uint64_t)(ids + 2));
        check_item(fbk_cache_find(cache, ledger_id, first), model_find(ledger_id, first));
        check_item(fbk_cache_next(cache, ledger_id, first, last), model_next(ledger_id, first, last));
    }
    for (int64_t ledger_id = 0; ledger_id < ledgers && ledger_id < 8; ledger_id++) {
        int64_t first = (int64_t)(random_next() % (uint64_t)(ids + 2));
        uint64_t count = fbk_cache_ids(cache, ledger_id, first, found);
        const struct model_entry *expected = model_next(ledger_id, first, INT64_MAX);
        for (uint64_t n = 0; n < count; n++) {
            CHECK(expected && expected->entry_id == found[n]);
            expected = model_next(ledger_id, found[n] + 1, INT64_MAX);
        }
        CHECK(expected == NULL);
    }
}

/* order: 0 ascending, 1 random, 2 descending. stride: between ids. */
static void
round_of(struct fbk_write_cache *cache, int64_t ledgers, int64_t ids, int64_t stride, int order)
{
    model_count = 0;
    for (uint32_t n = 0; n < 700; n++) {
        int64_t ledger_id = (int64_t)(random_next() % (uint64_t)ledgers);
        int64_t at = order == 0 ? n : order == 1 ? (int64_t)(random_next() % (uint64_t)ids) : ids - 1 - n;
        if (at < 0 || model_find(ledger_id, at * stride))
            continue;
        uint64_t before = cache->used_bytes;
        uint32_t size_bytes = (uint32_t)(random_next() % 200);
        if (!put(cache, ledger_id, at * stride, size_bytes)) {
            CHECK(fbk_cache_cost(size_bytes) > cache->capacity_bytes - before);
            break;
        }
        CHECK(cache->used_bytes == before + fbk_cache_cost(size_bytes));
    }
    check_lookups(cache, ledgers, ids * stride);
    check_sorted(cache);
    cache->sealed = true;
    fbk_cache_reset(cache);
    CHECK(cache->item_count == 0 && fbk_cache_find(cache, 0, 0) == NULL && fbk_cache_ledger_of(cache, 0) == NULL);
}

static void
test_against_model(void)
{
    struct fbk_write_cache cache;
    CHECK(fbk_cache_init(&cache, 65536, 7) == 0);
    for (int order = 0; order < 3; order++) {
        round_of(&cache, 1, 1000, 1, order);
        round_of(&cache, 3, 1000, 1, order);
        round_of(&cache, 5, 700, 97, order);
        round_of(&cache, 2000, 700, 64, order); /* the table of ledgers grows */
    }
    fbk_cache_free(&cache);
}

static void
test_largest_ids(void)
{
    struct fbk_write_cache cache;
    model_count = 0;
    CHECK(fbk_cache_init(&cache, 65536, 7) == 0);
    CHECK(put(&cache, INT64_MAX, INT64_MAX, 40) && put(&cache, INT64_MAX, 0, 40));
    check_item(fbk_cache_next(&cache, INT64_MAX, 1, INT64_MAX), model_find(INT64_MAX, INT64_MAX));
    check_item(fbk_cache_next(&cache, INT64_MAX, INT64_MAX, INT64_MAX), model_find(INT64_MAX, INT64_MAX));
    check_item(fbk_cache_next(&cache, INT64_MAX, 1, INT64_MAX - 1), NULL);
    check_sorted(&cache);
    fbk_cache_free(&cache);
}

static void
test_refusals(void)
{
    struct fbk_write_cache cache;
    CHECK(fbk_cache_init(&cache, 0, 1) == -EINVAL);
    CHECK(fbk_cache_init(&cache, 4097, 1) == -EINVAL);
    CHECK(fbk_cache_init(&cache, 4096, 1) == 0);
    CHECK(fbk_cache_reserve(&cache, 1, 1, 4096 - 48) != NULL);
    CHECK(fbk_cache_reserve(&cache, 1, 1, 4096 - 47) == NULL);
    CHECK(cache.item_count == 0 && fbk_cache_find(&cache, 1, 1) == NULL); /* a reserve alone is nothing */
    fbk_cache_free(&cache);
}

int
main(void)
{
    test_against_model();
    test_largest_ids();
    test_refusals();
    return 0;
}
