"""A caller that does something else for longer than every timeout: what came meanwhile is nobody's silence."""

from __future__ import annotations

import asyncio
import time

import pytest

import fastbk
from fastbk.errors import LedgerFenced, MetadataUnavailable, QuorumTimeout
from fastbk.meta.api import VersionedLedger
from fastbk.wire.statuses import Status
from tests.fixtures.sync_cluster import sync_cluster
from tests.fixtures.wait import wait_until

TIMEOUT_S = 0.3


def pause(for_s: float = 2 * TIMEOUT_S) -> None:
    """Let all timeouts pass without a call of the client, and without a turn of the caller's loop."""
    end_s = time.monotonic() + for_s
    while (left_s := end_s - time.monotonic()) > 0:
        time.sleep(left_s)


def test_acks_that_wait_in_the_sockets_count() -> None:
    with sync_cluster(append_timeout=TIMEOUT_S) as (client, _, _):
        writer = client.create_ledger()
        first = writer.append_nowait(b"x")
        pause()
        assert first.result() == 0
        second = writer.append_nowait(b"y")
        pause()
        assert writer.append(b"z") == 2
        assert second.done()
        writer.append_nowait(b"last")
        pause()
        writer.close()
        assert client.ledger_info(writer.ledger_id).metadata.last_entry_id == 3


def test_an_idle_writer_keeps_its_bookies() -> None:
    with sync_cluster(4, bookie_timeout=TIMEOUT_S, replace_after=TIMEOUT_S) as (client, fakes, _):
        writer = client.create_ledger()
        (slow,) = [one for one in fakes.fakes if one.bookie_id == writer.stats().ensemble[0]]
        # Its ack comes when the append has returned.
        slow.faults.delay_s = lambda: 0.02
        for _ in range(3):
            writer.append(b"x")
            pause()
        assert writer.stats().ensemble_changes == 0
        writer.close()


def test_a_bookie_that_stays_silent_over_the_pause_is_still_found() -> None:
    with sync_cluster(4, bookie_timeout=TIMEOUT_S) as (client, fakes, _):
        writer = client.create_ledger()
        (silent,) = [one for one in fakes.fakes if one.bookie_id == writer.stats().ensemble[0]]
        silent.faults.swallow_adds = True
        writer.append(b"x")
        pause()
        writer.append(b"y")
        writer.append(b"z")
        assert writer.stats().ensemble_changes == 1
        assert silent.bookie_id not in writer.stats().ensemble
        writer.close()


def test_nobody_waits_for_a_bookie_that_refuses() -> None:
    with sync_cluster(3, laggard_wait=0.01, replace_after=0.05) as (client, fakes, _):
        writer = client.create_ledger()
        fakes.fakes[0].faults.refuse_adds = lambda *_: Status.READ_ONLY
        wait_until(lambda: writer.append(b"x") >= 0 and writer.stats().trouble, "it refuses")
        pause(0.7)  # the next look for another bookie is due then
        begun_s = time.monotonic()
        writer.append(b"x")
        assert time.monotonic() - begun_s < 0.8
        writer.close()


def test_a_bookie_that_refuses_for_long_is_probed_and_gets_the_rest_once_it_takes_adds() -> None:
    with sync_cluster(3, backoff_max=0.02) as (client, fakes, _):
        writer = client.create_ledger()
        writer.append(b"x")
        full = fakes.fakes[0]
        wait_until(lambda: full.ids(writer.ledger_id), "the third bookie has it, too")
        refused: list[int] = []

        def refuse(_: int, entry_id: int) -> int:
            refused.append(entry_id)
            return Status.READ_ONLY

        full.faults.refuse_adds = refuse

        def is_probed() -> bool:
            writer.append_many([b"y"] * 50)
            return len(refused) >= 60

        wait_until(is_probed, "it was probed")
        assert set(refused[:50]) == set(range(1, 51))
        assert set(refused[50:]) == {1}
        owed = writer.append(b"z")
        full.faults.refuse_adds = None

        def has_the_rest() -> bool:
            writer.append(b"z")
            return len(full.ids(writer.ledger_id)) > owed

        wait_until(has_the_rest, "it gets the rest")
        last = writer.append(b"last")
        writer.close()
        assert full.ids(writer.ledger_id) == list(range(last + 1))


def test_a_fence_that_came_during_the_pause_ends_the_writer_at_once() -> None:
    with sync_cluster(append_timeout=TIMEOUT_S) as (client, fakes, _):
        writer = client.create_ledger()
        for fake in fakes.fakes[1:]:
            fake.faults.swallow_adds = True
        fakes.fakes[0].faults.refuse_adds = lambda *_: Status.FENCED
        pending = writer.append_nowait(b"x")
        pause()
        begun_s = time.monotonic()
        with pytest.raises(LedgerFenced):
            pending.result()
        assert time.monotonic() - begun_s < 0.8


def test_an_add_that_nobody_takes_still_ends_the_writer() -> None:
    with sync_cluster(append_timeout=TIMEOUT_S, laggard_wait=0.01) as (client, fakes, _):
        writer = client.create_ledger()
        for fake in fakes.fakes:
            fake.faults.swallow_adds = True
        pending = writer.append_nowait(b"x")
        pause()
        with pytest.raises(QuorumTimeout):
            pending.result()


@pytest.mark.uvloop_too
async def test_a_loop_that_stood_still_hears_its_sockets_first() -> None:
    with sync_cluster(4) as (_, _, store):
        async with fastbk.connect(
            store, append_timeout=TIMEOUT_S, bookie_timeout=TIMEOUT_S
        ) as client:
            writer = await client.create_ledger()
            await writer.append(b"x")
            for _ in range(2):
                future = writer.append_nowait(b"y")
                await asyncio.sleep(0)
                pause()
                await future
            assert writer.stats().ensemble_changes == 0
            await writer.close()


def test_a_metadata_store_that_hangs_ends_no_writer() -> None:
    with sync_cluster(4, append_timeout=TIMEOUT_S, replace_after=0.05) as (client, fakes, store):
        # So that the one to come in place of another is connected already.
        client.create_ledger(4, 4).close()
        writer = client.create_ledger()
        hangs = 0

        def hang(_: int) -> VersionedLedger:
            nonlocal hangs
            hangs += 1
            pause()
            raise MetadataUnavailable("away")

        (away,) = [one for one in fakes.fakes if one.bookie_id == writer.stats().ensemble[0]]
        fakes.do(away.stop())
        wait_until(lambda: writer.append(b"x") >= 0 and writer.stats().trouble, "it is missed")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "read_ledger", hang)
            pause(0.06)
            pending = writer.append_nowait(b"x")
            # The wait for acks begins with the change of the ensemble, which is due.
            assert pending.result() == pending.entry_id
            assert hangs
        writer.close()
