/* Apache's requests, as ours: read, given a context, and placed the way that ours are (fbk_worker_take). */
#include "worker/count.h"

#include "wire/schema.h"

#define LONG_POLL_MS_MAX 60000
#define BATCH_HEAD_BYTES 36 /* what Apache counts of a batch reply before its first entry */

/* ------------------------------------------------------------------ each request's steps */

/* Which digest a ledger's entries and explicit LACs have metadata knows. */
static void
look_up_digest(struct fbk_worker *worker, struct fbk_connection *connection, int64_t ledger_id, struct fbk_request *request)
{
    if (fbk_digests_look_up(&worker->digests, ledger_id, &request->digest_type))
        fbk_connection_todo(worker, connection, FBK_DO_DIGESTS);
}

static void
ask_add(struct fbk_worker *worker, struct fbk_connection *connection, const struct fbk_apache_request *asked,
        struct fbk_request *request)
{
    /* Ids are those inside the entry, as Apache's bookies take them. */
    request->body_type = FBK_REQUEST_BODY_ADD;
    request->flags = (asked->flags & FBK_APACHE_RECOVERY ? FBK_FLAG_RECOVERY : 0) |
                     (asked->flags & FBK_APACHE_DEFERRED_SYNC ? FBK_FLAG_DEFERRED_SYNC : 0);
    look_up_digest(worker, connection, asked->ledger_id, request);
    request->body = asked->body;
    request->body_bytes = asked->body_bytes;
}

static void
ask_read(const struct fbk_apache_context *context, struct fbk_request *request)
{
    request->body_type = FBK_REQUEST_BODY_READ;
    request->flags = context->flags & FBK_APACHE_FENCE ? FBK_FLAG_FENCE : 0;
}

static void
ask_poll(const struct fbk_apache_context *context, const struct fbk_apache_request *asked, struct fbk_request *request)
{
    int64_t timeout_ms = asked->timeout_ms < 0 ? 0 : asked->timeout_ms;
    request->body_type = FBK_REQUEST_BODY_READ_LAC;
    request->other_id = context->previous_lac;
    request->timeout_ms = (uint32_t)(timeout_ms < LONG_POLL_MS_MAX ? timeout_ms : LONG_POLL_MS_MAX);
    request->flags = FBK_FLAG_PIGGYBACK;
}

static void
ask_batch(const struct fbk_worker *worker, const struct fbk_apache_context *context, struct fbk_request *request)
{
    uint32_t most = FBK_APACHE_BATCH_ENTRIES_MAX;
    uint32_t count = context->count_max == 0 || context->count_max > most ? most : context->count_max;
    int64_t first = context->entry_id; /* below 0 it is the id of no entry */
    int64_t limit = context->size_bytes_max < BATCH_HEAD_BYTES ? 0 : context->size_bytes_max - BATCH_HEAD_BYTES;
    int64_t frame = worker->options.frame_size_bytes_max;
    request->body_type = FBK_REQUEST_BODY_READ_BATCH;
    request->other_id = first < 0 ? -1 : INT64_MAX - first < count ? INT64_MAX : first + (int64_t)count - 1;
    request->count_max = count;
    request->size_bytes_max = limit < 1 ? 1 : (uint32_t)(limit < frame ? limit : frame); /* the first one comes anyway */
}

static void
ask_page(const struct fbk_apache_context *context, struct fbk_request *request)
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

enum fbk_taken
fbk_worker_apache_step(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context)
{
    struct fbk_request request = request_of(worker, context);
    uint8_t lane = connection->lane; /* of what the connection itself may wait for */
    switch (context->asked.operation) {
    case FBK_APACHE_READ_BATCH: ask_batch(worker, context, &request); break;
    case FBK_APACHE_LIST: ask_page(context, &request); break;
    default: ask_read(context, &request); break;
    }
    enum fbk_taken taken = fbk_worker_take(worker, connection, &request);
    connection->lane = lane;
    return taken;
}

/* The first step: what is placed for a request that has just come. */
static enum fbk_taken
start(struct fbk_worker *worker, struct fbk_connection *connection, struct fbk_apache_context *context,
      const struct fbk_apache_request *asked)
{
    struct fbk_request request = request_of(worker, context);
    request.master_key = asked->master_key;
    switch (asked->operation) {
    case FBK_APACHE_ADD: ask_add(worker, connection, asked, &request); break;
    case FBK_APACHE_READ:
        ask_read(context, &request);
        if (!fbk_apache_is_poll(context->asked.operation, context->flags))
            break;
        context->previous_lac = asked->previous_lac < -1 ? -1 : asked->previous_lac;
        if (context->flags & FBK_APACHE_PIGGYBACK) {
            ask_poll(context, asked, &request);
        } else if (context->flags & FBK_APACHE_HAS_TIMEOUT) {
            context->step = FBK_STEP_POLL;
            ask_poll(context, asked, &request);
        }
        break;
    case FBK_APACHE_READ_BATCH:
        context->size_bytes_max = asked->size_bytes_max < worker->options.apache_batch_bytes_max
                                      ? asked->size_bytes_max
                                      : worker->options.apache_batch_bytes_max;
        if (context->flags & FBK_APACHE_FENCE) {
            context->step = FBK_STEP_FENCE;
            ask_read(context, &request);
        } else {
            ask_batch(worker, context, &request);
        }
        break;
    case FBK_APACHE_LIST:
        context->step = FBK_STEP_PAGE;
        context->first_entry_id = 0;
        ask_page(context, &request);
        break;
    case FBK_APACHE_READ_LAC:
        request.body_type = FBK_REQUEST_BODY_READ_LAC;
        request.other_id = -1;
        break;
    case FBK_APACHE_WRITE_LAC:
        request.body_type = FBK_REQUEST_BODY_WRITE_LAC;
        look_up_digest(worker, connection, asked->ledger_id, &request);
        request.body = asked->body;
        request.body_bytes = asked->body_bytes;
        break;
    default: request.body_type = FBK_REQUEST_BODY_FORCE; break;
    }
    return fbk_worker_take(worker, connection, &request);
}

uint32_t
fbk_worker_apache_body(const struct fbk_apache_context *context)
{
    switch (context->step) {
    case FBK_STEP_PAGE: return FBK_RESPONSE_BODY_LIST_ENTRIES_REPLY;
    case FBK_STEP_POLL: return FBK_RESPONSE_BODY_READ_LAC_REPLY;
    case FBK_STEP_FENCE: return FBK_RESPONSE_BODY_READ_REPLY;
    default: break;
    }
    switch (context->asked.operation) {
    case FBK_APACHE_READ:
        return (context->flags & (FBK_APACHE_PIGGYBACK | FBK_APACHE_FENCE)) == FBK_APACHE_PIGGYBACK
                   ? FBK_RESPONSE_BODY_READ_LAC_REPLY
                   : FBK_RESPONSE_BODY_READ_REPLY;
    case FBK_APACHE_READ_BATCH: return FBK_RESPONSE_BODY_READ_BATCH_REPLY;
    case FBK_APACHE_READ_LAC: return FBK_RESPONSE_BODY_READ_LAC_REPLY;
    default: return 0;
    }
}

/* ------------------------------------------------------------------ may it be taken */

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
is_poll(const struct fbk_apache_request *asked)
{
    return fbk_apache_is_poll(asked->operation, asked->flags);
}

/* Recoveries and whatever else is urgent stand in no queue that may be full. */
static bool
is_urgent(const struct fbk_apache_request *asked)
{
    return (asked->flags & (FBK_APACHE_HIGH_PRIORITY | FBK_APACHE_RECOVERY | FBK_APACHE_FENCE)) != 0;
}

static bool
is_above(uint32_t count, uint32_t limit)
{
    return limit != 0 && count >= limit;
}

static bool
is_add(const struct fbk_apache_request *asked)
{
    return asked->operation == FBK_APACHE_ADD;
}

static bool
is_read(const struct fbk_apache_request *asked)
{
    return asked->operation == FBK_APACHE_READ_BATCH || (asked->operation == FBK_APACHE_READ && !is_poll(asked));
}

static bool
takes_no_adds(struct fbk_worker *worker, int64_t ledger_id)
{
    return worker->options.is_reads_only || fbk_cursor_load(&fbk_lane_of(worker, ledger_id)->index->reads_only) != 0;
}

/* FBK_APACHE_EOK, or what is answered at once. */
static uint32_t
judge(struct fbk_worker *worker, const struct fbk_apache_request *asked)
{
    const struct fbk_worker_options *options = &worker->options;
    const struct fbk_worker_apache *apache = &worker->apache;
    if (is_poll(asked) && (asked->flags & FBK_APACHE_PIGGYBACK) && asked->entry_id != FBK_APACHE_NO_ENTRY)
        return FBK_APACHE_EBADREQ;
    if (is_poll(asked) && apache->polls >= options->apache_requests_max / 2)
        return FBK_APACHE_ETOOMANYREQUESTS;
    if (!is_urgent(asked) && ((is_add(asked) && is_above(apache->adds, options->apache_adds_pending_max)) ||
                              (is_read(asked) && is_above(apache->reads, options->apache_reads_pending_max))))
        return FBK_APACHE_ETOOMANYREQUESTS;
    /* Ours takes it: it is not written to the disk.  Apache's refuses it. */
    if (asked->operation == FBK_APACHE_WRITE_LAC && takes_no_adds(worker, asked->ledger_id))
        return FBK_APACHE_EREADONLY;
    return FBK_APACHE_EOK;
}

/* Whether the connection stops here until others are answered: FBK_TAKEN if not. */
static enum fbk_taken
get_wait(const struct fbk_worker *worker, const struct fbk_apache_request *asked)
{
    const struct fbk_worker_apache *apache = &worker->apache;
    if (is_add(asked) && is_above(apache->adds, worker->options.apache_adds_in_progress_max))
        return FBK_TAKEN_WAIT_ADDS;
    if (is_read(asked) && is_above(apache->reads, worker->options.apache_reads_in_progress_max))
        return FBK_TAKEN_WAIT_READS;
    return FBK_TAKEN;
}

enum fbk_taken
fbk_worker_apache_take(struct fbk_worker *worker, struct fbk_connection *connection, const uint8_t *body, uint32_t body_bytes)
{
    struct fbk_apache_request asked;
    uint32_t status = FBK_APACHE_EOK;
    switch (fbk_apache_read_request(body, body_bytes, &asked, &status)) {
    case FBK_APACHE_CLOSE: fbk_worker_note(worker, FBK_C_WORKER_BAD_FRAME); return FBK_TAKEN_CLOSE;
    case FBK_APACHE_REFUSE: break;
    case FBK_APACHE_GOOD:
        if (is_for_python(asked.operation))
            return FBK_TAKEN_COLD;
        status = judge(worker, &asked);
        break;
    }
    if (status != FBK_APACHE_EOK) {
        fbk_worker_apache_count(worker, &asked);
        fbk_worker_apache_refuse(worker, connection, &asked, status);
        return FBK_TAKEN;
    }
    enum fbk_taken taken = get_wait(worker, &asked);
    if (taken != FBK_TAKEN)
        return taken;
    struct fbk_apache_context *context = fbk_context_take(worker, connection, &asked);
    if (context == NULL)
        return FBK_TAKEN_WAIT_CONTEXT;
    taken = start(worker, connection, context, &asked);
    if (taken == FBK_TAKEN)
        fbk_worker_apache_count(worker, &asked);
    else
        fbk_context_give_back(worker, connection, context);
    return taken;
}
