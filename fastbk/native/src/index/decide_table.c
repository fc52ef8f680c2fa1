/* A table of ledger states around the decisions, for simulated bookies: what journal and index do
 * with them, in the same order, without rings, disks and processes. */
#include "journal/decide.h"

#include "base/digest.h"
#include "base/ledgers.h"
#include "base/segment.h"
#include "index/index.h"

struct fbk_decide_table {
    struct fbk_ledgers ledgers;
};

struct fbk_decide_table *
fbk_decide_table_create(uint64_t ledgers_max)
{
    struct fbk_decide_table *table = malloc(sizeof *table);
    if (table && fbk_ledgers_init(&table->ledgers, ledgers_max) < 0) {
        free(table);
        table = NULL;
    }
    return table;
}

void
fbk_decide_table_destroy(struct fbk_decide_table *table)
{
    if (!table)
        return;
    fbk_ledgers_free(&table->ledgers);
    free(table);
}

struct fbk_decide_table *
fbk_decide_table_copy(const struct fbk_decide_table *table)
{
    struct fbk_decide_table *copy = fbk_decide_table_create(table->ledgers.ledgers_max);
    uint64_t cursor = 0;
    const struct fbk_ledger_state *from;
    while (copy && (from = fbk_ledgers_next(&table->ledgers, &cursor)) != NULL) {
        struct fbk_ledger_state *to = fbk_ledgers_add(&copy->ledgers, from->ledger_id);
        if (!to) {
            fbk_decide_table_destroy(copy);
            return NULL;
        }
        *to = *from;
    }
    return copy;
}

uint64_t
fbk_decide_table_count(const struct fbk_decide_table *table)
{
    return table->ledgers.count;
}

static struct fbk_record
record_of(const struct fbk_decide_request *request)
{
    struct fbk_record record = {
        .kind = (uint8_t)request->kind,
        .flags = (uint16_t)request->flags,
        .entry_count = request->entry_count,
        .ledger_id = request->ledger_id,
        .entry_id = request->entry_id,
    };
    record.creation_mark = request->creation_mark;
    memcpy(record.master_key, request->master_key, sizeof record.master_key);
    return record;
}

int32_t
fbk_decide_table_decide(struct fbk_decide_table *table, const struct fbk_decide_request *request,
                        uint32_t *status)
{
    const struct fbk_record record = record_of(request);
    const struct fbk_decide_limits limits = {
        .journal = request->journal_limit,
        .reads_only = request->reads_only != 0,
        .ledgers_full = table->ledgers.count >= table->ledgers.ledgers_max,
    };
    *status = FBK_S_OK;
    struct fbk_ledger_state *state = fbk_ledgers_find(&table->ledgers, record.ledger_id);
    uint32_t why = FBK_S_OK;
    uint32_t verdict = fbk_decide(state, &record, &limits, &why);
    if (verdict == FBK_TAKE_REFUSED)
        *status = why;
    if (verdict > FBK_TAKE_FENCE)
        return (int32_t)verdict;
    if (!state)
        state = fbk_ledgers_add(&table->ledgers, record.ledger_id);
    if (!state)
        return FBK_E_FULL;
    fbk_decide_apply(state, &record, verdict);
    return (int32_t)verdict;
}

int32_t
fbk_decide_table_replay(struct fbk_decide_table *table, const struct fbk_decide_request *request)
{
    const struct fbk_record record = record_of(request);
    if (record.kind == FBK_KIND_FORCE)
        return 0;
    struct fbk_ledger_state *state = fbk_ledgers_add(&table->ledgers, record.ledger_id);
    if (!state)
        return FBK_E_FULL;
    fbk_decide_replay(state, &record);
    return 0;
}

int32_t
fbk_decide_table_stored(struct fbk_decide_table *table, int64_t ledger_id, int64_t entry_id,
                        int64_t lac)
{
    struct fbk_ledger_state *state = fbk_ledgers_add(&table->ledgers, ledger_id);
    return state ? fbk_decide_stored(state, entry_id, lac) : FBK_E_FULL;
}

int32_t
fbk_decide_table_notice(struct fbk_decide_table *table, int64_t ledger_id, uint32_t what)
{
    struct fbk_ledger_state *state = fbk_ledgers_find(&table->ledgers, ledger_id);
    return state && fbk_decide_notice(state, what);
}

uint32_t
fbk_decide_table_no(const struct fbk_decide_table *table, int64_t ledger_id, uint32_t in_doubt)
{
    const struct fbk_ledger_state *state = fbk_ledgers_find(&table->ledgers, ledger_id);
    return fbk_decide_no(state, in_doubt != 0, state ? FBK_S_NO_ENTRY : FBK_S_NO_LEDGER);
}

int32_t
fbk_decide_table_get(const struct fbk_decide_table *table, int64_t ledger_id, uint8_t *to)
{
    const struct fbk_ledger_state *state = fbk_ledgers_find(&table->ledgers, ledger_id);
    if (state)
        memcpy(to, state, sizeof *state);
    return state != NULL;
}

int32_t
fbk_decide_table_put(struct fbk_decide_table *table, const uint8_t *from)
{
    struct fbk_ledger_state state;
    memcpy(&state, from, sizeof state);
    if (state.ledger_id < 0)
        return FBK_E_CORRUPT;
    struct fbk_ledger_state *to = fbk_ledgers_add(&table->ledgers, state.ledger_id);
    if (!to)
        return FBK_E_FULL;
    *to = state;
    return 0;
}

int32_t
fbk_decide_table_next(const struct fbk_decide_table *table, uint64_t *cursor, uint8_t *to)
{
    const struct fbk_ledger_state *state = fbk_ledgers_next(&table->ledgers, cursor);
    if (state)
        memcpy(to, state, sizeof *state);
    return state != NULL;
}

int32_t
fbk_python_entry_same(const uint8_t *a, uint32_t a_bytes, const uint8_t *b, uint32_t b_bytes,
                      uint32_t digest_type)
{
    return fbk_entry_same(a, a_bytes, b, b_bytes, (uint8_t)digest_type);
}
