/* Apache's clients at a worker: each of their requests becomes one of ours, whose id is that of a
 * context (contexts.c).  What takes several of ours (a poll, then a read; a fence, then a batch; a
 * list, page by page) is one context that takes one step after the other.
 *
 * Decision 61. */
#include "worker/worker.h"

#include "base/segment.h"
#include "wire/schema.h"

#include <time.h>

#define LONG_POLL_MS_MAX 60000
#define BATCH_HEAD_BYTES 36 /* what Apache counts of a batch reply before its first entry */

/* ------------ each request's steps */

/* Which digest a ledger's entries and explicit LACs have metadata knows. */
static void
find_digest(struct fbk_worker *worker, struct fbk_connection *connection, int64_t ledger_id,
            struct fbk_request *request)
{
    if (fbk_digests_find(&worker->digests, ledger_id, &request->digest_type))
        fbk_connection_todo(worker, connection, FBK_DO_DIGESTS);
}

static void
make_add(struct fbk_worker *worker, struct fbk_connection *connection,
         const struct fbk_apache_request *message, struct fbk_request *request)
{
    /* Ids are those inside the entry, as Apache's bookies take them. */
    request->body_type = FBK_REQUEST_BODY_ADD;
    request->flags = (message->flags & FBK_APACHE_RECOVERY ? FBK_FLAG_RECOVERY : 0) |
                     (message->flags & FBK_APACHE_DEFERRED_SYNC ? FBK_FLAG_DEFERRED_SYNC : 0);
    find_digest(worker, connection, message->ledger_id, request);
    request->body = message->body;
    request->body_bytes = message->body_bytes;
}

static void
make_read(const struct fbk_apache_context *context, struct fbk_request *request)
{
    request->body_type = FBK_REQUEST_BODY_READ;
    request->flags = context->flags & FBK_APACHE_FENCE ? FBK_FLAG_FENCE : 0;
}

static void
make_poll(const struct fbk_apache_context *context, const struct fbk_apache_request *message,
          struct fbk_request *request)
{
    int64_t timeout_ms = message->timeout_ms < 0 ? 0 : message->timeout_ms;
    request->body_type = FBK_REQUEST_BODY_READ_LAC;
    request->other_id = context->previous_lac;
    request->timeout_ms = (uint32_t)(timeout_ms < LONG_POLL_MS_MAX ? timeout_ms : LONG_POLL_MS_MAX);
    request->flags = FBK_FLAG_PIGGYBACK;
}

static void
make_batch(const struct fbk_worker *worker, const struct fbk_apache_context *context,
           struct fbk_request *request)
{
    uint32_t most = FBK_APACHE_BATCH_ENTRIES_MAX;
    uint32_t count =
        context->count_max == 0 || context->count_max > most ? most : context->count_max;
    int64_t first = context->entry_id; /* below 0 it is the id of no entry */
    int64_t limit =
        context->size_bytes_max < BATCH_HEAD_BYTES ? 0 : context->size_bytes_max - BATCH_HEAD_BYTES;
    int64_t frame = worker->options.frame_size_bytes_max;
    request->body_type = FBK_REQUEST_BODY_READ_BATCH;
    request->other_id = first < 0                   ? -1
                        : INT64_MAX - first < count ? INT64_MAX
                                                    : first + (int64_t)count - 1;
    request->count_max = count;
    /* the first one comes anyway */
    request->size_bytes_max = limit < 1 ? 1 : (uint32_t)(limit < frame ? limit : frame);
}

static void
make_page(const struct fbk_apache_context *context, struct fbk_request *request)
{
    request->body_type = FBK_REQUEST_BODY_LIST_ENTRIES;
    request->entry_id = context->first_entry_id;
    request->count_max = FBK_APACHE_PAGE_RANGES;
}

static struct fbk_request
request_of(const struct fbk_worker *worker, const struct fbk_apache_context *context)
{
    return (struct fbk_request){
        .request_id = fbk_context_id(worker, context),
        .ledger_id = context->ledger_id,
        .entry_id = context->entry_id,
    };
}

/* The next request that a context is for. */
static enum fbk_outcome
step(struct fbk_worker *worker, struct fbk_connection *connection,
     struct fbk_apache_context *context)
{
    struct fbk_request request = request_of(worker, context);
    uint8_t lane = connection->lane; /* of what the connection itself may wait for */
    switch (context->echo.operation) {
    case FBK_APACHE_READ_BATCH: make_batch(worker, context, &request); break;
    case FBK_APACHE_LIST: make_page(context, &request); break;
    default: make_read(context, &request); break;
    }
    enum fbk_outcome outcome = fbk_worker_dispatch(worker, connection, &request);
    connection->lane = lane;
    return outcome;
}

/* The first step: what is placed for a request that has just come. */
static enum fbk_outcome
start(struct fbk_worker *worker, struct fbk_connection *connection,
      struct fbk_apache_context *context, const struct fbk_apache_request *message)
{
    struct fbk_request request = request_of(worker, context);
    request.master_key = message->master_key;
    switch (message->operation) {
    case FBK_APACHE_ADD: make_add(worker, connection, message, &request); break;
    case FBK_APACHE_READ:
        make_read(context, &request);
        if (!fbk_apache_is_poll(context->echo.operation, context->flags))
            break;
        context->previous_lac = message->previous_lac < -1 ? -1 : message->previous_lac;
        if (context->flags & FBK_APACHE_PIGGYBACK) {
            make_poll(context, message, &request);
        } else if (context->flags & FBK_APACHE_HAS_TIMEOUT) {
            context->step = FBK_STEP_POLL;
            make_poll(context, message, &request);
        }
        break;
    case FBK_APACHE_READ_BATCH:
        context->size_bytes_max =
            message->size_bytes_max < worker->options.apache_batch_read_bytes_max
                ? message->size_bytes_max
                : worker->options.apache_batch_read_bytes_max;
        if (context->flags & FBK_APACHE_FENCE) {
            context->step = FBK_STEP_FENCE;
            make_read(context, &request);
        } else {
            make_batch(worker, context, &request);
        }
        break;
    case FBK_APACHE_LIST:
        context->step = FBK_STEP_PAGE;
        context->first_entry_id = 0;
        make_page(context, &request);
        break;
    case FBK_APACHE_READ_LAC:
        request.body_type = FBK_REQUEST_BODY_READ_LAC;
        request.other_id = -1;
        break;
    case FBK_APACHE_WRITE_LAC:
        request.body_type = FBK_REQUEST_BODY_WRITE_LAC;
        find_digest(worker, connection, message->ledger_id, &request);
        request.body = message->body;
        request.body_bytes = message->body_bytes;
        break;
    default: request.body_type = FBK_REQUEST_BODY_FORCE; break;
    }
    return fbk_worker_dispatch(worker, connection, &request);
}

/* The body of a good answer to what is placed for it, FBK_RESPONSE_BODY_*; 0 = nothing but a
 * status. */
static uint32_t
body_of(const struct fbk_apache_context *context)
{
    switch (context->step) {
    case FBK_STEP_PAGE: return FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY;
    case FBK_STEP_POLL: return FBK_RESPONSE_BODY_READ_LAC_REPLY;
    case FBK_STEP_FENCE: return FBK_RESPONSE_BODY_READ_REPLY;
    default: break;
    }
    switch (context->echo.operation) {
    case FBK_APACHE_READ:
        return (context->flags & (FBK_APACHE_PIGGYBACK | FBK_APACHE_FENCE)) == FBK_APACHE_PIGGYBACK
                   ? FBK_RESPONSE_BODY_READ_LAC_REPLY
                   : FBK_RESPONSE_BODY_READ_REPLY;
    case FBK_APACHE_READ_BATCH: return FBK_RESPONSE_BODY_READ_BATCH_REPLY;
    case FBK_APACHE_READ_LAC: return FBK_RESPONSE_BODY_READ_LAC_REPLY;
    default: return 0;
    }
}

/* ------------ an answer's status */

static uint32_t
apache_status_of(uint32_t status)
{
    switch (status) {
    case FBK_S_OK: return FBK_APACHE_EOK;
    case FBK_S_NO_LEDGER: return FBK_APACHE_ENOLEDGER;
    case FBK_S_NO_ENTRY: return FBK_APACHE_ENOENTRY;
    case FBK_S_CANNOT_TELL: return FBK_APACHE_EUNKNOWNLEDGERSTATE;
    case FBK_S_FENCED: return FBK_APACHE_EFENCED;
    case FBK_S_UNAUTHORIZED:
    case FBK_S_FORBIDDEN: return FBK_APACHE_EUA;
    case FBK_S_READ_ONLY: return FBK_APACHE_EREADONLY;
    case FBK_S_TOO_MANY_REQUESTS: return FBK_APACHE_ETOOMANYREQUESTS;
    case FBK_S_BAD_REQUEST:
    case FBK_S_UNSUPPORTED:
    case FBK_S_TOO_LARGE:
    case FBK_S_BAD_DIGEST: return FBK_APACHE_EBADREQ;
    /* NOT_READY, IO_ERROR; and CONFLICT: the writer takes another bookie, and what was acknowledged
     * stays as it is. */
    default: return FBK_APACHE_EIO;
    }
}

/* ------------ the last word */

static void
put_reply(struct fbk_worker *worker, struct fbk_connection *connection,
          const struct fbk_apache_reply *reply)
{
    fbk_worker_apache_sent(worker, reply->echo.protocol, reply->entry_bytes);
    uint64_t size_bytes = fbk_apache_reply_size(reply);
    if (size_bytes >= FBK_DIRECT_SEND_BYTES_MIN &&
        size_bytes <= worker->options.frame_size_bytes_max) {
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
reply_of(const struct fbk_apache_echo *echo, uint32_t apache_status)
{
    return (struct fbk_apache_reply){
        .echo = *echo,
        .status = apache_status,
        .lac = FBK_APACHE_ABSENT,
        .lac_time_ms = FBK_APACHE_ABSENT,
        .total_bytes = FBK_APACHE_ABSENT,
        .free_bytes = FBK_APACHE_ABSENT,
    };
}

/* Gives the context back. */
static void
end(struct fbk_worker *worker, struct fbk_connection *connection,
    struct fbk_apache_context *context, const struct fbk_apache_reply *reply)
{
    fbk_worker_apache_finish(worker, context, reply->status);
    put_reply(worker, connection, reply);
    fbk_context_end(worker, connection, context);
}

static void
end_with_status(struct fbk_worker *worker, struct fbk_connection *connection,
                struct fbk_apache_context *context, uint32_t status)
{
    uint32_t apache_status = apache_status_of(status);
    if (context->echo.operation == FBK_APACHE_ADD) { /* nearly every one */
        fbk_worker_apache_finish(worker, context, apache_status);
        uint8_t reply[FBK_APACHE_ADD_REPLY_BYTES_MAX];
        uint32_t size_bytes = fbk_apache_put_add_reply(reply, &context->echo, apache_status);
        uint8_t *room = fbk_output_room(worker, connection, size_bytes);
        if (room != NULL)
            memcpy(room, reply, size_bytes);
        fbk_context_end(worker, connection, context);
        return;
    }
    struct fbk_apache_reply reply = reply_of(&context->echo, apache_status);
    end(worker, connection, context, &reply);
}

/* Answers a request that never had a context. */
static void
refuse(struct fbk_worker *worker, struct fbk_connection *connection,
       const struct fbk_apache_request *message, uint32_t apache_status)
{
    const struct fbk_apache_echo repeated = fbk_apache_echo_of(message);
    struct fbk_apache_reply reply = reply_of(&repeated, apache_status);
    fbk_worker_apache_finish_refused(worker, message, apache_status);
    put_reply(worker, connection, &reply);
}

/* ------------ one step after the other */

/* False: it has to wait for room. */
static bool
try_step(struct fbk_worker *worker, struct fbk_connection *connection,
         struct fbk_apache_context *context)
{
    enum fbk_outcome outcome = step(worker, connection, context);
    if (outcome >= FBK_ANSWER)
        end_with_status(worker, connection, context, outcome - FBK_ANSWER);
    return outcome == FBK_DONE || outcome >= FBK_ANSWER;
}

static void
go_on(struct fbk_worker *worker, struct fbk_connection *connection,
      struct fbk_apache_context *context)
{
    if (!try_step(worker, connection, context))
        fbk_context_wait_for_room(worker, connection, context);
}

void
fbk_worker_apache_status(struct fbk_worker *worker, struct fbk_connection *connection,
                         uint64_t request_id, uint32_t status)
{
    struct fbk_apache_context *context = fbk_context_of(worker, connection, request_id);
    if (FBK_UNLIKELY(context == NULL)) {
        fbk_worker_note(worker, FBK_C_WORKER_REPLIES_STALE);
        return;
    }
    end_with_status(worker, connection, context, status);
}

/* ------------ what carries data */

static void
end_read(struct fbk_worker *worker, struct fbk_connection *connection,
         struct fbk_apache_context *context, const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->echo, FBK_APACHE_EOK);
    reply.entry = response->entry;
    reply.entry_bytes = response->entry_bytes;
    if (!(context->flags & FBK_APACHE_FENCE))
        reply.lac = response->lac;
    end(worker, connection, context, &reply);
}

/* Whether the answer says that the first one asked for is not here: INV-X1, an answer that says
 * nothing of it is no "no". */
static bool
is_first_missing(const struct fbk_apache_context *context, const struct fbk_response *response)
{
    int64_t next = response->entry_id;
    if (response->entry_count > 0)
        next = response->entry_bytes < FBK_ENTRY_HEADER_BYTES
                   ? -1
                   : (int64_t)fbk_load_be64(response->entry + 8);
    return next > context->entry_id;
}

/* Consecutive ones from the first asked for, as many as fit by Apache's count. */
static void
end_batch(struct fbk_worker *worker, struct fbk_connection *connection,
          struct fbk_apache_context *context, const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->echo, FBK_APACHE_EOK);
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
end_poll(struct fbk_worker *worker, struct fbk_connection *connection,
         struct fbk_apache_context *context, const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->echo, FBK_APACHE_EOK);
    reply.lac = response->lac;
    if (response->lac > context->previous_lac)
        reply.lac_time_ms = wall_clock_ms();
    if (response->entry_bytes != 0 && context->previous_lac != INT64_MAX) {
        reply.echo.entry_id = context->previous_lac + 1;
        reply.entry = response->entry;
        reply.entry_bytes = response->entry_bytes;
    }
    end(worker, connection, context, &reply);
}

static void
end_read_lac(struct fbk_worker *worker, struct fbk_connection *connection,
             struct fbk_apache_context *context, const struct fbk_response *response)
{
    struct fbk_apache_reply reply = reply_of(&context->echo, FBK_APACHE_EOK);
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
end_list(struct fbk_worker *worker, struct fbk_connection *connection,
         struct fbk_apache_context *context)
{
    const struct fbk_apache_list *list = &worker->apache.lists[context->list - 1];
    struct fbk_apache_reply reply = reply_of(&context->echo, FBK_APACHE_EOK);
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
take_page(struct fbk_worker *worker, struct fbk_connection *connection,
          struct fbk_apache_context *context, const struct fbk_response *response)
{
    uint32_t status =
        fbk_context_add_ranges(worker, context, response->ranges, response->range_count);
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

/* ------------ an index's frames */

static void
take_answer(struct fbk_worker *worker, struct fbk_connection *connection,
            struct fbk_apache_context *context, const struct fbk_response *response)
{
    /* or to something else */
    if (response->status != FBK_S_OK || response->body_type != body_of(context)) {
        end_with_status(worker, connection, context,
                        response->status != FBK_S_OK ? response->status : FBK_S_IO_ERROR);
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
    case FBK_RESPONSE_BODY_READ_BATCH_REPLY:
        end_batch(worker, connection, context, response);
        break;
    case FBK_RESPONSE_BODY_READ_LAC_REPLY:
        if (context->echo.operation == FBK_APACHE_READ_LAC)
            end_read_lac(worker, connection, context, response);
        else
            end_poll(worker, connection, context, response);
        break;
    default: end_with_status(worker, connection, context, FBK_S_OK); break;
    }
}

bool
fbk_worker_apache_frame(struct fbk_worker *worker, struct fbk_connection *connection,
                        const uint8_t *frame, uint32_t frame_bytes)
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

void
fbk_contexts_serve(struct fbk_worker *worker, struct fbk_lane *lane)
{
    const struct fbk_context_line *line = &worker->apache.lines[lane->number];
    while (line->first != FBK_NO_CONTEXT) {
        struct fbk_apache_context *context = &worker->apache.contexts[line->first];
        struct fbk_connection *connection = fbk_connection_at(worker, context->slot);
        fbk_context_leave_line(worker, connection, context);
        if (!try_step(worker, connection, context)) {
            fbk_context_join_line(worker, connection, context, true);
            return;
        }
    }
}

/* ------------ may it be taken */

static bool
is_for_python(uint32_t operation)
{
    switch (operation) {
    case FBK_APACHE_ADD:
    case FBK_APACHE_READ:
    case FBK_APACHE_READ_BATCH:
    case FBK_APACHE_LIST:
    case FBK_APACHE_READ_LAC:
    case FBK_APACHE_WRITE_LAC:
    case FBK_APACHE_FORCE: return false;
    default: return true;
    }
}

static bool
is_poll(const struct fbk_apache_request *message)
{
    return fbk_apache_is_poll(message->operation, message->flags);
}

/* Recoveries and whatever else is urgent stand in no queue that may be full. */
static bool
is_urgent(const struct fbk_apache_request *message)
{
    return (message->flags & (FBK_APACHE_HIGH_PRIORITY | FBK_APACHE_RECOVERY | FBK_APACHE_FENCE)) !=
           0;
}

static bool
is_above(uint32_t count, uint32_t limit)
{
    return limit != 0 && count >= limit;
}

static bool
is_add(const struct fbk_apache_request *message)
{
    return message->operation == FBK_APACHE_ADD;
}

static bool
is_read(const struct fbk_apache_request *message)
{
    return message->operation == FBK_APACHE_READ_BATCH ||
           (message->operation == FBK_APACHE_READ && !is_poll(message));
}

static bool
takes_no_adds(struct fbk_worker *worker, int64_t ledger_id)
{
    return worker->options.is_reads_only ||
           fbk_cursor_load(&fbk_lane_of(worker, ledger_id)->index->reads_only) != 0;
}

/* FBK_APACHE_EOK, or what is answered at once. */
static uint32_t
judge(struct fbk_worker *worker, const struct fbk_apache_request *message)
{
    const struct fbk_worker_options *options = &worker->options;
    const struct fbk_worker_apache *apache = &worker->apache;
    if (is_poll(message) && (message->flags & FBK_APACHE_PIGGYBACK) &&
        message->entry_id != FBK_APACHE_NO_ENTRY)
        return FBK_APACHE_EBADREQ;
    if (is_poll(message) && apache->polls >= options->apache_requests_max / 2)
        return FBK_APACHE_ETOOMANYREQUESTS;
    if (!is_urgent(message) &&
        ((is_add(message) && is_above(apache->adds, options->apache_adds_pending_max)) ||
         (is_read(message) && is_above(apache->reads, options->apache_reads_pending_max))))
        return FBK_APACHE_ETOOMANYREQUESTS;
    /* Ours takes it: it is not written to the disk.  Apache's refuses it. */
    if (message->operation == FBK_APACHE_WRITE_LAC && takes_no_adds(worker, message->ledger_id))
        return FBK_APACHE_EREADONLY;
    return FBK_APACHE_EOK;
}

/* Whether the connection stops here until others are answered: FBK_DONE if not. */
static enum fbk_outcome
get_wait(const struct fbk_worker *worker, const struct fbk_apache_request *message)
{
    const struct fbk_worker_apache *apache = &worker->apache;
    if (is_add(message) && is_above(apache->adds, worker->options.apache_adds_in_progress_max))
        return FBK_WAIT_APACHE_ADDS;
    if (is_read(message) && is_above(apache->reads, worker->options.apache_reads_in_progress_max))
        return FBK_WAIT_APACHE_READS;
    return FBK_DONE;
}

enum fbk_outcome
fbk_worker_apache_dispatch(struct fbk_worker *worker, struct fbk_connection *connection,
                           const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_request message;
    uint32_t status = FBK_APACHE_EOK;
    uint8_t right;
    switch (fbk_apache_read_request(body, body_bytes, &message, &status)) {
    case FBK_APACHE_CLOSE: fbk_worker_note(worker, FBK_C_WORKER_BAD_FRAME); return FBK_CLOSE;
    case FBK_APACHE_REFUSE: break;
    case FBK_APACHE_GOOD:
        right = fbk_apache_right_for(&message);
        if (right & ~connection->rights) { /* INV-N2 */
            fbk_worker_note(worker, FBK_C_WORKER_REFUSED_RIGHTS);
            fbk_audit_denial(worker, connection, right, message.ledger_id);
            status = FBK_APACHE_EUA;
        } else if (is_for_python(message.operation)) {
            return FBK_FOR_PYTHON;
        } else {
            status = judge(worker, &message);
        }
        break;
    }
    if (status != FBK_APACHE_EOK) {
        fbk_worker_apache_count(worker, &message);
        refuse(worker, connection, &message, status);
        return FBK_DONE;
    }
    enum fbk_outcome outcome = get_wait(worker, &message);
    if (outcome != FBK_DONE)
        return outcome;
    struct fbk_apache_context *context = fbk_context_new(worker, connection, &message);
    if (context == NULL)
        return FBK_WAIT_CONTEXT;
    outcome = start(worker, connection, context, &message);
    if (outcome == FBK_DONE || outcome >= FBK_ANSWER)
        fbk_worker_apache_count(worker, &message);
    else
        fbk_context_end(worker, connection, context);
    if (outcome < FBK_ANSWER)
        return outcome;
    end_with_status(worker, connection, context, outcome - FBK_ANSWER);
    return FBK_DONE;
}
