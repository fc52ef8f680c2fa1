"""Which log lines are changes of state, so that they are recorded as events too, and of what kind each is.

An event is not a second call beside the log line: `EventLog` gets every line of the process, and keeps those that
stand here. docs/events.md has the same table for people.

Decision 125.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from fastbk.printable_text import printable_json

VALUES_BYTES_MAX = 4096

KINDS = {
    "start": "a process began to serve, or how it found what the one before left",
    "stop": "a process was stopped, or ended by itself",
    "child": "one of a bookie's processes died, froze or was started again",
    "limit": "a limit was reached: clients were refused, delayed or closed",
    "disk": "a disk is full, failing, slow or gone, or is well again; damage was found",
    "stall": "commits of a journal are slow, or are quick again",
    "read_only": "a bookie refuses normal adds, or takes them again",
    "ensemble": "a writer or a repair replaced a bookie of a ledger",
    "fence": "a client fenced a ledger",
    "recovery": "lost copies were found, and made again",
    "session": "the metadata store was lost or found again",
    "hold": "deleting, compaction or healing is held, or goes on",
    "certificate": "a certificate ends soon, was renewed, or cannot be read",
    "maintenance": "an operator requested something",
}
"""Each kind, and what it is about."""

KIND_OF = {
    "bookie.born": "start",
    "bookie.started": "start",
    "bookie.unclean_stop": "start",
    "journal.replayed": "start",
    "janitor.started": "start",
    "autorecovery.started": "start",
    "autorecovery.elected": "start",
    "bookie.asked_to_stop": "stop",
    "bookie.draining": "stop",
    "bookie.failed": "stop",
    "bookie.killed": "stop",
    "bookie.start_cut_off": "stop",
    "bookie.stopped": "stop",
    "drain.failed": "stop",
    "drain.timed_out": "stop",
    "janitor.ended": "stop",
    "autorecovery.ended": "stop",
    "autorecovery.auditor_ended": "stop",
    "bookie.broke_down": "child",
    "bookie.broke_down_with_a_disk": "child",
    "bookie.reads_only": "child",
    "bookie.down": "child",
    "bookie.tries_again": "child",
    "process.failed": "child",
    "process.frozen": "child",
    "process.resumed": "child",
    "autorecovery.auditor_failed": "child",
    "connection.unauthorized": "limit",
    "http.limit_reached": "limit",
    "index.adds_refused": "limit",
    "index.adds_taken": "limit",
    "journal.limit": "limit",
    "ledgers.full": "limit",
    "ledgers.room": "limit",
    "quota.kept_again": "limit",
    "quota.reached": "limit",
    "worker.connections_limited": "limit",
    "worker.limit_reached": "limit",
    "worker.slow_room": "limit",
    "bookie.disk_is_back": "disk",
    "bookie.reads_only_for_disk": "disk",
    "bookie.waits_for_disk": "disk",
    "compaction.damage": "disk",
    "damage.in_limbo": "disk",
    "disk.changed": "disk",
    "disk.quick_again": "disk",
    "disk.reserve_is_short": "disk",
    "disk.slow": "disk",
    "index.locations_damaged": "disk",
    "journal.damaged": "disk",
    "read.damaged": "disk",
    "scrub.damaged": "disk",
    "scrub.healed": "disk",
    "scrub.more_damaged": "disk",
    "journal.quick_again": "stall",
    "journal.slow": "stall",
    "bookie.became_read_only": "read_only",
    "bookie.became_writable": "read_only",
    "ledger.bookie_replaced": "ensemble",
    "ledger.fenced": "fence",
    "ledger.recovery_began": "recovery",
    "autorecovery.bookie_due": "recovery",
    "autorecovery.bookie_lost": "recovery",
    "autorecovery.bookie_returned": "recovery",
    "autorecovery.ledger_parked": "recovery",
    "autorecovery.marking_ended": "recovery",
    "autorecovery.marking_started": "recovery",
    "index.ledgers_in_limbo": "recovery",
    "autorecovery.session_lost": "session",
    "gc.metadata_unavailable": "session",
    "metadata.connected": "session",
    "metadata.session_begun_anew": "session",
    "metadata.session_expired": "session",
    "metadata.session_refused": "session",
    "metadata.session_suspended": "session",
    "registration.left_behind": "session",
    "registration.lost": "session",
    "registration.recovered": "session",
    "autorecovery.hold_began": "hold",
    "autorecovery.hold_ended": "hold",
    "autorecovery.paused": "hold",
    "autorecovery.resumed": "hold",
    "gc.resumed": "hold",
    "gc.suspended": "hold",
    "metadata.hold_confirmed": "hold",
    "metadata.hold_placed_again": "hold",
    "metadata.on_hold": "hold",
    "metadata.rolled_back": "hold",
    "certificate.ended": "certificate",
    "certificate.ends_soon": "certificate",
    "certificate.renewed": "certificate",
    "certificate.unreadable": "certificate",
    "tls.files_not_taken": "certificate",
    "autorecovery.maintenance_began": "maintenance",
    "autorecovery.maintenance_ended": "maintenance",
    "autorecovery.recovery_ended": "maintenance",
    "autorecovery.recovery_failed": "maintenance",
    "autorecovery.recovery_requested": "maintenance",
    "bookie.read_only_asked": "maintenance",
    "formats.level_rose": "maintenance",
    "gc.run_asked": "maintenance",
    "log.level_changed": "maintenance",
}
"""The kind of each event. A line of the log that is not named here is no event."""


def bounded(values: Mapping[str, object]) -> dict[str, Any]:
    """Return a line's values as JSON has them; of more than VALUES_BYTES_MAX the reason and the beginning."""
    text = printable_json(dict(values))
    if len(text) > VALUES_BYTES_MAX:
        reason = str(values.get("reason", ""))[: VALUES_BYTES_MAX // 4]
        start = text[: VALUES_BYTES_MAX // 4].decode("utf-8", "replace")
        return {"reason": reason, "cut_bytes": len(text), "start": start}
    found: dict[str, Any] = msgspec.json.decode(text)
    return found
