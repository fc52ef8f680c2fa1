"""Entries of Apache's clients are checked once it is known which digest their ledger has, and never held up before."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Any

import pytest

from fastbk.model.entry import DigestType, make_lac_body
from tests.fixtures import apache_wire as apache
from tests.fixtures.apache_wire import EBADREQ, EOK, LEDGER, V2_STATUSES, hear, hear_v2, hear_v3
from tests.fixtures.counters import counted
from tests.fixtures.hashes import (
    DIGEST_CRC32,
    DIGEST_CRC32C,
    DIGEST_DUMMY,
    DIGEST_HMAC,
    DIGEST_NONE,
    with_digest,
)
from tests.fixtures.worker_harness import (
    ADD,
    WRITE_LAC,
    Client,
    Record,
    Served,
    WorkerHarness,
    one_worker,
    served,
    until,
)

pytestmark = pytest.mark.slow


def entry(
    entry_id: int, digest_type: int = DIGEST_CRC32C, *, ledger_id: int = LEDGER, data: bytes = b"x"
) -> bytes:
    return with_digest(digest_type, struct.pack(">qqqq", ledger_id, entry_id, -1, 1), data * 50)


def damaged(body: bytes) -> bytes:
    return body[:-1] + bytes([body[-1] ^ 4])


class Supervisor:
    """What the worker asks of it, ledger by ledger; it answers when a test says so."""

    def __init__(self, bookie: Served, *, is_there: bool = True) -> None:
        self.asked: list[int] = []
        self.questions = 0
        self.is_there = is_there
        self._digests = bookie.network.digests
        bookie.supervisor.hear = self._hear

    def _hear(self, message: dict[str, Any]) -> bool:
        if not self.is_there:
            return False
        assert message["type"] == "digests_wanted"
        assert len(message["ledgers"]) <= 1024
        self.questions += 1
        self.asked += message["ledgers"]
        return True

    async def is_asked(self, count: int) -> None:
        await until(lambda: len(self.asked) >= count)

    def tell(self, *digests: tuple[int, int | None]) -> None:
        self._digests.known({"type": "digests_known", "digests": [list(one) for one in digests]})


async def add(bookie: Served, client: Client, version: int, body: bytes) -> Record:
    """Add an entry that is taken; return its record."""
    client.send(frame_of(version, body))
    (record,) = await bookie.take(1)
    assert (record.kind, record.payload) == (ADD, body)
    bookie.worker_harness.publish()
    bookie.worker_harness.index()
    assert await status(client, version) == EOK
    return record


def frame_of(version: int, body: bytes) -> bytes:
    return apache.v2_add(0, body=body) if version == 2 else apache.v3_add(1, 0, body=body)


async def status(client: Client, version: int) -> int:
    if version == 3:
        return (await hear_v3(client)).status
    error = (await hear_v2(client)).error
    return {V2_STATUSES[EOK]: EOK, V2_STATUSES[EBADREQ]: EBADREQ}[error]


@pytest.mark.uvloop_too
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("digest_type", [DIGEST_CRC32, DIGEST_CRC32C])
async def test_a_damaged_entry_is_refused_once_the_digest_is_known(
    version: int, digest_type: int
) -> None:
    async with one_worker() as (worker_harness, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        for entry_id in range(3):
            body = damaged(entry(entry_id, digest_type))
            assert (await add(bookie, client, version, body)).digest_type == DIGEST_NONE
        await supervisor.is_asked(1)
        assert supervisor.asked == [LEDGER], "once"
        supervisor.tell((LEDGER, digest_type))
        record = await add(bookie, client, version, entry(3, digest_type))
        assert record.digest_type == digest_type
        client.send(frame_of(version, damaged(entry(4, digest_type))))
        assert await status(client, version) == EBADREQ
        client.send(frame_of(version, entry(4, digest_type)[:33]))
        assert await status(client, version) == EBADREQ, "too short for its digest"
        await add(bookie, client, version, entry(4, digest_type))
        assert worker_harness.next() is None, "nothing else was placed"
        assert counted(worker_harness, "ADDS_UNVERIFIED") == 3
        assert counted(worker_harness, "BAD_DIGEST") == 1
        assert counted(worker_harness, f"V{version}_EBADREQ") == 2
        await client.close()


@pytest.mark.parametrize(
    ("told", "seen", "unverified"),
    [
        (None, DIGEST_NONE, 2),
        (DIGEST_HMAC, DIGEST_HMAC, 2),
        (DIGEST_DUMMY, DIGEST_DUMMY, 1),
        (99, DIGEST_NONE, 2),
    ],
)
async def test_what_has_no_checksum_is_taken_as_it_is(
    told: int | None, seen: int, unverified: int
) -> None:
    async with one_worker() as (worker_harness, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        await add(bookie, client, 3, entry(0))
        await supervisor.is_asked(1)
        supervisor.tell((LEDGER, told))
        assert (await add(bookie, client, 3, damaged(entry(1)))).digest_type == seen
        assert counted(worker_harness, "ADDS_UNVERIFIED") == unverified
        await client.close()


async def test_what_was_wrong_is_asked_again() -> None:
    """An id may be another ledger's by now."""
    async with one_worker() as (_, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        await add(bookie, client, 2, entry(0))
        await supervisor.is_asked(1)
        supervisor.tell((LEDGER, DIGEST_CRC32))
        for _ in range(3):
            client.send(frame_of(2, entry(1)))
            assert await status(client, 2) == EBADREQ
        await supervisor.is_asked(2)
        supervisor.tell((LEDGER, DIGEST_CRC32C))
        await add(bookie, client, 2, entry(1))
        assert supervisor.asked == [LEDGER, LEDGER]
        await client.close()


async def test_nobody_waits_for_a_supervisor_that_does_not_hear() -> None:
    async with one_worker() as (worker_harness, bookie):
        supervisor = Supervisor(bookie, is_there=False)
        client = await bookie.connect()
        for entry_id in range(20):
            await add(bookie, client, 3, damaged(entry(entry_id)))
        assert counted(worker_harness, "ADDS_UNVERIFIED") == 20
        assert supervisor.asked == []
        await client.close()


async def test_a_question_outlives_the_connection_that_led_to_it() -> None:
    """The next look at deadlines finds what its bit did not tell."""
    async with one_worker() as (_, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        bookie.network.digests.request_soon = lambda: None  # type: ignore[method-assign]
        await add(bookie, client, 3, entry(0))
        await client.close()
        await until(lambda: not bookie.network.connections)
        del bookie.network.digests.request_soon
        await supervisor.is_asked(1)
        assert supervisor.asked == [LEDGER]


async def test_more_ledgers_than_the_table_has_places_for() -> None:
    """What is refused is damaged, and what is taken as verified is whole; forgetting costs only verification."""
    draw = random.Random(7)
    count = 800
    kinds = {ledger: draw.choice([DIGEST_CRC32, DIGEST_CRC32C]) for ledger in range(count)}
    with WorkerHarness() as worker_harness:
        worker_harness.grant(1 << 40)
        async with served(worker_harness, apache_digests_max=64) as bookie:
            supervisor, client = Supervisor(bookie), await bookie.connect()
            verified = refused = 0
            for turn in range(2 * count):
                ledger = turn % count if turn < count else draw.randrange(count)
                is_bad = draw.random() < 0.2
                body = entry(turn, kinds[ledger], ledger_id=ledger)
                client.send(frame_of(2, damaged(body) if is_bad else body))
                before = counted(worker_harness, "BAD_DIGEST")
                records: list[Record] = []
                await until(one_or_refused(worker_harness, records, before))
                if records:
                    assert records[0].digest_type in (DIGEST_NONE, kinds[ledger])
                    verified += records[0].digest_type != DIGEST_NONE
                    assert not (is_bad and records[0].digest_type != DIGEST_NONE)
                    worker_harness.publish()
                    worker_harness.index()
                else:
                    assert is_bad
                    refused += 1
                await hear(client)
                for asked in supervisor.asked:
                    supervisor.tell((asked, kinds[asked]))
                supervisor.asked.clear()
                if turn % 50 == 0:  # one that was heard of just now is known
                    supervisor.tell((ledger, kinds[ledger]))
                    client.send(frame_of(2, damaged(body)))
                    assert await status(client, 2) == EBADREQ
            assert verified + refused > 0
            assert (
                counted(worker_harness, "ADDS_UNVERIFIED")
                == counted(worker_harness, "ADDS") - verified
            )
            await client.close()


def one_or_refused(
    worker_harness: WorkerHarness, records: list[Record], refused_before: int
) -> Callable[[], bool]:
    def is_decided() -> bool:
        record = worker_harness.next()
        if record is not None:
            records.append(record)
        return bool(records) or counted(worker_harness, "BAD_DIGEST") > refused_before

    return is_decided


async def test_many_unknown_ledgers_at_once_are_asked_for_in_bounded_messages() -> None:
    with WorkerHarness() as worker_harness:
        worker_harness.grant(1 << 40)
        async with served(worker_harness, apache_digests_max=1 << 16) as bookie:
            supervisor, client = Supervisor(bookie), await bookie.connect()
            ledgers = range(100, 2200)
            bookie.network.digests.request_soon = lambda: None  # type: ignore[method-assign]
            await add_to_each(bookie, client, ledgers)
            del bookie.network.digests.request_soon
            bookie.network.digests.request_soon()
            await supervisor.is_asked(1024)
            assert supervisor.asked == list(ledgers[:1024])
            # those that found no room are due at their next add
            while set(supervisor.asked) != set(ledgers):
                await add_to_each(bookie, client, ledgers[1024:])
            await client.close()


async def add_to_each(bookie: Served, client: Client, ledgers: range) -> None:
    for at in range(0, len(ledgers), 300):
        some = ledgers[at : at + 300]
        client.send(b"".join(frame_of(2, entry(0, ledger_id=one)) for one in some))
        await bookie.take(len(some))
        bookie.worker_harness.publish()
        bookie.worker_harness.index()
        for _ in some:
            assert await status(client, 2) == EOK


def lac_of(lac: int, digest_type: DigestType) -> bytes:
    return make_lac_body(LEDGER, lac, digest_type)


@pytest.mark.parametrize("digest_type", [DigestType.CRC32, DigestType.CRC32C])
async def test_an_explicit_lac_is_checked_like_an_entry(digest_type: DigestType) -> None:
    other = DigestType.CRC32 if digest_type is DigestType.CRC32C else DigestType.CRC32C
    async with one_worker() as (worker_harness, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        body = damaged(lac_of(1, digest_type))
        client.send(apache.v3_write_lac(1, 1, body=body))
        record = await bookie.take_request()
        assert (record.kind, record.payload) == (WRITE_LAC, body), "nobody knows the digest"
        worker_harness.say(record, "status", 0)
        assert (await hear_v3(client)).status == EOK
        await supervisor.is_asked(1)
        assert supervisor.asked == [LEDGER]
        supervisor.tell((LEDGER, int(digest_type)))
        wrong = [damaged(lac_of(2, digest_type)), lac_of(2, other), lac_of(2, DigestType.DUMMY)]
        for refused, bad in enumerate(wrong, 1):
            client.send(apache.v3_write_lac(2, 2, body=bad))
            assert (await hear_v3(client)).status == EBADREQ
            assert counted(worker_harness, "BAD_DIGEST") == refused
        await supervisor.is_asked(2)
        assert supervisor.asked == [LEDGER, LEDGER], "its id may be another ledger's by now"
        client.send(apache.v3_write_lac(3, 3, body=lac_of(3, digest_type)))
        record = await bookie.take_request()
        assert (record.kind, record.payload) == (WRITE_LAC, lac_of(3, digest_type))
        await client.close()


@pytest.mark.parametrize("told", [None, DIGEST_HMAC, DIGEST_DUMMY])
async def test_an_explicit_lac_without_a_checksum_is_taken_as_it_is(told: int | None) -> None:
    body = lac_of(1, DigestType(told)) if told else lac_of(1, DigestType.CRC32C)
    async with one_worker() as (_, bookie):
        supervisor, client = Supervisor(bookie), await bookie.connect()
        await add(bookie, client, 3, entry(0))
        await supervisor.is_asked(1)
        supervisor.tell((LEDGER, told))
        client.send(apache.v3_write_lac(1, 1, body=body))
        record = await bookie.take_request()
        assert (record.kind, record.payload) == (WRITE_LAC, body)
        await client.close()
