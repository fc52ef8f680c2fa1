"""One bad record of each kind is named, and stops no listing, no pass and no deletion beside it (INV-S14)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec.structs import replace

import fastbk
from fastbk.meta import open_store
from fastbk.meta.records import Change
from fastbk.stream.chain import Chain, PageRef, get_chain
from fastbk.stream.cursor.state import CursorRecord, CursorState
from fastbk.stream.janitor import Janitor, JanitorOptions
from fastbk.stream.paths import (
    chain_path,
    cursors_path,
    drafts_path,
    page_part,
    pages_path,
    producers_path,
    stream_path,
)
from fastbk.stream.policy import PolicyPatch
from fastbk.testing import LocalCluster
from tests.fixtures.cli import Cli
from tests.fixtures.streams import unchecked_cursor


def packed(chain: Chain) -> bytes:
    return b"FBKC\x01" + zlib.compress(msgspec.msgpack.encode(chain))


PAGE = PageRef(0, 7, 1, 1, 0, 0, 0, 0, 0, 0, 100)
CHAINS: dict[str, Callable[[Chain], bytes]] = {
    "garbage": lambda _: b"garbage",
    "epoch": lambda chain: packed(replace(chain, epoch=2**64 - 1)),
    "time": lambda chain: packed(replace(chain, last_time_us=2**63 - 1)),
    "end": lambda chain: packed(replace(chain, end_seq=2**64 - 1)),
    "owner": lambda chain: packed(replace(chain, owner="A" * (15 << 20))),
    "rows": lambda chain: packed(replace(chain, rows=chain.rows * 2)),
    "page": lambda chain: packed(replace(chain, head=1, pages=(PAGE,), rows=tuple(
        replace(row, number=row.number + 1) for row in chain.rows), next_number=chain.next_number + 1)),
}  # fmt: skip
BAD = CHAINS.keys() - {"page"}
"""All but one whose page is not there: lists read no pages."""


async def planted(
    cluster: LocalCluster, streams: dict[str, Callable[[Chain], bytes]]
) -> dict[str, str]:
    """Make a good stream and one for each bad chain; return their ids by name."""
    ids: dict[str, str] = {}
    async with fastbk.connect(cluster.metadata_uri) as client:
        space = client.namespace("shop")
        await space.create(PolicyPatch(ensemble=1, write_quorum=1, ack_quorum=1))
        for name in ("good", *streams):
            stream = await space.create_stream(name)
            async with stream.writer() as writer:
                await writer.append(b"x")
            ids[name] = (await stream.context()).stream_id
    with closing(open_store(cluster.metadata_uri)) as store:
        for name, spoil in streams.items():
            path = chain_path(ids[name])
            (found,) = store.records.read([path])
            assert found is not None
            store.records.change([Change(path, spoil(get_chain(found.value)), found.version)])
        beside = stream_path(ids["good"]).rpartition("/")[0]
        store.records.change([
            Change(f"{cursors_path(ids['good'])}/bad", b"garbage"),
            Change(f"{cursors_path(ids['good'])}/far", unchecked_cursor(CursorRecord(CursorState(), used_at_us=2**63))),
            Change(f"{drafts_path(ids['good'])}/nonsense", b"{}"),
            Change(f"{drafts_path(ids['good'])}/1~a~b~c", b"garbage"),
            Change(f"{pages_path(ids['good'])}/nonsense", b"garbage"),
            Change(f"{producers_path(ids['good'])}/nonsense", b"garbage"),
            Change(f"{producers_path(ids['good'])}/{page_part(5, 5)}", b"garbage"),
            Change(f"{pages_path(ids['good'])}/{page_part(5, 5)}", b"garbage"),
            Change(f"{beside}/{ids['good'][:2]}ffffffffffffff", b"garbage"),
        ])  # fmt: skip
    return ids


def test_bad_records_are_named_and_stop_nobody(tmp_path: Path) -> None:
    with LocalCluster(1, data=tmp_path) as cluster:
        asyncio.run(planted(cluster, CHAINS))
        cli = Cli(cluster.metadata_uri)
        code, found, _ = cli.answer("stream", "list", "shop")
        assert code == 0
        listed = {one["stream"]: one for one in found["streams"]}
        assert listed.keys() == {f"shop/{name}" for name in ("good", *CHAINS)}
        assert {name for name, one in listed.items() if "fault" not in one} == {
            "shop/good",
            "shop/page",
        }
        text = cli("stream", "list", "shop")
        assert all(f"shop/{name}" in text for name in CHAINS) and text.count("bad:") == len(BAD)
        for name in BAD:
            code, info, _ = cli.answer("stream", "info", f"shop/{name}")
            assert code == 1 and info["fault"]
        assert "fault" not in cli.json("stream", "info", "shop/good")
        code, cursors, _ = cli.answer("stream", "cursors", "shop/good")
        assert code == 0 and "bad" in str(cursors) and "far" in str(cursors)
        asyncio.run(passed(cluster))
        bad = cli.answer("metadata", "bad-records")[1]["bad_records"]
        assert sum("/producers/" in one["record"] for one in bad) == 2
        for name in ("good", *CHAINS):
            cli("stream", "delete", f"shop/{name}", "--yes")
        asyncio.run(passed(cluster))
        assert cli.answer("stream", "list", "shop")[1]["streams"] == []
        with closing(open_store(cluster.metadata_uri)) as store:
            left = store.list_ledgers()
        assert not left, "the ledgers went with their streams"
        removed(cli)


def removed(cli: Cli) -> None:
    """What nobody reads any more is listed, and goes by its name."""
    code, found, _ = cli.answer("metadata", "bad-records")
    names = [one["record"] for one in found["bad_records"]]
    assert code == 1
    assert any(name.endswith("ffffffffffffff") for name in names), names
    for name in names:
        cli("metadata", "bad-records", "--remove", name, "--yes")
    assert cli.answer("metadata", "bad-records")[:2] == (0, {"bad_records": []})


async def passed(cluster: LocalCluster) -> None:
    """A janitor's pass does what it can: errors are counted, and it ends."""
    async with fastbk.connect(cluster.metadata_uri) as client:
        counts = await Janitor(client, JanitorOptions(thorough_every=1)).pass_once()
        assert counts.streams >= 1
