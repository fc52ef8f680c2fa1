"""`fastbk ledger export` and `fastbk stream export`: a range as one Parquet or Arrow file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_json, add_metadata, metadata_uri, note, print_json
from fastbk.cli.passwords import password_of
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream.options import START_HELP, add_verb_of_one, start_of
from fastbk.errors import ConfigError
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    import argparse

    from fastbk.arrow.files import Reader
    from fastbk.arrow.ledgers import EntryGap
    from fastbk.cli.stream.options import Verbs
    from fastbk.stream.records import Gap

_FILE_HELP = (
    "name.parquet, or name.arrow for Arrow's own format; takes the place of one that is there"
)


def add_ledger_verb(verbs: Verbs) -> argparse.ArgumentParser:
    """Declare `export` of a ledger; its password is the caller's to add."""
    parser = verbs.add_parser(
        "export", help="entries as a Parquet or Arrow file, for Polars, DuckDB"
    )
    parser.add_argument("ledger_id", type=int, metavar="ID")
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE_HELP)
    parser.add_argument("--first", type=int, default=0, metavar="ENTRY", help="from here (0)")
    parser.add_argument("--last", type=int, metavar="ENTRY", help="up to here (the last)")
    _add_shared(parser, "entries are on no bookie")
    return parser


def add_stream_verb(verbs: Verbs) -> None:
    """Declare `export` of a stream."""
    parser = add_verb_of_one(
        verbs, "export", "records as a Parquet or Arrow file, for Polars, DuckDB", "STREAM"
    )
    parser.add_argument("file", type=Path, metavar="FILE", help=_FILE_HELP)
    parser.add_argument(
        "--from", dest="start", default="earliest", metavar="POSITION",
        help=f"where to begin (earliest): {START_HELP}",
    )  # fmt: skip
    parser.add_argument("--to", dest="end", metavar="POSITION", help="where to end, not with it")
    _add_shared(parser, "records are gone (truncated, lost)")


def _add_shared(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument(
        "--on-gap", choices=["fail", "tell"], default="fail",
        help=f"where {what}: fail, or tell of it and go on",
    )  # fmt: skip
    add_metadata(parser)
    add_json(parser)


def run_ledger(options: argparse.Namespace) -> int:
    """Write a ledger's entries into a file; nobody is fenced."""
    try:
        from fastbk.arrow import read_ledger
    except ImportError as error:
        raise _needed(error) from error
    from fastbk.arrow.files import check_suffix

    check_suffix(options.file)
    gaps: list[str] = []

    def passed(gap: EntryGap) -> None:
        gaps.append(f"entries {gap.first} to {gap.next - 1} are on no bookie")

    reader = read_ledger(
        metadata_uri(options),
        options.ledger_id,
        options.first,
        options.last,
        skip_gaps=options.on_gap == "tell",
        on_gap=passed,
        digest=options.digest,
        password=password_of(options),
    )
    return _write(reader, f"ledger {options.ledger_id}", "entries", gaps, options)


def run_stream(options: argparse.Namespace) -> int:
    """Write a stream's records, headers too, into a file; nobody is fenced."""
    try:
        from fastbk.arrow import read_stream
    except ImportError as error:
        raise _needed(error) from error
    from fastbk.arrow.files import check_suffix
    from fastbk.cli.stream.output import WORDS

    check_suffix(options.file)
    gaps: list[str] = []

    def passed(gap: Gap) -> None:
        how_many = "some" if gap.records is None else f"{gap.records:,}"
        gaps.append(f"{how_many} records from {gap.first} up to {gap.next} {WORDS[gap.kind]}")

    reader = read_stream(
        metadata_uri(options),
        options.stream,
        start_of(options.start),
        None if options.end is None else start_of(options.end),
        headers=True,
        skip_gaps=options.on_gap == "tell",
        on_gap=passed,
    )
    return _write(reader, options.stream, "records", gaps, options)


def _write(
    reader: Reader,
    what: str,
    rows_are: str,
    gaps: list[str],
    options: argparse.Namespace,
) -> int:
    from fastbk.arrow.files import write_file

    progress, began_s = ByteProgress(what), time.monotonic()
    try:
        written = write_file(reader, options.file, progress.moved)
    finally:
        reader.close()
        progress.end()
    took_s = time.monotonic() - began_s
    if options.json:
        answer = {"file": str(options.file), rows_are: written.rows, "bytes": written.file_bytes}
        print_json(answer | {"gaps": gaps, "seconds": round(took_s, 3)})
        return 0
    for gap in gaps:
        note(f"fastbk: {gap}")
    singular = {"entries": "entry", "records": "record"}[rows_are]
    print(
        f"{options.file}: {format_count(written.rows, singular, rows_are)}, {format_size(written.file_bytes)}"
    )
    return 0


def _needed(error: ImportError) -> ConfigError:
    return ConfigError(f"export: {error}")
