/* The write cache against a plain array of what was put in: finding, going on from an id, listing,
 * sorting. */
#include "check.h"

#include "base/checksum.h"
#include "base/segment.h"
#include "index/write_cache.h"

#include <sys/mman.h>

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
        if (model[n].ledger_id == ledger_id && model[n].entry_id >= first &&
            model[n].entry_id <= last && (!best || model[n].entry_id < best->entry_id))
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
    CHECK(item->crc == fbk_crc32c(0, item->data, item->size_bytes));
    CHECK(item->size_bytes == 0 || item->data[item->size_bytes - 1] == expected->fill);
}

static void
check_entry(int64_t ledger_id, int64_t entry_id, const uint8_t *data, uint32_t size_bytes,
            uint32_t crc)
{
    const struct model_entry *expected = model_find(ledger_id, entry_id);
    CHECK(expected && expected->size_bytes == size_bytes);
    CHECK(crc == fbk_crc32c(0, data, size_bytes));
    CHECK(size_bytes == 0 || data[size_bytes - 1] == expected->fill);
}

static bool
is_zero(const uint8_t *begin, const uint8_t *end)
{
    while (begin < end)
        if (*begin++ != 0)
            return false;
    return true;
}

/* A chunk is what goes to disk: runs with whole tables, zeros around them.  How many entries they
 * have. */
static uint64_t
check_chunks(const struct fbk_write_cache *cache, const struct fbk_flush_contents *contents)
{
    uint64_t run_next = 0, entry_count = 0;
    for (uint64_t c = 0; c < contents->chunk_count; c++) {
        const struct fbk_flush_chunk *chunk = &contents->chunks[c];
        CHECK((uintptr_t)chunk->bytes % cache->align_bytes == 0 &&
              chunk->size_bytes % cache->align_bytes == 0);
        CHECK(c == 0 || chunk->bytes >= chunk[-1].bytes + chunk[-1].size_bytes);
        const uint8_t *at = chunk->bytes;
        for (; run_next < contents->run_count && contents->runs[run_next].chunk == c; run_next++) {
            const struct fbk_flush_run *run = &contents->runs[run_next];
            const struct fbk_run_item *items =
                (const struct fbk_run_item *)(const void *)(run->bytes +
                                                            sizeof(struct fbk_run_header));
            CHECK(run->bytes >= at && (run->bytes - chunk->bytes) % 8 == 0 &&
                  is_zero(at, run->bytes));
            uint64_t offset = sizeof(struct fbk_run_header) + run->entry_count * sizeof *items;
            for (uint32_t n = 0; n < run->entry_count; n++) {
                CHECK(n == 0 || items[n].entry_id > items[n - 1].entry_id);
                CHECK(items[n].offset_bytes == offset);
                check_entry(run->ledger_id, items[n].entry_id, run->bytes + offset,
                            items[n].size_bytes, items[n].crc);
                offset += fbk_round_up(items[n].size_bytes, 8);
                CHECK(is_zero(run->bytes + items[n].offset_bytes + items[n].size_bytes,
                              run->bytes + offset));
            }
            CHECK(offset == run->size_bytes && run->entry_count > 0 &&
                  run->entry_count <= FBK_RUN_ENTRIES_MAX);
            CHECK(items[run->entry_count - 1].entry_id - items[0].entry_id < FBK_RUN_SPAN_MAX);
            CHECK(run->entry_count == 1 || run->size_bytes <= FBK_RUN_BYTES_MAX);
            entry_count += run->entry_count;
            at = run->bytes + run->size_bytes;
        }
        CHECK(at > chunk->bytes && at <= chunk->bytes + chunk->size_bytes);
        CHECK(is_zero(at, chunk->bytes + chunk->size_bytes));
    }
    CHECK(run_next == contents->run_count);
    return entry_count;
}

/* Every entry is in a chunk or among the items, and once.  How many are in chunks. */
static uint64_t
check_layout(struct fbk_write_cache *cache)
{
    struct fbk_flush_item *items = fbk_memory_take((cache->item_count + 1) * sizeof *items);
    struct fbk_flush_run *runs = fbk_memory_take((cache->run_count + 1) * sizeof *runs);
    struct fbk_flush_chunk *chunks = fbk_memory_take((cache->chunk_count + 1) * sizeof *chunks);
    struct fbk_flush_contents contents;
    uint64_t in_chunks = 0;
    for (int attempt = 0; attempt < 2; attempt++) { /* a flush may have to be tried again */
        CHECK(fbk_cache_lay_out(cache, items, runs, chunks, &contents) == 0);
        in_chunks = check_chunks(cache, &contents);
        CHECK(contents.item_count + in_chunks == model_count && cache->item_count == model_count);
        for (uint64_t n = 0; n < contents.item_count; n++) {
            check_entry(items[n].ledger_id, items[n].entry_id, items[n].data, items[n].size_bytes,
                        items[n].crc);
            if (n > 0)
                CHECK(items[n - 1].ledger_id < items[n].ledger_id ||
                      (items[n - 1].ledger_id == items[n].ledger_id &&
                       items[n - 1].entry_id < items[n].entry_id));
        }
    }
    fbk_memory_give_back(items, (cache->item_count + 1) * sizeof *items);
    fbk_memory_give_back(runs, (cache->run_count + 1) * sizeof *runs);
    fbk_memory_give_back(chunks, (cache->chunk_count + 1) * sizeof *chunks);
    return in_chunks;
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
        check_item(fbk_cache_next(cache, ledger_id, first, last),
                   model_next(ledger_id, first, last));
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
        int64_t at = order == 0   ? n
                     : order == 1 ? (int64_t)(random_next() % (uint64_t)ids)
                                  : ids - 1 - n;
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
    check_layout(cache);
    cache->sealed = true;
    fbk_cache_reset(cache);
    CHECK(cache->item_count == 0 && fbk_cache_find(cache, 0, 0) == NULL &&
          fbk_cache_ledger_of(cache, 0) == NULL);
}

static void
test_against_model(void)
{
    struct fbk_write_cache cache;
    CHECK(fbk_cache_init(&cache, 65536, 4096, 7) == 0);
    for (int order = 0; order < 3; order++) {
        round_of(&cache, 1, 1000, 1, order);
        round_of(&cache, 3, 1000, 1, order);
        round_of(&cache, 5, 700, 97, order);
        round_of(&cache, 2000, 700, 64, order); /* the table of ledgers grows */
    }
    fbk_cache_free(&cache);
}

/* Writes ledgers in turn, each in the order of its ids but for some that come late, until the cache
 * is full.  Which part of the entries is in chunks, in percent. */
static uint64_t
fill_with_chunks(struct fbk_write_cache *cache, int64_t ledgers, uint32_t size_bytes,
                 uint32_t late_every, int64_t stride)
{
    int64_t next[64] = {0};
    model_count = 0;
    for (uint32_t n = 0; model_count < MODEL_MAX; n++) {
        int64_t ledger_id = (int64_t)(random_next() % (uint64_t)ledgers);
        int64_t entry_id = stride * next[ledger_id]++;
        if (late_every && n % late_every == 3)
            next[ledger_id]++; /* this id comes after the next one, or never */
        if (late_every && n % late_every == 4 && entry_id >= stride &&
            !model_find(ledger_id, entry_id - stride))
            entry_id -= stride;
        uint32_t size = size_bytes / 2 + (uint32_t)(random_next() % size_bytes);
        uint64_t before = cache->used_bytes;
        if (!put(cache, ledger_id, entry_id, size)) {
            CHECK(fbk_cache_cost(size) > cache->capacity_bytes - before);
            break;
        }
        CHECK(cache->used_bytes == before + fbk_cache_cost(size));
    }
    check_lookups(cache, ledgers, stride * next[0]);
    uint64_t in_chunks = check_layout(cache);
    cache->sealed = true;
    fbk_cache_reset(cache);
    return in_chunks * 100 / model_count;
}

static void
test_chunks(void)
{
    struct fbk_write_cache cache;
    for (uint64_t align_bytes = 4096; align_bytes <= 16384; align_bytes *= 4) {
        CHECK(fbk_cache_init(&cache, 4u << 20, align_bytes, 7) == 0);
        /* What one ledger brings in order is nearly all in chunks, whatever its entries' size. */
        CHECK(fill_with_chunks(&cache, 1, 1024, 0, 1) >= 90);
        CHECK(fill_with_chunks(&cache, 1, 20000, 0, 1) >= 90);
        CHECK(fill_with_chunks(&cache, 1, 300000, 0, 1) >= 50);
        CHECK(fill_with_chunks(&cache, 1, 1024, 0, 3) >= 90); /* striped over three */
        /* Entries that come late are copied, the others are not. */
        uint64_t percent = fill_with_chunks(&cache, 1, 1024, 20, 1);
        CHECK(percent >= 80 && percent <= 98);
        /* Ids too far apart for runs: no chunk is opened for every few of them. */
        CHECK(fill_with_chunks(&cache, 1, 1024, 0, 1000) == 0);
        /* Several at once share what the arena can spare; with many, none has enough for a
         * chunk. */
        CHECK(fill_with_chunks(&cache, 2, 1024, 50, 1) >= 50);
        CHECK(fill_with_chunks(&cache, 3, 1024, 50, 1) >= 10);
        CHECK(fill_with_chunks(&cache, 64, 1024, 0, 1) == 0);
        fbk_cache_free(&cache);
    }
}

static void
test_largest_ids(void)
{
    struct fbk_write_cache cache;
    model_count = 0;
    CHECK(fbk_cache_init(&cache, 65536, 4096, 7) == 0);
    CHECK(put(&cache, INT64_MAX, INT64_MAX, 40) && put(&cache, INT64_MAX, 0, 40));
    check_item(fbk_cache_next(&cache, INT64_MAX, 1, INT64_MAX), model_find(INT64_MAX, INT64_MAX));
    check_item(fbk_cache_next(&cache, INT64_MAX, INT64_MAX, INT64_MAX),
               model_find(INT64_MAX, INT64_MAX));
    check_item(fbk_cache_next(&cache, INT64_MAX, 1, INT64_MAX - 1), NULL);
    check_layout(&cache);
    fbk_cache_free(&cache);
}

static void
test_refusals(void)
{
    struct fbk_write_cache cache;
    CHECK(fbk_cache_init(&cache, 0, 4096, 1) == -EINVAL);
    CHECK(fbk_cache_init(&cache, 4097, 4096, 1) == -EINVAL);
    CHECK(fbk_cache_init(&cache, 4096, 4096, 1) == 0);
    CHECK(fbk_cache_reserve(&cache, 1, 1, 4096 - 48) != NULL);
    CHECK(fbk_cache_reserve(&cache, 1, 1, 4096 - 47) == NULL);
    /* a reserve alone is nothing */
    CHECK(cache.item_count == 0 && fbk_cache_find(&cache, 1, 1) == NULL);
    fbk_cache_free(&cache);
}

static uint64_t
resident_pages(const struct fbk_write_cache *cache)
{
    static unsigned char pages[4096];
    const uint64_t count = cache->arena_bytes / FBK_PAGE_BYTES;
    uint64_t resident = 0;
    CHECK(count <= sizeof pages && mincore(cache->arena, cache->arena_bytes, pages) == 0);
    for (uint64_t n = 0; n < count; n++)
        resident += pages[n] & 1;
    return resident;
}

/* What a cache no longer needs goes back, a part at each emptying; what it needs stays. */
static void
test_memory_given_back(void)
{
    static const uint8_t in_ring[1024];
    struct fbk_write_cache cache;
    CHECK(fbk_cache_init(&cache, 4u << 20, 4096, 7) == 0);
    const uint64_t part = cache.arena_bytes / FBK_CACHE_FORGOTTEN_PART / FBK_PAGE_BYTES + 1;
    /* Both ends of the arena have been used: one ledger fills chunks, 64 are copied. */
    CHECK(fill_with_chunks(&cache, 1, 1024, 0, 1) >= 90);
    CHECK(fill_with_chunks(&cache, 64, 1024, 0, 1) == 0);
    const uint64_t full = resident_pages(&cache);
    CHECK(full > 3 * cache.arena_bytes / FBK_PAGE_BYTES / 4);
    fbk_cache_reset(&cache); /* of an empty cache says nothing about need */
    CHECK(resident_pages(&cache) == full);

    for (uint64_t resets = 1; resets <= 2 * FBK_CACHE_FORGOTTEN_PART; resets++) {
        const uint64_t before = resident_pages(&cache);
        for (int64_t id = 0; id < 200; id++)
            CHECK(fbk_cache_refer(&cache, 1, id, in_ring, sizeof in_ring, 0));
        cache.sealed = true;
        fbk_cache_reset(&cache);
        CHECK(resident_pages(&cache) + 2 * part >= before); /* of each end */
    }
    const uint64_t items_bytes = 200 * sizeof(struct fbk_cache_item);
    CHECK(resident_pages(&cache) <=
          FBK_CACHE_KEPT_TIMES * fbk_round_up(items_bytes, FBK_PAGE_BYTES) / FBK_PAGE_BYTES);

    /* It takes memory again, and keeps it while it needs half of it. */
    CHECK(fill_with_chunks(&cache, 1, 1024, 0, 1) >= 90);
    const uint64_t again = resident_pages(&cache);
    model_count = 0;
    for (int64_t id = 0; cache.used_bytes < cache.capacity_bytes * 5 / 8; id++)
        CHECK(put(&cache, 1, id, 1024));
    check_layout(&cache);
    fbk_cache_reset(&cache);
    CHECK(resident_pages(&cache) >= again);
    fbk_cache_free(&cache);
}

int
main(void)
{
    test_against_model();
    test_chunks();
    test_memory_given_back();
    test_largest_ids();
    test_refusals();
    return 0;
}
