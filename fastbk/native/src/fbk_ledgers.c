/* The table of ledger states: open addressing with linear probing, at most three quarters full. */
#include "fbk_ledgers.h"

#include "fbk_segment.h"

#include <sys/random.h>

#define EMPTY (-1)
#define SLOTS_AT_START 256u

static uint64_t
slot_of(const struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    /* Clients choose ledger ids: the seed keeps them from choosing one long probe sequence. */
    uint64_t z = (uint64_t)ledger_id + ledgers->seed;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= ledgers->seed >> 32 | ledgers->seed << 32;
    return (z ^ (z >> 31)) & (ledgers->slot_count - 1);
}

static struct fbk_ledger_state *
take_slots(uint64_t slot_count)
{
    if (slot_count > UINT64_MAX / sizeof(struct fbk_ledger_state))
        return NULL;
    struct fbk_ledger_state *slots = fbk_memory_take(slot_count * sizeof *slots);
    if (slots != NULL)
        for (uint64_t i = 0; i < slot_count; i++)
            slots[i].ledger_id = EMPTY;
    return slots;
}

int32_t
fbk_ledgers_init(struct fbk_ledgers *ledgers, uint64_t ledgers_max)
{
    memset(ledgers, 0, sizeof *ledgers);
    if (getrandom(&ledgers->seed, sizeof ledgers->seed, GRND_NONBLOCK) != (ssize_t)sizeof ledgers->seed)
        ledgers->seed = fbk_now_ns();
    ledgers->slots = take_slots(SLOTS_AT_START);
    if (ledgers->slots == NULL)
        return -ENOMEM;
    ledgers->slot_count = SLOTS_AT_START;
    ledgers->ledgers_max = ledgers_max;
    return 0;
}

void
fbk_ledgers_free(struct fbk_ledgers *ledgers)
{
    fbk_memory_give_back(ledgers->slots, ledgers->slot_count * sizeof *ledgers->slots);
    memset(ledgers, 0, sizeof *ledgers);
}

/* The slot that holds ledger_id, or the empty one where it belongs. */
static struct fbk_ledger_state *
probe(const struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    uint64_t slot = slot_of(ledgers, ledger_id);
    while (ledgers->slots[slot].ledger_id != EMPTY && ledgers->slots[slot].ledger_id != ledger_id)
        slot = (slot + 1) & (ledgers->slot_count - 1);
    return &ledgers->slots[slot];
}

struct fbk_ledger_state *
fbk_ledgers_find(const struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    if (ledger_id == EMPTY)
        return NULL;
    struct fbk_ledger_state *state = probe(ledgers, ledger_id);
    return state->ledger_id == EMPTY ? NULL : state;
}

static bool
grow(struct fbk_ledgers *ledgers)
{
    struct fbk_ledgers larger = *ledgers;
    larger.slot_count *= 2;
    larger.slots = take_slots(larger.slot_count);
    if (larger.slots == NULL)
        return false;
    for (uint64_t i = 0; i < ledgers->slot_count; i++)
        if (ledgers->slots[i].ledger_id != EMPTY)
            *probe(&larger, ledgers->slots[i].ledger_id) = ledgers->slots[i];
    fbk_memory_give_back(ledgers->slots, ledgers->slot_count * sizeof *ledgers->slots);
    *ledgers = larger;
    return true;
}

struct fbk_ledger_state *
fbk_ledgers_add(struct fbk_ledgers *ledgers, int64_t ledger_id)
{
    if (ledger_id == EMPTY)
        return NULL;
    struct fbk_ledger_state *state = probe(ledgers, ledger_id);
    if (state->ledger_id != EMPTY)
        return state;
    if (ledgers->count >= ledgers->ledgers_max)
        return NULL;
    if ((ledgers->count + 1) * 4 > ledgers->slot_count * 3) {
        if (!grow(ledgers))
            return NULL;
        state = probe(ledgers, ledger_id);
    }
    memset(state, 0, sizeof *state);
    state->ledger_id = ledger_id;
    state->highest_entry_id = -1;
    state->lac = -1;
    ledgers->count++;
    return state;
}

struct fbk_ledger_state *
fbk_ledgers_next(const struct fbk_ledgers *ledgers, uint64_t *cursor)
{
    while (*cursor < ledgers->slot_count) {
        struct fbk_ledger_state *state = &ledgers->slots[(*cursor)++];
        if (state->ledger_id != EMPTY)
            return state;
    }
    return NULL;
}

bool
fbk_master_key_equal(const uint8_t *a, const uint8_t *b)
{
    uint32_t difference = 0;
    for (uint32_t i = 0; i < FBK_MASTER_KEY_BYTES; i++)
        difference |= (uint32_t)(a[i] ^ b[i]);
    return difference == 0;
}
