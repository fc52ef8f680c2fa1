"""Requests that clients with few rights send to hurt others: what a gateway, and whoever reads their records, makes of
them.

INV-W1, INV-W3, INV-W4.
"""

from __future__ import annotations

import random
import struct
import time
import zlib
from typing import Any

import msgspec
import pytest

from fastbk.errors import (
    ConfigError,
    MetadataUnavailable,
    QuotaExceeded,
    StorageError,
    Unauthorized,
)
from fastbk.gateway.access import Access, NamespaceTree
from fastbk.gateway.operations import read_states
from fastbk.gateway.rules import CHAINS_MAX, NEW_PAGES_MAX, USAGE_BYTES_MAX
from fastbk.meta import MetadataStore
from fastbk.meta.gateway import messages
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import SqliteRecords
from fastbk.security.rights import OPERATIONS
from fastbk.stream import chain as chains
from fastbk.stream.chain import LISTED_ROWS_MAX, Chain, get_chain, get_page, put_chain
from fastbk.stream.cursor.state import CursorRecord, CursorState, put_record
from fastbk.stream.cursor.store import CURSORS_MAX
from fastbk.stream.drafts import ledgers_named
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    put,
)
from fastbk.stream.paths import (
    NAME_PARTS,
    chain_path,
    cursors_path,
    decode,
    drafts_path,
    entry_path,
    namespace_path,
    stream_path,
    usage_path,
)
from fastbk.stream.positions import DLSN
from tests.fixtures.gateway_store import (
    ORDERS,
    PAYMENTS,
    SHOP,
    WRITER,
    DirectCalls,
    chain,
    ledger,
    of,
    principal,
    two_namespaces,
    version_of,
)


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    return two_namespaces(f"attacks {tmp_path}")


# --- records that are small to send and large to read ---------------------------------------------------------------


def packed(mark: bytes, body: bytes) -> bytes:
    return mark + b"\x01" + zlib.compress(body, 9)


def rows(count: int) -> bytes:
    return b"\xdd" + struct.pack(">I", count) + b"\x95\x01\x01\x02\x00\x00" * count


@pytest.mark.parametrize("count", [LISTED_ROWS_MAX + 1, 2_000_000, 8_000_000])
def test_a_chain_of_millions_of_rows_is_refused_before_they_are_made(
    store: MetadataStore, count: int
) -> None:
    """12 kB became a gigabyte, and nobody else was answered for twelve seconds."""
    head = (
        b"\x9b"
        + msgspec.msgpack.encode(ORDERS)
        + b"\x00\xa0\xc2\x93\x01\x00\x00\x01\x01\x00\x00\x90"
    )
    bomb = packed(b"FBKC", head + rows(count))
    began_s = time.process_time()
    with pytest.raises(StorageError):
        get_chain(bomb)
    with pytest.raises(StorageError):
        get_page(packed(b"FBKP", rows(count)))
    reader = of(store, "read").records
    with pytest.raises(Unauthorized):
        reader.change([Change(chain_path(ORDERS), bomb, version_of(store, chain_path(ORDERS)))])
    assert time.process_time() - began_s < 1.0


def test_one_request_changes_few_chains_and_names_few_pages_and_ledgers(
    store: MetadataStore,
) -> None:
    writer = of(store, *WRITER).records
    ids = [f"0f{number:02}" for number in range(CHAINS_MAX + 1)]
    many = [Change(chain_path(one), put_chain(Chain(one))) for one in ids]
    with pytest.raises(Unauthorized, match="send several"):
        writer.change(many)
    known, version = chain(store)
    count = NEW_PAGES_MAX + 1
    pages = b"".join(
        msgspec.msgpack.encode([one, 0, one, one, *[0] * 7]) for one in range(1, count + 1)
    )
    body = (
        b"\x9c" + msgspec.msgpack.encode(ORDERS) + b"\x00\xa0\xc2\x93\x01\x00\x00\x01\x01\x00\x00"
    )
    body += b"\xdc" + struct.pack(">H", count) + pages + b"\x90" + msgspec.msgpack.encode(count + 1)
    with pytest.raises(Unauthorized, match="pages at most"):
        writer.change([Change(chain_path(ORDERS), packed(b"FBKC", body), version)])
    assert chain(store) == (known, version)
    drawn = [store.next_ledger_id() for _ in range(6000)]
    drafts = [
        msgspec.json.encode({"made_us": 1, "ledgers": drawn[at : at + 1000]})
        for at in range(0, 6000, 1000)
    ]
    with pytest.raises(Unauthorized, match="ledgers at most"):
        writer.change(
            [Change(f"{drafts_path(ORDERS)}/0~a~{at}~c", one) for at, one in enumerate(drafts)]
        )
    with pytest.raises(Unauthorized, match="length <= 1000"):
        large = msgspec.json.encode({"made_us": 1, "ledgers": drawn[:1001]})
        writer.change([Change(f"{drafts_path(ORDERS)}/0~a~b~c", large)])


# --- what others read and count -------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["read", "add"])
def test_nobody_spoils_the_counts_that_all_who_create_something_write(
    store: MetadataStore, operation: str
) -> None:
    """The root's, of which a client of one namespace changes what its own streams add."""
    shop = of(store, operation, namespaces=("shop",)).records
    path = usage_path(ROOT_ID)
    version = version_of(store, path)
    long = put(UsageRecord(2, 0, 2))[:-1] + b',"more":"%b"}' % (b"x" * USAGE_BYTES_MAX)
    for value in (
        put(UsageRecord(2, 1, 2)),
        b'{"streams":2,"names":2,"changes":%d}' % 10**40,
        long,
    ):
        with pytest.raises(Unauthorized, match=r"count|changes|bytes"):
            shop.change([Change(path, value, version)])


@pytest.mark.parametrize("name", ["%73hop", "shop%2Feu", "shop%2feu", "%2E%2E", "a%0Ab"])
def test_a_name_has_one_spelling_and_is_no_path(store: MetadataStore, name: str) -> None:
    """`shop/eu` in the root namespace would be a path that a token for `shop/*` may work in."""
    shop = of(store, *WRITER, "delete", namespaces=("*",)).records
    part = f"{zlib.crc32(name.encode()) % NAME_PARTS:02d}"
    new = [
        Change(f"{namespace_path(ROOT_ID)}/{part}/{name}", put(EntryRecord("namespace", "ee01"))),
        Change(namespace_path("ee01"), put(NamespaceRecord(ROOT_ID, decode(name)))),
        Change(usage_path("ee01"), put(UsageRecord())),
        Change(
            usage_path(ROOT_ID), put(UsageRecord(2, 1, 3)), version_of(store, usage_path(ROOT_ID))
        ),
    ]
    with pytest.raises(Unauthorized):
        shop.change(new)


def test_whose_an_others_ledger_is_stays_unsaid(store: MetadataStore) -> None:
    theirs = ledger(store, "bank/secret-merger", last=9)
    with pytest.raises(Unauthorized, match="its token is limited to namespaces") as caught:
        of(store, *WRITER, namespaces=("shop",)).read_ledger(theirs)
    assert "merger" not in str(caught.value)


# --- others' ledgers ------------------------------------------------------------------------------------------------


def test_an_id_is_named_only_once_it_was_drawn(store: MetadataStore) -> None:
    """INV-W4: the ids that others draw next are known. The janitor would see to it that they can never be used."""
    nexts = tuple(range(store.next_ledger_id() + 1, store.highest_drawn_id() + 10))
    state = put_record(CursorRecord(CursorState(), doomed=nexts))
    with pytest.raises(Unauthorized, match="was not drawn"):
        of(store, "read").records.change([Change(f"{cursors_path(ORDERS)}/mine", state)])
    draft = msgspec.json.encode({"made_us": 1, "ledgers": nexts})
    assert ledgers_named(draft) == nexts
    writer = of(store, *WRITER).records
    with pytest.raises(Unauthorized, match="was not drawn"):
        writer.change([Change(f"{drafts_path(ORDERS)}/0~a~b~c", draft)])
    known, version = chain(store)
    known = chains.open_for_append(known, "w")
    with pytest.raises(Unauthorized, match="was not drawn"):
        writer.change(
            [
                Change(
                    chain_path(ORDERS),
                    put_chain(chains.reserve(known, known.epoch, nexts[0])),
                    version,
                )
            ]
        )


def test_a_segment_claims_no_more_bytes_than_its_ledger_has(store: MetadataStore) -> None:
    """INV-W3: `retention_bytes` would delete all that is older."""
    mine = ledger(store, "shop", ORDERS, last=9)
    length = store.read_ledger(mine).metadata.length
    known, version = chain(store)

    def of_size(size_bytes: int) -> Change:
        contents = chains.Contents(5, 0, 5, 1, 2, DLSN(1, 9, 0), -1, size_bytes)
        return Change(
            chain_path(ORDERS),
            put_chain(chains.attach(known, ((mine, contents),), "k", 0, 1)),
            version,
        )

    writer = of(store, *WRITER).records
    with pytest.raises(Unauthorized, match="needs the operation truncate"):
        writer.change([of_size(1 << 60)])
    writer.change([of_size(length)])


# --- what readers may create ----------------------------------------------------------------------------------------

CURSOR = put_record(CursorRecord(CursorState()))
MOVED = put_record(CursorRecord(CursorState(serial=1)))


def cursor(name: str, stream: str = ORDERS) -> str:
    return f"{cursors_path(stream)}/{name}"


@pytest.mark.parametrize("operations", [("read",), OPERATIONS])
def test_a_stream_takes_so_many_cursors_and_no_more(
    store: MetadataStore, operations: tuple[str, ...]
) -> None:
    """INV-B1: by what the store has, whatever the client counts. Those that are there go on."""
    store.records.change(
        [Change(cursor(f"c{number}"), CURSOR) for number in range(CURSORS_MAX - 1)]
    )
    reader = of(store, *operations).records
    (version,) = reader.change([Change(cursor("mine"), CURSOR)])
    for value, there in ((MOVED, "1,000"), (CURSOR, "1,001")):
        with pytest.raises(
            QuotaExceeded, match=f"shop/orders has {there} cursors.*delete cursors that nobody uses"
        ):
            reader.change([Change(cursor("another"), CURSOR)])
        (version,) = reader.change([Change(cursor("mine"), value, version)])
        if there == "1,000":
            store.records.change([Change(cursor("overshot"), CURSOR)])
    reader.change([Change(cursor("another", PAYMENTS), CURSOR)])
    reader.change(
        [
            Change(cursor(name), None, version_of(store, cursor(name)))
            for name in ("mine", "overshot")
        ]
    )
    reader.change([Change(cursor("another"), CURSOR)])


def test_one_request_creates_one_cursor_of_a_stream(store: MetadataStore) -> None:
    """Each request that is under way at the bound may get beyond it: by one, and not by thousands."""
    reader = of(store, "read").records
    with pytest.raises(Unauthorized, match="one cursor of a stream at most"):
        reader.change([Change(cursor(name), CURSOR) for name in "ab"])
    reader.change([Change(cursor("a"), CURSOR), Change(cursor("a", PAYMENTS), CURSOR)])


def test_there_is_no_cursor_without_its_stream(store: MetadataStore) -> None:
    """Ids of streams that never were have no end, and a stream is deleted only once nothing is below it."""
    reader = of(store, "read").records
    where = stream_path(ORDERS)
    (version,) = reader.change([Change(cursor("old"), CURSOR)])
    gone = put(StreamRecord(SHOP, "orders", deleting=True))
    store.records.change([Change(where, gone, version_of(store, where))])
    for stream in ("0cff", ORDERS):
        with pytest.raises(Unauthorized, match=f"there is no stream {stream}"):
            reader.change([Change(cursor("new", stream), CURSOR)])
    reader.change([Change(cursor("old"), MOVED, version)])


def test_nothing_is_counted_of_a_namespace_that_is_not_there(store: MetadataStore) -> None:
    """Ids of namespaces that never were have no end, either."""
    count = Change(usage_path("ffff"), put(UsageRecord()))
    for operations in (("read",), OPERATIONS):
        with pytest.raises(Unauthorized, match="begins as it is created"):
            of(store, *operations).records.change([count])


# --- what takes long ------------------------------------------------------------------------------------------------


def test_what_nobody_waits_for_any_more_ends(store: MetadataStore) -> None:
    tree = NamespaceTree(store.records)
    late = Access(principal("read"), tree, end_s=time.monotonic() - 1)
    subjects = tuple(f"={chain_path(one)}" for one in (ORDERS, PAYMENTS))
    with pytest.raises(MetadataUnavailable, match="took too long"):
        read_states(store, late, messages.ReadStates(1000, subjects))


def test_many_records_are_read_by_few_calls_of_the_store(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was one for each 32 of them, which is a round trip to ZooKeeper."""
    paths = tuple(f"{cursors_path(ORDERS)}/c{number}" for number in range(300))
    store.records.change([Change(path, b"1") for path in paths])
    assert isinstance(store.records, SqliteRecords)
    calls, file, queries = DirectCalls(store, principal("read")), store.records._file, list[str]()
    query_of = file.rows

    def counted(query: str, *values: Any) -> list[Any]:
        queries.append(query)
        return query_of(query, *values)

    monkeypatch.setattr(file, "rows", counted)
    found = calls.call(messages.ReadRecords(1000, paths), list[messages.RecordRow | None])
    assert len(found) == len(paths) and None not in found
    states_of = calls.call(
        messages.ReadStates(1000, tuple(f"={path}" for path in paths)), list[str]
    )
    assert len(states_of) == len(paths)
    assert len(queries) == 4, "the sizes and the data, for each request"


def test_states_are_the_same_one_by_one_and_together(store: MetadataStore) -> None:
    """Many more than one call of the store reads, in any order, some of them twice, some that others may see only."""
    made = [
        ledger(store, namespace, stream, last=9)
        for namespace, stream in (("shop", ORDERS), ("bank", PAYMENTS))
    ]
    store.records.change(
        [Change(f"{cursors_path(ORDERS)}/c{number}", b"1") for number in range(40)]
    )
    subjects: list[int | str | None] = [None, *made, 10**9]
    subjects += [f"={chain_path(one)}" for one in (ORDERS, PAYMENTS, "00ff")]
    subjects += [f"={cursors_path(ORDERS)}/c{number}" for number in range(50)]
    folders = [
        cursors_path(ORDERS),
        cursors_path(PAYMENTS),
        entry_path(ROOT_ID, "shop").rpartition("/")[0],
    ]
    subjects += [f"/{folder}" for folder in folders]
    random.Random(5).shuffle(subjects)
    client = principal("read", namespaces=("shop",))
    calls = DirectCalls(store, client)
    together = calls.call(messages.ReadStates(1000, (*subjects, *subjects[:9])), list[str])
    one_by_one = [calls.call(messages.ReadStates(1000, (one,)), list[str])[0] for one in subjects]
    assert together == [*one_by_one, *one_by_one[:9]]
    by_subject = dict(zip(subjects, one_by_one, strict=True))
    assert by_subject[made[1]] == by_subject[f"={chain_path(PAYMENTS)}"] == messages.FORBIDDEN
    assert by_subject[10**9] == by_subject[f"={cursors_path(ORDERS)}/c45"] == messages.ABSENT
    assert messages.FORBIDDEN not in (by_subject[made[0]], by_subject[f"={chain_path(ORDERS)}"])


def test_a_state_is_short_and_is_read_once_however_often_it_is_wanted(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal("read"))
    names = [f"{'c' * 200}{number}" for number in range(500)]
    store.records.change([Change(f"{cursors_path(ORDERS)}/{name}", b"1") for name in names])
    subject = f"/{cursors_path(ORDERS)}"
    began_s = time.process_time()
    found = calls.call(messages.ReadStates(1000, (subject,) * messages.KEYS_MAX), list[str])
    assert time.process_time() - began_s < 1.0
    assert len(found) == messages.KEYS_MAX and len(set(found)) == 1 and len(found[0]) <= 64
    store.records.change([Change(f"{cursors_path(ORDERS)}/another", b"1")])
    assert calls.call(messages.ReadStates(1000, (subject,)), list[str]) != found[:1]


def test_a_mark_that_nests_without_end_is_the_clients_mistake(store: MetadataStore) -> None:
    calls = DirectCalls(store, principal("add"))
    with pytest.raises(ConfigError, match="is none"):
        calls.call(messages.UpdateMark(1000, 5, b"[" * 100_000, b"[]"), bytes)


@pytest.mark.parametrize(
    "request_",
    [
        messages.ReadStates(1000, (f"={'a' * 2_000_000}",)),
        messages.ReadStates(1000, (f"?{chain_path(ORDERS)}",)),
        messages.ReadStates(1000, ("",)),
        messages.ReadStates(1000, (5,), ("s" * 101,)),
        messages.ReadStates(1000, (5, 6), ("s",)),
    ],
)
def test_what_a_waiting_request_would_keep_in_memory_is_short(
    store: MetadataStore, request_: messages.Request
) -> None:
    with pytest.raises(ConfigError):
        DirectCalls(store, principal("read")).call(request_, list[str])
