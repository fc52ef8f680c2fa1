/* Runs: what one ledger brings in one batch, if it is enough, is written as an entry log has it,
 * and the flush then publishes where it lies and writes none of it again.
 *
 * A batch is drained in two passes.  The first decides about each record, in the order of the
 * rings, and notes it in its ledger's group.  The second copies: groups that are large enough as
 * runs, then whatever is left, in the order of the decisions.
 *
 * INV-J6: in a batch, accepted new adds in runs come before all loose records; a ledger's entries
 * keep the order of the decisions.  So replay meets what was accepted of a ledger before what is to
 * be checked against it.  A ledger of which a new add of the batch does not fit its group (other
 * flags, creation or digest) gets no run in it.
 * INV-J7: a run of a published batch lies in the file, at the offset and under the salt that its
 * header names, and does not change until the file is taken again.
 *
 * Such a batch lies in a ring that the index maps, until the index gives its place back: it reads
 * the entries there and has no copy of them.  While the ring has no room, batches have no runs; so
 * have those of a file that is none that may stay as a log.  Then groups are only counted.
 *
 * Decision 167. */
#include "base/checksum.h"
#include "base/record.h"
#include "base/run.h"
#include "journal/format.h"
#include "journal/journal.h"

/* From this size on an entry may be alone in its run. */
#define LARGE_ENTRY_BYTES 8192u

int32_t
fbk_journal_runs_init(struct fbk_journal *journal)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    /* the smallest record is a fence; the largest table is that of the smallest entries */
    plan->taken_max = journal->options.batch_size_bytes_max / sizeof(struct fbk_record) + 2;
    plan->tables_bytes_max = (uint64_t)journal->options.batch_size_bytes_max + FBK_PAGE_BYTES;
    plan->taken = fbk_memory_take(plan->taken_max * sizeof *plan->taken);
    plan->tables = fbk_memory_take(plan->tables_bytes_max);
    return plan->taken && plan->tables ? 0 : -ENOMEM;
}

void
fbk_journal_runs_free(struct fbk_journal *journal)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    if (plan->taken)
        fbk_memory_give_back(plan->taken, plan->taken_max * sizeof *plan->taken);
    if (plan->tables)
        fbk_memory_give_back(plan->tables, plan->tables_bytes_max);
}

/* ------------ the first pass */

/* Where the batch goes: into the ring, if it may have runs and all that it may need is free there.
 */
static int32_t
choose_buffer(struct fbk_journal *journal, struct fbk_journal_slot *slot)
{
    slot->has_runs = false;
    slot->buffer = slot->own;
    if (!journal->file.adopts || journal->tail.size_bytes == 0)
        return 0;
    const uint64_t behind = journal->tail_written - fbk_cursor_load(&journal->index->tail_released);
    if (FBK_UNLIKELY(behind > journal->tail.size_bytes))
        return fbk_journal_poison(journal, FBK_POISON_CURSOR, journal->options.worker_count,
                                  journal->tail_written - behind, 0);
    if (journal->tail.size_bytes - behind < journal->buffer_bytes)
        return 0;
    slot->has_runs = true;
    slot->buffer = fbk_ring_at(&journal->tail, journal->tail_written);
    return 0;
}

int32_t
fbk_journal_runs_begin(struct fbk_journal *journal, struct fbk_journal_slot *slot)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    for (uint32_t g = 0; g < plan->group_count; g++)
        plan->slots[plan->groups[g].slot] = 0;
    plan->group_count = 0;
    plan->taken_count = 0;
    plan->tables_bytes = 0;
    plan->last_group = 0;
    return choose_buffer(journal, slot);
}

/* Its ledger's group, NULL if it has none; *slot: where it is, or would be. */
static struct fbk_journal_group *
find_group(struct fbk_journal_batch_plan *plan, int64_t ledger_id, uint32_t *slot)
{
    struct fbk_journal_group *last = &plan->groups[plan->last_group];
    if (FBK_LIKELY(plan->group_count > 0 && last->ledger_id == ledger_id))
        return last;
    *slot = (uint32_t)(((uint64_t)ledger_id * 0x9e3779b97f4a7c15ull) >> 32) % FBK_GROUP_SLOTS;
    while (plan->slots[*slot] != 0) {
        const uint32_t g = plan->slots[*slot] - 1u;
        if (plan->groups[g].ledger_id == ledger_id) {
            plan->last_group = g;
            return &plan->groups[g];
        }
        *slot = (*slot + 1) % FBK_GROUP_SLOTS;
    }
    return NULL;
}

/* The same, made if it is not there; NULL: there are too many. */
static struct fbk_journal_group *
make_group(struct fbk_journal_batch_plan *plan, const struct fbk_record *record)
{
    uint32_t slot;
    struct fbk_journal_group *group = find_group(plan, record->ledger_id, &slot);
    if (group || plan->group_count == FBK_GROUPS_MAX)
        return group;
    plan->last_group = plan->group_count++;
    plan->slots[slot] = (uint16_t)(plan->last_group + 1);
    group = &plan->groups[plan->last_group];
    *group = (struct fbk_journal_group){
        .ledger_id = record->ledger_id,
        .slot = slot,
        .creation_mark = record->creation_mark,
        .digest_type = record->digest_type,
    };
    return group;
}

static uint64_t
table_bytes_of(const struct fbk_record *record)
{
    return record->kind == FBK_KIND_ADD_BATCH
               ? (uint64_t)record->entry_count * sizeof(struct fbk_batch_item)
               : 0;
}

/* A batch of adds may be longer in a run: a very large one stays as it came. */
static bool
may_group(const struct fbk_journal *journal, const struct fbk_record *record)
{
    return record->flags == 0 &&
           (record->kind == FBK_KIND_ADD ||
            record->payload_bytes <= journal->options.batch_size_bytes_max / 4);
}

/* Adds it to its ledger's group, if it belongs there.  Of a new add. */
static struct fbk_journal_group *
add_to_group(struct fbk_journal *journal, const struct fbk_record *record)
{
    struct fbk_journal_group *group = make_group(&journal->plan, record);
    const uint64_t bytes = record->payload_bytes - table_bytes_of(record);
    if (group && may_group(journal, record) && record->creation_mark == group->creation_mark &&
        record->digest_type == group->digest_type) {
        group->entry_count += record->entry_count;
        group->bytes += bytes;
        return group;
    }
    if (group)
        group->is_mixed = true;
    journal->taken_bytes += bytes;
    return NULL;
}

void
fbk_journal_count_new(struct fbk_journal *journal, const struct fbk_record *record)
{
    (void)add_to_group(journal, record);
}

uint64_t
fbk_journal_planned_bytes(struct fbk_journal *journal, const struct fbk_journal_slot *slot,
                          const struct fbk_record *record)
{
    const uint64_t bytes = record->size_bytes;
    uint32_t place;
    if (!slot->has_runs || record->entry_count == 0 || !may_group(journal, record))
        return bytes;
    /* An add is shorter in a run, but for the run's front.  Small entries mostly make up for the
     * fronts of all runs but the first of their ledger; a group that would not fit gets no runs. */
    if (record->kind == FBK_KIND_ADD_BATCH)
        return bytes +
               FBK_JOURNAL_RUN_FRONT_BYTES * (1 + record->payload_bytes / LARGE_ENTRY_BYTES) +
               record->entry_count * (sizeof(struct fbk_run_item) + 8);
    const bool needs_front = record->payload_bytes >= LARGE_ENTRY_BYTES ||
                             !find_group(&journal->plan, record->ledger_id, &place);
    return bytes + (needs_front ? FBK_JOURNAL_RUN_FRONT_BYTES : 0);
}

/* Copies and checks the table of a batch of adds: entries are laid out by the copy. */
static bool
take_table(struct fbk_journal_batch_plan *plan, struct fbk_journal_taken *taken,
           const uint8_t *payload)
{
    const uint64_t bytes = table_bytes_of(&taken->record);
    FBK_ASSERT(plan->tables_bytes + bytes <= plan->tables_bytes_max);
    uint8_t *to = plan->tables + plan->tables_bytes;
    taken->table = (const struct fbk_batch_item *)(const void *)to;
    plan->tables_bytes += bytes;
    return fbk_crc32c_copy(0, to, payload, bytes) == taken->record.body_crc &&
           fbk_record_items_ok(&taken->record, to);
}

bool
fbk_journal_note_taken(struct fbk_journal *journal, uint32_t w, const struct fbk_record *record,
                       bool is_new, uint64_t planned_bytes)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    FBK_ASSERT(plan->taken_count < plan->taken_max);
    struct fbk_journal_taken *taken = &plan->taken[plan->taken_count++];
    struct fbk_journal_group *group = is_new ? add_to_group(journal, record) : NULL;
    taken->record = *record;
    taken->worker = w;
    taken->position = journal->workers[w].taken;
    taken->table = NULL;
    taken->next = 0;
    taken->group = FBK_NO_GROUP;
    if (!group)
        return true;
    taken->group = (uint32_t)(group - plan->groups);
    group->planned_bytes += planned_bytes;
    if (group->last)
        plan->taken[group->last - 1].next = plan->taken_count;
    else
        group->first = plan->taken_count;
    group->last = plan->taken_count;
    return record->kind != FBK_KIND_ADD_BATCH ||
           take_table(plan, taken,
                      fbk_ring_at(&journal->workers[w].ring, taken->position) + sizeof *record);
}

/* ------------ the second pass */

/* The next entry of a group. */
struct cursor {
    uint32_t taken; /* + 1; 0: none is left */
    uint32_t item;
    uint64_t offset_bytes; /* of the entry in its record's payload */
};

struct entry {
    int64_t entry_id;
    const uint8_t *bytes; /* in the ring */
    uint32_t size_bytes;
    uint32_t crc;
};

static struct cursor
cursor_at(const struct fbk_journal_batch_plan *plan, uint32_t taken)
{
    return (struct cursor){taken, 0, taken ? table_bytes_of(&plan->taken[taken - 1].record) : 0};
}

static struct entry
entry_at(const struct fbk_journal *journal, const struct cursor *cursor)
{
    const struct fbk_journal_taken *taken = &journal->plan.taken[cursor->taken - 1];
    const uint8_t *payload = fbk_ring_at(&journal->workers[taken->worker].ring, taken->position) +
                             sizeof(struct fbk_record);
    return (struct entry){
        .entry_id = taken->record.entry_id + cursor->item,
        .bytes = payload + cursor->offset_bytes,
        .size_bytes =
            taken->table ? taken->table[cursor->item].size_bytes : taken->record.payload_bytes,
        .crc = taken->table ? taken->table[cursor->item].crc : taken->record.body_crc,
    };
}

static void
move_on(const struct fbk_journal_batch_plan *plan, struct cursor *cursor, uint32_t size_bytes)
{
    const struct fbk_journal_taken *taken = &plan->taken[cursor->taken - 1];
    cursor->offset_bytes += size_bytes;
    if (++cursor->item == taken->record.entry_count)
        *cursor = cursor_at(plan, taken->next);
}

/* How many entries from the cursor on go into one run, and the run's size. */
static uint32_t
count_run(const struct fbk_journal *journal, struct cursor cursor, uint32_t entry_count_max,
          uint64_t *size_bytes)
{
    const int64_t first_entry_id = entry_at(journal, &cursor).entry_id;
    uint64_t size = sizeof(struct fbk_run_header);
    uint32_t count = 0;
    while (cursor.taken && count < entry_count_max) {
        struct entry entry = entry_at(journal, &cursor);
        uint64_t more = sizeof(struct fbk_run_item) + fbk_round_up(entry.size_bytes, 8);
        if (count > 0 && (entry.entry_id - first_entry_id >= FBK_RUN_SPAN_MAX ||
                          size + more > FBK_RUN_BYTES_MAX))
            break;
        size += more;
        count++;
        move_on(&journal->plan, &cursor, entry.size_bytes);
    }
    *size_bytes = size;
    return count;
}

static int32_t
bad_ring(struct fbk_journal *journal, const struct cursor *cursor)
{
    const struct fbk_journal_taken *taken = &journal->plan.taken[cursor->taken - 1];
    return fbk_journal_poison(journal, FBK_POISON_RING, taken->worker, taken->position, 0);
}

/* Copies `count` entries behind the run's header and table.  The highest LAC of them, or
 * FBK_E_POISONED in *error. */
static int64_t
put_entries(struct fbk_journal *journal, struct cursor *cursor, int64_t ledger_id, uint32_t count,
            uint8_t *run, int32_t *error)
{
    struct fbk_run_item *items =
        (struct fbk_run_item *)(void *)(run + sizeof(struct fbk_run_header));
    uint64_t offset = sizeof(struct fbk_run_header) + count * sizeof *items;
    int64_t lac = -1;
    for (uint32_t i = 0; i < count; i++) {
        const struct entry entry = entry_at(journal, cursor);
        uint8_t *to = run + offset;
        const uint64_t padded = fbk_round_up(entry.size_bytes, 8);
        memset(to + padded - 8, 0, 8); /* the entry covers all but its padding */
        if (FBK_UNLIKELY(fbk_crc32c_copy(0, to, entry.bytes, entry.size_bytes) != entry.crc ||
                         fbk_load_be64(to) != (uint64_t)ledger_id ||
                         fbk_load_be64(to + 8) != (uint64_t)entry.entry_id)) {
            *error = bad_ring(journal, cursor);
            return 0;
        }
        const int64_t entry_lac = (int64_t)fbk_load_be64(to + 16);
        if (entry_lac < entry.entry_id && entry_lac > lac) /* else it is none */
            lac = entry_lac;
        items[i] = (struct fbk_run_item){
            .entry_id = entry.entry_id,
            .offset_bytes = (uint32_t)offset,
            .size_bytes = entry.size_bytes,
            .crc = entry.crc,
        };
        offset += padded;
        move_on(&journal->plan, cursor, entry.size_bytes);
    }
    return lac;
}

static void
put_record(struct fbk_journal *journal, struct fbk_journal_slot *slot, struct fbk_record *record)
{
    uint8_t *to = slot->buffer + slot->content_bytes;
    record->sequence = journal->next_record_sequence++;
    record->connection_id = 0;
    record->epoch = 0;
    record->received_us = 0;
    fbk_record_seal(record);
    memcpy(to, record, sizeof *record);
    memset(to + sizeof *record + record->payload_bytes, 0,
           record->size_bytes - sizeof *record - record->payload_bytes);
    slot->records_crc = fbk_crc32c(slot->records_crc, record, sizeof *record);
    slot->content_bytes += record->size_bytes;
    slot->record_count++;
}

static int32_t
put_run(struct fbk_journal *journal, struct fbk_journal_slot *slot,
        const struct fbk_journal_group *group, struct cursor *cursor, uint32_t entry_count_max)
{
    uint64_t size_bytes;
    const uint32_t count = count_run(journal, *cursor, entry_count_max, &size_bytes);
    const uint64_t offset_bytes =
        journal->offset_bytes + slot->content_bytes + sizeof(struct fbk_record);
    uint8_t *run = slot->buffer + slot->content_bytes + sizeof(struct fbk_record);
    const struct fbk_record *first = &journal->plan.taken[cursor->taken - 1].record;
    int32_t error = 0;
    const int64_t lac = put_entries(journal, cursor, group->ledger_id, count, run, &error);
    if (error < 0)
        return error;
    struct fbk_location location;
    fbk_run_head(run, group->ledger_id, count, (uint32_t)size_bytes, offset_bytes,
                 FBK_LOG_JOURNAL | journal->file.file_id, journal->file.salt, &location);
    struct fbk_record record = {
        .size_bytes = (uint32_t)(sizeof record + size_bytes),
        .payload_bytes = (uint32_t)size_bytes,
        .kind = FBK_KIND_RUN,
        .digest_type = group->digest_type,
        .entry_count = count,
        .ledger_id = group->ledger_id,
        .entry_id = location.first_entry_id,
        .body_crc = fbk_crc32c(0, run, fbk_run_front_bytes(count)),
        .creation_mark = group->creation_mark,
    };
    memcpy(record.master_key, first->master_key, sizeof record.master_key);
    put_record(journal, slot, &record);
    journal->segment->runs[journal->runs % FBK_RUN_SUMMARY_COUNT] = (struct fbk_run_summary){
        .ledger_id = group->ledger_id,
        .first_entry_id = location.first_entry_id,
        .last_entry_id = location.last_entry_id,
        .lac = lac,
        .offset_bytes = offset_bytes,
        .size_bytes = (uint32_t)size_bytes,
        .entry_count = count,
    };
    journal->runs++;
    return (int32_t)count;
}

/* How many entries of these the next run takes at most: runs are as equal in size as they can be,
 * for a rest of a few entries would be a small piece. */
static uint32_t
share(uint32_t left)
{
    const uint32_t runs = (left + FBK_RUN_ENTRIES_MAX - 1) / FBK_RUN_ENTRIES_MAX;
    return (left + runs - 1) / runs;
}

/* How many runs a group would be, and the bytes of the batch that they would take. */
static uint64_t
measure_group(const struct fbk_journal *journal, const struct fbk_journal_group *group,
              uint64_t *size_bytes)
{
    struct cursor cursor = cursor_at(&journal->plan, group->first);
    uint64_t runs = 0;
    *size_bytes = 0;
    for (uint32_t left = group->entry_count; left > 0; runs++) {
        uint64_t run_bytes;
        uint32_t count = count_run(journal, cursor, share(left), &run_bytes);
        *size_bytes += sizeof(struct fbk_record) + run_bytes;
        left -= count;
        while (count-- > 0)
            move_on(&journal->plan, &cursor, entry_at(journal, &cursor).size_bytes);
    }
    return runs;
}

static int32_t
put_group(struct fbk_journal *journal, struct fbk_journal_slot *slot,
          const struct fbk_journal_group *group)
{
    struct cursor cursor = cursor_at(&journal->plan, group->first);
    uint32_t left = group->entry_count;
    while (left > 0) {
        int32_t count = put_run(journal, slot, group, &cursor, share(left));
        if (count < 0)
            return count;
        left -= (uint32_t)count;
    }
    return 0;
}

int32_t
fbk_journal_put_loose(struct fbk_journal *journal, struct fbk_journal_slot *slot, uint32_t w,
                      uint64_t position, const struct fbk_record *record)
{
    const uint8_t *payload = fbk_ring_at(&journal->workers[w].ring, position) + sizeof *record;
    if (!fbk_record_copy_body(record, slot->buffer + slot->content_bytes + sizeof *record, payload))
        return fbk_journal_poison(journal, FBK_POISON_RING, w, position, 0);
    struct fbk_record ours = *record;
    put_record(journal, slot, &ours);
    slot->loose_bytes += ours.size_bytes;
    return 0;
}

/* Whether a group is written as runs: not if they take more than was planned, or are small pieces
 * because ids lie far apart; *room: how many runs the index can be told of. */
static bool
is_worth_runs(const struct fbk_journal *journal, const struct fbk_journal_group *group,
              uint64_t *room)
{
    uint64_t size_bytes;
    const uint64_t runs = measure_group(journal, group, &size_bytes);
    if (size_bytes > group->planned_bytes || runs > *room ||
        runs > 1 + 2 * size_bytes / journal->options.run_bytes_min)
        return false;
    *room -= runs;
    return true;
}

static int32_t
choose_runs(struct fbk_journal *journal, const struct fbk_journal_slot *slot)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    const uint64_t behind = journal->runs - fbk_cursor_load(&journal->index->runs_consumed);
    if (FBK_UNLIKELY(behind > FBK_RUN_SUMMARY_COUNT))
        return fbk_journal_poison(journal, FBK_POISON_CURSOR, journal->options.worker_count,
                                  journal->runs - behind, 0);
    uint64_t room = FBK_RUN_SUMMARY_COUNT - behind;
    for (uint32_t g = 0; g < plan->group_count; g++) {
        struct fbk_journal_group *group = &plan->groups[g];
        const bool is_large = !group->is_mixed && group->bytes >= journal->options.run_bytes_min;
        group->is_run = slot->has_runs && is_large && is_worth_runs(journal, group, &room);
        journal->taken_bytes += group->bytes;
        journal->grouped_bytes += slot->has_runs ? group->is_run * group->bytes
                                  : is_large     ? group->bytes
                                                 : 0;
    }
    return 0;
}

int32_t
fbk_journal_lay_out(struct fbk_journal *journal, struct fbk_journal_slot *slot)
{
    struct fbk_journal_batch_plan *plan = &journal->plan;
    int32_t rc = choose_runs(journal, slot);
    if (rc < 0 || !slot->has_runs)
        return rc;
    const uint32_t planned_bytes = slot->content_bytes;
    slot->content_bytes = sizeof(struct fbk_batch_header);
    for (uint32_t g = 0; g < plan->group_count; g++)
        if (plan->groups[g].is_run && (rc = put_group(journal, slot, &plan->groups[g])) < 0)
            return rc;
    for (uint32_t t = 0; t < plan->taken_count; t++) {
        const struct fbk_journal_taken *taken = &plan->taken[t];
        if (taken->group != FBK_NO_GROUP && plan->groups[taken->group].is_run)
            continue;
        rc = fbk_journal_put_loose(journal, slot, taken->worker, taken->position, &taken->record);
        if (rc < 0)
            return rc;
        slot->loose_mask |= 1u << taken->worker;
    }
    FBK_ASSERT(slot->content_bytes <= planned_bytes);
    return 0;
}
