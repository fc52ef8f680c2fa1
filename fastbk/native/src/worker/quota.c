/* Quotas of principals: adds and bytes a second, over all of a principal's connections to this worker. */
#include "worker/worker.h"

#define BURST_S 0.1 /* unused time is saved for so long */

static void
fill(double *left, double per_s, double passed_s)
{
    const double most = per_s * BURST_S > 1 ? per_s * BURST_S : 1;
    *left += per_s * passed_s;
    if (*left > most)
        *left = most;
}

bool
fbk_quota_allows(struct fbk_worker *worker, const struct fbk_connection *connection)
{
    if (FBK_LIKELY(connection->quota == 0))
        return true;
    struct fbk_quota *quota = &worker->quotas[connection->quota];
    const uint64_t now_ns = fbk_now_ns();
    const double passed_s = (double)(now_ns - quota->filled_ns) / 1e9;
    quota->filled_ns = now_ns;
    fill(&quota->adds, quota->adds_per_s, passed_s);
    fill(&quota->bytes, quota->bytes_per_s, passed_s);
    return (quota->adds_per_s <= 0 || quota->adds > 0) && (quota->bytes_per_s <= 0 || quota->bytes > 0);
}

void
fbk_quota_charge(struct fbk_worker *worker, const struct fbk_connection *connection, uint32_t entries, uint64_t bytes)
{
    if (FBK_LIKELY(connection->quota == 0))
        return;
    struct fbk_quota *quota = &worker->quotas[connection->quota];
    quota->adds -= quota->adds_per_s > 0 ? entries : 0;
    quota->bytes -= quota->bytes_per_s > 0 ? (double)bytes : 0;
}

void
fbk_worker_set_quota(struct fbk_worker *worker, uint32_t number, uint64_t adds_per_s, uint64_t bytes_per_s)
{
    FBK_ASSERT(number > 0 && number < FBK_QUOTAS_MAX && worker->quotas != NULL);
    worker->quotas[number] = (struct fbk_quota){
        .adds_per_s = (double)adds_per_s,
        .bytes_per_s = (double)bytes_per_s,
        .filled_ns = fbk_now_ns(),
    };
    fill(&worker->quotas[number].adds, (double)adds_per_s, BURST_S);
    fill(&worker->quotas[number].bytes, (double)bytes_per_s, BURST_S);
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
