"""What a bookie keeps of metadata survives restarts, torn tails and rewrites, and stays small (INV-M7)."""

from __future__ import annotations

import errno
import os
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastbk import safe_files
from fastbk.model.ids import IdRanges
from fastbk.native.ffi import CorruptDataError
from fastbk.storage.last_metadata import (
    BUFFER_BYTES,
    NAME,
    SLACK_BYTES,
    LastMetadata,
    pack,
    read_last_metadata,
)


def test_the_last_of_each_ledger_counts_also_after_a_restart(tmp_path: Path) -> None:
    file = LastMetadata(tmp_path)
    assert file.see(7, 0, b"open")
    assert not file.see(7, 0, b"open")
    assert file.see(7, 1, b"closed")
    file.see_deleted([3, 4, 5, 9])
    file.close()
    again = LastMetadata(tmp_path)
    assert not again.see(7, 1, b"closed")
    assert list(again.deleted) == [(3, 5), (9, 9)]
    again.close()
    seen, deleted = read_last_metadata(tmp_path)
    assert seen == {7: (1, b"closed")}
    assert list(deleted) == [(3, 5), (9, 9)]


def test_a_deleted_ledger_is_no_longer_seen_unless_it_is_seen_again(tmp_path: Path) -> None:
    file = LastMetadata(tmp_path)
    file.see(7, 0, b"one")
    file.see_deleted([7])
    assert read_last_metadata(tmp_path)[0] == {}
    assert file.see(7, 0, b"one")
    file.close()
    seen, deleted = read_last_metadata(tmp_path)
    assert seen == {7: (0, b"one")}
    assert not len(deleted)


def test_whoever_reads_beside_the_writer_never_meets_half_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = {name: getattr(os, name) for name in ("open", "ftruncate", "pwrite", "replace")}
    steps: list[str] = []

    def step(name: str, *args: object, **named: object) -> object:
        done = real[name](*args, **named)
        monkeypatch.undo()  # what reads takes no steps
        steps.append(name)
        read_last_metadata(tmp_path)
        patch()
        return done

    def patch() -> None:
        for name in real:
            monkeypatch.setattr(os, name, partial(step, name))

    patch()
    LastMetadata(tmp_path).close()
    monkeypatch.undo()
    assert "open" in steps


def test_a_file_that_is_something_else_begins_anew(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(bytes(16))
    with pytest.raises(CorruptDataError):
        read_last_metadata(tmp_path)
    LastMetadata(tmp_path).close()
    assert read_last_metadata(tmp_path)[0] == {}


def test_a_torn_tail_costs_only_what_is_torn(tmp_path: Path) -> None:
    file = LastMetadata(tmp_path)
    file.see(1, 0, b"one")
    file.close()
    path = tmp_path / NAME
    whole = path.stat().st_size
    path.write_bytes(path.read_bytes() + pack(2, 0, b"two")[:-1])
    again = LastMetadata(tmp_path)
    assert path.stat().st_size == whole
    again.see(3, 0, b"three")
    again.close()
    assert read_last_metadata(tmp_path)[0] == {1: (0, b"one"), 3: (0, b"three")}


def test_a_damaged_record_is_never_believed(tmp_path: Path) -> None:
    file = LastMetadata(tmp_path)
    file.see(1, 0, b"one")
    file.see(2, 0, b"two")
    file.close()
    path = tmp_path / NAME
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    assert read_last_metadata(tmp_path)[0] == {1: (0, b"one")}


def test_a_rewrite_keeps_what_counts_and_is_here(tmp_path: Path) -> None:
    file = LastMetadata(tmp_path)
    body = bytes(1000)
    for version in range(4 * SLACK_BYTES // 1000):
        file.see(version % 3, version, body)
    file.see(5, 0, b"gone from here")
    file.see_deleted([8])
    assert file.rewrite_if_due({0, 1, 2})
    assert file.size_bytes < 4000
    file.see(1, 1 << 40, b"new")
    file.close()
    seen, deleted = read_last_metadata(tmp_path)
    assert seen.keys() == {0, 1, 2}
    assert seen[1] == (1 << 40, b"new")
    assert list(deleted) == [(8, 8)]


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30), st.integers(0, 5))))
def test_ranges_are_as_a_set_is(steps: list[tuple[bool, int, int]]) -> None:
    ranges, wanted = IdRanges(), set[int]()
    for is_added, first, more in steps:
        if is_added:
            ranges.add(first, first + more)
            wanted |= set(range(first, first + more + 1))
        else:
            ranges.remove(first)
            wanted.discard(first)
        assert {one for a, b in ranges for one in range(a, b + 1)} == wanted
        assert all(a[1] + 1 < b[0] for a, b in zip(list(ranges), list(ranges)[1:], strict=False))
        assert all((one in ranges) == (one in wanted) for one in range(40))


def test_a_disk_that_takes_nothing_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = LastMetadata(tmp_path)

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "no write")

    monkeypatch.setattr(os, "pwrite", refuse)
    size_before, failed = file.size_bytes, 0
    for ledger_id in range(5000):
        try:
            file.see(ledger_id, 0, b"x" * 1000)
        except OSError:
            failed += 1
    assert failed > 0
    assert file.size_bytes - size_before < BUFFER_BYTES + 2000
    monkeypatch.undo()
    file.close()
    seen, _ = read_last_metadata(tmp_path)
    assert len(seen) == 5000 - failed


class Pages:
    """The file's pages in memory and on the disk. A sync that fails has them forgotten: memory goes on showing them."""

    def __init__(self, path: Path, patch: pytest.MonkeyPatch) -> None:
        self.disk = bytearray(path.read_bytes())
        self.fails = False
        self._dirty: list[tuple[int, bytes]] = []
        self._path = path
        self._pwrite = os.pwrite
        patch.setattr(os, "pwrite", self.write)
        patch.setattr(os, "fdatasync", self.sync)

    def write(self, file: int, data: bytes, offset: int) -> int:
        self._dirty.append((offset, bytes(data)))
        return self._pwrite(file, data, offset)

    def sync(self, file: int) -> None:
        dirty, self._dirty = self._dirty, []
        if self.fails:
            raise OSError(errno.EIO, "Input/output error")
        size = os.fstat(file).st_size
        self.disk += bytes(max(0, size - len(self.disk)))
        for offset, data in dirty:
            self.disk[offset : offset + len(data)] = data
        del self.disk[size:]

    def cut_power(self) -> None:
        self._path.write_bytes(self.disk)


@pytest.mark.parametrize("is_restarted", [True, False])
@pytest.mark.parametrize("count", [1, 3, 2 * BUFFER_BYTES // 1000])
def test_nothing_lies_behind_what_a_failed_sync_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, *, is_restarted: bool
) -> None:
    """INV-X7: a deletion that is noted can be read after a power cut, whatever was lost before (INV-M7)."""
    LastMetadata(tmp_path).close()
    file = LastMetadata(tmp_path)
    file.see(1, 0, b"kept")
    file.flush()
    pages = Pages(tmp_path / NAME, monkeypatch)
    pages.fails = True
    for ledger_id in range(2, 2 + count):
        file.see(ledger_id, 0, bytes(1000))
    with pytest.raises(OSError, match="Input/output error"):
        file.flush()
    if is_restarted:
        with pytest.raises(OSError, match="Input/output error"):
            LastMetadata(tmp_path)
        pages.fails = False
        file = LastMetadata(tmp_path)
    else:
        with pytest.raises(OSError, match="Input/output error"):
            file.see_deleted([1])
        pages.fails = False
    file.see_deleted([1_000_000])
    pages.cut_power()
    seen, deleted = read_last_metadata(tmp_path)
    assert list(deleted) == [(1_000_000, 1_000_000)]
    assert seen[1] == (0, b"kept")
    assert len(seen) == 1 + count, "memory still had them"


def test_a_rewrite_whose_name_is_not_durable_goes_on_in_the_new_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-X7: what is noted next is not written to the file that has no name any more."""
    file = LastMetadata(tmp_path)
    for version in range(3 * SLACK_BYTES // 1000):
        file.see(1, version, bytes(1000))
    with monkeypatch.context() as patch:

        def fail(path: Path) -> None:
            raise OSError(errno.EIO, "Input/output error")

        patch.setattr(safe_files, "sync_directory", fail)
        with pytest.raises(OSError, match="Input/output error"):
            file.rewrite_if_due({1})
    file.see_deleted([5])
    file.close()
    seen, deleted = read_last_metadata(tmp_path)
    assert seen.keys() == {1}
    assert list(deleted) == [(5, 5)]
