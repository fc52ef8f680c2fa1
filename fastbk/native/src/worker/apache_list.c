/* Lists of a ledger's entries for Apache's clients: one answer from several pages.  What they hold meanwhile has a bound, for
 * each and for all of them (INV-B1). */
#include "worker/worker.h"

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
grow(struct fbk_worker_apache *apache, struct fbk_apache_list *list, uint32_t needed)
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
fbk_apache_list_add(struct fbk_worker *worker, struct fbk_apache_context *context, const uint8_t *ranges, uint32_t range_count)
{
    struct fbk_worker_apache *apache = &worker->apache;
    struct fbk_apache_list *list = list_of(apache, context);
    if (list == NULL)
        return FBK_S_TOO_MANY_REQUESTS;
    uint32_t status = grow(apache, list, list->count + range_count);
    if (status != FBK_S_OK)
        return status;
    if (range_count != 0)
        memcpy(list->ranges + 2ull * list->count, ranges, 16ull * range_count);
    /* A page may begin where the last one's range ended. */
    int64_t *last = list->ranges + 2ull * list->count;
    bool goes_on = list->count > 0 && range_count > 0 && last[-1] != INT64_MAX && last[0] == last[-1] + 1;
    if (goes_on) {
        last[-1] = last[1];
        memmove(last, last + 2, 16ull * (range_count - 1));
    }
    list->count += range_count - goes_on;
    return FBK_S_OK;
}

void
fbk_apache_list_free(struct fbk_worker *worker, struct fbk_apache_context *context)
{
    if (context->list == 0)
        return;
    struct fbk_apache_list *list = &worker->apache.lists[context->list - 1];
    worker->apache.list_ranges -= list->room;
    free(list->ranges);
    *list = (struct fbk_apache_list){0};
    context->list = 0;
}
