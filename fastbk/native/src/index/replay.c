/* Taking journal batches in at start.  The same rules as live: ids above the ledger's highest are
 * new, others are looked for, and what is stored already stays; so a replay that was cut off may be
 * repeated from the mark at any time. */
#include "index/index.h"

#include "base/digest.h"
#include "base/fault.h"
#include "journal/format.h"

#include <poll.h>
#include <unistd.h>

#define POLL_MS 10
#define TICKET_REPLAY 1u
/* a disk that fails to read gets more than one chance before that is taken for damage */
#define READS_MAX 3u
/* published by one flush: what comes later is looked for among them */
#define RUNS_MAX 1024u

/* Waits for the job: with the reader threads if they run, else by doing it here. */
static void
wait_for_disk(struct fbk_index *index, struct fbk_store_result *result)
{
    while (fbk_store_collect(index->store, result, 1) == 0) {
        if (fbk_store_reader_step(index->store) > 0)
            continue;
        struct pollfd ready = {.fd = index->options.reader_fd, .events = POLLIN};
        uint64_t rung;
        if (poll(&ready, 1, POLL_MS) > 0 && read(ready.fd, &rung, sizeof rung) < 0 &&
            errno != EAGAIN)
            return;
    }
}

/* FBK_S_OK: stored already, *same says whether with the same data; NO_ENTRY; CANNOT_TELL. */
static uint32_t
compare_with_disk(struct fbk_index *index, int64_t ledger_id, int64_t entry_id,
                  const uint8_t *entry, uint32_t size_bytes, uint8_t digest_type, bool *same)
{
    const struct fbk_run *run = fbk_store_cached(index->store, ledger_id, entry_id, false);
    struct fbk_store_result result = {.run = run, .status = FBK_S_OK};
    while (!run) {
        memset(&result, 0, sizeof result);
        if (fbk_store_submit(index->store, TICKET_REPLAY, ledger_id, entry_id, entry_id,
                             FBK_LANE_URGENT, 0) < 0)
            return FBK_S_CANNOT_TELL;
        wait_for_disk(index, &result);
        if (result.status == FBK_S_TOO_MANY_REQUESTS)
            continue;
        if (result.status != FBK_S_OK)
            return (uint32_t)result.status;
        run = result.run;
    }
    const struct fbk_run_item *item = fbk_run_find(run, entry_id);
    if (item)
        *same = fbk_entry_same(run->bytes + item->offset_bytes, item->size_bytes, entry, size_bytes,
                               digest_type);
    fbk_store_release(index->store, run);
    return item ? FBK_S_OK : FBK_S_CANNOT_TELL;
}

/* Is it stored already?  A damaged copy does not count: the journal's is put beside it.  One that
 * merely could not be read at that moment would be overruled by a record that was refused when it
 * came (INV-A5): hence READS_MAX. */
static bool
is_stored(struct fbk_index *index, const struct fbk_record *record, int64_t entry_id,
          const uint8_t *entry, uint32_t size_bytes)
{
    /* not compared: what is on record is only counted */
    bool same = false;
    if (fbk_adopted_holds(&index->adopted, record->ledger_id, entry_id) ||
        fbk_adopted_holds(&index->sealed.adopted, record->ledger_id, entry_id))
        return true;
    const struct fbk_cache_item *item = fbk_index_cached(index, record->ledger_id, entry_id);
    if (item)
        same = fbk_entry_same(item->data, item->size_bytes, entry, size_bytes, record->digest_type);
    else {
        uint32_t status = index->store ? FBK_S_CANNOT_TELL : FBK_S_NO_ENTRY;
        for (uint32_t n = 0; n < READS_MAX && status == FBK_S_CANNOT_TELL; n++)
            status = compare_with_disk(index, record->ledger_id, entry_id, entry, size_bytes,
                                       record->digest_type, &same);
        if (status != FBK_S_OK)
            return false;
    }
    fbk_count(&index->segment->stats, same ? FBK_C_INDEX_DUPLICATES : FBK_C_INDEX_CONFLICTS, 1);
    return true;
}

/* 1: done; 0: the cache is full. */
static int32_t
replay_entry(struct fbk_index *index, struct fbk_ledger_state *state,
             const struct fbk_record *record, int64_t entry_id, const uint8_t *entry,
             uint32_t size_bytes, uint32_t crc)
{
    if (entry_id <= state->highest_entry_id &&
        is_stored(index, record, entry_id, entry, size_bytes))
        return 1;
    uint8_t *copy = fbk_cache_reserve(index->active, state->ledger_id, entry_id, size_bytes);
    if (!copy)
        return 0;
    if (fbk_crc32c_copy(0, copy, entry, size_bytes) != crc)
        return FBK_E_CORRUPT;
    fbk_cache_commit(index->active, crc);
    fbk_index_noted(index, state, entry_id, (int64_t)fbk_load_be64(entry + 16));
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRIES, 1);
    return 1;
}

/* Publishes where the run lies, in place of copying it.  Nothing of it may be stored yet; and it
 * has no gaps, so that its ids tell what it holds when what comes later is checked. */
static bool
adopt_run(struct fbk_index *index, struct fbk_ledger_state *state, const struct fbk_record *record,
          const uint8_t *bytes, const struct fbk_journal_batch *batch)
{
    struct fbk_run_header run;
    memcpy(&run, bytes, sizeof run);
    if (record->entry_id <= state->highest_entry_id ||
        run.last_entry_id - run.first_entry_id != (int64_t)record->entry_count - 1 ||
        !fbk_adopted_begin(&index->adopted, batch->file_id, run.salt,
                           batch->offset_bytes + batch->padded_bytes, 1))
        return false;
    int64_t lac = -1;
    for (uint32_t n = 0; n < record->entry_count; n++) {
        struct fbk_run_item item;
        memcpy(&item, bytes + sizeof run + n * sizeof item, sizeof item);
        const int64_t entry_lac = (int64_t)fbk_load_be64(bytes + item.offset_bytes + 16);
        if (entry_lac < item.entry_id && entry_lac > lac)
            lac = entry_lac;
    }
    fbk_adopted_add(&index->adopted, &(struct fbk_location){
                                         .ledger_id = run.ledger_id,
                                         .first_entry_id = run.first_entry_id,
                                         .last_entry_id = run.last_entry_id,
                                         .log_id = run.log_id,
                                         .offset_bytes = run.offset_bytes,
                                         .size_bytes = run.size_bytes,
                                         .entry_count = run.entry_count,
                                     });
    fbk_index_noted(index, state, run.last_entry_id, lac);
    fbk_count(&index->segment->stats, FBK_C_INDEX_ENTRIES, record->entry_count);
    return true;
}

static int32_t
replay_run(struct fbk_index *index, struct fbk_ledger_state *state, const struct fbk_record *record,
           const uint8_t *run)
{
    for (uint32_t n = 0; n < record->entry_count; n++) {
        struct fbk_run_item item;
        memcpy(&item, run + sizeof(struct fbk_run_header) + n * sizeof item, sizeof item);
        int32_t rc = replay_entry(index, state, record, item.entry_id, run + item.offset_bytes,
                                  item.size_bytes, item.crc);
        if (rc <= 0)
            return rc;
    }
    return 1;
}

static int32_t
replay_add(struct fbk_index *index, struct fbk_ledger_state *state, const struct fbk_record *record,
           const uint8_t *payload)
{
    if (record->kind == FBK_KIND_RUN)
        return replay_run(index, state, record, payload);
    if (record->kind == FBK_KIND_ADD)
        return replay_entry(index, state, record, record->entry_id, payload, record->payload_bytes,
                            record->body_crc);
    const uint8_t *entry = payload + record->entry_count * sizeof(struct fbk_batch_item);
    for (uint32_t n = 0; n < record->entry_count; n++) {
        struct fbk_batch_item item;
        memcpy(&item, payload + n * sizeof item, sizeof item);
        int32_t rc = replay_entry(index, state, record, record->entry_id + n, entry,
                                  item.size_bytes, item.crc);
        if (rc <= 0)
            return rc;
        entry += item.size_bytes;
    }
    return 1;
}

static int32_t
replay_record(struct fbk_index *index, const struct fbk_record *record, const uint8_t *payload,
              const struct fbk_journal_batch *batch)
{
    bool is_add = record->kind == FBK_KIND_ADD || record->kind == FBK_KIND_ADD_BATCH ||
                  record->kind == FBK_KIND_RUN;
    if (!is_add && record->kind != FBK_KIND_FENCE)
        return 1;
    struct fbk_ledger_state *state = fbk_index_ledger_make(index, record->ledger_id);
    if (!state)
        return FBK_E_FULL;
    fbk_index_touch(index, state);
    fbk_decide_replay(state, record);
    if (record->kind == FBK_KIND_FENCE ||
        (record->kind == FBK_KIND_RUN && adopt_run(index, state, record, payload, batch)))
        return 1;
    return replay_add(index, state, record, payload);
}

void
fbk_index_replay_done(struct fbk_index *index, uint64_t sequence)
{
    index->taken_sequence = sequence;
    fbk_count(&index->segment->stats, FBK_C_INDEX_REPLAYED_BATCHES, 1);
}

/* The rest of the batch in hand: 1: all of it is in; 0: the cache is full. */
static int32_t
take_batch(struct fbk_index *index, struct fbk_index_replay *at)
{
    const struct fbk_record *record;
    index->batch_sequence = at->batch.sequence;
    for (uint32_t offset = at->taken_bytes;
         (record = fbk_journal_batch_record(&at->batch, &offset)) != NULL;) {
        int32_t rc = replay_record(index, record, fbk_record_payload(record), &at->batch);
        if (rc == 0) /* what went in of this record is found when it comes again */
            return index->active->item_count == 0 ? FBK_E_FULL : 0;
        if (rc < 0)
            return rc;
        at->taken_bytes = offset;
        fbk_count(&index->segment->stats, FBK_C_INDEX_REPLAYED_RECORDS, 1);
    }
    return 1;
}

/* The scan has checked whatever it returns, and nobody else can write to that memory: only what is
 * copied is checked again. */
int32_t
fbk_index_replay(struct fbk_index *index, struct fbk_journal_scan *scan,
                 struct fbk_index_replay *at)
{
    for (;;) {
        if (!at->has_batch) {
            int32_t rc = fbk_journal_scan_next(scan, &at->batch);
            if (rc <= 0)
                return rc < 0 ? rc : FBK_REPLAY_END;
            at->has_batch = 1;
            at->taken_bytes = 0;
        }
        int32_t rc = take_batch(index, at);
        if (rc <= 0)
            return rc < 0 ? rc : FBK_REPLAY_FULL;
        at->has_batch = 0;
        fbk_index_replay_done(index, at->batch.sequence);
        FBK_KILL_POINT("index.replay_batch");
        if ((at->pause_bytes && index->active->used_bytes >= at->pause_bytes) ||
            index->adopted.count >= RUNS_MAX)
            return FBK_REPLAY_FULL;
    }
}
