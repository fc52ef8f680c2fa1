"""AutoRecovery: the auditor finds under-replicated ledgers, and replication workers repair them."""
