/* Ledger states in chunks, and the hash index over them. */
#include "base/ledgers.h"

#include "base/segment.h"

#include <sys/random.h>

#define NO_LEDGER (-1)
#define SLOTS_AT_START 1024u
#define CHUNK_STATES 4096u
#define MOVED_AN_ADD 8u
#define LEDGERS_MAX (1ull << 31) /* a number and a bit of hash fit into a slot */

static uint64_t
hash_of(const struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    /* Clients choose ledger ids: the seed keeps them from choosing one long probe sequence. */
    uint64_t z = (uint64_t)ledger_id + ledgers->seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= ledgers->seed >> 32 | ledgers->seed << 32;
    return z ^ (z >> 31);
}

static bool
take_slots(struct fbk_ledger_slots *index, uint64_t slot_count)
{
    index->slots = fbk_memory_take(slot_count * sizeof *index->slots);
    index->slot_count = index->slots ? slot_count : 0;
    return index->slots != NULL;
}

static void
give_slots(struct fbk_ledger_slots *index)
{
    if (index->slots)
        fbk_memory_give_back(index->slots, index->slot_count * sizeof *index->slots);
    *index = (struct fbk_ledger_slots){0};
}

static uint64_t
chunks_max(const struct fbk_ledgers *ledgers)
{
    return (ledgers->ledgers_max + CHUNK_STATES - 1) / CHUNK_STATES + 1;
}

int32_t
fbk_ledgers_init(struct fbk_ledgers *ledgers, uint64_t ledgers_max)
{
    memset(ledgers, 0, sizeof *ledgers);
    if (getrandom(&ledgers->seed, sizeof ledgers->seed, GRND_NONBLOCK) !=
        (ssize_t)sizeof ledgers->seed)
        ledgers->seed = fbk_now_ns();
    ledgers->ledgers_max = ledgers_max < LEDGERS_MAX ? ledgers_max : LEDGERS_MAX;
    /* touched only as used */
    ledgers->chunks = fbk_memory_take(chunks_max(ledgers) * sizeof *ledgers->chunks);
    if (!ledgers->chunks)
        return -ENOMEM;
    if (take_slots(&ledgers->index, SLOTS_AT_START))
        return 0;
    fbk_ledgers_free(ledgers);
    return -ENOMEM;
}

void
fbk_ledgers_free(struct fbk_ledgers *ledgers)
{
    for (uint64_t first = 0; first < ledgers->used; first += CHUNK_STATES)
        fbk_memory_give_back(ledgers->chunks[first / CHUNK_STATES],
                             CHUNK_STATES * sizeof(struct fbk_ledger_state));
    if (ledgers->chunks)
        fbk_memory_give_back(ledgers->chunks, chunks_max(ledgers) * sizeof *ledgers->chunks);
    give_slots(&ledgers->index);
    give_slots(&ledgers->old);
    memset(ledgers, 0, sizeof *ledgers);
}

static struct fbk_ledger_state *
state_at(const struct fbk_ledgers *ledgers, uint64_t number)
{
    return &ledgers->chunks[number / CHUNK_STATES][number % CHUNK_STATES];
}

/* What a slot holds of a hash: the bits above those of the number. */
static uint32_t
tag_of(const struct fbk_ledger_slots *index, uint64_t hash)
{
    return (uint32_t)(hash >> 32) & ~(uint32_t)(index->slot_count - 1);
}

/* In the index that is being left, a slot whose state was removed: probing goes on behind it.  No
 * state has that number. */
static uint32_t
gone_from(const struct fbk_ledger_slots *index)
{
    return (uint32_t)(index->slot_count - 1);
}

/* Its slot, NULL if there is none. */
static uint32_t *
search(const struct fbk_ledgers *ledgers, const struct fbk_ledger_slots *index, uint64_t hash,
       int64_t ledger_id)
{
    const uint32_t mask = (uint32_t)(index->slot_count - 1), tag = tag_of(index, hash);
    for (uint64_t slot = hash & mask; index->slots[slot] != 0; slot = (slot + 1) & mask) {
        uint32_t value = index->slots[slot];
        if ((value & ~mask) != tag || value == gone_from(index))
            continue;
        if (state_at(ledgers, (value & mask) - 1)->ledger_id == ledger_id)
            return &index->slots[slot];
    }
    return NULL;
}

static struct fbk_ledger_state *
state_in(const struct fbk_ledgers *ledgers, const struct fbk_ledger_slots *index,
         const uint32_t *slot)
{
    return state_at(ledgers, (*slot & (uint32_t)(index->slot_count - 1)) - 1);
}

struct fbk_ledger_state *
fbk_ledgers_find(const struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    uint64_t hash = hash_of(ledgers, ledger_id);
    const struct fbk_ledger_slots *index = &ledgers->index;
    const uint32_t *slot = search(ledgers, index, hash, ledger_id);
    if (!slot && ledgers->old.slots) {
        index = &ledgers->old;
        slot = search(ledgers, index, hash, ledger_id);
    }
    return slot ? state_in(ledgers, index, slot) : NULL;
}

/* Of a state that the index does not hold. */
static void
enter(struct fbk_ledgers *ledgers, uint64_t number, int64_t ledger_id)
{
    struct fbk_ledger_slots *index = &ledgers->index;
    uint64_t hash = hash_of(ledgers, ledger_id), mask = index->slot_count - 1;
    uint64_t slot = hash & mask;
    while (index->slots[slot] != 0)
        slot = (slot + 1) & mask;
    index->slots[slot] = tag_of(index, hash) | (uint32_t)(number + 1);
}

/* The old index stays as it is until all of it was moved, but for what is removed: what is in both
 * is found in the new one. */
static void
move_some(struct fbk_ledgers *ledgers, uint64_t slots_max)
{
    const struct fbk_ledger_slots *old = &ledgers->old;
    if (!old->slots)
        return;
    for (uint64_t n = 0; n < slots_max && ledgers->moved < old->slot_count; n++) {
        uint32_t value = old->slots[ledgers->moved++],
                 number = value & (uint32_t)(old->slot_count - 1);
        if (number != 0 && value != gone_from(old))
            enter(ledgers, number - 1, state_at(ledgers, number - 1)->ledger_id);
    }
    if (ledgers->moved == old->slot_count)
        give_slots(&ledgers->old);
}

/* Begins to leave the index for a larger one. */
static bool
grow(struct fbk_ledgers *ledgers, uint64_t slot_count)
{
    struct fbk_ledger_slots larger;
    move_some(ledgers, UINT64_MAX); /* one index is left at a time */
    if (!take_slots(&larger, slot_count))
        return false;
    ledgers->old = ledgers->index;
    ledgers->index = larger;
    ledgers->moved = 0;
    return true;
}

static bool
is_room_for(uint64_t count, uint64_t slot_count)
{
    return count * 8 <= slot_count * 7;
}

bool
fbk_ledgers_reserve(struct fbk_ledgers *ledgers, uint64_t count)
{
    uint64_t slot_count = ledgers->index.slot_count;
    if (count > ledgers->ledgers_max)
        count = ledgers->ledgers_max;
    while (!is_room_for(count, slot_count))
        slot_count *= 2;
    if (slot_count == ledgers->index.slot_count)
        return true;
    if (!grow(ledgers, slot_count))
        return false;
    move_some(ledgers, UINT64_MAX);
    return true;
}

/* A place for one more state: its number, UINT64_MAX without memory. */
static uint64_t
take_place(struct fbk_ledgers *ledgers)
{
    move_some(ledgers, MOVED_AN_ADD);
    if (ledgers->free) {
        uint64_t number = ledgers->free - 1;
        ledgers->free = (uint64_t)state_at(ledgers, number)->highest_entry_id;
        return number;
    }
    /* By the places, not by the states: a slot has to hold each place's number. */
    if (!is_room_for(ledgers->used + 1, ledgers->index.slot_count) &&
        !grow(ledgers, ledgers->index.slot_count * 2))
        return UINT64_MAX;
    struct fbk_ledger_state **chunk = &ledgers->chunks[ledgers->used / CHUNK_STATES];
    if (ledgers->used % CHUNK_STATES == 0)
        *chunk = fbk_memory_take(CHUNK_STATES * sizeof **chunk);
    return *chunk ? ledgers->used++ : UINT64_MAX;
}

struct fbk_ledger_state *
fbk_ledgers_add(struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    if (ledger_id == NO_LEDGER)
        return NULL;
    struct fbk_ledger_state *state = fbk_ledgers_find(ledgers, ledger_id);
    if (state)
        return state;
    uint64_t number = ledgers->count < ledgers->ledgers_max ? take_place(ledgers) : UINT64_MAX;
    if (number == UINT64_MAX)
        return NULL;
    state = state_at(ledgers, number);
    memset(state, 0, sizeof *state);
    state->ledger_id = ledger_id;
    state->highest_entry_id = -1;
    state->lac = -1;
    enter(ledgers, number, ledger_id);
    ledgers->count++;
    return state;
}

/* Takes a slot out.  Those behind it that its being taken pushed away from their own move up, so
 * that no probe ends early. */
static void
clear_slot(struct fbk_ledgers *ledgers, uint64_t hole)
{
    uint32_t *slots = ledgers->index.slots;
    const uint64_t mask = ledgers->index.slot_count - 1;
    for (uint64_t slot = (hole + 1) & mask; slots[slot] != 0; slot = (slot + 1) & mask) {
        uint64_t home =
            hash_of(ledgers, state_in(ledgers, &ledgers->index, &slots[slot])->ledger_id) & mask;
        if (((slot - home) & mask) < ((slot - hole) & mask))
            continue; /* it lies behind the hole by right */
        slots[hole] = slots[slot];
        hole = slot;
    }
    slots[hole] = 0;
}

bool
fbk_ledgers_remove(struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    uint64_t hash = hash_of(ledgers, ledger_id);
    struct fbk_ledger_state *state = fbk_ledgers_find(ledgers, ledger_id);
    if (ledger_id == NO_LEDGER || !state)
        return false;
    uint32_t *slot = search(ledgers, &ledgers->index, hash, ledger_id);
    uint32_t *old = ledgers->old.slots ? search(ledgers, &ledgers->old, hash, ledger_id) : NULL;
    uint64_t place =
        slot ? *slot & (ledgers->index.slot_count - 1) : *old & (ledgers->old.slot_count - 1);
    if (slot)
        clear_slot(ledgers, (uint64_t)(slot - ledgers->index.slots));
    if (old) /* nothing moves there: what was moved is counted by places */
        *old = gone_from(&ledgers->old);
    state->ledger_id = NO_LEDGER;
    state->highest_entry_id = (int64_t)ledgers->free;
    ledgers->free = place; /* as in a slot: its number + 1 */
    ledgers->count--;
    return true;
}

struct fbk_ledger_state *
fbk_ledgers_next_before(const struct fbk_ledgers *ledgers, uint64_t *cursor, uint64_t stop_at)
{
    while (*cursor < ledgers->used && *cursor < stop_at) {
        struct fbk_ledger_state *state = state_at(ledgers, (*cursor)++);
        if (FBK_LIKELY(state->ledger_id != NO_LEDGER))
            return state;
    }
    return NULL;
}

struct fbk_ledger_state *
fbk_ledgers_next(const struct fbk_ledgers *ledgers, uint64_t *cursor)
{
    return fbk_ledgers_next_before(ledgers, cursor, UINT64_MAX);
}

uint64_t
fbk_ledgers_memory_bytes(const struct fbk_ledgers *ledgers)
{
    uint64_t chunk_count = (ledgers->used + CHUNK_STATES - 1) / CHUNK_STATES;
    return chunk_count *
               (CHUNK_STATES * sizeof(struct fbk_ledger_state) + sizeof *ledgers->chunks) +
           (ledgers->index.slot_count + ledgers->old.slot_count) * sizeof *ledgers->index.slots;
}

bool
fbk_master_key_equal(const uint8_t *a, const uint8_t *b)
{
    uint32_t difference = 0;
    for (uint32_t i = 0; i < FBK_MASTER_KEY_BYTES; i++)
        difference |= (uint32_t)(a[i] ^ b[i]);
    return difference == 0;
}
