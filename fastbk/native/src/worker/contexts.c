/* What Apache's requests under way have: a *context* each, which knows what was requested and how
 * to say the answer.
 *
 * Contexts are a bounded pool, a list of each connection's, and a line for each lane of those whose
 * next step waits for room. An id is generation and number.  With its connection a context ends,
 * whatever is still under way: a late answer finds another generation, or another connection, and
 * reaches nobody. */
#include "worker/worker.h"

#include "base/segment.h"

int32_t
fbk_contexts_init(struct fbk_worker *worker)
{
    struct fbk_worker_apache *apache = &worker->apache;
    apache->contexts =
        fbk_memory_take((uint64_t)worker->options.apache_requests_max * sizeof *apache->contexts);
    apache->sizes = fbk_memory_take(4ull * FBK_APACHE_BATCH_ENTRIES_MAX);
    apache->frame = fbk_memory_take(worker->options.frame_size_bytes_max);
    apache->free_first = FBK_NO_CONTEXT;
    for (uint32_t p = 0; p < FBK_PAIRS_MAX; p++)
        apache->lines[p].first = apache->lines[p].last = FBK_NO_CONTEXT;
    return apache->contexts != NULL && apache->sizes != NULL && apache->frame != NULL ? 0 : -ENOMEM;
}

void
fbk_contexts_free(struct fbk_worker *worker)
{
    struct fbk_worker_apache *apache = &worker->apache;
    for (uint32_t n = 0; n < FBK_APACHE_LISTS; n++)
        free(apache->lists[n].ranges);
    fbk_memory_give_back(apache->contexts,
                         (uint64_t)worker->options.apache_requests_max * sizeof *apache->contexts);
    fbk_memory_give_back(apache->sizes, 4ull * FBK_APACHE_BATCH_ENTRIES_MAX);
    fbk_memory_give_back(apache->frame, worker->options.frame_size_bytes_max);
}

/* ------------ lists */

/* Lists of a ledger's entries: one answer from several pages.  What they hold meanwhile has a
 * bound, for each and for all of them (INV-B1). */

static struct fbk_apache_list *
list_of(struct fbk_worker_apache *apache, struct fbk_apache_context *context)
{
    if (context->list != 0)
        return &apache->lists[context->list - 1];
    for (uint32_t n = 0; n < FBK_APACHE_LISTS; n++) {
        if (apache->lists[n].room != 0)
            continue;
        context->list = (uint8_t)(n + 1);
        return &apache->lists[n];
    }
    return NULL;
}

static uint32_t
list_grow(struct fbk_worker_apache *apache, struct fbk_apache_list *list, uint32_t needed)
{
    uint32_t room = list->room == 0 ? 64 : list->room;
    while (room < needed)
        room *= 2;
    if (room == list->room)
        return FBK_S_OK;
    if (room > FBK_APACHE_LIST_RANGES_MAX)
        return FBK_S_IO_ERROR; /* it would have to leave something out */
    if (apache->list_ranges - list->room + room > FBK_APACHE_LISTS_RANGES_MAX)
        return FBK_S_TOO_MANY_REQUESTS;
    int64_t *ranges = realloc(list->ranges, 16ull * room);
    if (ranges == NULL)
        return FBK_S_TOO_MANY_REQUESTS;
    apache->list_ranges += room - list->room;
    list->ranges = ranges;
    list->room = room;
    return FBK_S_OK;
}

uint32_t
fbk_context_add_ranges(struct fbk_worker *worker, struct fbk_apache_context *context,
                       const uint8_t *ranges, uint32_t range_count)
{
    struct fbk_worker_apache *apache = &worker->apache;
    struct fbk_apache_list *list = list_of(apache, context);
    if (list == NULL)
        return FBK_S_TOO_MANY_REQUESTS;
    uint32_t status = list_grow(apache, list, list->count + range_count);
    if (status != FBK_S_OK)
        return status;
    if (range_count != 0)
        memcpy(list->ranges + 2ull * list->count, ranges, 16ull * range_count);
    /* A page may begin where the last one's range ended. */
    int64_t *last = list->ranges + 2ull * list->count;
    bool goes_on =
        list->count > 0 && range_count > 0 && last[-1] != INT64_MAX && last[0] == last[-1] + 1;
    if (goes_on) {
        last[-1] = last[1];
        memmove(last, last + 2, 16ull * (range_count - 1));
    }
    list->count += range_count - goes_on;
    return FBK_S_OK;
}

static void
list_free(struct fbk_worker *worker, struct fbk_apache_context *context)
{
    if (context->list == 0)
        return;
    struct fbk_apache_list *list = &worker->apache.lists[context->list - 1];
    worker->apache.list_ranges -= list->room;
    free(list->ranges);
    *list = (struct fbk_apache_list){0};
    context->list = 0;
}

/* ------------ the pool */

/* Of which bound a request takes its share; NULL = of none but the pool's. */
static uint32_t *
share_of(struct fbk_worker_apache *apache, const struct fbk_apache_context *context)
{
    switch (context->echo.operation) {
    case FBK_APACHE_ADD: return &apache->adds;
    case FBK_APACHE_READ:
        return fbk_apache_is_poll(context->echo.operation, context->flags) ? &apache->polls
                                                                           : &apache->reads;
    case FBK_APACHE_READ_BATCH: return &apache->reads;
    default: return NULL;
    }
}

static struct fbk_apache_context *
find_free(const struct fbk_worker *worker, struct fbk_worker_apache *apache)
{
    if (apache->free_first != FBK_NO_CONTEXT) {
        struct fbk_apache_context *context = &apache->contexts[apache->free_first];
        apache->free_first = context->next;
        return context;
    }
    if (apache->context_count == worker->options.apache_requests_max)
        return NULL;
    return &apache->contexts[apache->context_count++];
}

struct fbk_apache_context *
fbk_context_new(struct fbk_worker *worker, struct fbk_connection *connection,
                const struct fbk_apache_request *message)
{
    struct fbk_worker_apache *apache = &worker->apache;
    struct fbk_apache_context *context = find_free(worker, apache);
    if (context == NULL)
        return NULL;
    uint32_t number = (uint32_t)(context - apache->contexts);
    *context = (struct fbk_apache_context){
        .echo = fbk_apache_echo_of(message),
        .generation = context->generation + 1,
        .slot = fbk_connection_slot(worker, connection),
        .next = connection->contexts,
        .previous = FBK_NO_CONTEXT,
        .received_us = worker->now_us,
        .flags = message->flags,
        .ledger_id = message->ledger_id,
        .entry_id = message->entry_id,
        .count_max = message->count_max > 0 ? (uint32_t)message->count_max : 0,
    };
    if (context->next != FBK_NO_CONTEXT)
        apache->contexts[context->next].previous = number;
    connection->contexts = number;
    apache->used++;
    uint32_t *share = share_of(apache, context);
    if (share != NULL)
        ++*share;
    return context;
}

void
fbk_context_leave_line(struct fbk_worker *worker, struct fbk_connection *connection,
                       struct fbk_apache_context *context)
{
    struct fbk_worker_apache *apache = &worker->apache;
    struct fbk_context_line *line = &apache->lines[context->lane];
    if (context->line_previous != FBK_NO_CONTEXT)
        apache->contexts[context->line_previous].line_next = context->line_next;
    else
        line->first = context->line_next;
    if (context->line_next != FBK_NO_CONTEXT)
        apache->contexts[context->line_next].line_previous = context->line_previous;
    else
        line->last = context->line_previous;
    context->is_in_line = false;
    connection->pending--;
    worker->pending--;
}

/* Free for another request; out of its connection's list already, or that list ends. */
static void
free_context(struct fbk_worker *worker, struct fbk_apache_context *context)
{
    struct fbk_worker_apache *apache = &worker->apache;
    uint32_t *share = share_of(apache, context);
    if (share != NULL)
        --*share;
    list_free(worker, context);
    context->slot = FBK_NO_CONNECTION;
    context->next = apache->free_first;
    apache->free_first = (uint32_t)(context - apache->contexts);
    apache->used--;
    apache->freed = true;
}

void
fbk_context_end(struct fbk_worker *worker, struct fbk_connection *connection,
                struct fbk_apache_context *context)
{
    struct fbk_worker_apache *apache = &worker->apache;
    if (context->next != FBK_NO_CONTEXT)
        apache->contexts[context->next].previous = context->previous;
    if (context->previous != FBK_NO_CONTEXT)
        apache->contexts[context->previous].next = context->next;
    else
        connection->contexts = context->next;
    free_context(worker, context);
}

uint64_t
fbk_context_id(const struct fbk_worker *worker, const struct fbk_apache_context *context)
{
    return (uint64_t)context->generation << 32 | (uint32_t)(context - worker->apache.contexts);
}

struct fbk_apache_context *
fbk_context_of(struct fbk_worker *worker, const struct fbk_connection *connection, uint64_t id)
{
    uint32_t number = (uint32_t)id;
    if (number >= worker->apache.context_count)
        return NULL;
    struct fbk_apache_context *context = &worker->apache.contexts[number];
    bool is_it = context->generation == (uint32_t)(id >> 32) &&
                 context->slot == fbk_connection_slot(worker, connection);
    /* in line it has asked nothing that may be answered */
    return is_it && !context->is_in_line ? context : NULL;
}

void
fbk_contexts_drop(struct fbk_worker *worker, struct fbk_connection *connection)
{
    for (uint32_t number = connection->contexts; number != FBK_NO_CONTEXT;) {
        struct fbk_apache_context *context = &worker->apache.contexts[number];
        number = context->next;
        if (context->is_in_line)
            fbk_context_leave_line(worker, connection, context);
        free_context(worker, context);
    }
    connection->contexts = FBK_NO_CONTEXT;
}

/* ------------ waiting for room */

void
fbk_context_join_line(struct fbk_worker *worker, struct fbk_connection *connection,
                      struct fbk_apache_context *context, bool in_front)
{
    struct fbk_worker_apache *apache = &worker->apache;
    struct fbk_context_line *line = &apache->lines[context->lane];
    uint32_t number = (uint32_t)(context - apache->contexts);
    context->is_in_line = true;
    context->line_next = in_front ? line->first : FBK_NO_CONTEXT;
    context->line_previous = in_front ? FBK_NO_CONTEXT : line->last;
    if (context->line_previous != FBK_NO_CONTEXT)
        apache->contexts[context->line_previous].line_next = number;
    else
        line->first = number;
    if (context->line_next != FBK_NO_CONTEXT)
        apache->contexts[context->line_next].line_previous = number;
    else
        line->last = number;
    connection->pending++;
    worker->pending++;
}

void
fbk_context_wait_for_room(struct fbk_worker *worker, struct fbk_connection *connection,
                          struct fbk_apache_context *context)
{
    context->lane = fbk_lane_of(worker, context->ledger_id)->number;
    fbk_context_join_line(worker, connection, context, false);
}
