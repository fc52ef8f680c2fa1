/* See client/apache_pending.h. */
#include "client/apache_pending.h"

#define ROOM_BYTES_MIN 4096u
#define ITEMS_MIN 64u

uint8_t *
fbk_bytes_reserve(struct fbk_bytes *buffer, uint64_t size_bytes)
{
    const uint64_t needed_bytes = buffer->used_bytes + size_bytes;
    if (needed_bytes > buffer->room_bytes) {
        uint64_t room_bytes =
            buffer->room_bytes < ROOM_BYTES_MIN ? ROOM_BYTES_MIN : buffer->room_bytes;
        while (room_bytes < needed_bytes)
            room_bytes *= 2;
        uint8_t *bytes = realloc(buffer->bytes, room_bytes);
        if (bytes == NULL)
            return NULL;
        buffer->bytes = bytes;
        buffer->room_bytes = room_bytes;
    }
    return buffer->bytes + buffer->used_bytes;
}

int32_t
fbk_bytes_append(struct fbk_bytes *buffer, const uint8_t *bytes, uint64_t size_bytes)
{
    if (size_bytes == 0)
        return 0;
    uint8_t *at = fbk_bytes_reserve(buffer, size_bytes);
    if (at == NULL)
        return FBK_E_FULL;
    memcpy(at, bytes, size_bytes);
    buffer->used_bytes += size_bytes;
    return 0;
}

/* ------------ the map */

static uint32_t
bucket_of(const struct fbk_pending_map *map, uint32_t operation, int64_t ledger_id,
          int64_t entry_id)
{
    uint64_t mixed = ((uint64_t)ledger_id ^ (uint64_t)operation << 56) * 0x9e3779b97f4a7c15ull +
                     (uint64_t)entry_id;
    mixed = (mixed ^ mixed >> 29) * 0xbf58476d1ce4e5b9ull;
    return (uint32_t)(mixed >> 32) & (map->bucket_count - 1);
}

static void
link_last(struct fbk_pending_map *map, uint32_t index)
{
    struct fbk_pending_item *item = &map->items[index];
    const uint32_t bucket = bucket_of(map, item->operation, item->ledger_id, item->entry_id);
    item->next = 0;
    if (map->heads[bucket] == 0)
        map->heads[bucket] = index + 1;
    else
        map->items[map->tails[bucket] - 1].next = index + 1;
    map->tails[bucket] = index + 1;
}

/* The chains are made anew in their order, so that of equal ones the older stays before the
 * younger. */
static int32_t
grow(struct fbk_pending_map *map)
{
    const uint32_t before = map->bucket_count, count = before == 0 ? ITEMS_MIN : 2 * before;
    if (count > FBK_PENDING_MAX)
        return FBK_E_FULL;
    uint32_t *heads = calloc(count, sizeof *heads), *tails = calloc(count, sizeof *tails);
    struct fbk_pending_item *items = realloc(map->items, count * sizeof *items);
    if (items != NULL)
        map->items = items;
    if (heads == NULL || tails == NULL || items == NULL) {
        free(heads);
        free(tails);
        return FBK_E_FULL;
    }
    uint32_t *old_heads = map->heads, *old_tails = map->tails;
    map->heads = heads;
    map->tails = tails;
    map->bucket_count = count;
    for (uint32_t bucket = 0; bucket < before; bucket++)
        for (uint32_t at = old_heads[bucket]; at != 0;) {
            const uint32_t next = map->items[at - 1].next;
            link_last(map, at - 1);
            at = next;
        }
    free(old_heads);
    free(old_tails);
    return 0;
}

int32_t
fbk_pending_put(struct fbk_pending_map *map, uint32_t operation, int64_t ledger_id,
                int64_t entry_id, uint64_t id)
{
    uint32_t index;
    if (map->free != 0) {
        index = map->free - 1;
        map->free = map->items[index].next;
    } else {
        if (map->used == map->bucket_count) {
            const int32_t error = grow(map);
            if (error != 0)
                return error;
        }
        index = map->used++;
    }
    map->items[index] = (struct fbk_pending_item){
        .id = id,
        .ledger_id = ledger_id,
        .entry_id = entry_id,
        .operation = operation,
    };
    link_last(map, index);
    return 0;
}

bool
fbk_pending_take(struct fbk_pending_map *map, uint32_t operation, int64_t ledger_id,
                 int64_t entry_id, uint64_t *id)
{
    if (map->bucket_count == 0)
        return false;
    const uint32_t bucket = bucket_of(map, operation, ledger_id, entry_id);
    uint32_t before = 0;
    for (uint32_t at = map->heads[bucket]; at != 0; at = map->items[at - 1].next) {
        struct fbk_pending_item *item = &map->items[at - 1];
        if (item->operation == operation && item->ledger_id == ledger_id &&
            item->entry_id == entry_id) {
            if (before == 0)
                map->heads[bucket] = item->next;
            else
                map->items[before - 1].next = item->next;
            if (map->tails[bucket] == at)
                map->tails[bucket] = before;
            *id = item->id;
            item->next = map->free;
            map->free = at;
            return true;
        }
        before = at;
    }
    return false;
}
