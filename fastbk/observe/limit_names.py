"""What the counters of a worker's limits mean (docs/limits.md). They have series from their first event on."""

from __future__ import annotations

LIMITS: dict[str, str] = {
    "FBK_C_WORKER_UNREAD_REPLIES_CUT": "Connections cut because all unread replies together were too many.",
    "FBK_C_WORKER_WRITE_TIMEOUTS": "Connections cut because they read nothing of their replies for too long.",
    "FBK_C_WORKER_SLOW_FRAMES_CUT": "Connections closed because their frame was slow while others waited for memory.",
    "FBK_C_WORKER_SILENT_CLOSED": "Silent connections closed because most connections were in use.",
    "FBK_C_WORKER_TURNS_ENDED": "Times that a connection had to let others have their turn.",
    "FBK_C_WORKER_MEMORY_RETURNED": "Times that unused memory was given back to the system.",
}
