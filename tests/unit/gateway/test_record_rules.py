"""What one client's records may say and weigh at a gateway: bytes of each kind, numbers, names, and how much a second.

INV-B1, INV-S12, INV-W2, INV-W3, INV-W6.
"""

from __future__ import annotations

import time
from dataclasses import replace as with_fields
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fastbk.errors import ConfigError, QuotaExceeded, StorageError, Unauthorized
from fastbk.gateway.ledger_rules import CUSTOM_BYTES_MAX
from fastbk.gateway.operations import MARK_BYTES_MAX
from fastbk.gateway.rules import (
    BYTES_MAX,
    NAMESPACES_DEEP_MAX,
    NEW_PAGES_MAX,
    READERS_CURSOR_BYTES_MAX,
)
from fastbk.gateway.service import Budgets
from fastbk.meta import MetadataStore
from fastbk.meta.format_level import LEVEL_PATH, decode
from fastbk.meta.records import VALUE_BYTES_MAX, Change
from fastbk.model.ledger import LedgerState
from fastbk.model.missing_replica import MissingReplica
from fastbk.stream import chain as chains
from fastbk.stream.chain import (
    CONDEMNED,
    Attachment,
    Chain,
    Contents,
    Segment,
    SegmentState,
    put_chain,
    put_page,
)
from fastbk.stream.cursor.state import RANGES_MAX, CursorRecord, CursorState, put_record
from fastbk.stream.namespace.tree import (
    ROOT_ID,
    EntryRecord,
    NamespaceRecord,
    StreamRecord,
    UsageRecord,
    put,
)
from fastbk.stream.paths import (
    chain_path,
    cursors_path,
    entry_path,
    namespace_path,
    page_part,
    pages_path,
    pattern_cursors_path,
    stream_path,
    usage_path,
)
from fastbk.stream.pattern.store import (
    CURSORS_MAX,
    PatternRecord,
    StreamPosition,
    path_of,
    put_pattern,
)
from fastbk.stream.positions import AHEAD_US_MAX, DLSN, TIME_US_MAX
from tests.fixtures.gateway_store import (
    BANK,
    ORDERS,
    SHOP,
    WRITER,
    chain,
    of,
    two_namespaces,
    version_of,
)
from tests.fixtures.metadata import metadata, set_level
from tests.fixtures.streams import unchecked_cursor

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    return two_namespaces(f"bounds {tmp_path}")


def cursor_of(size_bytes: int) -> bytes:
    """Return a cursor's record of about so many bytes, that says what a cursor may say."""
    count = size_bytes // 50
    big = tuple((1 << 40) + at for at in range(count))
    state = CursorState(firsts=big, ends=big, behinds=tuple(DLSN(1 << 40, 1 << 40, 0) for _ in big))
    return put_record(CursorRecord(state))


# --- bytes ----------------------------------------------------------------------------------------------------------


def test_a_reader_fills_metadata_with_no_large_cursors(store: MetadataStore) -> None:
    """226 of 890 kB ended a ZooKeeper server of 1 GB."""
    reader, path = of(store, "read").records, f"{cursors_path(ORDERS)}/mine"
    named = unchecked_cursor(CursorRecord(CursorState(), holder="h" * 800_000))
    for value in (named, cursor_of(2 * READERS_CURSOR_BYTES_MAX)):
        with pytest.raises(Unauthorized):
            reader.change([Change(path, value)])
    reader.change([Change(path, cursor_of(READERS_CURSOR_BYTES_MAX // 2))])
    larger = Change(path, cursor_of(2 * READERS_CURSOR_BYTES_MAX), version_of(store, path))
    with pytest.raises(Unauthorized, match="more than 65536 bytes"):
        reader.change([larger])
    of(store, *WRITER).records.change([larger])
    # It may move on, as long as it does not grow.
    reader.change(
        [Change(path, cursor_of(2 * READERS_CURSOR_BYTES_MAX - 500), version_of(store, path))]
    )


@pytest.mark.parametrize("what", ["time_us", "created_us", "used_at_us"])
def test_a_cursor_says_no_time_that_lies_a_day_ahead(store: MetadataStore, what: str) -> None:
    """A cursor used in the year 9999 never expires, and holds its stream's data for good."""
    reader, path, now_us = (
        of(store, "read").records,
        f"{cursors_path(ORDERS)}/mine",
        time.time_ns() // 1000,
    )

    def said(time_us: int) -> bytes:
        if what == "time_us":
            return put_record(CursorRecord(CursorState(time_us=time_us)))
        return put_record(replace(CursorRecord(CursorState()), **{what: time_us}))

    for far_us in (now_us + 2 * AHEAD_US_MAX, TIME_US_MAX):
        with pytest.raises(Unauthorized, match="in a day"):
            reader.change([Change(path, said(far_us))])
    reader.change([Change(path, said(now_us + AHEAD_US_MAX // 2))])
    with pytest.raises(Unauthorized, match="in a day"):
        reader.change([Change(path, said(TIME_US_MAX), version_of(store, path))])
    # When it was made stays what a wrong clock said that had no gateway before it: the cursor goes on.
    made = CursorRecord(CursorState(), created_us=TIME_US_MAX)
    store.records.change([Change(path, put_record(made), version_of(store, path))])
    reader.change(
        [Change(path, put_record(replace(made, used_at_us=now_us)), version_of(store, path))]
    )


def test_a_pattern_cursor_says_no_time_that_lies_a_day_ahead(store: MetadataStore) -> None:
    reader, path = of(store, "read").records, f"{pattern_cursors_path(SHOP)}/mine"
    for what in ("time_us", "created_us", "used_at_us"):
        with pytest.raises(Unauthorized, match="in a day"):
            reader.change([Change(path, put_pattern(PatternRecord("*", **{what: TIME_US_MAX})))])  # type: ignore[arg-type]


def test_the_largest_cursor_that_a_client_writes_fits(store: MetadataStore) -> None:
    big = tuple((1 << 60) + at for at in range(RANGES_MAX))
    behinds = tuple(DLSN(1 << 33, 1 << 33, 9) for _ in big)
    state = CursorState(firsts=big, ends=big, behinds=behinds, data={"x": "y" * 32_000})
    record = put_record(CursorRecord(state))
    of(store, *WRITER).records.change([Change(f"{cursors_path(ORDERS)}/large", record)])
    (found,) = store.records.read([f"{cursors_path(ORDERS)}/large"])
    assert found is not None and found.value == record


@pytest.mark.parametrize("kind", BYTES_MAX, ids=lambda one: one.name)
def test_a_record_of_each_kind_has_a_bound_below_the_stores(kind: object) -> None:
    assert BYTES_MAX[kind] < VALUE_BYTES_MAX  # type: ignore[index]


def test_a_long_name_or_policy_is_refused(store: MetadataStore) -> None:
    long = put(StreamRecord(SHOP, "orders"))[:-1] + b',"x":"%b"}' % (b"x" * 5000)
    with pytest.raises(Unauthorized, match="bytes, of 4,000"):
        of(store, *WRITER).records.change(
            [Change(stream_path(ORDERS), long, version_of(store, stream_path(ORDERS)))]
        )


def test_custom_metadata_tags_and_marks_are_bounded(store: MetadataStore) -> None:
    writer = of(store, *WRITER)
    large = with_fields(metadata(), custom={"label": bytes(CUSTOM_BYTES_MAX + 1)})
    drawn = writer.next_ledger_id()
    with pytest.raises(Unauthorized, match="custom metadata"):
        writer.create_ledger(drawn, large)
    version = writer.create_ledger(drawn, metadata())
    with pytest.raises(Unauthorized, match="custom metadata"):
        writer.update_ledger(drawn, large, version)
    many = [MissingReplica(f"b{at:0200}:1", at, at) for at in range(100)]
    with pytest.raises(Unauthorized, match="mark of ledger"):
        for _ in range(20):
            writer.marks.update(drawn, many, ())
            many = [with_fields(one, bookie_id=f"x{one.bookie_id}") for one in many]
    assert len(store.marks.read(drawn).missing) * 200 < 2 * MARK_BYTES_MAX


def page_change(number: int, token: int) -> Change:
    rows = tuple(Segment(at, at, SegmentState.CLOSED, 1, 5, at, 0, 1) for at in range(1, 1000))
    return Change(f"{pages_path(ORDERS)}/{page_part(number, token)}", put_page(rows))


def test_few_pages_of_a_chain_are_named_by_none(store: MetadataStore) -> None:
    writer = of(store, *WRITER).records
    for number in (NEW_PAGES_MAX, 10**6):
        with pytest.raises(Unauthorized, match="next page"):
            writer.change([page_change(number, 1)])
    with pytest.raises(Unauthorized, match="does not name"):
        for token in range(1000):
            writer.change([page_change(0, token)])
    assert len(store.records.children(pages_path(ORDERS))) < 100


@pytest.mark.parametrize("name", ["pages/x", "pages/1-2", "pages/-1-0000000000000001", "cursors/%FF", "cursors/%41",
                                  "drafts/x", "drafts/a~b~c~d", f"drafts/{'9' * 200}~b~c~d"])  # fmt: skip
def test_names_that_would_hold_up_who_lists_and_deletes_are_no_names(
    store: MetadataStore, name: str
) -> None:
    path = f"{stream_path(ORDERS)}/{name}"
    value = b'{"made_us":1}' if "drafts" in name else put_record(CursorRecord(CursorState()))
    with pytest.raises(Unauthorized):
        of(store, *WRITER).records.change([Change(path, value)])


# --- how much a second ----------------------------------------------------------------------------------------------


def test_a_client_writes_so_much_a_second_and_others_are_not_held_up() -> None:
    now_s = 100.0
    budgets = Budgets(10, 1000, lambda: now_s)
    taken = sum(not budgets.take("one", 1) for _ in range(200))
    assert 100 <= taken <= 101 and budgets.take("one", 1) == "writes"
    assert not budgets.take("other", 1)
    now_s += 1.0
    assert 9 <= sum(not budgets.take("one", 1) for _ in range(20)) <= 11
    assert not budgets.take("third", 50_000), "one large request is served"
    assert budgets.take("third", 1) == "data"
    now_s += 41.0
    assert not budgets.take("third", 1)
    assert not Budgets(0, 0).take("free", 10**9)


def test_budgets_remember_a_bounded_number_of_clients() -> None:
    budgets = Budgets(10, 1000)
    for number in range(budgets.CLIENTS_MAX + 100):
        budgets.take(f"c{number}", 1)
    assert len(budgets._known) == budgets.CLIENTS_MAX


# --- numbers --------------------------------------------------------------------------------------------------------


def written(store: MetadataStore, new: Chain) -> None:
    _, version = chain(store)
    of(store, *WRITER).records.change([Change(chain_path(ORDERS), put_chain(new), version)])


@pytest.mark.parametrize(
    "fields",
    [{"epoch": 2}, {"epoch": 1000}, {"next_page": 7}, {"end_seq": 10}, {"last_time_us": 5}, {"last_txid": 5},
     {"last_dlsn": DLSN(1, 1, 1)}, {"owner": "\x1b]0;title\x07"},
     {"attachments": tuple(Attachment(f"k{at}", 1) for at in range(300))}],
    ids=lambda one: "-".join(one),
)  # fmt: skip
def test_a_chain_takes_only_numbers_that_follow_from_it(
    store: MetadataStore, fields: dict[str, object]
) -> None:
    known, _ = chain(store)
    with pytest.raises(Unauthorized):
        written(store, replace(known, **fields))


def test_an_honest_epoch_is_taken_and_the_next(store: MetadataStore) -> None:
    written(store, chains.open_for_append(chain(store)[0], "one"))
    written(store, chains.open_for_append(chain(store)[0], "two"))
    assert chain(store)[0].epoch == 2


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"records": 1 << 50}, "other records"),
        ({"last_time_us": 10**17}, "clocks"),
        ({"last_time_us": 5}, "clocks"),
        ({"size_bytes": 1 << 41}, "bytes"),
    ],
    ids=["records", "late", "early", "size"],
)
def test_a_closed_segment_says_what_its_ledger_can_hold(
    store: MetadataStore, fields: dict[str, int], match: str
) -> None:
    writer = of(store, *WRITER)
    written(store, chains.open_for_append(chain(store)[0], "one"))
    ledger_id = writer.next_ledger_id()
    written(store, chains.reserve(chain(store)[0], 1, ledger_id))
    custom = {"fastbk.stream": ORDERS.encode(), "fastbk.namespace": b"shop"}
    value = with_fields(metadata(), custom=custom)
    version = writer.create_ledger(ledger_id, value)
    written(store, chains.add_segment(chain(store)[0], 1, ledger_id, time.time_ns() // 1000))
    writer.update_ledger(
        ledger_id,
        with_fields(value, state=LedgerState.CLOSED, last_entry_id=0, length=100),
        version,
    )
    now_us = time.time_ns() // 1000
    contents = Contents(1, 0, 0, now_us, now_us, DLSN(1, 0, 0), -1, 100)
    with pytest.raises(Unauthorized, match=match):
        written(
            store, chains.close_segment(chain(store)[0], ledger_id, replace(contents, **fields))
        )
    written(store, chains.close_segment(chain(store)[0], ledger_id, contents))


def test_a_ledger_ends_with_what_bookies_can_hold(store: MetadataStore) -> None:
    """A length of 2 TiB for one entry had the janitor delete the rest of a stream."""
    writer = of(store, *WRITER)
    drawn = writer.next_ledger_id()
    version = writer.create_ledger(drawn, metadata())
    for last, length in ((0, 1 << 41), (1 << 62, 100), (-1, 1)):
        with pytest.raises((Unauthorized, ConfigError)):
            closed = with_fields(
                metadata(), state=LedgerState.CLOSED, last_entry_id=last, length=length
            )
            writer.update_ledger(drawn, closed, version)


def test_only_drawn_ids_are_created(store: MetadataStore) -> None:
    """One of 2^62 - 1 left a cluster no ids to begin with after a restore."""
    writer = of(store, *WRITER)
    drawn = writer.next_ledger_id()
    for high in (drawn + 1, 2**62 - 1):
        with pytest.raises(Unauthorized, match="not drawn"):
            writer.create_ledger(high, metadata())
    writer.create_ledger(drawn, metadata())
    of(store, *WRITER, "admin").create_ledger(drawn + 10, metadata())


# --- names ----------------------------------------------------------------------------------------------------------


def test_a_thing_gets_one_name(store: MetadataStore) -> None:
    """INV-S12: the first name would stand for a stream that has another."""
    record = StreamRecord(SHOP, "two")
    changes = [
        Change(entry_path(SHOP, "one"), put(EntryRecord("stream", "0fee"))),
        Change(entry_path(SHOP, "two"), put(EntryRecord("stream", "0fee"))),
        Change(stream_path("0fee"), put(record)),
        Change(chain_path("0fee"), put_chain(Chain("0fee"))),
        Change(usage_path(SHOP), put(UsageRecord(3, 1, 3)), version_of(store, usage_path(SHOP))),
        Change(
            usage_path(ROOT_ID), put(UsageRecord(4, 0, 2)), version_of(store, usage_path(ROOT_ID))
        ),
    ]
    with pytest.raises(Unauthorized, match="two names"):
        of(store, *WRITER).records.change(changes)


def born(store: MetadataStore, parents: dict[str, str]) -> list[Change]:
    """Return the changes that create namespaces, by id in their parents."""
    changes: list[Change] = []
    for one, parent in parents.items():
        changes += [
            Change(entry_path(parent, f"n{one}"), put(EntryRecord("namespace", one))),
            Change(namespace_path(one), put(NamespaceRecord(parent, f"n{one}"))),
        ]
    for owner in {*parents, *parents.values()}:
        below = sum(parent == owner for parent in parents.values())
        (found,) = store.records.read([usage_path(owner)])
        before = UsageRecord(names=2, streams=2) if owner == ROOT_ID else UsageRecord()
        after = UsageRecord(before.streams, before.changes + bool(below), before.names + below)
        changes.append(
            Change(usage_path(owner), put(after), None if found is None else found.version)
        )
    return changes


@pytest.mark.parametrize(
    "parents",
    [{"eeee": "eeee"}, {"eeee": "ffff", "ffff": "eeee"}, {"eeee": "0bad"},
     {f"e{at:03}": f"e{at - 1:03}" if at else ROOT_ID for at in range(NAMESPACES_DEEP_MAX + 5)}],
    ids=["itself", "each other", "none", "deep"],
)  # fmt: skip
@pytest.mark.parametrize("namespaces", [None, ("shop",)], ids=["unlimited", "limited"])
def test_a_namespace_lies_in_one_that_is_there(
    store: MetadataStore, parents: dict[str, str], namespaces: tuple[str, ...] | None
) -> None:
    with pytest.raises(Unauthorized):
        of(store, *WRITER, namespaces=namespaces).records.change(born(store, parents))
    if namespaces is None:
        of(store, *WRITER).records.change(born(store, {"eeee": ROOT_ID, "ffff": "eeee"}))


# --- what is bad already --------------------------------------------------------------------------------------------


def test_a_chain_that_nobody_can_read_is_replaced_only_by_who_may_delete(
    store: MetadataStore,
) -> None:
    path = chain_path(ORDERS)
    store.records.change([Change(path, b"garbage", version_of(store, path))])
    gone = put_chain(Chain(ORDERS, 5, CONDEMNED, is_sealed=True))
    for operations, value in ((WRITER, gone), ((*WRITER, "delete"), put_chain(Chain(ORDERS)))):
        with pytest.raises((Unauthorized, StorageError)):
            of(store, *operations).records.change([Change(path, value, version_of(store, path))])
        assert store.records.read([path])[0].value == b"garbage"  # type: ignore[union-attr]
    of(store, *WRITER, "delete").records.change([Change(path, gone, version_of(store, path))])


def test_a_page_of_no_stream_is_none(store: MetadataStore) -> None:
    rows = put_page((Segment(1, 1, SegmentState.CLOSED, 1, 5, 0, 0, 1),))
    with pytest.raises(Unauthorized):
        of(store, *WRITER).records.change([Change(f"{pages_path('0bad')}/{page_part(0, 1)}", rows)])


# What clients of a gateway may do with cursors of patterns: INV-B1, INV-W2, INV-W6.


MINE = path_of(SHOP, "mine")
CURSOR, MOVED = put_pattern(PatternRecord("*")), put_pattern(PatternRecord("*", serial=1))


def of_size(size_bytes: int) -> bytes:
    place = DLSN(1 << 40, 1 << 40, 0)
    count = size_bytes // 45
    positions = {f"{at:016x}": StreamPosition(place, 1 << 40) for at in range(count)}
    return put_pattern(PatternRecord("*", positions=positions))


def test_a_reader_keeps_one_and_deletes_it(store: MetadataStore) -> None:
    reader = of(store, "read", namespaces=("shop",)).records
    (version,) = reader.change([Change(MINE, CURSOR)])
    (version,) = reader.change([Change(MINE, MOVED, version)])
    assert reader.children(pattern_cursors_path(SHOP)) == ["mine"]
    assert reader.read([MINE])[0].value == MOVED  # type: ignore[union-attr]
    reader.change([Change(MINE, None, version)])


def test_who_may_not_read_keeps_none(store: MetadataStore) -> None:
    with pytest.raises(Unauthorized):
        of(store, "delete").records.change([Change(MINE, CURSOR)])


def test_those_of_other_namespaces_are_neither_seen_nor_made(store: MetadataStore) -> None:
    reader = of(store, "read", namespaces=("shop",)).records
    others = path_of(BANK, "theirs")
    store.records.change([Change(others, CURSOR)])
    with pytest.raises(Unauthorized):
        reader.read([others])
    with pytest.raises(Unauthorized):
        reader.children(pattern_cursors_path(BANK))
    with pytest.raises(Unauthorized):
        reader.change([Change(path_of(BANK, "another"), CURSOR)])
    # Of a namespace above its own it sees the way, and not the names of all streams there.
    below = of(store, "read", namespaces=("shop/below",)).records
    store.records.change([Change(MINE, CURSOR)])
    with pytest.raises(Unauthorized):
        below.read([MINE])


def test_a_namespace_takes_so_many_and_no_more(store: MetadataStore) -> None:
    store.records.change(
        [Change(path_of(SHOP, f"c{number}"), CURSOR) for number in range(CURSORS_MAX)]
    )
    reader = of(store, "read").records
    with pytest.raises(QuotaExceeded, match="namespace shop has 100 cursors of patterns"):
        reader.change([Change(MINE, CURSOR)])
    reader.change([Change(path_of(SHOP, "c1"), MOVED, version_of(store, path_of(SHOP, "c1")))])
    with pytest.raises(Unauthorized, match="one cursor of a namespace at most"):
        reader.change([Change(path_of(BANK, name), CURSOR) for name in "ab"])


def test_there_is_no_new_one_below_the_level_that_has_them(store: MetadataStore) -> None:
    """INV-U4: whatever its client does. And a client whose token is limited to namespaces may read the level."""
    reader = of(store, "read", namespaces=("shop",)).records
    (version,) = reader.change([Change(MINE, CURSOR)])
    set_level(store, 2)
    with pytest.raises(
        ConfigError, match="namespace shop gets no cursor of a pattern: that needs format level 3"
    ):
        reader.change([Change(path_of(SHOP, "other"), CURSOR)])
    reader.change([Change(MINE, MOVED, version)])
    (found,) = reader.read([LEVEL_PATH])
    assert found is not None and decode(found.value).level == 2


def test_there_is_none_without_its_namespace(store: MetadataStore) -> None:
    with pytest.raises(Unauthorized, match="there is no namespace ffff"):
        of(store, "read").records.change([Change(path_of("ffff", "c"), CURSOR)])


def test_what_nobody_could_read_is_not_written(store: MetadataStore) -> None:
    """INV-S14."""
    reader = of(store, "read").records
    for bad in (b"no record", CURSOR[:-1], put_pattern(PatternRecord("*", holder="a\nb"))):
        with pytest.raises(Unauthorized):
            reader.change([Change(MINE, bad)])
    with pytest.raises(Unauthorized):
        reader.change([Change(MINE, put_pattern(PatternRecord("*", used_at_us=1 << 53)))])


def test_large_ones_are_for_those_who_may_append(store: MetadataStore) -> None:
    reader, writer = of(store, "read").records, of(store, "read", "add").records
    with pytest.raises(Unauthorized, match="more than 65536 bytes"):
        reader.change([Change(MINE, of_size(2 * READERS_CURSOR_BYTES_MAX))])
    writer.change([Change(MINE, of_size(2 * READERS_CURSOR_BYTES_MAX))])
