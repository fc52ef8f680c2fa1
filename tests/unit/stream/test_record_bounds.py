"""What a client may write into a record of a stream is bounded where it is decoded (INV-S14)."""

from __future__ import annotations

import zlib
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from fastbk.client.loop_thread import LoopThread
from fastbk.errors import ConfigError, StorageError
from fastbk.stream import chain as chains
from fastbk.stream.chain import (
    Attachment,
    Chain,
    PageRef,
    Segment,
    SegmentState,
    get_chain,
    put_chain,
)
from fastbk.stream.cursor.cursor import Cursor
from fastbk.stream.cursor.state import CursorRecord, CursorState, get_record, put_record, put_state
from fastbk.stream.cursor.store import cursors_of
from fastbk.stream.drafts import _encode, _State
from fastbk.stream.namespace.catalog import Catalog
from fastbk.stream.namespace.tree import (
    EntryRecord,
    NamespaceRecord,
    StoredRecord,
    StreamRecord,
    UsageRecord,
    get,
    put,
)
from fastbk.stream.pattern.store import PatternRecord, StreamPosition, put_pattern
from fastbk.stream.policy import PolicyPatch, StreamPolicy
from fastbk.stream.positions import DLSN, TIME_US_MAX, to_time
from fastbk.stream.stream import Stream
from fastbk.stream.sync import SyncStream
from tests.fixtures.fake_ledgers import Cluster
from tests.fixtures.streams import (
    as_client,
    cluster_with_stream,
    context_of,
    new_stream,
    unchecked_cursor,
)

if TYPE_CHECKING:
    from collections.abc import Callable

KINDS = (
    Segment, PageRef, Attachment, Chain, CursorState, CursorRecord, NamespaceRecord, EntryRecord, UsageRecord,
    StoredRecord, StreamRecord, DLSN, _State,
)  # fmt: skip


def unbounded(hint: Any, where: str) -> list[str]:
    """Return the numbers, texts and lists in a type that have no bound."""
    metas = [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, msgspec.Meta)]
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    upper = [
        one
        for one in metas
        if one.le is not None or one.lt is not None or one.max_length is not None
    ]
    if hint in (int, float, str, bytes):
        return [] if upper else [where]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (tuple, dict, list):
        found = [] if upper else [where]
        # The user's map has whole numbers of 64 bits, as MessagePack has no others.
        inner = tuple(one for one in inner if one is not Ellipsis and where != "CursorState.data")
        return found + [bad for one in inner for bad in unbounded(one, f"{where}[]")]
    if origin in (Union, UnionType):
        return [bad for one in inner for bad in unbounded(one, where)]
    return []


@pytest.mark.parametrize("kind", KINDS, ids=lambda one: one.__name__)
def test_every_number_and_text_of_a_record_has_a_bound(kind: type) -> None:
    hints = get_type_hints(kind, include_extras=True)
    assert [
        bad for name, hint in hints.items() for bad in unbounded(hint, f"{kind.__name__}.{name}")
    ] == []


def test_every_number_of_a_policy_is_checked_where_it_takes_effect() -> None:
    from fastbk.errors import PolicyInvalid
    from fastbk.stream.policy import effective

    for name, value in msgspec.structs.asdict(StreamPolicy()).items():
        if type(value) in (int, float):
            with pytest.raises(PolicyInvalid):
                effective([PolicyPatch(**{name: 2**80})])
    with pytest.raises(StorageError):
        get(NamespaceRecord, b'{"policy":{"bookie_group":"%b"}}' % (b"x" * 300), "here")


CLOSED = Segment(1, 7, SegmentState.CLOSED, 1, 5, 0, 0, 3, 0, 2, 5, 6, 0, -1, 100)
CHAIN = Chain("0c0a", epoch=1, rows=(CLOSED,), next_number=2, end_seq=3, last_dlsn=DLSN(1, 0, 2))


def packed(chain: Chain) -> bytes:
    return b"FBKC\x01" + zlib.compress(msgspec.msgpack.encode(chain))


@pytest.mark.parametrize(
    "fields",
    [
        {"epoch": 2**64 - 1}, {"epoch": 2**63 - 1}, {"end_seq": 2**64 - 1}, {"last_time_us": 2**64 - 1},
        {"last_time_us": 2**63 - 1}, {"owner": "A" * (1 << 20)}, {"owner": "A" * (15 << 20)}, {"epoch": -1},
        {"attachments": (Attachment("k" * 100_000, 1),)}, {"trim": DLSN(2**63, 0, 0)}, {"stream_id": "x" * 1000},
        {"rows": (replace(CLOSED, size_bytes=2**63),)}, {"rows": (replace(CLOSED, last_time_us=2**63 - 1),)},
        {"rows": (replace(CLOSED, number=5),)}, {"rows": (CLOSED, CLOSED)}, {"end_seq": 1}, {"next_number": 9},
        {"rows": (replace(CLOSED, records=0, size_bytes=0),)}, {"head": 5},
    ],
    ids=lambda one: "-".join(one),
)  # fmt: skip
def test_a_chain_beyond_its_bounds_or_against_itself_is_not_decoded(fields: dict[str, Any]) -> None:
    assert get_chain(put_chain(CHAIN)) == CHAIN
    with pytest.raises(StorageError):
        get_chain(packed(replace(CHAIN, **fields)))


def test_a_chain_that_nobody_could_read_is_not_written() -> None:
    with pytest.raises(StorageError):
        put_chain(replace(CHAIN, last_time_us=TIME_US_MAX + 1))


def test_a_packed_record_is_bounded_unpacked() -> None:
    with pytest.raises(StorageError, match="too long"):
        get_chain(b"FBKC\x01" + zlib.compress(bytes(chains.RAW_BYTES_MAX + 1)))
    largest = tuple(
        PageRef(
            one,
            2**62 - 1,
            one * 1024 + 1,
            one * 1024 + 1024,
            one << 40,
            *[2**62 - 1] * 2,
            *[TIME_US_MAX] * 3,
            9,
        )
        for one in range(1024)
    )
    million = replace(
        CHAIN, rows=(), pages=largest, next_page=1024, next_number=1024 * 1024 + 1, end_seq=1 << 51
    )
    assert len(zlib.decompress(put_chain(million)[5:])) * 8 < chains.RAW_BYTES_MAX, (
        "a million segments fit"
    )


@pytest.mark.parametrize(
    "fields",
    [{"holder": "h" * 890_000}, {"used_at_us": 2**63}, {"expire_after_s": 1e300}, {"doomed": (1,) * 100_000},
     {"state": CursorState(mark=DLSN(2**63, 0, 0))}, {"state": CursorState(serial=2**64 - 1)},
     {"state": CursorState(data={"by": "x" * 100_000})},
     {"state": CursorState(data={f"k{number}": "x" * 1000 for number in range(40)})}],
    ids=lambda one: "-".join(one),
)  # fmt: skip
def test_a_cursor_beyond_its_bounds_is_not_decoded(fields: dict[str, Any]) -> None:
    with pytest.raises(StorageError):
        get_record(unchecked_cursor(replace(CursorRecord(CursorState()), **fields)))


def test_every_time_can_be_written_as_a_date() -> None:
    assert to_time(2**63 - 1).year == 9999
    assert to_time(-5).year == 1970


# Nothing is written into a record that its own decoder refuses (INV-S14).


WRONG: list[dict[str, Any]] = [
    {"hold": "no"}, {"hold": 1}, {"hold": None}, {"expire_after": "1d"}, {"expire_after": True},
    {"expire_after": 0.5}, {"expire_after": float("nan")}, {"expire_after": -1}, {"expire_after": 1e10},
]  # fmt: skip


async def a_stream() -> tuple[Cluster, Stream]:
    cluster, _ = await cluster_with_stream()
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
