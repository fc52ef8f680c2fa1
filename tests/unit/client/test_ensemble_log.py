"""Replaced bookies are in the client's log: which one, from which entry on, why and by which client."""

from __future__ import annotations

import logging

import pytest

import fastbk
from fastbk.wire.statuses import Status
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until, wait_until_async
from tests.unit.client.fake_cluster import by_id, fake_cluster


def replaced(caplog: pytest.LogCaptureFixture) -> list[dict[str, object]]:
    return [
        one.fields  # type: ignore[attr-defined]
        for one in caplog.records
        if getattr(one, "event", "") == "ledger.bookie_replaced"
    ]


async def test_a_writer_logs_whom_it_replaces(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastbk")
    async with fake_cluster(4) as (client, fakes, _):
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        lost = writer.metadata.fragments[0].ensemble[1]
        by_id(fakes, lost).faults.refuse_adds = lambda *_: Status.READ_ONLY
        await writer.append(b"y")
        await wait_until_async(lambda: writer.stats().ensemble_changes == 1, "a replacement")
        (fields,) = replaced(caplog)
        assert (fields["ledger_id"], fields["bookie"], fields["index"]) == (0, lost, 1)
        assert fields["replacement"] in writer.stats().ensemble
        assert fields["first_entry_id"] == writer.metadata.fragments[-1].first_entry_id
        assert (fields["reason"], fields["cause"]) == ("READ_ONLY", "writer")
        assert ":" in str(fields["client"])


def test_a_blocking_writer_logs_whom_it_replaces(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "fastbk")
    with sync_cluster(4) as (client, fakes, _):
        writer = client.create_ledger()
        lost = writer.metadata.fragments[0].ensemble[1]
        by_id(fakes.fakes, lost).faults.refuse_adds = lambda *_: Status.IO_ERROR

        def is_replaced() -> bool:
            writer.append(b"y")
            return writer.stats().ensemble_changes == 1

        wait_until(is_replaced, "a replacement")
        (fields,) = replaced(caplog)
        assert (fields["bookie"], fields["reason"]) == (lost, "IO_ERROR")


async def test_a_recovery_logs_whom_it_replaces(caplog: pytest.LogCaptureFixture) -> None:
    async with fake_cluster(4) as (client, fakes, store), fastbk.connect(store) as other:
        writer = await client.create_ledger()
        await writer.append_many([b"x"] * 5)
        lost = writer.metadata.fragments[0].ensemble[2]
        by_id(fakes, lost).faults.refuse_adds = lambda *_: Status.IO_ERROR
        caplog.set_level(logging.INFO, "fastbk")
        await other.open_ledger(writer.ledger_id)
        fields = next(one for one in replaced(caplog) if one["cause"] == "recovery")
        assert (fields["bookie"], fields["ledger_id"]) == (lost, writer.ledger_id)
        assert "IO_ERROR" in str(fields["reason"])
