/* Our requests as Apache's: what apache_translation.c begins, on its way to the bookie. */
#include "client/translation.h"

/* What a request takes beside the bytes of its body, at most. */
#define REQUEST_BYTES_MAX 160u

/* ------------ one request of Apache's */

int32_t
fbk_translation_send(struct fbk_apache_translation *translation, struct fbk_apache_request *request,
                     uint64_t id, uint32_t *status)
{
    const bool is_known_by_entry =
        translation->protocol == 2 &&
        (request->operation == FBK_APACHE_ADD || request->operation == FBK_APACHE_READ);
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
    if (is_known_by_entry && fbk_pending_put(&translation->pending, request->operation,
                                             request->ledger_id, request->entry_id, id) != 0) {
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
send_or_refuse(struct fbk_apache_translation *translation, struct fbk_apache_request *request,
               uint64_t request_id, uint64_t id)
{
    uint32_t status;
    const int32_t error = fbk_translation_send(translation, request, id, &status);
    if (error != 0 || status == FBK_S_OK)
        return error;
    return fbk_translation_answer(translation, request_id, status);
}

static int32_t
send_of_context(struct fbk_apache_translation *translation, struct fbk_apache_request *request,
                struct translation_context *context)
{
    uint32_t status;
    if (context == NULL)
        return 0;
    const int32_t error = fbk_translation_send(
        translation, request, fbk_translation_id(translation, context, 0), &status);
    if (error != 0 || status == FBK_S_OK)
        return error;
    const uint64_t request_id = context->request_id;
    fbk_translation_context_end(context);
    return fbk_translation_answer(translation, request_id, status);
}

/* ------------ our operations */

static int32_t
send_add(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_ADD,
        .flags = (original->flags & ADD_FLAG_RECOVERY) != 0
                     ? FBK_APACHE_RECOVERY | FBK_APACHE_HIGH_PRIORITY
                     : 0,
        .ledger_id = original->ledger_id,
        .entry_id = original->entry_id,
        .master_key = original->master_key,
        .body = original->body,
        .body_bytes = original->body_bytes,
    };
    /* Deferred sync is not asked for.  A bookie of Apache's that restarts forgets what it
     * acknowledged and had not synced, and then confirms a force all the same: what the client
     * takes for durable would be gone. */
    return send_or_refuse(translation, &request, original->request_id, original->request_id);
}

static int32_t
send_read(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    const bool fences = (original->flags & READ_FLAG_FENCE) != 0;
    struct fbk_apache_request request = {
        .operation = FBK_APACHE_READ,
        .flags =
            (fences ? FBK_APACHE_FENCE : 0) |
            (fences || (original->flags & READ_FLAG_HIGH_PRIORITY) != 0 ? FBK_APACHE_HIGH_PRIORITY
                                                                        : 0),
        .ledger_id = original->ledger_id,
        .entry_id = original->entry_id,
        .master_key = fences ? original->master_key : NULL,
    };
    /* Version 2 names no request in its answers: that of a plain read before it could be taken for
     * the fence's. */
    if (translation->protocol == 2 && fences)
        return fbk_translation_answer(translation, original->request_id, FBK_S_UNSUPPORTED);
    return send_or_refuse(translation, &request, original->request_id, original->request_id);
}

static int32_t
send_run(struct fbk_apache_translation *translation, struct translation_context *context)
{
    const uint64_t size_bytes_max =
        context->size_bytes_max < INT32_MAX ? context->size_bytes_max : INT32_MAX;
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
        const uint64_t left_bytes = context->size_bytes_max > context->entries.used_bytes
                                        ? context->size_bytes_max - context->entries.used_bytes
                                        : 0;
        wanted = (left_bytes + mean_bytes - 1) / mean_bytes;
    }
    wanted = wanted < READS_MAX ? wanted : READS_MAX;
    wanted = wanted > under_way ? wanted - under_way : 0;
    const uint32_t left = context->count_max - context->sent;
    return wanted < left ? (uint32_t)wanted : left;
}

int32_t
fbk_translation_read_on(struct fbk_apache_translation *translation,
                        struct translation_context *context)
{
    for (uint32_t left = reads_wanted(context); left != 0; left--) {
        struct fbk_apache_request request = {
            .operation = FBK_APACHE_READ,
            .ledger_id = context->ledger_id,
            .entry_id = context->first + (int64_t)context->sent,
        };
        uint32_t status;
        const int32_t error =
            fbk_translation_send(translation, &request,
                                 fbk_translation_id(translation, context, context->sent), &status);
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
send_batch(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    /* As numbers without a sign, so that no pair of ids overflows. */
    const uint64_t wanted = (uint64_t)original->other_id - (uint64_t)original->entry_id;
    if (original->entry_id < 0 || original->other_id < original->entry_id ||
        original->count_max == 0)
        return fbk_translation_answer(translation, original->request_id, FBK_S_BAD_REQUEST);
    struct translation_context *context =
        fbk_translation_context_new(translation, KIND_BATCH, original);
    if (context == NULL)
        return fbk_translation_answer(translation, original->request_id, FBK_S_TOO_MANY_REQUESTS);
    uint32_t count_max =
        original->count_max < BATCH_ENTRIES_MAX ? original->count_max : BATCH_ENTRIES_MAX;
    if (wanted < count_max)
        count_max = (uint32_t)wanted + 1;
    context->count_max = count_max;
    /* The answer has to fit into a frame of ours. */
    context->size_bytes_max = original->size_bytes_max < translation->frame_size_bytes_max
                                  ? original->size_bytes_max
                                  : translation->frame_size_bytes_max;
    if (translation->takes_batches && count_max > 1)
        return send_run(translation, context);
    context->parts = calloc(count_max, sizeof *context->parts);
    if (context->parts == NULL)
        return FBK_E_FULL;
    const int32_t error = fbk_translation_read_on(translation, context);
    if (error != 0 || context->sent != 0)
        return error;
    fbk_translation_context_end(context);
    return fbk_translation_answer(translation, original->request_id, FBK_S_TOO_MANY_REQUESTS);
}

static int32_t
send_lac(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    const bool is_piggyback = (original->flags & READ_LAC_FLAG_PIGGYBACK) != 0;
    struct fbk_apache_request request = {.operation = FBK_APACHE_READ_LAC,
                                         .ledger_id = original->ledger_id};
    if (translation->protocol == 2)
        return fbk_translation_answer(translation, original->request_id, FBK_S_UNSUPPORTED);
    if (original->timeout_ms == 0 && !is_piggyback)
        return send_or_refuse(translation, &request, original->request_id, original->request_id);
    struct translation_context *context =
        fbk_translation_context_new(translation, KIND_POLL, original);
    if (context == NULL)
        return fbk_translation_answer(translation, original->request_id, FBK_S_TOO_MANY_REQUESTS);
    context->first = original->other_id;
    context->is_piggyback = is_piggyback;
    request.operation = FBK_APACHE_READ;
    request.entry_id = FBK_APACHE_NO_ENTRY;
    request.flags = FBK_APACHE_HAS_PREVIOUS_LAC |
                    (original->timeout_ms != 0 ? FBK_APACHE_HAS_TIMEOUT : 0) |
                    (is_piggyback ? FBK_APACHE_PIGGYBACK : 0);
    request.previous_lac = original->other_id;
    request.timeout_ms = original->timeout_ms;
    return send_of_context(translation, &request, context);
}

/* A question that the connection's life begins with, or an operator's: anything that a bookie
 * answers without a ledger. */
static int32_t
send_info(struct fbk_apache_translation *translation, const struct fbk_request *original,
          enum translation_kind kind)
{
    struct fbk_apache_request request = {.operation = FBK_APACHE_INFO,
                                         .info_wanted = INFO_TOTAL_AND_FREE};
    if (translation->protocol == 2 && kind != KIND_HELLO)
        return fbk_translation_answer(translation, original->request_id, FBK_S_UNSUPPORTED);
    if (translation->protocol == 2) {
        request.operation = FBK_APACHE_AUTH;
        request.plugin = no_plugin;
        request.plugin_bytes = sizeof no_plugin;
    }
    struct translation_context *context = fbk_translation_context_new(translation, kind, original);
    if (context == NULL)
        return fbk_translation_answer(translation, original->request_id, FBK_S_TOO_MANY_REQUESTS);
    return send_of_context(translation, &request, context);
}

static int32_t
send_simple(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    struct fbk_apache_request request = {.ledger_id = original->ledger_id};
    if (translation->protocol == 2)
        return fbk_translation_answer(translation, original->request_id, FBK_S_UNSUPPORTED);
    if (original->body_type == FBK_REQUEST_BODY_FORCE) {
        request.operation = FBK_APACHE_FORCE;
        return send_or_refuse(translation, &request, original->request_id, original->request_id);
    }
    if (original->body_type == FBK_REQUEST_BODY_WRITE_LAC) {
        request.operation = FBK_APACHE_WRITE_LAC;
        request.entry_id = original->entry_id;
        request.master_key = original->master_key;
        request.body = original->body;
        request.body_bytes = original->body_bytes;
        return send_or_refuse(translation, &request, original->request_id, original->request_id);
    }
    request.operation = FBK_APACHE_LIST;
    struct translation_context *context =
        fbk_translation_context_new(translation, KIND_LIST, original);
    if (context == NULL)
        return fbk_translation_answer(translation, original->request_id, FBK_S_TOO_MANY_REQUESTS);
    context->count_max = original->count_max;
    return send_of_context(translation, &request, context);
}

static int32_t
send_one(struct fbk_apache_translation *translation, const struct fbk_request *original)
{
    switch (original->body_type) {
    case FBK_REQUEST_BODY_ADD: return send_add(translation, original);
    case FBK_REQUEST_BODY_READ: return send_read(translation, original);
    case FBK_REQUEST_BODY_READ_BATCH: return send_batch(translation, original);
    case FBK_REQUEST_BODY_READ_LAC: return send_lac(translation, original);
    case FBK_REQUEST_BODY_HELLO: return send_info(translation, original, KIND_HELLO);
    case FBK_REQUEST_BODY_INFO: return send_info(translation, original, KIND_INFO);
    case FBK_REQUEST_BODY_PING:
        return fbk_translation_answer(translation, original->request_id, FBK_S_OK);
    case FBK_REQUEST_BODY_WRITE_LAC:
    case FBK_REQUEST_BODY_FORCE:
    case FBK_REQUEST_BODY_LIST_ENTRIES: return send_simple(translation, original);
    default: return fbk_translation_answer(translation, original->request_id, FBK_S_UNSUPPORTED);
    }
}

int
fbk_apache_v2_takes(const uint8_t *frame, uint64_t size_bytes)
{
    struct fbk_request original;
    if (size_bytes > UINT32_MAX ||
        fbk_wire_read_request(frame, (uint32_t)size_bytes, &original) != 0)
        return 0;
    switch (original.body_type) {
    case FBK_REQUEST_BODY_ADD: return (original.flags & ADD_FLAG_RECOVERY) == 0;
    case FBK_REQUEST_BODY_READ: return (original.flags & READ_FLAG_FENCE) == 0;
    case FBK_REQUEST_BODY_READ_BATCH: return 1;
    default: return 0;
    }
}

int32_t
fbk_apache_translation_send(struct fbk_apache_translation *translation, const uint8_t *frames,
                            uint64_t size_bytes)
{
    uint64_t at = 0;
    while (at < size_bytes) {
        struct fbk_request original;
        if (size_bytes - at < 4)
            return FBK_E_PROTOCOL;
        const uint64_t frame_bytes = 4 + (uint64_t)fbk_load_u32(frames + at);
        if (frame_bytes > size_bytes - at || frame_bytes > UINT32_MAX)
            return FBK_E_PROTOCOL;
        if (fbk_wire_read_request(frames + at, (uint32_t)frame_bytes, &original) != 0)
            return FBK_E_PROTOCOL;
        const int32_t error = send_one(translation, &original);
        if (error != 0)
            return error;
        at += frame_bytes;
    }
    return 0;
}
