"""Records of coordination: there and back, damage, and which changes a gateway lets through (INV-K1, INV-W12)."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from fastbk.admin.bad_records import find_bad_records, remove_bad_record
from fastbk.coordination.records import (
    DATA_BYTES_MAX,
    KEYS_KEPT,
    NAMES_MAX,
    RECORD_BYTES_MAX,
    AnyRecord,
    ConfigRecord,
    CounterRecord,
    KeptChange,
    LeaseRecord,
    NamesRecord,
    get_names,
    get_record,
    put_names,
    put_record,
)
from fastbk.errors import Error, StorageError, Unauthorized
from fastbk.meta import MetadataStore
from fastbk.meta.records import Change
from fastbk.stream.paths import coordination_path
from fastbk.stream.positions import NUMBER_MAX
from tests.fixtures.gateway_store import BANK, SHOP, of, two_namespaces
from tests.fixtures.metadata import set_level

LEASE = LeaseRecord(1, 0, "k1", 10_000, "host-1", b"10.0.0.1:80")
FOLDER = coordination_path(SHOP)
PATH = f"{FOLDER}/leader"
RECORDS: list[AnyRecord] = [
    LEASE,
    LeaseRecord(),
    CounterRecord(3, -7, (KeptChange("k", -7),)),
    ConfigRecord(9, b"x" * 100, (KeptChange("k", 9),)),
]


@pytest.mark.parametrize("record", RECORDS)
def test_a_record_there_and_back(record: AnyRecord) -> None:
    assert get_record(put_record(record)) == record
    assert get_names(put_names(NamesRecord(3, 17))) == NamesRecord(3, 17)


def test_the_largest_records_fit() -> None:
    changes = tuple(KeptChange("f" * 32, NUMBER_MAX) for _ in range(KEYS_KEPT))
    for record in (
        ConfigRecord(NUMBER_MAX, b"x" * DATA_BYTES_MAX, changes),
        LeaseRecord(NUMBER_MAX, NUMBER_MAX, "f" * 32, 3_600_000, "ü" * 200, b"x" * DATA_BYTES_MAX),
    ):
        assert len(put_record(record)) <= RECORD_BYTES_MAX


@pytest.mark.parametrize("raw", [b"", b"FBKK", b"FBKC" + bytes(20), put_record(LEASE)[:-1]])
def test_what_is_no_record_is_told(raw: bytes) -> None:
    with pytest.raises(StorageError):
        get_record(raw)


def test_what_nobody_would_read_is_not_written() -> None:
    for bad in (
        replace(LEASE, duration_ms=0),
        replace(LEASE, number=-1),
        ConfigRecord(1, b"x" * (DATA_BYTES_MAX + 1)),
    ):
        with pytest.raises(StorageError, match="nobody reads"):
            put_record(bad)
    with pytest.raises(StorageError, match="printable"):
        get_record(put_record(replace(LEASE, holder="a\nb")))
    with pytest.raises(StorageError):
        put_names(NamesRecord(NAMES_MAX + 1))


def test_bad_ones_are_found_and_removed(tmp_path: Path) -> None:
    """INV-M17."""
    store = two_namespaces(f"bad coordination {tmp_path}")
    store.records.change([Change(FOLDER, b"garbage"), Change(PATH, b"garbage")])
    assert [bad.path for bad in find_bad_records(store)] == [FOLDER, PATH]
    for path in (PATH, FOLDER):
        remove_bad_record(store, path)
    assert find_bad_records(store) == []


# --- at a gateway ---------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> MetadataStore:
    return two_namespaces(f"coordination {tmp_path}")


def made(store: MetadataStore, record: AnyRecord = LEASE, names: int = 1) -> int:
    _, version = store.records.change(
        [Change(FOLDER, put_names(NamesRecord(names))), Change(PATH, put_record(record))]
    )
    return version


def test_who_may_add_makes_changes_and_deletes_one(store: MetadataStore) -> None:
    client = of(store, "read", "add", namespaces=("shop",)).records
    count, version = client.change(
        [Change(FOLDER, put_names(NamesRecord(1))), Change(PATH, put_record(LEASE))]
    )
    for after in (
        replace(LEASE, beat=1),
        replace(LEASE, key="", holder=""),
        LeaseRecord(2, 0, "k2", 500, "host-2"),
    ):
        (version,) = client.change([Change(PATH, put_record(after), version)])
    assert client.children(FOLDER) == ["leader"]
    client.change(
        [Change(PATH, None, version), Change(FOLDER, put_names(NamesRecord(0, 2)), count)]
    )


def test_who_may_only_read_changes_nothing(store: MetadataStore) -> None:
    version = made(store)
    reader = of(store, "read").records
    assert reader.read([PATH])[0] is not None
    with pytest.raises(Unauthorized):
        reader.change([Change(PATH, put_record(replace(LEASE, beat=1)), version)])


def test_those_of_other_namespaces_are_neither_seen_nor_changed(store: MetadataStore) -> None:
    version = made(store)
    other = of(store, "read", "add", namespaces=("bank",)).records
    for act in (
        lambda: other.read([PATH]),
        lambda: other.children(FOLDER),
        lambda: other.change([Change(PATH, put_record(replace(LEASE, beat=1)), version)]),
    ):
        with pytest.raises(Unauthorized):
            act()
    assert other.children(coordination_path(BANK)) == []


@pytest.mark.parametrize(
    "after",
    [
        replace(LEASE, number=0),
        replace(LEASE, number=2),
        replace(LEASE, key="k2"),
        replace(LEASE, key="k2", number=3),
        replace(LEASE, key="", number=0),
        CounterRecord(2, 0),
    ],
)
def test_no_number_falls_or_leaps(store: MetadataStore, after: AnyRecord) -> None:
    """INV-W12."""
    version = made(store, replace(LEASE, beat=5))
    client = of(store, "read", "add").records
    with pytest.raises(Unauthorized):
        client.change([Change(PATH, put_record(after), version)])
    with pytest.raises(Unauthorized, match="INV-K1"):
        client.change([Change(PATH, put_record(replace(LEASE, beat=4)), version)])


@pytest.mark.parametrize(
    ("names", "number"), [(None, 1), (NamesRecord(2), 1), (NamesRecord(1), 2), (NamesRecord(0), 1)]
)
def test_names_come_with_their_count_and_above_the_floor(
    store: MetadataStore, names: NamesRecord | None, number: int
) -> None:
    changes = [Change(PATH, put_record(replace(LEASE, number=number)))]
    if names is not None:
        changes.append(Change(FOLDER, put_names(names)))
    with pytest.raises(Unauthorized):
        of(store, "read", "add", "delete").records.change(changes)


def test_a_deletion_raises_the_floor(store: MetadataStore) -> None:
    version = made(store, replace(LEASE, number=7))
    client = of(store, "read", "add", "delete").records
    (count,) = store.records.read([FOLDER])
    assert count is not None
    for names in (None, NamesRecord(0, 6), NamesRecord(1, 7)):
        changes = [Change(PATH, None, version)]
        if names is not None:
            changes.append(Change(FOLDER, put_names(names), count.version))
        with pytest.raises(Unauthorized):
            client.change(changes)
    client.change(
        [Change(PATH, None, version), Change(FOLDER, put_names(NamesRecord(0, 7)), count.version)]
    )


def test_none_comes_below_the_level_or_without_its_namespace(store: MetadataStore) -> None:
    """INV-U1."""
    client = of(store, "read", "add").records
    gone = coordination_path("ffff")
    for folder, level, told in ((gone, 4, "no namespace"), (FOLDER, 3, "needs format level 4")):
        set_level(store, level)
        with pytest.raises(Error, match=told):
            client.change(
                [
                    Change(folder, put_names(NamesRecord(1))),
                    Change(f"{folder}/leader", put_record(LEASE)),
                ]
            )


@pytest.mark.parametrize("name", ["a%62", "a/b", ".a", "%2e"])
def test_a_second_spelling_is_no_name(store: MetadataStore, name: str) -> None:
    with pytest.raises(Error):
        of(store, "read", "add").records.change(
            [
                Change(FOLDER, put_names(NamesRecord(1))),
                Change(f"{FOLDER}/{name}", put_record(LEASE)),
            ]
        )
