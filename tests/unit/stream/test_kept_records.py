"""Nothing is written into a record that its own decoder refuses (INV-S14)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ConfigError, StorageError
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.state import CursorRecord, CursorState, get_record, put_record, put_state
from fastbk.stream.cursor.store import cursors_of
from fastbk.stream.drafts import _encode, _State
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.tree import NamespaceRecord, StreamRecord, UsageRecord, put
from fastbk.stream.pattern.store import PatternRecord, StreamPosition, put_pattern
from fastbk.stream.policy import PolicyPatch
from fastbk.stream.positions import DLSN
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStream
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.fake_streams import as_client, context_of, new_stream

WRONG: list[dict[str, Any]] = [
    {"hold": "no"}, {"hold": 1}, {"hold": None}, {"expire_after": "1d"}, {"expire_after": True},
    {"expire_after": 0.5}, {"expire_after": float("nan")}, {"expire_after": -1}, {"expire_after": 1e10},
]  # fmt: skip


async def a_stream() -> tuple[Cluster, Stream]:
    cluster = Cluster()
    await new_stream(cluster)
    client = cluster.client()
    return cluster, Stream(Catalog(as_client(client)), ("ns",), "ab", context_of(client))


@pytest.mark.parametrize("options", WRONG)
async def test_a_cursor_is_made_with_the_options_that_it_is_opened_with(
    options: dict[str, Any],
) -> None:
    cluster, stream = await a_stream()
    with pytest.raises(ConfigError, match=next(iter(options))):
        await stream.create_cursor("c", **options)
    with pytest.raises(ConfigError, match=next(iter(options))):
        stream.cursor("c", **options)
    with pytest.raises(ConfigError, match=next(iter(options))):
        Cursor(context_of(cluster.client()), "c", **options)
    assert await cursors_of(as_client(cluster.client()).records, "ab") == []


def test_so_it_is_without_await() -> None:
    cluster = Cluster()
    loop = LoopThread(lambda: as_client(cluster.client()))
    try:
        loop.call(lambda: new_stream(cluster))
        client = as_client(cluster.client())
        found = Stream(Catalog(client), ("ns",), "ab", context_of(cluster.client()))
        stream = SyncStream(loop, lambda: found, "ns/ab")  # type: ignore[arg-type]
        for options in WRONG:
            with pytest.raises(ConfigError, match=next(iter(options))):
                stream.create_cursor("c", **options)
        assert stream.create_cursor("c", hold=False, expire_after=60).holds is False
    finally:
        loop.close(10.0)


RECORD, STATE = CursorRecord(CursorState()), CursorState()
BAD: list[Callable[[], bytes]] = [
    lambda: put_record(replace(RECORD, holds="no")),
    lambda: put_record(replace(RECORD, expire_after_s=-1.0)),
    lambda: put_record(replace(RECORD, holder="x" * 10_000)),
    lambda: put_record(replace(RECORD, state=replace(STATE, data={"k": "x" * 100_000}))),
    lambda: put_state(replace(STATE, mark=DLSN(-1, 0, 0))),
    lambda: put_state(replace(STATE, time_us=1 << 63)),
    lambda: put_state(replace(STATE, data={"k": None})),
    lambda: put_pattern(PatternRecord("*", holds="no")),  # type: ignore[arg-type]
    lambda: put_pattern(PatternRecord("*", positions={"ab": StreamPosition(mark=DLSN(-1, 0, 0))})),
    lambda: put(NamespaceRecord("root", "n" * 10_000)),
    lambda: put(StreamRecord("ns", "ab", created_us=1 << 63)),
    lambda: put(StreamRecord("ns", "ab", PolicyPatch(ensemble="3"))),  # type: ignore[arg-type]
    lambda: put(UsageRecord(streams=-1)),
    lambda: _encode(_State(1 << 63)),
]


@pytest.mark.parametrize("at", range(len(BAD)))
def test_what_a_decoder_refuses_is_not_encoded(at: int) -> None:
    with pytest.raises(StorageError, match=r"nobody reads|a cursor's map has"):
        BAD[at]()


def test_what_is_encoded_is_decoded() -> None:
    assert get_record(put_record(RECORD)) == RECORD
