/* From a parsed request to a record in a lane, or to an answer at once: one function a kind of
 * request.
 *
 * Nothing here waits: what has no credit or no room is put back and tried again when the index has
 * moved. */
#include "worker/worker.h"

#include "base/digest.h"
#include "base/record.h"
#include "wire/schema.h"

#define LONG_POLL_MS_MAX 60000u
#define LAC_BODY_BYTES_MIN 16u
#define LAC_BODY_BYTES_MAX 64u

static enum fbk_outcome
refuse(struct fbk_worker *worker, struct fbk_connection *connection,
       const struct fbk_request *request, uint32_t status)
{
    switch (status) {
    case FBK_S_BAD_DIGEST:
        fbk_worker_note(worker, FBK_C_WORKER_BAD_DIGEST);
        if (connection->is_apache && fbk_digests_doubt(&worker->digests, request->ledger_id))
            fbk_connection_todo(worker, connection, FBK_DO_DIGESTS);
        break;
    case FBK_S_READ_ONLY: fbk_worker_note(worker, FBK_C_WORKER_REFUSED_READ_ONLY); break;
    case FBK_S_UNAUTHORIZED: fbk_worker_note(worker, FBK_C_WORKER_REFUSED_KEY); break;
    case FBK_S_FORBIDDEN: fbk_worker_note(worker, FBK_C_WORKER_REFUSED_RIGHTS); break;
    case FBK_S_UNSUPPORTED: fbk_worker_note(worker, FBK_C_WORKER_REFUSED_UNSUPPORTED); break;
    case FBK_S_TOO_LARGE: fbk_worker_note(worker, FBK_C_WORKER_TOO_LARGE); break;
    default: fbk_worker_note(worker, FBK_C_WORKER_BAD_REQUEST); break;
    }
    fbk_worker_finish_refused(worker, connection, request);
    return fbk_answer(status);
}

/* ------------ adds */

/* Whether an entry's own ids are the ones asked for; it has at least its header. */
static bool
is_entry_of(const uint8_t *entry, int64_t ledger_id, int64_t entry_id)
{
    return (int64_t)fbk_load_be64(entry) == ledger_id &&
           (int64_t)fbk_load_be64(entry + 8) == entry_id;
}

/* Larger ones fit into a frame by a layout that takes less around them, and then into no reply. */
static bool
is_entry_too_large(const struct fbk_worker *worker, uint32_t entry_bytes)
{
    return entry_bytes > worker->options.frame_size_bytes_max - FBK_ENTRY_ROOM_BYTES;
}

/* What Add and AddBatch have in common; FBK_S_OK when all is in range. */
static uint32_t
check_add(const struct fbk_worker *worker, const struct fbk_lane *lane,
          const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->entry_id < 0 ||
        (request->flags & ~(FBK_FLAG_RECOVERY | FBK_FLAG_DEFERRED_SYNC)) != 0 ||
        fbk_digest_bytes(request->digest_type) < 0)
        return FBK_S_BAD_REQUEST;
    if (request->master_key == NULL)
        return FBK_S_UNAUTHORIZED;
    if (worker->options.is_reads_only)
        return FBK_S_READ_ONLY;
    if (!(request->flags & FBK_FLAG_RECOVERY) && fbk_cursor_load(&lane->index->reads_only) != 0)
        return FBK_S_READ_ONLY;
    return FBK_S_OK;
}

/* Entries whose digest says nothing here: it is not known, or only readers can check it. */
static void
count_unverified(struct fbk_worker *worker, const struct fbk_request *request, uint32_t entry_count)
{
    if (request->digest_type == FBK_DIGEST_NONE || request->digest_type == FBK_DIGEST_HMAC)
        fbk_count(worker->stats, FBK_C_WORKER_ADDS_UNVERIFIED, entry_count);
}

/* A normal add behind others that wait for credit would take it from under their noses. */
static bool
must_queue(const struct fbk_worker *worker, const struct fbk_lane *lane,
           const struct fbk_connection *connection, bool is_normal)
{
    return is_normal && worker->lines[FBK_LINE_ADD + lane->number].count > 0 &&
           worker->serving != connection;
}

static enum fbk_outcome
dispatch_add(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
             const struct fbk_request *request)
{
    uint32_t status = check_add(worker, lane, request);
    uint32_t entry_bytes = request->body_bytes;
    if (status == FBK_S_OK &&
        (entry_bytes < FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(request->digest_type) ||
         !is_entry_of(request->body, request->ledger_id, request->entry_id)))
        status = FBK_S_BAD_REQUEST;
    if (status == FBK_S_OK && is_entry_too_large(worker, entry_bytes))
        status = FBK_S_TOO_LARGE;
    if (status != FBK_S_OK)
        return refuse(worker, connection, request, status);
    bool is_normal = !(request->flags & FBK_FLAG_RECOVERY);
    uint64_t cost = fbk_record_cost(entry_bytes, 1);
    uint64_t size_bytes = sizeof(struct fbk_record) + fbk_round_up(entry_bytes, 8);
    if (!fbk_quota_allows(worker, connection, request))
        return FBK_WAIT_QUOTA;
    if (must_queue(worker, lane, connection, is_normal) ||
        !fbk_get_add_room(worker, lane, is_normal, size_bytes, cost))
        return FBK_WAIT_ADD;
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_ADD);
    uint8_t *payload = fbk_ring_at(&lane->add_ring, lane->written) + sizeof record;
    status = (uint32_t)fbk_digest_copy_check(request->digest_type, payload, request->body,
                                             entry_bytes, &record.body_crc);
    if (status != FBK_S_OK)
        return refuse(worker, connection, request, status);
    record.payload_bytes = entry_bytes;
    record.entry_count = 1;
    lane->cost_written += is_normal ? cost : 0;
    if (FBK_UNLIKELY(!is_normal))
        fbk_audit_recovery(worker, connection, request->ledger_id);
    fbk_quota_charge(worker, connection, request, 1);
    fbk_worker_note(worker, FBK_C_WORKER_ADDS);
    count_unverified(worker, request, 1);
    return fbk_place_add(worker, lane, connection, &record);
}

/* Sizes and ids of every entry, before anything is written. */
static uint32_t
check_batch(const struct fbk_worker *worker, const struct fbk_request *request)
{
    uint32_t count = request->entry_count;
    if (count == 0 || count > worker->options.batch_entries_max ||
        request->entry_id > INT64_MAX - (int64_t)(count - 1))
        return FBK_S_BAD_REQUEST;
    uint32_t size_bytes_min =
        FBK_ENTRY_HEADER_BYTES + (uint32_t)fbk_digest_bytes(request->digest_type);
    uint64_t at = 0;
    uint32_t status = FBK_S_OK;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t size_bytes = fbk_load_u32(request->entry_sizes + 4ull * i);
        if (size_bytes < size_bytes_min || at + size_bytes > request->body_bytes ||
            !is_entry_of(request->body + at, request->ledger_id, request->entry_id + (int64_t)i))
            return FBK_S_BAD_REQUEST;
        if (is_entry_too_large(worker, size_bytes))
            status = FBK_S_TOO_LARGE;
        at += size_bytes;
    }
    return at == request->body_bytes ? status : FBK_S_BAD_REQUEST;
}

static enum fbk_outcome
dispatch_add_batch(struct fbk_worker *worker, struct fbk_lane *lane,
                   struct fbk_connection *connection, const struct fbk_request *request)
{
    uint32_t status = check_add(worker, lane, request);
    if (status == FBK_S_OK)
        status = check_batch(worker, request);
    if (status != FBK_S_OK)
        return refuse(worker, connection, request, status);
    bool is_normal = !(request->flags & FBK_FLAG_RECOVERY);
    uint64_t table_bytes = sizeof(struct fbk_batch_item) * (uint64_t)request->entry_count;
    uint64_t payload_bytes = table_bytes + request->body_bytes;
    uint64_t cost = fbk_record_cost((uint32_t)payload_bytes, request->entry_count);
    uint64_t size_bytes = sizeof(struct fbk_record) + fbk_round_up(payload_bytes, 8);
    /* Its table can make a record larger than its frame was; the journal's buffers are made for
     * frames. */
    if (size_bytes > sizeof(struct fbk_record) + worker->options.frame_size_bytes_max)
        return refuse(worker, connection, request, FBK_S_TOO_LARGE);
    if (!fbk_quota_allows(worker, connection, request))
        return FBK_WAIT_QUOTA;
    if (must_queue(worker, lane, connection, is_normal) ||
        !fbk_get_add_room(worker, lane, is_normal, size_bytes, cost))
        return FBK_WAIT_ADD;
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_ADD_BATCH);
    uint8_t *table = fbk_ring_at(&lane->add_ring, lane->written) + sizeof record;
    uint64_t at = 0;
    for (uint32_t i = 0; i < request->entry_count; i++) {
        struct fbk_batch_item item = {.size_bytes = fbk_load_u32(request->entry_sizes + 4ull * i)};
        status = (uint32_t)fbk_digest_copy_check(request->digest_type, table + table_bytes + at,
                                                 request->body + at, item.size_bytes, &item.crc);
        if (status != FBK_S_OK)
            return refuse(worker, connection, request, status);
        memcpy(table + sizeof item * i, &item, sizeof item);
        at += item.size_bytes;
    }
    record.payload_bytes = (uint32_t)payload_bytes;
    record.entry_count = request->entry_count;
    record.body_crc = fbk_crc32c(0, table, table_bytes);
    lane->cost_written += is_normal ? cost : 0;
    if (FBK_UNLIKELY(!is_normal))
        fbk_audit_recovery(worker, connection, request->ledger_id);
    fbk_quota_charge(worker, connection, request, request->entry_count);
    fbk_worker_note(worker, FBK_C_WORKER_ADD_BATCHES);
    count_unverified(worker, request, request->entry_count);
    return fbk_place_add(worker, lane, connection, &record);
}

/* Fences and barriers: into the add ring, whose order they are part of, past credit. */
static enum fbk_outcome
dispatch_ordered(struct fbk_worker *worker, struct fbk_lane *lane,
                 struct fbk_connection *connection, const struct fbk_request *request, uint8_t kind)
{
    if (worker->options.is_reads_only)
        return refuse(worker, connection, request, FBK_S_READ_ONLY);
    if (kind == FBK_KIND_FENCE && !fbk_quota_allows(worker, connection, request))
        return FBK_WAIT_QUOTA;
    if (!fbk_get_add_room(worker, lane, false, sizeof(struct fbk_record), 0))
        return FBK_WAIT_ADD;
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, kind);
    fbk_worker_note(worker, kind == FBK_KIND_FENCE ? FBK_C_WORKER_FENCES : FBK_C_WORKER_FORCES);
    if (kind == FBK_KIND_FENCE) {
        fbk_quota_charge(worker, connection, request, 0);
        fbk_audit_note(worker, connection, FBK_AUDIT_FENCE, request->ledger_id, FBK_S_OK);
    }
    return fbk_place_add(worker, lane, connection, &record);
}

/* ------------ reads and the rest */

/* Of a type that is known: a body of another length has another type's digest. */
static bool
is_lac_proven(const struct fbk_request *request)
{
    return request->digest_type == FBK_DIGEST_NONE ||
           fbk_digest_check_lac(request->digest_type, request->body, request->body_bytes) ==
               FBK_S_OK;
}

static enum fbk_outcome
dispatch_read(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
              const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->entry_id < -1 ||
        (request->flags & ~(FBK_FLAG_FENCE | FBK_FLAG_HIGH_PRIORITY)) != 0)
        return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
    if (request->flags & FBK_FLAG_FENCE) {
        if (request->master_key == NULL)
            return refuse(worker, connection, request, FBK_S_UNAUTHORIZED);
        return dispatch_ordered(worker, lane, connection, request, FBK_KIND_FENCE);
    }
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_READ);
    enum fbk_outcome outcome = fbk_place_request(worker, lane, connection, &record, NULL, 0);
    if (outcome == FBK_DONE)
        fbk_worker_note(worker, FBK_C_WORKER_READS);
    return outcome;
}

static enum fbk_outcome
dispatch_read_batch(struct fbk_worker *worker, struct fbk_lane *lane,
                    struct fbk_connection *connection, const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->entry_id < 0 || request->other_id < request->entry_id ||
        request->count_max == 0)
        return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
    const struct fbk_read_batch_args args = {
        .last_entry_id = request->other_id,
        .entry_count_max = request->count_max,
        .size_bytes_max = request->size_bytes_max,
    };
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_READ_BATCH);
    enum fbk_outcome outcome =
        fbk_place_request(worker, lane, connection, &record, &args, sizeof args);
    if (outcome == FBK_DONE)
        fbk_worker_note(worker, FBK_C_WORKER_READS);
    return outcome;
}

static enum fbk_outcome
dispatch_read_lac(struct fbk_worker *worker, struct fbk_lane *lane,
                  struct fbk_connection *connection, const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->other_id < -1 ||
        request->timeout_ms > LONG_POLL_MS_MAX || (request->flags & ~FBK_FLAG_PIGGYBACK) != 0)
        return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
    const struct fbk_read_lac_args args = {
        .previous_lac = request->other_id,
        .timeout_ms = request->timeout_ms,
        .flags = request->flags,
    };
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_READ_LAC);
    record.entry_id = request->other_id;
    enum fbk_outcome outcome =
        fbk_place_request(worker, lane, connection, &record, &args, sizeof args);
    if (outcome == FBK_DONE) {
        connection->polls++;
        connection->poll_lanes |= (uint8_t)(1u << lane->number);
        worker->polls++;
        fbk_worker_note(worker, FBK_C_WORKER_OTHER_REQUESTS);
    }
    return outcome;
}

static enum fbk_outcome
dispatch_write_lac(struct fbk_worker *worker, struct fbk_lane *lane,
                   struct fbk_connection *connection, const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->entry_id < 0 ||
        request->body_bytes < LAC_BODY_BYTES_MIN || request->body_bytes > LAC_BODY_BYTES_MAX ||
        !is_entry_of(request->body, request->ledger_id, request->entry_id))
        return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
    if (request->master_key == NULL)
        return refuse(worker, connection, request, FBK_S_UNAUTHORIZED);
    if (!is_lac_proven(request))
        return refuse(worker, connection, request, FBK_S_BAD_DIGEST);
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_WRITE_LAC);
    enum fbk_outcome outcome =
        fbk_place_request(worker, lane, connection, &record, request->body, request->body_bytes);
    if (outcome == FBK_DONE)
        fbk_worker_note(worker, FBK_C_WORKER_OTHER_REQUESTS);
    return outcome;
}

static enum fbk_outcome
dispatch_list(struct fbk_worker *worker, struct fbk_lane *lane, struct fbk_connection *connection,
              const struct fbk_request *request)
{
    if (request->ledger_id < 0 || request->entry_id < 0 || request->count_max == 0)
        return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
    struct fbk_record record;
    fbk_start_record(&record, worker, connection, request, FBK_KIND_LIST);
    record.entry_count = request->count_max;
    enum fbk_outcome outcome = fbk_place_request(worker, lane, connection, &record, NULL, 0);
    if (outcome == FBK_DONE)
        fbk_worker_note(worker, FBK_C_WORKER_OTHER_REQUESTS);
    return outcome;
}

enum fbk_outcome
fbk_worker_dispatch(struct fbk_worker *worker, struct fbk_connection *connection,
                    const struct fbk_request *request)
{
    struct fbk_lane *lane = fbk_lane_of(worker, request->ledger_id);
    connection->lane = lane->number;
    const uint8_t right = fbk_right_for(request);
    /* INV-N2, INV-N4 */
    if (FBK_UNLIKELY(right & ~connection->rights) &&
        !fbk_tags_allow(connection, right, request->ledger_id)) {
        fbk_audit_denial(worker, connection, right, request->ledger_id);
        return refuse(worker, connection, request, FBK_S_FORBIDDEN);
    }
    switch (request->body_type) {
    case FBK_REQUEST_BODY_ADD: return dispatch_add(worker, lane, connection, request);
    case FBK_REQUEST_BODY_ADD_BATCH: return dispatch_add_batch(worker, lane, connection, request);
    case FBK_REQUEST_BODY_READ: return dispatch_read(worker, lane, connection, request);
    case FBK_REQUEST_BODY_READ_BATCH: return dispatch_read_batch(worker, lane, connection, request);
    case FBK_REQUEST_BODY_READ_LAC: return dispatch_read_lac(worker, lane, connection, request);
    case FBK_REQUEST_BODY_WRITE_LAC: return dispatch_write_lac(worker, lane, connection, request);
    case FBK_REQUEST_BODY_LIST_ENTRIES: return dispatch_list(worker, lane, connection, request);
    case FBK_REQUEST_BODY_FORCE:
        if (request->ledger_id < 0)
            return refuse(worker, connection, request, FBK_S_BAD_REQUEST);
        return dispatch_ordered(worker, lane, connection, request, FBK_KIND_FORCE);
    case FBK_REQUEST_BODY_HELLO: /* a new token; without one Python refuses it */
    case FBK_REQUEST_BODY_INFO: return FBK_FOR_PYTHON;
    case FBK_REQUEST_BODY_PING: return fbk_answer(FBK_S_OK);
    default: return refuse(worker, connection, request, FBK_S_UNSUPPORTED);
    }
}
