"""Record batches into one file, Parquet or Arrow's own: whole under its name, or not there at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa

from fastbk.errors import ConfigError
from fastbk.safe_files import replaced

GROUP_ROWS = 1 << 17
GROUP_BYTES = 64 << 20
SUFFIXES = (".parquet", ".arrow")

Reader: TypeAlias = pa.RecordBatchReader
OnProgress = Callable[[int, int], None]
"""Is told how many rows, and bytes of their columns, were written so far."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """What a file holds: rows, bytes of their columns in memory; and the bytes of the file."""

    rows: int
    size_bytes: int
    file_bytes: int


def check_suffix(path: Path) -> None:
    """Raise ConfigError unless the name says which format it is."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"{path}: the end of the name says what it is: .parquet, or .arrow for Arrow's IPC file"
        )


def write_file(
    reader: Reader, path: Path | str, on_progress: OnProgress = lambda _, __: None
) -> WrittenFile:
    """Write all that a reader gives; no more than a row group (64 MiB, or 131,072 rows) is in memory.

    The file gets its name when all of it is on the disk, and takes the place of one that has it; after an error there
    is nothing new. Raises ConfigError for a name or place that cannot be, and what the reader raises.
    """
    path = Path(path)
    check_suffix(path)
    rows = size_bytes = 0
    with ExitStack() as stack:
        try:
            draft = stack.enter_context(replaced(path))
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        with _writer(draft, path.suffix, reader.schema) as writer:
            for group in _groups(reader):
                writer.write_table(group)
                rows += group.num_rows
                size_bytes += group.nbytes
                on_progress(rows, size_bytes)
        file_bytes = draft.stat().st_size
    return WrittenFile(rows, size_bytes, file_bytes)


def _groups(reader: Reader) -> Iterator[pa.Table]:
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in reader:
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= GROUP_ROWS or size_bytes >= GROUP_BYTES:
            yield pa.Table.from_batches(held)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield pa.Table.from_batches(held)


def _writer(draft: Path, suffix: str, schema: pa.Schema) -> Any:  # noqa: ANN401 -- pyarrow has no types
    if suffix == ".parquet":
        import pyarrow.parquet

        return pyarrow.parquet.ParquetWriter(draft, schema, compression="zstd")
    return pa.ipc.new_file(draft, schema)
