"""Data that commands take in and give out: files and pipes that they read, and files that they export.

A file or a pipe is read in pieces as they come, cut into lines or into pieces of one size. `fastbk ledger export` and
`fastbk stream export` write a range as one Parquet or Arrow file. Passwords of ledgers are read here, too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import threading
import time
from contextlib import aclosing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fastbk.cli.options import add_verb, metadata_uri, note, print_answer
from fastbk.cli.progress import ByteProgress
from fastbk.cli.stream_options import (
    LOST,
    add_on_gap,
    add_range,
    add_verb_of_one,
    range_of,
    text_of_gap,
)
from fastbk.errors import ConfigError, os_errors_as
from fastbk.units import format_count, format_size

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from fastbk.arrow.files import Reader
    from fastbk.cli.options import Verbs

PIECE_BYTES = 256 * 1024
LINE_BYTES_MAX = 64 << 20
PIECES_WAITING = 2


@contextmanager
def opened_input(name: str) -> Iterator[int]:
    """Give the descriptor of a file, or of stdin for `-`."""
    if name == "-":
        yield 0
        return
    with os_errors_as(ConfigError, name):
        descriptor = os.open(name, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


async def _pieces(descriptor: int) -> AsyncGenerator[bytes, None]:
    """Yield what is read as soon as it is there.

    Read by a thread that nobody waits for: a terminal or a pipe may say nothing for ever. It reads past Python's
    buffers, whose locks would hold up the interpreter's end.
    """
    loop = asyncio.get_running_loop()
    pieces: asyncio.Queue[bytes | OSError] = asyncio.Queue()
    room = threading.Semaphore(PIECES_WAITING)
    is_over = False

    def read() -> None:
        found: bytes | OSError = b"something"
        with suppress(RuntimeError):  # the loop has ended
            while found and not isinstance(found, OSError):
                room.acquire()
                if is_over:
                    return
                try:
                    found = os.read(descriptor, PIECE_BYTES)
                except OSError as error:
                    found = error
                # No future to wait for: it would be cancelled under the thread when the command fails.
                loop.call_soon_threadsafe(pieces.put_nowait, found)

    threading.Thread(target=read, name="fastbk-input", daemon=True).start()
    try:
        while True:
            piece = await pieces.get()
            if isinstance(piece, OSError):
                raise ConfigError(f"the input cannot be read: {piece.strerror}") from piece
            if not piece:
                return
            yield piece
            room.release()
    finally:
        is_over = True
        room.release()


async def read_lines(
    descriptor: int, *, keep_ends: bool = False
) -> AsyncGenerator[list[bytes], None]:
    """Yield lines as soon as they are there, without their ends, or with them; the last one may have none."""
    end = b"\n" if keep_ends else b""
    begun: list[bytes] = []  # parts of a line, not joined before its end is there
    size_bytes = 0
    async with aclosing(_pieces(descriptor)) as pieces:
        async for piece in pieces:
            first, *lines = piece.split(b"\n")
            begun.append(first)
            size_bytes += len(first)
            if lines:
                *whole, rest = (b"".join(begun), *lines)
                yield [line + end for line in whole] if end else whole
                begun, size_bytes = [rest], len(rest)
            if size_bytes > LINE_BYTES_MAX:
                raise ConfigError(f"a line has more than {format_size(LINE_BYTES_MAX)}")
    if size_bytes:
        yield [b"".join(begun)]


async def read_chunks(descriptor: int, size_bytes: int) -> AsyncGenerator[list[bytes], None]:
    """Yield pieces of that size, each as soon as it is whole; the last one may be smaller."""
    begun = bytearray()
    async with aclosing(_pieces(descriptor)) as pieces:
        async for piece in pieces:
            begun += piece
            count = len(begun) // size_bytes
            if count:
                yield [
                    bytes(begun[index * size_bytes : (index + 1) * size_bytes])
                    for index in range(count)
                ]
                del begun[: count * size_bytes]
    if begun:
        yield [bytes(begun)]


VARIABLE = "FASTBK_LEDGER_PASSWORD"
_ASK_ON_TERMINAL = "-"
_BYTES_MAX = 4096


def add_password(parser: argparse.ArgumentParser) -> None:
    """Add --password-file."""
    parser.add_argument(
        "--password-file", metavar="FILE",
        help=f"holds the ledger's password, if it has one; {_ASK_ON_TERMINAL} asks for it on the terminal;"
        f" default: the variable {VARIABLE}",
    )  # fmt: skip
    # Without this argparse would take `--password pw` for `--password-file pw`.
    parser.add_argument("--password", type=_refused, help=argparse.SUPPRESS)


def _refused(_: str) -> str:
    raise argparse.ArgumentTypeError(
        "other users would see a password in the list of processes: give --password-file FILE,"
        f" or set {VARIABLE}"
    )


def password_of(options: argparse.Namespace) -> bytes:
    """Return the ledger's password, empty if none is given. Raises ConfigError."""
    if options.password_file == _ASK_ON_TERMINAL:
        return _asked()
    if options.password_file is not None:
        return _read(Path(options.password_file))
    return os.environ.get(VARIABLE, "").encode()


def _asked() -> bytes:
    import getpass
    import warnings

    try:
        with warnings.catch_warnings():
            # Without a terminal it would be read from stdin, and shown.
            warnings.simplefilter("error", getpass.GetPassWarning)
            return getpass.getpass("password of the ledger: ").encode()
    except (EOFError, OSError, getpass.GetPassWarning) as error:
        raise ConfigError(
            f"--password-file {_ASK_ON_TERMINAL} asks on the terminal, and there is none: give a file"
        ) from error


def _read(path: Path) -> bytes:
    """Return what a file holds, without the newline at its end."""
    with (
        os_errors_as(ConfigError, f"--password-file {path}: cannot read it"),
        path.open("rb") as file,
    ):
        record = file.read(_BYTES_MAX + 1)
    if len(record) > _BYTES_MAX:
        raise ConfigError(f"--password-file {path}: it has more than {_BYTES_MAX} bytes")
    return record.removesuffix(b"\n")


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
