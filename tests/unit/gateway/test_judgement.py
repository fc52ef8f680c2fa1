"""By a gateway kinds of streams do not mix, and only services announce themselves (INV-S28, INV-S29, INV-W11)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from fastbk.errors import ConfigError, Unauthorized
from fastbk.formats import PRODUCERS as FORMAT
from fastbk.formats import level_of
from fastbk.gateway.operations import PRODUCERS_PAGES_MAX
from fastbk.gateway.rules import ForbiddenChange, change_of
from fastbk.meta.api import VersionedLedger
from fastbk.meta.records import Change
from fastbk.security.rights import ROLES, Right
from fastbk.stream import chain as chains
from fastbk.stream.chain import CONDEMNED, Chain, Contents, StreamKind, put_chain
from fastbk.stream.kind import put_table
from fastbk.stream.paths import SERVICES, chain_path, page_part, producers_path, service_path
from fastbk.stream.positions import DLSN
from fastbk.stream.provenance import Row
from fastbk.stream.services import ServiceRecord, put_service
from tests.fixtures.gateway_store import (
    ORDERS,
    WRITER,
    chain,
    ledger,
    of,
    two_namespaces,
    version_of,
)
from tests.fixtures.metadata import set_level

if TYPE_CHECKING:
    from fastbk.meta import MetadataStore

PRODUCERS = StreamKind.PRODUCERS
NOW_US = 10**15
ROWS = (Row(b"till-1", 1 << 32, 17, 5),)


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    made = two_namespaces(f"kinds {tmp_path}")
    set_level(made, level_of(FORMAT))
    return made


def appended(known: Chain, ledger_id: int) -> Chain:
    known = chains.reserve(known, known.epoch, ledger_id)
    known = chains.add_segment(known, known.epoch, ledger_id, 0)
    row = known.open_rows[0]
    held = Contents(3, 0, max(known.last_txid, 0), 10, 20, DLSN(row.number, 2, 0), -1, 300)
    return chains.close_segment(known, ledger_id, held)


# --- chains -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_whatever_a_writer_service_or_operator_does_needs_no_more_than_to_add(seed: int) -> None:
    rng, known, pages = random.Random(seed), Chain("a"), ()
    for step in range(60):
        taken = chains.open_for_append(known, f"by {step}", None)
        if known.is_untouched and rng.random() < 0.5:
            taken = chains.open_for_append(known, f"by {step}", PRODUCERS)
        kind = rng.choice([*StreamKind])
        pages = tuple(page_part(taken.epoch, rng.getrandbits(62)) for _ in range(rng.randrange(3)))
        reserved = chains.reserve(taken, taken.epoch, step)
        after = rng.choice(
            [
                chains.release(taken, taken.epoch),
                chains.change_kind(taken, taken.epoch, kind, pages),
            ]
        )
        for old, new in ((known, taken), (taken, reserved), (taken, after)):
            needs = change_of("a", old, new, {}, NOW_US).needs
            assert all(ROLES["writer"] & need.rights for need in needs)
        known = appended(reserved, step) if rng.random() < 0.3 else after
        # What happened in between is many changes; each of them is judged by `test_rules`.


def test_an_opening_by_a_version_without_kinds_is_refused() -> None:
    """It writes the chain without what it does not know."""
    known = appended(chains.open_for_append(Chain("a"), "service", PRODUCERS), 1)
    dropped = replace(
        chains.open_for_append(known, "old", None), kind=StreamKind.WRITER, producer_pages=()
    )
    with pytest.raises(ForbiddenChange, match="kind of a stream changes by itself"):
        change_of("a", known, dropped, {}, NOW_US)


def test_a_kind_changes_only_with_all_segments_closed() -> None:
    known = chains.open_for_append(Chain("a"), "w")
    begun = chains.add_segment(chains.reserve(known, 1, 7), 1, 7, 0)
    with pytest.raises(ForbiddenChange, match="all segments closed"):
        change_of("a", begun, replace(begun, kind=PRODUCERS), {}, NOW_US)


def test_nothing_is_attached_to_a_stream_of_producers() -> None:
    known = chains.open_for_append(Chain("a"), "w")
    held = Contents(3, 0, 3, 10, 20, DLSN(1, 2, 0), -1, 300)
    attached = chains.attach(known, ((9, held),), "key", 1, 0)
    assert change_of("a", known, attached, {}, NOW_US).attached == (9,)
    with pytest.raises(ForbiddenChange, match="nothing is attached"):
        change_of(
            "a",
            replace(known, kind=PRODUCERS),
            replace(attached, kind=PRODUCERS),
            {},
            NOW_US,
        )


def test_a_segment_in_which_names_were_opened_leaves_the_last_record_where_it_was() -> None:
    known = appended(chains.open_for_append(Chain("a"), "service", PRODUCERS), 1)
    begun = chains.add_segment(chains.reserve(known, 1, 2), 1, 2, 0)
    opened = Contents(0, 0, known.last_txid, 20, 20, None, -1, 103)
    ended = chains.close_segment(begun, 2, opened)
    assert ended.last_dlsn == known.last_dlsn and len(ended.rows) == 2
    assert change_of("a", begun, ended, {}, NOW_US).ended == ((2, -1),)


def test_pages_are_named_by_a_change_of_the_kind_and_of_its_epoch() -> None:
    known = appended(chains.open_for_append(Chain("a"), "service", PRODUCERS), 1)
    with pytest.raises(ForbiddenChange, match="as its kind changes"):
        change_of("a", known, replace(known, producer_pages=(page_part(1, 5),)), {}, NOW_US)
    away = chains.change_kind(known, 1, StreamKind.WRITER, (page_part(2, 5),))
    with pytest.raises(ForbiddenChange, match="number of the epoch"):
        change_of("a", known, away, {}, NOW_US)


# --- records ------------------------------------------------------------------------------------------------------


def written(store: MetadataStore, wanted: Chain, *operations: str) -> None:
    _, version = chain(store)
    of(store, *operations).records.change([Change(chain_path(ORDERS), put_chain(wanted), version)])


def test_a_stream_becomes_a_producers_one_only_at_the_level_of_these(store: MetadataStore) -> None:
    set_level(store, level_of(FORMAT) - 1)
    wanted = chains.open_for_append(chain(store)[0], "service", PRODUCERS)
    with pytest.raises(ConfigError, match="fastbk cluster finalize"):
        written(store, wanted, *WRITER)
    set_level(store, level_of(FORMAT))
    written(store, wanted, *WRITER)
    assert chain(store)[0].kind is PRODUCERS


def test_pages_of_producers_are_there_before_the_chain_names_them_and_stay(
    store: MetadataStore,
) -> None:
    written(store, chains.open_for_append(chain(store)[0], "service", PRODUCERS), *WRITER)
    name, writer = page_part(1, 77), of(store, *WRITER).records
    path = f"{producers_path(ORDERS)}/{name}"
    away = chains.change_kind(chain(store)[0], 1, StreamKind.WRITER, (name,))
    with pytest.raises(Unauthorized, match="write it first"):
        written(store, away, *WRITER)
    with pytest.raises(Unauthorized, match="no page"):
        writer.change([Change(path, b"garbage")])
    later = f"{producers_path(ORDERS)}/{page_part(2, 77)}"
    with pytest.raises(Unauthorized, match="have number 1 now"):
        writer.change([Change(later, put_table(ROWS))])
    with pytest.raises(Unauthorized):
        of(store, "read").records.change([Change(path, put_table(ROWS))])
    writer.change([Change(path, put_table(ROWS))])
    with pytest.raises(Unauthorized, match="never changes"):
        writer.change([Change(path, put_table(()), version_of(store, path))])
    written(store, away, *WRITER)
    with pytest.raises(Unauthorized, match="delete pages of producers"):
        writer.change([Change(path, None, version_of(store, path))])
    taken = chains.open_for_append(chain(store)[0], "operator", None)
    written(store, taken, *WRITER)
    written(store, chains.change_kind(taken, taken.epoch, PRODUCERS), *WRITER)
    again = chains.open_for_append(chain(store)[0], "operator again", None)
    written(store, again, *WRITER)
    written(store, chains.change_kind(again, again.epoch, StreamKind.WRITER), *WRITER)
    writer.change([Change(path, None, version_of(store, path))])  # no chain names it any more


@pytest.mark.parametrize(
    ("of_kind", "entries", "missing_bytes", "is_allowed"),
    [
        (PRODUCERS, 4, 0, True),  # the last two have no records
        (PRODUCERS, 4, 1, False),
        (PRODUCERS, 7, 0, False),
        (StreamKind.WRITER, 4, 0, False),
        (StreamKind.WRITER, 6, 0, True),
    ],
)
def test_a_segment_of_producers_ends_with_its_ledger_by_its_size(
    store: MetadataStore, of_kind: StreamKind, entries: int, missing_bytes: int, is_allowed: bool
) -> None:
    """INV-W3: where entries lie behind the last record, only the bytes say that nothing is left out."""
    ledger_id = ledger(store, "shop", ORDERS, last=5)
    (held,) = store.read_ledgers([ledger_id])
    assert isinstance(held, VersionedLedger) and held.metadata.length
    begun = chains.open_for_append(chain(store)[0], "service", of_kind)
    begun = chains.add_segment(chains.reserve(begun, 1, ledger_id), 1, ledger_id, 0)
    before = put_chain(begun)
    store.records.change([Change(chain_path(ORDERS), before, chain(store)[1])])
    size_bytes = held.metadata.length - missing_bytes
    found = Contents(3, 0, 3, 10, 20, DLSN(1, entries - 1, 0), -1, size_bytes)
    ended = chains.close_segment(begun, ledger_id, found)
    if is_allowed:
        written(store, ended, *WRITER)
    else:
        with pytest.raises(Unauthorized, match="needs the operation truncate"):
            written(store, ended, *WRITER)


def test_a_stream_has_few_pages_of_producers(store: MetadataStore) -> None:
    folder, writer = producers_path(ORDERS), of(store, *WRITER).records
    with pytest.raises(Unauthorized, match="has no producers"):
        writer.change([Change(f"{folder}/{page_part(0, 1)}", put_table(ROWS))])
    written(store, chains.open_for_append(chain(store)[0], "service", PRODUCERS), *WRITER)
    for token in range(PRODUCERS_PAGES_MAX):
        writer.change([Change(f"{folder}/{page_part(1, token)}", put_table(ROWS))])
    with pytest.raises(Unauthorized, match="delete some"):
        writer.change([Change(f"{folder}/{page_part(1, 999)}", put_table(ROWS))])


def test_whoever_may_delete_a_stream_deletes_its_pages_of_producers(store: MetadataStore) -> None:
    written(store, chains.open_for_append(chain(store)[0], "service", PRODUCERS), *WRITER)
    path = f"{producers_path(ORDERS)}/{page_part(1, 7)}"
    of(store, *WRITER).records.change([Change(path, put_table(ROWS))])
    away = chains.change_kind(chain(store)[0], 1, StreamKind.WRITER, (page_part(1, 7),))
    written(store, away, *WRITER)
    written(store, chains.condemn(chain(store)[0]), "read", "delete")
    assert chain(store)[0].owner == CONDEMNED
    of(store, "read", "delete").records.change([Change(path, None, version_of(store, path))])


# --- write services -----------------------------------------------------------------------------------------------


def announcement(service_id: str = "s1", beat: int = 1) -> bytes:
    return put_service(ServiceRecord(service_id=service_id, address="10.0.0.7:3183", beat=beat))


def test_everybody_finds_the_services_and_only_these_announce_themselves(
    store: MetadataStore,
) -> None:
    service, path = of(store, *WRITER, "serve").records, service_path("s1")
    service.change([Change(path, announcement())])
    service.change([Change(path, announcement(beat=2), version_of(store, path))])
    for operations in ((), ("add",), ("recover",), ("delete",), ("truncate",), WRITER):
        client = of(store, *operations, namespaces=("shop",)).records
        (found,) = client.read([path])
        assert found is not None and found.value == announcement(beat=2)
        assert client.children(SERVICES) == ["s1"]
        for change in (
            Change(service_path("s2"), announcement("s2")),
            Change(path, announcement(beat=3), version_of(store, path)),
            Change(path, None, version_of(store, path)),
        ):
            with pytest.raises(Unauthorized):
                of(store, *operations).records.change([change])
    of(store, "admin").records.change([Change(path, None, version_of(store, path))])


def test_a_service_that_is_limited_to_namespaces_does_not_announce_itself(
    store: MetadataStore,
) -> None:
    limited = of(store, *WRITER, "serve", namespaces=("shop",)).records
    with pytest.raises(Unauthorized):
        limited.change([Change(service_path("s1"), announcement())])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("s1", b"garbage"),
        ("s1", announcement("another")),
        ("s1", announcement() + bytes(3000)),
        ("a b", announcement("a b")),
        ("x" * 65, announcement("x" * 65)),
    ],
)
def test_an_announcement_is_one_that_producers_can_read(
    store: MetadataStore, name: str, value: bytes
) -> None:
    with pytest.raises((Unauthorized, ConfigError)):
        of(store, *WRITER, "serve").records.change([Change(f"{SERVICES}/{name}", value)])


def test_the_role_of_a_service_is_a_writers_with_the_right_to_announce_itself() -> None:
    assert ROLES["service"] == ROLES["writer"] | Right.SERVE
