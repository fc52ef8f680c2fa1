/* Ledgers that a client with limited rights has shown tags for, by connection (INV-N4).
 *
 * A table of ids with open addresses, at most half full, and a circle of the same ids by age: one
 * more ledger than FBK_TAGS_MAX takes the place of the oldest.  The client knows the bound, and
 * shows a tag again that has fallen out.  It counts a tag that is refused, too, until it hears so:
 * what it then shows again is here still, and becomes the youngest.
 *
 * Decisions 116 and 121. */
#include "worker/worker.h"

#include "base/segment.h"

#define ROOM (2u * FBK_TAGS_MAX)

struct fbk_tags {
    uint64_t keys[ROOM];          /* ledger ids + 1; 0 = free */
    uint64_t order[FBK_TAGS_MAX]; /* a circle */
    uint32_t oldest, count;
};
_Static_assert((ROOM & (ROOM - 1)) == 0, "a mask is taken of it");

static uint32_t
home_of(uint64_t key)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (ROOM - 1);
}

/* Where the key is, or the free place where it belongs. */
static uint32_t
place_of(const struct fbk_tags *tags, uint64_t key)
{
    uint32_t at = home_of(key);
    while (tags->keys[at] != 0 && tags->keys[at] != key)
        at = (at + 1) & (ROOM - 1);
    return at;
}

/* What stands behind it moves up, as far as it then is not in front of its home. */
static void
take_out(struct fbk_tags *tags, uint64_t key)
{
    uint32_t hole = place_of(tags, key);
    for (uint32_t at = (hole + 1) & (ROOM - 1); tags->keys[at] != 0; at = (at + 1) & (ROOM - 1)) {
        const uint32_t from_home = (at - home_of(tags->keys[at])) & (ROOM - 1);
        if (from_home >= ((at - hole) & (ROOM - 1))) {
            tags->keys[hole] = tags->keys[at];
            hole = at;
        }
    }
    tags->keys[hole] = 0;
}

static void
make_youngest(struct fbk_tags *tags, uint64_t key)
{
    uint32_t at = tags->oldest;
    while (tags->order[at] != key)
        at = (at + 1) % FBK_TAGS_MAX;
    const uint32_t youngest = (tags->oldest + tags->count - 1) % FBK_TAGS_MAX;
    while (at != youngest) {
        const uint32_t next = (at + 1) % FBK_TAGS_MAX;
        tags->order[at] = tags->order[next];
        at = next;
    }
    tags->order[youngest] = key;
}

bool
fbk_tags_allow(const struct fbk_connection *connection, uint8_t right, int64_t ledger_id)
{
    const struct fbk_tags *tags = connection->tags;
    if (tags == NULL || right & ~connection->tagged_rights || ledger_id < 0)
        return false;
    return tags->keys[place_of(tags, (uint64_t)ledger_id + 1)] != 0;
}

void
fbk_tags_drop(struct fbk_connection *connection)
{
    fbk_memory_give_back(connection->tags, sizeof *connection->tags);
    connection->tags = NULL;
}

int32_t
fbk_worker_grant(struct fbk_worker *worker, uint32_t slot, int64_t ledger_id)
{
    struct fbk_connection *connection = fbk_connection_at(worker, slot);
    if (ledger_id < 0 || connection->state == FBK_CONNECTION_GONE)
        return -EINVAL;
    if (connection->tags == NULL &&
        (connection->tags = fbk_memory_take(sizeof *connection->tags)) == NULL)
        return -ENOMEM;
    struct fbk_tags *tags = connection->tags;
    const uint64_t key = (uint64_t)ledger_id + 1;
    if (tags->keys[place_of(tags, key)] != 0) {
        make_youngest(tags, key);
        return 0;
    }
    if (tags->count == FBK_TAGS_MAX) {
        take_out(tags, tags->order[tags->oldest]);
        tags->oldest = (tags->oldest + 1) % FBK_TAGS_MAX;
        tags->count--;
    }
    tags->order[(tags->oldest + tags->count++) % FBK_TAGS_MAX] = key;
    tags->keys[place_of(tags, key)] = key;
    return 0;
}
