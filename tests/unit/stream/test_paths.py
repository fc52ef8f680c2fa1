"""Names of namespaces and streams: which are refused, and that each is one part of a path of metadata."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastbk
from fastbk.errors import ConfigError, QuotaExceeded
from fastbk.meta.records import Change, check_path
from fastbk.meta.zookeeper.session import Call
from fastbk.meta.zookeeper.store import ZooKeeperStore
from fastbk.stream import paths
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.listing import ids_below
from fastbk.stream.namespace.namespace import Namespace, new_id
from fastbk.stream.namespace.tree import ROOT_ID, UsageRecord, put
from fastbk.stream.paths import check_name, decode, encode, split_path
from tests.fixtures.fake_ledgers import Cluster
from tests.style.tree import walk
from tests.unit.meta.test_metadata_store import Open, open_driver

if TYPE_CHECKING:
    from fastbk.meta.api import MetadataStore


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", ".hidden", "<default>", "a/b", "a\nb", "a\x00", "\x7f", "\ud800", "x" * 256]
    + ["ä" * 43, "a\u2028b"],
)
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        check_name(name)


@pytest.mark.parametrize(
    "name", ["orders", "größe 1", "a%2Fb", "100%", "x" * 255, "ä" * 42, "日本", "a.b", "a<b"]
)
def test_names_are_kept_as_they_are(name: str) -> None:
    assert decode(encode(check_name(name))) == name
    assert check_path(f"namespaces/root/{encode(name)}")


@given(st.text(), st.text())
def test_each_name_has_a_part_of_its_own(first: str, second: str) -> None:
    found = []
    for name in (first, second):
        try:
            found.append(check_name(name))
        except ConfigError:
            continue
    for name in found:
        assert decode(encode(name)) == name
        assert check_path(encode(name)) and "/" not in encode(name)
    if len(found) == 2:
        assert (first == second) == (encode(first) == encode(second))


def test_paths_are_names_between_slashes() -> None:
    assert split_path("") == ()
    assert split_path("tenant/app") == ("tenant", "app")
    for path in ("/", "/a", "a/", "a//b", "a/../b", "a/./b"):
        with pytest.raises(ConfigError):
            split_path(path)


# As many streams, and names, as one answer of ZooKeeper's could not list: every answer is bounded
# by the layout.


__all__ = ["open_driver"]
ANSWER_BYTES_MAX = 1 << 20
"""What clients of ZooKeeper take in one packet (jute.maxbuffer)."""
IDS = 100_000
IDS_IN_CI = 5_000
"""On a real ZooKeeper below ALL=1, where creating them takes a minute of its processor: bounds are by the count."""
AT_ONCE = 2_000


def write_ids(store: MetadataStore, ids: list[str]) -> None:
    """Write records of streams that say nothing; into ZooKeeper without reading any of them back."""
    if not isinstance(store, ZooKeeperStore):
        for at in range(0, len(ids), 10 * AT_ONCE):
            some = ids[at : at + 10 * AT_ONCE]
            store.records.change([Change(paths.stream_path(one), b"{}") for one in some])
        return
    for at in range(0, 256, 16):  # nodes above them, too, all in one transaction, which has 10 s
        store.records.change(
            [Change(paths.stream_path(f"{one:02x}" * 8), b"{}") for one in range(at, at + 16)]
        )
    client, where = store._session.client, store.records._path  # type: ignore[attr-defined]
    for at in range(0, len(ids), AT_ONCE):
        some = [where(paths.stream_path(one)) for one in ids[at : at + AT_ONCE]]
        for pending in [client.create_async(path, b"{}") for path in some]:
            pending.get(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("open_driver", "count"),
    [
        ("memory", IDS_IN_CI),
        ("sqlite", IDS_IN_CI),
        pytest.param("sqlite", IDS, marks=pytest.mark.long),
        ("zookeeper", IDS_IN_CI),
        pytest.param("zookeeper", IDS, marks=pytest.mark.soak),
    ],
    indirect=["open_driver"],
)
def test_all_ids_are_listed_in_answers_of_some_kilobytes(
    open_driver: Open, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, ids = open_driver(), [new_id() for _ in range(count)]
    largest, listed = 0, Call.children_all
    write_ids(store, ids)

    def seen(self: Call, wanted: list[str]) -> list[list[str] | None]:
        nonlocal largest
        found = listed(self, wanted)
        largest = max(largest, *(sum(4 + len(one) for one in names or ()) for names in found))
        return found

    monkeypatch.setattr(Call, "children_all", seen)

    async def run() -> None:
        found: list[str] = []
        async with fastbk.connect(store) as client:
            async for some in ids_below(client.records, paths.STREAMS):
                assert len(some) < IDS / 20, "bounded memory: some parts at a time"
                found += some
        assert len(found) == len(set(found)) and set(ids) <= set(found)

    asyncio.run(run())
    assert largest < ANSWER_BYTES_MAX / 20 * count / IDS
    assert largest > 0 or not isinstance(store, ZooKeeperStore)


@pytest.mark.slow
def test_the_longest_names_are_spread_over_parts_that_can_be_listed() -> None:
    sizes: Counter[str] = Counter()
    for number in range(paths.NAMES_MAX):
        part, _, name = paths.entry_path("ns", f"{number:0255d}").rpartition("/")
        sizes[part] += 4 + len(name)
    assert len(sizes) == paths.NAME_PARTS
    assert max(sizes.values()) < ANSWER_BYTES_MAX


async def test_a_namespace_that_is_full_of_names_says_what_to_do() -> None:
    cluster = Cluster()
    root = Namespace(Catalog(cluster.client()))  # type: ignore[arg-type]
    await root.create_streams(["a", "b"])
    usage = UsageRecord(streams=2, changes=1, names=paths.NAMES_MAX - 1)
    where = paths.usage_path(ROOT_ID)
    version = cluster.records.values[where].version
    await cluster.client().records.change(Change(where, put(usage), version))
    await root.namespace("below").create()
    for refused in (root.create_stream("c"), root.namespace("other").create()):
        with pytest.raises(QuotaExceeded, match="make namespaces below it"):
            await refused
    await root.rename_stream("a", "z")
    await root.namespace("below").create_streams(["c", "d"])
    await root.delete_stream("b")
    await root.create_stream("b")


def test_paths_are_written_in_one_place() -> None:
    words = re.compile(r"""["'](streams|namespaces|usage)/""")
    found = [name for name, path in walk((".py",), "fastbk") if words.search(path.read_text())]
    assert found == []
