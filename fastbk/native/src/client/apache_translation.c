/* One connection of our client to one of Apache's bookies (boundary/apache_translation.h): our frames become requests of
 * Apache's protocols, and the bookie's replies become frames of ours.
 *
 * Version 3 answers carry a number: our request id, or, for what takes several requests of Apache's, that of a *context*
 * and the step in it.  Version 2 answers name the ledger and the entry only: its adds and plain reads are remembered in
 * order (struct fbk_pending_map).  A context whose answer nobody waits for stays until the bookie has answered all of it,
 * so that a late answer can't be taken for another's. */
#include "apache/apache.h"
#include "client/apache_pending.h"
#include "wire/client.h"
#include "wire/schema.h"
#include "wire/wire.h"

#include "boundary/apache_translation.h"

/* ------------------------------------------------------------------ contexts */

enum translation_kind {
    KIND_FREE,
    KIND_HELLO,
    KIND_INFO,
    KIND_POLL,  /* a read that waits; then perhaps a question for the LAC's proof */
    KIND_PROOF,
    KIND_LIST,
    KIND_RUN,   /* ReadBatch as one request of version 2 */
    KIND_BATCH, /* ReadBatch as single reads */
};

/* One read of a BATCH. */
struct translation_part {
    uint64_t from; /* the entry's bytes in `bytes` of the context */
    uint32_t size_bytes;
    uint32_t status; /* FBK_APACHE_E*, PART_WAITING */
};
#define PART_WAITING UINT32_MAX

struct translation_context {
    enum translation_kind kind;
    bool is_forgotten;
    uint64_t request_id;
    int64_t ledger_id;
    int64_t first; /* the first entry; POLL: previous_lac */
    uint32_t count_max;
    uint64_t size_bytes_max;
    bool is_piggyback;
    /* BATCH */
    uint32_t sent;
    uint32_t answered;
    bool is_over; /* no more is asked for */
    int64_t lac;
    struct translation_part *parts;
    struct fbk_bytes entries;
};

#define CONTEXTS_MAX 4096u
/* Numbers that no request of ours has: its slot (connection.py) is above the last one that is given out. */
#define ID_BASE (0xffffffull << 40)
#define PART_BITS 16u
/* Single reads of one batch under way at once, until the sizes of entries are known and after that. */
#define FIRST_READS 8u
#define READS_MAX 64u
#define BATCH_ENTRIES_MAX 4096u
#define RANGES_MAX (1u << 20)

struct fbk_apache_translation {
    uint32_t protocol;
    uint32_t frame_size_bytes_max;
    bool takes_batches;
    bool has_batch_answer;
    bool has_batch_request;
    uint64_t dropped;
    struct fbk_bytes in;      /* the beginning of a frame of the bookie's */
    struct fbk_bytes out;     /* to the bookie */
    struct fbk_bytes answers; /* to the client */
    struct fbk_pending_map pending;
    struct translation_context *contexts; /* CONTEXTS_MAX of them; those from context_end on were never used */
    uint32_t context_end;
};

/* What a request takes beside the bytes of its body, at most. */
#define REQUEST_BYTES_MAX 160u

/* NULL: CONTEXTS_MAX are under way. */
static struct translation_context *
new_context(struct fbk_apache_translation *translation, enum translation_kind kind, const struct fbk_request *asked)
{
    uint32_t at = 0;
    while (at < translation->context_end && translation->contexts[at].kind != KIND_FREE)
        at++;
    if (at == CONTEXTS_MAX)
        return NULL;
    if (at == translation->context_end)
        translation->context_end++;
    translation->contexts[at] = (struct translation_context){
        .kind = kind,
        .request_id = asked->request_id,
        .ledger_id = asked->ledger_id,
        .first = asked->entry_id,
        .lac = -1,
    };
    return &translation->contexts[at];
}

static void
end_context(struct translation_context *context)
{
    free(context->parts);
    free(context->entries.bytes);
    *context = (struct translation_context){.kind = KIND_FREE};
}

static uint64_t
id_of_part(const struct fbk_apache_translation *translation, const struct translation_context *context, uint32_t part)
{
    return ID_BASE | (uint64_t)(context - translation->contexts) << PART_BITS | part;
}

void
fbk_apache_translation_forget(struct fbk_apache_translation *translation, uint64_t request_id)
{
    for (uint32_t i = 0; i < translation->context_end; i++) {
        struct translation_context *context = &translation->contexts[i];
        if (context->kind == KIND_FREE || context->request_id != request_id)
            continue;
        context->is_forgotten = context->is_over = true;
        free(context->entries.bytes);
        context->entries = (struct fbk_bytes){0};
    }
}

/* 0, FBK_E_FULL. */
static int32_t
answer_status(struct fbk_apache_translation *translation, uint64_t request_id, uint32_t status)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, FBK_WIRE_STATUS_BYTES_MAX);
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_status(out, request_id, status);
    return 0;
}

/* ------------------------------------------------------------------ making and freeing */

struct fbk_apache_translation *
fbk_apache_translation_new(uint32_t protocol, uint32_t frame_size_bytes_max, int takes_batches)
{
    FBK_ASSERT(protocol == 2 || protocol == 3);
    struct fbk_apache_translation *translation = calloc(1, sizeof *translation);
    if (translation == NULL)
        return NULL;
    translation->protocol = protocol;
    translation->frame_size_bytes_max = frame_size_bytes_max;
    translation->takes_batches = takes_batches != 0 && protocol == 2;
    translation->contexts = calloc(CONTEXTS_MAX, sizeof *translation->contexts);
    if (translation->contexts == NULL) {
        free(translation);
        return NULL;
    }
    return translation;
}

void
fbk_apache_translation_free(struct fbk_apache_translation *translation)
{
    if (translation == NULL)
        return;
    for (uint32_t i = 0; i < translation->context_end; i++)
        end_context(&translation->contexts[i]);
    free(translation->contexts);
    free(translation->pending.items);
    free(translation->pending.heads);
    free(translation->pending.tails);
    free(translation->in.bytes);
    free(translation->out.bytes);
    free(translation->answers.bytes);
    free(translation);
}

static uint64_t
hand_out(struct fbk_bytes *buffer, const uint8_t **bytes)
{
    const uint64_t used_bytes = buffer->used_bytes;
    *bytes = buffer->bytes;
    buffer->used_bytes = 0;
    return used_bytes;
}

uint64_t
fbk_apache_translation_output(struct fbk_apache_translation *translation, const uint8_t **bytes)
{
    return hand_out(&translation->out, bytes);
}

uint64_t
fbk_apache_translation_answers(struct fbk_apache_translation *translation, const uint8_t **bytes)
{
    return hand_out(&translation->answers, bytes);
}

uint64_t
fbk_apache_translation_dropped(const struct fbk_apache_translation *translation)
{
    return translation->dropped;
}

int
fbk_apache_translation_batches(const struct fbk_apache_translation *translation)
{
    return translation->has_batch_answer ? 2 : translation->has_batch_request ? 1 : 0;
}

/* ------------------------------------------------------------------ one request of Apache's */

/* Sends it to the bookie; `id` comes back with the answer.  0, FBK_E_FULL; *status is not FBK_S_OK when it can't be sent. */
static int32_t
send_request(struct fbk_apache_translation *translation, struct fbk_apache_request *request, uint64_t id, uint32_t *status)
{
    const bool is_told_by_entry =
        translation->protocol == 2 && (request->operation == FBK_APACHE_ADD || request->operation == FBK_APACHE_READ);
    request->protocol = (uint8_t)translation->protocol;
    request->version = (uint8_t)translation->protocol;
    request->transaction_id = id;
    const uint64_t room_bytes = REQUEST_BYTES_MAX + (uint64_t)request->body_bytes;
    uint8_t *out = fbk_bytes_reserve(&translation->out, room_bytes);
    if (out == NULL)
        return FBK_E_FULL;
    const uint64_t size_bytes = fbk_apache_put_request(out, room_bytes, request);
    *status = FBK_S_OK;
    if (size_bytes == 0) {
        *status = FBK_S_UNSUPPORTED;
        return 0;
    }
    if (size_bytes > translation->frame_size_bytes_max) {
        *status = FBK_S_TOO_LARGE;
        return 0;
    }
    if (is_told_by_entry && fbk_pending_put(&translation->pending, request->operation, request->ledger_id, request->entry_id,
                                            id) != 0) {
        *status = FBK_S_TOO_MANY_REQUESTS;
        return 0;
    }
    translation->out.used_bytes += size_bytes;
    return 0;
}

#define READ_FLAG_FENCE 1u
#define READ_FLAG_HIGH_PRIORITY 2u
#define READ_LAC_FLAG_PIGGYBACK 1u
#define ADD_FLAG_RECOVERY 1u
#define INFO_TOTAL_AND_FREE 3
/* Any bookie answers a word about authentication, and one that wants none says so. */
static const uint8_t no_plugin[] = {'n', 'o', 'n', 'e'};

/* A request whose answer is a single one of Apache's: sent, or answered here. */
static int32_t
send_or_refuse(struct fbk_apache_translation *translation, struct fbk_apache_request *request, uint64_t request_id, uint64_t id)
{
    uint32_t status;
    const int32_t error = send_request(translation, request, id, &status);
    if (error != 0 || status == FBK_S_OK)
        return error;
    return answer_status(translation, request_id, status);
}

static int32_t
send_of_context(struct fbk_apache_translation *translation, struct fbk_apache_request *request,
                struct translation_context *context)
{
    uint32_t status;
    if (context == NULL)
        return 0;
    const int32_t error = send_request(translation, request, id_of_part(translation, context, 0), &status);
    if (error != 0 || status == FBK_S_OK)
        return error;
    const uint64_t request_id = context->request_id;
    end_context(context);
    return answer_status(translation, request_id, status);
}

/* ------------------------------------------------------------------ our operations */

static int32_t
send_add(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_ADD,
        .flags = (asked->flags & ADD_FLAG_RECOVERY) != 0 ? FBK_APACHE_RECOVERY | FBK_APACHE_HIGH_PRIORITY : 0,
        .ledger_id = asked->ledger_id,
        .entry_id = asked->entry_id,
        .master_key = asked->master_key,
        .body = asked->body,
        .body_bytes = asked->body_bytes,
    };
    /* Deferred sync is not asked for.  A bookie of Apache's that restarts forgets what it acknowledged and had not synced, and
     * then confirms a force all the same: what the client takes for durable would be gone. */
    return send_or_refuse(translation, &request, asked->request_id, asked->request_id);
}

static int32_t
send_read(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    const bool fences = (asked->flags & READ_FLAG_FENCE) != 0;
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_READ,
        .flags = (fences ? FBK_APACHE_FENCE : 0) |
                 (fences || (asked->flags & READ_FLAG_HIGH_PRIORITY) != 0 ? FBK_APACHE_HIGH_PRIORITY : 0),
        .ledger_id = asked->ledger_id,
        .entry_id = asked->entry_id,
        .master_key = fences ? asked->master_key : NULL,
    };
    /* Version 2 names no request in its answers: that of a plain read before it could be taken for the fence's. */
    if (translation->protocol == 2 && fences)
        return answer_status(translation, asked->request_id, FBK_S_UNSUPPORTED);
    return send_or_refuse(translation, &request, asked->request_id, asked->request_id);
}

static int32_t
send_run(struct fbk_apache_translation *translation, struct translation_context *context)
{
    const uint64_t size_bytes_max = context->size_bytes_max < INT32_MAX ? context->size_bytes_max : INT32_MAX;
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_READ_BATCH,
        .ledger_id = context->ledger_id,
        .entry_id = context->first,
        .count_max = (int32_t)context->count_max,
        .size_bytes_max = (int64_t)size_bytes_max,
    };
    context->kind = KIND_RUN;
    translation->has_batch_request = true;
    return send_of_context(translation, &request, context);
}

/* Sends as many single reads as the sizes seen so far suggest. */
static uint32_t
reads_wanted(const struct translation_context *context)
{
    if (context->is_over || context->sent == context->count_max)
        return 0;
    const uint32_t under_way = context->sent - context->answered;
    uint64_t wanted = FIRST_READS;
    if (context->entries.used_bytes != 0) {
        const uint64_t mean_bytes = context->entries.used_bytes / context->answered + 1;
        const uint64_t left_bytes =
            context->size_bytes_max > context->entries.used_bytes ? context->size_bytes_max - context->entries.used_bytes : 0;
        wanted = (left_bytes + mean_bytes - 1) / mean_bytes;
    }
    wanted = wanted < READS_MAX ? wanted : READS_MAX;
    wanted = wanted > under_way ? wanted - under_way : 0;
    const uint32_t left = context->count_max - context->sent;
    return wanted < left ? (uint32_t)wanted : left;
}

/* Sends the single reads that are due.  0, FBK_E_FULL. */
static int32_t
send_reads(struct fbk_apache_translation *translation, struct translation_context *context)
{
    for (uint32_t left = reads_wanted(context); left != 0; left--) {
        struct fbk_apache_request request = {
            .operation = FBK_APACHE_READ,
            .ledger_id = context->ledger_id,
            .entry_id = context->first + (int64_t)context->sent,
        };
        uint32_t status;
        const int32_t error = send_request(translation, &request, id_of_part(translation, context, context->sent), &status);
        if (error != 0)
            return error;
        if (status != FBK_S_OK) {
            context->is_over = true;
            break;
        }
        context->parts[context->sent++].status = PART_WAITING;
    }
    return 0;
}

static int32_t
send_batch(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    /* As numbers without a sign, so that no pair of ids overflows. */
    const uint64_t wanted = (uint64_t)asked->other_id - (uint64_t)asked->entry_id;
    if (asked->entry_id < 0 || asked->other_id < asked->entry_id || asked->count_max == 0)
        return answer_status(translation, asked->request_id, FBK_S_BAD_REQUEST);
    struct translation_context *context = new_context(translation, KIND_BATCH, asked);
    if (context == NULL)
        return answer_status(translation, asked->request_id, FBK_S_TOO_MANY_REQUESTS);
    uint32_t count_max = asked->count_max < BATCH_ENTRIES_MAX ? asked->count_max : BATCH_ENTRIES_MAX;
    if (wanted < count_max)
        count_max = (uint32_t)wanted + 1;
    context->count_max = count_max;
    /* The answer has to fit into a frame of ours. */
    context->size_bytes_max =
        asked->size_bytes_max < translation->frame_size_bytes_max ? asked->size_bytes_max : translation->frame_size_bytes_max;
    if (translation->takes_batches && count_max > 1)
        return send_run(translation, context);
    context->parts = calloc(count_max, sizeof *context->parts);
    if (context->parts == NULL)
        return FBK_E_FULL;
    const int32_t error = send_reads(translation, context);
    if (error != 0 || context->sent != 0)
        return error;
    end_context(context);
    return answer_status(translation, asked->request_id, FBK_S_TOO_MANY_REQUESTS);
}

static int32_t
send_lac(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    const bool is_piggyback = (asked->flags & READ_LAC_FLAG_PIGGYBACK) != 0;
    struct fbk_apache_request request = {.operation = FBK_APACHE_READ_LAC, .ledger_id = asked->ledger_id};
    if (translation->protocol == 2)
        return answer_status(translation, asked->request_id, FBK_S_UNSUPPORTED);
    if (asked->timeout_ms == 0 && !is_piggyback)
        return send_or_refuse(translation, &request, asked->request_id, asked->request_id);
    struct translation_context *context = new_context(translation, KIND_POLL, asked);
    if (context == NULL)
        return answer_status(translation, asked->request_id, FBK_S_TOO_MANY_REQUESTS);
    context->first = asked->other_id;
    context->is_piggyback = is_piggyback;
    request.operation = FBK_APACHE_READ;
    request.entry_id = FBK_APACHE_NO_ENTRY;
    request.flags = FBK_APACHE_HAS_PREVIOUS_LAC | (asked->timeout_ms != 0 ? FBK_APACHE_HAS_TIMEOUT : 0) |
                    (is_piggyback ? FBK_APACHE_PIGGYBACK : 0);
    request.previous_lac = asked->other_id;
    request.timeout_ms = asked->timeout_ms;
    return send_of_context(translation, &request, context);
}

/* A question that the connection's life begins with, or an operator's: anything that a bookie answers without a ledger. */
static int32_t
send_info(struct fbk_apache_translation *translation, const struct fbk_request *asked, enum translation_kind kind)
{
    struct fbk_apache_request request = {.operation = FBK_APACHE_INFO, .info_wanted = INFO_TOTAL_AND_FREE};
    if (translation->protocol == 2 && kind != KIND_HELLO)
        return answer_status(translation, asked->request_id, FBK_S_UNSUPPORTED);
    if (translation->protocol == 2) {
        request.operation = FBK_APACHE_AUTH;
        request.plugin = no_plugin;
        request.plugin_bytes = sizeof no_plugin;
    }
    struct translation_context *context = new_context(translation, kind, asked);
    if (context == NULL)
        return answer_status(translation, asked->request_id, FBK_S_TOO_MANY_REQUESTS);
    return send_of_context(translation, &request, context);
}

static int32_t
send_simple(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    struct fbk_apache_request request = {.ledger_id = asked->ledger_id};
    if (translation->protocol == 2)
        return answer_status(translation, asked->request_id, FBK_S_UNSUPPORTED);
    if (asked->body_type == FBK_REQUEST_BODY_FORCE) {
        request.operation = FBK_APACHE_FORCE;
        return send_or_refuse(translation, &request, asked->request_id, asked->request_id);
    }
    if (asked->body_type == FBK_REQUEST_BODY_WRITE_LAC) {
        request.operation = FBK_APACHE_WRITE_LAC;
        request.entry_id = asked->entry_id;
        request.master_key = asked->master_key;
        request.body = asked->body;
        request.body_bytes = asked->body_bytes;
        return send_or_refuse(translation, &request, asked->request_id, asked->request_id);
    }
    request.operation = FBK_APACHE_LIST;
    struct translation_context *context = new_context(translation, KIND_LIST, asked);
    if (context == NULL)
        return answer_status(translation, asked->request_id, FBK_S_TOO_MANY_REQUESTS);
    context->count_max = asked->count_max;
    return send_of_context(translation, &request, context);
}

static int32_t
send_one(struct fbk_apache_translation *translation, const struct fbk_request *asked)
{
    switch (asked->body_type) {
    case FBK_REQUEST_BODY_ADD: return send_add(translation, asked);
    case FBK_REQUEST_BODY_READ: return send_read(translation, asked);
    case FBK_REQUEST_BODY_READ_BATCH: return send_batch(translation, asked);
    case FBK_REQUEST_BODY_READ_LAC: return send_lac(translation, asked);
    case FBK_REQUEST_BODY_HELLO: return send_info(translation, asked, KIND_HELLO);
    case FBK_REQUEST_BODY_INFO: return send_info(translation, asked, KIND_INFO);
    case FBK_REQUEST_BODY_PING: return answer_status(translation, asked->request_id, FBK_S_OK);
    case FBK_REQUEST_BODY_WRITE_LAC:
    case FBK_REQUEST_BODY_FORCE:
    case FBK_REQUEST_BODY_LIST_ENTRIES: return send_simple(translation, asked);
    default: return answer_status(translation, asked->request_id, FBK_S_UNSUPPORTED);
    }
}

int
fbk_apache_v2_takes(const uint8_t *frame, uint64_t size_bytes)
{
    struct fbk_request asked;
    if (size_bytes > UINT32_MAX || fbk_wire_read_request(frame, (uint32_t)size_bytes, &asked) != 0)
        return 0;
    switch (asked.body_type) {
    case FBK_REQUEST_BODY_ADD: return (asked.flags & ADD_FLAG_RECOVERY) == 0;
    case FBK_REQUEST_BODY_READ: return (asked.flags & READ_FLAG_FENCE) == 0;
    case FBK_REQUEST_BODY_READ_BATCH: return 1;
    default: return 0;
    }
}

int32_t
fbk_apache_translation_send(struct fbk_apache_translation *translation, const uint8_t *frames, uint64_t size_bytes)
{
    uint64_t at = 0;
    while (at < size_bytes) {
        struct fbk_request asked;
        if (size_bytes - at < 4)
            return FBK_E_PROTOCOL;
        const uint64_t frame_bytes = 4 + (uint64_t)fbk_load_u32(frames + at);
        if (frame_bytes > size_bytes - at || frame_bytes > UINT32_MAX)
            return FBK_E_PROTOCOL;
        if (fbk_wire_read_request(frames + at, (uint32_t)frame_bytes, &asked) != 0)
            return FBK_E_PROTOCOL;
        const int32_t error = send_one(translation, &asked);
        if (error != 0)
            return error;
        at += frame_bytes;
    }
    return 0;
}

#define ENTRY_ID_AT 8u
#define ENTRY_LAC_AT 16u
#define ENTRY_HEADER_BYTES 32u
#define REPLY_BYTES_MIN 4u

static uint32_t
status_of(uint32_t status)
{
    switch (status) {
    case FBK_APACHE_EOK: return FBK_S_OK;
    case FBK_APACHE_ENOLEDGER: return FBK_S_NO_LEDGER;
    case FBK_APACHE_ENOENTRY: return FBK_S_NO_ENTRY;
    case FBK_APACHE_EBADREQ: return FBK_S_BAD_REQUEST;
    case FBK_APACHE_EUA: return FBK_S_UNAUTHORIZED;
    case FBK_APACHE_EBADVERSION: return FBK_S_UNSUPPORTED;
    case FBK_APACHE_EFENCED: return FBK_S_FENCED;
    case FBK_APACHE_EREADONLY: return FBK_S_READ_ONLY;
    case FBK_APACHE_ETOOMANYREQUESTS: return FBK_S_TOO_MANY_REQUESTS;
    case FBK_APACHE_EUNKNOWNLEDGERSTATE: return FBK_S_CANNOT_TELL;
    default: return FBK_S_IO_ERROR;
    }
}

/* The id in the entry's own bytes, which its digest covers; -1 of what can't be one. */
static int64_t
entry_id_of(const uint8_t *entry, uint32_t entry_bytes)
{
    return entry == NULL || entry_bytes < ENTRY_HEADER_BYTES ? -1 : (int64_t)fbk_load_be64(entry + ENTRY_ID_AT);
}

/* ------------------------------------------------------------------ answers with a body */

static int32_t
answer_read(struct fbk_apache_translation *translation, uint64_t request_id, const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_read_size(reply->entry_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes +=
        fbk_wire_put_read(out, request_id, FBK_S_OK, entry_id_of(reply->entry, reply->entry_bytes),
                          reply->lac == FBK_APACHE_ABSENT ? -1 : reply->lac, reply->entry, reply->entry_bytes, NULL);
    return 0;
}

static int32_t
answer_lac(struct fbk_apache_translation *translation, uint64_t request_id, const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_read_lac_size(reply->lac_body_bytes, reply->entry_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read_lac(
        out, request_id, FBK_S_OK, reply->lac == FBK_APACHE_ABSENT ? -1 : reply->lac, false, reply->lac_body, reply->lac_body_bytes,
        entry_id_of(reply->entry, reply->entry_bytes), reply->entry, reply->entry_bytes, NULL);
    return 0;
}

static int32_t
answer_list(struct fbk_apache_translation *translation, const struct translation_context *context,
            const struct fbk_apache_reply *reply)
{
    const int64_t range_count = fbk_apache_read_list(reply->blob, reply->blob_bytes, NULL, 0);
    if (range_count < 0)
        return FBK_E_PROTOCOL;
    if (range_count > RANGES_MAX)
        return answer_status(translation, context->request_id, FBK_S_TOO_LARGE);
    int64_t *ranges = malloc(16 * (size_t)(range_count + 1));
    if (ranges == NULL)
        return FBK_E_FULL;
    fbk_apache_read_list(reply->blob, reply->blob_bytes, ranges, (uint32_t)range_count);
    uint32_t from = 0;
    while (from < range_count && ranges[2 * from + 1] < context->first)
        from++;
    if (from < range_count && ranges[2 * from] < context->first)
        ranges[2 * from] = context->first;
    const uint32_t left = (uint32_t)range_count - from;
    const uint32_t count = left < context->count_max ? left : context->count_max;
    const int64_t next_entry_id = count < left ? ranges[2 * (from + count)] : -1;
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_list_size(count));
    if (out != NULL)
        translation->answers.used_bytes +=
            fbk_wire_put_list(out, context->request_id, FBK_S_OK, next_entry_id, ranges + 2 * (size_t)from, count);
    free(ranges);
    return out == NULL ? FBK_E_FULL : 0;
}

static int32_t
answer_info(struct fbk_apache_translation *translation, uint64_t request_id, const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, FBK_WIRE_INFO_BYTES);
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes +=
        fbk_wire_put_info_reply(out, request_id, reply->total_bytes < 0 ? 0 : (uint64_t)reply->total_bytes,
                                reply->free_bytes < 0 ? 0 : (uint64_t)reply->free_bytes);
    return 0;
}

/* ------------------------------------------------------------------ batches */

/* The entries of one answer of version 2: consecutive from the first one on. */
static int32_t
answer_run(struct fbk_apache_translation *translation, const struct translation_context *context,
           const struct fbk_apache_reply *reply)
{
    const uint32_t count = reply->entry_count;
    const uint32_t entries_bytes = reply->entry_bytes - 4 * count;
    uint8_t *sizes_at, *entries_at;
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_read_batch_size(count, entries_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read_batch(out, context->request_id, FBK_S_OK, -1,
                                                               (int64_t)((uint64_t)context->first + count), count,
                                                         entries_bytes, &sizes_at, &entries_at);
    const uint8_t *at = reply->entry_sizes;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t entry_bytes = fbk_load_be32(at);
        fbk_store_u32(sizes_at + 4 * (size_t)i, entry_bytes);
        memcpy(entries_at, at + 4, entry_bytes);
        entries_at += entry_bytes;
        at += 4 + entry_bytes;
    }
    return 0;
}

/* What of a batch is good: parts [0, end) are answered and none of them is an error; of these, count have an entry, with
 * entries_bytes in all, within the limits (the first entry always). */
struct batch_extent {
    uint32_t end;
    uint32_t count;
    uint64_t entries_bytes;
    uint32_t status; /* of the part at `end`, FBK_APACHE_EOK when a limit or nothing ends it */
};

static struct batch_extent
extent_of(const struct translation_context *context)
{
    struct batch_extent extent = {.status = FBK_APACHE_EOK};
    for (; extent.end < context->sent; extent.end++) {
        const struct translation_part *part = &context->parts[extent.end];
        if (part->status == FBK_APACHE_ENOENTRY)
            continue;
        if (part->status != FBK_APACHE_EOK) {
            extent.status = part->status;
            break;
        }
        if (extent.count != 0 && extent.entries_bytes + part->size_bytes > context->size_bytes_max)
            break;
        extent.count++;
        extent.entries_bytes += part->size_bytes;
    }
    return extent;
}

static int32_t
answer_batch(struct fbk_apache_translation *translation, const struct translation_context *context)
{
    const struct batch_extent extent = extent_of(context);
    uint8_t *sizes_at, *entries_at;
    if (extent.end == 0)
        return answer_status(translation, context->request_id, status_of(extent.status));
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_read_batch_size(extent.count, extent.entries_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read_batch(out, context->request_id, FBK_S_OK, context->lac,
                                                        (int64_t)((uint64_t)context->first + extent.end), extent.count,
                                                        (uint32_t)extent.entries_bytes, &sizes_at, &entries_at);
    for (uint32_t i = 0; i < extent.end; i++) {
        const struct translation_part *part = &context->parts[i];
        if (part->status != FBK_APACHE_EOK)
            continue;
        fbk_store_u32(sizes_at, part->size_bytes);
        if (part->size_bytes != 0) /* a bookie may answer with nothing, and then there may be no buffer */
            memcpy(entries_at, context->entries.bytes + part->from, part->size_bytes);
        sizes_at += 4;
        entries_at += part->size_bytes;
    }
    return 0;
}

static int32_t
receive_part(struct fbk_apache_translation *translation, struct translation_context *context, uint32_t number,
             const struct fbk_apache_reply *reply)
{
    if (number >= context->sent || context->parts[number].status != PART_WAITING) {
        translation->dropped++;
        return 0;
    }
    struct translation_part *part = &context->parts[number];
    part->status = reply->status;
    context->answered++;
    if (reply->status == FBK_APACHE_EOK && !context->is_forgotten) {
        part->from = context->entries.used_bytes;
        part->size_bytes = reply->entry_bytes;
        if (fbk_bytes_append(&context->entries, reply->entry, reply->entry_bytes) != 0)
            return FBK_E_FULL;
        if (reply->lac > context->lac)
            context->lac = reply->lac;
        if (context->entries.used_bytes >= context->size_bytes_max)
            context->is_over = true;
    } else {
        context->is_over = true; /* what comes behind is the next question's */
    }
    const int32_t error = send_reads(translation, context);
    if (error != 0 || context->answered != context->sent)
        return error;
    const int32_t answered = context->is_forgotten ? 0 : answer_batch(translation, context);
    end_context(context);
    return answered;
}

/* ------------------------------------------------------------------ contexts of one answer, or two */

/* A poll's answer: the newest entry, or the one that was asked for, and a number that no digest covers.  Where the number
 * says more than the newest entry does, the explicit LAC is the proof. */
static int32_t
receive_poll(struct fbk_apache_translation *translation, struct translation_context *context,
             const struct fbk_apache_reply *reply)
{
    const bool has_entry = reply->entry != NULL && reply->entry_bytes >= ENTRY_HEADER_BYTES;
    const int64_t proven = has_entry ? (int64_t)fbk_load_be64(reply->entry + ENTRY_LAC_AT) : -1;
    if (!context->is_piggyback && !context->is_forgotten && reply->lac > context->first && proven <= context->first) {
        struct fbk_apache_request request = {.operation = FBK_APACHE_READ_LAC, .ledger_id = context->ledger_id};
        uint32_t status;
        context->kind = KIND_PROOF;
        return send_request(translation, &request, id_of_part(translation, context, 0), &status);
    }
    return answer_lac(translation, context->request_id, reply);
}

static bool
wants_no_authentication(const struct fbk_apache_reply *reply)
{
    static const char name[] = "AuthDisabledPlugin";
    return reply->plugin_bytes == sizeof name - 1 && memcmp(reply->plugin, name, sizeof name - 1) == 0;
}

static int32_t
receive_for_context(struct fbk_apache_translation *translation, struct translation_context *context,
                    const struct fbk_apache_reply *reply)
{
    const uint64_t request_id = context->request_id;
    const uint32_t status = status_of(reply->status);
    int32_t error = 0;
    if (context->is_forgotten) {
        translation->dropped++;
    } else if (context->kind == KIND_RUN && (status == FBK_S_OK || status == FBK_S_NO_ENTRY)) {
        /* Nothing, not even the first: that one is not there. */
        if (status == FBK_S_NO_ENTRY)
            error = answer_status(translation, request_id, FBK_S_NO_ENTRY);
        else
            error = answer_run(translation, context, reply);
    } else if (context->kind == KIND_HELLO) {
        /* Any word of its own shows that it is there; only authentication can't be done without. */
        const bool is_refused = translation->protocol == 2 ? !wants_no_authentication(reply) : status == FBK_S_UNAUTHORIZED;
        error = answer_status(translation, request_id, is_refused ? FBK_S_UNAUTHORIZED : FBK_S_OK);
    } else if (status != FBK_S_OK) {
        error = answer_status(translation, request_id, status);
    } else if (context->kind == KIND_INFO) {
        error = answer_info(translation, request_id, reply);
    } else if (context->kind == KIND_LIST) {
        error = answer_list(translation, context, reply);
    } else if (context->kind == KIND_POLL) {
        error = receive_poll(translation, context, reply);
        if (context->kind == KIND_PROOF)
            return error;
    } else {
        error = answer_lac(translation, request_id, reply);
    }
    end_context(context);
    return error;
}

/* ------------------------------------------------------------------ frames */

static uint16_t
operation_of(enum translation_kind kind, uint32_t protocol)
{
    switch (kind) {
    case KIND_HELLO: return protocol == 2 ? FBK_APACHE_AUTH : FBK_APACHE_INFO;
    case KIND_INFO: return FBK_APACHE_INFO;
    case KIND_PROOF: return FBK_APACHE_READ_LAC;
    case KIND_LIST: return FBK_APACHE_LIST;
    case KIND_RUN: return FBK_APACHE_READ_BATCH;
    case KIND_POLL:
    case KIND_BATCH: return FBK_APACHE_READ;
    default: return 0;
    }
}

/* Which request it belongs to; false: none that is known. */
static bool
find_request(struct fbk_apache_translation *translation, const struct fbk_apache_reply *reply, uint64_t *id)
{
    const struct fbk_apache_echo *echo = &reply->echo;
    if (translation->protocol == 3 || echo->operation == FBK_APACHE_READ_BATCH) {
        *id = echo->transaction_id;
        return true;
    }
    if (echo->operation != FBK_APACHE_AUTH)
        return fbk_pending_take(&translation->pending, echo->operation, echo->ledger_id, echo->entry_id, id);
    for (uint32_t i = 0; i < translation->context_end; i++)
        if (translation->contexts[i].kind == KIND_HELLO) {
            *id = id_of_part(translation, &translation->contexts[i], 0);
            return true;
        }
    return false;
}

static int32_t
receive_frame(struct fbk_apache_translation *translation, const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_reply reply;
    uint64_t id;
    if (fbk_apache_read_reply(body, body_bytes, translation->protocol, &reply) != 0)
        return FBK_E_PROTOCOL;
    if (!find_request(translation, &reply, &id)) {
        translation->dropped++;
        return 0;
    }
    if ((id & ID_BASE) == ID_BASE) {
        const uint64_t number = (id & ~ID_BASE) >> PART_BITS;
        const uint32_t part = (uint32_t)(id & ((1u << PART_BITS) - 1));
        struct translation_context *context = number < translation->context_end ? &translation->contexts[number] : NULL;
        if (context == NULL || operation_of(context->kind, translation->protocol) != reply.echo.operation) {
            translation->dropped++;
            return 0;
        }
        if (context->kind == KIND_RUN)
            translation->has_batch_answer = true;
        return context->kind == KIND_BATCH ? receive_part(translation, context, part,
                                                          &reply) : receive_for_context(translation, context, &reply);
    }
    if (reply.status != FBK_APACHE_EOK)
        return answer_status(translation, id, status_of(reply.status));
    switch (reply.echo.operation) {
    case FBK_APACHE_READ: return answer_read(translation, id, &reply);
    case FBK_APACHE_READ_LAC: return answer_lac(translation, id, &reply);
    case FBK_APACHE_ADD:
    case FBK_APACHE_WRITE_LAC:
    case FBK_APACHE_FORCE: return answer_status(translation, id, FBK_S_OK);
    default: translation->dropped++; return 0;
    }
}

/* The whole frames of `bytes`; *consumed: where the first one begins that is not whole. */
static int32_t
receive_frames(struct fbk_apache_translation *translation, const uint8_t *bytes, uint64_t size_bytes, uint64_t *consumed)
{
    uint64_t at = 0;
    while (size_bytes - at >= 4) {
        const uint32_t body_bytes = fbk_load_be32(bytes + at);
        if (body_bytes < REPLY_BYTES_MIN || 4 + (uint64_t)body_bytes > translation->frame_size_bytes_max)
            return FBK_E_PROTOCOL;
        if (4 + (uint64_t)body_bytes > size_bytes - at)
            break;
        const int32_t error = receive_frame(translation, bytes + at + 4, body_bytes);
        if (error != 0)
            return error;
        at += 4 + (uint64_t)body_bytes;
    }
    *consumed = at;
    return 0;
}

int32_t
fbk_apache_translation_receive(struct fbk_apache_translation *translation, const uint8_t *bytes, uint64_t size_bytes)
{
    struct fbk_bytes *in = &translation->in;
    uint64_t consumed = 0;
    if (in->used_bytes == 0) {
        const int32_t error = receive_frames(translation, bytes, size_bytes, &consumed);
        return error != 0 ? error : fbk_bytes_append(in, bytes + consumed, size_bytes - consumed);
    }
    if (fbk_bytes_append(in, bytes, size_bytes) != 0)
        return FBK_E_FULL;
    const int32_t error = receive_frames(translation, in->bytes, in->used_bytes, &consumed);
    if (error != 0)
        return error;
    if (consumed != 0) {
        in->used_bytes -= consumed;
        memmove(in->bytes, in->bytes + consumed, in->used_bytes);
    }
    return 0;
}
