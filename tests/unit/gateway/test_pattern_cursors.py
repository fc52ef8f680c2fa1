"""What clients of a gateway may do with cursors of patterns: INV-B1, INV-W2, INV-W6."""

from __future__ import annotations

import pytest

from fastbk.errors import ConfigError, QuotaExceeded, Unauthorized
from fastbk.gateway.rules import READERS_CURSOR_BYTES_MAX
from fastbk.meta import MetadataStore
from fastbk.meta.format_level import LEVEL_PATH, decode
from fastbk.meta.records import Change
from fastbk.stream.paths import pattern_cursors_path
from fastbk.stream.pattern.store import (
    CURSORS_MAX,
    PatternRecord,
    StreamPosition,
    path_of,
    put_pattern,
)
from fastbk.stream.positions import DLSN
from tests.fixtures.gateway_store import BANK, SHOP, of, two_namespaces, version_of
from tests.fixtures.metadata import set_level

MINE = path_of(SHOP, "mine")
CURSOR, MOVED = put_pattern(PatternRecord("*")), put_pattern(PatternRecord("*", serial=1))


@pytest.fixture
def store(tmp_path: object) -> MetadataStore:
    return two_namespaces(f"patterns {tmp_path}")


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
