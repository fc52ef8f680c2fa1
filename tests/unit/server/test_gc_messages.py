"""Both ends of the socket between gc and index: pages, small buffers, answers that nobody reads."""

from __future__ import annotations

import socket
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from fastbk.gc import index_client
from fastbk.gc.index_client import IndexClient, IndexSilent
from fastbk.model.quorum import share, write_set
from fastbk.server import gc_messages
from fastbk.server.gc_messages import (
    IDS_A_MESSAGE,
    LOGS_A_MESSAGE,
    MARKED_IDS_A_MESSAGE,
    MESSAGE_BYTES_MAX,
    SETTLED_END,
    SHARES_A_MESSAGE,
    LogUsage,
    Share,
    Space,
    TooLong,
    send,
)
from fastbk.server.index.gc_port import GcPort, HeldCheck, holds
from tests.fixtures.fake_disk import FakeDisk
from tests.fixtures.store_harness import DIRECTORY, StoreHarness
from tests.fixtures.wait import wait_until

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterator, Sequence

FIRST_ID = 9 * 10**18
"""From here on ids have 19 digits, up to the largest."""
COUNT = 100_000
LOGS = [
    SimpleNamespace(
        log_id=FIRST_ID + n,
        durable_bytes=2**63 - 1,
        live_bytes=n,
        sealed=True,
        kind="compaction",
        created_s=2**40,
    )
    for n in range(1200)
]
SPACE = Space(free_bytes=7, total_bytes=9, floor_bytes=2, is_full=True)


@dataclass
class Ledgers:
    """What the port asks of index and flusher."""

    held: list[int] = field(default_factory=list)
    deleted: list[int] = field(default_factory=list)
    reasons: set[str] = field(default_factory=set)

    def list_ledgers(self, cursor: int, count_max: int) -> tuple[list[int], int]:
        found = self.held[cursor : cursor + count_max]
        return found, cursor + len(found)

    def list_settled(self, cursor: int, count_max: int) -> tuple[list[int], list[int], int]:
        found, after = self.list_ledgers(cursor, count_max)
        return found, [2**64 - 1] * len(found), after if found else SETTLED_END

    def delete_ledgers(self, ledger_ids: Sequence[int], reason: str) -> int:
        self.deleted += ledger_ids
        self.reasons.add(reason)
        return len(ledger_ids)


class Longest:
    """A port's socket that remembers the longest message in either direction."""

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped
        self.sent = self.received = 0

    def send(self, data: bytes) -> int:
        count = self._wrapped.send(data)
        self.sent = max(self.sent, len(data))
        return count

    def recv(self, size_bytes: int) -> bytes:
        data = self._wrapped.recv(size_bytes)
        self.received = max(self.received, len(data))
        return data

    def close(self) -> None:
        self._wrapped.close()


def pair(buffer_bytes: int | None) -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        if buffer_bytes is not None:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    return ends


class Held:
    """Finds out at the second time that it is asked."""

    def __init__(self) -> None:
        self.asked: list[object] = []

    def check(self, ledger_id: int, shares: list[Share]) -> bool | None:
        self.asked.append((ledger_id, shares))
        return ledger_id == 7 if len(self.asked) % 2 == 0 else None


def made_port(end: socket.socket, ledgers: Ledgers) -> GcPort:
    checkpoint = SimpleNamespace(manifest=SimpleNamespace(logs=LOGS))
    flusher = SimpleNamespace(delete_ledgers=ledgers.delete_ledgers, upkeep=None)
    return GcPort(
        end.detach(),
        cast("Any", ledgers),
        cast("Any", flusher),
        cast("Any", checkpoint),
        lambda: SPACE,
        cast("Any", Held()),
    )


@contextmanager
def served(ledgers: Ledgers, buffer_bytes: int | None) -> Iterator[tuple[IndexClient, Longest]]:
    """gc's client, and an index that answers it in a thread, as its loop does."""
    theirs, ours = pair(buffer_bytes)
    port = made_port(ours, ledgers)
    longest = Longest(port._socket)
    port._socket = cast("Any", longest)

    def serve() -> None:
        longest._wrapped.setblocking(True)
        while port.is_open:
            port.poll()

    thread = threading.Thread(target=serve)
    thread.start()
    client = IndexClient(theirs.detach())
    try:
        yield client, longest
    finally:
        client._socket.close()
        thread.join(10)
        assert not thread.is_alive()
        port.close()


BUFFERS = pytest.mark.parametrize(
    "buffer_bytes", [None, 30_000, 5000], ids=["default", "30 KB", "5 KB"]
)


@BUFFERS
def test_a_hundred_thousand_of_the_longest_ids_are_listed(buffer_bytes: int | None) -> None:
    ledgers = Ledgers(held=list(range(FIRST_ID, FIRST_ID + COUNT)))
    with served(ledgers, buffer_bytes) as (client, longest):
        assert client.ids().tolist() == ledgers.held
        assert (
            2000
            < longest.sent
            <= (min(buffer_bytes * 2, MESSAGE_BYTES_MAX) if buffer_bytes else MESSAGE_BYTES_MAX)
        )


@BUFFERS
def test_a_hundred_thousand_of_the_longest_ids_are_deleted_once_each(
    buffer_bytes: int | None,
) -> None:
    ledgers = Ledgers()
    ids = list(range(FIRST_ID, FIRST_ID + COUNT))
    with served(ledgers, buffer_bytes) as (client, longest):
        assert client.delete(ids, "\x01" * 5000) == COUNT
        assert ledgers.deleted == ids
        assert 2000 < longest.received <= MESSAGE_BYTES_MAX
        assert {len(reason) for reason in ledgers.reasons} == {gc_messages.REASON_CHARACTERS_MAX}


@BUFFERS
def test_the_usage_of_many_logs_comes_in_pages(buffer_bytes: int | None) -> None:
    with served(Ledgers(), buffer_bytes) as (client, longest):
        assert [log.log_id for log in client.usage()] == [log.log_id for log in LOGS]
        assert client.space() == SPACE
        assert longest.sent <= MESSAGE_BYTES_MAX


@BUFFERS
def test_settled_ledgers_come_with_their_marks(buffer_bytes: int | None) -> None:
    ledgers = Ledgers(held=list(range(FIRST_ID, FIRST_ID + 10_000)))
    with served(ledgers, buffer_bytes) as (client, longest):
        found: list[tuple[int, int]] = []
        cursor = -1
        while cursor:
            some, cursor = client.settled(max(cursor, 0))
            found += some
        assert found == [(one, 2**64 - 1) for one in ledgers.held]
        assert longest.sent <= MESSAGE_BYTES_MAX


def test_the_longest_page_is_within_its_bound() -> None:
    ids = [2**63 - 1 - n for n in range(IDS_A_MESSAGE)]
    reason = "\x01" * gc_messages.REASON_CHARACTERS_MAX
    number = 2**63 - 1
    request = {"type": "delete_ledgers", "ids": ids, "reason": reason, "number": number}
    reply = {"type": "ledgers", "ids": ids, "cursor": 2**64 - 1, "number": number}
    marks = [2**64 - 1] * MARKED_IDS_A_MESSAGE
    ids = ids[:MARKED_IDS_A_MESSAGE]
    drop = {
        "type": "drop_ledgers",
        "ids": ids,
        "changed": marks,
        "reason": reason,
        "number": number,
    }
    settled = {
        "type": "settled",
        "ids": ids,
        "changed": marks,
        "cursor": 2**64 - 1,
        "number": number,
    }
    log = LogUsage(
        log_id=number,
        durable_bytes=number,
        live_bytes=-number,
        sealed=False,
        kind="compaction",
        created_s=number,
    )
    usage = {"type": "usage", "logs": [log] * LOGS_A_MESSAGE, "cursor": number, "number": number}
    assert len(msgspec.json.encode(usage)) <= MESSAGE_BYTES_MAX
    for message in (request, reply, drop, settled):
        assert MESSAGE_BYTES_MAX * 0.9 < len(msgspec.json.encode(message)) <= MESSAGE_BYTES_MAX


def test_a_message_that_no_buffer_takes_is_told_from_one_that_has_to_wait() -> None:
    near, far = pair(5000)
    near.setblocking(False)
    with near, far:
        with pytest.raises(TooLong):
            send(near, ["x" * 20_000])
        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                send(near, ["x" * 1000])


def test_an_answer_without_room_is_kept_and_sent_once_there_is_some() -> None:
    """The index never waits, and reads no further request meanwhile."""
    theirs, ours = pair(5000)
    port = made_port(ours, Ledgers(held=[5]))
    theirs.settimeout(10)
    asked = answered = 0
    while not port.has_unsent:
        theirs.send(msgspec.json.encode({"type": "list_ledgers", "number": asked}))
        asked += 1
        port.poll()
        assert asked < 1000, "answers that nobody reads are bounded"
    theirs.send(msgspec.json.encode({"type": "delete_ledgers", "ids": [1], "number": asked}))
    port.poll()
    assert port.has_unsent
    numbers = []
    while answered <= asked:
        numbers.append(msgspec.json.decode(theirs.recv(MESSAGE_BYTES_MAX))["number"])
        answered += 1
        port.poll()
    assert numbers == list(range(asked + 1)), "each once, in order"
    theirs.close()
    port.poll()
    assert not port.is_open
    port.close()


def test_an_answer_that_came_too_late_is_nobody_s(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair(None)
    ledgers = Ledgers(held=[5])
    port = made_port(ours, ledgers)
    client = IndexClient(theirs.detach())
    monkeypatch.setattr(index_client, "INDEX_TIMEOUT_S", 0.05)
    with pytest.raises(IndexSilent, match="does not answer"):
        client.ids()
    monkeypatch.setattr(index_client, "INDEX_TIMEOUT_S", 10.0)
    counts: list[int] = []
    asking = threading.Thread(target=lambda: counts.append(client.delete([8, 9], "late")))
    asking.start()

    def is_done() -> bool:
        port.poll()
        return not asking.is_alive()

    wait_until(is_done, "the second request's answer")
    assert counts == [2], "the first one's answer was thrown away"
    assert ledgers.deleted == [8, 9]
    port.close()
    with pytest.raises(IndexSilent, match="gone"):
        client.ids()
    client._socket.close()


def test_requests_that_the_index_does_not_read_cost_the_cycle_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    theirs, ours = pair(5000)
    client = IndexClient(theirs.detach())
    monkeypatch.setattr(index_client, "INDEX_TIMEOUT_S", 0.001)
    for _ in range(200):
        with pytest.raises(IndexSilent):
            client.ids()
    ours.close()
    client._socket.close()


@pytest.mark.parametrize(
    "answer", [{"type": "unknown", "number": 1}, {"type": "ledgers"}, {"number": 1}, [], "ledgers"]
)
def test_an_answer_that_is_none_costs_the_cycle_only(
    answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_client, "INDEX_TIMEOUT_S", 0.2)
    ours, theirs = pair(None)
    client = IndexClient(ours.detach())
    with theirs:
        theirs.send(msgspec.json.encode(answer))
        with pytest.raises(IndexSilent):
            client.ids()
        theirs.send(msgspec.json.encode({"type": "ledgers", "number": 2, "ids": [5], "cursor": 1}))
        theirs.send(msgspec.json.encode({"type": "ledgers", "number": 3, "ids": [], "cursor": 1}))
        assert client.ids().tolist() == [5]
    client._socket.close()


@pytest.mark.parametrize("buffer_bytes", [None, 2048])
def test_whether_a_share_is_held_is_asked_until_it_is_known(buffer_bytes: int | None) -> None:
    one = Share(first=0, last=2**62, index=3, ensemble=5, write_quorum=3)
    with served(Ledgers(), buffer_bytes) as (client, _):
        assert client.holds(7, [one, one])
        assert not client.holds(8, [one])
        assert not client.holds(7, [one] * (SHARES_A_MESSAGE + 1)), "too much to ask"


# Whether all of some shares is on disk: against brute force, and one question at a time.


@pytest.fixture
def harness() -> Iterator[StoreHarness]:
    with FakeDisk(seed=3) as fake:
        harness = StoreHarness(fake)
        harness.birth()
        harness.start()
        yield harness
        harness.end()


def of(first: int, last: int, index: int = 0, ensemble: int = 1, write_quorum: int = 1) -> Share:
    return Share(first=first, last=last, index=index, ensemble=ensemble, write_quorum=write_quorum)


def test_shares_are_those_of_write_sets() -> None:
    for ensemble in range(1, 6):
        for quorum in range(1, ensemble + 1):
            for index in range(ensemble):
                found = [
                    n
                    for low, high in share(index, ensemble, quorum, 3, 40)
                    for n in range(low, high + 1)
                ]
                assert found == [n for n in range(3, 41) if index in write_set(n, ensemble, quorum)]


def test_every_missing_entry_is_missed(harness: StoreHarness, rng: random.Random) -> None:
    there = {1: set(range(60)), 2: set(), 3: set()}
    for ledger_id, (index, ensemble, quorum) in ((2, (1, 3, 2)), (3, (4, 5, 3))):
        for low, high in share(index, ensemble, quorum, 0, 500):
            there[ledger_id] |= set(range(low, high + 1))
    missing = {ledger_id: rng.choice(sorted(ids)) for ledger_id, ids in there.items()}
    entries = [
        (ledger, entry)
        for ledger, ids in there.items()
        for entry in ids
        if missing[ledger] != entry
    ]
    rng.shuffle(entries)
    for at in range(0, len(entries), 150):
        harness.flush(entries[at : at + 150])
    assert harness.life is not None
    store = harness.life.store
    shares = {1: [of(0, 29), of(30, 59)], 2: [of(0, 500, 1, 3, 2)], 3: [of(0, 500, 4, 5, 3)]}
    for ledger_id, wanted in shares.items():
        assert not holds(store, ledger_id, wanted)
        gap = missing[ledger_id]
        last = wanted[-1].last
        ends = [(0, gap - 1), (gap + 1, last)]
        first = wanted[0]
        for low, high in ends:
            part = of(low, high, first.index, first.ensemble, first.write_quorum)
            assert holds(store, ledger_id, [part]), (ledger_id, low, high, gap)
    harness.flush(missing.items())
    for ledger_id, wanted in shares.items():
        assert holds(store, ledger_id, wanted)
        assert not holds(store, ledger_id, [*wanted, of(501, 501)])
    assert holds(store, 9, [])
    assert not holds(store, 9, [of(0, 0)])
    assert DIRECTORY


def test_damaged_locations_are_no_answer(harness: StoreHarness) -> None:
    harness.flush([(1, n) for n in range(5)])
    harness.fake.corrupt(f"{DIRECTORY}/locations/0000000000000001.loc", 4096 + 3)
    harness.restart()
    assert harness.life is not None
    assert not holds(harness.life.store, 1, [of(0, 4)])


def test_one_question_at_a_time(harness: StoreHarness) -> None:
    harness.flush([(1, n) for n in range(5)])
    assert harness.life is not None
    jobs: list[Callable[[], None]] = []
    held = HeldCheck(harness.life.store, jobs.append)
    assert held.check(1, [of(0, 4)]) is None
    assert held.check(1, [of(0, 4)]) is None
    assert held.check(2, [of(0, 4)]) is None, "the first is being found out"
    jobs.pop()()
    assert not jobs
    assert held.check(2, [of(0, 4)]) is None, "that was the answer to another question"
    jobs.pop()()
    assert held.check(2, [of(0, 4)]) is False
    assert held.check(1, [of(0, 4)]) is None
    jobs.pop()()
    assert held.check(1, [of(0, 4)]) is True
