"""What reads all records holds few of them in memory, however large anybody made each (INV-M18).

Bytes are those that Python's allocators gave, at their highest. sqlite's own are not among them.
"""

from __future__ import annotations

import dataclasses
import os
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import fastbk
from fastbk.admin.bad_records import find_bad_records
from fastbk.admin.metadata_backup import backed_up_records
from fastbk.client import metadata_calls
from fastbk.console.cluster_view import LEDGERS_MAX, StreamIndex
from fastbk.meta import open_store, records
from fastbk.meta.api import MetadataStore, all_ledgers
from fastbk.meta.records import REASON_CHARACTERS_MAX, VALUE_BYTES_MAX, Change
from fastbk.meta.replica_marks import path_of
from fastbk.stream.chain import Segment, SegmentState, get_chain, put_chain
from fastbk.stream.client import Client
from fastbk.stream.cursor.state import CursorRecord, CursorState, put_record
from fastbk.stream.cursor.store import cursors_of
from fastbk.stream.namespace import listing
from fastbk.stream.namespace.tree import ROOT_ID
from fastbk.stream.paths import chain_path, cursors_path, entry_path, stream_path
from fastbk.units import MIB
from tests.fixtures.metadata import metadata, new_cluster

Peak = Callable[[], int]


@pytest.fixture
def peak() -> Iterator[Peak]:
    """Return what tells the most bytes that were held at once."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetadataStore]:
    with closing(open_store(f"memory:{tmp_path}")) as opened:
        yield opened


# --- raw records ----------------------------------------------------------------------------------------------------


def _bad(store: MetadataStore) -> None:
    found = find_bad_records(store)
    assert len(found) == 31
    assert all(len(one.reason) <= REASON_CHARACTERS_MAX + 3 for one in found)


def _backup(store: MetadataStore) -> None:
    assert (
        sum(len(one.value) >= VALUE_BYTES_MAX - 100 for one in backed_up_records(store.records))
        == 16
    )


def _marks(store: MetadataStore) -> None:
    assert list(store.marks.list()) == []


@pytest.mark.parametrize("act", [_bad, _backup, _marks])
def test_few_of_the_largest_records_are_in_memory(
    act: Callable[[MetadataStore], None],
    store: MetadataStore,
    peak: Peak,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a kind that nobody can read, and one whose decoder repeats what it found."""
    monkeypatch.setattr(records, "READ_BYTES_MAX", 4 * MIB)
    for number in range(15):
        store.records.change([Change(path_of(number), os.urandom(VALUE_BYTES_MAX))])
        store.records.change([Change(stream_path(f"aa{number:02}"), os.urandom(VALUE_BYTES_MAX))])
    long = msgspec.json.encode({"kind": "A" * (VALUE_BYTES_MAX - 100), "id": "b"})
    store.records.change([Change(entry_path(ROOT_ID, "shop"), long)])
    act(store)
    assert peak() < 9 * MIB, "of 28"


def test_few_of_the_largest_ledgers_are_in_memory(store: MetadataStore, peak: Peak) -> None:
    value = dataclasses.replace(metadata(), custom={"note": bytes(100_000)})
    for ledger_id in range(400):
        store.create_ledger(ledger_id, value)
    assert sum(1 for _ in all_ledgers(store)) == 400
    assert peak() < 40 * MIB, "of 80"


# --- streams and cursors --------------------------------------------------------------------------------------------


async def made(client: Client, rows: list[int]) -> list[str]:
    """Make streams whose chains have so many rows; return their ids, in the order of their names."""
    space = client.namespace("shop")
    await space.create()
    await space.create_streams([f"s{number:02}" for number in range(len(rows))])
    ids = [one.id async for one in space.streams()]
    for one, count in zip(ids, rows, strict=True):
        found = await client.records.read(chain_path(one))
        assert found is not None
        closed = tuple(
            Segment(at + 1, at, SegmentState.CLOSED, 1, 5, at, 0, 1, at, at, 5, 6, 0, -1, 100)
            for at in range(count)
        )
        chain = replace(get_chain(found.value), rows=closed, next_number=count + 1, end_seq=count)
        await client.records.change(Change(chain_path(one), put_chain(chain), found.version))
    return ids


async def _snapshots(client: Client) -> AsyncGenerator[list[int], None]:
    async for some in listing.all_streams(client.records):
        yield [one.known.chain.items for one in some if one.known is not None]


async def _chains(client: Client) -> AsyncGenerator[list[int], None]:
    async for some in listing.chains_at_once(client.records):
        yield [one.items for one in some]


@pytest.mark.parametrize("read", [_snapshots, _chains])
async def test_few_long_chains_are_yielded_together(
    read: Callable[[Client], AsyncGenerator[list[int], None]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing, "ITEMS_AT_ONCE", 100)
    rows = [0, 40, 40, 40, 150, 1, 2, 3, 97, 120, 60, 60]
    async with fastbk.connect(new_cluster(tmp_path / "metadata.sqlite")) as client:
        await made(client, rows)
        groups = [some async for some in read(client)]
        assert all(sum(some) <= 100 or len(some) == 1 for some in groups), groups
        assert sorted(one for some in groups for one in some) == sorted(rows)
        index = StreamIndex(client)
        await index.pass_once()
        assert [len(one.ledgers) for one in index.rows] == [min(one, LEDGERS_MAX) for one in rows]
        assert list(index.rows[4].ledgers) == list(range(50, 150)), "the newest ones"


async def test_maps_of_many_cursors_are_packed(
    tmp_path: Path, peak: Peak, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many keys as a client may write take 600 KB as a dict, and 26 KB packed."""
    monkeypatch.setattr(metadata_calls, "READ_BYTES_MAX", MIB)
    keys: dict[str, int | str] = {f"{number:x}": number + 300 for number in range(4000)}
    raw = put_record(CursorRecord(CursorState(data={**keys})))
    async with fastbk.connect(new_cluster(tmp_path / "metadata.sqlite")) as client:
        (stream_id,) = await made(client, [1])
        await client.records.change(
            *[Change(f"{cursors_path(stream_id)}/c{number}", raw) for number in range(60)]
        )
        tracemalloc.reset_peak()
        found = await cursors_of(client.records, stream_id)
        assert peak() < 12 * MIB, "of 36"
    assert len(found) == 60
    assert found[7].data == keys
    assert (found[7].data["f"], len(found[7].data), found[7].data.get("by")) == (315, 4000, None)
