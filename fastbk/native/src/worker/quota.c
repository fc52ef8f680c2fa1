/* Quotas of principals: adds, bytes and new ledgers a second, over all of a principal's connections
 * to this worker. */
#include "worker/worker.h"

#include "base/segment.h"
#include "wire/schema.h"

#define BURST_S 0.1 /* unused time is saved for so long */

void
fbk_quotas_init(struct fbk_worker *worker)
{
    worker->quotas = fbk_memory_take(FBK_QUOTAS_MAX * sizeof *worker->quotas);
    worker->quota_ledgers = fbk_memory_take(FBK_QUOTAS_MAX * sizeof *worker->quota_ledgers);
}

void
fbk_quotas_free(struct fbk_worker *worker)
{
    fbk_memory_give_back(worker->quotas, FBK_QUOTAS_MAX * sizeof *worker->quotas);
    fbk_memory_give_back(worker->quota_ledgers, FBK_QUOTAS_MAX * sizeof *worker->quota_ledgers);
}

/* ------------ rates */

static double
most_of(double per_s)
{
    return per_s * BURST_S > 1 ? per_s * BURST_S : 1;
}

static void
fill(double *left, double per_s, double passed_s)
{
    const double most = most_of(per_s);
    *left += per_s * passed_s;
    if (*left > most)
        *left = most;
}

/* ------------ ledgers */

static uint64_t
key_of(int64_t ledger_id)
{
    return (uint64_t)ledger_id + 1;
}

static uint64_t *
set_of(struct fbk_worker *worker, uint32_t number, uint64_t key)
{
    const uint64_t hash = key * 0x9e3779b97f4a7c15u;
    return worker->quota_ledgers[number].keys[(hash >> 32) % FBK_QUOTA_SETS];
}

static bool
is_recent(struct fbk_worker *worker, uint32_t number, int64_t ledger_id)
{
    const uint64_t key = key_of(ledger_id), *set = set_of(worker, number, key);
    for (uint32_t way = 0; way < FBK_QUOTA_WAYS; way++)
        if (set[way] == key)
            return true;
    return false;
}

/* Moves a ledger to the front of its set.  False: it was not there. */
static bool
remember(struct fbk_worker *worker, uint32_t number, int64_t ledger_id)
{
    const uint64_t key = key_of(ledger_id);
    uint64_t *set = set_of(worker, number, key);
    uint32_t way = 0;
    while (way < FBK_QUOTA_WAYS - 1 && set[way] != key)
        way++;
    const bool was_there = set[way] == key;
    memmove(set + 1, set, way * sizeof *set);
    set[0] = key;
    return was_there;
}

/* ------------ adds and fences */

/* Both begin a ledger that the bookie does not have, recovery adds included.  Of the other rates a
 * fence takes nothing. */
static bool
allows(struct fbk_worker *worker, uint32_t number, int64_t ledger_id, bool is_add)
{
    struct fbk_quota *quota = &worker->quotas[number];
    /* Of the call, which read the clock for all of its adds: reading it again would take half as
     * long as an add. */
    const uint64_t now_ns =
        worker->clock_ns > quota->filled_ns ? worker->clock_ns : quota->filled_ns;
    const double passed_s = (double)(now_ns - quota->filled_ns) / 1e9;
    quota->filled_ns = now_ns;
    fill(&quota->adds, quota->adds_per_s, passed_s);
    fill(&quota->bytes, quota->bytes_per_s, passed_s);
    bool has_some = !is_add || ((quota->adds_per_s <= 0 || quota->adds > 0) &&
                                (quota->bytes_per_s <= 0 || quota->bytes > 0));
    if (quota->ledgers_per_s > 0) {
        fill(&quota->ledgers, quota->ledgers_per_s, passed_s);
        has_some = has_some && (quota->ledgers >= 1 || is_recent(worker, number, ledger_id));
    }
    return has_some;
}

bool
fbk_quota_allows(struct fbk_worker *worker, struct fbk_connection *connection,
                 const struct fbk_request *request)
{
    if (FBK_LIKELY(connection->quota == 0))
        return true;
    connection->quota_ledger_id = request->ledger_id;
    connection->quota_is_of_add = request->body_type != FBK_REQUEST_BODY_READ;
    return allows(worker, connection->quota, connection->quota_ledger_id,
                  connection->quota_is_of_add);
}

bool
fbk_quota_may_go_on(struct fbk_worker *worker, const struct fbk_connection *connection)
{
    return connection->quota == 0 || allows(worker, connection->quota, connection->quota_ledger_id,
                                            connection->quota_is_of_add);
}

void
fbk_quota_charge(struct fbk_worker *worker, const struct fbk_connection *connection,
                 const struct fbk_request *request, uint32_t entries)
{
    if (FBK_LIKELY(connection->quota == 0))
        return;
    struct fbk_quota *quota = &worker->quotas[connection->quota];
    quota->adds -= quota->adds_per_s > 0 ? entries : 0;
    quota->bytes -= quota->bytes_per_s > 0 ? (double)request->body_bytes : 0;
    if (quota->ledgers_per_s > 0 && !remember(worker, connection->quota, request->ledger_id))
        quota->ledgers -= 1;
}

/* ------------ Python's calls */

void
fbk_worker_set_quota(struct fbk_worker *worker, uint32_t number, uint64_t adds_per_s,
                     uint64_t bytes_per_s, double ledgers_per_s)
{
    FBK_ASSERT(number > 0 && number < FBK_QUOTAS_MAX && worker->quotas != NULL);
    struct fbk_quota *quota = &worker->quotas[number];
    if (quota->ledgers_per_s > 0) /* else nothing was ever written there */
        memset(&worker->quota_ledgers[number], 0, sizeof worker->quota_ledgers[number]);
    *quota = (struct fbk_quota){
        .adds_per_s = (double)adds_per_s,
        .bytes_per_s = (double)bytes_per_s,
        .ledgers_per_s = ledgers_per_s,
        .ledgers = most_of(ledgers_per_s), /* a tenth of a second's may be less than one */
        .filled_ns = fbk_now_ns(),
    };
    fill(&quota->adds, (double)adds_per_s, BURST_S);
    fill(&quota->bytes, (double)bytes_per_s, BURST_S);
}

void
fbk_worker_use_quota(struct fbk_worker *worker, uint32_t slot, uint32_t number)
{
    FBK_ASSERT(number < FBK_QUOTAS_MAX && (number == 0 || worker->quotas != NULL));
    fbk_connection_at(worker, slot)->quota = number;
}

uint32_t
fbk_worker_quota_waits(const struct fbk_worker *worker)
{
    return worker->lines[FBK_LINE_QUOTA].count;
}
