/* Location blocks that passed their checks, by (file, block): a fixed number of them, the least
 * recently used goes. */
#include "base/segment.h"
#include "store/parts.h"

static uint64_t
bucket_of(const struct fbk_block_cache *cache, uint64_t file_id, uint64_t block)
{
    uint64_t hash = (file_id * 0x9e3779b97f4a7c15ull) ^ (block * 0xc2b2ae3d27d4eb4full);
    return (hash ^ hash >> 29) & (cache->bucket_count - 1);
}

int32_t
fbk_block_cache_init(struct fbk_block_cache *cache, uint64_t bytes_max)
{
    memset(cache, 0, sizeof *cache);
    cache->block_count = bytes_max / FBK_LOCATIONS_BLOCK_BYTES;
    if (cache->block_count < 16)
        cache->block_count = 16;
    cache->bucket_count = 64;
    while (cache->bucket_count < cache->block_count)
        cache->bucket_count *= 2;
    cache->blocks = calloc(cache->block_count, sizeof *cache->blocks);
    cache->buckets = calloc(cache->bucket_count, sizeof *cache->buckets);
    cache->memory = fbk_memory_take(cache->block_count * FBK_LOCATIONS_BLOCK_BYTES);
    return cache->blocks && cache->buckets && cache->memory ? 0 : -ENOMEM;
}

void
fbk_block_cache_free(struct fbk_block_cache *cache)
{
    free(cache->blocks);
    free(cache->buckets);
    if (cache->memory)
        fbk_memory_give_back(cache->memory, cache->block_count * FBK_LOCATIONS_BLOCK_BYTES);
}

static void
unlink_block(struct fbk_block_cache *cache, struct fbk_cached_block *block)
{
    if (block->newer)
        block->newer->older = block->older;
    else
        cache->newest = block->older;
    if (block->older)
        block->older->newer = block->newer;
    else
        cache->oldest = block->newer;
}

static void
link_newest(struct fbk_block_cache *cache, struct fbk_cached_block *block)
{
    block->newer = NULL;
    block->older = cache->newest;
    if (cache->newest)
        cache->newest->newer = block;
    else
        cache->oldest = block;
    cache->newest = block;
}

const uint8_t *
fbk_block_cache_find(struct fbk_block_cache *cache, uint64_t file_id, uint64_t block)
{
    struct fbk_cached_block *found = cache->buckets[bucket_of(cache, file_id, block)];
    while (found && (found->file_id != file_id || found->block != block))
        found = found->next_in_bucket;
    if (!found)
        return NULL;
    unlink_block(cache, found);
    link_newest(cache, found);
    return found->bytes;
}

void
fbk_block_cache_put(struct fbk_block_cache *cache, uint64_t file_id, uint64_t block,
                    const uint8_t *bytes)
{
    if (fbk_block_cache_find(cache, file_id, block))
        return;
    struct fbk_cached_block *fresh;
    if (cache->blocks_used < cache->block_count) {
        fresh = &cache->blocks[cache->blocks_used];
        fresh->bytes = cache->memory + cache->blocks_used * FBK_LOCATIONS_BLOCK_BYTES;
        cache->blocks_used++;
    } else {
        fresh = cache->oldest;
        unlink_block(cache, fresh);
        struct fbk_cached_block **at =
            &cache->buckets[bucket_of(cache, fresh->file_id, fresh->block)];
        while (*at != fresh)
            at = &(*at)->next_in_bucket;
        *at = fresh->next_in_bucket;
    }
    fresh->file_id = file_id;
    fresh->block = block;
    memcpy(fresh->bytes, bytes, FBK_LOCATIONS_BLOCK_BYTES);
    struct fbk_cached_block **bucket = &cache->buckets[bucket_of(cache, file_id, block)];
    fresh->next_in_bucket = *bucket;
    *bucket = fresh;
    link_newest(cache, fresh);
}
