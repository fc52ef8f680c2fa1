"""A file is whole under its name, or nothing of it is there; batches go into it group by group."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from fastbk.arrow import files
from fastbk.arrow.files import WrittenFile, write_file
from fastbk.errors import ConfigError, NoSuchEntry

SCHEMA = pa.schema([("number", pa.int64()), ("value", pa.binary())])


def reader_of(batches: int, rows: int = 10, error: Exception | None = None) -> pa.RecordBatchReader:
    def made() -> Iterator[pa.RecordBatch]:
        for at in range(batches):
            numbers = range(at * rows, (at + 1) * rows)
            yield pa.record_batch([list(numbers), [b"v%d" % one for one in numbers]], SCHEMA)
        if error is not None:
            raise error

    return pa.RecordBatchReader.from_batches(SCHEMA, made())


def rows_in(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()  # type: ignore[no-any-return]
    with pa.ipc.open_file(path) as file:
        return file.read_all().to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
@pytest.mark.parametrize("batches", [0, 1, 7])
def test_all_rows_are_in_the_file(tmp_path: Path, suffix: str, batches: int) -> None:
    path = tmp_path / f"out{suffix}"
    path.write_bytes(b"what was there before")
    told: list[tuple[int, int]] = []
    written = write_file(reader_of(batches), path, lambda *far: told.append(far))
    assert rows_in(path) == reader_of(batches).read_all().to_pylist()
    assert written == WrittenFile(10 * batches, written.size_bytes, path.stat().st_size)
    assert told[-1:] == [(written.rows, written.size_bytes)][: len(told)]
    assert list(tmp_path.iterdir()) == [path]


def test_groups_are_bounded_by_rows_and_by_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.parquet"
    monkeypatch.setattr(files, "GROUP_ROWS", 25)
    write_file(reader_of(7), path)
    groups = pyarrow.parquet.ParquetFile(path).metadata
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [30, 30, 10]
    monkeypatch.setattr(files, "GROUP_BYTES", 1)
    write_file(reader_of(7), path)
    assert pyarrow.parquet.ParquetFile(path).metadata.num_row_groups == 7


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_after_an_error_there_is_what_was_before(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out{suffix}"
    for error in (NoSuchEntry("gone"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            write_file(reader_of(3, error=error), path)  # type: ignore[arg-type]
        assert list(tmp_path.iterdir()) == []
    path.write_bytes(b"before")
    with pytest.raises(NoSuchEntry):
        write_file(reader_of(3, error=NoSuchEntry("gone")), path)
    assert [one.read_bytes() for one in tmp_path.iterdir()] == [b"before"]


def test_names_and_places_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.parquet, or \.arrow"):
        write_file(reader_of(1), tmp_path / "out.csv")
    with pytest.raises(ConfigError, match="No such file or directory"):
        write_file(reader_of(1), tmp_path / "nowhere" / "out.arrow")


def test_what_a_killed_process_left_is_in_nobodys_way(tmp_path: Path) -> None:
    """In a container each run may have the same id."""
    path = tmp_path / "out.arrow"
    (tmp_path / f".{path.name}.{os.getpid()}.part").write_bytes(b"half")
    write_file(reader_of(1), path)
    assert len(rows_in(path)) == 10
