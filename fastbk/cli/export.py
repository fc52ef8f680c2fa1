"""`fastbk ledger export` and `fastbk stream export`: a range as one Parquet or Arrow file."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.input import password_of
from fastbk.cli.options import add_verb, metadata_uri, note, print_answer
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream.options import LOST, add_on_gap, add_range, add_verb_of_one, range_of
from fastbk.cli.stream.output import text_of_gap
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from fastbk.arrow.files import Reader
    from fastbk.cli.options import Verbs

_FILE_HELP = (
    "name.parquet, or name.arrow for Arrow's own format; takes the place of one that is there"
)


def add_ledger_verb(verbs: Verbs) -> argparse.ArgumentParser:
    """Declare `export` of a ledger; its password is the caller's to add."""
    text = "entries as a Parquet or Arrow file, for Polars, DuckDB"
    parser = add_verb(verbs, "export", run_ledger, text)
    parser.add_argument("ledger_id", type=int, metavar="ID")
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE_HELP)
    parser.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    parser.add_argument("--last", type=int, metavar="ENTRY", help="up to here (the last)")
    add_on_gap(parser, "entries are on no bookie")
    return parser


def add_stream_verb(verbs: Verbs) -> None:
    """Declare `export` of a stream."""
    text = "records as a Parquet or Arrow file, for Polars, DuckDB"
    parser = add_verb_of_one(verbs, "export", run_stream, text)
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE_HELP)
    add_range(parser)
    add_on_gap(parser, LOST)


def run_ledger(options: argparse.Namespace) -> int:
    """Write a ledger's entries into a file; nobody is fenced."""
    _check_file(options)
    from fastbk.arrow import read_ledger

    gaps: list[str] = []
    reader = read_ledger(
        metadata_uri(options),
        options.ledger_id,
        options.first,
        options.last,
        skip_gaps=options.on_gap == "tell",
        on_gap=lambda gap: gaps.append(f"entries {gap.first} to {gap.next - 1} are on no bookie"),
        digest=options.digest,
        password=password_of(options),
    )
    return _write(reader, f"ledger {options.ledger_id}", ("entry", "entries"), gaps, options)


def run_stream(options: argparse.Namespace) -> int:
    """Write a stream's records, headers too, into a file; nobody is fenced."""
    _check_file(options)
    from fastbk.arrow import read_stream

    gaps: list[str] = []
    reader = read_stream(
        metadata_uri(options),
        options.stream,
        *range_of(options),
        headers=True,
        skip_gaps=options.on_gap == "tell",
        on_gap=lambda gap: gaps.append(text_of_gap(gap)),
    )
    return _write(reader, options.stream, ("record", "records"), gaps, options)


def _check_file(options: argparse.Namespace) -> None:
    """Raise ConfigError when the file's name does not say a format, or the library is missing."""
    try:
        from fastbk.arrow import EntryGap  # noqa: F401 -- says what is missing
    except ImportError as error:
        raise ConfigError(f"export: {error}") from error
    from fastbk.arrow.files import check_suffix

    check_suffix(options.file)


def _write(
    reader: Reader, what: str, row: tuple[str, str], gaps: list[str], options: argparse.Namespace
) -> int:
    """Write the file. `row`: what one of them is, and several."""
    from fastbk.arrow.files import write_file

    progress, began_s = ByteProgress(what), time.monotonic()
    try:
        written = write_file(reader, options.file, progress.moved)
    finally:
        reader.close()
        progress.end()
    took_s = time.monotonic() - began_s
    facts = {"file": str(options.file), row[1]: written.rows, "bytes": written.file_bytes}
    facts |= {"gaps": gaps, "seconds": round(took_s, 3)}
    for gap in () if options.json else gaps:
        note(f"fastbk: {gap}")
    size = format_size(written.file_bytes)
    return print_answer(
        options, facts, f"{options.file}: {format_count(written.rows, *row)}, {size}"
    )
