/* Which digest the entries of a ledger have, as far as it is known here .
 * Decision 68. */
#include "worker/worker.h"

#include "base/digest.h"
#include "base/segment.h"

/* The most sets that the option allows, a power of two. */
static uint32_t
set_count_of(const struct fbk_worker *worker)
{
    uint32_t most = worker->options.apache_digests_max / FBK_DIGEST_WAYS;
    return most == 0 ? 0 : 1u << (31 - __builtin_clz(most));
}

int32_t
fbk_digests_init(struct fbk_worker *worker)
{
    struct fbk_digests *digests = &worker->digests;
    uint32_t set_count = set_count_of(worker);
    if (set_count == 0)
        return -EINVAL;
    digests->set_mask = set_count - 1;
    digests->slots =
        fbk_memory_take((uint64_t)set_count * FBK_DIGEST_WAYS * sizeof *digests->slots);
    fbk_digests_tick(worker);
    return digests->slots == NULL ? -ENOMEM : 0;
}

void
fbk_digests_free(struct fbk_worker *worker)
{
    uint64_t count = (uint64_t)set_count_of(worker) * FBK_DIGEST_WAYS;
    fbk_memory_give_back(worker->digests.slots, count * sizeof *worker->digests.slots);
}

void
fbk_digests_tick(struct fbk_worker *worker)
{
    worker->digests.now_s = (uint32_t)(fbk_now_ns() / 1000000000u);
}

/* ------------ the table */

static uint64_t
key_of(int64_t ledger_id)
{
    return (uint64_t)ledger_id + 1;
}

static struct fbk_digest_slot *
set_of(const struct fbk_digests *digests, uint64_t key)
{
    uint64_t hash = key * 0x9e3779b97f4a7c15u;
    return &digests->slots[((hash >> 32) & digests->set_mask) * FBK_DIGEST_WAYS];
}

/* NULL: it is not there. */
static struct fbk_digest_slot *
find(const struct fbk_digests *digests, uint64_t key)
{
    struct fbk_digest_slot *set = set_of(digests, key);
    for (uint32_t way = 0; way < FBK_DIGEST_WAYS; way++)
        if (set[way].key == key)
            return &set[way];
    return NULL;
}

/* Takes a free place, else another ledger's. */
static struct fbk_digest_slot *
make(struct fbk_digests *digests, uint64_t key)
{
    struct fbk_digest_slot *set = set_of(digests, key),
                           *taken = &set[digests->turn++ % FBK_DIGEST_WAYS];
    for (uint32_t way = 0; way < FBK_DIGEST_WAYS; way++)
        if (set[way].key == 0) {
            taken = &set[way];
            break;
        }
    *taken = (struct fbk_digest_slot){
        .key = key, .request_at_s = digests->now_s, .digest_type = FBK_DIGEST_NONE};
    return taken;
}

static bool
is_due(const struct fbk_digests *digests, const struct fbk_digest_slot *slot)
{
    return (int32_t)(digests->now_s - slot->request_at_s) >= 0;
}

/* One that finds no room here is still due at its next add. */
static bool
request_digest(struct fbk_digests *digests, struct fbk_digest_slot *slot)
{
    if (digests->wanted_count == FBK_DIGESTS_WANTED_MAX)
        return false;
    digests->wanted[digests->wanted_count++] = (int64_t)(slot->key - 1);
    slot->request_at_s = digests->now_s + FBK_DIGESTS_REPEAT_S;
    return true;
}

bool
fbk_digests_find(struct fbk_digests *digests, int64_t ledger_id, uint32_t *digest_type)
{
    *digest_type = FBK_DIGEST_NONE;
    if (ledger_id < 0)
        return false;
    struct fbk_digest_slot *slot = find(digests, key_of(ledger_id));
    if (slot == NULL)
        slot = make(digests, key_of(ledger_id));
    *digest_type = slot->digest_type;
    return is_due(digests, slot) && request_digest(digests, slot);
}

bool
fbk_digests_doubt(struct fbk_digests *digests, int64_t ledger_id)
{
    struct fbk_digest_slot *slot = ledger_id < 0 ? NULL : find(digests, key_of(ledger_id));
    if (slot == NULL ||
        (int32_t)(slot->request_at_s - digests->now_s) <= (int32_t)FBK_DIGESTS_REPEAT_S)
        return false; /* is asked for soon, or just was */
    return request_digest(digests, slot);
}

/* ------------ Python's calls */

int32_t
fbk_worker_digests_wanted(struct fbk_worker *worker, int64_t *ledger_ids, uint32_t count_max)
{
    struct fbk_digests *digests = &worker->digests;
    uint32_t count = digests->wanted_count < count_max ? digests->wanted_count : count_max;
    memcpy(ledger_ids, digests->wanted, count * sizeof *ledger_ids);
    digests->wanted_count -= count;
    memmove(digests->wanted, digests->wanted + count,
            digests->wanted_count * sizeof *digests->wanted);
    return (int32_t)count;
}

void
fbk_worker_digests_known(struct fbk_worker *worker, const int64_t *ledger_ids,
                         const uint8_t *digest_types, uint32_t count)
{
    struct fbk_digests *digests = &worker->digests;
    for (uint32_t i = 0; i < count; i++) {
        if (ledger_ids[i] < 0)
            continue;
        struct fbk_digest_slot *slot = find(digests, key_of(ledger_ids[i]));
        if (slot == NULL)
            slot = make(digests, key_of(ledger_ids[i]));
        slot->digest_type =
            fbk_digest_bytes(digest_types[i]) < 0 ? FBK_DIGEST_NONE : digest_types[i];
        slot->request_at_s = digests->now_s + FBK_DIGESTS_OLD_S;
    }
}
