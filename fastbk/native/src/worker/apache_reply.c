/* Our answers, as Apache's: what a context's request was answered with goes out in the words of its own protocol, or leads to
 * its next step. */
#include "worker/count.h"

#include "wire/schema.h"

#include <time.h>

#define BATCH_HEAD_BYTES 36u

static uint32_t
apache_status_of(uint32_t status)
{
    switch (status) {
    case FBK_S_OK: return FBK_APACHE_EOK;
    case FBK_S_NO_LEDGER: return FBK_APACHE_ENOLEDGER;
    case FBK_S_NO_ENTRY: return FBK_APACHE_ENOENTRY;
    case FBK_S_CANNOT_TELL: return FBK_APACHE_EUNKNOWNLEDGERSTATE;
    case FBK_S_FENCED: return FBK_APACHE_EFENCED;
    case FBK_S_UNAUTHORIZED: return FBK_APACHE_EUA;
    case FBK_S_READ_ONLY: return FBK_APACHE_EREADONLY;
    case FBK_S_TOO_MANY_REQUESTS: return FBK_APACHE_ETOOMANYREQUESTS;
    case FBK_S_BAD_REQUEST:
    case FBK_S_UNSUPPORTED:
    case FBK_S_TOO_LARGE:
    case FBK_S_BAD_DIGEST: return FBK_APACHE_EBADREQ;
    /* NOT_READY, IO_ERROR; and CONFLICT: the writer takes another bookie, and what was acknowledged stays as it is. */
    default: return FBK_APACHE_EIO;
    }
}

/* ------------------------------------------------------------------ the last word */

static void
put(struct fbk_worker *worker, struct fbk_connection *connection, const struct fbk_apache_reply *reply)
{
    fbk_worker_apache_sent(worker, reply->asked.protocol, reply->entry_bytes);
    uint64_t size_bytes = fbk_apache_reply_size(reply);
    if (size_bytes >= FBK_DIRECT_SEND_BYTES_MIN && size_bytes <= worker->options.frame_size_bytes_max) {
        /* Through no output that would have to grow for it: mostly the socket takes it at once. */
        fbk_apache_put_reply(worker->apache.frame, reply);
        fbk_output_frame(worker, connection, worker->apache.frame, (uint32_t)size_bytes);
        return;
    }
    uint8_t *room = fbk_output_room(worker, connection, (uint32_t)size_bytes);
    if (room != NULL)
        fbk_apache_put_reply(room, reply);
}

static struct fbk_apache_reply
reply_of(const struct fbk_apache_asked *asked, uint32_t apache_status)
{
    return (struct fbk_apache_reply){
        .asked = *asked,
        .status = apache_status,
        .lac = FBK_APACHE_ABSENT,
        .lac_time_ms = FBK_APACHE_ABSENT,
        .total_bytes = FBK_APACHE_ABSENT,
        .free_bytes = FBK_APACHE_ABSENT,
    };
}

/* Gives the context back. */
static void
end(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
    const struct fbk_apache_reply *reply)
{
    fbk_worker_apache_finish(worker, context, reply->status);
    put(worker, connection, reply);
    fbk_context_give_back(worker, connection, context);
}

static void
end_with_status(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context, uint32_t status)
{
    uint32_t apache_status = apache_status_of(status);
    if (context->asked.operation == FBK_APACHE_ADD) { /* nearly every one */
        fbk_worker_apache_finish(worker, context, apache_status);
        uint8_t reply[FBK_APACHE_ADD_REPLY_BYTES_MAX];
        uint32_t size_bytes = fbk_apache_put_add_reply(reply, &context->asked, apache_status);
        uint8_t *room = fbk_output_room(worker, connection, size_bytes);
        if (room != NULL)
            memcpy(room, reply, size_bytes);
        fbk_context_give_back(worker, connection, context);
        return;
    }
    struct fbk_apache_reply reply = reply_of(&context->asked, apache_status);
    end(worker, connection, context, &reply);
}

void
fbk_worker_apache_refuse(struct fbk_worker *worker, struct fbk_connection *connection, const struct fbk_apache_request *asked,
                         uint32_t apache_status)
{
    const struct fbk_apache_asked repeated = {
        .protocol = asked->protocol,
        .version = asked->version,
        .operation = asked->operation,
        .transaction_id = asked->transaction_id,
        .ledger_id = asked->asked_ledger_id,
        .entry_id = asked->asked_entry_id,
    };
    struct fbk_apache_reply reply = reply_of(&repeated, apache_status);
    fbk_worker_apache_finish_refused(worker, asked, apache_status);
    put(worker, connection, &reply);
}

/* ------------------------------------------------------------------ one step after the other */

static void
go_on(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context)
{
    if (fbk_worker_apache_step(worker, connection, context) != FBK_TAKEN)
        fbk_context_wait(worker, connection, context);
}

void
fbk_worker_apache_status(struct fbk_worker *worker, struct fbk_connection *connection, uint64_t request_id, uint32_t status)
{
    struct fbk_apache_context *context = fbk_context_of(worker, connection, request_id);
    if (FBK_UNLIKELY(context == NULL)) {
        fbk_worker_note(worker, FBK_C_WORKER_REPLIES_STALE);
        return;
    }
    end_with_status(worker, connection, context, status);
}

/* ------------------------------------------------------------------ what carries data */

static void
end_read(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
         const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->asked, FBK_APACHE_EOK);
    reply.entry = response->entry;
    reply.entry_bytes = response->entry_bytes;
    if (!(context->flags & FBK_APACHE_FENCE))
        reply.lac = response->lac;
    end(worker, connection, context, &reply);
}

/* Whether the answer says that the first one asked for is not here: INV-X1, an answer that says nothing of it is no "no". */
static bool
is_first_missing(const struct fbk_apache_context *context, const struct fbk_response *response)
{
    int64_t next = response->entry_id;
    if (response->entry_count > 0)
        next = response->entry_bytes < FBK_ENTRY_HEADER_BYTES ? -1 : (int64_t)fbk_load_be64(response->entry + 8);
    return next > context->entry_id;
}

/* Consecutive ones from the first asked for, as many as fit by Apache's count. */
static void
end_batch(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
          const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->asked, FBK_APACHE_EOK);
    uint8_t *sizes = worker->apache.sizes;
    uint64_t counted = BATCH_HEAD_BYTES, at = 0, count = 0;
    while (count < response->entry_count && count < FBK_APACHE_BATCH_ENTRIES_MAX) {
        uint32_t size_bytes = fbk_load_u32(response->entry_sizes + 4ull * count);
        if (size_bytes < FBK_ENTRY_HEADER_BYTES || size_bytes > response->entry_bytes - at ||
            fbk_load_be64(response->entry + at + 8) - (uint64_t)context->entry_id != count)
            break;
        counted += 4 + (uint64_t)size_bytes;
        if (count > 0 && (int64_t)counted > context->size_bytes_max)
            break;
        fbk_store_u32(sizes + 4ull * count, size_bytes);
        at += size_bytes;
        count++;
    }
    if (count == 0)
        reply.status = is_first_missing(context, response) ? FBK_APACHE_ENOENTRY : FBK_APACHE_EIO;
    reply.entry_count = (uint32_t)count;
    reply.entry_sizes = sizes;
    reply.entry = response->entry;
    reply.entry_bytes = (uint32_t)at;
    end(worker, connection, context, &reply);
}

static int64_t
wall_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A poll that takes the entry behind previous_lac along. */
static void
end_poll(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
         const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->asked, FBK_APACHE_EOK);
    reply.lac = response->lac;
    if (response->lac > context->previous_lac)
        reply.lac_time_ms = wall_clock_ms();
    if (response->entry_bytes != 0 && context->previous_lac != INT64_MAX) {
        reply.asked.entry_id = context->previous_lac + 1;
        reply.entry = response->entry;
        reply.entry_bytes = response->entry_bytes;
    }
    end(worker, connection, context, &reply);
}

static void
end_read_lac(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
             const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->asked, FBK_APACHE_EOK);
    if (response->lac_body_bytes != 0) {
        reply.lac_body = response->lac_body;
        reply.lac_body_bytes = response->lac_body_bytes;
    }
    if (response->entry_bytes != 0) {
        reply.entry = response->entry;
        reply.entry_bytes = response->entry_bytes;
    }
    if (reply.lac_body == NULL && reply.entry == NULL)
        reply.status = FBK_APACHE_ENOENTRY;
    end(worker, connection, context, &reply);
}

static void
end_list(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context)
{
    const struct fbk_apache_list *list = &worker->apache.lists[context->list - 1];
    struct fbk_apache_reply reply = reply_of(&context->asked, FBK_APACHE_EOK);
    uint64_t size_bytes = fbk_apache_put_list(NULL, 0, list->ranges, list->count);
    uint8_t *blob = NULL;
    if (size_bytes + FBK_ENTRY_ROOM_BYTES <= worker->options.frame_size_bytes_max)
        blob = malloc(size_bytes);
    if (blob == NULL) {
        reply.status = FBK_APACHE_EIO; /* an answer that leaves entries out would be a lie */
    } else {
        fbk_apache_put_list(blob, size_bytes, list->ranges, list->count);
        reply.blob = blob;
        reply.blob_bytes = (uint32_t)size_bytes;
    }
    end(worker, connection, context, &reply);
    free(blob);
}

static void
take_page(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
          const struct fbk_response *response)
{
    uint32_t status = fbk_apache_list_add(worker, context, response->ranges, response->range_count);
    bool goes_on = response->entry_id >= 0;
    if (status == FBK_S_OK && goes_on && response->entry_id <= context->first_entry_id)
        status = FBK_S_IO_ERROR; /* a page that leads back */
    if (status != FBK_S_OK) {
        end_with_status(worker, connection, context, status);
    } else if (goes_on) {
        context->first_entry_id = response->entry_id;
        go_on(worker, connection, context);
    } else {
        end_list(worker, connection, context);
    }
}

/* ------------------------------------------------------------------ an index's frames */

static void
take_answer(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
            const struct fbk_response *response)
{
    if (response->status != FBK_S_OK || response->body_type != fbk_worker_apache_body(context)) { /* or to something else */
        end_with_status(worker, connection, context, response->status != FBK_S_OK ? response->status : FBK_S_IO_ERROR);
        return;
    }
    switch (context->step) {
    case FBK_STEP_PAGE: take_page(worker, connection, context, response); return;
    case FBK_STEP_POLL:
    case FBK_STEP_FENCE:
        context->step = FBK_STEP_LAST;
        go_on(worker, connection, context);
        return;
    default: break;
    }
    switch (response->body_type) {
    case FBK_RESPONSE_BODY_READ_REPLY: end_read(worker, connection, context, response); break;
    case FBK_RESPONSE_BODY_READ_BATCH_REPLY: end_batch(worker, connection, context, response); break;
    case FBK_RESPONSE_BODY_READ_LAC_REPLY:
        if (context->asked.operation == FBK_APACHE_READ_LAC)
            end_read_lac(worker, connection, context, response);
        else
            end_poll(worker, connection, context, response);
        break;
    default: end_with_status(worker, connection, context, FBK_S_OK); break;
    }
}

bool
fbk_worker_apache_frame(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *frame, uint32_t frame_bytes)
{
    struct fbk_response response;
    if (fbk_wire_read_own_response(frame, frame_bytes, &response) != 0)
        return false;
    struct fbk_apache_context *context = fbk_context_of(worker, connection, response.request_id);
    if (FBK_UNLIKELY(context == NULL)) {
        fbk_worker_note(worker, FBK_C_WORKER_REPLIES_STALE);
        return true;
    }
    take_answer(worker, connection, context, &response);
    return true;
}
