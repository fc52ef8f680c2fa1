"""The format level of a cluster: it only rises, and whoever lacks it is told."""

from __future__ import annotations

from contextlib import closing
from itertools import count

import msgspec
import pytest

import fastbk
from fastbk import formats
from fastbk.errors import ConfigError, MetadataConflict, StorageError
from fastbk.formats import LEVEL_FIRST, LEVEL_MAX, Format
from fastbk.meta import open_store
from fastbk.meta.api import MetadataStore
from fastbk.meta.format_level import (
    LEVEL_PATH,
    POLL_INTERVAL_S,
    TRIES_MAX,
    FormatGate,
    LevelRecord,
    check_level,
    raise_level,
    read_or_first,
    read_record,
)
from fastbk.meta.records import Change
from fastbk.meta.sqlite.store import MemoryStore
from tests.fixtures.metadata import forget_level

_numbers = count()


@pytest.fixture
def store() -> MemoryStore:
    """A cluster that an older version made."""
    store = MemoryStore(f"format level {next(_numbers)}")
    forget_level(store)
    return store


def put(store: MetadataStore, value: bytes) -> None:
    (found,) = store.records.read([LEVEL_PATH])
    version = None if found is None else found.version
    store.records.change([Change(LEVEL_PATH, value, version)])


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_a_new_cluster_begins_at_the_newest_level() -> None:
    new = read_record(MemoryStore(f"format level {next(_numbers)}"))
    assert (new.level, new.software) == (LEVEL_MAX, f"fastbk {fastbk.__version__}")


def test_a_cluster_without_the_record_has_the_first_level(store: MemoryStore) -> None:
    assert read_record(store) == LevelRecord()
    assert check_level(store) == LEVEL_FIRST


def test_the_level_rises_and_never_falls(store: MemoryStore) -> None:
    """INV-U2."""
    raised = raise_level(store, 2)
    assert raised.level == 2 and raised.finalized_ms > 0
    assert raised.software == f"fastbk {fastbk.__version__}"
    assert raise_level(store, 1) == raised == read_record(store)


def test_a_level_that_another_process_raises_meanwhile_stays(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-U2: a compare-and-set that fails is decided anew."""
    change, tries = store.records.change, []

    def raced(changes: list[Change]) -> list[int]:
        tries.append(1)
        if len(tries) == 1:
            change([Change(LEVEL_PATH, msgspec.json.encode(LevelRecord(level=3)))])
        return change(changes)

    monkeypatch.setattr(store.records, "change", raced)
    assert raise_level(store, 2).level == 3
    assert read_record(store).level == 3

    def lost(changes: list[Change]) -> list[int]:
        tries.append(1)
        raise MetadataConflict("another one was first")

    monkeypatch.setattr(store.records, "change", lost)
    tries.clear()
    with pytest.raises(MetadataConflict, match="again and again"):
        raise_level(store, 4)
    assert len(tries) == TRIES_MAX


def test_a_version_without_the_level_is_told_which_one_it_needs(store: MemoryStore) -> None:
    """INV-U2."""
    put(store, msgspec.json.encode(LevelRecord(level=LEVEL_MAX + 7, software="fastbk 9.9")))
    with pytest.raises(
        ConfigError, match=rf"level {LEVEL_MAX + 7} by fastbk 9.9; .* up to {LEVEL_MAX}"
    ):
        check_level(store)


@pytest.mark.parametrize("value", [b"no json", b'{"level": "x"}', b'{"level": 0}'])
def test_a_damaged_record_is_an_error_and_no_first_level(store: MemoryStore, value: bytes) -> None:
    put(store, value)
    with pytest.raises(StorageError, match="record cluster/format_level in metadata"):
        check_level(store)
    assert read_or_first(store) == LevelRecord()
    if LEVEL_MAX > 2:
        with pytest.raises(StorageError):
            raise_level(store, 2)
    assert raise_level(store, LEVEL_MAX).level == check_level(store) == LEVEL_MAX


def test_fields_of_a_newer_version_do_no_harm(store: MemoryStore) -> None:
    put(store, b'{"level": 2, "added_later": [1]}')
    assert read_record(store) == LevelRecord(level=2)


def test_a_process_writes_a_newer_format_once_it_has_read_the_level(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-U1, with a planted format of level 2."""
    planted = Format("manifest", {1: 2, 2: 3}, 1, "", "")
    monkeypatch.setitem(formats._BY_NAME, "manifest", planted)
    clock = Clock()
    gate = FormatGate(clock)
    assert gate.version("manifest") == 2
    assert not gate.poll(store)
    raise_level(store, 2)
    clock.now_s += POLL_INTERVAL_S - 0.1
    assert not gate.poll(store) and gate.version("manifest") == 2, "it is not read all the time"
    clock.now_s += 0.2
    assert gate.poll(store)
    assert (gate.level, gate.version("manifest")) == (2, 3)
    put(store, msgspec.json.encode(LevelRecord(level=1)))  # as a backup that was restored has it
    clock.now_s += POLL_INTERVAL_S
    assert not gate.poll(store)
    assert gate.version("manifest") == 3, "what was written so stays to be read"


def test_a_gate_that_failed_reads_again_at_once(store: MemoryStore) -> None:
    gate = FormatGate(Clock())
    put(store, b"no json")
    for _ in range(2):
        with pytest.raises(StorageError):
            gate.poll(store)
    put(store, msgspec.json.encode(LevelRecord(level=2)))
    assert gate.poll(store)


def test_zookeeper_and_sqlite_have_it_too(zookeeper: object, tmp_path: object) -> None:
    for uri in (zookeeper.uri(), f"sqlite:{tmp_path}/metadata.sqlite"):  # type: ignore[attr-defined]
        with closing(open_store(uri)) as store:
            assert read_record(store).level == LEVEL_MAX
            forget_level(store)
            assert read_record(store).level == LEVEL_FIRST
            assert raise_level(store, 2).level == 2
        with closing(open_store(uri)) as again:
            assert check_level(again) == 2
