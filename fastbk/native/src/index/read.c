/* Read, fence reads, ReadLac and WriteLac. */
#include "index/index.h"

#include "wire/wire.h"

#define LAC_BODY_WAYS 4u
#define LAC_BODY_SETS (8192u / LAC_BODY_WAYS)

uint32_t
fbk_index_no(const struct fbk_index *index, const struct fbk_ledger_state *state, uint32_t no)
{
    return fbk_decide_no(state, index->limbo, no);
}

/* ------------ one entry */

static bool
find_in_run(const struct fbk_run *run, int64_t entry_id, struct fbk_found *found)
{
    const struct fbk_run_item *item = fbk_run_find(run, entry_id);
    if (!item)
        return false;
    found->data = run->bytes + item->offset_bytes;
    found->size_bytes = item->size_bytes;
    found->status = FBK_S_OK;
    return true;
}

int32_t
fbk_index_find(struct fbk_index *index, struct fbk_index_request *request,
               const struct fbk_ledger_state *state, int64_t entry_id, struct fbk_found *found)
{
    memset(found, 0, sizeof *found);
    const struct fbk_cache_item *item = fbk_index_cached(index, state->ledger_id, entry_id);
    if (item) {
        found->data = item->data;
        found->size_bytes = item->size_bytes;
        fbk_count(&index->segment->stats, FBK_C_INDEX_CACHE_HITS, 1);
        return FBK_RAN_DONE;
    }
    if (entry_id > state->highest_entry_id || !index->store) {
        found->status = fbk_index_no(index, state, FBK_S_NO_ENTRY);
        return FBK_RAN_DONE;
    }
    if (fbk_index_request_answered(index, request) && request->requested_entry_id == entry_id) {
        if (request->disk_status == FBK_S_OK && find_in_run(request->run, entry_id, found))
            return FBK_RAN_DONE;
        found->status = request->disk_status == FBK_S_NO_ENTRY
                            ? fbk_index_no(index, state, FBK_S_NO_ENTRY)
                            : FBK_S_CANNOT_TELL;
        return FBK_RAN_DONE;
    }
    request->scan = fbk_index_stream_note(index, request, entry_id, entry_id, 0);
    if (request->scan && !request->paced && request->asker.kind == FBK_KIND_READ &&
        fbk_index_bulk_is_held(index)) {
        request->paced = true;
        fbk_index_bulk_put(index, request, true);
        return FBK_RAN_DISK; /* from here on it is one of the bulk */
    }
    found->run = fbk_store_cached(index->store, state->ledger_id, entry_id, request->scan);
    if (found->run) {
        if (find_in_run(found->run, entry_id, found)) {
            fbk_count(&index->segment->stats, FBK_C_INDEX_RUN_HITS, 1);
            if (request->scan && entry_id == found->run->last_entry_id)
                fbk_store_consumed(index->store, found->run);
            return FBK_RAN_DONE;
        }
        fbk_store_release(index->store, found->run);
        found->run = NULL;
    }
    if (!request->scan &&
        (found->run = fbk_store_read_cached(index->store, state->ledger_id, entry_id)) != NULL) {
        find_in_run(found->run, entry_id, found);
        fbk_count(&index->segment->stats, FBK_C_INDEX_DISK_JOBS, 1);
        return FBK_RAN_DONE;
    }
    return fbk_index_request_disk(index, request, entry_id, entry_id);
}

static void
release(struct fbk_index *index, struct fbk_found *found)
{
    if (found->run)
        fbk_store_release(index->store, found->run);
    found->run = NULL;
}

static void
count_read(struct fbk_index *index, uint32_t size_bytes)
{
    fbk_count(&index->segment->stats, FBK_C_INDEX_READ_ENTRIES, 1);
    fbk_count(&index->segment->stats, FBK_C_INDEX_READ_BYTES, size_bytes);
}

int32_t
fbk_index_run_read(struct fbk_index *index, struct fbk_index_request *request)
{
    const struct fbk_asker *asker = &request->asker;
    struct fbk_ledger_state *state = fbk_index_ledger(index, request->ledger_id);
    struct fbk_found found = {0};
    if (!fbk_index_is_here(state)) {
        found.status = fbk_index_no(index, state, FBK_S_NO_LEDGER);
    } else {
        /* Resolved once: what comes in later is not what was asked for.  Which was the highest
         * can't be told in limbo. */
        if (request->first_entry_id == -1 && !(state->flags & FBK_LEDGER_LIMBO))
            request->first_entry_id = state->highest_entry_id;
        if (request->first_entry_id < 0) {
            found.status = fbk_index_no(index, state, FBK_S_NO_ENTRY);
        } else {
            int32_t ran = fbk_index_find(index, request, state, request->first_entry_id, &found);
            if (ran != FBK_RAN_DONE)
                return ran;
        }
    }
    if (found.status != FBK_S_OK) {
        bool done = fbk_index_reply_status(index, asker, found.status);
        if (done)
            fbk_count(&index->segment->stats, FBK_C_INDEX_READS, 1);
        return done ? FBK_RAN_DONE : FBK_RAN_LATER;
    }
    uint8_t *at = fbk_index_reply_begin(index, asker->worker, fbk_wire_read_size(found.size_bytes));
    if (at) {
        uint32_t bytes = fbk_wire_put_read(at, asker->request_id, FBK_S_OK, request->first_entry_id,
                                           state->lac, found.data, found.size_bytes, NULL);
        fbk_index_reply_end(index, asker, bytes, FBK_S_OK);
        fbk_count(&index->segment->stats, FBK_C_INDEX_READS, 1);
        count_read(index, found.size_bytes);
        if (!request->noted) /* a write cache had it: a tail read */
            fbk_pace_observe(&index->pace, FBK_PACE_TAIL,
                             (uint32_t)(fbk_now_ns() / 1000) - asker->received_us);
    }
    release(index, &found);
    return at ? FBK_RAN_DONE : FBK_RAN_LATER;
}

/* ------------ the LAC */

static struct fbk_lac_body *
lac_set(const struct fbk_index *index, int64_t ledger_id)
{
    uint64_t hash = ((uint64_t)ledger_id ^ index->options.seed) * 0x9e3779b97f4a7c15ull;
    return &index->lac_bodies[((hash >> 32) % LAC_BODY_SETS) * LAC_BODY_WAYS];
}

static const struct fbk_lac_body *
lac_body_of(const struct fbk_index *index, int64_t ledger_id)
{
    const struct fbk_lac_body *set = lac_set(index, ledger_id);
    for (uint32_t n = 0; n < LAC_BODY_WAYS; n++)
        if (set[n].size_bytes > 0 && set[n].ledger_id == ledger_id)
            return &set[n];
    return NULL;
}

static bool
must_wait(const struct fbk_index_request *request, const struct fbk_ledger_state *state)
{
    const uint32_t never_again = FBK_LEDGER_FENCED | FBK_LEDGER_DELETED | FBK_LEDGER_LIMBO;
    if (request->timeout_ms == 0 || (state && (state->flags & never_again)))
        return false;
    return !state || state->lac <= request->previous_lac;
}

/* The entry that a ReadLac reply carries: the piggybacked one, or the highest; -1 = none. */
static int64_t
entry_to_carry(const struct fbk_index_request *request, const struct fbk_ledger_state *state)
{
    if (!(request->flags & FBK_FLAG_PIGGYBACK))
        return state->highest_entry_id;
    if (request->previous_lac < -1 || state->lac <= request->previous_lac)
        return -1;
    return request->previous_lac + 1;
}

/* An entry of the largest size and the body do not fit into one frame: what proves the lower LAC
 * stays behind. */
static void
keep_to_a_frame(const struct fbk_index *index, uint32_t *body_bytes, int64_t body_lac,
                struct fbk_found *entry)
{
    if (FBK_LIKELY(fbk_wire_read_lac_size(*body_bytes, entry->size_bytes) <=
                   index->options.frame_size_bytes_max))
        return;
    if (body_lac < (int64_t)fbk_load_be64(entry->data + 16))
        *body_bytes = 0;
    else
        entry->size_bytes = 0;
}

static int32_t
answer_read_lac(struct fbk_index *index, struct fbk_index_request *request,
                const struct fbk_ledger_state *state, const struct fbk_found *found,
                int64_t entry_id)
{
    const struct fbk_asker *asker = &request->asker;
    const struct fbk_lac_body *body = lac_body_of(index, state->ledger_id);
    struct fbk_found entry = *found;
    uint32_t body_bytes = body ? body->size_bytes : 0;
    if (body_bytes > 0 && entry.size_bytes > 0)
        keep_to_a_frame(index, &body_bytes, body->lac, &entry);
    uint8_t *at = fbk_index_reply_begin(index, asker->worker,
                                        fbk_wire_read_lac_size(body_bytes, entry.size_bytes));
    if (!at)
        return FBK_RAN_LATER;
    uint32_t bytes = fbk_wire_put_read_lac(
        at, asker->request_id, FBK_S_OK, state->lac, (state->flags & FBK_LEDGER_FENCED) != 0,
        body_bytes > 0 ? body->bytes : NULL, body_bytes, entry.size_bytes > 0 ? entry_id : -1,
        entry.data, entry.size_bytes, NULL);
    fbk_index_reply_end(index, asker, bytes, FBK_S_OK);
    fbk_count(&index->segment->stats, FBK_C_INDEX_LAC_READS, 1);
    return FBK_RAN_DONE;
}

int32_t
fbk_index_run_read_lac(struct fbk_index *index, struct fbk_index_request *request)
{
    struct fbk_ledger_state *state = fbk_index_ledger(index, request->ledger_id);
    if (must_wait(request, state)) {
        if (fbk_index_wait(index, request))
            return FBK_RAN_DONE;
        fbk_count(&index->segment->stats, FBK_C_INDEX_WAITS_REFUSED, 1);
        return fbk_index_reply_status(index, &request->asker, FBK_S_TOO_MANY_REQUESTS)
                   ? FBK_RAN_DONE
                   : FBK_RAN_LATER;
    }
    request->timeout_ms = 0;
    if (request->asker.is_poll && !request->asker.is_started) {
        request->asker.is_started = true;
        request->asker.started_us = (uint32_t)(fbk_now_ns() / 1000);
    }
    if (!fbk_index_is_here(state) || (state->flags & FBK_LEDGER_LIMBO)) {
        /* INV-X4: a LAC below the one that was lost would be taken for the whole truth. */
        uint32_t status = fbk_index_no(index, state, FBK_S_NO_LEDGER);
        return fbk_index_reply_status(index, &request->asker, status) ? FBK_RAN_DONE
                                                                      : FBK_RAN_LATER;
    }
    struct fbk_found found = {0};
    if (!request->resolved) {
        request->first_entry_id = entry_to_carry(request, state);
        request->resolved = true;
    }
    if (request->first_entry_id >= 0) {
        int32_t ran = fbk_index_find(index, request, state, request->first_entry_id, &found);
        if (ran != FBK_RAN_DONE)
            return ran;
        /* A piggybacked entry that lives on other bookies only is simply not carried. */
        if (found.status == FBK_S_CANNOT_TELL && !(request->flags & FBK_FLAG_PIGGYBACK))
            return fbk_index_reply_status(index, &request->asker, found.status) ? FBK_RAN_DONE
                                                                                : FBK_RAN_LATER;
    }
    int32_t ran = answer_read_lac(index, request, state, &found, request->first_entry_id);
    if (ran == FBK_RAN_DONE && (request->flags & FBK_FLAG_PIGGYBACK) &&
        request->first_entry_id >= 0 && found.status != FBK_S_OK)
        fbk_count(&index->segment->stats, FBK_C_INDEX_PIGGYBACKS_EMPTY, 1);
    release(index, &found);
    return ran;
}

static void
keep_lac_body(struct fbk_index *index, int64_t ledger_id, int64_t lac, const uint8_t *body,
              uint32_t body_bytes)
{
    struct fbk_lac_body *set = lac_set(index, ledger_id);
    struct fbk_lac_body *slot = &set[0];
    for (uint32_t n = 0; n < LAC_BODY_WAYS; n++) {
        if (set[n].size_bytes > 0 && set[n].ledger_id == ledger_id) {
            slot = &set[n];
            break;
        }
        /* empty, or written longest ago: losing it only delays visibility */
        if (set[n].age < slot->age)
            slot = &set[n];
    }
    if (slot->size_bytes > 0 && slot->ledger_id == ledger_id && slot->lac > lac)
        return;
    slot->ledger_id = ledger_id;
    slot->lac = lac;
    slot->size_bytes = body_bytes;
    slot->age = ++index->lac_age;
    memcpy(slot->bytes, body, body_bytes);
}

uint32_t
fbk_index_lacs_bytes_max(void)
{
    return LAC_BODY_SETS * LAC_BODY_WAYS * (1 + FBK_LAC_BODY_BYTES_MAX);
}

uint32_t
fbk_index_lacs_kept(const struct fbk_index *index)
{
    return index->lac_age;
}

uint32_t
fbk_index_lacs(const struct fbk_index *index, uint8_t *out)
{
    uint8_t *at = out;
    for (uint32_t n = 0; n < LAC_BODY_SETS * LAC_BODY_WAYS; n++) {
        const struct fbk_lac_body *slot = &index->lac_bodies[n];
        if (slot->size_bytes == 0)
            continue;
        *at++ = (uint8_t)slot->size_bytes;
        memcpy(at, slot->bytes, slot->size_bytes);
        at += slot->size_bytes;
    }
    return (uint32_t)(at - out);
}

uint32_t
fbk_index_put_lac(struct fbk_index *index, const uint8_t *body, uint32_t body_bytes)
{
    if (body_bytes < 16 || body_bytes > FBK_LAC_BODY_BYTES_MAX)
        return 0;
    int64_t ledger_id = (int64_t)fbk_load_be64(body);
    int64_t lac = (int64_t)fbk_load_be64(body + 8);
    struct fbk_ledger_state *state = ledger_id < 0 ? NULL : fbk_index_ledger(index, ledger_id);
    if (lac < 0 || !fbk_index_is_here(state) || (state->flags & FBK_LEDGER_LIMBO))
        return 0;
    keep_lac_body(index, ledger_id, lac, body, body_bytes);
    if (lac > state->lac) {
        fbk_index_touch(index, state);
        state->lac = lac;
    }
    return 1;
}

void
fbk_index_forget_lac(struct fbk_index *index, int64_t ledger_id)
{
    struct fbk_lac_body *set = lac_set(index, ledger_id);
    for (uint32_t n = 0; n < LAC_BODY_WAYS; n++)
        if (set[n].size_bytes > 0 && set[n].ledger_id == ledger_id)
            set[n] = (struct fbk_lac_body){.ledger_id = -1};
}

static uint32_t
judge_lac(const struct fbk_index *index, const struct fbk_ledger_state *state,
          const struct fbk_record *record, const uint8_t *body)
{
    if (!fbk_index_is_here(state) || (state->flags & FBK_LEDGER_LIMBO))
        /* nothing journaled could say whose key it is */
        return fbk_index_no(index, state, FBK_S_NO_LEDGER);
    if ((state->flags & FBK_LEDGER_HAS_KEY) &&
        !fbk_master_key_equal(state->master_key, record->master_key))
        return FBK_S_UNAUTHORIZED;
    if (record->payload_bytes < 16 || record->payload_bytes > FBK_LAC_BODY_BYTES_MAX ||
        record->entry_id < -1 || fbk_load_be64(body) != (uint64_t)record->ledger_id ||
        fbk_load_be64(body + 8) != (uint64_t)record->entry_id)
        return FBK_S_BAD_REQUEST;
    return FBK_S_OK;
}

bool
fbk_index_write_lac(struct fbk_index *index, const struct fbk_asker *asker,
                    const struct fbk_record *record, const uint8_t *body)
{
    struct fbk_ledger_state *state = fbk_index_ledger(index, record->ledger_id);
    uint32_t status = judge_lac(index, state, record, body);
    if (!fbk_index_reply_status(index, asker, status))
        return false;
    fbk_count(&index->segment->stats, FBK_C_INDEX_LAC_WRITES, 1);
    if (status != FBK_S_OK)
        return true;
    keep_lac_body(index, record->ledger_id, record->entry_id, body, record->payload_bytes);
    if (record->entry_id > state->lac) {
        fbk_index_touch(index, state);
        state->lac = record->entry_id;
        fbk_index_wake(index, state);
    }
    return true;
}
