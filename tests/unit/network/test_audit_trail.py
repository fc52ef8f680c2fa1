"""What a worker makes of clients' reports, and of the fences that it sees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from fastbk.observe import logs
from fastbk.security.admission import Client
from fastbk.security.rights import ANYBODY, ROLES, Principal
from fastbk.server.network.audit_trail import (
    FENCED,
    FENCES_BURST_S,
    FENCES_PER_S,
    RECENT_MAX,
    RECOVERED,
    REPORTS_BURST_S,
    REPORTS_PER_S,
    TEXT_CHARACTERS_MAX,
    ClientReports,
    LedgerEvents,
)
from fastbk.wire.messages import (
    REPORT_BYTES_MAX,
    ErrorReply,
    HelloReply,
    decode_reply,
    encode_reply,
)
from fastbk.wire.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT: dict[str, Any] = {
    "event": "ledger.bookie_replaced",
    "ledger_id": 17,
    "first_entry_id": 1566,
    "bookie": "bookie-3",
    "replacement": "bookie-1",
    "index": 0,
    "reason": "the connection was lost",
    "cause": "writer",
    "client": "app-7:4711",
}
Logged = list[tuple[str, str, dict[str, Any]]]


class Clock:
    s = 0.0

    def now(self) -> float:
        return self.s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def logged() -> Iterator[Logged]:
    found: Logged = []

    def take(level: str, event: str, values: Any) -> None:
        found.append((level, event, dict(values)))

    logs.add_taker(take)
    yield found
    logs.remove_taker(take)


def accept(request_id: int, payload: bytes) -> bytes:
    reply = HelloReply(
        version=1, frame_size_bytes_max=5000, batch_entry_count_max=1, incarnation=1, bookie_id="b", software="fastbk",
        pending_requests_max=1, auth_payload=payload,
    )  # fmt: skip
    return encode_reply(request_id, Status.OK, reply)


def client(principal: Principal = ANYBODY, slot: int = 1) -> Client:
    return Client(principal=principal, is_greeted=True, address="10.0.0.7", slot=slot)


def report(reports: ClientReports, payload: bytes, by: Client | None = None) -> tuple[int, str]:
    request_id, status, reply = decode_reply(reports.answer(9, payload, by or client()))
    assert request_id == 9
    return status, reply.message if isinstance(reply, ErrorReply) else ""


def test_a_report_is_logged_with_who_made_it(clock: Clock, logged: Logged) -> None:
    writer = Principal(name="user:app", rights=ROLES["writer"])
    assert report(
        ClientReports(accept, clock.now), json.dumps(REPORT).encode(), client(writer)
    ) == (Status.OK, "")
    values = {name: value for name, value in REPORT.items() if name != "event"}
    assert logged == [
        (
            "info",
            "ledger.bookie_replaced",
            {**values, "address": "10.0.0.7", "principal": "user:app"},
        )
    ]


def test_a_choice_that_keeps_less_than_a_rule_is_logged_too(clock: Clock, logged: Logged) -> None:
    values = {"ledger_id": 17, "reason": "one rack", "more": 2, "client": "app-7:4711"}
    payload = json.dumps({"event": "ledger.placed_short", **values}).encode()
    assert report(ClientReports(accept, clock.now), payload)[0] == Status.OK
    ((level, event, found),) = logged
    assert (level, event) == ("info", "ledger.placed_short")
    assert found.items() >= values.items()


def test_what_a_terminal_would_obey_is_escaped(clock: Clock, logged: Logged) -> None:
    """A reason is kept as an event, and shown to operators."""
    hostile = {**REPORT, "reason": "\x1b]0;owned\x07\x1b[2J\u202e", "client": "app\r\n\x9b1m"}
    assert report(ClientReports(accept, clock.now), json.dumps(hostile).encode())[0] == Status.OK
    ((_, _, values),) = logged
    assert values["reason"] == "\\x1b]0;owned\\x07\\x1b[2J\\u202e"
    assert values["client"] == "app\\r\\n\\x9b1m".replace("\\r\\n", "\\x0d\\x0a")


@pytest.mark.parametrize("role", ["reader"])
def test_who_may_not_write_may_not_report(role: str, clock: Clock, logged: Logged) -> None:
    reader = Principal(name="user:r", rights=ROLES[role])
    status, reason = report(
        ClientReports(accept, clock.now), json.dumps(REPORT).encode(), client(reader)
    )
    assert (status, "add entries" in reason) == (Status.FORBIDDEN, True)
    assert logged == []


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        json.dumps(REPORT).encode().replace(b"reason", b"reas\xd1n"),
        b"[" * 2000,
        json.dumps({**REPORT, "event": "bookie.stopped"}).encode(),
        json.dumps({**REPORT, "ledger_id": "17"}).encode(),
        json.dumps({**REPORT, "bookie": None}).encode(),
        json.dumps({name: value for name, value in REPORT.items() if name != "reason"}).encode(),
        json.dumps({**REPORT, "reason": "x" * REPORT_BYTES_MAX}).encode(),
    ],
)
def test_what_is_no_report_is_refused(payload: bytes, clock: Clock, logged: Logged) -> None:
    assert report(ClientReports(accept, clock.now), payload)[0] == Status.BAD_REQUEST
    assert logged == []


def test_other_fields_are_left_out_and_texts_are_cut(clock: Clock, logged: Logged) -> None:
    payload = json.dumps(
        {**REPORT, "reason": "r" * 900, "principal": "user:admin", "level": "error"}
    ).encode()
    assert report(ClientReports(accept, clock.now), payload)[0] == Status.OK
    ((level, _, values),) = logged
    assert (level, values["principal"], values["reason"]) == (
        "info",
        "anybody",
        "r" * TEXT_CHARACTERS_MAX + "...",
    )
    assert "level" not in values


def test_reports_are_bounded_and_taken_again_later(clock: Clock, logged: Logged) -> None:
    reports, payload = ClientReports(accept, clock.now), json.dumps(REPORT).encode()
    statuses = [report(reports, payload)[0] for _ in range(1000)]
    burst = int(REPORTS_PER_S * REPORTS_BURST_S)
    assert burst <= statuses.count(Status.OK) == len(logged) <= burst + 1
    assert statuses[-1] == Status.TOO_MANY_REQUESTS
    clock.s += 1
    assert report(reports, payload)[0] == Status.OK


def test_a_fence_is_recorded_once_for_a_ledger_and_connection_and_is_in_no_log(
    clock: Clock, logged: Logged, capfd: pytest.CaptureFixture[str]
) -> None:
    events = LedgerEvents(clock.now)
    for _ in range(5):
        events.note(FENCED, 7, client())
    events.note(RECOVERED, 7, client())
    events.note(FENCED, 7, client(slot=2))
    assert [(event, values["ledger_id"]) for _, event, values in logged] == [
        (FENCED, 7),
        (RECOVERED, 7),
        (FENCED, 7),
    ]
    assert capfd.readouterr().err == ""


def test_fences_of_many_ledgers_are_bounded_and_counted(clock: Clock, logged: Logged) -> None:
    events = LedgerEvents(clock.now)
    for ledger_id in range(10_000):
        events.note(FENCED, ledger_id, client())
    burst = int(FENCES_PER_S * FENCES_BURST_S)
    assert burst <= len(logged) <= burst + 1
    assert len(events._recent) == RECENT_MAX
    clock.s += 1
    events.note(FENCED, 10_000, client())
    assert logged[-1][2]["more_ledgers"] == 10_000 - (len(logged) - 1)
