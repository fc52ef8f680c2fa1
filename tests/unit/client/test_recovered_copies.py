"""After a recovery: copies that the dead writer left missing are marked, and repaired once their bookies are there."""

from __future__ import annotations

import logging

import pytest

import fastbk
from fastbk.errors import MetadataUnavailable
from fastbk.meta.replica_marks import LedgerMark
from fastbk.wire.statuses import Status
from tests.fixtures.wait import wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster


async def test_what_a_dead_writer_left_missing_is_marked_and_repaired() -> None:
    async with fake_cluster(3) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        lost = by_id(fakes, writer.metadata.fragments[0].ensemble[1])
        await wait_until_async(lambda: len(lost.ids(writer.ledger_id)) == 5, "all copies")
        lost.faults.refuse_adds = lambda *_: Status.TOO_MANY_REQUESTS
        await writer.append_many([b"y"] * 20)
        await writer.append_many([b"z"] * 5)
        reader = await other.open_ledger(writer.ledger_id)
        assert reader.is_closed
        await wait_until_async(lambda: store.marks.read(writer.ledger_id).missing, "a mark")
        assert {one.bookie_id for one in store.marks.read(writer.ledger_id).missing} == {
            lost.bookie_id
        }
        lost.faults.refuse_adds = None
        other.repairs.bookies_changed()
        await wait_until_async(lambda: not store.marks.read(writer.ledger_id).missing, "a repair")
        assert len(lost.ids(writer.ledger_id)) == 30


async def test_a_whole_ledger_gets_no_mark() -> None:
    async with fake_cluster(3) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        await wait_until_async(
            lambda: all(len(one.ids(writer.ledger_id)) == 5 for one in fakes), "all copies"
        )
        await other.open_ledger(writer.ledger_id)
        await wait_until_async(lambda: not other.repairs.is_checking, "the check")
        assert list(store.marks.list()) == []


async def test_the_log_reports_a_check_that_failed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the dead writer left missing is neither marked nor repaired then."""
    caplog.set_level(logging.WARNING, "fastbk")

    def is_away(ledger_id: int) -> LedgerMark:
        raise MetadataUnavailable(f"no answer about ledger {ledger_id}")

    async with fake_cluster(3) as (client, _, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        monkeypatch.setattr(store.marks, "read", is_away)
        await other.open_ledger(writer.ledger_id)
        await wait_until_async(lambda: not other.repairs.is_checking, "the check")
        (fields,) = (
            one.fields  # type: ignore[attr-defined]
            for one in caplog.records
            if getattr(one, "event", "") == "ledger.copies_unchecked"
        )
        assert fields["ledger_id"] == writer.ledger_id
        assert "no answer" in str(fields["reason"])
