/* Apache's answers as ours: frames of the bookie's, the contexts that they are for, and what those
 * do next. */
#include "client/translation.h"

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
    return entry == NULL || entry_bytes < ENTRY_HEADER_BYTES
               ? -1
               : (int64_t)fbk_load_be64(entry + ENTRY_ID_AT);
}

/* ------------ answers with a body */

static int32_t
answer_read(struct fbk_apache_translation *translation, uint64_t request_id,
            const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, fbk_wire_read_size(reply->entry_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read(
        out, request_id, FBK_S_OK, entry_id_of(reply->entry, reply->entry_bytes),
        reply->lac == FBK_APACHE_ABSENT ? -1 : reply->lac, reply->entry, reply->entry_bytes, NULL);
    return 0;
}

static int32_t
answer_lac(struct fbk_apache_translation *translation, uint64_t request_id,
           const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(
        &translation->answers, fbk_wire_read_lac_size(reply->lac_body_bytes, reply->entry_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read_lac(
        out, request_id, FBK_S_OK, reply->lac == FBK_APACHE_ABSENT ? -1 : reply->lac, false,
        reply->lac_body, reply->lac_body_bytes, entry_id_of(reply->entry, reply->entry_bytes),
        reply->entry, reply->entry_bytes, NULL);
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
        return fbk_translation_answer(translation, context->request_id, FBK_S_TOO_LARGE);
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
        translation->answers.used_bytes += fbk_wire_put_list(
            out, context->request_id, FBK_S_OK, next_entry_id, ranges + 2 * (size_t)from, count);
    free(ranges);
    return out == NULL ? FBK_E_FULL : 0;
}

static int32_t
answer_info(struct fbk_apache_translation *translation, uint64_t request_id,
            const struct fbk_apache_reply *reply)
{
    uint8_t *out = fbk_bytes_reserve(&translation->answers, FBK_WIRE_INFO_BYTES);
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_info_reply(
        out, request_id, reply->total_bytes < 0 ? 0 : (uint64_t)reply->total_bytes,
        reply->free_bytes < 0 ? 0 : (uint64_t)reply->free_bytes);
    return 0;
}

/* ------------ batches */

/* The entries of one answer of version 2: consecutive from the first one on. */
static int32_t
answer_run(struct fbk_apache_translation *translation, const struct translation_context *context,
           const struct fbk_apache_reply *reply)
{
    const uint32_t count = reply->entry_count;
    const uint32_t entries_bytes = reply->entry_bytes - 4 * count;
    uint8_t *sizes_at, *entries_at;
    uint8_t *out =
        fbk_bytes_reserve(&translation->answers, fbk_wire_read_batch_size(count, entries_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes += fbk_wire_put_read_batch(
        out, context->request_id, FBK_S_OK, -1, (int64_t)((uint64_t)context->first + count), count,
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

/* What of a batch is good: parts [0, end) are answered and none of them is an error; of these,
 * count have an entry, with entries_bytes in all, within the limits (the first entry always). */
struct batch_extent {
    uint32_t end;
    uint32_t count;
    uint64_t entries_bytes;
    /* of the part at `end`, FBK_APACHE_EOK when a limit or nothing ends it */
    uint32_t status;
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
        return fbk_translation_answer(translation, context->request_id, status_of(extent.status));
    uint8_t *out = fbk_bytes_reserve(&translation->answers,
                                     fbk_wire_read_batch_size(extent.count, extent.entries_bytes));
    if (out == NULL)
        return FBK_E_FULL;
    translation->answers.used_bytes +=
        fbk_wire_put_read_batch(out, context->request_id, FBK_S_OK, context->lac,
                                (int64_t)((uint64_t)context->first + extent.end), extent.count,
                                (uint32_t)extent.entries_bytes, &sizes_at, &entries_at);
    for (uint32_t i = 0; i < extent.end; i++) {
        const struct translation_part *part = &context->parts[i];
        if (part->status != FBK_APACHE_EOK)
            continue;
        fbk_store_u32(sizes_at, part->size_bytes);
        /* a bookie may answer with nothing, and then there may be no buffer */
        if (part->size_bytes != 0)
            memcpy(entries_at, context->entries.bytes + part->from, part->size_bytes);
        sizes_at += 4;
        entries_at += part->size_bytes;
    }
    return 0;
}

static int32_t
receive_part(struct fbk_apache_translation *translation, struct translation_context *context,
             uint32_t number, const struct fbk_apache_reply *reply)
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
    const int32_t error = fbk_translation_read_on(translation, context);
    if (error != 0 || context->answered != context->sent)
        return error;
    const int32_t answered = context->is_forgotten ? 0 : answer_batch(translation, context);
    fbk_translation_context_end(context);
    return answered;
}

/* ------------ contexts of one answer, or two */

/* A poll's answer: the newest entry, or the one that was asked for, and a number that no digest
 * covers.  Where the number says more than the newest entry does, the explicit LAC is the proof. */
static int32_t
receive_poll(struct fbk_apache_translation *translation, struct translation_context *context,
             const struct fbk_apache_reply *reply)
{
    const bool has_entry = reply->entry != NULL && reply->entry_bytes >= ENTRY_HEADER_BYTES;
    const int64_t proven = has_entry ? (int64_t)fbk_load_be64(reply->entry + ENTRY_LAC_AT) : -1;
    if (!context->is_piggyback && !context->is_forgotten && reply->lac > context->first &&
        proven <= context->first) {
        struct fbk_apache_request request = {.operation = FBK_APACHE_READ_LAC,
                                             .ledger_id = context->ledger_id};
        uint32_t status;
        context->kind = KIND_PROOF;
        return fbk_translation_send(translation, &request,
                                    fbk_translation_id(translation, context, 0), &status);
    }
    return answer_lac(translation, context->request_id, reply);
}

static bool
wants_no_authentication(const struct fbk_apache_reply *reply)
{
    static const char name[] = "AuthDisabledPlugin";
    return reply->plugin_bytes == sizeof name - 1 &&
           memcmp(reply->plugin, name, sizeof name - 1) == 0;
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
            error = fbk_translation_answer(translation, request_id, FBK_S_NO_ENTRY);
        else
            error = answer_run(translation, context, reply);
    } else if (context->kind == KIND_HELLO) {
        /* Any word of its own shows that it is there; only authentication can't be done without. */
        const bool is_refused = translation->protocol == 2 ? !wants_no_authentication(reply)
                                                           : status == FBK_S_UNAUTHORIZED;
        error = fbk_translation_answer(translation, request_id,
                                       is_refused ? FBK_S_UNAUTHORIZED : FBK_S_OK);
    } else if (status != FBK_S_OK) {
        error = fbk_translation_answer(translation, request_id, status);
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
    fbk_translation_context_end(context);
    return error;
}

/* ------------ frames */

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
find_request(struct fbk_apache_translation *translation, const struct fbk_apache_reply *reply,
             uint64_t *id)
{
    const struct fbk_apache_echo *echo = &reply->echo;
    if (translation->protocol == 3 || echo->operation == FBK_APACHE_READ_BATCH) {
        *id = echo->transaction_id;
        return true;
    }
    if (echo->operation != FBK_APACHE_AUTH)
        return fbk_pending_take(&translation->pending, echo->operation, echo->ledger_id,
                                echo->entry_id, id);
    for (uint32_t i = 0; i < translation->context_end; i++)
        if (translation->contexts[i].kind == KIND_HELLO) {
            *id = fbk_translation_id(translation, &translation->contexts[i], 0);
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
        struct translation_context *context =
            number < translation->context_end ? &translation->contexts[number] : NULL;
        if (context == NULL ||
            operation_of(context->kind, translation->protocol) != reply.echo.operation) {
            translation->dropped++;
            return 0;
        }
        if (context->kind == KIND_RUN)
            translation->has_batch_answer = true;
        return context->kind == KIND_BATCH ? receive_part(translation, context, part, &reply)
                                           : receive_for_context(translation, context, &reply);
    }
    if (reply.status != FBK_APACHE_EOK)
        return fbk_translation_answer(translation, id, status_of(reply.status));
    switch (reply.echo.operation) {
    case FBK_APACHE_READ: return answer_read(translation, id, &reply);
    case FBK_APACHE_READ_LAC: return answer_lac(translation, id, &reply);
    case FBK_APACHE_ADD:
    case FBK_APACHE_WRITE_LAC:
    case FBK_APACHE_FORCE: return fbk_translation_answer(translation, id, FBK_S_OK);
    default: translation->dropped++; return 0;
    }
}

/* The whole frames of `bytes`; *consumed: where the first one begins that is not whole. */
static int32_t
receive_frames(struct fbk_apache_translation *translation, const uint8_t *bytes,
               uint64_t size_bytes, uint64_t *consumed)
{
    uint64_t at = 0;
    while (size_bytes - at >= 4) {
        const uint32_t body_bytes = fbk_load_be32(bytes + at);
        if (body_bytes < REPLY_BYTES_MIN ||
            4 + (uint64_t)body_bytes > translation->frame_size_bytes_max)
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
fbk_apache_translation_receive(struct fbk_apache_translation *translation, const uint8_t *bytes,
                               uint64_t size_bytes)
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
