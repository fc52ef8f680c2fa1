/* What clients did that an audit wants to know, until Python takes it: bounded, and what does not
 * fit is counted. */
#include "worker/worker.h"

void
fbk_audit_note(struct fbk_worker *worker, const struct fbk_connection *connection,
               uint32_t operation, int64_t ledger_id, uint32_t status)
{
    if (worker->audit_count == FBK_WORKER_AUDITS_MAX) {
        worker->audits_dropped++;
        return;
    }
    worker->audits[worker->audit_count++] = (struct fbk_worker_audit){
        .connection = fbk_connection_slot(worker, connection),
        .operation = operation,
        .ledger_id = ledger_id,
        .status = status,
    };
}

void
fbk_audit_denial(struct fbk_worker *worker, const struct fbk_connection *connection, uint8_t right,
                 int64_t ledger_id)
{
    static const uint32_t operations[] = {
        [FBK_RIGHT_ENTER] = FBK_AUDIT_OTHER,
        [FBK_RIGHT_READ] = FBK_AUDIT_READ,
        [FBK_RIGHT_ADD] = FBK_AUDIT_ADD,
        [FBK_RIGHT_RECOVER] = FBK_AUDIT_RECOVER,
    };
    fbk_audit_note(worker, connection, operations[right], ledger_id, FBK_S_FORBIDDEN);
}

void
fbk_audit_recovery(struct fbk_worker *worker, struct fbk_connection *connection, int64_t ledger_id)
{
    const uint64_t mark = (uint64_t)ledger_id + 1;
    if (connection->recovered == mark)
        return;
    connection->recovered = mark;
    fbk_audit_note(worker, connection, FBK_AUDIT_RECOVER, ledger_id, FBK_S_OK);
}

uint32_t
fbk_worker_audits(struct fbk_worker *worker, struct fbk_worker_audit *audits, uint64_t *dropped)
{
    const uint32_t count = worker->audit_count;
    if (count > 0)
        memcpy(audits, worker->audits, count * sizeof *audits);
    *dropped = worker->audits_dropped;
    worker->audit_count = 0;
    worker->audits_dropped = 0;
    return count;
}
