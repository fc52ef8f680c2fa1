/* The one hash of ledger ids, for Python. */
#include "base/shard.h"

uint32_t
fbk_python_shard_of(int64_t ledger_id)
{
    return fbk_shard_of(ledger_id);
}
