"""What a peer can cause is logged by `LimitLog`: nobody fills a log with requests, connections or handshakes."""

from __future__ import annotations

import re
from pathlib import Path

import fastbk

PACKAGE = Path(fastbk.__file__).parent
PEERS_REACH = (
    "security",
    "server/network",
    "server/admin",
    "apache/http",
    "gateway",
    "console",
    "web",
)
DIRECT = re.compile(
    r"\blogs\.(?:info|warning|error|write)\(\s*([^\s,)]+)|(default_exception_handler)"
)
ALLOWED = {
    '"audit.broken_end"': "once, at a start",
    '"audit.head"': "at a start, at an end, and once an hour",
    '"authentication.files_not_taken"': "once for each change of the files",
    '"certificate.renewed"': "once for each certificate",
    "_EVENTS[state]": "once for each state of a certificate",
    '"console.ended"': "once",
    '"console.started"': "once",
    '"console.streams_not_read"': "a pass, by our own clock",
    '"console.without_uplot"': "once",
    '"gateway.connections_limited"': "once",
    '"gateway.ended"': "once",
    '"gateway.started"': "once",
    '"http.ledger_deleted"': "once for each ledger that is gone, by who may delete them",
    '"ledger.bookie_replaced"': "an event; who sends more than REPORTS_PER_S is refused",
    '"ledger.placed_short"': "an event; who sends more than REPORTS_PER_S is refused",
    '"quota.kept_again"': "at most one in KEPT_S",
    '"quota.reached"': "at most one in KEPT_S",
    '"tls.files_not_taken"': "once for each change of the files",
    '"worker.connections_limited"': "once",
    '"worker.drained"': "once",
    '"worker.ready"': "once",
}


def test_only_known_lines_are_logged_each_time() -> None:
    found = {
        next(filter(None, match.groups()))
        for folder in PEERS_REACH
        for path in (PACKAGE / folder).rglob("*.py")
        for match in DIRECT.finditer(path.read_text())
    }
    assert found - set(ALLOWED) == set(), (
        "use fastbk.observe.logs.LimitLog, or say here what bounds it"
    )
    assert set(ALLOWED) - found == set(), "these are gone"
