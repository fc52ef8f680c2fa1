"""What metadata says of a bookie's share, and which ids of a share are missing."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk.admin.cluster import (
    IDS_LISTED_MAX,
    SILENT_TIMEOUT_S,
    MissingCopies,
    missing_of,
    under_replicated,
)
from fastbk.model.ledger import Fragment, LedgerMetadata, LedgerState
from fastbk.replication.copy_check import fragments_naming, last_of_fragment, share_bytes
from tests.fixtures import fake_apache_frames as frames
from tests.fixtures.bookie_model import runs_of
from tests.unit.client.fake_cluster import apache_cluster, asked

if TYPE_CHECKING:
    import random

    from fastbk.client import Client


def metadata(state: LedgerState, last: int, *fragments: tuple[int, str]) -> LedgerMetadata:
    return LedgerMetadata(
        ensemble_size=3,
        write_quorum=2,
        ack_quorum=2,
        fragments=tuple(Fragment(first, tuple(names)) for first, names in fragments),
        state=state,
        last_entry_id=last,
        length=300 if last >= 0 else 0,
    )


def test_fragments_and_their_ends() -> None:
    closed = metadata(LedgerState.CLOSED, 9, (0, "abc"), (6, "abd"), (10, "bcd"))
    assert fragments_naming(closed, "a") == [0, 1]
    assert fragments_naming(closed, "x") == []
    assert [last_of_fragment(closed, at) for at in range(3)] == [5, 9, 9]
    still_open = metadata(LedgerState.OPEN, -1, (0, "abc"), (6, "abd"))
    assert [last_of_fragment(still_open, at) for at in range(2)] == [5, None]


@pytest.mark.parametrize(
    ("bookie", "wanted"), [("a", 200), ("c", 120), ("d", 80), ("b", 200), ("x", 0)]
)
def test_a_share_is_estimated_from_length_and_entries(bookie: str, wanted: int) -> None:
    closed = metadata(LedgerState.CLOSED, 9, (0, "abc"), (6, "abd"), (10, "bcd"))
    assert share_bytes(closed, bookie) == wanted
    assert share_bytes(metadata(LedgerState.OPEN, -1, (0, "abc")), bookie) == 0


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_missing_ids_are_those_of_the_sets(wanted: set[int], held: set[int]) -> None:
    count, ids = missing_of(runs_of(wanted), runs_of(held))
    assert ids == sorted(wanted - held)
    assert count == len(ids)


def test_many_missing_ids_are_counted_and_the_first_listed(rng: random.Random) -> None:
    hole = rng.randrange(2**40)
    count, ids = missing_of([(0, 2**50)], [(0, hole - 1)])
    assert count == 2**50 - hole + 1
    assert ids == list(range(hole, hole + IDS_LISTED_MAX))


# Which copies are missing, by the lists of bookies and without them: Apache's give none with
# DbLedgerStorage.


WAIT_S = 0.3


async def lacking(client: Client, unlisted: set[str]) -> list[tuple[int, str, tuple[int, ...]]]:
    found: list[MissingCopies] = [
        one async for one in under_replicated(client, timeout_s=WAIT_S, unlisted=unlisted)
    ]
    return [(one.ledger_id, one.bookie_id, one.ids) for one in found]


async def write(client: Client, entries: int, write_quorum: int = 3) -> int:
    writer = await client.create_ledger(3, write_quorum, 2)
    for one in range(entries):
        await writer.append(b"%d" % one)
    await writer.close()
    return writer.ledger_id


@pytest.mark.slow
async def test_bookies_without_lists_are_asked_for_the_ends_of_their_shares() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        await write(client, 0)
        whole, striped = await write(client, 10), await write(client, 10, write_quorum=2)
        fakes[0].has_lists = fakes[1].has_lists = False
        unlisted: set[str] = set()
        assert await lacking(client, unlisted) == []
        assert unlisted == {"b0", "b1"}
        assert [len(asked([fake], frames.LIST)) for fake in fakes] == [1, 1, 2], "once in vain each"
        fakes[0].ledgers[whole].entries.pop(9)
        fakes[1].ledgers.pop(striped)
        fakes[2].ledgers[whole].entries.pop(5)
        found = await lacking(client, set())
        assert (whole, "b0", (9,)) in found
        assert (whole, "b2", (5,)) in found, "one with a list misses nothing of it"
        (ids,) = [ids for ledger_id, bookie, ids in found if (ledger_id, bookie) == (striped, "b1")]
        assert len(ids) == 2
        assert len(found) == 3


@pytest.mark.slow
async def test_one_that_answers_nothing_is_not_taken_for_one_without_lists() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        ledger_id = await write(client, 10)
        fakes[1].faults.silent = True
        unlisted: set[str] = set()
        assert await lacking(client, unlisted) == [(ledger_id, "b1", ())]
        assert unlisted == set()


@pytest.mark.slow
async def test_a_frozen_bookie_is_waited_for_once() -> None:
    async with apache_cluster(3) as (client, fakes, _):
        for _ in range(8):
            await write(client, 3)
        fakes[1].faults.silent = True
        began_s = time.monotonic()
        found = [one async for one in under_replicated(client, timeout_s=4 * SILENT_TIMEOUT_S)]
        assert [one.bookie_id for one in found] == ["b1"] * 8
        assert time.monotonic() - began_s < 8 * 4 * SILENT_TIMEOUT_S - 1
